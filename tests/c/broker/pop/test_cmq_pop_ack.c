/* Tests csrc/broker/pop/cmq_pop_ack.c, and rejections by cmq_pop.c: pop requests that are wrong in one thing, through a
 * socket. Popped messages that are not acknowledged come back once, whatever the requests say. */
#include <stdlib.h>
#include <unistd.h>

#include "support/cmq_pop_kit.h"

enum { ERROR = 1, ILLEGAL = 13, NO_PERMISSION = 16, NO_TOPIC = 17, PARSE_FAILED = 23, PARAMETER = 29 };
enum { MESSAGES = 4, TEXT_BYTES = 1024 };

static int client;
static int64_t popped_ms, invisible_ms, revive_queue;

#define ABSENT "(absent)"
#define LONG_NAME "(400 bytes)"
#define LONG_TEXT "(70,000 bytes)"

/* A text with $P the time of the pop, $Q the millisecond before, $I its invisible time, $R its revive queue. */
static const char *filled(const char *pattern, char into[TEXT_BYTES])
{
    size_t used = 0;
    for (const char *at = pattern; *at != '\0'; at++) {
        const char kind = *at == '$' ? *++at : '\0';
        CHECK(used < TEXT_BYTES - 30);
        if (kind == '\0') into[used++] = *at;
        else
            used += (size_t)snprintf(into + used, TEXT_BYTES - used, "%" PRId64,
                                     kind == 'P'   ? popped_ms
                                     : kind == 'Q' ? popped_ms - 1
                                     : kind == 'I' ? invisible_ms
                                                   : revive_queue);
    }
    into[used] = '\0';
    return into;
}

static const char *repeated(size_t bytes)
{
    static char text[70001];
    memset(text, 'x', bytes);
    text[bytes] = '\0';
    return text;
}

/* A request that is right, but for one field. */
typedef struct row {
    int32_t code;
    const char *field, *value;
    int32_t answer;
    const char *says;                  /* a piece of the remark */
} row;

static const kit_field *fields_of(int32_t code, size_t *count_out)
{
    static const kit_field pops[] = {
        {"consumerGroup", "G"},     {"topic", "T"},    {"queueId", "0"},  {"maxMsgNums", "32"},
        {"invisibleTime", "10000"}, {"pollTime", "0"}, {"bornTime", "0"}, {"initMode", "0"},
        {"expType", "TAG"},         {"exp", "*"},      {"order", "false"}};
    static const kit_field acks[] = {{"consumerGroup", "G"}, {"topic", "T"},
                                     {"queueId", "0"},       {"extraInfo", "0 $Q $I $R 0 broker-a 0 0"},
                                     {"offset", "0"},        {"invisibleTime", "10000"}};
    *count_out = code == ACK || code == CHANGE ? sizeof acks / sizeof acks[0] : sizeof pops / sizeof pops[0];
    return code == ACK || code == CHANGE ? acks : pops;
}

static const kit_answer *ask(int32_t code, const char *field, const char *value)
{
    static int32_t opaque;
    static char texts[16][TEXT_BYTES];
    kit_field fields[16];
    size_t usual, count = 0;
    const kit_field *base = fields_of(code, &usual);
    bool met = field == NULL;
    for (size_t i = 0; i < usual || !met; i++) {
        const bool is_it = i == usual || (field != NULL && strcmp(base[i].name, field) == 0);
        met |= is_it;
        if (is_it && strcmp(value, ABSENT) == 0) continue;
        fields[count].name = i == usual ? field : base[i].name;
        const char *text = is_it ? value : base[i].value;
        fields[count].value = strcmp(text, LONG_NAME) == 0   ? repeated(400)
                              : strcmp(text, LONG_TEXT) == 0 ? repeated(70000)
                                                             : filled(text, texts[count]);
        count++;
    }
    fields[count] = (kit_field){NULL, NULL};
    kit_request(client, code, ++opaque, 0, CMQ_HEADER_JSON, fields, NULL, 0);
    const kit_answer *answer = kit_answer_of(&kit, client);
    CHECK_INT(answer->command.opaque, opaque);
    return answer;
}

