/* cmq_pop_header: headers of the requests of the POP family: 200050 to 200055 (200151 has no header).
 *
 * Way:     cmq_command_parse -> [cmq_pop_header_read] -> cmq_pop, cmq_pop_ack
 * Threads: any; a pure function. Slices are those of the command.
 * Source:  remoting specification 2.5.
 */
#ifndef CMQ_POP_HEADER_H
#define CMQ_POP_HEADER_H

#include <stdbool.h>
#include <stdint.h>

#include "wire/cmq_command.h"

typedef enum cmq_pop_init { CMQ_POP_INIT_MIN = 0, CMQ_POP_INIT_MAX = 1 } cmq_pop_init;

/* The members of all of them; those that a request does not have are zero. */
typedef struct cmq_pop_header {
    cmq_slice group, topic;
    int32_t queue_id;            /* below 0: all */
    int32_t max_messages;
    int32_t init;                /* cmq_pop_init; anything else is the latter, as upstream has it */
    int64_t invisible_ms;
    int64_t poll_ms;             /* hold so long; 0 and below: not at all */
    int64_t born_ms;             /* 0 where absent: the broker's now */
    int64_t offset;              /* of the message that is acknowledged or extended */
    cmq_slice expression_type, expression;
    cmq_slice attempt;
    cmq_slice handle;            /* extraInfo */
    bool order;
} cmq_pop_header;

/* CMQ_ERR_ARGUMENT when a field that this request (command->code) needs is missing or a number is malformed; the text
 * names the field. Answered with code 1. */
CMQ_MUST_CHECK cmq_status cmq_pop_header_read(const cmq_command *command, cmq_pop_header *header_out);

#endif
