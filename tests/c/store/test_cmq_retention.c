/* Tests csrc/store/cmq_retention.c, and deleted topics: by age, by the hour, by the disk; the messages that stay
 * readable; the offsets; limits that change while the store is used.
 *
 * Threads: yes
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "support/cmq_file_twin.h"
#include "support/cmq_store_kit.h"

#define HOUR_MS INT64_C(3600000)

static cmq_store *store;
static char root[CMQ_PATH_BYTES];

static void open_store(cmq_retention retention)
{
    CHECK_OK(cmq_path_join(root, kit_directory(), "store"));
    kit_set_clock();
    cmq_store_options options = kit_options(root);
    options.retention = retention;
    store = kit_open(&options);
}

static int64_t log_min(void)
{
    cmq_store_info info;
    CHECK_OK(cmq_store_info_of(store, &info));
    return info.log_min;
}

static uint32_t expire(bool manual)
{
    uint32_t deleted;
    CHECK_OK(cmq_store_expire(store, manual, &deleted));
    return deleted;
}

static void fill(int count)
{
    for (int i = 0; i < count; i++) {
        char body[60];
        snprintf(body, sizeof body, "m%d", i);
        kit_append(store, i % 2 == 0 ? "T" : "U", 0, body, NULL, i % 5 == 0 ? "k" : NULL);
    }
    CHECK_OK(cmq_store_maintain(store, true));
}

/* The local hour that the clock shows. */
static int hour_now(void)
{
    const time_t seconds = (time_t)(atomic_load(&kit_now_ms) / 1000);
    struct tm local;
    CHECK(localtime_r(&seconds, &local) != NULL);
    return local.tm_hour;
}

/* Nothing goes unless asked for, however old it is. */
static void off_by_itself(void)
{
    open_store((cmq_retention){0});
    fill(600);
    atomic_fetch_add(&kit_now_ms, 100000 * HOUR_MS);
    for (int i = 0; i < 3; i++) CHECK_OK(cmq_store_maintain(store, true));
    CHECK_INT(log_min(), 0);
    kit_close(store);
}

static void by_age(void)
{
    open_store(
        (cmq_retention){.enabled = true, .reserved_ms = 72 * HOUR_MS, .delete_hours = 0xFFFFFF, .files_per_round = 1});
    fill(600);
    CHECK_INT(expire(true), 0);
    atomic_fetch_add(&kit_now_ms, 70 * HOUR_MS);   /* the clock began one hour ahead of the files */
    CHECK_INT(expire(true), 0);
    atomic_fetch_add(&kit_now_ms, 2 * HOUR_MS);
    CHECK_INT(expire(true), 1);
    CHECK_INT(log_min(), KIT_SEGMENT_BYTES);
    CHECK_INT(expire(true), 1);
    /* By itself, too, every ten seconds. */
    CHECK_OK(cmq_store_maintain(store, false));
    CHECK_INT(log_min(), 3 * KIT_SEGMENT_BYTES);
    CHECK_OK(cmq_store_maintain(store, false));
    CHECK_INT(log_min(), 3 * KIT_SEGMENT_BYTES);
    /* Never the segment of the last message. */
    for (int i = 0; i < 20; i++) {
        atomic_fetch_add(&kit_now_ms, 100 * HOUR_MS);
        CHECK_OK(cmq_store_maintain(store, false));
    }
    CHECK_INT(log_min(), cmq_store_confirmed(store) / KIT_SEGMENT_BYTES * KIT_SEGMENT_BYTES);
    kit_append(store, "T", 0, "last", NULL, NULL);
    kit_close(store);
}

static void in_its_hours(void)
{
    kit_set_clock();
    const uint32_t now = 1u << hour_now();
    open_store(
        (cmq_retention){.enabled = true, .reserved_ms = 1, .delete_hours = 0xFFFFFF & ~now, .files_per_round = 1});
    fill(600);
    CHECK_INT(expire(false), 0);
    CHECK_OK(cmq_store_maintain(store, false));
    CHECK_INT(log_min(), 0);
    atomic_fetch_add(&kit_now_ms, HOUR_MS);
    CHECK_INT(expire(false), 1);
    kit_close(store);
}

/* A disk that fills: due segments go at any hour, then any, then appends are refused; and they go on when there is
 * space. */
