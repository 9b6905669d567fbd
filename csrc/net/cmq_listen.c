/* cmq_listen: listening sockets, and who gets a connection.
 *
 * The first loop accepts for all and gives each connection to the loop that has the fewest. Not SO_REUSEPORT with a
 * socket per loop: the kernel would deal by a hash of the addresses, so that of four connections of four threads all
 * may land on one loop; and with it a second server of the same user can listen on the same port, and takes half of the
 * clients, where without it the address is taken. Accepting costs some microseconds per connection, once.
 *
 * Owns:      the listening sockets, until the server drains or ends.
 * Limits:    64 connections a turn and address. Over limits.connections_max, or .address_conns_max, or without a
 *            descriptor left, a connection is accepted and closed at once, so that its client knows; for the latter a
 *            descriptor is kept in reserve. When even that is taken by somebody else, accepting pauses for 100 ms.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cmq_name_hash.h"
#include "net/cmq_net_internal.h"

#define ACCEPTS 64
#define BACKLOG 1024
#define HOST_BYTES 64

/* ---- addresses ---- */

typedef struct net_address {
    struct sockaddr_storage storage;
    socklen_t bytes;
} net_address;

/* "127.0.0.1:10911" or "[::1]:10911" */
static cmq_status parse_address(const char *text, net_address *address_out)
{
    memset(address_out, 0, sizeof *address_out);
    const char *colon = strrchr(text, ':');
    const bool ipv6 = text[0] == '[';
    const char *host = ipv6 ? text + 1 : text;
    char copy[HOST_BYTES], *end = NULL;
    const size_t host_bytes = colon != NULL && colon > host + ipv6 ? (size_t)(colon - host) - ipv6 : 0;
    const unsigned long port = colon != NULL && colon[1] >= '0' && colon[1] <= '9' ? strtoul(colon + 1, &end, 10) : 0;
    bool good = host_bytes > 0 && host_bytes < sizeof copy && end != NULL && *end == '\0' && port <= UINT16_MAX &&
                (!ipv6 || colon[-1] == ']');
    if (good) {
        memcpy(copy, host, host_bytes);
        copy[host_bytes] = '\0';
        struct sockaddr_in *v4 = (struct sockaddr_in *)(void *)&address_out->storage;
        struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)(void *)&address_out->storage;
        address_out->storage.ss_family = ipv6 ? AF_INET6 : AF_INET;
        address_out->bytes = ipv6 ? sizeof *v6 : sizeof *v4;
        good =
            inet_pton(address_out->storage.ss_family, copy, ipv6 ? (void *)&v6->sin6_addr : (void *)&v4->sin_addr) == 1;
        if (ipv6) v6->sin6_port = htons((uint16_t)port);
        else v4->sin_port = htons((uint16_t)port);
    }
    if (good) return CMQ_OK;
    return cmq_fail(CMQ_ERR_ARGUMENT,
                    "\"%.100s\" is not an address to listen on: give a numeric one with a port, as 127.0.0.1:10911 "
                    "or [::1]:10911", text);
}

static cmq_record_host host_of(const struct sockaddr_storage *storage)
{
    cmq_record_host host = {.ipv6 = storage->ss_family == AF_INET6};
    if (host.ipv6) {
        const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)(const void *)storage;
        memcpy(host.address, &v6->sin6_addr, 16);
        host.port = ntohs(v6->sin6_port);
    } else {
        const struct sockaddr_in *v4 = (const struct sockaddr_in *)(const void *)storage;
        memcpy(host.address, &v4->sin_addr, 4);
        host.port = ntohs(v4->sin_port);
    }
    return host;
}

/* ---- listening ---- */

cmq_status net_listen(const char *text, net_listener *listener_out)
{
    net_address address;
    atomic_init(&listener_out->fd, -1);
    const cmq_status status = parse_address(text, &address);
    if (status != CMQ_OK) return status;
    const int fd = socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return cmq_fail_errno(errno, "cannot make a socket for %s", text);
    const int one = 1;
    /* Accepted sockets inherit the second, which saves a call each; the third lets 0.0.0.0 and [::] have the same
     * port. */
    bool good = setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0 &&
                setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0;
    if (good && address.storage.ss_family == AF_INET6)
        good = setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof one) == 0;
    good = good && bind(fd, (const struct sockaddr *)&address.storage, address.bytes) == 0 && listen(fd, BACKLOG) == 0;
    good = good && getsockname(fd, (struct sockaddr *)&address.storage, &address.bytes) == 0;
    if (!good) {
        const int error = errno;
        close(fd);
        return cmq_fail_errno(error, "cannot listen on %s", text);
    }
    listener_out->port = (uint16_t)host_of(&address.storage).port;
    atomic_store_explicit(&listener_out->fd, fd, memory_order_relaxed);
    return CMQ_OK;
}

/* Ask for connections, or do not: CMQ_ERR_IO only when adding failed. */
static cmq_status watch(cmq_loop *loop, int operation, uint32_t events)
{
    cmq_net *net = loop->net;
    for (uint32_t i = 0; i < net->listener_count; i++) {
        const int fd = atomic_load_explicit(&net->listeners[i].fd, memory_order_relaxed);
        struct epoll_event event = {.events = events, .data.u64 = NET_EVENT_LISTENER + i};
        if (fd >= 0 && epoll_ctl(loop->epoll_fd, operation, fd, &event) != 0)
            return cmq_fail_errno(errno, "cannot wait for connections");
    }
    return CMQ_OK;
}

cmq_status net_listen_begin(cmq_net *net) { return watch(&net->loops[0], EPOLL_CTL_ADD, EPOLLIN); }

