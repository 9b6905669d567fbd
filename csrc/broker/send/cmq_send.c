/* cmq_send: sends (10, 310) and clients' batches (320): checked, given their broker's properties, collected, appended.
 *
 * Per send of 128 B with JSON header: its fields looked at once, its properties once more for the few names that change
 * its way, then two slices and 100 B of the run. Copied: nothing until the record is made. System calls, locks, clocks,
 * allocations: none per send; the append has one each per run. A run ends with the turn, or when a send comes that is
 * not like it (topic, flags, client's address, delay).
 *
 * The control thread gets sends to a topic that does not exist (it makes it, and gives the send back), and to %RETRY%
 * topics (which may become dead letters; it gives back those that do not).
 *
 * Source: consumption specification 3.9, 3.7.2, remoting specification 2.2, 4.1 to 4.3; upstream's
 *         SendMessageProcessor.
 */
#include "broker/loop/cmq_broker_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/cmq_assert.h"
#include "broker/send/cmq_recall.h"
#include "broker/send/cmq_send_batch.h"
#include "broker/send/cmq_unique_id.h"
#include "broker/tables/cmq_system_topics.h"
#include "store/record/cmq_property.h"
#include "wire/cmq_command.h"
#include "wire/cmq_send_header.h"

/* ---- properties ---- */

/* The properties of a message that change its way. */
typedef struct send_traits {
    cmq_slice unique;
    cmq_slice delay;
    cmq_timer_asked timer;
    int32_t level;        /* of DELAY; 0: not delayed */
    bool half;            /* TRAN_MSG=true … */
    bool retried;         /* … of a committed message that an old consumer sends back */
    bool rebuild;         /* has a pair that we add: those go */
    bool no_wait;         /* WAIT=false */
} send_traits;

static bool is_name(cmq_slice name, const char *text, size_t bytes)
{
    return name.bytes == bytes && memcmp(name.data, text, bytes) == 0;
}
#define IS(name, text) is_name(name, text, sizeof(text) - 1)

/* Pairs that the broker adds, so that a sender may not give them. */
static bool is_dropped(cmq_slice name) { return IS(name, "MSG_REGION") || IS(name, "TRACE_ON") || IS(name, "CLUSTER"); }

/* … and what a delay level makes void. */
static bool is_time(cmq_slice name)
{
    return IS(name, "TIMER_DELAY_SEC") || IS(name, "TIMER_DELAY_MS") || IS(name, "TIMER_DELIVER_MS");
}

static send_traits look_at(cmq_slice properties, const cmq_delay_levels *levels)
{
    send_traits traits = {0};
    cmq_slice rest = properties, name, value;
    while (cmq_property_next(&rest, &name, &value)) {
        if (IS(name, "UNIQ_KEY"))
            traits.unique = value;
        else if (IS(name, "DELAY"))
            traits.delay = value;
        else if (IS(name, "WAIT"))
            traits.no_wait = IS(value, "false");
        else if (IS(name, "TRAN_MSG"))
            traits.half = cmq_field_bool(value);
        else if (is_dropped(name))
            traits.rebuild = true;
        else
            cmq_timer_ask(&traits.timer, name, value);
    }
    if (traits.delay.bytes > 0) traits.level = cmq_delay_level(levels, traits.delay);
    if (traits.level > 0 && cmq_timer_is_asked(&traits.timer)) traits.rebuild = true;
    return traits;
}

/* Copy the pairs that stay to `into`, which has as much room as properties, and one byte more. */
static cmq_slice without_dropped(cmq_slice properties, bool without_time, uint8_t *into)
{
    cmq_slice rest = properties, name, value;
    uint8_t *at = into;
    while (cmq_property_next(&rest, &name, &value))
        if (!is_dropped(name) && !(without_time && is_time(name))) at = cmq_property_write(at, name, value);
    return (cmq_slice){.data = into, .bytes = (size_t)(at - into)};
}

/* ---- the run ---- */

