/* cmq_queue_delete: queues that go: a topic's, those that have expired, and in a follower those that another process
 * has deleted. See cmq_queue.h for the contract.
 *
 * A topic whose queues all go is renamed, folder and all, to cometmq/deleted/<number>: one step, while the writer
 * waits. Its files, of which there may be tens of thousands, are removed there afterwards, some at a time
 * (cmq_queues_empty_trash): each removal is a millisecond on a busy disk. Files that a crash or a close leaves there
 * are removed by the next writer. Where a folder cannot be renamed as a whole (a queue of it stays, a foreign folder is
 * in it, another file system) its queues are removed at once.
 *
 * Durability: the deletion is durable on return; the removals in cometmq/deleted need not be.
 * Threads:    delete, forget: the writer, while no flush runs. empty_trash: flush.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/cmq_assert.h"
#include "store/marks/cmq_own_files.h"
#include "store/queue/cmq_queue_file.h"
#include "store/queue/cmq_queue_internal.h"
#include "store/queue/cmq_queue_sums.h"

#define NAME_ATTEMPTS 10000        /* names of what an earlier writer left */
#define FOLDERS_SYNCED_MAX 64u     /* more are synced together */

/* ---- in memory ---- */

/* Readers that have it still find it empty, at the end of what it was. */
static void forget(cmq_queue *queue)
{
    cmq_queue_lock(queue);
    const int64_t next = cmq_queue_tail_next(&queue->tail);
    const uint8_t marks = atomic_fetch_or_explicit(&queue->tail.marks, CMQ_MARK_DELETED, memory_order_acq_rel);
    atomic_store_explicit(&queue->min, next, memory_order_release);
    atomic_store_explicit(&queue->last_end, 0, memory_order_release);
    if (queue->tail.kind == CMQ_QUEUE_BATCH)
        atomic_store_explicit(&cmq_queue_batch(queue)->min_offset, cmq_queue_batch(queue)->next_offset,
                              memory_order_release);
    cmq_queue_reset_tail(queue, next);
    cmq_queue_unlock(queue);
    if ((marks & CMQ_MARK_WATCHED) != 0) cmq_watches_forgotten(queue->set->watches, queue);
}

void cmq_queues_forget(cmq_queues *queues, bool (*dead)(void *context, cmq_queue *queue), void *context)
{
    CMQ_ASSERT(queues->read_only);
    for (uint32_t i = 0; i < cmq_queues_count(queues); i++) {
        cmq_queue *queue = cmq_queues_at(queues, i);
        if (!cmq_queue_deleted(queue) && dead(context, queue)) forget(queue);
    }
}

bool cmq_queue_expired(const cmq_queue *queue, int64_t min_phy)
{
    const int64_t last_end = atomic_load_explicit(&queue->last_end, memory_order_acquire);
    return last_end != 0 && last_end <= min_phy;
}

/* ---- on disk ---- */

/* Queues that are deleted together. */
typedef struct deletion {
    cmq_queues *set;
    cmq_queue **queues;
    uint32_t count, capacity;
    uint32_t left_folders;   /* topics' folders that stay, and have lost queues */
} deletion;

static cmq_queuefiles *files_of(cmq_queue *queue, cmq_queuefolder folder)
{
    cmq_queue_extension *ext = cmq_queue_ext_of(queue);
    if (folder == CMQ_FOLDER_EXT) return ext == NULL ? NULL : &ext->files;
    return cmq_queue_folder(queue) == folder ? &queue->files : NULL;
}

static cmq_status CMQ_MUST_CHECK trash_path(const cmq_queues *set, char into[CMQ_PATH_BYTES])
{
    return cmq_path_join(into, set->root, CMQ_OWN_FOLDER "/deleted");
}

/* Is everything in a topic's folder of queues that were deleted? */
static bool is_whole(const cmq_queues *set, cmq_slice topic, const char *path)
{
    char **names;
    size_t count;
    bool whole = true;
    if (cmq_fs_list(set->fs, path, &names, &count) != CMQ_OK) return false;
    for (size_t i = 0; i < count && whole; i++) {
        char *end;
        const long id = strtol(names[i], &end, 10);
        const cmq_queue *queue = *end == '\0' && names[i][0] >= '0' && names[i][0] <= '9' && id <= INT32_MAX
                                     ? cmq_queue_table_find(&set->table, topic, (int32_t)id)
                                     : NULL;
        whole = queue != NULL && cmq_queue_deleted(queue);
    }
    cmq_fs_free_names(names, count);
    return whole;
}

