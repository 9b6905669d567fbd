/* Tests csrc/broker/pop/revive/cmq_pop_revive.c on a frozen clock: which messages come back and when, missing retry
 * topics, and that nothing is lost however often it is killed. Threads: yes. */
#include "broker/pop/revive/cmq_pop_revive.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/cmq_store_kit.h"

#define REVIVE_TOPIC "rmq_sys_REVIVE_LOG_c"
#define MESSAGES_MAX 400

static cmq_store *store;
static cmq_tables *tables;
static cmq_offsets *offsets;
static const cmq_timer_options timer;
static uint32_t reported;
static bool timer_is_behind, gives_up;
static char root[CMQ_PATH_BYTES];

static int64_t now(void) { return atomic_load(&kit_now_ms); }
static void pass(int64_t ms) { atomic_fetch_add(&kit_now_ms, ms); }

static void put_topic(const char *name)
{
    const cmq_topic_entry topic = {
        .name = kit_slice(name), .read_queues = 1, .write_queues = 1, .perm = CMQ_PERM_READ | CMQ_PERM_WRITE};
    CHECK_OK(cmq_tables_put_topic(tables, &topic));
}

static void begin(void)
{
    kit_set_clock();
    reported = 0;
    timer_is_behind = gives_up = false;
    CHECK_OK(cmq_path_join(root, kit_directory(), "store"));
    store = kit_open_at(root);
    CHECK_OK(cmq_tables_create(&tables));
    CHECK_OK(cmq_offsets_create(&offsets, 0));
    put_topic("T");
    const cmq_group_entry group = {.name = kit_slice("g"), .consume_enable = true, .retry_queues = 1, .retry_max = 16};
    CHECK_OK(cmq_tables_put_group(tables, &group));
}

static void end(void)
{
    cmq_offsets_destroy(offsets);
    cmq_tables_destroy(tables);
    kit_close(store);
}

static void note(void *context, const cmq_pop_revived *revived)
{
    (void)context;
    CHECK(cmq_slice_equal(revived->normal_topic, kit_slice("T")) ||
          cmq_slice_equal(revived->normal_topic, kit_slice("U")));
    reported += revived->count;
}

static bool timer_has_caught_up(void *context) { return context == NULL && !timer_is_behind; }

static cmq_pop_revive *make(bool manual)
{
    cmq_pop_revive *revive;
    const cmq_pop_revive_options options = {.store = store,
                                            .tables = tables,
                                            .offsets = offsets,
                                            .log = {.revive_topic = kit_slice(REVIVE_TOPIC), .timer = &timer},
                                            .broker = "b",
                                            .queues = 2,
                                            .clock = kit_clock(),
                                            .manual = manual,
                                            .give_up = gives_up,
                                            .calls = {.revived = note, .caught_up = timer_has_caught_up}};
    CHECK_OK(cmq_pop_revive_create(&revive, &options));
    CHECK_OK(cmq_pop_revive_start(revive));
    return revive;
}

static int64_t step(cmq_pop_revive *revive)
{
    int64_t due_ms;
    CHECK_OK(cmq_pop_revive_step(revive, &due_ms));
    return due_ms;
}

/* Deliver what the timer would: its time has come. */
static void deliver(const cmq_append *append)
{
    cmq_appended appended;
    CHECK_OK(cmq_store_append(store, append, &appended));
    CHECK_OK(cmq_store_wait(store, appended.end));
}

static const cmq_pop_log due_log = {.revive_topic = {(const uint8_t *)REVIVE_TOPIC, sizeof REVIVE_TOPIC - 1},
                                    .timer = &timer};
static cmq_pop_record_room room;

static cmq_pop_checkpoint checkpoint_of(int64_t start, uint8_t num, int64_t pop_ms)
{
    return (cmq_pop_checkpoint){.topic = kit_slice("T"),
                                .group = kit_slice("g"),
                                .broker = kit_slice("b"),
                                .start_offset = start,
                                .num = num,
                                .pop_ms = pop_ms,
                                .invisible_ms = 5000,
                                .log_end = cmq_store_confirmed(store)};
}

static void deliver_checkpoint(int64_t start, uint8_t num, int64_t pop_ms, int32_t queue)
{
    const cmq_pop_checkpoint checkpoint = checkpoint_of(start, num, pop_ms);
    cmq_append append;
    CHECK_OK(cmq_pop_checkpoint_append(&due_log, queue, &checkpoint, pop_ms + 5000, &room, &append));
    deliver(&append);
}

static void deliver_ack(int64_t start, int64_t offset, int64_t pop_ms, int32_t queue)
{
    const cmq_pop_ack ack = {.topic = kit_slice("T"),
                             .group = kit_slice("g"),
                             .start_offset = start,
                             .offset = offset,
                             .pop_ms = pop_ms,
                             .invisible_ms = 5000};
    cmq_append append;
    CHECK_OK(cmq_pop_ack_append(&due_log, queue, &ack, pop_ms + 5000, &room, &append));
    deliver(&append);
}

static int64_t committed(int32_t queue)
{
    const cmq_offset_key key = {
        .group = kit_slice(CMQ_POP_REVIVE_GROUP), .topic = kit_slice(REVIVE_TOPIC), .queue_id = queue};
    return cmq_offsets_query(offsets, &key);
}

static cmq_pop_revive_counters counters_of(cmq_pop_revive *revive)
{
    cmq_pop_revive_counters counters;
    cmq_pop_revive_count(revive, &counters);
    return counters;
}

