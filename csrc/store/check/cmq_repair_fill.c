/* cmq_repair_fill: puts records without a message in the place of damage in the log, so that every reader, a
 * RocketMQ broker too, goes on behind.
 *
 * A filler is an ordinary record of the topic CMQ_FILLER that says of itself to be a rolled back transaction: no queue
 * and no index takes such a record, neither here nor upstream. Its body is zeros. It begins and ends where the damage
 * does; damage up to the end of a segment becomes a blank.
 *
 * The old bytes are kept before, as commitlog/<physical offset>-<store time>.damaged in the repair's folder under
 * cometmq/removed. These files are also the list of the places to fill, when the journal is carried out: filling twice
 * writes the same bytes.
 *
 * Threads: the holder of the store's lock.
 * Way:     damage -> [cmq_repair_fill] -> kept aside -> fillers in the log
 * Source:  which records upstream dispatches: spec store 2.4, 7.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cmq_assert.h"
#include "store/check/cmq_repair_internal.h"

#define CHUNK_BYTES 65536
#define BLANK_BYTES 8
#define KEPT_SUFFIX ".damaged"
#define KEPT_NAME_BYTES 64
#define OFFSET_DIGITS 20
#define LONG_TOPIC "CMQ_FILLER"
#define SHORT_TOPIC "C"   /* where a record was so small that the other does not fit */
#define FILLER_BYTES_MIN (CMQ_RECORD_BYTES_MIN + (int64_t)sizeof SHORT_TOPIC - 1)

/* ---- places to fill ---- */

