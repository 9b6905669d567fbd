/* Tests csrc/broker/pop/flight/cmq_pop_fifo_table.c: blocking and freeing a queue, counts, attempts, limits, going
 * through all; random histories on virtual time against a plain model. Threads: yes. */
#include "broker/pop/flight/cmq_pop_fifo_table.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/cmq_test.h"

#define NOW 1000000
#define INVISIBLE 60000

static cmq_offset_key key_of(int32_t queue_id)
{
    return (cmq_offset_key){.group = cmq_slice_of_text("g"), .topic = cmq_slice_of_text("T"), .queue_id = queue_id};
}

static cmq_pop_fifo_table *make_order(uint32_t queues_max)
{
    cmq_pop_fifo_table *order;
    CHECK_OK(cmq_pop_fifo_table_create(&order, queues_max));
    return order;
}

/* A pop of `count` messages from `first` on at `now_ms`, for a minute. */
static cmq_pop_fifo_table_counts pop(cmq_pop_fifo_table *order, const cmq_offset_key *key, const char *attempt,
                                     int64_t first, uint32_t count, int64_t now_ms)
{
    int64_t offsets[CMQ_POP_ORDER_BATCH_MAX];
    cmq_pop_fifo_table_counts counts;
    for (uint32_t i = 0; i < count; i++) offsets[i] = first + i;
    const cmq_pop_fifo_table_batch batch = {.attempt = cmq_slice_of_text(attempt),
                                            .pop_ms = now_ms,
                                            .invisible_ms = INVISIBLE,
                                            .offsets = offsets,
                                            .count = count};
    CHECK_OK(cmq_pop_fifo_table_update(order, key, &batch, now_ms, &counts));
    return counts;
}

/* When the queue is free; 0: it is now. */
static int64_t blocked_until(cmq_pop_fifo_table *order, const cmq_offset_key *key, const char *attempt, int64_t now_ms)
{
    int64_t free_ms = 0;
    const bool blocked =
        cmq_pop_fifo_table_blocks(order, key, cmq_slice_of_text(attempt), INVISIBLE, 0, now_ms, &free_ms);
    CHECK_INT(blocked, free_ms > now_ms);
    return free_ms;
}

static int64_t ack(cmq_pop_fifo_table *order, const cmq_offset_key *key, int64_t offset, int64_t pop_ms)
{
    int64_t next = -1;
    CHECK_OK(cmq_pop_fifo_table_ack(order, key, offset, pop_ms, &next));
    return next;
}

static void a_batch_blocks_its_queue_until_it_is_acked(void)
{
    cmq_pop_fifo_table *order = make_order(0);
    const cmq_offset_key key = key_of(0), other = key_of(1);
    CHECK_INT(blocked_until(order, &key, "", NOW), 0);
    CHECK_INT(pop(order, &key, "", 5, 3, NOW).least, 0);
    CHECK_INT(blocked_until(order, &key, "", NOW), NOW + INVISIBLE);
    CHECK_INT(blocked_until(order, &other, "", NOW), 0);
    CHECK_INT(ack(order, &key, 6, NOW), 5);   /* not the first: nothing moves */
    CHECK_INT(ack(order, &key, 6, NOW), 5);   /* twice is once */
    CHECK_INT(ack(order, &key, 5, NOW), 7);
    CHECK_INT(blocked_until(order, &key, "", NOW + 1), NOW + INVISIBLE);
    CHECK_INT(ack(order, &key, 7, NOW), 8);
    CHECK_INT(blocked_until(order, &key, "", NOW + 1), 0);
    cmq_pop_fifo_table_destroy(order);
}

