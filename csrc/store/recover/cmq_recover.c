/* cmq_recover: the recovery of a writer's opening: find the log's end, bring queues and index up to it, cut a torn
 * tail.
 *
 *   1. Where to begin. Our durable point, if it is still true of this log: everything below it is in the files. Else
 *      upstream's rules: after an unclean end the newest segment whose first record is not newer than the checkpoint,
 *      after a clean one the newest that begins within the range that the queues cover.
 *   2. Read every record from there with its CRC; put its units and keys where they are missing. 3. The first place
 *   without a whole record is the end, if it can be a torn tail. If whole records that were once flushed lie behind it,
 *   it is
 *      damage in the middle: opening refuses, because cutting there would lose acknowledged messages.
 *   4. After a failed write or sync: write the found records again (cmq_fence). 5. Keep the bytes behind the end, if a
 *   whole record is in them (cmq_removed). 6. Cut queues and log to the end; bytes behind it are zeroed, so that stale
 *   records can never be taken for new ones.
 *
 * Invariant: nothing that a sync append acknowledged is lost; records found are exactly those between the first byte
 *            and the end.
 * Source:    upstream's DefaultMessageStore.load, CommitLog.recoverNormally and -Abnormally; spec store 5.4, 15.
 *            docs/decisions/0003.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cmq_assert.h"
#include "store/cmq_store_internal.h"
#include "store/recover/cmq_log_walk.h"
#include "store/marks/cmq_abort.h"
#include "store/marks/cmq_fence.h"
#include "store/marks/cmq_own_files.h"
#include "store/recover/cmq_removed.h"

#define QUEUES_REMEMBERED 1024u

/* ---- where to begin ---- */

/* The point of the last writer, if that was one of ours: its range was durable. One for another checkpoint is of before
 * a Java broker's visit, or of a moment whose checkpoint a crash took. */
bool cmq_store_last_point(cmq_store *store, cmq_durable_point *point_out)
{
    bool found;
    *point_out = store->view_point;   /* zeros, but in a view */
    if (store->view_began) return store->has_view_point;
    return cmq_durable_point_load_for(store->fs, store->root, cmq_checkpoint_crc(&store->checkpoint), point_out,
                                      &found) == CMQ_OK &&
           found;
}

bool cmq_store_trusted_point(cmq_store *store, cmq_durable_point *point_out)
{
    if (!cmq_store_last_point(store, point_out)) return false;
    if (point_out->log_end < cmq_log_min(store->log) || point_out->log_end > cmq_log_last_file_end(store->log))
        return false;
    if (point_out->last_bytes == 0) return point_out->log_end == cmq_log_min(store->log);
    int32_t bytes;
    uint32_t record_crc;
    return cmq_store_fingerprint(store, point_out->last_phy, &bytes, &record_crc) && bytes == point_out->last_bytes &&
           record_crc == point_out->last_crc;
}

cmq_status cmq_store_refuse_lost_log(cmq_store *store)
{
    cmq_durable_point point;
    bool found;
    if (cmq_log_last_file_end(store->log) > cmq_log_min(store->log)) return CMQ_OK;
    /* A point of any checkpoint will do: no program that uses a store removes its last segment. An unreadable point
     * counts as none. */
    if (cmq_durable_point_load(store->fs, store->root, &point, &found) != CMQ_OK || !found) point.log_end = 0;
    if (point.log_end == 0 && store->checkpoint.physic_ms == 0) return CMQ_OK;
    return cmq_fail_at(CMQ_ERR_CORRUPT, 0,
                       "the commit log has no segment file, but messages were on disk: all of its files are missing. "
                       "Put them back (is their disk mounted?). "
                       "If they were removed on purpose, remove checkpoint and " CMQ_OWN_FOLDER
                       "/point in %s, too, and the store starts empty",
                       store->root);
}

/* Is the segment that starts at `start` one that recovery may begin with? */
static bool may_begin(cmq_store *store, int64_t start, bool unclean, int64_t dispatched_end, int64_t newest_ms)
{
    cmq_segment *segment;
    const uint8_t *data;
    size_t available;
    cmq_record_head head;
    if (cmq_log_pin(store->log, start, &segment, &data, &available) != CMQ_OK) return false;
    /* In a file that took another's name the records are whole, but belong elsewhere: beginning there would cut all
     * that lies before. */
    const bool sound = cmq_record_peek(data, available, &head) == CMQ_OK && head.store_timestamp_ms != 0 &&
                       head.physical_offset == start;
    cmq_segment_unpin(segment);
    if (!sound) return false;
    return unclean ? head.store_timestamp_ms <= newest_ms : head.physical_offset <= dispatched_end;
}

