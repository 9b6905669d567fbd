/* fuzz_frame: hostile bytes as a frame, and the bytes behind its prefix as a header in either format.
 *
 * Properties: a refusal says why and leaves nothing behind; a frame's parts tile it; a header that is read, written and
 *             read again is the same, in both formats; headers that the readers of sends, pulls, pops and offsets
 *             accept have all that they promise.
 */
#include <stdlib.h>
#include <string.h>

#include "base/cmq_assert.h"
#include "wire/cmq_command.h"
#include "wire/cmq_offset_header.h"
#include "wire/cmq_pop_header.h"
#include "wire/cmq_pull_header.h"
#include "wire/cmq_send_header.h"

static bool same_slice(cmq_slice a, cmq_slice b, cmq_header_format format)
{
    if (a.bytes == 0 && b.bytes == 0) return format == CMQ_HEADER_ROCKETMQ || (a.data == NULL) == (b.data == NULL);
    return cmq_slice_equal(a, b);
}

static size_t write_command(const cmq_command *command, cmq_header_format format, uint8_t *into, size_t capacity)
{
    cmq_command_writer writer;
    cmq_command_begin(&writer, into, capacity, format, command->code, command->opaque, command->flag, command->remark);
    writer.language = command->language;
    writer.version = command->version;
    if (command->has_fields) cmq_command_begin_fields(&writer);
    for (uint32_t i = 0; i < command->field_count; i++)
        cmq_command_add_text(&writer, command->fields[i].name, command->fields[i].value);
    return cmq_command_end(&writer, 0);
}

/* Of `command` those fields that are not null are in `again`, in the same order. */
static void check_same(const cmq_command *command, const cmq_command *again)
{
    const cmq_header_format format = again->format;
    const bool fits = format == CMQ_HEADER_JSON ||
                      (command->code == (int16_t)command->code && command->version == (int16_t)command->version);
    if (fits && command->code == again->code) CMQ_ASSERT(again->version == command->version);
    CMQ_ASSERT(again->language == command->language);
    CMQ_ASSERT(again->opaque == command->opaque);
    CMQ_ASSERT(again->flag == command->flag);
    CMQ_ASSERT(same_slice(again->remark, command->remark, format));
    uint32_t next = 0;
    for (uint32_t i = 0; i < command->field_count; i++) {
        const cmq_field *field = &command->fields[i];
        if (field->value.data == NULL || (field->name.bytes == 0 && format == CMQ_HEADER_ROCKETMQ)) continue;
        CMQ_ASSERT(next < again->field_count);
        CMQ_ASSERT(cmq_slice_equal(again->fields[next].name, field->name));
        CMQ_ASSERT(same_slice(again->fields[next].value, field->value, format));
        next++;
    }
    CMQ_ASSERT(next == again->field_count);
}

static void check_written_again(const cmq_command *command, cmq_header_format format)
{
    const size_t bytes = write_command(command, format, NULL, 0);
    if (bytes == 0) return;   /* no frame of this format can hold it */
    uint8_t *frame = malloc(bytes), *scratch = malloc(bytes);
    cmq_command *again = malloc(sizeof *again);
    CMQ_ASSERT(frame != NULL && scratch != NULL && again != NULL);
    CMQ_ASSERT(write_command(command, format, frame, bytes) == bytes);
    cmq_frame parts;
    size_t needed;
    CMQ_ASSERT(cmq_frame_next((cmq_slice){.data = frame, .bytes = bytes}, CMQ_FRAME_BYTES_MAX, &parts, &needed) ==
               CMQ_OK);
    CMQ_ASSERT(parts.bytes == bytes && parts.format == format);
    CMQ_ASSERT(cmq_command_parse(&parts, scratch, parts.header.bytes, again) == CMQ_OK);
    check_same(command, again);
    free(again);
    free(scratch);
    free(frame);
}

static void check_headers(cmq_command *command)
{
    cmq_send_header send;
    cmq_pull_header pull;
    cmq_offset_header offset;
    cmq_pop_header pop;
    if (cmq_send_header_read(command, &send) == CMQ_OK)
        CMQ_ASSERT(send.topic.data != NULL && send.producer_group.data != NULL);
    if (cmq_pull_header_read(command, &pull) == CMQ_OK) CMQ_ASSERT(pull.topic.data != NULL && pull.group.data != NULL);
    if (cmq_offset_header_read(command, &offset) == CMQ_OK) CMQ_ASSERT(offset.topic.data != NULL);
    if (cmq_pop_header_read(command, &pop) == CMQ_OK) CMQ_ASSERT(pop.topic.data != NULL && pop.group.data != NULL);
}

static void check_header(cmq_slice header, cmq_header_format format)
{
    const cmq_frame frame = {.format = format, .header = header};
    uint8_t *scratch = malloc(header.bytes > 0 ? header.bytes : 1);
    cmq_command *command = malloc(sizeof *command);
    CMQ_ASSERT(scratch != NULL && command != NULL);
    const cmq_status status = cmq_command_parse(&frame, scratch, header.bytes, command);
    CMQ_ASSERT(status == CMQ_OK || status == CMQ_ERR_CORRUPT || status == CMQ_ERR_LIMIT);
    CMQ_ASSERT(command->field_count <= CMQ_COMMAND_FIELDS_MAX);
    if (status != CMQ_OK) CMQ_ASSERT(cmq_last_error()->text[0] != 0);
    if (status != CMQ_ERR_CORRUPT) {
        check_written_again(command, CMQ_HEADER_JSON);
        check_written_again(command, CMQ_HEADER_ROCKETMQ);
        check_headers(command);
    }
    free(command);
    free(scratch);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    cmq_frame frame;
    size_t needed;
    const cmq_status status =
        cmq_frame_next((cmq_slice){.data = data, .bytes = size}, CMQ_FRAME_BYTES_MAX, &frame, &needed);
    if (status == CMQ_OK) {
        CMQ_ASSERT(frame.bytes <= size && needed == frame.bytes);
        CMQ_ASSERT(frame.header.data == data + CMQ_FRAME_PREFIX_BYTES);
        CMQ_ASSERT(frame.header.data + frame.header.bytes == frame.body.data);
        CMQ_ASSERT(frame.body.data + frame.body.bytes == data + frame.bytes);
        check_header(frame.header, frame.format);
    } else {
        CMQ_ASSERT(frame.bytes == 0);
        CMQ_ASSERT(status == CMQ_ERR_CORRUPT ||
                   (status == CMQ_AGAIN && needed > size && needed <= CMQ_FRAME_BYTES_MAX));
    }
    if (size <= CMQ_FRAME_PREFIX_BYTES) return 0;
    const cmq_slice rest = {.data = data + CMQ_FRAME_PREFIX_BYTES, .bytes = size - CMQ_FRAME_PREFIX_BYTES};
    check_header(rest, CMQ_HEADER_JSON);
    check_header(rest, CMQ_HEADER_ROCKETMQ);
    return 0;
}
