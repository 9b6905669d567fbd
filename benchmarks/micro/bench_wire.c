/* bench_wire: nanoseconds per header read, and per answer written, without sockets.
 *
 * The sends are what a Java client of 5.3.3 sends, 13 fields with properties that JSON escapes; names and numbers
 * differ in length from frame to frame. Beside cmq_command_parse stands a reader that looks for the ends of strings
 * byte by byte, which the bit map is measured against. Checked: both give the same fields, the header readers return
 * the members of the frames, and each answer that was written parses again.
 */
#include "base/cmq_bytes.h"
#include "cmq_bench.h"
#include "wire/cmq_command.h"
#include "wire/cmq_pull_header.h"
#include "wire/cmq_send_header.h"

enum { BUFFER_BYTES = 4096, FRAMES = 256 };   /* frames of different lengths, so that no branch is learnt by heart */

typedef struct frames {
    cmq_frame frame[FRAMES];
    uint8_t bytes[FRAMES][1024];
} frames;

typedef enum parse_kind { PARSE_BYTEWISE, PARSE, PARSE_AND_READ } parse_kind;

/* ---- frames ---- */

static uint64_t random_below(uint64_t bound)
{
    static uint64_t state = 88172645463325252u;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % bound;
}

static const char *random_letters(size_t least, size_t most)
{
    static char letters[8][64];
    static unsigned next;
    char *into = letters[next++ % 8];
    const size_t bytes = least + random_below(most - least + 1);
    for (size_t i = 0; i < bytes; i++) into[i] = (char)('a' + random_below(26));
    into[bytes] = 0;
    return into;
}

static int write_send(char *into, size_t capacity)
{
    char key[80] = "";
    if (random_below(2)) snprintf(key, sizeof key, "KEYS\\u0001%s\\u0002", random_letters(4, 20));
    return snprintf(
        into, capacity,
        "{\"code\":310,\"extFields\":{\"a\":\"%s\",\"b\":\"%s\",\"c\":\"TBW102\",\"d\":\"4\",\"e\":\"%d\",\"f\":\"0\","
        "\"g\":\"1795260271265\",\"h\":\"0\",\"i\":\"%sUNIQ_"
        "KEY\\u0001FD00000000000000000000000000000230835FFD2B276971E2A100B6\\u0002"
        "WAIT\\u0001true\\u0002TAGS\\u0001%s\\u0002\",\"j\":\"0\",\"k\":\"false\",\"m\":\"false\",\"n\":\"%s\"},"
        "\"flag\":0,"
        "\"language\":\"JAVA\",\"opaque\":%d,\"serializeTypeCurrentRPC\":\"JSON\",\"version\":479}",
        random_letters(5, 20), random_letters(5, 20), (int)random_below(16), key, random_letters(2, 12),
        random_letters(8, 12), (int)random_below(1u << (1 + random_below(30))));
}

static int write_pull(char *into, size_t capacity)
{
    return snprintf(into, capacity,
                    "{\"code\":11,\"extFields\":{\"queueId\":\"%d\",\"maxMsgBytes\":\"262144\",\"maxMsgNums\":\"32\","
                    "\"sysFlag\":\"2\","
                    "\"suspendTimeoutMillis\":\"15000\",\"commitOffset\":\"0\",\"bname\":\"%s\",\"topic\":\"%s\","
                    "\"queueOffset\":\"%d\","
                    "\"expressionType\":\"TAG\",\"subVersion\":\"1795260290587\",\"consumerGroup\":\"%s\"},\"flag\":0,"
                    "\"language\":\"JAVA\","
                    "\"opaque\":%d,\"serializeTypeCurrentRPC\":\"JSON\",\"version\":479}",
                    (int)random_below(16), random_letters(8, 12), random_letters(5, 20),
                    (int)random_below(1u << (1 + random_below(30))), random_letters(5, 20),
                    (int)random_below(1u << (1 + random_below(30))));
}

static frames *make_frames(int (*write)(char *into, size_t capacity))
{
    frames *made = bench_alloc(sizeof *made);
    for (int i = 0; i < FRAMES; i++) {
        const int bytes = write((char *)made->bytes[i], sizeof made->bytes[i]);
        BENCH_CHECK(bytes > 0 && (size_t)bytes < sizeof made->bytes[i]);
        made->frame[i] =
            (cmq_frame){.format = CMQ_HEADER_JSON, .header = {.data = made->bytes[i], .bytes = (size_t)bytes}};
    }
    return made;
}

/* ---- the same slices, found byte by byte ---- */

