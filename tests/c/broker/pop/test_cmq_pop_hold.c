/* Tests csrc/broker/pop/cmq_pop_hold.c through sockets: which pops are held, how that ends, and which are served first:
 * members, groups, loops; messages that are not on disk yet are delivered to nobody. Time is injected. */
#include <unistd.h>

#include "broker/pop/cmq_pop_internal.h"
#include "support/cmq_pop_kit.h"

static asked of_queue(asked what, int32_t queue_id)
{
    what.queue_id = queue_id;
    return what;
}

static asked of_group(asked what, const char *group)
{
    what.group = group;
    return what;
}

static void hold(int client, int32_t opaque, asked what)
{
    pop(client, opaque, what);
    CHECK(kit_is_silent(&kit, client));
}

static void send_one(int client)
{
    kit_send_message(client, 1, "T", "even", "hello");
    expect(client, 1, OK);
}

static void pops_looked(uint64_t *looks_out)
{
    cmq_broker_counters counters;
    cmq_broker_count(kit.broker, &counters);
    *looks_out = counters.pops;
}

/* ---- outcomes ---- */

static int64_t put_to(const char *topic, int32_t queue_id)
{
    const cmq_append append = {.common = {.topic = cmq_slice_of_text(topic), .queue_id = queue_id},
                               .count = 1,
                               .bodies = {.kind = CMQ_COLUMN_ONE, .one = cmq_slice_of_text("x")}};
    cmq_appended appended;
    CHECK_OK(cmq_store_append(kit.store, &append, &appended));
    return appended.first_physical_offset;
}

/* A pop of all queues waits for the others, and gets the error of the damage at the end; a pop of the damaged one gets
 * it at once. */
static void a_damaged_queue_does_not_keep_a_pop_from_the_others(void)
{
    const char *root = cmq_test_directory();
    kit_broker_start_pops(&kit, root, CMQ_FLUSH_ASYNC, NULL);
    const int client = kit_client(&kit);
    damage_record(root, put_to("T", 1));
    hold(client, 1, waiting(60000));
    (void)put_to("T", 2);
    expect_text(expect(client, 1, OK), "startOffsetInfo", "0 2 0");
    hold(client, 2, waiting(10000));
    kit_broker_pass_pops(&kit, 10000);
    CHECK(expect(client, 2, 1)->command.remark.bytes > 0);
    pop(client, 3, all);
    expect(client, 3, 1);
    pop(client, 4, of_queue(waiting(60000), 1));
    expect(client, 4, 1);
    pop(client, 5, of_queue(waiting(60000), 2));
    CHECK(kit_is_silent(&kit, client));
    close(client);
    kit_broker_stop(&kit);
}

/* A damaged message is not left over for another pop: else each pop that fails on it would wake the next, for ever. The
 * first pop that visits the damaged queue reads it, so there are several rounds. */
static void remaining_messages_wake_pops_beside_a_damaged_queue(void)
{
    enum { ROUNDS = 16, CLIENTS = 3 };
    const char *root = cmq_test_directory();
    const cmq_append two = {.common = {.topic = cmq_slice_of_text("T"), .queue_id = 2},
                            .count = 2,
                            .bodies = {.kind = CMQ_COLUMN_ONE, .one = cmq_slice_of_text("x")}};
    cmq_appended appended;
    uint64_t before, after;
    int clients[CLIENTS];
    kit_broker_start_pops(&kit, root, CMQ_FLUSH_ASYNC, NULL);
    for (int i = 0; i < CLIENTS; i++) clients[i] = kit_client(&kit);
    damage_record(root, put_to("T", 1));
    for (int i = 0; i < CLIENTS; i++) hold(clients[i], i, one_of(waiting(60000)));
    pops_looked(&before);
    for (int round = 0; round < ROUNDS; round++) {
        CHECK_OK(cmq_store_append(kit.store, &two, &appended));
        for (int i = 0; i < 2; i++) {
            const int which = (2 * round + i) % CLIENTS;
            CHECK_INT(records_in(expect(clients[which], which, OK)), 1);
        }
        for (int i = 0; i < 2; i++)
            hold(clients[(2 * round + i) % CLIENTS], (2 * round + i) % CLIENTS, one_of(waiting(60000)));
    }
    pops_looked(&after);
    CHECK(after - before <= 5 * ROUNDS);   /* two that are held again, and one look of each at most */
    for (int i = 0; i < CLIENTS; i++) close(clients[i]);
    kit_broker_stop(&kit);
}

