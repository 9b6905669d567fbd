/* cmq_layout: see cmq_layout.h. */
#include "store/marks/cmq_layout.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "store/index/cmq_index.h"
#include "store/marks/cmq_durable_point.h"
#include "store/marks/cmq_own_files.h"

#define QUEUE_FILES_LOOKED_AT 8      /* of each kind of queue */
#define QUEUE_FOLDERS_LOOKED_AT 256  /* folders without a file do not make us walk 50,000 of them */

#define SETTING_MAX (INT64_C(1) << 62)

typedef struct probe {
    cmq_fs *fs;
    const char *root;
    cmq_layout_sizes settings;
    cmq_layout_sizes normal;   /* where neither settings nor files say anything */
    cmq_layout *layout;
} probe;

/* The files of one kind seen so far, and what they should agree on. */
typedef struct lengths {
    const char *option;     /* upstream's name of the size */
    uint64_t set;           /* the caller's setting; 0: none */
    uint64_t unit;          /* the length is a multiple of it */
    uint64_t bytes;         /* of the files; 0: none seen */
    uint32_t files;
    char first[CMQ_PATH_BYTES];
} lengths;

/* ---- names ---- */

static bool is_number(const char *name)
{
    if (*name == '\0') return false;
    for (; *name != '\0'; name++)
        if (*name < '0' || *name > '9') return false;
    return true;
}

static bool is_among(const char *name, char *const *names, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(names[i], name) == 0) return true;
    return false;
}

/* The place behind the last name that is an offset: a file of length 0 is forgiven there only, as upstream does. */
static size_t behind_last_offset(char *const *names, size_t count)
{
    int64_t offset;
    while (count > 0 && cmq_path_parse_offset_name(names[count - 1], &offset) != CMQ_OK) count--;
    return count;
}

/* Names of a folder; none when there is no such folder, or it is a file. */
static cmq_status list(cmq_fs *fs, const char *path, char ***names_out, size_t *count_out)
{
    *names_out = NULL;
    *count_out = 0;
    cmq_file_info info;
    cmq_status status = cmq_fs_stat(fs, path, &info);
    if (status == CMQ_ERR_NOT_FOUND || (status == CMQ_OK && !info.is_directory)) return CMQ_OK;
    if (status == CMQ_OK) status = cmq_fs_list(fs, path, names_out, count_out);
    return status == CMQ_ERR_NOT_FOUND ? CMQ_OK : status;   /* deleted meanwhile */
}

static void free_names(char **names, size_t count)
{
    if (names != NULL) cmq_fs_free_names(names, count);
}

static cmq_status is_there(cmq_fs *fs, const char *folder, const char *name, bool *there_out)
{
    *there_out = false;
    char path[CMQ_PATH_BYTES];
    cmq_status status = cmq_path_join(path, folder, name);
    cmq_file_info info;
    if (status == CMQ_OK) status = cmq_fs_stat(fs, path, &info);
    if (status == CMQ_ERR_NOT_FOUND) return CMQ_OK;
    *there_out = status == CMQ_OK;
    return status;
}

/* ---- lengths of 20-digit files ---- */

/* Two segments of two lengths: zeros in the place of truncated bytes, and filler records over them, keep the rest. */
static cmq_status fail_segment_lengths(const lengths *kind, const char *path, uint64_t bytes)
{
    const bool first_is_short = kind->bytes < bytes;
    const char *const shorter = first_is_short ? kind->first : path;
    const char *const name = strrchr(shorter, '/');
    const char *const other = strrchr(first_is_short ? path : kind->first, '/');
    const uint64_t most = first_is_short ? bytes : kind->bytes;
    /* The path comes last, as a long one is cut, and a shell would take some for several words. */
    return cmq_fail(CMQ_ERR_AMBIGUOUS,
                    "segment %s has %" PRIu64 " bytes, but %s has %" PRIu64
                    ": all files must be of %s; if it was truncated, run `truncate -s %" PRIu64
                    " %s` in its folder, then `cometmq repair --fill` (%s)",
                    name != NULL ? name + 1 : shorter, first_is_short ? kind->bytes : bytes,
                    other != NULL ? other + 1 : "another", most, kind->option, most, name != NULL ? name + 1 : shorter,
                    shorter);
}

