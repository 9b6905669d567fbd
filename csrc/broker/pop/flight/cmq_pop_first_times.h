/* cmq_pop_first_times: when the messages of one lane whose invisible time was changed were popped first.
 *
 * A change gives a message a new pop time, so that cmq_pop_in_flight counts it as popped then. A worker that hangs
 * while its messages are kept hidden would never show; so each such message is noted here, by the place and pop time
 * that its handle names, until it is acknowledged or back.
 *
 * Cost:      nothing for a message that was never changed; 24 to 96 bytes for one that was.
 * Limits:    CMQ_POP_FIRSTS_MAX of a lane; one more is not noted, and counts from its last change.
 * Threads:   one at a time.
 * Way:       cmq_pop_buffer -> [cmq_pop_first_times] -> cmq_pop_buffer_list
 */
#ifndef CMQ_POP_FIRST_TIMES_H
#define CMQ_POP_FIRST_TIMES_H

#include <stddef.h>
#include <stdint.h>

#define CMQ_POP_FIRSTS_MAX 16384u

/* NULL: none. */
typedef struct cmq_pop_first_times cmq_pop_first_times;

/* Note a message, which is not noted with this pop time. Without room or memory nothing happens. */
void cmq_pop_first_times_put(cmq_pop_first_times **firsts, int64_t offset, int64_t pop_ms, int64_t first_ms);

/* Forget a message; its first pop, or -1: it is not noted. */
int64_t cmq_pop_first_times_take(cmq_pop_first_times **firsts, int64_t offset, int64_t pop_ms);

int64_t cmq_pop_first_times_oldest_ms(const cmq_pop_first_times *firsts);   /* -1: none */

size_t cmq_pop_first_times_bytes(const cmq_pop_first_times *firsts);

void cmq_pop_first_times_clear(cmq_pop_first_times **firsts);

#endif
