/* The broker through a socket: sends, batches, parking, pulls, holds and what ends them, progress; injected time.
 *
 * Threads: yes (under sync flush one thread waits for the disk).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "store/record/cmq_property.h"
#include "store/record/cmq_record.h"
#include "store/record/cmq_wire_batch.h"
#include "support/cmq_broker_kit.h"
#include "support/cmq_store_kit.h"
#include "support/cmq_test.h"

enum { FOUND = 0, SYSTEM_ERROR = 1, NOT_FOUND = 19, RETRY = 20, MOVED = 21 };

static kit_broker kit;

static void start(void) { kit_broker_start(&kit, cmq_test_directory(), CMQ_FLUSH_ASYNC, NULL); }

static const kit_answer *expect(int client, int32_t opaque, int32_t code)
{
    const kit_answer *answer = kit_answer_of(&kit, client);
    CHECK_INT(answer->command.opaque, opaque);
    if (answer->command.code != code)
        cmq_test_fail(__FILE__, __LINE__, "code %d (%.*s), expected %d", answer->command.code,
                      (int)answer->command.remark.bytes, (const char *)answer->command.remark.data, code);
    CHECK_INT(answer->command.flag, CMQ_COMMAND_RESPONSE);
    return answer;
}

/* The one record of an answer's body. */
static cmq_record_view record_of(const kit_answer *answer)
{
    cmq_record_view view;
    CHECK_OK(cmq_record_parse(answer->body.data, answer->body.bytes, -1, CMQ_RECORD_CHECK_BODY_CRC, &view));
    CHECK_INT(view.record_bytes, answer->body.bytes);
    return view;
}

static void check_property(const cmq_record_view *view, const char *name, const char *expected)
{
    cmq_slice value;
    if (!cmq_property_find(view->properties, cmq_slice_of_text(name), &value)) value = CMQ_SLICE_NONE;
    CHECK_BYTES(value.data, value.bytes, expected, strlen(expected));
}

static void a_send_is_stored_and_pulled(void)
{
    start();
    const int client = kit_client(&kit);
    kit_send_message(client, 5, "T", "a", "hello");
    const kit_answer *answer = expect(client, 5, FOUND);
    CHECK_INT(kit_number(answer, "queueId"), 0);
    CHECK_INT(kit_number(answer, "queueOffset"), 0);
    CHECK(strcmp(kit_text(answer, "msgId"), "7F00000100002A9F0000000000000000") == 0);
    CHECK(strcmp(kit_text(answer, "transactionId"), "key5") == 0);
    CHECK(strcmp(kit_text(answer, "MSG_REGION"), "DefaultRegion") == 0);
    CHECK(strcmp(kit_text(answer, "TRACE_ON"), "true") == 0);
    kit_pull(client, 6, "T", 0, 2, 15000, "");
    answer = expect(client, 6, FOUND);
    CHECK_BYTES(answer->command.remark.data, answer->command.remark.bytes, "FOUND", 5);
    CHECK_INT(kit_number(answer, "nextBeginOffset"), 1);
    CHECK_INT(kit_number(answer, "minOffset"), 0);
    CHECK_INT(kit_number(answer, "maxOffset"), 1);
    CHECK_INT(kit_number(answer, "suggestWhichBrokerId"), 0);
    const cmq_record_view view = record_of(answer);
    CHECK_BYTES(view.body.data, view.body.bytes, "hello", 5);
    check_property(&view, "CLUSTER", "C");
    check_property(&view, "MSG_REGION", "DefaultRegion");
    check_property(&view, "UNIQ_KEY", "key5");
    CHECK_INT(view.born_timestamp_ms, INT64_C(1700000000000));
    close(client);
    kit_broker_stop(&kit);
}

static void a_burst_of_sends_keeps_its_order(void)
{
    start();
    const int client = kit_client(&kit);
    for (int i = 0; i < 300; i++) kit_send_message(client, i, "T", "a", "x");
    for (int i = 0; i < 300; i++) CHECK_INT(kit_number(expect(client, i, FOUND), "queueOffset"), i);
    close(client);
    kit_broker_stop(&kit);
}

static void sync_flush_answers_when_the_disk_has_it(void)
{
    kit_broker_start(&kit, cmq_test_directory(), CMQ_FLUSH_SYNC, NULL);
    const int client = kit_client(&kit);
    for (int i = 0; i < 20; i++) kit_send_message(client, i, "T", "a", "x");
    for (int i = 0; i < 20; i++) CHECK_INT(kit_number(expect(client, i, FOUND), "queueOffset"), i);
    cmq_store_info info;
    CHECK_OK(cmq_store_info_of(kit.store, &info));
    CHECK_INT(info.flushed, info.log_end);
    close(client);
    kit_broker_stop(&kit);
}

