/* cmq_pop_buffer: lanes, merged checkpoints, which offsets may be committed. See cmq_pop_buffer.h.
 *
 * Checkpoints lie in chunks and are named by number, so that links take four bytes. A checkpoint is in its lane's list
 * until its offset was committed, and in heap and table while it is merged. One that was reset away is in no list, and
 * goes when it is finished or stored.
 *
 * cmq_pop_checkpoints.c keeps them (chunks, heap, table), cmq_pop_buffer_leave.c moves them out of memory; this file
 * gives them their meaning.
 */
#include "broker/pop/flight/cmq_pop_buffer_internal.h"

#include <stdlib.h>

#include "base/cmq_assert.h"
#include "base/cmq_bitmap.h"
#include "base/cmq_name_hash.h"

#define LEAVES_SOON_MS 1500   /* so long before a checkpoint leaves memory nothing is merged into it any more */
#define NONE CMQ_POP_NONE

/* ---- life ---- */

cmq_status cmq_pop_buffer_create(cmq_pop_buffer **buffer_out, const cmq_pop_buffer_options *options)
{
    *buffer_out = NULL;
    CMQ_ASSERT(options->sink.store != NULL && options->sink.confirmed != NULL && options->sink.commit != NULL);
    cmq_pop_buffer *buffer = calloc(1, sizeof *buffer);
    if (buffer == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for the buffer of popped messages");
    buffer->options = *options;
    buffer->broker =
        strndup(options->broker.bytes > 0 ? (const char *)options->broker.data : "", options->broker.bytes);
    if (buffer->broker == NULL) {
        free(buffer);
        return cmq_fail(CMQ_ERR_MEMORY, "no memory for the buffer of popped messages");
    }
    cmq_pop_buffer_options *o = &buffer->options;
    o->broker = cmq_slice_of_text(buffer->broker);
    if (o->stay_ms <= 0) o->stay_ms = 10000;
    if (o->stay_out_ms <= 0) o->stay_out_ms = 3000;
    if (o->merged_max == 0) o->merged_max = 200000;
    if (o->lane_max == 0) o->lane_max = 20000;
    for (uint32_t i = 0; i < CMQ_POP_SHARDS; i++) {
        pthread_mutex_init(&buffer->shards[i].mutex, NULL);
        cmq_pop_checkpoints_init(&buffer->shards[i].checkpoints, o->stay_ms, o->stay_out_ms);
    }
    *buffer_out = buffer;
    return CMQ_OK;
}

void cmq_pop_buffer_destroy(cmq_pop_buffer *buffer)
{
    if (buffer == NULL) return;
    for (uint32_t i = 0; i < CMQ_POP_SHARDS; i++) {
        cmq_pop_shard *s = &buffer->shards[i];
        cmq_pop_checkpoints_free(&s->checkpoints);
        for (uint32_t n = 0; n < s->lane_count; n++) {
            if (s->lanes[n] != NULL) cmq_pop_first_times_clear(&s->lanes[n]->firsts);
            free(s->lanes[n]);
        }
        free(s->lanes);
        free(s->table);
        free(s->waiting);
        pthread_mutex_destroy(&s->mutex);
    }
    free(buffer->broker);
    free(buffer);
}

/* ---- lanes ---- */

static uint64_t hash_of(const cmq_pop_key *key)
{
    const uint64_t topic = cmq_name_hash(key->topic), group = cmq_name_hash(key->group);
    uint64_t mixed = topic * 31 + (group << 1 | group >> 63) + (uint32_t)key->queue_id * UINT64_C(0x9E3779B97F4A7C15);
    mixed ^= mixed >> 32;
    return mixed * UINT64_C(0xD6E8FEB86659FD93);
}

static cmq_pop_shard *shard_of(cmq_pop_buffer *buffer, uint64_t hash)
{
    return &buffer->shards[hash >> (64 - CMQ_POP_SHARD_BITS)];
}

cmq_pop_key cmq_pop_lane_key(const cmq_pop_lane *lane)
{
    return (cmq_pop_key){
        .topic = {.data = (const uint8_t *)lane->names, .bytes = lane->topic_bytes},
        .group = {.data = (const uint8_t *)lane->names + lane->topic_bytes, .bytes = lane->group_bytes},
        .queue_id = lane->queue_id,
    };
}

static bool is_of(const cmq_pop_lane *lane, const cmq_pop_key *key)
{
    const cmq_pop_key own = cmq_pop_lane_key(lane);
    return own.queue_id == key->queue_id && cmq_slice_equal(own.topic, key->topic) &&
           cmq_slice_equal(own.group, key->group);
}

static uint32_t *find_place(const cmq_pop_shard *s, const cmq_pop_key *key, uint64_t hash)
{
    CMQ_ASSERT(s->lanes_live < s->table_slots);   /* an empty place ends the search */
    for (uint32_t i = (uint32_t)hash;; i++) {
        uint32_t *place = &s->table[i & (s->table_slots - 1)];
        if (*place == 0) return place;
        const cmq_pop_lane *lane = s->lanes[*place - 1];
        if (lane->hash == hash && is_of(lane, key)) return place;
    }
}

static cmq_pop_lane *find_lane(const cmq_pop_shard *s, const cmq_pop_key *key, uint64_t hash)
{
    if (s->table_slots == 0) return NULL;
    const uint32_t found = *find_place(s, key, hash);
    return found == 0 ? NULL : s->lanes[found - 1];
}

static cmq_status out_of_memory(void) { return cmq_fail(CMQ_ERR_MEMORY, "no memory for a queue that is popped"); }

static cmq_status make_room_for_lane(cmq_pop_shard *s)
{
    if (s->lane_count == s->lane_slots) {
        const uint32_t slots = s->lane_slots == 0 ? 16 : s->lane_slots * 2;
        cmq_pop_lane **lanes = realloc(s->lanes, slots * sizeof(cmq_pop_lane *));
        if (lanes == NULL) return out_of_memory();
        s->lanes = lanes;
        s->lane_slots = slots;
    }
    if (s->waiting_slots < s->lane_slots) {
        uint32_t *waiting = realloc(s->waiting, s->lane_slots * sizeof *waiting);
        if (waiting == NULL) return out_of_memory();
        s->waiting = waiting;
        s->waiting_slots = s->lane_slots;
    }
    if ((s->lanes_live + 1) * 2 <= s->table_slots) return CMQ_OK;
    const uint32_t slots = s->table_slots == 0 ? 32 : s->table_slots * 2, before = s->table_slots;
    uint32_t *table = calloc(slots, sizeof *table), *old = s->table;
    if (table == NULL) return out_of_memory();
    s->table = table;
    s->table_slots = slots;
    for (uint32_t i = 0; i < before; i++) {
        if (old[i] == 0) continue;
        const cmq_pop_lane *lane = s->lanes[old[i] - 1];
        const cmq_pop_key key = cmq_pop_lane_key(lane);
        *find_place(s, &key, lane->hash) = old[i];
    }
    free(old);
    return CMQ_OK;
}

static size_t bytes_of(const cmq_pop_lane *lane) { return sizeof *lane + lane->topic_bytes + lane->group_bytes; }

static cmq_status make_lane(cmq_pop_shard *s, const cmq_pop_key *key, uint64_t hash, cmq_pop_lane **lane_out)
{
    if (key->topic.bytes == 0 || key->topic.bytes > UINT16_MAX || key->group.bytes == 0 ||
        key->group.bytes > UINT16_MAX || key->queue_id < 0)
        return cmq_fail(CMQ_ERR_ARGUMENT, "a queue that is popped has a topic, a group and a queue id");
    const cmq_status status = make_room_for_lane(s);
    if (status != CMQ_OK) return status;
    cmq_pop_lane *lane = malloc(sizeof *lane + key->topic.bytes + key->group.bytes);
    if (lane == NULL) return out_of_memory();
    uint32_t number = s->lane_count;
    if (s->lanes_live < s->lane_count)
        for (number = 0; s->lanes[number] != NULL;) number++;   /* rare: after a topic or a group was deleted */
    else
        s->lane_count++;
    *lane = (cmq_pop_lane){
        .hash = hash,
        .number = number,
        .first = NONE,
        .last = NONE,
        .queue_id = key->queue_id,
        .topic_bytes = (uint16_t)key->topic.bytes,
        .group_bytes = (uint16_t)key->group.bytes,
    };
    memcpy(lane->names, key->topic.data, key->topic.bytes);
    memcpy(lane->names + key->topic.bytes, key->group.data, key->group.bytes);
    s->lanes[number] = lane;
    *find_place(s, key, hash) = number + 1;
    s->lanes_live++;
    s->lane_bytes += bytes_of(lane);
    *lane_out = lane;
    return CMQ_OK;
}

cmq_status cmq_pop_lane_enter(cmq_pop_buffer *buffer, const cmq_pop_key *key, cmq_pop_lane **lane_out)
{
    const uint64_t hash = hash_of(key);
    cmq_pop_shard *s = shard_of(buffer, hash);
    pthread_mutex_lock(&s->mutex);
    cmq_pop_lane *lane = find_lane(s, key, hash);
    const cmq_status status = lane != NULL ? CMQ_OK : make_lane(s, key, hash, &lane);
    *lane_out = lane;
    if (status != CMQ_OK) pthread_mutex_unlock(&s->mutex);
    return status;
}

void cmq_pop_lane_leave(cmq_pop_buffer *buffer, cmq_pop_lane *lane)
{
    pthread_mutex_unlock(&shard_of(buffer, lane->hash)->mutex);
}

uint32_t cmq_pop_lane_in_flight(const cmq_pop_lane *lane) { return lane->ages.in_flight; }

/* ---- offsets, in pop order ---- */

void cmq_pop_shard_drop(cmq_pop_buffer *buffer, cmq_pop_shard *s, uint32_t number)
{
    if (cmq_pop_checkpoints_is_merged(&s->checkpoints, number)) {
        cmq_pop_checkpoints_unmerge(&s->checkpoints, number);
        atomic_fetch_sub_explicit(&buffer->merged_now, 1, memory_order_relaxed);
    }
    cmq_pop_checkpoints_release(&s->checkpoints, number);
}

static bool is_settled(const cmq_pop_buffer *buffer, const cmq_pop_held *held)
{
    if (held->num == 0 || cmq_pop_held_is_done(held)) return true;
    /* As long as it is merged, it may have acks that the log has not. */
    return !held->merged && held->stored_end >= 0 &&
           held->stored_end <= buffer->options.sink.confirmed(buffer->options.sink.context);
}

/* Commit behind what is settled at the front; true: nothing there waits for the confirmed end. */
static bool settle(cmq_pop_buffer *buffer, cmq_pop_shard *s, cmq_pop_lane *lane)
{
    int64_t reached = -1;
    const cmq_pop_held *held = NULL;
    while (lane->first != NONE) {
        const uint32_t number = lane->first;
        CMQ_ASSERT(lane->count > 0);
        held = cmq_pop_checkpoints_at(&s->checkpoints, number);
        CMQ_ASSERT(held->lane == lane->number && !held->detached);
        if (!is_settled(buffer, held)) break;
        reached = held->next_offset;
        lane->first = held->next;
        if (lane->first == NONE) lane->last = NONE;
        lane->count--;
        cmq_pop_shard_drop(buffer, s, number);
    }
    CMQ_ASSERT((lane->first == NONE) == (lane->count == 0));
    if (reached >= 0) {
        const cmq_pop_key key = cmq_pop_lane_key(lane);
        buffer->options.sink.commit(buffer->options.sink.context, &key, reached);
    }
    return lane->first == NONE || held->merged;
}

void cmq_pop_shard_list_waiting(cmq_pop_shard *s, cmq_pop_lane *lane)
{
    if (lane->waiting) return;
    CMQ_ASSERT(s->waiting_count < s->waiting_slots);
    lane->waiting = true;
    s->waiting[s->waiting_count++] = lane->number;   /* there is room for every lane */
}

static void settle_or_list(cmq_pop_buffer *buffer, cmq_pop_shard *s, cmq_pop_lane *lane)
{
    if (!settle(buffer, s, lane)) cmq_pop_shard_list_waiting(s, lane);
}

static void settle_waiting(cmq_pop_buffer *buffer, cmq_pop_shard *s)
{
    uint32_t left = 0;
    for (uint32_t i = 0; i < s->waiting_count; i++) {
        cmq_pop_lane *lane = s->lanes[s->waiting[i]];
        CMQ_ASSERT(lane != NULL && lane->waiting);
        if (settle(buffer, s, lane))
            lane->waiting = false;
        else
            s->waiting[left++] = lane->number;
    }
    s->waiting_count = left;
}

int64_t cmq_pop_lane_next(const cmq_pop_lane *lane) { return lane->first == NONE ? -1 : lane->next_offset; }

int64_t cmq_pop_buffer_next(cmq_pop_buffer *buffer, const cmq_pop_key *key)
{
    const uint64_t hash = hash_of(key);
    cmq_pop_shard *s = shard_of(buffer, hash);
    pthread_mutex_lock(&s->mutex);
    const cmq_pop_lane *lane = find_lane(s, key, hash);
    const int64_t next = lane != NULL ? cmq_pop_lane_next(lane) : -1;
    pthread_mutex_unlock(&s->mutex);
    return next;
}

static void append_to_lane(cmq_pop_shard *s, cmq_pop_lane *lane, uint32_t number)
{
    CMQ_ASSERT((lane->first == NONE) == (lane->last == NONE));
    if (lane->last == NONE)
        lane->first = number;
    else
        cmq_pop_checkpoints_at(&s->checkpoints, lane->last)->next = number;
    lane->last = number;
    lane->count++;
    lane->next_offset = cmq_pop_checkpoints_at(&s->checkpoints, number)->next_offset;
}

/* ---- a pop ---- */

static bool may_merge(const cmq_pop_buffer *buffer, const cmq_pop_shard *s, const cmq_pop_lane *lane,
                      const cmq_pop_batch *batch, int64_t now_ms)
{
    const cmq_pop_buffer_options *o = &buffer->options;
    return o->merge && !atomic_load_explicit(&buffer->emptying, memory_order_relaxed) &&
           batch->pop_ms + batch->invisible_ms - now_ms >= o->stay_out_ms + LEAVES_SOON_MS &&
           atomic_load_explicit(&buffer->merged_now, memory_order_relaxed) < o->merged_max &&
           lane->count < o->lane_max &&
           cmq_pop_checkpoints_find(&s->checkpoints, lane->number, batch->offsets[0], batch->pop_ms) == NONE;
}

cmq_status cmq_pop_lane_add(cmq_pop_buffer *buffer, cmq_pop_lane *lane, const cmq_pop_batch *batch, int64_t now_ms)
{
    cmq_pop_shard *s = shard_of(buffer, lane->hash);
    CMQ_ASSERT(batch->count > 0 && batch->count <= CMQ_POP_MESSAGES_MAX);
    if (batch->offsets[batch->count - 1] - batch->offsets[0] > INT32_MAX)
        return cmq_fail(CMQ_ERR_ARGUMENT, "a checkpoint's messages lie within 2^31 of one another");
    uint32_t number;
    cmq_status status = cmq_pop_checkpoints_take(&s->checkpoints, lane->number, batch, &number);
    if (status != CMQ_OK) return status;
    cmq_pop_held *held = cmq_pop_checkpoints_at(&s->checkpoints, number);
    if (may_merge(buffer, s, lane, batch, now_ms)) {
        status = cmq_pop_checkpoints_merge(&s->checkpoints, number);
        if (status == CMQ_OK) {
            atomic_fetch_add_explicit(&buffer->merged_now, 1, memory_order_relaxed);
            s->merged++;
        }
    } else {
        int32_t diffs[CMQ_POP_MESSAGES_MAX];
        const cmq_pop_store_item item = {.revive_queue = batch->revive_queue,
                                         .checkpoint = cmq_pop_record_of_held(buffer, lane, held, diffs)};
        uint32_t stored;
        status = buffer->options.sink.store(buffer->options.sink.context, &item, 1, &stored, &held->stored_end);
        if (status == CMQ_OK) s->stored++;
    }
    if (status != CMQ_OK) {
        cmq_pop_checkpoints_release(&s->checkpoints, number);
        return status;
    }
    append_to_lane(s, lane, number);
    cmq_pop_in_flight_add(&lane->ages, batch->count, batch->pop_ms, batch->invisible_ms);
    settle_or_list(buffer, s, lane);
    return CMQ_OK;
}

cmq_status cmq_pop_lane_pass(cmq_pop_buffer *buffer, cmq_pop_lane *lane, int64_t next_offset)
{
    cmq_pop_shard *s = shard_of(buffer, lane->hash);
    if (lane->last != NONE) {
        /* Behind another that was passed over, it needs no place of its own. */
        cmq_pop_held *last = cmq_pop_checkpoints_at(&s->checkpoints, lane->last);
        if (last->num == 0) {
            last->next_offset = lane->next_offset = next_offset;
            return CMQ_OK;
        }
    }
    uint32_t number;
    CMQ_ASSERT(next_offset >= 0);
    const cmq_pop_batch nothing = {.next_offset = next_offset};
    const cmq_status status = cmq_pop_checkpoints_take(&s->checkpoints, lane->number, &nothing, &number);
    if (status != CMQ_OK) return status;
    append_to_lane(s, lane, number);
    settle_or_list(buffer, s, lane);
    return CMQ_OK;
}

void cmq_pop_lane_reset(cmq_pop_buffer *buffer, cmq_pop_lane *lane)
{
    cmq_pop_shard *s = shard_of(buffer, lane->hash);
    for (uint32_t number = lane->first, next; number != NONE; number = next) {
        cmq_pop_held *held = cmq_pop_checkpoints_at(&s->checkpoints, number);
        CMQ_ASSERT(held->lane == lane->number && !held->detached);
        next = held->next;
        held->next = NONE;
        held->detached = true;
        if (!cmq_pop_checkpoints_is_merged(&s->checkpoints, number) || cmq_pop_held_is_done(held))
            cmq_pop_shard_drop(buffer, s, number);
    }
    lane->first = lane->last = NONE;
    lane->count = 0;
    lane->ages = (cmq_pop_in_flight){0};
    cmq_pop_first_times_clear(&lane->firsts);
}

/* ---- acks ---- */

/* Merge one; true: the checkpoint has it, and had it not as acknowledged. */
static bool merge_ack(cmq_pop_shard *s, cmq_pop_held *held, int64_t offset)
{
    const int index = cmq_pop_held_index(held, offset);
    if (index < 0) {
        s->acks_unknown++;
        return false;
    }
    CMQ_ASSERT((uint32_t)index < held->num);
    const bool is_new = !cmq_bits_test(held->bits, (uint32_t)index);
    held->bits = cmq_bits_set(held->bits, (uint32_t)index);
    return is_new;
}

cmq_status cmq_pop_buffer_ack(cmq_pop_buffer *buffer, const cmq_pop_key *key, int64_t start_offset, int64_t pop_ms,
                              const int64_t *offsets, uint32_t count, int64_t now_ms)
{
    const cmq_pop_buffer_options *o = &buffer->options;
    if (!o->merge || atomic_load_explicit(&buffer->merged_now, memory_order_relaxed) == 0) return CMQ_AGAIN;
    const uint64_t hash = hash_of(key);
    cmq_pop_shard *s = shard_of(buffer, hash);
    cmq_status status = CMQ_AGAIN;
    pthread_mutex_lock(&s->mutex);
    cmq_pop_lane *lane = find_lane(s, key, hash);
    const uint32_t number =
        lane != NULL ? cmq_pop_checkpoints_find(&s->checkpoints, lane->number, start_offset, pop_ms) : NONE;
    if (number != NONE) {
        cmq_pop_held *held = cmq_pop_checkpoints_at(&s->checkpoints, number);
        if (held->pop_ms + held->invisible_ms - now_ms >= o->stay_out_ms + LEAVES_SOON_MS &&
            now_ms - held->pop_ms <= o->stay_ms - LEAVES_SOON_MS) {
            uint32_t landed = 0;
            for (uint32_t i = 0; i < count; i++) landed += merge_ack(s, held, offsets[i]);
            CMQ_ASSERT(landed <= held->num);
            s->acks_merged += landed;
            if (!held->detached) cmq_pop_in_flight_take(&lane->ages, landed, pop_ms, held->invisible_ms);
            if (cmq_pop_held_is_done(held) && held->detached)
                cmq_pop_shard_drop(buffer, s, number);
            else if (cmq_pop_held_is_done(held) && lane->first == number)
                settle_or_list(buffer, s, lane);
            status = CMQ_OK;
        }
    }
    pthread_mutex_unlock(&s->mutex);
    return status;
}

/* Whether it leaves soon or not, as long as it is merged: should it leave so late that the ack has gone before it, it
 * takes the ack along. */
static void note_stored_acks(cmq_pop_buffer *buffer, cmq_pop_shard *s, cmq_pop_lane *lane, uint32_t number,
                             const int64_t *offsets, uint32_t count)
{
    cmq_pop_held *held = cmq_pop_checkpoints_at(&s->checkpoints, number);
    for (uint32_t i = 0; i < count; i++) {
        const int index = cmq_pop_held_index(held, offsets[i]);
        if (index >= 0) held->bits = cmq_bits_set(held->bits, (uint32_t)index);
    }
    if (!cmq_pop_held_is_done(held)) return;
    if (held->detached)
        cmq_pop_shard_drop(buffer, s, number);
    else if (lane->first == number)
        settle_or_list(buffer, s, lane);
}

/* Messages of a pop are in flight no more. */
static void count_off(cmq_pop_lane *lane, const int64_t *offsets, uint32_t count, int64_t pop_ms, int64_t invisible_ms)
{
    cmq_pop_in_flight_take(&lane->ages, count, pop_ms, invisible_ms);
    for (uint32_t i = 0; i < count && lane->firsts != NULL; i++) {
        const int64_t first_ms = cmq_pop_first_times_take(&lane->firsts, offsets[i], pop_ms);
        (void)first_ms;   /* nobody's any more */
    }
    if (lane->ages.in_flight == 0) cmq_pop_first_times_clear(&lane->firsts);
}

void cmq_pop_buffer_acks_stored(cmq_pop_buffer *buffer, const cmq_pop_key *key, int64_t start_offset, int64_t pop_ms,
                                int64_t invisible_ms, const int64_t *offsets, uint32_t count)
{
    const uint64_t hash = hash_of(key);
    cmq_pop_shard *s = shard_of(buffer, hash);
    pthread_mutex_lock(&s->mutex);
    cmq_pop_lane *lane = find_lane(s, key, hash);
    const uint32_t number =
        lane != NULL ? cmq_pop_checkpoints_find(&s->checkpoints, lane->number, start_offset, pop_ms) : NONE;
    if (lane != NULL) count_off(lane, offsets, count, pop_ms, invisible_ms);
    if (number != NONE) note_stored_acks(buffer, s, lane, number, offsets, count);
    pthread_mutex_unlock(&s->mutex);
}

void cmq_pop_buffer_in_flight_done(cmq_pop_buffer *buffer, const cmq_pop_key *key, int64_t start_offset, uint32_t count,
                                   int64_t pop_ms, int64_t invisible_ms)
{
    CMQ_ASSERT(count > 0);
    const uint64_t hash = hash_of(key);
    cmq_pop_shard *s = shard_of(buffer, hash);
    pthread_mutex_lock(&s->mutex);
    cmq_pop_lane *lane = find_lane(s, key, hash);
    if (lane != NULL) {
        /* A changed message is alone in its checkpoint. */
        count_off(lane, &start_offset, 1, pop_ms, invisible_ms);
        cmq_pop_in_flight_take(&lane->ages, count - 1, pop_ms, invisible_ms);
    }
    pthread_mutex_unlock(&s->mutex);
}

void cmq_pop_buffer_in_flight_again(cmq_pop_buffer *buffer, const cmq_pop_key *key, int64_t offset, int64_t before_ms,
                                   int64_t pop_ms, int64_t invisible_ms)
{
    const uint64_t hash = hash_of(key);
    cmq_pop_shard *s = shard_of(buffer, hash);
    pthread_mutex_lock(&s->mutex);
    cmq_pop_lane *lane = find_lane(s, key, hash);
    if (lane != NULL) {
        const int64_t first_ms = cmq_pop_first_times_take(&lane->firsts, offset, before_ms);
        cmq_pop_first_times_put(&lane->firsts, offset, pop_ms, first_ms >= 0 ? first_ms : before_ms);
        cmq_pop_in_flight_add(&lane->ages, 1, pop_ms, invisible_ms);
    }
    pthread_mutex_unlock(&s->mutex);
}

/* ---- time ---- */

static cmq_status step_shard(cmq_pop_buffer *buffer, cmq_pop_shard *s, int64_t now_ms, int64_t *next_due_ms)
{
    pthread_mutex_lock(&s->mutex);
    const cmq_status status = cmq_pop_shard_store_due(buffer, s, now_ms);
    settle_waiting(buffer, s);
    const bool at_once = s->waiting_count > 0 || s->checkpoints.refused_count > 0;
    const int64_t due = at_once ? now_ms : cmq_pop_checkpoints_first_due_ms(&s->checkpoints);
    if (due < *next_due_ms) *next_due_ms = due;
    pthread_mutex_unlock(&s->mutex);
    return status;
}

cmq_status cmq_pop_buffer_step(cmq_pop_buffer *buffer, int64_t now_ms, int64_t *next_due_ms_out)
{
    cmq_status failed = CMQ_OK;
    *next_due_ms_out = INT64_MAX;
    for (uint32_t i = 0; i < CMQ_POP_SHARDS; i++) {
        const cmq_status status = step_shard(buffer, &buffer->shards[i], now_ms, next_due_ms_out);
        /* CMQ_AGAIN asks for a wait for the disk, so it comes first */
        if (status != CMQ_OK && failed != CMQ_AGAIN) failed = status;
    }
    return failed;
}

cmq_status cmq_pop_buffer_empty(cmq_pop_buffer *buffer)
{
    const int64_t end_of_time = INT64_MAX - 1;
    atomic_store_explicit(&buffer->emptying, true, memory_order_relaxed);
    int64_t next;
    const cmq_status status = cmq_pop_buffer_step(buffer, end_of_time, &next);
    return status != CMQ_OK ? status : next == INT64_MAX ? CMQ_OK : CMQ_AGAIN;
}

/* ---- deleted topics and groups ---- */

static void forget_lane(cmq_pop_buffer *buffer, cmq_pop_shard *s, cmq_pop_lane *lane)
{
    for (uint32_t i = 0; i < s->waiting_count && lane->waiting; i++) {
        if (s->waiting[i] != lane->number) continue;
        s->waiting[i] = s->waiting[--s->waiting_count];
        lane->waiting = false;
    }
    for (uint32_t number = 0; (number = cmq_pop_checkpoints_of_lane(&s->checkpoints, lane->number, number)) != NONE;
         number++)
        cmq_pop_shard_drop(buffer, s, number);
    CMQ_ASSERT(!lane->waiting && s->lanes_live > 0 && s->lane_bytes >= bytes_of(lane));
    s->lane_bytes -= bytes_of(lane);
    cmq_pop_first_times_clear(&lane->firsts);
    s->lanes[lane->number] = NULL;
    s->lanes_live--;
    free(lane);
}

/* Linear probing has no holes: the remaining entries are inserted again. */
static void rebuild_table(cmq_pop_shard *s)
{
    CMQ_ASSERT((s->table_slots & (s->table_slots - 1)) == 0);
    memset(s->table, 0, s->table_slots * sizeof *s->table);
    for (uint32_t i = 0; i < s->lane_count; i++) {
        if (s->lanes[i] == NULL) continue;
        const cmq_pop_key key = cmq_pop_lane_key(s->lanes[i]);
        *find_place(s, &key, s->lanes[i]->hash) = i + 1;
    }
}

void cmq_pop_buffer_forget(cmq_pop_buffer *buffer, cmq_slice topic, cmq_slice group)
{
    for (uint32_t i = 0; i < CMQ_POP_SHARDS; i++) {
        cmq_pop_shard *s = &buffer->shards[i];
        pthread_mutex_lock(&s->mutex);
        const uint32_t before = s->lanes_live;
        for (uint32_t n = 0; n < s->lane_count; n++) {
            cmq_pop_lane *lane = s->lanes[n];
            if (lane == NULL) continue;
            const cmq_pop_key key = cmq_pop_lane_key(lane);
            if ((topic.bytes > 0 && !cmq_slice_equal(topic, key.topic)) ||
                (group.bytes > 0 && !cmq_slice_equal(group, key.group)))
                continue;
            forget_lane(buffer, s, lane);
        }
        if (s->lanes_live < before) rebuild_table(s);
        pthread_mutex_unlock(&s->mutex);
    }
}
