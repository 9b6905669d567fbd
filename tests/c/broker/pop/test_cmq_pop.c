/* Pops through a socket: messages delivered, acknowledged, changed, held and redelivered; injected time. */
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "support/cmq_pop_kit.h"

static cmq_pop_lane_item in_flight(void)
{
    static uint8_t names[512];
    cmq_pop_lane_item item;
    uint32_t cursor = 0;
    CHECK_INT(cmq_pop_buffer_list(cmq_pop_service_buffer(kit.pops), &cursor, &item, 1, names, sizeof names), 1);
    return item;
}

/* ---- giving ---- */

static void acknowledged_messages_are_not_redelivered(void)
{
    start(NULL);
    const int client = kit_client(&kit);
    send_some(client, 3);
    pop(client, 1, all);
    const kit_answer *answer = expect(client, 1, OK);
    CHECK_BYTES(answer->command.remark.data, answer->command.remark.bytes, "FOUND", 5);
    CHECK_INT(records_in(answer), 3);
    CHECK_INT(kit_number(answer, "popTime"), kit.now_ms);
    CHECK_INT(kit_number(answer, "restNum"), 0);
    CHECK(strcmp(kit_text(answer, "startOffsetInfo"), "0 0 0") == 0);
    CHECK(strcmp(kit_text(answer, "msgOffsetInfo"), "0 0 0,1,2") == 0);
    CHECK(strcmp(kit_text(answer, "orderCountInfo"), "") == 0);
    const batch b = batch_of(answer, 0);
    for (int i = 0; i < 3; i++) ack(client, 10 + i, &b, i);
    CHECK_INT(committed("T"), 3);
    kit_broker_pass_pops(&kit, 30000);
    pop(client, 2, all);
    answer = expect(client, 2, POLLING_TIMEOUT);
    CHECK(strcmp(kit_text(answer, "startOffsetInfo"), "") == 0);
    CHECK_INT(kit_number(answer, "reviveQid"), 1);
    close(client);
    kit_broker_stop(&kit);
}

static void what_is_not_acknowledged_comes_back_once(const cmq_pop_service_options *options)
{
    start(options);
    const int client = kit_client(&kit);
    send_some(client, 3);
    pop(client, 1, all);
    const batch b = batch_of(expect(client, 1, OK), 0);
    ack(client, 2, &b, 0);
    ack(client, 3, &b, 2);
    pop(client, 4, all);
    expect(client, 4, POLLING_TIMEOUT);
    kit_broker_pass_pops(&kit, 20000);
    pop(client, 5, all);
    const kit_answer *answer = expect(client, 5, OK);
    CHECK(strcmp(kit_text(answer, "startOffsetInfo"), "1 0 0") == 0);
    cmq_record_view view;
    char handle[512];
    snprintf(handle, sizeof handle, "%s", retry_handle(answer, &view));
    CHECK_INT(view.record_bytes, answer->body.bytes);
    CHECK_BYTES(view.topic.data, view.topic.bytes, "T", 1);
    CHECK_BYTES(view.body.data, view.body.bytes, "hello", 5);
    CHECK_INT(view.reconsume_times, 1);
    settle_to(client, 6, ACK, "%RETRY%G_T", 0, view.queue_offset, handle, 0);
    expect(client, 6, OK);
    kit_broker_pass_pops(&kit, 30000);
    pop(client, 7, all);
    expect(client, 7, POLLING_TIMEOUT);
    CHECK_INT(committed("T"), 3);
    CHECK_INT(committed("%RETRY%G_T"), 1);
    close(client);
    kit_broker_stop(&kit);
}

static void it_comes_back_when_all_is_stored(void) { what_is_not_acknowledged_comes_back_once(NULL); }
static void it_comes_back_when_pops_are_merged(void)
{
    what_is_not_acknowledged_comes_back_once(&(cmq_pop_service_options){.merge = true});
}

static void a_change_makes_a_message_come_back_at_another_time(void)
{
    start(NULL);
    const int client = kit_client(&kit);
    send_some(client, 1);
    pop(client, 1, all);
    const batch b = batch_of(expect(client, 1, OK), 0);
    CHECK_INT(in_flight().due_ms, b.pop_ms + 10000);
    settle_to(client, 2, CHANGE, "T", 0, 0, handle_of(&b, 0), 60000);
    const kit_answer *answer = expect(client, 2, OK);
    CHECK_INT(kit_number(answer, "popTime"), b.pop_ms + 1);
    CHECK_INT(kit_number(answer, "invisibleTime"), 60000);
    CHECK_INT(kit_number(answer, "reviveQid"), b.revive_queue);
    const cmq_pop_lane_item item = in_flight();
    CHECK_INT(item.in_flight, 1);
    CHECK_INT(item.oldest_pop_ms, b.pop_ms);
    CHECK_INT(item.due_ms, b.pop_ms + 60001);
    kit_broker_pass_pops(&kit, 50000);
    pop(client, 3, all);
    expect(client, 3, POLLING_TIMEOUT);
    kit_broker_pass_pops(&kit, 20000);
    pop(client, 4, all);
    CHECK_INT(records_in(expect(client, 4, OK)), 1);
    settle_to(client, 5, CHANGE, "T", 0, 1, handle_of(&b, 1), 1000);
    expect(client, 5, NO_MESSAGE);   /* there is no such message yet */
    close(client);
    kit_broker_stop(&kit);
}

