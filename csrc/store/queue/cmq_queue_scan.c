/* cmq_queue_scan: many units at once: the tag filter over a queue, and the search for a border in it.
 *
 * Way of a scan: old units are scanned where they lie, in the mapped file, by cmq_tag_scan; units of the tail are
 * copied to the stack first. A few units of a file that is not mapped are read instead: mapping costs as much as
 * reading several thousand.
 * Filter: the low 32 bits of the tags code. A unit whose tags code is an address of the extension has to pass
 * cmq_tag_scan, which makes it several
 *         times slower, and is then looked at through what it resolves to; unknown passes. So each mapped file is
 *         looked through for addresses once, and scanned at full speed when it has none.
 * Damage: a block of a mapped file that differs from its sum (cmq_queue_sums) passes whole, empty units too, and so do
 *         a queue's newest units where they differ from theirs (cmq_queue_end_sums), units that are read, or lie behind
 *         the last complete block, where a unit's size is impossible, and a part of a file with a page that cannot be
 *         read: its records, which the caller looks at, know their tags. So a damaged unit is an error or a message,
 *         never a skip.
 */
#include <stddef.h>

#include "base/cmq_map_guard.h"
#include "store/queue/cmq_queue_end_sums.h"
#include "store/queue/cmq_queue_extension.h"
#include "store/queue/cmq_queue_file.h"
#include "store/queue/cmq_queue_internal.h"
#include "store/queue/cmq_queue_sums.h"
#include "store/queue/cmq_tag_scan.h"
#include "store/record/cmq_tags_code.h"

#define SCAN_UNITS 2048u        /* units per vector scan: the list of matches stays in the first-level cache */
#define COPY_UNITS 256u         /* units copied from the tail, or read from a file, per step */
#define HAS_ADDRESSES UINT64_MAX
#define MAP_UNITS_MIN 4096      /* fewer are read: a map costs 7 us and faults (spec native.md 7) */

typedef struct scan {
    cmq_queue *queue;
    const uint32_t *hashes;
    uint32_t hash_count;
    cmq_unit *units;
    uint32_t capacity;
    uint32_t count;
    cmq_queue_extension_window window;
} scan;

static bool wanted(const scan *of, int64_t tags_code)
{
    if (of->hash_count == 0 || cmq_tags_code_is_ext(tags_code)) return true;
    for (uint32_t i = 0; i < of->hash_count; i++)
        if ((uint32_t)tags_code == of->hashes[i]) return true;
    return false;
}

/* One unit into the output, when it passes; `any`: its tags code says nothing. There is room. */
static inline void take_image(scan *of, const uint8_t *image, int64_t position, bool any)
{
    cmq_unit unit = {.offset = position,
                     .phy = cmq_load_i64(image),
                     .tags_code = cmq_load_i64(image + 12),
                     .bytes = cmq_load_i32(image + 8),
                     .count = 1};
    cmq_queue_extension_unit ext;
    if (cmq_tags_code_is_ext(unit.tags_code) && cmq_queue_ext_of(of->queue) != NULL &&
        cmq_queue_extension_resolve(of->queue, unit.tags_code, &of->window, &ext) == CMQ_OK) {
        unit.tags_code = ext.tags_code;
        unit.store_ms = ext.store_ms;
        if (!any && !wanted(of, unit.tags_code)) return;
    }
    of->units[of->count++] = unit;
}

/* Take what matches of the `count` unit images at position `from`; returns how many of them were dealt with before the
 * output was full. `plain`: no tags code is an address. */
static uint32_t take_images(scan *of, const uint8_t *images, int64_t from, uint32_t count, bool plain)
{
    uint32_t matches[SCAN_UNITS];
    const unsigned flags = plain ? 0 : CMQ_TAGSCAN_EXT_PASSES;
    const uint32_t found = (uint32_t)cmq_tag_scan(images, count, of->hashes, of->hash_count, flags, matches);
    for (uint32_t i = 0; i < found; i++) {
        if (of->count == of->capacity) return matches[i];
        take_image(of, images + (size_t)matches[i] * CMQ_UNIT_BYTES, from + matches[i], false);
    }
    return count;
}