static void time_frees_it_and_the_same_messages_count_once_more(void)
{
    cmq_pop_fifo_table *order = make_order(0);
    const cmq_offset_key key = key_of(0);
    pop(order, &key, "", 5, 2, NOW);
    CHECK_INT(blocked_until(order, &key, "", NOW + INVISIBLE - 1), NOW + INVISIBLE);
    CHECK_INT(blocked_until(order, &key, "", NOW + INVISIBLE), 0);
    cmq_pop_fifo_table_counts counts = pop(order, &key, "", 5, 3, NOW + INVISIBLE);
    CHECK_INT(counts.times[0], 1);
    CHECK_INT(counts.times[1], 1);
    CHECK_INT(counts.times[2], 0);
    CHECK_INT(counts.least, 0);
    CHECK_INT(ack(order, &key, 5, NOW + INVISIBLE), 6);
    counts = pop(order, &key, "", 6, 2, NOW + 2 * INVISIBLE);
    CHECK_INT(counts.times[0], 2);
    CHECK_INT(counts.times[1], 1);
    CHECK_INT(counts.least, 1);
    cmq_pop_fifo_table_destroy(order);
}

static void an_ack_of_an_earlier_pop_does_nothing(void)
{
    cmq_pop_fifo_table *order = make_order(0);
    const cmq_offset_key key = key_of(0);
    int64_t next = -7;
    /* nothing is known, as after 24 hours */
    CHECK_STATUS(cmq_pop_fifo_table_ack(order, &key, 41, NOW, &next), CMQ_END);
    CHECK_INT(next, 42);
    next = -7;
    pop(order, &key, "", 5, 2, NOW);
    pop(order, &key, "", 5, 2, NOW + INVISIBLE);
    const uint64_t version = cmq_pop_fifo_table_version(order);
    CHECK_STATUS(cmq_pop_fifo_table_ack(order, &key, 5, NOW, &next), CMQ_AGAIN);
    CHECK_STATUS(cmq_pop_fifo_table_ack(order, &key, 4, NOW + INVISIBLE, &next), CMQ_ERR_NOT_FOUND);
    CHECK_STATUS(cmq_pop_fifo_table_ack(order, &key, 7, NOW + INVISIBLE, &next), CMQ_ERR_NOT_FOUND);
    CHECK(!cmq_pop_fifo_table_change(order, &key, 5, NOW, NOW));
    CHECK(!cmq_pop_fifo_table_change(order, &key, 7, NOW + INVISIBLE, NOW));
    CHECK_INT(next, -7);
    CHECK_INT(cmq_pop_fifo_table_version(order), version);
    CHECK_INT(blocked_until(order, &key, "", NOW + INVISIBLE), NOW + 2 * INVISIBLE);
    cmq_pop_fifo_table_destroy(order);
}

static void the_same_attempt_gets_the_batch_again(void)
{
    cmq_pop_fifo_table *order = make_order(0);
    const cmq_offset_key key = key_of(0);
    pop(order, &key, "", 5, 2, NOW);
    CHECK(blocked_until(order, &key, "", NOW) > 0);   /* none is no attempt */
    pop(order, &key, "one", 5, 2, NOW + INVISIBLE);
    CHECK(blocked_until(order, &key, "two", NOW + INVISIBLE) > 0);
    CHECK(blocked_until(order, &key, "", NOW + INVISIBLE) > 0);
    CHECK_INT(blocked_until(order, &key, "one", NOW + INVISIBLE), 0);
    cmq_pop_fifo_table_counts counts = pop(order, &key, "one", 5, 3, NOW + INVISIBLE + 1);
    CHECK_INT(counts.times[0], 1);   /* as in the attempt before */
    CHECK_INT(counts.times[2], 0);
    counts = pop(order, &key, "two", 5, 3, NOW + 3 * INVISIBLE);
    CHECK_INT(counts.times[0], 2);
    CHECK_INT(counts.times[2], 1);
    cmq_pop_fifo_table_destroy(order);
}

