/* test_cmq_batch_queue: queues of 46-byte units: their bytes, offsets between bases, min and max, and what recovery
 * believes. */
#include "store/queue/cmq_queue.h"

#include <string.h>

#include "base/cmq_hash.h"
#include "support/cmq_test.h"

#define FILE_UNITS 20
#define RECORD_BYTES 100
#define ALL INT64_MAX

static cmq_queues *open_queues(const char *root, int64_t file_bytes)
{
    cmq_queues *queues;
    const cmq_queues_options options = {.fs = cmq_fs_posix(),
                                        .root = root,
                                        .queue_file_bytes = 200,
                                        .batch_file_bytes = file_bytes,
                                        .ext_file_bytes = 1000};
    CHECK_OK(cmq_queues_create(&queues, &options));
    CHECK_OK(cmq_queues_load(queues));
    return queues;
}

static cmq_queue *require(cmq_queues *queues)
{
    cmq_queue *queue;
    CHECK_OK(cmq_queues_require(queues, cmq_slice_of_text("Bcq"), 1, CMQ_QUEUE_BATCH, &queue));
    return queue;
}

/* Unit i holds 1 + i % 5 messages. */
static int32_t count_of(int64_t i) { return 1 + (int32_t)(i % 5); }

static int64_t base_of(int64_t i)
{
    int64_t base = 0;
    for (int64_t k = 0; k < i; k++) base += count_of(k);
    return base;
}

static void put(cmq_queue *queue, int64_t from, int64_t end)
{
    for (int64_t i = from; i < end; i++) {
        CHECK_INT(cmq_queue_next(queue), base_of(i));
        CHECK_OK(cmq_queue_make_room(queue, 1, 0));
        cmq_queue_put(queue, i * RECORD_BYTES, RECORD_BYTES, i, 5000 + i, count_of(i));
    }
}

static void flush(cmq_queues *queues, int64_t end)
{
    int64_t covered;
    CHECK_OK(cmq_queues_flush(queues, end, false, &covered));
}

static void check_unit(const cmq_unit *unit, int64_t i)
{
    CHECK_INT(unit->offset, base_of(i));
    CHECK_INT(unit->count, count_of(i));
    CHECK_INT(unit->phy, i * RECORD_BYTES);
    CHECK_INT(unit->bytes, RECORD_BYTES);
    CHECK_INT(unit->tags_code, i);
    CHECK_INT(unit->store_ms, 5000 + i);
}

/* Units [first, end): every offset in them leads to its unit, forwards and backwards. */
static void check_units(cmq_queue *queue, int64_t first, int64_t end)
{
    cmq_unit units[50];
    uint32_t count;
    int64_t next;
    CHECK_INT(cmq_queue_min(queue), base_of(first));
    CHECK_INT(cmq_queue_max(queue, ALL), base_of(end));
    for (int64_t i = first; i < end; i++) {
        for (int64_t offset = base_of(i); offset < base_of(i + 1); offset++) {
            CHECK_OK(cmq_queue_read(queue, offset, ALL, units, 2, &count, &next));
            CHECK_INT(count, i + 1 < end ? 2 : 1);
            check_unit(&units[0], i);
            CHECK_INT(next, base_of(i + count));
            CHECK_OK(cmq_queue_read_back(queue, offset + 1, ALL, units, 2, &count, &next));
            CHECK_INT(count, i > first ? 2 : 1);
            check_unit(&units[0], i);
            CHECK_INT(next, base_of(i + 1 - count));
        }
        CHECK_INT(cmq_queue_max(queue, i * RECORD_BYTES + RECORD_BYTES - 1), base_of(i));
        const uint32_t hash = (uint32_t)i;
        CHECK_OK(cmq_queue_scan(queue, 0, ALL, &hash, 1, 1000, units, 50, &count, &next));
        CHECK_INT(count, 1);
        check_unit(&units[0], i);
        CHECK_INT(next, base_of(end));
    }
    CHECK_OK(cmq_queue_read(queue, base_of(end), ALL, units, 50, &count, &next));
    CHECK_INT(count, 0);
    CHECK_OK(cmq_queue_read_back(queue, base_of(first), ALL, units, 50, &count, &next));
    CHECK_INT(count, 0);
    CHECK_OK(cmq_queue_read(queue, 0, ALL, units, 50, &count, &next));
    CHECK_INT(count, end - first < 50 ? end - first : 50);
}

