/* cmq_reader_log: the whole log in physical order: forwards record by record; backwards, where records have no link to
 * the one before, by marking every 1024th record of a segment in one forward walk and then giving out block by block.
 *
 * Memory: backwards 8 bytes per 1024 records of one segment, and 8 KiB for a block; forwards nothing.
 */
#include <stdlib.h>

#include "base/cmq_assert.h"
#include "store/read/cmq_reader_internal.h"

#define BLOCK_RECORDS 1024u
#define FETCH_BYTES 2048u         /* eight short records ahead */
#define FETCH_BYTES_SHORT 512u
#define FETCH_RECORDS 4u

static int64_t segment_start(const cmq_reader *reader, int64_t phy)
{
    return phy - phy % cmq_log_segment_bytes(reader->store->log);
}

/* Prefetch the records to come. The size of a short record says little about the next ones: every line FETCH_BYTES
 * ahead is fetched. Behind a long record only a head is, where the fourth record of that size would begin. */
static inline void fetch_ahead(const uint8_t *record, uint32_t record_bytes)
{
    if (record_bytes > FETCH_BYTES_SHORT) {
        cmq_record_prefetch_parts(record + FETCH_RECORDS * (size_t)record_bytes, record_bytes, false);
        return;
    }
    for (uint32_t line = 0; line < record_bytes; line += 64) cmq_prefetch((uintptr_t)record + FETCH_BYTES + line);
}

cmq_status cmq_reader_head_at(cmq_reader *reader, int64_t phy, int64_t limit, cmq_record_head *head_out)
{
    cmq_segment *segment;
    const uint8_t *data;
    size_t available;
    if (phy >= limit) return CMQ_END;
    cmq_status status = cmq_log_pin(reader->store->log, phy, &segment, &data, &available);
    if (status != CMQ_OK) return status;
    if ((int64_t)available > limit - phy) available = (size_t)(limit - phy);
    status = cmq_record_peek(data, available, head_out);
    fetch_ahead(data, head_out->record_bytes);
    if (status == CMQ_OK && head_out->physical_offset != phy) status = CMQ_ERR_CORRUPT;
    const cmq_status lost = cmq_store_check_lost(reader->store, data, available, phy);
    cmq_segment_unpin(segment);
    if (lost != CMQ_OK || status == CMQ_OK || status == CMQ_END) return lost != CMQ_OK ? lost : status;
    return cmq_fail_at(CMQ_ERR_CORRUPT, phy, "the bytes at physical offset %lld are not a record; run `cometmq verify`",
                       (long long)phy);
}

/* Behind damage: the next whole record of the segment, else the next segment. */
static int64_t behind_damage(cmq_reader *reader, int64_t phy)
{
    cmq_record_view view;
    if (cmq_store_find_sound(reader->store, phy + 1, &view)) return view.physical_offset;
    return segment_start(reader, phy) + cmq_log_segment_bytes(reader->store->log);
}

