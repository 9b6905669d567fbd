/* cmq_frame_kit: see cmq_frame_kit.h. */
#include "support/cmq_frame_kit.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/cmq_test.h"

static uint8_t *block(size_t bytes)
{
    uint8_t *made = malloc(bytes > 0 ? bytes : 1);
    CHECK(made != NULL);
    return made;
}

uint8_t *cmq_kit_hex(const char *digits, size_t *bytes_out)
{
    uint8_t *bytes = block(strlen(digits) / 2);
    size_t count = 0;
    while (*digits != 0) {
        if (*digits == ' ' || *digits == '\n') {
            digits++;
            continue;
        }
        unsigned value;
        CHECK(sscanf(digits, "%2x", &value) == 1);
        bytes[count++] = (uint8_t)value;
        digits += 2;
    }
    *bytes_out = count;
    return bytes;
}

cmq_status cmq_kit_parse(cmq_kit_command *kit, cmq_header_format format, cmq_slice header)
{
    kit->header = block(header.bytes);
    kit->scratch = block(header.bytes);
    if (header.bytes > 0) memcpy(kit->header, header.data, header.bytes);
    memset(&kit->command, 0xA5, sizeof kit->command);
    const cmq_frame frame = {.format = format, .header = {.data = kit->header, .bytes = header.bytes}};
    return cmq_command_parse(&frame, kit->scratch, header.bytes, &kit->command);
}

cmq_kit_command cmq_kit_json(const char *json)
{
    cmq_kit_command kit;
    char *text = strdup(json);
    CHECK(text != NULL);
    for (char *at = text; *at != 0; at++)
        if (*at == '\'') *at = '"';
    CHECK_OK(cmq_kit_parse(&kit, CMQ_HEADER_JSON, cmq_slice_of_text(text)));
    free(text);
    return kit;
}

void cmq_kit_command_free(cmq_kit_command *kit)
{
    free(kit->header);
    free(kit->scratch);
}

/* cmq_kit_write into memory of any size. */
static size_t write_into(const cmq_command *command, size_t body_bytes, uint8_t *into, size_t capacity)
{
    static const uint8_t empty[1] = {0};
    cmq_command_writer writer;
    cmq_command_begin(&writer, into, capacity, command->format, command->code, command->opaque, command->flag,
                      command->remark);
    writer.language = command->language;
    writer.version = command->version;
    if (command->has_fields) cmq_command_begin_fields(&writer);
    for (uint32_t i = 0; i < command->field_count; i++) {
        cmq_slice value = command->fields[i].value;
        /* null and empty look alike there */
        if (value.data == NULL && command->format == CMQ_HEADER_ROCKETMQ) value.data = empty;
        cmq_command_add_text(&writer, command->fields[i].name, value);
    }
    return cmq_command_end(&writer, body_bytes);
}

uint8_t *cmq_kit_write(const cmq_command *command, size_t body_bytes, size_t *bytes_out)
{
    *bytes_out = write_into(command, body_bytes, NULL, 0);
    uint8_t *frame = block(*bytes_out);
    CHECK_INT(write_into(command, body_bytes, frame, *bytes_out), *bytes_out);
    return frame;
}

size_t cmq_kit_golden_frames(void (*visit)(const char *name, cmq_slice frame))
{
    struct dirent **entries;
    const int count = scandir(CMQ_TEST_FRAMES, &entries, NULL, alphasort);
    CHECK(count > 0);
    size_t visited = 0;
    for (int i = 0; i < count; i++) {
        const char *name = entries[i]->d_name;
        /* "5.3.3-json-request-310"; others were made by hand, or found by a fuzzer, whose names are hashes */
        if (name[0] >= '4' && name[0] <= '5' && name[1] == '.') {
            char path[4096];
            snprintf(path, sizeof path, "%s/%s", CMQ_TEST_FRAMES, name);
            FILE *file = fopen(path, "rb");
            CHECK(file != NULL);
            uint8_t read[4096];
            const size_t bytes = fread(read, 1, sizeof read, file);
            fclose(file);
            CHECK(bytes > 0 && bytes < sizeof read);
            uint8_t *frame = block(bytes);
            memcpy(frame, read, bytes);
            visit(name, (cmq_slice){.data = frame, .bytes = bytes});
            free(frame);
            visited++;
        }
        free(entries[i]);
    }
    free(entries);
    return visited;
}
