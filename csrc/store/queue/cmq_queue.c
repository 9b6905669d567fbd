/* cmq_queue: units of one queue: put into the tail, made room for, read, scanned. See cmq_queue.h for the contract.
 *
 * Where a reader finds a unit: in the tail if it is there (no lock, no system call), else below `flushed` in the files.
 * The tail is tried first, because units leave it only after they are in the files.
 */
#include "store/queue/cmq_queue.h"

#include <string.h>

#include "base/cmq_assert.h"
#include "store/queue/cmq_queue_extension.h"
#include "store/queue/cmq_queue_file.h"
#include "store/queue/cmq_queue_internal.h"
#include "store/record/cmq_tags_code.h"

#define FETCH_UNITS 204u              /* units per read of a file: a page of 20-byte units */
#define BACK_UNITS 64u                /* units per step of a read backwards */
#define BATCH_OFFSETS_MAX INT16_MAX

/* ---- identity ---- */

const char *cmq_queue_topic(const cmq_queue *queue) { return queue->topic->name; }
uint32_t cmq_queue_topic_bytes(const cmq_queue *queue) { return queue->topic->bytes; }
int32_t cmq_queue_id(const cmq_queue *queue) { return queue->id; }
cmq_queue_kind cmq_queue_kind_of(const cmq_queue *queue) { return (cmq_queue_kind)queue->tail.kind; }
bool cmq_queue_deleted(const cmq_queue *queue)
{
    return (atomic_load_explicit(&queue->tail.marks, memory_order_acquire) & CMQ_MARK_DELETED) != 0;
}
uint32_t cmq_queue_index_seed(const cmq_queue *queue) { return queue->topic->index_seed; }
uint32_t cmq_queue_index(const cmq_queue *queue) { return queue->index; }

/* ---- writer ---- */

static int64_t next_position(const cmq_queue *queue)
{
    return atomic_load_explicit(&queue->tail.next, memory_order_relaxed);
}

int64_t cmq_queue_next(const cmq_queue *queue)
{
    return queue->tail.kind == CMQ_QUEUE_BATCH ? cmq_queue_batch(queue)->next_offset : next_position(queue);
}

static void store_word(_Atomic uint32_t *word, uint32_t value)
{
    atomic_store_explicit(word, value, memory_order_release);
}

/* A unit's 20 bytes as words whose memory order is the file's. */
static inline void store_unit(_Atomic uint32_t *words, int64_t phy, int32_t bytes, int64_t tags_code)
{
    store_word(words, __builtin_bswap32((uint32_t)((uint64_t)phy >> 32)));
    store_word(words + 1, __builtin_bswap32((uint32_t)phy));
    store_word(words + 2, __builtin_bswap32((uint32_t)bytes));
    store_word(words + 3, __builtin_bswap32((uint32_t)((uint64_t)tags_code >> 32)));
    store_word(words + 4, __builtin_bswap32((uint32_t)tags_code));
}

/* With the plain tags code and the store time behind it, in host order: they are for readers, and for the extension's
 * file. */
static void put_ext(cmq_queue *queue, int64_t phy, int32_t bytes, int64_t tags_code, int64_t store_ms)
{
    const int64_t place = tags_code == CMQ_GAP_TAGS_CODE ? -1 : cmq_queue_extension_place(queue);
    _Atomic uint32_t *words = cmq_queue_tail_slot(&queue->tail, CMQ_QUEUE_EXT_WORDS);
    store_unit(words, phy, bytes, place < 0 ? tags_code : cmq_queue_extension_address(place));
    store_word(words + CMQ_QUEUE_WORDS, (uint32_t)tags_code);
    store_word(words + CMQ_QUEUE_WORDS + 1, (uint32_t)((uint64_t)tags_code >> 32));
    store_word(words + CMQ_QUEUE_WORDS + 2, (uint32_t)store_ms);
    store_word(words + CMQ_QUEUE_WORDS + 3, (uint32_t)((uint64_t)store_ms >> 32));
    cmq_queue_tail_publish(&queue->tail);
}

