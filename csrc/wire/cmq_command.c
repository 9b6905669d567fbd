/* cmq_command: headers in ROCKETMQ format, and the values of fields. See cmq_command.h.
 *
 *     0  2  code          13  4  length of the remark     then  4  length of the map
 *     2  1  language      17     remark                         map: 2 length of the name, name, 4 length of the value,
 *                                                                    value, and again
 *     3  2  version
 *     5  4  opaque
 *     9  4  flag
 */
#include "wire/cmq_command.h"

#include <string.h>

#include "base/cmq_assert.h"
#include "wire/cmq_command_internal.h"

enum {
    AT_LANGUAGE = 2,
    AT_VERSION = 3,
    AT_OPAQUE = 5,
    AT_FLAG = 9,
    AT_REMARK_LENGTH = 13,
    AT_REMARK = 17,
    HEADER_BYTES_MIN = AT_REMARK + 4
};

/* ---- languages ---- */

static const char *const languages[] = {"JAVA",  "CPP",  "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY",
                                        "OTHER", "HTTP", "GO",     "PHP",    "OMS",    "RUST",   "NODE_JS"};
_Static_assert(sizeof languages / sizeof languages[0] == CMQ_LANGUAGE_MAX + 1, "each language has its name");

cmq_slice cmq_command_language_name(int32_t language)
{
    return cmq_slice_of_text(languages[language >= 0 && language <= CMQ_LANGUAGE_MAX ? language : CMQ_LANGUAGE_OTHER]);
}

int32_t cmq_command_language_of(cmq_slice name)
{
    for (int32_t i = 0; i <= CMQ_LANGUAGE_MAX; i++)
        if (cmq_slice_equal(name, cmq_slice_of_text(languages[i]))) return i;
    return CMQ_LANGUAGE_OTHER;
}

/* ---- ROCKETMQ format ---- */

/* Codes over 32,767, of which 16 bits are on the wire: the POP family (1.4). No other request has one of these
 * numbers. */
static int32_t whole_code(int16_t code)
{
    switch (code) {
    case 3442:   /* pop */
    case 3443:   /* acknowledge */
    case 3444:   /* peek */
    case 3445:   /* change invisible time */
    case 3446:   /* notification */
    case 3447:   /* polling info */
    case 3448:   /* pop roll back */
    case 3543:   /* acknowledge a batch */
        return code + 3 * 65536;
    default:
        return code;
    }
}

/* The map's fields. A value without bytes is null, a field without a name is none; a length that leaves the map is an
 * error. */
static cmq_status parse_map(const uint8_t *map, size_t bytes, cmq_command *command)
{
    size_t at = 0, dropped = 0;
    while (at < bytes) {
        if (bytes - at < 2)
            return cmq_fail(CMQ_ERR_CORRUPT, "a ROCKETMQ header's map ends inside the length of a name");
        const uint32_t name_bytes = cmq_load_u16(map + at);   /* a negative length is a large one */
        at += 2;
        if (name_bytes > bytes - at)
            return cmq_fail(CMQ_ERR_CORRUPT, "a ROCKETMQ header has a name of %u bytes in %zu", name_bytes, bytes - at);
        const cmq_slice name = {.data = map + at, .bytes = name_bytes};
        at += name_bytes;
        if (bytes - at < 4)
            return cmq_fail(CMQ_ERR_CORRUPT, "a ROCKETMQ header's map ends inside the length of a value");
        const uint32_t value_bytes = cmq_load_u32(map + at);
        at += 4;
        if (value_bytes > bytes - at)
            return cmq_fail(CMQ_ERR_CORRUPT, "a ROCKETMQ header has a value of %u bytes in %zu", value_bytes,
                            bytes - at);
        const cmq_slice value = {.data = value_bytes > 0 ? map + at : NULL, .bytes = value_bytes};
        at += value_bytes;
        CMQ_ASSERT(at <= bytes);
        if (name_bytes == 0) continue;
        if (command->field_count < CMQ_COMMAND_FIELDS_MAX) {
            command->fields[command->field_count++] = (cmq_field){.name = name, .value = value};
        } else {
            dropped++;
        }
    }
    CMQ_ASSERT(dropped == 0 || command->field_count == CMQ_COMMAND_FIELDS_MAX);
    if (dropped > 0)
        return cmq_fail(CMQ_ERR_LIMIT, "a header has %zu fields; at most %u are taken",
                        dropped + CMQ_COMMAND_FIELDS_MAX, CMQ_COMMAND_FIELDS_MAX);
    return CMQ_OK;
}