/* Take all units [from, end) of a part of a file that is damaged, but fillers; returns where the output was full. */
static int64_t take_doubtful(scan *of, const uint8_t *images, int64_t from, int64_t end)
{
    for (; from < end && of->count < of->capacity; from++, images += CMQ_UNIT_BYTES)
        if (!cmq_image_is_filler(images)) take_image(of, images, from, true);
    return from;
}

/* Has one of the units a size that no unit has, as in a page that reads as zeros? */
static bool have_impossible(const uint8_t *images, int64_t count)
{
    bool found = false;
    for (int64_t i = 0; i < count; i++) found |= cmq_load_i32(images + i * CMQ_UNIT_BYTES + 8) <= 0;
    return found;
}

/* Addresses begin with the byte 0x80, tag hashes with 0x00 or 0xff, deliver times with 0x00. */
static bool have_addresses(const uint8_t *images, uint64_t count)
{
    unsigned found = 0;
    for (uint64_t i = 0; i < count; i++) found |= images[i * CMQ_UNIT_BYTES + 12] == 0x80;
    return found != 0;
}

/* Whether the first `count` units of a mapped file are known to hold no address. The file's note is how many were
 * looked through. */
static bool is_plain(cmq_cachedfile *mapped, uint64_t count)
{
    uint64_t seen = atomic_load_explicit(&mapped->note, memory_order_relaxed);
    if (seen == HAS_ADDRESSES) return false;
    if (seen >= count) return true;
    const bool addresses = have_addresses(mapped->map + seen * CMQ_UNIT_BYTES, count - seen);
    /* Others may look at the same time: the note only rises. */
    const uint64_t note = addresses ? HAS_ADDRESSES : count;
    while (seen < note && !atomic_compare_exchange_weak_explicit(&mapped->note, &seen, note, memory_order_relaxed,
                                                                 memory_order_relaxed)) {
    }
    return !addresses;
}

/* Units [from, end) of one mapped file. */
static int64_t take_mapped(scan *of, const uint8_t *images, int64_t from, int64_t end, bool plain)
{
    while (from < end) {
        const uint32_t count = end - from < SCAN_UNITS ? (uint32_t)(end - from) : SCAN_UNITS;
        const uint32_t taken = take_images(of, images, from, count, plain);
        from += taken;
        if (taken < count) break;
        images += (size_t)count * CMQ_UNIT_BYTES;
    }
    return from;
}

/* Units [from, end) of one mapped file, which starts at unit `start`, block by block. Below `flushed` units are in the
 * files. */
static int64_t take_blocks(scan *of, cmq_cachedfile *mapped, int64_t start, int64_t from, int64_t end, int64_t flushed,
                           bool plain)
{
    const int64_t file_start = start * CMQ_UNIT_BYTES, whole_end = (flushed - start) * CMQ_UNIT_BYTES;
    /* The incomplete block at the end has no sum: its units are looked at. */
    const int64_t tail_start = whole_end < cmq_queue_file_bytes(of->queue)
                                   ? whole_end / CMQ_SUMS_BLOCK_BYTES * CMQ_SUMS_BLOCK_BYTES
                                   : INT64_MAX;
    while (from < end) {
        const int64_t at = (from - start) * CMQ_UNIT_BYTES;
        const int64_t sound =
            cmq_queue_sums_sound_until(of->queue, mapped, file_start, at, (end - start) * CMQ_UNIT_BYTES, whole_end);
        const bool tail = at + CMQ_UNIT_BYTES > tail_start;
        int64_t stop = start + (tail || sound < tail_start ? sound : tail_start) / CMQ_UNIT_BYTES;
        if (sound > at && !(tail && have_impossible(mapped->map + at, stop - from))) {
            from = take_mapped(of, mapped->map + at, from, stop, plain);
        } else {   /* up to the unit that lies across the block's end, with it */
            stop = start + (cmq_queue_sums_block_end(of->queue, at) + CMQ_UNIT_BYTES - 1) / CMQ_UNIT_BYTES;
            if (stop > end) stop = end;
            from = take_doubtful(of, mapped->map + at, from, stop);
        }
        if (from < stop) break;
    }
    return from;
}

