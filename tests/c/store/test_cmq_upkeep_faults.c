/* Tests of cmq_maintain and cmq_retention: upkeep on a full disk, after a failure part way, and when the clock steps
 * back. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "store/cmq_store.h"
#include "support/cmq_file_twin.h"
#include "support/cmq_store_kit.h"
#include "support/cmq_test.h"

static cmq_store_options expiring_options(const char *root, cmq_file_twin *twin)
{
    cmq_store_options options = kit_options(root);
    options.fs = cmq_file_twin_fs(twin);
    options.retention =
        (cmq_retention){.enabled = true, .reserved_ms = 1, .delete_hours = 0xFFFFFF, .files_per_round = 2};
    return options;
}

static int64_t log_min(cmq_store *store)
{
    cmq_store_info info;
    CHECK_OK(cmq_store_info_of(store, &info));
    return info.log_min;
}

/* Messages over several segments, made durable. */
static cmq_store *open_filled(const cmq_store_options *options)
{
    cmq_store *store = kit_open(options);
    kit_append_many(store, "T", "message", 1200);
    CHECK(cmq_store_confirmed(store) > 4 * KIT_SEGMENT_BYTES);
    return store;
}

static void test_retention_goes_on_when_the_disk_is_full(void)
{
    const char *root = kit_directory();
    cmq_file_twin *twin = cmq_file_twin_create(root, 1);
    cmq_store_options options = expiring_options(root, twin);
    options.retention.delete_hours = 0;
    options.retention.max_used_ratio = 0.5;
    cmq_file_twin_set_disk_space(twin, &(cmq_disk_space){.total_bytes = 100, .free_bytes = 90, .usable_bytes = 90});
    cmq_store *store = open_filled(&options);
    CHECK_OK(cmq_store_maintain(store, true));
    CHECK_INT(log_min(store), 0);
    kit_append_many(store, "T", "more", 100);
    cmq_file_twin_set_disk_space(twin, &(cmq_disk_space){.total_bytes = 100, .free_bytes = 0, .usable_bytes = 0});
    cmq_file_twin_fail(twin, &(cmq_twin_fault){.kind = CMQ_TWIN_RESERVE, .nth = 1, .times = 0, .sys_errno = ENOSPC});
    cmq_file_twin_fail(twin, &(cmq_twin_fault){.kind = CMQ_TWIN_WRITE, .nth = 1, .times = 0, .sys_errno = ENOSPC});
    cmq_file_twin_fail(twin, &(cmq_twin_fault){.kind = CMQ_TWIN_RESIZE, .nth = 1, .times = 0, .sys_errno = ENOSPC});
    atomic_fetch_add(&kit_now_ms, 20000);
    CHECK_STATUS(cmq_store_maintain(store, true), CMQ_ERR_DISK_FULL);
    CHECK(log_min(store) >= KIT_SEGMENT_BYTES);
    cmq_file_twin_clear_faults(twin);
    kit_append(store, "T", 0, "last", NULL, NULL);
    kit_close(store);
    cmq_file_twin_close(twin);
}

/* The second removal fails: the queues know of the first all the same. */
static void test_retention_that_fails_part_way(void)
{
    const char *root = kit_directory();
    cmq_file_twin *twin = cmq_file_twin_create(root, 1);
    cmq_store_options options = expiring_options(root, twin);
    options.retention.enabled = false;
    cmq_store *store = open_filled(&options);
    CHECK_OK(cmq_store_maintain(store, true));
    uint32_t deleted;
    cmq_file_twin_fail(twin, &(cmq_twin_fault){.kind = CMQ_TWIN_REMOVE, .nth = 2, .times = 1, .sys_errno = EIO});
    CHECK_STATUS(cmq_store_expire(store, true, &deleted), CMQ_ERR_IO);
    CHECK_INT(deleted, 1);
    CHECK_INT(log_min(store), KIT_SEGMENT_BYTES);
    CHECK(kit_min(store, "T", 0) > 0);
    kit_close(store);
    cmq_file_twin_close(twin);
}

