/* cmq_pop_peek: requests that inspect the poppable messages without popping them: whether there are any (200054, held
 * like a pop), and which (200052).
 *
 * Nothing is changed: no checkpoint, no progress, no lane.
 *
 * Source: consumption specification 4.11, 4.13; upstream's NotificationProcessor, PeekMessageProcessor.
 */
#include "broker/pop/cmq_pop_internal.h"

#include "base/cmq_assert.h"

#define ANSWER_BYTES 512u

/* Where the next pop of a queue begins, as far as can be said without one: a group that has no offset sees
 * everything. */
static int64_t next_of(const cmq_broker_loop *l, const cmq_pop_asked *a, cmq_slice topic, int32_t queue_id,
                       const cmq_queue *queue)
{
    const cmq_offset_key progress = {.topic = topic, .group = a->group->name, .queue_id = queue_id};
    const cmq_pop_key key = {.topic = topic, .group = a->group->name, .queue_id = queue_id};
    const int64_t committed = cmq_offsets_query(l->broker->options.offsets, &progress),
                  popped = cmq_pop_buffer_next(cmq_pop_service_buffer(a->pops), &key);
    const int64_t next = committed > popped ? committed : popped, min = cmq_queue_min(queue);
    return next > min ? next : min;
}

static void look_at_queue(cmq_broker_loop *l, const cmq_pop_asked *a, cmq_pop_result *popped, cmq_slice topic,
                          cmq_pop_retry retry, int32_t queue_id)
{
    const cmq_offset_key key = {.topic = topic, .group = a->group->name, .queue_id = queue_id};
    cmq_queue *queue = cmq_queues_find(l->broker->queues, topic, queue_id);
    const cmq_pop_key lane = {.topic = topic, .group = a->group->name, .queue_id = queue_id};
    int64_t free_ms;
    (void)retry;
    popped->cost += queue != NULL ? CMQ_POP_COST_LOOK : CMQ_POP_COST_NONE;
    if (queue == NULL) return;
    if (a->wait.order && cmq_pop_buffer_next(cmq_pop_service_buffer(a->pops), &lane) >= 0) {
        free_ms = a->now_ms + cmq_pop_peek_after_ms(a);
        if (free_ms < popped->free_ms) popped->free_ms = free_ms;
        return;
    }
    const int64_t committed = cmq_offsets_query(l->broker->options.offsets, &key);
    const bool is_blocked =
        a->wait.order && cmq_pop_fifo_table_blocks(cmq_pop_service_ordered(a->pops)->order, &key, a->wait.attempt,
                                                   a->wait.invisible_ms, committed, a->now_ms, &free_ms);
    if (is_blocked) {
        if (free_ms < popped->free_ms) popped->free_ms = free_ms;
        return;
    }
    const int64_t left =
        cmq_queue_max(queue, cmq_store_confirmed(l->broker->store)) - next_of(l, a, topic, queue_id, queue);
    if (left <= 0) return;
    popped->rest += left;
    popped->stopped = true;
}

static void answer_notified(cmq_broker_loop *l, const cmq_pop_asked *a, bool has_messages, bool is_full)
{
    cmq_conn *conn = cmq_loop_conn(l->loop, a->wait.conn);
    uint8_t *out = conn != NULL ? cmq_conn_reserve(conn, ANSWER_BYTES) : NULL;
    cmq_command_writer writer;
    if (out == NULL) return;
    cmq_command_begin(&writer, out, ANSWER_BYTES, a->wait.format, CMQ_RESPONSE_SUCCESS, a->wait.opaque,
                      CMQ_COMMAND_RESPONSE, CMQ_SLICE_NONE);
    cmq_command_add_bool(&writer, CMQ_NAME("hasMsg"), has_messages);
    cmq_command_add_bool(&writer, CMQ_NAME("pollingFull"), is_full);
    const size_t used = cmq_command_end(&writer, 0);
    CMQ_ASSERT(used <= ANSWER_BYTES);
    cmq_conn_commit(conn, used);
}

static bool look(cmq_broker_loop *l, cmq_pop_asked *a, int64_t *free_ms_out)
{
    cmq_pop_result popped;
    cmq_pop_result_begin(&popped, 1);
    cmq_pop_walk(l, a, &popped, look_at_queue);
    *free_ms_out = popped.free_ms;
    return popped.rest > 0;
}

