/* cmq_pull: pulls (11, 361): checked, answered from the mapped log, or held.
 *
 * Per pull that finds: the queue's units by the tag scan, then each record copied once, from the map into the
 * connection's output: a pinned segment per stretch of records, one reservation for header and body. Records that lie
 * behind one another, as a batch's do, are not copied where they are LEND_BYTES and more: the socket takes them from
 * the map, and the pin goes when it has. Nothing is allocated but the output; no lock, no clock.
 *
 * A pull runs once, or is held and runs again when something came, its time is over, or its group's subscriptions
 * changed; the second time is the last, it is answered whatever comes.
 *
 * Source: consumption specification 3.2, 3.3, remoting specification 2.4; upstream's PullMessageProcessor.
 */
#include "broker/loop/cmq_broker_internal.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/cmq_assert.h"
#include "broker/pop/record/cmq_pop_handle.h"
#include "broker/tables/cmq_system_topics.h"
#include "store/cmq_store_internal.h"
#include "wire/cmq_pull_header.h"

#define ANSWER_BYTES 512u
#define LEND_BYTES 16384u

/* Bits of a pull's sysFlag. */
enum {
    PULL_COMMIT = 1,
    PULL_SUSPEND = 2,
    PULL_SUBSCRIPTION = 4,
    PULL_LITE = 16
};

/* The part of a topic that was not allowed (forbiddenType). */
enum {
    FORBIDDEN_NOT = 0,
    FORBIDDEN_BROKER = 1,
    FORBIDDEN_GROUP = 2,
    FORBIDDEN_TOPIC = 3,
    FORBIDDEN_BROADCAST = 4,
    FORBIDDEN_SUBSCRIPTION = 5
};

/* One pull, new or held, and what was found out about it. */
typedef struct pull {
    cmq_held_pull held;              /* its filter: the request's own */
    bool oneway;
    bool is_new;                     /* not held: it takes its steps from those of the turn's new requests */
    const cmq_topic_entry *topic;
    const cmq_group_entry *group;
    const cmq_filter *filter;        /* that counts */
} pull;

/* The result of a look into the queue. */
typedef struct pulled {
    int32_t code;
    bool reset;                      /* it reports one */
    const char *status;              /* the remark */
    int64_t next, min, max;
    uint32_t count;                  /* units to send */
    uint64_t bytes;
    uint32_t messages;
    cmq_queue *queue;                /* of the units */
} pulled;

/* ---- answers ---- */

static void set(pulled *got, int32_t code, const char *status, int64_t next)
{
    got->code = code;
    got->status = status;
    got->next = next;
}

static void answer_text(cmq_broker_loop *l, const pull *p, int32_t code, int32_t forbidden, const char *text)
{
    cmq_conn *conn = p->oneway ? NULL : cmq_loop_conn(l->loop, p->held.conn);
    if (conn == NULL) return;
    const size_t bytes = ANSWER_BYTES + strlen(text) * 6;
    uint8_t *out = cmq_conn_reserve(conn, bytes);
    if (out == NULL) return;
    cmq_command_writer writer;
    cmq_command_begin(&writer, out, bytes, p->held.format, code, p->held.opaque, CMQ_COMMAND_RESPONSE,
                      cmq_slice_of_text(text));
    if (forbidden != FORBIDDEN_NOT) cmq_command_add_i64(&writer, CMQ_NAME("forbiddenType"), forbidden);
    const size_t used = cmq_command_end(&writer, 0);
    CMQ_ASSERT(used <= bytes);
    cmq_conn_commit(conn, used);
}

