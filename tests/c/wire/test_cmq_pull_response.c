/* Tests csrc/wire/cmq_pull_response.c: all fields, required fields by code, malformed numbers. */
#include "wire/cmq_pull_response.h"

#include "support/cmq_header_kit.h"

static const cmq_kit_field fields[] = {
    {"suggestWhichBrokerId", "1", "suggestWhichBrokerId", true},
    {"nextBeginOffset", "9223372036854775807", "nextBeginOffset", true},
    {"minOffset", "5", "minOffset", true},
    {"maxOffset", "9", "maxOffset", true},
    {"offsetDelta", "-7", NULL, true},
    {"topicSysFlag", "x", NULL, false},
    {"minoffset", "no member", NULL, false},
};
enum { COUNT = sizeof fields / sizeof *fields };

static void test_all_members(void)
{
    cmq_pull_response response;
    cmq_command command = cmq_kit_fields(0, fields, COUNT, -1, -1);
    CHECK_OK(cmq_pull_response_read(&command, &response));
    CHECK_INT(response.suggested_broker_id, 1);
    CHECK_INT(response.next_begin_offset, INT64_MAX);
    CHECK_INT(response.min_offset, 5);
    CHECK_INT(response.max_offset, 9);
    CHECK(response.has_offset_delta);
    CHECK_INT(response.offset_delta, -7);
    command = cmq_kit_fields(19, fields, 4, -1, -1);
    CHECK_OK(cmq_pull_response_read(&command, &response));
    CHECK(!response.has_offset_delta);
}

static cmq_status read_response(const cmq_command *command)
{
    cmq_pull_response response;
    return cmq_pull_response_read(command, &response);
}

static void test_members_are_checked(void)
{
    static const int32_t codes[] = {0, 19, 20, 21};
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        cmq_kit_members_are_checked(codes[i], fields, COUNT, read_response);
}

static void test_a_refusal_needs_no_member(void)
{
    static const int32_t codes[] = {1, 2, 18, 22, 24, 215, -1, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        const cmq_command command = {.code = codes[i]};
        CHECK_OK(read_response(&command));
    }
}

CMQ_TEST_MAIN(CMQ_TEST(test_all_members), CMQ_TEST(test_members_are_checked), CMQ_TEST(test_a_refusal_needs_no_member))