static void put_batch(cmq_queue *queue, int64_t phy, int32_t bytes, int64_t tags_code, int64_t store_ms, int32_t count)
{
    uint32_t words[CMQ_BATCH_WORDS] = {0};
    cmq_batch_queue *batch = cmq_queue_batch(queue);
    CMQ_ASSERT(count > 0 && count <= BATCH_OFFSETS_MAX);
    const cmq_unit unit = {.offset = batch->next_offset,
                           .phy = phy,
                           .tags_code = tags_code,
                           .store_ms = store_ms,
                           .bytes = bytes,
                           .count = count};
    cmq_batch_queue_encode((uint8_t *)words, &unit);
    batch->next_offset += count;
    cmq_queue_tail_put(&queue->tail, words, CMQ_BATCH_WORDS);
}

/* The longer units, out of the way of the common one. */
__attribute__((noinline)) static void put_long(cmq_queue *queue, int64_t phy, int32_t bytes, int64_t tags_code,
                                               int64_t store_ms, int32_t count)
{
    if (queue->tail.kind == CMQ_QUEUE_BATCH)
        put_batch(queue, phy, bytes, tags_code, store_ms, count);
    else
        put_ext(queue, phy, bytes, tags_code, store_ms);
    cmq_queue_mark_dirty(queue);
}

void cmq_queue_put(cmq_queue *queue, int64_t phy, int32_t bytes, int64_t tags_code, int64_t store_ms, int32_t count)
{
    CMQ_ASSERT(next_position(queue) < queue->room_until);
    /* Before `next`: a reader that sees the unit sees where the last record ends. A filler says nothing about the
     * log. */
    if (__builtin_expect(tags_code != CMQ_GAP_TAGS_CODE, 1))
        atomic_store_explicit(&queue->last_end, phy + bytes, memory_order_release);
    if (__builtin_expect(queue->tail.unit_words != CMQ_QUEUE_WORDS, 0)) {
        put_long(queue, phy, bytes, tags_code, store_ms, count);
        return;
    }
    store_unit(cmq_queue_tail_slot(&queue->tail, CMQ_QUEUE_WORDS), phy, bytes, tags_code);
    cmq_queue_tail_publish(&queue->tail);
    /* After `next`, and a store without a look: a flush that took the mark just before sees the unit or the mark
     * again. */
    cmq_queue_mark_dirty(queue);
}

/* Positions below may be put: half a ring ahead at most, so that the flush is asked for before the ring is full. */
static void set_room(cmq_queue *queue, uint32_t units)
{
    const cmq_tailring *ring = atomic_load_explicit(&queue->tail.ring, memory_order_relaxed);
    const int64_t next = next_position(queue);
    const int64_t end = cmq_queue_tail_flushed(&queue->tail) + ring->capacity;
    int64_t until = next + (units > ring->capacity / 2 ? units : ring->capacity / 2);
    if (until > end) until = end;
    queue->room_until = until;
    if (ring->capacity >= CMQ_TAIL_UNITS_HOT / 16 && end - next < ring->capacity / 2)
        atomic_store_explicit(&queue->set->flush_wanted, true, memory_order_release);
}

static bool has_room(const cmq_queue *queue, uint32_t units)
{
    const cmq_tailring *ring = atomic_load_explicit(&queue->tail.ring, memory_order_relaxed);
    return ring != NULL && next_position(queue) - cmq_queue_tail_flushed(&queue->tail) + units <= ring->capacity;
}

/* A larger ring, with twice the room that is needed now. */
static cmq_status CMQ_MUST_CHECK grow_tail(cmq_queue *queue, uint64_t held, uint32_t units)
{
    const uint64_t wanted = held + units;
    if (wanted > CMQ_TAIL_UNITS_MAX) return CMQ_AGAIN;
    cmq_tailring *ring = cmq_tail_pool_take(queue->set->pool, queue->tail.unit_words, (uint32_t)wanted);
    if (ring == NULL)
        return cmq_fail(CMQ_ERR_MEMORY, "no memory for the tail of queue %s/%d", queue->topic->name, (int)queue->id);
    cmq_queue_lock(queue);
    cmq_tailring *old = cmq_queue_tail_replace(&queue->tail, ring);
    cmq_queue_unlock(queue);
    cmq_tail_pool_give(queue->set->pool, old);
    return CMQ_OK;
}

