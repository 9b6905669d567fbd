/* cmq_pop_revive: see cmq_pop_revive.h.
 *
 * A step takes each revive queue in turn: records are read in batches into the table of unfinished checkpoints
 * (cmq_pop_unfinished), then its first ones are revived as far as they are complete (cmq_pop_revive_put), in runs that
 * wait for the disk once. Messages that a run has put are marked in the table, so that only the others are retried. The
 * committed offset moves when a run is confirmed.
 *
 * Whether the timer has caught up is asked before the last look at a queue: its deliveries up to then are read.
 */
#include "broker/pop/revive/cmq_pop_revive_internal.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/cmq_assert.h"
#include "broker/delay/cmq_parked.h"
#include "store/record/cmq_property.h"
#include "wire/cmq_command.h"

#define RUN_CHECKPOINTS 1024u      /* revived before the disk is waited for … */
#define RUN_MESSAGES 2048u         /* … and messages of theirs, about */
#define QUIET_MS 3000              /* nothing came for so long: nothing more will, if the timer has caught up */
#define COMPLETE_MS 2000           /* read so far behind its time, a checkpoint has all its acks */
/* Nothing is delivered so long before its time: clocks are set, but not by as much between timer and record. */
#define AHEAD_MS 60000
#define RETRY_MS 1000
#define TOPIC_POLL_MS 100          /* a retry topic, or the timer, is waited for */
#define QUEUES_DEFAULT 8u
#define CHECKPOINTS_DEFAULT 4000000u
#define NEVER INT64_MAX
#define END_OF_TIME_MS (4 * CMQ_POP_MS_MAX)   /* behind everything that is due */

void cmq_pop_revive_poke(cmq_pop_revive *r)
{
    const uint64_t one = 1;
    const ssize_t written = write(r->event_fd, &one, sizeof one);
    CMQ_ASSERT(written == (ssize_t)sizeof one || errno == EAGAIN);
}

static void wake(void *context) { cmq_pop_revive_poke(context); }

/* ---- life ---- */

static cmq_status CMQ_MUST_CHECK copy_texts(cmq_pop_revive *r)
{
    const cmq_slice topic = r->options.log.revive_topic;
    r->revive_topic = strndup((const char *)topic.data, topic.bytes);
    r->broker = strdup(r->options.broker);
    if (r->revive_topic == NULL || r->broker == NULL)
        return cmq_fail(CMQ_ERR_MEMORY, "no memory for the revive service");
    r->options.log.revive_topic = cmq_slice_of_text(r->revive_topic);
    r->options.broker = r->broker;
    r->timer = *r->options.log.timer;
    if (r->timer.delay_ms_max == 0) r->timer.delay_ms_max = CMQ_TIMER_DELAY_MS_MAX;
    r->options.log.timer = &r->timer;
    return CMQ_OK;
}

