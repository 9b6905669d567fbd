/* test_cmq_net: a server turned by hand: frames in pieces, many of them, those that lie; answers at once, later and too
 * late; the ends of connections; the control queue; draining and destroying with work in progress.
 */
#include "net/cmq_net.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "net/cmq_net_internal.h"
#include "support/cmq_net_kit.h"

static netkit_server server;

static void begin(void)
{
    netkit_prepare(&server);
    netkit_start(&server);
}

static void random_bytes(uint8_t *into, size_t count)
{
    for (size_t i = 0; i < count; i++) into[i] = (uint8_t)cmq_test_random();
}

static void bodies_of(uint32_t count, size_t body_bytes_max, size_t piece_max)
{
    begin();
    const int fd = netkit_connect(&server);
    uint8_t *stream = malloc((256 + body_bytes_max) * count), **bodies = malloc(count * sizeof *bodies);
    size_t *sizes = malloc(count * sizeof *sizes), stream_bytes = 0;
    CHECK(stream != NULL && bodies != NULL && sizes != NULL);
    for (uint32_t i = 0; i < count; i++) {
        sizes[i] = cmq_test_random_below(body_bytes_max + 1);
        bodies[i] = malloc(sizes[i] + 1);
        CHECK(bodies[i] != NULL);
        random_bytes(bodies[i], sizes[i]);
        stream_bytes += netkit_frame(stream + stream_bytes, ASK_ECHO, (int32_t)i, 0,
                                     (cmq_slice){.data = bodies[i], .bytes = sizes[i]});
    }
    uint32_t answered = 0;
    for (size_t at = 0; at < stream_bytes;) {
        const size_t piece = 1 + cmq_test_random_below(piece_max),
                     bytes = piece < stream_bytes - at ? piece : stream_bytes - at;
        netkit_write(fd, stream + at, bytes);
        at += bytes;
        if (cmq_test_random_below(2) == 0) cmq_net_turn(server.net);
        for (; !netkit_is_silent(fd); answered++) {
            const cmq_slice body = netkit_expect(fd, 0, (int32_t)answered);
            CHECK_BYTES(body.data, body.bytes, bodies[answered], sizes[answered]);
        }
    }
    for (; answered < count; answered++) {
        const cmq_slice body = netkit_expect(fd, 0, (int32_t)answered);
        CHECK_BYTES(body.data, body.bytes, bodies[answered], sizes[answered]);
    }
    CHECK(netkit_is_silent(fd));
    cmq_net_turn(server.net);
    CHECK(cmq_net_is_idle(server.net));
    CHECK_INT(netkit_counters(&server).frames_in, count);
    CHECK_INT(netkit_counters(&server).frames_out, count);
    CHECK_INT(netkit_counters(&server).bytes_in, stream_bytes);
    CHECK_INT(netkit_counters(&server).buffered_bytes, 0);
    close(fd);
    netkit_stop(&server);
    for (uint32_t i = 0; i < count; i++) free(bodies[i]);
    free(bodies);
    free(sizes);
    free(stream);
}

/* However a stream is cut into pieces, every frame is served once, in order, with its bytes. */
static void pieces_of_any_size(void)
{
    bodies_of(20, 40, 1);
    bodies_of(300, 300, 50);
    bodies_of(300, 3000, 5000);
    bodies_of(60, 200000, 100000);
    bodies_of(4, 6000000, 3000000);
    bodies_of(3000, 100, 300000);
}

/* One read, one write, however many requests. */
static void pipelining(void)
{
    begin();
    const int fd = netkit_connect(&server);
    NETKIT_UNTIL(&server, netkit_counters(&server).accepted == 1);
    uint8_t stream[64 * 300];
    size_t bytes = 0;
    for (int32_t i = 0; i < 64; i++) bytes += netkit_frame(stream + bytes, ASK_ECHO, i, 0, CMQ_NAME("body"));
    netkit_write(fd, stream, bytes);
    NETKIT_UNTIL(&server, netkit_counters(&server).frames_out == 64);
    CHECK_INT(netkit_counters(&server).reads, 1);
    CHECK_INT(netkit_counters(&server).writes, 1);
    CHECK_INT(server.states[0]->turns, 1);
    for (int32_t i = 0; i < 64; i++) (void)netkit_expect(fd, 0, i);
    close(fd);
    netkit_stop(&server);
}

