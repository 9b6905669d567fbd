/* cmq_send_response: see cmq_send_response.h. */
#include "wire/cmq_send_response.h"

#include "base/cmq_assert.h"
#include "wire/cmq_codes.h"
#include "wire/cmq_member.h"

enum {
    MESSAGE_ID,
    QUEUE_ID,
    QUEUE_OFFSET,
    TRANSACTION_ID,
    REGION_ID,
    TRACE_ON,
    BATCH_UNIQUE_ID,
    RECALL_HANDLE,
    MEMBER_COUNT
};

#define NAME(field, kind, name) CMQ_MEMBER(cmq_send_response, field, kind, name, NULL)

static const cmq_member members[MEMBER_COUNT] = {
    [MESSAGE_ID] = NAME(message_id, CMQ_MEMBER_TEXT, "msgId"),
    [QUEUE_ID] = NAME(queue_id, CMQ_MEMBER_I32, "queueId"),
    [QUEUE_OFFSET] = NAME(queue_offset, CMQ_MEMBER_I64, "queueOffset"),
    [TRANSACTION_ID] = NAME(transaction_id, CMQ_MEMBER_TEXT, "transactionId"),
    [REGION_ID] = NAME(region_id, CMQ_MEMBER_TEXT, "MSG_REGION"),
    [TRACE_ON] = NAME(trace_on, CMQ_MEMBER_TEXT, "TRACE_ON"),
    [BATCH_UNIQUE_ID] = NAME(batch_unique_id, CMQ_MEMBER_TEXT, "batchUniqId"),
    [RECALL_HANDLE] = NAME(recall_handle, CMQ_MEMBER_TEXT, "recallHandle"),
};

enum { REQUIRED = 1 << MESSAGE_ID | 1 << QUEUE_ID | 1 << QUEUE_OFFSET };
_Static_assert(MEMBER_COUNT <= 32, "members are the bits of a word");

static inline int guess(cmq_slice name)
{
    switch (name.bytes) {
    case 5: return MESSAGE_ID;
    case 7: return QUEUE_ID;
    case 8: return TRACE_ON;
    case 10: return REGION_ID;
    case 11: return name.data[0] == 'q' ? QUEUE_OFFSET : BATCH_UNIQUE_ID;
    case 12: return RECALL_HANDLE;
    case 13: return TRANSACTION_ID;
    default: return -1;
    }
}

bool cmq_send_response_is_stored(int32_t code)
{
    return code == CMQ_RESPONSE_SUCCESS ||
           (code >= CMQ_RESPONSE_FLUSH_DISK_TIMEOUT && code <= CMQ_RESPONSE_FLUSH_SLAVE_TIMEOUT);
}

cmq_status cmq_send_response_read(const cmq_command *command, cmq_send_response *response_out)
{
    uint32_t seen = 0;
    const uint32_t required = cmq_send_response_is_stored(command->code) ? REQUIRED : 0;
    *response_out = (cmq_send_response){0};
    const cmq_status status = cmq_members_read(command, members, guess, required, response_out, &seen);
    CMQ_ASSERT(seen >> MEMBER_COUNT == 0 && (status != CMQ_OK || (required & ~seen) == 0));
    return status;
}
