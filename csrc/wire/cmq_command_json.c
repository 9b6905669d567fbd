/* cmq_command_json: headers in JSON.
 *
 * One walk from left to right. Between strings bytes are looked at one by one, and in what Java writes there are three of them at most; where a
 * string ends cmq_quotes knows. Strings without a backslash are slices of the header, others are unescaped into the scratch area, where they are
 * never longer.
 *
 * Invariant: reader.at never passes reader.end, and every function that returns true moved it. Nesting is bounded by DEPTH_MAX.
 * Threads:   any; pure functions over memory of the caller.
 * Source:    remoting specification 1.3; what fastjson 1.2.83 accepts beyond JSON.
 */
#include <string.h>

#include "base/cmq_assert.h"
#include "wire/cmq_command_internal.h"
#include "wire/cmq_quotes.h"

enum { DEPTH_MAX = 64 };

#define LIKELY(condition) __builtin_expect(!!(condition), 1)

typedef struct json_reader {
    const uint8_t *at, *end;
    uint8_t *scratch;        /* where the next unescaped string goes */
    cmq_quotes quotes;
    const char *wrong;       /* what is missing at reader.at, once something returned false */
} json_reader;

static bool is_wrong(json_reader *reader, const char *what)
{
    reader->wrong = what;
    return false;
}

/* ---- characters ---- */

static bool is_space(uint8_t byte) { return byte == ' ' || byte == '\n' || byte == '\r' || byte == '\t' || byte == '\f' || byte == '\b'; }

static inline void skip_space(json_reader *reader)
{
    while (reader->at < reader->end && reader->at[0] <= ' ' && is_space(reader->at[0])) reader->at++;
}

/* Take `wanted` if it comes next, spaces aside. */
static inline bool take(json_reader *reader, uint8_t wanted)
{
    if (!LIKELY(reader->at < reader->end && reader->at[0] == wanted)) {
        skip_space(reader);
        if (reader->at == reader->end || reader->at[0] != wanted) return false;
    }
    reader->at++;
    return true;
}

