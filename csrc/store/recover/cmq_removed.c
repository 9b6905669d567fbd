/* cmq_removed: see cmq_removed.h. This file keeps; cmq_restore.c brings back.
 *
 * The header, big-endian, 128 bytes:
 *   0 magic u64   8 version u32   12 flags u32 (1: unfinished)   16 offset of the cut   24 bytes of the .cut file   32
 *   its crc32 u32   36 0 u32   40 segment_bytes 48 whole records behind the cut   56 time in ms   64 reason (56 bytes,
 *   zeros at its end)   120 0 u32   124 crc32 of the bytes before
 */
#include "store/recover/cmq_removed.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cmq_crc32.h"
#include "base/cmq_file_tree.h"
#include "store/cmq_store_internal.h"
#include "store/marks/cmq_own_files.h"

#define MAGIC UINT64_C(0x434D5152454D4F56)   /* "CMQREMOV" */
#define VERSION 1u
#define FLAG_UNFINISHED 1u   /* the copy was not yet whole */
#define HEADER_BYTES 128
#define HEADER_NAME "cut"
#define REASON_AT 64
#define REASON_BYTES 56
#define CHUNK_BYTES ((size_t)1 << 20)

_Static_assert(REASON_AT + REASON_BYTES + 8 == HEADER_BYTES, "the reason, a gap and the crc end the header");

typedef struct cut_header {
    int64_t at, bytes, segment_bytes, records, removed_ms;
    uint32_t bytes_crc;
    bool unfinished;
    char reason[REASON_BYTES];
} cut_header;

/* ---- the header ---- */

static void encode(const cut_header *header, uint8_t at[HEADER_BYTES])
{
    memset(at, 0, HEADER_BYTES);
    cmq_store_u64(at, MAGIC);
    cmq_store_u32(at + 8, VERSION);
    cmq_store_u32(at + 12, header->unfinished ? FLAG_UNFINISHED : 0);
    cmq_store_i64(at + 16, header->at);
    cmq_store_i64(at + 24, header->bytes);
    cmq_store_u32(at + 32, header->bytes_crc);
    cmq_store_i64(at + 40, header->segment_bytes);
    cmq_store_i64(at + 48, header->records);
    cmq_store_i64(at + 56, header->removed_ms);
    memcpy(at + REASON_AT, header->reason, REASON_BYTES);
    cmq_store_u32(at + HEADER_BYTES - 4, cmq_crc32(at, HEADER_BYTES - 4));
}

/* CMQ_ERR_NOT_FOUND: the folder has none that is whole. */
static cmq_status CMQ_MUST_CHECK read_header(cmq_fs *fs, const char *folder, cut_header *header)
{
    char path[CMQ_PATH_BYTES];
    uint8_t at[HEADER_BYTES];
    cmq_file *file;
    cmq_status status = cmq_path_join(path, folder, HEADER_NAME);
    if (status == CMQ_OK) status = cmq_file_open(fs, path, CMQ_OPEN_READ, &file);
    if (status != CMQ_OK) return status;
    status = cmq_file_read(file, 0, at, sizeof at);
    cmq_file_close(file);
    const bool sound = status == CMQ_OK && cmq_load_u64(at) == MAGIC && cmq_load_u32(at + 8) == VERSION &&
                       cmq_load_u32(at + HEADER_BYTES - 4) == cmq_crc32(at, HEADER_BYTES - 4);
    if (status == CMQ_ERR_CORRUPT || (status == CMQ_OK && !sound))
        return cmq_fail(CMQ_ERR_NOT_FOUND, "%s is not the header of a cut", path);
    if (status != CMQ_OK) return status;
    *header = (cut_header){.unfinished = (cmq_load_u32(at + 12) & FLAG_UNFINISHED) != 0,
                           .at = cmq_load_i64(at + 16),
                           .bytes = cmq_load_i64(at + 24),
                           .bytes_crc = cmq_load_u32(at + 32),
                           .segment_bytes = cmq_load_i64(at + 40),
                           .records = cmq_load_i64(at + 48),
                           .removed_ms = cmq_load_i64(at + 56)};
    memcpy(header->reason, at + REASON_AT, REASON_BYTES);
    return CMQ_OK;
}

static cmq_status CMQ_MUST_CHECK write_header(cmq_fs *fs, const char *folder, const cut_header *header)
{
    char path[CMQ_PATH_BYTES];
    uint8_t at[HEADER_BYTES];
    cmq_file *file;
    encode(header, at);
    cmq_status status = cmq_path_join(path, folder, HEADER_NAME);
    if (status == CMQ_OK) status = cmq_file_open(fs, path, CMQ_OPEN_CREATE, &file);
    if (status != CMQ_OK) return status;
    status = cmq_file_write(file, 0, at, sizeof at);
    if (status == CMQ_OK) status = cmq_file_sync(file);
    cmq_file_close(file);
    return status == CMQ_OK ? cmq_fs_sync_directory(fs, folder) : status;
}

