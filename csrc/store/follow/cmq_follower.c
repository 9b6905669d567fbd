/* cmq_follower: a read-only store: where its view ends, and how it grows while somebody else writes.
 *
 * Four sources say how far may be read:
 *   page      a writer of ours publishes its confirmed end in cometmq/follow; units that it has not yet written to
 *             files are derived from the log.
 *   foreign   a Java broker holds the lock. It publishes no confirmed end, but it makes a queue unit only for a
 *             confirmed record: we walk the log and stop at the first record whose unit is not in its queue file.
 *   static    nobody holds the lock: the end is the last whole record.
 *   opening   a writer of ours has the lock and recovers: the end is the last whole record, and the view stays there
 *             until the page has more.
 *
 * Bytes behind a cut may be whole records of before the cut. Walking starts at a segment's start, which is always a
 * record's, and stops where a store time falls back, unless cmq_stale_record finds a proof that it is the broker's
 * clock which stepped back.
 *
 * A writer of ours announces its deletions (a topic, queues that are empty) in the page, with the log's end at that
 * moment. The view forgets those queues when it has come so far, neither before nor after: later records of the same
 * name start again at 0.
 *
 * Invariant: the view never passes what its source confirms, and never goes back within one generation of the writer.
 * Threads:   refresh_mutex makes one refresher at a time, which is the "writer" of the queues' tails; readers go on
 *            beside it.
 * Way:       other process -> page, log -> [cmq_follower] -> queues' tails -> readers
 */
#include <sched.h>
#include <time.h>

#include "store/cmq_store_internal.h"

#define PROBES 16
#define POLL_MS_MIN 1
#define POLL_MS_MAX 10
#define LOOK_FOR_WRITER_MS 100

/* ---- the writer ---- */

static cmq_status find_holder(cmq_store *store, int64_t *holder_out, bool *ours_out)
{
    char path[CMQ_PATH_BYTES];
    cmq_status status = cmq_path_join(path, store->root, "lock");
    if (status == CMQ_OK) status = cmq_lock_probe_writer(store->fs, path, holder_out, ours_out);
    return status;
}

static cmq_status find_page(cmq_store *store)
{
    if (store->follow != NULL) return CMQ_OK;
    const cmq_status status = cmq_follow_open(store->fs, store->root, &store->follow);
    return status == CMQ_ERR_NOT_FOUND ? CMQ_OK : status;
}

/* The holder of the lock. A writer of ours takes the guard first: for some microseconds its process is unknown, as
 * otherwise only that of a writer in another process-id namespace, which only its page identifies. */
static cmq_status probe_writer(cmq_store *store, int64_t *holder_out, bool *ours_out)
{
    cmq_status status = CMQ_OK;
    for (int attempt = 0; attempt < PROBES; attempt++) {
        status = find_holder(store, holder_out, ours_out);
        if (status != CMQ_OK || !*ours_out || *holder_out != CMQ_LOCK_HOLDER_UNKNOWN) return status;
        if (store->follow != NULL && cmq_follow_life_of(store->follow, *holder_out) != CMQ_FOLLOW_STALE) return status;
        sched_yield();
    }
    *ours_out = false;
    return status;
}

cmq_status cmq_store_find_source(cmq_store *store)
{
    int64_t holder;
    bool ours;
    cmq_status status = find_page(store);
    if (status == CMQ_OK) status = probe_writer(store, &holder, &ours);
    if (status == CMQ_OK) status = find_page(store);
    if (status != CMQ_OK) return status;
    cmq_follow_state page = {0};
    if (store->follow != NULL) cmq_follow_snapshot(store->follow, &page);
    const cmq_follow_life life = store->follow != NULL ? cmq_follow_life_of(store->follow, holder) : CMQ_FOLLOW_STALE;
    store->page_proven = life == CMQ_FOLLOW_PROVEN;
    if (holder == CMQ_LOCK_FREE) store->source = CMQ_FOLLOW_SOURCE_STATIC;
    else if (life != CMQ_FOLLOW_STALE && page.generation != 0) store->source = CMQ_FOLLOW_SOURCE_PAGE;
    /* It has the lock and not yet the page, or has taken the page and recovers the log. */
    else if (ours || life != CMQ_FOLLOW_STALE) store->source = CMQ_FOLLOW_SOURCE_OPENING;
    else store->source = CMQ_FOLLOW_SOURCE_FOREIGN;
    if (store->source == CMQ_FOLLOW_SOURCE_FOREIGN) store->foreign_seen = true;
    return CMQ_OK;
}

