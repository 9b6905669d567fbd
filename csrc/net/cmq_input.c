/* cmq_input: from bytes of a socket to requests of the handler.
 *
 * Owns:      per connection the bytes of a frame that is partly there, or whole frames that wait because the client
 *            does not take its answers.
 * Invariant: bytes that the handler was shown stay where they are until the turn ends: a buffer whose frames were shown
 *            is retired, not freed, and never moved. The buffer kept for a frame is at most twice the bytes received of
 *            it, whatever length it claims.
 * Way:       socket -> [conn_event] -> cmq_frame_next -> cmq_command_parse -> handler.request, or the control queue
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "base/cmq_assert.h"
#include "net/cmq_net_internal.h"
#include "wire/cmq_codes.h"

#define TLS_HANDSHAKE 0x16u
#define GO_AWAY_VERSION 475   /* MQVersion.V5_3_1: later clients know code 1500 */

/* ---- the kept part of a frame ---- */

static size_t input_room(const net_input *input) { return input->block.bytes - sizeof *input; }

void conn_stop_wait(cmq_conn *conn)
{
    net_input *input = conn->input;
    cmq_loop *loop = conn_loop(conn);
    if (input == NULL || !input->listed) return;
    if (input->older != NULL) input->older->newer = input->newer;
    else loop->oldest_input = input->newer;
    if (input->newer != NULL) input->newer->older = input->older;
    else loop->newest_input = input->older;
    input->listed = false;
}

void conn_wait(cmq_conn *conn)
{
    net_input *input = conn->input;
    cmq_loop *loop = conn_loop(conn);
    if (input == NULL || input->listed) return;
    input->began_ns = loop->now_ns;
    input->older = loop->newest_input;
    input->newer = NULL;
    if (input->older != NULL) input->older->newer = input;
    else loop->oldest_input = input;
    loop->newest_input = input;
    input->listed = true;
}

void conn_drop_input(cmq_conn *conn)
{
    if (conn->input == NULL) return;
    conn_stop_wait(conn);
    loop_give_block(conn_loop(conn), &conn->input->block);
    conn->input = NULL;
}

/* The handler was shown frames in it. */
static void retire_input(cmq_conn *conn)
{
    conn_stop_wait(conn);
    loop_retire_block(conn_loop(conn), &conn->input->block);
    conn->input = NULL;
}

/* More room, at the same place of the list: the frame began when it began. */
static bool grow_input(cmq_conn *conn, size_t room)
{
    cmq_loop *loop = conn_loop(conn);
    net_block *block = loop_grow_block(loop, &conn->input->block, sizeof(net_input) + room);
    if (block == NULL) {
        conn_close(conn, &loop->counts.closed_memory);
        return false;
    }
    net_input *input = (net_input *)(void *)block;
    conn->input = input;
    if (!input->listed) return true;
    if (input->older != NULL) input->older->newer = input;
    else loop->oldest_input = input;
    if (input->newer != NULL) input->newer->older = input;
    else loop->newest_input = input;
    return true;
}

static bool make_input(cmq_conn *conn, size_t room)
{
    cmq_loop *loop = conn_loop(conn);
    net_block *block = loop_take_block(loop, sizeof(net_input) + room);
    if (block == NULL) {
        conn_close(conn, &loop->counts.closed_memory);
        return false;
    }
    conn->input = (net_input *)(void *)block;
    conn->input->conn = conn;
    conn->input->listed = false;
    conn->input->begin = conn->input->end = 0;
    return true;
}

/* Keep the rest of what was read: the beginning of a frame of `needed` bytes, or with CONN_PENDING whole frames. */
static void keep_rest(cmq_conn *conn, cmq_slice rest, size_t needed)
{
    if (rest.bytes == 0 || (conn->flags & CONN_CLOSING) != 0) return;
    const size_t room = needed / 2 > rest.bytes ? rest.bytes * 2 : needed > rest.bytes ? needed : rest.bytes;
    if (conn->input == NULL ? !make_input(conn, room) : input_room(conn->input) < room && !grow_input(conn, room))
        return;
    if ((conn->flags & CONN_CLOSING) != 0) return;   /* it had most of the memory, and made room for itself */
    net_input *input = conn->input;
    input->begin = 0;
    input->end = rest.bytes;
    input->needed = needed;
    memcpy(input->data, rest.data, rest.bytes);
    if ((conn->flags & CONN_PENDING) != 0) conn_stop_wait(conn);
    else conn_wait(conn);
}

