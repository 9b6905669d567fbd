/* cmq_queue_table: see cmq_queue_table.h. */
#include "store/queue/cmq_queue_table.h"

#include <stdalign.h>
#include <stdlib.h>
#include <string.h>

#include "base/cmq_assert.h"
#include "base/cmq_hash.h"
#include "base/cmq_name_hash.h"
#include "store/queue/cmq_queue_internal.h"

#define SLOTS_FIRST 64u
#define NAME_CHUNK_BYTES 32768u

typedef struct cmq_namechunk {
    struct cmq_namechunk *next;
    uint8_t *at;
} cmq_namechunk;

static uint32_t slot_of(uint64_t topic_hash, int32_t queue_id)
{
    const uint64_t hash = (topic_hash + (uint32_t)queue_id) * CMQ_NAMEHASH_MULTIPLIER;
    return (uint32_t)(hash >> 32);
}

static cmq_queueslots *make_slots(uint32_t count)
{
    cmq_queueslots *made = calloc(1, sizeof *made + count * sizeof made->slots[0]);
    if (made != NULL) made->mask = count - 1;
    return made;
}

cmq_status cmq_queue_table_init(cmq_queue_table *table)
{
    *table = (cmq_queue_table){.topic_mask = SLOTS_FIRST - 1};
    table->topics = calloc(SLOTS_FIRST, sizeof *table->topics);
    cmq_queueslots *slots = make_slots(SLOTS_FIRST);
    atomic_init(&table->slots, slots);
    if (table->topics == NULL || slots == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for the table of queues");
    return CMQ_OK;
}

void cmq_queue_table_free(cmq_queue_table *table)
{
    for (cmq_queueslots *at = atomic_load(&table->slots); at != NULL;) {
        cmq_queueslots *next = at->outgrown;
        free(at);
        at = next;
    }
    while (table->names != NULL) {
        cmq_namechunk *next = table->names->next;
        free(table->names);
        table->names = next;
    }
    free(table->topics);
}

static bool is_named(const cmq_queue *queue, uint64_t hash, cmq_slice topic, int32_t queue_id)
{
    return queue->id == queue_id && queue->topic->hash == hash && queue->topic->bytes == topic.bytes &&
           memcmp(queue->topic->name, topic.data, topic.bytes) == 0;
}

cmq_queue *cmq_queue_table_find(const cmq_queue_table *table, cmq_slice topic, int32_t queue_id)
{
    if (topic.bytes == 0) return NULL;
    const uint64_t hash = cmq_name_hash(topic);
    const cmq_queueslots *in = atomic_load_explicit(&table->slots, memory_order_acquire);
    for (uint32_t at = slot_of(hash, queue_id);; at++) {
        cmq_queue *queue = atomic_load_explicit(&in->slots[at & in->mask], memory_order_acquire);
        if (queue == NULL || is_named(queue, hash, topic, queue_id)) return queue;
    }
}

/* The slot of a queue's name: its own, or the empty one that ends the search. */
static _Atomic(cmq_queue *) *slot_for(cmq_queueslots *in, const cmq_queue *queue)
{
    const cmq_slice name = {.data = (const uint8_t *)queue->topic->name, .bytes = queue->topic->bytes};
    for (uint32_t at = slot_of(queue->topic->hash, queue->id);; at++) {
        _Atomic(cmq_queue *) *slot = &in->slots[at & in->mask];
        const cmq_queue *there = atomic_load_explicit(slot, memory_order_relaxed);
        if (there == NULL || is_named(there, queue->topic->hash, name, queue->id)) return slot;
    }
}

static cmq_status CMQ_MUST_CHECK grow(cmq_queue_table *table, cmq_queueslots *old)
{
    cmq_queueslots *grown = make_slots((old->mask + 1) * 2);
    if (grown == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for a table of %u queues", old->mask);
    for (uint32_t i = 0; i <= old->mask; i++) {
        cmq_queue *queue = atomic_load_explicit(&old->slots[i], memory_order_relaxed);
        if (queue != NULL) atomic_store_explicit(slot_for(grown, queue), queue, memory_order_relaxed);
    }
    grown->outgrown = old;   /* readers may still search in it; they find later additions at their next call */
    atomic_store_explicit(&table->slots, grown, memory_order_release);
    return CMQ_OK;
}

cmq_status cmq_queue_table_put(cmq_queue_table *table, cmq_queue *queue)
{
    cmq_queueslots *in = atomic_load_explicit(&table->slots, memory_order_relaxed);
    if (table->used >= (in->mask + 1) / 8 * 7) {
        const cmq_status status = grow(table, in);
        if (status != CMQ_OK) return status;
        in = atomic_load_explicit(&table->slots, memory_order_relaxed);
    }
    _Atomic(cmq_queue *) *slot = slot_for(in, queue);
    if (atomic_load_explicit(slot, memory_order_relaxed) == NULL) table->used++;
    atomic_store_explicit(slot, queue, memory_order_release);
    return CMQ_OK;
}

/* ---- names ---- */

static cmq_queuetopic *take_name(cmq_queue_table *table, size_t name_bytes)
{
    const size_t align = alignof(cmq_queuetopic);
    const uint32_t bytes = (uint32_t)((sizeof(cmq_queuetopic) + name_bytes + 1 + align - 1) / align * align);
    if (table->name_bytes_left < bytes) {
        cmq_namechunk *made = malloc(sizeof *made + NAME_CHUNK_BYTES);
        if (made == NULL) return NULL;
        made->next = table->names;
        made->at = (uint8_t *)(made + 1);
        table->names = made;
        table->name_bytes_left = NAME_CHUNK_BYTES;
    }
    cmq_queuetopic *taken = (cmq_queuetopic *)(void *)table->names->at;
    table->names->at += bytes;
    table->name_bytes_left -= bytes;
    return taken;
}

static const cmq_queuetopic **topic_slot(const cmq_queuetopic **topics, uint32_t mask, uint64_t hash, cmq_slice name)
{
    for (uint32_t at = (uint32_t)hash;; at++) {
        const cmq_queuetopic **slot = &topics[at & mask];
        const cmq_queuetopic *there = *slot;
        if (there == NULL ||
            (there->hash == hash && there->bytes == name.bytes && memcmp(there->name, name.data, name.bytes) == 0))
            return slot;
    }
}

static cmq_status CMQ_MUST_CHECK grow_topics(cmq_queue_table *table)
{
    const uint32_t mask = table->topic_mask * 2 + 1;
    const cmq_queuetopic **grown = calloc((size_t)mask + 1, sizeof *grown);
    if (grown == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for a table of %u topics", mask);
    for (uint32_t i = 0; i <= table->topic_mask; i++) {
        const cmq_queuetopic *topic = table->topics[i];
        if (topic == NULL) continue;
        const cmq_slice name = {.data = (const uint8_t *)topic->name, .bytes = topic->bytes};
        *topic_slot(grown, mask, topic->hash, name) = topic;
    }
    free(table->topics);
    table->topics = grown;
    table->topic_mask = mask;
    return CMQ_OK;
}

uint32_t cmq_queue_topic_seed(cmq_slice topic)
{
    return cmq_jhash_extend(cmq_jhash(topic), (const uint8_t *)"#", 1);
}

cmq_status cmq_queue_table_topic(cmq_queue_table *table, cmq_slice name, const cmq_queuetopic **topic_out)
{
    CMQ_ASSERT(name.bytes > 0 && name.bytes <= UINT16_MAX);
    if (table->topic_count >= (table->topic_mask + 1) / 8 * 7) {
        const cmq_status status = grow_topics(table);
        if (status != CMQ_OK) return status;
    }
    const uint64_t hash = cmq_name_hash(name);
    const cmq_queuetopic **slot = topic_slot(table->topics, table->topic_mask, hash, name);
    if (*slot == NULL) {
        cmq_queuetopic *made = take_name(table, name.bytes);
        if (made == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for a topic's name");
        made->hash = hash;
        made->index_seed = cmq_queue_topic_seed(name);
        made->bytes = (uint16_t)name.bytes;
        made->lmq = cmq_slice_starts_with(name, "%LMQ%");
        memcpy(made->name, name.data, name.bytes);
        made->name[name.bytes] = '\0';
        *slot = made;
        table->topic_count++;
    }
    *topic_out = *slot;
    return CMQ_OK;
}
