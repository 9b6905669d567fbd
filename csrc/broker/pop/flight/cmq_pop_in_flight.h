/* cmq_pop_in_flight: how many messages of one lane are in flight, since when, and until when: a few spans of pop times
 * with a count each.
 *
 * A message is counted when it is popped, by the time of its pop and its invisible time, and counted off by the same,
 * which its handle names. So the end of a pop of before the broker's start, or of one that is over, counts nothing off
 * that another pop brought. Counts are exact unless the clock is set back while all spans are taken: then some may stay
 * counted until the broker restarts.
 *
 * Cost:      328 bytes, whatever is in flight. Where there are more pop times than spans, the two of one invisible time
 *            that lie closest become one; where all invisible times differ, the oldest two become the one that is
 *            mixed. So the oldest message may be reported older than it is, and the first that is due later, by less
 *            than the breadth of its span: of one invisible time two sevenths of what all lay in when it was joined, at
 *            most.
 * Threads:   one at a time.
 * Way:       cmq_pop_buffer -> [cmq_pop_in_flight] -> cmq_pop_buffer_list
 */
#ifndef CMQ_POP_IN_FLIGHT_H
#define CMQ_POP_IN_FLIGHT_H

#include <stdint.h>

#define CMQ_POP_AGES 8u
#define CMQ_POP_AGES_MIXED INT64_C(-1)

typedef struct cmq_pop_age {
    int64_t first_ms, last_ms;           /* pop times */
    int64_t invisible_ms;                /* of all in it; CMQ_POP_AGES_MIXED: they differ */
    int64_t due_ms;                      /* when the last of them is over */
    uint32_t count;                      /* above 0 */
} cmq_pop_age;

/* All zero: nothing is in flight. At most one span is mixed. */
typedef struct cmq_pop_in_flight {
    cmq_pop_age spans[CMQ_POP_AGES];     /* by first_ms */
    uint32_t span_count;
    uint32_t in_flight;                  /* of all spans */
} cmq_pop_in_flight;

void cmq_pop_in_flight_add(cmq_pop_in_flight *ages, uint32_t count, int64_t pop_ms, int64_t invisible_ms);

/* Count off: at most as many as are there. */
void cmq_pop_in_flight_take(cmq_pop_in_flight *ages, uint32_t count, int64_t pop_ms, int64_t invisible_ms);

/* -1: nothing is in flight. Else the first pop time, and when the first comes back: neither later than that, nor
 * earlier than this. */
int64_t cmq_pop_in_flight_oldest_ms(const cmq_pop_in_flight *ages);
int64_t cmq_pop_in_flight_due_ms(const cmq_pop_in_flight *ages);

#endif