static void unacknowledged_messages_are_revived(void)
{
    begin();
    put_topic("%RETRY%g_T");
    kit_append_many(store, "T", "m", 3);
    cmq_pop_revive *revive = make(true);
    const int64_t pop_ms = now() - 5000;
    deliver_checkpoint(0, 3, pop_ms, 0);
    deliver_ack(0, 1, pop_ms, 0);
    deliver_ack(0, 7, pop_ms, 0);   /* of nobody */
    CHECK_INT(step(revive), now() + 3001);
    pass(3000);
    CHECK_INT(step(revive), now() + 1);
    CHECK_INT(kit_max(store, "%RETRY%g_T", 0), 0);
    pass(1);
    CHECK_INT(step(revive), INT64_MAX);
    CHECK_TEXT(kit_read_topic(store, "%RETRY%g_T"), "m0 m2");
    CHECK_INT(committed(0), 0);
    CHECK_INT(committed(1), -1);
    CHECK_INT(reported, 2);
    const cmq_pop_revive_counters counters = counters_of(revive);
    CHECK_INT(counters.revived, 2);
    CHECK_INT(counters.acks, 2);
    CHECK_INT(counters.acks_late, 1);
    CHECK_INT(counters.unfinished_now, 0);
    cmq_pop_revive_destroy(revive);
    end();
}

static void acks_of_one_broker_name_are_not_of_another(void)
{
    begin();
    kit_append_many(store, "T", "m", 2);
    cmq_pop_revive *revive = make(true);
    const int64_t pop_ms = now() - 5000;
    cmq_pop_checkpoint checkpoint = checkpoint_of(0, 2, pop_ms);
    cmq_pop_ack ack = {.topic = kit_slice("T"),
                       .group = kit_slice("g"),
                       .broker = kit_slice("other"),
                       .start_offset = 0,
                       .offset = 0,
                       .pop_ms = pop_ms,
                       .invisible_ms = 5000};
    cmq_append append;
    checkpoint.broker = ack.broker;
    CHECK_OK(cmq_pop_checkpoint_append(&due_log, 0, &checkpoint, pop_ms + 5000, &room, &append));
    deliver(&append);
    CHECK_OK(cmq_pop_ack_append(&due_log, 0, &ack, pop_ms + 5000, &room, &append));
    deliver(&append);
    (void)step(revive);
    CHECK_INT(counters_of(revive).acks_late, 0);
    deliver_ack(0, 1, pop_ms, 0);   /* of no broker name: of this broker's */
    (void)step(revive);
    CHECK_INT(counters_of(revive).acks, 2);
    CHECK_INT(counters_of(revive).acks_late, 1);
    cmq_pop_revive_destroy(revive);
    end();
}

/* Without waiting for quiet: the records that finish it were due before those that have been read since. */
static void checkpoints_two_seconds_behind_the_latest_are_complete(void)
{
    begin();
    put_topic("%RETRY%g_T");
    kit_append_many(store, "T", "m", 3);
    cmq_pop_revive *revive = make(true);
    const int64_t pop_ms = now() - 5000;
    deliver_checkpoint(0, 1, pop_ms, 0);
    deliver_checkpoint(1, 1, pop_ms + 3000, 0);   /* delivered a second before its own time: 2 s behind the first
                                                   * one's */
    (void)step(revive);
    CHECK_INT(kit_max(store, "%RETRY%g_T", 0), 0);
    deliver_checkpoint(2, 1, pop_ms + 3001, 0);
    (void)step(revive);
    CHECK_TEXT(kit_read_topic(store, "%RETRY%g_T"), "m0");
    CHECK_INT(committed(0), 0);
    cmq_pop_revive_destroy(revive);
    end();
}

static void a_timer_that_is_behind_is_waited_for(void)
{
    begin();
    put_topic("%RETRY%g_T");
    kit_append_many(store, "T", "m", 1);
    cmq_pop_revive *revive = make(true);
    deliver_checkpoint(0, 1, now() - 5000, 0);
    timer_is_behind = true;
    pass(3001);
    CHECK_INT(step(revive), now() + 100);
    pass(60000);
    CHECK_INT(step(revive), now() + 100);
    CHECK_INT(kit_max(store, "%RETRY%g_T", 0), 0);   /* its acks may be on their way */
    timer_is_behind = false;
    (void)step(revive);
    CHECK_TEXT(kit_read_topic(store, "%RETRY%g_T"), "m0");
    cmq_pop_revive_destroy(revive);
    end();
}

static void a_revived_record_has_upstreams_fields(void)
{
    begin();
    put_topic("%RETRY%g_T");
    kit_append(store, "T", 0, "body", "tag", "key");
    cmq_pop_revive *revive = make(true);
    const int64_t pop_ms = now() - 5000;
    deliver_checkpoint(0, 1, pop_ms, 0);
    pass(4000);
    (void)step(revive);
    kit_found *found = kit_found_make(1);
    cmq_slice first_pop, tag;
    char expected[32];
    CHECK_OK(cmq_store_read_offset(store, kit_slice("%RETRY%g_T"), 0, 0, &found->batch));
    const cmq_record_view view = kit_view(&found->items[0]);
    CHECK_INT(view.reconsume_times, 1);
    CHECK(cmq_property_find(view.properties, kit_slice("1ST_POP_TIME"), &first_pop) &&
          cmq_property_find(view.properties, kit_slice("TAGS"), &tag));
    CHECK_BYTES(first_pop.data, first_pop.bytes, expected,
                (size_t)snprintf(expected, sizeof expected, "%lld", (long long)pop_ms));
    CHECK_BYTES(tag.data, tag.bytes, "tag", 3);
    kit_found_free(found);
    cmq_pop_revive_destroy(revive);
    end();
}

