/* cmq_delay: see cmq_delay.h. Records are cmq_delay_record's.
 *
 * A level's messages become due in the order in which they were parked, as all wait equally long; so only the first of
 * each level counts, and a look over the levels says when to look again. A level that has nothing to come is watched
 * (cmq_watch).
 *
 * The thread sleeps on a cmq_alarm until the first is due, something is parked, stop, or poke.
 *
 * Progress and mark: a batch is appended, then waited for, then counted. Meanwhile a mark names the end of the log from
 * before it.
 */
#include "broker/delay/cmq_delay.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/cmq_assert.h"
#include "broker/delay/cmq_alarm.h"
#include "broker/delay/cmq_delay_record.h"
#include "broker/delay/cmq_parked.h"
#include "broker/tables/cmq_system_topics.h"
#include "store/follow/cmq_watch.h"

#define BATCH_UNITS 2048u /* delivered before the disk is waited for: 256 left it waiting nine tenths of the time */
#define RETRY_MS 1000
#define VERSION_STEP 200           /* updates per version: upstream's delayOffsetUpdateVersionStep */
#define RECOVER_RECORDS 256u       /* per step of a walk over the log */
#define NEVER CMQ_ALARM_NEVER

struct cmq_delay {
    cmq_store *store;
    cmq_clock clock;
    const cmq_delay_levels *levels;
    cmq_watcher *watcher;
    cmq_tables_reader *tables;         /* NULL: not known */
    cmq_alarm alarm;
    pthread_t thread;
    bool threaded, started;            /* started: there is a thread to join */
    _Atomic bool stopping;

    pthread_mutex_t mutex;             /* guards the fields below */
    int64_t next[CMQ_DELAY_LEVELS_MAX + 1];
    bool seen[CMQ_DELAY_LEVELS_MAX + 1];   /* something was ever parked there */
    int64_t updates;
    bool in_batch;
    int64_t batch_start;               /* of the log, when the current batch began */
    cmq_delay_counters counters;

    /* The thread's, or who calls step. */
    cmq_unit units[BATCH_UNITS];
    uint8_t scratch[CMQ_DELAY_SCRATCH_BYTES];
};

static cmq_slice schedule_topic(void) { return cmq_slice_of_text(CMQ_TOPIC_SCHEDULE); }

void cmq_delay_poke(cmq_delay *delay) { cmq_alarm_poke(&delay->alarm); }

static void wake(void *context) { cmq_delay_poke(context); }

/* ---- life ---- */

