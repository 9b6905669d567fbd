/* cmq_fake_broker: see cmq_fake_broker.h. */
#include "support/cmq_fake_broker.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cmq_crc32.h"
#include "store/record/cmq_record.h"
#include "store/record/cmq_wire_batch.h"
#include "support/cmq_test.h"
#include "wire/cmq_codes.h"
#include "wire/cmq_command.h"
#include "wire/cmq_end_header.h"
#include "wire/cmq_pop_header.h"
#include "wire/cmq_pull_header.h"
#include "wire/cmq_send_header.h"

enum {
    CONNS_MAX = 64,
    QUEUES_MAX = 16,
    FAULT_AT = 37,
    SCRATCH_BYTES = 1 << 16,
    FIRST_OFFSET = 1000,
    HALVES_MAX = 1024
};

#define HALF_PLACE INT64_C(0xAB0000000000)   /* in the log, of the first half message */

#define POP_MS INT64_C(1700000000000)

typedef struct fake_message {
    uint8_t *record;
    uint32_t bytes;
} fake_message;

typedef struct fake_queue {
    fake_message *messages;
    size_t count, capacity;
    size_t popped, acked;
} fake_queue;

/* A half message, until it is committed. */
typedef struct fake_half {
    int32_t queue_id;
    int64_t born_ms;
    char *topic;
    uint8_t *body, *properties;
    size_t body_bytes, property_bytes;
} fake_half;

typedef struct fake_hold {
    bool held;
    int32_t opaque;
    cmq_header_format format;
    int64_t from;
} fake_hold;

typedef struct fake_conn {
    int fd;
    uint8_t *in, *out;
    size_t in_used, in_capacity, out_used, out_capacity;
    fake_hold holds[QUEUES_MAX];
} fake_conn;

struct cmq_fake_broker {
    pthread_t thread;
    int listener, stop_fd;
    uint16_t port;
    cmq_fake_fault fault;
    uint32_t queue_count;
    fake_queue queues[QUEUES_MAX];
    fake_conn conns[CONNS_MAX];
    size_t conn_count;
    uint64_t sends, pops, acks;
    fake_half halves[HALVES_MAX];
    size_t half_count;
    cmq_command command;
    uint8_t scratch[SCRATCH_BYTES];
};

/* ---- the stored messages ---- */

static void put_record(fake_queue *queue, const uint8_t *record, uint32_t bytes)
{
    if (queue->count == queue->capacity) {
        queue->capacity = queue->capacity > 0 ? 2 * queue->capacity : 256;
        queue->messages = realloc(queue->messages, queue->capacity * sizeof *queue->messages);
        CHECK(queue->messages != NULL);
    }
    uint8_t *copy = malloc(bytes > 0 ? bytes : 1);
    CHECK(copy != NULL);
    if (bytes > 0) memcpy(copy, record, bytes);
    queue->messages[queue->count++] = (fake_message){.record = copy, .bytes = bytes};
}

static void store(fake_queue *queue, int32_t queue_id, const cmq_send_header *header, cmq_slice body,
                  cmq_slice properties, bool changed)
{
    uint8_t *own = malloc(body.bytes);
    CHECK(own != NULL);
    memcpy(own, body.data, body.bytes);
    if (changed) own[body.bytes / 2] ^= 4;
    const cmq_record_fields fields = {
        .topic = header->topic,
        .body = {.data = own, .bytes = body.bytes},
        .properties = properties,
        .queue_offset = FIRST_OFFSET + (int64_t)queue->count,
        .queue_id = queue_id,
        .born_timestamp_ms = header->born_ms,
    };
    cmq_record_sizes sizes;
    CHECK_OK(cmq_record_measure(&fields, &sizes));
    uint8_t *record = malloc(sizes.record_bytes);
    CHECK(record != NULL);
    cmq_record_encode(record, &fields, &sizes);
    put_record(queue, record, sizes.record_bytes);
    free(record);
    free(own);
}