static void a_deleted_topic_or_group_takes_its_batches_along(void)
{
    static const char *const gone[][2] = {{"T", ""}, {"", "g"}, {"T", "g"}};
    for (int i = 0; i < 3; i++) {
        cmq_pop_fifo_table *order = make_order(0);
        const cmq_offset_key kept = {.group = cmq_slice_of_text("other"), .topic = cmq_slice_of_text("U")};
        for (int32_t queue_id = 0; queue_id < 100; queue_id++) {
            const cmq_offset_key key = key_of(queue_id);
            pop(order, &key, "", 5, 2, NOW);
        }
        pop(order, &kept, "", 5, 2, NOW);
        cmq_pop_fifo_table_forget(order, cmq_slice_of_text(gone[i][0]), cmq_slice_of_text(gone[i][1]));
        CHECK_INT(cmq_pop_fifo_table_count(order), 1);
        CHECK(cmq_pop_fifo_table_clear(order, &kept));
        cmq_pop_fifo_table_destroy(order);
    }
}

static void a_change_moves_when_it_is_free(void)
{
    cmq_pop_fifo_table *order = make_order(0);
    const cmq_offset_key key = key_of(0);
    pop(order, &key, "", 5, 2, NOW);
    CHECK(cmq_pop_fifo_table_change(order, &key, 5, NOW, NOW + 10 * INVISIBLE));
    CHECK_INT(blocked_until(order, &key, "", NOW), NOW + 10 * INVISIBLE);
    CHECK(cmq_pop_fifo_table_change(order, &key, 5, NOW, NOW + 10));
    CHECK_INT(blocked_until(order, &key, "", NOW), NOW + INVISIBLE);
    CHECK(cmq_pop_fifo_table_change(order, &key, 6, NOW, NOW + 20));
    CHECK_INT(blocked_until(order, &key, "", NOW), NOW + 20);
    CHECK_INT(blocked_until(order, &key, "", NOW + 20), 0);
    CHECK(cmq_pop_fifo_table_clear(order, &key));
    CHECK(!cmq_pop_fifo_table_clear(order, &key));
    CHECK_INT(blocked_until(order, &key, "", NOW), 0);
    CHECK_INT(cmq_pop_fifo_table_count(order), 0);
    cmq_pop_fifo_table_destroy(order);
}

static void impossible_batches_are_refused(void)
{
    cmq_pop_fifo_table *order = make_order(2);
    static const char long_text[CMQ_OFFSETS_NAME_BYTES_MAX + 1];
    const cmq_slice too_long = {.data = (const uint8_t *)long_text, .bytes = sizeof long_text};
    const int64_t falling[] = {5, 5}, negative[] = {-1}, last[] = {INT64_MAX};
    int64_t many[CMQ_POP_ORDER_BATCH_MAX + 1];
    for (uint32_t i = 0; i <= CMQ_POP_ORDER_BATCH_MAX; i++) many[i] = i;
    const struct {
        cmq_offset_key key;
        cmq_pop_fifo_table_batch batch;
    } wrong[] = {
        {{.topic = cmq_slice_of_text("T")}, {.offsets = many, .count = 1}},
        {{.group = cmq_slice_of_text("g")}, {.offsets = many, .count = 1}},
        {{.group = too_long, .topic = cmq_slice_of_text("T")}, {.offsets = many, .count = 1}},
        {{.group = cmq_slice_of_text("g"), .topic = too_long}, {.offsets = many, .count = 1}},
        {key_of(-1), {.offsets = many, .count = 1}},
        {key_of(0), {.offsets = many, .count = 1, .attempt = too_long}},
        {key_of(0), {.offsets = many, .count = 1, .pop_ms = -1}},
        {key_of(0), {.offsets = many, .count = 0}},
        {key_of(0), {.offsets = many, .count = CMQ_POP_ORDER_BATCH_MAX + 1}},
        {key_of(0), {.offsets = falling, .count = 2}},
        {key_of(0), {.offsets = negative, .count = 1}},
        {key_of(0), {.offsets = last, .count = 1}},
    };
    cmq_pop_fifo_table_counts counts;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        CHECK_STATUS(cmq_pop_fifo_table_update(order, &wrong[i].key, &wrong[i].batch, NOW, &counts), CMQ_ERR_ARGUMENT);
    CHECK_INT(cmq_pop_fifo_table_count(order), 0);
    static cmq_pop_fifo_table_item item = {.queue_id = 0, .count = 1, .times = {-1}};
    item.group = cmq_slice_of_text("g");
    item.topic = cmq_slice_of_text("T");
    CHECK_STATUS(cmq_pop_fifo_table_restore(order, &item), CMQ_ERR_ARGUMENT);
    for (int32_t i = 0; i < 2; i++) {
        const cmq_offset_key key = key_of(i);
        pop(order, &key, "", 0, CMQ_POP_ORDER_BATCH_MAX, NOW);
    }
    const cmq_offset_key third = key_of(2), first = key_of(0);
    const cmq_pop_fifo_table_batch batch = {.pop_ms = NOW, .invisible_ms = INT64_MAX, .offsets = many, .count = 1};
    CHECK_STATUS(cmq_pop_fifo_table_update(order, &third, &batch, NOW, &counts), CMQ_ERR_LIMIT);
    CHECK_OK(cmq_pop_fifo_table_update(order, &first, &batch, NOW, &counts));
    CHECK_INT(blocked_until(order, &first, "", NOW), INT64_MAX);   /* beyond the end of time */
    cmq_pop_fifo_table_destroy(order);
}

