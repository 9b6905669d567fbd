/* test_cmq_queue_extension: the extension of simple queues: its bytes, addresses, the seam of two files, files that are
 * gone, recovery. */
#include "store/queue/cmq_queue_extension.h"

#include <string.h>

#include "support/cmq_test.h"

#define FILE_UNITS 50
#define RECORD_BYTES 100
#define EXT_FILE_BYTES 500   /* 24 units of 20 and 20 bytes that no unit fits into, for 4 have to stay free */
#define UNITS_PER_FILE 24
#define ALL INT64_MAX

static cmq_queues *open_queues(const char *root, bool ext)
{
    cmq_queues *queues;
    const cmq_queues_options options = {.fs = cmq_fs_posix(),
                                        .root = root,
                                        .queue_file_bytes = 20 * FILE_UNITS,
                                        .batch_file_bytes = 460,
                                        .ext_file_bytes = EXT_FILE_BYTES,
                                        .ext_enabled = ext};
    CHECK_OK(cmq_queues_create(&queues, &options));
    CHECK_OK(cmq_queues_load(queues));
    return queues;
}

static cmq_queue *require(cmq_queues *queues, const char *topic)
{
    cmq_queue *queue;
    CHECK_OK(cmq_queues_require(queues, cmq_slice_of_text(topic), 0, CMQ_QUEUE_SIMPLE, &queue));
    return queue;
}

static void put(cmq_queue *queue, int64_t count)
{
    for (; count > 0; count--) {
        const int64_t offset = cmq_queue_next(queue);
        CHECK_OK(cmq_queue_make_room(queue, 1, 0));
        cmq_queue_put(queue, offset * RECORD_BYTES, RECORD_BYTES, offset % 10, 7000 + offset, 1);
    }
}

static void flush(cmq_queues *queues, int64_t end)
{
    int64_t covered;
    CHECK_OK(cmq_queues_flush(queues, end, true, &covered));
}