static cmq_status CMQ_MUST_CHECK move_to_trash(cmq_queues *set, const char *path)
{
    char trash[CMQ_PATH_BYTES], name[16], to[CMQ_PATH_BYTES];
    cmq_status status = trash_path(set, trash);
    if (status == CMQ_OK && !set->trash_made) status = cmq_fs_make_directory_in(set->fs, set->root, trash);
    set->trash_made = status == CMQ_OK;
    for (int attempt = 0; status == CMQ_OK && attempt < NAME_ATTEMPTS; attempt++) {
        snprintf(name, sizeof name, "%" PRIu32, set->trash_next++);
        status = cmq_path_join(to, trash, name);
        if (status == CMQ_OK) status = cmq_fs_rename(set->fs, path, to);
        if (status == CMQ_OK) {
            atomic_store_explicit(&set->has_trash, true, memory_order_release);
            return CMQ_OK;
        }
        const int failed = cmq_last_error()->sys_errno;
        if (failed == EEXIST || failed == ENOTEMPTY) status = CMQ_OK;
    }
    return status == CMQ_OK ? CMQ_ERR_LIMIT : status;
}

/* The files are elsewhere now: the caches must not give them for those of a new queue. */
static void drop_cached(cmq_queue *queue, cmq_queuefolder folder, cmq_queuefiles *files)
{
    if (files->first < 0) return;
    for (int64_t start = files->first; start < files->end; start += queue->set->file_bytes[folder])
        cmq_queue_file_drop(queue, folder, start);
    *files = CMQ_QUEUEFILES_NONE;
}

/* The sums of a topic whose queues were moved. Where it fails they stay: they do no harm to a topic that is re-created.
 * */
static void move_sums(const cmq_queue *queue)
{
    char path[CMQ_PATH_BYTES];
    cmq_file_info info;
    if (cmq_queue_sums_topic_path(queue, path) != CMQ_OK) return;
    if (cmq_fs_stat(queue->set->fs, path, &info) == CMQ_OK) (void)!move_to_trash(queue->set, path);
}

/* One folder of queues [from, end), which are of one topic. */
static cmq_status CMQ_MUST_CHECK delete_in_folder(deletion *of, uint32_t from, uint32_t end, cmq_queuefolder folder)
{
    cmq_queue *const *queues = of->queues;
    const cmq_queuetopic *topic = queues[from]->topic;
    char path[CMQ_PATH_BYTES];
    cmq_file_info info;
    cmq_status status = cmq_queue_file_topic_path(queues[from], folder, path);
    if (status == CMQ_OK) status = cmq_fs_stat(of->set->fs, path, &info);
    if (status != CMQ_OK) return status == CMQ_ERR_NOT_FOUND ? CMQ_OK : status;
    const cmq_slice name = {.data = (const uint8_t *)topic->name, .bytes = topic->bytes};
    const bool moved = is_whole(of->set, name, path) && move_to_trash(of->set, path) == CMQ_OK;
    if (moved && folder == CMQ_FOLDER_SIMPLE) move_sums(queues[from]);
    for (uint32_t i = from; i < end && status == CMQ_OK; i++) {
        cmq_queuefiles *files = files_of(queues[i], folder);
        if (files == NULL) continue;
        cmq_queue_lock(queues[i]);
        if (moved) drop_cached(queues[i], folder, files);
        else status = cmq_queue_file_remove_all(queues[i], folder, files);
        cmq_queue_unlock(queues[i]);
    }
    if (!moved) cmq_queue_file_remove_topic(queues[from], folder);
    if (cmq_fs_stat(of->set->fs, path, &info) == CMQ_OK) of->left_folders++;
    return status;
}

static cmq_status CMQ_MUST_CHECK sync_folder(cmq_queues *set, const char *path)
{
    cmq_file_info info;
    if (cmq_fs_stat(set->fs, path, &info) != CMQ_OK) return CMQ_OK;   /* no such folder: nothing of it to sync */
    return cmq_fs_sync_directory(set->fs, path);
}

