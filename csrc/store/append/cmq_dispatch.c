/* cmq_dispatch: from a stored record to the units and keys that derive from it.
 *
 * Used where the log is read again: recovery and followers. The append path knows all of this already and does not
 * parse.
 *
 * Threads: cmq_dispatch_units needs the writer lock, or an opening or refresh that has the store to itself; the rest is
 *          pure.
 * Way:     log -> [cmq_dispatch] -> cmq_queue, cmq_index
 * Source:  upstream's CommitLogDispatcherBuildConsumeQueue, -BuildIndex, MultiDispatch; spec store 2.11, 3.2, 3.8, 4.3,
 *          5.1.
 */
#include <stdlib.h>
#include <string.h>

#include "base/cmq_assert.h"
#include "base/cmq_hash.h"
#include "store/cmq_store_internal.h"

bool cmq_dispatch_number(cmq_slice text, int64_t *number_out)
{
    int64_t number = 0;
    if (text.bytes == 0 || text.bytes > 18) return false;
    for (size_t i = 0; i < text.bytes; i++) {
        if (text.data[i] < '0' || text.data[i] > '9') return false;
        number = number * 10 + (text.data[i] - '0');
    }
    *number_out = number;
    return true;
}

void cmq_dispatch_learn(const cmq_store *store, const cmq_record_view *view, cmq_dispatch_facts *facts_out)
{
    cmq_property_find_known(view->properties, &facts_out->known);
    const cmq_slice *value = facts_out->known.value;
    const int32_t transaction = view->sys_flag & CMQ_SYS_TRANSACTION_MASK;
    facts_out->in_queue = transaction == 0 || transaction == CMQ_SYS_TRANSACTION_COMMIT;
    facts_out->in_index = transaction != CMQ_SYS_TRANSACTION_ROLLBACK;
    facts_out->tags_code = cmq_tags_code(view->topic, value[CMQ_PROPERTY_TAGS], value[CMQ_PROPERTY_DELAY],
                                         view->store_timestamp_ms, &store->delays);
    facts_out->base_offset = view->queue_offset;
    facts_out->count = 1;
    int64_t base, number;
    if (cmq_dispatch_number(value[CMQ_PROPERTY_INNER_BASE], &base) &&
        cmq_dispatch_number(value[CMQ_PROPERTY_INNER_NUM], &number) && number >= 1 && number <= INT16_MAX) {
        facts_out->base_offset = base;
        facts_out->count = (int32_t)number;
    }
    CMQ_ASSERT(facts_out->count >= 1 && facts_out->count <= INT16_MAX);
}

cmq_queue_kind cmq_dispatch_kind(const cmq_store *store, cmq_slice topic, int32_t queue_id, int32_t sys_flag)
{
    const cmq_queue *queue = cmq_queues_find(store->queues, topic, queue_id);
    if (queue != NULL) return cmq_queue_kind_of(queue);
    if ((sys_flag & CMQ_SYS_INNER_BATCH) != 0) return CMQ_QUEUE_BATCH;
    for (uint32_t i = 0; i < store->batch_topic_count; i++)
        if (cmq_slice_equal(topic, cmq_slice_of_text(store->batch_topics[i]))) return CMQ_QUEUE_BATCH;
    return CMQ_QUEUE_SIMPLE;
}

bool cmq_dispatch_may_multi(cmq_slice topic)
{
    return !cmq_slice_starts_with(topic, "%RETRY%") && !cmq_slice_starts_with(topic, "rmq_sys_") &&
           !cmq_slice_equal(topic, cmq_slice_of_text(CMQ_TOPIC_SCHEDULE));
}

bool cmq_dispatch_gives_multi(cmq_slice topic)
{
    return cmq_dispatch_may_multi(topic) && !cmq_slice_equal(topic, cmq_slice_of_text(CMQ_TOPIC_HALF)) &&
           !cmq_slice_equal(topic, cmq_slice_of_text(CMQ_TOPIC_DISCARDED));
}

bool cmq_dispatch_next_name(cmq_slice *names, cmq_slice *name_out)
{
    if (names->data == NULL) return false;
    const uint8_t *comma = names->bytes > 0 ? memchr(names->data, ',', names->bytes) : NULL;
    const size_t bytes = comma != NULL ? (size_t)(comma - names->data) : names->bytes;
    CMQ_ASSERT(bytes <= names->bytes);
    *name_out = (cmq_slice){.data = names->data, .bytes = bytes};
    *names = comma != NULL ? (cmq_slice){.data = comma + 1, .bytes = names->bytes - bytes - 1} : CMQ_SLICE_NONE;
    return true;
}

static uint32_t count_names(cmq_slice names)
{
    cmq_slice name;
    uint32_t count = 0;
    while (cmq_dispatch_next_name(&names, &name)) count++;
    return count;
}

/* A name that no queue can have, or an offset far from the queue's end: an older writer stored them as a sender gave
 * them. The record itself is sound, so only that unit is left out. */
static bool is_forged(cmq_status status) { return status == CMQ_ERR_TOPIC || status == CMQ_ERR_CORRUPT; }

/* The units of a message in the light queues that its properties name (spec store 2.11). A writer gives offsets to
 * light queues alone. */
