/* cmq_loop: one thread's turns: wait, mails, requests, answers.
 *
 * Owns:      a loop's epoll set, its read buffer and what a turn's frames lie in, its pool of blocks, its mailbox.
 * Invariant: a loop sleeps only with SIGNAL_SLEEPS set in `signal` and no other bit; a thread that sets another bit
 *            then writes the eventfd. The eventfd is asked for by edge and never read: each write is an edge.
 * Time:      read once per turn, after the wait, and once before a wait that has an end. Waits are epoll_pwait2's, to
 *            the nanosecond; without the kernel's default slack of 50 us (PR_SET_TIMERSLACK).
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/cmq_assert.h"
#include "net/cmq_net_internal.h"

int64_t cmq_loop_now_ns(const cmq_loop *loop) { return loop->now_ns; }

/* ---- blocks ---- */

static uint64_t buffered(const cmq_loop *loop)
{
    return atomic_load_explicit(&loop->counts.buffered_bytes, memory_order_relaxed);
}

/* The loops that have more than their shares are to make room. */
static void call_for_memory(cmq_net *net)
{
    for (uint32_t i = 0; i < net->loop_count; i++)
        if (buffered(&net->loops[i]) > net->share_bytes) loop_signal(&net->loops[i], SIGNAL_MEMORY);
}

static bool account(cmq_loop *loop, size_t bytes)
{
    cmq_net *net = loop->net;
    const uint64_t used = buffered(loop);
    if (bytes > net->limits.buffered_bytes_max) return false;
    if (used + bytes > loop->granted_bytes) {
        const uint64_t more =
            (used + bytes - loop->granted_bytes + net->grant_bytes - 1) / net->grant_bytes * net->grant_bytes;
        const bool over = atomic_fetch_add_explicit(&net->granted_bytes, more, memory_order_relaxed) + more >
                          net->limits.buffered_bytes_max;
        if (over && used + bytes > net->share_bytes) {
            atomic_fetch_sub_explicit(&net->granted_bytes, more, memory_order_relaxed);
            return false;
        }
        loop->granted_bytes += more;
        if (over) call_for_memory(net);
    }
    atomic_store_explicit(&loop->counts.buffered_bytes, used + bytes, memory_order_relaxed);
    return true;
}

/* Where it would have more than its share, its own connections make room; not where that would not be enough. */
bool loop_account(cmq_loop *loop, size_t bytes)
{
    bool accounted = account(loop, bytes);
    while (!accounted && bytes <= loop->net->share_bytes && loop_make_memory(loop)) accounted = account(loop, bytes);
    return accounted;
}

void loop_keep_share(cmq_loop *loop)
{
    cmq_net *net = loop->net;
    bool made = true;
    while (made && buffered(loop) > net->share_bytes &&
           atomic_load_explicit(&net->granted_bytes, memory_order_relaxed) > net->limits.buffered_bytes_max)
        made = loop_make_memory(loop);
}

void loop_unaccount(cmq_loop *loop, size_t bytes)
{
    cmq_net *net = loop->net;
    const uint64_t used = atomic_load_explicit(&loop->counts.buffered_bytes, memory_order_relaxed) - bytes;
    atomic_store_explicit(&loop->counts.buffered_bytes, used, memory_order_relaxed);
    if (loop->granted_bytes - used < 4 * net->grant_bytes) return;
    const uint64_t less = (loop->granted_bytes - used) / net->grant_bytes * net->grant_bytes;
    loop->granted_bytes -= less;
    atomic_fetch_sub_explicit(&net->granted_bytes, less, memory_order_relaxed);
}

net_block *loop_take_block(cmq_loop *loop, size_t bytes)
{
    const bool small = bytes <= NET_SMALL_BYTES, medium = !small && bytes <= NET_MEDIUM_BYTES;
    if (small) bytes = NET_SMALL_BYTES;
    if (medium) bytes = NET_MEDIUM_BYTES;
    if (!loop_account(loop, bytes)) return NULL;
    net_link **pool = small ? &loop->pool_small : medium ? &loop->pool_medium : NULL;
    net_block *block;
    if (pool != NULL && *pool != NULL) {
        block = (net_block *)(void *)*pool;
        *pool = block->link.next;
        *(small ? &loop->pool_small_bytes : &loop->pool_medium_bytes) -= bytes;
    } else {
        block = malloc(bytes);
        if (block == NULL) {
            loop_unaccount(loop, bytes);
            return NULL;
        }
    }
    block->bytes = bytes;
    return block;
}

