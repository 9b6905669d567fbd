/* cmq_queue_file: see cmq_queue_file.h. */
#include "store/queue/cmq_queue_file.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/cmq_assert.h"
#include "store/queue/cmq_queue_sums.h"

#define FILLER_CHUNK_UNITS 204   /* units that are made filler by one write: a page */

static const char *const folder_names[CMQ_FOLDER_COUNT] = {"consumequeue", "batchconsumequeue", "consumequeue_ext"};
static const char *const settings[CMQ_FOLDER_COUNT] = {"mappedFileSizeConsumeQueue", "mapperFileSizeBatchConsumeQueue",
                                                       "mappedFileSizeConsumeQueueExt"};

const char *cmq_queue_file_folder_name(cmq_queuefolder folder) { return folder_names[folder]; }
const char *cmq_queue_file_setting(cmq_queuefolder folder) { return settings[folder]; }

/* ---- paths ---- */

int32_t cmq_queue_file_parse_id(const char *name)
{
    int64_t id = 0;
    if (name[0] == '\0' || (name[0] == '0' && name[1] != '\0')) return -1;
    for (; *name != '\0'; name++) {
        if (*name < '0' || *name > '9') return -1;
        id = id * 10 + (*name - '0');
        if (id > INT32_MAX) return -1;
    }
    return (int32_t)id;
}

cmq_status cmq_queue_file_list(cmq_fs *fs, const char *path, char ***names_out, size_t *count_out)
{
    *names_out = NULL;
    *count_out = 0;
    const cmq_status status = cmq_fs_list(fs, path, names_out, count_out);
    if (status == CMQ_ERR_NOT_FOUND || (status == CMQ_ERR_IO && cmq_last_error()->sys_errno == ENOTDIR)) return CMQ_OK;
    return status;
}

cmq_status cmq_queue_file_root_path(const cmq_queues *queues, cmq_queuefolder folder, char into[CMQ_PATH_BYTES])
{
    return cmq_path_join(into, queues->root, folder_names[folder]);
}

cmq_status cmq_queue_file_topic_path(const cmq_queue *queue, cmq_queuefolder folder, char into[CMQ_PATH_BYTES])
{
    const cmq_status status = cmq_queue_file_root_path(queue->set, folder, into);
    return status != CMQ_OK ? status : cmq_path_join(into, into, queue->topic->name);
}

cmq_status cmq_queue_file_queue_path(const cmq_queue *queue, cmq_queuefolder folder, char into[CMQ_PATH_BYTES])
{
    char id[16];
    snprintf(id, sizeof id, "%" PRId32, queue->id);
    const cmq_status status = cmq_queue_file_topic_path(queue, folder, into);
    return status != CMQ_OK ? status : cmq_path_join(into, into, id);
}

cmq_status cmq_queue_file_path(const cmq_queue *queue, cmq_queuefolder folder, int64_t start, char into[CMQ_PATH_BYTES])
{
    char name[CMQ_OFFSET_NAME_BYTES];
    cmq_path_offset_name(name, start);
    const cmq_status status = cmq_queue_file_queue_path(queue, folder, into);
    return status != CMQ_OK ? status : cmq_path_join(into, into, name);
}

/* ---- reading ---- */

static uint64_t owner_of(const cmq_queue *queue, cmq_queuefolder folder)
{
    return (uint64_t)queue->index * CMQ_FOLDER_COUNT + folder;
}

static int64_t floor_to_file(const cmq_queue *queue, cmq_queuefolder folder, int64_t offset)
{
    const int64_t file_bytes = queue->set->file_bytes[folder];
    return offset / file_bytes * file_bytes;
}

cmq_status cmq_queue_file_take(const cmq_queue *queue, cmq_queuefolder folder, int64_t start,
                               cmq_cachedfile **taken_out)
{
    cmq_queues *set = queue->set;
    *taken_out = cmq_file_cache_find(set->files, owner_of(queue, folder), start);
    if (*taken_out != NULL) return CMQ_OK;
    char path[CMQ_PATH_BYTES];
    const cmq_status status = cmq_queue_file_path(queue, folder, start, path);
    if (status != CMQ_OK) return status;
    const cmq_open_mode mode = set->read_only ? CMQ_OPEN_READ : CMQ_OPEN_WRITE;
    return cmq_file_cache_open(set->files, owner_of(queue, folder), start, path, mode, 0, taken_out);
}

/* A file that should be there and is not is damage, unless it expired meanwhile: the error says damage, the status lets
 * the reader look. */