static void begin_run(cmq_broker_loop *l, const cmq_append *like)
{
    cmq_send_run *run = &l->run;
    run->append = *like;
    run->append.bodies = (cmq_column){.kind = CMQ_COLUMN_SLICES, .slices = run->bodies};
    run->append.properties = (cmq_column){.kind = CMQ_COLUMN_SLICES, .slices = run->properties};
    run->append.queue_ids = run->queue_ids;
    run->append.born_timestamps = run->born_ms;
    run->append.queue_offsets_out = run->queue_offsets;
    run->append.physical_offsets_out = run->physical_offsets;
}

static bool same_host(const cmq_record_host *a, const cmq_record_host *b)
{
    return a->port == b->port && a->ipv6 == b->ipv6 && memcmp(a->address, b->address, sizeof a->address) == 0;
}

static bool is_like(const cmq_send_run *run, const cmq_append *append)
{
    const cmq_record_fields *a = &run->append.common, *b = &append->common;
    return a->flag == b->flag && a->sys_flag == b->sys_flag && a->reconsume_times == b->reconsume_times &&
           cmq_slice_equal(a->topic, b->topic) && same_host(&a->born_host, &b->born_host) &&
           cmq_slice_equal(run->append.properties_more.one, append->properties_more.one);
}

void cmq_send_note_appended(cmq_broker_loop *l, cmq_slice topic, const cmq_appended *appended)
{
    if (appended->count == 0) return;
    const uint64_t bytes = (uint64_t)(appended->end - appended->first_physical_offset);
    cmq_bump(&l->counters.messages_in, appended->count);
    cmq_bump(&l->counters.message_bytes_in, bytes);
    cmq_traffic_count(l->traffic, topic, CMQ_SLICE_NONE, appended->count, bytes);
    if (l->broker->sync) cmq_flush_wait_for(l->broker, appended->end);
}

/* Half messages of one topic after another are counted at once. */
static void note_halves(cmq_broker_loop *l, const cmq_send_reply *replies, uint32_t count)
{
    for (uint32_t i = 0, end; i < count; i = end) {
        const cmq_slice topic = replies[i].half_topic;
        for (end = i + 1; end < count && replies[end].half_topic.data == topic.data;) end++;
        if (topic.data != NULL) cmq_txn_note_halves(l->broker->options.txn, topic, end - i);
    }
}

/* Append `count` sends of the run from `first` on, and answer those that are in the log. */
static cmq_status append_part(cmq_broker_loop *l, uint32_t first, uint32_t count, uint32_t *appended_out)
{
    cmq_send_run *run = &l->run;
    cmq_append append = run->append;
    cmq_appended appended = {0};
    append.count = count;
    append.bodies.slices = run->bodies + first;
    append.properties.slices = run->properties + first;
    append.queue_ids = run->queue_ids + first;
    append.born_timestamps = run->born_ms + first;
    append.queue_offsets_out = run->queue_offsets + first;
    append.physical_offsets_out = run->physical_offsets + first;
    const cmq_status status = cmq_store_append(l->broker->store, &append, &appended);
    /* first: the disk is at work while answers are made */
    cmq_send_note_appended(l, run->append.common.topic, &appended);
    for (uint32_t i = first; i < first + appended.count; i++)
        cmq_send_succeed(l, &run->replies[i], run->queue_offsets[i], &run->physical_offsets[i], 1, appended.end, false);
    note_halves(l, run->replies + first, appended.count);
    *appended_out = appended.count;
    return status;
}

static bool is_of_the_message(cmq_status status)
{
    return status == CMQ_ERR_ARGUMENT || status == CMQ_ERR_TOO_LARGE || status == CMQ_ERR_TOPIC ||
           status == CMQ_ERR_LIMIT;
}

void cmq_send_flush_run(cmq_broker_loop *l)
{
    cmq_send_run *run = &l->run;
    bool alone = false;
    for (uint32_t first = 0, appended; first < run->count; first += appended) {
        cmq_status status = append_part(l, first, alone ? 1 : run->count - first, &appended);
        first += appended;
        appended = 0;
        if (status == CMQ_OK || first == run->count) {
            alone = false;
        } else if (is_of_the_message(status) && !alone && run->count - first > 1) {
            alone = true;   /* again alone, so that the text is about it; then those behind it */
        } else if (is_of_the_message(status)) {
            cmq_send_fail(l, &run->replies[first], status);
            appended = 1;
            alone = false;
        } else {
            for (; first < run->count; first++) cmq_send_fail(l, &run->replies[first], status);
        }
    }
    run->count = 0;
    run->bytes = 0;
    run->scratch_used = 0;
}

