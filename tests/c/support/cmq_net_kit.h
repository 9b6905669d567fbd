/* cmq_net_kit: shared parts of the tests of csrc/net: a server whose handler acts by a request's code, clients over
 * loopback, and time that is frozen until a test moves it.
 *
 * Functions end the test when they fail. Nothing sleeps: a test makes turns until what it waits for is there, up to a
 * minute.
 */
#ifndef CMQ_NET_KIT_H
#define CMQ_NET_KIT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "net/cmq_net.h"
#include "support/cmq_test.h"

#define NETKIT_MS INT64_C(1000000)
#define NETKIT_PATIENCE_S 60
#define NETKIT_KEPT_MAX 4096
#define NETKIT_FRAME_BYTES_MAX (32u << 20)

/* The handler's actions, as request codes. */
enum {
    ASK_ECHO = 1,     /* answers, when the turn ends, code 0 with the request's body */
    ASK_SILENT,       /* DONE without an answer */
    ASK_KEEP,         /* keeps it; netkit_answer_kept answers all */
    ASK_HOLD,         /* the same, but a half-closed client loses it */
    ASK_CLOSE,        /* CMQ_NET_CLOSE */
    ASK_BIG,          /* answers with as many bytes as the body says in decimal */
    ASK_LEND,         /* the same, lent */
    ASK_CONTROL = 100 /* and from here on: to the control queue; `again` is answered with code 7 */
};

typedef struct netkit_kept {
    cmq_conn_id conn;
    int32_t opaque;
    bool hold;
} netkit_kept;

typedef struct netkit_turned {
    cmq_conn *conn;
    cmq_header_format format;
    int32_t opaque;
    int32_t flag;
    cmq_slice body;
} netkit_turned;

/* The events that one loop's handler has seen. */
typedef struct netkit_state {
    cmq_loop *loop;
    uint32_t index;
    uint32_t requests, turns, closed, half_closed, woken, ticks, lent, released;
    int64_t due_ns;
    netkit_kept kept[NETKIT_KEPT_MAX];
    uint32_t kept_count;
    netkit_turned turned[4096];
    uint32_t turned_count;
    bool answer_kept;   /* at the next wake */
    cmq_conn_id last_conn;
    void (*at_turn_end)(struct netkit_state *state);   /* before the turn's echoes are answered; NULL: nothing */
} netkit_state;

typedef struct netkit_server {
    cmq_net *net;
    cmq_net_options options;
    _Atomic int64_t now_ns;
    netkit_state *states[16];
    uint32_t state_count;
    uint16_t port;
} netkit_server;

/* A manual server of one loop on 127.0.0.1 with a handler of the kit; change `options` and then make it. */
void netkit_prepare(netkit_server *server);
void netkit_start(netkit_server *server);
void netkit_stop(netkit_server *server);
cmq_net_counters netkit_counters(const netkit_server *server);

int netkit_connect(const netkit_server *server);
/* From an address of this machine: 0 is 127.0.0.1, each other one is counted apart from those before it. */
int netkit_connect_from(const netkit_server *server, uint32_t number);
void netkit_write(int fd, const void *bytes, size_t count);     /* all of it, making turns of `netkit_turning` where the
                                                                 * socket is full */
/* A request frame in JSON; returns its bytes. `into` has room for 256 bytes and the body. */
size_t netkit_frame(uint8_t *into, int32_t code, int32_t opaque, int32_t flag, cmq_slice body);
void netkit_request(int fd, int32_t code, int32_t opaque, cmq_slice body);

/* The server whose turns are made while a client waits for bytes; NULL with threads. */
extern netkit_server *netkit_turning;
/* Turns until the expression is true. */
#define NETKIT_UNTIL(server, condition)                                                                                \
    do {                                                                                                               \
        const int64_t patience_ = netkit_seconds() + NETKIT_PATIENCE_S;                                                \
        while (!(condition)) {                                                                                         \
            if (netkit_seconds() > patience_) cmq_test_fail(__FILE__, __LINE__, "never came: %s", #condition);         \
            if ((server)->options.manual)                                                                              \
                cmq_net_turn((server)->net);                                                                           \
            else                                                                                                       \
                netkit_yield();                                                                                        \
        }                                                                                                              \
    } while (0)
int64_t netkit_seconds(void);
void netkit_yield(void);

/* The next frame that the client gets, in `into`; false when the connection ended before a byte of it. */
bool netkit_read(int fd, uint8_t *into, cmq_frame *frame_out, cmq_command *command_out);
/* It is an answer of this code and opaque; returns its body (in static memory). */
cmq_slice netkit_expect(int fd, int32_t code, int32_t opaque);
void netkit_expect_end(int fd);
void netkit_expect_served(int fd, int32_t opaque);
void netkit_claim(int fd, uint32_t frame_bytes, size_t bytes);   /* the first bytes of a frame that says it has so many
                                                                  * in all */
bool netkit_is_silent(int fd);                                   /* nothing to read now */

/* On the loop's thread, by the handler: answers everything that is kept. */
void netkit_answer_kept(netkit_state *state);

#endif