static void by_the_disk(void)
{
    CHECK_OK(cmq_path_join(root, kit_directory(), "store"));
    CHECK_OK(cmq_fs_make_directory(cmq_fs_posix(), root));
    kit_set_clock();
    cmq_file_twin *twin = cmq_file_twin_create(root, cmq_test_random());
    cmq_store_options options = kit_options(root);
    options.fs = cmq_file_twin_fs(twin);
    options.retention = (cmq_retention){.enabled = true,
                                        .reserved_ms = 1000 * HOUR_MS,
                                        .max_used_ratio = 0.75,
                                        .force_ratio = 0.85,
                                        .warning_ratio = 0.90,
                                        .files_per_round = 1};
    store = kit_open(&options);
    fill(900);
    cmq_disk_space space = {.total_bytes = 1000, .free_bytes = 300, .usable_bytes = 300};
    cmq_file_twin_set_disk_space(twin, &space);
    atomic_fetch_add(&kit_now_ms, 20000);
    CHECK_OK(cmq_store_maintain(store, false));
    CHECK_INT(log_min(), 0);
    space.free_bytes = space.usable_bytes = 200;   /* above 0.75, but nothing is due */
    cmq_file_twin_set_disk_space(twin, &space);
    atomic_fetch_add(&kit_now_ms, 20000);
    CHECK_OK(cmq_store_maintain(store, false));
    CHECK_INT(log_min(), 0);
    space.free_bytes = space.usable_bytes = 120;
    cmq_file_twin_set_disk_space(twin, &space);
    atomic_fetch_add(&kit_now_ms, 20000);
    CHECK_OK(cmq_store_maintain(store, false));
    CHECK_INT(log_min(), KIT_SEGMENT_BYTES);
    cmq_appended appended;
    CHECK_OK(kit_try_append(store, "T", 0, "fits", NULL, NULL, &appended));
    space.free_bytes = space.usable_bytes = 50;
    cmq_file_twin_set_disk_space(twin, &space);
    atomic_fetch_add(&kit_now_ms, 20000);
    CHECK_OK(cmq_store_maintain(store, false));
    CHECK_STATUS(kit_try_append(store, "T", 0, "refused", NULL, NULL, &appended), CMQ_ERR_DISK_FULL);
    CHECK(kit_max(store, "U", 0) > 0);
    space.free_bytes = space.usable_bytes = 900;
    cmq_file_twin_set_disk_space(twin, &space);
    atomic_fetch_add(&kit_now_ms, 20000);
    CHECK_OK(cmq_store_maintain(store, false));
    CHECK_OK(kit_try_append(store, "T", 0, "fits again", NULL, NULL, &appended));
    kit_close(store);
    cmq_file_twin_close(twin);
}

/* The report names each deletion once, with its age and reason, and the disk's level. Space reserved for root counts
 * as df has it. */
static void report_names_levels_and_deletions(void)
{
    CHECK_OK(cmq_path_join(root, kit_directory(), "store"));
    CHECK_OK(cmq_fs_make_directory(cmq_fs_posix(), root));
    kit_set_clock();
    cmq_file_twin *twin = cmq_file_twin_create(root, cmq_test_random());
    cmq_store_options options = kit_options(root);
    options.fs = cmq_file_twin_fs(twin);
    options.retention = (cmq_retention){.enabled = true,
                                        .reserved_ms = 1000 * HOUR_MS,
                                        .max_used_ratio = 0.75,
                                        .force_ratio = 0.85,
                                        .warning_ratio = 0.90,
                                        .files_per_round = 1};
    store = kit_open(&options);
    fill(900);
    cmq_retention_report report;
    cmq_store_take_retention_report(store, &report);
    CHECK(report.deletion_count == 0 && report.level == 0 && !report.is_full);
    /* 1000 blocks, 400 of them reserved, 10 of the others free: 590 of 600. */
    static const struct {
        uint64_t usable;
        uint32_t level, deletions;
    } steps[] = {{200, 0, 0}, {120, 1, 0}, {80, 2, 1}, {10, 3, 1}, {300, 0, 0}};
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        const cmq_disk_space space = {
            .total_bytes = 1000, .free_bytes = 400 + steps[i].usable, .usable_bytes = steps[i].usable};
        cmq_file_twin_set_disk_space(twin, &space);
        const int64_t min = log_min();
        atomic_fetch_add(&kit_now_ms, 20000);
        CHECK_OK(cmq_store_maintain(store, false));
        cmq_store_take_retention_report(store, &report);
        CHECK_INT(report.level, steps[i].level);
        const double expected = (double)(600 - steps[i].usable) / 600.0;
        CHECK(report.used_ratio > expected - 1e-9 && report.used_ratio < expected + 1e-9);
        CHECK_INT(report.deletion_count, steps[i].deletions);
        CHECK_INT(report.unlisted, 0);
        if (steps[i].deletions == 0) continue;
        CHECK_INT(report.deletions[0].log_offset, min);
        CHECK(!report.deletions[0].is_due);
        CHECK(report.deletions[0].age_ms >= 0 && report.deletions[0].age_ms < 1000 * HOUR_MS);
    }
    atomic_fetch_add(&kit_now_ms, 2000 * HOUR_MS);
    CHECK_INT(expire(true), 1);
    cmq_store_take_retention_report(store, &report);
    CHECK_INT(report.deletion_count, 1);
    CHECK(report.deletions[0].is_due && report.deletions[0].age_ms >= 1000 * HOUR_MS);
    kit_close(store);
    cmq_file_twin_close(twin);
}