static int hex_value(uint8_t digit)
{
    if (digit >= '0' && digit <= '9') return digit - '0';
    const uint8_t lower = digit | 0x20;
    return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

/* The number that `count` hexadecimal digits at `at` stand for; -1 when there are not so many. */
static int32_t hex_number(const uint8_t *at, const uint8_t *end, int count)
{
    int32_t number = 0;
    if (end - at < count) return -1;
    for (int i = 0; i < count; i++) {
        const int value = hex_value(at[i]);
        if (value < 0) return -1;
        number = number << 4 | value;
    }
    return number;
}

static uint8_t *put_utf8(uint8_t *into, uint32_t point)
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

/* The escape \uXXXX whose digits are at reader->at, with its second half if it has one. */
static bool unescape_unicode(json_reader *reader)
{
    const int32_t unit = hex_number(reader->at, reader->end, 4);
    if (unit < 0) return is_wrong(reader, "four hexadecimal digits");
    reader->at += 4;
    uint32_t point = (uint32_t)unit;
    if ((unit & 0xF800) == 0xD800) {
        point = '?';
        if (unit < 0xDC00 && reader->end - reader->at >= 6 && reader->at[0] == '\\' && reader->at[1] == 'u') {
            const int32_t second = hex_number(reader->at + 2, reader->end, 4);
            if ((second & 0xFC00) == 0xDC00) {
                point = 0x10000 + ((uint32_t)(unit & 0x3FF) << 10) + (uint32_t)(second & 0x3FF);
                reader->at += 6;
            }
        }
    }
    reader->scratch = put_utf8(reader->scratch, point);
    return true;
}

/* The escape whose backslash is at reader->at. */
static bool unescape(json_reader *reader)
{
    static const char letters[] = "btnfr\"'\\/vF01234567";
    static const char meanings[] = "\b\t\n\f\r\"'\\/\v\f\0\1\2\3\4\5\6\7";
    _Static_assert(sizeof letters == sizeof meanings, "each letter has its meaning");
    if (reader->end - reader->at < 2) return is_wrong(reader, "escape");
    const uint8_t letter = reader->at[1];
    if (letter == 'u') {
        reader->at += 2;
        return unescape_unicode(reader);
    }
    if (letter == 'x') {
        const int32_t number = hex_number(reader->at + 2, reader->end, 2);
        if (number < 0) return is_wrong(reader, "escape");
        reader->scratch = put_utf8(reader->scratch, (uint32_t)number);
        reader->at += 4;
        return true;
    }
    const char *found = letter != 0 ? strchr(letters, letter) : NULL;
    if (found == NULL) return is_wrong(reader, "escape");
    *reader->scratch++ = (uint8_t)meanings[found - letters];
    reader->at += 2;
    return true;
}

/* The first `quote` or backslash at or behind `from`; quotes of the other kind are ordinary characters. */
static const uint8_t *string_mark(json_reader *reader, const uint8_t *from, uint8_t quote)
{
    if (quote == '"') return cmq_quotes_next(&reader->quotes, from);
    while (from < reader->end && from[0] != quote && from[0] != '\\') from++;
    return from;
}

/* Copy a run between two escapes. The scratch area has as much room left as the header has bytes, so short runs are copied as blocks. */
static inline void copy_run(json_reader *reader, const uint8_t *to)
{
    enum { BLOCK_BYTES = 16, BLOCKS_MAX = 8 };
    const size_t bytes = (size_t)(to - reader->at);
    if (LIKELY(bytes <= BLOCK_BYTES * BLOCKS_MAX && reader->end - to >= BLOCK_BYTES)) {
        for (size_t at = 0; at < bytes; at += BLOCK_BYTES) memcpy(reader->scratch + at, reader->at + at, BLOCK_BYTES);
    } else {
        memcpy(reader->scratch, reader->at, bytes);
    }
    reader->scratch += bytes;
    reader->at = to;
}

/* A string with an escape in it, or in single quotes, whose text begins at reader->at. `mark` is where its first quote or backslash stands. */
static bool read_escaped(json_reader *reader, uint8_t quote, const uint8_t *mark, cmq_slice *text_out)
{
    uint8_t *text = reader->scratch;
    for (;;) {
        if (mark == reader->end) {
            reader->at = reader->end;
            return is_wrong(reader, "end of a string");
        }
        copy_run(reader, mark);
        if (mark[0] == quote) break;
        /* What Java writes between name and value of a message's properties. */
        if (LIKELY(reader->end - mark >= 6 && memcmp(mark, "\\u000", 5) == 0 && mark[5] >= '0' && mark[5] <= '9')) {
            *reader->scratch++ = (uint8_t)(mark[5] - '0');
            reader->at = mark + 6;
        } else if (!unescape(reader)) {
            return false;
        }
        mark = string_mark(reader, reader->at, quote);
    }
    *text_out = (cmq_slice){.data = text, .bytes = (size_t)(reader->scratch - text)};
    reader->at = mark + 1;
    return true;
}

/* The string whose opening quote, single or double, is at reader->at. */
static inline bool read_string(json_reader *reader, cmq_slice *text_out)
{
    const uint8_t quote = reader->at[0];
    const uint8_t *text = ++reader->at;
    const uint8_t *mark = string_mark(reader, text, quote);
    if (LIKELY(mark < reader->end && mark[0] == quote)) {
        *text_out = (cmq_slice){.data = text, .bytes = (size_t)(mark - text)};
        reader->at = mark + 1;
        return true;
    }
    return read_escaped(reader, quote, mark, text_out);
}

/* ---- values ---- */

static bool is_word_end(uint8_t byte)
{
    return byte <= ' ' || byte == ',' || byte == ':' || byte == '"' || byte == '\'' || byte == '{' || byte == '}' || byte == '[' || byte == ']';
}

/* A name or literal without quotes. */
static bool read_word(json_reader *reader, cmq_slice *word_out)
{
    const uint8_t *begin = reader->at;
    while (reader->at < reader->end && !is_word_end(reader->at[0])) reader->at++;
    *word_out = (cmq_slice){.data = begin, .bytes = (size_t)(reader->at - begin)};
    return reader->at > begin || is_wrong(reader, "name or value");
}

static bool slice_is(cmq_slice slice, const char *text, size_t bytes) { return slice.bytes == bytes && memcmp(slice.data, text, bytes) == 0; }
#define SLICE_IS(slice, text) slice_is(slice, text, sizeof(text) - 1)

static bool is_literal(cmq_slice word)
{
    if (word.data[0] == '-' || (word.data[0] >= '0' && word.data[0] <= '9')) return true;
    return SLICE_IS(word, "null") || SLICE_IS(word, "true") || SLICE_IS(word, "false");
}

/* A member's name and the colon behind it. */
static inline bool read_name(json_reader *reader, cmq_slice *name_out)
{
    if (!LIKELY(reader->at < reader->end && reader->at[0] == '"')) {
        skip_space(reader);
        if (reader->at == reader->end) return is_wrong(reader, "name");
    }
    if (LIKELY(reader->at[0] == '"') || reader->at[0] == '\'') {
        if (!read_string(reader, name_out)) return false;
    } else if (!read_word(reader, name_out)) {
        return false;
    }
    if (LIKELY(take(reader, ':'))) return true;
    return is_wrong(reader, "colon");
}

/* What comes behind a member or an element: *more_out says whether another follows. Java takes a comma in front of the closing bracket. */
static inline bool read_separator(json_reader *reader, uint8_t closing, bool *more_out)
{
    if (LIKELY(take(reader, ','))) {
        *more_out = LIKELY(reader->at < reader->end && reader->at[0] == '"') || !take(reader, closing);
        return true;
    }
    *more_out = false;
    return take(reader, closing) || is_wrong(reader, "comma or closing bracket");
}

static bool skip_value(json_reader *reader, unsigned depth);

/* The rest of an object or array whose opening bracket was taken. */
static bool skip_members(json_reader *reader, uint8_t closing, unsigned depth)
{
    if (depth == DEPTH_MAX) return is_wrong(reader, "value that is nested 64 levels deep at most");
    bool more = !take(reader, closing);
    while (more) {
        cmq_slice name;
        if (closing == '}' && !read_name(reader, &name)) return false;
        if (!skip_value(reader, depth + 1) || !read_separator(reader, closing, &more)) return false;
    }
    return true;
}

static bool skip_value(json_reader *reader, unsigned depth)
{
    cmq_slice text;
    skip_space(reader);
    if (reader->at == reader->end) return is_wrong(reader, "value");
    switch (reader->at[0]) {
    case '"':
    case '\'':
        return read_string(reader, &text);
    case '{':
        reader->at++;
        return skip_members(reader, '}', depth);
    case '[':
        reader->at++;
        return skip_members(reader, ']', depth);
    default:
        return read_word(reader, &text) && (is_literal(text) || is_wrong(reader, "value"));
    }
}

/* A value as text; data is NULL for null. */
static inline bool read_text(json_reader *reader, cmq_slice *text_out)
{
    if (LIKELY(reader->at < reader->end && reader->at[0] == '"')) return read_string(reader, text_out);
    skip_space(reader);
    if (reader->at < reader->end && (reader->at[0] == '"' || reader->at[0] == '\'')) return read_string(reader, text_out);
    const uint8_t *begin = reader->at;
    if (!skip_value(reader, 0)) return false;
    *text_out = (cmq_slice){.data = begin, .bytes = (size_t)(reader->at - begin)};
    if (SLICE_IS(*text_out, "null")) *text_out = CMQ_SLICE_NONE;
    return true;
}

/* A number as Java writes it, if it is not negative; false, and nothing is read, for others. */
static inline bool read_digits(json_reader *reader, int32_t *number_out)
{
    enum { DIGITS_MAX = 10 };
    const uint8_t *at = reader->at;
    int64_t number = 0;
    while (at < reader->end && at - reader->at < DIGITS_MAX && (uint8_t)(at[0] - '0') <= 9) number = 10 * number + (*at++ - '0');
    if (at == reader->at || at == reader->end || (at[0] != ',' && at[0] != '}') || number > INT32_MAX) return false;
    reader->at = at;
    *number_out = (int32_t)number;
    return true;
}

/* A number, in quotes or not; null leaves it as it is. */
static bool read_i32(json_reader *reader, int32_t *number_out)
{
    if (LIKELY(read_digits(reader, number_out))) return true;
    const uint8_t *begin = reader->at;
    cmq_slice text;
    if (!read_text(reader, &text)) return false;
    if (text.data == NULL) return true;
    int64_t number;
    if (!cmq_number_parse(text, &number) || number < INT32_MIN || number > INT32_MAX) {
        reader->at = begin;
        return is_wrong(reader, "number of 32 bits");
    }
    *number_out = (int32_t)number;
    return true;
}

/* A name, or the number of a language; one that nobody knows is OTHER. */
static bool read_language(json_reader *reader, int32_t *language_out)
{
    cmq_slice text;
    int64_t number;
    if (!read_text(reader, &text)) return false;
    if (cmq_number_parse(text, &number)) {
        *language_out = number >= 0 && number <= CMQ_LANGUAGE_MAX ? (int32_t)number : CMQ_LANGUAGE_OTHER;
    } else {
        *language_out = cmq_command_language_of(text);
    }
    return true;
}

/* ---- the header ---- */

/* A field as Java writes it, `"name":"value"` without an escape, that fits into one look; false, and nothing is read, when the next is none. */
static inline bool read_plain_field(json_reader *reader, cmq_field *field_out)
{
    const uint8_t *at = reader->at;
    uint64_t name_end, value_begin, value_end;
    for (bool looked = false;; looked = true) {
        const uint64_t marks = cmq_quotes_known(&reader->quotes, at);
        name_end = marks & (marks - 1);
        value_begin = name_end & (name_end - 1);
        value_end = value_begin & (value_begin - 1);
        if (LIKELY(value_end != 0)) break;
        if (looked || reader->quotes.block == at) return false;
        cmq_quotes_look(&reader->quotes, at);
    }
    const int first = __builtin_ctzll(name_end), second = __builtin_ctzll(value_begin), third = __builtin_ctzll(value_end);
    if (!LIKELY(at[0] == '"' && at[first] == '"' && at[first + 1] == ':' && second == first + 2 && at[second] == '"')) return false;
    if (!LIKELY(at[third] == '"')) return false;
    field_out->name = (cmq_slice){.data = at + 1, .bytes = (size_t)first - 1};
    field_out->value = (cmq_slice){.data = at + second + 1, .bytes = (size_t)(third - second - 1)};
    reader->at = at + third + 1;
    return true;
}

static inline bool read_field(json_reader *reader, cmq_field *field_out)
{
    if (LIKELY(read_plain_field(reader, field_out))) return true;
    return read_name(reader, &field_out->name) && read_text(reader, &field_out->value);
}

/* The map of fields, or null. Of a map that comes twice the last counts. *dropped_out: how many fields found no place. */
static bool read_fields(json_reader *reader, cmq_command *command, size_t *dropped_out)
{
    command->field_count = 0;
    *dropped_out = 0;
    if (!take(reader, '{')) {
        const uint8_t *begin = reader->at;
        cmq_slice word;
        if (read_word(reader, &word) && SLICE_IS(word, "null")) return true;
        reader->at = begin;
        return is_wrong(reader, "map of fields");
    }
    command->has_fields = true;
    bool more = !take(reader, '}');
    while (more) {
        cmq_field dropped;   /* a field is written to its place at once: 16 bytes read back right after two writes of 8 wait for both */
        const bool has_place = command->field_count < CMQ_COMMAND_FIELDS_MAX;
        if (!read_field(reader, has_place ? &command->fields[command->field_count] : &dropped)) return false;
        if (!read_separator(reader, '}', &more)) return false;
        command->field_count += has_place;
        *dropped_out += !has_place;
    }
    return true;
}

static bool read_member(json_reader *reader, cmq_command *command, size_t *dropped_out)
{
    cmq_slice name;
    if (!read_name(reader, &name)) return false;
    switch (name.bytes) {
    case 4:
        if (SLICE_IS(name, "code")) return read_i32(reader, &command->code);
        if (SLICE_IS(name, "flag")) return read_i32(reader, &command->flag);
        break;
    case 6:
        if (SLICE_IS(name, "opaque")) {
            command->has_opaque = true;
            return read_i32(reader, &command->opaque);
        }
        if (SLICE_IS(name, "remark")) return read_text(reader, &command->remark);
        break;
    case 7:
        if (SLICE_IS(name, "version")) return read_i32(reader, &command->version);
        break;
    case 8:
        if (SLICE_IS(name, "language")) return read_language(reader, &command->language);
        break;
    case 9:
        if (SLICE_IS(name, "extFields")) return read_fields(reader, command, dropped_out);
        break;
    default:
        break;
    }
    return skip_value(reader, 0);
}

static inline bool take_text(json_reader *reader, const char *text, size_t bytes)
{
    if ((size_t)(reader->end - reader->at) < bytes || memcmp(reader->at, text, bytes) != 0) return false;
    reader->at += bytes;
    return true;
}
#define TAKE_TEXT(reader, text) take_text(reader, text, sizeof(text) - 1)

/* The two ends of what Java writes, compared as whole texts: everything up to the map of fields, and everything behind it. False, and nothing is
 * read, when they are written otherwise. */
static bool begins_like_java(json_reader *reader, cmq_command *command)
{
    const uint8_t *begin = reader->at;
    if (TAKE_TEXT(reader, "{\"code\":") && read_digits(reader, &command->code) && TAKE_TEXT(reader, ",\"extFields\":")) return true;
    reader->at = begin;
    command->code = 0;
    return false;
}

static bool ends_like_java(json_reader *reader, cmq_command *command)
{
    const uint8_t *begin = reader->at;
    int32_t flag, opaque, version;
    if (TAKE_TEXT(reader, ",\"flag\":") && read_digits(reader, &flag) && TAKE_TEXT(reader, ",\"language\":\"JAVA\",\"opaque\":") &&
        read_digits(reader, &opaque) && TAKE_TEXT(reader, ",\"serializeTypeCurrentRPC\":\"JSON\",\"version\":") && read_digits(reader, &version) &&
        reader->end - reader->at == 1 && reader->at[0] == '}') {
        command->flag = flag;
        command->opaque = opaque;
        command->has_opaque = true;
        command->version = version;
        return true;
    }
    reader->at = begin;
    return false;
}

static bool read_header(json_reader *reader, cmq_command *command, size_t *dropped_out)
{
    bool more;
    if (LIKELY(begins_like_java(reader, command))) {
        if (!read_fields(reader, command, dropped_out)) return false;
        if (LIKELY(ends_like_java(reader, command))) return true;
        if (!read_separator(reader, '}', &more)) return false;
    } else {
        if (!take(reader, '{')) return is_wrong(reader, "opening brace");
        more = !take(reader, '}');
    }
    while (more) {
        if (!read_member(reader, command, dropped_out) || !read_separator(reader, '}', &more)) return false;
    }
    skip_space(reader);
    return reader->at == reader->end || is_wrong(reader, "end behind its last brace");
}

cmq_status cmq_command_parse_json(cmq_slice header, uint8_t *scratch, size_t scratch_bytes, cmq_command *command)
{
    CMQ_ASSERT(scratch_bytes >= header.bytes);
    json_reader reader = {.at = header.data, .end = header.data + header.bytes, .scratch = scratch};
    cmq_quotes_begin(&reader.quotes, header.data, header.bytes);
    size_t dropped = 0;
    if (!read_header(&reader, command, &dropped)) {
        const int64_t at = reader.at - header.data;
        return cmq_fail_at(CMQ_ERR_CORRUPT, at, "a JSON header of %zu bytes has no %s at byte %lld", header.bytes, reader.wrong, (long long)at);
    }
    if (dropped > 0)
        return cmq_fail(CMQ_ERR_LIMIT, "a header has %zu fields; at most %u are taken", dropped + CMQ_COMMAND_FIELDS_MAX, CMQ_COMMAND_FIELDS_MAX);
    return CMQ_OK;
}
