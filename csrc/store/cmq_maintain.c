/* cmq_maintain: flushes, durable points, the background thread and the prewarming helper.
 *
 * The background thread sleeps until the first append after a durable point, then every 100 ms does the due steps:
 * the log (async: every 500 ms), queue tails to files (every second), a durable point (every 10 s or 256 MiB),
 * retention (every 10 s). Then it sleeps again.
 *
 * A durable point is, in this order: log synced; queue units in files, synced; index synced; our point written, so that
 * we recover from here; `checkpoint` written, so that a Java broker does. Each claims less than is durable already.
 * The point names the checkpoint it goes with, and the point before it stays until the checkpoint is written, so that a
 * crash between the two costs nothing.
 *
 * Invariant: no file says that something is durable before it is.
 * Threads:   maintain_mutex makes one flush at a time; the writer goes on beside it.
 * Source:    upstream's FlushRealTimeService, FlushConsumeQueueService, StoreCheckpoint; spec store 1.6, 6.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cmq_assert.h"
#include "store/cmq_store_internal.h"

#define LOOK_EVERY_MS 100
#define LOG_FLUSH_MS 500
#define QUEUE_FLUSH_MS 1000
#define EXPIRE_MS 10000
#define TRIM_MS 10000
#define TRASH_REMOVALS 200u   /* a round: files and folders of deleted queues */
#define WARM_AFTER_BYTES (INT64_C(32) << 20)     /* appended since opening: fewer are no steady load */

/* ---- durable points ---- */

static void fill_point(cmq_store *store, int64_t end, int64_t store_ms, int64_t last_phy, cmq_durable_point *point)
{
    point->log_end = end;
    point->store_ms = store_ms;
    point->checkpoint_crc = cmq_checkpoint_crc(&store->checkpoint);
    point->last_phy = last_phy;
    point->sizes = store->sizes;
    point->marks = true;
    point->index_missing_from = store->opening.index_missing_from;
    point->index_missing_end = store->opening.index_missing_end;
    if (!cmq_store_fingerprint(store, last_phy, &point->last_bytes, &point->last_crc)) point->last_phy = -1;
}

/* The confirmed end with the last record that lies before it. The three are published apart: take them with nobody
 * publishing. */
static void read_confirmed(cmq_store *store, int64_t *end, int64_t *store_ms, int64_t *last_phy)
{
    pthread_mutex_lock(&store->commit_mutex);
    while (store->leader) pthread_cond_wait(&store->leader_gone, &store->commit_mutex);
    pthread_mutex_lock(&store->writer_mutex);
    *end = cmq_log_confirmed(store->log);
    *store_ms = atomic_load_explicit(&store->confirmed_ms, memory_order_relaxed);
    *last_phy = atomic_load_explicit(&store->confirmed_last_phy, memory_order_relaxed);
    pthread_mutex_unlock(&store->writer_mutex);
    pthread_mutex_unlock(&store->commit_mutex);
}

/* A write or sync failed: fence. Where only a descriptor was missing, nothing was written or synced, and the next round
 * tries the same again. */
static cmq_status fence_after(cmq_store *store, cmq_status status)
{
    return cmq_is_exhausted(status) ? status : cmq_store_fence(store);
}

/* Async: the log to disk, with what recovery found. */
static cmq_status sync_log(cmq_store *store, int64_t end)
{
    cmq_status status = CMQ_OK;
    const int64_t found_from = atomic_load_explicit(&store->found_from, memory_order_relaxed);
    if (found_from >= 0) status = cmq_store_sync_found_log(store, found_from, store->opened_end);
    if (status == CMQ_OK) atomic_store_explicit(&store->found_from, -1, memory_order_release);
    if (status == CMQ_OK) status = cmq_log_sync(store->log, end);
    if (status != CMQ_OK) return fence_after(store, status);
    /* A transaction's sync that failed meanwhile took bytes along that this one then found clean. Its thread fences
     * before it leaves the writer lock. */
    pthread_mutex_lock(&store->writer_mutex);
    const bool fenced = atomic_load_explicit(&store->fenced, memory_order_acquire);
    pthread_mutex_unlock(&store->writer_mutex);
    if (fenced) return cmq_store_fail_fenced(store);
    cmq_log_close_flushed(store->log);
    return CMQ_OK;
}

