/* cmq_broker_kit: a broker on a free port of the loopback, without threads of its loops: a test sends, turns, and reads
 * what came.
 *
 * Time is frozen until kit_broker_pass moves it. A failed check ends the program, so nothing here returns a status.
 */
#ifndef CMQ_BROKER_KIT_H
#define CMQ_BROKER_KIT_H

#include <stdbool.h>
#include <stdint.h>

#include "broker/cmq_broker.h"
#include "net/cmq_net.h"
#include "store/cmq_store.h"
#include "support/cmq_frame_kit.h"

#define KIT_BROKER_MS INT64_C(1700000000000)   /* where the wall clock begins */

typedef struct kit_broker {
    cmq_store *store;
    cmq_tables *tables;
    cmq_offsets *offsets;
    cmq_broker *broker;
    cmq_net *net;
    int64_t now_ns;
    uint32_t loops;                   /* 0: one */
    bool threads;                     /* loops have their own: a turn only lets them run */
    cmq_pop_fifo_table *order;             /* these three: with pops only */
    cmq_timer *timer;
    cmq_pop_service *pops;
    cmq_txn *txn;                     /* with transactions only */
    _Atomic int64_t now_ms;           /* the wall clock of pops, timers and transactions, which goes with now_ns */
} kit_broker;

/* Open a store at `root` with this flush mode, and serve it. Topics T (4 queues), B (batch), group G; G has subscribed
 * T with every tag. */
void kit_broker_start(kit_broker *kit, const char *root, cmq_flush_mode flush, const cmq_broker_options *extra);
/* The same over a store that is open, with or without threads of the loops (then time is the system's). */
void kit_broker_serve(kit_broker *kit, cmq_store *store, const cmq_broker_options *extra, bool threads);
/* The same as kit_broker_start, with pops; NULL: their defaults. Topics of timers and of the revive log are there,
 * too. */
void kit_broker_start_pops(kit_broker *kit, const char *root, cmq_flush_mode flush,
                           const cmq_pop_service_options *extra);
/* The same on so many loops, which turn one after another; connections are dealt out among them. */
void kit_broker_start_pops_on(kit_broker *kit, const char *root, cmq_flush_mode flush,
                              const cmq_pop_service_options *extra, uint32_t loops);
/* The same with loops that run in threads; flush mode is async. Pops' time is frozen all the same. */
void kit_broker_start_pops_threads(kit_broker *kit, const char *root, const cmq_pop_service_options *extra,
                                   uint32_t loops);
/* The same over a store that is open, at this time of its clock; the offsets are empty. */
void kit_broker_serve_pops(kit_broker *kit, cmq_store *store, int64_t now_ms, const cmq_pop_service_options *extra);
/* Let `ms` pass, and timers and pops do what is due, retry topics be made, until nothing is. */
void kit_broker_pass_pops(kit_broker *kit, int64_t ms);
/* The same as kit_broker_start, with transactions; NULL: their defaults. */
void kit_broker_start_txn(kit_broker *kit, const char *root, cmq_flush_mode flush, const cmq_txn_rules *rules);
/* The same over a store that is open, at this time of its clock; the progress of half and op topic as it was stored,
 * -1: none. */
void kit_broker_serve_txn(kit_broker *kit, cmq_store *store, int64_t now_ms, const cmq_txn_rules *rules,
                          int64_t half_progress, int64_t op_progress);
/* The same as kit_broker_start_txn with loops that run in threads. */
void kit_broker_start_txn_threads(kit_broker *kit, const char *root, cmq_flush_mode flush, const cmq_txn_rules *rules,
                                  uint32_t loops);
void kit_broker_stop(kit_broker *kit);

void kit_broker_topic(kit_broker *kit, const char *name, int32_t queues, int32_t perm);
void kit_broker_subscribe(kit_broker *kit, const char *group, const char *topic, const char *expression,
                          int64_t version);

/* The same by an SQL92 expression, whose filter data have this version; NULL: there are none. */
void kit_broker_select(kit_broker *kit, const char *group, const char *topic, const char *expression, int64_t version);
/* The same with a filter that is older than the subscription. */
void kit_broker_select_older(kit_broker *kit, const char *group, const char *topic, const char *expression,
                             int64_t version, int64_t filter_version);

/* A client's connection. */
int kit_client(kit_broker *kit);
int kit_connect(uint16_t port);

/* One field of a request: kit_send takes them up to one whose name is NULL. */
typedef struct kit_field {
    const char *name, *value;
} kit_field;

/* Write a request to the connection; nothing is turned yet. */
void kit_request(int client, int32_t code, int32_t opaque, int32_t flag, cmq_header_format format,
                 const kit_field *fields, const void *body, size_t bytes);

/* The same in JSON, without a failure of the test: false when the peer has gone. */
bool kit_try_request(int client, int32_t code, int32_t opaque, const kit_field *fields, const void *body, size_t bytes);

/* One turn of the broker; then time is frozen again. */
void kit_broker_turn(kit_broker *kit);
void kit_broker_pass(kit_broker *kit, int64_t ms);

/* An answer; its slices live until the thread reads the next one from any connection. */
typedef struct kit_answer {
    cmq_command command;
    cmq_slice body;
} kit_answer;

/* Turn until an answer is there; fails the test after a minute without one. */
const kit_answer *kit_answer_of(kit_broker *kit, int client);
/* A thread that read answers ends. */
void kit_forget_answer(void);
/* Is there none, after a few turns? */
bool kit_is_silent(kit_broker *kit, int client);
/* Has the broker closed the connection? */
bool kit_is_closed(kit_broker *kit, int client);

/* A field of an answer as number, or as text ("" when it is absent). */
int64_t kit_number(const kit_answer *answer, const char *name);
const char *kit_text(const kit_answer *answer, const char *name);

/* Send of one message (code 310) to T, tag and body as given; queue 0. */
void kit_send_message(int client, int32_t opaque, const char *topic, const char *tag, const char *body);
/* Pull from queue 0 of a topic by G; sys_flag 2 is held when there is nothing. */
void kit_pull(int client, int32_t opaque, const char *topic, int64_t offset, int32_t sys_flag, int64_t suspend_ms,
              const char *expression);

#endif
