/* cmq_queue_flush: from the tails into the files, from the files onto the disk, and out again by age. See cmq_queue.h
 * for the contract.
 *
 * A put marks its queue's byte; a flush takes the marks block by block, in order of creation, so neighbouring queues
 * (of one topic) come together. No list is kept that the writer and the flush could fight over; 50,000 marks are read
 * in microseconds.
 * Durability: each queue notes from which byte on it wrote since the last durable flush. A few files are synced one by
 * one; many by one syncfs.
 */
#include <inttypes.h>
#include <string.h>

#include "base/cmq_assert.h"
#include "store/queue/cmq_queue_end_sums.h"
#include "store/queue/cmq_queue_extension.h"
#include "store/queue/cmq_queue_file.h"
#include "store/queue/cmq_queue_internal.h"
#include "store/record/cmq_tags_code.h"

#define LOCKED_UNITS 8192           /* written per hold of the queue's lock: 160 KB, some 50 us for a writer to wait */
#define STAGE_UNITS 128u            /* units turned into file bytes at a time, where the tail's form is another */
#define SYNC_FILES_MAX 64u          /* files synced one by one; 150 us each (spec native.md 1). Beyond: syncfs */

/* ---- tail to files ---- */

/* Units whose words in the tail are longer than in the file. */
static cmq_status CMQ_MUST_CHECK write_staged(cmq_queue *queue, int64_t from, int64_t end)
{
    const uint32_t unit_bytes = cmq_queue_unit_bytes(queue);
    const uint32_t unit_words = queue->tail.unit_words;
    uint8_t images[STAGE_UNITS * CMQ_BATCH_UNIT_BYTES];
    CMQ_ASSERT(unit_bytes <= CMQ_BATCH_UNIT_BYTES && unit_bytes <= unit_words * sizeof(uint32_t));
    while (from < end) {
        const uint32_t count = end - from < STAGE_UNITS ? (uint32_t)(end - from) : STAGE_UNITS;
        CMQ_ASSERT(count > 0 && count <= STAGE_UNITS);
        for (uint32_t i = 0; i < count; i++) {
            uint32_t words[CMQ_WORDS_MAX];
            const bool there = cmq_queue_tail_copy(&queue->tail, from + i, 1, words);
            /* not flushed, and the ring cannot change under the lock */
            CMQ_ASSERT(there && unit_words <= CMQ_WORDS_MAX);
            memcpy(images + (size_t)i * unit_bytes, words, unit_bytes);
        }
        const cmq_status status = cmq_queue_file_write(queue, cmq_queue_folder(queue), &queue->files, from * unit_bytes,
                                                      images, (size_t)count * unit_bytes);
        if (status != CMQ_OK) return status;
        from += count;
        atomic_store_explicit(&queue->tail.flushed, from, memory_order_release);
    }
    return CMQ_OK;
}

cmq_status cmq_queue_write_tail(cmq_queue *queue, int64_t end)
{
    int64_t from = cmq_queue_tail_flushed(&queue->tail);
    CMQ_ASSERT(!queue->set->read_only && end <= cmq_queue_tail_next(&queue->tail));
    if (from < end) cmq_queue_note_first(queue, from);
    if (queue->tail.unit_words == CMQ_QUEUE_EXT_WORDS) {
        const cmq_status status = cmq_queue_extension_write(queue, from, end);
        if (status != CMQ_OK) return status;
    }
    if (queue->tail.unit_words != CMQ_QUEUE_WORDS) return write_staged(queue, from, end);
    while (from < end) {
        uint32_t count;
        const int64_t left = end - from;
        const void *run =
            cmq_queue_tail_run(&queue->tail, from, left < UINT32_MAX ? (uint32_t)left : UINT32_MAX, &count);
        const cmq_status status = cmq_queue_file_write(queue, CMQ_FOLDER_SIMPLE, &queue->files, from * CMQ_UNIT_BYTES,
                                                      run, (size_t)count * CMQ_UNIT_BYTES);
        if (status != CMQ_OK) return status;
        CMQ_ASSERT(count > 0 && count <= left);
        from += count;
        atomic_store_explicit(&queue->tail.flushed, from, memory_order_release);
    }
    return CMQ_OK;
}