static void test_a_clock_that_steps_back_puts_nothing_off(void)
{
    const char *root = kit_directory(), *point = kit_path(root, "cometmq/point");
    cmq_store *store = kit_open_at(root);
    kit_append_many(store, "T", "a", 3);
    CHECK_OK(cmq_store_maintain(store, true));
    uint8_t before[16384] = {0}, after[16384] = {0};
    const int64_t bytes = kit_file_bytes(point);
    CHECK(bytes > 0 && bytes <= (int64_t)sizeof before);
    kit_read_bytes(point, 0, before, (size_t)bytes);
    atomic_fetch_sub(&kit_now_ms, 3600000);
    kit_append_many(store, "T", "b", 3);
    CHECK_OK(cmq_store_maintain(store, false));
    kit_read_bytes(point, 0, after, (size_t)bytes);
    CHECK(memcmp(before, after, (size_t)bytes) != 0);
    CHECK_TEXT(kit_read_topic(store, "T"), "a0 a1 a2 b0 b1 b2");
    kit_close(store);
    kit_set_clock();
}

static bool is_full(cmq_store *store)
{
    cmq_store_info info;
    CHECK_OK(cmq_store_info_of(store, &info));
    return info.disk_full;
}

/* Files with reserved blocks can still be written. */
static void fill_disk(cmq_file_twin *twin, bool written_too)
{
    static const cmq_twin_kind kinds[] = {CMQ_TWIN_RESERVE, CMQ_TWIN_RESIZE, CMQ_TWIN_CREATE, CMQ_TWIN_WRITE};
    for (size_t i = 0; i < (written_too ? 4 : 3); i++)
        cmq_file_twin_fail(twin, &(cmq_twin_fault){.kind = kinds[i], .nth = 1, .times = 0, .sys_errno = ENOSPC});
}

/* Whichever thread found the disk full, the state shows it as long as it is, and no longer, without another append. */
static void test_a_disk_that_was_full(void)
{
    for (int way = 0; way < 3; way++) {
        const char *root = kit_directory();
        cmq_file_twin *twin = cmq_file_twin_create(root, 1);
        cmq_store_options options = kit_options(root);
        options.fs = cmq_file_twin_fs(twin);
        cmq_store *store = kit_open(&options);
        cmq_appended appended;
        cmq_status status = CMQ_OK;
        if (way > 0) kit_append(store, "T", 0, "one", NULL, "key");
        CHECK(!is_full(store));
        fill_disk(twin, way == 2);
        if (way < 2) {   /* an append: without a segment yet; when the segment is used up */
            for (int i = 0; i < 1000 && status == CMQ_OK; i++)
                status = kit_try_append(store, "T", 0, "another message", NULL, NULL, &appended);
        } else {
            atomic_fetch_add(&kit_now_ms, 5000);
            status = cmq_store_maintain(store, false);
        }
        CHECK_STATUS(status, CMQ_ERR_DISK_FULL);
        CHECK(is_full(store));
        CHECK(is_full(store));
        if (way == 0) {   /* the queue that the append would have begun does not exist */
            cmq_store_info info;
            CHECK_OK(cmq_store_info_of(store, &info));
            CHECK_INT(info.queue_count, 0);
            const cmq_queue *queue = cmq_queues_find(cmq_store_queues(store), kit_slice("T"), 0);
            CHECK(queue == NULL || !cmq_queue_begun(queue));
        }
        cmq_file_twin_clear_faults(twin);
        if (way == 2) CHECK_OK(cmq_store_maintain(store, false));   /* as the background thread does ten times a
                                                                     * second */
        CHECK(!is_full(store));
        kit_append(store, "T", 0, "last", NULL, "key");
        kit_close(store);
        cmq_file_twin_close(twin);
    }
}

/* ---- no descriptor left ---- */

#define QUEUES_SYNCED_TOGETHER 70   /* more than are synced one by one */

