/* cmq_pop_ack: acknowledges popped messages (200051, 200151 for many), or changes their invisible time (200053).
 *
 *     ack     with its neighbours of the turn (cmq_pop_ack_run) merged into their checkpoint in memory, else stored
 *             behind it in the log; of an ordered pop: in the table of batches
 *     change  a checkpoint of the one message, of now; then the old one's ack
 *
 * A handle says what it is about; one that is stale, or unknown, finds no checkpoint in memory, becomes an ack in the
 * log, and is dropped there by the revive. One that no broker can have given is refused; in a list of many it is passed
 * over, and counted.
 *
 * Source: consumption specification 4.7, 4.10; upstream's AckMessageProcessor, ChangeInvisibleTimeProcessor.
 */
#include "broker/pop/cmq_pop_internal.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/cmq_assert.h"
#include "base/cmq_bitmap.h"
#include "wire/cmq_json.h"

#define ANSWER_BYTES 512u
#define ILLEGAL_OFFSET "offset is illegal, key:%.*s@%d, commit:%lld, store:%lld~%lld"
#define DAMAGED "the body of code 200151 is not a list of acks: %s is missing at byte %zu"

typedef cmq_pop_acked acked;

/* ---- acknowledging ---- */

static bool is_ordered(const acked *what) { return what->handle.revive_queue == CMQ_POP_REVIVE_ORDER; }

static cmq_offset_key progress_of(const acked *what)
{
    return (cmq_offset_key){.topic = what->topic, .group = what->group, .queue_id = what->queue_id};
}
static cmq_pop_key key_of(const acked *what)
{
    return (cmq_pop_key){.topic = what->topic, .group = what->group, .queue_id = what->queue_id};
}

static cmq_status CMQ_MUST_CHECK ack_ordered(cmq_broker_loop *l, const acked *what, int64_t offset)
{
    cmq_pop_service *pops = l->broker->options.pops;
    const cmq_pop_key key = key_of(what);
    const cmq_offset_key progress = progress_of(what);
    cmq_pop_lane *lane;
    bool is_free;
    cmq_status status = cmq_pop_lane_enter(cmq_pop_service_buffer(pops), &key, &lane);
    if (status != CMQ_OK) return status;
    status = cmq_pop_fifo_ack(cmq_pop_service_ordered(pops), &progress, offset, what->handle.pop_ms,
                              what->handle.invisible_ms, cmq_pop_service_now_ms(pops), &is_free);
    cmq_pop_lane_leave(cmq_pop_service_buffer(pops), lane);
    if (is_free) cmq_pop_ack_wake(l, what);
    return status;
}

/* ---- 200051, 200053: checks ---- */

/* The queue's bounds; false: it has never had a message. */
static bool bounds_of(const cmq_broker_loop *l, const acked *what, int64_t *min_out, int64_t *max_out)
{
    cmq_queue *queue = cmq_queues_find(l->broker->queues, what->topic, what->queue_id);
    if (queue == NULL) return false;
    *min_out = cmq_queue_min(queue);
    *max_out = cmq_queue_max(queue, cmq_store_confirmed(l->broker->store));
    return true;
}

/* Can a broker with this one's settings have given such a handle? Ordered ones need a group that is known: its lane is
 * made for them. */
static cmq_status CMQ_MUST_CHECK check_handle(cmq_broker_loop *l, const acked *what)
{
    const cmq_pop_handle *handle = &what->handle;
    const cmq_pop_service *pops = l->broker->options.pops;
    const cmq_pop_service_options *o = cmq_pop_service_options_of(pops);
    if (what->group.bytes == 0 || what->group.bytes > CMQ_POP_NAME_BYTES_MAX)
        return cmq_fail(CMQ_ERR_ARGUMENT, "consumerGroup has %zu bytes; 1 to %u are a name", what->group.bytes,
                        CMQ_POP_NAME_BYTES_MAX);
    if (is_ordered(what)) {
        if (cmq_tables_group(cmq_broker_tables(l), what->group) != NULL) return CMQ_OK;
        return cmq_fail(CMQ_ERR_ARGUMENT, "extraInfo is of an ordered pop, and there is no group '%.*s'",
                        cmq_shown(what->group), (const char *)what->group.data);
    }
    if (handle->revive_queue < 0 || (uint32_t)handle->revive_queue >= o->revive_queues_read)
        return cmq_fail(CMQ_ERR_ARGUMENT, "extraInfo names revive queue %d, and there are %u", handle->revive_queue,
                        o->revive_queues_read);
    if (handle->pop_ms + handle->invisible_ms - cmq_pop_service_now_ms(pops) > cmq_pop_service_invisible_ms_max(pops))
        return cmq_fail(CMQ_ERR_ARGUMENT,
                        "extraInfo is of a message that is invisible for longer than timerMaxDelaySec allows");
    return CMQ_OK;
}

