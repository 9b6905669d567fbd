/* cmq_queue_recover: where each queue really ends, what of it can be kept, and how the log completes it. See
 * cmq_queue.h for the contract.
 *
 * The end of a queue: the first unit that is empty, or whose record does not end at or before the limit, or that is out
 * of order. Files are not read whole: pages are bisected, and the page of the end is looked at unit by unit. Where what
 * was seen is not in order (a hole that a power loss left), the units are walked one by one as upstream does, from the
 * third file before the end. A hole in a file before stays: reput finds a simple queue's by its ordinals. The units of
 * a queue of batches are walked one by one from where holes may begin, as they tell nothing of their places. Fillers at
 * the end are cut: no record needs them, and reput makes them again where one does.
 *
 * Invariant: until the log's end is found, no file of a queue is removed, and none changes but by units written again
 *            where they stood. Readers of other processes go on in these files while a writer recovers; after a crash
 *            most units behind the durable point are there and right. cmq_queues_end_recover cuts what lies behind a
 *            queue's end, and removes the files that no queue uses.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/cmq_assert.h"
#include "store/marks/cmq_own_files.h"
#include "store/queue/cmq_queue_extension.h"
#include "store/queue/cmq_queue_file.h"
#include "store/queue/cmq_queue_internal.h"
#include "store/record/cmq_tags_code.h"

#define PAGE_UNITS 205                     /* 4 KiB and a little: a file's first page covers its first block */
#define WALK_FILES 3                       /* upstream begins at the third file from the end */
#define INCOMPLETE_NAME CMQ_OWN_FOLDER "/incomplete"

/* ---- the end of a queue ---- */

/* A look at consecutive units. */
typedef struct look {
    cmq_queue *queue;
    int64_t limit;           /* records end at or before */
    int64_t phy;             /* of the last unit that was no filler; -1 */
    int64_t base_end;        /* batch: offset behind the last unit */
    int64_t address;         /* the last address of the extension; 0 */
    int64_t zero_until;      /* units between the end and this position were seen to be all zero bytes */
    int64_t real_end;        /* position behind the last unit that was no filler; -1 */
    int64_t record_end;      /* where that one's record ends */
} look;

/* Take the next unit in; false when the queue ends before it. */
static bool take(look *of, int64_t position, const uint8_t *image)
{
    if (of->queue->tail.kind == CMQ_QUEUE_SIMPLE && cmq_image_is_filler(image)) return true;
    const int64_t end = cmq_image_end(image), phy = cmq_load_i64(image);
    if (end == INT64_MAX || end > of->limit || phy < of->phy) return false;   /* INT64_MAX: no record at all */
    if (of->queue->tail.kind == CMQ_QUEUE_BATCH) {
        if (!cmq_batch_queue_valid(image) || cmq_load_i64(image + 28) < of->base_end || phy == of->phy) return false;
        of->base_end = cmq_load_i64(image + 28) + cmq_load_i16(image + 36);
    } else if (cmq_tags_code_is_ext(cmq_load_i64(image + 12))) {
        of->address = cmq_load_i64(image + 12);
    }
    of->phy = phy;
    of->real_end = position + 1;
    of->record_end = end;
    return true;
}

static cmq_status CMQ_MUST_CHECK read_units(cmq_queue *queue, int64_t position, int64_t count, uint8_t *images)
{
    const uint32_t unit_bytes = cmq_queue_unit_bytes(queue);
    return cmq_queue_file_read(queue, cmq_queue_folder(queue), position * unit_bytes, images,
                              (size_t)count * unit_bytes);
}

/* Take units in from `position` up to `end`; *stop_out is the first that does not belong. */
static cmq_status CMQ_MUST_CHECK walk(look *of, int64_t position, int64_t end, int64_t *stop_out)
{
    uint8_t images[PAGE_UNITS * CMQ_BATCH_UNIT_BYTES];
    const uint32_t unit_bytes = cmq_queue_unit_bytes(of->queue);
    while (position < end) {
        const int64_t count = end - position < PAGE_UNITS ? end - position : PAGE_UNITS;
        const cmq_status status = read_units(of->queue, position, count, images);
        if (status != CMQ_OK) return status;
        for (int64_t i = 0; i < count; i++, position++) {
            if (take(of, position, images + i * unit_bytes)) continue;
            *stop_out = position;
            return CMQ_OK;
        }
    }
    *stop_out = end;
    return CMQ_OK;
}

