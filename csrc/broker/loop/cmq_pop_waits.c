/* cmq_pop_waits: see cmq_pop_waits.h.
 *
 * Waits and keys lie in two arrays that grow, and are named by number, so that links take four bytes. A topic that is
 * waited for is a key, too: without a group, with the number of the first of its keys, and with the round of wakes that
 * goes through them: keys that come meanwhile are put before it, and one that goes hands it on.
 */
#include "broker/loop/cmq_pop_waits.h"

#include <stdlib.h>

#include "base/cmq_assert.h"
#include "base/cmq_name_hash.h"

#define NONE CMQ_POP_WAIT_NONE
#define TOPIC_ID INT32_MIN   /* a key's queue id when it is a topic: no pop has it */

typedef struct wait {
    int64_t deadline;
    uint64_t arrival;         /* rises from wait to wait */
    int64_t invisible_ms, expires_ns;
    cmq_filter *filter;
    uint8_t *attempt;         /* NULL: none */
    cmq_conn_id conn;
    uint32_t key;             /* NONE: not in use, and next is the next free one */
    uint32_t next, previous;  /* at its key */
    uint32_t conn_next, conn_previous, conn_slot;
    uint32_t heap_at;
    int32_t code, opaque, max_messages, init;
    uint16_t attempt_bytes;
    uint8_t format;
    bool order;
    cmq_pop_place place;
} wait;
_Static_assert(sizeof(wait) <= 128, "a wait is small");

typedef struct key {
    uint8_t *names;           /* topic, then group; NULL: not in use, and next is the next free one */
    uint32_t hash;
    uint32_t first, last;     /* waits, or (a topic) the first of its keys */
    uint32_t count;
    uint32_t next, previous;  /* of the topic's keys */
    int32_t queue_id;
    uint16_t topic_bytes, group_bytes;
    int32_t round_queue;      /* a topic's: the queue of the round that is open; TOPIC_ID: none */
    uint32_t round_next;      /* the key that it looks at next; NONE: it is over */
} key;

struct cmq_pop_waits {
    uint32_t count, count_max, key_max;
    uint64_t arrivals;
    wait *waits;
    uint32_t wait_slots, waits_used, free_wait;
    uint32_t *heap;
    uint32_t heap_slots;
    uint32_t *conn_first;     /* by connection slot */
    uint32_t conn_slots;
    key *keys;
    uint32_t key_slots, keys_used, keys_live, free_key;
    uint32_t *table;          /* key number + 1; 0: empty. Linear probing, a power of two, at most half full */
    uint32_t table_slots;
    size_t text_bytes;
};

static cmq_status out_of_memory(void) { return cmq_fail(CMQ_ERR_MEMORY, "no memory for one more held pop"); }

cmq_status cmq_pop_waits_create(cmq_pop_waits **waits_out, uint32_t count_max, uint32_t key_max)
{
    *waits_out = NULL;
    cmq_pop_waits *all = calloc(1, sizeof *all);
    if (all == NULL) return out_of_memory();
    all->count_max = count_max < NONE ? count_max : NONE - 1;
    all->key_max = key_max;
    all->free_wait = all->free_key = NONE;
    *waits_out = all;
    return CMQ_OK;
}

void cmq_pop_waits_destroy(cmq_pop_waits *all)
{
    if (all == NULL) return;
    for (uint32_t i = 0; i < all->waits_used; i++) {
        if (all->waits[i].key == NONE) continue;
        cmq_filter_release(all->waits[i].filter);
        free(all->waits[i].attempt);
    }
    for (uint32_t i = 0; i < all->keys_used; i++) free(all->keys[i].names);
    free(all->waits);
    free(all->heap);
    free(all->conn_first);
    free(all->keys);
    free(all->table);
    free(all);
}

/* Room in `*array` for one more than `count` members. */
static cmq_status grow(void **array, uint32_t *slots, uint32_t count, size_t member_bytes)
{
    if (count < *slots) return CMQ_OK;
    const uint32_t more = *slots == 0 ? 16 : *slots * 2;
    void *larger = realloc(*array, more * member_bytes);
    if (larger == NULL) return out_of_memory();
    *array = larger;
    *slots = more;
    return CMQ_OK;
}

/* ---- keys ---- */

static uint32_t hash_of(cmq_slice topic, cmq_slice group, int32_t queue_id)
{
    const uint64_t mixed = (cmq_name_hash(topic) * 31 + cmq_name_hash(group)) ^ (uint64_t)(uint32_t)queue_id << 32;
    return (uint32_t)((mixed ^ mixed >> 32) * UINT64_C(0x9E3779B97F4A7C15) >> 32);
}