static void a_pop_that_finds_nothing_is_held_or_one_too_many_or_too_late(void)
{
    start(&(cmq_pop_service_options){.waits_max = 3, .waits_key_max = 2});
    int clients[5];
    for (int i = 0; i < 5; i++) clients[i] = kit_client(&kit);
    hold(clients[0], 1, waiting(15000));
    hold(clients[1], 2, waiting(15000));
    pop(clients[2], 3, waiting(15000));
    expect(clients[2], 3, POLLING_FULL);               /* two wait at its key */
    hold(clients[2], 4, of_queue(waiting(15000), 2));
    pop(clients[3], 5, of_queue(waiting(15000), 1));
    expect(clients[3], 5, POLLING_FULL);               /* three wait in all */
    pop(clients[3], 6, all);
    expect(clients[3], 6, POLLING_TIMEOUT);            /* it did not want to wait */
    pop(clients[3], 7, waiting(40));
    expect(clients[3], 7, POLLING_TIMEOUT);            /* less than it takes to answer in time */
    send_one(clients[4]);
    CHECK_INT(records_in(expect(clients[0], 1, OK)), 1);
    kit_broker_pass(&kit, 14950);
    expect(clients[1], 2, POLLING_TIMEOUT);
    expect(clients[2], 4, POLLING_TIMEOUT);
    for (int i = 0; i < 5; i++) close(clients[i]);
    kit_broker_stop(&kit);
}

static void a_closed_connection_gets_nothing(void)
{
    start(NULL);
    const int gone = kit_client(&kit), stays = kit_client(&kit), producer = kit_client(&kit);
    hold(gone, 1, waiting(15000));
    hold(stays, 2, waiting(15000));
    close(gone);
    CHECK(kit_is_silent(&kit, stays));
    send_one(producer);
    CHECK_INT(records_in(expect(stays, 2, OK)), 1);
    close(stays);
    close(producer);
    kit_broker_stop(&kit);
}

static void unmatched_messages_end_no_wait(void)
{
    start(NULL);
    const int client = kit_client(&kit), producer = kit_client(&kit);
    asked odd = waiting(15000);
    odd.expression = "odd";
    hold(client, 1, odd);
    send_one(producer);
    CHECK(kit_is_silent(&kit, client));
    kit_send_message(producer, 2, "T", "odd", "x");
    expect_text(expect(client, 1, OK), "msgOffsetInfo", "0 0 1");
    close(client);
    close(producer);
    kit_broker_stop(&kit);
}

/* Nobody could watch it when the pop was held. */
static void the_first_message_of_a_queue_ends_a_wait(void)
{
    start(NULL);
    const int client = kit_client(&kit), other = kit_client(&kit);
    hold(client, 1, waiting(15000));
    (void)put_to("T", 3);
    expect_text(expect(client, 1, OK), "msgOffsetInfo", "0 3 0");
    hold(client, 2, waiting(15000));
    hold(other, 3, of_queue(waiting(15000), 2));
    kit_broker_topic(&kit, "T", 6, CMQ_PERM_READ | CMQ_PERM_WRITE);   /* it gets more queues meanwhile */
    (void)put_to("T", 5);
    expect_text(expect(client, 2, OK), "msgOffsetInfo", "0 5 0");
    CHECK(kit_is_silent(&kit, other));
    close(client);
    close(other);
    kit_broker_stop(&kit);
}

static void a_deletion_during_the_wait_is_reported_at_the_end(void)
{
    start(NULL);
    const int client = kit_client(&kit), other = kit_client(&kit);
    kit_broker_topic(&kit, "D", 1, CMQ_PERM_READ | CMQ_PERM_WRITE);
    kit_broker_subscribe(&kit, "H", "T", "*", 1);
    asked deleted = waiting(15000);
    deleted.topic = "D";
    hold(client, 1, deleted);
    hold(other, 2, of_group(waiting(15000), "H"));
    CHECK(cmq_tables_remove_topic(kit.tables, cmq_slice_of_text("D")));
    CHECK(cmq_tables_remove_group(kit.tables, cmq_slice_of_text("H")));
    kit_broker_pass(&kit, 14950);
    expect(client, 1, 17);
    expect(other, 2, 26);
    close(client);
    close(other);
    kit_broker_stop(&kit);
}

/* ---- fairness ---- */