/* Written by a sender, or by a client that copied a message's properties. */
static void a_foreign_first_pop_time_is_replaced(void)
{
    cmq_appended appended;
    begin();
    put_topic("%RETRY%g_T");
    const cmq_append append = {.common = {.topic = kit_slice("T")},
                               .count = 1,
                               .bodies = {.kind = CMQ_COLUMN_ONE, .one = kit_slice("m")},
                               .properties = {.kind = CMQ_COLUMN_ONE, .one = kit_slice("1ST_POP_TIME\0015\002")}};
    CHECK_OK(cmq_store_append(store, &append, &appended));
    cmq_pop_revive *revive = make(true);
    const int64_t pop_ms = now() - 5000;
    deliver_checkpoint(0, 1, pop_ms, 0);
    pass(4000);
    (void)step(revive);
    kit_found *found = kit_found_make(1);
    cmq_slice first_pop;
    char expected[32];
    CHECK_OK(cmq_store_read_offset(store, kit_slice("%RETRY%g_T"), 0, 0, &found->batch));
    const cmq_record_view view = kit_view(&found->items[0]);
    CHECK(cmq_property_find(view.properties, kit_slice("1ST_POP_TIME"), &first_pop));
    CHECK_BYTES(first_pop.data, first_pop.bytes, expected,
                (size_t)snprintf(expected, sizeof expected, "%lld", (long long)pop_ms));
    kit_found_free(found);
    cmq_pop_revive_destroy(revive);
    end();
}

static bool is_caught_up;
static bool caught_up(void *context)
{
    (void)context;
    return is_caught_up;
}

/* The timer delivers it again after a kill; its ack is on the way. */
static void one_that_comes_late_waits_for_its_acks(void)
{
    begin();
    put_topic("%RETRY%g_T");
    kit_append_many(store, "T", "m", 3);
    const cmq_pop_revive_options options = {.store = store,
                                            .tables = tables,
                                            .offsets = offsets,
                                            .broker = "b",
                                            .queues = 1,
                                            .clock = kit_clock(),
                                            .manual = true,
                                            .log = {.revive_topic = kit_slice(REVIVE_TOPIC), .timer = &timer},
                                            .calls = {.caught_up = caught_up}};
    cmq_pop_revive *revive;
    CHECK_OK(cmq_pop_revive_create(&revive, &options));
    CHECK_OK(cmq_pop_revive_start(revive));
    const int64_t pop_ms = now() - 9000;
    is_caught_up = false;
    deliver_checkpoint(2, 1, pop_ms + 4000, 0);
    (void)step(revive);
    deliver_checkpoint(0, 2, pop_ms, 0);
    deliver_checkpoint(2, 1, pop_ms + 9000, 0);
    pass(10000);
    (void)step(revive);
    CHECK_INT(kit_max(store, "%RETRY%g_T", 0), 0);
    deliver_ack(0, 0, pop_ms, 0);
    is_caught_up = true;
    (void)step(revive);
    CHECK_TEXT(kit_read_topic(store, "%RETRY%g_T"), "m2 m1 m2");
    cmq_pop_revive_destroy(revive);
    end();
}

static void a_retry_topic_is_waited_for(void)
{
    uint8_t name[CMQ_POP_TOPIC_BYTES_MAX];
    size_t bytes;
    begin();
    kit_append_many(store, "T", "m", 1);
    cmq_pop_revive *revive = make(true);
    deliver_checkpoint(0, 1, now() - 5000, 1);
    pass(4000);
    CHECK_INT(step(revive), now() + 100);
    CHECK(cmq_pop_revive_take_wanted(revive, name, &bytes));
    CHECK_BYTES(name, bytes, "%RETRY%g_T", 10);
    CHECK(!cmq_pop_revive_take_wanted(revive, name, &bytes));
    CHECK_INT(committed(1), -1);
    put_topic("%RETRY%g_T");
    CHECK_INT(step(revive), INT64_MAX);
    CHECK_TEXT(kit_read_topic(store, "%RETRY%g_T"), "m0");
    CHECK_INT(committed(1), 0);
    cmq_pop_revive_destroy(revive);
    end();
}

static void a_retry_topic_that_is_not_made_puts_again(void)
{
    begin();
    kit_append_many(store, "T", "m", 1);
    cmq_pop_revive *revive = make(true);
    deliver_checkpoint(0, 1, now() - 5000, 0);
    pass(4000);
    (void)step(revive);
    pass(30001);
    (void)step(revive);
    CHECK_INT(counters_of(revive).put_again, 1);
    CHECK_INT(committed(0), 0);
    /* its time is over: delivered at once */
    CHECK_INT(kit_max(store, CMQ_TOPIC_TIMER, 0) + kit_max(store, REVIVE_TOPIC, 0), 2);
    cmq_pop_revive_destroy(revive);
    end();
}

/* One that cannot be made is no reason to give up another, nor to ask for it no more. */
static void each_retry_topic_is_waited_for(void)
{
    uint8_t name[CMQ_POP_TOPIC_BYTES_MAX];
    size_t bytes;
    begin();
    put_topic("U");
    kit_append_many(store, "T", "m", 1);
    kit_append_many(store, "U", "n", 1);
    cmq_pop_revive *revive = make(true);
    deliver_checkpoint(0, 1, now() - 5000, 0);
    cmq_pop_checkpoint other = checkpoint_of(0, 1, now() - 4999);
    other.topic = kit_slice("U");
    cmq_append append;
    CHECK_OK(cmq_pop_checkpoint_append(&due_log, 0, &other, now() + 1, &room, &append));
    deliver(&append);
    pass(4000);
    (void)step(revive);
    CHECK(cmq_pop_revive_take_wanted(revive, name, &bytes));
    CHECK_BYTES(name, bytes, "%RETRY%g_T", 10);
    pass(30001);
    CHECK_INT(step(revive), now() + 100);
    CHECK_INT(counters_of(revive).put_again, 1);
    /* In any order. */
    bool asked[2] = {false, false};
    while (cmq_pop_revive_take_wanted(revive, name, &bytes)) asked[name[9] == 'U'] = true;
    CHECK(asked[0] && asked[1]);
    put_topic("%RETRY%g_U");
    (void)step(revive);
    CHECK_TEXT(kit_read_topic(store, "%RETRY%g_U"), "n0");
    cmq_pop_revive_destroy(revive);
    end();
}

