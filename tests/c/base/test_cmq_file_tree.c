/* Tests csrc/base/cmq_file_tree.c: copies of a part of a file with holes, and moves and removals of trees. */
#include "base/cmq_file_tree.h"

#include <string.h>

#include "support/cmq_test.h"

static char from[CMQ_PATH_BYTES], to[CMQ_PATH_BYTES], folder[CMQ_PATH_BYTES];

static void make_paths(void)
{
    const char *root = cmq_test_directory();
    CHECK_OK(cmq_path_join(folder, root, "folder"));
    CHECK_OK(cmq_path_join(from, folder, "from"));
    CHECK_OK(cmq_path_join(to, folder, "to"));
    CHECK_OK(cmq_fs_make_directory(cmq_fs_posix(), folder));
}

static void write_at(const char *path, uint64_t bytes, uint64_t offset, const char *text)
{
    cmq_file *file;
    CHECK_OK(cmq_file_open(cmq_fs_posix(), path, CMQ_OPEN_CREATE, &file));
    CHECK_OK(cmq_file_resize(file, bytes));
    CHECK_OK(cmq_file_write(file, offset, text, strlen(text)));
    cmq_file_close(file);
}

static void check_content(const char *path, uint64_t bytes, uint64_t offset, const char *text)
{
    char found[16] = {0};
    cmq_file *file;
    cmq_file_info info;
    CHECK_OK(cmq_file_open(cmq_fs_posix(), path, CMQ_OPEN_READ, &file));
    CHECK_OK(cmq_file_info_of(file, &info));
    CHECK_INT(info.bytes, bytes);
    CHECK_OK(cmq_file_read(file, offset, found, strlen(text)));
    CHECK_BYTES(found, strlen(text), text, strlen(text));
    cmq_file_close(file);
}

static bool is_there(const char *path)
{
    bool found;
    CHECK_OK(cmq_file_tree_exists(cmq_fs_posix(), path, &found));
    return found;
}

static void part_with_holes_is_copied(void)
{
    make_paths();
    int64_t copied = -1;
    const uint64_t hole = (uint64_t)4 << 20;
    write_at(from, 2 * hole, hole + 100, "in the middle");
    write_at(to, 3 * hole, 0, "left by an interrupted copy");
    CHECK_OK(cmq_file_tree_copy(cmq_fs_posix(), from, (int64_t)hole, (int64_t)hole, to, &copied));
    check_content(to, hole, 100, "in the middle");
    CHECK(copied > 0 && copied <= (int64_t)hole);
    CHECK_STATUS(cmq_file_tree_copy(cmq_fs_posix(), folder, 0, 1, to, &copied), CMQ_ERR_IO);
}

static void moved_file_keeps_its_content(void)
{
    make_paths();
    write_at(from, 20, 0, "moved");
    CHECK_OK(cmq_file_tree_move(cmq_fs_posix(), from, to));
    CHECK(!is_there(from) && is_there(to));
    check_content(to, 20, 0, "moved");
}

static void removed_tree_is_gone_with_its_content(void)
{
    make_paths();
    char inner[CMQ_PATH_BYTES], file[CMQ_PATH_BYTES];
    CHECK_OK(cmq_path_join(inner, folder, "inner"));
    CHECK_OK(cmq_path_join(file, inner, "file"));
    CHECK_OK(cmq_fs_make_directory(cmq_fs_posix(), inner));
    write_at(file, 1, 0, "x");
    CHECK_OK(cmq_file_tree_remove(cmq_fs_posix(), folder));
    CHECK(!is_there(folder));
    CHECK_OK(cmq_file_tree_remove(cmq_fs_posix(), folder));   /* a missing one is fine */
}

CMQ_TEST_MAIN(CMQ_TEST(part_with_holes_is_copied), CMQ_TEST(moved_file_keeps_its_content),
              CMQ_TEST(removed_tree_is_gone_with_its_content))
