/* test_cmq_net_limits: each limit of a server attacked, and what then happens; that nobody else suffers; that
 * afterwards it goes on.
 *
 * Checks: connections, descriptors, lengths that lie, slow senders, slow readers, idle clients, the control
 *         queue, TLS, garbage; fairness between connections of one loop.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "net/cmq_net_internal.h"
#include "support/cmq_net_kit.h"

static netkit_server server;

static netkit_state *state(void) { return server.states[0]; }

/* ---- connections ---- */

static void connections(void)
{
    netkit_prepare(&server);
    server.options.limits.connections_max = 2;
    server.options.loops = 2;
    netkit_start(&server);
    const int first = netkit_connect(&server), second = netkit_connect(&server);
    netkit_expect_served(first, 1);
    netkit_expect_served(second, 2);
    for (int i = 0; i < 3; i++) {
        const int third = netkit_connect(&server);
        netkit_expect_end(third);
        close(third);
    }
    CHECK_INT(netkit_counters(&server).refused, 3);
    CHECK_INT(netkit_counters(&server).open, 2);
    netkit_expect_served(first, 3);
    close(second);
    NETKIT_UNTIL(&server, netkit_counters(&server).open == 1);
    const int fourth = netkit_connect(&server);
    netkit_expect_served(fourth, 4);
    close(first);
    close(fourth);
    netkit_stop(&server);
}

static void set_descriptors(rlim_t count)
{
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    limit.rlim_cur = count;
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
}

/* One address leaves room for the others. */
static void connections_of_one_address(void)
{
    netkit_prepare(&server);
    server.options.limits.connections_max = 8;
    server.options.limits.address_conns_max = 2;
    server.options.loops = 2;
    netkit_start(&server);
    const int first = netkit_connect(&server), second = netkit_connect(&server);
    netkit_expect_served(first, 1);
    netkit_expect_served(second, 2);
    const int third = netkit_connect(&server);
    netkit_expect_end(third);
    close(third);
    CHECK_INT(netkit_counters(&server).refused, 1);
    const int other = netkit_connect_from(&server, 1);
    netkit_expect_served(other, 3);
    close(second);
    NETKIT_UNTIL(&server, netkit_counters(&server).open == 2);
    const int fourth = netkit_connect(&server);
    netkit_expect_served(fourth, 4);
    close(first);
    close(fourth);
    close(other);
    NETKIT_UNTIL(&server, netkit_counters(&server).open == 0);
    netkit_stop(&server);
}

/* A quarter of the descriptors, 128 to 4,096, is the store's. */
static void descriptors_of_the_store(void)
{
    CHECK_INT(net_connections_that_fit(100), 1);
    CHECK_INT(net_connections_that_fit(256), 128);
    CHECK_INT(net_connections_that_fit(1024), 768);
    CHECK_INT(net_connections_that_fit(1 << 20), (1 << 20) - 4096);
    CHECK_INT(net_connections_that_fit(RLIM_INFINITY), UINT32_MAX);
    struct rlimit before;
    CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
    set_descriptors(300);
    netkit_prepare(&server);
    netkit_start(&server);
    CHECK_INT(server.net->limits.connections_max, 172);
    CHECK_INT(server.net->limits.address_conns_max, 86);
    netkit_stop(&server);
    set_descriptors(before.rlim_cur);
}

/* Without descriptors clients are refused, and the loop does not spin. */
static void descriptors(void)
{
    struct rlimit before;
    CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
    netkit_prepare(&server);
    netkit_start(&server);
    int fds[6];
    for (int i = 0; i < 6; i++) fds[i] = netkit_connect(&server);
    const int lowest = dup(fds[0]), second = dup(fds[0]);   /* numbers that are free: room for two */
    CHECK(lowest >= 0 && second > lowest);
    close(lowest);
    close(second);
    set_descriptors((rlim_t)second + 1);
    NETKIT_UNTIL(&server, netkit_counters(&server).refused == 4);
    CHECK_INT(netkit_counters(&server).accepted, 2);
    for (int i = 2; i < 6; i++) netkit_expect_end(fds[i]);
    netkit_expect_served(fds[0], 1);
    netkit_expect_served(fds[1], 2);
    /* Even the reserve is of no use: pause, then try again. */
    set_descriptors(3);
    close(fds[5]);
    set_descriptors(before.rlim_cur);
    fds[5] = netkit_connect(&server);
    set_descriptors(3);
    for (int i = 0; i < 100; i++) cmq_net_turn(server.net);
    CHECK_INT(netkit_counters(&server).refused, 4);
    const uint64_t turns = netkit_counters(&server).turns;
    for (int i = 0; i < 100; i++) cmq_net_turn(server.net);
    CHECK_INT(netkit_counters(&server).turns, turns);
    server.now_ns += NET_ACCEPT_PAUSE_NS;
    for (int i = 0; i < 100; i++) cmq_net_turn(server.net);
    CHECK(netkit_counters(&server).turns <= turns + 2);
    set_descriptors(before.rlim_cur);
    server.now_ns += NET_ACCEPT_PAUSE_NS;
    netkit_expect_served(fds[5], 3);
    for (int i = 0; i < 6; i++) close(fds[i]);
    netkit_stop(&server);
}

