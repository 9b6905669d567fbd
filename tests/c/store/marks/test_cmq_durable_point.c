/* test_cmq_durable_point: the durable point survives torn writes, and nothing but a whole one counts. */
#include "store/marks/cmq_durable_point.h"

#include <stdio.h>
#include <string.h>

#include "base/cmq_bytes.h"
#include "base/cmq_crc32.h"
#include "support/cmq_test.h"

static cmq_durable_point some(void)
{
    return (cmq_durable_point){.log_end = (int64_t)(cmq_test_random() >> 2),
                       .store_ms = (int64_t)cmq_test_random_below(1u << 30),
                       .index = {.file_name = 20261231235959998,
                                 .count = 5,
                                 .slots_used = 3,
                                 .begin_ms = 1,
                                 .end_ms = 2,
                                 .begin_phy = 3,
                                 .end_phy = 4},
                       .queues = cmq_test_random(),
                       .queues_known = true,
                       .queues_also = cmq_test_random(),
                       .has_also = true,
                       .checkpoint_crc = (uint32_t)cmq_test_random(),
                       .clean = cmq_test_random_below(2) == 0,
                       .last_phy = 77,
                       .last_bytes = 182,
                       .last_crc = (uint32_t)cmq_test_random(),
                       .sizes = {.segment_bytes = 1 + (int64_t)cmq_test_random_below(1u << 30),
                                 .queue_file_bytes = 20,
                                 .batch_file_bytes = 46,
                                 .ext_file_bytes = 77,
                                 .index_slots = 5,
                                 .index_entries = 6},
                       .index_missing_from = 1000,
                       .index_missing_end = 1000 + (int64_t)cmq_test_random_below(1u << 30)};
}

/* By fields: padding between them holds anything. */
static bool same_index(const cmq_durable_point *a, const cmq_durable_point *b)
{
    return a->index.file_name == b->index.file_name && a->index.count == b->index.count &&
           a->index.slots_used == b->index.slots_used && a->index.begin_ms == b->index.begin_ms &&
           a->index.end_ms == b->index.end_ms && a->index.begin_phy == b->index.begin_phy &&
           a->index.end_phy == b->index.end_phy;
}

static bool same_sizes(const cmq_layout_sizes *a, const cmq_layout_sizes *b)
{
    return a->segment_bytes == b->segment_bytes && a->queue_file_bytes == b->queue_file_bytes &&
           a->batch_file_bytes == b->batch_file_bytes && a->ext_file_bytes == b->ext_file_bytes &&
           a->index_slots == b->index_slots && a->index_entries == b->index_entries;
}

static bool equal(const cmq_durable_point *a, const cmq_durable_point *b)
{
    return a->log_end == b->log_end && a->store_ms == b->store_ms && same_index(a, b) &&
           a->checkpoint_crc == b->checkpoint_crc && a->queues == b->queues &&
           a->queues_known == b->queues_known && a->queues_also == b->queues_also &&
           a->has_also == b->has_also && a->clean == b->clean && a->last_phy == b->last_phy &&
           a->last_bytes == b->last_bytes && a->last_crc == b->last_crc && same_sizes(&a->sizes, &b->sizes) &&
           a->index_missing_from == b->index_missing_from && a->index_missing_end == b->index_missing_end;
}

static void check_loads(const char *root, const cmq_durable_point *expected)
{
    cmq_durable_point point;
    bool found;
    CHECK_OK(cmq_durable_point_load(cmq_fs_posix(), root, &point, &found));
    CHECK(found == (expected != NULL));
    const cmq_durable_point none = {0};
    CHECK(equal(&point, expected != NULL ? expected : &none));
}

static void store_and_load(void)
{
    const char *root = cmq_test_directory();
    check_loads(root, NULL);
    cmq_durable_point_file *file;
    CHECK_OK(cmq_durable_point_open(cmq_fs_posix(), root, &file));
    check_loads(root, NULL);
    for (int i = 0; i < 5; i++) {
        const cmq_durable_point point = some();
        CHECK_OK(cmq_durable_point_store(file, &point));
        check_loads(root, &point);
        if (i != 2) continue;
        cmq_durable_point_close(file);   /* the numbering goes on */
        CHECK_OK(cmq_durable_point_open(cmq_fs_posix(), root, &file));
        check_loads(root, &point);
    }
    cmq_durable_point_close(file);
    CHECK_OK(cmq_durable_point_forget(cmq_fs_posix(), root));
    check_loads(root, NULL);
    CHECK_OK(cmq_durable_point_forget(cmq_fs_posix(), root));
}

static void flip(const char *root, uint64_t offset, uint8_t mask)
{
    char path[CMQ_PATH_BYTES];
    CHECK_OK(cmq_path_join(path, root, "cometmq/point"));
    cmq_file *file;
    CHECK_OK(cmq_file_open(cmq_fs_posix(), path, CMQ_OPEN_WRITE, &file));
    uint8_t byte;
    CHECK_OK(cmq_file_read(file, offset, &byte, 1));
    byte ^= mask;
    CHECK_OK(cmq_file_write(file, offset, &byte, 1));
    cmq_file_close(file);
}