/* More at once than the read buffer holds: turns end in between, and nothing is shown twice or changed meanwhile. */
static void a_turn_of_many_connections(void)
{
    begin();
    enum { CONNS = 40, EACH = 120 };
    int fds[CONNS];
    uint8_t *stream = malloc(EACH * 700), body[400];
    CHECK(stream != NULL);
    for (int c = 0; c < CONNS; c++) fds[c] = netkit_connect(&server);
    NETKIT_UNTIL(&server, netkit_counters(&server).accepted == CONNS);
    for (int c = 0; c < CONNS; c++) {
        size_t bytes = 0;
        for (int32_t i = 0; i < EACH; i++) {
            memset(body, c * 7 + i, sizeof body);
            bytes += netkit_frame(stream + bytes, ASK_ECHO, c * 1000 + i, 0,
                                  (cmq_slice){.data = body, .bytes = sizeof body});
        }
        netkit_write(fds[c], stream, bytes);
    }
    for (int c = 0; c < CONNS; c++) {
        for (int32_t i = 0; i < EACH; i++) {
            memset(body, c * 7 + i, sizeof body);
            const cmq_slice answer = netkit_expect(fds[c], 0, c * 1000 + i);
            CHECK_BYTES(answer.data, answer.bytes, body, sizeof body);
        }
        close(fds[c]);
    }
    NETKIT_UNTIL(&server, netkit_counters(&server).open == 0);
    CHECK_INT(server.states[0]->requests, CONNS * EACH);
    CHECK_INT(server.states[0]->closed, CONNS);
    free(stream);
    netkit_stop(&server);
}

static void short_answers(void)
{
    begin();
    const int fd = netkit_connect(&server);
    netkit_request(fd, ASK_KEEP, 5, CMQ_SLICE_NONE);
    NETKIT_UNTIL(&server, server.states[0]->kept_count == 1);
    CHECK(!cmq_net_is_idle(server.net));
    server.states[0]->answer_kept = true;
    cmq_loop_wake(server.states[0]->loop);
    cmq_loop_wake(server.states[0]->loop);
    (void)netkit_expect(fd, 9, 5);
    CHECK_INT(server.states[0]->woken, 1);
    CHECK(cmq_net_is_idle(server.net));
    /* Nobody answers one-way requests, those of the kit's handler least. */
    uint8_t frame[256];
    netkit_write(fd, frame, netkit_frame(frame, ASK_ECHO, 6, CMQ_COMMAND_ONEWAY, CMQ_SLICE_NONE));
    netkit_request(fd, ASK_ECHO, 7, CMQ_SLICE_NONE);
    (void)netkit_expect(fd, 0, 7);
    close(fd);
    netkit_stop(&server);
}

/* A handler's time comes when it said so, not before. */
static void ticks(void)
{
    begin();
    const int fd = netkit_connect(&server);
    netkit_request(fd, ASK_KEEP, 1, CMQ_SLICE_NONE);
    NETKIT_UNTIL(&server, server.states[0]->kept_count == 1);
    server.states[0]->due_ns = server.now_ns + 5 * NETKIT_MS;
    server.now_ns += 5 * NETKIT_MS - 1;
    cmq_net_turn(server.net);
    CHECK_INT(server.states[0]->ticks, 0);
    server.now_ns += 1;
    cmq_net_turn(server.net);
    CHECK_INT(server.states[0]->ticks, 1);
    (void)netkit_expect(fd, 9, 1);
    close(fd);
    netkit_stop(&server);
}

/* ---- ends ---- */

static void a_client_that_leaves(void)
{
    begin();
    const int first = netkit_connect(&server);
    netkit_request(first, ASK_HOLD, 1, CMQ_SLICE_NONE);
    NETKIT_UNTIL(&server, server.states[0]->kept_count == 1);
    const cmq_conn_id id = server.states[0]->last_conn;
    CHECK(cmq_loop_conn(server.states[0]->loop, id) != NULL);
    close(first);
    NETKIT_UNTIL(&server, server.states[0]->closed == 1);
    CHECK_INT(server.states[0]->half_closed, 1);
    CHECK_INT(server.states[0]->kept_count, 0);
    CHECK(cmq_net_is_idle(server.net));
    CHECK(cmq_loop_conn(server.states[0]->loop, id) == NULL);
    CHECK_STATUS(cmq_net_send(server.net, id, (const uint8_t *)"x", 1), CMQ_ERR_NOT_FOUND);
    /* The next has the place, not the name. */
    const int second = netkit_connect(&server);
    netkit_request(second, ASK_ECHO, 2, CMQ_SLICE_NONE);
    (void)netkit_expect(second, 0, 2);
    CHECK(server.states[0]->last_conn != id);
    CHECK_INT(net_slot_of_id(server.states[0]->last_conn), net_slot_of_id(id));
    CHECK(cmq_loop_conn(server.states[0]->loop, id) == NULL);
    cmq_net_close_conn(server.net, id);
    netkit_request(second, ASK_ECHO, 3, CMQ_SLICE_NONE);
    (void)netkit_expect(second, 0, 3);
    close(second);
    netkit_stop(&server);
}

