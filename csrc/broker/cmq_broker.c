/* cmq_broker: its life, and how a loop's calls are dealt out. See cmq_broker.h. */
#include "broker/loop/cmq_broker_internal.h"
#include "broker/send/cmq_send_batch.h"
#include "broker/txn/cmq_txn_end.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/cmq_assert.h"

#define MESSAGE_BYTES_DEFAULT (4u << 20)
#define HOLDS_DEFAULT 100000u

/* ---- life ---- */

static int64_t machine_memory(void)
{
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    return pages > 0 && page > 0 ? (int64_t)pages * page : INT64_MAX;
}

static void set_defaults(cmq_broker_options *o)
{
    if (o->region == NULL) o->region = "DefaultRegion";
    if (o->message_bytes_max == 0) o->message_bytes_max = MESSAGE_BYTES_DEFAULT;
    if (o->short_polling_ms <= 0) o->short_polling_ms = 1000;
    if (o->suspend_ms_max <= 0) o->suspend_ms_max = 300000;
    if (o->holds_max == 0) o->holds_max = HOLDS_DEFAULT;
    if (o->transfer_count_memory <= 0) o->transfer_count_memory = 32;
    if (o->transfer_bytes_memory <= 0) o->transfer_bytes_memory = 256 * 1024;
    if (o->transfer_count_disk <= 0) o->transfer_count_disk = 8;
    if (o->transfer_bytes_disk <= 0) o->transfer_bytes_disk = 64 * 1024;
    if (o->memory_bytes <= 0) o->memory_bytes = machine_memory() / 10 * 4;
    if (o->flush_timeout_ms <= 0) o->flush_timeout_ms = 5000;
    if (o->sends_waiting_max == 0) o->sends_waiting_max = CMQ_SENDS_WAITING_MAX;
    if (o->staging_bytes_max <= 0) o->staging_bytes_max = INT64_C(64) << 20;
}

/* The pairs that every message gets (remoting 2.2), as encoded properties. */
static cmq_status make_suffix(cmq_broker *broker)
{
    size_t used = 0;
    cmq_status status = cmq_property_append(broker->suffix, sizeof broker->suffix, &used, CMQ_NAME("MSG_REGION"),
                                            cmq_slice_of_text(broker->region));
    if (status == CMQ_OK)
        status = cmq_property_append(broker->suffix, sizeof broker->suffix, &used, CMQ_NAME("TRACE_ON"),
                                     cmq_slice_of_text(broker->options.trace_off ? "false" : "true"));
    if (status == CMQ_OK)
        status = cmq_property_append(broker->suffix, sizeof broker->suffix, &used, CMQ_NAME("CLUSTER"),
                                     cmq_slice_of_text(broker->cluster));
    broker->suffix_bytes = (uint32_t)used;
    return status;
}