static cmq_file *open_file(const char *root, const char *name)
{
    char path[CMQ_PATH_BYTES];
    cmq_file *file;
    CHECK_OK(cmq_path_join(path, root, name));
    CHECK_OK(cmq_file_open(cmq_fs_posix(), path, CMQ_OPEN_WRITE, &file));
    return file;
}

/* The bytes of spec store 14.4. */
static void unit_has_upstreams_bytes(void)
{
    static const uint8_t expected[46] = {0, 0,    0,    0,    0, 1, 0x23, 0x45, 0,    0,    0,    0xb6, 0, 0, 0, 0,
                                         0, 0x27, 0xa8, 0x07, 0, 0, 1,    0x8b, 0xcf, 0xe5, 0x69, 0xc8, 0, 0, 0, 0,
                                         0, 0,    0,    0x64, 0, 5, 0xff, 0xff, 0xff, 0xff, 0,    0,    0, 0};
    const char *root = cmq_test_directory();
    cmq_queues *queues = open_queues(root, 46 * FILE_UNITS);
    cmq_queue *queue = require(queues);
    const int32_t tags_code = (int32_t)cmq_jhash(cmq_slice_of_text("TagA"));
    CHECK_OK(cmq_queue_reput(queue, 100, 74565, 182, tags_code, INT64_C(1700000000456), 5));
    CHECK_INT(cmq_queue_next(queue), 105);
    CHECK_INT(cmq_queue_min(queue), 100);
    CHECK_INT(cmq_queue_max(queue, ALL), 105);
    flush(queues, ALL);
    cmq_queues_destroy(queues);
    uint8_t bytes[92];
    cmq_file *file = open_file(root, "batchconsumequeue/Bcq/1/00000000000000000000");
    CHECK_OK(cmq_file_read(file, 0, bytes, sizeof bytes));
    CHECK_BYTES(bytes, 46, expected, 46);
    for (size_t i = 46; i < sizeof bytes; i++) CHECK_INT(bytes[i], 0);
    cmq_file_close(file);
}

static void offsets_lead_to_units(void)
{
    const char *root = cmq_test_directory();
    cmq_queues *queues = open_queues(root, 46 * FILE_UNITS);
    cmq_queue *queue = require(queues);
    cmq_unit unit;
    uint32_t count;
    int64_t next, end;
    CHECK_INT(cmq_queue_min(queue), 0);
    CHECK_INT(cmq_queue_max(queue, ALL), 0);
    CHECK_OK(cmq_queue_read(queue, 0, ALL, &unit, 1, &count, &next));
    CHECK_INT(count, 0);
    put(queue, 0, 33);
    check_units(queue, 0, 33);
    flush(queues, 30 * RECORD_BYTES);
    check_units(queue, 0, 33);
    put(queue, 33, 70);
    flush(queues, 70 * RECORD_BYTES);
    cmq_queues_trim(queues);
    cmq_queues_trim(queues);
    check_units(queue, 0, 70);
    cmq_queues_destroy(queues);

    queues = open_queues(root, 46 * FILE_UNITS);
    CHECK_OK(cmq_queues_recover(queues, 0, 70 * RECORD_BYTES, 70 * RECORD_BYTES, &end));
    CHECK_INT(end, 70 * RECORD_BYTES);
    queue = require(queues);
    check_units(queue, 0, 70);
    put(queue, 70, 90);
    check_units(queue, 0, 90);
    CHECK_OK(cmq_queues_expire(queues, 45 * RECORD_BYTES, ALL));
    check_units(queue, 45, 90);
    cmq_file_info info;
    char path[CMQ_PATH_BYTES];
    CHECK_OK(cmq_path_join(path, root, "batchconsumequeue/Bcq/1/00000000000000000920"));
    CHECK_STATUS(cmq_fs_stat(cmq_fs_posix(), path, &info), CMQ_ERR_NOT_FOUND);
    CHECK_OK(cmq_queues_truncate(queues, 60 * RECORD_BYTES + 50));
    check_units(queue, 45, 60);
    put(queue, 60, 65);
    check_units(queue, 45, 65);
    CHECK_OK(cmq_queues_expire(queues, 65 * RECORD_BYTES, ALL));
    CHECK_INT(cmq_queue_min(queue), base_of(65));   /* all too old: behind the last, and offsets go on from there */
    CHECK_INT(cmq_queue_max(queue, ALL), base_of(65));
    put(queue, 65, 66);
    check_units(queue, 65, 66);
    cmq_queues_destroy(queues);
}

