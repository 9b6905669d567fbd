/* cmq_delay: messages that are delivered later, by level: parked in SCHEDULE_TOPIC_XXXX, put into their own topic when
 * their time has come.
 *
 *   send with DELAY=3     -> cmq_delay_park  -> SCHEDULE_TOPIC_XXXX, queue 2, with REAL_TOPIC and REAL_QID; the unit's
 *                                               tags code is the deliver time
 *   deliver time reached  -> the service     -> REAL_TOPIC, REAL_QID: body, properties, flags, hosts and times of the
 *                                               parked record
 *
 * One thread sleeps until the earliest deliver time of all levels, or until something is parked where a level had
 * nothing. Due messages of a level are appended in batches that wait for the disk once; a level's progress moves when
 * its batch is confirmed.
 *
 * At least once: the control plane writes the progress to delayOffset.json every 10 s and at stop, as upstream does. To
 * make a crash in between redeliver nothing, it writes cmq_delay_mark beside it, a place in the log and the progress
 * that held there; at the next start cmq_delay_recover passes over the deliveries that the log shows behind that place.
 * Without a mark, or with a stale one: upstream's at least once. Between taking progress or mark and writing it, call
 * cmq_store_flush: under async flush a power loss would otherwise take deliveries that are counted as made.
 *
 * Failing: disk full, no memory: tried again every second, nothing skipped. A fenced store: it stops, and says so. A
 *          parked record that cannot be delivered (gone from the log, damaged, without REAL_TOPIC, of an illegal topic
 *          or the half topic, too large) is passed over and counted.
 * Threads:   one of its own, unless manual. All calls: any thread, but destroy, and step (one at a time).
 * Way:       cmq_send -> park -> store … [cmq_delay] -> store -> who waits for REAL_TOPIC
 * Source:    specification store 9.1-9.3, 1.8.5; upstream's ScheduleMessageService.
 */
#ifndef CMQ_DELAY_H
#define CMQ_DELAY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cmq_bytes.h"
#include "base/cmq_clock.h"
#include "base/cmq_status.h"
#include "broker/tables/cmq_tables.h"
#include "store/cmq_store.h"
#include "store/record/cmq_tags_code.h"

/* ---- parking: pure ---- */

#define CMQ_DELAY_EXTRA_BYTES_MAX 512u

typedef struct cmq_delay_parked {
    cmq_slice topic;             /* CMQ_TOPIC_SCHEDULE; static */
    int32_t queue_id;            /* level - 1 */
    int32_t level;
    cmq_slice extra;             /* encoded pairs to append behind the message's properties
                                  * (cmq_append.properties_more): REAL_TOPIC, REAL_QID and, where the level was beyond
                                  * the last one, DELAY. The later of two pairs of a name wins. In `bytes` */
    uint8_t bytes[CMQ_DELAY_EXTRA_BYTES_MAX];
} cmq_delay_parked;

/* Where a message with this DELAY value goes. CMQ_END: not delayed (no level above 0, or a transaction's half or
 * rollback): send it as it is. CMQ_ERR_TOPIC when the topic has more than 255 bytes. */
cmq_status CMQ_MUST_CHECK cmq_delay_park(const cmq_delay_levels *levels, cmq_slice topic, int32_t queue_id,
                                         int32_t sys_flag, cmq_slice delay, cmq_delay_parked *parked_out);

/* ---- delivering ---- */

typedef struct cmq_delay cmq_delay;

typedef struct cmq_delay_options {
    cmq_store *store;            /* its messageDelayLevel counts; outlives the service */
    cmq_clock clock;             /* .now_ms NULL: the system's */
    cmq_tables *tables;          /* which topics there are; NULL: all that is parked is delivered. Outlives the
                                  * service */
    bool manual;                 /* no thread: the test calls cmq_delay_step */
} cmq_delay_options;

/* Levels begin at offset 0; set their progress before cmq_delay_start. */
cmq_status CMQ_MUST_CHECK cmq_delay_create(cmq_delay **delay_out, const cmq_delay_options *options);
cmq_status CMQ_MUST_CHECK cmq_delay_start(cmq_delay *delay);
/* Deliver nothing more; appended messages are confirmed and counted when it returns. Progress can still be read. */
void cmq_delay_stop(cmq_delay *delay);
void cmq_delay_destroy(cmq_delay *delay);   /* stops it, too; NULL is fine */

/* Manual: deliver the messages that are due now. *next_due_ms_out: when to call again (INT64_MAX: when something is
 * parked). CMQ_ERR_DISK_FULL, CMQ_ERR_MEMORY, CMQ_ERR_IO: some could not be delivered yet. CMQ_ERR_FENCED: never
 * again. */
cmq_status CMQ_MUST_CHECK cmq_delay_step(cmq_delay *delay, int64_t *next_due_ms_out);

/* Look now, whatever the time: the clock that was given has moved. */
void cmq_delay_poke(cmq_delay *delay);

/* ---- progress ---- */

typedef struct cmq_delay_progress {
    int32_t level_max;
    int64_t offsets[CMQ_DELAY_LEVELS_MAX + 1];   /* by level: the next queue offset; -1: nothing was ever parked there,
                                                  * not to be listed */
    /* updates so far, divided by 200: the steps of dataVersion's counter */
    int64_t version;
} cmq_delay_progress;
void cmq_delay_progress_of(cmq_delay *delay, cmq_delay_progress *progress_out);

/* Before start. A level that there is not is CMQ_ERR_ARGUMENT; an offset outside its queue is moved into it at the
 * first look. */
cmq_status CMQ_MUST_CHECK cmq_delay_set_progress(cmq_delay *delay, int32_t level, int64_t offset);

/* A progress and a place in the log such that what was delivered up to it lies before the place, all else behind. */
typedef struct cmq_delay_mark {
    int64_t log_end;
    cmq_delay_progress progress;
} cmq_delay_mark;
void cmq_delay_mark_of(cmq_delay *delay, cmq_delay_mark *mark_out);

/* Before start, and after the progress of the mark was set: move each level on by the deliveries that lie in the log
 * behind the mark. CMQ_ERR_OFFSET when the log does not reach back to the mark (or not up to it): nothing was moved. */
cmq_status CMQ_MUST_CHECK cmq_delay_recover(cmq_delay *delay, int64_t log_end, int64_t *deliveries_out);

typedef enum cmq_delay_state {
    CMQ_DELAY_IDLE = 0,          /* not started, or stopped */
    CMQ_DELAY_RUNNING,
    CMQ_DELAY_RETRYING,          /* something could not be delivered for now (see the status) */
    CMQ_DELAY_FENCED
} cmq_delay_state;

typedef struct cmq_delay_counters {
    cmq_delay_state state;
    cmq_status status;           /* of the last failure while RETRYING or FENCED, else CMQ_OK */
    uint64_t delivered;
    uint64_t skipped;            /* passed over: see "Failing" */
    uint64_t undelivered;        /* of those delivered: into CMQ_TOPIC_UNDELIVERED, as there was no such topic, queue or
                                  * permission */
    uint64_t rounds;             /* times that it woke up and looked */
} cmq_delay_counters;
void cmq_delay_count(cmq_delay *delay, cmq_delay_counters *counters_out);

#endif
