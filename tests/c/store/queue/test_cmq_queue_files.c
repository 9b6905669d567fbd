/* test_cmq_queue_files: queue files as an opening finds them: foreign entries, gaps, holes, and files that readers of
 * other processes use while a writer recovers.
 */
#include "store/queue/cmq_queue.h"

#include <stdio.h>
#include <string.h>

#include "support/cmq_test.h"

#define FILE_UNITS 40
#define BATCH_FILE_UNITS 30
#define EXT_FILE_BYTES 700
#define ALL INT64_MAX

static const char *root;
static cmq_queues *set;

static void open_set(void)
{
    const cmq_queues_options options = {.fs = cmq_fs_posix(),
                                        .root = root,
                                        .queue_file_bytes = FILE_UNITS * 20,
                                        .batch_file_bytes = BATCH_FILE_UNITS * 46,
                                        .ext_file_bytes = EXT_FILE_BYTES,
                                        .descriptors_max = 8,
                                        .maps_max = 2};
    CHECK_OK(cmq_queues_create(&set, &options));
    CHECK_OK(cmq_queues_load(set));
}

static void begin(void)
{
    root = cmq_test_directory();
    open_set();
}

/* ---- foreign entries ---- */

static void make_file(const char *path, uint64_t bytes)
{
    char full[CMQ_PATH_BYTES], folder[CMQ_PATH_BYTES];
    cmq_file *file;
    CHECK_OK(cmq_path_join(full, root, path));
    memcpy(folder, full, sizeof folder);
    *strrchr(folder, '/') = '\0';
    CHECK_OK(cmq_fs_make_directory(cmq_fs_posix(), folder));
    CHECK_OK(cmq_file_open(cmq_fs_posix(), full, CMQ_OPEN_CREATE, &file));
    CHECK_OK(cmq_file_resize(file, bytes));
    cmq_file_close(file);
}

static cmq_status load_again(void)
{
    cmq_queues *queues;
    const cmq_queues_options options = {.fs = cmq_fs_posix(),
                                        .root = root,
                                        .queue_file_bytes = FILE_UNITS * 20,
                                        .batch_file_bytes = 46,
                                        .ext_file_bytes = 1000};
    CHECK_OK(cmq_queues_create(&queues, &options));
    const cmq_status status = cmq_queues_load(queues);
    cmq_queues_destroy(queues);
    return status;
}

static void foreign_entries_are_reported(void)
{
    begin();
    cmq_queues_destroy(set);
    char path[CMQ_PATH_BYTES];
    make_file("consumequeue/note.txt", 5);                     /* not in a queue's folder: skipped, as upstream does */
    make_file("consumequeue/topic/readme", 5);
    make_file("consumequeue/topic/007/anything", 5);           /* no queue id: upstream would look for it as 7 */
    make_file("consumequeue/topic/0/folder/anything", 5);
    CHECK_OK(load_again());
    make_file("consumequeue/topic/0/00000000000000000000", FILE_UNITS * 20 + 1);
    CHECK_STATUS(load_again(), CMQ_ERR_SETTING);
    CHECK(strstr(cmq_last_error()->text, "mappedFileSizeConsumeQueue=801") != NULL);
    make_file("consumequeue/topic/0/00000000000000000000", FILE_UNITS * 20);
    CHECK_OK(load_again());
    make_file("consumequeue/topic/0/00000000000000000000.bak", 5);
    CHECK_STATUS(load_again(), CMQ_ERR_NOT_STORE);
    CHECK_OK(cmq_path_join(path, root, "consumequeue/topic/0/00000000000000000000.bak"));
    CHECK_OK(cmq_fs_remove(cmq_fs_posix(), path));
    make_file("consumequeue/topic/0/00000000000000000007", FILE_UNITS * 20);
    CHECK_STATUS(load_again(), CMQ_ERR_NOT_STORE);
    CHECK_OK(cmq_path_join(path, root, "consumequeue/topic/0/00000000000000000007"));
    CHECK_OK(cmq_fs_remove(cmq_fs_posix(), path));
    make_file("consumequeue/topic/0/00000000000000000800", 0);   /* left by a crash while the file was made */
    CHECK_OK(load_again());
    cmq_file_info info;
    CHECK_OK(cmq_path_join(path, root, "consumequeue/topic/0/00000000000000000800"));
    CHECK_STATUS(cmq_fs_stat(cmq_fs_posix(), path, &info), CMQ_ERR_NOT_FOUND);
    make_file("consumequeue/MANIFEST-000001", 5);
    CHECK_STATUS(load_again(), CMQ_ERR_NOT_STORE);
}