/* ---- lengths ---- */

static void frames(void)
{
    netkit_prepare(&server);
    server.options.limits.frame_bytes_max = 100000;
    netkit_start(&server);
    const int good = netkit_connect(&server);
    uint8_t frame[300];
    const size_t header_bytes = netkit_frame(frame, ASK_ECHO, 1, 0, CMQ_SLICE_NONE);
    uint8_t *body = calloc(1, 100000);
    CHECK(body != NULL);
    netkit_request(good, ASK_ECHO, 1, (cmq_slice){.data = body, .bytes = 100000 - header_bytes});
    CHECK_INT(netkit_expect(good, 0, 1).bytes, 100000 - header_bytes);
    free(body);
    const uint32_t lengths[] = {0, 1, 3, 99997, 0x7fffffff, 0x80000000, 0xffffffff, 0x01000000};
    for (uint32_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        const int bad = netkit_connect(&server);
        uint8_t bytes[4];
        cmq_store_u32(bytes, lengths[i]);
        netkit_write(bad, bytes, 4);   /* four bytes are enough to know */
        netkit_expect_end(bad);
        close(bad);
        CHECK_INT(netkit_counters(&server).closed_corrupt, i + 1);
    }
    /* A header longer than its frame; one of another format; an invalid one. Requests before it are answered. */
    const uint32_t words[][2] = {{20, 17}, {20, 0x02000002}, {6, 2}};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        const int bad = netkit_connect(&server);
        size_t bytes = netkit_frame(frame, ASK_ECHO, 5, 0, CMQ_SLICE_NONE);
        cmq_store_u32(frame + bytes, words[i][0]);
        cmq_store_u32(frame + bytes + 4, words[i][1]);
        memset(frame + bytes + 8, 'x', 16);
        netkit_write(bad, frame, bytes + 24);
        (void)netkit_expect(bad, 0, 5);
        netkit_expect_end(bad);
        close(bad);
    }
    netkit_expect_served(good, 6);
    close(good);
    netkit_stop(&server);
}

/* Memory follows what came, not what was promised. */
static void promises_cost_nothing(void)
{
    netkit_prepare(&server);
    netkit_start(&server);
    enum { CONNS = 50 };
    int fds[CONNS];
    for (int i = 0; i < CONNS; i++) {
        fds[i] = netkit_connect(&server);
        netkit_claim(fds[i], CMQ_FRAME_BYTES_MAX, 10);
    }
    NETKIT_UNTIL(&server, netkit_counters(&server).bytes_in == CONNS * 10);
    CHECK_INT(netkit_counters(&server).buffered_bytes, CONNS * NET_SMALL_BYTES);
    uint8_t *more = calloc(1, 300000);
    CHECK(more != NULL);
    netkit_write(fds[0], more, 300000);
    NETKIT_UNTIL(&server, netkit_counters(&server).bytes_in == CONNS * 10 + 300000);
    CHECK(netkit_counters(&server).buffered_bytes < CONNS * NET_SMALL_BYTES + 2 * 300010 + NET_SMALL_BYTES);
    for (int i = 0; i < CONNS; i++) close(fds[i]);
    NETKIT_UNTIL(&server, netkit_counters(&server).open == 0);
    CHECK_INT(netkit_counters(&server).buffered_bytes, 0);
    free(more);
    netkit_stop(&server);
}

/* ---- slow readers ---- */