/* Messages in flight stay hidden until the clock has caught up, and their handles are taken meanwhile: also where the
 * clock was set back by more than the timers' horizon, which a forged handle may not exceed. */
static void handles_outlast_a_clock_that_is_set_back(const cmq_pop_service_options *options)
{
    const int64_t back_ms = INT64_C(10) * 24 * 3600 * 1000;
    start(options);
    const int client = kit_client(&kit);
    send_some(client, 3);
    pop(client, 1, all);
    batch b = batch_of(expect(client, 1, OK), 0);
    const int64_t first_ms = b.pop_ms;
    kit.now_ms -= back_ms;
    ack(client, 2, &b, 0);
    settle_to(client, 3, CHANGE, "T", 0, 2, handle_of(&b, 2), 5000);
    expect(client, 3, OK);
    for (int32_t i = 1; i <= 3; i++) {
        settle_to(client, 3 + i, CHANGE, "T", 0, 1, handle_of(&b, 1), 60000);
        b = batch_of(expect(client, 3 + i, OK), 1);
        CHECK_INT(b.pop_ms, first_ms + i);
    }
    ack(client, 7, &b, 1);
    kit_broker_pass_pops(&kit, 20000);
    pop(client, 8, all);
    expect(client, 8, POLLING_TIMEOUT);
    kit.now_ms += back_ms;
    kit_broker_pass_pops(&kit, 80000);
    pop(client, 9, all);
    expect_text(expect(client, 9, OK), "startOffsetInfo", "1 0 0");   /* the one that nobody acknowledged */
    pop(client, 10, all);
    expect(client, 10, POLLING_TIMEOUT);
    close(client);
    kit_broker_stop(&kit);
}

static void a_clock_set_back_spoils_no_handle_when_all_is_stored(void)
{
    handles_outlast_a_clock_that_is_set_back(NULL);
}

static void a_clock_set_back_spoils_no_handle_when_pops_are_merged(void)
{
    handles_outlast_a_clock_that_is_set_back(&(cmq_pop_service_options){.merge = true});
}

/* A worker that hangs while its message is kept hidden shows, and others that come and go beside it do not hide it. */
static void a_changed_message_is_as_old_as_its_first_pop(const cmq_pop_service_options *options, bool finished)
{
    start(options);
    const int client = kit_client(&kit);
    send_some(client, 2);
    pop(client, 1, all);
    batch b = batch_of(expect(client, 1, OK), 0);
    const int64_t first_ms = b.pop_ms;
    ack(client, 2, &b, 0);
    b.start_offset = 1;
    for (int32_t i = 0; i < 5; i++) {
        batch old = b;
        old.start_offset = i == 0 ? 0 : 1;
        settle_to(client, 10 + i, CHANGE, "T", 0, 1, handle_of(&old, 1), 30000);
        const kit_answer *answer = expect(client, 10 + i, OK);
        b.pop_ms = kit_number(answer, "popTime");
        b.invisible_ms = 30000;
        b.revive_queue = (int32_t)kit_number(answer, "reviveQid");
        kit_broker_pass_pops(&kit, 20000);
        const cmq_pop_lane_item item = in_flight();
        CHECK_INT(item.in_flight, 1);
        CHECK_INT(item.oldest_pop_ms, first_ms);
        CHECK_INT(item.due_ms, b.pop_ms + 30000);
    }
    send_some(client, 1);
    pop(client, 20, all);
    const batch other = batch_of(expect(client, 20, OK), 0);
    CHECK_INT(in_flight().oldest_pop_ms, first_ms);
    if (finished)
        ack(client, 21, &b, 1);
    else
        kit_broker_pass_pops(&kit, 5000);
    CHECK_INT(in_flight().oldest_pop_ms, finished ? other.pop_ms : first_ms);
    kit_broker_pass_pops(&kit, 40000);
    uint32_t cursor = 0;
    uint8_t names[512];
    cmq_pop_lane_item item;
    CHECK_INT(cmq_pop_buffer_list(cmq_pop_service_buffer(kit.pops), &cursor, &item, 1, names, sizeof names), 0);
    close(client);
    kit_broker_stop(&kit);
}

