/* cmq_queue_load: finds the queues and files of a store directory, from names and lengths alone.
 *
 * Rules (upstream's, spec store 1.1 to 1.3, 3.9): folders that are no queue ids are skipped; every regular file in a
 * queue's folder must be one of its files; another length is a wrong setting. Empty files are left by a crash while a
 * file was being made: they are removed. Names with a gap (an unsynced creation or removal was lost) are noted for
 * recovery, which knows which side is worth keeping.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "store/queue/cmq_queue_file.h"
#include "store/queue/cmq_queue_internal.h"

/* One name in a queue's folder: *start_out is -1 for any other file. */
static cmq_status CMQ_MUST_CHECK learn_file(cmq_queues *set, cmq_queuefolder folder, const char *directory,
                                            const char *name, int64_t *start_out)
{
    char path[CMQ_PATH_BYTES];
    cmq_file_info info;
    *start_out = -1;
    cmq_status status = cmq_path_join(path, directory, name);
    if (status == CMQ_OK) status = cmq_fs_stat(set->fs, path, &info);
    /* a follower: removed meanwhile */
    if (status != CMQ_OK) return status == CMQ_ERR_NOT_FOUND && set->read_only ? CMQ_OK : status;
    if (info.is_directory) return CMQ_OK;
    int64_t start;
    status = cmq_path_parse_offset_name(name, &start);
    if (status != CMQ_OK) return cmq_fail_context("%s holds a file that is not a queue's; move it away", directory);
    if (info.bytes == 0) return set->read_only ? CMQ_OK : cmq_fs_remove(set->fs, path);
    if (info.bytes != (uint64_t)set->file_bytes[folder])
        return cmq_fail(CMQ_ERR_SETTING, "%s has %" PRIu64 " bytes, not %" PRId64 ": give %s=%" PRIu64, path,
                        info.bytes, set->file_bytes[folder], cmq_queue_file_setting(folder), info.bytes);
    if (start % set->file_bytes[folder] != 0 || start > INT64_MAX - 2 * set->file_bytes[folder])
        return cmq_fail(CMQ_ERR_NOT_STORE, "%s: a file name is a multiple of %" PRId64, path, set->file_bytes[folder]);
    *start_out = start;
    return CMQ_OK;
}

