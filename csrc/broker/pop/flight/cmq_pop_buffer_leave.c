/* cmq_pop_buffer_leave: moves checkpoints whose time in memory is over from the buffer to the log, each with its acks.
 * See cmq_pop_buffer.h. */
#include "broker/pop/flight/cmq_pop_buffer_internal.h"

#include "base/cmq_assert.h"
#include "base/cmq_bitmap.h"
#include "broker/delay/cmq_parked.h"

cmq_pop_checkpoint cmq_pop_record_of_held(const cmq_pop_buffer *buffer, const cmq_pop_lane *lane,
                                          const cmq_pop_held *held, int32_t diffs[CMQ_POP_MESSAGES_MAX])
{
    const cmq_pop_key key = cmq_pop_lane_key(lane);
    CMQ_ASSERT(held->num > 0 && held->num <= CMQ_POP_MESSAGES_MAX);
    for (uint32_t i = 0; i < held->num; i++) diffs[i] = (int32_t)(cmq_pop_held_offset(held, i) - held->start_offset);
    return (cmq_pop_checkpoint){
        .start_offset = held->start_offset,
        .pop_ms = held->pop_ms,
        .invisible_ms = held->invisible_ms,
        .num = held->num,
        .queue_id = key.queue_id,
        .topic = key.topic,
        .group = key.group,
        .broker = buffer->options.broker,
        .diffs = diffs,
        .log_end = held->log_end,
    };
}

/* Checkpoints taken off the heap, and their records for the log: each itself, unless it is there, and then its acks in
 * one record. */
typedef struct leaving {
    uint32_t count, item_count;
    uint32_t numbers[CMQ_POP_STORES_MAX];
    cmq_pop_store_item items[CMQ_POP_STORES_MAX];
    uint32_t owners[CMQ_POP_STORES_MAX];                    /* of the items: a place in numbers */
    uint32_t acks[CMQ_POP_STORES_MAX];                      /* of the items: their bits; 0: a checkpoint */
    int32_t diffs[CMQ_POP_STORES_MAX][CMQ_POP_MESSAGES_MAX];      /* of the checkpoints, by place */
    int64_t offsets[CMQ_POP_STORES_MAX][CMQ_POP_MESSAGES_MAX];    /* of their acks */
} leaving;

static uint32_t acks_to_store(const cmq_pop_held *held) { return held->bits & ~held->stored_bits; }

static uint32_t items_of(const cmq_pop_held *held)
{
    return (held->stored_end < 0 ? 1u : 0u) + (acks_to_store(held) != 0 ? 1u : 0u);
}

static void add_acks(const cmq_pop_buffer *buffer, const cmq_pop_held *held, const cmq_pop_key *key, leaving *out,
                     uint32_t place)
{
    uint32_t count = 0;
    CMQ_ASSERT(place < out->count && out->item_count < CMQ_POP_STORES_MAX);
    int64_t *offsets = out->offsets[place];
    out->owners[out->item_count] = place;
    out->acks[out->item_count] = acks_to_store(held);
    for (uint32_t acks = acks_to_store(held); acks != 0;)
        offsets[count++] = cmq_pop_held_offset(held, cmq_bits_take(&acks));
    out->items[out->item_count++] = (cmq_pop_store_item){
        .is_ack = true,
        .revive_queue = held->revive_queue,
        .ack = {.topic = key->topic,
                .group = key->group,
                .broker = buffer->options.broker,
                .queue_id = key->queue_id,
                .start_offset = held->start_offset,
                .pop_ms = held->pop_ms,
                .invisible_ms = held->invisible_ms,
                .offset = count == 1 ? offsets[0] : -1},
        .offsets = count == 1 ? NULL : offsets,
        .count = count,
    };
}

