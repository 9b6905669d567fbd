/* test_cmq_index_file: one index file: bytes as upstream writes them, rewind from any mixture of old and new sectors,
 * walks over hostile bytes. */
#include "store/index/cmq_index_file.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/cmq_hash.h"
#include "support/cmq_test.h"

#define SLOTS 50
#define ENTRIES 400

static const char *path_in(const char *folder)
{
    static char path[CMQ_PATH_BYTES];
    CHECK_OK(cmq_path_join(path, folder, "20260101000000000"));
    return path;
}

static uint32_t hash_of(const char *text) { return (uint32_t)cmq_index_hash(cmq_jhash(cmq_slice_of_text(text))); }

static void put(cmq_index_file *file, int64_t phy, int64_t store_ms, uint32_t hash)
{
    const cmq_index_key key = {.phy = phy, .store_ms = store_ms, .hash = hash};
    CHECK_OK(cmq_index_file_reserve(file, file->at.count + 1));
    cmq_index_file_put(file, &key, 1);
}

static cmq_index_file *fresh(void)
{
    cmq_index_file *file;
    CHECK_OK(
        cmq_index_file_create(cmq_fs_posix(), path_in(cmq_test_directory()), 20260101000000000, SLOTS, ENTRIES, &file));
    return file;
}

/* Back to what a new file is. */
static void clear(cmq_index_file *file)
{
    memset(file->map, 0, (size_t)file->bytes);
    cmq_index_file_position(file, &file->at);
}

/* Spec store 14.3: record at 0x12345 with UNIQ_KEY and one key, in a fresh file of upstream's sizes. */
static void worked_example(void)
{
    cmq_index_file *file;
    CHECK_OK(cmq_index_file_create(cmq_fs_posix(), path_in(cmq_test_directory()), 20260101000000000,
                                  CMQ_INDEX_SLOTS_DEFAULT, CMQ_INDEX_ENTRIES_DEFAULT, &file));
    CHECK_INT(file->bytes, 420000040);
    CHECK_OK(cmq_index_file_reserve(file, 3));
    const cmq_index_key keys[2] = {
        {.phy = 0x12345, .store_ms = 1700000000456, .hash = hash_of("TopicTest#C0A8010A2B5C18B4AAC2000000000001")},
        {.phy = 0x12345, .store_ms = 1700000000456, .hash = hash_of("TopicTest#order-1001")},
    };
    cmq_index_file_put(file, keys, 2);
    static const uint8_t header[] = {0,    0,    1,    0x8b, 0xcf, 0xe5, 0x69, 0xc8, 0,    0,    1, 0x8b, 0xcf, 0xe5,
                                     0x69, 0xc8, 0,    0,    0,    0,    0,    1,    0x23, 0x45, 0, 0,    0,    0,
                                     0,    1,    0x23, 0x45, 0,    0,    0,    2,    0,    0,    0, 3};
    static const uint8_t first[] = {0x2d, 0x0e, 0x71, 0x7f, 0, 0, 0, 0, 0, 1, 0x23, 0x45, 0, 0, 0, 0, 0, 0, 0, 0};
    static const uint8_t second[] = {0x3e, 0x37, 0x33, 0x01, 0, 0, 0, 0, 0, 1, 0x23, 0x45, 0, 0, 0, 0, 0, 0, 0, 0};
    CHECK_BYTES(file->map, 40, header, sizeof header);
    CHECK_BYTES(file->map + 3685156, 4, ((const uint8_t[]){0, 0, 0, 1}), 4);
    CHECK_BYTES(file->map + 15219756, 4, ((const uint8_t[]){0, 0, 0, 2}), 4);
    CHECK_BYTES(file->map + 20000060, 20, first, sizeof first);
    CHECK_BYTES(file->map + 20000080, 20, second, sizeof second);
    CHECK_OK(cmq_index_file_reserve(file, 2));   /* reserved blocks cost nothing again */
    cmq_file_info info;
    CHECK_OK(cmq_file_info_of(file->file, &info));
    CHECK(info.allocated_bytes < 24 << 20);
    cmq_index_file_release(file);
}

/* Spec store 4.2: the first key of a rolled file counts its seconds from the end of the file before; then the header is
 * its own. */
