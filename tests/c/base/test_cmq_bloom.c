/* test_cmq_bloom: sizes, positions and bits as upstream's BloomFilter has them.
 *
 * Source: tests/c/vectors/CodecVectors.java makes the same inputs and prints the sums below.
 */
#include "base/cmq_bloom.h"

#include <stdio.h>
#include <string.h>

#include "support/cmq_test.h"
#include "support/cmq_vectors.h"

static void test_defaults_of_upstream(void)
{
    cmq_bloom bloom;
    CHECK_OK(cmq_bloom_init(&bloom, 20, 32));
    CHECK_INT(bloom.hash_count, 3);
    CHECK_INT(bloom.bit_count, 112);
    uint32_t positions[CMQ_BLOOM_HASHES_MAX];
    cmq_bloom_positions(&bloom, cmq_slice_of_text("group1#TopicTest"), positions);
    CHECK_INT(positions[0], 79);
    CHECK_INT(positions[1], 5);
    CHECK_INT(positions[2], 68);
}

static void test_sizes_for_every_error_rate(void)
{
    static const uint32_t entries[] = {1, 2, 7, 32, 100, 1000, 99999};
    cmq_vectors vectors = cmq_vectors_begin(0);
    for (uint32_t percent = 1; percent < 100; percent++) {
        for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++) {
            cmq_bloom bloom;
            CHECK_OK(cmq_bloom_init(&bloom, percent, entries[i]));
            cmq_vectors_add(&vectors, bloom.hash_count);
            cmq_vectors_add(&vectors, bloom.bit_count);
        }
    }
    CHECK_INT(vectors.sum, UINT64_C(0x164751bed45f6e82));
}

static void add_positions(cmq_vectors *vectors, const cmq_bloom *bloom, const char *entry)
{
    uint32_t positions[CMQ_BLOOM_HASHES_MAX];
    cmq_bloom_positions(bloom, cmq_slice_of_text(entry), positions);
    for (uint32_t i = 0; i < bloom->hash_count; i++) cmq_vectors_add(vectors, positions[i]);
}

static void test_positions_of_many_entries(void)
{
    cmq_bloom usual, large;
    CHECK_OK(cmq_bloom_init(&usual, 20, 32));
    CHECK_OK(cmq_bloom_init(&large, 1, 1000));
    cmq_vectors vectors = cmq_vectors_begin(3);
    for (int i = 0; i < 5000; i++) {
        const uint32_t group = cmq_vectors_next(&vectors, 1000), topic = cmq_vectors_next(&vectors, 1000000);
        char entry[64];
        snprintf(entry, sizeof entry, "group%u#Topic%u", group, topic);
        add_positions(&vectors, &usual, entry);
        add_positions(&vectors, &large, entry);
    }
    CHECK_INT(vectors.sum, UINT64_C(0x97fffdb921c5e263));
}

static void test_bits_of_the_map(void)
{
    cmq_bloom bloom;
    CHECK_OK(cmq_bloom_init(&bloom, 20, 32));
    const uint32_t positions[3] = {79, 5, 68};
    uint8_t map[14] = {0}, expected[14] = {0};
    CHECK(!cmq_bloom_test(&bloom, positions, map));
    cmq_bloom_set(&bloom, positions, map);
    expected[9] = 0x80, expected[0] = 0x20, expected[8] = 0x10;
    CHECK_BYTES(map, sizeof map, expected, sizeof expected);
    CHECK(cmq_bloom_test(&bloom, positions, map));
    map[8] = 0;
    CHECK(!cmq_bloom_test(&bloom, positions, map));
}

static void test_values_out_of_range(void)
{
    cmq_bloom bloom;
    CHECK_STATUS(cmq_bloom_init(&bloom, 0, 32), CMQ_ERR_ARGUMENT);
    CHECK_STATUS(cmq_bloom_init(&bloom, 100, 32), CMQ_ERR_ARGUMENT);
    CHECK_STATUS(cmq_bloom_init(&bloom, 20, 0), CMQ_ERR_ARGUMENT);
    CHECK_STATUS(cmq_bloom_init(&bloom, 20, 1000001), CMQ_ERR_ARGUMENT);
    CHECK_INT(bloom.bit_count, 0);
}

CMQ_TEST_MAIN(CMQ_TEST(test_defaults_of_upstream), CMQ_TEST(test_sizes_for_every_error_rate),
              CMQ_TEST(test_positions_of_many_entries), CMQ_TEST(test_bits_of_the_map),
              CMQ_TEST(test_values_out_of_range))
