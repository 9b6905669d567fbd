/* cmq_reader: iteration: over queues merged by physical offset (which is the order of storing), or over the whole log.
 *
 * Each queue has a cursor with a small buffer of units; a heap gives the cursor whose next unit lies lowest in the log
 * (highest, backwards). The heap is worked off against one confirmed end, over as many calls as that takes, so that a
 * message of a slow cursor is never passed by a later one of a fast cursor. Tags are filtered by hash in the queue
 * before a record is touched, and by string in the record afterwards.
 *
 * Per message: one unit (40 B) copied, one record head read; no allocation, no lock; one pin per segment and batch. The
 * heads of the next few records are fetched meanwhile, for the units name their places, and one miss a record would be
 * most of the time.
 * Threads: one at a time per reader; any number of readers.
 * Way:     queues' units -> [cmq_reader] -> found records -> bindings
 */
#include <stdlib.h>
#include <string.h>

#include "base/cmq_assert.h"
#include "base/cmq_hash.h"
#include "store/read/cmq_reader_internal.h"
#include "store/read/cmq_unit_check.h"

#define CURSOR_UNITS_MIN 16u
#define CURSOR_UNITS_MAX 512u
#define CURSOR_UNITS_ALL 65536u          /* of all cursors together */
#define EXAMINE_MAX (UINT64_C(1) << 20)  /* units looked at per refill of a tag filter */
#define READER_NAMES_MAX 4096u
#define FETCH_UNITS 24u                  /* how far ahead heads of records are fetched, over all cursors */
#define AHEAD_BYTES_MIN (INT64_C(128) << 10)
#define AHEAD_BYTES_MAX (INT64_C(8) << 20)

/* ---- the question ---- */

