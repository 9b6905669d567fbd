/* cmq_control: the queue from the loops to the control thread, and the ways back.
 *
 * Owns:      the items that wait for the control thread: blocks that the loops push; the one consumer takes the whole
 *            stack and hands them out oldest first.
 * Invariant: the descriptor is readable while items wait. A loop writes it when it pushes onto an empty stack; the
 *            consumer reads it before it takes the stack, so that a later push finds the stack empty and writes again.
 * Limits:    count, in all and of a connection, and bytes from the push until the consumer is done with the item: a
 *            consumer that takes all at once and works on it for long does not unbind the queue. The end of a
 *            connection is always reported: there is one such item per connection.
 * Threads:   push: the loops; take: one thread; the others: any.
 */
#include <stdlib.h>
#include <unistd.h>

#include "base/cmq_assert.h"
#include "net/cmq_net_internal.h"

static void write_event(int fd)
{
    const uint64_t one = 1;
    /* It fails only when the counter is full, and then the descriptor is readable anyway. */
    const ssize_t written = write(fd, &one, sizeof one);
    (void)written;
}

/* ---- loops ---- */

void net_control_push_unlimited(cmq_net *net, net_node *node)
{
    if (net_stack_push(&net->control, &node->link)) write_event(net->control_fd);
}

/* Take the node off the counts. Its connection may be gone; the place that it had is not. */
static void leave_queue(cmq_net *net, const net_node *node)
{
    cmq_conn *place = loop_slot(&net->loops[net_loop_of_id(node->conn)], net_slot_of_id(node->conn));
    atomic_fetch_sub_explicit(&place->at_control, 1, memory_order_relaxed);
    atomic_fetch_sub_explicit(&net->control_count, 1, memory_order_relaxed);
    atomic_fetch_sub_explicit(&net->control_bytes, node->bytes, memory_order_relaxed);
}

#define MODEST_COUNT 16u
#define MODEST_BYTES 65536u

bool net_control_push(cmq_conn *conn, net_node *node)
{
    cmq_net *net = conn_loop(conn)->net;
    const uint64_t bytes_max = net->limits.control_bytes_max;
    const uint16_t own = atomic_fetch_add_explicit(&conn->at_control, 1, memory_order_relaxed);
    const uint32_t count = atomic_fetch_add_explicit(&net->control_count, 1, memory_order_relaxed);
    const uint64_t bytes = atomic_fetch_add_explicit(&net->control_bytes, node->bytes, memory_order_relaxed);
    const bool modest = own < MODEST_COUNT && node->bytes <= MODEST_BYTES;
    const uint32_t count_max = net->limits.control_count_max;
    const uint64_t bytes_free = modest ? bytes_max : bytes_max - bytes_max / 4;
    const bool fits = own < net->limits.control_conn_max && count < (modest ? count_max : count_max - count_max / 4) &&
                      node->bytes <= bytes_max;
    if (!fits || (bytes > 0 && bytes > bytes_free - (node->bytes < bytes_free ? node->bytes : bytes_free))) {
        leave_queue(net, node);
        return false;
    }
    atomic_fetch_add_explicit(&net->outstanding, 1, memory_order_relaxed);
    net_control_push_unlimited(net, node);
    return true;
}

net_node *net_control_make_closed(const cmq_conn *conn)
{
    net_node *node = net_node_make(NET_NODE_CLOSED, cmq_conn_id_of(conn), NULL, 0);
    if (node == NULL) return NULL;
    node->peer = conn->peer;
    node->local_port = conn->local_port;
    node->arrived_ns = conn_loop(conn)->now_ns;
    return node;
}

/* ---- the consumer ---- */

int cmq_net_control_fd(const cmq_net *net) { return net->control_fd; }

uint32_t cmq_net_control_take(cmq_net *net, cmq_control_item *items, uint32_t capacity)
{
    if (net->control_taken == NULL) {
        uint64_t ignored;
        const ssize_t got = read(net->control_fd, &ignored, sizeof ignored);   /* EAGAIN: it was not readable */
        (void)got;
        net->control_taken = net_stack_take(&net->control);
    }
    uint32_t count = 0;
    while (count < capacity && net->control_taken != NULL) {
        net_node *node = (net_node *)(void *)net->control_taken;
        net->control_taken = node->link.next;
        items[count++] = (cmq_control_item){.kind = (cmq_control_kind)node->kind,
                                            .conn = node->conn,
                                            .peer = node->peer,
                                            .local_port = node->local_port,
                                            .arrived_ns = node->arrived_ns,
                                            .frame = node->data,
                                            .frame_bytes = node->bytes};
        if (node->kind != NET_NODE_CLOSED) continue;
        items[count - 1].frame = NULL;
        free(node);
    }
    if (net->control_taken != NULL) write_event(net->control_fd);
    return count;
}

