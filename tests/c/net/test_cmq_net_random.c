/* test_cmq_net_random: many clients that do anything in any order, against a server with tight limits, a control thread
 * that does anything, and time that jumps.
 *
 * Checks: every answer that a client reads is whole and to a request it made; nobody but those who deserve it is
 *         disconnected; and in the end nothing is left: no connection, no byte, no kept request, no loan.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "net/cmq_net_internal.h"
#include "support/cmq_net_kit.h"

#define CLIENTS 24
#define STEPS 6000
#define STREAM_BYTES (1u << 20)
#define ITEMS 64

typedef struct client {
    int fd;              /* -1: not connected */
    bool bad;            /* its connection will end, by bytes that it sent or that were sent for it */
    int32_t asked;       /* opaque of the next request */
    size_t begin, end;   /* of what is still to be written */
    size_t part;         /* bytes of the answer that is being read */
    uint8_t head[4];
    size_t left;         /* bytes of that answer that are still to come; with part 4 */
    uint8_t *stream;
} client;

static netkit_server server;
static client clients[CLIENTS];
static cmq_control_item items[ITEMS];
static uint32_t item_count;
static uint64_t answers_read;
static struct {
    uint64_t refused, corrupt, control_refused, slow_frames;
} happened;   /* in all rounds */

static uint64_t below(uint64_t bound) { return cmq_test_random_below(bound); }

/* Put one more frame, or garbage, behind what a client is going to write. */
static void extend(client *one)
{
    static uint8_t body[70000];
    if (STREAM_BYTES - one->end < sizeof body + 300) return;
    uint8_t *into = one->stream + one->end;
    const int32_t kinds[] = {ASK_ECHO, ASK_ECHO, ASK_ECHO, ASK_SILENT,  ASK_KEEP,
                             ASK_HOLD, ASK_BIG,  ASK_LEND, ASK_CONTROL, ASK_CONTROL};
    const int32_t kind = kinds[below(sizeof kinds / sizeof kinds[0])];
    if (below(300) == 0) {
        one->bad = true;
        if (below(2) == 0) {
            one->end += netkit_frame(into, ASK_CLOSE, one->asked++, 0, CMQ_SLICE_NONE);
        } else {
            const size_t bytes = 1 + below(40);
            for (size_t i = 0; i < bytes; i++) into[i] = (uint8_t)(0x80 | cmq_test_random());
            one->end += bytes;
        }
        return;
    }
    cmq_slice content = {.data = body, .bytes = below(below(10) == 0 ? sizeof body : 300)};
    char text[16];
    if (kind == ASK_BIG || kind == ASK_LEND) {
        snprintf(text, sizeof text, "%u", (unsigned)below(200000));
        content = cmq_slice_of_text(text);
    }
    const bool must_be_answered = kind == ASK_BIG || kind == ASK_LEND || kind == ASK_KEEP || kind == ASK_HOLD;
    const int32_t flag = !must_be_answered && below(10) == 0 ? CMQ_COMMAND_ONEWAY : 0;
    one->end += netkit_frame(into, kind, one->asked++, below(30) == 0 ? CMQ_COMMAND_RESPONSE : flag, content);
}

static void drop(client *one)
{
    close(one->fd);
    *one = (client){.fd = -1, .stream = one->stream};
}

static void write_some(client *one)
{
    for (uint64_t count = below(6); count > 0; count--) extend(one);
    const size_t waiting = one->end - one->begin, bytes = below(4) == 0 ? waiting : (size_t)below(waiting + 1);
    const ssize_t sent = send(one->fd, one->stream + one->begin, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent > 0) one->begin += (size_t)sent;
    if (sent < 0 && errno != EAGAIN) drop(one);
    if (one->fd >= 0 && one->begin == one->end) one->begin = one->end = 0;
}

/* Step over answers in what was read. */
static void follow(client *one, const uint8_t *bytes, size_t count)
{
    while (count > 0) {
        if (one->part < 4) {
            one->head[one->part++] = *bytes++;
            count--;
            if (one->part < 4) continue;
            one->left = cmq_load_u32(one->head);
            CHECK(one->left > 8 && one->left < 1 << 20);
            continue;
        }
        const size_t step = one->left < count ? one->left : count;
        bytes += step;
        count -= step;
        one->left -= step;
        if (one->left > 0) continue;
        one->part = 0;
        answers_read++;
    }
}

static void read_some(client *one)
{
    static uint8_t buffer[300000];
    const ssize_t got = recv(one->fd, buffer, 1 + (size_t)below(sizeof buffer), MSG_DONTWAIT);
    if (got > 0) {
        follow(one, buffer, (size_t)got);
    } else if (got == 0 || errno != EAGAIN) {
        /* A reset may cut an answer; an orderly end does not, unless the server had a reason. */
        CHECK(got < 0 || one->bad || one->part == 0);
        drop(one);
    }
}

static void act(client *one)
{
    if (one->fd < 0) {
        one->fd = netkit_connect(&server);
        return;
    }
    switch (below(40)) {
    case 0: drop(one); break;
    case 1:
        one->bad = true;   /* its responses may be cut off after a while */
        shutdown(one->fd, SHUT_WR);
        break;
    case 2: break;
    default:
        if (below(2) == 0) write_some(one);
        else read_some(one);
    }
}

