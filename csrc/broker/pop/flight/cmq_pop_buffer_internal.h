/* cmq_pop_buffer_internal: private to the buffer's files: its lanes and shards. */
#ifndef CMQ_POP_BUFFER_INTERNAL_H
#define CMQ_POP_BUFFER_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "broker/pop/flight/cmq_pop_buffer.h"
#include "broker/pop/flight/cmq_pop_checkpoints.h"
#include "broker/pop/flight/cmq_pop_first_times.h"
#include "broker/pop/flight/cmq_pop_in_flight.h"

#define CMQ_POP_SHARD_BITS 4u
#define CMQ_POP_SHARDS (1u << CMQ_POP_SHARD_BITS)

struct cmq_pop_lane {
    uint64_t hash;
    int64_t next_offset;                 /* of the last checkpoint in the list */
    uint32_t number;                     /* in its shard */
    uint32_t first, last, count;         /* checkpoints whose offset is not committed yet, in pop order */
    int32_t queue_id;
    uint16_t topic_bytes, group_bytes;
    bool waiting;                        /* listed in the shard's waiting */
    cmq_pop_in_flight ages;                   /* popped and not acknowledged */
    cmq_pop_first_times *firsts;              /* of that, what had its invisible time changed */
    char names[];                        /* the topic, then the group */
};

typedef struct cmq_pop_shard {
    pthread_mutex_t mutex;
    cmq_pop_checkpoints checkpoints;
    cmq_pop_lane **lanes;                /* by number; NULL: free */
    uint32_t lane_count, lane_slots;     /* ever used; room for */
    uint32_t lanes_live;
    uint32_t *table;                     /* lane number + 1; 0: empty. Linear probing, a power of two, at most half
                                          * full */
    uint32_t table_slots;
    uint32_t *waiting;                   /* lanes whose first checkpoint waits for the confirmed end, or was just
                                          * finished */
    uint32_t waiting_count, waiting_slots;
    size_t lane_bytes;
    uint64_t merged, stored, given_up, acks_merged, acks_unknown;
} cmq_pop_shard;

struct cmq_pop_buffer {
    cmq_pop_buffer_options options;
    char *broker;
    _Atomic uint32_t merged_now;
    atomic_bool emptying;
    cmq_pop_shard shards[CMQ_POP_SHARDS];
};

/* ---- cmq_pop_buffer.c; the shard's mutex is held ---- */
cmq_pop_key cmq_pop_lane_key(const cmq_pop_lane *lane);
/* Forget a checkpoint that is in no list any more. */
void cmq_pop_shard_drop(cmq_pop_buffer *buffer, cmq_pop_shard *shard, uint32_t number);
/* The lane's first checkpoint waits for the confirmed end, or was just finished. */
void cmq_pop_shard_list_waiting(cmq_pop_shard *shard, cmq_pop_lane *lane);

/* ---- cmq_pop_buffer_leave.c; the shard's mutex is held ---- */
/* The log's record of a held checkpoint. */
cmq_pop_checkpoint cmq_pop_record_of_held(const cmq_pop_buffer *buffer, const cmq_pop_lane *lane,
                                          const cmq_pop_held *held, int32_t diffs[CMQ_POP_MESSAGES_MAX]);
/* Store all that is due. From one on that is refused for good they go one by one, so that it is found and keeps nothing
 * else back. */
cmq_status CMQ_MUST_CHECK cmq_pop_shard_store_due(cmq_pop_buffer *buffer, cmq_pop_shard *shard, int64_t now_ms);

#endif
