/* cmq_txn_internal: private to the files that serve transactions: the service's state, and ends on the loops. */
#ifndef CMQ_TXN_INTERNAL_H
#define CMQ_TXN_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "broker/delay/cmq_delay_record.h"
#include "broker/delay/cmq_parked.h"
#include "broker/txn/cmq_txn.h"
#include "broker/txn/cmq_txn_copies.h"
#include "broker/txn/cmq_txn_ended.h"
#include "wire/cmq_command.h"

#define CMQ_TXN_STEP_ASKS 1024u   /* one wait for the disk */

/* A question on its way to the asker: the copy must be on the disk before. */
typedef struct cmq_txn_ask {
    uint8_t *memory;             /* group, unique, body */
    uint32_t group_bytes, unique_bytes, body_bytes;
    int64_t queue_offset, physical_offset;
} cmq_txn_ask;

/* One pass over half messages. The stepping thread's. */
typedef struct cmq_txn_round {
    bool active;
    bool copied;                 /* something: it must be on the disk before the progress moves */
    int64_t at, end;             /* queue offsets; half messages appended later belong to the next round */
    uint32_t free_copies;
    int64_t free_bytes;
    uint32_t ask_count;
    uint64_t ask_bytes;
    int64_t copies_end;          /* in the log, of those in asks */
    cmq_txn_ask asks[CMQ_TXN_STEP_ASKS];
} cmq_txn_round;

struct cmq_txn {
    cmq_txn_options options;
    cmq_store *store;
    _Atomic bool rejects;
    pthread_mutex_t mutex;       /* all that follows up to the round */
    cmq_txn_rules rules;
    int64_t progress, op_progress;
    cmq_txn_ended ended;
    cmq_txn_ended discarded;     /* the first and the newest copy of each discarded one, while the broker runs */
    cmq_txn_copies copies;
    int64_t *texts;              /* CMQ_TXN_TEXTS_MAX places */
    uint32_t text_count;
    uint64_t text_bytes;
    int64_t written_ms;          /* when texts were last written, or began to wait */
    uint8_t *op_body;
    cmq_traffic *counts;
    cmq_txn_counters counters;
    cmq_txn_round round;
    int64_t next_round_ms;
    cmq_txn_rules round_rules;   /* a copy, for the stepping thread */
    uint8_t properties[CMQ_DELAY_SCRATCH_BYTES + CMQ_TXN_COPY_BYTES_MAX];
    uint8_t scratch[CMQ_DELAY_SCRATCH_BYTES];
};

/* ---- cmq_txn.c: under the mutex ---- */

typedef enum cmq_txn_standing {
    CMQ_TXN_OPEN,
    CMQ_TXN_ENDED,
    CMQ_TXN_GONE                 /* discarded, or ended so long ago that nobody knows */
} cmq_txn_standing;

void cmq_txn_lock(cmq_txn *txn);
void cmq_txn_unlock(cmq_txn *txn);
int64_t cmq_txn_now_ms(const cmq_txn *txn);

/* Where the transaction of the half message at `offset` stands; *target_out: its newest copy. */
cmq_txn_standing cmq_txn_standing_of(const cmq_txn *txn, int64_t offset, const cmq_txn_half *half, int64_t *target_out);
/* Room for an end of it. CMQ_ERR_MEMORY, or what kept texts from being written: nothing changed. */
cmq_status CMQ_MUST_CHECK cmq_txn_reserve_end(cmq_txn *txn, int64_t target);
/* Note the end: there is room. */
void cmq_txn_note_end(cmq_txn *txn, int64_t offset, const cmq_txn_half *half, int64_t target);
/* Its text alone; there is room. */
void cmq_txn_add_text(cmq_txn *txn, int64_t offset);
/* Write texts: all (`all`), or where they are many or old. */
cmq_status CMQ_MUST_CHECK cmq_txn_write_texts(cmq_txn *txn, bool all);

/* Is the record at this place a half message's, in its queue there? No mutex. CMQ_ERR_NOT_FOUND: no. */
cmq_status CMQ_MUST_CHECK cmq_txn_verify_half(cmq_txn *txn, const cmq_record_view *record);
/* cmq_txn_half_read, with a first copy that is one: a record that names another transaction's is a first copy itself.
 * No mutex. Further failures: the log could not be read for now. */
cmq_status CMQ_MUST_CHECK cmq_txn_half_of(cmq_txn *txn, const cmq_record_view *record, cmq_txn_half *half_out);
/* The same under the mutex. */
cmq_status CMQ_MUST_CHECK cmq_txn_half_of_locked(cmq_txn *txn, const cmq_record_view *record, cmq_txn_half *half_out);

cmq_queue *cmq_txn_half_queue(const cmq_txn *txn);   /* NULL: there was never a half message */
cmq_queue *cmq_txn_op_queue(const cmq_txn *txn);
static inline cmq_offset_key cmq_txn_key(const char *topic)
{
    return (cmq_offset_key){.group = cmq_slice_of_text(CMQ_TXN_GROUP), .topic = cmq_slice_of_text(topic)};
}

/* ---- cmq_txn_round.c ---- */
void cmq_txn_round_begin(cmq_txn *txn);
/* CMQ_OK and round.active false: it is finished. */
cmq_status CMQ_MUST_CHECK cmq_txn_round_go_on(cmq_txn *txn, const cmq_txn_asker *asker);
void cmq_txn_round_free(cmq_txn_round *round);
/* Move the op progress over records that speak of nothing from `progress` on. */
cmq_status CMQ_MUST_CHECK cmq_txn_pass_ops(cmq_txn *txn);

#endif
