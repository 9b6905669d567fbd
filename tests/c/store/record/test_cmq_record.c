/* test_cmq_record: the worked example byte for byte, and bytes that are no record.
 *
 * Source: store specification 14.1 (made and read by Java programs), 2.13.
 */
#include "store/record/cmq_record.h"

#include <stdlib.h>
#include <string.h>

#include "base/cmq_crc32.h"
#include "support/cmq_test.h"

#define TEXT(literal) ((cmq_slice){.data = (const uint8_t *)(literal), .bytes = sizeof(literal) - 1})
#define ALL_CHECKS (CMQ_RECORD_CHECK_BODY_CRC | CMQ_RECORD_CHECK_IF_PROPERTY_CRC)

/* The 182 bytes of 14.1, written by 5.2 and later. */
static const uint8_t example[182] = {
    0x00, 0x00, 0x00, 0xb6, 0xda, 0xa3, 0x20, 0xa7, 0x73, 0x30, 0x7b, 0x09, 0x00, 0x00, 0x00, 0x03,
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x07, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x01, 0x23, 0x45, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x01, 0x8b, 0xcf, 0xe5, 0x68, 0x7b,
    0xc0, 0xa8, 0x01, 0x0a, 0x00, 0x00, 0xd4, 0x31, 0x00, 0x00, 0x01, 0x8b, 0xcf, 0xe5, 0x69, 0xc8,
    0x0a, 0x00, 0x00, 0x05, 0x00, 0x00, 0x2a, 0x9f, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x0e, 0x68, 0x65, 0x6c, 0x6c, 0x6f, 0x20, 0x72, 0x6f,
    0x63, 0x6b, 0x65, 0x74, 0x6d, 0x71, 0x09, 0x54, 0x6f, 0x70, 0x69, 0x63, 0x54, 0x65, 0x73, 0x74,
    0x00, 0x44, 0x4b, 0x45, 0x59, 0x53, 0x01, 0x6f, 0x72, 0x64, 0x65, 0x72, 0x2d, 0x31, 0x30, 0x30,
    0x31, 0x02, 0x55, 0x4e, 0x49, 0x51, 0x5f, 0x4b, 0x45, 0x59, 0x01, 0x43, 0x30, 0x41, 0x38, 0x30,
    0x31, 0x30, 0x41, 0x32, 0x42, 0x35, 0x43, 0x31, 0x38, 0x42, 0x34, 0x41, 0x41, 0x43, 0x32, 0x30,
    0x30, 0x30, 0x30, 0x30, 0x30, 0x30, 0x30, 0x30, 0x30, 0x30, 0x31, 0x02, 0x54, 0x41, 0x47, 0x53,
    0x01, 0x54, 0x61, 0x67, 0x41, 0x02,
};

#define EXAMPLE_PROPERTIES "KEYS\1order-1001\2UNIQ_KEY\1C0A8010A2B5C18B4AAC2000000000001\2TAGS\1TagA\2"

static cmq_record_host ipv4(uint8_t a, uint8_t b, uint8_t c, uint8_t d, int32_t port)
{
    return (cmq_record_host){.address = {a, b, c, d}, .port = port};
}

static cmq_record_host ipv6(uint8_t last, int32_t port)
{
    return (cmq_record_host){.address = {0xfe, 0x80, [15] = last}, .port = port, .ipv6 = true};
}

static cmq_record_fields example_fields(void)
{
    return (cmq_record_fields){
        .topic = TEXT("TopicTest"),
        .body = TEXT("hello rocketmq"),
        .properties = TEXT(EXAMPLE_PROPERTIES),
        .queue_offset = 7,
        .physical_offset = 74565,
        .born_timestamp_ms = 1700000000123,
        .store_timestamp_ms = 1700000000456,
        .queue_id = 3,
        .born_host = ipv4(192, 168, 1, 10, 54321),
        .store_host = ipv4(10, 0, 0, 5, 10911),
    };
}

