/* Tests csrc/broker/pop/record/cmq_pop_record.c: bodies as upstream writes them, read and written; every order, long
 * names, escapes; malformed bodies; keys. Bodies that a real broker wrote: tests/golden/golden_pop.c. */
#include "broker/pop/record/cmq_pop_record.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/cmq_test.h"

static cmq_pop_room room;

static cmq_slice of(const char *text) { return cmq_slice_of_text(text); }

#define CHECK_SLICE(actual, expected) CHECK_BYTES((actual).data, (actual).bytes, expected, strlen(expected))

static uint8_t bytes[8192];
static cmq_text out;
static cmq_text *begin(void)
{
    out = (cmq_text){.begin = bytes, .capacity = sizeof bytes};
    return &out;
}
#define CHECK_OUT(expected) CHECK_BYTES(bytes, out.used, expected, strlen(expected))

static cmq_pop_checkpoint parsed(const char *body)
{
    cmq_pop_checkpoint checkpoint;
    CHECK_OK(cmq_pop_checkpoint_parse(of(body), &room, &checkpoint));
    return checkpoint;
}

static const char golden[] =
    "{\"bm\":0,\"bn\":\"broker-a\",\"c\":\"g_pop\",\"d\":[0,1,4],\"it\":10000,\"n\":3,\"pt\":1795260291350,\"q\":0,"
    "\"reviveTime\":1795260301350,\"ro\":0,\"so\":5,\"t\":\"PopT\"}";

static void a_checkpoint_is_read_and_written(void)
{
    const cmq_pop_checkpoint checkpoint = parsed(golden);
    CHECK_INT(checkpoint.start_offset, 5);
    CHECK_INT(checkpoint.pop_ms, INT64_C(1795260291350));
    CHECK_INT(checkpoint.invisible_ms, 10000);
    CHECK_INT(checkpoint.num, 3);
    CHECK_INT(checkpoint.re_puts, 0);
    CHECK_SLICE(checkpoint.topic, "PopT");
    CHECK_SLICE(checkpoint.group, "g_pop");
    CHECK_SLICE(checkpoint.broker, "broker-a");
    CHECK_INT(cmq_pop_revive_ms(&checkpoint), INT64_C(1795260301350));
    CHECK_INT(cmq_pop_checkpoint_deliver_ms(&checkpoint), INT64_C(1795260300350));
    CHECK_INT(cmq_pop_offset_at(&checkpoint, 2), 9);
    cmq_pop_checkpoint_write(begin(), &checkpoint);
    CHECK_OUT(golden);
    cmq_pop_checkpoint_key(begin(), &checkpoint);
    CHECK_OUT("PopT@0@5@g_pop@1795260291350@broker-a@ck");
}

static void a_checkpoint_that_was_put_again(void)
{
    const char *text = "{\"bm\":0,\"bn\":\"b\",\"c\":\"g\",\"d\":[0],\"it\":20000,\"n\":1,\"pt\":1000,\"q\":3,"
                       "\"reviveTime\":21000,\"ro\":0,"
                       "\"rp\":\"2\",\"so\":7,\"t\":\"T\"}";
    const cmq_pop_checkpoint checkpoint = parsed(text);
    CHECK_INT(checkpoint.re_puts, 2);
    cmq_pop_checkpoint_write(begin(), &checkpoint);
    CHECK_OUT(text);
    CHECK_INT(parsed("{\"t\":\"T\",\"c\":\"g\",\"rp\":\"often\"}").re_puts, 127);
    CHECK_INT(parsed("{\"t\":\"T\",\"c\":\"g\",\"rp\":\"-1\"}").re_puts, 127);
    CHECK_INT(parsed("{\"t\":\"T\",\"c\":\"g\",\"rp\":null}").re_puts, 0);
}

static void the_logs_end_is_written_where_it_is_known(void)
{
    const char *text = "{\"bm\":0,\"bn\":\"b\",\"c\":\"g\",\"d\":[0],\"it\":20000,\"logEnd\":123456789012,\"n\":1,"
                       "\"pt\":1000,\"q\":3,\"reviveTime\":21000,\"ro\":0,"
                       "\"so\":7,\"t\":\"T\"}";
    const cmq_pop_checkpoint checkpoint = parsed(text);
    CHECK_INT(checkpoint.log_end, INT64_C(123456789012));
    cmq_pop_checkpoint_write(begin(), &checkpoint);
    CHECK_OUT(text);
    CHECK_INT(parsed("{\"t\":\"T\",\"c\":\"g\",\"logEnd\":-5}").log_end, 0);
}

