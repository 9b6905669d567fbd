/* cmq_log_tail_scan: looks for bytes, and for whole records, where the log should hold none: behind its end, or behind
 * damage. And decides whether a record that is whole by its body's CRC is torn in its topic or properties
 * (docs/decisions/0003).
 *
 * A segment is mostly hole behind the end (1 GiB, sparse), so only what the file system calls data is read, a window at
 * a time. No byte of a hole is touched: tmpfs makes a page of each that is read through a mapping.
 */
#include <stdio.h>
#include <string.h>

#include "store/cmq_store_internal.h"

#define WINDOW_BYTES ((size_t)1 << 20)
#define SECTOR_BYTES 512

/* Open a segment's file to be asked where its data is; NULL when it cannot be: then all counts as data. */
static cmq_file *open_to_ask(const cmq_store *store, const cmq_segment *segment)
{
    cmq_file *file = NULL;
    return cmq_file_open(store->fs, cmq_segment_path(segment), CMQ_OPEN_READ, &file) == CMQ_OK ? file : NULL;
}

/* The bytes to search: [at, end). The file has data up to `hole`. */
typedef struct window {
    size_t at, end, hole;
} window;

/* The next window behind the last, within `available` bytes that begin at byte `base` of the file. Zeroed before the
 * first. */
static bool next_window(cmq_file *file, int64_t base, size_t available, window *w)
{
    uint64_t data, hole;
    w->at = w->end;
    w->hole = available;
    if (w->at >= available) return false;
    if (file != NULL) {
        const cmq_status status = cmq_file_next_data(file, (uint64_t)(base + (int64_t)w->at), &data);
        if (status == CMQ_END) return false;
        if (status == CMQ_OK && (int64_t)data - base > (int64_t)w->at) w->at = (size_t)((int64_t)data - base);
        if (w->at >= available) return false;
        if (status == CMQ_OK && cmq_file_next_hole(file, (uint64_t)(base + (int64_t)w->at), &hole) == CMQ_OK &&
            (int64_t)hole - base > (int64_t)w->at && (int64_t)hole - base < (int64_t)available)
            w->hole = (size_t)((int64_t)hole - base);
    }
    w->end = w->hole - w->at > WINDOW_BYTES ? w->at + WINDOW_BYTES : w->hole;
    return true;
}

/* The first whole record that starts in the window; it may end behind it, at `available` at the latest. */
static bool find_in_window(const uint8_t *data, const window *w, size_t available, int64_t from,
                           cmq_record_view *view_out)
{
    static const uint8_t magic_start[3] = {0xDA, 0xA3, 0x20};   /* both versions */
    size_t at = w->at;
    while (at < w->end && w->hole - at >= CMQ_RECORD_AT_MAGIC + sizeof magic_start) {
        const size_t span = w->end - at + CMQ_RECORD_AT_MAGIC + sizeof magic_start;
        const size_t look = span < w->hole - at ? span : w->hole - at;
        const uint8_t *hit =
            memmem(data + at + CMQ_RECORD_AT_MAGIC, look - CMQ_RECORD_AT_MAGIC, magic_start, sizeof magic_start);
        if (hit == NULL) return false;
        at = (size_t)(hit - data) - CMQ_RECORD_AT_MAGIC;
        if (at >= w->end) return false;
        if (cmq_record_parse(data + at, available - at, from + (int64_t)at, CMQ_RECORD_CHECK_BODY_CRC, view_out) ==
            CMQ_OK)
            return true;
        at++;
    }
    return false;
}

bool cmq_store_find_sound(cmq_store *store, int64_t from, cmq_record_view *view_out)
{
    cmq_segment *segment;
    const uint8_t *data;
    size_t available;
    window w = {0};
    bool found = false;
    if (cmq_log_pin(store->log, from, &segment, &data, &available) != CMQ_OK) return false;
    cmq_file *file = open_to_ask(store, segment);
    /* A record that begins before the window's data can not be whole, so nothing is missed between windows but at their
     * seams, which the search's overlap covers. */
    while (!found && next_window(file, from - cmq_segment_start(segment), available, &w))
        found = find_in_window(data, &w, available, from, view_out);
    cmq_file_close(file);
    cmq_segment_unpin(segment);
    return found;
}

void cmq_store_damage_reason(char into[CMQ_DAMAGE_REASON_BYTES])
{
    static const char opening[] = "no record: ";
    const char *text = cmq_last_error()->text;
    if (strncmp(text, opening, sizeof opening - 1) == 0) text += sizeof opening - 1;
    snprintf(into, CMQ_DAMAGE_REASON_BYTES, "%.*s", CMQ_DAMAGE_REASON_BYTES - 1, text);
}

static bool is_zero(const uint8_t *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (bytes[i] != 0) return false;
    return true;
}

void cmq_store_learn_bounds(cmq_store *store)
{
    cmq_durable_point point;
    store->known_end = 0;
    store->marked_from = INT64_MAX;
    /* After a Java broker's visit neither says anything of this log. */
    if (!cmq_store_last_point(store, &point)) return;
    /* A page that cannot be read proves nothing. */
    if (cmq_follow_acknowledged(store->fs, store->root, &store->acknowledged_end) != CMQ_OK)
        store->acknowledged_end = 0;
    store->known_end = point.log_end > store->acknowledged_end ? point.log_end : store->acknowledged_end;
    if (point.marks) store->marked_from = point.log_end;
}

