/* cmq_load: life, turns and phases of a run. See cmq_load.h. */
#include "load/cmq_load.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "load/cmq_load_internal.h"

enum { EVENTS_MAX = 512, CHECK_MS = 100 };

#define EVENT_STOP UINT32_MAX                    /* names of descriptors beside those of connections */
#define EVENT_TIMER (UINT32_MAX - 1)
#define OUTPUT_BYTES_MAX ((uint64_t)1 << 30)     /* of one connection, all its sends in flight */

int64_t cmq_load_clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int64_t cpu_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void read_clocks(cmq_load *load)
{
    struct timespec wall;
    clock_gettime(CLOCK_REALTIME, &wall);
    load->born_ms = (int64_t)wall.tv_sec * 1000 + wall.tv_nsec / 1000000;
    load->now_ns = cmq_load_clock_ns();
}

void cmq_load_note(cmq_load *load, const char *format, ...)
{
    if (load->result.problem[0] != 0) return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(load->result.problem, sizeof load->result.problem, format, arguments);
    va_end(arguments);
}

cmq_load_remark cmq_load_remark_of(const cmq_command *command)
{
    cmq_load_remark remark = {""};
    const size_t bytes =
        command->remark.bytes < sizeof remark.text - 1 ? command->remark.bytes : sizeof remark.text - 1;
    if (bytes > 0) memcpy(remark.text, command->remark.data, bytes);
    return remark;
}

/* ---- life ---- */

static cmq_status check_range(const char *name, uint64_t value, uint64_t least, uint64_t most)
{
    if (value >= least && value <= most) return CMQ_OK;
    return cmq_fail(CMQ_ERR_ARGUMENT, "%s is %llu; it is between %llu and %llu", name, (unsigned long long)value,
                    (unsigned long long)least, (unsigned long long)most);
}

static cmq_status check_queues(const cmq_load_options *o)
{
    bool has_queue[CMQ_LOAD_ENDPOINTS_MAX] = {false};
    for (uint32_t i = 0; i < o->queue_count; i++) {
        if (o->queues[i].endpoint >= o->endpoint_count || o->queues[i].queue_id < 0)
            return cmq_fail(CMQ_ERR_ARGUMENT, "queue %u is %d of endpoint %u, and there are %u", i,
                            o->queues[i].queue_id, o->queues[i].endpoint, o->endpoint_count);
        has_queue[o->queues[i].endpoint] = true;
    }
    for (uint32_t i = 0; i < o->endpoint_count; i++)
        if (!has_queue[i]) return cmq_fail(CMQ_ERR_ARGUMENT, "endpoint %u (%s) has no queue", i, o->endpoints[i].host);
    return CMQ_OK;
}

static void fill_in_defaults(cmq_load_options *o)
{
    if (o->producer_group.bytes == 0) o->producer_group = CMQ_NAME("PID_cometmq_bench");
    if (o->consumer_group.bytes == 0) o->consumer_group = CMQ_NAME("GID_cometmq_bench");
    if (o->depth == 0) o->depth = 1;
    if (o->batch == 0) o->batch = 1;
    if (o->body_bytes == 0) o->body_bytes = 128;
    if (o->duration_ms == 0) o->duration_ms = 10000;
    if (o->pull_messages == 0) o->pull_messages = 32;
    if (o->pops_in_flight == 0) o->pops_in_flight = 1;
    if (o->invisible_ms == 0) o->invisible_ms = 60000;
    if (o->timeout_ms == 0) o->timeout_ms = 10000;
}

