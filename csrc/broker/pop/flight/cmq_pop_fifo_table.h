/* cmq_pop_fifo_table: which ordered batch each queue of a group has out, so that the next one is given only behind it.
 *
 * (group, topic, queue id) -> the batch that was popped last: its messages, which of them are acked, until when each of
 * the others is invisible, and how often it was given out before.
 *
 *   pop     cmq_pop_fifo_table_blocks?   yes: nothing of this queue, until an ack, a change or `free_ms` no:  read from
 *           the committed offset, cmq_pop_fifo_table_update, commit the batch's first offset
 *   ack     cmq_pop_fifo_table_ack    -> the offset to commit; then wake the pops that wait for the queue, unless it is
 *                                   still blocked
 *   change  cmq_pop_fifo_table_change -> wake, too: waiting pops have another `free_ms` now
 *   reset   cmq_pop_fifo_table_clear
 *
 * A queue is blocked while any message of its batch is neither acked nor visible again. It becomes free by time alone
 * at one moment, `free_ms`, which a held pop takes as a second deadline; so nothing here needs a timer. A client that
 * asks again with the same attempt id (it lost the answer) gets the batch again, and nothing counts as consumed once
 * more.
 *
 * Limits:  queues_max; 64 messages a batch, as upstream has one bit for each; names of CMQ_OFFSETS_NAME_BYTES_MAX,
 *          attempts of CMQ_POP_ORDER_ATTEMPT_BYTES_MAX.
 * Threads: any. One mutex, held for one queue's look-up; it is taken inside others and takes none.
 * Differs: upstream keeps counts of messages that a repeated attempt does not bring any more, and wakes who waits when
 *          the first message that is not acked is visible, though a later one may block the queue yet.
 * Way:     ordered pop, ack, change on the loops -> [cmq_pop_fifo_table] -> control thread ->
 *          config/consumerOrderInfo.json
 * Source:  specification consumption 4.12; upstream's ConsumerOrderInfoManager.
 */
#ifndef CMQ_POP_FIFO_TABLE_H
#define CMQ_POP_FIFO_TABLE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cmq_bytes.h"
#include "base/cmq_status.h"
#include "broker/tables/cmq_offsets.h"

#define CMQ_POP_ORDER_QUEUES_MAX 1000000u      /* where no other limit is given */
#define CMQ_POP_ORDER_BATCH_MAX 64u            /* messages */
#define CMQ_POP_ORDER_ATTEMPT_BYTES_MAX 256u

typedef struct cmq_pop_fifo_table cmq_pop_fifo_table;

/* 0: CMQ_POP_ORDER_QUEUES_MAX */
cmq_status CMQ_MUST_CHECK cmq_pop_fifo_table_create(cmq_pop_fifo_table **order_out, uint32_t queues_max);
void cmq_pop_fifo_table_destroy(cmq_pop_fifo_table *order);

/* ---- the loops ---- */

/* May a batch of this queue not be given out now? Then *free_ms_out is when it may without a further ack. `attempt` is
 * empty where the client gave none; `invisible_ms` is the pop's, for a batch from a file that does not say its own.
 * Messages before `committed` block nothing: acks of them change nothing any more, as after a restart, whose batch may
 * be older than its progress. */
bool cmq_pop_fifo_table_blocks(cmq_pop_fifo_table *order, const cmq_offset_key *key, cmq_slice attempt,
                               int64_t invisible_ms, int64_t committed, int64_t now_ms, int64_t *free_ms_out);

typedef struct cmq_pop_fifo_table_batch {
    cmq_slice attempt;           /* empty: none */
    int64_t pop_ms, invisible_ms;
    const int64_t *offsets;      /* rising */
    uint32_t count;              /* 1 to CMQ_POP_ORDER_BATCH_MAX */
} cmq_pop_fifo_table_batch;

/* How often each message of a batch was given out before; clients do not see a 0. */
typedef struct cmq_pop_fifo_table_counts {
    int32_t times[CMQ_POP_ORDER_BATCH_MAX];
    int32_t least;               /* of all: old clients take it for the whole queue */
} cmq_pop_fifo_table_counts;

/* This batch is out now. CMQ_ERR_ARGUMENT for names, an attempt, offsets or a count that cannot be; CMQ_ERR_LIMIT,
 * CMQ_ERR_MEMORY: nothing changed, do not hand it out. */
cmq_status CMQ_MUST_CHECK cmq_pop_fifo_table_update(cmq_pop_fifo_table *order, const cmq_offset_key *key,
                                                    const cmq_pop_fifo_table_batch *batch, int64_t now_ms,
                                                    cmq_pop_fifo_table_counts *counts_out);

/* A message was consumed. CMQ_OK: commit *next_out, the first message that is not acked, or what is behind the batch.
 * CMQ_AGAIN: it was of an earlier pop, nothing changed. CMQ_END: no batch is known; *next_out is behind the message.
 * CMQ_ERR_NOT_FOUND: the batch does not have it. */
cmq_status CMQ_MUST_CHECK cmq_pop_fifo_table_ack(cmq_pop_fifo_table *order, const cmq_offset_key *key, int64_t offset,
                                                 int64_t pop_ms, int64_t *next_out);

/* A message is visible again at `visible_ms`, sooner or later than before. False: it was of an earlier pop, or the
 * batch does not have it. */
bool cmq_pop_fifo_table_change(cmq_pop_fifo_table *order, const cmq_offset_key *key, int64_t offset, int64_t pop_ms,
                               int64_t visible_ms);

/* Forget the queue's batch: nothing blocks it. False: there was none. */
bool cmq_pop_fifo_table_clear(cmq_pop_fifo_table *order, const cmq_offset_key *key);

/* A topic or a group (the other empty: any) is no more: forget the batches of its queues. */
void cmq_pop_fifo_table_forget(cmq_pop_fifo_table *order, cmq_slice topic, cmq_slice group);

/* ---- the control plane ---- */

typedef struct cmq_pop_fifo_table_item {
    cmq_slice group, topic;      /* of cmq_pop_fifo_table_next: in `text` */
    int32_t queue_id;
    cmq_slice attempt;
    int64_t pop_ms, invisible_ms;
    int64_t used_ms;             /* when it was popped, by the clock of that moment */
    uint64_t acked;              /* bit i: message i */
    bool counted;                /* an earlier batch was there to count from */
    uint32_t count;
    int64_t offsets[CMQ_POP_ORDER_BATCH_MAX];
    int64_t visible_ms[CMQ_POP_ORDER_BATCH_MAX];   /* 0: pop_ms + invisible_ms */
    int32_t times[CMQ_POP_ORDER_BATCH_MAX];
    uint8_t text[2 * CMQ_OFFSETS_NAME_BYTES_MAX + CMQ_POP_ORDER_ATTEMPT_BYTES_MAX];
} cmq_pop_fifo_table_item;

/* All batches, one a call: *cursor is 0 at first. False: there are no more. One that changes meanwhile is given as it
 * is at its turn; the version says whether anything did. */
bool cmq_pop_fifo_table_next(cmq_pop_fifo_table *order, uint32_t *cursor, cmq_pop_fifo_table_item *item_out);

/* A batch as it was written down. Statuses as for an update. */
cmq_status CMQ_MUST_CHECK cmq_pop_fifo_table_restore(cmq_pop_fifo_table *order, const cmq_pop_fifo_table_item *item);

uint64_t cmq_pop_fifo_table_version(cmq_pop_fifo_table *order);   /* rises with every change */
uint32_t cmq_pop_fifo_table_count(cmq_pop_fifo_table *order);     /* queues that have a batch */

#endif
