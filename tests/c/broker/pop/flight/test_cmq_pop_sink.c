/* Records that leave the buffer, in a store: timer messages in order, those that are due at once in the revive topic,
 * and refused ones. */
#include <stdio.h>
#include <string.h>

#include "broker/pop/flight/cmq_pop_sink.h"
#include "broker/timer/cmq_timer.h"
#include "store/record/cmq_property.h"
#include "support/cmq_store_kit.h"
#include "support/cmq_test.h"
#include "wire/cmq_command.h"

#define CHECK_SLICE(actual, expected) CHECK_BYTES((actual).data, (actual).bytes, expected, strlen(expected))

enum { REVIVE_QUEUE = 3, DELAY_MS_MAX = 3600000 };

static cmq_pop_sink_log sink;
static cmq_timer_options timer;

static void start(void)
{
    kit_set_clock();
    const cmq_store_options options = kit_options(kit_directory());
    timer = (cmq_timer_options){.precision_ms = 1000, .delay_ms_max = DELAY_MS_MAX};
    sink = (cmq_pop_sink_log){.store = kit_open(&options),
                              .log = {.revive_topic = cmq_slice_of_text("rmq_sys_REVIVE_LOG_C"), .timer = &timer},
                              .clock = kit_clock()};
}

static void stop(void) { CHECK_OK(cmq_store_close(sink.store)); }

static cmq_pop_store_item checkpoint(int64_t start_offset, int64_t invisible_ms)
{
    return (cmq_pop_store_item){.revive_queue = REVIVE_QUEUE,
                                .checkpoint = {.start_offset = start_offset,
                                               .pop_ms = kit_now_ms,
                                               .invisible_ms = invisible_ms,
                                               .num = 2,
                                               .queue_id = 1,
                                               .topic = cmq_slice_of_text("T"),
                                               .group = cmq_slice_of_text("G"),
                                               .broker = cmq_slice_of_text("b")}};
}

static cmq_pop_store_item ack(int64_t offset, int64_t invisible_ms)
{
    return (cmq_pop_store_item){.is_ack = true,
                                .revive_queue = REVIVE_QUEUE,
                                .ack = {.start_offset = 0,
                                        .pop_ms = kit_now_ms,
                                        .invisible_ms = invisible_ms,
                                        .offset = offset,
                                        .queue_id = 1,
                                        .topic = cmq_slice_of_text("T"),
                                        .group = cmq_slice_of_text("G"),
                                        .broker = cmq_slice_of_text("b")}};
}

static int64_t log_end;   /* of checkpoints; 0: any */

/* Record `offset` of a queue: its tag, and the offset in its body. Everything that was stored is confirmed first. */
static void check_record(const char *topic, int32_t queue_id, int64_t offset, const char *tag, int64_t message)
{
    CHECK_OK(cmq_store_flush(sink.store));
    cmq_reader *reader;
    const cmq_read_start at = {.topic = cmq_slice_of_text(topic), .queue_id = queue_id, .offset = offset};
    const cmq_read_options options = {.starts = &at, .start_count = 1, .only_starts = true};
    CHECK_OK(cmq_reader_open(sink.store, &options, &reader));
    cmq_found item;
    cmq_found_batch batch = {.items = &item, .capacity = 1};
    bool end;
    CHECK_OK(cmq_reader_next(reader, &batch, &end));
    CHECK_INT(batch.count, 1);
    cmq_record_view view;
    CHECK_OK(cmq_record_parse(item.record, item.record_bytes, item.physical_offset, CMQ_RECORD_CHECK_BODY_CRC, &view));
    cmq_slice value;
    CHECK(cmq_property_find(view.properties, CMQ_NAME("TAGS"), &value));
    CHECK_SLICE(value, tag);
    static cmq_pop_room room;
    if (strcmp(tag, "ck") == 0) {
        cmq_pop_checkpoint read;
        CHECK_OK(cmq_pop_checkpoint_parse(view.body, &room, &read));
        CHECK_INT(read.start_offset, message);
        if (log_end != 0) CHECK_INT(read.log_end, log_end);
        CHECK_SLICE(read.group, "G");
    } else if (strcmp(tag, "bAck") == 0) {
        cmq_pop_batch_ack read;
        int64_t first = -1;
        CHECK_OK(cmq_pop_batch_ack_parse(view.body, &room, &read));
        CHECK(cmq_pop_next_offset(&read.list, &first));
        CHECK_INT(first, message);
    } else {
        cmq_pop_ack read;
        CHECK_OK(cmq_pop_ack_parse(view.body, &room, &read));
        CHECK_INT(read.offset, message);
    }
    if (strcmp(topic, CMQ_TOPIC_TIMER) == 0) {
        CHECK(cmq_property_find(view.properties, CMQ_NAME("REAL_TOPIC"), &value));
        CHECK_SLICE(value, "rmq_sys_REVIVE_LOG_C");
        CHECK(cmq_property_find(view.properties, CMQ_NAME("REAL_QID"), &value));
        CHECK_SLICE(value, "3");
    }
    cmq_found_batch_release(&batch);
    cmq_reader_close(reader);
}

static void records_go_to_the_timer_in_their_order(void)
{
    enum { ITEMS = CMQ_POP_STORES_MAX };
    start();
    cmq_pop_store_item items[ITEMS];
    uint32_t stored;
    int64_t end = -1;
    for (int64_t i = 0; i < ITEMS; i++) items[i] = i % 5 == 0 ? checkpoint(i, 60000) : ack(i, 60000);
    CHECK_OK(cmq_pop_sink_store(&sink, items, ITEMS, &stored, &end));
    CHECK_INT(stored, ITEMS);
    CHECK_OK(cmq_store_flush(sink.store));
    CHECK_INT(cmq_pop_sink_confirmed(&sink), end);
    for (int64_t i = 0; i < ITEMS; i++) check_record(CMQ_TOPIC_TIMER, 0, i, i % 5 == 0 ? "ck" : "ack", i);
    stop();
}

