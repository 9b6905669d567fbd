/* fuzz_pop_broker: hostile requests of pops to a broker that serves, and hostile records in its revive topic.
 *
 * An input is text: requests, one behind the other, divided by a line `--`. The first line of each is its code, further
 * lines are fields, `name=value`; behind an empty line comes its body. In values and bodies $P, $I and $R are time,
 * invisible time and revive queue of the latest pop that gave something. Codes 1 to 3 are no requests: a record of the
 * revive topic, tagged ck, ack or bAck, whose body is the input's; code 4 lets time pass, code 5 sends messages.
 *
 * Properties: each request is answered, or held and answered when everybody is to ask again, or handed to the control
 *             plane; the codes are those of the protocol; sent messages reach a group that no input names, once, and
 *             nothing stays in flight there; the next broker reads the records stored at a stop.
 */
#include <stdlib.h>
#include <unistd.h>

#include "base/cmq_assert.h"
#include "support/cmq_pop_kit.h"
#include "support/cmq_store_kit.h"

#define CONTROL_GROUP "a group that no input names"
enum { FIELDS_MAX = 24, VALUE_BYTES_MAX = 512, LINES_MAX = 64 };
enum { RECORD_CHECKPOINT = 1, RECORD_ACK, RECORD_BATCH_ACK, PASS, SEND };
enum { CONTROL_EVERY = 256, RESTART_EVERY = 8192 };

static const char *directory;
static char root[CMQ_PATH_BYTES];
static int client, waiting_for;
static int64_t popped_ms, invisible_ms, revive_queue, sent, received;   /* the latter two: by the control group */
static uint64_t inputs;

/* ---- a broker ---- */

static void put_group(const char *name)
{
    const cmq_group_entry group = {
        .name = cmq_slice_of_text(name), .consume_enable = true, .retry_queues = 1, .retry_max = 16};
    CHECK_OK(cmq_tables_put_group(kit.tables, &group));
}

static void begin_serving(void)
{
    kit_broker_start_pops(&kit, root, CMQ_FLUSH_ASYNC,
                          &(cmq_pop_service_options){.merge = inputs / RESTART_EVERY % 2 == 1});
    put_group(CONTROL_GROUP);
    client = kit_client(&kit);
    popped_ms = kit.now_ms;
    sent = received = 0;
}

static void end_serving(void)
{
    close(client);
    kit_broker_stop(&kit);
}

static void clean_up(void)
{
    end_serving();
    kit_remove_tree(directory);
}

/* A new broker takes over what the one before left, and after it one with an empty store. */
static void restart(void)
{
    end_serving();
    begin_serving();
    kit_broker_pass_pops(&kit, 2000);
    end_serving();
    kit_remove_tree(root);
    begin_serving();
}

static uint64_t handed_on(void)
{
    cmq_broker_counters counters;
    cmq_broker_count(kit.broker, &counters);
    return counters.control;
}

/* ---- requests ---- */

static bool is_a_code(int32_t code)
{
    static const int32_t codes[] = {OK, 1, 13, 16, 17, NOT_FOUND, 23, 26, 29, NO_MESSAGE, POLLING_FULL, POLLING_TIMEOUT,
                                    3};
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++)
        if (codes[i] == code) return true;
    return false;
}

static void ask(int32_t code, const kit_field *fields, const char *body, size_t bytes)
{
    const uint64_t before = handed_on();
    const int32_t opaque = ++waiting_for;
    kit_request(client, code, opaque, 0, CMQ_HEADER_JSON, fields, body, bytes);
    if (kit_is_silent(&kit, client)) {
        if (handed_on() > before) return;
        CHECK_OK(cmq_broker_group_changed(kit.broker, CMQ_SLICE_NONE));
    }
    const kit_answer *answer = kit_answer_of(&kit, client);
    CHECK_INT(answer->command.opaque, opaque);
    if (!is_a_code(answer->command.code))
        cmq_test_fail(__FILE__, __LINE__, "code %d to %d", answer->command.code, code);
    if (answer->command.code != OK && code != POP && code != BATCH_ACK && code != PEEK)
        CHECK(answer->command.remark.bytes > 0);
    if (code != POP || answer->command.code != OK) return;
    CHECK(records_in(answer) > 0 && records_in(answer) <= 32);
    popped_ms = kit_number(answer, "popTime");
    invisible_ms = kit_number(answer, "invisibleTime");
    revive_queue = kit_number(answer, "reviveQid");
}

static void send_messages(size_t count)
{
    for (; count > 0; count--, sent++) {
        kit_send_message(client, ++waiting_for, "T", sent % 2 == 0 ? "a" : "c", "hello");
        CHECK_INT(kit_answer_of(&kit, client)->command.code, OK);
    }
}

