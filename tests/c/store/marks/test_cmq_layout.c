/* test_cmq_layout: the facts about a store that its directory shows, and the guesses that are refused. */
#include "store/marks/cmq_layout.h"

#include <stdio.h>
#include <string.h>

#include "store/index/cmq_index.h"
#include "support/cmq_test.h"

static const char *root;

static void make_folder(const char *name)
{
    char path[CMQ_PATH_BYTES];
    CHECK_OK(cmq_path_join(path, root, name));
    CHECK_OK(cmq_fs_make_directory(cmq_fs_posix(), path));
}

static void make_file(const char *name, uint64_t bytes)
{
    char path[CMQ_PATH_BYTES];
    CHECK_OK(cmq_path_join(path, root, name));
    cmq_file *file;
    CHECK_OK(cmq_file_open(cmq_fs_posix(), path, CMQ_OPEN_CREATE, &file));
    CHECK_OK(cmq_file_resize(file, bytes));
    cmq_file_close(file);
}

static void make_segment(int64_t start, uint64_t bytes)
{
    char name[CMQ_OFFSET_NAME_BYTES], path[64];
    cmq_path_offset_name(name, start);
    snprintf(path, sizeof path, "commitlog/%s", name);
    make_file(path, bytes);
}

static void make_queue_file(const char *kind, const char *topic, int queue, int64_t start, uint64_t bytes)
{
    char name[CMQ_OFFSET_NAME_BYTES], folder[200], path[300];
    cmq_path_offset_name(name, start);
    snprintf(folder, sizeof folder, "%s/%s/%d", kind, topic, queue);
    make_folder(folder);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    make_file(path, bytes);
}

static void make_index(int32_t slots, int32_t entries, uint32_t keys)
{
    static const _Atomic int64_t clock_ms = 1700000000000;
    const cmq_index_options options = {
        .fs = cmq_fs_posix(), .root = root, .slots = slots, .entries = entries, .clock = cmq_clock_manual(&clock_ms)};
    cmq_index *index;
    CHECK_OK(cmq_index_create(&index, &options));
    CHECK_OK(cmq_index_load(index));
    CHECK_OK(cmq_index_make_room(index, keys));
    for (uint32_t i = 0; i < keys; i++) {
        const cmq_index_key key = {
            .phy = 100 + i, .store_ms = 1700000000000, .hash = (uint32_t)(cmq_test_random() & INT32_MAX)};
        cmq_index_put(index, &key, 1);
    }
    cmq_index_destroy(index);
}

static cmq_layout probe(const cmq_layout_sizes *settings)
{
    cmq_layout layout;
    CHECK_OK(cmq_layout_probe(cmq_fs_posix(), root, settings, &layout));
    return layout;
}

static void check_refused(const cmq_layout_sizes *settings, cmq_status status, const char *text)
{
    cmq_layout layout;
    CHECK_STATUS(cmq_layout_probe(cmq_fs_posix(), root, settings, &layout), status);
    if (strstr(cmq_last_error()->text, text) == NULL)
        cmq_test_fail(__FILE__, __LINE__, "\"%s\" does not say \"%s\"", cmq_last_error()->text, text);
}

/* ---- kinds of directories ---- */

static void check_defaults(const cmq_layout *layout)
{
    CHECK_INT(layout->found, 0);
    CHECK_INT(layout->sizes.segment_bytes, 1073741824);
    CHECK_INT(layout->sizes.queue_file_bytes, 6000000);
    CHECK_INT(layout->sizes.batch_file_bytes, 13800000);
    CHECK_INT(layout->sizes.ext_file_bytes, 50331648);
    CHECK_INT(layout->sizes.index_slots, 5000000);
    CHECK_INT(layout->sizes.index_entries, 20000000);
    CHECK_INT(layout->segment_count, 0);
}

