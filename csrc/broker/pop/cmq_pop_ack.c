/* cmq_pop_ack: acknowledges popped messages (200051; lists of them, 200151, in cmq_pop_ack_list), or changes their
 * invisible time (200053).
 *
 *     ack     with its neighbours of the turn (cmq_pop_ack_run) merged into their checkpoint in memory, else stored
 *             behind it in the log; of an ordered pop: in the table of batches
 *     change  a checkpoint of the one message, of now; then the old one's ack
 *
 * A handle says what it is about; one that is stale, or unknown, finds no checkpoint in memory, becomes an ack in the
 * log, and is dropped there by the revive. One that no broker can have given is refused; in a list of many it is passed
 * over, and counted.
 *
 * Source: consumption specification 4.7, 4.10; upstream's AckMessageProcessor, ChangeInvisibleTimeProcessor.
 */
#include "broker/pop/cmq_pop_internal.h"

#include "base/cmq_assert.h"

#define ANSWER_BYTES 512u
#define ILLEGAL_OFFSET "offset is illegal, key:%.*s@%d, commit:%lld, store:%lld~%lld"

typedef cmq_pop_acked acked;

/* ---- acknowledging ---- */

static cmq_offset_key progress_of(const acked *what)
{
    return (cmq_offset_key){.topic = what->topic, .group = what->group, .queue_id = what->queue_id};
}
static cmq_pop_key key_of(const acked *what)
{
    return (cmq_pop_key){.topic = what->topic, .group = what->group, .queue_id = what->queue_id};
}

/* Was the message there at the pop? A handle from before the topic was deleted names a message of its successor, which
 * nobody has consumed. The deletions that are remembered end with the process. A clock that was set back makes messages
 * look younger than their pop: they are redelivered. */
static bool was_there(cmq_pop_service *pops, const acked *what, int64_t offset)
{
    cmq_found found;
    cmq_found_batch batch = {.items = &found, .capacity = 1};
    if (cmq_pop_service_is_former(pops, what->topic, what->handle.pop_ms)) return false;
    cmq_record_view view;
    cmq_status status = cmq_store_read_offset(cmq_pop_service_options_of(pops)->store, what->topic, what->queue_id,
                                              offset, &batch);
    if (status == CMQ_OK) status = cmq_record_parse(found.record, found.record_bytes, found.physical_offset, 0, &view);
    cmq_found_batch_release(&batch);
    return status != CMQ_OK || view.store_timestamp_ms <= what->handle.pop_ms;   /* nobody can read it: as it says */
}

cmq_status cmq_pop_ack_ordered(cmq_broker_loop *l, const acked *what, int64_t offset)
{
    cmq_pop_service *pops = l->broker->options.pops;
    const cmq_pop_key key = key_of(what);
    const cmq_offset_key progress = progress_of(what);
    cmq_pop_lane *lane;
    bool is_free;
    cmq_status status = cmq_pop_lane_enter(cmq_pop_service_buffer(pops), &key, &lane);
    if (status != CMQ_OK) return status;
    status = cmq_pop_fifo_ack(cmq_pop_service_ordered(pops), &progress, offset, what->handle.pop_ms,
                              what->handle.invisible_ms, cmq_pop_service_now_ms(pops), &is_free);
    if (status == CMQ_END)
        status = was_there(pops, what, offset) ? cmq_pop_fifo_pass(cmq_pop_service_ordered(pops), &progress, offset,
                                                                   &is_free)
                                               : CMQ_OK;
    cmq_pop_lane_leave(cmq_pop_service_buffer(pops), lane);
    if (is_free) cmq_pop_ack_wake(l, what);
    return status;
}

/* ---- 200051, 200053: checks ---- */

bool cmq_pop_ack_bounds(const cmq_broker_loop *l, const acked *what, int64_t *min_out, int64_t *max_out)
{
    cmq_queue *queue = cmq_queues_find(l->broker->queues, what->topic, what->queue_id);
    if (queue == NULL) return false;
    *min_out = cmq_queue_min(queue);
    *max_out = cmq_queue_max(queue, cmq_store_confirmed(l->broker->store));
    return true;
}

