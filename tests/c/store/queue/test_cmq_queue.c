/* test_cmq_queue: one simple queue: bytes in its file, what is visible, reading both ways, scan, search, disk full. */
#include "store/queue/cmq_queue.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cmq_bytes.h"
#include "base/cmq_crc32.h"
#include "base/cmq_hash.h"
#include "support/cmq_file_twin.h"
#include "support/cmq_test.h"

#define FILE_UNITS 50
#define FILE_BYTES (FILE_UNITS * CMQ_UNIT_BYTES)
#define RECORD_BYTES 100
#define ALL INT64_MAX

/* ---- support ---- */

static cmq_queues *open_with(cmq_fs *fs, const char *root, int64_t file_bytes)
{
    cmq_queues *queues;
    const cmq_queues_options options = {
        .fs = fs, .root = root, .queue_file_bytes = file_bytes, .batch_file_bytes = 46 * 10, .ext_file_bytes = 1000};
    CHECK_OK(cmq_queues_create(&queues, &options));
    CHECK_OK(cmq_queues_load(queues));
    return queues;
}

static cmq_queues *open_queues(const char *root, int64_t file_bytes)
{
    return open_with(cmq_fs_posix(), root, file_bytes);
}

static cmq_queue *require(cmq_queues *queues, const char *topic, int32_t id)
{
    cmq_queue *queue;
    CHECK_OK(cmq_queues_require(queues, cmq_slice_of_text(topic), id, CMQ_QUEUE_SIMPLE, &queue));
    return queue;
}

static int64_t phy_of(int64_t offset) { return offset * RECORD_BYTES; }
static int64_t tag_of(int64_t offset) { return offset % 7 == 0 ? -5 : offset % 3; }

static void put(cmq_queue *queue, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        const int64_t offset = cmq_queue_next(queue);
        CHECK_OK(cmq_queue_make_room(queue, 1, 0));
        cmq_queue_put(queue, phy_of(offset), RECORD_BYTES, tag_of(offset), 1, 1);
    }
}

/* `count` units in an empty queue, which then begins at `first`. */
static void put_from(cmq_queue *queue, int64_t first, int64_t count)
{
    CHECK_OK(cmq_queue_reput(queue, first, phy_of(first), RECORD_BYTES, tag_of(first), 1, 1));
    put(queue, count - 1);
}

static void flush(cmq_queues *queues, int64_t end, bool durable)
{
    int64_t covered;
    CHECK_OK(cmq_queues_flush(queues, end, durable, &covered));
    CHECK_INT(covered, end);
}

static void check_unit(const cmq_unit *unit, int64_t offset)
{
    CHECK_INT(unit->offset, offset);
    CHECK_INT(unit->phy, phy_of(offset));
    CHECK_INT(unit->bytes, RECORD_BYTES);
    CHECK_INT(unit->tags_code, tag_of(offset));
    CHECK_INT(unit->count, 1);
}

/* Every offset in [from, to) forwards and backwards, in steps of `step`. */
static void check_range(cmq_queue *queue, int64_t from, int64_t to, uint32_t step)
{
    cmq_unit units[300];
    uint32_t count;
    int64_t at = from, next;
    while (at < to) {
        CHECK_OK(cmq_queue_read(queue, at, ALL, units, step, &count, &next));
        CHECK(count > 0);
        for (uint32_t i = 0; i < count; i++) check_unit(&units[i], at + i);
        at += count;
        CHECK_INT(next, at);
    }
    CHECK_INT(at, to);
    CHECK_OK(cmq_queue_read(queue, at, ALL, units, step, &count, &next));
    CHECK_INT(count, 0);
    CHECK_INT(next, at);
    while (at > from) {
        CHECK_OK(cmq_queue_read_back(queue, at, ALL, units, step, &count, &next));
        CHECK(count > 0);
        for (uint32_t i = 0; i < count; i++) check_unit(&units[i], at - 1 - i);
        at -= count;
        CHECK_INT(next, at);
    }
    CHECK_INT(at, from);
    CHECK_OK(cmq_queue_read_back(queue, at, ALL, units, step, &count, &next));
    CHECK_INT(count, 0);
}

