/* Transactions through a socket: half messages, their ends and what is refused, op records, checks, restarts; injected
 * time.
 *
 * Threads: yes (under sync flush one thread waits for the disk).
 */
#include <stdlib.h>

#include "broker/loop/cmq_broker_internal.h"
#include "broker/txn/cmq_txn_internal.h"
#include "support/cmq_txn_kit.h"

enum { COMMIT = 8, ROLLBACK = 12, OK = 0, FAILED = 1, ILLEGAL = 13, FORBIDDEN = 16, LATE = 604 };

static kit_broker kit;
static kit_asked asked;

static void start_with(cmq_flush_mode flush, const cmq_txn_rules *rules)
{
    asked = (kit_asked){.there = true};
    kit_broker_start_txn(&kit, cmq_test_directory(), flush, rules);
}
static void start(void) { start_with(CMQ_FLUSH_ASYNC, NULL); }

/* Stop, and serve the store again with the progress that it had. */
static int64_t progress_of(const char *topic)
{
    const cmq_offset_key key = {.group = cmq_slice_of_text(CMQ_TXN_GROUP), .topic = cmq_slice_of_text(topic)};
    return cmq_offsets_query(kit.offsets, &key);
}

static cmq_store *reopen(const char *root)
{
    const cmq_store_options options = {.path = root, .flush = CMQ_FLUSH_ASYNC, .segment_bytes = 1 << 20};
    cmq_store *store;
    CHECK_OK(cmq_store_open(&store, &options));
    return store;
}

static void check_remark(int client, int32_t code, const char *remark)
{
    const kit_answer *answer = kit_answer_of(&kit, client);
    CHECK_INT(answer->command.code, code);
    CHECK_BYTES(answer->command.remark.data, answer->command.remark.bytes, remark, strlen(remark));
}

/* The only record of a batch at a queue offset. */
static cmq_record_view record_at(const char *topic, int32_t queue_id, int64_t offset, cmq_found_batch *batch)
{
    cmq_record_view view;
    CHECK_OK(cmq_store_read_offset(kit.store, cmq_slice_of_text(topic), queue_id, offset, batch));
    CHECK_OK(cmq_record_parse(batch->items[0].record, batch->items[0].record_bytes, -1, 0, &view));
    return view;
}

static void check_property(const cmq_record_view *view, const char *name, const char *expected)
{
    cmq_slice value;
    if (!cmq_property_find(view->properties, cmq_slice_of_text(name), &value)) value = CMQ_SLICE_NONE;
    CHECK_BYTES(value.data, value.bytes, expected, strlen(expected));
}

static void check_bodies(const char *topic, const char *expected)
{
    if (kit_max(kit.store, topic, topic[0] == 'T' && topic[1] == 0 ? 1 : 0) == 0) {
        CHECK_TEXT("", expected);
        return;
    }
    CHECK_TEXT(kit_read_topic(kit.store, topic), expected);
}

/* ---- half messages ---- */

static void a_half_message_is_stored_with_its_target(void)
{
    start();
    const int client = kit_client(&kit);
    kit_send_half(&kit, client, 7, "u1", "KEYS\001k\002REAL_TOPIC\001forged\002TRANSACTION_CHECK_TIMES\00199\002");
    const kit_answer *answer = kit_answer_of(&kit, client);
    CHECK_INT(answer->command.code, OK);
    CHECK_INT(kit_number(answer, "queueId"), 1);
    CHECK_INT(kit_number(answer, "queueOffset"), 0);
    CHECK_TEXT(kit_text(answer, "transactionId"), "u1");
    cmq_found item;
    cmq_found_batch batch = {.items = &item, .capacity = 1};
    const cmq_record_view view = record_at(CMQ_TXN_TOPIC_HALF, 0, 0, &batch);
    CHECK_INT(view.sys_flag & 0xC, 0);
    check_property(&view, "REAL_TOPIC", "T");
    check_property(&view, "REAL_QID", "1");
    check_property(&view, "__transactionId__", "u1");
    check_property(&view, "TRAN_MSG", "true");
    check_property(&view, "TRANSACTION_CHECK_TIMES", "");
    check_property(&view, "CLUSTER", "C");
    cmq_found_batch_release(&batch);
    CHECK_INT(kit_max(kit.store, "T", 1), 0);
    close(client);
    kit_broker_stop(&kit);
}

static void a_commit_is_delivered_with_all_it_had(void)
{
    start();
    const int client = kit_client(&kit);
    const kit_half half = kit_begin(&kit, client, "u1", "KEYS\001k\002");
    CHECK_INT(kit_end(&kit, client, half, COMMIT), OK);
    cmq_found items[2];
    cmq_found_batch batch = {.items = items, .capacity = 1}, halves = {.items = items + 1, .capacity = 1};
    const cmq_record_view view = record_at("T", 1, 0, &batch), before = record_at(CMQ_TXN_TOPIC_HALF, 0, 0, &halves);
    CHECK_BYTES(view.body.data, view.body.bytes, "u1", 2);
    CHECK_INT(view.sys_flag & 0xC, 8);
    CHECK_INT(view.prepared_transaction_offset, half.physical_offset);
    CHECK_INT(view.born_timestamp_ms, before.born_timestamp_ms);
    CHECK_BYTES(view.properties.data, view.properties.bytes, before.properties.data, before.properties.bytes);
    cmq_found_batch_release(&batch);
    cmq_found_batch_release(&halves);
    close(client);
    kit_broker_stop(&kit);
}