int64_t cmq_store_page_generation(const cmq_store *store)
{
    cmq_follow_state page = {0};
    if (store->follow != NULL) cmq_follow_snapshot(store->follow, &page);
    return page.generation;
}

cmq_status cmq_store_begin_view(cmq_store *store)
{
    cmq_follow_state page;
    cmq_status status = cmq_store_find_source(store);
    if (status == CMQ_OK) status = cmq_checkpoint_load(store->fs, store->root, &store->checkpoint);
    if (status != CMQ_OK) return status;
    store->has_view_point = cmq_store_last_point(store, &store->view_point);
    store->view_began = true;
    store->view_generation = cmq_store_page_generation(store);
    if (store->follow == NULL) return CMQ_OK;   /* a page that comes later has only later deletions */
    cmq_follow_snapshot(store->follow, &page);
    store->deletions = page.completed;
    return CMQ_OK;
}

/* Did writers come or go, or begin or end their recovery, while the view was opened? Then its parts may be of different
 * moments. */
static cmq_status check_undisturbed(cmq_store *store)
{
    const int source = store->source;
    const cmq_status status = cmq_store_find_source(store);
    store->view_disturbed = store->source != source || cmq_store_page_generation(store) != store->view_generation;
    return status;
}

/* ---- walking ---- */

/* Is the record's unit in its queue's file, as its writer made it? Records without a unit say nothing. */
static bool unit_is_there(cmq_store *store, const cmq_record_view *view, const cmq_dispatch_facts *facts)
{
    if (!facts->in_queue) return true;
    cmq_queue *queue;
    cmq_unit unit;
    const cmq_queue_kind kind = cmq_dispatch_kind(store, view->topic, view->queue_id, view->sys_flag);
    if (cmq_queues_require(store->queues, view->topic, view->queue_id, kind, &queue) != CMQ_OK) return false;
    const int64_t offset = kind == CMQ_QUEUE_BATCH ? facts->base_offset : view->queue_offset;
    return cmq_queue_file_unit(queue, offset, &unit) == CMQ_OK && unit.phy == view->physical_offset &&
           unit.bytes == (int32_t)view->record_bytes;
}

/* A broker makes units in the order of the log, so a later record's unit confirms this one, whose own may have gone
 * with its topic. */
static bool confirmed_by_later(cmq_store *store, int64_t from, int64_t limit)
{
    cmq_segment *segment;
    cmq_record_view view;
    while (cmq_store_record_at(store, from, limit, CMQ_RECORD_CHECK_BODY_CRC, &segment, &view) == CMQ_OK) {
        cmq_dispatch_facts facts;
        cmq_dispatch_learn(store, &view, &facts);
        from += view.record_bytes;
        const bool in_order = view.store_timestamp_ms >= store->newest_ms || view.physical_offset < store->proven_end;
        const bool there = facts.in_queue && in_order && unit_is_there(store, &view, &facts);
        cmq_segment_unpin(segment);
        if (there) {
            store->unit_end = from;
            return true;
        }
    }
    return false;
}

/* Foreign: may the record be seen, and has it a unit to be dispatched? */
static cmq_status confirm_foreign(cmq_store *store, const cmq_record_view *view, const cmq_dispatch_facts *facts,
                                  int64_t limit, bool *has_unit)
{
    const int64_t end = view->physical_offset + view->record_bytes;
    *has_unit = unit_is_there(store, view, facts);
    if (*has_unit || end <= store->unit_end) return CMQ_OK;
    if (!confirmed_by_later(store, end, limit)) return CMQ_END;
    /* The broker may have made both units since the first look: without a second one the record would be passed over
     * for good. */
    *has_unit = unit_is_there(store, view, facts);
    return CMQ_OK;
}