static void add_items(const cmq_pop_buffer *buffer, const cmq_pop_shard *s, leaving *out, uint32_t number)
{
    const cmq_pop_held *held = cmq_pop_checkpoints_at(&s->checkpoints, number);
    const cmq_pop_lane *lane = s->lanes[held->lane];
    CMQ_ASSERT(lane != NULL && held->merged);
    CMQ_ASSERT(out->count < CMQ_POP_STORES_MAX && out->item_count + items_of(held) <= CMQ_POP_STORES_MAX);
    const cmq_pop_key key = cmq_pop_lane_key(lane);
    const uint32_t place = out->count++;
    out->numbers[place] = number;
    if (held->stored_end < 0) {
        out->owners[out->item_count] = place;
        out->acks[out->item_count] = 0;
        out->items[out->item_count++] =
            (cmq_pop_store_item){.revive_queue = held->revive_queue,
                                 .checkpoint = cmq_pop_record_of_held(buffer, lane, held, out->diffs[place])};
    }
    if (acks_to_store(held) != 0) add_acks(buffer, held, &key, out, place);
}

/* Take what is due off the heap, `most` checkpoints and what goes at once. */
static void take_due(cmq_pop_buffer *buffer, cmq_pop_shard *s, int64_t now_ms, uint32_t most, leaving *out)
{
    cmq_pop_checkpoints *all = &s->checkpoints;
    out->count = out->item_count = 0;
    for (uint32_t number; (number = cmq_pop_checkpoints_due(all, now_ms)) != CMQ_POP_NONE;) {
        const cmq_pop_held *held = cmq_pop_checkpoints_at(all, number);
        if (cmq_pop_held_is_done(held)) {
            cmq_pop_checkpoints_undue(all, number);   /* only its turn to be committed is missing */
            continue;
        }
        if (out->count == most || out->item_count + items_of(held) > CMQ_POP_STORES_MAX) break;
        cmq_pop_checkpoints_undue(all, number);
        add_items(buffer, s, out, number);
    }
}

/* Stored checkpoints leave memory; the others go back, or aside. */
static void let_go(cmq_pop_buffer *buffer, cmq_pop_shard *s, const leaving *out, bool aside)
{
    cmq_pop_checkpoints *all = &s->checkpoints;
    for (uint32_t i = 0; i < out->count; i++) {
        const cmq_pop_held *held = cmq_pop_checkpoints_at(all, out->numbers[i]);
        if (items_of(held) > 0) {
            if (aside) cmq_pop_checkpoints_set_aside(all, out->numbers[i]);
            else cmq_pop_checkpoints_due_again(all, out->numbers[i]);
            continue;
        }
        s->given_up++;
        if (held->detached) {
            cmq_pop_shard_drop(buffer, s, out->numbers[i]);
            continue;
        }
        cmq_pop_checkpoints_unmerge(all, out->numbers[i]);
        atomic_fetch_sub_explicit(&buffer->merged_now, 1, memory_order_relaxed);
        cmq_pop_shard_list_waiting(s, s->lanes[held->lane]);
    }
}

/* Store what is due, as much as goes at once; CMQ_END: nothing is due. One that is refused for good, and is alone, is
 * set aside. */
static cmq_status store_due(cmq_pop_buffer *buffer, cmq_pop_shard *s, int64_t now_ms, uint32_t most)
{
    leaving out;
    take_due(buffer, s, now_ms, most, &out);
    if (out.count == 0) return CMQ_END;
    uint32_t stored = 0;
    int64_t end = -1;
    const cmq_status status =
        buffer->options.sink.store(buffer->options.sink.context, out.items, out.item_count, &stored, &end);
    for (uint32_t i = 0; i < stored; i++) {
        cmq_pop_held *held = cmq_pop_checkpoints_at(&s->checkpoints, out.numbers[out.owners[i]]);
        if (out.acks[i] == 0)
            held->stored_end = end;
        else
            held->stored_bits |= out.acks[i];
    }
    CMQ_ASSERT(stored <= out.item_count && (stored == 0 || end >= 0));
    let_go(buffer, s, &out, out.count == 1 && cmq_parked_is_hopeless(status));
    return status;
}

cmq_status cmq_pop_shard_store_due(cmq_pop_buffer *buffer, cmq_pop_shard *s, int64_t now_ms)
{
    cmq_status refused = CMQ_OK, status;
    cmq_pop_checkpoints_take_back(&s->checkpoints);
    do {
        status = store_due(buffer, s, now_ms, refused == CMQ_OK ? CMQ_POP_STORES_MAX : 1);
        if (status == CMQ_END || !cmq_parked_is_hopeless(status)) continue;
        refused = status;
        status = CMQ_OK;
    } while (status == CMQ_OK);
    return status == CMQ_END ? refused : status;
}
