/* cmq_tail_pool: the memory of queue tails: rings of units in a few sizes, handed out, taken back and handed out again.
 *
 * Owns:       every ring until the pool is destroyed.
 * Invariant:  a ring's memory stays readable, and its capacity and unit size stay what they are, until the pool is
 *             destroyed, also after it was given back. So a reader that came too late reads words of another queue,
 *             never freed memory, and finds that out afterwards (cmq_queue_tail_copy). This is what lets tails grow,
 *             shrink and vanish without waiting for readers.
 * Threads:    take and give: the writer. The words: atomic, see cmq_queue_tail.
 */
#ifndef CMQ_TAIL_POOL_H
#define CMQ_TAIL_POOL_H

#include <stdatomic.h>
#include <stdint.h>

#define CMQ_TAIL_UNITS_FIRST 4            /* the smallest ring: 96 bytes with units of 20 */
#define CMQ_TAIL_UNITS_MAX (1u << 22)     /* the largest: 80 MiB with units of 20 */

/* Units lie in `words` in the byte order of the file, unit_words words each, unit p at slot p mod capacity. */
typedef struct cmq_tailring {
    _Atomic int64_t base;      /* positions below were never in this ring */
    uint32_t capacity;         /* units; a power of two */
    uint32_t unit_words;
    _Atomic uint32_t words[];
} cmq_tailring;

typedef struct cmq_tail_pool cmq_tail_pool;

/* NULL: no memory. Owned: cmq_tail_pool_destroy. */
cmq_tail_pool *cmq_tail_pool_create(void);
void cmq_tail_pool_destroy(cmq_tail_pool *pool);

/* A ring for at least `units` units of `unit_words` words (at most 16). NULL: no memory, or more than
 * CMQ_TAIL_UNITS_MAX. */
cmq_tailring *cmq_tail_pool_take(cmq_tail_pool *pool, uint32_t unit_words, uint32_t units);
void cmq_tail_pool_give(cmq_tail_pool *pool, cmq_tailring *ring);

/* The capacity that a take of `units` would give; 0 when there is none. */
uint32_t cmq_tail_pool_capacity(uint32_t units);

/* Bytes of rings handed out now. */
uint64_t cmq_tail_pool_used_bytes(const cmq_tail_pool *pool);

#endif
