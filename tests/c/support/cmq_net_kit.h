/* cmq_net_kit: what the tests of csrc/net share: a server with a handler that does what a request's code says, clients over loopback, and time that
 * stands still until a test moves it.
 *
 * Functions end the test when they fail. Nothing sleeps: a test makes turns until what it waits for is there, up to a minute.
 */
#ifndef CMQ_NET_KIT_H
#define CMQ_NET_KIT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "net/cmq_net.h"
#include "support/cmq_test.h"

#define KIT_MS INT64_C(1000000)
#define KIT_PATIENCE_S 60
#define KIT_KEPT_MAX 4096
#define KIT_FRAME_BYTES_MAX (32u << 20)

/* What the handler does with a request. */
enum {
    KIT_ECHO = 1,     /* answers, when the turn ends, code 0 with the request's body */
    KIT_SILENT,       /* DONE without an answer */
    KIT_KEEP,         /* keeps it; kit_answer_kept answers all */
    KIT_HOLD,         /* the same, but a half-closed client loses it */
    KIT_CLOSE,        /* CMQ_NET_CLOSE */
    KIT_BIG,          /* answers with as many bytes as the body says in decimal */
    KIT_LEND,         /* the same, lent */
    KIT_CONTROL = 100 /* and from here on: to the control queue; `again` is answered with code 7 */
};

typedef struct kit_kept {
    cmq_conn_id conn;
    int32_t opaque;
    bool hold;
} kit_kept;

typedef struct kit_turned {
    cmq_conn *conn;
    cmq_header_format format;
    int32_t opaque;
    int32_t flag;
    cmq_slice body;
} kit_turned;

/* What one loop's handler has seen. */
typedef struct kit_state {
    cmq_loop *loop;
    uint32_t index;
    uint32_t requests, turns, closed, half_closed, woken, ticks, lent, released;
    int64_t due_ns;
    kit_kept kept[KIT_KEPT_MAX];
    uint32_t kept_count;
    kit_turned turned[4096];
    uint32_t turned_count;
    bool answer_kept;   /* at the next wake */
    cmq_conn_id last_conn;
} kit_state;

typedef struct kit_server {
    cmq_net *net;
    cmq_net_options options;
    _Atomic int64_t now_ns;
    kit_state *states[16];
    uint32_t state_count;
    uint16_t port;
} kit_server;

/* A manual server of one loop on 127.0.0.1 with a handler of the kit; change `options` and then make it. */
void kit_prepare(kit_server *server);
void kit_start(kit_server *server);
void kit_stop(kit_server *server);
cmq_net_counters kit_counters(const kit_server *server);

int kit_connect(const kit_server *server);
void kit_write(int fd, const void *bytes, size_t count);     /* all of it, making turns of `kit_turning` where the socket is full */
/* A request frame in JSON; returns its bytes. `into` has room for 256 bytes and the body. */
size_t kit_frame(uint8_t *into, int32_t code, int32_t opaque, int32_t flag, cmq_slice body);
void kit_request(int fd, int32_t code, int32_t opaque, cmq_slice body);

/* The server whose turns are made while a client waits for bytes; NULL with threads. */
extern kit_server *kit_turning;
/* Turns until the expression is true. */
#define KIT_UNTIL(server, condition)                                                                                  \
    do {                                                                                                              \
        const int64_t patience_ = kit_seconds() + KIT_PATIENCE_S;                                                     \
        while (!(condition)) {                                                                                        \
            if (kit_seconds() > patience_) cmq_test_fail(__FILE__, __LINE__, "never came: %s", #condition);           \
            if ((server)->options.manual) cmq_net_turn((server)->net);                                                \
            else kit_yield();                                                                                         \
        }                                                                                                             \
    } while (0)
int64_t kit_seconds(void);
void kit_yield(void);

/* The next frame that the client gets, in `into`; false when the connection ended before a byte of it. */
bool kit_read(int fd, uint8_t *into, cmq_frame *frame_out, cmq_command *command_out);
/* It is an answer of this code and opaque; returns its body (in static memory). */
cmq_slice kit_expect(int fd, int32_t code, int32_t opaque);
void kit_expect_end(int fd);
bool kit_is_silent(int fd);                                   /* nothing to read now */

/* On the loop's thread, by the handler: answers everything that is kept. */
void kit_answer_kept(kit_state *state);

#endif
