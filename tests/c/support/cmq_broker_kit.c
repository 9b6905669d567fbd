/* cmq_broker_kit: see cmq_broker_kit.h. */
#include "support/cmq_broker_kit.h"

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "support/cmq_test.h"

#define ANSWER_NS_MAX INT64_C(60000000000)

static int64_t wall_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static int64_t now_of(void *context) { return ((const kit_broker *)context)->now_ns; }

void kit_broker_topic(kit_broker *kit, const char *name, int32_t queues, int32_t perm)
{
    const cmq_topic_entry topic = {
        .name = cmq_slice_of_text(name), .read_queues = queues, .write_queues = queues, .perm = perm};
    CHECK_OK(cmq_tables_put_topic(kit->tables, &topic));
}

/* With a filter, whose reference it takes. */
static void subscribe(kit_broker *kit, const char *group, cmq_subscription subscription)
{
    const cmq_group_entry entry = {.name = cmq_slice_of_text(group),
                                   .consume_enable = true,
                                   .consume_broadcast_enable = true,
                                   .notify = true,
                                   .retry_queues = 1,
                                   .retry_max = 16};
    CHECK_OK(cmq_tables_put_group(kit->tables, &entry));
    const cmq_consumer_entry consumer = {.group = cmq_slice_of_text(group),
                                         .type = CMQ_CONSUME_PASSIVELY,
                                         .subscription_count = 1,
                                         .subscriptions = &subscription};
    CHECK_OK(cmq_tables_put_consumer(kit->tables, &consumer));
    cmq_filter_release(subscription.filter);
}

void kit_broker_subscribe(kit_broker *kit, const char *group, const char *topic, const char *expression,
                          int64_t version)
{
    cmq_subscription subscription = {.topic = cmq_slice_of_text(topic), .sub_version = version};
    CHECK_OK(cmq_filter_parse(cmq_slice_of_text(expression), &subscription.filter));
    subscribe(kit, group, subscription);
}

void kit_broker_select(kit_broker *kit, const char *group, const char *topic, const char *expression, int64_t version)
{
    kit_broker_select_older(kit, group, topic, expression, version, version);
}

void kit_broker_select_older(kit_broker *kit, const char *group, const char *topic, const char *expression,
                             int64_t version, int64_t filter_version)
{
    cmq_subscription subscription = {.topic = cmq_slice_of_text(topic),
                                     .type = CMQ_EXPRESSION_OTHER,
                                     .sub_version = version,
                                     .filter_version = filter_version};
    if (expression == NULL)
        subscription.filter_version = CMQ_FILTER_NO_DATA;
    else
        CHECK_OK(cmq_filter_select(cmq_slice_of_text(expression), &subscription.filter));
    subscribe(kit, group, subscription);
}

static void make_tables(kit_broker *kit, cmq_store *store)
{
    *kit = (kit_broker){.now_ns = 1, .store = store, .now_ms = KIT_BROKER_MS};
    CHECK_OK(cmq_tables_create(&kit->tables));
    CHECK_OK(cmq_offsets_create(&kit->offsets, 0));
    kit_broker_topic(kit, "T", 4, CMQ_PERM_READ | CMQ_PERM_WRITE);
    kit_broker_subscribe(kit, "G", "T", "*", 1);
}

static void make_broker(kit_broker *kit, const cmq_broker_options *extra, bool threads)
{
    cmq_broker_options options = extra != NULL ? *extra : (cmq_broker_options){0};
    options.store = kit->store;
    options.tables = kit->tables;
    options.offsets = kit->offsets;
    options.cluster = "C";
    options.broker_ip = "127.0.0.1";
    options.store_host = (cmq_record_host){.address = {127, 0, 0, 1}, .port = 10911};
    options.pops = kit->pops;
    options.txn = kit->txn;
    CHECK_OK(cmq_broker_create(&kit->broker, &options));
    const char *address = "127.0.0.1:0";
    const cmq_net_options net = {.addresses = &address, .address_count = 1, .handler = cmq_broker_handler(kit->broker),
                                 .loops = kit->loops, .now_ns = threads ? NULL : now_of,
                                 .clock_context = kit, .manual = !threads};
    CHECK_OK(cmq_net_create(&kit->net, &net));
    CHECK_OK(cmq_net_start(kit->net));
}