static cmq_status missing(const cmq_queue *queue, cmq_queuefolder folder, int64_t start)
{
    (void)cmq_fail_at(CMQ_ERR_CORRUPT, start, "%s/%s/%" PRId32 ": the file that starts at %" PRId64 " is missing",
                      folder_names[folder], queue->topic->name, queue->id, start);
    return CMQ_ERR_NOT_FOUND;
}

cmq_status cmq_queue_file_read(const cmq_queue *queue, cmq_queuefolder folder, int64_t offset, void *into, size_t bytes)
{
    const int64_t file_bytes = queue->set->file_bytes[folder];
    uint8_t *at = into;
    while (bytes > 0) {
        const int64_t start = floor_to_file(queue, folder, offset);
        const uint64_t left = (uint64_t)(start + file_bytes - offset);
        const size_t chunk = bytes < left ? bytes : (size_t)left;
        cmq_cachedfile *taken;
        cmq_status status = cmq_queue_file_take(queue, folder, start, &taken);
        if (status == CMQ_ERR_NOT_FOUND) return missing(queue, folder, start);
        if (status != CMQ_OK) return status;
        status = cmq_file_read(taken->file, (uint64_t)(offset - start), at, chunk);
        cmq_file_cache_release(queue->set->files, taken);
        if (status != CMQ_OK) return status;
        at += chunk;
        offset += (int64_t)chunk;
        bytes -= chunk;
    }
    return CMQ_OK;
}

cmq_status cmq_queue_file_map(const cmq_queue *queue, int64_t start, bool must, cmq_cachedfile **mapped_out)
{
    cmq_queues *set = queue->set;
    const cmq_queuefolder folder = cmq_queue_folder(queue);
    *mapped_out = cmq_file_cache_find(set->maps, owner_of(queue, folder), start);
    if (*mapped_out != NULL || !must) return CMQ_OK;
    char path[CMQ_PATH_BYTES];
    cmq_status status = cmq_queue_file_path(queue, folder, start, path);
    if (status != CMQ_OK) return status;
    status = cmq_file_cache_open(set->maps, owner_of(queue, folder), start, path, CMQ_OPEN_READ,
                                (uint64_t)set->file_bytes[folder], mapped_out);
    return status == CMQ_ERR_NOT_FOUND ? missing(queue, folder, start) : status;
}

/* ---- writing ---- */

/* Make the file's units below `end` fillers; existing fillers are not written again. */
static cmq_status CMQ_MUST_CHECK write_fillers(cmq_file *file, int64_t end, bool *written_out)
{
    uint8_t fillers[FILLER_CHUNK_UNITS * CMQ_UNIT_BYTES] = {0}, there[sizeof fillers];
    for (size_t i = 0; i < FILLER_CHUNK_UNITS; i++) cmq_store_i32(fillers + i * CMQ_UNIT_BYTES + 8, CMQ_FILLER_SIZE);
    *written_out = false;
    for (int64_t at = 0; at < end;) {
        const int64_t left = end - at;
        const size_t chunk = left < (int64_t)sizeof fillers ? (size_t)left : sizeof fillers;
        cmq_status status = cmq_file_read(file, (uint64_t)at, there, chunk);
        if (status == CMQ_OK && memcmp(there, fillers, chunk) != 0) {
            *written_out = true;
            status = cmq_file_write(file, (uint64_t)at, fillers, chunk);
        }
        if (status != CMQ_OK) return status;
        at += (int64_t)chunk;
    }
    return CMQ_OK;
}

cmq_status cmq_queue_file_fill(cmq_queue *queue, int64_t end)
{
    const int64_t start = queue->files.first;
    cmq_cachedfile *taken;
    bool written;
    CMQ_ASSERT(end >= start && end < start + cmq_queue_file_bytes(queue));
    if (end == start) return CMQ_OK;
    cmq_status status = cmq_queue_file_take(queue, cmq_queue_folder(queue), start, &taken);
    if (status != CMQ_OK) return status;
    status = write_fillers(taken->file, end - start, &written);
    cmq_file_cache_release(queue->set->files, taken);
    if (!written) return status;
    if (queue->files.unsynced > start) queue->files.unsynced = start;
    cmq_queue_mark_unsynced(queue);
    return status;
}

/* Open a file that should not exist yet; its folder is made when needed. A left-over of the same name becomes empty;
 * during recovery it keeps its bytes for the readers of other processes, and *kept_out says so: they are overwritten,
 * and the rest is cut later. */