static const uint8_t *bytewise_string(const uint8_t *at, cmq_slice *text_out, uint8_t **scratch)
{
    const uint8_t *begin = ++at;
    uint8_t *into = *scratch;
    bool escaped = false;
    for (; *at != '"'; at++) {
        uint8_t byte = *at;
        if (byte == '\\') {
            escaped = true;
            BENCH_CHECK(memcmp(at, "\\u000", 5) == 0);
            byte = (uint8_t)(at[5] - '0');
            at += 5;
        }
        *into++ = byte;
    }
    const cmq_slice plain = {.data = begin, .bytes = (size_t)(at - begin)};
    *text_out = escaped ? (cmq_slice){.data = *scratch, .bytes = (size_t)(into - *scratch)} : plain;
    if (escaped) *scratch = into;
    return at + 1;
}

/* Only what Java writes, and only the fields. */
static void bytewise_parse(const cmq_frame *frame, uint8_t *scratch, cmq_command *command)
{
    static const char begin[] = "\"extFields\":{";
    const uint8_t *at = frame->header.data;
    while (memcmp(at, begin, sizeof begin - 1) != 0) at++;
    at += sizeof begin - 1;
    command->field_count = 0;
    for (;;) {
        cmq_field *field = &command->fields[command->field_count++];
        at = bytewise_string(at, &field->name, &scratch);
        at = bytewise_string(at + 1, &field->value, &scratch);
        if (*at++ == '}') break;
    }
    while (*at != '}') at++;   /* the members behind: looked at, not kept */
}

/* Both readers find the same; returns the sum of the field `name`, for which the readers of headers are asked below. */
static int64_t check_bytewise(const frames *from, const char *name)
{
    static cmq_command command, bytewise;
    static uint8_t scratch[BUFFER_BYTES], bytewise_scratch[BUFFER_BYTES];
    int64_t sum = 0, number;
    for (int f = 0; f < FRAMES; f++) {
        BENCH_CHECK(cmq_command_parse(&from->frame[f], scratch, sizeof scratch, &command) == CMQ_OK);
        bytewise_parse(&from->frame[f], bytewise_scratch, &bytewise);
        BENCH_CHECK(command.field_count == bytewise.field_count);
        for (uint32_t i = 0; i < command.field_count; i++) {
            BENCH_CHECK(cmq_slice_equal(command.fields[i].name, bytewise.fields[i].name));
            BENCH_CHECK(cmq_slice_equal(command.fields[i].value, bytewise.fields[i].value));
        }
        cmq_slice value;
        BENCH_CHECK(cmq_command_find(&command, name, &value) && cmq_field_i64(value, &number) == CMQ_OK);
        sum += number;
    }
    return sum;
}

/* ---- reading ---- */

static int64_t read_header(const cmq_command *command, bool pull)
{
    if (pull) {
        cmq_pull_header header;
        BENCH_CHECK(cmq_pull_header_read(command, &header) == CMQ_OK);
        return header.queue_offset;
    }
    cmq_send_header header;
    BENCH_CHECK(cmq_send_header_read(command, &header) == CMQ_OK);
    return header.queue_id;
}

/* Parse every frame `rounds` times; the results are summed so that the compiler removes nothing. */
static int64_t parse_all(const frames *from, parse_kind kind, bool pull, int rounds)
{
    static cmq_command command;
    static uint8_t scratch[BUFFER_BYTES];
    int64_t sum = 0;
    for (int i = 0; i < rounds * FRAMES; i++) {
        const cmq_frame *frame = &from->frame[i % FRAMES];
        if (kind == PARSE_BYTEWISE) {
            bytewise_parse(frame, scratch, &command);
        } else {
            BENCH_CHECK(cmq_command_parse(frame, scratch, sizeof scratch, &command) == CMQ_OK);
        }
        sum += kind == PARSE_AND_READ ? read_header(&command, pull) : command.field_count;
        __asm__ volatile("" : : "r"(&command) : "memory");
    }
    return sum;
}

static void measure_parse(const char *name, const frames *from, parse_kind kind, bool pull, int64_t sum_per_round,
                          int rounds)
{
    const int64_t expected = kind == PARSE_AND_READ ? sum_per_round : FRAMES * (pull ? 12 : 13);
    double seconds[BENCH_REPEATS];
    size_t bytes = 0;
    for (int i = 0; i < FRAMES; i++) bytes += from->frame[i].header.bytes;
    for (int repeat = 0; repeat < BENCH_REPEATS; repeat++) {
        const double begin = bench_cpu_s();
        const int64_t sum = parse_all(from, kind, pull, rounds);
        seconds[repeat] = bench_cpu_s() - begin;
        BENCH_CHECK(sum == expected * rounds);
    }
    bench_print(name, seconds, (double)rounds * FRAMES, (double)bytes / FRAMES);
}

/* ---- writing ---- */