/* A client that half-closes still gets its responses: those that wait for the disk, those that Python has, those that
 * the socket did not take yet. */
static void a_client_that_half_closes(void)
{
    begin();
    const int fd = netkit_connect(&server);
    netkit_request(fd, ASK_KEEP, 1, CMQ_SLICE_NONE);
    netkit_request(fd, ASK_CONTROL, 2, CMQ_SLICE_NONE);
    netkit_request(fd, ASK_HOLD, 3, CMQ_SLICE_NONE);
    netkit_request(fd, ASK_BIG, 4, CMQ_NAME("12000000"));
    CHECK(shutdown(fd, SHUT_WR) == 0);
    for (int i = 0; i < 10; i++) cmq_net_turn(server.net);
    CHECK_INT(netkit_expect(fd, 0, 4).bytes, 12000000);
    NETKIT_UNTIL(&server, server.states[0]->half_closed == 1);
    CHECK_INT(server.states[0]->kept_count, 1);
    cmq_net_turn(server.net);
    CHECK_INT(server.states[0]->closed, 0);
    server.states[0]->answer_kept = true;
    cmq_loop_wake(server.states[0]->loop);
    (void)netkit_expect(fd, 9, 1);
    CHECK_INT(server.states[0]->closed, 0);
    cmq_control_item item;
    CHECK_INT(cmq_net_control_take(server.net, &item, 1), 1);
    uint8_t frame[256];
    CHECK_OK(
        cmq_net_send(server.net, item.conn, frame, netkit_frame(frame, 0, 2, CMQ_COMMAND_RESPONSE, CMQ_SLICE_NONE)));
    cmq_control_item_done(server.net, &item);
    (void)netkit_expect(fd, 0, 2);
    netkit_expect_end(fd);
    CHECK_INT(server.states[0]->closed, 1);
    close(fd);
    netkit_stop(&server);
}

/* … but not for ever. */
static void half_closed_and_never_answered(void)
{
    begin();
    const int fd = netkit_connect(&server);
    netkit_request(fd, ASK_SILENT, 1, CMQ_SLICE_NONE);
    CHECK(shutdown(fd, SHUT_WR) == 0);
    NETKIT_UNTIL(&server, server.states[0]->half_closed == 1);
    server.now_ns += NET_HALF_CLOSED_NS - 1;
    cmq_net_turn(server.net);
    CHECK_INT(server.states[0]->closed, 0);
    server.now_ns += 1;
    cmq_net_turn(server.net);
    CHECK_INT(server.states[0]->closed, 1);
    netkit_expect_end(fd);
    close(fd);
    netkit_stop(&server);
}

static void closed_by_the_handler(void)
{
    begin();
    const int fd = netkit_connect(&server);
    uint8_t stream[1024];
    size_t bytes = netkit_frame(stream, ASK_ECHO, 1, 0, CMQ_SLICE_NONE);
    bytes += netkit_frame(stream + bytes, ASK_CLOSE, 2, 0, CMQ_SLICE_NONE);
    bytes += netkit_frame(stream + bytes, ASK_ECHO, 3, 0, CMQ_SLICE_NONE);
    netkit_write(fd, stream, bytes);
    (void)netkit_expect(fd, 0, 1);
    netkit_expect_end(fd);
    CHECK_INT(server.states[0]->requests, 2);
    CHECK_INT(server.states[0]->closed, 1);
    close(fd);
    netkit_stop(&server);
}

