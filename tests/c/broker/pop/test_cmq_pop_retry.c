/* Tests csrc/broker/pop/cmq_pop.c and cmq_pop_result.c through a socket: in which order a pop looks at queues and retry
 * topics of both kinds, what a message that comes back looks like, where a group begins. Time is injected. */
#include <unistd.h>

#include "support/cmq_pop_kit.h"

#define V1 "%RETRY%G_T"
#define V2 "%RETRY%G+T"

/* The topic that the one message of a peek is stored under. */
static bool peeks_at_retry_topic(int client, int32_t opaque)
{
    cmq_record_view view;
    look(client, PEEK, opaque, one_of(all));
    const kit_answer *answer = expect(client, opaque, OK);
    CHECK_OK(cmq_record_parse(answer->body.data, answer->body.bytes, -1, 0, &view));
    return view.topic.bytes > 1;
}

/* A message that an earlier broker of the store put into a retry topic. */
static void put(const char *retry_topic)
{
    const cmq_append append = {.common = {.topic = cmq_slice_of_text(retry_topic)},
                               .count = 1,
                               .bodies = {.kind = CMQ_COLUMN_ONE, .one = cmq_slice_of_text("back")}};
    cmq_appended appended;
    CHECK_OK(cmq_store_append(kit.store, &append, &appended));
}

/* A message in T and one in a retry topic. */
static void send_both(int client, const char *retry_topic)
{
    kit_broker_topic(&kit, retry_topic, 1, CMQ_PERM_READ | CMQ_PERM_WRITE);
    put(retry_topic);
    send_some(client, 1);
}

/* ---- order ---- */

static void a_fifth_of_the_pops_look_into_the_retry_topic_first(void)
{
    enum { LOOKS = 2000 };
    int first = 0;
    start(NULL);
    const int client = kit_client(&kit);
    send_both(client, V1);
    for (int i = 0; i < LOOKS; i++) first += peeks_at_retry_topic(client, i);
    CHECK(first > LOOKS / 5 - 120 && first < LOOKS / 5 + 120);   /* six and more standard deviations */
    close(client);
    kit_broker_stop(&kit);
}

/* Pop up to `most` at a time until nothing is left, and check the messages and their order. */
static void expect_pops(const cmq_pop_service_options *options, const char *retry_topic, int32_t most,
                        const char *first, const char *second)
{
    start(options);
    const int client = kit_client(&kit);
    asked what = all;
    what.most = most;
    send_both(client, retry_topic);
    pop(client, 1, what);
    expect_text(expect(client, 1, OK), "startOffsetInfo", first);
    pop(client, 2, what);
    if (second != NULL)
        expect_text(expect(client, 2, OK), "startOffsetInfo", second);
    else
        expect(client, 2, POLLING_TIMEOUT);
    close(client);
    kit_broker_stop(&kit);
}

static void queues_come_between_the_two_looks(void)
{
    const cmq_pop_service_options first = {.retry_percent = 100}, last = {.retry_percent = -1};
    expect_pops(&first, V1, 32, "1 0 0;0 0 0", NULL);
    expect_pops(&last, V1, 32, "0 0 0;1 0 0", NULL);
    expect_pops(&first, V1, 1, "1 0 0", "0 0 0");
    expect_pops(&last, V1, 1, "0 0 0", "1 0 0");
}

static void a_pop_of_one_queue_looks_into_the_retry_topic_too(void)
{
    start(NULL);
    const int client = kit_client(&kit);
    asked third = all;
    third.queue_id = 3;
    send_both(client, V1);
    pop(client, 1, third);
    expect_text(expect(client, 1, OK), "startOffsetInfo", "1 0 0");
    pop(client, 2, third);
    expect(client, 2, POLLING_TIMEOUT);
    third.queue_id = 0;
    third.order = true;   /* in order nothing comes back this way */
    put(V1);
    pop(client, 4, third);
    expect_text(expect(client, 4, OK), "startOffsetInfo", "0 0 0");
    pop(client, 5, third);
    expect(client, 5, POLLING_TIMEOUT);
    close(client);
    kit_broker_stop(&kit);
}

