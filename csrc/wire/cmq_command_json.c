/* cmq_command_json: headers in JSON. Strings and values are cmq_json's.
 *
 * Threads: any; pure functions over memory of the caller.
 * Source:  remoting specification 1.3; fastjson 1.2.83's extensions of JSON.
 */
#include <string.h>

#include "base/cmq_assert.h"
#include "wire/cmq_command_internal.h"
#include "wire/cmq_json.h"

/* A number as Java writes it, if it is not negative; false, and nothing is read, for others. */
static inline bool read_digits(cmq_json *json, int32_t *number_out)
{
    enum { DIGITS_MAX = 10 };
    const uint8_t *at = json->at;
    int64_t number = 0;
    while (at < json->end && at - json->at < DIGITS_MAX && (uint8_t)(at[0] - '0') <= 9)
        number = 10 * number + (*at++ - '0');
    if (at == json->at || at == json->end || (at[0] != ',' && at[0] != '}') || number > INT32_MAX) return false;
    CMQ_ASSERT(number >= 0 && at < json->end);
    json->at = at;
    *number_out = (int32_t)number;
    return true;
}

/* A number, in quotes or not; null leaves it as it is. */
static bool read_i32(cmq_json *json, int32_t *number_out)
{
    if (CMQ_JSON_LIKELY(read_digits(json, number_out))) return true;
    const uint8_t *begin = json->at;
    cmq_slice text;
    if (!cmq_json_text(json, &text)) return false;
    if (text.data == NULL) return true;
    int64_t number;
    if (!cmq_number_parse(text, &number) || number < INT32_MIN || number > INT32_MAX) {
        json->at = begin;
        return cmq_json_wrong(json, "number of 32 bits");
    }
    *number_out = (int32_t)number;
    return true;
}

/* A name, or the number of a language; one that nobody knows is OTHER. */
static bool read_language(cmq_json *json, int32_t *language_out)
{
    cmq_slice text;
    int64_t number;
    if (!cmq_json_text(json, &text)) return false;
    if (cmq_number_parse(text, &number)) {
        *language_out = number >= 0 && number <= CMQ_LANGUAGE_MAX ? (int32_t)number : CMQ_LANGUAGE_OTHER;
    } else {
        *language_out = cmq_command_language_of(text);
    }
    return true;
}

/* ---- the header ---- */

/* A field as Java writes it, `"name":"value"` without an escape, that fits into one block; false, with nothing read,
 * for any other. */
static inline bool read_plain_field(cmq_json *json, cmq_field *field_out)
{
    const uint8_t *at = json->at;
    uint64_t name_end, value_begin, value_end;
    for (bool looked = false;; looked = true) {
        const uint64_t marks = cmq_quotes_known(&json->quotes, at);
        name_end = marks & (marks - 1);
        value_begin = name_end & (name_end - 1);
        value_end = value_begin & (value_begin - 1);
        if (CMQ_JSON_LIKELY(value_end != 0)) break;
        if (looked || json->quotes.block == at) return false;
        cmq_quotes_look(&json->quotes, at);
    }
    const int first = __builtin_ctzll(name_end), second = __builtin_ctzll(value_begin),
              third = __builtin_ctzll(value_end);
    if (!CMQ_JSON_LIKELY(at[0] == '"' && at[first] == '"' && at[first + 1] == ':' && second == first + 2 &&
                         at[second] == '"'))
        return false;
    if (!CMQ_JSON_LIKELY(at[third] == '"')) return false;
    CMQ_ASSERT(third > second && at + third < json->end);
    field_out->name = (cmq_slice){.data = at + 1, .bytes = (size_t)first - 1};
    field_out->value = (cmq_slice){.data = at + second + 1, .bytes = (size_t)(third - second - 1)};
    json->at = at + third + 1;
    return true;
}

static inline bool read_field(cmq_json *json, cmq_field *field_out)
{
    if (CMQ_JSON_LIKELY(read_plain_field(json, field_out))) return true;
    return cmq_json_name(json, &field_out->name) && cmq_json_text(json, &field_out->value);
}

/* The map of fields, or null. Of a map that comes twice the last counts. *dropped_out: how many fields found no
 * place. */
static bool read_fields(cmq_json *json, cmq_command *command, size_t *dropped_out)
{
    command->field_count = 0;
    *dropped_out = 0;
    if (!cmq_json_take(json, '{')) {
        const uint8_t *begin = json->at;
        cmq_slice word;
        if (cmq_json_word(json, &word) && CMQ_JSON_IS(word, "null")) return true;
        json->at = begin;
        return cmq_json_wrong(json, "map of fields");
    }
    command->has_fields = true;
    bool more = !cmq_json_take(json, '}');
    while (more) {
        cmq_field dropped;   /* a field is written to its place at once: 16 bytes read back right after two writes of 8
                              * wait for both */
        const bool has_place = command->field_count < CMQ_COMMAND_FIELDS_MAX;
        if (!read_field(json, has_place ? &command->fields[command->field_count] : &dropped)) return false;
        if (!cmq_json_separator(json, '}', &more)) return false;
        command->field_count += has_place;
        CMQ_ASSERT(command->field_count <= CMQ_COMMAND_FIELDS_MAX);
        *dropped_out += !has_place;
    }
    return true;
}

