/* cmq_load_pop: consumers that pop: any of them gets messages of any queue, acknowledges what it got behind its next
 * pop, one by one or all at once.
 *
 * A pop that returns nothing is repeated. Messages are checked as pulled ones, but for the order of offsets, which pops
 * do not promise. After the run, the group's offset of every queue must reach the queue's end: every message is
 * acknowledged.
 *
 * Source: consumption specification 4.4 to 4.7; remoting specification 2.5.
 */
#include <inttypes.h>
#include <string.h>

#include "base/cmq_bitmap.h"
#include "load/cmq_load_internal.h"
#include "store/record/cmq_record.h"
#include "wire/cmq_codes.h"

enum { REQUEST_BYTES = 2048, ENTRY_BYTES = 1024, HANDLE_BYTES = 420, POPPED_MAX = 32 };

/* ---- pops ---- */

static cmq_status put_pop(cmq_load *load, load_conn *conn)
{
    uint8_t *into = cmq_load_conn_reserve(conn, REQUEST_BYTES);
    if (into == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for a pop");
    cmq_command_writer writer;
    cmq_command_begin(&writer, into, REQUEST_BYTES, load->options.format, CMQ_REQUEST_POP_MESSAGE, LOAD_OPAQUE_POP, 0,
                      CMQ_SLICE_NONE);
    cmq_command_add_text(&writer, CMQ_NAME("consumerGroup"), cmq_slice_of_text(load->consumer_group));
    cmq_command_add_text(&writer, CMQ_NAME("topic"), cmq_slice_of_text(load->topic));
    cmq_command_add_i64(&writer, CMQ_NAME("queueId"), -1);
    cmq_command_add_i64(&writer, CMQ_NAME("maxMsgNums"), load->options.pull_messages);
    cmq_command_add_i64(&writer, CMQ_NAME("invisibleTime"), load->options.invisible_ms);
    cmq_command_add_i64(&writer, CMQ_NAME("pollTime"), LOAD_HOLD_MS);
    cmq_command_add_i64(&writer, CMQ_NAME("bornTime"), load->born_ms);
    cmq_command_add_i64(&writer, CMQ_NAME("initMode"), 0);
    cmq_command_add_text(&writer, CMQ_NAME("expType"), CMQ_NAME("TAG"));
    cmq_command_add_text(&writer, CMQ_NAME("exp"), CMQ_NAME("*"));
    cmq_command_add_bool(&writer, CMQ_NAME("order"), false);
    const size_t bytes = cmq_command_end(&writer, 0);
    if (bytes == 0 || bytes > REQUEST_BYTES)
        return cmq_fail(CMQ_ERR_TOO_LARGE, "a pop of %zu bytes: topic or group are too long", bytes);
    conn->out_used += bytes;
    conn->pops++;
    load->result.pulls++;
    cmq_load_conn_asked(load, conn);
    return CMQ_OK;
}

cmq_status cmq_load_pop_more(cmq_load *load, load_conn *conn)
{
    cmq_status status = CMQ_OK;
    while (status == CMQ_OK && load->consuming && conn->pops < load->options.pops_in_flight)
        status = put_pop(load, conn);
    return status;
}

/* ---- acks ---- */

/* Messages of one response and one queue: the parts of their handles. */
typedef struct batch {
    cmq_slice pop_ms, invisible_ms, revive_queue;   /* as the broker wrote them */
    cmq_slice starts;                               /* startOffsetInfo, what was not looked at yet of it at first */
    int32_t queue_id;
    int64_t start_offset;
    uint32_t bits, count;                           /* by distance from start_offset */
} batch;

static cmq_status CMQ_MUST_CHECK asked_for_ack(cmq_load *load, load_conn *conn, size_t bytes)
{
    if (bytes == 0 || bytes > REQUEST_BYTES)
        return cmq_fail(CMQ_ERR_TOO_LARGE, "an ack of %zu bytes: topic, group or broker are too long", bytes);
    conn->out_used += bytes;
    load->result.acks++;
    cmq_load_conn_asked(load, conn);
    return CMQ_OK;
}

static void put_number(cmq_text *out, int64_t number)
{
    cmq_text_put_number(out, number);
    CMQ_TEXT_PUT(out, " ");
}

static void put_word(cmq_text *out, cmq_slice word)
{
    cmq_text_put_slice(out, word);
    CMQ_TEXT_PUT(out, " ");
}

static cmq_status put_ack(cmq_load *load, load_conn *conn, const batch *of, int64_t offset)
{
    uint8_t *into = cmq_load_conn_reserve(conn, REQUEST_BYTES), room[HANDLE_BYTES];
    if (into == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for an ack");
    cmq_text handle = {.begin = room, .capacity = sizeof room};
    cmq_command_writer writer;
    put_number(&handle, of->start_offset);
    put_word(&handle, of->pop_ms);
    put_word(&handle, of->invisible_ms);
    put_word(&handle, of->revive_queue);
    put_number(&handle, 0);
    put_word(&handle, cmq_slice_of_text(load->brokers[conn->endpoint]));
    put_number(&handle, of->queue_id);
    cmq_text_put_number(&handle, offset);
    if (!cmq_text_fits(&handle)) return cmq_fail(CMQ_ERR_TOO_LARGE, "a handle of %zu bytes", handle.used);
    cmq_command_begin(&writer, into, REQUEST_BYTES, load->options.format, CMQ_REQUEST_ACK_MESSAGE, LOAD_OPAQUE_ACK + 1,
                      0, CMQ_SLICE_NONE);
    cmq_command_add_text(&writer, CMQ_NAME("consumerGroup"), cmq_slice_of_text(load->consumer_group));
    cmq_command_add_text(&writer, CMQ_NAME("topic"), cmq_slice_of_text(load->topic));
    cmq_command_add_i64(&writer, CMQ_NAME("queueId"), of->queue_id);
    cmq_command_add_text(&writer, CMQ_NAME("extraInfo"), (cmq_slice){.data = room, .bytes = handle.used});
    cmq_command_add_i64(&writer, CMQ_NAME("offset"), offset);
    return asked_for_ack(load, conn, cmq_command_end(&writer, 0));
}

/* A set of 32 bits as Java's BitSet.toByteArray in base64: the lowest byte first. */
static void put_base64(cmq_text *out, uint32_t bits)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const uint8_t bytes[6] = {(uint8_t)bits, (uint8_t)(bits >> 8), (uint8_t)(bits >> 16), (uint8_t)(bits >> 24)};
    for (uint32_t i = 0; i < sizeof bytes; i += 3) {
        const uint32_t word = (uint32_t)bytes[i] << 16 | (uint32_t)bytes[i + 1] << 8 | bytes[i + 2];
        for (uint32_t j = 0; j < 4; j++)
            cmq_text_put(out, i * 4 / 3 + j < 6 ? &digits[word >> (18 - 6 * j) & 63] : "=", 1);
    }
}

static void put_member(cmq_text *out, char name, cmq_slice value)
{
    CMQ_TEXT_PUT(out, "\"");
    cmq_text_put(out, &name, 1);
    CMQ_TEXT_PUT(out, "\":\"");
    cmq_text_put_escaped(out, value);
    CMQ_TEXT_PUT(out, "\",");
}

static void put_entry(cmq_text *out, const cmq_load *load, const batch *of)
{
    CMQ_TEXT_PUT(out, "{");
    put_member(out, 'c', cmq_slice_of_text(load->consumer_group));
    put_member(out, 't', cmq_slice_of_text(load->topic));
    CMQ_TEXT_PUT(out, "\"r\":\"0\",\"so\":");
    cmq_text_put_number(out, of->start_offset);
    CMQ_TEXT_PUT(out, ",\"q\":");
    cmq_text_put_number(out, of->queue_id);
    CMQ_TEXT_PUT(out, ",\"rq\":");
    cmq_text_put_slice(out, of->revive_queue);
    CMQ_TEXT_PUT(out, ",\"pt\":");
    cmq_text_put_slice(out, of->pop_ms);
    CMQ_TEXT_PUT(out, ",\"it\":");
    cmq_text_put_slice(out, of->invisible_ms);
    CMQ_TEXT_PUT(out, ",\"b\":\"");
    put_base64(out, of->bits);
    CMQ_TEXT_PUT(out, "\"}");
}

/* One request for all that an answer brought. */
static cmq_status put_acks(cmq_load *load, load_conn *conn, const batch *batches, uint32_t count)
{
    uint8_t room[POPPED_MAX * ENTRY_BYTES], *into = cmq_load_conn_reserve(conn, REQUEST_BYTES + sizeof room);
    cmq_text body = {.begin = room, .capacity = sizeof room};
    uint32_t messages = 0;
    if (into == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for acks");
    CMQ_TEXT_PUT(&body, "{\"brokerName\":\"");
    cmq_text_put_escaped(&body, cmq_slice_of_text(load->brokers[conn->endpoint]));
    CMQ_TEXT_PUT(&body, "\",\"acks\":[");
    for (uint32_t i = 0; i < count; i++) {
        if (i > 0) CMQ_TEXT_PUT(&body, ",");
        put_entry(&body, load, &batches[i]);
        messages += batches[i].count;
    }
    CMQ_TEXT_PUT(&body, "]}");
    if (!cmq_text_fits(&body))
        return cmq_fail(CMQ_ERR_TOO_LARGE, "acks of %zu bytes: topic or group are too long", body.used);
    cmq_command_writer writer;
    cmq_command_begin(&writer, into, REQUEST_BYTES, load->options.format, CMQ_REQUEST_BATCH_ACK_MESSAGE,
                      (int32_t)(LOAD_OPAQUE_ACK + messages), 0, CMQ_SLICE_NONE);
    cmq_command_begin_fields(&writer);
    const size_t header = cmq_command_end(&writer, body.used);
    const cmq_status status = asked_for_ack(load, conn, header);
    if (status != CMQ_OK) return status;
    memcpy(into + header, room, body.used);
    conn->out_used += body.used;
    return CMQ_OK;
}

cmq_status cmq_load_acked(cmq_load *load, const cmq_command *command)
{
    if (command->code != CMQ_RESPONSE_SUCCESS)
        return cmq_fail(CMQ_ERR_ARGUMENT, "an ack was refused with code %d: %s", command->code,
                        cmq_load_remark_of(command).text);
    load->result.acked += (uint64_t)(command->opaque - LOAD_OPAQUE_ACK);
    load->consume_end_ns = load->now_ns;
    return CMQ_OK;
}

/* ---- answers ---- */

static void skip(cmq_slice *text, size_t bytes)
{
    text->data += bytes;
    text->bytes -= bytes;
}

static bool take_number(cmq_slice *text, uint8_t behind, int64_t *out)
{
    const uint8_t *end = text->bytes > 0 ? memchr(text->data, behind, text->bytes) : NULL;
    const size_t bytes = end != NULL ? (size_t)(end - text->data) : text->bytes;
    if (cmq_field_i64((cmq_slice){.data = text->data, .bytes = bytes}, out) != CMQ_OK) return false;
    skip(text, end != NULL ? bytes + 1 : bytes);
    return true;
}

/* Where the batch of a queue begins, from `0 0 100;0 1 7`. */
static cmq_status find_start(batch *of)
{
    cmq_slice left = of->starts;
    int64_t kind, queue_id, start;
    while (left.bytes > 0) {
        if (!take_number(&left, ' ', &kind) || !take_number(&left, ' ', &queue_id) || !take_number(&left, ';', &start))
            break;
        if (kind != 0 || queue_id != of->queue_id) continue;
        of->start_offset = start;
        return CMQ_OK;
    }
    return cmq_fail(CMQ_ERR_CORRUPT, "startOffsetInfo is `%.*s`, and a message is of queue %d",
                    (int)(of->starts.bytes < 100 ? of->starts.bytes : 100), (const char *)of->starts.data,
                    of->queue_id);
}

static cmq_status begin_batch(const cmq_command *command, batch *out)
{
    *out = (batch){.queue_id = -1};
    if (cmq_command_find(command, "popTime", &out->pop_ms) &&
        cmq_command_find(command, "invisibleTime", &out->invisible_ms) &&
        cmq_command_find(command, "reviveQid", &out->revive_queue) &&
        cmq_command_find(command, "startOffsetInfo", &out->starts))
        return CMQ_OK;
    return cmq_fail(CMQ_ERR_CORRUPT, "response to a pop lacks receipt-handle fields");
}

static cmq_status take_popped(cmq_load *load, load_conn *conn, const cmq_command *command, cmq_slice body)
{
    batch batches[POPPED_MAX];
    uint32_t count = 0;
    batch like;
    cmq_status status = begin_batch(command, &like);
    while (status == CMQ_OK && body.bytes > 0) {
        cmq_record_view view;
        status = cmq_record_parse(body.data, body.bytes, -1, CMQ_RECORD_CHECK_BODY_CRC, &view);
        if (status != CMQ_OK)
            return cmq_fail(CMQ_ERR_CORRUPT, "malformed message in a pop: %s",
                            status == CMQ_ERR_CORRUPT ? cmq_record_reason_text(view.reason) : "it is cut off");
        skip(&body, view.record_bytes);
        status = cmq_load_take_message(load, &view);
        if (status != CMQ_OK || load->options.take == CMQ_LOAD_POP) continue;
        if (count == 0 || batches[count - 1].queue_id != view.queue_id) {
            if (count == POPPED_MAX)
                return cmq_fail(CMQ_ERR_CORRUPT, "a pop was answered with messages of more than %d queues", POPPED_MAX);
            batches[count] = like;
            batches[count].queue_id = view.queue_id;
            status = find_start(&batches[count++]);
            if (status != CMQ_OK) break;
        }
        batch *of = &batches[count - 1];
        const int64_t distance = view.queue_offset - of->start_offset;
        if (distance < 0 || distance >= 32)
            return cmq_fail(CMQ_ERR_CORRUPT, "queue %d: a pop that begins at offset %" PRId64 " has offset %" PRId64,
                            of->queue_id, of->start_offset, view.queue_offset);
        of->bits = cmq_bits_set(of->bits, (uint32_t)distance);
        of->count++;
        if (load->options.take == CMQ_LOAD_POP_ACK_EACH) status = put_ack(load, conn, of, view.queue_offset);
    }
    if (status == CMQ_OK && count > 0 && load->options.take == CMQ_LOAD_POP_ACK_MANY)
        status = put_acks(load, conn, batches, count);
    return status;
}

cmq_status cmq_load_popped(cmq_load *load, load_conn *conn, const cmq_command *command, cmq_slice body)
{
    cmq_status status = CMQ_OK;
    if (!conn->consumes || conn->pops == 0) return cmq_fail(CMQ_ERR_CORRUPT, "an answer to a pop that was not sent");
    conn->pops--;
    switch (command->code) {
    case CMQ_RESPONSE_SUCCESS:
        /* The next pop goes out before the acks: its messages are on their way while these are looked at. */
        status = cmq_load_pop_more(load, conn);
        if (status == CMQ_OK) status = take_popped(load, conn, command, body);
        return status;
    case CMQ_RESPONSE_PULL_NOT_FOUND:
    case CMQ_RESPONSE_POLLING_FULL:
    case CMQ_RESPONSE_POLLING_TIMEOUT:
        load->result.pulls_empty++;
        return cmq_load_pop_more(load, conn);
    default:
        return cmq_fail(CMQ_ERR_ARGUMENT, "a pop was refused with code %d: %s", command->code,
                        cmq_load_remark_of(command).text);
    }
}