static cmq_status parse_rocketmq(cmq_slice header, cmq_command *command)
{
    if (header.bytes < HEADER_BYTES_MIN)
        return cmq_fail(CMQ_ERR_CORRUPT, "a ROCKETMQ header has %zu bytes; %d are the least", header.bytes,
                        HEADER_BYTES_MIN);
    const uint8_t *at = header.data;
    const uint8_t language = at[AT_LANGUAGE];
    command->flag = cmq_load_i32(at + AT_FLAG);
    command->code = cmq_load_i16(at);
    if ((command->flag & CMQ_COMMAND_RESPONSE) == 0) command->code = whole_code((int16_t)command->code);
    command->language = language <= CMQ_LANGUAGE_MAX ? language : CMQ_LANGUAGE_OTHER;
    command->version = cmq_load_i16(at + AT_VERSION);
    command->opaque = cmq_load_i32(at + AT_OPAQUE);
    command->has_opaque = true;

    const uint32_t remark_bytes = cmq_load_u32(at + AT_REMARK_LENGTH);   /* a negative length is a large one */
    if (remark_bytes > header.bytes - HEADER_BYTES_MIN)
        return cmq_fail(CMQ_ERR_CORRUPT, "a ROCKETMQ header has a remark of %u bytes in %zu", remark_bytes,
                        header.bytes);
    if (remark_bytes > 0) command->remark = (cmq_slice){.data = at + AT_REMARK, .bytes = remark_bytes};
    const uint8_t *map = at + HEADER_BYTES_MIN + remark_bytes;
    CMQ_ASSERT(map <= header.data + header.bytes);
    const size_t map_bytes = header.bytes - HEADER_BYTES_MIN - remark_bytes;
    if (cmq_load_u32(map - 4) != map_bytes)
        return cmq_fail(CMQ_ERR_CORRUPT, "a ROCKETMQ header has a map of %u bytes, and %zu left for it",
                        cmq_load_u32(map - 4), map_bytes);
    command->has_fields = map_bytes > 0;
    return parse_map(map, map_bytes, command);
}

/* ---- reading ---- */

cmq_status cmq_command_parse(const cmq_frame *frame, uint8_t *scratch, size_t scratch_bytes, cmq_command *command_out)
{
    CMQ_ASSERT(frame->format == CMQ_HEADER_JSON || frame->format == CMQ_HEADER_ROCKETMQ);
    CMQ_ASSERT(frame->format == CMQ_HEADER_ROCKETMQ || scratch_bytes >= frame->header.bytes);
    command_out->format = frame->format;   /* all but the fields' places, which field_count covers */
    command_out->code = command_out->version = command_out->opaque = command_out->flag = 0;
    command_out->language = CMQ_LANGUAGE_JAVA;
    command_out->has_opaque = command_out->has_fields = false;
    command_out->remark = CMQ_SLICE_NONE;
    command_out->field_count = 0;
    if (frame->format == CMQ_HEADER_JSON)
        return cmq_command_parse_json(frame->header, scratch, scratch_bytes, command_out);
    return parse_rocketmq(frame->header, command_out);
}

bool cmq_command_find(const cmq_command *command, const char *name, cmq_slice *value_out)
{
    const cmq_slice wanted = cmq_slice_of_text(name);
    CMQ_ASSERT(command->field_count <= CMQ_COMMAND_FIELDS_MAX);
    for (uint32_t i = command->field_count; i > 0; i--) {
        if (!cmq_slice_equal(command->fields[i - 1].name, wanted)) continue;
        *value_out = command->fields[i - 1].value;
        return value_out->data != NULL;
    }
    *value_out = CMQ_SLICE_NONE;
    return false;
}