/* Is a filter's scan from `at` on, in the file that starts at `start`, to be checked against sums? Only mapped files
 * are. */
static bool has_sums(const scan *of, int64_t start, int64_t at, int64_t flushed)
{
    const cmq_queue *queue = of->queue;
    return of->hash_count > 0 &&
           start * CMQ_UNIT_BYTES + cmq_queue_sums_block_end(queue, (at - start) * CMQ_UNIT_BYTES) <=
               flushed * CMQ_UNIT_BYTES;
}

/* Read the next few units of [from, end) from the files. */
static cmq_status CMQ_MUST_CHECK read_images(scan *of, int64_t from, int64_t end,
                                             uint8_t images[COPY_UNITS * CMQ_UNIT_BYTES], uint32_t *count_out)
{
    *count_out = end - from < COPY_UNITS ? (uint32_t)(end - from) : COPY_UNITS;
    of->window.bytes = 0;
    return cmq_queue_file_read(of->queue, CMQ_FOLDER_SIMPLE, from * CMQ_UNIT_BYTES, images,
                               (size_t)*count_out * CMQ_UNIT_BYTES);
}

/* One step over units of an end that differs from its sum. */
static cmq_status CMQ_MUST_CHECK step_doubtful(scan *of, int64_t *at, int64_t end)
{
    uint8_t images[COPY_UNITS * CMQ_UNIT_BYTES];
    uint32_t count;
    const cmq_status status = read_images(of, *at, end, images, &count);
    if (status == CMQ_OK) *at = take_doubtful(of, images, *at, *at + count);
    return status;
}

/* One step over units of a file, up to `end` at most; *at moves. The units were flushed before the step began: a window
 * read earlier may show older bytes in their place. */
static cmq_status CMQ_MUST_CHECK step_files(scan *of, int64_t *at, int64_t end)
{
    cmq_queue *queue = of->queue;
    of->window.bytes = 0;
    const int64_t file_units = cmq_queue_file_bytes(queue) / CMQ_UNIT_BYTES;
    const int64_t start = *at / file_units * file_units;
    if (end > start + file_units) end = start + file_units;
    cmq_cachedfile *mapped;
    const int64_t flushed = cmq_queue_tail_flushed(&queue->tail);
    const bool must = end - *at >= MAP_UNITS_MIN || has_sums(of, start, *at, flushed);
    cmq_status status = cmq_queue_file_map(queue, start * CMQ_UNIT_BYTES, must, &mapped);
    if (status != CMQ_OK) return status;
    if (mapped != NULL) {
        const bool plain =
            of->hash_count == 0 || (cmq_queue_ext_of(queue) == NULL && is_plain(mapped, (uint64_t)(end - start)));
        const int64_t from = *at;
        const uint8_t *images = mapped->map + (from - start) * CMQ_UNIT_BYTES;
        const uint32_t before = of->count;
        *at = take_blocks(of, mapped, start, from, end, flushed, plain);
        if (cmq_map_guard_is_lost(images, (size_t)(*at - from) * CMQ_UNIT_BYTES)) {
            of->count = before;
            *at = take_doubtful(of, images, from, *at);
        }
        cmq_file_cache_release(queue->set->maps, mapped);
        return CMQ_OK;
    }
    uint8_t images[COPY_UNITS * CMQ_UNIT_BYTES];
    uint32_t count;
    status = read_images(of, *at, end, images, &count);
    if (status != CMQ_OK) return status;
    if (have_impossible(images, count)) *at = take_doubtful(of, images, *at, *at + count);
    else *at += take_images(of, images, *at, count, false);
    return CMQ_OK;
}

