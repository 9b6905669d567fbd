/* test_cmq_checkpoint: bytes of the checkpoint file, its rules of time, and files of other lengths. */
#include "store/marks/cmq_checkpoint.h"

#include <stdio.h>
#include <string.h>

#include "base/cmq_crc32.h"
#include "support/cmq_test.h"

static void write_file(const char *root, const void *bytes, size_t count)
{
    char path[CMQ_PATH_BYTES];
    CHECK_OK(cmq_path_join(path, root, "checkpoint"));
    cmq_file *file;
    CHECK_OK(cmq_file_open(cmq_fs_posix(), path, CMQ_OPEN_CREATE, &file));
    CHECK_OK(cmq_file_resize(file, count));
    if (count > 0) CHECK_OK(cmq_file_write(file, 0, bytes, count));
    cmq_file_close(file);
}

static size_t read_file(const char *root, uint8_t *into, size_t capacity)
{
    char path[CMQ_PATH_BYTES];
    CHECK_OK(cmq_path_join(path, root, "checkpoint"));
    cmq_file *file;
    CHECK_OK(cmq_file_open(cmq_fs_posix(), path, CMQ_OPEN_READ, &file));
    cmq_file_info info;
    CHECK_OK(cmq_file_info_of(file, &info));
    CHECK(info.bytes <= capacity);
    CHECK_OK(cmq_file_read(file, 0, into, (size_t)info.bytes));
    cmq_file_close(file);
    return (size_t)info.bytes;
}

static void missing_is_zero(void)
{
    const char *root = cmq_test_directory();
    cmq_checkpoint checkpoint;
    memset(&checkpoint, 0xff, sizeof checkpoint);
    CHECK_OK(cmq_checkpoint_load(cmq_fs_posix(), root, &checkpoint));
    CHECK(!checkpoint.present);
    CHECK_INT(checkpoint.file_bytes, 0);
    CHECK_INT(checkpoint.physic_ms, 0);
    CHECK_INT(checkpoint.confirm_phy, 0);
    CHECK_INT(cmq_checkpoint_min_ms(&checkpoint), 0);
}

/* Spec store 1.6: five big-endian words, the rest of the page zero. */
static void bytes(void)
{
    const char *root = cmq_test_directory();
    cmq_checkpoint checkpoint = {.physic_ms = 0x018bcfe569c8,
                                 .logics_ms = 0x018bcfe569c7,
                                 .index_ms = 3,
                                 .master_flushed = 4,
                                 .confirm_phy = 0x12345};
    CHECK_OK(cmq_checkpoint_store(cmq_fs_posix(), root, &checkpoint));
    CHECK(checkpoint.present);
    static uint8_t page[2 * 4096],
        expected[4096] = {0,    0,    1, 0x8b, 0xcf, 0xe5, 0x69, 0xc8, 0, 0, 1,    0x8b, 0xcf, 0xe5,
                          0x69, 0xc7, 0, 0,    0,    0,    0,    0,    0, 3, 0,    0,    0,    0,
                          0,    0,    0, 4,    0,    0,    0,    0,    0, 1, 0x23, 0x45};
    CHECK_INT(read_file(root, page, sizeof page), 4096);
    CHECK_BYTES(page, 4096, expected, 4096);
    CHECK_INT(cmq_checkpoint_crc(&checkpoint), cmq_crc32(expected, 40));
    cmq_checkpoint again;
    CHECK_OK(cmq_checkpoint_load(cmq_fs_posix(), root, &again));
    CHECK(again.present && again.file_bytes == checkpoint.file_bytes);
    CHECK(again.physic_ms == checkpoint.physic_ms && again.logics_ms == checkpoint.logics_ms &&
          again.index_ms == checkpoint.index_ms);
    CHECK(again.master_flushed == checkpoint.master_flushed && again.confirm_phy == checkpoint.confirm_phy);
    CHECK_BYTES(again.unknown, sizeof again.unknown, checkpoint.unknown, sizeof checkpoint.unknown);
}

/* Bytes that a later upstream may put behind byte 40 stay. */
static void unknown_bytes_stay(void)
{
    const char *root = cmq_test_directory();
    static uint8_t page[4096], after[2 * 4096];
    for (size_t i = 0; i < sizeof page; i++) page[i] = (uint8_t)cmq_test_random();
    write_file(root, page, sizeof page);
    cmq_checkpoint checkpoint;
    CHECK_OK(cmq_checkpoint_load(cmq_fs_posix(), root, &checkpoint));
    checkpoint.index_ms = 5;
    CHECK_OK(cmq_checkpoint_store(cmq_fs_posix(), root, &checkpoint));
    CHECK_INT(read_file(root, after, sizeof after), 4096);
    CHECK_BYTES(after + 40, 4056, page + 40, 4056);
    CHECK_BYTES(after, 16, page, 16);
    CHECK_INT(after[23], 5);
}

/* Upstream maps 4096 bytes whatever the length: short reads as zeros, long keeps its end. */
static void other_lengths(void)
{
    static const size_t lengths[] = {0, 1, 8, 23, 40, 41, 4095, 4097, 8000};
    static uint8_t content[8192], after[8192];
    for (size_t i = 0; i < sizeof content; i++) content[i] = (uint8_t)(i + 1);
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        const char *root = cmq_test_directory();
        write_file(root, content, lengths[i]);
        cmq_checkpoint checkpoint;
        CHECK_OK(cmq_checkpoint_load(cmq_fs_posix(), root, &checkpoint));
        CHECK(checkpoint.present);
        CHECK_INT(checkpoint.file_bytes, lengths[i]);
        CHECK_INT(checkpoint.physic_ms, lengths[i] >= 8   ? 0x0102030405060708
                                        : lengths[i] == 1 ? 0x0100000000000000
                                                          : 0);
        CHECK_INT(checkpoint.index_ms, lengths[i] >= 24   ? 0x1112131415161718
                                       : lengths[i] == 23 ? 0x1112131415161700
                                                          : 0);
        CHECK_OK(cmq_checkpoint_store(cmq_fs_posix(), root, &checkpoint));
        const size_t expected = lengths[i] > 4096 ? lengths[i] : 4096;
        CHECK_INT(checkpoint.file_bytes, expected);
        CHECK_INT(read_file(root, after, sizeof after), expected);
        CHECK_BYTES(after, lengths[i], content, lengths[i]);
    }
}

static void times(void)
{
    cmq_checkpoint checkpoint = {.physic_ms = 10000, .logics_ms = 9000, .index_ms = 5000};
    CHECK_INT(cmq_checkpoint_min_ms(&checkpoint), 6000);
    checkpoint.logics_ms = 2999;
    CHECK_INT(cmq_checkpoint_min_ms(&checkpoint), 0);
    checkpoint.logics_ms = INT64_MIN;   /* bytes of another kind */
    CHECK_INT(cmq_checkpoint_min_ms(&checkpoint), 0);
    checkpoint.logics_ms = 20000;
    checkpoint.index_ms = 0;
    CHECK_INT(cmq_checkpoint_min_ms(&checkpoint), 7000);
}

CMQ_TEST_MAIN(CMQ_TEST(missing_is_zero), CMQ_TEST(bytes), CMQ_TEST(unknown_bytes_stay), CMQ_TEST(other_lengths),
              CMQ_TEST(times))
