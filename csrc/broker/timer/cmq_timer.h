/* cmq_timer: messages that are delivered at a time: parked in rmq_sys_wheel_timer, entered into the timer wheel, put
 * into their own topic when it has come.
 *
 *   send with TIMER_DELAY_MS=1500 -> cmq_timer_park   -> rmq_sys_wheel_timer, queue 0, with TIMER_OUT_MS, REAL_TOPIC
 *                                                        and REAL_QID
 *   parked record                 -> the service      -> a unit in timerlog/, its slot in timerwheel (a unit names the
 *                                                        one before it in its slot)
 *   the slot's time is over       -> the service      -> REAL_TOPIC, REAL_QID; a timer beyond the roll window -> parked
 *                                                        again, until it is within
 *
 * One thread enters what was parked and delivers what is due; it sleeps until the earliest slot with something in it,
 * or until something is parked. A slot's deletions (recalls) are looked at first, then its messages in the order in
 * which they were parked, in batches that wait for the disk once.
 *
 * Files, as upstream's: `timerwheel`, `timerlog/`, `config/timercheck`; written every flush_interval_ms where something
 * changed, in this order: the store (where messages were delivered), units, slots, check. So work that the check covers
 * is done; later work is found in the log and in the queue again. At least once: a slot that was delivered after the
 * last check is delivered again after a crash, as upstream does.
 *
 * More careful than upstream: a slot that was not delivered yet is never written over, however long the broker was down
 * (upstream gives up after seven days); the clock may jump back; the wheel is made again from the log at each start, a
 * log that is lost, or that wheel or queue contradict, from the queue; a message that the check forgot but the log has
 * is not entered twice.
 *
 * Failing: disk full, no memory: tried again every second, nothing skipped. A fenced store, or a sync of ours that
 *          failed: it stops, and says so. A parked record that cannot be delivered (gone, damaged, without REAL_TOPIC,
 *          too large) is passed over and counted.
 * Threads: one of its own, unless manual. All calls: any thread, but destroy, and step (one at a time).
 * Way:     cmq_send -> park -> store … [cmq_timer] -> store -> who waits for REAL_TOPIC
 * Source:  specification store 9.4-9.8, consumption 2.11; upstream's TimerMessageStore, HookUtils.
 */
#ifndef CMQ_TIMER_H
#define CMQ_TIMER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cmq_bytes.h"
#include "base/cmq_clock.h"
#include "base/cmq_status.h"
#include "broker/tables/cmq_tables.h"
#include "broker/timer/cmq_timer_check.h"
#include "store/cmq_store.h"

#define CMQ_TOPIC_TIMER "rmq_sys_wheel_timer"

typedef struct cmq_timer cmq_timer;

#define CMQ_TIMER_DELAY_MS_MAX INT64_C(259200000)

/* Zero means the default in brackets. */
typedef struct cmq_timer_options {
    cmq_store *store;                /* open for writing; outlives the service */
    cmq_clock clock;                 /* .now_ms NULL: the system's */
    cmq_tables *tables;              /* which topics there are; NULL: all that is parked is delivered. Outlives the
                                      * service */
    bool manual;                     /* no thread: the test calls cmq_timer_step */
    int32_t precision_ms;            /* timerPrecisionMs [1000]: a slot */
    int64_t delay_ms_max;            /* timerMaxDelaySec [3 days: CMQ_TIMER_DELAY_MS_MAX] */
    int32_t roll_window_slots;       /* timerRollWindowSlot [172,800]; outside 2 … 604,740: 604,740 */
    int32_t slot_messages;           /* timerCongestNumEachSlot [2^31 - 1]: from so many on some are refused, from twice
                                      * as many on all */
    int32_t flush_interval_ms;       /* timerFlushIntervalMs [1000] */
    int64_t log_file_bytes;          /* mappedFileSizeTimerLog [104,857,600] */
} cmq_timer_options;

/* ---- parking: pure ---- */

#define CMQ_TIMER_EXTRA_BYTES_MAX 512u
/* The most that delivery and rolling add to a message's properties: TIMER_ENQUEUE_MS, TIMER_DEQUEUE_MS,
 * TIMER_ROLL_TIMES. */
#define CMQ_TIMER_DELIVERY_BYTES_MAX 128u

typedef struct cmq_timer_parked {
    cmq_slice topic;                 /* CMQ_TOPIC_TIMER; static */
    int32_t queue_id;                /* 0 */
    int64_t out_ms;                  /* TIMER_OUT_MS: delivered when this slot is over */
    cmq_slice extra;                 /* encoded pairs to append behind the message's properties
                                      * (cmq_append.properties_more): TIMER_OUT_MS, REAL_TOPIC, REAL_QID. In `bytes` */
    uint8_t bytes[CMQ_TIMER_EXTRA_BYTES_MAX];
} cmq_timer_parked;

/* The parking place of a message due at `deliver_ms`. CMQ_END: its time has come, send it as it is. CMQ_ERR_ARGUMENT:
 * further away than delay_ms_max, in upstream's words. CMQ_ERR_TOPIC when the topic has more than 255 bytes. Of the
 * options precision_ms and delay_ms_max count. */
