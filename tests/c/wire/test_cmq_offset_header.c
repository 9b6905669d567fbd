/* Tests csrc/wire/cmq_offset_header.c: the required fields of the five requests, defaults, and the requests of real
 * clients. */
#include "wire/cmq_offset_header.h"

#include "support/cmq_header_kit.h"

static cmq_status read_header(const cmq_command *command)
{
    cmq_offset_header header;
    return cmq_offset_header_read(command, &header);
}

static void test_members_are_checked(void)
{
    static const cmq_kit_field query[] = {{"consumerGroup", "CG", "consumerGroup", false},
                                          {"topic", "T", "topic", false},
                                          {"queueId", "1", "queueId", true},
                                          {"setZeroIfNotFound", "false", NULL, false}};
    static const cmq_kit_field update[] = {{"consumerGroup", "CG", "consumerGroup", false},
                                           {"topic", "T", "topic", false},
                                           {"queueId", "1", "queueId", true},
                                           {"commitOffset", "5", "commitOffset", true}};
    static const cmq_kit_field search[] = {{"topic", "T", "topic", false},
                                           {"queueId", "1", "queueId", true},
                                           {"timestamp", "17", "timestamp", true},
                                           {"boundaryType", "UPPER", NULL, false}};
    static const cmq_kit_field ends[] = {{"topic", "T", "topic", false},
                                         {"queueId", "1", "queueId", true},
                                         {"committed", "false", NULL, false},
                                         {"consumerGroup", "CG", NULL, false}};
    cmq_kit_members_are_checked(14, query, 4, read_header);
    cmq_kit_members_are_checked(15, update, 4, read_header);
    cmq_kit_members_are_checked(29, search, 4, read_header);
    cmq_kit_members_are_checked(30, ends, 4, read_header);
    cmq_kit_members_are_checked(31, ends, 4, read_header);
}

static cmq_offset_header read_json(const char *json)
{
    cmq_offset_header header;
    cmq_kit_command kit = cmq_kit_json(json);
    CHECK_OK(cmq_offset_header_read(&kit.command, &header));
    cmq_kit_command_free(&kit);   /* none of the callers looks at the texts */
    return header;
}

static void test_values_and_defaults(void)
{
    cmq_offset_header header = read_json("{'code':14,'extFields':{'consumerGroup':'g','topic':'t','queueId':'2'}}");
    CHECK(header.zero_if_not_found);
    CHECK_INT(header.queue_id, 2);
    header =
        read_json("{'code':14,'extFields':{'consumerGroup':'g','topic':'t','queueId':2,'setZeroIfNotFound':false}}");
    CHECK(!header.zero_if_not_found);
    header = read_json("{'code':15,'extFields':{'consumerGroup':'g','topic':'t','queueId':'2','commitOffset':'-1'}}");
    CHECK_INT(header.commit_offset, -1);
    header = read_json("{'code':30,'extFields':{'topic':'t','queueId':'0'}}");
    CHECK(header.committed);
    header = read_json("{'code':30,'extFields':{'topic':'t','queueId':'0','committed':'FALSE'}}");
    CHECK(!header.committed);
    static const struct {
        const char *text;
        bool upper;
    } boundaries[] = {{"UPPER", true}, {"upper", true},   {"LOWER", false},
                      {"", false},     {"UPPERS", false}, {"UPPE", false}};
    for (size_t i = 0; i < sizeof boundaries / sizeof *boundaries; i++) {
        char json[200];
        snprintf(json, sizeof json,
                 "{'code':29,'extFields':{'topic':'t','queueId':'0','timestamp':'1700000000000','boundaryType':'%s'}}",
                 boundaries[i].text);
        header = read_json(json);
        CHECK(header.upper == boundaries[i].upper);
        CHECK_INT(header.timestamp_ms, 1700000000000);
    }
}

static size_t golden_requests;

static void request_is_read(const char *name, cmq_slice whole)
{
    static const int32_t codes[] = {14, 15, 29, 30, 31};
    (void)name;
    cmq_frame frame;
    size_t needed;
    cmq_kit_command kit;
    cmq_offset_header header;
    CHECK_OK(cmq_frame_next(whole, CMQ_FRAME_BYTES_MAX, &frame, &needed));
    CHECK_OK(cmq_kit_parse(&kit, frame.format, frame.header));
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        if (kit.command.code != codes[i] || (kit.command.flag & CMQ_COMMAND_RESPONSE) != 0) continue;
        CHECK_OK(cmq_offset_header_read(&kit.command, &header));
        CHECK(header.topic.bytes > 0 && header.queue_id >= 0 && header.queue_id < 8);
        CHECK((header.group.bytes > 0) == (codes[i] <= 15));
        CHECK((header.timestamp_ms > 1795000000000) == (codes[i] == 29));
        golden_requests++;
    }
    cmq_kit_command_free(&kit);
}

static void test_captured_requests(void)
{
    CHECK(cmq_kit_golden_frames(request_is_read) >= 100);
    CHECK_INT(golden_requests, 10);
}

CMQ_TEST_MAIN(CMQ_TEST(test_members_are_checked), CMQ_TEST(test_values_and_defaults), CMQ_TEST(test_captured_requests))