static void a_rollback_is_never_delivered(void)
{
    start();
    const int client = kit_client(&kit);
    const kit_half half = kit_begin(&kit, client, "u1", "");
    CHECK_INT(kit_end(&kit, client, half, ROLLBACK), OK);
    CHECK_INT(kit_end(&kit, client, half, COMMIT), OK);   /* has no effect */
    CHECK_INT(kit_max(kit.store, "T", 1), 0);
    kit_step(&kit, 60000, &asked);
    CHECK_INT(asked.count, 0);
    close(client);
    kit_broker_stop(&kit);
}

static void a_second_commit_does_nothing(void)
{
    start();
    const int client = kit_client(&kit);
    const kit_half half = kit_begin(&kit, client, "u1", "");
    for (int i = 0; i < 3; i++) kit_send_end(client, i, "P", half, COMMIT, false);
    for (int i = 0; i < 3; i++) CHECK_INT(kit_answer_of(&kit, client)->command.code, OK);
    kit_step(&kit, 60000, &asked);
    CHECK_INT(kit_end(&kit, client, half, COMMIT), OK);
    CHECK_INT(kit_max(kit.store, "T", 1), 1);
    close(client);
    kit_broker_stop(&kit);
}

static void halves_that_cannot_be_are_refused(void)
{
    static const struct {
        const char *more;
        int code;
    } cases[] = {{"DELAY\0013\002", ILLEGAL},
                 {"TIMER_DELAY_MS\0015000\002", ILLEGAL},
                 {"TIMER_DELIVER_MS\0011\002", ILLEGAL}};
    start();
    const int client = kit_client(&kit);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kit_send_half(&kit, client, 1, "u", cases[i].more);
        CHECK_INT(kit_answer_of(&kit, client)->command.code, cases[i].code);
    }
    /* prepared bits without TRAN_MSG would hide the message */
    const kit_field bits[] = {{"a", "P"}, {"b", "T"}, {"c", "TBW102"}, {"d", "4"},  {"e", "0"},
                              {"f", "4"}, {"g", "1"}, {"h", "0"},      {NULL, NULL}};
    kit_request(client, 310, 2, 0, CMQ_HEADER_JSON, bits, "x", 1);
    CHECK_INT(kit_answer_of(&kit, client)->command.code, FORBIDDEN);
    cmq_txn_set_rules(kit.txn, &(cmq_txn_rules){.reject = true});
    kit_send_half(&kit, client, 3, "u", "");
    check_remark(client, FORBIDDEN, "the broker[127.0.0.1] sending transaction message is forbidden");
    CHECK_INT(kit_max(kit.store, CMQ_TXN_TOPIC_HALF, 0), 0);
    close(client);
    kit_broker_stop(&kit);
}

static void a_message_that_an_old_consumer_sends_back_is_no_half(void)
{
    start();
    const int client = kit_client(&kit);
    const kit_field fields[] = {{"a", "P"}, {"b", "T"}, {"c", "TBW102"}, {"d", "4"}, {"e", "0"}, {"f", "4"}, {"g", "1"},
                                {"h", "0"}, {"i", "TRAN_MSG\001true\002PGROUP\001P\002DELAY\0013\002"}, {"j", "1"},
                                {NULL, NULL}};
    kit_request(client, 310, 1, 0, CMQ_HEADER_JSON, fields, "x", 1);
    CHECK_INT(kit_answer_of(&kit, client)->command.code, OK);
    CHECK_INT(kit_max(kit.store, "SCHEDULE_TOPIC_XXXX", 2), 1);
    CHECK_INT(kit_max(kit.store, CMQ_TXN_TOPIC_HALF, 0), 0);
    close(client);
    kit_broker_stop(&kit);
}

/* ---- ends ---- */