static cmq_status check_options(const cmq_load_options *o)
{
    cmq_status status = check_range("the number of endpoints", o->endpoint_count, 1, CMQ_LOAD_ENDPOINTS_MAX);
    if (status == CMQ_OK) status = check_range("the number of queues", o->queue_count, 1, CMQ_LOAD_QUEUES_MAX);
    if (status == CMQ_OK)
        status = check_range("the number of producers", o->producers, o->endpoint_count, CMQ_LOAD_CONNECTIONS_MAX);
    if (status == CMQ_OK && o->consumers > 0)
        status = check_range("the number of consumers", o->consumers, o->endpoint_count, CMQ_LOAD_CONNECTIONS_MAX);
    if (status == CMQ_OK) status = check_range("depth", o->depth, 1, CMQ_LOAD_DEPTH_MAX);
    if (status == CMQ_OK) status = check_range("batch", o->batch, 1, CMQ_LOAD_BATCH_MAX);
    if (status == CMQ_OK)
        status = check_range("body_bytes", o->body_bytes, CMQ_LOAD_BODY_BYTES_MIN, CMQ_LOAD_BODY_BYTES_MAX);
    if (status == CMQ_OK)
        status = check_range("the bytes of a batch", (uint64_t)o->batch * (o->body_bytes + 100), 1,
                             CMQ_FRAME_BYTES_MAX - 65536);
    if (status == CMQ_OK)
        status = check_range("the bytes in flight on a connection",
                             (uint64_t)o->depth * o->batch * (o->body_bytes + 600), 1, OUTPUT_BYTES_MAX);
    if (status == CMQ_OK) status = check_range("take", o->take, CMQ_LOAD_PULL, CMQ_LOAD_POP_ACK_MANY);
    if (status == CMQ_OK)
        status = check_range("pull_messages", o->pull_messages, 1, o->take == CMQ_LOAD_PULL ? 65536 : 32);
    if (status == CMQ_OK) status = check_range("pops_in_flight", o->pops_in_flight, 1, CMQ_LOAD_DEPTH_MAX);
    if (status == CMQ_OK) status = check_range("invisible_ms", (uint64_t)o->invisible_ms, 1, 86400000);
    if (status == CMQ_OK) status = check_range("duration_ms", (uint64_t)o->duration_ms, 1, 86400000);
    if (status == CMQ_OK) status = check_range("timeout_ms", (uint64_t)o->timeout_ms, 1, 3600000);
    if (status == CMQ_OK) status = check_range("the length of the topic's name", o->topic.bytes, 1, 255);
    if (status == CMQ_OK)
        status = check_range("the length of the producer group", o->producer_group.bytes, 1, 255);
    if (status == CMQ_OK && o->count % o->batch != 0)
        return cmq_fail(CMQ_ERR_ARGUMENT, "count is %llu, and no multiple of batch, %u", (unsigned long long)o->count,
                        o->batch);
    if (status == CMQ_OK && o->transactions && (o->batch > 1 || o->oneway))
        return cmq_fail(CMQ_ERR_ARGUMENT, "a transaction has one message and is answered; transactions go neither with "
                                          "batches nor one-way");
    return status == CMQ_OK ? check_queues(o) : status;
}

static cmq_status resolve(cmq_load *load, const cmq_load_options *options, uint32_t index)
{
    const cmq_load_endpoint *endpoint = &options->endpoints[index];
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(endpoint->port)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(endpoint->port)};
    if (inet_pton(AF_INET, endpoint->host, &v4.sin_addr) == 1) {
        memcpy(&load->addresses[index], &v4, sizeof v4);
        snprintf(load->names[index], sizeof load->names[index], "%s:%u", endpoint->host, endpoint->port);
    } else if (inet_pton(AF_INET6, endpoint->host, &v6.sin6_addr) == 1) {
        memcpy(&load->addresses[index], &v6, sizeof v6);
        snprintf(load->names[index], sizeof load->names[index], "[%s]:%u", endpoint->host, endpoint->port);
    } else {
        return cmq_fail(CMQ_ERR_ARGUMENT, "%s is not a numeric address", endpoint->host);
    }
    return CMQ_OK;
}

