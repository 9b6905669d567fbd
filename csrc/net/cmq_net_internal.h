/* cmq_net_internal: declarations private to csrc/net.
 *
 * The cost of a request on its way through a loop:
 *   bytes        the kernel copies them into the loop's read buffer; nothing here copies them again. Only the rest of a
 *                read that ends inside a frame is kept (once: the next read goes straight behind it, by readv, and on
 *                into the shared buffer). Answers are written where they are sent from.
 *   calls        one epoll_pwait2 a turn, one recv and one sendmsg per connection that had something, however many
 *                frames that was. Other threads write an eventfd only when the loop sleeps.
 *   lines        the connection (80 bytes, two lines; a neighbour's more once a second, for the idle list), the loop's
 *                one command, as far as its fields go, the chunk of output. Buffers are taken last-in-first-out, so
 *                they are in the cache.
 *   allocations  none: read buffer, command and the room for unescaped text are a loop's, and small chunks of output
 *                come from its pool. Chunks over 16 KiB and whatever goes to the control thread (one block a request)
 *                are malloc's.
 *   locks        none: mailbox and control queue are stacks that producers push to with one exchange, and a consumer
 *                takes whole. A thread of Python's that loses its core between two instructions therefore never stops a
 *                loop. Fields that threads share are on cache lines of their own.
 *
 * Limits of a turn: 64 connections a wait and 64 KiB a connection are read, 128 connections are sent to. A client that
 * pipelines without end, and an arrival that answers a thousand holds, thus cost the others at most that.
 */
#ifndef CMQ_NET_INTERNAL_H
#define CMQ_NET_INTERNAL_H

#include <pthread.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stddef.h>

#include "net/cmq_net.h"

#define NET_ADDRESSES_MAX 8u
#define NET_LOOPS_MAX 16u
#define NET_CONNECTIONS_MAX (1u << 20)   /* of limits.connections_max: a slot has 20 bits in an id */
#define NET_TABLE_CONNS 256u             /* connections a piece of the table: pieces never move */
#define NET_EVENTS 64                    /* a wait */
#define NET_READ_BYTES 65536u            /* a connection and turn */
#define NET_LARGE_READ_BYTES (1u << 20)  /* … when they belong to one large frame */
#define NET_INPUT_BYTES 262144u          /* the shared read buffer */
#define NET_SENDS 128u                   /* a turn */
#define NET_SMALL_BYTES 1024u /* blocks of the pool, their head included: an answer or a few; a frame's first part … */
#define NET_MEDIUM_BYTES 16384u          /* … and what a pipelining connection needs */
#define NET_POOL_BYTES 4194304u          /* kept by a loop of either kind */
#define NET_HALF_CLOSED_NS INT64_C(500000000)   /* how long answers are waited for that a half-closed client is owed */
#define NET_ACCEPT_PAUSE_NS INT64_C(100000000)  /* after accept found no descriptor, not even the reserve */

/* ---- stacks that many push to and one takes whole ---- */

typedef struct net_link {
    struct net_link *next;
} net_link;

typedef _Atomic(net_link *) net_stack;

/* True when it was empty: then the consumer may have to be woken. */
static inline bool net_stack_push(net_stack *stack, net_link *link)
{
    net_link *before = atomic_load_explicit(stack, memory_order_relaxed);
    do link->next = before;   /* once it is there, it is the taker's */
    while (!atomic_compare_exchange_weak_explicit(stack, &before, link, memory_order_acq_rel, memory_order_relaxed));
    return before == NULL;
}

/* All of it, the oldest first. */
static inline net_link *net_stack_take(net_stack *stack)
{
    net_link *newest = atomic_exchange_explicit(stack, NULL, memory_order_acq_rel), *oldest = NULL;
    while (newest != NULL) {
        net_link *next = newest->next;
        newest->next = oldest;
        oldest = newest;
        newest = next;
    }
    return oldest;
}

/* Items sent to the control thread, and mails sent to a loop. A request that comes back is the block it went out as. */
typedef enum net_node_kind {
    NET_NODE_REQUEST = CMQ_CONTROL_REQUEST,
    NET_NODE_RESPONSE = CMQ_CONTROL_RESPONSE,
    NET_NODE_CLOSED = CMQ_CONTROL_CLOSED,
    NET_NODE_AGAIN,
    NET_NODE_SEND,
    NET_NODE_OFFER,
    NET_NODE_CLOSE,
    NET_NODE_ADOPT
} net_node_kind;

typedef struct net_node {
    net_link link;
    net_node_kind kind;
    int fd;                 /* ADOPT */
    cmq_conn_id conn;
    cmq_record_host peer;
    uint16_t local_port;
    int64_t arrived_ns;
    size_t bytes;
    uint8_t data[];
} net_node;

