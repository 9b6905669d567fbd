/* Tests csrc/store/recover/cmq_stale_record.c: beside a broker that wipes nothing and whose clock may step back, a view
 * shows every live record and no stale one.
 *
 * A broker is simulated: a child process holds the lock, and the test copies records and units from stores that were
 * written before, whose store times it has changed. All records have one size, so a stale one always lies just where a
 * live one ends, with a fitting queue offset.
 */
#include <stdio.h>
#include <string.h>

#include "base/cmq_bytes.h"
#include "store/marks/cmq_checkpoint.h"
#include "support/cmq_store_kit.h"
#include "support/cmq_view_kit.h"

#define COUNT 10
#define LOG_FILE "commitlog/00000000000000000000"
#define QUEUE_FILE "consumequeue/T/0/00000000000000000000"

static char sources[2][CMQ_PATH_BYTES];
static int64_t record_bytes;

/* A store with messages "<letter><i>" in T/0, stored at times[i]. */
static void make_source(const char *source, char letter, const int64_t *times)
{
    cmq_store *store = kit_open_at(source);
    for (int i = 0; i < COUNT; i++) {
        char body[16];
        snprintf(body, sizeof body, "%c%d", letter, i);
        const cmq_appended appended = kit_append(store, "T", 0, body, NULL, NULL);
        record_bytes = appended.end - appended.first_physical_offset;
        CHECK_INT(appended.first_physical_offset, i * record_bytes);
    }
    kit_close(store);
    for (int i = 0; i < COUNT; i++) {
        uint8_t time[8];
        cmq_store_i64(time, times[i]);
        kit_write_bytes(kit_path(source, LOG_FILE), i * record_bytes + CMQ_RECORD_AT_STORE_TIMESTAMP, time,
                        sizeof time);
    }
}

/* Source 0 has the live messages "m…", source 1 those from before a cut, "s…"; root gets empty files. */
static void start(const int64_t *live, const int64_t *stale)
{
    const char *directory = kit_directory();
    strcpy(view_root, kit_path(directory, "store"));
    strcpy(sources[0], kit_path(directory, "live"));
    strcpy(sources[1], kit_path(directory, "stale"));
    kit_set_clock();
    make_source(sources[0], 'm', live);
    if (stale != NULL) make_source(sources[1], 's', stale);
    CHECK_OK(cmq_fs_make_directory(cmq_fs_posix(), kit_path(view_root, "commitlog")));
    CHECK_OK(cmq_fs_make_directory(cmq_fs_posix(), kit_path(view_root, "consumequeue/T/0")));
    kit_write_bytes(kit_path(view_root, LOG_FILE), KIT_SEGMENT_BYTES - 1, "", 1);
    kit_write_bytes(kit_path(view_root, QUEUE_FILE), KIT_QUEUE_UNITS * CMQ_UNIT_BYTES - 1, "", 1);
}

static void copy_bytes(const char *source, const char *file, int64_t from, int64_t bytes)
{
    uint8_t block[1024];
    CHECK(bytes <= (int64_t)sizeof block);
    kit_read_bytes(kit_path(source, file), from, block, (size_t)bytes);
    kit_write_bytes(kit_path(view_root, file), from, block, (size_t)bytes);
}

/* Records [from, end) with their units. */
static void write_messages(int source, int from, int end)
{
    for (int i = from; i < end; i++) {
        copy_bytes(sources[source], LOG_FILE, i * record_bytes, record_bytes);
        copy_bytes(sources[source], QUEUE_FILE, i * CMQ_UNIT_BYTES, CMQ_UNIT_BYTES);
    }
}

static cmq_store *follow(void)
{
    cmq_store_options options = kit_options(view_root);
    options.read_only = true;
    options.create = false;
    return kit_open(&options);
}

/* The view has m0 to m<count - 1>, in the log and in the queue, and nothing else. */
static void check_sees(cmq_store *view, int count)
{
    char expected[200] = "";
    for (int i = 0; i < count; i++)
        snprintf(expected + strlen(expected), sizeof expected - strlen(expected), i == 0 ? "m%d" : " m%d", i);
    for (int look = 0; look < 3; look++) CHECK_OK(cmq_store_refresh(view));
    CHECK_TEXT(kit_read_all(view), expected);
    CHECK_TEXT(kit_read_topic(view, "T"), expected);
}

static void check_late(int count)
{
    cmq_store *late = follow();
    check_sees(late, count);
    kit_close(late);
}

static void a_clock_that_steps_back_while_we_look(void)
{
    start((const int64_t[COUNT]){1000, 1001, 1002, 500, 501, 502, 502, 400, 401, 2000}, NULL);
    write_messages(0, 0, 3);
    view_kit_hold_lock();
    cmq_store *view = follow();
    check_sees(view, 3);
    write_messages(0, 3, 4);
    check_sees(view, 4);
    write_messages(0, 4, 7);   /* several at once */
    check_sees(view, 7);
    /* The record first, its unit later; half a record. */
    copy_bytes(sources[0], LOG_FILE, 7 * record_bytes, record_bytes);
    check_sees(view, 7);
    write_messages(0, 7, 8);
    check_sees(view, 8);
    copy_bytes(sources[0], LOG_FILE, 8 * record_bytes, 50);
    check_sees(view, 8);
    write_messages(0, 8, 9);
    check_sees(view, 9);
    write_messages(0, 9, 10);
    check_sees(view, 10);
    check_late(10);            /* time has caught up */
    view_kit_release_lock();
    check_sees(view, 10);
    check_late(10);
    kit_close(view);
}

