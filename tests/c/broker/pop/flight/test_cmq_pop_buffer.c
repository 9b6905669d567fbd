/* Lanes and checkpoints on virtual time: which offsets are committed when, what goes to the log and when, what it
 * costs, and random histories against what must be true of them.
 *
 * Threads: yes (some pop and acknowledge while another stores what is due).
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "broker/pop/flight/cmq_pop_buffer.h"
#include "support/cmq_store_kit.h"
#include "support/cmq_test.h"

enum { QUEUES = 3, MESSAGES_MAX = 4096, POPS_MAX = 4096, RECORDS_MAX = 65536 };

#define START_MS INT64_C(1700000000000)
#define LOG_END INT64_C(5000)

/* A record in the log: a checkpoint, or acks of one. */
typedef struct logged {
    bool is_ack;
    int32_t queue_id;
    int64_t start_offset, pop_ms, log_end;
    uint32_t num;
    int64_t offsets[CMQ_POP_MESSAGES_MAX];
} logged;

/* The world behind the sink. */
static struct world {
    logged log[RECORDS_MAX];
    uint32_t log_count, confirmed;
    bool confirms_at_once, refuses;
    uint32_t room;                              /* records that the log takes until it refuses; UINT32_MAX: all */
    int64_t hopeless;                           /* the checkpoint that begins here is refused for good; -1: none */
    uint32_t sink_calls;
    int64_t committed[QUEUES];
    int64_t now_ms;
    cmq_pop_buffer *buffer;
} world;

static cmq_status store(void *context, const cmq_pop_store_item *items, uint32_t count, uint32_t *stored_out,
                        int64_t *end_out)
{
    (void)context;
    *stored_out = 0;
    world.sink_calls++;
    for (uint32_t i = 0; i < count; i++) {
        if (!items[i].is_ack && items[i].checkpoint.start_offset == world.hopeless)
            return cmq_fail(CMQ_ERR_ARGUMENT, "the test's log never takes this one");
        if (world.refuses || world.room == 0) return cmq_fail(CMQ_ERR_DISK_FULL, "the test's disk is full");
        if (world.room != UINT32_MAX) world.room--;
        CHECK(world.log_count < RECORDS_MAX);
        logged *record = &world.log[world.log_count++];
        const cmq_pop_checkpoint *ck = &items[i].checkpoint;
        const cmq_pop_ack *ack = &items[i].ack;
        *record = (logged){.is_ack = items[i].is_ack};
        if (items[i].is_ack) {
            record->queue_id = ack->queue_id;
            record->start_offset = ack->start_offset;
            record->pop_ms = ack->pop_ms;
            record->num = items[i].offsets != NULL ? items[i].count : 1;
            CHECK(items[i].offsets == NULL || (items[i].count > 1 && ack->offset == -1));
            for (uint32_t m = 0; m < record->num; m++)
                record->offsets[m] = items[i].offsets != NULL ? items[i].offsets[m] : ack->offset;
            CHECK(cmq_slice_equal(ack->topic, cmq_slice_of_text("T")) &&
                  cmq_slice_equal(ack->group, cmq_slice_of_text("G")));
        } else {
            record->queue_id = ck->queue_id;
            record->start_offset = ck->start_offset;
            record->pop_ms = ck->pop_ms;
            record->num = ck->num;
            record->log_end = ck->log_end;
            for (uint32_t m = 0; m < ck->num; m++) record->offsets[m] = ck->start_offset + ck->diffs[m];
            CHECK(cmq_slice_equal(ck->broker, cmq_slice_of_text("b")));
        }
        (*stored_out)++;
        *end_out = world.log_count;
        if (world.confirms_at_once) world.confirmed = world.log_count;
    }
    return CMQ_OK;
}

static int64_t confirmed(void *context)
{
    (void)context;
    return world.confirmed;
}

static void commit(void *context, const cmq_pop_key *key, int64_t offset)
{
    (void)context;
    CHECK(offset >= world.committed[key->queue_id]);
    world.committed[key->queue_id] = offset;
}

static void make_buffer(bool merge, const cmq_pop_buffer_options *extra)
{
    cmq_pop_buffer_options options = extra != NULL ? *extra : (cmq_pop_buffer_options){0};
    options.sink = (cmq_pop_sink){.store = store, .confirmed = confirmed, .commit = commit};
    options.broker = cmq_slice_of_text("b");
    options.merge = merge;
    CHECK_OK(cmq_pop_buffer_create(&world.buffer, &options));
}

static void start(bool merge, const cmq_pop_buffer_options *extra)
{
    memset(&world, 0, sizeof world);
    world.confirms_at_once = true;
    world.room = UINT32_MAX;
    world.hopeless = -1;
    world.now_ms = START_MS;
    make_buffer(merge, extra);
}

static void stop(void) { cmq_pop_buffer_destroy(world.buffer); }

static cmq_pop_key key_of(int32_t queue_id)
{
    return (cmq_pop_key){.topic = cmq_slice_of_text("T"), .group = cmq_slice_of_text("G"), .queue_id = queue_id};
}

static cmq_pop_lane *enter(int32_t queue_id)
{
    const cmq_pop_key key = key_of(queue_id);
    cmq_pop_lane *lane;
    CHECK_OK(cmq_pop_lane_enter(world.buffer, &key, &lane));
    return lane;
}

static int64_t next_of(int32_t queue_id)
{
    cmq_pop_lane *lane = enter(queue_id);
    const int64_t next = cmq_pop_lane_next(lane);
    cmq_pop_lane_leave(world.buffer, lane);
    return next;
}

