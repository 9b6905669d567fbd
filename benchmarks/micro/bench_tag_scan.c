/* bench_tag_scan: nanoseconds per consume queue unit, by variant, number of tags, and where the units lie.
 *
 * 16 tags in random order, so that one tag matches 1 unit of 16. Checked: every variant finds as many units as the
 * portable one, and the sum of their ordinals is the same.
 */
#include "base/cmq_bytes.h"
#include "cmq_bench.h"
#include "store/queue/cmq_tag_scan.h"

#define TAGS 16
#define CACHED_UNITS 20000            /* 400 kB: second-level cache */
#define MEMORY_UNITS 20000000         /* 400 MB: beyond every cache */

static uint32_t tag_hash(uint32_t tag) { return (tag + 1) * 2654435761u; }

static uint8_t *make_units(size_t count)
{
    uint8_t *units = bench_alloc(count * CMQ_TAGSCAN_UNIT_BYTES);
    uint64_t state = 1;
    for (size_t i = 0; i < count; i++) {
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        cmq_store_i64(units + i * CMQ_TAGSCAN_UNIT_BYTES, (int64_t)i * 293);
        cmq_store_i32(units + i * CMQ_TAGSCAN_UNIT_BYTES + 8, 293);
        cmq_store_i64(units + i * CMQ_TAGSCAN_UNIT_BYTES + 12, (int32_t)tag_hash((uint32_t)(state >> 60)));
    }
    return units;
}

static uint64_t sum(const uint32_t *ordinals, size_t count)
{
    uint64_t all = 0;
    for (size_t i = 0; i < count; i++) all += ordinals[i];
    return all;
}

/* Scan in calls of at most CACHED_UNITS, as the store does; the ordinals of the last call stay in `matches`. */
static size_t run(const cmq_tag_scan_variant *variant, const uint8_t *units, size_t count, const uint32_t *hashes,
                  size_t hash_count, uint32_t *matches, uint64_t *sum_out)
{
    size_t found = 0;
    for (size_t first = 0; first < count; first += CACHED_UNITS) {
        const size_t piece = count - first < CACHED_UNITS ? count - first : CACHED_UNITS;
        const size_t here =
            variant->scan(units + first * CMQ_TAGSCAN_UNIT_BYTES, piece, hashes, hash_count, 0, matches);
        found += here;
        if (sum_out != NULL) *sum_out += sum(matches, here);
    }
    return found;
}

static void measure(const cmq_tag_scan_variant *variant, const uint8_t *units, size_t count, size_t rounds,
                    const uint32_t *hashes, size_t hash_count, const char *where)
{
    static uint32_t matches[CACHED_UNITS];
    size_t variants;
    uint64_t expected_sum = 0, found_sum = 0;
    const cmq_tag_scan_variant *portable = &cmq_tag_scan_variants(&variants)[0];
    const size_t expected = run(portable, units, count, hashes, hash_count, matches, &expected_sum);
    BENCH_CHECK(run(variant, units, count, hashes, hash_count, matches, &found_sum) == expected);
    BENCH_CHECK(found_sum == expected_sum);
    double seconds[BENCH_REPEATS];
    for (int repeat = 0; repeat < BENCH_REPEATS; repeat++) {
        const double begin = bench_cpu_s();
        for (size_t round = 0; round < rounds; round++)
            BENCH_CHECK(run(variant, units, count, hashes, hash_count, matches, NULL) == expected);
        seconds[repeat] = bench_cpu_s() - begin;
    }
    char name[96];
    snprintf(name, sizeof name, "tagscan/%s/%zu tags, 1 of %d matches each/%s", variant->name, hash_count, TAGS, where);
    bench_print(name, seconds, (double)(count * rounds), CMQ_TAGSCAN_UNIT_BYTES);
}

/* The cost of reading one word of every cache line: the floor under the figures from memory. */
static void measure_floor(const uint8_t *units, size_t count)
{
    double seconds[BENCH_REPEATS];
    uint64_t all = 0;
    for (int repeat = 0; repeat < BENCH_REPEATS; repeat++) {
        const double begin = bench_cpu_s();
        uint64_t here = 0;
        for (size_t at = 0; at + 64 <= count * CMQ_TAGSCAN_UNIT_BYTES; at += 64) here += cmq_load_u64(units + at);
        seconds[repeat] = bench_cpu_s() - begin;
        BENCH_CHECK(repeat == 0 || here == all);
        all = here;
    }
    bench_print("tagscan/floor: one word of each cache line/memory", seconds, (double)count, CMQ_TAGSCAN_UNIT_BYTES);
}

int main(int argc, char **argv)
{
    const bool quick = bench_is_quick(argc, argv);
    const size_t memory_units = quick ? 50000 : MEMORY_UNITS;
    uint8_t *units = make_units(memory_units);
    const uint32_t hashes[4] = {tag_hash(3), tag_hash(7), tag_hash(11), tag_hash(15)}, absent = 12345;
    measure_floor(units, memory_units);
    size_t count;
    const cmq_tag_scan_variant *variants = cmq_tag_scan_variants(&count);
    for (size_t v = 0; v < count; v++) {
        if (!variants[v].usable()) continue;
        const size_t rounds = quick ? 2 : 200;
        measure(&variants[v], units, CACHED_UNITS, rounds, &absent, 1, "cache, none matches");
        measure(&variants[v], units, CACHED_UNITS, rounds, hashes, 1, "cache");
        measure(&variants[v], units, CACHED_UNITS, rounds, hashes, 4, "cache");
        measure(&variants[v], units, memory_units, 1, hashes, 1, "memory");
        measure(&variants[v], units, memory_units, 1, hashes, 4, "memory");
    }
    free(units);
    return 0;
}