static void without_differences_offsets_follow_each_other(void)
{
    const cmq_pop_checkpoint checkpoint = parsed("{\"t\":\"T\",\"c\":\"g\",\"so\":10,\"n\":3,\"d\":null}");
    CHECK(checkpoint.diffs == NULL);
    CHECK_INT(cmq_pop_offset_at(&checkpoint, 2), 12);
    cmq_pop_checkpoint_write(begin(), &checkpoint);
    CHECK_OUT("{\"bm\":0,\"c\":\"g\",\"d\":[0,1,2],\"it\":0,\"n\":3,\"pt\":0,\"q\":0,\"reviveTime\":0,\"ro\":0,\"so\":"
              "10,\"t\":\"T\"}");
}

static void any_order_long_names_and_strangers(void)
{
    const cmq_pop_checkpoint checkpoint =
        parsed(" { 'topic' : \"T\\u0041\\n\", \"CId\":\"g\", \"x\":{\"y\":[1,{\"z\":\"}\"}]}, \"num\":\"2\","
               "\"queueOffsetDiff\":[ 0 , 6 ],\"startOffset\":4,\"popTime\":9,\"invisibleTime\":-3,\"queueId\":7,"
               "\"reviveTime\":77,\"brokerName\":null,\"bitMap\":-1,\"reviveOffset\":12,} ");
    CHECK_SLICE(checkpoint.topic, "TA\n");
    CHECK_SLICE(checkpoint.group, "g");
    CHECK_INT(checkpoint.broker.bytes, 0);
    CHECK_INT(checkpoint.num, 2);
    CHECK_INT(checkpoint.diffs[1], 6);
    CHECK_INT(checkpoint.bits, UINT32_MAX);
    CHECK_INT(checkpoint.revive_offset, 12);
    CHECK_INT(cmq_pop_revive_ms(&checkpoint), 6);
    cmq_pop_checkpoint_write(begin(), &checkpoint);
    CHECK_OUT("{\"bm\":-1,\"c\":\"g\",\"d\":[0,6],\"it\":-3,\"n\":2,\"pt\":9,\"q\":7,\"reviveTime\":6,\"ro\":12,\"so\":"
              "4,\"t\":\"TA\\n\"}");
}

static void an_ack_is_read_and_written(void)
{
    const char *text = "{\"ao\":3,\"bn\":\"broker-a\",\"c\":\"g_pop\",\"pt\":1795260291350,\"q\":1,\"so\":0,\"t\":\"%"
                       "RETRY%g_pop_PopT\"}";
    cmq_pop_ack ack;
    CHECK_OK(cmq_pop_ack_parse(of(text), &room, &ack));
    CHECK_INT(ack.offset, 3);
    CHECK_INT(ack.queue_id, 1);
    CHECK_SLICE(ack.topic, "%RETRY%g_pop_PopT");
    cmq_pop_ack_write(begin(), &ack);
    CHECK_OUT(text);
    cmq_pop_ack_key(begin(), &ack);
    CHECK_OUT("%RETRY%g_pop_PopT@1@3@g_pop@1795260291350@broker-a@ack");
    CHECK_OK(cmq_pop_ack_parse(of("{\"ackOffset\":8,\"consumerGroup\":\"g\",\"topic\":\"T\"}"), &room, &ack));
    CHECK_INT(ack.offset, 8);
}