static void members_are_served_in_turn(void)
{
    enum { MEMBERS = 3, MESSAGES = 9 };
    start(NULL);
    const int producer = kit_client(&kit);
    int members[MEMBERS];
    for (int i = 0; i < MEMBERS; i++) members[i] = kit_client(&kit);
    for (int i = 0; i < MEMBERS; i++) {
        kit_broker_pass(&kit, 1);
        hold(members[i], i, waiting(15000));
    }
    for (int i = 0; i < MESSAGES; i++) {
        char place[24];
        const int member = members[i % MEMBERS];
        send_one(producer);
        snprintf(place, sizeof place, "0 0 %d", i);
        expect_text(expect(member, i % MEMBERS, OK), "msgOffsetInfo", place);
        kit_broker_pass(&kit, 1);
        hold(member, i % MEMBERS, waiting(15000));
    }
    for (int i = 0; i < MEMBERS; i++) close(members[i]);
    close(producer);
    kit_broker_stop(&kit);
}

static void each_group_gets_new_messages(void)
{
    enum { GROUPS = 3 };
    static const char *const names[GROUPS] = {"G", "H", "I"};
    start(NULL);
    const int producer = kit_client(&kit);
    int waits[GROUPS], second[GROUPS];
    for (int i = 0; i < GROUPS; i++) {
        kit_broker_subscribe(&kit, names[i], "T", "*", 1);
        waits[i] = kit_client(&kit);
        second[i] = kit_client(&kit);
        hold(waits[i], i, of_group(waiting(15000), names[i]));
        hold(second[i], i, of_group(waiting(20000), names[i]));
    }
    send_one(producer);
    for (int i = 0; i < GROUPS; i++) {
        expect_text(expect(waits[i], i, OK), "msgOffsetInfo", "0 0 0");
        CHECK(kit_is_silent(&kit, second[i]));
        close(waits[i]);
        close(second[i]);
    }
    close(producer);
    kit_broker_stop(&kit);
}

/* An arrival asks so many groups in a turn, and those of another topic need not wait for them. */
static void arrivals_for_many_groups_take_many_turns(void)
{
    enum { GROUPS = 1600, A_TURN = 2048 / 4 + 16 };   /* looks at queues, of which the topic has 4; pops of a step */
    static char names[GROUPS][16];
    cmq_broker_counters counters;
    start(NULL);
    kit_broker_topic(&kit, "U", 1, CMQ_PERM_READ | CMQ_PERM_WRITE);
    const int producer = kit_client(&kit), many = kit_client(&kit), other = kit_client(&kit);
    for (int32_t i = 0; i < GROUPS; i++) {
        snprintf(names[i], sizeof names[i], "G%d", i);
        kit_broker_subscribe(&kit, names[i], "T", "*", 1);
        pop(many, i, of_group(waiting(15000), names[i]));
        if (i % 100 == 0) CHECK(kit_is_silent(&kit, many));
    }
    CHECK(kit_is_silent(&kit, many));
    asked of_other = waiting(15000);
    of_other.topic = "U";
    hold(other, 1, of_other);
    cmq_broker_count(kit.broker, &counters);
    CHECK_INT(counters.pops_held_now, GROUPS + 1);
    (void)put_to("T", 0);
    (void)put_to("U", 0);
    kit_broker_turn(&kit);
    expect_text(expect(other, 1, OK), "msgOffsetInfo", "0 0 0");
    uint64_t before = counters.pop_wakes;
    cmq_broker_count(kit.broker, &counters);
    CHECK(counters.pops_held_now > 0);
    CHECK(counters.pop_wakes - before <= 3 * A_TURN);
    /* A message that comes meanwhile is not lost for those who stay. */
    while (counters.pops_held_now > 0) {
        before = counters.pop_wakes;
        kit_broker_turn(&kit);
        cmq_broker_count(kit.broker, &counters);
        CHECK(counters.pop_wakes - before <= A_TURN);
    }
    for (int32_t i = 0; i < GROUPS; i++) CHECK_INT(kit_answer_of(&kit, many)->command.code, OK);
    close(other);
    close(many);
    close(producer);
    kit_broker_stop(&kit);
}

