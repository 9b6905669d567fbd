/* cmq_pop_revive: revives popped messages that were not acknowledged in time: reads the revive queues, puts messages
 * into retry topics.
 *
 *   timer -> rmq_sys_REVIVE_LOG_…, queue q: checkpoints and acks -> [one table of unfinished checkpoints for each
 *   queue]
 *     a checkpoint is complete when the records read reach 2 s behind its time, or nothing more is to come
 *       every message acknowledged, or gone, or of a topic or group that is no more   -> done
 *       others  -> %RETRY%group_topic, queue 0 … confirmed -> done; a waiting pop is woken
 *       one that cannot be put there                       -> a checkpoint of its own, due 10 s to 2 h later -> done
 *     the offset of the last that is done                  -> committed for CID_RMQ_SYS_REVIVE_GROUP
 *
 * One thread reads all revive queues, or a test calls the step. Upstream begins each round where its committed offset
 * stands, and reads the acks behind it again; here a queue is read once, and what is unfinished stays in memory: 56
 * bytes a checkpoint and its place in a table, and four for each message where offsets do not follow one another. When
 * a checkpoint is complete is upstream's rule: the latest deliver time that was read, or, once nothing came for 3 s and
 * the timer has caught up, the present, lies more than 2 s behind the time when it is due.
 *
 * Invariant: the committed offset passes a checkpoint only when each unacknowledged message of it is in its retry
 *            topic, or in another checkpoint, and confirmed. A reader that goes on from there (after a stop, a kill, on
 *            a Java broker) loses none; a kill in between revives twice.
 * Limits:    checkpoints_max of a queue; beyond, its first is revived before its acks were read, so that it may come
 *            twice.
 * Failing:   disk full, no memory: tried again every second, nothing passed over. A fenced store: it stops, and says
 *            so. A record that is no checkpoint and no ack, or has a body other than it was stored with, is passed over
 *            and counted, as is an original that is gone. A retry topic that is not made within 30 s: its messages are
 *            put again, as above, and it is asked for all the same.
 * Threads:   one of its own, unless manual. All calls: any thread, but destroy, and step (one at a time). Callbacks are
 *            called by it.
 * Way:       cmq_pop_buffer, cmq_pop_ack -> timer message -> cmq_timer -> [cmq_pop_revive] -> retry topic -> cmq_pop
 * Source:    specification consumption 4.9; upstream's PopReviveService.
 */
#ifndef CMQ_POP_REVIVE_H
#define CMQ_POP_REVIVE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cmq_bytes.h"
#include "base/cmq_clock.h"
#include "base/cmq_status.h"
#include "broker/pop/record/cmq_pop_record.h"
#include "broker/tables/cmq_offsets.h"
#include "broker/tables/cmq_tables.h"
#include "store/cmq_store.h"

#define CMQ_POP_REVIVE_QUEUES_MAX 1024u

typedef struct cmq_pop_revive cmq_pop_revive;

/* Messages of one checkpoint that are in the retry topic now, or gone, or given up. Slices live for the call. */
typedef struct cmq_pop_revived {
    cmq_slice topic, group;              /* the topic they were popped from */
    /* the topic that the group asked for: a pop of it, or of any of its queues, may go on */
    cmq_slice normal_topic;
    int32_t queue_id;
    int64_t start_offset;                /* of the checkpoint */
    uint32_t count;
    int64_t pop_ms, invisible_ms;
} cmq_pop_revived;

/* The owner's callbacks. All but `context` may be NULL. */
typedef struct cmq_pop_revive_calls {
    void *context;
    /* Has the timer entered what was parked and delivered what was due? NULL: always. */
    bool (*caught_up)(void *context);
    /* Messages are in their retry topic, and confirmed, or nobody's any more. */
    void (*revived)(void *context, const cmq_pop_revived *revived);
    /* There are retry topics to be made (cmq_pop_revive_take_wanted): wake whoever makes them. Must be short, and call
     * nothing here. */
    void (*wanted)(void *context);
} cmq_pop_revive_calls;