/* Whether the unit at `position` could belong, seen alone; *phy_out -1 for a filler. */
static cmq_status CMQ_MUST_CHECK probe(const look *of, int64_t position, bool *belongs_out, int64_t *phy_out)
{
    uint8_t image[CMQ_BATCH_UNIT_BYTES];
    look alone = {.queue = of->queue, .limit = of->limit, .phy = -1, .real_end = -1};
    const cmq_status status = read_units(of->queue, position, 1, image);
    if (status != CMQ_OK) return status;
    *belongs_out = take(&alone, position, image);
    *phy_out = alone.phy;
    return CMQ_OK;
}

/* Whether the units of a page from `from` on, behind the end, are all outside: else bisection proved nothing. */
static bool rest_is_outside(look *of, int64_t from, int64_t page_end, const uint8_t *images)
{
    const uint32_t unit_bytes = cmq_queue_unit_bytes(of->queue);
    bool zero = true;
    for (int64_t i = 0; i < page_end - from; i++) {
        look alone = {.queue = of->queue, .limit = of->limit, .phy = -1};
        if (take(&alone, from + i, images + i * unit_bytes)) return false;
        for (uint32_t at = 0; at < unit_bytes && zero; at++) zero = images[i * unit_bytes + at] == 0;
    }
    if (zero) of->zero_until = page_end;
    return true;
}

/* The end inside the page [page, page_end), which was read into `images`; *ordered_out false when units behind it
 * belong. */
static int64_t end_in_page(look *of, int64_t page, int64_t page_end, const uint8_t *images, bool *ordered_out)
{
    const uint32_t unit_bytes = cmq_queue_unit_bytes(of->queue);
    int64_t end = page;
    while (end < page_end && take(of, end, images + (end - page) * unit_bytes)) end++;
    *ordered_out = rest_is_outside(of, end, page_end, images + (end - page) * unit_bytes);
    return end;
}

/* Bisect [low, high), whose first unit belongs, for the last page whose first unit does. *ordered_out false: the units
 * read are not in order. */
static cmq_status CMQ_MUST_CHECK bisect_pages(const look *of, int64_t low, int64_t high, int64_t *page_out,
                                              bool *ordered_out)
{
    int64_t first = 0, last = (high - low - 1) / PAGE_UNITS, phy_low = -1;
    *ordered_out = true;
    while (first < last) {
        const int64_t middle = first + (last - first + 1) / 2;
        bool belongs;
        int64_t phy;
        const cmq_status status = probe(of, low + middle * PAGE_UNITS, &belongs, &phy);
        if (status != CMQ_OK) return status;
        if (!belongs) {
            last = middle - 1;
            continue;
        }
        if (phy >= 0 && phy < phy_low) *ordered_out = false;
        if (phy >= 0) phy_low = phy;
        first = middle;
    }
    *page_out = low + first * PAGE_UNITS;
    return CMQ_OK;
}

/* The end inside the file [low, high). Most often it lies in the first page: then that is all that is read.
 * *belongs_out: whether its first unit belongs, else the end lies in a file before. */
static cmq_status CMQ_MUST_CHECK find_in_file(look *of, int64_t low, int64_t high, int64_t *end_out, bool *belongs_out,
                                              bool *ordered_out)
{
    uint8_t images[PAGE_UNITS * CMQ_BATCH_UNIT_BYTES];
    int64_t page = low, page_end = high - low < PAGE_UNITS ? high : low + PAGE_UNITS;
    cmq_status status = read_units(of->queue, page, page_end - page, images);
    if (status != CMQ_OK) return status;
    *end_out = end_in_page(of, page, page_end, images, ordered_out);
    *belongs_out = *end_out > low;
    if (!*belongs_out || *end_out < page_end || page_end == high || !*ordered_out) return CMQ_OK;
    status = bisect_pages(of, low, high, &page, ordered_out);
    if (status != CMQ_OK || !*ordered_out || page == low) return status;
    /* From the page before, so that its order is seen, and a run of fillers has a unit in front. */
    if (page - PAGE_UNITS > low) {
        int64_t stop;
        status = walk(of, page - PAGE_UNITS, page, &stop);
        if (status != CMQ_OK) return status;
        if (stop < page) *ordered_out = false;
    }
    page_end = high - page < PAGE_UNITS ? high : page + PAGE_UNITS;
    status = read_units(of->queue, page, page_end - page, images);
    if (status != CMQ_OK || !*ordered_out) return status;
    *end_out = end_in_page(of, page, page_end, images, ordered_out);
    return CMQ_OK;
}