/* One marked queue. It is marked again when it keeps units that were not confirmed, or could not be written. */
static cmq_status CMQ_MUST_CHECK flush_queue(cmq_queue *queue, int64_t confirmed_end)
{
    cmq_status status = CMQ_OK;
    for (bool more = true; more && status == CMQ_OK;) {
        cmq_queue_lock(queue);
        more = false;
        if (!cmq_queue_deleted(queue)) {
            int64_t end = cmq_queue_visible(queue, confirmed_end);
            const int64_t flushed = cmq_queue_tail_flushed(&queue->tail);
            more = end - flushed > LOCKED_UNITS;
            if (more) end = flushed + LOCKED_UNITS;
            CMQ_ASSERT(end - flushed <= LOCKED_UNITS);
            if (end > flushed) status = cmq_queue_write_tail(queue, end);
        }
        cmq_queue_unlock(queue);
    }
    if (cmq_queue_tail_flushed(&queue->tail) < cmq_queue_tail_next(&queue->tail)) cmq_queue_mark_dirty(queue);
    return status;
}

/* Call `each` for every marked queue, whose mark is taken first; the first failure is kept, the others go on. */
static cmq_status CMQ_MUST_CHECK for_marked(cmq_queues *queues, bool unsynced,
                                            cmq_status (*each)(cmq_queue *queue, void *context), void *context)
{
    cmq_status first = CMQ_OK;
    cmq_error error;
    uint32_t left = cmq_queues_count(queues);
    for (uint32_t number = 0; left > 0; number++) {
        const uint32_t in_block = CMQ_BLOCK_FIRST << number;
        const uint32_t count = left < in_block ? left : in_block;
        CMQ_ASSERT(number < CMQ_BLOCK_COUNT);
        cmq_queueblock *block = atomic_load_explicit(&queues->blocks[number], memory_order_acquire);
        _Atomic uint8_t *marks = unsynced ? block->unsynced : block->dirty;
        for (uint32_t i = 0; i < count; i++) {
            if (atomic_load_explicit(&marks[i], memory_order_relaxed) == 0) continue;
            if (atomic_exchange_explicit(&marks[i], 0, memory_order_acq_rel) == 0) continue;
            const cmq_status status = each(&block->queues[i], context);
            if (first != CMQ_OK || status == CMQ_OK) continue;
            first = status;
            error = *cmq_last_error();
        }
        left -= count;
    }
    return first == CMQ_OK ? CMQ_OK : cmq_fail_again(&error);
}

static cmq_status flush_each(cmq_queue *queue, void *context) { return flush_queue(queue, *(const int64_t *)context); }

/* ---- files to disk ---- */

typedef struct syncing {
    uint32_t files;          /* synced one by one so far */
    bool all;                /* too many: the rest by syncfs, folder by folder */
    bool failed;             /* a sync failed, and did not only lack a descriptor */
    bool used[CMQ_FOLDER_COUNT];
} syncing;

/* A folder that is gone was deleted with its topic. */
static cmq_status CMQ_MUST_CHECK sync_names(cmq_queue *queue, cmq_queuefolder folder, bool folder_too)
{
    char path[CMQ_PATH_BYTES];
    cmq_fs *fs = queue->set->fs;
    cmq_status status = cmq_queue_file_queue_path(queue, folder, path);
    if (status == CMQ_OK) status = cmq_fs_sync_directory(fs, path);
    if (status == CMQ_OK && folder_too) status = cmq_queue_file_topic_path(queue, folder, path);
    if (status == CMQ_OK && folder_too) status = cmq_fs_sync_directory(fs, path);
    if (status == CMQ_OK && folder_too) status = cmq_queue_file_root_path(queue->set, folder, path);
    if (status == CMQ_OK && folder_too) status = cmq_fs_sync_directory(fs, path);
    if (status == CMQ_OK && folder_too) status = cmq_fs_sync_directory(fs, queue->set->root);
    return status == CMQ_ERR_NOT_FOUND && cmq_queue_deleted(queue) ? CMQ_OK : status;
}

static cmq_status CMQ_MUST_CHECK sync_files(cmq_queue *queue, cmq_queuefolder folder, const cmq_queuefiles *noted,
                                            syncing *of)
{
    const int64_t file_bytes = queue->set->file_bytes[folder];
    CMQ_ASSERT(noted->unsynced >= 0 && noted->unsynced != CMQ_NOTHING_UNSYNCED);
    int64_t start = noted->unsynced / file_bytes * file_bytes;
    if (start < noted->first) start = noted->first;
    for (; start < noted->end; start += file_bytes) {
        cmq_cachedfile *taken;
        if (++of->files > SYNC_FILES_MAX) {
            of->all = true;
            return CMQ_OK;
        }
        cmq_status status = cmq_queue_file_take(queue, folder, start, &taken);
        /* Deleted with its topic, or by retention: there is nothing to make durable. */
        if (status == CMQ_ERR_NOT_FOUND) continue;
        if (status != CMQ_OK) return status;
        status = cmq_file_sync(taken->file);
        cmq_file_cache_release(queue->set->files, taken);
        if (status != CMQ_OK) return status;
    }
    return CMQ_OK;
}