typedef enum walk_mode {
    WALK_FIND_END,      /* only look for the end */
    WALK_DISPATCH       /* put units into the tails */
} walk_mode;

/* There is no whole record at store->walked: that is damage if later records follow (cmq_view_end). */
static cmq_status no_record(cmq_store *store)
{
    store->no_record_at = store->walked;
    return CMQ_END;
}

/* One step from store->walked; CMQ_END when the next record is not there, or not confirmed. */
static cmq_status walk_step(cmq_store *store, int64_t limit, walk_mode mode, unsigned checks)
{
    if (store->walked >= limit) return CMQ_END;
    cmq_segment *segment;
    cmq_record_view view;
    cmq_dispatch_facts facts;
    cmq_status status = cmq_store_record_at(store, store->walked, limit, checks, &segment, &view);
    if (status == CMQ_END) {
        const int64_t bytes = cmq_log_segment_bytes(store->log);
        const int64_t next = store->walked - store->walked % bytes + bytes;
        if (next > limit || (next == limit && mode == WALK_FIND_END)) return CMQ_END;
        store->walked = next;
        return CMQ_OK;
    }
    if (status != CMQ_OK) {
        if (store->source == CMQ_FOLLOW_SOURCE_FOREIGN) store->nothing_at = store->walked;
        return status == CMQ_ERR_OFFSET ? CMQ_END : no_record(store);
    }
    bool has_unit = true;
    /* Below a proven end each record is confirmed, also one of a time at which a Java broker's clock stepped back. */
    const bool proven = store->source == CMQ_FOLLOW_SOURCE_PAGE ||
                      (store->source != CMQ_FOLLOW_SOURCE_FOREIGN && store->walked < store->known_end);
    if (!proven && view.store_timestamp_ms < store->newest_ms && !cmq_stale_record_is_live(store, store->walked, limit))
        status = CMQ_END;
    /* The remains of a killed writer: of the view's opening, also where the next writer was recovering then, or of the
     * writer that it followed. */
    const bool unclean = store->left_unclean || store->generation != 0;
    if (!proven && unclean && cmq_store_is_torn(store, &view)) status = CMQ_END;
    if (status == CMQ_OK) cmq_dispatch_learn(store, &view, &facts);
    if (status == CMQ_OK && store->source == CMQ_FOLLOW_SOURCE_FOREIGN)
        status = confirm_foreign(store, &view, &facts, limit, &has_unit);
    if (status == CMQ_OK && has_unit && mode == WALK_DISPATCH) status = cmq_dispatch_units(store, &view, &facts);
    if (cmq_dispatch_is_no_record(status)) status = no_record(store);
    if (status == CMQ_OK) {
        store->walked_phy = view.physical_offset;
        store->walked += view.record_bytes;
        store->walked_ms = view.store_timestamp_ms;
        if (store->walked_ms > store->newest_ms) store->newest_ms = store->walked_ms;
        if (store->newest_ms > store->seen_ms) store->seen_ms = store->newest_ms;
    }
    cmq_segment_unpin(segment);
    return status;
}

static cmq_status walk_to(cmq_store *store, int64_t limit, walk_mode mode)
{
    /* Records that a page confirms were checked by its writer, if it is certainly the current writer's page; any other
     * may be half a record. */
    const unsigned checks =
        store->source == CMQ_FOLLOW_SOURCE_PAGE && store->page_proven ? 0 : CMQ_RECORD_CHECK_BODY_CRC;
    cmq_status status = CMQ_OK;
    store->no_record_at = -1;
    while (status == CMQ_OK) status = walk_step(store, limit, mode, checks);
    return status == CMQ_END ? CMQ_OK : status;
}

/* ---- the record at which the view stands ---- */

/* Note the record at which the view stands. */
static void note_last(cmq_store *store)
{
    if (store->walked_phy == store->stood_phy && store->stood_bytes > 0) return;
    store->stood_phy = store->walked_phy;
    (void)!cmq_store_fingerprint(store, store->stood_phy, &store->stood_bytes, &store->stood_crc);
}