/* Retention keeps a damaged unit in front of live ones; the queue's min offset is not read from the damaged bytes. */
static void min_offset_is_of_a_sound_unit(void)
{
    const char *root = cmq_test_directory();
    cmq_queues *queues = open_queues(root, 46 * FILE_UNITS);
    put(require(queues), 0, 70);
    flush(queues, 70 * RECORD_BYTES);
    cmq_queues_destroy(queues);
    queues = open_queues(root, 46 * FILE_UNITS);
    int64_t end;
    CHECK_OK(cmq_queues_recover(queues, 0, 70 * RECORD_BYTES, 70 * RECORD_BYTES, &end));
    uint8_t damaged[2 * 46];
    memset(damaged, 0xff, sizeof damaged);
    cmq_file *file = open_file(root, "batchconsumequeue/Bcq/1/00000000000000001840");
    CHECK_OK(cmq_file_write(file, 3 * 46, damaged, sizeof damaged));   /* units 43 and 44 */
    cmq_file_close(file);
    CHECK_OK(cmq_queues_expire(queues, 45 * RECORD_BYTES, ALL));
    CHECK_INT(cmq_queue_min(require(queues)), base_of(45));
    cmq_queues_destroy(queues);
}

/* Recovery stops at the first unit that is invalid or out of order. */
static void recovery_believes_whole_units_only(void)
{
    static const struct {
        size_t at;
        uint8_t value;
    } damages[] = {{0, 0x80}, {8, 0x80}, {28, 0x80}, {36, 0x80}, {5, 0xff}, {35, 0}};
    for (size_t d = 0; d < sizeof damages / sizeof damages[0]; d++) {
        const char *root = cmq_test_directory();
        cmq_queues *queues = open_queues(root, 46 * FILE_UNITS);
        put(require(queues), 0, 33);
        flush(queues, ALL);
        cmq_queues_destroy(queues);
        cmq_file *file = open_file(root, "batchconsumequeue/Bcq/1/00000000000000000920");
        CHECK_OK(cmq_file_write(file, 8 * 46 + damages[d].at, &damages[d].value, 1));
        cmq_file_close(file);
        queues = open_queues(root, 46 * FILE_UNITS);
        int64_t end;
        CHECK_OK(cmq_queues_recover(queues, 0, 33 * RECORD_BYTES, 33 * RECORD_BYTES, &end));
        CHECK_INT(end, 28 * RECORD_BYTES);
        check_units(require(queues), 0, 28);
        for (int64_t i = 0; i < 33; i++)
            CHECK_OK(
                cmq_queue_reput(require(queues), base_of(i), i * RECORD_BYTES, RECORD_BYTES, i, 5000 + i, count_of(i)));
        check_units(require(queues), 0, 33);
        cmq_queues_destroy(queues);
    }
}

/* A power loss takes a file out of the middle: nothing in the files behind tells, so a queue ends before the hole,
 * wherever holes may begin. */
