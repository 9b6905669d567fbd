/* cmq_log: see cmq_log.h. This file owns the table of segments, loading, the cut and retention; how bytes get in is in
 * cmq_log_write.c. */
#include "store/log/cmq_log_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cmq_assert.h"

#define TRY_BYTES_MIN (INT64_C(256) << 10)   /* as a claim reserves: twice as much as the last time, within these */
#define TRY_BYTES_MAX (INT64_C(16) << 20)

/* ---- the table ---- */

static cmq_status grow_table(cmq_log *log, int64_t origin, uint32_t capacity)
{
    cmq_log_table *table = calloc(1, sizeof *table + capacity * sizeof table->at[0]);
    if (table == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for the table of %u segments", capacity);
    table->origin = origin;
    table->capacity = capacity;
    cmq_log_table *before = atomic_load_explicit(&log->table, memory_order_relaxed);
    if (before != NULL) {
        const uint32_t skip = (uint32_t)((origin - before->origin) / log->segment_bytes);
        for (uint32_t i = skip; i < before->capacity && i - skip < capacity; i++)
            atomic_init(&table->at[i - skip], atomic_load_explicit(&before->at[i], memory_order_relaxed));
        table->retired = before;   /* readers may be inside it: freed at close */
    }
    atomic_store_explicit(&log->table, table, memory_order_release);
    return CMQ_OK;
}

cmq_segment *cmq_log_segment_at(const cmq_log *log, int64_t phy)
{
    const cmq_log_table *table = atomic_load_explicit(&log->table, memory_order_acquire);
    if (table == NULL || phy < table->origin) return NULL;
    const int64_t index = (phy - table->origin) / log->segment_bytes;
    if (index >= table->capacity) return NULL;
    return atomic_load_explicit(&table->at[index], memory_order_acquire);
}

/* With the make mutex held. */
static cmq_status put_segment(cmq_log *log, cmq_segment *segment)
{
    const int64_t start = cmq_segment_start(segment);
    cmq_log_table *table = atomic_load_explicit(&log->table, memory_order_relaxed);
    const int64_t min = atomic_load_explicit(&log->min, memory_order_relaxed);
    if (table == NULL || (start - table->origin) / log->segment_bytes >= table->capacity) {
        const int64_t origin = table == NULL ? start : min;
        const int64_t needed = (start - origin) / log->segment_bytes + 1;
        const cmq_status status = grow_table(log, origin, (uint32_t)(needed < 8 ? 16 : needed * 2));
        if (status != CMQ_OK) return status;
        table = atomic_load_explicit(&log->table, memory_order_relaxed);
    }
    atomic_store_explicit(&table->at[(start - table->origin) / log->segment_bytes], segment, memory_order_release);
    const int64_t end = start + log->segment_bytes;
    if (end > atomic_load_explicit(&log->last_file_end, memory_order_relaxed))
        atomic_store_explicit(&log->last_file_end, end, memory_order_release);
    return CMQ_OK;
}

/* Take a segment out of the table and drop the log's pin. */
static void drop_segment(cmq_log *log, int64_t start)
{
    cmq_log_table *table = atomic_load_explicit(&log->table, memory_order_relaxed);
    cmq_segment *segment =
        atomic_exchange_explicit(&table->at[(start - table->origin) / log->segment_bytes], NULL, memory_order_acq_rel);
    if (segment != NULL) cmq_segment_unpin(segment);
}

/* ---- files ---- */

uint32_t cmq_log_path_count(const cmq_log *log) { return log->path_count; }
const char *cmq_log_path(const cmq_log *log, uint32_t index) { return log->paths[index]; }

cmq_status cmq_log_path_of(const cmq_log *log, int64_t start, char path_out[CMQ_PATH_BYTES])
{
    char name[CMQ_OFFSET_NAME_BYTES];
    cmq_path_offset_name(name, start);
    return cmq_path_join(path_out, log->paths[(start / log->segment_bytes) % log->path_count], name);
}

cmq_status cmq_log_make_segment(cmq_log *log, int64_t start, cmq_segment **segment_out)
{
    cmq_status status = CMQ_OK;
    pthread_mutex_lock(&log->make_mutex);
    cmq_segment *segment = cmq_log_segment_at(log, start);
    if (segment == NULL) {
        char path[CMQ_PATH_BYTES];
        status = cmq_log_path_of(log, start, path);
        if (status == CMQ_OK)
            status = cmq_segment_open(log->family, log->fs, path, start, log->segment_bytes,
                                      log->staged ? CMQ_SEGMENT_STAGED : CMQ_SEGMENT_MAPPED, &segment);
        if (status == CMQ_OK && atomic_load_explicit(&log->table, memory_order_relaxed) == NULL)
            atomic_store_explicit(&log->min, start, memory_order_release);
        if (status == CMQ_OK) {
            status = put_segment(log, segment);
            if (status != CMQ_OK) cmq_segment_unpin(segment);
        }
    }
    pthread_mutex_unlock(&log->make_mutex);
    *segment_out = status == CMQ_OK ? segment : NULL;
    return status;
}

cmq_status cmq_log_create(cmq_log **log_out, const cmq_log_options *options)
{
    *log_out = NULL;
    if (options->segment_bytes < CMQ_SEGMENT_BYTES_MIN || options->segment_bytes > CMQ_SEGMENT_BYTES_MAX)
        return cmq_fail(CMQ_ERR_SETTING, "mappedFileSizeCommitLog is %lld, must be %d to %lld",
                        (long long)options->segment_bytes, CMQ_SEGMENT_BYTES_MIN, (long long)CMQ_SEGMENT_BYTES_MAX);
    if (options->path_count == 0 || options->path_count > CMQ_LOG_PATHS_MAX)
        return cmq_fail(CMQ_ERR_SETTING, "storePathCommitLog names %u directories, must be 1 to %d",
                        options->path_count, CMQ_LOG_PATHS_MAX);
    cmq_log *log = calloc(1, sizeof *log);
    if (log == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for the commit log");
    log->sealed_from = -1;
    log->fs = options->fs;
    log->segment_bytes = options->segment_bytes;
    log->staging_bytes_max = CMQ_STAGING_BYTES_MAX;
    log->read_only = options->read_only;
    log->staged = options->staged;
    pthread_mutex_init(&log->make_mutex, NULL);
    pthread_mutex_init(&log->ahead_mutex, NULL);
    pthread_mutex_init(&log->sync_mutex, NULL);
    pthread_cond_init(&log->synced, NULL);
    cmq_status status = cmq_segment_family_create(&log->family);
    for (uint32_t i = 0; status == CMQ_OK && i < options->path_count; i++) {
        log->paths[i] = strdup(options->paths[i]);
        if (log->paths[i] == NULL) status = cmq_fail(CMQ_ERR_MEMORY, "no memory for the commit log");
        else log->path_count++;
    }
    if (status != CMQ_OK) {
        cmq_log_close(log, false);
        return status;
    }
    *log_out = log;
    return CMQ_OK;
}

/* ---- load ---- */

typedef struct found_file {
    int64_t start;
    uint32_t path;
    uint64_t bytes;
} found_file;

typedef struct found_files {
    found_file *files;
    size_t count, capacity;
} found_files;

static cmq_status add_found(found_files *found, found_file file)
{
    if (found->count == found->capacity) {
        const size_t capacity = found->capacity == 0 ? 64 : found->capacity * 2;
        found_file *grown = realloc(found->files, capacity * sizeof *grown);
        if (grown == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for the list of segment files");
        found->files = grown;
        found->capacity = capacity;
    }
    found->files[found->count++] = file;
    return CMQ_OK;
}

static int by_start(const void *a, const void *b)
{
    const int64_t left = ((const found_file *)a)->start, right = ((const found_file *)b)->start;
    return (left > right) - (left < right);
}

static cmq_status find_in_path(const cmq_log *log, uint32_t path_index, found_files *found)
{
    char **names;
    size_t count;
    cmq_status status = cmq_fs_list(log->fs, log->paths[path_index], &names, &count);
    if (status == CMQ_ERR_NOT_FOUND) return CMQ_OK;   /* a store without a commit log yet */
    if (status != CMQ_OK) return status;
    for (size_t i = 0; i < count && status == CMQ_OK; i++) {
        char path[CMQ_PATH_BYTES];
        cmq_file_info info;
        found_file file = {.path = path_index};
        status = cmq_path_join(path, log->paths[path_index], names[i]);
        if (status == CMQ_OK) status = cmq_fs_stat(log->fs, path, &info);
        if (status == CMQ_ERR_NOT_FOUND && log->read_only) {   /* retention of the writer was faster */
            status = CMQ_OK;
            continue;
        }
        if (status != CMQ_OK) break;
        if (info.is_directory) continue;   /* skipped as upstream does */
        status = cmq_path_parse_offset_name(names[i], &file.start);
        if (status != CMQ_OK) {
            cmq_fail_context("%s is not a segment of a commit log; move it out of the folder", path);
            break;
        }
        file.bytes = info.bytes;
        status = add_found(found, file);
    }
    cmq_fs_free_names(names, count);
    return status;
}

static cmq_status find_files(const cmq_log *log, found_files *found)
{
    for (uint32_t i = 0; i < log->path_count; i++) {
        const cmq_status status = find_in_path(log, i, found);
        if (status != CMQ_OK) return status;
    }
    if (found->count > 0) qsort(found->files, found->count, sizeof found->files[0], by_start);
    return CMQ_OK;
}

/* A crash between creation and growth leaves an empty last file: upstream removes it, and so do we. */
static cmq_status settle_empty_last(const cmq_log *log, found_files *found)
{
    if (found->count == 0 || found->files[found->count - 1].bytes != 0) return CMQ_OK;
    const found_file *last = &found->files[--found->count];
    if (log->read_only) return CMQ_OK;
    char path[CMQ_PATH_BYTES], name[CMQ_OFFSET_NAME_BYTES];
    cmq_path_offset_name(name, last->start);
    cmq_status status = cmq_path_join(path, log->paths[last->path], name);
    if (status == CMQ_OK) status = cmq_fs_remove(log->fs, path);
    return status;
}

static cmq_status open_found(cmq_log *log, const found_file *file)
{
    char path[CMQ_PATH_BYTES], name[CMQ_OFFSET_NAME_BYTES];
    cmq_segment *segment;
    cmq_path_offset_name(name, file->start);
    cmq_status status = cmq_path_join(path, log->paths[file->path], name);
    if (status == CMQ_OK)
        status =
            cmq_segment_open(log->family, log->fs, path, file->start, log->segment_bytes, CMQ_SEGMENT_READ, &segment);
    if (status != CMQ_OK) return status;
    pthread_mutex_lock(&log->make_mutex);
    if (atomic_load_explicit(&log->table, memory_order_relaxed) == NULL)
        atomic_store_explicit(&log->min, file->start, memory_order_release);
    status = put_segment(log, segment);
    pthread_mutex_unlock(&log->make_mutex);
    if (status != CMQ_OK) cmq_segment_unpin(segment);
    return status;
}

static cmq_status check_contiguous(const cmq_log *log, const found_files *found)
{
    for (size_t i = 1; i < found->count; i++) {
        const int64_t expected = found->files[i - 1].start + log->segment_bytes;
        if (found->files[i].start == expected) continue;
        if (found->files[i].bytes != (uint64_t)log->segment_bytes ||
            found->files[i - 1].bytes != (uint64_t)log->segment_bytes)
            return cmq_fail(
                CMQ_ERR_SETTING,
                "segment files of the commit log have %llu bytes, but mappedFileSizeCommitLog is %lld; set it to "
                "the length of the files",
                (unsigned long long)found->files[i].bytes, (long long)log->segment_bytes);
        return cmq_fail_at(CMQ_ERR_NOT_STORE, expected,
                           "the commit log has a gap: no file begins at %lld, between those at %lld and %lld; put it "
                           "back, or run `truncate -s %lld %020lld` in its folder, then `cometmq repair --fill` (%s)",
                           (long long)expected, (long long)found->files[i - 1].start, (long long)found->files[i].start,
                           (long long)log->segment_bytes, (long long)expected, log->paths[found->files[i].path]);
    }
    return CMQ_OK;
}

cmq_status cmq_log_load(cmq_log *log)
{
    found_files found = {0};
    cmq_status status = find_files(log, &found);
    if (status == CMQ_OK) status = settle_empty_last(log, &found);
    if (status == CMQ_OK) status = check_contiguous(log, &found);
    for (size_t i = 0; i < found.count && status == CMQ_OK; i++) status = open_found(log, &found.files[i]);
    free(found.files);
    return status;
}

cmq_status cmq_log_refresh(cmq_log *log)
{
    CMQ_ASSERT(log->read_only);
    found_files found = {0};
    cmq_status status = find_files(log, &found);
    if (status == CMQ_OK) status = settle_empty_last(log, &found);
    const int64_t min = found.count > 0 ? found.files[0].start : atomic_load_explicit(&log->min, memory_order_relaxed);
    /* An empty store does not show the length of its files: the one assumed at opening may turn out wrong. */
    if (status == CMQ_OK && found.count > 0 && atomic_load_explicit(&log->table, memory_order_relaxed) == NULL &&
        found.files[0].bytes != (uint64_t)log->segment_bytes)
        status = cmq_fail(
            CMQ_ERR_CLOSED,
            "the store was empty when it was opened here, and now has segments of %llu bytes where %lld were assumed; "
            "open it again",
            (unsigned long long)found.files[0].bytes, (long long)log->segment_bytes);
    for (size_t i = 0; i < found.count && status == CMQ_OK; i++)
        if (found.files[i].bytes == (uint64_t)log->segment_bytes &&
            cmq_log_segment_at(log, found.files[i].start) == NULL &&
            found.files[i].start >= atomic_load_explicit(&log->last_file_end, memory_order_relaxed))
            status = open_found(log, &found.files[i]);
    free(found.files);
    if (status != CMQ_OK) return status;
    for (int64_t start = atomic_load_explicit(&log->min, memory_order_relaxed); start < min;
         start += log->segment_bytes)
        drop_segment(log, start);
    atomic_store_explicit(&log->min, min, memory_order_release);
    return CMQ_OK;
}

cmq_status cmq_log_reopen_replaced(cmq_log *log, int64_t start, bool *reopened_out)
{
    CMQ_ASSERT(log->read_only);
    *reopened_out = false;
    cmq_segment *before = cmq_log_segment_at(log, start), *now;
    bool replaced;
    if (before == NULL) return CMQ_OK;
    cmq_status status = cmq_segment_replaced(before, &replaced);
    if (status != CMQ_OK || !replaced) return status;
    status = cmq_segment_open(log->family, log->fs, cmq_segment_path(before), cmq_segment_start(before),
                              log->segment_bytes, CMQ_SEGMENT_READ, &now);
    if (status == CMQ_ERR_NOT_FOUND) return CMQ_OK;   /* gone once more */
    if (status != CMQ_OK) return status;
    pthread_mutex_lock(&log->make_mutex);
    status = put_segment(log, now);
    pthread_mutex_unlock(&log->make_mutex);
    cmq_segment_unpin(status == CMQ_OK ? before : now);
    *reopened_out = status == CMQ_OK;
    return status;
}

/* ---- the cut, and retention ---- */

/* Make the segment's name durable, or its removal. */
static cmq_status sync_folder(cmq_log *log, const cmq_segment *segment)
{
    char folder[CMQ_PATH_BYTES];
    snprintf(folder, sizeof folder, "%s", cmq_segment_path(segment));
    *strrchr(folder, '/') = '\0';
    return cmq_fs_sync_directory(log->fs, folder);
}

/* The removal is durable before anything else changes: of two removals the second alone may survive a power loss, and
 * leave a gap; and queue files whose records come back would be missed. */
static cmq_status remove_durably(cmq_log *log, int64_t start)
{
    const cmq_segment *segment = cmq_log_segment_at(log, start);
    if (segment == NULL) return CMQ_OK;
    const cmq_status status = cmq_fs_remove(log->fs, cmq_segment_path(segment));
    if (status != CMQ_OK && status != CMQ_ERR_NOT_FOUND) return status;
    return sync_folder(log, segment);
}

static cmq_status delete_after(cmq_log *log, int64_t end)
{
    const int64_t last_end = atomic_load_explicit(&log->last_file_end, memory_order_relaxed);
    const int64_t min = atomic_load_explicit(&log->min, memory_order_relaxed);
    /* Newest first, so that a crash in between leaves no gap. The first file stays, also when it is empty: it says
     * where the log begins. */
    for (int64_t start = last_end - log->segment_bytes; start >= end && start > min; start -= log->segment_bytes) {
        const cmq_status status = remove_durably(log, start);
        if (status != CMQ_OK) return status;
        drop_segment(log, start);
        atomic_store_explicit(&log->last_file_end, start, memory_order_release);
    }
    return CMQ_OK;
}

static cmq_status blank_behind(cmq_log *log, cmq_segment *segment, int64_t end)
{
    const uint64_t at = (uint64_t)(end - cmq_segment_start(segment));
    uint64_t data;
    cmq_status status = cmq_file_next_data(cmq_segment_file(segment), at, &data);
    if (status == CMQ_END) return CMQ_OK;
    if (status == CMQ_OK) status = cmq_file_punch(cmq_segment_file(segment), at, (uint64_t)log->segment_bytes - at);
    if (status == CMQ_OK) status = cmq_file_sync(cmq_segment_file(segment));
    return status;
}

/* Put a loaded segment back into the table, open for new records. */
static cmq_status open_to_append(cmq_log *log, cmq_segment **segment)
{
    cmq_segment *before = *segment, *now;
    cmq_status status =
        cmq_segment_reopen(before, log->staged ? CMQ_SEGMENT_STAGED_AGAIN : CMQ_SEGMENT_MAPPED_AGAIN, &now);
    if (status != CMQ_OK) return status;
    pthread_mutex_lock(&log->make_mutex);
    status = put_segment(log, now);
    pthread_mutex_unlock(&log->make_mutex);
    cmq_segment_unpin(status == CMQ_OK ? before : now);
    if (status == CMQ_OK) *segment = now;
    return status;
}

static cmq_status set_end(cmq_log *log, int64_t end, bool blank)
{
    CMQ_ASSERT(!log->read_only);
    CMQ_ASSERT(end >= cmq_log_min(log));
    log->end = log->reserved_end = log->touched_end = end;
    log->entered_end = end - end % log->segment_bytes + log->segment_bytes;   /* the helper does not run yet */
    log->files_closed = end - end % log->segment_bytes;
    log->current = NULL;
    cmq_status status = CMQ_OK;
    if (atomic_load_explicit(&log->table, memory_order_relaxed) != NULL) status = delete_after(log, end);
    cmq_segment *segment = cmq_log_segment_at(log, end);
    if (status == CMQ_OK && segment != NULL) {
        if (cmq_segment_file(segment) == NULL) status = open_to_append(log, &segment);
        if (status == CMQ_OK && !blank) status = blank_behind(log, segment, end);
        /* A process that died while it made its first segment may have left a name that is on no disk; all other empty
         * segments were removed. */
        if (status == CMQ_OK && end == cmq_segment_start(segment)) status = sync_folder(log, segment);
        if (status == CMQ_OK) log->current = segment;
    }
    if (status != CMQ_OK) return status;
    atomic_store_explicit(&log->flushed, end, memory_order_release);
    atomic_store_explicit(&log->confirmed, end, memory_order_release);
    if (atomic_load_explicit(&log->table, memory_order_relaxed) == NULL) {
        atomic_store_explicit(&log->min, end, memory_order_release);
        atomic_store_explicit(&log->last_file_end, end, memory_order_release);
    }
    return CMQ_OK;
}

cmq_status cmq_log_set_end(cmq_log *log, int64_t end) { return set_end(log, end, false); }
cmq_status cmq_log_go_on(cmq_log *log, int64_t end) { return set_end(log, end, true); }

cmq_status cmq_log_delete_first(cmq_log *log)
{
    const int64_t min = cmq_log_min(log);
    if (min + log->segment_bytes >= cmq_log_last_file_end(log)) return CMQ_END;
    const cmq_status status = remove_durably(log, min);
    if (status != CMQ_OK) return status;
    /* First move min, then drop: a reader that still sees the pointer can pin it, one that does not gets "below
     * min". */
    atomic_store_explicit(&log->min, min + log->segment_bytes, memory_order_release);
    drop_segment(log, min);
    return CMQ_OK;
}

cmq_status cmq_log_first_info(cmq_log *log, cmq_file_info *info_out)
{
    const int64_t min = cmq_log_min(log);
    if (min + log->segment_bytes >= cmq_log_last_file_end(log)) return CMQ_END;
    return cmq_fs_stat(log->fs, cmq_segment_path(cmq_log_segment_at(log, min)), info_out);
}

void cmq_log_close_flushed(cmq_log *log)
{
    const int64_t flushed = cmq_log_flushed(log);
    /* nobody waits for this */
    if (log->files_closed + log->segment_bytes > flushed || pthread_mutex_trylock(&log->ahead_mutex) != 0) return;
    for (; log->files_closed + log->segment_bytes <= flushed; log->files_closed += log->segment_bytes) {
        cmq_segment *segment = cmq_log_segment_at(log, log->files_closed);
        if (segment == NULL || !cmq_segment_try_pin(segment)) continue;   /* expired */
        cmq_segment_close_file(segment);
        cmq_segment_unpin(segment);
    }
    pthread_mutex_unlock(&log->ahead_mutex);
}

cmq_status cmq_log_try_room(cmq_log *log)
{
    cmq_segment *segment = log->current;
    cmq_status status = segment == NULL ? cmq_log_make_segment(log, log->end, &segment) : CMQ_OK;
    if (status != CMQ_OK) return status;
    const int64_t from = (log->reserved_end > log->end ? log->reserved_end : log->end) - cmq_segment_start(segment),
                  left = log->segment_bytes - from;
    int64_t bytes = log->reserve_step * 2 < TRY_BYTES_MIN ? TRY_BYTES_MIN : log->reserve_step * 2;
    if (bytes > TRY_BYTES_MAX) bytes = TRY_BYTES_MAX;
    return left <= 0
               ? CMQ_OK
               : cmq_file_reserve(cmq_segment_file(segment), (uint64_t)from, (uint64_t)(left < bytes ? left : bytes));
}

/* ---- readers ---- */

cmq_status cmq_log_pin(cmq_log *log, int64_t phy, cmq_segment **segment_out, const uint8_t **data_out,
                       size_t *available_out)
{
    *segment_out = NULL;
    *data_out = NULL;
    *available_out = 0;
    cmq_segment *segment = phy < cmq_log_min(log) ? NULL : cmq_log_segment_at(log, phy);
    if (segment == NULL || !cmq_segment_try_pin(segment))
        return cmq_fail_at(CMQ_ERR_OFFSET, phy,
                           "physical offset %lld is outside the commit log, which holds [%lld, %lld)", (long long)phy,
                           (long long)cmq_log_min(log), (long long)cmq_log_last_file_end(log));
    const int64_t at = phy - cmq_segment_start(segment);
    *segment_out = segment;
    *data_out = cmq_segment_data(segment) + at;
    *available_out = (size_t)(log->segment_bytes - at);
    return CMQ_OK;
}

int64_t cmq_log_min_now(cmq_log *log)
{
    const int64_t end = cmq_log_last_file_end(log);
    int64_t start = cmq_log_min(log);
    for (; start < end; start += log->segment_bytes) {
        cmq_file_info info;
        cmq_segment *segment;
        const uint8_t *data;
        size_t available;
        if (cmq_log_pin(log, start, &segment, &data, &available) != CMQ_OK) continue;   /* dropped just now */
        const cmq_status status = cmq_fs_stat(log->fs, cmq_segment_path(segment), &info);
        cmq_segment_unpin(segment);
        if (status != CMQ_ERR_NOT_FOUND) break;
    }
    return start;
}

int64_t cmq_log_end(const cmq_log *log) { return log->end; }
int64_t cmq_log_confirmed(const cmq_log *log) { return atomic_load_explicit(&log->confirmed, memory_order_acquire); }
int64_t cmq_log_flushed(const cmq_log *log) { return atomic_load_explicit(&log->flushed, memory_order_acquire); }
int64_t cmq_log_min(const cmq_log *log) { return atomic_load_explicit(&log->min, memory_order_acquire); }
int64_t cmq_log_segment_bytes(const cmq_log *log) { return log->segment_bytes; }
int64_t cmq_log_last_file_end(const cmq_log *log)
{
    return atomic_load_explicit(&log->last_file_end, memory_order_acquire);
}

/* ---- close ---- */

void cmq_log_close(cmq_log *log, bool clean)
{
    if (log == NULL) return;
    cmq_log_table *table = atomic_load_explicit(&log->table, memory_order_relaxed);
    if (table != NULL && clean && !log->read_only) {
        /* A failure here leaves a file of zeros, which every reader of the format takes for the unused next segment. */
        const cmq_status ignored = delete_after(log, log->end);
        (void)ignored;
    }
    if (table != NULL)
        for (int64_t start = cmq_log_min(log); start < cmq_log_last_file_end(log); start += log->segment_bytes)
            drop_segment(log, start);
    while (table != NULL) {
        cmq_log_table *retired = table->retired;
        free(table);
        table = retired;
    }
    for (uint32_t i = 0; i < log->path_count; i++) free(log->paths[i]);
    free(log->sealed);
    for (int i = 0; i < 2; i++) {
        CMQ_ASSERT(log->staged_buffers[i].run_count == 0 || !clean);
        cmq_staged_discard(&log->staged_buffers[i]);
        free(log->staged_buffers[i].data);
    }
    cmq_segment_family_release(log->family);
    pthread_mutex_destroy(&log->make_mutex);
    pthread_mutex_destroy(&log->ahead_mutex);
    pthread_mutex_destroy(&log->sync_mutex);
    pthread_cond_destroy(&log->synced);
    free(log);
}
