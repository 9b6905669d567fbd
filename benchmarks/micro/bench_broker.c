/* bench_broker: the cost of a send and of a pull in the broker's loop, over a loopback socket, client and loop a thread
 * each.
 *
 * Figures are the loop thread's own CPU time per message, system calls included, and messages per second of wall time,
 * which the client shares. Sends have JSON headers as the official client writes them (365 B), bodies of 128 B and 1
 * KiB, under either flush mode; in flight per connection: 1, 32, 512. Batches hold 32 messages. Pulls take 32 messages
 * from one queue; held pulls wait for one message that another connection sends.
 *
 * Checked: every answer is a success, queue offsets come without a gap, pulled records parse and carry the bytes that
 *          were sent.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <unistd.h>

#include "broker/cmq_broker.h"
#include "cmq_bench_store.h"
#include "net/cmq_net.h"
#include "store/record/cmq_wire_batch.h"

#define BATCH 32u
#define OUT_BYTES (1u << 20)

typedef struct server {
    cmq_store *store;
    cmq_tables *tables;
    cmq_offsets *offsets;
    cmq_broker *broker;
    cmq_net *net;
    cmq_net_handler inner;
    _Atomic double loop_cpu_s;
} server;

typedef struct client {
    int fd;
    uint8_t *in;
    size_t begin, end, capacity;
} client;

/* The loop's CPU clock, read at the end of each of its turns. */
static server *timed;
static void end_turn(void *state)
{
    timed->inner.turn_end(state);
    atomic_store_explicit(&timed->loop_cpu_s, bench_cpu_s(), memory_order_relaxed);
}

static void start_server(server *s, const char *path, cmq_flush_mode flush)
{
    memset(s, 0, sizeof *s);
    const cmq_store_options store = {
        .path = path, .create = true, .background = true, .flush = flush, .index_disabled = true};
    BENCH_CHECK(cmq_store_open(&s->store, &store) == CMQ_OK);
    BENCH_CHECK(cmq_tables_create(&s->tables) == CMQ_OK);
    BENCH_CHECK(cmq_offsets_create(&s->offsets, 0) == CMQ_OK);
    const cmq_topic_entry topic = {.name = cmq_slice_of_text("BenchmarkTest"),
                                   .read_queues = 4,
                                   .write_queues = 4,
                                   .perm = CMQ_PERM_READ | CMQ_PERM_WRITE};
    BENCH_CHECK(cmq_tables_put_topic(s->tables, &topic) == CMQ_OK);
    const cmq_group_entry group = {.name = cmq_slice_of_text("G"), .consume_enable = true};
    BENCH_CHECK(cmq_tables_put_group(s->tables, &group) == CMQ_OK);
    const cmq_subscription subscription = {.topic = topic.name};
    const cmq_consumer_entry consumer = {.group = group.name, .subscription_count = 1, .subscriptions = &subscription};
    BENCH_CHECK(cmq_tables_put_consumer(s->tables, &consumer) == CMQ_OK);
    const cmq_broker_options broker = {.store = s->store,
                                       .tables = s->tables,
                                       .offsets = s->offsets,
                                       .cluster = "DefaultCluster",
                                       .broker_ip = "127.0.0.1",
                                       .store_host = {.address = {127, 0, 0, 1}, .port = 10911}};
    BENCH_CHECK(cmq_broker_create(&s->broker, &broker) == CMQ_OK);
    timed = s;
    s->inner = cmq_broker_handler(s->broker);
    const char *address = "127.0.0.1:0";
    cmq_net_options net = {.addresses = &address, .address_count = 1, .handler = s->inner};
    net.handler.turn_end = end_turn;
    BENCH_CHECK(cmq_net_create(&s->net, &net) == CMQ_OK && cmq_net_start(s->net) == CMQ_OK);
}

static void stop_server(server *s)
{
    cmq_net_destroy(s->net);
    cmq_broker_destroy(s->broker);
    cmq_offsets_destroy(s->offsets);
    cmq_tables_destroy(s->tables);
    BENCH_CHECK(cmq_store_close(s->store) == CMQ_OK);
}

static client connect_to(const server *s)
{
    client c = {.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), .capacity = 4 * OUT_BYTES};
    const int one = 1;
    struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons(cmq_net_port(s->net, 0)), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    BENCH_CHECK(c.fd >= 0 && connect(c.fd, (struct sockaddr *)&to, sizeof to) == 0);
    BENCH_CHECK(setsockopt(c.fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0);
    c.in = bench_alloc(c.capacity);
    return c;
}

static void close_client(client *c)
{
    close(c->fd);
    free(c->in);
}

