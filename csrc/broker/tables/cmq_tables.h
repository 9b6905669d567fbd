/* cmq_tables: the control plane's data for the loops: topics, groups, registered consumers, and the broker's own
 * permission.
 *
 * Loops look things up per request, and must not wait for a control thread that was just put to sleep; so nothing is
 * changed in place. An entry, once put, never changes: a change is a new entry in the old one's slot. A replaced entry
 * is freed when every reader has left the turn in which it might have seen it.
 *
 *   loop      enter (once per turn) … find, find, find … leave          a store, loads, a store; no lock, never waits
 *   control   put, remove                                               a mutex of their own, then one pointer
 *
 * Invariant: an entry returned by find is valid and unchanged until the reader leaves.
 * Threads:   put, remove, set: any, one after another (a mutex). A reader belongs to one thread at a time.
 * Way:       heartbeat, admin, auto-creation -> control thread -> [cmq_tables] -> send, pull, holds
 * Source:    specification consumption 3.2, 3.4, 3.8; remoting 4.7.
 */
#ifndef CMQ_TABLES_H
#define CMQ_TABLES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cmq_bytes.h"
#include "base/cmq_status.h"
#include "broker/tables/cmq_filter.h"

/* Permission bits of topics and of the broker. */
enum {
    CMQ_PERM_INHERIT = 1,
    CMQ_PERM_WRITE = 2,
    CMQ_PERM_READ = 4
};

#define CMQ_TABLES_NAME_BYTES_MAX 255u
#define CMQ_TABLES_READERS_MAX 32u
#define CMQ_TABLES_SUBSCRIPTIONS_MAX 65536u      /* of one group */

/* ---- entries ---- */

typedef enum cmq_topic_kind {
    CMQ_TOPIC_SIMPLE = 0,
    CMQ_TOPIC_BATCH = 1         /* queue.type=BatchCQ */
} cmq_topic_kind;

/* The attribute message.type. */
typedef enum cmq_message_type {
    CMQ_MESSAGE_UNSPECIFIED = 0,
    CMQ_MESSAGE_NORMAL,
    CMQ_MESSAGE_FIFO,
    CMQ_MESSAGE_DELAY,
    CMQ_MESSAGE_TRANSACTION,
    CMQ_MESSAGE_MIXED
} cmq_message_type;

typedef struct cmq_topic_entry {
    cmq_slice name;              /* the table's own */
    int32_t read_queues, write_queues;
    int32_t perm;
    int32_t sys_flag;
    bool order;
    cmq_topic_kind kind;
    cmq_message_type message_type;
} cmq_topic_entry;

typedef struct cmq_group_entry {
    cmq_slice name;
    bool consume_enable;
    bool consume_broadcast_enable;
    bool consume_from_min;
    bool order;
    bool notify;
    int32_t retry_queues;
    int32_t retry_max;
    int32_t sys_flag;
    int64_t broker_id;
    int64_t which_broker_when_slow;
} cmq_group_entry;

typedef enum cmq_message_model {
    CMQ_MODEL_CLUSTERING = 0,
    CMQ_MODEL_BROADCASTING = 1
} cmq_message_model;

typedef enum cmq_consume_type {
    CMQ_CONSUME_ACTIVELY = 0,    /* pull */
    CMQ_CONSUME_PASSIVELY = 1,   /* push */
    CMQ_CONSUME_POP = 2
} cmq_consume_type;

typedef enum cmq_expression_type {
    CMQ_EXPRESSION_TAG = 0,
    CMQ_EXPRESSION_OTHER = 1     /* SQL92, or what no filter could be made of */
} cmq_expression_type;

#define CMQ_FILTER_NO_DATA INT64_MIN

typedef struct cmq_subscription {
    cmq_slice topic;
    cmq_expression_type type;
    bool read_forbidden;         /* the group's forbiddenTable has this topic's read bit */
    cmq_filter *filter;          /* never NULL; in a put: borrowed, NULL is all */
    int64_t sub_version;
    int64_t filter_version;      /* of another expression than TAG: of the compiled one; CMQ_FILTER_NO_DATA: none */
    uint64_t serial;             /* of this filter in this group; another one whenever the filter or its type changes.
                                  * Set by the table */
} cmq_subscription;

typedef struct cmq_consumer_entry {
    cmq_slice group;
    cmq_message_model model;
    cmq_consume_type type;
    uint32_t subscription_count;
    const cmq_subscription *subscriptions;   /* sorted by topic (length, then bytes) in the table; in any order in a
                                              * put */
} cmq_consumer_entry;

/* ---- life ---- */

typedef struct cmq_tables cmq_tables;
typedef struct cmq_tables_reader cmq_tables_reader;

cmq_status CMQ_MUST_CHECK cmq_tables_create(cmq_tables **tables_out);
/* No reader is inside. */
void cmq_tables_destroy(cmq_tables *tables);

/* ---- writing: slices are copied. An entry of that name is replaced ---- */

/* CMQ_ERR_ARGUMENT for an empty or too long name, or a topic that a subscription names twice. */
cmq_status CMQ_MUST_CHECK cmq_tables_put_topic(cmq_tables *tables, const cmq_topic_entry *topic);
cmq_status CMQ_MUST_CHECK cmq_tables_put_group(cmq_tables *tables, const cmq_group_entry *group);
cmq_status CMQ_MUST_CHECK cmq_tables_put_consumer(cmq_tables *tables, const cmq_consumer_entry *consumer);
/* False when there is none. */
bool cmq_tables_remove_topic(cmq_tables *tables, cmq_slice topic);
bool cmq_tables_remove_group(cmq_tables *tables, cmq_slice group);
bool cmq_tables_remove_consumer(cmq_tables *tables, cmq_slice group);

/* At first: read and write. */
void cmq_tables_set_perm(cmq_tables *tables, int32_t perm);

typedef struct cmq_tables_counts {
    uint32_t topics, groups, consumers;
    uint32_t retired;            /* replaced or removed entries that a reader may still see */
} cmq_tables_counts;
void cmq_tables_count(cmq_tables *tables, cmq_tables_counts *counts_out);

/* ---- reading ---- */

/* CMQ_ERR_LIMIT for more than CMQ_TABLES_READERS_MAX. */
cmq_status CMQ_MUST_CHECK cmq_tables_reader_create(cmq_tables *tables, cmq_tables_reader **reader_out);
void cmq_tables_reader_destroy(cmq_tables_reader *reader);   /* not inside; NULL is fine */

void cmq_tables_enter(cmq_tables_reader *reader);
void cmq_tables_leave(cmq_tables_reader *reader);

/* Between enter and leave; NULL when there is none. */
const cmq_topic_entry *cmq_tables_topic(cmq_tables_reader *reader, cmq_slice topic);
const cmq_group_entry *cmq_tables_group(cmq_tables_reader *reader, cmq_slice group);
const cmq_consumer_entry *cmq_tables_consumer(cmq_tables_reader *reader, cmq_slice group);
const cmq_subscription *cmq_consumer_subscription(const cmq_consumer_entry *consumer, cmq_slice topic);
int32_t cmq_tables_perm(const cmq_tables_reader *reader);

#endif