static void ends_are_refused_with_upstreams_texts(void)
{
    start();
    const int client = kit_client(&kit);
    const kit_half half = kit_begin(&kit, client, "u1", "");
    kit_send_message(client, 2, "T", "a", "whole");
    const kit_answer *sent = kit_answer_of(&kit, client);
    cmq_record_host host;
    kit_half whole = {.queue_offset = kit_number(sent, "queueOffset")};
    CHECK_OK(cmq_message_id_parse(cmq_slice_of_text(kit_text(sent, "msgId")), &host, &whole.physical_offset));
    static const char none[] = "Find prepared transaction message failed";
    const struct {
        kit_half half;
        const char *group, *remark;
        int outcome;
    } cases[] = {
        {{0, 1 << 30}, "P", none, COMMIT},
        {{0, -1}, "P", none, COMMIT},
        {{0, half.physical_offset + 1}, "P", none, ROLLBACK},
        {whole, "P", none, COMMIT},
        {half, "Q", "The producer group wrong", COMMIT},
        {{half.queue_offset + 1, half.physical_offset}, "P", "The transaction state table offset wrong", COMMIT},
        {half, "P", "commitOrRollback field wrong", 4},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kit_send_end(client, 3, cases[i].group, cases[i].half, cases[i].outcome, false);
        check_remark(client, FAILED, cases[i].remark);
    }
    kit_request(client, 37, 4, 0, CMQ_HEADER_JSON, (const kit_field[]){{"producerGroup", "P"}, {NULL, NULL}}, NULL, 0);
    CHECK_INT(kit_answer_of(&kit, client)->command.code, FAILED);
    CHECK_INT(kit_end(&kit, client, half, 0), OK);
    CHECK_INT(kit_max(kit.store, "T", 1), 0);
    CHECK_INT(kit_end(&kit, client, half, COMMIT), OK);
    close(client);
    kit_broker_stop(&kit);
}

/* A body that holds a record which names the very place where it will lie: only the queue knows better. */
static void a_forged_record_in_a_body_is_never_committed(void)
{
    start();
    const int client = kit_client(&kit);
    const kit_half half = kit_begin(&kit, client, "u1", "");
    uint8_t fake[512];
    cmq_store_info info;
    CHECK_OK(cmq_store_info_of(kit.store, &info));
    for (int64_t ahead = 80; ahead < 100; ahead++) {
        const cmq_record_fields fields = {
            .topic = cmq_slice_of_text(CMQ_TXN_TOPIC_HALF),
            .body = cmq_slice_of_text("stolen"),
            .properties = cmq_slice_of_text("PGROUP\001P\002UNIQ_KEY\001u\002REAL_TOPIC\001T\002REAL_QID\0011\002"),
            .physical_offset = info.log_end + ahead,
            .queue_offset = half.queue_offset};
        cmq_record_sizes sizes;
        CHECK_OK(cmq_record_measure(&fields, &sizes));
        cmq_record_encode(fake, &fields, &sizes);
        kit_request(client, 310, 2, 0, CMQ_HEADER_JSON,
                    (const kit_field[]){{"a", "P"}, {"b", "T"}, {"c", "t"}, {"d", "4"}, {"e", "0"}, {"f", "0"},
                                        {"g", "1"}, {"h", "0"}, {NULL, NULL}}, fake, sizes.record_bytes);
        CHECK_INT(kit_answer_of(&kit, client)->command.code, OK);
        kit_send_end(client, 3, "P", (kit_half){half.queue_offset, fields.physical_offset}, COMMIT, false);
        check_remark(client, FAILED, "Find prepared transaction message failed");
        CHECK_OK(cmq_store_info_of(kit.store, &info));
    }
    CHECK_INT(kit_max(kit.store, "T", 1), 0);
    close(client);
    kit_broker_stop(&kit);
}

static void an_answer_after_the_immunity_comes_too_late(void)
{
    start();
    const int client = kit_client(&kit);
    const kit_half half = kit_begin(&kit, client, "u1", "CHECK_IMMUNITY_TIME_IN_SECONDS\00110\002");
    kit_broker_pass(&kit, 10000);
    kit_send_end(client, 1, "Q", half, COMMIT, false);
    check_remark(client, FAILED, "The producer group wrong");
    kit_broker_pass(&kit, 1);
    CHECK_INT(kit_end(&kit, client, half, COMMIT), LATE);
    kit_send_end(client, 3, "P", half, COMMIT, true);
    CHECK_INT(kit_answer_of(&kit, client)->command.code, OK);
    CHECK_INT(kit_max(kit.store, "T", 1), 1);
    close(client);
    kit_broker_stop(&kit);
}

static void a_commit_to_a_topic_that_is_gone_is_kept(void)
{
    start();
    const int client = kit_client(&kit);
    const kit_half half = kit_begin(&kit, client, "u1", "");
    CHECK(cmq_tables_remove_topic(kit.tables, cmq_slice_of_text("T")));
    CHECK_INT(kit_end(&kit, client, half, COMMIT), OK);
    CHECK_INT(kit_max(kit.store, "T", 1), 0);
    CHECK_TEXT(kit_read_topic(kit.store, "rmq_sys_UNDELIVERED"), "u1");
    cmq_broker_counters counters;
    cmq_broker_count(kit.broker, &counters);
    CHECK_INT(counters.commits_undelivered, 1);
    close(client);
    kit_broker_stop(&kit);
}

/* ---- op records ---- */

