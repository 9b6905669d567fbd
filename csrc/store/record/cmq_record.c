/* cmq_record: measuring and writing records. Reading is in cmq_record_read.c.
 *
 * Invariant: encode writes exactly the bytes that measure counted (asserted), in rising order.
 * Way:       see cmq_record.h.
 * Threads:   any; pure functions.
 * Source:    see cmq_record.h.
 */
#include "store/record/cmq_record.h"

#include <string.h>

#include "base/cmq_assert.h"
#include "base/cmq_crc32.h"
#include "store/record/cmq_property.h"

_Static_assert(CMQ_RECORD_AT_BORN_HOST == 4 * 5 + 8 + 8 + 4 + 8, "bornHost follows ten fixed fields");
_Static_assert(CMQ_RECORD_AT_STORE_TIMESTAMP == CMQ_RECORD_AT_BORN_HOST + 4 + 4, "an IPv4 host is address and port");
_Static_assert(CMQ_RECORD_AT_STORE_HOST == CMQ_RECORD_AT_STORE_TIMESTAMP + 8, "storeHost follows storeTimestamp");
_Static_assert(CMQ_RECORD_HEAD_BYTES == CMQ_RECORD_AT_STORE_HOST + 8 + 4 + 8 + 4,
               "reconsumeTimes, preparedTransactionOffset and the body's length");
_Static_assert(CMQ_RECORD_BYTES_MIN == CMQ_RECORD_AT_STORE_HOST + 8 + 4 + 8 + 4 + 1 + 2,
               "reconsumeTimes, preparedTransactionOffset and three lengths close the fixed part");
_Static_assert(CMQ_RECORD_PROPERTY_CRC_BYTES == sizeof "__CRC32#" - 1 + 1 + 10 + 1, "name, 0x01, ten digits, 0x02");

#define TOPIC_BYTES_MAX_V1 127
#define TOPIC_BYTES_MAX_V2 32767

/* Whether a 0x02 goes between `properties` and `properties_more`. */
static inline bool joins_more(const cmq_record_fields *fields)
{
    const cmq_slice first = fields->properties;
    return fields->properties_more.bytes > 0 && first.bytes > 0 && first.data[first.bytes - 1] != CMQ_PROPERTY_PAIR_END;
}

/* Whether a 0x02 goes before the property CRC. */
static inline bool closes_properties(const cmq_record_fields *fields)
{
    const cmq_slice last = fields->properties_more.bytes > 0 ? fields->properties_more : fields->properties;
    return fields->property_crc == CMQ_RECORD_PROPERTY_CRC_SINGLE && last.bytes > 0 &&
           last.data[last.bytes - 1] != CMQ_PROPERTY_PAIR_END;
}

static inline bool uses_v2(const cmq_record_fields *fields)
{
    if (fields->version == CMQ_RECORD_VERSION_AUTO) return fields->topic.bytes > TOPIC_BYTES_MAX_V1;
    return fields->version == CMQ_RECORD_VERSION_2;
}

static cmq_status refuse_topic(const cmq_record_fields *fields, size_t bytes_max)
{
    if (fields->topic.bytes == 0) return cmq_fail(CMQ_ERR_TOPIC, "the topic is empty");
    return cmq_fail(CMQ_ERR_TOPIC, "the topic has %zu bytes; a version %d record holds %zu", fields->topic.bytes,
                    bytes_max == TOPIC_BYTES_MAX_V1 ? 1 : 2, bytes_max);
}

