/* test_cmq_property: property strings are read as upstream's decoder reads them, and refused when they cannot be
 *                    stored.
 *
 * Source: tests/c/vectors/CodecVectors.java makes the same strings and prints the sum that upstream's decoder gives.
 */
#include "store/record/cmq_property.h"

#include <stdlib.h>
#include <string.h>

#include "base/cmq_hash.h"
#include "support/cmq_test.h"
#include "support/cmq_vectors.h"

#define TEXT(literal) ((cmq_slice){.data = (const uint8_t *)(literal), .bytes = sizeof(literal) - 1})

/* A copy in a block of its exact size, so that the address sanitizer sees a byte read too far. */
static cmq_slice exact_copy(cmq_slice text)
{
    uint8_t *data = malloc(text.bytes);
    if (text.bytes > 0) memcpy(data, text.data, text.bytes);
    return (cmq_slice){.data = data, .bytes = text.bytes};
}

static void check_text(cmq_slice actual, const char *expected)
{
    CHECK_BYTES(actual.data, actual.bytes, expected, strlen(expected));
}

static void test_pairs_in_order(void)
{
    cmq_slice rest = TEXT("KEYS\1order-1001\2TAGS\1TagA\2"), name, value;
    CHECK(cmq_property_next(&rest, &name, &value));
    check_text(name, "KEYS");
    check_text(value, "order-1001");
    CHECK(cmq_property_next(&rest, &name, &value));
    check_text(name, "TAGS");
    check_text(value, "TagA");
    CHECK(!cmq_property_next(&rest, &name, &value));
    CHECK_INT(name.bytes, 0);
    CHECK_INT(value.bytes, 0);
}

static void test_pieces_that_upstream_drops(void)
{
    static const char *const dropped[] = {"", "\2", "\2\2\2", "\1", "\1\2", "a\2", "a\1\2", "a\1", "\1value\2", "name"};
    for (size_t i = 0; i < sizeof dropped / sizeof dropped[0]; i++) {
        cmq_slice rest = cmq_slice_of_text(dropped[i]), name, value;
        CHECK(!cmq_property_next(&rest, &name, &value));
    }
    cmq_slice rest = TEXT("a\1\2\1x\2b\1c\1d\2\2e\1f"), name, value;
    CHECK(cmq_property_next(&rest, &name, &value));
    check_text(name, "b");
    check_text(value, "c\1d");   /* only the first 0x01 divides */
    CHECK(cmq_property_next(&rest, &name, &value));
    check_text(name, "e");       /* the last 0x02 may be missing */
    check_text(value, "f");
    CHECK(!cmq_property_next(&rest, &name, &value));
}

static void check_found(cmq_slice properties, const char *name, const char *expected)
{
    cmq_slice value;
    const cmq_slice exact = exact_copy(properties);
    const bool found = cmq_property_find(exact, cmq_slice_of_text(name), &value);
    CHECK_INT(found, expected != NULL);
    if (found) check_text(value, expected);
    CHECK_INT(found ? 1 : 0, value.bytes > 0);
    free((void *)(uintptr_t)exact.data);
}

static void test_find_takes_the_last(void)
{
    check_found(TEXT("TAGS\1a\2"), "TAGS", "a");
    check_found(TEXT("TAGS\1a"), "TAGS", "a");
    check_found(TEXT("TAGS\1a\2TAGS\1b\2"), "TAGS", "b");
    check_found(TEXT("TAGS\1a\2TAGS\1\2"), "TAGS", "a");      /* a pair without a value does not count */
    check_found(TEXT("xTAGS\1a\2"), "TAGS", NULL);
    check_found(TEXT("AGS\1a\2"), "TAGS", NULL);
    check_found(TEXT("x\1TAGS\1a\2"), "TAGS", NULL);          /* inside a value */
    check_found(TEXT("x\1TAGS\2TAGS\2"), "TAGS", NULL);
    check_found(TEXT("\2TAGS\1a"), "TAGS", "a");
    check_found(TEXT("a\1b\2"), "a", "b");
    check_found(CMQ_SLICE_NONE, "TAGS", NULL);
}