/* Whether it is this send's turn to go wrong in such a way. */
static bool errs(const cmq_fake_broker *broker, cmq_fake_fault fault)
{
    return broker->fault == fault && broker->sends == FAULT_AT;
}

static void store_one(cmq_fake_broker *broker, const cmq_send_header *header, cmq_slice body, cmq_slice properties)
{
    fake_queue *queue = &broker->queues[header->queue_id];
    if (errs(broker, CMQ_FAKE_LOSES_OFFSET)) return;
    if (errs(broker, CMQ_FAKE_SKIPS) || errs(broker, CMQ_FAKE_LOSES)) put_record(queue, NULL, 0);
    if (errs(broker, CMQ_FAKE_LOSES)) return;
    store(queue, header->queue_id, header, body, properties, errs(broker, CMQ_FAKE_CHANGES));
    if (errs(broker, CMQ_FAKE_DOUBLES)) store(queue, header->queue_id, header, body, properties, false);
}

/* ---- answers ---- */

static uint8_t *reserve(fake_conn *conn, size_t bytes)
{
    if (conn->out_capacity - conn->out_used < bytes) {
        conn->out_capacity = 2 * conn->out_capacity + bytes;
        conn->out = realloc(conn->out, conn->out_capacity);
        CHECK(conn->out != NULL);
    }
    return conn->out + conn->out_used;
}

typedef struct fake_field {
    const char *name;
    int64_t value;
    const char *text;   /* in place of the value */
} fake_field;

static void answer(fake_conn *conn, cmq_header_format format, int32_t opaque, int32_t code, const fake_field *fields,
                   size_t count, cmq_slice body)
{
    cmq_command_writer writer;
    uint8_t *into = reserve(conn, 4096 + body.bytes);
    cmq_command_begin(&writer, into, 4096, format, code, opaque, CMQ_COMMAND_RESPONSE,
                      CMQ_NAME("remark of the fake broker"));
    for (size_t i = 0; i < count; i++) {
        const cmq_slice name = cmq_slice_of_text(fields[i].name);
        if (fields[i].text != NULL) {
            cmq_command_add_text(&writer, name, cmq_slice_of_text(fields[i].text));
        } else {
            cmq_command_add_i64(&writer, name, fields[i].value);
        }
    }
    const size_t bytes = cmq_command_end(&writer, body.bytes);
    CHECK(bytes > 0 && bytes <= 4096);
    if (body.bytes > 0) memcpy(into + bytes, body.data, body.bytes);
    conn->out_used += bytes + body.bytes;
}

static void answer_pull(cmq_fake_broker *broker, fake_conn *conn, uint32_t queue_id, const fake_hold *pull)
{
    const fake_queue *queue = &broker->queues[queue_id];
    uint8_t *body = NULL;
    size_t bytes = 0;
    int64_t next = pull->from;
    for (int count = 0; count < 32 && next < FIRST_OFFSET + (int64_t)queue->count; count++, next++) {
        const fake_message *message = &queue->messages[next - FIRST_OFFSET];
        body = realloc(body, bytes + message->bytes + 1);
        CHECK(body != NULL);
        if (message->bytes > 0) memcpy(body + bytes, message->record, message->bytes);
        bytes += message->bytes;
    }
    const fake_field fields[] = {
        {.name = "suggestWhichBrokerId"}, {.name = "nextBeginOffset", .value = next}, {.name = "minOffset"},
        {.name = "maxOffset", .value = next}};
    answer(conn, pull->format, pull->opaque, bytes > 0 ? 0 : 20, fields, 4, (cmq_slice){.data = body, .bytes = bytes});
    free(body);
}

static void wake_holds(cmq_fake_broker *broker)
{
    for (size_t i = 0; i < broker->conn_count; i++) {
        for (uint32_t q = 0; q < broker->queue_count; q++) {
            fake_hold *hold = &broker->conns[i].holds[q];
            if (!hold->held || hold->from >= FIRST_OFFSET + (int64_t)broker->queues[q].count) continue;
            hold->held = false;
            answer_pull(broker, &broker->conns[i], q, hold);
        }
    }
}

