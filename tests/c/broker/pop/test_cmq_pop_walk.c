/* Tests csrc/broker/pop/cmq_pop_walk.c through sockets: pops of topics with many queues take their time in parts, and
 * miss nothing. Time is injected. */
#include <poll.h>
#include <unistd.h>

#include "broker/pop/cmq_pop_internal.h"
#include "support/cmq_pop_kit.h"

/* Queues with a message. A group whose progress begins looks at 120 of them in a part. */
enum { WIDE = 400, PARTS = WIDE * (int)CMQ_POP_COST_BEGIN / (int)(CMQ_POP_LOOKS_PER_TURN * CMQ_POP_COST_LOOK) };

static int64_t put_to(const char *topic, int32_t queue_id, const char *tag)
{
    const cmq_append append = {.common = {.topic = cmq_slice_of_text(topic), .queue_id = queue_id},
                               .count = 1,
                               .bodies = {.kind = CMQ_COLUMN_ONE, .one = cmq_slice_of_text("x")},
                               .tags = {.kind = CMQ_COLUMN_ONE, .one = cmq_slice_of_text(tag)}};
    cmq_appended appended;
    CHECK_OK(cmq_store_append(kit.store, &append, &appended));
    return appended.first_physical_offset;
}

static void put(int32_t queue_id, const char *tag) { (void)put_to("T", queue_id, tag); }

/* A topic with a message of no interest in each queue. */
static void fill_topic(const char *topic, int32_t queues)
{
    static int32_t ids[WIDE];
    for (int32_t i = 0; i < queues; i++) ids[i] = i;
    const cmq_append append = {.common = {.topic = cmq_slice_of_text(topic)},
                               .count = (uint32_t)queues,
                               .queue_ids = ids,
                               .bodies = {.kind = CMQ_COLUMN_ONE, .one = cmq_slice_of_text("x")},
                               .tags = {.kind = CMQ_COLUMN_ONE, .one = cmq_slice_of_text("other")}};
    cmq_appended appended;
    kit_broker_topic(&kit, topic, queues, CMQ_PERM_READ | CMQ_PERM_WRITE);
    CHECK_OK(cmq_store_append(kit.store, &append, &appended));
}

static void fill(int32_t queues) { fill_topic("T", queues); }

static const char *name_of(int32_t group)
{
    static char names[64][16];
    CHECK(group < 64);
    snprintf(names[group], sizeof names[group], "G%d", group);
    return names[group];
}

/* A pop by a group that has no progress yet, for messages with its name as tag. */
static asked wanted(int32_t group, int64_t poll_ms)
{
    asked what = waiting(poll_ms);
    what.group = what.expression = name_of(group);
    kit_broker_subscribe(&kit, what.group, "T", "*", 1);
    return what;
}

static bool has_answer(int client)
{
    struct pollfd ready = {.fd = client, .events = POLLIN};
    return poll(&ready, 1, 0) == 1;
}

/* How many turns until the client has an answer. */
static int turns_until_answered(int client)
{
    int turns = 0;
    while (!has_answer(client)) {
        kit_broker_turn(&kit);
        CHECK(++turns < 100000);
    }
    return turns;
}

static uint64_t looks(void)
{
    cmq_broker_counters counters;
    cmq_broker_count(kit.broker, &counters);
    return counters.pops;
}

static uint64_t held_now(void)
{
    cmq_broker_counters counters;
    cmq_broker_count(kit.broker, &counters);
    return counters.pops_held_now;
}

static void turn_often(void)
{
    for (int turn = 0; turn < 20; turn++) kit_broker_turn(&kit);
}

static void a_pop_of_a_wide_topic_takes_several_turns(void)
{
    start(NULL);
    fill(WIDE);
    const int client = kit_client(&kit);
    pop(client, 1, wanted(0, 0));
    CHECK(turns_until_answered(client) > PARTS);
    expect(client, 1, POLLING_TIMEOUT);
    CHECK_INT(held_now(), 0);
    close(client);
    kit_broker_stop(&kit);
}

static void a_pop_that_does_not_wait_finds_the_one_message(void)
{
    enum { ROUNDS = 5 };
    start(NULL);
    fill(WIDE);
    const int client = kit_client(&kit);
    for (int32_t round = 0; round < ROUNDS; round++) {
        put(round * (WIDE / ROUNDS), name_of(round));
        pop(client, round, wanted(round, 0));
        CHECK_INT(kit_answer_of(&kit, client)->command.code, OK);
    }
    close(client);
    kit_broker_stop(&kit);
}