cmq_status cmq_delay_create(cmq_delay **delay_out, const cmq_delay_options *options)
{
    *delay_out = NULL;
    cmq_delay *made = calloc(1, sizeof *made);
    if (made == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for the delay service");
    made->store = options->store;
    made->clock = options->clock.now_ms == NULL ? cmq_clock_system() : options->clock;
    made->levels = cmq_store_delay_levels(options->store);
    made->threaded = !options->manual;
    pthread_mutex_init(&made->mutex, NULL);
    cmq_status status = cmq_alarm_open(&made->alarm, options->clock.now_ms == NULL);
    if (status == CMQ_OK && options->tables != NULL) status = cmq_tables_reader_create(options->tables, &made->tables);
    if (status == CMQ_OK) status = cmq_watcher_create(&made->watcher, made->store, wake, made);
    if (status != CMQ_OK) {
        cmq_delay_destroy(made);
        return status;
    }
    *delay_out = made;
    return CMQ_OK;
}

void cmq_delay_destroy(cmq_delay *delay)
{
    if (delay == NULL) return;
    cmq_delay_stop(delay);
    cmq_watcher_destroy(delay->watcher);
    cmq_tables_reader_destroy(delay->tables);
    cmq_alarm_close(&delay->alarm);
    pthread_mutex_destroy(&delay->mutex);
    free(delay);
}

/* ---- progress ---- */

static void set_next(cmq_delay *delay, int32_t level, int64_t next)
{
    pthread_mutex_lock(&delay->mutex);
    if (next != delay->next[level]) delay->updates++;
    delay->next[level] = next;
    pthread_mutex_unlock(&delay->mutex);
}

/* With the mutex. */
static void read_progress(const cmq_delay *delay, cmq_delay_progress *progress_out)
{
    progress_out->level_max = delay->levels->level_max;
    progress_out->version = delay->updates / VERSION_STEP;
    progress_out->offsets[0] = -1;
    for (int32_t level = 1; level <= CMQ_DELAY_LEVELS_MAX; level++)
        progress_out->offsets[level] = level <= progress_out->level_max && delay->seen[level] ? delay->next[level] : -1;
}

void cmq_delay_progress_of(cmq_delay *delay, cmq_delay_progress *progress_out)
{
    pthread_mutex_lock(&delay->mutex);
    read_progress(delay, progress_out);
    pthread_mutex_unlock(&delay->mutex);
}

void cmq_delay_mark_of(cmq_delay *delay, cmq_delay_mark *mark_out)
{
    pthread_mutex_lock(&delay->mutex);
    mark_out->log_end = delay->in_batch ? delay->batch_start : cmq_store_confirmed(delay->store);
    read_progress(delay, &mark_out->progress);
    pthread_mutex_unlock(&delay->mutex);
}

cmq_status cmq_delay_set_progress(cmq_delay *delay, int32_t level, int64_t offset)
{
    if (level < 1 || level > delay->levels->level_max)
        return cmq_fail(CMQ_ERR_ARGUMENT, "there is no delay level %d; messageDelayLevel has %d", (int)level,
                        (int)delay->levels->level_max);
    if (offset < 0)
        return cmq_fail(CMQ_ERR_ARGUMENT, "offset %lld of delay level %d is negative", (long long)offset, (int)level);
    pthread_mutex_lock(&delay->mutex);
    delay->next[level] = offset;
    delay->seen[level] = true;
    pthread_mutex_unlock(&delay->mutex);
    return CMQ_OK;
}

void cmq_delay_count(cmq_delay *delay, cmq_delay_counters *counters_out)
{
    pthread_mutex_lock(&delay->mutex);
    *counters_out = delay->counters;
    pthread_mutex_unlock(&delay->mutex);
}

/* ---- one record ---- */

static void note_undelivered(cmq_delay *delay)
{
    pthread_mutex_lock(&delay->mutex);
    delay->counters.undelivered++;
    pthread_mutex_unlock(&delay->mutex);
}

/* Deliver one unit's record, without waiting for the disk. *end_out: of its delivery; not touched when it was passed
 * over. */
static cmq_status CMQ_MUST_CHECK deliver(cmq_delay *delay, const cmq_unit *unit, int64_t *end_out, bool *passed_out)
{
    cmq_parked_record parked;
    cmq_slice topic;
    int32_t queue_id;
    cmq_append append;
    cmq_appended appended;
    cmq_status status = cmq_parked_read(delay->store, unit->phy, &parked);
    if (status == CMQ_OK) status = cmq_delay_target(&parked.view, &topic, &queue_id);
    if (status == CMQ_OK && !cmq_topic_takes(delay->tables, topic, queue_id)) {
        note_undelivered(delay);
        topic = cmq_slice_of_text(CMQ_TOPIC_UNDELIVERED);
        queue_id = 0;
    }
    if (status == CMQ_OK) status = cmq_delay_make_append(&parked.view, topic, queue_id, delay->scratch, &append);
    if (status == CMQ_OK) status = cmq_store_append(delay->store, &append, &appended);
    if (status == CMQ_OK) *end_out = appended.end;
    cmq_parked_release(&parked);
    *passed_out = cmq_parked_is_hopeless(status);
    return *passed_out ? CMQ_OK : status;
}

/* ---- one level ---- */

/* The result of a look at a level. */
typedef struct look {
    cmq_status status;
    int64_t due_ms;             /* when to look again */
    bool more;                  /* there is more that is due now */
} look;

/* When a unit is due. One that is further away than its level waits was parked under other levels or another clock, and
 * is due now. */
static int64_t due_of(const cmq_delay *delay, int32_t level, const cmq_unit *unit, int64_t now_ms)
{
    return unit->tags_code > now_ms + delay->levels->delay_ms[level] ? now_ms : unit->tags_code;
}

/* The next units of the level from where its progress, moved into the queue, stands. */
static cmq_status CMQ_MUST_CHECK read_units(cmq_delay *delay, int32_t level, cmq_queue *queue, int64_t *from_out,
                                            uint32_t *count_out)
{
    const int64_t confirmed = cmq_store_confirmed(delay->store);
    const int64_t min = cmq_queue_min(queue), max = cmq_queue_max(queue, confirmed);
    int64_t next;
    pthread_mutex_lock(&delay->mutex);
    int64_t from = delay->next[level];
    if (max > 0) delay->seen[level] = true;
    pthread_mutex_unlock(&delay->mutex);
    if (from < min) from = min;
    if (from > max) from = max;
    set_next(delay, level, from);
    const cmq_status status = cmq_queue_read(queue, from, confirmed, delay->units, BATCH_UNITS, count_out, &next);
    if (status == CMQ_OK && *count_out == 0) set_next(delay, level, from = next);   /* nothing but fillers */
    *from_out = from;
    return status;
}

static void begin_batch(cmq_delay *delay)
{
    pthread_mutex_lock(&delay->mutex);
    delay->in_batch = true;
    delay->batch_start = cmq_store_confirmed(delay->store);
    pthread_mutex_unlock(&delay->mutex);
}

/* The batch is confirmed up to `next`. */
static void end_batch(cmq_delay *delay, int32_t level, int64_t next, uint64_t delivered, uint64_t passed)
{
    pthread_mutex_lock(&delay->mutex);
    delay->in_batch = false;
    if (next > delay->next[level]) {
        delay->next[level] = next;
        delay->updates += (int64_t)(delivered + passed);
    }
    delay->counters.delivered += delivered;
    delay->counters.skipped += passed;
    pthread_mutex_unlock(&delay->mutex);
}

/* Deliver the first `count` units as far as it goes. */
static cmq_status CMQ_MUST_CHECK deliver_batch(cmq_delay *delay, int32_t level, int64_t from, uint32_t count)
{
    int64_t end = 0, next = from;
    uint64_t delivered = 0, passed = 0;
    cmq_status status = CMQ_OK;
    begin_batch(delay);
    for (uint32_t i = 0; i < count; i++) {
        bool pass;
        status = deliver(delay, &delay->units[i], &end, &pass);
        if (status != CMQ_OK) break;
        next = delay->units[i].offset + 1;
        if (pass) passed++;
        else delivered++;
    }
    const cmq_status durable = end > 0 ? cmq_store_wait(delay->store, end) : CMQ_OK;
    if (durable != CMQ_OK) delivered = passed = 0;
    end_batch(delay, level, durable == CMQ_OK ? next : from, delivered, passed);
    return durable != CMQ_OK ? durable : status;
}

/* Nothing left: watch the queue, then look once more. */
static cmq_status CMQ_MUST_CHECK watch_level(cmq_delay *delay, int32_t level, cmq_queue *queue, int64_t *from_out,
                                             uint32_t *count_out)
{
    const cmq_status status = cmq_watcher_add(delay->watcher, queue);
    return status == CMQ_OK ? read_units(delay, level, queue, from_out, count_out) : status;
}

static look look_at_level(cmq_delay *delay, int32_t level)
{
    look seen = {.due_ms = NEVER};
    cmq_queue *queue = cmq_queues_find(cmq_store_queues(delay->store), schedule_topic(), level - 1);
    uint32_t count, due = 0;
    int64_t from;
    if (queue == NULL) return seen;   /* the watcher reports it when it is there */
    seen.status = read_units(delay, level, queue, &from, &count);
    if (seen.status == CMQ_OK && count == 0) seen.status = watch_level(delay, level, queue, &from, &count);
    if (seen.status != CMQ_OK || count == 0) return seen;
    const int64_t now_ms = cmq_clock_now_ms(&delay->clock);
    while (due < count && due_of(delay, level, &delay->units[due], now_ms) <= now_ms) due++;
    if (due < count) seen.due_ms = due_of(delay, level, &delay->units[due], now_ms);
    seen.more = due == count;   /* or it is watched at the next look */
    if (due > 0) seen.status = deliver_batch(delay, level, from, due);
    return seen;
}

/* ---- all levels ---- */

static void forget_arrivals(cmq_delay *delay)
{
    cmq_queue *queues[64];
    /* every level is looked at anyway */
    while (cmq_watcher_take(delay->watcher, queues, sizeof queues / sizeof queues[0]) > 0) continue;
}

/* A batch of each level in turn until nothing is due. A failure in one level (a damaged queue) does not stop the
 * others; the last one is returned. */
static cmq_status CMQ_MUST_CHECK deliver_due(cmq_delay *delay, int64_t *next_due_ms_out)
{
    cmq_status failed = CMQ_OK;
    bool more = true;
    forget_arrivals(delay);
    while (more && failed != CMQ_ERR_FENCED && !atomic_load_explicit(&delay->stopping, memory_order_acquire)) {
        *next_due_ms_out = NEVER;
        more = false;
        failed = CMQ_OK;
        for (int32_t level = 1; level <= delay->levels->level_max; level++) {
            const look seen = look_at_level(delay, level);
            if (seen.status != CMQ_OK) failed = seen.status;
            else more |= seen.more;
            if (seen.due_ms < *next_due_ms_out) *next_due_ms_out = seen.due_ms;
        }
    }
    return failed;
}

cmq_status cmq_delay_step(cmq_delay *delay, int64_t *next_due_ms_out)
{
    *next_due_ms_out = NEVER;
    const cmq_status status = deliver_due(delay, next_due_ms_out);
    if (status == CMQ_ERR_FENCED) *next_due_ms_out = NEVER;
    else if (status != CMQ_OK) *next_due_ms_out = cmq_clock_now_ms(&delay->clock) + RETRY_MS;
    pthread_mutex_lock(&delay->mutex);
    delay->counters.state = status == CMQ_OK           ? CMQ_DELAY_RUNNING
                            : status == CMQ_ERR_FENCED ? CMQ_DELAY_FENCED
                                                       : CMQ_DELAY_RETRYING;
    delay->counters.status = status;
    delay->counters.rounds++;
    pthread_mutex_unlock(&delay->mutex);
    return status;
}

/* ---- the thread ---- */

static void *run(void *argument)
{
    cmq_delay *delay = argument;
    while (!atomic_load_explicit(&delay->stopping, memory_order_acquire)) {
        int64_t due_ms;
        const cmq_status status = cmq_delay_step(delay, &due_ms);
        if (status == CMQ_ERR_FENCED) break;
        if (!atomic_load_explicit(&delay->stopping, memory_order_acquire)) cmq_alarm_sleep(&delay->alarm, due_ms);
    }
    return NULL;
}

cmq_status cmq_delay_start(cmq_delay *delay)
{
    CMQ_ASSERT(!delay->started);
    atomic_store_explicit(&delay->stopping, false, memory_order_release);
    pthread_mutex_lock(&delay->mutex);
    delay->counters.state = CMQ_DELAY_RUNNING;
    pthread_mutex_unlock(&delay->mutex);
    if (!delay->threaded) return CMQ_OK;
    const int failed = pthread_create(&delay->thread, NULL, run, delay);
    if (failed != 0) return cmq_fail(CMQ_ERR_MEMORY, "cannot start the delay service's thread: %s", strerror(failed));
    delay->started = true;
    return CMQ_OK;
}

void cmq_delay_stop(cmq_delay *delay)
{
    atomic_store_explicit(&delay->stopping, true, memory_order_release);
    if (delay->started) {
        cmq_delay_poke(delay);
        pthread_join(delay->thread, NULL);
        delay->started = false;
    }
    pthread_mutex_lock(&delay->mutex);
    if (delay->counters.state != CMQ_DELAY_FENCED) delay->counters.state = CMQ_DELAY_IDLE;
    pthread_mutex_unlock(&delay->mutex);
}

/* ---- recovery ---- */

/* Does the first parked record at or behind *at that can be delivered at all have this delivery? Then *at is moved
 * behind it. */
static cmq_status CMQ_MUST_CHECK match(const cmq_delay *delay, cmq_queue *queue, const cmq_record_view *record,
                                       int64_t *at, bool *found_out)
{
    const int64_t confirmed = cmq_store_confirmed(delay->store);
    int64_t from = *at, next;
    uint32_t count;
    *found_out = false;
    for (;; from = next) {
        cmq_unit unit;
        cmq_parked_record parked;
        cmq_slice topic;
        int32_t queue_id;
        cmq_status status = cmq_queue_read(queue, from, confirmed, &unit, 1, &count, &next);
        if (status != CMQ_OK || count == 0) return status;
        status = cmq_parked_read(delay->store, unit.phy, &parked);
        if (status == CMQ_OK) status = cmq_delay_target(&parked.view, &topic, &queue_id);
        const bool deliverable = status == CMQ_OK;
        *found_out = deliverable && cmq_delay_is_delivery(&parked.view, record);
        cmq_parked_release(&parked);
        if (*found_out) *at = unit.offset + 1;
        if (deliverable || !cmq_parked_is_hopeless(status)) return deliverable ? CMQ_OK : status;
    }
}

static cmq_status CMQ_MUST_CHECK recover_record(const cmq_delay *delay, const cmq_found *found, int64_t next[],
                                                int64_t *deliveries)
{
    cmq_record_view view;
    bool matched;
    if (cmq_record_parse(found->record, found->record_bytes, found->physical_offset, 0, &view) != CMQ_OK) return CMQ_OK;
    const int32_t level = cmq_delay_delivered_level(delay->levels, &view);
    cmq_queue *queue = level == 0 ? NULL : cmq_queues_find(cmq_store_queues(delay->store), schedule_topic(), level - 1);
    if (queue == NULL) return CMQ_OK;
    const cmq_status status = match(delay, queue, &view, &next[level], &matched);
    *deliveries += matched;
    return status;
}

cmq_status cmq_delay_recover(cmq_delay *delay, int64_t log_end, int64_t *deliveries_out)
{
    cmq_store_info info;
    cmq_reader *reader = NULL;
    cmq_found items[RECOVER_RECORDS];
    int64_t next[CMQ_DELAY_LEVELS_MAX + 1];
    *deliveries_out = 0;
    cmq_status status = cmq_store_info_of(delay->store, &info);
    if (status == CMQ_OK && (log_end < info.log_min || log_end > info.log_end))
        status = cmq_fail_at(CMQ_ERR_OFFSET, log_end,
                             "the log holds [%lld, %lld), and the mark of the delay levels is at %lld",
                             (long long)info.log_min, (long long)info.log_end, (long long)log_end);
    const cmq_read_options options = {.has_start_physical = true, .start_physical = log_end};
    if (status == CMQ_OK) status = cmq_reader_open(delay->store, &options, &reader);
    if (status != CMQ_OK) return status;
    memcpy(next, delay->next, sizeof next);
    bool end = false;
    int64_t deliveries = 0;
    while (status == CMQ_OK && !end) {
        cmq_found_batch batch = {.items = items, .capacity = RECOVER_RECORDS};
        status = cmq_reader_next(reader, &batch, &end);
        if (status == CMQ_ERR_CORRUPT) status = CMQ_OK;   /* the reader continues behind the damage */
        else if (batch.count == 0) end = true;
        for (uint32_t i = 0; i < batch.count && status == CMQ_OK; i++)
            status = recover_record(delay, &items[i], next, &deliveries);
        cmq_found_batch_release(&batch);
    }
    cmq_reader_close(reader);
    if (status != CMQ_OK) return status;
    for (int32_t level = 1; level <= delay->levels->level_max; level++) set_next(delay, level, next[level]);
    *deliveries_out = deliveries;
    return CMQ_OK;
}
