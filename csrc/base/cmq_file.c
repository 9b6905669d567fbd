/* cmq_file: the parts that are the same for every cmq_fs: paths as text, lists of names, populating a mapping.
 *
 * Owns:    nothing.
 * Threads: any.
 */
#include "base/cmq_file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/cmq_assert.h"

#define OFFSET_DIGITS (CMQ_OFFSET_NAME_BYTES - 1)

/* Since Linux 5.14; the headers of Debian 11 do not have it yet. */
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

void cmq_fs_free_names(char **names, size_t count)
{
    if (names == NULL) return;
    for (size_t i = 0; i < count; i++) free(names[i]);
    free(names);
}

cmq_status cmq_fs_require_root(cmq_fs *fs, const char *root)
{
    cmq_file_info info;
    const cmq_status status = cmq_fs_stat(fs, root, &info);
    if (status == CMQ_ERR_NOT_FOUND)
        return cmq_fail(CMQ_ERR_IO, "the store's folder %.400s was moved or deleted; put it back", root);
    return status;
}

cmq_status cmq_fs_make_directory_in(cmq_fs *fs, const char *root, const char *path)
{
    const cmq_status status = cmq_fs_require_root(fs, root);
    return status != CMQ_OK ? status : cmq_fs_make_directory(fs, path);
}

static cmq_status CMQ_MUST_CHECK sync_one(cmq_fs *fs, const char *path)
{
    cmq_file *file;
    cmq_status status = cmq_file_open(fs, path, CMQ_OPEN_READ, &file);
    if (status != CMQ_OK) return status;
    status = cmq_file_sync(file);
    cmq_file_close(file);
    return status;
}

cmq_status cmq_fs_sync_tree(cmq_fs *fs, const char *path)
{
    char **names, below[CMQ_PATH_BYTES];
    size_t count;
    cmq_status status = cmq_fs_list(fs, path, &names, &count);
    if (status != CMQ_OK) return status;
    for (size_t i = 0; i < count && status == CMQ_OK; i++) {
        cmq_file_info info;
        status = cmq_path_join(below, path, names[i]);
        if (status == CMQ_OK) status = cmq_fs_stat(fs, below, &info);
        /* Closing a descriptor of the lock file drops Java's lock; nothing in it matters. */
        const bool is_lock = status == CMQ_OK && !info.is_directory && strcmp(names[i], "lock") == 0;
        if (status == CMQ_OK && !is_lock)
            status = info.is_directory ? cmq_fs_sync_tree(fs, below) : sync_one(fs, below);
        /* gone meanwhile; a FIFO holds nothing */
        if (status == CMQ_ERR_NOT_FOUND || status == CMQ_ERR_NOT_STORE) status = CMQ_OK;
    }
    cmq_fs_free_names(names, count);
    return status == CMQ_OK ? cmq_fs_sync_directory(fs, path) : status;
}

cmq_status cmq_path_join(char into[CMQ_PATH_BYTES], const char *a, const char *b)
{
    const size_t a_bytes = strlen(a), b_bytes = strlen(b);
    const size_t slash_bytes = a_bytes > 0 && b_bytes > 0 && a[a_bytes - 1] != '/' ? 1 : 0;
    if (a_bytes >= CMQ_PATH_BYTES || b_bytes >= CMQ_PATH_BYTES - a_bytes ||
        slash_bytes >= CMQ_PATH_BYTES - a_bytes - b_bytes)
        return cmq_fail(CMQ_ERR_ARGUMENT, "path of more than %d bytes: %.200s... and %.200s", CMQ_PATH_BYTES - 1, a, b);
    /* b first: `into` may be `a` itself, which is how a path grows in place. */
    memmove(into + a_bytes + slash_bytes, b, b_bytes + 1);
    memmove(into, a, a_bytes);
    if (slash_bytes == 1) into[a_bytes] = '/';
    return CMQ_OK;
}