static cmq_status copy_options(cmq_load *load, const cmq_load_options *options)
{
    load->options = *options;
    load->conn_count = options->producers + options->consumers;
    load->addresses = calloc(options->endpoint_count, sizeof *load->addresses);
    load->names = calloc(options->endpoint_count, sizeof *load->names);
    load->brokers = calloc(options->endpoint_count, sizeof *load->brokers);
    load->topic = strndup((const char *)options->topic.data, options->topic.bytes);
    load->producer_group = strndup((const char *)options->producer_group.data, options->producer_group.bytes);
    load->consumer_group = strndup((const char *)options->consumer_group.data, options->consumer_group.bytes);
    load->pool = malloc(CMQ_LOAD_POOL_BYTES);
    load->scratch = malloc(LOAD_SCRATCH_BYTES);
    load->conns = calloc(load->conn_count, sizeof *load->conns);
    load->queues = calloc(options->queue_count, sizeof *load->queues);
    load->seen = calloc(options->producers, sizeof *load->seen);
    if (load->conns != NULL)
        for (uint32_t i = 0; i < load->conn_count; i++) load->conns[i].fd = -1;
    if (load->addresses == NULL || load->names == NULL || load->brokers == NULL || load->topic == NULL ||
        load->producer_group == NULL || load->consumer_group == NULL || load->pool == NULL || load->scratch == NULL ||
        load->conns == NULL || load->queues == NULL || load->seen == NULL)
        return cmq_fail(CMQ_ERR_MEMORY, "no memory for %u connections and %u queues", load->conn_count,
                        options->queue_count);
    cmq_load_pool_fill(load->pool);
    for (uint32_t i = 0; i < options->endpoint_count; i++) {
        const char *broker = options->endpoints[i].broker;
        load->brokers[i] = strdup(broker != NULL ? broker : "");
        if (load->brokers[i] == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for the name of a broker");
        const cmq_status status = resolve(load, options, i);
        if (status != CMQ_OK) return status;
    }
    return CMQ_OK;
}

/* Connections go to the brokers in turn, queues to their broker's consumers in turn. */
static cmq_status deal_out(cmq_load *load, const cmq_load_options *options)
{
    const uint32_t endpoints = options->endpoint_count;
    uint32_t dealt[CMQ_LOAD_ENDPOINTS_MAX] = {0};
    for (uint32_t i = 0; i < options->queue_count; i++) {
        const uint32_t endpoint = options->queues[i].endpoint;
        load->queues[i] =
            (load_queue){.endpoint = endpoint, .queue_id = options->queues[i].queue_id, .first_offset = -1};
        /* Consumers endpoint, endpoint + endpoints, … are this broker's. */
        const uint32_t consumers =
            options->consumers > endpoint ? (options->consumers - endpoint + endpoints - 1) / endpoints : 0;
        if (consumers > 0) load->queues[i].consumer = endpoint + endpoints * (dealt[endpoint]++ % consumers);
    }
    for (uint32_t i = 0; i < load->conn_count; i++) {
        load_conn *conn = &load->conns[i];
        conn->consumes = i >= options->producers;
        conn->index = conn->consumes ? i - options->producers : i;
        conn->endpoint = conn->index % endpoints;
        if (conn->consumes) continue;
        const cmq_status status = cmq_load_sender_init(load, conn);
        if (status != CMQ_OK) return status;
    }
    return cmq_load_mould_queues(load);
}

static cmq_status watch_descriptor(cmq_load *load, int fd, uint32_t name)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = name};
    if (fd < 0 || epoll_ctl(load->epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0)
        return cmq_fail_errno(errno, "opening the epoll descriptor");
    return CMQ_OK;
}

static cmq_status open_descriptors(cmq_load *load)
{
    load->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (load->epoll_fd < 0) return cmq_fail_errno(errno, "opening the epoll descriptor");
    load->stop_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    cmq_status status = watch_descriptor(load, load->stop_fd, EVENT_STOP);
    if (status != CMQ_OK) return status;
    load->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    return watch_descriptor(load, load->timer_fd, EVENT_TIMER);
}

