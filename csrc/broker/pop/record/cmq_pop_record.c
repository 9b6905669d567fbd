/* cmq_pop_record: see cmq_pop_record.h. */
#include "broker/pop/record/cmq_pop_record.h"

#include "base/cmq_assert.h"
#include "base/cmq_bitmap.h"
#include "store/record/cmq_property.h"
#include "wire/cmq_command.h"
#include "wire/cmq_json.h"

_Static_assert(CMQ_POP_MESSAGES_MAX == CMQ_BITS_MAX, "a bit for each message");

/* ---- writing ---- */

/* `name` has the sign before it and the colon: {"so": or ,"so": */
static inline void put_number(cmq_text *out, cmq_slice name, int64_t number)
{
    cmq_text_put_slice(out, name);
    cmq_text_put_number(out, number);
}
#define PUT_NUMBER(out, name, number) put_number(out, CMQ_NAME(name), number)

static inline void put_string(cmq_text *out, cmq_slice name, cmq_slice text)
{
    cmq_text_put_slice(out, name);
    CMQ_TEXT_PUT(out, "\"");
    cmq_text_put_escaped(out, text);
    CMQ_TEXT_PUT(out, "\"");
}
#define PUT_STRING(out, name, text) put_string(out, CMQ_NAME(name), text)

/* The broker's name, a member that may be null. */
static inline void put_broker(cmq_text *out, cmq_slice broker)
{
    if (broker.bytes > 0) PUT_STRING(out, ",\"bn\":", broker);
}

void cmq_pop_checkpoint_write(cmq_text *out, const cmq_pop_checkpoint *checkpoint)
{
    CMQ_ASSERT(checkpoint->num <= CMQ_POP_MESSAGES_MAX);
    PUT_NUMBER(out, "{\"bm\":", (int32_t)checkpoint->bits);
    put_broker(out, checkpoint->broker);
    PUT_STRING(out, ",\"c\":", checkpoint->group);
    CMQ_TEXT_PUT(out, ",\"d\":[");
    for (uint32_t i = 0; i < checkpoint->num; i++) {
        if (i > 0) CMQ_TEXT_PUT(out, ",");
        cmq_text_put_number(out, checkpoint->diffs != NULL ? checkpoint->diffs[i] : (int32_t)i);
    }
    PUT_NUMBER(out, "],\"it\":", checkpoint->invisible_ms);
    if (checkpoint->log_end > 0) PUT_NUMBER(out, ",\"logEnd\":", checkpoint->log_end);
    PUT_NUMBER(out, ",\"n\":", checkpoint->num);
    PUT_NUMBER(out, ",\"pt\":", checkpoint->pop_ms);
    PUT_NUMBER(out, ",\"q\":", checkpoint->queue_id);
    PUT_NUMBER(out, ",\"reviveTime\":", cmq_pop_revive_ms(checkpoint));
    PUT_NUMBER(out, ",\"ro\":", checkpoint->revive_offset);
    if (checkpoint->re_puts > 0) {
        PUT_NUMBER(out, ",\"rp\":\"", checkpoint->re_puts);
        CMQ_TEXT_PUT(out, "\"");
    }
    PUT_NUMBER(out, ",\"so\":", checkpoint->start_offset);
    PUT_STRING(out, ",\"t\":", checkpoint->topic);
    CMQ_TEXT_PUT(out, "}");
}

/* The members of an ack behind its offset or offsets. */
static void put_ack_end(cmq_text *out, const cmq_pop_ack *ack)
{
    put_broker(out, ack->broker);
    PUT_STRING(out, ",\"c\":", ack->group);
    PUT_NUMBER(out, ",\"pt\":", ack->pop_ms);
    PUT_NUMBER(out, ",\"q\":", ack->queue_id);
    PUT_NUMBER(out, ",\"so\":", ack->start_offset);
    PUT_STRING(out, ",\"t\":", ack->topic);
    CMQ_TEXT_PUT(out, "}");
}