/* A client that takes no responses is not read any more; when it takes them, everything goes on, in order. */
static void pause_and_resume(void)
{
    netkit_prepare(&server);
    server.options.limits.unsent_bytes_pause = 1 << 20;
    netkit_start(&server);
    enum { REQUESTS = 2000 };
    const int fd = netkit_connect(&server);
    const int small = 16384;
    CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small) == 0);
    uint8_t frame[300];
    uint8_t *stream = malloc(REQUESTS * sizeof frame);
    CHECK(stream != NULL);
    size_t bytes = 0;
    for (int32_t i = 0; i < REQUESTS; i++)
        bytes += netkit_frame(stream + bytes, i % 7 == 0 ? ASK_LEND : ASK_BIG, i, 0, CMQ_NAME("100000"));
    netkit_write(fd, stream, bytes);
    for (int i = 0; i < 200; i++) cmq_net_turn(server.net);
    CHECK(state()->requests < 200);
    CHECK(netkit_counters(&server).buffered_bytes < 3 << 20);
    const int good = netkit_connect(&server);
    netkit_expect_served(good, 1);
    for (int32_t i = 0; i < REQUESTS; i++) CHECK_INT(netkit_expect(fd, 0, i).bytes, 100000);
    NETKIT_UNTIL(&server, netkit_counters(&server).buffered_bytes == 0);
    CHECK_INT(netkit_counters(&server).closed_slow_reader, 0);
    netkit_expect_served(fd, 7);
    free(stream);
    close(fd);
    close(good);
    netkit_stop(&server);
}

/* Output without a request (answers to holds, frames from Python) has a limit, too. */
static void slow_reader(void)
{
    netkit_prepare(&server);
    server.options.limits.unsent_bytes_max = 8 << 20;
    netkit_start(&server);
    const int fd = netkit_connect(&server), good = netkit_connect(&server);
    netkit_expect_served(good, 1);
    netkit_expect_served(fd, 1);
    const cmq_conn_id id = state()->last_conn;
    const size_t part = 1 << 20;
    uint8_t *body = calloc(1, part + 300);
    CHECK(body != NULL);
    const size_t bytes = netkit_frame(body, 0, 1, CMQ_COMMAND_RESPONSE, (cmq_slice){.data = body, .bytes = 0});
    int sent = 0;
    while (netkit_counters(&server).closed_slow_reader == 0) {
        const cmq_status status = cmq_net_send(server.net, id, body, bytes + part);
        CHECK_OK(status);
        cmq_net_turn(server.net);
        CHECK(sent++ < 100);
    }
    NETKIT_UNTIL(&server, state()->closed == 1);
    CHECK_INT(netkit_counters(&server).buffered_bytes, 0);
    netkit_expect_served(good, 2);
    free(body);
    close(fd);
    close(good);
    netkit_stop(&server);
}

static void offers_fill_no_connection(void)
{
    enum { PART = 1 << 20, OFFERS = 40 };
    netkit_prepare(&server);
    server.options.limits.unsent_bytes_max = 8 << 20;
    server.options.limits.unsent_bytes_pause = 2 << 20;
    netkit_start(&server);
    const int fd = netkit_connect(&server);
    netkit_expect_served(fd, 1);
    const cmq_conn_id id = state()->last_conn;
    uint8_t *body = calloc(1, 3 * PART), *frame = malloc(3 * PART + 300);
    CHECK(body != NULL && frame != NULL);
    int32_t taken[OFFERS], count = 0;
    for (int32_t i = 0; i < OFFERS; i++) {
        /* Some are longer than what may wait beside others. */
        const size_t part = i % 5 == 0 ? 3 * PART : PART;
        const size_t bytes = netkit_frame(frame, 0, i, CMQ_COMMAND_RESPONSE, (cmq_slice){.data = body, .bytes = part});
        const uint64_t before = netkit_counters(&server).offers_dropped;
        CHECK_OK(cmq_net_offer(server.net, id, frame, bytes));
        cmq_net_turn(server.net);
        if (netkit_counters(&server).offers_dropped == before) taken[count++] = i;
        CHECK(netkit_counters(&server).buffered_bytes < 4 * PART);
    }
    CHECK(count > 1 && count < OFFERS);
    CHECK_INT(netkit_counters(&server).closed_slow_reader, 0);
    /* What was taken comes whole; then there is room again. */
    for (int32_t i = 0; i < count; i++) (void)netkit_expect(fd, 0, taken[i]);
    NETKIT_UNTIL(&server, netkit_counters(&server).buffered_bytes == 0);
    netkit_expect_served(fd, 2);
    free(body);
    free(frame);
    close(fd);
    netkit_stop(&server);
}