/* Is it still there? A writer that came since may have cut the log below it and have written past it again. */
static cmq_status check_last(cmq_store *store)
{
    cmq_segment *segment;
    const uint8_t *data;
    size_t available;
    int32_t bytes;
    uint32_t crc;
    if (store->stood_bytes == 0 || cmq_log_pin(store->log, store->stood_phy, &segment, &data, &available) != CMQ_OK)
        return CMQ_OK;   /* expired */
    const bool lost = cmq_store_check_lost(store, data, available, store->stood_phy) != CMQ_OK;
    cmq_segment_unpin(segment);
    /* a page that cannot be read is reported where it is read */
    if (lost) return CMQ_OK;
    if (cmq_store_fingerprint(store, store->stood_phy, &bytes, &crc) && bytes == store->stood_bytes &&
        crc == store->stood_crc)
        return CMQ_OK;
    return cmq_fail_at(CMQ_ERR_CLOSED, store->stood_phy,
                       "the store was recovered by a new writer, which cut its log at or below %lld, before the end "
                       "that was read here; open it again",
                       (long long)store->stood_phy);
}

/* ---- opening ---- */

/* The start of the newest segment with a record in it: always a record's start. */
static int64_t newest_segment(cmq_store *store)
{
    const int64_t bytes = cmq_log_segment_bytes(store->log), min = cmq_log_min(store->log);
    for (int64_t start = cmq_log_last_file_end(store->log) - bytes; start > min; start -= bytes) {
        cmq_segment *segment;
        cmq_record_view view;
        if (cmq_store_record_at(store, start, start + bytes, CMQ_RECORD_CHECK_BODY_CRC, &segment, &view) != CMQ_OK)
            continue;
        cmq_segment_unpin(segment);
        return start;
    }
    return min;
}

/* `point`: the last writer's durable point, if it is still true; below it nothing is read, as when a writer opens. */
static cmq_status find_end(cmq_store *store, const cmq_durable_point *point, int64_t *end_out)
{
    cmq_follow_state page;
    const int64_t newest = newest_segment(store);
    cmq_stale_record_begin(store, newest);
    if (store->source == CMQ_FOLLOW_SOURCE_PAGE) {
        cmq_follow_snapshot(store->follow, &page);
        store->generation = page.generation;
        *end_out = page.confirmed_end;
        if (page.confirmed_end > cmq_log_last_file_end(store->log)) return cmq_log_refresh(store->log);
        return CMQ_OK;
    }
    store->walked = point != NULL ? point->log_end : newest;
    store->walked_phy = point != NULL && point->last_bytes > 0 ? point->last_phy : -1;
    store->walked_ms = store->newest_ms = store->seen_ms = point != NULL ? point->store_ms : 0;
    /* Units are asked for only behind the known end, not of every record of the newest segment: this walk finds
     * whole records. */
    const int source = store->source;
    store->source = CMQ_FOLLOW_SOURCE_STATIC;
    const cmq_status status = walk_to(store, cmq_log_last_file_end(store->log), WALK_FIND_END);
    store->source = source;
    *end_out = store->walked;
    return status;
}

/* A store that looks empty is one, if its log is still not there after its point was read: a writer may have made both
 * meanwhile. */
static cmq_status check_not_lost(cmq_store *store)
{
    if (cmq_store_refuse_lost_log(store) == CMQ_OK) return CMQ_OK;
    const cmq_status status = cmq_log_refresh(store->log);
    return status == CMQ_OK ? cmq_store_refuse_lost_log(store) : status;
}