static void append_to_all(cmq_store *store, int queues, const char *body)
{
    for (int i = 0; i < queues; i++) kit_append(store, "T", i, body, NULL, "key");
}

/* The image of a power loss right now has all messages. */
static void check_image(cmq_file_twin *twin, const cmq_store_options *like, const char *image, int queues, int expected)
{
    cmq_store_options options = *like;
    CHECK_INT(cmq_file_twin_crash_image(twin, image), CMQ_TWIN_NOTHING);
    options.path = image;
    options.fs = NULL;
    options.create = false;
    cmq_store *store = kit_open(&options);
    for (int i = 0; i < queues; i++) CHECK_INT(kit_max(store, "T", i), expected);
    kit_close(store);
    kit_remove_tree(image);
}

/* The nth call of a kind finds no descriptor in one round of upkeep. False: there are not so many. */
static bool one_round_without(const char *directory, cmq_twin_kind kind, uint64_t nth, int queues, cmq_flush_mode flush)
{
    const char *root = kit_path(directory, "store"), *image = kit_path(directory, "image");
    char error[CMQ_ERROR_TEXT_BYTES];
    CHECK_OK(cmq_fs_make_directory(cmq_fs_posix(), root));
    cmq_file_twin *twin = cmq_file_twin_create(root, 1);
    cmq_store_options options = kit_options(root);
    options.fs = cmq_file_twin_fs(twin);
    options.flush = flush;
    options.queue_file_bytes = CMQ_UNIT_BYTES;   /* each message makes a file */
    cmq_store *store = kit_open(&options);
    append_to_all(store, queues, "one");
    CHECK_OK(cmq_store_maintain(store, true));
    append_to_all(store, queues, "two");
    cmq_file_twin_fail(twin, &(cmq_twin_fault){.kind = kind, .nth = nth, .times = 2, .sys_errno = EMFILE});
    const cmq_status status = cmq_store_maintain(store, true);
    const bool failed = cmq_file_twin_failures(twin) > 0;
    CHECK(!cmq_store_is_fenced(store));
    CHECK(cmq_store_upkeep_error(store, error) == (status != CMQ_OK));
    CHECK(status == CMQ_OK || strstr(error, "Too many open files") != NULL || strstr(error, "descriptor") != NULL);
    cmq_file_twin_clear_faults(twin);
    CHECK_OK(cmq_store_maintain(store, true));
    CHECK(!cmq_store_upkeep_error(store, error));
    check_image(twin, &options, image, queues, 2);
    cmq_store_abandon(store);
    cmq_file_twin_close(twin);
    kit_remove_tree(root);
    return failed;
}

/* Nothing was written and nothing synced where a descriptor is missing: the store is not fenced, says why upkeep waits,
 * and the next round makes up for it. */
static void test_upkeep_without_descriptors_fences_nothing(void)
{
    static const cmq_twin_kind kinds[] = {CMQ_TWIN_OPEN, CMQ_TWIN_CREATE, CMQ_TWIN_SYNC_DIRECTORY, CMQ_TWIN_SYNC_ALL};
    const char *directory = kit_directory();
    uint64_t rounds = 0;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        for (int way = 0; way < 4; way++) {
            uint64_t nth = 1;
            while (one_round_without(directory, kinds[i], nth, way / 2 == 0 ? 3 : QUEUES_SYNCED_TOGETHER,
                                     way % 2 == 0 ? CMQ_FLUSH_SYNC : CMQ_FLUSH_ASYNC)) {
                nth += nth < 4 ? 1 : 17;
                rounds++;
            }
        }
    CHECK(rounds > 30);
}

CMQ_TEST_MAIN(CMQ_TEST(test_upkeep_without_descriptors_fences_nothing), CMQ_TEST(test_a_disk_that_was_full),
              CMQ_TEST(test_retention_goes_on_when_the_disk_is_full), CMQ_TEST(test_retention_that_fails_part_way),
              CMQ_TEST(test_a_clock_that_steps_back_puts_nothing_off))