static void a_batch_is_read_and_written(void)
{
    const int64_t offsets[] = {4, 5, 11}, *expected = offsets;
    const char *text = "{\"ao\":-1,\"aol\":[4,5,11],\"bn\":\"b\",\"c\":\"g\",\"pt\":17,\"q\":0,\"so\":4,\"t\":\"T\"}";
    const cmq_pop_batch_ack batch = {
        .ack = {.topic = of("T"), .group = of("g"), .broker = of("b"), .start_offset = 4, .pop_ms = 17, .offset = -1},
        .offsets = offsets,
        .count = 3};
    cmq_pop_batch_ack again;
    cmq_pop_batch_ack_write(begin(), &batch);
    CHECK_OUT(text);
    cmq_pop_ack_key(begin(), &batch.ack);
    CHECK_OUT("T@0@-1@g@17@b@ack");
    CHECK_OK(cmq_pop_batch_ack_parse(of("{\"t\":\"T\",\"c\":\"g\",\"aol\": [ 4 ,5,\t11 , ],\"so\":4,\"pt\":17}"), &room,
                                     &again));
    CHECK_INT(again.count, 3);
    for (int64_t offset; cmq_pop_next_offset(&again.list, &offset); expected++) CHECK_INT(offset, *expected);
    CHECK(expected == offsets + 3);
    CHECK_OK(cmq_pop_batch_ack_parse(of("{\"t\":\"T\",\"c\":\"g\",\"aol\":[]}"), &room, &again));
    CHECK_INT(again.count, 0);
    int64_t none;
    CHECK(!cmq_pop_next_offset(&again.list, &none));
}

static void malformed_bodies_are_rejected(void)
{
    static const char *const wrong[] = {
        "",
        "{",
        "[]",
        "null",
        "{}",
        "{\"t\":\"T\"}",
        "{\"c\":\"g\"}",
        "{\"t\":\"\",\"c\":\"g\"}",
        "{\"t\":\"T\",\"c\":\"g\"}x",
        "{\"t\":\"T\",\"c\":\"g\"",
        "{\"t\":\"T\",\"c\":\"g\",\"so\":-1}",
        "{\"t\":\"T\",\"c\":\"g\",\"so\":1.5}",
        "{\"t\":\"T\",\"c\":\"g\",\"so\":9223372036854775807}",
        "{\"t\":\"T\",\"c\":\"g\",\"so\":99999999999999999999}",
        "{\"t\":\"T\",\"c\":\"g\",\"so\":true}",
        "{\"t\":\"T\",\"c\":\"g\",\"so\":[]}",
        "{\"t\":\"T\",\"c\":\"g\",\"pt\":-1}",
        "{\"t\":\"T\",\"c\":\"g\",\"pt\":9007199254740993}",
        "{\"t\":\"T\",\"c\":\"g\",\"it\":9007199254740993}",
        "{\"t\":\"T\",\"c\":\"g\",\"it\":-9007199254740993}",
        "{\"t\":\"T\",\"c\":\"g\",\"q\":-1}",
        "{\"t\":\"T\",\"c\":\"g\",\"q\":2147483648}",
        "{\"t\":\"T\",\"c\":\"g\",\"n\":33}",
        "{\"t\":\"T\",\"c\":\"g\",\"n\":-1}",
        "{\"t\":\"T\",\"c\":\"g\",\"n\":2,\"d\":[0]}",
        "{\"t\":\"T\",\"c\":\"g\",\"d\":[-1]}",
        "{\"t\":\"T\",\"c\":\"g\",\"d\":[2147483648]}",
        "{\"t\":\"T\",\"c\":\"g\",\"d\":[null]}",
        "{\"t\":\"T\",\"c\":\"g\",\"d\":[0 1]}",
        "{\"t\":\"T\",\"c\":\"g\",\"d\":[\"0\"]}",
        "{\"t\":\"T\",\"c\":\"g\",\"d\":{}}",
        "{\"t\":\"T\",\"c\":\"g\",\"d\":3}",
        "{\"t\":\"T\",\"c\":\"g\",\"d\":[0",
        "{\"t\":\"T\",\"c\":\"g\",\"bm\":4294967296}",
        "{\"t\":\"T\",\"c\":\"g\",\"ro\":-1}",
        "{\"t\":\"T\",\"c\":\"g\",\"n\":1,\"d\":[0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0]}",
    };
    cmq_pop_checkpoint checkpoint;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        if (cmq_pop_checkpoint_parse(of(wrong[i]), &room, &checkpoint) != CMQ_ERR_CORRUPT)
            cmq_test_fail(__FILE__, __LINE__, "'%s' was taken", wrong[i]);
        CHECK_INT(checkpoint.num, 0);
        CHECK(checkpoint.topic.data == NULL);
    }
    cmq_pop_ack ack;
    CHECK_STATUS(cmq_pop_ack_parse(of("{\"t\":\"T\",\"c\":\"g\",\"ao\":-1}"), &room, &ack), CMQ_ERR_CORRUPT);
    cmq_pop_batch_ack batch;
    CHECK_STATUS(cmq_pop_batch_ack_parse(of("{\"t\":\"T\",\"c\":\"g\"}"), &room, &batch), CMQ_ERR_CORRUPT);
    CHECK_STATUS(cmq_pop_batch_ack_parse(of("{\"t\":\"T\",\"c\":\"g\",\"aol\":null}"), &room, &batch), CMQ_ERR_CORRUPT);
    CHECK_STATUS(
        cmq_pop_batch_ack_parse(of("{\"t\":\"T\",\"c\":\"g\",\"aol\":[\"\\u0039999999999999999999\"]}"), &room, &batch),
        CMQ_ERR_CORRUPT);
}

