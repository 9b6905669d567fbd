/* cmq_pop_sink: see cmq_pop_sink.h. */
#include "broker/pop/flight/cmq_pop_sink.h"

#define RUN_MAX 8u   /* records of an append: their bodies and properties lie on the stack */

/* Records for one append: of one topic and queue. */
typedef struct run {
    uint32_t count;
    cmq_append append;
    cmq_slice bodies[RUN_MAX], properties[RUN_MAX];
    cmq_pop_record_room rooms[RUN_MAX];
} run;

static cmq_status append_run(const cmq_pop_sink_log *to, run *r, uint32_t *stored, int64_t *end_out)
{
    if (r->count == 0) return CMQ_OK;
    cmq_append append = r->append;
    append.count = r->count;
    append.bodies = (cmq_column){.kind = CMQ_COLUMN_SLICES, .slices = r->bodies};
    append.properties = (cmq_column){.kind = CMQ_COLUMN_SLICES, .slices = r->properties};
    append.never_wait = true;
    cmq_appended appended = {0};
    const cmq_status status = cmq_store_append(to->store, &append, &appended);
    *stored += appended.count;
    if (appended.count > 0) *end_out = appended.end;
    r->count = 0;
    /* Clients get the reason, and CMQ_AGAIN alone has none. */
    return status == CMQ_AGAIN
               ? cmq_fail(CMQ_AGAIN,
                          "so much waits for the disk that no checkpoint or ack of popped messages is taken for now")
               : status;
}

static cmq_status fill(const cmq_pop_sink_log *to, const cmq_pop_store_item *item, int64_t now_ms,
                       cmq_pop_record_room *room, cmq_append *out)
{
    if (!item->is_ack) {
        cmq_pop_checkpoint checkpoint = item->checkpoint;
        if (checkpoint.log_end == 0) checkpoint.log_end = cmq_store_confirmed(to->store);
        return cmq_pop_checkpoint_append(&to->log, item->revive_queue, &checkpoint, now_ms, room, out);
    }
    if (item->offsets == NULL) return cmq_pop_ack_append(&to->log, item->revive_queue, &item->ack, now_ms, room, out);
    const cmq_pop_batch_ack batch = {.ack = item->ack, .offsets = item->offsets, .count = item->count};
    return cmq_pop_batch_ack_append(&to->log, item->revive_queue, &batch, now_ms, room, out);
}

static cmq_status store_item(const cmq_pop_sink_log *to, run *r, const cmq_pop_store_item *item, int64_t now_ms,
                             uint32_t *stored, int64_t *end_out)
{
    cmq_append append;
    cmq_status status = r->count == RUN_MAX ? append_run(to, r, stored, end_out) : CMQ_OK;
    if (status != CMQ_OK) return status;
    cmq_pop_record_room *room = &r->rooms[r->count];
    status = fill(to, item, now_ms, room, &append);
    if (status != CMQ_OK) return status;
    if (r->count > 0 && (r->append.common.queue_id != append.common.queue_id ||
                         !cmq_slice_equal(r->append.common.topic, append.common.topic))) {
        /* This one is due already, or those before it were: they go first, and it is made again in the first room. */
        status = append_run(to, r, stored, end_out);
        return status == CMQ_OK ? store_item(to, r, item, now_ms, stored, end_out) : status;
    }
    if (r->count == 0) r->append = append;
    r->bodies[r->count] = append.bodies.one;
    r->properties[r->count++] = append.properties.one;
    return CMQ_OK;
}

cmq_status cmq_pop_sink_store(void *context, const cmq_pop_store_item *items, uint32_t count, uint32_t *stored_out,
                              int64_t *end_out)
{
    const cmq_pop_sink_log *to = context;
    const int64_t now_ms = cmq_clock_now_ms(&to->clock);
    run r;
    r.count = 0;
    *stored_out = 0;
    cmq_status status = CMQ_OK;
    for (uint32_t i = 0; i < count && status == CMQ_OK; i++)
        status = store_item(to, &r, &items[i], now_ms, stored_out, end_out);
    const cmq_status last = append_run(to, &r, stored_out, end_out);
    return last != CMQ_OK ? last : status;   /* of the first that is not stored */
}

int64_t cmq_pop_sink_confirmed(void *context)
{
    return cmq_store_confirmed(((const cmq_pop_sink_log *)context)->store);
}
