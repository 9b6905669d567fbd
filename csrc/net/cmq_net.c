/* cmq_net: a server's life: see cmq_net.h. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/cmq_assert.h"
#include "net/cmq_net_internal.h"

#define GRANT_BYTES_MAX 262144u   /* so fine the common account of buffered bytes is */
#define IDLE_SLACK_NS INT64_C(1000000000)

static int64_t monotonic_ns(void *context)
{
    (void)context;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* ---- options ---- */

/* Descriptors left to others: the store's files above all. */
#define RESERVED_MIN 128u
#define RESERVED_MAX 4096u
#define ADDRESS_CONNS_LEAST 64u   /* half of fewer connections is no share worth enforcing */

uint32_t net_connections_that_fit(uint64_t descriptors)
{
    uint64_t reserved = descriptors / 4;
    if (reserved < RESERVED_MIN) reserved = RESERVED_MIN;
    if (reserved > RESERVED_MAX) reserved = RESERVED_MAX;
    if (descriptors <= reserved) return 1;
    return descriptors - reserved > UINT32_MAX ? UINT32_MAX : (uint32_t)(descriptors - reserved);
}

static void limit_connections(cmq_net_limits *limits)
{
    struct rlimit descriptors;
    const uint32_t fit =
        getrlimit(RLIMIT_NOFILE, &descriptors) == 0 ? net_connections_that_fit(descriptors.rlim_cur) : UINT32_MAX;
    if (limits->connections_max == 0) limits->connections_max = 20000;
    if (limits->connections_max > fit) limits->connections_max = fit;
    if (limits->address_conns_max != 0) return;
    limits->address_conns_max =
        limits->connections_max / 2 >= ADDRESS_CONNS_LEAST ? limits->connections_max / 2 : limits->connections_max;
}

static cmq_status set_limits(cmq_net *net, const cmq_net_limits *given)
{
    cmq_net_limits limits = *given;
    if (limits.frame_bytes_max == 0) limits.frame_bytes_max = CMQ_FRAME_BYTES_MAX;
    if (limits.unsent_bytes_max == 0) limits.unsent_bytes_max = UINT64_C(64) << 20;
    if (limits.unsent_bytes_pause == 0) limits.unsent_bytes_pause = UINT64_C(4) << 20;
    if (limits.buffered_bytes_max == 0) limits.buffered_bytes_max = UINT64_C(1) << 30;
    if (limits.control_count_max == 0) limits.control_count_max = 10000;
    if (limits.control_conn_max == 0) limits.control_conn_max = 1000;
    if (limits.control_bytes_max == 0) limits.control_bytes_max = UINT64_C(256) << 20;
    if (limits.idle_ms == 0) limits.idle_ms = 120000;
    if (limits.frame_ms == 0) limits.frame_ms = 30000;
    if (limits.connections_max > NET_CONNECTIONS_MAX)
        return cmq_fail(CMQ_ERR_ARGUMENT, "connections_max is %u; at most %u", limits.connections_max,
                        NET_CONNECTIONS_MAX);
    limit_connections(&limits);
    if (limits.frame_bytes_max < CMQ_FRAME_PREFIX_BYTES || limits.frame_bytes_max > INT32_MAX)
        return cmq_fail(CMQ_ERR_ARGUMENT, "frame_bytes_max is %u; a frame has 8 bytes and less than 2 GiB",
                        limits.frame_bytes_max);
    if (limits.control_conn_max > UINT16_MAX)
        return cmq_fail(CMQ_ERR_ARGUMENT, "control_conn_max is %u; at most 65,535", limits.control_conn_max);
    if (limits.unsent_bytes_pause > limits.unsent_bytes_max) limits.unsent_bytes_pause = limits.unsent_bytes_max;
    const int64_t ms_max = INT64_MAX / 4000000;
    if (limits.idle_ms < 0 || limits.frame_ms < 0 || limits.idle_ms > ms_max || limits.frame_ms > ms_max)
        return cmq_fail(CMQ_ERR_ARGUMENT, "idle_ms and frame_ms are positive, and less than a human life");
    net->limits = limits;
    net->idle_slack_ns =
        limits.idle_ms * (1000000 / 8) < IDLE_SLACK_NS ? limits.idle_ms * (1000000 / 8) : IDLE_SLACK_NS;
    net->grant_bytes = limits.buffered_bytes_max / (16 * net->loop_count);
    if (net->grant_bytes > GRANT_BYTES_MAX) net->grant_bytes = GRANT_BYTES_MAX;
    if (net->grant_bytes == 0) net->grant_bytes = 1;
    net->share_bytes = limits.buffered_bytes_max / net->loop_count;
    net->table_count = (limits.connections_max + NET_TABLE_CONNS - 1) / NET_TABLE_CONNS;
    return CMQ_OK;
}

static cmq_status init(cmq_net *net, const cmq_net_options *options)
{
    net->control_fd = -1;
    net->handler = options->handler;
    net->now_ns = options->now_ns != NULL ? options->now_ns : monotonic_ns;
    net->clock_context = options->clock_context;
    net->manual = options->manual;
    net->loop_count = options->loops != 0 ? options->loops : 1;
    if (net->loop_count > NET_LOOPS_MAX)
        return cmq_fail(CMQ_ERR_ARGUMENT, "loops is %u; at most %u", net->loop_count, NET_LOOPS_MAX);
    if (options->address_count == 0 || options->address_count > NET_ADDRESSES_MAX)
        return cmq_fail(CMQ_ERR_ARGUMENT, "a server listens on 1 to %u addresses, not %u", NET_ADDRESSES_MAX,
                        options->address_count);
    cmq_status status = set_limits(net, &options->limits);
    if (status != CMQ_OK) return status;
    net->control_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (net->control_fd < 0) return cmq_fail_errno(errno, "cannot make the descriptor of the control queue");
    for (uint32_t i = 0; status == CMQ_OK && i < options->address_count; i++) {
        status = net_listen(options->addresses[i], &net->listeners[i]);
        net->listener_count = i + 1;
    }
    if (status != CMQ_OK) return status;
    net->loops = aligned_alloc(64, net->loop_count * sizeof *net->loops);
    if (net->loops == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for network loops");
    memset(net->loops, 0, net->loop_count * sizeof *net->loops);
    for (uint32_t i = 0; status == CMQ_OK && i < net->loop_count; i++) status = loop_init(&net->loops[i], net, i);
    return status;
}

cmq_status cmq_net_create(cmq_net **net_out, const cmq_net_options *options)
{
    *net_out = NULL;
    cmq_net *net = aligned_alloc(64, sizeof *net);
    if (net == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for a server");
    memset(net, 0, sizeof *net);
    const cmq_status status = init(net, options);
    if (status != CMQ_OK) {
        cmq_net_destroy(net);
        return status;
    }
    *net_out = net;
    return CMQ_OK;
}

/* ---- start and end ---- */

/* No signal of the process is taken on a loop. */
static cmq_status start_thread(cmq_loop *loop)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(&loop->thread, NULL, loop_run, loop);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0) return cmq_fail_errno(error, "cannot start the thread of a network loop");
    loop->thread_started = true;
    return CMQ_OK;
}

cmq_status cmq_net_start(cmq_net *net)
{
    CMQ_ASSERT(!net->started);
    net->started = true;
    const cmq_net_handler *handler = &net->handler;
    for (uint32_t i = 0; i < net->loop_count; i++) {
        cmq_loop *loop = &net->loops[i];
        const cmq_status status =
            handler->loop_begin != NULL ? handler->loop_begin(handler->context, loop, i, &loop->state) : CMQ_OK;
        if (status != CMQ_OK) return status;
        loop->begun = true;
    }
    cmq_status status = net_listen_begin(net);
    for (uint32_t i = 0; status == CMQ_OK && !net->manual && i < net->loop_count; i++)
        status = start_thread(&net->loops[i]);
    return status;
}

void cmq_net_turn(cmq_net *net)
{
    CMQ_ASSERT(net->manual);
    for (uint32_t i = 0; i < net->loop_count; i++) (void)loop_turn(&net->loops[i], false);
}

void cmq_net_drain(cmq_net *net)
{
    atomic_store_explicit(&net->draining, true, memory_order_relaxed);
    loop_signal(&net->loops[0], SIGNAL_DRAIN);
}

bool cmq_net_is_idle(const cmq_net *net) { return atomic_load_explicit(&net->outstanding, memory_order_acquire) == 0; }

static void close_listeners(cmq_net *net)
{
    for (uint32_t i = 0; i < net->listener_count; i++) {
        const int fd = atomic_exchange_explicit(&net->listeners[i].fd, -1, memory_order_relaxed);
        if (fd >= 0) close(fd);
    }
}

void cmq_net_destroy(cmq_net *net)
{
    if (net == NULL) return;
    const uint32_t loops = net->loops != NULL ? net->loop_count : 0;
    for (uint32_t i = 0; i < loops; i++)
        if (net->loops[i].thread_started) loop_signal(&net->loops[i], SIGNAL_STOP);
    for (uint32_t i = 0; i < loops; i++)
        if (net->loops[i].thread_started) pthread_join(net->loops[i].thread, NULL);
    close_listeners(net);
    /* A loop that could not be made has no descriptors to close: those before it have. */
    for (uint32_t i = 0; i < loops && net->loops[i].net != NULL; i++) loop_free(&net->loops[i]);
    if (net->control_fd >= 0) {
        net_control_clear(net);
        close(net->control_fd);
    }
    free(net->loops);
    free(net);
}

void cmq_net_abandon(cmq_net *net)
{
    close_listeners(net);
    close(net->control_fd);
    for (uint32_t i = 0; i < net->loop_count; i++) {
        cmq_loop *loop = &net->loops[i];
        /* A connection that the parent's loop was closing just then is left: its number may be another's already. Not
         * taken from the epoll set: that is the parent's, too. */
        for (uint32_t slot = 0; slot < loop->slots_used; slot++) {
            const int fd = atomic_exchange_explicit(&loop_slot(loop, slot)->fd, -1, memory_order_relaxed);
            if (fd >= 0) close(fd);
        }
        close(loop->epoll_fd);
        close(loop->wake_fd);
        if (loop->reserve_fd >= 0) close(loop->reserve_fd);
    }
}

/* ---- port and counters ---- */

uint16_t cmq_net_port(const cmq_net *net, uint32_t index)
{
    CMQ_ASSERT(index < net->listener_count);
    return net->listeners[index].port;
}

void cmq_net_count(const cmq_net *net, cmq_net_counters *counters_out)
{
    memset(counters_out, 0, sizeof *counters_out);
    for (uint32_t i = 0; i < net->loop_count; i++) {
        const net_counts *counts = &net->loops[i].counts;
#define ADD(name) counters_out->name += atomic_load_explicit(&counts->name, memory_order_relaxed)
        ADD(accepted), ADD(closed), ADD(refused), ADD(frames_in), ADD(frames_out), ADD(bytes_in), ADD(bytes_out);
        ADD(control_items), ADD(control_refused), ADD(offers_dropped);
        ADD(closed_corrupt), ADD(closed_slow_reader), ADD(closed_slow_frame), ADD(closed_idle), ADD(closed_memory),
            ADD(closed_tls);
        ADD(reads), ADD(writes), ADD(turns), ADD(buffered_bytes);
#undef ADD
    }
    counters_out->open = atomic_load_explicit(&net->open, memory_order_relaxed);
}
