/* cmq_scan_rows: from found records to rows: read as far as the columns need, inner batches unfolded, bodies
 * decompressed; and what fits into a batch.
 *
 * Invariant: a row's slices lie inside its record, or inside the memory that the hook filled: lengths are compared
 *            before they are used. Where only the head is wanted, only the head is read: the tail behind the body is
 *            another cache line, and another miss.
 * Lifetime:  a block's rows live until the next block is filled; a row that did not fit is kept in `held`, with the
 *            found records around it.
 */
#include <string.h>

#include "base/cmq_assert.h"
#include "base/cmq_crc32.h"
#include "export/cmq_scan_internal.h"
#include "store/cmq_store_internal.h"
#include "store/record/cmq_wire_batch.h"

/* Behind store host, reconsume times and prepared offset. */
#define AT_BODY_LENGTH (CMQ_RECORD_AT_STORE_HOST + 8 + 4 + 8)
#define TOUCHED_BODY_BYTES (CMQ_MAP_GUARD_STEP / 2)
#define ROOM_BYTES (UINT32_C(1) << 20)
#define STEPS_OF_ROW 16u   /* of an expression, which take as long as passing over a row */

/* ---- one record ---- */

/* Topic and properties, which with the body must tile the record. */
static bool read_tail(const uint8_t *body_end, size_t left, bool v2, cmq_scan_row *row)
{
    const int32_t topic = v2 ? cmq_load_i16(body_end) : (int8_t)body_end[0];
    const uint8_t *topic_at = body_end + (v2 ? 2 : 1);
    if (topic < 0 || (size_t)topic > left) return false;
    const int16_t length = cmq_load_i16(topic_at + topic);
    const size_t properties = length > 0 ? (size_t)length : 0;
    if (properties != left - (size_t)topic) return false;
    row->topic = topic_at;
    row->topic_bytes = (uint32_t)topic;
    row->properties = topic_at + topic + 2;
    row->property_bytes = (uint32_t)properties;
    return true;
}

/* The reader has seen size, magic and physical offset. As in cmq_record_parse, negative lengths count as none. */
static inline bool read_record(const cmq_scan *scan, const cmq_found *found, cmq_scan_row *row)
{
    const uint8_t *at = found->record;
    const int32_t sys_flag = cmq_load_i32(at + CMQ_RECORD_AT_SYS_FLAG);
    const bool v2 = cmq_load_u32(at + CMQ_RECORD_AT_MAGIC) == CMQ_RECORD_MAGIC_V2;
    const size_t more = cmq_scan_born_more(sys_flag) + cmq_scan_store_more(sys_flag);
    const size_t fixed = CMQ_RECORD_BYTES_MIN + more + v2;
    if (found->record_bytes < fixed) return false;
    const int32_t length = cmq_load_i32(at + AT_BODY_LENGTH + more);
    const size_t body = length > 0 ? (size_t)length : 0;
    if (body > found->record_bytes - fixed) return false;
    row->record = at;
    row->body = at + AT_BODY_LENGTH + 4 + more;
    row->topic = row->properties = NULL;
    row->memory = NULL;
    row->queue_offset = found->queue_offset;
    row->physical_offset = found->physical_offset;
    row->record_bytes = found->record_bytes;
    row->body_bytes = row->stored_bytes = (uint32_t)body;
    row->topic_bytes = row->property_bytes = 0;
    row->flag = cmq_load_i32(at + CMQ_RECORD_AT_FLAG);
    row->sys_flag = sys_flag;
    if (scan->reads_tails && !read_tail(row->body + body, found->record_bytes - fixed - body, v2, row)) return false;
    return !scan->check_crc || body == 0 || cmq_crc31(row->body, body) == cmq_load_u32(at + CMQ_RECORD_AT_BODY_CRC);
}

static cmq_status fail_damaged(const cmq_found *found)
{
    return cmq_fail_at(CMQ_ERR_CORRUPT, found->physical_offset,
                       "the record at physical offset %lld, queue offset %lld, is damaged: its lengths "
                       "do not fit, or its body does not have its CRC; run `cometmq verify`",
                       (long long)found->physical_offset, (long long)found->queue_offset);
}

/* ---- which are wanted ---- */

/* Counts the steps of each evaluation, for let_in. */
static bool matches(void *context, cmq_slice properties)
{
    cmq_scan *scan = context;
    uint64_t steps;
    const cmq_selector_answer answer = cmq_selector_evaluate_counted(scan->where, properties, &steps);
    scan->passed += (uint32_t)(steps / STEPS_OF_ROW);
    return answer == CMQ_SELECTOR_TRUE;
}

