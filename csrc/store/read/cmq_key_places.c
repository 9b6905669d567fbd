/* cmq_key_places: see cmq_key_places.h.
 *
 * An index file covers the records between the first and the last that it has keys of: puts come in the order of the
 * log. Between two files there are records without keys, or such as were lost with a file. Behind the last one a writer
 * of ours has put every key before the record could be seen; over any other store the records behind it are read. The
 * range of keys that recovery could not put again, as it lay before the place where it began to read, is in the durable
 * point for as long as the index lacks it: later keys may go on in the same file, whose first and last record then
 * prove nothing.
 */
#include "store/read/cmq_key_places.h"

#include <stdlib.h>

#include "store/cmq_store_internal.h"

#define LOT 256u

/* ---- places ---- */

cmq_status cmq_places_add(cmq_places *places, int64_t phy)
{
    if (places->count == places->capacity) {
        if (places->count >= UINT32_MAX / 4)
            return cmq_fail(CMQ_ERR_LIMIT, "more than %u messages may have these keys; read them in parts",
                            places->count);
        const uint32_t capacity = places->capacity == 0 ? LOT : places->capacity * 2;
        int64_t *grown = realloc(places->phys, capacity * sizeof *grown);
        if (grown == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for %u places", capacity);
        places->phys = grown;
        places->capacity = capacity;
    }
    places->phys[places->count++] = phy;
    return CMQ_OK;
}

static int compare_places(const void *a, const void *b)
{
    const int64_t left = *(const int64_t *)a, right = *(const int64_t *)b;
    return (left > right) - (left < right);
}

void cmq_places_sort(cmq_places *places)
{
    if (places->count < 2) return;
    qsort(places->phys, places->count, sizeof *places->phys, compare_places);
    uint32_t kept = 1;
    for (uint32_t i = 1; i < places->count; i++)
        if (places->phys[i] != places->phys[kept - 1]) places->phys[kept++] = places->phys[i];
    places->count = kept;
}

void cmq_places_free(cmq_places *places)
{
    free(places->phys);
    *places = (cmq_places){0};
}

cmq_status cmq_store_key_places(cmq_store *store, cmq_slice topic, cmq_slice key, int64_t begin_ms, int64_t end_ms,
                                cmq_index_cursor *cursor, cmq_places *places)
{
    int64_t phys[LOT];
    uint32_t count = 0;
    if (store->index == NULL) {
        cursor->done = true;
        return CMQ_OK;
    }
    /* An entry's time may be up to 999 ms early. */
    const int64_t begin = begin_ms > INT64_MIN + 1000 ? begin_ms - 1000 : begin_ms;
    const uint32_t hash = cmq_index_key_hash(cmq_index_topic_seed(topic), key);
    cmq_status status =
        cmq_index_query(store->index, hash, begin, end_ms, cmq_log_min(store->log), cursor, phys, LOT, &count);
    for (uint32_t i = 0; i < count && status == CMQ_OK; i++) status = cmq_places_add(places, phys[i]);
    return status;
}

/* ---- the end of a view's index ---- */

/* May entries of before the durable point be out of reach? A power loss may have taken pages of entries behind the
 * point on which they hang, and a recovery that is under way, or was cut off, changes the file that has the point. A
 * writer that was killed in this boot leaves its pages whole. */
static bool is_in_doubt(const cmq_store *store, int64_t generation)
{
    if (store->source == CMQ_FOLLOW_SOURCE_OPENING || store->source == CMQ_FOLLOW_SOURCE_PAGE) return true;
    if (generation == 0) return store->left_unclean || store->generation != 0;
    return store->left_unclean && !cmq_follow_is_of_this_boot(store->follow);
}

/* The start of the index file that holds `phy`. */
static int64_t file_begin(const cmq_store *store, int64_t phy)
{
    cmq_index_file_info info;
    int64_t begin = 0;
    for (uint32_t i = 0; i < cmq_index_files(store->index); i++)
        if (cmq_index_file_at(store->index, i, &info) == CMQ_OK && info.count > 1 && info.begin_phy <= phy &&
            info.begin_phy > begin)
            begin = info.begin_phy;
    return begin;
}

/* The last durable point that this view knows. */
static int64_t point_of(cmq_store *store)
{
    cmq_durable_point point;
    bool found;
    const int64_t from = store->opening.scanned_from;
    /* A view that has followed for long: the last writer's, of which this view has seen the log. */
    if (!store->has_view_point || cmq_durable_point_load(store->fs, store->root, &point, &found) != CMQ_OK || !found)
        return from;
    return point.log_end > from && point.log_end <= cmq_log_confirmed(store->log) ? point.log_end : from;
}

int64_t cmq_store_index_end(cmq_store *store, int64_t generation)
{
    const int source = store->source;
    if (!store->options.read_only || source == CMQ_FOLLOW_SOURCE_FOREIGN) return INT64_MAX;
    /* else the page is a new writer's, which recovers */
    if (source == CMQ_FOLLOW_SOURCE_PAGE && generation != 0) return INT64_MAX;
    const int64_t from = point_of(store);
    return is_in_doubt(store, generation) ? file_begin(store, from) : from;
}

/* ---- gaps ---- */

typedef struct gap_list {
    cmq_gap *gaps;
    uint32_t count, capacity;
} gap_list;

static cmq_status add_gap(gap_list *list, int64_t from, int64_t end)
{
    if (from >= end) return CMQ_OK;
    if (list->count == list->capacity) {
        const uint32_t capacity = list->capacity == 0 ? 16 : list->capacity * 2;
        cmq_gap *grown = realloc(list->gaps, capacity * sizeof *grown);
        if (grown == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for %u gaps", capacity);
        list->gaps = grown;
        list->capacity = capacity;
    }
    list->gaps[list->count++] = (cmq_gap){.from = from, .end = end};
    return CMQ_OK;
}

/* May the file's pages be older than its header? Nobody has recovered this store since it crashed: upstream would drop
 * the file. */
static bool may_be_torn(const cmq_store *store, const cmq_index_file_info *info)
{
    return store->options.read_only && store->opening.was_unclean && info->end_ms > store->checkpoint.index_ms;
}

/* Has the index every key up to the confirmed end? */
static bool is_kept_by_us(cmq_store *store)
{
    if (!store->options.read_only) return true;
    /* The page stays the source for up to 100 ms after its writer's death; the next writer makes its generation 0. */
    return atomic_load(&store->source) == CMQ_FOLLOW_SOURCE_PAGE && cmq_store_page_generation(store) != 0;
}

/* Add the range that recovery could not put again. A view has it from the writer's point. */
static cmq_status add_missing(cmq_store *store, int64_t confirmed, gap_list *list)
{
    cmq_durable_point point = {.index_missing_from = store->opening.index_missing_from,
                               .index_missing_end = store->opening.index_missing_end};
    bool found;
    const cmq_status status =
        store->options.read_only ? cmq_durable_point_load(store->fs, store->root, &point, &found) : CMQ_OK;
    if (status != CMQ_OK) return status;
    const int64_t min = cmq_log_min(store->log), from = point.index_missing_from, end = point.index_missing_end;
    return add_gap(list, from > min ? from : min, end < confirmed ? end : confirmed);
}

static cmq_status list_gaps(cmq_store *store, int64_t confirmed, gap_list *list)
{
    const int64_t min = cmq_log_min(store->log), generation = cmq_store_page_generation(store);
    int64_t at = min;
    const uint32_t files = store->index != NULL ? cmq_index_files(store->index) : 0;
    cmq_status status = add_missing(store, confirmed, list);
    bool any = false, torn = false;
    for (uint32_t i = 0; i < files && status == CMQ_OK && !torn; i++) {
        cmq_index_file_info info;
        if (cmq_index_file_at(store->index, i, &info) != CMQ_OK) break;   /* deleted meanwhile: its range is read */
        if (info.count <= 1) continue;
        torn = may_be_torn(store, &info);
        if (torn) break;
        any = true;
        status = add_gap(list, at, info.begin_phy < confirmed ? info.begin_phy : confirmed);
        /* The last record may have more keys that are not in yet, so it is read again. */
        if (info.end_phy > at) at = info.end_phy;
    }
    const bool kept = any && !torn && is_kept_by_us(store);
    if (status == CMQ_OK && !kept) status = add_gap(list, at, confirmed);
    /* A writer that recovers may be about to go back in the files whose ends stand in the list. */
    const int64_t end = generation == 0 && store->follow != NULL ? cmq_store_index_end(store, 0) : INT64_MAX;
    if (status != CMQ_OK || end >= at) return status;
    return add_gap(list, end > min ? end : min, at < confirmed ? at : confirmed);
}

cmq_status cmq_store_index_gaps(cmq_store *store, int64_t confirmed, cmq_gap **gaps_out, uint32_t *count_out)
{
    gap_list list = {0};
    *gaps_out = NULL;
    *count_out = 0;
    cmq_status status = CMQ_OK;
    if (store->index != NULL && store->options.read_only) status = cmq_index_refresh(store->index);
    if (status == CMQ_OK) status = list_gaps(store, confirmed, &list);
    if (status != CMQ_OK) {
        free(list.gaps);
        return status;
    }
    *gaps_out = list.gaps;
    *count_out = list.count;
    return CMQ_OK;
}