/* Each limit counts from the next upkeep on, without a reopening and without a wait for the next ten seconds. */
static void changed_limits_count_at_the_next_upkeep(void)
{
    CHECK_OK(cmq_path_join(root, kit_directory(), "store"));
    CHECK_OK(cmq_fs_make_directory(cmq_fs_posix(), root));
    kit_set_clock();
    cmq_file_twin *twin = cmq_file_twin_create(root, cmq_test_random());
    cmq_store_options options = kit_options(root);
    options.fs = cmq_file_twin_fs(twin);
    cmq_retention limits = {.enabled = true, .reserved_ms = 1000 * HOUR_MS, .files_per_round = 1};
    options.retention = limits;
    store = kit_open(&options);
    fill(900);
    atomic_fetch_add(&kit_now_ms, 20000);
    CHECK_OK(cmq_store_maintain(store, false));   /* the next round by the clock is ten seconds away */
    CHECK_INT(log_min(), 0);
    limits.reserved_ms = 1;
    CHECK_OK(cmq_store_set_retention(store, &limits));
    CHECK_OK(cmq_store_maintain(store, false));
    CHECK_INT(log_min(), 0);                      /* no hour of the day is allowed */
    limits.delete_hours = 0xFFFFFF;
    CHECK_OK(cmq_store_set_retention(store, &limits));
    CHECK_OK(cmq_store_maintain(store, false));
    CHECK_INT(log_min(), KIT_SEGMENT_BYTES);
    limits.files_per_round = 2;
    CHECK_OK(cmq_store_set_retention(store, &limits));
    CHECK_OK(cmq_store_maintain(store, false));
    CHECK_INT(log_min(), 3 * KIT_SEGMENT_BYTES);
    limits = (cmq_retention){.enabled = true, .reserved_ms = 1, .max_used_ratio = 0.75, .files_per_round = 1};
    const cmq_disk_space space = {.total_bytes = 1000, .free_bytes = 200, .usable_bytes = 200};
    cmq_file_twin_set_disk_space(twin, &space);
    CHECK_OK(cmq_store_set_retention(store, &limits));
    CHECK_OK(cmq_store_maintain(store, false));
    CHECK_INT(log_min(), 4 * KIT_SEGMENT_BYTES);
    limits.max_used_ratio = 0;
    limits.reserved_ms = 1000 * HOUR_MS;
    limits.force_ratio = 0.79;
    CHECK_OK(cmq_store_set_retention(store, &limits));
    CHECK_OK(cmq_store_maintain(store, false));
    CHECK_INT(log_min(), 5 * KIT_SEGMENT_BYTES);
    limits.force_ratio = 0;
    limits.warning_ratio = 0.79;
    CHECK_OK(cmq_store_set_retention(store, &limits));
    CHECK_OK(cmq_store_maintain(store, false));
    cmq_appended appended;
    CHECK_STATUS(kit_try_append(store, "T", 0, "refused", NULL, NULL, &appended), CMQ_ERR_DISK_FULL);
    limits.warning_ratio = 0.81;
    CHECK_OK(cmq_store_set_retention(store, &limits));
    CHECK_OK(cmq_store_maintain(store, false));
    CHECK_OK(kit_try_append(store, "T", 0, "accepted", NULL, NULL, &appended));
    kit_close(store);
    cmq_file_twin_close(twin);
}

static void retention_is_switched_at_the_opening_alone(void)
{
    const cmq_retention limits = {.enabled = true, .reserved_ms = HOUR_MS};
    open_store((cmq_retention){0});
    fill(10);
    CHECK_STATUS(cmq_store_set_retention(store, &limits), CMQ_ERR_ARGUMENT);
    kit_close(store);
    open_store(limits);
    fill(10);
    CHECK_STATUS(cmq_store_set_retention(store, &(cmq_retention){0}), CMQ_ERR_ARGUMENT);
    kit_close(store);
    cmq_store_options options = kit_options(root);
    options.read_only = true;
    store = kit_open(&options);
    CHECK_STATUS(cmq_store_set_retention(store, &limits), CMQ_ERR_READ_ONLY);
    kit_close(store);
}

