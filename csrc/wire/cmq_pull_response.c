/* cmq_pull_response: see cmq_pull_response.h. */
#include "wire/cmq_pull_response.h"

#include "base/cmq_assert.h"
#include "wire/cmq_codes.h"
#include "wire/cmq_member.h"

enum { SUGGESTED, NEXT_BEGIN, MIN, MAX, DELTA, MEMBER_COUNT };

#define NAME(field, name) CMQ_MEMBER(cmq_pull_response, field, CMQ_MEMBER_I64, name, NULL)

static const cmq_member members[MEMBER_COUNT] = {
    [SUGGESTED] = NAME(suggested_broker_id, "suggestWhichBrokerId"),
    [NEXT_BEGIN] = NAME(next_begin_offset, "nextBeginOffset"),
    [MIN] = NAME(min_offset, "minOffset"),
    [MAX] = NAME(max_offset, "maxOffset"),
    [DELTA] = NAME(offset_delta, "offsetDelta"),
};

enum { REQUIRED = (1 << DELTA) - 1 };   /* all before the delta */
_Static_assert(MEMBER_COUNT <= 32 && DELTA + 1 == MEMBER_COUNT, "members are the bits of a word");

static inline int guess(cmq_slice name)
{
    switch (name.bytes) {
    case 9: return name.data[1] == 'i' ? MIN : MAX;
    case 11: return DELTA;
    case 15: return NEXT_BEGIN;
    case 20: return SUGGESTED;
    default: return -1;
    }
}

static inline bool has_offsets(int32_t code)
{
    return code == CMQ_RESPONSE_SUCCESS ||
           (code >= CMQ_RESPONSE_PULL_NOT_FOUND && code <= CMQ_RESPONSE_PULL_OFFSET_MOVED);
}

cmq_status cmq_pull_response_read(const cmq_command *command, cmq_pull_response *response_out)
{
    uint32_t seen = 0;
    *response_out = (cmq_pull_response){0};
    const cmq_status status =
        cmq_members_read(command, members, guess, has_offsets(command->code) ? REQUIRED : 0, response_out, &seen);
    CMQ_ASSERT(seen >> MEMBER_COUNT == 0);
    CMQ_ASSERT(status != CMQ_OK || !has_offsets(command->code) || (REQUIRED & ~seen) == 0);
    response_out->has_offset_delta = (seen >> DELTA & 1) != 0;
    return status;
}
