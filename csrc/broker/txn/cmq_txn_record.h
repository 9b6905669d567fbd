/* cmq_txn_record: the records of transactions: half messages and their copies, op records, and what a producer is asked
 * with.
 *
 *     half   a message in CMQ_TXN_TOPIC_HALF with its target in REAL_TOPIC and REAL_QID
 *     copy   the same, appended again by a check, with TRAN_PREPARED_QUEUE_OFFSET: the queue offset of the first one
 *     op     in CMQ_TXN_TOPIC_OP, tag d: queue offsets of halves that have ended, each with a comma behind it; of
 *            brokers before 5.1 one number
 *
 * Threads: any; pure functions over borrowed bytes.
 * Source:  store specification 10; upstream's TransactionalMessageBridge, TransactionalMessageUtil.
 */
#ifndef CMQ_TXN_RECORD_H
#define CMQ_TXN_RECORD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cmq_status.h"
#include "store/record/cmq_property.h"
#include "store/record/cmq_record.h"
#include "store/record/cmq_tags_code.h"

#define CMQ_TXN_TOPIC_HALF CMQ_TOPIC_HALF
#define CMQ_TXN_TOPIC_OP "RMQ_SYS_TRANS_OP_HALF_TOPIC"
#define CMQ_TXN_TOPIC_DISCARDED CMQ_TOPIC_DISCARDED
#define CMQ_TXN_GROUP "CID_RMQ_SYS_TRANS"   /* whose progress in half and op topic is how far checks are */

/* The most that copies add to a half message's properties: TRANSACTION_CHECK_TIMES, TRAN_PREPARED_QUEUE_OFFSET. */
#define CMQ_TXN_COPY_BYTES_MAX 96u
/* One offset in an op record. */
#define CMQ_TXN_TEXT_BYTES_MAX 21u

/* ---- half messages ---- */

/* The properties of a half message. Slices are the record's. */
typedef struct cmq_txn_half {
    cmq_slice topic;           /* REAL_TOPIC */
    int32_t queue_id;          /* REAL_QID */
    cmq_slice group;           /* PGROUP; empty where absent */
    cmq_slice unique;          /* UNIQ_KEY; likewise */
    int64_t first;             /* TRAN_PREPARED_QUEUE_OFFSET; -1: it is the first */
    int32_t checks;            /* TRANSACTION_CHECK_TIMES; 0 where absent or malformed */
    bool has_immunity;         /* CHECK_IMMUNITY_TIME_IN_SECONDS is there … */
    int64_t immunity_s;        /* … and this; -1 where malformed */
} cmq_txn_half;

/* CMQ_ERR_CORRUPT where the record has no target. */
cmq_status CMQ_MUST_CHECK cmq_txn_half_read(const cmq_record_view *record, cmq_txn_half *half_out);

/* The properties of a half message for a send: the sender's without those that a broker alone sets, then the target and
 * the transaction's id. `into` has room for cmq_txn_half_room. Returns their bytes. */
size_t cmq_txn_half_room(size_t property_bytes, cmq_slice topic, cmq_slice unique);
size_t cmq_txn_half_write(uint8_t *into, cmq_slice properties, cmq_slice topic, int32_t queue_id, cmq_slice unique);

/* The properties of a copy. `checks` 0: without a count. `into` has room for them and CMQ_TXN_COPY_BYTES_MAX. `first`
 * -1: the copy is a new transaction. */
size_t cmq_txn_copy_write(uint8_t *into, cmq_slice properties, int32_t checks, int64_t first);

/* ---- op records ---- */

/* Write "offset,"; returns the bytes. */
size_t cmq_txn_text_write(uint8_t *into, int64_t offset);
/* Take the next offset off the front of a body; false: there is none. Empty and malformed parts are passed over. */
bool cmq_txn_text_next(cmq_slice *rest, int64_t *offset_out);

/* ---- the question ---- */

/* The half message as its producer is asked about it: in its own topic and queue, at the place of the copy. The fields
 * for cmq_record_measure and cmq_record_encode. */
cmq_record_fields cmq_txn_question(const cmq_record_view *half, const cmq_txn_half *properties, int64_t queue_offset,
                                   int64_t physical_offset, int64_t store_timestamp_ms);

/* Since a client's clock said `born_ms`, which may be any number. */
static inline int64_t cmq_txn_age_ms(int64_t now_ms, int64_t born_ms)
{
    int64_t age_ms;
    if (__builtin_sub_overflow(now_ms, born_ms, &age_ms)) return born_ms < 0 ? INT64_MAX : INT64_MIN;
    return age_ms;
}

#endif