/* A hole in the names: units behind it are rebuilt from the log, unless those in front had expired. */
static void gap_in_the_names(void)
{
    for (int pass = 0; pass < 2; pass++) {
        begin();
        cmq_queue *queue;
        int64_t covered, end;
        CHECK_OK(cmq_queues_require(set, cmq_slice_of_text("t"), 0, CMQ_QUEUE_SIMPLE, &queue));
        CHECK_OK(cmq_queue_make_room(queue, 4 * FILE_UNITS, 0));
        for (int i = 0; i < 4 * FILE_UNITS; i++) cmq_queue_put(queue, i * 100, 100, 0, 0, 1);
        CHECK_OK(cmq_queues_flush(set, 4 * FILE_UNITS * 100, false, &covered));
        cmq_queues_destroy(set);
        char path[CMQ_PATH_BYTES];
        CHECK_OK(cmq_path_join(path, root, "consumequeue/t/0/00000000000000000800"));
        CHECK_OK(cmq_fs_remove(cmq_fs_posix(), path));
        open_set();
        CHECK_OK(cmq_queues_recover(set, pass == 0 ? 0 : 2 * FILE_UNITS * 100, 4 * FILE_UNITS * 100,
                                    4 * FILE_UNITS * 100, &end));
        queue = cmq_queues_find(set, cmq_slice_of_text("t"), 0);
        CHECK_INT(cmq_queue_min(queue), pass == 0 ? 0 : 2 * FILE_UNITS);
        CHECK_INT(cmq_queue_max(queue, ALL), pass == 0 ? FILE_UNITS : 4 * FILE_UNITS);
        cmq_queues_destroy(set);
    }
}

/* ---- files that readers of other processes use while a writer recovers ---- */

#define LIVE_UNITS (4 * FILE_UNITS)

static cmq_queue *live_queue(void)
{
    cmq_queue *queue;
    CHECK_OK(cmq_queues_require(set, cmq_slice_of_text("t"), 0, CMQ_QUEUE_SIMPLE, &queue));
    return queue;
}

/* The files of a killed writer: units [first, LIVE_UNITS). */
static void make_live_files(int first)
{
    int64_t covered;
    begin();
    cmq_queue *queue = live_queue();
    CHECK_OK(cmq_queue_reput(queue, first, first * 100, 100, first, 0, 1));
    CHECK_OK(cmq_queue_make_room(queue, LIVE_UNITS, 0));
    for (int i = first + 1; i < LIVE_UNITS; i++) cmq_queue_put(queue, i * 100, 100, i, 0, 1);
    CHECK_OK(cmq_queues_flush(set, LIVE_UNITS * 100, false, &covered));
    cmq_queues_destroy(set);
}

static cmq_queue *recover_live(int units)
{
    int64_t end;
    open_set();
    CHECK_OK(cmq_queues_recover(set, 0, units * 100, units * 100, &end));
    return live_queue();
}

static void reput_live(cmq_queue *queue, int first, int end)
{
    for (int i = first; i < end; i++) CHECK_OK(cmq_queue_reput(queue, i, i * 100, 100, i, 0, 1));
}

static void end_live(cmq_queue *queue, int units)
{
    int64_t covered;
    CHECK_OK(cmq_queues_end_recover(set));
    CHECK_OK(cmq_queues_flush(set, ALL, true, &covered));
    CHECK_INT(cmq_queue_max(queue, ALL), units);
    CHECK_INT(cmq_queues_gaps(set), 0);
}

static const char *live_path(int unit)
{
    static char path[CMQ_PATH_BYTES];
    char name[64];
    snprintf(name, sizeof name, "consumequeue/t/0/%020d", unit * 20);
    CHECK_OK(cmq_path_join(path, root, name));
    return path;
}