static uint32_t in_flight_of(int32_t queue_id)
{
    cmq_pop_lane *lane = enter(queue_id);
    const uint32_t count = cmq_pop_lane_in_flight(lane);
    cmq_pop_lane_leave(world.buffer, lane);
    return count;
}

static cmq_status pop(int32_t queue_id, const int64_t *offsets, uint32_t count, int64_t next, int64_t invisible_ms)
{
    cmq_pop_lane *lane = enter(queue_id);
    const cmq_pop_batch batch = {.pop_ms = world.now_ms,
                                 .invisible_ms = invisible_ms,
                                 .next_offset = next,
                                 .log_end = LOG_END + next,
                                 .offsets = offsets,
                                 .count = count,
                                 .revive_queue = 3};
    const cmq_status status = cmq_pop_lane_add(world.buffer, lane, &batch, world.now_ms);
    cmq_pop_lane_leave(world.buffer, lane);
    return status;
}

static void pop_run(int32_t queue_id, int64_t from, uint32_t count)
{
    int64_t offsets[CMQ_POP_MESSAGES_MAX];
    for (uint32_t i = 0; i < count; i++) offsets[i] = from + i;
    CHECK_OK(pop(queue_id, offsets, count, from + count, 60000));
}

static cmq_status ack(int32_t queue_id, int64_t start_offset, int64_t pop_ms, int64_t offset)
{
    const cmq_pop_key key = key_of(queue_id);
    return cmq_pop_buffer_ack(world.buffer, &key, start_offset, pop_ms, &offset, 1, world.now_ms);
}

static int64_t step(void)
{
    int64_t due;
    CHECK_OK(cmq_pop_buffer_step(world.buffer, world.now_ms, &due));
    return due;
}

static void without_merging_everything_is_stored_at_once(void)
{
    start(false, NULL);
    pop_run(0, 0, 5);
    CHECK_INT(world.log_count, 1);
    CHECK_INT(world.log[0].num, 5);
    CHECK_INT(world.log[0].log_end, LOG_END + 5);
    CHECK_INT(world.committed[0], 5);
    CHECK_INT(next_of(0), -1);
    CHECK_INT(in_flight_of(0), 5);
    CHECK_STATUS(ack(0, 0, START_MS, 2), CMQ_AGAIN);
    world.confirms_at_once = false;
    pop_run(0, 5, 2);
    CHECK_INT(world.committed[0], 5);
    CHECK_INT(next_of(0), 7);
    CHECK_INT(step(), world.now_ms);   /* it waits for the disk */
    world.confirmed = world.log_count;
    CHECK_INT(step(), INT64_MAX);
    CHECK_INT(world.committed[0], 7);
    stop();
}

static void a_merged_batch_leaves_nothing_in_the_log(void)
{
    start(true, NULL);
    pop_run(0, 0, 32);
    for (int64_t i = 0; i < 32; i++) {
        CHECK_INT(world.committed[0], 0);
        CHECK_OK(ack(0, 0, START_MS, i));
        if (i < 31) CHECK_OK(ack(0, 0, START_MS, i / 2));   /* again */
    }
    CHECK_INT(world.committed[0], 32);
    CHECK_INT(world.log_count, 0);
    CHECK_INT(in_flight_of(0), 0);
    CHECK_STATUS(ack(0, 0, START_MS, 0), CMQ_AGAIN);
    stop();
}

static void offsets_move_in_pop_order(void)
{
    start(true, NULL);
    pop_run(0, 0, 1);
    world.now_ms++;
    pop_run(0, 1, 1);
    world.now_ms++;
    pop_run(0, 2, 1);
    CHECK_OK(ack(0, 2, START_MS + 2, 2));
    CHECK_OK(ack(0, 1, START_MS + 1, 1));
    CHECK_INT(world.committed[0], 0);
    CHECK_INT(next_of(0), 3);
    CHECK_OK(ack(0, 0, START_MS, 0));
    CHECK_INT(world.committed[0], 3);
    stop();
}

static void unmatched_messages_are_passed_over_in_their_turn(void)
{
    start(true, NULL);
    cmq_pop_lane *lane = enter(0);
    CHECK_OK(cmq_pop_lane_pass(world.buffer, lane, 100));
    cmq_pop_lane_leave(world.buffer, lane);
    CHECK_INT(world.committed[0], 100);
    pop_run(0, 100, 1);
    lane = enter(0);
    for (int64_t next = 200; next < 300; next++) CHECK_OK(cmq_pop_lane_pass(world.buffer, lane, next));
    cmq_pop_lane_leave(world.buffer, lane);
    cmq_pop_buffer_counters counters;
    cmq_pop_buffer_count(world.buffer, &counters);
    CHECK_INT(counters.checkpoints_now, 2);
    CHECK_INT(world.committed[0], 100);
    CHECK_INT(next_of(0), 299);
    CHECK_OK(ack(0, 100, START_MS, 100));
    CHECK_INT(world.committed[0], 299);
    stop();
}