/* A compressed inner batch as one row: only its messages say whether it is selected. */
static bool is_sealed(const cmq_scan *scan, const cmq_scan_row *row)
{
    const int32_t both = CMQ_SYS_INNER_BATCH | CMQ_SYS_COMPRESSED;
    return scan->where != NULL && scan->raw_bodies && (row->sys_flag & both) == both;
}

/* An inner batch as one row matches where one of its messages does, as for readers; a sealed one may. */
static bool is_selected(cmq_scan *scan, const cmq_scan_row *row)
{
    if (is_sealed(scan, row)) return true;
    const cmq_slice properties = {.data = row->properties, .bytes = row->property_bytes};
    if (matches(scan, properties)) return true;
    if ((row->sys_flag & CMQ_SYS_INNER_BATCH) == 0 || !scan->raw_bodies) return false;
    const cmq_slice body = {.data = row->body, .bytes = row->body_bytes};
    return cmq_wire_batch_any(body, matches, scan);
}

/* The tags of a store's records were compared by the reader. */
static bool is_wanted(cmq_scan *scan, const cmq_scan_row *row)
{
    const bool compared = scan->tag_count == 0 || (scan->fed == NULL && !scan->unfolding.active);
    if (!compared && !cmq_scan_has_tag(scan, row)) return false;
    if (scan->key_count > 0 && !cmq_scan_has_key(scan, row)) return false;
    return scan->where == NULL || is_selected(scan, row);
}

cmq_status cmq_scan_let_in(cmq_scan *scan)
{
    scan->paused = scan->passed >= scan->passed_max;
    return scan->paused ? CMQ_AGAIN : CMQ_OK;
}

static cmq_status pass_over(cmq_scan *scan)
{
    scan->passed++;
    return cmq_scan_let_in(scan);
}

/* Pages that were lost while the filter or the caller reads them have zeros. A long body has pages without a head or a
 * tail, which its receiver reads without us. */
static bool is_there(const cmq_scan *scan, const cmq_scan_row *row, bool wanted)
{
    if (wanted && scan->reads_bodies && row->stored_bytes >= TOUCHED_BODY_BYTES &&
        !cmq_map_guard_touch(row->body, row->stored_bytes))
        return false;
    return !cmq_map_guard_is_lost(row->record, row->record_bytes);
}

/* The queue knows the topic without a look behind the body. (Queues of light topics have other topics' records: there
 * it is read.) */
static inline void name_topic(const cmq_found *found, cmq_scan_row *row)
{
    if (found->queue == NULL) return;
    row->topic = (const uint8_t *)cmq_queue_topic(found->queue);
    row->topic_bytes = cmq_queue_topic_bytes(found->queue);
}

/* Of an inner batch that will be unfolded each message is looked at. */
static cmq_status row_of(cmq_scan *scan, const cmq_found *found, cmq_scan_row *row, bool *wanted_out)
{
    if (!read_record(scan, found, row)) return fail_damaged(found);
    *wanted_out = ((row->sys_flag & CMQ_SYS_INNER_BATCH) != 0 && !scan->raw_bodies) || is_wanted(scan, row);
    if (!is_there(scan, row, *wanted_out)) return fail_damaged(found);
    if (row->topic == NULL) name_topic(found, row);
    return CMQ_OK;
}

/* ---- decompression ---- */

uint8_t *cmq_scan_room_take(cmq_scan_room *room, size_t bytes)
{
    cmq_scan *scan = room->scan;
    if (bytes > CMQ_SCAN_BODY_BYTES_MAX) {
        const cmq_status refused =
            cmq_fail(CMQ_ERR_TOO_LARGE, "a body of %zu bytes is above the limit of %u", bytes, CMQ_SCAN_BODY_BYTES_MAX);
        (void)refused;
        return NULL;
    }
    cmq_scan_memory *memory = scan->decompressed;
    if (memory == NULL || memory->capacity - memory->used < bytes) {
        memory = cmq_scan_memory_make(scan->pool, bytes > ROOM_BYTES ? bytes : ROOM_BYTES);
        if (memory == NULL) return NULL;
        if (scan->decompressed != NULL) {
            scan->decompressed->next = scan->full;
            scan->full = scan->decompressed;
        }
        scan->decompressed = memory;
    }
    room->data = memory->data + memory->used;
    room->bytes = bytes;
    return room->data;
}