static void check_answer(const kit_answer *answer, const row *of)
{
    char remark[TEXT_BYTES];
    snprintf(remark, sizeof remark, "%.*s", (int)answer->command.remark.bytes,
             answer->command.remark.bytes > 0 ? (const char *)answer->command.remark.data : "");
    if (answer->command.code != of->answer || strstr(remark, of->says) == NULL)
        cmq_test_fail(__FILE__, __LINE__, "%d with %s=%.80s: %d (%s), expected %d (%s)", of->code, of->field, of->value,
                      answer->command.code, remark, of->answer, of->says);
}

static uint64_t refused(void)
{
    cmq_broker_counters counters;
    cmq_broker_count(kit.broker, &counters);
    return counters.pop_acks_refused;
}

/* MESSAGES of queue 0 are popped, and a broker is there. */
static void begin(bool merge)
{
    start(&(cmq_pop_service_options){.merge = merge});
    kit_broker_topic(&kit, "write-only", 1, CMQ_PERM_WRITE);
    client = kit_client(&kit);
    for (int32_t i = 0; i < MESSAGES; i++) {
        kit_send_message(client, i, "T", "a", "hello");
        CHECK_INT(kit_answer_of(&kit, client)->command.code, OK);
    }
    const kit_answer *answer = ask(POP, NULL, NULL);
    CHECK_INT(records_in(answer), MESSAGES);
    popped_ms = kit_number(answer, "popTime");
    invisible_ms = kit_number(answer, "invisibleTime");
    revive_queue = kit_number(answer, "reviveQid");
}

/* So many come back when their time has come, and no more. */
static void end(uint32_t come_back)
{
    kit_broker_pass_pops(&kit, 20000);
    if (come_back > 0) CHECK_INT(records_in(ask(POP, NULL, NULL)), come_back);
    CHECK_INT(ask(POP, NULL, NULL)->command.code, POLLING_TIMEOUT);
    close(client);
    kit_broker_stop(&kit);
}

/* ---- single ones ---- */

static const row wrong_acks[] = {
    {ACK, "consumerGroup", ABSENT, ERROR, "consumerGroup"},
    {ACK, "consumerGroup", "", ILLEGAL, "consumerGroup has 0 bytes"},
    {ACK, "consumerGroup", LONG_NAME, ILLEGAL, "consumerGroup has 400 bytes"},
    {ACK, "topic", "unknown", NO_TOPIC, "topic[unknown] not exist"},
    {ACK, "topic", ABSENT, ERROR, "topic"},
    {ACK, "topic", LONG_TEXT, NO_TOPIC, "not exist"},
    {ACK, "queueId", "4", ILLEGAL, "queueId[4] is illegal"},
    {ACK, "queueId", "-1", ILLEGAL, "queueId[-1] is illegal"},
    {ACK, "queueId", "x", ERROR, "queueId"},
    {ACK, "queueId", "4294967296", ERROR, "queueId"},
    {ACK, "queueId", "1", NO_MESSAGE, "offset is illegal"},
    {ACK, "offset", "-1", NO_MESSAGE, "offset is illegal"},
    {ACK, "offset", "5", NO_MESSAGE, "store:0~4"},
    {ACK, "offset", "9223372036854775807", NO_MESSAGE, "offset is illegal"},
    {ACK, "offset", "9223372036854775808", ERROR, "offset"},
    {ACK, "offset", "1.0", ERROR, "offset"},
    {ACK, "offset", ABSENT, ERROR, "offset"},
    {ACK, "extraInfo", ABSENT, ERROR, "extraInfo"},
    {ACK, "extraInfo", "", ILLEGAL, "seven or eight fields"},
    {ACK, "extraInfo", "no handle", ILLEGAL, "seven or eight fields"},
    {ACK, "extraInfo", "0 $P $I $R 0 broker-a 0 0 0", ILLEGAL, "seven or eight fields"},
    {ACK, "extraInfo", "-1 $P $I $R 0 broker-a 0 0", ILLEGAL, "the first field"},
    {ACK, "extraInfo", "9223372036854775807 $P $I $R 0 broker-a 0 0", ILLEGAL, "the first field"},
    {ACK, "extraInfo", "0 x $I $R 0 broker-a 0 0", ILLEGAL, "the second field"},
    {ACK, "extraInfo", "0 9223372036854775807 $I $R 0 broker-a 0 0", ILLEGAL, "the second field"},
    {ACK, "extraInfo", "0 $P 9223372036854775807 $R 0 broker-a 0 0", ILLEGAL, "the third field"},
    {ACK, "extraInfo", "0 $P 9007199254740992 $R 0 broker-a 0 0", ILLEGAL, "timerMaxDelaySec"},
    {ACK, "extraInfo", "0 9007199254740992 $I $R 0 broker-a 0 0", ILLEGAL, "timerMaxDelaySec"},
    {ACK, "extraInfo", "0 $P $I 8 0 broker-a 0 0", ILLEGAL, "revive queue 8, and there are 8"},
    {ACK, "extraInfo", "0 $P $I -1 0 broker-a 0 0", ILLEGAL, "the fourth field"},
    {ACK, "extraInfo", "0 $P $I $R 3 broker-a 0 0", ILLEGAL, "the fifth field"},
    {ACK, "extraInfo", "0 $P $I $R 0 broker-a x 0", ILLEGAL, "the seventh field"},
    {ACK, "extraInfo", "0 $P $I $R 0 broker-a 0 -5", ILLEGAL, "the last field"},
    {ACK, "extraInfo", LONG_TEXT, ILLEGAL, "seven or eight fields"},
    {CHANGE, "invisibleTime", ABSENT, ERROR, "invisibleTime"},
    {CHANGE, "invisibleTime", "soon", ERROR, "invisibleTime"},
    {CHANGE, "invisibleTime", "-1", ERROR, "0 to 259200000 are allowed"},
    {CHANGE, "invisibleTime", "259200001", ERROR, "0 to 259200000 are allowed"},
    {CHANGE, "invisibleTime", "9223372036854775807", ERROR, "0 to 259200000 are allowed"},
    {CHANGE, "topic", "unknown", NO_TOPIC, "topic[unknown] not exist"},
    {CHANGE, "queueId", "4", ILLEGAL, "queueId[4] is illegal"},
    {CHANGE, "offset", "4", NO_MESSAGE, "offset is illegal"},
    {CHANGE, "extraInfo", "0 $P $I $R 0 broker-b 0 0", ILLEGAL, "broker broker-b, not of this one"},
    {CHANGE, "extraInfo", "0 $P 9007199254740992 $R 0 broker-a 0 0", ILLEGAL, "timerMaxDelaySec"},
    {CHANGE, "extraInfo", "no handle", ILLEGAL, "seven or eight fields"},
};