static cmq_slice topic_of(const key *k) { return (cmq_slice){.data = k->names, .bytes = k->topic_bytes}; }
static cmq_slice group_of(const key *k)
{
    return (cmq_slice){.data = k->names + k->topic_bytes, .bytes = k->group_bytes};
}

static uint32_t find_place(const cmq_pop_waits *all, cmq_slice topic, cmq_slice group, int32_t queue_id, uint32_t hash)
{
    uint32_t at = hash & (all->table_slots - 1);
    for (; all->table[at] != 0; at = (at + 1) & (all->table_slots - 1)) {
        const key *k = &all->keys[all->table[at] - 1];
        if (k->hash == hash && k->queue_id == queue_id && cmq_slice_equal(topic_of(k), topic) &&
            cmq_slice_equal(group_of(k), group))
            break;
    }
    return at;
}

static uint32_t find_key(const cmq_pop_waits *all, cmq_slice topic, cmq_slice group, int32_t queue_id)
{
    if (all->table_slots == 0) return NONE;
    const uint32_t found = all->table[find_place(all, topic, group, queue_id, hash_of(topic, group, queue_id))];
    return found == 0 ? NONE : found - 1;
}

static cmq_status grow_table(cmq_pop_waits *all)
{
    if ((all->keys_live + 1) * 2 <= all->table_slots) return CMQ_OK;
    const uint32_t slots = all->table_slots == 0 ? 32 : all->table_slots * 2, before = all->table_slots;
    uint32_t *table = calloc(slots, sizeof *table), *old = all->table;
    if (table == NULL) return out_of_memory();
    all->table = table;
    all->table_slots = slots;
    for (uint32_t i = 0; i < before; i++) {
        if (old[i] == 0) continue;
        const key *k = &all->keys[old[i] - 1];
        table[find_place(all, topic_of(k), group_of(k), k->queue_id, k->hash)] = old[i];
    }
    free(old);
    return CMQ_OK;
}

/* Find or make a key without waits. */
static cmq_status require_key(cmq_pop_waits *all, cmq_slice topic, cmq_slice group, int32_t queue_id,
                              uint32_t *number_out)
{
    *number_out = find_key(all, topic, group, queue_id);
    if (*number_out != NONE) return CMQ_OK;
    cmq_status status = grow_table(all);
    if (status == CMQ_OK && all->free_key == NONE)
        status = grow((void **)&all->keys, &all->key_slots, all->keys_used, sizeof(key));
    uint8_t *names = status == CMQ_OK ? malloc(topic.bytes + group.bytes) : NULL;
    if (names == NULL) return status != CMQ_OK ? status : out_of_memory();
    memcpy(names, topic.data, topic.bytes);
    if (group.bytes > 0) memcpy(names + topic.bytes, group.data, group.bytes);
    uint32_t number = all->free_key;
    if (number == NONE)
        number = all->keys_used++;
    else
        all->free_key = all->keys[number].next;
    const uint32_t hash = hash_of(topic, group, queue_id);
    all->keys[number] = (key){.names = names,
                              .hash = hash,
                              .first = NONE,
                              .last = NONE,
                              .next = NONE,
                              .previous = NONE,
                              .queue_id = queue_id,
                              .topic_bytes = (uint16_t)topic.bytes,
                              .group_bytes = (uint16_t)group.bytes,
                              .round_queue = TOPIC_ID,
                              .round_next = NONE};
    all->table[find_place(all, topic, group, queue_id, hash)] = number + 1;
    all->keys_live++;
    all->text_bytes += topic.bytes + group.bytes;
    *number_out = number;
    return CMQ_OK;
}

static void drop_key(cmq_pop_waits *all, uint32_t number)
{
    key *k = &all->keys[number];
    const uint32_t mask = all->table_slots - 1;
    uint32_t hole = find_place(all, topic_of(k), group_of(k), k->queue_id, k->hash);
    CMQ_ASSERT(all->table[hole] == number + 1);
    /* Linear probing has no holes: move back what would not be found over one. */
    for (uint32_t at = (hole + 1) & mask; all->table[at] != 0; at = (at + 1) & mask) {
        const uint32_t home = all->keys[all->table[at] - 1].hash & mask;
        if (((at - home) & mask) < ((at - hole) & mask)) continue;
        all->table[hole] = all->table[at];
        hole = at;
    }
    all->table[hole] = 0;
    all->keys_live--;
    all->text_bytes -= (size_t)k->topic_bytes + k->group_bytes;
    free(k->names);
    *k = (key){.next = all->free_key};
    all->free_key = number;
}