/* A record in a block of its exact size; the caller frees it. */
static uint8_t *encode(const cmq_record_fields *fields, uint32_t *bytes_out)
{
    cmq_record_sizes sizes;
    CHECK_OK(cmq_record_measure(fields, &sizes));
    uint8_t *record = malloc(sizes.record_bytes);
    CHECK(record != NULL);
    memset(record, 0xEE, sizes.record_bytes);
    cmq_record_encode(record, fields, &sizes);
    *bytes_out = sizes.record_bytes;
    return record;
}

static void check_encodes_to(const cmq_record_fields *fields, const uint8_t *expected, size_t expected_bytes)
{
    uint32_t bytes;
    uint8_t *record = encode(fields, &bytes);
    CHECK_BYTES(record, bytes, expected, expected_bytes);
    free(record);
}

static void test_worked_example(void)
{
    cmq_record_fields fields = example_fields();
    check_encodes_to(&fields, example, sizeof example);
    fields.has_body_crc = true;
    fields.body_crc = 1932557065;
    check_encodes_to(&fields, example, sizeof example);
}

/* The same properties, from the parts that the encoder can join. */
static void test_worked_example_from_parts(void)
{
    cmq_record_fields fields = example_fields();
    fields.keys = TEXT("order-1001");
    fields.properties = TEXT("UNIQ_KEY\1C0A8010A2B5C18B4AAC2000000000001");
    fields.properties_more = TEXT("TAGS\1TagA\2");
    check_encodes_to(&fields, example, sizeof example);
    fields.properties = TEXT("UNIQ_KEY\1C0A8010A2B5C18B4AAC2000000000001\2");
    check_encodes_to(&fields, example, sizeof example);
    fields.properties = CMQ_SLICE_NONE;
    fields.properties_more = TEXT("UNIQ_KEY\1C0A8010A2B5C18B4AAC2000000000001\2TAGS\1TagA\2");
    check_encodes_to(&fields, example, sizeof example);

    fields = example_fields();
    fields.tags = TEXT("A");
    fields.keys = TEXT("k");
    fields.properties = TEXT("x\1y");
    fields.body = fields.properties_more = CMQ_SLICE_NONE;
    uint32_t bytes;
    uint8_t *record = encode(&fields, &bytes);
    cmq_record_view view;
    CHECK_OK(cmq_record_parse(record, bytes, 74565, ALL_CHECKS, &view));
    CHECK_BYTES(view.properties.data, view.properties.bytes, "TAGS\1A\2KEYS\1k\2x\1y", 17);
    CHECK_INT(view.body.bytes, 0);
    CHECK_INT(view.body_crc, 0);
    free(record);
}

static void test_worked_example_of_older_brokers(void)
{
    cmq_record_fields fields = example_fields();
    fields.properties.bytes--;   /* they remove the last 0x02 */
    uint8_t expected[181];
    memcpy(expected, example, sizeof expected);
    expected[3] = 0xb5;
    expected[0x71] = 0x43;
    check_encodes_to(&fields, expected, sizeof expected);
}