/* Each of them is waited for once. Beyond those that are remembered none is: they would wait in turn for ever, and
 * everything behind them. */
static void many_retry_topics_that_are_not_made_hold_up_nothing(void)
{
    enum { TOPICS = 20, WAITED = 16 };
    char names[TOPICS][16];
    begin();
    cmq_pop_revive *revive = make(true);
    for (uint64_t round = 1; round <= 3; round++) {
        for (int i = 0; i < TOPICS; i++) {
            snprintf(names[i], sizeof names[i], "T%d", i);
            if (round == 1) put_topic(names[i]);
            if (round == 1) kit_append_many(store, names[i], "m", 1);
            cmq_pop_checkpoint of = checkpoint_of(0, 1, now() - 5000);
            cmq_append append;
            of.topic = kit_slice(names[i]);
            CHECK_OK(cmq_pop_checkpoint_append(&due_log, 0, &of, now() + 1, &room, &append));
            deliver(&append);
        }
        pass(4000);
        (void)step(revive);
        for (int i = 0; round == 1 && i < WAITED; i++) {
            CHECK_INT(counters_of(revive).put_again, (uint64_t)i);
            pass(30001);
            (void)step(revive);
        }
        CHECK(counters_of(revive).put_again >= round * TOPICS);
        CHECK_INT(counters_of(revive).unfinished_now, 0);
    }
    cmq_pop_revive_destroy(revive);
    end();
}

/* The checkpoint that was put again for a message, wherever it waits; its slices live in `found`. */
static cmq_pop_checkpoint put_again(kit_found *found, cmq_pop_room *parse_room)
{
    const bool is_due = kit_max(store, REVIVE_TOPIC, 0) > 1;
    cmq_pop_checkpoint checkpoint;
    CHECK_OK(cmq_store_read_offset(store, kit_slice(is_due ? REVIVE_TOPIC : CMQ_TOPIC_TIMER), 0, is_due ? 1 : 0,
                                   &found->batch));
    CHECK_OK(cmq_pop_checkpoint_parse(kit_view(&found->items[0]).body, parse_room, &checkpoint));
    return checkpoint;
}

static void messages_that_cannot_be_put_wait_longer_each_time(void)
{
    static const int32_t waits_s[] = {10,  20,  30,  60,   120,  180,  240,  300,  360, 420,
                                      480, 540, 600, 1200, 1800, 3600, 7200, 7200, 7200};
    static cmq_pop_room parse_room;
    for (int32_t times = 0; times < (int32_t)(sizeof waits_s / sizeof waits_s[0]); times++) {
        begin();
        kit_append_many(store, "T", "m", 3);
        cmq_pop_revive *revive = make(true);
        const int64_t pop_ms = now() - 5000;
        const cmq_pop_checkpoint before = {.topic = kit_slice("T"),
                                           .group = kit_slice("g"),
                                           .broker = kit_slice("b"),
                                           .start_offset = 2,
                                           .num = 1,
                                           .pop_ms = pop_ms,
                                           .invisible_ms = 5000,
                                           .re_puts = times};
        cmq_append append;
        CHECK_OK(cmq_pop_checkpoint_append(&due_log, 0, &before, now(), &room, &append));
        deliver(&append);
        pass(4000);
        (void)step(revive);
        pass(30001);   /* nobody made the retry topic */
        (void)step(revive);
        kit_found *found = kit_found_make(1);
        const cmq_pop_checkpoint after = put_again(found, &parse_room);
        CHECK_INT(after.start_offset, 2);
        CHECK_INT(after.num, 1);
        CHECK_INT(after.pop_ms, pop_ms);
        CHECK_INT(after.re_puts, times + 1);
        CHECK_INT(after.invisible_ms, now() - pop_ms + 1000 * waits_s[times]);   /* from now on */
        CHECK_INT(committed(0), 0);
        kit_found_free(found);
        cmq_pop_revive_destroy(revive);
        end();
    }
}

static void messages_put_again_often_enough_may_be_given_up(void)
{
    begin();
    kit_append_many(store, "T", "m", 1);
    gives_up = true;
    cmq_pop_revive *revive = make(true);
    const cmq_pop_checkpoint last = {.topic = kit_slice("T"),
                                     .group = kit_slice("g"),
                                     .broker = kit_slice("b"),
                                     .num = 1,
                                     .pop_ms = now() - 5000,
                                     .invisible_ms = 5000,
                                     .re_puts = 17};
    cmq_append append;
    CHECK_OK(cmq_pop_checkpoint_append(&due_log, 0, &last, now(), &room, &append));
    deliver(&append);
    pass(4000);
    (void)step(revive);
    pass(30001);
    (void)step(revive);
    CHECK_INT(counters_of(revive).put_again, 0);
    CHECK_INT(counters_of(revive).skipped, 1);
    CHECK_INT(committed(0), 0);
    cmq_pop_revive_destroy(revive);
    end();
}