/* Closing from outside waits until what is in the output was taken. */
static void closed_while_output_is_pending(void)
{
    begin();
    const int fd = netkit_connect(&server);
    netkit_request(fd, ASK_BIG, 1, CMQ_NAME("14000000"));
    NETKIT_UNTIL(&server, server.states[0]->requests == 1);
    cmq_net_close_conn(server.net, server.states[0]->last_conn);
    for (int i = 0; i < 10; i++) cmq_net_turn(server.net);
    CHECK_INT(server.states[0]->closed, 0);
    CHECK(!cmq_net_is_idle(server.net));
    CHECK_INT(netkit_expect(fd, 0, 1).bytes, 14000000);
    netkit_expect_end(fd);
    CHECK_INT(server.states[0]->closed, 1);
    CHECK(cmq_net_is_idle(server.net));
    close(fd);
    netkit_stop(&server);
}

/* Lent bytes are returned once: when they were sent, or when the connection ends before. */
static void lent_bytes(void)
{
    begin();
    const int fd = netkit_connect(&server);
    for (int32_t i = 0; i < 3; i++) netkit_request(fd, ASK_LEND, i, CMQ_NAME("3000000"));
    for (int32_t i = 0; i < 3; i++) CHECK_INT(netkit_expect(fd, 0, i).bytes, 3000000);
    NETKIT_UNTIL(&server, server.states[0]->released == 3);
    CHECK_INT(netkit_counters(&server).buffered_bytes, 0);
    netkit_request(fd, ASK_LEND, 4, CMQ_NAME("16000000"));
    NETKIT_UNTIL(&server, server.states[0]->lent == 4);
    cmq_net_turn(server.net);
    CHECK_INT(server.states[0]->released, 3);
    close(fd);
    NETKIT_UNTIL(&server, server.states[0]->closed == 1);
    CHECK_INT(server.states[0]->released, 4);
    CHECK_INT(netkit_counters(&server).buffered_bytes, 0);
    netkit_stop(&server);
}

/* ---- the control queue ---- */

static void control_queue(void)
{
    begin();
    const int fd = netkit_connect(&server);
    cmq_control_item items[8];
    CHECK_INT(cmq_net_control_take(server.net, items, 8), 0);
    CHECK(netkit_is_silent(cmq_net_control_fd(server.net)));
    uint8_t frame[300];
    for (int32_t i = 0; i < 3; i++) netkit_request(fd, ASK_CONTROL + i, i, CMQ_NAME("request"));
    netkit_write(fd, frame, netkit_frame(frame, 0, 77, CMQ_COMMAND_RESPONSE, CMQ_NAME("response")));
    NETKIT_UNTIL(&server, netkit_counters(&server).control_items == 4);
    CHECK(!netkit_is_silent(cmq_net_control_fd(server.net)));
    CHECK_INT(cmq_net_control_take(server.net, items, 3), 3);
    CHECK(!netkit_is_silent(cmq_net_control_fd(server.net)));   /* one is left */
    CHECK_INT(cmq_net_control_take(server.net, items + 3, 5), 1);
    CHECK_INT(cmq_net_control_take(server.net, items + 4, 4), 0);
    CHECK(netkit_is_silent(cmq_net_control_fd(server.net)));
    for (int32_t i = 0; i < 3; i++) {
        const size_t bytes = netkit_frame(frame, ASK_CONTROL + i, i, 0, CMQ_NAME("request"));
        CHECK_INT(items[i].kind, CMQ_CONTROL_REQUEST);
        CHECK_BYTES(items[i].frame, items[i].frame_bytes, frame, bytes);
        CHECK_INT(items[i].local_port, server.port);
        CHECK_BYTES(items[i].peer.address, 4, "\x7f\0\0\1", 4);
        CHECK_INT(items[i].arrived_ns, server.now_ns);
    }
    CHECK_INT(items[3].kind, CMQ_CONTROL_RESPONSE);
    CHECK(!cmq_net_is_idle(server.net));
    /* One is answered, one is given back, one is done without an answer. */
    CHECK_OK(cmq_net_send(server.net, items[0].conn, frame,
                          netkit_frame(frame, 3, 0, CMQ_COMMAND_RESPONSE, CMQ_SLICE_NONE)));
    cmq_control_item_done(server.net, &items[0]);
    cmq_net_again(server.net, &items[1]);
    cmq_control_item_done(server.net, &items[2]);
    cmq_control_item_done(server.net, &items[3]);
    cmq_control_item_done(server.net, &items[3]);   /* twice is once */
    CHECK(!cmq_net_is_idle(server.net));
    (void)netkit_expect(fd, 3, 0);
    const cmq_slice body = netkit_expect(fd, 7, 1);
    CHECK_BYTES(body.data, body.bytes, "request", 7);
    cmq_net_turn(server.net);
    CHECK(cmq_net_is_idle(server.net));
    const cmq_conn_id id = items[0].conn;
    close(fd);
    NETKIT_UNTIL(&server, server.states[0]->half_closed == 1);
    server.now_ns += NET_HALF_CLOSED_NS;   /* as one request was never answered */
    NETKIT_UNTIL(&server, server.states[0]->closed == 1);
    CHECK_INT(cmq_net_control_take(server.net, items, 8), 1);
    CHECK_INT(items[0].kind, CMQ_CONTROL_CLOSED);
    CHECK_INT(items[0].conn, id);
    CHECK(items[0].frame == NULL);
    cmq_control_item_done(server.net, &items[0]);
    netkit_stop(&server);
}