/* ---- requests ---- */

static uint8_t *copy_of(cmq_slice bytes)
{
    uint8_t *copy = calloc(1, bytes.bytes + 1);
    CHECK(copy != NULL);
    memcpy(copy, bytes.data, bytes.bytes);
    return copy;
}

static void keep_half(cmq_fake_broker *broker, fake_conn *conn, const cmq_send_header *header, cmq_slice body)
{
    char id[64];
    CHECK_INT(header->sys_flag, 4);
    CHECK(broker->half_count < HALVES_MAX);
    snprintf(id, sizeof id, "7F00000100002A9F%016llX", (long long)(HALF_PLACE + (int64_t)broker->half_count));
    const fake_field fields[] = {{.name = "queueId", .value = header->queue_id},
                                 {.name = "queueOffset", .value = (int64_t)broker->half_count},
                                 {.name = "msgId", .text = id}};
    broker->halves[broker->half_count++] = (fake_half){
        .queue_id = header->queue_id,
        .born_ms = header->born_ms,
        .topic = (char *)copy_of(header->topic),
        .body = copy_of(body),
        .body_bytes = body.bytes,
        .properties = copy_of(header->properties),
        .property_bytes = header->properties.bytes,
    };
    answer(conn, broker->command.format, broker->command.opaque, 0, fields, errs(broker, CMQ_FAKE_NO_FIELDS) ? 2 : 3,
           CMQ_SLICE_NONE);
}

static void serve_end(cmq_fake_broker *broker, fake_conn *conn)
{
    const cmq_command *command = &broker->command;
    cmq_end_header header;
    CHECK_OK(cmq_end_header_read(command, &header));
    CHECK(cmq_slice_equal(header.group, CMQ_NAME("PID_cometmq_bench")));
    CHECK(header.queue_offset >= 0 && (uint64_t)header.queue_offset < broker->half_count);
    CHECK_INT(header.physical_offset, HALF_PLACE + header.queue_offset);
    CHECK(header.outcome == CMQ_END_COMMIT && !header.from_check);
    if (broker->fault == CMQ_FAKE_REFUSES_ENDS && broker->sends % 4 == 0) {
        answer(conn, command->format, command->opaque, 1, NULL, 0, CMQ_SLICE_NONE);
        return;
    }
    const fake_half *half = &broker->halves[header.queue_offset];
    const cmq_send_header stored = {
        .topic = cmq_slice_of_text(half->topic), .queue_id = half->queue_id, .born_ms = half->born_ms};
    store_one(broker, &stored, (cmq_slice){.data = half->body, .bytes = half->body_bytes},
              (cmq_slice){.data = half->properties, .bytes = half->property_bytes});
    answer(conn, command->format, command->opaque, 0, NULL, 0, CMQ_SLICE_NONE);
}

static bool serve_send(cmq_fake_broker *broker, fake_conn *conn, cmq_slice body)
{
    const cmq_command *command = &broker->command;
    const bool oneway = (command->flag & CMQ_COMMAND_ONEWAY) != 0;
    cmq_send_header header;
    CHECK_OK(cmq_send_header_read(command, &header));
    CHECK(header.queue_id >= 0 && (uint32_t)header.queue_id < broker->queue_count);
    broker->sends++;
    if (errs(broker, CMQ_FAKE_CLOSES)) return false;
    if (errs(broker, CMQ_FAKE_FORGETS)) return true;
    if (errs(broker, CMQ_FAKE_BABBLES)) {
        memset(reserve(conn, 64), 'x', 64);
        conn->out_used += 64;
        return true;
    }
    if (broker->fault == CMQ_FAKE_REFUSES_ALL || (broker->fault == CMQ_FAKE_REFUSES_SOME && broker->sends % 4 == 0)) {
        answer(conn, command->format, command->opaque, 2, NULL, 0, CMQ_SLICE_NONE);
        return true;
    }
    if (memmem(header.properties.data, header.properties.bytes, "TRAN_MSG\1true", 13) != NULL) {
        keep_half(broker, conn, &header, body);
        return true;
    }
    const int64_t offset = FIRST_OFFSET + (int64_t)broker->queues[header.queue_id].count;
    if (command->code == 320) {
        cmq_wire_batch_element element;
        cmq_status status;
        CHECK(header.batch);
        while ((status = cmq_wire_batch_next(&body, &element)) == CMQ_OK)
            store_one(broker, &header, element.body, element.properties);
        CHECK_STATUS(status, CMQ_END);
    } else {
        store_one(broker, &header, body, header.properties);
    }
    const fake_field fields[] = {{.name = "queueId", .value = header.queue_id + errs(broker, CMQ_FAKE_OTHER_QUEUE)},
                                 {.name = "queueOffset", .value = offset},
                                 {.name = "msgId", .value = 1}};
    if (!oneway)
        answer(conn, command->format, command->opaque, 0, fields, errs(broker, CMQ_FAKE_NO_FIELDS) ? 0 : 3,
               CMQ_SLICE_NONE);
    return true;
}

