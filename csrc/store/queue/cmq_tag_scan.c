/* cmq_tag_scan: the choice of the variant, and the portable one.
 *
 * Owns:      the pointer to the chosen variant.
 * Invariant: the pointer only ever holds choose_first or one usable variant, and every value of it gives right results.
 * Threads:   any; see cmq_tag_scan.h.
 */
#include "store/queue/cmq_tag_scan.h"

#include <stdatomic.h>
#include <string.h>

#include "base/cmq_assert.h"
#include "store/queue/cmq_tag_scan_variants.h"

/* Above this many hashes a unit is looked up in a bitmap first. */
#define COMPARED_HASHES_MAX 8
#define SIEVE_BITS 4096

/* The subscription as the portable loop wants it. */
typedef struct tag_set {
    const uint32_t *hashes;
    size_t count;
    uint64_t sieve[SIEVE_BITS / 64];   /* bit [hash modulo SIEVE_BITS] of every hash; used above COMPARED_HASHES_MAX */
} tag_set;

static inline bool is_in_set(const tag_set *set, uint32_t hash)
{
    if (set->count > COMPARED_HASHES_MAX) {
        const uint32_t bit = hash % SIEVE_BITS;
        if (!(set->sieve[bit / 64] >> bit % 64 & 1)) return false;
    }
    bool found = false;
    for (size_t i = 0; i < set->count; i++) found |= hash == set->hashes[i];
    return found;
}

/* A loop's test; constant in each call, so that the compiler makes one loop per kind. */
typedef enum test_kind { TEST_NOTHING, TEST_ONE, TEST_SET } test_kind;

__attribute__((always_inline)) static inline size_t scan(const uint8_t *units, size_t count, const tag_set *set,
                                                         test_kind kind, bool ext_passes, uint32_t *matches_out)
{
    const uint32_t only = kind == TEST_ONE ? set->hashes[0] : 0;
    size_t found = 0;
    for (size_t i = 0; i < count; i++, units += CMQ_TAGSCAN_UNIT_BYTES) {
        const uint32_t hash = cmq_load_u32(units + CMQ_TAGSCAN_AT_CODE_LOW);
        bool matches = kind == TEST_NOTHING || (kind == TEST_ONE ? hash == only : is_in_set(set, hash));
        if (ext_passes) matches |= cmq_load_i64(units + CMQ_TAGSCAN_AT_CODE_HIGH) < INT32_MIN;
        matches_out[found] = (uint32_t)i;   /* no branch: the entry counts only if it matched */
        found += matches & cmq_tag_scan_unit_is_used(units);
    }
    return found;
}

size_t cmq_tag_scan_portable(const uint8_t *units, size_t count, const uint32_t *hashes, size_t hash_count,
                            unsigned flags, uint32_t *matches_out)
{
    tag_set set;
    set.hashes = hashes;
    set.count = hash_count;
    if (hash_count > COMPARED_HASHES_MAX) {
        memset(set.sieve, 0, sizeof set.sieve);
        for (size_t i = 0; i < hash_count; i++)
            set.sieve[hashes[i] % SIEVE_BITS / 64] |= UINT64_C(1) << hashes[i] % 64;
    }
    if (flags & CMQ_TAGSCAN_EXT_PASSES)
        return scan(units, count, &set, hash_count == 0 ? TEST_NOTHING : TEST_SET, true, matches_out);
    if (hash_count == 0) return scan(units, count, &set, TEST_NOTHING, false, matches_out);
    if (hash_count == 1) return scan(units, count, &set, TEST_ONE, false, matches_out);
    return scan(units, count, &set, TEST_SET, false, matches_out);
}

static bool always_usable(void) { return true; }

static const cmq_tag_scan_variant variants[] = {
    {"portable", cmq_tag_scan_portable, always_usable},
#if defined(__x86_64__)
    {"sse2", cmq_tag_scan_sse2, always_usable},   /* part of the x86-64 baseline */
    {"avx2", cmq_tag_scan_avx2, cmq_tag_scan_avx2_usable},
    {"avx512", cmq_tag_scan_avx512, cmq_tag_scan_avx512_usable},
#endif
};

enum { VARIANT_COUNT = sizeof variants / sizeof variants[0] };

typedef size_t scan_function(const uint8_t *units, size_t count, const uint32_t *hashes, size_t hash_count,
                             unsigned flags, uint32_t *matches_out);

static scan_function choose_first;

/* Relaxed everywhere: a thread that reads an old value repeats the choice and gets the same result. */
static _Atomic(scan_function *) chosen = choose_first;

static size_t choose_first(const uint8_t *units, size_t count, const uint32_t *hashes, size_t hash_count,
                           unsigned flags, uint32_t *matches_out)
{
    scan_function *best = variants[0].scan;
    for (size_t i = 1; i < VARIANT_COUNT; i++)
        if (variants[i].usable()) best = variants[i].scan;
    atomic_store_explicit(&chosen, best, memory_order_relaxed);
    return best(units, count, hashes, hash_count, flags, matches_out);
}

size_t cmq_tag_scan(const uint8_t *units, size_t count, const uint32_t *hashes, size_t hash_count, unsigned flags,
                   uint32_t *matches_out)
{
    CMQ_ASSERT(count <= CMQ_TAGSCAN_COUNT_MAX);
    return atomic_load_explicit(&chosen, memory_order_relaxed)(units, count, hashes, hash_count, flags, matches_out);
}

const cmq_tag_scan_variant *cmq_tag_scan_variants(size_t *count_out)
{
    *count_out = VARIANT_COUNT;
    return variants;
}