/* Answers, redispatches and closings for a connection that has gone meanwhile reach nobody, least who has its place
 * now. */
static void late_replies(void)
{
    begin();
    const int first = netkit_connect(&server);
    for (int32_t i = 0; i < 2; i++) netkit_request(first, ASK_CONTROL, i, CMQ_SLICE_NONE);
    NETKIT_UNTIL(&server, netkit_counters(&server).control_items == 2);
    cmq_control_item items[2];
    CHECK_INT(cmq_net_control_take(server.net, items, 2), 2);
    const cmq_conn_id id = items[0].conn;
    uint8_t frame[256];
    const size_t bytes = netkit_frame(frame, 0, 0, CMQ_COMMAND_RESPONSE, CMQ_SLICE_NONE);
    close(first);
    /* On its way when the connection goes. */
    CHECK_OK(cmq_net_send(server.net, id, frame, bytes));
    cmq_net_again(server.net, &items[0]);
    cmq_net_close_conn(server.net, id);
    NETKIT_UNTIL(&server, server.states[0]->closed == 1);
    CHECK_INT(server.states[0]->requests, 3);   /* the second time for the one that was given back in time */
    const uint32_t requests = server.states[0]->requests;
    const int second = netkit_connect(&server);
    NETKIT_UNTIL(&server, netkit_counters(&server).accepted == 2);
    CHECK_STATUS(cmq_net_send(server.net, id, frame, bytes), CMQ_ERR_NOT_FOUND);
    cmq_net_again(server.net, &items[1]);
    CHECK_INT(server.states[0]->requests, requests);
    CHECK(cmq_net_is_idle(server.net));
    netkit_request(second, ASK_ECHO, 9, CMQ_SLICE_NONE);
    (void)netkit_expect(second, 0, 9);
    CHECK(netkit_is_silent(second));
    close(second);
    netkit_stop(&server);
}

/* Requests of ours to a client, and frames of every size. */
static void sends_from_outside(void)
{
    begin();
    const int fd = netkit_connect(&server);
    netkit_request(fd, ASK_ECHO, 1, CMQ_SLICE_NONE);
    (void)netkit_expect(fd, 0, 1);
    const size_t sizes[] = {0, 10, 4000, 4096, 100000, 3000000};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        uint8_t *frame = malloc(256 + sizes[i]), *body = malloc(sizes[i] + 1);
        CHECK(frame != NULL && body != NULL);
        random_bytes(body, sizes[i]);
        CHECK_OK(cmq_net_send(
            server.net, server.states[0]->last_conn, frame,
            netkit_frame(frame, 0, (int32_t)i, CMQ_COMMAND_RESPONSE, (cmq_slice){.data = body, .bytes = sizes[i]})));
        const cmq_slice got = netkit_expect(fd, 0, (int32_t)i);
        CHECK_BYTES(got.data, got.bytes, body, sizes[i]);
        free(frame);
        free(body);
    }
    CHECK_INT(netkit_counters(&server).frames_out, 7);
    CHECK_INT(netkit_counters(&server).buffered_bytes, 0);
    CHECK_STATUS(cmq_net_send(server.net, 0, (const uint8_t *)"x", 1), CMQ_ERR_NOT_FOUND);
    CHECK_STATUS(cmq_net_send(server.net, UINT64_MAX, (const uint8_t *)"x", 1), CMQ_ERR_NOT_FOUND);
    CHECK_STATUS(cmq_net_send(server.net, server.states[0]->last_conn + (1 << 24), (const uint8_t *)"x", 1),
                 CMQ_ERR_NOT_FOUND);
    CHECK_STATUS(cmq_net_send(server.net, server.states[0]->last_conn + (300 << 4), (const uint8_t *)"x", 1),
                 CMQ_ERR_NOT_FOUND);
    close(fd);
    netkit_stop(&server);
}