static void test_worked_example_with_property_crc(void)
{
    uint8_t expected[202];
    memcpy(expected, example, sizeof example);
    expected[3] = 0xca;
    expected[0x71] = 88;
    memcpy(expected + 182, "__CRC32#\1" "8797103731\2", 20);
    cmq_record_fields fields = example_fields();
    fields.property_crc = CMQ_RECORD_PROPERTY_CRC_SINGLE;
    check_encodes_to(&fields, expected, sizeof expected);
    fields.properties.bytes--;   /* closed by the encoder: the same bytes */
    check_encodes_to(&fields, expected, sizeof expected);

    cmq_record_view view;
    CHECK_OK(cmq_record_parse(expected, sizeof expected, 74565, CMQ_RECORD_CHECK_PROPERTY_CRC, &view));
    CHECK_INT(view.properties.bytes, 88);
    CHECK_STATUS(cmq_record_parse(example, sizeof example, 74565, CMQ_RECORD_CHECK_PROPERTY_CRC, &view),
                 CMQ_ERR_CORRUPT);
    CHECK_INT(view.reason, CMQ_RECORD_BAD_PROPERTY_CRC);
    CHECK_OK(cmq_record_parse(example, sizeof example, 74565, CMQ_RECORD_CHECK_IF_PROPERTY_CRC, &view));
    expected[0x13] ^= 1;   /* the user's flag, which the body CRC does not cover */
    CHECK_OK(cmq_record_parse(expected, sizeof expected, 74565, CMQ_RECORD_CHECK_BODY_CRC, &view));
    CHECK_STATUS(cmq_record_parse(expected, sizeof expected, 74565, ALL_CHECKS, &view), CMQ_ERR_CORRUPT);
    CHECK_INT(view.reason, CMQ_RECORD_BAD_PROPERTY_CRC);
}

static void test_property_crc_of_the_batch_path(void)
{
    cmq_record_fields fields = example_fields();
    fields.properties = TEXT("a\1b");
    fields.property_crc = CMQ_RECORD_PROPERTY_CRC_BATCH;
    uint32_t bytes;
    uint8_t *record = encode(&fields, &bytes);
    CHECK_INT(bytes, 91 + 14 + 9 + 3 + 20);
    CHECK(memcmp(record + bytes - 23, "a\1b__CRC32#\1", 12) == 0);   /* as upstream: no 0x02 between */
    free(record);
    fields.properties = CMQ_SLICE_NONE;
    fields.property_crc = CMQ_RECORD_PROPERTY_CRC_SINGLE;
    record = encode(&fields, &bytes);
    CHECK_INT(bytes, 91 + 14 + 9 + 20);
    cmq_record_view view;
    CHECK_OK(cmq_record_parse(record, bytes, -1, CMQ_RECORD_CHECK_PROPERTY_CRC, &view));
    free(record);
}

static void test_worked_example_of_version_2(void)
{
    char topic[149];
    memset(topic, 't', sizeof topic);
    cmq_record_fields fields = example_fields();
    fields.topic = (cmq_slice){.data = (const uint8_t *)topic, .bytes = sizeof topic};
    fields.properties = CMQ_SLICE_NONE;
    fields.born_host = ipv6(1, 54321);
    fields.store_host = ipv6(2, 10911);
    uint32_t bytes;
    uint8_t *record = encode(&fields, &bytes);
    CHECK_INT(bytes, 279);
    CHECK_BYTES(record + 4, 4, "\xda\xa3\x20\xab", 4);
    CHECK_BYTES(record + 36, 4, "\x00\x00\x00\x30", 4);
    CHECK_INT(cmq_load_i64(record + 68), 1700000000456);
    CHECK_INT(cmq_load_i32(record + 108), 14);
    CHECK_BYTES(record + 126, 3, "\x00\x95t", 3);
    CHECK_BYTES(record + 277, 2, "\x00\x00", 2);

    cmq_record_view view;
    CHECK_OK(cmq_record_parse(record, bytes, 74565, ALL_CHECKS, &view));
    CHECK_BYTES(view.topic.data, view.topic.bytes, topic, sizeof topic);
    CHECK(view.born_host.ipv6 && view.store_host.ipv6);
    CHECK_INT(view.born_host.address[15], 1);
    CHECK_INT(view.store_host.address[15], 2);
    CHECK_INT(view.store_host.port, 10911);
    CHECK_INT(view.store_timestamp_ms, 1700000000456);
    cmq_record_head head;
    CHECK_OK(cmq_record_peek(record, bytes, &head));
    CHECK_INT(head.store_timestamp_ms, 1700000000456);
    free(record);
}

