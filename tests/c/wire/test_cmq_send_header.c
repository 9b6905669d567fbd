/* Tests csrc/wire/cmq_send_header.c: both sets of names, required fields, malformed numbers, and the sends of real
 * clients. */
#include "wire/cmq_send_header.h"

#include "support/cmq_header_kit.h"

static const cmq_kit_field lettered[] = {
    {"a", "PG", "producerGroup", false},       {"b", "T", "topic", false},     {"c", "TBW102", "defaultTopic", false},
    {"d", "4", "defaultTopicQueueNums", true}, {"e", "-1", "queueId", true},   {"f", "16", "sysFlag", true},
    {"g", "1700000000000", "bornTimestamp", true}, {"h", "7", "flag", true},   {"i", "TAGS\1a\2", NULL, false},
    {"j", "3", NULL, true},                    {"k", "true", NULL, false},     {"l", "0", NULL, true},
    {"m", "true", NULL, false},                {"n", "broker-a", NULL, false}, {"bname", "x", NULL, false},
    {"A", "no member", NULL, false},           {"o", "no member", NULL, false},
};
static const cmq_kit_field named[] = {
    {"producerGroup", "PG", "producerGroup", false},
    {"topic", "T", "topic", false},
    {"defaultTopic", "TBW102", "defaultTopic", false},
    {"defaultTopicQueueNums", "4", "defaultTopicQueueNums", true},
    {"queueId", "-1", "queueId", true},
    {"sysFlag", "16", "sysFlag", true},
    {"bornTimestamp", "1700000000000", "bornTimestamp", true},
    {"flag", "7", "flag", true},
    {"properties", "TAGS\1a\2", NULL, false},
    {"reconsumeTimes", "3", NULL, true},
    {"unitMode", "true", NULL, false},
    {"maxReconsumeTimes", "0", NULL, true},
    {"batch", "true", NULL, false},
    {"bname", "x", NULL, false},
    {"sysflag", "no member", NULL, false},
    {"Topic", "no member", NULL, false},
};

static void check_header(const cmq_send_header *header)
{
    CHECK_SLICE(header->producer_group, "PG");
    CHECK_SLICE(header->topic, "T");
    CHECK_SLICE(header->default_topic, "TBW102");
    CHECK_INT(header->default_topic_queues, 4);
    CHECK_INT(header->queue_id, -1);
    CHECK_INT(header->sys_flag, 16);
    CHECK_INT(header->born_ms, 1700000000000);
    CHECK_INT(header->flag, 7);
    CHECK_SLICE(header->properties, "TAGS\1a\2");
    CHECK_INT(header->reconsume_times, 3);
    CHECK(header->unit_mode);
    CHECK(header->has_max_reconsume_times);
    CHECK_INT(header->max_reconsume_times, 0);
    CHECK(header->batch);
}

static void test_both_sets_of_names(void)
{
    static const int32_t by_letter[] = {310, 320, 325}, by_name[] = {10, 324};
    cmq_send_header header;
    for (size_t i = 0; i < sizeof by_letter / sizeof *by_letter; i++) {
        const cmq_command command = cmq_kit_fields(by_letter[i], lettered, sizeof lettered / sizeof *lettered, -1, -1);
        CHECK_OK(cmq_send_header_read(&command, &header));
        check_header(&header);
    }
    for (size_t i = 0; i < sizeof by_name / sizeof *by_name; i++) {
        const cmq_command command = cmq_kit_fields(by_name[i], named, sizeof named / sizeof *named, -1, -1);
        CHECK_OK(cmq_send_header_read(&command, &header));
        check_header(&header);
    }
}

static void test_only_needed_parts(void)
{
    cmq_send_header header;
    const cmq_command command = cmq_kit_fields(310, lettered, 8, -1, -1);
    CHECK_OK(cmq_send_header_read(&command, &header));
    CHECK_INT(header.properties.bytes, 0);
    CHECK_INT(header.reconsume_times, 0);
    CHECK(!header.unit_mode && !header.batch && !header.has_max_reconsume_times);
}

static cmq_status read_header(const cmq_command *command)
{
    cmq_send_header header;
    return cmq_send_header_read(command, &header);
}

static void test_members_are_checked(void)
{
    cmq_kit_members_are_checked(310, lettered, sizeof lettered / sizeof *lettered, read_header);
    cmq_kit_members_are_checked(10, named, sizeof named / sizeof *named, read_header);
}

static void test_all_that_is_missing_is_named(void)
{
    const cmq_command none = {.code = 310};
    cmq_send_header header;
    CHECK_STATUS(cmq_send_header_read(&none, &header), CMQ_ERR_ARGUMENT);
    CHECK(strcmp(cmq_last_error()->text,
                 "request 310: missing required field: producerGroup, topic, defaultTopic, defaultTopicQueueNums, "
                 "queueId, sysFlag, bornTimestamp, flag") == 0);
}