static void names_and_bodies_that_are_too_long(void)
{
    cmq_pop_checkpoint checkpoint;
    char body[400];
    snprintf(body, sizeof body, "{\"c\":\"g\",\"t\":\"%0255d\"}", 0);
    CHECK_OK(cmq_pop_checkpoint_parse(of(body), &room, &checkpoint));
    snprintf(body, sizeof body, "{\"c\":\"g\",\"t\":\"%0256d\"}", 0);
    CHECK_STATUS(cmq_pop_checkpoint_parse(of(body), &room, &checkpoint), CMQ_ERR_CORRUPT);
    char *large = malloc(CMQ_POP_BODY_BYTES_MAX + 1);
    CHECK(large != NULL);
    memset(large, ' ', CMQ_POP_BODY_BYTES_MAX + 1);
    memcpy(large, "{\"c\":\"g\",\"t\":\"T\"}", 17);
    CHECK_OK(cmq_pop_checkpoint_parse((cmq_slice){(uint8_t *)large, CMQ_POP_BODY_BYTES_MAX}, &room, &checkpoint));
    CHECK_STATUS(
        cmq_pop_checkpoint_parse((cmq_slice){(uint8_t *)large, CMQ_POP_BODY_BYTES_MAX + 1}, &room, &checkpoint),
        CMQ_ERR_CORRUPT);
    free(large);
}

/* ---- records ---- */

static const cmq_timer_options timer;
static const cmq_pop_log store_log = {.revive_topic = {(const uint8_t *)"rmq_sys_REVIVE_LOG_DefaultCluster", 33},
                                      .timer = &timer};
static cmq_pop_record_room record;

/* Of the worked example in the specification, where a broker's bytes are. */
static void a_checkpoint_becomes_a_timer_message(void)
{
    const cmq_pop_checkpoint checkpoint = parsed(golden);
    cmq_append append;
    CHECK_OK(cmq_pop_checkpoint_append(&store_log, 6, &checkpoint, INT64_C(1795260291396), &record, &append));
    CHECK_SLICE(append.common.topic, "rmq_sys_wheel_timer");
    CHECK_INT(append.common.queue_id, 0);
    CHECK_INT(append.common.born_timestamp_ms, INT64_C(1795260291396));
    CHECK_INT(append.count, 1);
    CHECK(append.no_wait);
    CHECK_SLICE(append.bodies.one, golden);
    CHECK_SLICE(append.properties.one, "REAL_TOPIC\x01rmq_sys_REVIVE_LOG_DefaultCluster\x02TIMER_DELIVER_MS\x01"
                                       "1795260300350\x02UNIQ_KEY\x01"
                                       "PopT@0@5@g_pop@1795260291350@broker-a@ck\x02TAGS\x01"
                                       "ck\x02TIMER_OUT_MS\x01"
                                       "1795260300000\x02REAL_QID\x01"
                                       "6\x02");
}

