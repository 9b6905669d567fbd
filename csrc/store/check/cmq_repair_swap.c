/* cmq_repair_swap: a repair's decisions are journaled, durably, in cometmq/repair, and then carried out. The next
 * repair, or the next opening for writing, carries out the rest.
 *
 * Each step may be done again: a folder is swapped while its new one lies in cometmq/rebuild; segments behind the cut
 * are moved while they are there; blanking zeros is nothing; fillers are the same bytes again; checkpoint and point are
 * rewritten.
 *
 * The file, big-endian:
 *   0 magic u64   8 version u32   12 flags u32 (1: remove abort)   16 segment_bytes   24 cut_at   32 crc of
 *   `checkpoint` before u32   36 last_bytes i32 40 checkpoint (40 bytes)   80 log_end   88 store_ms   96 index:
 *   file_name i64, count i32, slots_used i32, begin_ms, end_ms, begin_phy, end_phy 144 last_phy   152 last_crc u32
 *   156 stamp (40 bytes)   196 crc32 of the bytes before
 *
 * Threads: the holder of the store's lock.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/cmq_assert.h"
#include "base/cmq_crc32.h"
#include "store/check/cmq_repair_internal.h"
#include "store/marks/cmq_abort.h"
#include "store/marks/cmq_own_files.h"

#define MAGIC UINT64_C(0x434D515245504149)   /* "CMQREPAI" */
#define VERSION 1u
#define FLAG_REMOVE_ABORT 1u
#define JOURNAL_BYTES 200
#define JOURNAL_NAME CMQ_OWN_FOLDER "/repair"

_Static_assert(156 + CMQ_REMOVED_STAMP_BYTES + 4 == JOURNAL_BYTES, "the crc ends the journal");
_Static_assert(40 + CMQ_CHECKPOINT_KNOWN_BYTES == 80, "the checkpoint's known bytes");

const char *const cmq_repair_folders[CMQ_REPAIR_FOLDERS] = {"consumequeue", "batchconsumequeue", "consumequeue_ext",
                                                            "index"};

/* ---- the journal ---- */

static void encode(const cmq_repair_journal *journal, uint8_t at[JOURNAL_BYTES])
{
    const cmq_durable_point *point = &journal->point;
    memset(at, 0, JOURNAL_BYTES);
    cmq_store_u64(at, MAGIC);
    cmq_store_u32(at + 8, VERSION);
    cmq_store_u32(at + 12, journal->remove_abort ? FLAG_REMOVE_ABORT : 0);
    cmq_store_i64(at + 16, journal->segment_bytes);
    cmq_store_i64(at + 24, journal->cut_at);
    cmq_store_u32(at + 32, journal->checkpoint_before);
    cmq_store_i32(at + 36, point->last_bytes);
    cmq_checkpoint_encode(&journal->checkpoint, at + 40);
    cmq_store_i64(at + 80, point->log_end);
    cmq_store_i64(at + 88, point->store_ms);
    cmq_store_i64(at + 96, point->index.file_name);
    cmq_store_i32(at + 104, point->index.count);
    cmq_store_i32(at + 108, point->index.slots_used);
    cmq_store_i64(at + 112, point->index.begin_ms);
    cmq_store_i64(at + 120, point->index.end_ms);
    cmq_store_i64(at + 128, point->index.begin_phy);
    cmq_store_i64(at + 136, point->index.end_phy);
    cmq_store_i64(at + 144, point->last_phy);
    cmq_store_u32(at + 152, point->last_crc);
    memcpy(at + 156, journal->stamp, CMQ_REMOVED_STAMP_BYTES);
    cmq_store_u32(at + 196, cmq_crc32(at, JOURNAL_BYTES - 4));
}

/* A stamp is one name of ours: nothing in it may lead out of the folder. */
static bool stamp_is_sound(const char *stamp)
{
    size_t length = 0;
    for (; length < CMQ_REMOVED_STAMP_BYTES && stamp[length] != '\0'; length++)
        if (stamp[length] == '/' || stamp[length] == '.') return false;
    return length > 0 && length < CMQ_REMOVED_STAMP_BYTES;
}

