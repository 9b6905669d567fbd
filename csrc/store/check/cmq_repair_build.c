/* cmq_repair_build: reads the log from its first record to its end, past damage, and builds queues and index from it,
 * beside the old ones.
 *
 * The log's end, and damage, are decided as an opening decides them (cmq_store_flushed_behind).
 *
 * Threads: one.
 * Way:     log -> [cmq_repair_build] -> cometmq/rebuild
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cmq_assert.h"
#include "store/check/cmq_repair_internal.h"

#define PROGRESS_BYTES (INT64_C(8) << 20)
#define KEYS_PER_LOT 4096u
#define SCAN_UNITS 1024

/* ---- placing a record ---- */

static bool is_wanted(cmq_repair *repair, cmq_slice topic)
{
    const cmq_repair_options *options = repair->options;
    if (options->wanted == NULL) return true;
    if (topic.bytes < sizeof repair->asked_topic && cmq_slice_equal(topic, cmq_slice_of_text(repair->asked_topic)))
        return repair->asked_answer;
    const bool answer = options->wanted(options->context, topic);
    if (topic.bytes < sizeof repair->asked_topic && memchr(topic.data, '\0', topic.bytes) == NULL) {
        memcpy(repair->asked_topic, topic.data, topic.bytes);
        repair->asked_topic[topic.bytes] = '\0';
        repair->asked_answer = answer;
    }
    return answer;
}

static cmq_status CMQ_MUST_CHECK place_units(cmq_repair *repair, const cmq_record_view *view,
                                             const cmq_dispatch_facts *facts)
{
    if (!facts->in_queue) return CMQ_OK;
    const cmq_rawqueue *old = cmq_raw_queues_find(repair->raw, view->topic, view->queue_id);
    if (old == NULL && !is_wanted(repair, view->topic)) {
        repair->report->unwanted++;
        return CMQ_OK;
    }
    if (repair->options->dry_run) return CMQ_OK;
    cmq_status status = CMQ_OK;
    cmq_queue *queue;
    /* A queue is of the kind that it was, whatever its topic's settings say now. */
    if (old != NULL) status = cmq_queues_require(repair->store->queues, view->topic, view->queue_id, old->kind, &queue);
    if (status == CMQ_OK) status = cmq_dispatch_units(repair->store, view, facts);
    if (cmq_dispatch_is_no_record(status)) status = CMQ_ERR_CORRUPT;
    return status;
}

static cmq_status CMQ_MUST_CHECK put_lot(cmq_repair *repair, uint32_t at_least)
{
    cmq_pending_keys *keys = &repair->pending;
    if (keys->count == 0 || keys->count < at_least) return CMQ_OK;
    repair->report->keys += keys->count;
    if (!repair->options->dry_run) {
        const cmq_status status = cmq_index_make_room(repair->store->index, keys->count);
        if (status != CMQ_OK) return status;
        cmq_index_put(repair->store->index, keys->keys, keys->count);
    }
    keys->count = 0;
    return CMQ_OK;
}

/* Add the entries of a record to those of the new index: its unique id and its keys; its tags, where the store indexes
 * them or the old index had them; and the old index's entries of kinds that are not known here. */
static cmq_status CMQ_MUST_CHECK place_keys(cmq_repair *repair, const cmq_record_view *view,
                                            const cmq_dispatch_facts *facts)
{
    cmq_pending_keys *keys = &repair->record_keys, *pending = &repair->pending;
    cmq_index_walk *old = &repair->old_entries;
    keys->count = 0;
    cmq_status status = cmq_dispatch_keys(view, facts, cmq_index_topic_seed(view->topic), true, keys);
    if (status == CMQ_OK) status = cmq_pending_keys_reserve(pending, keys->count);
    if (status != CMQ_OK) return status;
    const bool has_tags = cmq_dispatch_has_indexed_tags(facts);
    for (uint32_t i = 0; i < keys->count - (has_tags && !repair->store->tags_indexed); i++)
        pending->keys[pending->count++] = keys->keys[i];
    bool tags_are_in = has_tags && repair->store->tags_indexed;
    cmq_index_match match = cmq_index_match_of(keys->keys, keys->count, has_tags);
    while (old->has && (old->is_stray || old->key.phy < view->physical_offset)) cmq_index_walk_next(old);
    for (; old->has && (old->is_stray || old->key.phy == view->physical_offset); cmq_index_walk_next(old)) {
        if (old->is_stray) continue;
        const cmq_index_standing standing = cmq_index_match_take(&match, old->key.hash);
        if (standing != CMQ_INDEX_ENTRY_UNKNOWN && (standing != CMQ_INDEX_ENTRY_TAGS || tags_are_in)) continue;
        tags_are_in |= standing == CMQ_INDEX_ENTRY_TAGS;
        status = cmq_pending_keys_reserve(pending, 1);
        if (status != CMQ_OK) return status;
        pending->keys[pending->count++] = (cmq_index_key){
            .phy = view->physical_offset, .store_ms = view->store_timestamp_ms, .hash = old->key.hash};
    }
    return put_lot(repair, KEYS_PER_LOT);
}