cmq_status cmq_store_follow(cmq_store *store, const cmq_layout *layout)
{
    int64_t end, dispatched_end, start, lost_from;
    cmq_durable_point point;
    cmq_status status = cmq_store_find_source(store);
    if (status == CMQ_OK) status = check_not_lost(store);
    if (status != CMQ_OK) return status;
    store->opening.was_unclean = layout->has_abort && store->source == CMQ_FOLLOW_SOURCE_STATIC;
    store->left_unclean =
        store->opening.was_unclean || (layout->has_abort && store->source == CMQ_FOLLOW_SOURCE_OPENING);
    const bool trusted = cmq_store_trusted_point(store, &point);
    cmq_store_learn_bounds(store);
    status = find_end(store, trusted ? &point : NULL, &end);
    if (status != CMQ_OK) return status;
    /* Units in the files may have holes behind a durable point: they are taken from the log, as recovery would. */
    status = cmq_store_recover_queues(store, end, trusted ? &point : NULL, layout->has_abort,
                                      store->opening.was_unclean, &dispatched_end, &start);
    bool lost = status == CMQ_OK && trusted && cmq_store_queues_lost(store, &point);
    if (status == CMQ_OK)
        status = cmq_queues_settle_gaps(store->queues, trusted && !lost && cmq_store_gaps_are_behind(store, &point));
    lost |= status == CMQ_OK && cmq_queues_incomplete(store->queues);
    if (lost) start = cmq_log_min(store->log);
    /* Under a Java broker the queue begins where that one sees it begin. */
    if (status == CMQ_OK && store->source != CMQ_FOLLOW_SOURCE_FOREIGN)
        status = cmq_store_begin_queues_again(store, lost ? 0 : point.log_end, &start, &lost_from);
    if (status != CMQ_OK) return status;
    if (start > end) start = end;
    store->unit_end = dispatched_end;
    store->opening.scanned_from = store->walked = start;
    const bool from_point = trusted && start == point.log_end;
    store->walked_phy = from_point && point.last_bytes > 0 ? point.last_phy : -1;
    store->walked_ms = store->newest_ms = store->seen_ms = from_point ? point.store_ms : 0;
    /* as it was found, or is published */
    if (store->source != CMQ_FOLLOW_SOURCE_FOREIGN && end > store->proven_end) store->proven_end = end;
    status = walk_to(store, end, WALK_DISPATCH);
    if (status == CMQ_OK && store->source == CMQ_FOLLOW_SOURCE_FOREIGN) status = cmq_stale_record_watch(store);
    if (status != CMQ_OK) return status;
    store->opening.scanned_to = store->walked;
    store->opening.gaps = cmq_queues_gaps(store->queues);
    atomic_store_explicit(&store->confirmed_ms, store->walked_ms, memory_order_relaxed);
    cmq_log_confirm(store->log, store->walked);
    note_last(store);
    return check_undisturbed(store);
}

/* ---- deletions ---- */

void cmq_store_announce(cmq_store *store, const cmq_slice *topic)
{
    const cmq_follow_deletion deletion = {.at = cmq_log_end(store->log), .expired_below = cmq_log_min(store->log),
                                          .topic = topic != NULL ? cmq_follow_topic(*topic) : 0};
    if (store->follow != NULL) cmq_follow_announce(store->follow, &deletion);
}

void cmq_store_announced(cmq_store *store)
{
    if (store->follow != NULL) cmq_follow_complete(store->follow);
}

/* Does the queue begin with a record of before the deletion? One that was made again while this view was being opened
 * does not. */
static bool begins_before(cmq_queue *queue, int64_t at)
{
    cmq_unit unit;
    uint32_t count = 0;
    int64_t next;
    /* its files are gone */
    if (cmq_queue_read(queue, cmq_queue_min(queue), INT64_MAX, &unit, 1, &count, &next) != CMQ_OK || count == 0)
        return true;
    return unit.phy < at;
}

static bool is_dead(void *context, cmq_queue *queue)
{
    const cmq_follow_deletion *deletion = context;
    const cmq_slice topic = {.data = (const uint8_t *)cmq_queue_topic(queue), .bytes = cmq_queue_topic_bytes(queue)};
    if (deletion->topic != 0) return cmq_follow_topic(topic) == deletion->topic && begins_before(queue, deletion->at);
    return cmq_queue_expired(queue, deletion->expired_below) && !cmq_store_is_system_topic(NULL, topic);
}

/* Walk to each announced deletion that lies within `limit`, and carry it out. */
static cmq_status apply_deletions(cmq_store *store, const cmq_follow_state *page, int64_t limit)
{
    while (store->deletions < page->announced) {
        cmq_follow_deletion deletion;
        if (!cmq_follow_deletion_of(store->follow, store->deletions, &deletion))
            return cmq_fail(CMQ_ERR_CLOSED,
                            "the writer has deleted more topics than a view can catch up with; open it again");
        const cmq_status status = walk_to(store, deletion.at < limit ? deletion.at : limit, WALK_DISPATCH);
        if (status != CMQ_OK || store->walked < deletion.at) return status;
        cmq_queues_forget(store->queues, is_dead, &deletion);
        store->deletions++;
    }
    return CMQ_OK;
}