static bool decode(const uint8_t at[JOURNAL_BYTES], cmq_repair_journal *journal)
{
    memset(journal, 0, sizeof *journal);
    if (cmq_load_u64(at) != MAGIC || cmq_load_u32(at + 8) != VERSION) return false;
    if (cmq_load_u32(at + 196) != cmq_crc32(at, JOURNAL_BYTES - 4)) return false;
    journal->remove_abort = (cmq_load_u32(at + 12) & FLAG_REMOVE_ABORT) != 0;
    journal->segment_bytes = cmq_load_i64(at + 16);
    journal->cut_at = cmq_load_i64(at + 24);
    journal->checkpoint_before = cmq_load_u32(at + 32);
    journal->checkpoint.physic_ms = cmq_load_i64(at + 40);
    journal->checkpoint.logics_ms = cmq_load_i64(at + 48);
    journal->checkpoint.index_ms = cmq_load_i64(at + 56);
    journal->checkpoint.master_flushed = cmq_load_i64(at + 64);
    journal->checkpoint.confirm_phy = cmq_load_i64(at + 72);
    journal->point = (cmq_durable_point){
        .log_end = cmq_load_i64(at + 80),
        .store_ms = cmq_load_i64(at + 88),
        .index = {.file_name = cmq_load_i64(at + 96),
                  .count = cmq_load_i32(at + 104),
                  .slots_used = cmq_load_i32(at + 108),
                  .begin_ms = cmq_load_i64(at + 112),
                  .end_ms = cmq_load_i64(at + 120),
                  .begin_phy = cmq_load_i64(at + 128),
                  .end_phy = cmq_load_i64(at + 136)},
        .last_phy = cmq_load_i64(at + 144),
        .last_bytes = cmq_load_i32(at + 36),
        .last_crc = cmq_load_u32(at + 152),
        .checkpoint_crc = cmq_checkpoint_crc(&journal->checkpoint),
        .clean = true,
    };
    memcpy(journal->stamp, at + 156, CMQ_REMOVED_STAMP_BYTES);
    return stamp_is_sound(journal->stamp) && journal->segment_bytes > 0 && journal->cut_at >= -1;
}

cmq_status cmq_repair_write_journal(cmq_fs *fs, const char *root, const cmq_repair_journal *journal)
{
    char path[CMQ_PATH_BYTES], draft[CMQ_PATH_BYTES], folder[CMQ_PATH_BYTES];
    uint8_t at[JOURNAL_BYTES];
    cmq_file *file;
    encode(journal, at);
    cmq_status status = cmq_path_join(path, root, JOURNAL_NAME);
    if (status == CMQ_OK) status = cmq_path_join(draft, root, JOURNAL_NAME ".tmp");
    if (status == CMQ_OK) status = cmq_path_join(folder, root, CMQ_OWN_FOLDER);
    if (status == CMQ_OK) status = cmq_file_open(fs, draft, CMQ_OPEN_CREATE, &file);
    if (status != CMQ_OK) return status;
    status = cmq_file_resize(file, 0);
    if (status == CMQ_OK) status = cmq_file_write(file, 0, at, sizeof at);
    if (status == CMQ_OK) status = cmq_file_sync(file);
    cmq_file_close(file);
    if (status == CMQ_OK) status = cmq_fs_rename(fs, draft, path);
    if (status == CMQ_OK) status = cmq_fs_sync_directory(fs, folder);
    return status;
}

