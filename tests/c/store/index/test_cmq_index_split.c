/* test_cmq_index_split: an index file's slots and entries, found and proved from its own chains. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "store/index/cmq_index.h"
#include "support/cmq_test.h"

static const char *root;
static char path[CMQ_PATH_BYTES];
static const _Atomic int64_t clock_ms = 1700000000000;

/* A file with `keys` keys at random offsets (the first at `begin_phy`); its path goes to `path`. */
static void make_file(int32_t slots, int32_t entries, uint32_t keys, int64_t begin_phy)
{
    root = cmq_test_directory();
    const cmq_index_options options = {
        .fs = cmq_fs_posix(), .root = root, .slots = slots, .entries = entries, .clock = cmq_clock_manual(&clock_ms)};
    cmq_index *index;
    CHECK_OK(cmq_index_create(&index, &options));
    CHECK_OK(cmq_index_make_room(index, keys > 0 ? keys : 1));
    int64_t phy = begin_phy;
    for (uint32_t i = 0; i < keys; i++) {
        const cmq_index_key key = {
            .phy = phy, .store_ms = 1700000000000 + i * 7, .hash = (uint32_t)(cmq_test_random() & INT32_MAX)};
        cmq_index_put(index, &key, 1);
        phy += (int64_t)cmq_test_random_below(300);
    }
    CHECK_INT(cmq_index_files(index), keys > 0 ? 1 : 0);
    cmq_index_destroy(index);
    const cmq_index_options again = {
        .fs = cmq_fs_posix(), .root = root, .slots = slots, .entries = entries, .clock = cmq_clock_manual(&clock_ms)};
    CHECK_OK(cmq_index_create(&index, &again));
    CHECK_OK(cmq_index_load(index));
    cmq_index_file_info info = {0};
    if (keys > 0) CHECK_OK(cmq_index_file_at(index, 0, &info));
    snprintf(path, sizeof path, "%s/index/%017" PRId64, root, info.name);
    cmq_index_destroy(index);
}

static void check_found(int32_t slots, int32_t entries)
{
    int32_t slots_found, entries_found;
    CHECK_OK(cmq_index_find_split(cmq_fs_posix(), path, &slots_found, &entries_found));
    CHECK_INT(slots_found, slots);
    CHECK_INT(entries_found, entries);
    bool fits;
    CHECK_OK(cmq_index_prove_split(cmq_fs_posix(), path, slots, entries, false, &fits));
    CHECK(fits);
    CHECK_OK(cmq_index_prove_split(cmq_fs_posix(), path, slots + 5, entries - 1, false, &fits));
    CHECK(!fits);
    if (slots > 5) CHECK_OK(cmq_index_prove_split(cmq_fs_posix(), path, slots - 5, entries + 1, false, &fits));
    CHECK(!fits);
    CHECK_OK(cmq_index_prove_split(cmq_fs_posix(), path, slots, entries + 1, false, &fits));
    CHECK(!fits);
    CHECK_OK(cmq_index_prove_split(cmq_fs_posix(), path, -1, -1, false, &fits));
    CHECK(!fits);
}

static void usual_and_unusual_splits(void)
{
    static const int32_t splits[][2] = {{1000, 4000}, {1, 2},       {3, 50},     {997, 31}, {12345, 678},
                                        {10, 10000},  {4096, 4096}, {100, 1000}, {7, 101}};
    for (size_t i = 0; i < sizeof splits / sizeof splits[0]; i++) {
        const uint32_t most = (uint32_t)splits[i][1] - 1;
        make_file(splits[i][0], splits[i][1], most, 1 + (int64_t)cmq_test_random_below(1000000));
        check_found(splits[i][0], splits[i][1]);
        make_file(splits[i][0], splits[i][1], 1 + (uint32_t)cmq_test_random_below(most),
                  1 + (int64_t)cmq_test_random_below(1000000));
        check_found(splits[i][0], splits[i][1]);
        make_file(splits[i][0], splits[i][1], most, 0);   /* a log that begins at 0 */
        check_found(splits[i][0], splits[i][1]);
    }
}

/* A single key already points both ways. */
static void one_key(void)
{
    make_file(1000, 4000, 1, 4711);
    check_found(1000, 4000);
    make_file(733, 911, 1, 4711);
    check_found(733, 911);
}

static void upstreams_sizes(void)
{
    make_file(CMQ_INDEX_SLOTS_DEFAULT, CMQ_INDEX_ENTRIES_DEFAULT, 2, 0);
    int32_t slots, entries;
    CHECK_OK(cmq_index_find_split(cmq_fs_posix(), path, &slots, &entries));
    CHECK_INT(slots, CMQ_INDEX_SLOTS_DEFAULT);
    CHECK_INT(entries, CMQ_INDEX_ENTRIES_DEFAULT);
}

static void write_at(uint64_t offset, const void *bytes, size_t count)
{
    cmq_file *file;
    CHECK_OK(cmq_file_open(cmq_fs_posix(), path, CMQ_OPEN_WRITE, &file));
    CHECK_OK(cmq_file_write(file, offset, bytes, count));
    cmq_file_close(file);
}