/* Each group's pop evaluates the costly expression: they share a turn's steps. */
static void costly_expressions_of_many_groups_take_many_turns(void)
{
    enum { GROUPS = 40, A_TURN_MAX = 8, SEARCHES = 100 };
    static char names[GROUPS][16], text[4096], properties[30000];
    cmq_broker_counters counters;
    size_t used = 0;
    start(NULL);
    for (int i = 0; i < SEARCHES; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "a CONTAINS 'y' OR ");
    snprintf(text + used, sizeof text - used, "a CONTAINS 'x'");
    memset(properties, 'x', sizeof properties);
    memcpy(properties, "a\001", 2);
    properties[sizeof properties - 1] = '\002';
    const int client = kit_client(&kit);
    asked what = of_queue(waiting(15000), 0);
    what.expression = text;
    what.sql = true;
    for (int32_t i = 0; i < GROUPS; i++) {
        snprintf(names[i], sizeof names[i], "G%d", i);
        kit_broker_subscribe(&kit, names[i], "T", "*", 1);
        hold(client, i, of_group(what, names[i]));
    }
    const cmq_append one = {
        .common = {.topic = cmq_slice_of_text("T")},
        .count = 1,
        .bodies = {.kind = CMQ_COLUMN_ONE, .one = cmq_slice_of_text("x")},
        .properties = {.kind = CMQ_COLUMN_ONE,
                       .one = {.data = (const uint8_t *)properties, .bytes = sizeof properties}}};
    cmq_appended appended;
    CHECK_OK(cmq_store_append(kit.store, &one, &appended));
    cmq_broker_count(kit.broker, &counters);
    for (uint64_t before = counters.pop_wakes; counters.pops_held_now > 0; before = counters.pop_wakes) {
        kit_broker_turn(&kit);
        cmq_broker_count(kit.broker, &counters);
        CHECK(counters.pop_wakes - before <= A_TURN_MAX);
    }
    for (int32_t i = 0; i < GROUPS; i++) CHECK_INT(kit_answer_of(&kit, client)->command.code, OK);
    close(client);
    kit_broker_stop(&kit);
}

/* Wakes of a turn and of those behind it, until nobody is looked at any more. */
static uint64_t wakes_until_quiet(uint64_t most)
{
    cmq_broker_counters counters;
    cmq_broker_count(kit.broker, &counters);
    const uint64_t first = counters.pop_wakes;
    for (uint64_t before = first - 1; before != counters.pop_wakes;) {
        before = counters.pop_wakes;
        kit_broker_turn(&kit);
        cmq_broker_count(kit.broker, &counters);
        CHECK(counters.pop_wakes - first <= most);
    }
    return counters.pop_wakes - first;
}

/* Arrivals that come quicker than all groups can be asked are asked for together: a queue waits twice at most, for the
 * round that is under way and for the next. */
static void arrivals_during_long_rounds_do_not_pile_up(void)
{
    enum { GROUPS = 700, QUEUES = 4, TURNS = 20, HELD_AND_FILTERED = 6 };
    static char names[GROUPS][16];
    start(NULL);
    const int many = kit_client(&kit), puller = kit_client(&kit);
    /* It has the queue watched again whenever the queue is served. */
    kit_pull(puller, 1, "T", 0, HELD_AND_FILTERED, 15000, "never");
    CHECK(kit_is_silent(&kit, puller));
    for (int32_t i = 0; i < GROUPS; i++) {
        snprintf(names[i], sizeof names[i], "G%d", i);
        kit_broker_subscribe(&kit, names[i], "T", "never", 1);
        asked never = of_group(waiting(15000), names[i]);
        never.expression = "never";
        pop(many, i, never);
        if (i % 100 == 0) CHECK(kit_is_silent(&kit, many));
    }
    CHECK(kit_is_silent(&kit, many));
    for (int turn = 0; turn < TURNS; turn++) {
        for (int32_t queue = 0; queue < QUEUES; queue++) (void)put_to("T", queue);
        kit_broker_turn(&kit);
    }
    CHECK(wakes_until_quiet((2 * QUEUES + 1) * GROUPS) > 0);
    CHECK(kit_is_silent(&kit, many));
    close(puller);
    close(many);
    kit_broker_stop(&kit);
}

/* The watcher reports a deleted queue whenever it is asked to watch it: nobody may ask it to at each report. */
static void a_deleted_queue_wakes_its_waits_once(void)
{
    start(NULL);
    const int first = kit_client(&kit), second = kit_client(&kit);
    kit_broker_subscribe(&kit, "H", "T", "*", 1);
    (void)put_to("T", 0);
    pop(first, 1, all);
    expect(first, 1, OK);
    hold(first, 2, waiting(15000));
    pop(second, 1, of_group(all, "H"));
    expect(second, 1, OK);
    hold(second, 2, of_group(waiting(15000), "H"));
    CHECK_OK(cmq_store_delete_topic(kit.store, cmq_slice_of_text("T")));
    CHECK(wakes_until_quiet(16) > 0);
    close(first);
    close(second);
    kit_broker_stop(&kit);
}