static void forbidden_sends_are_refused(void)
{
    start();
    const int client = kit_client(&kit);
    kit_broker_topic(&kit, "read-only", 1, CMQ_PERM_READ);
    kit_broker_topic(&kit, "SCHEDULE_TOPIC_XXXX", 18, CMQ_PERM_READ | CMQ_PERM_WRITE);
    kit_send_message(client, 1, "read-only", "a", "x");
    expect(client, 1, 16);
    kit_send_message(client, 2, "SCHEDULE_TOPIC_XXXX", "a", "x");
    expect(client, 2, 16);
    static const char *const refused[][2] = {
        {"TRAN_MSG\001true\002", "16"}, {"TIMER_DELAY_SEC\0015\002", "1"}, {"TIMER_DELIVER_MS\0015\002", "1"}};
    for (int i = 0; i < 3; i++) {
        const kit_field fields[] = {{"a", "P"}, {"b", "T"}, {"c", "TBW102"}, {"d", "4"},           {"e", "0"},
                                    {"f", "0"}, {"g", "1"}, {"h", "0"},      {"i", refused[i][0]}, {NULL, NULL}};
        kit_request(client, 310, 10 + i, 0, CMQ_HEADER_ROCKETMQ, fields, "x", 1);
        expect(client, 10 + i, atoi(refused[i][1]));
    }
    const kit_field far[] = {{"a", "P"}, {"b", "T"}, {"c", "TBW102"}, {"d", "4"},  {"e", "4"},
                             {"f", "0"}, {"g", "1"}, {"h", "0"},      {NULL, NULL}};
    kit_request(client, 310, 20, 0, CMQ_HEADER_JSON, far, "x", 1);
    expect(client, 20, 29);
    const kit_field lacking[] = {{"a", "P"}, {"b", "T"}, {NULL, NULL}};
    kit_request(client, 310, 21, 0, CMQ_HEADER_JSON, lacking, "x", 1);
    expect(client, 21, 1);
    char *large = calloc(1, (4u << 20) + 1);
    kit_request(client, 310, 22, 0, CMQ_HEADER_JSON,
                (const kit_field[]){{"a", "P"},
                                    {"b", "T"},
                                    {"c", "t"},
                                    {"d", "4"},
                                    {"e", "0"},
                                    {"f", "0"},
                                    {"g", "1"},
                                    {"h", "0"},
                                    {NULL, NULL}},
                large, 1000);
    expect(client, 22, FOUND);
    free(large);
    close(client);
    kit_broker_stop(&kit);
}

static void one_way_sends_get_no_answer(void)
{
    start();
    const int client = kit_client(&kit);
    const kit_field fields[] = {{"a", "P"}, {"b", "T"}, {"c", "t"}, {"d", "4"},  {"e", "0"},
                                {"f", "0"}, {"g", "1"}, {"h", "0"}, {NULL, NULL}};
    kit_request(client, 310, 1, CMQ_COMMAND_ONEWAY, CMQ_HEADER_JSON, fields, "x", 1);
    const kit_field wrong[] = {{"b", "T"}, {NULL, NULL}};
    kit_request(client, 310, 2, CMQ_COMMAND_ONEWAY, CMQ_HEADER_JSON, wrong, "x", 1);
    kit_send_message(client, 3, "T", "a", "y");
    CHECK_INT(kit_number(expect(client, 3, FOUND), "queueOffset"), 1);
    CHECK(kit_is_silent(&kit, client));
    close(client);
    kit_broker_stop(&kit);
}

static void a_batch_is_stored_message_by_message(void)
{
    start();
    const int client = kit_client(&kit);
    uint8_t body[512];
    uint8_t *end = body;
    for (int i = 0; i < 3; i++) {
        char text[16], properties[64];
        snprintf(text, sizeof text, "m%d", i);
        snprintf(properties, sizeof properties, "%sTAGS\001t%d\002", i == 1 ? "POP_CK\0011 2 3\002Price\0015\002" : "",
                 i);
        const cmq_wire_batch_element element = {
            .flag = 100 + i, .body = cmq_slice_of_text(text), .properties = cmq_slice_of_text(properties)};
        end = cmq_wire_batch_write(end, &element);
    }
    const kit_field fields[] = {{"a", "P"},    {"b", "T"},  {"c", "t"},
                                {"d", "4"},    {"e", "0"},  {"f", "0"},
                                {"g", "1"},    {"h", "0"},  {"i", "UNIQ_KEY\001batch\002"},
                                {"m", "true"}, {NULL, NULL}};
    kit_request(client, 320, 1, 0, CMQ_HEADER_JSON, fields, body, (size_t)(end - body));
    const kit_answer *answer = expect(client, 1, FOUND);
    CHECK_INT(strlen(kit_text(answer, "msgId")), 3 * 32 + 2);
    CHECK_INT(kit_number(answer, "queueOffset"), 0);
    kit_pull(client, 2, "T", 1, 0, 0, "");
    answer = expect(client, 2, FOUND);
    CHECK_INT(kit_number(answer, "nextBeginOffset"), 3);
    cmq_record_view view;
    CHECK_OK(cmq_record_parse(answer->body.data, answer->body.bytes, -1, CMQ_RECORD_CHECK_BODY_CRC, &view));
    CHECK_BYTES(view.body.data, view.body.bytes, "m1", 2);
    CHECK_INT(view.flag, 101);
    check_property(&view, "TAGS", "t1");
    check_property(&view, "POP_CK", "");   /* a handle of POP, which no sender may set */
    check_property(&view, "Price", "5");
    check_property(&view, "UNIQ_KEY", "batch");
    check_property(&view, "CLUSTER", "C");
    /* its last element is cut off */
    kit_request(client, 320, 3, 0, CMQ_HEADER_JSON, fields, body, (size_t)(end - body) - 1);
    expect(client, 3, 1);
    /* A batch without an id of its own leaves its messages theirs. */
    const cmq_wire_batch_element own = {.body = cmq_slice_of_text("o"),
                                        .properties = cmq_slice_of_text("UNIQ_KEY\001mine\002")};
    const size_t own_bytes = (size_t)(cmq_wire_batch_write(body, &own) - body);
    const kit_field without[] = {{"a", "P"},    {"b", "T"},  {"c", "t"},
                                 {"d", "4"},    {"e", "0"},  {"f", "0"},
                                 {"g", "1"},    {"h", "0"},  {"i", "WAIT\001true\002"},
                                 {"m", "true"}, {NULL, NULL}};
    kit_request(client, 320, 5, 0, CMQ_HEADER_JSON, without, body, own_bytes);
    CHECK_INT(kit_number(expect(client, 5, FOUND), "queueOffset"), 3);
    kit_pull(client, 6, "T", 3, 0, 0, "");
    view = record_of(expect(client, 6, FOUND));
    check_property(&view, "UNIQ_KEY", "mine");
    kit_request(client, 320, 4, 0, CMQ_HEADER_JSON, fields, NULL, 0);
    expect(client, 4, 13);
    close(client);
    kit_broker_stop(&kit);
}