static void a_changed_message_that_is_acknowledged_is_as_old_as_its_first_pop(void)
{
    a_changed_message_is_as_old_as_its_first_pop(NULL, true);
}
static void a_changed_message_that_comes_back_is_as_old_as_its_first_pop(void)
{
    a_changed_message_is_as_old_as_its_first_pop(&(cmq_pop_service_options){.merge = true}, false);
}

static void many_are_acknowledged_at_once(void)
{
    start(NULL);
    const int client = kit_client(&kit);
    char body[512];
    send_some(client, 10);
    pop(client, 1, all);
    const batch b = batch_of(expect(client, 1, OK), 0);
    /* Bits 0, 2 and 9; then an entry of a queue that is not there, and a malformed one. */
    snprintf(body, sizeof body,
             "{\"acks\":[{\"b\":\"BQI=\",\"c\":\"G\",\"it\":%" PRId64 ",\"pt\":%" PRId64
             ",\"q\":0,\"r\":\"0\",\"rq\":%" PRId64 ",\"so\":0,\"t\":\"T\"},{\"b\":\"AQ==\",\"c\":\"G\",\"it\":1,"
                                                    "\"pt\":1,\"q\":77,\"r\":\"0\",\"rq\":0,\"so\":0,\"t\":\"T\"},{}],"
             "\"brokerName\":\"broker-a\"}",
             b.invisible_ms, b.pop_ms, b.revive_queue);
    kit_request(client, BATCH_ACK, 2, 0, CMQ_HEADER_JSON, (const kit_field[]){{NULL, NULL}}, body, strlen(body));
    expect(client, 2, OK);
    kit_broker_pass_pops(&kit, 20000);
    pop(client, 3, all);
    CHECK_INT(records_in(expect(client, 3, OK)), 7);
    kit_request(client, BATCH_ACK, 4, 0, CMQ_HEADER_JSON, (const kit_field[]){{NULL, NULL}}, "{\"acks\":[]}", 11);
    expect(client, 4, NO_MESSAGE);
    kit_request(client, BATCH_ACK, 5, 0, CMQ_HEADER_JSON, (const kit_field[]){{NULL, NULL}}, "{\"acks\":[{\"b\":", 13);
    expect(client, 5, 1);
    close(client);
    kit_broker_stop(&kit);
}

static void messages_of_other_tags_are_passed_over(void)
{
    start(NULL);
    const int client = kit_client(&kit);
    send_some(client, 6);
    asked odd = all;
    odd.expression = "odd";
    pop(client, 1, odd);
    const kit_answer *answer = expect(client, 1, OK);
    CHECK(strcmp(kit_text(answer, "startOffsetInfo"), "0 0 1") == 0);
    CHECK(strcmp(kit_text(answer, "msgOffsetInfo"), "0 0 1,3,5") == 0);
    asked none = all;
    none.expression = "never";
    pop(client, 2, none);
    expect(client, 2, POLLING_TIMEOUT);
    CHECK_INT(committed("T"), 6);
    close(client);
    kit_broker_stop(&kit);
}

static void forbidden_pops_are_refused(void)
{
    start(NULL);
    const int client = kit_client(&kit);
    const cmq_topic_entry batches = {.name = cmq_slice_of_text("batches"), .read_queues = 1, .write_queues = 1,
                                     .perm = CMQ_PERM_READ | CMQ_PERM_WRITE, .kind = CMQ_TOPIC_BATCH};
    CHECK_OK(cmq_tables_put_topic(kit.tables, &batches));
    kit_broker_topic(&kit, "write-only", 1, CMQ_PERM_WRITE);
    const struct {
        asked what;
        int32_t code;
    } cases[] = {
        {{.queue_id = -1, .most = 1, .topic = "batches"}, 1},
        {{.queue_id = -1, .most = 33}, 29},
        {{.queue_id = -1, .most = 1, .topic = "unknown"}, 17},
        {{.queue_id = -1, .most = 1, .topic = "write-only"}, 16},
        {{.queue_id = 4, .most = 1}, 29},
        {{.queue_id = -1, .most = 1, .expression = "||"}, 23},
        {{.queue_id = -1, .most = 1, .invisible_ms = INT64_C(1) << 40}, 29},
        {{.queue_id = -1, .most = 1, .invisible_ms = -1}, 29},
    };
    for (int32_t i = 0; i < (int32_t)(sizeof cases / sizeof cases[0]); i++) {
        pop(client, i, cases[i].what);
        expect(client, i, cases[i].code);
    }
    send_some(client, 1);
    const batch b = {kit.now_ms, 1000, 0, 0};
    settle_to(client, 20, ACK, "unknown", 0, 0, handle_of(&b, 0), 0);
    expect(client, 20, 17);
    settle_to(client, 21, ACK, "T", 4, 0, handle_of(&b, 0), 0);
    expect(client, 21, 13);
    settle_to(client, 22, ACK, "T", 0, 2, handle_of(&b, 2), 0);
    expect(client, 22, NO_MESSAGE);
    settle_to(client, 23, ACK, "T", 0, 0, "no handle", 0);
    expect(client, 23, 13);
    const batch foreign = {kit.now_ms, 1000, 8, 0};
    settle_to(client, 24, ACK, "T", 0, 0, handle_of(&foreign, 0), 0);
    expect(client, 24, 13);
    settle_to(client, 25, CHANGE, "T", 0, 0, handle_of(&b, 0), INT64_C(1) << 40);
    expect(client, 25, 1);
    close(client);
    kit_broker_stop(&kit);
}

