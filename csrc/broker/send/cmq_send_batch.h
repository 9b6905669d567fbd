/* cmq_send_batch: the body of a batch, on its way into the store: taken apart into messages, or kept whole as one
 * record of an inner batch.
 *
 * Owns:      the columns of the batch that is taken apart (cmq_broker_loop.batch); they grow to the largest batch and
 *            are used again.
 * Invariant: a batch lies in the log whole, or not at all. No element of a stored inner batch has a pop handle.
 * Threads:   the loop's.
 * Way:       cmq_send -> [cmq_send_batch] -> cmq_store_append
 */
#ifndef CMQ_SEND_BATCH_H
#define CMQ_SEND_BATCH_H

#include "broker/loop/cmq_broker_internal.h"

void cmq_send_batch_free(cmq_send_batch *batch);

/* A record of an inner batch that comes whole must be what its sysFlag and INNER_NUM say, and not compressed, since the
 * broker could not look into it: else CMQ_ERR_ARGUMENT. CMQ_OK for every other record. */
cmq_status CMQ_MUST_CHECK cmq_send_batch_check_inner(int32_t sys_flag, cmq_slice properties, cmq_slice body);

/* Append the messages of a batch; `append` has what they have in common. Their physical offsets are in l->batch until
 * the next one. */
cmq_status CMQ_MUST_CHECK cmq_send_batch_append(cmq_broker_loop *l, cmq_append *append, cmq_slice body,
                                                cmq_appended *appended_out);

/* The same for a topic of inner batches, which keeps the batch as one record. */
cmq_status CMQ_MUST_CHECK cmq_send_batch_append_inner(cmq_broker_loop *l, cmq_append *append, cmq_slice body,
                                                      int64_t *physical_offset_out, cmq_appended *appended_out);

#endif