static void due_checkpoints_are_stored_with_their_acks(void)
{
    start(true, NULL);
    pop_run(0, 0, 4);
    CHECK_OK(ack(0, 0, START_MS, 1));
    CHECK_OK(ack(0, 0, START_MS, 3));
    CHECK_INT(step(), START_MS + 10000);
    world.now_ms = START_MS + 8500;
    CHECK_OK(ack(0, 0, START_MS, 0));
    world.now_ms++;
    CHECK_STATUS(ack(0, 0, START_MS, 2), CMQ_AGAIN);   /* it leaves in 1.5 s */
    world.now_ms = START_MS + 9999;
    step();
    CHECK_INT(world.log_count, 0);
    world.now_ms++;
    CHECK_INT(step(), INT64_MAX);
    CHECK_INT(world.log_count, 2);
    CHECK(!world.log[0].is_ack && world.log[1].is_ack);
    CHECK_INT(world.log[0].num, 4);
    CHECK_INT(world.log[0].log_end, LOG_END + 4);   /* of its pop, ten seconds ago */
    static const int64_t acked[] = {0, 1, 3};
    CHECK_INT(world.log[1].num, 3);
    for (int i = 0; i < 3; i++) CHECK_INT(world.log[1].offsets[i], acked[i]);
    CHECK_INT(world.committed[0], 4);
    stop();
}

/* The clock jumped, say: the ack went to the log when its checkpoint was to leave first, and goes once more behind
 * it. */
static void an_ack_that_was_stored_leaves_with_its_checkpoint(void)
{
    start(true, NULL);
    const cmq_pop_key key = key_of(0);
    const int64_t offsets[] = {2, 9};
    pop_run(0, 0, 4);
    world.now_ms = START_MS + 8501;
    CHECK_STATUS(ack(0, 0, START_MS, 2), CMQ_AGAIN);
    cmq_pop_buffer_acks_stored(world.buffer, &key, 0, START_MS, 60000, offsets, 2);
    CHECK_STATUS(ack(0, 0, START_MS, 2), CMQ_AGAIN);
    world.now_ms = START_MS + 100000;
    step();
    CHECK_INT(world.log_count, 2);
    CHECK(!world.log[0].is_ack);
    CHECK_INT(world.log[1].offsets[0], 2);
    stop();
}

/* 3 s before it is due again, where that comes first; and what has less than 4.5 s is not merged at all. */
static void short_invisible_times_leave_early(void)
{
    start(true, NULL);
    const int64_t first[] = {0}, second[] = {1};
    CHECK_OK(pop(0, first, 1, 1, 5000));
    CHECK_INT(world.log_count, 0);
    CHECK_INT(step(), START_MS + 2000);
    CHECK_OK(pop(0, second, 1, 2, 4499));
    CHECK_INT(world.log_count, 1);
    CHECK_INT(world.committed[0], 0);
    world.now_ms += 2000;
    step();
    CHECK_INT(world.log_count, 2);
    CHECK_INT(world.committed[0], 2);
    stop();
}

static void a_full_disk_loses_nothing(void)
{
    start(true, NULL);
    pop_run(0, 0, 3);
    CHECK_OK(ack(0, 0, START_MS, 1));
    world.now_ms += 10000;
    int64_t due;
    world.room = 1;   /* the checkpoint, but not its ack */
    CHECK_STATUS(cmq_pop_buffer_step(world.buffer, world.now_ms, &due), CMQ_ERR_DISK_FULL);
    CHECK_STATUS(cmq_pop_buffer_step(world.buffer, world.now_ms, &due), CMQ_ERR_DISK_FULL);
    const int64_t more[] = {3};
    CHECK_STATUS(pop(0, more, 1, 4, 1000), CMQ_ERR_DISK_FULL);
    CHECK_INT(next_of(0), 3);   /* the checkpoint is in the log, but the ack has still to follow it */
    CHECK_INT(world.committed[0], 0);
    world.room = UINT32_MAX;
    CHECK_INT(step(), INT64_MAX);
    CHECK_INT(world.committed[0], 3);
    CHECK_INT(world.log_count, 2);
    CHECK_INT(world.log[1].offsets[0], 1);
    stop();
}

static uint64_t set_aside(void)
{
    cmq_pop_buffer_counters counters;
    cmq_pop_buffer_count(world.buffer, &counters);
    return counters.refused_now;
}

/* Checkpoints that the log never takes stay in memory, and hold back no others; each step tries them once more. */
static void a_final_refusal_holds_up_no_others(void)
{
    start(true, NULL);
    for (int64_t from = 0; from < 40 * 4; from += 4) pop_run(0, from, 4);
    CHECK_OK(ack(0, 8, START_MS, 9));
    world.now_ms += 10000;
    world.hopeless = 8;
    int64_t due;
    CHECK_STATUS(cmq_pop_buffer_step(world.buffer, world.now_ms, &due), CMQ_ERR_ARGUMENT);
    CHECK_INT(due, world.now_ms);
    CHECK_INT(world.log_count, 39);
    CHECK_INT(world.committed[0], 8);
    CHECK_INT(set_aside(), 1);
    const uint32_t calls = world.sink_calls;
    CHECK_STATUS(cmq_pop_buffer_step(world.buffer, world.now_ms, &due), CMQ_ERR_ARGUMENT);
    CHECK_INT(world.sink_calls, calls + 1);
    CHECK_STATUS(cmq_pop_buffer_empty(world.buffer), CMQ_ERR_ARGUMENT);
    world.hopeless = -1;
    CHECK_INT(step(), INT64_MAX);
    CHECK_INT(world.log_count, 41);
    CHECK_INT(world.log[40].offsets[0], 9);
    CHECK_INT(world.committed[0], 160);
    CHECK_INT(set_aside(), 0);
    stop();
}