void loop_give_block(cmq_loop *loop, net_block *block)
{
    const bool small = block->bytes == NET_SMALL_BYTES, medium = block->bytes == NET_MEDIUM_BYTES;
    loop_unaccount(loop, block->bytes);
    size_t *pooled = small ? &loop->pool_small_bytes : &loop->pool_medium_bytes;
    if ((!small && !medium) || *pooled + block->bytes > NET_POOL_BYTES) {
        free(block);
        return;
    }
    *pooled += block->bytes;
    net_link **pool = small ? &loop->pool_small : &loop->pool_medium;
    block->link.next = *pool;
    *pool = &block->link;
}

net_block *loop_grow_block(cmq_loop *loop, net_block *block, size_t bytes)
{
    if (block->bytes > NET_MEDIUM_BYTES) {
        /* The kernel moves large blocks by their pages. */
        if (!loop_account(loop, bytes - block->bytes)) return NULL;
        net_block *grown = realloc(block, bytes);
        if (grown == NULL) loop_unaccount(loop, bytes - block->bytes);
        else grown->bytes = bytes;
        return grown;
    }
    net_block *grown = loop_take_block(loop, bytes);
    if (grown == NULL) return NULL;
    memcpy(grown + 1, block + 1, block->bytes - sizeof *block);
    loop_give_block(loop, block);
    return grown;
}

void loop_retire_block(cmq_loop *loop, net_block *block)
{
    block->link.next = loop->retired_blocks;
    loop->retired_blocks = &block->link;
}

void loop_retire_node(cmq_loop *loop, net_node *node)
{
    node->link.next = loop->retired_nodes;
    loop->retired_nodes = &node->link;
}

/* ---- the handler's turn ---- */

void loop_begin_turn(cmq_loop *loop)
{
    if (loop->turn_open) return;
    loop->turn_open = true;
    if (loop->net->handler.turn_begin != NULL) loop->net->handler.turn_begin(loop->state);
}

void loop_end_turn(cmq_loop *loop)
{
    if (loop->turn_open && loop->net->handler.turn_end != NULL) loop->net->handler.turn_end(loop->state);
    loop->turn_open = false;
    while (loop->retired_blocks != NULL) {
        net_block *block = (net_block *)(void *)loop->retired_blocks;
        loop->retired_blocks = block->link.next;
        loop_give_block(loop, block);
    }
    while (loop->retired_nodes != NULL) {
        net_node *node = (net_node *)(void *)loop->retired_nodes;
        loop->retired_nodes = node->link.next;
        free(node);
    }
}

static void send_listed(cmq_loop *loop)
{
    for (uint32_t i = 0; i < NET_SENDS; i++) {
        cmq_conn *conn = loop_unlist(loop);
        if (conn == NULL) return;
        const bool closing = (conn->flags & CONN_CLOSING) != 0;
        /* A closing connection still gets the output that fits. */
        if (closing || (conn->flags & CONN_BLOCKED) == 0) conn_send(conn);
        if (closing) conn_finish(conn);
        else conn_update(conn);
    }
}

void loop_make_room(cmq_loop *loop)
{
    if (NET_INPUT_BYTES - loop->input_used >= NET_READ_BYTES) return;
    loop_end_turn(loop);
    loop->input_used = 0;
    send_listed(loop);
}

/* ---- mails ---- */

static void open_mail(cmq_loop *loop, net_node *node)
{
    if (node->kind == NET_NODE_ADOPT) {
        conn_adopt(loop, node->fd, &node->peer, node->local_port);
        free(node);
        return;
    }
    cmq_conn *conn = cmq_loop_conn(loop, node->conn);
    if (conn == NULL || (conn->flags & CONN_CLOSING) != 0) {
        free(node);
    } else if (node->kind == NET_NODE_SEND) {
        conn_put_node(conn, node);
    } else if (node->kind == NET_NODE_OFFER) {
        conn_offer_node(conn, node);
    } else if (node->kind == NET_NODE_AGAIN) {
        conn_again(conn, node);
    } else {
        conn_end(conn, NULL);
        free(node);
    }
}