/* Take what a queue noted in one folder, and sync it unless that waits for the syncfs of all. */
static cmq_status CMQ_MUST_CHECK sync_folder(cmq_queue *queue, cmq_queuefolder folder, cmq_queuefiles *files,
                                             syncing *of)
{
    cmq_queue_lock(queue);
    const cmq_queuefiles noted = *files;
    files->unsynced = CMQ_NOTHING_UNSYNCED;
    files->names_unsynced = false;
    files->folder_unsynced = false;
    cmq_queue_unlock(queue);
    cmq_status status = CMQ_OK;
    CMQ_ASSERT(noted.unsynced >= 0 && noted.first <= noted.end);
    if (noted.unsynced == CMQ_NOTHING_UNSYNCED && !noted.names_unsynced) return CMQ_OK;
    of->used[folder] = true;
    if (!of->all && noted.unsynced != CMQ_NOTHING_UNSYNCED) status = sync_files(queue, folder, &noted, of);
    if (!of->all && status == CMQ_OK && noted.names_unsynced) status = sync_names(queue, folder, noted.folder_unsynced);
    return status;
}

static cmq_status sync_each(cmq_queue *queue, void *context)
{
    syncing *of = context;
    CMQ_ASSERT(!queue->set->read_only && !queue->set->sync_failed);
    cmq_status status = sync_folder(queue, cmq_queue_folder(queue), &queue->files, of);
    of->failed |= status != CMQ_OK && !cmq_is_exhausted(status);
    cmq_queue_extension *ext = cmq_queue_ext_of(queue);
    if (ext == NULL) return status;
    const cmq_status ext_status = sync_folder(queue, CMQ_FOLDER_EXT, &ext->files, of);
    of->failed |= ext_status != CMQ_OK && !cmq_is_exhausted(ext_status);
    return status != CMQ_OK ? status : ext_status;
}

/* The folders may be mounts of their own: one syncfs each, which the kernel answers at once where it has just synced
 * the same disk. */
static cmq_status CMQ_MUST_CHECK sync_all(cmq_queues *queues, const syncing *of)
{
    CMQ_ASSERT(of->all && !of->failed);
    for (int folder = 0; folder < CMQ_FOLDER_COUNT; folder++) {
        char path[CMQ_PATH_BYTES];
        if (!of->used[folder]) continue;
        cmq_status status = cmq_queue_file_root_path(queues, (cmq_queuefolder)folder, path);
        if (status == CMQ_OK) status = cmq_fs_sync_all(queues->fs, path);
        if (status != CMQ_OK) return status;
    }
    return cmq_fs_sync_directory(queues->fs, queues->root);
}

static cmq_status CMQ_MUST_CHECK make_durable(cmq_queues *queues)
{
    if (queues->sync_failed)
        return cmq_fail(CMQ_ERR_FENCED, "a sync of the consume queues failed before; reopen the store");
    CMQ_ASSERT(!queues->read_only);
    syncing of = {0};
    for (int folder = 0; folder < CMQ_FOLDER_COUNT; folder++) {
        of.used[folder] = queues->sync_due[folder];
        of.all |= queues->sync_due[folder];
    }
    cmq_status status = for_marked(queues, true, sync_each, &of);
    if (status == CMQ_OK && of.all) status = sync_all(queues, &of);
    /* The kernel forgets what it could not write: a later sync that succeeds would prove nothing. */
    if (of.failed || (status != CMQ_OK && !cmq_is_exhausted(status))) queues->sync_failed = true;
    /* Without a descriptor no sync was tried, but the queues' notes are taken. */
    for (int folder = 0; folder < CMQ_FOLDER_COUNT; folder++)
        queues->sync_due[folder] = status != CMQ_OK && of.used[folder];
    return status;
}

