/* cmq_lookup: single messages: by physical offset, queue offset; queue offsets by time. By key: cmq_key_search.
 *
 * Threads: any.
 * Way:     cmq_queue -> [cmq_lookup] -> a found record
 * Source:  upstream's DefaultMessageStore.getOffsetInQueueByTime; spec store 8.3, 8.4.
 */
#include <string.h>

#include "store/cmq_store_internal.h"
#include "store/read/cmq_unit_check.h"

static bool is_pinned(const cmq_found_batch *batch, const cmq_segment *segment)
{
    for (uint32_t i = batch->pin_count; i > 0; i--)   /* mostly the last one */
        if (batch->pins[i - 1] == segment) return true;
    return false;
}

cmq_status cmq_store_take(cmq_store *store, int64_t phy, cmq_found_batch *batch, cmq_record_view *view_out)
{
    cmq_segment *segment;
    if (batch->count == batch->capacity) return CMQ_AGAIN;
    const int64_t confirmed = cmq_log_confirmed(store->log);
    if (phy >= confirmed)
        return cmq_fail_at(CMQ_ERR_OFFSET, phy, "physical offset %lld lies at or behind the end of the log, %lld",
                           (long long)phy, (long long)confirmed);
    const cmq_status status = cmq_store_record_at(store, phy, confirmed, CMQ_RECORD_CHECK_BODY_CRC, &segment, view_out);
    if (status == CMQ_END || status == CMQ_AGAIN)
        return cmq_fail_at(CMQ_ERR_CORRUPT, phy, "no record begins at physical offset %lld", (long long)phy);
    const cmq_record_proof proof = status == CMQ_OK ? cmq_record_prove(view_out) : CMQ_RECORD_UNPROVEN;
    if (proof == CMQ_RECORD_CONTRADICTED ||
        (status == CMQ_OK && proof == CMQ_RECORD_UNPROVEN && store->options.check_property_crc)) {
        cmq_segment_unpin(segment);
        return cmq_fail_at(CMQ_ERR_CORRUPT, phy,
                           "the record at physical offset %lld does not match its property CRC; run `cometmq verify`",
                           (long long)phy);
    }
    if (status != CMQ_OK) return status;
    if (is_pinned(batch, segment)) {
        cmq_segment_unpin(segment);
    } else if (batch->pin_count == CMQ_FOUND_PINS_MAX) {
        cmq_segment_unpin(segment);
        return CMQ_AGAIN;
    } else {
        batch->pins[batch->pin_count++] = segment;
    }
    batch->items[batch->count++] = (cmq_found){
        .record = cmq_segment_data(segment) + (phy - cmq_segment_start(segment)),
        .physical_offset = phy,
        .queue_offset = view_out->queue_offset,
        .record_bytes = view_out->record_bytes,
        .count = 1,
    };
    return CMQ_OK;
}

cmq_status cmq_store_read_physical(cmq_store *store, int64_t physical_offset, cmq_found_batch *batch)
{
    cmq_record_view view;
    if (physical_offset < 0)
        return cmq_fail_at(CMQ_ERR_OFFSET, physical_offset, "physical offset %lld is negative",
                           (long long)physical_offset);
    cmq_status status = cmq_store_refresh(store);
    if (status == CMQ_OK && physical_offset >= cmq_log_confirmed(store->log)) status = cmq_store_check_end(store);
    return status == CMQ_OK ? cmq_store_take(store, physical_offset, batch, &view) : status;
}

static cmq_status find_queue(cmq_store *store, cmq_slice topic, int32_t queue_id, cmq_queue **queue_out)
{
    *queue_out = cmq_queues_find(store->queues, topic, queue_id);
    if (*queue_out != NULL) return CMQ_OK;
    const cmq_status status = cmq_store_check_end(store);
    if (status != CMQ_OK) return status;
    return cmq_fail(CMQ_ERR_NOT_FOUND, "the store has no queue %d of topic %.*s", queue_id,
                    (int)(topic.bytes < 255 ? topic.bytes : 255), topic.bytes > 0 ? (const char *)topic.data : "");
}

