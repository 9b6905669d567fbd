/* test_cmq_net_memory: the memory that all connections of a server share, when it is full: whose connection makes room,
 * that frames in use stay, and that loops keep their shares.
 */
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "net/cmq_net_internal.h"
#include "support/cmq_net_kit.h"

static netkit_server server;

static netkit_state *state(void) { return server.states[0]; }

/* ---- memory ---- */

static void buffered_input(void)
{
    netkit_prepare(&server);
    server.options.limits.buffered_bytes_max = 1 << 20;
    netkit_start(&server);
    const int good = netkit_connect(&server);
    netkit_expect_served(good, 1);
    enum { CONNS = 30 };
    int fds[CONNS];
    for (int i = 0; i < CONNS; i++) {
        fds[i] = netkit_connect(&server);
        netkit_claim(fds[i], 8 << 20, 60000);
    }
    NETKIT_UNTIL(&server, netkit_counters(&server).bytes_in > CONNS * 60000);
    CHECK(netkit_counters(&server).closed_memory > 0);
    CHECK(netkit_counters(&server).closed_memory < CONNS);
    CHECK(netkit_counters(&server).buffered_bytes <= 1 << 20);
    netkit_expect_served(good, 2);
    for (int i = 0; i < CONNS; i++) close(fds[i]);
    NETKIT_UNTIL(&server, netkit_counters(&server).open == 1);
    CHECK_INT(netkit_counters(&server).buffered_bytes, 0);
    /* Released bytes can be taken again: the account loses nothing. */
    for (int i = 0; i < 5; i++) {
        const int fd = netkit_connect(&server);
        netkit_claim(fd, 800000, 400000);
        NETKIT_UNTIL(&server, netkit_counters(&server).buffered_bytes > 400000);
        close(fd);
        NETKIT_UNTIL(&server, netkit_counters(&server).buffered_bytes == 0);
    }
    close(good);
    netkit_stop(&server);
}

static void buffered_output(void)
{
    netkit_prepare(&server);
    server.options.limits.buffered_bytes_max = 1 << 20;
    netkit_start(&server);
    const int fd = netkit_connect(&server), good = netkit_connect(&server);
    netkit_request(fd, ASK_BIG, 1, CMQ_NAME("2000000"));
    netkit_expect_end(fd);
    CHECK_INT(netkit_counters(&server).closed_memory, 1);
    netkit_expect_served(good, 1);
    close(fd);
    close(good);
    netkit_stop(&server);
}

/* Where the memory of all is used up, whoever took nothing for the longest time makes room. */
static void silent_readers_make_room(void)
{
    netkit_prepare(&server);
    server.options.limits.buffered_bytes_max = 12 << 20;
    netkit_start(&server);
    int silent[2];
    for (int i = 0; i < 2; i++) {
        silent[i] = netkit_connect(&server);
        const int small = 16384;
        CHECK(setsockopt(silent[i], SOL_SOCKET, SO_RCVBUF, &small, sizeof small) == 0);
        netkit_request(silent[i], ASK_BIG, i, CMQ_NAME("8000000"));
        NETKIT_UNTIL(&server, netkit_counters(&server).buffered_bytes > (uint64_t)(i + 1) * 1000000);
        for (int turn = 0; turn < 50; turn++) cmq_net_turn(server.net);
        server.now_ns += 5000 * NETKIT_MS;
    }
    /* Two of 8 MB do not fit 12: the first has made room for the second. */
    CHECK_INT(netkit_counters(&server).closed_slow_reader, 1);
    CHECK_INT(netkit_counters(&server).closed_memory, 0);
    const int good = netkit_connect(&server);
    netkit_request(good, ASK_BIG, 7, CMQ_NAME("6000000"));
    CHECK_INT(netkit_expect(good, 0, 7).bytes, 6000000);
    CHECK_INT(netkit_counters(&server).closed_slow_reader, 2);
    CHECK_INT(netkit_counters(&server).closed_memory, 0);
    netkit_expect_served(good, 8);
    for (int i = 0; i < 2; i++) close(silent[i]);
    close(good);
    NETKIT_UNTIL(&server, netkit_counters(&server).open == 0);
    CHECK_INT(netkit_counters(&server).buffered_bytes, 0);
    netkit_stop(&server);
}

/* Ask for an answer and take none of it. */
static int hoard(uint32_t address, const char *bytes)
{
    const int fd = netkit_connect_from(&server, address), small = 16384;
    CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small) == 0);
    const uint64_t before = netkit_counters(&server).buffered_bytes;
    netkit_request(fd, ASK_BIG, 1, cmq_slice_of_text(bytes));
    NETKIT_UNTIL(&server, netkit_counters(&server).buffered_bytes > before + 500000);
    for (int turn = 0; turn < 50; turn++) cmq_net_turn(server.net);
    return fd;
}

