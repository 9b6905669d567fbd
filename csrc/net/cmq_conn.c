/* cmq_conn: the life of a connection, apart from its bytes: its place in the table, its lists, its end.
 *
 * Owns:      a loop's table of connections, in pieces that never move; the list of the open ones in the order of their
 *            last byte, that of the half-closed ones, and that of those to be sent to or closed.
 * Invariant: an id that was given out is never given out again: 40 bits count a slot's connections. The idle list is in
 *            order up to idle_slack_ns, so its end is all that a look for idle connections needs.
 */
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/cmq_assert.h"
#include "net/cmq_net_internal.h"

_Static_assert(sizeof(cmq_conn) == 80, "an idle connection costs 80 bytes");

#define GENERATIONS_MAX ((UINT64_C(1) << 40) - 1)

static cmq_conn_id make_id(const cmq_loop *loop, uint32_t slot, uint64_t generation)
{
    return generation << 24 | (uint64_t)slot << 4 | loop->index;
}

cmq_conn_id cmq_conn_id_of(const cmq_conn *conn) { return atomic_load_explicit(&conn->id, memory_order_relaxed); }
const cmq_record_host *cmq_conn_peer(const cmq_conn *conn) { return &conn->peer; }
uint32_t cmq_conn_slot(const cmq_conn *conn) { return net_slot_of_id(cmq_conn_id_of(conn)); }

cmq_conn *cmq_loop_conn(cmq_loop *loop, cmq_conn_id id)
{
    const uint32_t slot = net_slot_of_id(id);
    if (net_loop_of_id(id) != loop->index || slot >= loop->slots_used) return NULL;
    cmq_conn *conn = loop_slot(loop, slot);
    return cmq_conn_id_of(conn) == id && (conn->flags & CONN_OPEN) != 0 ? conn : NULL;
}

/* ---- lists; places are slot + 1, so that 0 is none ---- */

static cmq_conn *at_place(const cmq_loop *loop, uint32_t place)
{
    return place != 0 ? loop_slot(loop, place - 1) : NULL;
}

static void list_add(const cmq_loop *loop, net_conn_list *list, cmq_conn *conn)
{
    const uint32_t place = cmq_conn_slot(conn) + 1;
    conn->older = list->newest;
    conn->newer = 0;
    if (list->newest != 0) at_place(loop, list->newest)->newer = place;
    else list->oldest = place;
    list->newest = place;
}

static void list_remove(const cmq_loop *loop, net_conn_list *list, cmq_conn *conn)
{
    if (conn->older != 0) at_place(loop, conn->older)->newer = conn->newer;
    else list->oldest = conn->newer;
    if (conn->newer != 0) at_place(loop, conn->newer)->older = conn->older;
    else list->newest = conn->older;
}

static net_conn_list *list_of(cmq_conn *conn)
{
    cmq_loop *loop = conn_loop(conn);
    return (conn->flags & CONN_HALF_CLOSED) != 0 ? &loop->half_closed : &loop->idle;
}

void conn_list(cmq_conn *conn)
{
    cmq_loop *loop = conn_loop(conn);
    if ((conn->flags & CONN_LISTED) != 0) return;
    conn->flags |= CONN_LISTED;
    const uint32_t place = cmq_conn_slot(conn) + 1;
    if (loop->listed.newest != 0) at_place(loop, loop->listed.newest)->listed_next = place;
    else loop->listed.oldest = place;
    loop->listed.newest = place;
    conn->listed_next = 0;
}

cmq_conn *loop_unlist(cmq_loop *loop)
{
    cmq_conn *conn = at_place(loop, loop->listed.oldest);
    if (conn == NULL) return NULL;
    loop->listed.oldest = conn->listed_next;
    if (loop->listed.oldest == 0) loop->listed.newest = 0;
    conn->flags &= (uint16_t)~CONN_LISTED;
    return conn;
}