static void read_file(const char *root, const char *name, uint64_t at, uint8_t *into, size_t bytes)
{
    char path[CMQ_PATH_BYTES];
    cmq_file *file;
    CHECK_OK(cmq_path_join(path, root, name));
    CHECK_OK(cmq_file_open(cmq_fs_posix(), path, CMQ_OPEN_READ, &file));
    CHECK_OK(cmq_file_read(file, at, into, bytes));
    cmq_file_close(file);
}

/* ---- cases ---- */

/* The bytes of spec store 14.2. */
static void unit_has_upstreams_bytes(void)
{
    static const uint8_t filler[20] = {0, 0, 0, 0, 0, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0};
    static const uint8_t unit[20] = {0, 0, 0, 0, 0, 1, 0x23, 0x45, 0, 0, 0, 0xb6, 0, 0, 0, 0, 0, 0x27, 0xa8, 0x07};
    const char *root = cmq_test_directory();
    cmq_queues *queues = open_queues(root, 6000000);
    cmq_queue *queue = require(queues, "TopicTest", 3);
    CHECK_OK(cmq_queue_reput(queue, 7, 74565, 182, (int32_t)cmq_jhash(cmq_slice_of_text("TagA")), 0, 1));
    CHECK_INT(cmq_queue_min(queue), 7);
    CHECK_INT(cmq_queue_next(queue), 8);
    flush(queues, 74747, true);
    cmq_queues_destroy(queues);
    uint8_t bytes[180];
    read_file(root, "consumequeue/TopicTest/3/00000000000000000000", 0, bytes, sizeof bytes);
    for (size_t i = 0; i < 7; i++) CHECK_BYTES(bytes + i * 20, 20, filler, 20);
    CHECK_BYTES(bytes + 140, 20, unit, 20);
    for (size_t i = 160; i < sizeof bytes; i++) CHECK_INT(bytes[i], 0);
    char path[CMQ_PATH_BYTES];
    cmq_file_info info;
    CHECK_OK(cmq_path_join(path, root, "consumequeue/TopicTest/3/00000000000000000000"));
    CHECK_OK(cmq_fs_stat(cmq_fs_posix(), path, &info));
    CHECK_INT(info.bytes, 6000000);
    CHECK(info.allocated_bytes < 65536);
}

static void starts_in_a_later_file(void)
{
    const char *root = cmq_test_directory();
    cmq_queues *queues = open_queues(root, FILE_BYTES);
    cmq_queue *queue = require(queues, "late", 0);
    int64_t end;
    put_from(queue, 3 * FILE_UNITS + 20, 40);
    flush(queues, phy_of(1000), false);
    check_range(queue, 3 * FILE_UNITS + 20, 3 * FILE_UNITS + 60, 7);
    cmq_queues_destroy(queues);
    queues = open_queues(root, FILE_BYTES);
    CHECK_OK(cmq_queues_recover(queues, 0, phy_of(1000), phy_of(1000), &end));
    CHECK_INT(end, phy_of(3 * FILE_UNITS + 60));
    queue = cmq_queues_find(queues, cmq_slice_of_text("late"), 0);
    CHECK(queue != NULL);
    CHECK_INT(cmq_queue_min(queue), 3 * FILE_UNITS + 20);   /* not 0, though fillers lie there (spec store 3.6) */
    CHECK_INT(cmq_queue_max(queue, ALL), 3 * FILE_UNITS + 60);
    check_range(queue, 3 * FILE_UNITS + 20, 3 * FILE_UNITS + 60, 33);
    cmq_queues_destroy(queues);
}

