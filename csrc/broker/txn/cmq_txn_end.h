/* cmq_txn_end: ends of transactions (37) on a loop: those of one turn together.
 *
 *     read and checked   where the half messages lie, without a lock
 *     ended              under the transactions' mutex, taken once: is it open, commit appended, end noted
 *     answered           before the disk has it, as upstream does; a crash then leaves the half message open
 *
 * Invariant: only a message that the half queue has at the place that the request names is committed, and once.
 * Threads:   the loop's.
 * Source:    transactions specification 1.4; upstream's EndTransactionProcessor.
 */
#ifndef CMQ_TXN_END_H
#define CMQ_TXN_END_H

#include "broker/loop/cmq_broker_internal.h"

cmq_status CMQ_MUST_CHECK cmq_txn_end_run_create(cmq_txn_end_run **run_out);
void cmq_txn_end_run_destroy(cmq_txn_end_run *run);   /* NULL is fine */

cmq_net_verdict cmq_txn_end_request(cmq_broker_loop *l, cmq_conn *conn, const cmq_command *command);
/* Do and answer the ends of this turn. */
void cmq_txn_end_run_flush(cmq_broker_loop *l);

#endif
