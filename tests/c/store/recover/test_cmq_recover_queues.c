/* Tests of cmq_recover over queue files that were changed while the store was closed: the durable point says how many
 * units each queue had, so a queue that has lost some is made again from the log, and no offset is given twice.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "store/cmq_store.h"
#include "store/queue/cmq_queue.h"
#include "store/record/cmq_record.h"
#include "support/cmq_file_twin.h"
#include "support/cmq_store_kit.h"
#include "support/cmq_test.h"

#define MESSAGES 50   /* three files */

static const char *queue_file(const char *root, int64_t first_unit)
{
    char name[96];
    snprintf(name, sizeof name, "consumequeue/T/0/%020lld", (long long)(first_unit * CMQ_UNIT_BYTES));
    return kit_path(root, name);
}

static const char *make_store(void)
{
    const char *root = kit_directory();
    cmq_store *store = kit_open_at(root);
    kit_append_many(store, "Other", "o", 5);
    kit_append_many(store, "T", "m", MESSAGES);
    kit_close(store);
    return root;
}

static void check_whole(cmq_store *store, int count)
{
    char expected[2048] = "";
    for (int i = 0; i < count; i++)
        snprintf(expected + strlen(expected), sizeof expected - strlen(expected), "%sm%d", i > 0 ? " " : "", i);
    CHECK_TEXT(kit_read_topic(store, "T"), expected);
    CHECK_TEXT(kit_read_topic(store, "Other"), "o0 o1 o2 o3 o4");
    CHECK_INT(kit_max(store, "T", 0), count);
}

/* First by a reader, who changes nothing, then by a writer, twice. */
static void check_opens_whole(const char *root)
{
    cmq_store_options options = kit_options(root);
    options.read_only = true;
    options.create = false;
    cmq_store *store = kit_open(&options);
    check_whole(store, MESSAGES);
    kit_close(store);
    store = kit_open_at(root);
    check_whole(store, MESSAGES);
    char body[16];
    snprintf(body, sizeof body, "m%d", MESSAGES);
    CHECK_INT(kit_append(store, "T", 0, body, NULL, NULL).first_queue_offset, MESSAGES);
    kit_close(store);
    store = kit_open_at(root);
    cmq_store_opening opening;
    cmq_store_opening_of(store, &opening);
    CHECK(opening.trusted_point);
    CHECK_INT(opening.records, 0);
    check_whole(store, MESSAGES + 1);
    kit_close(store);
}

static void test_a_flipped_unit(void)
{
    const char *root = make_store();
    kit_flip(queue_file(root, 2 * KIT_QUEUE_UNITS), 3 * CMQ_UNIT_BYTES, 0x40);
    check_opens_whole(root);
}

static void test_a_zeroed_file(void)
{
    const char *root = make_store();
    static const uint8_t zeros[KIT_QUEUE_UNITS * CMQ_UNIT_BYTES];
    kit_write_bytes(queue_file(root, 2 * KIT_QUEUE_UNITS), 0, zeros, sizeof zeros);
    check_opens_whole(root);
}

static void test_a_removed_file(void)
{
    for (int64_t file = 0; file < 3; file++) {
        const char *root = make_store();
        CHECK(unlink(queue_file(root, file * KIT_QUEUE_UNITS)) == 0);
        check_opens_whole(root);
        kit_remove_tree(root);
    }
}

/* A recovery that was to make missing files and did not finish: no file shows it, so the whole log is read once. */
static void test_an_unfinished_recovery_reads_the_whole_log(void)
{
    const char *root = make_store();
    kit_write_bytes(kit_path(root, "cometmq/incomplete"), 0, (const uint8_t *)"", 0);
    cmq_store_opening opening;
    for (int pass = 0; pass < 2; pass++) {
        cmq_store *store = kit_open_at(root);
        cmq_store_opening_of(store, &opening);
        CHECK_INT(opening.records, pass == 0 ? MESSAGES + 5 : 0);
        check_whole(store, MESSAGES);
        kit_close(store);
    }
}

/* The mark of the unfinished recovery is gone durably when the store is open: back after a power loss, it would have
 * the whole log read again, and bring back topics that were deleted meanwhile. */