static void without_timers_there_are_no_pops(void)
{
    kit_broker_start(&kit, cmq_test_directory(), CMQ_FLUSH_ASYNC, NULL);
    const int client = kit_client(&kit);
    pop(client, 1, all);
    expect(client, 1, 1);
    settle_to(client, 2, ACK, "T", 0, 0, "x", 0);
    expect(client, 2, 1);
    close(client);
    kit_broker_stop(&kit);
}

/* ---- holding ---- */

static void a_held_pop_ends_with_a_message(void)
{
    start(NULL);
    const int client = kit_client(&kit), producer = kit_client(&kit);
    pop(client, 1, waiting(15000));
    CHECK(kit_is_silent(&kit, client));
    send_some(producer, 1);
    CHECK_INT(records_in(expect(client, 1, OK)), 1);
    pop(client, 2, waiting(15000));
    CHECK(kit_is_silent(&kit, client));
    send_some(producer, 1);
    CHECK(strcmp(kit_text(expect(client, 2, OK), "msgOffsetInfo"), "0 0 1") == 0);
    close(client);
    close(producer);
    kit_broker_stop(&kit);
}

static void a_held_pop_ends_before_its_client_gives_up(void)
{
    start(NULL);
    const int client = kit_client(&kit);
    pop(client, 1, waiting(15000));
    kit_broker_pass(&kit, 14940);
    CHECK(kit_is_silent(&kit, client));
    kit_broker_pass(&kit, 10);
    expect(client, 1, POLLING_TIMEOUT);
    close(client);
    kit_broker_stop(&kit);
}

static void a_held_pop_ends_with_a_revived_message(void)
{
    start(NULL);
    const int first = kit_client(&kit), second = kit_client(&kit);
    send_some(first, 1);
    pop(first, 1, all);
    expect(first, 1, OK);
    pop(second, 2, waiting(60000));
    kit_broker_pass_pops(&kit, 20000);
    cmq_record_view view;
    CHECK(strlen(retry_handle(expect(second, 2, OK), &view)) > 0);
    close(first);
    close(second);
    kit_broker_stop(&kit);
}

static void messages_left_by_one_pop_go_to_the_next(void)
{
    start(NULL);
    const int first = kit_client(&kit), second = kit_client(&kit), producer = kit_client(&kit);
    asked one = waiting(15000);
    one.most = 1;
    pop(first, 1, one);
    CHECK(kit_is_silent(&kit, first));
    pop(second, 2, one);
    CHECK(kit_is_silent(&kit, second));
    for (int i = 0; i < 2; i++) kit_send_message(producer, i, "T", "a", "x");
    CHECK(strcmp(kit_text(expect(first, 1, OK), "msgOffsetInfo"), "0 0 0") == 0);
    CHECK(strcmp(kit_text(expect(second, 2, OK), "msgOffsetInfo"), "0 0 1") == 0);
    close(first);
    close(second);
    close(producer);
    kit_broker_stop(&kit);
}

static void pops_beyond_the_wait_limit_are_answered(void)
{
    start(&(cmq_pop_service_options){.waits_max = 1});
    const int first = kit_client(&kit), second = kit_client(&kit);
    pop(first, 1, waiting(15000));
    CHECK(kit_is_silent(&kit, first));
    pop(second, 2, waiting(15000));
    expect(second, 2, POLLING_FULL);
    close(first);
    CHECK(kit_is_silent(&kit, second));
    pop(second, 3, waiting(15000));
    CHECK(kit_is_silent(&kit, second));
    CHECK_OK(cmq_broker_group_changed(kit.broker, CMQ_SLICE_NONE));
    expect(second, 3, POLLING_TIMEOUT);
    close(second);
    kit_broker_stop(&kit);
}

/* ---- in order ---- */