void conn_touch(cmq_conn *conn)
{
    cmq_loop *loop = conn_loop(conn);
    if ((conn->flags & (CONN_CLOSING | CONN_HALF_CLOSED)) != 0 ||
        loop->now_ns - conn->active_ns < loop->net->idle_slack_ns)
        return;
    conn->active_ns = loop->now_ns;
    list_remove(loop, &loop->idle, conn);
    list_add(loop, &loop->idle, conn);
}

/* ---- table ---- */

static cmq_conn *take_slot(cmq_loop *loop)
{
    cmq_conn *conn = at_place(loop, loop->free_slot);
    if (conn != NULL) {
        loop->free_slot = conn->newer;
        return conn;
    }
    const uint32_t slot = loop->slots_used;
    if (slot >= loop->net->limits.connections_max) return NULL;
    if (slot % NET_TABLE_CONNS == 0) {
        net_table *table = calloc(1, sizeof *table);
        if (table == NULL) return NULL;
        table->loop = loop;
        for (uint32_t i = 0; i < NET_TABLE_CONNS; i++) {
            atomic_init(&table->conns[i].id, make_id(loop, slot + i, 1));
            atomic_init(&table->conns[i].fd, -1);
        }
        atomic_store_explicit(&loop->tables[slot / NET_TABLE_CONNS], table, memory_order_release);
    }
    loop->slots_used++;
    return loop_slot(loop, slot);
}

static void give_slot(cmq_conn *conn)
{
    cmq_loop *loop = conn_loop(conn);
    const cmq_conn_id id = cmq_conn_id_of(conn);
    const uint32_t slot = net_slot_of_id(id);
    const uint64_t generation = id >> 24;
    conn->flags = 0;
    if (generation == GENERATIONS_MAX) return;   /* used up: it is never taken again */
    atomic_store_explicit(&conn->id, make_id(loop, slot, generation + 1), memory_order_relaxed);
    conn->newer = loop->free_slot;
    loop->free_slot = slot + 1;
}

void conn_adopt(cmq_loop *loop, int fd, const cmq_record_host *peer, uint16_t local_port)
{
    cmq_conn *conn = take_slot(loop);
    if (conn == NULL) {
        close(fd);
        net_leave_counts(loop, peer);
        net_count(&loop->counts.closed_memory, 1);
        return;
    }
    conn->listed_next = 0;
    conn->active_ns = loop->now_ns;
    conn->peer = *peer;
    conn->local_port = local_port;
    conn->owed = 0;
    conn->flags = CONN_OPEN | CONN_READS;
    atomic_store_explicit(&conn->fd, fd, memory_order_relaxed);
    list_add(loop, &loop->idle, conn);
    net_count(&loop->counts.accepted, 1);
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = cmq_conn_id_of(conn)};
    if (epoll_ctl(loop->epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0) conn_close(conn, &loop->counts.closed_memory);
}

/* ---- the end ---- */

void conn_half_close(cmq_conn *conn)
{
    cmq_loop *loop = conn_loop(conn);
    list_remove(loop, &loop->idle, conn);
    conn->flags |= CONN_HALF_CLOSED;
    conn->active_ns = loop->now_ns;
    list_add(loop, &loop->half_closed, conn);
    conn_drop_input(conn);
    const cmq_net_handler *handler = &loop->net->handler;
    if (handler->half_closed == NULL) return;
    const uint32_t forgotten = handler->half_closed(loop->state, conn);
    conn->owed = forgotten < conn->owed ? (uint16_t)(conn->owed - forgotten) : 0;
}

void conn_close(cmq_conn *conn, _Atomic uint64_t *reason)
{
    if ((conn->flags & CONN_CLOSING) != 0) return;
    if (reason != NULL) net_count(reason, 1);
    list_remove(conn_loop(conn), list_of(conn), conn);
    conn_stop_wait(conn);
    conn->flags |= CONN_CLOSING;
    conn_list(conn);
}

void conn_end(cmq_conn *conn, _Atomic uint64_t *reason)
{
    if ((conn->flags & (CONN_CLOSING | CONN_LAST_WORDS)) != 0) return;
    if (reason != NULL) net_count(reason, 1);
    conn->flags |= CONN_LAST_WORDS;
    conn_list(conn);
}

