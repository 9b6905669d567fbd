/* cmq_wake: what ends a hold: a message that matches, its deadline, its connection's end, a change of its group's subscriptions.
 *
 * An arrival names a queue, whose newest units are read once. Each of its holds is asked whether something between its place and the queue's end passes
 * its filter: if so, it is run again; if not, its place moves on, so that nothing is looked at twice. Answering thousands at once would keep the loop from everything else, so a turn
 * answers a bounded number and leaves the rest to the next.
 *
 * Source: upstream's PullRequestHoldService, NotifyMessageArrivingListener; consumption specification 3.3.
 */
#include "broker/loop/cmq_broker_internal.h"

#include <stdlib.h>

#define ANSWERS_PER_TURN 512u
#define NEWEST_UNITS 32u

void cmq_wake_remember(cmq_broker_loop *l, cmq_queue *queue)
{
    if (l->arrived_count == l->arrived_slots) {
        const uint32_t slots = l->arrived_slots == 0 ? 64 : l->arrived_slots * 2;
        cmq_queue **arrived = realloc(l->arrived, slots * sizeof(cmq_queue *));
        /* Without it the holds of this queue end at their deadlines; their clients ask again. */
        if (arrived == NULL) return;
        l->arrived = arrived;
        l->arrived_slots = slots;
    }
    l->arrived[l->arrived_count++] = queue;
}

/* What a hold's request filters by; NULL when the answer is not to be had without running it. */
static const cmq_filter *filter_of(cmq_broker_loop *l, const cmq_held_pull *held)
{
    if (held->filter != NULL) return held->filter;
    const cmq_consumer_entry *consumer = cmq_tables_consumer(cmq_broker_tables(l), held->group);
    const cmq_subscription *subscription = consumer != NULL ? cmq_consumer_subscription(consumer, held->topic) : NULL;
    return subscription != NULL && subscription->type == CMQ_EXPRESSION_TAG ? subscription->filter : NULL;
}

/* The newest units of a queue, read once for all its holds: most wait for the message that has come. */
typedef struct newest {
    cmq_queue *queue;
    int64_t confirmed, max;
    int64_t begin;               /* offset of the first unit; max: none */
    uint32_t count;
    cmq_unit units[NEWEST_UNITS];
} newest;

static void read_newest(newest *of, cmq_queue *queue, int64_t confirmed)
{
    of->queue = queue;
    of->confirmed = confirmed;
    of->max = cmq_queue_max(queue, confirmed);
    of->begin = of->max;
    of->count = 0;
    int64_t next, from = of->max > NEWEST_UNITS ? of->max - NEWEST_UNITS : 0;
    if (from < cmq_queue_min(queue)) from = cmq_queue_min(queue);
    /* Without them every hold looks for itself. */
    if (cmq_queue_read(queue, from, confirmed, of->units, NEWEST_UNITS, &of->count, &next) == CMQ_OK && of->count > 0 && next == of->max)
        of->begin = of->units[0].offset;
}

static bool has_match(const newest *of, int64_t from, const uint32_t *hashes, uint32_t hash_count)
{
    for (uint32_t i = of->count; i > 0 && of->units[i - 1].offset + of->units[i - 1].count > from; i--)
        for (uint32_t j = 0; j < hash_count; j++)
            if ((uint32_t)of->units[i - 1].tags_code == hashes[j]) return true;
    return false;
}

/* Has something come for it? If not, its place moves on. */
static bool is_served(cmq_broker_loop *l, cmq_hold hold, const newest *of)
{
    cmq_queue *queue = of->queue;
    const int64_t confirmed = of->confirmed;
    cmq_held_pull held;
    cmq_holds_get(l->holds, hold, &held);
    if (of->max <= held.from) return cmq_queue_deleted(queue);
    const cmq_filter *filter = filter_of(l, &held);
    if (filter == NULL || cmq_filter_is_all(filter)) return true;
    uint32_t hash_count, found = 0;
    const uint32_t *hashes = cmq_filter_hashes(filter, &hash_count);
    int64_t next = held.from;
    if (hash_count == 0)
        next = of->max;
    else if (held.from >= of->begin && has_match(of, held.from, hashes, hash_count))
        return true;
    else if (held.from >= of->begin)
        next = of->max;
    else if (cmq_queue_scan(queue, held.from, confirmed, hashes, hash_count, UINT64_MAX, l->units, 1, &found, &next) != CMQ_OK)
        return true;   /* run again, it tells its client why */
    if (found == 0 && next > held.from) cmq_holds_set_from(l->holds, hold, next);
    return found > 0;
}