void cmq_pop_ack_write(cmq_text *out, const cmq_pop_ack *ack)
{
    PUT_NUMBER(out, "{\"ao\":", ack->offset);
    put_ack_end(out, ack);
}

void cmq_pop_batch_ack_write(cmq_text *out, const cmq_pop_batch_ack *batch)
{
    CMQ_TEXT_PUT(out, "{\"ao\":-1,\"aol\":[");
    for (uint32_t i = 0; i < batch->count; i++) {
        if (i > 0) CMQ_TEXT_PUT(out, ",");
        cmq_text_put_number(out, batch->offsets[i]);
    }
    CMQ_TEXT_PUT(out, "]");
    put_ack_end(out, &batch->ack);
}

/* ---- reading ---- */

/* The members that a body of any kind may have. */
typedef struct members {
    cmq_slice topic, group, broker, offset_list;
    int64_t start_offset, ack_offset, pop_ms, invisible_ms, bits, num, queue_id, revive_offset, re_puts, log_end;
    uint32_t diff_count, offset_count;
    bool has_offset_list;
} members;

static bool read_number(cmq_json *json, int64_t *number_out)
{
    const uint8_t *begin = json->at;
    cmq_slice text;
    if (!cmq_json_text(json, &text)) return false;
    /* null: as if it were not there */
    if (text.data == NULL || cmq_field_i64(text, number_out) == CMQ_OK) return true;
    json->at = begin;
    return cmq_json_wrong(json, "whole number");
}

static bool read_name(cmq_json *json, cmq_slice *name_out)
{
    const uint8_t *begin = json->at;
    if (!cmq_json_text(json, name_out)) return false;
    /* In a record it stands in the properties, too. */
    const bool fits = name_out->bytes == 0 || (memchr(name_out->data, CMQ_PROPERTY_NAME_END, name_out->bytes) == NULL &&
                                               memchr(name_out->data, CMQ_PROPERTY_PAIR_END, name_out->bytes) == NULL);
    if (fits && name_out->bytes <= CMQ_POP_NAME_BYTES_MAX) return true;
    json->at = begin;
    return cmq_json_wrong(json, "name of 255 bytes at most, all of which properties can hold,");
}

/* How often a checkpoint was put again: a malformed number counts as upstream's Byte.MAX_VALUE. */
static bool read_re_puts(cmq_json *json, int64_t *re_puts_out)
{
    cmq_slice text;
    int32_t number;
    if (!cmq_json_text(json, &text)) return false;
    if (text.data != NULL) *re_puts_out = cmq_field_i32(text, &number) == CMQ_OK && number >= 0 ? number : INT8_MAX;
    return true;
}

/* Begin an array: *more_out is false for an empty one and, with *null_out, for null. */
static bool begin_array(cmq_json *json, bool *more_out, bool *null_out)
{
    *null_out = false;
    *more_out = false;
    if (cmq_json_take(json, '[')) {
        *more_out = !cmq_json_take(json, ']');
        return true;
    }
    const uint8_t *begin = json->at;
    cmq_slice text;
    *null_out = cmq_json_text(json, &text) && text.data == NULL;
    if (*null_out) return true;
    json->at = begin;
    return cmq_json_wrong(json, "array");
}

/* One number of an array, without quotes, that lies in [0, max]; and whether another follows. */
static bool read_element(cmq_json *json, int64_t max, int64_t *number_out, bool *more_out)
{
    cmq_slice word;
    cmq_json_skip_space(json);
    const uint8_t *begin = json->at;
    if (!cmq_json_word(json, &word)) return false;
    if (cmq_field_i64(word, number_out) != CMQ_OK || *number_out < 0 || *number_out > max) {
        json->at = begin;
        return cmq_json_wrong(json, "number that is in range");
    }
    return cmq_json_separator(json, ']', more_out);
}

static bool read_diffs(cmq_json *json, cmq_pop_room *room, members *found)
{
    bool more, null;
    found->diff_count = 0;
    if (!begin_array(json, &more, &null)) return false;
    while (more) {
        int64_t number;
        if (found->diff_count == CMQ_POP_MESSAGES_MAX) return cmq_json_wrong(json, "end behind 32 differences");
        if (!read_element(json, INT32_MAX, &number, &more)) return false;
        room->diffs[found->diff_count++] = (int32_t)number;
    }
    return true;
}

