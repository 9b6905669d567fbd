/* cmq_pop_record: POP's records in the log: checkpoints, acks and batches of acks as upstream's JSON, with their keys
 * and deliver times.
 *
 *   checkpoint  {"bm":0,"bn":"broker-a","c":"g","d":[0,1],"it":10000,"n":2,"pt":1795260291350,"q":0,
 *               "reviveTime":1795260301350,"ro":0,"so":0,"t":"T"}
 *               ours has the end of the log as well, `"logEnd":123456` behind `it`, which upstream passes over
 *   ack         {"ao":1,"bn":"broker-a","c":"g","pt":1795260291350,"q":0,"so":0,"t":"T"}
 *   batch       {"ao":-1,"aol":[0,1],"bn":"broker-a","c":"g","pt":1795260291350,"q":0,"so":0,"t":"T"}
 *
 * Written as fastjson writes them: members in alphabetical order, absent ones left out. Read as it reads them: in any
 * order, with unknown members, with short names or long ones; numbers whole, in quotes or not. Every number is checked:
 * the values read can be added up without overflow.
 *
 * Invariant: a written record is read back the same. A checkpoint has at most CMQ_POP_MESSAGES_MAX messages, and a
 *            difference for each or none at all.
 * Way:       cmq_pop_buffer, cmq_pop_ack -> [cmq_pop_record] -> timer message … revive topic -> [cmq_pop_record] ->
 *            cmq_pop_revive
 * Threads:   any; pure functions over memory of the caller, nothing is allocated.
 * Source:    consumption specification 4.6; upstream's PopCheckPoint, AckMsg, BatchAckMsg. Held against records that a
 *            broker 5.3.3 wrote.
 */
#ifndef CMQ_POP_RECORD_H
#define CMQ_POP_RECORD_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cmq_bytes.h"
#include "base/cmq_status.h"
#include "broker/pop/record/cmq_pop_handle.h"
#include "broker/timer/cmq_timer.h"
#include "store/cmq_store.h"
#include "store/record/cmq_record.h"

#define CMQ_POP_MESSAGES_MAX 32u             /* of one checkpoint: bits of an int */
#define CMQ_POP_ACK_INTERVAL_MS 1000         /* a checkpoint is delivered so long before its acks */
#define CMQ_POP_NAME_BYTES_MAX 255u          /* of topic, group and broker */
#define CMQ_POP_REVIVE_TOPIC_PREFIX "rmq_sys_REVIVE_LOG_"   /* and the cluster's name */
#define CMQ_POP_REVIVE_GROUP "CID_RMQ_SYS_REVIVE_GROUP"

/* ---- the records ---- */

/* Messages popped together from one queue. */
typedef struct cmq_pop_checkpoint {
    int64_t start_offset;
    int64_t pop_ms, invisible_ms;            /* due when both have passed */
    int64_t revive_offset;                   /* of the record in its revive queue: known to who reads it; written as
                                              * given, by upstream as 0 */
    uint32_t bits;                           /* acknowledged; written as given, by upstream as 0 */
    uint8_t num;
    int32_t queue_id;
    cmq_slice topic, group, broker;          /* the real topic; broker is empty where the record has none */
    const int32_t *diffs;                    /* offsets less start_offset: num of them, or NULL for 0, 1, 2, … */
    int32_t re_puts;                         /* how often it was put again */
    int64_t log_end;                         /* of the log when it was popped; 0: upstream's, which does not say, or (to
                                              * be stored) the end of now. A message behind it was never popped by this:
                                              * its topic was deleted and made again */
} cmq_pop_checkpoint;

typedef struct cmq_pop_ack {
    cmq_slice topic, group, broker;
    int32_t queue_id;
    int64_t start_offset;                    /* of the checkpoint */
    int64_t pop_ms;
    int64_t invisible_ms;                    /* for its deliver time; the record does not have it */
    int64_t offset;                          /* in a batch -1, as upstream */
} cmq_pop_ack;

typedef struct cmq_pop_batch_ack {
    cmq_pop_ack ack;                         /* the fields that the acks share */
    const int64_t *offsets;                  /* count of them, to be written; NULL in what was read … */
    uint32_t count;
    cmq_slice list;                          /* … which has them as text: cmq_pop_next_offset */
} cmq_pop_batch_ack;

/* ---- times, and the places of acks ---- */

static inline int64_t cmq_pop_revive_ms(const cmq_pop_checkpoint *checkpoint)
{
    return checkpoint->pop_ms + checkpoint->invisible_ms;
}
static inline int64_t cmq_pop_checkpoint_deliver_ms(const cmq_pop_checkpoint *checkpoint)
{
    return cmq_pop_revive_ms(checkpoint) - CMQ_POP_ACK_INTERVAL_MS;
}
static inline int64_t cmq_pop_ack_deliver_ms(const cmq_pop_ack *ack) { return ack->pop_ms + ack->invisible_ms; }

