/* cmq_fence: see cmq_fence.h. */
#include "store/marks/cmq_fence.h"

#include <stdlib.h>

#include "store/marks/cmq_own_files.h"

#define MARK_NAME CMQ_OWN_FOLDER "/fenced"
#define CHUNK_BYTES (INT64_C(1) << 20)

void cmq_fence_mark(cmq_store *store)
{
    char path[CMQ_PATH_BYTES];
    cmq_file *file;
    const cmq_error error = *cmq_last_error();
    cmq_status status = cmq_path_join(path, store->root, MARK_NAME);
    if (status == CMQ_OK) status = cmq_file_open(store->fs, path, CMQ_OPEN_CREATE, &file);
    if (status == CMQ_OK) cmq_file_close(file);
    /* The failure that led here is the one to report. */
    if (error.status != CMQ_OK) status = cmq_fail_again(&error);
    (void)status;
}

cmq_status cmq_fence_marked(cmq_store *store, bool *marked_out)
{
    char path[CMQ_PATH_BYTES];
    cmq_file_info info;
    *marked_out = false;
    cmq_status status = cmq_path_join(path, store->root, MARK_NAME);
    if (status == CMQ_OK) status = cmq_fs_stat(store->fs, path, &info);
    *marked_out = status == CMQ_OK;
    return status == CMQ_ERR_NOT_FOUND ? CMQ_OK : status;
}

static bool is_zero(const uint8_t *bytes, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (bytes[i] != 0) return false;
    return true;
}

/* A part of one segment's file. Chunks of zeros stay as they are: most are holes. Where data is, the file system is not
 * asked: data that it never got to write may be none for it. */
static cmq_status CMQ_MUST_CHECK rewrite_part(cmq_file *file, int64_t at, int64_t end, uint8_t *chunk)
{
    while (at < end) {
        const int64_t bytes = end - at < CHUNK_BYTES ? end - at : CHUNK_BYTES;
        cmq_status status = cmq_file_read(file, (uint64_t)at, chunk, (size_t)bytes);
        if (status == CMQ_OK && !is_zero(chunk, bytes))
            status = cmq_file_write(file, (uint64_t)at, chunk, (size_t)bytes);
        if (status != CMQ_OK) return status;
        at += bytes;
    }
    return cmq_file_sync(file);
}

cmq_status cmq_fence_rewrite(cmq_store *store, int64_t from, int64_t end)
{
    const int64_t segment_bytes = cmq_log_segment_bytes(store->log);
    uint8_t *chunk = malloc(CHUNK_BYTES);
    cmq_status status = chunk != NULL ? CMQ_OK : cmq_fail(CMQ_ERR_MEMORY, "no memory to rewrite the log");
    while (status == CMQ_OK && from < end) {
        cmq_segment *segment;
        const uint8_t *data;
        size_t available;
        cmq_file *file;
        status = cmq_log_pin(store->log, from, &segment, &data, &available);
        if (status != CMQ_OK) break;
        const int64_t start = cmq_segment_start(segment),
                      to = end < start + segment_bytes ? end : start + segment_bytes;
        status = cmq_file_open(store->fs, cmq_segment_path(segment), CMQ_OPEN_WRITE, &file);
        cmq_segment_unpin(segment);
        if (status != CMQ_OK) break;
        status = rewrite_part(file, from - start, to - start, chunk);
        cmq_file_close(file);
        from = to;
    }
    free(chunk);
    return status;
}

cmq_status cmq_fence_clear(cmq_store *store)
{
    char path[CMQ_PATH_BYTES];
    cmq_status status = cmq_path_join(path, store->root, MARK_NAME);
    if (status == CMQ_OK) status = cmq_fs_remove(store->fs, path);
    return status == CMQ_ERR_NOT_FOUND ? CMQ_OK : status;
}
