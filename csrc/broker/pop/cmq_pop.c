/* cmq_pop: pops (200050): checked, collected from the queues of a topic and its retry topic, handed out with a
 * checkpoint, or held.
 *
 *     checks -> draw -> [retry topic] -> queues of the topic -> [retry topic] -> one answer
 *     each queue, inside its lane: where it goes on -> scan -> records pinned -> checkpoint, or ordered batch -> taken
 *
 * A request that found nothing is held (cmq_pop_hold), and runs again from the checks on: another pop time, draw and
 * revive queue.
 *
 * Source: consumption specification 4.4, 4.5; upstream's PopMessageProcessor.
 */
#include "broker/pop/cmq_pop_internal.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/cmq_assert.h"
#include "broker/tables/cmq_system_topics.h"

#define LATE_MS 500              /* so long behind its poll time a request is of no use to anybody */
#define DISK_MS 5
#define LOOK_AFTER_MS 1000

void cmq_pop_refuse(cmq_broker_loop *l, const cmq_pop_asked *asked, int32_t code, const char *format, ...)
{
    char text[1024];
    cmq_conn *conn = asked->oneway ? NULL : cmq_loop_conn(l->loop, asked->wait.conn);
    va_list arguments;
    if (conn == NULL) return;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    const cmq_command as = {.format = asked->wait.format, .opaque = asked->wait.opaque, .has_opaque = true};
    cmq_conn_answer(conn, &as, code, cmq_slice_of_text(text));
}

/* ---- checks, in upstream's order ---- */

bool cmq_pop_check(cmq_broker_loop *l, const cmq_pop_asked *a)
{
    const cmq_pop_wait *wait = &a->wait;
    const cmq_broker *broker = l->broker;
    if (cmq_loop_now_ns(l->loop) - wait->expires_ns > LATE_MS * CMQ_POP_NS_PER_MS) {
        cmq_pop_refuse(l, a, CMQ_RESPONSE_POLLING_TIMEOUT, "the broker[%s] pop message is timeout too much",
                       broker->broker_ip);
    } else if ((cmq_tables_perm(l->reader) & CMQ_PERM_READ) == 0) {
        cmq_pop_refuse(l, a, CMQ_RESPONSE_NO_PERMISSION, "the broker[%s] pop message is forbidden", broker->broker_ip);
    } else if (wait->max_messages > (int32_t)CMQ_POP_MESSAGES_MAX) {
        cmq_pop_refuse(l, a, CMQ_RESPONSE_INVALID_PARAMETER, "maxMsgNums is %d; at most %u are popped at once",
                       wait->max_messages, CMQ_POP_MESSAGES_MAX);
    } else if (a->pops == NULL) {
        cmq_pop_refuse(l, a, CMQ_RESPONSE_SYSTEM_ERROR,
                       "the broker[%s] pop message is forbidden because timerWheelEnable is false", broker->broker_ip);
    } else if (a->topic == NULL) {
        cmq_pop_refuse(l, a, CMQ_RESPONSE_TOPIC_NOT_EXIST, "topic[%.*s] not exist, apply first please!",
                       cmq_shown(wait->topic), (const char *)wait->topic.data);
    } else if ((a->topic->perm & CMQ_PERM_READ) == 0) {
        cmq_pop_refuse(l, a, CMQ_RESPONSE_NO_PERMISSION, "the topic[%.*s] peeking message is forbidden",
                       cmq_shown(wait->topic), (const char *)wait->topic.data);
    } else if (a->topic->kind == CMQ_TOPIC_BATCH) {
        cmq_pop_refuse(l, a, CMQ_RESPONSE_SYSTEM_ERROR,
                       "the topic[%.*s] keeps inner batches (queue.type=BatchCQ), which are not popped",
                       cmq_shown(wait->topic), (const char *)wait->topic.data);
    } else if (wait->queue_id >= a->topic->read_queues) {
        cmq_pop_refuse(l, a, CMQ_RESPONSE_INVALID_PARAMETER, CMQ_POP_NO_QUEUE, wait->queue_id, cmq_shown(wait->topic),
                       (const char *)wait->topic.data, a->topic->read_queues);
    } else if (a->group == NULL) {
        cmq_pop_refuse(l, a, CMQ_RESPONSE_SUBSCRIPTION_GROUP_NOT_EXIST, "subscription group [%.*s] does not exist",
                       cmq_shown(wait->group), (const char *)wait->group.data);
    } else if (!a->group->consume_enable || cmq_group_is_reserved(wait->group)) {
        cmq_pop_refuse(l, a, CMQ_RESPONSE_NO_PERMISSION, "subscription group no permission, %.*s",
                       cmq_shown(wait->group), (const char *)wait->group.data);
    } else if (wait->attempt.bytes > CMQ_POP_ORDER_ATTEMPT_BYTES_MAX) {
        cmq_pop_refuse(l, a, CMQ_RESPONSE_INVALID_PARAMETER, "attemptId has %zu bytes; %u is the most",
                       wait->attempt.bytes, CMQ_POP_ORDER_ATTEMPT_BYTES_MAX);
    } else if (wait->code == CMQ_REQUEST_POP_MESSAGE && !wait->order &&
               !cmq_pop_has_retry_topic(wait->group, wait->topic)) {
        cmq_pop_refuse(l, a, CMQ_RESPONSE_INVALID_PARAMETER,
                       "group and topic have %zu bytes; the retry topic's name takes %u of theirs at most",
                       wait->group.bytes + wait->topic.bytes, CMQ_POP_RETRY_NAMES_BYTES_MAX);
    } else if (wait->invisible_ms < 0 || wait->invisible_ms > cmq_pop_service_invisible_ms_max(a->pops)) {
        cmq_pop_refuse(l, a, CMQ_RESPONSE_INVALID_PARAMETER,
                       "invisibleTime is %lld ms; 0 to %lld are allowed (timerMaxDelaySec)",
                       (long long)wait->invisible_ms, (long long)cmq_pop_service_invisible_ms_max(a->pops));
    } else {
        return true;
    }
    return false;
}

