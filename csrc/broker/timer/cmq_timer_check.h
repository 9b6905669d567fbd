/* cmq_timer_check: `config/timercheck`, how far the timers are.
 *
 * A page of 4096 bytes of which 56 are upstream's. A checksum of them stands behind, with their version: a Java broker
 * writes a new version and leaves ours, and its numbers are believed then. All lies in one sector, written in place: a
 * write is there whole, or not at all.
 *
 * Threads: one at a time; the caller sees to it.
 * Source: specification store 9.7; upstream's TimerCheckpoint.
 */
#ifndef CMQ_TIMER_CHECK_H
#define CMQ_TIMER_CHECK_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cmq_file.h"
#include "base/cmq_status.h"

#define CMQ_TIMER_CHECK_BYTES 4096
#define CMQ_TIMER_CHECK_WIRE_BYTES 56   /* and of requests (code 60) */

typedef struct cmq_timer_check {
    bool present;                /* there is a file */
    bool damaged;                /* its numbers are not those that we wrote, and count as absent */
    int64_t read_ms;             /* lastReadTimeMs: slots before are delivered */
    int64_t log_end;             /* lastTimerLogFlushPos */
    int64_t queue_offset;        /* lastTimerQueueOffset: messages before are entered */
    int64_t master_queue_offset; /* masterTimerQueueOffset: of a master the same */
    int64_t state_version, timestamp_ms, counter;   /* dataVersion */
} cmq_timer_check;

void cmq_timer_check_encode(const cmq_timer_check *check, uint8_t into[CMQ_TIMER_CHECK_WIRE_BYTES]);

/* Absent: all zero. A file that ends early: missing bytes are zero. */
cmq_status CMQ_MUST_CHECK cmq_timer_check_load(cmq_fs *fs, const char *root, cmq_timer_check *check_out);

/* Durable on return. `config/` is made when missing. */
cmq_status CMQ_MUST_CHECK cmq_timer_check_store(cmq_fs *fs, const char *root, cmq_timer_check *check);

#endif
