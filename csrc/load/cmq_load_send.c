/* cmq_load_send: producers: requests from moulds, and what their answers say.
 *
 * A request is a copy of its queue's mould in which four places are filled in: opaque, born time, unique key, body.
 * Bodies carry the time at which they were made, so that every message knows how long it was on its way.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "load/cmq_load_internal.h"
#include "store/record/cmq_wire_batch.h"
#include "wire/cmq_codes.h"

enum {
    BORN_DIGITS = 13,
    REFUSED_IN_ROW_MAX = 1000,
    UNIQUE_RUN_DIGITS = 16,
    UNIQUE_PRODUCER_DIGITS = 4,
    UNIQUE_SEQUENCE_DIGITS = 12,
    PROPERTIES_BYTES = 384,   /* with a group of 255 */
    SYS_FLAG_PREPARED = 4
};
_Static_assert(UNIQUE_RUN_DIGITS + UNIQUE_PRODUCER_DIGITS + UNIQUE_SEQUENCE_DIGITS == LOAD_UNIQUE_BYTES,
               "a unique key is as long as Java's");

/* Placeholders in a template: texts that occur nowhere else. */
static const char mark_born[] = "7777777777777", mark_unique[] = "ZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZ",
                  mark_opaque[] = "1234567890";
enum { MARK_OPAQUE = 1234567890, AT_OPAQUE_ROCKETMQ = CMQ_FRAME_PREFIX_BYTES + 5 };

/* ---- moulds ---- */

/* The properties that Java's producer gives every message. */
static size_t write_properties(const cmq_load *load, uint8_t *into, const char unique[LOAD_UNIQUE_BYTES])
{
    static const char name[] = "UNIQ_KEY\1";
    const char *rest = load->options.no_wait ? "\2WAIT\1false\2" : "\2WAIT\1true\2";
    memcpy(into, name, sizeof name - 1);
    memcpy(into + sizeof name - 1, unique, LOAD_UNIQUE_BYTES);
    memcpy(into + sizeof name - 1 + LOAD_UNIQUE_BYTES, rest, strlen(rest));
    size_t bytes = sizeof name - 1 + LOAD_UNIQUE_BYTES + strlen(rest);
    if (load->options.transactions)
        bytes += (size_t)snprintf((char *)into + bytes, PROPERTIES_BYTES - bytes, "TRAN_MSG\1true\2PGROUP\1%s\2",
                                  load->producer_group);
    return bytes;
}

static void add(cmq_command_writer *writer, const char *name, const char *value)
{
    cmq_command_add_text(writer, cmq_slice_of_text(name), cmq_slice_of_text(value));
}

/* The members in the order in which Java's map gives them. */
static size_t write_header(cmq_load *load, const load_queue *queue, uint8_t *into, size_t capacity)
{
    uint8_t properties[PROPERTIES_BYTES];
    const cmq_slice written = {.data = properties, .bytes = write_properties(load, properties, mark_unique)};
    const bool batch = load->options.batch > 1;
    cmq_command_writer writer;
    cmq_command_begin(&writer, into, capacity, load->options.format,
                      batch ? CMQ_REQUEST_SEND_BATCH_MESSAGE : CMQ_REQUEST_SEND_MESSAGE_V2, MARK_OPAQUE,
                      load->options.oneway ? CMQ_COMMAND_ONEWAY : 0, CMQ_SLICE_NONE);
    add(&writer, "a", load->producer_group);
    add(&writer, "b", load->topic);
    add(&writer, "c", "TBW102");
    cmq_command_add_i64(&writer, CMQ_NAME("d"), 4);
    cmq_command_add_i64(&writer, CMQ_NAME("e"), queue->queue_id);
    cmq_command_add_i64(&writer, CMQ_NAME("f"), load->options.transactions ? SYS_FLAG_PREPARED : 0);
    add(&writer, "g", mark_born);
    cmq_command_add_i64(&writer, CMQ_NAME("h"), 0);
    cmq_command_add_text(&writer, CMQ_NAME("i"), written);
    cmq_command_add_i64(&writer, CMQ_NAME("j"), 0);
    cmq_command_add_bool(&writer, CMQ_NAME("k"), false);
    cmq_command_add_bool(&writer, CMQ_NAME("m"), batch);
    return cmq_command_end(&writer, load->body_bytes);
}