static void a_wait_for_one_queue_and_one_for_all_are_both_asked(void)
{
    start(NULL);
    const int of_all = kit_client(&kit), of_one = kit_client(&kit), of_other = kit_client(&kit),
              producer = kit_client(&kit);
    hold(of_one, 1, of_queue(waiting(15000), 0));
    hold(of_other, 2, of_queue(waiting(15000), 1));
    hold(of_all, 3, waiting(15000));
    send_one(producer);
    /* One of the two has it, the other stays, and gets the next. */
    const bool all_was_first = !kit_is_silent(&kit, of_all);
    const int first = all_was_first ? of_all : of_one, next = all_was_first ? of_one : of_all;
    expect_text(expect(first, all_was_first ? 3 : 1, OK), "msgOffsetInfo", "0 0 0");
    CHECK(kit_is_silent(&kit, next));
    send_one(producer);
    expect_text(expect(next, all_was_first ? 1 : 3, OK), "msgOffsetInfo", "0 0 1");
    CHECK(kit_is_silent(&kit, of_other));
    close(of_all);
    close(of_one);
    close(of_other);
    close(producer);
    kit_broker_stop(&kit);
}

static void a_batch_is_shared_by_waiting_pops(void)
{
    enum { MEMBERS = 4 };
    start(NULL);
    const int producer = kit_client(&kit);
    int members[MEMBERS];
    for (int i = 0; i < MEMBERS; i++) {
        members[i] = kit_client(&kit);
        hold(members[i], i, one_of(waiting(15000)));
    }
    for (int i = 0; i < MEMBERS; i++) kit_send_message(producer, i, "T", "a", "x");   /* in one turn: one arrival */
    for (int i = 0; i < MEMBERS; i++) {
        const kit_answer *answer = expect(members[i], i, OK);
        CHECK_INT(kit_number(answer, "restNum"), MEMBERS - 1 - i);
        CHECK_INT(records_in(answer), 1);
    }
    for (int i = 0; i < MEMBERS; i++) close(members[i]);
    close(producer);
    kit_broker_stop(&kit);
}

/* ---- several loops ---- */

static void over_several_loops_each_message_goes_to_one(void)
{
    enum { MEMBERS = 6 };
    kit_broker_start_pops_on(&kit, cmq_test_directory(), CMQ_FLUSH_ASYNC, NULL, 3);
    const int producer = kit_client(&kit);
    int members[MEMBERS];
    bool served[MEMBERS] = {false};
    for (int i = 0; i < MEMBERS; i++) {
        members[i] = kit_client(&kit);
        hold(members[i], i, one_of(waiting(15000)));
    }
    for (int round = 0; round < MEMBERS; round++) {
        char place[24];
        int found = -1;
        send_one(producer);
        for (int i = 0; i < MEMBERS; i++) {
            if (served[i] || kit_is_silent(&kit, members[i])) continue;
            CHECK_INT(found, -1);
            found = i;
        }
        CHECK(found >= 0);
        served[found] = true;
        snprintf(place, sizeof place, "0 0 %d", round);
        expect_text(expect(members[found], found, OK), "msgOffsetInfo", place);
    }
    for (int i = 0; i < MEMBERS; i++) close(members[i]);
    close(producer);
    kit_broker_stop(&kit);
}

static void a_rest_wakes_pops_of_other_loops(void)
{
    kit_broker_start_pops_on(&kit, cmq_test_directory(), CMQ_FLUSH_ASYNC, NULL, 2);
    const int first = kit_client(&kit), second = kit_client(&kit), third = kit_client(&kit);
    asked ordered = in_order(waiting(60000));
    send_some(first, 2);
    pop(first, 1, one_of(ordered));
    const batch b = batch_of(expect(first, 1, OK), 0);
    hold(second, 2, ordered);   /* it is on the other loop than one of the two others */
    hold(third, 3, ordered);
    ack(first, 4, &b, 0);
    const bool second_has_it = !kit_is_silent(&kit, second);
    expect_text(expect(second_has_it ? second : third, second_has_it ? 2 : 3, OK), "msgOffsetInfo", "0 0 1");
    CHECK(kit_is_silent(&kit, second_has_it ? third : second));
    close(first);
    close(second);
    close(third);
    kit_broker_stop(&kit);
}