static void test_a_power_loss_brings_no_mark_of_a_finished_recovery_back(void)
{
    const char *root = make_store(), *image = kit_path(kit_directory(), "image");
    kit_write_bytes(kit_path(root, "cometmq/incomplete"), 0, (const uint8_t *)"", 0);
    cmq_file_twin *twin = cmq_file_twin_create(root, cmq_test_random());
    cmq_store_options options = kit_options(root);
    options.fs = cmq_file_twin_fs(twin);
    cmq_store *store = kit_open(&options);
    cmq_file_twin_crash_image_of(twin, image, CMQ_TWIN_NOTHING);
    CHECK(kit_exists(kit_path(image, "cometmq/point")));
    CHECK(!kit_exists(kit_path(image, "cometmq/incomplete")));
    kit_close(store);
    cmq_file_twin_close(twin);
}

/* A crash took a queue file behind the durable point: the log from the point on makes it again, and no deleted topic
 * comes back from before. */
static void test_a_gap_behind_the_point_brings_no_deleted_topic_back(void)
{
    enum { UNITS = 4 * KIT_QUEUE_UNITS };
    const char *root = kit_path(kit_directory(), "store");
    kit_set_clock();
    cmq_store *store = kit_open_at(root);
    kit_append_many(store, "Gone", "g", 5);
    kit_append_many(store, "T", "m", 1);
    CHECK_OK(cmq_store_delete_topic(store, kit_slice("Gone")));
    CHECK_OK(cmq_store_maintain(store, true));
    kit_append_many(store, "T", "m", UNITS - 1);
    atomic_fetch_add(&kit_now_ms, 1500);
    CHECK_OK(cmq_store_maintain(store, false));
    cmq_store_abandon(store);
    CHECK(unlink(queue_file(root, KIT_QUEUE_UNITS)) == 0);
    for (int pass = 0; pass < 2; pass++) {
        store = kit_open_at(root);
        CHECK(cmq_queues_find(cmq_store_queues(store), kit_slice("Gone"), 0) == NULL);
        CHECK_INT(kit_max(store, "T", 0), UNITS);
        CHECK(!kit_exists(kit_path(root, "cometmq/incomplete")));
        cmq_store_abandon(store);
    }
}

/* Topic T fills two queue files below a durable point, and the log before the point expires; deleted messages are in
 * what is left of it. Returns the open store. */
static cmq_store *make_expired_store(const char *root)
{
    cmq_store_options options = kit_options(root);
    options.retention.reserved_ms = 1;
    kit_set_clock();
    cmq_store *store = kit_open(&options);
    kit_append_many(store, "T", "m", 2 * KIT_QUEUE_UNITS);
    kit_append_many(store, "Other", "o", 400);
    kit_append_many(store, "Gone", "g", 5);
    CHECK_OK(cmq_store_delete_topic(store, kit_slice("Gone")));
    CHECK_OK(cmq_store_maintain(store, true));
    atomic_fetch_add(&kit_now_ms, 1500);
    return store;
}

static void expire(cmq_store *store)
{
    uint32_t deleted;
    CHECK_OK(cmq_store_expire(store, true, &deleted));
    CHECK(deleted > 0);
}

/* Upkeep that writes queue files and syncs nothing of them. */
static void append_behind_the_point(cmq_store *store, int count)
{
    kit_append_many(store, "T", "n", count);
    atomic_fetch_add(&kit_now_ms, 1500);
    CHECK_OK(cmq_store_maintain(store, false));
}

static void check_point_is_kept(const char *root, int count)
{
    cmq_store_opening opening;
    for (int pass = 0; pass < 2; pass++) {
        cmq_store *store = kit_open_at(root);
        cmq_store_opening_of(store, &opening);
        CHECK(opening.trusted_point);
        CHECK(cmq_queues_find(cmq_store_queues(store), kit_slice("Gone"), 0) == NULL);
        CHECK_INT(kit_max(store, "T", 0), count);
        CHECK_INT(kit_min(store, "T", 0), 2 * KIT_QUEUE_UNITS);
        CHECK(!kit_exists(kit_path(root, "cometmq/incomplete")));
        cmq_store_abandon(store);
    }
}

/* Of files that are not durable yet a power loss may take any: those that it left do not displace the file below the
 * point, though all of its messages have expired. */
static void test_files_behind_the_point_do_not_displace_an_expired_one_below_it(void)
{
    const char *root = kit_path(kit_directory(), "store");
    cmq_store *store = make_expired_store(root);
    expire(store);
    CHECK_OK(cmq_store_maintain(store, false));   /* the point that follows a retention */
    append_behind_the_point(store, 3 * KIT_QUEUE_UNITS);
    cmq_store_abandon(store);
    CHECK(unlink(queue_file(root, 2 * KIT_QUEUE_UNITS)) == 0);
    check_point_is_kept(root, 5 * KIT_QUEUE_UNITS);
}