/* Acknowledged from end to end it needs no record. */
static void refused_checkpoints_may_be_finished(void)
{
    start(true, NULL);
    pop_run(0, 0, 1);
    world.now_ms += 10000;
    world.hopeless = 0;
    int64_t due;
    CHECK_STATUS(cmq_pop_buffer_step(world.buffer, world.now_ms, &due), CMQ_ERR_ARGUMENT);
    const cmq_pop_key key = key_of(0);
    const int64_t offset = 0;
    cmq_pop_buffer_acks_stored(world.buffer, &key, 0, START_MS, 60000, &offset, 1);
    CHECK_INT(world.committed[0], 1);
    CHECK_INT(set_aside(), 0);
    CHECK_INT(step(), INT64_MAX);
    CHECK_INT(world.log_count, 0);
    stop();
}

static void a_clean_stop_writes_everything_out(void)
{
    start(true, NULL);
    world.confirms_at_once = false;
    for (int32_t q = 0; q < QUEUES; q++) {
        pop_run(q, 0, 32);
        CHECK_OK(ack(q, 0, START_MS, 5));
    }
    CHECK_STATUS(cmq_pop_buffer_empty(world.buffer), CMQ_AGAIN);
    CHECK_INT(world.log_count, 2 * QUEUES);
    const int64_t late[] = {32};
    CHECK_OK(pop(0, late, 1, 33, 60000));
    CHECK_INT(world.log_count, 2 * QUEUES + 1);   /* nothing is merged any more */
    world.confirmed = world.log_count;
    CHECK_OK(cmq_pop_buffer_empty(world.buffer));
    CHECK_INT(world.committed[0], 33);
    for (int32_t q = 1; q < QUEUES; q++) CHECK_INT(world.committed[q], 32);
    stop();
}

static void limits_send_checkpoints_to_the_log(void)
{
    start(true, &(cmq_pop_buffer_options){.merged_max = 4, .lane_max = 3});
    for (int i = 0; i < 4; i++) pop_run(0, i, 1);
    CHECK_INT(world.log_count, 1);
    for (int i = 0; i < 3; i++) pop_run(1, i, 1);
    CHECK_INT(world.log_count, 3);
    cmq_pop_buffer_counters counters;
    cmq_pop_buffer_count(world.buffer, &counters);
    CHECK_INT(counters.merged, 4);
    CHECK_INT(counters.stored, 3);
    stop();
}

static void offsets_far_apart_keep_their_places(void)
{
    start(true, NULL);
    const int64_t offsets[] = {7, 8, 263, 264, 100000, INT64_C(2000000000)};
    CHECK_OK(pop(0, offsets, 6, INT64_C(2000000001), 60000));
    CHECK_OK(ack(0, 7, START_MS, 100000));
    CHECK_OK(ack(0, 7, START_MS, 99999));   /* not one of its messages */
    CHECK_OK(ack(0, 7, START_MS, 6));
    cmq_pop_buffer_counters counters;
    cmq_pop_buffer_count(world.buffer, &counters);
    CHECK_INT(counters.acks_merged, 1);
    CHECK_INT(counters.acks_unknown, 2);
    CHECK_OK(cmq_pop_buffer_empty(world.buffer));
    for (int i = 0; i < 6; i++) CHECK_INT(world.log[0].offsets[i], offsets[i]);
    CHECK_INT(world.log[1].offsets[0], 100000);
    const int64_t too_far[] = {0, INT64_C(1) << 31};
    CHECK_STATUS(pop(1, too_far, 2, 3, 60000), CMQ_ERR_ARGUMENT);
    stop();
}

static void after_a_reset_old_batches_move_nothing(void)
{
    start(true, NULL);
    pop_run(0, 10, 2);
    world.now_ms++;
    pop_run(0, 12, 2);
    cmq_pop_lane *lane = enter(0);
    cmq_pop_lane_reset(world.buffer, lane);
    CHECK_INT(cmq_pop_lane_next(lane), -1);
    CHECK_INT(cmq_pop_lane_in_flight(lane), 0);
    cmq_pop_lane_leave(world.buffer, lane);
    CHECK_OK(ack(0, 10, START_MS, 10));
    CHECK_OK(ack(0, 10, START_MS, 11));
    world.now_ms += 20000;
    CHECK_INT(step(), INT64_MAX);
    CHECK_INT(world.log_count, 1);   /* the second batch is in flight, and comes back when its time is over */
    CHECK_INT(world.log[0].start_offset, 12);
    CHECK_INT(world.committed[0], 0);
    cmq_pop_buffer_counters counters;
    cmq_pop_buffer_count(world.buffer, &counters);
    CHECK_INT(counters.checkpoints_now, 0);
    stop();
}

static void a_reset_drops_finished_batches_at_once(void)
{
    cmq_pop_buffer_counters counters;
    start(true, NULL);
    pop_run(0, 10, 2);
    world.now_ms++;
    pop_run(0, 12, 2);
    CHECK_OK(ack(0, 12, world.now_ms, 12));
    CHECK_OK(ack(0, 12, world.now_ms, 13));
    cmq_pop_buffer_count(world.buffer, &counters);
    CHECK_INT(counters.checkpoints_now, 2);   /* the second waits for its turn behind the first */
    cmq_pop_lane *lane = enter(0);
    cmq_pop_lane_reset(world.buffer, lane);
    cmq_pop_lane_leave(world.buffer, lane);
    cmq_pop_buffer_count(world.buffer, &counters);
    CHECK_INT(counters.checkpoints_now, 1);
    stop();
}

