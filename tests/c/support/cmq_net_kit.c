/* cmq_net_kit: see cmq_net_kit.h. */
#include "support/cmq_net_kit.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "net/cmq_net_internal.h"

netkit_server *netkit_turning;

int64_t netkit_seconds(void) { return (int64_t)time(NULL); }
void netkit_yield(void) { sched_yield(); }

/* ---- the handler ---- */

static cmq_status loop_begin(void *context, cmq_loop *loop, uint32_t index, void **state_out)
{
    netkit_server *server = context;
    netkit_state *state = calloc(1, sizeof *state);
    CHECK(state != NULL);
    state->loop = loop;
    state->index = index;
    state->due_ns = INT64_MAX;
    server->states[server->state_count++] = state;
    *state_out = state;
    return CMQ_OK;
}

static void loop_end(void *context, void *state)
{
    const netkit_state *ended = state;
    CHECK_INT(ended->turned_count, 0);
    CHECK_INT(ended->lent, ended->released);
    (void)context;
    free(state);
}

static void turn_begin(void *context)
{
    netkit_state *state = context;
    CHECK_INT(state->turned_count, 0);
    state->turns++;
}

static void answer_body(cmq_conn *conn, const cmq_command *command, int32_t code, cmq_slice body)
{
    uint8_t *into = cmq_conn_reserve(conn, 256 + body.bytes);
    if (into == NULL) return;
    cmq_command_writer writer;
    cmq_command_begin(&writer, into, 256, command->format, code, command->opaque, CMQ_COMMAND_RESPONSE, CMQ_SLICE_NONE);
    const size_t bytes = cmq_command_end(&writer, body.bytes);
    if (body.bytes > 0) memcpy(into + bytes, body.data, body.bytes);
    cmq_conn_commit(conn, bytes + body.bytes);
}

static uint8_t big[16 << 20];

static void release_lent(void *context) { ((netkit_state *)context)->released++; }

static void answer_big(netkit_state *state, cmq_conn *conn, const cmq_command *command, cmq_slice body, bool lend)
{
    char text[16] = {0};
    CHECK(body.bytes < sizeof text);
    memcpy(text, body.data, body.bytes);
    const cmq_slice bytes = {.data = big, .bytes = (size_t)strtoull(text, NULL, 10)};
    CHECK(bytes.bytes <= sizeof big);
    if (!lend) {
        answer_body(conn, command, 0, bytes);
        return;
    }
    uint8_t *into = cmq_conn_reserve(conn, 256);
    if (into != NULL) {
        cmq_command_writer writer;
        cmq_command_begin(&writer, into, 256, command->format, 0, command->opaque, CMQ_COMMAND_RESPONSE,
                          CMQ_SLICE_NONE);
        cmq_conn_commit(conn, cmq_command_end(&writer, bytes.bytes));
    }
    state->lent++;
    cmq_conn_lend(conn, bytes, release_lent, state);
}

static cmq_net_verdict request(void *context, cmq_conn *conn, const cmq_command *command, cmq_slice body, bool again)
{
    netkit_state *state = context;
    CHECK(cmq_loop_conn(state->loop, cmq_conn_id_of(conn)) == conn);
    state->requests++;
    state->last_conn = cmq_conn_id_of(conn);
    if (again) {
        answer_body(conn, command, 7, body);
        return CMQ_NET_DONE;
    }
    switch (command->code) {
    case ASK_ECHO:
        CHECK(state->turned_count < sizeof state->turned / sizeof state->turned[0]);
        state->turned[state->turned_count++] = (netkit_turned){
            .conn = conn, .format = command->format, .opaque = command->opaque, .flag = command->flag, .body = body};
        return CMQ_NET_DONE;
    case ASK_SILENT: return CMQ_NET_DONE;
    case ASK_KEEP:
    case ASK_HOLD:
        CHECK(state->kept_count < NETKIT_KEPT_MAX);
        state->kept[state->kept_count++] =
            (netkit_kept){.conn = cmq_conn_id_of(conn), .opaque = command->opaque, .hold = command->code == ASK_HOLD};
        cmq_conn_keep(conn);
        return CMQ_NET_DONE;
    case ASK_CLOSE: return CMQ_NET_CLOSE;
    case ASK_BIG:
    case ASK_LEND: answer_big(state, conn, command, body, command->code == ASK_LEND); return CMQ_NET_DONE;
    default: return CMQ_NET_CONTROL;
    }
}

static void turn_end(void *context)
{
    netkit_state *state = context;
    if (state->at_turn_end != NULL) state->at_turn_end(state);
    for (uint32_t i = 0; i < state->turned_count; i++) {
        const netkit_turned *turned = &state->turned[i];
        const cmq_command command = {.format = turned->format, .opaque = turned->opaque};
        if ((turned->flag & CMQ_COMMAND_ONEWAY) == 0) answer_body(turned->conn, &command, 0, turned->body);
    }
    state->turned_count = 0;
}