static void reads_across_tail_and_files(void)
{
    const char *root = cmq_test_directory();
    cmq_queues *queues = open_queues(root, FILE_BYTES);
    cmq_queue *queue = require(queues, "topic", 0);
    check_range(queue, 0, 0, 10);
    for (int64_t round = 1; round <= 12; round++) {
        put(queue, 37);
        check_range(queue, 0, round * 37, 1);
        check_range(queue, 0, round * 37, 64);
        if (round % 3 != 0) flush(queues, phy_of(round * 37 - 5), round % 2 == 0);
        check_range(queue, 0, round * 37, 300);
        if (round % 4 == 0) {
            flush(queues, phy_of(round * 37), false);
            cmq_queues_trim(queues);
            cmq_queues_trim(queues);
            check_range(queue, 0, round * 37, 11);
        }
    }
    cmq_queues_destroy(queues);
}

static void visible_ends_at_confirmed(void)
{
    const char *root = cmq_test_directory();
    cmq_queues *queues = open_queues(root, FILE_BYTES);
    cmq_queue *queue = require(queues, "topic", 0);
    put(queue, 120);
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t end = 0; end <= 120; end++) {
            CHECK_INT(cmq_queue_max(queue, phy_of(end)), end);
            CHECK_INT(cmq_queue_max(queue, phy_of(end) + RECORD_BYTES - 1), end);
            cmq_unit units[200];
            uint32_t count;
            int64_t next;
            CHECK_OK(cmq_queue_read(queue, 0, phy_of(end), units, 200, &count, &next));
            CHECK_INT(count, end);
            CHECK_OK(cmq_queue_scan(queue, 0, phy_of(end), NULL, 0, 1000, units, 200, &count, &next));
            CHECK_INT(count, end);
            CHECK_OK(cmq_queue_read_back(queue, ALL, phy_of(end), units, 1, &count, &next));
            CHECK_INT(count, end > 0);
            if (count > 0) check_unit(&units[0], end - 1);
        }
        flush(queues, phy_of(120), false);   /* the same from the files */
        cmq_queues_trim(queues);
        cmq_queues_trim(queues);
    }
    cmq_queues_destroy(queues);
}

static void only_confirmed_units_reach_the_file(void)
{
    const char *root = cmq_test_directory();
    cmq_queues *queues = open_queues(root, FILE_BYTES);
    cmq_queue *queue = require(queues, "topic", 0);
    put(queue, 10);
    flush(queues, phy_of(4) + 99, false);
    uint8_t bytes[200];
    read_file(root, "consumequeue/topic/0/00000000000000000000", 0, bytes, sizeof bytes);
    for (int64_t i = 0; i < 10; i++) CHECK_INT(cmq_load_i32(bytes + i * 20 + 8), i < 4 ? RECORD_BYTES : 0);
    cmq_queues_destroy(queues);
}

static void scan_equals_a_read_and_a_test(void)
{
    const char *root = cmq_test_directory();
    cmq_queues *queues = open_queues(root, 20000 * CMQ_UNIT_BYTES);
    cmq_queue *queue = require(queues, "topic", 0);
    enum { COUNT = 50000 };
    put(queue, COUNT - 3000);
    flush(queues, phy_of(COUNT), false);
    cmq_queues_trim(queues);
    cmq_queues_trim(queues);
    put(queue, 3000);
    static cmq_unit units[COUNT];
    for (int i = 0; i < 60; i++) {
        const uint32_t hashes[2] = {(uint32_t)cmq_test_random_below(4), (uint32_t)-5};
        const uint32_t hash_count = (uint32_t)cmq_test_random_below(3);
        const uint32_t capacity = 1 + (uint32_t)cmq_test_random_below(i % 2 == 0 ? COUNT : 40);
        const uint64_t examine = 1 + cmq_test_random_below(i % 3 == 0 ? COUNT : 300);
        const int64_t from = (int64_t)cmq_test_random_below(COUNT);
        uint32_t count;
        int64_t next;
        CHECK_OK(cmq_queue_scan(queue, from, ALL, hashes, hash_count, examine, units, capacity, &count, &next));
        uint32_t found = 0;
        int64_t at = from;
        for (; at < COUNT && (uint64_t)(at - from) < examine && found < capacity; at++) {
            bool wanted = hash_count == 0;
            for (uint32_t h = 0; h < hash_count; h++) wanted |= (uint32_t)tag_of(at) == hashes[h];
            if (!wanted) continue;
            CHECK(found < count);
            check_unit(&units[found++], at);
        }
        CHECK_INT(count, found);
        /* When the output filled up, anything between the last match and the next one may be said. */
        if (found < capacity) CHECK_INT(next, at);
        else CHECK(next >= at && (uint64_t)(next - from) <= examine);
    }
    cmq_queues_destroy(queues);
}

