/* Tests csrc/broker/pop/cmq_pop_peek.c through a socket: the results of notifications (200054) and their time, the
 * results of peeks (200052); that neither changes anything. */
#include <unistd.h>

#include "support/cmq_pop_kit.h"

/* A notification's answer: is there something; were there too many that wait? */
static void expect_notified(int client, int32_t opaque, bool has_messages, bool is_full)
{
    const kit_answer *answer = expect(client, opaque, OK);
    expect_text(answer, "hasMsg", has_messages ? "true" : "false");
    expect_text(answer, "pollingFull", is_full ? "true" : "false");
    CHECK_INT(answer->body.bytes, 0);
}

/* ---- 200054 ---- */

static void a_notification_tells_whether_there_is_something(void)
{
    start(NULL);
    const int client = kit_client(&kit);
    look(client, NOTIFICATION, 1, all);
    expect_notified(client, 1, false, false);
    send_some(client, 2);
    look(client, NOTIFICATION, 2, all);
    expect_notified(client, 2, true, false);
    CHECK_INT(committed("T"), CMQ_OFFSETS_NONE);
    pop(client, 3, one_of(all));
    expect(client, 3, OK);
    look(client, NOTIFICATION, 4, all);
    expect_notified(client, 4, true, false);
    pop(client, 5, all);
    expect(client, 5, OK);
    look(client, NOTIFICATION, 6, all);
    expect_notified(client, 6, false, false);   /* popped messages are not available, though no offset was committed */
    asked other = all;
    other.queue_id = 1;
    look(client, NOTIFICATION, 7, other);
    expect_notified(client, 7, false, false);
    close(client);
    kit_broker_stop(&kit);
}

static void a_held_notification_ends_with_an_arrival_and_takes_nothing(void)
{
    start(NULL);
    const int watching = kit_client(&kit), popping = kit_client(&kit), producer = kit_client(&kit);
    look(watching, NOTIFICATION, 1, waiting(15000));
    CHECK(kit_is_silent(&kit, watching));
    pop(popping, 2, waiting(15000));
    CHECK(kit_is_silent(&kit, popping));
    send_some(producer, 1);
    expect_notified(watching, 1, true, false);
    CHECK_INT(records_in(expect(popping, 2, OK)), 1);
    close(watching);
    close(popping);
    close(producer);
    kit_broker_stop(&kit);
}

static void a_held_notification_ends_before_its_client_gives_up(void)
{
    start(NULL);
    const int client = kit_client(&kit);
    look(client, NOTIFICATION, 1, waiting(15000));
    kit_broker_pass(&kit, 14940);
    CHECK(kit_is_silent(&kit, client));
    kit_broker_pass(&kit, 10);
    expect_notified(client, 1, false, false);
    close(client);
    kit_broker_stop(&kit);
}

static void more_notifications_than_may_wait(void)
{
    start(&(cmq_pop_service_options){.waits_max = 1});
    const int first = kit_client(&kit), second = kit_client(&kit);
    look(first, NOTIFICATION, 1, waiting(15000));
    CHECK(kit_is_silent(&kit, first));
    look(second, NOTIFICATION, 2, waiting(15000));
    expect_notified(second, 2, false, true);
    /* Pops are counted apart. */
    pop(second, 3, waiting(15000));
    CHECK(kit_is_silent(&kit, second));
    close(first);
    close(second);
    kit_broker_stop(&kit);
}

static void a_blocked_queue_counts_as_empty(void)
{
    start(NULL);
    const int client = kit_client(&kit), watching = kit_client(&kit);
    send_some(client, 2);
    pop(client, 1, in_order(one_of(all)));
    const batch b = batch_of(expect(client, 1, OK), 0);
    look(watching, NOTIFICATION, 2, in_order(all));
    expect_notified(watching, 2, false, false);
    look(watching, NOTIFICATION, 3, in_order(waiting(60000)));
    CHECK(kit_is_silent(&kit, watching));
    ack(client, 4, &b, 0);
    expect_notified(watching, 3, true, false);
    /* And it ends when the batch is not acknowledged in its time. */
    pop(client, 5, in_order(one_of(all)));
    expect(client, 5, OK);
    look(watching, NOTIFICATION, 6, in_order(waiting(60000)));
    CHECK(kit_is_silent(&kit, watching));
    kit_broker_pass_pops(&kit, 10500);
    expect_notified(watching, 6, true, false);
    close(client);
    close(watching);
    kit_broker_stop(&kit);
}