static void ends_are_written_down_together(void)
{
    start();
    const int client = kit_client(&kit);
    for (int i = 0; i < 5; i++) {
        char unique[16];
        snprintf(unique, sizeof unique, "u%d", i);
        CHECK_INT(kit_end(&kit, client, kit_begin(&kit, client, unique, ""), i % 2 == 0 ? COMMIT : ROLLBACK), OK);
    }
    kit_step(&kit, 2999, &asked);
    CHECK_INT(kit_max(kit.store, CMQ_TXN_TOPIC_OP, 0), 0);
    kit_step(&kit, 1, &asked);
    CHECK_TEXT(kit_read_topic(kit.store, CMQ_TXN_TOPIC_OP), "0,1,2,3,4,");
    cmq_found item;
    cmq_found_batch batch = {.items = &item, .capacity = 1};
    const cmq_record_view view = record_at(CMQ_TXN_TOPIC_OP, 0, 0, &batch);
    CHECK_BYTES(view.properties.data, view.properties.bytes, "WAIT\001true\002TAGS\001d\002", 17);
    CHECK_INT(view.born_host.port, 10911);
    cmq_found_batch_release(&batch);
    close(client);
    kit_broker_stop(&kit);
}

static void many_ends_do_not_wait_for_the_interval(void)
{
    start_with(CMQ_FLUSH_ASYNC, &(cmq_txn_rules){.op_bytes = 5});
    const int client = kit_client(&kit);
    for (int i = 0; i < 7; i++) CHECK_INT(kit_end(&kit, client, kit_begin(&kit, client, "u", ""), ROLLBACK), OK);
    CHECK_TEXT(kit_read_topic(kit.store, CMQ_TXN_TOPIC_OP), "0,1,2, 3,4,5,");
    close(client);
    kit_broker_stop(&kit);
}

/* Beyond the limit texts are written at once; where that fails the end is refused. */
static void texts_have_a_limit(void)
{
    start_with(CMQ_FLUSH_ASYNC, &(cmq_txn_rules){.op_bytes = CMQ_TXN_OP_BYTES_MAX});
    const int client = kit_client(&kit);
    const kit_half half = kit_begin(&kit, client, "u", "");
    for (uint32_t i = 1; i < CMQ_TXN_TEXTS_MAX; i++) cmq_txn_add_text(kit.broker->options.txn, 1000);
    CHECK_INT(kit_max(kit.store, CMQ_TXN_TOPIC_OP, 0), 0);
    CHECK_INT(kit_end(&kit, client, half, ROLLBACK), OK);
    CHECK_INT(kit_max(kit.store, CMQ_TXN_TOPIC_OP, 0), 1);
    CHECK_INT(kit.broker->options.txn->text_count, 1);
    close(client);
    kit_broker_stop(&kit);
}

static void a_clean_stop_writes_ends_down(void)
{
    start();
    const char *root = cmq_store_root(kit.store);
    char path[1024];
    snprintf(path, sizeof path, "%s", root);
    const int client = kit_client(&kit);
    CHECK_INT(kit_end(&kit, client, kit_begin(&kit, client, "u1", ""), ROLLBACK), OK);
    kit_begin(&kit, client, "u2", "");
    close(client);
    kit_broker_stop(&kit);
    kit_broker_serve_txn(&kit, reopen(path), KIT_BROKER_MS, NULL, -1, -1);
    CHECK_TEXT(kit_read_topic(kit.store, CMQ_TXN_TOPIC_OP), "0,");
    kit_step(&kit, 60000, &asked);
    CHECK_INT(asked.count, 1);
    CHECK_TEXT(asked.items[0].unique, "u2");
    kit_broker_stop(&kit);
}

static void a_progress_beyond_the_end_is_corrected(void)
{
    start();
    char path[1024];
    snprintf(path, sizeof path, "%s", cmq_store_root(kit.store));
    const int client = kit_client(&kit);
    CHECK_INT(kit_end(&kit, client, kit_begin(&kit, client, "u1", ""), ROLLBACK), OK);
    close(client);
    kit_broker_stop(&kit);
    kit_broker_serve_txn(&kit, reopen(path), KIT_BROKER_MS, NULL, 100, 100);
    CHECK_INT(progress_of(CMQ_TXN_TOPIC_HALF), 1);
    CHECK_INT(progress_of(CMQ_TXN_TOPIC_OP), 1);
    kit_broker_stop(&kit);
}

/* ---- checks ---- */