cmq_status cmq_store_scan_start(cmq_store *store, bool unclean, int64_t dispatched_end, int64_t *start_out)
{
    const int64_t newest_ms = cmq_checkpoint_min_ms(&store->checkpoint);
    const int64_t bytes = cmq_log_segment_bytes(store->log), min = cmq_log_min(store->log);
    int64_t start = cmq_log_last_file_end(store->log) - bytes;
    while (start > min && !may_begin(store, start, unclean, dispatched_end, newest_ms)) start -= bytes;
    *start_out = start > min ? start : min;
    return CMQ_OK;
}

static cmq_status load_ends(cmq_store *store, const cmq_durable_point *point)
{
    /* Under a Java broker a queue ends where that one sees it end. */
    const bool known = point->queues_known && !(store->options.read_only && store->source == CMQ_FOLLOW_SOURCE_FOREIGN);
    const cmq_queues_point queues = {.log_min = cmq_log_min(store->log),
                                     .log_end = point->log_end,
                                     .fingerprints = {point->queues, point->queues_also},
                                     .count = !known ? 0 : point->has_also ? 2 : 1};
    const cmq_status status = cmq_queues_load_ends(store->queues, &queues);
    if (status == CMQ_OK && !cmq_store_lost_ends_are_proven(store)) cmq_queues_forget_lost_ends(store->queues);
    return status;
}

cmq_status cmq_store_recover_queues(cmq_store *store, int64_t end, const cmq_durable_point *point, bool unclean,
                                    bool holes, int64_t *dispatched_end_out, int64_t *start_out)
{
    cmq_status status = CMQ_OK;
    *dispatched_end_out = 0;
    *start_out = point != NULL ? point->log_end : 0;
    /* After an unclean end the checkpoint says where to begin, and not the queues. */
    if (point == NULL && unclean) status = cmq_store_scan_start(store, true, 0, start_out);
    if (status != CMQ_OK) return status;
    const int64_t whole_end = point != NULL || (unclean && holes) ? *start_out : end;
    /* A point at the log's start says nothing of units, which are kept where they agree with the log; but not after a
     * write or sync failed. */
    if (point != NULL && (point->log_end > 0 || store->opening_fenced)) end = point->log_end;
    status = cmq_queues_recover(store->queues, cmq_log_min(store->log), end, whole_end, dispatched_end_out);
    if (status == CMQ_OK && point == NULL && !unclean)
        status = cmq_store_scan_start(store, false, *dispatched_end_out, start_out);
    /* Without a point of ours another program may have written queues since. */
    if (status == CMQ_OK && point != NULL) status = load_ends(store, point);
    return status;
}

/* ---- reading the log ---- */

typedef struct remembered_queue {
    cmq_queue *queue;
    uint32_t topic;            /* its number in the walk; 0: none */
    int32_t queue_id;
} remembered_queue;

typedef struct walk {
    cmq_store *store;
    int64_t position;          /* where the next record is expected; the end, afterwards */
    int64_t last_phy;          /* of the last whole record, -1: none */
    int64_t last_ms;
    int64_t records;
    uint32_t checkpoint_crc;   /* of the file as it was found */
    int64_t keys_from;         /* records above this physical offset get their keys */
    int64_t units_from;        /* records from here on get their units: below, the queues have theirs, and those of
                                * deleted topics must not come back */
    int64_t whole_below;       /* units of records below go to queues aside (cmq_queues_begin_again) */
    remembered_queue queues[QUEUES_REMEMBERED];   /* most records are of a queue that was asked for */
    bool nothing_behind;       /* only zeros lie behind the end */
    char reason[CMQ_DAMAGE_REASON_BYTES];   /* why the walk ended at bytes that are no whole record */
} walk;

/* The keys of the records that were taken. */
static cmq_status put_keys(walk *w, const cmq_walklot *lot)
{
    uint32_t count = lot->key_count;
    while (count > 0 && lot->keys[count - 1].phy >= w->position) count--;
    if (count == 0) return CMQ_OK;
    const cmq_status status = cmq_index_make_room(w->store->index, count);
    if (status == CMQ_OK) cmq_index_put(w->store->index, lot->keys, count);
    return status;
}

