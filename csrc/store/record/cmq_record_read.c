/* cmq_record_read: reading records that anything may have written.
 *
 * Invariant: every length is compared with the bytes that are left before it is used; the lengths inside must add up
 *            to the size in front, so the slices of a view tile the record.
 * Way:       see cmq_record.h.
 * Threads:   any; pure functions.
 * Source:    store specification 2.13 (upstream's checkMessageAndReturnSize).
 */
#include <string.h>

#include "base/cmq_crc32.h"
#include "store/record/cmq_property.h"
#include "store/record/cmq_record.h"

#define PROPERTY_CRC_NAME "__CRC32#"

const char *cmq_record_reason_text(cmq_record_reason reason)
{
    switch (reason) {
    case CMQ_RECORD_SOUND: return "sound";
    case CMQ_RECORD_EMPTY: return "nothing was written here";
    case CMQ_RECORD_BAD_MAGIC: return "unknown magic";
    case CMQ_RECORD_BAD_SIZE: return "the size is not the sum of the lengths inside";
    case CMQ_RECORD_BAD_BODY_CRC: return "the body does not have its CRC";
    case CMQ_RECORD_BAD_PROPERTY_CRC: return "the property CRC is absent or not that of the record";
    case CMQ_RECORD_BAD_OFFSET: return "written for another offset";
    }
    return "unknown";
}

/* The first eight bytes. */
typedef struct frame {
    uint32_t bytes;
    uint32_t magic;
    cmq_record_reason reason;
} frame;

/* CMQ_OK promises that [at, at + bytes) is there and holds every field of fixed place. */
static inline cmq_status read_frame(const uint8_t *at, size_t available, frame *frame_out)
{
    *frame_out = (frame){0};
    if (available < CMQ_RECORD_BLANK_BYTES_MIN) return CMQ_AGAIN;
    const uint32_t bytes = cmq_load_u32(at + CMQ_RECORD_AT_SIZE);
    const uint32_t magic = cmq_load_u32(at + CMQ_RECORD_AT_MAGIC);
    frame_out->magic = magic;
    const bool blank = magic == CMQ_RECORD_MAGIC_BLANK;
    if (!blank && magic != CMQ_RECORD_MAGIC_V1 && magic != CMQ_RECORD_MAGIC_V2) {
        frame_out->reason = magic == 0 && bytes == 0 ? CMQ_RECORD_EMPTY : CMQ_RECORD_BAD_MAGIC;
        return CMQ_ERR_CORRUPT;
    }
    frame_out->bytes = bytes;
    if (bytes < (blank ? CMQ_RECORD_BLANK_BYTES_MIN : CMQ_RECORD_BYTES_MIN) || bytes > INT32_MAX) {
        frame_out->reason = CMQ_RECORD_BAD_SIZE;
        return CMQ_ERR_CORRUPT;
    }
    if (available < bytes) return CMQ_AGAIN;
    return blank ? CMQ_END : CMQ_OK;
}

static inline size_t born_host_more(int32_t sys_flag)
{
    return (sys_flag & CMQ_SYS_BORN_HOST_IPV6) != 0 ? CMQ_RECORD_IPV6_MORE : 0;
}

static inline size_t store_host_more(int32_t sys_flag)
{
    return (sys_flag & CMQ_SYS_STORE_HOST_IPV6) != 0 ? CMQ_RECORD_IPV6_MORE : 0;
}

static inline void read_host(const uint8_t *at, size_t more, cmq_record_host *host_out)
{
    memset(host_out->address, 0, sizeof host_out->address);
    if (more != 0)
        memcpy(host_out->address, at, 16);
    else
        memcpy(host_out->address, at, 4);
    host_out->port = cmq_load_i32(at + 4 + more);
    host_out->ipv6 = more != 0;
}

/* The three lengths and what they measure; false when they do not tile the record. `tail` is where bodyLen stands. */
static inline bool read_slices(const uint8_t *at, size_t tail, cmq_record_view *view)
{
    const size_t topic_length_bytes = view->magic == CMQ_RECORD_MAGIC_V2 ? 2 : 1;
    const size_t lengths = 4 + topic_length_bytes + 2;
    if (view->record_bytes - tail < lengths) return false;
    size_t left = view->record_bytes - tail - lengths;   /* for body, topic and properties */

    const int32_t body_bytes = cmq_load_i32(at + tail);
    const size_t body = body_bytes > 0 ? (size_t)body_bytes : 0;   /* upstream takes a negative length for none */
    if (body > left) return false;
    left -= body;

    const uint8_t *topic_length = at + tail + 4 + body;
    const int32_t topic = topic_length_bytes == 2 ? cmq_load_i16(topic_length) : (int8_t)topic_length[0];
    if (topic < 0 || (size_t)topic > left) return false;
    left -= (size_t)topic;

    const uint8_t *topic_at = topic_length + topic_length_bytes;
    const int16_t property_bytes = cmq_load_i16(topic_at + topic);
    const size_t properties = property_bytes > 0 ? (size_t)property_bytes : 0;
    if (properties != left) return false;

    view->body = (cmq_slice){.data = at + tail + 4, .bytes = body};
    view->topic = (cmq_slice){.data = topic_at, .bytes = (size_t)topic};
    view->properties = (cmq_slice){.data = topic_at + topic + 2, .bytes = properties};
    return true;
}

