/* cmq_repair: see cmq_repair.h.
 *
 *   1 lock; complete what an interrupted repair left 2 sizes, the queues that there are, the log 3 read the log, build
 *   beside (cmq_repair_build) 4 keep aside what will be cut or overwritten 5 journal the planned steps, and carry them
 *   out (cmq_repair_swap)
 *
 * Threads: as cmq_repair.h.
 */
#include "store/check/cmq_repair.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cmq_assert.h"
#include "store/check/cmq_repair_internal.h"
#include "store/cmq_store_paths.h"

/* ---- the store that is looked at ---- */

static cmq_status CMQ_MUST_CHECK make_store(cmq_repair *repair)
{
    const cmq_store_options *options = repair->options->store;
    cmq_store *store = calloc(1, sizeof *store);
    if (store == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for a store");
    repair->store = store;
    pthread_mutex_init(&store->writer_mutex, NULL);
    store->fs = repair->fs;
    store->clock = options->clock.now_ms != NULL ? options->clock : cmq_clock_system();
    store->options = *options;
    store->sizes = repair->report->sizes;
    memcpy(store->root, repair->root, strlen(repair->root) + 1);
    const char *levels = options->delay_levels != NULL ? options->delay_levels : CMQ_DELAY_LEVELS_DEFAULT;
    cmq_status status = cmq_delay_levels_parse(cmq_slice_of_text(levels), &store->delays);
    for (uint32_t i = 0; status == CMQ_OK && i < options->batch_topic_count; i++)
        status = cmq_store_set_batch_topic(store, cmq_slice_of_text(options->batch_topics[i]));
    return status == CMQ_OK ? cmq_checkpoint_load(repair->fs, repair->root, &store->checkpoint) : status;
}

static cmq_status CMQ_MUST_CHECK load_log(cmq_repair *repair)
{
    char path[CMQ_PATH_BYTES];
    const cmq_store_options *options = repair->options->store;
    cmq_status status = cmq_path_join(path, repair->root, "commitlog");
    if (status != CMQ_OK) return status;
    const char *const own[1] = {path};
    const bool given = options->commitlog_path_count > 0;
    const cmq_log_options log_options = {
        .fs = repair->fs,
        .paths = given ? options->commitlog_paths : own,
        .path_count = given ? options->commitlog_path_count : 1,
        .segment_bytes = repair->report->sizes.segment_bytes,
        .read_only = true,
    };
    status = cmq_log_create(&repair->store->log, &log_options);
    return status == CMQ_OK ? cmq_log_load(repair->store->log) : status;
}

static cmq_status CMQ_MUST_CHECK make_sets(cmq_repair *repair)
{
    const cmq_layout_sizes *sizes = &repair->report->sizes;
    const cmq_queues_options queues = {
        .fs = repair->fs,
        .root = repair->built,
        .queue_file_bytes = sizes->queue_file_bytes,
        .batch_file_bytes = sizes->batch_file_bytes,
        .ext_file_bytes = sizes->ext_file_bytes,
        .ext_enabled = repair->has_ext,
    };
    const cmq_index_options index = {
        .fs = repair->fs,
        .root = repair->built,
        .slots = sizes->index_slots,
        .entries = sizes->index_entries,
        .clock = repair->store->clock,
    };
    cmq_status status = cmq_file_tree_remove(repair->fs, repair->built);   /* left by an interrupted building */
    if (status == CMQ_OK) status = cmq_fs_make_directory(repair->fs, repair->built);
    if (status == CMQ_OK) status = cmq_queues_create(&repair->store->queues, &queues);
    if (status == CMQ_OK && !repair->store->options.index_disabled)
        status = cmq_index_create(&repair->store->index, &index);
    return status;
}

/* Read the entries of the index that there is: the new one keeps those that the log does not account for. An index that
 * cannot be read has none. */
static cmq_status CMQ_MUST_CHECK read_old_index(cmq_repair *repair)
{
    if (repair->store->options.index_disabled) return CMQ_OK;
    const cmq_layout_sizes *sizes = &repair->report->sizes;
    const cmq_index_options options = {
        .fs = repair->fs,
        .root = repair->root,
        .read_only = true,
        .only_fitting = true,
        .slots = sizes->index_slots,
        .entries = sizes->index_entries,
        .clock = repair->store->clock,
    };
    cmq_status status = cmq_index_create(&repair->old_index, &options);
    if (status == CMQ_OK) status = cmq_index_load(repair->old_index);
    if (status == CMQ_ERR_MEMORY || status == CMQ_ERR_LIMIT) return status;
    cmq_store_choose_tags(repair->store, repair->old_index);
    cmq_index_walk_begin(&repair->old_entries, repair->old_index);
    cmq_index_walk_next(&repair->old_entries);
    return CMQ_OK;
}

static void free_sets(cmq_store *store)
{
    cmq_index_destroy(store->index);
    cmq_queues_destroy(store->queues);
    store->index = NULL;
    store->queues = NULL;
}

static void free_store(cmq_store *store)
{
    if (store == NULL) return;
    free_sets(store);
    cmq_log_close(store->log, false);
    for (uint32_t i = 0; i < store->batch_topic_count; i++) free(store->batch_topics[i]);
    pthread_mutex_destroy(&store->writer_mutex);
    free(store);
}

/* ---- looking ---- */

/* Light queues say that the store has multi-dispatch, whatever the settings. */
static bool has_light_queues(const cmq_raw_queues *raw)
{
    for (uint32_t i = 0; i < cmq_raw_queues_count(raw); i++)
        if (cmq_is_lmq(cmq_slice_of_text(cmq_raw_queues_at(raw, i)->topic))) return true;
    return false;
}

static cmq_status CMQ_MUST_CHECK take_paths(cmq_repair *repair)
{
    if (repair->options->cut_damage && repair->options->fill_damage)
        return cmq_fail(CMQ_ERR_ARGUMENT, "damage is cut off or filled, not both");
    repair->root = repair->options->store->path;
    return cmq_path_join(repair->built, repair->root, CMQ_REPAIR_BUILT);
}

/* A folder that is a mount of its own cannot be put aside by renaming: fail now rather than half way. */
static cmq_status CMQ_MUST_CHECK check_folders(cmq_repair *repair)
{
    cmq_file_info root, folder;
    cmq_status status = cmq_fs_stat(repair->fs, repair->root, &root);
    for (int i = 0; i < CMQ_REPAIR_FOLDERS && status == CMQ_OK; i++) {
        char path[CMQ_PATH_BYTES];
        status = cmq_path_join(path, repair->root, cmq_repair_folders[i]);
        if (status == CMQ_OK) status = cmq_fs_stat(repair->fs, path, &folder);
        if (status == CMQ_ERR_NOT_FOUND) status = CMQ_OK;
        else if (status == CMQ_OK && folder.device != root.device)
            status = cmq_fail(CMQ_ERR_SETTING,
                              "%s is on another file system than the store, so it cannot be swapped by renaming: "
                              "unmount it, and repair rebuilds it beside the log",
                              path);
    }
    return status;
}

/* Find out what the directory holds, and with which sizes. */
static cmq_status CMQ_MUST_CHECK look(cmq_repair *repair)
{
    const cmq_store_options *options = repair->options->store;
    const cmq_layout_sizes given = {
        .segment_bytes = options->segment_bytes,
        .queue_file_bytes = options->queue_file_bytes,
        .batch_file_bytes = options->batch_file_bytes,
        .ext_file_bytes = options->ext_file_bytes,
        .index_slots = options->index_slots,
        .index_entries = options->index_entries,
    };
    cmq_layout layout;
    cmq_status status = cmq_repair_probe(repair->fs, repair->root, &given, &layout);
    if (status != CMQ_OK) return status;
    if (!layout.exists) return cmq_fail(CMQ_ERR_NOT_FOUND, "there is no directory %s", repair->root);
    if (!layout.is_store)
        return cmq_fail(CMQ_ERR_NOT_STORE,
                        "%s is not a RocketMQ store: it has neither commitlog nor consumequeue nor checkpoint",
                        repair->root);
    repair->report->sizes = layout.sizes;
    repair->report->was_unclean = layout.has_abort;
    char path[CMQ_PATH_BYTES];
    status = cmq_path_join(path, repair->root, "consumequeue_ext");
    if (status == CMQ_OK) status = cmq_file_tree_exists(repair->fs, path, &repair->has_ext);
    repair->has_ext = repair->has_ext || options->ext_enabled;
    if (status == CMQ_OK) status = check_folders(repair);
    if (status == CMQ_OK)
        status = cmq_raw_queues_load(repair->fs, repair->root, layout.sizes.queue_file_bytes,
                                     layout.sizes.batch_file_bytes, &repair->raw);
    if (status == CMQ_OK) status = make_store(repair);
    if (status != CMQ_OK) return status;
    repair->store->options.lmq_enabled = options->lmq_enabled || has_light_queues(repair->raw);
    status = load_log(repair);
    /* everything is built from the log */
    if (status == CMQ_OK) status = cmq_store_refuse_lost_log(repair->store);
    return status == CMQ_OK ? read_old_index(repair) : status;
}

/* ---- bytes behind the end ---- */

/* Bytes that are not zero behind the end, in its segment and in later ones. */
static int64_t bytes_behind(cmq_repair *repair)
{
    cmq_store *store = repair->store;
    const int64_t bytes = store->sizes.segment_bytes, limit = cmq_log_last_file_end(store->log);
    cmq_segment *segment;
    cmq_record_view view;
    int64_t from = repair->end;
    if (from >= limit) return 0;
    const cmq_status status = cmq_store_record_at(store, from, limit, 0, &segment, &view);
    if (status == CMQ_OK) cmq_segment_unpin(segment);
    /* a blank ends a segment in order */
    int64_t behind = status == CMQ_END ? 0 : cmq_store_bytes_behind(store, from);
    for (from = from - from % bytes + bytes; from < limit; from += bytes) behind += cmq_store_bytes_behind(store, from);
    return behind;
}

static void learn_tail(cmq_repair *repair)
{
    cmq_repair_report *report = repair->report;
    if (report->cut_at >= 0) return;
    report->tail_at = repair->end;
    report->tail_bytes = bytes_behind(repair);
    if (report->tail_bytes > 0 && repair->options->cut_tail) report->cut_at = repair->end;
}

/* Count what a cut takes, and, unless it is a dry run, keep the bytes of its segment. Later segments are moved when it
 * is done. */
static cmq_status CMQ_MUST_CHECK keep_cut(cmq_repair *repair)
{
    cmq_store *store = repair->store;
    cmq_repair_report *report = repair->report;
    const int64_t cut_at = report->cut_at, bytes = store->sizes.segment_bytes,
                  limit = cmq_log_last_file_end(store->log);
    if (cut_at < 0) return CMQ_OK;
    for (int64_t from = cut_at - cut_at % bytes + bytes; from < limit; from += bytes) report->cut_files++;
    const int64_t behind = cmq_store_bytes_behind(store, cut_at);
    report->cut_bytes = behind;
    if (repair->options->dry_run || behind == 0) return CMQ_OK;
    char to[CMQ_PATH_BYTES], name[CMQ_OFFSET_NAME_BYTES + 8], from[CMQ_PATH_BYTES];
    cmq_segment *segment;
    const uint8_t *data;
    size_t available;
    int64_t copied;
    cmq_status status = cmq_log_pin(store->log, cut_at, &segment, &data, &available);
    if (status != CMQ_OK) return status;
    memcpy(from, cmq_segment_path(segment), strlen(cmq_segment_path(segment)) + 1);
    cmq_segment_unpin(segment);
    cmq_path_offset_name(name, cut_at);
    strcat(name, ".cut");
    status = cmq_path_join(to, repair->side, "commitlog");
    if (status == CMQ_OK) status = cmq_fs_make_directory(repair->fs, to);
    char folder[CMQ_PATH_BYTES];
    memcpy(folder, to, sizeof folder);
    if (status == CMQ_OK) status = cmq_path_join(to, to, name);
    if (status == CMQ_OK) status = cmq_file_tree_copy(repair->fs, from, cut_at % bytes, behind, to, &copied);
    return status == CMQ_OK ? cmq_fs_sync_directory(repair->fs, folder) : status;
}

/* ---- writing it down ---- */

static cmq_status CMQ_MUST_CHECK keep_file(cmq_repair *repair, const char *name)
{
    char from[CMQ_PATH_BYTES], to[CMQ_PATH_BYTES];
    cmq_file_info info;
    int64_t copied;
    cmq_status status = cmq_path_join(from, repair->root, name);
    if (status == CMQ_OK) status = cmq_path_join(to, repair->side, name);
    if (status == CMQ_OK) status = cmq_fs_stat(repair->fs, from, &info);
    if (status == CMQ_ERR_NOT_FOUND) return CMQ_OK;
    return status == CMQ_OK ? cmq_file_tree_copy(repair->fs, from, 0, (int64_t)info.bytes, to, &copied) : status;
}

static void fill_journal(cmq_repair *repair)
{
    cmq_repair_journal *journal = &repair->journal;
    cmq_store *store = repair->store;
    cmq_durable_point *point = &journal->point;
    const bool tail_stays = repair->report->cut_at < 0 && repair->report->tail_bytes > 0;
    journal->segment_bytes = store->sizes.segment_bytes;
    journal->cut_at = repair->report->cut_at;
    journal->remove_abort = !tail_stays;   /* with a torn tail the next opening must know that it may be one */
    journal->checkpoint_before = cmq_checkpoint_crc(&store->checkpoint);
    journal->checkpoint = (cmq_checkpoint){
        .physic_ms = repair->last_ms,
        .logics_ms = repair->last_ms,
        .index_ms = point->index.end_ms,
        .master_flushed = store->checkpoint.master_flushed,
        .confirm_phy = repair->last_phy >= 0 ? repair->last_phy : 0,
    };
    point->log_end = repair->end;
    point->store_ms = repair->last_ms;
    point->last_phy = repair->last_phy;
    if (!cmq_store_fingerprint(store, repair->last_phy, &point->last_bytes, &point->last_crc)) point->last_phy = -1;
}

/* A killed process's bytes may be in memory only; all that was read must be durable from now on. */
static cmq_status CMQ_MUST_CHECK make_log_durable(cmq_repair *repair)
{
    const cmq_store_options *options = repair->options->store;
    cmq_status status = cmq_fs_sync_all(repair->fs, repair->root);
    for (uint32_t i = 0; i < options->commitlog_path_count && status == CMQ_OK; i++)
        status = cmq_fs_sync_all(repair->fs, options->commitlog_paths[i]);
    return status;
}

/* Everything up to the journal: afterwards there is no way back. */
static cmq_status CMQ_MUST_CHECK decide(cmq_repair *repair)
{
    char removed[CMQ_PATH_BYTES];
    cmq_status status = cmq_repair_complete(repair);
    free_sets(repair->store);
    if (status == CMQ_OK) status = make_log_durable(repair);
    if (status == CMQ_OK)
        status = cmq_own_files_make_removed(repair->fs, repair->root, cmq_clock_now_ms(&repair->store->clock),
                                            repair->journal.stamp, repair->side);
    if (status == CMQ_OK) status = keep_file(repair, "checkpoint");
    if (status == CMQ_OK) status = keep_file(repair, "abort");
    if (status == CMQ_OK) status = keep_cut(repair);
    if (status == CMQ_OK) status = cmq_repair_keep_fills(repair);
    if (status == CMQ_OK) status = cmq_fs_sync_directory(repair->fs, repair->side);
    if (status == CMQ_OK) status = cmq_path_join(removed, repair->root, CMQ_REMOVED_FOLDER);
    if (status == CMQ_OK) status = cmq_fs_sync_directory(repair->fs, removed);
    if (status != CMQ_OK) return status;
    fill_journal(repair);
    return cmq_repair_write_journal(repair->fs, repair->root, &repair->journal);
}

/* Remove the built and the kept files; the store is as it was. Its own failures are of no interest beside the one that
 * led here. */
static void give_up(cmq_repair *repair)
{
    if (repair->options->dry_run) return;
    const cmq_error error = *cmq_last_error();
    if (repair->store != NULL) free_sets(repair->store);
    cmq_status status = cmq_file_tree_remove(repair->fs, repair->built);
    if (status == CMQ_OK && repair->side[0] != '\0') status = cmq_file_tree_remove(repair->fs, repair->side);
    if (error.status != CMQ_OK) status = cmq_fail(error.status, "%s", error.text);
    (void)status;
}

/* ---- the whole ---- */

static cmq_status CMQ_MUST_CHECK finish(cmq_repair *repair, bool *finished_out)
{
    const cmq_store_options *options = repair->options->store;
    return cmq_repair_finish(repair->fs, repair->root, options->commitlog_paths, options->commitlog_path_count,
                             finished_out);
}

static cmq_status CMQ_MUST_CHECK build_and_swap(cmq_repair *repair)
{
    bool finished, pending = false;
    cmq_status status = make_sets(repair);
    if (status == CMQ_OK) status = cmq_repair_walk(repair);
    if (status == CMQ_OK && !repair->stopped) {
        learn_tail(repair);
        status = decide(repair);
        /* A journal that may have been written is not taken back: it is carried out now, or by the next opening. */
        if (status != CMQ_OK && (cmq_repair_pending(repair->fs, repair->root, &pending) != CMQ_OK || pending))
            return status;
    }
    if (status != CMQ_OK || repair->stopped) {
        give_up(repair);
        return status;
    }
    memcpy(repair->report->kept, repair->side, sizeof repair->side);
    return finish(repair, &finished);
}

static cmq_status CMQ_MUST_CHECK repair_locked(cmq_repair *repair)
{
    cmq_status status = repair->options->dry_run
                            ? cmq_repair_pending(repair->fs, repair->root, &repair->report->finished_earlier)
                            : finish(repair, &repair->report->finished_earlier);
    if (status == CMQ_OK) status = look(repair);
    if (status != CMQ_OK) return status;
    if (!repair->options->dry_run) {
        status = build_and_swap(repair);
    } else {
        status = cmq_repair_walk(repair);
        if (status == CMQ_OK && !repair->stopped) {
            learn_tail(repair);
            status = keep_cut(repair);
        }
    }
    repair->report->complete = status == CMQ_OK && !repair->stopped;
    return status;
}

/* A dry run takes no lock: it only asks for the writer. */
static cmq_status CMQ_MUST_CHECK lock_or_ask(cmq_repair *repair, cmq_lock **lock_out)
{
    char path[CMQ_PATH_BYTES];
    int64_t holder;
    *lock_out = NULL;
    cmq_status status = cmq_path_join(path, repair->root, "lock");
    if (status != CMQ_OK) return status;
    if (!repair->options->dry_run) return cmq_lock_acquire(repair->fs, path, lock_out);
    status = cmq_lock_probe(repair->fs, path, &holder);
    if (status != CMQ_OK || holder == CMQ_LOCK_FREE) return status;
    if (holder == CMQ_LOCK_HOLDER_UNKNOWN)
        return cmq_fail(CMQ_ERR_LOCKED, "%s is locked by a process of another host or container", path);
    return cmq_fail(CMQ_ERR_LOCKED, "%s is locked by process %" PRId64, path, holder);
}

/* Check first: no lock file may be made in a foreign folder. */
static cmq_status CMQ_MUST_CHECK check_store(cmq_repair *repair)
{
    static const char *const marks[] = {"commitlog", "consumequeue", "checkpoint"};
    bool exists = false;
    cmq_status status = cmq_file_tree_exists(repair->fs, repair->root, &exists);
    if (status == CMQ_OK && !exists) return cmq_fail(CMQ_ERR_NOT_FOUND, "there is no directory %s", repair->root);
    exists = false;
    for (size_t i = 0; i < sizeof marks / sizeof marks[0] && status == CMQ_OK && !exists; i++) {
        char path[CMQ_PATH_BYTES];
        status = cmq_path_join(path, repair->root, marks[i]);
        if (status == CMQ_OK) status = cmq_file_tree_exists(repair->fs, path, &exists);
    }
    if (status == CMQ_OK && !exists)
        status = cmq_fail(CMQ_ERR_NOT_STORE,
                          "%s is not a RocketMQ store: it has neither commitlog nor consumequeue nor checkpoint",
                          repair->root);
    return status;
}

/* `options` has its paths resolved. */
static cmq_status CMQ_MUST_CHECK repair_resolved(cmq_fs *fs, const cmq_repair_options *options,
                                                 cmq_repair_report *report_out)
{
    cmq_repair *repair = calloc(1, sizeof *repair);
    if (repair == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory to repair");
    repair->options = options;
    repair->report = report_out;
    repair->fs = fs;
    cmq_lock *lock = NULL;
    cmq_status status = take_paths(repair);
    if (status == CMQ_OK) status = check_store(repair);
    if (status == CMQ_OK) status = lock_or_ask(repair, &lock);
    if (status == CMQ_OK) status = repair_locked(repair);
    free_store(repair->store);
    cmq_raw_queues_free(repair->raw);
    cmq_index_destroy(repair->old_index);
    free(repair->pending.keys);
    free(repair->record_keys.keys);
    free(repair->fills);
    cmq_lock_release(lock);
    free(repair);
    return status;
}

cmq_status cmq_store_repair(const cmq_repair_options *options, cmq_repair_report *report_out)
{
    *report_out = (cmq_repair_report){.first_damage = -1, .cut_at = -1};
    cmq_fs *fs = options->store->fs != NULL ? options->store->fs : cmq_fs_posix();
    cmq_store_options store = *options->store;
    cmq_repair_options resolved = *options;
    resolved.store = &store;
    cmq_store_paths paths;
    cmq_status status = cmq_store_paths_resolve(&paths, fs, &store);
    if (status == CMQ_OK) status = repair_resolved(fs, &resolved, report_out);
    cmq_store_paths_free(&paths);
    return status;
}