static int compare_phy(void *context, const cmq_unit *unit, cmq_status *status)
{
    (void)status;
    return unit->phy >= *(const int64_t *)context ? 1 : -1;
}

static int compare_failing(void *context, const cmq_unit *unit, cmq_status *status)
{
    (void)context;
    (void)unit;
    *status = CMQ_ERR_IO;
    return 0;
}

static void search_bisects(void)
{
    const char *root = cmq_test_directory();
    cmq_queues *queues = open_queues(root, FILE_BYTES);
    cmq_queue *queue = require(queues, "topic", 0);
    put_from(queue, 30, 200);
    flush(queues, phy_of(150), false);
    for (int64_t at = 30; at <= 230; at++) {
        int64_t phy = phy_of(at), found;
        CHECK_OK(cmq_queue_search(queue, 0, ALL, ALL, compare_phy, &phy, &found));
        CHECK_INT(found, at < 230 ? at : ALL);
        CHECK_OK(cmq_queue_search(queue, 0, 100, ALL, compare_phy, &phy, &found));
        CHECK_INT(found, at < 100 ? at : 100);
        CHECK_OK(cmq_queue_search(queue, 60, 200, ALL, compare_phy, &phy, &found));
        CHECK_INT(found, at < 60 ? 60 : at < 200 ? at : 200);
    }
    int64_t found;
    CHECK_STATUS(cmq_queue_search(queue, 0, ALL, ALL, compare_failing, NULL, &found), CMQ_ERR_IO);
    cmq_queues_destroy(queues);
}