static client *client_of(cmq_conn_id id)
{
    cmq_conn *conn = cmq_loop_conn(server.states[0]->loop, id);
    if (conn == NULL) return NULL;
    for (int i = 0; i < CLIENTS; i++) {
        struct sockaddr_in own;
        socklen_t bytes = sizeof own;
        if (clients[i].fd < 0 || getsockname(clients[i].fd, (struct sockaddr *)&own, &bytes) != 0) continue;
        if (ntohs(own.sin_port) == cmq_conn_peer(conn)->port) return &clients[i];
    }
    return NULL;
}

static void control(void)
{
    uint8_t frame[6000], body[5000] = {0};
    item_count += cmq_net_control_take(server.net, items + item_count, ITEMS - item_count);
    for (uint32_t i = 0; i < item_count;) {
        cmq_control_item *item = &items[i];
        const uint64_t what = item->kind == CMQ_CONTROL_REQUEST ? below(12) : 11;
        if (what < 3) {
            i++;   /* later */
            continue;
        }
        if (what < 6) {
            cmq_net_again(server.net, item);
        } else if (what < 10) {
            const size_t bytes = netkit_frame(frame, 0, 1, CMQ_COMMAND_RESPONSE,
                                              (cmq_slice){.data = body, .bytes = (size_t)below(sizeof body)});
            const cmq_status status = cmq_net_send(server.net, item->conn, frame, bytes);
            CHECK(status == CMQ_OK || status == CMQ_ERR_NOT_FOUND);
        } else if (what == 10 && below(10) == 0) {
            client *one = client_of(item->conn);
            if (one != NULL) one->bad = true;
            cmq_net_close_conn(server.net, item->conn);
        }
        cmq_control_item_done(server.net, item);
        *item = items[--item_count];
    }
}

static void step(void)
{
    const uint64_t what = below(100);
    act(&clients[below(CLIENTS)]);
    if (what < 5) control();
    if (what >= 10 && what < 20) {
        server.states[0]->answer_kept = true;
        cmq_loop_wake(server.states[0]->loop);
    }
    if (what == 20 && below(5) == 0) {
        /* Clients in the middle of a frame may be too slow now. */
        for (int i = 0; i < CLIENTS; i++) clients[i].bad = true;
        server.now_ns += (int64_t)below(40000) * NETKIT_MS;
    }
    if (what == 21) server.states[0]->due_ns = server.now_ns;
    if (what < 70) cmq_net_turn(server.net);
}

static void anything(void)
{
    netkit_prepare(&server);
    server.options.limits = (cmq_net_limits){
        .unsent_bytes_pause = 100000, .unsent_bytes_max = 40 << 20, .control_count_max = 5, .connections_max = 20};
    netkit_start(&server);
    for (int i = 0; i < CLIENTS; i++) {
        clients[i] = (client){.fd = -1, .stream = malloc(STREAM_BYTES)};
        CHECK(clients[i].stream != NULL);
    }
    item_count = 0;
    for (int i = 0; i < STEPS; i++) step();
    for (int i = 0; i < CLIENTS; i++) {
        if (clients[i].fd >= 0) close(clients[i].fd);
        free(clients[i].stream);
    }
    happened.refused += netkit_counters(&server).refused;   /* before those below, whom the clock ends */
    NETKIT_UNTIL(&server, (server.now_ns += 200000 * NETKIT_MS) > 0 && netkit_counters(&server).open == 0);
    while (item_count > 0 || (item_count = cmq_net_control_take(server.net, items, ITEMS)) > 0)
        while (item_count > 0) cmq_control_item_done(server.net, &items[--item_count]);
    NETKIT_UNTIL(&server, cmq_net_is_idle(server.net));
    const cmq_net_counters counters = netkit_counters(&server);
    CHECK_INT(counters.buffered_bytes, 0);
    CHECK_INT(counters.closed, counters.accepted);
    CHECK_INT(counters.closed, server.states[0]->closed);
    CHECK_INT(counters.closed_memory + counters.closed_slow_reader, 0);
    CHECK_INT(server.states[0]->kept_count, 0);
    CHECK_INT(server.states[0]->lent, server.states[0]->released);
    happened.corrupt += counters.closed_corrupt;
    happened.control_refused += counters.control_refused;
    happened.slow_frames += counters.closed_slow_frame;
    netkit_stop(&server);
}

static bool everything_happened(void)
{
    return answers_read > 1000 && happened.refused > 0 && happened.corrupt > 0 && happened.control_refused > 0 &&
           happened.slow_frames > 0;
}

/* Chance may leave something out of a round or two: they go on until it was a test. */
static void again_and_again(void)
{
    const int rounds = getenv("CMQ_LONG") != NULL ? 100 : 2;
    for (int i = 0; i < rounds || (!everything_happened() && i < 100); i++) anything();
    CHECK(everything_happened());
}

CMQ_TEST_MAIN(CMQ_TEST(again_and_again))