cmq_status cmq_dispatch_light_units(cmq_store *store, const cmq_record_view *view, const cmq_dispatch_facts *facts)
{
    cmq_slice names = facts->known.value[CMQ_PROPERTY_INNER_MULTI_DISPATCH];
    cmq_slice offsets = facts->known.value[CMQ_PROPERTY_INNER_MULTI_QUEUE_OFFSET];
    if (!cmq_dispatch_names_light(store, facts) || !cmq_dispatch_may_multi(view->topic) ||
        count_names(names) != count_names(offsets))
        return CMQ_OK;
    cmq_slice name, text;
    while (cmq_dispatch_next_name(&names, &name) && cmq_dispatch_next_name(&offsets, &text)) {
        int64_t offset;
        cmq_queue *queue;
        if (!cmq_is_lmq(name) || memchr(name.data, '/', name.bytes) != NULL || !cmq_dispatch_number(text, &offset))
            continue;
        cmq_status status =
            cmq_queues_require_for(store->queues, name, 0, CMQ_QUEUE_SIMPLE, view->physical_offset, &queue);
        if (status == CMQ_OK && queue != NULL)
            status = cmq_queue_reput(queue, offset, view->physical_offset, (int32_t)view->record_bytes,
                                     facts->tags_code, view->store_timestamp_ms, 1);
        if (status != CMQ_OK && !is_forged(status)) return status;
    }
    return CMQ_OK;
}

cmq_status cmq_dispatch_unit_to(cmq_queue *queue, const cmq_dispatch_unit *unit)
{
    const bool batch = cmq_queue_kind_of(queue) == CMQ_QUEUE_BATCH;
    CMQ_ASSERT(unit->bytes > 0 && unit->count >= 1);
    return cmq_queue_reput(queue, batch ? unit->base_offset : unit->queue_offset, unit->phy, unit->bytes,
                           unit->tags_code, unit->store_ms, batch ? unit->count : 1);
}

cmq_status cmq_dispatch_units(cmq_store *store, const cmq_record_view *view, const cmq_dispatch_facts *facts)
{
    if (!facts->in_queue) return CMQ_OK;
    cmq_queue *queue;
    const cmq_queue_kind kind = cmq_dispatch_kind(store, view->topic, view->queue_id, view->sys_flag);
    const cmq_dispatch_unit unit = cmq_dispatch_unit_of(view, facts);
    cmq_status status =
        cmq_queues_require_for(store->queues, view->topic, view->queue_id, kind, view->physical_offset, &queue);
    if (status == CMQ_OK && queue != NULL) status = cmq_dispatch_unit_to(queue, &unit);
    return status == CMQ_OK ? cmq_dispatch_light_units(store, view, facts) : status;
}

/* ---- keys ---- */

cmq_status cmq_pending_keys_reserve(cmq_pending_keys *keys, uint32_t more)
{
    CMQ_ASSERT(keys->count <= keys->capacity);
    if (more <= keys->capacity - keys->count) return CMQ_OK;
    if (more > UINT32_MAX / 2 - keys->count)
        return cmq_fail(CMQ_ERR_LIMIT, "more index keys at once than can be counted");
    const uint32_t capacity = (keys->count + more) * 2 < 1024 ? 1024 : (keys->count + more) * 2;
    cmq_index_key *grown = realloc(keys->keys, capacity * sizeof *grown);
    if (grown == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for %u index keys", capacity);
    keys->keys = grown;
    keys->capacity = capacity;
    CMQ_ASSERT(keys->capacity - keys->count >= more);
    return CMQ_OK;
}

bool cmq_dispatch_next_key(cmq_slice *rest, cmq_slice *key_out)
{
    while (rest->bytes > 0) {
        const uint8_t *space = memchr(rest->data, ' ', rest->bytes);
        const size_t bytes = space != NULL ? (size_t)(space - rest->data) : rest->bytes;
        *key_out = (cmq_slice){.data = rest->data, .bytes = bytes};
        const size_t taken = space != NULL ? bytes + 1 : bytes;
        CMQ_ASSERT(taken <= rest->bytes);
        *rest = (cmq_slice){.data = rest->data + taken, .bytes = rest->bytes - taken};
        if (bytes > 0) return true;
    }
    return false;
}

cmq_status cmq_dispatch_keys(const cmq_record_view *view, const cmq_dispatch_facts *facts, uint32_t topic_seed,
                             bool with_tags, cmq_pending_keys *keys)
{
    if (!facts->in_index) return CMQ_OK;
    cmq_slice rest = facts->known.value[CMQ_PROPERTY_KEYS], key;
    const cmq_slice unique = facts->known.value[CMQ_PROPERTY_UNIQ_KEY];
    const cmq_status status = cmq_pending_keys_reserve(keys, (uint32_t)rest.bytes / 2 + CMQ_KEYS_BESIDE);
    if (status != CMQ_OK) return status;
    cmq_index_key entry = {.phy = view->physical_offset, .store_ms = view->store_timestamp_ms};
    if (unique.bytes > 0) {
        entry.hash = cmq_index_key_hash(topic_seed, unique);
        keys->keys[keys->count++] = entry;
    }
    while (cmq_dispatch_next_key(&rest, &key)) {
        entry.hash = cmq_index_key_hash(topic_seed, key);
        keys->keys[keys->count++] = entry;
    }
    if (with_tags && cmq_dispatch_has_indexed_tags(facts)) {
        entry.hash = cmq_index_tags_hash(topic_seed, facts->known.value[CMQ_PROPERTY_TAGS]);
        keys->keys[keys->count++] = entry;
    }
    CMQ_ASSERT(keys->count <= keys->capacity);   /* the demand above covers every key */
    return CMQ_OK;
}
