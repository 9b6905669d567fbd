/* cmq_clock: time as a parameter, so that ages, windows and time-outs are tested without waiting.
 *
 * Threads: now_ms may be called from any thread.
 */
#ifndef CMQ_CLOCK_H
#define CMQ_CLOCK_H

#include <stdint.h>

typedef struct cmq_clock {
    int64_t (*now_ms)(void *context);   /* milliseconds since the Unix epoch */
    void *context;
} cmq_clock;

/* The system's wall clock. */
cmq_clock cmq_clock_system(void);

/* A clock that stands where *now_ms stands; the caller owns and moves it (atomically where threads read it). */
cmq_clock cmq_clock_manual(const _Atomic int64_t *now_ms);

static inline int64_t cmq_clock_now_ms(const cmq_clock *clock) { return clock->now_ms(clock->context); }

#endif