static cmq_status CMQ_MUST_CHECK add_fill(cmq_repair *repair, cmq_repair_fill fill)
{
    if (repair->fill_count == repair->fill_capacity) {
        const uint32_t capacity = repair->fill_capacity == 0 ? 64 : repair->fill_capacity * 2;
        cmq_repair_fill *grown = realloc(repair->fills, capacity * sizeof *grown);
        if (grown == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for a list of %u damaged places", capacity);
        repair->fills = grown;
        repair->fill_capacity = capacity;
    }
    repair->fills[repair->fill_count++] = fill;
    repair->report->filled_bytes += fill.bytes;
    return CMQ_OK;
}

cmq_status cmq_repair_note_fill(cmq_repair *repair, int64_t from, int64_t end, int64_t store_ms)
{
    const int64_t segment_bytes = repair->store->sizes.segment_bytes;
    while (from < end) {
        const int64_t segment_end = from - from % segment_bytes + segment_bytes;
        const int64_t part_end = end < segment_end ? end : segment_end;
        const bool fits = part_end - from >= (part_end == segment_end ? BLANK_BYTES : FILLER_BYTES_MIN);
        /* Records begin and end elsewhere only where stale bytes of another log were taken for one: that stays
         * damage. */
        if (fits) {
            const cmq_status status =
                add_fill(repair, (cmq_repair_fill){.from = from, .bytes = part_end - from, .store_ms = store_ms});
            if (status != CMQ_OK) return status;
        }
        from = part_end;
    }
    return CMQ_OK;
}

/* ---- keeping the old bytes ---- */

static cmq_status CMQ_MUST_CHECK keep_one(cmq_repair *repair, const cmq_repair_fill *fill, const char *folder)
{
    char from[CMQ_PATH_BYTES], to[CMQ_PATH_BYTES], name[KEPT_NAME_BYTES];
    cmq_segment *segment;
    const uint8_t *data;
    size_t available;
    int64_t copied;
    cmq_status status = cmq_log_pin(repair->store->log, fill->from, &segment, &data, &available);
    if (status != CMQ_OK) return status;
    memcpy(from, cmq_segment_path(segment), strlen(cmq_segment_path(segment)) + 1);
    cmq_segment_unpin(segment);
    snprintf(name, sizeof name, "%0*" PRId64 "-%" PRId64 KEPT_SUFFIX, OFFSET_DIGITS, fill->from, fill->store_ms);
    status = cmq_path_join(to, folder, name);
    return status == CMQ_OK ? cmq_file_tree_copy(repair->fs, from, fill->from % repair->store->sizes.segment_bytes,
                                                 fill->bytes, to, &copied)
                            : status;
}

cmq_status cmq_repair_keep_fills(cmq_repair *repair)
{
    char folder[CMQ_PATH_BYTES];
    if (repair->fill_count == 0) return CMQ_OK;
    cmq_status status = cmq_path_join(folder, repair->side, "commitlog");
    if (status == CMQ_OK) status = cmq_fs_make_directory(repair->fs, folder);
    for (uint32_t i = 0; i < repair->fill_count && status == CMQ_OK; i++)
        status = keep_one(repair, &repair->fills[i], folder);
    return status == CMQ_OK ? cmq_fs_sync_directory(repair->fs, folder) : status;
}

/* ---- filling ---- */

/* The record of `bytes` for `phy`; its body are the zeros at `zeros`. */
static void encode_filler(uint8_t *into, int64_t phy, int64_t bytes, int64_t store_ms, const uint8_t *zeros)
{
    const bool is_short = bytes < CMQ_RECORD_BYTES_MIN + (int64_t)sizeof LONG_TOPIC - 1;
    const cmq_slice topic = cmq_slice_of_text(is_short ? SHORT_TOPIC : LONG_TOPIC);
    const cmq_record_fields fields = {
        .topic = topic,
        .body = {.data = zeros, .bytes = (size_t)bytes - CMQ_RECORD_BYTES_MIN - topic.bytes},
        .physical_offset = phy,
        .born_timestamp_ms = store_ms,
        .store_timestamp_ms = store_ms,
        .sys_flag = CMQ_SYS_TRANSACTION_ROLLBACK,
        .version = CMQ_RECORD_VERSION_1,
    };
    cmq_record_sizes sizes;
    const cmq_status status = cmq_record_measure(&fields, &sizes);
    CMQ_ASSERT(status == CMQ_OK && sizes.record_bytes == (uint32_t)bytes);
    cmq_record_encode(into, &fields, &sizes);
}

static cmq_status CMQ_MUST_CHECK write_fillers(cmq_file *file, int64_t inside, const cmq_repair_fill *fill)
{
    uint8_t *buffer = calloc(2, CHUNK_BYTES);   /* the record, and the zeros of its body */
    if (buffer == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory to fill a damaged place");
    cmq_status status = CMQ_OK;
    for (int64_t at = 0; at < fill->bytes && status == CMQ_OK;) {
        const int64_t left = fill->bytes - at;
        int64_t bytes = left < CHUNK_BYTES ? left : CHUNK_BYTES;
        if (left > bytes && left - bytes < FILLER_BYTES_MIN) bytes -= FILLER_BYTES_MIN;
        encode_filler(buffer, fill->from + at, bytes, fill->store_ms, buffer + CHUNK_BYTES);
        status = cmq_file_write(file, (uint64_t)(inside + at), buffer, (size_t)bytes);
        at += bytes;
    }
    free(buffer);
    return status;
}

static cmq_status CMQ_MUST_CHECK write_blank(cmq_file *file, int64_t inside, int64_t bytes)
{
    uint8_t blank[BLANK_BYTES];
    cmq_record_write_blank(blank, (uint32_t)bytes);
    const cmq_status status =
        bytes > BLANK_BYTES ? cmq_file_punch(file, (uint64_t)(inside + BLANK_BYTES), (uint64_t)(bytes - BLANK_BYTES))
                            : CMQ_OK;
    return status == CMQ_OK ? cmq_file_write(file, (uint64_t)inside, blank, sizeof blank) : status;
}

static cmq_status CMQ_MUST_CHECK fill_one(const cmq_repair_filling *of, const cmq_repair_fill *fill)
{
    const int64_t inside = fill->from % of->segment_bytes;
    char name[CMQ_OFFSET_NAME_BYTES];
    cmq_path_offset_name(name, fill->from - inside);
    for (uint32_t i = 0; i < of->log_path_count; i++) {
        char path[CMQ_PATH_BYTES];
        cmq_file *file;
        cmq_status status = cmq_path_join(path, of->log_paths[i], name);
        if (status == CMQ_OK) status = cmq_file_open(of->fs, path, CMQ_OPEN_WRITE, &file);
        if (status == CMQ_ERR_NOT_FOUND) continue;
        if (status != CMQ_OK) return status;
        status = inside + fill->bytes == of->segment_bytes ? write_blank(file, inside, fill->bytes)
                                                           : write_fillers(file, inside, fill);
        if (status == CMQ_OK) status = cmq_file_sync(file);
        cmq_file_close(file);
        if (status != CMQ_OK) return status;
    }
    return CMQ_OK;
}

/* The place and time in the name of a kept file, and its length; false: not such a file. */
static bool parse_kept(const char *name, cmq_repair_fill *fill)
{
    char expected[KEPT_NAME_BYTES];
    if (sscanf(name, "%" SCNd64 "-%" SCNd64, &fill->from, &fill->store_ms) != 2 || fill->from < 0) return false;
    snprintf(expected, sizeof expected, "%0*" PRId64 "-%" PRId64 KEPT_SUFFIX, OFFSET_DIGITS, fill->from,
             fill->store_ms);
    return strcmp(name, expected) == 0;
}

cmq_status cmq_repair_fill_log(const cmq_repair_filling *of, const char *side)
{
    char folder[CMQ_PATH_BYTES];
    char **names;
    size_t count;
    cmq_status status = cmq_path_join(folder, side, "commitlog");
    if (status == CMQ_OK) status = cmq_fs_list(of->fs, folder, &names, &count);
    if (status != CMQ_OK) return status == CMQ_ERR_NOT_FOUND ? CMQ_OK : status;
    for (size_t i = 0; i < count && status == CMQ_OK; i++) {
        char path[CMQ_PATH_BYTES];
        cmq_repair_fill fill;
        cmq_file_info info;
        if (!parse_kept(names[i], &fill)) continue;
        status = cmq_path_join(path, folder, names[i]);
        if (status == CMQ_OK) status = cmq_fs_stat(of->fs, path, &info);
        if (status != CMQ_OK) break;
        fill.bytes = (int64_t)info.bytes;
        status = fill_one(of, &fill);
    }
    cmq_fs_free_names(names, count);
    return status;
}
