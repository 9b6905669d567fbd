/* cmq_timer_log: see cmq_timer_log.h.
 *
 * A file's last unit stands where 16 bytes for the blank still fit behind it; so every file has the same units, and a
 * position is a unit's if it is a multiple of 52 in its file and not behind the last.
 */
#include "broker/timer/cmq_timer_log.h"

#include <stdlib.h>
#include <string.h>

#include "base/cmq_assert.h"
#include "base/cmq_bytes.h"

#define BLANK_MAGIC INT32_C(-875286124)     /* 0xCBD43194 */
#define BLANK_BYTES 16
#define HOLE_BYTES 4096
#define STAGED_BYTES (64 * 1024)
#define UNIT_MAGIC_MASK (CMQ_TIMER_UNIT_DEFAULT | CMQ_TIMER_UNIT_ROLL | CMQ_TIMER_UNIT_DELETE | 8)

typedef struct log_file {
    int64_t start;
    uint8_t *map;
} log_file;

struct cmq_timer_log {
    cmq_fs *fs;
    char root[CMQ_PATH_BYTES], folder[CMQ_PATH_BYTES];
    int64_t file_bytes;
    log_file *files;                 /* in order, without gaps */
    uint32_t file_count, file_slots;
    cmq_file *last;                  /* the last file, for writing */
    int64_t end;                     /* of what is in files and staged */
    int64_t staged_start;            /* end - staged_used */
    uint32_t staged_used;
    bool synced;                     /* all that is in files is on disk, too */
    uint8_t staged[STAGED_BYTES];
};

/* ---- units ---- */

void cmq_timer_unit_encode(const cmq_timer_unit *unit, uint8_t into[CMQ_TIMER_UNIT_BYTES])
{
    cmq_store_i32(into, CMQ_TIMER_UNIT_BYTES);
    cmq_store_i64(into + 4, unit->previous);
    cmq_store_i32(into + 12, unit->magic);
    cmq_store_i64(into + 16, unit->write_ms);
    cmq_store_i32(into + 24, unit->delay_ms);
    cmq_store_i64(into + 28, unit->phy);
    cmq_store_i32(into + 36, unit->bytes);
    cmq_store_i32(into + 40, unit->topic_hash);
    cmq_store_i64(into + 44, 0);
}

bool cmq_timer_unit_decode(const uint8_t at[CMQ_TIMER_UNIT_BYTES], int64_t position, cmq_timer_unit *unit_out)
{
    *unit_out = (cmq_timer_unit){
        .previous = cmq_load_i64(at + 4),
        .magic = cmq_load_i32(at + 12),
        .write_ms = cmq_load_i64(at + 16),
        .delay_ms = cmq_load_i32(at + 24),
        .phy = cmq_load_i64(at + 28),
        .bytes = cmq_load_i32(at + 36),
        .topic_hash = cmq_load_i32(at + 40),
    };
    const cmq_timer_unit *unit = unit_out;
    return cmq_load_i32(at) == CMQ_TIMER_UNIT_BYTES && (unit->magic & ~UNIT_MAGIC_MASK) == 0 &&
           (unit->magic & CMQ_TIMER_UNIT_DEFAULT) != 0 && unit->previous >= -1 && unit->previous < position &&
           unit->write_ms > 0 && unit->write_ms < INT64_MAX - INT32_MAX && unit->write_ms + unit->delay_ms > 0 &&
           unit->phy >= 0 && unit->bytes > 0;
}

/* ---- files ---- */

/* Where units of a file end. */
static int64_t units_bytes(const cmq_timer_log *log)
{
    return (log->file_bytes - BLANK_BYTES) / CMQ_TIMER_UNIT_BYTES * CMQ_TIMER_UNIT_BYTES;
}

int64_t cmq_timer_log_file_bytes(const cmq_timer_log *log) { return log->file_bytes; }
int64_t cmq_timer_log_min(const cmq_timer_log *log) { return log->file_count > 0 ? log->files[0].start : log->end; }
int64_t cmq_timer_log_end(const cmq_timer_log *log) { return log->end; }