cmq_status cmq_record_measure(const cmq_record_fields *fields, cmq_record_sizes *sizes_out)
{
    *sizes_out = (cmq_record_sizes){0};
    const bool v2 = uses_v2(fields);
    const size_t topic_max = v2 ? TOPIC_BYTES_MAX_V2 : TOPIC_BYTES_MAX_V1;
    if (fields->topic.bytes - 1 >= topic_max) return refuse_topic(fields, topic_max);

    /* Each part is bounded before the sum, so that the sum cannot wrap. */
    const size_t most = CMQ_PROPERTY_BYTES_MAX;
    if (fields->tags.bytes > most || fields->keys.bytes > most || fields->properties.bytes > most ||
        fields->properties_more.bytes > most)
        return cmq_fail(CMQ_ERR_TOO_LARGE, "one property is over %zu bytes, the most for all of a message", most);
    size_t properties = fields->properties.bytes + fields->properties_more.bytes;
    if (fields->tags.bytes > 0) properties += fields->tags.bytes + CMQ_RECORD_PAIR_BYTES;
    if (fields->keys.bytes > 0) properties += fields->keys.bytes + CMQ_RECORD_PAIR_BYTES;
    if (joins_more(fields)) properties++;
    if (fields->property_crc != CMQ_RECORD_PROPERTY_CRC_NONE)
        properties += CMQ_RECORD_PROPERTY_CRC_BYTES + (closes_properties(fields) ? 1u : 0u);
    if (properties > most)
        return cmq_fail(CMQ_ERR_TOO_LARGE, "the properties have %zu bytes; a record holds %zu", properties, most);

    const size_t others = CMQ_RECORD_BYTES_MIN + (v2 ? 1u : 0u) +
                          (fields->born_host.ipv6 ? (size_t)CMQ_RECORD_IPV6_MORE : 0) +
                          (fields->store_host.ipv6 ? (size_t)CMQ_RECORD_IPV6_MORE : 0) + fields->topic.bytes +
                          properties;
    if (fields->body.bytes > (size_t)INT32_MAX - others)
        return cmq_fail(CMQ_ERR_TOO_LARGE, "a body of %zu bytes does not fit a record", fields->body.bytes);
    *sizes_out = (cmq_record_sizes){
        .record_bytes = (uint32_t)(others + fields->body.bytes),
        .body_bytes = (uint32_t)fields->body.bytes,
        .topic_bytes = (uint32_t)fields->topic.bytes,
        .property_bytes = (uint32_t)properties,
        .v2 = v2,
    };
    return CMQ_OK;
}

/* memcpy that stays in line for the short pieces most records are made of: two loads that overlap. */
static inline uint8_t *put_bytes(uint8_t *into, const uint8_t *from, size_t bytes)
{
    if (bytes > 32) {
        memcpy(into, from, bytes);
    } else if (bytes >= 16) {
        uint8_t first[16], last[16];
        memcpy(first, from, 16);
        memcpy(last, from + bytes - 16, 16);
        memcpy(into, first, 16);
        memcpy(into + bytes - 16, last, 16);
    } else if (bytes >= 8) {
        uint64_t first, last;
        memcpy(&first, from, 8);
        memcpy(&last, from + bytes - 8, 8);
        memcpy(into, &first, 8);
        memcpy(into + bytes - 8, &last, 8);
    } else if (bytes >= 4) {
        uint32_t first, last;
        memcpy(&first, from, 4);
        memcpy(&last, from + bytes - 4, 4);
        memcpy(into, &first, 4);
        memcpy(into + bytes - 4, &last, 4);
    } else {
        for (size_t i = 0; i < bytes; i++) into[i] = from[i];
    }
    return into + bytes;
}

static inline uint8_t *put_host(uint8_t *into, const cmq_record_host *host)
{
    const size_t bytes = host->ipv6 ? 16 : 4;
    if (host->ipv6)
        memcpy(into, host->address, 16);
    else
        memcpy(into, host->address, 4);
    cmq_store_i32(into + bytes, host->port);
    return into + bytes + 4;
}

static inline uint8_t *put_pair(uint8_t *into, const char name[static 4], cmq_slice value)
{
    if (value.bytes == 0) return into;
    memcpy(into, name, 4);
    into[4] = CMQ_PROPERTY_NAME_END;
    into = put_bytes(into + 5, value.data, value.bytes);
    *into = CMQ_PROPERTY_PAIR_END;
    return into + 1;
}

