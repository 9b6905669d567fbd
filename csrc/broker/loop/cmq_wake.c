/* cmq_wake: ends holds: for a message that matches, a deadline, a connection's end, a change of a group's
 * subscriptions.
 *
 * An arrival names a queue. Its units are read once from where they were seen last, and each finds the holds that wait
 * for its tag; the others are not touched. Answering thousands at once would keep the loop from everything else, so a
 * turn reads and answers a bounded number and leaves the rest to the next. A queue that is not through goes behind the
 * others. The cost of comparing expressions is counted in steps, here and in the requests that run again; when a turn's
 * steps are used up, the next turn continues.
 *
 * Source: upstream's PullRequestHoldService, NotifyMessageArrivingListener; consumption specification 3.3.
 */
#include "broker/loop/cmq_broker_internal.h"

#include <stdlib.h>
#include <string.h>

#include "store/record/cmq_tags_code.h"

#define ANSWERS_PER_TURN 512u
#define SEEN_UNITS 64u
#define QUEUE_READS_PER_TURN 128u   /* of a queue: 8,192 units, some 0.15 ms */
#define READS_PER_TURN 512u
#define QUEUES_PER_TURN 2048u
#define ARRIVED_MAX 2u
#define POP_LOOKS_PER_TURN 2048u    /* at queues, some 1 us each */

/* The work of a turn that is left. */
typedef struct turn_work {
    uint32_t answers, reads, pop_looks;   /* and the loop's steps_left */
} turn_work;

/* How often the queue is among those that arrived; NULL without memory. */
static uint8_t *times_arrived(cmq_broker_loop *l, const cmq_queue *queue)
{
    const uint32_t index = cmq_queue_index(queue);
    if (index >= l->arrived_of_slots) {
        const uint32_t slots = index < 32 ? 64 : index * 2;
        uint8_t *grown = realloc(l->arrived_of, slots);
        if (grown == NULL) return NULL;
        memset(grown + l->arrived_of_slots, 0, slots - l->arrived_of_slots);
        l->arrived_of = grown;
        l->arrived_of_slots = slots;
    }
    return &l->arrived_of[index];
}

void cmq_wake_remember(cmq_broker_loop *l, cmq_queue *queue)
{
    /* Once for the round that is under way and once for the messages since it began: more of them would do no more. */
    uint8_t *times = times_arrived(l, queue);
    if (times != NULL && *times == ARRIVED_MAX) return;
    if (l->arrived_count == l->arrived_slots) {
        const uint32_t slots = l->arrived_slots == 0 ? 64 : l->arrived_slots * 2;
        cmq_queue **arrived = realloc(l->arrived, slots * sizeof(cmq_queue *));
        /* Without it the holds of this queue end at their deadlines; their clients ask again. */
        if (arrived == NULL) return;
        l->arrived = arrived;
        l->arrived_slots = slots;
    }
    l->arrived[l->arrived_count++] = queue;
    if (times != NULL) (*times)++;
}

/* One more request may run again. */
static bool may_end(const cmq_broker_loop *l, uint32_t answers) { return answers > 0 && l->steps_left > 0; }

/* End the holds of the queue that any message at `offset` ends, or one with this tag hash (NULL: any). False: more than
 * this turn answers. */
static bool end_holds(cmq_broker_loop *l, cmq_slice topic, int32_t queue_id, const uint32_t *hash, int64_t offset,
                      uint32_t *budget)
{
    for (;;) {
        /* each time: it goes with its last hold */
        const cmq_hold_queue of = cmq_holds_find_queue(l->holds, topic, queue_id);
        if (of == CMQ_HOLD_NONE) return true;
        const cmq_hold hold =
            hash != NULL ? cmq_holds_of_tag(l->holds, of, *hash, offset) : cmq_holds_of_any(l->holds, of, offset);
        if (hold == CMQ_HOLD_NONE) return true;
        if (!may_end(l, *budget)) return false;
        (*budget)--;
        cmq_bump(&l->counters.hold_wakes, 1);
        cmq_pull_end_hold(l, hold);
    }
}

/* End all of them: their requests run again and are answered. */
static bool end_all(cmq_broker_loop *l, cmq_slice topic, int32_t queue_id, uint32_t *budget)
{
    for (cmq_hold hold; (hold = cmq_holds_of_queue(l->holds, topic, queue_id)) != CMQ_HOLD_NONE; (*budget)--) {
        if (!may_end(l, *budget)) return false;
        cmq_bump(&l->counters.hold_wakes, 1);
        cmq_pull_end_hold(l, hold);
    }
    return true;
}

/* End the holds of the queue that wait for the program, whose expression selects the unit's record. False: more than
 * this turn answers; one is answered also when the comparison took the last step. */