cmq_status cmq_pop_revive_create(cmq_pop_revive **revive_out, const cmq_pop_revive_options *options)
{
    *revive_out = NULL;
    const uint32_t queues = options->queues > 0 ? options->queues : QUEUES_DEFAULT;
    if (queues > CMQ_POP_REVIVE_QUEUES_MAX)
        return cmq_fail(CMQ_ERR_ARGUMENT, "%u revive queues; at most %u", queues, CMQ_POP_REVIVE_QUEUES_MAX);
    cmq_pop_revive *made = calloc(1, sizeof *made + queues * sizeof made->states[0]);
    if (made == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for the revive service");
    made->options = *options;
    made->options.queues = queues;
    if (options->checkpoints_max == 0) made->options.checkpoints_max = CHECKPOINTS_DEFAULT;
    made->store = options->store;
    made->system_clock = options->clock.now_ms == NULL;
    made->clock = made->system_clock ? cmq_clock_system() : options->clock;
    pthread_mutex_init(&made->mutex, NULL);
    made->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    cmq_status status = made->event_fd < 0 ? cmq_fail_errno(errno, "cannot make the revive service's event") : CMQ_OK;
    if (status == CMQ_OK) status = copy_texts(made);
    for (uint32_t i = 0; i < queues && status == CMQ_OK; i++) {
        made->states[i].next = made->states[i].late = -1;
        status = cmq_pop_unfinished_create(&made->states[i].unfinished);
    }
    if (status == CMQ_OK) status = cmq_tables_reader_create(options->tables, &made->tables);
    if (status == CMQ_OK) status = cmq_watcher_create(&made->watcher, made->store, wake, made);
    if (status != CMQ_OK) {
        cmq_pop_revive_destroy(made);
        return status;
    }
    *revive_out = made;
    return CMQ_OK;
}

void cmq_pop_revive_destroy(cmq_pop_revive *r)
{
    if (r == NULL) return;
    cmq_pop_revive_stop(r);
    cmq_watcher_destroy(r->watcher);
    cmq_tables_reader_destroy(r->tables);
    for (uint32_t i = 0; i < r->options.queues; i++) cmq_pop_unfinished_destroy(r->states[i].unfinished);
    if (r->event_fd >= 0) close(r->event_fd);
    pthread_mutex_destroy(&r->mutex);
    free(r->revive_topic);
    free(r->broker);
    free(r);
}

/* ---- reading a revive queue ---- */

/* No record is of a later time: the timer gives it out when it is all but due. */
static int64_t latest_ms(const cmq_record_view *view, int64_t now_ms)
{
    return (view->store_timestamp_ms > now_ms ? view->store_timestamp_ms : now_ms) + AHEAD_MS;
}

static cmq_status CMQ_MUST_CHECK take_checkpoint(cmq_pop_revive *r, cmq_pop_revive_queue *s,
                                                 const cmq_record_view *view, int64_t offset, int64_t now_ms)
{
    cmq_pop_checkpoint checkpoint;
    if (cmq_pop_checkpoint_parse(view->body, &r->room, &checkpoint) != CMQ_OK) {
        r->seen.damaged++;
        return CMQ_OK;
    }
    checkpoint.revive_offset = offset;
    /* One that says otherwise would have all behind it wait. */
    if (cmq_pop_revive_ms(&checkpoint) > latest_ms(view, now_ms)) {
        checkpoint.invisible_ms = now_ms - checkpoint.pop_ms;
        r->seen.early++;
    }
    r->seen.checkpoints++;
    if (checkpoint.broker.bytes == 0) checkpoint.broker = cmq_slice_of_text(r->broker);
    if (s->end_ms - cmq_pop_revive_ms(&checkpoint) > COMPLETE_MS) s->late = offset;
    return cmq_pop_unfinished_add(s->unfinished, &checkpoint);
}

static void take_acks(cmq_pop_revive *r, cmq_pop_revive_queue *s, const cmq_record_view *view, bool is_batch)
{
    cmq_pop_batch_ack batch = {0};
    const cmq_status status = is_batch ? cmq_pop_batch_ack_parse(view->body, &r->room, &batch)
                                       : cmq_pop_ack_parse(view->body, &r->room, &batch.ack);
    if (status != CMQ_OK) {
        r->seen.damaged++;
        return;
    }
    r->seen.acks++;
    if (batch.ack.broker.bytes == 0) batch.ack.broker = cmq_slice_of_text(r->broker);
    bool found = false;
    if (!is_batch) found = cmq_pop_unfinished_ack(s->unfinished, &batch.ack, batch.ack.offset);
    for (int64_t offset; is_batch && cmq_pop_next_offset(&batch.list, &offset);)
        found |= cmq_pop_unfinished_ack(s->unfinished, &batch.ack, offset);
    r->seen.acks_late += !found;
}

static cmq_status CMQ_MUST_CHECK take_record(cmq_pop_revive *r, cmq_pop_revive_queue *s, const cmq_record_view *view,
                                             int64_t offset, int64_t now_ms)
{
    cmq_slice tag, text;
    int64_t deliver_ms;
    cmq_status status = CMQ_OK;
    (void)cmq_property_find(view->properties, CMQ_NAME("TAGS"), &tag);
    if (cmq_slice_equal(tag, CMQ_NAME(CMQ_POP_TAG_CHECKPOINT))) status = take_checkpoint(r, s, view, offset, now_ms);
    else if (cmq_slice_equal(tag, CMQ_NAME(CMQ_POP_TAG_ACK))) take_acks(r, s, view, false);
    else if (cmq_slice_equal(tag, CMQ_NAME(CMQ_POP_TAG_BATCH_ACK))) take_acks(r, s, view, true);
    else r->seen.damaged++;
    if (status != CMQ_OK) return status;
    if (!cmq_property_find(view->properties, CMQ_NAME("TIMER_DELIVER_MS"), &text) ||
        cmq_field_i64(text, &deliver_ms) != CMQ_OK)
        return CMQ_OK;
    if (deliver_ms > s->end_ms && deliver_ms <= latest_ms(view, now_ms)) s->end_ms = deliver_ms;
    return CMQ_OK;
}

/* Read the next records; *count_out 0: there are none for now. */
static cmq_status CMQ_MUST_CHECK read_batch(cmq_pop_revive *r, cmq_pop_revive_queue *s, cmq_queue *queue,
                                            uint32_t *count_out)
{
    int64_t next;
    const int64_t now_ms = cmq_clock_now_ms(&r->clock), confirmed = cmq_store_confirmed(r->store),
                  min = cmq_queue_min(queue);
    *count_out = 0;
    if (s->next < min) s->next = min;
    cmq_status status = cmq_queue_read(queue, s->next, confirmed, r->units, CMQ_POP_REVIVE_BATCH, count_out, &next);
    if (status != CMQ_OK) return status;
    const uint32_t count = *count_out;
    for (uint32_t i = 0; i < count && status == CMQ_OK; i++) {
        cmq_found_batch batch = {.items = r->items, .capacity = 1};
        cmq_record_view view;
        status = cmq_store_read_physical(r->store, r->units[i].phy, &batch);
        if (status == CMQ_OK)
            status =
                cmq_record_parse(r->items[0].record, r->items[0].record_bytes, r->items[0].physical_offset, 0, &view);
        if (status == CMQ_OK) status = take_record(r, s, &view, r->units[i].offset, now_ms);
        else if (cmq_parked_is_hopeless(status)) {
            r->seen.damaged++;
            status = CMQ_OK;
        }
        cmq_found_batch_release(&batch);
        if (status == CMQ_OK) s->next = r->units[i].offset + 1;
    }
    if (status == CMQ_OK) s->next = next;
    return status;
}

/* ---- runs ---- */

/* The first `count` checkpoints are done, and confirmed: notify, forget, commit. */
static cmq_status CMQ_MUST_CHECK finish_run(cmq_pop_revive *r, cmq_pop_revive_queue *s, uint32_t count)
{
    const cmq_offset_key key = {.group = cmq_slice_of_text(CMQ_POP_REVIVE_GROUP),
                                .topic = r->options.log.revive_topic,
                                .queue_id = (int32_t)(s - r->states)};
    int64_t last = -1;
    for (uint32_t i = 0; i < count; i++) {
        int32_t diffs[CMQ_POP_MESSAGES_MAX];
        cmq_pop_checkpoint of;
        cmq_slice normal;
        cmq_pop_unfinished_at(s->unfinished, 0, diffs, &of);
        last = of.revive_offset;
        const uint32_t revived = cmq_pop_unfinished_revived(s->unfinished, 0);
        if (revived > 0 && r->options.calls.revived != NULL &&
            cmq_pop_normal_topic(of.topic, of.group, &normal) == CMQ_OK) {
            const cmq_pop_revived notice = {of.topic,        of.group, normal,    of.queue_id,
                                            of.start_offset, revived,  of.pop_ms, of.invisible_ms};
            r->options.calls.revived(r->options.calls.context, &notice);
        }
        cmq_pop_unfinished_drop(s->unfinished);
    }
    const cmq_status status = count > 0 ? cmq_offsets_commit(r->options.offsets, &key, last) : CMQ_OK;
    return status == CMQ_AGAIN ? CMQ_OK : status;
}

/* Everything up to end_ms was read, is what the latest deliver time says, and the timer delivers in order. A checkpoint
 * that came late (delivered again after a kill, say) has its acks behind it yet: for it, and what is before it, the
 * timer must have caught up, too. */
static bool is_complete(const cmq_pop_revive_queue *s, const cmq_pop_checkpoint *of, int64_t end_ms, bool caught_up)
{
    return end_ms - cmq_pop_revive_ms(of) > COMPLETE_MS && (caught_up || of->revive_offset > s->late);
}

/* Revive a run of checkpoints that are complete when everything up to end_ms was read. *more_out: there may be more. */
static cmq_status CMQ_MUST_CHECK revive_run(cmq_pop_revive *r, cmq_pop_revive_queue *s, int64_t end_ms, int64_t now_ms,
                                            bool caught_up, bool *more_out)
{
    const uint32_t all = cmq_pop_unfinished_count(s->unfinished);
    const uint64_t before = r->seen.revived;
    uint32_t done = 0;
    int64_t end = 0;
    cmq_status status = CMQ_OK;
    *more_out = false;
    cmq_tables_enter(r->tables);
    while (done < all && done < RUN_CHECKPOINTS && r->seen.revived - before < RUN_MESSAGES) {
        int32_t diffs[CMQ_POP_MESSAGES_MAX];
        cmq_pop_checkpoint of;
        cmq_pop_unfinished_at(s->unfinished, done, diffs, &of);
        const bool forced = all - done > r->options.checkpoints_max;
        const bool complete = is_complete(s, &of, end_ms, caught_up);
        if (!forced && !complete) break;
        status = cmq_pop_revive_put(r, s, done, now_ms, &end);
        if (status != CMQ_OK) break;
        r->seen.early += forced && !complete;
        done++;
        *more_out = done < all;
    }
    cmq_tables_leave(r->tables);
    const cmq_status durable = end > 0 ? cmq_store_wait(r->store, end) : CMQ_OK;
    const cmq_status finished = durable == CMQ_OK ? finish_run(r, s, done) : durable;
    if (finished != CMQ_OK) return finished;
    if (cmq_pop_unfinished_count(s->unfinished) == 0) s->end_ms = 0;
    return status;
}

static cmq_status CMQ_MUST_CHECK revive_complete(cmq_pop_revive *r, cmq_pop_revive_queue *s, int64_t end_ms,
                                                 int64_t now_ms, bool caught_up)
{
    bool more = true;
    cmq_status status = CMQ_OK;
    while (status == CMQ_OK && more && !atomic_load_explicit(&r->stopping, memory_order_acquire))
        status = revive_run(r, s, end_ms, now_ms, caught_up, &more);
    return status;
}

/* ---- a queue ---- */

/* The queue was deleted and re-created: messages read from its former life are revived now, as no ack of them will
 * be read any more. */
static cmq_status CMQ_MUST_CHECK restart_queue(cmq_pop_revive *r, cmq_pop_revive_queue *s, int64_t now_ms)
{
    const cmq_status status = revive_complete(r, s, END_OF_TIME_MS, now_ms, true);
    if (status != CMQ_OK || cmq_pop_unfinished_count(s->unfinished) > 0) return status;
    (void)cmq_offsets_remove(r->options.offsets, cmq_slice_of_text(CMQ_POP_REVIVE_GROUP), r->options.log.revive_topic);
    s->next = s->late = -1;
    s->queue = NULL;
    return CMQ_OK;
}

/* Somebody may have moved the committed offset on. One behind the queue's end is of another life of it, or of a log
 * that lost its end: all that is there is done, and what comes is not. */
static cmq_status CMQ_MUST_CHECK follow_committed(const cmq_pop_revive *r, cmq_pop_revive_queue *s, int64_t max)
{
    const cmq_offset_key key = {.group = cmq_slice_of_text(CMQ_POP_REVIVE_GROUP),
                                .topic = r->options.log.revive_topic,
                                .queue_id = (int32_t)(s - r->states)};
    int64_t committed = cmq_offsets_query(r->options.offsets, &key);
    int32_t diffs[CMQ_POP_MESSAGES_MAX];
    cmq_pop_checkpoint of;
    cmq_status status = CMQ_OK;
    if (committed >= max) {
        committed = max - 1;
        if (max > 0) status = cmq_offsets_commit(r->options.offsets, &key, committed);
        /* all queues': read again, they lose nothing */
        else (void)cmq_offsets_remove(r->options.offsets, key.group, key.topic);
    }
    if (s->next <= committed) s->next = committed + 1;
    while (cmq_pop_unfinished_count(s->unfinished) > 0) {
        cmq_pop_unfinished_at(s->unfinished, 0, diffs, &of);
        if (of.revive_offset > committed) break;
        cmq_pop_unfinished_drop(s->unfinished);
    }
    return status == CMQ_AGAIN ? CMQ_OK : status;
}

/* When to look at the queue again, nothing being left to read. */
static int64_t due_of(const cmq_pop_revive_queue *s, int64_t now_ms)
{
    int32_t diffs[CMQ_POP_MESSAGES_MAX];
    cmq_pop_checkpoint first;
    if (cmq_pop_unfinished_count(s->unfinished) == 0) return NEVER;
    cmq_pop_unfinished_at(s->unfinished, 0, diffs, &first);
    const int64_t quiet_ms = s->end_ms + QUIET_MS + 1, complete_ms = cmq_pop_revive_ms(&first) + COMPLETE_MS + 1;
    const int64_t due_ms = quiet_ms > complete_ms ? quiet_ms : complete_ms;
    return due_ms > now_ms ? due_ms : now_ms + TOPIC_POLL_MS;
}

/* Read what came and revive what is complete; the queue is there. */
static cmq_status CMQ_MUST_CHECK read_and_revive(cmq_pop_revive *r, cmq_pop_revive_queue *s, cmq_queue *queue,
                                                 bool caught_up, int64_t now_ms)
{
    uint32_t count = 1;
    cmq_status status = cmq_watcher_add(r->watcher, queue);
    while (status == CMQ_OK && count > 0 && !atomic_load_explicit(&r->stopping, memory_order_acquire)) {
        status = read_batch(r, s, queue, &count);
        if (status == CMQ_OK) status = revive_complete(r, s, s->end_ms, now_ms, caught_up && count == 0);
    }
    const int64_t max = cmq_queue_max(queue, cmq_store_confirmed(r->store));
    r->seen.behind_now += max > s->next ? (uint64_t)(max - s->next) : 0;
    if (status == CMQ_OK && count == 0 && caught_up && s->end_ms != 0 && now_ms - s->end_ms > QUIET_MS)
        status = revive_complete(r, s, now_ms, now_ms, true);
    return status;
}

static cmq_status CMQ_MUST_CHECK look_at_queue(cmq_pop_revive *r, cmq_pop_revive_queue *s, int64_t *due_ms_out)
{
    const int64_t now_ms = cmq_clock_now_ms(&r->clock);
    const bool caught_up = r->options.calls.caught_up == NULL || r->options.calls.caught_up(r->options.calls.context);
    cmq_queue *queue =
        cmq_queues_find(cmq_store_queues(r->store), r->options.log.revive_topic, (int32_t)(s - r->states));
    const int64_t end = queue != NULL ? cmq_queue_max(queue, cmq_store_confirmed(r->store)) : 0;
    const bool is_another = s->queue != NULL && s->queue != queue;
    cmq_status status = is_another || s->next > end ? restart_queue(r, s, now_ms) : CMQ_OK;
    if (queue != NULL && (s->queue == NULL || s->queue == queue)) {   /* else the watcher reports it when it is there */
        s->queue = queue;
        if (status == CMQ_OK) status = follow_committed(r, s, end);
        if (status == CMQ_OK) status = read_and_revive(r, s, queue, caught_up, now_ms);
    }
    *due_ms_out = due_of(s, now_ms);
    if (status != CMQ_AGAIN) return status;
    *due_ms_out = now_ms + TOPIC_POLL_MS;
    return CMQ_OK;
}

static void forget_arrivals(cmq_pop_revive *r)
{
    cmq_queue *queues[64];
    /* every queue is looked at anyway */
    while (cmq_watcher_take(r->watcher, queues, sizeof queues / sizeof queues[0]) > 0) continue;
}

/* ---- counters ---- */

static void count_unfinished(const cmq_pop_revive *r, int64_t now_ms, cmq_pop_revive_counters *into)
{
    into->unfinished_now = 0;
    into->lag_ms = 0;
    for (uint32_t i = 0; i < r->options.queues; i++) {
        const cmq_pop_unfinished *unfinished = r->states[i].unfinished;
        int32_t diffs[CMQ_POP_MESSAGES_MAX];
        cmq_pop_checkpoint first;
        into->unfinished_now += cmq_pop_unfinished_count(unfinished);
        if (cmq_pop_unfinished_count(unfinished) == 0) continue;
        cmq_pop_unfinished_at(unfinished, 0, diffs, &first);
        const int64_t lag_ms = now_ms - cmq_pop_revive_ms(&first);
        if (lag_ms > into->lag_ms) into->lag_ms = lag_ms;
    }
}

static void tell_counters(cmq_pop_revive *r, cmq_status status)
{
    cmq_pop_revive_counters *into = &r->counters;
    pthread_mutex_lock(&r->mutex);
    into->state = status == CMQ_OK           ? CMQ_POP_REVIVE_RUNNING
                  : status == CMQ_ERR_FENCED ? CMQ_POP_REVIVE_FENCED
                                             : CMQ_POP_REVIVE_RETRYING;
    into->status = status;
    into->checkpoints += r->seen.checkpoints;
    into->acks += r->seen.acks;
    into->acks_late += r->seen.acks_late;
    into->revived += r->seen.revived;
    into->put_again += r->seen.put_again;
    into->gone += r->seen.gone;
    into->skipped += r->seen.skipped;
    into->damaged += r->seen.damaged;
    into->early += r->seen.early;
    into->rounds++;
    into->behind_now = r->seen.behind_now;
    count_unfinished(r, cmq_clock_now_ms(&r->clock), into);
    pthread_mutex_unlock(&r->mutex);
    r->seen = (cmq_pop_revive_counters){0};
}

void cmq_pop_revive_count(cmq_pop_revive *r, cmq_pop_revive_counters *counters_out)
{
    pthread_mutex_lock(&r->mutex);
    *counters_out = r->counters;
    pthread_mutex_unlock(&r->mutex);
}

bool cmq_pop_revive_take_wanted(cmq_pop_revive *r, uint8_t name_out[CMQ_POP_TOPIC_BYTES_MAX], size_t *bytes_out)
{
    pthread_mutex_lock(&r->mutex);
    const bool found = r->wanted_count > 0;
    if (found) {
        const cmq_pop_wanted *last = &r->wanted[--r->wanted_count];
        memcpy(name_out, last->name, last->bytes);
        *bytes_out = last->bytes;
    }
    pthread_mutex_unlock(&r->mutex);
    return found;
}

/* ---- all queues ---- */

cmq_status cmq_pop_revive_step(cmq_pop_revive *r, int64_t *next_due_ms_out)
{
    cmq_status failed = CMQ_OK;
    *next_due_ms_out = NEVER;
    forget_arrivals(r);
    for (uint32_t i = 0; i < r->options.queues && failed != CMQ_ERR_FENCED; i++) {
        int64_t due_ms;
        const cmq_status status = look_at_queue(r, &r->states[i], &due_ms);
        if (status != CMQ_OK) failed = status;
        if (due_ms < *next_due_ms_out) *next_due_ms_out = due_ms;
    }
    if (failed == CMQ_ERR_FENCED) *next_due_ms_out = NEVER;
    else if (failed != CMQ_OK) *next_due_ms_out = cmq_clock_now_ms(&r->clock) + RETRY_MS;
    tell_counters(r, failed);
    return failed;
}

/* ---- the thread ---- */

static void sleep_until(const cmq_pop_revive *r, int64_t due_ms)
{
    struct pollfd ready = {.fd = r->event_fd, .events = POLLIN};
    uint64_t count;
    int timeout_ms = -1;
    if (r->system_clock && due_ms != NEVER) {
        const int64_t left_ms = due_ms - cmq_clock_now_ms(&r->clock);
        /* a clock that is set is noticed within a second */
        timeout_ms = left_ms <= 0 ? 0 : left_ms > RETRY_MS ? RETRY_MS : (int)left_ms;
    }
    while (poll(&ready, 1, timeout_ms) < 0) CMQ_ASSERT(errno == EINTR);
    const ssize_t drained = read(r->event_fd, &count, sizeof count);
    CMQ_ASSERT(drained == (ssize_t)sizeof count || errno == EAGAIN);
}

static void *run(void *argument)
{
    cmq_pop_revive *r = argument;
    while (!atomic_load_explicit(&r->stopping, memory_order_acquire)) {
        int64_t due_ms;
        const cmq_status status = cmq_pop_revive_step(r, &due_ms);
        if (status == CMQ_ERR_FENCED) break;
        if (!atomic_load_explicit(&r->stopping, memory_order_acquire)) sleep_until(r, due_ms);
    }
    return NULL;
}

cmq_status cmq_pop_revive_start(cmq_pop_revive *r)
{
    CMQ_ASSERT(!r->started);
    atomic_store_explicit(&r->stopping, false, memory_order_release);
    if (r->options.manual) return CMQ_OK;
    const int failed = pthread_create(&r->thread, NULL, run, r);
    if (failed != 0) return cmq_fail(CMQ_ERR_MEMORY, "cannot start the revive service's thread: %s", strerror(failed));
    r->started = true;
    return CMQ_OK;
}

void cmq_pop_revive_stop(cmq_pop_revive *r)
{
    atomic_store_explicit(&r->stopping, true, memory_order_release);
    if (r->started) {
        cmq_pop_revive_poke(r);
        pthread_join(r->thread, NULL);
        r->started = false;
    }
    pthread_mutex_lock(&r->mutex);
    if (r->counters.state != CMQ_POP_REVIVE_FENCED) r->counters.state = CMQ_POP_REVIVE_IDLE;
    pthread_mutex_unlock(&r->mutex);
}