/* Readers that take a part of their answers keep their place no longer than those that take nothing. */
static void dripping_readers_make_room(void)
{
    enum { READERS = 3, TAKEN = 4000000 };
    static uint8_t some[65536];
    netkit_prepare(&server);
    server.options.limits.buffered_bytes_max = 52 << 20;
    netkit_start(&server);
    int dripping[READERS];
    for (int i = 0; i < READERS; i++) dripping[i] = hoard(0, "14000000");
    server.now_ns += 5000 * NETKIT_MS;
    for (int i = 0; i < READERS; i++) {
        const uint64_t before = netkit_counters(&server).bytes_out;
        for (size_t taken = 0; taken < TAKEN;) {
            const ssize_t got = recv(dripping[i], some, sizeof some, MSG_DONTWAIT);
            if (got > 0) taken += (size_t)got;
            cmq_net_turn(server.net);
        }
        CHECK(netkit_counters(&server).bytes_out > before);
    }
    const int good = netkit_connect(&server);
    netkit_request(good, ASK_BIG, 7, CMQ_NAME("13000000"));
    CHECK_INT(netkit_expect(good, 0, 7).bytes, 13000000);
    CHECK_INT(netkit_counters(&server).closed_slow_reader, 1);
    CHECK_INT(netkit_counters(&server).closed_memory, 0);
    for (int i = 0; i < READERS; i++) close(dripping[i]);
    close(good);
    netkit_stop(&server);
}

/* The address that has most makes room: neither one that was silent for longer, nor the one that asks. */
static void greedy_addresses_make_room(void)
{
    enum { READERS = 3 };
    netkit_prepare(&server);
    server.options.limits.buffered_bytes_max = 36 << 20;
    netkit_start(&server);
    int greedy[READERS];
    const int modest = hoard(0, "8000000");
    server.now_ns += 20000 * NETKIT_MS;
    for (int i = 0; i < READERS; i++) greedy[i] = hoard(1, "8000000");
    server.now_ns += 5000 * NETKIT_MS;
    const int good = netkit_connect_from(&server, 2);
    netkit_request(good, ASK_BIG, 7, CMQ_NAME("7500000"));
    CHECK_INT(netkit_expect(good, 0, 7).bytes, 7500000);
    CHECK_INT(netkit_counters(&server).closed_memory, 0);
    CHECK_INT(netkit_counters(&server).closed_slow_reader, 1);
    CHECK_INT(netkit_expect(modest, 0, 1).bytes, 8000000);
    for (int i = 0; i < READERS; i++) close(greedy[i]);
    close(modest);
    close(good);
    netkit_stop(&server);
}

/* Frames that never end, from several connections: they count as answers that nobody takes do. */
static void partial_frames_make_room(void)
{
    enum { SENDERS = 3 };
    netkit_prepare(&server);
    server.options.limits.buffered_bytes_max = 12 << 20;
    netkit_start(&server);
    int senders[SENDERS];
    for (int i = 0; i < SENDERS; i++) {
        senders[i] = netkit_connect(&server);
        netkit_claim(senders[i], 4000000, 2800000);
        NETKIT_UNTIL(&server, netkit_counters(&server).buffered_bytes >= (uint64_t)(i + 1) * 3900000);
    }
    const int good = netkit_connect(&server);
    netkit_request(good, ASK_BIG, 7, CMQ_NAME("2000000"));
    CHECK_INT(netkit_expect(good, 0, 7).bytes, 2000000);
    CHECK_INT(netkit_counters(&server).closed_memory, 1);
    for (int i = 0; i < SENDERS; i++) close(senders[i]);
    close(good);
    netkit_stop(&server);
}

/* ---- memory: what is in use, and what other loops have ---- */

enum { SHOWN_BYTES = 20000 };
static uint32_t shown_whole;   /* bodies of 'x' that were whole when the turn ended */

static void see_bodies(netkit_state *of)
{
    for (uint32_t i = 0; i < of->turned_count; i++) {
        const cmq_slice body = of->turned[i].body;
        size_t whole = 0;
        while (whole < body.bytes && body.data[whole] == 'x') whole++;
        CHECK_INT(whole, SHOWN_BYTES);
        shown_whole++;
    }
}