static void a_revived_message_wakes_a_pop_of_any_loop(void)
{
    enum { LOOPS = 3 };
    kit_broker_start_pops_on(&kit, cmq_test_directory(), CMQ_FLUSH_ASYNC, NULL, LOOPS);
    int clients[LOOPS];
    cmq_record_view view;
    for (int i = 0; i < LOOPS; i++) clients[i] = kit_client(&kit);
    send_some(clients[0], 1);
    pop(clients[0], 1, all);
    expect(clients[0], 1, OK);
    hold(clients[LOOPS - 1], 2, of_queue(waiting(60000), 3));   /* whatever queue of the topic it asked for */
    kit_broker_pass_pops(&kit, 20000);
    CHECK(strlen(retry_handle(expect(clients[LOOPS - 1], 2, OK), &view)) > 0);
    for (int i = 0; i < LOOPS; i++) close(clients[i]);
    kit_broker_stop(&kit);
}

/* ---- messages in flight ---- */

static void too_many_in_flight_wait_for_acks(const cmq_pop_service_options *options)
{
    start(options);
    const int client = kit_client(&kit), held = kit_client(&kit);
    uint64_t before, after;
    send_some(client, 6);
    asked three = all;
    three.most = 3;
    pop(client, 1, three);
    const batch b = batch_of(expect(client, 1, OK), 0);
    pop(client, 2, all);
    const kit_answer *answer = expect(client, 2, POLLING_TIMEOUT);
    CHECK_INT(kit_number(answer, "restNum"), 3);
    hold(held, 3, waiting(15000));
    pops_looked(&before);
    CHECK(kit_is_silent(&kit, held));
    pops_looked(&after);
    CHECK_INT(after, before);   /* it waits, and does not ask itself again and again */
    ack(client, 4, &b, 1);
    CHECK_INT(records_in(expect(held, 3, OK)), 3);
    /* Those that nobody acknowledges are in flight no more when they are revived. */
    pop(client, 5, all);
    expect(client, 5, POLLING_TIMEOUT);
    hold(held, 6, waiting(60000));
    kit_broker_pass_pops(&kit, 20000);
    expect(held, 6, OK);
    close(client);
    close(held);
    kit_broker_stop(&kit);
}

static void too_many_in_flight_when_all_is_stored(void)
{
    too_many_in_flight_wait_for_acks(&(cmq_pop_service_options){.in_flight_max = 2});
}
static void too_many_in_flight_when_pops_are_merged(void)
{
    too_many_in_flight_wait_for_acks(&(cmq_pop_service_options){.in_flight_max = 2, .merge = true});
}

/* ---- the disk ---- */

static void unsynced_messages_are_not_popped(void)
{
    kit_broker_start_pops(&kit, cmq_test_directory(), CMQ_FLUSH_SYNC, NULL);
    const int client = kit_client(&kit), producer = kit_client(&kit);
    for (int i = 0; i < 20; i++) {
        char place[24];
        pop(client, i, waiting(15000));
        kit_broker_turn(&kit);
        kit_send_message(producer, i, "T", "a", "x");
        const kit_answer *answer = expect(client, i, OK);
        snprintf(place, sizeof place, "0 0 %d", i);
        expect_text(answer, "msgOffsetInfo", place);
        cmq_record_view view;
        CHECK_OK(cmq_record_parse(answer->body.data, answer->body.bytes, -1, CMQ_RECORD_CHECK_BODY_CRC, &view));
        CHECK(view.physical_offset < cmq_store_confirmed(kit.store));
        const batch b = batch_of(answer, i);
        expect(producer, i, OK);
        ack(client, 100 + i, &b, i);
        CHECK_OK(cmq_store_flush(kit.store));
        CHECK_OK(cmq_pop_service_step(kit.pops));
        CHECK_INT(committed("T"), i + 1);
    }
    close(client);
    close(producer);
    kit_broker_stop(&kit);
}

/* ---- resets ---- */

static void reset_to(const char *topic, int32_t queue_id, int64_t offset)
{
    const cmq_offset_key key = {
        .group = cmq_slice_of_text("G"), .topic = cmq_slice_of_text(topic), .queue_id = queue_id};
    CHECK_OK(cmq_broker_reset_offset(kit.broker, &key, offset, (cmq_offset_asker){0}));
}