void netkit_answer_kept(netkit_state *state)
{
    for (uint32_t i = 0; i < state->kept_count; i++) {
        const cmq_command command = {.format = CMQ_HEADER_JSON, .opaque = state->kept[i].opaque, .has_opaque = true};
        cmq_conn *conn = cmq_loop_conn(state->loop, state->kept[i].conn);
        if (conn != NULL) cmq_conn_answer(conn, &command, 9, CMQ_NAME("kept"));
        cmq_conn_kept_done(state->loop);
    }
    state->kept_count = 0;
}

static void woken(void *context)
{
    netkit_state *state = context;
    state->woken++;
    if (state->answer_kept) netkit_answer_kept(state);
}

static int64_t due_ns(void *context) { return ((netkit_state *)context)->due_ns; }

static void tick(void *context, int64_t now_ns)
{
    netkit_state *state = context;
    CHECK(now_ns >= state->due_ns);
    CHECK_INT(now_ns, cmq_loop_now_ns(state->loop));
    state->ticks++;
    state->due_ns = INT64_MAX;
    netkit_answer_kept(state);
}

static uint32_t forget_kept(netkit_state *state, cmq_conn_id conn, bool all)
{
    uint32_t left = 0, forgotten = 0;
    for (uint32_t i = 0; i < state->kept_count; i++) {
        if (state->kept[i].conn == conn && (all || state->kept[i].hold)) {
            cmq_conn_kept_done(state->loop);
            forgotten++;
        } else {
            state->kept[left++] = state->kept[i];
        }
    }
    state->kept_count = left;
    return forgotten;
}

static void closed(void *context, cmq_conn *conn)
{
    netkit_state *state = context;
    state->closed++;
    CHECK(cmq_conn_reserve(conn, 1) == NULL);
    (void)forget_kept(state, cmq_conn_id_of(conn), true);
}

static uint32_t half_closed(void *context, cmq_conn *conn)
{
    netkit_state *state = context;
    state->half_closed++;
    return forget_kept(state, cmq_conn_id_of(conn), false);
}

/* ---- the server ---- */

static int64_t netkit_now(void *context)
{
    return atomic_load_explicit((_Atomic int64_t *)context, memory_order_relaxed);
}

static const char *const loopback[] = {"127.0.0.1:0"};

void netkit_prepare(netkit_server *server)
{
    memset(server, 0, sizeof *server);
    atomic_init(&server->now_ns, 1000 * NETKIT_MS);
    server->options = (cmq_net_options){
        .addresses = loopback,
        .address_count = 1,
        .manual = true,
        .now_ns = netkit_now,
        .clock_context = &server->now_ns,
        .handler = {.context = server,
                    .loop_begin = loop_begin,
                    .loop_end = loop_end,
                    .turn_begin = turn_begin,
                    .request = request,
                    .turn_end = turn_end,
                    .woken = woken,
                    .due_ns = due_ns,
                    .tick = tick,
                    .closed = closed,
                    .half_closed = half_closed},
    };
}

void netkit_start(netkit_server *server)
{
    CHECK_OK(cmq_net_create(&server->net, &server->options));
    CHECK_OK(cmq_net_start(server->net));
    server->port = cmq_net_port(server->net, 0);
    netkit_turning = server->options.manual ? server : NULL;
}

void netkit_stop(netkit_server *server)
{
    netkit_turning = NULL;
    cmq_net_destroy(server->net);
    server->net = NULL;
}

cmq_net_counters netkit_counters(const netkit_server *server)
{
    cmq_net_counters counters;
    cmq_net_count(server->net, &counters);
    return counters;
}

/* ---- clients ---- */

int netkit_connect(const netkit_server *server)
{
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0);
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(server->port), .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
    CHECK(connect(fd, (const struct sockaddr *)&address, sizeof address) == 0);
    return fd;
}

static void let_server_work(void)
{
    if (netkit_turning != NULL) cmq_net_turn(netkit_turning->net);
    else sched_yield();
}

void netkit_write(int fd, const void *bytes, size_t count)
{
    const uint8_t *at = bytes;
    const int64_t patience = netkit_seconds() + NETKIT_PATIENCE_S;
    while (count > 0) {
        const ssize_t sent = send(fd, at, count, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN)
            cmq_test_fail(__FILE__, __LINE__, "the client cannot send: %s", strerror(errno));
        if (sent < 0) {
            CHECK(netkit_seconds() < patience);
            let_server_work();
            continue;
        }
        at += sent;
        count -= (size_t)sent;
    }
}

