/* cmq_hold: pull requests that found nothing and wait: for a message of their queue, their deadline, their client's
 * end, or a new subscription.
 *
 * Found by queue and tag, or queue and SQL92 expression (arrival), by group (its subscription changed), by connection
 * (it closed), and by deadline (a heap), each without looking at the others: 100,000 holds cost no time while nothing
 * happens, nor while messages of other tags arrive, and an arrival evaluates each expression once, however many wait
 * for it. Each is answered at its own deadline, not at the next round of a scan.
 *
 * A queue knows up to where its messages were compared with its holds ("seen"): a hold that is still there goes on from
 * there, without being touched.
 *
 * Limits: holds, tags of holds, and bytes of their expressions. When half of one is taken, a connection with more than
 *         its share gets no more.
 * Size:   at most 120 B a hold, and 60 B a tag or expression of it; a queue or a group that is waited for costs 64 B
 *         and its name once.
 *
 * Owns:      the holds of one loop, with a reference on each one's own filter, and the SQL92 filters that they wait
 *            for.
 * Invariant: a hold is in the heap, in the list of its queue, of its group and of its connection, or in none of them.
 * Threads:   one: the loop's. Time is the caller's.
 * Way:       pull that found nothing -> [cmq_holds_add] -> arrival, deadline, change -> [cmq_holds_remove] -> the pull
 *            again, for the last time
 * Source:    upstream's PullRequestHoldService; consumption specification 3.3, promises 75 to 81.
 */
#ifndef CMQ_HOLD_H
#define CMQ_HOLD_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cmq_bytes.h"
#include "base/cmq_status.h"
#include "broker/loop/cmq_hold_programs.h"
#include "broker/tables/cmq_tables.h"
#include "net/cmq_net.h"
#include "wire/cmq_frame.h"

typedef struct cmq_holds cmq_holds;

/* The parameters to run a held pull again. Names are borrowed for add; a hold's own live as long as it does. */
typedef struct cmq_held_pull {
    cmq_slice group;
    cmq_slice topic;
    int32_t queue_id;
    int64_t from;                /* queue offset */
    int64_t sub_version;
    cmq_filter *filter;          /* the request's own (bit 2 of its sysFlag); NULL: the group's subscription */
    cmq_conn_id conn;
    int32_t opaque;
    int32_t max_messages;
    int32_t max_bytes;
    int32_t code;                /* 11 or 361 */
    cmq_header_format format;
    bool moved;                  /* messages before `from` were seen since it was added, and did not end it */
} cmq_held_pull;

typedef uint32_t cmq_hold;       /* names one hold; CMQ_HOLD_NONE is no hold */
#define CMQ_HOLD_NONE UINT32_MAX

/* At most so many holds at once; nothing is allocated for them before. */
cmq_status CMQ_MUST_CHECK cmq_holds_create(cmq_holds **holds_out, uint32_t count_max);
void cmq_holds_destroy(cmq_holds *holds);   /* with all that are held */

#define CMQ_HOLDS_TAGS_MAX (4u << 20)   /* of all holds */
#define CMQ_HOLDS_SHARE 16u             /* a connection's share of either limit: one in so many */

/* Hold. Takes over the filter's reference when it succeeds. `wakes`: the filter of messages that end it, the pull's own
 * or its group's; read only. `conn_slot` is the connection's number in its loop (cmq_conn_slot). CMQ_ERR_LIMIT at a
 * limit, CMQ_ERR_MEMORY. */
cmq_status CMQ_MUST_CHECK cmq_holds_add(cmq_holds *holds, const cmq_held_pull *pull, const cmq_filter *wakes,
                                        int64_t deadline_ns, uint32_t conn_slot, cmq_hold *hold_out);

/* The held pull; valid until the hold is removed. */
void cmq_holds_get(const cmq_holds *holds, cmq_hold hold, cmq_held_pull *pull_out);

