/* cmq_key_search: all records of a key, newest first, in steps: from the index, collisions removed by reading the
 * record.
 *
 * Between two steps a search keeps places only: the index file and the entry to continue from (cmq_index_cursor), a
 * batch of offsets that were looked up and not read yet, and the last offsets that were returned. It holds no file, so
 * retention continues, and the search skips what retention deleted.
 *
 * A record may be in the index twice for one key: it has the key twice, or a recovery inserted the keys of the last
 * records a second time. Such entries are near each other, so a window of the last results is enough to return each
 * record once.
 *
 * Behind a killed writer, a view's index has every key up to the durable point, and the view reads the log from there.
 * After a power loss, and while a writer recovers, the index file that holds the point is in doubt as a whole: the view
 * reads the log from that file's first record.
 *
 * Memory:  1 KiB per search; in such a view 8 bytes per record of the part read from the log that carries the key.
 * Threads: one at a time per search; any number of searches, beside the writer.
 * Way:     cmq_index -> [cmq_key_search] -> found records
 * Source:  upstream's DefaultMessageStore.queryMessage; spec store 4.5, 8.4.
 */
#include <stdlib.h>
#include <string.h>

#include "store/cmq_store_internal.h"
#include "store/read/cmq_key_places.h"

#define LOT 64u
#define GIVEN 64u
#define NAME_BYTES_MAX 65536u   /* of a topic or a key: no record has longer ones */

struct cmq_key_search {
    cmq_store *store;
    cmq_slice topic, key;
    uint32_t hash;               /* of the key, in the index */
    int64_t begin_ms, end_ms;
    uint64_t left;
    uint64_t misses, misses_max;   /* records that were read in vain */
    bool only_queued;
    cmq_index_cursor cursor;
    int64_t lot[LOT];            /* physical offsets to read */
    uint32_t lot_at, lot_count;
    int64_t given[GIVEN];        /* one more than an offset; a ring */
    uint32_t given_at;
    cmq_places recent;           /* records at or behind recent_from that carry the key, read from the log */
    int64_t recent_from;         /* INT64_MAX: the index has all */
    int64_t generation;          /* of the writer's page, before the index was looked at */
    bool checked_end;            /* of a view, for damage */
    int64_t last_given, below;   /* the search began again behind `below`, which was given */
    uint8_t bytes[];             /* topic and key, where they were copied */
};

static bool carries_key(const cmq_record_view *view, cmq_slice topic, cmq_slice key)
{
    cmq_property_known known;
    if (!cmq_slice_equal(view->topic, topic)) return false;
    cmq_property_find_known(view->properties, &known);
    if (cmq_slice_equal(known.value[CMQ_PROPERTY_UNIQ_KEY], key)) return true;
    cmq_slice rest = known.value[CMQ_PROPERTY_KEYS], piece;
    while (cmq_dispatch_next_key(&rest, &piece))
        if (cmq_slice_equal(piece, key)) return true;
    return false;
}

/* Where it was asked for: is the record one of its queue? Half transactions, which no queue has, are found by key. */
static bool is_kept(const cmq_key_search *search, const cmq_record_view *view)
{
    const int32_t transaction = view->sys_flag & CMQ_SYS_TRANSACTION_MASK;
    if (!search->only_queued || transaction == CMQ_SYS_TRANSACTION_PREPARED ||
        transaction == CMQ_SYS_TRANSACTION_ROLLBACK)
        return true;
    return cmq_store_is_queued(search->store, view);
}

static bool is_wanted(const cmq_key_search *search, const cmq_record_view *view)
{
    return carries_key(view, search->topic, search->key) && view->store_timestamp_ms >= search->begin_ms &&
           view->store_timestamp_ms <= search->end_ms && is_kept(search, view);
}

static bool was_given(const cmq_key_search *search, int64_t phy)
{
    for (uint32_t i = 0; i < GIVEN; i++)
        if (search->given[i] == phy + 1) return true;
    return false;
}

/* Take back the last found record, and its pin if there were so many before. */
static void drop_last(cmq_found_batch *batch, uint32_t pins_before)
{
    batch->count--;
    while (batch->pin_count > pins_before) cmq_segment_unpin(batch->pins[--batch->pin_count]);
}

/* ---- keys that the index lacks ---- */