/* In a view: `status` may be of files that a writer has deleted since the last refresh. Is it worth a second look-up,
 * which finds the topic gone, or the damage again? */
static bool may_look_again(cmq_store *store, cmq_status *status)
{
    if (*status != CMQ_ERR_CORRUPT || !store->options.read_only) return false;
    const cmq_error error = *cmq_last_error();
    const cmq_status refreshed = cmq_store_refresh(store);
    if (refreshed == CMQ_OK) return true;
    *status = refreshed == CMQ_ERR_CLOSED ? refreshed : cmq_fail_again(&error);
    return false;
}

static cmq_status read_offset(cmq_store *store, cmq_slice topic, int32_t queue_id, int64_t offset,
                              cmq_found_batch *batch)
{
    cmq_queue *queue;
    cmq_unit unit;
    uint32_t count = 0;
    int64_t next;
    cmq_status status = find_queue(store, topic, queue_id, &queue);
    if (status != CMQ_OK) return status;
    const int64_t confirmed = cmq_log_confirmed(store->log);
    const int64_t min = cmq_queue_min(queue), max = cmq_queue_max(queue, confirmed);
    if (offset >= max) status = cmq_store_check_end(store);
    if (status != CMQ_OK) return status;
    if (offset < min || offset >= max)
        return cmq_fail_at(CMQ_ERR_OFFSET, offset, "queue offset %lld is outside the queue, which holds [%lld, %lld)",
                           (long long)offset, (long long)min, (long long)max);
    status = cmq_queue_read(queue, offset, confirmed, &unit, 1, &count, &next);
    if (status != CMQ_OK) return status;
    if (count == 0 || unit.offset > offset)
        return cmq_fail_at(CMQ_ERR_NOT_FOUND, offset, "there is no message at queue offset %lld: its unit is a filler",
                           (long long)offset);
    cmq_record_view view;
    status = cmq_store_take(store, unit.phy, batch, &view);
    /* No unit that can be seen points behind the log, or before its first byte. */
    if (status == CMQ_ERR_OFFSET && (unit.phy < 0 || unit.phy >= confirmed))
        status = cmq_unit_check(store, queue, &unit, NULL, 0);
    if (status != CMQ_OK) return status;
    cmq_found *found = &batch->items[batch->count - 1];
    /* a unit of zeros points at the first record of the log */
    status = cmq_unit_check(store, queue, &unit, found->record, found->record_bytes);
    if (status == CMQ_OK && offset - unit.offset >= unit.count)
        status = cmq_fail_at(CMQ_ERR_CORRUPT, unit.phy,
                             "no unit of the queue has queue offset %lld; run `cometmq verify`", (long long)offset);
    if (status != CMQ_OK) {
        batch->count--;
        return status;
    }
    found->queue = queue;
    found->queue_offset = unit.offset;
    found->count = unit.count;
    return CMQ_OK;
}

cmq_status cmq_store_read_offset(cmq_store *store, cmq_slice topic, int32_t queue_id, int64_t offset,
                                 cmq_found_batch *batch)
{
    cmq_status status = cmq_store_refresh(store);
    if (status != CMQ_OK) return status;
    status = read_offset(store, topic, queue_id, offset, batch);
    return may_look_again(store, &status) ? read_offset(store, topic, queue_id, offset, batch) : status;
}

/* ---- time ---- */

typedef struct time_search {
    cmq_store *store;
    cmq_queue *queue;
    cmq_unit_owner owner;
    int64_t time_ms;
    bool after;          /* look for the first later than time_ms, else the first not earlier */
} time_search;