/* ---- the server's life ---- */

static void draining(void)
{
    begin();
    const int fd = netkit_connect(&server);
    netkit_request(fd, ASK_KEEP, 1, CMQ_SLICE_NONE);
    netkit_request(fd, ASK_CONTROL, 2, CMQ_SLICE_NONE);
    NETKIT_UNTIL(&server, netkit_counters(&server).control_items == 1);
    cmq_net_drain(server.net);
    cmq_net_turn(server.net);
    /* The address is free: another server can have it while this one finishes. */
    cmq_net *other;
    char address[32];
    snprintf(address, sizeof address, "127.0.0.1:%u", server.port);
    const char *addresses[] = {address};
    const cmq_net_options options = {.addresses = addresses, .address_count = 1, .manual = true};
    CHECK_OK(cmq_net_create(&other, &options));
    cmq_net_destroy(other);
    /* A client that knows GO_AWAY, one that does not; one-way requests are taken. */
    netkit_request(fd, ASK_ECHO, 3, CMQ_SLICE_NONE);
    (void)netkit_expect(fd, 1500, 3);
    const char *old = "{\"code\":1,\"flag\":0,\"language\":\"JAVA\",\"opaque\":4,\"version\":475}";
    uint8_t frame[256];
    cmq_frame_write_prefix(frame, CMQ_HEADER_JSON, (uint32_t)strlen(old), 0);
    memcpy(frame + CMQ_FRAME_PREFIX_BYTES, old, strlen(old));
    netkit_write(fd, frame, CMQ_FRAME_PREFIX_BYTES + strlen(old));
    (void)netkit_expect(fd, 14, 4);
    const uint32_t requests = server.states[0]->requests;
    netkit_write(fd, frame, netkit_frame(frame, ASK_SILENT, 5, CMQ_COMMAND_ONEWAY, CMQ_SLICE_NONE));
    NETKIT_UNTIL(&server, server.states[0]->requests == requests + 1);
    /* Requests in progress go on. */
    CHECK(!cmq_net_is_idle(server.net));
    cmq_control_item item;
    CHECK_INT(cmq_net_control_take(server.net, &item, 1), 1);
    cmq_net_again(server.net, &item);
    (void)netkit_expect(fd, 7, 2);
    CHECK(!cmq_net_is_idle(server.net));
    server.states[0]->answer_kept = true;
    cmq_loop_wake(server.states[0]->loop);
    (void)netkit_expect(fd, 9, 1);
    CHECK(cmq_net_is_idle(server.net));
    close(fd);
    netkit_stop(&server);
}

/* Everything at once: half a frame, output that waits, kept requests, items at and in the control queue, mails. */
static void destroyed_with_work_under_way(void)
{
    begin();
    int fds[4];
    for (int i = 0; i < 4; i++) fds[i] = netkit_connect(&server);
    netkit_request(fds[0], ASK_LEND, 1, CMQ_NAME("16000000"));
    netkit_request(fds[1], ASK_KEEP, 2, CMQ_SLICE_NONE);
    netkit_request(fds[2], ASK_CONTROL, 3, CMQ_SLICE_NONE);
    netkit_request(fds[2], ASK_CONTROL, 4, CMQ_SLICE_NONE);
    uint8_t half[5000] = {0};
    cmq_store_u32(half, 1000000);
    cmq_store_u32(half + 4, 100);
    netkit_write(fds[3], half, sizeof half);
    NETKIT_UNTIL(&server, netkit_counters(&server).control_items == 2 && server.states[0]->lent == 1 &&
                              netkit_counters(&server).bytes_in > 5000);
    cmq_control_item item;
    CHECK_INT(cmq_net_control_take(server.net, &item, 1), 1);
    CHECK_OK(cmq_net_send(server.net, item.conn, half, 8));
    cmq_net_again(server.net, &item);
    netkit_stop(&server);
    for (int i = 0; i < 4; i++) close(fds[i]);
}

