/* cmq_transfer: records on their way from the log into answers: how many fit, where they lie, and their copy. For pulls
 * and pops.
 *
 * Nothing is allocated; a segment is pinned per stretch of records. Each record is compared with its unit and its
 * queue, and all its pages are touched, before it goes out: a damaged unit or a lost page is an error of that record,
 * and the records before it are returned.
 *
 * Threads: the loop's.
 * Source:  consumption specification 3.2; upstream's DefaultMessageStore.isTheBatchFull.
 */
#include "broker/loop/cmq_broker_internal.h"

#include "base/cmq_map_guard.h"
#include "store/cmq_store_internal.h"
#include "store/read/cmq_unit_check.h"

#define ANSWER_BYTES_MAX 16384u   /* of an answer's header */

cmq_transfer cmq_transfer_fit(const cmq_broker_loop *l, const cmq_unit *units, uint32_t found, uint32_t messages_max,
                              int64_t bytes_max, int64_t confirmed)
{
    const cmq_broker_options *o = &l->broker->options;
    const bool disk = confirmed - units[0].phy > o->memory_bytes;
    const uint32_t most = (uint32_t)(disk ? o->transfer_count_disk : o->transfer_count_memory);
    const int64_t set_bytes = disk ? o->transfer_bytes_disk : o->transfer_bytes_memory,
                  frame_bytes = CMQ_FRAME_BYTES_MAX - ANSWER_BYTES_MAX;
    /* the answer must fit a frame, whatever the setting */
    const int64_t most_bytes = set_bytes < frame_bytes ? set_bytes : frame_bytes;
    cmq_transfer fit = {0};
    for (uint32_t i = 0; i < found; i++) {
        const int64_t bytes = (int64_t)fit.bytes + units[i].bytes;
        if (i > 0 && (bytes > bytes_max || bytes > most_bytes || fit.messages >= most ||
                      fit.messages + (uint32_t)units[i].count > messages_max))
            break;
        fit.count = i + 1;
        fit.bytes = (uint64_t)bytes;
        fit.messages += (uint32_t)units[i].count;
    }
    return fit;
}

cmq_status cmq_transfer_check(const cmq_unit *units, uint32_t *count, int64_t *next)
{
    uint32_t sound = 0;
    while (sound < *count && units[sound].phy >= 0 && units[sound].bytes >= CMQ_RECORD_BYTES_MIN &&
           (uint32_t)units[sound].bytes <= CMQ_FRAME_BYTES_MAX - ANSWER_BYTES_MAX)
        sound++;
    if (sound == *count) return CMQ_OK;
    if (sound == 0 && units[0].phy < 0)
        return cmq_fail_at(CMQ_ERR_CORRUPT, units[0].phy,
                           "the queue's unit %lld names a record at %lld, where none can be; run `cometmq verify`",
                           (long long)units[0].offset, (long long)units[0].phy);
    if (sound == 0)
        return cmq_fail_at(
            CMQ_ERR_CORRUPT, units[0].phy,
            "the queue's unit %lld names a record of %d bytes, which no frame can have; run `cometmq verify`",
            (long long)units[0].offset, units[0].bytes);
    *next = units[sound].offset;
    *count = sound;
    return CMQ_OK;
}

void cmq_transfer_leave(cmq_transfer_place *place)
{
    if (place->segment != NULL) cmq_segment_unpin(place->segment);
    *place = (cmq_transfer_place){0};
}

cmq_status cmq_transfer_reach(cmq_broker_loop *l, cmq_transfer_place *place, cmq_queue *queue, const cmq_unit *unit,
                              const uint8_t **record_out)
{
    cmq_store *store = l->broker->store;
    *record_out = NULL;
    if (!cmq_transfer_has(place, unit)) {
        size_t available;
        cmq_transfer_leave(place);
        const cmq_status status = cmq_log_pin(store->log, unit->phy, &place->segment, &place->data, &available);
        if (status != CMQ_OK) return status;
        place->start = unit->phy;
        place->end = unit->phy + (int64_t)available;
    }
    const uint8_t *record = place->data + (unit->phy - place->start);
    const size_t available = (size_t)(place->end - unit->phy);
    const cmq_unit_owner owner = cmq_unit_owner_of(queue, true);
    cmq_status status = CMQ_OK;
    if (!cmq_unit_is_plain(&owner, unit, record, available))
        status = cmq_unit_check(store, queue, unit, record, available);
    if (status == CMQ_OK) status = cmq_map_guard_check(record, (size_t)unit->bytes, unit->phy);
    if (status == CMQ_OK) *record_out = record;
    return status;
}

uint32_t cmq_transfer_copy(cmq_broker_loop *l, cmq_queue *queue, const cmq_unit *units, uint32_t count, uint8_t *into)
{
    cmq_transfer_place place = {0};
    const uint8_t *record;
    uint32_t copied = 0;
    for (; copied < count && cmq_transfer_reach(l, &place, queue, &units[copied], &record) == CMQ_OK; copied++) {
        memcpy(into, record, (size_t)units[copied].bytes);
        into += units[copied].bytes;
    }
    cmq_transfer_leave(&place);
    return copied;
}
