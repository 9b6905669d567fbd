/* cmq_broker: the requests that a broker's loops serve: sends, ends of transactions, pulls, held pulls, progress and
 * offsets of queues.
 *
 *     cmq_net -> request -+-> cmq_send      -> run of sends -> cmq_store_append -> answers, under sync flush when the
 *                         |     disk has them (cmq_pending_replies)
 *                         +-> cmq_txn_end   -> ends of a turn -> commit -> cmq_store_append, op record by cmq_txn
 *                         +-> cmq_pull      -> cmq_queue_scan -> records copied into the connection's output
 *                         |     nothing there: cmq_hold, until cmq_watcher, deadline, close or change
 *                         +-> cmq_offset_requests  -> cmq_offsets, cmq_queue
 *                         +-> everything else, and what needs a topic or group made first -> the control queue
 *
 * The facts that it decides by come from the control plane through cmq_tables; it takes no lock of Python's and waits
 * for nothing.
 *
 * Owns:      per loop the run of sends, the answers that wait for the disk and the holds; one thread that waits for the
 *            disk.
 * Invariant: a send is answered with success only when its message is on disk (flush sync), or in the log (async, or a
 *            message with WAIT=false). Every request is answered once, or handed on once; a one-way request never.
 * Threads:   create, destroy and the calls marked so: any thread. The rest is called by the loops.
 * Source:    upstream's SendMessageProcessor, PullMessageProcessor, ConsumerManageProcessor, AdminBrokerProcessor;
 *            consumption specification 3, remoting specification 2.2, 2.4, 2.6.
 */
#ifndef CMQ_BROKER_H
#define CMQ_BROKER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cmq_bytes.h"
#include "base/cmq_status.h"
#include "broker/delay/cmq_delay.h"
#include "broker/pop/cmq_pop_service.h"
#include "broker/tables/cmq_offsets.h"
#include "broker/tables/cmq_tables.h"
#include "broker/tables/cmq_traffic.h"
#include "broker/timer/cmq_timer.h"
#include "broker/txn/cmq_txn.h"
#include "net/cmq_net.h"
#include "store/cmq_store.h"
#include "store/record/cmq_record.h"

typedef struct cmq_broker cmq_broker;

/* Zero means the default in brackets. Texts are copied. */
typedef struct cmq_broker_options {
    cmq_store *store;                   /* open for writing; outlives the broker */
    cmq_tables *tables;                 /* outlive the broker, too */
    cmq_offsets *offsets;
    cmq_pop_service *pops;                     /* NULL: pops are refused, as without timers; outlive the broker, and are
                                                * started after it was created, stopped before it goes */
    const char *cluster;                /* brokerClusterName, the property CLUSTER of every message */
    const char *name;                   /* brokerName, in the handles of timers; NULL: none are given */
    const char *region;                 /* regionId [DefaultRegion], MSG_REGION */
    const char *broker_ip;              /* brokerIP1, for texts */
    cmq_record_host store_host;         /* the advertised address: in every record and message id */
    bool trace_off;                     /* traceOn=false */
    uint32_t message_bytes_max;         /* maxMessageSize [4 MiB] */
    bool long_polling_off;              /* longPollingEnable=false: hold for short_polling_ms */
    int64_t short_polling_ms;           /* shortPollingTimeMills [1000] */
    int64_t suspend_ms_max;             /* a client's suspendTimeoutMillis counts up to this [300,000] */
    uint32_t holds_max;                 /* of each loop [100,000]; beyond, a pull is answered at once */
    int32_t transfer_count_memory;      /* maxTransferCountOnMessageInMemory [32] */
    int32_t transfer_bytes_memory;      /* maxTransferBytesOnMessageInMemory [262,144] */
    int32_t transfer_count_disk;        /* maxTransferCountOnMessageInDisk [8] */
    int32_t transfer_bytes_disk;        /* maxTransferBytesOnMessageInDisk [65,536] */
    /* messages so far behind the log's end count as on disk [40 % of the machine's memory] */
    int64_t memory_bytes;
    uint32_t sends_waiting_max;         /* sends of one loop that wait for the disk [10,000]; further ones are answered
                                         * with 2 */
    /* bytes that may wait for the disk in all [64 MiB]; further sends are answered with 2 */
    int64_t staging_bytes_max;
    int64_t flush_timeout_ms;           /* syncFlushTimeout [5000]: then a send is answered with 10 */
    cmq_timer *timer;                   /* NULL: timerWheelEnable=false; outlives the broker */
    bool lite_pull_off;                 /* litePullMessageEnable=false */
    cmq_txn *txn;                       /* NULL: half messages are refused; outlives the broker */
    bool property_filter;               /* enablePropertyFilter: pulls filter by SQL92 */
} cmq_broker_options;