static void an_open_transaction_is_asked_about(void)
{
    start();
    const int client = kit_client(&kit);
    const kit_half half = kit_begin(&kit, client, "u1", "");
    kit_step(&kit, 29999, &asked);
    CHECK_INT(asked.count, 0);
    kit_step(&kit, 1, &asked);
    CHECK_INT(asked.count, 1);
    cmq_record_view view;
    CHECK_OK(cmq_record_parse(asked.items[0].body, asked.items[0].body_bytes, -1, CMQ_RECORD_CHECK_BODY_CRC, &view));
    CHECK_BYTES(view.topic.data, view.topic.bytes, "T", 1);
    CHECK_INT(view.queue_id, 1);
    CHECK_INT(view.queue_offset, 1);
    CHECK_INT(view.physical_offset, asked.items[0].physical_offset);
    check_property(&view, "TRANSACTION_CHECK_TIMES", "1");
    check_property(&view, "TRAN_PREPARED_QUEUE_OFFSET", "0");
    check_property(&view, "PGROUP", "P");
    CHECK_INT(progress_of(CMQ_TXN_TOPIC_HALF), 1);
    const kit_half copy = {asked.items[0].queue_offset, asked.items[0].physical_offset};
    kit_send_end(client, 4, "P", copy, COMMIT, true);
    CHECK_INT(kit_answer_of(&kit, client)->command.code, OK);
    CHECK_INT(kit_end(&kit, client, half, COMMIT), OK);   /* the sender's own answer, late */
    CHECK_INT(kit_max(kit.store, "T", 1), 1);
    kit_step(&kit, 30000, &asked);
    CHECK_INT(asked.count, 0);
    close(client);
    kit_broker_stop(&kit);
}

static void an_answer_about_an_old_copy_ends_the_newest(void)
{
    start();
    const int client = kit_client(&kit);
    const kit_half half = kit_begin(&kit, client, "u1", "");
    kit_step(&kit, 30000, &asked);
    kit_step(&kit, 30000, &asked);
    CHECK_INT(asked.count, 1);
    CHECK_INT(kit_end(&kit, client, half, COMMIT), OK);
    CHECK_INT(kit_max(kit.store, "T", 1), 1);
    for (int i = 0; i < 3; i++) {
        kit_step(&kit, 30000, &asked);
        CHECK_INT(asked.count, 0);
    }
    const kit_half copy = {asked.items[0].queue_offset, asked.items[0].physical_offset};
    CHECK_INT(kit_end(&kit, client, copy, COMMIT), OK);
    CHECK_INT(kit_max(kit.store, "T", 1), 1);
    close(client);
    kit_broker_stop(&kit);
}

static void a_young_transaction_is_left_alone(void)
{
    start();
    const int client = kit_client(&kit);
    kit_begin(&kit, client, "u1", "");
    kit_broker_pass(&kit, 25000);
    kit_begin(&kit, client, "u2", "");
    kit_step(&kit, 5000, &asked);
    CHECK_INT(asked.count, 1);
    CHECK_TEXT(asked.items[0].unique, "u1");
    CHECK_INT(progress_of(CMQ_TXN_TOPIC_HALF), 1);
    close(client);
    kit_broker_stop(&kit);
}

static void nobody_there_costs_no_check(void)
{
    start();
    const int client = kit_client(&kit);
    kit_begin(&kit, client, "u1", "");
    asked.there = false;
    for (int i = 0; i < 20; i++) {
        kit_step(&kit, 30000, &asked);
        CHECK_INT(asked.count, 0);
    }
    asked.there = true;
    kit_step(&kit, 30000, &asked);
    CHECK_INT(asked.count, 1);
    cmq_record_view view;
    CHECK_OK(cmq_record_parse(asked.items[0].body, asked.items[0].body_bytes, -1, 0, &view));
    check_property(&view, "TRANSACTION_CHECK_TIMES", "1");
    CHECK_INT(kit_max(kit.store, CMQ_TXN_TOPIC_DISCARDED, 0), 0);
    close(client);
    kit_broker_stop(&kit);
}

static void an_immune_transaction_holds_up_nobody(void)
{
    start();
    const int client = kit_client(&kit);
    kit_begin(&kit, client, "u1", "CHECK_IMMUNITY_TIME_IN_SECONDS\001100\002");
    kit_begin(&kit, client, "u2", "");
    kit_step(&kit, 30000, &asked);
    CHECK_INT(asked.count, 1);
    CHECK_TEXT(asked.items[0].unique, "u2");
    CHECK_INT(progress_of(CMQ_TXN_TOPIC_HALF), 2);
    CHECK_INT(kit_end(&kit, client, (kit_half){asked.items[0].queue_offset, asked.items[0].physical_offset}, ROLLBACK),
              OK);
    kit_step(&kit, 30000, &asked);
    kit_step(&kit, 30000, &asked);
    CHECK_INT(asked.count, 0);
    kit_step(&kit, 30000, &asked);
    CHECK_INT(asked.count, 1);
    CHECK_TEXT(asked.items[0].unique, "u1");
    close(client);
    kit_broker_stop(&kit);
}