/* Whether the walk has passed the queue already or not. */
static void a_message_that_comes_during_a_walk_is_found(void)
{
    start(NULL);
    fill(WIDE);
    const int client = kit_client(&kit);
    for (int32_t round = 0; round < 8; round++) {
        pop(client, round, wanted(round, 15000));
        kit_broker_turn(&kit);
        CHECK(!has_answer(client));
        put(round * (WIDE / 8), name_of(round));
        expect(client, round, OK);
    }
    close(client);
    kit_broker_stop(&kit);
}

/* One whose walk is over costs nothing until something comes. */
static void a_held_pop_of_a_wide_topic_is_woken_by_any_queue(void)
{
    start(NULL);
    fill(WIDE);
    const int client = kit_client(&kit);
    for (int32_t round = 0; round < 4; round++) {
        pop(client, round, wanted(round, 15000));
        turn_often();
        const uint64_t before = looks();
        turn_often();
        CHECK_INT(looks() - before, 0);
        CHECK(!has_answer(client));
        put((round * 199) % WIDE, name_of(round));
        expect(client, round, OK);
    }
    close(client);
    kit_broker_stop(&kit);
}

/* At the end of their time they look once more: so many in a turn, and one that begins too many. */
static void many_wide_pops_that_end_together_take_many_turns(void)
{
    enum { GROUPS = 40, A_TURN = CMQ_POP_LOOKS_PER_TURN / WIDE + 1 };
    start(NULL);
    fill(WIDE);
    const int client = kit_client(&kit);
    for (int32_t i = 0; i < GROUPS; i++) pop(client, i, wanted(i, 15000));
    for (int i = 0; i < GROUPS; i++) turn_often();
    CHECK_INT(held_now(), GROUPS);
    atomic_fetch_add(&kit.now_ms, 15000);   /* without a turn */
    kit.now_ns += INT64_C(15000000000);
    int turns = 0;
    for (uint64_t before = looks(); held_now() > 0; before = looks(), turns++) {
        kit_broker_turn(&kit);
        CHECK(looks() - before <= A_TURN);
    }
    CHECK(turns >= GROUPS / A_TURN);
    for (int32_t i = 0; i < GROUPS; i++) CHECK_INT(kit_answer_of(&kit, client)->command.code, POLLING_TIMEOUT);
    close(client);
    kit_broker_stop(&kit);
}

/* All queues of one request share its steps. */
static void a_long_expression_is_compared_in_parts(void)
{
    enum { QUEUES = 64 };
    static char text[60000];
    for (size_t used = 0; used + 40 < sizeof text;)
        used += (size_t)snprintf(text + used, sizeof text - used, "%sTAGS CONTAINS 'none'", used == 0 ? "" : " OR ");
    start(NULL);
    fill(QUEUES);
    const int client = kit_client(&kit);
    asked what = all;
    what.expression = text;
    what.sql = true;
    pop(client, 1, what);
    CHECK(turns_until_answered(client) > 3);   /* of half a million steps; a comparison has 45,000 */
    expect(client, 1, POLLING_TIMEOUT);
    put(33, "none");
    pop(client, 2, what);
    expect(client, 2, OK);
    close(client);
    kit_broker_stop(&kit);
}

/* Many requests in one turn share what a turn takes. */
static void many_new_pops_of_a_wide_topic_share_a_turn(void)
{
    enum { REQUESTS = 40 };
    start(NULL);
    fill(WIDE);
    const int client = kit_client(&kit), other = kit_client(&kit);
    for (int32_t i = 0; i < REQUESTS; i++) pop(client, i, wanted(i, 0));
    send_some(other, 1);   /* answered while they go on */
    CHECK(held_now() > 0);
    for (int32_t i = 0; i < REQUESTS; i++) CHECK_INT(kit_answer_of(&kit, client)->command.code, POLLING_TIMEOUT);
    close(client);
    close(other);
    kit_broker_stop(&kit);
}

static void all_held_pops_are_answered_over_turns(void)
{
    enum { HELD = 1000, A_TURN = 512 };
    start(NULL);
    const int client = kit_client(&kit);
    for (int32_t i = 0; i < HELD; i++) {
        pop(client, i, waiting(15000));
        if (i % 100 == 0) turn_often();
    }
    turn_often();
    CHECK_INT(held_now(), HELD);
    CHECK_OK(cmq_broker_group_changed(kit.broker, CMQ_SLICE_NONE));
    for (uint64_t before = HELD; held_now() > 0; before = held_now()) {
        kit_broker_turn(&kit);
        CHECK(before - held_now() <= A_TURN);
    }
    for (int32_t i = 0; i < HELD; i++) CHECK_INT(kit_answer_of(&kit, client)->command.code, POLLING_TIMEOUT);
    close(client);
    kit_broker_stop(&kit);
}