static void reput_corrects(void)
{
    const char *root = cmq_test_directory();
    cmq_queues *queues = open_queues(root, FILE_BYTES);
    cmq_queue *queue = require(queues, "topic", 0);
    cmq_unit unit;
    uint32_t count;
    int64_t next;
    for (int64_t i = 20; i < 130; i++) CHECK_OK(cmq_queue_reput(queue, i, phy_of(i), RECORD_BYTES, tag_of(i), 0, 1));
    CHECK_INT(cmq_queue_min(queue), 20);   /* began where its first record said */
    flush(queues, phy_of(110), false);
    for (int64_t i = 20; i < 130; i++) CHECK_OK(cmq_queue_reput(queue, i, phy_of(i), RECORD_BYTES, tag_of(i), 0, 1));
    check_range(queue, 20, 130, 40);
    CHECK_INT(cmq_queues_gaps(queues), 0);

    CHECK_OK(cmq_queue_reput(queue, 140, phy_of(140), RECORD_BYTES, tag_of(140), 0, 1));   /* a gap */
    CHECK_INT(cmq_queues_gaps(queues), 10);
    CHECK_INT(cmq_queue_max(queue, ALL), 141);
    CHECK_OK(cmq_queue_read(queue, 129, ALL, &unit, 1, &count, &next));
    CHECK_INT(next, 130);
    cmq_unit units[30];
    CHECK_OK(cmq_queue_read(queue, 130, ALL, units, 30, &count, &next));
    CHECK_INT(count, 1);
    check_unit(&units[0], 140);
    CHECK_OK(cmq_queue_read_back(queue, 141, ALL, units, 2, &count, &next));
    CHECK_INT(count, 2);
    check_unit(&units[1], 129);

    /* another record there: all behind goes */
    CHECK_OK(cmq_queue_reput(queue, 50, phy_of(50), RECORD_BYTES + 1, tag_of(50), 0, 1));
    CHECK_INT(cmq_queue_next(queue), 51);
    CHECK_OK(cmq_queue_reput(queue, 50, phy_of(50), RECORD_BYTES, tag_of(50), 0, 1));
    for (int64_t i = 51; i < 90; i++) CHECK_OK(cmq_queue_reput(queue, i, phy_of(i), RECORD_BYTES, tag_of(i), 0, 1));
    flush(queues, phy_of(90), true);
    check_range(queue, 20, 90, 64);

    CHECK_OK(cmq_queue_reput(queue, 5, phy_of(60), RECORD_BYTES, 0, 0, 1));   /* there already, at 60 */
    check_range(queue, 20, 90, 64);
    CHECK_STATUS(cmq_queue_reput(queue, (int64_t)1 << 40, phy_of(90), RECORD_BYTES, 0, 0, 1), CMQ_ERR_CORRUPT);
    CHECK_STATUS(cmq_queue_reput(queue, -1, phy_of(90), RECORD_BYTES, 0, 0, 1), CMQ_ERR_CORRUPT);
    CHECK_STATUS(cmq_queue_reput(queue, 90, phy_of(90), 0, 0, 0, 1), CMQ_ERR_ARGUMENT);
    /* of a former life: newer units are put again later */
    CHECK_OK(cmq_queue_reput(queue, 90, phy_of(85) + 50, RECORD_BYTES, 0, 0, 1));
    CHECK_OK(cmq_queue_read(queue, 85, ALL, units, 30, &count, &next));
    CHECK_INT(count, 2);
    check_unit(&units[0], 85);
    CHECK_INT(units[1].offset, 90);
    /* the topic was deleted and made again */
    CHECK_OK(cmq_queue_reput(queue, 0, phy_of(200), RECORD_BYTES, 9, 0, 1));
    CHECK_INT(cmq_queue_min(queue), 0);
    CHECK_INT(cmq_queue_max(queue, ALL), 1);
    cmq_queues_destroy(queues);
}

static void full_disk_keeps_the_tail(void)
{
    const char *root = cmq_test_directory();
    cmq_file_twin *twin = cmq_file_twin_create(root, 1);
    cmq_queues *queues = open_with(cmq_file_twin_fs(twin), root, FILE_BYTES);
    cmq_queue *queue = require(queues, "topic", 0);
    int64_t covered;
    put(queue, 60);
    cmq_file_twin_fail(
        twin, &(cmq_twin_fault){.kind = CMQ_TWIN_WRITE, .nth = 1, .times = 0, .sys_errno = ENOSPC, .halfway = true});
    CHECK_STATUS(cmq_queues_flush(queues, phy_of(60), true, &covered), CMQ_ERR_DISK_FULL);
    CHECK_INT(covered, 0);
    check_range(queue, 0, 60, 13);
    put(queue, 500);
    check_range(queue, 0, 560, 100);
    CHECK_STATUS(cmq_queues_flush(queues, phy_of(560), false, &covered), CMQ_ERR_DISK_FULL);
    cmq_file_twin_clear_faults(twin);
    flush(queues, phy_of(560), true);
    check_range(queue, 0, 560, 100);
    cmq_file_twin_fail(twin, &(cmq_twin_fault){.kind = CMQ_TWIN_SYNC, .nth = 1, .times = 1, .sys_errno = EIO});
    put(queue, 5);
    CHECK_STATUS(cmq_queues_flush(queues, phy_of(565), true, &covered), CMQ_ERR_IO);
    CHECK_INT(covered, phy_of(560));
    CHECK_STATUS(cmq_queues_flush(queues, phy_of(565), true, &covered), CMQ_ERR_FENCED);   /* never believed again */
    CHECK_OK(cmq_queues_flush(queues, phy_of(565), false, &covered));
    cmq_queues_destroy(queues);
    cmq_file_twin_close(twin);
}

