/* cmq_pop_handle: see cmq_pop_handle.h. */
#include "broker/pop/record/cmq_pop_handle.h"

#include "base/cmq_assert.h"
#include "wire/cmq_command.h"

#define RETRY_PREFIX "%RETRY%"
#define RETRY_PREFIX_BYTES (sizeof(RETRY_PREFIX) - 1)

/* ---- handles ---- */

enum { FIELDS_MIN = 7, FIELDS_MAX = 8 };

static cmq_status no_handle(cmq_slice text, const char *what)
{
    enum { SHOWN_BYTES_MAX = 200 };
    const int shown = text.bytes < SHOWN_BYTES_MAX ? (int)text.bytes : SHOWN_BYTES_MAX;
    return cmq_fail(CMQ_ERR_ARGUMENT, "'%.*s' is not a handle of a popped message: %s", shown,
                    text.bytes > 0 ? (const char *)text.data : "", what);
}

/* Returns how many fields there are; FIELDS_MAX + 1 for more. */
static uint32_t split(cmq_slice text, cmq_slice fields[FIELDS_MAX])
{
    uint32_t count = 0;
    for (size_t begin = 0; begin <= text.bytes;) {
        if (count == FIELDS_MAX) return FIELDS_MAX + 1;
        const size_t left = text.bytes - begin;
        const uint8_t *blank = left > 0 ? memchr(text.data + begin, ' ', left) : NULL;
        const size_t bytes = blank != NULL ? (size_t)(blank - (text.data + begin)) : left;
        fields[count++] = (cmq_slice){.data = text.data + begin, .bytes = bytes};
        begin += bytes + 1;
    }
    return count;
}

static bool read_number(cmq_slice field, int64_t min, int64_t max, int64_t *number_out)
{
    return cmq_field_i64(field, number_out) == CMQ_OK && *number_out >= min && *number_out <= max;
}

cmq_status cmq_pop_handle_parse(cmq_slice text, cmq_pop_handle *out)
{
    cmq_slice fields[FIELDS_MAX];
    int64_t revive_queue, queue_id;
    *out = (cmq_pop_handle){.offset = -1};
    const uint32_t count = text.bytes > 0 ? split(text, fields) : 0;
    if (count < FIELDS_MIN || count > FIELDS_MAX) return no_handle(text, "it has seven or eight fields");
    if (!read_number(fields[0], 0, CMQ_POP_OFFSET_MAX, &out->start_offset))
        return no_handle(text, "the first field is the checkpoint's offset");
    if (!read_number(fields[1], 0, CMQ_POP_MS_MAX, &out->pop_ms))
        return no_handle(text, "the second field is the time of the pop");
    if (!read_number(fields[2], -CMQ_POP_MS_MAX, CMQ_POP_MS_MAX, &out->invisible_ms))
        return no_handle(text, "the third field is the invisible time");
    if (!read_number(fields[3], 0, INT32_MAX, &revive_queue))
        return no_handle(text, "the fourth field is the revive queue");
    if (fields[4].bytes != 1 || fields[4].data[0] < '0' || fields[4].data[0] > '2')
        return no_handle(text, "the fifth field is 0, 1 or 2");
    if (fields[5].bytes > CMQ_POP_BROKER_BYTES_MAX) return no_handle(text, "the broker's name has 255 bytes at most");
    if (!read_number(fields[6], 0, INT32_MAX, &queue_id)) return no_handle(text, "the seventh field is the queue");
    if (count == FIELDS_MAX && !read_number(fields[7], 0, CMQ_POP_OFFSET_MAX, &out->offset))
        return no_handle(text, "the last field is the offset");
    out->revive_queue = (int32_t)revive_queue;
    out->retry = (cmq_pop_retry)(fields[4].data[0] - '0');
    out->broker = fields[5];
    out->queue_id = (int32_t)queue_id;
    return CMQ_OK;
}

static void put_field(cmq_text *out, int64_t number)
{
    cmq_text_put_number(out, number);
    CMQ_TEXT_PUT(out, " ");
}

size_t cmq_pop_handle_write(const cmq_pop_handle *handle, uint8_t into[CMQ_POP_HANDLE_BYTES_MAX])
{
    cmq_text out = {.begin = into, .capacity = CMQ_POP_HANDLE_BYTES_MAX};
    CMQ_ASSERT(handle->broker.bytes <= CMQ_POP_BROKER_BYTES_MAX);
    put_field(&out, handle->start_offset);
    put_field(&out, handle->pop_ms);
    put_field(&out, handle->invisible_ms);
    put_field(&out, handle->revive_queue);
    put_field(&out, handle->retry);
    cmq_text_put_slice(&out, handle->broker);
    CMQ_TEXT_PUT(&out, " ");
    cmq_text_put_number(&out, handle->queue_id);
    if (handle->offset >= 0) {
        CMQ_TEXT_PUT(&out, " ");
        cmq_text_put_number(&out, handle->offset);
    }
    CMQ_ASSERT(cmq_text_fits(&out));
    return out.used;
}