static bool is_first_of_topic(const deletion *of, uint32_t i)
{
    return i == 0 || of->queues[i - 1]->topic != of->queues[i]->topic;
}

/* A queue that is back after a power loss would hold ordinals that other messages have now. */
static cmq_status CMQ_MUST_CHECK sync_deletion(deletion *of)
{
    char path[CMQ_PATH_BYTES];
    if (of->left_folders > FOLDERS_SYNCED_MAX) return cmq_fs_sync_all(of->set->fs, of->set->root);
    cmq_status status = CMQ_OK;
    for (int folder = 0; folder < CMQ_FOLDER_COUNT && status == CMQ_OK; folder++) {
        for (uint32_t i = 0; of->left_folders > 0 && i < of->count && status == CMQ_OK; i++) {
            if (!is_first_of_topic(of, i)) continue;
            status = cmq_queue_file_topic_path(of->queues[i], (cmq_queuefolder)folder, path);
            if (status == CMQ_OK) status = sync_folder(of->set, path);
        }
        if (status == CMQ_OK) status = cmq_queue_file_root_path(of->set, (cmq_queuefolder)folder, path);
        if (status == CMQ_OK) status = sync_folder(of->set, path);
    }
    if (status == CMQ_OK) status = trash_path(of->set, path);
    return status == CMQ_OK ? sync_folder(of->set, path) : status;
}

static int by_topic(const void *a, const void *b)
{
    const cmq_queue *left = *(cmq_queue *const *)a, *right = *(cmq_queue *const *)b;
    return ((uintptr_t)left->topic > (uintptr_t)right->topic) - ((uintptr_t)left->topic < (uintptr_t)right->topic);
}

/* ---- the calls ---- */