cmq_status CMQ_MUST_CHECK cmq_broker_create(cmq_broker **broker_out, const cmq_broker_options *options);

/* After the server whose handler it is was destroyed. */
void cmq_broker_destroy(cmq_broker *broker);

/* The handler for cmq_net_options: one server's. */
cmq_net_handler cmq_broker_handler(cmq_broker *broker);

/* Any thread: a group's subscriptions were changed in the tables, or its consumers have gone: pulls held for it are
 * answered, so that their clients ask again. Empty: every group. */
cmq_status CMQ_MUST_CHECK cmq_broker_group_changed(cmq_broker *broker, cmq_slice group);

/* Any thread: cmq_offsets_reset; pops that are held for the queue look again. A held pull's client learns of it by its
 * next pull. */
cmq_status CMQ_MUST_CHECK cmq_broker_reset_offset(cmq_broker *broker, const cmq_offset_key *key, int64_t offset,
                                                  cmq_offset_asker asker);

/* Any thread: store one message on the broker's own behalf (append->count is 1, its properties are CMQ_COLUMN_ONE or
 * none): parked where it has a DELAY above 0 or is a timer (cmq_timer_admit), without the properties that sends are
 * given. Waits for the disk under sync flush. */
cmq_status CMQ_MUST_CHECK cmq_broker_put(cmq_broker *broker, const cmq_append *append, cmq_appended *appended_out);

typedef struct cmq_broker_counters {
    uint64_t sends, send_failures, messages_in, message_bytes_in;    /* requests answered with success; the others;
                                                                      * messages and their records' bytes */
    uint64_t pulls, pulls_found, messages_out, message_bytes_out;
    uint64_t pops, pops_found, pop_acks, pop_changes;                /* requests, held ones once more each time they
                                                                      * look; acknowledged messages; changed ones */
    uint64_t pop_acks_refused;                                       /* acks, changes and entries of many that cannot be
                                                                      * of a message that was popped here */
    uint64_t pops_held, pop_wakes, pop_timeouts, pops_refused;       /* as those of pulls: a wake may find nothing */
    uint64_t pops_held_now;
    uint64_t held, hold_wakes, hold_timeouts, hold_refused;          /* requests that were held; ended by a message; by
                                                                      * time; not held for want of room */
    uint64_t holds_now;
    uint64_t waiting_for_disk;                                       /* sends now */
    uint64_t control;                                                /* requests handed on */
    uint64_t commits, rollbacks, ends_refused;                       /* of transactions: those that took effect;
                                                                      * refused requests */
    uint64_t ends_unwritten;                                         /* ends whose op record could not be written yet */
    uint64_t commits_undelivered;                                    /* into CMQ_TOPIC_UNDELIVERED, as there is no such
                                                                      * topic or queue any more */
} cmq_broker_counters;

/* Any thread. */
void cmq_broker_count(const cmq_broker *broker, cmq_broker_counters *counters_out);

/* Any thread: messages in by topic and out by topic and group, loop by loop: one name may come once per loop. *loop and
 * *cursor are 0 at first; 0: no more. Names live as long as the server's loops. */
uint32_t cmq_broker_list_traffic(const cmq_broker *broker, uint32_t *loop, uint32_t *cursor, cmq_traffic_item *items,
                                 uint32_t capacity);

#endif