static void all_are_met_also_while_some_go(void)
{
    enum { COUNT = 1000 };
    cmq_pop_fifo_table *order = make_order(0);
    static cmq_pop_fifo_table_item item;
    static bool met[COUNT];
    for (int32_t i = 0; i < COUNT; i++) {
        const cmq_offset_key key = key_of(i);
        pop(order, &key, "", i, 1, NOW);
    }
    memset(met, 0, sizeof met);
    uint32_t cursor = 0, count = 0;
    while (cmq_pop_fifo_table_next(order, &cursor, &item)) {
        CHECK(!met[item.queue_id]);
        met[item.queue_id] = true;
        CHECK_INT(item.offsets[0], item.queue_id);
        const cmq_offset_key gone = key_of(item.queue_id ^ 1);
        if (count++ % 4 == 0 && !met[gone.queue_id]) CHECK(cmq_pop_fifo_table_clear(order, &gone));
    }
    for (int32_t i = 0; i < COUNT; i++) {
        const cmq_offset_key key = key_of(i);
        CHECK_INT(met[i], blocked_until(order, &key, "", NOW) > 0);
    }
    cmq_pop_fifo_table_destroy(order);
}

/* ---- random histories ---- */

enum { QUEUES = 3, OFFSETS = 48, ATTEMPTS = 3 };

/* One queue's batch, offset by offset. */
typedef struct model {
    bool has_batch;
    int attempt;                     /* 0: none */
    int64_t pop_ms;
    bool in[OFFSETS], acked[OFFSETS];
    int64_t visible_ms[OFFSETS];
    int32_t times[OFFSETS];
    int64_t committed;
} model;

static const char *const attempt_texts[ATTEMPTS] = {"", "first", "second"};

static int64_t model_free_ms(const model *of)
{
    int64_t latest = 0;
    for (int i = 0; i < OFFSETS; i++)
        if (of->has_batch && of->in[i] && !of->acked[i] && of->visible_ms[i] > latest) latest = of->visible_ms[i];
    return latest;
}

static int64_t model_next(const model *of)
{
    int64_t behind = 0;
    for (int i = 0; i < OFFSETS; i++) {
        if (!of->in[i]) continue;
        if (!of->acked[i]) return i;
        behind = i + 1;
    }
    return behind;
}

