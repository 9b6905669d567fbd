/* cmq_command_write: headers as Java writes them; texts and numbers are cmq_text's.
 *
 * JSON has its members in alphabetical order, so the map comes second and what cmq_command_begin was given comes behind
 * it; ROCKETMQ has the map last.
 *
 * Source: remoting specification 1.3, 1.4.
 */
#include <string.h>

#include "base/cmq_assert.h"
#include "wire/cmq_command.h"


enum { NAME_BYTES_MAX = INT16_MAX, HEADER_BYTES_MAX = 0xFFFFFF, PIECES_BYTES = 256 };

/* Where things stand in a frame with a ROCKETMQ header. */
enum { AT_LANGUAGE = CMQ_FRAME_PREFIX_BYTES + 2, AT_VERSION = AT_LANGUAGE + 1 };

static inline void put_u32(cmq_command_writer *writer, uint32_t number)
{
    uint8_t bytes[4];
    cmq_store_u32(bytes, number);
    cmq_text_put(&writer->out, bytes, sizeof bytes);
}

/* ---- the header ---- */

void cmq_command_begin(cmq_command_writer *writer, uint8_t *into, size_t capacity, cmq_header_format format,
                       int32_t code, int32_t opaque, int32_t flag, cmq_slice remark)
{
    CMQ_ASSERT(into != NULL || capacity == 0);
    CMQ_ASSERT(remark.data != NULL || remark.bytes == 0);
    *writer = (cmq_command_writer){
        .out = {.begin = into, .capacity = capacity, .used = CMQ_FRAME_PREFIX_BYTES},
        .format = format,
        .language = CMQ_LANGUAGE_JAVA,
        .version = CMQ_COMMAND_VERSION,
        .opaque = opaque,
        .flag = flag,
        .remark = remark,
    };
    if (format == CMQ_HEADER_JSON) {
        CMQ_TEXT_PUT(&writer->out, "{\"code\":");
        cmq_text_put_number(&writer->out, code);
        return;
    }
    uint8_t fixed[13] = {0};   /* language and version: at the end */
    cmq_store_u16(fixed, (uint16_t)code);
    cmq_store_i32(fixed + 5, opaque);
    cmq_store_i32(fixed + 9, flag);
    cmq_text_put(&writer->out, fixed, sizeof fixed);
    put_u32(writer, (uint32_t)remark.bytes);
    cmq_text_put(&writer->out, remark.data, remark.bytes);
    put_u32(writer, 0);
    writer->fields_at = writer->out.used;
}

void cmq_command_begin_fields(cmq_command_writer *writer)
{
    if (writer->fields_begun || writer->format != CMQ_HEADER_JSON) return;
    CMQ_TEXT_PUT(&writer->out, ",\"extFields\":{");
    writer->fields_begun = true;
    writer->fields_at = writer->out.used;
}

/* A field in JSON of which nothing has to be escaped, if there is room for it. */
static inline bool put_plain_field(cmq_command_writer *writer, cmq_slice name, cmq_slice value)
{
    enum { SIGNS = sizeof ",\"\":\"\"" - 1 };
    if (!cmq_text_has_room(&writer->out, name.bytes + value.bytes + SIGNS)) return false;
    uint8_t *begin = writer->out.begin + writer->out.used, *at = begin;
    if (writer->out.used > writer->fields_at) *at++ = ',';
    *at++ = '"';
    cmq_text_copy(at, name.data, name.bytes);
    at += name.bytes;
    memcpy(at, "\":\"", 3);
    at += 3;
    cmq_text_copy(at, value.data, value.bytes);
    at += value.bytes;
    *at++ = '"';
    writer->out.used += (size_t)(at - begin);
    CMQ_ASSERT(writer->out.used <= writer->out.capacity);
    return true;
}

static void put_json_field(cmq_command_writer *writer, cmq_slice name, cmq_slice value)
{
    CMQ_ASSERT(writer->fields_begun && writer->out.used >= writer->fields_at);
    if (writer->out.used > writer->fields_at) CMQ_TEXT_PUT(&writer->out, ",");
    CMQ_TEXT_PUT(&writer->out, "\"");
    cmq_text_put_escaped(&writer->out, name);
    CMQ_TEXT_PUT(&writer->out, "\":\"");
    cmq_text_put_escaped(&writer->out, value);
    CMQ_TEXT_PUT(&writer->out, "\"");
}