void kit_broker_serve(kit_broker *kit, cmq_store *store, const cmq_broker_options *extra, bool threads)
{
    make_tables(kit, store);
    make_broker(kit, extra, threads);
}

static cmq_store *open_store(const char *root, cmq_flush_mode flush, cmq_clock clock)
{
    const cmq_store_options options = {.path = root,
                                       .create = true,
                                       .background = flush == CMQ_FLUSH_SYNC,
                                       .flush = flush,
                                       .segment_bytes = 1 << 20,
                                       .clock = clock};
    cmq_store *store;
    CHECK_OK(cmq_store_open(&store, &options));
    return store;
}

void kit_broker_start(kit_broker *kit, const char *root, cmq_flush_mode flush, const cmq_broker_options *extra)
{
    kit_broker_serve(kit, open_store(root, flush, (cmq_clock){0}), extra, false);
}

static void serve_pops(kit_broker *kit, cmq_store *store, int64_t now_ms, const cmq_pop_service_options *extra,
                       uint32_t loops, bool threads)
{
    cmq_pop_service_options options = extra != NULL ? *extra : (cmq_pop_service_options){0};
    make_tables(kit, store);
    kit->now_ms = now_ms;
    kit->loops = loops;
    kit->threads = threads;
    kit_broker_topic(kit, CMQ_TOPIC_TIMER, 1, CMQ_PERM_READ | CMQ_PERM_WRITE);
    kit_broker_topic(kit, CMQ_POP_REVIVE_TOPIC_PREFIX "C", 8, CMQ_PERM_READ | CMQ_PERM_WRITE);
    const cmq_timer_options timer = {
        .store = kit->store, .clock = cmq_clock_manual(&kit->now_ms), .manual = true, .log_file_bytes = 16 + 200 * 52};
    CHECK_OK(cmq_timer_create(&kit->timer, &timer));
    CHECK_OK(cmq_timer_start(kit->timer));
    CHECK_OK(cmq_pop_fifo_table_create(&kit->order, 0));
    options.store = kit->store;
    options.tables = kit->tables;
    options.offsets = kit->offsets;
    options.order = kit->order;
    options.timer = kit->timer;
    options.cluster = "C";
    options.broker = "broker-a";
    options.host = (cmq_record_host){.address = {127, 0, 0, 1}, .port = 10911};
    options.clock = cmq_clock_manual(&kit->now_ms);
    options.manual = true;
    CHECK_OK(cmq_pop_service_create(&kit->pops, &options));
    make_broker(kit, &(cmq_broker_options){.timer = kit->timer, .name = "broker-a", .property_filter = true}, threads);
    CHECK_OK(cmq_pop_service_start(kit->pops));
}

void kit_broker_serve_pops(kit_broker *kit, cmq_store *store, int64_t now_ms, const cmq_pop_service_options *extra)
{
    serve_pops(kit, store, now_ms, extra, 1, false);
}

static void start_pops(kit_broker *kit, const char *root, cmq_flush_mode flush, const cmq_pop_service_options *extra,
                       uint32_t loops, bool threads)
{
    /* Messages are stored before they are popped. */
    static _Atomic int64_t stored_ms = KIT_BROKER_MS;
    serve_pops(kit, open_store(root, flush, cmq_clock_manual(&stored_ms)), KIT_BROKER_MS, extra, loops, threads);
}

void kit_broker_start_pops(kit_broker *kit, const char *root, cmq_flush_mode flush,
                           const cmq_pop_service_options *extra)
{
    start_pops(kit, root, flush, extra, 1, false);
}

void kit_broker_start_pops_on(kit_broker *kit, const char *root, cmq_flush_mode flush,
                              const cmq_pop_service_options *extra, uint32_t loops)
{
    start_pops(kit, root, flush, extra, loops, false);
}

void kit_broker_start_pops_threads(kit_broker *kit, const char *root, const cmq_pop_service_options *extra,
                                   uint32_t loops)
{
    start_pops(kit, root, CMQ_FLUSH_ASYNC, extra, loops, true);
}

