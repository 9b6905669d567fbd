/* cmq_pop_ahead: messages of one queue, read one after the other by their offsets, with their units read ahead: 32
 * messages that were popped together cost one look into the queue.
 *
 * Invariant: the record is the one that cmq_store_read_offset gives, and so are its errors; of cmq_found only the
 *            record's members are set.
 * Threads:   one at a time.
 * Way:       cmq_pop_revive -> [cmq_pop_ahead] -> cmq_queue, log
 */
#ifndef CMQ_POP_AHEAD_H
#define CMQ_POP_AHEAD_H

#include "store/cmq_store.h"

#define CMQ_POP_AHEAD_UNITS 32u

typedef struct cmq_pop_ahead {
    cmq_store *store;
    cmq_slice topic;               /* borrowed */
    int32_t queue_id;
    uint32_t count, at;            /* units; where the next is looked for */
    cmq_unit units[CMQ_POP_AHEAD_UNITS];
} cmq_pop_ahead;

/* Another queue, or the same one later: units are not kept from one call to the next, as a topic may be deleted and
 * made again. */
void cmq_pop_ahead_begin(cmq_pop_ahead *ahead, cmq_store *store, cmq_slice topic, int32_t queue_id);

/* As cmq_store_read_offset; cheap where offsets ascend. */
cmq_status CMQ_MUST_CHECK cmq_pop_ahead_read(cmq_pop_ahead *ahead, int64_t offset, cmq_found_batch *batch);

#endif