static void answer_refused(cmq_broker_loop *l, const pull *p, int32_t code, int32_t forbidden, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
static void answer_refused(cmq_broker_loop *l, const pull *p, int32_t code, int32_t forbidden, const char *format, ...)
{
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    answer_text(l, p, code, forbidden, text);
}

static void unpin(void *segment) { cmq_segment_unpin(segment); }

/* Pin the records where they lie behind one another and are enough to be sent from there; NULL: copy them. */
static cmq_segment *pin_stretch(cmq_broker_loop *l, const pulled *got, const uint8_t **data_out)
{
    if (got->bytes < LEND_BYTES) return NULL;
    const cmq_unit *first = &l->units[0], *last = &l->units[got->count - 1];
    if ((uint64_t)(last->phy + last->bytes - first->phy) != got->bytes) return NULL;
    cmq_transfer_place place = {0};
    const uint8_t *record;
    int64_t at = first->phy;
    bool sound = true;
    for (uint32_t i = 0; i < got->count && sound; i++) {
        const cmq_unit *unit = &l->units[i];
        sound = unit->phy == at && cmq_transfer_reach(l, &place, got->queue, unit, &record) == CMQ_OK &&
                place.start == first->phy;
        at += unit->bytes;
    }
    *data_out = place.data;
    if (sound) return place.segment;
    cmq_transfer_leave(&place);   /* copying says why */
    return NULL;
}

static int is_there(void *context, const cmq_unit *unit, cmq_status *status)
{
    (void)status;
    return unit->phy < 0 || unit->phy >= *(const int64_t *)context ? 0 : -1;
}

/* Units are in order: one below the log's min behind one that is not is damaged. */
static bool follows_live(cmq_queue *queue, int64_t from, int64_t confirmed, int64_t log_min)
{
    cmq_unit before;
    uint32_t count = 0;
    int64_t next;
    return cmq_queue_read_back(queue, from, confirmed, &before, 1, &count, &next) == CMQ_OK && count == 1 &&
           before.phy >= log_min;
}

/* Were the records deleted between the look and the copy? Then the client asks again, from the first that is left. */
static bool were_removed(cmq_broker_loop *l, const pull *p, pulled *got)
{
    cmq_queue *queue = cmq_queues_find(l->broker->queues, p->topic->name, p->held.queue_id);
    const int64_t from = p->held.from, phy = l->units[0].phy;
    int64_t next = from;
    if (queue != NULL) {
        int64_t log_min = cmq_log_min(l->broker->store->log);
        const int64_t confirmed = cmq_store_confirmed(l->broker->store);
        if (phy >= log_min || follows_live(queue, from, confirmed, log_min)) return false;
        if (cmq_queue_search(queue, from, got->max, confirmed, is_there, &log_min, &next) != CMQ_OK || next <= from)
            return false;
    }
    got->count = 0;
    got->bytes = 0;
    set(got, CMQ_RESPONSE_PULL_RETRY_IMMEDIATELY, "MESSAGE_WAS_REMOVING", next);
    return true;
}

/* The answer has the first units only; the client asks for the others with its next pull. */
static void keep_first(const cmq_broker_loop *l, pulled *got, uint32_t count)
{
    got->next = l->units[count].offset;
    got->count = count;
    got->bytes = got->messages = 0;
    for (uint32_t i = 0; i < count; i++) {
        got->bytes += (uint64_t)l->units[i].bytes;
        got->messages += (uint32_t)l->units[i].count;
    }
}

static void answer_pulled(cmq_broker_loop *l, const pull *p, pulled *got)
{
    cmq_conn *conn = p->oneway ? NULL : cmq_loop_conn(l->loop, p->held.conn);
    if (conn == NULL) return;
    const uint8_t *stretch = NULL;
    cmq_segment *pinned = pin_stretch(l, got, &stretch);
    uint8_t *out = cmq_conn_reserve(conn, ANSWER_BYTES + (pinned == NULL ? got->bytes : 0));
    if (out == NULL) {
        if (pinned != NULL) cmq_segment_unpin(pinned);
        return;
    }
    cmq_command_writer writer;
    cmq_command_begin(&writer, out, ANSWER_BYTES, p->held.format, got->code, p->held.opaque, CMQ_COMMAND_RESPONSE,
                      cmq_slice_of_text(got->status));
    cmq_command_add_i64(&writer, CMQ_NAME("nextBeginOffset"), got->next);
    cmq_command_add_i64(&writer, CMQ_NAME("minOffset"), got->min);
    cmq_command_add_i64(&writer, CMQ_NAME("maxOffset"), got->max);
    cmq_command_add_i64(&writer, CMQ_NAME("suggestWhichBrokerId"), p->group->broker_id);
    cmq_command_add_i64(&writer, CMQ_NAME("topicSysFlag"), p->topic->sys_flag);
    cmq_command_add_i64(&writer, CMQ_NAME("groupSysFlag"), p->group->sys_flag);
    const size_t header = cmq_command_end(&writer, got->bytes);
    CMQ_ASSERT(header <= ANSWER_BYTES);
    const uint32_t copied =
        pinned == NULL ? cmq_transfer_copy(l, got->queue, l->units, got->count, out + header) : got->count;
    if (copied < got->count) {
        if (copied == 0 && !were_removed(l, p, got)) {
            answer_text(l, p, CMQ_RESPONSE_SYSTEM_ERROR, FORBIDDEN_NOT, cmq_last_error()->text);
            return;
        }
        if (copied > 0) keep_first(l, got, copied);
        answer_pulled(l, p, got);
        return;
    }
    cmq_conn_commit(conn, header + (pinned == NULL ? got->bytes : 0));
    if (pinned != NULL) cmq_conn_lend(conn, (cmq_slice){.data = stretch, .bytes = got->bytes}, unpin, pinned);
    if (got->count == 0) return;
    cmq_bump(&l->counters.pulls_found, 1);
    cmq_bump(&l->counters.messages_out, got->messages);
    cmq_bump(&l->counters.message_bytes_out, got->bytes);
    cmq_traffic_count(l->traffic, p->topic->name, p->group->name, got->messages, got->bytes);
}

/* ---- checks, in upstream's order ---- */

/* The group's subscription of this topic, or for the retry topic of popped messages, of the topic that they were popped
 * from; NULL. Members that have no queue of a topic do not name its retry topic (upstream's clients), and the group has
 * the subscriptions of the member that spoke last. */
static const cmq_subscription *find_subscription(const cmq_consumer_entry *consumer, const pull *p)
{
    cmq_slice popped;
    const cmq_slice topic = p->held.topic;
    const cmq_subscription *own = cmq_consumer_subscription(consumer, topic);
    if (own != NULL && (own->sub_version >= p->held.sub_version || !cmq_filter_is_all(own->filter))) return own;
    if (cmq_pop_retry_of(topic) == CMQ_POP_NORMAL || cmq_pop_normal_topic(topic, p->held.group, &popped) != CMQ_OK ||
        popped.bytes == topic.bytes)
        return own;
    const cmq_subscription *normal = cmq_consumer_subscription(consumer, popped);
    return normal != NULL ? normal : own;
}

static bool check_property_filter(cmq_broker_loop *l, const pull *p)
{
    if (l->broker->options.property_filter) return true;
    answer_text(l, p, CMQ_RESPONSE_SYSTEM_ERROR, FORBIDDEN_NOT, CMQ_NO_PROPERTY_FILTER);
    return false;
}

/* Of a subscription by another expression than TAG: is it compiled, and not an older one? */
static bool check_filter_data(cmq_broker_loop *l, const pull *p, const cmq_subscription *subscription)
{
    if (subscription->filter_version == CMQ_FILTER_NO_DATA) {
        answer_text(l, p, CMQ_RESPONSE_FILTER_DATA_NOT_EXIST, FORBIDDEN_NOT,
                    "The broker's consumer filter data is not exist!Your expression may be wrong!");
    } else if (subscription->filter_version < p->held.sub_version) {
        answer_text(l, p, CMQ_RESPONSE_FILTER_DATA_NOT_LATEST, FORBIDDEN_NOT,
                    "the consumer's consumer filter data not latest");
    } else {
        return check_property_filter(l, p);
    }
    return false;
}

/* By what the group's consumers have subscribed. */
static bool take_subscription(cmq_broker_loop *l, pull *p)
{
    const cmq_consumer_entry *consumer = cmq_tables_consumer(l->reader, p->held.group);
    if (consumer == NULL) {
        answer_text(l, p, CMQ_RESPONSE_SUBSCRIPTION_NOT_EXIST, FORBIDDEN_NOT,
                    "the consumer's group info not exist: no consumer of it has sent a heartbeat");
        return false;
    }
    if (consumer->model == CMQ_MODEL_BROADCASTING && !p->group->consume_broadcast_enable) {
        answer_refused(l, p, CMQ_RESPONSE_NO_PERMISSION, FORBIDDEN_BROADCAST,
                       "the consumer group[%.*s] can not consume by broadcast way", cmq_shown(p->held.group),
                       (const char *)p->held.group.data);
        return false;
    }
    const cmq_subscription *subscription = find_subscription(consumer, p);
    if (subscription != NULL && subscription->read_forbidden) {
        answer_refused(l, p, CMQ_RESPONSE_NO_PERMISSION, FORBIDDEN_SUBSCRIPTION,
                       "the consumer group[%.*s] is forbidden for topic[%.*s]", cmq_shown(p->held.group),
                       (const char *)p->held.group.data, cmq_shown(p->held.topic), (const char *)p->held.topic.data);
        return false;
    }
    if (subscription == NULL) {
        answer_text(l, p, CMQ_RESPONSE_SUBSCRIPTION_NOT_EXIST, FORBIDDEN_NOT,
                    "the consumer's subscription not exist: its group has not subscribed this topic");
        return false;
    }
    if (!cmq_slice_equal(subscription->topic, p->held.topic)) {
        p->filter = cmq_filter_all();   /* popped messages passed the topic's filter then */
        return true;
    }
    if (subscription->sub_version < p->held.sub_version) {
        answer_text(l, p, CMQ_RESPONSE_SUBSCRIPTION_NOT_LATEST, FORBIDDEN_NOT,
                    "the consumer's subscription not latest");
        return false;
    }
    if (subscription->type != CMQ_EXPRESSION_TAG && !check_filter_data(l, p, subscription)) return false;
    p->filter = subscription->filter;
    return true;
}

static bool check(cmq_broker_loop *l, pull *p)
{
    const cmq_held_pull *held = &p->held;
    if ((cmq_tables_perm(l->reader) & CMQ_PERM_READ) == 0) {
        answer_refused(l, p, CMQ_RESPONSE_NO_PERMISSION, FORBIDDEN_BROKER,
                       "the broker[%s] pulling message is forbidden", l->broker->broker_ip);
    } else if (held->code == CMQ_REQUEST_LITE_PULL_MESSAGE && l->broker->options.lite_pull_off) {
        answer_refused(l, p, CMQ_RESPONSE_NO_PERMISSION, FORBIDDEN_BROKER,
                       "the broker[%s] for lite pull consumer is forbidden", l->broker->broker_ip);
    } else if (p->group == NULL) {
        answer_refused(l, p, CMQ_RESPONSE_SUBSCRIPTION_GROUP_NOT_EXIST, FORBIDDEN_NOT,
                       "subscription group [%.*s] does not exist", cmq_shown(held->group),
                       (const char *)held->group.data);
    } else if (!p->group->consume_enable) {
        answer_refused(l, p, CMQ_RESPONSE_NO_PERMISSION, FORBIDDEN_GROUP, "subscription group no permission, %.*s",
                       cmq_shown(held->group), (const char *)held->group.data);
    } else if (p->topic == NULL) {
        answer_refused(l, p, CMQ_RESPONSE_TOPIC_NOT_EXIST, FORBIDDEN_NOT, "topic[%.*s] not exist, apply first please!",
                       cmq_shown(held->topic), (const char *)held->topic.data);
    } else if ((p->topic->perm & CMQ_PERM_READ) == 0) {
        answer_refused(l, p, CMQ_RESPONSE_NO_PERMISSION, FORBIDDEN_TOPIC,
                       "the topic[%.*s] pulling message is forbidden", cmq_shown(held->topic),
                       (const char *)held->topic.data);
    } else if (held->queue_id < 0 || held->queue_id >= p->topic->read_queues) {
        answer_refused(l, p, CMQ_RESPONSE_INVALID_PARAMETER, FORBIDDEN_NOT,
                       "queueId[%d] is illegal, topic:[%.*s] topicConfig.readQueueNums:[%d]", held->queue_id,
                       cmq_shown(held->topic), (const char *)held->topic.data, p->topic->read_queues);
    } else if (held->filter != NULL) {
        p->filter = held->filter;
        return true;
    } else {
        return take_subscription(l, p);
    }
    return false;
}

/* ---- looking ---- */

/* Take as many of the units found as fit. Sets next behind the last that is taken. */
static void take_units(cmq_broker_loop *l, const pull *p, pulled *got, uint32_t found, int64_t scanned,
                       int64_t confirmed)
{
    const cmq_transfer fit =
        cmq_transfer_fit(l, l->units, found, (uint32_t)p->held.max_messages, p->held.max_bytes, confirmed);
    got->count = fit.count;
    got->bytes = fit.bytes;
    got->messages = fit.messages;
    set(got, CMQ_RESPONSE_SUCCESS, "FOUND", fit.count < found ? l->units[fit.count].offset : scanned);
}

static cmq_status look(cmq_broker_loop *l, const pull *p, pulled *got)
{
    const cmq_broker *broker = l->broker;
    const int64_t from = p->held.from;
    const int64_t confirmed = cmq_store_confirmed(broker->store);
    cmq_queue *queue = cmq_queues_find(broker->queues, p->topic->name, p->held.queue_id);
    *got = (pulled){0};
    if (queue != NULL) {
        got->queue = queue;
        got->min = cmq_queue_min(queue);
        got->max = cmq_queue_max(queue, confirmed);
    }
    if (queue == NULL || got->max == 0) {
        set(got, from != 0 ? CMQ_RESPONSE_PULL_OFFSET_MOVED : CMQ_RESPONSE_PULL_NOT_FOUND, "NO_MESSAGE_IN_QUEUE", 0);
        return CMQ_OK;
    }
    if (from < got->min) {
        set(got, CMQ_RESPONSE_PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", got->min);
        return CMQ_OK;
    }
    if (from >= got->max) {
        if (from == got->max)
            set(got, CMQ_RESPONSE_PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", from);
        else
            set(got, CMQ_RESPONSE_PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", got->max);
        return CMQ_OK;
    }
    uint32_t found = 0;
    const uint32_t wanted = (uint32_t)p->held.max_messages;
    int64_t next = from;
    const uint32_t capacity = wanted < CMQ_PULL_UNITS_MAX ? wanted : CMQ_PULL_UNITS_MAX;
    uint32_t steps = p->is_new ? cmq_select_new_steps(l) : CMQ_STEPS_PER_REQUEST;
    const uint32_t steps_before = steps;
    const cmq_status status =
        cmq_select_units(l, queue, p->filter, from, confirmed, capacity, &steps, &found, &next);
    if (p->is_new) l->new_steps -= steps_before - steps;
    if (status != CMQ_OK) return status;
    if (found == 0)
        set(got, CMQ_RESPONSE_PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE", next);
    else
        take_units(l, p, got, found, next, confirmed);
    return CMQ_OK;
}

/* ---- a pull's way ---- */

/* Hold it, if it may be; false: answer. */
static bool hold(cmq_broker_loop *l, cmq_conn *conn, pull *p, int64_t suspend_ms)
{
    const cmq_broker_options *o = &l->broker->options;
    if (o->long_polling_off) suspend_ms = o->short_polling_ms;
    if (suspend_ms > o->suspend_ms_max) suspend_ms = o->suspend_ms_max;
    if (suspend_ms <= 0) return false;
    cmq_hold held;
    const int64_t deadline = cmq_loop_now_ns(l->loop) + suspend_ms * INT64_C(1000000);
    if (cmq_holds_add(l->holds, &p->held, p->filter, deadline, cmq_conn_slot(conn), &held) != CMQ_OK) {
        cmq_bump(&l->counters.hold_refused, 1);
        return false;
    }
    p->held.filter = NULL;   /* the hold's now */
    cmq_conn_keep(conn);
    cmq_bump(&l->counters.held, 1);
    cmq_bump(&l->counters.holds_now, 1);
    cmq_wake_watch(l, p->topic->name, p->held.queue_id);
    return true;
}

static void note_progress(cmq_broker_loop *l, const pull *p, const pulled *got, int64_t committed)
{
    const cmq_offset_key key = {.group = p->held.group, .topic = p->held.topic, .queue_id = p->held.queue_id};
    /* A queue that never had a message has no progress; the progress of reserved groups is the broker's alone. */
    if ((got->max == 0 && committed < 0) || cmq_group_is_reserved(key.group)) return;
    /* Progress that cannot be kept (its table is full, a reset waits) is no reason to keep messages back. */
    const cmq_status status =
        cmq_offsets_pulled(l->broker->options.offsets, &key, got->next, committed, cmq_broker_asker(l, p->held.conn));
    (void)status;
}

static cmq_status read_pull(cmq_broker_loop *l, cmq_conn *conn, const cmq_command *command, pull *p,
                            cmq_pull_header *header)
{
    const cmq_status status = cmq_pull_header_read(command, header);
    if (status != CMQ_OK) return status;
    const cmq_broker_options *o = &l->broker->options;
    const int32_t most =
        o->transfer_count_memory > o->transfer_count_disk ? o->transfer_count_memory : o->transfer_count_disk;
    p->held.group = header->group;
    p->held.topic = header->topic;
    p->held.queue_id = header->queue_id;
    p->held.from = header->queue_offset;
    p->held.sub_version = header->sub_version;
    p->held.max_messages = header->max_messages < 1 ? 1 : header->max_messages > most ? most : header->max_messages;
    p->held.max_bytes = header->max_bytes < 1 ? INT32_MAX : header->max_bytes;
    p->held.conn = cmq_conn_id_of(conn);
    p->held.code = command->code;
    return CMQ_OK;
}

/* The request's own expression. */
static bool take_expression(cmq_broker_loop *l, pull *p, const cmq_pull_header *header)
{
    if ((header->sys_flag & PULL_SUBSCRIPTION) == 0) return true;
    const cmq_slice type = header->expression_type;
    const bool is_sql = cmq_slice_equal(type, CMQ_NAME("SQL92"));
    if (type.bytes > 0 && !is_sql && !cmq_slice_equal(type, CMQ_NAME("TAG"))) {
        answer_refused(l, p, CMQ_RESPONSE_SUBSCRIPTION_PARSE_FAILED, FORBIDDEN_NOT,
                       "The broker does not support consumer to filter message by %.*s", cmq_shown(type),
                       (const char *)type.data);
        return false;
    }
    if (is_sql && !check_property_filter(l, p)) return false;
    const cmq_status status = is_sql ? cmq_select_filter(l, header->subscription, &p->held.filter)
                                     : cmq_filter_parse(header->subscription, &p->held.filter);
    if (status == CMQ_OK) return true;
    answer_text(l, p, CMQ_RESPONSE_SUBSCRIPTION_PARSE_FAILED, FORBIDDEN_NOT, cmq_last_error()->text);
    return false;
}

/* Look into the queue, or report a pending reset; false: failed, and answered. `begins`: where the client shows that it
 * begins, CMQ_OFFSETS_NONE if its place may be from before the reset. */
static bool find(cmq_broker_loop *l, const pull *p, int64_t begins, pulled *got)
{
    const cmq_offset_key key = {.group = p->held.group, .topic = p->held.topic, .queue_id = p->held.queue_id};
    if (look(l, p, got) != CMQ_OK) {
        answer_text(l, p, CMQ_RESPONSE_SYSTEM_ERROR, FORBIDDEN_NOT, cmq_last_error()->text);
        return false;
    }
    const int64_t reset =
        cmq_offsets_reset_for_pull(l->broker->options.offsets, &key, begins, cmq_broker_asker(l, p->held.conn));
    if (reset == CMQ_OFFSETS_NONE) return true;
    got->reset = true;
    got->count = 0;
    got->bytes = 0;
    set(got, CMQ_RESPONSE_PULL_OFFSET_MOVED, "OFFSET_RESET", reset);
    return true;
}

static void run_pull(cmq_broker_loop *l, cmq_conn *conn, pull *p, const cmq_pull_header *header)
{
    pulled got;
    const bool brings_commit = (header->sys_flag & PULL_COMMIT) != 0;
    /* A client that commits another place than it asks for has messages of before in its hands. */
    const int64_t begins = brings_commit && header->commit_offset != p->held.from ? CMQ_OFFSETS_NONE : p->held.from;
    if (!check(l, p) || !find(l, p, begins, &got)) return;
    /* A client that learns of a reset commits here where it was before. Upstream takes that, and the reset is lost if
     * the client ends now. */
    const bool commits = brings_commit && !got.reset;
    note_progress(l, p, &got, commits ? header->commit_offset : CMQ_OFFSETS_NONE);
    const bool may_hold =
        got.code == CMQ_RESPONSE_PULL_NOT_FOUND && (header->sys_flag & PULL_SUSPEND) != 0 && !p->oneway;
    if (may_hold && hold(l, conn, p, header->suspend_ms)) return;
    answer_pulled(l, p, &got);
}

cmq_net_verdict cmq_pull_request(cmq_broker_loop *l, cmq_conn *conn, const cmq_command *command, bool again)
{
    pull p = {.held = {.opaque = command->opaque, .format = command->format},
              .oneway = (command->flag & CMQ_COMMAND_ONEWAY) != 0,
              .is_new = true};
    p.held.conn = cmq_conn_id_of(conn);
    cmq_pull_header header;
    if (read_pull(l, conn, command, &p, &header) != CMQ_OK) {
        answer_text(l, &p, CMQ_RESPONSE_SYSTEM_ERROR, FORBIDDEN_NOT, cmq_last_error()->text);
        return CMQ_NET_DONE;
    }
    cmq_tables_reader *tables = cmq_broker_tables(l);
    p.group = cmq_tables_group(tables, p.held.group);
    p.topic = cmq_tables_topic(tables, p.held.topic);
    if (p.group == NULL && !again) return CMQ_NET_CONTROL;   /* made there, if groups make themselves */
    /* The messages of this turn's sends must be found. */
    cmq_send_flush_run(l);
    cmq_bump(&l->counters.pulls, 1);
    if (take_expression(l, &p, &header)) run_pull(l, conn, &p, &header);
    cmq_filter_release(p.held.filter);
    return CMQ_NET_DONE;
}

/* ---- held ones ---- */

void cmq_pull_end_hold(cmq_broker_loop *l, cmq_hold held)
{
    pull p = {0};
    cmq_holds_get(l->holds, held, &p.held);
    cmq_tables_reader *tables = cmq_broker_tables(l);
    p.group = cmq_tables_group(tables, p.held.group);
    p.topic = cmq_tables_topic(tables, p.held.topic);
    pulled got;
    if (check(l, &p) && find(l, &p, CMQ_OFFSETS_NONE, &got)) {   /* it was made before a reset that is pending now */
        /* Messages came that did not match. */
        if (p.held.moved && got.code == CMQ_RESPONSE_PULL_NOT_FOUND)
            set(&got, CMQ_RESPONSE_PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE", got.next);
        note_progress(l, &p, &got, CMQ_OFFSETS_NONE);
        answer_pulled(l, &p, &got);
    }
    cmq_holds_remove(l->holds, held);   /* last: the names that were used are its own */
    cmq_filter_release(p.held.filter);
    cmq_conn_kept_done(l->loop);
    cmq_bump(&l->counters.holds_now, UINT64_MAX);
}