/* A key that nobody waits at any more goes, and with the last of them the topic. */
static void drop_key_if_empty(cmq_pop_waits *all, uint32_t number)
{
    const key k = all->keys[number];
    if (k.count > 0) return;
    const uint32_t topic = find_key(all, topic_of(&k), CMQ_SLICE_NONE, TOPIC_ID);
    if (topic != NONE) {
        key *t = &all->keys[topic];
        const bool listed = k.previous != NONE || t->first == number;
        if (listed && k.previous != NONE) all->keys[k.previous].next = k.next;
        if (listed && k.previous == NONE) t->first = k.next;
        if (listed && k.next != NONE) all->keys[k.next].previous = k.previous;
        if (t->round_next == number) t->round_next = k.next;
        if (t->first == NONE) drop_key(all, topic);
    }
    drop_key(all, number);
}

/* The key of a wait, in its topic's list. */
static cmq_status require_listed_key(cmq_pop_waits *all, const cmq_pop_wait *of, uint32_t *number_out)
{
    *number_out = find_key(all, of->topic, of->group, of->queue_id);
    if (*number_out != NONE) return CMQ_OK;
    uint32_t topic;
    cmq_status status = require_key(all, of->topic, CMQ_SLICE_NONE, TOPIC_ID, &topic);
    if (status != CMQ_OK) return status;
    status = require_key(all, of->topic, of->group, of->queue_id, number_out);
    if (status != CMQ_OK) {
        if (all->keys[topic].first == NONE) drop_key(all, topic);
        return status;
    }
    key *k = &all->keys[*number_out], *t = &all->keys[topic];
    k->next = t->first;
    if (k->next != NONE) all->keys[k->next].previous = *number_out;
    t->first = *number_out;
    return CMQ_OK;
}

/* ---- order: the heap, and the list of a key ---- */

static bool is_before(const wait *a, const wait *b)
{
    return a->deadline != b->deadline ? a->deadline < b->deadline : a->arrival < b->arrival;
}

static void put(cmq_pop_waits *all, uint32_t place, uint32_t number)
{
    all->heap[place] = number;
    all->waits[number].heap_at = place;
}

static void sift(cmq_pop_waits *all, uint32_t place, uint32_t number)
{
    const wait *w = &all->waits[number];
    for (uint32_t above; place > 0 && is_before(w, &all->waits[all->heap[above = (place - 1) / 2]]); place = above)
        put(all, place, all->heap[above]);
    for (uint32_t below; (below = place * 2 + 1) < all->count; place = below) {
        if (below + 1 < all->count && is_before(&all->waits[all->heap[below + 1]], &all->waits[all->heap[below]]))
            below++;
        if (!is_before(&all->waits[all->heap[below]], w)) break;
        put(all, place, all->heap[below]);
    }
    put(all, place, number);
}

/* Most come with the latest deadline: behind all others. */
static void insert(cmq_pop_waits *all, uint32_t number)
{
    wait *w = &all->waits[number];
    key *k = &all->keys[w->key];
    uint32_t before = k->last;
    while (before != NONE && is_before(w, &all->waits[before])) before = all->waits[before].previous;
    w->previous = before;
    w->next = before == NONE ? k->first : all->waits[before].next;
    if (w->next == NONE)
        k->last = number;
    else
        all->waits[w->next].previous = number;
    if (before == NONE)
        k->first = number;
    else
        all->waits[before].next = number;
    k->count++;
}

/* Out of the list of its key. */
static void unlist(cmq_pop_waits *all, const wait *w)
{
    key *k = &all->keys[w->key];
    *(w->previous == NONE ? &k->first : &all->waits[w->previous].next) = w->next;
    *(w->next == NONE ? &k->last : &all->waits[w->next].previous) = w->previous;
    k->count--;
}

/* ---- adding and removing ---- */

static cmq_status make_room(cmq_pop_waits *all, uint32_t conn_slot)
{
    cmq_status status = CMQ_OK;
    if (all->free_wait == NONE) status = grow((void **)&all->waits, &all->wait_slots, all->waits_used, sizeof(wait));
    if (status == CMQ_OK) status = grow((void **)&all->heap, &all->heap_slots, all->count, sizeof *all->heap);
    while (status == CMQ_OK && conn_slot >= all->conn_slots) {
        const uint32_t before = all->conn_slots;
        status = grow((void **)&all->conn_first, &all->conn_slots, before, sizeof *all->conn_first);
        for (uint32_t i = before; i < all->conn_slots; i++) all->conn_first[i] = NONE;
    }
    return status;
}