static void rolled_header(void)
{
    cmq_index_file *file = fresh();
    cmq_index_file_set(file, &(cmq_index_position){
                                .count = 1, .begin_ms = 1000000, .end_ms = 1000000, .begin_phy = 77, .end_phy = 77});
    put(file, 900, 1003999, 5);
    put(file, 950, 1004998, 5 + SLOTS);
    CHECK_INT(cmq_load_i32(file->map + 40 + 4 * SLOTS + 20 + 12), 3);
    CHECK_INT(cmq_load_i32(file->map + 40 + 4 * SLOTS + 40 + 12), 0);
    CHECK_INT(cmq_load_i32(file->map + 40 + 4 * SLOTS + 40 + 16), 1);
    CHECK_INT(cmq_load_i64(file->map), 1003999);
    CHECK_INT(cmq_load_i64(file->map + 16), 900);
    cmq_index_position position;
    cmq_index_file_position(file, &position);
    CHECK_INT(position.count, 3);
    CHECK_INT(position.slots_used, 1);
    CHECK_INT(position.end_ms, 1004998);
    CHECK_INT(position.end_phy, 950);
    /* Entry 1 says three seconds after begin, but stands for the begin itself. */
    const cmq_index_file_wanted wanted = {.hash = 5, .begin_ms = 1003999, .end_ms = 1003999};
    int32_t entry = 0;
    int64_t last = 0, phy[2];
    CHECK_INT(cmq_index_file_find(file, &wanted, &entry, &last, phy, 2), 1);
    CHECK_INT(phy[0], 900);
    cmq_index_file_release(file);
}

static void times_are_clamped(void)
{
    cmq_index_file *file = fresh();
    put(file, 1, 5000, 1);
    put(file, 2, 4000, 2);                            /* earlier than begin */
    put(file, 3, 5000 + (int64_t)INT32_MAX * 2000, 3);  /* farther than 31 bits of seconds */
    put(file, 4, INT64_MAX, 4);
    const uint8_t *entries = file->map + 40 + 4 * SLOTS;
    CHECK_INT(cmq_load_i32(entries + 2 * 20 + 12), 0);
    CHECK_INT(cmq_load_i32(entries + 3 * 20 + 12), INT32_MAX);
    CHECK_INT(cmq_load_i32(entries + 4 * 20 + 12), INT32_MAX);
    cmq_index_file_release(file);
    file = fresh();
    put(file, 1, 0, 1);   /* a begin of 0 means no begin */
    put(file, 2, 9000, 2);
    CHECK_INT(cmq_load_i32(file->map + 40 + 4 * SLOTS + 2 * 20 + 12), 0);
    cmq_index_file_release(file);
}

static void slots_left_behind_are_ignored(void)
{
    cmq_index_file *file = fresh();
    CHECK_OK(cmq_index_file_reserve(file, 1));
    cmq_store_i32(file->map + 40 + 4 * 7, 123);   /* points behind the count */
    cmq_store_i32(file->map + 40 + 4 * 8, -5);
    put(file, 10, 1000, 7);
    put(file, 20, 1000, 8);
    CHECK_INT(cmq_load_i32(file->map + 40 + 4 * SLOTS + 20 + 16), 0);
    CHECK_INT(cmq_load_i32(file->map + 40 + 4 * SLOTS + 40 + 16), 0);
    CHECK_INT(file->at.slots_used, 2);
    cmq_index_file_release(file);
}

/* A slot may point to an entry that is not counted yet (its writer is at work in another process): it is passed over,
 * the ones before are found. */
static void entries_behind_the_count_are_passed_over(void)
{
    cmq_index_file *file = fresh();
    for (uint32_t i = 0; i < 6; i++) put(file, 10 * i, 1000, 3);
    cmq_store_i32(file->map + 36, 4);   /* entries 4 to 6 are there, but not counted */
    const cmq_index_file_wanted wanted = {.hash = 3, .end_ms = INT64_MAX};
    int32_t entry = 0;
    int64_t last = 0, phy[6];
    CHECK_INT(cmq_index_file_find(file, &wanted, &entry, &last, phy, 6), 3);
    CHECK_INT(entry, 0);
    for (int64_t i = 0; i < 3; i++) CHECK_INT(phy[i], 20 - 10 * i);
    cmq_index_file_release(file);
}

