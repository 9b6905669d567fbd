/* cmq_verify_internal: declarations private to the files of the verification:
 *
 *   cmq_verify.c         the walk over the log, its end, the call
 *   cmq_verify_queues.c  units against records
 *   cmq_verify_index.c   entries against keys, chains
 */
#ifndef CMQ_VERIFY_INTERNAL_H
#define CMQ_VERIFY_INTERNAL_H

#include "store/check/cmq_raw_queues.h"
#include "store/check/cmq_verify.h"
#include "store/cmq_store_internal.h"
#include "store/index/cmq_index_walk.h"

#define CMQ_VERIFY_WINDOW_BYTES 1288   /* 64 simple units, 28 batch units */
#define CMQ_VERIFY_MISSING_QUEUES_MAX 1024u
#define CMQ_VERIFY_RANGES_MAX 1024u

/* Bytes of the log that are no whole record. Units and entries that point into them are right as far as anyone can
 * tell, and not named again. */
typedef struct cmq_verify_range {
    int64_t from, end;
} cmq_verify_range;

/* Records in a row, of one queue, that have no unit. */
typedef struct cmq_verify_run {
    int64_t count;
    int64_t first_phy, first_offset;
    bool completed_at_opening;
} cmq_verify_run;

/* The state of one queue. */
typedef struct cmq_verify_queue {
    int64_t matched;          /* units that were right */
    int64_t next;             /* offset behind the last record; 0: none yet */
    int64_t batch_at;         /* batch: position of the unit to look at next */
    int64_t ext_missing;      /* units whose extension is gone */
    int64_t ext_first;        /* the first of them */
    cmq_verify_run missing;
    bool gone;                /* a file was removed meanwhile: nothing is said about this queue */
    int64_t window_first;     /* position of the first unit in the window */
    int64_t window_count;
    uint8_t window[CMQ_VERIFY_WINDOW_BYTES];
} cmq_verify_queue;

/* Records whose queue does not exist. */
typedef struct cmq_verify_missing_queue {
    char *topic;
    int32_t queue_id;
    int64_t count;
    int64_t first_phy;
    bool completed_at_opening;
} cmq_verify_missing_queue;

/* The index, read beside the log. */
typedef struct cmq_verify_index {
    cmq_index_walk walk;
    int64_t end_phy;          /* of the newest entry when the call began; -1: none */
    cmq_pending_keys keys;    /* of one record */
    int64_t missing_first_phy;
    int64_t unknown, unknown_first_phy;   /* entries of whole records whose kind is not known */
} cmq_verify_index;

typedef struct cmq_verification {
    cmq_store *store;
    const cmq_verify_options *options;
    cmq_verified *out;
    bool live;                       /* somebody may be writing */
    int64_t confirmed;               /* records below are checked … */
    int64_t units_end;               /* … and those that end at or before it have their units in files */
    int64_t completed_from;          /* records from here on get their units at the next opening; INT64_MAX: none */
    cmq_raw_queues *raw;
    cmq_verify_queue **queues;       /* by index in raw */
    cmq_verify_missing_queue missing[CMQ_VERIFY_MISSING_QUEUES_MAX];
    uint32_t missing_count;
    cmq_verify_range damaged[CMQ_VERIFY_RANGES_MAX];   /* rising; with more, the rest is named again */
    uint32_t damaged_count;
    int64_t superseded;              /* records of before their queue was re-created */
    int64_t superseded_first_phy;
    int64_t displaced;               /* records whose unit is at another offset than they say */
    int64_t displaced_first_phy;
    cmq_verify_index index;
    int64_t last_phy, last_ms;       /* of the last whole record; -1: none */
    int64_t progressed;
    bool stopped;
} cmq_verification;

cmq_problem cmq_verify_problem(cmq_problem_kind kind, cmq_severity severity, int64_t phy);
void cmq_verify_report(cmq_verification *v, cmq_problem *problem, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Does `phy` lie in bytes that were found to be damaged? */
bool cmq_verify_is_damaged(const cmq_verification *v, int64_t phy);

/* Tell how far the log was read; false when the caller wants no more. */
bool cmq_verify_progress(cmq_verification *v, int64_t phy, bool now);

/* ---- cmq_verify_queues.c ---- */

cmq_status CMQ_MUST_CHECK cmq_verify_load_queues(cmq_verification *v);
cmq_status CMQ_MUST_CHECK cmq_verify_units_of(cmq_verification *v, const cmq_record_view *view,
                                              const cmq_dispatch_facts *facts);
cmq_status CMQ_MUST_CHECK cmq_verify_queues(cmq_verification *v);
void cmq_verify_free_queues(cmq_verification *v);

/* ---- cmq_verify_index.c ---- */

cmq_status CMQ_MUST_CHECK cmq_verify_load_index(cmq_verification *v);
cmq_status CMQ_MUST_CHECK cmq_verify_keys_of(cmq_verification *v, const cmq_record_view *view,
                                             const cmq_dispatch_facts *facts);
cmq_status CMQ_MUST_CHECK cmq_verify_index_rest(cmq_verification *v);
void cmq_verify_free_index(cmq_verification *v);

#endif