/* ---- growing ---- */

/* After a writer that is not the one of before: is the last record still there? A cut removes files; later ones may
 * have their names. */
static cmq_status check_last_again(cmq_store *store)
{
    bool reopened;
    cmq_status status = CMQ_OK;
    if (store->stood_bytes > 0) status = cmq_log_reopen_replaced(store->log, store->stood_phy, &reopened);
    return status == CMQ_OK ? check_last(store) : status;
}

/* A new writer: it may have cut what we had seen of a crashed one's tail. The view is the new writer's once all was
 * checked: a failure in between (no descriptor, say) leaves the checks to the next refresh. */
static cmq_status enter_generation(cmq_store *store, const cmq_follow_state *page)
{
    const cmq_status status = check_last_again(store);
    if (status != CMQ_OK) return status;
    if (page->confirmed_end < store->walked)
        return cmq_fail_at(CMQ_ERR_CLOSED, page->confirmed_end,
                           "the store was recovered by a new writer, which cut its log at %lld, before the end that "
                           "was read here; open it again", (long long)page->confirmed_end);
    cmq_queues_reopen_files(store->queues);
    store->generation = page->generation;
    store->walked_ms = store->newest_ms = 0;
    return CMQ_OK;
}

/* Walk on where the walk stopped at a segment's start, if a new writer has replaced that segment's file. */
static cmq_status walk_replaced(cmq_store *store, int64_t limit)
{
    cmq_status status = CMQ_OK;
    bool reopened = true;
    while (status == CMQ_OK && reopened && store->walked < limit &&
           store->walked % cmq_log_segment_bytes(store->log) == 0) {
        status = cmq_log_reopen_replaced(store->log, store->walked, &reopened);
        if (status == CMQ_OK && reopened) status = walk_to(store, limit, WALK_DISPATCH);
    }
    return status;
}

/* `page`: of a writer of ours; NULL without one. */
static cmq_status grow(cmq_store *store, int64_t limit, const cmq_follow_state *page)
{
    const int64_t min = cmq_log_min(store->log);
    if (store->walked < min)
        return cmq_fail_at(
            CMQ_ERR_CLOSED, min,
            "the writer's retention deleted messages up to %lld, and this view had come to %lld only; open it again",
            (long long)min, (long long)store->walked);
    /* A writer may have come and gone since the last look, which its page alone shows. */
    const bool passed_by = page == NULL && cmq_store_page_generation(store) != store->generation;
    cmq_status status = passed_by ? check_last_again(store) : check_last(store);
    if (status != CMQ_OK) return status;
    if (page != NULL && page->files_end > 0) cmq_queues_follow_files(store->queues, page->files_end);
    if (page != NULL) status = apply_deletions(store, page, limit);
    if (status == CMQ_OK) status = walk_to(store, limit, WALK_DISPATCH);
    if (status == CMQ_OK) status = walk_replaced(store, limit);
    if (status != CMQ_OK) return status;
    if (store->source == CMQ_FOLLOW_SOURCE_FOREIGN) cmq_queues_follow_files(store->queues, store->walked);
    if (store->walked > cmq_log_confirmed(store->log)) {
        atomic_store_explicit(&store->confirmed_ms, store->walked_ms, memory_order_relaxed);
        cmq_log_confirm(store->log, store->walked);
    }
    note_last(store);
    return CMQ_OK;
}

