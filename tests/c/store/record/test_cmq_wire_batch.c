/* test_cmq_wire_batch: batch bodies are read element by element, and never past their end. */
#include "store/record/cmq_wire_batch.h"

#include <stdlib.h>
#include <string.h>

#include "support/cmq_test.h"

#define TEXT(literal) ((cmq_slice){.data = (const uint8_t *)(literal), .bytes = sizeof(literal) - 1})

/* Two elements as a client sends them. */
static const uint8_t two[] = {
    0, 0, 0, 31, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 5, 'h', 'e', 'l', 'l', 'o', 0, 4, 'a', 1, 'b', 2,
    0, 0, 0, 22, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
};

static void test_two_elements(void)
{
    cmq_slice rest = {.data = two, .bytes = sizeof two};
    cmq_wire_batch_element element;
    CHECK_OK(cmq_wire_batch_next(&rest, &element));
    CHECK_INT(element.flag, 9);
    CHECK_BYTES(element.body.data, element.body.bytes, "hello", 5);
    CHECK_BYTES(element.properties.data, element.properties.bytes, "a\1b\2", 4);
    CHECK_OK(cmq_wire_batch_next(&rest, &element));
    CHECK_INT(element.body.bytes, 0);
    CHECK_INT(element.properties.bytes, 0);
    CHECK_STATUS(cmq_wire_batch_next(&rest, &element), CMQ_END);
    uint32_t count;
    CHECK_OK(cmq_wire_batch_count((cmq_slice){.data = two, .bytes = sizeof two}, &count));
    CHECK_INT(count, 2);
    CHECK_STATUS(cmq_wire_batch_count(CMQ_SLICE_NONE, &count), CMQ_ERR_CORRUPT);
    CHECK_INT(count, 0);
}

static void test_written_as_read(void)
{
    const cmq_wire_batch_element first = {.flag = 9, .body = TEXT("hello"), .properties = TEXT("a\1b\2")};
    const cmq_wire_batch_element second = {0};
    uint8_t *body = malloc(cmq_wire_batch_element_bytes(&first) + cmq_wire_batch_element_bytes(&second));
    const uint8_t *end = cmq_wire_batch_write(cmq_wire_batch_write(body, &first), &second);
    CHECK_BYTES(body, (size_t)(end - body), two, sizeof two);
    free(body);
}

/* The first `bytes` of `body`, in a block of their exact size. */
static cmq_status read_all(const uint8_t *body, size_t bytes)
{
    uint8_t *exact = malloc(bytes);
    if (bytes > 0) memcpy(exact, body, bytes);
    cmq_slice rest = {.data = exact, .bytes = bytes};
    cmq_wire_batch_element element;
    cmq_status status;
    while ((status = cmq_wire_batch_next(&rest, &element)) == CMQ_OK) {
        CHECK(element.body.data >= exact && element.body.data + element.body.bytes <= exact + bytes);
        CHECK(element.properties.data + element.properties.bytes == rest.data);
    }
    free(exact);
    return status;
}

static void test_prefixes_and_damage(void)
{
    for (size_t bytes = 0; bytes < sizeof two; bytes++)
        CHECK_STATUS(read_all(two, bytes), bytes == 0 || bytes == 31 ? CMQ_END : CMQ_ERR_CORRUPT);
    static const struct {
        size_t at;
        uint8_t byte;
    } damage[] = {{3, 21}, {3, 30}, {3, 53}, {0, 0x80}, {19, 6}, {16, 0xFF}, {16, 0x7F}, {25, 0xFF}, {26, 3}, {26, 5}};
    for (size_t i = 0; i < sizeof damage / sizeof damage[0]; i++) {
        uint8_t changed[sizeof two];
        memcpy(changed, two, sizeof two);
        changed[damage[i].at] = damage[i].byte;
        CHECK_STATUS(read_all(changed, sizeof changed), CMQ_ERR_CORRUPT);
    }
    for (int round = 0; round < 20000; round++) {
        uint8_t changed[sizeof two];
        memcpy(changed, two, sizeof two);
        for (int i = 0; i < 3; i++) changed[cmq_test_random_below(sizeof two)] = (uint8_t)cmq_test_random_below(64);
        CHECK(read_all(changed, sizeof changed) != CMQ_OK);
    }
}

CMQ_TEST_MAIN(CMQ_TEST(test_two_elements), CMQ_TEST(test_written_as_read), CMQ_TEST(test_prefixes_and_damage))