static size_t write_send_answer(uint8_t *into, size_t capacity, cmq_header_format format, int32_t opaque)
{
    cmq_command_writer writer;
    cmq_command_begin(&writer, into, capacity, format, 0, opaque, CMQ_COMMAND_RESPONSE, CMQ_SLICE_NONE);
    cmq_command_add_i64(&writer, CMQ_NAME("queueId"), 3);
    cmq_command_add_text(&writer, CMQ_NAME("TRACE_ON"), CMQ_NAME("true"));
    cmq_command_add_text(&writer, CMQ_NAME("MSG_REGION"), CMQ_NAME("DefaultRegion"));
    cmq_command_add_text(&writer, CMQ_NAME("msgId"), CMQ_NAME("7F00000100002A9F0000000000012345"));
    cmq_command_add_i64(&writer, CMQ_NAME("queueOffset"), opaque);
    return cmq_command_end(&writer, 0);
}

static void check_answer(const uint8_t *bytes, size_t count, int32_t opaque)
{
    static uint8_t scratch[BUFFER_BYTES];
    static cmq_command command;
    cmq_frame parts;
    size_t needed;
    cmq_slice offset;
    int64_t number;
    BENCH_CHECK(cmq_frame_next((cmq_slice){.data = bytes, .bytes = count}, CMQ_FRAME_BYTES_MAX, &parts, &needed) ==
                CMQ_OK);
    BENCH_CHECK(cmq_command_parse(&parts, scratch, sizeof scratch, &command) == CMQ_OK);
    BENCH_CHECK(command.opaque == opaque && command.field_count == 5 &&
                cmq_command_find(&command, "queueOffset", &offset));
    BENCH_CHECK(cmq_field_i64(offset, &number) == CMQ_OK && number == opaque);
}

static void measure_write(const char *name, cmq_header_format format, int rounds)
{
    static uint8_t frame[BUFFER_BYTES];
    double seconds[BENCH_REPEATS];
    size_t bytes = 0;
    for (int repeat = 0; repeat < BENCH_REPEATS; repeat++) {
        const double begin = bench_cpu_s();
        for (int i = 0; i < rounds * FRAMES; i++) {
            bytes = write_send_answer(frame, sizeof frame, format, i);
            __asm__ volatile("" : : "r"(frame) : "memory");
        }
        seconds[repeat] = bench_cpu_s() - begin;
        check_answer(frame, bytes, rounds * FRAMES - 1);
    }
    bench_print(name, seconds, (double)rounds * FRAMES, (double)bytes);
}

/* The same headers in ROCKETMQ format. */
static frames *as_rocketmq(const frames *from)
{
    static cmq_command command;
    static uint8_t scratch[BUFFER_BYTES];
    frames *made = bench_alloc(sizeof *made);
    for (int f = 0; f < FRAMES; f++) {
        BENCH_CHECK(cmq_command_parse(&from->frame[f], scratch, sizeof scratch, &command) == CMQ_OK);
        cmq_command_writer writer;
        cmq_command_begin(&writer, made->bytes[f], sizeof made->bytes[f], CMQ_HEADER_ROCKETMQ, command.code,
                          command.opaque, 0, CMQ_SLICE_NONE);
        for (uint32_t i = 0; i < command.field_count; i++)
            cmq_command_add_text(&writer, command.fields[i].name, command.fields[i].value);
        size_t needed;
        const cmq_slice whole = {.data = made->bytes[f], .bytes = cmq_command_end(&writer, 0)};
        BENCH_CHECK(cmq_frame_next(whole, CMQ_FRAME_BYTES_MAX, &made->frame[f], &needed) == CMQ_OK);
    }
    return made;
}

static void measure_kind(const char *what, const frames *json, bool pull, int rounds)
{
    frames *rocketmq = as_rocketmq(json);
    const int64_t sum = check_bytewise(json, pull ? "queueOffset" : "e");
    char name[96];
    snprintf(name, sizeof name, "wire/%s header JSON/byte by byte", what);
    measure_parse(name, json, PARSE_BYTEWISE, pull, sum, rounds);
    snprintf(name, sizeof name, "wire/%s header JSON/parse", what);
    measure_parse(name, json, PARSE, pull, sum, rounds);
    snprintf(name, sizeof name, "wire/%s header JSON/parse and read", what);
    measure_parse(name, json, PARSE_AND_READ, pull, sum, rounds);
    snprintf(name, sizeof name, "wire/%s header ROCKETMQ/parse", what);
    measure_parse(name, rocketmq, PARSE, pull, sum, rounds);
    snprintf(name, sizeof name, "wire/%s header ROCKETMQ/parse and read", what);
    measure_parse(name, rocketmq, PARSE_AND_READ, pull, sum, rounds);
    free(rocketmq);
}

int main(int argc, char **argv)
{
    const int rounds = bench_is_quick(argc, argv) ? 2 : 2000;
    frames *sends = make_frames(write_send), *pulls = make_frames(write_pull);
    measure_kind("send", sends, false, rounds);
    measure_kind("pull", pulls, true, rounds);
    measure_write("wire/send answer/JSON", CMQ_HEADER_JSON, rounds);
    measure_write("wire/send answer/ROCKETMQ", CMQ_HEADER_ROCKETMQ, rounds);
    free(sends);
    free(pulls);
    return 0;
}