static cmq_status CMQ_MUST_CHECK place(cmq_repair *repair, const cmq_record_view *view)
{
    cmq_dispatch_facts facts;
    cmq_dispatch_learn(repair->store, view, &facts);
    if (repair->counting) {
        if (facts.in_queue) repair->report->cut_messages += facts.count;
        return CMQ_OK;
    }
    cmq_status status = place_units(repair, view, &facts);
    if (status != CMQ_OK) return status;
    repair->report->records++;
    if (facts.in_queue) repair->report->messages += facts.count;
    return repair->store->options.index_disabled ? CMQ_OK : place_keys(repair, view, &facts);
}

/* ---- the walk ---- */

/* The next whole record of this log behind `from` that is not left from before a cut; false when there is none. */
static bool find_next(const cmq_repair *repair, int64_t from, cmq_record_view *view_out)
{
    const int64_t bytes = repair->store->sizes.segment_bytes, limit = cmq_log_last_file_end(repair->store->log);
    while (from < limit) {
        if (!cmq_store_find_sound(repair->store, from, view_out)) {
            from = from - from % bytes + bytes;
            continue;
        }
        const bool known = view_out->physical_offset < repair->known_end;
        if (known || repair->last_phy < 0 || view_out->store_timestamp_ms >= repair->last_ms) return true;
        from = view_out->physical_offset + view_out->record_bytes;
    }
    return false;
}

/* The bytes at `phy` are no whole record: the log's end (CMQ_END), or damage, behind which *phy goes on. */
static cmq_status CMQ_MUST_CHECK pass_damage(cmq_repair *repair, int64_t *phy)
{
    cmq_repair_report *report = repair->report;
    char reason[CMQ_DAMAGE_REASON_BYTES];
    cmq_record_view next;
    cmq_store_damage_reason(reason);
    const int64_t limit = cmq_log_last_file_end(repair->store->log),
                  known_end = repair->known_end < limit ? repair->known_end : limit;
    const bool followed =
        cmq_store_flushed_behind(repair->store, *phy, repair->last_phy, repair->last_ms, report->was_unclean, &next) &&
        find_next(repair, *phy + 1, &next);
    if (!followed && *phy >= known_end) return CMQ_END;
    /* Nothing whole follows, but the log went on: all that was acknowledged behind this place is gone. */
    const int64_t end = followed ? next.physical_offset : known_end, bytes = end - *phy;
    if (report->damaged_places++ == 0) report->first_damage = *phy;
    report->damaged_bytes += bytes;
    if (repair->options->damage != NULL) repair->options->damage(repair->options->context, *phy, bytes, reason);
    cmq_status status = CMQ_OK;
    if (repair->options->cut_damage && !repair->counting) {
        report->cut_at = repair->end = *phy;
        repair->counting = true;
    } else if (repair->options->fill_damage) {
        status =
            cmq_repair_note_fill(repair, *phy, end, repair->last_phy >= 0 ? repair->last_ms : next.store_timestamp_ms);
    }
    *phy = end;
    return status;
}

/* A whole record at `phy` goes into queues and index, unless it is torn where no CRC covers it. */
static cmq_status CMQ_MUST_CHECK take_record(cmq_repair *repair, int64_t phy, const cmq_record_view *view)
{
    if (phy >= repair->torn_from && cmq_store_is_torn(repair->store, view))
        return cmq_fail_at(CMQ_ERR_CORRUPT, phy, "the record's topic or properties are torn");
    const cmq_status status = place(repair, view);
    if (status != CMQ_OK) return status;
    repair->last_ms = view->store_timestamp_ms;
    if (!repair->counting) repair->last_phy = phy;
    return CMQ_OK;
}