/* *found_out false: there is none. */
static cmq_status CMQ_MUST_CHECK read_journal(cmq_fs *fs, const char *root, cmq_repair_journal *journal,
                                              bool *found_out)
{
    char path[CMQ_PATH_BYTES];
    uint8_t at[JOURNAL_BYTES];
    cmq_file *file;
    *found_out = false;
    cmq_status status = cmq_path_join(path, root, JOURNAL_NAME);
    if (status == CMQ_OK) status = cmq_file_open(fs, path, CMQ_OPEN_READ, &file);
    if (status == CMQ_ERR_NOT_FOUND) return CMQ_OK;
    if (status != CMQ_OK) return status;
    status = cmq_file_read(file, 0, at, sizeof at);
    cmq_file_close(file);
    if (status == CMQ_OK && !decode(at, journal)) status = CMQ_ERR_CORRUPT;
    if (status == CMQ_ERR_CORRUPT)
        return cmq_fail(CMQ_ERR_CORRUPT,
                        "%s, the journal of an interrupted repair, is damaged or of another version. Remove it and run "
                        "`cometmq repair` again",
                        path);
    *found_out = status == CMQ_OK;
    return status;
}

cmq_status cmq_repair_pending(cmq_fs *fs, const char *root, bool *pending_out)
{
    cmq_repair_journal journal;
    return read_journal(fs, root, &journal, pending_out);
}

/* ---- the swap ---- */

typedef struct swap {
    cmq_fs *fs;
    const char *root;
    const char *const *log_paths;
    uint32_t log_path_count;
    const cmq_repair_journal *journal;
    char built[CMQ_PATH_BYTES], side[CMQ_PATH_BYTES];
} swap;

static cmq_status CMQ_MUST_CHECK swap_folder(const swap *of, const char *name)
{
    char built[CMQ_PATH_BYTES], used[CMQ_PATH_BYTES], kept[CMQ_PATH_BYTES];
    bool ready, there;
    cmq_status status = cmq_path_join(built, of->built, name);
    if (status == CMQ_OK) status = cmq_path_join(used, of->root, name);
    if (status == CMQ_OK) status = cmq_path_join(kept, of->side, name);
    if (status == CMQ_OK) status = cmq_file_tree_exists(of->fs, built, &ready);
    if (status == CMQ_OK) status = cmq_file_tree_exists(of->fs, used, &there);
    if (status != CMQ_OK || !ready) return status;
    if (there) {
        status = cmq_fs_rename(of->fs, used, kept);
        if (status == CMQ_OK) status = cmq_fs_sync_directory(of->fs, of->side);
        if (status == CMQ_OK) status = cmq_fs_sync_directory(of->fs, of->root);
        if (status != CMQ_OK) return status;
    }
    status = cmq_fs_rename(of->fs, built, used);
    if (status == CMQ_OK) status = cmq_fs_sync_directory(of->fs, of->root);
    if (status == CMQ_OK) status = cmq_fs_sync_directory(of->fs, of->built);
    return status;
}

/* ---- the cut ---- */

/* Move the segments of one log folder that start behind the cut's segment, newest first, so that no gap is ever
 * left. */
static cmq_status CMQ_MUST_CHECK move_segments(const swap *of, const char *folder, const char *kept)
{
    const int64_t from = of->journal->cut_at - of->journal->cut_at % of->journal->segment_bytes;
    char **names;
    size_t count;
    cmq_status status = cmq_fs_list(of->fs, folder, &names, &count);
    if (status != CMQ_OK) return status == CMQ_ERR_NOT_FOUND ? CMQ_OK : status;
    bool moved = false;
    for (size_t i = count; i > 0 && status == CMQ_OK; i--) {
        char path[CMQ_PATH_BYTES], to[CMQ_PATH_BYTES];
        int64_t start;
        if (cmq_path_parse_offset_name(names[i - 1], &start) != CMQ_OK || start <= from) continue;
        status = cmq_path_join(path, folder, names[i - 1]);
        if (status == CMQ_OK) status = cmq_path_join(to, kept, names[i - 1]);
        if (status == CMQ_OK) status = cmq_file_tree_move(of->fs, path, to);
        moved = true;
    }
    cmq_fs_free_names(names, count);
    if (status == CMQ_OK && moved) status = cmq_fs_sync_directory(of->fs, kept);
    if (status == CMQ_OK && moved) status = cmq_fs_sync_directory(of->fs, folder);
    return status;
}