/* One more file of a kind: is its length like the others', and like the setting? */
static cmq_status take_length(lengths *kind, const char *path, uint64_t bytes)
{
    if (kind->bytes == 0) {
        if (kind->set != 0 && bytes != kind->set)
            return cmq_fail(CMQ_ERR_SETTING, "%s is set to %" PRIu64 ", but %s has %" PRIu64 " bytes", kind->option,
                            kind->set, path, bytes);
        if (bytes == 0 || bytes % kind->unit != 0 || bytes > INT64_MAX)
            return cmq_fail(CMQ_ERR_AMBIGUOUS, "%s has %" PRIu64 " bytes, which no %s makes: remove or complete it",
                            path, bytes, kind->option);
        kind->bytes = bytes;
        memcpy(kind->first, path, sizeof kind->first);
    } else if (bytes != kind->bytes && strcmp(kind->option, "mappedFileSizeCommitLog") == 0) {
        return fail_segment_lengths(kind, path, bytes);
    } else if (bytes != kind->bytes) {
        return cmq_fail(CMQ_ERR_AMBIGUOUS, "%s has %" PRIu64 " bytes, but %s has %" PRIu64 ": all files must be of %s",
                        path, bytes, kind->first, kind->bytes, kind->option);
    }
    kind->files++;
    return CMQ_OK;
}

/* Every file of a data folder counts in upstream: a foreign one stops a broker, so it stops us, with its name. A last
 * file of length 0 is a creation that did not finish. Folders are skipped. */
static cmq_status take_file(probe *look, lengths *kind, const char *folder, const char *name, bool last,
                            int64_t *start_out, bool *taken_out)
{
    *taken_out = false;
    char path[CMQ_PATH_BYTES];
    cmq_status status = cmq_path_join(path, folder, name);
    cmq_file_info info;
    if (status == CMQ_OK) status = cmq_fs_stat(look->fs, path, &info);
    if (status == CMQ_ERR_NOT_FOUND) return CMQ_OK;   /* deleted meanwhile by its writer */
    if (status != CMQ_OK) return status;
    if (info.is_directory || (info.bytes == 0 && last)) return CMQ_OK;
    if (cmq_path_parse_offset_name(name, start_out) != CMQ_OK)
        return cmq_fail(CMQ_ERR_NOT_STORE, "%s does not belong into a store's data folder: move it away", path);
    *taken_out = true;
    return take_length(kind, path, info.bytes);
}

static cmq_status take_setting(int64_t set, const char *option, uint64_t *into)
{
    if (set < 0 || set > SETTING_MAX)
        return cmq_fail(CMQ_ERR_SETTING, "%s is set to %" PRId64 ", which is not between 1 and %" PRId64, option, set,
                        SETTING_MAX);
    *into = (uint64_t)set;
    return CMQ_OK;
}

static void give_size(probe *look, const lengths *kind, uint32_t bit, int64_t normal, int64_t *size_out)
{
    *size_out = kind->bytes != 0 ? (int64_t)kind->bytes : kind->set != 0 ? (int64_t)kind->set : normal;
    if (kind->bytes != 0) look->layout->found |= bit;
}

/* ---- commit log ---- */

static cmq_status probe_log(probe *look)
{
    lengths kind = {.option = "mappedFileSizeCommitLog", .unit = 1};
    char folder[CMQ_PATH_BYTES];
    cmq_status status = take_setting(look->settings.segment_bytes, kind.option, &kind.set);
    if (status == CMQ_OK) status = cmq_path_join(folder, look->root, "commitlog");
    if (status != CMQ_OK) return status;
    char **names;
    size_t count;
    status = list(look->fs, folder, &names, &count);
    const size_t end = behind_last_offset(names, count);
    for (size_t i = 0; i < count && status == CMQ_OK; i++) {
        int64_t start = 0;
        bool taken;
        status = take_file(look, &kind, folder, names[i], i + 1 == end, &start, &taken);
        if (status == CMQ_OK && taken && look->layout->segment_count++ == 0) look->layout->segment_first = start;
    }
    free_names(names, count);
    if (status == CMQ_OK)
        give_size(look, &kind, CMQ_FOUND_SEGMENT, look->normal.segment_bytes, &look->layout->sizes.segment_bytes);
    return status;
}

