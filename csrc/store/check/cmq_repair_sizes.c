/* cmq_repair_sizes: which sizes the queue and index files get that a repair builds.
 *
 * Mostly cmq_layout_probe finds them. Where queue or index files contradict each other (one was cut short, say), a
 * store does not open; a repair rebuilds them all and may go by the most common length. The caller's settings count
 * before all files.
 *
 * Threads: any; nothing is kept.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "store/check/cmq_repair_internal.h"
#include "store/index/cmq_index_file.h"

#define LENGTHS_MAX 64

/* How many files have which length. */
typedef struct votes {
    uint64_t bytes[LENGTHS_MAX];
    uint32_t files[LENGTHS_MAX];
    uint32_t count;
} votes;

static void vote(votes *of, uint64_t bytes, uint64_t unit)
{
    if (bytes == 0 || bytes % unit != 0 || bytes > INT64_MAX / 4) return;
    uint32_t i = 0;
    while (i < of->count && of->bytes[i] != bytes) i++;
    if (i == LENGTHS_MAX) return;
    if (i == of->count) {
        of->bytes[i] = bytes;
        of->files[i] = 0;
        of->count++;
    }
    of->files[i]++;
}

/* The most common length; the larger of two: files are cut short more often than made long. 0: there is no file. */
static uint64_t winner(const votes *of)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < of->count; i++)
        if (of->files[i] > of->files[best] || (of->files[i] == of->files[best] && of->bytes[i] > of->bytes[best]))
            best = i;
    return of->count == 0 ? 0 : of->bytes[best];
}

static bool is_digits(const char *name, size_t digits)
{
    size_t length = 0;
    for (; name[length] != '\0'; length++)
        if (name[length] < '0' || name[length] > '9') return false;
    return length == digits;
}

/* Collect the votes of a folder's files with names of `digits` digits; `levels` of folders are in between. */
static cmq_status CMQ_MUST_CHECK ask_folder(cmq_fs *fs, const char *folder, int levels, size_t digits, uint64_t unit,
                                            votes *of)
{
    char **names;
    size_t count;
    cmq_status status = cmq_fs_list(fs, folder, &names, &count);
    if (status == CMQ_ERR_NOT_FOUND || (status == CMQ_ERR_IO && cmq_last_error()->sys_errno == ENOTDIR)) return CMQ_OK;
    if (status != CMQ_OK) return status;
    char *path = malloc(CMQ_PATH_BYTES);
    if (path == NULL) status = cmq_fail(CMQ_ERR_MEMORY, "no memory to look at %s", folder);
    for (size_t i = 0; i < count && status == CMQ_OK; i++) {
        cmq_file_info info;
        status = cmq_path_join(path, folder, names[i]);
        if (status == CMQ_OK && levels > 0) {
            status = ask_folder(fs, path, levels - 1, digits, unit, of);
            continue;
        }
        if (!is_digits(names[i], digits)) continue;
        if (status == CMQ_OK) status = cmq_fs_stat(fs, path, &info);
        if (status == CMQ_OK && !info.is_directory) vote(of, info.bytes, unit);
    }
    free(path);
    cmq_fs_free_names(names, count);
    return status;
}

/* A size of derived files: the given one, else that of most files, else upstream's default. */
static cmq_status CMQ_MUST_CHECK choose(cmq_fs *fs, const char *root, const char *folder, uint64_t unit, int64_t given,
                                        int64_t normal, int64_t *size_out)
{
    char path[CMQ_PATH_BYTES];
    votes of = {0};
    *size_out = (given + (int64_t)unit - 1) / (int64_t)unit * (int64_t)unit;
    if (given > 0) return CMQ_OK;
    cmq_status status = cmq_path_join(path, root, folder);
    if (status == CMQ_OK) status = ask_folder(fs, path, 2, CMQ_OFFSET_NAME_BYTES - 1, unit, &of);
    *size_out = of.count > 0 ? (int64_t)winner(&of) : normal;
    return status;
}