/* A topic was deleted and made again while its messages were in flight: the ones at their offsets are others. */
static void check_revive_of_a_remade_topic(bool knows_log_end)
{
    begin();
    put_topic("%RETRY%g_T");
    kit_append_many(store, "T", "m", 2);
    cmq_pop_checkpoint checkpoint = checkpoint_of(0, 2, now());
    if (!knows_log_end) checkpoint.log_end = 0;   /* as upstream writes it: the time of the pop decides */
    pass(1001);
    CHECK_OK(cmq_store_delete_topic(store, kit_slice("T")));
    kit_append_many(store, "T", "n", 2);
    cmq_append append;
    CHECK_OK(cmq_pop_checkpoint_append(&due_log, 0, &checkpoint, now() + 5000, &room, &append));
    pass(5000);
    deliver(&append);
    cmq_pop_revive *revive = make(true);
    (void)step(revive);
    pass(4000);
    (void)step(revive);
    CHECK_INT(kit_max(store, "%RETRY%g_T", 0), 0);
    CHECK_INT(counters_of(revive).gone, 2);
    CHECK_INT(counters_of(revive).unfinished_now, 0);
    cmq_pop_revive_destroy(revive);
    end();
}

static void message_of_a_remade_topic_is_not_revived(void)
{
    check_revive_of_a_remade_topic(true);
    check_revive_of_a_remade_topic(false);
}

/* A checkpoint of upstream's, and messages stored in the second of its pop. */
static void message_without_a_log_end_is_revived(void)
{
    begin();
    put_topic("%RETRY%g_T");
    cmq_pop_checkpoint checkpoint = checkpoint_of(0, 2, now());
    checkpoint.log_end = 0;
    kit_append_many(store, "T", "m", 1);
    pass(1000);
    kit_append_many(store, "T", "m", 1);
    cmq_append append;
    CHECK_OK(cmq_pop_checkpoint_append(&due_log, 0, &checkpoint, now() + 4000, &room, &append));
    pass(4000);
    deliver(&append);
    cmq_pop_revive *revive = make(true);
    (void)step(revive);
    pass(4000);
    (void)step(revive);
    CHECK_INT(kit_max(store, "%RETRY%g_T", 0), 2);
    cmq_pop_revive_destroy(revive);
    end();
}

/* A checkpoint that names messages inside of inner batches, which no broker of ours gives: they are passed over, and
 * not put again for ever. */
static void inner_batches_are_not_revived(void)
{
    begin();
    put_topic("%RETRY%g_T");
    CHECK_OK(cmq_store_set_batch_topic(store, kit_slice("T")));
    const cmq_append batch = {
        .common = {.topic = kit_slice("T"), .sys_flag = CMQ_SYS_INNER_BATCH | CMQ_SYS_NEED_UNWRAP},
        .count = 1,
        .bodies = {.kind = CMQ_COLUMN_ONE, .one = kit_slice("three in one")},
        .properties = {.kind = CMQ_COLUMN_ONE, .one = kit_slice("INNER_NUM\0013\002")}};
    deliver(&batch);
    cmq_pop_revive *revive = make(true);
    deliver_checkpoint(0, 3, now() - 5000, 0);
    (void)step(revive);
    pass(4000);
    (void)step(revive);
    CHECK_INT(counters_of(revive).gone, 3);
    CHECK_INT(counters_of(revive).put_again, 0);
    CHECK_INT(kit_max(store, "%RETRY%g_T", 0), 0);
    CHECK_INT(counters_of(revive).unfinished_now, 0);
    cmq_pop_revive_destroy(revive);
    end();
}

static void foreign_and_deleted_messages_are_passed_over(void)
{
    begin();
    put_topic("%RETRY%g_T");
    kit_append(store, REVIVE_TOPIC, 0, "no json", "ck", NULL);
    kit_append(store, REVIVE_TOPIC, 0, "{\"t\":\"T\"}", "ack", NULL);
    kit_append(store, REVIVE_TOPIC, 0, "{}", "other", NULL);
    cmq_pop_revive *revive = make(true);
    deliver_checkpoint(5, 2, now() - 5000, 0);   /* T has no messages */
    pass(4000);
    (void)step(revive);
    CHECK_INT(counters_of(revive).damaged, 3);
    CHECK_INT(counters_of(revive).gone, 2);
    CHECK_INT(reported, 2);   /* nobody has them in flight any more */
    CHECK_INT(committed(0), 3);
    CHECK(cmq_tables_remove_group(tables, kit_slice("g")));
    deliver_checkpoint(0, 1, now() - 5000, 0);
    pass(4000);
    (void)step(revive);
    CHECK_INT(counters_of(revive).skipped, 1);
    CHECK_INT(reported, 3);
    CHECK_INT(committed(0), 4);
    cmq_pop_revive_destroy(revive);
    end();
}

/* Deliver a checkpoint of T's first message and let its time come. */
static void let_first_message_come_due(cmq_pop_revive *revive)
{
    deliver_checkpoint(0, 1, now() - 5000, 0);
    pass(4000);
    (void)step(revive);
}

static void unknown_topics_and_groups_revive_nothing(void)
{
    begin();
    put_topic("%RETRY%g_T");
    kit_append_many(store, "T", "m", 1);
    cmq_pop_revive *revive = make(true);
    CHECK(cmq_tables_remove_topic(tables, kit_slice("T")));
    let_first_message_come_due(revive);
    CHECK_INT(counters_of(revive).skipped, 1);
    CHECK_INT(kit_max(store, "%RETRY%g_T", 0), 0);
    CHECK_INT(reported, 1);   /* nobody has it in flight any more */
    CHECK_INT(committed(0), 0);   /* the last record that is done with */
    put_topic("T");
    CHECK(cmq_tables_remove_group(tables, kit_slice("g")));
    let_first_message_come_due(revive);
    CHECK_INT(counters_of(revive).skipped, 2);
    CHECK_INT(kit_max(store, "%RETRY%g_T", 0), 0);
    CHECK_INT(reported, 2);
    CHECK_INT(committed(0), 1);
    /* With both known the same checkpoint revives its message. */
    const cmq_group_entry group = {.name = kit_slice("g"), .consume_enable = true, .retry_queues = 1, .retry_max = 16};
    CHECK_OK(cmq_tables_put_group(tables, &group));
    let_first_message_come_due(revive);
    CHECK_INT(counters_of(revive).skipped, 2);
    CHECK_INT(kit_max(store, "%RETRY%g_T", 0), 1);
    CHECK_INT(committed(0), 2);
    cmq_pop_revive_destroy(revive);
    end();
}