/* ---- frames ---- */

/* Where the text of a header is unescaped to: for what lies in the read buffer the same place in its twin, else a
 * block. */
static uint8_t *scratch_for(cmq_loop *loop, cmq_slice header)
{
    const uintptr_t at = (uintptr_t)header.data, input = (uintptr_t)loop->input;
    if (at >= input && at < input + NET_INPUT_BYTES) return loop->scratch + (at - input);
    net_block *block = loop_take_block(loop, sizeof *block + header.bytes);
    if (block == NULL) return NULL;
    loop_retire_block(loop, block);
    return (uint8_t *)(block + 1);
}

static bool wants_answer(const cmq_command *command)
{
    return (command->flag & (CMQ_COMMAND_ONEWAY | CMQ_COMMAND_RESPONSE)) == 0 && command->has_opaque;
}

static void answer_text(cmq_conn *conn, const cmq_command *command, int32_t code, const char *remark)
{
    cmq_conn_answer(conn, command, code, cmq_slice_of_text(remark));
}

/* To the control thread: as the block it came back as, or a copy. False when there is no room; then the client has an
 * error response. */
static bool give_to_control(cmq_conn *conn, const cmq_command *command, const cmq_frame *frame, net_node *again)
{
    cmq_loop *loop = conn_loop(conn);
    const net_node_kind kind = (command->flag & CMQ_COMMAND_RESPONSE) != 0 ? NET_NODE_RESPONSE : NET_NODE_REQUEST;
    net_node *node = again != NULL ? again
                                   : net_node_make(kind, cmq_conn_id_of(conn),
                                                   frame->header.data - CMQ_FRAME_PREFIX_BYTES, frame->bytes);
    if (node != NULL) {
        node->kind = kind;
        node->peer = conn->peer;
        node->local_port = conn->local_port;
        node->arrived_ns = loop->now_ns;
        if (net_control_push(conn, node)) {
            conn->flags |= CONN_KNOWN;
            net_count(&loop->counts.control_items, 1);
            return true;
        }
    }
    net_count(&loop->counts.control_refused, 1);
    if (kind == NET_NODE_REQUEST)
        answer_text(conn, command, CMQ_RESPONSE_SYSTEM_BUSY, "[OVERLOAD]system busy, start flow control for a while");
    if (again == NULL) free(node);
    return false;
}

static void turn_away(cmq_conn *conn, const cmq_command *command)
{
    if (command->version > GO_AWAY_VERSION) answer_text(conn, command, CMQ_RESPONSE_GO_AWAY, "please go away");
    else answer_text(conn, command, CMQ_RESPONSE_SERVICE_NOT_AVAILABLE, "the server is shutting down");
}

/* A request or a response that could be read. True when the control queue took `again`. */
static bool serve(cmq_conn *conn, const cmq_command *command, const cmq_frame *frame, net_node *again)
{
    cmq_loop *loop = conn_loop(conn);
    cmq_net *net = loop->net;
    cmq_net_verdict verdict = CMQ_NET_CONTROL;
    if ((command->flag & CMQ_COMMAND_RESPONSE) == 0) {
        if (again == NULL && wants_answer(command) && atomic_load_explicit(&net->draining, memory_order_relaxed)) {
            turn_away(conn, command);
            return false;
        }
        if (net->handler.request != NULL)
            verdict = net->handler.request(loop->state, conn, command, frame->body, again != NULL);
    }
    if (verdict == CMQ_NET_CLOSE) conn_end(conn, NULL);
    return verdict == CMQ_NET_CONTROL && give_to_control(conn, command, frame, again);
}