/* Where the mark stands; header_bytes when it does not, or not once. */
static size_t place_of(const load_mould *mould, const char *mark)
{
    const uint8_t *end = mould->bytes + mould->header_bytes;
    const uint8_t *found = memmem(mould->bytes, mould->header_bytes, mark, strlen(mark));
    if (found == NULL || memmem(found + 1, (size_t)(end - found - 1), mark, strlen(mark)) != NULL)
        return mould->header_bytes;
    return (size_t)(found - mould->bytes);
}

static cmq_status mould_queue(cmq_load *load, load_queue *queue)
{
    load_mould *mould = &queue->mould;
    mould->header_bytes = write_header(load, queue, NULL, 0);
    if (mould->header_bytes == 0)
        return cmq_fail(CMQ_ERR_TOO_LARGE, "no frame can hold a send of %zu bytes", load->body_bytes);
    mould->bytes = malloc(mould->header_bytes);
    if (mould->bytes == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for a request");
    write_header(load, queue, mould->bytes, mould->header_bytes);
    mould->at_born = place_of(mould, mark_born);
    mould->at_unique = place_of(mould, mark_unique);
    mould->at_opaque = load->options.format == CMQ_HEADER_JSON ? place_of(mould, mark_opaque) : AT_OPAQUE_ROCKETMQ;
    const size_t last = mould->header_bytes;
    if (mould->at_born == last || mould->at_unique == last || mould->at_opaque == last)
        return cmq_fail(CMQ_ERR_ARGUMENT, "topic or group hold a text that marks a place in a request: %s",
                        load->topic);
    return CMQ_OK;
}

cmq_status cmq_load_mould_queues(cmq_load *load)
{
    uint8_t properties[PROPERTIES_BYTES];
    load->property_bytes = write_properties(load, properties, mark_unique);
    const size_t element = CMQ_WIRE_BATCH_ELEMENT_BYTES_MIN + load->options.body_bytes + load->property_bytes;
    load->body_bytes = load->options.batch > 1 ? load->options.batch * element : load->options.body_bytes;
    for (uint32_t i = 0; i < load->options.queue_count; i++) {
        const cmq_status status = mould_queue(load, &load->queues[i]);
        if (status != CMQ_OK) return status;
    }
    return CMQ_OK;
}

/* ---- requests ---- */

static void put_decimal(uint8_t *into, unsigned digits, uint64_t number)
{
    for (unsigned i = digits; i > 0; i--) {
        into[i - 1] = (uint8_t)('0' + number % 10);
        number /= 10;
    }
}

static void put_hex(char *into, unsigned digits, uint64_t number)
{
    for (unsigned i = digits; i > 0; i--) {
        into[i - 1] = "0123456789ABCDEF"[number & 0xF];
        number >>= 4;
    }
}

static void put_unique(const cmq_load *load, const load_conn *conn, uint64_t sequence, char into[LOAD_UNIQUE_BYTES])
{
    put_hex(into, UNIQUE_RUN_DIGITS, load->options.run);
    put_hex(into + UNIQUE_RUN_DIGITS, UNIQUE_PRODUCER_DIGITS, conn->index);
    put_hex(into + UNIQUE_RUN_DIGITS + UNIQUE_PRODUCER_DIGITS, UNIQUE_SEQUENCE_DIGITS, sequence);
}

static void put_body(const cmq_load *load, load_conn *conn, uint8_t *into)
{
    const cmq_load_body body = {
        .run = load->options.run, .producer = conn->index, .sequence = conn->sequence++, .sent_ns = load->now_ns};
    cmq_load_body_write(into, load->options.body_bytes, &body, load->pool);
}

/* The elements of a batch, each as cmq_wire_batch_write would write it, the body made in its place. */
static void put_elements(const cmq_load *load, load_conn *conn, uint8_t *at)
{
    const uint32_t body_bytes = load->options.body_bytes;
    const uint32_t bytes = CMQ_WIRE_BATCH_ELEMENT_BYTES_MIN + body_bytes + (uint32_t)load->property_bytes;
    for (uint32_t i = 0; i < load->options.batch; i++, at += bytes) {
        char unique[LOAD_UNIQUE_BYTES];
        put_unique(load, conn, conn->sequence, unique);
        cmq_store_u32(at, bytes);
        memset(at + 4, 0, 12);   /* magic, CRC, flag */
        cmq_store_u32(at + 16, body_bytes);
        put_body(load, conn, at + 20);
        cmq_store_u16(at + 20 + body_bytes, (uint16_t)load->property_bytes);
        write_properties(load, at + 22 + body_bytes, unique);
    }
}

static cmq_status put_send(cmq_load *load, load_conn *conn, uint32_t slot)
{
    load_queue *queue = &load->queues[conn->queue_at];
    const load_mould *mould = &queue->mould;
    uint8_t *into = cmq_load_conn_reserve(conn, mould->header_bytes + load->body_bytes);
    if (into == NULL)
        return cmq_fail(CMQ_ERR_MEMORY, "no memory for a request of %zu bytes", mould->header_bytes + load->body_bytes);
    memcpy(into, mould->bytes, mould->header_bytes);
    const uint32_t opaque = LOAD_OPAQUE_SEND + slot;
    if (load->options.format == CMQ_HEADER_JSON) {
        put_decimal(into + mould->at_opaque, sizeof mark_opaque - 1, opaque);
    } else {
        cmq_store_u32(into + mould->at_opaque, opaque);
    }
    put_decimal(into + mould->at_born, BORN_DIGITS, (uint64_t)load->born_ms);
    put_unique(load, conn, conn->sequence, (char *)into + mould->at_unique);
    if (load->options.batch > 1) {
        put_elements(load, conn, into + mould->header_bytes);
    } else {
        put_body(load, conn, into + mould->header_bytes);
    }
    conn->out_used += mould->header_bytes + load->body_bytes;
    load->result.sends++;
    load->result.sent += load->options.batch;
    load->issued += load->options.batch;
    return CMQ_OK;
}

/* The next queue of the connection's broker, in turn. */
static void step_queue(const cmq_load *load, load_conn *conn)
{
    do {
        conn->queue_at = conn->queue_at + 1 < load->options.queue_count ? conn->queue_at + 1 : 0;
    } while (load->queues[conn->queue_at].endpoint != conn->endpoint);
}

static cmq_status begin_send(cmq_load *load, load_conn *conn)
{
    const uint32_t slot = load->options.oneway ? 0 : conn->free_slots[--conn->free_count];
    const cmq_status status = put_send(load, conn, slot);
    if (status != CMQ_OK) return status;
    if (load->options.oneway) {
        load->result.accepted += load->options.batch;   /* until last offsets tell */
        load->send_end_ns = load->now_ns;
    } else {
        conn->slots[slot] = (load_slot){.sent_ns = load->now_ns, .queue = conn->queue_at, .busy = true};
        cmq_load_conn_asked(load, conn);
    }
    step_queue(load, conn);
    return CMQ_OK;
}

cmq_status cmq_load_sender_init(cmq_load *load, load_conn *conn)
{
    const uint32_t depth = load->options.depth;
    conn->slots = calloc(depth, sizeof *conn->slots);
    conn->free_slots = calloc(depth, sizeof *conn->free_slots);
    if (conn->slots == NULL || conn->free_slots == NULL)
        return cmq_fail(CMQ_ERR_MEMORY, "no memory for %u sends in flight", depth);
    for (uint32_t i = 0; i < depth; i++) conn->free_slots[i] = depth - 1 - i;
    conn->free_count = depth;
    /* not all begin with the same */
    conn->queue_at = (uint32_t)(((uint64_t)conn->index * load->options.queue_count) / load->options.producers);
    step_queue(load, conn);
    return CMQ_OK;
}

static bool may_begin(const cmq_load *load)
{
    if (!load->sending) return false;
    return load->options.count == 0 || load->issued < load->options.count;
}

cmq_status cmq_load_send_more(cmq_load *load, load_conn *conn)
{
    cmq_status status = CMQ_OK;
    if (load->options.rate_per_s > 0 || conn->consumes || conn->waits_for_room) return CMQ_OK;
    if (load->options.oneway) {
        for (uint32_t i = 0; status == CMQ_OK && i < load->options.depth && may_begin(load); i++)
            status = begin_send(load, conn);
        return status;
    }
    while (status == CMQ_OK && conn->free_count > 0 && may_begin(load)) status = begin_send(load, conn);
    return status;
}

cmq_status cmq_load_send_paced(cmq_load *load)
{
    const double elapsed_s = (double)(load->now_ns - load->send_begin_ns) * 1e-9;
    const double due = elapsed_s * (double)load->options.rate_per_s;
    for (uint32_t idle = 0; idle < load->options.producers && (double)load->issued < due && may_begin(load);) {
        load_conn *conn = &load->conns[load->next_paced];
        load->next_paced = load->next_paced + 1 < load->options.producers ? load->next_paced + 1 : 0;
        if ((!load->options.oneway && conn->free_count == 0) || conn->waits_for_room) {
            idle++;
            continue;
        }
        idle = 0;
        cmq_status status = begin_send(load, conn);
        if (status == CMQ_OK) status = cmq_load_conn_flush(load, conn);
        if (status != CMQ_OK) return status;
    }
    return CMQ_OK;
}

/* ---- answers ---- */

static bool is_accepted(int32_t code)
{
    return code == CMQ_RESPONSE_SUCCESS || code == CMQ_RESPONSE_FLUSH_DISK_TIMEOUT ||
           code == CMQ_RESPONSE_SLAVE_NOT_AVAILABLE || code == CMQ_RESPONSE_FLUSH_SLAVE_TIMEOUT;
}

static cmq_status refused(cmq_load *load, const cmq_command *command)
{
    const cmq_load_remark remark = cmq_load_remark_of(command);
    if (load->result.refused == 0)
        snprintf(load->result.refusal, sizeof load->result.refusal, "code %d: %s", command->code, remark.text);
    load->result.refused += load->options.batch;
    if (++load->refused_in_row < REFUSED_IN_ROW_MAX) return CMQ_OK;
    return cmq_fail(CMQ_ERR_ARGUMENT, "the broker refused %u sends in a row, the last with code %d: %s",
                    load->refused_in_row, command->code, remark.text);
}

/* The offsets that an answer names: each is new, and none before the first of the run. */
static cmq_status mark_offsets(cmq_load *load, load_queue *queue, int64_t first)
{
    for (uint32_t i = 0; i < load->options.batch; i++) {
        const int64_t offset = first + i;
        bool is_new = false;
        if (offset >= queue->first_offset) {
            const cmq_status status =
                cmq_marks_set(&queue->accepted, (uint64_t)(offset - queue->first_offset), &is_new);
            if (status != CMQ_OK) return status;
        }
        if (is_new) continue;
        load->result.bad_offsets++;
        cmq_load_note(load, "queue %d: offset %lld was given twice, or before the run", queue->queue_id,
                      (long long)offset);
    }
    return CMQ_OK;
}

static cmq_status accepted(cmq_load *load, load_queue *queue, const cmq_command *command)
{
    cmq_slice id_text, offset_text;
    int32_t queue_id = 0;
    int64_t offset = 0;
    if (!cmq_command_find(command, "queueId", &id_text) || !cmq_command_find(command, "queueOffset", &offset_text) ||
        cmq_field_i32(id_text, &queue_id) != CMQ_OK || cmq_field_i64(offset_text, &offset) != CMQ_OK)
        return cmq_fail(CMQ_ERR_CORRUPT, "the answer to a send does not name queue and offset");
    if (queue_id != queue->queue_id) {
        load->result.bad_offsets++;
        cmq_load_note(load, "a send to queue %d was answered for queue %d", queue->queue_id, queue_id);
    }
    load->refused_in_row = 0;
    if (load->options.transactions) return CMQ_OK;   /* an offset among half messages */
    load->result.accepted += load->options.batch;
    if (command->code != CMQ_RESPONSE_SUCCESS) load->result.not_on_disk += load->options.batch;
    return mark_offsets(load, queue, offset);
}

/* The half message's answer is followed by its commit, whose answer ends the send. */
static cmq_status half_stored(cmq_load *load, load_conn *conn, load_slot *slot, const cmq_command *command)
{
    load_queue *queue = &load->queues[slot->queue];
    cmq_status status = accepted(load, queue, command);
    if (status == CMQ_OK) status = cmq_load_commit(load, conn, queue, command);
    slot->ends = true;
    return status;
}

static cmq_status answered(cmq_load *load, const load_slot *slot, const cmq_command *command)
{
    if (!is_accepted(command->code)) return refused(load, command);
    if (!slot->ends) return accepted(load, &load->queues[slot->queue], command);
    load->result.accepted++;
    return CMQ_OK;
}

cmq_status cmq_load_sent(cmq_load *load, load_conn *conn, const cmq_command *command)
{
    const uint32_t index = (uint32_t)(command->opaque - LOAD_OPAQUE_SEND);
    if (conn->consumes || index >= load->options.depth || !conn->slots[index].busy)
        return cmq_fail(CMQ_ERR_CORRUPT, "an answer to a send that was not sent (opaque %d)", command->opaque);
    load_slot *slot = &conn->slots[index];
    if (load->options.transactions && !slot->ends && is_accepted(command->code))
        return half_stored(load, conn, slot, command);
    slot->busy = false;
    conn->free_slots[conn->free_count++] = index;
    load->send_end_ns = load->now_ns;
    cmq_histogram_record(&load->result.send_latency, load->now_ns - slot->sent_ns, 1);
    const cmq_status status = answered(load, slot, command);
    return status != CMQ_OK ? status : cmq_load_send_more(load, conn);
}