/* ---- a revive topic that is damaged, or gone ---- */

static void malformed_records_are_passed_over(void)
{
    static const struct {
        const char *tag, *body;
    } records[] = {
        {"ck", ""},
        {"ck", "no json"},
        {"ck", "[1,2]"},
        {"ck", "{\"c\":\"g\",\"n\":1,\"t\":\"T\""},
        {"ck", "{\"c\":\"g\",\"n\":1,\"so\":0,\"t\":\"T\"}}"},
        {"ck", "{\"n\":1,\"t\":\"T\"}"},
        {"ck", "{\"c\":\"g\",\"n\":1}"},
        {"ck", "{\"c\":\"g\",\"n\":1000,\"t\":\"T\"}"},
        {"ck", "{\"c\":\"g\",\"n\":-1,\"t\":\"T\"}"},
        {"ck", "{\"c\":\"g\",\"n\":2,\"d\":[0],\"t\":\"T\"}"},
        {"ck", "{\"c\":\"g\",\"n\":1,\"d\":[-1],\"t\":\"T\"}"},
        {"ck", "{\"c\":\"g\",\"n\":1,\"d\":[2147483648],\"t\":\"T\"}"},
        {"ck", "{\"c\":\"g\",\"n\":1,\"so\":-1,\"t\":\"T\"}"},
        {"ck", "{\"c\":\"g\",\"n\":1,\"so\":9223372036854775807,\"t\":\"T\"}"},
        {"ck", "{\"c\":\"g\",\"n\":1,\"so\":9223372036854775808,\"t\":\"T\"}"},
        {"ck", "{\"c\":\"g\",\"n\":1,\"q\":-1,\"t\":\"T\"}"},
        {"ck", "{\"c\":\"g\",\"n\":1,\"q\":4294967296,\"t\":\"T\"}"},
        {"ck", "{\"c\":\"g\",\"n\":1,\"pt\":-1,\"t\":\"T\"}"},
        {"ck", "{\"c\":\"g\",\"n\":1,\"it\":9223372036854775807,\"t\":\"T\"}"},
        {"ck", "{\"c\":\"g\",\"n\":1,\"bm\":99999999999,\"t\":\"T\"}"},
        {"ck", "{\"bn\":\"b\\u0001\",\"c\":\"g\",\"n\":1,\"t\":\"T\"}"},
        {"ack", "{\"c\":\"g\",\"ao\":-1,\"t\":\"T\"}"},
        {"ack", "{\"c\":\"g\",\"ao\":\"x\",\"t\":\"T\"}"},
        {"bAck", "{\"c\":\"g\",\"t\":\"T\"}"},
        {"bAck", "{\"c\":\"g\",\"aol\":[0,-1],\"t\":\"T\"}"},
        {"bAck", "{\"c\":\"g\",\"aol\":7,\"t\":\"T\"}"},
        {"CK", "{\"c\":\"g\",\"n\":1,\"so\":0,\"t\":\"T\"}"},
        {"", "{\"c\":\"g\",\"n\":1,\"so\":0,\"t\":\"T\"}"},
    };
    enum { RECORDS = sizeof records / sizeof records[0] };
    begin();
    put_topic("%RETRY%g_T");
    kit_append_many(store, "T", "m", 1);
    for (int i = 0; i < RECORDS; i++) kit_append(store, REVIVE_TOPIC, 0, records[i].body, records[i].tag, NULL);
    cmq_pop_revive *revive = make(true);
    deliver_checkpoint(0, 1, now() - 5000, 0);
    pass(4000);
    (void)step(revive);
    CHECK_INT(counters_of(revive).damaged, RECORDS);
    CHECK_TEXT(kit_read_topic(store, "%RETRY%g_T"), "m0");
    CHECK_INT(committed(0), RECORDS);
    cmq_pop_revive_destroy(revive);
    end();
}

/* Bytes of a record are not what was written: those around it count. */
static void a_record_whose_bytes_changed_is_passed_over(void)
{
    char log[CMQ_PATH_BYTES];
    begin();
    put_topic("%RETRY%g_T");
    kit_append_many(store, "T", "m", 3);
    cmq_append append;
    cmq_appended appended;
    const cmq_pop_checkpoint doomed = checkpoint_of(1, 1, now() - 5000);
    deliver_checkpoint(0, 1, now() - 5000, 0);
    CHECK_OK(cmq_pop_checkpoint_append(&due_log, 0, &doomed, now(), &room, &append));
    CHECK_OK(cmq_store_append(store, &append, &appended));
    deliver_checkpoint(2, 1, now() - 5000, 0);
    CHECK_OK(cmq_path_join(log, root, "commitlog/00000000000000000000"));
    kit_flip(log, appended.first_physical_offset + 95, 1);
    cmq_pop_revive *revive = make(true);
    pass(4000);
    (void)step(revive);
    CHECK_INT(counters_of(revive).damaged, 1);
    CHECK_TEXT(kit_read_topic(store, "%RETRY%g_T"), "m0 m2");
    CHECK_INT(committed(0), 2);
    cmq_pop_revive_destroy(revive);
    end();
}

/* A checkpoint that claims to be due in years, and a deliver time of years ahead: messages behind them come back in
 * their time, and acks count. */