static void a_transaction_asked_about_too_often_is_discarded(void)
{
    start_with(CMQ_FLUSH_ASYNC, &(cmq_txn_rules){.checks_max = 2});
    const int client = kit_client(&kit);
    kit_half copies[3] = {kit_begin(&kit, client, "u1", "")};
    for (int i = 0; i < 2; i++) {
        kit_step(&kit, 30000, &asked);
        CHECK_INT(asked.count, 1);
        copies[i + 1] = (kit_half){asked.items[0].queue_offset, asked.items[0].physical_offset};
    }
    kit_step(&kit, 30000, &asked);
    CHECK_INT(asked.count, 0);
    CHECK_TEXT(kit_read_topic(kit.store, CMQ_TXN_TOPIC_DISCARDED), "u1");
    /* A commit that comes too late is refused, not lost in silence, whichever copy it names. */
    for (int i = 0; i < 3; i++) CHECK_INT(kit_end(&kit, client, copies[i], COMMIT), FAILED);
    check_bodies("T", "");
    cmq_found item;
    cmq_found_batch batch = {.items = &item, .capacity = 1};
    const cmq_record_view view = record_at(CMQ_TXN_TOPIC_DISCARDED, 0, 0, &batch);
    check_property(&view, "REAL_TOPIC", "T");
    CHECK_OK(cmq_txn_resume(kit.txn, view.physical_offset));
    CHECK_STATUS(cmq_txn_resume(kit.txn, view.physical_offset + 1), CMQ_ERR_CORRUPT);
    cmq_found_batch_release(&batch);
    kit_step(&kit, 30000, &asked);
    CHECK_INT(asked.count, 1);
    CHECK_TEXT(asked.items[0].unique, "u1");
    const kit_half copy = {asked.items[0].queue_offset, asked.items[0].physical_offset};
    CHECK_INT(kit_end(&kit, client, copy, COMMIT), OK);
    check_bodies("T", "u1");
    cmq_txn_counters counters;
    cmq_txn_count(kit.txn, &counters);
    CHECK_INT(counters.discarded, 1);
    close(client);
    kit_broker_stop(&kit);
}

static void a_transaction_older_than_the_log_keeps_is_discarded(void)
{
    start();
    const int client = kit_client(&kit);
    kit_begin(&kit, client, "u1", "");
    asked.there = false;
    kit_step(&kit, INT64_C(72) * 3600000 + 1, &asked);
    CHECK_TEXT(kit_read_topic(kit.store, CMQ_TXN_TOPIC_DISCARDED), "u1");
    close(client);
    kit_broker_stop(&kit);
}

static void copies_for_nobody_are_not_counted(void)
{
    enum { MESSAGES = 20 };
    start();
    const int client = kit_client(&kit);
    for (int i = 0; i < MESSAGES; i++) kit_begin(&kit, client, "u", "CHECK_IMMUNITY_TIME_IN_SECONDS\0011000000\002");
    const int64_t before = kit_max(kit.store, CMQ_TXN_TOPIC_HALF, 0);
    for (int i = 0; i < 3; i++) kit_step(&kit, 30000, &asked);
    CHECK_INT(kit_max(kit.store, CMQ_TXN_TOPIC_HALF, 0), before + 3 * MESSAGES);
    cmq_txn_counters counters;
    cmq_txn_count(kit.txn, &counters);
    CHECK_INT(counters.copied, 3 * MESSAGES);
    CHECK_INT(counters.behind, MESSAGES);
    close(client);
    kit_broker_stop(&kit);
}

/* Its age never reaches 72 h, so its copies for nobody would have no end. */
static void births_far_in_the_future_are_discarded(void)
{
    start();
    const int client = kit_client(&kit);
    const kit_field fields[] = {{"a", "P"}, {"b", "T"}, {"c", "TBW102"}, {"d", "4"}, {"e", "1"}, {"f", "4"},
                                {"g", "9000000000000000000"}, {"h", "0"},
                                {"i", "TRAN_MSG\001true\002PGROUP\001P\002UNIQ_KEY\001u1\002"}, {"j", "0"},
                                {NULL, NULL}};
    kit_request(client, 310, 1, 0, CMQ_HEADER_JSON, fields, "u1", 2);
    CHECK_INT(kit_answer_of(&kit, client)->command.code, OK);
    CHECK_INT(kit_max(kit.store, CMQ_TXN_TOPIC_HALF, 0), 1);
    asked.there = false;
    for (int i = 0; i < 20; i++) kit_step(&kit, 30000, &asked);
    CHECK_TEXT(kit_read_topic(kit.store, CMQ_TXN_TOPIC_DISCARDED), "u1");
    asked.there = true;
    close(client);
    kit_broker_stop(&kit);
}

static void sync_flush_asks_for_the_bytes_on_the_disk(void)
{
    start_with(CMQ_FLUSH_SYNC, NULL);
    const int client = kit_client(&kit);
    const kit_half half = kit_begin(&kit, client, "u1", "WAIT\001false\002");
    kit_begin(&kit, client, "u2", "");
    CHECK_INT(kit_end(&kit, client, half, COMMIT), OK);
    kit_step(&kit, 30000, &asked);
    CHECK_INT(asked.count, 1);
    CHECK_INT(kit_end(&kit, client, (kit_half){asked.items[0].queue_offset, asked.items[0].physical_offset}, COMMIT),
              OK);
    CHECK_OK(cmq_store_flush(kit.store));
    check_bodies("T", "u1 u2");
    close(client);
    kit_broker_stop(&kit);
}