/* All that was sent since the last time comes, once, and is acknowledged. */
static void control(void)
{
    asked what = {.queue_id = 0, .most = 32, .invisible_ms = 600000, .group = CONTROL_GROUP};
    send_messages(1);
    while (received < sent) {
        pop(client, ++waiting_for, what);
        const kit_answer *answer = expect(client, waiting_for, OK);
        const uint32_t count = records_in(answer);
        const batch b = batch_of(answer, received);
        for (uint32_t i = 0; i < count; i++, received++) {
            char offset[24];
            snprintf(offset, sizeof offset, "%" PRId64, received);
            const kit_field ack_it[] = {{"consumerGroup", CONTROL_GROUP},       {"topic", "T"},     {"queueId", "0"},
                                        {"extraInfo", handle_of(&b, received)}, {"offset", offset}, {NULL, NULL}};
            kit_request(client, ACK, ++waiting_for, 0, CMQ_HEADER_JSON, ack_it, NULL, 0);
            expect(client, waiting_for, OK);
        }
    }
    CHECK_INT(received, sent);
    pop(client, ++waiting_for, what);
    expect(client, waiting_for, POLLING_TIMEOUT);
}

/* ---- reading an input ---- */

static size_t fill(const char *from, size_t bytes, char *into, size_t room)
{
    size_t used = 0;
    for (size_t i = 0; i < bytes && used + 24 < room; i++) {
        const bool is_token =
            from[i] == '$' && i + 1 < bytes && strchr("PIR", from[i + 1]) != NULL && from[i + 1] != '\0';
        if (!is_token) {
            into[used++] = from[i];
            continue;
        }
        i++;
        used += (size_t)snprintf(into + used, room - used, "%" PRId64,
                                 from[i] == 'P'   ? popped_ms
                                 : from[i] == 'I' ? invisible_ms
                                                  : revive_queue);
    }
    into[used] = '\0';
    return used;
}

static void put_record(int32_t kind, const char *body, size_t bytes)
{
    static const char *const tags[] = {NULL, "TAGS\001ck\002", "TAGS\001ack\002", "TAGS\001bAck\002"};
    const cmq_append append = {
        .common = {.topic = cmq_slice_of_text(CMQ_POP_REVIVE_TOPIC_PREFIX "C")},
        .count = 1,
        .bodies = {.kind = CMQ_COLUMN_ONE, .one = {.data = (const uint8_t *)body, .bytes = bytes}},
        .properties = {.kind = CMQ_COLUMN_ONE, .one = cmq_slice_of_text(tags[kind])}};
    cmq_appended appended;
    CHECK_OK(cmq_store_append(kit.store, &append, &appended));
}

/* Idle connections are closed, and many passes in a row are long. */
static void pass(int64_t ms)
{
    kit_broker_pass_pops(&kit, ms);
    if (!kit_is_closed(&kit, client)) return;
    close(client);
    client = kit_client(&kit);
}

static void run_one(const char *text, size_t bytes)
{
    static char values[FIELDS_MAX][VALUE_BYTES_MAX], names[FIELDS_MAX][VALUE_BYTES_MAX], body[65536];
    kit_field fields[FIELDS_MAX + 1];
    size_t count = 0, at = 0;
    int32_t code = 0;
    for (int line = 0; at < bytes && line < LINES_MAX; line++) {
        const char *end = memchr(text + at, '\n', bytes - at);
        const size_t line_bytes = end != NULL ? (size_t)(end - (text + at)) : bytes - at;
        const char *begin = text + at;
        at += line_bytes + 1;
        if (line == 0) {
            code = (int32_t)strtol(begin, NULL, 10);   /* the buffer ends with a 0 */
            continue;
        }
        if (line_bytes == 0) break;
        const char *sign = memchr(begin, '=', line_bytes);
        if (sign == NULL || count == FIELDS_MAX) continue;
        (void)fill(begin, (size_t)(sign - begin), names[count], VALUE_BYTES_MAX);
        (void)fill(sign + 1, line_bytes - (size_t)(sign - begin) - 1, values[count], VALUE_BYTES_MAX);
        fields[count] = (kit_field){names[count], values[count]};
        count++;
    }
    fields[count] = (kit_field){NULL, NULL};
    const size_t body_bytes = at < bytes ? fill(text + at, bytes - at, body, sizeof body) : 0;
    switch (code) {
    case POP:
    case ACK:
    case PEEK:
    case CHANGE:
    case NOTIFICATION:
    case POLLING_INFO:
    case BATCH_ACK: ask(code, fields, body, body_bytes); break;
    case RECORD_CHECKPOINT: case RECORD_ACK: case RECORD_BATCH_ACK: put_record(code, body, body_bytes); break;
    case SEND: send_messages(1 + body_bytes % 8); break;
    case PASS: pass(1000 * (int64_t)(1 + body_bytes % 8)); break;
    default: break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (inputs++ == 0) {
        directory = kit_directory();
        CHECK_OK(cmq_path_join(root, directory, "store"));
        begin_serving();
        CMQ_ASSERT(atexit(clean_up) == 0);
    }
    char *text = malloc(size + 1);
    CMQ_ASSERT(text != NULL);
    if (size > 0) memcpy(text, data, size);
    text[size] = '\0';
    for (size_t begin = 0; begin < size;) {
        const char *end = strstr(text + begin, "\n--\n");   /* a 0 in the input ends it */
        const size_t bytes = end != NULL ? (size_t)(end - (text + begin)) : strlen(text + begin);
        run_one(text + begin, bytes);
        begin = end != NULL ? begin + bytes + 4 : size;
    }
    free(text);
    if (inputs % CONTROL_EVERY == 0) control();
    if (inputs % RESTART_EVERY == 0) restart();
    return 0;
}
