/* cmq_queue_replay: units that the log says a queue must have, put at their ordinals: recovery's way of completing and
 * correcting queues.
 *
 * Records come in the order of the log. Most of them are in the queue already; so each queue that is being compared has
 * a window of units read from its file, and a record costs a comparison, not a read. Up to 8,192 queues have one each,
 * the smaller the more there are; 25 MiB at most, freed at the first ordinary put.
 * Source: upstream's putMessagePositionInfo; spec store 3.3, 3.4, 3.8. Where upstream appends at the wrong ordinal, a
 * gap is filled instead.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "base/cmq_assert.h"
#include "store/queue/cmq_queue_file.h"
#include "store/queue/cmq_queue_internal.h"
#include "store/record/cmq_tags_code.h"

#define WINDOWS_MIN 512u                   /* by queue index */
#define WINDOWS_MAX 8192u
#define WINDOW_UNITS_MAX 200u
#define WINDOW_UNITS_MIN 64u
#define GAP_UNITS_MAX (INT64_C(1) << 22)   /* fillers made for one record: more cannot be the truth */
#define OFFSET_MAX (INT64_MAX / CMQ_BATCH_UNIT_BYTES / 2)

typedef struct window {
    const cmq_queue *queue;
    int64_t first;      /* position of its first unit */
    int64_t count;
    cmq_unit units[];
} window;

struct cmq_reputwindows {
    uint32_t count, units;
    window *of[];
};

void cmq_queues_end_reput(cmq_queues *queues)
{
    if (queues->windows == NULL) return;
    for (uint32_t i = 0; i < queues->windows->count; i++) free(queues->windows->of[i]);
    free(queues->windows);
    queues->windows = NULL;
}

static struct cmq_reputwindows *make_windows(const cmq_queues *set)
{
    uint32_t count = WINDOWS_MIN;
    while (count < WINDOWS_MAX && count < cmq_queues_count(set)) count *= 2;
    struct cmq_reputwindows *windows = calloc(1, sizeof *windows + count * sizeof windows->of[0]);
    if (windows == NULL) return NULL;
    windows->count = count;
    windows->units = WINDOW_UNITS_MAX * WINDOWS_MIN / count;
    if (windows->units < WINDOW_UNITS_MIN) windows->units = WINDOW_UNITS_MIN;
    return windows;
}

