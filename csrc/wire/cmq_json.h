/* cmq_json: reading JSON as fastjson takes it, from left to right, without a tree: readers of headers and record bodies
 * call these in turn.
 *
 * Between strings bytes are read one by one; Java writes three of them at most. cmq_quotes finds the end of a string.
 * Strings without a backslash are slices of the text, others are unescaped into the scratch area, where they are never
 * longer.
 *
 * Invariant: json.at never passes json.end, and every function that returns true moved it. Nesting is bounded by
 *            CMQ_JSON_DEPTH_MAX. When one returns false, json.wrong names the missing element.
 * Way:       header of a frame, body of a checkpoint -> [cmq_json] -> cmq_command_json, cmq_pop_record
 * Threads:   any; pure functions over memory of the caller.
 * Source:    remoting specification 1.3, 5.1; fastjson 1.2.83's extensions of JSON.
 */
#ifndef CMQ_JSON_H
#define CMQ_JSON_H

#include <stdbool.h>
#include <string.h>

#include "base/cmq_assert.h"
#include "base/cmq_bytes.h"
#include "wire/cmq_quotes.h"

enum { CMQ_JSON_DEPTH_MAX = 64 };

#define CMQ_JSON_LIKELY(condition) __builtin_expect(!!(condition), 1)

typedef struct cmq_json {
    const uint8_t *at, *end;
    uint8_t *scratch;        /* where the next unescaped string goes */
    cmq_quotes quotes;
    const char *wrong;       /* the missing part at json.at, once a function returned false */
} cmq_json;

/* Begin. `scratch` takes what has to be unescaped: it has text.bytes at least, and lives as long as what is read;
 * without an escape it is not touched. */
static inline void cmq_json_begin(cmq_json *json, cmq_slice text, uint8_t *scratch, size_t scratch_bytes)
{
    CMQ_ASSERT(scratch_bytes >= text.bytes);
    *json = (cmq_json){.at = text.data, .end = text.data + text.bytes, .scratch = scratch};
    cmq_quotes_begin(&json->quotes, text.data, text.bytes);
}

static inline bool cmq_json_wrong(cmq_json *json, const char *what)
{
    json->wrong = what;
    return false;
}

/* ---- characters ---- */

static inline bool cmq_json_is_space(uint8_t byte)
{
    return byte == ' ' || byte == '\n' || byte == '\r' || byte == '\t' || byte == '\f' || byte == '\b';
}

static inline void cmq_json_skip_space(cmq_json *json)
{
    while (json->at < json->end && json->at[0] <= ' ' && cmq_json_is_space(json->at[0])) json->at++;
}

/* Take `wanted` if it comes next, spaces aside. */
static inline bool cmq_json_take(cmq_json *json, uint8_t wanted)
{
    if (!CMQ_JSON_LIKELY(json->at < json->end && json->at[0] == wanted)) {
        cmq_json_skip_space(json);
        if (json->at == json->end || json->at[0] != wanted) return false;
    }
    json->at++;
    return true;
}