static void an_ordered_pop_waits_for_the_batch_before_it(void)
{
    start(NULL);
    const int first = kit_client(&kit), second = kit_client(&kit);
    const asked ordered = two_of(in_order(waiting(60000)));
    send_some(first, 4);
    pop(first, 1, ordered);
    const kit_answer *answer = expect(first, 1, OK);
    CHECK_INT(kit_number(answer, "reviveQid"), 999);
    CHECK(strcmp(kit_text(answer, "orderCountInfo"), "0 0 0") == 0);
    const batch b = batch_of(answer, 0);
    CHECK_INT(committed("T"), 0);
    pop(second, 2, ordered);
    CHECK(kit_is_silent(&kit, second));
    ack(first, 3, &b, 0);
    CHECK_INT(committed("T"), 1);
    CHECK(kit_is_silent(&kit, second));
    ack(first, 4, &b, 1);
    CHECK(strcmp(kit_text(expect(second, 2, OK), "msgOffsetInfo"), "0 0 2,3") == 0);
    /* Not acknowledged: its time ends, and no request announces it. */
    pop(first, 5, ordered);
    CHECK(kit_is_silent(&kit, first));
    kit_broker_pass_pops(&kit, 10500);
    answer = expect(first, 5, OK);
    CHECK(strcmp(kit_text(answer, "msgOffsetInfo"), "0 0 2,3") == 0);
    CHECK(strstr(kit_text(answer, "orderCountInfo"), "0 qo0%2 1") != NULL);
    close(first);
    close(second);
    kit_broker_stop(&kit);
}

/* Its messages are shown again at once, and the next pop is woken by the last of them. */
static void a_changed_batch_frees_its_queue(void)
{
    start(NULL);
    const int first = kit_client(&kit), second = kit_client(&kit);
    const asked ordered = two_of(in_order(waiting(60000)));
    send_some(first, 4);
    pop(first, 1, ordered);
    const batch b = batch_of(expect(first, 1, OK), 0);
    pop(second, 2, ordered);
    for (int64_t offset = 0; offset < 2; offset++) {
        CHECK(kit_is_silent(&kit, second));
        settle_to(first, 3, CHANGE, "T", 0, offset, handle_of(&b, offset), 0);
        expect(first, 3, OK);
    }
    expect_text(expect(second, 2, OK), "msgOffsetInfo", "0 0 0,1");
    close(first);
    close(second);
    kit_broker_stop(&kit);
}

static void an_ack_of_a_message_outside_the_batch_is_refused(void)
{
    start(NULL);
    const int client = kit_client(&kit);
    const asked ordered = two_of(in_order(all));
    send_some(client, 4);
    pop(client, 1, ordered);
    const batch b = batch_of(expect(client, 1, OK), 0);
    settle_to(client, 2, ACK, "T", 0, 3, handle_of(&b, 3), 0);
    expect(client, 2, 13);
    CHECK_INT(committed("T"), 0);
    close(client);
    kit_broker_stop(&kit);
}

static void a_reset_ends_an_ordered_batch(void)
{
    start(NULL);
    const int client = kit_client(&kit);
    const cmq_offset_key key = {.group = cmq_slice_of_text("G"), .topic = cmq_slice_of_text("T"), .queue_id = 0};
    const asked ordered = two_of(in_order(all));
    send_some(client, 4);
    pop(client, 1, ordered);
    const batch b = batch_of(expect(client, 1, OK), 0);
    CHECK_OK(cmq_offsets_reset(kit.offsets, &key, 1, (cmq_offset_asker){0}));
    kit_broker_pass_pops(&kit, 10);
    pop(client, 2, ordered);
    const kit_answer *answer = expect(client, 2, OK);
    const batch anew = batch_of(answer, 1);
    expect_text(answer, "msgOffsetInfo", "0 0 1,2");
    ack(client, 3, &b, 0);
    CHECK_INT(committed("T"), 1);
    ack(client, 4, &anew, 1);
    CHECK_INT(committed("T"), 2);
    close(client);
    kit_broker_stop(&kit);
}

static void an_ordered_pop_waits_for_messages_popped_without_order(void)
{
    start(&(cmq_pop_service_options){.merge = true});
    const int client = kit_client(&kit);
    send_some(client, 4);
    asked two = all;
    two.queue_id = 0;
    two.most = 2;
    two.invisible_ms = 60000;
    pop(client, 1, two);
    expect(client, 1, OK);
    asked ordered = in_order(two);
    ordered.poll_ms = 15000;
    pop(client, 2, ordered);
    /* Its batch would move the group behind messages that are in memory alone: killed now, they would be lost. */
    CHECK(kit_is_silent(&kit, client));
    CHECK_INT(committed("T"), 0);
    kit_broker_pass_pops(&kit, 12000);
    CHECK(strcmp(kit_text(expect(client, 2, OK), "msgOffsetInfo"), "0 0 2,3") == 0);
    CHECK_INT(committed("T"), 2);
    close(client);
    kit_broker_stop(&kit);
}

/* ---- sizes ---- */