cmq_status cmq_queues_flush(cmq_queues *queues, int64_t confirmed_end, bool durable, int64_t *covered_out)
{
    *covered_out = durable ? queues->covered_durable : queues->covered;
    if (queues->read_only) return cmq_fail(CMQ_ERR_READ_ONLY, "the consume queues were opened read-only");
    atomic_store_explicit(&queues->flush_wanted, false, memory_order_release);
    cmq_status status = for_marked(queues, false, flush_each, &confirmed_end);
    if (status != CMQ_OK) return status;
    CMQ_ASSERT(queues->covered_durable <= queues->covered);
    if (queues->covered < confirmed_end) queues->covered = confirmed_end;
    if (durable) {
        status = make_durable(queues);
        if (status != CMQ_OK) return status;
        if (queues->covered_durable < confirmed_end) queues->covered_durable = confirmed_end;
        cmq_queue_end_sums_store(queues, CMQ_QUEUE_ENDS_BYTES_MAX);
    }
    *covered_out = durable ? queues->covered_durable : queues->covered;
    CMQ_ASSERT(*covered_out >= confirmed_end && *covered_out <= queues->covered);
    return CMQ_OK;
}

bool cmq_queues_sync_failed(const cmq_queues *queues) { return queues->sync_failed; }

/* ---- followers ---- */

static cmq_status follow_each(cmq_queue *queue, void *context)
{
    CMQ_ASSERT(queue->set->read_only);
    cmq_queue_lock(queue);
    const int64_t end = cmq_queue_visible(queue, *(const int64_t *)context);
    CMQ_ASSERT(end <= cmq_queue_tail_next(&queue->tail));
    if (end > cmq_queue_tail_flushed(&queue->tail))
        atomic_store_explicit(&queue->tail.flushed, end, memory_order_release);
    cmq_queue_unlock(queue);
    if (cmq_queue_tail_flushed(&queue->tail) < cmq_queue_tail_next(&queue->tail)) cmq_queue_mark_dirty(queue);
    return CMQ_OK;
}

void cmq_queues_follow_files(cmq_queues *queues, int64_t files_end)
{
    CMQ_ASSERT(queues->read_only);
    (void)!for_marked(queues, false, follow_each, &files_end);
}

/* ---- retention ---- */

/* Where a queue's files may begin. */
typedef struct expiry {
    int64_t min_phy, durable_end;
} expiry;

static bool is_left(void *context, const cmq_unit *unit, cmq_status *status)
{
    (void)status;
    return unit->phy >= *(const int64_t *)context;
}

/* A damaged unit stays for its readers as long as the unit behind it does. */
static cmq_queue_probe left_from(int64_t *min_phy)
{
    return (cmq_queue_probe){.reached = is_left, .context = min_phy, .damaged_as_next = true};
}

/* Does the unit itself say whether its record has expired? */
static bool is_plain(const cmq_unit *unit) { return !cmq_unit_is_filler(unit) && !cmq_unit_is_damaged(unit); }

/* Whether every record of the first file starts below min_phy: its last unit says so, or its neighbours where that is a
 * filler or damaged. */
static cmq_status CMQ_MUST_CHECK holds_expired_only(cmq_queue *queue, int64_t min_phy, bool *expired_out)
{
    const int64_t unit_bytes = cmq_queue_unit_bytes(queue), file_bytes = cmq_queue_file_bytes(queue),
                  low = queue->files.first / unit_bytes, high = (queue->files.first + file_bytes) / unit_bytes,
                  two_files = (queue->files.first + 2 * file_bytes) / unit_bytes,
                  next = cmq_queue_tail_next(&queue->tail);
    const cmq_queue_probe probe = left_from(&min_phy);
    cmq_unit unit;
    uint32_t count;
    *expired_out = false;
    cmq_status status = cmq_queue_fetch(queue, high - 1, high, &unit, 1, &count);
    if (status != CMQ_OK || count == 0) return status;
    if (is_plain(&unit)) {
        *expired_out = unit.phy < min_phy;
        return CMQ_OK;
    }
    int64_t first;
    status = cmq_queue_first(queue, low, two_files < next ? two_files : next, &probe, &first);
    CMQ_ASSERT(status != CMQ_OK || first >= low);
    *expired_out = status == CMQ_OK && first >= high;
    return status;
}

cmq_status cmq_queue_correct_min(cmq_queue *queue, int64_t min_phy)
{
    const int64_t next = cmq_queue_tail_next(&queue->tail);
    int64_t min = atomic_load_explicit(&queue->min, memory_order_acquire);
    cmq_unit unit;
    uint32_t count;
    cmq_status status;
    const cmq_queue_probe probe = left_from(&min_phy);
    int64_t corrected = next;
    do {
        if (min >= next) return CMQ_OK;
        status = cmq_queue_fetch(queue, min, next, &unit, 1, &count);
        /* most often: nothing expired */
        if (status == CMQ_OK && count == 1 && is_plain(&unit) && unit.phy >= min_phy) {
            cmq_queue_note_begin(queue, min, unit.phy);
            return CMQ_OK;
        }
        if (status == CMQ_OK) status = cmq_queue_first(queue, min, next, &probe, &corrected);
    } while (cmq_queue_was_expired(queue, status, min, &min));
    if (status != CMQ_OK) return status;
    CMQ_ASSERT(corrected >= min && corrected <= next);
    atomic_store_explicit(&queue->set->ends_changed, true, memory_order_release);
    if (queue->tail.kind == CMQ_QUEUE_BATCH) return cmq_batch_queue_set_min(queue, corrected);
    atomic_store_explicit(&queue->min, corrected, memory_order_release);
    return CMQ_OK;
}

