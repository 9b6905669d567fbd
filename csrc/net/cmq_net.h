/* cmq_net: sockets, frames in, frames out. A server's listening addresses, the loops that own its connections, and the
 * control queue to whoever answers what the loops do not.
 *
 *     accept -> connection of one loop for life -> read -> cmq_frame_next -> cmq_command_parse -> handler.request
 *                                                                        |                          | CMQ_NET_CONTROL
 *                              socket <- output of the connection <- cmq_conn_reserve/commit        v
 *                                        ^ mailbox of the loop  <----------------- cmq_net_send <- control thread
 *                                        (Python)
 *
 * A loop turn: wait; read every ready connection and give each whole frame to the handler; let the handler end the turn
 * (it appends what it collected); then one send per connection that has output. So a burst of requests costs one read
 * and one write. Costs are listed in cmq_net_internal.h.
 *
 * Owns:      the sockets, a loop's threads, one shared read buffer per loop; per connection a buffer only while a frame
 *            is partly there, or output is not sent. An idle connection costs at most 80 bytes here.
 * Invariant: a connection belongs to one loop, and only that loop's thread touches it; everybody else names it by its
 *            id, which is never used again. Every buffer has a limit, and a defined answer on reaching it
 *            (cmq_net_limits).
 * Threads:   cmq_conn_* and cmq_loop_* without another note: only on the loop's thread, inside a call of the handler.
 *            cmq_net_* and cmq_loop_wake: any.
 * Source:    remoting specification 1.1, 1.9, 1.10; native specification 4-6.
 */
#ifndef CMQ_NET_H
#define CMQ_NET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cmq_bytes.h"
#include "base/cmq_status.h"
#include "store/record/cmq_record.h"
#include "wire/cmq_command.h"
#include "wire/cmq_frame.h"

typedef struct cmq_net cmq_net;
typedef struct cmq_loop cmq_loop;
typedef struct cmq_conn cmq_conn;

typedef uint64_t cmq_conn_id;   /* 0: none. Loop, slot and the slot's generation */

/* ---- callbacks of the loops ---- */

typedef enum cmq_net_verdict {
    CMQ_NET_DONE = 0,   /* answered, held, or needs no answer */
    CMQ_NET_CONTROL,    /* give it to the control queue */
    CMQ_NET_CLOSE       /* close the connection */
} cmq_net_verdict;

/* A server's callbacks for requests. `state` is one loop's, made by loop_begin; all but `request` may be NULL, and
 * `request` NULL gives every request to the control queue. Responses of clients (to requests of ours) always go to the
 * control queue. */
typedef struct cmq_net_handler {
    void *context;
    /* before the threads start */
    cmq_status (*loop_begin)(void *context, cmq_loop *loop, uint32_t index, void **state_out);
    void (*loop_end)(void *context, void *state);                                                /* after they ended */
    void (*turn_begin)(void *state);   /* before the first frame of a turn that has frames */
    /* The command lives for the call; the bytes that its slices and the body name live until turn_end returns, so that
     * a handler can append what several requests bring at once. `again`: the control thread has looked at it and says
     * that it can be served now. */
    cmq_net_verdict (*request)(void *state, cmq_conn *conn, const cmq_command *command, cmq_slice body, bool again);
    void (*turn_end)(void *state);     /* after the last frame, before anything is sent */
    void (*woken)(void *state);        /* cmq_loop_wake was called since the last time */
    int64_t (*due_ns)(void *state);    /* when `tick` wants to be called, on cmq_net's monotonic clock; INT64_MAX:
                                        * never */
    void (*tick)(void *state, int64_t now_ns);
    void (*closed)(void *state, cmq_conn *conn);   /* the connection is gone when this returns */
    /* The client sends no more: it left, or it closed its half and waits for the answers; which of the two cannot be
     * seen. Forget what is only held for it, and return how many requests that were: no answer to them is waited for.
     * The others get theirs before `closed` is called, if they come soon. */
    uint32_t (*half_closed)(void *state, cmq_conn *conn);
} cmq_net_handler;

/* ---- life ---- */

