/* cmq_stale_record: is a whole record whose store time falls back the log's own, or left from before a cut?
 *
 * A Java broker that recovers cuts its log and wipes nothing. Its next record may end just where a record from before
 * the cut begins, which is whole and says the right place. Its queue offset may continue the queue, and its unit may
 * still stand in the queue's file, for the broker does not wipe those either. Only its time is older than that of the
 * record before it. But so is the time of a live record where the broker's clock stepped back.
 *
 * So a record that is older than one before it is accepted only with a proof that the broker wrote it after that one:
 *   - its place lies below an end that the log is known to have had: the newest segment's start (a cut removes later
 *     files), the `checkpoint`'s confirm offset, our durable point;
 *   - whole records lead on from it to one that is not older: time has caught up; - bytes at or behind it have changed
 *   since the view came to this place: the broker writes at its end alone, so all before them is the log.
 * Without one the view ends before it, until the broker appends more.
 *
 * Threads: refresh_mutex, or opening.
 * Source:  upstream's MappedFileQueue.truncateDirtyFiles, ConsumeQueue.truncateDirtyLogicFiles. docs/decisions/0007.
 */
#include <stdlib.h>
#include <string.h>

#include "store/cmq_store_internal.h"

#define WINDOW_BYTES 65536
#define WATCHED_BYTES (INT64_C(64) << 20)

typedef struct window {
    int64_t start;
    size_t bytes;
    uint8_t data[WINDOW_BYTES];
} window;

/* Bytes behind the view's end as they were when it came there: right behind it, and where the whole records there
 * end. */
struct cmq_tail_watch {
    int64_t at;
    window windows[2];
};

static void prove(cmq_store *store, int64_t end)
{
    if (end > store->proven_end) store->proven_end = end;
}

void cmq_stale_record_begin(cmq_store *store, int64_t newest_segment)
{
    store->newest_ms = 0;
    store->proven_end = newest_segment;
    store->nothing_at = store->chain_at = -1;
    if (store->checkpoint.confirm_phy < cmq_log_last_file_end(store->log)) prove(store, store->checkpoint.confirm_phy);
}

/* Where whole records that begin at `from` end. *newer_out: at the end of the first that is not older than what was
 * walked, or that begins a segment; -1: none. */
static int64_t follow_chain(cmq_store *store, int64_t from, int64_t limit, int64_t *newer_out)
{
    const int64_t bytes = cmq_log_segment_bytes(store->log);
    *newer_out = -1;
    while (from < limit && *newer_out < 0) {
        cmq_segment *segment;
        cmq_record_view view;
        const cmq_status status = cmq_store_record_at(store, from, limit, CMQ_RECORD_CHECK_BODY_CRC, &segment, &view);
        if (status == CMQ_OK) {
            cmq_segment_unpin(segment);
            if (view.store_timestamp_ms >= store->newest_ms || from % bytes == 0) *newer_out = from + view.record_bytes;
            from += view.record_bytes;
        } else if (status == CMQ_END && from - from % bytes + bytes < limit) {
            from = from - from % bytes + bytes;
        } else {
            break;
        }
    }
    return from;
}

bool cmq_stale_record_is_live(cmq_store *store, int64_t phy, int64_t limit)
{
    int64_t newer;
    if (phy < store->proven_end || phy == store->nothing_at) return true;
    /* The same place again: records that were checked are not checked again; the windows detect changes since. */
    store->chain_end = follow_chain(store, store->chain_at == phy ? store->chain_end : phy, limit, &newer);
    store->chain_at = phy;
    if (newer >= 0) prove(store, newer);
    return phy < store->proven_end;
}

/* ---- watching a broker's end ---- */

static void take_window(cmq_store *store, window *into, int64_t start)
{
    cmq_segment *segment;
    const uint8_t *data;
    size_t available;
    into->start = start;
    into->bytes = 0;
    if (cmq_log_pin(store->log, start, &segment, &data, &available) != CMQ_OK) return;
    into->bytes = available < WINDOW_BYTES ? available : WINDOW_BYTES;
    memcpy(into->data, data, into->bytes);
    cmq_segment_unpin(segment);
}

/* Behind the last byte of a window that is another one now; its start when all are the same. */
static int64_t changed_end(cmq_store *store, const window *before)
{
    cmq_segment *segment;
    const uint8_t *data;
    size_t available, end = before->bytes;
    if (end == 0 || cmq_log_pin(store->log, before->start, &segment, &data, &available) != CMQ_OK) return before->start;
    if (end > available) end = available;
    if (memcmp(data, before->data, end) == 0) end = 0;
    while (end > 0 && data[end - 1] == before->data[end - 1]) end--;
    cmq_segment_unpin(segment);
    return before->start + (int64_t)end;
}

void cmq_stale_record_look(cmq_store *store)
{
    const cmq_tail_watch *watch = store->watch;
    if (watch == NULL || watch->at != store->walked) return;
    for (int i = 0; i < 2; i++) {
        const int64_t end = changed_end(store, &watch->windows[i]);
        if (end > watch->windows[i].start) prove(store, end);
    }
}

cmq_status cmq_stale_record_watch(cmq_store *store)
{
    int64_t newer;
    if (store->watch == NULL) store->watch = malloc(sizeof *store->watch);
    if (store->watch == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory to follow a broker");
    if (store->watch_taken && store->watch->at == store->walked) return CMQ_OK;   /* changes since stay visible */
    cmq_tail_watch *watch = store->watch;
    watch->at = store->walked;
    store->watch_taken = true;
    take_window(store, &watch->windows[0], store->walked);
    const int64_t files_end = cmq_log_last_file_end(store->log);
    const int64_t limit = files_end - store->walked < WATCHED_BYTES ? files_end : store->walked + WATCHED_BYTES;
    const int64_t end =
        store->chain_at == store->walked ? store->chain_end : follow_chain(store, store->walked, limit, &newer);
    if (end - store->walked >= WINDOW_BYTES) take_window(store, &watch->windows[1], end);
    else watch->windows[1].bytes = 0;
    return CMQ_OK;
}
