/* cmq_pop_unfinished: see cmq_pop_unfinished.h.
 *
 * Entries lie in a ring, differences in another; both in the order of the queue, and both grow by doubling. The table
 * is open addressing with linear probing over places in the ring; a place that goes is filled from behind, so there are
 * no tombstones.
 */
#include "broker/pop/revive/cmq_pop_unfinished.h"

#include <stdlib.h>

#include "base/cmq_assert.h"
#include "base/cmq_bitmap.h"
#include "base/cmq_name_hash.h"

#define RING_FIRST 64u
#define RING_MAX (1u << 30)
#define NAME_BUCKETS 256u

/* The names of checkpoints, kept once. */
typedef struct names {
    struct names *next;
    uint64_t hash;
    uint32_t users;
    cmq_slice topic, group, broker;
    uint8_t bytes[];
} names;

typedef struct entry {
    names *names;
    int64_t start_offset, pop_ms, invisible_ms, revive_offset, log_end;
    uint32_t hash;
    uint32_t bits;
    int32_t queue_id;
    uint32_t diffs_at;              /* in their ring */
    int32_t re_puts;
    uint8_t num, revived;
    bool has_diffs;
} entry;

struct cmq_pop_unfinished {
    entry *ring;
    uint32_t slots, head, count;    /* slots is a power of two */
    uint32_t *places;               /* 2 * slots of them: place in the ring + 1, or 0 */
    int32_t *diffs;
    uint32_t diff_slots, diff_head, diff_count;
    names *buckets[NAME_BUCKETS];
};

/* ---- life ---- */