static int compare_time(void *context, const cmq_unit *unit, cmq_status *status_out)
{
    const time_search *search = context;
    cmq_segment *segment;
    const uint8_t *data;
    size_t available;
    cmq_record_head head;
    if (unit->phy < cmq_log_min(search->store->log)) return -1;   /* expired: older than anything asked for */
    const cmq_status status = cmq_log_pin(search->store->log, unit->phy, &segment, &data, &available);
    if (status != CMQ_OK && unit->phy < cmq_log_min(search->store->log)) return -1;   /* just now */
    *status_out = status;
    if (status != CMQ_OK) return 0;
    if (!cmq_unit_is_plain(&search->owner, unit, data, available))
        *status_out = cmq_unit_check(search->store, search->queue, unit, data, available);
    if (*status_out == CMQ_OK) *status_out = cmq_record_peek(data, available, &head);
    cmq_segment_unpin(segment);
    if (*status_out != CMQ_OK) return 0;
    const bool reached =
        search->after ? head.store_timestamp_ms > search->time_ms : head.store_timestamp_ms >= search->time_ms;
    return reached ? 1 : -1;
}

static cmq_status offset_at(cmq_store *store, cmq_slice topic, int32_t queue_id, int64_t time_ms, cmq_boundary boundary,
                            int64_t *offset_out)
{
    *offset_out = -1;
    cmq_queue *queue;
    cmq_status status = find_queue(store, topic, queue_id, &queue);
    if (status != CMQ_OK) return status;
    const int64_t confirmed = cmq_log_confirmed(store->log);
    const int64_t min = cmq_queue_min(queue), max = cmq_queue_max(queue, confirmed);
    time_search search = {.store = store,
                          .queue = queue,
                          .owner = cmq_unit_owner_of(queue, true),
                          .time_ms = time_ms,
                          .after = boundary == CMQ_BOUNDARY_UPPER};
    int64_t first;
    status = cmq_queue_search(queue, min, max, confirmed, compare_time, &search, &first);
    if (status == CMQ_OK && first >= max) status = cmq_store_check_end(store);
    if (status != CMQ_OK) return status;
    if (boundary == CMQ_BOUNDARY_LOWER) {
        *offset_out = first;
        return CMQ_OK;
    }
    cmq_unit unit;
    uint32_t count = 0;
    int64_t next;
    status = cmq_queue_read_back(queue, first, confirmed, &unit, 1, &count, &next);
    if (status == CMQ_OK) *offset_out = count > 0 && unit.offset >= min ? unit.offset : min;
    return status;
}

cmq_status cmq_store_offset_at(cmq_store *store, cmq_slice topic, int32_t queue_id, int64_t time_ms,
                               cmq_boundary boundary, int64_t *offset_out)
{
    cmq_status status = cmq_store_refresh(store);
    if (status != CMQ_OK) return status;
    status = offset_at(store, topic, queue_id, time_ms, boundary, offset_out);
    return may_look_again(store, &status) ? offset_at(store, topic, queue_id, time_ms, boundary, offset_out) : status;
}

cmq_status cmq_store_earliest_ms(cmq_store *store, int64_t *time_ms_out)
{
    *time_ms_out = 0;
    cmq_segment *segment;
    cmq_record_view view;
    cmq_status status = cmq_store_refresh(store);
    if (status != CMQ_OK) return status;
    const int64_t min = cmq_log_min(store->log), confirmed = cmq_log_confirmed(store->log);
    if (min >= confirmed) return cmq_fail(CMQ_ERR_NOT_FOUND, "the store is empty");
    status = cmq_store_record_at(store, min, confirmed, 0, &segment, &view);
    if (status != CMQ_OK)
        return status == CMQ_ERR_CORRUPT ? status
                                         : cmq_fail_at(CMQ_ERR_CORRUPT, min, "the log does not begin with a record");
    *time_ms_out = view.store_timestamp_ms;
    cmq_segment_unpin(segment);
    return CMQ_OK;
}