/* Drop the first file; min is behind it before the file is gone, so that a reader that misses it knows why. */
static cmq_status CMQ_MUST_CHECK drop_first_file(cmq_queue *queue)
{
    const int64_t file_bytes = cmq_queue_file_bytes(queue);
    const int64_t behind = (queue->files.first + file_bytes) / cmq_queue_unit_bytes(queue);
    /* the last file stays */
    CMQ_ASSERT(queue->files.first >= 0 && queue->files.first + file_bytes < queue->files.end);
    cmq_status status = CMQ_OK;
    if (atomic_load_explicit(&queue->min, memory_order_relaxed) < behind) {
        if (queue->tail.kind == CMQ_QUEUE_BATCH)
            status = cmq_batch_queue_set_min(queue, behind);
        else
            atomic_store_explicit(&queue->min, behind, memory_order_release);
    }
    if (status == CMQ_OK) status = cmq_queue_file_remove(queue, cmq_queue_folder(queue), queue->files.first);
    if (status != CMQ_OK) return status;
    queue->files.first += file_bytes;
    queue->files.names_unsynced = true;
    cmq_queue_mark_unsynced(queue);
    return CMQ_OK;
}

static cmq_status CMQ_MUST_CHECK expire_ext(cmq_queue *queue)
{
    const int64_t min = atomic_load_explicit(&queue->min, memory_order_relaxed);
    uint8_t image[CMQ_UNIT_BYTES];
    if (cmq_queue_ext_of(queue) == NULL || min >= cmq_queue_tail_flushed(&queue->tail)) return CMQ_OK;
    CMQ_ASSERT(queue->tail.kind == CMQ_QUEUE_SIMPLE && min >= 0);
    const cmq_status status = cmq_queue_file_read(queue, CMQ_FOLDER_SIMPLE, min * CMQ_UNIT_BYTES, image, sizeof image);
    return status != CMQ_OK ? status : cmq_queue_extension_expire(queue, cmq_load_i64(image + 12));
}

static cmq_status CMQ_MUST_CHECK first_file_expired(cmq_queue *queue, const expiry *of, bool *expired_out)
{
    const int64_t behind = (queue->files.first + cmq_queue_file_bytes(queue)) / cmq_queue_unit_bytes(queue);
    CMQ_ASSERT(queue->files.first >= 0);
    const cmq_status status = holds_expired_only(queue, of->min_phy, expired_out);
    if (status == CMQ_OK && *expired_out) *expired_out = cmq_queue_visible(queue, of->durable_end) > behind;
    return status;
}

/* With the queue's lock. */
static cmq_status CMQ_MUST_CHECK expire_queue(cmq_queue *queue, const expiry *of)
{
    cmq_status status = CMQ_OK;
    bool expired = !queue->set->read_only;
    while (status == CMQ_OK && expired && queue->files.first >= 0 &&
           queue->files.end - queue->files.first > cmq_queue_file_bytes(queue)) {
        status = first_file_expired(queue, of, &expired);
        if (status == CMQ_OK && expired) status = drop_first_file(queue);
    }
    if (status == CMQ_OK) status = cmq_queue_correct_min(queue, of->min_phy);
    return status == CMQ_OK ? expire_ext(queue) : status;
}

cmq_status cmq_queues_expire(cmq_queues *queues, int64_t min_phy, int64_t durable_end)
{
    const expiry of = {.min_phy = min_phy, .durable_end = durable_end};
    cmq_status first = CMQ_OK;
    for (uint32_t i = 0; i < cmq_queues_count(queues); i++) {
        cmq_queue *queue = cmq_queues_at(queues, i);
        if (cmq_queue_deleted(queue)) continue;
        cmq_queue_lock(queue);
        const cmq_status status = cmq_queue_deleted(queue) ? CMQ_OK : expire_queue(queue, &of);
        cmq_queue_unlock(queue);
        if (first == CMQ_OK) first = status;
    }
    if (first == CMQ_OK) atomic_store_explicit(&queues->corrected_to, min_phy, memory_order_release);
    return first;
}
