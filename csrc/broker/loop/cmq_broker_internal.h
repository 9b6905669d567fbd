/* cmq_broker_internal: private to the broker's files: the broker, one loop's state, and answering. */
#ifndef CMQ_BROKER_INTERNAL_H
#define CMQ_BROKER_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "broker/cmq_broker.h"
#include "broker/loop/cmq_hold.h"
#include "broker/loop/cmq_pending_replies.h"
#include "broker/loop/cmq_pop_waits.h"
#include "broker/tables/cmq_traffic.h"
#include "store/follow/cmq_watch.h"
#include "wire/cmq_codes.h"

/* The refusal of SQL92 where enablePropertyFilter is off. */
#define CMQ_NO_PROPERTY_FILTER                                          \
    "The broker does not support consumer to filter message by SQL92; " \
    "its setting enablePropertyFilter is false"

#define CMQ_BROKER_LOOPS_MAX 16u
#define CMQ_RUN_SENDS_MAX 256u            /* sends that go to the store in one call */
#define CMQ_RUN_BYTES_MAX (4u << 20)      /* … and their bodies' bytes */
#define CMQ_RUN_SCRATCH_BYTES (128u << 10)
#define CMQ_SENDS_WAITING_MAX 10000u      /* sends of one loop that wait for the disk */
#define CMQ_SENT_BYTES_MAX (64u << 20)    /* answers of one loop that wait for the disk */
#define CMQ_SEND_OVERLOAD "[OVERLOAD]system busy, start flow control for a while"
#define CMQ_SUFFIX_BYTES_MAX 512u
#define CMQ_PULL_UNITS_MAX 1024u          /* messages of one pull at most, whatever the settings say */

/* The fields of a send's answer besides the ids. */
typedef struct cmq_send_reply {
    cmq_conn_id conn;
    cmq_slice unique;                     /* UNIQ_KEY */
    cmq_slice recall;                     /* a timer's handle */
    cmq_slice half_topic;                 /* of a half message: the topic that it was sent to */
    int32_t opaque;
    int32_t queue_id;                     /* as asked for: of a parked message its own queue's */
    cmq_header_format format;
    bool oneway;
    bool wait;                            /* for the disk, under sync flush */
} cmq_send_reply;

/* Sends of one turn that are alike: one append. Slices point into the requests, or into scratch. */
typedef struct cmq_send_run {
    uint32_t count;
    uint64_t bytes;
    cmq_append append;                    /* topic, flags and hosts of all of them */
    cmq_slice bodies[CMQ_RUN_SENDS_MAX];
    cmq_slice properties[CMQ_RUN_SENDS_MAX];
    int32_t queue_ids[CMQ_RUN_SENDS_MAX];
    int64_t born_ms[CMQ_RUN_SENDS_MAX];
    int64_t queue_offsets[CMQ_RUN_SENDS_MAX];
    int64_t physical_offsets[CMQ_RUN_SENDS_MAX];
    cmq_send_reply replies[CMQ_RUN_SENDS_MAX];
    size_t scratch_used;
    uint8_t scratch[CMQ_RUN_SCRATCH_BYTES];
} cmq_send_run;

/* A client's batch, taken apart. */
typedef struct cmq_send_batch {
    uint32_t capacity;
    cmq_slice *bodies, *properties;
    int32_t *flags;
    int64_t *physical_offsets;
} cmq_send_batch;

/* Written by the loop, read by anybody. */
typedef struct cmq_loop_counters {
    _Atomic uint64_t sends, send_failures, messages_in, message_bytes_in;
    _Atomic uint64_t pulls, pulls_found, messages_out, message_bytes_out;
    _Atomic uint64_t pops, pops_found, pop_acks, pop_acks_refused, pop_changes, pops_held, pop_wakes, pop_timeouts,
        pops_refused, pops_held_now;
    _Atomic uint64_t commits, rollbacks, ends_refused, ends_unwritten, commits_undelivered;
    _Atomic uint64_t held, hold_wakes, hold_timeouts, hold_refused, holds_now, waiting_for_disk, control;
} cmq_loop_counters;

