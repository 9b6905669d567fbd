/* cmq_pop_internal: private to the files that serve pops: one request, its result, and how it is answered, held and run
 * again. */
#ifndef CMQ_POP_INTERNAL_H
#define CMQ_POP_INTERNAL_H

#include "broker/loop/cmq_broker_internal.h"
#include "broker/loop/cmq_pop_waits.h"
#include "broker/pop/cmq_pop_service.h"
#include "broker/pop/record/cmq_pop_handle.h"
#include "store/record/cmq_record.h"
#include "wire/cmq_pop_header.h"

#define CMQ_POP_SLACK_MS 50            /* a held pop is answered so long before its client gives up */
#define CMQ_POP_NS_PER_MS INT64_C(1000000)
#define CMQ_POP_NO_QUEUE "queueId[%d] is illegal, topic:[%.*s] topicConfig.readQueueNums:[%d]"

/* One request, new or held. Names and filter are borrowed from it, or are the wait's own. */
typedef struct cmq_pop_asked {
    cmq_pop_service *pops;
    cmq_pop_wait wait;
    bool oneway;
    const cmq_topic_entry *topic;
    const cmq_group_entry *group;
    int64_t now_ms;
    int64_t confirmed;                 /* the log's confirmed end when the look began: later messages are an arrival */
    int32_t revive_queue;
    bool held;                         /* it runs again */
    bool ends;                         /* … for the last time, wherever it has looked */
    int32_t arrived;                   /* … for a message of this queue; -1: for another reason */
    int32_t seen_first;                /* the walk has looked at so many queues of the topic, from this one on */
    uint32_t seen_count;
    uint32_t cost;                     /* of its looks, in CMQ_POP_COST_LOOK */
} cmq_pop_asked;

/* A message that goes out. */
typedef struct cmq_pop_result_item {
    cmq_unit unit;
    const uint8_t *record;             /* pinned */
    int64_t start_offset;              /* of its batch */
    cmq_pop_retry retry;
    int32_t queue_id;
    bool reencoded;                    /* re-encoded, with these sizes: it comes from a retry topic */
    cmq_record_sizes sizes;
} cmq_pop_result_item;

/* A request's result, of all queues that it looked at. */
typedef struct cmq_pop_result {
    uint32_t count, capacity;
    uint64_t bytes;                    /* of the records, as they go out */
    int64_t rest;                      /* messages that were seen, and not taken */
    int64_t limited;                   /* of them: nobody may take them before others are acknowledged */
    /* when the first of the blocked ordered queues is free by time alone; INT64_MAX */
    int64_t free_ms;
    cmq_status failed;                 /* of a queue, CMQ_ERR_CORRUPT only where no other did; CMQ_OK: none did */
    char failure[CMQ_ERROR_TEXT_BYTES];
    uint32_t cost;                     /* of the looks at queues */
    bool stopped;                      /* look at no more: the request's steps are used up, or there is enough */
    uint32_t steps;                    /* of expressions, that the request has left */
    uint32_t place_count;
    cmq_transfer_place places[CMQ_POP_MESSAGES_MAX];
    cmq_pop_result_item items[CMQ_POP_MESSAGES_MAX];
    cmq_text starts, offsets, counts;
    uint8_t starts_room[2048], offsets_room[2048], counts_room[4096];   /* an entry of each for every message fits */
} cmq_pop_result;

/* ---- cmq_pop_result.c ---- */
void cmq_pop_result_begin(cmq_pop_result *popped, uint32_t capacity);
void cmq_pop_result_end(cmq_pop_result *popped);   /* unpin */
void cmq_pop_result_fail(cmq_pop_result *popped, cmq_status status);   /* reads the thread's last error */
/* Pin the records of the units, behind those that are there. Returns how many of them can be read; the last error says
 * why not more. */
uint32_t cmq_pop_result_pin(cmq_pop_result *popped, cmq_broker_loop *l, cmq_queue *queue, const cmq_unit *units,
                            uint32_t count);