/* Some messages from the committed offset on, as a filter would leave them; 0 at the end of the queue. */
static uint32_t some_offsets(const model *of, int64_t *offsets)
{
    uint32_t count = 0;
    const uint64_t most = 1 + cmq_test_random_below(8);
    for (int64_t i = of->committed; i < OFFSETS && count < most; i++)
        if (cmq_test_random_below(4) > 0) offsets[count++] = i;
    return count;
}

static void random_pop(cmq_pop_fifo_table *order, const cmq_offset_key *key, model *of, int64_t now_ms)
{
    const int attempt = (int)cmq_test_random_below(ATTEMPTS);
    const bool same = of->has_batch && attempt > 0 && attempt == of->attempt;
    const int64_t free_ms = same ? 0 : model_free_ms(of);
    int64_t found_ms = 0, offsets[8];
    CHECK_INT(cmq_pop_fifo_table_blocks(order, key, cmq_slice_of_text(attempt_texts[attempt]), 1, 0, now_ms, &found_ms),
              free_ms > now_ms);
    if (free_ms > now_ms) {
        CHECK_INT(found_ms, free_ms);
        return;
    }
    const int64_t invisible_ms = 1 + (int64_t)cmq_test_random_below(100);
    const cmq_pop_fifo_table_batch batch = {.attempt = cmq_slice_of_text(attempt_texts[attempt]),
                                       .pop_ms = now_ms,
                                       .invisible_ms = invisible_ms,
                                       .offsets = offsets,
                                       .count = some_offsets(of, offsets)};
    if (batch.count == 0) return;
    model made = {.has_batch = true, .attempt = attempt, .pop_ms = now_ms, .committed = of->committed};
    cmq_pop_fifo_table_counts counts;
    CHECK_OK(cmq_pop_fifo_table_update(order, key, &batch, now_ms, &counts));
    int32_t least = INT32_MAX;
    for (uint32_t i = 0; i < batch.count; i++) {
        const int64_t at = offsets[i];
        made.in[at] = true;
        made.visible_ms[at] = now_ms + invisible_ms;
        made.times[at] = !of->has_batch || !of->in[at] ? 0 : of->times[at] + !same;
        if (made.times[at] < least) least = made.times[at];
        CHECK_INT(counts.times[i], made.times[at]);
    }
    CHECK_INT(counts.least, least);
    *of = made;
}

static void random_ack(cmq_pop_fifo_table *order, const cmq_offset_key *key, model *of, int64_t now_ms)
{
    const int64_t offset = (int64_t)cmq_test_random_below(OFFSETS);
    const bool stale = cmq_test_random_below(8) == 0;
    const int64_t pop_ms = of->pop_ms - stale;
    int64_t next = -1;
    if (cmq_test_random_below(3) == 0) {
        const int64_t visible_ms = now_ms + (int64_t)cmq_test_random_below(200);
        const bool known = of->has_batch && !stale && of->in[offset];
        CHECK_INT(cmq_pop_fifo_table_change(order, key, offset, pop_ms, visible_ms), known);
        if (known) of->visible_ms[offset] = visible_ms;
        return;
    }
    const cmq_status status = cmq_pop_fifo_table_ack(order, key, offset, pop_ms, &next);
    if (!of->has_batch) {
        CHECK_STATUS(status, CMQ_END);
        CHECK_INT(next, offset + 1);
    } else if (stale) {
        CHECK_STATUS(status, CMQ_AGAIN);
    } else if (!of->in[offset]) {
        CHECK_STATUS(status, CMQ_ERR_NOT_FOUND);
    } else {
        CHECK_OK(status);
        of->acked[offset] = true;
        of->committed = model_next(of);
        CHECK_INT(next, of->committed);
    }
}

