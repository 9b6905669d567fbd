/* cmq_pop_checkpoints: see cmq_pop_checkpoints.h. */
#include "broker/pop/flight/cmq_pop_checkpoints.h"

#include <stdlib.h>

#include "base/cmq_assert.h"

#define NONE CMQ_POP_NONE
#define CHUNK_BITS 8u
#define CHUNK_COUNT (1u << CHUNK_BITS)

static cmq_status out_of_memory(void)
{
    return cmq_fail(CMQ_ERR_MEMORY, "no memory for one more checkpoint of popped messages");
}

void cmq_pop_checkpoints_init(cmq_pop_checkpoints *all, int64_t stay_ms, int64_t stay_out_ms)
{
    *all = (cmq_pop_checkpoints){.stay_ms = stay_ms, .stay_out_ms = stay_out_ms, .free_held = NONE};
}

cmq_pop_held *cmq_pop_checkpoints_at(const cmq_pop_checkpoints *all, uint32_t number)
{
    return &all->chunks[number >> CHUNK_BITS][number & (CHUNK_COUNT - 1)];
}

static void free_list(cmq_pop_checkpoints *all, cmq_pop_held *held)
{
    if (!held->has_list) return;
    all->list_bytes -= held->num * sizeof *held->offsets.list;
    free(held->offsets.list);
    held->has_list = false;
}

void cmq_pop_checkpoints_free(cmq_pop_checkpoints *all)
{
    for (uint32_t i = 0; i < all->chunk_count; i++) {
        for (uint32_t n = 0; n < CHUNK_COUNT; n++)
            if (all->chunks[i][n].used) free_list(all, &all->chunks[i][n]);
        free(all->chunks[i]);
    }
    free(all->chunks);
    free(all->heap);
    free(all->table);
    cmq_pop_checkpoints_init(all, all->stay_ms, all->stay_out_ms);
}

/* ---- taking and giving back ---- */

static cmq_status add_chunk(cmq_pop_checkpoints *all)
{
    if (all->chunk_count == all->chunk_slots) {
        const uint32_t slots = all->chunk_slots == 0 ? 16 : all->chunk_slots * 2;
        cmq_pop_held **chunks = realloc(all->chunks, slots * sizeof *chunks);
        if (chunks == NULL) return out_of_memory();
        all->chunks = chunks;
        all->chunk_slots = slots;
    }
    cmq_pop_held *chunk = calloc(CHUNK_COUNT, sizeof *chunk);
    if (chunk == NULL) return out_of_memory();
    const uint32_t first = all->chunk_count << CHUNK_BITS;
    all->chunks[all->chunk_count++] = chunk;
    for (uint32_t i = CHUNK_COUNT; i-- > 0;) {
        chunk[i].next = all->free_held;
        all->free_held = first + i;
    }
    return CMQ_OK;
}

/* Keep the offsets as gaps, or in a list where they lie too far apart. */
static cmq_status keep_offsets(cmq_pop_checkpoints *all, cmq_pop_held *held, const cmq_pop_batch *batch)
{
    for (uint32_t i = 1; i < batch->count; i++) {
        const int64_t gap = batch->offsets[i] - batch->offsets[i - 1];
        CMQ_ASSERT(gap > 0);
        if (gap > UINT8_MAX) {
            held->offsets.list = malloc(batch->count * sizeof *held->offsets.list);
            if (held->offsets.list == NULL) return out_of_memory();
            memcpy(held->offsets.list, batch->offsets, batch->count * sizeof *held->offsets.list);
            held->has_list = true;
            all->list_bytes += batch->count * sizeof *held->offsets.list;
            return CMQ_OK;
        }
        held->offsets.gaps[i - 1] = (uint8_t)gap;
    }
    return CMQ_OK;
}

cmq_status cmq_pop_checkpoints_take(cmq_pop_checkpoints *all, uint32_t lane, const cmq_pop_batch *batch,
                                    uint32_t *number_out)
{
    cmq_status status = all->free_held == NONE ? add_chunk(all) : CMQ_OK;
    if (status != CMQ_OK) return status;
    const uint32_t number = all->free_held;
    cmq_pop_held *held = cmq_pop_checkpoints_at(all, number);
    const uint32_t next_free = held->next;
    *held = (cmq_pop_held){
        .start_offset = batch->count > 0 ? batch->offsets[0] : -1,
        .pop_ms = batch->pop_ms,
        .invisible_ms = batch->invisible_ms,
        .next_offset = batch->next_offset,
        .log_end = batch->log_end,
        .stored_end = -1,
        .lane = lane,
        .next = NONE,
        .heap_at = NONE,
        .revive_queue = (uint16_t)batch->revive_queue,
        .num = (uint8_t)batch->count,
        .used = true,
    };
    status = keep_offsets(all, held, batch);
    if (status != CMQ_OK) {
        held->used = false;
        held->next = next_free;
        return status;
    }
    all->free_held = next_free;
    all->used++;
    *number_out = number;
    return CMQ_OK;
}