static void serve_pull(cmq_fake_broker *broker, fake_conn *conn)
{
    const cmq_command *command = &broker->command;
    cmq_pull_header header;
    CHECK_OK(cmq_pull_header_read(command, &header));
    CHECK(header.queue_id >= 0 && (uint32_t)header.queue_id < broker->queue_count);
    CHECK_INT(header.sys_flag, 6);
    if (broker->fault == CMQ_FAKE_REFUSES_PULLS) {
        answer(conn, command->format, command->opaque, 24, NULL, 0, CMQ_SLICE_NONE);
        return;
    }
    conn->holds[header.queue_id] =
        (fake_hold){.held = true, .opaque = command->opaque, .format = command->format, .from = header.queue_offset};
}

/* A batch of the first queue that has one. */
static void serve_pop(cmq_fake_broker *broker, fake_conn *conn)
{
    const cmq_command *command = &broker->command;
    cmq_pop_header header;
    uint32_t q = 0, bytes = 0;
    CHECK_OK(cmq_pop_header_read(command, &header));
    CHECK(header.queue_id == -1 && header.max_messages > 0 && header.max_messages <= 32 && header.invisible_ms > 0 &&
          header.poll_ms > 0);
    while (q < broker->queue_count && broker->queues[q].popped == broker->queues[q].count) q++;
    if (q == broker->queue_count) {
        answer(conn, command->format, command->opaque, 210, NULL, 0, CMQ_SLICE_NONE);
        return;
    }
    fake_queue *queue = &broker->queues[q];
    const size_t left = queue->count - queue->popped, first = queue->popped,
                 count = left < (size_t)header.max_messages ? left : (size_t)header.max_messages;
    for (size_t i = 0; i < count; i++) bytes += queue->messages[first + i].bytes;
    uint8_t *into = reserve(conn, 4096 + bytes);
    char starts[64];
    cmq_command_writer writer;
    cmq_command_begin(&writer, into, 4096, command->format, 0, command->opaque, CMQ_COMMAND_RESPONSE,
                      CMQ_NAME("FOUND"));
    if (broker->fault != CMQ_FAKE_POPS_BARE) {
        snprintf(starts, sizeof starts, "0 77 5;0 %u %zu", q, FIRST_OFFSET + first);
        cmq_command_add_i64(&writer, CMQ_NAME("popTime"), POP_MS);
        cmq_command_add_i64(&writer, CMQ_NAME("invisibleTime"), header.invisible_ms);
        cmq_command_add_i64(&writer, CMQ_NAME("reviveQid"), 3);
        cmq_command_add_text(&writer, CMQ_NAME("startOffsetInfo"), cmq_slice_of_text(starts));
    }
    size_t at = cmq_command_end(&writer, bytes);
    CHECK(at > 0 && at <= 4096);
    for (size_t i = 0; i < count; i++) {
        memcpy(into + at, queue->messages[first + i].record, queue->messages[first + i].bytes);
        at += queue->messages[first + i].bytes;
    }
    conn->out_used += at;
    if (++broker->pops != 2 || broker->fault != CMQ_FAKE_POPS_TWICE) queue->popped += count;
}