/* ---- queues ---- */

static cmq_status look_at_queue(probe *look, lengths *kind, const char *folder)
{
    char **names;
    size_t count;
    cmq_status status = list(look->fs, folder, &names, &count);
    for (size_t i = 0; i < count && status == CMQ_OK && kind->files < QUEUE_FILES_LOOKED_AT; i++) {
        int64_t start;
        bool taken;
        /* Lengths of queue files are made durable together, so a power loss may leave any of them at 0. */
        status = take_file(look, kind, folder, names[i], true, &start, &taken);
    }
    free_names(names, count);
    return status;
}

static cmq_status look_at_topic(probe *look, lengths *kind, const char *folder, uint32_t *folders)
{
    char **names;
    size_t count;
    cmq_status status = list(look->fs, folder, &names, &count);
    for (size_t i = 0;
         i < count && status == CMQ_OK && kind->files < QUEUE_FILES_LOOKED_AT && *folders < QUEUE_FOLDERS_LOOKED_AT;
         i++) {
        if (!is_number(names[i])) continue;   /* upstream skips names that are not queue ids */
        char queue[CMQ_PATH_BYTES];
        ++*folders;
        status = cmq_path_join(queue, folder, names[i]);
        if (status == CMQ_OK) status = look_at_queue(look, kind, queue);
    }
    free_names(names, count);
    return status;
}

static bool is_rocksdb(char *const *names, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(names[i], "CURRENT") == 0 || strncmp(names[i], "MANIFEST-", 9) == 0) return true;
    return false;
}

static cmq_status look_at_queues(probe *look, lengths *kind, const char *name)
{
    char folder[CMQ_PATH_BYTES];
    cmq_status status = cmq_path_join(folder, look->root, name);
    if (status != CMQ_OK) return status;
    char **names;
    size_t count;
    status = list(look->fs, folder, &names, &count);
    if (status == CMQ_OK && is_rocksdb(names, count))
        status = cmq_fail(CMQ_ERR_NOT_STORE,
                          "%s is a RocksDB database (storeType=defaultRocksDB): only file queues are read. A broker "
                          "with storeType=default "
                          "rebuilds them from the log",
                          folder);
    uint32_t folders = 0;
    for (size_t i = 0;
         i < count && status == CMQ_OK && kind->files < QUEUE_FILES_LOOKED_AT && folders < QUEUE_FOLDERS_LOOKED_AT;
         i++) {
        char topic[CMQ_PATH_BYTES];
        status = cmq_path_join(topic, folder, names[i]);
        if (status == CMQ_OK) status = look_at_topic(look, kind, topic, &folders);
    }
    free_names(names, count);
    return status;
}