/* 0 means the default in brackets. */
typedef struct cmq_net_limits {
    uint32_t connections_max;        /* of the server [20,000], and at most what descriptors allow: a quarter of them,
                                      * 128 to 4,096, is left to others; a further one is closed at once */
    uint32_t address_conns_max;      /* of one address, of IPv6 one /64 [half of connections_max, or all where that is
                                      * below 64]; the same */
    uint32_t frame_bytes_max;        /* [CMQ_FRAME_BYTES_MAX]; larger: closed */
    uint64_t unsent_bytes_max;       /* of one connection [64 MiB]: a reader that slow is disconnected */
    uint64_t unsent_bytes_pause;     /* of one connection [4 MiB]: no more of its requests are read until it took
                                      * some */
    uint64_t buffered_bytes_max;     /* of all connections, partial frames and output [1 GiB]: of the address that has
                                      * most of it, the connection that has its share and took nothing for the longest
                                      * time is closed, or the one that has most */
    uint32_t control_count_max;      /* requests at the control thread, from entering its queue to cmq_control_item_done
                                      * [10,000] … */
    uint64_t control_bytes_max;      /* … and their bytes [256 MiB]: further ones are answered with code 2, further
                                      * responses are dropped. The last quarter of either is for short requests of
                                      * connections with fewer than 16 there */
    uint32_t control_conn_max;       /* requests of one connection at the control thread [1,000], at most 65,535: the
                                      * same answers */
    int64_t idle_ms;                 /* no byte either way for so long [120,000]: closed; upstream's
                                      * serverChannelMaxIdleTimeSeconds */
    int64_t frame_ms;                /* a frame that began arrives whole within [30,000], or the connection is closed */
} cmq_net_limits;

typedef struct cmq_net_options {
    const char *const
        *addresses; /* "127.0.0.1:10911", "[::1]:0": numeric; port 0 takes a free one. Borrowed for the call */
    uint32_t address_count;          /* at most 8 */
    uint32_t loops;                  /* threads; 0: 1; at most 16 */
    cmq_net_handler handler;
    cmq_net_limits limits;
    int64_t (*now_ns)(void *clock_context);   /* monotonic; NULL: the system's */
    void *clock_context;
    bool manual;                     /* no threads: the test calls cmq_net_turn */
} cmq_net_options;

/* Bind and listen; CMQ_ERR_IO names the address that is taken. Nothing is accepted before cmq_net_start. */
cmq_status CMQ_MUST_CHECK cmq_net_create(cmq_net **net_out, const cmq_net_options *options);
cmq_status CMQ_MUST_CHECK cmq_net_start(cmq_net *net);

/* Take no more connections (the addresses are free for others), and turn further requests away: code 1500 to clients
 * that know it, 14 to older ones (remoting 1.10). Held and queued requests go on; one-way requests and responses of
 * clients are still accepted. */
void cmq_net_drain(cmq_net *net);

/* True when nothing waits: no request at the control queue, none that a handler keeps, no output that is not sent
 * yet. */
bool cmq_net_is_idle(const cmq_net *net);

/* End the threads, close every connection (the handler is called for each), free. No other call may be running. */
void cmq_net_destroy(cmq_net *net);

/* After fork, in the child, where no thread of ours lives: close the descriptors. The memory stays as it is, an image
 * that goes with the child: a loop may have been changing it. */
void cmq_net_abandon(cmq_net *net);

/* One turn of every loop of a manual server: ready sockets and due timers. */
void cmq_net_turn(cmq_net *net);

/* The port that address `index` is bound to. */
uint16_t cmq_net_port(const cmq_net *net, uint32_t index);

/* ---- on a loop's thread ---- */

cmq_conn_id cmq_conn_id_of(const cmq_conn *conn);
/* The client's address, as records keep it. */
const cmq_record_host *cmq_conn_peer(const cmq_conn *conn);

/* A number of the client's address, never 0; of IPv6 of its /64, as who has one address there has them all. Another one
 * in each process. */
uint64_t cmq_net_network_of(const cmq_record_host *host);

/* The connection of that id, NULL when it has gone or is another loop's. */
cmq_conn *cmq_loop_conn(cmq_loop *loop, cmq_conn_id id);

/* A small number that no other connection of this loop has, below connections_max: for tables of the handler's. Taken
 * again after `closed`. */
uint32_t cmq_conn_slot(const cmq_conn *conn);

/* Room for `bytes` at the end of the connection's output, valid until the next call that names the connection; then
 * commit what was used of it: a frame a call, or a frame's beginning whose rest is lent. NULL when a limit was reached
 * or memory is short: the connection will be closed at the end of the turn, and needs no answer. */