cmq_status cmq_pop_ack_check_handle(cmq_broker_loop *l, const acked *what)
{
    const cmq_pop_handle *handle = &what->handle;
    cmq_pop_service *pops = l->broker->options.pops;
    const cmq_pop_service_options *o = cmq_pop_service_options_of(pops);
    if (what->group.bytes == 0 || what->group.bytes > CMQ_POP_NAME_BYTES_MAX)
        return cmq_fail(CMQ_ERR_ARGUMENT, "consumerGroup has %zu bytes; 1 to %u are a name", what->group.bytes,
                        CMQ_POP_NAME_BYTES_MAX);
    if (cmq_pop_ack_is_ordered(what)) {
        if (cmq_tables_group(cmq_broker_tables(l), what->group) != NULL) return CMQ_OK;
        return cmq_fail(CMQ_ERR_ARGUMENT, "extraInfo is of an ordered pop, and there is no group '%.*s'",
                        cmq_shown(what->group), (const char *)what->group.data);
    }
    if (handle->revive_queue < 0 || (uint32_t)handle->revive_queue >= o->revive_queues_read)
        return cmq_fail(CMQ_ERR_ARGUMENT, "extraInfo names revive queue %d, and there are %u", handle->revive_queue,
                        o->revive_queues_read);
    const int64_t due_ms = handle->pop_ms + handle->invisible_ms;
    if (due_ms - cmq_pop_service_latest_ms(pops) > cmq_pop_service_invisible_ms_max(pops))
        return cmq_fail(CMQ_ERR_ARGUMENT,
                        "extraInfo is of a message that is invisible for longer than timerMaxDelaySec allows");
    return CMQ_OK;
}

static bool check(cmq_broker_loop *l, cmq_conn *conn, const cmq_command *command, const cmq_pop_header *header,
                  acked *what)
{
    const cmq_topic_entry *topic = cmq_tables_topic(cmq_broker_tables(l), header->topic);
    int64_t min = 0, max = 0;
    *what = (acked){.topic = header->topic, .group = header->group, .queue_id = header->queue_id};
    if (l->broker->options.pops == NULL) {
        cmq_broker_answer(conn, command, CMQ_RESPONSE_SYSTEM_ERROR,
                          "there are no popped messages, as timerWheelEnable is false");
    } else if (topic == NULL) {
        cmq_broker_answer(conn, command, CMQ_RESPONSE_TOPIC_NOT_EXIST, "topic[%.*s] not exist, apply first please!",
                          cmq_shown(header->topic), (const char *)header->topic.data);
    } else if (header->queue_id < 0 || header->queue_id >= topic->read_queues) {
        cmq_broker_answer(conn, command, CMQ_RESPONSE_MESSAGE_ILLEGAL, CMQ_POP_NO_QUEUE, header->queue_id,
                          cmq_shown(header->topic), (const char *)header->topic.data, topic->read_queues);
    } else if (!cmq_pop_ack_bounds(l, what, &min, &max) || header->offset < min || header->offset > max ||
               (command->code == CMQ_REQUEST_CHANGE_MESSAGE_INVISIBLETIME && header->offset == max)) {
        cmq_broker_answer(conn, command, CMQ_RESPONSE_NO_MESSAGE, ILLEGAL_OFFSET, cmq_shown(header->topic),
                          (const char *)header->topic.data, header->queue_id, (long long)header->offset, (long long)min,
                          (long long)max);
    } else if (cmq_pop_handle_parse(header->handle, &what->handle) != CMQ_OK) {
        cmq_broker_answer(conn, command, CMQ_RESPONSE_MESSAGE_ILLEGAL, "%s", cmq_last_error()->text);
    } else if (cmq_pop_ack_check_handle(l, what) != CMQ_OK) {
        cmq_broker_answer(conn, command, CMQ_RESPONSE_MESSAGE_ILLEGAL, "%s", cmq_last_error()->text);
    } else if (header->offset >= cmq_pop_ack_end(what, max)) {
        cmq_broker_answer(conn, command, CMQ_RESPONSE_NO_MESSAGE, ILLEGAL_OFFSET, cmq_shown(header->topic),
                          (const char *)header->topic.data, header->queue_id, (long long)header->offset, (long long)min,
                          (long long)max);
    } else {
        return true;
    }
    cmq_bump(&l->counters.pop_acks_refused, 1);
    return false;
}