static inline void cmq_bump(_Atomic uint64_t *counter, uint64_t by)
{
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + by, memory_order_relaxed);
}

#define CMQ_STEPS_PER_TURN 500000u        /* of expressions, some 4 ms */
#define CMQ_STEPS_PER_REQUEST 65536u      /* … in one request, whatever queues it looks at: some 0.5 ms */
#define CMQ_SELECTED_FILTERS 64u          /* compiled expressions of requests that a loop keeps */

/* A pop of this topic and group that waits may go on. */
typedef struct cmq_pop_note {
    char *names;                          /* the topic, then the group */
    uint32_t topic_bytes, group_bytes;
    int32_t queue_id;                     /* as the pop asked; CMQ_POP_NOTE_ANY: any */
} cmq_pop_note;
#define CMQ_POP_NOTE_ANY INT32_MIN

/* Notes that a loop has taken; those before `at` are done. */
typedef struct cmq_pop_noted {
    cmq_pop_note *notes;
    uint32_t at, count;
} cmq_pop_noted;

typedef struct cmq_pop_poll_count cmq_pop_poll_count;
typedef struct cmq_pop_ack_run cmq_pop_ack_run;
typedef struct cmq_txn_end_run cmq_txn_end_run;

/* Lists of acks, of which each turn takes a part: the first is next. */
typedef struct cmq_pop_ack_lists {
    struct cmq_pop_ack_list *first, *last;
    uint32_t count;
    size_t bytes;
} cmq_pop_ack_lists;

typedef struct cmq_broker_loop {
    cmq_broker *broker;
    cmq_loop *loop;
    cmq_tables_reader *reader;
    bool inside;                          /* the tables: between the first need of a turn and its end */
    uint32_t next_queue;                  /* for sends that leave the queue to us */
    cmq_watcher *watcher;
    cmq_holds *holds;
    uint32_t steps_left;                  /* of expressions: of what this turn spends on held requests for one cause */
    uint32_t new_steps;                   /* … and of what new requests of this turn have left */
    uint32_t new_pops_cost;               /* of the looks that new pops of this turn took */
    cmq_filter *selected[CMQ_SELECTED_FILTERS];   /* by a hash of their text; NULL: none */
    cmq_pending_replies sent;
    cmq_queue **arrived;                  /* queues that got something, not all of whose holds were looked at yet */
    uint32_t arrived_count, arrived_slots;
    uint8_t *arrived_of;                  /* by a queue's index: how often it is among them */
    uint32_t arrived_of_slots;
    char **changed;                       /* groups whose holds must be answered; under the broker's changed_mutex */
    uint32_t changed_count, changed_slots;
    char **changing;                      /* taken from there … */
    uint32_t changing_count;              /* … and as many left: the last ones were served */
    bool changing_begun;                  /* the next one's holds were listed, the oldest last … */
    cmq_hold *changing_holds;
    uint32_t changing_hold_count;         /* … and as many are left */
    cmq_pop_waits *pop_waits, *notices;   /* held pops; held notifications */
    cmq_pop_note *pop_notes;              /* under the broker's changed_mutex */
    uint32_t pop_note_count, pop_note_slots;
    cmq_pop_noted pop_noted;              /* taken from there */
    cmq_pop_poll_count *pop_tallies;           /* to be counted or answered here; under the broker's changed_mutex */
    cmq_pop_ack_run *ack_run;             /* acks of this turn that are not done yet */
    cmq_pop_ack_lists ack_lists;
    cmq_txn_end_run *ends;                /* ends of transactions of this turn that are not done yet */
    uint64_t draw;                        /* the state of a pop's chances */
    cmq_loop_counters counters;
    cmq_traffic *traffic;
    cmq_send_run run;
    cmq_send_batch batch;                 /* as large as the largest yet */
    cmq_unit units[CMQ_PULL_UNITS_MAX];
} cmq_broker_loop;