static bool end_program(cmq_broker_loop *l, cmq_queue *queue, cmq_slice topic, const cmq_unit *unit, uint32_t program,
                        uint32_t *budget)
{
    const int64_t offset = unit->offset + unit->count - 1;
    for (bool ended = false;; ended = true) {
        /* each time: it goes with its last hold */
        const cmq_hold_queue of = cmq_holds_find_queue(l->holds, topic, cmq_queue_id(queue));
        const cmq_hold hold =
            of != CMQ_HOLD_NONE ? cmq_holds_of_program(l->holds, of, program, offset) : CMQ_HOLD_NONE;
        if (hold == CMQ_HOLD_NONE) return true;
        if (*budget == 0 || (ended && l->steps_left == 0)) return false;
        (*budget)--;
        /* its request begins at the message: another look at those before it would take as long as this one did */
        cmq_holds_set_seen(l->holds, of, unit->offset);
        cmq_bump(&l->counters.hold_wakes, 1);
        cmq_pull_end_hold(l, hold);   /* removes this one alone */
    }
}

/* Compare the unit's record with an expression that the queue's holds wait for, the first of which is `hold`, and end
 * them where it is selected. False: more than this turn does. */
static bool compare_one(cmq_broker_loop *l, cmq_queue *queue, cmq_slice topic, const cmq_unit *unit, cmq_hold hold,
                        turn_work *left)
{
    const cmq_hold_queue of = cmq_holds_find_queue(l->holds, topic, cmq_queue_id(queue));
    const uint32_t program = cmq_holds_program(l->holds, hold);
    cmq_transfer_place place = {0};
    if (l->steps_left == 0) return false;
    const bool passes =
        cmq_holds_of_program(l->holds, of, program, unit->offset + unit->count - 1) != CMQ_HOLD_NONE &&
        cmq_select_passes(l, &place, queue, unit, cmq_holds_selector(l->holds, program));
    cmq_transfer_leave(&place);
    if (passes) return end_program(l, queue, topic, unit, program, &left->answers);
    cmq_holds_set_compared(l->holds, hold, unit->offset);
    return true;
}

/* The same for all expressions. The next turn continues behind the last one compared. */
static bool end_selected(cmq_broker_loop *l, cmq_queue *queue, cmq_slice topic, const cmq_unit *unit, turn_work *left)
{
    const int32_t queue_id = cmq_queue_id(queue);
    const cmq_hold_queue of = cmq_holds_find_queue(l->holds, topic, queue_id);
    cmq_hold hold = of != CMQ_HOLD_NONE ? cmq_holds_selecting(l->holds, of) : CMQ_HOLD_NONE;
    while (hold != CMQ_HOLD_NONE) {
        const cmq_hold next = cmq_holds_next_selecting(l->holds, hold);
        if (!cmq_holds_is_compared(l->holds, hold, unit->offset) &&
            !compare_one(l, queue, topic, unit, hold, left)) {
            cmq_holds_set_seen(l->holds, cmq_holds_find_queue(l->holds, topic, queue_id), unit->offset);
            return false;
        }
        hold = next;
    }
    return true;
}

/* The queue's messages from where they were seen last, for holds that wait for certain tags or an expression. */
static bool see_tags(cmq_broker_loop *l, cmq_queue *queue, cmq_slice topic, int64_t confirmed, int64_t max,
                     turn_work *left)
{
    const int32_t queue_id = cmq_queue_id(queue);
    cmq_unit units[SEEN_UNITS];
    for (uint32_t reads = 0;; reads++) {
        const cmq_hold_queue of = cmq_holds_find_queue(l->holds, topic, queue_id);
        uint32_t count = 0;
        if (of == CMQ_HOLD_NONE) return true;
        int64_t seen = cmq_holds_seen(l->holds, of), next = max;
        if (seen >= max) return true;
        if (reads == QUEUE_READS_PER_TURN || left->reads == 0) return false;
        left->reads--;
        if (seen < cmq_queue_min(queue)) seen = cmq_queue_min(queue);
        if (cmq_holds_has_tags(l->holds, of) &&
            cmq_queue_read(queue, seen, confirmed, units, SEEN_UNITS, &count, &next) != CMQ_OK)
            return end_all(l, topic, queue_id, &left->answers);
        for (uint32_t i = 0; i < count; i++) {
            const uint32_t hash = (uint32_t)units[i].tags_code;
            /* its tag is not known */
            if (cmq_tags_code_is_ext(units[i].tags_code)) return end_all(l, topic, queue_id, &left->answers);
            if (!end_holds(l, topic, queue_id, &hash, units[i].offset + units[i].count - 1, &left->answers) ||
                !end_selected(l, queue, topic, &units[i], left))
                return false;
        }
        const cmq_hold_queue still = cmq_holds_find_queue(l->holds, topic, queue_id);
        if (still != CMQ_HOLD_NONE) cmq_holds_set_seen(l->holds, still, next > seen ? next : max);
    }
}

/* False: there is more to do than this turn does for it. */
static bool serve_queue(cmq_broker_loop *l, cmq_queue *queue, turn_work *left)
{
    const cmq_slice topic = {.data = (const uint8_t *)cmq_queue_topic(queue), .bytes = cmq_queue_topic_bytes(queue)};
    const int32_t queue_id = cmq_queue_id(queue);
    const int64_t confirmed = cmq_store_confirmed(l->broker->store), max = cmq_queue_max(queue, confirmed);
    if (cmq_queue_deleted(queue) && !end_all(l, topic, queue_id, &left->answers)) return false;
    if (!end_holds(l, topic, queue_id, NULL, max - 1, &left->answers) ||
        !see_tags(l, queue, topic, confirmed, max, left))
        return false;
    if (cmq_holds_find_queue(l->holds, topic, queue_id) != CMQ_HOLD_NONE) cmq_wake_watch(l, topic, queue_id);
    return cmq_pop_wake_arrival(l, queue, &left->pop_looks);
}