/* ---- time ---- */

static void idle(void)
{
    netkit_prepare(&server);
    server.options.limits.idle_ms = 120000;
    netkit_start(&server);
    enum { CONNS = 5 };
    int fds[CONNS];
    for (int32_t i = 0; i < CONNS; i++) {
        fds[i] = netkit_connect(&server);
        netkit_expect_served(fds[i], i);
        server.now_ns += 10000 * NETKIT_MS;
    }
    /* The first speaks again, the second is spoken to: at 50 s. */
    netkit_expect_served(fds[0], 9);
    const cmq_conn_id first = state()->last_conn;
    server.now_ns += 70000 * NETKIT_MS;
    cmq_net_turn(server.net);
    CHECK_INT(netkit_counters(&server).closed_idle, 0);
    server.now_ns += 1000 * NETKIT_MS;   /* 121 s: the slack of a second is over */
    cmq_net_turn(server.net);
    CHECK_INT(netkit_counters(&server).closed_idle, 0);
    server.now_ns += 10000 * NETKIT_MS;   /* the second one's 121 s */
    cmq_net_turn(server.net);
    CHECK_INT(netkit_counters(&server).closed_idle, 1);
    netkit_expect_end(fds[1]);
    server.now_ns += 30000 * NETKIT_MS;
    cmq_net_turn(server.net);
    CHECK_INT(netkit_counters(&server).closed_idle, CONNS - 1);
    CHECK_INT(netkit_counters(&server).open, 1);
    /* A byte to the client counts as well. */
    uint8_t frame[256];
    CHECK_OK(cmq_net_send(server.net, first, frame, netkit_frame(frame, 0, 1, CMQ_COMMAND_RESPONSE, CMQ_SLICE_NONE)));
    (void)netkit_expect(fds[0], 0, 1);
    server.now_ns += 120000 * NETKIT_MS;
    cmq_net_turn(server.net);
    CHECK_INT(netkit_counters(&server).open, 1);
    server.now_ns += 1000 * NETKIT_MS;
    cmq_net_turn(server.net);
    CHECK_INT(netkit_counters(&server).open, 0);
    for (int i = 0; i < CONNS; i++) close(fds[i]);
    netkit_stop(&server);
}

/* A frame has its time from its first byte on, however steadily the others trickle in. */
static void slow_frames(void)
{
    netkit_prepare(&server);
    server.options.limits.frame_ms = 30000;
    netkit_start(&server);
    const int slow = netkit_connect(&server), prefix = netkit_connect(&server), quick = netkit_connect(&server);
    uint8_t frame[600], body[200] = {0};
    const size_t bytes = netkit_frame(frame, ASK_ECHO, 1, 0, (cmq_slice){.data = body, .bytes = sizeof body});
    for (size_t i = 0; i < 29; i++) {
        netkit_write(slow, frame + i, 1);
        if (i % 5 == 0) netkit_write(prefix, frame + i / 5, 1);   /* never gets over its length */
        netkit_write(quick, frame, bytes);                        /* … and begins the next within the same second */
        (void)netkit_expect(quick, 0, 1);
        NETKIT_UNTIL(&server, netkit_counters(&server).bytes_in == (i + 1) * (bytes + 1) + i / 5 + 1);
        server.now_ns += 1000 * NETKIT_MS;
    }
    cmq_net_turn(server.net);
    CHECK_INT(netkit_counters(&server).closed_slow_frame, 0);
    netkit_write(quick, frame, bytes / 2);
    NETKIT_UNTIL(&server, netkit_counters(&server).bytes_in == 29 * (bytes + 1) + 6 + bytes / 2);
    server.now_ns += 1000 * NETKIT_MS - 1;
    cmq_net_turn(server.net);
    CHECK_INT(netkit_counters(&server).closed_slow_frame, 0);
    server.now_ns += 1;
    cmq_net_turn(server.net);
    CHECK_INT(netkit_counters(&server).closed_slow_frame, 2);
    netkit_expect_end(slow);
    netkit_expect_end(prefix);
    server.now_ns += 28000 * NETKIT_MS;
    netkit_write(quick, frame + bytes / 2, bytes - bytes / 2);
    (void)netkit_expect(quick, 0, 1);
    server.now_ns += 60000 * NETKIT_MS;
    netkit_expect_served(quick, 5);
    CHECK_INT(netkit_counters(&server).closed_slow_frame, 2);
    close(slow);
    close(prefix);
    close(quick);
    netkit_stop(&server);
}