static cmq_status CMQ_MUST_CHECK crc_of(cmq_fs *fs, const char *path, int64_t offset, int64_t bytes, uint32_t *crc_out)
{
    cmq_file *file;
    *crc_out = 0;
    cmq_status status = cmq_file_open(fs, path, CMQ_OPEN_READ, &file);
    if (status != CMQ_OK) return status;
    uint8_t *buffer = malloc(CHUNK_BYTES);
    if (buffer == NULL) status = cmq_fail(CMQ_ERR_MEMORY, "no memory to read %s", path);
    for (int64_t done = 0; status == CMQ_OK && done < bytes;) {
        const size_t now = bytes - done < (int64_t)CHUNK_BYTES ? (size_t)(bytes - done) : CHUNK_BYTES;
        status = cmq_file_read(file, (uint64_t)(offset + done), buffer, now);
        if (status == CMQ_OK) *crc_out = cmq_crc32_extend(*crc_out, buffer, now);
        done += (int64_t)now;
    }
    free(buffer);
    cmq_file_close(file);
    return status;
}

/* ---- records to keep ---- */

/* How many whole records of this log lie behind `end`. */
static int64_t count_records(cmq_store *store, int64_t end)
{
    const int64_t bytes = cmq_log_segment_bytes(store->log), limit = cmq_log_last_file_end(store->log);
    int64_t count = 0, from = end;
    while (from < limit) {
        cmq_segment *segment;
        cmq_record_view view;
        /* Pages that were made ahead are zeros, which this looks through faster. */
        if ((from == end || from % bytes == 0) && cmq_store_bytes_behind(store, from) == 0) {
            from = from - from % bytes + bytes;
            continue;
        }
        if (cmq_store_record_at(store, from, limit, CMQ_RECORD_CHECK_BODY_CRC, &segment, &view) == CMQ_OK)
            cmq_segment_unpin(segment);
        else if (!cmq_store_find_sound(store, from, &view)) {
            from = from - from % bytes + bytes;
            continue;
        }
        count++;
        from = view.physical_offset + view.record_bytes;
    }
    return count;
}

/* ---- keeping ---- */

typedef struct keeping {
    cmq_store *store;
    cut_header header;
    char from[CMQ_PATH_BYTES];     /* the segment that is cut */
    char folder[CMQ_PATH_BYTES];   /* cometmq/removed/<UTC time> */
    char log[CMQ_PATH_BYTES];      /* … /commitlog */
} keeping;

static cmq_status CMQ_MUST_CHECK removed_folder(const cmq_store *store, char path_out[CMQ_PATH_BYTES])
{
    return cmq_path_join(path_out, store->root, CMQ_REMOVED_FOLDER);
}

static cmq_status CMQ_MUST_CHECK segment_path(cmq_store *store, int64_t phy, char path_out[CMQ_PATH_BYTES])
{
    cmq_segment *segment;
    const uint8_t *data;
    size_t available;
    const cmq_status status = cmq_log_pin(store->log, phy, &segment, &data, &available);
    if (status != CMQ_OK) return status;
    snprintf(path_out, CMQ_PATH_BYTES, "%s", cmq_segment_path(segment));
    cmq_segment_unpin(segment);
    return CMQ_OK;
}

/* A recovery that died after it had kept the same bytes: its folder is used again. */
static cmq_status CMQ_MUST_CHECK find_same(keeping *k, bool *found_out)
{
    cmq_fs *fs = k->store->fs;
    char **names;
    size_t count;
    *found_out = false;
    char removed[CMQ_PATH_BYTES];
    cmq_status status = removed_folder(k->store, removed);
    if (status == CMQ_OK) status = cmq_fs_list(fs, removed, &names, &count);
    if (status != CMQ_OK) return status == CMQ_ERR_NOT_FOUND ? CMQ_OK : status;
    for (size_t i = count; i > 0 && !*found_out && status == CMQ_OK; i--) {
        cut_header header;
        status = cmq_path_join(k->folder, removed, names[i - 1]);
        const cmq_status read = status == CMQ_OK ? read_header(fs, k->folder, &header) : status;
        *found_out = read == CMQ_OK && !header.unfinished && header.at == k->header.at &&
                     header.bytes == k->header.bytes && header.bytes_crc == k->header.bytes_crc;
    }
    cmq_fs_free_names(names, count);
    return status;
}