/* *queue_out: NULL where no queue lacks the record's unit. */
static cmq_status find_queue(walk *w, const cmq_walklot *lot, const cmq_walked *record, cmq_queue **queue_out)
{
    remembered_queue *slot = &w->queues[(record->topic * 131 + (uint32_t)record->queue_id) % QUEUES_REMEMBERED];
    *queue_out = slot->queue;
    if (record->topic != 0 && slot->topic == record->topic && slot->queue_id == record->queue_id) return CMQ_OK;
    const cmq_slice topic = cmq_record_topic(cmq_walklot_bytes(lot, record), (uint32_t)record->unit.bytes);
    const cmq_queue_kind kind = cmq_dispatch_kind(w->store, topic, record->queue_id, record->sys_flag);
    const cmq_status status =
        cmq_queues_require_for(w->store->queues, topic, record->queue_id, kind, record->unit.phy, queue_out);
    if (status == CMQ_OK && *queue_out != NULL && record->unit.phy >= w->whole_below)
        *slot = (remembered_queue){.queue = *queue_out, .topic = record->topic, .queue_id = record->queue_id};
    return status;
}

static cmq_status dispatch_light(walk *w, const cmq_walklot *lot, const cmq_walked *record)
{
    cmq_record_view view;
    cmq_dispatch_facts facts;
    const cmq_status status =
        cmq_record_parse(cmq_walklot_bytes(lot, record), (size_t)record->unit.bytes, record->unit.phy, 0, &view);
    if (status != CMQ_OK) return status;
    cmq_dispatch_learn(w->store, &view, &facts);
    return cmq_dispatch_light_units(w->store, &view, &facts);
}

static cmq_status dispatch(walk *w, const cmq_walklot *lot, const cmq_walked *record)
{
    cmq_queue *queue;
    if (!record->in_queue || record->unit.phy < w->units_from) return CMQ_OK;
    cmq_status status = find_queue(w, lot, record, &queue);
    if (status == CMQ_OK && queue != NULL) status = cmq_dispatch_unit_to(queue, &record->unit);
    return status == CMQ_OK && record->names_light_queues ? dispatch_light(w, lot, record) : status;
}

static cmq_status end_at(walk *w, const char *reason)
{
    snprintf(w->reason, sizeof w->reason, "%s", reason);
    return CMQ_END;
}

/* The records of a lot; CMQ_END at one that cannot be. */
static cmq_status take_records(walk *w, const cmq_walklot *lot)
{
    for (uint32_t i = 0; i < lot->count; i++) {
        const cmq_dispatch_unit *unit = &lot->records[i].unit;
        const cmq_status status = dispatch(w, lot, &lot->records[i]);
        w->position = unit->phy;
        if (cmq_dispatch_is_no_record(status)) return end_at(w, "its topic, queue or offset cannot be");
        if (status != CMQ_OK) return status;
        w->last_phy = unit->phy;
        w->last_ms = unit->store_ms;
        w->position += unit->bytes;
        w->records++;
    }
    return CMQ_OK;
}

static cmq_status take_lot(walk *w, const cmq_walklot *lot)
{
    const cmq_status status = take_records(w, lot);
    const cmq_status put = status == CMQ_OK || status == CMQ_END ? put_keys(w, lot) : CMQ_OK;
    return put != CMQ_OK ? put : status;
}

static cmq_status read_log(walk *w)
{
    const cmq_store *store = w->store;
    const cmq_log_walk_options options = {
        .from = w->position,
        .keys_behind = store->index == NULL ? INT64_MAX : w->keys_from,
        .checks = CMQ_RECORD_CHECK_BODY_CRC | (store->options.check_property_crc ? CMQ_RECORD_CHECK_PROPERTY_CRC : 0),
        .unclean = store->opening.was_unclean,
    };
    cmq_log_walk *records;
    cmq_walklot lot;
    cmq_status status = cmq_log_walk_open(w->store, &options, &records);
    if (status != CMQ_OK) return status;
    do {
        status = cmq_log_walk_next(records, &lot);
        if (status == CMQ_END) {
            const char *reason;
            w->position = cmq_log_walk_end(records, &reason);
            (void)end_at(w, reason);
        } else if (status == CMQ_OK) {
            status = take_lot(w, &lot);
        }
    } while (status == CMQ_OK);
    cmq_log_walk_close(records);
    return status == CMQ_END ? CMQ_OK : status;
}