static const log_file *file_of(const cmq_timer_log *log, int64_t position)
{
    if (log->file_count == 0 || position < log->files[0].start) return NULL;
    const int64_t index = (position - log->files[0].start) / log->file_bytes;
    return index < log->file_count ? &log->files[index] : NULL;
}

static cmq_status CMQ_MUST_CHECK path_of(const cmq_timer_log *log, int64_t start, char path[CMQ_PATH_BYTES])
{
    char name[CMQ_OFFSET_NAME_BYTES];
    cmq_path_offset_name(name, start);
    return cmq_path_join(path, log->folder, name);
}

/* Map a file that is open, behind the others. */
static cmq_status CMQ_MUST_CHECK add_file(cmq_timer_log *log, cmq_file *file, int64_t start)
{
    if (log->file_count == log->file_slots) {
        const uint32_t slots = log->file_slots == 0 ? 16 : log->file_slots * 2;
        log_file *files = realloc(log->files, slots * sizeof *files);
        if (files == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for the files of the timer log");
        log->files = files;
        log->file_slots = slots;
    }
    log_file *added = &log->files[log->file_count];
    added->start = start;
    const cmq_status status = cmq_file_map(file, 0, (size_t)log->file_bytes, false, &added->map);
    if (status == CMQ_OK) log->file_count++;
    return status;
}

static void unmap(cmq_timer_log *log, const log_file *file)
{
    cmq_fs_unmap(log->fs, file->map, (size_t)log->file_bytes);
}

static cmq_status CMQ_MUST_CHECK load_file(cmq_timer_log *log, const char *name, bool is_last)
{
    char path[CMQ_PATH_BYTES];
    int64_t start;
    cmq_file *file;
    cmq_file_info info;
    cmq_status status = cmq_path_parse_offset_name(name, &start);
    if (status == CMQ_OK) status = cmq_path_join(path, log->folder, name);
    if (status == CMQ_OK) status = cmq_file_open(log->fs, path, CMQ_OPEN_WRITE, &file);
    if (status != CMQ_OK) return status;
    status = cmq_file_info_of(file, &info);
    if (status == CMQ_OK && log->file_count == 0 && info.bytes > 0) log->file_bytes = (int64_t)info.bytes;
    /* killed while it was made */
    if (status == CMQ_OK && is_last && info.bytes == 0) status = cmq_file_resize(file, (uint64_t)log->file_bytes);
    else if (status == CMQ_OK && info.bytes != (uint64_t)log->file_bytes)
        status = cmq_fail(CMQ_ERR_SETTING, "%s has %llu bytes, the timer log's other files %lld", path,
                          (unsigned long long)info.bytes, (long long)log->file_bytes);
    if (status == CMQ_OK && log->file_count > 0 && start != log->files[log->file_count - 1].start + log->file_bytes)
        status = cmq_fail(CMQ_ERR_SETTING, "%s does not follow the file before it", path);
    if (status == CMQ_OK && log->file_bytes < BLANK_BYTES + CMQ_TIMER_UNIT_BYTES)
        status = cmq_fail(CMQ_ERR_SETTING, "%s has %lld bytes, too few for a unit", path, (long long)log->file_bytes);
    if (status == CMQ_OK) status = add_file(log, file, start);
    if (status == CMQ_OK && is_last) log->last = file;
    else cmq_file_close(file);
    return status;
}

cmq_status cmq_timer_log_open(cmq_timer_log **log_out, cmq_fs *fs, const char *root, int64_t file_bytes)
{
    char **names = NULL;
    size_t count = 0;
    *log_out = NULL;
    if (file_bytes < BLANK_BYTES + CMQ_TIMER_UNIT_BYTES)
        return cmq_fail(CMQ_ERR_ARGUMENT, "mappedFileSizeTimerLog is %lld; a unit needs %d", (long long)file_bytes,
                        BLANK_BYTES + CMQ_TIMER_UNIT_BYTES);
    cmq_timer_log *made = calloc(1, sizeof *made);
    if (made == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for the timer log");
    made->fs = fs;
    made->file_bytes = file_bytes;
    cmq_status status = cmq_path_join(made->folder, root, "timerlog");
    if (status == CMQ_OK) memcpy(made->root, root, strlen(root) + 1);
    if (status == CMQ_OK) status = cmq_fs_list(fs, made->folder, &names, &count);
    if (status == CMQ_ERR_NOT_FOUND) status = CMQ_OK;
    for (size_t i = 0; i < count && status == CMQ_OK; i++) status = load_file(made, names[i], i + 1 == count);
    cmq_fs_free_names(names, count);
    if (status != CMQ_OK) {
        cmq_timer_log_close(made);
        return status;
    }
    if (made->file_count > 0) made->end = made->files[made->file_count - 1].start + made->file_bytes;
    made->staged_start = made->end;
    made->synced = true;
    *log_out = made;
    return CMQ_OK;
}

void cmq_timer_log_close(cmq_timer_log *log)
{
    if (log == NULL) return;
    for (uint32_t i = 0; i < log->file_count; i++) unmap(log, &log->files[i]);
    cmq_file_close(log->last);
    free(log->files);
    free(log);
}

/* ---- recovery ---- */

static cmq_status CMQ_MUST_CHECK remove_last(cmq_timer_log *log)
{
    char path[CMQ_PATH_BYTES];
    const log_file *file = &log->files[log->file_count - 1];
    cmq_file_close(log->last);
    log->last = NULL;
    cmq_status status = path_of(log, file->start, path);
    unmap(log, file);
    log->file_count--;
    if (status == CMQ_OK) status = cmq_fs_remove(log->fs, path);
    if (status == CMQ_OK && log->file_count > 0) {
        status = path_of(log, log->files[log->file_count - 1].start, path);
        if (status == CMQ_OK) status = cmq_file_open(log->fs, path, CMQ_OPEN_WRITE, &log->last);
    }
    return status;
}

/* The end of the good units of one file; whole_out: they go up to its end. */
static int64_t good_end(const cmq_timer_log *log, const log_file *file, int64_t phy_end, bool *whole_out)
{
    const int64_t units = units_bytes(log);
    cmq_timer_unit unit;
    int64_t at = 0;
    while (at < units && cmq_timer_unit_decode(file->map + at, file->start + at, &unit) &&
           unit.phy <= phy_end - unit.bytes)
        at += CMQ_TIMER_UNIT_BYTES;
    *whole_out = cmq_load_i32(file->map + at + 12) == BLANK_MAGIC;
    return file->start + (*whole_out ? log->file_bytes : at);
}

static bool is_zero(const uint8_t *at, int64_t bytes)
{
    for (int64_t i = 0; i < bytes; i++)
        if (at[i] != 0) return false;
    return true;
}

/* Is there nothing in the last file behind its used bytes? Holes are not looked at: the file is mostly one. */
static cmq_status CMQ_MUST_CHECK rest_is_zero(const cmq_timer_log *log, int64_t used, bool *zero_out)
{
    const uint8_t *map = log->files[log->file_count - 1].map;
    const int64_t page_end = used + (HOLE_BYTES - used % HOLE_BYTES),
                  near_end = page_end < log->file_bytes ? page_end : log->file_bytes;
    uint64_t data = (uint64_t)near_end;
    *zero_out = is_zero(map + used, near_end - used);
    if (!*zero_out || near_end == log->file_bytes) return CMQ_OK;
    const cmq_status status = cmq_file_next_data(log->last, data, &data);
    if (status != CMQ_OK) return status == CMQ_END ? CMQ_OK : status;
    *zero_out = (int64_t)data >= log->file_bytes || is_zero(map + data, log->file_bytes - (int64_t)data);
    return CMQ_OK;
}

cmq_status cmq_timer_log_recover(cmq_timer_log *log, int64_t phy_end)
{
    if (log->file_count == 0) return CMQ_OK;
    int64_t end = log->end;
    bool whole = true;
    for (uint32_t i = 0; i < log->file_count && whole; i++) end = good_end(log, &log->files[i], phy_end, &whole);
    cmq_status status = CMQ_OK;
    while (status == CMQ_OK && log->file_count > 1 && log->files[log->file_count - 1].start >= end)
        status = remove_last(log);
    if (status != CMQ_OK) return status;
    log->end = log->staged_start = end;
    const log_file *last = &log->files[log->file_count - 1];
    const int64_t used = end - last->start;
    bool zero = true;
    if (used < log->file_bytes) status = rest_is_zero(log, used, &zero);
    if (status == CMQ_OK && !zero) {
        status = cmq_file_punch(log->last, (uint64_t)used, (uint64_t)(log->file_bytes - used));
        log->synced = false;
    }
    return status;
}

/* ---- reading ---- */

bool cmq_timer_log_read(const cmq_timer_log *log, int64_t position, cmq_timer_unit *unit_out)
{
    const log_file *file = file_of(log, position);
    if (file == NULL || position + CMQ_TIMER_UNIT_BYTES > log->end) return false;
    const int64_t at = position - file->start;
    if (at % CMQ_TIMER_UNIT_BYTES != 0 || at >= units_bytes(log)) return false;
    const uint8_t *bytes =
        position >= log->staged_start ? log->staged + (position - log->staged_start) : file->map + at;
    return cmq_timer_unit_decode(bytes, position, unit_out);
}

int64_t cmq_timer_log_next(const cmq_timer_log *log, int64_t position)
{
    if (position < cmq_timer_log_min(log)) position = cmq_timer_log_min(log);
    const log_file *file = file_of(log, position);
    cmq_timer_unit unit;
    if (file == NULL) return -1;
    if (cmq_timer_log_read(log, position, &unit)) return position;
    const int64_t next = file->start + log->file_bytes;
    return next < log->end ? next : -1;
}

int64_t cmq_timer_log_previous(const cmq_timer_log *log, int64_t position)
{
    cmq_timer_unit unit;
    if (position > log->end) position = log->end;
    const log_file *file = file_of(log, position - 1);
    if (file == NULL) return -1;
    int64_t at = position - 1 - file->start;
    const int64_t units = units_bytes(log);
    if (at >= units) at = units - 1;
    at -= at % CMQ_TIMER_UNIT_BYTES;
    /* Behind a blank that stands earlier than ours would there is nothing. */
    for (; at >= 0; at -= CMQ_TIMER_UNIT_BYTES)
        if (cmq_timer_log_read(log, file->start + at, &unit)) return file->start + at;
    return file == log->files ? -1 : cmq_timer_log_previous(log, file->start);
}

/* ---- writing ---- */

static cmq_status CMQ_MUST_CHECK write_staged(cmq_timer_log *log)
{
    if (log->staged_used == 0) return CMQ_OK;
    const log_file *last = &log->files[log->file_count - 1];
    const cmq_status status =
        cmq_file_write(log->last, (uint64_t)(log->staged_start - last->start), log->staged, log->staged_used);
    if (status != CMQ_OK) return status;
    log->staged_start += log->staged_used;
    log->staged_used = 0;
    log->synced = false;
    return CMQ_OK;
}

static cmq_status CMQ_MUST_CHECK sync_last(cmq_timer_log *log)
{
    cmq_status status = write_staged(log);
    if (status == CMQ_OK && !log->synced) status = cmq_file_sync(log->last);
    if (status == CMQ_OK) log->synced = true;
    return status;
}

cmq_status cmq_timer_log_flush(cmq_timer_log *log) { return sync_last(log); }

/* End the last file with a blank, which stands behind the last unit that fits. */
static cmq_status CMQ_MUST_CHECK end_file(cmq_timer_log *log)
{
    const log_file *last = &log->files[log->file_count - 1];
    const int64_t at = log->end - last->start;
    cmq_status status = write_staged(log);
    if (status == CMQ_OK && at < log->file_bytes) {
        uint8_t blank[BLANK_BYTES] = {0};
        cmq_store_i32(blank, (int32_t)(log->file_bytes - at));
        cmq_store_i32(blank + 12, BLANK_MAGIC);
        status = cmq_file_write(log->last, (uint64_t)at, blank, sizeof blank);
        log->synced = false;
    }
    return status == CMQ_OK ? sync_last(log) : status;
}

static cmq_status CMQ_MUST_CHECK make_folder(const cmq_timer_log *log)
{
    return cmq_fs_make_directory_in(log->fs, log->root, log->folder);
}

/* A new file behind the last. Nothing is changed unless it is there. */
static cmq_status CMQ_MUST_CHECK begin_file(cmq_timer_log *log)
{
    char path[CMQ_PATH_BYTES];
    cmq_file *file = NULL;
    const int64_t start = log->file_count > 0 ? log->files[log->file_count - 1].start + log->file_bytes
                                              : log->end - log->end % log->file_bytes;
    cmq_status status = log->file_count > 0 ? end_file(log) : make_folder(log);
    if (status == CMQ_OK) status = path_of(log, start, path);
    if (status == CMQ_OK) status = cmq_file_open(log->fs, path, CMQ_OPEN_CREATE, &file);
    if (status == CMQ_OK) status = cmq_file_resize(file, (uint64_t)log->file_bytes);
    if (status == CMQ_OK) status = cmq_fs_sync_directory(log->fs, log->folder);
    if (status == CMQ_OK) status = add_file(log, file, start);
    if (status != CMQ_OK) {
        cmq_file_close(file);
        return status;
    }
    cmq_file_close(log->last);
    log->last = file;
    log->end = log->staged_start = start;
    log->synced = false;
    return CMQ_OK;
}

cmq_status cmq_timer_log_append(cmq_timer_log *log, const cmq_timer_unit *unit, int64_t *position_out)
{
    cmq_status status = CMQ_OK;
    const bool full = log->file_count == 0 || log->end - log->files[log->file_count - 1].start >= units_bytes(log);
    if (full) status = begin_file(log);
    else if (log->staged_used + CMQ_TIMER_UNIT_BYTES > STAGED_BYTES) status = write_staged(log);
    if (status != CMQ_OK) return status;
    CMQ_ASSERT(unit->previous < log->end);
    cmq_timer_unit_encode(unit, log->staged + log->staged_used);
    log->staged_used += CMQ_TIMER_UNIT_BYTES;
    *position_out = log->end;
    log->end += CMQ_TIMER_UNIT_BYTES;
    return CMQ_OK;
}

/* ---- expiry ---- */

cmq_status cmq_timer_log_expire(cmq_timer_log *log, int64_t phy_min)
{
    cmq_status status = CMQ_OK;
    uint32_t gone = 0;
    while (status == CMQ_OK && gone + 1 < log->file_count) {
        char path[CMQ_PATH_BYTES];
        cmq_timer_unit unit;
        const log_file *file = &log->files[gone];
        const int64_t last = cmq_timer_log_previous(log, file->start + log->file_bytes);
        if (last < file->start || !cmq_timer_log_read(log, last, &unit) || unit.phy >= phy_min) break;
        status = path_of(log, file->start, path);
        if (status == CMQ_OK) status = cmq_fs_remove(log->fs, path);
        if (status == CMQ_OK) gone++;
    }
    for (uint32_t i = 0; i < gone; i++) unmap(log, &log->files[i]);
    log->file_count -= gone;
    if (gone > 0) memmove(log->files, log->files + gone, log->file_count * sizeof *log->files);
    return status;
}