#define CHANGES 50

static void *change_limits(void *argument)
{
    (void)argument;
    for (int i = 0; i < CHANGES; i++) {
        const cmq_retention limits = {.enabled = true,
                                      .reserved_ms = i % 2 == 0 ? 1 : 1000 * HOUR_MS,
                                      .delete_hours = i % 3 == 0 ? 0xFFFFFF : 0,
                                      .max_used_ratio = 0.9,
                                      .force_ratio = 0.95,
                                      .warning_ratio = 1.0,
                                      .files_per_round = 1};
        CHECK_OK(cmq_store_set_retention(store, &limits));
    }
    return NULL;
}

/* For ThreadSanitizer: the background thread and two callers beside the changes. */
static void limits_change_beside_upkeep_and_appends(void)
{
    CHECK_OK(cmq_path_join(root, kit_directory(), "store"));
    kit_set_clock();
    cmq_store_options options = kit_options(root);
    options.background = true;
    options.flush = CMQ_FLUSH_ASYNC;
    options.retention = (cmq_retention){.enabled = true, .reserved_ms = 1, .delete_hours = 0xFFFFFF};
    store = kit_open(&options);
    fill(600);
    pthread_t changer;
    CHECK_INT(pthread_create(&changer, NULL, change_limits, NULL), 0);
    for (int i = 0; i < CHANGES; i++) {
        kit_append(store, "T", 0, "beside", NULL, NULL);
        uint32_t deleted;
        CHECK_OK(cmq_store_expire(store, false, &deleted));
    }
    CHECK_INT(pthread_join(changer, NULL), 0);
    kit_close(store);
}

/* Min offsets, queue files and index files follow; views that were given out stay; offsets go on; the same after
 * closing and after a kill. */
static void files_that_go_with_segments(void)
{
    open_store((cmq_retention){.reserved_ms = 1, .files_per_round = 3});
    fill(1000);
    kit_found *view = kit_found_make(1);
    CHECK_OK(cmq_store_read_offset(store, kit_slice("T"), 0, 0, &view->batch));
    CHECK_INT(expire(true), 3);
    CHECK(kit_body_is(&view->items[0], "m0"));
    const int64_t min_t = kit_min(store, "T", 0), min_u = kit_min(store, "U", 0), min = log_min();
    CHECK(min_t > 100 && min_u > 100);
    for (int round = 0; round < 3; round++) {
        CHECK_INT(kit_min(store, "T", 0), min_t);
        CHECK_INT(kit_min(store, "U", 0), min_u);
        kit_found *found = kit_found_make(1);
        CHECK_OK(cmq_store_read_offset(store, kit_slice("T"), 0, min_t, &found->batch));
        CHECK(found->items[0].physical_offset >= min);
        cmq_found_batch_release(&found->batch);
        CHECK_STATUS(cmq_store_read_offset(store, kit_slice("T"), 0, min_t - 1, &found->batch), CMQ_ERR_OFFSET);
        CHECK_STATUS(cmq_store_read_physical(store, 0, &found->batch), CMQ_ERR_OFFSET);
        kit_found_free(found);
        found = kit_found_make(KIT_FOUND_MAX);
        const cmq_status by_key =
            cmq_store_find_key(store, kit_slice("T"), kit_slice("k"), 0, INT64_MAX, &found->batch);
        CHECK_OK(by_key);
        CHECK(found->batch.count > 0);
        for (uint32_t i = 0; i < found->batch.count; i++) CHECK(found->items[i].physical_offset >= min);
        kit_found_free(found);
        CHECK_INT(kit_append(store, "T", 0, "next", NULL, NULL).first_queue_offset, 500 + round);
        CHECK(!kit_exists(kit_path(root, "consumequeue/T/0/00000000000000000000")));
        cmq_store_options options = kit_options(root);
        if (round == 0) {
            kit_found_free(view);
            kit_close(store);
        } else {
            cmq_store_abandon(store);
        }
        store = kit_open(&options);
    }
    kit_close(store);
}

/* ---- topics ---- */

