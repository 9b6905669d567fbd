/* cmq_pop_ahead: see cmq_pop_ahead.h. */
#include "broker/pop/revive/cmq_pop_ahead.h"

void cmq_pop_ahead_begin(cmq_pop_ahead *ahead, cmq_store *store, cmq_slice topic, int32_t queue_id)
{
    ahead->store = store;
    ahead->topic = topic;
    ahead->queue_id = queue_id;
    ahead->count = ahead->at = 0;
}

static const cmq_unit *find(cmq_pop_ahead *ahead, int64_t offset)
{
    while (ahead->at < ahead->count && ahead->units[ahead->at].offset < offset) ahead->at++;
    return ahead->at < ahead->count && ahead->units[ahead->at].offset == offset ? &ahead->units[ahead->at] : NULL;
}

/* Read the units from `offset` on. A failure here is reported when the message is read by its offset. */
static void read_on(cmq_pop_ahead *ahead, int64_t offset)
{
    cmq_queue *queue = cmq_queues_find(cmq_store_queues(ahead->store), ahead->topic, ahead->queue_id);
    int64_t next;
    ahead->count = ahead->at = 0;
    if (queue == NULL || offset < cmq_queue_min(queue)) return;
    if (cmq_queue_read(queue, offset, cmq_store_confirmed(ahead->store), ahead->units, CMQ_POP_AHEAD_UNITS,
                       &ahead->count, &next) != CMQ_OK)
        ahead->count = 0;
}

cmq_status cmq_pop_ahead_read(cmq_pop_ahead *ahead, int64_t offset, cmq_found_batch *batch)
{
    const cmq_unit *unit = find(ahead, offset);
    if (unit == NULL) {
        read_on(ahead, offset);
        unit = find(ahead, offset);
    }
    if (unit != NULL && cmq_store_read_physical(ahead->store, unit->phy, batch) == CMQ_OK) return CMQ_OK;
    return cmq_store_read_offset(ahead->store, ahead->topic, ahead->queue_id, offset, batch);
}
