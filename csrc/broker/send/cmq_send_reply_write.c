/* cmq_send_reply_write: the answers of sends, and their time.
 *
 * Per answer: one reservation in the connection's output, the header written there in place; no copy. Under sync flush
 * about 140 B wait in cmq_pending_replies until the disk has the message.
 *
 * Source: remoting specification 2.2; upstream's SendMessageProcessor.handlePutMessageResult.
 */
#include "broker/loop/cmq_broker_internal.h"

#include <stdio.h>

#include "base/cmq_assert.h"
#include "store/record/cmq_message_id.h"

/* A header without ids: names, numbers, region and remark. */
#define ANSWER_BYTES 512u
#define NS_PER_MS INT64_C(1000000)

/* The two fields that every answer of the family has. */
static void add_common(cmq_command_writer *writer, const cmq_broker *broker)
{
    cmq_command_add_text(writer, CMQ_NAME("MSG_REGION"), cmq_slice_of_text(broker->region));
    cmq_command_add_text(writer, CMQ_NAME("TRACE_ON"),
                         broker->options.trace_off ? CMQ_NAME("false") : CMQ_NAME("true"));
}

/* Offset message ids, with commas between: into `into`, which has room. */
static size_t write_ids(char *into, const cmq_broker *broker, const int64_t *physical_offsets, uint32_t count)
{
    size_t used = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (i > 0) into[used++] = ',';
        used += cmq_message_id_format(&broker->store_host, physical_offsets[i], into + used);
    }
    return used;
}

static void write_answer(cmq_broker_loop *l, const cmq_pending_replies_answer *answer, int32_t code)
{
    cmq_conn *conn = cmq_loop_conn(l->loop, answer->conn);
    if (conn == NULL) return;
    const cmq_broker *broker = l->broker;
    const uint32_t ids = answer->inner_batch ? 1 : answer->count;
    /* The ids are written where the frame will be, behind its end, and copied into it: twice their room, and nothing of
     * its own. */
    const size_t id_bytes = ids * (CMQ_MESSAGE_ID_BYTES_MAX + 1u);
    const size_t frame_bytes =
        ANSWER_BYTES + strlen(broker->region) * 6 + answer->unique.bytes * 12 + answer->recall.bytes + id_bytes;
    uint8_t *out = cmq_conn_reserve(conn, frame_bytes + id_bytes);
    if (out == NULL) return;
    char *id = (char *)out + frame_bytes;
    const size_t id_used = write_ids(id, broker, answer->physical_offsets, ids);
    cmq_command_writer writer;
    cmq_command_begin(&writer, out, frame_bytes, answer->format, code, answer->opaque, CMQ_COMMAND_RESPONSE,
                      CMQ_SLICE_NONE);
    add_common(&writer, broker);
    cmq_command_add_text(&writer, CMQ_NAME("msgId"), (cmq_slice){.data = (const uint8_t *)id, .bytes = id_used});
    cmq_command_add_i64(&writer, CMQ_NAME("queueId"), answer->queue_id);
    cmq_command_add_i64(&writer, CMQ_NAME("queueOffset"), answer->queue_offset);
    if (answer->unique.bytes > 0) cmq_command_add_text(&writer, CMQ_NAME("transactionId"), answer->unique);
    if (answer->unique.bytes > 0 && answer->inner_batch)
        cmq_command_add_text(&writer, CMQ_NAME("batchUniqId"), answer->unique);
    if (answer->recall.bytes > 0) cmq_command_add_text(&writer, CMQ_NAME("recallHandle"), answer->recall);
    const size_t used = cmq_command_end(&writer, 0);
    CMQ_ASSERT(used <= frame_bytes);
    cmq_conn_commit(conn, used);
    cmq_bump(&l->counters.sends, 1);
}

void cmq_send_reply_write(cmq_broker_loop *l, const cmq_send_reply *reply, int32_t code, const char *remark)
{
    cmq_bump(&l->counters.send_failures, 1);
    cmq_conn *conn = reply->oneway ? NULL : cmq_loop_conn(l->loop, reply->conn);
    if (conn == NULL) return;
    const cmq_slice text = cmq_slice_of_text(remark);
    const size_t bytes = ANSWER_BYTES + (strlen(l->broker->region) + text.bytes) * 6;
    uint8_t *out = cmq_conn_reserve(conn, bytes);
    if (out == NULL) return;
    cmq_command_writer writer;
    cmq_command_begin(&writer, out, bytes, reply->format, code, reply->opaque, CMQ_COMMAND_RESPONSE, text);
    add_common(&writer, l->broker);
    const size_t used = cmq_command_end(&writer, 0);
    CMQ_ASSERT(used <= bytes);
    cmq_conn_commit(conn, used);
}