static cmq_status probe_queues(probe *look)
{
    lengths simple = {.option = "mappedFileSizeConsumeQueue", .unit = 20};
    lengths batch = {.option = "mapperFileSizeBatchConsumeQueue", .unit = 46};
    lengths ext = {.option = "mappedFileSizeConsumeQueueExt", .unit = 1};
    const cmq_layout_sizes *set = &look->settings;
    cmq_status status = take_setting(set->queue_file_bytes, simple.option, &simple.set);
    if (status == CMQ_OK) status = take_setting(set->batch_file_bytes, batch.option, &batch.set);
    if (status == CMQ_OK) status = take_setting(set->ext_file_bytes, ext.option, &ext.set);
    if (status != CMQ_OK) return status;
    simple.set = (simple.set + 19) / 20 * 20;
    if (batch.set % batch.unit != 0)
        return cmq_fail(CMQ_ERR_SETTING, "%s is set to %" PRIu64 ", which is not a multiple of 46", batch.option,
                        batch.set);
    status = look_at_queues(look, &simple, "consumequeue");
    if (status == CMQ_OK) status = look_at_queues(look, &batch, "batchconsumequeue");
    if (status == CMQ_OK) status = look_at_queues(look, &ext, "consumequeue_ext");
    if (status != CMQ_OK) return status;
    cmq_layout_sizes *sizes = &look->layout->sizes;
    give_size(look, &simple, CMQ_FOUND_QUEUE, look->normal.queue_file_bytes, &sizes->queue_file_bytes);
    give_size(look, &batch, CMQ_FOUND_BATCH, look->normal.batch_file_bytes, &sizes->batch_file_bytes);
    give_size(look, &ext, CMQ_FOUND_EXT, look->normal.ext_file_bytes, &sizes->ext_file_bytes);
    return CMQ_OK;
}

/* ---- index ---- */

static uint64_t split_bytes(int64_t slots, int64_t entries)
{
    return (uint64_t)(CMQ_INDEX_HEADER_BYTES + slots * CMQ_INDEX_SLOT_BYTES + entries * CMQ_INDEX_ENTRY_BYTES);
}

/* One of the two settings and the length give the other. */
static bool complete_setting(uint64_t bytes, int64_t *slots, int64_t *entries)
{
    if (*slots == 0 && *entries == 0) return false;
    const uint64_t known = split_bytes(*slots, *entries);
    if (bytes >= known && *entries == 0) *entries = (int64_t)((bytes - known) / CMQ_INDEX_ENTRY_BYTES);
    else if (bytes >= known && *slots == 0) *slots = (int64_t)((bytes - known) / CMQ_INDEX_SLOT_BYTES);
    return *slots <= INT32_MAX && *entries <= INT32_MAX;
}

/* Check the settings against a file: first its length, then its chains, if they are clear. */
static cmq_status check_setting(probe *look, const char *path, uint64_t bytes, bool known, int32_t slots,
                                int32_t entries)
{
    int64_t set_slots = look->settings.index_slots, set_entries = look->settings.index_entries;
    if (!complete_setting(bytes, &set_slots, &set_entries) || split_bytes(set_slots, set_entries) != bytes ||
        set_slots < 1 || set_entries < 2)
        return cmq_fail(CMQ_ERR_SETTING,
                        "maxHashSlotNum is set to %d and maxIndexNum to %d (0: not set), but index file %s has %" PRIu64
                        " bytes",
                        look->settings.index_slots, look->settings.index_entries, path, bytes);
    if (known && (slots != set_slots || entries != set_entries))
        return cmq_fail(CMQ_ERR_SETTING,
                        "maxHashSlotNum %" PRId64 " and maxIndexNum %" PRId64
                        " are set, but the chains of index file %s show %d and %d",
                        set_slots, set_entries, path, slots, entries);
    look->layout->sizes.index_slots = (int32_t)set_slots;
    look->layout->sizes.index_entries = (int32_t)set_entries;
    look->layout->found |= CMQ_FOUND_INDEX;
    return CMQ_OK;
}

