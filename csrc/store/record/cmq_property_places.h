/* cmq_property_places: where the separators of a property string are, 64 bytes at a time, as bit masks.
 *
 * Invariant: not a byte outside the block is read.
 * Way:       a block of a property string -> [cmq_property_find_places] -> names and values
 * Threads:   any; pure functions.
 */
#ifndef CMQ_PROPERTY_PLACES_H
#define CMQ_PROPERTY_PLACES_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "store/record/cmq_property.h"

#define CMQ_PROPERTY_BLOCK_BYTES 64

static inline size_t cmq_property_block_bytes(size_t left)
{
    return left < CMQ_PROPERTY_BLOCK_BYTES ? left : CMQ_PROPERTY_BLOCK_BYTES;
}

/* Places of the two separators in a block: bit i is byte i. */
typedef struct cmq_property_places {
    uint64_t name_ends;   /* 0x01 */
    uint64_t pair_ends;   /* 0x02 */
    bool zero;            /* there is a 0x00 */
} cmq_property_places;

/* Bit i of the result is set exactly when byte i of `word` is 0. */
static inline uint64_t cmq_property_zero_bytes(uint64_t word)
{
    const uint64_t low_7 = UINT64_C(0x7F7F7F7F7F7F7F7F);
    const uint64_t found = ~(((word & low_7) + low_7) | word | low_7);
    return (found >> 7) * UINT64_C(0x0102040810204080) >> 56;
}

static inline void cmq_property_find_in_8(const uint8_t *at, unsigned shift, cmq_property_places *found)
{
    uint64_t word;
    memcpy(&word, at, sizeof word);
    found->name_ends |= cmq_property_zero_bytes(word ^ UINT64_C(0x0101010101010101)) << shift;
    found->pair_ends |= cmq_property_zero_bytes(word ^ UINT64_C(0x0202020202020202)) << shift;
    found->zero |= cmq_property_zero_bytes(word) != 0;
}

static inline void cmq_property_find_in_16(const uint8_t *at, unsigned shift, cmq_property_places *found)
{
#if defined(__SSE2__)
    const __m128i bytes = _mm_loadu_si128((const __m128i *)at);
    const int name_ends = _mm_movemask_epi8(_mm_cmpeq_epi8(bytes, _mm_set1_epi8(CMQ_PROPERTY_NAME_END)));
    const int pair_ends = _mm_movemask_epi8(_mm_cmpeq_epi8(bytes, _mm_set1_epi8(CMQ_PROPERTY_PAIR_END)));
    found->name_ends |= (uint64_t)(uint32_t)name_ends << shift;
    found->pair_ends |= (uint64_t)(uint32_t)pair_ends << shift;
    found->zero |= _mm_movemask_epi8(_mm_cmpeq_epi8(bytes, _mm_setzero_si128())) != 0;
#else
    cmq_property_find_in_8(at, shift, found);
    cmq_property_find_in_8(at + 8, shift + 8, found);
#endif
}

/* The separators in at[0, bytes), bytes 1 to 64. The last load overlaps the one before, so that none leaves the
 * block. */
static inline cmq_property_places cmq_property_find_places(const uint8_t *at, size_t bytes)
{
    cmq_property_places found = {0, 0, false};
    if (bytes >= 16) {
        const unsigned last = (unsigned)bytes - 16;
        cmq_property_find_in_16(at, 0, &found);
        if (last > 16) cmq_property_find_in_16(at + 16, 16, &found);
        if (last > 32) cmq_property_find_in_16(at + 32, 32, &found);
        cmq_property_find_in_16(at + last, last, &found);
    } else if (bytes >= 8) {
        cmq_property_find_in_8(at, 0, &found);
        cmq_property_find_in_8(at + bytes - 8, (unsigned)bytes - 8, &found);
    } else {
        for (size_t i = 0; i < bytes; i++) {
            found.name_ends |= (uint64_t)(at[i] == CMQ_PROPERTY_NAME_END) << i;
            found.pair_ends |= (uint64_t)(at[i] == CMQ_PROPERTY_PAIR_END) << i;
            found.zero |= at[i] == 0;
        }
    }
    return found;
}

#endif
