/* cmq_pop_fifo: see cmq_pop_fifo.h. */
#include "broker/pop/flight/cmq_pop_fifo.h"

/* While a reset is pending, progress stays where the reset put it; and who was moved on stays there. */
static cmq_status CMQ_MUST_CHECK commit(const cmq_pop_fifo *to, const cmq_offset_key *key, int64_t offset)
{
    const cmq_status status = cmq_offsets_advance(to->offsets, key, offset);
    return status == CMQ_AGAIN ? CMQ_OK : status;
}

cmq_status cmq_pop_fifo_give(const cmq_pop_fifo *to, const cmq_offset_key *key, const cmq_pop_fifo_table_batch *batch,
                             int64_t from, cmq_pop_retry retry, int64_t now_ms, cmq_text *info)
{
    cmq_pop_fifo_table_counts counts;
    cmq_status status = commit(to, key, from);
    if (status == CMQ_OK) status = cmq_pop_fifo_table_update(to->order, key, batch, now_ms, &counts);
    if (status != CMQ_OK) return status;
    for (uint32_t i = 0; i < batch->count; i++)
        if (counts.times[i] > 0)
            cmq_pop_info_offset_count(info, retry, key->queue_id, batch->offsets[i], counts.times[i]);
    cmq_pop_info_queue_count(info, retry, key->queue_id, counts.least);
    return CMQ_OK;
}

cmq_status cmq_pop_fifo_ack(const cmq_pop_fifo *to, const cmq_offset_key *key, int64_t offset, int64_t pop_ms,
                            int64_t invisible_ms, int64_t now_ms, bool *wake_out)
{
    int64_t next, free_ms;
    *wake_out = false;
    const int64_t committed = cmq_offsets_query(to->offsets, key);
    if (offset < committed) return CMQ_OK;
    cmq_status status = cmq_pop_fifo_table_ack(to->order, key, offset, pop_ms, &next);
    if (status == CMQ_AGAIN) return CMQ_OK;
    /* the state of those before it is unknown: they are redelivered, and it with them */
    if (status == CMQ_END) return offset == committed ? CMQ_END : CMQ_OK;
    if (status == CMQ_OK) status = commit(to, key, next);
    if (status == CMQ_OK)
        *wake_out =
            !cmq_pop_fifo_table_blocks(to->order, key, CMQ_SLICE_NONE, invisible_ms, committed, now_ms, &free_ms);
    return status;
}

cmq_status cmq_pop_fifo_pass(const cmq_pop_fifo *to, const cmq_offset_key *key, int64_t offset, bool *wake_out)
{
    const cmq_status status = commit(to, key, offset + 1);
    *wake_out = status == CMQ_OK;
    return status;
}

int64_t cmq_pop_fifo_change(const cmq_pop_fifo *to, const cmq_offset_key *key, int64_t offset, int64_t pop_ms,
                            int64_t invisible_ms, int64_t now_ms, bool *wake_out)
{
    *wake_out = false;
    if (offset < cmq_offsets_query(to->offsets, key)) return -1;
    const int64_t visible_ms = invisible_ms < INT64_MAX - now_ms ? now_ms + invisible_ms : INT64_MAX;
    *wake_out = cmq_pop_fifo_table_change(to->order, key, offset, pop_ms, visible_ms);
    return visible_ms - pop_ms;
}