/* A value and a name at every place around the 64-byte blocks of the search. */
static void test_find_across_blocks(void)
{
    for (size_t before = 0; before < 200; before++) {
        for (size_t length = 1; length < 140; length += 7) {
            char text[512] = {0};
            char *at = text;
            if (before >= 3) {
                at += 2;
                memcpy(text, "x\1", 2);
                for (size_t i = 0; i + 3 < before; i++) *at++ = 'y';
                *at++ = '\2';
            }
            memcpy(at, "TAGS\1", 5);
            at += 5;
            char expected[160] = {0};
            for (size_t i = 0; i < length; i++) *at++ = expected[i] = (char)('a' + i % 26);
            memcpy(at, "\2KEYS\1k", 7);
            check_found(cmq_slice_of_text(text), "TAGS", expected);
            check_found(cmq_slice_of_text(text), "KEYS", "k");
            cmq_property_known known;
            cmq_property_find_known(cmq_slice_of_text(text), &known);
            check_text(known.value[CMQ_PROPERTY_TAGS], expected);
            check_text(known.value[CMQ_PROPERTY_KEYS], "k");
        }
    }
}

static void test_every_known_name(void)
{
    static const char *const names[CMQ_PROPERTY_KNOWN_COUNT] = {
        [CMQ_PROPERTY_TAGS] = "TAGS",
        [CMQ_PROPERTY_KEYS] = "KEYS",
        [CMQ_PROPERTY_UNIQ_KEY] = "UNIQ_KEY",
        [CMQ_PROPERTY_DELAY] = "DELAY",
        [CMQ_PROPERTY_INNER_NUM] = "INNER_NUM",
        [CMQ_PROPERTY_INNER_BASE] = "INNER_BASE",
        [CMQ_PROPERTY_INNER_MULTI_DISPATCH] = "INNER_MULTI_DISPATCH",
        [CMQ_PROPERTY_INNER_MULTI_QUEUE_OFFSET] = "INNER_MULTI_QUEUE_OFFSET",
        [CMQ_PROPERTY_DUP_INFO] = "DUP_INFO",
        [CMQ_PROPERTY_CRC32] = "__CRC32#",
        [CMQ_PROPERTY_POP_CK] = "POP_CK",
    };
    uint8_t buffer[1024];
    size_t used = 0;
    for (int i = 1; i < CMQ_PROPERTY_KNOWN_COUNT; i++) {
        CHECK_OK(cmq_property_append(buffer, sizeof buffer, &used, cmq_slice_of_text(names[i]), TEXT("first")));
        CHECK_OK(cmq_property_append(buffer, sizeof buffer, &used, TEXT("OTHER_BATCH"), TEXT("no")));
    }
    for (int i = 1; i < CMQ_PROPERTY_KNOWN_COUNT; i++) {
        const char value[2] = {(char)('0' + i), 0};
        const cmq_slice name = cmq_slice_of_text(names[i]);
        CHECK_OK(cmq_property_append(buffer, sizeof buffer, &used, name, cmq_slice_of_text(value)));
    }
    cmq_property_known known;
    cmq_property_find_known((cmq_slice){.data = buffer, .bytes = used}, &known);
    CHECK_INT(known.value[CMQ_PROPERTY_OTHER].bytes, 0);
    for (int i = 1; i < CMQ_PROPERTY_KNOWN_COUNT; i++) {
        CHECK_INT(known.value[i].bytes, 1);
        CHECK_INT(known.value[i].data[0], '0' + i);
    }
}

/* The sum over all pairs that are the last of their name, as a map has them. */
static uint64_t sum_of_pairs(cmq_slice properties)
{
    uint64_t all = 0;
    cmq_slice rest = properties, name, value, last;
    while (cmq_property_next(&rest, &name, &value)) {
        CHECK(cmq_property_find(properties, name, &last));
        if (last.data == value.data) all += (uint32_t)(cmq_jhash(name) * 31 + cmq_jhash(value));
    }
    return all;
}