/* A few torn entries do not hide the split; but the proof fails. */
static void damaged(void)
{
    make_file(733, 2000, 1800, 4711);
    for (uint64_t i = 0; i < 15; i++) {
        const uint64_t noise = cmq_test_random();
        write_at(40 + 4 * 733 + 20 * (300 + 100 * i), &noise, sizeof noise);
    }
    int32_t slots, entries;
    CHECK_OK(cmq_index_find_split(cmq_fs_posix(), path, &slots, &entries));
    CHECK_INT(slots, 733);
    CHECK_INT(entries, 2000);
    bool fits;
    CHECK_OK(cmq_index_prove_split(cmq_fs_posix(), path, 733, 2000, false, &fits));
    CHECK(!fits);
}

/* One wrong byte anywhere in the used part fails the proof, but for times, offsets inside the record order and what the
 * header only repeats. */
static void proof_sees_each_link(void)
{
    make_file(20, 60, 40, 1000);
    for (uint32_t entry = 1; entry <= 40; entry++) {
        uint8_t previous[4];
        cmq_file *file;
        CHECK_OK(cmq_file_open(cmq_fs_posix(), path, CMQ_OPEN_READ, &file));
        const uint64_t at = 40 + 4 * 20 + 20 * entry + 16;
        CHECK_OK(cmq_file_read(file, at, previous, 4));
        cmq_file_close(file);
        uint8_t wrong[4];
        cmq_store_u32(wrong, cmq_load_u32(previous) + 1);
        write_at(at, wrong, 4);
        bool fits;
        CHECK_OK(cmq_index_prove_split(cmq_fs_posix(), path, 20, 60, false, &fits));
        CHECK(!fits);
        write_at(at, previous, 4);
    }
    bool fits;
    CHECK_OK(cmq_index_prove_split(cmq_fs_posix(), path, 20, 60, false, &fits));
    CHECK(fits);
    uint8_t slots[4 * 20];
    cmq_file *file;
    CHECK_OK(cmq_file_open(cmq_fs_posix(), path, CMQ_OPEN_READ, &file));
    CHECK_OK(cmq_file_read(file, 40, slots, sizeof slots));
    cmq_file_close(file);
    uint32_t used = 0;
    while (cmq_load_i32(slots + 4 * used) == 0) used++;
    write_at(40 + 4 * used, "\0\0\0\0", 4);   /* a slot forgotten */
    CHECK_OK(cmq_index_prove_split(cmq_fs_posix(), path, 20, 60, false, &fits));
    CHECK(!fits);
}

static void unknown_splits(void)
{
    root = cmq_test_directory();
    snprintf(path, sizeof path, "%s/file", root);
    static const uint64_t lengths[] = {0, 39, 40, 44, 60, 84040, 84041};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        cmq_file *file;
        CHECK_OK(cmq_file_open(cmq_fs_posix(), path, CMQ_OPEN_CREATE, &file));
        CHECK_OK(cmq_file_resize(file, lengths[i]));
        cmq_file_close(file);
        int32_t slots, entries;
        CHECK_STATUS(cmq_index_find_split(cmq_fs_posix(), path, &slots, &entries), CMQ_ERR_AMBIGUOUS);
        CHECK(strstr(cmq_last_error()->text, "maxHashSlotNum") != NULL &&
              strstr(cmq_last_error()->text, "maxIndexNum") != NULL);
        CHECK_INT(slots, 0);
        bool fits;
        CHECK_OK(cmq_index_prove_split(cmq_fs_posix(), path, 1000, 4000, false, &fits));
        CHECK(fits == (lengths[i] == 84040));   /* an empty file is fine with every split of its length */
    }
    int32_t slots, entries;
    CHECK_STATUS(cmq_index_find_split(cmq_fs_posix(), "/nowhere/at/all", &slots, &entries), CMQ_ERR_NOT_FOUND);
}

/* Bytes without meaning never give a split with confidence, and never make us read outside. */
static void noise(void)
{
    root = cmq_test_directory();
    snprintf(path, sizeof path, "%s/file", root);
    static uint8_t bytes[8440];
    for (int round = 0; round < 40; round++) {
        for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (uint8_t)cmq_test_random();
        if (round % 2 == 0) cmq_store_i32(bytes + 36, 1 + (int32_t)cmq_test_random_below(400));
        if (round % 4 == 0) cmq_store_i32(bytes + 32, 1 + (int32_t)cmq_test_random_below(400));
        cmq_file *file;
        CHECK_OK(cmq_file_open(cmq_fs_posix(), path, CMQ_OPEN_CREATE, &file));
        CHECK_OK(cmq_file_write(file, 0, bytes, sizeof bytes));
        cmq_file_close(file);
        int32_t slots, entries;
        CHECK_STATUS(cmq_index_find_split(cmq_fs_posix(), path, &slots, &entries), CMQ_ERR_AMBIGUOUS);
        bool fits;
        CHECK_OK(cmq_index_prove_split(cmq_fs_posix(), path, 100, 400, false, &fits));
        CHECK(!fits);
    }
}

CMQ_TEST_MAIN(CMQ_TEST(usual_and_unusual_splits), CMQ_TEST(one_key), CMQ_TEST(upstreams_sizes), CMQ_TEST(damaged),
              CMQ_TEST(proof_sees_each_link), CMQ_TEST(unknown_splits), CMQ_TEST(noise))