static void large_messages_of_many_queues_fit_into_frames(void)
{
    enum { QUEUES = 32, BODY_BYTES = 900 << 10 };
    uint8_t *body = calloc(1, BODY_BYTES);
    uint32_t popped = 0;
    CHECK(body != NULL);
    kit_broker_start_pops_threads(&kit, cmq_test_directory(), NULL, 1);
    kit_broker_topic(&kit, "W", QUEUES, CMQ_PERM_READ | CMQ_PERM_WRITE);
    for (int32_t queue = 0; queue < QUEUES; queue++) {
        const cmq_append append = {.common = {.topic = cmq_slice_of_text("W"), .queue_id = queue},
                                   .count = 1,
                                   .bodies = {.kind = CMQ_COLUMN_ONE, .one = {.data = body, .bytes = BODY_BYTES}}};
        cmq_appended appended;
        CHECK_OK(cmq_store_append(kit.store, &append, &appended));
    }
    const int client = kit_client(&kit);
    asked large = all;
    large.topic = "W";
    for (int32_t opaque = 1; popped < QUEUES; opaque++) {
        pop(client, opaque, large);
        const kit_answer *answer = expect(client, opaque, OK);   /* no reader takes a larger frame */
        popped += records_in(answer);
        CHECK_INT(kit_number(answer, "restNum"), QUEUES - popped);
    }
    close(client);
    kit_broker_stop(&kit);
    free(body);
}

/* The first that does not fit an answer begins the next one: none is passed over. */
static void large_messages_of_one_queue_are_popped_one_after_the_other(void)
{
    enum { COUNT = 4, BODY_BYTES = 900 << 10 };   /* over maxTransferBytesOnMessageInMemory: one each */
    uint8_t *body = calloc(1, BODY_BYTES);
    CHECK(body != NULL);
    kit_broker_start_pops_threads(&kit, cmq_test_directory(), NULL, 1);
    kit_broker_topic(&kit, "L", 1, CMQ_PERM_READ | CMQ_PERM_WRITE);
    const cmq_append append = {.common = {.topic = cmq_slice_of_text("L")},
                               .count = 1,
                               .bodies = {.kind = CMQ_COLUMN_ONE, .one = {.data = body, .bytes = BODY_BYTES}}};
    cmq_appended appended;
    for (int i = 0; i < COUNT; i++) CHECK_OK(cmq_store_append(kit.store, &append, &appended));
    const int client = kit_client(&kit);
    asked large = all;
    large.topic = "L";
    for (int32_t opaque = 1; opaque <= COUNT; opaque++) {
        pop(client, opaque, large);
        const kit_answer *answer = expect(client, opaque, OK);
        CHECK_INT(records_in(answer), 1);
        CHECK_INT(kit_number(answer, "restNum"), COUNT - opaque);
    }
    close(client);
    kit_broker_stop(&kit);
    free(body);
}

static void a_message_whose_properties_are_full_comes_back(void)
{
    static uint8_t filling[CMQ_PROPERTY_BYTES_MAX];
    memset(filling, 'x', sizeof filling);
    filling[1] = CMQ_PROPERTY_NAME_END;
    filling[sizeof filling - 1] = CMQ_PROPERTY_PAIR_END;
    start(NULL);
    const int client = kit_client(&kit);
    const cmq_append full = {.common = {.topic = cmq_slice_of_text("T")},
                             .count = 1,
                             .bodies = {.kind = CMQ_COLUMN_ONE, .one = cmq_slice_of_text("hello")},
                             .properties = {.kind = CMQ_COLUMN_ONE, .one = {.data = filling, .bytes = sizeof filling}}};
    cmq_appended appended;
    CHECK_OK(cmq_store_append(kit.store, &full, &appended));
    pop(client, 1, all);
    expect(client, 1, OK);
    kit_broker_pass_pops(&kit, 20000);
    pop(client, 2, all);
    const kit_answer *answer = expect(client, 2, OK);
    CHECK_INT(records_in(answer), 1);
    CHECK(strcmp(kit_text(answer, "startOffsetInfo"), "1 0 0") == 0);
    close(client);
    kit_broker_stop(&kit);
}

/* ---- which queues ---- */

static void put_one_into_each(const char *topic, int32_t queues)
{
    kit_broker_topic(&kit, topic, queues, CMQ_PERM_READ | CMQ_PERM_WRITE);
    for (int32_t queue = 0; queue < queues; queue++) {
        const cmq_append append = {.common = {.topic = cmq_slice_of_text(topic), .queue_id = queue},
                                   .count = 1,
                                   .bodies = {.kind = CMQ_COLUMN_ONE, .one = cmq_slice_of_text("x")}};
        cmq_appended appended;
        CHECK_OK(cmq_store_append(kit.store, &append, &appended));
    }
}

/* Upstream's draw is below 100: with a backlog in the first hundred queues, nobody would come to the others. */
static void pops_begin_at_any_queue(void)
{
    enum { QUEUES = 1000, POPS = 40 };
    int far = 0;
    start(NULL);
    put_one_into_each("W", QUEUES);
    const int client = kit_client(&kit);
    asked one = all;
    one.topic = "W";
    one.most = 1;
    for (int i = 0; i < POPS; i++) {
        int queue_id;
        pop(client, i, one);
        CHECK_INT(sscanf(kit_text(expect(client, i, OK), "startOffsetInfo"), "0 %d 0", &queue_id), 1);
        far += queue_id >= QUEUES / 2;
    }
    CHECK(far > 0);
    close(client);
    kit_broker_stop(&kit);
}