/* A step waits for the disk once. */
static void a_step_asks_about_many(void)
{
    start_with(CMQ_FLUSH_SYNC, NULL);
    const int client = kit_client(&kit);
    const cmq_txn_asker asker = {.is_there = kit_is_there, .ask = kit_ask, .context = &asked};
    bool more;
    for (int i = 0; i < 200; i++) kit_begin(&kit, client, "u", "WAIT\001false\002");
    CHECK_OK(cmq_store_flush(kit.store));
    kit_broker_pass(&kit, 30000);
    CHECK_OK(cmq_txn_step(kit.txn, &asker, &more));
    CHECK_INT(asked.count, 200);
    CHECK(!more);
    close(client);
    kit_broker_stop(&kit);
}

/* ---- forged first copies ---- */

/* Append a half message of group P for queue 1 of T, with a first copy by its word. */
static void append_forged(int64_t first)
{
    char properties[256];
    snprintf(properties, sizeof properties,
             "TRAN_MSG\001true\002PGROUP\001P\002UNIQ_KEY\001forged\002REAL_TOPIC\001T\002REAL_QID\0011\002"
             "TRAN_PREPARED_QUEUE_OFFSET\001%lld\002", (long long)first);
    const cmq_append append = {
        .common = {.topic = cmq_slice_of_text(CMQ_TXN_TOPIC_HALF), .born_timestamp_ms = kit.now_ms},
        .count = 1,
        .bodies = {.kind = CMQ_COLUMN_ONE, .one = cmq_slice_of_text("forged")},
        .properties = {.kind = CMQ_COLUMN_ONE, .one = cmq_slice_of_text(properties)},
    };
    cmq_appended appended;
    CHECK_OK(cmq_store_append(kit.store, &append, &appended));
}

/* Step, expect a question about each of these two, and return the place that one of them names. */
static kit_half step_asks_about(const char *a, const char *b, const char *wanted)
{
    kit_half found = {-1, -1};
    bool seen_a = false, seen_b = false;
    kit_step(&kit, 30000, &asked);
    for (int i = 0; i < asked.count; i++) {
        seen_a = seen_a || strcmp(asked.items[i].unique, a) == 0;
        seen_b = seen_b || strcmp(asked.items[i].unique, b) == 0;
        if (strcmp(asked.items[i].unique, wanted) == 0)
            found = (kit_half){asked.items[i].queue_offset, asked.items[i].physical_offset};
    }
    CHECK_INT(asked.count, 2);
    CHECK(seen_a && seen_b);
    return found;
}

static void a_forged_first_copy_takes_no_other_transaction_along(void)
{
    start();
    const int client = kit_client(&kit);
    const kit_half half = kit_begin(&kit, client, "u1", "");
    append_forged(half.queue_offset);
    const kit_half forged = step_asks_about("u1", "forged", "forged");
    CHECK_INT(kit_end(&kit, client, forged, ROLLBACK), OK);
    kit_step(&kit, 30000, &asked);
    CHECK_INT(asked.count, 1);
    CHECK_TEXT(asked.items[0].unique, "u1");
    append_forged(half.queue_offset);   /* u1 has copies now */
    step_asks_about("u1", "forged", "u1");
    CHECK_INT(kit_end(&kit, client, half, COMMIT), OK);
    kit_step(&kit, 30000, &asked);
    CHECK_INT(asked.count, 1);
    CHECK_TEXT(asked.items[0].unique, "forged");
    check_bodies("T", "u1");
    close(client);
    kit_broker_stop(&kit);
}

/* The end names the forged half message before any check has looked at it. */
static void an_end_of_a_forged_copy_ends_only_itself(void)
{
    start();
    const int client = kit_client(&kit);
    const kit_half half = kit_begin(&kit, client, "u1", "");
    kit_step(&kit, 30000, &asked);
    CHECK_INT(asked.count, 1);
    append_forged(half.queue_offset);
    cmq_found item;
    cmq_found_batch batch = {.items = &item, .capacity = 1};
    const cmq_record_view view = record_at(CMQ_TXN_TOPIC_HALF, 0, 2, &batch);
    const kit_half forged = {view.queue_offset, view.physical_offset};
    cmq_found_batch_release(&batch);
    CHECK_INT(kit_end(&kit, client, forged, ROLLBACK), OK);
    kit_step(&kit, 30000, &asked);
    CHECK_INT(asked.count, 1);
    CHECK_TEXT(asked.items[0].unique, "u1");
    CHECK_INT(kit_end(&kit, client, half, COMMIT), OK);
    check_bodies("T", "u1");
    close(client);
    kit_broker_stop(&kit);
}