/* False: more answers are due than this turn gives. */
static bool serve_queue(cmq_broker_loop *l, cmq_queue *queue, uint32_t *budget)
{
    const cmq_slice topic = {.data = (const uint8_t *)cmq_queue_topic(queue), .bytes = cmq_queue_topic_bytes(queue)};
    const int32_t queue_id = cmq_queue_id(queue);
    newest of;
    read_newest(&of, queue, cmq_store_confirmed(l->broker->store));
    for (cmq_hold hold = cmq_holds_of_queue(l->holds, topic, queue_id), next; hold != CMQ_HOLD_NONE; hold = next) {
        next = cmq_holds_next_of_queue(l->holds, hold);
        if (!is_served(l, hold, &of)) continue;
        if (*budget == 0) return false;
        (*budget)--;
        cmq_bump(&l->counters.hold_wakes, 1);
        cmq_pull_end_hold(l, hold);
    }
    if (cmq_holds_of_queue(l->holds, topic, queue_id) != CMQ_HOLD_NONE) cmq_wake_watch(l, topic, queue_id);
    cmq_pop_wake_arrival(l, queue);
    return true;
}

void cmq_wake_watch(cmq_broker_loop *l, cmq_slice topic, int32_t queue_id)
{
    cmq_queue *queue = cmq_queues_find(l->broker->queues, topic, queue_id);
    if (queue == NULL) return;   /* one that is new is reported without being asked for */
    const int64_t seen = cmq_queue_max(queue, cmq_store_confirmed(l->broker->store));
    const bool watched = cmq_watcher_add(l->watcher, queue) == CMQ_OK;
    /* What came since the look that found nothing, or must be looked after without the watcher, is an arrival like any other. */
    cmq_held_pull first;
    const cmq_hold hold = cmq_holds_of_queue(l->holds, topic, queue_id);
    if (hold == CMQ_HOLD_NONE) return;
    cmq_holds_get(l->holds, hold, &first);
    const int64_t max = cmq_queue_max(queue, cmq_store_confirmed(l->broker->store));
    if (watched && max <= first.from && max == seen) return;
    cmq_wake_remember(l, queue);
    cmq_loop_wake(l->loop);
}

void cmq_wake_arrivals(cmq_broker_loop *l)
{
    enum { TAKE = 64 };
    cmq_queue *taken[TAKE];
    uint32_t count, budget = ANSWERS_PER_TURN;
    do {
        count = cmq_watcher_take(l->watcher, taken, TAKE);
        for (uint32_t i = 0; i < count; i++) cmq_wake_remember(l, taken[i]);
    } while (count == TAKE);
    /* Serving may list a queue again, behind the others. */
    uint32_t served = 0;
    for (const uint32_t listed = l->arrived_count; served < listed && budget > 0;)
        if (serve_queue(l, l->arrived[served], &budget)) served++;
    l->arrived_count -= served;
    if (l->arrived_count == 0) return;
    memmove(l->arrived, l->arrived + served, l->arrived_count * sizeof(cmq_queue *));
    cmq_loop_wake(l->loop);
}

void cmq_wake_due(cmq_broker_loop *l, int64_t now_ns)
{
    cmq_hold hold;
    for (uint32_t budget = ANSWERS_PER_TURN; budget > 0 && (hold = cmq_holds_due(l->holds, now_ns)) != CMQ_HOLD_NONE; budget--) {
        cmq_bump(&l->counters.hold_timeouts, 1);
        cmq_pull_end_hold(l, hold);
    }
}

uint32_t cmq_wake_closed(cmq_broker_loop *l, cmq_conn *conn)
{
    const uint32_t slot = cmq_conn_slot(conn);
    uint32_t forgotten = cmq_pop_wake_closed(l, conn);
    for (cmq_hold hold; (hold = cmq_holds_of_conn(l->holds, slot)) != CMQ_HOLD_NONE; forgotten++) {
        cmq_held_pull held;
        cmq_holds_get(l->holds, hold, &held);
        cmq_holds_remove(l->holds, hold);
        cmq_filter_release(held.filter);
        cmq_conn_kept_done(l->loop);
        cmq_bump(&l->counters.holds_now, UINT64_MAX);
    }
    return forgotten;
}

void cmq_wake_changed(cmq_broker_loop *l)
{
    pthread_mutex_lock(&l->broker->changed_mutex);
    char **changed = l->changed;
    const uint32_t count = l->changed_count;
    l->changed = NULL;
    l->changed_count = l->changed_slots = 0;
    pthread_mutex_unlock(&l->broker->changed_mutex);
    for (uint32_t i = 0; i < count; i++) {
        const cmq_slice group = cmq_slice_of_text(changed[i]);
        cmq_hold hold;
        while ((hold = group.bytes > 0 ? cmq_holds_of_group(l->holds, group) : cmq_holds_due(l->holds, INT64_MAX)) != CMQ_HOLD_NONE)
            cmq_pull_end_hold(l, hold);
        if (group.bytes == 0) cmq_pop_wake_all(l);
        free(changed[i]);
    }
    free(changed);
}