/* ---- where a queue goes on ---- */

/* A group's first offset. The last message that is there, unless the queue is young: other than a pull's, it is no end
 * to begin behind. */
static int64_t first_offset(const cmq_broker_loop *l, const cmq_pop_asked *a, cmq_slice topic, int32_t queue_id,
                            cmq_queue *queue, int64_t max)
{
    const int64_t min = queue != NULL ? cmq_queue_min(queue) : 0;
    if (a->wait.init == CMQ_POP_INIT_MIN || cmq_pop_retry_of(topic) != CMQ_POP_NORMAL) return min;
    if (!cmq_pop_service_options_of(a->pops)->begin_late && cmq_broker_is_young(l->broker, topic, queue_id)) return 0;
    return max > 0 ? max - 1 : 0;
}

/* Inside the lane. */
static int64_t begin_of(cmq_broker_loop *l, const cmq_pop_asked *a, cmq_pop_lane *lane, const cmq_offset_key *key,
                        cmq_queue *queue, int64_t max)
{
    cmq_offsets *offsets = l->broker->options.offsets;
    cmq_status status = CMQ_OK;
    const int64_t reset = cmq_offsets_take_reset(offsets, key);
    if (reset != CMQ_OFFSETS_NONE) {
        cmq_pop_lane_reset(cmq_pop_service_buffer(a->pops), lane);
        cmq_pop_fifo_table_clear(cmq_pop_service_ordered(a->pops)->order, key);
        status = cmq_offsets_commit(offsets, key, reset);
    }
    int64_t begin = cmq_offsets_query(offsets, key);
    /* removed meanwhile: found out again by the next pop */
    if (begin < 0) begin = first_offset(l, a, key->topic, key->queue_id, queue, max);
    (void)status;
    int64_t next = cmq_pop_lane_next(lane);
    if (next > max) {
        /* The queue was re-created: batches of its former life, of a pop that went on while it was deleted, must not
         * move the group. */
        cmq_pop_lane_reset(cmq_pop_service_buffer(a->pops), lane);
        next = -1;
    }
    return next > begin ? next : begin;
}

/* ---- one queue ---- */