static void put_rocketmq_field(cmq_command_writer *writer, cmq_slice name, cmq_slice value)
{
    uint8_t lengths[2];
    if (name.bytes > NAME_BYTES_MAX) writer->failed = true;
    cmq_store_u16(lengths, (uint16_t)name.bytes);
    cmq_text_put(&writer->out, lengths, sizeof lengths);
    cmq_text_put(&writer->out, name.data, name.bytes);
    put_u32(writer, (uint32_t)value.bytes);
    cmq_text_put(&writer->out, value.data, value.bytes);
}

void cmq_command_add_text(cmq_command_writer *writer, cmq_slice name, cmq_slice value)
{
    if (value.data == NULL) return;
    if (writer->format == CMQ_HEADER_ROCKETMQ) {
        put_rocketmq_field(writer, name, value);
        return;
    }
    cmq_command_begin_fields(writer);
    const bool is_plain = cmq_text_plain_bytes(name.data, name.bytes) == name.bytes &&
                          cmq_text_plain_bytes(value.data, value.bytes) == value.bytes;
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
    uint8_t digits[CMQ_TEXT_NUMBER_BYTES_MAX];
    const size_t bytes = cmq_text_format(value, digits);
    CMQ_ASSERT(bytes > 0 && bytes <= CMQ_TEXT_NUMBER_BYTES_MAX);
    add_plain(writer, name, (cmq_slice){.data = digits + CMQ_TEXT_NUMBER_BYTES_MAX - bytes, .bytes = bytes});
}

void cmq_command_add_bool(cmq_command_writer *writer, cmq_slice name, bool value)
{
    add_plain(writer, name, value ? CMQ_NAME("true") : CMQ_NAME("false"));
}

/* Pieces of what begins and ends a header, cmq_text_put together aside and written at once. */
typedef struct pieces {
    size_t bytes;
    uint8_t text[PIECES_BYTES];
} pieces;

static inline void piece(pieces *to, const void *text, size_t bytes)
{
    CMQ_ASSERT(bytes <= PIECES_BYTES - to->bytes);
    memcpy(to->text + to->bytes, text, bytes);
    to->bytes += bytes;
}
#define PIECE(to, constant) piece(to, constant, sizeof(constant) - 1)

static inline void piece_number(pieces *to, int64_t number)
{
    uint8_t digits[CMQ_TEXT_NUMBER_BYTES_MAX];
    const size_t bytes = cmq_text_format(number, digits);
    CMQ_ASSERT(bytes <= PIECES_BYTES - to->bytes);
    cmq_text_copy(to->text + to->bytes, digits + CMQ_TEXT_NUMBER_BYTES_MAX - bytes, bytes);
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
    CMQ_ASSERT(language.bytes <= PIECES_BYTES - end.bytes);
    cmq_text_copy(end.text + end.bytes, language.data, language.bytes);
    end.bytes += language.bytes;
    PIECE(&end, "\",\"opaque\":");
    piece_number(&end, writer->opaque);
    if (writer->remark.data != NULL) {
        PIECE(&end, ",\"remark\":\"");
        cmq_text_put(&writer->out, end.text, end.bytes);
        cmq_text_put_escaped(&writer->out, writer->remark);
        end.bytes = 0;
        PIECE(&end, "\"");
    }
    PIECE(&end, ",\"serializeTypeCurrentRPC\":\"JSON\",\"version\":");
    piece_number(&end, writer->version);
    PIECE(&end, "}");
    cmq_text_put(&writer->out, end.text, end.bytes);
}

size_t cmq_command_end(cmq_command_writer *writer, size_t body_bytes)
{
    if (writer->format == CMQ_HEADER_JSON) end_json(writer);
    CMQ_ASSERT(writer->out.used > CMQ_FRAME_PREFIX_BYTES);
    const size_t header_bytes = writer->out.used - CMQ_FRAME_PREFIX_BYTES;
    if (writer->failed || header_bytes > HEADER_BYTES_MAX) return 0;
    if (writer->out.used > CMQ_FRAME_BYTES_MAX || body_bytes > CMQ_FRAME_BYTES_MAX - writer->out.used) return 0;
    if (writer->out.used > writer->out.capacity) return writer->out.used;
    if (writer->format == CMQ_HEADER_ROCKETMQ) {
        CMQ_ASSERT(writer->fields_at >= AT_VERSION + 2 + 4 && writer->fields_at <= writer->out.used);
        writer->out.begin[AT_LANGUAGE] = (uint8_t)writer->language;
        cmq_store_u16(writer->out.begin + AT_VERSION, (uint16_t)writer->version);
        cmq_store_u32(writer->out.begin + writer->fields_at - 4, (uint32_t)(writer->out.used - writer->fields_at));
    }
    cmq_frame_write_prefix(writer->out.begin, writer->format, (uint32_t)header_bytes, (uint32_t)body_bytes);
    return writer->out.used;
}