static void a_reset_wakes_waiting_pops(void)
{
    kit_broker_start_pops_on(&kit, cmq_test_directory(), CMQ_FLUSH_ASYNC, NULL, 2);
    const int of_all = kit_client(&kit), of_one = kit_client(&kit), client = kit_client(&kit);
    send_some(client, 3);
    pop(client, 1, all);
    const batch b = batch_of(expect(client, 1, OK), 0);
    for (int i = 0; i < 3; i++) ack(client, 10 + i, &b, i);
    hold(of_all, 2, waiting(60000));
    reset_to("T", 0, 1);
    expect_text(expect(of_all, 2, OK), "msgOffsetInfo", "0 0 1,2");
    hold(of_one, 3, of_queue(waiting(60000), 0));
    hold(of_all, 4, of_queue(waiting(60000), 1));
    reset_to("T", 0, 2);
    expect_text(expect(of_one, 3, OK), "msgOffsetInfo", "0 0 2");
    CHECK(kit_is_silent(&kit, of_all));
    /* The retry topic is read by who pops the topic. */
    kit_broker_topic(&kit, "%RETRY%G_T", 1, CMQ_PERM_READ | CMQ_PERM_WRITE);
    (void)put_to("%RETRY%G_T", 0);
    pop(client, 5, all);
    expect(client, 5, OK);
    reset_to("%RETRY%G_T", 0, 0);
    expect_text(expect(of_all, 4, OK), "msgOffsetInfo", "1 0 0");
    close(of_all);
    close(of_one);
    close(client);
    kit_broker_stop(&kit);
}

/* ---- ordered pops ---- */

/* One that is blocked gets another deadline with each batch before it; its place it has already. */
static void an_ordered_pop_stays_held_where_no_more_may_wait(void)
{
    start(&(cmq_pop_service_options){.waits_key_max = 1});
    const int first = kit_client(&kit), second = kit_client(&kit);
    asked ordered = in_order(waiting(60000));
    ordered.queue_id = 0;
    ordered.most = 1;
    send_some(first, 2);
    pop(first, 1, ordered);
    const batch b = batch_of(expect(first, 1, OK), 0);
    hold(second, 2, ordered);
    settle_to(first, 3, CHANGE, "T", 0, 0, handle_of(&b, 0), 30000);
    expect(first, 3, OK);
    kit_broker_pass_pops(&kit, 15000);
    CHECK(kit_is_silent(&kit, second));
    kit_broker_pass_pops(&kit, 16000);
    expect_text(expect(second, 2, OK), "msgOffsetInfo", "0 0 0");
    close(first);
    close(second);
    kit_broker_stop(&kit);
}

/* How long a client waits is a length of time: the clock may be set meanwhile. */
static void a_held_pop_ends_in_time_though_the_clock_is_set(void)
{
    const int64_t days_ms = INT64_C(10) * 24 * 3600 * 1000;
    start(NULL);
    const int client = kit_client(&kit), blocked = kit_client(&kit), held = kit_client(&kit);
    asked ordered = in_order(waiting(15000));
    ordered.queue_id = 0;
    send_one(client);
    pop(client, 1, ordered);
    expect(client, 1, OK);
    hold(blocked, 2, ordered);
    kit.now_ms -= days_ms;
    kit_broker_pass_pops(&kit, 14000);
    CHECK(kit_is_silent(&kit, blocked));
    kit_broker_pass_pops(&kit, 1000);
    expect(blocked, 2, POLLING_TIMEOUT);
    /* Set ahead, it still gets the message that comes in time. */
    hold(held, 3, of_queue(waiting(15000), 1));
    kit.now_ms += 2 * days_ms;
    (void)put_to("T", 1);
    expect_text(expect(held, 3, OK), "msgOffsetInfo", "0 1 0");
    close(client);
    close(blocked);
    close(held);
    kit_broker_stop(&kit);
}

/* ---- notes for other loops ---- */

enum { NOTED_LOOPS = 2 };

static void note_group(const char *prefix, uint32_t number)
{
    char group[32];
    snprintf(group, sizeof group, "%s%u", prefix, number);
    cmq_pop_notify_revived(kit.broker, cmq_slice_of_text("T"), cmq_slice_of_text(group));
}

static void check_notes(uint32_t expected)
{
    for (uint32_t i = 0; i < NOTED_LOOPS; i++) CHECK_INT(kit.broker->loops[i]->pop_note_count, expected);
}

/* A note that equals one of the last 16 is left out: members of so many groups that pop at a time cost a note each. */
static void equal_notes_among_the_last_ones_are_left_out(void)
{
    enum { COMPARED = 16, TIMES = 3 };
    kit_broker_start_pops_on(&kit, cmq_test_directory(), CMQ_FLUSH_ASYNC, NULL, NOTED_LOOPS);
    for (uint32_t i = 0; i < TIMES * COMPARED; i++) note_group("g", i % COMPARED);
    check_notes(COMPARED);
    for (uint32_t i = 0; i < TIMES * (COMPARED + 1); i++) note_group("h", i % (COMPARED + 1));
    check_notes(COMPARED + TIMES * (COMPARED + 1));
    kit_broker_turn(&kit);
    check_notes(0);
    kit_broker_stop(&kit);
}