static void delayed_messages_are_parked(void)
{
    start();
    const int client = kit_client(&kit);
    kit_broker_topic(&kit, "SCHEDULE_TOPIC_XXXX", 18, CMQ_PERM_READ | CMQ_PERM_WRITE);
    kit_broker_subscribe(&kit, "G", "SCHEDULE_TOPIC_XXXX", "*", 1);
    const kit_field fields[] = {{"a", "P"},  {"b", "T"}, {"c", "t"},
                                {"d", "4"},  {"e", "3"}, {"f", "0"},
                                {"g", "1"},  {"h", "0"}, {"i", "DELAY\0011\002"},
                                {NULL, NULL}};
    kit_request(client, 310, 1, 0, CMQ_HEADER_JSON, fields, "x", 1);
    const kit_answer *answer = expect(client, 1, FOUND);
    CHECK_INT(kit_number(answer, "queueId"), 3);
    kit_pull(client, 2, "SCHEDULE_TOPIC_XXXX", 0, 0, 0, "");
    const cmq_record_view view = record_of(expect(client, 2, FOUND));
    check_property(&view, "REAL_TOPIC", "T");
    check_property(&view, "REAL_QID", "3");
    close(client);
    kit_broker_stop(&kit);
}

static void broker_properties_of_a_sender_are_replaced(void)
{
    start();
    const int client = kit_client(&kit);
    const kit_field fields[] = {{"a", "P"},  {"b", "T"}, {"c", "t"},
                                {"d", "4"},  {"e", "0"}, {"f", "0"},
                                {"g", "1"},  {"h", "0"}, {"i", "POP_CK\0011 2 3\002CLUSTER\001other\002A\001b"},
                                {NULL, NULL}};
    kit_request(client, 310, 1, 0, CMQ_HEADER_JSON, fields, "x", 1);
    CHECK_INT(strlen(kit_text(expect(client, 1, FOUND), "transactionId")), 32);
    kit_pull(client, 2, "T", 0, 0, 0, "");
    const cmq_record_view view = record_of(expect(client, 2, FOUND));
    check_property(&view, "POP_CK", "");
    check_property(&view, "CLUSTER", "C");
    check_property(&view, "A", "b");
    close(client);
    kit_broker_stop(&kit);
}

static void send_with(int client, int32_t opaque, const char *flag, const char *properties, const char *body)
{
    const kit_field fields[] = {{"a", "P"}, {"b", "T"}, {"c", "t"},  {"d", "4"},        {"e", "0"},
                                {"f", "0"}, {"g", "1"}, {"h", flag}, {"i", properties}, {NULL, NULL}};
    kit_request(client, 310, opaque, 0, CMQ_HEADER_JSON, fields, body, strlen(body));
}

/* Properties that the broker rewrites lie in memory of the run: a send that begins another run must not lose its
 * own. */
static void sends_that_are_not_alike_keep_their_properties(void)
{
    enum { SENDS = 40 };
    start();
    const int client = kit_client(&kit);
    for (int i = 0; i < SENDS; i++) {
        char properties[128], flag[12];
        snprintf(properties, sizeof properties, "CLUSTER\001x\002NUMBER\001%d-%.*s\002", i, i,
                 "----------------------------------------");
        snprintf(flag, sizeof flag, "%d", i / 3 % 2);   /* the user's flag is one of what must be alike */
        send_with(client, i, flag, properties, "x");
    }
    for (int i = 0; i < SENDS; i++) CHECK_INT(strlen(kit_text(expect(client, i, FOUND), "transactionId")), 32);
    for (int i = 0; i < SENDS; i++) {
        kit_pull(client, 100 + i, "T", i, 0, 0, "");
        cmq_record_view view;
        const kit_answer *answer = expect(client, 100 + i, FOUND);
        CHECK_OK(cmq_record_parse(answer->body.data, answer->body.bytes, -1, CMQ_RECORD_CHECK_BODY_CRC, &view));
        char expected[128];
        snprintf(expected, sizeof expected, "%d-%.*s", i, i, "----------------------------------------");
        check_property(&view, "NUMBER", expected);
        check_property(&view, "CLUSTER", "C");
    }
    close(client);
    kit_broker_stop(&kit);
}

static void an_illegal_send_harms_no_other(void)
{
    start();
    const int client = kit_client(&kit);
    for (int i = 0; i < 5; i++) send_with(client, i, "0", i == 1 || i == 3 ? "INNER_NUM\0012\002" : "A\001b\002", "x");
    for (int i = 0, stored = 0; i < 5; i++) {
        const bool illegal = i == 1 || i == 3;
        const kit_answer *answer = expect(client, i, illegal ? 13 : FOUND);
        if (!illegal) CHECK_INT(kit_number(answer, "queueOffset"), stored++);
    }
    close(client);
    kit_broker_stop(&kit);
}

static void apparently_delayed_messages_are_refused(void)
{
    start();
    const int client = kit_client(&kit);
    send_with(client, 1, "0", "DELAY\0010\002TIMER_DELAY_SEC\00160\002", "x");
    expect(client, 1, 1);
    uint8_t body[64];
    const cmq_wire_batch_element element = {.body = CMQ_NAME("m")};
    const size_t bytes = (size_t)(cmq_wire_batch_write(body, &element) - body);
    const kit_field fields[] = {{"a", "P"},    {"b", "T"},  {"c", "t"},
                                {"d", "4"},    {"e", "0"},  {"f", "0"},
                                {"g", "1"},    {"h", "0"},  {"i", "DELAY\0013\002"},
                                {"m", "true"}, {NULL, NULL}};
    kit_request(client, 320, 2, 0, CMQ_HEADER_JSON, fields, body, bytes);
    expect(client, 2, 13);
    close(client);
    kit_broker_stop(&kit);
}

