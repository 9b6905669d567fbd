/* cmq_txn: transactions of one store: which half messages are open, the record of their ends, and the checks.
 *
 *     loops: 37 (cmq_txn_end) -> commit appended, end noted -> texts that wait -> op record, when they are many …
 *     step:                                                 … or old; then the round of checks:
 *         open for long  -> a copy behind it, and a question to a producer of its group
 *         asked too often, or older than the log keeps messages -> CMQ_TXN_TOPIC_DISCARDED
 *
 * In memory: a bit for each half message from where the checks are on (cmq_txn_ended), the newest copy of each open
 * one that was copied (cmq_txn_copies), and ends whose text is not in the log yet, at most CMQ_TXN_TEXTS_MAX. The start
 * makes them again of the op records, and of the commits that the log has behind the first open half message: a crash
 * that took texts commits nothing twice.
 *
 * Invariant: a half message ends once, whichever copy of it an answer names. An end that is noted has its text in the
 *            log, or in memory. The progress never passes an open half message that has no copy on the disk.
 * Failing:   disk full, no memory: the round stands where it is until the next step; ends are refused when their texts
 *            have no room. A half message that cannot be read, or has no target, is passed over and counted.
 * Threads:   one mutex: held for an end's look-up and append, and for one copy. step, start, stop: one at a time. The
 *            rest: any.
 * Way:       cmq_send (halves) -> store … [cmq_txn] -> store -> consumers of REAL_TOPIC
 * Source:    store specification 10, transactions specification 1; upstream's TransactionalMessageServiceImpl. Ours
 *            differs: docs/decisions/0033-transactions.md.
 */
#ifndef CMQ_TXN_H
#define CMQ_TXN_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cmq_clock.h"
#include "base/cmq_status.h"
#include "broker/tables/cmq_offsets.h"
#include "broker/tables/cmq_traffic.h"
#include "broker/txn/cmq_txn_record.h"
#include "store/cmq_store.h"

#define CMQ_TXN_TEXTS_MAX 65536u
#define CMQ_TXN_OP_BYTES_MAX (1 << 20)
/* So many copies of a round, and bytes of them, are made for nobody (no producer is there, or it is not to be asked
 * yet) without counting as checks. */
#define CMQ_TXN_FREE_COPIES_MAX 10000u
#define CMQ_TXN_FREE_BYTES_MAX (INT64_C(64) << 20)

typedef struct cmq_txn cmq_txn;

/* Settings that may change while it runs. 0: the default in brackets. */
typedef struct cmq_txn_rules {
    bool reject;                 /* rejectTransactionMessage: half messages are refused */
    int64_t timeout_ms;          /* transactionTimeOut [6000] */
    int64_t interval_ms;         /* transactionCheckInterval [30,000] */
    int32_t checks_max;          /* transactionCheckMax [15] */
    int64_t op_interval_ms;      /* transactionOpBatchInterval [3000] */
    int32_t op_bytes;            /* transactionOpMsgMaxSize [4096], at most CMQ_TXN_OP_BYTES_MAX */
    int64_t reserved_ms;         /* fileReservedTime [72 h]: an older half message is discarded */
} cmq_txn_rules;

typedef struct cmq_txn_options {
    cmq_store *store;            /* outlives it, as the offsets do */
    cmq_offsets *offsets;        /* progress of CMQ_TXN_GROUP */
    cmq_record_host host;        /* in op records */
    cmq_clock clock;             /* .now_ms NULL: the system's */
    cmq_txn_rules rules;
} cmq_txn_options;

cmq_status CMQ_MUST_CHECK cmq_txn_create(cmq_txn **txn_out, const cmq_txn_options *options);
/* Find the open half messages. Call it once the stored offsets are loaded and before the loops run. */
cmq_status CMQ_MUST_CHECK cmq_txn_start(cmq_txn *txn);
/* Write the texts that wait, when the loops have ended. */
cmq_status CMQ_MUST_CHECK cmq_txn_stop(cmq_txn *txn);
void cmq_txn_destroy(cmq_txn *txn);   /* NULL is fine */

void cmq_txn_set_rules(cmq_txn *txn, const cmq_txn_rules *rules);
bool cmq_txn_rejects(const cmq_txn *txn);

/* ---- checks ---- */

/* A half message to ask a producer about. Slices live for the call. */
typedef struct cmq_txn_question_item {
    cmq_slice group, unique;
    int64_t queue_offset, physical_offset;   /* of the newest copy */
    cmq_slice body;                          /* of request 39 */
} cmq_txn_question_item;

/* The way to producers, called in cmq_txn_step and without its mutex. */
typedef struct cmq_txn_asker {
    bool (*is_there)(void *context, cmq_slice group);   /* is a producer of the group connected? */
    void (*ask)(void *context, const cmq_txn_question_item *question);
    void *context;
} cmq_txn_asker;

/* Write texts that are due, and do a part of the round that is due or under way. *more_out: call again at once; else
 * within a second. Waits for the disk where it made copies. */
cmq_status CMQ_MUST_CHECK cmq_txn_step(cmq_txn *txn, const cmq_txn_asker *asker, bool *more_out);

/* 323: append the discarded message at this place in the log (or a half message) as a half message that was never
 * checked. CMQ_ERR_NOT_FOUND, CMQ_ERR_CORRUPT, CMQ_ERR_OFFSET: there is none. Waits for the disk. */
cmq_status CMQ_MUST_CHECK cmq_txn_resume(cmq_txn *txn, int64_t physical_offset);

typedef struct cmq_txn_counters {
    uint64_t asked;              /* questions */
    uint64_t copied;             /* copies of half messages, those that were asked about included */
    uint64_t discarded;
    uint64_t skipped;            /* passed over: see "Failing" */
    uint64_t recovered;          /* found committed at the start, without an op record */
    uint64_t rounds;             /* finished */
    uint64_t op_records;         /* written */
    uint64_t texts_now;          /* that wait */
    int64_t behind;              /* half messages, open or ended, that the checks have not passed */
} cmq_txn_counters;
void cmq_txn_count(cmq_txn *txn, cmq_txn_counters *counters_out);

/* By the topic that half messages were sent to: `messages` of them came, `bytes` of them ended by commit, rollback or
 * discard, since the start. As cmq_traffic_list. */
uint32_t cmq_txn_list_halves(cmq_txn *txn, uint32_t *cursor, cmq_traffic_item *items, uint32_t capacity);
/* So many half messages came for the topic. */
void cmq_txn_note_halves(cmq_txn *txn, cmq_slice topic, uint32_t count);

#endif
