/* cmq_pop_hold: pops that found nothing and wait, and their wake-ups: an arrival in a queue, messages that another pop
 * left, a queue that is not blocked any more, revived messages, a reset of the group's progress, their deadline, their
 * connection's end.
 *
 * A wake-up runs a pop again; it is answered, or it stays. Of each group one goes on for an arrival: when it leaves
 * something, it wakes the next. An event on one loop that concerns a wait on another goes there as a note.
 *
 * Invariant: a queue that somebody waits for is watched, or listed, or its arrivals have been looked at since the
 *            wait's last look.
 * Source:    consumption specification 4.11; upstream's PopLongPollingService.
 */
#include "broker/pop/cmq_pop_internal.h"

#include <stdlib.h>

#define ANSWERS_PER_TURN 512u
#define WIDE_QUEUES 128           /* a look at a topic with more takes a part of a turn of its own */
#define NOTES_COMPARED 16u        /* a note that equals one of the last so many is left out */

/* Notifications wait apart: an arrival is for a pop, also when notifications were sent for it. */
static cmq_pop_waits *waits_for(const cmq_broker_loop *l, int32_t code)
{
    return code == CMQ_REQUEST_NOTIFICATION ? l->notices : l->pop_waits;
}

/* ---- notes ---- */

/* The broker's changed_mutex is held. Of a note that is dropped, because there is no memory or too many wait, the pop
 * looks again at its deadline. */
static void note(cmq_broker_loop *to, cmq_slice topic, cmq_slice group, int32_t queue_id)
{
    for (uint32_t i = to->pop_note_count, looks = NOTES_COMPARED; i > 0 && looks > 0; i--, looks--) {
        const cmq_pop_note *there = &to->pop_notes[i - 1];
        if (there->queue_id == queue_id && there->topic_bytes == topic.bytes && there->group_bytes == group.bytes &&
            memcmp(there->names, topic.data, topic.bytes) == 0 &&
            memcmp(there->names + topic.bytes, group.data, group.bytes) == 0)
            return;
    }
    if (to->pop_note_count == CMQ_POP_NOTES_MAX) return;
    if (to->pop_note_count == to->pop_note_slots) {
        const uint32_t slots = to->pop_note_slots == 0 ? 16 : to->pop_note_slots * 2;
        cmq_pop_note *notes = realloc(to->pop_notes, slots * sizeof *notes);
        if (notes == NULL) return;
        to->pop_notes = notes;
        to->pop_note_slots = slots;
    }
    char *names = malloc(topic.bytes + group.bytes);
    if (names == NULL) return;
    memcpy(names, topic.data, topic.bytes);
    memcpy(names + topic.bytes, group.data, group.bytes);
    to->pop_notes[to->pop_note_count++] = (cmq_pop_note){names, (uint32_t)topic.bytes, (uint32_t)group.bytes, queue_id};
    cmq_loop_wake(to->loop);
}

/* ---- holding ---- */

int64_t cmq_pop_after_ms(const cmq_broker_loop *l, int64_t ms)
{
    return ms < INT64_MAX / 2 / CMQ_POP_NS_PER_MS ? cmq_loop_now_ns(l->loop) + ms * CMQ_POP_NS_PER_MS : INT64_MAX / 2;
}

/* The wall clock says when a blocked queue is free; how long a client waits is a length of time. */
static int64_t end_of(const cmq_pop_wait *wait) { return wait->expires_ns - CMQ_POP_SLACK_MS * CMQ_POP_NS_PER_MS; }

static int64_t deadline_of(const cmq_broker_loop *l, const cmq_pop_asked *a, int64_t free_ms)
{
    if (a->wait.place.section != 0) return cmq_loop_now_ns(l->loop);   /* its walk goes on */
    const int64_t free_ns = cmq_pop_after_ms(l, free_ms - a->now_ms), end_ns = end_of(&a->wait);
    return free_ns < end_ns ? free_ns : end_ns;
}