static void a_batch_may_have_many_messages(void)
{
    enum { MESSAGES = 6000 };
    start();
    const int client = kit_client(&kit);
    uint8_t *body = malloc(MESSAGES * 64), *end = body;
    CHECK(body != NULL);
    for (int i = 0; i < MESSAGES; i++) {
        const cmq_wire_batch_element element = {.body = CMQ_NAME("m")};
        end = cmq_wire_batch_write(end, &element);
    }
    const kit_field fields[] = {{"a", "P"},    {"b", "T"},  {"c", "t"},
                                {"d", "4"},    {"e", "0"},  {"f", "0"},
                                {"g", "1"},    {"h", "0"},  {"i", "UNIQ_KEY\001batch\002"},
                                {"m", "true"}, {NULL, NULL}};
    kit_request(client, 320, 1, 0, CMQ_HEADER_JSON, fields, body, (size_t)(end - body));
    CHECK_INT(kit_number(expect(client, 1, FOUND), "queueOffset"), 0);
    send_with(client, 2, "0", "", "x");
    CHECK_INT(kit_number(expect(client, 2, FOUND), "queueOffset"), MESSAGES);
    free(body);
    close(client);
    kit_broker_stop(&kit);
}

/* The disk is slow, or gone: the bytes that may wait for it are bounded, and a loop does not wait. */
static void more_than_may_wait_for_the_disk_is_refused(void)
{
    kit_broker_start(&kit, cmq_test_directory(), CMQ_FLUSH_SYNC, &(cmq_broker_options){.sends_waiting_max = 8});
    const int client = kit_client(&kit);
    int stored = 0, refused = 0;
    for (int i = 0; i < 2000; i++) send_with(client, i, "0", "", "x");
    for (int i = 0; i < 2000; i++) {
        const kit_answer *answer = kit_answer_of(&kit, client);
        CHECK(answer->command.code == FOUND || answer->command.code == 2);
        *(answer->command.code == FOUND ? &stored : &refused) += 1;
    }
    CHECK(stored > 0 && refused > 0);
    cmq_queue *queue = cmq_queues_find(cmq_store_queues(kit.store), cmq_slice_of_text("T"), 0);
    CHECK_INT(cmq_queue_max(queue, cmq_store_confirmed(kit.store)), stored);
    close(client);
    kit_broker_stop(&kit);
}

static void unknown_topics_and_groups_go_to_control(void)
{
    start();
    const int client = kit_client(&kit);
    kit_send_message(client, 1, "unknown", "a", "x");
    kit_broker_turn(&kit);
    cmq_control_item item;
    CHECK_INT(cmq_net_control_take(kit.net, &item, 1), 1);
    CHECK_INT(item.kind, CMQ_CONTROL_REQUEST);
    kit_broker_topic(&kit, "unknown", 1, CMQ_PERM_READ | CMQ_PERM_WRITE);
    cmq_net_again(kit.net, &item);
    CHECK_INT(kit_number(expect(client, 1, FOUND), "queueOffset"), 0);
    /* Not made: an answer, not a circle. */
    kit_send_message(client, 2, "forbidden", "a", "x");
    kit_broker_turn(&kit);
    CHECK_INT(cmq_net_control_take(kit.net, &item, 1), 1);
    cmq_net_again(kit.net, &item);
    expect(client, 2, 17);
    close(client);
    kit_broker_stop(&kit);
}

/* ---- pulls ---- */

static void pulls_answer_as_upstream_does(void)
{
    start();
    const int client = kit_client(&kit);
    kit_pull(client, 1, "T", 0, 0, 0, "");
    CHECK_INT(kit_number(expect(client, 1, NOT_FOUND), "nextBeginOffset"), 0);
    kit_pull(client, 2, "T", 5, 2, 15000, "");
    CHECK_INT(kit_number(expect(client, 2, MOVED), "nextBeginOffset"), 0);
    for (int i = 0; i < 3; i++) kit_send_message(client, 10 + i, "T", i == 1 ? "b" : "a", "x");
    for (int i = 0; i < 3; i++) expect(client, 10 + i, FOUND);
    kit_pull(client, 3, "T", 3, 0, 0, "");
    CHECK_INT(kit_number(expect(client, 3, NOT_FOUND), "nextBeginOffset"), 3);
    kit_pull(client, 4, "T", 9, 0, 0, "");
    CHECK_INT(kit_number(expect(client, 4, MOVED), "nextBeginOffset"), 3);
    kit_pull(client, 5, "T", 0, 4, 0, "c || d");
    CHECK_INT(kit_number(expect(client, 5, RETRY), "nextBeginOffset"), 3);
    kit_pull(client, 6, "T", 0, 4, 0, "b");
    const kit_answer *answer = expect(client, 6, FOUND);
    CHECK_INT(kit_number(answer, "nextBeginOffset"), 3);
    CHECK_INT(record_of(answer).queue_offset, 1);
    kit_pull(client, 7, "T", 0, 4, 0, "||");
    expect(client, 7, 23);
    close(client);
    kit_broker_stop(&kit);
}

/* Large stretches go from the map to the socket; the same bytes come as when they are copied, also when another queue's
 * record lies between. */
static void large_answers_are_whole(void)
{
    start();
    const int client = kit_client(&kit);
    char body[3001];
    memset(body, 'x', sizeof body - 1);
    body[sizeof body - 1] = 0;
    for (int i = 0; i < 30; i++) {
        body[0] = (char)('a' + i % 26);
        kit_send_message(client, i, "T", "a", body);
        expect(client, i, FOUND);
        if (i != 20) continue;
        const kit_field other[] = {{"a", "P"}, {"b", "T"}, {"c", "t"}, {"d", "4"},  {"e", "1"},
                                   {"f", "0"}, {"g", "1"}, {"h", "0"}, {NULL, NULL}};
        kit_request(client, 310, 99, 0, CMQ_HEADER_JSON, other, "y", 1);
        expect(client, 99, FOUND);
    }
    int seen = 0;
    while (seen < 30) {
        kit_pull(client, 100 + seen, "T", seen, 0, 0, "");
        const kit_answer *answer = expect(client, 100 + seen, FOUND);
        const int64_t next = kit_number(answer, "nextBeginOffset");
        cmq_slice rest = answer->body;
        for (; rest.bytes > 0; seen++) {
            cmq_record_view view;
            CHECK_OK(cmq_record_parse(rest.data, rest.bytes, -1, CMQ_RECORD_CHECK_BODY_CRC, &view));
            CHECK_INT(view.queue_offset, seen);
            CHECK_INT(view.body.data[0], 'a' + seen % 26);
            rest.data += view.record_bytes;
            rest.bytes -= view.record_bytes;
        }
        CHECK_INT(next, seen);
    }
    close(client);
    kit_broker_stop(&kit);
}