/* A later follower cannot distinguish them from stale ones, until the broker goes on, or time catches up. */
static void a_clock_that_stepped_back_before(void)
{
    start((const int64_t[COUNT]){1000, 1001, 1002, 500, 501, 502, 503, 504, 1002, 1003}, NULL);
    write_messages(0, 0, 6);
    view_kit_hold_lock();
    cmq_store *view = follow();
    check_sees(view, 3);
    write_messages(0, 6, 7);
    check_sees(view, 7);
    check_late(3);
    write_messages(0, 7, 8);
    check_sees(view, 8);
    view_kit_release_lock();
    check_sees(view, 8);
    check_late(3);
    /* The last recovery found the log up to m5. */
    cmq_checkpoint checkpoint;
    CHECK_OK(cmq_checkpoint_load(cmq_fs_posix(), view_root, &checkpoint));
    checkpoint.confirm_phy = 6 * record_bytes;
    CHECK_OK(cmq_checkpoint_store(cmq_fs_posix(), view_root, &checkpoint));
    check_late(6);
    write_messages(0, 8, 9);
    check_sees(view, 9);
    check_late(9);
    kit_close(view);
}

/* Records left from before a cut are whole, in place, continue the queue and have their units in the queue's file: they
 * never show, whatever the broker does. */
static void stale_records_never_show(void)
{
    static const int64_t live[COUNT] = {1000, 1001, 1002, 1003, 1004, 1005, 1006, 1007, 1008, 1009};
    for (int step = 1; step <= 3; step++) {
        start(live, (const int64_t[COUNT]){100, 101, 102, 103, 104, 105, 106, 107, 108, 109});
        write_messages(1, 0, 10);
        write_messages(0, 0, 3);
        view_kit_hold_lock();
        cmq_store *view = follow();
        check_sees(view, 3);
        for (int i = 3; i < 9; i += step) {
            const int end = i + step < 9 ? i + step : 9;
            write_messages(0, i, end);
            check_sees(view, end);
            check_late(end);
        }
        view_kit_release_lock();
        check_sees(view, 9);
        check_late(9);
        kit_close(view);
    }
}

/* Both at once: behind a clock that stepped back there are still older records. */
static void stale_records_behind_a_step_back(void)
{
    start((const int64_t[COUNT]){1000, 1001, 1002, 500, 501, 502, 503, 504, 505, 506},
          (const int64_t[COUNT]){100, 101, 102, 103, 104, 105, 106, 107, 108, 109});
    write_messages(1, 0, 10);
    write_messages(0, 0, 3);
    view_kit_hold_lock();
    cmq_store *view = follow();
    check_sees(view, 3);
    for (int i = 3; i < 9; i++) {
        write_messages(0, i, i + 1);
        check_sees(view, i + 1);
    }
    view_kit_release_lock();
    check_sees(view, 9);
    check_late(3);
    kit_close(view);
}

/* In segments that the log has left behind, nothing is stale: a cut would have removed those after it. */
static void in_older_segments(void)
{
    const char *directory = kit_directory();
    strcpy(view_root, kit_path(directory, "store"));
    kit_set_clock();
    cmq_store *store = kit_open_at(view_root);
    int64_t last = 0;
    for (int i = 0; i < 500; i++) {
        char body[8];
        snprintf(body, sizeof body, "%d", i);
        last = kit_append(store, "T", 0, body, NULL, NULL).first_physical_offset;
        const bool steps_back = i == 40;
        if (!steps_back) continue;
        uint8_t time[8];
        cmq_store_i64(time, atomic_load(&kit_now_ms) - 5000);
        kit_write_bytes(kit_path(view_root, LOG_FILE), last + CMQ_RECORD_AT_STORE_TIMESTAMP, time, sizeof time);
    }
    CHECK(last > 2 * KIT_SEGMENT_BYTES);
    kit_close(store);
    kit_remove_tree(kit_path(view_root, "cometmq"));
    kit_remove_tree(kit_path(view_root, "checkpoint"));
    kit_remove_tree(kit_path(view_root, "consumequeue"));   /* so that all of the log is walked */
    cmq_store *view = follow();
    CHECK_INT(kit_max(view, "T", 0), 500);
    kit_close(view);
}

CMQ_TEST_MAIN(CMQ_TEST(a_clock_that_steps_back_while_we_look), CMQ_TEST(a_clock_that_stepped_back_before),
              CMQ_TEST(stale_records_never_show), CMQ_TEST(stale_records_behind_a_step_back),
              CMQ_TEST(in_older_segments))
