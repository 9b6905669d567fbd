/* cmq_pop_service: see cmq_pop_service.h. */
#include "broker/pop/cmq_pop_service.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cmq_assert.h"
#include "broker/pop/flight/cmq_pop_forgotten.h"
#include "broker/pop/flight/cmq_pop_sink.h"

#define DISK_MS 5            /* so long after a step that waits for the disk comes the next */
#define RETRY_MS 1000        /* after one that failed */
#define CHANGES_MS 60000     /* changes beside a clock that was set back each take a later millisecond */
#define NEVER INT64_MAX

struct cmq_pop_service {
    cmq_pop_service_options options;
    cmq_clock clock;
    char *broker, *revive_topic;
    cmq_timer_options timer;
    cmq_pop_sink_log log;
    cmq_pop_fifo ordered;
    cmq_pop_buffer *buffer;
    cmq_pop_revive *revive;
    cmq_pop_forgotten forgotten;
    cmq_pop_service_revived revived;
    void *revived_context;
    _Atomic uint32_t next_revive_queue;
    _Atomic int64_t latest_ms;           /* of the clock, which may have been set back since */

    pthread_mutex_t mutex;
    pthread_cond_t wanted;
    pthread_t thread;
    bool running, stopping;              /* stopping: under the mutex */
    _Atomic int64_t awake_ms;            /* when the thread will look next */
};

/* ---- callbacks of the parts ---- */

static void commit(void *context, const cmq_pop_key *key, int64_t offset)
{
    const cmq_pop_service *pops = context;
    const cmq_offset_key to = {.group = key->group, .topic = key->topic, .queue_id = key->queue_id};
    cmq_queue *queue = cmq_queues_find(cmq_store_queues(pops->options.store), key->topic, key->queue_id);
    /* Of a pop that went on while the topic was deleted: the queue is gone, or was re-created. */
    if (queue == NULL || offset > cmq_queue_max(queue, cmq_store_confirmed(pops->options.store))) return;
    /* A pending reset, or a full table: the messages are redelivered. */
    const cmq_status status = cmq_offsets_advance(pops->options.offsets, &to, offset);
    (void)status;
}

static cmq_status store_items(void *context, const cmq_pop_store_item *items, uint32_t count, uint32_t *stored_out,
                              int64_t *end_out)
{
    return cmq_pop_sink_store(&((cmq_pop_service *)context)->log, items, count, stored_out, end_out);
}

static int64_t confirmed_end(void *context) { return cmq_pop_sink_confirmed(&((cmq_pop_service *)context)->log); }

static bool timer_caught_up(void *context)
{
    return cmq_timer_caught_up(((const cmq_pop_service *)context)->options.timer);
}

static void tell_revived(void *context, const cmq_pop_revived *revived)
{
    cmq_pop_service *pops = context;
    const cmq_pop_key key = {.topic = revived->topic, .group = revived->group, .queue_id = revived->queue_id};
    cmq_pop_buffer_in_flight_done(pops->buffer, &key, revived->start_offset, revived->count, revived->pop_ms,
                                  revived->invisible_ms);
    if (pops->revived != NULL) pops->revived(pops->revived_context, revived->normal_topic, revived->group);
}

/* ---- life ---- */

static void set_defaults(cmq_pop_service_options *o)
{
    if (o->revive_queues == 0) o->revive_queues = 8;
    if (o->retry_percent == 0) o->retry_percent = 20;
    if (o->retry_percent < 0) o->retry_percent = 0;
    if (o->waits_max == 0) o->waits_max = 100000;
    if (o->waits_key_max == 0) o->waits_key_max = 1024;
}