void cmq_send_fail(cmq_broker_loop *l, const cmq_send_reply *reply, cmq_status status)
{
    char remark[CMQ_ERROR_TEXT_BYTES + 256];
    const char *why = cmq_last_error()->text;
    int32_t code = cmq_broker_code_of(status);
    switch (status) {
    case CMQ_AGAIN:
        cmq_send_reply_write(l, reply, CMQ_RESPONSE_SYSTEM_BUSY, CMQ_SEND_OVERLOAD);
        return;
    case CMQ_ERR_ARGUMENT:
    case CMQ_ERR_TOPIC:
    case CMQ_ERR_TOO_LARGE:
        code = CMQ_RESPONSE_MESSAGE_ILLEGAL;
        snprintf(remark, sizeof remark, "the message is illegal: %s", why);
        break;
    default:
        snprintf(remark, sizeof remark, "%s%s",
                 code == CMQ_RESPONSE_SERVICE_NOT_AVAILABLE ? "service not available now: " : "", why);
        break;
    }
    cmq_send_reply_write(l, reply, code, remark);
}

void cmq_send_succeed(cmq_broker_loop *l, const cmq_send_reply *reply, int64_t queue_offset,
                      const int64_t *physical_offsets, uint32_t count, int64_t end, bool inner_batch)
{
    if (reply->oneway) {
        cmq_bump(&l->counters.sends, 1);
        return;
    }
    const cmq_pending_replies_answer answer = {
        .conn = reply->conn,
        .end = end,
        .since_ns = cmq_loop_now_ns(l->loop),
        .queue_offset = queue_offset,
        .physical_offsets = physical_offsets,
        .unique = reply->unique,
        .recall = reply->recall,
        .count = count,
        .queue_id = reply->queue_id,
        .opaque = reply->opaque,
        .format = reply->format,
        .inner_batch = inner_batch,
    };
    if (!l->broker->sync || !reply->wait) {
        write_answer(l, &answer, CMQ_RESPONSE_SUCCESS);
        return;
    }
    cmq_conn *conn = cmq_loop_conn(l->loop, reply->conn);
    if (conn == NULL) return;
    if (cmq_pending_replies_add(&l->sent, &answer) != CMQ_OK) {
        /* The message is in the log, but this client cannot learn whether it gets to the disk: a time-out says just
         * that. */
        write_answer(l, &answer, CMQ_RESPONSE_FLUSH_DISK_TIMEOUT);
        return;
    }
    cmq_conn_keep(conn);
    cmq_bump(&l->counters.waiting_for_disk, 1);
}

static void fail_fenced(cmq_broker_loop *l, const cmq_pending_replies_answer *answer)
{
    const cmq_send_reply reply = {.conn = answer->conn, .opaque = answer->opaque, .format = answer->format};
    cmq_send_reply_write(l, &reply, CMQ_RESPONSE_SERVICE_NOT_AVAILABLE,
                         "service not available now: a write or sync of the disk failed, and whether this message is "
                         "on it is not known. The broker takes no more "
                         "messages until it is started again");
}

void cmq_send_settle(cmq_broker_loop *l, int64_t now_ns)
{
    cmq_pending_replies_answer answer;
    const int64_t timeout_ns = l->broker->options.flush_timeout_ms * NS_PER_MS;
    const int64_t confirmed = l->sent.count > 0 ? cmq_store_confirmed(l->broker->store) : 0;
    const bool fenced = l->sent.count > 0 && cmq_store_is_fenced(l->broker->store);
    while (cmq_pending_replies_front(&l->sent, &answer)) {
        if (answer.end <= confirmed)
            write_answer(l, &answer, CMQ_RESPONSE_SUCCESS);
        else if (fenced)
            fail_fenced(l, &answer);
        else if (now_ns - answer.since_ns >= timeout_ns)
            write_answer(l, &answer, CMQ_RESPONSE_FLUSH_DISK_TIMEOUT);
        else
            break;
        cmq_pending_replies_drop(&l->sent);
        cmq_conn_kept_done(l->loop);
        cmq_bump(&l->counters.waiting_for_disk, UINT64_MAX);
    }
}

int64_t cmq_send_due_ns(const cmq_broker_loop *l)
{
    cmq_pending_replies_answer answer;
    return cmq_pending_replies_front(&l->sent, &answer)
               ? answer.since_ns + l->broker->options.flush_timeout_ms * NS_PER_MS
               : INT64_MAX;
}
