/* test_cmq_net_threads: loops in threads: requests served by loops, given to a control thread and back, answered from
 * outside, all at once; wakes that are never lost; exact times; starting, draining and ending.
 *
 * Threads: yes
 */
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "net/cmq_net_internal.h"
#include "support/cmq_net_kit.h"
#include "wire/cmq_codes.h"

static netkit_server server;

static int64_t monotonic_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void begin(uint32_t loops)
{
    netkit_prepare(&server);
    server.options.manual = false;
    server.options.now_ns = NULL;
    server.options.loops = loops;
    netkit_start(&server);
}

/* ---- the control thread of these tests ---- */

static _Atomic bool control_ends;

static void *control_thread(void *unused)
{
    (void)unused;
    cmq_control_item items[16];
    uint8_t frame[256];
    uint32_t seen = 0;
    while (!atomic_load(&control_ends)) {
        struct pollfd poll_fd = {.fd = cmq_net_control_fd(server.net), .events = POLLIN};
        CHECK(poll(&poll_fd, 1, 10) >= 0);
        const uint32_t count = cmq_net_control_take(server.net, items, 16);
        for (uint32_t i = 0; i < count; i++, seen++) {
            cmq_frame parsed;
            cmq_command command;
            uint8_t scratch[1024];
            size_t needed;
            if (items[i].kind != CMQ_CONTROL_REQUEST) {
                cmq_control_item_done(server.net, &items[i]);
                continue;
            }
            CHECK_OK(cmq_frame_next((cmq_slice){.data = items[i].frame, .bytes = items[i].frame_bytes}, UINT32_MAX,
                                    &parsed, &needed));
            CHECK_OK(cmq_command_parse(&parsed, scratch, sizeof scratch, &command));
            if (seen % 3 == 0) {
                cmq_net_again(server.net, &items[i]);
                continue;
            }
            const size_t bytes = netkit_frame(frame, 7, command.opaque, CMQ_COMMAND_RESPONSE, CMQ_SLICE_NONE);
            const cmq_status status = cmq_net_send(server.net, items[i].conn, frame, bytes);
            CHECK(status == CMQ_OK || status == CMQ_ERR_NOT_FOUND);
            if (seen % 101 == 0) cmq_net_close_conn(server.net, items[i].conn);
            cmq_control_item_done(server.net, &items[i]);
        }
    }
    return NULL;
}

/* ---- clients ---- */

/* Bursts of requests of every kind; each is answered, unless the connection is closed, which the control thread does
 * now and then. */
static void *client_thread(void *argument)
{
    const int32_t rounds = *(const int32_t *)argument;
    uint8_t *stream = malloc(64 * 300), *answer = malloc(1 << 20);
    CHECK(stream != NULL && answer != NULL);
    int fd = netkit_connect(&server);
    for (int32_t round = 0; round < rounds; round++) {
        size_t bytes = 0;
        bool answered[32] = {false};
        for (int32_t i = 0; i < 32; i++)
            bytes += netkit_frame(stream + bytes, i % 4 == 3 ? ASK_CONTROL : ASK_ECHO, i, 0, CMQ_NAME("body"));
        if (send(fd, stream, bytes, MSG_NOSIGNAL) == (ssize_t)bytes) {
            for (int32_t i = 0; i < 32; i++) {
                uint8_t prefix[4];
                if (recv(fd, prefix, 4, MSG_WAITALL) != 4) break;
                const uint32_t rest = cmq_load_u32(prefix);
                CHECK(rest < 1 << 20);
                memcpy(answer, prefix, 4);
                if (recv(fd, answer + 4, rest, MSG_WAITALL) != (ssize_t)rest) break;
                cmq_frame frame;
                cmq_command command;
                uint8_t scratch[1024];
                size_t needed;
                CHECK_OK(cmq_frame_next((cmq_slice){.data = answer, .bytes = rest + 4}, UINT32_MAX, &frame, &needed));
                CHECK_OK(cmq_command_parse(&frame, scratch, sizeof scratch, &command));
                CHECK(command.opaque >= 0 && command.opaque < 32 && !answered[command.opaque]);
                answered[command.opaque] = true;
                CHECK_INT(command.code, command.opaque % 4 == 3 ? 7 : 0);
            }
        }
        bool all = true;
        for (int32_t i = 0; i < 32; i++) all = all && answered[i];
        if (all && round % 10 != 9) continue;
        if (!all) CHECK(recv(fd, stream, 1, 0) <= 0);   /* only an end is a reason */
        close(fd);
        fd = netkit_connect(&server);
    }
    close(fd);
    free(stream);
    free(answer);
    return NULL;
}