static cmq_status CMQ_MUST_CHECK copy_texts(cmq_pop_service *pops)
{
    const size_t bytes = sizeof CMQ_POP_REVIVE_TOPIC_PREFIX + strlen(pops->options.cluster);
    pops->broker = strdup(pops->options.broker);
    pops->revive_topic = malloc(bytes);
    if (pops->broker == NULL || pops->revive_topic == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for pops");
    snprintf(pops->revive_topic, bytes, "%s%s", CMQ_POP_REVIVE_TOPIC_PREFIX, pops->options.cluster);
    pops->options.broker = pops->broker;
    pops->options.cluster = pops->revive_topic + sizeof CMQ_POP_REVIVE_TOPIC_PREFIX - 1;
    return CMQ_OK;
}

/* A broker that had more of them left checkpoints there, some of which the timer has yet to deliver. */
static void read_all_queues(cmq_pop_service *pops)
{
    cmq_pop_service_options *o = &pops->options;
    const cmq_queues *queues = cmq_store_queues(o->store);
    if (o->revive_queues_read < o->revive_queues) o->revive_queues_read = o->revive_queues;
    for (uint32_t i = o->revive_queues_read; i < CMQ_POP_REVIVE_QUEUES_MAX; i++)
        if (cmq_queues_find(queues, cmq_slice_of_text(pops->revive_topic), (int32_t)i) != NULL)
            o->revive_queues_read = i + 1;
}

static cmq_status CMQ_MUST_CHECK make_parts(cmq_pop_service *pops)
{
    const cmq_pop_service_options *o = &pops->options;
    pops->timer = *cmq_timer_options_of(o->timer);
    pops->log = (cmq_pop_sink_log){
        .store = o->store,
        .log = {.revive_topic = cmq_slice_of_text(pops->revive_topic), .host = o->host, .timer = &pops->timer},
        .clock = pops->clock,
    };
    pops->ordered = (cmq_pop_fifo){.offsets = o->offsets, .order = o->order};
    const cmq_pop_buffer_options buffer = {
        .sink = {.context = pops, .store = store_items, .confirmed = confirmed_end, .commit = commit},
        .broker = cmq_slice_of_text(pops->broker),
        .merge = o->merge,
        .stay_ms = o->stay_ms,
        .stay_out_ms = o->stay_out_ms,
        .merged_max = o->merged_max,
        .lane_max = o->lane_max,
    };
    const cmq_pop_revive_options revive = {
        .store = o->store,
        .tables = o->tables,
        .offsets = o->offsets,
        .log = pops->log.log,
        .broker = pops->broker,
        .queues = o->revive_queues_read,
        .retry_v2 = o->retry_v2,
        .give_up = o->give_up,
        .clock = o->clock,
        .manual = o->manual,
        .calls = {.context = pops, .caught_up = timer_caught_up, .revived = tell_revived},
    };
    const cmq_status status = cmq_pop_buffer_create(&pops->buffer, &buffer);
    return status == CMQ_OK ? cmq_pop_revive_create(&pops->revive, &revive) : status;
}

cmq_status cmq_pop_service_create(cmq_pop_service **pops_out, const cmq_pop_service_options *options)
{
    *pops_out = NULL;
    CMQ_ASSERT(options->timer != NULL && options->order != NULL && options->cluster != NULL && options->broker != NULL);
    cmq_pop_service *pops = calloc(1, sizeof *pops);
    if (pops == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for pops");
    pops->options = *options;
    set_defaults(&pops->options);
    pops->clock = options->clock.now_ms != NULL ? options->clock : cmq_clock_system();
    atomic_store_explicit(&pops->awake_ms, NEVER, memory_order_relaxed);
    pthread_mutex_init(&pops->mutex, NULL);
    cmq_pop_forgotten_begin(&pops->forgotten);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);   /* or a wait would last as long as the clock is set
                                                               * back */
    pthread_cond_init(&pops->wanted, &monotonic);
    pthread_condattr_destroy(&monotonic);
    cmq_status status = copy_texts(pops);
    if (status == CMQ_OK) {
        read_all_queues(pops);
        status = make_parts(pops);
    }
    if (status != CMQ_OK) {
        cmq_pop_service_destroy(pops);
        return status;
    }
    *pops_out = pops;
    return CMQ_OK;
}

void cmq_pop_service_destroy(cmq_pop_service *pops)
{
    if (pops == NULL) return;
    CMQ_ASSERT(!pops->running);
    cmq_pop_revive_destroy(pops->revive);
    cmq_pop_buffer_destroy(pops->buffer);
    cmq_pop_forgotten_end(&pops->forgotten);
    pthread_cond_destroy(&pops->wanted);
    pthread_mutex_destroy(&pops->mutex);
    free(pops->broker);
    free(pops->revive_topic);
    free(pops);
}

void cmq_pop_service_on_revived(cmq_pop_service *pops, cmq_pop_service_revived call, void *context)
{
    pops->revived = call;
    pops->revived_context = context;
}

/* ---- time ---- */

/* When to look again. */
static cmq_status CMQ_MUST_CHECK step_buffer(cmq_pop_service *pops, int64_t *due_ms_out)
{
    const int64_t now_ms = cmq_clock_now_ms(&pops->clock);
    const cmq_status status = cmq_pop_buffer_step(pops->buffer, now_ms, due_ms_out);
    const int64_t soonest = now_ms + (status == CMQ_OK || status == CMQ_AGAIN ? DISK_MS : RETRY_MS);
    if (*due_ms_out < soonest) *due_ms_out = soonest;
    return status;
}

/* The mutex is held. A clock that is set is noticed within a second. */
static void sleep_until(cmq_pop_service *pops, int64_t due_ms)
{
    const int64_t left_ms = due_ms - cmq_clock_now_ms(&pops->clock);
    if (due_ms == NEVER) {
        pthread_cond_wait(&pops->wanted, &pops->mutex);
        return;
    }
    const int64_t sleep_ms = left_ms < 1 ? 1 : left_ms > RETRY_MS ? RETRY_MS : left_ms;
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += sleep_ms % 1000 * 1000000;
    until.tv_sec += sleep_ms / 1000 + until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    const int waited = pthread_cond_timedwait(&pops->wanted, &pops->mutex, &until);
    CMQ_ASSERT(waited == 0 || waited == ETIMEDOUT);
}

static void *run(void *argument)
{
    cmq_pop_service *pops = argument;
    pthread_mutex_lock(&pops->mutex);
    while (!pops->stopping) {
        int64_t due_ms;
        /* Checkpoints added from here on wake the thread themselves: the step may miss them. */
        atomic_store(&pops->awake_ms, NEVER);
        pthread_mutex_unlock(&pops->mutex);
        const cmq_status status = step_buffer(pops, &due_ms);
        (void)status;   /* records that the log refused stay in memory, and are retried */
        pthread_mutex_lock(&pops->mutex);
        const int64_t asked = atomic_load(&pops->awake_ms);
        if (due_ms > asked) due_ms = asked;
        atomic_store(&pops->awake_ms, due_ms);
        if (!pops->stopping && cmq_clock_now_ms(&pops->clock) < due_ms) sleep_until(pops, due_ms);
    }
    pthread_mutex_unlock(&pops->mutex);
    return NULL;
}

void cmq_pop_service_wanted_by(cmq_pop_service *pops, int64_t due_ms)
{
    if (atomic_load(&pops->awake_ms) <= due_ms) return;
    pthread_mutex_lock(&pops->mutex);
    if (atomic_load(&pops->awake_ms) > due_ms) {
        atomic_store(&pops->awake_ms, due_ms);
        pthread_cond_signal(&pops->wanted);
    }
    pthread_mutex_unlock(&pops->mutex);
}

cmq_status cmq_pop_service_start(cmq_pop_service *pops)
{
    CMQ_ASSERT(!pops->running);
    const cmq_status status = cmq_pop_revive_start(pops->revive);
    if (status != CMQ_OK || pops->options.manual) return status;
    pops->stopping = false;
    const int failed = pthread_create(&pops->thread, NULL, run, pops);
    if (failed != 0) {
        cmq_pop_revive_stop(pops->revive);
        return cmq_fail_errno(failed, "cannot start the thread that keeps popped messages' time");
    }
    pops->running = true;
    return CMQ_OK;
}

cmq_status cmq_pop_service_stop(cmq_pop_service *pops)
{
    cmq_pop_revive_stop(pops->revive);
    if (pops->running) {
        pthread_mutex_lock(&pops->mutex);
        pops->stopping = true;
        pthread_cond_signal(&pops->wanted);
        pthread_mutex_unlock(&pops->mutex);
        pthread_join(pops->thread, NULL);
        pops->running = false;
    }
    /* So much goes into the log at once as may wait for the disk. */
    cmq_status status;
    while ((status = cmq_pop_buffer_empty(pops->buffer)) == CMQ_AGAIN) {
        status = cmq_store_flush(pops->options.store);
        if (status != CMQ_OK) return status;
    }
    /* cmq_pop_buffer_empty returns a final refusal at once: records stored beside it may still wait for the disk. */
    if (status != CMQ_OK && cmq_store_flush(pops->options.store) == CMQ_OK) status = cmq_pop_buffer_empty(pops->buffer);
    return status;
}

cmq_status cmq_pop_service_step(cmq_pop_service *pops)
{
    int64_t due_ms;
    const cmq_status buffer = step_buffer(pops, &due_ms);
    const cmq_status revive = cmq_pop_revive_step(pops->revive, &due_ms);
    return buffer != CMQ_OK ? buffer : revive;
}

/* ---- the loops ---- */

const cmq_pop_service_options *cmq_pop_service_options_of(const cmq_pop_service *pops) { return &pops->options; }
int64_t cmq_pop_service_now_ms(cmq_pop_service *pops)
{
    const int64_t now_ms = cmq_clock_now_ms(&pops->clock);
    int64_t latest_ms = atomic_load_explicit(&pops->latest_ms, memory_order_relaxed);
    while (now_ms > latest_ms && !atomic_compare_exchange_weak_explicit(&pops->latest_ms, &latest_ms, now_ms,
                                                                        memory_order_relaxed, memory_order_relaxed)) {
    }
    return now_ms;
}

int64_t cmq_pop_service_latest_ms(cmq_pop_service *pops)
{
    const int64_t now_ms = cmq_pop_service_now_ms(pops);
    const int64_t latest_ms = atomic_load_explicit(&pops->latest_ms, memory_order_relaxed);
    return latest_ms > now_ms ? latest_ms + CHANGES_MS : now_ms;
}
int64_t cmq_pop_service_invisible_ms_max(const cmq_pop_service *pops) { return pops->timer.delay_ms_max; }
cmq_pop_buffer *cmq_pop_service_buffer(cmq_pop_service *pops) { return pops->buffer; }
const cmq_pop_fifo *cmq_pop_service_ordered(const cmq_pop_service *pops) { return &pops->ordered; }

int32_t cmq_pop_service_next_revive_queue(cmq_pop_service *pops)
{
    return (int32_t)(atomic_fetch_add_explicit(&pops->next_revive_queue, 1, memory_order_relaxed) %
                     pops->options.revive_queues);
}

cmq_status cmq_pop_service_store(cmq_pop_service *pops, const cmq_pop_store_item *items, uint32_t count,
                                 uint32_t *stored_out)
{
    int64_t end;
    return cmq_pop_sink_store(&pops->log, items, count, stored_out, &end);
}

/* ---- the control plane ---- */

bool cmq_pop_service_take_wanted(cmq_pop_service *pops, uint8_t name_out[CMQ_POP_TOPIC_BYTES_MAX], size_t *bytes_out)
{
    return cmq_pop_revive_take_wanted(pops->revive, name_out, bytes_out);
}

void cmq_pop_service_topic_made(cmq_pop_service *pops) { cmq_pop_revive_poke(pops->revive); }

void cmq_pop_service_forget(cmq_pop_service *pops, cmq_slice topic, cmq_slice group)
{
    cmq_pop_buffer_forget(pops->buffer, topic, group);
    cmq_pop_fifo_table_forget(pops->ordered.order, topic, group);
    if (topic.bytes > 0) cmq_pop_forgotten_add(&pops->forgotten, topic, cmq_pop_service_now_ms(pops));
}

bool cmq_pop_service_is_former(cmq_pop_service *pops, cmq_slice topic, int64_t pop_ms)
{
    return cmq_pop_forgotten_has(&pops->forgotten, topic, pop_ms);
}

void cmq_pop_service_count(cmq_pop_service *pops, cmq_pop_service_counters *counters_out)
{
    cmq_pop_buffer_count(pops->buffer, &counters_out->buffer);
    cmq_pop_revive_count(pops->revive, &counters_out->revive);
}