static cmq_status CMQ_MUST_CHECK create_file(cmq_queue *queue, cmq_queuefolder folder, cmq_queuefiles *files,
                                             int64_t start, const char *path, cmq_file **file_out, bool *kept_out)
{
    *kept_out = false;
    cmq_fs *fs = queue->set->fs;
    cmq_status status = cmq_file_open(fs, path, CMQ_OPEN_CREATE_NEW, file_out);
    if (status == CMQ_ERR_NOT_FOUND) {
        char directory[CMQ_PATH_BYTES];
        status = cmq_queue_file_queue_path(queue, folder, directory);
        if (status == CMQ_OK) status = cmq_fs_require_root(fs, queue->set->root);
        if (status == CMQ_OK) status = cmq_fs_make_directory_unsynced(fs, directory);
        if (status != CMQ_OK) return status;
        files->folder_unsynced = true;
        status = cmq_file_open(fs, path, CMQ_OPEN_CREATE_NEW, file_out);
    }
    if (status == CMQ_ERR_IO && cmq_last_error()->sys_errno == EEXIST) {
        status = cmq_file_open(fs, path, CMQ_OPEN_WRITE, file_out);
        if (status != CMQ_OK) return status;
        if (folder == CMQ_FOLDER_SIMPLE) cmq_queue_sums_remove(queue, start);
        *kept_out = queue->set->recovering;
        status = *kept_out ? cmq_queue_cut_later(queue, folder) : cmq_file_resize(*file_out, 0);
        if (status != CMQ_OK) cmq_file_close(*file_out);
    }
    return status;
}

/* Make the file that starts at `start`; `first_unit_at` is the byte of it at which its first unit will lie. */
static cmq_status CMQ_MUST_CHECK make_file(cmq_queue *queue, cmq_queuefolder folder, cmq_queuefiles *files,
                                           int64_t start, int64_t first_unit_at)
{
    const int64_t file_bytes = queue->set->file_bytes[folder];
    char path[CMQ_PATH_BYTES];
    cmq_status status = cmq_queue_file_path(queue, folder, start, path);
    if (status != CMQ_OK) return status;
    cmq_file *file;
    bool kept, written;
    status = create_file(queue, folder, files, start, path, &file, &kept);
    if (status != CMQ_OK) return status;
    status = cmq_file_resize(file, (uint64_t)file_bytes);
    if (status == CMQ_OK && folder == CMQ_FOLDER_SIMPLE && first_unit_at > 0)
        status = write_fillers(file, first_unit_at, &written);
    cmq_file_close(file);
    if (status != CMQ_OK && kept) return status;
    if (status != CMQ_OK) {
        /* half made: the next try creates it again; the first failure is the one to report */
        const cmq_error error = *cmq_last_error();
        (void)!cmq_fs_remove(queue->set->fs, path);
        return cmq_fail_again(&error);
    }
    if (files->first < 0) files->first = start;
    files->end = start + file_bytes;
    files->names_unsynced = true;
    if (files->unsynced > start) files->unsynced = start;
    return CMQ_OK;
}

static cmq_status CMQ_MUST_CHECK write_inside(cmq_queue *queue, cmq_queuefolder folder, cmq_queuefiles *files,
                                              int64_t start, int64_t offset, const void *from, size_t bytes)
{
    cmq_cachedfile *taken;
    cmq_status status = cmq_queue_file_take(queue, folder, start, &taken);
    if (status != CMQ_OK) return status;
    if (files->unsynced > offset) files->unsynced = offset;
    status = cmq_file_write(taken->file, (uint64_t)(offset - start), from, bytes);
    if (folder != CMQ_FOLDER_EXT && status == CMQ_OK)
        cmq_queue_sums_wrote(queue, taken->file, start, offset - start, from, bytes);
    cmq_file_cache_release(queue->set->files, taken);
    return status;
}

static cmq_status CMQ_MUST_CHECK write_across(cmq_queue *queue, cmq_queuefolder folder, cmq_queuefiles *files,
                                              int64_t offset, const void *from, size_t bytes)
{
    const int64_t file_bytes = queue->set->file_bytes[folder];
    const uint8_t *at = from;
    cmq_queue_mark_unsynced(queue);
    while (bytes > 0) {
        const int64_t start = floor_to_file(queue, folder, offset);
        const uint64_t left = (uint64_t)(start + file_bytes - offset);
        const size_t chunk = bytes < left ? bytes : (size_t)left;
        if (files->first < 0 || start >= files->end) {
            CMQ_ASSERT(files->first < 0 || start == files->end);
            const cmq_status status = make_file(queue, folder, files, start, files->first < 0 ? offset - start : 0);
            if (status != CMQ_OK) return status;
        }
        const cmq_status status = write_inside(queue, folder, files, start, offset, at, chunk);
        if (status != CMQ_OK) return status;
        at += chunk;
        offset += (int64_t)chunk;
        bytes -= chunk;
    }
    return CMQ_OK;
}

