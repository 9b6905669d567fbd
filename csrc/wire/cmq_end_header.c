/* cmq_end_header: see cmq_end_header.h. */
#include "wire/cmq_end_header.h"

#include "base/cmq_assert.h"
#include "wire/cmq_member.h"

enum { GROUP, QUEUE_OFFSET, PHYSICAL_OFFSET, OUTCOME, FROM_CHECK, MESSAGE_ID, MEMBER_COUNT };

typedef struct wire_header {
    cmq_end_header header;
    cmq_slice message_id;      /* required, as upstream has it, and compared with nothing */
} wire_header;

#define NAME(field, kind, name) CMQ_MEMBER(wire_header, field, kind, name, NULL)

static const cmq_member members[MEMBER_COUNT] = {
    [GROUP] = NAME(header.group, CMQ_MEMBER_TEXT, "producerGroup"),
    [QUEUE_OFFSET] = NAME(header.queue_offset, CMQ_MEMBER_I64, "tranStateTableOffset"),
    [PHYSICAL_OFFSET] = NAME(header.physical_offset, CMQ_MEMBER_I64, "commitLogOffset"),
    [OUTCOME] = NAME(header.outcome, CMQ_MEMBER_I32, "commitOrRollback"),
    [FROM_CHECK] = NAME(header.from_check, CMQ_MEMBER_BOOL, "fromTransactionCheck"),
    [MESSAGE_ID] = NAME(message_id, CMQ_MEMBER_TEXT, "msgId"),
};
_Static_assert(MEMBER_COUNT <= 32, "members are the bits of a word");

static inline int guess(cmq_slice name)
{
    switch (name.bytes) {
    case 5: return MESSAGE_ID;
    case 13: return GROUP;
    case 15: return PHYSICAL_OFFSET;
    case 16: return OUTCOME;
    case 20: return name.data[0] == 't' ? QUEUE_OFFSET : FROM_CHECK;
    default: return -1;
    }
}

cmq_status cmq_end_header_read(const cmq_command *command, cmq_end_header *header_out)
{
    const uint32_t required =
        1u << GROUP | 1u << QUEUE_OFFSET | 1u << PHYSICAL_OFFSET | 1u << OUTCOME | 1u << MESSAGE_ID;
    wire_header wire = {0};
    uint32_t seen = 0;
    const cmq_status status = cmq_members_read(command, members, guess, required, &wire, &seen);
    CMQ_ASSERT(seen >> MEMBER_COUNT == 0 && (status != CMQ_OK || (required & ~seen) == 0));
    *header_out = wire.header;
    if (status != CMQ_OK) return status;
    const int32_t outcome = wire.header.outcome;
    if (outcome == CMQ_END_UNKNOWN || outcome == CMQ_END_COMMIT || outcome == CMQ_END_ROLLBACK) return CMQ_OK;
    return cmq_fail(CMQ_ERR_ARGUMENT, "commitOrRollback field wrong");
}
