/* cmq_watches: the store's side of cmq_watch.h: notices of the writer, of deletions and of confirmations to the
 * watchers of a store.
 *
 * Owns:    the watchers' memory, until the store goes; the queues that this hold of the writer lock put units into.
 * Threads: expect, note, list, forgotten: under the writer lock. notify: any thread, without the writer lock or another
 *          lock of the store.
 * Source:  ours.
 */
#ifndef CMQ_WATCHES_H
#define CMQ_WATCHES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/cmq_status.h"
#include "store/log/cmq_log.h"
#include "store/queue/cmq_queue.h"

/* `log` outlives them. */
cmq_status CMQ_MUST_CHECK cmq_watches_create(cmq_watches **watches_out, const cmq_log *log);
/* NULL is fine. */
void cmq_watches_destroy(cmq_watches *watches);

/* Is there any watcher? NULL: no. Stays as it is during a hold of the writer lock. */
bool cmq_watches_any(const cmq_watches *watches);

/* A queue that has had no unit yet may get its first: every watcher is to hear of it. */
cmq_status CMQ_MUST_CHECK cmq_watches_expect(cmq_watches *watches, cmq_queue *queue);

/* A unit was just put into the queue. */
void cmq_watches_note(cmq_watches *watches, cmq_queue *queue);

/* The end of a hold of the writer lock that noted something: list the watched ones among the noted queues. */
void cmq_watches_list(cmq_watches *watches);

/* A watched queue was deleted. */
void cmq_watches_forgotten(cmq_watches *watches, cmq_queue *queue);

/* More may be confirmed, or a queue deleted: give the signals that are due. */
void cmq_watches_notify(cmq_watches *watches);

#endif