/* Ten decimal digits, the least significant first, as upstream writes and reads them. */
static void put_property_crc(uint8_t *into, uint32_t crc31)
{
    memcpy(into, "__CRC32#\x01", 9);
    for (int i = 0; i < 10; i++, crc31 /= 10) into[9 + i] = (uint8_t)('0' + crc31 % 10);
    into[19] = CMQ_PROPERTY_PAIR_END;
}

static inline uint8_t *put_properties(uint8_t *at, const cmq_record_fields *fields)
{
    at = put_pair(at, "TAGS", fields->tags);
    at = put_pair(at, "KEYS", fields->keys);
    if (fields->properties.bytes > 0) at = put_bytes(at, fields->properties.data, fields->properties.bytes);
    if (fields->properties_more.bytes > 0) {
        if (joins_more(fields)) *at++ = CMQ_PROPERTY_PAIR_END;
        at = put_bytes(at, fields->properties_more.data, fields->properties_more.bytes);
    }
    return at;
}

void cmq_record_encode(uint8_t *into, const cmq_record_fields *fields, const cmq_record_sizes *sizes)
{
    const int32_t host_bits = CMQ_SYS_BORN_HOST_IPV6 | CMQ_SYS_STORE_HOST_IPV6;
    const int32_t sys_flag = (fields->sys_flag & ~host_bits) | (fields->born_host.ipv6 ? CMQ_SYS_BORN_HOST_IPV6 : 0) |
                             (fields->store_host.ipv6 ? CMQ_SYS_STORE_HOST_IPV6 : 0);
    const uint32_t body_crc =
        fields->has_body_crc ? fields->body_crc : cmq_crc31(fields->body.data, fields->body.bytes);

    cmq_store_u32(into + CMQ_RECORD_AT_SIZE, sizes->record_bytes);
    cmq_store_u32(into + CMQ_RECORD_AT_MAGIC, sizes->v2 ? CMQ_RECORD_MAGIC_V2 : CMQ_RECORD_MAGIC_V1);
    cmq_store_u32(into + CMQ_RECORD_AT_BODY_CRC, body_crc);
    cmq_store_i32(into + CMQ_RECORD_AT_QUEUE_ID, fields->queue_id);
    cmq_store_i32(into + CMQ_RECORD_AT_FLAG, fields->flag);
    cmq_store_i64(into + CMQ_RECORD_AT_QUEUE_OFFSET, fields->queue_offset);
    cmq_store_i64(into + CMQ_RECORD_AT_PHYSICAL_OFFSET, fields->physical_offset);
    cmq_store_i32(into + CMQ_RECORD_AT_SYS_FLAG, sys_flag);
    cmq_store_i64(into + CMQ_RECORD_AT_BORN_TIMESTAMP, fields->born_timestamp_ms);
    uint8_t *at = put_host(into + CMQ_RECORD_AT_BORN_HOST, &fields->born_host);
    cmq_store_i64(at, fields->store_timestamp_ms);
    at = put_host(at + 8, &fields->store_host);
    cmq_store_i32(at, fields->reconsume_times);
    cmq_store_i64(at + 4, fields->prepared_transaction_offset);
    cmq_store_u32(at + 12, sizes->body_bytes);
    at += 16;
    if (sizes->body_bytes > 0) at = put_bytes(at, fields->body.data, sizes->body_bytes);

    if (sizes->v2) *at++ = (uint8_t)(sizes->topic_bytes >> 8);
    *at++ = (uint8_t)sizes->topic_bytes;
    at = put_bytes(at, fields->topic.data, sizes->topic_bytes);
    cmq_store_u16(at, (uint16_t)sizes->property_bytes);
    at = put_properties(at + 2, fields);

    if (fields->property_crc != CMQ_RECORD_PROPERTY_CRC_NONE) {
        if (closes_properties(fields)) *at++ = CMQ_PROPERTY_PAIR_END;
        put_property_crc(at, cmq_crc31(into, (size_t)(at - into)));
        at += CMQ_RECORD_PROPERTY_CRC_BYTES;
    }
    CMQ_ASSERT(at == into + sizes->record_bytes);
}

