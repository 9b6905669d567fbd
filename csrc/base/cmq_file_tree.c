/* cmq_file_tree: see cmq_file_tree.h. */
#include "base/cmq_file_tree.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define COPY_BYTES ((size_t)1 << 20)

cmq_status cmq_file_tree_exists(cmq_fs *fs, const char *path, bool *exists_out)
{
    cmq_file_info info;
    const cmq_status status = cmq_fs_stat(fs, path, &info);
    *exists_out = status == CMQ_OK;
    return status == CMQ_ERR_NOT_FOUND ? CMQ_OK : status;
}

/* ---- copying ---- */

static bool all_zero(const uint8_t *bytes, size_t count)
{
    return count == 0 || (bytes[0] == 0 && memcmp(bytes, bytes + 1, count - 1) == 0);
}

static cmq_status CMQ_MUST_CHECK copy_bytes(cmq_file *from, int64_t offset, int64_t bytes, cmq_file *to,
                                            uint8_t *buffer, int64_t *copied_out)
{
    int64_t at = 0;
    while (at < bytes) {
        uint64_t data;
        cmq_status status = cmq_file_next_data(from, (uint64_t)(offset + at), &data);
        if (status == CMQ_END) return CMQ_OK;
        if (status != CMQ_OK) return status;
        if ((int64_t)data > offset + at) at = (int64_t)data - offset;
        if (at >= bytes) return CMQ_OK;
        const size_t chunk = bytes - at < (int64_t)COPY_BYTES ? (size_t)(bytes - at) : COPY_BYTES;
        status = cmq_file_read(from, (uint64_t)(offset + at), buffer, chunk);
        if (status == CMQ_OK && !all_zero(buffer, chunk)) {
            status = cmq_file_write(to, (uint64_t)at, buffer, chunk);
            *copied_out += (int64_t)chunk;
        }
        if (status != CMQ_OK) return status;
        at += (int64_t)chunk;
    }
    return CMQ_OK;
}

cmq_status cmq_file_tree_copy(cmq_fs *fs, const char *from, int64_t offset, int64_t bytes, const char *to,
                              int64_t *copied_out)
{
    cmq_file *source, *copy = NULL;
    *copied_out = 0;
    cmq_status status = cmq_file_open(fs, from, CMQ_OPEN_READ, &source);
    if (status != CMQ_OK) return status;
    uint8_t *buffer = malloc(COPY_BYTES);
    if (buffer == NULL) status = cmq_fail(CMQ_ERR_MEMORY, "no memory to copy %s", from);
    if (status == CMQ_OK) status = cmq_file_open(fs, to, CMQ_OPEN_CREATE, &copy);
    if (status == CMQ_OK) status = cmq_file_resize(copy, 0);   /* left by an interrupted copy */
    if (status == CMQ_OK) status = cmq_file_resize(copy, (uint64_t)bytes);
    if (status == CMQ_OK) status = copy_bytes(source, offset, bytes, copy, buffer, copied_out);
    if (status == CMQ_OK) status = cmq_file_sync(copy);
    if (copy != NULL) cmq_file_close(copy);
    cmq_file_close(source);
    free(buffer);
    return status;
}

cmq_status cmq_file_tree_move(cmq_fs *fs, const char *from, const char *to)
{
    const cmq_status renamed = cmq_fs_rename(fs, from, to);
    if (renamed == CMQ_OK || cmq_last_error()->sys_errno != EXDEV) return renamed;
    cmq_file_info info;
    int64_t copied;
    cmq_status status = cmq_fs_stat(fs, from, &info);
    if (status == CMQ_OK && info.is_directory)
        return cmq_fail(CMQ_ERR_IO, "%s is a file system of its own, so it cannot be put aside by renaming", from);
    if (status == CMQ_OK) status = cmq_file_tree_copy(fs, from, 0, (int64_t)info.bytes, to, &copied);
    return status == CMQ_OK ? cmq_fs_remove(fs, from) : status;
}

cmq_status cmq_file_tree_remove(cmq_fs *fs, const char *path)
{
    char **names;
    size_t count;
    cmq_status status = cmq_fs_list(fs, path, &names, &count);
    if (status == CMQ_ERR_NOT_FOUND) return CMQ_OK;
    if (status != CMQ_OK) return status;
    char *below = malloc(CMQ_PATH_BYTES);
    if (below == NULL) status = cmq_fail(CMQ_ERR_MEMORY, "no memory to remove %s", path);
    for (size_t i = 0; i < count && status == CMQ_OK; i++) {
        cmq_file_info info;
        status = cmq_path_join(below, path, names[i]);
        if (status == CMQ_OK) status = cmq_fs_stat(fs, below, &info);
        if (status == CMQ_OK) status = info.is_directory ? cmq_file_tree_remove(fs, below) : cmq_fs_remove(fs, below);
    }
    free(below);
    cmq_fs_free_names(names, count);
    return status == CMQ_OK ? cmq_fs_remove_directory(fs, path) : status;
}