bool cmq_pop_notify(cmq_broker_loop *l, cmq_pop_asked *a, bool last, int64_t *free_ms_out)
{
    *free_ms_out = INT64_MAX;
    if (!cmq_pop_check(l, a)) return true;
    const bool has_messages = look(l, a, free_ms_out), goes_on = !has_messages && cmq_pop_goes_on(l, a);
    if (!goes_on && a->wait.place.rest) {
        a->wait.place.rest = false;
        cmq_pop_notify_rest(l, a->topic->name, a->group->name, a->wait.queue_id);
    }
    if (goes_on || (!has_messages && !last)) return false;
    answer_notified(l, a, has_messages, false);
    return true;
}

static void notify(cmq_broker_loop *l, cmq_conn *conn, cmq_pop_asked *a, bool holds)
{
    int64_t free_ms;
    if (!cmq_pop_check(l, a)) return;
    if (look(l, a, &free_ms)) {
        answer_notified(l, a, true, false);
        return;
    }
    const cmq_pop_polling polling =
        holds || cmq_pop_goes_on(l, a) ? cmq_pop_hold(l, conn, a, free_ms) : CMQ_POP_TIMEOUT;
    if (polling != CMQ_POP_HELD) answer_notified(l, a, false, polling == CMQ_POP_FULL);
}

/* ---- 200052 ---- */

static void peek_at_queue(cmq_broker_loop *l, const cmq_pop_asked *a, cmq_pop_result *popped, cmq_slice topic,
                          cmq_pop_retry retry, int32_t queue_id)
{
    cmq_queue *queue = cmq_queues_find(l->broker->queues, topic, queue_id);
    popped->cost += queue != NULL ? CMQ_POP_COST_LOOK : CMQ_POP_COST_NONE;
    if (queue == NULL) return;
    const int64_t confirmed = cmq_store_confirmed(l->broker->store), max = cmq_queue_max(queue, confirmed);
    const int64_t from = next_of(l, a, topic, queue_id, queue);
    const uint32_t wanted = popped->capacity - popped->count;
    uint32_t found = 0, count = 0;
    int64_t next = from;
    if (from >= max) return;
    cmq_status status = wanted > 0 ? cmq_queue_read(queue, from, confirmed, l->units, wanted, &found, &next) : CMQ_OK;
    if (status == CMQ_OK) status = cmq_transfer_check(l->units, &found, &next);
    if (status == CMQ_OK && found > 0 && !cmq_pop_result_has_room(popped, l->units)) {
        next = l->units[0].offset;
    } else if (status == CMQ_OK && found > 0) {
        count = cmq_transfer_fit(l, l->units, found, wanted, cmq_pop_result_bytes_left(popped), confirmed).count;
        if (count < found) next = l->units[count].offset;
        const uint32_t pinned = cmq_pop_result_pin(popped, l, queue, l->units, count);
        if (pinned < count) {
            status = cmq_last_error()->status;
            next = l->units[pinned].offset;
            count = pinned;
        }
    }
    if (status != CMQ_OK) cmq_pop_result_fail(popped, status);
    if (count > 0) cmq_pop_result_take(popped, a, l->units, count, retry, queue_id);
    popped->rest += max - next;
}

static void peek(cmq_broker_loop *l, cmq_pop_asked *a)
{
    cmq_pop_result popped;
    if (!cmq_pop_check(l, a)) return;
    cmq_pop_result_begin(&popped, a->wait.max_messages < 1 ? 1 : (uint32_t)a->wait.max_messages);
    cmq_pop_walk(l, a, &popped, peek_at_queue);
    if (popped.count == 0 && popped.failed != CMQ_OK)
        cmq_pop_refuse(l, a, cmq_broker_code_of(popped.failed), "%s", popped.failure);
    else
        cmq_pop_result_answer(&popped, l, a, popped.count > 0 ? CMQ_RESPONSE_SUCCESS : CMQ_RESPONSE_PULL_NOT_FOUND);
    cmq_pop_result_end(&popped);
}

cmq_net_verdict cmq_pop_peek_request(cmq_broker_loop *l, cmq_conn *conn, const cmq_command *command, bool again)
{
    cmq_pop_header header;
    cmq_pop_asked a;
    cmq_net_verdict verdict;
    if (!cmq_pop_asked_begin(l, conn, command, again, &header, &a, &verdict)) return verdict;
    if (a.oneway) return CMQ_NET_DONE;
    cmq_send_flush_run(l);
    cmq_pop_ack_run_flush(l);
    if (command->code == CMQ_REQUEST_NOTIFICATION)
        notify(l, conn, &a, header.poll_ms > 0);
    else
        peek(l, &a);
    return CMQ_NET_DONE;
}
