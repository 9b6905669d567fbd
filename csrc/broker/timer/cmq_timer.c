/* cmq_timer: see cmq_timer.h. Life, thread, flush, and what others ask. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/cmq_assert.h"
#include "base/cmq_name_hash.h"
#include "broker/timer/cmq_timer_internal.h"

#define RETRY_MS 1000
#define EXPIRE_MS 30000
#define SECOND_MS 1000

void cmq_timer_poke(cmq_timer *timer) { cmq_alarm_poke(&timer->alarm); }

static void wake(void *context) { cmq_timer_poke(context); }

/* ---- life ---- */

static cmq_status CMQ_MUST_CHECK take_options(cmq_timer *timer, const cmq_timer_options *given)
{
    cmq_timer_options *options = &timer->options;
    *options = *given;
    if (options->precision_ms < 0 || options->delay_ms_max < 0 || options->slot_messages < 0 ||
        options->flush_interval_ms < 0 || options->log_file_bytes < 0)
        return cmq_fail(CMQ_ERR_ARGUMENT, "an option of the timers is negative");
    if (options->precision_ms == 0) options->precision_ms = CMQ_TIMER_PRECISION_MS;
    if (options->delay_ms_max == 0) options->delay_ms_max = CMQ_TIMER_DELAY_MS_MAX;
    if (options->slot_messages == 0) options->slot_messages = INT32_MAX;
    if (options->flush_interval_ms == 0) options->flush_interval_ms = SECOND_MS;
    if (options->log_file_bytes == 0) options->log_file_bytes = CMQ_TIMER_LOG_FILE_BYTES;
    if (options->roll_window_slots == 0) options->roll_window_slots = 2 * 86400;
    if (options->roll_window_slots < 2 || options->roll_window_slots > CMQ_TIMER_WINDOW_SLOTS_MAX)
        options->roll_window_slots = CMQ_TIMER_WINDOW_SLOTS_MAX;
    /* A unit has 32 bits for the milliseconds until its slot. */
    const int64_t slots_max = INT32_MAX / options->precision_ms;
    timer->roll_window = options->roll_window_slots < slots_max ? options->roll_window_slots : slots_max;
    if (timer->roll_window < 2)
        return cmq_fail(CMQ_ERR_ARGUMENT, "timerPrecisionMs is %d; at most %d", options->precision_ms, INT32_MAX / 2);
    return CMQ_OK;
}