/* Nor does the time of half a frame run while its client is not read, because it takes no answers. */
static void half_a_frame_that_is_not_read(void)
{
    netkit_prepare(&server);
    server.options.limits.unsent_bytes_pause = 1000;
    netkit_start(&server);
    const int fd = netkit_connect(&server);
    uint8_t stream[600];
    size_t bytes = netkit_frame(stream, ASK_BIG, 1, 0, CMQ_NAME("15000000"));
    const size_t second = netkit_frame(stream + bytes, ASK_ECHO, 2, 0, CMQ_NAME("body"));
    netkit_write(fd, stream, bytes + second / 2);
    NETKIT_UNTIL(&server, state()->requests == 1);
    cmq_net_turn(server.net);
    server.now_ns += 60000 * NETKIT_MS;
    cmq_net_turn(server.net);
    CHECK_INT(netkit_expect(fd, 0, 1).bytes, 15000000);
    cmq_net_turn(server.net);
    server.now_ns += 29999 * NETKIT_MS;
    cmq_net_turn(server.net);
    CHECK_INT(netkit_counters(&server).open, 1);
    server.now_ns += 1 * NETKIT_MS;
    cmq_net_turn(server.net);
    CHECK_INT(netkit_counters(&server).closed_slow_frame, 1);
    close(fd);
    netkit_stop(&server);
}

/* Whole frames that wait because the client takes no answers are not slow. */
static void waiting_frames_are_not_slow(void)
{
    netkit_prepare(&server);
    server.options.limits.unsent_bytes_pause = 1000;
    netkit_start(&server);
    const int fd = netkit_connect(&server);
    uint8_t stream[600];
    size_t bytes = netkit_frame(stream, ASK_BIG, 1, 0, CMQ_NAME("15000000"));
    bytes += netkit_frame(stream + bytes, ASK_ECHO, 2, 0, CMQ_NAME("body"));
    netkit_write(fd, stream, bytes);
    NETKIT_UNTIL(&server, state()->requests == 1);
    cmq_net_turn(server.net);
    server.now_ns += 60000 * NETKIT_MS;
    cmq_net_turn(server.net);
    CHECK_INT(netkit_counters(&server).open, 1);
    CHECK_INT(netkit_expect(fd, 0, 1).bytes, 15000000);
    CHECK_INT(netkit_expect(fd, 0, 2).bytes, 4);
    close(fd);
    netkit_stop(&server);
}

/* ---- the control queue ---- */

static uint32_t take_all(cmq_control_item *items, uint32_t capacity)
{
    uint32_t count = 0;
    for (uint32_t more; (more = cmq_net_control_take(server.net, items + count, capacity - count)) > 0;) count += more;
    return count;
}

static void full_control_queue(void)
{
    netkit_prepare(&server);
    server.options.limits.control_count_max = 3;
    netkit_start(&server);
    const int fd = netkit_connect(&server);
    uint8_t frame[300];
    for (int32_t i = 0; i < 3; i++) netkit_request(fd, ASK_CONTROL, i, CMQ_SLICE_NONE);
    netkit_write(fd, frame, netkit_frame(frame, ASK_CONTROL, 3, CMQ_COMMAND_ONEWAY, CMQ_SLICE_NONE));
    netkit_write(fd, frame, netkit_frame(frame, 0, 4, CMQ_COMMAND_RESPONSE, CMQ_SLICE_NONE));
    netkit_request(fd, ASK_CONTROL, 5, CMQ_SLICE_NONE);
    (void)netkit_expect(fd, 2, 5);   /* neither the one-way request nor the response was answered */
    netkit_expect_served(fd, 6);         /* requests that the loop serves go on */
    CHECK_INT(netkit_counters(&server).control_refused, 3);
    cmq_control_item items[8];
    CHECK_INT(take_all(items, 8), 3);
    netkit_request(fd, ASK_CONTROL, 7, CMQ_SLICE_NONE);
    (void)netkit_expect(fd, 2, 7);   /* taken is not done */
    cmq_control_item_done(server.net, &items[0]);
    netkit_request(fd, ASK_CONTROL, 8, CMQ_SLICE_NONE);
    NETKIT_UNTIL(&server, netkit_counters(&server).control_items == 4);
    CHECK_INT(take_all(items + 3, 5), 1);
    for (int i = 1; i < 4; i++) cmq_control_item_done(server.net, &items[i]);
    /* The end of a connection is reported although the queue is full. */
    for (int32_t i = 0; i < 3; i++) netkit_request(fd, ASK_CONTROL, 10 + i, CMQ_SLICE_NONE);
    NETKIT_UNTIL(&server, netkit_counters(&server).control_items == 7);
    shutdown(fd, SHUT_RDWR);
    close(fd);
    NETKIT_UNTIL(&server, state()->half_closed == 1);
    server.now_ns += NET_HALF_CLOSED_NS;
    NETKIT_UNTIL(&server, state()->closed == 1);
    CHECK_INT(take_all(items, 8), 4);
    CHECK_INT(items[3].kind, CMQ_CONTROL_CLOSED);
    for (int i = 0; i < 4; i++) cmq_control_item_done(server.net, &items[i]);
    CHECK(cmq_net_is_idle(server.net));
    netkit_stop(&server);
}

