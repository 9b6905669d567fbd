/* cmq_end_header: how a transaction ends: request 37.
 *
 * Way:     cmq_command_parse -> [cmq_end_header_read] -> cmq_txn_end
 * Threads: any; a pure function. Slices are those of the command.
 * Source:  upstream's EndTransactionRequestHeader.
 */
#ifndef CMQ_END_HEADER_H
#define CMQ_END_HEADER_H

#include <stdbool.h>
#include <stdint.h>

#include "wire/cmq_command.h"

typedef enum cmq_end_outcome {
    CMQ_END_UNKNOWN = 0,
    CMQ_END_COMMIT = 8,
    CMQ_END_ROLLBACK = 12
} cmq_end_outcome;

typedef struct cmq_end_header {
    cmq_slice group;           /* producerGroup */
    int64_t queue_offset;      /* tranStateTableOffset: of the half message in its queue */
    int64_t physical_offset;   /* commitLogOffset: in the log */
    int32_t outcome;           /* commitOrRollback, a cmq_end_outcome */
    bool from_check;           /* fromTransactionCheck */
} cmq_end_header;

/* CMQ_ERR_ARGUMENT when a required field is missing, a number is malformed or the outcome is none of the three; the
 * text is upstream's. Answered with code 1. */
CMQ_MUST_CHECK cmq_status cmq_end_header_read(const cmq_command *command, cmq_end_header *header_out);

#endif