cmq_status cmq_fs_resolve(cmq_fs *fs, const char *path, char into[CMQ_PATH_BYTES])
{
    return fs->ops->resolve != NULL ? fs->ops->resolve(fs, path, into) : cmq_path_join(into, path, "");
}

void cmq_path_offset_name(char into[CMQ_OFFSET_NAME_BYTES], int64_t offset)
{
    CMQ_ASSERT(offset >= 0);
    into[OFFSET_DIGITS] = '\0';
    for (int i = OFFSET_DIGITS - 1; i >= 0; i--) {
        into[i] = (char)('0' + offset % 10);
        offset /= 10;
    }
}

cmq_status cmq_path_parse_offset_name(const char *name, int64_t *offset_out)
{
    int64_t offset = 0;
    size_t digits = 0;
    for (; digits < OFFSET_DIGITS && name[digits] >= '0' && name[digits] <= '9'; digits++) {
        const int64_t digit = name[digits] - '0';
        if (offset > (INT64_MAX - digit) / 10)
            return cmq_fail(CMQ_ERR_NOT_STORE, "file name %.40s is an offset above 2^63 - 1", name);
        offset = offset * 10 + digit;
    }
    if (digits != OFFSET_DIGITS || name[digits] != '\0')
        return cmq_fail(CMQ_ERR_NOT_STORE, "file name %.100s is not an offset of %d digits", name, OFFSET_DIGITS);
    *offset_out = offset;
    return CMQ_OK;
}

/* A store of what is there already, by compare-and-swap, because a page must be faulted for writing while other threads
 * store into it. (A fetch-add of 0 would do, but compilers may turn it into a load.) */
static void touch(uint8_t *byte)
{
    uint8_t value = __atomic_load_n(byte, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(byte, &value, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
}

cmq_status cmq_file_populate(uint8_t *address, size_t bytes)
{
    if (bytes == 0) return CMQ_OK;
    const uintptr_t page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t lead_bytes = (uintptr_t)address % page_bytes;
    uint8_t *first = address - lead_bytes;
    int failed;
    /* Under the random advice of cmq_file_map each page is made alone; without it, many at once: 0.17 s of CPU per GiB
     * against 1.0. */
    madvise(first, bytes + lead_bytes, MADV_NORMAL);
    do {
        failed = madvise(first, bytes + lead_bytes, MADV_POPULATE_WRITE) == 0 ? 0 : errno;
    } while (failed == EINTR || failed == EAGAIN);
    madvise(first, bytes + lead_bytes, MADV_RANDOM);
    if (failed == 0) return CMQ_OK;
    if (failed == EFAULT)
        return cmq_fail(CMQ_ERR_DISK_FULL, "no space behind %zu mapped bytes, or the file became shorter", bytes);
    if (failed != EINVAL) return cmq_fail_errno(failed, "cannot populate %zu mapped bytes", bytes);
    for (uint8_t *page = first; page < address + bytes; page += page_bytes) touch(page < address ? address : page);
    return CMQ_OK;
}

bool cmq_file_populate_read(const uint8_t *address, size_t bytes)
{
    const uintptr_t lead_bytes = (uintptr_t)address % (uintptr_t)sysconf(_SC_PAGESIZE);
    int failed;
    do {
        failed =
            madvise((void *)((uintptr_t)address - lead_bytes), bytes + lead_bytes, MADV_POPULATE_READ) == 0 ? 0 : errno;
    } while (failed == EINTR || failed == EAGAIN);
    return failed == 0;
}

void cmq_file_read_ahead(const uint8_t *address, size_t bytes)
{
    const uintptr_t lead_bytes = (uintptr_t)address % (uintptr_t)sysconf(_SC_PAGESIZE);
    /* refused: the faults read them */
    madvise((void *)((uintptr_t)address - lead_bytes), bytes + lead_bytes, MADV_WILLNEED);
}