static void check_units(cmq_queue *queue, int64_t from, int64_t end)
{
    cmq_unit units[300];
    uint32_t count, map_bytes;
    int64_t next, tags_code, store_ms;
    CHECK_OK(cmq_queue_read(queue, from, ALL, units, 300, &count, &next));
    CHECK_INT(count, end - from);
    for (int64_t i = from; i < end; i++) {
        CHECK_INT(units[i - from].tags_code, i % 10);
        CHECK_INT(units[i - from].store_ms, 7000 + i);
        CHECK_OK(cmq_queue_ext(queue, i, ALL, NULL, 0, &map_bytes, &tags_code, &store_ms));
        CHECK_INT(map_bytes, 0);
        CHECK_INT(tags_code, i % 10);
        CHECK_INT(store_ms, 7000 + i);
    }
    const uint32_t hash = 3;
    CHECK_OK(cmq_queue_scan(queue, from, ALL, &hash, 1, 1000, units, 300, &count, &next));
    CHECK_INT(next, end);
    uint32_t found = 0;
    for (int64_t i = from; i < end; i++) found += i % 10 == 3;
    CHECK_INT(count, found);
    for (uint32_t i = 0; i < count; i++) CHECK_INT(units[i].tags_code, 3);
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

static void write_file(const char *root, const char *name, uint64_t length, uint64_t at, const uint8_t *from,
                       size_t bytes)
{
    char path[CMQ_PATH_BYTES], folder[CMQ_PATH_BYTES];
    cmq_file *file;
    CHECK_OK(cmq_path_join(path, root, name));
    memcpy(folder, path, sizeof folder);
    *strrchr(folder, '/') = '\0';
    CHECK_OK(cmq_fs_make_directory(cmq_fs_posix(), folder));
    CHECK_OK(cmq_file_open(cmq_fs_posix(), path, CMQ_OPEN_CREATE, &file));
    CHECK_OK(cmq_file_resize(file, length));
    CHECK_OK(cmq_file_write(file, at, from, bytes));
    cmq_file_close(file);
}

static bool file_is_there(const char *root, const char *name)
{
    char path[CMQ_PATH_BYTES];
    cmq_file_info info;
    CHECK_OK(cmq_path_join(path, root, name));
    return cmq_fs_stat(cmq_fs_posix(), path, &info) == CMQ_OK;
}

/* ---- cases ---- */

static void addresses_are_upstreams(void)
{
    CHECK_INT(cmq_queue_extension_address(0), INT64_MIN);
    CHECK_INT((uint64_t)cmq_queue_extension_address(34), UINT64_C(0x8000000000000022));
    CHECK_INT(cmq_queue_extension_offset(INT64_MIN + 34), 34);
    CHECK_INT(cmq_queue_extension_offset(-2147483649), INT64_C(9223372034707292159));
}

/* The unit of spec store 14.2 with its map, made by hand as a broker with SQL filters makes it. */
static void map_of_a_broker_is_read(void)
{
    static const uint8_t ext[34] = {0,    0x22, 0,    0, 0, 0, 0, 0x27, 0xa8, 0x07, 0, 0, 1,  0x8b, 0xcf, 0xe5, 0x69,
                                    0xc8, 0,    0x0e, 1, 2, 3, 4, 5,    6,    7,    8, 9, 10, 11,   12,   13,   14};
    static const uint8_t unit[20] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xb6, 0x80, 0, 0, 0, 0, 0, 0, 0};
    const char *root = cmq_test_directory();
    write_file(root, "consumequeue/T/0/00000000000000000000", 20 * FILE_UNITS, 0, unit, sizeof unit);
    write_file(root, "consumequeue_ext/T/0/00000000000000000000", EXT_FILE_BYTES, 0, ext, sizeof ext);
    for (int enabled = 0; enabled < 2; enabled++) {   /* existing units are read, whether new ones are made or not */
        cmq_queues *queues = open_queues(root, enabled);
        int64_t end, tags_code, store_ms, next;
        uint8_t map[64];
        uint32_t map_bytes, count;
        cmq_unit found;
        CHECK_OK(cmq_queues_recover(queues, 0, 182, 182, &end));
        CHECK_INT(end, 182);
        cmq_queue *queue = require(queues, "T");
        CHECK_OK(cmq_queue_ext(queue, 0, ALL, map, sizeof map, &map_bytes, &tags_code, &store_ms));
        CHECK_BYTES(map, map_bytes, ext + 20, 14);
        CHECK_INT(tags_code, 2598919);
        CHECK_INT(store_ms, INT64_C(1700000000456));
        CHECK_STATUS(cmq_queue_ext(queue, 0, ALL, map, 13, &map_bytes, &tags_code, &store_ms), CMQ_ERR_TOO_LARGE);
        CHECK_STATUS(cmq_queue_ext(queue, 1, ALL, map, 13, &map_bytes, &tags_code, &store_ms), CMQ_ERR_OFFSET);
        CHECK_OK(cmq_queue_read(queue, 0, ALL, &found, 1, &count, &next));
        CHECK_INT(found.tags_code, 2598919);
        CHECK_OK(cmq_queue_make_room(queue, 1, 0));
        cmq_queue_put(queue, 182, 100, 5, 77, 1);
        flush(queues, 282);
        cmq_queues_destroy(queues);
        uint8_t bytes[20];
        read_file(root, "consumequeue/T/0/00000000000000000000", 20, bytes, sizeof bytes);
        CHECK_INT((uint64_t)cmq_load_i64(bytes + 12), enabled ? UINT64_C(0x8000000000000022) : 5);
        if (!enabled) {
            const uint8_t zeros[20] = {0};
            write_file(root, "consumequeue/T/0/00000000000000000000", 20 * FILE_UNITS, 20, zeros, sizeof zeros);
            continue;
        }
        static const uint8_t ours[20] = {0, 20, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 77, 0, 0};
        read_file(root, "consumequeue_ext/T/0/00000000000000000000", 34, bytes, sizeof bytes);
        CHECK_BYTES(bytes, 20, ours, 20);
    }
}