void net_listen_end(cmq_loop *loop)
{
    cmq_net *net = loop->net;
    for (uint32_t i = 0; loop->index == 0 && i < net->listener_count; i++) {
        const int fd = atomic_load_explicit(&net->listeners[i].fd, memory_order_relaxed);
        if (fd < 0) continue;
        epoll_ctl(loop->epoll_fd, EPOLL_CTL_DEL, fd, NULL);   /* a forked child may have it, too */
        atomic_store_explicit(&net->listeners[i].fd, -1, memory_order_relaxed);
        close(fd);
    }
    loop->accept_again_ns = INT64_MAX;
}

/* ---- accepting ---- */

uint64_t cmq_net_network_of(const cmq_record_host *host)
{
    /* a host with one IPv6 address has a /64 */
    return cmq_name_hash((cmq_slice){.data = host->address, .bytes = host->ipv6 ? 8 : 4}) | 1;
}

uint32_t net_address_bucket(const cmq_record_host *peer)
{
    return (uint32_t)(cmq_net_network_of(peer) * CMQ_NAMEHASH_MULTIPLIER >> 52);
}

/* The count of an address's connections. */
static _Atomic uint32_t *address_conns(cmq_net *net, const cmq_record_host *peer)
{
    return &net->address_conns[net_address_bucket(peer)];
}

/* Count the connection; false: there are too many, and it is not counted. */
static bool enter_counts(cmq_net *net, const cmq_record_host *peer)
{
    _Atomic uint32_t *of_address = address_conns(net, peer);
    const bool fits = atomic_load_explicit(&net->open, memory_order_relaxed) < net->limits.connections_max &&
                      atomic_load_explicit(of_address, memory_order_relaxed) < net->limits.address_conns_max;
    if (!fits) return false;
    atomic_fetch_add_explicit(&net->open, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(of_address, 1, memory_order_relaxed);
    return true;
}

void net_leave_counts(cmq_loop *loop, const cmq_record_host *peer)
{
    atomic_fetch_sub_explicit(&loop->open, 1, memory_order_relaxed);
    atomic_fetch_sub_explicit(&loop->net->open, 1, memory_order_relaxed);
    atomic_fetch_sub_explicit(address_conns(loop->net, peer), 1, memory_order_relaxed);
}

static void give_away(cmq_loop *acceptor, int fd, const cmq_record_host *peer, uint16_t port)
{
    cmq_net *net = acceptor->net;
    cmq_loop *loop = acceptor;
    for (uint32_t i = 0; i < net->loop_count; i++) {
        const uint32_t open = atomic_load_explicit(&net->loops[i].open, memory_order_relaxed);
        if (open < atomic_load_explicit(&loop->open, memory_order_relaxed)) loop = &net->loops[i];
    }
    net_node *node = loop != acceptor ? net_node_make(NET_NODE_ADOPT, 0, NULL, 0) : NULL;
    if (node == NULL) loop = acceptor;
    atomic_fetch_add_explicit(&loop->open, 1, memory_order_relaxed);
    if (node == NULL) {
        conn_adopt(loop, fd, peer, port);
        return;
    }
    node->fd = fd;
    node->peer = *peer;
    node->local_port = port;
    loop_post(loop, node);
}

/* No descriptor is left: free the reserved one for a moment, to accept and refuse the client. False when that did not
 * help. */
static bool refuse_one(cmq_loop *loop, int listener_fd)
{
    if (loop->reserve_fd >= 0) close(loop->reserve_fd);
    const int fd = accept4(listener_fd, NULL, NULL, SOCK_CLOEXEC);
    const bool accepted = fd >= 0;
    if (accepted) close(fd);
    loop->reserve_fd = eventfd(0, EFD_CLOEXEC);
    if (accepted) net_count(&loop->counts.refused, 1);
    return accepted && loop->reserve_fd >= 0;
}

static void pause_accepting(cmq_loop *loop)
{
    loop->accept_again_ns = loop->now_ns + NET_ACCEPT_PAUSE_NS;
    (void)watch(loop, EPOLL_CTL_MOD, 0);   /* if it fails, the next turn tries to accept, and pauses again */
}

void net_accept_resume(cmq_loop *loop)
{
    loop->accept_again_ns = INT64_MAX;
    if (loop->reserve_fd < 0) loop->reserve_fd = eventfd(0, EFD_CLOEXEC);
    if (watch(loop, EPOLL_CTL_MOD, EPOLLIN) != CMQ_OK) pause_accepting(loop);
}

void net_accept(cmq_loop *loop, uint32_t listener)
{
    cmq_net *net = loop->net;
    const int listener_fd = atomic_load_explicit(&net->listeners[listener].fd, memory_order_relaxed);
    if (listener_fd < 0) return;   /* closed in this turn */
    for (int i = 0; i < ACCEPTS; i++) {
        struct sockaddr_storage peer;
        socklen_t peer_bytes = sizeof peer;
        const int fd = accept4(listener_fd, (struct sockaddr *)&peer, &peer_bytes, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0) {
            const cmq_record_host host = host_of(&peer);
            if (enter_counts(net, &host)) {
                give_away(loop, fd, &host, net->listeners[listener].port);
            } else {
                close(fd);
                net_count(&loop->counts.refused, 1);
            }
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            return;
        } else if (errno == EMFILE || errno == ENFILE) {
            if (refuse_one(loop, listener_fd)) continue;
            pause_accepting(loop);
            return;
        } else if (errno == ENOBUFS || errno == ENOMEM) {
            pause_accepting(loop);
            return;
        }
        /* Other errors are those of a connection that has gone meanwhile. */
    }
}