/* ---- stopping ---- */

static void a_stop_stores_all_however_little_may_wait_for_the_disk(void)
{
    enum { POPS = 60, STAGING_BYTES = 4096 };
    cmq_pop_service_counters counters;
    kit_broker_start_pops(&kit, cmq_test_directory(), CMQ_FLUSH_SYNC, &(cmq_pop_service_options){.merge = true});
    const int client = kit_client(&kit);
    asked one = all;
    one.queue_id = 0;
    one.most = 1;
    one.invisible_ms = 60000;
    const cmq_append many = {.common = {.topic = cmq_slice_of_text("T")},
                             .count = POPS,
                             .bodies = {.kind = CMQ_COLUMN_ONE, .one = cmq_slice_of_text("hello")}};
    cmq_appended appended;
    CHECK_OK(cmq_store_append(kit.store, &many, &appended));
    for (int i = 0; i < POPS; i++) {
        pop(client, i, one);
        expect(client, i, OK);
    }
    cmq_pop_service_count(kit.pops, &counters);
    CHECK_INT(counters.buffer.checkpoints_now, POPS);
    cmq_store_set_staging(kit.store, STAGING_BYTES);
    CHECK_OK(cmq_pop_service_stop(kit.pops));
    cmq_pop_service_count(kit.pops, &counters);
    CHECK_INT(counters.buffer.checkpoints_now, 0);
    CHECK_INT(committed("T"), POPS);
    close(client);
    kit_broker_stop(&kit);
}

/* Also those that are due beyond the timers' horizon, as the clock was set back by days. */
static void a_stop_stores_all_though_the_clock_was_set_back(void)
{
    enum { BACK_MS = 4 * 24 * 3600 * 1000 };
    kit_broker_start_pops(&kit, cmq_test_directory(), CMQ_FLUSH_SYNC, &(cmq_pop_service_options){.merge = true});
    const int client = kit_client(&kit);
    asked one = all;
    one.invisible_ms = 60000;
    one.queue_id = 1;
    for (int32_t i = 0; i < 2; i++) {
        const cmq_append append = {.common = {.topic = cmq_slice_of_text("T"), .queue_id = i},
                                   .count = 1,
                                   .bodies = {.kind = CMQ_COLUMN_ONE, .one = cmq_slice_of_text("x")}};
        cmq_appended appended;
        CHECK_OK(cmq_store_append(kit.store, &append, &appended));
    }
    pop(client, 1, one);
    expect(client, 1, OK);
    kit.now_ms -= BACK_MS;
    one.queue_id = 0;
    pop(client, 2, one);
    expect(client, 2, OK);
    CHECK_OK(cmq_pop_service_stop(kit.pops));
    cmq_pop_service_counters counters;
    cmq_pop_service_count(kit.pops, &counters);
    CHECK_INT(counters.buffer.checkpoints_now, 0);
    CHECK_INT(committed("T"), 1);
    close(client);
    kit_broker_stop(&kit);
}

/* ---- times ---- */

static int64_t time_goes_on(void *context)
{
    (void)context;
    return atomic_fetch_add(&kit.now_ms, 1) + 1;
}

/* A message that arrives in one turn with its pop, and is stored after the pop was read: its ack must not look like one
 * of before the message. */
static void no_message_is_younger_than_its_pop(void)
{
    const cmq_store_options options = {.path = cmq_test_directory(),
                                       .create = true,
                                       .flush = CMQ_FLUSH_ASYNC,
                                       .segment_bytes = 1 << 20,
                                       .clock = {.now_ms = time_goes_on}};
    cmq_store *store;
    CHECK_OK(cmq_store_open(&store, &options));
    kit_broker_serve_pops(&kit, store, KIT_BROKER_MS, NULL);
    const int client = kit_client(&kit);
    kit_send_message(client, 1, "T", "a", "hello");
    pop(client, 2, all);
    expect(client, 1, OK);
    const kit_answer *answer = expect(client, 2, OK);
    cmq_record_view view;
    CHECK_OK(cmq_record_parse(answer->body.data, answer->body.bytes, -1, CMQ_RECORD_CHECK_BODY_CRC, &view));
    CHECK(view.store_timestamp_ms > KIT_BROKER_MS);
    CHECK(kit_number(answer, "popTime") >= view.store_timestamp_ms);
    close(client);
    kit_broker_stop(&kit);
}

/* ---- a disk that does not keep up ---- */

