/* cmq_pop_result: a pop's result, from the first queue to the answer: records pinned where they lie, the texts that
 * name them, and retry messages that go out under the topic that was asked for.
 *
 * A retry message is re-encoded: the same record but for its topic and the property POP_CK, by which its client
 * acknowledges it. A POP_CK that it has already is its sender's, as of an application that forwards what it popped, and
 * goes. A message that has no room for them goes out as it is stored; clients tell from its topic what it is.
 *
 * Source: consumption specification 4.4, 4.5; remoting specification 2.5; upstream's PopMessageProcessor.
 */
#include "broker/pop/cmq_pop_internal.h"

#include <stdio.h>

#include "base/cmq_assert.h"
#include "store/record/cmq_property.h"

#define ANSWER_BYTES 512u
#define PAIR_BYTES (CMQ_POP_HANDLE_BYTES_MAX + 16u)
#define POP_CK CMQ_NAME("POP_CK")

void cmq_pop_result_begin(cmq_pop_result *popped, uint32_t capacity)
{
    CMQ_ASSERT(capacity <= CMQ_POP_MESSAGES_MAX);
    popped->count = popped->place_count = 0;
    popped->capacity = capacity;
    popped->bytes = 0;
    popped->rest = popped->limited = 0;
    popped->free_ms = INT64_MAX;
    popped->failed = CMQ_OK;
    popped->cost = 0;
    popped->stopped = false;
    popped->steps = CMQ_STEPS_PER_REQUEST;
    popped->starts = (cmq_text){.begin = popped->starts_room, .capacity = sizeof popped->starts_room};
    popped->offsets = (cmq_text){.begin = popped->offsets_room, .capacity = sizeof popped->offsets_room};
    popped->counts = (cmq_text){.begin = popped->counts_room, .capacity = sizeof popped->counts_room};
}

void cmq_pop_result_end(cmq_pop_result *popped)
{
    for (uint32_t i = 0; i < popped->place_count; i++) cmq_transfer_leave(&popped->places[i]);
    popped->place_count = 0;
}

void cmq_pop_result_fail(cmq_pop_result *popped, cmq_status status)
{
    if (popped->failed != CMQ_OK && status == CMQ_ERR_CORRUPT) return;
    popped->failed = status;
    snprintf(popped->failure, sizeof popped->failure, "%s", cmq_last_error()->text);
}

uint32_t cmq_pop_result_pin(cmq_pop_result *popped, cmq_broker_loop *l, cmq_queue *queue, const cmq_unit *units,
                            uint32_t count)
{
    CMQ_ASSERT(popped->count + count <= popped->capacity);
    for (uint32_t i = 0; i < count; i++) {
        const cmq_transfer_place *last = popped->place_count > 0 ? &popped->places[popped->place_count - 1] : NULL;
        if (last == NULL || (last->segment != NULL && !cmq_transfer_has(last, &units[i]))) {
            CMQ_ASSERT(popped->place_count < CMQ_POP_MESSAGES_MAX);
            popped->places[popped->place_count++] = (cmq_transfer_place){0};
        }
        if (cmq_transfer_reach(l, &popped->places[popped->place_count - 1], queue, &units[i],
                               &popped->items[popped->count + i].record) == CMQ_OK)
            continue;
        cmq_transfer_leave(&popped->places[popped->place_count - 1]);
        return i;
    }
    return count;
}

int64_t cmq_pop_result_bytes_left(const cmq_pop_result *popped)
{
    const int64_t most = CMQ_FRAME_BYTES_MAX / 2, used = (int64_t)popped->bytes;
    return used < most ? most - used : 0;
}

bool cmq_pop_result_has_room(const cmq_pop_result *popped, const cmq_unit *first)
{
    return popped->count == 0 || first->bytes <= cmq_pop_result_bytes_left(popped);
}

/* ---- retry messages ---- */

/* Properties of a record that is re-encoded. */
typedef struct reencoding_room {
    uint8_t pair[PAIR_BYTES];              /* POP_CK */
    uint8_t own[CMQ_PROPERTY_BYTES_MAX];   /* the record's own, where one of them has to go */
} reencoding_room;

/* The fields to re-encode the record from; false: it stays as it is. */
static bool fields_of(const cmq_pop_asked *asked, const cmq_pop_result_item *item, reencoding_room *room,
                      cmq_record_fields *fields)
{
    cmq_record_view view;
    cmq_slice value;
    if (cmq_record_parse(item->record, (size_t)item->unit.bytes, item->unit.phy, 0, &view) != CMQ_OK) return false;
    *fields = (cmq_record_fields){
        .topic = asked->topic->name,
        .body = view.body,
        .properties = view.properties,
        .queue_offset = view.queue_offset,
        .physical_offset = view.physical_offset,
        .born_timestamp_ms = view.born_timestamp_ms,
        .store_timestamp_ms = view.store_timestamp_ms,
        .prepared_transaction_offset = view.prepared_transaction_offset,
        .queue_id = view.queue_id,
        .flag = view.flag,
        .sys_flag = view.sys_flag,
        .reconsume_times = view.reconsume_times,
        .born_host = view.born_host,
        .store_host = view.store_host,
        .has_body_crc = true,
        .body_crc = view.body_crc,
    };
    if (view.properties.bytes > sizeof room->own) return false;
    if (cmq_property_find(view.properties, POP_CK, &value))
        fields->properties =
            (cmq_slice){.data = room->own, .bytes = cmq_property_copy_without(room->own, view.properties, POP_CK)};
    uint8_t text[CMQ_POP_HANDLE_BYTES_MAX];
    const cmq_pop_handle handle = {
        .start_offset = item->start_offset,
        .pop_ms = asked->now_ms,
        .invisible_ms = asked->wait.invisible_ms,
        .revive_queue = asked->revive_queue,
        .retry = item->retry,
        .broker = cmq_slice_of_text(cmq_pop_service_options_of(asked->pops)->broker),
        .queue_id = item->queue_id,
        .offset = item->unit.offset,
    };
    value = (cmq_slice){.data = text, .bytes = cmq_pop_handle_write(&handle, text)};
    fields->properties_more =
        (cmq_slice){.data = room->pair, .bytes = (size_t)(cmq_property_write(room->pair, POP_CK, value) - room->pair)};
    return true;
}