/* Write confirmed units so that their slots are free again. */
static cmq_status CMQ_MUST_CHECK write_confirmed(cmq_queue *queue, int64_t confirmed_end)
{
    if (queue->set->read_only) return CMQ_OK;   /* somebody else writes the files */
    cmq_queue_lock(queue);
    const int64_t end = cmq_queue_visible(queue, confirmed_end);
    cmq_status status = CMQ_OK;
    if (end > cmq_queue_tail_flushed(&queue->tail)) status = cmq_queue_write_tail(queue, end);
    cmq_queue_unlock(queue);
    return status;
}

static cmq_status CMQ_MUST_CHECK make_room_slowly(cmq_queue *queue, uint32_t units, int64_t confirmed_end)
{
    cmq_queues *set = queue->set;
    if (has_room(queue, units)) {
        set_room(queue, units);
        return CMQ_OK;
    }
    if (set->windows != NULL) cmq_queues_end_reput(set);
    const cmq_tailring *ring = atomic_load_explicit(&queue->tail.ring, memory_order_relaxed);
    const uint32_t capacity = ring == NULL ? 0 : ring->capacity;
    const uint64_t held = (uint64_t)(next_position(queue) - cmq_queue_tail_flushed(&queue->tail));
    if (cmq_tail_pool_used_bytes(set->pool) > CMQ_TAIL_BYTES_SOFT) cmq_queues_cool(set, 64);
    const bool may_grow = capacity < CMQ_TAIL_UNITS_HOT && (capacity < CMQ_TAIL_UNITS_ALWAYS ||
                                                            cmq_tail_pool_used_bytes(set->pool) <= CMQ_TAIL_BYTES_SOFT);
    cmq_status status = CMQ_OK;
    if (!may_grow && held > 0) status = write_confirmed(queue, confirmed_end);
    if (!has_room(queue, units)) {
        /* Not confirmed yet, or the disk is full: the tail takes it as long as it can. */
        const uint64_t held_now = (uint64_t)(next_position(queue) - cmq_queue_tail_flushed(&queue->tail));
        const cmq_status grown = grow_tail(queue, held_now, units);
        if (grown != CMQ_OK) return status != CMQ_OK ? cmq_queue_missing_is_corrupt(status) : grown;
    }
    set_room(queue, units);
    return CMQ_OK;
}

cmq_status cmq_queue_make_room(cmq_queue *queue, uint32_t units, int64_t confirmed_end)
{
    queue->tail.heat = (uint8_t)((queue->tail.heat & ~CMQ_HEAT_TURN) | queue->set->turn | CMQ_HEAT_TOUCHED);
    if (__builtin_expect(next_position(queue) + units <= queue->room_until, 1)) return CMQ_OK;
    return make_room_slowly(queue, units, confirmed_end);
}

void cmq_queue_reset_tail(cmq_queue *queue, int64_t position)
{
    cmq_tail_pool_give(queue->set->pool, cmq_queue_tail_reset(&queue->tail, position));
    queue->room_until = position;
    queue->files.sum_known = false;
}

/* ---- positions ---- */

static void decode(const cmq_queue *queue, int64_t position, const uint8_t *image, cmq_unit *unit_out)
{
    if (queue->tail.kind == CMQ_QUEUE_BATCH) {
        cmq_batch_queue_decode(image, unit_out);
        return;
    }
    *unit_out = (cmq_unit){.offset = position,
                           .phy = cmq_load_i64(image),
                           .tags_code = cmq_load_i64(image + 12),
                           .bytes = cmq_load_i32(image + 8),
                           .count = 1};
}

/* From the tail; false when it is not there (any more). */
static bool fetch_tail(const cmq_queue *queue, int64_t from, uint32_t count, cmq_unit *units_out)
{
    uint32_t words[16 * CMQ_WORDS_MAX];
    const uint32_t unit_words = queue->tail.unit_words;
    while (count > 0) {
        const uint32_t chunk = count < 16 ? count : 16;
        if (!cmq_queue_tail_copy(&queue->tail, from, chunk, words)) return false;
        for (uint32_t i = 0; i < chunk; i++) {
            const uint32_t *unit = words + (size_t)i * unit_words;
            decode(queue, from + i, (const uint8_t *)unit, &units_out[i]);
            if (unit_words != CMQ_QUEUE_EXT_WORDS) continue;
            memcpy(&units_out[i].tags_code, unit + CMQ_QUEUE_WORDS, sizeof units_out[i].tags_code);
            memcpy(&units_out[i].store_ms, unit + CMQ_QUEUE_WORDS + 2, sizeof units_out[i].store_ms);
        }
        units_out += chunk;
        from += chunk;
        count -= chunk;
    }
    return true;
}

