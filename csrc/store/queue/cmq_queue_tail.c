/* cmq_queue_tail: see cmq_queue_tail.h. */
#include "store/queue/cmq_queue_tail.h"

#include "base/cmq_assert.h"

static _Atomic uint32_t *slot_of(cmq_tailring *ring, int64_t position)
{
    return ring->words + (size_t)((uint64_t)position & (ring->capacity - 1)) * ring->unit_words;
}

static void copy_words(cmq_tailring *ring, uint32_t unit_words, int64_t from, uint32_t count, uint32_t *into)
{
    for (uint32_t i = 0; i < count; i++, into += unit_words) {
        const _Atomic uint32_t *slot = slot_of(ring, from + i);
        for (uint32_t w = 0; w < unit_words; w++) into[w] = atomic_load_explicit(slot + w, memory_order_acquire);
    }
}

bool cmq_queue_tail_copy(const cmq_queue_tail *tail, int64_t from, uint32_t count, uint32_t *into)
{
    const uint32_t turns = atomic_load_explicit(&tail->turns, memory_order_acquire);
    cmq_tailring *ring = atomic_load_explicit(&tail->ring, memory_order_acquire);
    if (ring == NULL) return false;
    const int64_t next = atomic_load_explicit(&tail->next, memory_order_acquire);
    if (from < atomic_load_explicit(&ring->base, memory_order_acquire) || from > next || count > next - from)
        return false;
    if (from < next - (int64_t)ring->capacity) return false;
    copy_words(ring, tail->unit_words, from, count, into);
    /* The copy is good if at this moment its slots were neither used again nor the ring somebody else's. The slot of
     * `from` is used again by the put at from + capacity, which goes on while next == from + capacity, and only once
     * flushed. */
    const int64_t next_after = atomic_load_explicit(&tail->next, memory_order_acquire);
    const int64_t safe_above = next_after - (int64_t)ring->capacity;
    if (from < safe_above) return false;
    if (from == safe_above && atomic_load_explicit(&tail->flushed, memory_order_acquire) > from) return false;
    return atomic_load_explicit(&tail->turns, memory_order_acquire) == turns;
}

int64_t cmq_queue_tail_lowest(const cmq_queue_tail *tail)
{
    for (;;) {
        const uint32_t turns = atomic_load_explicit(&tail->turns, memory_order_acquire);
        const cmq_tailring *ring = atomic_load_explicit(&tail->ring, memory_order_acquire);
        const int64_t next = atomic_load_explicit(&tail->next, memory_order_acquire);
        if (ring == NULL) return next;
        int64_t lowest = atomic_load_explicit(&ring->base, memory_order_acquire);
        const int64_t kept = next - (int64_t)ring->capacity;
        if (lowest < kept) lowest = kept;
        if (atomic_load_explicit(&tail->turns, memory_order_acquire) == turns) return lowest;
    }
}

/* Publish a ring. First the ring, then `turns`: a reader that sees the new count sees the new ring, and one that still
 * works with the old ring sees the count move before the pool can hand that ring to another queue. */
static cmq_tailring *publish(cmq_queue_tail *tail, cmq_tailring *ring)
{
    cmq_tailring *old = atomic_load_explicit(&tail->ring, memory_order_relaxed);
    const uint32_t turns = atomic_load_explicit(&tail->turns, memory_order_relaxed);
    atomic_store_explicit(&tail->ring, ring, memory_order_release);
    atomic_store_explicit(&tail->turns, turns + 1, memory_order_release);
    return old;
}

cmq_tailring *cmq_queue_tail_replace(cmq_queue_tail *tail, cmq_tailring *ring)
{
    const int64_t next = atomic_load_explicit(&tail->next, memory_order_relaxed);
    const int64_t flushed = atomic_load_explicit(&tail->flushed, memory_order_relaxed);
    if (ring == NULL) {
        CMQ_ASSERT(flushed == next);
        return publish(tail, NULL);
    }
    cmq_tailring *old = atomic_load_explicit(&tail->ring, memory_order_relaxed);
    int64_t from = cmq_queue_tail_lowest(tail);
    if (from < next - (int64_t)ring->capacity) from = next - (int64_t)ring->capacity;
    CMQ_ASSERT(from <= flushed);
    atomic_store_explicit(&ring->base, from, memory_order_release);
    for (int64_t position = from; position < next; position++) {
        const _Atomic uint32_t *source = slot_of(old, position);
        _Atomic uint32_t *target = slot_of(ring, position);
        for (uint32_t w = 0; w < ring->unit_words; w++)
            atomic_store_explicit(target + w, atomic_load_explicit(source + w, memory_order_relaxed),
                                  memory_order_release);
    }
    return publish(tail, ring);
}

cmq_tailring *cmq_queue_tail_reset(cmq_queue_tail *tail, int64_t position)
{
    cmq_tailring *old = publish(tail, NULL);
    atomic_store_explicit(&tail->flushed, position, memory_order_release);
    atomic_store_explicit(&tail->next, position, memory_order_release);
    return old;
}

void cmq_queue_tail_cut(cmq_queue_tail *tail, int64_t position)
{
    cmq_tailring *ring = atomic_load_explicit(&tail->ring, memory_order_relaxed);
    const int64_t lowest = cmq_queue_tail_lowest(tail);
    CMQ_ASSERT(ring != NULL && position >= lowest && position >= cmq_queue_tail_flushed(tail));
    /* Slots below were used again by units that go now: with a smaller `next` they would look valid. */
    atomic_store_explicit(&ring->base, lowest, memory_order_release);
    atomic_store_explicit(&tail->next, position, memory_order_release);
    atomic_store_explicit(&tail->turns, atomic_load_explicit(&tail->turns, memory_order_relaxed) + 1,
                          memory_order_release);
}

const void *cmq_queue_tail_run(const cmq_queue_tail *tail, int64_t from, uint32_t count, uint32_t *run_out)
{
    cmq_tailring *ring = atomic_load_explicit(&tail->ring, memory_order_acquire);
    CMQ_ASSERT(ring != NULL);
    const uint32_t slot = (uint32_t)((uint64_t)from & (ring->capacity - 1));
    const uint32_t to_wrap = ring->capacity - slot;
    *run_out = count < to_wrap ? count : to_wrap;
    return (const void *)(ring->words + (size_t)slot * ring->unit_words);
}