/* One frame to whoever serves it. `again`: the block it lies in, when it was with the control thread before. */
static void dispatch(cmq_conn *conn, const cmq_frame *frame, net_node *again)
{
    cmq_loop *loop = conn_loop(conn);
    cmq_command *command = &loop->command;
    uint8_t *scratch = scratch_for(loop, frame->header);
    const cmq_status status =
        scratch != NULL ? cmq_command_parse(frame, scratch, frame->header.bytes, command) : CMQ_ERR_MEMORY;
    loop_begin_turn(loop);
    if (status != CMQ_OK && status != CMQ_ERR_LIMIT) {
        conn_end(conn, scratch != NULL ? &loop->counts.closed_corrupt : &loop->counts.closed_memory);
    } else {
        const bool answered = again == NULL && wants_answer(command);
        if (answered && conn->owed < UINT16_MAX) conn->owed++;
        if (status == CMQ_OK && serve(conn, command, frame, again)) return;
        if (status != CMQ_OK && answered) answer_text(conn, command, CMQ_RESPONSE_SYSTEM_ERROR, cmq_last_error()->text);
    }
    if (again != NULL) loop_retire_node(loop, again);
}

void conn_again(cmq_conn *conn, net_node *node)
{
    cmq_frame frame;
    size_t needed;
    const cmq_status status =
        cmq_frame_next((cmq_slice){.data = node->data, .bytes = node->bytes}, UINT32_MAX, &frame, &needed);
    CMQ_ASSERT(status == CMQ_OK);   /* it was one when it came */
    dispatch(conn, &frame, node);
}

/* Serve the whole frames at the front; returns the bytes of those. *needed_out: of the frame behind them. Stops, with
 * CONN_PENDING, when the client has to take answers first. */
static size_t serve_frames(cmq_conn *conn, cmq_slice bytes, size_t *needed_out)
{
    cmq_loop *loop = conn_loop(conn);
    size_t at = 0;
    *needed_out = 0;
    conn->flags &= (uint16_t)~CONN_PENDING;
    while (at < bytes.bytes) {
        if ((conn->flags & (CONN_CLOSING | CONN_LAST_WORDS)) != 0) return bytes.bytes;
        cmq_frame frame;
        const cmq_slice left = {.data = bytes.data + at, .bytes = bytes.bytes - at};
        const cmq_status status = cmq_frame_next(left, loop->net->limits.frame_bytes_max, &frame, needed_out);
        if (status == CMQ_AGAIN) break;
        if (status != CMQ_OK) {
            const bool tls = (conn->flags & CONN_SPOKE) == 0 && left.data[0] == TLS_HANDSHAKE;
            /* requests before it are answered */
            conn_end(conn, tls ? &loop->counts.closed_tls : &loop->counts.closed_corrupt);
            return bytes.bytes;
        }
        if (conn_unsent(conn) > loop->net->limits.unsent_bytes_pause) {
            conn->flags |= CONN_PENDING;
            break;
        }
        conn->flags |= CONN_SPOKE;
        net_count(&loop->counts.frames_in, 1);
        dispatch(conn, &frame, NULL);
        at += frame.bytes;
    }
    return at;
}

/* ---- reading ---- */

/* `bytes` in the read buffer; they include the part of the first frame that the connection kept. */
static void serve_shared(cmq_conn *conn, cmq_slice bytes)
{
    size_t needed;
    const size_t used = serve_frames(conn, bytes, &needed);
    if (used > 0) conn_drop_input(conn);
    keep_rest(conn, (cmq_slice){.data = bytes.data + used, .bytes = bytes.bytes - used}, needed);
}

/* Whole frames wait in the connection's own buffer, and the client has taken answers. */
static void serve_pending(cmq_conn *conn)
{
    net_input *input = conn->input;
    size_t needed;
    const size_t used = serve_frames(
        conn, (cmq_slice){.data = input->data + input->begin, .bytes = input->end - input->begin}, &needed);
    input->begin += used;
    if ((conn->flags & CONN_PENDING) != 0) return;
    /* The frames are in use until the turn ends, so what is behind them moves to a buffer of its own. */
    conn->input = NULL;
    keep_rest(conn, (cmq_slice){.data = input->data + input->begin, .bytes = input->end - input->begin}, needed);
    loop_retire_block(conn_loop(conn), &input->block);
}

/* The bytes read from the socket: `own` bytes into the connection's own buffer, which may complete its frame, and
 * `shared` behind them. */