static void test_version_follows_the_topic(void)
{
    char topic[32768];
    memset(topic, 't', sizeof topic);
    cmq_record_fields fields = example_fields();
    cmq_record_sizes sizes;
    fields.topic = (cmq_slice){.data = (const uint8_t *)topic, .bytes = 127};
    CHECK_OK(cmq_record_measure(&fields, &sizes));
    CHECK(!sizes.v2);
    fields.version = CMQ_RECORD_VERSION_2;
    CHECK_OK(cmq_record_measure(&fields, &sizes));
    CHECK(sizes.v2);
    fields.topic.bytes = 128;
    fields.version = CMQ_RECORD_VERSION_AUTO;
    CHECK_OK(cmq_record_measure(&fields, &sizes));
    CHECK(sizes.v2);
    fields.version = CMQ_RECORD_VERSION_1;
    CHECK_STATUS(cmq_record_measure(&fields, &sizes), CMQ_ERR_TOPIC);
    fields.version = CMQ_RECORD_VERSION_AUTO;
    fields.topic.bytes = 32768;
    CHECK_STATUS(cmq_record_measure(&fields, &sizes), CMQ_ERR_TOPIC);
    fields.topic.bytes = 0;
    CHECK_STATUS(cmq_record_measure(&fields, &sizes), CMQ_ERR_TOPIC);
}

static void test_limits(void)
{
    static uint8_t text[40000];
    cmq_record_fields fields = example_fields();
    cmq_record_sizes sizes;
    fields.properties = (cmq_slice){.data = text, .bytes = 32767};
    CHECK_OK(cmq_record_measure(&fields, &sizes));
    CHECK_INT(sizes.property_bytes, 32767);
    fields.tags = TEXT("a");
    CHECK_STATUS(cmq_record_measure(&fields, &sizes), CMQ_ERR_TOO_LARGE);
    fields.tags = CMQ_SLICE_NONE;
    fields.property_crc = CMQ_RECORD_PROPERTY_CRC_BATCH;
    CHECK_STATUS(cmq_record_measure(&fields, &sizes), CMQ_ERR_TOO_LARGE);
    fields.properties.bytes = 32747;
    CHECK_OK(cmq_record_measure(&fields, &sizes));
    fields.properties_more = (cmq_slice){.data = text, .bytes = SIZE_MAX};
    CHECK_STATUS(cmq_record_measure(&fields, &sizes), CMQ_ERR_TOO_LARGE);
    fields.properties_more = CMQ_SLICE_NONE;
    fields.body.bytes = INT32_MAX;
    CHECK_STATUS(cmq_record_measure(&fields, &sizes), CMQ_ERR_TOO_LARGE);
    fields.body.bytes = SIZE_MAX - 10;
    CHECK_STATUS(cmq_record_measure(&fields, &sizes), CMQ_ERR_TOO_LARGE);
    CHECK_INT(sizes.record_bytes, 0);
}

static void test_worked_example_parsed(void)
{
    cmq_record_view view;
    CHECK_OK(cmq_record_parse(example, sizeof example, 74565, CMQ_RECORD_CHECK_BODY_CRC, &view));
    CHECK_INT(view.record_bytes, 182);
    CHECK_INT(view.magic, CMQ_RECORD_MAGIC_V1);
    CHECK_INT(view.reason, CMQ_RECORD_SOUND);
    CHECK_INT(view.body_crc, 1932557065);
    CHECK_INT(view.queue_id, 3);
    CHECK_INT(view.flag, 0);
    CHECK_INT(view.sys_flag, 0);
    CHECK_INT(view.reconsume_times, 0);
    CHECK_INT(view.queue_offset, 7);
    CHECK_INT(view.physical_offset, 74565);
    CHECK_INT(view.born_timestamp_ms, 1700000000123);
    CHECK_INT(view.store_timestamp_ms, 1700000000456);
    CHECK_INT(view.prepared_transaction_offset, 0);
    const cmq_record_host born = ipv4(192, 168, 1, 10, 54321), store = ipv4(10, 0, 0, 5, 10911);
    CHECK_BYTES(view.born_host.address, 16, born.address, 16);
    CHECK_BYTES(view.store_host.address, 16, store.address, 16);
    CHECK_INT(view.born_host.port, 54321);
    CHECK_INT(view.store_host.port, 10911);
    CHECK_BYTES(view.body.data, view.body.bytes, "hello rocketmq", 14);
    CHECK_BYTES(view.topic.data, view.topic.bytes, "TopicTest", 9);
    CHECK_BYTES(view.properties.data, view.properties.bytes, EXAMPLE_PROPERTIES, 68);

    cmq_record_head head;
    CHECK_OK(cmq_record_peek(example, sizeof example, &head));
    CHECK_INT(head.record_bytes, 182);
    CHECK_INT(head.queue_id, 3);
    CHECK_INT(head.queue_offset, 7);
    CHECK_INT(head.physical_offset, 74565);
    CHECK_INT(head.store_timestamp_ms, 1700000000456);
}