static void tail_has_a_limit(void)
{
    const char *root = cmq_test_directory();
    cmq_queues *queues = open_queues(root, 6000000);
    cmq_queue *queue = require(queues, "topic", 0);
    CHECK_OK(cmq_queue_make_room(queue, 1u << 22, 0));
    CHECK_STATUS(cmq_queue_make_room(queue, (1u << 22) + 1, 0), CMQ_AGAIN);
    CHECK_INT(cmq_queue_next(queue), 0);
    put(queue, 100);
    check_range(queue, 0, 100, 100);
    cmq_queues_destroy(queues);
}

static void hot_tail_asks_for_a_flush(void)
{
    const char *root = cmq_test_directory();
    cmq_queues *queues = open_queues(root, 6000000);
    cmq_queue *queue = require(queues, "topic", 0);
    CHECK(!cmq_queues_flush_wanted(queues));
    put(queue, 60000);
    CHECK(cmq_queues_flush_wanted(queues));
    flush(queues, phy_of(60000), false);
    CHECK(!cmq_queues_flush_wanted(queues));
    check_range(queue, 0, 60000, 300);
    /* A tail that nobody flushes is written by the writer once it is full and confirmed. */
    for (int64_t i = 60000; i < 300000; i++) {
        CHECK_OK(cmq_queue_make_room(queue, 1, phy_of(i)));
        cmq_queue_put(queue, phy_of(i), RECORD_BYTES, tag_of(i), 0, 1);
    }
    uint8_t bytes[20];
    read_file(root, "consumequeue/topic/0/00000000000000000000", 100000 * 20, bytes, sizeof bytes);
    CHECK_INT(cmq_load_i64(bytes), phy_of(100000));
    check_range(queue, 0, 300000, 300);
    cmq_queues_destroy(queues);
}

