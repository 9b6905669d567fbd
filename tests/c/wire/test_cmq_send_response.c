/* Tests csrc/wire/cmq_send_response.c: all fields, required fields by code, malformed numbers. */
#include "wire/cmq_send_response.h"

#include "support/cmq_header_kit.h"

static const cmq_kit_field fields[] = {
    {"msgId", "7F0000010000", "msgId", false},
    {"queueId", "3", "queueId", true},
    {"queueOffset", "9223372036854775807", "queueOffset", true},
    {"transactionId", "U1", NULL, false},
    {"MSG_REGION", "DefaultRegion", NULL, false},
    {"TRACE_ON", "false", NULL, false},
    {"batchUniqId", "U2", NULL, false},
    {"recallHandle", "H", NULL, false},
    {"batchuniqid", "no member", NULL, false},
};
enum { COUNT = sizeof fields / sizeof *fields };

static void test_all_members(void)
{
    cmq_send_response response;
    const cmq_command command = cmq_kit_fields(0, fields, COUNT, -1, -1);
    CHECK_OK(cmq_send_response_read(&command, &response));
    CHECK_SLICE(response.message_id, "7F0000010000");
    CHECK_INT(response.queue_id, 3);
    CHECK_INT(response.queue_offset, INT64_MAX);
    CHECK_SLICE(response.transaction_id, "U1");
    CHECK_SLICE(response.region_id, "DefaultRegion");
    CHECK_SLICE(response.trace_on, "false");
    CHECK_SLICE(response.batch_unique_id, "U2");
    CHECK_SLICE(response.recall_handle, "H");
}

static cmq_status read_response(const cmq_command *command)
{
    cmq_send_response response;
    return cmq_send_response_read(command, &response);
}

static void test_members_are_checked(void)
{
    static const int32_t stored[] = {0, 10, 11, 12};
    for (size_t i = 0; i < sizeof stored / sizeof *stored; i++) {
        CHECK(cmq_send_response_is_stored(stored[i]));
        cmq_kit_members_are_checked(stored[i], fields, COUNT, read_response);
    }
}

static void test_a_refusal_needs_no_member(void)
{
    static const int32_t codes[] = {1, 2, 9, 13, 17, -1, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        const cmq_command command = {.code = codes[i]};
        CHECK(!cmq_send_response_is_stored(codes[i]));
        CHECK_OK(read_response(&command));
    }
}

static void test_the_text_tells_an_answer_from_a_request(void)
{
    const cmq_command command = {.code = 0, .flag = CMQ_COMMAND_RESPONSE};
    CHECK_STATUS(read_response(&command), CMQ_ERR_ARGUMENT);
    CHECK(strstr(cmq_last_error()->text, "answer 0: missing required field") != NULL);
}

CMQ_TEST_MAIN(CMQ_TEST(test_all_members), CMQ_TEST(test_members_are_checked), CMQ_TEST(test_a_refusal_needs_no_member),
              CMQ_TEST(test_the_text_tells_an_answer_from_a_request))
