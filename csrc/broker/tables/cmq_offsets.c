/* cmq_offsets: see cmq_offsets.h.
 *
 * A pair is a group in a topic, with both names; an entry is one queue of a pair. Both have a number that stays while
 * they live, and are found through tables of numbers. Entries lie in chunks that never move.
 *
 * Changes hang in one chain, oldest first: entries, and pairs whose entries were all removed. An entry that is removed
 * while it hangs there is dead: it stays until its turn comes, and says nothing then. A pair lives while it has entries
 * or hangs in the chain.
 */
#include "broker/tables/cmq_offsets.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/cmq_assert.h"
#include "base/cmq_name_hash.h"
#include "broker/tables/cmq_number_places.h"
#include "broker/tables/cmq_offset_fences.h"
#include "broker/tables/cmq_offset_groups.h"
#include "broker/tables/cmq_offset_makers.h"

#define CHUNK_ENTRIES 4096u
#define NO_NUMBER UINT32_MAX
#define RESET_PENDING (-2)            /* as a pull offset: the next pull gets the committed one */

/* Links of the chain: the number of an entry, or of a pair with this bit. */
#define LINK_PAIR (UINT32_C(1) << 31)
#define LINK_END (UINT32_MAX - 1)
#define LINK_OUTSIDE UINT32_MAX       /* does not hang in the chain */
#define ENTRIES_LIMIT (LINK_PAIR / 2)

typedef struct entry {
    uint32_t pair;                    /* NO_NUMBER: dead, or free */
    int32_t queue_id;
    int64_t offset;                   /* committed; CMQ_OFFSETS_NONE */
    int64_t pull_offset;              /* CMQ_OFFSETS_NONE; RESET_PENDING */
    uint32_t next_changed;
    uint32_t next_of_pair;            /* free: the next free one */
} entry;

_Static_assert(sizeof(entry) == 32, "there may be millions of these");

typedef struct pair {
    uint64_t hash;
    uint32_t first;                   /* of its entries */
    cmq_offset_group *group;          /* one reference */
    uint32_t next_changed;
    uint16_t group_bytes, topic_bytes;
    uint8_t names[];                  /* the group's, then the topic's */
} pair;

struct cmq_offsets {
    pthread_mutex_t mutex;            /* all that follows */
    entry **chunks;
    uint32_t chunk_count;
    uint32_t entries_made;            /* numbers below were given at least once */
    uint32_t entries_free;            /* first of the free ones */
    uint32_t entries_live, entries_held, entries_max;   /* held: with the dead ones */
    pair **pairs;                     /* by number; NULL: free */
    uint32_t *pair_numbers_free;      /* a stack: those below pairs_made that are free; room for pair_capacity */
    uint32_t pair_capacity, pairs_made, pair_numbers_free_count;
    cmq_number_places entry_places, pair_places;
    uint32_t changed_first, changed_last;
    int64_t commits;
    bool shared_out;                  /* groups have shares */
    cmq_offset_groups groups;         /* of the pairs */
    cmq_offset_makers makers;
    cmq_offset_fences fences;
};

/* ---- numbers ---- */

static entry *entry_at(const cmq_offsets *offsets, uint32_t number)
{
    return &offsets->chunks[number / CHUNK_ENTRIES][number % CHUNK_ENTRIES];
}

static cmq_slice group_of(const pair *of) { return (cmq_slice){.data = of->names, .bytes = of->group_bytes}; }
static cmq_slice topic_of(const pair *of)
{
    return (cmq_slice){.data = of->names + of->group_bytes, .bytes = of->topic_bytes};
}

static uint64_t pair_hash(cmq_slice group, cmq_slice topic)
{
    return (cmq_name_hash(group) * 31 + cmq_name_hash(topic)) * CMQ_NAMEHASH_MULTIPLIER >> 16;
}

static uint64_t entry_hash(uint32_t pair_number, int32_t queue_id)
{
    return ((uint64_t)pair_number << 32 | (uint32_t)queue_id) * CMQ_NAMEHASH_MULTIPLIER >> 24;
}

static uint64_t hash_of_entry(const void *owner, uint32_t number)
{
    const entry *of = entry_at(owner, number);
    return entry_hash(of->pair, of->queue_id);
}

static uint64_t hash_of_pair(const void *owner, uint32_t number)
{
    const cmq_offsets *offsets = owner;
    return offsets->pairs[number]->hash;
}

