/* cmq_bitmap: sets of small numbers as bits: a checkpoint's acks, the queues of a group, a batch ack's set from the
 * wire.
 *
 * Up to 32 numbers are one word of 32 bits (cmq_bits_*). More are an array of 64-bit words of the caller
 * (cmq_bitmap_*), number i in word i / 64, bit i % 64: in memory, as this machine is little-endian, the bytes of Java's
 * BitSet.toByteArray, number i in byte i / 8 under the mask 1 << i % 8.
 *
 * Threads: any; inline functions over memory of the caller.
 * Source:  upstream's DataConverter (one word), java.util.BitSet (bytes).
 */
#ifndef CMQ_BITMAP_H
#define CMQ_BITMAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* ---- one word ---- */

#define CMQ_BITS_MAX 32u

/* The numbers [0, count); count is CMQ_BITS_MAX at most. */
static inline uint32_t cmq_bits_first(uint32_t count) { return count == 0 ? 0 : UINT32_MAX >> (CMQ_BITS_MAX - count); }

static inline bool cmq_bits_test(uint32_t bits, uint32_t index) { return (bits >> index & 1u) != 0; }
static inline uint32_t cmq_bits_set(uint32_t bits, uint32_t index) { return bits | UINT32_C(1) << index; }
static inline uint32_t cmq_bits_count(uint32_t bits) { return (uint32_t)__builtin_popcount(bits); }

/* Are [0, count) all there? */
static inline bool cmq_bits_all(uint32_t bits, uint32_t count) { return (~bits & cmq_bits_first(count)) == 0; }

/* Take the lowest number out of *bits, which is not 0. For `while (bits != 0)`. */
static inline uint32_t cmq_bits_take(uint32_t *bits)
{
    const uint32_t lowest = (uint32_t)__builtin_ctz(*bits);
    *bits &= *bits - 1;
    return lowest;
}

/* ---- words ---- */

static inline size_t cmq_bitmap_words(size_t bits) { return bits / 64 + (bits % 64 != 0); }

static inline bool cmq_bitmap_test(const uint64_t *words, size_t index)
{
    return (words[index / 64] >> index % 64 & 1u) != 0;
}
static inline void cmq_bitmap_set(uint64_t *words, size_t index) { words[index / 64] |= UINT64_C(1) << index % 64; }
static inline void cmq_bitmap_clear(uint64_t *words, size_t index)
{
    words[index / 64] &= ~(UINT64_C(1) << index % 64);
}

/* How many of [0, bits) are there. */
static inline size_t cmq_bitmap_count(const uint64_t *words, size_t bits)
{
    size_t count = 0;
    for (size_t i = 0; i < bits / 64; i++) count += (size_t)__builtin_popcountll(words[i]);
    if (bits % 64 != 0) count += (size_t)__builtin_popcountll(words[bits / 64] & (UINT64_MAX >> (64 - bits % 64)));
    return count;
}

/* The first number from `from` on that is set, or that is not (`wanted` false); `bits` when there is none below it. */
static inline size_t cmq_bitmap_next_of(const uint64_t *words, size_t bits, size_t from, bool wanted)
{
    if (from >= bits) return bits;
    const uint64_t flip = wanted ? 0 : UINT64_MAX;
    uint64_t word = (words[from / 64] ^ flip) & (UINT64_MAX << from % 64);
    size_t at = from / 64;
    while (word == 0) {
        if (++at == cmq_bitmap_words(bits)) return bits;
        word = words[at] ^ flip;
    }
    const size_t found = at * 64 + (size_t)__builtin_ctzll(word);
    return found < bits ? found : bits;
}

static inline size_t cmq_bitmap_next(const uint64_t *words, size_t bits, size_t from)
{
    return cmq_bitmap_next_of(words, bits, from, true);
}
static inline size_t cmq_bitmap_next_clear(const uint64_t *words, size_t bits, size_t from)
{
    return cmq_bitmap_next_of(words, bits, from, false);
}

/* Are [0, bits) all there? */
static inline bool cmq_bitmap_all(const uint64_t *words, size_t bits)
{
    return cmq_bitmap_next_clear(words, bits, 0) == bits;
}

/* ---- Java's bytes ---- */

/* How many bytes BitSet.toByteArray gives: up to the last that is not 0. */
static inline size_t cmq_bitmap_java_bytes(const uint64_t *words, size_t bits)
{
    const uint8_t *bytes = (const uint8_t *)words;
    size_t count = bits / 8 + (bits % 8 != 0);
    while (count > 0 && bytes[count - 1] == 0) count--;
    return count;
}

/* Set words[0, word_count) from such bytes. False when there are more than fit. */
static inline bool cmq_bitmap_from_java(uint64_t *words, size_t word_count, const uint8_t *bytes, size_t byte_count)
{
    if (byte_count > word_count * sizeof *words) return false;
    memset(words, 0, word_count * sizeof *words);
    if (byte_count > 0) memcpy(words, bytes, byte_count);
    return true;
}

#endif
