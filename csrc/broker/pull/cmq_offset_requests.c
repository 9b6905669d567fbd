/* cmq_offset_requests: progress of groups (14, 15) and offsets of queues (29, 30, 31).
 *
 * Source: consumption specification 3.6, remoting specification 2.6; upstream's ConsumerManageProcessor,
 *         AdminBrokerProcessor.
 */
#include "broker/loop/cmq_broker_internal.h"

#include "base/cmq_assert.h"
#include "broker/tables/cmq_system_topics.h"
#include "wire/cmq_offset_header.h"

#define ANSWER_BYTES 256u

static void answer_offset(cmq_conn *conn, const cmq_command *command, int64_t offset)
{
    /* Upstream answers 31 with a remark that is empty, the others with none. */
    const cmq_slice remark = command->code == CMQ_REQUEST_GET_MIN_OFFSET ? CMQ_NAME("") : CMQ_SLICE_NONE;
    if ((command->flag & CMQ_COMMAND_ONEWAY) != 0) return;
    uint8_t *out = cmq_conn_reserve(conn, ANSWER_BYTES);
    if (out == NULL) return;
    cmq_command_writer writer;
    cmq_command_begin(&writer, out, ANSWER_BYTES, command->format, CMQ_RESPONSE_SUCCESS, command->opaque,
                      CMQ_COMMAND_RESPONSE, remark);
    cmq_command_add_i64(&writer, CMQ_NAME("offset"), offset);
    const size_t used = cmq_command_end(&writer, 0);
    CMQ_ASSERT(used <= ANSWER_BYTES);
    cmq_conn_commit(conn, used);
}

bool cmq_broker_is_young(const cmq_broker *broker, cmq_slice topic, int32_t queue_id)
{
    cmq_queue *queue = cmq_queues_find(broker->queues, topic, queue_id);
    if (queue == NULL || cmq_queue_min(queue) > 0) return false;
    const int64_t confirmed = cmq_store_confirmed(broker->store);
    cmq_unit unit;
    uint32_t count = 0;
    int64_t next;
    return cmq_queue_read(queue, 0, confirmed, &unit, 1, &count, &next) == CMQ_OK && count == 1 &&
           confirmed - unit.phy <= broker->options.memory_bytes;
}

static void query_progress(cmq_broker_loop *l, cmq_conn *conn, const cmq_command *command,
                           const cmq_offset_header *header)
{
    const cmq_offset_key key = {.group = header->group, .topic = header->topic, .queue_id = header->queue_id};
    const int64_t offset = cmq_offsets_query(l->broker->options.offsets, &key);
    
    if (offset >= 0)
        answer_offset(conn, command, offset);
    else if (header->zero_if_not_found && cmq_broker_is_young(l->broker, header->topic, header->queue_id))
        answer_offset(conn, command, 0);
    else
        cmq_conn_answer(conn, command, CMQ_RESPONSE_QUERY_NOT_FOUND,
                        CMQ_NAME("Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"));
}

