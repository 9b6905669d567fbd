/* cmq_recall: see cmq_recall.h. The text is made at the room's end and encoded from its front: encoding never passes
 * what it still has to read. */
#include "broker/send/cmq_recall.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/cmq_assert.h"

#define NUMBER_BYTES 24

static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

static size_t text_room(cmq_slice topic, cmq_slice broker, cmq_slice unique)
{
    return 3 + topic.bytes + 1 + broker.bytes + 1 + NUMBER_BYTES + 1 + unique.bytes;
}

size_t cmq_recall_handle_room(cmq_slice topic, cmq_slice broker, cmq_slice unique)
{
    return (text_room(topic, broker, unique) + 2) / 3 * 4 + 4;
}

static uint8_t *put(uint8_t *at, cmq_slice text)
{
    if (text.bytes > 0) memcpy(at, text.data, text.bytes);
    at[text.bytes] = ' ';
    return at + text.bytes + 1;
}

size_t cmq_recall_handle_write(cmq_slice topic, cmq_slice broker, int64_t out_ms, cmq_slice unique, uint8_t *into)
{
    char digits[NUMBER_BYTES];
    const size_t room = cmq_recall_handle_room(topic, broker, unique);
    /* so that its recall is rounded to the same slot */
    const int digit_count = snprintf(digits, sizeof digits, "%" PRId64, out_ms + 1);
    const cmq_slice number = {.data = (const uint8_t *)digits, .bytes = (size_t)digit_count};
    uint8_t *const text = into + room - text_room(topic, broker, unique) - 1;
    uint8_t *end = put(text, cmq_slice_of_text("v1"));
    end = put(put(put(put(end, topic), broker), number), unique) - 1;
    uint8_t *out = into;
    for (const uint8_t *at = text; at < end; at += 3) {
        const ptrdiff_t left = end - at;
        const uint32_t bits = (uint32_t)at[0] << 16 | (left > 1 ? (uint32_t)at[1] << 8 : 0) | (left > 2 ? at[2] : 0u);
        CMQ_ASSERT(out <= at);
        const uint8_t coded[4] = {(uint8_t)alphabet[bits >> 18], (uint8_t)alphabet[bits >> 12 & 63],
                                  (uint8_t)alphabet[bits >> 6 & 63], (uint8_t)alphabet[bits & 63]};
        memcpy(out, coded, sizeof coded);
        if (left < 3) out[3] = '=';
        if (left < 2) out[2] = '=';
        out += 4;
    }
    return (size_t)(out - into);
}