static cmq_status CMQ_MUST_CHECK window_for(cmq_queue *queue, window **window_out)
{
    cmq_queues *set = queue->set;
    if (set->windows == NULL) set->windows = make_windows(set);
    if (set->windows == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for recovery");
    window **slot = &set->windows->of[queue->index % set->windows->count];
    if (*slot == NULL) *slot = calloc(1, sizeof **slot + set->windows->units * sizeof (*slot)->units[0]);
    if (*slot == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for recovery");
    if ((*slot)->queue != queue) (*slot)->count = 0;
    (*slot)->queue = queue;
    *window_out = *slot;
    return CMQ_OK;
}

static void forget_window(cmq_queue *queue)
{
    if (queue->set->windows == NULL) return;
    window *of = queue->set->windows->of[queue->index % queue->set->windows->count];
    if (of != NULL && of->queue == queue) of->count = 0;
}

/* The unit at `position`, which is in the queue. Neighbours come along for the records that follow. */
static cmq_status CMQ_MUST_CHECK unit_at(cmq_queue *queue, int64_t position, cmq_unit *unit_out)
{
    uint32_t count;
    const int64_t next = cmq_queue_tail_next(&queue->tail);
    if (position >= cmq_queue_tail_lowest(&queue->tail))
        return cmq_queue_fetch(queue, position, next, unit_out, 1, &count);
    window *of = NULL;
    cmq_status status = window_for(queue, &of);
    if (status != CMQ_OK) return status;
    if (position < of->first || position - of->first >= of->count) {
        of->count = 0;
        status = cmq_queue_fetch(queue, position, next, of->units, queue->set->windows->units, &count);
        if (status != CMQ_OK) return status;
        of->first = position;
        of->count = count;
    }
    CMQ_ASSERT(of->count > 0);
    *unit_out = of->units[position - of->first];
    return CMQ_OK;
}

static bool is_same(const cmq_queue *queue, const cmq_unit *there, const cmq_unit *wanted)
{
    if (there->phy != wanted->phy || there->bytes != wanted->bytes || there->count != wanted->count ||
        there->offset != wanted->offset)
        return false;
    if (queue->tail.kind == CMQ_QUEUE_BATCH && there->store_ms != wanted->store_ms) return false;
    /* An address that resolves to nothing is not a difference: with the extension gone, the unit says as much as it
     * can. */
    return there->tags_code == wanted->tags_code || cmq_tags_code_is_ext(there->tags_code);
}

static cmq_status CMQ_MUST_CHECK put_one(cmq_queue *queue, const cmq_unit *unit)
{
    cmq_queues_begin_turn(queue->set);
    const cmq_status status = cmq_queue_make_room(queue, 1, INT64_MAX);
    if (status == CMQ_OK) cmq_queue_put(queue, unit->phy, unit->bytes, unit->tags_code, unit->store_ms, unit->count);
    return status;
}

static cmq_status CMQ_MUST_CHECK cut(cmq_queue *queue, int64_t position)
{
    forget_window(queue);
    cmq_queue_lock(queue);
    const cmq_status status = cmq_queue_cut(queue, position);
    cmq_queue_unlock(queue);
    return status;
}

/* Whether a queue never held a unit that still counts. */
static bool is_empty(const cmq_queue *queue)
{
    return atomic_load_explicit(&queue->last_end, memory_order_relaxed) == 0 &&
           atomic_load_explicit(&queue->min, memory_order_relaxed) == cmq_queue_tail_next(&queue->tail);
}

/* During recovery the file in which the queue begins now stays with what is in it: most often it has all of the queue's
 * units, which readers of other processes read meanwhile. Files before it are removed later. */
static cmq_status CMQ_MUST_CHECK keep_files(cmq_queue *queue, int64_t position)
{
    const cmq_queuefolder folder = cmq_queue_folder(queue);
    const int64_t file_bytes = cmq_queue_file_bytes(queue), at = position * cmq_queue_unit_bytes(queue);
    while (queue->files.first + file_bytes <= at) {
        const cmq_status status = cmq_queue_remove_later(queue, folder, queue->files.first);
        if (status != CMQ_OK) return status;
        queue->files.first += file_bytes;
    }
    const cmq_status status = cmq_queue_file_fill(queue, at);
    return status == CMQ_OK ? cmq_queue_cut_later(queue, folder) : status;
}

/* Settle the files of a queue that begins at `position` now. Their content is of no use; a new file has fillers up to
 * there. */
static cmq_status CMQ_MUST_CHECK settle_files(cmq_queue *queue, int64_t position)
{
    const int64_t at = position * cmq_queue_unit_bytes(queue);
    if (queue->set->read_only || queue->files.first < 0) return CMQ_OK;
    if (queue->set->recovering && at >= queue->files.first && at < queue->files.end) return keep_files(queue, position);
    return cmq_queue_drop_files(queue, cmq_queue_folder(queue), &queue->files);
}

cmq_status cmq_queue_begin_at(cmq_queue *queue, int64_t offset)
{
    const int64_t position = queue->tail.kind == CMQ_QUEUE_BATCH ? 0 : offset;
    forget_window(queue);
    cmq_queue_lock(queue);
    const cmq_status status = settle_files(queue, position);
    if (status == CMQ_OK) {
        cmq_queue_reset_tail(queue, position);
        atomic_store_explicit(&queue->last_end, 0, memory_order_release);
        atomic_store_explicit(&queue->min, position, memory_order_release);
        if (queue->tail.kind == CMQ_QUEUE_BATCH) {
            cmq_queue_batch(queue)->next_offset = offset;
            atomic_store_explicit(&cmq_queue_batch(queue)->min_offset, offset, memory_order_release);
        }
    }
    cmq_queue_unlock(queue);
    return status;
}

static cmq_status CMQ_MUST_CHECK check_offset(const cmq_queue *queue, int64_t offset)
{
    if (offset >= 0 && offset <= OFFSET_MAX) return CMQ_OK;
    return cmq_fail_at(CMQ_ERR_CORRUPT, offset, "no message of queue %s/%" PRId32 " can have the offset %" PRId64,
                       queue->topic->name, queue->id, offset);
}

/* The last unit of a queue of batches claims offsets of `unit`, whose record lies behind its own: offset or count of
 * that last one are damaged. Units follow each other without gaps, so it gets the offsets between its neighbours; its
 * readers compare them with its record. *repaired_out: else the units contradict each other in another way. */
static cmq_status CMQ_MUST_CHECK repair_last(cmq_queue *queue, const cmq_unit *unit, bool *repaired_out)
{
    const int64_t min = atomic_load_explicit(&queue->min, memory_order_relaxed),
                  last_position = cmq_queue_tail_next(&queue->tail) - 1;
    cmq_unit last, before = {0};
    *repaired_out = false;
    if (last_position < min) return CMQ_OK;
    cmq_status status = unit_at(queue, last_position, &last);
    if (status == CMQ_OK && last_position > min) status = unit_at(queue, last_position - 1, &before);
    if (status != CMQ_OK) return status;
    const int64_t from = last_position > min ? before.offset + before.count : unit->offset - last.count,
                  count = unit->offset - from;
    if (from < 0 || count < 1 || count > INT16_MAX) return CMQ_OK;
    status = cut(queue, last_position);
    if (status != CMQ_OK) return status;
    cmq_queue_batch(queue)->next_offset = from;
    if (last_position == min) atomic_store_explicit(&cmq_queue_batch(queue)->min_offset, from, memory_order_release);
    last.count = (int32_t)count;
    *repaired_out = true;
    return put_one(queue, &last);
}

/* Every record of the queue is older than this one. */
static cmq_status CMQ_MUST_CHECK put_newest(cmq_queue *queue, const cmq_unit *unit)
{
    const bool batch = queue->tail.kind == CMQ_QUEUE_BATCH;
    const int64_t next = cmq_queue_next(queue);
    cmq_status status = CMQ_OK;
    if (unit->offset == next && !is_empty(queue)) return put_one(queue, unit);
    if (is_empty(queue) || unit->offset < cmq_queue_min(queue)) {
        if (cmq_queue_begin_of(queue)->behind_phy != unit->phy + 1) cmq_queue_forget_begin(queue);
        status = cmq_queue_begin_at(queue, unit->offset);
        return status != CMQ_OK ? status : put_one(queue, unit);
    }
    if (unit->offset < next) {
        int64_t position = unit->offset;
        bool repaired = false;
        if (batch) status = repair_last(queue, unit, &repaired);
        if (status != CMQ_OK) return status;
        if (repaired) return put_one(queue, unit);
        if (batch)
            status = cmq_batch_queue_position(queue, unit->offset, atomic_load(&queue->min),
                                             cmq_queue_tail_next(&queue->tail), &position);
        if (status == CMQ_OK) status = cut(queue, position);
        if (status != CMQ_OK) return status;
        if (batch) cmq_queue_batch(queue)->next_offset = unit->offset;
        return put_newest(queue, unit);   /* once: now offset >= next, or the queue is empty */
    }
    if (batch) {
        cmq_queue_batch(queue)->next_offset = unit->offset;   /* bases may skip offsets */
        return put_one(queue, unit);
    }
    /* A view keeps fillers in memory, as it writes no files. */
    const int64_t held = queue->set->read_only ? next - cmq_queue_tail_flushed(&queue->tail) : 0;
    if (unit->offset - next > GAP_UNITS_MAX ||
        (queue->set->read_only && held + unit->offset - next >= CMQ_TAIL_UNITS_MAX))
        return cmq_fail_at(CMQ_ERR_CORRUPT, unit->phy,
                           "the record at %" PRId64 " says offset %" PRId64 " in queue %s/%" PRId32
                           ", which ends at %" PRId64,
                           unit->phy, unit->offset, queue->topic->name, queue->id, next);
    const cmq_unit filler = {.phy = unit->phy, .bytes = unit->bytes, .tags_code = CMQ_GAP_TAGS_CODE, .count = 1};
    while (cmq_queue_next(queue) < unit->offset) {
        status = put_one(queue, &filler);
        if (status != CMQ_OK) return status;
        queue->set->gaps++;
    }
    return put_one(queue, unit);
}

static bool starts_at_or_after(void *context, const cmq_unit *unit, cmq_status *status)
{
    (void)status;
    return unit->phy >= *(const int64_t *)context;
}

/* Some record of the queue is not older than this one: it should be there. */
static cmq_status CMQ_MUST_CHECK put_known(cmq_queue *queue, const cmq_unit *unit)
{
    const int64_t min = atomic_load_explicit(&queue->min, memory_order_relaxed),
                  next = cmq_queue_tail_next(&queue->tail);
    const cmq_queue_probe from_phy = {.reached = starts_at_or_after, .context = &(int64_t){unit->phy}};
    cmq_unit there;
    cmq_status status;
    if (queue->tail.kind == CMQ_QUEUE_SIMPLE && unit->offset >= min && unit->offset < next) {
        status = unit_at(queue, unit->offset, &there);
        if (status != CMQ_OK || is_same(queue, &there, unit)) return status;
    }
    int64_t position;
    status = cmq_queue_first(queue, min, next, &from_phy, &position);
    if (status != CMQ_OK) return status;
    if (position < next) {
        status = unit_at(queue, position, &there);
        if (status != CMQ_OK) return status;
        if (there.phy == unit->phy && there.bytes == unit->bytes) {
            /* The record is there. At another ordinal: as it was given to consumers, or a message that names the same
             * light queue twice. */
            if (queue->tail.kind == CMQ_QUEUE_SIMPLE && unit->offset == next && position == next - 1)
                return put_one(queue, unit);
            if (is_same(queue, &there, unit)) return CMQ_OK;
            /* A unit of batches has its offset from its record: another one is damage, and misleads every search. */
            if (there.offset != unit->offset && queue->tail.kind == CMQ_QUEUE_SIMPLE) return CMQ_OK;
        }
    }
    status = cut(queue, position);
    return status != CMQ_OK ? status : put_newest(queue, unit);
}

cmq_status cmq_queue_reput(cmq_queue *queue, int64_t offset, int64_t phy, int32_t bytes, int64_t tags_code,
                           int64_t store_ms, int32_t count)
{
    const cmq_unit unit = {
        .offset = offset, .phy = phy, .tags_code = tags_code, .store_ms = store_ms, .bytes = bytes, .count = count};
    cmq_status status = check_offset(queue, offset);
    if (status == CMQ_OK && (phy < 0 || bytes <= 0 || bytes == CMQ_FILLER_SIZE || phy > INT64_MAX - bytes ||
                             count < 1 || count > INT16_MAX || (queue->tail.kind == CMQ_QUEUE_SIMPLE && count != 1)))
        status = cmq_fail_at(CMQ_ERR_ARGUMENT, phy,
                             "%" PRId32 " bytes at %" PRId64 " with %" PRId32 " messages do not make a unit", bytes,
                             phy, count);
    if (status != CMQ_OK) return status;
    if (atomic_load_explicit(&queue->last_end, memory_order_relaxed) > phy) return put_known(queue, &unit);
    return put_newest(queue, &unit);
}