void cmq_pop_watch(cmq_broker_loop *l, const cmq_pop_asked *a, int32_t queue_id)
{
    cmq_queue *queue = cmq_queues_find(l->broker->queues, a->topic->name, queue_id);
    if (queue == NULL) return;   /* one that is new is reported without being asked for */
    const bool watched = cmq_watcher_add(l->watcher, queue) == CMQ_OK;
    const int64_t confirmed = cmq_store_confirmed(l->broker->store);
    if (watched && (confirmed == a->confirmed || cmq_queue_max(queue, confirmed) == cmq_queue_max(queue, a->confirmed)))
        return;
    cmq_wake_remember(l, queue);
    cmq_loop_wake(l->loop);
}

/* An ack on another loop may have made a queue free since the request's look, and have seen nobody who waits. It sees
 * the wait from now on: both were in the queue's lane, one after the other. */
static void look_once_more(cmq_broker_loop *l, const cmq_pop_asked *a)
{
    pthread_mutex_lock(&l->broker->changed_mutex);
    if (l->broker->loop_count > 1) note(l, a->topic->name, a->group->name, a->wait.queue_id);
    pthread_mutex_unlock(&l->broker->changed_mutex);
}

static bool selects(const cmq_filter *filter) { return filter != NULL && cmq_filter_selector(filter) != NULL; }

static void drop_program(cmq_broker_loop *l, const cmq_filter *filter, uint32_t conn_slot)
{
    cmq_hold_programs *programs = cmq_holds_programs(l->holds);
    if (selects(filter)) cmq_hold_programs_drop(programs, cmq_hold_programs_find(programs, filter), conn_slot);
}

/* Its filter by SQL92 is the loop's one with that expression then. */
static cmq_status add_wait(cmq_broker_loop *l, cmq_pop_asked *a, int64_t free_ms, uint32_t conn_slot)
{
    cmq_hold_programs *programs = cmq_holds_programs(l->holds);
    uint32_t number, program;
    if (selects(a->wait.filter)) {
        const cmq_status kept = cmq_hold_programs_keep(programs, a->wait.filter, conn_slot, &program);
        if (kept != CMQ_OK) return kept;
        cmq_filter *same = cmq_filter_keep(cmq_hold_programs_filter(programs, program));
        cmq_filter_release(a->wait.filter);
        a->wait.filter = same;
    }
    const cmq_status status =
        cmq_pop_waits_add(waits_for(l, a->wait.code), &a->wait, deadline_of(l, a, free_ms), conn_slot, &number);
    if (status != CMQ_OK) drop_program(l, a->wait.filter, conn_slot);
    return status;
}

cmq_pop_polling cmq_pop_hold(cmq_broker_loop *l, cmq_conn *conn, cmq_pop_asked *a, int64_t free_ms)
{
    if (a->wait.place.section == 0 && cmq_loop_now_ns(l->loop) > end_of(&a->wait)) return CMQ_POP_TIMEOUT;
    if (add_wait(l, a, free_ms, cmq_conn_slot(conn)) != CMQ_OK) {
        cmq_bump(&l->counters.pops_refused, 1);
        return CMQ_POP_FULL;
    }
    a->wait.filter = NULL;   /* the wait's now */
    cmq_conn_keep(conn);
    atomic_fetch_add_explicit(&l->broker->pops_waiting, 1, memory_order_relaxed);
    cmq_bump(&l->counters.pops_held, 1);
    cmq_bump(&l->counters.pops_held_now, 1);
    if (a->wait.queue_id >= 0) {
        cmq_pop_watch(l, a, a->wait.queue_id);
    } else {
        for (uint32_t i = 0; i < a->seen_count; i++)
            cmq_pop_watch(l, a, (int32_t)(((uint32_t)a->seen_first + i) % (uint32_t)a->topic->read_queues));
    }
    if (a->wait.order || cmq_pop_service_options_of(a->pops)->in_flight_max > 0) look_once_more(l, a);
    return CMQ_POP_HELD;
}

static void remove_wait(cmq_broker_loop *l, cmq_pop_waits *from, uint32_t number)
{
    cmq_pop_wait wait;
    cmq_pop_waits_get(from, number, &wait);
    cmq_pop_waits_remove(from, number);
    drop_program(l, wait.filter, wait.conn_slot);
    cmq_filter_release(wait.filter);
    cmq_conn_kept_done(l->loop);
    atomic_fetch_sub_explicit(&l->broker->pops_waiting, 1, memory_order_relaxed);
    cmq_bump(&l->counters.pops_held_now, UINT64_MAX);
}

