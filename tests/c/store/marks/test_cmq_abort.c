/* test_cmq_abort: the `abort` file and its copy, as upstream 5.x leaves them. */
#include "store/marks/cmq_abort.h"

#include <string.h>

#include "support/cmq_test.h"

static void check_content(const char *root, const char *name, const char *expected)
{
    char path[CMQ_PATH_BYTES], content[256] = {0};
    CHECK_OK(cmq_path_join(path, root, name));
    cmq_file *file;
    CHECK_OK(cmq_file_open(cmq_fs_posix(), path, CMQ_OPEN_READ, &file));
    cmq_file_info info;
    CHECK_OK(cmq_file_info_of(file, &info));
    CHECK_INT(info.bytes, strlen(expected));
    CHECK_OK(cmq_file_read(file, 0, content, (size_t)info.bytes));
    cmq_file_close(file);
    CHECK_BYTES(content, strlen(content), expected, strlen(expected));
}

/* Spec store 1.5: the copy is empty after a start from clean, and names the crashed process after a start from a crash.
 * */
static void life(void)
{
    const char *root = cmq_test_directory();
    bool present = true;
    CHECK_OK(cmq_abort_present(cmq_fs_posix(), root, &present));
    CHECK(!present);
    CHECK_OK(cmq_abort_remove(cmq_fs_posix(), root));   /* none is fine */
    CHECK_OK(cmq_abort_create(cmq_fs_posix(), root, 12345));
    CHECK_OK(cmq_abort_present(cmq_fs_posix(), root, &present));
    CHECK(present);
    check_content(root, "abort", "12345");
    check_content(root, "abort.bak", "");
    CHECK_OK(cmq_abort_create(cmq_fs_posix(), root, 7));   /* after a crash */
    check_content(root, "abort", "7");
    check_content(root, "abort.bak", "12345");
    CHECK_OK(cmq_abort_remove(cmq_fs_posix(), root));
    CHECK_OK(cmq_abort_present(cmq_fs_posix(), root, &present));
    CHECK(!present);
    check_content(root, "abort.bak", "12345");
    CHECK_OK(cmq_abort_create(cmq_fs_posix(), root, 8));
    check_content(root, "abort.bak", "");
}

/* Somebody's long text as `abort` still counts, and does no harm. */
static void foreign_content(void)
{
    const char *root = cmq_test_directory();
    char path[CMQ_PATH_BYTES], text[1000];
    memset(text, 'x', sizeof text);
    CHECK_OK(cmq_path_join(path, root, "abort"));
    cmq_file *file;
    CHECK_OK(cmq_file_open(cmq_fs_posix(), path, CMQ_OPEN_CREATE, &file));
    CHECK_OK(cmq_file_write(file, 0, text, sizeof text));
    cmq_file_close(file);
    CHECK_OK(cmq_abort_create(cmq_fs_posix(), root, 9));
    check_content(root, "abort", "9");
    check_content(root, "abort.bak", "");
}

static void no_directory(void)
{
    bool present = true;
    CHECK_OK(cmq_abort_present(cmq_fs_posix(), "/nowhere/at/all", &present));
    CHECK(!present);
    CHECK_STATUS(cmq_abort_create(cmq_fs_posix(), "/nowhere/at/all", 1), CMQ_ERR_NOT_FOUND);
}

CMQ_TEST_MAIN(CMQ_TEST(life), CMQ_TEST(foreign_content), CMQ_TEST(no_directory))