static bool is_there(const char *path)
{
    cmq_file_info info;
    const cmq_status status = cmq_fs_stat(cmq_fs_posix(), path, &info);
    CHECK(status == CMQ_OK || status == CMQ_ERR_NOT_FOUND);
    return status == CMQ_OK;
}

/* As a reader of another process finds them in the files. */
static void check_live_units(int first, int end)
{
    for (int i = first; i < end; i++) {
        uint8_t image[20];
        cmq_file *file;
        CHECK_OK(cmq_file_open(cmq_fs_posix(), live_path(i / FILE_UNITS * FILE_UNITS), CMQ_OPEN_READ, &file));
        CHECK_OK(cmq_file_read(file, (uint64_t)(i % FILE_UNITS) * 20, image, sizeof image));
        cmq_file_close(file);
        CHECK_INT(cmq_load_i64(image), i * 100);
        CHECK_INT(cmq_load_i64(image + 12), i);
    }
}

static void recovery_keeps_files_behind_a_gap_for_readers(void)
{
    make_live_files(0);
    CHECK_OK(cmq_fs_remove(cmq_fs_posix(), live_path(FILE_UNITS)));
    cmq_queue *queue = recover_live(LIVE_UNITS);
    CHECK_INT(cmq_queue_max(queue, ALL), FILE_UNITS);
    CHECK(cmq_queues_incomplete(set));
    reput_live(queue, 0, LIVE_UNITS - 1);
    check_live_units(2 * FILE_UNITS, LIVE_UNITS);
    end_live(queue, LIVE_UNITS - 1);
    check_live_units(0, LIVE_UNITS - 1);
    CHECK_OK(cmq_queues_complete(set));
    cmq_queues_destroy(set);
    queue = recover_live(LIVE_UNITS);
    CHECK(!cmq_queues_incomplete(set));
    CHECK_INT(cmq_queue_max(queue, ALL), LIVE_UNITS - 1);
    cmq_queues_destroy(set);
}

/* Killed while it makes the missing file, a recovery leaves a queue whose files look whole. */
static void gap_is_remembered_until_it_is_filled(void)
{
    make_live_files(0);
    CHECK_OK(cmq_fs_remove(cmq_fs_posix(), live_path(FILE_UNITS)));
    cmq_queue *queue = recover_live(LIVE_UNITS);
    CHECK_OK(cmq_queues_settle_gaps(set, false));
    int64_t covered;
    reput_live(queue, 0, FILE_UNITS + 3);
    CHECK_OK(cmq_queues_flush(set, ALL, false, &covered));
    cmq_queues_destroy(set);
    CHECK(is_there(live_path(FILE_UNITS)));
    queue = recover_live(LIVE_UNITS);
    CHECK(cmq_queues_incomplete(set));
    reput_live(queue, 0, LIVE_UNITS);
    end_live(queue, LIVE_UNITS);
    check_live_units(0, LIVE_UNITS);
    CHECK_OK(cmq_queues_complete(set));
    cmq_queues_destroy(set);
}

static void recovery_keeps_a_cut_queue_for_readers(void)
{
    make_live_files(0);
    cmq_queue *queue = recover_live(LIVE_UNITS);
    reput_live(queue, 0, FILE_UNITS + 5);
    /* another record than the file's */
    CHECK_OK(cmq_queue_reput(queue, FILE_UNITS + 5, (FILE_UNITS + 5) * 100, 99, 7, 0, 1));
    CHECK_INT(cmq_queue_max(queue, ALL), FILE_UNITS + 6);
    check_live_units(FILE_UNITS + 6, LIVE_UNITS);
    end_live(queue, FILE_UNITS + 6);
    CHECK(!is_there(live_path(2 * FILE_UNITS)) && !is_there(live_path(3 * FILE_UNITS)));
    cmq_queues_destroy(set);
    queue = recover_live(LIVE_UNITS);
    CHECK_INT(cmq_queue_max(queue, ALL), FILE_UNITS + 6);
    cmq_queues_destroy(set);
}