static void empty_and_missing(void)
{
    root = "/nowhere/at/all";
    cmq_layout layout = probe(NULL);
    CHECK(!layout.exists && layout.is_empty && !layout.is_store && !layout.has_abort);
    check_defaults(&layout);
    root = cmq_test_directory();
    layout = probe(NULL);
    CHECK(layout.exists && layout.is_empty && !layout.is_store);
    make_folder("cometmq");
    make_file("lock", 4);
    layout = probe(NULL);
    CHECK(layout.exists && layout.is_empty && !layout.is_store);
    make_file("notes.txt", 10);
    layout = probe(NULL);
    CHECK(layout.exists && !layout.is_empty && !layout.is_store);
    make_file("checkpoint", 4096);
    make_file("abort", 0);
    layout = probe(NULL);
    CHECK(layout.is_store && layout.has_abort);
    check_defaults(&layout);
    char file[CMQ_PATH_BYTES];
    CHECK_OK(cmq_path_join(file, root, "lock"));
    root = file;
    check_refused(NULL, CMQ_ERR_NOT_STORE, "is a file");
}

/* ---- sizes from lengths ---- */

static void sizes_from_files(void)
{
    root = cmq_test_directory();
    make_folder("commitlog");
    make_segment(3 * 1048576, 1048576);
    make_segment(4 * 1048576, 1048576);
    make_segment(5 * 1048576, 0);   /* a creation that did not finish */
    make_folder("commitlog/lost+found");
    make_folder("consumequeue/Empty/0");
    make_folder("consumequeue/Odd/notanumber");
    make_file("consumequeue/Odd/notanumber/file", 3);
    make_file("consumequeue/readme", 3);
    make_queue_file("consumequeue", "T", 0, 60000, 60000);
    make_queue_file("consumequeue", "T", 0, 120000, 0);
    make_queue_file("consumequeue", "T", 11, 0, 60000);
    make_queue_file("batchconsumequeue", "B", 0, 0, 46 * 7);
    make_queue_file("consumequeue_ext", "T", 0, 0, 1001);
    make_index(1000, 4000, 500);
    make_file("index/notes.txt", 3);
    const cmq_layout layout = probe(NULL);
    CHECK(layout.is_store && !layout.has_abort);
    CHECK_INT(layout.found, CMQ_FOUND_SEGMENT | CMQ_FOUND_QUEUE | CMQ_FOUND_BATCH | CMQ_FOUND_EXT | CMQ_FOUND_INDEX);
    CHECK_INT(layout.sizes.segment_bytes, 1048576);
    CHECK_INT(layout.segment_first, 3 * 1048576);
    CHECK_INT(layout.segment_count, 2);
    CHECK_INT(layout.sizes.queue_file_bytes, 60000);
    CHECK_INT(layout.sizes.batch_file_bytes, 46 * 7);
    CHECK_INT(layout.sizes.ext_file_bytes, 1001);
    CHECK_INT(layout.sizes.index_slots, 1000);
    CHECK_INT(layout.sizes.index_entries, 4000);

    const cmq_layout_sizes same = layout.sizes;
    CHECK_INT(probe(&same).found, layout.found);
    CHECK_INT(probe(&(cmq_layout_sizes){.queue_file_bytes = 59981}).sizes.queue_file_bytes,
              60000); /* rounded as upstream does */
    check_refused(&(cmq_layout_sizes){.segment_bytes = 2097152}, CMQ_ERR_SETTING,
                  "mappedFileSizeCommitLog is set to 2097152");
    check_refused(&(cmq_layout_sizes){.queue_file_bytes = 6000000}, CMQ_ERR_SETTING,
                  "mappedFileSizeConsumeQueue is set to 6000000");
    check_refused(&(cmq_layout_sizes){.batch_file_bytes = 460}, CMQ_ERR_SETTING,
                  "mapperFileSizeBatchConsumeQueue is set to 460");
    check_refused(&(cmq_layout_sizes){.ext_file_bytes = 1000}, CMQ_ERR_SETTING,
                  "mappedFileSizeConsumeQueueExt is set to 1000");
    check_refused(&(cmq_layout_sizes){.index_slots = 2000}, CMQ_ERR_SETTING, "maxHashSlotNum");
    check_refused(&(cmq_layout_sizes){.index_slots = 1000, .index_entries = 4001}, CMQ_ERR_SETTING, "84040");
    check_refused(&(cmq_layout_sizes){.index_slots = 1005, .index_entries = 3999}, CMQ_ERR_SETTING,
                  "show 1000 and 4000");
    CHECK_INT(probe(&(cmq_layout_sizes){.index_slots = 1000}).sizes.index_entries, 4000);
    CHECK_INT(probe(&(cmq_layout_sizes){.index_entries = 4000}).sizes.index_slots, 1000);
}