static void a_subscription_is_asked_for(void)
{
    start();
    const int client = kit_client(&kit);
    kit_broker_topic(&kit, "U", 1, CMQ_PERM_READ | CMQ_PERM_WRITE);
    kit_pull(client, 1, "U", 0, 0, 0, "");
    expect(client, 1, 24);
    kit_broker_subscribe(&kit, "G", "T", "a", 0);
    kit_pull(client, 2, "T", 0, 0, 0, "");
    expect(client, 2, 25);
    cmq_tables_remove_consumer(kit.tables, cmq_slice_of_text("G"));
    kit_pull(client, 3, "T", 0, 0, 0, "");
    expect(client, 3, 24);
    cmq_tables_set_perm(kit.tables, CMQ_PERM_WRITE);
    kit_pull(client, 4, "T", 0, 0, 0, "");
    CHECK_INT(kit_number(expect(client, 4, 16), "forbiddenType"), 1);
    close(client);
    kit_broker_stop(&kit);
}

/* The group's last heartbeat was of a member that has no queue of the topic, and does not name the retry topic. */
static void popped_messages_are_pulled_with_their_topic(void)
{
    start();
    const int client = kit_client(&kit);
    const char *const retry[] = {"%RETRY%G_T", "%RETRY%G+T"};
    for (int32_t i = 0; i < 2; i++) {
        kit_broker_topic(&kit, retry[i], 1, CMQ_PERM_READ | CMQ_PERM_WRITE);
        kit_pull(client, i, retry[i], 0, 0, 0, "");
        expect(client, i, 19);
    }
    kit_broker_topic(&kit, "%RETRY%H_T", 1, CMQ_PERM_READ | CMQ_PERM_WRITE);
    kit_pull(client, 3, "%RETRY%H_T", 0, 0, 0, "");
    expect(client, 3, 24);
    kit_broker_topic(&kit, "%RETRY%G_U", 1, CMQ_PERM_READ | CMQ_PERM_WRITE);
    kit_pull(client, 4, "%RETRY%G_U", 0, 0, 0, "");
    expect(client, 4, 24);
    kit_broker_subscribe(&kit, "G", "%RETRY%G_T", "a", 0);
    kit_pull(client, 5, "%RETRY%G_T", 0, 0, 0, "");
    expect(client, 5, 25);
    kit_broker_subscribe(&kit, "G", "%RETRY%G_T", "*", 0);   /* and T no more */
    kit_pull(client, 6, "%RETRY%G_T", 0, 0, 0, "");
    expect(client, 6, 25);
    close(client);
    kit_broker_stop(&kit);
}

/* ---- holds ---- */

static void a_hold_ends_with_a_message(void)
{
    start();
    const int consumer = kit_client(&kit), producer = kit_client(&kit);
    kit_send_message(producer, 1, "T", "a", "x");
    expect(producer, 1, FOUND);
    kit_pull(consumer, 2, "T", 1, 2, 15000, "");
    CHECK(kit_is_silent(&kit, consumer));
    kit_send_message(producer, 3, "T", "a", "y");
    CHECK_INT(kit_number(expect(consumer, 2, FOUND), "nextBeginOffset"), 2);
    cmq_broker_counters counters;
    cmq_broker_count(kit.broker, &counters);
    CHECK_INT(counters.held, 1);
    CHECK_INT(counters.hold_wakes, 1);
    CHECK_INT(counters.holds_now, 0);
    close(consumer);
    close(producer);
    kit_broker_stop(&kit);
}

static void a_hold_waits_for_a_queue_that_is_not_there_yet(void)
{
    start();
    const int consumer = kit_client(&kit), producer = kit_client(&kit);
    kit_pull(consumer, 2, "T", 0, 2, 15000, "");
    CHECK(kit_is_silent(&kit, consumer));
    kit_send_message(producer, 3, "T", "a", "y");
    expect(consumer, 2, FOUND);
    close(consumer);
    close(producer);
    kit_broker_stop(&kit);
}

static void a_hold_ends_with_an_append_of_somebody_else(void)
{
    start();
    const int consumer = kit_client(&kit);
    kit_pull(consumer, 2, "T", 0, 2, 15000, "");
    CHECK(kit_is_silent(&kit, consumer));
    const cmq_append append = {.common = {.topic = cmq_slice_of_text("T")}, .count = 1,
                               .bodies = {.kind = CMQ_COLUMN_ONE, .one = cmq_slice_of_text("embedded")}};
    cmq_appended appended;
    CHECK_OK(cmq_store_append(kit.store, &append, &appended));
    expect(consumer, 2, FOUND);
    close(consumer);
    kit_broker_stop(&kit);
}

static void a_hold_ends_at_its_deadline(void)
{
    start();
    const int consumer = kit_client(&kit);
    kit_pull(consumer, 2, "T", 0, 2, 15000, "");
    CHECK(kit_is_silent(&kit, consumer));
    kit_broker_pass(&kit, 14999);
    CHECK(kit_is_silent(&kit, consumer));
    kit_broker_pass(&kit, 1);
    CHECK_INT(kit_number(expect(consumer, 2, NOT_FOUND), "nextBeginOffset"), 0);
    CHECK(cmq_net_is_idle(kit.net));
    close(consumer);
    kit_broker_stop(&kit);
}

