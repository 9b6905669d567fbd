/* cmq_watch: tell a loop which of the queues that it waits for got something, with one wake-up per batch of appends.
 *
 *   loop                                     appends, on any thread
 *   ----                                     ------------------------------
 *   cmq_watcher_add(queue)                   unit into the queue
 *   look at the queue's max once more        end of the batch: queue watched? -> listed
 *   … sleeps                                 batch confirmed -> signal, once until the next take
 *   cmq_watcher_take -> queues
 *
 * A watch is one-shot: a queue that was taken is watched no more. A queue is listed at most once however many wait for
 * it. Listed are also
 *   - every queue that is new (a watcher that waits for a name without a queue learns of it without having added
 *   anything), with its first unit; - a watched queue that is deleted (cmq_queue_deleted); its name's next life is a
 *   new queue.
 * A queue may be listed once more than there was a reason for; never less.
 *
 * Invariant: after add has returned, every unit that a look at cmq_queue_max made since then does not show lists the
 *            queue. Listing allocates nothing, as add made room for it.
 * Cost:      nobody watches in this store: a load per batch of appends. Watchers, but none of this queue: a byte of the
 *            queue's first line per unit, and two atomic additions per batch. Memory: 1 byte per queue of the store and
 *            16 per watched queue, for each watcher.
 * Threads:   add, take: the watcher's one thread. The signal comes from any thread that appends, deletes or adds,
 *            without any lock that add, take or an append needs; it must be short, and must not call this module.
 *            create, destroy: any thread, while no other call of the watcher runs.
 * Way:       cmq_append, cmq_queue_delete -> [cmq_watch] -> cmq_commit (confirmed) -> signal -> loops, delay service
 */
#ifndef CMQ_WATCH_H
#define CMQ_WATCH_H

#include <stdint.h>

#include "base/cmq_status.h"
#include "store/cmq_store.h"

#define CMQ_WATCHERS_MAX 20u   /* of one store: 16 loops, the delay service, and some more */

typedef struct cmq_watcher cmq_watcher;
typedef void (*cmq_watch_signal)(void *context);

/* CMQ_ERR_READ_ONLY for a store that was opened so (cmq_store_wait_more serves it); CMQ_ERR_LIMIT when there are
 * CMQ_WATCHERS_MAX. */
cmq_status CMQ_MUST_CHECK cmq_watcher_create(cmq_watcher **watcher_out, cmq_store *store, cmq_watch_signal signal,
                                             void *context);

/* Before the store is closed. No signal is given any more when it returns. NULL is fine. */
void cmq_watcher_destroy(cmq_watcher *watcher);

/* Watch a queue from now on; watched or listed already is fine. Then look at its max again. CMQ_ERR_MEMORY: not
 * watched. */
cmq_status CMQ_MUST_CHECK cmq_watcher_add(cmq_watcher *watcher, cmq_queue *queue);

/* Take listed queues whose units are confirmed, oldest first. When it returns `capacity`, call again: no further signal
 * is given for those that are left. Those that are not confirmed yet get a signal of their own. */
uint32_t cmq_watcher_take(cmq_watcher *watcher, cmq_queue **queues_out, uint32_t capacity);

#endif