/* Take a hold out. The filter's reference goes to the caller, who got it by cmq_holds_get. */
void cmq_holds_remove(cmq_holds *holds, cmq_hold hold);

/* The first hold of a queue (group, connection), and the next one behind `hold`: read it before you remove `hold`. */
/* A queue that holds wait for, and the offset up to which its messages were seen; CMQ_HOLD_NONE: there is none. Valid
 * until a hold is removed. */
typedef uint32_t cmq_hold_queue;
cmq_hold_queue cmq_holds_find_queue(const cmq_holds *holds, cmq_slice topic, int32_t queue_id);
int64_t cmq_holds_seen(const cmq_holds *holds, cmq_hold_queue queue);
void cmq_holds_set_seen(cmq_holds *holds, cmq_hold_queue queue, int64_t offset);
/* does one of its holds wait for certain tags, or for an SQL92 expression? */
bool cmq_holds_has_tags(const cmq_holds *holds, cmq_hold_queue queue);
/* The hold that came first of those that any message at `offset`, or one with this tag hash, ends. */
cmq_hold cmq_holds_of_any(const cmq_holds *holds, cmq_hold_queue queue, int64_t offset);
cmq_hold cmq_holds_of_tag(const cmq_holds *holds, cmq_hold_queue queue, uint32_t hash, int64_t offset);

/* Of the queue's holds that wait for an SQL92 expression: the first of each expression. CMQ_HOLD_NONE: no further one.
 * Such a hold remembers the message that its expression was compared with last, so that a look at one can stop between
 * two of them. */
cmq_hold cmq_holds_selecting(const cmq_holds *holds, cmq_hold_queue queue);
cmq_hold cmq_holds_next_selecting(const cmq_holds *holds, cmq_hold hold);
void cmq_holds_set_compared(cmq_holds *holds, cmq_hold hold, int64_t offset);
bool cmq_holds_is_compared(const cmq_holds *holds, cmq_hold hold, int64_t offset);
/* Its expression's number, and the hold of the queue that came first of those that wait for it and begin no later than
 * at `offset`. */
uint32_t cmq_holds_program(const cmq_holds *holds, cmq_hold hold);
cmq_hold cmq_holds_of_program(const cmq_holds *holds, cmq_hold_queue queue, uint32_t program, int64_t offset);
const cmq_selector *cmq_holds_selector(const cmq_holds *holds, uint32_t program);

/* The expressions; held pops keep theirs among them. */
cmq_hold_programs *cmq_holds_programs(cmq_holds *holds);

cmq_hold cmq_holds_of_queue(const cmq_holds *holds, cmq_slice topic, int32_t queue_id);
cmq_hold cmq_holds_next_of_queue(const cmq_holds *holds, cmq_hold hold);
cmq_hold cmq_holds_of_group(const cmq_holds *holds, cmq_slice group);
cmq_hold cmq_holds_next_of_group(const cmq_holds *holds, cmq_hold hold);
cmq_hold cmq_holds_of_conn(const cmq_holds *holds, uint32_t conn_slot);

/* All holds of a group, the newest first: their number, and *holds_out owned (free); 0 and NULL without any, or without
 * memory: those end at their deadlines. is_of_group: whether the number names a hold of the group, now. */
uint32_t cmq_holds_list_group(const cmq_holds *holds, cmq_slice group, cmq_hold **holds_out);
bool cmq_holds_is_of_group(const cmq_holds *holds, cmq_hold hold, cmq_slice group);

/* The hold whose deadline is first, when that is at or before now_ns; else CMQ_HOLD_NONE. */
cmq_hold cmq_holds_due(const cmq_holds *holds, int64_t now_ns);
int64_t cmq_holds_due_ns(const cmq_holds *holds);   /* the first deadline; INT64_MAX: none */

uint32_t cmq_holds_count(const cmq_holds *holds);
size_t cmq_holds_bytes(const cmq_holds *holds);     /* allocated */

#endif
