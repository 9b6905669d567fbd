/* cmq_offset_makers: how many entries of the offset table the clients of each network made lately, so that no client
 * takes what all share by making groups.
 *
 * Counted by a hash of the network, which is as good as by network: those that make many are few. A created entry
 * counts for half after each CMQ_OFFSETS_MADE_NS, and is not given back: a client that makes and removes has made.
 *
 * Threads: one at a time; the owner's mutex.
 * Way:     cmq_offsets makes an entry -> [cmq_offset_makers_find] -> is its share used up? -> counted
 */
#ifndef CMQ_OFFSET_MAKERS_H
#define CMQ_OFFSET_MAKERS_H

#include <stddef.h>
#include <stdint.h>

#include "base/cmq_assert.h"
#include "base/cmq_name_hash.h"
#include "broker/tables/cmq_offsets.h"

#define CMQ_OFFSET_MAKERS 4096u
#define CMQ_OFFSET_MADE_LEAST 4096u   /* any network may make so many while there is room … */
#define CMQ_OFFSET_MADE_OF_FREE 4u    /* … and beyond as many as a quarter of what nobody has */

typedef struct cmq_offset_maker {
    uint32_t made;
    int64_t since_ns;
} cmq_offset_maker;

/* All zero: nobody made any. */
typedef struct cmq_offset_makers {
    cmq_offset_maker of[CMQ_OFFSET_MAKERS];
} cmq_offset_makers;

/* NULL: the broker itself, which has no share. */
static inline cmq_offset_maker *cmq_offset_makers_find(cmq_offset_makers *makers, cmq_offset_asker asker)
{
    if (asker.network == 0) return NULL;
    CMQ_ASSERT(asker.now_ns > 0);   /* without the time, the next one to ask would count for half of it or nothing */
    cmq_offset_maker *maker = &makers->of[asker.network * CMQ_NAMEHASH_MULTIPLIER >> 52];
    for (; maker->made > 0 && asker.now_ns - maker->since_ns >= CMQ_OFFSETS_MADE_NS;
         maker->since_ns += CMQ_OFFSETS_MADE_NS)
        maker->made /= 2;
    if (maker->made == 0) maker->since_ns = asker.now_ns;
    return maker;
}

static inline cmq_status CMQ_MUST_CHECK cmq_offset_makers_check(const cmq_offset_maker *maker, uint32_t unused)
{
    if (maker == NULL || maker->made < CMQ_OFFSET_MADE_LEAST || maker->made < unused / CMQ_OFFSET_MADE_OF_FREE)
        return CMQ_OK;
    return cmq_fail(CMQ_ERR_LIMIT,
                    "clients of this address made offsets of %u queues within an hour, which is their share: a quarter "
                    "of the %u that are left",
                    maker->made, unused);
}

#endif