/* Acks that upstream accepts, too, and that match no message in flight. */
static const row acks_of_nothing[] = {
    {ACK, "consumerGroup", "other", OK, ""},
    {ACK, "offset", "4", OK, ""},
    {ACK, "offset", "3", OK, ""},
    {ACK, "extraInfo", "0 $Q $I $R 0 broker-a 0 0", OK, ""},
    {ACK, "extraInfo", "0 $P $I $R 0 broker-b 0 0", OK, ""},
    {ACK, "extraInfo", "1 $P $I $R 0 broker-a 0 0", OK, ""},
    {ACK, "extraInfo", "0 1 1 $R 0 broker-a 0 0", OK, ""},
    {ACK, "extraInfo", "0 $Q -1 $R 0 broker-a 0 0", OK, ""},
    {ACK, "extraInfo", "0 $Q $I $R 2 broker-a 9 9", OK, ""},
    {ACK, "extraInfo", "9223372034707292160 $P $I $R 0 broker-a 0 0", OK, ""},
};

static void ask_all(const row *rows, size_t count, bool are_refused)
{
    for (size_t i = 0; i < count; i++) {
        const uint64_t before = refused();
        const kit_answer *answer = ask(rows[i].code, rows[i].field, rows[i].value);
        check_answer(answer, &rows[i]);
        /* A request without a readable header is not counted as an ack. */
        CHECK_INT(refused() - before, are_refused && rows[i].answer != ERROR);
    }
}

static void wrong_acks_acknowledge_nothing(void)
{
    for (int merge = 0; merge < 2; merge++) {
        begin(merge);
        ask_all(wrong_acks, sizeof wrong_acks / sizeof wrong_acks[0], true);
        ask_all(acks_of_nothing, sizeof acks_of_nothing / sizeof acks_of_nothing[0], false);
        end(MESSAGES);
    }
}