static void a_notification_of_a_wide_topic_finds_the_one_message(void)
{
    start(NULL);
    fill(WIDE);
    const int client = kit_client(&kit);
    pop(client, 0, wanted(0, 0));   /* passes all others */
    expect(client, 0, POLLING_TIMEOUT);
    look(client, NOTIFICATION, 1, wanted(0, 0));
    expect_text(expect(client, 1, OK), "hasMsg", "false");
    look(client, NOTIFICATION, 2, wanted(0, 15000));
    turn_often();
    CHECK(!has_answer(client));
    put(234, "G0");
    expect_text(expect(client, 2, OK), "hasMsg", "true");
    look(client, NOTIFICATION, 3, wanted(0, 0));
    expect_text(expect(client, 3, OK), "hasMsg", "true");
    close(client);
    kit_broker_stop(&kit);
}

/* Whichever part meets the damage, the error is the answer, when all others were looked at. */
static void damage_that_any_part_meets_is_the_answer(void)
{
    enum { ROUNDS = 8 };
    const char *root = cmq_test_directory();
    kit_broker_start_pops(&kit, root, CMQ_FLUSH_ASYNC, NULL);
    fill(WIDE);
    const int client = kit_client(&kit);
    for (int32_t round = 0; round < ROUNDS; round++) {
        damage_record(root, put_to("T", round, name_of(round)));
        pop(client, round, wanted(round, 0));
        CHECK(expect(client, round, 1)->command.remark.bytes > 0);
    }
    for (int32_t round = 0; round < ROUNDS; round++) {   /* their progress has begun: they look in fewer parts */
        put((round + WIDE / 2) % WIDE, name_of(round));
        pop(client, round, wanted(round, 0));
        expect(client, round, OK);
    }
    CHECK_INT(held_now(), 0);
    close(client);
    kit_broker_stop(&kit);
}

/* … also of one that is held until its time is over. */
static void damage_in_a_wide_topic_is_the_answer_of_a_held_pop_at_its_end(void)
{
    const char *root = cmq_test_directory();
    kit_broker_start_pops(&kit, root, CMQ_FLUSH_ASYNC, NULL);
    fill(WIDE);
    const int client = kit_client(&kit);
    for (int32_t round = 0; round < 8; round++) {
        damage_record(root, put_to("T", round, name_of(round)));
        pop(client, round, wanted(round, 15000));
        turn_often();
        CHECK(!has_answer(client));
        kit_broker_pass_pops(&kit, 15000);
        expect(client, round, 1);
    }
    close(client);
    kit_broker_stop(&kit);
}

static void a_wide_retry_topic_is_looked_at_in_parts(void)
{
    const char *root = cmq_test_directory();
    kit_broker_start_pops(&kit, root, CMQ_FLUSH_ASYNC, NULL);
    fill(1);
    fill_topic("%RETRY%G0_T", WIDE);
    const int client = kit_client(&kit);
    pop(client, 1, wanted(0, 0));
    CHECK(turns_until_answered(client) > PARTS);
    expect(client, 1, POLLING_TIMEOUT);
    (void)put_to("%RETRY%G0_T", 234, "G0");
    pop(client, 2, wanted(0, 0));
    CHECK_INT(records_in(expect(client, 2, OK)), 1);
    fill_topic("%RETRY%G1_T", WIDE);
    damage_record(root, put_to("%RETRY%G1_T", 123, "G1"));
    pop(client, 3, wanted(1, 0));
    expect(client, 3, 1);
    close(client);
    kit_broker_stop(&kit);
}

CMQ_TEST_MAIN(CMQ_TEST(a_pop_of_a_wide_topic_takes_several_turns),
              CMQ_TEST(a_pop_that_does_not_wait_finds_the_one_message),
              CMQ_TEST(a_message_that_comes_during_a_walk_is_found),
              CMQ_TEST(a_held_pop_of_a_wide_topic_is_woken_by_any_queue),
              CMQ_TEST(many_wide_pops_that_end_together_take_many_turns),
              CMQ_TEST(a_long_expression_is_compared_in_parts), CMQ_TEST(many_new_pops_of_a_wide_topic_share_a_turn),
              CMQ_TEST(all_held_pops_are_answered_over_turns),
              CMQ_TEST(a_notification_of_a_wide_topic_finds_the_one_message),
              CMQ_TEST(damage_that_any_part_meets_is_the_answer),
              CMQ_TEST(damage_in_a_wide_topic_is_the_answer_of_a_held_pop_at_its_end),
              CMQ_TEST(a_wide_retry_topic_is_looked_at_in_parts))