/* ---- moulds ---- */

bool cmq_record_mould_make(const cmq_record_fields *fields, bool tags_vary, cmq_record_mould *mould_out)
{
    if (fields->property_crc != CMQ_RECORD_PROPERTY_CRC_NONE || fields->has_body_crc ||
        fields->properties_more.bytes > 0)
        return false;
    cmq_record_fields common = *fields;
    cmq_record_sizes sizes;
    common.body = common.keys = common.properties = CMQ_SLICE_NONE;
    if (tags_vary) common.tags = CMQ_SLICE_NONE;
    if (common.topic.bytes + common.tags.bytes > CMQ_RECORD_MOULD_LEAD_MAX - 16 ||
        cmq_record_measure(&common, &sizes) != CMQ_OK)
        return false;
    uint8_t record[CMQ_RECORD_HEAD_BYTES_MAX + CMQ_RECORD_MOULD_LEAD_MAX];
    cmq_record_encode(record, &common, &sizes);
    const uint32_t topic = sizes.topic_bytes + (sizes.v2 ? 2u : 1u);
    mould_out->lead_bytes = topic + 2 + sizes.property_bytes;
    mould_out->head_bytes = sizes.record_bytes - mould_out->lead_bytes;
    mould_out->property_bytes_at = topic;
    mould_out->property_bytes = sizes.property_bytes + (uint32_t)fields->properties.bytes;
    mould_out->rest = fields->properties;
    memcpy(mould_out->head, record, mould_out->head_bytes);
    memcpy(mould_out->lead, record + mould_out->head_bytes, mould_out->lead_bytes);
    return fields->properties.bytes <= CMQ_PROPERTY_BYTES_MAX;
}

void cmq_record_mould_cast(const cmq_record_mould *mould, uint8_t *into, const cmq_record_cast *cast, int32_t queue_id,
                           int64_t queue_offset, int64_t physical_offset)
{
    const uint32_t head_bytes = mould->head_bytes;
    if (head_bytes == CMQ_RECORD_HEAD_BYTES)
        memcpy(into, mould->head, CMQ_RECORD_HEAD_BYTES);   /* a known size stays in line */
    else
        memcpy(into, mould->head, head_bytes);
    cmq_store_u32(into + CMQ_RECORD_AT_SIZE, cast->record_bytes);
    cmq_store_u32(into + CMQ_RECORD_AT_BODY_CRC, cmq_crc31(cast->body.data, cast->body.bytes));
    cmq_store_i32(into + CMQ_RECORD_AT_QUEUE_ID, queue_id);
    cmq_store_i64(into + CMQ_RECORD_AT_QUEUE_OFFSET, queue_offset);
    cmq_store_i64(into + CMQ_RECORD_AT_PHYSICAL_OFFSET, physical_offset);
    cmq_store_u32(into + head_bytes - 4, (uint32_t)cast->body.bytes);
    uint8_t *at = into + head_bytes;
    if (cast->body.bytes > 0) at = put_bytes(at, cast->body.data, cast->body.bytes);
    uint8_t *const lead = at;
    at = put_bytes(at, mould->lead, mould->lead_bytes);
    cmq_store_u16(lead + mould->property_bytes_at, (uint16_t)cast->property_bytes);
    at = put_pair(at, "TAGS", cast->tags);
    at = put_pair(at, "KEYS", cast->keys);
    if (mould->rest.bytes > 0) at = put_bytes(at, mould->rest.data, mould->rest.bytes);
    CMQ_ASSERT(at == into + cast->record_bytes);
}

void cmq_record_write_blank(uint8_t *into, uint32_t bytes)
{
    CMQ_ASSERT(bytes >= CMQ_RECORD_BLANK_BYTES_MIN);
    cmq_store_u32(into + CMQ_RECORD_AT_SIZE, bytes);
    cmq_store_u32(into + CMQ_RECORD_AT_MAGIC, CMQ_RECORD_MAGIC_BLANK);
}
