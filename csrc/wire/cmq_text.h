/* cmq_text: text put together in memory of the caller: constants, numbers, and strings with fastjson's escapes.
 *
 * The escapes are the short ones, and \uXXXX with capital digits for other control characters, U+007F to U+009F and the
 * two line separators.
 *
 * Invariant: nothing is written behind the capacity, and once something did not fit nothing more is written at all;
 *            used counts on, so that it says how much it would have been.
 * Way:       cmq_command_write, cmq_pop_handle, cmq_pop_record -> [cmq_text] -> connection, log
 * Threads:   any; memory of the caller.
 * Source:    remoting specification 1.3; the escapes were tried with fastjson 1.2.83.
 */
#ifndef CMQ_TEXT_H
#define CMQ_TEXT_H

#include <stdbool.h>
#include <string.h>

#include "base/cmq_assert.h"
#include "base/cmq_bytes.h"

enum { CMQ_TEXT_NUMBER_BYTES_MAX = 20 };

typedef struct cmq_text {
    uint8_t *begin;
    size_t capacity;
    size_t used;
} cmq_text;

/* Did all of it fit? */
static inline bool cmq_text_fits(const cmq_text *out) { return out->used <= out->capacity; }

/* Texts of a header are short: 8 to 16 bytes are copied by two overlapping moves, without a call. */
static inline void cmq_text_copy(uint8_t *into, const uint8_t *from, size_t count)
{
    if (count > 16) {
        memcpy(into, from, count);
    } else if (count >= 8) {
        memcpy(into, from, 8);
        memcpy(into + count - 8, from + count - 8, 8);
    } else {
        for (size_t i = 0; i < count; i++) into[i] = from[i];
    }
}

static inline bool cmq_text_has_room(const cmq_text *out, size_t count)
{
    return out->used <= out->capacity && count <= out->capacity - out->used;
}

static inline void cmq_text_put(cmq_text *out, const void *bytes, size_t count)
{
    if (cmq_text_has_room(out, count)) cmq_text_copy(out->begin + out->used, bytes, count);
    out->used += count;
}

static inline void cmq_text_put_constant(cmq_text *out, const char *text, size_t count)
{
    if (cmq_text_has_room(out, count)) memcpy(out->begin + out->used, text, count);
    out->used += count;
}
#define CMQ_TEXT_PUT(out, text) cmq_text_put_constant(out, text, sizeof(text) - 1)

/* The decimal digits of a number, at the end of `digits`; returns how many. */
static inline size_t cmq_text_format(int64_t number, uint8_t digits[CMQ_TEXT_NUMBER_BYTES_MAX])
{
    uint64_t left = number < 0 ? 0 - (uint64_t)number : (uint64_t)number;
    uint8_t *at = digits + CMQ_TEXT_NUMBER_BYTES_MAX;
    do {
        *--at = (uint8_t)('0' + left % 10);
        left /= 10;
    } while (left > 0);
    if (number < 0) *--at = '-';
    CMQ_ASSERT(at >= digits);
    return (size_t)(digits + CMQ_TEXT_NUMBER_BYTES_MAX - at);
}

static inline void cmq_text_put_number(cmq_text *out, int64_t number)
{
    uint8_t digits[CMQ_TEXT_NUMBER_BYTES_MAX];
    const size_t bytes = cmq_text_format(number, digits);
    cmq_text_put(out, digits + CMQ_TEXT_NUMBER_BYTES_MAX - bytes, bytes);
}

static inline void cmq_text_put_slice(cmq_text *out, cmq_slice text) { cmq_text_put(out, text.data, text.bytes); }

/* ---- text in JSON: the escapes are fastjson's ---- */

/* Whether a byte may begin something that is escaped. Of the lead bytes of UTF-8 only C2 (U+0080 to U+00BF) and E2
 * (U+2000 to U+2FFF) do. */
static inline bool cmq_text_is_suspect(uint8_t byte)
{
    return byte < 0x20 || byte == '"' || byte == '\\' || byte == 0x7F || byte == 0xC2 || byte == 0xE2;
}

/* Whether none of eight bytes is suspect, or above 0x7F. It may say no where the answer is yes, not the other way
 * round. */
static inline bool cmq_text_are_plain(const uint8_t *eight)
{
    const uint64_t ones = UINT64_C(0x0101010101010101), high = UINT64_C(0x8080808080808080);
    uint64_t word;
    memcpy(&word, eight, sizeof word);
    const uint64_t quote = word ^ ones * '"', backslash = word ^ ones * '\\', last = word ^ ones * 0x7F;
    return (((word - ones * 0x20) | (quote - ones) | (backslash - ones) | (last - ones) | word) & high) == 0;
}

/* How many bytes at the front need no escape. */
static inline size_t cmq_text_plain_bytes(const uint8_t *text, size_t bytes)
{
    size_t at = 0;
    while (bytes - at >= 8 && cmq_text_are_plain(text + at)) at += 8;
    /* the end, with some bytes before it again */
    if (bytes >= 8 && bytes - at < 8 && cmq_text_are_plain(text + bytes - 8)) return bytes;
    while (at < bytes && !cmq_text_is_suspect(text[at])) at++;
    return at;
}

static inline void cmq_text_put_unicode(cmq_text *out, uint32_t point)
{
    static const char digits[] = "0123456789ABCDEF";
    CMQ_ASSERT(point <= 0xFFFF);   /* four digits */
    char escape[6] = "\\u";
    for (unsigned i = 0; i < 4; i++) escape[2 + i] = digits[point >> (12 - 4 * i) & 0xF];
    cmq_text_put(out, escape, sizeof escape);
}

/* Write the character at text[0], which is suspect; returns how many bytes of the text it took. */
static inline size_t cmq_text_put_suspect(cmq_text *out, const uint8_t *text, size_t bytes)
{
    static const char shorts[0x20] = {['\b'] = 'b', ['\t'] = 't', ['\n'] = 'n', ['\f'] = 'f', ['\r'] = 'r'};
    CMQ_ASSERT(bytes > 0);
    const uint8_t first = text[0];
    if (first == '"' || first == '\\' || (first < sizeof shorts && shorts[first] != 0)) {
        const uint8_t escape[2] = {'\\', first < sizeof shorts ? (uint8_t)shorts[first] : first};
        cmq_text_put(out, escape, sizeof escape);
    } else if (first < 0x80) {
        cmq_text_put_unicode(out, first);
    } else if (first == 0xC2 && bytes > 1 && text[1] >= 0x80 && text[1] <= 0x9F) {
        cmq_text_put_unicode(out, text[1]);
        return 2;
    } else if (first == 0xE2 && bytes > 2 && text[1] == 0x80 && (text[2] == 0xA8 || text[2] == 0xA9)) {
        cmq_text_put_unicode(out, 0x2000u | (text[2] & 0x3Fu));
        return 3;
    } else {
        cmq_text_put(out, text, 1);
    }
    return 1;
}

/* The inside of a string. */
static inline void cmq_text_put_escaped(cmq_text *out, cmq_slice text)
{
    for (size_t at = 0; at < text.bytes;) {
        const size_t plain = cmq_text_plain_bytes(text.data + at, text.bytes - at);
        cmq_text_put(out, text.data + at, plain);
        at += plain;
        if (at < text.bytes) at += cmq_text_put_suspect(out, text.data + at, text.bytes - at);
    }
}

#endif