/* Zero the rest of the segment behind the cut. Its bytes were kept before the journal was written. */
static cmq_status CMQ_MUST_CHECK blank_rest(const swap *of)
{
    const int64_t cut_at = of->journal->cut_at, inside = cut_at % of->journal->segment_bytes;
    char name[CMQ_OFFSET_NAME_BYTES];
    cmq_path_offset_name(name, cut_at - inside);
    for (uint32_t i = 0; i < of->log_path_count; i++) {
        char path[CMQ_PATH_BYTES];
        cmq_file *file;
        uint64_t data;
        cmq_status status = cmq_path_join(path, of->log_paths[i], name);
        if (status == CMQ_OK) status = cmq_file_open(of->fs, path, CMQ_OPEN_WRITE, &file);
        if (status == CMQ_ERR_NOT_FOUND) continue;
        if (status != CMQ_OK) return status;
        status = cmq_file_next_data(file, (uint64_t)inside, &data);
        if (status == CMQ_OK)
            status = cmq_file_punch(file, (uint64_t)inside, (uint64_t)(of->journal->segment_bytes - inside));
        if (status == CMQ_OK || status == CMQ_END) status = cmq_file_sync(file);
        cmq_file_close(file);
        if (status != CMQ_OK) return status;
    }
    return CMQ_OK;
}

static cmq_status CMQ_MUST_CHECK cut_log(const swap *of)
{
    char kept[CMQ_PATH_BYTES];
    if (of->journal->cut_at < 0) return CMQ_OK;
    cmq_status status = cmq_path_join(kept, of->side, "commitlog");
    if (status == CMQ_OK) status = cmq_fs_make_directory(of->fs, kept);
    for (uint32_t i = 0; i < of->log_path_count && status == CMQ_OK; i++)
        status = move_segments(of, of->log_paths[i], kept);
    return status == CMQ_OK ? blank_rest(of) : status;
}

static cmq_status CMQ_MUST_CHECK fill_log(const swap *of)
{
    const cmq_repair_filling filling = {.fs = of->fs,
                                        .log_paths = of->log_paths,
                                        .log_path_count = of->log_path_count,
                                        .segment_bytes = of->journal->segment_bytes};
    return cmq_repair_fill_log(&filling, of->side);
}

/* The checksums of queue files that were rebuilt. Old ones of other bytes would be of no harm, but scans of those
 * blocks slow. */
static cmq_status CMQ_MUST_CHECK swap_sums(const swap *of)
{
    char built[CMQ_PATH_BYTES], path[CMQ_PATH_BYTES];
    cmq_file_info info;
    cmq_status status = cmq_path_join(built, of->built, CMQ_OWN_FOLDER "/sums");
    if (status == CMQ_OK) status = cmq_path_join(path, of->root, CMQ_OWN_FOLDER "/sums");
    if (status == CMQ_OK && cmq_fs_stat(of->fs, built, &info) == CMQ_OK) {
        status = cmq_file_tree_remove(of->fs, path);
        if (status == CMQ_OK) status = cmq_fs_rename(of->fs, built, path);
    }
    if (status == CMQ_OK) status = cmq_path_join(built, of->built, CMQ_OWN_FOLDER "/ends");
    if (status == CMQ_OK) status = cmq_path_join(path, of->root, CMQ_OWN_FOLDER "/ends");
    if (status != CMQ_OK || cmq_fs_stat(of->fs, built, &info) != CMQ_OK) return status;
    return cmq_fs_rename(of->fs, built, path);
}

/* ---- marks ---- */

