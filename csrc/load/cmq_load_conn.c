/* cmq_load_conn: one connection to a broker: bytes out, frames in.
 *
 * Invariant: reserved and used bytes are sent in order; a frame is parsed once, when it is whole.
 */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "load/cmq_load_internal.h"

enum { READ_BYTES = 256 << 10 };

static const char *name_of(const cmq_load *load, const load_conn *conn) { return load->names[conn->endpoint]; }

static cmq_status watch(cmq_load *load, load_conn *conn, int operation)
{
    const bool wants_room = conn->waits_for_room || !conn->connected;
    struct epoll_event event = {.events = EPOLLIN | (wants_room ? (uint32_t)EPOLLOUT : 0u),
                                .data.u32 = (uint32_t)(conn - load->conns)};
    if (epoll_ctl(load->epoll_fd, operation, conn->fd, &event) == 0) return CMQ_OK;
    return cmq_fail_errno(errno, "watching the connection to %s", name_of(load, conn));
}

cmq_status cmq_load_conn_open(cmq_load *load, load_conn *conn)
{
    const struct sockaddr_storage *address = &load->addresses[conn->endpoint];
    const socklen_t bytes = address->ss_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
    const int yes = 1;
    conn->fd = socket(address->ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (conn->fd < 0) return cmq_fail_errno(errno, "opening a connection to %s", name_of(load, conn));
    if (setsockopt(conn->fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes) != 0)
        return cmq_fail_errno(errno, "setting TCP_NODELAY on a connection to %s", name_of(load, conn));
    conn->connected = connect(conn->fd, (const struct sockaddr *)address, bytes) == 0;
    if (!conn->connected && errno != EINPROGRESS) return cmq_fail_errno(errno, "connecting to %s", name_of(load, conn));
    conn->progress_ns = load->now_ns;
    return watch(load, conn, EPOLL_CTL_ADD);
}

void cmq_load_conn_close(load_conn *conn)
{
    if (conn->fd >= 0) close(conn->fd);   /* epoll forgets it with this */
    free(conn->out);
    free(conn->in);
    free(conn->slots);
    free(conn->free_slots);
    *conn = (load_conn){.fd = -1};
}

/* ---- out ---- */

uint8_t *cmq_load_conn_reserve(load_conn *conn, size_t bytes)
{
    if (conn->out_sent == conn->out_used) conn->out_sent = conn->out_used = 0;
    if (conn->out_capacity - conn->out_used < bytes && conn->out_sent > 0) {
        memmove(conn->out, conn->out + conn->out_sent, conn->out_used - conn->out_sent);
        conn->out_used -= conn->out_sent;
        conn->out_sent = 0;
    }
    if (conn->out_capacity - conn->out_used < bytes) {
        size_t wanted = conn->out_capacity > 0 ? 2 * conn->out_capacity : 4096;
        if (wanted - conn->out_used < bytes) wanted = conn->out_used + bytes;
        uint8_t *out = realloc(conn->out, wanted);
        if (out == NULL) return NULL;
        conn->out = out;
        conn->out_capacity = wanted;
    }
    return conn->out + conn->out_used;
}

void cmq_load_conn_asked(cmq_load *load, load_conn *conn)
{
    if (conn->waiting++ == 0) conn->progress_ns = load->now_ns;
}

cmq_status cmq_load_conn_flush(cmq_load *load, load_conn *conn)
{
    while (conn->out_sent < conn->out_used) {
        const ssize_t sent = send(conn->fd, conn->out + conn->out_sent, conn->out_used - conn->out_sent, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0 && errno != EAGAIN) return cmq_fail_errno(errno, "sending to %s", name_of(load, conn));
        if (sent < 0) break;
        conn->out_sent += (size_t)sent;
    }
    const bool waits = conn->out_sent < conn->out_used;
    if (waits == conn->waits_for_room) return CMQ_OK;
    conn->waits_for_room = waits;
    return watch(load, conn, EPOLL_CTL_MOD);
}

cmq_status cmq_load_conn_check_time(const cmq_load *load, const load_conn *conn)
{
    const int64_t limit_ms = load->options.timeout_ms + (conn->consumes ? LOAD_HOLD_MS : 0);
    const bool waits = conn->waiting > 0 || conn->waits_for_room || !conn->connected;
    if (!waits || load->now_ns - conn->progress_ns <= limit_ms * 1000000) return CMQ_OK;
    if (!conn->connected)
        return cmq_fail(CMQ_ERR_IO, "%s did not accept a connection within %lld ms", name_of(load, conn),
                        (long long)limit_ms);
    return cmq_fail(CMQ_ERR_IO, "%s did not answer within %lld ms", name_of(load, conn), (long long)limit_ms);
}

/* ---- in ---- */

static cmq_status take_frame(cmq_load *load, load_conn *conn, const cmq_frame *frame)
{
    if (frame->header.bytes > LOAD_SCRATCH_BYTES)
        return cmq_fail(CMQ_ERR_CORRUPT, "%s answered with a header of %zu bytes", name_of(load, conn),
                        frame->header.bytes);
    cmq_status status = cmq_command_parse(frame, load->scratch, LOAD_SCRATCH_BYTES, &load->command);
    if (status != CMQ_OK) return cmq_fail_context("in an answer of %s", name_of(load, conn));
    /* a request of the broker's, which nobody here serves */
    if ((load->command.flag & CMQ_COMMAND_RESPONSE) == 0) return CMQ_OK;
    if (conn->waiting == 0)
        return cmq_fail(CMQ_ERR_CORRUPT, "%s answered something that was not asked (opaque %d)", name_of(load, conn),
                        load->command.opaque);
    conn->waiting--;
    conn->progress_ns = load->now_ns;
    return cmq_load_answer(load, conn, &load->command, frame->body);
}

static cmq_status take_frames(cmq_load *load, load_conn *conn, size_t *needed_out)
{
    size_t at = 0;
    cmq_status status;
    *needed_out = CMQ_FRAME_PREFIX_BYTES;
    for (;;) {
        cmq_frame frame;
        status = cmq_frame_next((cmq_slice){.data = conn->in + at, .bytes = conn->in_used - at}, CMQ_FRAME_BYTES_MAX,
                                &frame, needed_out);
        if (status != CMQ_OK) break;
        status = take_frame(load, conn, &frame);
        if (status != CMQ_OK) return status;
        at += frame.bytes;
    }
    if (status != CMQ_AGAIN) return cmq_fail_context("in the output of %s", name_of(load, conn));
    if (at > 0) memmove(conn->in, conn->in + at, conn->in_used - at);
    conn->in_used -= at;
    return CMQ_OK;
}

static cmq_status grow_input(load_conn *conn, size_t needed)
{
    const size_t wanted = needed > READ_BYTES ? needed : READ_BYTES;
    if (conn->in_capacity >= wanted) return CMQ_OK;
    uint8_t *in = realloc(conn->in, wanted);
    if (in == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for an answer of %zu bytes", needed);
    conn->in = in;
    conn->in_capacity = wanted;
    return CMQ_OK;
}

/* One read, and its frames. Level-triggered: epoll reports unread bytes again. */
static cmq_status read_some(cmq_load *load, load_conn *conn)
{
    size_t needed;
    cmq_status status = grow_input(conn, 0);
    if (status != CMQ_OK) return status;
    const ssize_t got = recv(conn->fd, conn->in + conn->in_used, conn->in_capacity - conn->in_used, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return CMQ_OK;
    if (got < 0) return cmq_fail_errno(errno, "receiving from %s", name_of(load, conn));
    if (got == 0) return cmq_fail(CMQ_ERR_IO, "%s closed the connection", name_of(load, conn));
    conn->in_used += (size_t)got;
    status = take_frames(load, conn, &needed);
    return status != CMQ_OK ? status : grow_input(conn, needed);
}

static cmq_status finish_connecting(cmq_load *load, load_conn *conn)
{
    int error = 0;
    socklen_t bytes = sizeof error;
    if (getsockopt(conn->fd, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0) error = errno;
    if (error != 0) return cmq_fail_errno(error, "connecting to %s", name_of(load, conn));
    conn->connected = true;
    return watch(load, conn, EPOLL_CTL_MOD);
}

cmq_status cmq_load_conn_ready(cmq_load *load, load_conn *conn, uint32_t events)
{
    if (!conn->connected && (events & (EPOLLOUT | EPOLLERR | EPOLLHUP)) != 0) {
        const cmq_status status = finish_connecting(load, conn);
        if (status != CMQ_OK) return status;
    }
    if ((events & (EPOLLIN | EPOLLERR | EPOLLHUP)) != 0) {
        const cmq_status status = read_some(load, conn);
        if (status != CMQ_OK) return status;
    }
    return conn->connected ? cmq_load_conn_flush(load, conn) : CMQ_OK;
}