/* Retention keeps the file in which the point's units end: a power loss may take all files behind it. */
static void test_the_file_in_which_the_points_units_end_does_not_expire(void)
{
    const char *root = kit_path(kit_directory(), "store");
    cmq_store *store = make_expired_store(root);
    append_behind_the_point(store, 3);
    expire(store);
    CHECK(!kit_exists(queue_file(root, 0)));
    CHECK(kit_exists(queue_file(root, KIT_QUEUE_UNITS)));
    cmq_store_abandon(store);
    CHECK(unlink(queue_file(root, 2 * KIT_QUEUE_UNITS)) == 0);
    check_point_is_kept(root, 2 * KIT_QUEUE_UNITS + 3);
}

/* A point at which no queue has a unit says so: that is not the same as saying nothing. */
static void test_a_point_without_units_brings_no_deleted_topic_back(void)
{
    const char *root = kit_path(kit_directory(), "store");
    kit_set_clock();
    cmq_store *store = kit_open_at(root);
    kit_append_many(store, "Gone", "g", 5);
    CHECK_OK(cmq_store_delete_topic(store, kit_slice("Gone")));
    CHECK_OK(cmq_store_maintain(store, true));
    append_behind_the_point(store, 3 * KIT_QUEUE_UNITS);
    cmq_store_abandon(store);
    CHECK(unlink(queue_file(root, KIT_QUEUE_UNITS)) == 0);
    store = kit_open_at(root);
    CHECK(cmq_queues_find(cmq_store_queues(store), kit_slice("Gone"), 0) == NULL);
    CHECK_INT(kit_max(store, "T", 0), 3 * KIT_QUEUE_UNITS);
    cmq_store_abandon(store);
}

/* A write that went to the wrong place repeats the last unit behind the point: of units there the log's alone count. */
static void test_a_repeated_unit_behind_the_point(void)
{
    uint8_t unit[CMQ_UNIT_BYTES];
    const char *root = kit_path(kit_directory(), "store");
    kit_set_clock();
    cmq_store *store = kit_open_at(root);
    kit_append_many(store, "T", "m", 3);
    CHECK_OK(cmq_store_maintain(store, true));
    append_behind_the_point(store, 5);
    cmq_store_abandon(store);
    kit_read_bytes(queue_file(root, 0), 7 * CMQ_UNIT_BYTES, unit, sizeof unit);
    kit_write_bytes(queue_file(root, 0), 8 * CMQ_UNIT_BYTES, unit, sizeof unit);
    store = kit_open_at(root);
    CHECK_INT(kit_max(store, "T", 0), 8);
    CHECK_TEXT(kit_read_topic(store, "T"), "m0 m1 m2 n0 n1 n2 n3 n4");
    kit_close(store);
}

static void test_a_removed_queue(void)
{
    const char *root = make_store();
    kit_remove_tree(kit_path(root, "consumequeue/T"));
    check_opens_whole(root);
}

/* Queues that come, go and are not confirmed do not make a point untrue. */
static void test_a_true_point_is_trusted(void)
{
    const char *root = make_store();
    cmq_store_options options = kit_options(root);
    cmq_store *store = kit_open(&options);
    kit_append_many(store, "Gone", "g", 3);
    CHECK_OK(cmq_store_delete_topic(store, kit_slice("Gone")));
    CHECK_OK(cmq_store_maintain(store, true));
    uint32_t deleted;
    kit_append_many(store, "T", "filling", 400);
    CHECK_OK(cmq_store_maintain(store, true));
    CHECK_OK(cmq_store_expire(store, true, &deleted));
    CHECK(deleted > 0);
    CHECK_OK(cmq_store_delete_expired_queues(store, &deleted));
    CHECK_INT(deleted, 1);
    kit_append_many(store, "New", "n", 3);
    const char *image = kit_path(kit_directory(), "killed");
    kit_copy_tree(root, image);   /* as a killed process leaves it */
    kit_close(store);
    store = kit_open_at(image);
    cmq_store_opening opening;
    cmq_store_opening_of(store, &opening);
    CHECK(opening.was_unclean && opening.trusted_point);
    CHECK_INT(opening.records, 3);
    CHECK_TEXT(kit_read_topic(store, "New"), "n0 n1 n2");
    kit_close(store);
}