static void units_never_cross_files(void)
{
    const char *root = cmq_test_directory();
    cmq_queues *queues = open_queues(root, true);
    cmq_queue *queue = require(queues, "T");
    for (int i = 0; i < 10; i++) {
        put(queue, 12);   /* every second flush ends with a file, so that its end mark is due with the next */
        check_units(queue, 0, 12 * (i + 1));
        flush(queues, ALL);
        check_units(queue, 0, 12 * (i + 1));
    }
    put(queue, 55);
    flush(queues, 150 * RECORD_BYTES);
    flush(queues, ALL);
    check_units(queue, 0, 175);
    cmq_queues_destroy(queues);
    uint8_t bytes[EXT_FILE_BYTES];
    for (int f = 0; f < 175 / UNITS_PER_FILE; f++) {
        char name[64] = "consumequeue_ext/T/0/", number[CMQ_OFFSET_NAME_BYTES];
        cmq_path_offset_name(number, f * EXT_FILE_BYTES);
        strcat(name, number);
        read_file(root, name, 0, bytes, sizeof bytes);
        for (int u = 0; u < UNITS_PER_FILE; u++) CHECK_INT(cmq_load_i16(bytes + u * 20), 20);
        CHECK_INT(cmq_load_i16(bytes + UNITS_PER_FILE * 20), -1);
        for (size_t i = UNITS_PER_FILE * 20 + 2; i < sizeof bytes; i++) CHECK_INT(bytes[i], 0);
    }
    queues = open_queues(root, true);
    int64_t end;
    /* a cut: extension and queue agree again */
    CHECK_OK(cmq_queues_recover(queues, 0, 160 * RECORD_BYTES, 160 * RECORD_BYTES, &end));
    queue = require(queues, "T");
    check_units(queue, 0, 160);
    put(queue, 40);
    check_units(queue, 0, 200);
    flush(queues, ALL);
    check_units(queue, 0, 200);
    CHECK_OK(cmq_queues_expire(queues, 110 * RECORD_BYTES, ALL));
    check_units(queue, 110, 200);
    CHECK(!file_is_there(root, "consumequeue_ext/T/0/00000000000000001500"));
    CHECK(file_is_there(root, "consumequeue_ext/T/0/00000000000000002000"));
    CHECK_OK(cmq_queues_delete_topic(queues, cmq_slice_of_text("T")));
    CHECK(!file_is_there(root, "consumequeue_ext/T"));
    CHECK(!file_is_there(root, "consumequeue/T"));
    cmq_queues_destroy(queues);
}

static void light_queues_have_none(void)
{
    const char *root = cmq_test_directory();
    cmq_queues *queues = open_queues(root, true);
    cmq_queue *queue = require(queues, "%LMQ%light");
    int64_t tags_code, store_ms;
    uint32_t map_bytes;
    put(queue, 5);
    flush(queues, ALL);
    CHECK(!file_is_there(root, "consumequeue_ext"));
    CHECK_STATUS(cmq_queue_ext(queue, 0, ALL, NULL, 0, &map_bytes, &tags_code, &store_ms), CMQ_ERR_NOT_FOUND);
    cmq_queues_destroy(queues);
}

/* The meaning of an address is unknown without its file: the unit passes every filter, and new units never get old
 * addresses. */
static void lost_files_are_unknown_tags(void)
{
    static const char *const lost[] = {"consumequeue_ext/T/0/00000000000000000000",
                                       "consumequeue_ext/T/0/00000000000000000500"};
    for (size_t pass = 0; pass < 3; pass++) {
        const char *root = cmq_test_directory();
        cmq_queues *queues = open_queues(root, true);
        int64_t end, next;
        uint32_t count, map_bytes;
        int64_t tags_code, store_ms;
        put(require(queues, "T"), 30);
        flush(queues, ALL);
        cmq_queues_destroy(queues);
        for (size_t f = 0; f < 2; f++) {
            char path[CMQ_PATH_BYTES];
            CHECK_OK(cmq_path_join(path, root, lost[f]));
            if (pass == f || pass == 2) CHECK_OK(cmq_fs_remove(cmq_fs_posix(), path));
        }
        queues = open_queues(root, true);
        CHECK_OK(cmq_queues_recover(queues, 0, ALL, ALL, &end));
        CHECK_INT(end, 30 * RECORD_BYTES);
        cmq_queue *queue = require(queues, "T");
        put(queue, 30);
        flush(queues, ALL);
        cmq_unit units[100];
        const uint32_t hash = 12345;   /* of no unit: only the unknown pass */
        CHECK_OK(cmq_queue_scan(queue, 0, ALL, &hash, 1, 1000, units, 100, &count, &next));
        for (uint32_t i = 0; i < count; i++) {
            CHECK(units[i].tags_code < INT32_MIN);
            CHECK(units[i].offset < 30);
            CHECK_STATUS(cmq_queue_ext(queue, units[i].offset, ALL, NULL, 0, &map_bytes, &tags_code, &store_ms),
                         CMQ_ERR_NOT_FOUND);
        }
        CHECK(count >= (pass == 0 ? 24 : pass == 1 ? 6 : 30));
        CHECK_OK(cmq_queue_read(queue, 30, ALL, units, 100, &count, &next));
        CHECK_INT(count, 30);
        for (int64_t i = 0; i < 30; i++) CHECK_INT(units[i].tags_code, (30 + i) % 10);
        cmq_queues_destroy(queues);
    }
}