/* One step from *phy; CMQ_END at the end of the log. */
static cmq_status CMQ_MUST_CHECK step(cmq_repair *repair, int64_t *phy, int64_t limit)
{
    cmq_store *store = repair->store;
    cmq_segment *segment;
    cmq_record_view view;
    const unsigned checks =
        CMQ_RECORD_CHECK_BODY_CRC | (store->options.check_property_crc ? CMQ_RECORD_CHECK_PROPERTY_CRC : 0);
    cmq_status status = cmq_store_record_at(store, *phy, limit, checks, &segment, &view);
    if (status == CMQ_OK) {
        status = take_record(repair, *phy, &view);
        cmq_segment_unpin(segment);
        if (status == CMQ_OK) *phy += view.record_bytes;
    } else if (status == CMQ_END) {   /* a blank: the next segment, if there is one; else the log ends before the
                                       * blank */
        const int64_t next = *phy - *phy % store->sizes.segment_bytes + store->sizes.segment_bytes;
        if (next >= limit) return CMQ_END;
        *phy = next;
        return CMQ_OK;
    } else if (status == CMQ_AGAIN) {
        status = cmq_fail_at(CMQ_ERR_CORRUPT, *phy, "the record is longer than the log");
    }
    return status == CMQ_ERR_CORRUPT ? pass_damage(repair, phy) : status;
}

static bool report_progress(cmq_repair *repair, int64_t phy, int64_t limit, bool now)
{
    const cmq_repair_options *options = repair->options;
    if (options->progress == NULL || (!now && phy - repair->progressed < PROGRESS_BYTES)) return true;
    repair->progressed = phy;
    if (!options->progress(options->context, phy - repair->report->log_min, limit - repair->report->log_min))
        repair->stopped = true;
    return !repair->stopped;
}

/* Up to where the log once reached durably, whatever became of it since; and from where a crash may have left records
 * without all of their sectors: where an opening would begin to read. */
static cmq_status CMQ_MUST_CHECK learn_point(cmq_repair *repair)
{
    cmq_durable_point point;
    const bool trusted = cmq_store_trusted_point(repair->store, &point);
    cmq_store_learn_bounds(repair->store);
    repair->known_end = repair->store->known_end;
    repair->torn_from = !repair->report->was_unclean ? INT64_MAX : trusted ? point.log_end : 0;
    return trusted || !repair->report->was_unclean ? CMQ_OK
                                                   : cmq_store_scan_start(repair->store, true, 0, &repair->torn_from);
}

cmq_status cmq_repair_walk(cmq_repair *repair)
{
    cmq_log *log = repair->store->log;
    const int64_t limit = cmq_log_last_file_end(log);
    int64_t phy = repair->progressed = repair->report->log_min = cmq_log_min(log), last_ms = 0;
    cmq_status status = learn_point(repair);
    repair->last_phy = -1;
    while (status == CMQ_OK && phy < limit && report_progress(repair, phy, limit, false)) {
        if (!repair->counting) last_ms = repair->last_ms;
        status = step(repair, &phy, limit);
    }
    if (status == CMQ_END) status = CMQ_OK;
    if (status == CMQ_OK) status = put_lot(repair, 1);
    if (status == CMQ_OK && !repair->stopped) (void)report_progress(repair, limit, limit, true);
    if (repair->counting) repair->last_ms = last_ms;
    else repair->end = phy;
    repair->report->log_end = repair->end;
    return status;
}

/* ---- queues that keep their offset ---- */