/* Frames that the handler has seen stay until the turn ends, also when their connection is closed to make room. */
static void closed_connections_keep_shown_frames(void)
{
    static uint8_t body[SHOWN_BYTES], frames[3 * SHOWN_BYTES];
    (void)mallopt(M_PERTURB, 0xA5);   /* bytes that are freed change */
    memset(body, 'x', sizeof body);
    const cmq_slice shown = {.data = body, .bytes = sizeof body};
    netkit_prepare(&server);
    server.options.limits.unsent_bytes_pause = 1000;
    server.options.limits.buffered_bytes_max = 1 << 20;
    netkit_start(&server);
    const int greedy = netkit_connect(&server), good = netkit_connect(&server);
    netkit_expect_served(greedy, 1);
    netkit_expect_served(good, 2);
    state()->at_turn_end = see_bodies;
    shown_whole = 0;
    /* The first answer is over the pause, so the frames behind it wait in the connection's own buffer … */
    size_t bytes = netkit_frame(frames, ASK_BIG, 3, 0, CMQ_NAME("2000"));
    bytes += netkit_frame(frames + bytes, ASK_ECHO, 4, 0, shown);
    bytes += netkit_frame(frames + bytes, ASK_BIG, 5, 0, CMQ_NAME("300000"));
    bytes += netkit_frame(frames + bytes, ASK_ECHO, 6, 0, shown);
    CHECK(bytes < NET_READ_BYTES);
    netkit_write(greedy, frames, bytes);
    NETKIT_UNTIL(&server, state()->requests == 3);
    CHECK_INT(shown_whole, 0);
    /* … until the next turn, which shows two of them; behind it the other client needs the memory. */
    netkit_request(good, ASK_BIG, 7, CMQ_NAME("900000"));
    cmq_net_turn(server.net);
    CHECK_INT(state()->requests, 6);
    CHECK_INT(shown_whole, 1);
    CHECK_INT(netkit_counters(&server).closed_slow_reader, 1);
    CHECK_INT(netkit_expect(good, 0, 7).bytes, 900000);
    close(greedy);
    close(good);
    NETKIT_UNTIL(&server, netkit_counters(&server).open == 0);
    CHECK_INT(netkit_counters(&server).buffered_bytes, 0);
    netkit_stop(&server);
    (void)mallopt(M_PERTURB, 0);
}

static uint32_t ends_seen;

static void see_no_input(netkit_state *of)
{
    CHECK(of->loop->oldest_input == NULL);
    ends_seen++;
}

/* A connection whose own output made room for its input is closing: no frame of it is waited for. */
static void connections_that_made_room_for_themselves_wait_for_nothing(void)
{
    enum { PART = 40000 };
    static uint8_t frames[PART + 256];
    netkit_prepare(&server);
    server.options.limits.buffered_bytes_max = 640000;
    netkit_start(&server);
    state()->at_turn_end = see_no_input;
    ends_seen = 0;
    const int fd = netkit_connect(&server);
    const size_t bytes = netkit_frame(frames, ASK_BIG, 1, 0, CMQ_NAME("600000"));
    cmq_frame_write_prefix(frames + bytes, CMQ_HEADER_JSON, 2, 500000);
    netkit_write(fd, frames, bytes + PART);
    NETKIT_UNTIL(&server, ends_seen == 1);
    CHECK_INT(netkit_counters(&server).closed_slow_reader, 1);
    NETKIT_UNTIL(&server, netkit_counters(&server).open == 0);
    CHECK_INT(netkit_counters(&server).buffered_bytes, 0);
    close(fd);
    netkit_stop(&server);
}

/* Memory that one loop's clients hold costs no connection of another loop that is below its share. */
static void loops_below_their_share_close_nobody(void)
{
    netkit_prepare(&server);
    server.options.loops = 2;
    server.options.limits.buffered_bytes_max = 12 << 20;
    netkit_start(&server);
    int fds[5];
    for (int i = 0; i < 5; i++) {
        fds[i] = netkit_connect(&server);   /* on the loops by turns */
        netkit_expect_served(fds[i], i);
    }
    CHECK_INT(server.states[0]->requests, 3);
    CHECK_INT(server.states[1]->requests, 2);
    /* 10 MiB of parts of frames on the first loop, whose share is 6, and 1 MiB on the second. */
    netkit_claim(fds[0], 5 << 20, 9 << 19);
    netkit_claim(fds[2], 5 << 20, 9 << 19);
    NETKIT_UNTIL(&server, netkit_counters(&server).buffered_bytes >= 10 << 20);
    netkit_claim(fds[1], 1 << 20, 900000);
    NETKIT_UNTIL(&server, netkit_counters(&server).buffered_bytes >= 11 << 20);
    CHECK_INT(netkit_counters(&server).open, 5);
    netkit_request(fds[3], ASK_BIG, 7, CMQ_NAME("4000000"));
    CHECK_INT(netkit_expect(fds[3], 0, 7).bytes, 4000000);
    CHECK_INT(server.states[1]->closed, 0);
    CHECK_INT(server.states[0]->closed, 1);
    CHECK_INT(netkit_counters(&server).closed_memory, 1);
    CHECK(netkit_counters(&server).buffered_bytes <= 7 << 20);
    netkit_expect_served(fds[4], 8);
    for (int i = 0; i < 5; i++) close(fds[i]);
    NETKIT_UNTIL(&server, netkit_counters(&server).open == 0);
    CHECK_INT(netkit_counters(&server).buffered_bytes, 0);
    netkit_stop(&server);
}

CMQ_TEST_MAIN(CMQ_TEST(buffered_input),
              CMQ_TEST(buffered_output),
              CMQ_TEST(silent_readers_make_room),
              CMQ_TEST(dripping_readers_make_room),
              CMQ_TEST(greedy_addresses_make_room),
              CMQ_TEST(partial_frames_make_room),
              CMQ_TEST(closed_connections_keep_shown_frames),
              CMQ_TEST(connections_that_made_room_for_themselves_wait_for_nothing),
              CMQ_TEST(loops_below_their_share_close_nobody))