/* The condition is transient, and the response code says so: clients retry. */
static void waiting_for_the_disk_has_a_retriable_code(void)
{
    enum { MESSAGES = 60, STAGING_BYTES = 2048, BUSY = 2 };
    /* Without the store's thread: nothing goes to the disk until the test says so. */
    const cmq_store_options options = {
        .path = cmq_test_directory(), .create = true, .flush = CMQ_FLUSH_SYNC, .segment_bytes = 1 << 20};
    cmq_store *store;
    CHECK_OK(cmq_store_open(&store, &options));
    kit_broker_serve_pops(&kit, store, KIT_BROKER_MS, NULL);
    const int client = kit_client(&kit);
    asked one = all;
    one.queue_id = 0;
    one.most = 1;
    const cmq_append many = {.common = {.topic = cmq_slice_of_text("T")},
                             .count = MESSAGES,
                             .bodies = {.kind = CMQ_COLUMN_ONE, .one = cmq_slice_of_text("hello")}};
    cmq_appended appended;
    CHECK_OK(cmq_store_append(kit.store, &many, &appended));
    cmq_store_set_staging(kit.store, STAGING_BYTES);
    pop(client, 0, one);
    const batch first = batch_of(expect(client, 0, OK), 0);
    int popped = 1, code = OK;
    while (code == OK && popped < MESSAGES) {
        pop(client, popped, one);
        code = kit_answer_of(&kit, client)->command.code;
        popped++;
    }
    CHECK_INT(code, BUSY);
    settle_to(client, popped, ACK, "T", 0, 0, handle_of(&first, 0), 0);
    expect(client, popped, BUSY);
    CHECK_OK(cmq_store_flush(kit.store));
    ack(client, popped + 1, &first, 0);
    pop(client, popped + 2, one);
    expect(client, popped + 2, OK);
    close(client);
    kit_broker_stop(&kit);
}

/* ---- resets ---- */

static void a_reset_gives_messages_again(void)
{
    start(NULL);
    const int client = kit_client(&kit);
    const cmq_offset_key key = {.group = cmq_slice_of_text("G"), .topic = cmq_slice_of_text("T"), .queue_id = 0};
    send_some(client, 3);
    pop(client, 1, all);
    expect(client, 1, OK);
    CHECK_OK(cmq_offsets_reset(kit.offsets, &key, 1, (cmq_offset_asker){0}));
    pop(client, 2, all);
    CHECK(strcmp(kit_text(expect(client, 2, OK), "msgOffsetInfo"), "0 0 1,2") == 0);
    close(client);
    kit_broker_stop(&kit);
}

CMQ_TEST_MAIN(CMQ_TEST(acknowledged_messages_are_not_redelivered), CMQ_TEST(it_comes_back_when_all_is_stored),
              CMQ_TEST(it_comes_back_when_pops_are_merged),
              CMQ_TEST(a_change_makes_a_message_come_back_at_another_time),
              CMQ_TEST(a_clock_set_back_spoils_no_handle_when_all_is_stored),
              CMQ_TEST(a_clock_set_back_spoils_no_handle_when_pops_are_merged),
              CMQ_TEST(a_changed_message_that_is_acknowledged_is_as_old_as_its_first_pop),
              CMQ_TEST(a_changed_message_that_comes_back_is_as_old_as_its_first_pop),
              CMQ_TEST(many_are_acknowledged_at_once), CMQ_TEST(messages_of_other_tags_are_passed_over),
              CMQ_TEST(forbidden_pops_are_refused), CMQ_TEST(without_timers_there_are_no_pops),
              CMQ_TEST(a_held_pop_ends_with_a_message), CMQ_TEST(a_held_pop_ends_before_its_client_gives_up),
              CMQ_TEST(a_held_pop_ends_with_a_revived_message), CMQ_TEST(messages_left_by_one_pop_go_to_the_next),
              CMQ_TEST(pops_beyond_the_wait_limit_are_answered), CMQ_TEST(an_ordered_pop_waits_for_the_batch_before_it),
              CMQ_TEST(an_ordered_pop_waits_for_messages_popped_without_order),
              CMQ_TEST(large_messages_of_many_queues_fit_into_frames),
              CMQ_TEST(large_messages_of_one_queue_are_popped_one_after_the_other),
              CMQ_TEST(a_message_whose_properties_are_full_comes_back), CMQ_TEST(pops_begin_at_any_queue),
              CMQ_TEST(a_stop_stores_all_however_little_may_wait_for_the_disk),
              CMQ_TEST(waiting_for_the_disk_has_a_retriable_code), CMQ_TEST(no_message_is_younger_than_its_pop),
              CMQ_TEST(a_stop_stores_all_though_the_clock_was_set_back), CMQ_TEST(a_reset_gives_messages_again),
              CMQ_TEST(a_changed_batch_frees_its_queue), CMQ_TEST(a_reset_ends_an_ordered_batch),
              CMQ_TEST(an_ack_of_a_message_outside_the_batch_is_refused))