/* One client that asks without end leaves room for the others; leaving and coming back does not help it. */
static void control_of_one_connection(void)
{
    netkit_prepare(&server);
    server.options.limits.control_conn_max = 2;
    netkit_start(&server);
    const int greedy = netkit_connect(&server), modest = netkit_connect(&server);
    for (int32_t i = 0; i < 2; i++) netkit_request(greedy, ASK_CONTROL, i, CMQ_SLICE_NONE);
    for (int32_t i = 2; i < 5; i++) {
        netkit_request(greedy, ASK_CONTROL, i, CMQ_SLICE_NONE);
        (void)netkit_expect(greedy, 2, i);
    }
    netkit_request(modest, ASK_CONTROL, 1, CMQ_SLICE_NONE);
    NETKIT_UNTIL(&server, netkit_counters(&server).control_items == 3);
    cmq_control_item items[8];
    CHECK_INT(take_all(items, 8), 3);
    cmq_control_item_done(server.net, &items[0]);
    netkit_request(greedy, ASK_CONTROL, 6, CMQ_SLICE_NONE);
    NETKIT_UNTIL(&server, netkit_counters(&server).control_items == 4);
    close(greedy);
    NETKIT_UNTIL(&server, state()->half_closed == 1);
    server.now_ns += NET_HALF_CLOSED_NS;
    NETKIT_UNTIL(&server, state()->closed == 1);
    const int back = netkit_connect(&server);
    netkit_request(back, ASK_CONTROL, 7, CMQ_SLICE_NONE);
    (void)netkit_expect(back, 2, 7);
    CHECK_INT(take_all(items + 3, 5), 2);
    CHECK_INT(items[4].kind, CMQ_CONTROL_CLOSED);
    for (int i = 1; i < 5; i++) cmq_control_item_done(server.net, &items[i]);
    for (int32_t i = 8; i < 10; i++) netkit_request(back, ASK_CONTROL, i, CMQ_SLICE_NONE);
    NETKIT_UNTIL(&server, netkit_counters(&server).control_items == 6);
    close(back);
    close(modest);
    netkit_stop(&server);
}

/* The last quarter of the queue is for connections that have little there. */
static void control_leaves_room_for_the_modest(void)
{
    netkit_prepare(&server);
    server.options.limits.control_count_max = 40;
    netkit_start(&server);
    const int greedy = netkit_connect(&server), modest = netkit_connect(&server);
    for (int32_t i = 0; i < 30; i++) netkit_request(greedy, ASK_CONTROL, i, CMQ_SLICE_NONE);
    netkit_request(greedy, ASK_CONTROL, 30, CMQ_SLICE_NONE);
    (void)netkit_expect(greedy, 2, 30);
    for (int32_t i = 0; i < 10; i++) netkit_request(modest, ASK_CONTROL, i, CMQ_SLICE_NONE);
    NETKIT_UNTIL(&server, netkit_counters(&server).control_items == 40);
    cmq_control_item items[40];
    CHECK_INT(take_all(items, 40), 40);
    for (int i = 0; i < 40; i++) cmq_control_item_done(server.net, &items[i]);
    close(greedy);
    close(modest);
    netkit_stop(&server);
}