static void an_ack_counts_once(void)
{
    for (int merge = 0; merge < 2; merge++) {
        begin(merge);
        for (int i = 0; i < 3; i++) CHECK_INT(ask(ACK, "extraInfo", "0 $P $I $R 0 broker-a 0 0")->command.code, OK);
        cmq_pop_service_counters counters;
        cmq_pop_service_count(kit.pops, &counters);
        /* the log does not know the acks it got before */
        CHECK_INT(counters.buffer.in_flight_now, merge ? MESSAGES - 1 : MESSAGES - 3);
        end(MESSAGES - 1);
    }
}

/* Nobody looks up the state of a handle's message. */
static void a_change_brings_a_finished_message_back(void)
{
    for (int merge = 0; merge < 2; merge++) {
        begin(merge);
        CHECK_INT(ask(ACK, "extraInfo", "0 $P $I $R 0 broker-a 0 0")->command.code, OK);
        CHECK_INT(ask(CHANGE, "extraInfo", "0 $P $I $R 0 broker-a 0 0")->command.code, OK);
        end(MESSAGES);
        begin(merge);
        kit_broker_pass_pops(&kit, 20000);
        CHECK_INT(ask(CHANGE, "extraInfo", "0 $P $I $R 0 broker-a 0 0")->command.code, OK);
        end(MESSAGES + 1);   /* the redelivered ones, and one of them again */
    }
}

static void a_late_ack_does_not_acknowledge_the_redelivery(void)
{
    for (int merge = 0; merge < 2; merge++) {
        begin(merge);
        kit_broker_pass_pops(&kit, 20000);
        CHECK_INT(ask(ACK, "extraInfo", "0 $P $I $R 0 broker-a 0 0")->command.code, OK);
        CHECK_INT(ask(CHANGE, "offset", "9")->command.code, NO_MESSAGE);
        end(MESSAGES);
    }
}

/* A handle of an ordered pop, where none is out, moves the group behind nothing that is not consumed. */
static void forged_handles_of_ordered_pops_skip_nothing(void)
{
    static const row rows[] = {
        {ACK, "offset", "2", OK, ""},
        {ACK, "offset", "0", OK, ""},
        {ACK, "offset", "4", NO_MESSAGE, "offset is illegal"},
        {ACK, "consumerGroup", "nobody", ILLEGAL, "there is no group 'nobody'"},
    };
    begin(false);
    const cmq_offset_key key = {.group = cmq_slice_of_text("O"), .topic = cmq_slice_of_text("T"), .queue_id = 0};
    const cmq_group_entry group = {.name = key.group, .consume_enable = true, .retry_queues = 1, .retry_max = 16};
    CHECK_OK(cmq_tables_put_group(kit.tables, &group));
    CHECK_OK(cmq_offsets_commit(kit.offsets, &key, 0));
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        kit_field fields[] = {{"consumerGroup", "O"}, {"topic", "T"},
                              {"queueId", "0"},       {"extraInfo", "0 1 1 999 0 broker-a 0 0"},
                              {"offset", "0"},        {NULL, NULL}};
        for (size_t k = 0; fields[k].name != NULL; k++)
            if (strcmp(fields[k].name, rows[i].field) == 0) fields[k].value = rows[i].value;
        kit_request(client, ACK, 900 + (int32_t)i, 0, CMQ_HEADER_JSON, fields, NULL, 0);
        check_answer(kit_answer_of(&kit, client), &rows[i]);
    }
    CHECK_INT(cmq_offsets_query(kit.offsets, &key), 0);
    end(MESSAGES);
}

/* ---- many at once ---- */

#define ENTRY(start, time, queue, revive, kind, bits)                                                                  \
    "{\"acks\":[{\"b\":\"" bits "\",\"c\":\"G\",\"it\":$I,\"pt\":" time ",\"q\":" queue ",\"r\":\"" kind               \
    "\",\"rq\":" revive ",\"so\":" start ",\"t\":\"T\"}]}"