/* A queue all of whose units lie behind the durable point begins again where its first record says. */
static void recovery_keeps_a_re_created_queue_for_readers(void)
{
    static const int firsts[] = {0, 7, FILE_UNITS, FILE_UNITS + 7};
    for (size_t i = 0; i < sizeof firsts / sizeof firsts[0]; i++) {
        make_live_files(firsts[i]);
        cmq_queue *queue = recover_live(0);
        CHECK_INT(cmq_queue_max(queue, ALL), firsts[i] / FILE_UNITS * FILE_UNITS);
        reput_live(queue, firsts[i], firsts[i] + 1);
        check_live_units(firsts[i], LIVE_UNITS);
        reput_live(queue, firsts[i] + 1, LIVE_UNITS);
        check_live_units(firsts[i], LIVE_UNITS);
        end_live(queue, LIVE_UNITS);
        CHECK_INT(cmq_queue_min(queue), firsts[i]);
        check_live_units(firsts[i], LIVE_UNITS);
        cmq_queues_destroy(set);
    }
}

/* Elsewhere than its files: they go once recovery has come to its end. */
static void recovery_removes_files_of_a_queue_that_begins_elsewhere(void)
{
    make_live_files(0);
    cmq_queue *queue = recover_live(0);
    reput_live(queue, 2 * FILE_UNITS + 1, LIVE_UNITS - 5);   /* inside them */
    check_live_units(0, 2 * FILE_UNITS);
    check_live_units(2 * FILE_UNITS + 1, LIVE_UNITS);
    end_live(queue, LIVE_UNITS - 5);
    CHECK(!is_there(live_path(0)) && !is_there(live_path(FILE_UNITS)) && is_there(live_path(2 * FILE_UNITS)));
    cmq_queues_destroy(set);
    make_live_files(0);
    queue = recover_live(0);
    /* behind them */
    for (int i = 6 * FILE_UNITS; i < 6 * FILE_UNITS + 3; i++)
        CHECK_OK(cmq_queue_reput(queue, i, i * 100, 100, i, 0, 1));
    check_live_units(0, LIVE_UNITS);
    end_live(queue, 6 * FILE_UNITS + 3);
    for (int file = 0; file < 4; file++) CHECK(!is_there(live_path(file * FILE_UNITS)));
    cmq_queues_destroy(set);
    queue = recover_live(LIVE_UNITS * 10);
    CHECK_INT(cmq_queue_min(queue), 6 * FILE_UNITS);
    CHECK_INT(cmq_queue_max(queue, ALL), 6 * FILE_UNITS + 3);
    cmq_queues_destroy(set);
}

/* A hole in the middle of a file, as a power loss can leave without a trusted end: units behind it are not believed. */
static void hole_in_a_file(void)
{
    begin();
    cmq_queue *queue;
    int64_t covered, end;
    enum { UNITS = 3 * FILE_UNITS };
    CHECK_OK(cmq_queues_require(set, cmq_slice_of_text("t"), 0, CMQ_QUEUE_SIMPLE, &queue));
    CHECK_OK(cmq_queue_make_room(queue, UNITS, 0));
    for (int i = 0; i < UNITS; i++) cmq_queue_put(queue, i * 100, 100, 0, 0, 1);
    CHECK_OK(cmq_queues_flush(set, UNITS * 100, false, &covered));
    cmq_queues_destroy(set);
    char path[CMQ_PATH_BYTES];
    cmq_file *file;
    const uint8_t zeros[100] = {0};
    CHECK_OK(cmq_path_join(path, root, "consumequeue/t/0/00000000000000001600"));
    CHECK_OK(cmq_file_open(cmq_fs_posix(), path, CMQ_OPEN_WRITE, &file));
    CHECK_OK(cmq_file_write(file, 5 * 20, zeros, sizeof zeros));
    cmq_file_close(file);
    open_set();
    CHECK_OK(cmq_queues_recover(set, 0, UNITS * 100, UNITS * 100, &end));
    CHECK_INT(end, (2 * FILE_UNITS + 5) * 100);
    queue = cmq_queues_find(set, cmq_slice_of_text("t"), 0);
    for (int i = 0; i < UNITS; i++) CHECK_OK(cmq_queue_reput(queue, i, i * 100, 100, 0, 0, 1));
    CHECK_INT(cmq_queue_max(queue, ALL), UNITS);
    CHECK_INT(cmq_queues_gaps(set), 0);
    cmq_queues_destroy(set);
}