static void prepare(const cmq_pop_asked *asked, cmq_pop_result_item *item)
{
    reencoding_room room;
    cmq_record_fields fields;
    item->reencoded = item->retry != CMQ_POP_NORMAL && asked->wait.code == CMQ_REQUEST_POP_MESSAGE &&
                 fields_of(asked, item, &room, &fields) && cmq_record_measure(&fields, &item->sizes) == CMQ_OK;
}

static size_t bytes_of(const cmq_pop_result_item *item)
{
    return item->reencoded ? item->sizes.record_bytes : (size_t)item->unit.bytes;
}

/* Returns the byte behind it. */
static uint8_t *write_record(const cmq_pop_asked *asked, const cmq_pop_result_item *item, uint8_t *into)
{
    reencoding_room room;
    cmq_record_fields fields;
    if (item->reencoded) {
        CMQ_ASSERT(fields_of(asked, item, &room, &fields));   /* as it was when it was measured: the log does not
                                                               * change */
        cmq_record_encode(into, &fields, &item->sizes);
    } else {
        memcpy(into, item->record, (size_t)item->unit.bytes);
    }
    return into + bytes_of(item);
}

void cmq_pop_result_take(cmq_pop_result *popped, const cmq_pop_asked *asked, const cmq_unit *units, uint32_t count,
                         cmq_pop_retry retry, int32_t queue_id)
{
    int64_t offsets[CMQ_POP_MESSAGES_MAX];
    for (uint32_t i = 0; i < count; i++) {
        cmq_pop_result_item *item = &popped->items[popped->count++];
        item->unit = units[i];
        item->start_offset = units[0].offset;
        item->retry = retry;
        item->queue_id = queue_id;
        offsets[i] = units[i].offset;
        prepare(asked, item);
        popped->bytes += bytes_of(item);
    }
    cmq_pop_info_start(&popped->starts, retry, queue_id, offsets[0]);
    cmq_pop_info_offsets(&popped->offsets, retry, queue_id, offsets, count);
}

/* ---- the answer ---- */

static cmq_slice slice_of(const cmq_text *text)
{
    CMQ_ASSERT(cmq_text_fits(text));
    return (cmq_slice){.data = text->begin, .bytes = text->used};
}

void cmq_pop_result_answer(cmq_pop_result *popped, cmq_broker_loop *l, const cmq_pop_asked *asked, int32_t code)
{
    cmq_conn *conn = asked->oneway ? NULL : cmq_loop_conn(l->loop, asked->wait.conn);
    if (conn == NULL) return;
    const cmq_slice starts = slice_of(&popped->starts), offsets = slice_of(&popped->offsets),
                    counts = slice_of(&popped->counts);
    const size_t room = ANSWER_BYTES + starts.bytes + offsets.bytes + counts.bytes;
    uint8_t *out = cmq_conn_reserve(conn, room + popped->bytes);
    if (out == NULL) return;
    cmq_command_writer writer;
    cmq_command_begin(&writer, out, room, asked->wait.format, code, asked->wait.opaque, CMQ_COMMAND_RESPONSE,
                      popped->count > 0 ? CMQ_NAME("FOUND") : CMQ_NAME("NO_MESSAGE_IN_QUEUE"));
    cmq_command_add_i64(&writer, CMQ_NAME("popTime"), asked->now_ms);
    cmq_command_add_i64(&writer, CMQ_NAME("invisibleTime"), asked->wait.invisible_ms);
    cmq_command_add_i64(&writer, CMQ_NAME("reviveQid"), asked->revive_queue);
    cmq_command_add_i64(&writer, CMQ_NAME("restNum"), popped->rest);
    if (asked->wait.code == CMQ_REQUEST_POP_MESSAGE) {   /* by which clients make handles: peeked messages have none */
        cmq_command_add_text(&writer, CMQ_NAME("startOffsetInfo"), starts);
        cmq_command_add_text(&writer, CMQ_NAME("msgOffsetInfo"), offsets);
    }
    if (asked->wait.order) cmq_command_add_text(&writer, CMQ_NAME("orderCountInfo"), counts);
    const size_t header = cmq_command_end(&writer, popped->bytes);
    CMQ_ASSERT(header > 0 && header <= room);
    uint8_t *at = out + header;
    for (uint32_t i = 0; i < popped->count; i++) at = write_record(asked, &popped->items[i], at);
    cmq_conn_commit(conn, header + popped->bytes);
    if (popped->count == 0) return;
    cmq_bump(&l->counters.pops_found, asked->wait.code == CMQ_REQUEST_POP_MESSAGE);
    cmq_bump(&l->counters.messages_out, popped->count);
    cmq_bump(&l->counters.message_bytes_out, popped->bytes);
    cmq_traffic_count(l->traffic, asked->topic->name, asked->group->name, popped->count, popped->bytes);
}
