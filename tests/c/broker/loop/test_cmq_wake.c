/* Tests of arrivals at holds: each message ends the holds that wait for its tag, however many messages come at once and
 * however many holds there are. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "support/cmq_broker_kit.h"
#include "support/cmq_store_kit.h"

enum { FOUND = 0, HELD_AND_FILTERED = 2 | 4, WAIT_MS = 15000 };

static kit_broker kit;

static void start(void) { kit_broker_start(&kit, cmq_test_directory(), CMQ_FLUSH_ASYNC, NULL); }

static void append_to(const char *topic, uint32_t count, const char *tag)
{
    const cmq_append batch = {.common = {.topic = cmq_slice_of_text(topic)},
                              .count = count,
                              .bodies = {.kind = CMQ_COLUMN_ONE, .one = cmq_slice_of_text("x")},
                              .tags = {.kind = CMQ_COLUMN_ONE, .one = cmq_slice_of_text(tag)}};
    cmq_appended appended;
    CHECK_OK(cmq_store_append(kit.store, &batch, &appended));
}

static void append(uint32_t count, const char *tag) { append_to("T", count, tag); }

static uint64_t hold_wakes(void)
{
    cmq_broker_counters counters;
    cmq_broker_count(kit.broker, &counters);
    return counters.hold_wakes;
}

/* The queue offset of the first record that the answer has. */
static int64_t first_found(int client, int32_t opaque)
{
    cmq_record_view view;
    const kit_answer *answer = kit_answer_of(&kit, client);
    CHECK_INT(answer->command.opaque, opaque);
    CHECK_INT(answer->command.code, FOUND);
    CHECK_OK(cmq_record_parse(answer->body.data, answer->body.bytes, -1, CMQ_RECORD_CHECK_BODY_CRC, &view));
    return view.queue_offset;
}

/* More messages than a turn looks at. */
static void holds_end_behind_many_messages_of_other_tags(void)
{
    enum { BEFORE = 40000, BEHIND = 10000 };
    start();
    const int client = kit_client(&kit), other = kit_client(&kit);
    kit_pull(client, 1, "T", 0, HELD_AND_FILTERED, WAIT_MS, "none || wanted");
    kit_pull(other, 2, "T", 0, HELD_AND_FILTERED, WAIT_MS, "late");
    CHECK(kit_is_silent(&kit, client));
    append(BEFORE, "other");
    append(1, "wanted");
    append(BEHIND, "other");
    CHECK_INT(first_found(client, 1), BEFORE);
    CHECK(kit_is_silent(&kit, other));
    append(1, "late");
    CHECK_INT(first_found(other, 2), BEFORE + 1 + BEHIND);
    close(client);
    close(other);
    kit_broker_stop(&kit);
}

/* A queue with more messages than a turn reads of one lets those behind it go first. */
static void long_looks_delay_no_other_queue(void)
{
    enum { BEFORE = 40000 };
    start();
    kit_broker_topic(&kit, "U", 1, CMQ_PERM_READ | CMQ_PERM_WRITE);
    const int client = kit_client(&kit), other = kit_client(&kit);
    kit_pull(client, 1, "T", 0, HELD_AND_FILTERED, WAIT_MS, "wanted");
    CHECK(kit_is_silent(&kit, client));
    kit_pull(other, 2, "U", 0, HELD_AND_FILTERED, WAIT_MS, "wanted");
    CHECK(kit_is_silent(&kit, other));
    append(BEFORE, "other");
    append(1, "wanted");
    append_to("U", 1, "wanted");
    kit_broker_turn(&kit);
    CHECK_INT(hold_wakes(), 1);
    CHECK_INT(first_found(other, 2), 0);
    CHECK_INT(first_found(client, 1), BEFORE);
    close(client);
    close(other);
    kit_broker_stop(&kit);
}

enum { HOLDS = 1200, A_TURN = 512 };

/* A broker and a client with more held pulls than a turn answers. */
static int hold_many(void)
{
    start();
    const int client = kit_client(&kit);
    for (int32_t i = 0; i < HOLDS; i++) {
        kit_pull(client, i, "T", 0, HELD_AND_FILTERED, WAIT_MS, "none");
        if (i % 100 == 0) CHECK(kit_is_silent(&kit, client));
    }
    CHECK(kit_is_silent(&kit, client));
    return client;
}

