/* cmq_txn_record: see cmq_txn_record.h. */
#include "broker/txn/cmq_txn_record.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "wire/cmq_command.h"

#define NUMBER_BYTES 24

static bool is(cmq_slice name, cmq_slice wanted) { return cmq_slice_equal(name, wanted); }

/* ---- half messages ---- */

static int64_t number_or(cmq_slice value, int64_t otherwise)
{
    int64_t number;
    return cmq_field_i64(value, &number) == CMQ_OK ? number : otherwise;
}

cmq_status cmq_txn_half_read(const cmq_record_view *record, cmq_txn_half *half_out)
{
    cmq_slice rest = record->properties, name, value, queue = CMQ_SLICE_NONE;
    *half_out = (cmq_txn_half){.first = -1};
    while (cmq_property_next(&rest, &name, &value)) {
        if (is(name, CMQ_NAME("REAL_TOPIC"))) half_out->topic = value;
        else if (is(name, CMQ_NAME("REAL_QID"))) queue = value;
        else if (is(name, CMQ_NAME("PGROUP"))) half_out->group = value;
        else if (is(name, CMQ_NAME("UNIQ_KEY"))) half_out->unique = value;
        else if (is(name, CMQ_NAME("TRAN_PREPARED_QUEUE_OFFSET"))) half_out->first = number_or(value, -1);
        else if (is(name, CMQ_NAME("TRANSACTION_CHECK_TIMES"))) {
            const int64_t checks = number_or(value, 0);
            half_out->checks = checks < 0 ? 0 : checks > INT32_MAX - 1 ? INT32_MAX - 1 : (int32_t)checks;
        } else if (is(name, CMQ_NAME("CHECK_IMMUNITY_TIME_IN_SECONDS"))) {
            half_out->has_immunity = true;
            half_out->immunity_s = number_or(value, -1);
        }
    }
    /* A first copy lies before its copies: any other was forged, at a broker that took it. */
    if (half_out->first < 0 || half_out->first >= record->queue_offset) half_out->first = -1;
    if (half_out->topic.bytes > 0 && cmq_field_i32(queue, &half_out->queue_id) == CMQ_OK && half_out->queue_id >= 0)
        return CMQ_OK;
    return cmq_fail_at(CMQ_ERR_CORRUPT, record->physical_offset,
                       "the half message lacks REAL_TOPIC or REAL_QID, or they name no queue");
}

/* Set by brokers, so that a sender may not give them. */
static bool is_brokers(cmq_slice name)
{
    return is(name, CMQ_NAME("REAL_TOPIC")) || is(name, CMQ_NAME("REAL_QID")) ||
           is(name, CMQ_NAME("__transactionId__")) || is(name, CMQ_NAME("TRANSACTION_CHECK_TIMES")) ||
           is(name, CMQ_NAME("TRAN_PREPARED_QUEUE_OFFSET"));
}

static uint8_t *write_number(uint8_t *at, cmq_slice name, int64_t number)
{
    char digits[NUMBER_BYTES];
    const int bytes = snprintf(digits, sizeof digits, "%" PRId64, number);
    return cmq_property_write(at, name, (cmq_slice){.data = (const uint8_t *)digits, .bytes = (size_t)bytes});
}

size_t cmq_txn_half_room(size_t property_bytes, cmq_slice topic, cmq_slice unique)
{
    return property_bytes + 1 + sizeof "REAL_TOPIC" + 1 + topic.bytes + sizeof "REAL_QID" + 1 + NUMBER_BYTES +
           sizeof "__transactionId__" + 1 + unique.bytes;
}

size_t cmq_txn_half_write(uint8_t *into, cmq_slice properties, cmq_slice topic, int32_t queue_id, cmq_slice unique)
{
    cmq_slice rest = properties, name, value;
    uint8_t *at = into;
    while (cmq_property_next(&rest, &name, &value))
        if (!is_brokers(name)) at = cmq_property_write(at, name, value);
    at = cmq_property_write(at, CMQ_NAME("REAL_TOPIC"), topic);
    at = write_number(at, CMQ_NAME("REAL_QID"), queue_id);
    at = cmq_property_write(at, CMQ_NAME("__transactionId__"), unique);
    return (size_t)(at - into);
}

size_t cmq_txn_copy_write(uint8_t *into, cmq_slice properties, int32_t checks, int64_t first)
{
    cmq_slice rest = properties, name, value;
    uint8_t *at = into;
    while (cmq_property_next(&rest, &name, &value))
        if (!is(name, CMQ_NAME("TRANSACTION_CHECK_TIMES")) && !is(name, CMQ_NAME("TRAN_PREPARED_QUEUE_OFFSET")) &&
            !is(name, CMQ_NAME("__CRC32#")))
            at = cmq_property_write(at, name, value);
    if (checks > 0) at = write_number(at, CMQ_NAME("TRANSACTION_CHECK_TIMES"), checks);
    if (first >= 0) at = write_number(at, CMQ_NAME("TRAN_PREPARED_QUEUE_OFFSET"), first);
    return (size_t)(at - into);
}

/* ---- op records ---- */

size_t cmq_txn_text_write(uint8_t *into, int64_t offset)
{
    char text[CMQ_TXN_TEXT_BYTES_MAX + 1];
    const int bytes = snprintf(text, sizeof text, "%" PRId64 ",", offset);
    memcpy(into, text, (size_t)bytes);
    return (size_t)bytes;
}

bool cmq_txn_text_next(cmq_slice *rest, int64_t *offset_out)
{
    while (rest->bytes > 0) {
        const uint8_t *comma = memchr(rest->data, ',', rest->bytes);
        const size_t bytes = comma != NULL ? (size_t)(comma - rest->data) : rest->bytes;
        const cmq_slice part = {.data = rest->data, .bytes = bytes};
        const size_t taken = comma != NULL ? bytes + 1 : bytes;
        rest->data += taken;
        rest->bytes -= taken;
        if (bytes > 0 && cmq_field_i64(part, offset_out) == CMQ_OK && *offset_out >= 0) return true;
    }
    return false;
}

/* ---- the question ---- */

cmq_record_fields cmq_txn_question(const cmq_record_view *half, const cmq_txn_half *properties, int64_t queue_offset,
                                   int64_t physical_offset, int64_t store_timestamp_ms)
{
    return (cmq_record_fields){
        .topic = properties->topic,
        .body = half->body,
        .properties = half->properties,
        .queue_offset = queue_offset,
        .physical_offset = physical_offset,
        .born_timestamp_ms = half->born_timestamp_ms,
        .store_timestamp_ms = store_timestamp_ms,
        .queue_id = properties->queue_id,
        .flag = half->flag,
        .sys_flag = half->sys_flag,
        .reconsume_times = half->reconsume_times,
        .born_host = half->born_host,
        .store_host = half->store_host,
        .has_body_crc = true,
        .body_crc = half->body_crc,
    };
}