/* The value of the digits in upstream's arithmetic: least significant first, 32 bits that wrap. */
static uint32_t read_crc_digits(cmq_slice digits)
{
    uint32_t value = 0;
    for (size_t i = digits.bytes; i > 0; i--) value = value * 10 + digits.data[i - 1] - '0';
    return value;
}

cmq_record_proof cmq_record_prove(const cmq_record_view *view)
{
    static const char name[] = PROPERTY_CRC_NAME "\x01";
    const cmq_slice properties = view->properties;
    if (properties.bytes < CMQ_RECORD_PROPERTY_CRC_BYTES) return CMQ_RECORD_UNPROVEN;
    const size_t at = properties.bytes - CMQ_RECORD_PROPERTY_CRC_BYTES;
    const uint8_t *pair = properties.data + at;
    const cmq_slice digits = {.data = pair + sizeof name - 1, .bytes = CMQ_RECORD_PROPERTY_CRC_BYTES - sizeof name};
    if (memcmp(pair, name, sizeof name - 1) != 0 || pair[CMQ_RECORD_PROPERTY_CRC_BYTES - 1] != CMQ_PROPERTY_PAIR_END)
        return CMQ_RECORD_UNPROVEN;
    const uint8_t *record = properties.data + properties.bytes - view->record_bytes;
    if (read_crc_digits(digits) == cmq_crc31(record, view->record_bytes - CMQ_RECORD_PROPERTY_CRC_BYTES))
        return CMQ_RECORD_PROVEN;
    /* Upstream's batches put it behind a pair that is not closed, which makes it part of that pair's value; so can any
     * producer. */
    return at == 0 || pair[-1] == CMQ_PROPERTY_PAIR_END ? CMQ_RECORD_CONTRADICTED : CMQ_RECORD_UNPROVEN;
}

/* Whether the property CRC is right; without one, whether it may be absent. */
static bool property_crc_holds(const uint8_t *at, const cmq_record_view *view, bool may_be_absent)
{
    cmq_slice digits;
    const cmq_record_proof proof = cmq_record_prove(view);
    if (proof != CMQ_RECORD_UNPROVEN) return proof == CMQ_RECORD_PROVEN;
    if (!cmq_property_find(view->properties, cmq_slice_of_text(PROPERTY_CRC_NAME), &digits)) return may_be_absent;
    const uint32_t expected = read_crc_digits(digits);
    return expected == cmq_crc31(at, view->record_bytes - CMQ_RECORD_PROPERTY_CRC_BYTES);
}

/* No program writes a negative length of a body: a bit of it flipped. */
static bool body_crc_holds(cmq_slice body, uint32_t crc)
{
    return body.bytes > 0 ? cmq_crc31(body.data, body.bytes) == crc : cmq_load_i32(body.data - 4) == 0;
}

bool cmq_record_is_whole(const uint8_t *at, uint32_t bytes, bool demand_proof)
{
    static const char name[] = PROPERTY_CRC_NAME "\x01";
    const bool named = bytes >= CMQ_RECORD_BYTES_MIN + CMQ_RECORD_PROPERTY_CRC_BYTES &&
                       memcmp(at + bytes - CMQ_RECORD_PROPERTY_CRC_BYTES, name, sizeof name - 1) == 0;
    if (!named && demand_proof) return false;
    if (!named) {   /* without a parse, as for most records */
        const cmq_slice body = cmq_record_body(at, bytes);
        return body.data != NULL && body_crc_holds(body, cmq_load_u32(at + CMQ_RECORD_AT_BODY_CRC));
    }
    cmq_record_view view;
    if (cmq_record_parse(at, bytes, -1, 0, &view) != CMQ_OK) return false;
    const cmq_record_proof proof = cmq_record_prove(&view);
    if (proof != CMQ_RECORD_UNPROVEN || demand_proof) return proof == CMQ_RECORD_PROVEN;
    return body_crc_holds(view.body, view.body_crc);
}

bool cmq_record_has_zero(const cmq_record_view *view)
{
    return (view->topic.bytes > 0 && memchr(view->topic.data, 0, view->topic.bytes) != NULL) ||
           (view->properties.bytes > 0 && memchr(view->properties.data, 0, view->properties.bytes) != NULL);
}