static void test_the_last_of_a_name_counts(void)
{
    cmq_send_header header;
    cmq_command command = cmq_kit_fields(310, lettered, sizeof lettered / sizeof *lettered, -1, -1);
    command.fields[command.field_count++] = (cmq_field){.name = CMQ_NAME("e"), .value = CMQ_NAME("2147483647")};
    command.fields[command.field_count++] = (cmq_field){.name = CMQ_NAME("i"), .value = CMQ_SLICE_NONE};
    command.fields[command.field_count++] = (cmq_field){.name = CMQ_NAME("l"), .value = CMQ_SLICE_NONE};
    CHECK_OK(cmq_send_header_read(&command, &header));
    CHECK_INT(header.queue_id, INT32_MAX);
    CHECK_INT(header.properties.bytes, 0);
    CHECK(!header.has_max_reconsume_times);
    command.fields[command.field_count++] = (cmq_field){.name = CMQ_NAME("e"), .value = CMQ_NAME("2147483648")};
    CHECK_STATUS(cmq_send_header_read(&command, &header), CMQ_ERR_ARGUMENT);
    CHECK(strstr(cmq_last_error()->text, "field queueId is `2147483648`, expected an int") != NULL);
}

static size_t golden_sends;

static void send_is_read(const char *name, cmq_slice whole)
{
    cmq_frame frame;
    size_t needed;
    cmq_kit_command kit;
    CHECK_OK(cmq_frame_next(whole, CMQ_FRAME_BYTES_MAX, &frame, &needed));
    CHECK_OK(cmq_kit_parse(&kit, frame.format, frame.header));
    if (strstr(name, "-request-310") != NULL || strstr(name, "-request-32") != NULL) {
        cmq_send_header header;
        if (kit.command.code != 32) {
            CHECK_OK(cmq_send_header_read(&kit.command, &header));
            CHECK_SLICE(header.default_topic, "TBW102");
            CHECK_INT(header.default_topic_queues, 4);
            CHECK(header.born_ms > 1795000000000 && cmq_slice_starts_with(header.producer_group, "p_"));
            CHECK(cmq_slice_starts_with(header.properties, "") && header.properties.bytes > 20);
            CHECK(header.batch == (kit.command.code == 320));
            golden_sends++;
        }
    }
    cmq_kit_command_free(&kit);
}

static void test_captured_sends(void)
{
    CHECK(cmq_kit_golden_frames(send_is_read) >= 100);
    CHECK_INT(golden_sends, 8);
}

static cmq_send_header written_and_read(int32_t code, cmq_header_format format, const cmq_send_header *header,
                                        cmq_kit_command *kit, uint8_t *into, size_t capacity)
{
    cmq_command_writer writer;
    cmq_frame frame;
    cmq_send_header again;
    size_t needed;
    cmq_command_begin(&writer, into, capacity, format, code, 1, 0, CMQ_SLICE_NONE);
    cmq_send_header_write(&writer, code, header);
    const size_t bytes = cmq_command_end(&writer, 0);
    CHECK(bytes > 0 && bytes <= capacity);
    CHECK_OK(cmq_frame_next((cmq_slice){.data = into, .bytes = bytes}, CMQ_FRAME_BYTES_MAX, &frame, &needed));
    CHECK_OK(cmq_kit_parse(kit, frame.format, frame.header));
    CHECK_OK(cmq_send_header_read(&kit->command, &again));
    return again;
}

static void test_written_headers_are_read_back(void)
{
    static const int32_t codes[] = {10, 310, 320, 324, 325};
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        for (cmq_header_format format = CMQ_HEADER_JSON; format <= CMQ_HEADER_ROCKETMQ; format++) {
            const bool by_name = codes[i] == 10 || codes[i] == 324;
            const cmq_command command =
                by_name ? cmq_kit_fields(10, named, 13, -1, -1) : cmq_kit_fields(310, lettered, 13, -1, -1);
            uint8_t room[1024];
            cmq_kit_command kit;
            cmq_slice found;
            cmq_send_header header;
            CHECK_OK(cmq_send_header_read(&command, &header));
            header.broker_name = CMQ_NAME("broker-a");
            const cmq_send_header again = written_and_read(codes[i], format, &header, &kit, room, sizeof room);
            check_header(&again);
            CHECK(cmq_command_find(&kit.command, by_name ? "bname" : "n", &found));
            CHECK_SLICE(found, "broker-a");
            CHECK_INT(kit.command.field_count, 14);
            cmq_kit_command_free(&kit);

            header.has_max_reconsume_times = false;
            header.broker_name = CMQ_SLICE_NONE;
            CHECK(!written_and_read(codes[i], format, &header, &kit, room, sizeof room).has_max_reconsume_times);
            CHECK_INT(kit.command.field_count, 12);
            cmq_kit_command_free(&kit);
        }
    }
}

CMQ_TEST_MAIN(CMQ_TEST(test_both_sets_of_names), CMQ_TEST(test_only_needed_parts), CMQ_TEST(test_members_are_checked),
              CMQ_TEST(test_all_that_is_missing_is_named), CMQ_TEST(test_the_last_of_a_name_counts),
              CMQ_TEST(test_captured_sends), CMQ_TEST(test_written_headers_are_read_back))