/* NULL: no memory */
net_node *net_node_make(net_node_kind kind, cmq_conn_id conn, const uint8_t *bytes, size_t count);

/* ---- a connection ---- */

enum {
    CONN_OPEN = 1,
    CONN_LISTED = 2,        /* in the loop's list of those to send to or to close */
    CONN_CLOSING = 4,       /* will be closed in this turn; takes no output any more */
    CONN_LAST_WORDS = 8,    /* will be closed when its output is sent; nothing is read */
    CONN_BLOCKED = 16,      /* the socket takes no more until EPOLLOUT */
    CONN_PENDING = 32,      /* whole frames wait in `input` until some output was taken */
    CONN_HALF_CLOSED = 64,  /* the client sends no more */
    CONN_READS = 128,       /* EPOLLIN is asked for */
    CONN_WRITES = 256,      /* EPOLLOUT is asked for */
    CONN_KNOWN = 512,       /* the control thread had an item of it */
    CONN_SPOKE = 1024       /* a whole frame came */
};

/* A block of the pool: the bytes of a frame that is partly there, or output. */
typedef struct net_block {
    net_link link;
    size_t bytes;           /* of the whole block: accounted for until it is given back */
} net_block;

typedef struct net_input {
    net_block block;
    struct net_input *older, *newer;   /* of the frames that have begun, in the order they did */
    cmq_conn *conn;
    int64_t began_ns;
    bool listed;
    size_t begin, end;      /* of what is there */
    size_t needed;          /* of the frame at `begin`, in all */
    uint8_t data[];
} net_input;

typedef struct net_chunk {
    net_block block;
    struct net_chunk *next;
    struct net_chunk *last; /* of the first chunk only, as is `unsent` */
    uint64_t unsent;        /* bytes of the connection */
    const uint8_t *at;      /* the bytes to send: `own`, or lent */
    size_t bytes;
    size_t lent_accounted;
    void (*release)(void *context);
    void *context;
    uint8_t own[];
} net_chunk;

/* 80 bytes, as 20,000 of them may stand idle. Which loop: see conn_loop. */
struct cmq_conn {
    _Atomic cmq_conn_id id;       /* of the one that is open; when none is, of the next. Changed by the loop, read by
                                   * all */
    _Atomic int fd;               /* -1: none. Atomic for who comes out of a fork in the middle */
    uint32_t newer, older;        /* neighbours in the idle or the half-closed list, or the next free slot: slot + 1; 0
                                   * none */
    uint32_t listed_next;         /* slot + 1 */
    int64_t active_ns;            /* the last byte either way, to a second; half-closed: since when */
    net_input *input;
    net_chunk *output;
    cmq_record_host peer;
    uint16_t local_port;
    uint16_t flags;
    uint16_t owed;                /* requests that are not answered yet, as far as it is known: only a half-closed
                                   * connection asks */
    _Atomic uint16_t at_control;  /* requests at the control thread that came from this place, be it from a connection
                                   * before; others count down */
};

typedef struct net_table {
    cmq_loop *loop;
    uint32_t first_slot;
    cmq_conn conns[NET_TABLE_CONNS];
} net_table;

typedef struct net_conn_list {
    uint32_t oldest, newest;      /* slot + 1; 0 none */
} net_conn_list;

/* ---- a loop ---- */

typedef struct net_listener {
    _Atomic int fd;
    uint16_t port;
} net_listener;

/* Written by the loop alone, read by all. */
typedef struct net_counts {
    _Atomic uint64_t accepted, closed, refused, frames_in, frames_out, bytes_in, bytes_out, control_items,
        control_refused, offers_dropped;
    _Atomic uint64_t closed_corrupt, closed_slow_reader, closed_slow_frame, closed_idle, closed_memory, closed_tls;
    _Atomic uint64_t reads, writes, turns, buffered_bytes;
} net_counts;

static inline void net_count(_Atomic uint64_t *count, uint64_t more)
{
    atomic_store_explicit(count, atomic_load_explicit(count, memory_order_relaxed) + more, memory_order_relaxed);
}

enum {
    SIGNAL_WOKEN = 1,       /* cmq_loop_wake */
    SIGNAL_MAIL = 2,
    SIGNAL_DRAIN = 4,
    SIGNAL_STOP = 8,
    SIGNAL_MEMORY = 16,     /* another loop needs memory of its share: loop_keep_share */
    SIGNAL_SLEEPS = 32      /* the loop waits: the first to set another bit writes the eventfd */
};

