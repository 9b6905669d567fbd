/* cmq_command_write: headers as Java writes them.
 *
 * JSON has its members in alphabetical order, so the map comes second and what cmq_command_begin was given comes behind it; ROCKETMQ has the map
 * last. The escapes are fastjson's: the short ones, and \uXXXX with capital digits for other control characters, U+007F to U+009F and the two line
 * separators.
 *
 * Invariant: nothing is written behind the capacity, and once something did not fit nothing more is written at all; used counts on.
 * Source:    remoting specification 1.3, 1.4; the escapes were tried with fastjson 1.2.83.
 */
#include <string.h>

#include "wire/cmq_command.h"

enum { NAME_BYTES_MAX = INT16_MAX, HEADER_BYTES_MAX = 0xFFFFFF, NUMBER_BYTES_MAX = 20, PIECES_BYTES = 256 };

/* Where things stand in a frame with a ROCKETMQ header. */
enum { AT_LANGUAGE = CMQ_FRAME_PREFIX_BYTES + 2, AT_VERSION = AT_LANGUAGE + 1 };

/* Texts of a header are short: what has 8 to 16 bytes is two moves that overlap, without a call. */
static inline void copy(uint8_t *into, const uint8_t *from, size_t count)
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

static inline bool has_room(const cmq_command_writer *writer, size_t count)
{
    return writer->used <= writer->capacity && count <= writer->capacity - writer->used;
}

static inline void put(cmq_command_writer *writer, const void *bytes, size_t count)
{
    if (has_room(writer, count)) copy(writer->begin + writer->used, bytes, count);
    writer->used += count;
}

static inline void put_constant(cmq_command_writer *writer, const char *text, size_t count)
{
    if (has_room(writer, count)) memcpy(writer->begin + writer->used, text, count);
    writer->used += count;
}
#define PUT_TEXT(writer, text) put_constant(writer, text, sizeof(text) - 1)

static inline void put_u32(cmq_command_writer *writer, uint32_t number)
{
    uint8_t bytes[4];
    cmq_store_u32(bytes, number);
    put(writer, bytes, sizeof bytes);
}

/* The decimal digits of a number, at the end of `digits`; returns how many. */
static size_t format_number(int64_t number, uint8_t digits[NUMBER_BYTES_MAX])
{
    uint64_t left = number < 0 ? 0 - (uint64_t)number : (uint64_t)number;
    uint8_t *at = digits + NUMBER_BYTES_MAX;
    do {
        *--at = (uint8_t)('0' + left % 10);
        left /= 10;
    } while (left > 0);
    if (number < 0) *--at = '-';
    return (size_t)(digits + NUMBER_BYTES_MAX - at);
}

/* ---- text in JSON ---- */

/* Whether a byte may begin something that is escaped. Of the lead bytes of UTF-8 only C2 (U+0080 to U+00BF) and E2 (U+2000 to U+2FFF) do. */
static inline bool is_suspect(uint8_t byte)
{
    return byte < 0x20 || byte == '"' || byte == '\\' || byte == 0x7F || byte == 0xC2 || byte == 0xE2;
}

/* Whether none of eight bytes is suspect, or above 0x7F. It may say no where the answer is yes, not the other way round. */
static inline bool are_plain(const uint8_t *eight)
{
    const uint64_t ones = UINT64_C(0x0101010101010101), high = UINT64_C(0x8080808080808080);
    uint64_t word;
    memcpy(&word, eight, sizeof word);
    const uint64_t quote = word ^ ones * '"', backslash = word ^ ones * '\\', last = word ^ ones * 0x7F;
    return (((word - ones * 0x20) | (quote - ones) | (backslash - ones) | (last - ones) | word) & high) == 0;
}

/* How many bytes at the front need no escape. */
static inline size_t plain_bytes(const uint8_t *text, size_t bytes)
{
    size_t at = 0;
    while (bytes - at >= 8 && are_plain(text + at)) at += 8;
    if (bytes >= 8 && bytes - at < 8 && are_plain(text + bytes - 8)) return bytes;   /* the end, with some bytes before it again */
    while (at < bytes && !is_suspect(text[at])) at++;
    return at;
}

static void put_unicode(cmq_command_writer *writer, uint32_t point)
{
    static const char digits[] = "0123456789ABCDEF";
    char escape[6] = "\\u";
    for (unsigned i = 0; i < 4; i++) escape[2 + i] = digits[point >> (12 - 4 * i) & 0xF];
    put(writer, escape, sizeof escape);
}