/* Replace addresses of the extension by their tags codes; unknown ones stay. */
static void resolve_all(const cmq_queue *queue, cmq_unit *units, uint32_t count)
{
    cmq_queue_extension_window window;
    window.bytes = 0;
    for (uint32_t i = 0; i < count; i++) {
        cmq_queue_extension_unit unit;
        if (cmq_queue_extension_resolve(queue, units[i].tags_code, &window, &unit) != CMQ_OK) continue;
        units[i].tags_code = unit.tags_code;
        units[i].store_ms = unit.store_ms;
    }
}

static cmq_status CMQ_MUST_CHECK fetch_files(const cmq_queue *queue, int64_t from, uint32_t count, cmq_unit *units_out)
{
    uint8_t images[FETCH_UNITS * CMQ_BATCH_UNIT_BYTES];
    const uint32_t unit_bytes = cmq_queue_unit_bytes(queue);
    const cmq_status status =
        cmq_queue_file_read(queue, cmq_queue_folder(queue), from * unit_bytes, images, (size_t)count * unit_bytes);
    if (status != CMQ_OK) return status;
    bool ext = false;
    for (uint32_t i = 0; i < count; i++) {
        decode(queue, from + i, images + (size_t)i * unit_bytes, &units_out[i]);
        ext |= queue->tail.kind == CMQ_QUEUE_SIMPLE && cmq_tags_code_is_ext(units_out[i].tags_code);
    }
    if (ext && cmq_queue_ext_of(queue) != NULL) resolve_all(queue, units_out, count);
    return CMQ_OK;
}

cmq_status cmq_queue_fetch(cmq_queue *queue, int64_t from, int64_t limit, cmq_unit *units_out, uint32_t capacity,
                           uint32_t *count_out)
{
    *count_out = 0;
    if (from >= limit || capacity == 0) return CMQ_OK;
    const int64_t left = limit - from;
    const uint32_t wanted = left < capacity ? (uint32_t)left : capacity;
    for (;;) {
        const int64_t lowest = cmq_queue_tail_lowest(&queue->tail);
        if (from >= lowest) {
            const uint32_t count = wanted < FETCH_UNITS ? wanted : FETCH_UNITS;
            if (fetch_tail(queue, from, count, units_out)) {
                *count_out = count;
                return CMQ_OK;
            }
        }
        const int64_t flushed = cmq_queue_tail_flushed(&queue->tail);
        if (from >= flushed) {
            if (from >= cmq_queue_tail_next(&queue->tail)) return CMQ_OK;   /* cut meanwhile: nothing there */
            /* the ring was replaced just now: look again */
            continue;
        }
        /* Not across files: the units of one come before the failure of the next. */
        const int64_t in_files = flushed - from, file_units = cmq_queue_file_bytes(queue) / cmq_queue_unit_bytes(queue);
        const int64_t in_file = file_units - from % file_units, left_there = in_files < in_file ? in_files : in_file;
        uint32_t count = wanted < FETCH_UNITS ? wanted : FETCH_UNITS;
        if (left_there < count) count = (uint32_t)left_there;
        const cmq_status status = fetch_files(queue, from, count, units_out);
        /* Those may be the files of a queue that took its place: deleting begins with the mark. */
        if (cmq_queue_deleted(queue)) return CMQ_OK;
        if (status == CMQ_OK) *count_out = count;
        return status;
    }
}

bool cmq_unit_ends_after(void *context, const cmq_unit *unit, cmq_status *status)
{
    (void)status;
    return unit->bytes > *(const int64_t *)context - unit->phy;
}

