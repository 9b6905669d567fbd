/* Tests csrc/broker/pop/record/cmq_pop_handle.c: handles as clients send them, and malformed ones; info strings; names
 * of retry topics. */
#include "broker/pop/record/cmq_pop_handle.h"

#include <stdio.h>
#include <string.h>

#include "support/cmq_test.h"

static cmq_slice of(const char *text) { return cmq_slice_of_text(text); }

static const char *written(const cmq_pop_handle *handle)
{
    static char text[CMQ_POP_HANDLE_BYTES_MAX + 1];
    const size_t bytes = cmq_pop_handle_write(handle, (uint8_t *)text);
    text[bytes] = '\0';
    return text;
}

#define CHECK_SLICE(actual, expected) CHECK_BYTES((actual).data, (actual).bytes, expected, strlen(expected))

static void a_handle_is_read_and_written(void)
{
    cmq_pop_handle handle;
    const char *text = "100 1700000000000 60000 3 0 broker-a 2 101";
    CHECK_OK(cmq_pop_handle_parse(of(text), &handle));
    CHECK_INT(handle.start_offset, 100);
    CHECK_INT(handle.pop_ms, INT64_C(1700000000000));
    CHECK_INT(handle.invisible_ms, 60000);
    CHECK_INT(handle.revive_queue, 3);
    CHECK_INT(handle.retry, CMQ_POP_NORMAL);
    CHECK_SLICE(handle.broker, "broker-a");
    CHECK_INT(handle.queue_id, 2);
    CHECK_INT(handle.offset, 101);
    CHECK_SLICE(of(written(&handle)), text);
}

static void a_handle_without_its_last_field(void)
{
    cmq_pop_handle handle;
    const char *text = "0 1795260306494 10000 999 2 broker-a 0";
    CHECK_OK(cmq_pop_handle_parse(of(text), &handle));
    CHECK_INT(handle.offset, -1);
    CHECK_INT(handle.revive_queue, CMQ_POP_REVIVE_ORDER);
    CHECK_INT(handle.retry, CMQ_POP_RETRY_V2);
    CHECK_SLICE(of(written(&handle)), text);
}

static void malformed_handles_are_rejected(void)
{
    static const char *const wrong[] = {
        "",
        " ",
        "1",
        "100 1700000000000 60000 3 0 broker-a",
        "100 1700000000000 60000 3 0 broker-a 2 101 5",
        "100 1700000000000 60000 3 0 broker-a 2 ",
        " 100 1700000000000 60000 3 0 broker-a 2",
        "100  1700000000000 60000 3 0 broker-a 2",
        "x 1700000000000 60000 3 0 broker-a 2 101",
        "-1 1700000000000 60000 3 0 broker-a 2 101",
        "100 -5 60000 3 0 broker-a 2 101",
        "100 1700000000000 60000 -1 0 broker-a 2 101",
        "100 1700000000000 60000 3 3 broker-a 2 101",
        "100 1700000000000 60000 3 00 broker-a 2 101",
        "100 1700000000000 60000 3 0 broker-a -2 101",
        "100 1700000000000 60000 3 0 broker-a 2 -1",
        "9223372036854775807 1700000000000 60000 3 0 broker-a 2 101",
        "100 9223372036854775807 60000 3 0 broker-a 2 101",
        "100 1700000000000 9223372036854775807 3 0 broker-a 2 101",
        "100 1700000000000 60000 4294967296 0 broker-a 2 101",
        "100 1700000000000 60000 3 0 broker-a 4294967296 101",
        "99999999999999999999 1700000000000 60000 3 0 broker-a 2 101",
    };
    cmq_pop_handle handle;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        if (cmq_pop_handle_parse(of(wrong[i]), &handle) != CMQ_ERR_ARGUMENT)
            cmq_test_fail(__FILE__, __LINE__, "'%s' was taken for a handle", wrong[i]);
        CHECK(strstr(cmq_last_error()->text, "handle") != NULL);
    }
    char text[400];
    snprintf(text, sizeof text, "1 2 3 4 0 %0256d 5 6", 0);
    CHECK_STATUS(cmq_pop_handle_parse(of(text), &handle), CMQ_ERR_ARGUMENT);
    snprintf(text, sizeof text, "1 2 3 4 0 %0255d 5 6", 0);
    CHECK_OK(cmq_pop_handle_parse(of(text), &handle));
}

static void the_longest_handle_fits(void)
{
    uint8_t broker[CMQ_POP_BROKER_BYTES_MAX], into[CMQ_POP_HANDLE_BYTES_MAX];
    memset(broker, 'b', sizeof broker);
    const cmq_pop_handle longest = {
        INT64_MIN, INT64_MIN, INT64_MIN, INT32_MIN, CMQ_POP_RETRY_V2, {broker, sizeof broker}, INT32_MIN, INT64_MAX};
    CHECK(cmq_pop_handle_write(&longest, into) <= sizeof into);
}