/* Those beyond 65,536 are dropped: their pops look again at their deadline; those before are woken. */
static void notes_are_bounded_and_a_dropped_one_costs_time_alone(void)
{
    enum { NOTES_MAX = 65536, TURNS = NOTES_MAX / 512 + 2 };
    kit_broker_start_pops_on(&kit, cmq_test_directory(), CMQ_FLUSH_ASYNC, NULL, NOTED_LOOPS);
    int held[NOTED_LOOPS];
    uint64_t before, after;
    for (int32_t i = 0; i < NOTED_LOOPS; i++) {
        held[i] = kit_client(&kit);
        hold(held[i], i, waiting(15000));
    }
    kit_broker_turn(&kit);
    for (uint32_t i = 0; i < NOTES_MAX + 20; i++) note_group("g", i);
    check_notes(NOTES_MAX);
    note_group("G", 0);
    check_notes(NOTES_MAX);
    pops_looked(&before);
    for (int i = 0; i < TURNS; i++) kit_broker_turn(&kit);
    pops_looked(&after);
    CHECK_INT(after, before);
    check_notes(0);
    kit_broker_pass_pops(&kit, 15000);
    for (int32_t i = 0; i < NOTED_LOOPS; i++) {
        expect(held[i], i, POLLING_TIMEOUT);
        close(held[i]);
    }
    kit_broker_stop(&kit);
}

/* Given to nobody for no time: it is free at once, however long the next one wants to have it. */
static void an_ordered_pop_without_time_blocks_nobody(void)
{
    start(NULL);
    const int client = kit_client(&kit);
    asked ordered = in_order(all);
    ordered.invisible_ms = 0;
    send_some(client, 1);
    pop(client, 1, ordered);
    expect(client, 1, OK);
    ordered.invisible_ms = 60000;
    pop(client, 2, ordered);
    expect_text(expect(client, 2, OK), "msgOffsetInfo", "0 0 0");
    pop(client, 3, ordered);
    expect(client, 3, POLLING_TIMEOUT);
    close(client);
    kit_broker_stop(&kit);
}

CMQ_TEST_MAIN(CMQ_TEST(a_pop_that_finds_nothing_is_held_or_one_too_many_or_too_late),
              CMQ_TEST(a_closed_connection_gets_nothing), CMQ_TEST(unmatched_messages_end_no_wait),
              CMQ_TEST(the_first_message_of_a_queue_ends_a_wait),
              CMQ_TEST(a_deletion_during_the_wait_is_reported_at_the_end), CMQ_TEST(members_are_served_in_turn),
              CMQ_TEST(each_group_gets_new_messages), CMQ_TEST(arrivals_for_many_groups_take_many_turns),
              CMQ_TEST(costly_expressions_of_many_groups_take_many_turns),
              CMQ_TEST(arrivals_during_long_rounds_do_not_pile_up), CMQ_TEST(a_deleted_queue_wakes_its_waits_once),
              CMQ_TEST(a_wait_for_one_queue_and_one_for_all_are_both_asked),
              CMQ_TEST(a_batch_is_shared_by_waiting_pops), CMQ_TEST(over_several_loops_each_message_goes_to_one),
              CMQ_TEST(a_rest_wakes_pops_of_other_loops), CMQ_TEST(a_revived_message_wakes_a_pop_of_any_loop),
              CMQ_TEST(too_many_in_flight_when_all_is_stored), CMQ_TEST(too_many_in_flight_when_pops_are_merged),
              CMQ_TEST(unsynced_messages_are_not_popped), CMQ_TEST(a_damaged_queue_does_not_keep_a_pop_from_the_others),
              CMQ_TEST(remaining_messages_wake_pops_beside_a_damaged_queue), CMQ_TEST(a_reset_wakes_waiting_pops),
              CMQ_TEST(an_ordered_pop_stays_held_where_no_more_may_wait),
              CMQ_TEST(a_held_pop_ends_in_time_though_the_clock_is_set),
              CMQ_TEST(equal_notes_among_the_last_ones_are_left_out),
              CMQ_TEST(notes_are_bounded_and_a_dropped_one_costs_time_alone),
              CMQ_TEST(an_ordered_pop_without_time_blocks_nobody))