/* The first offset behind what can be acknowledged. An ack of the message that comes next does no harm, and upstream
 * takes it; an ordered one would move the group behind it. */
static int64_t end_of(const acked *what, int64_t max) { return is_ordered(what) ? max : max + 1; }

static bool check(cmq_broker_loop *l, cmq_conn *conn, const cmq_command *command, const cmq_pop_header *header,
                  acked *what)
{
    const cmq_topic_entry *topic = cmq_tables_topic(cmq_broker_tables(l), header->topic);
    int64_t min = 0, max = 0;
    *what = (acked){.topic = header->topic, .group = header->group, .queue_id = header->queue_id};
    if (l->broker->options.pops == NULL) {
        cmq_broker_answer(conn, command, CMQ_RESPONSE_SYSTEM_ERROR,
                          "there are no popped messages, as timerWheelEnable is false");
    } else if (topic == NULL) {
        cmq_broker_answer(conn, command, CMQ_RESPONSE_TOPIC_NOT_EXIST, "topic[%.*s] not exist, apply first please!",
                          cmq_shown(header->topic), (const char *)header->topic.data);
    } else if (header->queue_id < 0 || header->queue_id >= topic->read_queues) {
        cmq_broker_answer(conn, command, CMQ_RESPONSE_MESSAGE_ILLEGAL, CMQ_POP_NO_QUEUE, header->queue_id,
                          cmq_shown(header->topic), (const char *)header->topic.data, topic->read_queues);
    } else if (!bounds_of(l, what, &min, &max) || header->offset < min || header->offset > max ||
               (command->code == CMQ_REQUEST_CHANGE_MESSAGE_INVISIBLETIME && header->offset == max)) {
        cmq_broker_answer(conn, command, CMQ_RESPONSE_NO_MESSAGE, ILLEGAL_OFFSET, cmq_shown(header->topic),
                          (const char *)header->topic.data, header->queue_id, (long long)header->offset, (long long)min,
                          (long long)max);
    } else if (cmq_pop_handle_parse(header->handle, &what->handle) != CMQ_OK) {
        cmq_broker_answer(conn, command, CMQ_RESPONSE_MESSAGE_ILLEGAL, "%s", cmq_last_error()->text);
    } else if (check_handle(l, what) != CMQ_OK) {
        cmq_broker_answer(conn, command, CMQ_RESPONSE_MESSAGE_ILLEGAL, "%s", cmq_last_error()->text);
    } else if (header->offset >= end_of(what, max)) {
        cmq_broker_answer(conn, command, CMQ_RESPONSE_NO_MESSAGE, ILLEGAL_OFFSET, cmq_shown(header->topic),
                          (const char *)header->topic.data, header->queue_id, (long long)header->offset, (long long)min,
                          (long long)max);
    } else {
        return true;
    }
    cmq_bump(&l->counters.pop_acks_refused, 1);
    return false;
}

static void answer_failure(cmq_conn *conn, const cmq_command *command, cmq_status status, const char *text)
{
    cmq_broker_answer(conn, command,
                      status == CMQ_ERR_NOT_FOUND ? CMQ_RESPONSE_MESSAGE_ILLEGAL : cmq_broker_code_of(status), "%s",
                      text);
}

static void ack(cmq_broker_loop *l, cmq_conn *conn, const cmq_command *command, const cmq_pop_header *header)
{
    acked what;
    if (!check(l, conn, command, header, &what)) return;
    if (!is_ordered(&what)) {
        cmq_pop_ack_later(l, conn, command, &what, header->offset);
        return;
    }
    const cmq_status status = ack_ordered(l, &what, header->offset);
    if (status == CMQ_OK)
        cmq_conn_answer(conn, command, CMQ_RESPONSE_SUCCESS, CMQ_SLICE_NONE);
    else
        answer_failure(conn, command, status, cmq_last_error()->text);
}

/* ---- 200053 ---- */

