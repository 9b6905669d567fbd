/* cmq_tags_code: tag hashes, delay levels and deliver timestamps.
 *
 * Threads: any; the table is read-only once parsed.
 * Source:  see cmq_tags_code.h.
 */
#include "store/record/cmq_tags_code.h"

#include <string.h>

#include "base/cmq_hash.h"

#define NUMBER_MAX INT32_MAX             /* of one word of messageDelayLevel; upstream parses a Java int */
#define UNKNOWN_LEVEL_DELAY_MS 1000

static int64_t unit_ms(uint8_t letter)
{
    switch (letter) {
    case 's': return 1000;
    case 'm': return 60 * 1000;
    case 'h': return 60 * 60 * 1000;
    case 'd': return 24 * 60 * 60 * 1000;
    default: return 0;
    }
}

/* The decimal number that is all of `text`, with an optional sign, as Java's Integer.parseInt; false for anything
 * else. */
static bool read_number(cmq_slice text, int64_t *number_out)
{
    const bool negative = text.bytes > 0 && text.data[0] == '-';
    size_t i = text.bytes > 0 && (negative || text.data[0] == '+') ? 1 : 0;
    if (i == text.bytes) return false;
    int64_t number = 0;
    for (; i < text.bytes; i++) {
        if (text.data[i] < '0' || text.data[i] > '9') return false;
        number = number * 10 + (text.data[i] - '0');
        if (number > (negative ? -(int64_t)INT32_MIN : (int64_t)INT32_MAX)) return false;
    }
    *number_out = negative ? -number : number;
    return true;
}

static bool read_delay(cmq_slice word, int64_t *delay_ms_out)
{
    int64_t number;
    if (word.bytes < 2) return false;
    const int64_t unit = unit_ms(word.data[word.bytes - 1]);
    if (unit == 0 || !read_number((cmq_slice){.data = word.data, .bytes = word.bytes - 1}, &number) || number < 0)
        return false;
    *delay_ms_out = number * unit;
    return true;
}

cmq_status cmq_delay_levels_parse(cmq_slice text, cmq_delay_levels *levels_out)
{
    memset(levels_out, 0, sizeof *levels_out);
    cmq_delay_levels levels = {0};
    size_t at = 0;
    while (at < text.bytes) {
        const uint8_t *space = memchr(text.data + at, ' ', text.bytes - at);
        const size_t end = space != NULL ? (size_t)(space - text.data) : text.bytes;
        if (levels.level_max == CMQ_DELAY_LEVELS_MAX)
            return cmq_fail(CMQ_ERR_LIMIT, "messageDelayLevel has more than %d levels", CMQ_DELAY_LEVELS_MAX);
        const cmq_slice word = {.data = text.data + at, .bytes = end - at};
        if (!read_delay(word, &levels.delay_ms[levels.level_max + 1]))
            return cmq_fail(CMQ_ERR_SETTING, "messageDelayLevel: \"%.*s\" is not a number followed by s, m, h or d",
                            (int)(word.bytes < 64 ? word.bytes : 64), (const char *)word.data);
        levels.level_max++;
        at = end + 1;
    }
    *levels_out = levels;
    return CMQ_OK;
}

int32_t cmq_delay_level(const cmq_delay_levels *levels, cmq_slice delay)
{
    int64_t level;
    if (!read_number(delay, &level) || level <= 0) return 0;
    return level > levels->level_max ? levels->level_max : (int32_t)level;
}

int64_t cmq_delay_deliver_ms(const cmq_delay_levels *levels, int32_t level, int64_t store_timestamp_ms)
{
    const bool known = level >= 1 && level <= levels->level_max;
    return store_timestamp_ms + (known ? levels->delay_ms[level] : UNKNOWN_LEVEL_DELAY_MS);
}

int64_t cmq_tags_code(cmq_slice topic, cmq_slice tags, cmq_slice delay, int64_t store_timestamp_ms,
                      const cmq_delay_levels *levels)
{
    if (delay.bytes > 0 && levels != NULL && cmq_slice_equal(topic, cmq_slice_of_text(CMQ_TOPIC_SCHEDULE))) {
        const int32_t level = cmq_delay_level(levels, delay);
        if (level > 0) return cmq_delay_deliver_ms(levels, level, store_timestamp_ms);
    }
    return tags.bytes == 0 ? 0 : (int32_t)cmq_jhash(tags);
}
