/* cmq_queue_extension: see cmq_queue_extension.h. */
#include "store/queue/cmq_queue_extension.h"

#include <string.h>

#include "base/cmq_assert.h"
#include "store/queue/cmq_queue_file.h"
#include "store/record/cmq_tags_code.h"

#define WRITE_UNITS 204u   /* extension units gathered for one write: a page */
#define END_MARK (-1)

/* ---- reading ---- */

/* At least `bytes` bytes at `offset` into the window; neighbouring units are most often there already. */
static cmq_status CMQ_MUST_CHECK look(const cmq_queue *queue, int64_t offset, size_t bytes,
                                      cmq_queue_extension_window *window, const uint8_t **at_out)
{
    const int64_t file_bytes = queue->set->file_bytes[CMQ_FOLDER_EXT];
    if (window->bytes == 0 || offset < window->offset || (uint64_t)(offset - window->offset) > window->bytes ||
        window->bytes - (size_t)(offset - window->offset) < bytes) {
        const int64_t left = file_bytes - offset % file_bytes;
        const size_t chunk = left < CMQ_EXT_READ_BYTES ? (size_t)left : CMQ_EXT_READ_BYTES;
        window->bytes = 0;
        if (chunk < bytes) return CMQ_ERR_NOT_FOUND;
        const cmq_status status = cmq_queue_file_read(queue, CMQ_FOLDER_EXT, offset, window->data, chunk);
        if (status != CMQ_OK) return status;
        window->offset = offset;
        window->bytes = chunk;
    }
    *at_out = window->data + (offset - window->offset);
    return CMQ_OK;
}

cmq_status cmq_queue_extension_resolve(const cmq_queue *queue, int64_t address, cmq_queue_extension_window *window,
                                cmq_queue_extension_unit *unit_out)
{
    const uint8_t *at;
    if (!cmq_tags_code_is_ext(address) || cmq_queue_ext_of(queue) == NULL) return CMQ_ERR_NOT_FOUND;
    if (look(queue, cmq_queue_extension_offset(address), CMQ_EXT_HEAD_BYTES, window, &at) != CMQ_OK)
        return CMQ_ERR_NOT_FOUND;
    const int16_t size = cmq_load_i16(at), map_bytes = cmq_load_i16(at + 18);
    if (map_bytes < 0 || size != CMQ_EXT_HEAD_BYTES + map_bytes) return CMQ_ERR_NOT_FOUND;
    *unit_out = (cmq_queue_extension_unit){.tags_code = cmq_load_i64(at + 2),
                                    .store_ms = cmq_load_i64(at + 10),
                                    .map_bytes = (uint16_t)map_bytes,
                                    .size = (uint16_t)size};
    return CMQ_OK;
}

/* The address in the unit at `offset`, or 0: read from the file, for the tail has the resolved form. */
static cmq_status CMQ_MUST_CHECK address_at(cmq_queue *queue, int64_t offset, int64_t *address_out)
{
    *address_out = 0;
    uint32_t words[CMQ_QUEUE_EXT_WORDS];
    uint8_t image[CMQ_UNIT_BYTES];
    if (queue->tail.unit_words == CMQ_QUEUE_EXT_WORDS && cmq_queue_tail_copy(&queue->tail, offset, 1, words)) {
        memcpy(image, words, sizeof image);
    } else {
        const cmq_status status =
            cmq_queue_file_read(queue, CMQ_FOLDER_SIMPLE, offset * CMQ_UNIT_BYTES, image, sizeof image);
        if (status != CMQ_OK) return status;
    }
    const int64_t tags_code = cmq_load_i64(image + 12);
    if (cmq_tags_code_is_ext(tags_code)) *address_out = tags_code;
    return CMQ_OK;
}