static void answer_changed(cmq_conn *conn, const cmq_command *command, int64_t pop_ms, int64_t invisible_ms,
                           int32_t revive_queue)
{
    uint8_t *out = (command->flag & CMQ_COMMAND_ONEWAY) == 0 ? cmq_conn_reserve(conn, ANSWER_BYTES) : NULL;
    cmq_command_writer writer;
    if (out == NULL) return;
    /* Upstream's remark of an answer that nobody filled in. */
    cmq_command_begin(&writer, out, ANSWER_BYTES, command->format, CMQ_RESPONSE_SUCCESS, command->opaque,
                      CMQ_COMMAND_RESPONSE, CMQ_NAME("not set any response code"));
    cmq_command_add_i64(&writer, CMQ_NAME("popTime"), pop_ms);
    cmq_command_add_i64(&writer, CMQ_NAME("invisibleTime"), invisible_ms);
    cmq_command_add_i64(&writer, CMQ_NAME("reviveQid"), revive_queue);
    const size_t used = cmq_command_end(&writer, 0);
    CMQ_ASSERT(used <= ANSWER_BYTES);
    cmq_conn_commit(conn, used);
}

static void change_ordered(cmq_broker_loop *l, cmq_conn *conn, const cmq_command *command, const cmq_pop_header *header,
                           const acked *what)
{
    cmq_pop_service *pops = l->broker->options.pops;
    const cmq_pop_key key = key_of(what);
    const cmq_offset_key progress = progress_of(what);
    cmq_pop_lane *lane;
    bool changed;
    const cmq_status status = cmq_pop_lane_enter(cmq_pop_service_buffer(pops), &key, &lane);
    if (status != CMQ_OK) {
        answer_failure(conn, command, status, cmq_last_error()->text);
        return;
    }
    const int64_t invisible_ms =
        cmq_pop_fifo_change(cmq_pop_service_ordered(pops), &progress, header->offset, what->handle.pop_ms,
                            header->invisible_ms, cmq_pop_service_now_ms(pops), &changed);
    cmq_pop_lane_leave(cmq_pop_service_buffer(pops), lane);
    if (changed) cmq_pop_ack_wake(l, what);
    if (invisible_ms < 0)
        answer_changed(conn, command, 0, 0, 0);   /* it was consumed long ago */
    else
        answer_changed(conn, command, what->handle.pop_ms, invisible_ms, CMQ_POP_REVIVE_ORDER);
}

static void change(cmq_broker_loop *l, cmq_conn *conn, const cmq_command *command, const cmq_pop_header *header)
{
    static const int32_t first[] = {0};
    cmq_pop_service *pops = l->broker->options.pops;
    acked what;
    uint32_t stored;
    if (!check(l, conn, command, header, &what)) return;
    if (header->invisible_ms < 0 || header->invisible_ms > cmq_pop_service_invisible_ms_max(pops)) {
        cmq_broker_answer(conn, command, CMQ_RESPONSE_SYSTEM_ERROR,
                          "invisibleTime is %lld ms; 0 to %lld are allowed (timerMaxDelaySec)",
                          (long long)header->invisible_ms, (long long)cmq_pop_service_invisible_ms_max(pops));
        return;
    }
    if (is_ordered(&what)) {
        change_ordered(l, conn, command, header, &what);
        return;
    }
    if (!cmq_pop_ack_is_ours(pops, &what.handle)) {
        cmq_bump(&l->counters.pop_acks_refused, 1);
        /* Upstream's checkpoint of it names the other broker, from which it would be revived. */
        cmq_broker_answer(conn, command, CMQ_RESPONSE_MESSAGE_ILLEGAL,
                          "extraInfo is a handle of broker %.*s, not of this one", cmq_shown(what.handle.broker),
                          (const char *)what.handle.broker.data);
        return;
    }
    /* Later than the old one's, whatever the clock says: else the old one's ack could finish both. */
    const int64_t now_ms = cmq_pop_service_now_ms(pops),
                  pop_ms = now_ms > what.handle.pop_ms ? now_ms : what.handle.pop_ms + 1;
    const cmq_pop_store_item item = {
        .revive_queue = what.handle.revive_queue,
        .checkpoint = {.start_offset = header->offset,
                       .pop_ms = pop_ms,
                       .invisible_ms = header->invisible_ms,
                       .num = 1,
                       .queue_id = what.queue_id,
                       .topic = what.topic,
                       .group = what.group,
                       .broker = cmq_slice_of_text(cmq_pop_service_options_of(pops)->broker),
                       .diffs = first},
    };
    const cmq_pop_key key = key_of(&what);
    cmq_status status = cmq_pop_service_store(pops, &item, 1, &stored);
    if (status == CMQ_OK)
        cmq_pop_buffer_in_flight_anew(cmq_pop_service_buffer(pops), &key, header->offset, what.handle.pop_ms, pop_ms,
                                      header->invisible_ms);
    if (status == CMQ_OK) status = cmq_pop_ack_offsets(l, &what, &header->offset, 1);
    if (status != CMQ_OK) {
        answer_failure(conn, command, status, cmq_last_error()->text);
        return;
    }
    cmq_bump(&l->counters.pop_changes, 1);
    cmq_bump(&l->counters.pop_acks, UINT64_MAX);   /* of the old handle: no message was consumed */
    answer_changed(conn, command, pop_ms, header->invisible_ms, what.handle.revive_queue);
}