/* The oldest files first: they are full, so they tell most. */
static cmq_status find_split(probe *look, char (*paths)[CMQ_PATH_BYTES], size_t count, uint64_t bytes)
{
    int32_t slots = 0, entries = 0;
    cmq_status status = CMQ_ERR_AMBIGUOUS;
    for (size_t i = 0; i < count && status == CMQ_ERR_AMBIGUOUS; i++)
        status = cmq_index_find_split(look->fs, paths[i], &slots, &entries);
    if (look->settings.index_slots != 0 || look->settings.index_entries != 0) {
        if (status != CMQ_OK && status != CMQ_ERR_AMBIGUOUS) return status;
        return check_setting(look, paths[0], bytes, status == CMQ_OK, slots, entries);
    }
    /* Empty ones: as long as those that were made here before, or as upstream's. */
    if (status == CMQ_ERR_AMBIGUOUS && bytes == split_bytes(look->normal.index_slots, look->normal.index_entries))
        return CMQ_OK;
    if (status == CMQ_ERR_AMBIGUOUS && bytes == split_bytes(CMQ_INDEX_SLOTS_DEFAULT, CMQ_INDEX_ENTRIES_DEFAULT)) {
        look->layout->sizes.index_slots = CMQ_INDEX_SLOTS_DEFAULT;
        look->layout->sizes.index_entries = CMQ_INDEX_ENTRIES_DEFAULT;
        return CMQ_OK;
    }
    if (status != CMQ_OK) return status;
    look->layout->sizes.index_slots = slots;
    look->layout->sizes.index_entries = entries;
    look->layout->found |= CMQ_FOUND_INDEX;
    return CMQ_OK;
}

#define INDEX_FILES_LOOKED_AT 4

static cmq_status look_at_index(probe *look, const char *folder, char *const *names, size_t count)
{
    lengths kind = {.option = "maxHashSlotNum and maxIndexNum", .unit = 4};
    char(*paths)[CMQ_PATH_BYTES] = malloc(INDEX_FILES_LOOKED_AT * sizeof *paths);
    if (paths == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory to look at %s", folder);
    size_t files = 0;
    cmq_status status = CMQ_OK;
    for (size_t i = 0; i < count && status == CMQ_OK; i++) {
        if (!is_number(names[i]) || strlen(names[i]) != 17) continue;   /* upstream skips names that are not numbers */
        char path[CMQ_PATH_BYTES];
        cmq_file_info info;
        status = cmq_path_join(path, folder, names[i]);
        if (status == CMQ_OK) status = cmq_fs_stat(look->fs, path, &info);
        if (status == CMQ_ERR_NOT_FOUND) status = CMQ_OK;   /* deleted meanwhile by its writer */
        else if (status == CMQ_OK && !info.is_directory && info.bytes > 0) {
            status = take_length(&kind, path, info.bytes);
            if (files < INDEX_FILES_LOOKED_AT) memcpy(paths[files++], path, sizeof path);
        }
    }
    if (status == CMQ_OK && files > 0) status = find_split(look, paths, files, kind.bytes);
    free(paths);
    return status;
}

static cmq_status probe_index(probe *look)
{
    const cmq_layout_sizes *set = &look->settings;
    if (set->index_slots < 0 || set->index_entries < 0 || set->index_entries == 1)
        return cmq_fail(CMQ_ERR_SETTING, "maxHashSlotNum %d must be at least 1 and maxIndexNum %d at least 2",
                        set->index_slots, set->index_entries);
    look->layout->sizes.index_slots = set->index_slots != 0 ? set->index_slots : look->normal.index_slots;
    look->layout->sizes.index_entries = set->index_entries != 0 ? set->index_entries : look->normal.index_entries;
    char folder[CMQ_PATH_BYTES];
    cmq_status status = cmq_path_join(folder, look->root, "index");
    if (status != CMQ_OK) return status;
    char **names;
    size_t count;
    status = list(look->fs, folder, &names, &count);
    if (status == CMQ_OK) status = look_at_index(look, folder, names, count);
    free_names(names, count);
    return status;
}

/* ---- the directory ---- */

static cmq_status refuse_rocksdb_config(probe *look)
{
    static const char *const folders[] = {"config/rdb", "config/topics", "config/consumerOffsets",
                                          "config/subscriptionGroups"};
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++) {
        char folder[CMQ_PATH_BYTES];
        cmq_status status = cmq_path_join(folder, look->root, folders[i]);
        bool there = false;
        if (status == CMQ_OK) status = is_there(look->fs, folder, "CURRENT", &there);
        if (status == CMQ_OK && there)
            status = cmq_fail(CMQ_ERR_NOT_STORE,
                              "%s is a RocksDB database: topics, groups and offsets in RocksDB are not read. Export "
                              "them to JSON with "
                              "`mqadmin rocksDBConfigToJson` and move the folder away",
                              folder);
        if (status != CMQ_OK) return status;
    }
    return CMQ_OK;
}

