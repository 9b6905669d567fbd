/* cmq_traffic: see cmq_traffic.h. Entries lie in chunks that never move and are published by their count; the table
 * that finds them is the loop's own. */
#include "broker/tables/cmq_traffic.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/cmq_assert.h"
#include "base/cmq_name_hash.h"

#define CHUNK_BITS 8u
#define CHUNK_COUNT (1u << CHUNK_BITS)
#define CHUNKS_MAX (CMQ_TRAFFIC_ENTRIES_MAX / CHUNK_COUNT + 1)

typedef struct entry {
    char *names;                 /* topic, then group */
    uint32_t hash;
    uint8_t topic_bytes, group_bytes;
    _Atomic uint64_t messages, bytes;
} entry;

struct cmq_traffic {
    _Atomic uint32_t count;
    uint32_t table_slots;
    uint32_t *table;             /* entry number + 1; 0: empty */
    entry *chunks[CHUNKS_MAX];
};

cmq_status cmq_traffic_create(cmq_traffic **traffic_out)
{
    *traffic_out = calloc(1, sizeof **traffic_out);
    return *traffic_out != NULL ? CMQ_OK : cmq_fail(CMQ_ERR_MEMORY, "no memory for a table of traffic");
}

static entry *at(const cmq_traffic *traffic, uint32_t number)
{
    return &traffic->chunks[number >> CHUNK_BITS][number & (CHUNK_COUNT - 1)];
}

void cmq_traffic_destroy(cmq_traffic *traffic)
{
    if (traffic == NULL) return;
    const uint32_t count = atomic_load(&traffic->count);
    for (uint32_t i = 0; i < count; i++) free(at(traffic, i)->names);
    for (uint32_t i = 0; i < CHUNKS_MAX; i++) free(traffic->chunks[i]);
    free(traffic->table);
    free(traffic);
}

static bool is_of(const entry *e, cmq_slice topic, cmq_slice group)
{
    return e->topic_bytes == topic.bytes && e->group_bytes == group.bytes &&
           memcmp(e->names, topic.data, topic.bytes) == 0 &&
           (group.bytes == 0 || memcmp(e->names + topic.bytes, group.data, group.bytes) == 0);
}

static bool grow_table(cmq_traffic *traffic, uint32_t count)
{
    if ((count + 1) * 2 <= traffic->table_slots) return true;
    const uint32_t slots = traffic->table_slots == 0 ? 64 : traffic->table_slots * 2;
    uint32_t *table = calloc(slots, sizeof *table);
    if (table == NULL) return false;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t to = at(traffic, i)->hash;
        while (table[to & (slots - 1)] != 0) to++;
        table[to & (slots - 1)] = i + 1;
    }
    free(traffic->table);
    traffic->table = table;
    traffic->table_slots = slots;
    return true;
}

/* NULL: no memory, or too many. */
static entry *make(cmq_traffic *traffic, cmq_slice topic, cmq_slice group, uint32_t hash)
{
    const uint32_t number = atomic_load_explicit(&traffic->count, memory_order_relaxed);
    if (number == CMQ_TRAFFIC_ENTRIES_MAX || !grow_table(traffic, number)) return NULL;
    entry **chunk = &traffic->chunks[number >> CHUNK_BITS];
    if (*chunk == NULL) *chunk = calloc(CHUNK_COUNT, sizeof **chunk);
    if (*chunk == NULL) return NULL;
    char *names = malloc(topic.bytes + group.bytes + 1);
    if (names == NULL) return NULL;
    memcpy(names, topic.data, topic.bytes);
    if (group.bytes > 0) memcpy(names + topic.bytes, group.data, group.bytes);
    entry *e = at(traffic, number);
    e->names = names;
    e->hash = hash;
    e->topic_bytes = (uint8_t)topic.bytes;
    e->group_bytes = (uint8_t)group.bytes;
    uint32_t to = hash;
    while (traffic->table[to & (traffic->table_slots - 1)] != 0) to++;
    traffic->table[to & (traffic->table_slots - 1)] = number + 1;
    atomic_store_explicit(&traffic->count, number + 1, memory_order_release);
    return e;
}

static entry *find(const cmq_traffic *traffic, cmq_slice topic, cmq_slice group, uint32_t hash)
{
    if (traffic->table_slots == 0) return NULL;
    for (uint32_t i = hash;; i++) {
        const uint32_t number = traffic->table[i & (traffic->table_slots - 1)];
        if (number == 0) return NULL;
        entry *e = at(traffic, number - 1);
        if (e->hash == hash && is_of(e, topic, group)) return e;
    }
}

static void bump(_Atomic uint64_t *number, uint64_t by)
{
    atomic_store_explicit(number, atomic_load_explicit(number, memory_order_relaxed) + by, memory_order_relaxed);
}

void cmq_traffic_count(cmq_traffic *traffic, cmq_slice topic, cmq_slice group, uint64_t messages, uint64_t bytes)
{
    CMQ_ASSERT(topic.bytes <= UINT8_MAX && group.bytes <= UINT8_MAX);
    const uint32_t hash = (uint32_t)((cmq_name_hash(topic) * 31 + cmq_name_hash(group)) >> 16) * 0x9E3779B1u;
    entry *e = find(traffic, topic, group, hash);
    if (e == NULL) e = make(traffic, topic, group, hash);
    if (e == NULL) return;
    bump(&e->messages, messages);
    bump(&e->bytes, bytes);
}

uint32_t cmq_traffic_list(const cmq_traffic *traffic, uint32_t *cursor, cmq_traffic_item *items, uint32_t capacity)
{
    const uint32_t count = atomic_load_explicit(&traffic->count, memory_order_acquire);
    uint32_t given = 0;
    for (; *cursor < count && given < capacity; (*cursor)++) {
        const entry *e = at(traffic, *cursor);
        items[given++] = (cmq_traffic_item){
            .topic = {.data = (const uint8_t *)e->names, .bytes = e->topic_bytes},
            .group = {.data = (const uint8_t *)e->names + e->topic_bytes, .bytes = e->group_bytes},
            .messages = atomic_load_explicit(&e->messages, memory_order_relaxed),
            .bytes = atomic_load_explicit(&e->bytes, memory_order_relaxed),
        };
    }
    return given;
}
