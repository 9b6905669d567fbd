/* cmq_pop_ages: how many messages of one lane are in flight, and since when: a few spans of pop times with a count each.
 *
 * A message is counted when it is popped, by the time of its pop, and counted off by the same time, which its handle names. So what was popped before
 * the broker started, and whatever else is told of pops that are over, counts nothing off that another pop brought.
 *
 * Cost:      232 bytes, whatever is in flight. Where there are more pop times than spans, the two neighbours that lie closest become one: then the oldest
 *            message may be told older than it is, by less than the breadth of its span: two sevenths of what all lay in when it was joined, at most.
 * Threads:   one at a time.
 * Way:       cmq_pop_buffer -> [cmq_pop_ages] -> cmq_pop_buffer_list
 */
#ifndef CMQ_POP_AGES_H
#define CMQ_POP_AGES_H

#include <stdint.h>

#define CMQ_POP_AGES 8u

/* All zero: nothing is in flight. */
typedef struct cmq_pop_ages {
    int64_t first_ms[CMQ_POP_AGES], last_ms[CMQ_POP_AGES];   /* pop times of a span; spans lie in order, and apart */
    int64_t due_ms[CMQ_POP_AGES];        /* the earliest time when one that was in it comes back */
    uint32_t counts[CMQ_POP_AGES];       /* above 0 */
    uint32_t spans;
    uint32_t in_flight;                  /* of all spans */
} cmq_pop_ages;

void cmq_pop_ages_add(cmq_pop_ages *ages, uint32_t count, int64_t pop_ms, int64_t due_ms);

/* Count off: at most as many as are there. */
void cmq_pop_ages_take(cmq_pop_ages *ages, uint32_t count, int64_t pop_ms);

int64_t cmq_pop_ages_oldest_ms(const cmq_pop_ages *ages);   /* the first pop time; -1: nothing is in flight */
int64_t cmq_pop_ages_due_ms(const cmq_pop_ages *ages);      /* the earliest time when one comes back; -1: nothing is in flight */

#endif