/* ---- finding ---- */

static uint32_t find_pair(const cmq_offsets *offsets, const cmq_offset_key *key, uint64_t hash)
{
    const cmq_number_places *in = &offsets->pair_places;
    for (uint64_t at = hash; in->at != NULL && in->at[at & in->mask] != 0; at++) {
        const uint32_t number = in->at[at & in->mask] - 1;
        const pair *there = offsets->pairs[number];
        if (there->hash == hash && cmq_slice_equal(group_of(there), key->group) &&
            cmq_slice_equal(topic_of(there), key->topic))
            return number;
    }
    return NO_NUMBER;
}

static uint32_t find_entry(const cmq_offsets *offsets, uint32_t pair_number, int32_t queue_id)
{
    const cmq_number_places *in = &offsets->entry_places;
    if (pair_number == NO_NUMBER || in->at == NULL) return NO_NUMBER;
    for (uint64_t at = entry_hash(pair_number, queue_id); in->at[at & in->mask] != 0; at++) {
        const uint32_t number = in->at[at & in->mask] - 1;
        const entry *there = entry_at(offsets, number);
        if (there->pair == pair_number && there->queue_id == queue_id) return number;
    }
    return NO_NUMBER;
}

static uint32_t find(const cmq_offsets *offsets, const cmq_offset_key *key, uint64_t hash)
{
    return find_entry(offsets, find_pair(offsets, key, hash), key->queue_id);
}

/* ---- the chain of changes ---- */

static uint32_t *link_of(const cmq_offsets *offsets, uint32_t link)
{
    return (link & LINK_PAIR) != 0 ? &offsets->pairs[link & ~LINK_PAIR]->next_changed
                                   : &entry_at(offsets, link)->next_changed;
}

static void note_change(cmq_offsets *offsets, uint32_t link)
{
    uint32_t *next = link_of(offsets, link);
    if (*next != LINK_OUTSIDE) return;
    *next = LINK_END;
    if (offsets->changed_first == LINK_END) offsets->changed_first = link;
    else *link_of(offsets, offsets->changed_last) = link;
    offsets->changed_last = link;
}

static uint32_t take_first_change(cmq_offsets *offsets)
{
    const uint32_t link = offsets->changed_first;
    uint32_t *next = link_of(offsets, link);
    offsets->changed_first = *next;
    *next = LINK_OUTSIDE;
    return link;
}

/* ---- making and freeing ---- */