cmq_status cmq_queue_file_write(cmq_queue *queue, cmq_queuefolder folder, cmq_queuefiles *files, int64_t offset,
                               const void *from, size_t bytes)
{
    CMQ_ASSERT(!queue->set->read_only);
    const cmq_status status = write_across(queue, folder, files, offset, from, bytes);
    /* The next try writes the same units again, and the sum must not count them twice. */
    if (status != CMQ_OK && folder != CMQ_FOLDER_EXT) files->sum_known = false;
    return status;
}

/* ---- cutting and removing ---- */

void cmq_queue_file_drop(const cmq_queue *queue, cmq_queuefolder folder, int64_t start)
{
    cmq_file_cache_drop(queue->set->files, owner_of(queue, folder), start);
    cmq_file_cache_drop(queue->set->maps, owner_of(queue, folder), start);
}

cmq_status cmq_queue_file_remove(const cmq_queue *queue, cmq_queuefolder folder, int64_t start)
{
    char path[CMQ_PATH_BYTES];
    cmq_status status = cmq_queue_file_path(queue, folder, start, path);
    if (status == CMQ_OK) status = cmq_fs_remove(queue->set->fs, path);
    if (status == CMQ_ERR_NOT_FOUND) status = CMQ_OK;
    if (folder == CMQ_FOLDER_SIMPLE) cmq_queue_sums_remove(queue, start);
    cmq_queue_file_drop(queue, folder, start);   /* after the removal: an opening in between may have cached it */
    return status;
}

/* Whether [from, end) of a file reads as zero. Most often it is a hole. Blocks count as data as a whole, so the rest of
 * the first is looked at before the file is dirtied for nothing. */
static cmq_status CMQ_MUST_CHECK is_zero(cmq_file *file, int64_t from, int64_t end, bool *zero_out)
{
    uint64_t data;
    *zero_out = true;
    cmq_status status = cmq_file_next_data(file, (uint64_t)from, &data);
    if (status == CMQ_END || (status == CMQ_OK && data >= (uint64_t)end)) return CMQ_OK;
    if (status != CMQ_OK) return status;
    uint8_t rest[4096];
    const size_t bytes = end - from < (int64_t)sizeof rest ? (size_t)(end - from) : sizeof rest;
    status = cmq_file_read(file, (uint64_t)from, rest, bytes);
    for (size_t i = 0; status == CMQ_OK && i < bytes && *zero_out; i++) *zero_out = rest[i] == 0;
    if (status != CMQ_OK || !*zero_out || bytes == (size_t)(end - from)) return status;
    status = cmq_file_next_data(file, (uint64_t)from + bytes, &data);
    if (status == CMQ_OK) *zero_out = data >= (uint64_t)end;
    return status == CMQ_END ? CMQ_OK : status;
}

/* Whether one file reads as zero from its byte `from` on; up to `zero_until` it is known to. */
static cmq_status CMQ_MUST_CHECK rest_is_zero(cmq_file *file, int64_t file_bytes, int64_t from, int64_t zero_until,
                                              bool *zero_out)
{
    if (zero_until < from) zero_until = from;
    *zero_out = true;
    return zero_until < file_bytes ? is_zero(file, zero_until, file_bytes, zero_out) : CMQ_OK;
}

/* Zero the rest of one file from its byte `from` on; up to `zero_until` it is zero already. */
static cmq_status CMQ_MUST_CHECK zero_rest(cmq_queue *queue, cmq_queuefolder folder, cmq_queuefiles *files,
                                           int64_t start, int64_t from, int64_t zero_until)
{
    const int64_t file_bytes = queue->set->file_bytes[folder];
    cmq_cachedfile *taken;
    cmq_status status = cmq_queue_file_take(queue, folder, start, &taken);
    if (status != CMQ_OK) return status;
    bool zero;
    status = rest_is_zero(taken->file, file_bytes, from, zero_until, &zero);
    if (status == CMQ_OK && !zero) {
        status = cmq_file_punch(taken->file, (uint64_t)from, (uint64_t)(file_bytes - from));
        if (files->unsynced > start + from) files->unsynced = start + from;
        cmq_queue_mark_unsynced(queue);
    }
    cmq_file_cache_release(queue->set->files, taken);
    return status;
}