static void all_queues_are_asked_from_any_on(void)
{
    start(NULL);
    const int client = kit_client(&kit);
    static const char *const queues[] = {"0", "1", "2", "3"};
    uint32_t begun = 0;
    for (int i = 0; i < 4; i++) {
        const kit_field fields[] = {{"a", "P"},       {"b", "T"}, {"c", "TBW102"},        {"d", "4"},
                                    {"e", queues[i]}, {"f", "0"}, {"g", "1700000000000"}, {"h", "0"},
                                    {"i", ""},        {"j", "0"}, {"k", "false"},         {"m", "false"},
                                    {NULL, NULL}};
        kit_request(client, 310, i, 0, CMQ_HEADER_JSON, fields, "x", 1);
        expect(client, i, OK);
    }
    for (int i = 0; i < 200; i++) {
        cmq_record_view view;
        look(client, PEEK, i, one_of(all));
        const kit_answer *answer = expect(client, i, OK);
        CHECK_INT(kit_number(answer, "restNum"), 3);
        CHECK_OK(cmq_record_parse(answer->body.data, answer->body.bytes, -1, 0, &view));
        begun |= 1u << view.queue_id;
    }
    CHECK_INT(begun, 15);
    pop(client, 1, all);
    CHECK_INT(records_in(expect(client, 1, OK)), 4);
    close(client);
    kit_broker_stop(&kit);
}

/* ---- retry topics of the second kind ---- */

static void retry_topics_of_the_second_kind(void)
{
    start(&(cmq_pop_service_options){.retry_v2 = true});
    const int client = kit_client(&kit);
    char handle[512];
    cmq_record_view view;
    send_some(client, 1);
    pop(client, 1, all);
    expect(client, 1, OK);
    kit_broker_pass_pops(&kit, 20000);
    pop(client, 2, all);
    const kit_answer *answer = expect(client, 2, OK);
    expect_text(answer, "startOffsetInfo", "2 0 0");
    snprintf(handle, sizeof handle, "%s", retry_handle(answer, &view));
    CHECK_BYTES(view.topic.data, view.topic.bytes, "T", 1);
    CHECK(strstr(handle, " 2 broker-a 0 0") != NULL);
    settle_to(client, 3, ACK, V2, 0, 0, handle, 0);
    expect(client, 3, OK);
    kit_broker_pass_pops(&kit, 30000);
    pop(client, 4, all);
    expect(client, 4, POLLING_TIMEOUT);
    CHECK_INT(committed(V2), 1);
    CHECK_INT(committed(V1), CMQ_OFFSETS_NONE);
    close(client);
    kit_broker_stop(&kit);
}

/* Messages that came back before the setting was changed are popped too; not together with the second kind's, and not
 * left lying beside a pop that waits. */
static void messages_of_the_first_kind_are_found_beside_the_second(void)
{
    start(&(cmq_pop_service_options){.retry_v2 = true});
    const int client = kit_client(&kit);
    kit_broker_topic(&kit, V1, 1, CMQ_PERM_READ | CMQ_PERM_WRITE);
    kit_broker_topic(&kit, V2, 1, CMQ_PERM_READ | CMQ_PERM_WRITE);
    for (int round = 0; round < 20; round++) {
        put(V1);
        look(client, NOTIFICATION, 2, waiting(15000));
        expect_text(expect(client, 2, OK), "hasMsg", "true");
        pop(client, 3, waiting(15000));
        char info[64];
        snprintf(info, sizeof info, "1 0 %d", round);
        expect_text(expect(client, 3, OK), "startOffsetInfo", info);
    }
    put(V1);
    put(V2);
    pop(client, 5, all);
    CHECK_INT(records_in(expect(client, 5, OK)), 1);
    pop(client, 6, all);
    CHECK_INT(records_in(expect(client, 6, OK)), 1);
    close(client);
    kit_broker_stop(&kit);
}

static void the_first_kind_may_be_left_alone(void)
{
    start(&(cmq_pop_service_options){.retry_v2 = true, .retry_v1_off = true});
    const int client = kit_client(&kit);
    send_both(client, V1);
    for (int i = 0; i < 20; i++) CHECK(!peeks_at_retry_topic(client, i));
    pop(client, 1, all);
    expect_text(expect(client, 1, OK), "startOffsetInfo", "0 0 0");
    pop(client, 2, all);
    expect(client, 2, POLLING_TIMEOUT);
    close(client);
    kit_broker_stop(&kit);
}

/* ---- redelivery ---- */