cmq_status cmq_queue_ext(cmq_queue *queue, int64_t offset, int64_t confirmed_end, uint8_t *map_out,
                         uint32_t map_capacity, uint32_t *map_bytes_out, int64_t *tags_code_out, int64_t *store_ms_out)
{
    int64_t low, high, address;
    *map_bytes_out = 0;
    if (cmq_queue_ext_of(queue) == NULL) return CMQ_ERR_NOT_FOUND;
    cmq_queue_readable(queue, confirmed_end, &low, &high);
    if (offset < low || offset >= high)
        return cmq_fail_at(CMQ_ERR_OFFSET, offset, "queue %s/%d has no unit at %lld", queue->topic->name,
                           (int)queue->id, (long long)offset);
    cmq_unit unit;
    uint32_t count;
    cmq_status status = cmq_queue_fetch(queue, offset, offset + 1, &unit, 1, &count);
    if (status != CMQ_OK) return status;
    if (count == 0) return CMQ_ERR_NOT_FOUND;   /* cut or deleted meanwhile */
    if (offset >= cmq_queue_tail_flushed(&queue->tail)) {   /* not in a file yet: ours, without a map */
        *tags_code_out = unit.tags_code;
        *store_ms_out = unit.store_ms;
        return CMQ_OK;
    }
    cmq_queue_extension_window window;
    cmq_queue_extension_unit ext;
    window.bytes = 0;
    status = address_at(queue, offset, &address);
    if (status == CMQ_OK) status = cmq_queue_extension_resolve(queue, address, &window, &ext);
    if (status != CMQ_OK) return CMQ_ERR_NOT_FOUND;
    *tags_code_out = ext.tags_code;
    *store_ms_out = ext.store_ms;
    *map_bytes_out = ext.map_bytes;
    if (ext.map_bytes > map_capacity)
        return cmq_fail(CMQ_ERR_TOO_LARGE, "the bit map has %u bytes, room is for %u", ext.map_bytes, map_capacity);
    if (ext.map_bytes == 0) return CMQ_OK;
    return cmq_queue_file_read(queue, CMQ_FOLDER_EXT, cmq_queue_extension_offset(address) + CMQ_EXT_HEAD_BYTES, map_out,
                              ext.map_bytes);
}

/* ---- writing ---- */

/* Where a unit of ours that is due at `next` really goes: into the next file when it does not fit. */
static int64_t place_at(const cmq_queue *queue, int64_t next)
{
    const int64_t file_bytes = queue->set->file_bytes[CMQ_FOLDER_EXT];
    const int64_t left = file_bytes - next % file_bytes;
    return CMQ_EXT_HEAD_BYTES > left - CMQ_EXT_END_BYTES ? next + left : next;
}

int64_t cmq_queue_extension_place(cmq_queue *queue)
{
    cmq_queue_extension *ext = cmq_queue_ext_of(queue);
    const int64_t place = place_at(queue, ext->next);
    /* Addresses end where plain tag hashes begin. */
    if (place > cmq_queue_extension_offset((int64_t)INT32_MIN - 1) - CMQ_EXT_UNIT_BYTES_MAX) return -1;
    ext->next = place + CMQ_EXT_HEAD_BYTES;
    return place;
}

static void encode(uint8_t *into, int64_t tags_code, int64_t store_ms)
{
    cmq_store_i16(into, CMQ_EXT_HEAD_BYTES);
    cmq_store_i64(into + 2, tags_code);
    cmq_store_i64(into + 10, store_ms);
    cmq_store_i16(into + 18, 0);
}

/* Write neighbouring units; when they begin in another file than the last ones ended in, that file gets its end mark
 * first. */
static cmq_status CMQ_MUST_CHECK write_run(cmq_queue *queue, cmq_queue_extension *ext, int64_t at, const uint8_t *run,
                                           size_t bytes)
{
    const int64_t file_bytes = queue->set->file_bytes[CMQ_FOLDER_EXT];
    if (at > ext->written && ext->written % file_bytes != 0 && ext->files.first >= 0) {
        uint8_t mark[2];
        cmq_store_i16(mark, END_MARK);
        const cmq_status status =
            cmq_queue_file_write(queue, CMQ_FOLDER_EXT, &ext->files, ext->written, mark, sizeof mark);
        if (status != CMQ_OK) return status;
    }
    const cmq_status status = cmq_queue_file_write(queue, CMQ_FOLDER_EXT, &ext->files, at, run, bytes);
    if (status == CMQ_OK) ext->written = at + (int64_t)bytes;
    return status;
}

cmq_status cmq_queue_extension_write(cmq_queue *queue, int64_t from, int64_t end)
{
    cmq_queue_extension *ext = cmq_queue_ext_of(queue);
    uint8_t run[WRITE_UNITS * CMQ_EXT_HEAD_BYTES];
    int64_t run_at = -1;      /* real offset of the gathered units */
    size_t run_bytes = 0;
    for (int64_t position = from; position <= end; position++) {
        int64_t at = -1, tags_code = 0, store_ms = 0;
        if (position < end) {
            uint32_t words[CMQ_QUEUE_EXT_WORDS];
            const bool there = cmq_queue_tail_copy(&queue->tail, position, 1, words);
            CMQ_ASSERT(there);   /* under the lock, and not flushed */
            const int64_t address = cmq_load_i64((const uint8_t *)words + 12);
            if (!cmq_tags_code_is_ext(address)) continue;
            at = cmq_queue_extension_offset(address);
            memcpy(&tags_code, words + CMQ_QUEUE_WORDS, sizeof tags_code);
            memcpy(&store_ms, words + CMQ_QUEUE_WORDS + 2, sizeof store_ms);
        }
        if (run_bytes > 0 && (at != run_at + (int64_t)run_bytes || run_bytes == sizeof run)) {
            const cmq_status status = write_run(queue, ext, run_at, run, run_bytes);
            if (status != CMQ_OK) return status;
            run_bytes = 0;
        }
        if (at < 0) break;
        if (run_bytes == 0) run_at = at;
        encode(run + run_bytes, tags_code, store_ms);
        run_bytes += CMQ_EXT_HEAD_BYTES;
    }
    return CMQ_OK;
}