static const struct {
    const char *body;
    int32_t answer;
    int refused;
} wrong_lists[] = {
    {"", NO_MESSAGE, 0},
    {"{}", NO_MESSAGE, 0},
    {"{\"acks\":[]}", NO_MESSAGE, 0},
    {"no JSON", ERROR, 0},
    {"[]", ERROR, 0},
    {"{\"acks\":7}", ERROR, 0},
    {"{\"acks\":[7]}", ERROR, 0},
    {"{\"acks\":[{\"b\":", ERROR, 0},
    {"{\"acks\":[{\"b\":{}}]}", OK, 1},
    {"{\"acks\":[{}]}", OK, 1},
    {"{\"acks\":[{},{},{}]}", OK, 3},
    {ENTRY("0", "$P", "0", "$R", "0", ""), OK, 0},
    {ENTRY("0", "$P", "0", "$R", "0", "AA=="), OK, 0},
    {ENTRY("0", "$P", "0", "$R", "0", "AQ=!"), OK, 1},
    {ENTRY("0", "$P", "0", "$R", "0", "!AQ="), OK, 1},
    {ENTRY("0", "$P", "0", "$R", "0", "AQ==="), OK, 1},
    {ENTRY("0", "$P", "0", "$R", "0", "AQ==AQ=="), OK, 1},
    {ENTRY("0", "$Q", "0", "$R", "0", "Dw=="), OK, 0},
    {ENTRY("1", "$P", "0", "$R", "0", "Dw=="), OK, 0},
    {ENTRY("40", "$P", "0", "$R", "0", "Dw=="), OK, 0},
    {ENTRY("-1", "$P", "0", "$R", "0", "Dw=="), OK, 1},
    {ENTRY("9223372036854775807", "$P", "0", "$R", "0", "Dw=="), OK, 1},
    {ENTRY("x", "$P", "0", "$R", "0", "Dw=="), ERROR, 0},
    {ENTRY("\"x\"", "$P", "0", "$R", "0", "Dw=="), OK, 1},
    {ENTRY("0", "-1", "0", "$R", "0", "Dw=="), OK, 1},
    {ENTRY("0", "9007199254740992", "0", "$R", "0", "Dw=="), OK, 1},
    {ENTRY("0", "$P", "7", "$R", "0", "Dw=="), OK, 1},
    {ENTRY("0", "$P", "-1", "$R", "0", "Dw=="), OK, 1},
    {ENTRY("0", "$P", "1", "$R", "0", "Dw=="), OK, 1},
    {ENTRY("0", "$P", "0", "8", "0", "Dw=="), OK, 1},
    {ENTRY("0", "$P", "0", "-1", "0", "Dw=="), OK, 1},
    {ENTRY("0", "$P", "0", "$R", "3", "Dw=="), OK, 1},
    {ENTRY("0", "$P", "0", "$R", "1", "Dw=="), OK, 1},
};

static const kit_answer *send_list(const char *body, size_t bytes)
{
    static const kit_field none[] = {{NULL, NULL}};
    kit_request(client, BATCH_ACK, 1, 0, CMQ_HEADER_JSON, none, body, bytes);
    return kit_answer_of(&kit, client);
}

static void wrong_lists_acknowledge_nothing(void)
{
    for (int merge = 0; merge < 2; merge++) {
        begin(merge);
        for (size_t i = 0; i < sizeof wrong_lists / sizeof wrong_lists[0]; i++) {
            char body[TEXT_BYTES];
            const uint64_t before = refused();
            filled(wrong_lists[i].body, body);
            const kit_answer *answer = send_list(body, strlen(body));
            if (answer->command.code != wrong_lists[i].answer || refused() - before != (uint64_t)wrong_lists[i].refused)
                cmq_test_fail(__FILE__, __LINE__, "%s: %d, %" PRIu64 " passed over", body, answer->command.code,
                              refused() - before);
        }
        end(MESSAGES);
    }
}

enum { ENTRIES = 2048, ENTRY_BYTES = 160 };

/* A list of acks of so many checkpoints, which is right about the one in the middle; returns its bytes. */
static int write_long_list(char *body, int count)
{
    int used = sprintf(body, "{\"acks\":[");
    for (int i = 0; i < count; i++)
        used += sprintf(body + used,
                        "{\"b\":\"AQ==\",\"c\":\"G\",\"it\":%" PRId64 ",\"pt\":%" PRId64
                        ",\"q\":0,\"r\":\"0\",\"rq\":%" PRId64 ",\"so\":0,\"t\":\"T\"},",
                        invisible_ms, i == count / 2 ? popped_ms : popped_ms - 1 - i, revive_queue);
    body[used - 1] = ']';
    body[used++] = '}';
    return used;
}