static cmq_status look_at_root(probe *look, char *const *names, size_t count)
{
    cmq_layout *layout = look->layout;
    layout->is_empty = true;
    for (size_t i = 0; i < count; i++) {
        if (strncmp(names[i], "dledger-", 8) == 0)
            return cmq_fail(CMQ_ERR_NOT_STORE,
                            "%s/%s is a DLedger log (enableDLegerCommitLog=true): only the plain commit log is read",
                            look->root, names[i]);
        if (strcmp(names[i], CMQ_OWN_FOLDER) != 0 && strcmp(names[i], "lock") != 0) layout->is_empty = false;
    }
    layout->has_abort = is_among("abort", names, count);
    layout->is_store = is_among("commitlog", names, count) || is_among("consumequeue", names, count) ||
                       is_among("checkpoint", names, count);
    return CMQ_OK;
}

static cmq_status probe_root(probe *look)
{
    cmq_file_info info;
    cmq_status status = cmq_fs_stat(look->fs, look->root, &info);
    if (status == CMQ_ERR_NOT_FOUND) {
        look->layout->is_empty = true;
        return CMQ_OK;
    }
    if (status != CMQ_OK) return status;
    if (!info.is_directory) return cmq_fail(CMQ_ERR_NOT_STORE, "%s is a file, not a store's directory", look->root);
    look->layout->exists = true;
    char **names;
    size_t count;
    status = list(look->fs, look->root, &names, &count);
    if (status == CMQ_OK) status = look_at_root(look, names, count);
    free_names(names, count);
    if (status == CMQ_OK) status = cmq_durable_point_refuse_newer(look->fs, look->root);
    return status == CMQ_OK ? refuse_rocksdb_config(look) : status;
}

static void prefer_i64(int64_t *size, int64_t remembered)
{
    if (remembered > 0) *size = remembered;
}

static void prefer_i32(int32_t *size, int32_t remembered)
{
    if (remembered > 0) *size = remembered;
}

cmq_layout_sizes cmq_layout_normal(cmq_fs *fs, const char *root)
{
    cmq_durable_point point;
    bool found;
    cmq_layout_sizes sizes = {CMQ_SEGMENT_BYTES_DEFAULT,  CMQ_QUEUE_FILE_BYTES_DEFAULT, CMQ_BATCH_FILE_BYTES_DEFAULT,
                              CMQ_EXT_FILE_BYTES_DEFAULT, CMQ_INDEX_SLOTS_DEFAULT,      CMQ_INDEX_ENTRIES_DEFAULT};
    /* A point that cannot be read remembers nothing. */
    if (cmq_durable_point_load(fs, root, &point, &found) != CMQ_OK || !found) return sizes;
    prefer_i64(&sizes.segment_bytes, point.sizes.segment_bytes);
    prefer_i64(&sizes.queue_file_bytes, point.sizes.queue_file_bytes);
    prefer_i64(&sizes.batch_file_bytes, point.sizes.batch_file_bytes);
    prefer_i64(&sizes.ext_file_bytes, point.sizes.ext_file_bytes);
    prefer_i32(&sizes.index_slots, point.sizes.index_slots);
    prefer_i32(&sizes.index_entries, point.sizes.index_entries);
    return sizes;
}

cmq_status cmq_layout_probe(cmq_fs *fs, const char *root, const cmq_layout_sizes *settings, cmq_layout *layout_out)
{
    memset(layout_out, 0, sizeof *layout_out);
    probe look = {.fs = fs, .root = root, .layout = layout_out};
    if (settings != NULL) look.settings = *settings;
    look.normal = cmq_layout_normal(fs, root);
    cmq_status status = probe_root(&look);
    if (status == CMQ_OK) status = probe_log(&look);
    if (status == CMQ_OK) status = probe_queues(&look);
    if (status == CMQ_OK) status = probe_index(&look);
    return status;
}