static bool read_offset_list(cmq_json *json, members *found)
{
    bool more, null;
    found->offset_count = 0;
    cmq_json_skip_space(json);
    const uint8_t *begin = json->at;
    if (!begin_array(json, &more, &null)) return false;
    while (more) {
        int64_t number;
        if (!read_element(json, CMQ_POP_OFFSET_MAX, &number, &more)) return false;
        found->offset_count++;
    }
    found->has_offset_list = !null;
    found->offset_list =
        null ? CMQ_SLICE_NONE : (cmq_slice){.data = begin + 1, .bytes = (size_t)(json->at - begin) - 2};
    return true;
}

static bool is_named(cmq_slice name, const char *brief, const char *full)
{
    return cmq_slice_equal(name, cmq_slice_of_text(brief)) || cmq_slice_equal(name, cmq_slice_of_text(full));
}

static bool read_member(cmq_json *json, cmq_pop_room *room, members *found)
{
    cmq_slice name;
    if (!cmq_json_name(json, &name)) return false;
    if (is_named(name, "so", "startOffset")) return read_number(json, &found->start_offset);
    if (is_named(name, "ao", "ackOffset")) return read_number(json, &found->ack_offset);
    if (is_named(name, "pt", "popTime")) return read_number(json, &found->pop_ms);
    if (is_named(name, "it", "invisibleTime")) return read_number(json, &found->invisible_ms);
    if (is_named(name, "q", "queueId")) return read_number(json, &found->queue_id);
    if (is_named(name, "t", "topic")) return read_name(json, &found->topic);
    if (is_named(name, "c", "consumerGroup") || is_named(name, "cid", "CId")) return read_name(json, &found->group);
    if (is_named(name, "bn", "brokerName")) return read_name(json, &found->broker);
    if (is_named(name, "d", "queueOffsetDiff")) return read_diffs(json, room, found);
    if (is_named(name, "n", "num")) return read_number(json, &found->num);
    if (is_named(name, "bm", "bitMap")) return read_number(json, &found->bits);
    if (is_named(name, "ro", "reviveOffset")) return read_number(json, &found->revive_offset);
    if (cmq_slice_equal(name, CMQ_NAME("logEnd"))) return read_number(json, &found->log_end);
    if (is_named(name, "rp", "rePutTimes")) return read_re_puts(json, &found->re_puts);
    if (is_named(name, "aol", "ackOffsetList")) return read_offset_list(json, found);
    return cmq_json_skip(json, 0);
}

static bool read_members(cmq_json *json, cmq_pop_room *room, members *found)
{
    if (!cmq_json_take(json, '{')) return cmq_json_wrong(json, "opening brace");
    bool more = !cmq_json_take(json, '}');
    while (more) {
        if (!read_member(json, room, found) || !cmq_json_separator(json, '}', &more)) return false;
    }
    cmq_json_skip_space(json);
    return json->at == json->end || cmq_json_wrong(json, "end behind its last brace");
}

static cmq_status no_body(const char *what)
{
    return cmq_fail(CMQ_ERR_CORRUPT, "the body of a record of the revive topic has no %s", what);
}

