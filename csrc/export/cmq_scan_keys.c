/* cmq_scan_keys: found records by key: through the index where it covers the log, by reading where it does not; in the
 * order of the log.
 *
 * Invariant: the rows are those that reading every message of the topics, and comparing, would give. So a candidate
 *            counts only if its topic's queue has it at its place (not a prepared transaction, not of a deleted topic),
 *            and the row's own keys decide.
 * Way:       cmq_key_places -> [cmq_scan_keys] -> rows
 */
#include <stdlib.h>
#include <string.h>

#include "export/cmq_scan_internal.h"
#include "store/cmq_store_internal.h"
#include "store/read/cmq_key_places.h"
#include "store/record/cmq_property.h"

#define GAP_RECORDS 256u

typedef struct topic_text {
    char *text;
    uint32_t bytes;
} topic_text;

/* The request without the keys, and the places that are left. They are looked up by the calls of cmq_scan_next, which
 * pause in between. */
struct cmq_scan_places {
    cmq_places places;
    uint32_t at;
    bool looked_up;
    uint32_t topic_at, key_at;    /* being looked up in the index, */
    cmq_index_cursor cursor;
    cmq_gap *gaps;                /* … and then the parts of the log that it lacks, as of before the look-up */
    uint32_t gap_count, gap_at;
    int64_t generation;           /* of the writer's page, before the gaps were listed and the index was looked at */
    cmq_reader *reader;           /* of the gap that is being read, or NULL */
    topic_text *topics;           /* each once */
    uint32_t topic_count;
    cmq_read_start *ranges;
    uint32_t range_count;
    topic_text *tags;
    uint32_t tag_count;
    int32_t *queue_ids;
    uint32_t queue_id_count;
    cmq_read_options options;     /* its numbers; pointers are not kept */
};

static cmq_slice slice_of(const topic_text *text)
{
    return (cmq_slice){.data = (const uint8_t *)text->text, .bytes = text->bytes};
}

bool cmq_scan_has_key(const cmq_scan *scan, const cmq_scan_row *row)
{
    const cmq_slice properties = {.data = row->properties, .bytes = row->property_bytes};
    cmq_property_known known;
    cmq_property_find_known(properties, &known);
    for (uint32_t i = 0; i < scan->key_count; i++) {
        if (cmq_slice_equal(known.value[CMQ_PROPERTY_UNIQ_KEY], scan->keys[i])) return true;
        cmq_slice rest = known.value[CMQ_PROPERTY_KEYS], piece;
        while (cmq_dispatch_next_key(&rest, &piece))
            if (cmq_slice_equal(piece, scan->keys[i])) return true;
    }
    return false;
}

/* ---- candidates ---- */

static const topic_text *find_topic(const struct cmq_scan_places *places, cmq_slice topic)
{
    for (uint32_t i = 0; i < places->topic_count; i++)
        if (cmq_slice_equal(slice_of(&places->topics[i]), topic)) return &places->topics[i];
    return NULL;
}

static bool has_topic(const struct cmq_scan_places *places, cmq_slice topic)
{
    return find_topic(places, topic) != NULL;
}

static cmq_status open_gap(cmq_scan *scan, const cmq_gap *gap)
{
    static const cmq_read_options everything = {0};
    cmq_read_options options = everything;
    options.has_start_physical = gap->from > cmq_log_min(scan->store->log);
    options.start_physical = gap->from;
    options.fetch_tails = true;
    cmq_status status = cmq_reader_open(scan->store, &options, &scan->places->reader);
    /* no record begins there: from the first one */
    if (status == CMQ_ERR_ARGUMENT) status = cmq_reader_open(scan->store, &everything, &scan->places->reader);
    return status;
}

/* Keep the places of records that may be wanted. An inner batch always may: its messages have keys of their own.
 * *past_out: the gap's end was reached. */
static cmq_status add_records(cmq_scan *scan, const cmq_found_batch *batch, int64_t gap_end, bool *past_out)
{
    cmq_status status = CMQ_OK;
    for (uint32_t i = 0; i < batch->count && status == CMQ_OK; i++) {
        cmq_record_view view;
        const cmq_found *found = &batch->items[i];
        *past_out = found->physical_offset >= gap_end;
        if (*past_out) break;
        if (cmq_record_parse(found->record, found->record_bytes, found->physical_offset, 0, &view) != CMQ_OK ||
            !has_topic(scan->places, view.topic))
            continue;
        const cmq_scan_row row = {.properties = view.properties.data,
                                  .property_bytes = (uint32_t)view.properties.bytes};
        if ((view.sys_flag & CMQ_SYS_INNER_BATCH) != 0 || cmq_scan_has_key(scan, &row))
            status = cmq_places_add(&scan->places->places, found->physical_offset);
    }
    return status;
}

