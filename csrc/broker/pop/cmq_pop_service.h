/* cmq_pop_service: state that all pops of a broker share: the buffer, the log it writes to, ordered batches, the
 * revive, and their timer threads.
 *
 *     loops: pop, ack, change -> [buffer, ordered, log] <- thread: cmq_pop_buffer_step, 5 ms after it where the disk is
 *     awaited, else when something is due
 *                                                       <- thread: cmq_pop_revive
 *
 * Owns:      cmq_pop_buffer, cmq_pop_revive, one thread of its own. It needs timers: without them there are no pops.
 * Invariant: stop leaves nothing in memory: unfinished popped messages are in the log, and the next broker of the store
 *            revives them.
 * Threads:   create, start, stop, destroy: one. All others: any.
 * Way:       cmq_pop, cmq_pop_ack -> [cmq_pop_service] -> cmq_pop_buffer, cmq_pop_sink, cmq_pop_revive
 * Source:    consumption specification 4.8, 4.9, 4.14.
 */
#ifndef CMQ_POP_SERVICE_H
#define CMQ_POP_SERVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cmq_clock.h"
#include "base/cmq_status.h"
#include "broker/pop/flight/cmq_pop_buffer.h"
#include "broker/pop/flight/cmq_pop_fifo.h"
#include "broker/pop/flight/cmq_pop_fifo_table.h"
#include "broker/pop/revive/cmq_pop_revive.h"
#include "broker/tables/cmq_offsets.h"
#include "broker/tables/cmq_tables.h"
#include "broker/timer/cmq_timer.h"
#include "store/cmq_store.h"

typedef struct cmq_pop_service cmq_pop_service;

/* Zero means the default in brackets. Texts are copied; everything else that is named outlives the pops. */
typedef struct cmq_pop_service_options {
    cmq_store *store;                    /* open for writing */
    cmq_tables *tables;
    cmq_offsets *offsets;
    cmq_pop_fifo_table *order;
    cmq_timer *timer;
    const char *cluster;                 /* in the revive topic's name */
    const char *broker;                  /* brokerName, in handles and records */
    cmq_record_host host;                /* of the records that are stored */
    cmq_clock clock;                     /* .now_ms NULL: the system's */
    bool manual;                         /* no threads: the test calls cmq_pop_service_step */
    uint32_t revive_queues;              /* reviveQueueNum [8]: checkpoints of new pops go to these */
    uint32_t revive_queues_read;         /* as many as there ever were [revive_queues]: they are read, too, as are those
                                          * that the store has */
    bool merge;                          /* enablePopBufferMerge */
    int64_t stay_ms;                     /* popCkStayBufferTime [10,000] */
    int64_t stay_out_ms;                 /* popCkStayBufferTimeOut [3,000] */
    uint32_t merged_max;                 /* popCkMaxBufferSize [200,000] */
    uint32_t lane_max;                   /* popCkOffsetMaxQueueSize [20,000] */
    bool retry_v2;                       /* enableRetryTopicV2 */
    bool retry_v1_off;                   /* retrieveMessageFromPopRetryTopicV1=false */
    int32_t retry_percent;               /* popFromRetryProbability [20]; below 0: 0 */
    bool begin_late;                     /* initPopOffsetByCheckMsgInMem=false */
    uint32_t in_flight_max;              /* popInflightMessageThreshold where enablePopMessageThreshold is on; 0: no
                                          * limit */
    uint32_t waits_max;                  /* maxPopPollingSize [100,000], of each loop */
    uint32_t waits_key_max;              /* popPollingSize [1,024] */
    bool give_up;                        /* skipWhenCKRePutReachMaxTimes */
} cmq_pop_service_options;

cmq_status CMQ_MUST_CHECK cmq_pop_service_create(cmq_pop_service **pops_out, const cmq_pop_service_options *options);
cmq_status CMQ_MUST_CHECK cmq_pop_service_start(cmq_pop_service *pops);
/* Revive nothing more, store what is in memory, end the threads. The status is that of storing; stopped it is in any
 * case. */
cmq_status cmq_pop_service_stop(cmq_pop_service *pops);
void cmq_pop_service_destroy(cmq_pop_service *pops);   /* loses the state in memory, like a kill: stop it first; NULL is
                                                        * fine */

/* Manual: one step of both threads. The next step returns a status other than CMQ_OK, too. */
cmq_status CMQ_MUST_CHECK cmq_pop_service_step(cmq_pop_service *pops);

/* Set the function to call when messages that a group may pop were revived. Called by the revive's thread; set before
 * the start, cleared by NULL after the stop. */
typedef void (*cmq_pop_service_revived)(void *context, cmq_slice topic, cmq_slice group);
void cmq_pop_service_on_revived(cmq_pop_service *pops, cmq_pop_service_revived call, void *context);

/* ---- the loops ---- */

/* with the defaults filled in */
const cmq_pop_service_options *cmq_pop_service_options_of(const cmq_pop_service *pops);
int64_t cmq_pop_service_now_ms(cmq_pop_service *pops);
/* The latest time that a handle of this broker may have: now, or later where the clock was set back. */
int64_t cmq_pop_service_latest_ms(cmq_pop_service *pops);
int64_t cmq_pop_service_invisible_ms_max(const cmq_pop_service *pops);             /* the timer's horizon */
int32_t cmq_pop_service_next_revive_queue(cmq_pop_service *pops);
cmq_pop_buffer *cmq_pop_service_buffer(cmq_pop_service *pops);
const cmq_pop_fifo *cmq_pop_service_ordered(const cmq_pop_service *pops);
/* Store checkpoints or acks as they are; *stored_out: so many of them, all unless it fails. */
cmq_status CMQ_MUST_CHECK cmq_pop_service_store(cmq_pop_service *pops, const cmq_pop_store_item *items, uint32_t count,
                                                uint32_t *stored_out);
/* The buffer was given something: look after it by then. */
void cmq_pop_service_wanted_by(cmq_pop_service *pops, int64_t due_ms);

/* ---- the control plane ---- */

/* The next retry topic to create with one queue; then put it into the tables, then call cmq_pop_service_topic_made;
 * false: none. */
bool cmq_pop_service_take_wanted(cmq_pop_service *pops, uint8_t name_out[CMQ_POP_TOPIC_BYTES_MAX], size_t *bytes_out);
void cmq_pop_service_topic_made(cmq_pop_service *pops);

/* A topic or a group (the other empty: any) is no more. */
void cmq_pop_service_forget(cmq_pop_service *pops, cmq_slice topic, cmq_slice group);

/* Is a pop of this time of a topic that was deleted since (cmq_pop_forgotten)? */
bool cmq_pop_service_is_former(cmq_pop_service *pops, cmq_slice topic, int64_t pop_ms);

typedef struct cmq_pop_service_counters {
    cmq_pop_buffer_counters buffer;
    cmq_pop_revive_counters revive;
} cmq_pop_service_counters;
void cmq_pop_service_count(cmq_pop_service *pops, cmq_pop_service_counters *counters_out);

#endif