static void send_all(const client *c, const uint8_t *data, size_t bytes)
{
    while (bytes > 0) {
        const ssize_t n = send(c->fd, data, bytes, MSG_NOSIGNAL);
        BENCH_CHECK(n > 0);
        data += n;
        bytes -= (size_t)n;
    }
}

/* The next answer; its slices live until the next call. */
static cmq_frame next_frame(client *c)
{
    cmq_frame frame;
    size_t needed;
    for (;;) {
        const cmq_slice have = {.data = c->in + c->begin, .bytes = c->end - c->begin};
        const cmq_status status = cmq_frame_next(have, CMQ_FRAME_BYTES_MAX, &frame, &needed);
        if (status == CMQ_OK) break;
        BENCH_CHECK(status == CMQ_AGAIN);
        memmove(c->in, c->in + c->begin, have.bytes);
        c->begin = 0;
        c->end = have.bytes;
        const ssize_t n = recv(c->fd, c->in + c->end, c->capacity - c->end, 0);
        BENCH_CHECK(n > 0);
        c->end += (size_t)n;
    }
    c->begin += frame.bytes;
    return frame;
}

static int64_t field_of(const cmq_frame *frame, const char *name)
{
    static uint8_t scratch[1 << 20];
    static cmq_command command;
    cmq_slice value;
    int64_t number;
    BENCH_CHECK(cmq_command_parse(frame, scratch, sizeof scratch, &command) == CMQ_OK && command.code == 0);
    BENCH_CHECK(cmq_command_find(&command, name, &value) && cmq_field_i64(value, &number) == CMQ_OK);
    return number;
}

/* A send as the Java client writes it; returns its bytes. */
static size_t write_send(uint8_t *into, int32_t code, int32_t opaque, int32_t queue_id, const uint8_t *body,
                         size_t bytes)
{
    char properties[256], queue[12];
    snprintf(properties, sizeof properties,
             "KEYS\001key-%d\002UNIQ_KEY\0017F000001000018B4AAC2%08X0000\002WAIT\001true\002TAGS\001TagA\002", opaque,
             (unsigned)opaque);
    snprintf(queue, sizeof queue, "%d", queue_id);
    cmq_command_writer w;
    cmq_command_begin(&w, into, 4096, CMQ_HEADER_JSON, code, opaque, 0, CMQ_SLICE_NONE);
    cmq_command_add_text(&w, CMQ_NAME("a"), CMQ_NAME("please_rename_unique_group_name"));
    cmq_command_add_text(&w, CMQ_NAME("b"), CMQ_NAME("BenchmarkTest"));
    cmq_command_add_text(&w, CMQ_NAME("c"), CMQ_NAME("TBW102"));
    cmq_command_add_text(&w, CMQ_NAME("d"), CMQ_NAME("4"));
    cmq_command_add_text(&w, CMQ_NAME("e"), cmq_slice_of_text(queue));
    cmq_command_add_text(&w, CMQ_NAME("f"), CMQ_NAME("0"));
    cmq_command_add_text(&w, CMQ_NAME("g"), CMQ_NAME("1700000000000"));
    cmq_command_add_text(&w, CMQ_NAME("h"), CMQ_NAME("0"));
    cmq_command_add_text(&w, CMQ_NAME("i"), cmq_slice_of_text(properties));
    cmq_command_add_text(&w, CMQ_NAME("j"), CMQ_NAME("0"));
    cmq_command_add_text(&w, CMQ_NAME("k"), CMQ_NAME("false"));
    cmq_command_add_text(&w, CMQ_NAME("m"), code == 320 ? CMQ_NAME("true") : CMQ_NAME("false"));
    cmq_command_add_text(&w, CMQ_NAME("n"), CMQ_NAME("broker-a"));
    const size_t header = cmq_command_end(&w, bytes);
    memcpy(into + header, body, bytes);
    return header + bytes;
}

static size_t write_batch(uint8_t *into, const uint8_t *body, size_t bytes)
{
    uint8_t *end = into;
    for (uint32_t i = 0; i < BATCH; i++) {
        const cmq_wire_batch_element element = {.body = {.data = body, .bytes = bytes},
                                                .properties = CMQ_NAME("UNIQ_KEY\0017F000001000018B4AAC200000000\002")};
        end = cmq_wire_batch_write(end, &element);
    }
    return (size_t)(end - into);
}

typedef struct timing {
    double wall_s, cpu_s;
} timing;

/* `count` requests with `depth` in flight on one connection to queue 0; the answers' queue offsets go on from
 * *offset. */