static void open_mails(cmq_loop *loop)
{
    net_link *mails = net_stack_take(&loop->mail);
    while (mails != NULL) {
        net_link *next = mails->next;
        open_mail(loop, (net_node *)(void *)mails);
        loop->mail_done++;
        mails = next;
    }
}

/* Update the count of outstanding work of all loops, which others wait for. New work is added in the same step in which
 * finished work is subtracted, so the sum is never 0 too early. */
static void count_outstanding(cmq_loop *loop)
{
    const bool busy = loop->kept > 0 || loop->unsent_conns > 0;
    int64_t change = -(int64_t)loop->mail_done;
    if (busy != loop->counted_busy) change += busy ? 1 : -1;
    loop->counted_busy = busy;
    loop->mail_done = 0;
    if (change != 0) atomic_fetch_add_explicit(&loop->net->outstanding, change, memory_order_acq_rel);
}

void cmq_conn_keep(cmq_conn *conn) { conn_loop(conn)->kept++; }

void cmq_conn_kept_done(cmq_loop *loop)
{
    CMQ_ASSERT(loop->kept > 0);
    loop->kept--;
}

/* ---- waiting ---- */

static int64_t due_ns(const cmq_loop *loop)
{
    const cmq_net_handler *handler = &loop->net->handler;
    int64_t due = loop_expiry_ns(loop);
    if (loop->accept_again_ns < due) due = loop->accept_again_ns;
    if (handler->due_ns == NULL) return due;
    const int64_t handlers = handler->due_ns(loop->state);
    return handlers < due ? handlers : due;
}

/* INT64_MAX: for ever. */
static int wait_events(cmq_loop *loop, struct epoll_event *events, int64_t wait_ns)
{
    const struct timespec wait = {.tv_sec = wait_ns / 1000000000, .tv_nsec = wait_ns % 1000000000};
    if (!loop->coarse_wait) {
        const long count =
            syscall(SYS_epoll_pwait2, loop->epoll_fd, events, NET_EVENTS, wait_ns == INT64_MAX ? NULL : &wait, NULL, 0);
        /* Linux before 5.11 does not have it, and sandboxes that do not know it refuse it. */
        if (count >= 0 || (errno != ENOSYS && errno != EPERM)) return (int)count;
        loop->coarse_wait = true;
    }
    const int64_t wait_ms = wait_ns / 1000000 + (wait_ns % 1000000 != 0);
    return epoll_wait(loop->epoll_fd, events, NET_EVENTS,
                      wait_ns == INT64_MAX ? -1
                      : wait_ms > 60000    ? 60000
                                           : (int)wait_ms);
}

static int wait_for_work(cmq_loop *loop, struct epoll_event *events, bool may_sleep)
{
    cmq_net *net = loop->net;
    int64_t wait_ns = 0;
    if (may_sleep && loop->listed.oldest == 0) {
        const int64_t due = due_ns(loop);
        const int64_t now = due == INT64_MAX ? 0 : net->now_ns(net->clock_context);
        wait_ns = due == INT64_MAX ? INT64_MAX : due > now ? due - now : 0;
        if (wait_ns > 0 && atomic_fetch_or_explicit(&loop->signal, SIGNAL_SLEEPS, memory_order_acq_rel) != 0)
            wait_ns = 0;
    }
    const int count = wait_events(loop, events, wait_ns);
    loop->now_ns = net->now_ns(net->clock_context);
    return count;
}

/* ---- a turn ---- */

static void take_event(cmq_loop *loop, const struct epoll_event *event)
{
    const uint64_t what = event->data.u64;
    if (what >= NET_EVENTS_OWN) {
        loop_make_room(loop);
        /* It may be gone: an event of this very wait may have closed it. */
        cmq_conn *conn = cmq_loop_conn(loop, what);
        if (conn != NULL) conn_event(conn, event->events);
    } else if (what != NET_EVENT_WAKE) {
        net_accept(loop, (uint32_t)what - NET_EVENT_LISTENER);
    }
}