/* In order of the log, to the view's end. */
static cmq_status read_recent(cmq_key_search *search)
{
    cmq_store *store = search->store;
    const int64_t end = cmq_log_confirmed(store->log), bytes = cmq_log_segment_bytes(store->log),
                  min = cmq_log_min(store->log);
    cmq_status status = CMQ_OK;
    search->recent_from = cmq_store_index_end(store, search->generation);
    for (int64_t phy = search->recent_from < min ? min : search->recent_from; phy < end && status == CMQ_OK;) {
        cmq_segment *segment;
        cmq_record_view view;
        const cmq_status read = cmq_store_record_at(store, phy, end, 0, &segment, &view);
        if (read != CMQ_OK) {   /* a blank; or damage, which a search passes over */
            phy = phy - phy % bytes + bytes;
            continue;
        }
        if (carries_key(&view, search->topic, search->key)) status = cmq_places_add(&search->recent, phy);
        phy += view.record_bytes;
        cmq_segment_unpin(segment);
    }
    return status;
}

/* The newest first. */
static void fill_from_recent(cmq_key_search *search)
{
    search->lot_count = 0;
    while (search->recent.count > 0 && search->lot_count < LOT)
        search->lot[search->lot_count++] = search->recent.phys[--search->recent.count];
}

static bool is_new(const cmq_key_search *search, int64_t phy) { return phy < search->below; }

static void drop_recent(cmq_key_search *search)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < search->lot_count; i++)
        if (search->lot[i] < search->recent_from && is_new(search, search->lot[i]))
            search->lot[kept++] = search->lot[i];
    search->lot_count = kept;
}

/* A writer that began to recover while the index was read may have taken keys out of it before they were found: begin
 * again behind the last record that was given, with the log. */
static cmq_status begin_again_if_disturbed(cmq_key_search *search)
{
    const int64_t generation = cmq_store_page_generation(search->store);
    if (!search->store->options.read_only || search->recent_from != INT64_MAX || generation == search->generation)
        return CMQ_OK;
    search->generation = generation;
    search->below = search->last_given;
    search->lot_count = 0;
    search->cursor = (cmq_index_cursor){0};
    const cmq_status status = read_recent(search);
    while (search->recent.count > 0 && !is_new(search, search->recent.phys[search->recent.count - 1]))
        search->recent.count--;
    return status;
}

/* Look the next offsets up. */
static cmq_status fill_lot(cmq_key_search *search)
{
    /* An entry's time may be up to 999 ms early. */
    const int64_t begin = search->begin_ms > INT64_MIN + 1000 ? search->begin_ms - 1000 : search->begin_ms;
    search->lot_at = 0;
    fill_from_recent(search);
    if (search->lot_count > 0) return CMQ_OK;
    const cmq_status status =
        cmq_index_query(search->store->index, search->hash, begin, search->end_ms, cmq_log_min(search->store->log),
                        &search->cursor, search->lot, LOT, &search->lot_count);
    if (status != CMQ_OK) return status;
    drop_recent(search);
    return begin_again_if_disturbed(search);
}

/* Is a record made for this place there, whose checksum is wrong? Elsewhere the entry itself may be left from a crash,
 * or damaged. */
static bool is_damaged(cmq_store *store, int64_t phy)
{
    cmq_segment *segment;
    cmq_record_view view;
    const cmq_error error = *cmq_last_error();
    const bool framed = cmq_store_record_at(store, phy, cmq_log_confirmed(store->log), 0, &segment, &view) == CMQ_OK;
    if (framed) cmq_segment_unpin(segment);
    (void)cmq_fail_again(&error);
    return framed;
}

/* Read the lot's next record. CMQ_AGAIN: the batch has no room for it. CMQ_ERR_CORRUPT: it is damaged, and may have the
 * key; the next call goes on. */
static cmq_status read_next(cmq_key_search *search, cmq_found_batch *batch)
{
    const int64_t phy = search->lot[search->lot_at];
    const uint32_t pins_before = batch->pin_count;
    cmq_record_view view;
    cmq_status status = was_given(search, phy) ? CMQ_ERR_OFFSET : cmq_store_take(search->store, phy, batch, &view);
    if (status == CMQ_AGAIN) return status;
    if (status == CMQ_ERR_CORRUPT && is_damaged(search->store, phy)) {
        if (batch->count == 0) search->lot_at++;
        return status;
    }
    search->lot_at++;
    /* An entry of a record that was given already, that expired, was cut or is not confirmed yet. */
    if (status == CMQ_ERR_OFFSET || status == CMQ_ERR_CORRUPT) return CMQ_OK;
    if (status != CMQ_OK) return status;
    if (!is_wanted(search, &view)) {
        search->misses++;
        drop_last(batch, pins_before);
        return CMQ_OK;
    }
    search->given[search->given_at++ % GIVEN] = phy + 1;
    search->last_given = phy;
    search->left--;
    return CMQ_OK;
}