static void serve_ack(cmq_fake_broker *broker, fake_conn *conn)
{
    const cmq_command *command = &broker->command;
    cmq_pop_header header;
    char handle[128];
    long long start, invisible_ms;
    CHECK_OK(cmq_pop_header_read(command, &header));
    CHECK(header.queue_id >= 0 && (uint32_t)header.queue_id < broker->queue_count &&
          header.handle.bytes < sizeof handle);
    fake_queue *queue = &broker->queues[header.queue_id];
    CHECK(header.offset >= FIRST_OFFSET && header.offset < FIRST_OFFSET + (int64_t)queue->popped);
    CHECK(sscanf((const char *)header.handle.data, "%lld %*s %lld", &start, &invisible_ms) == 2);
    CHECK(start <= header.offset && start > header.offset - 32);
    snprintf(handle, sizeof handle, "%lld %lld %lld 3 0 broker-f %d %lld", start, (long long)POP_MS, invisible_ms,
             header.queue_id, (long long)header.offset);
    CHECK(cmq_slice_equal(header.handle, cmq_slice_of_text(handle)));
    if (++broker->acks != FAULT_AT || broker->fault != CMQ_FAKE_FORGETS_ACK) queue->acked++;
    answer(conn, command->format, command->opaque, broker->fault == CMQ_FAKE_REFUSES_ACKS ? 4 : 0, NULL, 0,
           CMQ_SLICE_NONE);
}

/* The last offset, or the group's. */
static void serve_offset(cmq_fake_broker *broker, fake_conn *conn)
{
    cmq_slice text;
    int32_t queue_id;
    CHECK(cmq_command_find(&broker->command, "queueId", &text));
    CHECK_OK(cmq_field_i32(text, &queue_id));
    const fake_queue *queue = &broker->queues[queue_id];
    const bool is_last = broker->command.code == 30;
    if (!is_last && queue->popped == 0) {
        answer(conn, broker->command.format, broker->command.opaque, 22, NULL, 0, CMQ_SLICE_NONE);
        return;
    }
    const fake_field fields[] = {
        {.name = "offset", .value = FIRST_OFFSET + (int64_t)(is_last ? queue->count : queue->acked)}};
    answer(conn, broker->command.format, broker->command.opaque, 0, fields, 1, CMQ_SLICE_NONE);
}

/* False: close the connection. */
static bool serve(cmq_fake_broker *broker, fake_conn *conn, const cmq_frame *frame)
{
    CHECK_OK(cmq_command_parse(frame, broker->scratch, SCRATCH_BYTES, &broker->command));
    switch (broker->command.code) {
    case 310:
    case 320:
        return serve_send(broker, conn, frame->body);
    case CMQ_REQUEST_END_TRANSACTION:
        serve_end(broker, conn);
        return true;
    case 11:
        serve_pull(broker, conn);
        return true;
    case CMQ_REQUEST_POP_MESSAGE:
        serve_pop(broker, conn);
        return true;
    case CMQ_REQUEST_ACK_MESSAGE:
        serve_ack(broker, conn);
        return true;
    default:
        CHECK(broker->command.code == 30 || broker->command.code == 14);
        serve_offset(broker, conn);
        return true;
    }
}

/* ---- sockets ---- */

static bool read_conn(cmq_fake_broker *broker, fake_conn *conn)
{
    if (conn->in_capacity - conn->in_used < 65536) {
        conn->in_capacity += 1 << 20;
        conn->in = realloc(conn->in, conn->in_capacity);
        CHECK(conn->in != NULL);
    }
    const ssize_t got = recv(conn->fd, conn->in + conn->in_used, conn->in_capacity - conn->in_used, 0);
    if (got <= 0) return false;
    conn->in_used += (size_t)got;
    size_t at = 0, needed;
    cmq_frame frame;
    while (cmq_frame_next((cmq_slice){.data = conn->in + at, .bytes = conn->in_used - at}, CMQ_FRAME_BYTES_MAX, &frame,
                          &needed) == CMQ_OK) {
        if (!serve(broker, conn, &frame)) return false;
        at += frame.bytes;
    }
    memmove(conn->in, conn->in + at, conn->in_used - at);
    conn->in_used -= at;
    return true;
}