cmq_status cmq_broker_create(cmq_broker **broker_out, const cmq_broker_options *options)
{
    *broker_out = NULL;
    CMQ_ASSERT(options->store != NULL && options->tables != NULL && options->offsets != NULL &&
               options->cluster != NULL);
    cmq_store_info info;
    cmq_status status = cmq_store_info_of(options->store, &info);
    if (status != CMQ_OK) return status;
    if (info.read_only) return cmq_fail(CMQ_ERR_READ_ONLY, "a broker serves a store that is open for writing");
    cmq_broker *broker = calloc(1, sizeof *broker);
    if (broker == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for the broker");
    broker->options = *options;
    set_defaults(&broker->options);
    broker->store = options->store;
    broker->queues = cmq_store_queues(options->store);
    broker->sync = info.flush == CMQ_FLUSH_SYNC;
    broker->store_host = options->store_host;
    broker->cluster = strdup(options->cluster);
    broker->name = options->name != NULL ? strdup(options->name) : NULL;
    broker->region = strdup(broker->options.region);
    broker->broker_ip = strdup(options->broker_ip != NULL ? options->broker_ip : "");
    pthread_mutex_init(&broker->changed_mutex, NULL);
    pthread_mutex_init(&broker->flush_mutex, NULL);
    pthread_cond_init(&broker->flush_wanted, NULL);
    if (broker->cluster == NULL || (options->name != NULL && broker->name == NULL) || broker->region == NULL ||
        broker->broker_ip == NULL)
        status = cmq_fail(CMQ_ERR_MEMORY, "no memory for the broker");
    if (status == CMQ_OK) status = make_suffix(broker);
    if (broker->sync) cmq_store_set_staging(broker->store, broker->options.staging_bytes_max);
    if (status == CMQ_OK && broker->sync) status = cmq_flush_wait_start(broker);
    if (status == CMQ_OK && options->pops != NULL)
        cmq_pop_service_on_revived(options->pops, cmq_pop_notify_revived, broker);
    if (status != CMQ_OK) {
        cmq_broker_destroy(broker);
        return status;
    }
    *broker_out = broker;
    return CMQ_OK;
}

void cmq_broker_destroy(cmq_broker *broker)
{
    if (broker == NULL) return;
    CMQ_ASSERT(broker->loop_count == 0);
    cmq_flush_wait_stop(broker);
    pthread_cond_destroy(&broker->flush_wanted);
    pthread_mutex_destroy(&broker->flush_mutex);
    pthread_mutex_destroy(&broker->changed_mutex);
    free(broker->cluster);
    free(broker->name);
    free(broker->region);
    free(broker->broker_ip);
    free(broker);
}

/* ---- a loop's life ---- */

static void wake_loop(void *context) { cmq_loop_wake(context); }

static void free_loop(cmq_broker_loop *l)
{
    cmq_watcher_destroy(l->watcher);
    cmq_holds_destroy(l->holds);
    cmq_select_forget(l);
    cmq_pop_waits_destroy(l->pop_waits);
    cmq_pop_waits_destroy(l->notices);
    cmq_pop_ack_run_destroy(l->ack_run);
    cmq_pop_ack_lists_free(&l->ack_lists);
    for (uint32_t i = 0; i < l->pop_note_count; i++) free(l->pop_notes[i].names);
    free(l->pop_notes);
    for (uint32_t i = l->pop_noted.at; i < l->pop_noted.count; i++) free(l->pop_noted.notes[i].names);
    free(l->pop_noted.notes);
    cmq_pop_poll_count_free(l->pop_tallies);
    cmq_txn_end_run_destroy(l->ends);
    cmq_traffic_destroy(l->traffic);
    cmq_tables_reader_destroy(l->reader);
    cmq_pending_replies_free(&l->sent);
    for (uint32_t i = 0; i < l->changed_count; i++) free(l->changed[i]);
    free(l->changed);
    for (uint32_t i = 0; i < l->changing_count; i++) free(l->changing[i]);
    free(l->changing);
    free(l->changing_holds);
    free(l->arrived);
    free(l->arrived_of);
    cmq_send_batch_free(&l->batch);
    free(l);
}

static cmq_status loop_begin(void *context, cmq_loop *loop, uint32_t index, void **state_out)
{
    cmq_broker *broker = context;
    if (index >= CMQ_BROKER_LOOPS_MAX)
        return cmq_fail(CMQ_ERR_LIMIT, "a broker has at most %u loops", CMQ_BROKER_LOOPS_MAX);
    cmq_broker_loop *l = calloc(1, sizeof *l);
    if (l == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for a loop of the broker");
    l->broker = broker;
    l->loop = loop;
    l->new_steps = CMQ_STEPS_PER_TURN;
    cmq_status status = cmq_tables_reader_create(broker->options.tables, &l->reader);
    if (status == CMQ_OK) status = cmq_traffic_create(&l->traffic);
    if (status == CMQ_OK) status = cmq_holds_create(&l->holds, broker->options.holds_max);
    const cmq_pop_service_options none = {0}, *pops = broker->options.pops != NULL
                                                          ? cmq_pop_service_options_of(broker->options.pops)
                                                          : &none;
    /* by a frozen clock: the same again */
    l->draw = index + (broker->options.pops != NULL ? (uint64_t)cmq_pop_service_now_ms(broker->options.pops) : 0);
    if (status == CMQ_OK) status = cmq_pop_waits_create(&l->pop_waits, pops->waits_max, pops->waits_key_max);
    if (status == CMQ_OK) status = cmq_pop_waits_create(&l->notices, pops->waits_max, pops->waits_key_max);
    if (status == CMQ_OK) status = cmq_pop_ack_run_create(&l->ack_run);
    if (status == CMQ_OK) status = cmq_txn_end_run_create(&l->ends);
    if (status == CMQ_OK) status = cmq_watcher_create(&l->watcher, broker->store, wake_loop, loop);
    if (status != CMQ_OK) {
        free_loop(l);
        return status;
    }
    pthread_mutex_lock(&broker->changed_mutex);
    broker->loops[broker->loop_count++] = l;
    pthread_mutex_unlock(&broker->changed_mutex);
    *state_out = l;
    return CMQ_OK;
}

static void loop_end(void *context, void *state)
{
    cmq_broker *broker = context;
    cmq_broker_loop *l = state;
    pthread_mutex_lock(&broker->changed_mutex);
    uint32_t at = 0;
    while (at < broker->loop_count && broker->loops[at] != l) at++;
    CMQ_ASSERT(at < broker->loop_count);
    broker->loops[at] = broker->loops[--broker->loop_count];
    pthread_mutex_unlock(&broker->changed_mutex);
    free_loop(l);
}

/* ---- dealing out ---- */

static void leave_tables(cmq_broker_loop *l)
{
    if (l->inside) cmq_tables_leave(l->reader);
    l->inside = false;
}

static cmq_net_verdict request(void *state, cmq_conn *conn, const cmq_command *command, cmq_slice body, bool again)
{
    cmq_broker_loop *l = state;
    cmq_net_verdict verdict = CMQ_NET_CONTROL;
    switch (command->code) {
    case CMQ_REQUEST_SEND_MESSAGE:
    case CMQ_REQUEST_SEND_MESSAGE_V2:
    case CMQ_REQUEST_SEND_BATCH_MESSAGE:
        verdict = cmq_send_request(l, conn, command, body, again);
        break;
    case CMQ_REQUEST_END_TRANSACTION:
        verdict = cmq_txn_end_request(l, conn, command);
        break;
    case CMQ_REQUEST_PULL_MESSAGE:
    case CMQ_REQUEST_LITE_PULL_MESSAGE:
        verdict = cmq_pull_request(l, conn, command, again);
        break;
    case CMQ_REQUEST_QUERY_CONSUMER_OFFSET:
    case CMQ_REQUEST_UPDATE_CONSUMER_OFFSET:
    case CMQ_REQUEST_SEARCH_OFFSET_BY_TIMESTAMP:
    case CMQ_REQUEST_GET_MAX_OFFSET:
    case CMQ_REQUEST_GET_MIN_OFFSET:
        verdict = cmq_offset_requests_request(l, conn, command, again);
        break;
    case CMQ_REQUEST_POP_MESSAGE:
        verdict = cmq_pop_request(l, conn, command, again);
        break;
    case CMQ_REQUEST_NOTIFICATION:
    case CMQ_REQUEST_PEEK_MESSAGE:
        verdict = cmq_pop_peek_request(l, conn, command, again);
        break;
    case CMQ_REQUEST_POLLING_INFO:
        verdict = cmq_pop_poll_count_request(l, conn, command, again);
        break;
    case CMQ_REQUEST_ACK_MESSAGE:
    case CMQ_REQUEST_BATCH_ACK_MESSAGE:
    case CMQ_REQUEST_CHANGE_MESSAGE_INVISIBLETIME:
        verdict = cmq_pop_ack_request(l, conn, command, body);
        break;
    default:
        break;
    }
    if (verdict == CMQ_NET_CONTROL) cmq_bump(&l->counters.control, 1);
    return verdict;
}

static void turn_end(void *state)
{
    cmq_broker_loop *l = state;
    cmq_send_flush_run(l);
    cmq_pop_ack_run_flush(l);
    cmq_txn_end_run_flush(l);
    leave_tables(l);
    l->new_steps = CMQ_STEPS_PER_TURN;
    l->new_pops_cost = 0;
}

static void woken(void *state)
{
    cmq_broker_loop *l = state;
    cmq_send_settle(l, cmq_loop_now_ns(l->loop));
    cmq_wake_changed(l);
    cmq_wake_arrivals(l);
    cmq_pop_wake_notes(l);
    cmq_pop_poll_count_go_on(l);
    cmq_pop_ack_lists_go_on(l);
    leave_tables(l);
}

static int64_t due_ns(void *state)
{
    const cmq_broker_loop *l = state;
    const int64_t hold = cmq_holds_due_ns(l->holds), sent = cmq_send_due_ns(l), pop = cmq_pop_due_ns(l);
    const int64_t first = hold < sent ? hold : sent;
    return first < pop ? first : pop;
}

static void tick(void *state, int64_t now_ns)
{
    cmq_broker_loop *l = state;
    cmq_send_settle(l, now_ns);
    cmq_wake_due(l, now_ns);
    cmq_pop_wake_due(l, now_ns);
    leave_tables(l);
}

static void closed(void *state, cmq_conn *conn) { (void)cmq_wake_closed(state, conn); }
static uint32_t half_closed(void *state, cmq_conn *conn) { return cmq_wake_closed(state, conn); }

cmq_net_handler cmq_broker_handler(cmq_broker *broker)
{
    return (cmq_net_handler){
        .context = broker,
        .loop_begin = loop_begin,
        .loop_end = loop_end,
        .request = request,
        .turn_end = turn_end,
        .woken = woken,
        .due_ns = due_ns,
        .tick = tick,
        .closed = closed,
        .half_closed = half_closed,
    };
}

void cmq_broker_answer(cmq_conn *conn, const cmq_command *command, int32_t code, const char *format, ...)
{
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    cmq_conn_answer(conn, command, code, cmq_slice_of_text(text));
}

/* ---- changes of groups ---- */

static cmq_status note_change(cmq_broker_loop *l, cmq_slice group)
{
    if (l->changed_count == l->changed_slots) {
        const uint32_t slots = l->changed_slots == 0 ? 16 : l->changed_slots * 2;
        char **changed = realloc(l->changed, slots * sizeof *changed);
        if (changed == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for the change of a group");
        l->changed = changed;
        l->changed_slots = slots;
    }
    char *name = strndup(group.bytes > 0 ? (const char *)group.data : "", group.bytes);
    if (name == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for the change of a group");
    l->changed[l->changed_count++] = name;
    return CMQ_OK;
}

cmq_status cmq_broker_group_changed(cmq_broker *broker, cmq_slice group)
{
    cmq_status status = CMQ_OK;
    pthread_mutex_lock(&broker->changed_mutex);
    for (uint32_t i = 0; i < broker->loop_count && status == CMQ_OK; i++) {
        status = note_change(broker->loops[i], group);
        if (status == CMQ_OK) cmq_loop_wake(broker->loops[i]->loop);
    }
    pthread_mutex_unlock(&broker->changed_mutex);
    return status;
}

/* ---- counters ---- */

void cmq_broker_count(const cmq_broker *broker, cmq_broker_counters *counters_out)
{
    *counters_out = (cmq_broker_counters){0};
    pthread_mutex_t *mutex = (pthread_mutex_t *)&broker->changed_mutex;
    pthread_mutex_lock(mutex);
    for (uint32_t i = 0; i < broker->loop_count; i++) {
        const cmq_loop_counters *from = &broker->loops[i]->counters;
#define SUM(name) counters_out->name += atomic_load_explicit(&from->name, memory_order_relaxed)
        SUM(sends);
        SUM(send_failures);
        SUM(messages_in);
        SUM(message_bytes_in);
        SUM(pulls);
        SUM(pulls_found);
        SUM(messages_out);
        SUM(message_bytes_out);
        SUM(pops);
        SUM(pops_found);
        SUM(pop_acks);
        SUM(pop_acks_refused);
        SUM(pop_changes);
        SUM(pops_held);
        SUM(pop_wakes);
        SUM(pop_timeouts);
        SUM(pops_refused);
        SUM(pops_held_now);
        SUM(held);
        SUM(hold_wakes);
        SUM(hold_timeouts);
        SUM(hold_refused);
        SUM(holds_now);
        SUM(waiting_for_disk);
        SUM(control);
        SUM(commits);
        SUM(rollbacks);
        SUM(ends_refused);
        SUM(ends_unwritten);
        SUM(commits_undelivered);
#undef SUM
    }
    pthread_mutex_unlock(mutex);
}

uint32_t cmq_broker_list_traffic(const cmq_broker *broker, uint32_t *loop, uint32_t *cursor, cmq_traffic_item *items,
                                 uint32_t capacity)
{
    uint32_t given = 0;
    pthread_mutex_t *mutex = (pthread_mutex_t *)&broker->changed_mutex;
    pthread_mutex_lock(mutex);
    while (given == 0 && *loop < broker->loop_count) {
        given = cmq_traffic_list(broker->loops[*loop]->traffic, cursor, items, capacity);
        if (given > 0) continue;
        (*loop)++;
        *cursor = 0;
    }
    pthread_mutex_unlock(mutex);
    return given;
}
