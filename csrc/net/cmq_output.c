/* cmq_output: a connection's output: chunks in the order they were appended, sent with one call a turn.
 *
 * Owns:      a connection's chain of chunks. The first is small, so that a thousand connections that are answered at
 *            once do not take a thousand pages; the next are larger; a response that is larger still has a chunk of its
 *            own size, or is lent.
 * Invariant: the first chunk knows the bytes of all; a connection is in the loop's list whenever it has fresh output or
 *            must be closed.
 * Way:       handler -> cmq_conn_reserve, cmq_conn_commit, cmq_conn_lend -> [conn_send] -> socket
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "base/cmq_assert.h"
#include "net/cmq_net_internal.h"

#define SEND_PIECES 64u
#define SEND_BYTES_MAX (1u << 20)   /* a connection and turn; the others wait meanwhile */
#define LEND_BYTES_MIN 4096u        /* of a mail: below, copying costs less than a piece of its own */
#define ANSWER_BYTES 256u           /* of a short answer, without its remark */

static void release_chunk(cmq_loop *loop, net_chunk *chunk)
{
    if (chunk->lent_accounted != 0) loop_unaccount(loop, chunk->lent_accounted);
    if (chunk->release != NULL) chunk->release(chunk->context);
    loop_give_block(loop, &chunk->block);
}

void conn_drop_output(cmq_conn *conn)
{
    cmq_loop *loop = conn_loop(conn);
    if (conn_unsent(conn) != 0) loop->unsent_conns--;
    net_chunk *chunk = conn->output;
    conn->output = NULL;
    while (chunk != NULL) {
        net_chunk *next = chunk->next;
        release_chunk(loop, chunk);
        chunk = next;
    }
}

/* ---- putting ---- */

/* May so many bytes more wait? If not, the reader is too slow. */
static bool has_room(cmq_conn *conn, size_t bytes)
{
    cmq_loop *loop = conn_loop(conn);
    const uint64_t unsent = conn_unsent(conn), unsent_max = loop->net->limits.unsent_bytes_max;
    if ((conn->flags & CONN_CLOSING) != 0) return false;
    if (unsent <= unsent_max && bytes <= unsent_max - unsent) return true;
    conn_close(conn, &loop->counts.closed_slow_reader);
    return false;
}

static net_chunk *append_chunk(cmq_conn *conn, size_t own_bytes)
{
    cmq_loop *loop = conn_loop(conn);
    size_t bytes = sizeof(net_chunk) + own_bytes;
    if (bytes <= NET_MEDIUM_BYTES && own_bytes != 0 && conn->output != NULL) bytes = NET_MEDIUM_BYTES;
    net_block *block = loop_take_block(loop, bytes);
    if (block == NULL) {
        conn_close(conn, &loop->counts.closed_memory);
        return NULL;
    }
    if ((conn->flags & CONN_CLOSING) != 0) {
        loop_give_block(loop, block);   /* it was the one that made room */
        return NULL;
    }
    net_chunk *chunk = (net_chunk *)(void *)block;
    chunk->next = NULL;
    chunk->unsent = 0;
    chunk->at = chunk->own;
    chunk->bytes = 0;
    chunk->lent_accounted = 0;
    chunk->release = NULL;
    chunk->context = NULL;
    if (conn->output == NULL) conn->output = chunk;
    else conn->output->last->next = chunk;
    conn->output->last = chunk;
    return chunk;
}

/* Of the chunk's own memory, behind what is in it. */
static size_t room_behind(const net_chunk *chunk)
{
    if (chunk->release != NULL) return 0;
    return chunk->block.bytes - sizeof *chunk - (size_t)(chunk->at - chunk->own) - chunk->bytes;
}

uint8_t *cmq_conn_reserve(cmq_conn *conn, size_t bytes)
{
    if (!has_room(conn, bytes)) return NULL;
    net_chunk *chunk = conn->output != NULL ? conn->output->last : NULL;
    if (chunk == NULL || room_behind(chunk) < bytes) chunk = append_chunk(conn, bytes);
    return chunk != NULL ? (uint8_t *)(uintptr_t)chunk->at + chunk->bytes : NULL;
}

static void add_unsent(cmq_conn *conn, size_t bytes)
{
    if (conn->output->unsent == 0 && bytes != 0) conn_loop(conn)->unsent_conns++;
    conn->output->unsent += bytes;
    if ((conn->flags & (CONN_LISTED | CONN_BLOCKED)) == 0) conn_list(conn);
}

void cmq_conn_commit(cmq_conn *conn, size_t bytes)
{
    CMQ_ASSERT(conn->output != NULL);
    net_chunk *chunk = conn->output->last;
    CMQ_ASSERT(bytes <= room_behind(chunk));
    chunk->bytes += bytes;
    if (conn->owed > 0) conn->owed--;
    net_count(&conn_loop(conn)->counts.frames_out, 1);
    add_unsent(conn, bytes);
}

static void lend(cmq_conn *conn, cmq_slice bytes, void (*release)(void *context), void *context, size_t accounted)
{
    cmq_loop *loop = conn_loop(conn);
    net_chunk *chunk = NULL;
    if (has_room(conn, bytes.bytes) && loop_account(loop, accounted)) {
        chunk = append_chunk(conn, 0);
        if (chunk == NULL) loop_unaccount(loop, accounted);
    }
    if (chunk == NULL) {
        conn_close(conn, &loop->counts.closed_memory);   /* unless there was another reason already */
        release(context);
        return;
    }
    chunk->at = bytes.data;
    chunk->bytes = bytes.bytes;
    chunk->lent_accounted = accounted;
    chunk->release = release;
    chunk->context = context;
    add_unsent(conn, bytes.bytes);
}