static void a_refused_key_leaves_its_shard_open(void)
{
    start(true, NULL);
    const cmq_pop_key key = {.topic = cmq_slice_of_text("T"), .group = cmq_slice_of_text("G"), .queue_id = -1};
    cmq_pop_lane *lane;
    for (int i = 0; i < 2; i++) CHECK_STATUS(cmq_pop_lane_enter(world.buffer, &key, &lane), CMQ_ERR_ARGUMENT);
    stop();
}

static void deleted_topics_and_groups_are_forgotten(void)
{
    start(true, NULL);
    for (int32_t q = 0; q < QUEUES; q++) pop_run(q, 0, 32);
    cmq_pop_buffer_forget(world.buffer, cmq_slice_of_text("other"), CMQ_SLICE_NONE);
    CHECK_INT(next_of(1), 32);
    cmq_pop_buffer_forget(world.buffer, cmq_slice_of_text("T"), CMQ_SLICE_NONE);
    cmq_pop_buffer_counters counters;
    cmq_pop_buffer_count(world.buffer, &counters);
    CHECK_INT(counters.lanes_now, 0);
    CHECK_INT(counters.checkpoints_now, 0);
    CHECK_STATUS(ack(1, 0, START_MS, 0), CMQ_AGAIN);
    pop_run(1, 0, 1);
    CHECK_INT(next_of(1), 1);
    CHECK_OK(ack(1, 0, START_MS, 0));
    CHECK_INT(world.committed[1], 1);
    stop();
}

static void in_flight_counts_pops_since_the_start(void)
{
    start(false, NULL);
    pop_run(2, 0, 10);
    const cmq_pop_key key = key_of(2);
    cmq_pop_buffer_in_flight_done(world.buffer, &key, 0, 4, START_MS, 60000);
    CHECK_INT(in_flight_of(2), 6);
    cmq_pop_buffer_in_flight_done(world.buffer, &key, 0, 4, START_MS - 1, 60000);
    CHECK_INT(in_flight_of(2), 6);
    uint8_t text[512];
    cmq_pop_lane_item items[4];
    uint32_t cursor = 0;
    CHECK_INT(cmq_pop_buffer_list(world.buffer, &cursor, items, 4, text, sizeof text), 1);
    CHECK_INT(items[0].in_flight, 6);
    CHECK_INT(items[0].queue_id, 2);
    CHECK_BYTES(items[0].group.data, items[0].group.bytes, "G", 1);
    CHECK_INT(cmq_pop_buffer_list(world.buffer, &cursor, items, 4, text, sizeof text), 0);
    cmq_pop_buffer_in_flight_done(world.buffer, &key, 0, 40, START_MS, 60000);
    CHECK_INT(in_flight_of(2), 0);
    stop();
}

static void listing_goes_through_every_lane(void)
{
    enum { LANES = 500 };
    start(true, NULL);
    bool seen[LANES] = {false};
    for (int32_t q = 0; q < LANES; q++) pop_run(q, 0, 1);
    uint8_t text[600];
    cmq_pop_lane_item items[7];
    uint32_t cursor = 0, total = 0;
    for (uint32_t count; (count = cmq_pop_buffer_list(world.buffer, &cursor, items, 7, text, sizeof text)) > 0;
         total += count)
        for (uint32_t i = 0; i < count; i++) {
            CHECK(!seen[items[i].queue_id]);
            CHECK_INT(items[i].oldest_pop_ms, START_MS);
            seen[items[i].queue_id] = true;
        }
    CHECK_INT(total, LANES);
    stop();
}

/* 128 bytes a checkpoint with its entries in the indexes: 4 a message in batches of 32. */
static void a_message_in_flight_takes_four_bytes(void)
{
    enum { CHECKPOINTS = 200000 };
    start(true, NULL);
    cmq_pop_buffer_counters before, after;
    cmq_pop_buffer_count(world.buffer, &before);
    for (int64_t i = 0; i < CHECKPOINTS; i++) {
        const int64_t pop_ms = START_MS;
        world.now_ms = pop_ms;
        pop_run((int32_t)(i % 16), i / 16 * 32, 32);
        CHECK_INT(world.log_count, 0);
    }
    cmq_pop_buffer_count(world.buffer, &after);
    CHECK_INT(after.checkpoints_now, CHECKPOINTS);
    const double bytes = (double)(after.bytes_now - before.bytes_now) / CHECKPOINTS;
    if (bytes > 128) cmq_test_fail(__FILE__, __LINE__, "a checkpoint takes %.1f bytes", bytes);
    for (int64_t i = 0; i < CHECKPOINTS; i++)
        for (int64_t m = 0; m < 32; m += 31) CHECK_OK(ack((int32_t)(i % 16), i / 16 * 32, START_MS, i / 16 * 32 + m));
    stop();
}

/* ---- random histories ---- */

/* A batch that was handed out, as its consumer knows it. */
typedef struct popped {
    int32_t queue_id;
    int64_t start_offset, pop_ms, invisible_ms;
    uint32_t count;
    int64_t offsets[CMQ_POP_MESSAGES_MAX];
    uint32_t acked;                             /* bits: the ack was answered */
} popped;

static struct history {
    popped pops[POPS_MAX];
    uint32_t pop_count;
    int64_t max[QUEUES];
    bool done[QUEUES][MESSAGES_MAX];            /* acked by somebody */
    bool resets;
} history;

