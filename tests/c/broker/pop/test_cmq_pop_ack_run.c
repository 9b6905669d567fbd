/* Acks of one turn: one look-up or one record for those of one checkpoint, an answer for each; injected time. */
#include <unistd.h>

#include "broker/timer/cmq_timer.h"
#include "support/cmq_pop_kit.h"

/* Ask for an ack, and not for its answer. */
static void ask_ack(int client, int32_t opaque, const batch *b, int64_t offset)
{
    settle_to(client, opaque, ACK, "T", 0, offset, handle_of(b, offset), 0);
}

static asked five(void)
{
    asked what = all;
    what.most = 5;
    return what;
}

static int64_t records_for_the_timer(void)
{
    CHECK_OK(cmq_store_flush(kit.store));
    cmq_queue *queue = cmq_queues_find(cmq_store_queues(kit.store), cmq_slice_of_text(CMQ_TOPIC_TIMER), 0);
    return queue != NULL ? cmq_queue_max(queue, cmq_store_confirmed(kit.store)) : 0;
}

static void those_of_one_checkpoint_are_one_record(void)
{
    start(NULL);
    const int client = kit_client(&kit);
    send_some(client, 10);
    pop(client, 1, five());
    const batch first = batch_of(expect(client, 1, OK), 0);
    pop(client, 2, five());
    const batch second = batch_of(expect(client, 2, OK), 5);
    CHECK_INT(records_for_the_timer(), 2);
    for (int i = 0; i < 5; i++) ask_ack(client, 10 + i, &first, i);
    ask_ack(client, 15, &second, 5);
    ask_ack(client, 16, &second, 6);
    ask_ack(client, 17, &first, 0);
    for (int i = 0; i < 8; i++) expect(client, 10 + i, OK);
    CHECK_INT(records_for_the_timer(), 5);
    kit_broker_pass_pops(&kit, 20000);
    pop(client, 3, all);
    const kit_answer *answer = expect(client, 3, OK);
    CHECK_INT(records_in(answer), 3);
    CHECK(strcmp(kit_text(answer, "msgOffsetInfo"), "1 0 0,1,2") == 0);
    close(client);
    kit_broker_stop(&kit);
}

static void merged_ones_are_no_record(void)
{
    start(&(cmq_pop_service_options){.merge = true});
    const int client = kit_client(&kit);
    send_some(client, 5);
    pop(client, 1, five());
    const batch b = batch_of(expect(client, 1, OK), 0);
    for (int i = 0; i < 4; i++) ask_ack(client, 10 + i, &b, i);
    for (int i = 0; i < 4; i++) expect(client, 10 + i, OK);
    CHECK(committed("T") <= 0);
    ask_ack(client, 14, &b, 4);
    expect(client, 14, OK);
    CHECK_INT(committed("T"), 5);
    CHECK_INT(records_for_the_timer(), 0);
    close(client);
    kit_broker_stop(&kit);
}

/* Later requests of the turn find them done. */
static void a_pop_and_a_change_end_them(void)
{
    start(&(cmq_pop_service_options){.merge = true, .in_flight_max = 4});
    const int client = kit_client(&kit);
    send_some(client, 10);
    pop(client, 1, five());
    const batch b = batch_of(expect(client, 1, OK), 0);
    pop(client, 2, five());
    expect(client, 2, POLLING_TIMEOUT);   /* too many are in flight */
    ask_ack(client, 10, &b, 0);
    ask_ack(client, 11, &b, 1);
    pop(client, 3, five());
    expect(client, 10, OK);
    expect(client, 11, OK);
    CHECK_INT(records_in(expect(client, 3, OK)), 5);
    ask_ack(client, 12, &b, 2);
    settle_to(client, 13, CHANGE, "T", 0, 3, handle_of(&b, 3), 30000);
    ask_ack(client, 14, &b, 4);
    expect(client, 12, OK);
    expect(client, 13, OK);
    expect(client, 14, OK);
    close(client);
    kit_broker_stop(&kit);
}

static void one_that_wants_no_answer_counts(void)
{
    start(NULL);
    const int client = kit_client(&kit);
    send_some(client, 2);
    pop(client, 1, all);
    const batch b = batch_of(expect(client, 1, OK), 0);
    const kit_field fields[] = {{"consumerGroup", "G"},          {"topic", "T"},  {"queueId", "0"},
                                {"extraInfo", handle_of(&b, 0)}, {"offset", "0"}, {NULL, NULL}};
    kit_request(client, ACK, 10, CMQ_COMMAND_ONEWAY, CMQ_HEADER_JSON, fields, NULL, 0);
    ask_ack(client, 11, &b, 1);
    expect(client, 11, OK);
    CHECK_INT(records_for_the_timer(), 2);   /* the checkpoint, and both acks */
    kit_broker_pass_pops(&kit, 20000);
    pop(client, 3, all);
    expect(client, 3, POLLING_TIMEOUT);
    close(client);
    kit_broker_stop(&kit);
}

CMQ_TEST_MAIN(CMQ_TEST(those_of_one_checkpoint_are_one_record), CMQ_TEST(merged_ones_are_no_record),
              CMQ_TEST(a_pop_and_a_change_end_them), CMQ_TEST(one_that_wants_no_answer_counts))