void kit_broker_pass_pops(kit_broker *kit, int64_t ms)
{
    /* a record that one of them stores is found by the next in the following round */
    enum { ROUNDS = 4, STEP_MS = 500 };
    for (int64_t passed = 0; passed <= ms; passed += STEP_MS) {
        const int64_t step_ms = ms - passed < STEP_MS ? ms - passed : STEP_MS;
        kit->now_ns += step_ms * INT64_C(1000000);
        atomic_fetch_add(&kit->now_ms, step_ms);
        for (int round = 0; round < ROUNDS; round++) {
            uint8_t name[CMQ_POP_TOPIC_BYTES_MAX + 1];
            size_t bytes;
            int64_t due_ms;
            CHECK_OK(cmq_store_flush(kit->store));
            CHECK_OK(cmq_timer_step(kit->timer, &due_ms));
            CHECK_OK(cmq_pop_service_step(kit->pops));
            while (cmq_pop_service_take_wanted(kit->pops, name, &bytes)) {
                name[bytes] = 0;
                kit_broker_topic(kit, (const char *)name, 1, CMQ_PERM_READ | CMQ_PERM_WRITE);
                cmq_pop_service_topic_made(kit->pops);
            }
            kit_broker_turn(kit);
        }
    }
}

static void set_progress(kit_broker *kit, const char *topic, int64_t offset)
{
    const cmq_offset_key key = {.group = cmq_slice_of_text(CMQ_TXN_GROUP), .topic = cmq_slice_of_text(topic)};
    if (offset >= 0) CHECK_OK(cmq_offsets_commit(kit->offsets, &key, offset));
}

static void make_txn(kit_broker *kit, const cmq_txn_rules *rules)
{
    const cmq_txn_options options = {.store = kit->store,
                                     .offsets = kit->offsets,
                                     .host = {.address = {127, 0, 0, 1}, .port = 10911},
                                     .clock = cmq_clock_manual(&kit->now_ms),
                                     .rules = rules != NULL ? *rules : (cmq_txn_rules){0}};
    CHECK_OK(cmq_txn_create(&kit->txn, &options));
    CHECK_OK(cmq_txn_start(kit->txn));
}

void kit_broker_serve_txn(kit_broker *kit, cmq_store *store, int64_t now_ms, const cmq_txn_rules *rules,
                          int64_t half_progress, int64_t op_progress)
{
    make_tables(kit, store);
    kit->now_ms = now_ms;
    set_progress(kit, CMQ_TXN_TOPIC_HALF, half_progress);
    set_progress(kit, CMQ_TXN_TOPIC_OP, op_progress);
    make_txn(kit, rules);
    make_broker(kit, NULL, false);
}

void kit_broker_start_txn_threads(kit_broker *kit, const char *root, cmq_flush_mode flush, const cmq_txn_rules *rules,
                                  uint32_t loops)
{
    make_tables(kit, open_store(root, flush, (cmq_clock){0}));
    kit->loops = loops;
    kit->threads = true;
    make_txn(kit, rules);
    make_broker(kit, &(cmq_broker_options){.flush_timeout_ms = 600000}, true);
}

void kit_broker_start_txn(kit_broker *kit, const char *root, cmq_flush_mode flush, const cmq_txn_rules *rules)
{
    kit_broker_serve_txn(kit, open_store(root, flush, (cmq_clock){0}), KIT_BROKER_MS, rules, -1, -1);
}

void kit_broker_stop(kit_broker *kit)
{
    if (kit->pops != NULL) CHECK_OK(cmq_pop_service_stop(kit->pops));
    cmq_net_destroy(kit->net);
    cmq_broker_destroy(kit->broker);
    cmq_pop_service_destroy(kit->pops);
    if (kit->txn != NULL) CHECK_OK(cmq_txn_stop(kit->txn));
    cmq_txn_destroy(kit->txn);
    if (kit->timer != NULL) CHECK_OK(cmq_timer_stop(kit->timer));
    cmq_timer_destroy(kit->timer);
    cmq_pop_fifo_table_destroy(kit->order);
    cmq_offsets_destroy(kit->offsets);
    cmq_tables_destroy(kit->tables);
    CHECK_OK(cmq_store_close(kit->store));
}