/* Parse the members that bodies of all kinds need. */
static cmq_status CMQ_MUST_CHECK parse(cmq_slice body, cmq_pop_room *room, members *found)
{
    *found = (members){0};
    if (body.bytes > sizeof room->scratch)
        return cmq_fail(CMQ_ERR_CORRUPT, "a record of the revive topic has a body of %zu bytes; at most %zu are read",
                        body.bytes, sizeof room->scratch);
    cmq_json json;
    cmq_json_begin(&json, body, room->scratch, sizeof room->scratch);
    if (!read_members(&json, room, found)) {
        const int64_t at = json.at - body.data;
        return cmq_fail_at(CMQ_ERR_CORRUPT, at, "the body of a record of the revive topic has no %s at byte %lld",
                           json.wrong, (long long)at);
    }
    if (found->topic.bytes == 0) return no_body("topic");
    if (found->group.bytes == 0) return no_body("group");
    if (found->queue_id < 0 || found->queue_id > INT32_MAX) return no_body("queue id");
    if (found->start_offset < 0 || found->start_offset > CMQ_POP_OFFSET_MAX)
        return no_body("start offset that is in range");
    if (found->pop_ms < 0 || found->pop_ms > CMQ_POP_MS_MAX) return no_body("time of a pop");
    if (found->invisible_ms < -CMQ_POP_MS_MAX || found->invisible_ms > CMQ_POP_MS_MAX) return no_body("invisible time");
    return CMQ_OK;
}

cmq_status cmq_pop_checkpoint_parse(cmq_slice body, cmq_pop_room *room, cmq_pop_checkpoint *out)
{
    members found;
    *out = (cmq_pop_checkpoint){0};
    const cmq_status status = parse(body, room, &found);
    if (status != CMQ_OK) return status;
    if (found.num < 0 || found.num > CMQ_POP_MESSAGES_MAX) return no_body("number of messages, 0 to 32");
    if (found.diff_count > 0 && found.diff_count < found.num) return no_body("difference for each message");
    if (found.bits < INT32_MIN || found.bits > UINT32_MAX) return no_body("bit map of 32 bits");
    if (found.revive_offset < 0 || found.revive_offset > CMQ_POP_OFFSET_MAX)
        return no_body("offset in the revive queue");
    *out = (cmq_pop_checkpoint){
        .start_offset = found.start_offset,
        .pop_ms = found.pop_ms,
        .invisible_ms = found.invisible_ms,
        .revive_offset = found.revive_offset,
        .bits = (uint32_t)found.bits,
        .num = (uint8_t)found.num,
        .queue_id = (int32_t)found.queue_id,
        .topic = found.topic,
        .group = found.group,
        .broker = found.broker,
        .diffs = found.diff_count > 0 ? room->diffs : NULL,
        .re_puts = (int32_t)found.re_puts,
        .log_end = found.log_end < 0 ? 0 : found.log_end,
    };
    return CMQ_OK;
}

static cmq_pop_ack ack_of(const members *found, int64_t offset)
{
    return (cmq_pop_ack){
        .topic = found->topic,
        .group = found->group,
        .broker = found->broker,
        .queue_id = (int32_t)found->queue_id,
        .start_offset = found->start_offset,
        .pop_ms = found->pop_ms,
        .offset = offset,
    };
}

cmq_status cmq_pop_ack_parse(cmq_slice body, cmq_pop_room *room, cmq_pop_ack *out)
{
    members found;
    *out = (cmq_pop_ack){0};
    const cmq_status status = parse(body, room, &found);
    if (status != CMQ_OK) return status;
    if (found.ack_offset < 0 || found.ack_offset > CMQ_POP_OFFSET_MAX) return no_body("offset of a message");
    *out = ack_of(&found, found.ack_offset);
    return CMQ_OK;
}

cmq_status cmq_pop_batch_ack_parse(cmq_slice body, cmq_pop_room *room, cmq_pop_batch_ack *out)
{
    members found;
    *out = (cmq_pop_batch_ack){0};
    const cmq_status status = parse(body, room, &found);
    if (status != CMQ_OK) return status;
    if (!found.has_offset_list) return no_body("list of offsets");
    *out = (cmq_pop_batch_ack){.ack = ack_of(&found, -1), .count = found.offset_count, .list = found.offset_list};
    return CMQ_OK;
}

bool cmq_pop_next_offset(cmq_slice *list, int64_t *offset_out)
{
    const uint8_t *at = list->data, *end = at + list->bytes;
    while (at < end && (uint8_t)(at[0] - '0') > 9) at++;
    const uint8_t *digits = at;
    while (at < end && (uint8_t)(at[0] - '0') <= 9) at++;
    *list = (cmq_slice){.data = at, .bytes = (size_t)(end - at)};
    if (at == digits) return false;
    const cmq_status status = cmq_field_i64((cmq_slice){.data = digits, .bytes = (size_t)(at - digits)}, offset_out);
    CMQ_ASSERT(status == CMQ_OK);   /* it was read before */
    return true;
}