bool loop_turn(cmq_loop *loop, bool may_sleep)
{
    const cmq_net_handler *handler = &loop->net->handler;
    struct epoll_event events[NET_EVENTS];
    const int count = wait_for_work(loop, events, may_sleep);
    const uint32_t signals = atomic_exchange_explicit(&loop->signal, 0, memory_order_acq_rel);
    if ((signals & SIGNAL_STOP) != 0) return false;
    if (count > 0 || signals != 0) net_count(&loop->counts.turns, 1);
    if ((signals & SIGNAL_DRAIN) != 0) net_listen_end(loop);
    if ((signals & SIGNAL_MEMORY) != 0) loop_keep_share(loop);
    if ((signals & SIGNAL_WOKEN) != 0 && handler->woken != NULL) handler->woken(loop->state);
    if (handler->due_ns != NULL && handler->tick != NULL && handler->due_ns(loop->state) <= loop->now_ns)
        handler->tick(loop->state, loop->now_ns);
    if ((signals & SIGNAL_MAIL) != 0) open_mails(loop);
    for (int i = 0; i < count; i++) take_event(loop, &events[i]);
    if (loop->accept_again_ns <= loop->now_ns) net_accept_resume(loop);
    loop_expire(loop);
    loop_end_turn(loop);
    loop->input_used = 0;
    send_listed(loop);
    count_outstanding(loop);
    return true;
}

void *loop_run(void *argument)
{
    cmq_loop *loop = argument;
    char name[16];
    snprintf(name, sizeof name, "cmq-net-%u", (unsigned)loop->index);
    pthread_setname_np(pthread_self(), name);
    (void)prctl(PR_SET_TIMERSLACK, 1);   /* only makes it better */
    while (loop_turn(loop, true)) continue;
    return NULL;
}

/* ---- life ---- */

cmq_status loop_init(cmq_loop *loop, cmq_net *net, uint32_t index)
{
    loop->net = net;
    loop->index = index;
    loop->epoll_fd = loop->wake_fd = loop->reserve_fd = -1;
    loop->accept_again_ns = INT64_MAX;
    loop->now_ns = net->now_ns(net->clock_context);
    loop->tables = calloc(net->table_count, sizeof *loop->tables);
    loop->input = malloc(NET_INPUT_BYTES);
    loop->scratch = malloc(NET_INPUT_BYTES);
    if (loop->tables == NULL || loop->input == NULL || loop->scratch == NULL)
        return cmq_fail(CMQ_ERR_MEMORY, "no memory for the buffers of a network loop");
    loop->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    loop->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    loop->reserve_fd = eventfd(0, EFD_CLOEXEC);
    struct epoll_event event = {.events = (uint32_t)EPOLLIN | (uint32_t)EPOLLET, .data.u64 = NET_EVENT_WAKE};
    if (loop->epoll_fd < 0 || loop->wake_fd < 0 || loop->reserve_fd < 0 ||
        epoll_ctl(loop->epoll_fd, EPOLL_CTL_ADD, loop->wake_fd, &event) != 0)
        return cmq_fail_errno(errno, "cannot make the descriptors of a network loop");
    return CMQ_OK;
}

static void free_blocks(net_link *blocks)
{
    while (blocks != NULL) {
        net_link *next = blocks->next;
        free(blocks);
        blocks = next;
    }
}

/* Its thread has ended. */
void loop_free(cmq_loop *loop)
{
    const uint32_t slots = loop->tables != NULL ? loop->slots_used : 0;
    for (uint32_t slot = 0; slot < slots; slot++) {
        cmq_conn *conn = loop_slot(loop, slot);
        if ((conn->flags & CONN_OPEN) == 0) continue;
        conn_close(conn, NULL);
        conn->flags &= (uint16_t)~CONN_KNOWN;   /* the control queue goes, too */
        conn_finish(conn);
    }
    for (net_link *mail = net_stack_take(&loop->mail), *next; mail != NULL; mail = next) {
        next = mail->next;
        net_node *node = (net_node *)(void *)mail;
        if (node->kind == NET_NODE_ADOPT) close(node->fd);
        free(node);
    }
    if (loop->begun && loop->net->handler.loop_end != NULL)
        loop->net->handler.loop_end(loop->net->handler.context, loop->state);
    for (uint32_t i = 0; loop->tables != NULL && i < loop->net->table_count; i++)
        free(atomic_load_explicit(&loop->tables[i], memory_order_relaxed));
    free_blocks(loop->pool_small);
    free_blocks(loop->pool_medium);
    free(loop->tables);
    free(loop->input);
    free(loop->scratch);
    if (loop->epoll_fd >= 0) close(loop->epoll_fd);
    if (loop->wake_fd >= 0) close(loop->wake_fd);
    if (loop->reserve_fd >= 0) close(loop->reserve_fd);
}