/* Log, queues and index to disk. A sync that failed took bytes along that no later one brings back: fence. */
static cmq_status make_durable(cmq_store *store, int64_t end, int64_t *covered_out, cmq_index_position *index_out,
                               int64_t *full_end_ms_out)
{
    cmq_status status = store->options.flush == CMQ_FLUSH_ASYNC ? sync_log(store, end) : CMQ_OK;
    if (status != CMQ_OK) return status;
    status = cmq_queues_flush(store->queues, end, true, covered_out);
    if (status == CMQ_OK && store->findings_wait) {
        status = cmq_store_sync_findings(store);
        if (status != CMQ_OK) return fence_after(store, status);
        store->findings_wait = false;
    }
    if (status != CMQ_OK) return cmq_queues_sync_failed(store->queues) ? cmq_store_fence(store) : status;
    if (store->index != NULL) {
        pthread_mutex_lock(&store->index_mutex);
        cmq_index_at(store->index, index_out);
        pthread_mutex_unlock(&store->index_mutex);
        status = cmq_index_flush(store->index, full_end_ms_out);
        if (status == CMQ_ERR_LIMIT) return status;   /* no descriptor: no sync was tried, so none failed */
    }
    return status == CMQ_OK ? CMQ_OK : fence_after(store, status);
}

/* The point first: until the checkpoint is written, too, the point before is the true one. */
static cmq_status store_point(cmq_store *store, const cmq_durable_point *point, const cmq_checkpoint *before)
{
    cmq_status status = cmq_durable_point_store(store->points, point);
    if (status == CMQ_OK) {
        status = cmq_checkpoint_store(store->fs, store->root, &store->checkpoint);
        if (status == CMQ_OK) return CMQ_OK;
        const cmq_error error = *cmq_last_error();
        if (cmq_durable_point_keep(store->points, cmq_checkpoint_crc(before)) == CMQ_OK)
            status = cmq_fail(status, "%s", error.text);
    }
    store->checkpoint = *before;
    return status;
}

typedef bool (*leaves)(void *context, const cmq_queue *queue);

/* A point's statement about existing queues: exactly those of this moment, these or without some, or none. */
typedef enum point_queues {
    QUEUES_NOW,
    QUEUES_NOW_OR_WITHOUT,
    QUEUES_UNKNOWN
} point_queues;

static cmq_status durable_point(cmq_store *store, bool clean, point_queues queues, leaves without, void *context)
{
    int64_t end, store_ms, last_phy, covered, full_end_ms = 0;
    cmq_durable_point point = {.clean = clean, .has_also = queues == QUEUES_NOW_OR_WITHOUT};
    if (atomic_load_explicit(&store->fenced, memory_order_acquire)) return cmq_store_fail_fenced(store);
    read_confirmed(store, &end, &store_ms, &last_phy);
    cmq_status status = make_durable(store, end, &covered, &point.index, &full_end_ms);
    if (status == CMQ_OK) status = cmq_store_queue_folders(store, &point.has_queues, &point.has_batch_queues);
    if (status != CMQ_OK) return status;
    CMQ_ASSERT(covered >= end);
    const cmq_checkpoint before = store->checkpoint;
    store->checkpoint.physic_ms = store_ms;
    store->checkpoint.logics_ms = store_ms;
    cmq_checkpoint_set_dispatched(&store->checkpoint, last_phy);
    if (full_end_ms > store->checkpoint.index_ms) store->checkpoint.index_ms = full_end_ms;
    point.queues_known = queues != QUEUES_UNKNOWN;
    if (point.queues_known) point.queues = cmq_queues_fingerprint(store->queues, end);
    if (point.has_also) point.queues_also = cmq_queues_fingerprint_without(store->queues, end, without, context);
    fill_point(store, end, store_ms, last_phy, &point);
    status = store_point(store, &point, &before);
    if (status != CMQ_OK) return status;
    store->durable_end = end;
    store->begins_moved = false;
    store->durable_at_ms = cmq_clock_now_ms(&store->clock);
    if (store->follow != NULL) cmq_follow_set_files_end(store->follow, covered);
    return CMQ_OK;
}

cmq_status cmq_store_durable_point(cmq_store *store, bool clean)
{
    return durable_point(store, clean, QUEUES_NOW, NULL, NULL);
}

