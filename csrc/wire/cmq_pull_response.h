/* cmq_pull_response: headers of a broker's responses to pulls.
 *
 * Way:     cmq_command_parse -> [cmq_pull_response_read] -> Python
 * Threads: any; a pure function.
 * Source:  remoting specification 2.4.
 */
#ifndef CMQ_PULL_RESPONSE_H
#define CMQ_PULL_RESPONSE_H

#include <stdbool.h>
#include <stdint.h>

#include "wire/cmq_command.h"

typedef struct cmq_pull_response {
    int64_t suggested_broker_id;
    int64_t next_begin_offset;
    int64_t min_offset;
    int64_t max_offset;
    int64_t offset_delta;
    bool has_offset_delta;
} cmq_pull_response;

/* CMQ_ERR_ARGUMENT when a number is malformed, or a field is missing that codes 0, 19, 20 and 21 have; the text names
 * the field. With another code all may be absent. */
CMQ_MUST_CHECK cmq_status cmq_pull_response_read(const cmq_command *command, cmq_pull_response *response_out);

#endif