static void settings_for_an_empty_store(void)
{
    root = cmq_test_directory();
    const cmq_layout_sizes sizes = {.segment_bytes = 65536,
                                    .queue_file_bytes = 201,
                                    .batch_file_bytes = 92,
                                    .ext_file_bytes = 77,
                                    .index_slots = 10,
                                    .index_entries = 40};
    const cmq_layout layout = probe(&sizes);
    CHECK_INT(layout.found, 0);
    CHECK_INT(layout.sizes.segment_bytes, 65536);
    CHECK_INT(layout.sizes.queue_file_bytes, 220);
    CHECK_INT(layout.sizes.batch_file_bytes, 92);
    CHECK_INT(layout.sizes.ext_file_bytes, 77);
    CHECK_INT(layout.sizes.index_slots, 10);
    CHECK_INT(layout.sizes.index_entries, 40);
    check_refused(&(cmq_layout_sizes){.segment_bytes = -1}, CMQ_ERR_SETTING, "mappedFileSizeCommitLog");
    check_refused(&(cmq_layout_sizes){.ext_file_bytes = -1}, CMQ_ERR_SETTING, "mappedFileSizeConsumeQueueExt");
    check_refused(&(cmq_layout_sizes){.batch_file_bytes = 47}, CMQ_ERR_SETTING, "multiple of 46");
    check_refused(&(cmq_layout_sizes){.index_slots = -1}, CMQ_ERR_SETTING, "maxHashSlotNum");
    check_refused(&(cmq_layout_sizes){.index_entries = 1}, CMQ_ERR_SETTING, "maxIndexNum");
    check_refused(&(cmq_layout_sizes){.queue_file_bytes = INT64_MAX}, CMQ_ERR_SETTING, "mappedFileSizeConsumeQueue");
}

static void one_segment_is_its_length(void)
{
    root = cmq_test_directory();
    make_folder("commitlog");
    make_segment(0, 4096);
    cmq_layout layout = probe(NULL);
    CHECK_INT(layout.sizes.segment_bytes, 4096);
    CHECK_INT(layout.segment_count, 1);
    /* Only an unfinished creation: nothing is known. */
    make_segment(0, 0);
    layout = probe(NULL);
    CHECK_INT(layout.segment_count, 0);
    CHECK_INT(layout.found, 0);
    CHECK(layout.is_store);
}

/* ---- refused ---- */