cmq_status cmq_store_point_before(cmq_store *store, leaves without, void *context)
{
    return durable_point(store, false, without != NULL ? QUEUES_NOW_OR_WITHOUT : QUEUES_UNKNOWN, without, context);
}

/* ---- steps that are due ---- */

/* Staged bytes of appends that do not wait must not lie about. */
static cmq_status commit_unwaited(cmq_store *store)
{
    pthread_mutex_lock(&store->writer_mutex);
    const int64_t end = cmq_log_end(store->log);
    pthread_mutex_unlock(&store->writer_mutex);
    return end > cmq_log_confirmed(store->log) ? cmq_store_commit(store, end) : CMQ_OK;
}

static cmq_status flush_log(cmq_store *store)
{
    if (store->options.flush == CMQ_FLUSH_SYNC) return commit_unwaited(store);
    return sync_log(store, cmq_log_confirmed(store->log));
}

cmq_status cmq_store_flush(cmq_store *store)
{
    if (store->options.read_only) return cmq_fail(CMQ_ERR_READ_ONLY, "the store was opened read-only");
    if (atomic_load_explicit(&store->fenced, memory_order_acquire)) return cmq_store_fail_fenced(store);
    pthread_mutex_lock(&store->maintain_mutex);
    const cmq_status status = flush_log(store);
    pthread_mutex_unlock(&store->maintain_mutex);
    return status;
}

static cmq_status flush_queues(cmq_store *store)
{
    int64_t covered;
    const cmq_status status = cmq_queues_flush(store->queues, cmq_log_confirmed(store->log), false, &covered);
    if (status == CMQ_OK && store->follow != NULL) cmq_follow_set_files_end(store->follow, covered);
    return status;
}

/* A clock that stepped back must not put things off until it has caught up. */
static bool is_due(int64_t now_ms, int64_t done_at_ms, int64_t every_ms)
{
    return now_ms < done_at_ms || now_ms - done_at_ms >= every_ms;
}

static bool durable_point_due(cmq_store *store, int64_t now_ms)
{
    const int64_t grown = cmq_log_confirmed(store->log) - store->durable_end;
    if (store->begins_moved) return true;   /* the table of ends would take old begins for expired ones */
    return grown > 0 && (grown >= store->options.durable_point_bytes ||
                         is_due(now_ms, store->durable_at_ms, store->options.durable_point_ms));
}

/* Nothing behind the durable point: the thread may sleep until the next append. Cleared first, looked at second, so
 * that an append in between is seen by one of the two. */
static void settle_dirty(cmq_store *store)
{
    atomic_store(&store->dirty, false);
    pthread_mutex_lock(&store->writer_mutex);
    const bool behind = cmq_log_end(store->log) > store->durable_end;
    pthread_mutex_unlock(&store->writer_mutex);
    /* and wake the thread: it may have looked in between, and sleep for good */
    if (behind || store->begins_moved) cmq_store_mark_dirty(store);
}

/* The host program may have closed a descriptor of the lock file, which drops Java's lock. Where a broker took it
 * meanwhile, this writer ends. */
static cmq_status keep_lock(cmq_store *store)
{
    const cmq_status status = cmq_lock_keep(store->lock);
    if (status != CMQ_ERR_LOCKED) return CMQ_OK;   /* a lock server that does not answer: tried again at the next
                                                    * look */
    cmq_fail_context("this store was its writer, but lost the lock to it");
    return cmq_store_fence(store);
}

static cmq_status maintain(cmq_store *store, bool force)
{
    const int64_t now_ms = cmq_clock_now_ms(&store->clock);
    cmq_status status = keep_lock(store);
    if (status == CMQ_OK) status = flush_log(store);
    if (status == CMQ_OK && (force || durable_point_due(store, now_ms))) status = cmq_store_durable_point(store, false);
    else if (status == CMQ_OK &&
             (is_due(now_ms, store->flushed_at_ms, QUEUE_FLUSH_MS) || cmq_queues_flush_wanted(store->queues))) {
        store->flushed_at_ms = now_ms;
        status = flush_queues(store);
    }
    const cmq_error first = status != CMQ_OK ? *cmq_last_error() : (cmq_error){0};
    /* Also after a flush that met a full disk: this is what makes space. */
    if ((status == CMQ_OK || status == CMQ_ERR_DISK_FULL) && store->options.retention.enabled &&
        is_due(now_ms, store->expired_at_ms, EXPIRE_MS)) {
        store->expired_at_ms = now_ms;
        const cmq_status expired = cmq_store_expire_due(store, now_ms);
        if (status == CMQ_OK) status = expired;
    }
    if (cmq_queues_has_trash(store->queues)) {
        const cmq_status emptied = cmq_queues_empty_trash(store->queues, TRASH_REMOVALS);
        if (status == CMQ_OK) status = emptied;
    }
    if (store->follow != NULL) cmq_follow_beat(store->follow, now_ms);
    if (is_due(now_ms, store->trimmed_at_ms, TRIM_MS)) {
        store->trimmed_at_ms = now_ms;
        pthread_mutex_lock(&store->writer_mutex);
        cmq_queues_trim(store->queues);
        pthread_mutex_unlock(&store->writer_mutex);
    }
    settle_dirty(store);
    return first.status != CMQ_OK ? cmq_fail_again(&first) : status;
}