static inline int cmq_json_hex_value(uint8_t digit)
{
    if (digit >= '0' && digit <= '9') return digit - '0';
    const uint8_t lower = digit | 0x20;
    return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

/* The number that `count` hexadecimal digits at `at` stand for; -1 when there are not so many. */
static inline int32_t cmq_json_hex_number(const uint8_t *at, const uint8_t *end, int count)
{
    int32_t number = 0;
    if (end - at < count) return -1;
    for (int i = 0; i < count; i++) {
        const int value = cmq_json_hex_value(at[i]);
        if (value < 0) return -1;
        number = number << 4 | value;
    }
    return number;
}

static inline uint8_t *cmq_json_put_utf8(uint8_t *into, uint32_t point)
{
    if (point < 0x80) {
        *into++ = (uint8_t)point;
    } else if (point < 0x800) {
        *into++ = (uint8_t)(0xC0 | point >> 6);
        *into++ = (uint8_t)(0x80 | (point & 0x3F));
    } else if (point < 0x10000) {
        *into++ = (uint8_t)(0xE0 | point >> 12);
        *into++ = (uint8_t)(0x80 | (point >> 6 & 0x3F));
        *into++ = (uint8_t)(0x80 | (point & 0x3F));
    } else {
        *into++ = (uint8_t)(0xF0 | point >> 18);
        *into++ = (uint8_t)(0x80 | (point >> 12 & 0x3F));
        *into++ = (uint8_t)(0x80 | (point >> 6 & 0x3F));
        *into++ = (uint8_t)(0x80 | (point & 0x3F));
    }
    return into;
}

/* ---- strings ---- */

/* The escape \uXXXX whose digits are at json->at, with its second half if it has one. */
static inline bool cmq_json_unescape_unicode(cmq_json *json)
{
    const int32_t unit = cmq_json_hex_number(json->at, json->end, 4);
    if (unit < 0) return cmq_json_wrong(json, "four hexadecimal digits");
    json->at += 4;
    uint32_t point = (uint32_t)unit;
    if ((unit & 0xF800) == 0xD800) {
        point = '?';
        if (unit < 0xDC00 && json->end - json->at >= 6 && json->at[0] == '\\' && json->at[1] == 'u') {
            const int32_t second = cmq_json_hex_number(json->at + 2, json->end, 4);
            if ((second & 0xFC00) == 0xDC00) {
                point = 0x10000 + ((uint32_t)(unit & 0x3FF) << 10) + (uint32_t)(second & 0x3FF);
                json->at += 6;
            }
        }
    }
    json->scratch = cmq_json_put_utf8(json->scratch, point);
    return true;
}

/* The escape whose backslash is at json->at. */
static inline bool cmq_json_unescape(cmq_json *json)
{
    static const char letters[] = "btnfr\"'\\/vF01234567";
    static const char meanings[] = "\b\t\n\f\r\"'\\/\v\f\0\1\2\3\4\5\6\7";
    _Static_assert(sizeof letters == sizeof meanings, "each letter has its meaning");
    if (json->end - json->at < 2) return cmq_json_wrong(json, "escape");
    const uint8_t letter = json->at[1];
    if (letter == 'u') {
        json->at += 2;
        return cmq_json_unescape_unicode(json);
    }
    if (letter == 'x') {
        const int32_t number = cmq_json_hex_number(json->at + 2, json->end, 2);
        if (number < 0) return cmq_json_wrong(json, "escape");
        json->scratch = cmq_json_put_utf8(json->scratch, (uint32_t)number);
        json->at += 4;
        return true;
    }
    const char *found = letter != 0 ? strchr(letters, letter) : NULL;
    if (found == NULL) return cmq_json_wrong(json, "escape");
    *json->scratch++ = (uint8_t)meanings[found - letters];
    json->at += 2;
    return true;
}

/* The first `quote` or backslash at or behind `from`; quotes of the other kind are ordinary characters. */
static inline const uint8_t *cmq_json_string_mark(cmq_json *json, const uint8_t *from, uint8_t quote)
{
    if (quote == '"') return cmq_quotes_next(&json->quotes, from);
    while (from < json->end && from[0] != quote && from[0] != '\\') from++;
    return from;
}

/* Copy a run between two escapes. The scratch area has as much room left as the header has bytes, so short runs are
 * copied as blocks. */
static inline void cmq_json_copy_run(cmq_json *json, const uint8_t *to)
{
    enum { BLOCK_BYTES = 16, BLOCKS_MAX = 8 };
    const size_t bytes = (size_t)(to - json->at);
    if (CMQ_JSON_LIKELY(bytes <= BLOCK_BYTES * BLOCKS_MAX && json->end - to >= BLOCK_BYTES)) {
        for (size_t at = 0; at < bytes; at += BLOCK_BYTES) memcpy(json->scratch + at, json->at + at, BLOCK_BYTES);
    } else {
        memcpy(json->scratch, json->at, bytes);
    }
    json->scratch += bytes;
    json->at = to;
}

/* A string with an escape in it, or in single quotes, whose text begins at json->at. `mark` is where its first quote or
 * backslash stands. */
static inline bool cmq_json_escaped(cmq_json *json, uint8_t quote, const uint8_t *mark, cmq_slice *text_out)
{
    uint8_t *text = json->scratch;
    for (;;) {
        if (mark == json->end) {
            json->at = json->end;
            return cmq_json_wrong(json, "end of a string");
        }
        cmq_json_copy_run(json, mark);
        if (mark[0] == quote) break;
        /* Java writes such an escape between name and value of a message's properties. */
        if (CMQ_JSON_LIKELY(json->end - mark >= 6 && memcmp(mark, "\\u000", 5) == 0 && mark[5] >= '0' &&
                            mark[5] <= '9')) {
            *json->scratch++ = (uint8_t)(mark[5] - '0');
            json->at = mark + 6;
        } else if (!cmq_json_unescape(json)) {
            return false;
        }
        mark = cmq_json_string_mark(json, json->at, quote);
    }
    *text_out = (cmq_slice){.data = text, .bytes = (size_t)(json->scratch - text)};
    json->at = mark + 1;
    return true;
}

/* The string whose opening quote, single or double, is at json->at. */
static inline bool cmq_json_string(cmq_json *json, cmq_slice *text_out)
{
    const uint8_t quote = json->at[0];
    const uint8_t *text = ++json->at;
    const uint8_t *mark = cmq_json_string_mark(json, text, quote);
    if (CMQ_JSON_LIKELY(mark < json->end && mark[0] == quote)) {
        *text_out = (cmq_slice){.data = text, .bytes = (size_t)(mark - text)};
        json->at = mark + 1;
        return true;
    }
    return cmq_json_escaped(json, quote, mark, text_out);
}

/* ---- values ---- */

static inline bool cmq_json_is_word_end(uint8_t byte)
{
    return byte <= ' ' || byte == ',' || byte == ':' || byte == '"' || byte == '\'' || byte == '{' || byte == '}' ||
           byte == '[' || byte == ']';
}

/* A name or literal without quotes. */
static inline bool cmq_json_word(cmq_json *json, cmq_slice *word_out)
{
    const uint8_t *begin = json->at;
    while (json->at < json->end && !cmq_json_is_word_end(json->at[0])) json->at++;
    *word_out = (cmq_slice){.data = begin, .bytes = (size_t)(json->at - begin)};
    return json->at > begin || cmq_json_wrong(json, "name or value");
}

static inline bool cmq_json_is(cmq_slice slice, const char *text, size_t bytes)
{
    return slice.bytes == bytes && memcmp(slice.data, text, bytes) == 0;
}
#define CMQ_JSON_IS(slice, text) cmq_json_is(slice, text, sizeof(text) - 1)

static inline bool cmq_json_is_literal(cmq_slice word)
{
    if (word.data[0] == '-' || (word.data[0] >= '0' && word.data[0] <= '9')) return true;
    return CMQ_JSON_IS(word, "null") || CMQ_JSON_IS(word, "true") || CMQ_JSON_IS(word, "false");
}

/* A member's name and the colon behind it. */
static inline bool cmq_json_name(cmq_json *json, cmq_slice *name_out)
{
    if (!CMQ_JSON_LIKELY(json->at < json->end && json->at[0] == '"')) {
        cmq_json_skip_space(json);
        if (json->at == json->end) return cmq_json_wrong(json, "name");
    }
    if (CMQ_JSON_LIKELY(json->at[0] == '"') || json->at[0] == '\'') {
        if (!cmq_json_string(json, name_out)) return false;
    } else if (!cmq_json_word(json, name_out)) {
        return false;
    }
    if (CMQ_JSON_LIKELY(cmq_json_take(json, ':'))) return true;
    return cmq_json_wrong(json, "colon");
}

/* The separator behind a member or an element: *more_out says whether another follows. Java accepts a comma in front of
 * the closing bracket. */
static inline bool cmq_json_separator(cmq_json *json, uint8_t closing, bool *more_out)
{
    if (CMQ_JSON_LIKELY(cmq_json_take(json, ','))) {
        *more_out = CMQ_JSON_LIKELY(json->at < json->end && json->at[0] == '"') || !cmq_json_take(json, closing);
        return true;
    }
    *more_out = false;
    return cmq_json_take(json, closing) || cmq_json_wrong(json, "comma or closing bracket");
}

static inline bool cmq_json_skip(cmq_json *json, unsigned depth);

/* The rest of an object or array whose opening bracket was taken. */
static inline bool cmq_json_skip_members(cmq_json *json, uint8_t closing, unsigned depth)
{
    if (depth == CMQ_JSON_DEPTH_MAX) return cmq_json_wrong(json, "value that is nested 64 levels deep at most");
    bool more = !cmq_json_take(json, closing);
    while (more) {
        cmq_slice name;
        if (closing == '}' && !cmq_json_name(json, &name)) return false;
        if (!cmq_json_skip(json, depth + 1) || !cmq_json_separator(json, closing, &more)) return false;
    }
    return true;
}

static inline bool cmq_json_skip(cmq_json *json, unsigned depth)
{
    cmq_slice text;
    cmq_json_skip_space(json);
    if (json->at == json->end) return cmq_json_wrong(json, "value");
    switch (json->at[0]) {
    case '"':
    case '\'':
        return cmq_json_string(json, &text);
    case '{':
        json->at++;
        return cmq_json_skip_members(json, '}', depth);
    case '[':
        json->at++;
        return cmq_json_skip_members(json, ']', depth);
    default:
        return cmq_json_word(json, &text) && (cmq_json_is_literal(text) || cmq_json_wrong(json, "value"));
    }
}

/* A value as text; data is NULL for null. */
static inline bool cmq_json_text(cmq_json *json, cmq_slice *text_out)
{
    if (CMQ_JSON_LIKELY(json->at < json->end && json->at[0] == '"')) return cmq_json_string(json, text_out);
    cmq_json_skip_space(json);
    if (json->at < json->end && (json->at[0] == '"' || json->at[0] == '\'')) return cmq_json_string(json, text_out);
    const uint8_t *begin = json->at;
    if (!cmq_json_skip(json, 0)) return false;
    *text_out = (cmq_slice){.data = begin, .bytes = (size_t)(json->at - begin)};
    if (CMQ_JSON_IS(*text_out, "null")) *text_out = CMQ_SLICE_NONE;
    return true;
}

#endif
