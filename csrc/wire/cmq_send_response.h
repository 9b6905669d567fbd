/* cmq_send_response: what a broker answers to a send: where the message is.
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

/* CMQ_ERR_ARGUMENT, with a text that names the member, when a number is none, or when the code says that the message was stored and it does not say
 * where. After another code everything may be absent. */
CMQ_MUST_CHECK cmq_status cmq_send_response_read(const cmq_command *command, cmq_send_response *response_out);

#endif
