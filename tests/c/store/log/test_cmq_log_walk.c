/* Tests csrc/store/log/cmq_log_walk.c: the log's records come whole and in order, however they lie.
 *
 * Threads: yes.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "store/log/cmq_log_walk.h"
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
    CHECK_OK(cmq_log_walk_open(store, expected, CMQ_RECORD_CHECK_BODY_CRC, true, &walk));
    while ((status = cmq_log_walk_next(walk, &lot)) == CMQ_OK) {
        CHECK(lot.count > 0);
        for (uint32_t i = 0; i < lot.count; i++) {
            const cmq_record_view *view = &lot.records[i].view;
            if (view->physical_offset != expected) CHECK_INT(view->physical_offset, expected - expected % bytes + bytes);   /* a blank between */
            CHECK_INT(view->body.data[0], *records_out % 256);
            CHECK_INT(view->body.data[view->body.bytes - 1], *records_out % 256);
            CHECK_INT(lot.records[i].facts.count, 1);
            expected = view->physical_offset + view->record_bytes;
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
        CHECK_OK(cmq_log_walk_open(store, 0, CMQ_RECORD_CHECK_BODY_CRC, true, &walk));
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

CMQ_TEST_MAIN(CMQ_TEST(every_record_in_order), CMQ_TEST(an_empty_log), CMQ_TEST(a_walk_that_is_given_up), CMQ_TEST(unreadable_pages))
