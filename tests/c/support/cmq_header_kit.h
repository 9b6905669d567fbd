/* cmq_header_kit: shared parts of the tests of send, pull and offset headers: a command from fields, and headers with a
 * field removed or broken. */
#ifndef CMQ_HEADER_KIT_H
#define CMQ_HEADER_KIT_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/cmq_frame_kit.h"
#include "support/cmq_test.h"

#define CHECK_SLICE(slice, text) CHECK_BYTES((slice).data, (slice).bytes, text, strlen(text))

typedef struct cmq_kit_field {
    const char *name;
    const char *value;     /* NULL: null */
    const char *called;    /* its name in error texts; NULL: not required */
    bool number;
} cmq_kit_field;

/* A command of fields; `without` and `broken` are indexes or -1: that field is left out, or is no number. */
static inline cmq_command cmq_kit_fields(int32_t code, const cmq_kit_field *fields, size_t count, int without,
                                         int broken)
{
    cmq_command command = {.format = CMQ_HEADER_JSON, .code = code};
    for (size_t i = 0; i < count; i++) {
        if ((int)i == without) continue;
        const char *value = (int)i == broken ? "12x" : fields[i].value;
        command.fields[command.field_count++] =
            (cmq_field){.name = cmq_slice_of_text(fields[i].name),
                        .value = value != NULL ? cmq_slice_of_text(value) : CMQ_SLICE_NONE};
    }
    return command;
}

/* Every member left out, null, or no number, one by one. `read` is the header's function. */
static inline void cmq_kit_members_are_checked(int32_t code, const cmq_kit_field *fields, size_t count,
                                               cmq_status (*read)(const cmq_command *command))
{
    for (size_t i = 0; i < count; i++) {
        cmq_command command = cmq_kit_fields(code, fields, count, (int)i, -1);
        const cmq_status status = read(&command);
        if (status != (fields[i].called != NULL ? CMQ_ERR_ARGUMENT : CMQ_OK))
            cmq_test_fail(__FILE__, __LINE__, "request %d without %s gave %s", code, fields[i].name,
                          cmq_status_name(status));
        if (status != CMQ_OK) CHECK(strstr(cmq_last_error()->text, fields[i].called) != NULL);

        command.fields[command.field_count++] =
            (cmq_field){.name = cmq_slice_of_text(fields[i].name), .value = CMQ_SLICE_NONE};
        CHECK_STATUS(read(&command), status);

        command = cmq_kit_fields(code, fields, count, -1, (int)i);
        CHECK_STATUS(read(&command), fields[i].number ? CMQ_ERR_ARGUMENT : CMQ_OK);
        if (fields[i].number) CHECK(strstr(cmq_last_error()->text, "`12x`") != NULL);
    }
}

#endif