/* Keep the reason of a round that failed, for the program to log: nobody sees the background thread's status. */
static void note_upkeep(cmq_store *store, cmq_status status)
{
    if (status == CMQ_OK && !atomic_load_explicit(&store->upkeep_failing, memory_order_relaxed)) return;
    pthread_mutex_lock(&store->wake_mutex);
    memset(store->upkeep_error, 0, sizeof store->upkeep_error);
    if (status != CMQ_OK) memcpy(store->upkeep_error, cmq_last_error()->text, sizeof store->upkeep_error);
    pthread_mutex_unlock(&store->wake_mutex);
    atomic_store_explicit(&store->upkeep_failing, status != CMQ_OK, memory_order_release);
}

cmq_status cmq_store_maintain(cmq_store *store, bool force_durable_point)
{
    if (store->options.read_only) return cmq_fail(CMQ_ERR_READ_ONLY, "the store was opened read-only");
    if (atomic_load_explicit(&store->fenced, memory_order_acquire)) return cmq_store_fail_fenced(store);
    pthread_mutex_lock(&store->maintain_mutex);
    const cmq_status status = maintain(store, force_durable_point);
    atomic_store_explicit(&store->upkeep_full, status == CMQ_ERR_DISK_FULL, memory_order_relaxed);
    note_upkeep(store, status);
    pthread_mutex_unlock(&store->maintain_mutex);
    return status;
}

bool cmq_store_upkeep_error(cmq_store *store, char into[CMQ_ERROR_TEXT_BYTES])
{
    into[0] = '\0';
    if (atomic_load_explicit(&store->fenced, memory_order_acquire)) {
        (void)cmq_store_fail_fenced(store);
        memcpy(into, cmq_last_error()->text, CMQ_ERROR_TEXT_BYTES);
    } else if (atomic_load_explicit(&store->upkeep_failing, memory_order_acquire)) {
        pthread_mutex_lock(&store->wake_mutex);
        memcpy(into, store->upkeep_error, CMQ_ERROR_TEXT_BYTES);
        pthread_mutex_unlock(&store->wake_mutex);
    }
    return into[0] != '\0';
}

bool cmq_store_is_full(cmq_store *store)
{
    if (atomic_load_explicit(&store->disk_full, memory_order_relaxed)) {
        if (atomic_load_explicit(&store->fenced, memory_order_acquire)) return true;
        pthread_mutex_lock(&store->writer_mutex);
        cmq_status status = cmq_log_try_room(store->log);
        pthread_mutex_unlock(&store->writer_mutex);
        if (status == CMQ_OK && store->index != NULL && cmq_index_files(store->index) > 0) {
            pthread_mutex_lock(&store->index_mutex);
            status = cmq_index_make_room(store->index, 1);
            pthread_mutex_unlock(&store->index_mutex);
        }
        if (status != CMQ_OK) return true;
        atomic_store_explicit(&store->disk_full, false, memory_order_relaxed);
    }
    /* Upkeep retries, as long as it has something to write. */
    return atomic_load_explicit(&store->upkeep_full, memory_order_relaxed);
}

/* ---- the threads ---- */

static struct timespec after_ms(int64_t ms)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    at.tv_sec += ms / 1000;
    at.tv_nsec += (ms % 1000) * 1000000;
    if (at.tv_nsec >= 1000000000) {
        at.tv_sec++;
        at.tv_nsec -= 1000000000;
    }
    return at;
}