static void an_ack_whose_time_has_come_goes_to_the_revive_topic(void)
{
    const cmq_pop_ack ack = {
        .topic = of("T"), .group = of("g"), .broker = of("b"), .pop_ms = 1000, .invisible_ms = 500, .offset = 3};
    cmq_append append;
    CHECK_OK(cmq_pop_ack_append(&store_log, 2, &ack, 1500, &record, &append));
    CHECK_SLICE(append.common.topic, "rmq_sys_REVIVE_LOG_DefaultCluster");
    CHECK_INT(append.common.queue_id, 2);
    CHECK_SLICE(append.bodies.one, "{\"ao\":3,\"bn\":\"b\",\"c\":\"g\",\"pt\":1000,\"q\":0,\"so\":0,\"t\":\"T\"}");
    CHECK_SLICE(append.properties.one, "TIMER_DELIVER_MS\x01"
                                       "1500\x02UNIQ_KEY\x01"
                                       "T@0@3@g@1000@b@ack\x02TAGS\x01"
                                       "ack\x02");
    CHECK_OK(cmq_pop_ack_append(&store_log, 2, &ack, 1499, &record, &append));
    CHECK_SLICE(append.common.topic, "rmq_sys_wheel_timer");
    const int64_t back_ms = INT64_C(10) * 24 * 3600 * 1000;   /* the clock was set back beyond the timers' horizon */
    CHECK_OK(cmq_pop_ack_append(&store_log, 2, &ack, 1499 - back_ms, &record, &append));
    CHECK_SLICE(append.common.topic, "rmq_sys_wheel_timer");
}

static void a_batch_becomes_a_timer_message(void)
{
    const int64_t offsets[] = {4, 5};
    const cmq_pop_batch_ack batch = {
        .ack = {.topic = of("T"), .group = of("g"), .broker = of("b"), .start_offset = 4, .pop_ms = 1000, .offset = -1},
        .offsets = offsets,
        .count = 2};
    cmq_append append;
    CHECK_OK(cmq_pop_batch_ack_append(&store_log, 0, &batch, 2000, &record, &append));
    CHECK_SLICE(append.bodies.one,
                "{\"ao\":-1,\"aol\":[4,5],\"bn\":\"b\",\"c\":\"g\",\"pt\":1000,\"q\":0,\"so\":4,\"t\":\"T\"}");
    CHECK_SLICE(append.properties.one, "TIMER_DELIVER_MS\x01"
                                       "1000\x02UNIQ_KEY\x01"
                                       "T@0@-1@g@1000@b@ack\x02TAGS\x01"
                                       "bAck\x02");
}

static void records_that_the_log_cannot_take(void)
{
    char long_name[2048];
    memset(long_name, 'n', sizeof long_name);
    cmq_pop_checkpoint checkpoint = {
        .topic = of("T"), .group = of("g"), .broker = of("b"), .num = 1, .pop_ms = 1000, .invisible_ms = 10000};
    cmq_append append;
    checkpoint.broker = of("a\x02");
    CHECK_STATUS(cmq_pop_checkpoint_append(&store_log, 0, &checkpoint, 1000, &record, &append), CMQ_ERR_ARGUMENT);
    checkpoint.broker = (cmq_slice){.data = (const uint8_t *)long_name, .bytes = sizeof long_name};
    CHECK_STATUS(cmq_pop_checkpoint_append(&store_log, 0, &checkpoint, 1000, &record, &append), CMQ_ERR_TOO_LARGE);
}

CMQ_TEST_MAIN(CMQ_TEST(a_checkpoint_is_read_and_written), CMQ_TEST(a_checkpoint_that_was_put_again),
              CMQ_TEST(the_logs_end_is_written_where_it_is_known),
              CMQ_TEST(without_differences_offsets_follow_each_other), CMQ_TEST(any_order_long_names_and_strangers),
              CMQ_TEST(an_ack_is_read_and_written), CMQ_TEST(a_batch_is_read_and_written),
              CMQ_TEST(malformed_bodies_are_rejected), CMQ_TEST(names_and_bodies_that_are_too_long),
              CMQ_TEST(a_checkpoint_becomes_a_timer_message),
              CMQ_TEST(an_ack_whose_time_has_come_goes_to_the_revive_topic), CMQ_TEST(a_batch_becomes_a_timer_message),
              CMQ_TEST(records_that_the_log_cannot_take))
