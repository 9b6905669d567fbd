/* cmq_load_pull: consumers: one pull per queue, held by the broker where there is nothing.
 *
 * The pulls are those of a client without heartbeats: with their subscription, and with leave to be held. Responses are
 * checked record by record: CRC, run, producer and sequence of the body, consecutive offsets.
 */
#include <inttypes.h>
#include <string.h>

#include "load/cmq_load_internal.h"
#include "wire/cmq_codes.h"

enum { PULL_SUSPEND = 2, PULL_SUBSCRIPTION = 4, PULL_BYTES_MAX = 262144, REQUEST_BYTES = 4096 };

/* ---- pulls ---- */

static cmq_status put_pull(cmq_load *load, load_conn *conn, uint32_t index)
{
    load_queue *queue = &load->queues[index];
    uint8_t *into = cmq_load_conn_reserve(conn, REQUEST_BYTES);
    if (into == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for a pull");
    cmq_command_writer writer;
    cmq_command_begin(&writer, into, REQUEST_BYTES, load->options.format, CMQ_REQUEST_PULL_MESSAGE,
                      (int32_t)(LOAD_OPAQUE_PULL + index), 0, CMQ_SLICE_NONE);
    cmq_command_add_text(&writer, CMQ_NAME("consumerGroup"), cmq_slice_of_text(load->consumer_group));
    cmq_command_add_text(&writer, CMQ_NAME("topic"), cmq_slice_of_text(load->topic));
    cmq_command_add_i64(&writer, CMQ_NAME("queueId"), queue->queue_id);
    cmq_command_add_i64(&writer, CMQ_NAME("queueOffset"), queue->next_offset);
    cmq_command_add_i64(&writer, CMQ_NAME("maxMsgNums"), load->options.pull_messages);
    cmq_command_add_i64(&writer, CMQ_NAME("sysFlag"), PULL_SUSPEND | PULL_SUBSCRIPTION);
    cmq_command_add_i64(&writer, CMQ_NAME("commitOffset"), 0);
    cmq_command_add_i64(&writer, CMQ_NAME("suspendTimeoutMillis"), LOAD_HOLD_MS);
    cmq_command_add_text(&writer, CMQ_NAME("subscription"), CMQ_NAME("*"));
    cmq_command_add_i64(&writer, CMQ_NAME("subVersion"), 0);
    cmq_command_add_text(&writer, CMQ_NAME("expressionType"), CMQ_NAME("TAG"));
    cmq_command_add_i64(&writer, CMQ_NAME("maxMsgBytes"), PULL_BYTES_MAX);
    const size_t bytes = cmq_command_end(&writer, 0);
    if (bytes == 0 || bytes > REQUEST_BYTES)
        return cmq_fail(CMQ_ERR_TOO_LARGE, "a pull of %zu bytes: topic or group are too long", bytes);
    conn->out_used += bytes;
    queue->pulling = true;
    load->result.pulls++;
    cmq_load_conn_asked(load, conn);
    return CMQ_OK;
}

cmq_status cmq_load_pull_all(cmq_load *load, load_conn *conn)
{
    cmq_status status = CMQ_OK;
    if (!load->consuming || !conn->consumes) return CMQ_OK;
    for (uint32_t i = 0; status == CMQ_OK && i < load->options.queue_count; i++) {
        const load_queue *queue = &load->queues[i];
        if (queue->endpoint == conn->endpoint && queue->consumer == conn->index && !queue->pulling)
            status = put_pull(load, conn, i);
    }
    return status;
}

/* ---- answers ---- */

static void note_broken(cmq_load *load, const cmq_record_view *view, const char *what)
{
    load->result.broken++;
    cmq_load_note(load, "queue %d, offset %" PRId64 ": %s", view->queue_id, view->queue_offset, what);
}

cmq_status cmq_load_take_message(cmq_load *load, const cmq_record_view *view)
{
    cmq_load_body body;
    if (cmq_load_body_read(view->body, &body) != CMQ_OK) {
        note_broken(load, view, cmq_last_error()->text);
        return CMQ_OK;
    }
    if (body.run != load->options.run || body.producer >= load->options.producers) {
        note_broken(load, view, "the message is of another run; nobody else may write to the topic");
        return CMQ_OK;
    }
    bool first;
    const cmq_status status = cmq_marks_set(&load->seen[body.producer], body.sequence, &first);
    if (status != CMQ_OK) return status;
    if (!first) {
        load->result.duplicates++;
        cmq_load_note(load, "queue %d, offset %" PRId64 ": a message was redelivered", view->queue_id,
                      view->queue_offset);
        return CMQ_OK;
    }
    load->result.consumed++;
    load->consume_end_ns = load->now_ns;
    if (!load->options.consume_after) cmq_histogram_record(&load->result.end_to_end, load->now_ns - body.sent_ns, 1);
    return CMQ_OK;
}

static void check_order(cmq_load *load, load_queue *queue, const cmq_record_view *view)
{
    if (view->queue_id != queue->queue_id || view->queue_offset != queue->next_offset) {
        load->result.bad_offsets++;
        cmq_load_note(load, "queue %d: offset %" PRId64 " of queue %d came where %" PRId64 " should", queue->queue_id,
                      view->queue_offset, view->queue_id, queue->next_offset);
    }
    queue->next_offset = view->queue_offset + 1;
}

static cmq_status take_messages(cmq_load *load, load_queue *queue, cmq_slice body)
{
    while (body.bytes > 0) {
        cmq_record_view view;
        cmq_status status = cmq_record_parse(body.data, body.bytes, -1, CMQ_RECORD_CHECK_BODY_CRC, &view);
        if (status != CMQ_OK)
            return cmq_fail(CMQ_ERR_CORRUPT, "queue %d: malformed message in the pull from offset %" PRId64 " on: %s",
                            queue->queue_id, queue->next_offset,
                            status == CMQ_ERR_CORRUPT ? cmq_record_reason_text(view.reason) : "it is cut off");
        check_order(load, queue, &view);
        status = cmq_load_take_message(load, &view);
        if (status != CMQ_OK) return status;
        body.data += view.record_bytes;
        body.bytes -= view.record_bytes;
    }
    return CMQ_OK;
}

static cmq_status move_to(cmq_load *load, load_queue *queue, const cmq_command *command)
{
    cmq_slice text;
    int64_t offset;
    if (!cmq_command_find(command, "nextBeginOffset", &text) || cmq_field_i64(text, &offset) != CMQ_OK)
        return cmq_fail(CMQ_ERR_CORRUPT, "the answer to a pull does not say where to go on");
    if (offset == queue->next_offset) return CMQ_OK;
    load->result.bad_offsets++;
    cmq_load_note(load, "queue %d: a pull at %" PRId64 " was sent to %" PRId64 " (code %d)", queue->queue_id,
                  queue->next_offset, offset, command->code);
    queue->next_offset = offset;
    return CMQ_OK;
}

cmq_status cmq_load_pulled(cmq_load *load, load_conn *conn, const cmq_command *command, cmq_slice body)
{
    const uint32_t index = (uint32_t)(command->opaque - LOAD_OPAQUE_PULL);
    if (!conn->consumes || index >= load->options.queue_count || !load->queues[index].pulling)
        return cmq_fail(CMQ_ERR_CORRUPT, "an answer to a pull that was not sent (opaque %d)", command->opaque);
    load_queue *queue = &load->queues[index];
    cmq_status status;
    queue->pulling = false;
    switch (command->code) {
    case CMQ_RESPONSE_SUCCESS:
        status = take_messages(load, queue, body);
        if (status == CMQ_OK) status = move_to(load, queue, command);
        break;
    case CMQ_RESPONSE_PULL_NOT_FOUND:
    case CMQ_RESPONSE_PULL_RETRY_IMMEDIATELY:
    case CMQ_RESPONSE_PULL_OFFSET_MOVED:
        load->result.pulls_empty++;
        status = move_to(load, queue, command);
        break;
    default:
        return cmq_fail(CMQ_ERR_ARGUMENT, "a pull from queue %d was refused with code %d: %s", queue->queue_id,
                        command->code, cmq_load_remark_of(command).text);
    }
    if (status != CMQ_OK || !load->consuming) return status;
    return put_pull(load, conn, index);
}
