/* test_cmq_hash: Java's hashCode, also of malformed UTF-8, and murmur3, against numbers that Java and Guava gave.
 *
 * Source: tests/c/vectors/CodecVectors.java makes the same inputs and prints the sums below.
 */
#include "base/cmq_hash.h"

#include <stdlib.h>
#include <string.h>

#include "support/cmq_test.h"
#include "support/cmq_vectors.h"

static void test_known_hashes(void)
{
    CHECK_INT(cmq_jhash(CMQ_SLICE_NONE), 0);
    CHECK_INT(cmq_jhash(cmq_slice_of_text("TagA")), 2598919);
    CHECK_INT(cmq_jhash(cmq_slice_of_text("TagA || TagB")), 1359775119);
    CHECK_INT((int32_t)cmq_jhash(cmq_slice_of_text("The quick brown fox jumps over the lazy dog")), -609428141);
    CHECK_INT(cmq_jhash(cmq_slice_of_text("TopicTest#C0A8010A2B5C18B4AAC2000000000001")), 755921279);
    CHECK_INT(cmq_jhash(cmq_slice_of_text("TopicTest#order-1001")), 1043804929);
}

static void test_malformed_text_counts_as_java_decodes_it(void)
{
    static const struct {
        const char *bytes;
        size_t count;
        int32_t hash;
    } cases[] = {
        {"\xc3\xa9", 2, 233},
        {"\xe4\xbd\xa0\xe5\xa5\xbd", 6, 652829},
        {"\xf0\x9f\x98\x80", 4, 1772899},            /* a surrogate pair */
        {"\xff", 1, 65533},
        {"\xc3", 1, 65533},
        {"\xe4\xbd", 2, 65533},                      /* cut off: one replacement for both bytes */
        {"\xe4\xbd\x41", 3, 2031588},
        {"\xed\xa0\x80", 3, 65533},                  /* an encoded surrogate: one for all three */
        {"\xed\xa0\x80\x41", 4, 2031588},
        {"\xf0\x80\x80\x80", 4, 2017367872},         /* overlong: one for each byte */
        {"\xf4\x90\x80\x80", 4, 2017367872},         /* above U+10FFFF */
        {"\xc0\x80", 2, 2097056},
        {"\xe0\x80\x80", 3, 65074269},
        {"\xf0\x9f\x98", 3, 65533},
        {"\xf0\x9f\x98\x41", 4, 2031588},
        {"\x80", 1, 65533},
        {"\x61\xc3\x62", 3, 2124838},
        {"\xed\xbf\xbf\xed\xbf\xbf", 6, 2097056},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        CHECK_INT((int32_t)cmq_jhash_extend(0, (const uint8_t *)cases[i].bytes, cases[i].count), cases[i].hash);
}

/* Each text in a block of its exact size, so that the address sanitizer sees a byte read too far. */
static void test_generated_texts_hash_as_in_java(void)
{
    static const uint8_t leads_and_tails[] = {0x41, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc0, 0xc1, 0xc2,
                                              0xdf, 0xe0, 0xe1, 0xed, 0xef, 0xf0, 0xf1, 0xf4, 0xf5, 0xf8, 0xff};
    cmq_vectors vectors = cmq_vectors_begin(1);
    for (int i = 0; i < 200000; i++) {
        const size_t bytes = cmq_vectors_next(&vectors, 24);
        uint8_t *text = malloc(bytes);
        for (size_t j = 0; j < bytes; j++)
            text[j] = cmq_vectors_next(&vectors, 4) == 0
                          ? (uint8_t)cmq_vectors_next(&vectors, 128)
                          : leads_and_tails[cmq_vectors_next(&vectors, sizeof leads_and_tails)];
        cmq_vectors_add(&vectors, cmq_jhash_extend(0, text, bytes));
        free(text);
    }
    CHECK_INT(vectors.sum, UINT64_C(0xd34becf571358bcc));
}

static void test_extend_is_the_hash_of_the_whole(void)
{
    const cmq_slice whole = cmq_slice_of_text("SomeTopic#some key with more than sixteen bytes \xc3\xa9 and more");
    for (size_t cut = 0; cut <= 40; cut++) {
        const uint32_t first = cmq_jhash_extend(0, whole.data, cut);
        CHECK_INT(cmq_jhash_extend(first, whole.data + cut, whole.bytes - cut), cmq_jhash(whole));
    }
}

static void test_index_hash_is_never_negative(void)
{
    CHECK_INT(cmq_index_hash(0), 0);
    CHECK_INT(cmq_index_hash(5), 5);
    CHECK_INT(cmq_index_hash((uint32_t)-5), 5);
    CHECK_INT(cmq_index_hash(0x7FFFFFFFu), INT32_MAX);
    CHECK_INT(cmq_index_hash(0x80000000u), 0);
    CHECK_INT(cmq_index_hash(0x80000001u), INT32_MAX);
}

static void test_murmur3_as_in_guava(void)
{
    const cmq_slice text = cmq_slice_of_text("group1#TopicTest");
    CHECK_INT(cmq_murmur3_low64(text.data, text.bytes), UINT64_C(0xd89f693663380759));
    CHECK_INT(cmq_murmur3_low64(NULL, 0), 0);
    cmq_vectors vectors = cmq_vectors_begin(2);
    for (int i = 0; i < 20000; i++) {
        const size_t bytes = cmq_vectors_next(&vectors, 68);
        uint8_t *data = malloc(bytes);
        for (size_t j = 0; j < bytes; j++) data[j] = (uint8_t)cmq_vectors_next(&vectors, 256);
        cmq_vectors_add(&vectors, cmq_murmur3_low64(data, bytes));
        free(data);
    }
    CHECK_INT(vectors.sum, UINT64_C(0x9c125c85d274c15f));
}

CMQ_TEST_MAIN(CMQ_TEST(test_known_hashes), CMQ_TEST(test_malformed_text_counts_as_java_decodes_it),
              CMQ_TEST(test_generated_texts_hash_as_in_java), CMQ_TEST(test_extend_is_the_hash_of_the_whole),
              CMQ_TEST(test_index_hash_is_never_negative), CMQ_TEST(test_murmur3_as_in_guava))
