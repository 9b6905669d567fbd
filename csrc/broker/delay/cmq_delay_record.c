/* cmq_delay_record: see cmq_delay_record.h; and parking, of cmq_delay.h. */
#include "broker/delay/cmq_delay_record.h"

#include <stdio.h>
#include <string.h>

#include "broker/delay/cmq_delay.h"
#include "store/record/cmq_property.h"
#include "wire/cmq_command.h"

#define TOPIC_HALF "RMQ_SYS_TRANS_HALF_TOPIC"
#define TOPIC_BYTES_MAX 255

static const cmq_slice name_topic = {.data = (const uint8_t *)"REAL_TOPIC", .bytes = 10};
static const cmq_slice name_queue = {.data = (const uint8_t *)"REAL_QID", .bytes = 8};
static const cmq_slice name_delay = {.data = (const uint8_t *)"DELAY", .bytes = 5};
static const cmq_slice name_crc = {.data = (const uint8_t *)"__CRC32#", .bytes = 8};

/* ---- parking ---- */

static void add_number(cmq_delay_parked *parked, cmq_slice name, int32_t number)
{
    char digits[16];
    const int bytes = snprintf(digits, sizeof digits, "%d", (int)number);
    const cmq_slice value = {.data = (const uint8_t *)digits, .bytes = (size_t)bytes};
    parked->extra.bytes =
        (size_t)(cmq_property_write(parked->bytes + parked->extra.bytes, name, value) - parked->bytes);
}

cmq_status cmq_delay_park(const cmq_delay_levels *levels, cmq_slice topic, int32_t queue_id, int32_t sys_flag,
                          cmq_slice delay, cmq_delay_parked *parked_out)
{
    const int32_t transaction = sys_flag & CMQ_SYS_TRANSACTION_MASK, level = cmq_delay_level(levels, delay);
    parked_out->level = 0;
    parked_out->topic = parked_out->extra = CMQ_SLICE_NONE;
    if (level == 0 || (transaction != 0 && transaction != CMQ_SYS_TRANSACTION_COMMIT)) return CMQ_END;
    if (topic.bytes == 0 || topic.bytes > TOPIC_BYTES_MAX)
        return cmq_fail(CMQ_ERR_TOPIC, "a topic has 1 to %d bytes, not %zu", TOPIC_BYTES_MAX, topic.bytes);
    parked_out->topic = cmq_slice_of_text(CMQ_TOPIC_SCHEDULE);
    parked_out->queue_id = level - 1;
    parked_out->level = level;
    parked_out->extra.data = parked_out->bytes;
    parked_out->extra.bytes = (size_t)(cmq_property_write(parked_out->bytes, name_topic, topic) - parked_out->bytes);
    add_number(parked_out, name_queue, queue_id);
    int32_t asked;
    if (cmq_field_i32(delay, &asked) != CMQ_OK || asked != level) add_number(parked_out, name_delay, level);
    return CMQ_OK;
}

/* ---- delivering ---- */

cmq_status cmq_delay_target(const cmq_record_view *parked, cmq_slice *topic_out, int32_t *queue_id_out)
{
    cmq_slice text;
    *queue_id_out = -1;
    if (!cmq_property_find(parked->properties, name_topic, topic_out) ||
        !cmq_property_find(parked->properties, name_queue, &text))
        return cmq_fail_at(CMQ_ERR_CORRUPT, parked->physical_offset, "the parked record lacks REAL_TOPIC or REAL_QID");
    if (cmq_field_i32(text, queue_id_out) != CMQ_OK || *queue_id_out < 0)
        return cmq_fail_at(CMQ_ERR_CORRUPT, parked->physical_offset, "REAL_QID of the parked record is not a queue id");
    if (cmq_slice_equal(*topic_out, cmq_slice_of_text(TOPIC_HALF)) ||
        cmq_slice_equal(*topic_out, cmq_slice_of_text(CMQ_TOPIC_SCHEDULE)))
        return cmq_fail_at(CMQ_ERR_CORRUPT, parked->physical_offset, "nothing is delivered to topic %.*s",
                           (int)topic_out->bytes, (const char *)topic_out->data);
    return CMQ_OK;
}