/* The bytes behind the cut in its own segment. The header is written again when all of this is there. */
static cmq_status CMQ_MUST_CHECK copy_cut(keeping *k)
{
    cmq_fs *fs = k->store->fs;
    char name[CMQ_OFFSET_NAME_BYTES + 8], path[CMQ_PATH_BYTES], stamp[CMQ_REMOVED_STAMP_BYTES];
    int64_t copied;
    cmq_status status = cmq_own_files_make_removed(fs, k->store->root, k->header.removed_ms, stamp, k->folder);
    if (status == CMQ_OK) status = cmq_path_join(k->log, k->folder, "commitlog");
    if (status == CMQ_OK) status = cmq_fs_make_directory(fs, k->log);
    k->header.unfinished = true;
    if (status == CMQ_OK) status = write_header(fs, k->folder, &k->header);
    cmq_path_offset_name(name, k->header.at);
    strcat(name, ".cut");
    if (status == CMQ_OK) status = cmq_path_join(path, k->log, name);
    if (status == CMQ_OK && k->header.bytes > 0)
        status =
            cmq_file_tree_copy(fs, k->from, k->header.at % k->header.segment_bytes, k->header.bytes, path, &copied);
    if (status == CMQ_OK) status = cmq_fs_sync_directory(fs, k->log);
    k->header.unfinished = false;
    if (status == CMQ_OK) status = write_header(fs, k->folder, &k->header);
    if (status == CMQ_OK) return CMQ_OK;
    /* Half a copy would take the space that the next attempt needs. */
    const cmq_error error = *cmq_last_error();
    (void)!cmq_file_tree_remove(fs, k->folder);
    return cmq_fail(status, "%s", error.text);
}

/* Segments behind the cut's, newest first and each durably, so that no gap is ever left: also those that hold nothing,
 * which go. */
static cmq_status CMQ_MUST_CHECK move_segments(const keeping *k)
{
    cmq_store *store = k->store;
    const int64_t bytes = k->header.segment_bytes, first = k->header.at - k->header.at % bytes + bytes;
    cmq_status status = CMQ_OK;
    for (int64_t start = cmq_log_last_file_end(store->log) - bytes; start >= first && status == CMQ_OK;
         start -= bytes) {
        char from[CMQ_PATH_BYTES], to[CMQ_PATH_BYTES], name[CMQ_OFFSET_NAME_BYTES];
        cmq_path_offset_name(name, start);
        status = segment_path(store, start, from);
        if (status == CMQ_OK) status = cmq_path_join(to, k->log, name);
        if (status != CMQ_OK) break;
        status = cmq_store_bytes_behind(store, start) > 0 ? cmq_file_tree_move(store->fs, from, to)
                                                          : cmq_fs_remove(store->fs, from);
        if (status == CMQ_OK) status = cmq_fs_sync_directory(store->fs, k->log);
        if (status != CMQ_OK) break;
        *strrchr(from, '/') = '\0';
        status = cmq_fs_sync_directory(store->fs, from);
    }
    return status;
}

/* ---- the bound ---- */

typedef struct kept_cut {
    char path[CMQ_PATH_BYTES];
    int64_t bytes;
    bool restored;                 /* or of no use for another reason */
} kept_cut;

static cmq_status CMQ_MUST_CHECK bytes_in(cmq_fs *fs, const char *folder, int64_t *bytes)
{
    char **names, path[CMQ_PATH_BYTES];
    size_t count;
    cmq_status status = cmq_path_join(path, folder, "commitlog");
    if (status == CMQ_OK) status = cmq_fs_list(fs, path, &names, &count);
    if (status != CMQ_OK) return status == CMQ_ERR_NOT_FOUND ? CMQ_OK : status;
    for (size_t i = 0; i < count && status == CMQ_OK; i++) {
        cmq_file_info info;
        status = cmq_path_join(path, folder, "commitlog");
        if (status == CMQ_OK) status = cmq_path_join(path, path, names[i]);
        if (status == CMQ_OK) status = cmq_fs_stat(fs, path, &info);
        if (status == CMQ_OK) *bytes += (int64_t)info.allocated_bytes;
    }
    cmq_fs_free_names(names, count);
    return status;
}

