/* Tests csrc/base/cmq_bitmap.h: single words, and arrays of words against an array of flags; Java's bytes. */
#include "base/cmq_bitmap.h"

#include "support/cmq_test.h"

#define BITS_MAX 300

static void one_word(void)
{
    uint32_t bits = 0;
    CHECK_INT(cmq_bits_first(0), 0);
    CHECK_INT(cmq_bits_first(1), 1);
    CHECK_INT(cmq_bits_first(32), UINT32_MAX);
    CHECK(cmq_bits_all(0, 0));
    for (uint32_t i = 0; i < CMQ_BITS_MAX; i++) {
        CHECK(!cmq_bits_test(bits, i));
        CHECK(!cmq_bits_all(bits, i + 1));
        bits = cmq_bits_set(bits, i);
        CHECK(cmq_bits_test(bits, i));
        CHECK(cmq_bits_all(bits, i + 1));
        CHECK_INT(cmq_bits_count(bits), i + 1);
    }
    CHECK(!cmq_bits_all(cmq_bits_set(0, 5), 1));
    bits = 0x80010002u;
    CHECK_INT(cmq_bits_take(&bits), 1);
    CHECK_INT(cmq_bits_take(&bits), 16);
    CHECK_INT(cmq_bits_take(&bits), 31);
    CHECK_INT(bits, 0);
}

/* The first flag from `from` on that is `wanted`. */
static size_t next_flag(const bool *flags, size_t bits, size_t from, bool wanted)
{
    while (from < bits && flags[from] != wanted) from++;
    return from < bits ? from : bits;
}

static void words_and_flags_agree(void)
{
    for (int round = 0; round < 2000; round++) {
        uint64_t words[(BITS_MAX + 63) / 64];
        bool flags[BITS_MAX] = {false};
        const size_t bits = cmq_test_random_below(BITS_MAX) + 1;
        const uint64_t density = cmq_test_random_below(4);   /* 0: mostly empty … 3: mostly full */
        size_t count = 0;
        for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) words[i] = density == 3 ? UINT64_MAX : 0;
        for (size_t i = 0; i < bits; i++) {
            flags[i] =
                density == 3 ? cmq_test_random_below(64) != 0 : cmq_test_random_below(density == 0 ? 64 : 2) == 0;
            if (flags[i]) cmq_bitmap_set(words, i);
            else cmq_bitmap_clear(words, i);
            count += flags[i];
        }
        CHECK_INT(cmq_bitmap_count(words, bits), count);
        CHECK_INT(cmq_bitmap_all(words, bits), count == bits);
        for (size_t i = 0; i < bits; i++) CHECK_INT(cmq_bitmap_test(words, i), flags[i]);
        for (size_t from = 0; from <= bits + 1; from++) {
            CHECK_INT(cmq_bitmap_next(words, bits, from), next_flag(flags, bits, from, true));
            CHECK_INT(cmq_bitmap_next_clear(words, bits, from), next_flag(flags, bits, from, false));
        }
    }
}

static void bytes_of_java(void)
{
    uint64_t words[2] = {0}, again[2];
    CHECK_INT(cmq_bitmap_java_bytes(words, 128), 0);
    cmq_bitmap_set(words, 0);
    cmq_bitmap_set(words, 2);
    cmq_bitmap_set(words, 9);
    CHECK_BYTES(words, cmq_bitmap_java_bytes(words, 128), "\x05\x02", 2);   /* BitSet {0, 2, 9}: BQI= */
    CHECK(cmq_bitmap_from_java(again, 2, (const uint8_t *)"\x05\x02", 2));
    CHECK_BYTES(again, sizeof again, words, sizeof words);
    cmq_bitmap_set(words, 127);
    CHECK_INT(cmq_bitmap_java_bytes(words, 128), 16);
    CHECK(cmq_bitmap_from_java(again, 2, (const uint8_t *)words, 16));
    CHECK_BYTES(again, sizeof again, words, sizeof words);
    CHECK(!cmq_bitmap_from_java(again, 1, (const uint8_t *)words, 16));
    CHECK(cmq_bitmap_from_java(again, 2, NULL, 0));
    CHECK_INT(cmq_bitmap_count(again, 128), 0);
}

CMQ_TEST_MAIN(CMQ_TEST(one_word), CMQ_TEST(words_and_flags_agree), CMQ_TEST(bytes_of_java))