static void control_bytes(void)
{
    netkit_prepare(&server);
    server.options.limits.control_bytes_max = 10000;
    netkit_start(&server);
    const int fd = netkit_connect(&server);
    uint8_t body[9000] = {0};
    netkit_request(fd, ASK_CONTROL, 1, (cmq_slice){.data = body, .bytes = sizeof body});
    netkit_request(fd, ASK_CONTROL, 2, (cmq_slice){.data = body, .bytes = 2000});
    (void)netkit_expect(fd, 2, 2);
    cmq_control_item item;
    CHECK_INT(cmq_net_control_take(server.net, &item, 1), 1);
    cmq_net_again(server.net, &item);
    (void)netkit_expect(fd, 7, 1);
    netkit_request(fd, ASK_CONTROL, 3, (cmq_slice){.data = body, .bytes = 2000});
    NETKIT_UNTIL(&server, netkit_counters(&server).control_items == 2);
    uint8_t large[20000] = {0};
    netkit_request(fd, ASK_CONTROL, 4, (cmq_slice){.data = large, .bytes = sizeof large});
    (void)netkit_expect(fd, 2, 4);
    close(fd);
    netkit_stop(&server);
}

/* ---- peers that are no clients ---- */

static void strangers(void)
{
    netkit_prepare(&server);
    netkit_start(&server);
    const char tls_hello[] = "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03";
    const int tls = netkit_connect(&server), http = netkit_connect(&server), silent = netkit_connect(&server);
    netkit_write(tls, tls_hello, 3);   /* so far it might be a frame */
    for (int i = 0; i < 10; i++) cmq_net_turn(server.net);
    CHECK_INT(netkit_counters(&server).closed_tls, 0);
    netkit_write(tls, tls_hello + 3, sizeof tls_hello - 4);
    netkit_write(http, "GET / HTTP/1.1\r\n\r\n", 18);
    netkit_expect_end(tls);
    netkit_expect_end(http);
    CHECK_INT(netkit_counters(&server).closed_tls, 1);
    CHECK_INT(netkit_counters(&server).closed_corrupt, 1);
    netkit_expect_served(silent, 1);
    netkit_write(silent, tls_hello, sizeof tls_hello - 1);   /* in the middle it is garbage like any other */
    netkit_expect_end(silent);
    CHECK_INT(netkit_counters(&server).closed_tls, 1);
    close(tls);
    close(http);
    close(silent);
    netkit_stop(&server);
}

static void too_many_fields(void)
{
    netkit_prepare(&server);
    netkit_start(&server);
    const int fd = netkit_connect(&server);
    uint8_t frame[8192];
    for (int32_t oneway = 0; oneway < 2; oneway++) {
        cmq_command_writer writer;
        cmq_command_begin(&writer, frame, sizeof frame, CMQ_HEADER_JSON, ASK_ECHO, 5,
                          oneway != 0 ? CMQ_COMMAND_ONEWAY : 0, CMQ_SLICE_NONE);
        for (int i = 0; i <= (int)CMQ_COMMAND_FIELDS_MAX; i++) {
            char name[16];
            snprintf(name, sizeof name, "n%d", i);
            cmq_command_add_i64(&writer, cmq_slice_of_text(name), i);
        }
        netkit_write(fd, frame, cmq_command_end(&writer, 0));
    }
    (void)netkit_expect(fd, 1, 5);
    netkit_expect_served(fd, 6);
    CHECK_INT(state()->requests, 1);
    close(fd);
    netkit_stop(&server);
}

/* The same number twice is two requests. */
static void duplicate_numbers(void)
{
    netkit_prepare(&server);
    netkit_start(&server);
    const int fd = netkit_connect(&server);
    for (int i = 0; i < 10; i++) netkit_request(fd, ASK_ECHO, 3, CMQ_SLICE_NONE);
    for (int i = 0; i < 10; i++) (void)netkit_expect(fd, 0, 3);
    close(fd);
    netkit_stop(&server);
}

/* ---- fairness ---- */