static cmq_status decompress(cmq_scan *scan, const cmq_scan_row *row, cmq_slice *plain_out)
{
    if (scan->decompress == NULL)
        return cmq_fail_at(CMQ_ERR_SETTING, row->physical_offset,
                           "the body at physical offset %lld is compressed; read raw bodies, or give a way to "
                           "decompress",
                           (long long)row->physical_offset);
    cmq_scan_room room = {.scan = scan};
    const cmq_slice stored = {.data = row->body, .bytes = row->body_bytes};
    const cmq_status status = scan->decompress(scan->decompress_context, row->sys_flag, stored, &room);
    /* A body that inflates beyond all limits is a sender's: it must not end scans that pass over damage. */
    const bool too_large = status == CMQ_ERR_LIMIT || status == CMQ_ERR_TOO_LARGE;
    if (status == CMQ_ERR_CORRUPT || (scan->skip_corrupt && too_large)) {
        const cmq_error reason = *cmq_last_error();
        return cmq_fail_at(CMQ_ERR_CORRUPT, row->physical_offset,
                           "the body at physical offset %lld cannot be decompressed: %s",
                           (long long)row->physical_offset, reason.text);
    }
    if (status != CMQ_OK)
        return cmq_fail_context("while decompressing the body at physical offset %lld",
                                (long long)row->physical_offset);
    *plain_out = (cmq_slice){.data = room.data, .bytes = room.bytes};
    if (room.bytes > 0) scan->decompressed->used += room.bytes;
    return CMQ_OK;
}

/* ---- inner batches ---- */

static cmq_status look_into(cmq_scan *scan, const cmq_scan_row *row, bool *wanted_out)
{
    cmq_slice plain;
    const cmq_status status = decompress(scan, row, &plain);
    if (status != CMQ_OK) return status;
    const cmq_slice properties = {.data = row->properties, .bytes = row->property_bytes};
    *wanted_out = matches(scan, properties) || cmq_wire_batch_any(plain, matches, scan);
    if (plain.bytes > 0) scan->decompressed->used -= plain.bytes;   /* the row has the body as it is stored */
    return CMQ_OK;
}

static void end_unfolding(cmq_scan *scan)
{
    cmq_scan_memory_drop(scan->unfolding.record.memory);
    scan->unfolding = (cmq_scan_unfolding){0};
}

static cmq_status begin_unfolding(cmq_scan *scan, const cmq_found *found, const cmq_scan_row *row)
{
    cmq_scan_unfolding *unfolding = &scan->unfolding;
    *unfolding = (cmq_scan_unfolding){.active = true, .record = *row, .skip = found->skip, .end = INT32_MAX};
    if (found->behind > 0) unfolding->end = found->count - found->behind;
    unfolding->rest = (cmq_slice){.data = row->body, .bytes = row->body_bytes};
    if ((row->sys_flag & CMQ_SYS_COMPRESSED) == 0) return CMQ_OK;
    const cmq_status status = decompress(scan, row, &unfolding->rest);
    if (status != CMQ_OK) unfolding->active = false;
    else unfolding->record.memory = cmq_scan_memory_keep(scan->decompressed);
    return status;
}

/* CMQ_END: all have come. */
static cmq_status next_element(cmq_scan *scan, cmq_scan_row *row)
{
    cmq_scan_unfolding *unfolding = &scan->unfolding;
    cmq_wire_batch_element element;
    cmq_status status = CMQ_OK;
    do {
        if (unfolding->at >= unfolding->end) status = CMQ_END;
        else status = cmq_wire_batch_next(&unfolding->rest, &element);
    } while (status == CMQ_OK && unfolding->at++ < unfolding->skip);
    if (status == CMQ_ERR_CORRUPT)
        status = cmq_fail_at(CMQ_ERR_CORRUPT, unfolding->record.physical_offset,
                             "the inner batch at physical offset %lld is damaged behind its first %d "
                             "messages",
                             (long long)unfolding->record.physical_offset, unfolding->at);
    if (status != CMQ_OK) {
        end_unfolding(scan);
        return status;
    }
    *row = unfolding->record;
    row->queue_offset += unfolding->at - 1;
    row->body = element.body.data;
    row->body_bytes = row->stored_bytes = (uint32_t)element.body.bytes;
    row->properties = element.properties.data;
    row->property_bytes = (uint32_t)element.properties.bytes;
    row->flag = element.flag;
    row->sys_flag &= ~(int32_t)CMQ_SYS_COMPRESSED;
    return CMQ_OK;
}

/* ---- the next message ---- */

static cmq_status next_found(cmq_scan *scan)
{
    cmq_found_batch_release(&scan->found);
    scan->found_at = 0;
    if (scan->ended) return CMQ_END;
    if (scan->fed != NULL) return cmq_scan_fed_next(scan);
    if (scan->places != NULL) return cmq_scan_places_next(scan);
    const cmq_status status = cmq_reader_next(scan->reader, &scan->found, &scan->ended);
    if (status != CMQ_OK || scan->found.count > 0) return status;
    return scan->ended ? CMQ_END : CMQ_AGAIN;
}

