/* cmq_namehash: a quick hash of names for tables in memory, eight bytes a step.
 *
 * Never stored: it may change from one build to the next. What RocketMQ's files depend on is in cmq_hash.h.
 *
 * Threads: any; a pure function.
 * Source:  ours.
 */
#ifndef CMQ_NAMEHASH_H
#define CMQ_NAMEHASH_H

#include <stdint.h>
#include <string.h>

#include "base/cmq_bytes.h"

#define CMQ_NAMEHASH_MULTIPLIER UINT64_C(0x9E3779B97F4A7C15)   /* 2^64 divided by the golden ratio */

/* All 64 bits depend on the name; tables take the low ones. */
static inline uint64_t cmq_namehash(cmq_slice name)
{
    uint64_t hash = name.bytes * CMQ_NAMEHASH_MULTIPLIER;
    size_t at = 0;
    for (; name.bytes - at >= 8; at += 8) {
        uint64_t word;
        memcpy(&word, name.data + at, 8);
        hash = (hash ^ word) * CMQ_NAMEHASH_MULTIPLIER;
        hash ^= hash >> 29;
    }
    uint64_t rest = 0;
    for (unsigned shift = 0; at < name.bytes; at++, shift += 8) rest |= (uint64_t)name.data[at] << shift;
    hash = (hash ^ rest) * CMQ_NAMEHASH_MULTIPLIER;
    return hash ^ hash >> 32;
}

#endif