/* ---- info strings ---- */

/* Begin an entry: the separator from the one before, and the kind. */
static void begin_entry(cmq_text *info, cmq_pop_retry retry)
{
    if (info->used > 0) CMQ_TEXT_PUT(info, ";");
    put_field(info, retry);
}

void cmq_pop_info_start(cmq_text *info, cmq_pop_retry retry, int32_t queue_id, int64_t start_offset)
{
    begin_entry(info, retry);
    put_field(info, queue_id);
    cmq_text_put_number(info, start_offset);
}

void cmq_pop_info_offsets(cmq_text *info, cmq_pop_retry retry, int32_t queue_id, const int64_t *offsets, uint32_t count)
{
    CMQ_ASSERT(count > 0);
    begin_entry(info, retry);
    put_field(info, queue_id);
    for (uint32_t i = 0; i < count; i++) {
        if (i > 0) CMQ_TEXT_PUT(info, ",");
        cmq_text_put_number(info, offsets[i]);
    }
}

void cmq_pop_info_offset_count(cmq_text *info, cmq_pop_retry retry, int32_t queue_id, int64_t offset, int32_t times)
{
    begin_entry(info, retry);
    CMQ_TEXT_PUT(info, "qo");
    cmq_text_put_number(info, queue_id);
    CMQ_TEXT_PUT(info, "%");
    put_field(info, offset);
    cmq_text_put_number(info, times);
}

void cmq_pop_info_queue_count(cmq_text *info, cmq_pop_retry retry, int32_t queue_id, int32_t times)
{
    begin_entry(info, retry);
    put_field(info, queue_id);
    cmq_text_put_number(info, times);
}

/* ---- retry topics ---- */

cmq_pop_retry cmq_pop_retry_of(cmq_slice topic)
{
    if (!cmq_slice_starts_with(topic, RETRY_PREFIX)) return CMQ_POP_NORMAL;
    return memchr(topic.data, '+', topic.bytes) != NULL ? CMQ_POP_RETRY_V2 : CMQ_POP_RETRY_V1;
}

cmq_status cmq_pop_retry_topic(cmq_slice group, cmq_slice topic, cmq_pop_retry retry,
                               uint8_t into[CMQ_POP_TOPIC_BYTES_MAX], cmq_slice *name_out)
{
    *name_out = CMQ_SLICE_NONE;
    if (group.bytes == 0 || topic.bytes == 0)
        return cmq_fail(CMQ_ERR_TOPIC, "a group and a topic with names are popped");
    if (retry == CMQ_POP_NORMAL) {
        *name_out = topic;
        return CMQ_OK;
    }
    cmq_text out = {.begin = into, .capacity = CMQ_POP_TOPIC_BYTES_MAX};
    CMQ_TEXT_PUT(&out, RETRY_PREFIX);
    cmq_text_put_slice(&out, group);
    if (retry == CMQ_POP_RETRY_V2) CMQ_TEXT_PUT(&out, "+");
    else CMQ_TEXT_PUT(&out, "_");
    cmq_text_put_slice(&out, topic);
    if (!cmq_text_fits(&out))
        return cmq_fail(
            CMQ_ERR_TOPIC,
            "the retry topic of a group of %zu bytes and a topic of %zu has %zu bytes; a topic has at most %u",
            group.bytes, topic.bytes, out.used, CMQ_POP_TOPIC_BYTES_MAX);
    *name_out = (cmq_slice){.data = into, .bytes = out.used};
    return CMQ_OK;
}

bool cmq_pop_has_retry_topic(cmq_slice group, cmq_slice topic)
{
    return cmq_pop_retry_of(topic) != CMQ_POP_NORMAL || group.bytes + topic.bytes <= CMQ_POP_RETRY_NAMES_BYTES_MAX;
}

cmq_status cmq_pop_normal_topic(cmq_slice name, cmq_slice group, cmq_slice *topic_out)
{
    *topic_out = name;
    if (!cmq_slice_starts_with(name, RETRY_PREFIX)) return CMQ_OK;
    const size_t separator = RETRY_PREFIX_BYTES + group.bytes;
    const cmq_slice own = {.data = name.data + RETRY_PREFIX_BYTES, .bytes = name.bytes < separator ? 0 : group.bytes};
    if (name.bytes >= separator && cmq_slice_equal(own, group)) {
        if (name.bytes == separator) return CMQ_OK;
        if (name.data[separator] == '+' || name.data[separator] == '_') {
            *topic_out = (cmq_slice){.data = name.data + separator + 1, .bytes = name.bytes - separator - 1};
            if (topic_out->bytes > 0) return CMQ_OK;
        }
    }
    *topic_out = CMQ_SLICE_NONE;
    return cmq_fail(CMQ_ERR_TOPIC, "%.*s is not a retry topic of that group",
                    (int)(name.bytes < 255 ? name.bytes : 255), (const char *)name.data);
}