static void topics_are_forgotten(void)
{
    open_store((cmq_retention){0});
    fill(100);
    CHECK_STATUS(cmq_store_delete_topic(store, kit_slice("None")), CMQ_ERR_NOT_FOUND);
    CHECK_OK(cmq_store_delete_topic(store, kit_slice("T")));
    CHECK_STATUS(cmq_store_delete_topic(store, kit_slice("T")), CMQ_ERR_NOT_FOUND);
    CHECK(!kit_exists(kit_path(root, "consumequeue/T")));
    CHECK_INT(kit_max(store, "U", 0), 50);
    kit_close(store);
    store = kit_open_at(root);
    CHECK(cmq_queues_find(cmq_store_queues(store), kit_slice("T"), 0) == NULL);   /* and stays so */
    CHECK_INT(kit_append(store, "T", 0, "anew", NULL, NULL).first_queue_offset, 0);
    CHECK_TEXT(kit_read_topic(store, "T"), "anew");
    kit_close(store);
    store = kit_open_at(root);
    CHECK_TEXT(kit_read_topic(store, "T"), "anew");
    kit_close(store);
}

static void dead_queues_are_cleaned_up(void)
{
    open_store((cmq_retention){.reserved_ms = 1, .files_per_round = 100});
    kit_append(store, "Old", 0, "old", NULL, NULL);
    kit_append(store, "SCHEDULE_TOPIC_XXXX", 2, "system", NULL, NULL);
    fill(600);
    uint32_t deleted;
    CHECK_OK(cmq_store_delete_expired_queues(store, &deleted));
    CHECK_INT(deleted, 0);
    CHECK(expire(true) > 0);
    CHECK_OK(cmq_store_delete_expired_queues(store, &deleted));
    CHECK_INT(deleted, 1);
    CHECK(cmq_queues_find(cmq_store_queues(store), kit_slice("Old"), 0) == NULL);
    CHECK(cmq_queues_find(cmq_store_queues(store), kit_slice("SCHEDULE_TOPIC_XXXX"), 2) != NULL);
    CHECK(!kit_exists(kit_path(root, "consumequeue/Old")));
    CHECK_INT(kit_max(store, "T", 0), 300);
    kit_close(store);
}

/* A file system whose disks have room, but for the one that holds a directory of this name. */
static const char *full_disk;

static cmq_status disk_space_of(cmq_fs *self, const char *path, cmq_disk_space *space_out)
{
    (void)self;
    const uint64_t free_bytes = strstr(path, full_disk) != NULL ? 100 : 900;
    *space_out = (cmq_disk_space){.total_bytes = 1000, .free_bytes = free_bytes, .usable_bytes = free_bytes};
    return CMQ_OK;
}

static void fullest_disk_of_the_log_counts(void)
{
    static const char *const cases[] = {"log-a", "log-b", "store", "nowhere"};
    cmq_fs_ops ops = *cmq_fs_posix()->ops;
    ops.disk_space = disk_space_of;
    cmq_fs fs = {.ops = &ops};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *directory = kit_directory();
        char log_a[CMQ_PATH_BYTES], log_b[CMQ_PATH_BYTES];
        CHECK_OK(cmq_path_join(root, directory, "store"));
        CHECK_OK(cmq_path_join(log_a, directory, "log-a"));
        CHECK_OK(cmq_path_join(log_b, directory, "log-b"));
        const char *const paths[] = {log_a, log_b};
        full_disk = cases[i];
        kit_set_clock();
        cmq_store_options options = kit_options(root);
        options.fs = &fs;
        options.commitlog_paths = paths;
        options.commitlog_path_count = 2;
        options.retention =
            (cmq_retention){.enabled = true, .reserved_ms = 1000 * HOUR_MS, .force_ratio = 0.85, .files_per_round = 1};
        store = kit_open(&options);
        fill(900);
        atomic_fetch_add(&kit_now_ms, 20000);
        CHECK_OK(cmq_store_maintain(store, false));
        CHECK((log_min() > 0) == (i < 3));
        kit_close(store);
    }
}

CMQ_TEST_MAIN(CMQ_TEST(fullest_disk_of_the_log_counts), CMQ_TEST(off_by_itself), CMQ_TEST(by_age),
              CMQ_TEST(in_its_hours), CMQ_TEST(by_the_disk), CMQ_TEST(report_names_levels_and_deletions),
              CMQ_TEST(changed_limits_count_at_the_next_upkeep), CMQ_TEST(retention_is_switched_at_the_opening_alone),
              CMQ_TEST(limits_change_beside_upkeep_and_appends), CMQ_TEST(files_that_go_with_segments),
              CMQ_TEST(topics_are_forgotten), CMQ_TEST(dead_queues_are_cleaned_up))