static void times_that_cannot_be_stop_nothing(void)
{
    const int64_t years_ms = INT64_C(100) * 365 * 24 * 3600 * 1000;
    begin();
    put_topic("%RETRY%g_T");
    kit_append_many(store, "T", "m", 3);
    cmq_pop_revive *revive = make(true);
    const int64_t pop_ms = now() - 5000;
    cmq_pop_checkpoint far = checkpoint_of(0, 1, pop_ms);
    char body[CMQ_POP_RECORD_BYTES_MAX];
    cmq_text text = {.begin = (uint8_t *)body, .capacity = sizeof body - 1};
    far.invisible_ms = years_ms;
    cmq_pop_checkpoint_write(&text, &far);
    body[text.used] = '\0';
    kit_append(store, REVIVE_TOPIC, 0, body, CMQ_POP_TAG_CHECKPOINT, NULL);
    const cmq_timer_options endless = {.delay_ms_max = 2 * years_ms};
    const cmq_pop_log log = {.revive_topic = due_log.revive_topic, .timer = &endless};
    cmq_pop_ack ack = {.topic = kit_slice("T"),
                       .group = kit_slice("g"),
                       .start_offset = 9,
                       .offset = 9,
                       .pop_ms = pop_ms,
                       .invisible_ms = years_ms};
    cmq_append append;
    CHECK_OK(cmq_pop_ack_append(&log, 0, &ack, now(), &room, &append));
    append.common.topic = due_log.revive_topic;
    append.common.queue_id = 0;
    deliver(&append);
    deliver_checkpoint(1, 2, pop_ms, 0);
    (void)step(revive);
    CHECK_INT(kit_max(store, "%RETRY%g_T", 0), 0);
    deliver_ack(1, 1, pop_ms, 0);
    pass(4000);
    (void)step(revive);
    CHECK_TEXT(kit_read_topic(store, "%RETRY%g_T"), "m0 m2");
    CHECK_INT(counters_of(revive).early, 1);
    cmq_pop_revive_destroy(revive);
    end();
}

/* Checkpoints that are put again are due within the timer's horizon, however short it is. */
static void checkpoints_put_again_are_within_the_timers_horizon(void)
{
    begin();
    kit_append_many(store, "T", "m", 1);
    const cmq_timer_options short_timer = {.delay_ms_max = 4000};
    const cmq_pop_revive_options options = {.store = store,
                                            .tables = tables,
                                            .offsets = offsets,
                                            .broker = "b",
                                            .queues = 1,
                                            .clock = kit_clock(),
                                            .manual = true,
                                            .log = {.revive_topic = kit_slice(REVIVE_TOPIC), .timer = &short_timer}};
    cmq_pop_revive *revive;
    CHECK_OK(cmq_pop_revive_create(&revive, &options));
    cmq_pop_checkpoint often = checkpoint_of(0, 1, now() - 5000);
    cmq_append append;
    often.re_puts = 16;
    CHECK_OK(cmq_pop_checkpoint_append(&due_log, 0, &often, now(), &room, &append));
    deliver(&append);
    pass(4000);
    (void)step(revive);
    pass(30001);   /* its retry topic is not made */
    (void)step(revive);
    CHECK_INT(counters_of(revive).put_again, 1);
    CHECK_INT(kit_max(store, CMQ_TOPIC_TIMER, 0), 1);
    cmq_pop_revive_destroy(revive);
    end();
}

/* The topic is deleted while there are unfinished checkpoints, and restarts at 0. */
static void re_created_revive_topic_is_read_from_its_begin(void)
{
    begin();
    put_topic("%RETRY%g_T");
    kit_append_many(store, "T", "m", 6);
    cmq_pop_revive *revive = make(true);
    for (int i = 0; i < 3; i++) deliver_checkpoint(i, 1, now() - 5000, 0);
    pass(4000);
    (void)step(revive);
    CHECK_INT(committed(0), 2);
    deliver_checkpoint(3, 1, now() - 4000, 0);
    (void)step(revive);   /* read, and not complete */
    CHECK_TEXT(kit_read_topic(store, "%RETRY%g_T"), "m0 m1 m2");
    CHECK_OK(cmq_store_delete_topic(store, kit_slice(REVIVE_TOPIC)));
    (void)step(revive);
    CHECK_TEXT(kit_read_topic(store, "%RETRY%g_T"), "m0 m1 m2 m3");
    CHECK_INT(committed(0), -1);
    for (int i = 4; i < 6; i++) deliver_checkpoint(i, 1, now() - 5000, 0);
    pass(4000);
    (void)step(revive);
    CHECK_TEXT(kit_read_topic(store, "%RETRY%g_T"), "m0 m1 m2 m3 m4 m5");
    CHECK_INT(committed(0), 1);
    cmq_pop_revive_destroy(revive);
    end();
}

/* Nobody looks until its next life is longer than what was read of the first. */
static void revive_topic_re_created_unseen_is_read_from_its_begin(void)
{
    begin();
    put_topic("%RETRY%g_T");
    kit_append_many(store, "T", "m", 5);
    cmq_pop_revive *revive = make(true);
    deliver_checkpoint(0, 1, now() - 4000, 0);
    (void)step(revive);   /* read, and not complete */
    CHECK_OK(cmq_store_delete_topic(store, kit_slice(REVIVE_TOPIC)));
    for (int i = 1; i < 5; i++) deliver_checkpoint(i, 1, now() - 5000, 0);
    (void)step(revive);
    CHECK_TEXT(kit_read_topic(store, "%RETRY%g_T"), "m0");
    pass(4000);
    (void)step(revive);
    CHECK_TEXT(kit_read_topic(store, "%RETRY%g_T"), "m0 m1 m2 m3 m4");
    CHECK_INT(committed(0), 3);
    cmq_pop_revive_destroy(revive);
    end();
}

/* The committed offset lies behind the queue's end, as after a power loss under asynchronous flush: new records are
 * read, before a restart and after it. */