/* A start finds the copies by what they say. */
static void a_start_knows_forged_first_copies(void)
{
    start();
    char root[1024], after[1040];
    snprintf(root, sizeof root, "%s", cmq_store_root(kit.store));
    snprintf(after, sizeof after, "%s-after", root);
    const int client = kit_client(&kit);
    const kit_half half = kit_begin(&kit, client, "u1", "");
    append_forged(half.queue_offset);
    close(client);
    kit_copy_tree(root, after);
    kit_broker_stop(&kit);
    kit_broker_serve_txn(&kit, reopen(after), KIT_BROKER_MS + 30000, NULL, -1, -1);
    step_asks_about("u1", "forged", "u1");
    kit_broker_stop(&kit);
    kit_remove_tree(after);
}

/* ---- restarts ---- */

/* The texts of ends are lost with the process; the commits in the log say the same. */
static void a_crash_commits_nothing_twice(void)
{
    start();
    char root[1024], after[1040];
    snprintf(root, sizeof root, "%s", cmq_store_root(kit.store));
    snprintf(after, sizeof after, "%s-after", root);
    const int client = kit_client(&kit);
    const kit_half first = kit_begin(&kit, client, "u1", "");
    kit_begin(&kit, client, "u2", "");
    kit_step(&kit, 30000, &asked);   /* both were copied */
    CHECK_INT(asked.count, 2);
    CHECK_INT(kit_end(&kit, client, first, COMMIT), OK);
    CHECK_INT(kit_end(&kit, client, kit_begin(&kit, client, "u3", ""), COMMIT), OK);
    close(client);
    kit_copy_tree(root, after);   /* kill -9 */
    kit_broker_stop(&kit);
    kit_broker_serve_txn(&kit, reopen(after), KIT_BROKER_MS + 30000, NULL, -1, -1);   /* nor was progress written */
    kit_step(&kit, 30000, &asked);
    CHECK_INT(asked.count, 1);
    CHECK_TEXT(asked.items[0].unique, "u2");
    cmq_txn_counters counters;
    cmq_txn_count(kit.txn, &counters);
    CHECK_INT(counters.recovered, 2);
    check_bodies("T", "u1 u3");
    kit_broker_stop(&kit);
    kit_remove_tree(after);
}

static void half_messages_are_counted_by_their_topic(void)
{
    start();
    const int client = kit_client(&kit);
    for (int i = 0; i < 3; i++) kit_begin(&kit, client, "u", "");
    CHECK_INT(kit_end(&kit, client, kit_begin(&kit, client, "u", ""), ROLLBACK), OK);
    cmq_traffic_item items[4];
    uint32_t cursor = 0;
    CHECK_INT(cmq_txn_list_halves(kit.txn, &cursor, items, 4), 1);
    CHECK_BYTES(items[0].topic.data, items[0].topic.bytes, "T", 1);
    CHECK_INT(items[0].messages, 4);
    CHECK_INT(items[0].bytes, 1);
    close(client);
    kit_broker_stop(&kit);
}

CMQ_TEST_MAIN(CMQ_TEST(a_half_message_is_stored_with_its_target), CMQ_TEST(a_commit_is_delivered_with_all_it_had),
              CMQ_TEST(a_rollback_is_never_delivered), CMQ_TEST(a_second_commit_does_nothing),
              CMQ_TEST(halves_that_cannot_be_are_refused),
              CMQ_TEST(a_message_that_an_old_consumer_sends_back_is_no_half),
              CMQ_TEST(ends_are_refused_with_upstreams_texts), CMQ_TEST(a_forged_record_in_a_body_is_never_committed),
              CMQ_TEST(an_answer_after_the_immunity_comes_too_late), CMQ_TEST(a_commit_to_a_topic_that_is_gone_is_kept),
              CMQ_TEST(ends_are_written_down_together), CMQ_TEST(many_ends_do_not_wait_for_the_interval),
              CMQ_TEST(texts_have_a_limit), CMQ_TEST(a_clean_stop_writes_ends_down),
              CMQ_TEST(a_progress_beyond_the_end_is_corrected),
              CMQ_TEST(an_open_transaction_is_asked_about),
              CMQ_TEST(an_answer_about_an_old_copy_ends_the_newest), CMQ_TEST(a_young_transaction_is_left_alone),
              CMQ_TEST(nobody_there_costs_no_check), CMQ_TEST(an_immune_transaction_holds_up_nobody),
              CMQ_TEST(a_transaction_asked_about_too_often_is_discarded),
              CMQ_TEST(a_transaction_older_than_the_log_keeps_is_discarded),
              CMQ_TEST(copies_for_nobody_are_not_counted), CMQ_TEST(births_far_in_the_future_are_discarded),
              CMQ_TEST(sync_flush_asks_for_the_bytes_on_the_disk), CMQ_TEST(a_step_asks_about_many),
              CMQ_TEST(a_forged_first_copy_takes_no_other_transaction_along),
              CMQ_TEST(an_end_of_a_forged_copy_ends_only_itself), CMQ_TEST(a_start_knows_forged_first_copies),
              CMQ_TEST(a_crash_commits_nothing_twice),
              CMQ_TEST(half_messages_are_counted_by_their_topic))