static void update_progress(cmq_broker_loop *l, cmq_conn *conn, const cmq_command *command,
                            const cmq_offset_header *header)
{
    cmq_tables_reader *tables = cmq_broker_tables(l);
    const cmq_offset_key key = {.group = header->group, .topic = header->topic, .queue_id = header->queue_id};
    if (cmq_group_is_reserved(header->group)) {
        cmq_broker_answer(conn, command, CMQ_RESPONSE_NO_PERMISSION,
                          "the broker alone commits the progress of group %.*s", cmq_shown(header->group),
                          (const char *)header->group.data);
        return;
    }
    if (cmq_tables_group(tables, header->group) == NULL) {
        cmq_broker_answer(conn, command, CMQ_RESPONSE_SUBSCRIPTION_GROUP_NOT_EXIST, "Group %.*s not exist!",
                          cmq_shown(header->group), (const char *)header->group.data);
        return;
    }
    const cmq_topic_entry *topic = cmq_tables_topic(tables, header->topic);
    if (topic == NULL) {
        cmq_broker_answer(conn, command, CMQ_RESPONSE_TOPIC_NOT_EXIST, "Topic %.*s not exist!",
                          cmq_shown(header->topic), (const char *)header->topic.data);
        return;
    }
    /* Upstream keeps progress of any queue id; a client could fill the table with those. */
    const int32_t queues = topic->read_queues > topic->write_queues ? topic->read_queues : topic->write_queues;
    if (header->queue_id < 0 || header->queue_id >= queues) {
        cmq_broker_answer(conn, command, CMQ_RESPONSE_INVALID_PARAMETER, "topic %.*s has no queue %d",
                          cmq_shown(header->topic), (const char *)header->topic.data, header->queue_id);
        return;
    }
    /* Also of a queue that never had a message: a group that stopped before the first one came reads it when it comes
     * back. */
    const cmq_status status = cmq_offsets_commit_of(l->broker->options.offsets, &key, header->commit_offset,
                                                    cmq_broker_asker(l, cmq_conn_id_of(conn)));
    if (status == CMQ_OK)
        cmq_conn_answer(conn, command, CMQ_RESPONSE_SUCCESS, CMQ_SLICE_NONE);
    else if (status == CMQ_AGAIN)
        cmq_conn_answer(conn, command, CMQ_RESPONSE_SUCCESS, CMQ_NAME("Offset has been previously reset"));
    else
        cmq_broker_answer(conn, command,
                          status == CMQ_ERR_ARGUMENT ? CMQ_RESPONSE_INVALID_PARAMETER : CMQ_RESPONSE_SYSTEM_ERROR, "%s",
                          cmq_last_error()->text);
}

static void search_by_time(cmq_broker_loop *l, cmq_conn *conn, const cmq_command *command,
                           const cmq_offset_header *header)
{
    int64_t offset = 0;
    cmq_status status = CMQ_OK;
    if (cmq_queues_find(l->broker->queues, header->topic, header->queue_id) != NULL)
        status = cmq_store_offset_at(l->broker->store, header->topic, header->queue_id, header->timestamp_ms,
                                     header->upper ? CMQ_BOUNDARY_UPPER : CMQ_BOUNDARY_LOWER, &offset);
    if (status == CMQ_OK)
        answer_offset(conn, command, offset);
    else
        cmq_broker_answer(conn, command, CMQ_RESPONSE_SYSTEM_ERROR, "%s", cmq_last_error()->text);
}

static void answer_end(cmq_broker_loop *l, cmq_conn *conn, const cmq_command *command, const cmq_offset_header *header)
{
    cmq_queue *queue = cmq_queues_find(l->broker->queues, header->topic, header->queue_id);
    int64_t offset = 0;
    if (queue != NULL)
        offset = command->code == CMQ_REQUEST_GET_MAX_OFFSET
                     ? cmq_queue_max(queue, cmq_store_confirmed(l->broker->store))
                     : cmq_queue_min(queue);
    answer_offset(conn, command, offset);
}

cmq_net_verdict cmq_offset_requests_request(cmq_broker_loop *l, cmq_conn *conn, const cmq_command *command, bool again)
{
    (void)again;
    cmq_offset_header header;
    if (cmq_offset_header_read(command, &header) != CMQ_OK) {
        cmq_broker_answer(conn, command, CMQ_RESPONSE_SYSTEM_ERROR, "%s", cmq_last_error()->text);
        return CMQ_NET_DONE;
    }
    /* The messages of this turn's sends count. */
    cmq_send_flush_run(l);
    switch (command->code) {
    case CMQ_REQUEST_QUERY_CONSUMER_OFFSET:
        query_progress(l, conn, command, &header);
        break;
    case CMQ_REQUEST_UPDATE_CONSUMER_OFFSET:
        update_progress(l, conn, command, &header);
        break;
    case CMQ_REQUEST_SEARCH_OFFSET_BY_TIMESTAMP:
        search_by_time(l, conn, command, &header);
        break;
    default:
        answer_end(l, conn, command, &header);
        break;
    }
    return CMQ_NET_DONE;
}