size_t netkit_frame(uint8_t *into, int32_t code, int32_t opaque, int32_t flag, cmq_slice body)
{
    cmq_command_writer writer;
    cmq_command_begin(&writer, into, 256, CMQ_HEADER_JSON, code, opaque, flag, CMQ_SLICE_NONE);
    const size_t bytes = cmq_command_end(&writer, body.bytes);
    CHECK(bytes <= 256);
    if (body.bytes > 0) memcpy(into + bytes, body.data, body.bytes);
    return bytes + body.bytes;
}

void netkit_request(int fd, int32_t code, int32_t opaque, cmq_slice body)
{
    uint8_t *frame = malloc(256 + body.bytes);
    CHECK(frame != NULL);
    netkit_write(fd, frame, netkit_frame(frame, code, opaque, 0, body));
    free(frame);
}

/* So many bytes; false when the connection ended before the first. */
static bool read_bytes(int fd, uint8_t *into, size_t count)
{
    size_t have = 0;
    const int64_t patience = netkit_seconds() + NETKIT_PATIENCE_S;
    while (have < count) {
        const ssize_t got = recv(fd, into + have, count - have, MSG_DONTWAIT);
        if (got == 0 || (got < 0 && errno == ECONNRESET)) {
            CHECK_INT(have, 0);
            return false;
        }
        CHECK(got > 0 || errno == EAGAIN);
        CHECK(netkit_seconds() < patience);
        if (got < 0) let_server_work();
        else have += (size_t)got;
    }
    return true;
}

bool netkit_read(int fd, uint8_t *into, cmq_frame *frame_out, cmq_command *command_out)
{
    static uint8_t scratch[65536];
    if (!read_bytes(fd, into, 4)) return false;
    const uint32_t bytes = cmq_load_u32(into);
    CHECK(bytes >= 4 && bytes + 4 <= NETKIT_FRAME_BYTES_MAX);
    CHECK(read_bytes(fd, into + 4, bytes));
    size_t needed;
    CHECK_OK(
        cmq_frame_next((cmq_slice){.data = into, .bytes = bytes + 4u}, NETKIT_FRAME_BYTES_MAX, frame_out, &needed));
    CHECK_OK(cmq_command_parse(frame_out, scratch, sizeof scratch, command_out));
    return true;
}

cmq_slice netkit_expect(int fd, int32_t code, int32_t opaque)
{
    static uint8_t *bytes;
    if (bytes == NULL) bytes = malloc(NETKIT_FRAME_BYTES_MAX);
    CHECK(bytes != NULL);
    cmq_frame frame;
    cmq_command command;
    CHECK(netkit_read(fd, bytes, &frame, &command));
    CHECK_INT(command.code, code);
    CHECK_INT(command.opaque, opaque);
    CHECK_INT(command.flag, CMQ_COMMAND_RESPONSE);
    return frame.body;
}

void netkit_expect_end(int fd)
{
    uint8_t byte;
    CHECK(!read_bytes(fd, &byte, 1));
}

bool netkit_is_silent(int fd)
{
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
    return poll(&poll_fd, 1, 0) == 0;
}

/* ---- limits ---- */

/* An address of this machine. Connections are counted by a hash of it, so those whose hash is an earlier number's are
 * passed over. */
static struct in_addr local_address(uint32_t number)
{
    enum { NUMBERS = 8 };
    uint32_t buckets[NUMBERS], found = 0;
    for (uint32_t last = 1;; last++) {
        const cmq_record_host host = {.address = {127, 0, 0, (uint8_t)last}};
        const uint32_t bucket = net_address_bucket(&host);
        bool taken = false;
        for (uint32_t i = 0; i < found; i++) taken |= buckets[i] == bucket;
        if (taken) continue;
        CHECK(found < NUMBERS && last < 255);
        if (found == number) return (struct in_addr){.s_addr = htonl(INADDR_LOOPBACK - 1 + last)};
        buckets[found++] = bucket;
    }
}

int netkit_connect_from(const netkit_server *server, uint32_t number)
{
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0);
    struct sockaddr_in from = {.sin_family = AF_INET, .sin_addr = local_address(number)}, to = {.sin_family = AF_INET,
                                                             .sin_port = htons(server->port),
                                                             .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
    CHECK(bind(fd, (const struct sockaddr *)&from, sizeof from) == 0);
    CHECK(connect(fd, (const struct sockaddr *)&to, sizeof to) == 0);
    return fd;
}

void netkit_claim(int fd, uint32_t frame_bytes, size_t bytes)
{
    uint8_t *begin = calloc(1, bytes + CMQ_FRAME_PREFIX_BYTES);
    CHECK(begin != NULL);
    cmq_frame_write_prefix(begin, CMQ_HEADER_JSON, 2, frame_bytes - CMQ_FRAME_PREFIX_BYTES - 2);
    netkit_write(fd, begin, bytes);
    free(begin);
}

void netkit_expect_served(int fd, int32_t opaque)
{
    netkit_request(fd, ASK_ECHO, opaque, CMQ_SLICE_NONE);
    (void)netkit_expect(fd, 0, opaque);
}
