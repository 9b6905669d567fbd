/* cmq_abort: see cmq_abort.h. */
#include "store/marks/cmq_abort.h"

#include <inttypes.h>
#include <stdio.h>

#define CONTENT_BYTES_MAX 64   /* of an old `abort` kept in `abort.bak`; a process id has at most 20 */

cmq_status cmq_abort_present(cmq_fs *fs, const char *root, bool *present_out)
{
    *present_out = false;
    char path[CMQ_PATH_BYTES];
    cmq_status status = cmq_path_join(path, root, "abort");
    if (status != CMQ_OK) return status;
    cmq_file_info info;
    status = cmq_fs_stat(fs, path, &info);
    if (status == CMQ_ERR_NOT_FOUND) return CMQ_OK;
    *present_out = status == CMQ_OK;
    return status;
}

/* The whole content, cut at CONTENT_BYTES_MAX; empty when there is no file. */
static cmq_status read_content(cmq_fs *fs, const char *path, char content[CONTENT_BYTES_MAX], size_t *bytes_out)
{
    *bytes_out = 0;
    cmq_file *file;
    cmq_status status = cmq_file_open(fs, path, CMQ_OPEN_READ, &file);
    if (status == CMQ_ERR_NOT_FOUND) return CMQ_OK;
    if (status != CMQ_OK) return status;
    cmq_file_info info;
    status = cmq_file_info_of(file, &info);
    const size_t bytes = status == CMQ_OK && info.bytes < CONTENT_BYTES_MAX ? (size_t)info.bytes : 0;
    if (status == CMQ_OK && bytes > 0) status = cmq_file_read(file, 0, content, bytes);
    cmq_file_close(file);
    if (status == CMQ_OK) *bytes_out = bytes;
    return status;
}

/* Overwrite in place: whether the content is whole matters to nobody, that the name is there does. */
static cmq_status write_content(cmq_fs *fs, const char *path, const char *content, size_t bytes)
{
    cmq_file *file;
    cmq_status status = cmq_file_open(fs, path, CMQ_OPEN_CREATE, &file);
    if (status != CMQ_OK) return status;
    status = cmq_file_resize(file, bytes);
    if (status == CMQ_OK && bytes > 0) status = cmq_file_write(file, 0, content, bytes);
    if (status == CMQ_OK) status = cmq_file_sync(file);
    cmq_file_close(file);
    return status;
}

cmq_status cmq_abort_create(cmq_fs *fs, const char *root, int64_t pid)
{
    char path[CMQ_PATH_BYTES], backup[CMQ_PATH_BYTES];
    cmq_status status = cmq_path_join(path, root, "abort");
    if (status == CMQ_OK) status = cmq_path_join(backup, root, "abort.bak");
    char content[CONTENT_BYTES_MAX];
    size_t bytes = 0;
    if (status == CMQ_OK) status = read_content(fs, path, content, &bytes);
    if (status == CMQ_OK) status = write_content(fs, backup, content, bytes);
    if (status != CMQ_OK) return status;
    const int length = snprintf(content, sizeof content, "%" PRId64, pid);
    status = write_content(fs, path, content, (size_t)length);
    if (status != CMQ_OK) return status;
    return cmq_fs_sync_directory(fs, root);
}

cmq_status cmq_abort_remove(cmq_fs *fs, const char *root)
{
    char path[CMQ_PATH_BYTES];
    cmq_status status = cmq_path_join(path, root, "abort");
    if (status != CMQ_OK) return status;
    status = cmq_fs_remove(fs, path);
    if (status == CMQ_ERR_NOT_FOUND) return CMQ_OK;
    if (status != CMQ_OK) return status;
    return cmq_fs_sync_directory(fs, root);
}