/* `bytes` that live as long as the run; NULL when it must be flushed first. */
static uint8_t *run_scratch(cmq_send_run *run, size_t bytes)
{
    if (sizeof run->scratch - run->scratch_used < bytes) return NULL;
    uint8_t *at = run->scratch + run->scratch_used;
    run->scratch_used += bytes;
    return at;
}

/* ---- checks ---- */

static void refuse(cmq_broker_loop *l, const cmq_send_reply *reply, int32_t code, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
static void refuse(cmq_broker_loop *l, const cmq_send_reply *reply, int32_t code, const char *format, ...)
{
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    cmq_send_reply_write(l, reply, code, text);
}

static void refuse_reserved(cmq_broker_loop *l, const cmq_send_reply *reply, cmq_slice topic)
{
    refuse(l, reply, CMQ_RESPONSE_NO_PERMISSION, "Sending message to topic[%.*s] is forbidden.", cmq_shown(topic),
           (const char *)topic.data);
}

static void refuse_properties(cmq_broker_loop *l, const cmq_send_reply *reply, const cmq_send_header *header)
{
    refuse(l, reply, CMQ_RESPONSE_MESSAGE_ILLEGAL, "the properties have %zu bytes; at most %u are allowed",
           header->properties.bytes, CMQ_PROPERTY_BYTES_MAX);
}

static void refuse_queue(cmq_broker_loop *l, const cmq_send_reply *reply, const cmq_send_header *header,
                         const cmq_topic_entry *topic)
{
    const int32_t perm = topic->perm;
    refuse(l, reply, CMQ_RESPONSE_INVALID_PARAMETER,
           "request queueId[%d] is illegal, TopicConfig [topicName=%.*s, readQueueNums=%d, writeQueueNums=%d, "
           "perm=%c%c%c, topicSysFlag=%d, order=%s]",
           header->queue_id, cmq_shown(topic->name), (const char *)topic->name.data, topic->read_queues,
           topic->write_queues, (perm & CMQ_PERM_READ) != 0 ? 'R' : '-', (perm & CMQ_PERM_WRITE) != 0 ? 'W' : '-',
           (perm & CMQ_PERM_INHERIT) != 0 ? 'X' : '-', topic->sys_flag, topic->order ? "true" : "false");
}

/* Everything that does not need the message: true when it may go on. Order and codes are upstream's. */
static bool may_send(cmq_broker_loop *l, const cmq_send_reply *reply, const cmq_send_header *header,
                     const cmq_topic_entry *topic)
{
    const cmq_broker *broker = l->broker;
    if (topic->order && (cmq_tables_perm(l->reader) & CMQ_PERM_WRITE) == 0) {
        refuse(l, reply, CMQ_RESPONSE_NO_PERMISSION, "the broker[%s] sending message is forbidden", broker->broker_ip);
        return false;
    }
    if (cmq_topic_is_reserved(header->topic)) {
        refuse_reserved(l, reply, header->topic);
        return false;
    }
    if ((topic->perm & CMQ_PERM_WRITE) == 0) {
        refuse(l, reply, CMQ_RESPONSE_NO_PERMISSION, "the topic[%.*s] sending message is forbidden",
               cmq_shown(header->topic), (const char *)header->topic.data);
        return false;
    }
    const int32_t queues = topic->read_queues > topic->write_queues ? topic->read_queues : topic->write_queues;
    if (header->queue_id >= queues) {
        refuse_queue(l, reply, header, topic);
        return false;
    }
    return true;
}

static bool refuse_transaction(cmq_broker_loop *l, const cmq_send_reply *reply)
{
    refuse(l, reply, CMQ_RESPONSE_NO_PERMISSION, "the broker[%s] sending transaction message is forbidden",
           l->broker->broker_ip);
    return false;
}

static bool may_be_half(cmq_broker_loop *l, const cmq_send_reply *reply, const cmq_send_header *header,
                        const send_traits *traits)
{
    if (l->broker->options.txn == NULL || cmq_txn_rejects(l->broker->options.txn)) return refuse_transaction(l, reply);
    if (traits->level > 0 || cmq_timer_is_asked(&traits->timer)) {
        refuse(l, reply, CMQ_RESPONSE_MESSAGE_ILLEGAL, "a transactional message cannot be delayed, nor be a timer");
        return false;
    }
    const size_t room = cmq_txn_half_room(header->properties.bytes, header->topic, traits->unique) +
                        CMQ_UNIQUE_ID_BYTES_MAX * 2 + CMQ_TXN_COPY_BYTES_MAX + l->broker->suffix_bytes;
    if (room <= CMQ_PROPERTY_BYTES_MAX) return true;
    refuse(l, reply, CMQ_RESPONSE_MESSAGE_ILLEGAL,
           "the properties have %zu bytes, too many for a transactional message: its target and checks add some",
           header->properties.bytes);
    return false;
}

/* Transaction bits without TRAN_MSG would hide the message from its queue. */
static bool may_be_whole(cmq_broker_loop *l, const cmq_send_reply *reply, const cmq_send_header *header)
{
    return (header->sys_flag & CMQ_SYS_TRANSACTION_MASK) == 0 || refuse_transaction(l, reply);
}

static bool may_carry(cmq_broker_loop *l, const cmq_send_reply *reply, const cmq_send_header *header,
                      const send_traits *traits, cmq_slice body)
{
    if (body.bytes > l->broker->options.message_bytes_max ||
        header->properties.bytes + 1 + l->broker->suffix_bytes > CMQ_PROPERTY_BYTES_MAX) {
        refuse(l, reply, CMQ_RESPONSE_MESSAGE_ILLEGAL,
               "the message is illegal, maybe msg body or properties length not matched. msg body length limit %uB, "
               "msg properties length limit 32KB.",
               l->broker->options.message_bytes_max);
        return false;
    }
    if (traits->half) return may_be_half(l, reply, header, traits);
    return traits->retried || may_be_whole(l, reply, header);
}

/* ---- one message ---- */

static int32_t choose_queue(cmq_broker_loop *l, const cmq_send_header *header, const cmq_topic_entry *topic)
{
    if (header->queue_id >= 0) return header->queue_id;
    return topic->write_queues > 0 ? (int32_t)(l->next_queue++ % (uint32_t)topic->write_queues) : 0;
}

/* The properties that are stored, in `*properties`; false: flush the run, and try again. */
static bool prepare_properties(cmq_broker_loop *l, send_traits *traits, cmq_slice *properties, bool needs_id)
{
    cmq_send_run *run = &l->run;
    if (traits->rebuild) {
        uint8_t *into = run_scratch(run, properties->bytes + 1);
        if (into == NULL) return false;
        *properties = without_dropped(*properties, traits->level > 0, into);
    }
    if (traits->unique.bytes > 0 || !needs_id) return true;
    uint8_t *into = run_scratch(run, properties->bytes + 1 + sizeof "UNIQ_KEY" + 1 + CMQ_UNIQUE_ID_BYTES_MAX);
    if (into == NULL) return false;
    uint8_t *at = into;
    if (properties->bytes > 0) {
        memcpy(at, properties->data, properties->bytes);
        at += properties->bytes;
        if (at[-1] != CMQ_PROPERTY_PAIR_END) *at++ = CMQ_PROPERTY_PAIR_END;
    }
    char id[CMQ_UNIQUE_ID_BYTES_MAX];
    const size_t id_bytes = cmq_unique_id_make(&l->broker->store_host, id);
    uint8_t *const value_end =
        cmq_property_write(at, CMQ_NAME("UNIQ_KEY"), (cmq_slice){.data = (const uint8_t *)id, .bytes = id_bytes});
    traits->unique = (cmq_slice){.data = value_end - 1 - id_bytes, .bytes = id_bytes};
    *properties = (cmq_slice){.data = into, .bytes = (size_t)(value_end - into)};
    return true;
}

/* The same, and of a half message with its target. */
static bool prepare_single(cmq_broker_loop *l, send_traits *traits, cmq_slice *properties, cmq_slice topic,
                           int32_t queue_id)
{
    if (!prepare_properties(l, traits, properties, true)) return false;
    if (!traits->half) return true;
    uint8_t *into = run_scratch(&l->run, cmq_txn_half_room(properties->bytes, topic, traits->unique));
    if (into == NULL) return false;
    const size_t bytes = cmq_txn_half_write(into, *properties, topic, queue_id, traits->unique);
    *properties = (cmq_slice){.data = into, .bytes = bytes};
    return true;
}

static void collect(cmq_broker_loop *l, const cmq_append *like, const cmq_send_reply *reply, cmq_slice body,
                    cmq_slice properties, int32_t queue_id, int64_t born_ms)
{
    cmq_send_run *run = &l->run;
    CMQ_ASSERT(run->count == 0 || is_like(run, like));   /* a flush here would take the scratch that its properties lie
                                                          * in */
    if (run->count == 0) begin_run(l, like);
    const uint32_t i = run->count++;
    run->bodies[i] = body;
    run->properties[i] = properties;
    run->queue_ids[i] = queue_id;
    run->born_ms[i] = born_ms;
    run->replies[i] = *reply;
    run->bytes += body.bytes;
}

/* The fields that all messages of a send share. */
static cmq_append append_like(const cmq_broker_loop *l, cmq_conn *conn, const cmq_send_header *header, cmq_slice topic)
{
    return (cmq_append){
        .common = {.topic = topic,
                   .flag = header->flag,
                   .sys_flag = header->sys_flag & ~CMQ_SYS_TRANSACTION_MASK,
                   .reconsume_times = header->reconsume_times,
                   .born_host = *cmq_conn_peer(conn),
                   .store_host = l->broker->store_host},
        .properties_more = {.kind = CMQ_COLUMN_ONE,
                            .one = {.data = l->broker->suffix, .bytes = l->broker->suffix_bytes}},
        .no_wait = true,
        .never_wait = true,
    };
}

/* Where a message is parked, of either kind. */
typedef struct parking {
    cmq_slice topic, extra;
    int32_t queue_id;
} parking;

_Static_assert(CMQ_TIMER_EXTRA_BYTES_MAX <= CMQ_DELAY_EXTRA_BYTES_MAX, "room for either");

/* A delayed message: alone in its append, as its further properties are its own. */
static void send_parked(cmq_broker_loop *l, cmq_append *like, const cmq_send_reply *reply, cmq_slice body,
                        cmq_slice properties, const parking *at, int64_t born_ms)
{
    uint8_t more[CMQ_SUFFIX_BYTES_MAX + CMQ_DELAY_EXTRA_BYTES_MAX];
    memcpy(more, l->broker->suffix, l->broker->suffix_bytes);
    memcpy(more + l->broker->suffix_bytes, at->extra.data, at->extra.bytes);
    like->common.topic = at->topic;
    like->properties_more.one = (cmq_slice){.data = more, .bytes = l->broker->suffix_bytes + at->extra.bytes};
    collect(l, like, reply, body, properties, at->queue_id, born_ms);
    cmq_send_flush_run(l);
}

static void refuse_timer(cmq_broker_loop *l, const cmq_send_reply *reply, cmq_status status)
{
    if (status == CMQ_ERR_ARGUMENT)
        refuse(l, reply, CMQ_RESPONSE_MESSAGE_ILLEGAL, "%s", cmq_last_error()->text);
    else if (status == CMQ_ERR_SETTING || status == CMQ_ERR_LIMIT)
        refuse(l, reply, CMQ_RESPONSE_SYSTEM_ERROR, "%s", cmq_last_error()->text);
    else
        cmq_send_fail(l, reply, status);
}

/* The handle for its sender to recall it. Nothing else lies in the run. */
static cmq_slice make_recall_handle(cmq_broker_loop *l, cmq_slice topic, cmq_slice unique, int64_t out_ms)
{
    if (l->broker->name == NULL || cmq_slice_starts_with(topic, "%RETRY%")) return CMQ_SLICE_NONE;
    const cmq_slice name = cmq_slice_of_text(l->broker->name);
    uint8_t *into = run_scratch(&l->run, cmq_recall_handle_room(topic, name, unique));
    CMQ_ASSERT(into != NULL);   /* properties of 32 KiB, those again with an id, and 4/3 of them */
    return (cmq_slice){.data = into, .bytes = cmq_recall_handle_write(topic, name, out_ms, unique, into)};
}

/* False: it is no timer, or its time has come. */
static bool send_timer(cmq_broker_loop *l, cmq_append *like, cmq_send_reply *reply, const send_traits *traits,
                       cmq_slice body, cmq_slice properties, int64_t born_ms)
{
    cmq_timer_parked parked;
    const cmq_status status =
        cmq_timer_admit(l->broker->options.timer, &traits->timer, like->common.topic, reply->queue_id, &parked);
    if (status == CMQ_END) return false;
    if (status != CMQ_OK) {
        refuse_timer(l, reply, status);
    } else if (properties.bytes + 1 + l->broker->suffix_bytes + parked.extra.bytes + CMQ_TIMER_DELIVERY_BYTES_MAX >
               CMQ_PROPERTY_BYTES_MAX) {
        refuse(l, reply, CMQ_RESPONSE_MESSAGE_ILLEGAL,
               "the properties have %zu bytes, too many for a timer message: its delivery adds some", properties.bytes);
    } else {
        const parking at = {.topic = parked.topic, .extra = parked.extra, .queue_id = parked.queue_id};
        reply->recall = make_recall_handle(l, like->common.topic, reply->unique, parked.out_ms);
        send_parked(l, like, reply, body, properties, &at, born_ms);
    }
    return true;
}

static void send_one(cmq_broker_loop *l, cmq_conn *conn, const cmq_send_header *header, const cmq_topic_entry *topic,
                     cmq_send_reply *reply, cmq_slice body)
{
    send_traits traits = look_at(header->properties, cmq_store_delay_levels(l->broker->store));
    traits.retried = traits.half && header->reconsume_times > 0 && traits.level > 0;
    traits.half = traits.half && !traits.retried;
    if (!may_carry(l, reply, header, &traits, body)) return;
    if (cmq_send_batch_check_inner(header->sys_flag, header->properties, body) != CMQ_OK) {
        refuse(l, reply, CMQ_RESPONSE_MESSAGE_ILLEGAL, "%s", cmq_last_error()->text);
        return;
    }
    cmq_send_run *run = &l->run;
    const bool is_timer = traits.level == 0 && cmq_timer_is_asked(&traits.timer);
    cmq_append like = append_like(l, conn, header, topic->name);
    const bool full = run->count == CMQ_RUN_SENDS_MAX || run->bytes + body.bytes > CMQ_RUN_BYTES_MAX;
    if (traits.half) like.common.topic = cmq_slice_of_text(CMQ_TXN_TOPIC_HALF);
    if (run->count > 0 && (full || traits.delay.bytes > 0 || !is_like(run, &like))) cmq_send_flush_run(l);
    if (is_timer) cmq_send_flush_run(l);
    cmq_slice properties = header->properties;
    reply->queue_id = choose_queue(l, header, topic);
    if (!prepare_single(l, &traits, &properties, topic->name, reply->queue_id)) {
        cmq_send_flush_run(l);
        properties = header->properties;
        if (!prepare_single(l, &traits, &properties, topic->name, reply->queue_id)) {
            refuse_properties(l, reply, header);
            return;
        }
    }
    reply->unique = traits.unique;
    reply->wait = !traits.no_wait || traits.half;   /* the half queue must show it before it can be ended */
    if (traits.half) {
        reply->half_topic = topic->name;
        collect(l, &like, reply, body, properties, 0, header->born_ms);
        return;
    }
    if (is_timer && send_timer(l, &like, reply, &traits, body, properties, header->born_ms)) return;
    if (traits.level > 0) {
        cmq_delay_parked parked;
        const cmq_status status = cmq_delay_park(cmq_store_delay_levels(l->broker->store), topic->name, reply->queue_id,
                                                 like.common.sys_flag, traits.delay, &parked);
        if (status == CMQ_OK) {
            const parking at = {.topic = parked.topic, .extra = parked.extra, .queue_id = parked.queue_id};
            send_parked(l, &like, reply, body, properties, &at, header->born_ms);
            return;
        }
        if (status != CMQ_END) {
            cmq_send_fail(l, reply, status);
            return;
        }
    }
    collect(l, &like, reply, body, properties, reply->queue_id, header->born_ms);
}

/* ---- a batch ---- */

static void send_batch(cmq_broker_loop *l, cmq_conn *conn, const cmq_send_header *header, const cmq_topic_entry *topic,
                       cmq_send_reply *reply, cmq_slice body)
{
    send_traits traits = look_at(header->properties, cmq_store_delay_levels(l->broker->store));
    if (header->topic.bytes > 127 || cmq_slice_starts_with(header->topic, "%RETRY%")) {
        refuse(l, reply, CMQ_RESPONSE_MESSAGE_ILLEGAL,
               "a batch cannot be sent to topic %.*s: its name is too long, or it is a retry topic",
               cmq_shown(header->topic), (const char *)header->topic.data);
        return;
    }
    if (traits.half) {
        (void)refuse_transaction(l, reply);
        return;
    }
    if (!may_carry(l, reply, header, &traits, body)) return;
    if (traits.level > 0 || cmq_timer_is_asked(&traits.timer)) {
        refuse(l, reply, CMQ_RESPONSE_MESSAGE_ILLEGAL, "a batch cannot be delayed");
        return;
    }
    cmq_send_flush_run(l);
    cmq_slice properties = header->properties;
    /* An id of the batch's would stand in front of its messages' own: where it brings none, they have theirs. */
    const bool is_inner = topic->kind == CMQ_TOPIC_BATCH;
    if (!prepare_properties(l, &traits, &properties, is_inner)) {
        refuse_properties(l, reply, header);
        return;
    }
    reply->unique = traits.unique;
    reply->wait = !traits.no_wait;
    reply->queue_id = choose_queue(l, header, topic);
    cmq_append append = append_like(l, conn, header, topic->name);
    append.common.queue_id = reply->queue_id;
    append.common.born_timestamp_ms = header->born_ms;
    /* Behind every element's own properties stand the batch's (store 2.8). */
    uint8_t *more = malloc(properties.bytes + 1 + l->broker->suffix_bytes);
    if (more == NULL) {
        cmq_send_fail(l, reply, cmq_fail(CMQ_ERR_MEMORY, "no memory for the properties of a batch"));
        return;
    }
    size_t used = properties.bytes;
    if (used > 0) memcpy(more, properties.data, used);
    if (used > 0 && more[used - 1] != CMQ_PROPERTY_PAIR_END) more[used++] = CMQ_PROPERTY_PAIR_END;
    memcpy(more + used, l->broker->suffix, l->broker->suffix_bytes);
    append.properties_more =
        (cmq_column){.kind = CMQ_COLUMN_ONE, .one = {.data = more, .bytes = used + l->broker->suffix_bytes}};
    cmq_appended appended = {0};
    int64_t inner = 0;
    const cmq_status status = is_inner ? cmq_send_batch_append_inner(l, &append, body, &inner, &appended)
                                       : cmq_send_batch_append(l, &append, body, &appended);
    free(more);
    if (status != CMQ_OK)
        cmq_send_fail(l, reply, status);
    else
        cmq_send_succeed(l, reply, appended.first_queue_offset, is_inner ? &inner : l->batch.physical_offsets,
                         appended.count, appended.end, is_inner);
    cmq_send_note_appended(l, topic->name, &appended);
    l->run.scratch_used = 0;
}

/* ---- the broker's own ---- */

/* Where a message of the broker's own is parked; CMQ_END: nowhere. The parking's extra lies in what is given. */
static cmq_status CMQ_MUST_CHECK park_own(cmq_broker *broker, const cmq_append *one, cmq_delay_parked *delayed,
                                          cmq_timer_parked *timed, parking *at_out)
{
    const send_traits traits = look_at(one->properties.one, cmq_store_delay_levels(broker->store));
    cmq_status status = CMQ_END;
    if (traits.level > 0) {
        status = cmq_delay_park(cmq_store_delay_levels(broker->store), one->common.topic, one->common.queue_id,
                                one->common.sys_flag, traits.delay, delayed);
        *at_out = (parking){.topic = delayed->topic, .extra = delayed->extra, .queue_id = delayed->queue_id};
    } else {
        status = cmq_timer_admit(broker->options.timer, &traits.timer, one->common.topic, one->common.queue_id, timed);
        if (status == CMQ_OK)
            *at_out = (parking){.topic = timed->topic, .extra = timed->extra, .queue_id = timed->queue_id};
    }
    return status;
}

cmq_status cmq_send_store_own(cmq_broker *broker, cmq_append *one, cmq_appended *appended_out)
{
    cmq_delay_parked delayed;
    cmq_timer_parked timed;
    parking at;
    *appended_out = (cmq_appended){0};
    cmq_status status = cmq_send_batch_check_inner(one->common.sys_flag, one->properties.one, one->bodies.one);
    if (status != CMQ_OK) return status;
    status = park_own(broker, one, &delayed, &timed, &at);
    if (status != CMQ_OK && status != CMQ_END) return status;
    if (status == CMQ_OK) {
        one->common.topic = at.topic;
        one->common.queue_id = at.queue_id;
        one->properties_more = (cmq_column){.kind = CMQ_COLUMN_ONE, .one = at.extra};
    }
    return cmq_store_append(broker->store, one, appended_out);
}

cmq_status cmq_broker_put(cmq_broker *broker, const cmq_append *append, cmq_appended *appended_out)
{
    CMQ_ASSERT(append->count == 1 && append->properties.kind <= CMQ_COLUMN_ONE && append->queue_ids == NULL);
    *appended_out = (cmq_appended){0};
    const cmq_slice topic = append->common.topic;
    if (cmq_topic_is_reserved(topic))
        return cmq_fail(CMQ_ERR_TOPIC, "Sending message to topic[%.*s] is forbidden.", cmq_shown(topic),
                        (const char *)topic.data);
    cmq_append one = *append;
    one.no_wait = false;
    return cmq_send_store_own(broker, &one, appended_out);
}

/* ---- the door ---- */

cmq_net_verdict cmq_send_request(cmq_broker_loop *l, cmq_conn *conn, const cmq_command *command, cmq_slice body,
                                 bool again)
{
    cmq_send_header header;
    cmq_send_reply reply = {
        .conn = cmq_conn_id_of(conn),
        .opaque = command->opaque,
        .format = command->format,
        .oneway = (command->flag & CMQ_COMMAND_ONEWAY) != 0,
    };
    if (l->sent.count >= l->broker->options.sends_waiting_max || l->sent.tail - l->sent.head >= CMQ_SENT_BYTES_MAX) {
        refuse(l, &reply, CMQ_RESPONSE_SYSTEM_BUSY, CMQ_SEND_OVERLOAD);
        return CMQ_NET_DONE;
    }
    if (cmq_send_header_read(command, &header) != CMQ_OK) {
        refuse(l, &reply, CMQ_RESPONSE_SYSTEM_ERROR, "%s", cmq_last_error()->text);
        return CMQ_NET_DONE;
    }
    const cmq_topic_entry *topic = cmq_tables_topic(cmq_broker_tables(l), header.topic);
    const bool is_retry = cmq_slice_starts_with(header.topic, "%RETRY%");
    if (topic == NULL && cmq_topic_is_reserved(header.topic)) {
        refuse_reserved(l, &reply, header.topic);
        return CMQ_NET_DONE;
    }
    if (!again && (topic == NULL || is_retry)) {
        /* Sends of this connection that came before it are stored before it. */
        cmq_send_flush_run(l);
        return CMQ_NET_CONTROL;
    }
    if (topic == NULL) {
        refuse(l, &reply, CMQ_RESPONSE_TOPIC_NOT_EXIST, "topic[%.*s] not exist, apply first please!",
               cmq_shown(header.topic), (const char *)header.topic.data);
        return CMQ_NET_DONE;
    }
    if (!may_send(l, &reply, &header, topic)) return CMQ_NET_DONE;
    if (command->code == CMQ_REQUEST_SEND_BATCH_MESSAGE || header.batch)
        send_batch(l, conn, &header, topic, &reply, body);
    else
        send_one(l, conn, &header, topic, &reply, body);
    return CMQ_NET_DONE;
}
