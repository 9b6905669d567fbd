/* cmq_pop_sink: stores records that leave cmq_pop_buffer in the log, as timer messages.
 *
 *     cmq_pop_buffer, cmq_pop_ack -> [cmq_pop_sink_store] -> rmq_sys_wheel_timer … cmq_timer … revive topic ->
 *     cmq_pop_revive
 *
 * Up to eight records go in one append, in their order, and do not wait for the disk: nobody commits behind them before
 * they are confirmed.
 *
 * Threads: any.
 * Source:  consumption specification 4.6; upstream's PopBufferMergeService.putCkToStore.
 */
#ifndef CMQ_POP_SINK_H
#define CMQ_POP_SINK_H

#include "base/cmq_clock.h"
#include "broker/pop/flight/cmq_pop_buffer.h"
#include "broker/pop/record/cmq_pop_record.h"
#include "store/cmq_store.h"

typedef struct cmq_pop_sink_log {
    cmq_store *store;
    cmq_pop_log log;             /* its texts live as long as this */
    cmq_clock clock;
} cmq_pop_sink_log;

/* A cmq_pop_sink's store; `context` is a cmq_pop_sink_log. As cmq_pop_checkpoint_append and cmq_store_append;
 * CMQ_AGAIN: too much waits for the disk. Records before a refused one are stored. */
cmq_status CMQ_MUST_CHECK cmq_pop_sink_store(void *context, const cmq_pop_store_item *items, uint32_t count,
                                             uint32_t *stored_out, int64_t *end_out);

/* A cmq_pop_sink's confirmed. */
int64_t cmq_pop_sink_confirmed(void *context);

#endif