/* Where a probe looks: the unit that it judges, and the first position that goes with it; high where there is none. */
typedef struct judged {
    cmq_unit unit;
    int64_t first, at;
} judged;

static bool judge(const cmq_queue_probe *probe, const cmq_unit *unit, int64_t position, judged *out)
{
    if (cmq_unit_is_filler(unit)) return false;
    if (position < out->first) out->first = position;
    if (probe->damaged_as_next && cmq_unit_is_damaged(unit)) return false;
    out->unit = *unit;
    out->at = position;
    return true;
}

/* The first unit in [at, high) to be judged. Fillers come in runs. */
static cmq_status CMQ_MUST_CHECK next_judged(cmq_queue *queue, int64_t at, int64_t high, const cmq_queue_probe *probe,
                                             judged *out)
{
    cmq_unit units[16];
    uint32_t count, wanted = 1;
    out->first = out->at = high;
    for (; at < high; at += count, wanted = 16) {
        const cmq_status status = cmq_queue_fetch(queue, at, high, units, wanted, &count);
        if (status != CMQ_OK || count == 0) return status;
        for (uint32_t i = 0; i < count; i++)
            if (judge(probe, &units[i], at + i, out)) return CMQ_OK;
    }
    return CMQ_OK;
}

cmq_status cmq_queue_first(cmq_queue *queue, int64_t low, int64_t high, const cmq_queue_probe *probe,
                           int64_t *position_out)
{
    const int64_t end = high;
    int64_t found = end;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        judged next;
        cmq_status status = next_judged(queue, middle, high, probe, &next);
        bool reached = next.at >= high;   /* nothing to judge up to high: the answer lies before, or is `found` */
        if (status == CMQ_OK && !reached) reached = probe->reached(probe->context, &next.unit, &status);
        if (status == CMQ_OK && reached && next.first < high) found = next.first;
        if (status != CMQ_OK) return status;
        if (reached)
            high = middle;
        else
            low = next.at + 1;
    }
    *position_out = found;
    return CMQ_OK;
}

/* Retention deletes segments of the log before files of queues. Has it deleted any since the queues' mins were last
 * corrected? */
static bool has_log_moved(const cmq_queues *set)
{
    const cmq_queues_log_min *log_min = &set->log_min;
    const int64_t corrected = atomic_load_explicit(&set->corrected_to, memory_order_acquire);
    return log_min->of == NULL || corrected < 0 || log_min->of(log_min->context) > corrected;
}

/* Is the file with this position gone? */
static bool is_file_gone(const cmq_queue *queue, int64_t position)
{
    const int64_t file_bytes = cmq_queue_file_bytes(queue);
    char path[CMQ_PATH_BYTES];
    cmq_file_info info;
    cmq_status status = cmq_queue_file_path(queue, cmq_queue_folder(queue),
                                            position * cmq_queue_unit_bytes(queue) / file_bytes * file_bytes, path);
    if (status == CMQ_OK) status = cmq_fs_stat(queue->set->fs, path, &info);
    return status == CMQ_ERR_NOT_FOUND;
}

/* Another process deletes files here, and nobody else may have noticed yet: the file behind the one that starts at byte
 * `missed` is the first. From the queue's first file on, and after the log's: else it is no retention but damage. */
static void raise_min(const cmq_queue *queue, int64_t missed)
{
    _Atomic int64_t *at = (_Atomic int64_t *)&queue->min;
    const bool moved = has_log_moved(queue->set);   /* before min is read: it is corrected first, then marked */
    int64_t min = atomic_load_explicit(at, memory_order_acquire);
    int64_t behind = (missed + cmq_queue_file_bytes(queue)) / cmq_queue_unit_bytes(queue);
    const int64_t flushed = cmq_queue_tail_flushed(&queue->tail);
    if (min >= behind || min >= flushed || !moved || !is_file_gone(queue, min)) return;
    if (behind > flushed) behind = flushed;
    while (min < behind &&
           !atomic_compare_exchange_weak_explicit(at, &min, behind, memory_order_acq_rel, memory_order_acquire)) {
    }
}