/* Readers of other processes use the remaining files while a writer recovers: what lies behind a damaged unit stays as
 * it is, and new units go on in the next file. */
static void recovery_cuts_no_file_that_readers_use(void)
{
    static const char *const last = "consumequeue_ext/T/0/00000000000000000500";
    static const uint8_t damage[2] = {0};
    const char *root = cmq_test_directory();
    uint8_t before[EXT_FILE_BYTES], after[EXT_FILE_BYTES];
    int64_t end;
    cmq_queues *queues = open_queues(root, true);
    put(require(queues, "T"), 30);
    flush(queues, ALL);
    cmq_queues_destroy(queues);
    /* the sizes of units 26 and 29, the last */
    write_file(root, last, EXT_FILE_BYTES, (26 - UNITS_PER_FILE) * 20, damage, sizeof damage);
    write_file(root, last, EXT_FILE_BYTES, (29 - UNITS_PER_FILE) * 20, damage, sizeof damage);
    read_file(root, last, 0, before, sizeof before);
    queues = open_queues(root, true);
    CHECK_OK(cmq_queues_recover(queues, 0, ALL, ALL, &end));
    read_file(root, last, 0, after, sizeof after);
    CHECK(memcmp(before, after, sizeof before) == 0);
    CHECK_OK(cmq_queues_end_recover(queues));
    cmq_queue *queue = require(queues, "T");
    put(queue, 30);
    flush(queues, ALL);
    check_units(queue, 30, 60);
    cmq_queues_destroy(queues);
    queues = open_queues(root, true);
    CHECK_OK(cmq_queues_recover(queues, 0, ALL, ALL, &end));
    check_units(require(queues, "T"), 30, 60);
    cmq_queues_destroy(queues);
}

/* Behind the durable point a power loss may leave units of several lives: here 10 to 14 as one recovery put them again,
 * in the second file, which is lost, and 15 to 17 as an earlier life wrote them. No new unit may get an address that an
 * older one has: it would give that one its tags. */
static void units_of_several_lives_share_no_address(void)
{
    enum { POINT = 10, UNITS = 18, MORE = 40 };
    static uint8_t images[FILE_UNITS * 20], ext[EXT_FILE_BYTES];
    const char *root = cmq_test_directory();
    for (int64_t i = 0; i < UNITS; i++) {
        const bool again = i >= POINT && i < 15;
        cmq_store_i64(images + i * 20, i * RECORD_BYTES);
        cmq_store_i32(images + i * 20 + 8, RECORD_BYTES);
        cmq_store_i64(images + i * 20 + 12,
                      cmq_queue_extension_address(again ? EXT_FILE_BYTES + (i - POINT) * 20 : i * 20));
        cmq_store_i16(ext + i * 20, 20);
        cmq_store_i64(ext + i * 20 + 2, i % 10);
        cmq_store_i64(ext + i * 20 + 10, 7000 + i);
    }
    write_file(root, "consumequeue/T/0/00000000000000000000", sizeof images, 0, images, sizeof images);
    write_file(root, "consumequeue_ext/T/0/00000000000000000000", EXT_FILE_BYTES, 0, ext, sizeof ext);
    for (int pass = 0; pass < 2; pass++) {
        int64_t end;
        cmq_queues *queues = open_queues(root, true);
        CHECK_OK(cmq_queues_recover(queues, 0, ALL, pass == 0 ? POINT * RECORD_BYTES : ALL, &end));
        cmq_queue *queue = require(queues, "T");
        for (int64_t i = POINT; pass == 0 && i < MORE; i++)
            CHECK_OK(cmq_queue_reput(queue, i, i * RECORD_BYTES, RECORD_BYTES, i % 10, 7000 + i, 1));
        CHECK_OK(cmq_queues_end_recover(queues));
        flush(queues, ALL);
        check_units(queue, 0, MORE);
        cmq_queues_destroy(queues);
    }
}