cmq_status cmq_pop_waits_add(cmq_pop_waits *all, const cmq_pop_wait *of, int64_t deadline, uint32_t conn_slot,
                             uint32_t *number_out)
{
    CMQ_ASSERT(of->topic.bytes > 0 && of->topic.bytes <= UINT16_MAX && of->group.bytes > 0 &&
               of->group.bytes <= UINT16_MAX && of->queue_id >= -1 && of->attempt.bytes <= UINT16_MAX);
    if (all->count >= all->count_max) return cmq_fail(CMQ_ERR_LIMIT, "%u pops are held already", all->count_max);
    cmq_status status = make_room(all, conn_slot);
    uint32_t at = NONE;
    if (status == CMQ_OK) status = require_listed_key(all, of, &at);
    if (status != CMQ_OK) return status;
    if (all->keys[at].count >= all->key_max)
        return cmq_fail(CMQ_ERR_LIMIT, "%u pops of this group are held for this queue already", all->key_max);
    uint8_t *attempt = of->attempt.bytes > 0 ? malloc(of->attempt.bytes) : NULL;
    if (of->attempt.bytes > 0 && attempt == NULL) {
        drop_key_if_empty(all, at);
        return out_of_memory();
    }
    if (attempt != NULL) memcpy(attempt, of->attempt.data, of->attempt.bytes);
    uint32_t number = all->free_wait;
    if (number == NONE)
        number = all->waits_used++;
    else
        all->free_wait = all->waits[number].next;
    all->waits[number] = (wait){
        .deadline = deadline,
        .arrival = all->arrivals++,
        .invisible_ms = of->invisible_ms,
        .expires_ns = of->expires_ns,
        .filter = of->filter,
        .attempt = attempt,
        .conn = of->conn,
        .key = at,
        .conn_next = all->conn_first[conn_slot],
        .conn_previous = NONE,
        .conn_slot = conn_slot,
        .code = of->code,
        .opaque = of->opaque,
        .max_messages = of->max_messages,
        .init = of->init,
        .place = of->place,
        .attempt_bytes = (uint16_t)of->attempt.bytes,
        .format = (uint8_t)of->format,
        .order = of->order,
    };
    if (all->conn_first[conn_slot] != NONE) all->waits[all->conn_first[conn_slot]].conn_previous = number;
    all->conn_first[conn_slot] = number;
    insert(all, number);
    all->text_bytes += of->attempt.bytes;
    sift(all, all->count++, number);
    *number_out = number;
    return CMQ_OK;
}

void cmq_pop_waits_remove(cmq_pop_waits *all, uint32_t number)
{
    wait *w = &all->waits[number];
    CMQ_ASSERT(w->key != NONE);
    unlist(all, w);
    *(w->conn_previous == NONE ? &all->conn_first[w->conn_slot] : &all->waits[w->conn_previous].conn_next) =
        w->conn_next;
    if (w->conn_next != NONE) all->waits[w->conn_next].conn_previous = w->conn_previous;
    const uint32_t place = w->heap_at, last = all->heap[--all->count];
    if (last != number) sift(all, place, last);
    drop_key_if_empty(all, w->key);
    all->text_bytes -= w->attempt_bytes;
    free(w->attempt);
    *w = (wait){.key = NONE, .next = all->free_wait};
    all->free_wait = number;
}

void cmq_pop_waits_move(cmq_pop_waits *all, uint32_t number, int64_t deadline)
{
    wait *w = &all->waits[number];
    CMQ_ASSERT(w->key != NONE);
    unlist(all, w);
    w->deadline = deadline;
    w->arrival = all->arrivals++;
    insert(all, number);
    sift(all, w->heap_at, number);
}

/* ---- looking ---- */

void cmq_pop_waits_get(const cmq_pop_waits *all, uint32_t number, cmq_pop_wait *wait_out)
{
    const wait *w = &all->waits[number];
    CMQ_ASSERT(w->key != NONE);
    const key *k = &all->keys[w->key];
    *wait_out = (cmq_pop_wait){
        .topic = topic_of(k),
        .group = group_of(k),
        .attempt = {.data = w->attempt, .bytes = w->attempt_bytes},
        .queue_id = k->queue_id,
        .code = w->code,
        .opaque = w->opaque,
        .max_messages = w->max_messages,
        .init = w->init,
        .format = (cmq_header_format)w->format,
        .invisible_ms = w->invisible_ms,
        .expires_ns = w->expires_ns,
        .filter = w->filter,
        .conn = w->conn,
        .conn_slot = w->conn_slot,
        .order = w->order,
        .place = w->place,
    };
}

