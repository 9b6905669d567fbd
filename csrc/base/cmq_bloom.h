/* cmq_bloom: the Bloom filter whose bits stand in consumequeue_ext units. No code writes or asks them yet: they are for
 * filters by SQL92 expressions.
 *
 * Invariant: bit_count is a multiple of 8; every position is below it.
 * Threads:   any; the map belongs to the caller.
 * Source:    store specification 13.3 (upstream's BloomFilter).
 */
#ifndef CMQ_BLOOM_H
#define CMQ_BLOOM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cmq_bytes.h"
#include "base/cmq_status.h"

#define CMQ_BLOOM_HASHES_MAX 16

typedef struct cmq_bloom {
    uint32_t hash_count;   /* k: bits set per entry, 1 to CMQ_BLOOM_HASHES_MAX */
    uint32_t bit_count;    /* m: bits of the map, a multiple of 8 */
} cmq_bloom;

/* The filter for `entry_count` entries at `error_percent` (1 to 99) false passes. CMQ_ERR_ARGUMENT outside. Upstream's
 * defaults 20 and 32 give 3 hashes and 112 bits. */
CMQ_MUST_CHECK cmq_status cmq_bloom_init(cmq_bloom *bloom_out, uint32_t error_percent, uint32_t entry_count);

/* The `hash_count` bit positions of `entry` (upstream: `group#topic`). */
void cmq_bloom_positions(const cmq_bloom *bloom, cmq_slice entry, uint32_t positions_out[CMQ_BLOOM_HASHES_MAX]);

/* Set and test positions in a map of bit_count / 8 bytes. Test is true when every one is set. */
void cmq_bloom_set(const cmq_bloom *bloom, const uint32_t *positions, uint8_t *map);
bool cmq_bloom_test(const cmq_bloom *bloom, const uint32_t *positions, const uint8_t *map);

#endif