static void everything_at_once(void)
{
    begin(3);
    atomic_store(&control_ends, false);
    pthread_t control, clients[6];
    int32_t rounds = 60;
    CHECK(pthread_create(&control, NULL, control_thread, NULL) == 0);
    for (size_t i = 0; i < 6; i++) CHECK(pthread_create(&clients[i], NULL, client_thread, &rounds) == 0);
    for (int i = 0; i < 2000; i++) {
        cmq_loop_wake(server.states[i % 3]->loop);
        (void)cmq_net_is_idle(server.net);
        (void)netkit_counters(&server);
        sched_yield();
    }
    for (size_t i = 0; i < 6; i++) CHECK(pthread_join(clients[i], NULL) == 0);
    NETKIT_UNTIL(&server, netkit_counters(&server).open == 0);
    NETKIT_UNTIL(&server, cmq_net_is_idle(server.net));
    CHECK_INT(netkit_counters(&server).buffered_bytes, 0);
    CHECK_INT(netkit_counters(&server).closed, netkit_counters(&server).accepted);
    CHECK_INT(netkit_counters(&server).closed_corrupt + netkit_counters(&server).closed_memory +
                  netkit_counters(&server).control_refused,
              0);
    atomic_store(&control_ends, true);
    CHECK(pthread_join(control, NULL) == 0);
    netkit_stop(&server);
}

/* ---- waking ---- */

typedef struct counted {
    cmq_loop *loop;
    _Atomic uint64_t woken;
    _Atomic int64_t due_ns;
    _Atomic int64_t ticked_ns;
} counted;

static counted one;

static cmq_status count_begin(void *context, cmq_loop *loop, uint32_t index, void **state_out)
{
    (void)index;
    ((counted *)context)->loop = loop;
    *state_out = context;
    return CMQ_OK;
}

static void count_woken(void *state) { atomic_fetch_add(&((counted *)state)->woken, 1); }
static int64_t count_due(void *state) { return atomic_load(&((counted *)state)->due_ns); }

static void count_tick(void *state, int64_t now_ns)
{
    counted *counts = state;
    CHECK(now_ns >= atomic_load(&counts->due_ns));
    atomic_store(&counts->due_ns, INT64_MAX);
    atomic_store(&counts->ticked_ns, now_ns);
}

static void begin_counted(void)
{
    netkit_prepare(&server);
    server.options.manual = false;
    server.options.now_ns = NULL;
    atomic_store(&one.woken, 0);
    atomic_store(&one.due_ns, INT64_MAX);
    atomic_store(&one.ticked_ns, 0);
    server.options.handler = (cmq_net_handler){
        .context = &one, .loop_begin = count_begin, .woken = count_woken, .due_ns = count_due, .tick = count_tick};
    CHECK_OK(cmq_net_create(&server.net, &server.options));
}

/* Each wake is followed by a call, however the loop was falling asleep at that time. */
static void no_wake_is_lost(void)
{
    begin_counted();
    CHECK_OK(cmq_net_start(server.net));
    for (int i = 0; i < 20000; i++) {
        const uint64_t before = atomic_load(&one.woken);
        cmq_loop_wake(one.loop);
        NETKIT_UNTIL(&server, atomic_load(&one.woken) > before);
        for (uint64_t spin = cmq_test_random_below(200); spin > 0; spin--) atomic_signal_fence(memory_order_seq_cst);
    }
    netkit_stop(&server);
}

/* A time is kept whatever the kernel can: never before, and in the end. How exactly is a benchmark's affair. */
static void times(void)
{
    for (int coarse = 0; coarse < 2; coarse++) {
        begin_counted();
        server.net->loops[0].coarse_wait = coarse != 0;
        CHECK_OK(cmq_net_start(server.net));
        for (int64_t wait_ns = 100; wait_ns < 5000000; wait_ns *= 7) {
            const int64_t due = monotonic_ns() + wait_ns;
            atomic_store(&one.ticked_ns, 0);
            atomic_store(&one.due_ns, due);
            cmq_loop_wake(one.loop);
            NETKIT_UNTIL(&server, atomic_load(&one.ticked_ns) != 0);
            CHECK(atomic_load(&one.ticked_ns) >= due);
        }
        netkit_stop(&server);
    }
}