/* Every fourth message does not match the group's filter. */
static bool matches(int64_t offset) { return offset % 4 != 3; }

static bool is_acked_in_log(const logged *ck, int64_t offset, uint32_t end)
{
    for (uint32_t i = 0; i < end; i++) {
        const logged *a = &world.log[i];
        if (!a->is_ack || a->queue_id != ck->queue_id || a->start_offset != ck->start_offset || a->pop_ms != ck->pop_ms)
            continue;
        for (uint32_t m = 0; m < a->num; m++)
            if (a->offsets[m] == offset) return true;
    }
    return false;
}

/* Will the log bring the message back? */
static bool is_in_log(int32_t queue_id, int64_t offset, uint32_t end)
{
    for (uint32_t i = 0; i < end; i++) {
        const logged *ck = &world.log[i];
        if (ck->is_ack || ck->queue_id != queue_id) continue;
        for (uint32_t m = 0; m < ck->num; m++)
            if (ck->offsets[m] == offset && !is_acked_in_log(ck, offset, end)) return true;
    }
    return false;
}

/* If the process were killed now, and the machine with it: no message is lost. */
static void check_nothing_is_lost(void)
{
    for (int32_t q = 0; q < QUEUES; q++)
        for (int64_t offset = 0; offset < world.committed[q]; offset++)
            if (matches(offset) && !history.done[q][offset] && !is_in_log(q, offset, world.confirmed))
                cmq_test_fail(__FILE__, __LINE__,
                              "message %lld of queue %d is behind the group's offset %lld, and nobody has it",
                              (long long)offset, q, (long long)world.committed[q]);
}

/* After a clean stop acknowledged messages are not redelivered. */
static void check_nothing_comes_twice(void)
{
    for (uint32_t i = 0; i < history.pop_count; i++) {
        const popped *p = &history.pops[i];
        const logged as_logged = {.queue_id = p->queue_id, .start_offset = p->start_offset, .pop_ms = p->pop_ms};
        bool stored = false;
        for (uint32_t r = 0; r < world.log_count && !stored; r++)
            stored = !world.log[r].is_ack && world.log[r].queue_id == p->queue_id &&
                     world.log[r].start_offset == p->start_offset && world.log[r].pop_ms == p->pop_ms;
        for (uint32_t m = 0; m < p->count; m++) {
            if ((p->acked & UINT32_C(1) << m) == 0) continue;
            CHECK(p->offsets[m] < world.committed[p->queue_id]);
            CHECK(!stored || is_acked_in_log(&as_logged, p->offsets[m], world.log_count));
        }
    }
}

static bool is_used(int32_t queue_id, int64_t start_offset, int64_t pop_ms)
{
    for (uint32_t i = 0; i < world.log_count; i++)
        if (world.log[i].queue_id == queue_id && world.log[i].start_offset == start_offset &&
            world.log[i].pop_ms == pop_ms)
            return true;
    return false;
}

/* No two checkpoints of a queue begin at the same message in the same millisecond, unless the clock jumps back to it
 * after a crash. */
static int64_t unused_ms(int32_t queue_id, int64_t start_offset, int64_t from_ms)
{
    while (is_used(queue_id, start_offset, from_ms)) from_ms++;
    return from_ms;
}

static void pop_some(void)
{
    const int32_t q = (int32_t)cmq_test_random_below(QUEUES);
    const uint32_t wanted = 1 + (uint32_t)cmq_test_random_below(CMQ_POP_MESSAGES_MAX);
    static const int64_t times[] = {1000, 4499, 4500, 6000, 13000, 60000};
    if (history.pop_count == POPS_MAX) return;
    popped *p = &history.pops[history.pop_count];
    *p = (popped){.queue_id = q, .pop_ms = world.now_ms, .invisible_ms = times[cmq_test_random_below(6)]};
    cmq_pop_lane *lane = enter(q);
    int64_t from = cmq_pop_lane_next(lane) > world.committed[q] ? cmq_pop_lane_next(lane) : world.committed[q];
    const int64_t began = from;
    for (; from < history.max[q] && p->count < wanted; from++)
        if (matches(from)) p->offsets[p->count++] = from;
    if (p->count > 0) {
        p->pop_ms = unused_ms(q, p->offsets[0], world.now_ms);
        const cmq_pop_batch batch = {.pop_ms = p->pop_ms,
                                     .invisible_ms = p->invisible_ms,
                                     .next_offset = from,
                                     .offsets = p->offsets,
                                     .count = p->count};
        p->start_offset = p->offsets[0];
        if (cmq_pop_lane_add(world.buffer, lane, &batch, world.now_ms) == CMQ_OK) history.pop_count++;
    } else if (from > began) {
        CHECK_OK(cmq_pop_lane_pass(world.buffer, lane, from));
    }
    cmq_pop_lane_leave(world.buffer, lane);
}

static cmq_status ack_at(const popped *p, int64_t offset, bool *logged_out)
{
    const cmq_pop_key key = key_of(p->queue_id);
    cmq_status status = cmq_pop_buffer_ack(world.buffer, &key, p->start_offset, p->pop_ms, &offset, 1, world.now_ms);
    *logged_out = status == CMQ_AGAIN;
    if (status != CMQ_AGAIN) return status;
    const cmq_pop_store_item item = {.is_ack = true,
                                     .ack = {.topic = key.topic,
                                             .group = key.group,
                                             .queue_id = p->queue_id,
                                             .start_offset = p->start_offset,
                                             .pop_ms = p->pop_ms,
                                             .offset = offset}};
    uint32_t stored;
    int64_t end;
    return store(NULL, &item, 1, &stored, &end);
}