/* Some records of the gap. Damage is passed over: it is no message with a key. */
static cmq_status read_gap(cmq_scan *scan)
{
    struct cmq_scan_places *places = scan->places;
    const cmq_gap *gap = &places->gaps[places->gap_at];
    cmq_found items[GAP_RECORDS];
    cmq_found_batch batch = {.items = items, .capacity = GAP_RECORDS};
    bool end = false, past = false;
    cmq_status status = places->reader == NULL ? open_gap(scan, gap) : CMQ_OK;
    if (status == CMQ_OK) status = cmq_reader_next(places->reader, &batch, &end);
    if (status == CMQ_OK) {
        scan->passed += batch.count;
        status = add_records(scan, &batch, gap->end, &past);
        past = past || batch.count == 0;
    } else if (status == CMQ_ERR_CORRUPT) {
        past = cmq_last_error()->offset >= gap->end;
        status = CMQ_OK;
    }
    cmq_found_batch_release(&batch);
    if (status != CMQ_OK || !past) return status;
    cmq_reader_close(places->reader);
    places->reader = NULL;
    places->gap_at++;
    return CMQ_OK;
}

/* A batch queue's messages have keys that the index knows nothing of: then everything is read. */
static bool has_batch_queue(const cmq_store *store, const struct cmq_scan_places *places)
{
    const uint32_t count = cmq_queues_count(store->queues);
    for (uint32_t i = 0; i < count; i++) {
        const cmq_queue *queue = cmq_queues_at(store->queues, i);
        const cmq_slice topic = {.data = (const uint8_t *)cmq_queue_topic(queue),
                                 .bytes = cmq_queue_topic_bytes(queue)};
        if (cmq_queue_kind_of(queue) == CMQ_QUEUE_BATCH && !cmq_queue_deleted(queue) && has_topic(places, topic))
            return true;
    }
    return false;
}

static cmq_status list_gaps(cmq_scan *scan)
{
    struct cmq_scan_places *places = scan->places;
    free(places->gaps);
    places->generation = cmq_store_page_generation(scan->store);
    return cmq_store_index_gaps(scan->store, cmq_log_confirmed(scan->store->log), &places->gaps, &places->gap_count);
}

/* A writer that began to recover since the gaps were listed may have taken keys out of the index before they were
 * found, and another may do so again: look all up once more. */
static cmq_status begin_again_if_disturbed(cmq_scan *scan)
{
    struct cmq_scan_places *places = scan->places;
    if (!scan->store->options.read_only || cmq_store_page_generation(scan->store) == places->generation) return CMQ_OK;
    places->topic_at = 0;
    return list_gaps(scan);
}

/* Some places of a key that the index knows. */
static cmq_status read_index(cmq_scan *scan)
{
    struct cmq_scan_places *places = scan->places;
    const uint32_t before = places->places.count;
    const cmq_status status =
        cmq_store_key_places(scan->store, slice_of(&places->topics[places->topic_at]), scan->keys[places->key_at],
                             INT64_MIN, INT64_MAX, &places->cursor, &places->places);
    scan->passed += 1 + places->places.count - before;
    if (status != CMQ_OK || !places->cursor.done) return status;
    places->cursor = (cmq_index_cursor){0};
    if (++places->key_at < scan->key_count) return CMQ_OK;
    places->key_at = 0;
    return ++places->topic_at < places->topic_count ? CMQ_OK : begin_again_if_disturbed(scan);
}

/* CMQ_AGAIN: more are to be looked up, and the caller is let in between. */
static cmq_status look_up(cmq_scan *scan)
{
    struct cmq_scan_places *places = scan->places;
    cmq_status status = CMQ_OK;
    while (status == CMQ_OK && (places->topic_at < places->topic_count || places->gap_at < places->gap_count)) {
        status = places->topic_at < places->topic_count ? read_index(scan) : read_gap(scan);
        if (status == CMQ_OK) status = cmq_scan_let_in(scan);
    }
    /* Some of the places are missing now, so no later call may go on. */
    if (status != CMQ_OK && status != CMQ_AGAIN) scan->broken = true;
    if (status != CMQ_OK) return status;
    cmq_places_sort(&places->places);
    places->looked_up = true;
    return CMQ_OK;
}