bool cmq_queue_was_expired(const cmq_queue *queue, cmq_status status, int64_t position, int64_t *min_out)
{
    if (status != CMQ_ERR_NOT_FOUND) return false;
    if (queue->set->read_only) {
        const cmq_error error = *cmq_last_error();
        raise_min(queue, error.offset);
        (void)cmq_fail_again(&error);
    }
    const int64_t min = atomic_load_explicit(&queue->min, memory_order_acquire);
    if (min <= position) return false;
    *min_out = min;
    return true;
}

int64_t cmq_queue_visible(cmq_queue *queue, int64_t confirmed_end)
{
    const int64_t next = cmq_queue_tail_next(&queue->tail);
    if (atomic_load_explicit(&queue->last_end, memory_order_acquire) <= confirmed_end) return next;
    const cmq_queue_probe probe = {.reached = cmq_unit_ends_after, .context = &confirmed_end};
    const int64_t lowest = cmq_queue_tail_lowest(&queue->tail);
    int64_t min = atomic_load_explicit(&queue->min, memory_order_acquire), end;
    /* Most often the border lies in the tail; and there no file can fail. */
    if (lowest > min && lowest < next && cmq_queue_first(queue, lowest, next, &probe, &end) == CMQ_OK && end > lowest)
        return end;
    for (;;) {
        if (min >= next) return next;
        const cmq_status status = cmq_queue_first(queue, min, next, &probe, &end);
        if (status == CMQ_OK) return end;
        if (!cmq_queue_was_expired(queue, status, min, &min)) return min;
    }
}

/* ---- reader ---- */

bool cmq_queue_begun(const cmq_queue *queue) { return cmq_queue_tail_next(&queue->tail) > 0; }

int64_t cmq_queue_min(const cmq_queue *queue)
{
    if (queue->tail.kind == CMQ_QUEUE_BATCH)
        return atomic_load_explicit(&cmq_queue_batch(queue)->min_offset, memory_order_acquire);
    return atomic_load_explicit(&queue->min, memory_order_acquire);
}

int64_t cmq_queue_max(const cmq_queue *queue, int64_t confirmed_end)
{
    cmq_queue *of = (cmq_queue *)queue;   /* reading changes nothing but the caches */
    const int64_t visible = cmq_queue_visible(of, confirmed_end);
    if (queue->tail.kind == CMQ_QUEUE_SIMPLE) {
        const int64_t min = atomic_load_explicit(&queue->min, memory_order_acquire);
        return visible < min ? min : visible;
    }
    cmq_unit last;
    uint32_t count;
    const int64_t min_offset = cmq_queue_min(queue);
    if (visible <= atomic_load_explicit(&queue->min, memory_order_acquire)) return min_offset;
    if (cmq_queue_fetch(of, visible - 1, visible, &last, 1, &count) != CMQ_OK || count == 0) return min_offset;
    return last.offset + last.count;
}

void cmq_queue_readable(cmq_queue *queue, int64_t confirmed_end, int64_t *low_out, int64_t *high_out)
{
    *high_out = cmq_queue_visible(queue, confirmed_end);
    *low_out = atomic_load_explicit(&queue->min, memory_order_acquire);
    if (*high_out < *low_out) *high_out = *low_out;
}

static cmq_status CMQ_MUST_CHECK position_of(cmq_queue *queue, int64_t offset, int64_t low, int64_t high,
                                             int64_t *position_out, int64_t *offset_out)
{
    if (queue->tail.kind == CMQ_QUEUE_BATCH) {
        const int64_t min_offset = cmq_queue_min(queue);
        *offset_out = offset < min_offset ? min_offset : offset;
        return cmq_batch_queue_position_for_read(queue, offset, low, high, position_out);
    }
    *position_out = offset < low ? low : offset > high ? high : offset;
    *offset_out = offset < low ? low : offset;
    return CMQ_OK;
}

cmq_status cmq_queue_place(cmq_queue *queue, int64_t offset, int64_t confirmed_end, int64_t *position_out,
                           int64_t *high_out, int64_t *offset_out)
{
    int64_t low;
    cmq_status status;
    do {
        cmq_queue_readable(queue, confirmed_end, &low, high_out);
        status = position_of(queue, offset, low, *high_out, position_out, offset_out);
    } while (cmq_queue_was_expired(queue, status, low, &low));
    return status;
}