static void messages_of_other_tags_move_a_hold_on(void)
{
    start();
    const int consumer = kit_client(&kit), producer = kit_client(&kit);
    kit_pull(consumer, 2, "T", 0, 2 | 4, 15000, "wanted");
    CHECK(kit_is_silent(&kit, consumer));
    for (int i = 0; i < 5; i++) kit_send_message(producer, 10 + i, "T", "other", "y");
    for (int i = 0; i < 5; i++) expect(producer, 10 + i, FOUND);
    CHECK(kit_is_silent(&kit, consumer));
    kit_broker_pass(&kit, 15000);
    CHECK_INT(kit_number(expect(consumer, 2, RETRY), "nextBeginOffset"), 5);
    kit_pull(consumer, 3, "T", 5, 2 | 4, 15000, "wanted");
    kit_send_message(producer, 20, "T", "other", "y");
    kit_send_message(producer, 21, "T", "wanted", "y");
    const kit_answer *answer = expect(consumer, 3, FOUND);
    CHECK_INT(kit_number(answer, "nextBeginOffset"), 7);
    CHECK_INT(record_of(answer).queue_offset, 6);
    close(consumer);
    close(producer);
    kit_broker_stop(&kit);
}

static void a_hold_ends_with_its_connection(void)
{
    start();
    const int consumer = kit_client(&kit);
    for (int i = 0; i < 10; i++) kit_pull(consumer, i, "T", 0, 2, 15000, "");
    CHECK(kit_is_silent(&kit, consumer));
    cmq_broker_counters counters;
    cmq_broker_count(kit.broker, &counters);
    CHECK_INT(counters.holds_now, 10);
    close(consumer);
    for (int turn = 0; turn < 3; turn++) kit_broker_turn(&kit);
    cmq_broker_count(kit.broker, &counters);
    CHECK_INT(counters.holds_now, 0);
    CHECK(cmq_net_is_idle(kit.net));
    kit_broker_stop(&kit);
}

static void a_hold_ends_with_a_change_of_subscriptions(void)
{
    start();
    const int consumer = kit_client(&kit);
    kit_pull(consumer, 2, "T", 0, 2, 15000, "");
    CHECK(kit_is_silent(&kit, consumer));
    kit_broker_subscribe(&kit, "G", "T", "a", 2);
    CHECK_OK(cmq_broker_group_changed(kit.broker, cmq_slice_of_text("G")));
    expect(consumer, 2, NOT_FOUND);
    close(consumer);
    kit_broker_stop(&kit);
}

static void more_holds_than_allowed_are_answered_at_once(void)
{
    kit_broker_start(&kit, cmq_test_directory(), CMQ_FLUSH_ASYNC, &(cmq_broker_options){.holds_max = 2});
    const int consumer = kit_client(&kit);
    for (int i = 0; i < 3; i++) kit_pull(consumer, i, "T", 0, 2, 15000, "");
    expect(consumer, 2, NOT_FOUND);
    close(consumer);
    kit_broker_stop(&kit);
}

static void lite_pulls_may_be_forbidden(void)
{
    const kit_field fields[] = {
        {"consumerGroup", "G"}, {"topic", "T"},   {"queueId", "0"},      {"queueOffset", "0"},
        {"maxMsgNums", "32"},   {"sysFlag", "4"}, {"commitOffset", "0"}, {"suspendTimeoutMillis", "0"},
        {"subVersion", "1"},    {"subscription", "*"}, {NULL, NULL}};
    for (int off = 0; off < 2; off++) {
        kit_broker_start(&kit, cmq_test_directory(), CMQ_FLUSH_ASYNC, &(cmq_broker_options){.lite_pull_off = off == 1});
        const int client = kit_client(&kit);
        kit_request(client, 361, 1, 0, CMQ_HEADER_JSON, fields, NULL, 0);
        expect(client, 1, off == 1 ? 16 : NOT_FOUND);
        kit_pull(client, 2, "T", 0, 0, 0, "");
        expect(client, 2, NOT_FOUND);
        close(client);
        kit_broker_stop(&kit);
    }
}

static void short_polling_waits_a_second(void)
{
    kit_broker_start(&kit, cmq_test_directory(), CMQ_FLUSH_ASYNC, &(cmq_broker_options){.long_polling_off = true});
    const int consumer = kit_client(&kit);
    kit_pull(consumer, 1, "T", 0, 2, 15000, "");
    CHECK(kit_is_silent(&kit, consumer));
    kit_broker_pass(&kit, 1000);
    expect(consumer, 1, NOT_FOUND);
    close(consumer);
    kit_broker_stop(&kit);
}

/* ---- progress ---- */

static const kit_answer *ask(int client, int32_t code, int32_t opaque, int32_t expected, const char *queue_id,
                             const char *more, const char *value)
{
    const kit_field fields[] = {
        {"consumerGroup", "G"}, {"topic", "T"}, {"queueId", queue_id}, {more, value}, {NULL, NULL}};
    kit_request(client, code, opaque, 0, CMQ_HEADER_JSON, fields, NULL, 0);
    return expect(client, opaque, expected);
}

static void progress_is_kept(void)
{
    start();
    const int client = kit_client(&kit);
    ask(client, 14, 1, 22, "0", "x", "y");
    kit_send_message(client, 2, "T", "a", "x");
    expect(client, 2, FOUND);
    CHECK_INT(kit_number(ask(client, 14, 3, 0, "0", "x", "y"), "offset"), 0);   /* a young queue */
    ask(client, 14, 4, 22, "0", "setZeroIfNotFound", "false");
    ask(client, 14, 5, 22, "1", "x", "y");
    ask(client, 15, 6, 0, "0", "commitOffset", "7");
    CHECK_INT(kit_number(ask(client, 14, 7, 0, "0", "x", "y"), "offset"), 7);
    CHECK_INT(kit_number(ask(client, 30, 8, 0, "0", "x", "y"), "offset"), 1);
    CHECK_INT(kit_number(ask(client, 31, 9, 0, "0", "x", "y"), "offset"), 0);
    CHECK_INT(kit_number(ask(client, 30, 10, 0, "3", "x", "y"), "offset"), 0);
    CHECK_INT(kit_number(ask(client, 29, 11, 0, "0", "timestamp", "0"), "offset"), 0);
    CHECK_INT(kit_number(ask(client, 29, 12, 0, "0", "timestamp", "99999999999999"), "offset"), 1);
    ask(client, 14, 13, 1, "zero", "x", "y");
    close(client);
    kit_broker_stop(&kit);
}

