/* cmq_watch: see cmq_watch.h, and cmq_watches.h for the writer's side.
 *
 * A queue has one mark, "watched", for all watchers together; each watcher has a state for it:
 *
 *        add                          unit put, queue deleted               take
 *   NONE ----> WATCHED (mark set) -----------------------------> LISTED ----------> NONE
 *
 * Why no unit is missed. Let W be the writer, which puts a unit and then looks at the mark, and A an add, which sets
 * the mark and then looks at the queue's last unit. Between its two steps each adds to `meeting`. These additions have
 * an order, and the second of them sees all that its thread's counterpart did before the first. If W's is the second, W
 * finds the mark, and lists the queue. If A's is, A finds the unit: a confirmed one is what the caller's own look will
 * show, an unconfirmed one makes A list the queue itself. W adds once per hold of the writer lock, after all its units:
 * the queues that it put units into are noted meanwhile.
 *
 * Why no signal is missed. A thread that confirms moves the confirmed end, adds to `meeting`, and reads signal_end; one
 * that lists or takes sets signal_end, adds, and reads the confirmed end. A deletion and an add meet in the queue's
 * byte of marks itself.
 */
#include "store/follow/cmq_watch.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/cmq_assert.h"
#include "store/cmq_store_internal.h"
#include "store/queue/cmq_queue_internal.h"
#include "store/queue/cmq_watches.h"

#define NOTED_MAX 256u
#define RING_FIRST 64u
#define NO_SIGNAL INT64_MAX

enum {
    STATE_NONE = 0,
    STATE_WATCHED,
    STATE_LISTED
};

typedef struct listed {
    cmq_queue *queue;
    int64_t end;                     /* confirmed up to here, the queue may be taken; never falls along the ring */
} listed;

struct cmq_watcher {
    cmq_watches *all;
    cmq_store *store;
    cmq_watch_signal signal;
    void *context;
    _Atomic bool live;               /* changed under the writer lock and both mutexes */
    pthread_mutex_t signal_mutex;    /* held while the signal is given; outside `mutex` */
    pthread_mutex_t mutex;           /* guards the fields below. The innermost lock */
    uint8_t *states;                 /* by the queue's index */
    uint32_t state_count;
    listed *ring;
    uint32_t ring_capacity;          /* a power of two, or 0 */
    uint32_t first, count;           /* listed */
    uint32_t watched;                /* each has room in the ring */
    bool signalled;                  /* since the last take */
    _Atomic int64_t signal_end;      /* when so much is confirmed, a signal is due. Asked without the mutex */
};

struct cmq_watches {
    const cmq_log *log;
    _Atomic uint32_t live_end;       /* behind the last place with a watcher. Changed under the writer lock */
    _Atomic uint64_t meeting;
    uint32_t noted_count;            /* writer_mutex */
    cmq_queue *noted[NOTED_MAX];     /* writer_mutex */
    cmq_watcher watchers[CMQ_WATCHERS_MAX];
};

static void meet(cmq_watches *watches) { atomic_fetch_add_explicit(&watches->meeting, 1, memory_order_acq_rel); }

/* ---- life ---- */

