/* cmq_load_offsets: first and last offsets of queues, how far the group is, and the verdict of a run. */
#include <inttypes.h>

#include "load/cmq_load_internal.h"
#include "wire/cmq_codes.h"

enum { REQUEST_BYTES = 4096 };

static load_conn *conn_to(cmq_load *load, uint32_t endpoint)
{
    for (uint32_t i = 0; i < load->conn_count; i++)
        if (load->conns[i].endpoint == endpoint) return &load->conns[i];
    return NULL;
}

static cmq_status put_question(cmq_load *load, load_conn *conn, uint32_t index, load_question what)
{
    const bool is_last = what == LOAD_ASK_LAST;
    uint8_t *into = cmq_load_conn_reserve(conn, REQUEST_BYTES);
    if (into == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for a request");
    cmq_command_writer writer;
    cmq_command_begin(&writer, into, REQUEST_BYTES, load->options.format,
                      is_last ? CMQ_REQUEST_GET_MAX_OFFSET : CMQ_REQUEST_QUERY_CONSUMER_OFFSET,
                      (int32_t)((is_last ? LOAD_OPAQUE_OFFSET : LOAD_OPAQUE_GROUP) + index), 0, CMQ_SLICE_NONE);
    if (!is_last) cmq_command_add_text(&writer, CMQ_NAME("consumerGroup"), cmq_slice_of_text(load->consumer_group));
    cmq_command_add_text(&writer, CMQ_NAME("topic"), cmq_slice_of_text(load->topic));
    cmq_command_add_i64(&writer, CMQ_NAME("queueId"), load->queues[index].queue_id);
    const size_t bytes = cmq_command_end(&writer, 0);
    if (bytes == 0 || bytes > REQUEST_BYTES)
        return cmq_fail(CMQ_ERR_TOO_LARGE, "a request of %zu bytes: topic or group are too long", bytes);
    conn->out_used += bytes;
    load->queues[index].asked = true;
    cmq_load_conn_asked(load, conn);
    return CMQ_OK;
}

cmq_status cmq_load_ask_offsets(cmq_load *load, load_question what)
{
    for (uint32_t i = 0; i < load->options.queue_count; i++) {
        load_conn *conn = conn_to(load, load->queues[i].endpoint);   /* there is one: checked when the load was made */
        const cmq_status status = put_question(load, conn, i, what);
        if (status != CMQ_OK) return status;
    }
    for (uint32_t i = 0; i < load->conn_count; i++) {
        const cmq_status status = cmq_load_conn_flush(load, &load->conns[i]);
        if (status != CMQ_OK) return status;
    }
    return CMQ_OK;
}

cmq_status cmq_load_offset_known(cmq_load *load, const load_conn *conn, const cmq_command *command)
{
    const bool is_last = command->opaque < LOAD_OPAQUE_GROUP;
    const uint32_t index = (uint32_t)(command->opaque - (is_last ? LOAD_OPAQUE_OFFSET : LOAD_OPAQUE_GROUP));
    if (index >= load->options.queue_count || !load->queues[index].asked ||
        load->queues[index].endpoint != conn->endpoint)
        return cmq_fail(CMQ_ERR_CORRUPT, "an answer about an offset that was not asked for (opaque %d)",
                        command->opaque);
    load_queue *queue = &load->queues[index];
    const char *whose = is_last ? "last" : "group's";
    cmq_slice text;
    int64_t offset = 0;
    queue->asked = false;
    /* A queue that the group has not been at. */
    const bool is_none = !is_last && command->code == CMQ_RESPONSE_QUERY_NOT_FOUND;
    if (command->code != CMQ_RESPONSE_SUCCESS && !is_none)
        return cmq_fail(CMQ_ERR_ARGUMENT, "the %s offset of queue %d was refused with code %d: %s", whose,
                        queue->queue_id, command->code, cmq_load_remark_of(command).text);
    if (!is_none &&
        (!cmq_command_find(command, "offset", &text) || cmq_field_i64(text, &offset) != CMQ_OK || offset < 0))
        return cmq_fail(CMQ_ERR_CORRUPT, "the answer about the %s offset of queue %d has none", whose, queue->queue_id);
    if (!is_last) {
        queue->committed = is_none ? queue->first_offset : offset;
        return CMQ_OK;
    }
    if (queue->first_offset < 0) queue->first_offset = queue->next_offset = queue->committed = offset;
    queue->last_offset = offset;
    return CMQ_OK;
}

uint64_t cmq_load_uncommitted(const cmq_load *load)
{
    uint64_t count = 0;
    for (uint32_t i = 0; i < load->options.queue_count; i++) {
        const load_queue *queue = &load->queues[i];
        if (queue->committed < queue->last_offset) count += (uint64_t)(queue->last_offset - queue->committed);
    }
    return count;
}

/* ---- the verdict ---- */

void cmq_load_verify(cmq_load *load)
{
    cmq_load_result *result = &load->result;
    uint64_t found = 0;
    for (uint32_t i = 0; i < load->options.queue_count; i++) {
        const load_queue *queue = &load->queues[i];
        if (queue->first_offset < 0) continue;
        found += (uint64_t)(queue->last_offset - queue->first_offset);
        result->holes += cmq_marks_missing(&queue->accepted);
    }
    /* Refused messages may be stored all the same (the broker did not know better), but no others. */
    if (found < result->accepted || found > result->accepted + result->refused)
        cmq_load_note(load, "the queues grew by %" PRIu64 " messages, and %" PRIu64 " were accepted", found,
                      result->accepted);
    if (result->holes > result->refused)
        cmq_load_note(load, "%" PRIu64 " offsets between others were given to nobody", result->holes);
    if (load->options.consumers > 0 && result->consumed < result->accepted) {
        result->missing = result->accepted - result->consumed;
        cmq_load_note(load, "%" PRIu64 " accepted messages did not come", result->missing);
    }
    if (cmq_load_acks(load) && result->acked < result->consumed)
        cmq_load_note(load, "%" PRIu64 " messages came, and %" PRIu64 " are acknowledged", result->consumed,
                      result->acked);
    if (cmq_load_acks(load) && cmq_load_uncommitted(load) > 0)
        cmq_load_note(load, "every message is acknowledged, and the group is %" PRIu64 " messages behind",
                      cmq_load_uncommitted(load));
    result->verified = result->problem[0] == 0 && !result->stopped;
}