/* Each prefix in a block of its exact size, so that the address sanitizer sees a byte read too far. */
static void check_prefixes(const uint8_t *record, uint32_t bytes)
{
    for (uint32_t cut = 0; cut < bytes; cut++) {
        uint8_t *exact = malloc(cut);
        if (cut > 0) memcpy(exact, record, cut);
        cmq_record_view view;
        cmq_record_head head;
        CHECK_STATUS(cmq_record_parse(exact, cut, -1, ALL_CHECKS, &view), CMQ_AGAIN);
        CHECK_STATUS(cmq_record_peek(exact, cut, &head), CMQ_AGAIN);
        CHECK_INT(view.record_bytes, cut < 8 ? 0 : bytes);
        CHECK(view.body.data == NULL);
        free(exact);
    }
}

static void test_every_prefix_is_not_enough(void)
{
    check_prefixes(example, sizeof example);
    cmq_record_fields fields = example_fields();
    fields.born_host = ipv6(1, 2);
    fields.store_host = ipv6(3, 4);
    fields.version = CMQ_RECORD_VERSION_2;
    fields.property_crc = CMQ_RECORD_PROPERTY_CRC_SINGLE;
    uint32_t bytes;
    uint8_t *record = encode(&fields, &bytes);
    check_prefixes(record, bytes);
    free(record);
    uint8_t blank[300] = {0};
    cmq_record_write_blank(blank, sizeof blank);
    check_prefixes(blank, sizeof blank);
}

static void test_blank_record(void)
{
    uint8_t blank[300] = {0};
    cmq_record_write_blank(blank, sizeof blank);
    CHECK_BYTES(blank, 8, "\x00\x00\x01\x2c\xcb\xd4\x31\x94", 8);
    cmq_record_view view;
    CHECK_STATUS(cmq_record_parse(blank, sizeof blank, 4096, ALL_CHECKS, &view), CMQ_END);
    CHECK_INT(view.record_bytes, 300);
    cmq_record_head head;
    CHECK_STATUS(cmq_record_peek(blank, sizeof blank, &head), CMQ_END);
    CHECK_INT(head.record_bytes, 300);
    cmq_record_write_blank(blank, 8);
    CHECK_STATUS(cmq_record_parse(blank, 8, 4096, ALL_CHECKS, &view), CMQ_END);
    cmq_store_u32(blank, 7);
    CHECK_STATUS(cmq_record_parse(blank, 8, 4096, ALL_CHECKS, &view), CMQ_ERR_CORRUPT);
}

static void check_refused(const uint8_t *bytes, size_t count, cmq_record_reason reason)
{
    cmq_record_view view;
    CHECK_STATUS(cmq_record_parse(bytes, count, 74565, ALL_CHECKS, &view), CMQ_ERR_CORRUPT);
    CHECK_INT(view.reason, reason);
    CHECK_INT(cmq_last_error()->offset, 74565);
    CHECK(strstr(cmq_last_error()->text, cmq_record_reason_text(reason)) != NULL);
    CHECK(view.body.data == NULL);
}

