/* cmq_log_walk: reads the log's records one after the other, checked, in lots; a thread of its own is a few lots ahead.
 *
 * A lot is a piece of one segment with what its records say: their fields, and what dispatch needs of them. The reading side spends as much time on
 * bytes, CRCs and properties as the other on units: two cores halve it. Bytes are read where they are mapped, once the kernel has said that their pages
 * are there; where it cannot (before Linux 5.14), or a page is unreadable, by pread, whose failure is an error and no signal.
 *
 * Invariant: records come in the order of the log, without a gap; the first place without a whole record ends the walk.
 * Threads:   one caller; while a walk is open nobody changes the log.
 * Way:       log -> [cmq_log_walk] -> cmq_recover
 */
#ifndef CMQ_LOG_WALK_H
#define CMQ_LOG_WALK_H

#include "store/cmq_store_internal.h"

typedef struct cmq_log_walk cmq_log_walk;

typedef struct cmq_walked {
    cmq_record_view view;        /* slices live until the next lot is asked for */
    cmq_dispatch_facts facts;
} cmq_walked;

typedef struct cmq_walklot {
    const cmq_walked *records;
    uint32_t count;
} cmq_walklot;

/* Begin at a record's start. checks: as cmq_record_parse's. unclean: records that lost a sector of topic or properties
 * do not count. *walk_out owned: cmq_log_walk_close. */
cmq_status CMQ_MUST_CHECK cmq_log_walk_open(cmq_store *store, int64_t from, unsigned checks, bool unclean, cmq_log_walk **walk_out);

/* The next lot. CMQ_END: cmq_log_walk_end says where, and why. CMQ_ERR_IO: the log cannot be read further. */
cmq_status CMQ_MUST_CHECK cmq_log_walk_next(cmq_log_walk *walk, cmq_walklot *lot_out);

/* After CMQ_END: where the next record was expected. *reason_out: why there is none; borrowed. */
int64_t cmq_log_walk_end(const cmq_log_walk *walk, const char **reason_out);

void cmq_log_walk_close(cmq_log_walk *walk);   /* NULL is fine */

#endif