void cmq_pop_checkpoints_release(cmq_pop_checkpoints *all, uint32_t number)
{
    cmq_pop_held *held = cmq_pop_checkpoints_at(all, number);
    CMQ_ASSERT(held->used && !held->merged);
    free_list(all, held);
    held->used = false;
    held->next = all->free_held;
    all->free_held = number;
    if (--all->used == 0 && all->chunk_count > 1) cmq_pop_checkpoints_free(all);
}

/* ---- the heap ---- */

static int64_t due_of(const cmq_pop_checkpoints *all, uint32_t number)
{
    const cmq_pop_held *held = cmq_pop_checkpoints_at(all, number);
    const int64_t stay = held->pop_ms + all->stay_ms, out = held->pop_ms + held->invisible_ms - all->stay_out_ms;
    return stay < out ? stay : out;
}

static void put(cmq_pop_checkpoints *all, uint32_t place, uint32_t number)
{
    all->heap[place] = number;
    cmq_pop_checkpoints_at(all, number)->heap_at = place;
}

/* Put `number` where it belongs, `place` being free: up or down from there. */
static void sift(cmq_pop_checkpoints *all, uint32_t place, uint32_t number)
{
    const int64_t due = due_of(all, number);
    for (uint32_t above; place > 0 && due < due_of(all, all->heap[above = (place - 1) / 2]); place = above)
        put(all, place, all->heap[above]);
    for (uint32_t below; (below = place * 2 + 1) < all->heap_count; place = below) {
        if (below + 1 < all->heap_count && due_of(all, all->heap[below + 1]) < due_of(all, all->heap[below])) below++;
        if (due <= due_of(all, all->heap[below])) break;
        put(all, place, all->heap[below]);
    }
    put(all, place, number);
}

void cmq_pop_checkpoints_undue(cmq_pop_checkpoints *all, uint32_t number)
{
    cmq_pop_held *held = cmq_pop_checkpoints_at(all, number);
    const uint32_t place = held->heap_at, last = all->heap[--all->heap_count];
    held->heap_at = NONE;
    if (last != number) sift(all, place, last);
}

/* The heap has room for every merged checkpoint. */
void cmq_pop_checkpoints_due_again(cmq_pop_checkpoints *all, uint32_t number)
{
    CMQ_ASSERT(cmq_pop_checkpoints_at(all, number)->merged && all->heap_count < all->heap_slots);
    sift(all, all->heap_count++, number);
}

void cmq_pop_checkpoints_set_aside(cmq_pop_checkpoints *all, uint32_t number)
{
    cmq_pop_held *held = cmq_pop_checkpoints_at(all, number);
    CMQ_ASSERT(held->merged && held->heap_at == NONE && !held->refused);
    held->refused = true;
    all->refused_count++;
}

static void forget_refused(cmq_pop_checkpoints *all, cmq_pop_held *held)
{
    if (!held->refused) return;
    held->refused = false;
    all->refused_count--;
}

void cmq_pop_checkpoints_take_back(cmq_pop_checkpoints *all)
{
    for (uint32_t number = 0; all->refused_count > 0; number++) {
        if (!cmq_pop_checkpoints_at(all, number)->refused) continue;
        forget_refused(all, cmq_pop_checkpoints_at(all, number));
        cmq_pop_checkpoints_due_again(all, number);
    }
}

uint32_t cmq_pop_checkpoints_due(const cmq_pop_checkpoints *all, int64_t now_ms)
{
    return all->heap_count > 0 && due_of(all, all->heap[0]) <= now_ms ? all->heap[0] : NONE;
}

int64_t cmq_pop_checkpoints_first_due_ms(const cmq_pop_checkpoints *all)
{
    return all->heap_count > 0 ? due_of(all, all->heap[0]) : INT64_MAX;
}

/* ---- the table ---- */

static uint32_t hash_of(uint32_t lane, int64_t start_offset, int64_t pop_ms)
{
    uint64_t mixed = ((uint64_t)lane << 32 ^ (uint64_t)start_offset) * UINT64_C(0x9E3779B97F4A7C15);
    mixed = (mixed ^ mixed >> 32 ^ (uint64_t)pop_ms) * UINT64_C(0xD6E8FEB86659FD93);
    return (uint32_t)(mixed >> 32);
}

static uint32_t hash_of_held(const cmq_pop_held *held) { return hash_of(held->lane, held->start_offset, held->pop_ms); }

static uint32_t find_place(const cmq_pop_checkpoints *all, uint32_t lane, int64_t start_offset, int64_t pop_ms)
{
    uint32_t at = hash_of(lane, start_offset, pop_ms) & (all->table_slots - 1);
    for (; all->table[at] != 0; at = (at + 1) & (all->table_slots - 1)) {
        const cmq_pop_held *held = cmq_pop_checkpoints_at(all, all->table[at] - 1);
        if (held->start_offset == start_offset && held->pop_ms == pop_ms && held->lane == lane) break;
    }
    return at;
}