/* ---- torn tail, or damage? ---- */

/* Does the log reach `end`? A blank at the end of the last segment counts as read. */
static bool reaches(const walk *w, int64_t end)
{
    if (w->position >= end) return true;
    cmq_segment *segment;
    cmq_record_view view;
    const int64_t bytes = cmq_log_segment_bytes(w->store->log), border = w->position - w->position % bytes + bytes;
    const cmq_status status =
        cmq_store_record_at(w->store, w->position, cmq_log_last_file_end(w->store->log), 0, &segment, &view);
    if (status == CMQ_OK) cmq_segment_unpin(segment);
    return status == CMQ_END && border >= end;
}

/* Do only zeros lie behind the end, in its segment and in later ones? */
static bool is_blank_behind(cmq_store *store, int64_t end)
{
    const int64_t bytes = cmq_log_segment_bytes(store->log), limit = cmq_log_last_file_end(store->log);
    for (int64_t from = end; from < limit; from = from - from % bytes + bytes)
        if (cmq_store_bytes_behind(store, from) != 0) return false;
    return true;
}

static cmq_status refuse_damage(const walk *w, bool unclean)
{
    cmq_record_view view;
    const int64_t known_end = w->store->known_end;
    if (!reaches(w, known_end))
        return cmq_fail_at(CMQ_ERR_CORRUPT, w->position,
                           "the commit log can be read to %" PRId64 " only, but messages up to %" PRId64
                           " were acknowledged: a segment file is missing or "
                           "damaged. Put it back, or run `cometmq verify` and then `cometmq repair`",
                           w->position, known_end);
    if (w->nothing_behind || !cmq_store_flushed_behind(w->store, w->position, w->last_phy, w->last_ms, unclean, &view))
        return CMQ_OK;
    return cmq_fail_at(CMQ_ERR_CORRUPT, w->position,
                       "the commit log is damaged at physical offset %" PRId64
                       ": flushed messages follow it (the next at %" PRId64
                       "), so it is not a torn tail. Open the store read-only to read the sound messages, or run "
                       "`cometmq verify` and then "
                       "`cometmq repair`, which keeps the bytes that it removes",
                       w->position, view.physical_offset);
}

/* ---- the whole ---- */

/* A process that was killed leaves bytes, names and folders that read well and are on no disk yet, and nobody remembers
 * which. A durable point says that they are, so they have to be. */
cmq_status cmq_store_sync_findings(cmq_store *store)
{
    cmq_status status = cmq_fs_sync_all(store->fs, store->root);
    for (uint32_t i = 0; i < cmq_log_path_count(store->log) && status == CMQ_OK; i++)
        status = cmq_fs_sync_all(store->fs, cmq_log_path(store->log, i));
    return status;
}

cmq_status cmq_store_sync_found_log(cmq_store *store, int64_t from, int64_t end)
{
    const int64_t bytes = cmq_log_segment_bytes(store->log);
    cmq_status status = CMQ_OK;
    for (from -= from % bytes; from < end && status == CMQ_OK; from += bytes) {
        cmq_segment *segment;
        const uint8_t *data;
        size_t available;
        cmq_file *file;
        status = cmq_log_pin(store->log, from, &segment, &data, &available);
        if (status == CMQ_ERR_OFFSET && from < cmq_log_min(store->log)) {   /* expired meanwhile */
            status = CMQ_OK;
            continue;
        }
        if (status != CMQ_OK) break;
        status = cmq_file_open(store->fs, cmq_segment_path(segment), CMQ_OPEN_READ, &file);
        if (status == CMQ_OK) {
            status = cmq_file_sync(file);
            cmq_file_close(file);
        }
        cmq_segment_unpin(segment);
    }
    return status;
}

/* May the durable point wait until the store is open? Recovery then changed nothing that a later one would not do
 * again: it began at the last durable point, found whole records up to zeros, and put units and keys where they belong.
 * Under sync flush messages that are acknowledged from now on lie behind the found records, which have to be on disk
 * first. */
static bool may_wait(const cmq_store *store, const walk *w)
{
    return store->opening.was_unclean && store->opening.trusted_point && !store->opening_fenced &&
           w->nothing_behind && !cmq_queues_incomplete(store->queues);
}