static void serve_continued(cmq_conn *conn, size_t own, cmq_slice shared)
{
    conn->input->end += own;
    if (conn->input->end < conn->input->needed) return;
    size_t needed;
    (void)serve_frames(conn, (cmq_slice){.data = conn->input->data, .bytes = conn->input->end}, &needed);
    if ((conn->flags & CONN_PENDING) == 0) {
        retire_input(conn);
        serve_shared(conn, shared);
        return;
    }
    /* Not served: it stays, and what was read behind it goes behind it. */
    conn_stop_wait(conn);
    if (input_room(conn->input) - conn->input->end < shared.bytes && !grow_input(conn, conn->input->end + shared.bytes))
        return;
    memcpy(conn->input->data + conn->input->end, shared.data, shared.bytes);
    conn->input->end += shared.bytes;
}

/* Into the connection's own buffer as far as its frame goes, and on into the read buffer; returns what the socket
 * gave. */
static ssize_t read_continued(cmq_conn *conn, uint8_t *shared)
{
    net_input *input = conn->input;
    const size_t end = input->end, needed = input->needed;
    if (end == input_room(input) && !grow_input(conn, needed / 2 > end ? 2 * end : needed)) return -1;
    input = conn->input;
    const size_t left = (input_room(input) < needed ? input_room(input) : needed) - end;
    const size_t own_room = left < NET_LARGE_READ_BYTES ? left : NET_LARGE_READ_BYTES;
    const struct iovec pieces[2] = {{.iov_base = input->data + end, .iov_len = own_room},
                                    {.iov_base = shared, .iov_len = NET_READ_BYTES}};
    const ssize_t got = readv(conn_fd(conn), pieces, end + own_room == needed ? 2 : 1);
    if (got <= 0) return got;
    const size_t own = (size_t)got < own_room ? (size_t)got : own_room, behind = (size_t)got - own;
    conn_loop(conn)->input_used += behind;
    serve_continued(conn, own, (cmq_slice){.data = shared, .bytes = behind});
    return got;
}

/* False when the socket gave nothing. */
static bool read_socket(cmq_conn *conn)
{
    cmq_loop *loop = conn_loop(conn);
    uint8_t *shared = loop->input + loop->input_used;
    /* A frame of which not even the length is there goes on in the read buffer. */
    const size_t carried = conn->input != NULL && conn->input->end < CMQ_FRAME_PREFIX_BYTES ? conn->input->end : 0;
    ssize_t got;
    net_count(&loop->counts.reads, 1);
    if (conn->input == NULL || carried > 0) {
        if (carried > 0) memcpy(shared, conn->input->data, carried);
        got = recv(conn_fd(conn), shared + carried, NET_READ_BYTES - carried, 0);
        const size_t bytes = carried + (got > 0 ? (size_t)got : 0);
        if (got > 0) loop->input_used += bytes;
        if (got > 0) serve_shared(conn, (cmq_slice){.data = shared, .bytes = bytes});
    } else {
        got = read_continued(conn, shared);
    }
    if (got > 0) {
        net_count(&loop->counts.bytes_in, (uint64_t)got);
        conn_touch(conn);
    } else if ((conn->flags & CONN_CLOSING) == 0) {
        if (got == 0) conn_half_close(conn);
        else if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) conn_close(conn, NULL);
    }
    return got > 0;
}

void conn_event(cmq_conn *conn, uint32_t events)
{
    const uint64_t pause = conn_loop(conn)->net->limits.unsent_bytes_pause;
    const bool broken = (events & (EPOLLERR | EPOLLHUP)) != 0;
    if ((events & EPOLLOUT) != 0) conn_send(conn);
    if ((conn->flags & CONN_CLOSING) != 0) return;
    conn_loop(conn)->reading = conn;
    if ((conn->flags & CONN_PENDING) != 0) {
        if (broken) conn_close(conn, NULL);
        else if (conn_unsent(conn) <= pause) serve_pending(conn);
    } else if ((conn->flags & CONN_READS) != 0 && (broken || (events & EPOLLIN) != 0)) {
        /* A connection that was reset may still have requests that came before. */
        if (!read_socket(conn) && broken) conn_close(conn, NULL);
    } else if (broken) {
        conn_close(conn, NULL);
    }
    conn_loop(conn)->reading = NULL;
    conn_update(conn);
}