static uint32_t drop_fillers(cmq_unit *units, uint32_t count)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < count; i++)
        if (!cmq_unit_is_filler(&units[i])) units[kept++] = units[i];
    return kept;
}

cmq_status cmq_queue_missing_is_corrupt(cmq_status status)
{
    return status == CMQ_ERR_NOT_FOUND ? CMQ_ERR_CORRUPT : status;
}

cmq_status cmq_queue_read(cmq_queue *queue, int64_t from, int64_t confirmed_end, cmq_unit *units_out, uint32_t capacity,
                          uint32_t *count_out, int64_t *next_out)
{
    int64_t high, at;
    *count_out = 0;
    *next_out = from;
    cmq_status status = cmq_queue_place(queue, from, confirmed_end, &at, &high, next_out);
    while (status == CMQ_OK && at < high && *count_out < capacity) {
        uint32_t count;
        cmq_unit *into = units_out + *count_out;
        status = cmq_queue_fetch(queue, at, high, into, capacity - *count_out, &count);
        if (*count_out == 0 && cmq_queue_was_expired(queue, status, at, &at)) {
            status = CMQ_OK;
            continue;
        }
        if (status != CMQ_OK || count == 0) break;
        at += count;
        *next_out = into[count - 1].offset + into[count - 1].count;
        *count_out += drop_fillers(into, count);
    }
    /* the next call returns a failure behind these units */
    return *count_out > 0 ? CMQ_OK : cmq_queue_missing_is_corrupt(status);
}

/* All of [from, from + count). */
static cmq_status CMQ_MUST_CHECK fetch_all(cmq_queue *queue, int64_t from, uint32_t count, cmq_unit *units_out)
{
    for (uint32_t done = 0, got; done < count; done += got) {
        const cmq_status status =
            cmq_queue_fetch(queue, from + done, from + count, units_out + done, count - done, &got);
        if (status != CMQ_OK) return status;
        if (got == 0) return CMQ_AGAIN;   /* cut meanwhile */
    }
    return CMQ_OK;
}

/* The position behind the last unit that begins below `before`, inside [low, high]. */
static cmq_status CMQ_MUST_CHECK position_below(cmq_queue *queue, int64_t before, int64_t low, int64_t high,
                                                int64_t *position_out)
{
    if (queue->tail.kind == CMQ_QUEUE_SIMPLE) {
        *position_out = before < low ? low : before > high ? high : before;
        return CMQ_OK;
    }
    *position_out = low;
    if (low >= high || before <= cmq_queue_min(queue)) return CMQ_OK;
    const cmq_status status = cmq_batch_queue_position(queue, before - 1, low, high, position_out);
    if (status == CMQ_OK) *position_out += 1;
    return status;
}

cmq_status cmq_queue_read_back(cmq_queue *queue, int64_t before, int64_t confirmed_end, cmq_unit *units_out,
                               uint32_t capacity, uint32_t *count_out, int64_t *next_out)
{
    int64_t low, high, at;
    *count_out = 0;
    *next_out = before;
    cmq_status status;
    do {
        cmq_queue_readable(queue, confirmed_end, &low, &high);
        status = position_below(queue, before, low, high, &at);
    } while (cmq_queue_was_expired(queue, status, low, &low));
    while (status == CMQ_OK && at > low && *count_out < capacity) {
        cmq_unit units[BACK_UNITS];
        uint32_t wanted = capacity - *count_out;
        if (wanted > BACK_UNITS) wanted = BACK_UNITS;
        if (at - low < wanted) wanted = (uint32_t)(at - low);
        status = fetch_all(queue, at - wanted, wanted, units);
        if (cmq_queue_was_expired(queue, status, at - wanted, &low)) {
            status = CMQ_OK;
            continue;
        }
        if (status != CMQ_OK) break;
        for (uint32_t i = wanted; i > 0; i--)
            if (!cmq_unit_is_filler(&units[i - 1])) units_out[(*count_out)++] = units[i - 1];
        *next_out = units[0].offset;
        at -= wanted;
    }
    return *count_out > 0 || status == CMQ_AGAIN ? CMQ_OK : cmq_queue_missing_is_corrupt(status);
}
