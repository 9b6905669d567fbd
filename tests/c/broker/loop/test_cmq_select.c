/* Tests csrc/broker/loop/cmq_select.c by pulls: SQL92 by the group's subscription and by the request's own expression,
 * and the answers of those that cannot be. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "support/cmq_broker_kit.h"
#include "support/cmq_store_kit.h"

enum { FOUND = 0, SYSTEM_ERROR = 1, RETRY = 20, PARSE_FAILED = 23, NO_FILTER_DATA = 27, OLD_FILTER_DATA = 28 };

static kit_broker kit;

static void start(bool property_filter)
{
    kit_broker_start(&kit, cmq_test_directory(), CMQ_FLUSH_ASYNC,
                     &(cmq_broker_options){.property_filter = property_filter});
}

/* Messages whose property `n` counts from 0. */
static void append(int count)
{
    for (int i = 0; i < count; i++) {
        char text[32];
        const int bytes = snprintf(text, sizeof text, "n\001%d\002", i);
        const cmq_append one = {
            .common = {.topic = cmq_slice_of_text("T")},
            .count = 1,
            .bodies = {.kind = CMQ_COLUMN_ONE, .one = cmq_slice_of_text("x")},
            .properties = {.kind = CMQ_COLUMN_ONE, .one = {.data = (const uint8_t *)text, .bytes = (size_t)bytes}}};
        cmq_appended appended;
        CHECK_OK(cmq_store_append(kit.store, &one, &appended));
    }
}

static const kit_answer *pull_by(int client, const char *expression, const char *type, int64_t from)
{
    char offset[32];
    snprintf(offset, sizeof offset, "%lld", (long long)from);
    const kit_field fields[] = {
        {"consumerGroup", "G"}, {"topic", "T"},     {"queueId", "0"},      {"queueOffset", offset},
        {"maxMsgNums", "32"},   {"sysFlag", "4"},   {"commitOffset", "0"}, {"suspendTimeoutMillis", "0"},
        {"subVersion", "1"},    {"subscription", expression}, {"expressionType", type}, {NULL, NULL}};
    kit_request(client, 11, 1, 0, CMQ_HEADER_JSON, fields, NULL, 0);
    return kit_answer_of(&kit, client);
}

static const kit_answer *pull(int client, int64_t from)
{
    kit_pull(client, 1, "T", from, 0, 0, "");
    return kit_answer_of(&kit, client);
}

/* The queue offsets of an answer's records, as a text. */
static const char *offsets_of(const kit_answer *answer)
{
    static char text[512];
    cmq_slice rest = answer->body;
    size_t used = 0;
    text[0] = 0;
    while (rest.bytes > 0) {
        cmq_record_view view;
        CHECK_OK(cmq_record_parse(rest.data, rest.bytes, -1, CMQ_RECORD_CHECK_BODY_CRC, &view));
        used += (size_t)snprintf(text + used, sizeof text - used, "%lld ", (long long)view.queue_offset);
        rest.data += view.record_bytes;
        rest.bytes -= view.record_bytes;
    }
    return text;
}

static void check_text(const char *actual, const char *expected)
{
    CHECK_BYTES(actual, strlen(actual), expected, strlen(expected));
}

static void subscriptions_select_by_properties(void)
{
    start(true);
    kit_broker_select(&kit, "G", "T", "n BETWEEN 3 AND 5 OR n = 90", 1);
    const int client = kit_client(&kit);
    append(100);
    const kit_answer *answer = pull(client, 0);
    CHECK_INT(answer->command.code, FOUND);
    check_text(offsets_of(answer), "3 4 5 90 ");
    CHECK_INT(kit_number(answer, "nextBeginOffset"), 100);
    answer = pull(client, 6);
    check_text(offsets_of(answer), "90 ");
    answer = pull(client, 91);   /* nothing matches: the offset passes those looked at */
    CHECK_INT(answer->command.code, RETRY);
    CHECK_INT(kit_number(answer, "nextBeginOffset"), 100);
    close(client);
    kit_broker_stop(&kit);
}

static void requests_bring_their_own_expression(void)
{
    start(true);
    const int client = kit_client(&kit);
    append(60);
    for (int round = 0; round < 2; round++) {   /* the second time the program is there */
        check_text(offsets_of(pull_by(client, "n > 57", "SQL92", 0)), "58 59 ");
        check_text(offsets_of(pull_by(client, "n < 2 tail", "SQL92", 0)), "0 1 ");
    }
    CHECK_INT(kit_number(pull_by(client, "n >= 0", "SQL92", 0), "nextBeginOffset"), 32);
    CHECK_INT(pull_by(client, "n > 'x'", "SQL92", 0)->command.code, PARSE_FAILED);
    CHECK_INT(pull_by(client, "n > 5", "OTHER", 0)->command.code, PARSE_FAILED);
    CHECK_INT(pull_by(client, "*", "TAG", 0)->command.code, FOUND);
    close(client);
    kit_broker_stop(&kit);
}

static void filter_data_are_missing_or_old(void)
{
    start(true);
    kit_broker_select(&kit, "G", "T", NULL, 1);
    const int client = kit_client(&kit);
    append(1);
    CHECK_INT(pull(client, 0)->command.code, NO_FILTER_DATA);
    kit_broker_select(&kit, "G", "T", "n = 0", 0);
    CHECK(pull(client, 0)->command.code != FOUND);   /* an older subscription, so also an older filter */
    kit_broker_select_older(&kit, "G", "T", "n = 0", 1, 0);
    CHECK_INT(pull(client, 0)->command.code, OLD_FILTER_DATA);
    close(client);
    kit_broker_stop(&kit);
}

static void property_filters_may_be_off(void)
{
    start(false);
    kit_broker_select(&kit, "G", "T", "n = 0", 1);
    const int client = kit_client(&kit);
    append(1);
    CHECK_INT(pull(client, 0)->command.code, SYSTEM_ERROR);
    CHECK_INT(pull_by(client, "n = 0", "SQL92", 0)->command.code, SYSTEM_ERROR);
    kit_broker_select(&kit, "G", "T", NULL, 1);
    CHECK_INT(pull(client, 0)->command.code, NO_FILTER_DATA);   /* upstream looks at the data first */
    close(client);
    kit_broker_stop(&kit);
}

/* One look at the queue has a budget of steps, whatever the expression costs, and the client's offset moves on. */
static void long_expressions_look_at_fewer_messages(void)
{
    static char text[60000];
    for (size_t used = 0; used + 40 < sizeof text;)
        used += (size_t)snprintf(text + used, sizeof text - used, "%sn CONTAINS 'x'", used == 0 ? "" : " OR ");
    start(true);
    kit_broker_select(&kit, "G", "T", text, 1);
    const int client = kit_client(&kit);
    append(100);
    const kit_answer *answer = pull(client, 0);
    CHECK_INT(answer->command.code, RETRY);
    const int64_t next = kit_number(answer, "nextBeginOffset");
    CHECK(next > 0 && next < 100);
    CHECK_INT(kit_number(pull(client, next), "nextBeginOffset"), 2 * next);
    close(client);
    kit_broker_stop(&kit);
}

CMQ_TEST_MAIN(CMQ_TEST(subscriptions_select_by_properties), CMQ_TEST(requests_bring_their_own_expression),
              CMQ_TEST(filter_data_are_missing_or_old), CMQ_TEST(property_filters_may_be_off),
              CMQ_TEST(long_expressions_look_at_fewer_messages))