static void names_are_checked(void)
{
    const char *root = cmq_test_directory();
    cmq_queues *queues = open_queues(root, FILE_BYTES);
    cmq_queue *queue;
    char longest[257];
    memset(longest, 'x', sizeof longest);
    const cmq_slice wrong[] = {cmq_slice_of_text("a/b"), {.data = (const uint8_t *)"a\0b", .bytes = 3},
                               cmq_slice_of_text(""),    cmq_slice_of_text("."),
                               cmq_slice_of_text(".."),  {.data = (const uint8_t *)longest, .bytes = 256}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        CHECK_STATUS(cmq_queues_require(queues, wrong[i], 0, CMQ_QUEUE_SIMPLE, &queue), CMQ_ERR_TOPIC);
    CHECK_STATUS(cmq_queues_require(queues, cmq_slice_of_text("a"), -1, CMQ_QUEUE_SIMPLE, &queue), CMQ_ERR_ARGUMENT);
    CHECK_OK(cmq_queues_require(queues, (cmq_slice){.data = (const uint8_t *)longest, .bytes = 255}, INT32_MAX,
                                CMQ_QUEUE_SIMPLE, &queue));
    CHECK_INT(cmq_queue_topic_bytes(queue), 255);
    CHECK_INT(cmq_queue_id(queue), INT32_MAX);
    CHECK_OK(cmq_queues_require(queues, cmq_slice_of_text("a"), 0, CMQ_QUEUE_SIMPLE, &queue));
    CHECK_STATUS(cmq_queues_require(queues, cmq_slice_of_text("a"), 0, CMQ_QUEUE_BATCH, &queue), CMQ_ERR_SETTING);
    CHECK_INT(cmq_queues_count(queues), 2);
    CHECK_INT(cmq_queue_index_seed(cmq_queues_at(queues, 1)), cmq_jhash(cmq_slice_of_text("a#")));
    CHECK(cmq_queues_find(queues, cmq_slice_of_text("a"), 1) == NULL);
    CHECK(cmq_queues_at(queues, 2) == NULL);
    cmq_queues_destroy(queues);
}

/* ---- damage ---- */

static void change_file(const char *root, int64_t offset, const void *bytes, size_t count)
{
    char path[CMQ_PATH_BYTES], name[64];
    cmq_file *file;
    snprintf(name, sizeof name, "consumequeue/T/0/%020lld", (long long)(offset / FILE_UNITS * FILE_BYTES));
    CHECK_OK(cmq_path_join(path, root, name));
    CHECK_OK(cmq_file_open(cmq_fs_posix(), path, CMQ_OPEN_WRITE, &file));
    CHECK_OK(cmq_file_write(file, (uint64_t)(offset % FILE_UNITS * CMQ_UNIT_BYTES), bytes, count));
    cmq_file_close(file);
}

/* Three whole files of units that no memory has. */
static cmq_queues *open_three_files(const char *root)
{
    int64_t end;
    cmq_queues *queues = open_queues(root, FILE_BYTES);
    put(require(queues, "T", 0), 3 * FILE_UNITS);
    flush(queues, phy_of(3 * FILE_UNITS), true);
    cmq_queues_destroy(queues);
    queues = open_queues(root, FILE_BYTES);
    CHECK_OK(cmq_queues_recover(queues, 0, phy_of(3 * FILE_UNITS), phy_of(3 * FILE_UNITS), &end));
    return queues;
}

static int64_t first_file(const char *root)
{
    for (int64_t number = 0;; number++) {
        char path[CMQ_PATH_BYTES], name[64];
        cmq_file_info info;
        snprintf(name, sizeof name, "consumequeue/T/0/%020lld", (long long)(number * FILE_BYTES));
        CHECK_OK(cmq_path_join(path, root, name));
        if (cmq_fs_stat(cmq_fs_posix(), path, &info) == CMQ_OK) return number;
    }
}

/* Units with a negative place stay as long as the next sound unit does, and stop nobody else's retention: first ones,
 * those of a border, the last of a file, runs, and the newest. */
static void damaged_units_expire_with_the_next(void)
{
    static const int64_t runs[][2] = {{0, 1},   {0, 3},   {1, 2},   {20, 21},  {18, 23},   {48, 50},
                                      {49, 50}, {49, 52}, {50, 51}, {99, 100}, {148, 149}, {149, 150}};
    static const uint8_t negative[8] = {255, 255, 255, 255, 255, 255, 255, 255};
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++) {
        const int64_t from = runs[i][0], end = runs[i][1];
        const char *root = cmq_test_directory();
        cmq_queues *queues = open_three_files(root);
        cmq_queue *queue = require(queues, "T", 0);
        for (int64_t at = from; at < end; at++) change_file(root, at, negative, sizeof negative);
        for (int64_t expired = 0; expired <= 3 * FILE_UNITS; expired++) {
            const bool kept = expired >= from && (expired <= end || end == 3 * FILE_UNITS);
            const int64_t min = kept ? from : expired, file = min / FILE_UNITS;
            CHECK_OK(cmq_queues_expire(queues, phy_of(expired), ALL));
            CHECK_INT(cmq_queue_min(queue), min);
            CHECK_INT(first_file(root), file < 2 ? file : 2);
        }
        cmq_queues_destroy(queues);
    }
}