static void ack_some(void)
{
    if (history.pop_count == 0) return;
    const uint64_t recent = cmq_test_random_below(4) == 0 ? history.pop_count
                            : history.pop_count < 8       ? history.pop_count
                                                          : 8;
    popped *p = &history.pops[history.pop_count - 1 - cmq_test_random_below(recent)];
    bool in_log;
    if (cmq_test_random_below(10) == 0) {   /* forged: no message of the batch, or no batch */
        popped forged = *p;
        if (cmq_test_random_below(2) == 0) forged.pop_ms--;
        const cmq_status status = ack_at(&forged, p->start_offset - 1, &in_log);
        CHECK(status == CMQ_OK || status == CMQ_ERR_DISK_FULL);
        return;
    }
    for (uint64_t times = 1 + cmq_test_random_below(p->count); times > 0; times--) {
        const uint32_t m = (uint32_t)cmq_test_random_below(p->count);
        if (ack_at(p, p->offsets[m], &in_log) != CMQ_OK) continue;
        p->acked |= UINT32_C(1) << m;
        history.done[p->queue_id][p->offsets[m]] = true;
    }
}

/* Extend the invisible time: a checkpoint of its own, then the old handle's ack. */
static void extend_one(void)
{
    if (history.pop_count == 0 || history.pop_count == POPS_MAX) return;
    popped *p = &history.pops[cmq_test_random_below(history.pop_count)];
    const uint32_t m = (uint32_t)cmq_test_random_below(p->count);
    const bool was_done = history.done[p->queue_id][p->offsets[m]];
    /* as the broker does: its key is not the old one's */
    const int64_t later_ms = world.now_ms > p->pop_ms ? world.now_ms : p->pop_ms + 1;
    popped again = {.queue_id = p->queue_id,
                    .start_offset = p->offsets[m],
                    .pop_ms = unused_ms(p->queue_id, p->offsets[m], later_ms),
                    .invisible_ms = 5000,
                    .count = 1,
                    .offsets = {p->offsets[m]}};
    const cmq_pop_key key = key_of(p->queue_id);
    const int32_t zero = 0;
    const cmq_pop_store_item item = {.checkpoint = {.topic = key.topic,
                                                    .group = key.group,
                                                    .broker = cmq_slice_of_text("b"),
                                                    .queue_id = p->queue_id,
                                                    .start_offset = again.start_offset,
                                                    .pop_ms = again.pop_ms,
                                                    .num = 1,
                                                    .diffs = &zero}};
    uint32_t stored;
    int64_t end;
    if (was_done || store(NULL, &item, 1, &stored, &end) != CMQ_OK) return;
    world.confirmed = world.log_count;   /* its answer waits for the disk */
    bool in_log;
    if (ack_at(p, p->offsets[m], &in_log) == CMQ_OK) p->acked |= UINT32_C(1) << m;
    history.pops[history.pop_count++] = again;
}

static void restart(bool clean)
{
    if (clean) {
        world.refuses = false;
        cmq_status status = cmq_pop_buffer_empty(world.buffer);
        CHECK(status == CMQ_OK || status == CMQ_AGAIN);
        world.confirmed = world.log_count;
        CHECK_OK(cmq_pop_buffer_empty(world.buffer));
        check_nothing_comes_twice();
    }
    check_nothing_is_lost();
    cmq_pop_buffer_destroy(world.buffer);
    if (!clean) world.log_count = world.confirmed;
    make_buffer(cmq_test_random_below(4) != 0, NULL);
    if (!clean) history.pop_count = 0;   /* of acks that were merged, nothing is promised */
}

static void run_history(void)
{
    memset(&history, 0, sizeof history);
    start(true, NULL);
    world.confirms_at_once = cmq_test_random_below(2) == 0;
    for (int events = 0; events < 120; events++) {
        switch (cmq_test_random_below(14)) {
        case 0:
        case 1: {
            int64_t *max = &history.max[cmq_test_random_below(QUEUES)];
            *max += (int64_t)cmq_test_random_below(60);
            CHECK(*max <= MESSAGES_MAX);
            break;
        }
        case 2:
        case 3:
        case 4:
            pop_some();
            break;
        case 5:
        case 6:
        case 7:
            ack_some();
            break;
        case 8:
            extend_one();
            break;
        case 9:
            world.now_ms += (int64_t)cmq_test_random_below(3000);
            break;
        case 10: {
            int64_t due;
            const cmq_status status = cmq_pop_buffer_step(world.buffer, world.now_ms, &due);
            CHECK(status == CMQ_OK || (world.refuses && status == CMQ_ERR_DISK_FULL));
            break;
        }
        case 11:
            if (world.confirmed < world.log_count)
                world.confirmed += (uint32_t)cmq_test_random_below(world.log_count - world.confirmed + 1);
            break;
        case 12:
            /* the clock jumps */
            if (cmq_test_random_below(4) == 0) world.now_ms += (int64_t)cmq_test_random_below(60000) - 20000;
            if (cmq_test_random_below(4) == 0) world.refuses = !world.refuses;
            break;
        default:
            if (cmq_test_random_below(5) == 0) restart(cmq_test_random_below(2) == 0);
            break;
        }
        check_nothing_is_lost();
    }
    restart(true);
    stop();
}