/* The file in which `offset` lies, or the first. */
static int64_t file_of(const cmq_queue *queue, cmq_queuefolder folder, const cmq_queuefiles *files, int64_t offset)
{
    return offset < files->first ? files->first : floor_to_file(queue, folder, offset);
}

cmq_status cmq_queue_file_is_cut(cmq_queue *queue, cmq_queuefolder folder, const cmq_queuefiles *files, int64_t offset,
                                int64_t zero_until, bool *cut_out)
{
    *cut_out = files->first < 0 || offset >= files->end;
    if (*cut_out) return CMQ_OK;
    const int64_t file_bytes = queue->set->file_bytes[folder], start = file_of(queue, folder, files, offset);
    if (start + file_bytes < files->end) return CMQ_OK;
    cmq_cachedfile *taken;
    cmq_status status = cmq_queue_file_take(queue, folder, start, &taken);
    if (status != CMQ_OK) return status;
    status = rest_is_zero(taken->file, file_bytes, offset < start ? 0 : offset - start, zero_until - start, cut_out);
    cmq_file_cache_release(queue->set->files, taken);
    return status;
}

cmq_status cmq_queue_file_cut(cmq_queue *queue, cmq_queuefolder folder, cmq_queuefiles *files, int64_t offset,
                             int64_t zero_until)
{
    CMQ_ASSERT(!queue->set->read_only);
    if (files->first < 0) return CMQ_OK;
    const int64_t file_bytes = queue->set->file_bytes[folder];
    while (files->end - file_bytes >= offset && files->end - file_bytes > files->first) {
        const cmq_status status = cmq_queue_file_remove(queue, folder, files->end - file_bytes);
        if (status != CMQ_OK) return status;
        files->end -= file_bytes;
        files->names_unsynced = true;
        cmq_queue_mark_unsynced(queue);
    }
    if (offset >= files->end) return CMQ_OK;
    const int64_t start = file_of(queue, folder, files, offset);
    return zero_rest(queue, folder, files, start, offset < start ? 0 : offset - start, zero_until - start);
}

/* Remove what lies in a queue's folder: files that a foreign hand left there too, as upstream does; never a folder in
 * it. */
static cmq_status CMQ_MUST_CHECK empty_folder(cmq_fs *fs, const char *directory)
{
    char **names;
    size_t count;
    cmq_status status = cmq_fs_list(fs, directory, &names, &count);
    if (status != CMQ_OK) return status == CMQ_ERR_NOT_FOUND ? CMQ_OK : status;
    for (size_t i = 0; i < count && status == CMQ_OK; i++) {
        char path[CMQ_PATH_BYTES];
        cmq_file_info info;
        status = cmq_path_join(path, directory, names[i]);
        if (status == CMQ_OK) status = cmq_fs_stat(fs, path, &info);
        if (status == CMQ_OK && !info.is_directory) status = cmq_fs_remove(fs, path);
        if (status == CMQ_ERR_NOT_FOUND) status = CMQ_OK;
    }
    cmq_fs_free_names(names, count);
    return status;
}

cmq_status cmq_queue_file_remove_all(const cmq_queue *queue, cmq_queuefolder folder, cmq_queuefiles *files)
{
    cmq_fs *fs = queue->set->fs;
    cmq_status status = CMQ_OK;
    /* From the end, so that what a crash leaves is a shorter queue, not one with a hole. */
    while (files->first >= 0 && status == CMQ_OK) {
        files->end -= queue->set->file_bytes[folder];
        status = cmq_queue_file_remove(queue, folder, files->end);
        if (files->end <= files->first) *files = CMQ_QUEUEFILES_NONE;
    }
    if (status != CMQ_OK) return status;
    char directory[CMQ_PATH_BYTES];
    status = cmq_queue_file_queue_path(queue, folder, directory);
    if (status != CMQ_OK) return status;
    if (cmq_fs_remove_directory(fs, directory) != CMQ_OK) {
        status = empty_folder(fs, directory);
        if (status != CMQ_OK) return status;
        /* A folder that is still not empty (a foreign folder inside), or is not there, stays as it is. */
        (void)!cmq_fs_remove_directory(fs, directory);
    }
    return CMQ_OK;
}

void cmq_queue_file_remove_topic(const cmq_queue *queue, cmq_queuefolder folder)
{
    char directory[CMQ_PATH_BYTES];
    if (cmq_queue_file_topic_path(queue, folder, directory) == CMQ_OK)
        (void)!cmq_fs_remove_directory(queue->set->fs, directory);
}
