/* cmq_fence: after a write or sync failed, nothing that is read back counts as being on disk.
 *
 * When write-back of a page fails, Linux marks it clean and keeps it: a later fdatasync answers "done", and the bytes
 * are in memory alone. So the store is fenced; and its next opening in the same boot finds whole records that no disk
 * has. The fence leaves a mark, and that opening writes everything behind the last durable point again, with the same
 * bytes, before it counts them as durable.
 *
 * Owns:    the file <root>/cometmq/fenced: empty; that it is there is what it says. It is not synced: after a reboot
 *          memory holds what the disk has.
 * Threads: the holder of the store's lock.
 */
#ifndef CMQ_FENCE_H
#define CMQ_FENCE_H

#include "store/cmq_store_internal.h"

/* Leave the mark, as well as a failing disk allows. */
void cmq_fence_mark(cmq_store *store);

/* *marked_out: the last writer, or the last recovery, met a failed write or sync. */
cmq_status CMQ_MUST_CHECK cmq_fence_marked(cmq_store *store, bool *marked_out);

/* Write [from, end) of the log again, durably. */
cmq_status CMQ_MUST_CHECK cmq_fence_rewrite(cmq_store *store, int64_t from, int64_t end);

/* All is durable: remove the mark. */
cmq_status CMQ_MUST_CHECK cmq_fence_clear(cmq_store *store);

#endif