/* One step over units that are decoded one by one: batch queues, and tails with an extension. `any`: all tags codes. */
static cmq_status CMQ_MUST_CHECK step_decoded(scan *of, int64_t *at, int64_t end, bool any, int64_t *offset_out)
{
    cmq_unit units[64];
    uint32_t count;
    const cmq_status status = cmq_queue_fetch(of->queue, *at, end, units, 64, &count);
    if (status != CMQ_OK) return status;
    if (count == 0) return CMQ_AGAIN;
    for (uint32_t i = 0; i < count && of->count < of->capacity; i++) {
        const cmq_unit *unit = &units[i];
        if (!cmq_unit_is_filler(unit) && (any || wanted(of, unit->tags_code))) of->units[of->count++] = *unit;
        *at += 1;
        *offset_out = unit->offset + unit->count;
    }
    return CMQ_OK;
}

/* A filter's scan alone is to be checked. */
static bool is_end_doubtful(const scan *of, int64_t at, int64_t *end)
{
    return of->hash_count > 0 && cmq_queue_end_sums_differ(of->queue, at, end);
}

/* One step over [*at, end), which is not empty; CMQ_AGAIN when there is nothing there any more. */
static cmq_status CMQ_MUST_CHECK step(scan *of, int64_t *at, int64_t end, int64_t *offset_out)
{
    const cmq_queue_tail *tail = &of->queue->tail;
    if (tail->unit_words == CMQ_BATCH_WORDS) {
        const bool doubtful = is_end_doubtful(of, *at, &end);   /* it moves `end` */
        return step_decoded(of, at, end, doubtful, offset_out);
    }
    if (*at >= cmq_queue_tail_lowest(tail)) {
        if (tail->unit_words != CMQ_QUEUE_WORDS) return step_decoded(of, at, end, false, offset_out);
        uint32_t words[COPY_UNITS * CMQ_QUEUE_WORDS];
        const uint32_t count = end - *at < COPY_UNITS ? (uint32_t)(end - *at) : COPY_UNITS;
        if (cmq_queue_tail_copy(tail, *at, count, words)) {
            *at += take_images(of, (const uint8_t *)words, *at, count,
                               true); /* plain: the tail of a queue without an extension */
            *offset_out = *at;
            return CMQ_OK;
        }
    }
    const int64_t flushed = cmq_queue_tail_flushed(tail);
    /* cut, or the ring was just replaced */
    if (*at >= flushed) return *at >= cmq_queue_tail_next(tail) ? CMQ_AGAIN : CMQ_OK;
    if (end > flushed) end = flushed;
    const bool doubtful = is_end_doubtful(of, *at, &end);
    const cmq_status status = doubtful ? step_doubtful(of, at, end) : step_files(of, at, end);
    *offset_out = *at;
    return status;
}

cmq_status cmq_queue_scan(cmq_queue *queue, int64_t from, int64_t confirmed_end, const uint32_t *hashes,
                          uint32_t hash_count, uint64_t examine_max, cmq_unit *units_out, uint32_t capacity,
                          uint32_t *count_out, int64_t *next_out)
{
    int64_t high, at;
    *count_out = 0;
    *next_out = from;
    cmq_status status = cmq_queue_place(queue, from, confirmed_end, &at, &high, next_out);
    if (status != CMQ_OK) return cmq_queue_missing_is_corrupt(status);
    if (at < high && (uint64_t)(high - at) > examine_max) high = at + (int64_t)examine_max;
    scan of;   /* field by field: zeroing the window would cost more than a short scan */
    of.queue = queue;
    of.hashes = hashes;
    of.hash_count = hash_count;
    of.units = units_out;
    of.capacity = capacity;
    of.count = 0;
    while (at < high && of.count < of.capacity && status == CMQ_OK) {
        status = step(&of, &at, high, next_out);
        if (cmq_queue_was_expired(queue, status, at, &at)) {
            status = CMQ_OK;
            *next_out = cmq_queue_min(queue);
        }
    }
    /* Files that were read may be those of a queue that took its place: deleting begins with the mark. */
    if (cmq_queue_deleted(queue)) return cmq_queue_place(queue, from, confirmed_end, &at, &high, next_out);
    *count_out = of.count;
    return of.count > 0 || status == CMQ_AGAIN ? CMQ_OK : cmq_queue_missing_is_corrupt(status);
}

/* ---- search ---- */

typedef struct border {
    cmq_queue_compare compare;
    void *context;
    int64_t offset;
} border;