/* A signal, as libFuzzer's clock, interrupts connect(); the connection is made all the same. */
static bool connect_whole(int client, const struct sockaddr_in *to)
{
    if (connect(client, (const struct sockaddr *)to, sizeof *to) == 0) return true;
    if (errno != EINTR) return false;
    struct pollfd until = {.fd = client, .events = POLLOUT};
    while (poll(&until, 1, -1) < 0)
        if (errno != EINTR) return false;
    int failed = 0;
    socklen_t bytes = sizeof failed;
    CHECK_INT(getsockopt(client, SOL_SOCKET, SO_ERROR, &failed, &bytes), 0);
    errno = failed;
    return failed == 0;
}

int kit_connect(uint16_t port)
{
    const int client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(client >= 0);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (!connect_whole(client, &to))
        cmq_test_fail(__FILE__, __LINE__, "connecting to port %u: %s", port, strerror(errno));
    const int now = 1;   /* else a request may wait for the answer to the one before it */
    CHECK_INT(setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &now, sizeof now), 0);
    return client;
}

int kit_client(kit_broker *kit)
{
    const int client = kit_connect(cmq_net_port(kit->net, 0));
    kit_broker_turn(kit);
    return client;
}

static bool write_request(int client, int32_t code, int32_t opaque, int32_t flag, cmq_header_format format,
                          const kit_field *fields, const void *body, size_t bytes)
{
    const size_t room = 262144 + bytes;
    uint8_t *frame = malloc(room);
    CHECK(frame != NULL);
    cmq_command_writer writer;
    cmq_command_begin(&writer, frame, room, format, code, opaque, flag, CMQ_SLICE_NONE);
    for (; fields->name != NULL; fields++)
        cmq_command_add_text(&writer, cmq_slice_of_text(fields->name), cmq_slice_of_text(fields->value));
    const size_t header = cmq_command_end(&writer, bytes);
    CHECK(header + bytes <= room);
    if (bytes > 0) memcpy(frame + header, body, bytes);
    size_t sent = 0;
    while (sent < header + bytes) {
        const ssize_t n = send(client, frame + sent, header + bytes - sent, MSG_NOSIGNAL);
        if (n <= 0) break;
        sent += (size_t)n;
    }
    free(frame);
    return sent == header + bytes;
}

void kit_request(int client, int32_t code, int32_t opaque, int32_t flag, cmq_header_format format,
                 const kit_field *fields, const void *body, size_t bytes)
{
    CHECK(write_request(client, code, opaque, flag, format, fields, body, bytes));
}

bool kit_try_request(int client, int32_t code, int32_t opaque, const kit_field *fields, const void *body, size_t bytes)
{
    return write_request(client, code, opaque, 0, CMQ_HEADER_JSON, fields, body, bytes);
}

void kit_broker_turn(kit_broker *kit)
{
    if (!kit->threads) cmq_net_turn(kit->net);
}

void kit_broker_pass(kit_broker *kit, int64_t ms)
{
    kit->now_ns += ms * INT64_C(1000000);
    atomic_fetch_add(&kit->now_ms, ms);
    kit_broker_turn(kit);
}

/* Read exactly; false when nothing is there yet. `must`: wait for the rest of what began. */
static bool read_exactly(int client, uint8_t *into, size_t bytes, bool must)
{
    size_t used = 0;
    while (used < bytes) {
        const ssize_t n = recv(client, into + used, bytes - used, used == 0 && !must ? MSG_DONTWAIT : 0);
        if (n < 0 && errno == EAGAIN && used == 0) return false;
        if (n < 0 && errno == EINTR) continue;   /* libFuzzer's alarm */
        CHECK(n > 0);
        used += (size_t)n;
    }
    return true;
}

static _Thread_local kit_answer last;
static _Thread_local uint8_t *last_frame, *last_scratch;