static void addresses(void)
{
    cmq_net *net;
    const char *bad[] = {"",
                         ":",
                         "127.0.0.1",
                         "127.0.0.1:",
                         "127.0.0.1:x",
                         "127.0.0.1:70000",
                         "127.0.0.1:-1",
                         "localhost:1",
                         "[::1:1",
                         "::1:1",
                         "[::1]1",
                         "127.0.0.1:1 ",
                         "[127.0.0.1]:1",
                         "[]:1",
                         "]:1",
                         "[:1"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const cmq_net_options options = {.addresses = &bad[i], .address_count = 1, .manual = true};
        CHECK_STATUS(cmq_net_create(&net, &options), CMQ_ERR_ARGUMENT);
        CHECK(net == NULL);
    }
    begin();
    char taken[32];
    snprintf(taken, sizeof taken, "127.0.0.1:%u", server.port);
    const char *two[] = {"127.0.0.1:0", taken};
    const cmq_net_options options = {.addresses = two, .address_count = 2, .manual = true};
    CHECK_STATUS(cmq_net_create(&net, &options), CMQ_ERR_IO);
    CHECK(strstr(cmq_last_error()->text, taken) != NULL);
    const cmq_net_options none = {.manual = true};
    CHECK_STATUS(cmq_net_create(&net, &none), CMQ_ERR_ARGUMENT);
    const cmq_net_options loops = {.addresses = two, .address_count = 1, .manual = true, .loops = 17};
    CHECK_STATUS(cmq_net_create(&net, &loops), CMQ_ERR_ARGUMENT);
    netkit_stop(&server);
}

/* A server of two addresses and three loops: the port tells by which address, and the loops share. */
static void addresses_and_loops(void)
{
    netkit_prepare(&server);
    const char *two[] = {"127.0.0.1:0", "127.0.0.1:0"};
    server.options.addresses = two;
    server.options.address_count = 2;
    server.options.loops = 3;
    netkit_start(&server);
    const uint16_t second_port = cmq_net_port(server.net, 1);
    CHECK(second_port != server.port);
    int fds[6];
    for (int i = 0; i < 6; i++) {
        fds[i] = netkit_connect(&server);
        netkit_request(fds[i], ASK_ECHO, i, CMQ_SLICE_NONE);
        (void)netkit_expect(fds[i], 0, i);
    }
    for (uint32_t i = 0; i < 3; i++) CHECK_INT(server.states[i]->requests, 2);
    server.port = second_port;
    const int other = netkit_connect(&server);
    netkit_request(other, ASK_CONTROL, 1, CMQ_SLICE_NONE);
    NETKIT_UNTIL(&server, netkit_counters(&server).control_items == 1);
    cmq_control_item item;
    CHECK_INT(cmq_net_control_take(server.net, &item, 1), 1);
    CHECK_INT(item.local_port, second_port);
    uint8_t frame[256];
    CHECK_OK(
        cmq_net_send(server.net, item.conn, frame, netkit_frame(frame, 0, 1, CMQ_COMMAND_RESPONSE, CMQ_SLICE_NONE)));
    cmq_control_item_done(server.net, &item);
    (void)netkit_expect(other, 0, 1);
    close(other);
    for (int i = 0; i < 6; i++) close(fds[i]);
    netkit_stop(&server);
}

/* The options of a connection's socket, without a call per connection. */
static void sockets(void)
{
    begin();
    const int fd = netkit_connect(&server);
    netkit_request(fd, ASK_ECHO, 1, CMQ_SLICE_NONE);
    (void)netkit_expect(fd, 0, 1);
    const cmq_conn *conn = cmq_loop_conn(server.states[0]->loop, server.states[0]->last_conn);
    CHECK(conn != NULL);
    int no_delay = 0;
    socklen_t bytes = sizeof no_delay;
    CHECK(getsockopt(conn_fd(conn), IPPROTO_TCP, TCP_NODELAY, &no_delay, &bytes) == 0);
    CHECK(no_delay != 0);
    CHECK((fcntl(conn_fd(conn), F_GETFD) & FD_CLOEXEC) != 0);
    CHECK((fcntl(conn_fd(conn), F_GETFL) & O_NONBLOCK) != 0);
    close(fd);
    netkit_stop(&server);
}