cmq_status cmq_watches_create(cmq_watches **watches_out, const cmq_log *log)
{
    cmq_watches *made = calloc(1, sizeof *made);
    *watches_out = made;
    if (made == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for the watchers of a store");
    made->log = log;
    for (uint32_t i = 0; i < CMQ_WATCHERS_MAX; i++) {
        made->watchers[i].all = made;
        atomic_init(&made->watchers[i].signal_end, NO_SIGNAL);
        pthread_mutex_init(&made->watchers[i].signal_mutex, NULL);
        pthread_mutex_init(&made->watchers[i].mutex, NULL);
    }
    return CMQ_OK;
}

void cmq_watches_destroy(cmq_watches *watches)
{
    if (watches == NULL) return;
    for (uint32_t i = 0; i < CMQ_WATCHERS_MAX; i++) {
        free(watches->watchers[i].states);
        free(watches->watchers[i].ring);
        pthread_mutex_destroy(&watches->watchers[i].signal_mutex);
        pthread_mutex_destroy(&watches->watchers[i].mutex);
    }
    free(watches);
}

static uint32_t live_end(const cmq_watches *watches)
{
    return atomic_load_explicit(&watches->live_end, memory_order_relaxed);
}

/* With the writer lock, after a watcher came or went. */
static void set_live_end(cmq_watches *watches)
{
    uint32_t end = CMQ_WATCHERS_MAX;
    while (end > 0 && !atomic_load_explicit(&watches->watchers[end - 1].live, memory_order_relaxed)) end--;
    atomic_store_explicit(&watches->live_end, end, memory_order_relaxed);
}

bool cmq_watches_any(const cmq_watches *watches)
{
    return watches != NULL && live_end(watches) > 0;
}

cmq_status cmq_watcher_create(cmq_watcher **watcher_out, cmq_store *store, cmq_watch_signal signal, void *context)
{
    cmq_watches *all = store->watches;
    *watcher_out = NULL;
    if (all == NULL) return cmq_fail(CMQ_ERR_READ_ONLY, "a store that was opened read-only has no watchers");
    /* an append may rely on the existence of watchers for a whole hold of the writer lock */
    pthread_mutex_lock(&store->writer_mutex);
    cmq_watcher *free_one = NULL;
    for (uint32_t i = 0; i < CMQ_WATCHERS_MAX && free_one == NULL; i++)
        if (!atomic_load_explicit(&all->watchers[i].live, memory_order_relaxed)) free_one = &all->watchers[i];
    if (free_one != NULL) {
        pthread_mutex_lock(&free_one->signal_mutex);
        pthread_mutex_lock(&free_one->mutex);
        free_one->store = store;
        free_one->signal = signal;
        free_one->context = context;
        atomic_store_explicit(&free_one->live, true, memory_order_relaxed);
        pthread_mutex_unlock(&free_one->mutex);
        pthread_mutex_unlock(&free_one->signal_mutex);
        set_live_end(all);
    }
    pthread_mutex_unlock(&store->writer_mutex);
    *watcher_out = free_one;
    return free_one != NULL ? CMQ_OK : cmq_fail(CMQ_ERR_LIMIT, "the store has %u watchers already", CMQ_WATCHERS_MAX);
}

void cmq_watcher_destroy(cmq_watcher *watcher)
{
    if (watcher == NULL) return;
    cmq_store *store = watcher->store;
    pthread_mutex_lock(&store->writer_mutex);
    pthread_mutex_lock(&watcher->signal_mutex);
    pthread_mutex_lock(&watcher->mutex);
    CMQ_ASSERT(atomic_load_explicit(&watcher->live, memory_order_relaxed));
    atomic_store_explicit(&watcher->live, false, memory_order_relaxed);
    atomic_store_explicit(&watcher->signal_end, NO_SIGNAL, memory_order_relaxed);
    free(watcher->states);
    free(watcher->ring);
    watcher->states = NULL;
    watcher->ring = NULL;
    watcher->state_count = watcher->ring_capacity = watcher->first = watcher->count = watcher->watched = 0;
    watcher->signalled = false;
    pthread_mutex_unlock(&watcher->mutex);
    pthread_mutex_unlock(&watcher->signal_mutex);
    set_live_end(watcher->all);
    pthread_mutex_unlock(&store->writer_mutex);
}

/* ---- states and the ring; with the watcher's mutex ---- */

static cmq_status CMQ_MUST_CHECK reserve_state(cmq_watcher *watcher, uint32_t index)
{
    if (index < watcher->state_count) return CMQ_OK;
    uint32_t count = watcher->state_count == 0 ? 1024 : watcher->state_count;
    while (count <= index) count *= 2;
    uint8_t *grown = realloc(watcher->states, count);
    if (grown == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory to watch one of %u queues", count);
    memset(grown + watcher->state_count, STATE_NONE, count - watcher->state_count);
    watcher->states = grown;
    watcher->state_count = count;
    return CMQ_OK;
}

/* Room for one more, watched or listed. */
static cmq_status CMQ_MUST_CHECK reserve_place(cmq_watcher *watcher)
{
    if (watcher->watched + watcher->count < watcher->ring_capacity) return CMQ_OK;
    const uint32_t capacity = watcher->ring_capacity == 0 ? RING_FIRST : watcher->ring_capacity * 2;
    listed *grown = malloc(capacity * sizeof *grown);
    if (grown == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory to watch %u queues", capacity);
    for (uint32_t i = 0; i < watcher->count; i++)
        grown[i] = watcher->ring[(watcher->first + i) & (watcher->ring_capacity - 1)];
    free(watcher->ring);
    watcher->ring = grown;
    watcher->ring_capacity = capacity;
    watcher->first = 0;
    return CMQ_OK;
}

/* NONE -> WATCHED, with the queue's mark. *deleted_out: the queue was deleted before. */
static cmq_status CMQ_MUST_CHECK watch(cmq_watcher *watcher, cmq_queue *queue, bool *deleted_out)
{
    *deleted_out = false;
    cmq_status status = reserve_state(watcher, queue->index);
    if (status == CMQ_OK && watcher->states[queue->index] != STATE_NONE) return CMQ_AGAIN;
    if (status == CMQ_OK) status = reserve_place(watcher);
    if (status != CMQ_OK) return status;
    watcher->states[queue->index] = STATE_WATCHED;
    watcher->watched++;
    *deleted_out = cmq_queue_set_watched(queue);
    return CMQ_OK;
}

/* WATCHED -> LISTED; nothing otherwise. */
static void list(cmq_watcher *watcher, cmq_queue *queue, int64_t end)
{
    if (queue->index >= watcher->state_count || watcher->states[queue->index] != STATE_WATCHED) return;
    CMQ_ASSERT(watcher->watched + watcher->count <= watcher->ring_capacity);
    const uint32_t mask = watcher->ring_capacity - 1;
    if (watcher->count > 0) {
        const int64_t last = watcher->ring[(watcher->first + watcher->count - 1) & mask].end;
        if (end < last) end = last;   /* waits a little longer, for one that is already on its way to the disk */
    }
    watcher->ring[(watcher->first + watcher->count) & mask] = (listed){.queue = queue, .end = end};
    watcher->states[queue->index] = STATE_LISTED;
    watcher->watched--;
    watcher->count++;
    if (watcher->count == 1 && !watcher->signalled)
        atomic_store_explicit(&watcher->signal_end, end, memory_order_relaxed);
}

/* ---- signals ---- */

static void signal_if_due(cmq_watcher *watcher, int64_t confirmed)
{
    if (atomic_load_explicit(&watcher->signal_end, memory_order_relaxed) > confirmed) return;
    pthread_mutex_lock(&watcher->signal_mutex);
    pthread_mutex_lock(&watcher->mutex);
    const bool due = atomic_load_explicit(&watcher->signal_end, memory_order_relaxed) <= confirmed;
    if (due) {
        watcher->signalled = true;
        atomic_store_explicit(&watcher->signal_end, NO_SIGNAL, memory_order_relaxed);
    }
    pthread_mutex_unlock(&watcher->mutex);
    if (due) watcher->signal(watcher->context);
    pthread_mutex_unlock(&watcher->signal_mutex);
}

void cmq_watches_notify(cmq_watches *watches)
{
    if (!cmq_watches_any(watches)) return;
    meet(watches);
    const int64_t confirmed = cmq_log_confirmed(watches->log);
    for (uint32_t i = 0, end = live_end(watches); i < end; i++) signal_if_due(&watches->watchers[i], confirmed);
}

/* ---- the writer's side ---- */

static void list_everywhere(cmq_watches *watches, cmq_queue *queue, int64_t end)
{
    for (uint32_t i = 0, last = live_end(watches); i < last; i++) {
        cmq_watcher *watcher = &watches->watchers[i];
        if (!atomic_load_explicit(&watcher->live, memory_order_relaxed)) continue;
        pthread_mutex_lock(&watcher->mutex);
        list(watcher, queue, end);
        pthread_mutex_unlock(&watcher->mutex);
    }
}

cmq_status cmq_watches_expect(cmq_watches *watches, cmq_queue *queue)
{
    cmq_status status = CMQ_OK;
    for (uint32_t i = 0, end = live_end(watches); i < end && status == CMQ_OK; i++) {
        cmq_watcher *watcher = &watches->watchers[i];
        bool deleted;
        if (!atomic_load_explicit(&watcher->live, memory_order_relaxed)) continue;
        pthread_mutex_lock(&watcher->mutex);
        status = watch(watcher, queue, &deleted);
        pthread_mutex_unlock(&watcher->mutex);
        if (status == CMQ_AGAIN) status = CMQ_OK;
    }
    return status;
}

void cmq_watches_note(cmq_watches *watches, cmq_queue *queue)
{
    if ((queue->tail.heat & CMQ_HEAT_NOTED) != 0) return;
    if (watches->noted_count == NOTED_MAX) cmq_watches_list(watches);
    queue->tail.heat |= CMQ_HEAT_NOTED;
    watches->noted[watches->noted_count++] = queue;
}

void cmq_watches_list(cmq_watches *watches)
{
    if (watches->noted_count == 0) return;
    meet(watches);
    const int64_t end = cmq_log_end(watches->log);
    for (uint32_t i = 0; i < watches->noted_count; i++) {
        cmq_queue *queue = watches->noted[i];
        queue->tail.heat &= (uint8_t)~CMQ_HEAT_NOTED;
        if (cmq_queue_take_watched(queue)) list_everywhere(watches, queue, end);
    }
    watches->noted_count = 0;
}

void cmq_watches_forgotten(cmq_watches *watches, cmq_queue *queue) { list_everywhere(watches, queue, 0); }

/* ---- the watcher's thread ---- */

cmq_status cmq_watcher_add(cmq_watcher *watcher, cmq_queue *queue)
{
    cmq_watches *all = watcher->all;
    bool deleted;
    pthread_mutex_lock(&watcher->mutex);
    const cmq_status status = watch(watcher, queue, &deleted);
    pthread_mutex_unlock(&watcher->mutex);
    if (status != CMQ_OK) return status == CMQ_AGAIN ? CMQ_OK : status;
    meet(all);
    const int64_t last_end = deleted ? 0 : atomic_load_explicit(&queue->last_end, memory_order_acquire);
    if (!deleted && last_end <= cmq_log_confirmed(all->log)) return CMQ_OK;
    pthread_mutex_lock(&watcher->mutex);
    list(watcher, queue, last_end);
    pthread_mutex_unlock(&watcher->mutex);
    meet(all);
    signal_if_due(watcher, cmq_log_confirmed(all->log));
    return CMQ_OK;
}

uint32_t cmq_watcher_take(cmq_watcher *watcher, cmq_queue **queues_out, uint32_t capacity)
{
    uint32_t taken = 0;
    int64_t next_end = NO_SIGNAL;
    pthread_mutex_lock(&watcher->mutex);
    do {
        const int64_t confirmed = cmq_log_confirmed(watcher->all->log);
        next_end = NO_SIGNAL;
        while (watcher->count > 0) {
            const listed *first = &watcher->ring[watcher->first & (watcher->ring_capacity - 1)];
            next_end = first->end;
            if (taken == capacity || first->end > confirmed) break;
            queues_out[taken++] = first->queue;
            watcher->states[first->queue->index] = STATE_NONE;
            watcher->count--;
            watcher->first++;
            next_end = NO_SIGNAL;
        }
        watcher->signalled = next_end <= confirmed;   /* no room for it: the caller calls again without a signal */
        if (watcher->signalled) next_end = NO_SIGNAL;
        atomic_store_explicit(&watcher->signal_end, next_end, memory_order_relaxed);
        meet(watcher->all);
    } while (next_end <= cmq_log_confirmed(watcher->all->log));
    pthread_mutex_unlock(&watcher->mutex);
    return taken;
}
