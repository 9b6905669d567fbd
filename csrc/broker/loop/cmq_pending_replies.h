/* cmq_pending_replies: answers of sends that wait for the disk, in order of the log.
 *
 * The fields of an answer are kept, not its bytes: about 140 B a send, in one block of memory that is used from end to
 * end.
 *
 * Invariant: ends never fall from one answer to the next, so that those which can go are at the front.
 * Threads:   one: the loop's.
 * Way:       run of sends -> cmq_store_append -> [cmq_pending_replies_add] -> confirmed end ->
 *            [cmq_pending_replies_front, cmq_pending_replies_drop] -> connection
 */
#ifndef CMQ_PENDING_REPLIES_H
#define CMQ_PENDING_REPLIES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cmq_bytes.h"
#include "base/cmq_status.h"
#include "net/cmq_net.h"

typedef struct cmq_pending_replies {
    uint8_t *memory;
    size_t capacity, head, tail;
    uint32_t count;
} cmq_pending_replies;

/* One send that is in the log. */
typedef struct cmq_pending_replies_answer {
    cmq_conn_id conn;
    int64_t end;                         /* behind its last record */
    int64_t since_ns;
    int64_t queue_offset;                /* of its first message */
    const int64_t *physical_offsets;     /* `count` of them; borrowed, from cmq_pending_replies_front until the drop */
    cmq_slice unique;                    /* UNIQ_KEY; borrowed likewise */
    cmq_slice recall;                    /* a timer's handle; borrowed likewise */
    uint32_t count;
    int32_t queue_id;                    /* as asked for */
    int32_t opaque;
    cmq_header_format format;
    bool inner_batch;
} cmq_pending_replies_answer;

void cmq_pending_replies_free(cmq_pending_replies *sent);

/* CMQ_ERR_MEMORY: nothing was added. */
cmq_status CMQ_MUST_CHECK cmq_pending_replies_add(cmq_pending_replies *sent, const cmq_pending_replies_answer *answer);

/* The oldest answer; false when none waits. */
bool cmq_pending_replies_front(const cmq_pending_replies *sent, cmq_pending_replies_answer *answer_out);
void cmq_pending_replies_drop(cmq_pending_replies *sent);

#endif