/* A client that pipelines without end gives way to the others after 64 KiB. */
static void pipelining_gives_way(void)
{
    netkit_prepare(&server);
    netkit_start(&server);
    const int greedy = netkit_connect(&server), modest = netkit_connect(&server);
    netkit_expect_served(greedy, 1);
    netkit_expect_served(modest, 1);
    enum { REQUESTS = 20000 };
    uint8_t *stream = malloc(REQUESTS * 120);
    CHECK(stream != NULL);
    size_t bytes = 0;
    for (int32_t i = 0; i < REQUESTS; i++)
        bytes += netkit_frame(stream + bytes, ASK_SILENT, i, CMQ_COMMAND_ONEWAY, CMQ_SLICE_NONE);
    const int large = 4 << 20;
    CHECK(setsockopt(greedy, SOL_SOCKET, SO_SNDBUF, &large, sizeof large) == 0);
    const ssize_t sent = send(greedy, stream, bytes, MSG_DONTWAIT);
    CHECK(sent > (ssize_t)(4 * NET_READ_BYTES));
    netkit_request(modest, ASK_ECHO, 2, CMQ_SLICE_NONE);
    const uint64_t before = netkit_counters(&server).bytes_in;
    cmq_net_turn(server.net);
    (void)netkit_expect(modest, 0, 2);
    CHECK(netkit_counters(&server).bytes_in - before <= 2 * NET_READ_BYTES);
    free(stream);
    close(greedy);
    close(modest);
    netkit_stop(&server);
}

/* An arrival that answers many holds at once is spread over turns, between which requests are served. */
static void many_answers_are_spread(void)
{
    netkit_prepare(&server);
    netkit_start(&server);
    enum { CONNS = 400 };
    int fds[CONNS];
    for (int32_t i = 0; i < CONNS; i++) {
        fds[i] = netkit_connect(&server);
        netkit_request(fds[i], ASK_KEEP, i, CMQ_SLICE_NONE);
    }
    const int fd = netkit_connect(&server);
    netkit_expect_served(fd, 1);
    NETKIT_UNTIL(&server, state()->kept_count == CONNS);
    const uint64_t writes = netkit_counters(&server).writes;
    state()->answer_kept = true;
    cmq_loop_wake(state()->loop);
    cmq_net_turn(server.net);
    CHECK_INT(netkit_counters(&server).writes - writes, NET_SENDS);
    CHECK(!cmq_net_is_idle(server.net));
    NETKIT_UNTIL(&server, cmq_net_is_idle(server.net));
    CHECK_INT(netkit_counters(&server).writes - writes, CONNS);
    for (int32_t i = 0; i < CONNS; i++) {
        (void)netkit_expect(fds[i], 9, i);
        close(fds[i]);
    }
    close(fd);
    netkit_stop(&server);
}

/* ---- forks ---- */

static void a_child_lets_go(void)
{
    netkit_prepare(&server);
    netkit_start(&server);
    const int fd = netkit_connect(&server);
    netkit_expect_served(fd, 1);
    const pid_t child = fork();
    if (child == 0) {
        cmq_net_abandon(server.net);
        close(fd);
        /* Peers must see the parent close: this child keeps no descriptor. */
        pause();
    }
    CHECK(child > 0);
    netkit_expect_served(fd, 2);
    netkit_request(fd, ASK_CLOSE, 3, CMQ_SLICE_NONE);
    netkit_expect_end(fd);
    close(fd);
    const int next = netkit_connect(&server);
    netkit_expect_served(next, 4);
    close(next);
    netkit_stop(&server);
    CHECK(kill(child, SIGKILL) == 0);
    CHECK(waitpid(child, NULL, 0) == child);
}

CMQ_TEST_MAIN(CMQ_TEST(connections), CMQ_TEST(descriptors), CMQ_TEST(frames), CMQ_TEST(promises_cost_nothing),
              CMQ_TEST(pause_and_resume), CMQ_TEST(slow_reader), CMQ_TEST(offers_fill_no_connection),
              CMQ_TEST(idle), CMQ_TEST(slow_frames), CMQ_TEST(half_a_frame_that_is_not_read),
              CMQ_TEST(waiting_frames_are_not_slow), CMQ_TEST(full_control_queue), CMQ_TEST(control_of_one_connection),
              CMQ_TEST(control_bytes), CMQ_TEST(strangers), CMQ_TEST(too_many_fields),
              CMQ_TEST(connections_of_one_address), CMQ_TEST(descriptors_of_the_store),
              CMQ_TEST(control_leaves_room_for_the_modest), CMQ_TEST(duplicate_numbers), CMQ_TEST(pipelining_gives_way),
              CMQ_TEST(many_answers_are_spread), CMQ_TEST(a_child_lets_go))