static cmq_status CMQ_MUST_CHECK note_gap(cmq_queue *queue, const int64_t *starts, size_t count)
{
    cmq_queuegap *gap = malloc(sizeof *gap + count * sizeof gap->starts[0]);
    if (gap == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for %zu file names", count);
    gap->queue = queue;
    gap->count = (uint32_t)count;
    memcpy(gap->starts, starts, count * sizeof starts[0]);
    gap->next = queue->set->load_gaps;
    queue->set->load_gaps = gap;
    return CMQ_OK;
}

/* The files of one queue, in order of their names, which is the order of their starts. */
static cmq_status CMQ_MUST_CHECK learn_files(cmq_queue *queue, cmq_queuefolder folder, const char *directory,
                                             cmq_queuefiles *files)
{
    const int64_t file_bytes = queue->set->file_bytes[folder];
    char **names;
    size_t count, kept = 0;
    cmq_status status = cmq_queue_file_list(queue->set->fs, directory, &names, &count);
    if (status != CMQ_OK || count == 0) return status;
    int64_t *starts = malloc(count * sizeof *starts);
    if (starts == NULL) status = cmq_fail(CMQ_ERR_MEMORY, "no memory for %zu file names", count);
    for (size_t i = 0; i < count && status == CMQ_OK; i++) {
        int64_t start;
        status = learn_file(queue->set, folder, directory, names[i], &start);
        if (status == CMQ_OK && start >= 0) starts[kept++] = start;
    }
    if (status == CMQ_OK && kept > 0) {
        size_t run = 1;
        while (run < kept && starts[run] == starts[run - 1] + file_bytes) run++;
        files->first = starts[0];
        files->end = starts[run - 1] + file_bytes;
        if (run < kept && folder == CMQ_FOLDER_EXT)
            files->first = starts[kept - 1], files->end = files->first + file_bytes;
        if (run < kept && folder != CMQ_FOLDER_EXT) status = note_gap(queue, starts, kept);
    }
    free(starts);
    cmq_fs_free_names(names, count);
    return status;
}

/* One queue folder. An extension belongs to a queue that is there already. */
static cmq_status CMQ_MUST_CHECK learn_queue(cmq_queues *set, cmq_queuefolder folder, cmq_slice topic, int32_t id,
                                             const char *directory)
{
    cmq_queue *queue = cmq_queues_find(set, topic, id);
    if (folder == CMQ_FOLDER_EXT) {
        cmq_queue_extension *ext = queue == NULL ? NULL : cmq_queue_ext_of(queue);
        return ext == NULL ? CMQ_OK : learn_files(queue, folder, directory, &ext->files);
    }
    /* a topic that changed its kind: the first folder wins */
    if (queue != NULL && cmq_queue_folder(queue) != folder) return CMQ_OK;
    cmq_status status = CMQ_OK;
    if (queue == NULL)
        status =
            cmq_queues_add(set, topic, id, folder == CMQ_FOLDER_BATCH ? CMQ_QUEUE_BATCH : CMQ_QUEUE_SIMPLE, &queue);
    return status != CMQ_OK ? status : learn_files(queue, folder, directory, &queue->files);
}

static cmq_status CMQ_MUST_CHECK learn_topic(cmq_queues *set, cmq_queuefolder folder, const char *root,
                                             const char *topic)
{
    char directory[CMQ_PATH_BYTES], path[CMQ_PATH_BYTES];
    char **names;
    size_t count;
    cmq_status status = cmq_path_join(directory, root, topic);
    if (status == CMQ_OK) status = cmq_queue_file_list(set->fs, directory, &names, &count);
    if (status != CMQ_OK) return status;
    for (size_t i = 0; i < count && status == CMQ_OK; i++) {
        const int32_t id = cmq_queue_file_parse_id(names[i]);
        if (id < 0) continue;
        status = cmq_path_join(path, directory, names[i]);
        if (status == CMQ_OK) status = learn_queue(set, folder, cmq_slice_of_text(topic), id, path);
    }
    cmq_fs_free_names(names, count);
    return status;
}

static bool is_rocksdb(const char *name) { return strcmp(name, "CURRENT") == 0 || strncmp(name, "MANIFEST-", 9) == 0; }

static cmq_status CMQ_MUST_CHECK learn_folder(cmq_queues *set, cmq_queuefolder folder)
{
    char root[CMQ_PATH_BYTES];
    char **names;
    size_t count;
    cmq_status status = cmq_queue_file_root_path(set, folder, root);
    if (status == CMQ_OK) status = cmq_queue_file_list(set->fs, root, &names, &count);
    if (status != CMQ_OK) return status;
    for (size_t i = 0; i < count && status == CMQ_OK; i++) {
        if (folder == CMQ_FOLDER_SIMPLE && is_rocksdb(names[i]))
            status =
                cmq_fail(CMQ_ERR_NOT_STORE,
                         "%s is a RocksDB database (storeType=defaultRocksDB); only file queues are supported", root);
    }
    for (size_t i = 0; i < count && status == CMQ_OK; i++) status = learn_topic(set, folder, root, names[i]);
    cmq_fs_free_names(names, count);
    return status;
}

cmq_status cmq_queues_load(cmq_queues *queues)
{
    char path[CMQ_PATH_BYTES];
    cmq_file_info info;
    cmq_status status = cmq_queue_file_root_path(queues, CMQ_FOLDER_EXT, path);
    if (status != CMQ_OK) return status;
    queues->ext_seen = cmq_fs_stat(queues->fs, path, &info) == CMQ_OK;
    status = learn_folder(queues, CMQ_FOLDER_SIMPLE);
    if (status == CMQ_OK) status = learn_folder(queues, CMQ_FOLDER_BATCH);
    if (status == CMQ_OK && queues->ext_seen) status = learn_folder(queues, CMQ_FOLDER_EXT);
    if (status == CMQ_OK && !queues->read_only) cmq_queues_look_for_trash(queues);
    return status;
}