static look begin_look(cmq_queue *queue, int64_t limit)
{
    return (look){.queue = queue, .limit = limit, .phy = -1, .real_end = -1};
}

/* The end of the queue as far as its files say: `of` has what the last units were. */
static cmq_status CMQ_MUST_CHECK find_end(cmq_queue *queue, int64_t limit, look *of, int64_t *end_out)
{
    const uint32_t unit_bytes = cmq_queue_unit_bytes(queue);
    const int64_t file_units = cmq_queue_file_bytes(queue) / unit_bytes;
    const int64_t first = queue->files.first / unit_bytes, last_end = queue->files.end / unit_bytes;
    bool belongs = false, ordered = true;
    int64_t low = last_end;
    cmq_status status = CMQ_OK;
    *of = begin_look(queue, limit);
    *end_out = first;
    while (low > first && !belongs) {
        low -= file_units;
        status = find_in_file(of, low, low + file_units, end_out, &belongs, &ordered);
        if (status != CMQ_OK) return status;
        if (!belongs) *of = begin_look(queue, limit);
    }
    if (!belongs) *end_out = first;
    if (!belongs || ordered) return CMQ_OK;
    const int64_t walk_from = low - (WALK_FILES - 1) * file_units > first ? low - (WALK_FILES - 1) * file_units : first;
    *of = begin_look(queue, limit);
    return walk(of, walk_from, last_end, end_out);
}

/* The last unit before `end` that is not a filler, when the pages looked at had none. */
static cmq_status CMQ_MUST_CHECK look_back(look *of, int64_t first, int64_t end)
{
    int64_t ignored;
    while (of->real_end < 0 && end > first) {
        const int64_t from = end - PAGE_UNITS > first ? end - PAGE_UNITS : first;
        const cmq_status status = walk(of, from, end, &ignored);
        if (status != CMQ_OK) return status;
        end = from;
    }
    return CMQ_OK;
}

/* ---- recover ---- */

