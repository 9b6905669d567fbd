/* cmq_pop_fifo: the effects of an ordered pop, its acks and its changes on a queue: the table of batches and the
 * group's progress, moved together.
 *
 * Call each inside the queue's lane, so that a pop and an ack of one queue do not meet.
 *
 * Invariant: the group's offset is the first message of the batch that is not acked, or the first behind the batch; so
 *            unacked messages are read again.
 * Threads:   any; as cmq_offsets and cmq_pop_fifo_table.
 * Way:       cmq_pop, cmq_pop_ack -> [cmq_pop_fifo] -> cmq_pop_fifo_table, cmq_offsets
 * Source:    specification consumption 4.5.1, 4.7, 4.10, 4.12; upstream's AckMessageProcessor,
 *            ChangeInvisibleTimeProcessor.
 */
#ifndef CMQ_POP_FIFO_H
#define CMQ_POP_FIFO_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cmq_status.h"
#include "broker/pop/flight/cmq_pop_fifo_table.h"
#include "broker/pop/record/cmq_pop_handle.h"
#include "broker/tables/cmq_offsets.h"

typedef struct cmq_pop_fifo {
    cmq_offsets *offsets;
    cmq_pop_fifo_table *order;
} cmq_pop_fifo;

/* A batch that was read from `from` on goes out: it blocks the queue, the group stands at `from`, and `info`
 * (orderCountInfo) gets how often its messages were given out before. Any other status than CMQ_OK: do not hand it
 * out. */
cmq_status CMQ_MUST_CHECK cmq_pop_fifo_give(const cmq_pop_fifo *to, const cmq_offset_key *key,
                                            const cmq_pop_fifo_table_batch *batch, int64_t from, cmq_pop_retry retry,
                                            int64_t now_ms, cmq_text *info);

/* A message was consumed. *wake_out: nothing blocks the queue any more, wake who waits for it. CMQ_ERR_NOT_FOUND: the
 * batch that is out does not have the message; answer 13. An ack of an earlier pop, or of what was consumed long ago,
 * is CMQ_OK and does nothing; so is one of a batch that is forgotten (upstream moves the group behind any, past what
 * nobody consumed). CMQ_END: such a one, of the message where the group stands; nothing was done. Where it was popped
 * in this life of the topic, call cmq_pop_fifo_pass. */
cmq_status CMQ_MUST_CHECK cmq_pop_fifo_ack(const cmq_pop_fifo *to, const cmq_offset_key *key, int64_t offset,
                                           int64_t pop_ms, int64_t invisible_ms, int64_t now_ms, bool *wake_out);

/* The message where the group stands was consumed, and no batch is out. */
cmq_status CMQ_MUST_CHECK cmq_pop_fifo_pass(const cmq_pop_fifo *to, const cmq_offset_key *key, int64_t offset,
                                            bool *wake_out);

/* A message shall be visible at now + invisible. Returns the invisible time that its new handle has, counted from the
 * pop, whose time stays the handle's; -1: it was consumed already: upstream answers zeros. *wake_out: look again at who
 * waits for the queue, as it becomes free at another time now. */
int64_t cmq_pop_fifo_change(const cmq_pop_fifo *to, const cmq_offset_key *key, int64_t offset, int64_t pop_ms,
                            int64_t invisible_ms, int64_t now_ms, bool *wake_out);

#endif
