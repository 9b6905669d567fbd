/* cmq_send_response: headers of a broker's responses to sends: the place of the message.
 *
 * Way:     cmq_command_parse -> [cmq_send_response_read] -> Python
 * Threads: any; a pure function. Slices are those of the command.
 * Source:  remoting specification 2.2.
 */
#ifndef CMQ_SEND_RESPONSE_H
#define CMQ_SEND_RESPONSE_H

#include <stdbool.h>
#include <stdint.h>

#include "wire/cmq_command.h"

typedef struct cmq_send_response {
    cmq_slice message_id;             /* of a batch: all of them, with commas between */
    int32_t queue_id;
    int64_t queue_offset;             /* of a batch: the first */
    cmq_slice transaction_id;         /* data NULL where absent, like the others below */
    cmq_slice region_id;
    cmq_slice trace_on;
    cmq_slice batch_unique_id;
    cmq_slice recall_handle;
} cmq_send_response;

/* Codes that say that the message was stored. */
bool cmq_send_response_is_stored(int32_t code);

/* CMQ_ERR_ARGUMENT when a number is malformed, or when the code says that the message was stored and a field of its
 * place is missing; the text names the field. With another code all may be absent. */
CMQ_MUST_CHECK cmq_status cmq_send_response_read(const cmq_command *command, cmq_send_response *response_out);

#endif