static void progress_beyond_the_queue_skips_nothing_that_comes(void)
{
    begin();
    put_topic("%RETRY%g_T");
    kit_append_many(store, "T", "m", 3);
    deliver_ack(0, 0, now() - 5000, 0);
    const cmq_offset_key key = {
        .group = kit_slice(CMQ_POP_REVIVE_GROUP), .topic = kit_slice(REVIVE_TOPIC), .queue_id = 0};
    CHECK_OK(cmq_offsets_commit(offsets, &key, 100));
    cmq_pop_revive *revive = make(true);
    (void)step(revive);
    CHECK_INT(committed(0), 0);
    deliver_checkpoint(0, 1, now() - 5000, 0);
    (void)step(revive);
    deliver_checkpoint(1, 1, now() - 5000, 0);
    cmq_pop_revive_destroy(revive);
    revive = make(true);
    deliver_checkpoint(2, 1, now() - 5000, 0);
    pass(4000);
    (void)step(revive);
    CHECK_TEXT(kit_read_topic(store, "%RETRY%g_T"), "m0 m1 m2");
    CHECK_INT(committed(0), 3);
    cmq_pop_revive_destroy(revive);
    end();
}

/* Every message that was not acknowledged is in the retry topic in the end, in any order, and however often the service
 * restarts. */
static void nothing_is_lost_when_killed(void)
{
    for (int round = 0; round < 20; round++) {
        static bool acked[MESSAGES_MAX], back[MESSAGES_MAX];
        begin();
        put_topic("%RETRY%g_T");
        memset(acked, 0, sizeof acked);
        memset(back, 0, sizeof back);
        const int count = 40 + (int)cmq_test_random_below(100);
        kit_append_many(store, "T", "", count);
        cmq_pop_revive *revive = make(true);
        for (int at = 0; at < count;) {
            const int num = 1 + (int)cmq_test_random_below(count - at < 8 ? (uint64_t)(count - at) : 8);
            const int32_t queue = (int32_t)cmq_test_random_below(2);
            const int64_t pop_ms = now() - 5000;
            deliver_checkpoint(at, (uint8_t)num, pop_ms, queue);
            pass((int64_t)cmq_test_random_below(1500));
            for (int i = at; i < at + num; i++) {
                if (cmq_test_random_below(2) == 0) continue;
                acked[i] = true;
                deliver_ack(at, i, pop_ms, queue);
            }
            at += num;
            pass((int64_t)cmq_test_random_below(2000));
            if (cmq_test_random_below(2) == 0) (void)step(revive);
            if (cmq_test_random_below(4) > 0) continue;
            cmq_pop_revive_destroy(revive);   /* killed: nothing of it is left but the committed offset */
            revive = make(true);
        }
        pass(10000);
        CHECK_INT(step(revive), INT64_MAX);
        char *text = strdup(kit_read_topic(store, "%RETRY%g_T")), *rest = text;
        for (char *body; (body = strsep(&rest, " ")) != NULL;)
            if (*body != '\0') back[atoi(body)] = true;
        for (int i = 0; i < count; i++) CHECK(acked[i] || back[i]);
        free(text);
        CHECK_INT(counters_of(revive).unfinished_now, 0);
        cmq_pop_revive_destroy(revive);
        end();
    }
}

static void the_thread_starts_and_stops(void)
{
    begin();
    put_topic("%RETRY%g_T");
    kit_append_many(store, "T", "m", 1);
    deliver_checkpoint(0, 1, now() - 5000, 0);
    pass(4000);
    cmq_pop_revive *revive = make(false);
    while (kit_max(store, "%RETRY%g_T", 0) == 0) cmq_pop_revive_poke(revive);
    cmq_pop_revive_stop(revive);
    CHECK_INT(committed(0), 0);
    CHECK_INT(counters_of(revive).state, CMQ_POP_REVIVE_IDLE);
    cmq_pop_revive_destroy(revive);
    end();
}

CMQ_TEST_MAIN(
    CMQ_TEST(unacknowledged_messages_are_revived),
    CMQ_TEST(acks_of_one_broker_name_are_not_of_another),
    CMQ_TEST(checkpoints_two_seconds_behind_the_latest_are_complete),
    CMQ_TEST(a_timer_that_is_behind_is_waited_for), CMQ_TEST(messages_that_cannot_be_put_wait_longer_each_time),
    CMQ_TEST(messages_put_again_often_enough_may_be_given_up), CMQ_TEST(a_revived_record_has_upstreams_fields),
              CMQ_TEST(a_foreign_first_pop_time_is_replaced),
    CMQ_TEST(a_retry_topic_is_waited_for), CMQ_TEST(a_retry_topic_that_is_not_made_puts_again),
    CMQ_TEST(each_retry_topic_is_waited_for), CMQ_TEST(many_retry_topics_that_are_not_made_hold_up_nothing),
    CMQ_TEST(one_that_comes_late_waits_for_its_acks), CMQ_TEST(message_of_a_remade_topic_is_not_revived),
    CMQ_TEST(message_without_a_log_end_is_revived),
    CMQ_TEST(inner_batches_are_not_revived), CMQ_TEST(foreign_and_deleted_messages_are_passed_over),
    CMQ_TEST(unknown_topics_and_groups_revive_nothing),
    CMQ_TEST(malformed_records_are_passed_over), CMQ_TEST(a_record_whose_bytes_changed_is_passed_over),
    CMQ_TEST(times_that_cannot_be_stop_nothing), CMQ_TEST(checkpoints_put_again_are_within_the_timers_horizon),
    CMQ_TEST(re_created_revive_topic_is_read_from_its_begin),
    CMQ_TEST(revive_topic_re_created_unseen_is_read_from_its_begin),
    CMQ_TEST(progress_beyond_the_queue_skips_nothing_that_comes), CMQ_TEST(nothing_is_lost_when_killed),
    CMQ_TEST(the_thread_starts_and_stops))