/* Any byte of the newest slot wrong: the one before counts. Both wrong: none. */
static void torn(void)
{
    const char *root = cmq_test_directory();
    cmq_durable_point_file *file;
    CHECK_OK(cmq_durable_point_open(cmq_fs_posix(), root, &file));
    const cmq_durable_point before = some(), newest = some();
    CHECK_OK(cmq_durable_point_store(file, &before));   /* slot 1 */
    CHECK_OK(cmq_durable_point_store(file, &newest));   /* slot 0 */
    cmq_durable_point_close(file);
    for (uint64_t at = 0; at < 188; at++) {
        const uint8_t mask = (uint8_t)(1 + cmq_test_random_below(255));
        flip(root, at, mask);
        check_loads(root, &before);
        flip(root, 4096 + at, mask);
        check_loads(root, NULL);
        flip(root, at, mask);
        check_loads(root, &newest);
        flip(root, 4096 + at, mask);
    }
    /* The next store overwrites the older slot, never the only good one. */
    flip(root, 50, 1);
    CHECK_OK(cmq_durable_point_open(cmq_fs_posix(), root, &file));
    const cmq_durable_point next = some();
    CHECK_OK(cmq_durable_point_store(file, &next));
    cmq_durable_point_close(file);
    check_loads(root, &next);
    flip(root, 50, 1);
    check_loads(root, &before);
}

static void files_of_other_lengths(void)
{
    const char *root = cmq_test_directory();
    cmq_durable_point_file *point_file;
    CHECK_OK(cmq_durable_point_open(cmq_fs_posix(), root, &point_file));
    const cmq_durable_point first = some(), second = some();
    CHECK_OK(cmq_durable_point_store(point_file, &first));
    CHECK_OK(cmq_durable_point_store(point_file, &second));
    cmq_durable_point_close(point_file);
    char path[CMQ_PATH_BYTES];
    CHECK_OK(cmq_path_join(path, root, "cometmq/point"));
    static const uint64_t lengths[] = {8191, 4096 + 188, 4096 + 187, 188, 187, 0};
    for (size_t i = 0; i < 6; i++) {
        cmq_file *file;
        CHECK_OK(cmq_file_open(cmq_fs_posix(), path, CMQ_OPEN_WRITE, &file));
        CHECK_OK(cmq_file_resize(file, lengths[i]));
        cmq_file_close(file);
        check_loads(root, lengths[i] >= 188 ? &second : NULL);
    }
    CHECK_OK(cmq_durable_point_open(cmq_fs_posix(), root, &point_file));
    CHECK_OK(cmq_durable_point_store(point_file, &first));
    cmq_durable_point_close(point_file);
    check_loads(root, &first);
}

/* Make the point's only slot one of another version, which ends with its checksum at `crc_at`; `flags` are kept, and
 * `more` set. */
static const char *store_as(const cmq_durable_point *point, uint32_t version, size_t crc_at, uint32_t flags,
                            uint32_t more)
{
    const char *root = cmq_test_directory();
    cmq_durable_point_file *point_file;
    CHECK_OK(cmq_durable_point_open(cmq_fs_posix(), root, &point_file));
    CHECK_OK(cmq_durable_point_store(point_file, point));
    cmq_durable_point_close(point_file);
    char path[CMQ_PATH_BYTES];
    CHECK_OK(cmq_path_join(path, root, "cometmq/point"));
    cmq_file *file;
    CHECK_OK(cmq_file_open(cmq_fs_posix(), path, CMQ_OPEN_WRITE, &file));
    uint8_t slot[188];
    CHECK_OK(cmq_file_read(file, 4096, slot, sizeof slot));
    cmq_store_u32(slot + 8, version);
    cmq_store_u32(slot + 12, (cmq_load_u32(slot + 12) & flags) | more);
    memset(slot + crc_at, 0, sizeof slot - crc_at);
    if (version > 3) cmq_store_u32(slot + 180, cmq_crc32(slot, 24));
    cmq_store_u32(slot + crc_at, cmq_crc32(slot, crc_at));
    CHECK_OK(cmq_file_write(file, 4096, slot, sizeof slot));
    cmq_file_close(file);
    return root;
}

static void older_versions(void)
{
    const cmq_durable_point point = some();
    cmq_durable_point expected = point;
    check_loads(store_as(&point, 4, 184, UINT32_MAX, 0), &expected);
    expected.index_missing_from = expected.index_missing_end = 0;
    check_loads(store_as(&point, 3, 164, UINT32_MAX, 0), &expected);
    memset(&expected.sizes, 0, sizeof expected.sizes);
    expected.queues_also = 0;
    expected.has_also = false;
    check_loads(store_as(&point, 2, 116, 7, 0), &expected);
}

/* A newer version's point is ignored, and no reason to refuse the store, unless that version demands it; a damaged mark
 * is ignored. */
static void newer_versions(void)
{
    const cmq_durable_point point = some();
    const char *root = store_as(&point, 5, 184, UINT32_MAX, 0);
    check_loads(root, NULL);
    CHECK_OK(cmq_durable_point_refuse_newer(cmq_fs_posix(), root));
    CHECK_OK(cmq_durable_point_refuse_newer(cmq_fs_posix(), store_as(&point, 4, 184, UINT32_MAX, 16)));
    root = store_as(&point, 5, 184, UINT32_MAX, 16);
    check_loads(root, NULL);
    CHECK_STATUS(cmq_durable_point_refuse_newer(cmq_fs_posix(), root), CMQ_ERR_NOT_STORE);
    flip(root, 4096 + 20, 1);
    CHECK_OK(cmq_durable_point_refuse_newer(cmq_fs_posix(), root));
}

CMQ_TEST_MAIN(CMQ_TEST(store_and_load), CMQ_TEST(torn), CMQ_TEST(files_of_other_lengths), CMQ_TEST(older_versions),
              CMQ_TEST(newer_versions))
