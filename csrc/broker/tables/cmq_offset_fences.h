/* cmq_offset_fences: the connections that know of resets in the offset table, so that a former owner of a queue does
 * not undo a reset.
 *
 * The first pull that is answered with a reset makes a fence. It is pending until a pull begins at the reset's offset,
 * and then known by that pull's connection for CMQ_OFFSETS_FENCE_NS. In that time commits of other connections are
 * ignored. A connection that the fence has not informed and that pulls from another offset missed the reset: it is
 * answered with the committed offset, once. A new fence displaces the oldest.
 *
 * Threads: one at a time, the owner's mutex; `resets` is read without.
 * Way:     cmq_offsets: a pull or a commit while any reset is pending or fenced -> [cmq_offset_fences_find]
 */
#ifndef CMQ_OFFSET_FENCES_H
#define CMQ_OFFSET_FENCES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/cmq_assert.h"
#include "broker/tables/cmq_offsets.h"

#define CMQ_OFFSET_FENCE_INFORMED 4u  /* owners of a queue in the minute after a reset; further ones are not informed */
#define CMQ_OFFSET_RESET_SENDS_MAX 3u /* a client may miss an answer; one that got so many has chosen to be elsewhere */

/* A reset that was sent to a client, and the connection that knows of it. */
typedef struct cmq_offset_fence {
    uint32_t number;                  /* of the entry */
    uint8_t sends;                    /* to conn, while the reset was pending */
    bool known;                       /* by conn; else the reset is pending */
    uint8_t informed_count;
    uint64_t conn;
    uint64_t informed[CMQ_OFFSET_FENCE_INFORMED];   /* connections that began at it, or got it since */
    int64_t until_ns;                 /* known: until then other connections' commits are ignored */
} cmq_offset_fence;

/* All zero: no reset. */
typedef struct cmq_offset_fences {
    cmq_offset_fence of[CMQ_OFFSETS_FENCES_MAX];   /* oldest first */
    uint32_t count;
    _Atomic uint32_t resets;          /* that are pending, and fences */
} cmq_offset_fences;

static inline void cmq_offset_fences_count(cmq_offset_fences *fences, bool more)
{
    if (more) atomic_fetch_add_explicit(&fences->resets, 1, memory_order_release);
    else atomic_fetch_sub_explicit(&fences->resets, 1, memory_order_relaxed);
}

static inline void cmq_offset_fences_drop(cmq_offset_fences *fences, uint32_t at)
{
    CMQ_ASSERT(at < fences->count);
    memmove(&fences->of[at], &fences->of[at + 1], (fences->count - at - 1) * sizeof fences->of[0]);
    fences->count--;
    cmq_offset_fences_count(fences, false);
}

/* NULL: there is none, or none any more. */
static inline cmq_offset_fence *cmq_offset_fences_find(cmq_offset_fences *fences, uint32_t number, int64_t now_ns)
{
    for (uint32_t i = 0; i < fences->count; i++) {
        cmq_offset_fence *found = &fences->of[i];
        if (found->number != number) continue;
        if (!found->known || now_ns < found->until_ns) return found;
        cmq_offset_fences_drop(fences, i);
        return NULL;
    }
    return NULL;
}

static inline void cmq_offset_fences_remove(cmq_offset_fences *fences, uint32_t number)
{
    uint32_t at = 0;
    while (at < fences->count && fences->of[at].number != number) at++;
    if (at < fences->count) cmq_offset_fences_drop(fences, at);
}

/* There is room: CMQ_OFFSETS_FENCES_MAX are not reached. */
static inline cmq_offset_fence *cmq_offset_fences_make(cmq_offset_fences *fences, uint32_t number)
{
    CMQ_ASSERT(fences->count < CMQ_OFFSETS_FENCES_MAX);
    cmq_offset_fences_count(fences, true);
    cmq_offset_fence *made = &fences->of[fences->count++];
    *made = (cmq_offset_fence){.number = number};
    return made;
}

/* Note that a connection knows of the reset. False: it did before, or no further one is noted. */
static inline bool cmq_offset_fence_inform(cmq_offset_fence *fence, uint64_t conn)
{
    for (uint32_t i = 0; i < fence->informed_count; i++)
        if (fence->informed[i] == conn) return false;
    if (fence->informed_count == CMQ_OFFSET_FENCE_INFORMED) return false;
    fence->informed[fence->informed_count++] = conn;
    return true;
}

static inline void cmq_offset_fence_set_known(cmq_offset_fence *fence, cmq_offset_asker asker)
{
    (void)cmq_offset_fence_inform(fence, asker.conn);
    fence->known = true;
    fence->conn = asker.conn;
    fence->until_ns = asker.now_ns + CMQ_OFFSETS_FENCE_NS;
}

#endif
