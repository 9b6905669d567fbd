/* cmq_commit: group commit: many appenders, one write and one fdatasync for all that waits.
 *
 * An appender that must wait becomes the leader when there is none: it takes the staged records, writes, syncs and
 * confirms them and wakes the others, of whom the next becomes leader of the records that came meanwhile. No thread is
 * handed anything, so a lone appender pays one pwrite and one fdatasync and no wake-up; with many, a group is all that
 * arrives during one sync. Waiters of the written group are woken, and before them one of the next group,
 * so that the disk does not wait until the others have run.
 *
 * Invariant: keys and confirmation follow the sync; a failed write or sync fences the store and is never retried.
 * Way:       cmq_append -> [cmq_commit] -> confirmed: queues, index, followers
 * Source:    upstream's GroupCommitService; spec store 6.3. docs/decisions/0002.
 */
#include <string.h>

#include "base/cmq_assert.h"
#include "store/cmq_store_internal.h"
#include "store/marks/cmq_fence.h"

void cmq_store_publish(cmq_store *store, int64_t end, int64_t store_ms, int64_t last_phy)
{
    CMQ_ASSERT(last_phy < end);
    atomic_store_explicit(&store->confirmed_ms, store_ms, memory_order_relaxed);
    atomic_store_explicit(&store->confirmed_last_phy, last_phy, memory_order_relaxed);
    cmq_log_confirm(store->log, end);
    if (store->follow != NULL) cmq_follow_publish(store->follow, end, store_ms);
    cmq_store_mark_dirty(store);
}

void cmq_store_mark_dirty(cmq_store *store)
{
    if (atomic_load_explicit(&store->dirty, memory_order_relaxed)) return;
    atomic_store(&store->dirty, true);
    cmq_store_wake_thread(store);
}

void cmq_store_put_keys(cmq_store *store, cmq_pending_keys *keys)
{
    if (keys->count == 0) return;
    pthread_mutex_lock(&store->index_mutex);
    CMQ_ASSERT(store->index != NULL);
    cmq_index_put(store->index, keys->keys, keys->count);
    keys->count = 0;   /* inside: the writer sums both lists under this mutex */
    pthread_mutex_unlock(&store->index_mutex);
}

cmq_status cmq_store_fence(cmq_store *store)
{
    pthread_mutex_lock(&store->wake_mutex);
    const bool first = !atomic_load_explicit(&store->fenced, memory_order_relaxed);
    if (first) {
        memcpy(store->fence_reason, cmq_last_error()->text, sizeof store->fence_reason);
        atomic_store_explicit(&store->fenced, true, memory_order_release);
    }
    pthread_mutex_unlock(&store->wake_mutex);
    CMQ_ASSERT(atomic_load_explicit(&store->fenced, memory_order_relaxed));
    if (first) cmq_fence_mark(store);
    return cmq_store_fail_fenced(store);
}

cmq_status cmq_store_fail_fenced(const cmq_store *store)
{
    return cmq_fail(
        CMQ_ERR_FENCED,
        "the store is fenced, because a write or sync failed (%s); nothing more is acknowledged. Close it, mend the "
        "disk and open it again",
        store->fence_reason);
}

/* The last bit of the number of the group taken last. */
static int64_t taken_group(const cmq_store *store)
{
    return atomic_load_explicit(&store->taken, memory_order_acquire) & 1;
}

/* Wait for the group that the record ending at `end` is in: the one that the leader has taken, or the one that is taken
 * next, by this leader, if it is about to, or by another. commit_mutex. */
static void wait_for_group(cmq_store *store, int64_t end)
{
    CMQ_ASSERT(store->leader);
    const int64_t taken = atomic_load_explicit(&store->taken, memory_order_acquire);
    const int64_t group = end <= taken >> 1 ? taken & 1 : ~taken & 1;
    pthread_cond_wait(&store->group_done[group], &store->commit_mutex);
}

/* The leader has done its group. commit_mutex. */
static void wake_waiting(cmq_store *store)
{
    const int64_t group = taken_group(store);
    pthread_cond_signal(&store->group_done[group ^ 1]);   /* becomes the leader, unless somebody else just has */
    pthread_cond_broadcast(&store->group_done[group]);
    pthread_cond_broadcast(&store->leader_gone);
}

/* One group, as the leader. */
static cmq_status write_group(cmq_store *store)
{
    pthread_mutex_lock(&store->writer_mutex);
    /* A transaction that failed half way has staged what nobody may write. */
    if (atomic_load_explicit(&store->fenced, memory_order_acquire)) {
        pthread_mutex_unlock(&store->writer_mutex);
        return cmq_store_fail_fenced(store);
    }
    cmq_staged *staged = cmq_log_take_staged(store->log);
    cmq_pending_keys *keys = &store->pending[store->filling_keys];
    store->filling_keys ^= 1u;
    CMQ_ASSERT(store->pending[store->filling_keys].count == 0);
    const int64_t store_ms = store->store_ms, last_phy = store->last_phy;
    /* Nothing is staged where the log's end went to the next segment over a rest too small for a blank. */
    const int64_t end = staged != NULL ? cmq_staged_end(staged) : cmq_log_end(store->log);
    CMQ_ASSERT(end >= cmq_log_confirmed(store->log) && last_phy < end);
    atomic_store_explicit(&store->taken, end * 2 + (~taken_group(store) & 1), memory_order_release);
    pthread_mutex_unlock(&store->writer_mutex);
    const cmq_status status = staged != NULL ? cmq_log_write_staged(store->log, staged) : CMQ_OK;
    if (status != CMQ_OK) return cmq_store_fence(store);   /* the keys stay where they are: nothing is put any more */
    cmq_log_close_flushed(store->log);
    cmq_store_put_keys(store, keys);
    cmq_store_publish(store, end, store_ms, last_phy);
    cmq_watches_notify(store->watches);
    return CMQ_OK;
}

cmq_status cmq_store_commit(cmq_store *store, int64_t end)
{
    cmq_status status = CMQ_OK;
    pthread_mutex_lock(&store->commit_mutex);
    while (status == CMQ_OK && cmq_log_confirmed(store->log) < end) {
        if (atomic_load_explicit(&store->fenced, memory_order_acquire)) {
            status = cmq_store_fail_fenced(store);
            for (int i = 0; i < 2; i++) pthread_cond_broadcast(&store->group_done[i]);   /* nobody leads any more */
        } else if (store->leader) {
            wait_for_group(store, end);
        } else {
            store->leader = true;
            pthread_mutex_unlock(&store->commit_mutex);
            status = write_group(store);
            pthread_mutex_lock(&store->commit_mutex);
            store->leader = false;
            wake_waiting(store);
        }
    }
    pthread_mutex_unlock(&store->commit_mutex);
    return status;
}

cmq_status cmq_store_wait(cmq_store *store, int64_t end)
{
    if (store->options.read_only) return cmq_fail(CMQ_ERR_READ_ONLY, "a read-only store has nothing to wait for");
    if (cmq_log_confirmed(store->log) >= end) return CMQ_OK;
    pthread_mutex_lock(&store->writer_mutex);
    const int64_t last = cmq_log_end(store->log);
    pthread_mutex_unlock(&store->writer_mutex);
    if (end > last)
        return cmq_fail_at(CMQ_ERR_OFFSET, end, "nothing was appended up to %lld; the log ends at %lld", (long long)end,
                           (long long)last);
    return cmq_store_commit(store, end);
}
