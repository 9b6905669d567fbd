/* cmq_hash: the two hashes that RocketMQ's files depend on: Java's String.hashCode, and murmur3 for Bloom filters.
 *
 * Threads: any; pure functions.
 * Source:  java.lang.String.hashCode over UTF-16 code units; java's UTF-8 decoder for malformed input;
 *          MurmurHash3_x64_128 as Guava's Hashing.murmur3_128(0).
 */
#ifndef CMQ_HASH_H
#define CMQ_HASH_H

#include <stddef.h>
#include <stdint.h>

#include "base/cmq_bytes.h"

/* Java's hashCode of the string that begins with what gave `hash` (0: nothing) and goes on with `utf8`. Malformed
 * UTF-8 counts as Java's `new String(bytes, UTF_8)` decodes it, one U+FFFD per malformed sequence. The two parts must
 * not divide a character. */
uint32_t cmq_jhash_extend(uint32_t hash, const uint8_t *utf8, size_t bytes);

static inline uint32_t cmq_jhash(cmq_slice utf8) { return cmq_jhash_extend(0, utf8.data, utf8.bytes); }

/* The key hash of index files: the absolute value of Java's hash, and 0 for INT32_MIN, which has none. Never
 * negative. */
static inline int32_t cmq_index_hash(uint32_t hash)
{
    const int32_t value = (int32_t)hash;
    if (value == INT32_MIN) return 0;
    return value < 0 ? -value : value;
}

/* The first 64 bits of murmur3 x64 128 with seed 0, as Guava's HashCode.asLong. */
uint64_t cmq_murmur3_low64(const void *data, size_t bytes);

#endif