static timing send_many(server *s, client *c, uint32_t count, uint32_t depth, int32_t code, const uint8_t *body,
                        size_t bytes, int64_t *offset)
{
    static uint8_t out[OUT_BYTES];
    const uint32_t step = code == 320 ? BATCH : 1;
    const double wall = bench_wall_s(), cpu = atomic_load(&s->loop_cpu_s);
    uint32_t sent = 0, answered = 0;
    while (answered < count) {
        size_t used = 0;
        /* Half of the window at a time, so that both sides always have something to do. */
        const uint32_t burst = depth > 1 ? depth / 2 : 1;
        for (uint32_t i = 0; i < burst && sent < count && sent - answered < depth && used + bytes + 4096 < OUT_BYTES;
             i++, sent++)
            used += write_send(out + used, code, (int32_t)sent, 0, body, bytes);
        if (used > 0) send_all(c, out, used);
        do {
            const cmq_frame frame = next_frame(c);
            BENCH_CHECK(field_of(&frame, "queueOffset") == *offset);
            *offset += step;
            answered++;
        } while (answered < count && (sent - answered > depth / 2 || (sent == count && answered < sent)));
    }
    return (timing){.wall_s = bench_wall_s() - wall, .cpu_s = atomic_load(&s->loop_cpu_s) - cpu};
}

static void measure_sends(server *s, const char *name, uint32_t count, uint32_t depth, int32_t code, size_t body_bytes,
                          int64_t *offset)
{
    static uint8_t body[OUT_BYTES];
    uint8_t one[2048];
    memset(one, 'x', sizeof one);
    const size_t bytes = code == 320 ? write_batch(body, one, body_bytes) : body_bytes;
    if (code != 320) memset(body, 'x', body_bytes);
    client c = connect_to(s);
    double wall[BENCH_REPEATS], cpu[BENCH_REPEATS];
    send_many(s, &c, count / 8 + 1, depth, code, body, bytes, offset);
    for (int i = 0; i < BENCH_REPEATS; i++) {
        const timing t = send_many(s, &c, count, depth, code, body, bytes, offset);
        wall[i] = t.wall_s;
        cpu[i] = t.cpu_s;
    }
    close_client(&c);
    char full[128];
    const double messages = (double)count * (code == 320 ? BATCH : 1);
    snprintf(full, sizeof full, "broker/send/%s/loop", name);
    bench_print(full, cpu, messages, (double)body_bytes);
    snprintf(full, sizeof full, "broker/send/%s/wall", name);
    bench_print(full, wall, messages, (double)body_bytes);
}

static void write_pull(client *c, int32_t opaque, int64_t from, bool may_hold)
{
    uint8_t out[2048];
    cmq_command_writer w;
    cmq_command_begin(&w, out, sizeof out, CMQ_HEADER_JSON, 11, opaque, 0, CMQ_SLICE_NONE);
    cmq_command_add_text(&w, CMQ_NAME("consumerGroup"), CMQ_NAME("G"));
    cmq_command_add_text(&w, CMQ_NAME("topic"), CMQ_NAME("BenchmarkTest"));
    cmq_command_add_i64(&w, CMQ_NAME("queueId"), 0);
    cmq_command_add_i64(&w, CMQ_NAME("queueOffset"), from);
    cmq_command_add_i64(&w, CMQ_NAME("maxMsgNums"), 32);
    cmq_command_add_i64(&w, CMQ_NAME("sysFlag"), may_hold ? 2 : 0);
    cmq_command_add_i64(&w, CMQ_NAME("commitOffset"), 0);
    cmq_command_add_i64(&w, CMQ_NAME("suspendTimeoutMillis"), 15000);
    cmq_command_add_i64(&w, CMQ_NAME("subVersion"), 0);
    cmq_command_add_text(&w, CMQ_NAME("expressionType"), CMQ_NAME("TAG"));
    send_all(c, out, cmq_command_end(&w, 0));
}

/* Pull all of [from, end) with one request in flight. */
static timing pull_all(server *s, client *c, int64_t from, int64_t end, size_t body_bytes)
{
    const double wall = bench_wall_s(), cpu = atomic_load(&s->loop_cpu_s);
    for (int32_t opaque = 0; from < end; opaque++) {
        write_pull(c, opaque, from, false);
        const cmq_frame frame = next_frame(c);
        const int64_t next = field_of(&frame, "nextBeginOffset");
        int64_t messages = 0;
        for (cmq_slice rest = frame.body; rest.bytes > 0; messages++) {
            cmq_record_view view;
            BENCH_CHECK(cmq_record_parse(rest.data, rest.bytes, -1, CMQ_RECORD_CHECK_BODY_CRC, &view) == CMQ_OK);
            BENCH_CHECK(view.queue_offset == from + messages && view.body.bytes == body_bytes);
            rest.data += view.record_bytes;
            rest.bytes -= view.record_bytes;
        }
        BENCH_CHECK(messages > 0 && next == from + messages);
        from = next;
    }
    return (timing){.wall_s = bench_wall_s() - wall, .cpu_s = atomic_load(&s->loop_cpu_s) - cpu};
}