static void checkpoints_keep_the_log_end_of_their_pop(void)
{
    start();
    cmq_pop_store_item item = checkpoint(0, 60000);
    uint32_t stored;
    int64_t end;
    item.checkpoint.log_end = log_end = 12345;
    CHECK_OK(cmq_pop_sink_store(&sink, &item, 1, &stored, &end));
    check_record(CMQ_TOPIC_TIMER, 0, 0, "ck", 0);
    item = checkpoint(1, 60000);
    log_end = cmq_store_confirmed(sink.store);   /* it has none: as it is stored */
    CHECK_OK(cmq_pop_sink_store(&sink, &item, 1, &stored, &end));
    check_record(CMQ_TOPIC_TIMER, 0, 1, "ck", 1);
    log_end = 0;
    stop();
}

static void acks_of_one_checkpoint_are_one_record(void)
{
    static const int64_t offsets[] = {4, 2, 9};
    start();
    cmq_pop_store_item items[] = {ack(1, 60000), ack(-1, 60000), ack(7, 60000)};
    uint32_t stored;
    int64_t end;
    items[1].offsets = offsets;
    items[1].count = 3;
    CHECK_OK(cmq_pop_sink_store(&sink, items, 3, &stored, &end));
    CHECK_INT(stored, 3);
    check_record(CMQ_TOPIC_TIMER, 0, 0, "ack", 1);
    check_record(CMQ_TOPIC_TIMER, 0, 1, "bAck", 4);
    check_record(CMQ_TOPIC_TIMER, 0, 2, "ack", 7);
    stop();
}

/* Stored late, after a full disk say: nobody waits for a timer again. */
static void due_records_go_to_the_revive_topic(void)
{
    start();
    cmq_pop_store_item items[] = {ack(0, 60000), ack(1, -1000), checkpoint(2, 0),
                                  ack(3, -1),    ack(4, 60000), checkpoint(5, 60000)};
    uint32_t stored;
    int64_t end;
    CHECK_OK(cmq_pop_sink_store(&sink, items, 6, &stored, &end));
    CHECK_INT(stored, 6);
    check_record("rmq_sys_REVIVE_LOG_C", REVIVE_QUEUE, 0, "ack", 1);
    check_record("rmq_sys_REVIVE_LOG_C", REVIVE_QUEUE, 1, "ck", 2);
    check_record("rmq_sys_REVIVE_LOG_C", REVIVE_QUEUE, 2, "ack", 3);
    check_record(CMQ_TOPIC_TIMER, 0, 0, "ack", 0);
    check_record(CMQ_TOPIC_TIMER, 0, 1, "ack", 4);
    check_record(CMQ_TOPIC_TIMER, 0, 2, "ck", 5);
    stop();
}

static void records_before_a_refused_one_are_stored(void)
{
    start();
    cmq_pop_store_item items[] = {checkpoint(0, 60000), ack(0, 60000), checkpoint(9, 60000), ack(1, 60000)};
    items[2].checkpoint.broker = cmq_slice_of_text("a\x02");   /* no property can hold it */
    uint32_t stored;
    int64_t end;
    CHECK_STATUS(cmq_pop_sink_store(&sink, items, 4, &stored, &end), CMQ_ERR_ARGUMENT);
    CHECK_INT(stored, 2);
    check_record(CMQ_TOPIC_TIMER, 0, 1, "ack", 0);
    stop();
}

static void records_beyond_the_staging_limit_are_refused_with_a_reason(void)
{
    enum { STAGING_BYTES = 4096, ITEMS = 32 };
    kit_set_clock();
    cmq_store_options options = kit_options(kit_directory());
    options.flush = CMQ_FLUSH_SYNC;
    options.background = false;
    timer = (cmq_timer_options){.precision_ms = 1000, .delay_ms_max = DELAY_MS_MAX};
    sink = (cmq_pop_sink_log){.store = kit_open(&options),
                              .log = {.revive_topic = cmq_slice_of_text("rmq_sys_REVIVE_LOG_C"), .timer = &timer},
                              .clock = kit_clock()};
    cmq_store_set_staging(sink.store, STAGING_BYTES);
    cmq_pop_store_item items[ITEMS];
    for (uint32_t i = 0; i < ITEMS; i++) items[i] = checkpoint(i, 60000);
    uint32_t stored;
    int64_t end;
    CHECK_INT(cmq_pop_sink_store(&sink, items, ITEMS, &stored, &end), CMQ_AGAIN);
    CHECK(stored > 0 && stored < ITEMS);
    CHECK(strstr(cmq_last_error()->text, "waits for the disk") != NULL);
    CHECK_OK(cmq_store_flush(sink.store));
    CHECK_OK(cmq_pop_sink_store(&sink, items + stored, 1, &stored, &end));
    stop();
}

CMQ_TEST_MAIN(CMQ_TEST(records_go_to_the_timer_in_their_order), CMQ_TEST(checkpoints_keep_the_log_end_of_their_pop),
              CMQ_TEST(acks_of_one_checkpoint_are_one_record), CMQ_TEST(due_records_go_to_the_revive_topic),
              CMQ_TEST(records_before_a_refused_one_are_stored),
              CMQ_TEST(records_beyond_the_staging_limit_are_refused_with_a_reason))
