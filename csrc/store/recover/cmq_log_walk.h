/* cmq_log_walk: reads the log's records one after the other, checked, in lots; a thread of its own is a few lots ahead.
 *
 * A lot is a piece of one segment with the units and the index keys of its records. The reading side spends its time on
 * bytes, CRCs, properties and the hashes of keys, the other one on queues and index: two cores share the work. Bytes
 * are read where they are mapped, once the kernel has said that their pages are there; where it cannot (before Linux
 * 5.14), or a page is unreadable, by pread, whose failure is an error and no signal.
 *
 * Invariant: records come in the order of the log, without a gap; the first place without a whole record ends the walk.
 * Threads:   one caller; while a walk is open nobody changes the log.
 * Way:       log -> [cmq_log_walk] -> cmq_recover
 */
#ifndef CMQ_LOG_WALK_H
#define CMQ_LOG_WALK_H

#include "store/cmq_store_internal.h"

typedef struct cmq_log_walk cmq_log_walk;

/* One record: all that recovery asks of most of them, in a cache line that one core writes and another reads. */
typedef struct cmq_walked {
    cmq_dispatch_unit unit;
    int32_t queue_id;
    int32_t sys_flag;
    uint32_t topic;                  /* the same number: the same topic; 0: compare the name */
    bool in_queue;                   /* it has a unit */
    bool names_light_queues;         /* … and may have more: parse it again */
} cmq_walked;

typedef struct cmq_walklot {
    const cmq_walked *records;
    uint32_t count;
    const uint8_t *data;             /* the bytes of the log from `first` on; until the next lot is asked for */
    int64_t first;
    const cmq_index_key *keys;       /* of these records, in their order */
    uint32_t key_count;
} cmq_walklot;

static inline const uint8_t *cmq_walklot_bytes(const cmq_walklot *lot, const cmq_walked *record)
{
    return lot->data + (record->unit.phy - lot->first);
}

typedef struct cmq_log_walk_options {
    int64_t from;                    /* a record's start */
    int64_t keys_behind;             /* records that begin behind it have their keys in the lots; INT64_MAX: none has */
    unsigned checks;                 /* as cmq_record_parse's */
    bool unclean;                    /* records that lost a sector of topic or properties do not count */
} cmq_log_walk_options;

/* *walk_out owned: cmq_log_walk_close. */
cmq_status CMQ_MUST_CHECK cmq_log_walk_open(cmq_store *store, const cmq_log_walk_options *options,
                                            cmq_log_walk **walk_out);

/* The next lot. CMQ_END: cmq_log_walk_end says where, and why. CMQ_ERR_IO: the log cannot be read further. */
cmq_status CMQ_MUST_CHECK cmq_log_walk_next(cmq_log_walk *walk, cmq_walklot *lot_out);

/* After CMQ_END: where the next record was expected. *reason_out: why there is none; borrowed. */
int64_t cmq_log_walk_end(const cmq_log_walk *walk, const char **reason_out);

void cmq_log_walk_close(cmq_log_walk *walk);   /* NULL is fine */

#endif