static void lengths_are_checked(void)
{
    const char *folder = cmq_test_directory();
    cmq_index_file *file;
    CHECK_OK(cmq_index_file_create(cmq_fs_posix(), path_in(folder), 1, SLOTS, ENTRIES, &file));
    cmq_index_file_release(file);
    CHECK_STATUS(cmq_index_file_create(cmq_fs_posix(), path_in(folder), 1, SLOTS, ENTRIES, &file), CMQ_ERR_IO);
    CHECK(file == NULL);
    CHECK_STATUS(cmq_index_file_open(cmq_fs_posix(), path_in(folder), 1, SLOTS + 1, ENTRIES, false, &file),
                 CMQ_ERR_SETTING);
    CHECK(file == NULL);
    CHECK_OK(cmq_index_file_open(cmq_fs_posix(), path_in(folder), 1, SLOTS + 5, ENTRIES - 1, false, &file));
    cmq_index_file_release(file);
    cmq_file *raw;
    CHECK_OK(cmq_file_open(cmq_fs_posix(), path_in(folder), CMQ_OPEN_WRITE, &raw));
    CHECK_OK(cmq_file_resize(raw, 0));
    cmq_file_close(raw);
    CHECK_STATUS(cmq_index_file_open(cmq_fs_posix(), path_in(folder), 1, SLOTS, ENTRIES, true, &file), CMQ_END);
    CHECK_INT(cmq_index_file_bytes(0, 10), 0);
    CHECK_INT(cmq_index_file_bytes(10, 1), 0);
    CHECK_INT(cmq_index_file_bytes(INT32_MAX, INT32_MAX), 40 + (int64_t)INT32_MAX * 24);
}

/* Put up to 200 keys, remember; put more; then let every sector (here of 64 bytes) come from either time, the entries
 * behind the count from a third. A rewind must give exactly the file of the first time, but for what stands behind the
 * count. */
static void rewind_once(cmq_index_file *file)
{
    clear(file);
    const size_t bytes = (size_t)file->bytes;
    uint8_t *early = malloc(bytes), *late = malloc(bytes);
    const uint32_t puts = (uint32_t)cmq_test_random_below(200);
    for (uint32_t i = 0; i < puts; i++) put(file, i * 100, 1000000 + i * 300, (uint32_t)cmq_test_random_below(1000));
    cmq_index_position position;
    cmq_index_file_position(file, &position);
    memcpy(early, file->map, bytes);
    for (uint32_t i = puts; i < ENTRIES - 1 && cmq_test_random_below(100) != 0; i++)
        put(file, i * 100, 1000000 + i * 300, (uint32_t)cmq_test_random_below(1000));
    memcpy(late, file->map, bytes);
    for (int round = 0; round < 20; round++) {
        const size_t behind = 40 + 4 * SLOTS + 20 * (size_t)position.count;
        for (size_t at = 0; at < bytes; at += 64) {
            const size_t part = bytes - at < 64 ? bytes - at : 64;
            memcpy(file->map + at, cmq_test_random_below(2) == 0 ? early + at : late + at, part);
        }
        for (size_t at = behind; at < bytes; at++)
            if (cmq_test_random_below(3) == 0) file->map[at] = (uint8_t)cmq_test_random();
        file->synced = position.count;
        CHECK_OK(cmq_index_file_rewind(file, &position));
        CHECK_INT(file->synced, -1);   /* it was changed: the next flush must not pass it over */
        if (position.count > 1) CHECK_BYTES(file->map, behind, early, behind);
        for (size_t slot = 0; position.count == 1 && slot < SLOTS; slot++)
            CHECK_INT(cmq_load_i32(file->map + 40 + 4 * slot), 0);
    }
    /* A file that cannot have been there says so. */
    if (position.count > 1) {
        cmq_index_position other = position;
        other.end_phy += 1;
        CHECK_STATUS(cmq_index_file_rewind(file, &other), CMQ_ERR_CORRUPT);
        other = position;
        other.count = ENTRIES + 1;
        CHECK_STATUS(cmq_index_file_rewind(file, &other), CMQ_ERR_CORRUPT);
        other = position;
        other.begin_phy += 1;
        CHECK_STATUS(cmq_index_file_rewind(file, &other), CMQ_ERR_CORRUPT);
    }
    free(early);
    free(late);
}

static void rewind_from_any_mixture(void)
{
    cmq_index_file *file = fresh();
    for (int round = 0; round < 30; round++) rewind_once(file);
    cmq_index_file_release(file);
}