/* Could the properties be those of a record that lost sectors? Unwritten bytes read as zeros: to the end, where a write
 * stopped half way; a sector in the middle, where the power went. */
static bool looks_torn(const cmq_store *store, const cmq_record_view *view)
{
    if (memchr(view->topic.data, 0, view->topic.bytes) != NULL) return true;
    const uint8_t *properties = view->properties.data;
    if (view->properties.bytes > 0 && properties[view->properties.bytes - 1] == 0) return true;
    const int64_t end = view->physical_offset % cmq_log_segment_bytes(store->log) + view->record_bytes;
    const int64_t begin = end - (int64_t)view->properties.bytes;
    for (int64_t sector = (begin + SECTOR_BYTES - 1) / SECTOR_BYTES * SECTOR_BYTES; sector < end;
         sector += SECTOR_BYTES) {
        const int64_t left = end - sector;
        if (sector > begin && properties[sector - begin - 1] == 0) continue;
        if (is_zero(properties + (sector - begin), (size_t)(left < SECTOR_BYTES ? left : SECTOR_BYTES))) return true;
    }
    return false;
}

/* Does the log go on where the record ends, with a whole record that is not older, or with the blank that ends the
 * segment? */
static bool is_continued(cmq_store *store, const cmq_record_view *view)
{
    const int64_t bytes = cmq_log_segment_bytes(store->log), end = view->physical_offset + view->record_bytes;
    cmq_segment *segment;
    cmq_record_view next;
    const cmq_status status =
        cmq_store_record_at(store, end, cmq_log_last_file_end(store->log), CMQ_RECORD_CHECK_BODY_CRC, &segment, &next);
    if (status == CMQ_END) return next.record_bytes == bytes - end % bytes;
    if (status != CMQ_OK) return false;
    cmq_segment_unpin(segment);
    return next.store_timestamp_ms >= view->store_timestamp_ms;
}

bool cmq_store_is_torn(cmq_store *store, const cmq_record_view *view)
{
    if (view->physical_offset < store->known_end) return false;
    const cmq_record_proof proof = cmq_record_prove(view);
    if (proof == CMQ_RECORD_PROVEN) return false;
    if (proof == CMQ_RECORD_UNPROVEN && !cmq_record_has_zero(view)) return false;
    if (view->physical_offset >= store->marked_from) return true;   /* it had its proof when it was written */
    /* Written by a program that left no proof, or took a producer's property for one: the bytes behind it decide. */
    return (proof == CMQ_RECORD_CONTRADICTED || looks_torn(store, view)) && !is_continued(store, view);
}

/* How many of these bytes up to the last that is not zero. In steps of a cache line: behind the end lie up to a
 * segment's worth of pages that were made ahead, all zeros. */
static size_t bytes_to_last(const uint8_t *data, size_t bytes)
{
    uint64_t words[8];
    while (bytes >= sizeof words) {
        memcpy(words, data + bytes - sizeof words, sizeof words);
        if ((words[0] | words[1] | words[2] | words[3] | words[4] | words[5] | words[6] | words[7]) != 0) break;
        bytes -= sizeof words;
    }
    while (bytes > 0 && data[bytes - 1] == 0) bytes--;
    return bytes;
}

int64_t cmq_store_bytes_behind(cmq_store *store, int64_t end_of_log)
{
    cmq_segment *segment;
    const uint8_t *data;
    size_t available, last = 0;
    window w = {0};
    if (end_of_log >= cmq_log_last_file_end(store->log) ||
        cmq_log_pin(store->log, end_of_log, &segment, &data, &available) != CMQ_OK)
        return 0;
    cmq_file *file = open_to_ask(store, segment);
    while (next_window(file, end_of_log - cmq_segment_start(segment), available, &w)) {
        const size_t bytes = bytes_to_last(data + w.at, w.end - w.at);
        if (bytes > 0) last = w.at + bytes;
        if (cmq_map_guard_is_lost(data + w.at, w.end - w.at)) last = w.end;   /* lost bytes are not known to be zeros */
    }
    cmq_file_close(file);
    cmq_segment_unpin(segment);
    return (int64_t)last;
}

/* Was the record, which lies behind a place where reading stopped, once flushed and acknowledged?
 * (docs/decisions/0003) */
static bool was_flushed(const cmq_store *store, int64_t last_phy, int64_t last_ms, bool unclean,
                        const cmq_record_view *view)
{
    const cmq_checkpoint *checkpoint = &store->checkpoint;
    if (view->physical_offset < store->known_end) return true;   /* also where its last record was damaged since: the
                                                                  * log reached so far */
    if (last_phy >= 0 && view->store_timestamp_ms < last_ms) return false;   /* stale bytes of before an earlier cut */
    /* The last recovery chose to cut here, and nothing newer was flushed since. */
    const bool chosen = checkpoint->confirm_phy == last_phy && checkpoint->physic_ms <= last_ms;
    return !chosen && (!unclean || view->store_timestamp_ms < checkpoint->physic_ms);
}

bool cmq_store_flushed_behind(cmq_store *store, int64_t end, int64_t last_phy, int64_t last_ms, bool unclean,
                              cmq_record_view *view_out)
{
    const int64_t bytes = cmq_log_segment_bytes(store->log), limit = cmq_log_last_file_end(store->log);
    for (int64_t from = end; from < limit; from = from - from % bytes + bytes)
        if (cmq_store_find_sound(store, from, view_out) && was_flushed(store, last_phy, last_ms, unclean, view_out))
            return true;
    return false;
}
