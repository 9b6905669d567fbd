/* Tests csrc/store/recover/cmq_log_walk.c: the log's records come whole and in order, however they lie.
 *
 * Threads: yes.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "store/recover/cmq_log_walk.h"
#include "support/cmq_store_kit.h"

#define SEGMENT_BYTES (8 << 20)

static char root[CMQ_PATH_BYTES];

static cmq_store *start(void)
{
    cmq_store_options options;
    CHECK_OK(cmq_path_join(root, kit_directory(), "store"));
    options = kit_options(root);
    options.segment_bytes = SEGMENT_BYTES;
    options.flush = CMQ_FLUSH_ASYNC;
    kit_set_clock();
    return kit_open(&options);
}

/* `count` messages of random sizes up to `bytes_max`. */
static void fill(cmq_store *store, int count, uint32_t bytes_max)
{
    uint8_t *body = malloc(bytes_max);
    CHECK(body != NULL);
    for (int i = 0; i < count; i++) {
        const uint32_t bytes = 1 + (uint32_t)cmq_test_random_below(cmq_test_random_below(20) == 0 ? bytes_max : 300);
        memset(body, i, bytes);
        const cmq_append append = {.common = {.topic = kit_slice("T"), .queue_id = i % 7},
                                   .count = 1,
                                   .bodies = {.kind = CMQ_COLUMN_ONE, .one = {.data = body, .bytes = bytes}}};
        cmq_appended appended;
        CHECK_OK(cmq_store_append(store, &append, &appended));
    }
    free(body);
}

static cmq_status open_walk(cmq_store *store, cmq_log_walk **walk_out)
{
    const cmq_log_walk_options options = {
        .from = cmq_log_min(store->log), .keys_behind = -1, .checks = CMQ_RECORD_CHECK_BODY_CRC, .unclean = true};
    return cmq_log_walk_open(store, &options, walk_out);
}

/* All of the log; *records_out: how many. Returns what ended the walk, at *end_out. */
static cmq_status walk_all(cmq_store *store, int64_t *records_out, int64_t *end_out)
{
    cmq_log_walk *walk;
    cmq_walklot lot;
    int64_t expected = cmq_log_min(store->log);
    const int64_t bytes = cmq_log_segment_bytes(store->log);
    cmq_status status;
    const char *reason;
    *records_out = 0;
    CHECK_OK(open_walk(store, &walk));
    while ((status = cmq_log_walk_next(walk, &lot)) == CMQ_OK) {
        CHECK(lot.count > 0);
        for (uint32_t i = 0; i < lot.count; i++) {
            const cmq_walked *record = &lot.records[i];
            const cmq_slice body = cmq_record_body(cmq_walklot_bytes(&lot, record), (uint32_t)record->unit.bytes);
            /* a blank between */
            if (record->unit.phy != expected) CHECK_INT(record->unit.phy, expected - expected % bytes + bytes);
            CHECK_INT(body.data[0], *records_out % 256);
            CHECK_INT(body.data[body.bytes - 1], *records_out % 256);
            CHECK_INT(record->unit.count, 1);
            CHECK(record->in_queue && !record->names_light_queues);
            expected = record->unit.phy + record->unit.bytes;
            (*records_out)++;
        }
    }
    *end_out = status == CMQ_END ? cmq_log_walk_end(walk, &reason) : -1;
    cmq_log_walk_close(walk);
    return status;
}

static void every_record_in_order(void)
{
    static const uint32_t sizes[] = {300, 100000, 3000000};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        cmq_store *store = start();
        const int count = i == 0 ? 60000 : 200;
        int64_t records, end;
        fill(store, count, sizes[i]);
        CHECK_INT(walk_all(store, &records, &end), CMQ_END);
        CHECK_INT(records, count);
        CHECK_INT(end, cmq_store_confirmed(store));
        kit_close(store);
    }
}

#define TOPIC_COUNT 300