/* Write the character at text[0], which is suspect; returns how many bytes of the text it took. */
static size_t put_suspect(cmq_command_writer *writer, const uint8_t *text, size_t bytes)
{
    static const char shorts[0x20] = {['\b'] = 'b', ['\t'] = 't', ['\n'] = 'n', ['\f'] = 'f', ['\r'] = 'r'};
    const uint8_t first = text[0];
    if (first == '"' || first == '\\' || (first < sizeof shorts && shorts[first] != 0)) {
        const uint8_t escape[2] = {'\\', first < sizeof shorts ? (uint8_t)shorts[first] : first};
        put(writer, escape, sizeof escape);
    } else if (first < 0x80) {
        put_unicode(writer, first);
    } else if (first == 0xC2 && bytes > 1 && text[1] >= 0x80 && text[1] <= 0x9F) {
        put_unicode(writer, text[1]);
        return 2;
    } else if (first == 0xE2 && bytes > 2 && text[1] == 0x80 && (text[2] == 0xA8 || text[2] == 0xA9)) {
        put_unicode(writer, 0x2000u | (text[2] & 0x3Fu));
        return 3;
    } else {
        put(writer, text, 1);
    }
    return 1;
}

static void put_escaped(cmq_command_writer *writer, cmq_slice text)
{
    for (size_t at = 0; at < text.bytes;) {
        const size_t plain = plain_bytes(text.data + at, text.bytes - at);
        put(writer, text.data + at, plain);
        at += plain;
        if (at < text.bytes) at += put_suspect(writer, text.data + at, text.bytes - at);
    }
}

/* ---- the header ---- */

void cmq_command_begin(cmq_command_writer *writer, uint8_t *into, size_t capacity, cmq_header_format format, int32_t code, int32_t opaque,
                       int32_t flag, cmq_slice remark)
{
    *writer = (cmq_command_writer){
        .begin = into,
        .capacity = capacity,
        .used = CMQ_FRAME_PREFIX_BYTES,
        .format = format,
        .language = CMQ_LANGUAGE_JAVA,
        .version = CMQ_COMMAND_VERSION,
        .opaque = opaque,
        .flag = flag,
        .remark = remark,
    };
    if (format == CMQ_HEADER_JSON) {
        uint8_t digits[NUMBER_BYTES_MAX];
        const size_t bytes = format_number(code, digits);
        PUT_TEXT(writer, "{\"code\":");
        put(writer, digits + NUMBER_BYTES_MAX - bytes, bytes);
        return;
    }
    uint8_t fixed[13] = {0};   /* language and version: at the end */
    cmq_store_u16(fixed, (uint16_t)code);
    cmq_store_i32(fixed + 5, opaque);
    cmq_store_i32(fixed + 9, flag);
    put(writer, fixed, sizeof fixed);
    put_u32(writer, (uint32_t)remark.bytes);
    put(writer, remark.data, remark.bytes);
    put_u32(writer, 0);
    writer->fields_at = writer->used;
}

void cmq_command_begin_fields(cmq_command_writer *writer)
{
    if (writer->fields_begun || writer->format != CMQ_HEADER_JSON) return;
    PUT_TEXT(writer, ",\"extFields\":{");
    writer->fields_begun = true;
    writer->fields_at = writer->used;
}

/* A field in JSON of which nothing has to be escaped, if there is room for it. */
static inline bool put_plain_field(cmq_command_writer *writer, cmq_slice name, cmq_slice value)
{
    enum { SIGNS = sizeof ",\"\":\"\"" - 1 };
    if (!has_room(writer, name.bytes + value.bytes + SIGNS)) return false;
    uint8_t *begin = writer->begin + writer->used, *at = begin;
    if (writer->used > writer->fields_at) *at++ = ',';
    *at++ = '"';
    copy(at, name.data, name.bytes);
    at += name.bytes;
    memcpy(at, "\":\"", 3);
    at += 3;
    copy(at, value.data, value.bytes);
    at += value.bytes;
    *at++ = '"';
    writer->used += (size_t)(at - begin);
    return true;
}

static void put_json_field(cmq_command_writer *writer, cmq_slice name, cmq_slice value)
{
    if (writer->used > writer->fields_at) PUT_TEXT(writer, ",");
    PUT_TEXT(writer, "\"");
    put_escaped(writer, name);
    PUT_TEXT(writer, "\":\"");
    put_escaped(writer, value);
    PUT_TEXT(writer, "\"");
}

static void put_rocketmq_field(cmq_command_writer *writer, cmq_slice name, cmq_slice value)
{
    uint8_t lengths[2];
    if (name.bytes > NAME_BYTES_MAX) writer->failed = true;
    cmq_store_u16(lengths, (uint16_t)name.bytes);
    put(writer, lengths, sizeof lengths);
    put(writer, name.data, name.bytes);
    put_u32(writer, (uint32_t)value.bytes);
    put(writer, value.data, value.bytes);
}