/* Nothing before next_offset is for this group. */
static void pass(cmq_broker_loop *l, const cmq_pop_asked *a, cmq_pop_result *popped, cmq_pop_lane *lane,
                 const cmq_offset_key *key, int64_t next_offset)
{
    cmq_status status;
    if (a->wait.order)
        status = cmq_offsets_commit(l->broker->options.offsets, key, next_offset);
    else
        status = cmq_pop_lane_pass(cmq_pop_service_buffer(a->pops), lane, next_offset);
    if (status != CMQ_OK && status != CMQ_AGAIN) cmq_pop_result_fail(popped, status);
}

int64_t cmq_pop_peek_after_ms(const cmq_pop_asked *a)
{
    return cmq_pop_service_options_of(a->pops)->merge ? LOOK_AFTER_MS : DISK_MS;
}

/* Keep what the messages are handed out by; any other status than CMQ_OK: they are not. */
static cmq_status CMQ_MUST_CHECK keep(cmq_broker_loop *l, const cmq_pop_asked *a, cmq_pop_result *popped,
                                      cmq_pop_lane *lane, const cmq_offset_key *key, cmq_pop_retry retry,
                                      uint32_t count, int64_t from, int64_t next, int64_t confirmed)
{
    int64_t offsets[CMQ_POP_MESSAGES_MAX];
    for (uint32_t i = 0; i < count; i++) offsets[i] = l->units[i].offset;
    if (a->wait.order) {
        const cmq_pop_fifo_table_batch batch = {.attempt = a->wait.attempt,
                                                .pop_ms = a->now_ms,
                                                .invisible_ms = a->wait.invisible_ms,
                                                .offsets = offsets,
                                                .count = count};
        return cmq_pop_fifo_give(cmq_pop_service_ordered(a->pops), key, &batch, from, retry, a->now_ms,
                                 &popped->counts);
    }
    const cmq_pop_batch batch = {.pop_ms = a->now_ms,
                                 .invisible_ms = a->wait.invisible_ms,
                                 .next_offset = next,
                                 .log_end = confirmed,
                                 .offsets = offsets,
                                 .count = count,
                                 .revive_queue = a->revive_queue};
    const cmq_status status = cmq_pop_lane_add(cmq_pop_service_buffer(a->pops), lane, &batch, a->now_ms);
    if (status == CMQ_OK && cmq_pop_lane_next(lane) >= 0)
        cmq_pop_service_wanted_by(a->pops, a->now_ms + cmq_pop_peek_after_ms(a));
    return status;
}

/* Take what there is behind `from`. */
static void take(cmq_broker_loop *l, const cmq_pop_asked *a, cmq_pop_result *popped, cmq_pop_lane *lane,
                 const cmq_offset_key *key, cmq_pop_retry retry, cmq_queue *queue, int64_t from, int64_t confirmed)
{
    const int64_t max = cmq_queue_max(queue, confirmed);
    const uint32_t wanted = popped->capacity - popped->count;
    uint32_t found = 0;
    int64_t next = max;
    cmq_status status =
        cmq_select_units(l, queue, a->wait.filter, from, confirmed, wanted, &popped->steps, &found, &next);
    if (popped->steps == 0) popped->stopped = true;
    if (status == CMQ_OK && found == 0) {
        if (next > from) pass(l, a, popped, lane, key, next);
        popped->rest += max - next;
        return;
    }
    if (status == CMQ_OK && !cmq_pop_result_has_room(popped, l->units)) {
        popped->rest += max - from;
        return;
    }
    uint32_t count = 0;
    if (status == CMQ_OK) {
        const cmq_transfer fit =
            cmq_transfer_fit(l, l->units, found, wanted, cmq_pop_result_bytes_left(popped), confirmed);
        count = cmq_pop_result_pin(popped, l, queue, l->units, fit.count);
        if (count < fit.count) status = cmq_last_error()->status;
        if (count < found) next = l->units[count].offset;
    }
    if (count > 0) status = keep(l, a, popped, lane, key, retry, count, from, next, confirmed);
    if (count == 0 || status != CMQ_OK) {
        cmq_pop_result_fail(popped, status);
        if (status != CMQ_ERR_CORRUPT) popped->rest += max - from;   /* damaged messages are available to nobody */
        return;
    }
    cmq_pop_result_take(popped, a, l->units, count, retry, key->queue_id);
    popped->rest += max - next;
}

