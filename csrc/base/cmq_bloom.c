/* cmq_bloom: Bloom filter sizes and positions as upstream computes them.
 *
 * Threads: any; pure functions.
 * Source:  see cmq_bloom.h.
 */
#include "base/cmq_bloom.h"

#include <math.h>

#include "base/cmq_assert.h"
#include "base/cmq_hash.h"

/* As upstream's logMN: a quotient of natural logarithms, so that the same products round up the same way. */
static double log_ratio(double value, double base) { return log(value) / log(base); }

cmq_status cmq_bloom_init(cmq_bloom *bloom_out, uint32_t error_percent, uint32_t entry_count)
{
    *bloom_out = (cmq_bloom){0};
    if (error_percent < 1 || error_percent > 99)
        return cmq_fail(CMQ_ERR_ARGUMENT, "Bloom filter error rate is %u %%; give 1 to 99", error_percent);
    if (entry_count < 1 || entry_count > 1000000)
        return cmq_fail(CMQ_ERR_ARGUMENT, "Bloom filter for %u entries; give 1 to 1000000", entry_count);

    const double rate = error_percent / 100.0;
    const double hashes = ceil(log_ratio(rate, 0.5));
    const double bits = ceil(entry_count * log_ratio(1 / rate, 2) * log_ratio(exp(1.0), 2));
    bloom_out->hash_count = (uint32_t)hashes;
    bloom_out->bit_count = ((uint32_t)bits + 7) / 8 * 8;
    CMQ_ASSERT(bloom_out->hash_count >= 1 && bloom_out->hash_count <= CMQ_BLOOM_HASHES_MAX);
    return CMQ_OK;
}

void cmq_bloom_positions(const cmq_bloom *bloom, cmq_slice entry, uint32_t positions_out[CMQ_BLOOM_HASHES_MAX])
{
    CMQ_ASSERT(bloom->hash_count <= CMQ_BLOOM_HASHES_MAX);
    CMQ_ASSERT(bloom->bit_count > 0);
    const uint64_t hash = cmq_murmur3_low64(entry.data, entry.bytes);
    const uint32_t low = (uint32_t)hash, high = (uint32_t)(hash >> 32);
    for (uint32_t i = 1; i <= bloom->hash_count; i++) {
        uint32_t combined = low + i * high;
        if (combined & 0x80000000u) combined = ~combined;
        positions_out[i - 1] = combined % bloom->bit_count;
    }
}

void cmq_bloom_set(const cmq_bloom *bloom, const uint32_t *positions, uint8_t *map)
{
    for (uint32_t i = 0; i < bloom->hash_count; i++) {
        CMQ_ASSERT(positions[i] < bloom->bit_count);
        map[positions[i] / 8] = (uint8_t)(map[positions[i] / 8] | 1u << positions[i] % 8);
    }
}

bool cmq_bloom_test(const cmq_bloom *bloom, const uint32_t *positions, const uint8_t *map)
{
    for (uint32_t i = 0; i < bloom->hash_count; i++) {
        CMQ_ASSERT(positions[i] < bloom->bit_count);
        if (!(map[positions[i] / 8] >> positions[i] % 8 & 1)) return false;
    }
    return true;
}