/* ---- 200151 ---- */

/* One entry of the body, as it is written there. */
typedef struct entry {
    cmq_slice group, topic, kind, bits;
    cmq_slice start, queue, revive, pop, invisible;
} entry;

static cmq_slice *member_of(entry *into, cmq_slice name)
{
#define IS(short_name, long_name, field) \
    if (CMQ_JSON_IS(name, short_name) || CMQ_JSON_IS(name, long_name)) return &into->field
    IS("c", "consumerGroup", group);
    IS("t", "topic", topic);
    IS("r", "retry", kind);
    IS("so", "startOffset", start);
    IS("q", "queueId", queue);
    IS("rq", "reviveQueueId", revive);
    IS("pt", "popTime", pop);
    IS("it", "invisibleTime", invisible);
    IS("b", "bitSet", bits);
#undef IS
    return NULL;
}

static bool read_entry(cmq_json *json, entry *out)
{
    *out = (entry){0};
    if (!cmq_json_take(json, '{')) return cmq_json_wrong(json, "an ack");
    bool more = !cmq_json_take(json, '}');
    while (more) {
        cmq_slice name, *into;
        if (!cmq_json_name(json, &name)) return false;
        into = member_of(out, name);
        if (into != NULL ? !cmq_json_text(json, into) : !cmq_json_skip(json, 1)) return false;
        if (!cmq_json_separator(json, '}', &more)) return false;
    }
    return true;
}

/* Read what an entry says; false: it says nothing that could be. `topic_room` takes a retry topic's name. */
static bool take_entry(cmq_broker_loop *l, const entry *from, cmq_slice broker,
                       uint8_t topic_room[CMQ_POP_TOPIC_BYTES_MAX], acked *out)
{
    int32_t kind = CMQ_POP_NORMAL;
    cmq_pop_handle *handle = &out->handle;
    *out = (acked){.group = from->group};
    if (cmq_field_i64(from->start, &handle->start_offset) != CMQ_OK ||
        cmq_field_i64(from->pop, &handle->pop_ms) != CMQ_OK ||
        cmq_field_i64(from->invisible, &handle->invisible_ms) != CMQ_OK ||
        cmq_field_i32(from->queue, &out->queue_id) != CMQ_OK ||
        cmq_field_i32(from->revive, &handle->revive_queue) != CMQ_OK ||
        (from->kind.bytes > 0 && cmq_field_i32(from->kind, &kind) != CMQ_OK))
        return false;
    if (handle->start_offset < 0 || handle->start_offset > CMQ_POP_OFFSET_MAX || handle->pop_ms < 0 ||
        handle->pop_ms > CMQ_POP_MS_MAX || handle->invisible_ms < 0 || handle->invisible_ms > CMQ_POP_MS_MAX ||
        out->queue_id < 0 || kind < CMQ_POP_NORMAL || kind > CMQ_POP_RETRY_V2)
        return false;
    handle->broker = broker;
    if (from->group.bytes == 0 ||
        cmq_pop_retry_topic(from->group, from->topic, (cmq_pop_retry)kind, topic_room, &out->topic) != CMQ_OK)
        return false;
    return check_handle(l, out) == CMQ_OK;
}

/* The value of a base64 digit; -1: none. */
static int digit_of(uint8_t byte)
{
    if (byte >= 'A' && byte <= 'Z') return byte - 'A';
    if (byte >= 'a' && byte <= 'z') return byte - 'a' + 26;
    if (byte >= '0' && byte <= '9') return byte - '0' + 52;
    return byte == '+' ? 62 : byte == '/' ? 63 : -1;
}