/* ---- opening ---- */

static cmq_status copy_text(topic_text *into, cmq_slice text)
{
    into->text = malloc(text.bytes + 1);
    if (into->text == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory to read by key");
    if (text.bytes > 0) memcpy(into->text, text.data, text.bytes);
    into->bytes = (uint32_t)text.bytes;
    return CMQ_OK;
}

static cmq_status copy_options(struct cmq_scan_places *places, const cmq_read_options *read)
{
    const uint32_t topics = read->only_starts ? read->start_count : read->topic_count;
    places->options = *read;
    places->topics = calloc(topics + 1, sizeof *places->topics);
    places->tags = calloc(read->tag_count + 1, sizeof *places->tags);
    places->ranges = calloc(read->start_count + 1, sizeof *places->ranges);
    places->queue_ids = calloc(read->queue_id_count + 1, sizeof *places->queue_ids);
    if (places->topics == NULL || places->tags == NULL || places->ranges == NULL || places->queue_ids == NULL)
        return cmq_fail(CMQ_ERR_MEMORY, "no memory to read by key");
    cmq_status status = CMQ_OK;
    for (uint32_t i = 0; i < topics && status == CMQ_OK; i++) {
        const cmq_slice topic = read->only_starts ? read->starts[i].topic : read->topics[i];
        if (!has_topic(places, topic)) status = copy_text(&places->topics[places->topic_count++], topic);
    }
    for (; places->tag_count < read->tag_count && status == CMQ_OK; places->tag_count++)
        status = copy_text(&places->tags[places->tag_count], read->tags[places->tag_count]);
    if (status != CMQ_OK) return status;
    if (read->only_starts) places->range_count = read->start_count;
    for (uint32_t i = 0; i < places->range_count; i++) {
        places->ranges[i] = read->starts[i];
        places->ranges[i].topic = slice_of(find_topic(places, read->starts[i].topic));
    }
    places->queue_id_count = read->queue_id_count;
    if (read->queue_id_count > 0)
        memcpy(places->queue_ids, read->queue_ids, read->queue_id_count * sizeof *places->queue_ids);
    return CMQ_OK;
}

cmq_status cmq_scan_places_open(cmq_scan *scan, const cmq_scan_options *options)
{
    /* The reader checks the options; it also brings a follower's view up to date. */
    cmq_read_options read = options->read;
    read.fetch_tails = true;
    read.where = NULL;
    cmq_status status = cmq_reader_open(scan->store, &read, &scan->reader);
    if (status != CMQ_OK) return status;
    /* a consumer's progress: filtered as it comes */
    if (!options->read.only_starts && options->read.start_count > 0) return CMQ_OK;
    scan->places = calloc(1, sizeof *scan->places);
    if (scan->places == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory to read by key");
    status = copy_options(scan->places, &options->read);
    const bool by_reading =
        status == CMQ_OK && (scan->store->index == NULL || has_batch_queue(scan->store, scan->places));
    if (status == CMQ_OK && !by_reading) status = list_gaps(scan);
    if (status != CMQ_OK) return status;
    if (by_reading) {
        cmq_scan_places_close(scan);
        return CMQ_OK;
    }
    cmq_reader_close(scan->reader);
    scan->reader = NULL;
    return CMQ_OK;
}

void cmq_scan_places_close(cmq_scan *scan)
{
    struct cmq_scan_places *places = scan->places;
    if (places == NULL) return;
    for (uint32_t i = 0; places->topics != NULL && i < places->topic_count; i++) free(places->topics[i].text);
    for (uint32_t i = 0; places->tags != NULL && i < places->tag_count; i++) free(places->tags[i].text);
    cmq_places_free(&places->places);
    cmq_reader_close(places->reader);
    free(places->gaps);
    free(places->topics);
    free(places->tags);
    free(places->ranges);
    free(places->queue_ids);
    free(places);
    scan->places = NULL;
}

/* ---- one place after another ---- */

static bool in_ranges(const struct cmq_scan_places *places, const cmq_record_view *view)
{
    const cmq_read_options *options = &places->options;
    if (!options->only_starts) {
        if (options->has_start && view->queue_offset < options->start) return false;
        return !options->has_end || view->queue_offset < options->end;
    }
    for (uint32_t i = 0; i < places->range_count; i++) {
        const cmq_read_start *range = &places->ranges[i];
        if (range->queue_id != view->queue_id || !cmq_slice_equal(range->topic, view->topic)) continue;
        if (view->queue_offset >= range->offset && (!range->has_end || view->queue_offset < range->end)) return true;
    }
    return false;
}

static bool is_wanted(const struct cmq_scan_places *places, const cmq_record_view *view)
{
    const cmq_read_options *options = &places->options;
    cmq_slice tags;
    bool id = places->queue_id_count == 0, tag = places->tag_count == 0;
    if (!has_topic(places, view->topic) || !in_ranges(places, view)) return false;
    if (options->has_start_time && view->store_timestamp_ms < options->start_time_ms) return false;
    if (options->has_end_time && view->store_timestamp_ms >= options->end_time_ms) return false;
    for (uint32_t i = 0; i < places->queue_id_count && !id; i++) id = places->queue_ids[i] == view->queue_id;
    if (!tag && !cmq_property_find(view->properties, cmq_slice_of_text("TAGS"), &tags)) return false;
    for (uint32_t i = 0; i < places->tag_count && !tag; i++) tag = cmq_slice_equal(slice_of(&places->tags[i]), tags);
    return id && tag;
}

/* Does its queue have the record at its place? */
static cmq_status is_queued(cmq_scan *scan, const cmq_record_view *view, cmq_queue **queue_out, bool *queued_out)
{
    cmq_unit unit;
    uint32_t count = 0;
    int64_t next;
    *queued_out = false;
    *queue_out = cmq_queues_find(scan->store->queues, view->topic, view->queue_id);
    if (*queue_out == NULL || view->queue_offset < 0) return CMQ_OK;
    const int64_t confirmed = cmq_log_confirmed(scan->store->log);
    const cmq_status status = cmq_queue_read(*queue_out, view->queue_offset, confirmed, &unit, 1, &count, &next);
    *queued_out =
        status == CMQ_OK && count == 1 && unit.phy == view->physical_offset && unit.offset == view->queue_offset;
    return status;
}

/* The record at a place, into the batch. Its body's CRC is checked if every body's is. CMQ_ERR_OFFSET, CMQ_ERR_CORRUPT:
 * no record there. */
static cmq_status take_place(cmq_scan *scan, int64_t phy, cmq_record_view *view_out)
{
    cmq_found_batch *batch = &scan->found;
    cmq_segment *segment;
    const int64_t confirmed = cmq_log_confirmed(scan->store->log);
    if (phy >= confirmed) return CMQ_ERR_OFFSET;
    const cmq_status status = cmq_store_record_at(scan->store, phy, confirmed, 0, &segment, view_out);
    if (status != CMQ_OK) return status == CMQ_END || status == CMQ_AGAIN ? CMQ_ERR_CORRUPT : status;
    batch->pins[batch->pin_count++] = segment;
    batch->items[batch->count++] = (cmq_found){.record = cmq_segment_data(segment) + (phy - cmq_segment_start(segment)),
                                               .physical_offset = phy,
                                               .queue_offset = view_out->queue_offset,
                                               .record_bytes = view_out->record_bytes,
                                               .count = 1};
    return CMQ_OK;
}

cmq_status cmq_scan_places_next(cmq_scan *scan)
{
    struct cmq_scan_places *places = scan->places;
    if (!places->looked_up) {
        const cmq_status status = look_up(scan);
        if (status != CMQ_OK) return status;
    }
    while (scan->found.count == 0) {
        if (places->at == places->places.count) {
            scan->ended = true;
            const cmq_status end = cmq_store_check_end(scan->store);
            return end == CMQ_OK ? CMQ_END : end;
        }
        cmq_record_view view;
        cmq_queue *queue;
        bool queued = false;
        /* The index may lead to what has expired, was cut or is not confirmed yet: those are no messages. */
        cmq_status status = take_place(scan, places->places.phys[places->at++], &view);
        if (status == CMQ_ERR_OFFSET || status == CMQ_ERR_CORRUPT) status = CMQ_OK;
        else if (status == CMQ_OK && is_wanted(places, &view)) status = is_queued(scan, &view, &queue, &queued);
        if (status == CMQ_OK && queued) scan->found.items[0].queue = queue;
        else cmq_found_batch_release(&scan->found);
        if (status == CMQ_OK && !queued) {
            scan->passed++;
            status = cmq_scan_let_in(scan);
        }
        if (status != CMQ_OK) return status;
    }
    return CMQ_OK;
}