static void pop_in_lane(cmq_broker_loop *l, const cmq_pop_asked *a, cmq_pop_result *popped, cmq_pop_lane *lane,
                        const cmq_offset_key *key, cmq_pop_retry retry, cmq_queue *queue)
{
    /* Read inside the lane: the one in it before has seen no more. */
    const int64_t confirmed = cmq_store_confirmed(l->broker->store);
    const int64_t max = queue != NULL ? cmq_queue_max(queue, confirmed) : 0;
    const uint32_t in_flight_max = cmq_pop_service_options_of(a->pops)->in_flight_max;
    int64_t from = begin_of(l, a, lane, key, queue, max), free_ms;
    if (queue == NULL) return;
    if (a->wait.order && cmq_pop_lane_next(lane) >= 0) {
        /* Its batch would move the group behind messages that were popped without order, and may be in memory alone. */
        free_ms = a->now_ms + cmq_pop_peek_after_ms(a);
        if (free_ms < popped->free_ms) popped->free_ms = free_ms;
        return;
    }
    const bool is_blocked =
        a->wait.order && cmq_pop_fifo_table_blocks(cmq_pop_service_ordered(a->pops)->order, key, a->wait.attempt,
                                                   a->wait.invisible_ms, from, a->now_ms, &free_ms);
    if (is_blocked) {
        if (free_ms < popped->free_ms) popped->free_ms = free_ms;
        return;
    }
    if (from > max) {
        /* The committed offset is past the queue's end: resume at its end, as a pull does. */
        cmq_pop_lane_reset(cmq_pop_service_buffer(a->pops), lane);
        const cmq_status status = cmq_offsets_commit(l->broker->options.offsets, key, max);
        if (status != CMQ_OK && status != CMQ_AGAIN) cmq_pop_result_fail(popped, status);
        return;
    }
    const bool is_limited = !a->wait.order && in_flight_max > 0 && cmq_pop_lane_in_flight(lane) > in_flight_max;
    if (is_limited || popped->count == popped->capacity) {
        popped->rest += max - from;
        if (is_limited) popped->limited += max - from;
        return;
    }
    if (from < cmq_queue_min(queue)) {
        from = cmq_queue_min(queue);
        pass(l, a, popped, lane, key, from);
    }
    if (from < max) take(l, a, popped, lane, key, retry, queue, from, confirmed);
}

static void pop_queue(cmq_broker_loop *l, const cmq_pop_asked *a, cmq_pop_result *popped, cmq_slice topic,
                      cmq_pop_retry retry, int32_t queue_id)
{
    const cmq_pop_key key = {.topic = topic, .group = a->group->name, .queue_id = queue_id};
    const cmq_offset_key progress = {.topic = topic, .group = a->group->name, .queue_id = queue_id};
    cmq_queue *queue = cmq_queues_find(l->broker->queues, topic, queue_id);
    cmq_pop_lane *lane;
    popped->cost += queue != NULL ? CMQ_POP_COST_LOOK : CMQ_POP_COST_NONE;
    if (queue == NULL && retry != CMQ_POP_NORMAL) return;
    cmq_status status = CMQ_OK;
    if (cmq_offsets_query(l->broker->options.offsets, &progress) == CMQ_OFFSETS_NONE) {
        /* Nothing is kept for a queue that never had a message: it is young when it has one, and read from its
         * first. */
        const int64_t max = queue != NULL ? cmq_queue_max(queue, a->confirmed) : 0;
        if (max == 0 && (a->wait.init == CMQ_POP_INIT_MIN || !cmq_pop_service_options_of(a->pops)->begin_late)) return;
        popped->cost += CMQ_POP_COST_BEGIN;
        status = cmq_offsets_begin(l->broker->options.offsets, &progress,
                                   first_offset(l, a, topic, queue_id, queue, max), cmq_broker_asker(l, a->wait.conn));
    }
    if (status == CMQ_OK) status = cmq_pop_lane_enter(cmq_pop_service_buffer(a->pops), &key, &lane);
    if (status != CMQ_OK) {
        cmq_pop_result_fail(popped, status);
        return;
    }
    pop_in_lane(l, a, popped, lane, &progress, retry, queue);
    cmq_pop_lane_leave(cmq_pop_service_buffer(a->pops), lane);
}