/* With any bytes a walk ends, gives no more than asked, and stays inside; a put goes on. */
static void hostile_bytes(void)
{
    cmq_index_file *file = fresh();
    for (int round = 0; round < 300; round++) {
        clear(file);
        for (uint32_t i = 0; i < 100; i++) put(file, i, 1000000 + i, (uint32_t)cmq_test_random_below(60));
        for (uint64_t flips = cmq_test_random_below(400); flips > 0; flips--) {
            const uint64_t at = cmq_test_random_below(file->bytes & ~(uint64_t)3);
            if (cmq_test_random_below(2) == 0) file->map[at] = (uint8_t)cmq_test_random();
            else cmq_store_u32(file->map + (at & ~(uint64_t)3), (uint32_t)cmq_test_random());
        }
        for (uint32_t hash = 0; hash < 60; hash++) {
            const cmq_index_file_wanted wanted = {.hash = hash,
                                                 .begin_ms = cmq_test_random_below(2) == 0 ? 0 : INT64_MIN,
                                                 .end_ms = INT64_MAX,
                                                 .min_phy = cmq_test_random_below(2) == 0 ? 0 : INT64_MIN};
            int32_t entry = (int32_t)cmq_test_random_below(3) == 0 ? (int32_t)cmq_test_random() : 0;
            int64_t last = 0, phy[7];
            uint32_t calls = 0;
            do {
                const uint32_t count = cmq_index_file_find(file, &wanted, &entry, &last, phy, 7);
                CHECK(count <= 7);
                for (uint32_t i = 0; i < count; i++) CHECK(phy[i] >= 0);
                CHECK(entry >= 0 && entry < ENTRIES && ++calls <= ENTRIES);
            } while (entry != 0);
        }
        cmq_index_file_position(file, &file->at);
        CHECK(file->at.count >= 1 && file->at.count <= ENTRIES);
        for (uint32_t i = 0; i < 20 && file->at.count < ENTRIES; i++)
            put(file, (int64_t)(cmq_test_random() >> 1), (int64_t)cmq_test_random(), i);
    }
    cmq_index_file_release(file);
}

/* ---- how much a rewind reads ---- */

static cmq_fs_ops counting_ops;
static cmq_fs counting_fs = {.ops = &counting_ops};
static uint64_t read_bytes;

static cmq_status count_read(cmq_file *file, uint64_t offset, void *into, size_t bytes)
{
    read_bytes += bytes;
    return cmq_fs_posix()->ops->read(file, offset, into, bytes);
}

static cmq_status open_counting(cmq_fs *self, const char *path, cmq_open_mode mode, cmq_file **file_out)
{
    const cmq_status status = cmq_fs_posix()->ops->open(cmq_fs_posix(), path, mode, file_out);
    if (status == CMQ_OK) (*file_out)->fs = self;
    return status;
}

/* A new key in a slot that was empty: no older entry of it is searched for in millions. An untouched file is only asked
 * for its header. */
static void rewind_reads_only_needed_files(void)
{
    enum { MANY_SLOTS = 100000, MANY = 150000 };
    counting_ops = *cmq_fs_posix()->ops;
    counting_ops.read = count_read;
    counting_ops.open = open_counting;
    cmq_index_file *file;
    CHECK_OK(cmq_index_file_create(&counting_fs, path_in(cmq_test_directory()), 20260101000000000, MANY_SLOTS,
                                   MANY + 10, &file));
    for (uint32_t i = 0; i < MANY - 1; i++) put(file, i * 100, 1000000 + i, i % (MANY_SLOTS / 2));
    cmq_index_position position;
    bool is_at;
    cmq_index_file_position(file, &position);
    CHECK_OK(cmq_index_file_is_at(file, &position, &is_at));
    CHECK(is_at && read_bytes == 0);
    put(file, MANY * 100, 2000000, MANY_SLOTS - 1);
    CHECK_OK(cmq_index_file_is_at(file, &position, &is_at));
    CHECK(!is_at);
    CHECK_OK(cmq_index_file_rewind(file, &position));
    CHECK(read_bytes <= CMQ_INDEX_SLOT_BYTES * MANY_SLOTS);   /* the slots, and no entry */
    CHECK_INT(cmq_load_i32(file->map + CMQ_INDEX_HEADER_BYTES + CMQ_INDEX_SLOT_BYTES * (MANY_SLOTS - 1)), 0);
    /* One in a slot with an older entry: from the newest back, until it is found. */
    put(file, MANY * 100, 2000000, 7);
    read_bytes = 0;
    CHECK_OK(cmq_index_file_rewind(file, &position));
    CHECK(read_bytes < CMQ_INDEX_SLOT_BYTES * MANY_SLOTS + CMQ_INDEX_ENTRY_BYTES * 70000);
    CHECK_INT(cmq_load_i32(file->map + CMQ_INDEX_HEADER_BYTES + CMQ_INDEX_SLOT_BYTES * 7),
              2 * (MANY_SLOTS / 2) + 7 + 1);
    cmq_index_file_release(file);
}

CMQ_TEST_MAIN(CMQ_TEST(rewind_reads_only_needed_files), CMQ_TEST(worked_example), CMQ_TEST(rolled_header),
              CMQ_TEST(times_are_clamped), CMQ_TEST(slots_left_behind_are_ignored),
              CMQ_TEST(entries_behind_the_count_are_passed_over), CMQ_TEST(lengths_are_checked),
              CMQ_TEST(rewind_from_any_mixture), CMQ_TEST(hostile_bytes))
