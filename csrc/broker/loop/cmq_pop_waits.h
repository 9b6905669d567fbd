/* cmq_pop_waits: pops and notifications that found nothing and wait, by topic, group and queue.
 *
 * A pop waits for a queue, or for all queues of its topic (queue id -1): these are different keys. An arrival in a
 * queue concerns, of each group that waits for the topic, one wait at either key: the one whose time is over first. So
 * a group's members are served in turn, and no group waits for another.
 *
 * Size:      at most 136 B a wait with its place in the heap; a key some 70 B and its names, while somebody waits at
 *            it.
 * Owns:      the waits of one loop, each with a reference on its filter and a copy of its attempt id.
 * Invariant: a wait is in its key's list (by deadline, then by arrival), in its connection's and in the heap, or in
 *            none of them.
 * Threads:   one: the loop's. Time is the caller's, on any clock.
 * Way:       pop that found nothing -> [cmq_pop_waits_add] -> arrival, rest, revival, deadline -> the pop again ->
 *            [cmq_pop_waits_remove], or it stays
 * Source:    consumption specification 4.11; upstream's PopLongPollingService.
 */
#ifndef CMQ_POP_WAITS_H
#define CMQ_POP_WAITS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cmq_bytes.h"
#include "base/cmq_status.h"
#include "broker/tables/cmq_filter.h"
#include "net/cmq_net.h"
#include "wire/cmq_frame.h"

typedef struct cmq_pop_waits cmq_pop_waits;

/* How far a request has looked at the queues of its topics (cmq_pop_walk). All zero: it begins with the first. */
typedef struct cmq_pop_place {
    int64_t free_ms;             /* as in cmq_pop_result, of the queues before */
    int32_t at;                  /* the next queue of the section, … */
    uint32_t left;               /* … and how many are left of it; 0: the section begins */
    uint8_t section;             /* from 1 on; 0: no walk has begun */
    uint8_t plan;                /* which sections there are */
    bool rest;                   /* something is left in the queues before, or came meanwhile */
    uint8_t damaged_in;          /* the first queue before that is damaged: its kind of topic, from 1 on; 0: none is */
    int32_t damaged;             /* … and its number */
} cmq_pop_place;

/* The parameters to run the request again. Names are borrowed for add; those of a wait live as long as it does. */
typedef struct cmq_pop_wait {
    cmq_slice topic, group;
    cmq_slice attempt;           /* at most UINT16_MAX bytes */
    int32_t queue_id;            /* -1: all */
    int32_t code;                /* POP_MESSAGE or NOTIFICATION */
    int32_t opaque;
    int32_t max_messages;
    int32_t init;
    cmq_header_format format;
    int64_t invisible_ms;
    int64_t expires_ns;          /* when its client gives up, by the loop's clock */
    cmq_filter *filter;          /* NULL: all */
    cmq_conn_id conn;
    uint32_t conn_slot;          /* set by cmq_pop_waits_get */
    bool order;
    cmq_pop_place place;
} cmq_pop_wait;

#define CMQ_POP_WAIT_NONE UINT32_MAX

/* At most count_max in all (maxPopPollingSize), key_max at one key (popPollingSize). */
cmq_status CMQ_MUST_CHECK cmq_pop_waits_create(cmq_pop_waits **waits_out, uint32_t count_max, uint32_t key_max);
void cmq_pop_waits_destroy(cmq_pop_waits *waits);

/* Wait until `deadline`. Takes over the filter's reference when it succeeds. CMQ_ERR_LIMIT: one of the limits is
 * reached; CMQ_ERR_MEMORY. */
cmq_status CMQ_MUST_CHECK cmq_pop_waits_add(cmq_pop_waits *waits, const cmq_pop_wait *wait, int64_t deadline,
                                            uint32_t conn_slot, uint32_t *number_out);

/* Wait until another deadline, behind those that have the same. */
void cmq_pop_waits_move(cmq_pop_waits *waits, uint32_t number, int64_t deadline);

/* Its walk went on, or ended (all zero). */
void cmq_pop_waits_set_place(cmq_pop_waits *waits, uint32_t number, const cmq_pop_place *place);

void cmq_pop_waits_get(const cmq_pop_waits *waits, uint32_t number, cmq_pop_wait *wait_out);
/* Take a wait out. The filter's reference goes to the caller, who got it by cmq_pop_waits_get. */
void cmq_pop_waits_remove(cmq_pop_waits *waits, uint32_t number);

/* The wait at a key whose deadline is first (pops), or last (`last`: notifications); CMQ_POP_WAIT_NONE. */
uint32_t cmq_pop_waits_at(const cmq_pop_waits *waits, cmq_slice topic, cmq_slice group, int32_t queue_id, bool last);
uint32_t cmq_pop_waits_count_at(const cmq_pop_waits *waits, cmq_slice topic, cmq_slice group, int32_t queue_id);

/* A round: the waits that an arrival in a queue concerns, one of each key, some at a time. Waits may be added, moved
 * and removed meanwhile. A topic has one round at once. */
typedef enum cmq_pop_round {
    CMQ_POP_ROUND_NOBODY = 0,    /* waits for the topic */
    CMQ_POP_ROUND_NONE,          /* is open */
    CMQ_POP_ROUND_OPEN,
    CMQ_POP_ROUND_OTHER          /* that of another queue is open */
} cmq_pop_round;
cmq_pop_round cmq_pop_waits_round(const cmq_pop_waits *waits, cmq_slice topic, int32_t queue_id);
/* -1: of the waits for all queues */
void cmq_pop_waits_open_round(cmq_pop_waits *waits, cmq_slice topic, int32_t queue_id);
/* The waits of the next `capacity` keys that the round concerns; returns how many. Behind the last key it is closed. */
uint32_t cmq_pop_waits_next_of_round(cmq_pop_waits *waits, cmq_slice topic, uint32_t *numbers_out, uint32_t capacity);

uint32_t cmq_pop_waits_of_conn(const cmq_pop_waits *waits, uint32_t conn_slot);
/* Any wait of a group (empty: of any group). Looks at every key. */
uint32_t cmq_pop_waits_of_group(const cmq_pop_waits *waits, cmq_slice group);

uint32_t cmq_pop_waits_due(const cmq_pop_waits *waits, int64_t now);
int64_t cmq_pop_waits_first_deadline(const cmq_pop_waits *waits);   /* INT64_MAX: none */

uint32_t cmq_pop_waits_count(const cmq_pop_waits *waits);
size_t cmq_pop_waits_bytes(const cmq_pop_waits *waits);             /* allocated */

#endif