/* The queue offset of message `index`, which is below num. */
static inline int64_t cmq_pop_offset_at(const cmq_pop_checkpoint *checkpoint, uint32_t index)
{
    return checkpoint->start_offset + (checkpoint->diffs != NULL ? checkpoint->diffs[index] : (int64_t)index);
}

/* ---- bodies ---- */

/* Append the body to `out`; whether it fitted says cmq_text_fits. */
void cmq_pop_checkpoint_write(cmq_text *out, const cmq_pop_checkpoint *checkpoint);
void cmq_pop_ack_write(cmq_text *out, const cmq_pop_ack *ack);
void cmq_pop_batch_ack_write(cmq_text *out, const cmq_pop_batch_ack *batch);

/* Where what is read may lie: names with escapes, differences. Lives as long as what was read into it. */
#define CMQ_POP_BODY_BYTES_MAX 65536u        /* the largest body that is read; a checkpoint's is below 6 KiB */
typedef struct cmq_pop_room {
    int32_t diffs[CMQ_POP_MESSAGES_MAX];
    uint8_t scratch[CMQ_POP_BODY_BYTES_MAX];
} cmq_pop_room;

/* Slices are borrowed from body and room. CMQ_ERR_CORRUPT, with a text that names the fault and its place, for any
 * other body: not JSON, topic or group missing, a name that is too long, a number that is malformed or out of range,
 * over CMQ_POP_MESSAGES_MAX messages, or fewer differences than messages. */
cmq_status CMQ_MUST_CHECK cmq_pop_checkpoint_parse(cmq_slice body, cmq_pop_room *room, cmq_pop_checkpoint *out);
/* invisible_ms is 0: a record does not say */
cmq_status CMQ_MUST_CHECK cmq_pop_ack_parse(cmq_slice body, cmq_pop_room *room, cmq_pop_ack *out);
cmq_status CMQ_MUST_CHECK cmq_pop_batch_ack_parse(cmq_slice body, cmq_pop_room *room, cmq_pop_batch_ack *out);

/* Take the next offset off the front of a batch's list that was read; false at its end. */
bool cmq_pop_next_offset(cmq_slice *list, int64_t *offset_out);

/* ---- records ---- */

#define CMQ_POP_TAG_CHECKPOINT "ck"
#define CMQ_POP_TAG_ACK "ack"
#define CMQ_POP_TAG_BATCH_ACK "bAck"

/* Append the unique key to `out`: `PopT@0@0@g_pop@1795260291350@broker-a@ck`, `…@ack`. A batch has the key of an ack at
 * -1: as upstream's processor writes it, not its buffer (`…@[0, 1]@…@bAck`), since nobody reads it. */
void cmq_pop_checkpoint_key(cmq_text *out, const cmq_pop_checkpoint *checkpoint);
void cmq_pop_ack_key(cmq_text *out, const cmq_pop_ack *ack);

/* The destination of records, and the fields that all of one broker's share. */
typedef struct cmq_pop_log {
    cmq_slice revive_topic;                  /* CMQ_POP_REVIVE_TOPIC_PREFIX and the cluster */
    cmq_record_host host;                    /* the broker's: born and store host */
    const cmq_timer_options *timer;          /* how the timer parks */
} cmq_pop_log;

#define CMQ_POP_RECORD_BYTES_MAX 8192u
typedef struct cmq_pop_record_room {
    uint8_t body[CMQ_POP_RECORD_BYTES_MAX - 2048];
    uint8_t properties[2048];
} cmq_pop_record_room;

/* Fill the append of a record for revive queue `revive_queue`: a timer message, or what its delivery would be where its
 * time has come. Its properties are in upstream's order. It does not wait for the disk. The room, and the names in what
 * is stored, outlive the append. CMQ_ERR_ARGUMENT: it is due later than the timer takes, or a name has a byte that
 * properties cannot hold. CMQ_ERR_TOO_LARGE: names over CMQ_POP_NAME_BYTES_MAX. A batch has CMQ_POP_MESSAGES_MAX
 * offsets at most. */
cmq_status CMQ_MUST_CHECK cmq_pop_checkpoint_append(const cmq_pop_log *log, int32_t revive_queue,
                                                    const cmq_pop_checkpoint *checkpoint, int64_t now_ms,
                                                    cmq_pop_record_room *room, cmq_append *append_out);
cmq_status CMQ_MUST_CHECK cmq_pop_ack_append(const cmq_pop_log *log, int32_t revive_queue, const cmq_pop_ack *ack,
                                             int64_t now_ms, cmq_pop_record_room *room, cmq_append *append_out);
cmq_status CMQ_MUST_CHECK cmq_pop_batch_ack_append(const cmq_pop_log *log, int32_t revive_queue,
                                                   const cmq_pop_batch_ack *batch, int64_t now_ms,
                                                   cmq_pop_record_room *room, cmq_append *append_out);

#endif