/* The messages that an entry names. */
typedef struct named {
    int64_t offsets[CMQ_POP_MESSAGES_MAX];
    uint32_t count;
} named;

static bool is_base64(cmq_slice text)
{
    size_t digits = 0;
    while (digits < text.bytes && digit_of(text.data[digits]) >= 0) digits++;
    for (size_t i = digits; i < text.bytes; i++)
        if (text.data[i] != '=') return false;
    return text.bytes - digits <= 2;
}

/* The messages whose bits are set, but those that the queue does not have. False: they are not of one checkpoint, or it
 * is no base64. */
static bool read_bits(cmq_slice bits, int64_t start, int64_t min, int64_t end, named *out)
{
    int64_t offset = start;
    uint32_t word = 0, word_bits = 0;
    out->count = 0;
    if (!is_base64(bits)) return false;
    for (size_t i = 0; i < bits.bytes && bits.data[i] != '=' && offset < end; i++) {
        word = word << 6 | (uint32_t)digit_of(bits.data[i]);
        word_bits += 6;
        if (word_bits < 8) continue;
        word_bits -= 8;
        uint32_t byte = word >> word_bits & 0xFF;
        while (byte != 0) {
            const int64_t at = offset + cmq_bits_take(&byte);
            if (at < min || at >= end) continue;
            if (out->count == CMQ_POP_MESSAGES_MAX) return false;
            out->offsets[out->count++] = at;
        }
        offset += 8;
    }
    return true;
}

static cmq_status CMQ_MUST_CHECK ack_named(cmq_broker_loop *l, const acked *what, const named *of)
{
    cmq_status status = CMQ_OK;
    if (!is_ordered(what)) return of->count > 0 ? cmq_pop_ack_offsets(l, what, of->offsets, of->count) : CMQ_OK;
    for (uint32_t i = 0; i < of->count && status == CMQ_OK; i++) {
        status = ack_ordered(l, what, of->offsets[i]);
        if (status == CMQ_ERR_NOT_FOUND) status = CMQ_OK;   /* the others count */
    }
    return status;
}

/* Entries that cannot be of messages popped here are passed over. */
static cmq_status CMQ_MUST_CHECK ack_entry(cmq_broker_loop *l, const entry *from, cmq_slice broker)
{
    uint8_t topic_room[CMQ_POP_TOPIC_BYTES_MAX];
    acked what;
    named of;
    int64_t min, max;
    if (take_entry(l, from, broker, topic_room, &what) && bounds_of(l, &what, &min, &max) &&
        read_bits(from->bits, what.handle.start_offset, min, end_of(&what, max), &of))
        return ack_named(l, &what, &of);
    cmq_bump(&l->counters.pop_acks_refused, 1);
    return CMQ_OK;
}

/* A list, and what became of it. */
typedef struct listed {
    cmq_slice broker;                  /* of whose handles it is */
    uint32_t entries;
    cmq_status failed;                 /* of an entry; CMQ_OK: none did */
    char failure[CMQ_ERROR_TEXT_BYTES];
} listed;

static bool ack_list(cmq_broker_loop *l, cmq_json *json, listed *of)
{
    if (!cmq_json_take(json, '[')) return cmq_json_wrong(json, "a list of acks");
    bool more = !cmq_json_take(json, ']');
    while (more) {
        entry from;
        if (!read_entry(json, &from)) return false;
        of->entries++;
        const cmq_status status = ack_entry(l, &from, of->broker);
        if (status != CMQ_OK) {
            of->failed = status;
            snprintf(of->failure, sizeof of->failure, "%s", cmq_last_error()->text);
        }
        if (!cmq_json_separator(json, ']', &more)) return false;
    }
    return true;
}

/* Looked for first: it stands behind the list. */
static bool find_broker(cmq_json *json, listed *of)
{
    if (!cmq_json_take(json, '{')) return cmq_json_wrong(json, "an object");
    bool more = !cmq_json_take(json, '}');
    while (more) {
        cmq_slice name;
        if (!cmq_json_name(json, &name)) return false;
        if (CMQ_JSON_IS(name, "brokerName") ? !cmq_json_text(json, &of->broker) : !cmq_json_skip(json, 0)) return false;
        if (!cmq_json_separator(json, '}', &more)) return false;
    }
    return true;
}