/* The same for the last unit of a file, where the next file has one unit. */
static void a_damaged_last_unit_expires_before_a_short_file(void)
{
    static const uint8_t negative[8] = {255};
    const char *root = cmq_test_directory();
    cmq_queues *queues = open_queues(root, FILE_BYTES);
    cmq_queue *queue = require(queues, "T", 0);
    put(queue, FILE_UNITS + 1);
    flush(queues, phy_of(FILE_UNITS + 1), true);
    cmq_queues_destroy(queues);
    change_file(root, FILE_UNITS - 1, negative, sizeof negative);
    queues = open_queues(root, FILE_BYTES);
    int64_t end;
    CHECK_OK(cmq_queues_recover(queues, 0, phy_of(FILE_UNITS + 1), phy_of(FILE_UNITS + 1), &end));
    queue = require(queues, "T", 0);
    put(queue, 1);
    CHECK_OK(cmq_queues_expire(queues, phy_of(FILE_UNITS), ALL));
    CHECK_INT(cmq_queue_min(queue), FILE_UNITS - 1);
    CHECK_INT(first_file(root), 0);
    CHECK_OK(cmq_queues_expire(queues, phy_of(FILE_UNITS + 1), ALL));
    CHECK_INT(cmq_queue_min(queue), FILE_UNITS + 1);
    CHECK_INT(first_file(root), 1);
    cmq_queues_destroy(queues);
}

/* A file's last units are written, and then the next file cannot be made: they are written once more, and count once in
 * their block's sum. */
static void a_failed_flush_leaves_sums_right(void)
{
    const char *root = cmq_test_directory();
    cmq_file_twin *twin = cmq_file_twin_create(root, 1);
    cmq_queues *queues = open_with(cmq_file_twin_fs(twin), root, FILE_BYTES);
    int64_t covered;
    put(require(queues, "T", 0), FILE_UNITS - 10);
    flush(queues, phy_of(FILE_UNITS - 10), true);
    put(require(queues, "T", 0), 20);
    cmq_file_twin_fail(twin, &(cmq_twin_fault){.kind = CMQ_TWIN_CREATE, .nth = 1, .times = 0, .sys_errno = EMFILE});
    CHECK(cmq_queues_flush(queues, phy_of(FILE_UNITS + 10), true, &covered) != CMQ_OK);
    cmq_file_twin_clear_faults(twin);
    flush(queues, phy_of(FILE_UNITS + 10), true);
    cmq_queues_destroy(queues);
    cmq_file_twin_close(twin);
    char path[CMQ_PATH_BYTES];
    cmq_file *file;
    uint8_t units[FILE_BYTES], sum[4];
    CHECK_OK(cmq_path_join(path, root, "consumequeue/T/0/00000000000000000000"));
    CHECK_OK(cmq_file_open(cmq_fs_posix(), path, CMQ_OPEN_READ, &file));
    CHECK_OK(cmq_file_read(file, 0, units, sizeof units));
    cmq_file_close(file);
    CHECK_OK(cmq_path_join(path, root, "cometmq/sums/T/0-00000000000000000000"));
    CHECK_OK(cmq_file_open(cmq_fs_posix(), path, CMQ_OPEN_READ, &file));
    CHECK_OK(cmq_file_read(file, 0, sum, sizeof sum));
    cmq_file_close(file);
    CHECK_INT(cmq_load_u32(sum), cmq_crc32(units, sizeof units));
}

CMQ_TEST_MAIN(CMQ_TEST(unit_has_upstreams_bytes), CMQ_TEST(starts_in_a_later_file),
              CMQ_TEST(reads_across_tail_and_files), CMQ_TEST(visible_ends_at_confirmed),
              CMQ_TEST(only_confirmed_units_reach_the_file), CMQ_TEST(scan_equals_a_read_and_a_test),
              CMQ_TEST(search_bisects), CMQ_TEST(reput_corrects), CMQ_TEST(full_disk_keeps_the_tail),
              CMQ_TEST(tail_has_a_limit), CMQ_TEST(hot_tail_asks_for_a_flush), CMQ_TEST(names_are_checked),
              CMQ_TEST(damaged_units_expire_with_the_next), CMQ_TEST(a_failed_flush_leaves_sums_right),
              CMQ_TEST(a_damaged_last_unit_expires_before_a_short_file))
