/* Tests csrc/broker/pop/flight/cmq_pop_fifo.c: a queue's batch and the group's progress move together; the counts
 * reported to clients; resets. */
#include "broker/pop/flight/cmq_pop_fifo.h"

#include <string.h>

#include "support/cmq_test.h"

#define NOW 1000000
#define INVISIBLE 60000
#define LATER (NOW + INVISIBLE)

static cmq_offset_key key;

static cmq_pop_fifo make(void)
{
    cmq_pop_fifo made;
    key = (cmq_offset_key){.group = cmq_slice_of_text("g"), .topic = cmq_slice_of_text("T"), .queue_id = 2};
    CHECK_OK(cmq_offsets_create(&made.offsets, 0));
    CHECK_OK(cmq_pop_fifo_table_create(&made.order, 0));
    return made;
}

static void destroy(cmq_pop_fifo *gone)
{
    cmq_pop_fifo_table_destroy(gone->order);
    cmq_offsets_destroy(gone->offsets);
}

/* Three messages from `from` on; the orderCountInfo, static. */
static const char *give(const cmq_pop_fifo *to, const char *attempt, int64_t from, int64_t now_ms)
{
    static uint8_t text[256];
    const int64_t offsets[] = {from, from + 1, from + 5};
    const cmq_pop_fifo_table_batch batch = {.attempt = cmq_slice_of_text(attempt),
                                            .pop_ms = now_ms,
                                            .invisible_ms = INVISIBLE,
                                            .offsets = offsets,
                                            .count = 3};
    cmq_text info = {.begin = text, .capacity = sizeof text - 1};
    CHECK_OK(cmq_pop_fifo_give(to, &key, &batch, from, CMQ_POP_NORMAL, now_ms, &info));
    CHECK(cmq_text_fits(&info));
    text[info.used] = '\0';
    return (const char *)text;
}

static void check_text(const char *actual, const char *expected)
{
    CHECK_BYTES(actual, strlen(actual), expected, strlen(expected));
}

/* Acks; returns whether to wake a waiting pop. */
static bool ack(const cmq_pop_fifo *to, int64_t offset, int64_t pop_ms, int64_t now_ms)
{
    bool wake = true;
    CHECK_OK(cmq_pop_fifo_ack(to, &key, offset, pop_ms, INVISIBLE, now_ms, &wake));
    return wake;
}

static void progress_follows_the_acks(void)
{
    cmq_pop_fifo to = make();
    check_text(give(&to, "", 10, NOW), "0 2 0");
    CHECK_INT(cmq_offsets_query(to.offsets, &key), 10);
    CHECK(!ack(&to, 11, NOW, NOW + 1));
    CHECK_INT(cmq_offsets_query(to.offsets, &key), 10);
    CHECK(!ack(&to, 10, NOW, NOW + 1));
    CHECK_INT(cmq_offsets_query(to.offsets, &key), 15);
    CHECK(!ack(&to, 10, NOW, NOW + 1));   /* again: consumed long ago */
    CHECK(ack(&to, 15, NOW, NOW + 1));
    CHECK_INT(cmq_offsets_query(to.offsets, &key), 16);
    destroy(&to);
}

static void the_last_message_that_time_freed_wakes_too(void)
{
    cmq_pop_fifo to = make();
    give(&to, "", 10, NOW);
    CHECK(ack(&to, 10, NOW, LATER));   /* the others are visible again */
    CHECK_INT(cmq_offsets_query(to.offsets, &key), 11);
    destroy(&to);
}

static void messages_that_come_again_are_counted(void)
{
    cmq_pop_fifo to = make();
    give(&to, "", 10, NOW);
    check_text(give(&to, "one", 10, LATER), "0 qo2%10 1;0 qo2%11 1;0 qo2%15 1;0 2 1");
    check_text(give(&to, "one", 10, LATER + 1), "0 qo2%10 1;0 qo2%11 1;0 qo2%15 1;0 2 1");
    check_text(give(&to, "", 11, LATER + INVISIBLE + 1), "0 qo2%11 2;0 2 0");
    destroy(&to);
}

static void strangers_and_latecomers(void)
{
    cmq_pop_fifo to = make();
    bool wake = true;
    give(&to, "", 10, NOW);
    CHECK_STATUS(cmq_pop_fifo_ack(&to, &key, 12, NOW, INVISIBLE, NOW, &wake), CMQ_ERR_NOT_FOUND);
    CHECK(!wake);
    give(&to, "", 10, LATER);
    CHECK(!ack(&to, 10, NOW, LATER));   /* of the pop before */
    CHECK_INT(cmq_offsets_query(to.offsets, &key), 10);
    destroy(&to);
}

