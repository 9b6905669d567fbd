/* cmq_hold_tags: see cmq_hold_tags.h. */
#include "broker/loop/cmq_hold_tags.h"

#include <stdbool.h>

#include "base/cmq_name_hash.h"

#define NONE CMQ_HOLD_TAG_NONE

void cmq_hold_tags_begin(cmq_hold_tags *tags) { *tags = (cmq_hold_tags){.free_link = NONE, .free_list = NONE}; }

void cmq_hold_tags_end(cmq_hold_tags *tags)
{
    free(tags->links);
    free(tags->lists);
    free(tags->table);
}

static uint64_t key_of(uint32_t queue, uint32_t hash) { return (uint64_t)queue << 32 | hash; }

/* Tags are chosen by clients: the seed keeps them from meeting in one place. */
static uint32_t home_of(uint64_t key)
{
    const uint64_t hash = cmq_name_hash_step(key ^ cmq_name_hash_seed[0], cmq_name_hash_seed[1]);
    return (uint32_t)(hash ^ hash >> 32);
}

static uint32_t *find_place(const cmq_hold_tags *tags, uint64_t key)
{
    for (uint32_t i = home_of(key);; i++) {
        uint32_t *place = &tags->table[i & (tags->table_slots - 1)];
        if (*place == 0 || tags->lists[*place - 1].key == key) return place;
    }
}

static cmq_status no_memory(void)
{
    return cmq_fail(CMQ_ERR_MEMORY, "no memory for the tags of one more held request");
}

/* Room for `count` more members in an array that has `used` and `slots`. */
static bool grow(void **array, uint32_t *slots, uint32_t used, uint32_t count, size_t member_bytes)
{
    uint32_t more = *slots == 0 ? 64 : *slots;
    if (count <= *slots - used) return true;
    while (more - used < count) more *= 2;
    void *larger = realloc(*array, more * member_bytes);
    if (larger == NULL) return false;
    *array = larger;
    *slots = more;
    return true;
}

static bool grow_table(cmq_hold_tags *tags, uint32_t count)
{
    uint32_t slots = tags->table_slots == 0 ? 64 : tags->table_slots;
    while ((tags->lists_used + count) * 2 > slots) slots *= 2;
    if (slots == tags->table_slots) return true;
    uint32_t *table = calloc(slots, sizeof *table);
    if (table == NULL) return false;
    for (uint32_t i = 0; i < tags->table_slots; i++) {
        const uint32_t number = tags->table[i];
        if (number == 0) continue;
        uint32_t to = home_of(tags->lists[number - 1].key);
        while (table[to & (slots - 1)] != 0) to++;
        table[to & (slots - 1)] = number;
    }
    free(tags->table);
    tags->table = table;
    tags->table_slots = slots;
    return true;
}

/* Room for so many tags. */
static bool require_room(cmq_hold_tags *tags, uint32_t count)
{
    return grow((void **)&tags->links, &tags->link_slots, tags->link_count, count, sizeof *tags->links) &&
           grow((void **)&tags->lists, &tags->list_slots, tags->list_count, count, sizeof *tags->lists) &&
           grow_table(tags, count);
}

/* The list of the key; there is room for one more. */
static uint32_t require_list(cmq_hold_tags *tags, uint64_t key)
{
    uint32_t *place = find_place(tags, key);
    if (*place != 0) return *place - 1;
    const uint32_t number = tags->free_list != NONE ? tags->free_list : tags->list_count++;
    if (number == tags->free_list) tags->free_list = tags->lists[number].first;
    tags->lists[number] = (cmq_hold_tag_list){.key = key, .first = NONE, .last = NONE};
    tags->lists_used++;
    *place = number + 1;
    return number;
}

static uint32_t enter(cmq_hold_tags *tags, uint32_t list, uint32_t hold, uint32_t next_of_hold)
{
    cmq_hold_tag_list *of = &tags->lists[list];
    const uint32_t number = tags->free_link != NONE ? tags->free_link : tags->link_count++;
    if (number == tags->free_link) tags->free_link = tags->links[number].next_of_hold;
    tags->links[number] = (cmq_hold_tag_link){
        .hold = hold, .list = list, .next = NONE, .previous = of->last, .next_of_hold = next_of_hold};
    if (of->last != NONE) tags->links[of->last].next = number;
    else of->first = number;
    of->last = number;
    tags->links_used++;
    return number;
}

cmq_status cmq_hold_tags_add(cmq_hold_tags *tags, uint32_t queue, const uint32_t *hashes, uint32_t count, uint32_t hold,
                             uint32_t *first_out)
{
    *first_out = NONE;
    if (count == 0) return CMQ_OK;
    if (!require_room(tags, count)) return no_memory();
    for (uint32_t i = 0; i < count; i++)
        *first_out = enter(tags, require_list(tags, key_of(queue, hashes[i])), hold, *first_out);
    return CMQ_OK;
}

/* Take the empty list out of the table, and move those behind it that could not be found any more. */
static void drop_list(cmq_hold_tags *tags, uint32_t number)
{
    const uint32_t mask = tags->table_slots - 1;
    uint32_t hole = (uint32_t)(find_place(tags, tags->lists[number].key) - tags->table);
    for (uint32_t i = (hole + 1) & mask; tags->table[i] != 0; i = (i + 1) & mask) {
        const uint32_t home = home_of(tags->lists[tags->table[i] - 1].key) & mask;
        if (((i - home) & mask) < ((i - hole) & mask)) continue;
        tags->table[hole] = tags->table[i];
        hole = i;
    }
    tags->table[hole] = 0;
    tags->lists[number].first = tags->free_list;
    tags->free_list = number;
    tags->lists_used--;
}

void cmq_hold_tags_remove(cmq_hold_tags *tags, uint32_t first)
{
    for (uint32_t number = first, next; number != NONE; number = next) {
        cmq_hold_tag_link *link = &tags->links[number];
        cmq_hold_tag_list *of = &tags->lists[link->list];
        next = link->next_of_hold;
        if (link->next != NONE) tags->links[link->next].previous = link->previous;
        else of->last = link->previous;
        if (link->previous != NONE) tags->links[link->previous].next = link->next;
        else of->first = link->next;
        if (of->first == NONE) drop_list(tags, link->list);
        link->next_of_hold = tags->free_link;
        tags->free_link = number;
        tags->links_used--;
    }
}

uint32_t cmq_hold_tags_first(const cmq_hold_tags *tags, uint32_t queue, uint32_t hash)
{
    if (tags->table_slots == 0) return NONE;
    const uint32_t found = *find_place(tags, key_of(queue, hash));
    return found == 0 ? NONE : tags->lists[found - 1].first;
}

size_t cmq_hold_tags_bytes(const cmq_hold_tags *tags)
{
    return tags->link_slots * sizeof *tags->links + tags->list_slots * sizeof *tags->lists +
           tags->table_slots * sizeof *tags->table;
}