/* find_broker has seen that it is an object. */
static bool ack_body(cmq_broker_loop *l, cmq_json *json, listed *of)
{
    bool more = cmq_json_take(json, '{') && !cmq_json_take(json, '}');
    while (more) {
        cmq_slice name;
        if (!cmq_json_name(json, &name)) return false;
        if (CMQ_JSON_IS(name, "acks") ? !ack_list(l, json, of) : !cmq_json_skip(json, 0)) return false;
        if (!cmq_json_separator(json, '}', &more)) return false;
    }
    return true;
}

/* A list is taken whole, in one piece of the loop's time: some 6 us an entry. Braces inside of texts count, too; no
 * name has any. */
static bool is_short_list(cmq_slice body)
{
    uint32_t braces = 0;
    if (body.bytes > CMQ_POP_LIST_BYTES_MAX) return false;
    for (size_t i = 0; i < body.bytes; i++) braces += body.data[i] == '{';
    return braces <= CMQ_POP_LIST_ENTRIES_MAX + 1;   /* and the list's own */
}

static void ack_batch(cmq_broker_loop *l, cmq_conn *conn, const cmq_command *command, cmq_slice body)
{
    listed of = {.failed = CMQ_OK};
    if (l->broker->options.pops == NULL) {
        cmq_broker_answer(conn, command, CMQ_RESPONSE_SYSTEM_ERROR,
                          "there are no popped messages, as timerWheelEnable is false");
        return;
    }
    if (!is_short_list(body)) {
        cmq_broker_answer(conn, command, CMQ_RESPONSE_MESSAGE_ILLEGAL,
                          "a list of acks has at most %u entries and %u bytes; this one has %zu bytes",
                          CMQ_POP_LIST_ENTRIES_MAX, CMQ_POP_LIST_BYTES_MAX, body.bytes);
        return;
    }
    uint8_t *scratch = malloc(2 * body.bytes + 1);   /* once for each time that it is read */
    if (scratch == NULL) {
        cmq_broker_answer(conn, command, CMQ_RESPONSE_SYSTEM_ERROR, "no memory for %zu bytes of acks", body.bytes);
        return;
    }
    cmq_json json;
    cmq_json_begin(&json, body, scratch, body.bytes);
    bool is_read = body.bytes == 0 || find_broker(&json, &of);
    if (of.broker.bytes == 0)
        of.broker = cmq_slice_of_text(cmq_pop_service_options_of(l->broker->options.pops)->broker);
    if (is_read && body.bytes > 0 && of.broker.bytes <= CMQ_POP_BROKER_BYTES_MAX) {
        cmq_json_begin(&json, body, scratch + body.bytes, body.bytes);
        is_read = ack_body(l, &json, &of);
    }
    if (is_read && of.broker.bytes > CMQ_POP_BROKER_BYTES_MAX)
        cmq_broker_answer(conn, command, CMQ_RESPONSE_MESSAGE_ILLEGAL, "brokerName has %zu bytes; %u is the most",
                          of.broker.bytes, CMQ_POP_BROKER_BYTES_MAX);
    else if (!is_read)
        cmq_broker_answer(conn, command, CMQ_RESPONSE_SYSTEM_ERROR, DAMAGED, json.wrong, (size_t)(json.at - body.data));
    else if (of.entries == 0)
        cmq_conn_answer(conn, command, CMQ_RESPONSE_NO_MESSAGE, CMQ_SLICE_NONE);
    else if (of.failed != CMQ_OK)
        answer_failure(conn, command, of.failed, of.failure);
    else
        cmq_conn_answer(conn, command, CMQ_RESPONSE_SUCCESS, CMQ_SLICE_NONE);
    free(scratch);
}

/* ---- dealing out ---- */

cmq_net_verdict cmq_pop_ack_request(cmq_broker_loop *l, cmq_conn *conn, const cmq_command *command, cmq_slice body)
{
    cmq_pop_header header;
    if (command->code != CMQ_REQUEST_ACK_MESSAGE) cmq_pop_ack_run_flush(l);
    if (command->code == CMQ_REQUEST_BATCH_ACK_MESSAGE)
        ack_batch(l, conn, command, body);
    else if (cmq_pop_header_read(command, &header) != CMQ_OK)
        cmq_broker_answer(conn, command, CMQ_RESPONSE_SYSTEM_ERROR, "%s", cmq_last_error()->text);
    else if (command->code == CMQ_REQUEST_ACK_MESSAGE)
        ack(l, conn, command, &header);
    else
        change(l, conn, command, &header);
    return CMQ_NET_DONE;
}
