/* cmq_send_header: headers of send requests: 10 and 324 with long names, 310, 320 and 325 with a letter each.
 *
 * Way:     cmq_command_parse -> [cmq_send_header_read] -> cmq_send; Python -> [cmq_send_header_write] -> connection
 * Threads: any; a pure function. Slices are those of the command.
 * Source:  remoting specification 2.2.
 */
#ifndef CMQ_SEND_HEADER_H
#define CMQ_SEND_HEADER_H

#include <stdbool.h>
#include <stdint.h>

#include "wire/cmq_command.h"

typedef struct cmq_send_header {
    cmq_slice producer_group;
    cmq_slice topic;
    cmq_slice default_topic;          /* the template for a topic that makes itself */
    int32_t default_topic_queues;
    int32_t queue_id;                 /* below 0: any */
    int32_t sys_flag;
    int64_t born_ms;
    int32_t flag;                     /* the user's */
    cmq_slice properties;             /* empty where absent */
    int32_t reconsume_times;
    bool unit_mode;
    bool has_max_reconsume_times;     /* only for retry topics */
    int32_t max_reconsume_times;
    bool batch;
    cmq_slice broker_name;            /* written where it is not empty; reading leaves it out, as no broker looks at
                                       * it */
} cmq_send_header;

/* CMQ_ERR_ARGUMENT when a required field is missing or a number is malformed; the text names the field. Answered with
 * code 1. */
CMQ_MUST_CHECK cmq_status cmq_send_header_read(const cmq_command *command, cmq_send_header *header_out);

/* Add the members to a header that was begun with `code`, which says how they are named. */
void cmq_send_header_write(cmq_command_writer *writer, int32_t code, const cmq_send_header *header);

#endif