static cmq_status refresh_from_page(cmq_store *store)
{
    cmq_follow_state page;
    cmq_follow_snapshot(store->follow, &page);
    if (page.generation == 0) return CMQ_OK;
    cmq_status status = CMQ_OK;
    if (page.generation != store->generation) status = enter_generation(store, &page);
    if (status == CMQ_OK && page.confirmed_end == store->walked && page.log_min == cmq_log_min(store->log) &&
        page.announced == store->deletions) {
        if (page.closed) store->source = CMQ_FOLLOW_SOURCE_STATIC;
        return CMQ_OK;
    }
    if (status == CMQ_OK &&
        (page.confirmed_end > cmq_log_last_file_end(store->log) || page.log_min > cmq_log_min(store->log))) {
        /* Queues are corrected for segments that have gone since, and not again for each segment that comes: files of a
         * topic that the writer has deleted are gone, and the view forgets it only below. */
        const int64_t min = cmq_log_min(store->log);
        status = cmq_log_refresh(store->log);
        if (status == CMQ_OK && cmq_log_min(store->log) > min)
            status = cmq_queues_expire(store->queues, cmq_log_min(store->log), 0);
    }
    return status == CMQ_OK ? grow(store, page.confirmed_end, &page) : status;
}

/* Where whole records end, at or behind store->walked; nothing is taken in. */
static cmq_status look_for_end(cmq_store *store, int64_t *end_out)
{
    const int64_t walked = store->walked, walked_ms = store->walked_ms, newest_ms = store->newest_ms,
                  walked_phy = store->walked_phy;
    const cmq_status status = walk_to(store, cmq_log_last_file_end(store->log), WALK_FIND_END);
    *end_out = store->walked;
    store->walked = walked;
    store->walked_phy = walked_phy;
    store->walked_ms = walked_ms;
    store->newest_ms = newest_ms;
    return status;
}

static cmq_status grow_by_walking(cmq_store *store)
{
    int64_t end = cmq_log_last_file_end(store->log);
    if (store->source != CMQ_FOLLOW_SOURCE_STATIC) return grow(store, end, NULL);
    /* Nobody wrote when we looked. A writer that came since may append by now, and half a record of its may look whole:
     * the end counts only if there is still no writer, and records that were whole until then stay. */
    cmq_status status = look_for_end(store, &end);
    bool reopened = false;
    if (status == CMQ_OK && end == store->walked && end % cmq_log_segment_bytes(store->log) == 0)
        status = cmq_log_reopen_replaced(store->log, end, &reopened);   /* a writer came and died since */
    if (status == CMQ_OK && reopened) status = look_for_end(store, &end);
    if (status != CMQ_OK || end == store->walked) return status == CMQ_OK ? grow(store, end, NULL) : status;
    status = cmq_store_find_source(store);
    return status == CMQ_OK && store->source == CMQ_FOLLOW_SOURCE_STATIC ? grow(store, end, NULL) : status;
}

static cmq_status walk_on(cmq_store *store)
{
    cmq_status status = CMQ_OK;
    /* The next segment's file is looked for only when this one is used up. */
    if (store->walked + CMQ_RECORD_BYTES_MIN + CMQ_RECORD_BLANK_BYTES_MIN >= cmq_log_last_file_end(store->log))
        status = cmq_log_refresh(store->log);
    if (status != CMQ_OK) return status;
    const int64_t before = store->walked;
    status = grow_by_walking(store);
    if (status != CMQ_OK || store->walked > before) return status;
    /* Standing before a blank, whose next segment may have come since. */
    cmq_segment *segment;
    cmq_record_view view;
    status = cmq_store_record_at(store, store->walked, cmq_log_last_file_end(store->log), 0, &segment, &view);
    if (status == CMQ_OK) cmq_segment_unpin(segment);
    if (status != CMQ_END) return CMQ_OK;
    status = cmq_log_refresh(store->log);
    return status == CMQ_OK ? grow_by_walking(store) : status;
}

static cmq_status refresh_by_walking(cmq_store *store)
{
    cmq_status status = cmq_store_find_source(store);
    if (status != CMQ_OK) return status;
    if (store->source == CMQ_FOLLOW_SOURCE_PAGE) return refresh_from_page(store);
    if (store->source == CMQ_FOLLOW_SOURCE_OPENING) return CMQ_OK;
    const bool foreign = store->source == CMQ_FOLLOW_SOURCE_FOREIGN;
    if (foreign) cmq_stale_record_look(store);
    status = walk_on(store);
    return status == CMQ_OK && foreign ? cmq_stale_record_watch(store) : status;
}