/* The next one that is wanted; as next_element, and CMQ_AGAIN as of cmq_scan_let_in. */
static cmq_status next_wanted_element(cmq_scan *scan, cmq_scan_row *row)
{
    cmq_status status = next_element(scan, row);
    while (status == CMQ_OK && !is_wanted(scan, row)) {
        status = pass_over(scan);
        if (status == CMQ_OK) status = next_element(scan, row);
    }
    return status;
}

/* The next message that is wanted. */
static cmq_status next_message(cmq_scan *scan, cmq_scan_row *row)
{
    for (;;) {
        cmq_status status = scan->unfolding.active ? next_wanted_element(scan, row) : CMQ_END;
        if (status != CMQ_END) return status;
        status = scan->found_at == scan->found.count ? next_found(scan) : CMQ_OK;
        if (status != CMQ_OK) return status;
        const cmq_found *found = &scan->found.items[scan->found_at++];
        bool wanted = true;
        status = row_of(scan, found, row, &wanted);
        if (status == CMQ_OK && wanted && is_sealed(scan, row)) status = look_into(scan, row, &wanted);
        if (status == CMQ_OK && !wanted) status = pass_over(scan);
        if (status != CMQ_OK) return status;
        if (!wanted) continue;
        if (scan->raw_bodies || (row->sys_flag & (CMQ_SYS_INNER_BATCH | CMQ_SYS_COMPRESSED)) == 0) return CMQ_OK;
        if ((row->sys_flag & CMQ_SYS_INNER_BATCH) != 0) {
            status = begin_unfolding(scan, found, row);
            if (status != CMQ_OK) return status;
            continue;
        }
        if (!scan->reads_bodies) return CMQ_OK;
        cmq_slice plain;
        status = decompress(scan, row, &plain);
        row->memory = scan->decompressed;
        row->body = plain.data;
        row->body_bytes = (uint32_t)plain.bytes;
        return status;
    }
}

static void note_damage(cmq_scan *scan, int64_t offset)
{
    if (scan->skipped_offset_count < CMQ_SCAN_SKIPPED_MAX) scan->skipped_offsets[scan->skipped_offset_count++] = offset;
    scan->skipped.records++;
}

static cmq_status next_row(cmq_scan *scan, cmq_scan_row *row)
{
    cmq_status status = next_message(scan, row);
    while (status == CMQ_ERR_CORRUPT && scan->skip_corrupt && !scan->broken) {
        note_damage(scan, cmq_last_error()->offset);
        status = next_message(scan, row);
    }
    return status;
}

/* ---- rows of a batch ---- */

static bool reaches(const cmq_scan *scan, cmq_scan_home *home, const cmq_scan_row *row)
{
    if (row->body < home->low || row->body + row->body_bytes - home->low > (int64_t)scan->view_span_max) return false;
    if (row->body + row->body_bytes > home->high) home->high = row->body + row->body_bytes;
    return true;
}

/* Where the row's body lies: the map of one of the found records' segments, or decompressed. */
static void settle(const cmq_scan *scan, const cmq_scan_row *row, cmq_scan_home *home)
{
    *home = (cmq_scan_home){.low = row->body, .high = row->body + row->body_bytes};
    if (row->memory != NULL) {
        home->memory = cmq_scan_memory_keep(row->memory);
        home->data = row->memory->data;
        home->bytes = row->memory->capacity;
        return;
    }
    const size_t bytes = (size_t)cmq_log_segment_bytes(scan->store->log);
    for (uint32_t i = scan->found.pin_count; i > 0; i--) {
        cmq_segment *segment = scan->found.pins[i - 1];
        if ((uintptr_t)row->body - (uintptr_t)cmq_segment_data(segment) >= bytes) continue;
        cmq_segment_pin(segment);
        home->segment = segment;
        home->data = cmq_segment_data(segment);
        home->bytes = bytes;
        return;
    }
    CMQ_ASSERT(false && "a found record lies in a pinned segment");
}

/* A home for the row's body; false when the batch has no room for one. */
static bool find_home(cmq_scan *scan, cmq_scan_row *row)
{
    for (uint32_t i = scan->home_count; i > 0; i--) {   /* mostly the last one */
        cmq_scan_home *home = &scan->homes[i - 1];
        if ((uintptr_t)row->body - (uintptr_t)home->data >= home->bytes) continue;
        row->home = i - 1;
        return reaches(scan, home, row);
    }
    if (scan->home_count == CMQ_SCAN_HOMES_MAX) return false;
    row->home = scan->home_count;
    settle(scan, row, &scan->homes[scan->home_count++]);
    return true;
}