/* The first index file of the winning length that shows its split. */
static cmq_status CMQ_MUST_CHECK choose_index(cmq_fs *fs, const char *root, const cmq_layout_sizes *given,
                                              const cmq_layout_sizes *normal, cmq_layout_sizes *sizes)
{
    char folder[CMQ_PATH_BYTES], path[CMQ_PATH_BYTES];
    votes of = {0};
    char **names;
    size_t count;
    sizes->index_slots = given->index_slots > 0 ? given->index_slots : normal->index_slots;
    sizes->index_entries = given->index_entries > 0 ? given->index_entries : normal->index_entries;
    if (given->index_slots > 0 && given->index_entries > 0) return CMQ_OK;
    cmq_status status = cmq_path_join(folder, root, "index");
    if (status == CMQ_OK) status = ask_folder(fs, folder, 0, 17, 4, &of);
    if (status != CMQ_OK || of.count == 0) return status;
    status = cmq_fs_list(fs, folder, &names, &count);
    if (status != CMQ_OK) return status;
    status = CMQ_ERR_AMBIGUOUS;
    for (size_t i = 0; i < count && status == CMQ_ERR_AMBIGUOUS; i++) {
        cmq_file_info info;
        if (!is_digits(names[i], 17) || cmq_path_join(path, folder, names[i]) != CMQ_OK) continue;
        if (cmq_fs_stat(fs, path, &info) != CMQ_OK || info.bytes != winner(&of)) continue;
        status = cmq_index_find_split(fs, path, &sizes->index_slots, &sizes->index_entries);
    }
    cmq_fs_free_names(names, count);
    if (status != CMQ_ERR_AMBIGUOUS) return status;
    /* as long as those that were made here before */
    if (winner(&of) == cmq_index_file_bytes(normal->index_slots, normal->index_entries)) {
        sizes->index_slots = normal->index_slots;
        sizes->index_entries = normal->index_entries;
        return CMQ_OK;
    }
    /* as long as upstream's are */
    if (winner(&of) == cmq_index_file_bytes(CMQ_INDEX_SLOTS_DEFAULT, CMQ_INDEX_ENTRIES_DEFAULT)) {
        sizes->index_slots = CMQ_INDEX_SLOTS_DEFAULT;
        sizes->index_entries = CMQ_INDEX_ENTRIES_DEFAULT;
        return CMQ_OK;
    }
    return cmq_fail(
        CMQ_ERR_AMBIGUOUS,
        "the index files do not tell their sizes: set maxHashSlotNum and maxIndexNum as the broker has them");
}

/* All segments must be of one length: the log cannot be rebuilt. */
static cmq_status CMQ_MUST_CHECK take_segment(cmq_fs *fs, const char *root, int64_t given, int64_t normal,
                                              int64_t *size_out)
{
    char path[CMQ_PATH_BYTES];
    votes of = {0};
    cmq_status status = cmq_path_join(path, root, "commitlog");
    if (status == CMQ_OK) status = ask_folder(fs, path, 0, CMQ_OFFSET_NAME_BYTES - 1, 1, &of);
    if (status != CMQ_OK) return status;
    *size_out = of.count > 0 ? (int64_t)of.bytes[0] : given > 0 ? given : normal;
    return of.count > 1 || (given > 0 && given != *size_out) ? CMQ_ERR_AMBIGUOUS : CMQ_OK;
}

static cmq_status CMQ_MUST_CHECK probe_by_votes(cmq_fs *fs, const char *root, const cmq_layout_sizes *given,
                                                cmq_layout *layout)
{
    const cmq_layout_sizes normal = cmq_layout_normal(fs, root);
    cmq_layout_sizes *sizes = &layout->sizes;
    char path[CMQ_PATH_BYTES];
    cmq_status status = take_segment(fs, root, given->segment_bytes, normal.segment_bytes, &sizes->segment_bytes);
    if (status == CMQ_OK)
        status = choose(fs, root, "consumequeue", CMQ_UNIT_BYTES, given->queue_file_bytes, normal.queue_file_bytes,
                        &sizes->queue_file_bytes);
    if (status == CMQ_OK)
        status = choose(fs, root, "batchconsumequeue", CMQ_BATCH_UNIT_BYTES, given->batch_file_bytes,
                        normal.batch_file_bytes, &sizes->batch_file_bytes);
    if (status == CMQ_OK)
        status = choose(fs, root, "consumequeue_ext", 1, given->ext_file_bytes, normal.ext_file_bytes,
                        &sizes->ext_file_bytes);
    if (status == CMQ_OK) status = choose_index(fs, root, given, &normal, sizes);
    if (status == CMQ_OK) status = cmq_path_join(path, root, "abort");
    if (status == CMQ_OK) status = cmq_file_tree_exists(fs, path, &layout->has_abort);
    layout->exists = layout->is_store = true;   /* the probe came as far as the sizes */
    return status;
}

cmq_status cmq_repair_probe(cmq_fs *fs, const char *root, const cmq_layout_sizes *given, cmq_layout *layout_out)
{
    const cmq_status probed = cmq_layout_probe(fs, root, given, layout_out);
    if (probed != CMQ_ERR_SETTING && probed != CMQ_ERR_AMBIGUOUS) return probed;
    const cmq_error error = *cmq_last_error();
    const bool sane = given->segment_bytes >= 0 && given->queue_file_bytes >= 0 && given->batch_file_bytes >= 0 &&
                      given->ext_file_bytes >= 0 && given->index_slots >= 0 && given->index_entries >= 0 &&
                      given->index_entries != 1;
    memset(layout_out, 0, sizeof *layout_out);
    const cmq_status status = sane ? probe_by_votes(fs, root, given, layout_out) : probed;
    return status == CMQ_ERR_AMBIGUOUS || !sane ? cmq_fail(probed, "%s", error.text) : status;
}
