/* cmq_name_hash: a quick hash of names for tables in memory, eight bytes a step.
 *
 * Names come from clients, and tables probe linearly: so the hash has a seed of the process, drawn at its start, and
 * each step multiplies by it. Without the seed nobody can choose names that collide.
 *
 * Never stored: it differs between processes. The hashes that RocketMQ's files depend on are in cmq_hash.h.
 *
 * Threads: any; a pure function.
 * Source:  ours; the step is wyhash's.
 */
#ifndef CMQ_NAME_HASH_H
#define CMQ_NAME_HASH_H

#include <stdint.h>
#include <string.h>

#include "base/cmq_bytes.h"

#define CMQ_NAMEHASH_MULTIPLIER UINT64_C(0x9E3779B97F4A7C15)   /* 2^64 divided by the golden ratio */

/* Drawn before main; the second is odd. */
extern uint64_t cmq_name_hash_seed[2];

static inline uint64_t cmq_name_hash_step(uint64_t a, uint64_t b)
{
    __extension__ typedef unsigned __int128 wide;
    const wide product = (wide)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/* All 64 bits depend on the name; tables take the low ones. */
static inline uint64_t cmq_name_hash(cmq_slice name)
{
    uint64_t hash = cmq_name_hash_seed[0] ^ name.bytes * CMQ_NAMEHASH_MULTIPLIER;
    size_t at = 0;
    for (; name.bytes - at >= 8; at += 8) {
        uint64_t word;
        memcpy(&word, name.data + at, 8);
        hash = cmq_name_hash_step(hash ^ word, cmq_name_hash_seed[1]);
    }
    uint64_t rest = 0;
    for (unsigned shift = 0; at < name.bytes; at++, shift += 8) rest |= (uint64_t)name.data[at] << shift;
    hash = cmq_name_hash_step(hash ^ rest, cmq_name_hash_seed[1]);
    return hash ^ hash >> 32;
}

#endif