static void measure_pulls(server *s, const char *name, int64_t from, int64_t end, size_t body_bytes)
{
    client c = connect_to(s);
    double wall[BENCH_REPEATS], cpu[BENCH_REPEATS];
    for (int i = 0; i < BENCH_REPEATS; i++) {
        const timing t = pull_all(s, &c, from, end, body_bytes);
        wall[i] = t.wall_s;
        cpu[i] = t.cpu_s;
    }
    close_client(&c);
    char full[128];
    snprintf(full, sizeof full, "broker/pull/%s/loop", name);
    bench_print(full, cpu, (double)(end - from), (double)body_bytes);
    snprintf(full, sizeof full, "broker/pull/%s/wall", name);
    bench_print(full, wall, (double)(end - from), (double)body_bytes);
}

/* From the beginning of a send to the end of the pull that was held for it: median and 99th percentile, in ns. */
static void measure_holds(server *s, const char *flush, uint32_t count, int64_t *offset)
{
    client consumer = connect_to(s), producer = connect_to(s);
    double *latency = bench_alloc(count * sizeof *latency);
    uint8_t out[8192], body[128];
    memset(body, 'h', sizeof body);
    for (uint32_t i = 0; i < count; i++) {
        write_pull(&consumer, (int32_t)i, *offset, true);
        usleep(100);   /* until it is held, and the loop sleeps: its wake-up is part of the figure */
        const size_t bytes = write_send(out, 310, (int32_t)i, 0, body, sizeof body);
        const double begin = bench_wall_s();
        send_all(&producer, out, bytes);
        const cmq_frame pulled = next_frame(&consumer);
        latency[i] = bench_wall_s() - begin;
        BENCH_CHECK(field_of(&pulled, "nextBeginOffset") == *offset + 1);
        const cmq_frame answer = next_frame(&producer);
        BENCH_CHECK(field_of(&answer, "queueOffset") == *offset);
        (*offset)++;
    }
    qsort(latency, count, sizeof *latency, bench_compare);
    static const struct {
        const char *name;
        double at;
    } parts[] = {{"p50", 0.5}, {"p99", 0.99}, {"p99.9", 0.999}};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        printf("{\"name\": \"broker/hold/%s/%s\", \"value\": %.0f, \"unit\": \"ns\", \"messages\": %u}\n", flush,
               parts[i].name, latency[(uint32_t)(parts[i].at * (count - 1))] * 1e9, count);
    free(latency);
    close_client(&consumer);
    close_client(&producer);
}

static void measure_async(const char *path, bool quick)
{
    const uint32_t scale = quick ? 64 : 200000;
    server s;
    int64_t offset = 0;
    start_server(&s, path, CMQ_FLUSH_ASYNC);
    measure_sends(&s, "async/128B/depth1", scale / 8, 1, 310, 128, &offset);
    measure_sends(&s, "async/128B/depth32", scale, 32, 310, 128, &offset);
    const int64_t small_from = offset;
    measure_sends(&s, "async/128B/depth512", scale, 512, 310, 128, &offset);
    measure_pulls(&s, "128B", small_from, small_from + scale / 2, 128);
    measure_sends(&s, "async/128B/batch32", scale / 16, 16, 320, 128, &offset);
    const int64_t large_from = offset;
    measure_sends(&s, "async/1KiB/depth512", scale / 4, 512, 310, 1024, &offset);
    measure_pulls(&s, "1KiB", large_from, large_from + scale / 8, 1024);
    measure_holds(&s, "async", quick ? 20 : 5000, &offset);
    stop_server(&s);
}

static void measure_sync(const char *path, bool quick)
{
    server s;
    int64_t offset = 0;
    start_server(&s, path, CMQ_FLUSH_SYNC);
    measure_sends(&s, "sync/128B/depth1", quick ? 8 : 1000, 1, 310, 128, &offset);
    measure_sends(&s, "sync/128B/depth512", quick ? 64 : 50000, 512, 310, 128, &offset);
    measure_holds(&s, "sync", quick ? 20 : 3000, &offset);
    stop_server(&s);
}

int main(int argc, char **argv)
{
    const bool quick = bench_is_quick(argc, argv);
    char path[CMQ_PATH_BYTES], store[CMQ_PATH_BYTES];
    bench_make_directory(path);
    BENCH_CHECK(cmq_path_join(store, path, "async") == CMQ_OK);
    measure_async(store, quick);
    BENCH_CHECK(cmq_path_join(store, path, "sync") == CMQ_OK);
    measure_sync(store, quick);
    bench_remove_directory(path);
    return 0;
}