static void each_time_it_comes_back_it_says_so(void)
{
    start(NULL);
    const int client = kit_client(&kit);
    char first_pop[32];
    snprintf(first_pop, sizeof first_pop, "%" PRId64, kit.now_ms);
    send_some(client, 1);
    pop(client, 1, all);
    expect(client, 1, OK);
    for (int32_t times = 1; times <= 3; times++) {
        cmq_record_view view;
        cmq_slice value;
        char handle[512], start_info[32];
        kit_broker_pass_pops(&kit, 20000);
        pop(client, 10 + times, all);
        const kit_answer *answer = expect(client, 10 + times, OK);
        snprintf(start_info, sizeof start_info, "1 0 %d", times - 1);
        expect_text(answer, "startOffsetInfo", start_info);
        snprintf(handle, sizeof handle, "%s", retry_handle(answer, &view));
        CHECK_INT(view.reconsume_times, times);
        CHECK_INT(view.queue_id, 0);
        CHECK_INT(view.queue_offset, times - 1);
        CHECK(cmq_property_find(view.properties, cmq_slice_of_text("1ST_POP_TIME"), &value));
        CHECK_BYTES(value.data, value.bytes, first_pop, strlen(first_pop));
        CHECK(cmq_property_find(view.properties, cmq_slice_of_text("TAGS"), &value));
        CHECK_BYTES(value.data, value.bytes, "even", 4);
        if (times < 3) continue;
        settle_to(client, 20, ACK, V1, 0, view.queue_offset, handle, 0);
        expect(client, 20, OK);
    }
    kit_broker_pass_pops(&kit, 30000);
    pop(client, 21, all);
    expect(client, 21, POLLING_TIMEOUT);
    CHECK_INT(committed(V1), 3);
    close(client);
    kit_broker_stop(&kit);
}

/* A client that fails again and again asks for longer each time: the message comes when it said, not before. */
static void an_invisible_time_may_grow_with_each_change(void)
{
    static const int64_t growing_ms[] = {10000, 30000, 60000, 120000};
    start(NULL);
    const int client = kit_client(&kit);
    char handle[256];
    send_some(client, 1);
    pop(client, 1, all);
    const batch b = batch_of(expect(client, 1, OK), 0);
    snprintf(handle, sizeof handle, "%s", handle_of(&b, 0));
    for (int32_t i = 0; i < 4; i++) {
        kit_broker_pass_pops(&kit, 5000);
        settle_to(client, 10 + i, CHANGE, "T", 0, 0, handle, growing_ms[i]);
        const kit_answer *answer = expect(client, 10 + i, OK);
        CHECK_INT(kit_number(answer, "popTime"), kit.now_ms);
        const batch changed = batch_of(answer, 0);
        CHECK_INT(changed.invisible_ms, growing_ms[i]);
        snprintf(handle, sizeof handle, "%s", handle_of(&changed, 0));
    }
    kit_broker_pass_pops(&kit, 118000);
    pop(client, 2, all);
    expect(client, 2, POLLING_TIMEOUT);
    kit_broker_pass_pops(&kit, 8000);
    pop(client, 3, all);
    CHECK_INT(records_in(expect(client, 3, OK)), 1);
    kit_broker_pass_pops(&kit, 1000);
    pop(client, 4, all);
    expect(client, 4, POLLING_TIMEOUT);   /* once */
    close(client);
    kit_broker_stop(&kit);
}

/* ---- many at once ---- */

/* Acknowledge two messages from start_offset on in one request; `kind` is a retry topic's mark. */
static void ack_two(int client, int32_t opaque, const batch *b, const char *kind)
{
    char body[256];
    snprintf(body, sizeof body,
             "{\"acks\":[{\"b\":\"Aw==\",\"c\":\"G\",\"it\":%" PRId64 ",\"pt\":%" PRId64
             ",\"q\":0,\"r\":\"%s\",\"rq\":%" PRId64 ",\"so\":%" PRId64 ",\"t\":\"T\"}],"
             "\"brokerName\":\"broker-a\"}",
             b->invisible_ms, b->pop_ms, kind, b->revive_queue, b->start_offset);
    kit_request(client, BATCH_ACK, opaque, 0, CMQ_HEADER_JSON, (const kit_field[]){{NULL, NULL}}, body, strlen(body));
    expect(client, opaque, OK);
}