cmq_status cmq_store_check_view(cmq_store *store)
{
    if (!atomic_load_explicit(&store->view_ended, memory_order_acquire)) return CMQ_OK;
    return cmq_fail_at(CMQ_ERR_CLOSED, store->view_end_error.offset, "%s", store->view_end_error.text);
}

/* A view that cannot go on says so from then on: bytes and units that it knows may be others' by now. */
cmq_status cmq_store_refresh_held(cmq_store *store)
{
    cmq_status status = cmq_store_check_view(store);
    if (status != CMQ_OK) return status;
    status = store->source == CMQ_FOLLOW_SOURCE_PAGE ? refresh_from_page(store) : refresh_by_walking(store);
    if (status != CMQ_ERR_CLOSED) return status;
    store->view_end_error = *cmq_last_error();
    atomic_store_explicit(&store->view_ended, true, memory_order_release);
    return status;
}

cmq_status cmq_store_refresh(cmq_store *store)
{
    if (!store->options.read_only) return CMQ_OK;
    pthread_mutex_lock(&store->refresh_mutex);
    const cmq_status status = cmq_store_refresh_held(store);
    pthread_mutex_unlock(&store->refresh_mutex);
    return status;
}

/* ---- waiting ---- */

static int64_t monotonic_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void pause_ms(int64_t ms)
{
    const struct timespec pause = {.tv_sec = ms / 1000, .tv_nsec = (ms % 1000) * 1000000};
    nanosleep(&pause, NULL);
}

/* The page as it is now; zero when there is none. */
static void look_at_page(cmq_store *store, cmq_follow_state *page_out)
{
    *page_out = (cmq_follow_state){0};
    pthread_mutex_lock(&store->refresh_mutex);   /* a follower may find the page only now */
    if (store->follow != NULL) cmq_follow_snapshot(store->follow, page_out);
    pthread_mutex_unlock(&store->refresh_mutex);
}

/* One wait of at most `ms`: on the page where there is a live one, else a pause that grows. */
static cmq_status wait_once(cmq_store *store, uint32_t seen, int64_t ms, int64_t *poll_ms)
{
    /* Once the source was a page, the handle stays. */
    if (!store->options.read_only || store->source == CMQ_FOLLOW_SOURCE_PAGE) {
        const int64_t most = ms < LOOK_FOR_WRITER_MS ? ms : LOOK_FOR_WRITER_MS;
        const cmq_status status = cmq_follow_wait(store->follow, seen, most);
        if (status != CMQ_AGAIN || !store->options.read_only) return status == CMQ_AGAIN ? CMQ_OK : status;
        pthread_mutex_lock(&store->refresh_mutex);   /* is the writer still there? */
        const cmq_status found = cmq_store_find_source(store);
        pthread_mutex_unlock(&store->refresh_mutex);
        return found;
    }
    pause_ms(ms < *poll_ms ? ms : *poll_ms);
    *poll_ms = *poll_ms * 2 < POLL_MS_MAX ? *poll_ms * 2 : POLL_MS_MAX;
    return CMQ_OK;
}

cmq_status cmq_store_wait_more(cmq_store *store, int64_t seen_end, int64_t timeout_ms)
{
    const int64_t began = monotonic_ms(), deadline = timeout_ms < INT64_MAX - began ? began + timeout_ms : INT64_MAX;
    int64_t poll_ms = POLL_MS_MIN;
    for (;;) {
        cmq_follow_state page;
        look_at_page(store, &page);   /* before looking at the log, so that no publish is missed */
        cmq_status status = cmq_store_refresh(store);
        if (status != CMQ_OK) return status;
        if (cmq_log_confirmed(store->log) > seen_end) return CMQ_OK;
        if (!store->options.read_only && atomic_load_explicit(&store->fenced, memory_order_acquire))
            return cmq_store_fail_fenced(store);
        const int64_t left = deadline - monotonic_ms();
        if (left <= 0) return CMQ_AGAIN;
        status = wait_once(store, page.sequence, left, &poll_ms);
        if (status != CMQ_OK) return status;
    }
}
