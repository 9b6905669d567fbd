/* cmq_pop_header: see cmq_pop_header.h. */
#include "wire/cmq_pop_header.h"

#include "base/cmq_assert.h"
#include "wire/cmq_codes.h"
#include "wire/cmq_member.h"

enum {
    GROUP,
    TOPIC,
    QUEUE_ID,
    MAX_MESSAGES,
    INVISIBLE,
    POLL,
    BORN,
    INIT,
    EXPRESSION_TYPE,
    EXPRESSION,
    ORDER,
    ATTEMPT,
    HANDLE,
    OFFSET,
    MEMBER_COUNT
};

#define NAME(field, kind, name) CMQ_MEMBER(cmq_pop_header, field, kind, name, NULL)

static const cmq_member members[MEMBER_COUNT] = {
    [GROUP] = NAME(group, CMQ_MEMBER_TEXT, "consumerGroup"),
    [TOPIC] = NAME(topic, CMQ_MEMBER_TEXT, "topic"),
    [QUEUE_ID] = NAME(queue_id, CMQ_MEMBER_I32, "queueId"),
    [MAX_MESSAGES] = NAME(max_messages, CMQ_MEMBER_I32, "maxMsgNums"),
    [INVISIBLE] = NAME(invisible_ms, CMQ_MEMBER_I64, "invisibleTime"),
    [POLL] = NAME(poll_ms, CMQ_MEMBER_I64, "pollTime"),
    [BORN] = NAME(born_ms, CMQ_MEMBER_I64, "bornTime"),
    [INIT] = NAME(init, CMQ_MEMBER_I32, "initMode"),
    [EXPRESSION_TYPE] = NAME(expression_type, CMQ_MEMBER_TEXT, "expType"),
    [EXPRESSION] = NAME(expression, CMQ_MEMBER_TEXT, "exp"),
    [ORDER] = NAME(order, CMQ_MEMBER_BOOL, "order"),
    [ATTEMPT] = NAME(attempt, CMQ_MEMBER_TEXT, "attemptId"),
    [HANDLE] = NAME(handle, CMQ_MEMBER_TEXT, "extraInfo"),
    [OFFSET] = NAME(offset, CMQ_MEMBER_I64, "offset"),
};
_Static_assert(MEMBER_COUNT <= 32, "members are the bits of a word");

#define BIT(member) (UINT32_C(1) << (member))

/* A bornTime that is missing is the broker's now, as upstream has it. */
static uint32_t required_by(int32_t code)
{
    const uint32_t all = BIT(GROUP) | BIT(TOPIC) | BIT(QUEUE_ID);
    switch (code) {
    case CMQ_REQUEST_POP_MESSAGE: return all | BIT(MAX_MESSAGES) | BIT(INVISIBLE) | BIT(POLL) | BIT(INIT);
    case CMQ_REQUEST_ACK_MESSAGE: return all | BIT(HANDLE) | BIT(OFFSET);
    case CMQ_REQUEST_CHANGE_MESSAGE_INVISIBLETIME: return all | BIT(HANDLE) | BIT(OFFSET) | BIT(INVISIBLE);
    case CMQ_REQUEST_NOTIFICATION: return all | BIT(POLL);
    case CMQ_REQUEST_PEEK_MESSAGE: return all | BIT(MAX_MESSAGES);
    default: return all;
    }
}

static inline int guess(cmq_slice name)
{
    switch (name.bytes) {
    case 3: return EXPRESSION;
    case 5: return name.data[0] == 't' ? TOPIC : ORDER;
    case 6: return OFFSET;
    case 7: return name.data[0] == 'q' ? QUEUE_ID : EXPRESSION_TYPE;
    case 8: return name.data[0] == 'p' ? POLL : name.data[0] == 'b' ? BORN : INIT;
    case 9: return name.data[0] == 'a' ? ATTEMPT : HANDLE;
    case 10: return MAX_MESSAGES;
    case 13: return name.data[0] == 'c' ? GROUP : INVISIBLE;
    default: return -1;
    }
}

cmq_status cmq_pop_header_read(const cmq_command *command, cmq_pop_header *header_out)
{
    uint32_t seen = 0;
    const uint32_t required = required_by(command->code);
    *header_out = (cmq_pop_header){0};
    const cmq_status status = cmq_members_read(command, members, guess, required, header_out, &seen);
    CMQ_ASSERT(seen >> MEMBER_COUNT == 0 && (status != CMQ_OK || (required & ~seen) == 0));
    return status;
}