static cmq_status CMQ_MUST_CHECK add(deletion *of, cmq_queue *queue)
{
    if (of->count == of->capacity) {
        const uint32_t capacity = of->capacity == 0 ? 64 : of->capacity * 2;
        cmq_queue **grown = realloc(of->queues, capacity * sizeof *grown);
        if (grown == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for %" PRIu32 " queues to delete", capacity);
        of->queues = grown;
        of->capacity = capacity;
    }
    of->queues[of->count++] = queue;
    return CMQ_OK;
}

/* Delete the added queues. A failure part way leaves some of it deleted, and the rest forgotten: their files come back
 * with the next opening. */
static cmq_status CMQ_MUST_CHECK carry_out(deletion *of)
{
    cmq_status status = CMQ_OK;
    for (uint32_t i = 0; i < of->count; i++) forget(of->queues[i]);
    if (of->count > 1) qsort(of->queues, of->count, sizeof of->queues[0], by_topic);
    for (uint32_t from = 0, end; from < of->count && status == CMQ_OK; from = end) {
        for (end = from + 1; end < of->count && !is_first_of_topic(of, end);) end++;
        /* extensions before their queues */
        for (int folder = CMQ_FOLDER_COUNT; folder > 0 && status == CMQ_OK; folder--)
            status = delete_in_folder(of, from, end, (cmq_queuefolder)(folder - 1));
    }
    return status == CMQ_OK && of->count > 0 ? sync_deletion(of) : status;
}

cmq_status cmq_queues_delete_topic(cmq_queues *queues, cmq_slice topic)
{
    CMQ_ASSERT(!queues->read_only);
    deletion of = {.set = queues};
    cmq_status status = CMQ_OK;
    for (uint32_t i = 0; i < cmq_queues_count(queues) && status == CMQ_OK; i++) {
        cmq_queue *queue = cmq_queues_at(queues, i);
        const cmq_slice name = {.data = (const uint8_t *)queue->topic->name, .bytes = queue->topic->bytes};
        if (!cmq_queue_deleted(queue) && cmq_slice_equal(name, topic)) status = add(&of, queue);
    }
    if (of.count == 0 && status == CMQ_OK)
        status = cmq_fail(CMQ_ERR_NOT_FOUND, "there is no queue of topic %.*s", (int)topic.bytes,
                          (const char *)topic.data);
    if (status == CMQ_OK) status = carry_out(&of);
    free(of.queues);
    return status;
}

cmq_status cmq_queues_delete_expired(cmq_queues *queues, int64_t min_phy, bool (*keep)(void *context, cmq_slice topic),
                                     void *context, uint32_t *deleted_out)
{
    CMQ_ASSERT(!queues->read_only);
    deletion of = {.set = queues};
    cmq_status status = CMQ_OK;
    for (uint32_t i = 0; i < cmq_queues_count(queues) && status == CMQ_OK; i++) {
        cmq_queue *queue = cmq_queues_at(queues, i);
        const cmq_slice name = {.data = (const uint8_t *)queue->topic->name, .bytes = queue->topic->bytes};
        if (cmq_queue_deleted(queue) || !cmq_queue_expired(queue, min_phy) || (keep != NULL && keep(context, name)))
            continue;
        status = add(&of, queue);
    }
    if (status == CMQ_OK) status = carry_out(&of);
    *deleted_out = status == CMQ_OK ? of.count : 0;
    free(of.queues);
    return status;
}

/* ---- the trash ---- */

/* Remove what lies at `path`, as far as `left` removals go; CMQ_AGAIN when they do not reach. */
static cmq_status CMQ_MUST_CHECK remove_some(cmq_fs *fs, const char *path, uint32_t *left)
{
    cmq_file_info info;
    char **names, below[CMQ_PATH_BYTES];
    size_t count;
    cmq_status status = cmq_fs_stat(fs, path, &info);
    if (status == CMQ_ERR_NOT_FOUND) return CMQ_OK;
    if (status == CMQ_ERR_NOT_STORE) info.is_directory = false;   /* a link, a FIFO or the like: removed itself */
    else if (status != CMQ_OK) return status;
    status = CMQ_OK;
    if (info.is_directory) {
        status = cmq_fs_list(fs, path, &names, &count);
        if (status != CMQ_OK) return status;
        for (size_t i = 0; i < count && status == CMQ_OK; i++) {
            status = cmq_path_join(below, path, names[i]);
            if (status == CMQ_OK) status = remove_some(fs, below, left);
        }
        cmq_fs_free_names(names, count);
    }
    if (status != CMQ_OK) return status;
    if (*left == 0) return CMQ_AGAIN;
    --*left;
    return info.is_directory ? cmq_fs_remove_directory(fs, path) : cmq_fs_remove(fs, path);
}

cmq_status cmq_queues_trash_folder(cmq_queues *queues, char into[CMQ_PATH_BYTES])
{
    char trash[CMQ_PATH_BYTES], name[16];
    cmq_file_info info;
    cmq_status status = trash_path(queues, trash);
    for (int attempt = 0; status == CMQ_OK && attempt < NAME_ATTEMPTS; attempt++) {
        snprintf(name, sizeof name, "%" PRIu32, queues->trash_next++);
        status = cmq_path_join(into, trash, name);
        if (status == CMQ_OK) status = cmq_fs_stat(queues->fs, into, &info);
    }
    if (status != CMQ_ERR_NOT_FOUND)
        return status != CMQ_OK ? status : cmq_fail(CMQ_ERR_LIMIT, "%s is full; empty it", trash);
    atomic_store_explicit(&queues->has_trash, true, memory_order_release);
    return CMQ_OK;
}

bool cmq_queues_has_trash(const cmq_queues *queues)
{
    return atomic_load_explicit(&queues->has_trash, memory_order_acquire);
}

cmq_status cmq_queues_empty_trash(cmq_queues *queues, uint32_t removals)
{
    char trash[CMQ_PATH_BYTES];
    if (!cmq_queues_has_trash(queues)) return CMQ_OK;
    cmq_status status = trash_path(queues, trash);
    if (status == CMQ_OK) status = remove_some(queues->fs, trash, &removals);
    if (status == CMQ_AGAIN) return CMQ_OK;
    /* Gone, or not to be removed (a foreign hand, a failing disk): the next opening tries again. */
    atomic_store_explicit(&queues->has_trash, false, memory_order_release);
    queues->trash_made = false;
    return status;
}

void cmq_queues_look_for_trash(cmq_queues *queues)
{
    char trash[CMQ_PATH_BYTES];
    cmq_file_info info;
    if (trash_path(queues, trash) == CMQ_OK && cmq_fs_stat(queues->fs, trash, &info) == CMQ_OK && info.is_directory)
        atomic_store_explicit(&queues->has_trash, true, memory_order_release);
}
