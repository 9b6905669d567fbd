/* cmq_logwalk: reads the log's records one after the other, checked, in lots; a thread of its own is a few lots ahead.
 *
 * A lot is a piece of one segment with what its records say: their fields, and what dispatch needs of them. The reading side spends as much time on
 * bytes, CRCs and properties as the other on units: two cores halve it. Bytes are read where they are mapped, once the kernel has said that their pages
 * are there; where it cannot (before Linux 5.14), or a page is unreadable, by pread, whose failure is an error and no signal.
 *
 * Invariant: records come in the order of the log, without a gap; the first place that is no whole record ends the walk.
 * Threads:   one caller; while a walk is open nobody changes the log.
 * Way:       log -> [cmq_logwalk] -> cmq_recover
 */
#ifndef CMQ_LOGWALK_H
#define CMQ_LOGWALK_H

#include "store/cmq_store_internal.h"

typedef struct cmq_logwalk cmq_logwalk;

typedef struct cmq_walked {
    cmq_record_view view;        /* slices live until the next lot is asked for */
    cmq_dispatch_facts facts;
} cmq_walked;

typedef struct cmq_walklot {
    const cmq_walked *records;
    uint32_t count;
} cmq_walklot;

/* Begin at a record's start. checks: as cmq_record_parse's. unclean: records that lost a sector of topic or properties are none. *walk_out owned: cmq_logwalk_close. */
cmq_status CMQ_MUST_CHECK cmq_logwalk_open(cmq_store *store, int64_t from, unsigned checks, bool unclean, cmq_logwalk **walk_out);

/* The next lot. CMQ_END: cmq_logwalk_end says where, and why. CMQ_ERR_IO: the log cannot be read further. */
cmq_status CMQ_MUST_CHECK cmq_logwalk_next(cmq_logwalk *walk, cmq_walklot *lot_out);

/* After CMQ_END: where the next record was expected. *reason_out: why there is none; borrowed. */
int64_t cmq_logwalk_end(const cmq_logwalk *walk, const char **reason_out);

void cmq_logwalk_close(cmq_logwalk *walk);   /* NULL is fine */

#endif
