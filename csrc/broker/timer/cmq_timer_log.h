/* cmq_timer_log: `timerlog/`: a unit of 52 bytes per timer that was entered, in order; units of one slot are chained
 * backwards.
 *
 * Positions run over all files; a file is named by its first. Units are collected and written behind
 * (cmq_timer_log_flush); files are mapped for reading, so memory does not grow with what is pending.
 *
 * Owns:      the files and their mappings, the units not written yet.
 * Invariant: bytes behind the end read as zero, so that no old unit comes back when the end passes it.
 * Threads:   one at a time.
 * Source:    specification store 9.6; upstream's TimerLog, TimerMessageStore.recoverAndRevise.
 */
#ifndef CMQ_TIMER_LOG_H
#define CMQ_TIMER_LOG_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cmq_file.h"
#include "base/cmq_status.h"

#define CMQ_TIMER_UNIT_BYTES 52
#define CMQ_TIMER_LOG_FILE_BYTES INT64_C(104857600)

enum {   /* bits of magic */
    CMQ_TIMER_UNIT_DEFAULT = 1,
    CMQ_TIMER_UNIT_ROLL = 2,
    CMQ_TIMER_UNIT_DELETE = 4
};

typedef struct cmq_timer_log cmq_timer_log;

typedef struct cmq_timer_unit {
    int64_t previous;        /* of its slot; -1: none */
    int32_t magic;
    int64_t write_ms;        /* when it was entered, rounded to the precision */
    int32_t delay_ms;        /* its slot's time is write_ms + this */
    int64_t phy;             /* the parked record */
    int32_t bytes;
    int32_t topic_hash;      /* of REAL_TOPIC */
} cmq_timer_unit;

void cmq_timer_unit_encode(const cmq_timer_unit *unit, uint8_t into[CMQ_TIMER_UNIT_BYTES]);
/* The unit at `position`; false for what no unit can be. */
bool cmq_timer_unit_decode(const uint8_t at[CMQ_TIMER_UNIT_BYTES], int64_t position, cmq_timer_unit *unit_out);

/* List and map the files. The end is that of the last file until cmq_timer_log_recover says better. file_bytes is for
 * new files; those that are there have one length each but the last's, which counts for them. CMQ_ERR_SETTING: lengths
 * or names do not fit together. */
cmq_status CMQ_MUST_CHECK cmq_timer_log_open(cmq_timer_log **log_out, cmq_fs *fs, const char *root, int64_t file_bytes);
void cmq_timer_log_close(cmq_timer_log *log);   /* without a flush; NULL is fine */

/* The log is whole up to the first unit that is invalid, or whose record does not end before `phy_end`; cut there.
 * Files behind are removed. */
cmq_status CMQ_MUST_CHECK cmq_timer_log_recover(cmq_timer_log *log, int64_t phy_end);
/* Cut it where it begins: the queue has all that counts. */
static inline cmq_status CMQ_MUST_CHECK cmq_timer_log_empty(cmq_timer_log *log)
{
    return cmq_timer_log_recover(log, INT64_MIN / 2);
}

int64_t cmq_timer_log_file_bytes(const cmq_timer_log *log);
int64_t cmq_timer_log_min(const cmq_timer_log *log);   /* of what is there: [min, end) */
int64_t cmq_timer_log_end(const cmq_timer_log *log);

/* The unit at a position; false when there is none. */
bool cmq_timer_log_read(const cmq_timer_log *log, int64_t position, cmq_timer_unit *unit_out);
/* The position of the unit at or behind `position` (blanks at files' ends are passed over), or before it; -1: there is
 * none. */
int64_t cmq_timer_log_next(const cmq_timer_log *log, int64_t position);
int64_t cmq_timer_log_previous(const cmq_timer_log *log, int64_t position);

/* Add a unit. On failure nothing was added. */
cmq_status CMQ_MUST_CHECK cmq_timer_log_append(cmq_timer_log *log, const cmq_timer_unit *unit, int64_t *position_out);

/* Write and sync what was added. */
cmq_status CMQ_MUST_CHECK cmq_timer_log_flush(cmq_timer_log *log);

/* Delete files, never the last, whose last unit's record lies before `phy_min`. */
cmq_status CMQ_MUST_CHECK cmq_timer_log_expire(cmq_timer_log *log, int64_t phy_min);

#endif