void cmq_pop_ack_refuse(cmq_conn *conn, const cmq_command *command, cmq_status status, const char *text)
{
    cmq_broker_answer(conn, command,
                      status == CMQ_ERR_NOT_FOUND ? CMQ_RESPONSE_MESSAGE_ILLEGAL : cmq_broker_code_of(status), "%s",
                      text);
}

static void ack(cmq_broker_loop *l, cmq_conn *conn, const cmq_command *command, const cmq_pop_header *header)
{
    acked what;
    if (!check(l, conn, command, header, &what)) return;
    if (!cmq_pop_ack_is_ordered(&what)) {
        cmq_pop_ack_later(l, conn, command, &what, header->offset);
        return;
    }
    const cmq_status status = cmq_pop_ack_ordered(l, &what, header->offset);
    if (status == CMQ_OK)
        cmq_conn_answer(conn, command, CMQ_RESPONSE_SUCCESS, CMQ_SLICE_NONE);
    else
        cmq_pop_ack_refuse(conn, command, status, cmq_last_error()->text);
}

/* ---- 200053 ---- */

static void answer_changed(cmq_conn *conn, const cmq_command *command, int64_t pop_ms, int64_t invisible_ms,
                           int32_t revive_queue)
{
    uint8_t *out = (command->flag & CMQ_COMMAND_ONEWAY) == 0 ? cmq_conn_reserve(conn, ANSWER_BYTES) : NULL;
    cmq_command_writer writer;
    if (out == NULL) return;
    /* Upstream's remark of an answer that nobody filled in. */
    cmq_command_begin(&writer, out, ANSWER_BYTES, command->format, CMQ_RESPONSE_SUCCESS, command->opaque,
                      CMQ_COMMAND_RESPONSE, CMQ_NAME("not set any response code"));
    cmq_command_add_i64(&writer, CMQ_NAME("popTime"), pop_ms);
    cmq_command_add_i64(&writer, CMQ_NAME("invisibleTime"), invisible_ms);
    cmq_command_add_i64(&writer, CMQ_NAME("reviveQid"), revive_queue);
    const size_t used = cmq_command_end(&writer, 0);
    CMQ_ASSERT(used <= ANSWER_BYTES);
    cmq_conn_commit(conn, used);
}

static void change_ordered(cmq_broker_loop *l, cmq_conn *conn, const cmq_command *command, const cmq_pop_header *header,
                           const acked *what)
{
    cmq_pop_service *pops = l->broker->options.pops;
    const cmq_pop_key key = key_of(what);
    const cmq_offset_key progress = progress_of(what);
    cmq_pop_lane *lane;
    bool changed;
    const cmq_status status = cmq_pop_lane_enter(cmq_pop_service_buffer(pops), &key, &lane);
    if (status != CMQ_OK) {
        cmq_pop_ack_refuse(conn, command, status, cmq_last_error()->text);
        return;
    }
    const int64_t invisible_ms =
        cmq_pop_fifo_change(cmq_pop_service_ordered(pops), &progress, header->offset, what->handle.pop_ms,
                            header->invisible_ms, cmq_pop_service_now_ms(pops), &changed);
    cmq_pop_lane_leave(cmq_pop_service_buffer(pops), lane);
    if (changed) cmq_pop_ack_wake(l, what);
    if (invisible_ms < 0)
        answer_changed(conn, command, 0, 0, 0);   /* it was consumed long ago */
    else
        answer_changed(conn, command, what->handle.pop_ms, invisible_ms, CMQ_POP_REVIVE_ORDER);
}