/* ---- recovery and retention ---- */

/* Walk one file's sizes to the end of its units. */
static cmq_status CMQ_MUST_CHECK walk(const cmq_queue *queue, int64_t start, int64_t *end_out)
{
    const int64_t file_end = start + queue->set->file_bytes[CMQ_FOLDER_EXT];
    cmq_queue_extension_window window;
    window.bytes = 0;
    *end_out = start;
    while (file_end - *end_out >= CMQ_EXT_HEAD_BYTES) {
        const uint8_t *at;
        const cmq_status status = look(queue, *end_out, CMQ_EXT_HEAD_BYTES, &window, &at);
        if (status != CMQ_OK) return status;
        const int16_t size = cmq_load_i16(at);
        if (size < CMQ_EXT_HEAD_BYTES || size > file_end - *end_out) return CMQ_OK;
        *end_out += size;
    }
    return CMQ_OK;
}

/* An address in the queue whose unit is gone: new units must not get addresses that old units have, so they go on in
 * the file behind it. The remaining files stay only if that file can follow them. */
static cmq_status CMQ_MUST_CHECK skip_lost(cmq_queue *queue, cmq_queue_extension *ext, int64_t lost)
{
    const int64_t file_bytes = queue->set->file_bytes[CMQ_FOLDER_EXT];
    const int64_t next_start = (lost / file_bytes + 1) * file_bytes;
    ext->next = next_start;
    ext->written = next_start;
    if (ext->files.first < 0 || queue->set->read_only) return CMQ_OK;
    if (ext->files.end != next_start) return cmq_queue_drop_files(queue, CMQ_FOLDER_EXT, &ext->files);
    /* Bytes behind the units that can be read stay as they are: readers of other processes use them, and the end mark
     * that the next unit's write puts there ends the file. */
    return walk(queue, ext->files.end - file_bytes, &ext->written);
}

cmq_status cmq_queue_extension_recover(cmq_queue *queue, int64_t last_address)
{
    cmq_queue_extension *ext = cmq_queue_ext_of(queue);
    if (ext == NULL) return CMQ_OK;
    cmq_queue_extension_window window;
    cmq_queue_extension_unit unit;
    window.bytes = 0;
    int64_t end = 0;
    if (last_address != 0) {
        const int64_t last = cmq_queue_extension_offset(last_address);
        if (last < ext->files.first || last >= ext->files.end ||
            cmq_queue_extension_resolve(queue, last_address, &window, &unit) != CMQ_OK)
            return skip_lost(queue, ext, last);
        end = last + unit.size;
    } else if (ext->files.first >= 0) {
        const cmq_status status = walk(queue, ext->files.end - queue->set->file_bytes[CMQ_FOLDER_EXT], &end);
        if (status != CMQ_OK) return status;
    }
    ext->next = end;
    ext->written = end;
    if (ext->files.first < 0 || queue->set->read_only) return CMQ_OK;
    if (!queue->set->recovering) return cmq_queue_file_cut(queue, CMQ_FOLDER_EXT, &ext->files, end, 0);
    bool cut;
    const cmq_status status = cmq_queue_file_is_cut(queue, CMQ_FOLDER_EXT, &ext->files, end, 0, &cut);
    return status == CMQ_OK && !cut ? cmq_queue_cut_later(queue, CMQ_FOLDER_EXT) : status;
}

cmq_status cmq_queue_extension_expire(cmq_queue *queue, int64_t first_address)
{
    cmq_queue_extension *ext = cmq_queue_ext_of(queue);
    if (ext == NULL || queue->set->read_only || !cmq_tags_code_is_ext(first_address)) return CMQ_OK;
    const int64_t file_bytes = queue->set->file_bytes[CMQ_FOLDER_EXT];
    const int64_t keep = cmq_queue_extension_offset(first_address);
    while (ext->files.first >= 0 && ext->files.end - ext->files.first > file_bytes &&
           ext->files.first + file_bytes <= keep) {
        const cmq_status status = cmq_queue_file_remove(queue, CMQ_FOLDER_EXT, ext->files.first);
        if (status != CMQ_OK) return status;
        ext->files.first += file_bytes;
        ext->files.names_unsynced = true;
        cmq_queue_mark_unsynced(queue);
    }
    return CMQ_OK;
}