uint32_t cmq_pop_checkpoints_find(const cmq_pop_checkpoints *all, uint32_t lane, int64_t start_offset, int64_t pop_ms)
{
    if (all->table_slots == 0) return NONE;
    const uint32_t found = all->table[find_place(all, lane, start_offset, pop_ms)];
    return found == 0 ? NONE : found - 1;
}

uint32_t cmq_pop_checkpoints_of_lane(const cmq_pop_checkpoints *all, uint32_t lane, uint32_t from)
{
    for (uint32_t number = from; number < all->chunk_count << CHUNK_BITS; number++) {
        const cmq_pop_held *held = cmq_pop_checkpoints_at(all, number);
        if (held->used && held->lane == lane) return number;
    }
    return NONE;
}

static cmq_status grow(cmq_pop_checkpoints *all)
{
    if (all->heap_slots == all->table_count) {
        const uint32_t slots = all->heap_slots == 0 ? 64 : all->heap_slots + all->heap_slots / 2;
        uint32_t *heap = realloc(all->heap, slots * sizeof *heap);
        if (heap == NULL) return out_of_memory();
        all->heap = heap;
        all->heap_slots = slots;
    }
    if ((all->table_count + 1) * 3 <= all->table_slots * 2) return CMQ_OK;
    const uint32_t slots = all->table_slots == 0 ? 128 : all->table_slots * 2, before = all->table_slots;
    uint32_t *table = calloc(slots, sizeof *table), *old = all->table;
    if (table == NULL) return out_of_memory();
    all->table = table;
    all->table_slots = slots;
    for (uint32_t i = 0; i < before; i++) {
        if (old[i] == 0) continue;
        const cmq_pop_held *held = cmq_pop_checkpoints_at(all, old[i] - 1);
        table[find_place(all, held->lane, held->start_offset, held->pop_ms)] = old[i];
    }
    free(old);
    return CMQ_OK;
}

cmq_status cmq_pop_checkpoints_merge(cmq_pop_checkpoints *all, uint32_t number)
{
    const cmq_status status = grow(all);
    if (status != CMQ_OK) return status;
    cmq_pop_held *held = cmq_pop_checkpoints_at(all, number);
    const uint32_t at = find_place(all, held->lane, held->start_offset, held->pop_ms);
    CMQ_ASSERT(all->table[at] == 0);
    all->table[at] = number + 1;
    all->table_count++;
    held->merged = true;
    cmq_pop_checkpoints_due_again(all, number);
    return CMQ_OK;
}

void cmq_pop_checkpoints_unmerge(cmq_pop_checkpoints *all, uint32_t number)
{
    cmq_pop_held *held = cmq_pop_checkpoints_at(all, number);
    const uint32_t mask = all->table_slots - 1;
    if (held->heap_at != NONE) cmq_pop_checkpoints_undue(all, number);
    forget_refused(all, held);
    uint32_t hole = find_place(all, held->lane, held->start_offset, held->pop_ms);
    CMQ_ASSERT(all->table[hole] == number + 1);
    /* Linear probing has no holes: move back what would not be found over one. */
    for (uint32_t at = (hole + 1) & mask; all->table[at] != 0; at = (at + 1) & mask) {
        const uint32_t home = hash_of_held(cmq_pop_checkpoints_at(all, all->table[at] - 1)) & mask;
        if (((at - home) & mask) < ((at - hole) & mask)) continue;
        all->table[hole] = all->table[at];
        hole = at;
    }
    all->table[hole] = 0;
    all->table_count--;
    held->merged = false;
}

size_t cmq_pop_checkpoints_bytes(const cmq_pop_checkpoints *all)
{
    return all->chunk_count * (CHUNK_COUNT * sizeof(cmq_pop_held)) + all->chunk_slots * sizeof(cmq_pop_held *) +
           (all->heap_slots + all->table_slots) * sizeof(uint32_t) + all->list_bytes;
}

/* ---- one checkpoint ---- */

int64_t cmq_pop_held_offset(const cmq_pop_held *held, uint32_t index)
{
    if (held->has_list) return held->offsets.list[index];
    int64_t offset = held->start_offset;
    for (uint32_t i = 0; i < index; i++) offset += held->offsets.gaps[i];
    return offset;
}

int cmq_pop_held_index(const cmq_pop_held *held, int64_t offset)
{
    if (held->has_list) {
        for (int i = 0; i < held->num; i++)
            if (held->offsets.list[i] == offset) return i;
        return -1;
    }
    int64_t at = held->start_offset;
    for (int i = 0; i < held->num && at <= offset; i++) {
        if (at == offset) return i;
        at += held->offsets.gaps[i];
    }
    return -1;
}
