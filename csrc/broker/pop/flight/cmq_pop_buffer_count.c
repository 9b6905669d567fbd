/* cmq_pop_buffer_count: the buffer's content, in numbers and lane by lane. See cmq_pop_buffer.h. */
#include "broker/pop/flight/cmq_pop_buffer_internal.h"

#include "base/cmq_assert.h"

void cmq_pop_buffer_count(cmq_pop_buffer *buffer, cmq_pop_buffer_counters *counters_out)
{
    *counters_out = (cmq_pop_buffer_counters){.bytes_now = sizeof *buffer};
    for (uint32_t i = 0; i < CMQ_POP_SHARDS; i++) {
        cmq_pop_shard *s = &buffer->shards[i];
        pthread_mutex_lock(&s->mutex);
        counters_out->merged += s->merged;
        counters_out->stored += s->stored;
        counters_out->given_up += s->given_up;
        counters_out->acks_merged += s->acks_merged;
        counters_out->acks_unknown += s->acks_unknown;
        counters_out->refused_now += s->checkpoints.refused_count;
        counters_out->checkpoints_now += s->checkpoints.used;
        counters_out->lanes_now += s->lanes_live;
        counters_out->bytes_now += cmq_pop_checkpoints_bytes(&s->checkpoints) + s->lane_bytes +
                                   s->lane_slots * sizeof(cmq_pop_lane *) +
                                   (s->table_slots + s->waiting_slots) * sizeof(uint32_t);
        for (uint32_t n = 0; n < s->lane_count; n++) {
            if (s->lanes[n] == NULL) continue;
            counters_out->in_flight_now += s->lanes[n]->ages.in_flight;
            counters_out->bytes_now += cmq_pop_first_times_bytes(s->lanes[n]->firsts);
        }
        pthread_mutex_unlock(&s->mutex);
    }
}

static int64_t oldest_of(const cmq_pop_lane *lane)
{
    const int64_t popped_ms = cmq_pop_in_flight_oldest_ms(&lane->ages),
                  changed_ms = cmq_pop_first_times_oldest_ms(lane->firsts);
    return changed_ms >= 0 && changed_ms < popped_ms ? changed_ms : popped_ms;
}

uint32_t cmq_pop_buffer_list(cmq_pop_buffer *buffer, uint32_t *cursor, cmq_pop_lane_item *items, uint32_t capacity,
                             uint8_t *text, size_t text_bytes)
{
    uint32_t given = 0;
    size_t used = 0;
    bool full = false;
    for (uint32_t i = *cursor >> (32 - CMQ_POP_SHARD_BITS); i < CMQ_POP_SHARDS && !full && *cursor != UINT32_MAX; i++) {
        cmq_pop_shard *s = &buffer->shards[i];
        pthread_mutex_lock(&s->mutex);
        uint32_t n = *cursor & (UINT32_MAX >> CMQ_POP_SHARD_BITS);
        for (; n < s->lane_count; n++) {
            const cmq_pop_lane *lane = s->lanes[n];
            if (lane == NULL || lane->ages.in_flight == 0) continue;
            const size_t bytes = (size_t)lane->topic_bytes + lane->group_bytes;
            full = given == capacity || text_bytes - used < bytes;
            if (full) break;
            CMQ_ASSERT(given < capacity && bytes <= text_bytes - used);
            memcpy(text + used, lane->names, bytes);
            items[given++] = (cmq_pop_lane_item){
                .topic = {.data = text + used, .bytes = lane->topic_bytes},
                .group = {.data = text + used + lane->topic_bytes, .bytes = lane->group_bytes},
                .queue_id = lane->queue_id,
                .in_flight = lane->ages.in_flight,
                .oldest_pop_ms = oldest_of(lane),
                .due_ms = cmq_pop_in_flight_due_ms(&lane->ages),
            };
            used += bytes;
        }
        pthread_mutex_unlock(&s->mutex);
        *cursor = full                     ? i << (32 - CMQ_POP_SHARD_BITS) | n
                  : i + 1 < CMQ_POP_SHARDS ? (i + 1) << (32 - CMQ_POP_SHARD_BITS)
                                           : UINT32_MAX;
    }
    return given;
}