/* Does the queue whose first unit this is have a share in the answer, and how large may it be? Clients take no frame
 * over CMQ_FRAME_BYTES_MAX, and half of it is plenty; one message always fits. */
int64_t cmq_pop_result_bytes_left(const cmq_pop_result *popped);
bool cmq_pop_result_has_room(const cmq_pop_result *popped, const cmq_unit *first);
/* Take those that were pinned: `count` messages of one queue. */
void cmq_pop_result_take(cmq_pop_result *popped, const cmq_pop_asked *asked, const cmq_unit *units, uint32_t count,
                         cmq_pop_retry retry, int32_t queue_id);
/* Answer with what was found; with code 209, 210 or 19 when that is nothing. */
void cmq_pop_result_answer(cmq_pop_result *popped, cmq_broker_loop *l, const cmq_pop_asked *asked, int32_t code);

/* ---- cmq_pop.c ---- */
void cmq_pop_refuse(cmq_broker_loop *l, const cmq_pop_asked *asked, int32_t code, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* Upstream's checks, in its order. False: refused. */
bool cmq_pop_check(cmq_broker_loop *l, const cmq_pop_asked *asked);
/* So long a queue's batches may take until something of them is settled. */
int64_t cmq_pop_peek_after_ms(const cmq_pop_asked *asked);
/* A look at a queue; it adds its cost, which is CMQ_POP_COST_NONE where there is no such queue, and more where the
 * group's progress begins. */
typedef void (*cmq_pop_visit)(cmq_broker_loop *l, const cmq_pop_asked *asked, cmq_pop_result *popped, cmq_slice topic,
                              cmq_pop_retry retry, int32_t queue_id);
/* Read a request into *header_out and *asked_out, whose filter is NULL. False: the loop is done with it, *verdict_out;
 * it was malformed, or its group is to be made by the control plane first (not `again`). */
bool cmq_pop_asked_begin(cmq_broker_loop *l, cmq_conn *conn, const cmq_command *command, bool again,
                         cmq_pop_header *header_out, cmq_pop_asked *asked_out, cmq_net_verdict *verdict_out);
/* Run a held request again. True: it was answered. False: there is nothing for it; *free_ms_out as in cmq_pop_result.
 * `last`: answer in any case. */
bool cmq_pop_run(cmq_broker_loop *l, cmq_pop_asked *asked, bool last, int64_t *free_ms_out);

/* ---- cmq_pop_walk.c ---- */
enum { CMQ_POP_COST_NONE = 1, CMQ_POP_COST_LOOK = 32, CMQ_POP_COST_BEGIN = 512 };   /* 30 ns, 1 us, 15 us */
#define CMQ_POP_LOOKS_PER_TURN 2048u   /* and of a part: CMQ_POP_COST_LOOK each */
/* Visit the next queues that the request is about, those of the group's retry topic first or last by chance.
 * asked->wait.place: where it goes on, or all zero (but for `rest`) when it was at all of them. */
void cmq_pop_walk(cmq_broker_loop *l, cmq_pop_asked *asked, cmq_pop_result *popped, cmq_pop_visit visit);
/* Is there more to look at, and time for it? */
bool cmq_pop_goes_on(const cmq_broker_loop *l, const cmq_pop_asked *asked);

/* ---- cmq_pop_peek.c ---- */
/* As cmq_pop_run, for a notification. */
bool cmq_pop_notify(cmq_broker_loop *l, cmq_pop_asked *asked, bool last, int64_t *free_ms_out);

/* ---- cmq_pop_ack_run.c ---- */

/* The acknowledgement of messages of one checkpoint. */
typedef struct cmq_pop_acked {
    cmq_slice topic, group;            /* the real topic */
    int32_t queue_id;
    cmq_pop_handle handle;
} cmq_pop_acked;

/* Acknowledge at most CMQ_POP_MESSAGES_MAX messages of an unordered pop. CMQ_OK: all of them; else none. */
cmq_status CMQ_MUST_CHECK cmq_pop_ack_offsets(cmq_broker_loop *l, const cmq_pop_acked *what, const int64_t *offsets,
                                              uint32_t count);
bool cmq_pop_ack_is_ours(const cmq_pop_service *pops, const cmq_pop_handle *handle);   /* of this broker */
/* A queue is free, or becomes free at another time. */
void cmq_pop_ack_wake(cmq_broker_loop *l, const cmq_pop_acked *what);
/* Acknowledge one with its like before the turn ends, and answer then. Its slices live as long. */
void cmq_pop_ack_later(cmq_broker_loop *l, const cmq_conn *conn, const cmq_command *command, const cmq_pop_acked *what,
                       int64_t offset);

/* ---- cmq_pop_ack.c ---- */
static inline bool cmq_pop_ack_is_ordered(const cmq_pop_acked *what)
{
    return what->handle.revive_queue == CMQ_POP_REVIVE_ORDER;
}
/* The first offset behind those that can be acknowledged. An ack of the message that comes next does no harm, and
 * upstream takes it; an ordered one would move the group behind it. */
static inline int64_t cmq_pop_ack_end(const cmq_pop_acked *what, int64_t max)
{
    return cmq_pop_ack_is_ordered(what) ? max : max + 1;
}
/* The queue's bounds; false: it has never had a message. */
bool cmq_pop_ack_bounds(const cmq_broker_loop *l, const cmq_pop_acked *what, int64_t *min_out, int64_t *max_out);
/* Can a broker with this one's settings have given such a handle? Ordered ones need a group that is known: its lane is
 * made for them. */
cmq_status CMQ_MUST_CHECK cmq_pop_ack_check_handle(cmq_broker_loop *l, const cmq_pop_acked *what);
cmq_status CMQ_MUST_CHECK cmq_pop_ack_ordered(cmq_broker_loop *l, const cmq_pop_acked *what, int64_t offset);
void cmq_pop_ack_refuse(cmq_conn *conn, const cmq_command *command, cmq_status status, const char *text);

/* ---- cmq_pop_ack_list.c ---- */
#define CMQ_POP_LIST_ENTRIES_MAX 2048u   /* of a list of acks (200151) … */
#define CMQ_POP_LIST_BYTES_MAX (1u << 20)   /* … and its bytes */
#define CMQ_POP_LIST_AT_ONCE 32u      /* a list of so many entries is served as single acks are */
#define CMQ_POP_LIST_STEP 128u        /* entries of longer ones in a turn: 0.8 ms */
#define CMQ_POP_LISTS_MAX 64u         /* of those that wait … */
#define CMQ_POP_LISTS_CONN_MAX 4u     /* … and of one connection … */
#define CMQ_POP_LISTS_BYTES_MAX (16u << 20)   /* … and their bytes */
void cmq_pop_ack_list_take(cmq_broker_loop *l, cmq_conn *conn, const cmq_command *command, cmq_slice body);

/* ---- cmq_pop_hold.c ---- */
#define CMQ_POP_NOTES_MAX 65536u      /* that wait for a loop */
/* The loop's time in so many milliseconds; far ones stay within the clock's range. */
int64_t cmq_pop_after_ms(const cmq_broker_loop *l, int64_t ms);

typedef enum cmq_pop_polling {
    CMQ_POP_HELD = 0,
    CMQ_POP_FULL,
    CMQ_POP_TIMEOUT
} cmq_pop_polling;
/* Watch the queue; messages since the request's look are an arrival. */
void cmq_pop_watch(cmq_broker_loop *l, const cmq_pop_asked *asked, int32_t queue_id);
/* Hold the request until something comes, or free_ms; or until the next turn, where its walk goes on. Takes over its
 * filter when it does. */
cmq_pop_polling cmq_pop_hold(cmq_broker_loop *l, cmq_conn *conn, cmq_pop_asked *asked, int64_t free_ms);
/* There is more of the queue (-1: of the topic) than was taken, or it was blocked and is not any more: one who waits
 * for it may go on. */
void cmq_pop_notify_rest(cmq_broker_loop *l, cmq_slice topic, cmq_slice group, int32_t queue_id);

#endif