static int64_t segment_of(const cmq_store *store, int64_t phy)
{
    const int64_t min = cmq_log_min(store->log);
    return phy <= min ? min : phy - phy % cmq_log_segment_bytes(store->log);
}

/* Keys of records in [from, end) may be missing from the index from now on. It is kept as one part, with whatever lies
 * between. */
static void miss_keys(cmq_store *store, int64_t from, int64_t end)
{
    cmq_store_opening *opening = &store->opening;
    const int64_t min = cmq_log_min(store->log);
    if (from < min) from = min;
    if (from >= end) return;
    if (opening->index_missing_end == 0 || from < opening->index_missing_from) opening->index_missing_from = from;
    if (end > opening->index_missing_end) opening->index_missing_end = end;
}

/* Remember the keys that were missing before this opening. Even an outdated point names them: a broker that came
 * between goes on in the same files. */
static void remember_missing(cmq_store *store)
{
    cmq_durable_point point;
    bool found;
    if (cmq_durable_point_load(store->fs, store->root, &point, &found) == CMQ_OK && found)
        miss_keys(store, point.index_missing_from, point.index_missing_end);
}

/* *keys_from: records above it get their keys. *start lowered: the log must be read from there, because index files are
 * gone or damaged that our point says were whole. */
static cmq_status recover_index(cmq_store *store, const cmq_durable_point *point, bool trusted, bool unclean,
                                int64_t *start, int64_t *keys_from)
{
    *keys_from = -1;
    if (store->index == NULL) return CMQ_OK;
    if (trusted) {
        const cmq_status status = cmq_index_rewind(store->index, &point->index, point->clean && !unclean);
        *keys_from = cmq_index_end_phy(store->index);
        if (status != CMQ_ERR_CORRUPT) return status;
    }
    /* upstream's rule: files that a crash may have torn go, and only keys of records that are read again come back */
    if (trusted || unclean) {
        int64_t rebuild_from;
        const cmq_status status = cmq_index_drop_newer(store->index, store->checkpoint.index_ms, &rebuild_from);
        if (status != CMQ_OK) return status;
        if (trusted && segment_of(store, rebuild_from) < *start) *start = segment_of(store, rebuild_from);
        /* The last record that is left may have had more keys in a file that went: all of its keys are put again, as
         * upstream does. */
        *keys_from = cmq_index_end_phy(store->index) - 1;
        return CMQ_OK;
    }
    *keys_from = cmq_index_end_phy(store->index);
    return CMQ_OK;
}

cmq_status cmq_store_queue_folders(const cmq_store *store, bool *simple_out, bool *batch_out)
{
    static const char *const folders[] = {"consumequeue", "batchconsumequeue"};
    bool *const there[] = {simple_out, batch_out};
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++) {
        char path[CMQ_PATH_BYTES];
        cmq_file_info info;
        cmq_status status = cmq_path_join(path, store->root, folders[i]);
        if (status == CMQ_OK) status = cmq_fs_stat(store->fs, path, &info);
        if (status != CMQ_OK && status != CMQ_ERR_NOT_FOUND) return status;
        *there[i] = status == CMQ_OK;
    }
    return CMQ_OK;
}

/* Somebody removed a folder of queues that our point, or the first message, had made: all of the log must be read. A
 * log of prepared messages alone has none, as a point says. */
static cmq_status queues_are_gone(const cmq_store *store, const cmq_durable_point *point, bool trusted, bool *gone_out)
{
    bool simple, batch;
    const cmq_status status = cmq_store_queue_folders(store, &simple, &batch);
    if (status != CMQ_OK) return status;
    *gone_out = trusted ? (point->has_queues && !simple) || (point->has_batch_queues && !batch) : !simple && !batch;
    return CMQ_OK;
}

/* Keep and cut what lies behind the end. */
static cmq_status cut_behind(cmq_store *store, walk *w, bool wait)
{
    cmq_status status = CMQ_OK;
    if (!w->nothing_behind)
        status =
            cmq_removed_keep(store, w->position, w->reason, store->opening.removed, &store->opening.removed_records);
    if (status == CMQ_OK) status = cmq_queues_truncate(store->queues, w->position);
    if (status == CMQ_OK) status = cmq_queues_end_recover(store->queues);
    if (status == CMQ_OK && store->index != NULL) status = cmq_index_cut(store->index, w->position);
    if (status != CMQ_OK) return status;
    return wait ? cmq_log_go_on(store->log, w->position) : cmq_log_set_end(store->log, w->position);
}