/* Take the row into the batch; false when it must wait for the next. A batch takes its first row whatever its size. */
static bool fits(cmq_scan *scan, cmq_scan_row *row)
{
    const bool first = scan->rows + scan->block_count == 0;
    const uint64_t body = scan->gathers || row->memory != NULL ? row->body_bytes : 0;
    uint64_t text = scan->constant_bytes;
    if (scan->reads_tails) text += 3 * ((uint64_t)row->topic_bytes + row->property_bytes);
    if (!first && (scan->body_bytes + body > scan->batch_bytes || scan->text_bytes + text > CMQ_SCAN_TEXT_BYTES_MAX))
        return false;
    if (scan->views && row->body_bytes > CMQ_SCAN_INLINE_BYTES && !find_home(scan, row)) return false;
    scan->body_bytes += body;
    scan->text_bytes += text;
    return true;
}

void cmq_scan_release_full(cmq_scan *scan)
{
    while (scan->full != NULL) {
        cmq_scan_memory *memory = scan->full;
        scan->full = memory->next;
        cmq_scan_memory_drop(memory);
    }
}

/* The row is the batch's. */
static inline cmq_status take(cmq_scan *scan)
{
    const cmq_scan_row *row = &scan->block[scan->block_count++];
    scan->rows_left--;
    if (scan->gatherer == NULL) return CMQ_OK;
    const cmq_status status = cmq_scan_append_body(scan->gatherer, row);
    scan->broken = status != CMQ_OK;
    return status;
}

/* Rows of records that are one message each, as they are, as long as they fit. The rest is for next_row. CMQ_AGAIN: as
 * of cmq_scan_let_in. */
static cmq_status take_plain(cmq_scan *scan, uint32_t most)
{
    const int32_t special = scan->raw_bodies ? 0 : CMQ_SYS_INNER_BATCH | CMQ_SYS_COMPRESSED;
    if (scan->unfolding.active) return CMQ_OK;
    while (scan->block_count < most && scan->found_at < scan->found.count) {
        cmq_scan_row *row = &scan->block[scan->block_count];
        const cmq_found *found = &scan->found.items[scan->found_at];
        if (!read_record(scan, found, row) || (row->sys_flag & special) != 0 || is_sealed(scan, row)) return CMQ_OK;
        const bool wanted = is_wanted(scan, row);
        if (!is_there(scan, row, wanted)) return CMQ_OK;
        if (row->topic == NULL) name_topic(found, row);
        if (wanted && !fits(scan, row)) return CMQ_OK;   /* met again below, and kept */
        scan->found_at++;
        cmq_status status = wanted ? take(scan) : pass_over(scan);
        if (status == CMQ_OK) status = cmq_scan_let_in(scan);
        if (status != CMQ_OK) return status;
    }
    return CMQ_OK;
}

cmq_status cmq_scan_fill_block(cmq_scan *scan, uint32_t most, bool *full_out)
{
    *full_out = false;
    scan->block_count = 0;
    cmq_scan_release_full(scan);
    /* Nobody else holds it, and all of it was copied: from its beginning again. */
    cmq_scan_memory *memory = scan->decompressed;
    if (memory != NULL && !scan->has_held && atomic_load_explicit(&memory->references, memory_order_acquire) == 1)
        memory->used = 0;
    if ((int64_t)most > scan->rows_left) most = (uint32_t)scan->rows_left;
    while (scan->block_count < most) {
        cmq_status status = scan->has_held ? CMQ_OK : take_plain(scan, most);
        if (status != CMQ_OK || scan->block_count == most) return status;
        cmq_scan_row *row = &scan->block[scan->block_count];
        if (scan->has_held) *row = scan->held;
        else status = next_row(scan, row);
        if (status != CMQ_OK) return status;
        scan->has_held = !fits(scan, row);
        if (scan->has_held) {
            scan->held = *row;
            *full_out = true;
            return CMQ_OK;
        }
        status = take(scan);
        if (status == CMQ_OK) status = cmq_scan_let_in(scan);
        if (status != CMQ_OK) return status;
    }
    return scan->rows_left > 0 ? CMQ_OK : CMQ_END;
}

void cmq_scan_release_homes(cmq_scan *scan)
{
    for (uint32_t i = 0; i < scan->home_count; i++) {
        if (scan->homes[i].segment != NULL) cmq_segment_unpin(scan->homes[i].segment);
        cmq_scan_memory_drop(scan->homes[i].memory);
    }
    scan->home_count = 0;
}