struct cmq_loop {
    cmq_net *net;
    uint32_t index;
    int epoll_fd, wake_fd;
    void *state;                  /* the handler's */
    bool begun;                   /* the handler made it */
    bool coarse_wait;             /* the kernel has no epoll_pwait2: waits end on whole milliseconds */
    bool turn_open;               /* turn_begin was called */
    int64_t now_ns;
    uint8_t *input;               /* NET_INPUT_BYTES … */
    size_t input_used;
    uint8_t *scratch;             /* … and as many for unescaped text, at the same places */
    cmq_command command;          /* the one that is being served */
    const cmq_conn *reading;      /* the connection whose bytes are being served; NULL: none */
    net_link *retired_blocks;     /* buffers whose frames the handler looks at until the turn ends … */
    net_link *retired_nodes;      /* … and requests that came back */
    net_input *oldest_input, *newest_input;
    net_conn_list idle, half_closed, listed;
    net_link *pool_small, *pool_medium;
    size_t pool_small_bytes, pool_medium_bytes;
    uint64_t granted_bytes;       /* of limits.buffered_bytes_max */
    uint64_t kept;                /* requests that the handler keeps */
    uint64_t unsent_conns;        /* connections with output */
    uint32_t mail_done;           /* mails of this turn */
    bool counted_busy;            /* in net->outstanding */
    uint32_t slots_used;          /* of the table; those below may be free again */
    uint32_t free_slot;           /* slot + 1; 0 none */
    int64_t accept_again_ns;      /* INT64_MAX: accepts, or not at all */
    int reserve_fd;
    pthread_t thread;
    bool thread_started;
    _Atomic(net_table *) *tables;
    net_counts counts;

    /* Written by other threads. */
    alignas(64) _Atomic uint32_t signal;
    net_stack mail;
    _Atomic uint32_t open;        /* connections, those on their way here too */
};

/* Connections are counted by a hash of their address: as good as by address, which are few beside that, or have few. */
#define NET_ADDRESS_BUCKETS 4096u

struct cmq_net {
    cmq_net_handler handler;
    cmq_net_limits limits;
    int64_t (*now_ns)(void *context);
    void *clock_context;
    bool manual, started;
    uint32_t loop_count, listener_count, table_count;
    int64_t idle_slack_ns;
    uint64_t grant_bytes;         /* a step of granted_bytes */
    uint64_t share_bytes;         /* of limits.buffered_bytes_max: a loop always gets these */
    cmq_loop *loops;
    net_listener listeners[NET_ADDRESSES_MAX];
    int control_fd;
    net_link *control_taken;      /* of the consumer: taken from the stack, not yet handed out */
    _Atomic bool draining;

    alignas(64) net_stack control;
    _Atomic uint32_t control_count;
    _Atomic uint64_t control_bytes;
    alignas(64) _Atomic uint64_t granted_bytes;
    _Atomic uint32_t open;
    _Atomic uint32_t address_conns[NET_ADDRESS_BUCKETS];
    _Atomic int64_t outstanding;  /* see cmq_net_is_idle */
};

/* An id: generation (40 bits, from 1), slot (20), loop (4). epoll's user data is the id of a connection; of other
 * descriptors a number below these. */
enum { NET_EVENT_WAKE = 0, NET_EVENT_LISTENER = 1, NET_EVENTS_OWN = 1 << 24 };
_Static_assert(NET_EVENT_LISTENER + NET_ADDRESSES_MAX <= NET_EVENTS_OWN, "no connection has such an id");

static inline uint32_t net_loop_of_id(cmq_conn_id id) { return (uint32_t)id & (NET_LOOPS_MAX - 1); }
static inline uint32_t net_slot_of_id(cmq_conn_id id) { return (uint32_t)(id >> 4) & (NET_CONNECTIONS_MAX - 1); }

static inline net_table *conn_table(const cmq_conn *conn)
{
    const uint32_t place = net_slot_of_id(atomic_load_explicit(&conn->id, memory_order_relaxed)) % NET_TABLE_CONNS;
    return (net_table *)(uintptr_t)((const uint8_t *)(conn - place) - offsetof(net_table, conns));
}
static inline cmq_loop *conn_loop(const cmq_conn *conn) { return conn_table(conn)->loop; }
static inline uint64_t conn_unsent(const cmq_conn *conn) { return conn->output != NULL ? conn->output->unsent : 0; }
static inline int conn_fd(const cmq_conn *conn) { return atomic_load_explicit(&conn->fd, memory_order_relaxed); }

/* The connection in a slot that was used before. */
static inline cmq_conn *loop_slot(const cmq_loop *loop, uint32_t slot)
{
    net_table *table = atomic_load_explicit(&loop->tables[slot / NET_TABLE_CONNS], memory_order_acquire);
    return &table->conns[slot % NET_TABLE_CONNS];
}

/* ---- cmq_net.c ---- */

uint32_t net_connections_that_fit(uint64_t descriptors);                  /* when a process may have so many */

/* ---- cmq_listen.c ---- */