/* The first durable point, or, where that may wait, what cannot. */
static cmq_status settle_point(cmq_store *store, const walk *w, bool wait)
{
    cmq_status status = cmq_durable_point_open(store->fs, store->root, &store->points);
    if (status == CMQ_OK) status = cmq_durable_point_keep(store->points, w->checkpoint_crc);
    if (status != CMQ_OK || !wait) return status != CMQ_OK ? status : cmq_store_durable_point(store, false);
    store->findings_wait = true;
    store->durable_end = store->opening.scanned_from;
    if (store->options.flush == CMQ_FLUSH_SYNC)
        status = cmq_store_sync_found_log(store, store->durable_end, w->position);
    else atomic_store_explicit(&store->found_from, store->durable_end, memory_order_release);
    atomic_store(&store->dirty, true);
    return status;
}

static cmq_status settle(cmq_store *store, walk *w)
{
    store->opening.scanned_to = w->position;
    store->opening.records = w->records;
    store->opening.cut_bytes = w->nothing_behind ? 0 : cmq_store_bytes_behind(store, w->position);
    store->opening.gaps = cmq_queues_gaps(store->queues);
    w->checkpoint_crc = cmq_checkpoint_crc(&store->checkpoint);
    const bool wait = may_wait(store, w);
    cmq_status status = store->opening.was_unclean && !wait ? cmq_store_sync_findings(store) : CMQ_OK;
    if (status == CMQ_OK) status = cut_behind(store, w, wait);
    if (status != CMQ_OK) return status;
    store->last_phy = w->last_phy;
    store->store_ms = w->last_ms;
    atomic_store_explicit(&store->confirmed_ms, w->last_ms, memory_order_relaxed);
    atomic_store_explicit(&store->confirmed_last_phy, w->last_phy, memory_order_relaxed);
    if (w->last_phy >= 0) store->checkpoint.confirm_phy = w->last_phy;
    store->opened_end = w->position;
    pthread_mutex_lock(&store->maintain_mutex);
    status = settle_point(store, w, wait);
    pthread_mutex_unlock(&store->maintain_mutex);
    return status;
}

bool cmq_store_queues_lost(const cmq_store *store, const cmq_durable_point *point)
{
    if (!point->queues_known || cmq_queues_lost_ends(store->queues)) return false;
    const uint64_t found = cmq_queues_fingerprint(store->queues, point->log_end);
    return found != point->queues && !(point->has_also && found == point->queues_also);
}

bool cmq_store_gaps_are_behind(const cmq_store *store, const cmq_durable_point *point)
{
    return point->queues_known || point->log_end == cmq_log_min(store->log);
}

cmq_status cmq_store_begin_queues_again(cmq_store *store, int64_t whole_below, int64_t *start, int64_t *from_out)
{
    cmq_status status = CMQ_OK;
    *from_out = INT64_MAX;
    if (!cmq_queues_lost_begins(store->queues) && !cmq_queues_lost_ends(store->queues)) return CMQ_OK;
    /* A writer may have dropped segments, and the queues' files after them, since the view listed the segments. */
    if (store->options.read_only) {
        status = cmq_log_refresh(store->log);
        if (status == CMQ_OK) status = cmq_queues_expire(store->queues, cmq_log_min(store->log), 0);
    }
    if (status == CMQ_OK)
        status = cmq_queues_begin_again(store->queues, cmq_log_min(store->log), whole_below, from_out);
    if (status == CMQ_OK && *from_out != INT64_MAX && segment_of(store, *from_out) < *start)
        *start = segment_of(store, *from_out);
    return status;
}

/* Make queues and index ready, and say where the walk begins: at our point if all is there that it speaks of, else
 * where upstream would begin, or before, where something that it speaks of is gone. */