static void change(cmq_broker_loop *l, cmq_conn *conn, const cmq_command *command, const cmq_pop_header *header)
{
    static const int32_t first[] = {0};
    cmq_pop_service *pops = l->broker->options.pops;
    acked what;
    uint32_t stored;
    if (!check(l, conn, command, header, &what)) return;
    if (header->invisible_ms < 0 || header->invisible_ms > cmq_pop_service_invisible_ms_max(pops)) {
        cmq_broker_answer(conn, command, CMQ_RESPONSE_SYSTEM_ERROR,
                          "invisibleTime is %lld ms; 0 to %lld are allowed (timerMaxDelaySec)",
                          (long long)header->invisible_ms, (long long)cmq_pop_service_invisible_ms_max(pops));
        return;
    }
    if (cmq_pop_ack_is_ordered(&what)) {
        change_ordered(l, conn, command, header, &what);
        return;
    }
    if (!cmq_pop_ack_is_ours(pops, &what.handle)) {
        cmq_bump(&l->counters.pop_acks_refused, 1);
        /* Upstream's checkpoint of it names the other broker, from which it would be revived. */
        cmq_broker_answer(conn, command, CMQ_RESPONSE_MESSAGE_ILLEGAL,
                          "extraInfo is a handle of broker %.*s, not of this one", cmq_shown(what.handle.broker),
                          (const char *)what.handle.broker.data);
        return;
    }
    if (cmq_pop_service_is_former(pops, what.topic, what.handle.pop_ms)) {
        cmq_bump(&l->counters.pop_acks_refused, 1);
        cmq_broker_answer(conn, command, CMQ_RESPONSE_NO_MESSAGE,
                          "extraInfo is of a pop before topic %.*s was deleted and created again",
                          cmq_shown(what.topic), (const char *)what.topic.data);
        return;
    }
    /* Later than the old one's, whatever the clock says: else the old one's ack could finish both. */
    const int64_t now_ms = cmq_pop_service_now_ms(pops),
                  pop_ms = now_ms > what.handle.pop_ms ? now_ms : what.handle.pop_ms + 1;
    const cmq_pop_store_item item = {
        .revive_queue = what.handle.revive_queue,
        .checkpoint = {.start_offset = header->offset,
                       .pop_ms = pop_ms,
                       .invisible_ms = header->invisible_ms,
                       .num = 1,
                       .queue_id = what.queue_id,
                       .topic = what.topic,
                       .group = what.group,
                       .broker = cmq_slice_of_text(cmq_pop_service_options_of(pops)->broker),
                       .diffs = first},
    };
    const cmq_pop_key key = key_of(&what);
    cmq_status status = cmq_pop_service_store(pops, &item, 1, &stored);
    if (status == CMQ_OK)
        cmq_pop_buffer_in_flight_again(cmq_pop_service_buffer(pops), &key, header->offset, what.handle.pop_ms, pop_ms,
                                      header->invisible_ms);
    if (status == CMQ_OK) status = cmq_pop_ack_offsets(l, &what, &header->offset, 1);
    if (status != CMQ_OK) {
        cmq_pop_ack_refuse(conn, command, status, cmq_last_error()->text);
        return;
    }
    cmq_bump(&l->counters.pop_changes, 1);
    cmq_bump(&l->counters.pop_acks, UINT64_MAX);   /* of the old handle: no message was consumed */
    answer_changed(conn, command, pop_ms, header->invisible_ms, what.handle.revive_queue);
}

/* ---- dealing out ---- */

cmq_net_verdict cmq_pop_ack_request(cmq_broker_loop *l, cmq_conn *conn, const cmq_command *command, cmq_slice body)
{
    cmq_pop_header header;
    if (command->code != CMQ_REQUEST_ACK_MESSAGE) cmq_pop_ack_run_flush(l);
    if (command->code == CMQ_REQUEST_BATCH_ACK_MESSAGE)
        cmq_pop_ack_list_take(l, conn, command, body);
    else if (cmq_pop_header_read(command, &header) != CMQ_OK)
        cmq_broker_answer(conn, command, CMQ_RESPONSE_SYSTEM_ERROR, "%s", cmq_last_error()->text);
    else if (command->code == CMQ_REQUEST_ACK_MESSAGE)
        ack(l, conn, command, &header);
    else
        change(l, conn, command, &header);
    return CMQ_NET_DONE;
}
