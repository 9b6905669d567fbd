/* test_cmq_tag_scan: every variant finds what the specification says, and nothing outside its arrays is touched. */
#include "store/queue/cmq_tag_scan.h"

#include <stdlib.h>
#include <string.h>

#include "base/cmq_bytes.h"
#include "store/record/cmq_tags_code.h"
#include "support/cmq_test.h"

static void put_unit(uint8_t *units, size_t at, int64_t physical_offset, int32_t bytes, int64_t tags_code)
{
    uint8_t *unit = units + at * CMQ_TAGSCAN_UNIT_BYTES;
    cmq_store_i64(unit, physical_offset);
    cmq_store_i32(unit + 8, bytes);
    cmq_store_i64(unit + 12, tags_code);
}

/* The rule, read off the specification: one unit, no tricks. */
static bool matches(const uint8_t *unit, const uint32_t *hashes, size_t hash_count, unsigned flags)
{
    const int32_t bytes = cmq_load_i32(unit + 8);
    const int64_t tags_code = cmq_load_i64(unit + 12);
    if (bytes <= 0 || bytes == INT32_MAX) return false;
    if (hash_count == 0) return true;
    if ((flags & CMQ_TAGSCAN_EXT_PASSES) != 0 && cmq_tags_code_is_ext(tags_code)) return true;
    for (size_t i = 0; i < hash_count; i++)
        if ((uint32_t)tags_code == hashes[i]) return true;
    return false;
}

/* Run every variant on exactly sized blocks and compare with the rule. */
static void check_scan(const uint8_t *units, size_t count, const uint32_t *hashes, size_t hash_count, unsigned flags)
{
    uint32_t *expected = malloc(count * sizeof *expected), *found = malloc(count * sizeof *found);
    uint8_t *exact = malloc(count * CMQ_TAGSCAN_UNIT_BYTES);
    if (count > 0) memcpy(exact, units, count * CMQ_TAGSCAN_UNIT_BYTES);
    size_t expected_count = 0;
    for (size_t i = 0; i < count; i++)
        if (matches(units + i * CMQ_TAGSCAN_UNIT_BYTES, hashes, hash_count, flags))
            expected[expected_count++] = (uint32_t)i;

    size_t variant_count;
    const cmq_tag_scan_variant *variants = cmq_tag_scan_variants(&variant_count);
    for (size_t v = 0; v <= variant_count; v++) {
        if (v < variant_count && !variants[v].usable()) continue;
        const char *name = v < variant_count ? variants[v].name : "chosen";
        const size_t found_count = v < variant_count ? variants[v].scan(exact, count, hashes, hash_count, flags, found)
                                                     : cmq_tag_scan(exact, count, hashes, hash_count, flags, found);
        if (found_count != expected_count)
            cmq_test_fail(__FILE__, __LINE__, "%s found %zu of %zu units with %zu hashes, expected %zu", name,
                          found_count, count, hash_count, expected_count);
        for (size_t i = 0; i < found_count; i++)
            if (found[i] != expected[i])
                cmq_test_fail(__FILE__, __LINE__, "%s: match %zu is unit %u, expected %u", name, i, found[i],
                              expected[i]);
    }
    free(expected), free(found), free(exact);
}

static void test_units_that_hold_no_record(void)
{
    uint8_t units[40 * CMQ_TAGSCAN_UNIT_BYTES];
    const uint32_t hashes[2] = {0, 7};
    for (size_t i = 0; i < 40; i++) put_unit(units, i, (int64_t)i * 100, 100, i % 2 == 0 ? 7 : 0);
    put_unit(units, 3, 0, INT32_MAX, 0);    /* filler */
    put_unit(units, 17, 0, 0, 0);           /* never written */
    put_unit(units, 18, 1800, -5, 7);
    put_unit(units, 38, 0, INT32_MAX, 0);
    uint32_t found[40];
    CHECK_INT(cmq_tag_scan(units, 40, NULL, 0, 0, found), 36);
    CHECK_INT(found[3], 4);
    CHECK_INT(cmq_tag_scan(units, 40, hashes, 2, 0, found), 36);
    CHECK_INT(cmq_tag_scan(units, 40, hashes + 1, 1, 0, found), 18);
    check_scan(units, 40, hashes, 2, 0);
    check_scan(units, 40, hashes, 1, 0);
    check_scan(units, 40, hashes, 0, 0);
}