static bool take_answer(int client)
{
    uint8_t prefix[CMQ_FRAME_PREFIX_BYTES];
    if (!read_exactly(client, prefix, sizeof prefix, false)) return false;
    const size_t bytes = cmq_load_u32(prefix) + 4;
    kit_forget_answer();
    last_frame = malloc(bytes);
    last_scratch = malloc(bytes);
    CHECK(last_frame != NULL && last_scratch != NULL);
    memcpy(last_frame, prefix, sizeof prefix);
    read_exactly(client, last_frame + sizeof prefix, bytes - sizeof prefix, true);
    cmq_frame frame;
    size_t needed;
    CHECK_OK(cmq_frame_next((cmq_slice){.data = last_frame, .bytes = bytes}, CMQ_FRAME_BYTES_MAX, &frame, &needed));
    CHECK_OK(cmq_command_parse(&frame, last_scratch, bytes, &last.command));
    last.body = frame.body;
    return true;
}

const kit_answer *kit_answer_of(kit_broker *kit, int client)
{
    const int64_t until = wall_ns() + ANSWER_NS_MAX;
    while (wall_ns() < until) {
        if (take_answer(client)) return &last;
        kit_broker_turn(kit);
        struct pollfd ready = {.fd = client, .events = POLLIN};
        if (kit->threads) (void)poll(&ready, 1, 1);
        else sched_yield();   /* where the disk is waited for, that is another thread's */
    }
    cmq_test_fail(__FILE__, __LINE__, "no answer came");
}

void kit_forget_answer(void)
{
    free(last_frame);
    free(last_scratch);
    last_frame = last_scratch = NULL;
}

bool kit_is_silent(kit_broker *kit, int client)
{
    for (int turn = 0; turn < 3; turn++) kit_broker_turn(kit);
    struct pollfd ready = {.fd = client, .events = POLLIN};
    return poll(&ready, 1, 0) == 0;
}

bool kit_is_closed(kit_broker *kit, int client)
{
    for (int turn = 0; turn < 3; turn++) kit_broker_turn(kit);
    uint8_t byte;
    const ssize_t n = recv(client, &byte, 1, MSG_DONTWAIT | MSG_PEEK);
    return n == 0 || (n < 0 && errno != EAGAIN);
}

const char *kit_text(const kit_answer *answer, const char *name)
{
    static _Thread_local char text[8192];
    cmq_slice value = CMQ_SLICE_NONE;
    if (!cmq_command_find(&answer->command, name, &value)) return "";
    snprintf(text, sizeof text, "%.*s", (int)value.bytes, (const char *)value.data);
    return text;
}

int64_t kit_number(const kit_answer *answer, const char *name)
{
    cmq_slice value;
    int64_t number;
    if (!cmq_command_find(&answer->command, name, &value))
        cmq_test_fail(__FILE__, __LINE__, "the answer has no field %s", name);
    CHECK_OK(cmq_field_i64(value, &number));
    return number;
}

void kit_send_message(int client, int32_t opaque, const char *topic, const char *tag, const char *body)
{
    char properties[256];
    snprintf(properties, sizeof properties, "TAGS\x01%s\x02UNIQ_KEY\x01key%d\x02", tag, opaque);
    const kit_field fields[] = {{"a", "P"},     {"b", topic},           {"c", "TBW102"}, {"d", "4"},        {"e", "0"},
                                {"f", "0"},     {"g", "1700000000000"}, {"h", "0"},      {"i", properties}, {"j", "0"},
                                {"k", "false"}, {"m", "false"},         {NULL, NULL}};
    kit_request(client, 310, opaque, 0, CMQ_HEADER_JSON, fields, body, strlen(body));
}

void kit_pull(int client, int32_t opaque, const char *topic, int64_t offset, int32_t sys_flag, int64_t suspend_ms,
              const char *expression)
{
    char from[24], flag[12], suspend[24];
    snprintf(from, sizeof from, "%" PRId64, offset);
    snprintf(flag, sizeof flag, "%d", sys_flag);
    snprintf(suspend, sizeof suspend, "%" PRId64, suspend_ms);
    const kit_field fields[] = {
        {"consumerGroup", "G"},       {"topic", topic},    {"queueId", "0"},          {"queueOffset", from},
        {"maxMsgNums", "32"},         {"sysFlag", flag},   {"commitOffset", "0"},     {"suspendTimeoutMillis", suspend},
        {"subscription", expression}, {"subVersion", "1"}, {"expressionType", "TAG"}, {NULL, NULL}};
    kit_request(client, 11, opaque, 0, CMQ_HEADER_JSON, fields, NULL, 0);
}