/* The example with one place overwritten. */
static void check_change_refused(size_t at, const char *bytes, size_t count, cmq_record_reason reason)
{
    uint8_t *changed = malloc(sizeof example);
    memcpy(changed, example, sizeof example);
    memcpy(changed + at, bytes, count);
    check_refused(changed, sizeof example, reason);
    free(changed);
}

static void test_why_bytes_are_no_record(void)
{
    const uint8_t zeros[200] = {0};
    check_refused(zeros, sizeof zeros, CMQ_RECORD_EMPTY);
    check_change_refused(4, "\0\0\0\0", 4, CMQ_RECORD_BAD_MAGIC);
    check_change_refused(7, "\xa8", 1, CMQ_RECORD_BAD_MAGIC);
    check_change_refused(0, "\0\0\0\x5a", 4, CMQ_RECORD_BAD_SIZE);
    check_change_refused(0, "\xff\xff\xff\xff", 4, CMQ_RECORD_BAD_SIZE);
    check_change_refused(0, "\0\0\0\xb5", 4, CMQ_RECORD_BAD_SIZE);
    check_change_refused(7, "\xab", 1, CMQ_RECORD_BAD_SIZE);                   /* version 2 moves the topic */
    check_change_refused(0x54, "\x7f\xff\xff\xff", 4, CMQ_RECORD_BAD_SIZE);    /* body length */
    check_change_refused(0x54, "\xff\xff\xff\xff", 4, CMQ_RECORD_BAD_SIZE);
    check_change_refused(0x66, "\xff", 1, CMQ_RECORD_BAD_SIZE);                /* topic length, read as -1 */
    check_change_refused(0x66, "\x7f", 1, CMQ_RECORD_BAD_SIZE);
    check_change_refused(0x70, "\x7f\xff", 2, CMQ_RECORD_BAD_SIZE);            /* property length */
    check_change_refused(0x70, "\xff\xff", 2, CMQ_RECORD_BAD_SIZE);
    check_change_refused(0x27, "\x10", 1, CMQ_RECORD_BAD_SIZE);                /* the born host grows */
    check_change_refused(0x58, "H", 1, CMQ_RECORD_BAD_BODY_CRC);
    check_change_refused(0x08, "\xf3", 1, CMQ_RECORD_BAD_BODY_CRC);            /* the sign bit is no part of a CRC */
    check_change_refused(0x23, "\x46", 1, CMQ_RECORD_BAD_OFFSET);

    cmq_record_view view;
    CHECK_OK(cmq_record_parse(example, sizeof example, -1, ALL_CHECKS, &view));
    CHECK_STATUS(cmq_record_parse(example, sizeof example, 0, ALL_CHECKS, &view), CMQ_ERR_CORRUPT);
    CHECK_INT(view.reason, CMQ_RECORD_BAD_OFFSET);
    CHECK_INT(view.record_bytes, 182);
}

/* The least record of version 1, where version 2 or IPv6 hosts need more bytes than there are. */
static void test_least_record(void)
{
    uint8_t *record = calloc(1, CMQ_RECORD_BYTES_MIN);
    CHECK(record != NULL);
    cmq_store_u32(record, CMQ_RECORD_BYTES_MIN);
    cmq_store_u32(record + 4, CMQ_RECORD_MAGIC_V1);
    cmq_store_i64(record + CMQ_RECORD_AT_PHYSICAL_OFFSET, 74565);
    cmq_record_view view;
    CHECK_OK(cmq_record_parse(record, CMQ_RECORD_BYTES_MIN, 74565, ALL_CHECKS, &view));
    CHECK_INT(view.body.bytes + view.topic.bytes + view.properties.bytes, 0);
    for (uint32_t host_bits = 0x10; host_bits <= 0x30; host_bits += 0x10) {
        cmq_store_u32(record + CMQ_RECORD_AT_SYS_FLAG, host_bits);
        check_refused(record, CMQ_RECORD_BYTES_MIN, CMQ_RECORD_BAD_SIZE);
    }
    cmq_store_u32(record + CMQ_RECORD_AT_SYS_FLAG, 0);
    cmq_store_u32(record + 4, CMQ_RECORD_MAGIC_V2);
    check_refused(record, CMQ_RECORD_BYTES_MIN, CMQ_RECORD_BAD_SIZE);
    free(record);
}