/* ---- values ---- */

/* Eight bytes as they lie in memory: are all of them digits? */
static bool are_digits(uint64_t eight)
{
    const uint64_t high = UINT64_C(0xF0F0F0F0F0F0F0F0);
    return (eight & high) == UINT64_C(0x3030303030303030) &&
           ((eight + UINT64_C(0x0606060606060606)) & high) == UINT64_C(0x3030303030303030);
}

/* The value of the digits: combines two, four and eight at a time. */
static uint64_t number_of_digits(uint64_t eight)
{
    eight = (eight & UINT64_C(0x0F0F0F0F0F0F0F0F)) * (1 + (10 << 8)) >> 8;
    eight = (eight & UINT64_C(0x00FF00FF00FF00FF)) * (1 + (100 << 16)) >> 16;
    return (eight & UINT64_C(0x0000FFFF0000FFFF)) * (1 + (UINT64_C(10000) << 32)) >> 32;
}

bool cmq_number_parse_any(cmq_slice text, int64_t *number_out)
{
    enum { DIGITS_SAFE = 18 };   /* so many never overflow */
    const bool negative = text.bytes > 0 && text.data[0] == '-';
    size_t at = negative || (text.bytes > 0 && text.data[0] == '+') ? 1 : 0;
    if (at == text.bytes) return false;
    const size_t safe_end = text.bytes - at > DIGITS_SAFE ? at + DIGITS_SAFE : text.bytes;
    CMQ_ASSERT(at < safe_end && safe_end <= text.bytes);
    uint64_t number = 0;
    for (uint64_t eight; safe_end - at >= 8; at += 8) {
        memcpy(&eight, text.data + at, sizeof eight);
        if (!are_digits(eight)) return false;
        number = UINT64_C(100000000) * number + number_of_digits(eight);
    }
    for (; at < safe_end; at++) {
        const uint8_t digit = (uint8_t)(text.data[at] - '0');
        if (digit > 9) return false;
        number = 10 * number + digit;
    }
    CMQ_ASSERT(at == safe_end && number < UINT64_C(1000000000000000000));
    const uint64_t limit = (uint64_t)INT64_MAX + (negative ? 1 : 0);
    for (; at < text.bytes; at++) {
        const uint8_t digit = (uint8_t)(text.data[at] - '0');
        if (digit > 9 || number > (limit - digit) / 10) return false;
        number = 10 * number + digit;
    }
    CMQ_ASSERT(number <= limit);
    *number_out = (int64_t)(negative ? 0 - number : number);
    return true;
}

static cmq_status no_number(cmq_slice value, const char *type)
{
    enum { SHOWN_BYTES_MAX = 40 };
    const int shown = value.bytes < SHOWN_BYTES_MAX ? (int)value.bytes : SHOWN_BYTES_MAX;
    return cmq_fail(CMQ_ERR_ARGUMENT, "`%.*s` is not %s", shown, value.bytes > 0 ? (const char *)value.data : "", type);
}

cmq_status cmq_field_i32(cmq_slice value, int32_t *number_out)
{
    int64_t number;
    *number_out = 0;
    if (!cmq_number_parse(value, &number) || number < INT32_MIN || number > INT32_MAX)
        return no_number(value, "an int");
    *number_out = (int32_t)number;
    return CMQ_OK;
}

cmq_status cmq_field_i64(cmq_slice value, int64_t *number_out)
{
    *number_out = 0;
    return cmq_number_parse(value, number_out) ? CMQ_OK : no_number(value, "a long");
}

bool cmq_field_bool(cmq_slice value)
{
    static const uint8_t text[4] = "true";
    if (value.bytes != sizeof text) return false;
    for (size_t i = 0; i < sizeof text; i++)
        if ((value.data[i] | 0x20) != text[i]) return false;
    return true;
}