typedef enum cause {
    CAUSE_DUE,       /* its time is over, or its walk goes on */
    CAUSE_NEWS,      /* something came */
    CAUSE_END        /* the broker stops: it is answered */
} cause;

static void spend(uint32_t *budget, uint32_t cost) { *budget -= cost < *budget ? cost : *budget; }

/* Run a wait's request, and take what it cost from the looks that the turn has left. True: it is answered. `last`: that
 * it is when it was at all queues. `arrived`: the queue of the message, or -1. */
static bool run_again(cmq_broker_loop *l, cmq_pop_waits *from, uint32_t number, cause why, bool last, int32_t arrived,
                      uint32_t *looks)
{
    cmq_tables_reader *tables = cmq_broker_tables(l);
    cmq_pop_asked a = {
        .pops = l->broker->options.pops, .held = true, .ends = why == CAUSE_END, .arrived = arrived};
    int64_t free_ms;
    cmq_pop_waits_get(from, number, &a.wait);
    a.topic = cmq_tables_topic(tables, a.wait.topic);
    a.group = cmq_tables_group(tables, a.wait.group);
    a.now_ms = cmq_pop_service_now_ms(a.pops);
    const bool went_on = a.wait.place.section != 0;
    /* Its walk may have passed the queue. */
    if (went_on && why == CAUSE_NEWS) a.wait.place.rest = true;
    bool (*const run)(cmq_broker_loop *, cmq_pop_asked *, bool, int64_t *) =
        from == l->notices ? cmq_pop_notify : cmq_pop_run;
    cmq_bump(&l->counters.pops, from == l->pop_waits);
    const bool done = run(l, &a, last, &free_ms);
    spend(looks, 1 + a.cost / CMQ_POP_COST_LOOK);
    if (done) {
        remove_wait(l, from, number);
        return true;
    }
    cmq_pop_waits_set_place(from, number, &a.wait.place);
    /* blocked queues become free at another time */
    if (a.wait.order || went_on || a.wait.place.section != 0)
        cmq_pop_waits_move(from, number, deadline_of(l, &a, free_ms));
    return false;
}

/* ---- notices ---- */

void cmq_pop_notify_rest(cmq_broker_loop *l, cmq_slice topic, cmq_slice group, int32_t queue_id)
{
    cmq_broker *broker = l->broker;
    const uint32_t own = cmq_pop_waits_count(l->pop_waits) + cmq_pop_waits_count(l->notices);
    const bool pop_here = own > 0 && cmq_pop_waits_at(l->pop_waits, topic, group, queue_id, false) != CMQ_POP_WAIT_NONE;
    const bool here =
        pop_here || (own > 0 && cmq_pop_waits_at(l->notices, topic, group, queue_id, false) != CMQ_POP_WAIT_NONE);
    /* One pop of this loop is enough; else any other loop may have one. */
    const bool elsewhere = !pop_here && atomic_load_explicit(&broker->pops_waiting, memory_order_relaxed) > own;
    if (!here && !elsewhere) return;
    pthread_mutex_lock(&broker->changed_mutex);
    for (uint32_t i = 0; i < broker->loop_count; i++)
        if (broker->loops[i] == l ? here : elsewhere) note(broker->loops[i], topic, group, queue_id);
    pthread_mutex_unlock(&broker->changed_mutex);
}

void cmq_pop_notify_revived(void *context, cmq_slice topic, cmq_slice group)
{
    cmq_broker *broker = context;
    pthread_mutex_lock(&broker->changed_mutex);
    for (uint32_t i = 0; i < broker->loop_count; i++) note(broker->loops[i], topic, group, CMQ_POP_NOTE_ANY);
    pthread_mutex_unlock(&broker->changed_mutex);
}

cmq_status cmq_broker_reset_offset(cmq_broker *broker, const cmq_offset_key *key, int64_t offset,
                                   cmq_offset_asker asker)
{
    cmq_slice normal;
    const cmq_status status = cmq_offsets_reset(broker->options.offsets, key, offset, asker);
    if (status != CMQ_OK) return status;
    if (cmq_pop_retry_of(key->topic) != CMQ_POP_NORMAL) {
        if (cmq_pop_normal_topic(key->topic, key->group, &normal) == CMQ_OK)
            cmq_pop_notify_revived(broker, normal, key->group);
        return CMQ_OK;
    }
    pthread_mutex_lock(&broker->changed_mutex);
    for (uint32_t i = 0; i < broker->loop_count; i++) {
        note(broker->loops[i], key->topic, key->group, -1);
        note(broker->loops[i], key->topic, key->group, key->queue_id);
    }
    pthread_mutex_unlock(&broker->changed_mutex);
    return CMQ_OK;
}

