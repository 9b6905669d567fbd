/* cmq_timer_internal: private to the timers' files.
 *
 *   cmq_timer_park      which messages are timers, and how they are parked
 *   cmq_timer_recover   files -> wheel, and from where to go on
 *   cmq_timer_enter     parked records -> units and slots
 *   cmq_timer_deliver   a slot's units -> records
 *   cmq_timer           life, thread, flush, counters
 *
 * Times are slot numbers (time / precision) inside.
 */
#ifndef CMQ_TIMER_INTERNAL_H
#define CMQ_TIMER_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "broker/delay/cmq_alarm.h"
#include "broker/delay/cmq_delay_record.h"
#include "broker/delay/cmq_parked.h"
#include "broker/timer/cmq_timer.h"
#include "broker/timer/cmq_timer_deletes.h"
#include "broker/timer/cmq_timer_log.h"
#include "broker/timer/cmq_timer_wheel.h"
#include "store/follow/cmq_watch.h"

#define CMQ_TIMER_PRECISION_MS 1000
#define CMQ_TIMER_WINDOW_SLOTS_MAX (CMQ_TIMER_SLOTS / 2 - 60)
#define CMQ_TIMER_BATCH 2048u             /* entered, or delivered, before the disk is waited for */
#define CMQ_TIMER_KEY_BYTES_MAX 1024u     /* of "topic+id": a longer one is deleted by nobody */
#define CMQ_TIMER_NEVER_ENTERED INT64_MAX /* TIMER_ENQUEUE_MS of what was late */

/* A slot whose units are being delivered. Its chain runs from the newest to the oldest, and delivery the other way: the
 * way back is remembered by marks, one per block, so that a slot may have millions. */
typedef struct cmq_timer_walk {
    bool active;
    bool parks_again;                     /* all its messages are parked again */
    int64_t number;
    int64_t first;                        /* position of the slot's first unit */
    int64_t *marks;                       /* positions where blocks begin, the newest first */
    uint32_t mark_count, mark_slots;
    uint32_t blocks_left;
    int64_t positions[CMQ_TIMER_BATCH];   /* of the block at hand, the oldest first */
    uint32_t count, next;
    cmq_timer_deletes deletes;
} cmq_timer_walk;

struct cmq_timer {
    cmq_timer_options options;            /* with the defaults filled in */
    cmq_store *store;
    cmq_clock clock;
    cmq_alarm alarm;
    cmq_watcher *watcher;
    cmq_tables_reader *tables;            /* NULL: not known */
    pthread_t thread;
    bool threaded, started;               /* started: there is a thread to join */
    _Atomic bool stopping;
    _Atomic uint64_t admissions;          /* for choosing at random whom a congested slot refuses */

    pthread_mutex_t mutex;                /* the wheel, the counters, `check`: the thread writes, others read */
    cmq_timer_wheel *wheel;
    cmq_timer_counters counters;
    cmq_timer_check check;                /* as it was last written */
    int64_t read_number;                  /* no slot before it is pending */
    int64_t next_pending;                 /* the first that is; INT64_MAX: none */
    int64_t queue_next;                   /* the first queue offset that was not entered */
    int64_t entered_store_ms;             /* when the last that was looked at had been stored */

    /* The thread's, or who calls step. */
    cmq_timer_log *log;
    int64_t write_number;                 /* the slot of now: messages of earlier slots are late */
    uint32_t far_place;                   /* from this place on slots may be pending that lie a turn of the wheel ahead
                                           * (the clock was set back); CMQ_TIMER_SLOTS: none */
    int64_t roll_window;                  /* slots */
    int64_t refill_until;                 /* queue offsets below were entered once, and their units are lost … */
    int64_t refill_number;                /* … those that belong before this slot were delivered */
    int64_t replay;                       /* the unit from which on the log may have what the queue gives again; -1:
                                           * none */
    bool dirty;
    int64_t flush_ms, expire_ms;          /* when to write the files, when to look for old ones */
    cmq_timer_walk walk;
    cmq_unit units[CMQ_TIMER_BATCH];
    uint8_t scratch[CMQ_DELAY_SCRATCH_BYTES], properties[CMQ_DELAY_SCRATCH_BYTES];
};

/* ---- cmq_timer_park.c ---- */

/* When the message wants to be delivered. CMQ_ERR_ARGUMENT, in upstream's words: not a number, or a deletion whose time
 * is over. */
cmq_status CMQ_MUST_CHECK cmq_timer_deliver_time(const cmq_timer_options *options, const cmq_timer_asked *asked,
                                                 int64_t now_ms, int64_t *deliver_ms_out);

/* ---- cmq_timer_recover.c ---- */

cmq_status CMQ_MUST_CHECK cmq_timer_recover(cmq_timer *timer, const char *root, cmq_fs *fs);

/* ---- cmq_timer_enter.c ---- */

static inline cmq_slice cmq_timer_topic(void) { return cmq_slice_of_text(CMQ_TOPIC_TIMER); }
static inline int64_t cmq_timer_unit_number(const cmq_timer *timer, const cmq_timer_unit *unit)
{
    return (unit->write_ms + unit->delay_ms) / timer->options.precision_ms;
}

/* Which slot a parked record belongs into, by its TIMER_OUT_MS; false: it does not say. */
bool cmq_timer_record_number(const cmq_timer *timer, const cmq_record_view *parked, int64_t *number_out);

/* Enter the next messages of the queue. *more_out: there may be more. */
cmq_status CMQ_MUST_CHECK cmq_timer_enter(cmq_timer *timer, bool *more_out);

/* ---- cmq_timer_deliver.c ---- */

/* Deliver what is due, a block of it. *more_out: there is more. */
cmq_status CMQ_MUST_CHECK cmq_timer_deliver(cmq_timer *timer, bool *more_out);

/* Append a parked record to its topic, or, to be rolled, to the timer topic again; without waiting for the disk.
 * *end_out: the record's. */
cmq_status CMQ_MUST_CHECK cmq_timer_append(cmq_timer *timer, const cmq_record_view *parked, int64_t enqueue_ms,
                                           bool roll, int64_t *end_out);

void cmq_timer_walk_free(cmq_timer_walk *walk);

/* ---- cmq_timer.c ---- */

/* After a failed write or sync of our files the content of the disk is unknown, and the next sync may not report it:
 * write no more then. */
static inline cmq_status CMQ_MUST_CHECK cmq_timer_fence(cmq_status status)
{
    /* without a descriptor nothing was written */
    if (status != CMQ_ERR_IO || cmq_is_exhausted(status)) return status;
    const cmq_error error = *cmq_last_error();
    return cmq_fail(
        CMQ_ERR_FENCED,
        "a file of the timers could not be written, so none is delivered until the broker is started again: %s",
        error.text);
}

/* May there be slots so far ahead that the places of nearer ones are taken, and that the wheel's order is not that of
 * time? */
static inline bool cmq_timer_has_far_slots(const cmq_timer *timer) { return timer->far_place < CMQ_TIMER_SLOTS; }

/* Note the wheel's next slot for those who ask. With the mutex. */
static inline void cmq_timer_note_next(cmq_timer *timer)
{
    timer->next_pending = cmq_timer_wheel_next_pending(timer->wheel, timer->read_number);
}

#endif