cmq_status CMQ_MUST_CHECK cmq_timer_park(const cmq_timer_options *options, cmq_slice topic, int32_t queue_id,
                                         int64_t deliver_ms, int64_t now_ms, cmq_timer_parked *parked_out);
/* The same however late it is: timers beyond the horizon are rolled. */
cmq_status CMQ_MUST_CHECK cmq_timer_park_late(const cmq_timer_options *options, cmq_slice topic, int32_t queue_id,
                                              int64_t deliver_ms, int64_t now_ms, cmq_timer_parked *parked_out);

/* A message's properties about its time; absent ones are empty. */
typedef struct cmq_timer_asked {
    cmq_slice delay_sec, delay_ms, deliver_ms;   /* TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS: the first that is
                                                  * there counts */
    cmq_slice delete_key;                        /* TIMER_DEL_UNIQKEY */
    cmq_slice out_ms;                            /* TIMER_OUT_MS: it was a timer, and is one no more */
} cmq_timer_asked;

/* Note a property if it is one of these. */
void cmq_timer_ask(cmq_timer_asked *asked, cmq_slice name, cmq_slice value);
bool cmq_timer_is_asked(const cmq_timer_asked *asked);

/* cmq_timer_park by properties, and only where the slot has room; `timer` NULL: timers are off. CMQ_END: no timer, or
 * due: send it as it is. CMQ_ERR_SETTING: off. CMQ_ERR_ARGUMENT: illegal. CMQ_ERR_LIMIT: too many at that time. All
 * with upstream's text. */
cmq_status CMQ_MUST_CHECK cmq_timer_admit(cmq_timer *timer, const cmq_timer_asked *asked, cmq_slice topic,
                                          int32_t queue_id, cmq_timer_parked *parked_out);

/* ---- the service ---- */

/* Read the files and recover. CMQ_ERR_SETTING: the wheel has another length. CMQ_ERR_CORRUPT: invalid file names. */
cmq_status CMQ_MUST_CHECK cmq_timer_create(cmq_timer **timer_out, const cmq_timer_options *options);
cmq_status CMQ_MUST_CHECK cmq_timer_start(cmq_timer *timer);
/* Deliver nothing more, and write the files. The status is that of writing; stopped it is in any case. */
cmq_status cmq_timer_stop(cmq_timer *timer);
void cmq_timer_destroy(cmq_timer *timer);   /* without writing: stop it before; NULL is fine */

/* Manual: enter what was parked, deliver what is due, write the files when it is time. *next_due_ms_out: when to call
 * again (INT64_MAX: when something is parked). CMQ_ERR_DISK_FULL, CMQ_ERR_MEMORY, CMQ_ERR_IO: some is left to do.
 * CMQ_ERR_FENCED: never again. */
cmq_status CMQ_MUST_CHECK cmq_timer_step(cmq_timer *timer, int64_t *next_due_ms_out);

/* Look now, whatever the time: the clock that was given has moved. */
void cmq_timer_poke(cmq_timer *timer);

/* Is everything delivered that was due, and entered that was parked, up to the last second (or slot, where that is
 * longer)? Upstream's "dequeue behind <= 0 and enqueue behind <= 0". */
bool cmq_timer_caught_up(cmq_timer *timer);

typedef enum cmq_timer_state {
    CMQ_TIMER_IDLE = 0,          /* not started, or stopped */
    CMQ_TIMER_RUNNING,
    CMQ_TIMER_RETRYING,          /* something could not be done for now (see the status) */
    CMQ_TIMER_FENCED
} cmq_timer_state;

typedef struct cmq_timer_counters {
    cmq_timer_state state;
    cmq_status status;           /* of the last failure while RETRYING or FENCED, else CMQ_OK */
    uint64_t entered;            /* into the wheel */
    uint64_t delivered;          /* … of them late: their time was over before they were entered */
    uint64_t late;
    uint64_t rolled;             /* parked again */
    uint64_t recalled;           /* not delivered, as a deletion said */
    uint64_t skipped;            /* passed over: see "Failing" */
    uint64_t undelivered;        /* of those delivered: into CMQ_TOPIC_UNDELIVERED, as there was no such topic, queue or
                                  * permission */
    bool remade;                 /* the files did not agree at the start: timers were entered again from the queue */
    uint64_t rounds;             /* times that it woke up and looked */
    int64_t pending;             /* in the wheel now; deletions count as -1 */
    int64_t read_behind_ms;      /* how late it is: 0 when nothing is due */
    int64_t queue_behind;        /* parked, but not entered */
} cmq_timer_counters;
void cmq_timer_count(cmq_timer *timer, cmq_timer_counters *counters_out);

const cmq_timer_options *cmq_timer_options_of(const cmq_timer *timer);   /* with the defaults filled in */

/* As timercheck was last written. */
void cmq_timer_check_of(cmq_timer *timer, cmq_timer_check *check_out);

#endif