static void test_generated_strings_read_as_upstream_does(void)
{
    static const char *const pieces[] = {
        "TAGS", "KEYS", "UNIQ_KEY", "DELAY", "INNER_NUM", "X", "xTAGS", "\1", "\1", "\1", "\2",
        "\2", "\2", "a", "value", "some longer value of a property that passes a block"};
    static const cmq_property_name asked[] = {CMQ_PROPERTY_TAGS, CMQ_PROPERTY_KEYS, CMQ_PROPERTY_UNIQ_KEY,
                                              CMQ_PROPERTY_DELAY, CMQ_PROPERTY_INNER_NUM};
    cmq_vectors vectors = cmq_vectors_begin(4);
    for (int i = 0; i < 100000; i++) {
        char text[2048] = {0};
        size_t bytes = 0;
        const uint32_t count = cmq_vectors_next(&vectors, 20);
        for (uint32_t j = 0; j < count; j++) {
            const char *piece = pieces[cmq_vectors_next(&vectors, sizeof pieces / sizeof pieces[0])];
            memcpy(text + bytes, piece, strlen(piece));
            bytes += strlen(piece);
        }
        const cmq_slice exact = exact_copy((cmq_slice){.data = (const uint8_t *)text, .bytes = bytes});
        cmq_vectors_add(&vectors, sum_of_pairs(exact));
        cmq_property_known known;
        cmq_property_find_known(exact, &known);
        for (size_t j = 0; j < sizeof asked / sizeof asked[0]; j++) {
            const cmq_slice value = known.value[asked[j]];
            cmq_vectors_add(&vectors, value.bytes == 0 ? 0 : (uint64_t)cmq_jhash(value) + 1);
        }
        free((void *)(uintptr_t)exact.data);
    }
    CHECK_INT(vectors.sum, UINT64_C(0xd1d6f677b5b9fd0d));
}

static void test_forbidden_records_are_refused(void)
{
    CHECK_OK(cmq_property_check_name(TEXT("a")));
    CHECK_OK(cmq_property_check_name(TEXT("__RMQ.TRANSIENT")));
    CHECK_STATUS(cmq_property_check_name(CMQ_SLICE_NONE), CMQ_ERR_ARGUMENT);
    CHECK_STATUS(cmq_property_check_name(TEXT("a\1b")), CMQ_ERR_ARGUMENT);
    const cmq_slice late = TEXT("a name that has a two at its very end, beyond sixty-four bytes, here\2");
    CHECK_STATUS(cmq_property_check_name(late), CMQ_ERR_ARGUMENT);
    CHECK_STATUS(cmq_property_check_name(TEXT("__RMQ.TRANSIENT.x")), CMQ_ERR_ARGUMENT);
    CHECK_OK(cmq_property_check_value(TEXT("a"), CMQ_SLICE_NONE));
    CHECK_OK(cmq_property_check_value(TEXT("a"), TEXT("\3\xc3\xa9")));
    CHECK_STATUS(cmq_property_check_value(TEXT("a"), TEXT("\2")), CMQ_ERR_ARGUMENT);
    CHECK_STATUS(cmq_property_check_value(TEXT("a"), TEXT("0123456789abcdef\1")), CMQ_ERR_ARGUMENT);
    CHECK(strstr(cmq_last_error()->text, "\"a\"") != NULL);
}

static void test_append_stops_at_the_capacity(void)
{
    uint8_t buffer[12];
    size_t used = 0;
    CHECK_OK(cmq_property_append(buffer, sizeof buffer, &used, TEXT("ab"), TEXT("cd")));
    CHECK_BYTES(buffer, used, "ab\1cd\2", 6);
    CHECK_OK(cmq_property_append(buffer, sizeof buffer, &used, TEXT("ab"), CMQ_SLICE_NONE));
    CHECK_INT(used, 6);
    CHECK_STATUS(cmq_property_append(buffer, sizeof buffer, &used, TEXT("ab"), TEXT("cde")), CMQ_ERR_TOO_LARGE);
    CHECK_STATUS(cmq_property_append(buffer, sizeof buffer, &used, TEXT("abcdefg"), TEXT("c")), CMQ_ERR_TOO_LARGE);
    CHECK_INT(used, 6);
    CHECK_OK(cmq_property_append(buffer, sizeof buffer, &used, TEXT("ef"), TEXT("gh")));
    CHECK_BYTES(buffer, used, "ab\1cd\2ef\1gh\2", 12);
    CHECK_STATUS(cmq_property_append(buffer, sizeof buffer, &used, TEXT("a"), TEXT("b")), CMQ_ERR_TOO_LARGE);
}

CMQ_TEST_MAIN(CMQ_TEST(test_pairs_in_order), CMQ_TEST(test_pieces_that_upstream_drops),
              CMQ_TEST(test_find_takes_the_last), CMQ_TEST(test_find_across_blocks), CMQ_TEST(test_every_known_name),
              CMQ_TEST(test_generated_strings_read_as_upstream_does), CMQ_TEST(test_forbidden_records_are_refused),
              CMQ_TEST(test_append_stops_at_the_capacity))