static cmq_status CMQ_MUST_CHECK do_later(cmq_queue *queue, cmq_queuefolder folder, int64_t start)
{
    cmq_queues *queues = queue->set;
    if (queues->late_count == queues->late_capacity) {
        const uint32_t capacity = queues->late_capacity * 2 + 64;
        cmq_latecut *grown = realloc(queues->late, capacity * sizeof *grown);
        if (grown == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for recovery");
        queues->late = grown;
        queues->late_capacity = capacity;
    }
    queues->late[queues->late_count++] = (cmq_latecut){.queue = queue, .folder = folder, .start = start};
    return CMQ_OK;
}

cmq_status cmq_queue_cut_later(cmq_queue *queue, cmq_queuefolder folder)
{
    const uint8_t mark = folder == CMQ_FOLDER_EXT ? CMQ_HEAT_LATE_EXT_CUT : CMQ_HEAT_LATE_CUT;
    if ((queue->tail.heat & mark) != 0) return CMQ_OK;
    const cmq_status status = do_later(queue, folder, -1);
    if (status == CMQ_OK) queue->tail.heat |= mark;
    return status;
}

cmq_status cmq_queue_remove_later(cmq_queue *queue, cmq_queuefolder folder, int64_t start)
{
    return do_later(queue, folder, start);
}

static cmq_status CMQ_MUST_CHECK remove_now(cmq_queue *queue, cmq_queuefolder folder, cmq_queuefiles *files,
                                            int64_t start)
{
    const cmq_status status = cmq_queue_file_remove(queue, folder, start);
    if (status != CMQ_OK) return status;
    files->names_unsynced = true;
    cmq_queue_mark_unsynced(queue);
    return CMQ_OK;
}

cmq_status cmq_queue_drop_files(cmq_queue *queue, cmq_queuefolder folder, cmq_queuefiles *files)
{
    const int64_t file_bytes = queue->set->file_bytes[folder];
    /* From the end, so that a crash leaves a shorter queue, not one with a hole. */
    while (files->first >= 0) {
        const int64_t start = files->end - file_bytes;
        const cmq_status status = queue->set->recovering ? cmq_queue_remove_later(queue, folder, start)
                                                         : remove_now(queue, folder, files, start);
        if (status != CMQ_OK) return status;
        files->end = start;
        if (files->end <= files->first) files->first = files->end = -1;
    }
    return CMQ_OK;
}

/* A file that recovery created again under the same name, or came to, stays. */
static cmq_status CMQ_MUST_CHECK remove_late(const cmq_latecut *late, cmq_queuefiles *files)
{
    if (files->first >= 0 && late->start >= files->first && late->start < files->end) return CMQ_OK;
    return remove_now(late->queue, late->folder, files, late->start);
}

static cmq_status CMQ_MUST_CHECK carry_out(const cmq_latecut *late)
{
    cmq_queue *queue = late->queue;
    cmq_queue_extension *ext = cmq_queue_ext_of(queue);
    cmq_status status = CMQ_OK;
    cmq_queue_lock(queue);
    if (late->start >= 0)
        status = remove_late(late, late->folder == CMQ_FOLDER_EXT ? &ext->files : &queue->files);
    else if (late->folder == CMQ_FOLDER_EXT && ext != NULL)
        status = cmq_queue_file_cut(queue, CMQ_FOLDER_EXT, &ext->files, ext->next, 0);
    else if (late->folder != CMQ_FOLDER_EXT)
        status = cmq_queue_file_cut(queue, late->folder, &queue->files,
                                   cmq_queue_tail_next(&queue->tail) * cmq_queue_unit_bytes(queue), 0);
    cmq_queue_unlock(queue);
    return status;
}

cmq_status cmq_queues_end_recover(cmq_queues *queues)
{
    cmq_status status = CMQ_OK;
    for (uint32_t i = 0; i < queues->late_count && status == CMQ_OK; i++)
        if (!cmq_queue_deleted(queues->late[i].queue)) status = carry_out(&queues->late[i]);
    if (status == CMQ_OK) cmq_queues_forget_late(queues);
    return status;
}

void cmq_queues_forget_late(cmq_queues *queues)
{
    for (uint32_t i = 0; i < queues->late_count; i++)
        queues->late[i].queue->tail.heat &= (uint8_t)~(CMQ_HEAT_LATE_CUT | CMQ_HEAT_LATE_EXT_CUT);
    free(queues->late);
    queues->late = NULL;
    queues->late_count = queues->late_capacity = 0;
    queues->recovering = false;
}

/* The queue is what lies in [first file, end): set the tail, the min and what the last units say. */
static cmq_status CMQ_MUST_CHECK adopt(cmq_queue *queue, const look *of, int64_t end, int64_t log_min)
{
    const int64_t first = queue->files.first < 0 ? 0 : queue->files.first / cmq_queue_unit_bytes(queue);
    cmq_status status = CMQ_OK;
    const uint32_t unit_bytes = cmq_queue_unit_bytes(queue);
    bool cut = true;
    if (!queue->set->read_only)
        status = cmq_queue_file_is_cut(queue, cmq_queue_folder(queue), &queue->files, end * unit_bytes,
                                      of->zero_until * unit_bytes, &cut);
    if (status == CMQ_OK && !cut) status = cmq_queue_cut_later(queue, cmq_queue_folder(queue));
    if (status != CMQ_OK) return status;
    cmq_queue_reset_tail(queue, end);
    atomic_store_explicit(&queue->last_end, of->real_end < 0 ? 0 : of->record_end, memory_order_release);
    atomic_store_explicit(&queue->min, first < end ? first : end, memory_order_release);
    if (queue->tail.kind == CMQ_QUEUE_BATCH) {
        cmq_batch_queue *batch = cmq_queue_batch(queue);
        batch->next_offset = of->base_end;
        atomic_store_explicit(&batch->min_offset, of->base_end, memory_order_release);
        if (first < end) status = cmq_batch_queue_set_min(queue, first);
    } else {
        status = cmq_queue_extension_recover(queue, of->address);
    }
    return status == CMQ_OK ? cmq_queue_correct_min(queue, log_min) : status;
}

/* Take units in one by one behind the end that was found, up to the first that is missing. */
static cmq_status CMQ_MUST_CHECK walk_on(look *of, int64_t limit, int64_t *end)
{
    int64_t stop;
    of->limit = limit;
    const cmq_status status = walk(of, *end, of->queue->files.end / cmq_queue_unit_bytes(of->queue), &stop);
    if (status != CMQ_OK) return status;
    if (stop != *end) of->zero_until = 0;
    *end = stop;
    return CMQ_OK;
}

static cmq_status CMQ_MUST_CHECK recover_queue(cmq_queue *queue, int64_t log_min, int64_t limit, int64_t whole_end)
{
    /* Where a power loss may have taken units it may have mixed those of several lives, whose addresses in the
     * extension are not in order: a later unit would get an earlier one's address, and that one its tags. */
    if (cmq_queue_ext_of(queue) != NULL && whole_end < limit) limit = whole_end;
    const bool walks = queue->tail.kind == CMQ_QUEUE_BATCH && whole_end < limit;
    look of = begin_look(queue, limit);
    int64_t end = 0;
    if (queue->files.first >= 0) {
        cmq_status status = find_end(queue, walks ? whole_end : limit, &of, &end);
        if (status == CMQ_OK && walks) status = walk_on(&of, limit, &end);
        if (status == CMQ_OK) status = look_back(&of, queue->files.first / cmq_queue_unit_bytes(queue), end);
        if (status != CMQ_OK) return status;
        const int64_t seen_end = end;
        end = of.real_end >= 0 ? of.real_end : queue->files.first / cmq_queue_unit_bytes(queue);
        if (end != seen_end) of.zero_until = 0;   /* fillers at the end go too */
    }
    return adopt(queue, &of, end, log_min);
}

static cmq_status CMQ_MUST_CHECK remove_starts(cmq_queue *queue, const int64_t *starts, uint32_t count)
{
    for (uint32_t i = 0; i < count && !queue->set->read_only; i++) {
        const cmq_status status = cmq_queue_remove_later(queue, cmq_queue_folder(queue), starts[i]);
        if (status != CMQ_OK) return status;
    }
    return CMQ_OK;
}

/* ---- queues that lack files ---- */

cmq_status cmq_queues_mark_incomplete(cmq_queues *queues)
{
    char path[CMQ_PATH_BYTES];
    cmq_file *file;
    if (queues->incomplete) return CMQ_OK;
    queues->incomplete = true;
    if (queues->read_only) return CMQ_OK;
    cmq_status status = cmq_path_join(path, queues->root, CMQ_OWN_FOLDER);
    if (status == CMQ_OK) status = cmq_fs_make_directory_in(queues->fs, queues->root, path);
    if (status == CMQ_OK) status = cmq_path_join(path, queues->root, INCOMPLETE_NAME);
    if (status == CMQ_OK) status = cmq_file_open(queues->fs, path, CMQ_OPEN_CREATE, &file);
    if (status != CMQ_OK) return status;
    status = cmq_file_sync(file);
    cmq_file_close(file);
    if (status == CMQ_OK) status = cmq_path_join(path, queues->root, CMQ_OWN_FOLDER);
    return status == CMQ_OK ? cmq_fs_sync_directory(queues->fs, path) : status;
}

static cmq_status CMQ_MUST_CHECK learn_incomplete(cmq_queues *queues)
{
    char path[CMQ_PATH_BYTES];
    cmq_file_info info;
    cmq_status status = cmq_path_join(path, queues->root, INCOMPLETE_NAME);
    if (status == CMQ_OK) status = cmq_fs_stat(queues->fs, path, &info);
    queues->incomplete = status == CMQ_OK;
    return status == CMQ_ERR_NOT_FOUND ? CMQ_OK : status;
}

bool cmq_queues_incomplete(const cmq_queues *queues) { return queues->incomplete || queues->gapped; }

cmq_status cmq_queues_settle_gaps(cmq_queues *queues, bool are_behind)
{
    const bool gapped = queues->gapped;
    queues->gapped = false;
    return gapped && !are_behind ? cmq_queues_mark_incomplete(queues) : CMQ_OK;
}

cmq_status cmq_queues_complete(cmq_queues *queues)
{
    char path[CMQ_PATH_BYTES];
    if (!queues->incomplete) return CMQ_OK;
    cmq_status status = cmq_path_join(path, queues->root, INCOMPLETE_NAME);
    if (status == CMQ_OK) status = cmq_fs_remove(queues->fs, path);
    if (status == CMQ_ERR_NOT_FOUND) status = CMQ_OK;
    /* Or a power loss could bring the mark back: the whole log would be read again, and deleted topics with it. */
    if (status == CMQ_OK) status = cmq_path_join(path, queues->root, CMQ_OWN_FOLDER);
    if (status == CMQ_OK) status = cmq_fs_sync_directory(queues->fs, path);
    if (status == CMQ_OK) queues->incomplete = false;
    return status;
}

/* Were all records of the file that ends at `end` below log_min? */
static cmq_status CMQ_MUST_CHECK is_expired(cmq_queue *queue, int64_t end, int64_t log_min, bool *expired_out)
{
    uint8_t image[CMQ_BATCH_UNIT_BYTES];
    const cmq_status status = read_units(queue, end / cmq_queue_unit_bytes(queue) - 1, 1, image);
    if (status != CMQ_OK) return status;
    const int64_t phy = cmq_load_i64(image);
    *expired_out = phy >= 0 && cmq_load_i32(image + 8) > 0 && !cmq_image_is_filler(image) && phy < log_min;
    return CMQ_OK;
}

/* May the files before a gap go, because retention meant to remove them with those that are missing? Only for files
 * that begin below `limit`, the durable point's: of those behind it a power loss may have taken any. */
static cmq_status CMQ_MUST_CHECK gives_way(const cmq_queuegap *gap, uint32_t behind, int64_t log_min, int64_t limit,
                                           bool *gives_way_out)
{
    const look of = begin_look(gap->queue, limit);
    int64_t phy;
    cmq_status status = is_expired(gap->queue, gap->queue->files.end, log_min, gives_way_out);
    if (status == CMQ_OK && *gives_way_out)
        status = probe(&of, gap->starts[behind] / cmq_queue_unit_bytes(gap->queue), gives_way_out, &phy);
    return status;
}

/* Files with a gap in their names. Old files that retention meant to remove give way to newer ones that were durable;
 * else the queue ends at the gap, and the log makes the rest again, over the files that lie behind it. */
static cmq_status CMQ_MUST_CHECK close_gap(const cmq_queuegap *gap, int64_t log_min, int64_t limit)
{
    cmq_queue *queue = gap->queue;
    const int64_t file_bytes = cmq_queue_file_bytes(queue);
    uint32_t at = 0;
    for (;;) {
        uint32_t end = at + 1;
        while (end < gap->count && gap->starts[end] == gap->starts[end - 1] + file_bytes) end++;
        queue->files.first = gap->starts[at];
        queue->files.end = gap->starts[end - 1] + file_bytes;
        if (end == gap->count) return CMQ_OK;
        bool goes;
        cmq_status status = gives_way(gap, end, log_min, limit, &goes);
        if (status != CMQ_OK) return status;
        if (!goes) {
            queue->set->gapped = true;
            return remove_starts(queue, gap->starts + end, gap->count - end);
        }
        status = remove_starts(queue, gap->starts + at, end - at);
        if (status != CMQ_OK) return status;
        at = end;
    }
}

static cmq_status CMQ_MUST_CHECK close_gaps(cmq_queues *queues, int64_t log_min, int64_t limit)
{
    while (queues->load_gaps != NULL) {
        cmq_queuegap *gap = queues->load_gaps;
        const cmq_status status = close_gap(gap, log_min, limit);
        if (status != CMQ_OK) return status;
        queues->load_gaps = gap->next;
        free(gap);
    }
    return CMQ_OK;
}

cmq_status cmq_queues_recover(cmq_queues *queues, int64_t log_min, int64_t end, int64_t whole_end,
                              int64_t *dispatched_end_out)
{
    *dispatched_end_out = 0;
    queues->recovering = !queues->read_only;
    cmq_status status = learn_incomplete(queues);
    if (status == CMQ_OK) status = close_gaps(queues, log_min, end);
    for (uint32_t i = 0; i < cmq_queues_count(queues) && status == CMQ_OK; i++) {
        cmq_queue *queue = cmq_queues_at(queues, i);
        if (cmq_queue_deleted(queue)) continue;
        status = recover_queue(queue, log_min, end, whole_end);
        if (status != CMQ_OK)
            return cmq_fail_context("while recovering queue %s/%" PRId32, queue->topic->name, queue->id);
        const int64_t last_end = atomic_load_explicit(&queue->last_end, memory_order_relaxed);
        if (last_end > *dispatched_end_out) *dispatched_end_out = last_end;
    }
    if (status == CMQ_OK) atomic_store_explicit(&queues->corrected_to, log_min, memory_order_release);
    return status;
}

/* ---- cutting ---- */

/* Learn the queue's state from the units below the new end. */
static cmq_status CMQ_MUST_CHECK learn_last(cmq_queue *queue)
{
    const int64_t next = cmq_queue_tail_next(&queue->tail);
    /* Also below min: a queue whose messages all expired goes on counting, and is not an empty one. */
    const int64_t low =
        queue->files.first < 0 ? cmq_queue_tail_lowest(&queue->tail) : queue->files.first / cmq_queue_unit_bytes(queue);
    int64_t last_end = 0, next_offset = 0;
    for (int64_t at = next; at > low && last_end == 0; at--) {
        cmq_unit unit;
        uint32_t count;
        const cmq_status status = cmq_queue_fetch(queue, at - 1, at, &unit, 1, &count);
        if (status != CMQ_OK) return status;
        if (count == 0 || cmq_unit_is_filler(&unit)) continue;
        last_end = unit.phy + unit.bytes;
        next_offset = unit.offset + unit.count;
    }
    atomic_store_explicit(&queue->last_end, last_end, memory_order_release);
    if (queue->tail.kind != CMQ_QUEUE_BATCH) return CMQ_OK;
    cmq_batch_queue *batch = cmq_queue_batch(queue);
    batch->next_offset = next_offset > 0 ? next_offset : atomic_load_explicit(&batch->min_offset, memory_order_relaxed);
    return CMQ_OK;
}

static cmq_status CMQ_MUST_CHECK cut_ext(cmq_queue *queue, int64_t position)
{
    uint8_t image[CMQ_UNIT_BYTES];
    int64_t address = 0;
    if (cmq_queue_ext_of(queue) == NULL) return CMQ_OK;
    if (position > atomic_load_explicit(&queue->min, memory_order_relaxed)) {
        const cmq_status status = read_units(queue, position - 1, 1, image);
        if (status != CMQ_OK) return status;
        if (cmq_tags_code_is_ext(cmq_load_i64(image + 12))) address = cmq_load_i64(image + 12);
    }
    return cmq_queue_extension_recover(queue, address);
}

cmq_status cmq_queue_cut(cmq_queue *queue, int64_t position)
{
    cmq_status status = CMQ_OK;
    const int64_t min = atomic_load_explicit(&queue->min, memory_order_relaxed);
    CMQ_ASSERT(position <= cmq_queue_tail_next(&queue->tail));
    /* An extension can only be cut in the files: bring it there first. */
    if (queue->tail.unit_words == CMQ_QUEUE_EXT_WORDS)
        status = cmq_queue_write_tail(queue, cmq_queue_tail_next(&queue->tail));
    if (status != CMQ_OK) return status;
    if (position >= cmq_queue_tail_flushed(&queue->tail) && position > cmq_queue_tail_lowest(&queue->tail)) {
        cmq_queue_tail_cut(&queue->tail, position);
        queue->room_until = position;
    } else {
        if (queue->set->recovering)
            status = cmq_queue_cut_later(queue, cmq_queue_folder(queue));
        else if (!queue->set->read_only)
            status = cmq_queue_file_cut(queue, cmq_queue_folder(queue), &queue->files,
                                       position * cmq_queue_unit_bytes(queue), 0);
        if (status != CMQ_OK) return status;
        cmq_queue_reset_tail(queue, position);
        status = cut_ext(queue, position);
        if (status != CMQ_OK) return status;
    }
    if (min > position) atomic_store_explicit(&queue->min, position, memory_order_release);
    if (position <= cmq_queue_begin_of(queue)->position) cmq_queue_forget_begin(queue);
    return learn_last(queue);
}

cmq_status cmq_queues_truncate(cmq_queues *queues, int64_t log_end)
{
    const cmq_queue_probe behind = {.reached = cmq_unit_ends_after, .context = &log_end};
    for (uint32_t i = 0; i < cmq_queues_count(queues); i++) {
        cmq_queue *queue = cmq_queues_at(queues, i);
        if (cmq_queue_deleted(queue) || atomic_load_explicit(&queue->last_end, memory_order_relaxed) <= log_end)
            continue;
        cmq_queue_lock(queue);
        int64_t position;
        cmq_status status = cmq_queue_first(queue, atomic_load_explicit(&queue->min, memory_order_relaxed),
                                            cmq_queue_tail_next(&queue->tail), &behind, &position);
        if (status == CMQ_OK) status = cmq_queue_cut(queue, position);
        cmq_queue_unlock(queue);
        if (status != CMQ_OK) return status;
    }
    return CMQ_OK;
}