void cmq_command_add_text(cmq_command_writer *writer, cmq_slice name, cmq_slice value)
{
    if (value.data == NULL) return;
    if (writer->format == CMQ_HEADER_ROCKETMQ) {
        put_rocketmq_field(writer, name, value);
        return;
    }
    cmq_command_begin_fields(writer);
    const bool is_plain = plain_bytes(name.data, name.bytes) == name.bytes && plain_bytes(value.data, value.bytes) == value.bytes;
    if (!is_plain || !put_plain_field(writer, name, value)) put_json_field(writer, name, value);
}

/* A value of ours under a name of ours. */
static inline void add_plain(cmq_command_writer *writer, cmq_slice name, cmq_slice value)
{
    if (writer->format == CMQ_HEADER_ROCKETMQ) {
        put_rocketmq_field(writer, name, value);
        return;
    }
    cmq_command_begin_fields(writer);
    if (!put_plain_field(writer, name, value)) put_json_field(writer, name, value);
}

void cmq_command_add_i64(cmq_command_writer *writer, cmq_slice name, int64_t value)
{
    uint8_t digits[NUMBER_BYTES_MAX];
    const size_t bytes = format_number(value, digits);
    add_plain(writer, name, (cmq_slice){.data = digits + NUMBER_BYTES_MAX - bytes, .bytes = bytes});
}

void cmq_command_add_bool(cmq_command_writer *writer, cmq_slice name, bool value)
{
    add_plain(writer, name, value ? CMQ_NAME("true") : CMQ_NAME("false"));
}

/* Pieces of what begins and ends a header, put together aside and written at once. */
typedef struct pieces {
    size_t bytes;
    uint8_t text[PIECES_BYTES];
} pieces;

static inline void piece(pieces *to, const void *text, size_t bytes)
{
    memcpy(to->text + to->bytes, text, bytes);
    to->bytes += bytes;
}
#define PIECE(to, constant) piece(to, constant, sizeof(constant) - 1)

static inline void piece_number(pieces *to, int64_t number)
{
    uint8_t digits[NUMBER_BYTES_MAX];
    const size_t bytes = format_number(number, digits);
    copy(to->text + to->bytes, digits + NUMBER_BYTES_MAX - bytes, bytes);
    to->bytes += bytes;
}

static void end_json(cmq_command_writer *writer)
{
    const cmq_slice language = cmq_command_language_name(writer->language);
    pieces end;
    end.bytes = 0;   /* the text is written before it is read */
    if (writer->fields_begun) PIECE(&end, "}");
    PIECE(&end, ",\"flag\":");
    piece_number(&end, writer->flag);
    PIECE(&end, ",\"language\":\"");
    copy(end.text + end.bytes, language.data, language.bytes);
    end.bytes += language.bytes;
    PIECE(&end, "\",\"opaque\":");
    piece_number(&end, writer->opaque);
    if (writer->remark.data != NULL) {
        PIECE(&end, ",\"remark\":\"");
        put(writer, end.text, end.bytes);
        put_escaped(writer, writer->remark);
        end.bytes = 0;
        PIECE(&end, "\"");
    }
    PIECE(&end, ",\"serializeTypeCurrentRPC\":\"JSON\",\"version\":");
    piece_number(&end, writer->version);
    PIECE(&end, "}");
    put(writer, end.text, end.bytes);
}

size_t cmq_command_end(cmq_command_writer *writer, size_t body_bytes)
{
    if (writer->format == CMQ_HEADER_JSON) end_json(writer);
    const size_t header_bytes = writer->used - CMQ_FRAME_PREFIX_BYTES;
    if (writer->failed || header_bytes > HEADER_BYTES_MAX) return 0;
    if (writer->used > CMQ_FRAME_BYTES_MAX || body_bytes > CMQ_FRAME_BYTES_MAX - writer->used) return 0;
    if (writer->used > writer->capacity) return writer->used;
    if (writer->format == CMQ_HEADER_ROCKETMQ) {
        writer->begin[AT_LANGUAGE] = (uint8_t)writer->language;
        cmq_store_u16(writer->begin + AT_VERSION, (uint16_t)writer->version);
        cmq_store_u32(writer->begin + writer->fields_at - 4, (uint32_t)(writer->used - writer->fields_at));
    }
    cmq_frame_write_prefix(writer->begin, writer->format, (uint32_t)header_bytes, (uint32_t)body_bytes);
    return writer->used;
}