void conn_finish(cmq_conn *conn)
{
    cmq_loop *loop = conn_loop(conn);
    CMQ_ASSERT((conn->flags & CONN_CLOSING) != 0);
    net_node *news = NULL;
    if ((conn->flags & CONN_KNOWN) != 0) {
        news = net_control_make_closed(conn);
        if (news == NULL) {
            conn_list(conn);   /* the control thread has to hear of it: again in the next turn */
            return;
        }
    }
    if (loop->net->handler.closed != NULL) loop->net->handler.closed(loop->state, conn);
    conn_drop_output(conn);
    conn_drop_input(conn);
    const int fd = conn_fd(conn);
    /* Not left to close(): a child that was forked may have the descriptor, too, and then it would stay in the set. */
    epoll_ctl(loop->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
    atomic_store_explicit(&conn->fd, -1, memory_order_relaxed);
    close(fd);
    give_slot(conn);
    net_leave_counts(loop, &conn->peer);
    net_count(&loop->counts.closed, 1);
    /* Last: when the control thread learns of it, the id is already invalid. */
    if (news != NULL) net_control_push_unlimited(loop->net, news);
}

void conn_update(cmq_conn *conn)
{
    cmq_loop *loop = conn_loop(conn);
    const uint64_t unsent = conn_unsent(conn);
    const uint16_t flags = conn->flags;
    if ((flags & (CONN_CLOSING | CONN_LISTED)) != 0) return;
    const bool answered = (flags & CONN_HALF_CLOSED) != 0 && conn->owed == 0;
    if (unsent == 0 && (answered || (flags & CONN_LAST_WORDS) != 0)) {
        conn_close(conn, NULL);
        return;
    }
    uint16_t wanted = 0;
    if ((flags & (CONN_HALF_CLOSED | CONN_LAST_WORDS | CONN_PENDING)) == 0 &&
        unsent <= loop->net->limits.unsent_bytes_pause)
        wanted |= CONN_READS;
    if ((flags & (CONN_BLOCKED | CONN_PENDING)) != 0) wanted |= CONN_WRITES;
    if ((flags & (CONN_READS | CONN_WRITES)) == wanted) return;
    /* The time of a frame does not run while it is not read. */
    if ((wanted & CONN_READS) == 0) conn_stop_wait(conn);
    else conn_wait(conn);
    struct epoll_event event = {.data.u64 = cmq_conn_id_of(conn)};
    event.events =
        ((wanted & CONN_READS) != 0 ? (uint32_t)EPOLLIN : 0) | ((wanted & CONN_WRITES) != 0 ? (uint32_t)EPOLLOUT : 0);
    if (epoll_ctl(loop->epoll_fd, EPOLL_CTL_MOD, conn_fd(conn), &event) != 0)
        conn_close(conn, &loop->counts.closed_memory);
    conn->flags = (uint16_t)((conn->flags & ~(CONN_READS | CONN_WRITES)) | wanted);
}

/* ---- time ---- */

static int64_t idle_until(const cmq_loop *loop, const cmq_conn *conn)
{
    /* The last byte may be younger than it says by the slack. */
    return conn->active_ns + loop->net->limits.idle_ms * 1000000 + loop->net->idle_slack_ns;
}

static int64_t frame_until(const cmq_loop *loop, const net_input *input)
{
    return input->began_ns + loop->net->limits.frame_ms * 1000000;
}

int64_t loop_expiry_ns(const cmq_loop *loop)
{
    int64_t due = INT64_MAX;
    const cmq_conn *idle = at_place(loop, loop->idle.oldest), *half_closed = at_place(loop, loop->half_closed.oldest);
    if (idle != NULL) due = idle_until(loop, idle);
    if (half_closed != NULL && half_closed->active_ns + NET_HALF_CLOSED_NS < due)
        due = half_closed->active_ns + NET_HALF_CLOSED_NS;
    if (loop->oldest_input != NULL && frame_until(loop, loop->oldest_input) < due)
        due = frame_until(loop, loop->oldest_input);
    return due;
}

/* Bytes of the account that a connection has: output that it has not taken, and what is kept of its frames. */
static uint64_t buffered_of(const cmq_conn *conn)
{
    uint64_t bytes = conn->input != NULL ? conn->input->block.bytes : 0;
    for (const net_chunk *chunk = conn->output; chunk != NULL; chunk = chunk->next)
        bytes += chunk->block.bytes + chunk->lent_accounted;
    return bytes;
}

/* The memory of one address in this loop. */
typedef struct address_share {
    uint64_t bytes;
    uint32_t conns;   /* that have some of them */
} address_share;

static void add_shares(cmq_loop *loop, const net_conn_list *list, address_share *shares)
{
    for (const cmq_conn *conn = at_place(loop, list->oldest); conn != NULL; conn = at_place(loop, conn->newer)) {
        address_share *of = &shares[net_address_bucket(&conn->peer)];
        const uint64_t bytes = buffered_of(conn);
        of->bytes += bytes;
        of->conns += bytes > 0;
    }
}

/* Of the address: the connection that has its share or more and took nothing for the longest time, or else the one that
 * has most: `most`, with so many bytes, or one of this list. */
static cmq_conn *find_greedy(cmq_loop *loop, const net_conn_list *list, uint32_t bucket, const address_share *of,
                             cmq_conn *most, uint64_t *most_bytes)
{
    for (cmq_conn *conn = at_place(loop, list->oldest); conn != NULL; conn = at_place(loop, conn->newer)) {
        if (net_address_bucket(&conn->peer) != bucket) continue;
        const uint64_t bytes = buffered_of(conn);
        if (bytes > 0 && bytes >= of->bytes / of->conns && loop->now_ns - conn->active_ns > loop->net->idle_slack_ns)
            return conn;
        if (bytes <= *most_bytes) continue;
        most = conn;
        *most_bytes = bytes;
    }
    return most;
}

bool loop_make_memory(cmq_loop *loop)
{
    address_share shares[NET_ADDRESS_BUCKETS] = {0};
    add_shares(loop, &loop->idle, shares);
    add_shares(loop, &loop->half_closed, shares);
    uint32_t bucket = 0;
    for (uint32_t i = 1; i < NET_ADDRESS_BUCKETS; i++)
        if (shares[i].bytes > shares[bucket].bytes) bucket = i;
    uint64_t most_bytes = 0;
    cmq_conn *conn = find_greedy(loop, &loop->idle, bucket, &shares[bucket], NULL, &most_bytes);
    conn = find_greedy(loop, &loop->half_closed, bucket, &shares[bucket], conn, &most_bytes);
    if (conn == NULL) return false;
    conn_close(conn, conn_unsent(conn) > 0 ? &loop->counts.closed_slow_reader : &loop->counts.closed_memory);
    conn_drop_output(conn);
    /* Frames that the handler saw in this turn are in use until its end: conn_finish frees those. */
    if (conn != loop->reading && conn->input != NULL && (conn->input->begin == 0 || !loop->turn_open))
        conn_drop_input(conn);
    return true;
}

void loop_expire(cmq_loop *loop)
{
    /* Closing takes them off their lists. */
    for (cmq_conn *conn; (conn = at_place(loop, loop->idle.oldest)) != NULL && idle_until(loop, conn) <= loop->now_ns;)
        conn_close(conn, &loop->counts.closed_idle);
    for (cmq_conn *conn; (conn = at_place(loop, loop->half_closed.oldest)) != NULL &&
                         conn->active_ns + NET_HALF_CLOSED_NS <= loop->now_ns;)
        conn_close(conn, NULL);
    while (loop->oldest_input != NULL && frame_until(loop, loop->oldest_input) <= loop->now_ns)
        conn_close(loop->oldest_input->conn, &loop->counts.closed_slow_frame);
}
