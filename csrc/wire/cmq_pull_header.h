/* cmq_pull_header: headers of pull requests: 11 and 361.
 *
 * Way:     cmq_command_parse -> [cmq_pull_header_read] -> cmq_pull; Python -> [cmq_pull_header_write] -> connection
 * Threads: any; a pure function. Slices are those of the command.
 * Source:  remoting specification 2.4.
 */
#ifndef CMQ_PULL_HEADER_H
#define CMQ_PULL_HEADER_H

#include <stdint.h>

#include "wire/cmq_command.h"

typedef struct cmq_pull_header {
    cmq_slice group;
    cmq_slice topic;
    int32_t queue_id;
    int64_t queue_offset;
    int32_t max_messages;
    int32_t sys_flag;
    int64_t commit_offset;
    int64_t suspend_ms;
    cmq_slice subscription;      /* empty where absent */
    int64_t sub_version;
    cmq_slice expression_type;   /* empty where absent: TAG */
    int32_t max_bytes;           /* 0 where absent: no limit of the client's */
    cmq_slice broker_name;       /* written where it is not empty; reading leaves it out, as no broker looks at it */
} cmq_pull_header;

/* CMQ_ERR_ARGUMENT when a required field is missing or a number is malformed; the text names the field. Answered with
 * code 1. */
CMQ_MUST_CHECK cmq_status cmq_pull_header_read(const cmq_command *command, cmq_pull_header *header_out);

/* Add the members to a header that was begun. Texts that are empty, and a limit of 0, are left out. */
void cmq_pull_header_write(cmq_command_writer *writer, const cmq_pull_header *header);

#endif