static void without_a_batch_only_the_next_message_moves_the_group(void)
{
    cmq_pop_fifo to = make();
    CHECK(!ack(&to, 0, NOW, NOW));   /* a group that has begun nowhere */
    CHECK_INT(cmq_offsets_query(to.offsets, &key), CMQ_OFFSETS_NONE);
    CHECK_OK(cmq_offsets_commit(to.offsets, &key, 10));
    /* 10 and 11 are not known to be consumed: they are redelivered, and it behind them */
    CHECK(!ack(&to, 12, NOW, NOW));
    CHECK_INT(cmq_offsets_query(to.offsets, &key), 10);
    for (int64_t offset = 10; offset < 12; offset++) {
        bool wake = true;
        CHECK_STATUS(cmq_pop_fifo_ack(&to, &key, offset, NOW, INVISIBLE, NOW, &wake), CMQ_END);
        CHECK(!wake);
        CHECK_INT(cmq_offsets_query(to.offsets, &key), offset);   /* whoever knows that it was popped says so */
        CHECK_OK(cmq_pop_fifo_pass(&to, &key, offset, &wake));
        CHECK(wake);
    }
    CHECK_INT(cmq_offsets_query(to.offsets, &key), 12);
    destroy(&to);
}

static void a_change_is_counted_from_the_pop(void)
{
    cmq_pop_fifo to = make();
    bool wake = false;
    int64_t free_ms;
    give(&to, "", 10, NOW);
    CHECK_INT(cmq_pop_fifo_change(&to, &key, 10, NOW, 5000, NOW + 2000, &wake), 7000);
    CHECK(wake);
    CHECK(ack(&to, 11, NOW, NOW + 100) == false);
    CHECK(ack(&to, 15, NOW, NOW + 100) == false);
    CHECK(cmq_pop_fifo_table_blocks(to.order, &key, CMQ_SLICE_NONE, INVISIBLE, 0, NOW, &free_ms));
    CHECK_INT(free_ms, NOW + 7000);
    /* of another pop: reported, and nothing done */
    CHECK_INT(cmq_pop_fifo_change(&to, &key, 10, NOW - 1, 5000, NOW + 2000, &wake), 7001);
    CHECK(!wake);
    CHECK_INT(cmq_pop_fifo_change(&to, &key, 10, NOW, INT64_MAX, NOW, &wake), INT64_MAX - NOW);
    CHECK_INT(cmq_pop_fifo_change(&to, &key, 9, NOW, 5000, NOW, &wake), -1);
    CHECK(!wake);
    destroy(&to);
}

static void a_pending_reset_stays(void)
{
    cmq_pop_fifo to = make();
    give(&to, "", 10, NOW);
    CHECK_OK(cmq_offsets_reset(to.offsets, &key, 3, (cmq_offset_asker){0}));
    CHECK(!ack(&to, 10, NOW, NOW));
    CHECK_INT(cmq_offsets_query(to.offsets, &key), 3);
    give(&to, "", 20, LATER);
    CHECK_INT(cmq_offsets_query(to.offsets, &key), 3);
    destroy(&to);
}

/* After a kill the batch may be older than the progress: its acks were not written down, and come too late to be taken
 * again. */
static void batch_that_progress_has_passed_blocks_nothing(void)
{
    cmq_pop_fifo to = make();
    int64_t free_ms = 0;
    give(&to, "", 10, NOW);
    CHECK_OK(cmq_offsets_commit(to.offsets, &key, 11));
    CHECK(cmq_pop_fifo_table_blocks(to.order, &key, CMQ_SLICE_NONE, INVISIBLE, 11, NOW, &free_ms));
    CHECK_OK(cmq_offsets_commit(to.offsets, &key, 16));
    CHECK(!ack(&to, 10, NOW, NOW + 1));
    CHECK(!cmq_pop_fifo_table_blocks(to.order, &key, CMQ_SLICE_NONE, INVISIBLE, 16, NOW, &free_ms));
    destroy(&to);
}

static void rejected_batches_change_nothing(void)
{
    cmq_pop_fifo to = make();
    uint8_t text[64];
    cmq_text info = {.begin = text, .capacity = sizeof text};
    const cmq_pop_fifo_table_batch none = {.pop_ms = NOW, .invisible_ms = INVISIBLE};
    CHECK_STATUS(cmq_pop_fifo_give(&to, &key, &none, 5, CMQ_POP_NORMAL, NOW, &info), CMQ_ERR_ARGUMENT);
    CHECK_INT(cmq_pop_fifo_table_count(to.order), 0);
    CHECK_INT(info.used, 0);
    destroy(&to);
}

CMQ_TEST_MAIN(CMQ_TEST(progress_follows_the_acks), CMQ_TEST(the_last_message_that_time_freed_wakes_too),
              CMQ_TEST(messages_that_come_again_are_counted), CMQ_TEST(strangers_and_latecomers),
              CMQ_TEST(without_a_batch_only_the_next_message_moves_the_group),
              CMQ_TEST(a_change_is_counted_from_the_pop), CMQ_TEST(a_pending_reset_stays),
              CMQ_TEST(batch_that_progress_has_passed_blocks_nothing), CMQ_TEST(rejected_batches_change_nothing))