static void info_strings(void)
{
    uint8_t bytes[64];
    cmq_text info = {.begin = bytes, .capacity = sizeof bytes};
    cmq_pop_info_start(&info, CMQ_POP_NORMAL, 0, 0);
    cmq_pop_info_start(&info, CMQ_POP_RETRY_V1, 12, 345);
    CHECK_BYTES(bytes, info.used, "0 0 0;1 12 345", 14);
    info.used = 0;
    cmq_pop_info_offsets(&info, CMQ_POP_NORMAL, 0, (const int64_t[]){0, 1, 29}, 3);
    cmq_pop_info_offsets(&info, CMQ_POP_RETRY_V2, 1, (const int64_t[]){7}, 1);
    CHECK_BYTES(bytes, info.used, "0 0 0,1,29;2 1 7", 16);
    info.used = 0;
    cmq_pop_info_offset_count(&info, CMQ_POP_NORMAL, 3, 105, 2);
    cmq_pop_info_queue_count(&info, CMQ_POP_NORMAL, 3, 1);
    CHECK_BYTES(bytes, info.used, "0 qo3%105 2;0 3 1", 17);
    CHECK(cmq_text_fits(&info));
}

static void an_info_string_that_does_not_fit_says_how_long_it_is(void)
{
    uint8_t bytes[8] = "........";
    cmq_text info = {.begin = bytes, .capacity = 7};
    cmq_pop_info_offsets(&info, CMQ_POP_NORMAL, 0, (const int64_t[]){100, 101}, 2);
    CHECK(!cmq_text_fits(&info));
    CHECK_INT(info.used, 11);
    CHECK_INT(bytes[7], '.');
}

static void retry_topics_by_name(void)
{
    uint8_t into[CMQ_POP_TOPIC_BYTES_MAX];
    cmq_slice name, topic;
    CHECK_OK(cmq_pop_retry_topic(of("g_pop"), of("PopT"), CMQ_POP_RETRY_V1, into, &name));
    CHECK_SLICE(name, "%RETRY%g_pop_PopT");
    CHECK_INT(cmq_pop_retry_of(name), CMQ_POP_RETRY_V1);
    CHECK_OK(cmq_pop_normal_topic(name, of("g_pop"), &topic));
    CHECK_SLICE(topic, "PopT");
    CHECK_OK(cmq_pop_retry_topic(of("g_pop"), of("PopT"), CMQ_POP_RETRY_V2, into, &name));
    CHECK_SLICE(name, "%RETRY%g_pop+PopT");
    CHECK_INT(cmq_pop_retry_of(name), CMQ_POP_RETRY_V2);
    CHECK_OK(cmq_pop_normal_topic(name, of("g_pop"), &topic));
    CHECK_SLICE(topic, "PopT");
    CHECK_OK(cmq_pop_retry_topic(of("g"), of("PopT"), CMQ_POP_NORMAL, into, &name));
    CHECK_SLICE(name, "PopT");
    CHECK_INT(cmq_pop_retry_of(name), CMQ_POP_NORMAL);
    CHECK_OK(cmq_pop_normal_topic(name, of("g"), &topic));
    CHECK_SLICE(topic, "PopT");
}

static void retry_topics_of_nobody(void)
{
    uint8_t into[CMQ_POP_TOPIC_BYTES_MAX];
    char longest[256];
    cmq_slice name, topic;
    /* a group's own: sent back to, not popped from */
    CHECK_OK(cmq_pop_normal_topic(of("%RETRY%g"), of("g"), &topic));
    CHECK_SLICE(topic, "%RETRY%g");
    CHECK_STATUS(cmq_pop_normal_topic(of("%RETRY%g_T"), of("h"), &topic), CMQ_ERR_TOPIC);
    CHECK_STATUS(cmq_pop_normal_topic(of("%RETRY%g_T"), of("gg"), &topic), CMQ_ERR_TOPIC);
    CHECK_STATUS(cmq_pop_normal_topic(of("%RETRY%g-T"), of("g"), &topic), CMQ_ERR_TOPIC);
    CHECK_STATUS(cmq_pop_normal_topic(of("%RETRY%g_"), of("g"), &topic), CMQ_ERR_TOPIC);
    CHECK_STATUS(cmq_pop_normal_topic(of("%RETRY%"), of("a_long_name"), &topic), CMQ_ERR_TOPIC);
    CHECK_STATUS(cmq_pop_retry_topic(of(""), of("T"), CMQ_POP_RETRY_V1, into, &name), CMQ_ERR_TOPIC);
    CHECK_STATUS(cmq_pop_retry_topic(of("g"), of(""), CMQ_POP_NORMAL, into, &name), CMQ_ERR_TOPIC);
    memset(longest, 't', 255);
    longest[246] = '\0';   /* 7 + 1 + 1 + 246 */
    CHECK_OK(cmq_pop_retry_topic(of("g"), of(longest), CMQ_POP_RETRY_V1, into, &name));
    CHECK_INT(name.bytes, 255);
    CHECK_STATUS(cmq_pop_retry_topic(of("gg"), of(longest), CMQ_POP_RETRY_V1, into, &name), CMQ_ERR_TOPIC);
    CHECK(name.data == NULL);
}

CMQ_TEST_MAIN(CMQ_TEST(a_handle_is_read_and_written), CMQ_TEST(a_handle_without_its_last_field),
              CMQ_TEST(malformed_handles_are_rejected), CMQ_TEST(the_longest_handle_fits), CMQ_TEST(info_strings),
              CMQ_TEST(an_info_string_that_does_not_fit_says_how_long_it_is), CMQ_TEST(retry_topics_by_name),
              CMQ_TEST(retry_topics_of_nobody))