/* Whole: our clients always read. */
static void write_conn(fake_conn *conn)
{
    for (size_t at = 0; at < conn->out_used;) {
        const ssize_t sent = send(conn->fd, conn->out + at, conn->out_used - at, MSG_NOSIGNAL);
        if (sent <= 0) break;   /* the client has gone */
        at += (size_t)sent;
    }
    conn->out_used = 0;
}

static void close_conn(cmq_fake_broker *broker, size_t index)
{
    fake_conn *conn = &broker->conns[index];
    close(conn->fd);
    free(conn->in);
    free(conn->out);
    *conn = broker->conns[--broker->conn_count];
}

static void *run(void *context)
{
    cmq_fake_broker *broker = context;
    for (;;) {
        struct pollfd wanted[CONNS_MAX + 2] = {{.fd = broker->stop_fd, .events = POLLIN},
                                               {.fd = broker->listener, .events = POLLIN}};
        for (size_t i = 0; i < broker->conn_count; i++)
            wanted[2 + i] = (struct pollfd){.fd = broker->conns[i].fd, .events = POLLIN};
        const size_t count = broker->conn_count;
        CHECK(poll(wanted, (nfds_t)(2 + count), -1) > 0);
        if (wanted[0].revents != 0) return NULL;
        for (size_t i = count; i > 0; i--)   /* from the last: closing moves the last one */
            if (wanted[1 + i].revents != 0 && !read_conn(broker, &broker->conns[i - 1])) close_conn(broker, i - 1);
        wake_holds(broker);
        for (size_t i = 0; i < broker->conn_count; i++) write_conn(&broker->conns[i]);
        if (wanted[1].revents != 0) {
            CHECK(broker->conn_count < CONNS_MAX);
            const int fd = accept(broker->listener, NULL, NULL);
            CHECK(fd >= 0);
            broker->conns[broker->conn_count++] = (fake_conn){.fd = fd};
        }
    }
}

cmq_fake_broker *cmq_fake_broker_start(uint32_t queues, cmq_fake_fault fault)
{
    cmq_fake_broker *broker = calloc(1, sizeof *broker);
    CHECK(broker != NULL && queues <= QUEUES_MAX);
    broker->queue_count = queues;
    broker->fault = fault;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof address;
    broker->listener = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(bind(broker->listener, (struct sockaddr *)&address, sizeof address) == 0);
    CHECK(listen(broker->listener, CONNS_MAX) == 0);
    CHECK(getsockname(broker->listener, (struct sockaddr *)&address, &bytes) == 0);
    broker->port = ntohs(address.sin_port);
    broker->stop_fd = eventfd(0, 0);
    CHECK(broker->stop_fd >= 0);
    CHECK(pthread_create(&broker->thread, NULL, run, broker) == 0);
    return broker;
}

uint16_t cmq_fake_broker_port(const cmq_fake_broker *broker) { return broker->port; }

void cmq_fake_broker_stop(cmq_fake_broker *broker)
{
    const uint64_t one = 1;
    CHECK(write(broker->stop_fd, &one, sizeof one) == sizeof one);
    CHECK(pthread_join(broker->thread, NULL) == 0);
    while (broker->conn_count > 0) close_conn(broker, broker->conn_count - 1);
    for (uint32_t q = 0; q < broker->queue_count; q++) {
        for (size_t i = 0; i < broker->queues[q].count; i++) free(broker->queues[q].messages[i].record);
        free(broker->queues[q].messages);
    }
    for (size_t i = 0; i < broker->half_count; i++) {
        free(broker->halves[i].topic);
        free(broker->halves[i].body);
        free(broker->halves[i].properties);
    }
    close(broker->listener);
    close(broker->stop_fd);
    free(broker);
}