static void the_next_pull_is_answered_with_a_reset(void)
{
    start();
    const int client = kit_client(&kit);
    for (int i = 0; i < 4; i++) kit_send_message(client, 10 + i, "T", "a", "x");
    for (int i = 0; i < 4; i++) expect(client, 10 + i, FOUND);
    const cmq_offset_key key = {.group = cmq_slice_of_text("G"), .topic = cmq_slice_of_text("T"), .queue_id = 0};
    CHECK_OK(cmq_offsets_reset(kit.offsets, &key, 2, (cmq_offset_asker){0}));
    /* It says, too, where its client was before: that does not count any more. */
    const kit_field fields[] = {
        {"consumerGroup", "G"}, {"topic", "T"},   {"queueId", "0"},      {"queueOffset", "4"},
        {"maxMsgNums", "32"},   {"sysFlag", "3"}, {"commitOffset", "4"}, {"suspendTimeoutMillis", "15000"},
        {"subVersion", "1"},    {NULL, NULL}};
    kit_request(client, 11, 1, 0, CMQ_HEADER_JSON, fields, NULL, 0);
    CHECK_INT(kit_number(expect(client, 1, MOVED), "nextBeginOffset"), 2);
    CHECK_INT(cmq_offsets_query(kit.offsets, &key), 2);
    kit_pull(client, 2, "T", 2, 2, 15000, "");
    CHECK_INT(kit_number(expect(client, 2, FOUND), "nextBeginOffset"), 4);
    close(client);
    kit_broker_stop(&kit);
}

static void a_reset_is_answered_without_the_messages_found(void)
{
    start();
    const int client = kit_client(&kit);
    for (int i = 0; i < 4; i++) kit_send_message(client, 10 + i, "T", "a", "x");
    for (int i = 0; i < 4; i++) expect(client, 10 + i, FOUND);
    const cmq_offset_key key = {.group = cmq_slice_of_text("G"), .topic = cmq_slice_of_text("T"), .queue_id = 0};
    CHECK_OK(cmq_offsets_reset(kit.offsets, &key, 2, (cmq_offset_asker){0}));
    kit_pull(client, 1, "T", 0, 2, 0, "");
    const kit_answer *answer = expect(client, 1, MOVED);
    CHECK_INT(kit_number(answer, "nextBeginOffset"), 2);
    CHECK_INT(answer->body.bytes, 0);
    kit_pull(client, 2, "T", 2, 2, 0, "");
    CHECK_INT(kit_number(expect(client, 2, FOUND), "nextBeginOffset"), 4);
    close(client);
    kit_broker_stop(&kit);
}

/* A held pull is answered with the reset, and its client leaves without starting there; the next member starts there,
 * and the first one commits late. */
static void reset_outlives_a_client_that_did_not_act_on_it(void)
{
    start();
    const int before = kit_client(&kit), producer = kit_client(&kit);
    for (int i = 0; i < 4; i++) kit_send_message(producer, 10 + i, "T", "a", "x");
    for (int i = 0; i < 4; i++) expect(producer, 10 + i, FOUND);
    kit_pull(before, 1, "T", 4, 2, 15000, "");
    CHECK(kit_is_silent(&kit, before));
    const cmq_offset_key key = {.group = cmq_slice_of_text("G"), .topic = cmq_slice_of_text("T"), .queue_id = 0};
    CHECK_OK(cmq_offsets_reset(kit.offsets, &key, 2, (cmq_offset_asker){0}));
    kit_send_message(producer, 15, "T", "a", "x");
    expect(producer, 15, FOUND);
    CHECK_INT(kit_number(expect(before, 1, MOVED), "nextBeginOffset"), 2);
    ask(before, 15, 3, 0, "0", "commitOffset", "4");
    CHECK_INT(cmq_offsets_query(kit.offsets, &key), 2);
    const int next = kit_client(&kit);
    kit_pull(next, 4, "T", 2, 2, 15000, "");
    CHECK_INT(kit_number(expect(next, 4, FOUND), "nextBeginOffset"), 5);
    ask(before, 15, 5, 0, "0", "commitOffset", "4");
    CHECK_INT(cmq_offsets_query(kit.offsets, &key), 2);
    ask(next, 15, 6, 0, "0", "commitOffset", "3");
    CHECK_INT(cmq_offsets_query(kit.offsets, &key), 3);
    kit_broker_pass(&kit, 60001);
    ask(before, 15, 7, 0, "0", "commitOffset", "4");
    CHECK_INT(cmq_offsets_query(kit.offsets, &key), 4);
    close(before);
    close(next);
    close(producer);
    kit_broker_stop(&kit);
}

static void a_pull_commits_once(void)
{
    start();
    const int client = kit_client(&kit), producer = kit_client(&kit);
    const kit_field fields[] = {
        {"consumerGroup", "G"}, {"topic", "T"},   {"queueId", "0"},      {"queueOffset", "0"},
        {"maxMsgNums", "32"},   {"sysFlag", "3"}, {"commitOffset", "5"}, {"suspendTimeoutMillis", "15000"},
        {"subVersion", "1"},    {NULL, NULL}};
    kit_request(client, 11, 1, 0, CMQ_HEADER_JSON, fields, NULL, 0);
    CHECK(kit_is_silent(&kit, client));
    const cmq_offset_key key = {.group = cmq_slice_of_text("G"), .topic = cmq_slice_of_text("T"), .queue_id = 0};
    CHECK_INT(cmq_offsets_query(kit.offsets, &key), 5);
    CHECK_OK(cmq_offsets_commit(kit.offsets, &key, 6));
    kit_send_message(producer, 3, "T", "a", "y");
    expect(client, 1, FOUND);
    CHECK_INT(cmq_offsets_query(kit.offsets, &key), 6);
    close(client);
    close(producer);
    kit_broker_stop(&kit);
}

