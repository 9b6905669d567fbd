/* fuzz_answers: hostile bytes as a broker's answer to a client: a frame with its header, then a body of messages.
 *
 * Properties: an answer that says that a message was stored says where; a pull's answer has all fields of its code;
 *             whole records of a body tile it, and the elements of an inner batch tile its body.
 * Run:        by replay_main.c over corpus/answers and mutations of it; or with -fsanitize=fuzzer by clang.
 */
#include <stdlib.h>

#include "base/cmq_assert.h"
#include "store/record/cmq_record.h"
#include "store/record/cmq_wire_batch.h"
#include "wire/cmq_command.h"
#include "wire/cmq_pull_response.h"
#include "wire/cmq_send_response.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_elements(const cmq_record_view *view)
{
    cmq_slice rest = view->body;
    cmq_wire_batch_element element;
    uint32_t count, seen = 0;
    while (cmq_wire_batch_next(&rest, &element) == CMQ_OK) {
        CMQ_ASSERT(element.properties.data + element.properties.bytes == rest.data);
        seen++;
    }
    if (cmq_wire_batch_count(view->body, &count) == CMQ_OK) CMQ_ASSERT(count == seen);
}

static void check_messages(cmq_slice body)
{
    cmq_record_view view;
    while (cmq_record_parse(body.data, body.bytes, -1, 0, &view) == CMQ_OK) {
        CMQ_ASSERT(view.record_bytes > 0 && view.record_bytes <= body.bytes);
        CMQ_ASSERT(view.properties.data + view.properties.bytes == body.data + view.record_bytes);
        check_elements(&view);
        body = (cmq_slice){.data = body.data + view.record_bytes, .bytes = body.bytes - view.record_bytes};
    }
}

static void check_answer(const cmq_frame *frame, cmq_command *command, uint8_t *scratch)
{
    cmq_send_response sent;
    cmq_pull_response pulled;
    const cmq_status status = cmq_command_parse(frame, scratch, frame->header.bytes, command);
    if (status != CMQ_OK && status != CMQ_ERR_LIMIT) return;
    if (cmq_send_response_read(command, &sent) != CMQ_OK) CMQ_ASSERT(cmq_last_error()->text[0] != 0);
    else if (cmq_send_response_is_stored(command->code)) CMQ_ASSERT(sent.message_id.data != NULL);
    if (cmq_pull_response_read(command, &pulled) != CMQ_OK) CMQ_ASSERT(cmq_last_error()->text[0] != 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    cmq_frame frame;
    size_t needed;
    check_messages((cmq_slice){.data = data, .bytes = size});
    if (cmq_frame_next((cmq_slice){.data = data, .bytes = size}, CMQ_FRAME_BYTES_MAX, &frame, &needed) != CMQ_OK)
        return 0;
    uint8_t *scratch = malloc(frame.header.bytes > 0 ? frame.header.bytes : 1);
    cmq_command *command = malloc(sizeof *command);
    CMQ_ASSERT(scratch != NULL && command != NULL);
    check_answer(&frame, command, scratch);
    check_messages(frame.body);
    free(command);
    free(scratch);
    return 0;
}