void cmq_wake_watch(cmq_broker_loop *l, cmq_slice topic, int32_t queue_id)
{
    cmq_queue *queue = cmq_queues_find(l->broker->queues, topic, queue_id);
    if (queue == NULL) return;   /* one that is new is reported without being asked for */
    const int64_t seen = cmq_queue_max(queue, cmq_store_confirmed(l->broker->store));
    const bool watched = cmq_watcher_add(l->watcher, queue) == CMQ_OK;
    /* Messages since the look that found nothing, or that must be looked after without the watcher, are an arrival like
     * any other. */
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
    turn_work left = {.answers = ANSWERS_PER_TURN,
                      .reads = READS_PER_TURN,
                      .pop_looks = POP_LOOKS_PER_TURN};
    uint32_t count;
    l->steps_left = CMQ_STEPS_PER_TURN;
    do {
        count = cmq_watcher_take(l->watcher, taken, TAKE);
        for (uint32_t i = 0; i < count; i++) cmq_wake_remember(l, taken[i]);
    } while (count == TAKE);
    /* Serving may list a queue again, behind the others. */
    const uint32_t listed = l->arrived_count < QUEUES_PER_TURN ? l->arrived_count : QUEUES_PER_TURN;
    uint32_t served = 0;
    while (served < listed && left.answers > 0 && left.reads > 0 && left.pop_looks > 0 && l->steps_left > 0) {
        cmq_queue *queue = l->arrived[served++];
        uint8_t *times = times_arrived(l, queue);
        if (times != NULL && *times > 0) (*times)--;
        if (!serve_queue(l, queue, &left)) cmq_wake_remember(l, queue);
    }
    l->arrived_count -= served;
    if (l->arrived_count == 0) return;
    memmove(l->arrived, l->arrived + served, l->arrived_count * sizeof(cmq_queue *));
    cmq_loop_wake(l->loop);
}

void cmq_wake_due(cmq_broker_loop *l, int64_t now_ns)
{
    cmq_hold hold;
    l->steps_left = CMQ_STEPS_PER_TURN;
    for (uint32_t budget = ANSWERS_PER_TURN;
         may_end(l, budget) && (hold = cmq_holds_due(l->holds, now_ns)) != CMQ_HOLD_NONE; budget--) {
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

/* Answer all holds. False: there are more than the turn answers. */
static bool end_every_hold(cmq_broker_loop *l, uint32_t *answers)
{
    for (cmq_hold hold; (hold = cmq_holds_due(l->holds, INT64_MAX)) != CMQ_HOLD_NONE; (*answers)--) {
        if (!may_end(l, *answers)) return false;
        cmq_pull_end_hold(l, hold);
    }
    return cmq_pop_wake_all(l, answers);
}

/* Answer the holds that the group has now, the oldest first: clients that are answered ask again, and those requests
 * know of the change. A number that another hold of the group has got meanwhile is answered early, which harms nobody.
 * False: there are more than the turn answers. */
static bool end_group(cmq_broker_loop *l, cmq_slice group, uint32_t *answers)
{
    if (!l->changing_begun) {
        l->changing_hold_count = cmq_holds_list_group(l->holds, group, &l->changing_holds);
        l->changing_begun = true;
    }
    while (l->changing_hold_count > 0) {
        if (!may_end(l, *answers)) return false;
        const cmq_hold hold = l->changing_holds[--l->changing_hold_count];
        if (!cmq_holds_is_of_group(l->holds, hold, group)) continue;
        (*answers)--;
        cmq_pull_end_hold(l, hold);
    }
    free(l->changing_holds);
    l->changing_holds = NULL;
    l->changing_begun = false;
    return true;
}

void cmq_wake_changed(cmq_broker_loop *l)
{
    uint32_t answers = ANSWERS_PER_TURN;
    l->steps_left = CMQ_STEPS_PER_TURN;
    if (l->changing_count == 0) {
        free(l->changing);
        pthread_mutex_lock(&l->broker->changed_mutex);
        l->changing = l->changed;
        l->changing_count = l->changed_count;
        l->changed = NULL;
        l->changed_count = l->changed_slots = 0;
        pthread_mutex_unlock(&l->broker->changed_mutex);
    }
    const bool any = l->changing_count > 0;
    for (; l->changing_count > 0; free(l->changing[--l->changing_count])) {
        const cmq_slice group = cmq_slice_of_text(l->changing[l->changing_count - 1]);
        if (!(group.bytes > 0 ? end_group(l, group, &answers) : end_every_hold(l, &answers))) break;
    }
    if (any) cmq_loop_wake(l->loop);   /* more of them, or those that came meanwhile */
}