cmq_status cmq_timer_create(cmq_timer **timer_out, const cmq_timer_options *options)
{
    *timer_out = NULL;
    cmq_timer *made = calloc(1, sizeof *made);
    if (made == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for the timers");
    made->store = options->store;
    made->clock = options->clock.now_ms == NULL ? cmq_clock_system() : options->clock;
    made->threaded = !options->manual;
    pthread_mutex_init(&made->mutex, NULL);
    cmq_status status = cmq_alarm_open(&made->alarm, options->clock.now_ms == NULL);
    if (status == CMQ_OK) status = take_options(made, options);
    if (status == CMQ_OK) status = cmq_timer_recover(made, cmq_store_root(made->store), cmq_store_fs(made->store));
    if (status == CMQ_OK && options->tables != NULL) status = cmq_tables_reader_create(options->tables, &made->tables);
    if (status == CMQ_OK) status = cmq_watcher_create(&made->watcher, made->store, wake, made);
    if (status != CMQ_OK) {
        cmq_timer_destroy(made);
        return status;
    }
    *timer_out = made;
    return CMQ_OK;
}

void cmq_timer_destroy(cmq_timer *timer)
{
    if (timer == NULL) return;
    CMQ_ASSERT(!timer->started);
    cmq_watcher_destroy(timer->watcher);
    cmq_tables_reader_destroy(timer->tables);
    cmq_timer_walk_free(&timer->walk);
    cmq_timer_log_close(timer->log);
    cmq_timer_wheel_close(timer->wheel);
    cmq_alarm_close(&timer->alarm);
    pthread_mutex_destroy(&timer->mutex);
    free(timer);
}

/* ---- files ---- */

static cmq_timer_check check_now(const cmq_timer *timer)
{
    cmq_timer_check check = timer->check;
    check.read_ms = timer->read_number * timer->options.precision_ms;
    check.log_end = cmq_timer_log_end(timer->log);
    check.queue_offset = check.master_queue_offset = timer->queue_next;
    return check;
}

/* Store, units, slots, check: each rests on the one before. */
static cmq_status CMQ_MUST_CHECK flush(cmq_timer *timer, int64_t now_ms)
{
    cmq_timer_check check = check_now(timer);
    cmq_status status = cmq_store_flush(timer->store);
    if (status == CMQ_OK) status = cmq_timer_log_flush(timer->log);
    /* others only read the wheel, so no mutex while the disk works */
    if (status == CMQ_OK) status = cmq_timer_wheel_flush(timer->wheel);
    check.timestamp_ms = now_ms;
    check.counter++;
    if (status == CMQ_OK)
        status = cmq_timer_check_store(cmq_store_fs(timer->store), cmq_store_root(timer->store), &check);
    if (status == CMQ_OK) {
        pthread_mutex_lock(&timer->mutex);
        timer->check = check;
        timer->dirty = false;
        pthread_mutex_unlock(&timer->mutex);
    }
    return cmq_timer_fence(status);
}

static cmq_status CMQ_MUST_CHECK expire(cmq_timer *timer)
{
    cmq_store_info info;
    const cmq_status status = cmq_store_info_of(timer->store, &info);
    return status == CMQ_OK ? cmq_timer_log_expire(timer->log, info.log_min) : status;
}

/* When it is time to. A clock that was set back waits for no more than one interval. */
static bool is_time(int64_t *at_ms, int64_t now_ms, int64_t interval_ms)
{
    if (*at_ms > now_ms + interval_ms) *at_ms = now_ms + interval_ms;
    if (*at_ms > now_ms) return false;
    *at_ms = now_ms + interval_ms;
    return true;
}

static cmq_status CMQ_MUST_CHECK keep_files(cmq_timer *timer, int64_t now_ms)
{
    cmq_status status = CMQ_OK;
    if (timer->dirty && is_time(&timer->flush_ms, now_ms, timer->options.flush_interval_ms))
        status = flush(timer, now_ms);
    if (status == CMQ_OK && is_time(&timer->expire_ms, now_ms, EXPIRE_MS)) status = expire(timer);
    return status;
}

/* ---- a step ---- */

static void forget_arrivals(cmq_timer *timer)
{
    cmq_queue *queues[64];
    /* the one queue is looked at anyway */
    while (cmq_watcher_take(timer->watcher, queues, sizeof queues / sizeof queues[0]) > 0) continue;
}

/* Enter and deliver, a batch of each in turn, until there is nothing. A failure in one does not stop the other; the
 * last one is returned. */
static cmq_status CMQ_MUST_CHECK work(cmq_timer *timer)
{
    cmq_status failed = CMQ_OK;
    bool more = true;
    forget_arrivals(timer);
    while (more && failed != CMQ_ERR_FENCED && !atomic_load_explicit(&timer->stopping, memory_order_acquire)) {
        bool more_parked, more_due;
        const int64_t now_ms = cmq_clock_now_ms(&timer->clock);
        const int64_t before = timer->write_number;
        timer->write_number = now_ms / timer->options.precision_ms;
        if (timer->write_number < before) timer->far_place = 0;
        failed = cmq_timer_enter(timer, &more_parked);
        const cmq_status delivered = failed == CMQ_ERR_FENCED ? failed : cmq_timer_deliver(timer, &more_due);
        if (delivered != CMQ_OK) failed = delivered;
        more = (more_parked && failed == CMQ_OK) || (delivered == CMQ_OK && more_due);
        const cmq_status kept = failed == CMQ_ERR_FENCED ? failed : keep_files(timer, now_ms);
        if (kept != CMQ_OK) failed = kept;
    }
    return failed;
}

/* Slots are over a precision after they begin. */
static int64_t next_due(const cmq_timer *timer)
{
    int64_t due_ms = CMQ_ALARM_NEVER;
    if (timer->next_pending != INT64_MAX) due_ms = (timer->next_pending + 1) * timer->options.precision_ms;
    if (timer->dirty && timer->flush_ms < due_ms) due_ms = timer->flush_ms;
    return due_ms;
}

cmq_status cmq_timer_step(cmq_timer *timer, int64_t *next_due_ms_out)
{
    const cmq_status status = work(timer);
    *next_due_ms_out = next_due(timer);
    if (status == CMQ_ERR_FENCED) *next_due_ms_out = CMQ_ALARM_NEVER;
    else if (status != CMQ_OK) *next_due_ms_out = cmq_clock_now_ms(&timer->clock) + RETRY_MS;
    pthread_mutex_lock(&timer->mutex);
    timer->counters.state = status == CMQ_OK           ? CMQ_TIMER_RUNNING
                            : status == CMQ_ERR_FENCED ? CMQ_TIMER_FENCED
                                                       : CMQ_TIMER_RETRYING;
    timer->counters.status = status;
    timer->counters.rounds++;
    pthread_mutex_unlock(&timer->mutex);
    return status;
}

/* ---- the thread ---- */

static void *run(void *argument)
{
    cmq_timer *timer = argument;
    while (!atomic_load_explicit(&timer->stopping, memory_order_acquire)) {
        int64_t due_ms;
        const cmq_status status = cmq_timer_step(timer, &due_ms);
        if (status == CMQ_ERR_FENCED) break;
        if (!atomic_load_explicit(&timer->stopping, memory_order_acquire)) cmq_alarm_sleep(&timer->alarm, due_ms);
    }
    return NULL;
}

cmq_status cmq_timer_start(cmq_timer *timer)
{
    CMQ_ASSERT(!timer->started);
    atomic_store_explicit(&timer->stopping, false, memory_order_release);
    pthread_mutex_lock(&timer->mutex);
    timer->counters.state = CMQ_TIMER_RUNNING;
    pthread_mutex_unlock(&timer->mutex);
    if (!timer->threaded) return CMQ_OK;
    const int failed = pthread_create(&timer->thread, NULL, run, timer);
    if (failed != 0) return cmq_fail(CMQ_ERR_MEMORY, "cannot start the timers' thread: %s", strerror(failed));
    timer->started = true;
    return CMQ_OK;
}

cmq_status cmq_timer_stop(cmq_timer *timer)
{
    atomic_store_explicit(&timer->stopping, true, memory_order_release);
    if (timer->started) {
        cmq_timer_poke(timer);
        pthread_join(timer->thread, NULL);
        timer->started = false;
    }
    if (timer->counters.state == CMQ_TIMER_IDLE) return CMQ_OK;
    cmq_status status = CMQ_OK;
    if (timer->counters.state != CMQ_TIMER_FENCED) {
        status = flush(timer, cmq_clock_now_ms(&timer->clock));
        timer->counters.state = CMQ_TIMER_IDLE;
    }
    return status;
}

/* ---- asked by others ---- */

/* Upstream's isReject: below the limit nobody, from twice the limit on everybody, between them the more, the fuller. */
static bool is_refused(cmq_timer *timer, int64_t number)
{
    const int64_t limit = timer->options.slot_messages;
    cmq_timer_slot slot;
    if (limit == INT32_MAX) return false;
    pthread_mutex_lock(&timer->mutex);
    cmq_timer_wheel_get(timer->wheel, number, &slot);
    /* One that was delivered, or parked again, keeps its count, and the clock may be set back into it. */
    const bool pending = cmq_timer_wheel_is_pending(timer->wheel, number);
    pthread_mutex_unlock(&timer->mutex);
    if (!pending || slot.count <= limit) return false;
    if (slot.count >= limit * 2) return true;
    const uint64_t dice =
        atomic_fetch_add_explicit(&timer->admissions, 1, memory_order_relaxed) * CMQ_NAMEHASH_MULTIPLIER;
    return (double)(dice >> 54) * 1000 / 1024 < 1000.0 * (double)(slot.count - limit) / (double)limit;
}

/* Is it "topic+id"? A sender may write to the topic, so it may recall what waits for it. Other topics' timers, and the
 * checkpoints of pops, which wait in the same wheel, are not its own. */
static bool is_key_of(cmq_slice topic, cmq_slice key)
{
    return key.bytes > topic.bytes && key.bytes <= CMQ_TIMER_KEY_BYTES_MAX &&
           memcmp(key.data, topic.data, topic.bytes) == 0 && key.data[topic.bytes] == '+';
}

cmq_status cmq_timer_admit(cmq_timer *timer, const cmq_timer_asked *asked, cmq_slice topic, int32_t queue_id,
                           cmq_timer_parked *parked_out)
{
    int64_t deliver_ms;
    if (!cmq_timer_is_asked(asked) || cmq_slice_equal(topic, cmq_timer_topic())) return CMQ_END;
    if (timer == NULL)
        return cmq_fail(CMQ_ERR_SETTING, "accurate timer message is not enabled, timerWheelEnable is false");
    const int64_t now_ms = cmq_clock_now_ms(&timer->clock), limit = timer->options.slot_messages;
    if (asked->delete_key.bytes > 0 && !is_key_of(topic, asked->delete_key))
        return cmq_fail(
            CMQ_ERR_ARGUMENT,
            "TIMER_DEL_UNIQKEY must be %.*s+ID, of at most %u bytes: a message deletes timers of its own topic only",
            (int)topic.bytes, (const char *)topic.data, CMQ_TIMER_KEY_BYTES_MAX);
    cmq_status status = cmq_timer_deliver_time(&timer->options, asked, now_ms, &deliver_ms);
    if (status == CMQ_OK) status = cmq_timer_park(&timer->options, topic, queue_id, deliver_ms, now_ms, parked_out);
    if (status != CMQ_OK || !is_refused(timer, parked_out->out_ms / timer->options.precision_ms)) return status;
    return cmq_fail(CMQ_ERR_LIMIT,
                    "timer message is under flow control, max num limit is %" PRId64
                    " or the current value is greater than %" PRId64 " and less than %" PRId64
                    ", trigger random flow control",
                    limit * 2, limit, limit * 2);
}

static int64_t queue_behind(const cmq_timer *timer)
{
    cmq_queue *queue = cmq_queues_find(cmq_store_queues(timer->store), cmq_timer_topic(), 0);
    const int64_t max = queue == NULL ? 0 : cmq_queue_max(queue, cmq_store_confirmed(timer->store));
    return max > timer->queue_next ? max - timer->queue_next : 0;
}

/* How long the first pending slot is due; 0: not yet. With the mutex. */
static int64_t read_behind_ms(const cmq_timer *timer, int64_t now_ms)
{
    if (timer->next_pending == INT64_MAX) return 0;
    const int64_t behind = now_ms - (timer->next_pending + 1) * timer->options.precision_ms;
    return behind > 0 ? behind : 0;
}

bool cmq_timer_caught_up(cmq_timer *timer)
{
    const int64_t now_ms = cmq_clock_now_ms(&timer->clock), precision_ms = timer->options.precision_ms;
    const int64_t slack_ms = precision_ms < SECOND_MS ? SECOND_MS - precision_ms : 0;
    pthread_mutex_lock(&timer->mutex);
    const bool due = timer->next_pending != INT64_MAX && now_ms >= (timer->next_pending + 1) * precision_ms + slack_ms;
    const bool parked = queue_behind(timer) > 0 && now_ms - timer->entered_store_ms >= SECOND_MS;
    const bool running = timer->counters.state == CMQ_TIMER_RUNNING;
    pthread_mutex_unlock(&timer->mutex);
    return running && !due && !parked;
}

void cmq_timer_count(cmq_timer *timer, cmq_timer_counters *counters_out)
{
    const int64_t now_ms = cmq_clock_now_ms(&timer->clock);
    pthread_mutex_lock(&timer->mutex);
    *counters_out = timer->counters;
    counters_out->read_behind_ms = read_behind_ms(timer, now_ms);
    counters_out->queue_behind = queue_behind(timer);
    pthread_mutex_unlock(&timer->mutex);
}

const cmq_timer_options *cmq_timer_options_of(const cmq_timer *timer) { return &timer->options; }

void cmq_timer_check_of(cmq_timer *timer, cmq_timer_check *check_out)
{
    pthread_mutex_lock(&timer->mutex);
    *check_out = timer->check;
    pthread_mutex_unlock(&timer->mutex);
}