/* The properties without a CRC of their own, which the store computes again where it keeps them. */
static cmq_status CMQ_MUST_CHECK without_crc(cmq_slice *properties, uint8_t scratch[CMQ_DELAY_SCRATCH_BYTES])
{
    cmq_slice rest = *properties, name, value;
    size_t used = 0;
    if (!cmq_property_find(*properties, name_crc, &value)) return CMQ_OK;
    while (cmq_property_next(&rest, &name, &value)) {
        if (cmq_slice_equal(name, name_crc)) continue;
        const cmq_status status = cmq_property_append(scratch, CMQ_DELAY_SCRATCH_BYTES, &used, name, value);
        if (status != CMQ_OK) return status;
    }
    *properties = (cmq_slice){.data = scratch, .bytes = used};
    return CMQ_OK;
}

cmq_status cmq_delay_make_append(const cmq_record_view *parked, cmq_slice topic, int32_t queue_id,
                                 uint8_t scratch[CMQ_DELAY_SCRATCH_BYTES], cmq_append *append_out)
{
    cmq_slice properties = parked->properties;
    const cmq_status status = without_crc(&properties, scratch);
    *append_out = (cmq_append){
        .common = {.topic = topic,
                   .queue_id = queue_id,
                   .flag = parked->flag,
                   .sys_flag = parked->sys_flag,
                   .born_timestamp_ms = parked->born_timestamp_ms,
                   .born_host = parked->born_host,
                   .store_host = parked->store_host,
                   .reconsume_times = parked->reconsume_times,
                   .has_body_crc = true,   /* the store has just checked it */
                   .body_crc = parked->body_crc},
        .count = 1,
        .bodies = {.kind = CMQ_COLUMN_ONE, .one = parked->body},
        .properties = {.kind = CMQ_COLUMN_ONE, .one = properties},
        .no_wait = true,
    };
    return status;
}

/* ---- recognizing ---- */

int32_t cmq_delay_delivered_level(const cmq_delay_levels *levels, const cmq_record_view *record)
{
    cmq_slice topic, delay;
    int32_t queue_id;
    if (!cmq_property_find(record->properties, name_delay, &delay) ||
        cmq_delay_target(record, &topic, &queue_id) != CMQ_OK)
        return 0;
    if (queue_id != record->queue_id || !cmq_slice_equal(topic, record->topic)) return 0;
    return cmq_delay_level(levels, delay);
}

static bool same_host(const cmq_record_host *a, const cmq_record_host *b)
{
    return a->ipv6 == b->ipv6 && a->port == b->port && memcmp(a->address, b->address, sizeof a->address) == 0;
}

/* Both pairs at once, a CRC left out; true at the end of both. */
static bool same_properties(cmq_slice a, cmq_slice b)
{
    cmq_slice names[2], values[2];
    for (;;) {
        bool more_a, more_b;
        while ((more_a = cmq_property_next(&a, &names[0], &values[0])) && cmq_slice_equal(names[0], name_crc)) continue;
        while ((more_b = cmq_property_next(&b, &names[1], &values[1])) && cmq_slice_equal(names[1], name_crc)) continue;
        if (!more_a || !more_b) return more_a == more_b;
        if (!cmq_slice_equal(names[0], names[1]) || !cmq_slice_equal(values[0], values[1])) return false;
    }
}

bool cmq_delay_is_delivery(const cmq_record_view *parked, const cmq_record_view *record)
{
    cmq_slice topic;
    int32_t queue_id;
    if (cmq_delay_target(parked, &topic, &queue_id) != CMQ_OK || queue_id != record->queue_id ||
        !cmq_slice_equal(topic, record->topic))
        return false;
    return parked->body_crc == record->body_crc && parked->born_timestamp_ms == record->born_timestamp_ms &&
           parked->flag == record->flag && parked->reconsume_times == record->reconsume_times &&
           same_host(&parked->born_host, &record->born_host) && cmq_slice_equal(parked->body, record->body) &&
           same_properties(parked->properties, record->properties);
}