/* Short, long, and more than are remembered: equal numbers mean equal topics. */
static const char *topic_name(int topic)
{
    static char name[160];
    snprintf(name, sizeof name, "%s%.*s%d", topic < 10 ? "" : "Topic-", topic % 50 == 49 ? 110 : topic % 7,
             "nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn"
             "nnnnnnnnnnnnnnn",
             topic);
    return name;
}

static void topics_keep_their_numbers(void)
{
    static int32_t topic_of_number[8 * TOPIC_COUNT];
    cmq_store *store = start();
    cmq_log_walk *walk;
    cmq_walklot lot;
    int64_t keys_behind = -1;
    uint32_t at = 0, keys = 0;
    memset(topic_of_number, -1, sizeof topic_of_number);
    for (int i = 0; i < 4 * TOPIC_COUNT; i++) {
        const cmq_append append = {.common = {.topic = kit_slice(topic_name(i % TOPIC_COUNT)), .queue_id = 0},
                                   .count = 1,
                                   .bodies = {.kind = CMQ_COLUMN_ONE, .one = kit_slice("body")},
                                   .keys = {.kind = CMQ_COLUMN_ONE, .one = kit_slice("a b")}};
        cmq_appended appended;
        CHECK_OK(cmq_store_append(store, &append, &appended));
        if (i == TOPIC_COUNT) keys_behind = appended.first_physical_offset;
    }
    CHECK_OK(cmq_log_walk_open(
        store, &(cmq_log_walk_options){.keys_behind = keys_behind, .checks = CMQ_RECORD_CHECK_BODY_CRC}, &walk));
    while (cmq_log_walk_next(walk, &lot) == CMQ_OK) {
        for (uint32_t i = 0; i < lot.count; i++, at++) {
            const uint32_t number = lot.records[i].topic;
            if (number == 0) continue;
            CHECK(number < 8 * TOPIC_COUNT);
            if (topic_of_number[number] < 0) topic_of_number[number] = (int32_t)(at % TOPIC_COUNT);
            CHECK_INT(topic_of_number[number], at % TOPIC_COUNT);
        }
        for (uint32_t i = 0; i < lot.key_count; i++) CHECK(lot.keys[i].phy > keys_behind);
        keys += lot.key_count;
    }
    cmq_log_walk_close(walk);
    CHECK_INT(at, 4 * TOPIC_COUNT);
    CHECK_INT(keys, 2 * (3 * TOPIC_COUNT - 1));
    kit_close(store);
}

static void an_empty_log(void)
{
    cmq_store *store = start();
    int64_t records, end;
    CHECK_INT(walk_all(store, &records, &end), CMQ_END);
    CHECK_INT(records, 0);
    CHECK_INT(end, 0);
    kit_close(store);
}

/* Left before its end, while the thread reads ahead. */
static void a_walk_that_is_given_up(void)
{
    cmq_store *store = start();
    cmq_log_walk *walk;
    cmq_walklot lot;
    fill(store, 30000, 300);
    for (int lots = 0; lots < 6; lots++) {
        CHECK_OK(open_walk(store, &walk));
        for (int i = 0; i < lots; i++) CHECK_OK(cmq_log_walk_next(walk, &lot));
        cmq_log_walk_close(walk);
    }
    kit_close(store);
}

/* Lost pages are an error, not a signal; records before them are read. */
static void unreadable_pages(void)
{
    cmq_store *store = start();
    int64_t records, end;
    fill(store, 20000, 300);
    const char *path = kit_path(root, "commitlog/00000000000000000000");
    CHECK(truncate(path, 1 << 20) == 0);
    CHECK(walk_all(store, &records, &end) != CMQ_END);
    CHECK(records < 20000);
    CHECK(truncate(path, SEGMENT_BYTES) == 0);
    cmq_store_abandon(store);
}

CMQ_TEST_MAIN(CMQ_TEST(every_record_in_order), CMQ_TEST(topics_keep_their_numbers), CMQ_TEST(an_empty_log),
              CMQ_TEST(a_walk_that_is_given_up), CMQ_TEST(unreadable_pages))