static void holes_are_behind_whole_units(void)
{
    for (int64_t whole = 0; whole <= FILE_UNITS; whole += FILE_UNITS / 2) {
        const char *root = cmq_test_directory();
        cmq_queues *queues = open_queues(root, 46 * FILE_UNITS);
        put(require(queues), 0, 4 * FILE_UNITS);
        flush(queues, ALL);
        cmq_queues_destroy(queues);
        static const uint8_t zeros[46 * FILE_UNITS];
        cmq_file *file = open_file(root, "batchconsumequeue/Bcq/1/00000000000000000920");
        CHECK_OK(cmq_file_write(file, 0, zeros, sizeof zeros));
        cmq_file_close(file);
        queues = open_queues(root, 46 * FILE_UNITS);
        int64_t end;
        CHECK_OK(cmq_queues_recover(queues, 0, 4 * FILE_UNITS * RECORD_BYTES, whole * RECORD_BYTES, &end));
        CHECK_INT(end, FILE_UNITS * RECORD_BYTES);
        check_units(require(queues), 0, FILE_UNITS);
        for (int64_t i = 0; i < 4 * FILE_UNITS; i++)
            CHECK_OK(
                cmq_queue_reput(require(queues), base_of(i), i * RECORD_BYTES, RECORD_BYTES, i, 5000 + i, count_of(i)));
        check_units(require(queues), 0, 4 * FILE_UNITS);
        cmq_queues_destroy(queues);
    }
}

/* A plain message is a unit of one; offsets that a compaction left out are left out; a record with a lower base begins
 * a new life. */
static void reput_follows_the_log(void)
{
    const char *root = cmq_test_directory();
    cmq_queues *queues = open_queues(root, 46 * FILE_UNITS);
    cmq_queue *queue = require(queues);
    cmq_unit units[4];
    uint32_t count;
    int64_t next;
    CHECK_OK(cmq_queue_reput(queue, 10, 0, 100, 1, 1, 5));
    CHECK_OK(cmq_queue_reput(queue, 15, 100, 100, 1, 1, 1));
    CHECK_OK(cmq_queue_reput(queue, 20, 200, 100, 1, 1, 2));
    CHECK_OK(cmq_queue_reput(queue, 15, 100, 100, 1, 1, 1));   /* there */
    CHECK_INT(cmq_queue_min(queue), 10);
    CHECK_INT(cmq_queue_max(queue, ALL), 22);
    /* the unit before, whose end lies before 17, and the next */
    CHECK_OK(cmq_queue_read(queue, 17, ALL, units, 4, &count, &next));
    CHECK_INT(count, 2);
    CHECK_INT(units[1].offset, 20);
    CHECK_OK(cmq_queue_reput(queue, 15, 100, 99, 1, 1, 1));              /* another record there: later units go */
    CHECK_INT(cmq_queue_max(queue, ALL), 16);
    CHECK_OK(cmq_queue_reput(queue, 0, 500, 100, 1, 1, 3));
    CHECK_INT(cmq_queue_min(queue), 0);
    CHECK_INT(cmq_queue_max(queue, ALL), 3);
    CHECK_STATUS(cmq_queue_reput(queue, 3, 600, 100, 1, 1, 40000), CMQ_ERR_ARGUMENT);
    CHECK_STATUS(cmq_queue_reput(queue, 3, 600, 100, 1, 1, 0), CMQ_ERR_ARGUMENT);
    CHECK_INT(cmq_queues_gaps(queues), 0);
    cmq_queues_destroy(queues);
}

CMQ_TEST_MAIN(CMQ_TEST(unit_has_upstreams_bytes), CMQ_TEST(offsets_lead_to_units),
              CMQ_TEST(min_offset_is_of_a_sound_unit),
              CMQ_TEST(recovery_believes_whole_units_only), CMQ_TEST(holes_are_behind_whole_units),
              CMQ_TEST(reput_follows_the_log))