/* The last unit of a file that points to an expired record; false when there is none. */
static cmq_status CMQ_MUST_CHECK last_expired(cmq_repair *repair, const cmq_rawqueue *old, int64_t first, int64_t end,
                                              int64_t *position_out)
{
    uint8_t *images = malloc((size_t)SCAN_UNITS * old->unit_bytes);
    if (images == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory to read a queue");
    cmq_status status = CMQ_OK;
    *position_out = -1;
    while (first < end) {
        status = cmq_raw_queues_next(repair->raw, old, first, &first);
        if (status != CMQ_OK || first >= end) break;
        const int64_t count = end - first < SCAN_UNITS ? end - first : SCAN_UNITS;
        status = cmq_raw_queues_read(repair->raw, old, first, count, images);
        if (status != CMQ_OK) break;
        for (int64_t i = 0; i < count; i++) {
            cmq_unit unit;
            bool filler;
            if (cmq_rawqueue_decode(old, first + i, images + i * old->unit_bytes, &unit, &filler) &&
                unit.phy < repair->report->log_min)
                *position_out = first + i;
        }
        first += count;
    }
    free(images);
    return status == CMQ_END ? CMQ_OK : status;
}

static cmq_status CMQ_MUST_CHECK sync_parents(cmq_fs *fs, char path[CMQ_PATH_BYTES], int levels)
{
    cmq_status status = CMQ_OK;
    for (int i = 0; i < levels && status == CMQ_OK; i++) {
        char *slash = strrchr(path, '/');
        CMQ_ASSERT(slash != NULL);
        *slash = '\0';
        status = cmq_fs_sync_directory(fs, path);
    }
    return status;
}

/* Copy the file with the queue's last unit, up to that unit: it says where the queue goes on. */
static cmq_status CMQ_MUST_CHECK keep_queue(cmq_repair *repair, const cmq_rawqueue *old)
{
    const int64_t file_units = old->file_bytes / old->unit_bytes;
    int64_t position = -1, copied;
    uint32_t file = old->file_count;
    while (file > 0 && position < 0) {
        const int64_t first = old->starts[--file] / old->unit_bytes;
        const cmq_status status = last_expired(repair, old, first, first + file_units, &position);
        if (status != CMQ_OK) return status;
    }
    if (position < 0) return CMQ_OK;
    repair->report->queues_kept++;
    if (repair->options->dry_run) return CMQ_OK;
    char from[CMQ_PATH_BYTES], to[CMQ_PATH_BYTES], folder[CMQ_PATH_BYTES];
    const int64_t start = old->starts[file];
    cmq_file *copy;
    cmq_status status = cmq_rawqueue_path(repair->root, old, start, from);
    if (status == CMQ_OK) status = cmq_rawqueue_path(repair->built, old, -1, folder);
    if (status == CMQ_OK) status = cmq_rawqueue_path(repair->built, old, start, to);
    if (status == CMQ_OK) status = cmq_fs_make_directory(repair->fs, folder);
    if (status == CMQ_OK)
        status = cmq_file_tree_copy(repair->fs, from, 0, (position + 1) * old->unit_bytes - start, to, &copied);
    if (status == CMQ_OK) status = cmq_file_open(repair->fs, to, CMQ_OPEN_WRITE, &copy);
    if (status != CMQ_OK) return status;
    status = cmq_file_resize(copy, (uint64_t)old->file_bytes);
    if (status == CMQ_OK) status = cmq_file_sync(copy);
    cmq_file_close(copy);
    return status == CMQ_OK ? sync_parents(repair->fs, to, 3) : status;
}

/* Every queue that there was and for which the log has no message. */
static cmq_status CMQ_MUST_CHECK keep_queues(cmq_repair *repair)
{
    for (uint32_t i = 0; i < cmq_raw_queues_count(repair->raw); i++) {
        const cmq_rawqueue *old = cmq_raw_queues_at(repair->raw, i);
        const cmq_queue *queue = cmq_queues_find(repair->store->queues, cmq_slice_of_text(old->topic), old->id);
        if (queue != NULL && cmq_queue_max(queue, repair->end) > cmq_queue_min(queue)) continue;
        const cmq_status status = keep_queue(repair, old);
        if (status != CMQ_OK) return status;
    }
    return CMQ_OK;
}

/* ---- to disk ---- */

static cmq_status CMQ_MUST_CHECK make_folders(cmq_repair *repair)
{
    for (int i = 0; i < CMQ_REPAIR_FOLDERS; i++) {
        char path[CMQ_PATH_BYTES];
        bool exists;
        if (i == 3 && repair->store->options.index_disabled) continue;   /* the index stays as it is */
        cmq_status status = cmq_path_join(path, repair->root, cmq_repair_folders[i]);
        if (status == CMQ_OK) status = cmq_file_tree_exists(repair->fs, path, &exists);
        if (status != CMQ_OK) return status;
        if (!exists) continue;
        status = cmq_path_join(path, repair->built, cmq_repair_folders[i]);
        if (status == CMQ_OK) status = cmq_fs_make_directory(repair->fs, path);
        if (status != CMQ_OK) return status;
    }
    return cmq_fs_sync_directory(repair->fs, repair->built);
}

cmq_status cmq_repair_complete(cmq_repair *repair)
{
    cmq_store *store = repair->store;
    cmq_repair_journal *journal = &repair->journal;
    int64_t covered, full_end_ms;
    cmq_status status = cmq_queues_flush(store->queues, repair->end, true, &covered);
    if (status == CMQ_OK && store->index != NULL) {
        cmq_index_at(store->index, &journal->point.index);
        status = cmq_index_flush(store->index, &full_end_ms);
    }
    if (status == CMQ_OK) status = keep_queues(repair);
    if (status == CMQ_OK) status = make_folders(repair);
    for (uint32_t i = 0; i < cmq_queues_count(store->queues); i++) {
        const cmq_queue *queue = cmq_queues_at(store->queues, i);
        repair->report->queues += cmq_queue_max(queue, repair->end) > cmq_queue_min(queue);
    }
    repair->report->gaps = cmq_queues_gaps(store->queues);
    return status;
}