/* More bits than a checkpoint has messages are of none; thousands of entries are taken, and the one that is right among
 * them. */
static void long_lists_are_taken(void)
{
    begin(false);
    char *body = malloc((size_t)ENTRIES * ENTRY_BYTES + TEXT_BYTES), one[TEXT_BYTES];
    CHECK(body != NULL);
    for (int32_t i = 0; i < 40; i++) {
        kit_send_message(client, i, "T", "a", "hello");
        CHECK_INT(kit_answer_of(&kit, client)->command.code, OK);
    }
    filled(ENTRY("0", "$P", "0", "$R", "0", "//////8="), one);   /* 40 bits */
    const uint64_t before = refused();
    CHECK_INT(send_list(one, strlen(one))->command.code, OK);
    CHECK_INT(refused() - before, 1);
    int used = write_long_list(body, ENTRIES);
    CHECK_INT(send_list(body, (size_t)used)->command.code, OK);
    /* One more, and nothing of it is taken: 15 MiB of them held the loop for 0.85 s. */
    body[used - 2] = ',';
    used += sprintf(body + used - 1, "{\"b\":\"AQ==\"}]}") - 1;
    const uint64_t passed_over = refused();
    CHECK_INT(send_list(body, (size_t)used)->command.code, ILLEGAL);
    CHECK_INT(refused() - passed_over, 0);
    free(body);
    CHECK_INT(records_in(ask(POP, NULL, NULL)), 32);
    CHECK_INT(records_in(ask(POP, NULL, NULL)), 8);
    kit_broker_pass_pops(&kit, 20000);
    uint32_t come_back = records_in(ask(POP, NULL, NULL));
    come_back += records_in(ask(POP, NULL, NULL));
    CHECK_INT(come_back, MESSAGES - 1 + 40);
    close(client);
    kit_broker_stop(&kit);
}

static uint64_t acknowledged(void)
{
    cmq_broker_counters counters;
    cmq_broker_count(kit.broker, &counters);
    return counters.pop_acks;
}

/* A turn takes 128 entries of the lists that wait, and those of all clients in turn: others do not wait for a list. */
static void long_lists_leave_each_turn_to_others(void)
{
    enum { STEP = 128, LISTS = 4, BUSY = 2 };
    static const kit_field none[] = {{NULL, NULL}};
    begin(false);
    const int other = kit_client(&kit);
    char *body = malloc((size_t)ENTRIES * ENTRY_BYTES);
    CHECK(body != NULL);
    const size_t bytes = (size_t)write_long_list(body, ENTRIES);
    for (int32_t i = 0; i <= LISTS; i++) {
        kit_request(client, BATCH_ACK, i, 0, CMQ_HEADER_JSON, none, body, bytes);
        kit_broker_turn(&kit);
    }
    const kit_answer *answer = kit_answer_of(&kit, client);   /* one connection has no more at once */
    CHECK_INT(answer->command.opaque, LISTS);
    CHECK_INT(answer->command.code, BUSY);
    kit_request(other, BATCH_ACK, 1, 0, CMQ_HEADER_JSON, none, body, (size_t)write_long_list(body, 40));
    kit_broker_turn(&kit);
    kit_send_message(other, 2, "T", "a", "hello");
    for (int32_t i = 0; i < 2; i++) {
        answer = kit_answer_of(&kit, other);
        CHECK_INT(answer->command.code, OK);
        CHECK_INT(answer->command.opaque, 2 - i);
    }
    CHECK(acknowledged() < LISTS * ENTRIES);
    uint64_t before = acknowledged();
    while (acknowledged() < LISTS * ENTRIES + 40) {
        kit_broker_turn(&kit);
        CHECK(acknowledged() - before <= STEP);
        before = acknowledged();
    }
    for (int32_t i = 0; i < LISTS; i++) CHECK_INT(kit_answer_of(&kit, client)->command.code, OK);
    CHECK_INT(acknowledged(), LISTS * ENTRIES + 40);
    free(body);
    close(other);
    close(client);
    kit_broker_stop(&kit);
}