void cmq_conn_lend(cmq_conn *conn, cmq_slice bytes, void (*release)(void *context), void *context)
{
    lend(conn, bytes, release, context, 0);
}

void cmq_conn_answer(cmq_conn *conn, const cmq_command *request, int32_t code, cmq_slice remark)
{
    if ((request->flag & CMQ_COMMAND_ONEWAY) != 0 || !request->has_opaque) return;
    const size_t bytes_max = ANSWER_BYTES + 6 * remark.bytes;   /* JSON writes a control character with six */
    uint8_t *into = cmq_conn_reserve(conn, bytes_max);
    if (into == NULL) return;
    cmq_command_writer writer;
    cmq_command_begin(&writer, into, bytes_max, request->format, code, request->opaque, CMQ_COMMAND_RESPONSE, remark);
    const size_t bytes = cmq_command_end(&writer, 0);
    CMQ_ASSERT(bytes <= bytes_max);
    cmq_conn_commit(conn, bytes);
}

/* ---- mails ---- */

/* How many responses are in these frames? Requests to the client do not count. */
static uint32_t count_frames(cmq_slice frames, uint16_t *answers_out)
{
    uint32_t count = 0;
    cmq_frame frame;
    size_t needed;
    *answers_out = 0;
    while (frames.bytes > 0 && cmq_frame_next(frames, CMQ_FRAME_BYTES_MAX, &frame, &needed) == CMQ_OK) {
        cmq_command command;
        uint8_t scratch[1024];
        /* Our requests have short headers; a frame with a longer one is a response. */
        const bool is_short = frame.header.bytes <= sizeof scratch &&
                              cmq_command_parse(&frame, scratch, sizeof scratch, &command) == CMQ_OK;
        if (!is_short || (command.flag & CMQ_COMMAND_RESPONSE) != 0) (*answers_out)++;
        frames.data += frame.bytes;
        frames.bytes -= frame.bytes;
        count++;
    }
    return count;
}

void conn_put_node(cmq_conn *conn, net_node *node)
{
    cmq_loop *loop = conn_loop(conn);
    uint16_t answers;
    const uint32_t frames = count_frames((cmq_slice){.data = node->data, .bytes = node->bytes}, &answers);
    if (node->bytes >= LEND_BYTES_MIN) {
        lend(conn, (cmq_slice){.data = node->data, .bytes = node->bytes}, free, node, node->bytes);
    } else {
        uint8_t *into = cmq_conn_reserve(conn, node->bytes);
        if (into != NULL) {
            memcpy(into, node->data, node->bytes);
            conn->output->last->bytes += node->bytes;
            add_unsent(conn, node->bytes);
        }
        free(node);
    }
    net_count(&loop->counts.frames_out, frames);
    conn->owed = conn->owed > answers ? (uint16_t)(conn->owed - answers) : 0;
}

void conn_offer_node(cmq_conn *conn, net_node *node)
{
    cmq_loop *loop = conn_loop(conn);
    const cmq_net_limits *limits = &loop->net->limits;
    const uint64_t unsent = conn_unsent(conn);
    const uint64_t most = unsent > 0 ? limits->unsent_bytes_pause : limits->unsent_bytes_max;
    if (unsent <= most && node->bytes <= most - unsent) {
        conn_put_node(conn, node);
        return;
    }
    net_count(&loop->counts.offers_dropped, 1);
    free(node);
}

/* ---- sending ---- */

/* Take `sent` bytes off the front. */
static void drop_sent(cmq_conn *conn, size_t sent)
{
    cmq_loop *loop = conn_loop(conn);
    net_chunk *first = conn->output;
    const uint64_t unsent = first->unsent - sent;
    net_chunk *last = first->last;
    while (first != NULL && sent >= first->bytes) {
        sent -= first->bytes;
        net_chunk *next = first->next;
        release_chunk(loop, first);
        first = next;
    }
    conn->output = first;
    if (unsent == 0) loop->unsent_conns--;
    if (first == NULL) return;
    first->at += sent;
    first->bytes -= sent;
    first->unsent = unsent;
    first->last = last;
}

void conn_send(cmq_conn *conn)
{
    cmq_loop *loop = conn_loop(conn);
    size_t left = SEND_BYTES_MAX;
    conn->flags &= (uint16_t)~CONN_BLOCKED;
    while (conn_unsent(conn) > 0 && (conn->flags & CONN_BLOCKED) == 0) {
        struct iovec pieces[SEND_PIECES];
        size_t count = 0, bytes = 0;
        for (net_chunk *chunk = conn->output; chunk != NULL && count < SEND_PIECES && bytes < left;
             chunk = chunk->next) {
            pieces[count++] = (struct iovec){.iov_base = (void *)(uintptr_t)chunk->at, .iov_len = chunk->bytes};
            bytes += chunk->bytes;
        }
        struct msghdr message = {.msg_iov = pieces, .msg_iovlen = count};
        const ssize_t sent = sendmsg(conn_fd(conn), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        net_count(&loop->counts.writes, 1);
        if (sent < 0) {
            if (errno == EINTR) continue;
            conn->flags |= CONN_BLOCKED;
            if (errno != EAGAIN && errno != EWOULDBLOCK) conn_close(conn, NULL);
            return;
        }
        net_count(&loop->counts.bytes_out, (uint64_t)sent);
        conn_touch(conn);
        drop_sent(conn, (size_t)sent);
        if ((size_t)sent < bytes || (size_t)sent >= left) conn->flags |= CONN_BLOCKED;
        else left -= (size_t)sent;
    }
    if (conn->output != NULL && conn->output->unsent == 0) conn_drop_output(conn);
}