struct cmq_broker {
    cmq_broker_options options;
    cmq_store *store;
    const cmq_queues *queues;
    bool sync;
    char *cluster, *name, *region, *broker_ip;
    cmq_record_host store_host;
    uint32_t suffix_bytes;                /* properties that every message gets: MSG_REGION, TRACE_ON, CLUSTER */
    uint8_t suffix[CMQ_SUFFIX_BYTES_MAX];
    cmq_broker_loop *loops[CMQ_BROKER_LOOPS_MAX];
    uint32_t loop_count;

    /* cmq_flush_wait.c: the thread that waits for the disk. */
    pthread_mutex_t flush_mutex;
    pthread_cond_t flush_wanted;
    pthread_t flush_thread;
    int64_t flush_end;                    /* wait for this; under flush_mutex */
    bool flush_running, flush_stop;

    pthread_mutex_t changed_mutex;        /* loops' lists of changed groups, of pops' notes and of tallies, and the list
                                           * of loops */
    _Atomic uint32_t pops_waiting;        /* held, of all loops */
};

/* ---- cmq_send.c ---- */
cmq_net_verdict cmq_send_request(cmq_broker_loop *l, cmq_conn *conn, const cmq_command *command, cmq_slice body,
                                 bool again);
void cmq_send_flush_run(cmq_broker_loop *l);
/* Append one message of the broker's own, parked where it is delayed or a timer. */
cmq_status CMQ_MUST_CHECK cmq_send_store_own(cmq_broker *broker, cmq_append *one, cmq_appended *appended_out);
/* Count messages that came in, and have the disk waited for. */
void cmq_send_note_appended(cmq_broker_loop *l, cmq_slice topic, const cmq_appended *appended);

/* ---- cmq_send_reply_write.c ---- */
/* Answer with success (or 10), now or, under sync flush, when the disk has it. */
void cmq_send_succeed(cmq_broker_loop *l, const cmq_send_reply *reply, int64_t queue_offset,
                      const int64_t *physical_offsets, uint32_t count, int64_t end, bool inner_batch);
/* Answer what the store said: reads the thread's last error. */
void cmq_send_fail(cmq_broker_loop *l, const cmq_send_reply *reply, cmq_status status);
/* An answer of the send family: with MSG_REGION and TRACE_ON. */
void cmq_send_reply_write(cmq_broker_loop *l, const cmq_send_reply *reply, int32_t code, const char *remark);
/* Send what the disk has, and what waited too long. */
void cmq_send_settle(cmq_broker_loop *l, int64_t now_ns);
int64_t cmq_send_due_ns(const cmq_broker_loop *l);

/* ---- cmq_flush_wait.c ---- */
cmq_status CMQ_MUST_CHECK cmq_flush_wait_start(cmq_broker *broker);
void cmq_flush_wait_stop(cmq_broker *broker);
void cmq_flush_wait_for(cmq_broker *broker, int64_t end);

/* ---- cmq_pull.c ---- */
cmq_net_verdict cmq_pull_request(cmq_broker_loop *l, cmq_conn *conn, const cmq_command *command, bool again);
/* Run a held pull again, and answer it whatever comes. The hold is gone then. */
void cmq_pull_end_hold(cmq_broker_loop *l, cmq_hold hold);

/* ---- cmq_transfer.c: records on their way from the log into answers ---- */
/* Units of which an answer takes the first so many. */
typedef struct cmq_transfer {
    uint32_t count, messages;
    uint64_t bytes;
} cmq_transfer;

/* A stretch of the log that is pinned. All zero: none. */
typedef struct cmq_transfer_place {
    cmq_segment *segment;
    const uint8_t *data;                  /* of [start, end) */
    int64_t start, end;
} cmq_transfer_place;

/* How many of the units found fit into an answer: the first always. At least one was found. */
cmq_transfer cmq_transfer_fit(const cmq_broker_loop *l, const cmq_unit *units, uint32_t found, uint32_t messages_max,
                              int64_t bytes_max, int64_t confirmed);
/* Leave the units whose records could be ones, up to the first that could not; *next is lowered to that.
 * CMQ_ERR_CORRUPT where the first is such a one. */
cmq_status CMQ_MUST_CHECK cmq_transfer_check(const cmq_unit *units, uint32_t *count, int64_t *next);
/* Copy the records of the queue's units. Returns how many were copied: all, or those before one that cmq_transfer_reach
 * fails for. */