static void test_negative_property_length_counts_as_none(void)
{
    uint8_t record[182 - 68];
    memcpy(record, example, sizeof record);
    cmq_store_u32(record, sizeof record);
    cmq_store_i16(record + 0x70, -1);
    cmq_record_view view;
    CHECK_OK(cmq_record_parse(record, sizeof record, -1, ALL_CHECKS, &view));
    CHECK_INT(view.properties.bytes, 0);
}

/* The sign bit of the body's length, of a body that reads as a topic's and the properties' lengths. */
static void test_negative_body_length_is_damage(void)
{
    enum { BODY = 88, REST = sizeof example - BODY - 3 };
    uint8_t record[sizeof example];
    memcpy(record, example, sizeof record);
    record[BODY - 4] |= 0x80;
    record[BODY] = 0;
    cmq_store_i16(record + BODY + 1, REST);
    cmq_record_view view;
    CHECK_OK(cmq_record_parse(record, sizeof record, -1, 0, &view));
    CHECK_INT(view.body.bytes, 0);
    CHECK_STATUS(cmq_record_parse(record, sizeof record, -1, CMQ_RECORD_CHECK_BODY_CRC, &view), CMQ_ERR_CORRUPT);
    CHECK_INT(view.reason, CMQ_RECORD_BAD_BODY_CRC);
    CHECK(!cmq_record_is_whole(record, sizeof record, false));
}

static void check_tiles(const uint8_t *at, const cmq_record_view *view)
{
    CHECK(view->body.data > at && view->topic.data > view->body.data + view->body.bytes);
    CHECK(view->properties.data == view->topic.data + view->topic.bytes + 2);
    CHECK(view->properties.data + view->properties.bytes == at + view->record_bytes);
}

static cmq_record_fields random_fields(uint8_t *text, size_t text_bytes)
{
    for (size_t i = 0; i < text_bytes; i++) text[i] = (uint8_t)(3 + cmq_test_random_below(200));
    cmq_record_fields fields = example_fields();
    fields.topic = (cmq_slice){.data = text, .bytes = 1 + (size_t)cmq_test_random_below(150)};
    fields.body = (cmq_slice){.data = text, .bytes = (size_t)cmq_test_random_below(300)};
    fields.tags = (cmq_slice){.data = text, .bytes = (size_t)cmq_test_random_below(12)};
    fields.keys = (cmq_slice){.data = text, .bytes = (size_t)cmq_test_random_below(40)};
    fields.properties = cmq_test_random_below(2) ? TEXT("a\1b") : CMQ_SLICE_NONE;
    fields.properties_more = cmq_test_random_below(2) ? TEXT("UNIQ_KEY\1x\2") : CMQ_SLICE_NONE;
    fields.queue_offset = (int64_t)cmq_test_random();
    fields.physical_offset = (int64_t)(cmq_test_random() >> 1);
    fields.sys_flag = (int32_t)cmq_test_random();
    fields.reconsume_times = (int32_t)cmq_test_random();
    fields.prepared_transaction_offset = (int64_t)cmq_test_random();
    if (cmq_test_random_below(2)) fields.born_host = ipv6(9, -1);
    if (cmq_test_random_below(2)) fields.store_host = ipv6(8, 1 << 20);
    if (fields.topic.bytes <= 127) fields.version = (cmq_record_version)cmq_test_random_below(3);
    fields.property_crc = (cmq_record_property_crc)cmq_test_random_below(3);
    return fields;
}