static void odd_files(void)
{
    root = cmq_test_directory();
    make_folder("commitlog");
    make_segment(0, 4096);
    make_segment(4096, 4095);
    check_refused(NULL, CMQ_ERR_AMBIGUOUS, "00000000000000004096 has 4095 bytes");
    make_segment(4096, 0);
    make_segment(8192, 4096);
    check_refused(NULL, CMQ_ERR_AMBIGUOUS, "00000000000000004096 has 0 bytes");
    make_segment(4096, 4096);
    make_file("commitlog/00000000000000000000.swp", 12);
    check_refused(NULL, CMQ_ERR_NOT_STORE, "00000000000000000000.swp");

    root = cmq_test_directory();
    make_queue_file("consumequeue", "T", 0, 0, 6001);
    check_refused(NULL, CMQ_ERR_AMBIGUOUS, "6001");
    make_queue_file("consumequeue", "T", 0, 0, 6000);
    make_queue_file("consumequeue", "T", 1, 0, 12000);
    check_refused(NULL, CMQ_ERR_AMBIGUOUS, "12000");
    make_queue_file("consumequeue", "T", 1, 0, 6000);
    CHECK_INT(probe(NULL).sizes.queue_file_bytes, 6000);
    make_file("consumequeue/T/0/foreign", 12);
    check_refused(NULL, CMQ_ERR_NOT_STORE, "consumequeue/T/0/foreign");

    root = cmq_test_directory();
    make_folder("index");
    make_file("index/20260101000000000", 84040);
    check_refused(NULL, CMQ_ERR_AMBIGUOUS, "maxHashSlotNum");   /* empty: every split fits */
    CHECK_INT(probe(&(cmq_layout_sizes){.index_slots = 1000, .index_entries = 4000}).found, CMQ_FOUND_INDEX);
    make_file("index/20260101000000001", 84044);
    check_refused(NULL, CMQ_ERR_AMBIGUOUS, "84044");
    make_file("index/20260101000000000", 420000040);
    make_file("index/20260101000000001", 420000040);
    const cmq_layout layout = probe(NULL);   /* empty files of upstream's length */
    CHECK_INT(layout.sizes.index_slots, 5000000);
    CHECK_INT(layout.found, 0);
}

/* The split comes from a file that has entries, also when others have none. */
static void index_with_empty_files(void)
{
    root = cmq_test_directory();
    make_folder("index");
    make_file("index/20200101000000000", 84040);
    make_index(1000, 4000, 5);
    CHECK_INT(probe(NULL).sizes.index_slots, 1000);
}

static void other_kinds_of_store(void)
{
    root = cmq_test_directory();
    make_folder("dledger-n0/data");
    check_refused(NULL, CMQ_ERR_NOT_STORE, "DLedger");
    root = cmq_test_directory();
    make_folder("consumequeue");
    make_file("consumequeue/CURRENT", 16);
    check_refused(NULL, CMQ_ERR_NOT_STORE, "RocksDB");
    root = cmq_test_directory();
    make_folder("consumequeue");
    make_file("consumequeue/MANIFEST-000004", 16);
    check_refused(NULL, CMQ_ERR_NOT_STORE, "defaultRocksDB");
    static const char *const folders[] = {"config/rdb", "config/topics", "config/consumerOffsets",
                                          "config/subscriptionGroups"};
    for (size_t i = 0; i < 4; i++) {
        root = cmq_test_directory();
        make_folder(folders[i]);
        CHECK(!probe(NULL).is_store);
        char path[64];
        snprintf(path, sizeof path, "%s/CURRENT", folders[i]);
        make_file(path, 16);
        check_refused(NULL, CMQ_ERR_NOT_STORE, folders[i]);
    }
}

/* Many queues cost no more than a few: only the first files are opened. */
static uint64_t stats;
static cmq_status counting_stat(cmq_fs *self, const char *path, cmq_file_info *info_out)
{
    stats++;
    return cmq_fs_posix()->ops->stat(self, path, info_out);
}

static void many_queues(void)
{
    root = cmq_test_directory();
    for (int queue = 0; queue < 200; queue++) make_queue_file("consumequeue", "T", queue, 0, 6000);
    cmq_fs_ops ops = *cmq_fs_posix()->ops;
    ops.stat = counting_stat;
    cmq_fs fs = {.ops = &ops};
    cmq_layout layout;
    CHECK_OK(cmq_layout_probe(&fs, root, NULL, &layout));
    CHECK_INT(layout.sizes.queue_file_bytes, 6000);
    CHECK(stats < 50);
}

CMQ_TEST_MAIN(CMQ_TEST(empty_and_missing), CMQ_TEST(sizes_from_files), CMQ_TEST(settings_for_an_empty_store),
              CMQ_TEST(one_segment_is_its_length), CMQ_TEST(odd_files), CMQ_TEST(index_with_empty_files),
              CMQ_TEST(other_kinds_of_store), CMQ_TEST(many_queues))
