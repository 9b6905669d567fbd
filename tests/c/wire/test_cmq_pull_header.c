/* Tests csrc/wire/cmq_pull_header.c: all fields, required fields, malformed numbers, and the pulls of real clients. */
#include "wire/cmq_pull_header.h"

#include "support/cmq_header_kit.h"

static const cmq_kit_field fields[] = {
    {"consumerGroup", "CG", "consumerGroup", false},
    {"topic", "T", "topic", false},
    {"queueId", "3", "queueId", true},
    {"queueOffset", "9223372036854775807", "queueOffset", true},
    {"maxMsgNums", "32", "maxMsgNums", true},
    {"sysFlag", "6", "sysFlag", true},
    {"commitOffset", "-1", "commitOffset", true},
    {"suspendTimeoutMillis", "15000", "suspendTimeoutMillis", true},
    {"subVersion", "1700000000000", "subVersion", true},
    {"subscription", "A || B", NULL, false},
    {"expressionType", "TAG", NULL, false},
    {"maxMsgBytes", "262144", NULL, true},
    {"requestSource", "-1", NULL, false},
    {"proxyFrowardClientId", "x", NULL, false},
    {"bname", "broker-a", NULL, false},
};
enum { COUNT = sizeof fields / sizeof *fields };

static void check_header(const cmq_pull_header *header)
{
    CHECK_SLICE(header->group, "CG");
    CHECK_SLICE(header->topic, "T");
    CHECK_INT(header->queue_id, 3);
    CHECK_INT(header->queue_offset, INT64_MAX);
    CHECK_INT(header->max_messages, 32);
    CHECK_INT(header->sys_flag, 6);
    CHECK_INT(header->commit_offset, -1);
    CHECK_INT(header->suspend_ms, 15000);
    CHECK_INT(header->sub_version, 1700000000000);
    CHECK_SLICE(header->subscription, "A || B");
    CHECK_SLICE(header->expression_type, "TAG");
    CHECK_INT(header->max_bytes, 262144);
}

static void test_all_members(void)
{
    cmq_pull_header header;
    const cmq_command command = cmq_kit_fields(11, fields, COUNT, -1, -1);
    CHECK_OK(cmq_pull_header_read(&command, &header));
    check_header(&header);
}

static void test_only_needed_parts(void)
{
    cmq_pull_header header;
    const cmq_command command = cmq_kit_fields(361, fields, 9, -1, -1);
    CHECK_OK(cmq_pull_header_read(&command, &header));
    CHECK_INT(header.subscription.bytes + header.expression_type.bytes, 0);
    CHECK_INT(header.max_bytes, 0);
}

static cmq_status read_header(const cmq_command *command)
{
    cmq_pull_header header;
    return cmq_pull_header_read(command, &header);
}

static void test_members_are_checked(void) { cmq_kit_members_are_checked(11, fields, COUNT, read_header); }

static size_t golden_pulls;

static void pull_is_read(const char *name, cmq_slice whole)
{
    if (strstr(name, "-request-11") == NULL && strstr(name, "-request-361") == NULL) return;
    cmq_frame frame;
    size_t needed;
    cmq_kit_command kit;
    cmq_pull_header header;
    CHECK_OK(cmq_frame_next(whole, CMQ_FRAME_BYTES_MAX, &frame, &needed));
    CHECK_OK(cmq_kit_parse(&kit, frame.format, frame.header));
    CHECK_OK(cmq_pull_header_read(&kit.command, &header));
    CHECK(cmq_slice_starts_with(header.group, "g_"));
    CHECK_INT(header.queue_id, 0);
    CHECK_SLICE(header.expression_type, "TAG");
    CHECK_INT(header.max_messages, kit.command.code == 11 ? 32 : 10);
    CHECK_INT(header.max_bytes, kit.command.code == 11 ? 262144 : INT32_MAX);
    CHECK_INT(header.suspend_ms, kit.command.code == 11 ? 15000 : 20000);
    CHECK((header.subscription.bytes > 0) == (kit.command.code == 361));
    golden_pulls++;
    cmq_kit_command_free(&kit);
}

static void test_captured_pulls(void)
{
    CHECK(cmq_kit_golden_frames(pull_is_read) >= 100);
    CHECK_INT(golden_pulls, 4);
}

static cmq_pull_header written_and_read(cmq_header_format format, const cmq_pull_header *header, cmq_kit_command *kit,
                                        uint8_t *into, size_t capacity)
{
    cmq_command_writer writer;
    cmq_frame frame;
    cmq_pull_header again;
    size_t needed;
    cmq_command_begin(&writer, into, capacity, format, 11, 1, 0, CMQ_SLICE_NONE);
    cmq_pull_header_write(&writer, header);
    const size_t bytes = cmq_command_end(&writer, 0);
    CHECK(bytes > 0 && bytes <= capacity);
    CHECK_OK(cmq_frame_next((cmq_slice){.data = into, .bytes = bytes}, CMQ_FRAME_BYTES_MAX, &frame, &needed));
    CHECK_OK(cmq_kit_parse(kit, frame.format, frame.header));
    CHECK_OK(cmq_pull_header_read(&kit->command, &again));
    return again;
}

static void test_written_headers_are_read_back(void)
{
    for (cmq_header_format format = CMQ_HEADER_JSON; format <= CMQ_HEADER_ROCKETMQ; format++) {
        const cmq_command command = cmq_kit_fields(11, fields, COUNT, -1, -1);
        uint8_t room[1024];
        cmq_kit_command kit;
        cmq_slice found;
        cmq_pull_header header;
        CHECK_OK(cmq_pull_header_read(&command, &header));
        header.broker_name = CMQ_NAME("broker-a");
        cmq_pull_header again = written_and_read(format, &header, &kit, room, sizeof room);
        check_header(&again);
        CHECK(cmq_command_find(&kit.command, "bname", &found));
        CHECK_SLICE(found, "broker-a");
        cmq_kit_command_free(&kit);

        header.broker_name = header.subscription = header.expression_type = CMQ_SLICE_NONE;
        header.max_bytes = 0;
        again = written_and_read(format, &header, &kit, room, sizeof room);
        CHECK_INT(kit.command.field_count, 9);
        CHECK_INT(again.subscription.bytes, 0);
        cmq_kit_command_free(&kit);
    }
}

CMQ_TEST_MAIN(CMQ_TEST(test_all_members), CMQ_TEST(test_only_needed_parts), CMQ_TEST(test_members_are_checked),
              CMQ_TEST(test_captured_pulls), CMQ_TEST(test_written_headers_are_read_back))