void cmq_pop_waits_set_place(cmq_pop_waits *all, uint32_t number, const cmq_pop_place *place)
{
    CMQ_ASSERT(all->waits[number].key != NONE);
    all->waits[number].place = *place;
}

uint32_t cmq_pop_waits_at(const cmq_pop_waits *all, cmq_slice topic, cmq_slice group, int32_t queue_id, bool last)
{
    const uint32_t found = find_key(all, topic, group, queue_id);
    if (found == NONE) return NONE;
    return last ? all->keys[found].last : all->keys[found].first;
}

uint32_t cmq_pop_waits_count_at(const cmq_pop_waits *all, cmq_slice topic, cmq_slice group, int32_t queue_id)
{
    const uint32_t found = find_key(all, topic, group, queue_id);
    return found == NONE ? 0 : all->keys[found].count;
}

cmq_pop_round cmq_pop_waits_round(const cmq_pop_waits *all, cmq_slice topic, int32_t queue_id)
{
    const uint32_t of_topic = find_key(all, topic, CMQ_SLICE_NONE, TOPIC_ID);
    if (of_topic == NONE) return CMQ_POP_ROUND_NOBODY;
    const key *t = &all->keys[of_topic];
    if (t->round_queue == TOPIC_ID) return CMQ_POP_ROUND_NONE;
    return t->round_queue == queue_id ? CMQ_POP_ROUND_OPEN : CMQ_POP_ROUND_OTHER;
}

void cmq_pop_waits_open_round(cmq_pop_waits *all, cmq_slice topic, int32_t queue_id)
{
    const uint32_t of_topic = find_key(all, topic, CMQ_SLICE_NONE, TOPIC_ID);
    if (of_topic == NONE) return;
    key *t = &all->keys[of_topic];
    CMQ_ASSERT(t->round_queue == TOPIC_ID);
    t->round_queue = queue_id;
    t->round_next = t->first;
}

uint32_t cmq_pop_waits_next_of_round(cmq_pop_waits *all, cmq_slice topic, uint32_t *numbers_out, uint32_t capacity)
{
    const uint32_t of_topic = find_key(all, topic, CMQ_SLICE_NONE, TOPIC_ID);
    uint32_t count = 0;
    if (of_topic == NONE) return 0;
    key *t = &all->keys[of_topic];
    uint32_t at = t->round_next;
    for (uint32_t i = 0; at != NONE && i < capacity; i++, at = all->keys[at].next)
        if (all->keys[at].queue_id == -1 || all->keys[at].queue_id == t->round_queue)
            numbers_out[count++] = all->keys[at].first;
    t->round_next = at;
    if (at == NONE) t->round_queue = TOPIC_ID;
    return count;
}

uint32_t cmq_pop_waits_of_conn(const cmq_pop_waits *all, uint32_t conn_slot)
{
    return conn_slot < all->conn_slots ? all->conn_first[conn_slot] : NONE;
}

uint32_t cmq_pop_waits_of_group(const cmq_pop_waits *all, cmq_slice group)
{
    for (uint32_t i = 0; i < all->keys_used; i++) {
        const key *k = &all->keys[i];
        if (k->names != NULL && k->queue_id != TOPIC_ID && (group.bytes == 0 || cmq_slice_equal(group_of(k), group)))
            return k->first;
    }
    return NONE;
}

uint32_t cmq_pop_waits_due(const cmq_pop_waits *all, int64_t now)
{
    return all->count > 0 && all->waits[all->heap[0]].deadline <= now ? all->heap[0] : NONE;
}

int64_t cmq_pop_waits_first_deadline(const cmq_pop_waits *all)
{
    return all->count > 0 ? all->waits[all->heap[0]].deadline : INT64_MAX;
}

uint32_t cmq_pop_waits_count(const cmq_pop_waits *all) { return all->count; }

size_t cmq_pop_waits_bytes(const cmq_pop_waits *all)
{
    return sizeof *all + all->wait_slots * sizeof(wait) + all->key_slots * sizeof(key) +
           ((size_t)all->heap_slots + all->conn_slots + all->table_slots) * sizeof(uint32_t) + all->text_bytes;
}