cmq_status cmq_load_create(cmq_load **load_out, const cmq_load_options *options)
{
    cmq_load_options filled = *options;
    *load_out = NULL;
    fill_in_defaults(&filled);
    cmq_status status = check_options(&filled);
    if (status != CMQ_OK) return status;
    cmq_load *load = calloc(1, sizeof *load);
    if (load == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for a load");
    load->epoll_fd = load->timer_fd = load->stop_fd = -1;
    read_clocks(load);
    status = copy_options(load, &filled);
    if (status == CMQ_OK) status = deal_out(load, &filled);
    if (status == CMQ_OK) status = open_descriptors(load);
    if (status != CMQ_OK) {
        cmq_load_destroy(load);
        return status;
    }
    *load_out = load;
    return CMQ_OK;
}

void cmq_load_destroy(cmq_load *load)
{
    if (load == NULL) return;
    for (uint32_t i = 0; load->conns != NULL && i < load->conn_count; i++) cmq_load_conn_close(&load->conns[i]);
    for (uint32_t i = 0; load->queues != NULL && i < load->options.queue_count; i++) {
        cmq_marks_free(&load->queues[i].accepted);
        free(load->queues[i].mould.bytes);
    }
    for (uint32_t i = 0; load->seen != NULL && i < load->options.producers; i++) cmq_marks_free(&load->seen[i]);
    if (load->timer_fd >= 0) close(load->timer_fd);
    if (load->stop_fd >= 0) close(load->stop_fd);
    if (load->epoll_fd >= 0) close(load->epoll_fd);
    for (uint32_t i = 0; load->brokers != NULL && i < load->options.endpoint_count; i++) free(load->brokers[i]);
    free(load->brokers);
    free(load->addresses);
    free(load->names);
    free(load->topic);
    free(load->producer_group);
    free(load->consumer_group);
    free(load->pool);
    free(load->scratch);
    free(load->conns);
    free(load->queues);
    free(load->seen);
    free(load);
}

void cmq_load_stop(cmq_load *load)
{
    const uint64_t one = 1;
    atomic_store_explicit(&load->stop, true, memory_order_release);
    /* A full counter wakes just as well. */
    const ssize_t written = write(load->stop_fd, &one, sizeof one);
    (void)written;
}

/* ---- progress, for other threads ---- */

static void show(cmq_load *load)
{
    atomic_store_explicit(&load->shown_phase, (int)load->phase, memory_order_relaxed);
    atomic_store_explicit(&load->shown_sent, load->result.sent, memory_order_relaxed);
    atomic_store_explicit(&load->shown_accepted, load->result.accepted, memory_order_relaxed);
    /* pairs with cmq_load_look */
    atomic_store_explicit(&load->shown_consumed, load->result.consumed, memory_order_release);
}

void cmq_load_look(const cmq_load *load, cmq_load_progress *progress_out)
{
    /* First: the counters read after it are not older. */
    progress_out->consumed = atomic_load_explicit(&load->shown_consumed, memory_order_acquire);
    progress_out->phase = (cmq_load_phase)atomic_load_explicit(&load->shown_phase, memory_order_relaxed);
    progress_out->sent = atomic_load_explicit(&load->shown_sent, memory_order_relaxed);
    progress_out->accepted = atomic_load_explicit(&load->shown_accepted, memory_order_relaxed);
}

const cmq_load_result *cmq_load_result_of(const cmq_load *load) { return &load->result; }

/* ---- turns ---- */

cmq_status cmq_load_answer(cmq_load *load, load_conn *conn, const cmq_command *command, cmq_slice body)
{
    if (command->opaque >= LOAD_OPAQUE_ACK) return cmq_load_acked(load, command);
    if (command->opaque >= LOAD_OPAQUE_POP) return cmq_load_popped(load, conn, command, body);
    if (command->opaque >= LOAD_OPAQUE_OFFSET) return cmq_load_offset_known(load, conn, command);
    if (command->opaque >= LOAD_OPAQUE_PULL) return cmq_load_pulled(load, conn, command, body);
    return cmq_load_sent(load, conn, command);
}

/* When the next paced send is due, for the timer: epoll's own time-out knows no microseconds. */
static cmq_status set_timer(cmq_load *load)
{
    if (!load->sending || load->options.rate_per_s == 0) return CMQ_OK;
    const double at_s = (double)(load->issued + 1) / (double)load->options.rate_per_s;
    const int64_t at_ns = load->send_begin_ns + (int64_t)(at_s * 1e9);
    const struct itimerspec when = {.it_value = {.tv_sec = at_ns / 1000000000, .tv_nsec = at_ns % 1000000000}};
    if (timerfd_settime(load->timer_fd, TFD_TIMER_ABSTIME, &when, NULL) != 0)
        return cmq_fail_errno(errno, "setting a timer");
    return CMQ_OK;
}

static cmq_status handle_event(cmq_load *load, const struct epoll_event *event)
{
    if (event->data.u32 == EVENT_STOP || event->data.u32 == EVENT_TIMER) {
        uint64_t count;
        const ssize_t got = read(event->data.u32 == EVENT_STOP ? load->stop_fd : load->timer_fd, &count, sizeof count);
        (void)got;   /* empty already: the timer was set again */
        return CMQ_OK;
    }
    load->now_ns = cmq_load_clock_ns();
    return cmq_load_conn_ready(load, &load->conns[event->data.u32], event->events);
}

/* One-way producers go on when their output has gone. */
static cmq_status refill_oneway(cmq_load *load, bool *busy_out)
{
    *busy_out = false;
    if (!load->options.oneway || !load->sending || load->options.rate_per_s > 0) return CMQ_OK;
    for (uint32_t i = 0; i < load->options.producers; i++) {
        load_conn *conn = &load->conns[i];
        if (conn->waits_for_room) continue;
        cmq_status status = cmq_load_send_more(load, conn);
        if (status == CMQ_OK) status = cmq_load_conn_flush(load, conn);
        if (status != CMQ_OK) return status;
        *busy_out = *busy_out || !conn->waits_for_room;
    }
    load->send_end_ns = cmq_load_clock_ns();
    return CMQ_OK;
}

static cmq_status check_times(cmq_load *load)
{
    if (load->now_ns - load->checked_ns < (int64_t)CHECK_MS * 1000000) return CMQ_OK;
    load->checked_ns = load->now_ns;
    for (uint32_t i = 0; i < load->conn_count; i++) {
        const cmq_status status = cmq_load_conn_check_time(load, &load->conns[i]);
        if (status != CMQ_OK) return status;
    }
    return CMQ_OK;
}

static cmq_status turn(cmq_load *load)
{
    struct epoll_event events[EVENTS_MAX];
    bool busy;
    read_clocks(load);
    cmq_status status = refill_oneway(load, &busy);
    if (status == CMQ_OK && load->options.rate_per_s > 0 && load->sending) status = cmq_load_send_paced(load);
    if (status == CMQ_OK) status = set_timer(load);
    if (status != CMQ_OK) return status;
    const int count = epoll_wait(load->epoll_fd, events, EVENTS_MAX, busy ? 0 : CHECK_MS);
    if (count < 0 && errno != EINTR) return cmq_fail_errno(errno, "waiting for answers");
    read_clocks(load);
    for (int i = 0; i < count; i++) {
        status = handle_event(load, &events[i]);
        if (status != CMQ_OK) return status;
    }
    show(load);
    return check_times(load);
}

static bool is_stopped(const cmq_load *load) { return atomic_load_explicit(&load->stop, memory_order_acquire); }

static cmq_status turn_until(cmq_load *load, bool (*is_done)(const cmq_load *load))
{
    while (!is_done(load) && !is_stopped(load)) {
        const cmq_status status = turn(load);
        if (status != CMQ_OK) return status;
    }
    return CMQ_OK;
}

/* ---- phases ---- */

static bool all_connected(const cmq_load *load)
{
    for (uint32_t i = 0; i < load->conn_count; i++)
        if (!load->conns[i].connected) return false;
    return true;
}

static bool offsets_known(const cmq_load *load)
{
    for (uint32_t i = 0; i < load->options.queue_count; i++)
        if (load->queues[i].asked) return false;
    return true;
}

static bool all_begun(const cmq_load *load)
{
    if (load->options.count > 0) return load->issued >= load->options.count;
    return load->now_ns - load->send_begin_ns >= load->options.duration_ms * 1000000;
}

static bool all_answered(const cmq_load *load)
{
    for (uint32_t i = 0; i < load->options.producers; i++)
        if (load->conns[i].waiting > 0 || load->conns[i].out_sent < load->conns[i].out_used) return false;
    return true;
}

/* A consumer that gets nothing more for the time of an answer is not waited for. */
static bool all_consumed(const cmq_load *load)
{
    const int64_t latest =
        load->consume_end_ns > load->consume_begin_ns ? load->consume_end_ns : load->consume_begin_ns;
    const int64_t since_ns = load->now_ns - (latest > load->send_end_ns ? latest : load->send_end_ns);
    const bool is_all = load->result.consumed >= load->result.accepted &&
                        (!cmq_load_acks(load) || load->result.acked >= load->result.consumed);
    return is_all || since_ns > load->options.timeout_ms * 1000000;
}

static uint64_t growth(const cmq_load *load)
{
    uint64_t count = 0;
    for (uint32_t i = 0; i < load->options.queue_count; i++)
        count += (uint64_t)(load->queues[i].last_offset - load->queues[i].first_offset);
    return count;
}

static cmq_status connect_all(cmq_load *load)
{
    for (uint32_t i = 0; i < load->conn_count; i++) {
        const cmq_status status = cmq_load_conn_open(load, &load->conns[i]);
        if (status != CMQ_OK) return status;
    }
    cmq_status status = turn_until(load, all_connected);
    if (status != CMQ_OK || is_stopped(load)) return status;
    status = cmq_load_ask_offsets(load, LOAD_ASK_LAST);
    return status == CMQ_OK ? turn_until(load, offsets_known) : status;
}

static cmq_status begin_consuming(cmq_load *load)
{
    read_clocks(load);
    load->consume_begin_ns = load->now_ns;
    load->consuming = true;
    for (uint32_t i = load->options.producers; i < load->conn_count; i++) {
        load_conn *conn = &load->conns[i];
        cmq_status status =
            load->options.take == CMQ_LOAD_PULL ? cmq_load_pull_all(load, conn) : cmq_load_pop_more(load, conn);
        if (status == CMQ_OK) status = cmq_load_conn_flush(load, conn);
        if (status != CMQ_OK) return status;
    }
    return CMQ_OK;
}

static cmq_status send_all(cmq_load *load)
{
    load->phase = CMQ_LOAD_SENDING;
    read_clocks(load);
    load->cpu_begin_ns = cpu_ns();
    load->send_begin_ns = load->send_end_ns = load->now_ns;
    load->sending = true;
    for (uint32_t i = 0; i < load->options.producers; i++) {
        cmq_status status = cmq_load_send_more(load, &load->conns[i]);
        if (status == CMQ_OK) status = cmq_load_conn_flush(load, &load->conns[i]);
        if (status != CMQ_OK) return status;
    }
    cmq_status status = turn_until(load, all_begun);
    load->sending = false;
    if (status == CMQ_OK) status = turn_until(load, all_answered);
    load->result.send_ns = load->send_end_ns - load->send_begin_ns;
    load->result.send_cpu_ns = cpu_ns() - load->cpu_begin_ns;
    return status;
}

static cmq_status consume_rest(cmq_load *load)
{
    load->phase = CMQ_LOAD_CONSUMING;
    if (load->options.consume_after) {
        load->cpu_begin_ns = cpu_ns();
        const cmq_status status = begin_consuming(load);
        if (status != CMQ_OK) return status;
    }
    const cmq_status status = turn_until(load, all_consumed);
    load->consuming = false;
    load->result.consume_cpu_ns = cpu_ns() - load->cpu_begin_ns;
    load->result.consume_ns =
        load->consume_end_ns > load->consume_begin_ns ? load->consume_end_ns - load->consume_begin_ns : 0;
    return status;
}

/* One-way messages may still be on their way, and upstream's queues run a little behind what it has answered: asked for
 * until all are there, or for the time of an answer. */
static cmq_status count_messages(cmq_load *load)
{
    const int64_t limit_ns = load->now_ns + load->options.timeout_ms * 1000000;
    load->phase = CMQ_LOAD_COUNTING;
    do {
        cmq_status status = cmq_load_ask_offsets(load, LOAD_ASK_LAST);
        if (status == CMQ_OK) status = turn_until(load, offsets_known);
        if (status != CMQ_OK) return status;
    } while (growth(load) < load->result.accepted && load->now_ns < limit_ns && !is_stopped(load));
    return CMQ_OK;
}

/* Upstream moves a group on once a second or so. */
static cmq_status count_committed(cmq_load *load)
{
    const int64_t limit_ns = load->now_ns + load->options.timeout_ms * 1000000;
    do {
        cmq_status status = cmq_load_ask_offsets(load, LOAD_ASK_COMMITTED);
        if (status == CMQ_OK) status = turn_until(load, offsets_known);
        if (status != CMQ_OK) return status;
    } while (cmq_load_uncommitted(load) > 0 && load->now_ns < limit_ns && !is_stopped(load));
    return CMQ_OK;
}

static cmq_status run_phases(cmq_load *load)
{
    cmq_status status = connect_all(load);
    if (status == CMQ_OK && load->options.consumers > 0 && !load->options.consume_after && !is_stopped(load))
        status = begin_consuming(load);
    if (status == CMQ_OK && !is_stopped(load)) status = send_all(load);
    if (status == CMQ_OK && load->options.oneway && load->options.consumers > 0 && load->options.consume_after &&
        !is_stopped(load))
        status = count_messages(load);
    if (status == CMQ_OK && load->options.consumers > 0 && !is_stopped(load)) status = consume_rest(load);
    if (status == CMQ_OK && !is_stopped(load)) status = count_messages(load);
    if (status == CMQ_OK && cmq_load_acks(load) && !is_stopped(load)) status = count_committed(load);
    return status;
}

cmq_status cmq_load_run(cmq_load *load)
{
    const cmq_status status = run_phases(load);
    load->result.stopped = is_stopped(load);
    load->phase = CMQ_LOAD_DONE;
    show(load);
    if (status != CMQ_OK) {
        cmq_load_note(load, "%s", cmq_last_error()->text);
    } else if (!load->result.stopped) {
        cmq_load_verify(load);
    }
    for (uint32_t i = 0; i < load->conn_count; i++) cmq_load_conn_close(&load->conns[i]);
    return status;
}