/* ---- damaged queues ---- */

static char store_root[CMQ_PATH_BYTES];

static void place_unit(int64_t offset, int64_t phy)
{
    uint8_t image[8];
    cmq_store_i64(image, phy);
    kit_write_bytes(kit_path(store_root, "consumequeue/T/0/00000000000000000000"), offset * CMQ_UNIT_BYTES, image,
                    sizeof image);
}

/* Twelve messages in segments of three, of which the first are deleted; returns the first that is left. */
static int64_t start_expired(void)
{
    static uint8_t body[300 << 10];
    uint32_t deleted;
    const cmq_store_options options = {
        .path = store_root, .create = true, .flush = CMQ_FLUSH_ASYNC, .segment_bytes = 1 << 20};
    cmq_store *store;
    snprintf(store_root, sizeof store_root, "%s", cmq_test_directory());
    CHECK_OK(cmq_store_open(&store, &options));
    for (int i = 0; i < 12; i++) {
        cmq_appended appended;
        const cmq_append append = {.common = {.topic = cmq_slice_of_text("T")},
                                   .count = 1,
                                   .bodies = {.kind = CMQ_COLUMN_ONE, .one = {body, sizeof body}}};
        CHECK_OK(cmq_store_append(store, &append, &appended));
    }
    CHECK_OK(cmq_store_maintain(store, true));
    CHECK_OK(cmq_store_expire(store, true, &deleted));
    CHECK(deleted > 0);
    CHECK_OK(cmq_store_close(store));
    CHECK_OK(cmq_store_open(&store, &options));   /* no unit is in memory */
    kit_broker_serve(&kit, store, NULL, false);
    return kit_min(store, "T", 0);
}

/* The first unit, or one behind, with a place below zero or below the log: an error, not a retry for ever. */
static void pulls_report_damaged_units(void)
{
    static const struct {
        int64_t at, phy;
    } cases[] = {{0, -1}, {1, -1}, {1, 0}, {1, 100}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[80];
        const int64_t min = start_expired(), at = min + cases[i].at;
        const int client = kit_client(&kit);
        place_unit(at, cases[i].phy);
        kit_pull(client, 1, "T", at, 0, 0, "");
        const kit_answer *answer = expect(client, 1, SYSTEM_ERROR);
        snprintf(text, sizeof text, "the queue's unit %lld names a record at -1, where none can be", (long long)at);
        if (cases[i].phy < 0) CHECK(strncmp((const char *)answer->command.remark.data, text, strlen(text)) == 0);
        else CHECK(answer->command.remark.bytes > 0);
        kit_pull(client, 2, "T", at + 1, 0, 0, "");
        expect(client, 2, FOUND);
        close(client);
        kit_broker_stop(&kit);
    }
}

/* Records that were deleted since: the next pull begins with the first that is left. */
static void pulls_pass_over_deleted_records(void)
{
    for (int64_t gone = 1; gone < 3; gone++) {
        const int64_t min = start_expired();
        const int client = kit_client(&kit);
        for (int64_t at = 0; at < gone; at++) place_unit(min + at, 100 + at);
        kit_pull(client, 1, "T", min, 0, 0, "");
        CHECK_INT(kit_number(expect(client, 1, RETRY), "nextBeginOffset"), min + gone);
        kit_pull(client, 2, "T", min + gone, 0, 0, "");
        expect(client, 2, FOUND);
        close(client);
        kit_broker_stop(&kit);
    }
}

CMQ_TEST_MAIN(CMQ_TEST(a_send_is_stored_and_pulled), CMQ_TEST(a_burst_of_sends_keeps_its_order),
              CMQ_TEST(sync_flush_answers_when_the_disk_has_it),
              CMQ_TEST(lite_pulls_may_be_forbidden), CMQ_TEST(a_reset_is_answered_without_the_messages_found),
              CMQ_TEST(forbidden_sends_are_refused),
              CMQ_TEST(one_way_sends_get_no_answer), CMQ_TEST(a_batch_is_stored_message_by_message),
              CMQ_TEST(delayed_messages_are_parked), CMQ_TEST(broker_properties_of_a_sender_are_replaced),
              CMQ_TEST(sends_that_are_not_alike_keep_their_properties), CMQ_TEST(an_illegal_send_harms_no_other),
              CMQ_TEST(apparently_delayed_messages_are_refused), CMQ_TEST(a_batch_may_have_many_messages),
              CMQ_TEST(more_than_may_wait_for_the_disk_is_refused), CMQ_TEST(unknown_topics_and_groups_go_to_control),
              CMQ_TEST(pulls_answer_as_upstream_does), CMQ_TEST(large_answers_are_whole),
              CMQ_TEST(a_subscription_is_asked_for), CMQ_TEST(popped_messages_are_pulled_with_their_topic),
              CMQ_TEST(a_hold_ends_with_a_message), CMQ_TEST(a_hold_waits_for_a_queue_that_is_not_there_yet),
              CMQ_TEST(a_hold_ends_with_an_append_of_somebody_else), CMQ_TEST(a_hold_ends_at_its_deadline),
              CMQ_TEST(messages_of_other_tags_move_a_hold_on), CMQ_TEST(a_hold_ends_with_its_connection),
              CMQ_TEST(a_hold_ends_with_a_change_of_subscriptions),
              CMQ_TEST(more_holds_than_allowed_are_answered_at_once), CMQ_TEST(short_polling_waits_a_second),
              CMQ_TEST(progress_is_kept), CMQ_TEST(the_next_pull_is_answered_with_a_reset),
              CMQ_TEST(reset_outlives_a_client_that_did_not_act_on_it), CMQ_TEST(a_pull_commits_once),
              CMQ_TEST(pulls_report_damaged_units), CMQ_TEST(pulls_pass_over_deleted_records))
