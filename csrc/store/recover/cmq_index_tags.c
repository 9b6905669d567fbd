/* cmq_index_tags: does the index of this store get the tags of its messages?
 *
 * RocketMQ enters them since 5.4, without a setting, and earlier versions never did. Where the options do not say, the
 * store's newest index entries decide: this store continues the way of their writer, so that a look-up by tags does not
 * lose the messages from the day on which the writer changed.
 *
 * Costs: an opening reads a few records; at most LOOK_RECORDS where messages have no tags.
 * Threads: an opening that has the store to itself.
 * Way:     cmq_index -> [cmq_index_tags] -> cmq_append, cmq_log_walk, cmq_repair
 * Source:  upstream's IndexService of 5.3.3, 5.4.0 and 5.5.0.
 */
#include "store/cmq_store_internal.h"

#define LOOK_ENTRIES 1024
#define LOOK_RECORDS 64

/* The search, from the newest entry back. */
typedef struct look {
    cmq_store *store;
    int64_t phy;          /* of the record looked at; -1: none yet */
    bool has_tags;        /* it has tags … */
    uint32_t tags_hash;   /* … with this hash */
    uint32_t entries, records;
    bool is_decided, has;
} look;

static void look_at_record(look *l, int64_t phy)
{
    cmq_segment *segment;
    cmq_record_view view;
    cmq_dispatch_facts facts;
    l->phy = phy;
    l->records++;
    l->has_tags = false;
    if (cmq_store_record_at(l->store, phy, cmq_log_last_file_end(l->store->log), 0, &segment, &view) != CMQ_OK) return;
    cmq_dispatch_learn(l->store, &view, &facts);
    l->has_tags = cmq_dispatch_has_indexed_tags(&facts);
    if (l->has_tags)
        l->tags_hash =
            cmq_index_tags_hash(cmq_index_topic_seed(view.topic), facts.known.value[CMQ_PROPERTY_TAGS]);
    cmq_segment_unpin(segment);
}

/* The tags are a record's last entry. The newest record may not have all of its entries yet. */
static void take_entry(look *l, const cmq_index_key *key)
{
    if (key->phy != l->phy) {
        l->is_decided = l->records > 1 && l->has_tags;
        if (l->is_decided) return;
        look_at_record(l, key->phy);
    }
    l->has = l->has_tags && key->hash == l->tags_hash;
    l->is_decided = l->has || ++l->entries >= LOOK_ENTRIES || l->records > LOOK_RECORDS;
}

static bool has_tags(cmq_store *store, const cmq_index *index)
{
    look l = {.store = store, .phy = -1};
    for (uint32_t file = cmq_index_files(index); file > 0 && !l.is_decided; file--) {
        cmq_index_file_info info;
        cmq_index_key key;
        if (cmq_index_file_at(index, file - 1, &info) != CMQ_OK) continue;
        for (int32_t entry = info.count - 1; entry > 0 && !l.is_decided; entry--)
            if (cmq_index_entry_at(index, file - 1, entry, &key) == CMQ_OK) take_entry(&l, &key);
    }
    return l.has;
}

void cmq_store_choose_tags(cmq_store *store, const cmq_index *index)
{
    const cmq_index_tags asked = store->options.index_tags;
    store->tags_indexed =
        asked == CMQ_INDEX_TAGS_AS_FOUND ? index != NULL && has_tags(store, index) : asked == CMQ_INDEX_TAGS_ON;
}
