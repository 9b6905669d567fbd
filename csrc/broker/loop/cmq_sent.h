/* cmq_sent: answers of sends that wait for the disk, in order of the log.
 *
 * What an answer needs is kept, not its bytes: about 140 B a send, in one block of memory that is used from end to end.
 *
 * Invariant: ends never fall from one answer to the next, so that those which can go are at the front.
 * Threads:   one: the loop's.
 * Way:       run of sends -> cmq_store_append -> [cmq_sent_add] -> confirmed end -> [cmq_sent_front, cmq_sent_drop] -> connection
 */
#ifndef CMQ_SENT_H
#define CMQ_SENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cmq_bytes.h"
#include "base/cmq_status.h"
#include "net/cmq_net.h"

typedef struct cmq_sent {
    uint8_t *memory;
    size_t capacity, head, tail;
    uint32_t count;
} cmq_sent;

/* One send that is in the log. */
typedef struct cmq_sent_answer {
    cmq_conn_id conn;
    int64_t end;                         /* behind its last record */
    int64_t since_ns;
    int64_t queue_offset;                /* of its first message */
    const int64_t *physical_offsets;     /* `count` of them; borrowed, from cmq_sent_front until the drop */
    cmq_slice unique;                    /* UNIQ_KEY; borrowed likewise */
    cmq_slice recall;                    /* a timer's handle; borrowed likewise */
    uint32_t count;
    int32_t queue_id;                    /* as asked for */
    int32_t opaque;
    cmq_header_format format;
    bool inner_batch;
} cmq_sent_answer;

void cmq_sent_free(cmq_sent *sent);

/* CMQ_ERR_MEMORY: nothing was added. */
cmq_status CMQ_MUST_CHECK cmq_sent_add(cmq_sent *sent, const cmq_sent_answer *answer);

/* The oldest answer; false when none waits. */
bool cmq_sent_front(const cmq_sent *sent, cmq_sent_answer *answer_out);
void cmq_sent_drop(cmq_sent *sent);

#endif
