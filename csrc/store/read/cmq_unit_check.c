/* cmq_unit_check: see cmq_unit_check.h. */
#include "store/read/cmq_unit_check.h"

static cmq_status no_record(const cmq_unit *unit)
{
    return cmq_fail_at(CMQ_ERR_CORRUPT, unit->phy,
                       "no record of %d bytes lies at physical offset %lld, where queue offset %lld points; run "
                       "`cometmq verify`",
                       unit->bytes, (long long)unit->phy, (long long)unit->offset);
}

static cmq_status another_record(const cmq_unit *unit)
{
    return cmq_fail_at(
        CMQ_ERR_CORRUPT, unit->phy,
        "the record at physical offset %lld, where queue offset %lld points, belongs to another place of "
        "the queue, or to another queue; run `cometmq verify`",
        (long long)unit->phy, (long long)unit->offset);
}

/* Does the queue have the record at `offset`? */
static bool has_it_at(cmq_store *store, cmq_queue *queue, int64_t offset, int64_t phy)
{
    cmq_unit unit;
    uint32_t count = 0;
    int64_t next;
    return cmq_queue_read(queue, offset, cmq_log_confirmed(store->log), &unit, 1, &count, &next) == CMQ_OK &&
           count == 1 && unit.offset == offset && unit.phy == phy;
}

/* The record says another offset. It was given to consumers at the unit's one, unless the queue has it at its own as
 * well: then the unit is wrong. */
static cmq_status check_offset(cmq_store *store, cmq_queue *queue, const cmq_unit *unit, int64_t offset)
{
    return offset != unit->offset && has_it_at(store, queue, offset, unit->phy) ? another_record(unit) : CMQ_OK;
}

/* Is the queue one of those that the record's properties name, at this offset? */
static cmq_status check_light(cmq_store *store, cmq_queue *queue, const cmq_unit *unit, const cmq_record_view *view,
                              const cmq_dispatch_facts *facts)
{
    const cmq_slice topic = cmq_slice_of_text(cmq_queue_topic(queue));
    cmq_slice names = facts->known.value[CMQ_PROPERTY_INNER_MULTI_DISPATCH],
              offsets = facts->known.value[CMQ_PROPERTY_INNER_MULTI_QUEUE_OFFSET];
    cmq_slice name, text;
    int64_t offset = -1;
    while (cmq_dispatch_next_name(&names, &name) && cmq_dispatch_next_name(&offsets, &text)) {
        if (!cmq_slice_equal(name, topic) || (cmq_is_lmq(name) ? 0 : view->queue_id) != cmq_queue_id(queue)) continue;
        /* A name may stand there twice. */
        if (!cmq_dispatch_number(text, &offset) || offset == unit->offset) return CMQ_OK;
    }
    return offset < 0 ? another_record(unit) : check_offset(store, queue, unit, offset);
}

cmq_status cmq_unit_check(cmq_store *store, cmq_queue *queue, const cmq_unit *unit, const uint8_t *data,
                          size_t available)
{
    cmq_record_view view;
    cmq_dispatch_facts facts;
    const bool sized = unit->phy >= 0 && unit->bytes >= CMQ_RECORD_BYTES_MIN && (size_t)unit->bytes <= available;
    if (!sized || cmq_record_parse(data, available, unit->phy, 0, &view) != CMQ_OK ||
        view.record_bytes != (uint32_t)unit->bytes)
        return no_record(unit);
    cmq_dispatch_learn(store, &view, &facts);
    if (view.queue_id != cmq_queue_id(queue) || !cmq_slice_equal(view.topic, cmq_slice_of_text(cmq_queue_topic(queue))))
        return check_light(store, queue, unit, &view, &facts);
    if (cmq_queue_kind_of(queue) == CMQ_QUEUE_SIMPLE) return check_offset(store, queue, unit, view.queue_offset);
    return facts.base_offset == unit->offset && facts.count == unit->count ? CMQ_OK : another_record(unit);
}