static void what_came_back_is_acknowledged_at_once(const cmq_pop_service_options *options, const char *topic,
                                                   const char *kind)
{
    start(options);
    const int client = kit_client(&kit);
    char info[32];
    send_some(client, 2);
    pop(client, 1, all);
    expect(client, 1, OK);
    kit_broker_pass_pops(&kit, 20000);
    pop(client, 2, all);
    const kit_answer *answer = expect(client, 2, OK);
    snprintf(info, sizeof info, "%s 0 0,1", kind);
    expect_text(answer, "msgOffsetInfo", info);
    const batch b = batch_of(answer, 0);
    ack_two(client, 3, &b, kind);
    kit_broker_pass_pops(&kit, 30000);
    pop(client, 4, all);
    expect(client, 4, POLLING_TIMEOUT);
    CHECK_INT(committed(topic), 2);
    close(client);
    kit_broker_stop(&kit);
}

static void many_of_a_retry_topic_of_either_kind(void)
{
    for (int merge = 0; merge < 2; merge++) {
        what_came_back_is_acknowledged_at_once(&(cmq_pop_service_options){.merge = merge == 1}, V1, "1");
        what_came_back_is_acknowledged_at_once(&(cmq_pop_service_options){.merge = merge == 1, .retry_v2 = true}, V2,
                                               "2");
    }
}

static void many_of_an_ordered_pop(void)
{
    start(NULL);
    const int client = kit_client(&kit), next = kit_client(&kit);
    const asked ordered = two_of(in_order(waiting(15000)));
    send_some(client, 3);
    pop(client, 1, ordered);
    const batch b = batch_of(expect(client, 1, OK), 0);
    pop(next, 2, ordered);
    CHECK(kit_is_silent(&kit, next));
    ack_two(client, 3, &b, "0");
    CHECK_INT(committed("T"), 2);
    expect_text(expect(next, 2, OK), "msgOffsetInfo", "0 0 2");
    close(client);
    close(next);
    kit_broker_stop(&kit);
}

/* ---- handles of another broker ---- */

static const char *foreign_handle_of(const batch *b, int64_t offset)
{
    static char text[256];
    snprintf(text, sizeof text, "%" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " 0 broker-b 0 %" PRId64,
             b->start_offset, b->pop_ms, b->invisible_ms, b->revive_queue, offset);
    return text;
}

static void another_brokers_handle_finishes_nothing_here(const cmq_pop_service_options *options)
{
    start(options);
    const int client = kit_client(&kit);
    send_some(client, 1);
    pop(client, 1, all);
    const batch b = batch_of(expect(client, 1, OK), 0);
    settle_to(client, 2, ACK, "T", 0, 0, foreign_handle_of(&b, 0), 0);
    expect(client, 2, OK);   /* as upstream */
    settle_to(client, 3, CHANGE, "T", 0, 0, foreign_handle_of(&b, 0), 60000);
    expect(client, 3, 13);
    kit_broker_pass_pops(&kit, 20000);
    pop(client, 4, all);
    expect_text(expect(client, 4, OK), "startOffsetInfo", "1 0 0");
    close(client);
    kit_broker_stop(&kit);
}

static void another_brokers_handle_where_all_is_stored(void) { another_brokers_handle_finishes_nothing_here(NULL); }
static void another_brokers_handle_where_pops_are_merged(void)
{
    another_brokers_handle_finishes_nothing_here(&(cmq_pop_service_options){.merge = true});
}