cmq_status CMQ_MUST_CHECK net_listen(const char *address, net_listener *listener_out);
cmq_status CMQ_MUST_CHECK net_listen_begin(cmq_net *net);                 /* the first loop accepts from now on */
void net_accept(cmq_loop *loop, uint32_t listener);
void net_accept_resume(cmq_loop *loop);                                   /* the pause is over */
uint32_t net_address_bucket(const cmq_record_host *peer);                 /* where an address is counted */
void net_leave_counts(cmq_loop *loop, const cmq_record_host *peer);       /* a connection is gone */
void net_listen_end(cmq_loop *loop);                                      /* the addresses are free again */

/* ---- cmq_loop.c ---- */

cmq_status CMQ_MUST_CHECK loop_init(cmq_loop *loop, cmq_net *net, uint32_t index);
void loop_free(cmq_loop *loop);
void *loop_run(void *loop);                                               /* a thread's life */
bool loop_turn(cmq_loop *loop, bool may_sleep);                           /* false: it is to stop */
/* the handler's turn_begin, when it has not begun */
void loop_begin_turn(cmq_loop *loop);
/* the handler's turn_end; releases the buffers that hold the turn's frames */
void loop_end_turn(cmq_loop *loop);
/* NET_READ_BYTES in the read buffer; may end the turn, and send */
void loop_make_room(cmq_loop *loop);
void loop_retire_block(cmq_loop *loop, net_block *block);                 /* give it back when the turn ends */
void loop_retire_node(cmq_loop *loop, net_node *node);
void loop_signal(cmq_loop *loop, uint32_t bit);                           /* any thread */
void loop_post(cmq_loop *loop, net_node *node);                           /* any thread; counts it as outstanding */

/* Blocks, accounted for against limits.buffered_bytes_max. A loop gets its share of it whatever the others have: then
 * all together have more until those over their shares have made room, in their next turns. */
/* at least so many, head included; NULL: the limit, or no memory */
net_block *loop_take_block(cmq_loop *loop, size_t bytes);
/* NULL: as before, and the old one is kept */
net_block *loop_grow_block(cmq_loop *loop, net_block *block, size_t bytes);
void loop_give_block(cmq_loop *loop, net_block *block);
bool loop_account(cmq_loop *loop, size_t bytes);
/* Closes connections while the loop has more than its share and all loops together more than the limit. */
void loop_keep_share(cmq_loop *loop);
void loop_unaccount(cmq_loop *loop, size_t bytes);

/* ---- cmq_conn.c ---- */

/* takes the descriptor, and its place in the counts */
void conn_adopt(cmq_loop *loop, int fd, const cmq_record_host *peer, uint16_t local_port);
void conn_list(cmq_conn *conn);                                           /* to be sent to or closed in this turn */
cmq_conn *loop_unlist(cmq_loop *loop);                                    /* the first that is listed; NULL none */
void conn_touch(cmq_conn *conn);                                          /* a byte went either way */
void conn_close(cmq_conn *conn, _Atomic uint64_t *reason);                /* in this turn; reason: a counter, or NULL */
/* when its output was sent; nothing more is read */
void conn_end(cmq_conn *conn, _Atomic uint64_t *reason);
void conn_finish(cmq_conn *conn);                                         /* now */
void conn_half_close(cmq_conn *conn);                                     /* the client sends no more */
/* the epoll interest; closes a connection that is done */
void conn_update(cmq_conn *conn);
/* idle, slow and half-closed connections whose time is over */
void loop_expire(cmq_loop *loop);
int64_t loop_expiry_ns(const cmq_loop *loop);
/* closes one of the address with most of the account; false: nobody has any */
bool loop_make_memory(cmq_loop *loop);

/* ---- cmq_input.c ---- */

void conn_event(cmq_conn *conn, uint32_t events);
void conn_again(cmq_conn *conn, net_node *node);                          /* NET_NODE_AGAIN; takes the node */
void conn_drop_input(cmq_conn *conn);
/* for the rest of a frame, if one has begun: its time runs … */
void conn_wait(cmq_conn *conn);
void conn_stop_wait(cmq_conn *conn);                                      /* … and no longer */

/* ---- cmq_output.c ---- */

void conn_send(cmq_conn *conn);                                           /* as much as the socket takes */
void conn_drop_output(cmq_conn *conn);
/* NET_NODE_SEND: its bytes into the output; takes the node */
void conn_put_node(cmq_conn *conn, net_node *node);
/* NET_NODE_OFFER: the same, or dropped; takes the node */
void conn_offer_node(cmq_conn *conn, net_node *node);

/* ---- cmq_control.c ---- */

/* false: over a limit, the node is not taken */
bool net_control_push(cmq_conn *conn, net_node *node);
net_node *net_control_make_closed(const cmq_conn *conn);                  /* that it is gone; NULL: no memory now */
void net_control_push_unlimited(cmq_net *net, net_node *node);
void net_control_clear(cmq_net *net);

#endif