static void no_history_loses_a_message(void)
{
    for (uint64_t left = kit_amount("CMQ_POP_HISTORIES", 300, 30000); left > 0; left--) run_history();
}

/* ---- threads ---- */

enum { POPPERS = 3, ROUNDS = 3000 };

static _Atomic int64_t shared_log;
static _Atomic int64_t shared_now_ms;
static atomic_int poppers_left;
static int64_t shared_committed[QUEUES];   /* each under its lane's mutex */

static cmq_status count_only(void *context, const cmq_pop_store_item *items, uint32_t count, uint32_t *stored_out,
                             int64_t *end_out)
{
    (void)context;
    (void)items;
    *stored_out = count;
    *end_out = atomic_fetch_add(&shared_log, count) + count;
    return CMQ_OK;
}

static int64_t shared_confirmed(void *context)
{
    (void)context;
    return atomic_load(&shared_log);
}

static void shared_commit(void *context, const cmq_pop_key *key, int64_t offset)
{
    (void)context;
    CHECK(offset > shared_committed[key->queue_id]);
    shared_committed[key->queue_id] = offset;
}

/* All three pop all queues; two of three batches are acknowledged. */
static void *pop_and_ack(void *buffer)
{
    for (int round = 0; round < ROUNDS; round++) {
        const cmq_pop_key key = key_of(round % QUEUES);
        const int64_t now_ms = atomic_fetch_add(&shared_now_ms, 1);
        int64_t offsets[8];
        cmq_pop_lane *lane;
        CHECK_OK(cmq_pop_lane_enter(buffer, &key, &lane));
        const int64_t next = cmq_pop_lane_next(lane), from = next >= 0 ? next : shared_committed[key.queue_id];
        for (int i = 0; i < 8; i++) offsets[i] = from + i;
        const cmq_pop_batch batch = {
            .pop_ms = now_ms, .invisible_ms = 60000, .next_offset = from + 8, .offsets = offsets, .count = 8};
        CHECK_OK(cmq_pop_lane_add(buffer, lane, &batch, now_ms));
        cmq_pop_lane_leave(buffer, lane);
        for (int i = 0; i < 8 && round % 3 != 0; i++) {
            const cmq_status status = cmq_pop_buffer_ack(buffer, &key, from, now_ms, &offsets[i], 1, now_ms);
            CHECK(status == CMQ_OK || status == CMQ_AGAIN);
        }
    }
    atomic_fetch_sub(&poppers_left, 1);
    return NULL;
}

static void threads_pop_while_another_stores(void)
{
    cmq_pop_buffer *buffer;
    const cmq_pop_buffer_options options = {
        .sink = {.store = count_only, .confirmed = shared_confirmed, .commit = shared_commit},
        .merge = true,
        .stay_ms = 2000,
        .broker = cmq_slice_of_text("b")};
    CHECK_OK(cmq_pop_buffer_create(&buffer, &options));
    atomic_store(&shared_now_ms, START_MS);
    atomic_store(&poppers_left, POPPERS);
    pthread_t threads[POPPERS];
    for (int i = 0; i < POPPERS; i++) CHECK_INT(pthread_create(&threads[i], NULL, pop_and_ack, buffer), 0);
    cmq_pop_buffer_counters counters;
    while (atomic_load(&poppers_left) > 0) {
        int64_t due;
        CHECK_OK(cmq_pop_buffer_step(buffer, atomic_load(&shared_now_ms), &due));
        cmq_pop_buffer_count(buffer, &counters);
    }
    for (int i = 0; i < POPPERS; i++) pthread_join(threads[i], NULL);
    CHECK_OK(cmq_pop_buffer_empty(buffer));
    for (int32_t q = 0; q < QUEUES; q++) CHECK_INT(shared_committed[q], POPPERS * ROUNDS / QUEUES * 8);
    cmq_pop_buffer_count(buffer, &counters);
    CHECK_INT(counters.checkpoints_now, 0);
    cmq_pop_buffer_destroy(buffer);
}

CMQ_TEST_MAIN(CMQ_TEST(without_merging_everything_is_stored_at_once),
              CMQ_TEST(a_merged_batch_leaves_nothing_in_the_log), CMQ_TEST(offsets_move_in_pop_order),
              CMQ_TEST(unmatched_messages_are_passed_over_in_their_turn),
              CMQ_TEST(due_checkpoints_are_stored_with_their_acks),
              CMQ_TEST(an_ack_that_was_stored_leaves_with_its_checkpoint), CMQ_TEST(short_invisible_times_leave_early),
              CMQ_TEST(a_full_disk_loses_nothing), CMQ_TEST(a_final_refusal_holds_up_no_others),
              CMQ_TEST(refused_checkpoints_may_be_finished), CMQ_TEST(a_clean_stop_writes_everything_out),
              CMQ_TEST(limits_send_checkpoints_to_the_log), CMQ_TEST(offsets_far_apart_keep_their_places),
              CMQ_TEST(after_a_reset_old_batches_move_nothing),
              CMQ_TEST(a_reset_drops_finished_batches_at_once), CMQ_TEST(a_refused_key_leaves_its_shard_open),
              CMQ_TEST(deleted_topics_and_groups_are_forgotten),
              CMQ_TEST(in_flight_counts_pops_since_the_start), CMQ_TEST(listing_goes_through_every_lane),
              CMQ_TEST(a_message_in_flight_takes_four_bytes), CMQ_TEST(no_history_loses_a_message),
              CMQ_TEST(threads_pop_while_another_stores))
