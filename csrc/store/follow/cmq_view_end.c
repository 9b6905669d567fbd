/* cmq_view_end: is the end of a view the end of the log, or damage in its middle?
 *
 * A view ends at the first bytes that are no whole record. Behind a killed writer that is a torn tail, unless a proof
 * says that the log went on: the follow page or the durable point names a later end, or flushed records lie behind.
 * Then messages are missing, and every reader that comes to the end of the view must report it: a writer's opening
 * refuses such a log (cmq_recover), and a view serves the records before the damage.
 *
 * Cost:    nothing until a reader comes to the end; then the bytes there are judged once. Behind a writer that died the
 *          data behind the end is searched, as recovery does.
 * Threads: any; refresh_mutex.
 * Way:     readers, look-ups at the view's end -> [cmq_view_end]
 */
#include <inttypes.h>

#include "store/cmq_store_internal.h"

static cmq_status fail_unread(int64_t at, int64_t known_end)
{
    return cmq_fail_at(CMQ_ERR_CORRUPT, at,
                       "the commit log is damaged at physical offset %" PRId64 ": messages up to %" PRId64
                       " were acknowledged, and those from there on cannot be read. Run `cometmq verify` and then "
                       "`cometmq repair`",
                       at, known_end);
}

static cmq_status fail_followed(int64_t at, int64_t next)
{
    return cmq_fail_at(CMQ_ERR_CORRUPT, at,
                       "the commit log is damaged at physical offset %" PRId64
                       ": flushed messages follow it (the next at %" PRId64
                       "), and none from there on can be read. Run `cometmq verify` and then `cometmq repair`",
                       at, next);
}

/* Does a blank lead from the view's end to `end` or behind it? */
static bool blank_reaches(cmq_store *store, int64_t end)
{
    cmq_segment *segment;
    cmq_record_view view;
    const int64_t bytes = cmq_log_segment_bytes(store->log), walked = store->walked;
    const cmq_status status =
        cmq_store_record_at(store, walked, cmq_log_last_file_end(store->log), 0, &segment, &view);
    if (status == CMQ_OK) cmq_segment_unpin(segment);
    return status == CMQ_END && walked - walked % bytes + bytes >= end;
}

/* The page confirms more than could be walked. */
static cmq_status judge_confirmed(cmq_store *store)
{
    cmq_follow_state page;
    cmq_follow_snapshot(store->follow, &page);
    const bool same = page.generation != 0 && page.generation == store->generation;
    const bool stopped = store->no_record_at == store->walked && store->walked < page.confirmed_end;
    if (!same || !stopped) return CMQ_OK;
    /* A writer may have replaced the file (overlayfs copies it): the old mapping shows none of the later writes. */
    bool reopened;
    const int64_t start = store->walked - store->walked % cmq_log_segment_bytes(store->log);
    const cmq_status status = cmq_log_reopen_replaced(store->log, start, &reopened);
    return status != CMQ_OK || reopened ? status : fail_unread(store->walked, page.confirmed_end);
}

/* ---- where nobody writes ---- */

/* A page of the writer that was followed may prove more than at the view's opening. */
static cmq_status learn_known_end(cmq_store *store)
{
    int64_t acknowledged = 0;
    if (store->foreign_seen) {
        store->known_end = 0;
        return CMQ_OK;
    }
    if (!store->has_view_point && store->generation == 0) return CMQ_OK;
    const cmq_status status = cmq_follow_acknowledged(store->fs, store->root, &acknowledged);
    if (status == CMQ_OK && acknowledged > store->known_end) store->known_end = acknowledged;
    return status;
}

static cmq_status judge_left(cmq_store *store)
{
    cmq_record_view view;
    const int64_t at = store->walked;
    const cmq_status status = learn_known_end(store);
    if (status != CMQ_OK) return status;
    if (at < store->known_end && !blank_reaches(store, store->known_end)) return fail_unread(at, store->known_end);
    const bool unclean = store->left_unclean || store->generation != 0;
    /* A record that is older than any before it may be left from before a cut (cmq_stale_record). */
    if (!cmq_store_flushed_behind(store, at, store->walked_phy, store->seen_ms, unclean, &view)) return CMQ_OK;
    return fail_followed(at, view.physical_offset);
}

/* The walk stood still, and no writer came or went since: the verdict is of these bytes. */
static cmq_status judge_static(cmq_store *store, int64_t generation)
{
    const cmq_status judged = judge_left(store);
    if (judged != CMQ_OK && judged != CMQ_ERR_CORRUPT) return judged;
    const cmq_error error = *cmq_last_error();
    const cmq_status status = cmq_store_find_source(store);
    if (status != CMQ_OK) return status;
    if (store->source != CMQ_FOLLOW_SOURCE_STATIC || cmq_store_page_generation(store) != generation) return CMQ_OK;
    store->end_judged = true;
    store->end_judged_at = store->walked;
    store->end_judged_generation = generation;
    store->end_damaged = judged != CMQ_OK;
    store->end_error = error;
    return judged == CMQ_OK ? CMQ_OK : cmq_fail_again(&error);
}

static cmq_status check_end(cmq_store *store)
{
    const int64_t generation = cmq_store_page_generation(store), walked = store->walked;
    const bool is_static = store->source == CMQ_FOLLOW_SOURCE_STATIC;
    if (!is_static && store->source != CMQ_FOLLOW_SOURCE_PAGE) return CMQ_OK;
    if (is_static && store->end_judged && store->end_judged_at == walked && store->end_judged_generation == generation)
        return store->end_damaged ? cmq_fail_again(&store->end_error) : CMQ_OK;
    const cmq_status status = cmq_store_refresh_held(store);
    if (status != CMQ_OK || store->walked != walked) return status;
    if (store->source == CMQ_FOLLOW_SOURCE_PAGE) return judge_confirmed(store);
    return store->source == CMQ_FOLLOW_SOURCE_STATIC ? judge_static(store, generation) : CMQ_OK;
}

cmq_status cmq_store_check_end(cmq_store *store)
{
    if (!store->options.read_only) return CMQ_OK;
    pthread_mutex_lock(&store->refresh_mutex);
    const cmq_status status = check_end(store);
    pthread_mutex_unlock(&store->refresh_mutex);
    return status;
}