static net_node *node_of(const cmq_control_item *item)
{
    return (net_node *)(uintptr_t)(item->frame - offsetof(net_node, data));
}

void cmq_control_item_done(cmq_net *net, cmq_control_item *item)
{
    if (item->frame == NULL) return;
    net_node *node = node_of(item);
    if (net != NULL) leave_queue(net, node);
    free(node);
    *item = (cmq_control_item){.kind = item->kind, .conn = item->conn};
    if (net == NULL) return;
    /* After whatever answered it was posted: so the sum is never 0 in between. */
    atomic_fetch_sub_explicit(&net->outstanding, 1, memory_order_release);
}

void net_control_clear(cmq_net *net)
{
    cmq_control_item item;
    while (cmq_net_control_take(net, &item, 1) == 1) cmq_control_item_done(NULL, &item);
}

/* ---- the ways back ---- */

net_node *net_node_make(net_node_kind kind, cmq_conn_id conn, const uint8_t *bytes, size_t count)
{
    net_node *node = count <= SIZE_MAX - sizeof *node ? malloc(sizeof *node + count) : NULL;
    if (node == NULL) return NULL;
    *node = (net_node){.kind = kind, .fd = -1, .conn = conn, .bytes = count};
    if (count > 0) memcpy(node->data, bytes, count);
    return node;
}

void loop_signal(cmq_loop *loop, uint32_t bit)
{
    const uint32_t before = atomic_fetch_or_explicit(&loop->signal, bit, memory_order_acq_rel);
    if (before == SIGNAL_SLEEPS) write_event(loop->wake_fd);
}

void loop_post(cmq_loop *loop, net_node *node)
{
    atomic_fetch_add_explicit(&loop->net->outstanding, 1, memory_order_relaxed);
    if (net_stack_push(&loop->mail, &node->link)) loop_signal(loop, SIGNAL_MAIL);
}

void cmq_loop_wake(cmq_loop *loop) { loop_signal(loop, SIGNAL_WOKEN); }

/* The loop of a connection, NULL when it is known to be gone. */
static cmq_loop *loop_of_conn(cmq_net *net, cmq_conn_id id)
{
    const uint32_t index = net_loop_of_id(id), slot = net_slot_of_id(id);
    if (id == 0 || index >= net->loop_count || slot / NET_TABLE_CONNS >= net->table_count) return NULL;
    cmq_loop *loop = &net->loops[index];
    if (atomic_load_explicit(&loop->tables[slot / NET_TABLE_CONNS], memory_order_acquire) == NULL) return NULL;
    return atomic_load_explicit(&loop_slot(loop, slot)->id, memory_order_relaxed) == id ? loop : NULL;
}

void cmq_net_again(cmq_net *net, cmq_control_item *item)
{
    CMQ_ASSERT(item->kind == CMQ_CONTROL_REQUEST && item->frame != NULL);
    net_node *node = node_of(item);
    cmq_loop *loop = loop_of_conn(net, node->conn);
    if (loop == NULL) {
        cmq_control_item_done(net, item);
        return;
    }
    leave_queue(net, node);
    *item = (cmq_control_item){.kind = item->kind, .conn = item->conn};
    node->kind = NET_NODE_AGAIN;
    loop_post(loop, node);
    atomic_fetch_sub_explicit(&net->outstanding, 1, memory_order_release);
}

static cmq_status CMQ_MUST_CHECK post_frame(cmq_net *net, net_node_kind kind, cmq_conn_id conn, const uint8_t *frame,
                                            size_t frame_bytes)
{
    cmq_loop *loop = loop_of_conn(net, conn);
    if (loop == NULL) return cmq_fail(CMQ_ERR_NOT_FOUND, "the connection is gone");
    net_node *node = net_node_make(kind, conn, frame, frame_bytes);
    if (node == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for a frame of %zu bytes", frame_bytes);
    loop_post(loop, node);
    return CMQ_OK;
}

cmq_status cmq_net_send(cmq_net *net, cmq_conn_id conn, const uint8_t *frame, size_t frame_bytes)
{
    return post_frame(net, NET_NODE_SEND, conn, frame, frame_bytes);
}

cmq_status cmq_net_offer(cmq_net *net, cmq_conn_id conn, const uint8_t *frame, size_t frame_bytes)
{
    return post_frame(net, NET_NODE_OFFER, conn, frame, frame_bytes);
}

void cmq_net_close_conn(cmq_net *net, cmq_conn_id conn)
{
    cmq_loop *loop = loop_of_conn(net, conn);
    if (loop == NULL) return;
    net_node *node = net_node_make(NET_NODE_CLOSE, conn, NULL, 0);
    /* Without memory it stays open: idle, it is closed in its time. */
    if (node != NULL) loop_post(loop, node);
}