static cmq_record_reason check_record(const uint8_t *at, int64_t physical_offset, unsigned checks,
                                      const cmq_record_view *view)
{
    if (physical_offset >= 0 && view->physical_offset != physical_offset) return CMQ_RECORD_BAD_OFFSET;
    if ((checks & CMQ_RECORD_CHECK_BODY_CRC) != 0 && !body_crc_holds(view->body, view->body_crc))
        return CMQ_RECORD_BAD_BODY_CRC;
    if ((checks & (CMQ_RECORD_CHECK_PROPERTY_CRC | CMQ_RECORD_CHECK_IF_PROPERTY_CRC)) != 0 &&
        !property_crc_holds(at, view, (checks & CMQ_RECORD_CHECK_PROPERTY_CRC) == 0))
        return CMQ_RECORD_BAD_PROPERTY_CRC;
    return CMQ_RECORD_SOUND;
}

/* Leave in *view_out only what a caller may read after a failure. */
static cmq_status refuse(cmq_status status, const frame *seen, int64_t physical_offset, cmq_record_view *view_out)
{
    memset(view_out, 0, sizeof *view_out);
    view_out->record_bytes = seen->bytes;
    view_out->magic = seen->magic;
    view_out->reason = seen->reason;
    if (status != CMQ_ERR_CORRUPT) return status;
    return cmq_fail_at(status, physical_offset, "no record: %s", cmq_record_reason_text(seen->reason));
}

cmq_status cmq_record_parse(const uint8_t *at, size_t available, int64_t physical_offset, unsigned checks,
                            cmq_record_view *view_out)
{
    frame seen;
    const cmq_status status = read_frame(at, available, &seen);
    if (status != CMQ_OK) return refuse(status, &seen, physical_offset, view_out);

    cmq_record_view *view = view_out;
    view->record_bytes = seen.bytes;
    view->magic = seen.magic;
    view->reason = CMQ_RECORD_SOUND;
    view->body_crc = cmq_load_u32(at + CMQ_RECORD_AT_BODY_CRC);
    view->queue_id = cmq_load_i32(at + CMQ_RECORD_AT_QUEUE_ID);
    view->flag = cmq_load_i32(at + CMQ_RECORD_AT_FLAG);
    view->queue_offset = cmq_load_i64(at + CMQ_RECORD_AT_QUEUE_OFFSET);
    view->physical_offset = cmq_load_i64(at + CMQ_RECORD_AT_PHYSICAL_OFFSET);
    view->sys_flag = cmq_load_i32(at + CMQ_RECORD_AT_SYS_FLAG);
    view->born_timestamp_ms = cmq_load_i64(at + CMQ_RECORD_AT_BORN_TIMESTAMP);

    const size_t born_more = born_host_more(view->sys_flag), store_more = store_host_more(view->sys_flag);
    if (seen.bytes < CMQ_RECORD_BYTES_MIN + born_more + store_more) {
        seen.reason = CMQ_RECORD_BAD_SIZE;
        return refuse(CMQ_ERR_CORRUPT, &seen, physical_offset, view_out);
    }
    read_host(at + CMQ_RECORD_AT_BORN_HOST, born_more, &view->born_host);
    view->store_timestamp_ms = cmq_load_i64(at + CMQ_RECORD_AT_STORE_TIMESTAMP + born_more);
    read_host(at + CMQ_RECORD_AT_STORE_HOST + born_more, store_more, &view->store_host);
    const size_t tail = CMQ_RECORD_AT_STORE_HOST + 8 + born_more + store_more;
    view->reconsume_times = cmq_load_i32(at + tail);
    view->prepared_transaction_offset = cmq_load_i64(at + tail + 4);

    seen.reason = CMQ_RECORD_BAD_SIZE;
    if (read_slices(at, tail + 12, view)) seen.reason = check_record(at, physical_offset, checks, view);
    if (seen.reason != CMQ_RECORD_SOUND) return refuse(CMQ_ERR_CORRUPT, &seen, physical_offset, view_out);
    return CMQ_OK;
}

cmq_status cmq_record_peek(const uint8_t *at, size_t available, cmq_record_head *head_out)
{
    *head_out = (cmq_record_head){0};
    frame seen;
    const cmq_status status = read_frame(at, available, &seen);
    head_out->record_bytes = seen.bytes;
    head_out->magic = seen.magic;
    if (status != CMQ_OK) return status;
    head_out->queue_id = cmq_load_i32(at + CMQ_RECORD_AT_QUEUE_ID);
    head_out->sys_flag = cmq_load_i32(at + CMQ_RECORD_AT_SYS_FLAG);
    head_out->queue_offset = cmq_load_i64(at + CMQ_RECORD_AT_QUEUE_OFFSET);
    head_out->physical_offset = cmq_load_i64(at + CMQ_RECORD_AT_PHYSICAL_OFFSET);
    const size_t born_more = born_host_more(head_out->sys_flag);
    head_out->store_timestamp_ms = cmq_load_i64(at + CMQ_RECORD_AT_STORE_TIMESTAMP + born_more);
    return CMQ_OK;
}