/* Files of many pages: the end is found by bisection wherever it lies, and by walking where the units are out of
 * order. */
static void recovery_of_long_files(void)
{
    enum { LONG_UNITS = 3000, UNITS = 3 * LONG_UNITS - 700 };
    begin();
    cmq_queues_destroy(set);
    cmq_queues_options options = {.fs = cmq_fs_posix(),
                                  .root = root,
                                  .queue_file_bytes = LONG_UNITS * 20,
                                  .batch_file_bytes = 460,
                                  .ext_file_bytes = EXT_FILE_BYTES};
    cmq_queues *queues;
    cmq_queue *queue;
    int64_t covered, end;
    CHECK_OK(cmq_queues_create(&queues, &options));
    CHECK_OK(cmq_queues_require(queues, cmq_slice_of_text("t"), 0, CMQ_QUEUE_SIMPLE, &queue));
    CHECK_OK(cmq_queue_make_room(queue, UNITS, 0));
    for (int i = 0; i < UNITS; i++) cmq_queue_put(queue, i * 100, 100, 0, 0, 1);
    CHECK_OK(cmq_queues_flush(queues, UNITS * 100, false, &covered));
    cmq_queues_destroy(queues);

    options.read_only = true;   /* looks, and cuts nothing */
    for (int i = 0; i < 100; i++) {
        const int64_t border = i < 4 ? i * LONG_UNITS : (int64_t)cmq_test_random_below(UNITS + 500);
        const int64_t expected = border < UNITS ? border : UNITS;
        CHECK_OK(cmq_queues_create(&queues, &options));
        CHECK_OK(cmq_queues_load(queues));
        const int64_t limit = border * 100 + (i % 2 == 0 ? 1 : 99);
        CHECK_OK(cmq_queues_recover(queues, 0, limit, limit, &end));
        CHECK_INT(end, expected * 100);
        CHECK_INT(cmq_queue_max(cmq_queues_at(queues, 0), ALL), expected);
        cmq_queues_destroy(queues);
    }

    char path[CMQ_PATH_BYTES];
    cmq_file *file;
    const uint8_t zeros[20] = {0};
    CHECK_OK(cmq_path_join(path, root, "consumequeue/t/0/00000000000000120000"));
    CHECK_OK(cmq_file_open(cmq_fs_posix(), path, CMQ_OPEN_WRITE, &file));
    /* near the end: in its page */
    CHECK_OK(cmq_file_write(file, (UNITS - 2 * LONG_UNITS - 3) * 20, zeros, sizeof zeros));
    cmq_file_close(file);
    options.read_only = false;
    /* each cuts for good */
    for (int64_t limit = UNITS; limit > 0; limit -= 1 + (int64_t)cmq_test_random_below(900)) {
        CHECK_OK(cmq_queues_create(&queues, &options));
        CHECK_OK(cmq_queues_load(queues));
        CHECK_OK(cmq_queues_recover(queues, 0, limit * 100, limit * 100, &end));
        CHECK_INT(end, (limit > UNITS - 3 ? UNITS - 3 : limit) * 100);
        cmq_queues_destroy(queues);
    }
}

CMQ_TEST_MAIN(CMQ_TEST(foreign_entries_are_reported), CMQ_TEST(gap_in_the_names),
              CMQ_TEST(recovery_keeps_files_behind_a_gap_for_readers), CMQ_TEST(gap_is_remembered_until_it_is_filled),
              CMQ_TEST(recovery_keeps_a_cut_queue_for_readers), CMQ_TEST(recovery_keeps_a_re_created_queue_for_readers),
              CMQ_TEST(recovery_removes_files_of_a_queue_that_begins_elsewhere), CMQ_TEST(hole_in_a_file),
              CMQ_TEST(recovery_of_long_files))