/* Checkpoint and point, as a durable point of the store's writer leaves them. */
static cmq_status CMQ_MUST_CHECK store_marks(const swap *of)
{
    const cmq_repair_journal *journal = of->journal;
    cmq_checkpoint checkpoint;
    cmq_durable_point_file *points;
    cmq_durable_point point = journal->point;
    point.sizes = cmq_layout_normal(of->fs, of->root);   /* a repair changes none of them */
    cmq_status status = cmq_checkpoint_load(of->fs, of->root, &checkpoint);
    if (status != CMQ_OK) return status;
    checkpoint.physic_ms = journal->checkpoint.physic_ms;
    checkpoint.logics_ms = journal->checkpoint.logics_ms;
    cmq_checkpoint_set_dispatched(&checkpoint, journal->point.last_phy);
    checkpoint.index_ms = journal->checkpoint.index_ms;
    checkpoint.master_flushed = journal->checkpoint.master_flushed;
    checkpoint.confirm_phy = journal->checkpoint.confirm_phy;
    status = cmq_durable_point_open(of->fs, of->root, &points);
    if (status != CMQ_OK) return status;
    status = cmq_durable_point_store(points, &point);
    cmq_durable_point_close(points);
    if (status == CMQ_OK) status = cmq_checkpoint_store(of->fs, of->root, &checkpoint);
    if (status == CMQ_OK && journal->remove_abort) status = cmq_abort_remove(of->fs, of->root);
    return status;
}

static cmq_status CMQ_MUST_CHECK forget_journal(const swap *of)
{
    char path[CMQ_PATH_BYTES];
    cmq_status status = cmq_path_join(path, of->root, JOURNAL_NAME);
    if (status == CMQ_OK) status = cmq_fs_remove(of->fs, path);
    if (status == CMQ_OK) status = cmq_path_join(path, of->root, CMQ_OWN_FOLDER);
    if (status == CMQ_OK) status = cmq_fs_sync_directory(of->fs, path);
    /* The rest of the building is of no use now. */
    if (status == CMQ_OK) status = cmq_file_tree_remove(of->fs, of->built);
    return status;
}

static cmq_status CMQ_MUST_CHECK carry_out(const swap *of)
{
    cmq_checkpoint now;
    cmq_status status = cmq_checkpoint_load(of->fs, of->root, &now);
    if (status != CMQ_OK) return status;
    const uint32_t crc = cmq_checkpoint_crc(&now);
    /* A broker has recovered and used the store since: the decisions are not valid any more. Moved files stay kept. */
    if (crc != of->journal->checkpoint_before && crc != of->journal->point.checkpoint_crc) return forget_journal(of);
    status = cmq_durable_point_forget(of->fs, of->root);
    if (status == CMQ_OK) status = cmq_follow_forget(of->fs, of->root);
    for (int i = 0; i < CMQ_REPAIR_FOLDERS && status == CMQ_OK; i++) status = swap_folder(of, cmq_repair_folders[i]);
    if (status == CMQ_OK) status = swap_sums(of);
    if (status == CMQ_OK) status = cut_log(of);
    if (status == CMQ_OK) status = fill_log(of);
    if (status == CMQ_OK) status = store_marks(of);
    return status == CMQ_OK ? forget_journal(of) : status;
}

cmq_status cmq_repair_finish(cmq_fs *fs, const char *root, const char *const *commitlog_paths, uint32_t path_count,
                             bool *finished_out)
{
    char own_path[CMQ_PATH_BYTES];
    cmq_repair_journal journal;
    const char *const own_paths[1] = {own_path};
    *finished_out = false;
    cmq_status status = read_journal(fs, root, &journal, finished_out);
    if (status != CMQ_OK || !*finished_out) return status;
    swap of = {.fs = fs,
               .root = root,
               .log_paths = path_count > 0 ? commitlog_paths : own_paths,
               .log_path_count = path_count > 0 ? path_count : 1,
               .journal = &journal};
    status = cmq_path_join(own_path, root, "commitlog");
    if (status == CMQ_OK) status = cmq_path_join(of.built, root, CMQ_REPAIR_BUILT);
    if (status == CMQ_OK) status = cmq_path_join(of.side, root, CMQ_REMOVED_FOLDER);
    if (status == CMQ_OK) status = cmq_path_join(of.side, of.side, journal.stamp);
    if (status == CMQ_OK) status = carry_out(&of);
    return status == CMQ_OK
               ? CMQ_OK
               : cmq_fail_context("while completing a repair that was interrupted; run it again when this is mended");
}