/* While nothing happens nothing is done. */
static void an_idle_loop_sleeps(void)
{
    begin(2);
    const int fd = netkit_connect(&server);
    netkit_request(fd, ASK_ECHO, 1, CMQ_SLICE_NONE);
    (void)netkit_expect(fd, 0, 1);
    struct timespec before, after;
    clockid_t clock;
    uint32_t busy = 0;
    for (uint32_t i = 0; i < 2; i++) {
        CHECK(pthread_getcpuclockid(server.net->loops[i].thread, &clock) == 0);
        const uint64_t turns = netkit_counters(&server).turns;
        CHECK(clock_gettime(clock, &before) == 0);
        for (const int64_t until = monotonic_ns() + 20 * NETKIT_MS; monotonic_ns() < until;) sched_yield();
        CHECK(clock_gettime(clock, &after) == 0);
        CHECK(netkit_counters(&server).turns - turns <= 1);   /* the last may just be ending */
        const int64_t cpu_ns = (after.tv_sec - before.tv_sec) * 1000000000 + after.tv_nsec - before.tv_nsec;
        busy += cpu_ns > 5 * NETKIT_MS;
    }
    CHECK_INT(busy, 0);
    close(fd);
    netkit_stop(&server);
}

/* ---- the end ---- */

static void *drain_thread(void *unused)
{
    (void)unused;
    cmq_net_drain(server.net);
    return NULL;
}

/* Draining under load ends: everything that was accepted is answered, the rest is turned away, and then nothing is
 * left. */
static void draining(void)
{
    begin(2);
    int fds[8];
    uint8_t stream[16 * 300];
    for (int i = 0; i < 8; i++) {
        fds[i] = netkit_connect(&server);
        netkit_request(fds[i], ASK_ECHO, 0, CMQ_SLICE_NONE);
        (void)netkit_expect(fds[i], 0, 0);
    }
    size_t bytes = 0;
    for (int32_t i = 0; i < 16; i++) bytes += netkit_frame(stream + bytes, ASK_ECHO, i, 0, CMQ_SLICE_NONE);
    pthread_t drainer;
    CHECK(pthread_create(&drainer, NULL, drain_thread, NULL) == 0);
    for (int i = 0; i < 8; i++) netkit_write(fds[i], stream, bytes);
    static uint8_t answer[NETKIT_FRAME_BYTES_MAX];
    for (int i = 0; i < 8; i++) {
        int32_t last_served = -1, first_away = 16;
        for (int32_t k = 0; k < 16; k++) {
            cmq_frame frame;
            cmq_command command;
            CHECK(netkit_read(fds[i], answer, &frame, &command));
            CHECK(command.code == 0 || command.code == CMQ_RESPONSE_GO_AWAY);
            if (command.code == 0 && command.opaque > last_served) last_served = command.opaque;
            if (command.code != 0 && command.opaque < first_away) first_away = command.opaque;
        }
        CHECK(last_served < first_away);   /* once away, away; the answers of one turn may come in another order */
    }
    CHECK(pthread_join(drainer, NULL) == 0);
    NETKIT_UNTIL(&server, cmq_net_is_idle(server.net));
    for (int i = 0; i < 8; i++) close(fds[i]);
    netkit_stop(&server);
}

static void started_and_ended(void)
{
    for (int i = 0; i < 30; i++) {
        begin(1 + (uint32_t)i % 4);
        const int fd = netkit_connect(&server);
        if (i % 2 == 0) netkit_request(fd, ASK_KEEP, 1, CMQ_SLICE_NONE);
        netkit_stop(&server);
        close(fd);
    }
}

CMQ_TEST_MAIN(CMQ_TEST(everything_at_once), CMQ_TEST(no_wake_is_lost), CMQ_TEST(times), CMQ_TEST(an_idle_loop_sleeps),
              CMQ_TEST(draining), CMQ_TEST(started_and_ended))