static cmq_status copy_slices(const cmq_slice *from, uint32_t count, char ***into_out, const char *what)
{
    *into_out = NULL;
    if (count == 0) return CMQ_OK;
    if (count > READER_NAMES_MAX)
        return cmq_fail(CMQ_ERR_LIMIT, "%u %s to read by, at most %u are allowed", count, what, READER_NAMES_MAX);
    char **copies = calloc(count, sizeof *copies);
    if (copies == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for %s", what);
    *into_out = copies;
    for (uint32_t i = 0; i < count; i++) {
        copies[i] = strndup(from[i].bytes > 0 ? (const char *)from[i].data : "", from[i].bytes);
        if (copies[i] == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for %s", what);
    }
    return CMQ_OK;
}

static cmq_status check_options(const cmq_read_options *options)
{
    if ((options->has_start || options->has_end) && options->topic_count != 1)
        return cmq_fail(CMQ_ERR_ARGUMENT, "start and end are queue offsets and need exactly one topic");
    if (options->has_start && options->has_end && options->start > options->end)
        return cmq_fail(CMQ_ERR_ARGUMENT, "start %lld lies behind end %lld", (long long)options->start,
                        (long long)options->end);
    if (options->topic_count == 0 && options->queue_id_count > 0)
        return cmq_fail(CMQ_ERR_ARGUMENT, "queue ids need a topic");
    if (options->only_starts && (options->topic_count > 0 || options->queue_id_count > 0 || options->has_start ||
                                 options->has_end || options->backwards))
        return cmq_fail(CMQ_ERR_ARGUMENT, "where only ranges of single queues are read, no topic, queue id, offset or "
                                          "direction can be given beside them");
    if (options->start_count > 0 && !options->only_starts && (options->backwards || options->topic_count == 0))
        return cmq_fail(CMQ_ERR_ARGUMENT, "single queues' starts need a topic and go forwards");
    if (options->has_start_physical && (options->topic_count > 0 || options->only_starts))
        return cmq_fail(CMQ_ERR_ARGUMENT, "a physical start is for reading the whole log, without topics");
    for (uint32_t i = 0; i < options->start_count; i++) {
        const cmq_read_start *start = &options->starts[i];
        if (start->offset < 0)
            return cmq_fail(CMQ_ERR_ARGUMENT, "a queue cannot begin at offset %lld", (long long)start->offset);
        if (start->has_end && start->end < start->offset)
            return cmq_fail(CMQ_ERR_ARGUMENT, "the range of queue %d of topic %.*s begins at %lld, behind its end %lld",
                            start->queue_id, (int)(start->topic.bytes < 255 ? start->topic.bytes : 255),
                            (const char *)start->topic.data, (long long)start->offset, (long long)start->end);
    }
    return CMQ_OK;
}

static cmq_status take_options(cmq_reader *reader, const cmq_read_options *options)
{
    reader->options = *options;
    reader->of_queues = options->topic_count > 0 || options->only_starts;
    if (cmq_reader_selects(reader) || options->check_crc) reader->options.fetch_tails = true;
    cmq_status status = check_options(options);
    if (status == CMQ_OK) status = copy_slices(options->topics, options->topic_count, &reader->topics, "topics");
    if (status == CMQ_OK) status = copy_slices(options->tags, options->tag_count, &reader->tags, "tags");
    if (status != CMQ_OK) return status;
    if (options->tag_count > 0) {
        reader->tag_hashes = calloc(options->tag_count, sizeof *reader->tag_hashes);
        if (reader->tag_hashes == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for tag hashes");
        for (uint32_t i = 0; i < options->tag_count; i++) reader->tag_hashes[i] = cmq_jhash(options->tags[i]);
    }
    if (options->queue_id_count > 0) {
        reader->queue_ids = calloc(options->queue_id_count, sizeof *reader->queue_ids);
        if (reader->queue_ids == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for queue ids");
        memcpy(reader->queue_ids, options->queue_ids, options->queue_id_count * sizeof *reader->queue_ids);
    }
    reader->options.topics = reader->options.tags = NULL;
    reader->options.starts = NULL;
    reader->options.queue_ids = NULL;
    return CMQ_OK;
}

static bool wants_queue(const cmq_reader *reader, const cmq_queue *queue)
{
    if (cmq_queue_deleted(queue)) return false;
    bool topic = false, id = reader->options.queue_id_count == 0;
    for (uint32_t i = 0; i < reader->options.topic_count && !topic; i++)
        topic = strcmp(reader->topics[i], cmq_queue_topic(queue)) == 0;
    for (uint32_t i = 0; i < reader->options.queue_id_count && !id; i++)
        id = reader->queue_ids[i] == cmq_queue_id(queue);
    return topic && id;
}

/* ---- cursors ---- */

/* Where a cursor begins: by offset, or at an end of the queue. Times are looked for when it is first filled, as its
 * range is known then. */
static void place_cursor(const cmq_reader *reader, cmq_cursor *cursor, int64_t confirmed)
{
    const cmq_read_options *options = &reader->options;
    cursor->first = options->has_start ? options->start : 0;
    cursor->end = options->has_end ? options->end : INT64_MAX;
    cursor->until = INT64_MAX;
    cursor->counts_expired = options->has_start;
    cursor->next = cursor->first;
    if (!options->backwards) return;
    const int64_t max = cmq_queue_max(cursor->queue, confirmed);
    cursor->next = cursor->end < max ? cursor->end : max;
}

static cmq_status add_cursor(cmq_reader *reader, cmq_queue *queue, int64_t confirmed)
{
    if (reader->cursor_count == reader->cursor_capacity) {
        const uint32_t capacity = reader->cursor_capacity == 0 ? 16 : reader->cursor_capacity * 2;
        cmq_cursor **cursors = realloc(reader->cursors, capacity * sizeof *cursors);
        if (cursors == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for %u cursors", capacity);
        reader->cursors = cursors;
        cmq_heap_entry *heap = realloc(reader->heap, capacity * sizeof *heap);
        if (heap == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for %u cursors", capacity);
        reader->heap = heap;
        reader->cursor_capacity = capacity;
    }
    uint32_t units = CURSOR_UNITS_ALL / (reader->cursor_count + 1);
    if (units < CURSOR_UNITS_MIN) units = CURSOR_UNITS_MIN;
    if (units > CURSOR_UNITS_MAX) units = CURSOR_UNITS_MAX;
    cmq_cursor *cursor = calloc(1, sizeof *cursor + units * sizeof cursor->units[0]);
    if (cursor == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for a cursor");
    cursor->queue = queue;
    cursor->capacity = units;
    place_cursor(reader, cursor, confirmed);
    reader->cursors[reader->cursor_count++] = cursor;
    return CMQ_OK;
}

/* Queues that appeared since the last look. */
static cmq_status find_queues(cmq_reader *reader, int64_t confirmed)
{
    const cmq_queues *queues = cmq_store_queues(reader->store);
    const uint32_t count = cmq_queues_count(queues);
    for (; reader->queues_seen < count; reader->queues_seen++) {
        cmq_queue *queue = cmq_queues_at(queues, reader->queues_seen);
        if (!wants_queue(reader, queue)) continue;
        const cmq_status status = add_cursor(reader, queue, confirmed);
        if (status != CMQ_OK) return status;
    }
    return CMQ_OK;
}

static void place_at(cmq_cursor *cursor, const cmq_read_start *start)
{
    cursor->first = cursor->next = start->offset;
    if (start->has_end) cursor->end = start->end;
    cursor->counts_expired = true;
}

/* Existing queues begin at their given starts; one that comes later, perhaps after a deletion of its topic, begins at
 * its beginning. The search goes on from the last hit, for the starts mostly have the queues' own order. */
static cmq_status place_at_starts(cmq_reader *reader, const cmq_read_options *options)
{
    uint32_t at = 0;
    for (uint32_t i = 0; i < options->start_count; i++) {
        const cmq_read_start *start = &options->starts[i];
        const cmq_queue *queue = cmq_queues_find(cmq_store_queues(reader->store), start->topic, start->queue_id);
        for (uint32_t looked = 0; queue != NULL && looked < reader->cursor_count;
             looked++, at = (at + 1) % reader->cursor_count) {
            if (reader->cursors[at]->queue != queue) continue;
            place_at(reader->cursors[at], start);
            break;
        }
    }
    return CMQ_OK;
}

/* The starts and nothing else: a cursor for each. */
static cmq_status add_starts(cmq_reader *reader, const cmq_read_options *options, int64_t confirmed)
{
    for (uint32_t i = 0; i < options->start_count; i++) {
        const cmq_read_start *start = &options->starts[i];
        if (start->has_end && start->end == start->offset) continue;
        cmq_queue *queue = cmq_queues_find(cmq_store_queues(reader->store), start->topic, start->queue_id);
        reader->lacks_queues |= queue == NULL;
        if (queue == NULL && options->may_be_missing) continue;
        cmq_status status = queue == NULL ? cmq_store_check_end(reader->store) : CMQ_OK;
        if (status != CMQ_OK) return status;
        if (queue == NULL)
            return cmq_fail(CMQ_ERR_NOT_FOUND, "the store has no queue %d of topic %.*s", start->queue_id,
                            (int)(start->topic.bytes < 255 ? start->topic.bytes : 255),
                            (const char *)start->topic.data);
        status = add_cursor(reader, queue, confirmed);
        if (status != CMQ_OK) return status;
        place_at(reader->cursors[reader->cursor_count - 1], start);
    }
    return CMQ_OK;
}

static inline void fetch(const cmq_reader *reader, const cmq_unit *unit)
{
    /* a damaged unit may say any number */
    const uint64_t into = (uint64_t)unit->phy - (uint64_t)reader->window_start;
    if (into >= (uint64_t)cmq_log_segment_bytes(reader->store->log)) return;
    const uintptr_t record = reader->window_data + into;
    cmq_record_prefetch_parts((const uint8_t *)record, (uint32_t)unit->bytes, reader->options.fetch_tails);
}

/* Messages that were wanted from `from` on, but begin later because their files have expired. */
static void count_expired(cmq_reader *reader, cmq_cursor *cursor, int64_t from)
{
    const int64_t min = cmq_queue_min(cursor->queue);
    int64_t until = min < cursor->end ? min : cursor->end;
    if (cursor->count > 0 && cursor->units[0].offset < until) until = cursor->units[0].offset;
    if (cursor->counts_expired && from < until) reader->expired += until - from;
    cursor->counts_expired = true;
}

/* Did reading fail because the queue was deleted meanwhile, here or in the process that writes? */
static bool was_deleted(cmq_reader *reader, const cmq_queue *queue)
{
    const cmq_error error = *cmq_last_error();
    /* and the last error says why */
    if (reader->store->options.read_only && cmq_store_refresh(reader->store) == CMQ_ERR_CLOSED) return false;
    if (cmq_queue_deleted(queue)) return true;
    (void)cmq_fail_at(error.status, error.offset, "%s", error.text);
    return false;
}

/* Whether the units of a queue tell which messages can have the wanted tags. Batches hold messages of any tags, and
 * units of delayed messages have delivery times in place of hashes. */
static bool units_tell_tags(const cmq_reader *reader, const cmq_queue *queue)
{
    const cmq_slice topic = {(const uint8_t *)cmq_queue_topic(queue), cmq_queue_topic_bytes(queue)};
    return reader->options.tag_count > 0 && cmq_queue_kind_of(queue) == CMQ_QUEUE_SIMPLE &&
           !cmq_slice_equal(topic, cmq_slice_of_text(CMQ_TOPIC_SCHEDULE));
}

/* Fill an empty cursor; it stays empty when there is nothing visible in its range. */
static cmq_status refill(cmq_reader *reader, cmq_cursor *cursor, int64_t confirmed)
{
    const cmq_read_options *options = &reader->options;
    cmq_status status = CMQ_OK;
    cursor->at = cursor->count = 0;
    if (!cursor->timed) cmq_reader_bound_times(reader, cursor, confirmed);
    cursor->timed = true;
    const int64_t first = cursor->first > cursor->from ? cursor->first : cursor->from;
    const int64_t end = cursor->end < cursor->until ? cursor->end : cursor->until;
    while (status == CMQ_OK && cursor->count == 0 && !cursor->done && !cmq_queue_deleted(cursor->queue)) {
        const int64_t before = cursor->next;
        if (options->backwards)
            status = cmq_queue_read_back(cursor->queue, cursor->next, confirmed, cursor->units, cursor->capacity,
                                         &cursor->count, &cursor->next);
        else if (units_tell_tags(reader, cursor->queue))
            status = cmq_queue_scan(cursor->queue, cursor->next, confirmed, reader->tag_hashes, options->tag_count,
                                    EXAMINE_MAX, cursor->units, cursor->capacity, &cursor->count, &cursor->next);
        else
            status = cmq_queue_read(cursor->queue, cursor->next, confirmed, cursor->units, cursor->capacity,
                                    &cursor->count, &cursor->next);
        if (!options->backwards) count_expired(reader, cursor, before);
        if (cursor->count == 0 && cursor->next == before) break;
    }
    if (status == CMQ_ERR_CORRUPT && was_deleted(reader, cursor->queue)) return CMQ_OK;
    if (status != CMQ_OK) return cmq_last_error()->status == CMQ_ERR_CLOSED ? CMQ_ERR_CLOSED : status;
    /* Bounds by offset cut the buffer; units behind them never come. */
    for (uint32_t i = 0; i < cursor->count; i++) {
        const cmq_unit *unit = &cursor->units[i];
        const bool past = options->backwards ? unit->offset + unit->count <= first : unit->offset >= end;
        if (!past) continue;
        cursor->count = i;
        cursor->done = true;
    }
    if (options->backwards && cursor->count == 0 && cursor->next <= cmq_queue_min(cursor->queue)) cursor->done = true;
    if (!options->backwards && cursor->next >= end) cursor->ends = true;
    for (uint32_t i = 0; i < cursor->count && i < reader->fetch_units; i++) fetch(reader, &cursor->units[i]);
    return CMQ_OK;
}

/* ---- the heap ---- */

static int64_t key_of(const cmq_reader *reader, const cmq_cursor *cursor)
{
    const int64_t phy = cursor->units[cursor->at].phy;
    return reader->options.backwards ? ~phy : phy;
}

static void sift_down(cmq_reader *reader, uint32_t at)
{
    cmq_heap_entry *const heap = reader->heap;
    const uint32_t count = reader->heap_count;
    const cmq_heap_entry moved = heap[at];
    for (uint32_t child = 2 * at + 1; child < count; at = child, child = 2 * at + 1) {
        if (child + 1 < count && heap[child + 1].key < heap[child].key) child++;
        if (heap[child].key >= moved.key) break;
        heap[at] = heap[child];
    }
    heap[at] = moved;
}

static cmq_status build_heap(cmq_reader *reader, int64_t confirmed)
{
    reader->heap_count = 0;
    for (uint32_t i = 0; i < reader->cursor_count; i++) {
        cmq_cursor *cursor = reader->cursors[i];
        if (cursor->at == cursor->count) {
            const cmq_status status = refill(reader, cursor, confirmed);
            if (status != CMQ_OK) return status;
        }
        if (cursor->at < cursor->count)
            reader->heap[reader->heap_count++] = (cmq_heap_entry){.key = key_of(reader, cursor), .cursor = i};
    }
    for (uint32_t i = reader->heap_count / 2; i > 0; i--) sift_down(reader, i - 1);
    reader->fetch_units = 1 + FETCH_UNITS / (reader->heap_count + 1);
    reader->merged = true;
    reader->merged_end = confirmed;
    return CMQ_OK;
}

/* Units of the first cursor were taken: refill or drop it, and put the heap right. */
static cmq_status settle_first(cmq_reader *reader, int64_t confirmed)
{
    cmq_cursor *cursor = reader->cursors[reader->heap[0].cursor];
    if (cursor->at == cursor->count) {
        const cmq_status status = refill(reader, cursor, confirmed);
        if (status != CMQ_OK) return status;
    }
    if (cursor->at < cursor->count) reader->heap[0].key = key_of(reader, cursor);
    else reader->heap[0] = reader->heap[--reader->heap_count];
    if (reader->heap_count > 1) sift_down(reader, 0);
    return CMQ_OK;
}

static inline void fetch_ahead(const cmq_reader *reader, const cmq_cursor *cursor)
{
    const uint32_t ahead = cursor->at + reader->fetch_units;
    if (ahead < cursor->count) fetch(reader, &cursor->units[ahead]);
}

/* ---- records ---- */

/* A walk that goes on forwards has ever larger pieces read ahead of it; a jump restarts without reading ahead, as it
 * may be one of many. Never beyond the confirmed end: pages there are the writer's to make. */
static void read_ahead(cmq_reader *reader, int64_t phy, const uint8_t *data, size_t available)
{
    const int64_t confirmed = cmq_log_confirmed(reader->store->log);
    const bool goes_on = phy >= reader->ahead_from && phy - reader->ahead_until < reader->ahead_bytes;
    if (!goes_on) {
        reader->ahead_bytes = AHEAD_BYTES_MIN;
        reader->ahead_from = phy + AHEAD_BYTES_MIN / 2;
        reader->ahead_until = phy + AHEAD_BYTES_MIN;
        return;
    }
    if (reader->ahead_bytes < AHEAD_BYTES_MAX) reader->ahead_bytes *= 2;
    const int64_t from = reader->ahead_until > phy ? reader->ahead_until : phy;
    int64_t to = from + reader->ahead_bytes;
    if (to > confirmed) to = confirmed;
    if (to - phy > (int64_t)available) to = phy + (int64_t)available;
    if (from < to) cmq_file_read_ahead(data + (from - phy), (size_t)(to - from));
    reader->ahead_until = from < to ? to : from;
    reader->ahead_from = reader->ahead_until - reader->ahead_bytes / 2;
    if (reader->ahead_from <= phy) reader->ahead_from = phy + 1;
}

/* As cmq_reader_pin for the segment that was read last. */
static inline cmq_status pin(cmq_reader *reader, cmq_found_batch *batch, int64_t phy, const uint8_t **data_out,
                             size_t *available_out)
{
    const int64_t into = phy - reader->window_start, bytes = cmq_log_segment_bytes(reader->store->log);
    if (batch->pin_count == 0 || batch->pins[batch->pin_count - 1] != reader->window || into < 0 || into >= bytes ||
        phy >= reader->ahead_from)
        return cmq_reader_pin(reader, batch, phy, data_out, available_out);
    *data_out = (const uint8_t *)reader->window_data + into;
    *available_out = (size_t)(bytes - into);
    return CMQ_OK;
}

cmq_status cmq_reader_pin(cmq_reader *reader, cmq_found_batch *batch, int64_t phy, const uint8_t **data_out,
                          size_t *available_out)
{
    const int64_t bytes = cmq_log_segment_bytes(reader->store->log);
    for (uint32_t i = batch->pin_count; i > 0; i--) {   /* mostly the last one */
        const int64_t start = cmq_segment_start(batch->pins[i - 1]);
        if (phy < start || phy - start >= bytes) continue;
        *data_out = cmq_segment_data(batch->pins[i - 1]) + (phy - start);
        *available_out = (size_t)(start + bytes - phy);
        if (phy >= reader->ahead_from || phy < reader->ahead_until - 2 * AHEAD_BYTES_MAX)
            read_ahead(reader, phy, *data_out, *available_out);
        return CMQ_OK;
    }
    if (batch->pin_count == CMQ_FOUND_PINS_MAX && batch->count > 0) return CMQ_AGAIN;
    if (batch->pin_count == CMQ_FOUND_PINS_MAX) cmq_found_batch_release(batch);   /* nothing found in any of them */
    const cmq_status status =
        cmq_log_pin(reader->store->log, phy, &batch->pins[batch->pin_count], data_out, available_out);
    if (status != CMQ_OK) return status;
    reader->window = batch->pins[batch->pin_count++];
    reader->window_data = (uintptr_t)cmq_segment_data(reader->window);
    reader->window_start = cmq_segment_start(reader->window);
    return CMQ_OK;
}

static cmq_status check_whole(const cmq_reader *reader, const cmq_unit *unit, const uint8_t *data)
{
    if (cmq_record_is_whole(data, (uint32_t)unit->bytes, reader->store->options.check_property_crc)) return CMQ_OK;
    return cmq_fail_at(
        CMQ_ERR_CORRUPT, unit->phy,
        "the record at physical offset %lld, of queue offset %lld, does not match its CRC; run `cometmq verify`",
        (long long)unit->phy, (long long)unit->offset);
}

/* Look at the record of the cursor's unit. *keep_out: it belongs to the result. */
static cmq_status look_at_unit(cmq_reader *reader, cmq_found_batch *batch, const cmq_cursor *cursor,
                               cmq_found *found_out, bool *keep_out)
{
    const cmq_unit *unit = &cursor->units[cursor->at];
    const uint8_t *data;
    size_t available;
    *keep_out = false;
    if (unit->phy < 0 || unit->count < 1)
        return cmq_fail_at(CMQ_ERR_CORRUPT, unit->phy, "the unit at queue offset %lld is damaged; run `cometmq verify`",
                           (long long)unit->offset);
    cmq_status status = pin(reader, batch, unit->phy, &data, &available);
    if (status == CMQ_ERR_OFFSET && unit->phy < cmq_log_min(reader->store->log)) {   /* expired meanwhile */
        reader->expired += unit->count;
        return CMQ_OK;
    }
    if (status == CMQ_ERR_OFFSET)
        return cmq_fail_at(CMQ_ERR_CORRUPT, unit->phy,
                           "queue offset %lld points at %lld, which is not in the log; run `cometmq verify`",
                           (long long)unit->offset, (long long)unit->phy);
    if (status != CMQ_OK) return status;
    const cmq_unit_owner owner = cmq_unit_owner_of(cursor->queue, reader->options.check_crc);
    const bool plain = cmq_unit_is_plain(&owner, unit, data, available);
    status = cmq_store_check_lost(reader->store, data, available, unit->phy);
    if (status == CMQ_OK && !plain) status = cmq_unit_check(reader->store, cursor->queue, unit, data, available);
    if (status == CMQ_OK && reader->options.check_crc) status = check_whole(reader, unit, data);
    if (status != CMQ_OK) return status;
    if (reader->options.has_start_time || reader->options.has_end_time) {
        const bool ipv6 = (cmq_load_i32(data + CMQ_RECORD_AT_SYS_FLAG) & CMQ_SYS_BORN_HOST_IPV6) != 0;
        if (!cmq_reader_in_time(reader,
                                cmq_load_i64(data + CMQ_RECORD_AT_STORE_TIMESTAMP + (ipv6 ? CMQ_RECORD_IPV6_MORE : 0))))
            return CMQ_OK;
    }
    if (cmq_reader_selects(reader)) {
        cmq_record_view view;
        status = cmq_record_parse(data, available, unit->phy, 0, &view);
        if (status != CMQ_OK)
            return status == CMQ_ERR_CORRUPT ? status : cmq_fail_at(CMQ_ERR_CORRUPT, unit->phy, "half a record");
        if (!cmq_reader_matches(reader, &view)) return CMQ_OK;
    }
    *found_out = (cmq_found){.record = data,
                             .queue = cursor->queue,
                             .physical_offset = unit->phy,
                             .queue_offset = unit->offset,
                             .record_bytes = (uint32_t)unit->bytes,
                             .count = unit->count};
    const int64_t skip = cursor->first - unit->offset, behind = unit->offset + unit->count - cursor->end;
    if (skip > 0) found_out->skip = (int32_t)(skip < unit->count ? skip : unit->count);
    if (behind > 0) found_out->behind = (int32_t)(behind < unit->count ? behind : unit->count);
    *keep_out = found_out->skip + found_out->behind < unit->count;
    return CMQ_OK;
}

/* In a view: apparent damage may be a unit or a record that another process changed since the unit was read, or that
 * was cut. Read it once more, as it is now. */
static cmq_status look_again(cmq_reader *reader, cmq_found_batch *batch, cmq_cursor *cursor, cmq_found *found_out,
                             bool *keep_out)
{
    const cmq_error error = *cmq_last_error();
    cmq_unit *unit = &cursor->units[cursor->at], now;
    uint32_t count = 0;
    int64_t next;
    cmq_status status = cmq_store_refresh(reader->store);
    if (status == CMQ_ERR_CLOSED) return status;
    if (status == CMQ_OK)
        status = cmq_queue_read(cursor->queue, unit->offset, reader->merged_end, &now, 1, &count, &next);
    if (status == CMQ_OK && count == 1 && now.offset == unit->offset) {
        *unit = now;
        return look_at_unit(reader, batch, cursor, found_out, keep_out);
    }
    return cmq_fail_at(error.status, error.offset, "%s", error.text);
}

/* Take the first cursor's record. CMQ_END: there is nothing more for this call. */
static cmq_status take_first(cmq_reader *reader, cmq_found_batch *batch)
{
    cmq_cursor *cursor = reader->cursors[reader->heap[0].cursor];
    bool keep;
    cmq_status status = look_at_unit(reader, batch, cursor, &batch->items[batch->count], &keep);
    if (status == CMQ_ERR_CORRUPT && reader->store->options.read_only)
        status = look_again(reader, batch, cursor, &batch->items[batch->count], &keep);
    if (status == CMQ_AGAIN) return CMQ_END;   /* pins are used up: the rest comes with the next batch */
    if (status == CMQ_ERR_CORRUPT && was_deleted(reader, cursor->queue)) {
        cursor->at = cursor->count;
        return settle_first(reader, reader->merged_end);
    }
    if (status == CMQ_ERR_CORRUPT && batch->count == 0) cursor->at++;
    if (status != CMQ_OK) return status;
    if (keep) batch->count++;
    fetch_ahead(reader, cursor);
    cursor->at++;
    return settle_first(reader, reader->merged_end);
}

/* Most units need no more than this: the first cursor's, as long as they lie below the other cursors', in the segment
 * that is pinned, and are sound. Returns how many were taken; the rest is left to take_first. */
static uint32_t take_run(cmq_reader *reader, cmq_found_batch *batch)
{
    const cmq_read_options *options = &reader->options;
    if (cmq_reader_selects(reader) || options->has_start_time || options->has_end_time || options->backwards) return 0;
    if (batch->pin_count == 0 || batch->pins[batch->pin_count - 1] != reader->window) return 0;
    cmq_cursor *cursor = reader->cursors[reader->heap[0].cursor];
    int64_t limit = reader->window_start + cmq_log_segment_bytes(reader->store->log);
    const int64_t segment_end = limit;
    if (limit > reader->ahead_from) limit = reader->ahead_from;
    for (uint32_t child = 1; child <= 2 && child < reader->heap_count; child++)
        if (limit > reader->heap[child].key) limit = reader->heap[child].key;
    const cmq_unit_owner owner = cmq_unit_owner_of(cursor->queue, reader->options.check_crc);
    const bool proofs = reader->store->options.check_property_crc;
    const uint32_t before = batch->count;
    for (; cursor->at < cursor->count && batch->count < batch->capacity; cursor->at++) {
        const cmq_unit *unit = &cursor->units[cursor->at];
        if (unit->count != 1 || unit->phy < reader->window_start || unit->phy >= limit) break;
        const uint8_t *data = (const uint8_t *)reader->window_data + (unit->phy - reader->window_start);
        if (!cmq_unit_is_plain(&owner, unit, data, (size_t)(segment_end - unit->phy))) break;
        if (options->check_crc && !cmq_record_is_whole(data, (uint32_t)unit->bytes, proofs)) break;
        fetch_ahead(reader, cursor);
        batch->items[batch->count++] = (cmq_found){.record = data,
                                                   .queue = cursor->queue,
                                                   .physical_offset = unit->phy,
                                                   .queue_offset = unit->offset,
                                                   .record_bytes = (uint32_t)unit->bytes,
                                                   .count = 1};
    }
    return batch->count - before;
}

static cmq_status next_of_queues(cmq_reader *reader, cmq_found_batch *batch, int64_t confirmed)
{
    cmq_status status = CMQ_OK;
    if (!reader->merged || reader->heap_count == 0) {
        if (!reader->options.only_starts) status = find_queues(reader, confirmed);
        if (status == CMQ_OK) status = build_heap(reader, confirmed);
    }
    while (status == CMQ_OK && batch->count < batch->capacity && reader->heap_count > 0 && !cmq_reader_pauses(reader))
        status = take_run(reader, batch) > 0 ? settle_first(reader, reader->merged_end) : take_first(reader, batch);
    if (status == CMQ_END) return CMQ_OK;
    if (status != CMQ_OK) reader->merged = false;
    if (status == CMQ_OK && cmq_reader_pauses(reader)) return CMQ_AGAIN;
    if (status == CMQ_OK && reader->heap_count == 0) reader->ended = reader->past || cmq_reader_all_ended(reader);
    return status;
}

/* ---- the calls ---- */

cmq_status cmq_reader_open(cmq_store *store, const cmq_read_options *options, cmq_reader **reader_out)
{
    *reader_out = NULL;
    cmq_reader *reader = calloc(1, sizeof *reader);
    if (reader == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for a reader");
    reader->store = store;
    reader->damaged_end = -1;
    reader->steps_max = CMQ_READER_STEPS_MAX;
    cmq_status status = take_options(reader, options);
    if (status == CMQ_OK) status = cmq_store_refresh(store);
    const int64_t confirmed = cmq_log_confirmed(store->log);
    if (status == CMQ_OK && options->only_starts) status = add_starts(reader, options, confirmed);
    if (status == CMQ_OK && options->topic_count > 0) status = find_queues(reader, confirmed);
    if (status == CMQ_OK && !options->only_starts) status = place_at_starts(reader, options);
    const bool missing = options->topic_count > 0 && reader->cursor_count == 0 && !options->may_be_missing;
    if (status == CMQ_OK && missing) status = cmq_store_check_end(store);
    if (status == CMQ_OK && missing)
        status = cmq_fail(CMQ_ERR_NOT_FOUND, "the store has no queue of topic %s%s", reader->topics[0],
                          options->queue_id_count > 0 ? " with these ids"
                          : options->topic_count > 1  ? ", nor of the others"
                                                      : "");
    if (status == CMQ_OK && !reader->of_queues) status = cmq_reader_begin_log(reader, confirmed);
    if (status != CMQ_OK) {
        cmq_reader_close(reader);
        return status;
    }
    *reader_out = reader;
    return CMQ_OK;
}

void cmq_reader_close(cmq_reader *reader)
{
    if (reader == NULL) return;
    for (uint32_t i = 0; reader->topics != NULL && i < reader->options.topic_count; i++) free(reader->topics[i]);
    for (uint32_t i = 0; reader->tags != NULL && i < reader->options.tag_count; i++) free(reader->tags[i]);
    for (uint32_t i = 0; i < reader->cursor_count; i++) free(reader->cursors[i]);
    free(reader->topics);
    free(reader->tags);
    free(reader->tag_hashes);
    free(reader->queue_ids);
    free(reader->cursors);
    free(reader->heap);
    free(reader->marks);
    free(reader->block);
    free(reader);
}

/* Found messages come first: the next call meets a failure behind them again. */
static cmq_status next_of(cmq_reader *reader, cmq_found_batch *batch, int64_t confirmed)
{
    const cmq_status status =
        reader->of_queues ? next_of_queues(reader, batch, confirmed) : cmq_reader_next_of_log(reader, batch, confirmed);
    return batch->count > 0 ? CMQ_OK : status;
}

cmq_status cmq_reader_next(cmq_reader *reader, cmq_found_batch *batch, bool *end_out)
{
    CMQ_ASSERT(batch->pin_count == 0 && batch->count == 0);
    *end_out = reader->ended;
    reader->steps = 0;
    if (batch->capacity == 0) return CMQ_OK;
    if (reader->ended) return cmq_reader_check_end(reader);
    const int64_t confirmed = cmq_log_confirmed(reader->store->log);
    cmq_status status = cmq_store_check_view(reader->store);
    /* Backwards the messages behind the end would have come first. */
    if (status == CMQ_OK && reader->options.backwards) status = cmq_reader_check_end(reader);
    if (status == CMQ_OK) status = next_of(reader, batch, confirmed);
    if (status == CMQ_OK && batch->count == 0 && !reader->ended && reader->store->options.read_only) {
        status = cmq_store_refresh(reader->store);   /* at the end of the view: has it grown? */
        const int64_t grown = cmq_log_confirmed(reader->store->log);
        if (status == CMQ_OK && grown > confirmed) status = next_of(reader, batch, grown);
    }
    if (status == CMQ_OK && batch->count == 0) status = cmq_reader_check_end(reader);
    if (batch->count == 0) cmq_found_batch_release(batch);   /* of segments in which nothing was found */
    *end_out = reader->ended && batch->count == 0;
    return status;
}

void cmq_found_batch_release(cmq_found_batch *batch)
{
    for (uint32_t i = 0; i < batch->pin_count; i++) cmq_segment_unpin(batch->pins[i]);
    batch->pin_count = 0;
    batch->count = 0;
}

int64_t cmq_reader_expired(const cmq_reader *reader) { return reader->expired; }

cmq_status cmq_reader_position(const cmq_reader *reader, cmq_slice topic, int32_t queue_id, int64_t *offset_out)
{
    for (uint32_t i = 0; i < reader->cursor_count; i++) {
        const cmq_cursor *cursor = reader->cursors[i];
        if (cmq_queue_id(cursor->queue) != queue_id ||
            !cmq_slice_equal(topic, cmq_slice_of_text(cmq_queue_topic(cursor->queue))))
            continue;
        *offset_out = cursor->at < cursor->count ? cursor->units[cursor->at].offset : cursor->next;
        return CMQ_OK;
    }
    return cmq_fail(CMQ_ERR_NOT_FOUND, "the reader does not read queue %d of that topic", queue_id);
}
