/* Tests of cmq_fs_sync_all on kernels whose syncfs hides failures (Linux before 5.8), and on those where it does not.
 * This program's own uname, syncfs, fsync and fdatasync take the place of the C library's.
 */
#include <errno.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/cmq_file.h"
#include "support/cmq_store_kit.h"
#include "support/cmq_test.h"

static struct {
    const char *release;   /* NULL: uname fails */
    int file_systems, files;
    bool fails;            /* the disk of the files; syncfs on it answers success */
} kernel;

int uname(struct utsname *into)
{
    if (kernel.release == NULL) {
        errno = EFAULT;
        return -1;
    }
    memset(into, 0, sizeof *into);
    strcpy(into->release, kernel.release);
    return 0;
}

int syncfs(int descriptor)
{
    (void)descriptor;
    kernel.file_systems++;
    return 0;
}

static int sync_one(void)
{
    kernel.files++;
    if (!kernel.fails) return 0;
    errno = EIO;
    return -1;
}

int fsync(int descriptor)
{
    (void)descriptor;
    return sync_one();
}

int fdatasync(int descriptor)
{
    (void)descriptor;
    return sync_one();
}

/* Two files and two directories, the first of which is returned. */
static const char *make_tree(void)
{
    static char root[CMQ_PATH_BYTES], folder[CMQ_PATH_BYTES];
    memset(&kernel, 0, sizeof kernel);
    strcpy(root, kit_directory());
    CHECK_OK(cmq_path_join(folder, root, "folder"));
    CHECK_OK(cmq_fs_make_directory(cmq_fs_posix(), folder));
    kit_write_bytes(kit_path(root, "a"), 0, (const uint8_t *)"a", 1);
    kit_write_bytes(kit_path(folder, "b"), 0, (const uint8_t *)"b", 1);
    return root;
}

static void old_kernels_sync_each_file(void)
{
    static const char *const releases[] = {"5.7.19", "4.19.0-27-amd64", "3.10.0-1160.el7.x86_64"};
    const char *root = make_tree();
    for (size_t i = 0; i < sizeof releases / sizeof releases[0]; i++) {
        kernel.release = releases[i];
        kernel.files = 0;
        CHECK_OK(cmq_fs_sync_all(cmq_fs_posix(), root));
        CHECK_INT(kernel.files, 4);
        CHECK_INT(kernel.file_systems, 0);
    }
}

static void a_failure_that_an_old_syncfs_hides_is_reported(void)
{
    const char *root = make_tree();
    kernel.release = "5.7.0";
    CHECK_OK(cmq_fs_sync_all(cmq_fs_posix(), root));
    kernel.fails = true;
    CHECK_STATUS(cmq_fs_sync_all(cmq_fs_posix(), root), CMQ_ERR_IO);
}

static void newer_and_unknown_kernels_sync_the_file_system(void)
{
    static const char *const releases[] = {"5.8.0", "5.10.0-28-amd64", "6.1.0+", "unknown", NULL};
    const char *root = make_tree();
    kernel.files = 0;
    for (size_t i = 0; i < sizeof releases / sizeof releases[0]; i++) {
        kernel.release = releases[i];
        CHECK_OK(cmq_fs_sync_all(cmq_fs_posix(), root));
        CHECK_INT(kernel.file_systems, i + 1);
    }
    CHECK_INT(kernel.files, 0);
}

CMQ_TEST_MAIN(CMQ_TEST(old_kernels_sync_each_file), CMQ_TEST(a_failure_that_an_old_syncfs_hides_is_reported),
              CMQ_TEST(newer_and_unknown_kernels_sync_the_file_system))