static void test_only_the_low_half_of_the_code_counts(void)
{
    uint8_t units[16 * CMQ_TAGSCAN_UNIT_BYTES];
    const uint32_t hash = 0xFFFFFFF0u;
    uint32_t found[16];
    for (size_t i = 0; i < 16; i++) put_unit(units, i, 0, 100, 1);
    put_unit(units, 5, 0, 100, (int32_t)hash);                     /* a negative tag hash, as upstream stores it */
    put_unit(units, 9, 0, 100, INT64_C(0x18B00000000) | hash);     /* a deliver timestamp with the same low half */
    CHECK_INT(cmq_tag_scan(units, 16, &hash, 1, 0, found), 2);
    CHECK_INT(found[0], 5);
    CHECK_INT(found[1], 9);
}

static void test_ext_addresses_pass_when_asked(void)
{
    uint8_t units[20 * CMQ_TAGSCAN_UNIT_BYTES];
    const uint32_t hash = 22;
    uint32_t found[20];
    for (size_t i = 0; i < 20; i++) put_unit(units, i, 0, 100, 1);
    put_unit(units, 2, 0, 100, INT64_MIN);
    put_unit(units, 4, 0, 100, INT64_MIN + 34);
    put_unit(units, 6, 0, 100, (int64_t)INT32_MIN - 1);   /* the highest address there can be */
    put_unit(units, 8, 0, 100, INT32_MIN);                /* the lowest tag hash */
    put_unit(units, 10, 0, 0, INT64_MIN);                 /* an address, but no record */
    put_unit(units, 12, 0, 100, 22);
    CHECK_INT(cmq_tag_scan(units, 20, &hash, 1, CMQ_TAGSCAN_EXT_PASSES, found), 4);
    CHECK_INT(found[0], 2);
    CHECK_INT(found[2], 6);
    CHECK_INT(found[3], 12);
    CHECK_INT(cmq_tag_scan(units, 20, &hash, 1, 0, found), 1);
    check_scan(units, 20, &hash, 1, CMQ_TAGSCAN_EXT_PASSES);
    check_scan(units, 20, &hash, 0, CMQ_TAGSCAN_EXT_PASSES);
}

/* Tags out of a small set, so that everything between none and all matches; now and then no record. */
static void put_random_units(uint8_t *units, size_t count, const uint32_t *tags, size_t tag_count)
{
    for (size_t i = 0; i < count; i++) {
        const uint64_t kind = cmq_test_random_below(40);
        int32_t bytes = (int32_t)cmq_test_random_below(5000) + 91;
        if (kind == 0) bytes = INT32_MAX;
        if (kind == 1) bytes = 0;
        if (kind == 2) bytes = INT32_MIN + (int32_t)cmq_test_random_below(INT32_MAX);
        const int64_t tags_code = kind == 3 ? INT64_MIN + (int64_t)cmq_test_random_below(1 << 20)
                                            : (int32_t)tags[cmq_test_random_below(tag_count)];
        put_unit(units, i, (int64_t)cmq_test_random_below(1 << 30), bytes, tags_code);
    }
}

static void test_random_units(void)
{
    enum { UNITS = 700, TAGS = 100 };
    uint8_t *units = malloc(UNITS * CMQ_TAGSCAN_UNIT_BYTES);
    for (int round = 0; round < 400; round++) {
        uint32_t tags[TAGS];
        for (size_t i = 0; i < TAGS; i++) tags[i] = (uint32_t)cmq_test_random();
        put_random_units(units, UNITS, tags, 1 + (size_t)cmq_test_random_below(TAGS));
        const size_t count = (size_t)cmq_test_random_below(UNITS + 1);
        const size_t hash_count = (size_t)cmq_test_random_below(round % 4 == 0 ? TAGS + 1 : 9);
        check_scan(units, count, tags, hash_count, round % 8 == 0 ? CMQ_TAGSCAN_EXT_PASSES : 0);
    }
    free(units);
}

/* One match at every place of every length: the ends of blocks and what is left behind them. */
static void test_one_match_anywhere(void)
{
    enum { UNITS = 70 };
    uint8_t units[UNITS * CMQ_TAGSCAN_UNIT_BYTES];
    const uint32_t hashes[5] = {0x27a807, 1, 2, 3, 4};
    for (size_t count = 0; count <= UNITS; count++) {
        for (size_t at = 0; at < count; at++) {
            for (size_t i = 0; i < UNITS; i++) put_unit(units, i, 0x27a807, 0x27a807, INT64_C(0x27a80700000000));
            put_unit(units, at, 1, 100, 0x27a807);
            check_scan(units, count, hashes, 1 + at % 5, 0);
        }
    }
}

CMQ_TEST_MAIN(CMQ_TEST(test_units_that_hold_no_record), CMQ_TEST(test_only_the_low_half_of_the_code_counts),
              CMQ_TEST(test_ext_addresses_pass_when_asked), CMQ_TEST(test_random_units),
              CMQ_TEST(test_one_match_anywhere))