static void ipv6(void)
{
    const char *address = "[::1]:0";
    netkit_prepare(&server);
    server.options.addresses = &address;
    const cmq_status status = cmq_net_create(&server.net, &server.options);
    if (status != CMQ_OK) {
        CHECK(cmq_last_error()->sys_errno == EADDRNOTAVAIL || cmq_last_error()->sys_errno == EAFNOSUPPORT);
        fprintf(stderr, "no IPv6 here: %s\n", cmq_last_error()->text);
        return;
    }
    CHECK_OK(cmq_net_start(server.net));
    netkit_turning = &server;
    struct sockaddr_in6 to = {.sin6_family = AF_INET6,
                              .sin6_port = htons(cmq_net_port(server.net, 0)),
                              .sin6_addr = in6addr_loopback},
                        own;
    socklen_t bytes = sizeof own;
    const int fd = socket(AF_INET6, SOCK_STREAM, 0);
    CHECK(connect(fd, (const struct sockaddr *)&to, sizeof to) == 0 &&
          getsockname(fd, (struct sockaddr *)&own, &bytes) == 0);
    netkit_request(fd, ASK_ECHO, 1, CMQ_SLICE_NONE);
    (void)netkit_expect(fd, 0, 1);
    const cmq_record_host *peer = cmq_conn_peer(cmq_loop_conn(server.states[0]->loop, server.states[0]->last_conn));
    CHECK(peer->ipv6);
    CHECK_BYTES(peer->address, 16, &in6addr_loopback, 16);
    CHECK_INT(peer->port, ntohs(own.sin6_port));
    close(fd);
    netkit_stop(&server);
}

static void limits_that_are_none(void)
{
    netkit_prepare(&server);
    server.options.limits.idle_ms = -1;
    CHECK_STATUS(cmq_net_create(&server.net, &server.options), CMQ_ERR_ARGUMENT);
    server.options.limits.idle_ms = 0;
    server.options.limits.control_conn_max = UINT16_MAX + 1;
    CHECK_STATUS(cmq_net_create(&server.net, &server.options), CMQ_ERR_ARGUMENT);
    server.options.limits.control_conn_max = 0;
    server.options.limits.connections_max = NET_CONNECTIONS_MAX + 1;
    CHECK_STATUS(cmq_net_create(&server.net, &server.options), CMQ_ERR_ARGUMENT);
}

static cmq_status refuse(void *context, cmq_loop *loop, uint32_t index, void **state_out)
{
    (void)context, (void)loop;
    *state_out = NULL;
    return index == 1 ? cmq_fail(CMQ_ERR_LIMIT, "no second loop") : CMQ_OK;
}

static uint32_t ends;
static void count_end(void *context, void *state_of_loop) { (void)context, (void)state_of_loop, ends++; }

/* Loops that did begin are ended. */
static void a_loop_that_cannot_begin(void)
{
    netkit_prepare(&server);
    server.options.loops = 3;
    server.options.handler = (cmq_net_handler){.loop_begin = refuse, .loop_end = count_end};
    CHECK_OK(cmq_net_create(&server.net, &server.options));
    CHECK_STATUS(cmq_net_start(server.net), CMQ_ERR_LIMIT);
    cmq_net_destroy(server.net);
    CHECK_INT(ends, 1);
}

CMQ_TEST_MAIN(CMQ_TEST(pieces_of_any_size), CMQ_TEST(pipelining), CMQ_TEST(a_turn_of_many_connections),
              CMQ_TEST(short_answers), CMQ_TEST(ticks), CMQ_TEST(a_client_that_leaves),
              CMQ_TEST(a_client_that_half_closes), CMQ_TEST(half_closed_and_never_answered),
              CMQ_TEST(closed_by_the_handler), CMQ_TEST(closed_while_output_is_pending), CMQ_TEST(lent_bytes),
              CMQ_TEST(control_queue), CMQ_TEST(late_replies), CMQ_TEST(sends_from_outside), CMQ_TEST(draining),
              CMQ_TEST(destroyed_with_work_under_way), CMQ_TEST(addresses), CMQ_TEST(addresses_and_loops),
              CMQ_TEST(sockets), CMQ_TEST(ipv6), CMQ_TEST(limits_that_are_none), CMQ_TEST(a_loop_that_cannot_begin))