/* Zero means the default in brackets. */
typedef struct cmq_pop_revive_options {
    cmq_store *store;                    /* open for writing; store, tables and offsets outlive the service */
    cmq_tables *tables;
    cmq_offsets *offsets;
    cmq_pop_log log;                     /* where checkpoints are put again; its texts are copied */
    const char *broker;                  /* brokerName: of acks that name none */
    uint32_t queues;                     /* reviveQueueNum [8] */
    bool retry_v2;                       /* enableRetryTopicV2 */
    bool give_up;                        /* skipWhenCKRePutReachMaxTimes: a message that was put again 17 times is
                                          * passed over */
    uint32_t checkpoints_max;            /* unfinished ones of a queue in memory [4,000,000] */
    cmq_clock clock;                     /* .now_ms NULL: the system's */
    bool manual;                         /* no thread: the test calls cmq_pop_revive_step */
    cmq_pop_revive_calls calls;
} cmq_pop_revive_options;

cmq_status CMQ_MUST_CHECK cmq_pop_revive_create(cmq_pop_revive **revive_out, const cmq_pop_revive_options *options);
cmq_status CMQ_MUST_CHECK cmq_pop_revive_start(cmq_pop_revive *revive);
/* Revive nothing more; put messages are confirmed and committed when it returns. */
void cmq_pop_revive_stop(cmq_pop_revive *revive);
void cmq_pop_revive_destroy(cmq_pop_revive *revive);   /* stops it, too; NULL is fine */

/* Manual: read what came, revive what is complete. *next_due_ms_out: when to call again (INT64_MAX: when something
 * comes). CMQ_ERR_DISK_FULL, CMQ_ERR_MEMORY, CMQ_ERR_IO: some is left to do. CMQ_ERR_FENCED: never again. */
cmq_status CMQ_MUST_CHECK cmq_pop_revive_step(cmq_pop_revive *revive, int64_t *next_due_ms_out);

/* Look now, whatever the time: the clock that was given has moved, the timer has caught up, or a retry topic was
 * made. */
void cmq_pop_revive_poke(cmq_pop_revive *revive);

/* ---- retry topics: made by the control plane, which puts them into the tables ---- */

/* The next retry topic to create, with one queue; false when there is none. Then put it into the tables, and poke. A
 * topic is asked for again after a while where it is not made. */
bool cmq_pop_revive_take_wanted(cmq_pop_revive *revive, uint8_t name_out[CMQ_POP_TOPIC_BYTES_MAX], size_t *bytes_out);

/* ---- counters ---- */

typedef enum cmq_pop_revive_state {
    CMQ_POP_REVIVE_IDLE = 0,             /* not started, or stopped */
    CMQ_POP_REVIVE_RUNNING,
    CMQ_POP_REVIVE_RETRYING,             /* something could not be put for now (see the status) */
    CMQ_POP_REVIVE_FENCED
} cmq_pop_revive_state;

typedef struct cmq_pop_revive_counters {
    cmq_pop_revive_state state;
    cmq_status status;                   /* of the last failure while RETRYING or FENCED, else CMQ_OK */
    uint64_t checkpoints, acks;          /* records read; a batch is one */
    uint64_t acks_late;                  /* of checkpoints that are not there: done, or unknown */
    uint64_t revived;                    /* messages */
    uint64_t put_again;                  /* checkpoints of one message */
    uint64_t gone;                       /* messages that are not in the store any more */
    uint64_t skipped;                    /* checkpoints of unknown topics and groups, and messages that were given up */
    uint64_t damaged;                    /* malformed records */
    uint64_t early;                      /* checkpoints revived for want of room, or before a time that cannot be
                                          * theirs */
    uint64_t rounds;                     /* times that it woke up and looked */
    uint64_t unfinished_now;             /* checkpoints in memory */
    uint64_t behind_now;                 /* records that were not read yet */
    int64_t lag_ms;                      /* how long the first unfinished checkpoint has been due; 0: it is not, or
                                          * there is none */
} cmq_pop_revive_counters;
void cmq_pop_revive_count(cmq_pop_revive *revive, cmq_pop_revive_counters *counters_out);

#endif