/* A list goes on when its client has gone. */
static void lists_of_closed_connections_are_taken(void)
{
    static const kit_field none[] = {{NULL, NULL}};
    begin(false);
    char *body = malloc((size_t)ENTRIES * ENTRY_BYTES);
    CHECK(body != NULL);
    kit_request(client, BATCH_ACK, 1, 0, CMQ_HEADER_JSON, none, body, (size_t)write_long_list(body, ENTRIES));
    while (acknowledged() == 0) kit_broker_turn(&kit);
    close(client);
    while (acknowledged() < ENTRIES) kit_broker_turn(&kit);
    free(body);
    /* Another waits when the broker ends. */
    client = kit_client(&kit);
    char *rest = malloc((size_t)ENTRIES * ENTRY_BYTES);
    CHECK(rest != NULL);
    kit_request(client, BATCH_ACK, 1, 0, CMQ_HEADER_JSON, none, rest, (size_t)write_long_list(rest, ENTRIES));
    while (acknowledged() == ENTRIES) kit_broker_turn(&kit);
    free(rest);
    close(client);
    kit_broker_stop(&kit);
}

/* ---- pops ---- */

static const row wrong_pops[] = {
    {POP, "consumerGroup", ABSENT, ERROR, "consumerGroup"},
    {POP, "topic", ABSENT, ERROR, "topic"},
    {POP, "topic", "unknown", NO_TOPIC, "topic[unknown] not exist"},
    {POP, "topic", LONG_TEXT, NO_TOPIC, "not exist"},
    {POP, "topic", "", NO_TOPIC, "not exist"},
    {POP, "topic", "write-only", NO_PERMISSION, "forbidden"},
    {POP, "queueId", ABSENT, ERROR, "queueId"},
    {POP, "queueId", "4", PARAMETER, "queueId[4] is illegal"},
    {POP, "queueId", "2147483648", ERROR, "queueId"},
    {POP, "maxMsgNums", ABSENT, ERROR, "maxMsgNums"},
    {POP, "maxMsgNums", "33", PARAMETER, "maxMsgNums is 33"},
    {POP, "maxMsgNums", "many", ERROR, "maxMsgNums"},
    {POP, "invisibleTime", ABSENT, ERROR, "invisibleTime"},
    {POP, "invisibleTime", "-1", PARAMETER, "0 to 259200000 are allowed"},
    {POP, "invisibleTime", "259200001", PARAMETER, "0 to 259200000 are allowed"},
    {POP, "invisibleTime", "9223372036854775807", PARAMETER, "0 to 259200000 are allowed"},
    {POP, "pollTime", ABSENT, ERROR, "pollTime"},
    {POP, "pollTime", "long", ERROR, "pollTime"},
    {POP, "initMode", ABSENT, ERROR, "initMode"},
    {POP, "initMode", "first", ERROR, "initMode"},
    {POP, "bornTime", "yesterday", ERROR, "bornTime"},
    {POP, "bornTime", "1", POLLING_TIMEOUT, "timeout too much"},
    {POP, "exp", "||", PARSE_FAILED, ""},
    {POP, "attemptId", LONG_NAME, PARAMETER, "attemptId has 400 bytes; 256 is the most"},
    {POP, "attemptId", LONG_TEXT, PARAMETER, "attemptId has 70000 bytes"},
    {NOTIFICATION, "attemptId", LONG_TEXT, PARAMETER, "attemptId has 70000 bytes"},
    {NOTIFICATION, "topic", "unknown", NO_TOPIC, "not exist"},
    {NOTIFICATION, "queueId", "4", PARAMETER, "queueId[4] is illegal"},
    {PEEK, "maxMsgNums", "33", PARAMETER, "maxMsgNums is 33"},
    {PEEK, "topic", "write-only", NO_PERMISSION, "forbidden"},
};

static const row odd_pops[] = {
    {POP, "maxMsgNums", "0", POLLING_TIMEOUT, ""},
    {POP, "maxMsgNums", "-2147483648", POLLING_TIMEOUT, ""},
    {POP, "queueId", "-2147483648", POLLING_TIMEOUT, ""},
    {POP, "initMode", "7", POLLING_TIMEOUT, ""},
    {POP, "order", "perhaps", POLLING_TIMEOUT, ""},
    {POP, "bornTime", "-9223372036854775808", POLLING_TIMEOUT, ""},
    {POP, "bornTime", "9223372036854775807", POLLING_TIMEOUT, ""},
    {POP, "pollTime", "-9223372036854775808", POLLING_TIMEOUT, ""},
    {POP, "exp", "", POLLING_TIMEOUT, ""},
    {POP, "exp", LONG_TEXT, POLLING_TIMEOUT, ""},
    {POP, "expType", "SQL92", POLLING_TIMEOUT, ""},   /* of no expression */
};

