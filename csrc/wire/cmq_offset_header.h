/* cmq_offset_header: which progress, or which offset of a queue, is asked for: requests 14, 15, 29, 30 and 31.
 *
 * Way:     cmq_command_parse -> [cmq_offset_header_read] -> cmq_offset_requests
 * Threads: any; a pure function. Slices are those of the command.
 * Source:  remoting specification 2.6.
 */
#ifndef CMQ_OFFSET_HEADER_H
#define CMQ_OFFSET_HEADER_H

#include <stdbool.h>
#include <stdint.h>

#include "wire/cmq_command.h"

typedef struct cmq_offset_header {
    cmq_slice group;           /* 14, 15 */
    cmq_slice topic;
    int32_t queue_id;
    int64_t commit_offset;     /* 15 */
    int64_t timestamp_ms;      /* 29 */
    bool upper;                /* 29: boundaryType UPPER; LOWER where it is absent or anything else */
    bool zero_if_not_found;    /* 14: setZeroIfNotFound, true where absent */
    bool committed;            /* 30: true where absent */
} cmq_offset_header;

/* CMQ_ERR_ARGUMENT when a field that the command's code needs is missing or a number is malformed; the text names the
 * field. Answered with code 1. */
CMQ_MUST_CHECK cmq_status cmq_offset_header_read(const cmq_command *command, cmq_offset_header *header_out);

#endif