/* ---- keys ---- */

static void put_key(cmq_text *out, cmq_slice topic, int32_t queue_id, int64_t offset, cmq_slice group, int64_t pop_ms,
                    cmq_slice broker)
{
    cmq_text_put_slice(out, topic);
    CMQ_TEXT_PUT(out, "@");
    cmq_text_put_number(out, queue_id);
    CMQ_TEXT_PUT(out, "@");
    cmq_text_put_number(out, offset);
    CMQ_TEXT_PUT(out, "@");
    cmq_text_put_slice(out, group);
    CMQ_TEXT_PUT(out, "@");
    cmq_text_put_number(out, pop_ms);
    CMQ_TEXT_PUT(out, "@");
    cmq_text_put_slice(out, broker);
    CMQ_TEXT_PUT(out, "@");
}

void cmq_pop_checkpoint_key(cmq_text *out, const cmq_pop_checkpoint *checkpoint)
{
    put_key(out, checkpoint->topic, checkpoint->queue_id, checkpoint->start_offset, checkpoint->group,
            checkpoint->pop_ms, checkpoint->broker);
    CMQ_TEXT_PUT(out, CMQ_POP_TAG_CHECKPOINT);
}

void cmq_pop_ack_key(cmq_text *out, const cmq_pop_ack *ack)
{
    put_key(out, ack->topic, ack->queue_id, ack->offset, ack->group, ack->pop_ms, ack->broker);
    CMQ_TEXT_PUT(out, CMQ_POP_TAG_ACK);
}

/* ---- records ---- */

static cmq_status CMQ_MUST_CHECK add_number(cmq_pop_record_room *room, size_t *used, cmq_slice name, int64_t number)
{
    uint8_t digits[CMQ_TEXT_NUMBER_BYTES_MAX];
    const size_t bytes = cmq_text_format(number, digits);
    const cmq_slice value = {.data = digits + CMQ_TEXT_NUMBER_BYTES_MAX - bytes, .bytes = bytes};
    return cmq_property_append(room->properties, sizeof room->properties, used, name, value);
}

/* The properties in the order that upstream's map gives them, with a timer's or without. */
static cmq_status CMQ_MUST_CHECK add_properties(cmq_pop_record_room *room, size_t *used, const cmq_pop_log *log,
                                                const cmq_timer_parked *parked, int32_t revive_queue,
                                                int64_t deliver_ms, cmq_slice key, const char *tag)
{
    const bool timed = parked->topic.data != NULL;
    cmq_status status = CMQ_OK;
    if (timed)
        status = cmq_property_append(room->properties, sizeof room->properties, used, CMQ_NAME("REAL_TOPIC"),
                                     log->revive_topic);
    if (status == CMQ_OK) status = add_number(room, used, CMQ_NAME("TIMER_DELIVER_MS"), deliver_ms);
    if (status == CMQ_OK)
        status = cmq_property_append(room->properties, sizeof room->properties, used, CMQ_NAME("UNIQ_KEY"), key);
    if (status == CMQ_OK)
        status = cmq_property_append(room->properties, sizeof room->properties, used, CMQ_NAME("TAGS"),
                                     cmq_slice_of_text(tag));
    if (status == CMQ_OK && timed) status = add_number(room, used, CMQ_NAME("TIMER_OUT_MS"), parked->out_ms);
    if (status == CMQ_OK && timed) status = add_number(room, used, CMQ_NAME("REAL_QID"), revive_queue);
    return status;
}