/* Every record that can be written reads back; damaged, it is refused or its slices still tile it. */
static void test_random_records_and_damage(void)
{
    uint8_t text[512];
    for (int round = 0; round < 3000; round++) {
        const cmq_record_fields fields = random_fields(text, sizeof text);
        uint32_t bytes;
        uint8_t *record = encode(&fields, &bytes);
        cmq_record_view view;
        CHECK_OK(cmq_record_parse(record, bytes, fields.physical_offset, CMQ_RECORD_CHECK_BODY_CRC, &view));
        check_tiles(record, &view);
        CHECK_INT(view.record_bytes, bytes);
        CHECK_INT(view.queue_offset, fields.queue_offset);
        CHECK_INT(view.sys_flag & ~0x30, fields.sys_flag & ~0x30);
        CHECK_INT(view.born_host.ipv6, fields.born_host.ipv6);
        CHECK_INT(view.store_host.port, fields.store_host.port);
        CHECK_INT(view.reconsume_times, fields.reconsume_times);
        CHECK_INT(view.prepared_transaction_offset, fields.prepared_transaction_offset);
        CHECK(cmq_slice_equal(view.body, fields.body) && cmq_slice_equal(view.topic, fields.topic));
        if (fields.property_crc == CMQ_RECORD_PROPERTY_CRC_SINGLE)
            CHECK_OK(cmq_record_parse(record, bytes, -1, CMQ_RECORD_CHECK_PROPERTY_CRC, &view));

        for (int change = 0; change < 8; change++) {
            const uint32_t front = bytes < 140 ? bytes : 140;   /* most damage where the fields are */
            const size_t at = (size_t)cmq_test_random_below(cmq_test_random_below(3) == 0 ? bytes : front);
            const uint8_t before = record[at];
            record[at] = (uint8_t)cmq_test_random();
            if (cmq_record_parse(record, bytes, -1, 0, &view) == CMQ_OK) check_tiles(record, &view);
            record[at] = before;
        }
        free(record);
    }
}

/* With the property CRC on, no single flipped bit goes unseen but in the CRC's own text. */
static void test_property_crc_sees_every_bit(void)
{
    cmq_record_fields fields = example_fields();
    fields.property_crc = CMQ_RECORD_PROPERTY_CRC_SINGLE;
    uint32_t bytes;
    uint8_t *record = encode(&fields, &bytes);
    for (size_t bit = 0; bit < (size_t)(bytes - 20) * 8; bit++) {
        record[bit / 8] = (uint8_t)(record[bit / 8] ^ 1u << bit % 8);
        cmq_record_view view;
        CHECK(cmq_record_parse(record, bytes, 74565, CMQ_RECORD_CHECK_PROPERTY_CRC, &view) != CMQ_OK);
        record[bit / 8] = (uint8_t)(record[bit / 8] ^ 1u << bit % 8);
    }
    free(record);
}

CMQ_TEST_MAIN(CMQ_TEST(test_worked_example), CMQ_TEST(test_worked_example_from_parts),
              CMQ_TEST(test_worked_example_of_older_brokers), CMQ_TEST(test_worked_example_with_property_crc),
              CMQ_TEST(test_property_crc_of_the_batch_path), CMQ_TEST(test_worked_example_of_version_2),
              CMQ_TEST(test_version_follows_the_topic), CMQ_TEST(test_limits), CMQ_TEST(test_worked_example_parsed),
              CMQ_TEST(test_every_prefix_is_not_enough), CMQ_TEST(test_blank_record),
              CMQ_TEST(test_why_bytes_are_no_record), CMQ_TEST(test_least_record),
              CMQ_TEST(test_negative_property_length_counts_as_none), CMQ_TEST(test_negative_body_length_is_damage),
              CMQ_TEST(test_random_records_and_damage), CMQ_TEST(test_property_crc_sees_every_bit))