/* Clients that ask again while a change of their group is answered wait behind nobody: those that were held before it
 * are answered once, the oldest first. */
static void a_change_answers_the_holds_of_before_it(void)
{
    cmq_broker_counters counters;
    const int client = hold_many();
    CHECK_OK(cmq_broker_group_changed(kit.broker, kit_slice("G")));
    kit_broker_turn(&kit);
    for (int32_t i = 0; i < A_TURN; i++) CHECK_INT(kit_answer_of(&kit, client)->command.opaque, i);
    for (int32_t i = 0; i < A_TURN; i++) kit_pull(client, HOLDS + i, "T", 0, HELD_AND_FILTERED, WAIT_MS, "none");
    for (int32_t i = A_TURN; i < HOLDS; i++) CHECK_INT(kit_answer_of(&kit, client)->command.opaque, i);
    CHECK(kit_is_silent(&kit, client));
    cmq_broker_count(kit.broker, &counters);
    CHECK_INT(counters.holds_now, A_TURN);
    close(client);
    kit_broker_stop(&kit);
}

/* A changed subscription ends more holds than a turn answers. */
static void changes_of_a_group_end_its_holds_over_turns(void)
{
    cmq_broker_counters counters;
    const int client = hold_many();
    CHECK_OK(cmq_broker_group_changed(kit.broker, kit_slice("G")));
    CHECK_OK(cmq_broker_group_changed(kit.broker, kit_slice("another")));
    for (uint64_t before = HOLDS; before > 0; before = counters.holds_now) {
        kit_broker_turn(&kit);
        cmq_broker_count(kit.broker, &counters);
        CHECK_INT(counters.holds_now, before > A_TURN ? before - A_TURN : 0);
    }
    for (int32_t i = 0; i < HOLDS; i++) (void)kit_answer_of(&kit, client);
    close(client);
    kit_broker_stop(&kit);
}

/* More holds than a turn answers, between others that wait for other tags. */
static void all_holds_of_a_tag_end_and_no_others(void)
{
    enum { MANY = 1500 };
    cmq_broker_counters counters;
    start();
    const int client = kit_client(&kit), other = kit_client(&kit);
    for (int32_t i = 0; i < MANY; i++) {
        kit_pull(client, i, "T", 0, HELD_AND_FILTERED, WAIT_MS, i % 2 == 0 ? "wanted" : "also || wanted");
        if (i % 10 == 0) kit_pull(other, i, "T", 0, HELD_AND_FILTERED, WAIT_MS, "none");
        if (i % 100 == 0) CHECK(kit_is_silent(&kit, client));
    }
    CHECK(kit_is_silent(&kit, other));
    append(1, "wanted");
    bool answered[MANY] = {false};
    for (int32_t i = 0; i < MANY; i++) {
        const kit_answer *answer = kit_answer_of(&kit, client);
        CHECK_INT(answer->command.code, FOUND);
        CHECK(!answered[answer->command.opaque]);
        answered[answer->command.opaque] = true;
    }
    CHECK(kit_is_silent(&kit, other));
    cmq_broker_count(kit.broker, &counters);
    CHECK_INT(counters.holds_now, MANY / 10);
    close(client);
    close(other);
    kit_broker_stop(&kit);
}

static void start_selecting(const char *expression)
{
    kit_broker_start(&kit, cmq_test_directory(), CMQ_FLUSH_ASYNC, &(cmq_broker_options){.property_filter = true});
    kit_broker_select(&kit, "G", "T", expression, 1);
}

/* Every message is looked at by its properties, and a hold that is still there goes on behind it. */
static void holds_by_expression_end_for_their_messages_alone(void)
{
    enum { BEFORE = 20000 };
    start_selecting("TAGS = 'wanted'");
    const int client = kit_client(&kit);
    kit_pull(client, 1, "T", 0, 2, WAIT_MS, "");
    CHECK(kit_is_silent(&kit, client));
    append(BEFORE, "other");
    CHECK(kit_is_silent(&kit, client));
    CHECK_INT(hold_wakes(), 0);
    append(1, "wanted");
    CHECK_INT(first_found(client, 1), BEFORE);
    kit_pull(client, 2, "T", BEFORE + 1, 2, WAIT_MS, "");
    CHECK(kit_is_silent(&kit, client));
    append(3, "other");
    CHECK(kit_is_silent(&kit, client));
    kit_broker_pass(&kit, WAIT_MS);
    const kit_answer *answer = kit_answer_of(&kit, client);
    CHECK_INT(answer->command.code, 20);   /* with an offset behind the others */
    CHECK_INT(kit_number(answer, "nextBeginOffset"), BEFORE + 4);
    close(client);
    kit_broker_stop(&kit);
}