static void wrong_pops_are_refused(void)
{
    begin(false);
    ask_all(wrong_pops, sizeof wrong_pops / sizeof wrong_pops[0], false);
    ask_all(odd_pops, sizeof odd_pops / sizeof odd_pops[0], false);
    /* An invalid expression, and one of an unknown kind. */
    const kit_field strange[] = {
        {"consumerGroup", "G"}, {"topic", "T"},    {"queueId", "0"},     {"maxMsgNums", "1"}, {"invisibleTime", "1000"},
        {"pollTime", "0"},      {"initMode", "0"}, {"expType", "REGEX"}, {"exp", "a.*"},      {NULL, NULL}};
    kit_request(client, POP, 1, 0, CMQ_HEADER_JSON, strange, NULL, 0);
    check_answer(kit_answer_of(&kit, client), &(row){POP, "expType", "REGEX", 23, "does not filter"});
    end(MESSAGES);
}

/* A pop is held for any wait time, however long, and its time is counted without an overflow. */
static void the_longest_wait_is_held(void)
{
    begin(false);
    const kit_field endless[] = {{"consumerGroup", "G"},
                                 {"topic", "T"},
                                 {"queueId", "0"},
                                 {"maxMsgNums", "1"},
                                 {"invisibleTime", "1000"},
                                 {"pollTime", "9223372036854775807"},
                                 {"bornTime", "9223372036854775807"},
                                 {"initMode", "0"},
                                 {NULL, NULL}};
    const int waiting = kit_client(&kit);
    kit_request(waiting, POP, 7, 0, CMQ_HEADER_JSON, endless, NULL, 0);
    CHECK(kit_is_silent(&kit, waiting));
    kit_send_message(client, 1, "T", "a", "hello");
    CHECK_INT(kit_answer_of(&kit, client)->command.code, OK);
    CHECK_INT(kit_answer_of(&kit, waiting)->command.code, OK);
    close(waiting);
    end(MESSAGES + 1);
}

/* A group whose retry topic's name would be too long gets nothing that could not come back. */
static void a_retry_topic_with_too_long_a_name_is_refused_before(void)
{
    char group[201];
    begin(false);
    memset(group, 'g', sizeof group - 1);
    group[sizeof group - 1] = '\0';
    const char *const topic = repeated(60);
    const cmq_group_entry entry = {
        .name = cmq_slice_of_text(group), .consume_enable = true, .retry_queues = 1, .retry_max = 16};
    CHECK_OK(cmq_tables_put_group(kit.tables, &entry));
    kit_broker_topic(&kit, topic, 1, CMQ_PERM_READ | CMQ_PERM_WRITE);
    const kit_field fields[] = {{"consumerGroup", group},  {"topic", topic},  {"queueId", "0"},  {"maxMsgNums", "1"},
                                {"invisibleTime", "1000"}, {"pollTime", "0"}, {"initMode", "0"}, {NULL, NULL}};
    kit_request(client, POP, 1, 0, CMQ_HEADER_JSON, fields, NULL, 0);
    check_answer(kit_answer_of(&kit, client), &(row){POP, "topic", topic, PARAMETER, "group and topic have 260 bytes"});
    end(MESSAGES);
}

CMQ_TEST_MAIN(CMQ_TEST(wrong_acks_acknowledge_nothing), CMQ_TEST(an_ack_counts_once),
              CMQ_TEST(a_change_brings_a_finished_message_back),
              CMQ_TEST(a_late_ack_does_not_acknowledge_the_redelivery),
              CMQ_TEST(forged_handles_of_ordered_pops_skip_nothing), CMQ_TEST(wrong_lists_acknowledge_nothing),
              CMQ_TEST(long_lists_are_taken), CMQ_TEST(long_lists_leave_each_turn_to_others),
              CMQ_TEST(lists_of_closed_connections_are_taken), CMQ_TEST(wrong_pops_are_refused),
              CMQ_TEST(the_longest_wait_is_held),
              CMQ_TEST(a_retry_topic_with_too_long_a_name_is_refused_before))