static bool read_member(cmq_json *json, cmq_command *command, size_t *dropped_out)
{
    cmq_slice name;
    if (!cmq_json_name(json, &name)) return false;
    switch (name.bytes) {
    case 4:
        if (CMQ_JSON_IS(name, "code")) return read_i32(json, &command->code);
        if (CMQ_JSON_IS(name, "flag")) return read_i32(json, &command->flag);
        break;
    case 6:
        if (CMQ_JSON_IS(name, "opaque")) {
            command->has_opaque = true;
            return read_i32(json, &command->opaque);
        }
        if (CMQ_JSON_IS(name, "remark")) return cmq_json_text(json, &command->remark);
        break;
    case 7:
        if (CMQ_JSON_IS(name, "version")) return read_i32(json, &command->version);
        break;
    case 8:
        if (CMQ_JSON_IS(name, "language")) return read_language(json, &command->language);
        break;
    case 9:
        if (CMQ_JSON_IS(name, "extFields")) return read_fields(json, command, dropped_out);
        break;
    default:
        break;
    }
    return cmq_json_skip(json, 0);
}

static inline bool take_text(cmq_json *json, const char *text, size_t bytes)
{
    CMQ_ASSERT(json->at <= json->end);
    if ((size_t)(json->end - json->at) < bytes || memcmp(json->at, text, bytes) != 0) return false;
    json->at += bytes;
    return true;
}
#define TAKE_TEXT(json, text) take_text(json, text, sizeof(text) - 1)

/* The two ends of what Java writes, compared as whole texts: everything up to the map of fields, and everything behind
 * it. False, and nothing is read, when they are written otherwise. */
static bool begins_like_java(cmq_json *json, cmq_command *command)
{
    const uint8_t *begin = json->at;
    if (TAKE_TEXT(json, "{\"code\":") && read_digits(json, &command->code) && TAKE_TEXT(json, ",\"extFields\":"))
        return true;
    json->at = begin;
    command->code = 0;
    return false;
}

static bool ends_like_java(cmq_json *json, cmq_command *command)
{
    const uint8_t *begin = json->at;
    int32_t flag, opaque, version;
    if (TAKE_TEXT(json, ",\"flag\":") && read_digits(json, &flag) &&
        TAKE_TEXT(json, ",\"language\":\"JAVA\",\"opaque\":") && read_digits(json, &opaque) &&
        TAKE_TEXT(json, ",\"serializeTypeCurrentRPC\":\"JSON\",\"version\":") && read_digits(json, &version) &&
        json->end - json->at == 1 && json->at[0] == '}') {
        command->flag = flag;
        command->opaque = opaque;
        command->has_opaque = true;
        command->version = version;
        return true;
    }
    json->at = begin;
    return false;
}

static bool read_header(cmq_json *json, cmq_command *command, size_t *dropped_out)
{
    bool more;
    if (CMQ_JSON_LIKELY(begins_like_java(json, command))) {
        if (!read_fields(json, command, dropped_out)) return false;
        if (CMQ_JSON_LIKELY(ends_like_java(json, command))) return true;
        if (!cmq_json_separator(json, '}', &more)) return false;
    } else {
        if (!cmq_json_take(json, '{')) return cmq_json_wrong(json, "opening brace");
        more = !cmq_json_take(json, '}');
    }
    while (more) {
        if (!read_member(json, command, dropped_out) || !cmq_json_separator(json, '}', &more)) return false;
    }
    cmq_json_skip_space(json);
    return json->at == json->end || cmq_json_wrong(json, "end behind its last brace");
}

cmq_status cmq_command_parse_json(cmq_slice header, uint8_t *scratch, size_t scratch_bytes, cmq_command *command)
{
    cmq_json json;
    cmq_json_begin(&json, header, scratch, scratch_bytes);
    size_t dropped = 0;
    if (!read_header(&json, command, &dropped)) {
        const int64_t at = json.at - header.data;
        CMQ_ASSERT(json.wrong != NULL && at >= 0 && (size_t)at <= header.bytes);
        return cmq_fail_at(CMQ_ERR_CORRUPT, at, "a JSON header of %zu bytes has no %s at byte %lld", header.bytes,
                           json.wrong, (long long)at);
    }
    if (dropped > 0)
        return cmq_fail(CMQ_ERR_LIMIT, "a header has %zu fields; at most %u are taken",
                        dropped + CMQ_COMMAND_FIELDS_MAX, CMQ_COMMAND_FIELDS_MAX);
    return CMQ_OK;
}