/* A long expression spends a turn's steps on few messages; others' holds wait no longer for it. */
static void long_expressions_delay_no_other_hold(void)
{
    static char text[60000];
    for (size_t used = 0; used + 40 < sizeof text;)
        used += (size_t)snprintf(text + used, sizeof text - used, "%sTAGS CONTAINS 'none'", used == 0 ? "" : " OR ");
    start_selecting(text);
    kit_broker_subscribe(&kit, "H", "U", "*", 1);
    kit_broker_topic(&kit, "U", 1, 6);
    const int slow = kit_client(&kit), quick = kit_client(&kit);
    kit_pull(slow, 1, "T", 0, 2, WAIT_MS, "");
    kit_pull(quick, 2, "U", 0, HELD_AND_FILTERED, WAIT_MS, "*");
    CHECK(kit_is_silent(&kit, slow) && kit_is_silent(&kit, quick));
    append(200, "other");
    append_to("U", 1, "any");
    CHECK_INT(first_found(quick, 2), 0);
    append(1, "none");
    CHECK_INT(first_found(slow, 1), 200);
    close(slow);
    close(quick);
    kit_broker_stop(&kit);
}

/* A held pull with its own expression. */
static void hold_by(int client, int32_t opaque, const char *expression)
{
    const kit_field fields[] = {
        {"consumerGroup", "G"}, {"topic", "T"},     {"queueId", "0"},      {"queueOffset", "0"},
        {"maxMsgNums", "32"},   {"sysFlag", "6"},   {"commitOffset", "0"}, {"suspendTimeoutMillis", "15000"},
        {"subVersion", "1"},    {"subscription", expression}, {"expressionType", "SQL92"}, {NULL, NULL}};
    kit_request(client, 11, opaque, 0, CMQ_HEADER_JSON, fields, NULL, 0);
}

/* Many long expressions wait for one message: a turn compares some of them, and the next goes on with the others. */
static void long_expressions_of_one_message_leave_each_turn_to_others(void)
{
    enum { LONG_ONES = 24 };
    static char text[60000];
    kit_broker_start(&kit, cmq_test_directory(), CMQ_FLUSH_ASYNC, &(cmq_broker_options){.property_filter = true});
    const int client = kit_client(&kit);
    for (int i = 0; i < LONG_ONES; i++) {
        size_t used = (size_t)snprintf(text, sizeof text, "n = %d", i);
        while (used + 80 < sizeof text)
            used += (size_t)snprintf(text + used, sizeof text - used, " OR TAGS CONTAINS 'none'");
        snprintf(text + used, sizeof text - used, " OR TAGS CONTAINS '%s'", i % 2 == 0 ? "a" : "ab");
        hold_by(client, i, text);
        CHECK(kit_is_silent(&kit, client));
    }
    append(1, "abc");
    uint64_t turns = 0, most = 0;
    for (uint64_t ended = 0; ended < LONG_ONES; turns++) {
        kit_broker_turn(&kit);
        const uint64_t more = hold_wakes() - ended;
        most = more > most ? more : most;
        ended += more;
        CHECK(turns < 100 * LONG_ONES);
    }
    CHECK(most > 0 && most <= LONG_ONES / 2);
    CHECK_INT(hold_wakes(), LONG_ONES);
    close(client);
    kit_broker_stop(&kit);
}

/* A comparison has a cost of its own: finding the record takes longer than a short expression. */
static void many_short_expressions_take_many_turns(void)
{
    enum { HELD = 1500, MESSAGES = 200 };   /* 300,000 comparisons of 2 steps, and of 10 with the look */
    char text[32];
    kit_broker_start(&kit, cmq_test_directory(), CMQ_FLUSH_ASYNC, &(cmq_broker_options){.property_filter = true});
    const int client = kit_client(&kit);
    for (int i = 0; i < HELD; i++) {
        snprintf(text, sizeof text, "n = %d", i);
        hold_by(client, i, text);
        if (i % 100 == 0) CHECK(kit_is_silent(&kit, client));
    }
    CHECK(kit_is_silent(&kit, client));
    hold_by(client, HELD, "TAGS = 'last'");
    CHECK(kit_is_silent(&kit, client));
    append(MESSAGES, "other");
    append(1, "last");
    int turns = 0;
    for (; hold_wakes() == 0; turns++) kit_broker_turn(&kit);
    CHECK(turns >= 5);
    CHECK_INT(first_found(client, HELD), MESSAGES);
    close(client);
    kit_broker_stop(&kit);
}