/* ---- a pop's way ---- */

/* The fate of a request that found nothing. */
typedef enum otherwise {
    HOLD = 0,
    STAY,        /* held: as it is */
    ANSWER       /* when all was looked at */
} otherwise;

/* A damaged queue is reported at the end: there may be others to wait for. A transient failure (a full disk, say) is
 * reported at once, so that the client retries: nothing here would wake it. */
static bool may_wait(const cmq_pop_asked *a, const cmq_pop_result *popped)
{
    return popped->failed == CMQ_OK || (popped->failed == CMQ_ERR_CORRUPT && a->wait.queue_id < 0);
}

static void answer_nothing(cmq_broker_loop *l, const cmq_pop_asked *a, cmq_pop_result *popped, cmq_pop_polling polling)
{
    if (polling == CMQ_POP_HELD) return;
    if (polling == CMQ_POP_TIMEOUT && popped->failed != CMQ_OK)
        cmq_pop_refuse(l, a, cmq_broker_code_of(popped->failed), "%s", popped->failure);
    else
        cmq_pop_result_answer(popped, l, a,
                              polling == CMQ_POP_FULL ? CMQ_RESPONSE_POLLING_FULL : CMQ_RESPONSE_POLLING_TIMEOUT);
}

/* True: answered, or held now. */
static bool collect(cmq_broker_loop *l, cmq_pop_asked *a, otherwise if_none, int64_t *free_ms_out)
{
    cmq_conn *conn = cmq_loop_conn(l->loop, a->wait.conn);
    cmq_pop_result popped;
    *free_ms_out = INT64_MAX;
    if (conn == NULL) return true;   /* nobody is there to be given anything */
    cmq_pop_result_begin(&popped, a->wait.max_messages < 1 ? 1 : (uint32_t)a->wait.max_messages);
    a->revive_queue = a->wait.order ? CMQ_POP_REVIVE_ORDER : cmq_pop_service_next_revive_queue(a->pops);
    cmq_pop_walk(l, a, &popped, pop_queue);
    *free_ms_out = popped.free_ms;
    const bool may_take = popped.failed == CMQ_OK || popped.failed == CMQ_ERR_CORRUPT;
    const bool waits = popped.count == 0 && may_wait(a, &popped), goes_on = waits && cmq_pop_goes_on(l, a);
    /* Where others have not looked, there may be more for them. */
    const bool rest = (may_take && popped.rest > popped.limited) || a->wait.place.rest ||
                      (popped.count > 0 && a->wait.place.section != 0);
    bool done = true;
    a->wait.place.rest = goes_on && rest;
    if (popped.count > 0) {
        cmq_pop_result_answer(&popped, l, a, CMQ_RESPONSE_SUCCESS);
    } else if (waits && a->held && (goes_on || if_none == STAY)) {
        done = false;
    } else {
        answer_nothing(l, a, &popped,
                       waits && (goes_on || if_none == HOLD) ? cmq_pop_hold(l, conn, a, popped.free_ms)
                                                             : CMQ_POP_TIMEOUT);
    }
    if (rest && !goes_on) cmq_pop_notify_rest(l, a->topic->name, a->group->name, a->wait.queue_id);
    cmq_pop_result_end(&popped);
    return done;
}

bool cmq_pop_run(cmq_broker_loop *l, cmq_pop_asked *a, bool last, int64_t *free_ms_out)
{
    return !cmq_pop_check(l, a) || collect(l, a, last ? ANSWER : STAY, free_ms_out);
}