static cmq_status fail_misses(const cmq_key_search *search)
{
    return cmq_fail(CMQ_ERR_LIMIT,
                    "the search by key read %llu messages of other keys with the same hash; search in a shorter time",
                    (unsigned long long)search->misses);
}

/* Once, behind the last record that was found: may messages with the key follow that cannot be read? */
static cmq_status check_end(cmq_key_search *search)
{
    const cmq_status status = cmq_store_check_end(search->store);
    search->checked_end = status == CMQ_OK || status == CMQ_ERR_CORRUPT;
    return status;
}

cmq_status cmq_key_search_next(cmq_key_search *search, cmq_found_batch *batch)
{
    cmq_status status = cmq_store_check_view(search->store);
    while (status == CMQ_OK && search->left > 0 && batch->count < batch->capacity) {
        if (search->misses >= search->misses_max) return batch->count > 0 ? CMQ_OK : fail_misses(search);
        if (search->lot_at < search->lot_count) status = read_next(search, batch);
        else if (!search->cursor.done) status = fill_lot(search);
        else if (batch->count > 0 || search->checked_end) break;
        else status = check_end(search);
    }
    /* The rest, and a failure behind these messages, come with the next batch. */
    return status == CMQ_AGAIN || (status == CMQ_ERR_CORRUPT && batch->count > 0) ? CMQ_OK : status;
}

/* The common start of both ways of searching. */
static cmq_status begin(cmq_store *store, cmq_key_search *search, const cmq_key_search_options *options)
{
    if (store->index == NULL)
        return cmq_fail(CMQ_ERR_SETTING, "messageIndexEnable is off: this store keeps no index of keys");
    search->store = store;
    search->topic = options->topic;
    search->key = options->key;
    search->hash = cmq_index_key_hash(cmq_index_topic_seed(options->topic), options->key);
    search->begin_ms = options->begin_ms;
    search->end_ms = options->end_ms;
    search->only_queued = options->only_queued;
    search->misses_max = options->misses_max > 0 ? options->misses_max : UINT64_MAX;
    search->left = options->limit > 0 ? options->limit : UINT64_MAX;
    search->last_given = search->below = INT64_MAX;
    cmq_status status = cmq_store_refresh(store);
    search->generation = cmq_store_page_generation(store);
    if (status == CMQ_OK && store->options.read_only) status = cmq_index_refresh(store->index);
    search->recent_from = INT64_MAX;
    return status == CMQ_OK ? read_recent(search) : status;
}

static cmq_slice copy(uint8_t *to, cmq_slice from)
{
    if (from.bytes > 0) memcpy(to, from.data, from.bytes);
    return (cmq_slice){.data = to, .bytes = from.bytes};
}

cmq_status cmq_key_search_open(cmq_store *store, const cmq_key_search_options *options, cmq_key_search **search_out)
{
    *search_out = NULL;
    if (options->topic.bytes > NAME_BYTES_MAX || options->key.bytes > NAME_BYTES_MAX)
        return cmq_fail(CMQ_ERR_ARGUMENT, "a topic of %zu and a key of %zu bytes: none is so long",
                        options->topic.bytes, options->key.bytes);
    cmq_key_search *search = calloc(1, sizeof *search + options->topic.bytes + options->key.bytes);
    if (search == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for a search by key");
    cmq_status status = begin(store, search, options);
    search->topic = copy(search->bytes, options->topic);
    search->key = copy(search->bytes + options->topic.bytes, options->key);
    /* Now, so that later appends lie behind the place to go on from. */
    while (status == CMQ_OK && search->lot_count == 0 && !search->cursor.done) status = fill_lot(search);
    if (status != CMQ_OK) {
        cmq_key_search_close(search);
        return status;
    }
    *search_out = search;
    return CMQ_OK;
}

void cmq_key_search_close(cmq_key_search *search)
{
    if (search == NULL) return;
    cmq_places_free(&search->recent);
    free(search);
}

cmq_status cmq_store_find_key(cmq_store *store, cmq_slice topic, cmq_slice key, int64_t begin_ms, int64_t end_ms,
                              cmq_found_batch *batch)
{
    cmq_key_search search = {0};
    cmq_status status = begin(
        store, &search, &(cmq_key_search_options){.topic = topic, .key = key, .begin_ms = begin_ms, .end_ms = end_ms});
    if (status == CMQ_OK) status = cmq_key_search_next(&search, batch);
    if (status == CMQ_OK && search.left > 0 && batch->count < batch->capacity) status = cmq_store_check_end(store);
    cmq_places_free(&search.recent);
    return status;
}