static cmq_status CMQ_MUST_CHECK fill(const cmq_pop_log *log, int32_t revive_queue, int64_t deliver_ms, int64_t now_ms,
                                      const char *tag, const cmq_text *body, const cmq_text *key,
                                      cmq_pop_record_room *room, cmq_append *append_out)
{
    cmq_timer_parked parked;
    size_t used = 0;
    if (!cmq_text_fits(body) || !cmq_text_fits(key))
        return cmq_fail(CMQ_ERR_TOO_LARGE, "a topic, group and broker have %u bytes at most in what POP stores",
                        CMQ_POP_NAME_BYTES_MAX);
    /* Requests have limits. Where the clock was set back since the pop, a time may be beyond them. */
    cmq_status status = cmq_timer_park_late(log->timer, log->revive_topic, revive_queue, deliver_ms, now_ms, &parked);
    if (status != CMQ_OK && status != CMQ_END) return status;
    status =
        add_properties(room, &used, log, &parked, revive_queue, deliver_ms, (cmq_slice){key->begin, key->used}, tag);
    const bool timed = parked.topic.data != NULL;
    *append_out = (cmq_append){
        .common = {.topic = timed ? parked.topic : log->revive_topic,
                   .queue_id = timed ? parked.queue_id : revive_queue,
                   .born_timestamp_ms = now_ms,
                   .born_host = log->host,
                   .store_host = log->host},
        .count = 1,
        .bodies = {.kind = CMQ_COLUMN_ONE, .one = {.data = body->begin, .bytes = body->used}},
        .properties = {.kind = CMQ_COLUMN_ONE, .one = {.data = room->properties, .bytes = used}},
        .no_wait = true,
    };
    return status;
}

/* The names in a key: three, with numbers between them. */
enum { KEY_BYTES_MAX = 3 * CMQ_POP_NAME_BYTES_MAX + 80 };

cmq_status cmq_pop_checkpoint_append(const cmq_pop_log *log, int32_t revive_queue, const cmq_pop_checkpoint *checkpoint,
                                     int64_t now_ms, cmq_pop_record_room *room, cmq_append *append_out)
{
    uint8_t key_bytes[KEY_BYTES_MAX];
    cmq_text body = {.begin = room->body, .capacity = sizeof room->body},
             key = {.begin = key_bytes, .capacity = sizeof key_bytes};
    cmq_pop_checkpoint_write(&body, checkpoint);
    cmq_pop_checkpoint_key(&key, checkpoint);
    return fill(log, revive_queue, cmq_pop_checkpoint_deliver_ms(checkpoint), now_ms, CMQ_POP_TAG_CHECKPOINT, &body,
                &key, room, append_out);
}

cmq_status cmq_pop_ack_append(const cmq_pop_log *log, int32_t revive_queue, const cmq_pop_ack *ack, int64_t now_ms,
                              cmq_pop_record_room *room, cmq_append *append_out)
{
    uint8_t key_bytes[KEY_BYTES_MAX];
    cmq_text body = {.begin = room->body, .capacity = sizeof room->body},
             key = {.begin = key_bytes, .capacity = sizeof key_bytes};
    cmq_pop_ack_write(&body, ack);
    cmq_pop_ack_key(&key, ack);
    return fill(log, revive_queue, cmq_pop_ack_deliver_ms(ack), now_ms, CMQ_POP_TAG_ACK, &body, &key, room, append_out);
}

cmq_status cmq_pop_batch_ack_append(const cmq_pop_log *log, int32_t revive_queue, const cmq_pop_batch_ack *batch,
                                    int64_t now_ms, cmq_pop_record_room *room, cmq_append *append_out)
{
    uint8_t key_bytes[KEY_BYTES_MAX];
    cmq_text body = {.begin = room->body, .capacity = sizeof room->body},
             key = {.begin = key_bytes, .capacity = sizeof key_bytes};
    CMQ_ASSERT(batch->count <= CMQ_POP_MESSAGES_MAX);
    cmq_pop_batch_ack_write(&body, batch);
    cmq_pop_ack_key(&key, &batch->ack);
    return fill(log, revive_queue, cmq_pop_ack_deliver_ms(&batch->ack), now_ms, CMQ_POP_TAG_BATCH_ACK, &body, &key,
                room, append_out);
}