cmq_status cmq_pop_unfinished_create(cmq_pop_unfinished **unfinished_out)
{
    *unfinished_out = NULL;
    cmq_pop_unfinished *made = calloc(1, sizeof *made);
    if (made == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for unfinished checkpoints");
    made->slots = RING_FIRST;
    made->diff_slots = RING_FIRST;
    made->ring = malloc(made->slots * sizeof *made->ring);
    made->places = calloc(2 * (size_t)made->slots, sizeof *made->places);
    made->diffs = malloc(made->diff_slots * sizeof *made->diffs);
    if (made->ring == NULL || made->places == NULL || made->diffs == NULL) {
        cmq_pop_unfinished_destroy(made);
        return cmq_fail(CMQ_ERR_MEMORY, "no memory for unfinished checkpoints");
    }
    *unfinished_out = made;
    return CMQ_OK;
}

void cmq_pop_unfinished_destroy(cmq_pop_unfinished *u)
{
    if (u == NULL) return;
    for (uint32_t i = 0; i < NAME_BUCKETS; i++)
        for (names *at = u->buckets[i], *next; at != NULL; at = next) {
            next = at->next;
            free(at);
        }
    free(u->ring);
    free(u->places);
    free(u->diffs);
    free(u);
}

uint32_t cmq_pop_unfinished_count(const cmq_pop_unfinished *u) { return u->count; }

/* ---- names ---- */

static uint64_t hash_names(cmq_slice topic, cmq_slice group, cmq_slice broker)
{
    return (cmq_name_hash(topic) * 3 + cmq_name_hash(group)) * 5 + cmq_name_hash(broker);
}

static names *find_names(const cmq_pop_unfinished *u, uint64_t hash, cmq_slice topic, cmq_slice group, cmq_slice broker)
{
    names *at = u->buckets[hash % NAME_BUCKETS];
    while (at != NULL && !(at->hash == hash && cmq_slice_equal(at->topic, topic) && cmq_slice_equal(at->group, group) &&
                           cmq_slice_equal(at->broker, broker)))
        at = at->next;
    return at;
}

static cmq_slice keep(uint8_t **at, cmq_slice name)
{
    const cmq_slice kept = {.data = *at, .bytes = name.bytes};
    if (name.bytes > 0) memcpy(*at, name.data, name.bytes);
    *at += name.bytes;
    return kept;
}

/* NULL: no memory. */
static names *use_names(cmq_pop_unfinished *u, cmq_slice topic, cmq_slice group, cmq_slice broker)
{
    const uint64_t hash = hash_names(topic, group, broker);
    names *found = find_names(u, hash, topic, group, broker);
    if (found == NULL) {
        found = malloc(sizeof *found + topic.bytes + group.bytes + broker.bytes);
        if (found == NULL) return NULL;
        uint8_t *at = found->bytes;
        found->next = u->buckets[hash % NAME_BUCKETS];
        found->hash = hash;
        found->users = 0;
        found->topic = keep(&at, topic);
        found->group = keep(&at, group);
        found->broker = keep(&at, broker);
        u->buckets[hash % NAME_BUCKETS] = found;
    }
    found->users++;
    return found;
}

static void let_go(cmq_pop_unfinished *u, names *of)
{
    if (--of->users > 0) return;
    names **at = &u->buckets[of->hash % NAME_BUCKETS];
    while (*at != of) at = &(*at)->next;
    *at = of->next;
    free(of);
}

/* ---- the table ---- */

static uint32_t hash_key(uint64_t names_hash, int32_t queue_id, int64_t start_offset, int64_t pop_ms)
{
    uint64_t hash = (names_hash ^ (uint64_t)start_offset) * CMQ_NAMEHASH_MULTIPLIER;
    hash = (hash ^ hash >> 29 ^ (uint64_t)pop_ms) * CMQ_NAMEHASH_MULTIPLIER;
    hash = (hash ^ hash >> 29 ^ (uint32_t)queue_id) * CMQ_NAMEHASH_MULTIPLIER;
    return (uint32_t)(hash >> 32);
}

static void put_place(cmq_pop_unfinished *u, uint32_t slot)
{
    const uint32_t mask = 2 * u->slots - 1;
    uint32_t at = u->ring[slot].hash & mask;
    while (u->places[at] != 0) at = (at + 1) & mask;
    u->places[at] = slot + 1;
}

static void remove_place(cmq_pop_unfinished *u, uint32_t slot)
{
    const uint32_t mask = 2 * u->slots - 1;
    uint32_t hole = u->ring[slot].hash & mask;
    while (u->places[hole] != slot + 1) hole = (hole + 1) & mask;
    for (uint32_t at = (hole + 1) & mask; u->places[at] != 0; at = (at + 1) & mask) {
        const uint32_t wanted = u->ring[u->places[at] - 1].hash & mask;
        if (((at - wanted) & mask) < ((at - hole) & mask)) continue;   /* it lies behind the hole, and belongs there */
        u->places[hole] = u->places[at];
        hole = at;
    }
    u->places[hole] = 0;
}

static inline entry *entry_at(const cmq_pop_unfinished *u, uint32_t index)
{
    CMQ_ASSERT(index < u->count);
    return &u->ring[(u->head + index) & (u->slots - 1)];
}

/* ---- growing ---- */

static cmq_status CMQ_MUST_CHECK grow_ring(cmq_pop_unfinished *u)
{
    if (u->count < u->slots) return CMQ_OK;
    if (u->slots == RING_MAX)
        return cmq_fail(CMQ_ERR_MEMORY, "%u unfinished checkpoints of one revive queue", u->count);
    entry *ring = malloc(2 * (size_t)u->slots * sizeof *ring);
    uint32_t *places = calloc(4 * (size_t)u->slots, sizeof *places);
    if (ring == NULL || places == NULL) {
        free(ring);
        free(places);
        return cmq_fail(CMQ_ERR_MEMORY, "no memory for %u unfinished checkpoints", u->count);
    }
    for (uint32_t i = 0; i < u->count; i++) ring[i] = *entry_at(u, i);
    free(u->ring);
    free(u->places);
    u->ring = ring;
    u->places = places;
    u->head = 0;
    u->slots *= 2;
    for (uint32_t i = 0; i < u->count; i++) put_place(u, i);
    return CMQ_OK;
}

static cmq_status CMQ_MUST_CHECK grow_diffs(cmq_pop_unfinished *u, uint32_t more)
{
    if (u->diff_slots - u->diff_count >= more) return CMQ_OK;
    if (u->diff_slots == RING_MAX)
        return cmq_fail(CMQ_ERR_MEMORY, "%u differences of unfinished checkpoints", u->diff_count);
    int32_t *diffs = malloc(2 * (size_t)u->diff_slots * sizeof *diffs);
    if (diffs == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for differences of unfinished checkpoints");
    /* The order of the entries gives the start of each. */
    uint32_t at = 0;
    for (uint32_t i = 0; i < u->count; i++) {
        entry *of = entry_at(u, i);
        if (!of->has_diffs) continue;
        for (uint32_t k = 0; k < of->num; k++) diffs[at + k] = u->diffs[(of->diffs_at + k) & (u->diff_slots - 1)];
        of->diffs_at = at;
        at += of->num;
    }
    free(u->diffs);
    u->diffs = diffs;
    u->diff_head = 0;
    u->diff_slots *= 2;
    return CMQ_OK;
}

/* ---- use ---- */

static bool follow_each_other(const cmq_pop_checkpoint *checkpoint)
{
    if (checkpoint->diffs == NULL) return true;
    for (uint32_t i = 0; i < checkpoint->num; i++)
        if (checkpoint->diffs[i] != (int32_t)i) return false;
    return true;
}

static int32_t index_of(const cmq_pop_unfinished *u, const entry *of, int64_t offset)
{
    const int64_t diff = offset - of->start_offset;
    if (!of->has_diffs) return diff >= 0 && diff < of->num ? (int32_t)diff : -1;
    for (uint32_t i = 0; i < of->num; i++)
        if (u->diffs[(of->diffs_at + i) & (u->diff_slots - 1)] == diff) return (int32_t)i;
    return -1;
}

static bool is_named(const entry *of, const names *by, int32_t queue_id, int64_t start_offset, int64_t pop_ms)
{
    return of->names == by && of->queue_id == queue_id && of->start_offset == start_offset && of->pop_ms == pop_ms;
}

/* The messages of a checkpoint that another one of the same name has already: a checkpoint that the timer delivers
 * again after a kill is revived once, and so is one that a client asked for twice, whatever invisible time it gave. One
 * that was put again is another, though its name may be the same. So entries of one name have no message in common, and
 * are few: a search by name stays short, however often a name comes. */
static uint32_t known_bits(const cmq_pop_unfinished *u, const names *of, const cmq_pop_checkpoint *checkpoint,
                           uint32_t hash)
{
    uint32_t bits = 0;
    const uint32_t mask = 2 * u->slots - 1;
    for (uint32_t at = hash & mask; u->places[at] != 0; at = (at + 1) & mask) {
        const entry *one = &u->ring[u->places[at] - 1];
        if (!is_named(one, of, checkpoint->queue_id, checkpoint->start_offset, checkpoint->pop_ms) ||
            one->re_puts != checkpoint->re_puts)
            continue;
        for (uint32_t i = 0; i < checkpoint->num; i++)
            if (index_of(u, one, cmq_pop_offset_at(checkpoint, i)) >= 0) bits = cmq_bits_set(bits, i);
    }
    return bits;
}

cmq_status cmq_pop_unfinished_add(cmq_pop_unfinished *u, const cmq_pop_checkpoint *checkpoint)
{
    CMQ_ASSERT(checkpoint->num <= CMQ_POP_MESSAGES_MAX);
    const bool has_diffs = !follow_each_other(checkpoint);
    cmq_status status = grow_ring(u);
    if (status == CMQ_OK && has_diffs) status = grow_diffs(u, checkpoint->num);
    if (status != CMQ_OK) return status;
    names *of = use_names(u, checkpoint->topic, checkpoint->group, checkpoint->broker);
    if (of == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for the names of an unfinished checkpoint");
    const uint32_t slot = (u->head + u->count) & (u->slots - 1),
                   hash = hash_key(of->hash, checkpoint->queue_id, checkpoint->start_offset, checkpoint->pop_ms);
    const uint32_t known = known_bits(u, of, checkpoint, hash);
    if (u->count > 0 && known == cmq_bits_first(checkpoint->num)) {
        /* Nothing of it is its own: it is done when all that was read before it is. */
        let_go(u, of);
        entry_at(u, u->count - 1)->revive_offset = checkpoint->revive_offset;
        return CMQ_OK;
    }
    u->ring[slot] = (entry){
        .names = of,
        .start_offset = checkpoint->start_offset,
        .pop_ms = checkpoint->pop_ms,
        .invisible_ms = checkpoint->invisible_ms,
        .revive_offset = checkpoint->revive_offset,
        .log_end = checkpoint->log_end,
        .hash = hash,
        .bits = checkpoint->bits | known,
        .queue_id = checkpoint->queue_id,
        .diffs_at = (u->diff_head + u->diff_count) & (u->diff_slots - 1),
        .re_puts = checkpoint->re_puts,
        .num = checkpoint->num,
        .has_diffs = has_diffs,
    };
    if (has_diffs) {
        for (uint32_t i = 0; i < checkpoint->num; i++)
            u->diffs[(u->ring[slot].diffs_at + i) & (u->diff_slots - 1)] = checkpoint->diffs[i];
        u->diff_count += checkpoint->num;
    }
    u->count++;
    put_place(u, slot);
    return CMQ_OK;
}

bool cmq_pop_unfinished_ack(cmq_pop_unfinished *u, const cmq_pop_ack *ack, int64_t offset)
{
    const uint64_t names_hash = hash_names(ack->topic, ack->group, ack->broker);
    const names *of = find_names(u, names_hash, ack->topic, ack->group, ack->broker);
    if (of == NULL) return false;
    const uint32_t hash = hash_key(names_hash, ack->queue_id, ack->start_offset, ack->pop_ms), mask = 2 * u->slots - 1;
    bool found = false;
    for (uint32_t at = hash & mask; u->places[at] != 0; at = (at + 1) & mask) {
        entry *one = &u->ring[u->places[at] - 1];
        if (!is_named(one, of, ack->queue_id, ack->start_offset, ack->pop_ms)) continue;
        const int32_t index = index_of(u, one, offset);
        found |= index >= 0;
        if (index >= 0) one->bits = cmq_bits_set(one->bits, (uint32_t)index);
    }
    return found;
}

void cmq_pop_unfinished_at(const cmq_pop_unfinished *u, uint32_t index, int32_t diffs[CMQ_POP_MESSAGES_MAX],
                           cmq_pop_checkpoint *checkpoint_out)
{
    const entry *of = entry_at(u, index);
    if (of->has_diffs)
        for (uint32_t i = 0; i < of->num; i++) diffs[i] = u->diffs[(of->diffs_at + i) & (u->diff_slots - 1)];
    *checkpoint_out = (cmq_pop_checkpoint){
        .start_offset = of->start_offset,
        .pop_ms = of->pop_ms,
        .invisible_ms = of->invisible_ms,
        .revive_offset = of->revive_offset,
        .bits = of->bits,
        .num = of->num,
        .queue_id = of->queue_id,
        .topic = of->names->topic,
        .group = of->names->group,
        .broker = of->names->broker,
        .diffs = of->has_diffs ? diffs : NULL,
        .re_puts = of->re_puts,
        .log_end = of->log_end,
    };
}

void cmq_pop_unfinished_finish(cmq_pop_unfinished *u, uint32_t index, uint32_t bit, bool revived)
{
    entry *of = entry_at(u, index);
    of->bits = cmq_bits_set(of->bits, bit);
    of->revived = (uint8_t)(of->revived + revived);
}

uint32_t cmq_pop_unfinished_revived(const cmq_pop_unfinished *u, uint32_t index) { return entry_at(u, index)->revived; }

void cmq_pop_unfinished_drop(cmq_pop_unfinished *u)
{
    entry *first = entry_at(u, 0);
    remove_place(u, u->head);
    let_go(u, first->names);
    if (first->has_diffs) {
        u->diff_head = (u->diff_head + first->num) & (u->diff_slots - 1);
        u->diff_count -= first->num;
    }
    u->head = (u->head + 1) & (u->slots - 1);
    u->count--;
}
