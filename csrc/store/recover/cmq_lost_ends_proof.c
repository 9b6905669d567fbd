/* cmq_lost_ends_proof: do queues that lost their ends have the right units before them?
 *
 * What a queue lost is made from the log behind its last unit, or from the first unit of its last file on. A page that
 * was written to the wrong place, or whose end was zeroed, leaves units there that are another queue's, belong to
 * another place of the queue, or lack their tags code. The records know better. Where one says otherwise, or cannot be
 * read, the whole log is read, which corrects every unit.
 *
 * Cost:    two records for each such queue.
 * Threads: the opening's.
 */
#include "store/cmq_store_internal.h"

static bool is_light_unit(const cmq_queue *queue, const cmq_unit *unit, const cmq_dispatch_facts *facts)
{
    const cmq_slice topic = cmq_slice_of_text(cmq_queue_topic(queue));
    cmq_slice names = facts->known.value[CMQ_PROPERTY_INNER_MULTI_DISPATCH],
              offsets = facts->known.value[CMQ_PROPERTY_INNER_MULTI_QUEUE_OFFSET], name, text;
    int64_t offset;
    while (cmq_dispatch_next_name(&names, &name) && cmq_dispatch_next_name(&offsets, &text))
        if (cmq_is_lmq(name) && cmq_slice_equal(name, topic) && cmq_dispatch_number(text, &offset) &&
            offset == unit->offset)
            return true;
    return false;
}

static bool is_unit_of(cmq_store *store, const cmq_queue *queue, const cmq_unit *unit, const cmq_record_view *view)
{
    const cmq_slice topic = cmq_slice_of_text(cmq_queue_topic(queue));
    cmq_dispatch_facts facts;
    if (view->record_bytes != (uint32_t)unit->bytes) return false;
    cmq_dispatch_learn(store, view, &facts);
    if (unit->tags_code != facts.tags_code && !cmq_tags_code_is_ext(unit->tags_code)) return false;
    if (view->queue_id != cmq_queue_id(queue) || !cmq_slice_equal(view->topic, topic))
        return is_light_unit(queue, unit, &facts);
    if (cmq_queue_kind_of(queue) == CMQ_QUEUE_SIMPLE) return view->queue_offset == unit->offset;
    return facts.base_offset == unit->offset && facts.count == unit->count;
}

static bool is_proven(cmq_store *store, const cmq_queue *queue, const cmq_unit *unit)
{
    cmq_segment *segment;
    cmq_record_view view;
    if (cmq_store_record_at(store, unit->phy, cmq_log_last_file_end(store->log), 0, &segment, &view) != CMQ_OK)
        return false;
    const bool proven = is_unit_of(store, queue, unit, &view);
    cmq_segment_unpin(segment);
    return proven;
}

bool cmq_store_lost_ends_are_proven(cmq_store *store)
{
    const uint32_t queues = cmq_queues_lost_end_count(store->queues);
    for (uint32_t at = 0; at < queues; at++) {
        cmq_queue *queue;
        cmq_unit units[2];
        const uint32_t count = cmq_queues_lost_end_units(store->queues, at, &queue, units);
        for (uint32_t i = 0; i < count; i++)
            if (!is_proven(store, queue, &units[i])) return false;
    }
    return true;
}
