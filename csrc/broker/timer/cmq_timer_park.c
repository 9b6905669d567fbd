/* cmq_timer_park: which messages are timers, and how they are parked. See cmq_timer.h. The properties' order is ours:
 * the later of two pairs of a name wins, so ours stand behind the sender's. */
#include <inttypes.h>
#include <stdio.h>

#include "broker/timer/cmq_timer_internal.h"
#include "store/record/cmq_property.h"
#include "wire/cmq_command.h"

#define TOPIC_BYTES_MAX 255
#define NUMBER_BYTES 24

/* ---- properties ---- */

void cmq_timer_ask(cmq_timer_asked *asked, cmq_slice name, cmq_slice value)
{
    if (name.bytes < 12 || memcmp(name.data, "TIMER_", 6) != 0) return;
    if (cmq_slice_equal(name, CMQ_NAME("TIMER_DELAY_SEC"))) asked->delay_sec = value;
    else if (cmq_slice_equal(name, CMQ_NAME("TIMER_DELAY_MS"))) asked->delay_ms = value;
    else if (cmq_slice_equal(name, CMQ_NAME("TIMER_DELIVER_MS"))) asked->deliver_ms = value;
    else if (cmq_slice_equal(name, CMQ_NAME("TIMER_DEL_UNIQKEY"))) asked->delete_key = value;
    else if (cmq_slice_equal(name, CMQ_NAME("TIMER_OUT_MS"))) asked->out_ms = value;
}

bool cmq_timer_is_asked(const cmq_timer_asked *asked)
{
    return asked->out_ms.bytes == 0 &&
           (asked->delay_sec.bytes > 0 || asked->delay_ms.bytes > 0 || asked->deliver_ms.bytes > 0);
}

static cmq_status fail_illegal(const cmq_timer_options *options)
{
    return cmq_fail(CMQ_ERR_ARGUMENT,
                    "timer message illegal, the delay time should not be bigger than the max delay %" PRId64
                    "ms; or if set del msg, the delay time should be bigger than the current time",
                    options->delay_ms_max > 0 ? options->delay_ms_max : CMQ_TIMER_DELAY_MS_MAX);
}

/* now + value * unit, as far as an int64 goes: a later time is illegal in any case. */
static cmq_status CMQ_MUST_CHECK time_after(cmq_slice value, int64_t unit_ms, int64_t now_ms, int64_t *at_out)
{
    int64_t number, delay;
    const cmq_status status = cmq_field_i64(value, &number);
    if (status != CMQ_OK) return status;
    if (__builtin_mul_overflow(number, unit_ms, &delay) || __builtin_add_overflow(now_ms, delay, at_out))
        *at_out = number < 0 ? INT64_MIN : INT64_MAX;
    return CMQ_OK;
}

cmq_status cmq_timer_deliver_time(const cmq_timer_options *options, const cmq_timer_asked *asked, int64_t now_ms,
                                  int64_t *deliver_ms_out)
{
    cmq_status status;
    if (asked->delay_sec.bytes > 0) status = time_after(asked->delay_sec, 1000, now_ms, deliver_ms_out);
    else if (asked->delay_ms.bytes > 0) status = time_after(asked->delay_ms, 1, now_ms, deliver_ms_out);
    else status = cmq_field_i64(asked->deliver_ms, deliver_ms_out);
    if (status != CMQ_OK || (*deliver_ms_out <= now_ms && asked->delete_key.bytes > 0)) return fail_illegal(options);
    return CMQ_OK;
}

/* ---- parking ---- */

static uint8_t *add_number(uint8_t *at, cmq_slice name, int64_t number)
{
    char digits[NUMBER_BYTES];
    const int bytes = snprintf(digits, sizeof digits, "%" PRId64, number);
    return cmq_property_write(at, name, (cmq_slice){.data = (const uint8_t *)digits, .bytes = (size_t)bytes});
}

cmq_status cmq_timer_park_late(const cmq_timer_options *options, cmq_slice topic, int32_t queue_id, int64_t deliver_ms,
                               int64_t now_ms, cmq_timer_parked *parked_out)
{
    const int64_t precision_ms = options->precision_ms > 0 ? options->precision_ms : CMQ_TIMER_PRECISION_MS;
    parked_out->topic = parked_out->extra = CMQ_SLICE_NONE;
    if (deliver_ms <= now_ms) return CMQ_END;
    if (topic.bytes == 0 || topic.bytes > TOPIC_BYTES_MAX)
        return cmq_fail(CMQ_ERR_TOPIC, "a topic has 1 to %d bytes, not %zu", TOPIC_BYTES_MAX, topic.bytes);
    const int64_t over = deliver_ms % precision_ms;
    parked_out->topic = cmq_slice_of_text(CMQ_TOPIC_TIMER);
    parked_out->queue_id = 0;
    /* The slot that is over at the time: delivery is never early. */
    parked_out->out_ms = over == 0 ? deliver_ms - precision_ms : deliver_ms - over;
    uint8_t *at = add_number(parked_out->bytes, CMQ_NAME("TIMER_OUT_MS"), parked_out->out_ms);
    at = cmq_property_write(at, CMQ_NAME("REAL_TOPIC"), topic);
    at = add_number(at, CMQ_NAME("REAL_QID"), queue_id);
    parked_out->extra = (cmq_slice){.data = parked_out->bytes, .bytes = (size_t)(at - parked_out->bytes)};
    return CMQ_OK;
}

cmq_status cmq_timer_park(const cmq_timer_options *options, cmq_slice topic, int32_t queue_id, int64_t deliver_ms,
                          int64_t now_ms, cmq_timer_parked *parked_out)
{
    const int64_t delay_ms_max = options->delay_ms_max > 0 ? options->delay_ms_max : CMQ_TIMER_DELAY_MS_MAX;
    parked_out->topic = parked_out->extra = CMQ_SLICE_NONE;
    if (deliver_ms > now_ms + delay_ms_max) return fail_illegal(options);
    return cmq_timer_park_late(options, topic, queue_id, deliver_ms, now_ms, parked_out);
}