cmq_status cmq_reader_begin_log(cmq_reader *reader, int64_t confirmed)
{
    const cmq_read_options *options = &reader->options;
    cmq_reader_bound_log(reader, confirmed);
    if (options->backwards) {
        reader->position =
            options->has_start_physical && options->start_physical < confirmed ? options->start_physical : confirmed;
        if (reader->position > reader->log_until) reader->position = reader->log_until;
        reader->block = malloc(BLOCK_RECORDS * sizeof *reader->block);
        if (reader->block == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory to read backwards");
        return CMQ_OK;
    }
    reader->position = reader->log_from;
    if (options->has_start_physical && options->start_physical > reader->position) {
        cmq_record_head head;
        reader->position = options->start_physical;
        if (cmq_reader_head_at(reader, reader->position, confirmed, &head) == CMQ_ERR_CORRUPT)
            return cmq_fail_at(CMQ_ERR_ARGUMENT, reader->position, "no record begins at physical offset %lld",
                               (long long)reader->position);
    }
    return CMQ_OK;
}

/* As cmq_store_is_queued, which is asked once for each queue. */
static bool is_queued(cmq_reader *reader, const cmq_record_view *view)
{
    cmq_queue *queue = cmq_store_queue_of(reader->store, view);
    if (queue == NULL) return false;
    cmq_queue_floor *floor = &reader->floors[((uintptr_t)queue >> 6) % CMQ_READER_FLOORS];
    if (floor->queue != queue)
        *floor = (cmq_queue_floor){.queue = queue, .first_phy = cmq_store_first_of_queue(reader->store, queue)};
    if (floor->first_phy == INT64_MAX) floor->queue = NULL;   /* its first record is still to come */
    return view->physical_offset >= floor->first_phy;
}

/* Add the record at `phy` to the batch if it is wanted. */
static cmq_status take_record(cmq_reader *reader, cmq_found_batch *batch, int64_t phy, const cmq_record_head *head)
{
    const cmq_read_options *options = &reader->options;
    const uint8_t *data;
    size_t available;
    if (!cmq_reader_in_time(reader, head->store_timestamp_ms)) return CMQ_OK;
    cmq_status status = cmq_reader_pin(reader, batch, phy, &data, &available);
    if (status != CMQ_OK) return status;
    if (options->check_crc &&
        ((size_t)head->record_bytes > available ||
         !cmq_record_is_whole(data, head->record_bytes, reader->store->options.check_property_crc)))
        return cmq_fail_at(CMQ_ERR_CORRUPT, phy,
                           "the record at physical offset %lld does not match its CRC; run `cometmq verify`",
                           (long long)phy);
    if (cmq_reader_selects(reader) || options->only_queued) {
        cmq_record_view view;
        status = cmq_record_parse(data, available, phy, 0, &view);
        if (status != CMQ_OK)
            return status == CMQ_ERR_CORRUPT ? status : cmq_fail_at(CMQ_ERR_CORRUPT, phy, "half a record");
        if (options->only_queued && !is_queued(reader, &view)) return CMQ_OK;
        if (cmq_reader_selects(reader) && !cmq_reader_matches(reader, &view)) return CMQ_OK;
    }
    batch->items[batch->count++] = (cmq_found){.record = data,
                                               .physical_offset = phy,
                                               .queue_offset = head->queue_offset,
                                               .record_bytes = head->record_bytes,
                                               .count = 1};
    return CMQ_OK;
}

/* Retention took the segment that is being read: on with the oldest there is. */
static bool went_meanwhile(cmq_reader *reader, cmq_status status)
{
    const int64_t min = cmq_log_min(reader->store->log);
    if (status != CMQ_ERR_OFFSET || reader->position >= min) return false;
    reader->position = min;
    return true;
}

static cmq_status forwards(cmq_reader *reader, cmq_found_batch *batch, int64_t confirmed)
{
    /* expired meanwhile */
    if (reader->position < cmq_log_min(reader->store->log)) reader->position = cmq_log_min(reader->store->log);
    const int64_t limit = confirmed < reader->log_until ? confirmed : reader->log_until;
    while (batch->count < batch->capacity && reader->position < limit) {
        if (cmq_reader_pauses(reader)) return CMQ_AGAIN;
        cmq_record_head head;
        cmq_status status = cmq_reader_head_at(reader, reader->position, confirmed, &head);
        if (went_meanwhile(reader, status)) continue;
        if (status == CMQ_END) {
            const int64_t next = segment_start(reader, reader->position) + cmq_log_segment_bytes(reader->store->log);
            if (next > confirmed) return CMQ_OK;   /* a blank whose segment is not closed yet */
            reader->position = next;
            continue;
        }
        if (status == CMQ_ERR_CORRUPT) {
            if (batch->count > 0) return status;   /* met again */
            reader->position = behind_damage(reader, reader->position);
            return cmq_fail_context("reading goes on at %lld", (long long)reader->position);
        }
        if (status != CMQ_OK) return status;
        status = take_record(reader, batch, reader->position, &head);
        if (status == CMQ_AGAIN) return CMQ_OK;
        if (went_meanwhile(reader, status)) continue;
        const bool skip = status == CMQ_ERR_CORRUPT && batch->count == 0;
        if (status == CMQ_OK || skip) reader->position += head.record_bytes;
        if (status != CMQ_OK) return status;
    }
    reader->ended = reader->past && reader->position >= limit;
    return CMQ_OK;
}

/* ---- backwards ---- */

static cmq_status add_mark(cmq_reader *reader, int64_t phy)
{
    if (reader->mark_count == reader->mark_capacity) {
        const uint32_t capacity = reader->mark_capacity == 0 ? 256 : reader->mark_capacity * 2;
        int64_t *marks = realloc(reader->marks, capacity * sizeof *marks);
        if (marks == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory to read backwards");
        reader->marks = marks;
        reader->mark_capacity = capacity;
    }
    reader->marks[reader->mark_count++] = phy;
    return CMQ_OK;
}

/* Walk [from, limit) of one segment; gives each record to marks (every BLOCK_RECORDS-th) or to the block (all). Damage
 * is passed over: reading backwards returns sound records, `cometmq verify` lists damage. */
static cmq_status walk_segment(cmq_reader *reader, int64_t from, int64_t limit, bool marks)
{
    uint32_t count = 0;
    for (int64_t phy = from; phy < limit;) {
        cmq_record_head head;
        const cmq_status status = cmq_reader_head_at(reader, phy, limit, &head);
        if (status == CMQ_END) break;
        if (status == CMQ_ERR_CORRUPT) {
            phy = behind_damage(reader, phy);
            continue;
        }
        if (status != CMQ_OK) return status;
        if (marks && count % BLOCK_RECORDS == 0) {
            const cmq_status added = add_mark(reader, phy);
            if (added != CMQ_OK) return added;
        }
        if (!marks) {
            CMQ_ASSERT(count < BLOCK_RECORDS);
            reader->block[reader->block_count++] = phy;
        }
        count++;
        phy += head.record_bytes;
    }
    return CMQ_OK;
}

/* Fill the block with the records right below position; empty at the log's beginning. */
static cmq_status fill_block(cmq_reader *reader)
{
    reader->block_count = 0;
    while (reader->block_count == 0) {
        if (reader->mark_count == 0) {
            if (reader->position <= cmq_log_min(reader->store->log)) return CMQ_OK;
            const cmq_status status =
                walk_segment(reader, segment_start(reader, reader->position - 1), reader->position, true);
            if (status != CMQ_OK) return status;
            if (reader->mark_count == 0) {
                reader->position = segment_start(reader, reader->position - 1);
                continue;
            }
        }
        const int64_t from = reader->marks[--reader->mark_count];
        const cmq_status status = walk_segment(reader, from, reader->position, false);
        if (status != CMQ_OK) return status;
        reader->position = from;
    }
    return CMQ_OK;
}

static cmq_status backwards(cmq_reader *reader, cmq_found_batch *batch, int64_t confirmed)
{
    while (batch->count < batch->capacity) {
        if (cmq_reader_pauses(reader)) return CMQ_AGAIN;
        cmq_record_head head;
        cmq_status status = CMQ_OK;
        if (reader->block_count == 0) status = fill_block(reader);
        if (status != CMQ_OK && status != CMQ_ERR_OFFSET) return status;
        if (reader->block_count == 0 || status == CMQ_ERR_OFFSET) {   /* expired meanwhile, and all below it */
            reader->ended = true;
            return CMQ_OK;
        }
        const int64_t phy = reader->block[reader->block_count - 1];
        if (phy < reader->log_from) {
            reader->ended = true;
            return CMQ_OK;
        }
        status = cmq_reader_head_at(reader, phy, confirmed, &head);
        if (status == CMQ_OK) status = take_record(reader, batch, phy, &head);
        if (status == CMQ_AGAIN) return CMQ_OK;
        if (status == CMQ_ERR_OFFSET) {
            reader->ended = true;
            return CMQ_OK;
        }
        const bool skip = status == CMQ_ERR_CORRUPT && batch->count == 0;
        if (status == CMQ_OK || skip) reader->block_count--;
        if (status != CMQ_OK) return status;
    }
    return CMQ_OK;
}

cmq_status cmq_reader_next_of_log(cmq_reader *reader, cmq_found_batch *batch, int64_t confirmed)
{
    return reader->options.backwards ? backwards(reader, batch, confirmed) : forwards(reader, batch, confirmed);
}