uint8_t *cmq_conn_reserve(cmq_conn *conn, size_t bytes);
void cmq_conn_commit(cmq_conn *conn, size_t bytes);

/* Go on with bytes that are not copied: they stay as they are until `release` is called, once, on the loop's thread:
 * when they were sent, or will never be (then perhaps at once, as after a reserve that gave NULL). Worth it from some
 * 10 KiB on. */
void cmq_conn_lend(cmq_conn *conn, cmq_slice bytes, void (*release)(void *context), void *context);

/* The usual short answer: no fields, no body. Nothing for one-way requests. */
void cmq_conn_answer(cmq_conn *conn, const cmq_command *request, int32_t code, cmq_slice remark);

/* A request that the handler keeps to answer later (held, or waiting for the disk), and its end: for
 * cmq_net_is_idle. */
void cmq_conn_keep(cmq_conn *conn);
void cmq_conn_kept_done(cmq_loop *loop);

int64_t cmq_loop_now_ns(const cmq_loop *loop);   /* read once per turn */

/* Any thread: the handler's `woken` will be called on the loop's thread. Many calls are one. */
void cmq_loop_wake(cmq_loop *loop);

/* ---- the control queue: one consumer thread ---- */

typedef enum cmq_control_kind {
    CMQ_CONTROL_REQUEST = 1,   /* a request that no loop serves */
    CMQ_CONTROL_RESPONSE,      /* a client's answer to a request of ours */
    CMQ_CONTROL_CLOSED         /* a connection of which the control thread has had an item is gone */
} cmq_control_kind;

typedef struct cmq_control_item {
    cmq_control_kind kind;
    cmq_conn_id conn;
    cmq_record_host peer;
    uint16_t local_port;
    int64_t arrived_ns;
    uint8_t *frame;            /* the whole frame, the item's own; NULL for CLOSED */
    size_t frame_bytes;
} cmq_control_item;

/* Readable while items wait: for select, epoll, asyncio's add_reader. */
int cmq_net_control_fd(const cmq_net *net);
/* Take up to `capacity` items, oldest first; they are the caller's. 0: none, and the descriptor is no longer
 * readable. */
uint32_t cmq_net_control_take(cmq_net *net, cmq_control_item *items, uint32_t capacity);
/* Free the item's frame, and count its request as answered; once more is fine. `net` NULL: the server is gone
 * already. */
void cmq_control_item_done(cmq_net *net, cmq_control_item *item);
/* Give a request back to its loop, whose handler gets it with `again`; the item is empty then. */
void cmq_net_again(cmq_net *net, cmq_control_item *item);

/* Any thread: put a whole frame (or several) into a connection's output; the bytes are copied. CMQ_ERR_NOT_FOUND when
 * the connection is known to be gone; one that closes a moment later takes it silently, as a network would. */
cmq_status CMQ_MUST_CHECK cmq_net_send(cmq_net *net, cmq_conn_id conn, const uint8_t *frame, size_t frame_bytes);
/* The same for one that may be lost: it is dropped where the connection has not taken what is there and would have more
 * than unsent_bytes_pause. So offers fill no connection, and disconnect none. */
cmq_status CMQ_MUST_CHECK cmq_net_offer(cmq_net *net, cmq_conn_id conn, const uint8_t *frame, size_t frame_bytes);
/* Any thread: close a connection, when what is in its output was sent. */
void cmq_net_close_conn(cmq_net *net, cmq_conn_id conn);

/* ---- counters ---- */

typedef struct cmq_net_counters {
    uint64_t accepted, closed, refused;      /* connections; refused: over connections_max, or without a descriptor */
    uint64_t frames_in, frames_out, bytes_in, bytes_out;
    uint64_t control_items, control_refused; /* refused: the queue was full */
    uint64_t offers_dropped;
    uint64_t closed_corrupt, closed_slow_reader, closed_slow_frame, closed_idle, closed_memory;
    uint64_t closed_tls;                     /* clients that began with a TLS hello */
    uint64_t reads, writes, turns;           /* system calls, and turns that had work */
    uint64_t open, buffered_bytes;           /* now */
} cmq_net_counters;
void cmq_net_count(const cmq_net *net, cmq_net_counters *counters_out);

#endif