/* The folder of the extension was removed by hand: nobody can know any more, so nothing may be filtered away. */
static void addresses_without_a_folder_pass(void)
{
    enum { UNITS = 6000, WITH_EXT = 4500 };
    const char *root = cmq_test_directory();
    static cmq_unit units[UNITS];
    static uint8_t images[UNITS * 20];
    for (int64_t i = 0; i < UNITS; i++) {
        cmq_store_i64(images + i * 20, i * RECORD_BYTES);
        cmq_store_i32(images + i * 20 + 8, RECORD_BYTES);
        cmq_store_i64(images + i * 20 + 12, i == WITH_EXT ? cmq_queue_extension_address(12345 - 1) : i % 10);
    }
    write_file(root, "consumequeue/T/0/00000000000000000000", sizeof images, 0, images, sizeof images);
    cmq_queues *queues;
    const cmq_queues_options options = {.fs = cmq_fs_posix(),
                                        .root = root,
                                        .queue_file_bytes = sizeof images,
                                        .batch_file_bytes = 460,
                                        .ext_file_bytes = 500};
    CHECK_OK(cmq_queues_create(&queues, &options));
    CHECK_OK(cmq_queues_load(queues));
    int64_t end, next;
    uint32_t count;
    const uint32_t hash = 77;
    CHECK_OK(cmq_queues_recover(queues, 0, ALL, ALL, &end));
    for (int64_t from = 0; from <= WITH_EXT; from += 500) {   /* at first through the map, then by reads */
        CHECK_OK(cmq_queue_scan(require(queues, "T"), from, ALL, &hash, 1, from == 500 ? 4000 : UNITS, units, UNITS,
                                &count, &next));
        CHECK_INT(count, from != 500);
        if (count > 0) CHECK_INT(units[0].offset, WITH_EXT);
    }
    cmq_queues_destroy(queues);
}

/* A file system that flushes the queues in the middle of a scan: at the first read of a whole file of the extension. */
static struct {
    cmq_fs fs;
    cmq_fs_ops ops;
    cmq_queues *queues;
    bool armed;
} meddler;

static cmq_status read_and_meddle(cmq_file *file, uint64_t offset, void *into, size_t bytes)
{
    const cmq_status status = cmq_fs_posix()->ops->read(file, offset, into, bytes);
    if (meddler.armed && bytes == EXT_FILE_BYTES) {
        meddler.armed = false;
        flush(meddler.queues, ALL);
        for (int i = 0; i < 3; i++) cmq_queues_trim(meddler.queues);   /* out of the tail: it cools, then it goes */
    }
    return status;
}

static void units_flushed_during_a_scan_are_read_again(void)
{
    enum { FLUSHED = FILE_UNITS, ALL_UNITS = FILE_UNITS + 20 };
    meddler.ops = *cmq_fs_posix()->ops;
    meddler.ops.read = read_and_meddle;
    meddler.fs.ops = &meddler.ops;
    const cmq_queues_options options = {.fs = &meddler.fs,
                                        .root = cmq_test_directory(),
                                        .queue_file_bytes = 20 * FILE_UNITS,
                                        .batch_file_bytes = 460,
                                        .ext_file_bytes = EXT_FILE_BYTES,
                                        .ext_enabled = true};
    CHECK_OK(cmq_queues_create(&meddler.queues, &options));
    CHECK_OK(cmq_queues_load(meddler.queues));
    cmq_queue *queue = require(meddler.queues, "T");
    put(queue, FLUSHED);
    flush(meddler.queues, ALL);
    for (int i = 0; i < 3; i++) cmq_queues_trim(meddler.queues);
    put(queue, ALL_UNITS - FLUSHED);
    cmq_unit units[ALL_UNITS];
    uint32_t count;
    int64_t next;
    const uint32_t hash = 77;
    meddler.armed = true;
    /* The last flushed units and the first of the tail share a file of the extension, which is read once. */
    CHECK_OK(cmq_queue_scan(queue, FLUSHED - 2, ALL, &hash, 1, ALL_UNITS, units, ALL_UNITS, &count, &next));
    CHECK(!meddler.armed);
    CHECK_INT(cmq_queue_tail_lowest(&queue->tail), ALL_UNITS);
    CHECK_INT(next, ALL_UNITS);
    CHECK_INT(count, 0);
    cmq_queues_destroy(meddler.queues);
}

CMQ_TEST_MAIN(CMQ_TEST(addresses_are_upstreams), CMQ_TEST(map_of_a_broker_is_read), CMQ_TEST(units_never_cross_files),
              CMQ_TEST(light_queues_have_none), CMQ_TEST(lost_files_are_unknown_tags),
              CMQ_TEST(recovery_cuts_no_file_that_readers_use), CMQ_TEST(units_of_several_lives_share_no_address),
              CMQ_TEST(addresses_without_a_folder_pass), CMQ_TEST(units_flushed_during_a_scan_are_read_again))