static cmq_status prepare(cmq_store *store, const cmq_durable_point *point, bool trusted, bool unclean, walk *w)
{
    bool gone = false;
    int64_t dispatched_end, start, lost_from;
    cmq_status status = queues_are_gone(store, point, trusted, &gone);
    if (status == CMQ_OK)
        status = cmq_store_recover_queues(store, cmq_log_last_file_end(store->log), trusted ? point : NULL, unclean,
                                          true, &dispatched_end, &start);
    /* Where it is known what each queue lost, a folder that is gone says nothing more. */
    if (cmq_queues_lost_ends(store->queues)) gone = false;
    if (status == CMQ_OK) gone |= trusted && cmq_store_queues_lost(store, point);
    /* From its first byte the log would bring deleted topics back. */
    const bool are_behind = trusted && !gone && cmq_store_gaps_are_behind(store, point);
    if (status == CMQ_OK) status = cmq_queues_settle_gaps(store->queues, are_behind);
    if (status == CMQ_OK) gone |= cmq_queues_incomplete(store->queues);
    if (status == CMQ_OK) status = cmq_store_begin_queues_again(store, gone ? 0 : point->log_end, &start, &lost_from);
    if (status == CMQ_OK) status = recover_index(store, point, trusted, unclean, &start, &w->keys_from);
    if (status != CMQ_OK) return status;
    if (gone) start = cmq_log_min(store->log);
    if (store->index != NULL) remember_missing(store);
    /* Our own points have all keys below them; anybody else's index, and what upstream's rule left, may end before the
     * log is read. Its last record may have had more keys. */
    if (store->index != NULL && !trusted) miss_keys(store, cmq_index_end_phy(store->index), start);
    const bool from_point = trusted && start == point->log_end;
    w->whole_below = trusted && !gone ? point->log_end : 0;
    w->units_from = lost_from < w->whole_below ? lost_from : w->whole_below;
    w->position = start;
    w->last_phy = from_point && point->last_bytes > 0 ? point->last_phy : -1;
    w->last_ms = from_point ? point->store_ms : 0;
    store->opening.was_unclean = unclean;
    store->opening.trusted_point = from_point;
    store->opening.scanned_from = start;
    return CMQ_OK;
}

/* After a failed write or sync, all bytes behind the last durable point may be in memory alone, also those that a sync
 * reported as written. Before the log is read: the records found then are those that were written. */
static cmq_status rewrite_findings(cmq_store *store)
{
    cmq_durable_point point;
    const int64_t from = cmq_store_last_point(store, &point) ? point.log_end : cmq_log_min(store->log);
    return cmq_fence_rewrite(store, from, cmq_log_last_file_end(store->log));
}

/* Where the last point is not true, another program has been here, or the log was removed on purpose: the old page's
 * proofs are of another log. Durably, before the first point of this opening makes it believed again. */
static cmq_status forget_foreign_page(cmq_store *store)
{
    cmq_durable_point point;
    return cmq_store_last_point(store, &point) ? CMQ_OK : cmq_follow_forget(store->fs, store->root);
}

static cmq_status recover(cmq_store *store, const cmq_layout *layout)
{
    cmq_durable_point point;
    const bool trusted = cmq_store_trusted_point(store, &point);
    const bool unclean = layout->has_abort;
    cmq_store_learn_bounds(store);
    walk w = {.store = store, .last_phy = -1};
    cmq_status status = cmq_store_refuse_lost_log(store);
    if (status == CMQ_OK) cmq_store_choose_tags(store, store->index);   /* before entries are dropped */
    if (status == CMQ_OK) status = forget_foreign_page(store);
    if (status == CMQ_OK && store->opening_fenced) status = rewrite_findings(store);
    /* By upstream's rules recovery changes files that it has not read; from our point it does not. */
    if (status == CMQ_OK && unclean && !trusted) status = cmq_store_sync_findings(store);
    if (status == CMQ_OK) status = prepare(store, &point, trusted, unclean, &w);
    if (status == CMQ_OK) status = read_log(&w);
    if (status == CMQ_OK) w.nothing_behind = is_blank_behind(store, w.position);
    if (status == CMQ_OK) status = refuse_damage(&w, unclean);
    if (status == CMQ_OK) status = cmq_queues_join_lost(store->queues);
    if (status == CMQ_OK) status = settle(store, &w);
    return status;
}

cmq_status cmq_store_recover(cmq_store *store, const cmq_layout *layout)
{
    bool fenced;
    cmq_status status = cmq_fence_marked(store, &fenced);
    if (status != CMQ_OK) return status;
    store->opening_fenced = fenced;
    status = recover(store, layout);
    if (status == CMQ_OK) status = cmq_queues_complete(store->queues);
    if (status == CMQ_OK) return fenced ? cmq_fence_clear(store) : CMQ_OK;
    /* A sync that failed here leaves the same doubt behind. */
    if (status == CMQ_ERR_IO || status == CMQ_ERR_FENCED) cmq_fence_mark(store);
    return status;
}