static bool compare_reached(void *context, const cmq_unit *unit, cmq_status *status)
{
    border *of = context;
    const bool reached = of->compare(of->context, unit, status) >= 0;
    /* the search narrows from above: the last one passed is the first that reached */
    if (reached) of->offset = unit->offset;
    return reached;
}

cmq_status cmq_queue_search(cmq_queue *queue, int64_t low, int64_t high, int64_t confirmed_end,
                            cmq_queue_compare compare, void *context, int64_t *offset_out)
{
    int64_t end, at, unused;
    *offset_out = high;
    cmq_status status = cmq_queue_place(queue, high, confirmed_end, &end, &unused, &unused);
    if (status == CMQ_OK) status = cmq_queue_place(queue, low, confirmed_end, &at, &unused, &unused);
    if (status != CMQ_OK || at >= end) return cmq_queue_missing_is_corrupt(status);
    border of = {.compare = compare, .context = context, .offset = high};
    const cmq_queue_probe probe = {.reached = compare_reached, .context = &of};
    do {
        status = cmq_queue_first(queue, at, end, &probe, &unused);
    } while (cmq_queue_was_expired(queue, status, at, &at));
    if (status == CMQ_OK) *offset_out = of.offset;
    return cmq_queue_missing_is_corrupt(status);
}

/* ---- units of another process ---- */

/* The image at `position` of the files as they are now; CMQ_AGAIN when there is no unit. */
static cmq_status CMQ_MUST_CHECK image_in_file(const cmq_queue *queue, int64_t position, uint8_t *image)
{
    const uint32_t unit_bytes = cmq_queue_unit_bytes(queue);
    if (position < 0 || position > INT64_MAX / unit_bytes - 1) return CMQ_AGAIN;
    const cmq_status status =
        cmq_queue_file_read(queue, cmq_queue_folder(queue), position * unit_bytes, image, unit_bytes);
    /* Missing or still short: the other process is just making it. */
    if (status == CMQ_ERR_NOT_FOUND || status == CMQ_ERR_CORRUPT) return CMQ_AGAIN;
    if (status != CMQ_OK) return status;
    return cmq_image_end(image) == INT64_MAX || cmq_image_is_filler(image) ? CMQ_AGAIN : CMQ_OK;
}

/* Bases rise with positions: from the last unit known here on, until the base is reached. */
static cmq_status CMQ_MUST_CHECK batch_in_file(cmq_queue *queue, int64_t offset, cmq_unit *unit_out)
{
    const int64_t flushed = cmq_queue_tail_flushed(&queue->tail);
    const int64_t min = atomic_load_explicit(&queue->min, memory_order_acquire);
    int64_t position;
    cmq_status status = cmq_batch_queue_position(queue, offset, min, flushed, &position);
    for (; status == CMQ_OK; position++) {
        uint8_t image[CMQ_BATCH_UNIT_BYTES];
        status = image_in_file(queue, position, image);
        if (status != CMQ_OK) break;
        if (!cmq_batch_queue_valid(image)) return CMQ_AGAIN;
        cmq_batch_queue_decode(image, unit_out);
        if (unit_out->offset >= offset) return unit_out->offset == offset ? CMQ_OK : CMQ_AGAIN;
    }
    return status == CMQ_ERR_NOT_FOUND ? CMQ_AGAIN : status;
}

cmq_status cmq_queue_file_unit(cmq_queue *queue, int64_t offset, cmq_unit *unit_out)
{
    uint8_t image[CMQ_UNIT_BYTES];
    *unit_out = (cmq_unit){0};
    if (queue->tail.kind == CMQ_QUEUE_BATCH) return batch_in_file(queue, offset, unit_out);
    const cmq_status status = image_in_file(queue, offset, image);
    if (status != CMQ_OK) return status;
    *unit_out = (cmq_unit){.offset = offset,
                           .phy = cmq_load_i64(image),
                           .tags_code = cmq_load_i64(image + 12),
                           .bytes = cmq_load_i32(image + 8),
                           .count = 1};
    return CMQ_OK;
}