static cmq_status CMQ_MUST_CHECK more_entries(cmq_offsets *offsets)
{
    if (offsets->entries_free != NO_NUMBER || offsets->entries_made < offsets->chunk_count * CHUNK_ENTRIES)
        return CMQ_OK;
    entry **grown = realloc(offsets->chunks, (offsets->chunk_count + 1) * sizeof *grown);
    if (grown != NULL) offsets->chunks = grown;
    entry *chunk = grown == NULL ? NULL : malloc(CHUNK_ENTRIES * sizeof *chunk);
    if (chunk == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for more offsets");
    offsets->chunks[offsets->chunk_count++] = chunk;
    return CMQ_OK;
}

static uint32_t take_entry(cmq_offsets *offsets)
{
    const uint32_t number = offsets->entries_free != NO_NUMBER ? offsets->entries_free : offsets->entries_made++;
    if (offsets->entries_free != NO_NUMBER) offsets->entries_free = entry_at(offsets, number)->next_of_pair;
    offsets->entries_held++;
    return number;
}

static void free_entry(cmq_offsets *offsets, uint32_t number)
{
    entry *gone = entry_at(offsets, number);
    gone->pair = NO_NUMBER;
    gone->next_of_pair = offsets->entries_free;
    offsets->entries_free = number;
    offsets->entries_held--;
}

/* A number that is free, and room for it. */
static cmq_status CMQ_MUST_CHECK more_pairs(cmq_offsets *offsets)
{
    if (offsets->pair_numbers_free_count > 0 || offsets->pairs_made < offsets->pair_capacity) return CMQ_OK;
    const uint32_t capacity = offsets->pair_capacity == 0 ? 64 : offsets->pair_capacity * 2;
    pair **grown = realloc(offsets->pairs, capacity * sizeof *grown);
    if (grown != NULL) offsets->pairs = grown;
    uint32_t *numbers = grown == NULL ? NULL : realloc(offsets->pair_numbers_free, capacity * sizeof *numbers);
    if (numbers == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for the names of %u groups in topics", capacity);
    offsets->pair_numbers_free = numbers;
    memset(grown + offsets->pair_capacity, 0, (capacity - offsets->pair_capacity) * sizeof *grown);
    offsets->pair_capacity = capacity;
    return CMQ_OK;
}

static uint32_t take_pair_number(cmq_offsets *offsets)
{
    return offsets->pair_numbers_free_count > 0 ? offsets->pair_numbers_free[--offsets->pair_numbers_free_count]
                                                : offsets->pairs_made++;
}

static cmq_status CMQ_MUST_CHECK make_pair(cmq_offsets *offsets, const cmq_offset_key *key, uint64_t hash,
                                           uint32_t *number_out)
{
    cmq_offset_group *group;
    cmq_status status = more_pairs(offsets);
    if (status == CMQ_OK) status = cmq_number_places_reserve(&offsets->pair_places, hash_of_pair, offsets);
    if (status == CMQ_OK) status = cmq_offset_groups_refer(&offsets->groups, key->group, &group);
    if (status != CMQ_OK) return status;
    pair *made = malloc(sizeof *made + key->group.bytes + key->topic.bytes);
    if (made == NULL) {
        cmq_offset_groups_release(&offsets->groups, group);
        return cmq_fail(CMQ_ERR_MEMORY, "no memory for the names of a group and its topic");
    }
    *made = (pair){.hash = hash,
                   .first = NO_NUMBER,
                   .group = group,
                   .next_changed = LINK_OUTSIDE,
                   .group_bytes = (uint16_t)key->group.bytes,
                   .topic_bytes = (uint16_t)key->topic.bytes};
    memcpy(made->names, key->group.data, key->group.bytes);
    memcpy(made->names + key->group.bytes, key->topic.data, key->topic.bytes);
    *number_out = take_pair_number(offsets);
    offsets->pairs[*number_out] = made;
    cmq_number_places_put(&offsets->pair_places, hash, *number_out);
    return CMQ_OK;
}

/* A pair that nothing refers to any more. */
static void free_pair_if_unused(cmq_offsets *offsets, uint32_t number)
{
    pair *of = offsets->pairs[number];
    if (of->first != NO_NUMBER || of->next_changed != LINK_OUTSIDE) return;
    cmq_number_places_drop(&offsets->pair_places, hash_of_pair, offsets, number);
    offsets->pairs[number] = NULL;
    offsets->pair_numbers_free[offsets->pair_numbers_free_count++] = number;
    cmq_offset_groups_release(&offsets->groups, of->group);
    free(of);
}

static cmq_status CMQ_MUST_CHECK make_entry(cmq_offsets *offsets, const cmq_offset_key *key, uint64_t hash,
                                            uint32_t pair_number, cmq_offset_asker asker, uint32_t *number_out)
{
    cmq_offset_maker *by = cmq_offset_makers_find(&offsets->makers, asker);
    const uint32_t unused = offsets->entries_max - offsets->entries_held;
    if (unused == 0) return cmq_fail(CMQ_ERR_LIMIT, "there are offsets of %u queues already", offsets->entries_max);
    cmq_status status = offsets->shared_out ? cmq_offset_groups_check(&offsets->groups, key->group, unused) : CMQ_OK;
    if (status == CMQ_OK && offsets->shared_out) status = cmq_offset_makers_check(by, unused);
    if (status == CMQ_OK) status = more_entries(offsets);
    if (status == CMQ_OK) status = cmq_number_places_reserve(&offsets->entry_places, hash_of_entry, offsets);
    if (status == CMQ_OK && pair_number == NO_NUMBER) status = make_pair(offsets, key, hash, &pair_number);
    if (status != CMQ_OK) return status;
    pair *of = offsets->pairs[pair_number];
    const uint32_t number = take_entry(offsets);
    *entry_at(offsets, number) = (entry){.pair = pair_number,
                                         .queue_id = key->queue_id,
                                         .offset = CMQ_OFFSETS_NONE,
                                         .pull_offset = CMQ_OFFSETS_NONE,
                                         .next_changed = LINK_OUTSIDE,
                                         .next_of_pair = of->first};
    of->first = number;
    offsets->entries_live++;
    of->group->entries++;
    if (by != NULL) by->made++;
    cmq_number_places_put(&offsets->entry_places, entry_hash(pair_number, key->queue_id), number);
    *number_out = number;
    return CMQ_OK;
}

static cmq_status CMQ_MUST_CHECK require(cmq_offsets *offsets, const cmq_offset_key *key, uint64_t hash,
                                         cmq_offset_asker asker, uint32_t *number_out)
{
    const uint32_t pair_number = find_pair(offsets, key, hash);
    *number_out = find_entry(offsets, pair_number, key->queue_id);
    return *number_out != NO_NUMBER ? CMQ_OK : make_entry(offsets, key, hash, pair_number, asker, number_out);
}

/* ---- resets ---- */

static bool is_reset(const entry *of) { return of->pull_offset == RESET_PENDING; }

static void set_reset(cmq_offsets *offsets, entry *of, bool pending)
{
    if (is_reset(of) == pending) return;
    of->pull_offset = pending ? RESET_PENDING : CMQ_OFFSETS_NONE;
    cmq_offset_fences_count(&offsets->fences, pending);
}

static cmq_offset_fence *make_fence(cmq_offsets *offsets, uint32_t number)
{
    if (offsets->fences.count == CMQ_OFFSETS_FENCES_MAX) {
        const cmq_offset_fence oldest = offsets->fences.of[0];
        if (!oldest.known) set_reset(offsets, entry_at(offsets, oldest.number), false);
        cmq_offset_fences_drop(&offsets->fences, 0);
    }
    return cmq_offset_fences_make(&offsets->fences, number);
}

/* ---- life ---- */

cmq_status cmq_offsets_create(cmq_offsets **offsets_out, uint32_t entries_max)
{
    *offsets_out = NULL;
    if (entries_max > ENTRIES_LIMIT)
        return cmq_fail(CMQ_ERR_ARGUMENT, "at most %u offsets can be kept, not %u", ENTRIES_LIMIT, entries_max);
    cmq_offsets *made = calloc(1, sizeof *made);
    if (made == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for consumer offsets");
    made->entries_max = entries_max == 0 ? CMQ_OFFSETS_ENTRIES_MAX : entries_max;
    made->entries_free = NO_NUMBER;
    made->changed_first = made->changed_last = LINK_END;
    pthread_mutex_init(&made->mutex, NULL);
    *offsets_out = made;
    return CMQ_OK;
}

void cmq_offsets_destroy(cmq_offsets *offsets)
{
    if (offsets == NULL) return;
    for (uint32_t i = 0; i < offsets->chunk_count; i++) free(offsets->chunks[i]);
    for (uint32_t i = 0; i < offsets->pair_capacity; i++) free(offsets->pairs[i]);
    cmq_offset_groups_free(&offsets->groups);
    free(offsets->chunks);
    free(offsets->pairs);
    free(offsets->pair_numbers_free);
    free(offsets->entry_places.at);
    free(offsets->pair_places.at);
    pthread_mutex_destroy(&offsets->mutex);
    free(offsets);
}

/* ---- the loops ---- */

static bool is_name(cmq_slice name) { return name.bytes > 0 && name.bytes <= CMQ_OFFSETS_NAME_BYTES_MAX; }

static bool is_key(const cmq_offset_key *key)
{
    return is_name(key->group) && is_name(key->topic) && key->queue_id >= 0;
}

static cmq_status CMQ_MUST_CHECK check(const cmq_offset_key *key, int64_t offset)
{
    if (!is_name(key->group) || !is_name(key->topic))
        return cmq_fail(CMQ_ERR_ARGUMENT, "a group and a topic have 1 to %u bytes, not %zu and %zu",
                        CMQ_OFFSETS_NAME_BYTES_MAX, key->group.bytes, key->topic.bytes);
    if (key->queue_id < 0) return cmq_fail(CMQ_ERR_ARGUMENT, "queue id %d is negative", (int)key->queue_id);
    return offset >= 0 ? CMQ_OK : cmq_fail(CMQ_ERR_ARGUMENT, "offset %lld is negative", (long long)offset);
}

static cmq_status CMQ_MUST_CHECK commit(cmq_offsets *offsets, uint32_t number, int64_t offset)
{
    entry *of = entry_at(offsets, number);
    if (is_reset(of)) return CMQ_AGAIN;
    offsets->commits++;
    if (of->offset == offset) return CMQ_OK;
    of->offset = offset;
    note_change(offsets, number);
    return CMQ_OK;
}

#define NOBODY ((cmq_offset_asker){0})

static cmq_status CMQ_MUST_CHECK commit_of(cmq_offsets *offsets, uint32_t number, int64_t offset,
                                           cmq_offset_asker asker)
{
    if (asker.conn != 0 && offsets->fences.count > 0) {
        const cmq_offset_fence *found = cmq_offset_fences_find(&offsets->fences, number, asker.now_ns);
        if (found != NULL && found->conn != asker.conn) return CMQ_AGAIN;
    }
    return commit(offsets, number, offset);
}

static cmq_status CMQ_MUST_CHECK commit_key(cmq_offsets *offsets, const cmq_offset_key *key, int64_t offset,
                                            bool forward, cmq_offset_asker asker)
{
    uint32_t number;
    cmq_status status = check(key, offset);
    if (status != CMQ_OK) return status;
    const uint64_t hash = pair_hash(key->group, key->topic);
    pthread_mutex_lock(&offsets->mutex);
    status = require(offsets, key, hash, asker, &number);
    if (status == CMQ_OK && !(forward && entry_at(offsets, number)->offset > offset))
        status = commit_of(offsets, number, offset, asker);
    pthread_mutex_unlock(&offsets->mutex);
    return status;
}

cmq_status cmq_offsets_commit(cmq_offsets *offsets, const cmq_offset_key *key, int64_t offset)
{
    return commit_key(offsets, key, offset, false, NOBODY);
}
cmq_status cmq_offsets_advance(cmq_offsets *offsets, const cmq_offset_key *key, int64_t offset)
{
    return commit_key(offsets, key, offset, true, NOBODY);
}

cmq_status cmq_offsets_commit_of(cmq_offsets *offsets, const cmq_offset_key *key, int64_t offset,
                                 cmq_offset_asker asker)
{
    return commit_key(offsets, key, offset, false, asker);
}

cmq_status cmq_offsets_begin(cmq_offsets *offsets, const cmq_offset_key *key, int64_t offset, cmq_offset_asker asker)
{
    uint32_t number;
    cmq_status status = check(key, offset);
    if (status != CMQ_OK) return status;
    pthread_mutex_lock(&offsets->mutex);
    status = require(offsets, key, pair_hash(key->group, key->topic), asker, &number);
    if (status == CMQ_OK && entry_at(offsets, number)->offset == CMQ_OFFSETS_NONE)
        status = commit(offsets, number, offset);
    pthread_mutex_unlock(&offsets->mutex);
    return status == CMQ_AGAIN ? CMQ_OK : status;
}

void cmq_offsets_share_out(cmq_offsets *offsets)
{
    pthread_mutex_lock(&offsets->mutex);
    offsets->shared_out = true;
    pthread_mutex_unlock(&offsets->mutex);
}

cmq_status cmq_offsets_pulled(cmq_offsets *offsets, const cmq_offset_key *key, int64_t next_pull, int64_t committed,
                              cmq_offset_asker asker)
{
    uint32_t number;
    cmq_status status = check(key, next_pull);
    if (status != CMQ_OK) return status;
    const uint64_t hash = pair_hash(key->group, key->topic);
    pthread_mutex_lock(&offsets->mutex);
    status = require(offsets, key, hash, asker, &number);
    if (status == CMQ_OK) {
        entry *of = entry_at(offsets, number);
        if (!is_reset(of)) of->pull_offset = next_pull;
        if (committed >= 0) status = commit_of(offsets, number, committed, asker);
    }
    pthread_mutex_unlock(&offsets->mutex);
    return status;
}

static int64_t pull_offset_of(const entry *of) { return is_reset(of) ? CMQ_OFFSETS_NONE : of->pull_offset; }

static int64_t read_offset(cmq_offsets *offsets, const cmq_offset_key *key, bool pulled)
{
    if (!is_key(key)) return CMQ_OFFSETS_NONE;
    const uint64_t hash = pair_hash(key->group, key->topic);
    pthread_mutex_lock(&offsets->mutex);
    const uint32_t number = find(offsets, key, hash);
    const entry *of = number == NO_NUMBER ? NULL : entry_at(offsets, number);
    const int64_t offset = of == NULL ? CMQ_OFFSETS_NONE : pulled ? pull_offset_of(of) : of->offset;
    pthread_mutex_unlock(&offsets->mutex);
    return offset;
}

/* A pending reset is what is committed, as commits are ignored meanwhile. */
int64_t cmq_offsets_query(cmq_offsets *offsets, const cmq_offset_key *key) { return read_offset(offsets, key, false); }
int64_t cmq_offsets_pull_offset(cmq_offsets *offsets, const cmq_offset_key *key)
{
    return read_offset(offsets, key, true);
}

static bool has_resets(cmq_offsets *offsets)
{
    return atomic_load_explicit(&offsets->fences.resets, memory_order_acquire) != 0;
}

int64_t cmq_offsets_take_reset(cmq_offsets *offsets, const cmq_offset_key *key)
{
    int64_t offset = CMQ_OFFSETS_NONE;
    if (!has_resets(offsets) || !is_key(key)) return offset;
    const uint64_t hash = pair_hash(key->group, key->topic);
    pthread_mutex_lock(&offsets->mutex);
    const uint32_t number = find(offsets, key, hash);
    entry *of = number == NO_NUMBER ? NULL : entry_at(offsets, number);
    if (of != NULL && is_reset(of)) {
        offset = of->offset;
        set_reset(offsets, of, false);
        cmq_offset_fences_remove(&offsets->fences, number);
    }
    pthread_mutex_unlock(&offsets->mutex);
    return offset;
}

/* The entry's reset is pending, or was lately. */
static int64_t offer_reset(cmq_offsets *offsets, uint32_t number, int64_t from, cmq_offset_asker asker)
{
    entry *of = entry_at(offsets, number);
    cmq_offset_fence *found = cmq_offset_fences_find(&offsets->fences, number, asker.now_ns);
    if (!is_reset(of)) {
        if (found == NULL) return CMQ_OFFSETS_NONE;
        /* A former owner that missed the reset: its progress would pass the messages to be redelivered. */
        if (from != of->offset) return cmq_offset_fence_inform(found, asker.conn) ? of->offset : CMQ_OFFSETS_NONE;
        cmq_offset_fence_set_known(found, asker);   /* the next owner begins where the group is */
        return CMQ_OFFSETS_NONE;
    }
    if (found == NULL) found = make_fence(offsets, number);
    if (found->conn != asker.conn) found->sends = 0;
    found->conn = asker.conn;
    if (from != of->offset && found->sends++ < CMQ_OFFSET_RESET_SENDS_MAX) return of->offset;
    set_reset(offsets, of, false);
    cmq_offset_fence_set_known(found, asker);
    return CMQ_OFFSETS_NONE;
}

int64_t cmq_offsets_reset_for_pull(cmq_offsets *offsets, const cmq_offset_key *key, int64_t from,
                                   cmq_offset_asker asker)
{
    if (!has_resets(offsets) || !is_key(key)) return CMQ_OFFSETS_NONE;
    const uint64_t hash = pair_hash(key->group, key->topic);
    pthread_mutex_lock(&offsets->mutex);
    const uint32_t number = find(offsets, key, hash);
    const int64_t offset = number == NO_NUMBER ? CMQ_OFFSETS_NONE : offer_reset(offsets, number, from, asker);
    pthread_mutex_unlock(&offsets->mutex);
    return offset;
}

/* ---- the control plane ---- */

cmq_status cmq_offsets_reset(cmq_offsets *offsets, const cmq_offset_key *key, int64_t offset, cmq_offset_asker asker)
{
    uint32_t number;
    cmq_status status = check(key, offset);
    if (status != CMQ_OK) return status;
    const uint64_t hash = pair_hash(key->group, key->topic);
    pthread_mutex_lock(&offsets->mutex);
    status = require(offsets, key, hash, asker, &number);
    if (status == CMQ_OK) {
        set_reset(offsets, entry_at(offsets, number), true);
        cmq_offset_fences_remove(&offsets->fences, number);
        entry_at(offsets, number)->offset = offset;
        note_change(offsets, number);
    }
    pthread_mutex_unlock(&offsets->mutex);
    return status;
}

/* All entries of a pair; returns how many had a committed offset. */
static uint32_t remove_pair(cmq_offsets *offsets, uint32_t pair_number)
{
    pair *of = offsets->pairs[pair_number];
    uint32_t committed = 0;
    for (uint32_t number = of->first, next; number != NO_NUMBER; number = next) {
        entry *gone = entry_at(offsets, number);
        next = gone->next_of_pair;
        committed += gone->offset != CMQ_OFFSETS_NONE;
        set_reset(offsets, gone, false);
        cmq_offset_fences_remove(&offsets->fences, number);
        cmq_number_places_drop(&offsets->entry_places, hash_of_entry, offsets, number);
        offsets->entries_live--;
        of->group->entries--;
        if (gone->next_changed == LINK_OUTSIDE) free_entry(offsets, number);
        else gone->pair = NO_NUMBER;
    }
    of->first = NO_NUMBER;
    if (committed > 0) note_change(offsets, pair_number | LINK_PAIR);
    free_pair_if_unused(offsets, pair_number);
    return committed;
}

uint32_t cmq_offsets_remove(cmq_offsets *offsets, cmq_slice group, cmq_slice topic)
{
    uint32_t committed = 0;
    if (group.bytes == 0 && topic.bytes == 0) return 0;
    pthread_mutex_lock(&offsets->mutex);
    for (uint32_t i = 0; i < offsets->pair_capacity; i++) {
        const pair *of = offsets->pairs[i];
        const bool wanted = of != NULL && (group.bytes == 0 || cmq_slice_equal(group_of(of), group)) &&
                            (topic.bytes == 0 || cmq_slice_equal(topic_of(of), topic));
        if (wanted) committed += remove_pair(offsets, i);
    }
    pthread_mutex_unlock(&offsets->mutex);
    return committed;
}

int64_t cmq_offsets_version(cmq_offsets *offsets)
{
    pthread_mutex_lock(&offsets->mutex);
    const int64_t version = offsets->commits / CMQ_OFFSETS_VERSION_STEP;
    pthread_mutex_unlock(&offsets->mutex);
    return version;
}

uint32_t cmq_offsets_count(cmq_offsets *offsets)
{
    pthread_mutex_lock(&offsets->mutex);
    const uint32_t count = offsets->entries_live;
    pthread_mutex_unlock(&offsets->mutex);
    return count;
}

/* ---- changes ---- */

static bool has_room(const cmq_offset_items *items, uint32_t text_used, const pair *of)
{
    return items->count < items->capacity &&
           items->text_bytes - text_used >= (uint32_t)of->group_bytes + of->topic_bytes;
}

/* There is room. `of` NULL: the pair was removed. */
static void give(cmq_offset_items *items, uint32_t *text_used, const pair *in, const entry *of)
{
    uint8_t *text = items->text + *text_used;
    memcpy(text, in->names, (size_t)in->group_bytes + in->topic_bytes);
    *text_used += (uint32_t)in->group_bytes + in->topic_bytes;
    items->items[items->count++] =
        (cmq_offset_item){.group = {.data = text, .bytes = in->group_bytes},
                          .topic = {.data = text + in->group_bytes, .bytes = in->topic_bytes},
                          .queue_id = of != NULL ? of->queue_id : -1,
                          .offset = of != NULL ? of->offset : CMQ_OFFSETS_NONE,
                          .pull_offset = of != NULL ? pull_offset_of(of) : CMQ_OFFSETS_NONE};
}

void cmq_offsets_take_changes(cmq_offsets *offsets, cmq_offset_items *items)
{
    uint32_t text_used = 0;
    items->count = 0;
    CMQ_ASSERT(items->capacity > 0 && items->text_bytes >= CMQ_OFFSETS_TEXT_MIN);
    pthread_mutex_lock(&offsets->mutex);
    while (offsets->changed_first != LINK_END) {
        const uint32_t link = offsets->changed_first;
        const entry *of = (link & LINK_PAIR) != 0 ? NULL : entry_at(offsets, link);
        const bool dead = of != NULL && of->pair == NO_NUMBER;
        const uint32_t in = dead ? NO_NUMBER : of != NULL ? of->pair : link & ~LINK_PAIR;
        if (!dead && !has_room(items, text_used, offsets->pairs[in])) break;
        take_first_change(offsets);
        if (dead) free_entry(offsets, link);
        else give(items, &text_used, offsets->pairs[in], of);
        if (!dead) free_pair_if_unused(offsets, in);
    }
    pthread_mutex_unlock(&offsets->mutex);
}
