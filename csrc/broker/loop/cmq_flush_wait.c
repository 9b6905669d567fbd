/* cmq_flush_wait: the thread that waits for the disk in the place of the loops, under sync flush.
 *
 *     loop:        append without waiting -> cmq_flush_wait_for(end) -> … the turn continues …
 *     this thread: cmq_store_wait(end), the store's group commit: one sync for all appends up to now -> wake every loop
 *                  -> cmq_send_settle
 *
 * A failure needs no word of its own: the store is fenced then, and settling sees that.
 *
 * Threads: its own. wait_for: any.
 */
#include "broker/loop/cmq_broker_internal.h"

static void wake_loops(cmq_broker *broker)
{
    pthread_mutex_lock(&broker->changed_mutex);
    for (uint32_t i = 0; i < broker->loop_count; i++) cmq_loop_wake(broker->loops[i]->loop);
    pthread_mutex_unlock(&broker->changed_mutex);
}

static void *run(void *context)
{
    cmq_broker *broker = context;
    int64_t done = 0;
    pthread_mutex_lock(&broker->flush_mutex);
    for (;;) {
        while (broker->flush_end <= done && !broker->flush_stop)
            pthread_cond_wait(&broker->flush_wanted, &broker->flush_mutex);
        if (broker->flush_stop) break;
        const int64_t end = broker->flush_end;
        pthread_mutex_unlock(&broker->flush_mutex);
        const cmq_status status = cmq_store_wait(broker->store, end);
        (void)status;   /* a failure fences the store; the loops see that for themselves, and are woken either way */
        wake_loops(broker);
        done = end;
        pthread_mutex_lock(&broker->flush_mutex);
    }
    pthread_mutex_unlock(&broker->flush_mutex);
    return NULL;
}

cmq_status cmq_flush_wait_start(cmq_broker *broker)
{
    const int failed = pthread_create(&broker->flush_thread, NULL, run, broker);
    if (failed != 0) return cmq_fail_errno(failed, "cannot start the thread that waits for the disk");
    broker->flush_running = true;
    return CMQ_OK;
}

void cmq_flush_wait_stop(cmq_broker *broker)
{
    if (!broker->flush_running) return;
    pthread_mutex_lock(&broker->flush_mutex);
    broker->flush_stop = true;
    pthread_cond_signal(&broker->flush_wanted);
    pthread_mutex_unlock(&broker->flush_mutex);
    pthread_join(broker->flush_thread, NULL);
    broker->flush_running = false;
}

void cmq_flush_wait_for(cmq_broker *broker, int64_t end)
{
    pthread_mutex_lock(&broker->flush_mutex);
    if (broker->flush_end < end) {
        broker->flush_end = end;
        pthread_cond_signal(&broker->flush_wanted);
    }
    pthread_mutex_unlock(&broker->flush_mutex);
}
