/* cmq_append_keys: the index keys of messages that are appended: room for them, and their entries in the list of those
 * that wait for the confirmation.
 *
 * Per message: usually no lock and no allocation; room is granted in lots of 4,096 keys.
 * Way:       cmq_append -> [cmq_append_keys] -> cmq_index
 */
#include "base/cmq_assert.h"
#include "store/append/cmq_append_internal.h"

/* Keys are granted room in the index in lots, so that most messages ask nobody. */
#define KEY_GRANT 4096u

#define COUNTED_KEYS_BYTES 64u   /* in longer KEYS values the keys are counted */

uint32_t cmq_append_key_demand(cmq_slice keys)
{
    cmq_slice key;
    uint32_t count = 0;
    if (keys.bytes <= COUNTED_KEYS_BYTES) return (uint32_t)keys.bytes / 2 + CMQ_KEYS_BESIDE;
    while (cmq_dispatch_next_key(&keys, &key)) count++;
    return count + CMQ_KEYS_BESIDE;
}

cmq_status cmq_append_grant_keys(cmq_store *store, uint32_t keys)
{
    cmq_pending_keys *pending = &store->pending[store->filling_keys];
    cmq_status status = cmq_pending_keys_reserve(pending, keys);
    if (status != CMQ_OK || keys <= store->keys_granted) return status;
    /* The index's room must cover what waits in both lists; the leader's list may be put meanwhile, which only
     * frees. */
    pthread_mutex_lock(&store->index_mutex);
    const uint32_t waiting = store->pending[0].count + store->pending[1].count;
    const uint32_t file_keys = (uint32_t)store->sizes.index_entries;
    const uint32_t more = file_keys < KEY_GRANT ? file_keys : KEY_GRANT;   /* tiny files are not made by the dozen */
    status = cmq_index_make_room(store->index, waiting + keys + more);
    pthread_mutex_unlock(&store->index_mutex);
    if (status == CMQ_OK) store->keys_granted = keys + more;
    CMQ_ASSERT(status != CMQ_OK || store->keys_granted >= keys);
    return status;
}

void cmq_append_add_keys(append_context *c, cmq_slice keys, cmq_slice tags, int64_t phy)
{
    cmq_store *store = c->store;
    cmq_pending_keys *pending = &store->pending[store->filling_keys];
    const uint32_t seed = cmq_queue_index_seed(c->queue), before = pending->count;
    const int64_t store_ms = c->fields.store_timestamp_ms;
    const cmq_slice unique = c->known.value[CMQ_PROPERTY_UNIQ_KEY];
    cmq_slice rest = keys, key;
    if (unique.bytes > 0) cmq_append_add_key(pending, seed, unique, phy, store_ms);
    while (cmq_dispatch_next_key(&rest, &key)) cmq_append_add_key(pending, seed, key, phy, store_ms);
    if (store->tags_indexed && tags.bytes > 0)
        pending->keys[pending->count++] =
            (cmq_index_key){.phy = phy, .store_ms = store_ms, .hash = cmq_index_tags_hash(seed, tags)};
    CMQ_ASSERT(pending->count - before <= store->keys_granted);
    store->keys_granted -= pending->count - before;
}