/* As a restart does: all is given, and taken into an empty table. */
static cmq_pop_fifo_table *restarted(cmq_pop_fifo_table *order)
{
    cmq_pop_fifo_table *again = make_order(0);
    cmq_pop_fifo_table_item *item = malloc(sizeof *item);
    uint32_t cursor = 0;
    CHECK(item != NULL);
    while (cmq_pop_fifo_table_next(order, &cursor, item)) CHECK_OK(cmq_pop_fifo_table_restore(again, item));
    CHECK_INT(cmq_pop_fifo_table_count(again), cmq_pop_fifo_table_count(order));
    free(item);
    cmq_pop_fifo_table_destroy(order);
    return again;
}

static void random_histories(void)
{
    const int histories = getenv("CMQ_LONG") != NULL ? 50000 : 1000;
    for (int history = 0; history < histories; history++) {
        cmq_pop_fifo_table *order = make_order(0);
        model queues[QUEUES] = {0};
        int64_t now_ms = NOW;
        for (int step = 0; step < 100; step++) {
            const int32_t queue_id = (int32_t)cmq_test_random_below(QUEUES);
            const cmq_offset_key key = key_of(queue_id);
            model *of = &queues[queue_id];
            now_ms += (int64_t)cmq_test_random_below(40);
            switch (cmq_test_random_below(12)) {
            case 0:
                CHECK_INT(cmq_pop_fifo_table_clear(order, &key), of->has_batch);
                *of = (model){.committed = (int64_t)cmq_test_random_below(OFFSETS)};
                break;
            case 1: order = restarted(order); break;
            case 2:
            case 3:
            case 4:
            case 5: random_pop(order, &key, of, now_ms); break;
            default: random_ack(order, &key, of, now_ms); break;
            }
        }
        cmq_pop_fifo_table_destroy(order);
    }
}

/* ---- threads ---- */

static void *consume(void *given)
{
    cmq_pop_fifo_table *order = given;
    for (int64_t i = 0; i < 20000; i++) {
        const cmq_offset_key key = key_of((int32_t)(i % 7));
        int64_t free_ms, next;
        if (!cmq_pop_fifo_table_blocks(order, &key, CMQ_SLICE_NONE, INVISIBLE, 0, NOW + i, &free_ms))
            pop(order, &key, "", i, 2, NOW + i);
        else if (i % 3 == 0) cmq_pop_fifo_table_clear(order, &key);
        else if (cmq_pop_fifo_table_ack(order, &key, i - 7, NOW + i - 7, &next) == CMQ_OK) CHECK(next >= i - 7);
    }
    return NULL;
}

static void several_threads(void)
{
    enum { THREADS = 3 };
    cmq_pop_fifo_table *order = make_order(0);
    pthread_t threads[THREADS];
    static cmq_pop_fifo_table_item item;
    for (int i = 0; i < THREADS; i++) CHECK_INT(pthread_create(&threads[i], NULL, consume, order), 0);
    for (int i = 0; i < 2000; i++)
        for (uint32_t cursor = 0; cmq_pop_fifo_table_next(order, &cursor, &item);) CHECK_INT(item.count, 2);
    for (int i = 0; i < THREADS; i++) CHECK_INT(pthread_join(threads[i], NULL), 0);
    CHECK(cmq_pop_fifo_table_count(order) <= 7);
    cmq_pop_fifo_table_destroy(order);
}

CMQ_TEST_MAIN(CMQ_TEST(a_batch_blocks_its_queue_until_it_is_acked),
              CMQ_TEST(time_frees_it_and_the_same_messages_count_once_more),
              CMQ_TEST(an_ack_of_an_earlier_pop_does_nothing), CMQ_TEST(the_same_attempt_gets_the_batch_again),
              CMQ_TEST(a_change_moves_when_it_is_free),
              CMQ_TEST(a_deleted_topic_or_group_takes_its_batches_along), CMQ_TEST(impossible_batches_are_refused),
              CMQ_TEST(all_are_met_also_while_some_go), CMQ_TEST(random_histories), CMQ_TEST(several_threads))