uint32_t CMQ_MUST_CHECK cmq_transfer_copy(cmq_broker_loop *l, cmq_queue *queue, const cmq_unit *units, uint32_t count,
                                          uint8_t *into);
/* Where the unit's record lies, all of it readable: in the place, or in another one that is pinned in its stead.
 * CMQ_ERR_OFFSET when it was deleted meanwhile, CMQ_ERR_CORRUPT when the record there is not the unit's or cannot be
 * read. */
cmq_status CMQ_MUST_CHECK cmq_transfer_reach(cmq_broker_loop *l, cmq_transfer_place *place, cmq_queue *queue,
                                             const cmq_unit *unit, const uint8_t **record_out);
static inline bool cmq_transfer_has(const cmq_transfer_place *place, const cmq_unit *unit)
{
    return unit->phy >= place->start && unit->phy + unit->bytes <= place->end;
}
void cmq_transfer_leave(cmq_transfer_place *place);
/* How many units of a queue are looked at for so many messages: upstream's max(16000, maxMsgNums * 20) bytes of
 * index. */
static inline uint64_t cmq_transfer_examine(uint32_t wanted) { return wanted > 800u ? wanted : 800u; }

/* ---- cmq_select.c: the units that pass a filter ---- */
/* The units from `from` on that the filter (NULL: all) lets pass, `wanted` at most, into l->units. *next: behind those
 * that were looked at, which are a bounded number. *steps: those of expressions that the request has left. */
cmq_status CMQ_MUST_CHECK cmq_select_units(cmq_broker_loop *l, cmq_queue *queue, const cmq_filter *filter, int64_t from,
                                           int64_t confirmed, uint32_t wanted, uint32_t *steps, uint32_t *found,
                                           int64_t *next);
/* The steps for a new request, of those that the turn has left; 0: it is not looked at. Subtract what it took. */
static inline uint32_t cmq_select_new_steps(const cmq_broker_loop *l)
{
    return l->new_steps < CMQ_STEPS_PER_REQUEST ? l->new_steps : CMQ_STEPS_PER_REQUEST;
}
/* Does the expression select the unit's record? Also where that cannot be read. It takes the steps from the loop's
 * steps_left, as cmq_select_units does. */
bool cmq_select_passes(cmq_broker_loop *l, cmq_transfer_place *place, cmq_queue *queue, const cmq_unit *unit,
                       const cmq_selector *selector);
/* The filter of a request's own expression: the loop keeps the last ones compiled. One reference, the caller's. */
cmq_status CMQ_MUST_CHECK cmq_select_filter(cmq_broker_loop *l, cmq_slice expression, cmq_filter **filter_out);
void cmq_select_forget(cmq_broker_loop *l);

/* ---- cmq_wake.c: ending holds ---- */
void cmq_wake_arrivals(cmq_broker_loop *l);
void cmq_wake_due(cmq_broker_loop *l, int64_t now_ns);
/* Returns how many holds it had. */
uint32_t cmq_wake_closed(cmq_broker_loop *l, cmq_conn *conn);
void cmq_wake_changed(cmq_broker_loop *l);
/* Watch the queue of a hold that was just added; the hold may be gone when it returns. */
void cmq_wake_watch(cmq_broker_loop *l, cmq_slice topic, int32_t queue_id);

/* Look at the queue in this or the next call of cmq_wake_arrivals. */
void cmq_wake_remember(cmq_broker_loop *l, cmq_queue *queue);

