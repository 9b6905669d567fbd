/* cmq_timer_deletes: see cmq_timer_deletes.h. Open addressing, at most half full. */
#include "broker/timer/cmq_timer_deletes.h"

#include <stdlib.h>
#include <string.h>

#include "base/cmq_name_hash.h"

static cmq_slice key_at(const cmq_timer_deletes *deletes, uint64_t at)
{
    const uint8_t *key = deletes->text + at;
    return (cmq_slice){.data = key + 4, .bytes = cmq_load_u32(key)};
}

/* Where the key is, or would be. */
static size_t place_of(const cmq_timer_deletes *deletes, cmq_slice key)
{
    size_t place = (size_t)cmq_name_hash(key) & (deletes->table_slots - 1);
    while (deletes->table[place] != 0 && !cmq_slice_equal(key_at(deletes, deletes->table[place] - 1), key))
        place = (place + 1) & (deletes->table_slots - 1);
    return place;
}

bool cmq_timer_deletes_has(const cmq_timer_deletes *deletes, cmq_slice key)
{
    return deletes->count > 0 && deletes->table[place_of(deletes, key)] != 0;
}

static cmq_status CMQ_MUST_CHECK grow_table(cmq_timer_deletes *deletes)
{
    cmq_timer_deletes grown = *deletes;
    grown.table_slots = deletes->table_slots == 0 ? 64 : deletes->table_slots * 2;
    grown.table = calloc(grown.table_slots, sizeof *grown.table);
    if (grown.table == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for %zu deletions of timers", deletes->count);
    for (size_t i = 0; i < deletes->table_slots; i++)
        if (deletes->table[i] != 0)
            grown.table[place_of(&grown, key_at(deletes, deletes->table[i] - 1))] = deletes->table[i];
    free(deletes->table);
    *deletes = grown;
    return CMQ_OK;
}

static cmq_status CMQ_MUST_CHECK make_room(cmq_timer_deletes *deletes, size_t bytes)
{
    if (deletes->text_bytes - deletes->text_used >= bytes) return CMQ_OK;
    size_t size = deletes->text_bytes == 0 ? 4096 : deletes->text_bytes;
    while (size - deletes->text_used < bytes) size *= 2;
    uint8_t *text = realloc(deletes->text, size);
    if (text == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for %zu deletions of timers", deletes->count);
    deletes->text = text;
    deletes->text_bytes = size;
    return CMQ_OK;
}

cmq_status cmq_timer_deletes_add(cmq_timer_deletes *deletes, cmq_slice key)
{
    cmq_status status = CMQ_OK;
    if (2 * (deletes->count + 1) > deletes->table_slots) status = grow_table(deletes);
    if (status == CMQ_OK) status = make_room(deletes, key.bytes + 4);
    if (status != CMQ_OK) return status;
    const size_t place = place_of(deletes, key);
    if (deletes->table[place] != 0) return CMQ_OK;
    deletes->table[place] = deletes->text_used + 1;
    cmq_store_u32(deletes->text + deletes->text_used, (uint32_t)key.bytes);
    if (key.bytes > 0) memcpy(deletes->text + deletes->text_used + 4, key.data, key.bytes);
    deletes->text_used += key.bytes + 4;
    deletes->count++;
    return CMQ_OK;
}

void cmq_timer_deletes_free(cmq_timer_deletes *deletes)
{
    free(deletes->table);
    free(deletes->text);
    *deletes = (cmq_timer_deletes){0};
}