static uint32_t noted_wait(cmq_broker_loop *l, const cmq_pop_waits *from, cmq_slice topic, cmq_slice group,
                           int32_t queue_id)
{
    if (queue_id != CMQ_POP_NOTE_ANY) return cmq_pop_waits_at(from, topic, group, queue_id, false);
    const cmq_topic_entry *entry = cmq_tables_topic(cmq_broker_tables(l), topic);
    uint32_t number = cmq_pop_waits_at(from, topic, group, -1, false);
    for (int32_t i = 0; number == CMQ_POP_WAIT_NONE && entry != NULL && i < entry->read_queues; i++)
        number = cmq_pop_waits_at(from, topic, group, i, false);
    return number;
}

static void wake_noted(cmq_broker_loop *l, cmq_pop_waits *from, const cmq_pop_note *of, uint32_t *looks)
{
    const cmq_slice topic = {.data = (const uint8_t *)of->names, .bytes = of->topic_bytes};
    const cmq_slice group = {.data = (const uint8_t *)of->names + of->topic_bytes, .bytes = of->group_bytes};
    const uint32_t number = noted_wait(l, from, topic, group, of->queue_id);
    if (number == CMQ_POP_WAIT_NONE) return;
    cmq_bump(&l->counters.pop_wakes, 1);
    (void)run_again(l, from, number, CAUSE_NEWS, false, -1, looks);
}

void cmq_pop_wake_notes(cmq_broker_loop *l)
{
    if (l->pop_noted.at == l->pop_noted.count) {
        free(l->pop_noted.notes);
        pthread_mutex_lock(&l->broker->changed_mutex);
        l->pop_noted = (cmq_pop_noted){.notes = l->pop_notes, .count = l->pop_note_count};
        l->pop_notes = NULL;
        l->pop_note_count = l->pop_note_slots = 0;
        pthread_mutex_unlock(&l->broker->changed_mutex);
    }
    uint32_t looks = CMQ_POP_LOOKS_PER_TURN;
    l->steps_left = CMQ_STEPS_PER_TURN;
    while (looks > 0 && l->steps_left > 0 && l->pop_noted.at < l->pop_noted.count) {
        cmq_pop_note *of = &l->pop_noted.notes[l->pop_noted.at++];
        spend(&looks, 1);
        wake_noted(l, l->notices, of, &looks);
        wake_noted(l, l->pop_waits, of, &looks);
        free(of->names);
        of->names = NULL;
    }
    if (l->pop_noted.count > 0) cmq_loop_wake(l->loop);   /* more of them, or those that came meanwhile */
}

/* ---- arrivals, time, ends ---- */

/* False: the round of the arrival is not over. */
static bool wake_arrival(cmq_broker_loop *l, cmq_pop_waits *from, cmq_queue *queue, uint32_t *budget)
{
    enum { KEYS = 16 };
    const cmq_slice topic = {.data = (const uint8_t *)cmq_queue_topic(queue), .bytes = cmq_queue_topic_bytes(queue)};
    const int32_t queue_id = cmq_queue_id(queue);
    cmq_pop_round round = cmq_pop_waits_round(from, topic, queue_id);
    if (round == CMQ_POP_ROUND_NOBODY) return true;
    if (round == CMQ_POP_ROUND_OTHER) return false;
    if (round == CMQ_POP_ROUND_NONE) {
        /* Watched before they look: messages during their looks are the next arrival. A deleted queue gets none, and
         * the watcher would report it at once, again and again; its successor is reported without being asked for. */
        if (!cmq_queue_deleted(queue) && cmq_watcher_add(l->watcher, queue) != CMQ_OK) {
            cmq_wake_remember(l, queue);
            cmq_loop_wake(l->loop);
        }
        cmq_pop_waits_open_round(from, topic, queue_id);
    }
    const cmq_topic_entry *entry = cmq_tables_topic(cmq_broker_tables(l), topic);
    /* one at a time where it may take all that a turn has */
    const bool is_costly =
        cmq_holds_programs(l->holds)->used > 0 || (entry != NULL && entry->read_queues > WIDE_QUEUES);
    do {
        uint32_t numbers[KEYS];
        if (*budget == 0 || l->steps_left == 0) return false;
        const uint32_t count = cmq_pop_waits_next_of_round(from, topic, numbers, is_costly ? 1 : KEYS);
        spend(budget, 1);
        for (uint32_t i = 0; i < count; i++) {
            cmq_bump(&l->counters.pop_wakes, 1);
            (void)run_again(l, from, numbers[i], CAUSE_NEWS, false, queue_id, budget);
        }
    } while ((round = cmq_pop_waits_round(from, topic, queue_id)) == CMQ_POP_ROUND_OPEN);
    return true;
}