/* ---- cmq_pop.c, cmq_pop_peek.c, cmq_pop_ack.c ---- */
cmq_net_verdict cmq_pop_request(cmq_broker_loop *l, cmq_conn *conn, const cmq_command *command, bool again);
cmq_net_verdict cmq_pop_peek_request(cmq_broker_loop *l, cmq_conn *conn, const cmq_command *command, bool again);
cmq_net_verdict cmq_pop_ack_request(cmq_broker_loop *l, cmq_conn *conn, const cmq_command *command, cmq_slice body);
cmq_status CMQ_MUST_CHECK cmq_pop_ack_run_create(cmq_pop_ack_run **run_out);
void cmq_pop_ack_run_destroy(cmq_pop_ack_run *run);   /* NULL is fine */
/* Do and answer what the turn's acks asked for until now. */
void cmq_pop_ack_run_flush(cmq_broker_loop *l);
/* Take the next entries of the first list that waits. */
void cmq_pop_ack_lists_go_on(cmq_broker_loop *l);
void cmq_pop_ack_lists_free(cmq_pop_ack_lists *lists);

/* ---- cmq_pop_hold.c: pops that wait ---- */
/* Ask the waits that an arrival concerns; a look at a queue costs one of the budget. False: ask again, in another
 * turn. */
bool cmq_pop_wake_arrival(cmq_broker_loop *l, cmq_queue *queue, uint32_t *budget);
void cmq_pop_wake_notes(cmq_broker_loop *l);
int64_t cmq_pop_due_ns(const cmq_broker_loop *l);
void cmq_pop_wake_due(cmq_broker_loop *l, int64_t now_ns);
/* Returns how many waits it had. */
uint32_t cmq_pop_wake_closed(cmq_broker_loop *l, cmq_conn *conn);
/* Answer all. False: there are more than the turn answers. */
bool cmq_pop_wake_all(cmq_broker_loop *l, uint32_t *answers);
/* Any thread: messages were revived. */
void cmq_pop_notify_revived(void *broker, cmq_slice topic, cmq_slice group);

/* ---- cmq_pop_poll_count.c: how many pops wait ---- */
cmq_net_verdict cmq_pop_poll_count_request(cmq_broker_loop *l, cmq_conn *conn, const cmq_command *command, bool again);
void cmq_pop_poll_count_go_on(cmq_broker_loop *l);
void cmq_pop_poll_count_free(cmq_pop_poll_count *first);   /* and those behind it */

/* ---- cmq_offset_requests.c ---- */
/* Is the queue young: its first message there, and not long ago? A group that begins there begins at 0, as its
 * consumers were probably started first. */
bool cmq_broker_is_young(const cmq_broker *broker, cmq_slice topic, int32_t queue_id);
cmq_net_verdict cmq_offset_requests_request(cmq_broker_loop *l, cmq_conn *conn, const cmq_command *command, bool again);

/* ---- cmq_broker.c ---- */
/* The tables, from now until the turn ends. */
static inline cmq_tables_reader *cmq_broker_tables(cmq_broker_loop *l)
{
    if (!l->inside) cmq_tables_enter(l->reader);
    l->inside = true;
    return l->reader;
}
/* Answer with a text of ours; formatted, so not for hot paths. */
void cmq_broker_answer(cmq_conn *conn, const cmq_command *command, int32_t code, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* The asking connection for cmq_offsets; a closed one has no network, and so no share. */
static inline cmq_offset_asker cmq_broker_asker(const cmq_broker_loop *l, cmq_conn_id id)
{
    const cmq_conn *conn = cmq_loop_conn(l->loop, id);
    const uint64_t network = conn != NULL ? cmq_net_network_of(cmq_conn_peer(conn)) : 0;
    return (cmq_offset_asker){.conn = id, .network = network, .now_ns = cmq_loop_now_ns(l->loop)};
}
/* The response code of a failure: a retriable one where clients should retry. */
static inline int32_t cmq_broker_code_of(cmq_status status)
{
    if (status == CMQ_AGAIN) return CMQ_RESPONSE_SYSTEM_BUSY;
    const bool is_store =
        status == CMQ_ERR_DISK_FULL || status == CMQ_ERR_FENCED || status == CMQ_ERR_CLOSED || status == CMQ_ERR_IO;
    return is_store ? CMQ_RESPONSE_SERVICE_NOT_AVAILABLE : CMQ_RESPONSE_SYSTEM_ERROR;
}
/* A name for a text: at most 255 bytes of it. Use with %.*s. */
static inline int cmq_shown(cmq_slice name) { return (int)(name.bytes < 255 ? name.bytes : 255); }

#endif