static void revived_message_wakes_holds(const cmq_pop_service_options *options)
{
    start(options);
    const int client = kit_client(&kit), watching = kit_client(&kit);
    send_some(client, 1);
    pop(client, 1, all);
    expect(client, 1, OK);
    look(watching, NOTIFICATION, 2, waiting(60000));
    CHECK(kit_is_silent(&kit, watching));
    kit_broker_pass_pops(&kit, 20000);
    expect_notified(watching, 2, true, false);
    look(watching, NOTIFICATION, 3, all);
    expect_notified(watching, 3, true, false);
    close(client);
    close(watching);
    kit_broker_stop(&kit);
}

static void a_message_of_a_retry_topic_is_notified(void) { revived_message_wakes_holds(NULL); }
static void a_message_of_a_retry_topic_of_the_second_kind_is_notified(void)
{
    revived_message_wakes_holds(&(cmq_pop_service_options){.retry_v2 = true});
}

/* ---- 200052 ---- */

static void a_peek_gives_messages_and_changes_nothing(void)
{
    start(NULL);
    const int client = kit_client(&kit);
    look(client, PEEK, 1, all);
    const kit_answer *answer = expect(client, 1, NOT_FOUND);
    CHECK_BYTES(answer->command.remark.data, answer->command.remark.bytes, "NO_MESSAGE_IN_QUEUE", 19);
    send_some(client, 3);
    for (int i = 2; i < 4; i++) {
        look(client, PEEK, i, all);
        answer = expect(client, i, OK);
        CHECK_INT(records_in(answer), 3);
        CHECK_INT(kit_number(answer, "restNum"), 0);
    }
    look(client, PEEK, 4, one_of(all));
    answer = expect(client, 4, OK);
    CHECK_INT(records_in(answer), 1);
    CHECK_INT(kit_number(answer, "restNum"), 2);
    CHECK_INT(committed("T"), CMQ_OFFSETS_NONE);
    pop(client, 5, all);
    expect_text(expect(client, 5, OK), "msgOffsetInfo", "0 0 0,1,2");
    look(client, PEEK, 6, all);
    expect(client, 6, NOT_FOUND);
    close(client);
    kit_broker_stop(&kit);
}

static void a_peek_shows_revived_messages_as_stored(void)
{
    start(NULL);
    const int client = kit_client(&kit);
    cmq_record_view view;
    cmq_slice handle;
    send_some(client, 1);
    pop(client, 1, all);
    expect(client, 1, OK);
    kit_broker_pass_pops(&kit, 20000);
    look(client, PEEK, 2, all);
    const kit_answer *answer = expect(client, 2, OK);
    CHECK_OK(cmq_record_parse(answer->body.data, answer->body.bytes, -1, CMQ_RECORD_CHECK_BODY_CRC, &view));
    CHECK_BYTES(view.topic.data, view.topic.bytes, "%RETRY%G_T", 10);
    CHECK(!cmq_property_find(view.properties, cmq_slice_of_text("POP_CK"), &handle));
    close(client);
    kit_broker_stop(&kit);
}

/* ---- both ---- */

static void forbidden_peeks_are_refused(void)
{
    start(NULL);
    const int client = kit_client(&kit);
    kit_broker_topic(&kit, "write-only", 1, CMQ_PERM_WRITE);
    const struct {
        asked what;
        int32_t code;
    } cases[] = {
        {{.queue_id = -1, .most = 1, .topic = "unknown"}, 17},
        {{.queue_id = -1, .most = 1, .topic = "write-only"}, 16},
        {{.queue_id = 4, .most = 1}, 29},
    };
    for (int32_t i = 0; i < (int32_t)(sizeof cases / sizeof cases[0]); i++) {
        look(client, NOTIFICATION, 2 * i, cases[i].what);
        expect(client, 2 * i, cases[i].code);
        look(client, PEEK, 2 * i + 1, cases[i].what);
        expect(client, 2 * i + 1, cases[i].code);
    }
    close(client);
    kit_broker_stop(&kit);
}

CMQ_TEST_MAIN(CMQ_TEST(a_notification_tells_whether_there_is_something),
              CMQ_TEST(a_held_notification_ends_with_an_arrival_and_takes_nothing),
              CMQ_TEST(a_held_notification_ends_before_its_client_gives_up), CMQ_TEST(more_notifications_than_may_wait),
              CMQ_TEST(a_blocked_queue_counts_as_empty), CMQ_TEST(a_message_of_a_retry_topic_is_notified),
              CMQ_TEST(a_message_of_a_retry_topic_of_the_second_kind_is_notified),
              CMQ_TEST(a_peek_gives_messages_and_changes_nothing), CMQ_TEST(a_peek_shows_revived_messages_as_stored),
              CMQ_TEST(forbidden_peeks_are_refused))