/* Nothing was appended since the last durable point: there is nothing to look at. */
static bool is_idle(const cmq_store *store)
{
    return !atomic_load_explicit(&store->dirty, memory_order_relaxed) && !cmq_queues_has_trash(store->queues);
}

/* Wait for something to do, when idle at most `idle_ms`, 0: until somebody appends. False when the store closes. */
static bool wait_for_work(cmq_store *store, int64_t idle_ms)
{
    pthread_mutex_lock(&store->wake_mutex);
    if (!store->stopping) {
        const bool idle = is_idle(store);
        const struct timespec until = after_ms(idle ? idle_ms : LOOK_EVERY_MS);
        if (idle && idle_ms == 0) pthread_cond_wait(&store->wake, &store->wake_mutex);
        else pthread_cond_timedwait(&store->wake, &store->wake_mutex, &until);
    }
    const bool go_on = !store->stopping;
    pthread_mutex_unlock(&store->wake_mutex);
    return go_on;
}

static void *background(void *argument)
{
    cmq_store *store = argument;
    int64_t log_flushed_ms = 0;
    while (wait_for_work(store, CMQ_FOLLOW_BEAT_MS)) {
        if (atomic_load_explicit(&store->fenced, memory_order_acquire)) continue;
        const int64_t now_ms = cmq_clock_now_ms(&store->clock);
        /* Followers in other containers tell by the beat that somebody is here. Retention goes by the clock. */
        if (is_idle(store)) {
            cmq_follow_beat(store->follow, now_ms);
            if (keep_lock(store) != CMQ_OK) continue;
        }
        if (is_idle(store) && !store->options.retention.enabled) continue;
        /* Sync: unwaited appends leave at the next look; async: the log is synced every half second. */
        const bool early = store->options.flush == CMQ_FLUSH_ASYNC && now_ms >= log_flushed_ms &&
                           now_ms - log_flushed_ms < LOG_FLUSH_MS;
        if (early && !cmq_queues_flush_wanted(store->queues)) continue;
        log_flushed_ms = now_ms;
        /* The failure is noted for cmq_store_upkeep_error; it fenced the store, or is retried at the next look. */
        const cmq_status status = cmq_store_maintain(store, false);
        (void)status;
    }
    return NULL;
}

/* Pages ahead of the writer, once it appends steadily: the writer of 1 KiB messages is four times as fast on warm ones
 * (spec native 2). */
static void *warm_ahead(void *argument)
{
    cmq_store *store = argument;
    pthread_setname_np(pthread_self(), "cmq-pages");   /* benchmarks/run_broker.py shows its CPU */
    while (wait_for_work(store, 0)) {
        const int64_t grown = cmq_log_confirmed(store->log) - store->opened_end;
        if (grown < WARM_AFTER_BYTES) continue;
        bool more = true;
        while (more) {
            /* A failed step (no space, no memory) is not an error yet: the writer asks for the same blocks itself, and
             * says so. */
            more = cmq_log_prewarm_step(store->log) == CMQ_OK;
            pthread_mutex_lock(&store->wake_mutex);
            if (store->stopping) more = false;
            pthread_mutex_unlock(&store->wake_mutex);
        }
    }
    return NULL;
}

cmq_status cmq_store_start_threads(cmq_store *store)
{
    if (pthread_create(&store->thread, NULL, background, store) != 0)
        return cmq_fail(CMQ_ERR_LIMIT, "no thread for the store's upkeep");
    store->thread_started = true;
    if (pthread_create(&store->warm_thread, NULL, warm_ahead, store) != 0)
        return cmq_fail(CMQ_ERR_LIMIT, "no thread for the store's prewarming");
    store->warm_started = true;
    return CMQ_OK;
}

void cmq_store_stop_threads(cmq_store *store)
{
    pthread_mutex_lock(&store->wake_mutex);
    store->stopping = true;
    pthread_cond_broadcast(&store->wake);
    pthread_mutex_unlock(&store->wake_mutex);
    if (store->thread_started) pthread_join(store->thread, NULL);
    if (store->warm_started) pthread_join(store->warm_thread, NULL);
    store->thread_started = store->warm_started = false;
}

void cmq_store_wake_thread(cmq_store *store)
{
    pthread_mutex_lock(&store->wake_mutex);
    pthread_cond_broadcast(&store->wake);
    pthread_mutex_unlock(&store->wake_mutex);
}