/* The request's own expression; NULL in the wait: everything passes. */
static bool take_expression(cmq_broker_loop *l, cmq_pop_asked *a, const cmq_pop_header *header)
{
    if (header->expression.bytes == 0 || cmq_slice_equal(header->expression, CMQ_NAME("*"))) return true;
    const cmq_slice type = header->expression_type;
    const bool is_sql = cmq_slice_equal(type, CMQ_NAME("SQL92"));
    if (type.bytes > 0 && !is_sql && !cmq_slice_equal(type, CMQ_NAME("TAG"))) {
        cmq_pop_refuse(l, a, CMQ_RESPONSE_SUBSCRIPTION_PARSE_FAILED,
                       "parse the consumer's subscription failed: the broker does not filter messages by %.*s",
                       cmq_shown(type), (const char *)type.data);
        return false;
    }
    if (is_sql && !l->broker->options.property_filter) {
        cmq_pop_refuse(l, a, CMQ_RESPONSE_SYSTEM_ERROR, CMQ_NO_PROPERTY_FILTER);
        return false;
    }
    const cmq_status status = is_sql ? cmq_select_filter(l, header->expression, &a->wait.filter)
                                     : cmq_filter_parse(header->expression, &a->wait.filter);
    if (status == CMQ_OK) return true;
    cmq_pop_refuse(l, a, CMQ_RESPONSE_SUBSCRIPTION_PARSE_FAILED, "parse the consumer's subscription failed: %s",
                   cmq_last_error()->text);
    return false;
}

static int64_t within(int64_t number, int64_t most) { return number < 0 ? 0 : number > most ? most : number; }

bool cmq_pop_asked_begin(cmq_broker_loop *l, cmq_conn *conn, const cmq_command *command, bool again,
                         cmq_pop_header *header, cmq_pop_asked *a, cmq_net_verdict *verdict_out)
{
    if (cmq_pop_header_read(command, header) != CMQ_OK) {
        cmq_broker_answer(conn, command, CMQ_RESPONSE_SYSTEM_ERROR, "%s", cmq_last_error()->text);
        *verdict_out = CMQ_NET_DONE;
        return false;
    }
    cmq_tables_reader *tables = cmq_broker_tables(l);
    const int64_t poll_ms = within(header->poll_ms, CMQ_POP_MS_MAX);
    *a = (cmq_pop_asked){
        .pops = l->broker->options.pops,
        .wait = {.topic = header->topic,
                 .group = header->group,
                 .attempt = header->attempt,
                 .queue_id = header->queue_id < 0 ? -1 : header->queue_id,
                 .code = command->code,
                 .opaque = command->opaque,
                 .max_messages = header->max_messages,
                 .init = header->init,
                 .format = command->format,
                 .invisible_ms = header->invisible_ms,
                 .conn = cmq_conn_id_of(conn),
                 .order = header->order},
        .oneway = (command->flag & CMQ_COMMAND_ONEWAY) != 0,
        .arrived = -1,
        .topic = cmq_tables_topic(tables, header->topic),
        .group = cmq_tables_group(tables, header->group),
    };
    a->now_ms = a->pops != NULL ? cmq_pop_service_now_ms(a->pops) : 0;
    /* A client whose clock goes before ours gives up no later than its poll time from now. */
    const int64_t born_ms = header->born_ms <= 0 || header->born_ms > a->now_ms ? a->now_ms : header->born_ms;
    a->wait.expires_ns = cmq_pop_after_ms(l, born_ms + poll_ms - a->now_ms);
    *verdict_out = CMQ_NET_CONTROL;   /* the group is made there, if groups make themselves */
    return a->group != NULL || again;
}

cmq_net_verdict cmq_pop_request(cmq_broker_loop *l, cmq_conn *conn, const cmq_command *command, bool again)
{
    cmq_pop_header header;
    cmq_pop_asked a;
    cmq_net_verdict verdict;
    if (!cmq_pop_asked_begin(l, conn, command, again, &header, &a, &verdict)) return verdict;
    /* The messages of this turn's sends must be found. */
    cmq_send_flush_run(l);
    cmq_pop_ack_run_flush(l);
    cmq_bump(&l->counters.pops, 1);
    if (a.oneway) return CMQ_NET_DONE;   /* one that nobody waits for takes nothing */
    int64_t free_ms;
    if (cmq_pop_check(l, &a) && take_expression(l, &a, &header))
        (void)collect(l, &a, header.poll_ms > 0 ? HOLD : ANSWER, &free_ms);
    cmq_filter_release(a.wait.filter);
    return CMQ_NET_DONE;
}
