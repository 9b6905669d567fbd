/* cmq_queue_table: (topic, queue id) -> queue, for readers without locks; and the names of the topics, each kept once.
 *
 * Owns:       the topics' names, the slots and every outgrown array of slots (until the table is destroyed: readers may
 *             be inside one).
 * Invariant:  a slot once filled stays filled; it may get another queue of the same name (a topic deleted and made
 *             again).
 * Threads:    find: any, no locks. put, topic: the writer.
 */
#ifndef CMQ_QUEUE_TABLE_H
#define CMQ_QUEUE_TABLE_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/cmq_bytes.h"
#include "base/cmq_status.h"
#include "store/queue/cmq_queue.h"

/* One topic's name, shared by its queues. */
typedef struct cmq_queuetopic {
    uint64_t hash;
    uint32_t index_seed;      /* cmq_queue_topic_seed */
    uint16_t bytes;
    bool lmq;                 /* a light message queue: "%LMQ%…" */
    char name[];              /* NUL-terminated */
} cmq_queuetopic;

/* jhash of "topic#": what hashes of the index begin with. */
uint32_t cmq_queue_topic_seed(cmq_slice topic);

typedef struct cmq_queueslots {
    struct cmq_queueslots *outgrown;
    uint32_t mask;
    _Atomic(cmq_queue *) slots[];
} cmq_queueslots;

typedef struct cmq_queue_table {
    _Atomic(cmq_queueslots *) slots;
    uint32_t used;                      /* writer */
    const cmq_queuetopic **topics;      /* writer: open addressing */
    uint32_t topic_mask, topic_count;
    struct cmq_namechunk *names;        /* the topics' memory */
    uint32_t name_bytes_left;
} cmq_queue_table;

cmq_status CMQ_MUST_CHECK cmq_queue_table_init(cmq_queue_table *table);
void cmq_queue_table_free(cmq_queue_table *table);

/* reader: NULL when there is none. A deleted queue is found too. */
cmq_queue *cmq_queue_table_find(const cmq_queue_table *table, cmq_slice topic, int32_t queue_id);

/* writer: insert, or put in the place of the queue of the same name. */
cmq_status CMQ_MUST_CHECK cmq_queue_table_put(cmq_queue_table *table, cmq_queue *queue);

/* writer: the topic of that name (1 to 255 bytes), made when it is new. Lives as long as the table. */
cmq_status CMQ_MUST_CHECK cmq_queue_table_topic(cmq_queue_table *table, cmq_slice name,
                                                const cmq_queuetopic **topic_out);

#endif