/* The cuts of recovery, oldest first, but not `newest`. *cuts_out owned. */
static cmq_status CMQ_MUST_CHECK list_cuts(cmq_store *store, const char *newest, kept_cut **cuts_out, size_t *count_out)
{
    char **names, removed[CMQ_PATH_BYTES];
    size_t count;
    *cuts_out = NULL;
    *count_out = 0;
    cmq_status status = removed_folder(store, removed);
    if (status == CMQ_OK) status = cmq_fs_list(store->fs, removed, &names, &count);
    if (status != CMQ_OK) return status == CMQ_ERR_NOT_FOUND ? CMQ_OK : status;
    kept_cut *cuts = calloc(count > 0 ? count : 1, sizeof *cuts);
    if (cuts == NULL) status = cmq_fail(CMQ_ERR_MEMORY, "no memory for a list of %zu folders", count);
    for (size_t i = 0; i < count && status == CMQ_OK; i++) {
        cut_header header;
        char mark[CMQ_PATH_BYTES];
        kept_cut *cut = &cuts[*count_out];
        *cut = (kept_cut){.bytes = 0};
        status = cmq_path_join(cut->path, removed, names[i]);
        if (status != CMQ_OK || strcmp(cut->path, newest) == 0 || read_header(store->fs, cut->path, &header) != CMQ_OK)
            continue;
        status = cmq_path_join(mark, cut->path, CMQ_REMOVED_RESTORED);
        if (status == CMQ_OK) status = cmq_file_tree_exists(store->fs, mark, &cut->restored);
        if (status == CMQ_OK) status = bytes_in(store->fs, cut->path, &cut->bytes);
        cut->restored |= header.unfinished;   /* its records are in the log, too */
        (*count_out)++;
    }
    cmq_fs_free_names(names, count);
    if (status == CMQ_OK) *cuts_out = cuts;
    else free(cuts);
    return status;
}

/* Make room for the newest: the restored ones go first, then the oldest. */
static cmq_status CMQ_MUST_CHECK keep_bound(cmq_store *store, const char *newest)
{
    kept_cut *cuts;
    size_t count;
    cmq_status status = list_cuts(store, newest, &cuts, &count);
    if (status != CMQ_OK) return status;
    size_t left = count;
    int64_t bytes = 0;
    for (size_t i = 0; i < count; i++) bytes += cuts[i].bytes;
    for (int restored = 1; restored >= 0; restored--) {
        for (size_t i = 0;
             i < count && status == CMQ_OK && (left >= CMQ_REMOVED_CUTS_MAX || bytes > CMQ_REMOVED_BYTES_MAX); i++) {
            if (cuts[i].restored != (restored == 1)) continue;
            status = cmq_file_tree_remove(store->fs, cuts[i].path);
            bytes -= cuts[i].bytes;
            left--;
        }
    }
    free(cuts);
    return status;
}

/* ---- the whole ---- */

static cmq_status CMQ_MUST_CHECK begin(keeping *k, int64_t end, const char *reason)
{
    cmq_store *store = k->store;
    k->header = (cut_header){.at = end,
                             .bytes = cmq_store_bytes_behind(store, end),
                             .segment_bytes = cmq_log_segment_bytes(store->log),
                             .records = count_records(store, end),
                             .removed_ms = cmq_clock_now_ms(&store->clock)};
    snprintf(k->header.reason, REASON_BYTES, "%s", reason);
    if (k->header.bytes == 0) return CMQ_OK;
    const cmq_status status = segment_path(store, end, k->from);
    return status != CMQ_OK
               ? status
               : crc_of(store->fs, k->from, end % k->header.segment_bytes, k->header.bytes, &k->header.bytes_crc);
}

cmq_status cmq_removed_keep(cmq_store *store, int64_t end, const char *reason, char folder_out[CMQ_PATH_BYTES],
                            int64_t *records_out)
{
    keeping k = {.store = store};
    bool same = false;
    folder_out[0] = '\0';
    *records_out = 0;
    if (count_records(store, end) == 0) return CMQ_OK;
    cmq_status status = begin(&k, end, reason);
    if (status == CMQ_OK) status = find_same(&k, &same);
    /* Cuts over the bound, and those that an earlier attempt left unfinished, make room first. */
    if (status == CMQ_OK && !same) status = keep_bound(store, "");
    if (status == CMQ_OK && !same) status = copy_cut(&k);
    else if (status == CMQ_OK) status = cmq_path_join(k.log, k.folder, "commitlog");
    if (status == CMQ_OK) status = keep_bound(store, k.folder);
    if (status == CMQ_OK) status = move_segments(&k);
    if (status == CMQ_ERR_DISK_FULL)
        return cmq_fail(status,
                        "%" PRId64 " whole messages lie behind a place at physical offset %" PRId64
                        " that is no whole record (%s), and there is no space "
                        "to keep them (%" PRId64
                        " bytes). Make space and open the store again, or run `cometmq repair --cut`",
                        k.header.records, end, reason, k.header.bytes);
    if (status != CMQ_OK) return status;
    *records_out = k.header.records;
    memcpy(folder_out, k.folder, sizeof k.folder);
    return CMQ_OK;
}