bool cmq_pop_wake_arrival(cmq_broker_loop *l, cmq_queue *queue, uint32_t *budget)
{
    const cmq_slice topic = {.data = (const uint8_t *)cmq_queue_topic(queue), .bytes = cmq_queue_topic_bytes(queue)};
    /* Notifications first; they are through when the round of the pops is open. */
    if (cmq_pop_waits_round(l->pop_waits, topic, cmq_queue_id(queue)) != CMQ_POP_ROUND_OPEN &&
        !wake_arrival(l, l->notices, queue, budget))
        return false;
    return wake_arrival(l, l->pop_waits, queue, budget);
}

int64_t cmq_pop_due_ns(const cmq_broker_loop *l)
{
    const int64_t pop = cmq_pop_waits_first_deadline(l->pop_waits), notice = cmq_pop_waits_first_deadline(l->notices);
    return pop < notice ? pop : notice;
}

static void wake_due(cmq_broker_loop *l, cmq_pop_waits *from, int64_t now_ns)
{
    uint32_t number, looks = CMQ_POP_LOOKS_PER_TURN;
    l->steps_left = CMQ_STEPS_PER_TURN;
    for (uint32_t budget = ANSWERS_PER_TURN;
         budget > 0 && looks > 0 && l->steps_left > 0 &&
         (number = cmq_pop_waits_due(from, now_ns)) != CMQ_POP_WAIT_NONE;
         budget--) {
        cmq_pop_wait wait;
        cmq_pop_waits_get(from, number, &wait);
        /* It may be due because a blocked queue is free, or its walk goes on. */
        const bool last = now_ns >= end_of(&wait);
        if (run_again(l, from, number, CAUSE_DUE, last, -1, &looks)) cmq_bump(&l->counters.pop_timeouts, last);
    }
}

void cmq_pop_wake_due(cmq_broker_loop *l, int64_t now_ns)
{
    wake_due(l, l->pop_waits, now_ns);
    wake_due(l, l->notices, now_ns);
}

static uint32_t forget_conn(cmq_broker_loop *l, cmq_pop_waits *from, uint32_t slot)
{
    uint32_t forgotten = 0;
    for (uint32_t number; (number = cmq_pop_waits_of_conn(from, slot)) != CMQ_POP_WAIT_NONE; forgotten++)
        remove_wait(l, from, number);
    return forgotten;
}

uint32_t cmq_pop_wake_closed(cmq_broker_loop *l, cmq_conn *conn)
{
    return forget_conn(l, l->pop_waits, cmq_conn_slot(conn)) + forget_conn(l, l->notices, cmq_conn_slot(conn));
}

bool cmq_pop_wake_all(cmq_broker_loop *l, uint32_t *answers)
{
    uint32_t looks = CMQ_POP_LOOKS_PER_TURN;
    cmq_pop_waits *const both[] = {l->pop_waits, l->notices};
    for (int i = 0; i < 2; i++) {
        for (uint32_t number; (number = cmq_pop_waits_of_group(both[i], CMQ_SLICE_NONE)) != CMQ_POP_WAIT_NONE;) {
            if (*answers == 0 || looks == 0 || l->steps_left == 0) return false;
            (*answers)--;
            (void)run_again(l, both[i], number, CAUSE_END, true, -1, &looks);
        }
    }
    return true;
}