/* A list says of which broker its messages are, behind them. */
static void a_list_of_another_broker_finishes_nothing_here(void)
{
    static const struct {
        const char *broker;
        int32_t code;
        int left;
    } cases[] = {{",\"brokerName\":\"broker-b\"", OK, 1},
                 {",\"brokerName\":\"broker-a\"", OK, 0},
                 {"", OK, 0},
                 {",\"brokerName\":null", OK, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char body[512];
        start(&(cmq_pop_service_options){.merge = i % 2 == 0});
        const int client = kit_client(&kit);
        send_some(client, 1);
        pop(client, 1, all);
        const batch b = batch_of(expect(client, 1, OK), 0);
        snprintf(body, sizeof body,
                 "{\"acks\":[{\"b\":\"AQ==\",\"c\":\"G\",\"it\":%" PRId64 ",\"pt\":%" PRId64
                 ",\"q\":0,\"r\":\"0\",\"rq\":%" PRId64 ",\"so\":0,\"t\":\"T\"}]%s}",
                 b.invisible_ms, b.pop_ms, b.revive_queue, cases[i].broker);
        kit_request(client, BATCH_ACK, 2, 0, CMQ_HEADER_JSON, (const kit_field[]){{NULL, NULL}}, body, strlen(body));
        expect(client, 2, cases[i].code);
        kit_broker_pass_pops(&kit, 20000);
        pop(client, 3, all);
        expect(client, 3, cases[i].left > 0 ? OK : POLLING_TIMEOUT);
        close(client);
        kit_broker_stop(&kit);
    }
}

/* ---- where a group begins ---- */

static void a_group_begins_where_it_asks_to(void)
{
    static const struct {
        bool late, off;
        const char *first;
    } cases[] = {
        {false, false, "0 0 0"},
        {true, false, "0 0 0"},   /* the queue is young */
        {true, true, "0 0 4"},    /* the last one that is there, other than a pull's */
    };
    for (int i = 0; i < 3; i++) {
        start(&(cmq_pop_service_options){.begin_late = cases[i].off});
        const int client = kit_client(&kit);
        asked what = all;
        what.begin_late = cases[i].late;
        send_some(client, 5);
        pop(client, 1, what);
        expect_text(expect(client, 1, OK), "startOffsetInfo", cases[i].first);
        close(client);
        kit_broker_stop(&kit);
    }
}

static void an_offset_that_the_queue_does_not_have_is_mended(void)
{
    start(NULL);
    const int client = kit_client(&kit);
    const cmq_offset_key key = {.group = cmq_slice_of_text("G"), .topic = cmq_slice_of_text("T"), .queue_id = 0};
    send_some(client, 3);
    CHECK_OK(cmq_offsets_commit(kit.offsets, &key, 50));
    pop(client, 1, all);
    expect(client, 1, POLLING_TIMEOUT);
    CHECK_INT(committed("T"), 3);
    send_some(client, 1);
    pop(client, 2, all);
    expect_text(expect(client, 2, OK), "msgOffsetInfo", "0 0 3");
    close(client);
    kit_broker_stop(&kit);
}

/* A batch of the topic's former life, which a pop left while it was deleted: neither it nor its commit is of the new
 * one. */
static void re_created_queue_is_read_from_its_beginning(void)
{
    const cmq_pop_key key = {.topic = cmq_slice_of_text("T"), .group = cmq_slice_of_text("G"), .queue_id = 0};
    const int64_t offsets[] = {40};
    cmq_pop_lane *lane;
    for (int settled = 0; settled < 2; settled++) {
        start(&(cmq_pop_service_options){.merge = true});
        const int client = kit_client(&kit);
        const cmq_pop_batch late = {
            .pop_ms = kit.now_ms, .invisible_ms = 60000, .next_offset = 41, .offsets = offsets, .count = 1};
        CHECK_OK(cmq_pop_lane_enter(cmq_pop_service_buffer(kit.pops), &key, &lane));
        CHECK_OK(cmq_pop_lane_add(cmq_pop_service_buffer(kit.pops), lane, &late, kit.now_ms));
        cmq_pop_lane_leave(cmq_pop_service_buffer(kit.pops), lane);
        if (settled) kit_broker_pass_pops(&kit, 11000);   /* the checkpoint leaves memory, and would move the group */
        send_some(client, 2);
        pop(client, 1, all);
        expect_text(expect(client, 1, OK), "msgOffsetInfo", "0 0 0,1");
        close(client);
        kit_broker_stop(&kit);
    }
}

/* Its messages are no younger than the pop, as the clock stands still. */
static void an_ordered_ack_of_a_topics_former_life_moves_nobody(void)
{
    start(NULL);
    const int client = kit_client(&kit);
    asked ordered = in_order(all);
    send_some(client, 2);
    pop(client, 1, ordered);
    const batch b = batch_of(expect(client, 1, OK), 0);
    CHECK_OK(cmq_store_delete_topic(kit.store, cmq_slice_of_text("T")));
    cmq_pop_service_forget(kit.pops, cmq_slice_of_text("T"), CMQ_SLICE_NONE);
    send_some(client, 2);
    ack(client, 2, &b, 0);
    CHECK_INT(committed("T"), 0);
    pop(client, 3, ordered);
    CHECK_INT(records_in(expect(client, 3, OK)), 2);
    close(client);
    kit_broker_stop(&kit);
}

/* ---- progress that an administrator set ---- */

static void what_was_passed_over_stays_so(const cmq_pop_service_options *options, bool order)
{
    const cmq_offset_key key = {.group = cmq_slice_of_text("G"), .topic = cmq_slice_of_text("T"), .queue_id = 0};
    start(options);
    const int client = kit_client(&kit);
    asked two = all;
    two.most = 2;
    two.invisible_ms = 60000;
    two.order = order;
    send_some(client, 6);
    pop(client, 1, two);
    const batch b = batch_of(expect(client, 1, OK), 0);
    CHECK_OK(cmq_offsets_commit(kit.offsets, &key, order ? 1 : 5));
    ack(client, 2, &b, 1);
    if (!order) ack(client, 3, &b, 0);
    kit_broker_pass_pops(&kit, 1000);
    CHECK_INT(committed("T"), order ? 1 : 5);
    close(client);
    kit_broker_stop(&kit);
}

static void a_group_that_was_moved_on_stays_there(void)
{
    what_was_passed_over_stays_so(&(cmq_pop_service_options){.merge = true}, false);
    what_was_passed_over_stays_so(NULL, true);
}

static void messages_that_have_expired_are_passed_over(void)
{
    enum { BYTES = 600 << 10, COUNT = 3 };   /* each in a segment of its own */
    static uint8_t body[BYTES];
    uint32_t deleted;
    const cmq_store_options options = {
        .path = cmq_test_directory(), .create = true, .flush = CMQ_FLUSH_ASYNC, .segment_bytes = 1 << 20};
    cmq_store *store;
    /* Segments expire by the machine's time. */
    CHECK_OK(cmq_store_open(&store, &options));
    kit_broker_serve_pops(&kit, store, KIT_BROKER_MS, NULL);
    const int client = kit_client(&kit);
    for (int i = 0; i < COUNT; i++) {
        const cmq_append append = {.common = {.topic = cmq_slice_of_text("T")},
                                   .count = 1,
                                   .bodies = {.kind = CMQ_COLUMN_ONE, .one = {body, BYTES}}};
        cmq_appended appended;
        CHECK_OK(cmq_store_append(kit.store, &append, &appended));
    }
    pop(client, 1, one_of(all));
    expect_text(expect(client, 1, OK), "msgOffsetInfo", "0 0 0");
    CHECK_OK(cmq_store_maintain(kit.store, true));
    CHECK_OK(cmq_store_expire(kit.store, true, &deleted));
    CHECK_INT(deleted, COUNT - 1);
    pop(client, 2, all);
    expect_text(expect(client, 2, OK), "msgOffsetInfo", "0 0 2");
    /* Messages that were popped before are gone, and held up nobody. */
    kit_broker_pass_pops(&kit, 20000);
    pop(client, 3, all);
    expect_text(expect(client, 3, OK), "startOffsetInfo", "1 0 0");
    CHECK_INT(committed("T"), COUNT);
    close(client);
    kit_broker_stop(&kit);
}

CMQ_TEST_MAIN(CMQ_TEST(a_fifth_of_the_pops_look_into_the_retry_topic_first),
              CMQ_TEST(queues_come_between_the_two_looks), CMQ_TEST(a_pop_of_one_queue_looks_into_the_retry_topic_too),
              CMQ_TEST(all_queues_are_asked_from_any_on), CMQ_TEST(retry_topics_of_the_second_kind),
              CMQ_TEST(messages_of_the_first_kind_are_found_beside_the_second),
              CMQ_TEST(the_first_kind_may_be_left_alone), CMQ_TEST(each_time_it_comes_back_it_says_so),
              CMQ_TEST(an_invisible_time_may_grow_with_each_change), CMQ_TEST(many_of_a_retry_topic_of_either_kind),
              CMQ_TEST(many_of_an_ordered_pop), CMQ_TEST(another_brokers_handle_where_all_is_stored),
              CMQ_TEST(another_brokers_handle_where_pops_are_merged),
              CMQ_TEST(a_list_of_another_broker_finishes_nothing_here), CMQ_TEST(a_group_begins_where_it_asks_to),
              CMQ_TEST(an_offset_that_the_queue_does_not_have_is_mended),
              CMQ_TEST(re_created_queue_is_read_from_its_beginning),
              CMQ_TEST(an_ordered_ack_of_a_topics_former_life_moves_nobody),
              CMQ_TEST(a_group_that_was_moved_on_stays_there), CMQ_TEST(messages_that_have_expired_are_passed_over))