/* An expression of searches in `a`, of which the last one alone finds something, and a message whose `a` is long. */
static const char *costly_expression(void)
{
    enum { SEARCHES = 100 };   /* of 30,000 bytes each: within the limit of an evaluation */
    static char text[4096];
    size_t used = 0;
    for (int i = 0; i < SEARCHES; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "a CONTAINS 'y' OR ");
    snprintf(text + used, sizeof text - used, "a CONTAINS 'x'");
    return text;
}

static void append_costly(void)
{
    static char properties[30000];
    memset(properties, 'x', sizeof properties);
    memcpy(properties, "a\001", 2);
    properties[sizeof properties - 1] = '\002';
    const cmq_append one = {
        .common = {.topic = cmq_slice_of_text("T")},
        .count = 1,
        .bodies = {.kind = CMQ_COLUMN_ONE, .one = cmq_slice_of_text("x")},
        .properties = {.kind = CMQ_COLUMN_ONE,
                       .one = {.data = (const uint8_t *)properties, .bytes = sizeof properties}}};
    cmq_appended appended;
    CHECK_OK(cmq_store_append(kit.store, &one, &appended));
}

/* The request of each hold evaluates the expression once more: those that one message ends share a turn's steps. */
static void holds_of_one_costly_expression_end_over_turns(void)
{
    enum { EQUAL = 40, A_TURN_MAX = 8 };
    start_selecting(costly_expression());
    const int client = kit_client(&kit);
    for (int32_t i = 0; i < EQUAL; i++) kit_pull(client, i, "T", 0, 2, WAIT_MS, "");
    CHECK(kit_is_silent(&kit, client));
    append_costly();
    uint64_t turns = 0, most = 0;
    for (uint64_t ended = 0; ended < EQUAL; turns++) {
        kit_broker_turn(&kit);
        const uint64_t more = hold_wakes() - ended;
        most = more > most ? more : most;
        ended += more;
        CHECK(turns < 100 * EQUAL);
    }
    CHECK(most <= A_TURN_MAX);
    for (int32_t i = 0; i < EQUAL; i++) CHECK_INT(first_found(client, i), 0);
    CHECK_INT(hold_wakes(), EQUAL);
    close(client);
    kit_broker_stop(&kit);
}

/* A topic whose queue is re-created while requests wait for messages of the old one. */
static void holds_of_a_re_created_queue_end(void)
{
    start();
    const int client = kit_client(&kit), later = kit_client(&kit);
    append(3, "other");
    kit_pull(client, 1, "T", 3, HELD_AND_FILTERED, WAIT_MS, "wanted");
    CHECK(kit_is_silent(&kit, client));
    CHECK_OK(cmq_store_delete_topic(kit.store, kit_slice("T")));
    kit_pull(later, 2, "T", 0, HELD_AND_FILTERED, WAIT_MS, "wanted");
    CHECK(kit_is_silent(&kit, later));
    append(1, "other");
    append(1, "wanted");
    CHECK_INT(first_found(later, 2), 1);
    close(client);
    close(later);
    kit_broker_stop(&kit);
}

CMQ_TEST_MAIN(CMQ_TEST(holds_end_behind_many_messages_of_other_tags), CMQ_TEST(long_looks_delay_no_other_queue),
              CMQ_TEST(changes_of_a_group_end_its_holds_over_turns), CMQ_TEST(a_change_answers_the_holds_of_before_it),
              CMQ_TEST(all_holds_of_a_tag_end_and_no_others),
              CMQ_TEST(holds_by_expression_end_for_their_messages_alone),
              CMQ_TEST(long_expressions_delay_no_other_hold),
              CMQ_TEST(long_expressions_of_one_message_leave_each_turn_to_others),
              CMQ_TEST(many_short_expressions_take_many_turns),
              CMQ_TEST(holds_of_one_costly_expression_end_over_turns),
              CMQ_TEST(holds_of_a_re_created_queue_end))
