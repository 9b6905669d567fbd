/* cmq_queue_tail: the newest units of one queue, on the heap: a ring that one thread fills and any number of threads
 * read.
 *
 *      in the file, dropped     in the file, still here       not in a file yet
 *   ------------------------|----------------------------|------------------------|
 *                         lowest                       flushed                   next
 *
 * Invariant:  every unit in [flushed, next) is in the ring; units below flushed are in the files, and their slots may
 *             be used again.
 * Way:        cmq_queue_put -> [cmq_queue_tail] -> flush, readers
 * Threads:    put, replace: the writer; replace also under the queue's lock, so that no flush reads the ring meanwhile.
 *             `flushed` moves under the queue's lock. copy, lowest: any thread, no locks, never waits: words are
 *             atomic, the writer publishes `next` with release, and a reader checks after it copied that what it copied
 *             was not being overwritten.
 *
 * Why the check holds: each word is stored with release after `next`, `flushed` and `turns` were, and loaded with
 * acquire. So a reader that got a word of a later unit, or of another queue that has this ring now, also gets the
 * `next`, `flushed` or `turns` that forbids it.
 */
#ifndef CMQ_QUEUE_TAIL_H
#define CMQ_QUEUE_TAIL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "store/queue/cmq_tail_pool.h"

#define CMQ_HEAT_TOUCHED 1u   /* since cold rings were last looked for */
#define CMQ_HEAT_NOTED 2u     /* among what this hold of the writer lock put units into (cmq_watches_note) */
#define CMQ_HEAT_LATE_CUT 4u      /* among the late cuts of recovery (cmq_queue_cut_later) … */
#define CMQ_HEAT_LATE_EXT_CUT 8u  /* … and its extension */
#define CMQ_HEAT_LOST_BEGIN 16u   /* recovery: its first files are missing, and the log makes it again */
#define CMQ_HEAT_TURN 224u        /* the turn in which room was made last, counted in these bits */
#define CMQ_HEAT_NEXT_TURN 32u
#define CMQ_MARK_DELETED 1u
#define CMQ_MARK_WATCHED 2u   /* some watcher waits for it */
#define CMQ_MARK_LOST_END 4u  /* recovery: units are missing from its end, and the log makes them again */

/* Embedded in a queue. Positions count units of the queue's files from 0; for a simple queue they are the queue
 * offsets. */
typedef struct cmq_queue_tail {
    _Atomic(cmq_tailring *) ring;   /* NULL: nothing is held, flushed == next */
    _Atomic int64_t next;           /* position of the next unit */
    _Atomic int64_t flushed;        /* units below are in the files */
    _Atomic uint32_t turns;         /* changes of `ring` so far */
    uint8_t unit_words;             /* of a unit in the ring; never changes */
    uint8_t heat;                   /* writer: CMQ_HEAT_… bits */
    _Atomic uint8_t marks;          /* CMQ_MARK_… bits, which are the queue's; these lie here to fill a hole */
    uint8_t kind;                   /* cmq_queue_kind */
} cmq_queue_tail;

static inline int64_t cmq_queue_tail_next(const cmq_queue_tail *tail)
{
    return atomic_load_explicit(&tail->next, memory_order_acquire);
}
static inline int64_t cmq_queue_tail_flushed(const cmq_queue_tail *tail)
{
    return atomic_load_explicit(&tail->flushed, memory_order_acquire);
}

/* writer: where the words of the next unit go, to be stored with release. There is room: next - flushed < capacity. */
static inline _Atomic uint32_t *cmq_queue_tail_slot(const cmq_queue_tail *tail, uint32_t unit_words)
{
    cmq_tailring *ring = atomic_load_explicit(&tail->ring, memory_order_relaxed);
    const uint64_t next = (uint64_t)atomic_load_explicit(&tail->next, memory_order_relaxed);
    return ring->words + (next & (ring->capacity - 1)) * unit_words;
}

/* writer: the words of that slot are stored; readers may see the unit. */
static inline void cmq_queue_tail_publish(cmq_queue_tail *tail)
{
    const int64_t next = atomic_load_explicit(&tail->next, memory_order_relaxed);
    atomic_store_explicit(&tail->next, next + 1, memory_order_release);
}

static inline void cmq_queue_tail_put(cmq_queue_tail *tail, const uint32_t *words, uint32_t unit_words)
{
    _Atomic uint32_t *slot = cmq_queue_tail_slot(tail, unit_words);
    for (uint32_t i = 0; i < unit_words; i++) atomic_store_explicit(slot + i, words[i], memory_order_release);
    cmq_queue_tail_publish(tail);
}

/* reader: copy the words of units [from, from + count). False when they are not, or no longer, all here: below
 * `flushed` look into the files, else try again (the ring was just replaced). */
bool cmq_queue_tail_copy(const cmq_queue_tail *tail, int64_t from, uint32_t count, uint32_t *into);

/* reader: the lowest position that copy can give at this moment; next when there is none. */
int64_t cmq_queue_tail_lowest(const cmq_queue_tail *tail);

/* writer, with the queue's lock: put `ring` in the place of the present one, with all units that fit, those from
 * `flushed` on at least. NULL when every unit is flushed. Returns the old ring for the pool. */
cmq_tailring *cmq_queue_tail_replace(cmq_queue_tail *tail, cmq_tailring *ring);

/* writer, with the queue's lock: an empty tail at `position`, everything below in the files. Returns the old ring for
 * the pool. */
cmq_tailring *cmq_queue_tail_reset(cmq_queue_tail *tail, int64_t position);

/* writer, with the queue's lock: forget the units from `position` on, which are in the ring and in no file. */
void cmq_queue_tail_cut(cmq_queue_tail *tail, int64_t position);

/* With the queue's lock: where the file bytes of unit `from` begin, and how many of `count` units follow it without a
 * wrap. */
const void *cmq_queue_tail_run(const cmq_queue_tail *tail, int64_t from, uint32_t count, uint32_t *run_out);

#endif