/* A view has no files to put millions of fillers into: damage, by its place, and no inner status. */
static void test_an_offset_far_ahead_in_a_view(void)
{
    const char *root = kit_directory();
    uint8_t offset[8];
    cmq_store *store = kit_open_at(root), *view;
    kit_append_many(store, "T", "m", 5);
    CHECK_OK(cmq_store_maintain(store, true));
    const int64_t phy = kit_append(store, "T", 0, "m5", NULL, NULL).first_physical_offset;
    cmq_store_abandon(store);
    cmq_store_i64(offset, 5 + (INT64_C(1) << 22));
    kit_write_bytes(kit_path(root, "commitlog/00000000000000000000"), phy + CMQ_RECORD_AT_QUEUE_OFFSET, offset,
                    sizeof offset);
    cmq_store_options options = kit_options(root);
    options.read_only = true;
    options.create = false;
    CHECK_STATUS(cmq_store_open(&view, &options), CMQ_ERR_CORRUPT);
    CHECK_INT(cmq_last_error()->offset, phy);
}

/* A queue of five batches of three, the last of them behind the durable point. */
static cmq_store *make_batches(const char *root, cmq_store_options *options)
{
    static const char *const topics[] = {"Batch"};
    *options = kit_options(root);
    options->batch_topics = topics;
    options->batch_topic_count = 1;
    cmq_store *store = kit_open(options);
    for (int i = 0; i < 5; i++) {
        cmq_appended appended;
        if (i == 4) CHECK_OK(cmq_store_maintain(store, true));
        const cmq_append batch = {.common = {.topic = kit_slice("Batch"), .sys_flag = CMQ_SYS_INNER_BATCH},
                                  .count = 1,
                                  .bodies = {.kind = CMQ_COLUMN_ONE, .one = kit_slice("b")},
                                  .properties = {.kind = CMQ_COLUMN_ONE, .one = kit_slice("INNER_NUM\0013\002")}};
        CHECK_OK(cmq_store_append(store, &batch, &appended));
        CHECK_INT(appended.first_queue_offset, 3 * i);
    }
    return store;
}

/* A bit of the offset or the number of messages of each unit below the point: the batch that the log brings again does
 * not push others out. */
static void test_a_flipped_offset_of_a_batch(void)
{
    cmq_store_options options;
    kit_found *found = kit_found_make(8);
    for (int unit = 0; unit < 4; unit++)
        for (int byte = 28; byte < 38; byte++) {
            const char *root = kit_directory();
            cmq_store_abandon(make_batches(root, &options));
            kit_flip(kit_path(root, "batchconsumequeue/Batch/0/00000000000000000000"),
                     unit * CMQ_BATCH_UNIT_BYTES + byte, 4);
            options.create = false;
            for (int read_only = 1; read_only >= 0; read_only--) {
                options.read_only = read_only;
                cmq_store *store = kit_open(&options);
                for (int i = 0; i < 5; i++) {
                    CHECK_OK(cmq_store_read_offset(store, kit_slice("Batch"), 0, 3 * i + 1, &found->batch));
                    CHECK_INT(found->items[0].queue_offset, 3 * i);
                    cmq_found_batch_release(&found->batch);
                }
                kit_close(store);
            }
            kit_remove_tree(root);
        }
    kit_found_free(found);
}

CMQ_TEST_MAIN(CMQ_TEST(test_a_flipped_offset_of_a_batch),
              CMQ_TEST(test_an_offset_far_ahead_in_a_view), CMQ_TEST(test_a_flipped_unit), CMQ_TEST(test_a_zeroed_file),
              CMQ_TEST(test_a_removed_file), CMQ_TEST(test_a_removed_queue),
              CMQ_TEST(test_an_unfinished_recovery_reads_the_whole_log),
              CMQ_TEST(test_a_power_loss_brings_no_mark_of_a_finished_recovery_back),
              CMQ_TEST(test_a_gap_behind_the_point_brings_no_deleted_topic_back),
              CMQ_TEST(test_files_behind_the_point_do_not_displace_an_expired_one_below_it),
              CMQ_TEST(test_the_file_in_which_the_points_units_end_does_not_expire),
              CMQ_TEST(test_a_point_without_units_brings_no_deleted_topic_back),
              CMQ_TEST(test_a_repeated_unit_behind_the_point),
              CMQ_TEST(test_a_true_point_is_trusted))
