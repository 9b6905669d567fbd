/* bench_record: nanoseconds per record written and read, CRC included, without files, queues or a clock.
 *
 * Records go one behind the other through 64 MiB of touched memory, bodies come from a pool of 8 MiB; properties are
 * 62 bytes as a client sends them, or pairs that the encoder makes. Checked: all that was written is parsed again
 * with CRC, and their queue offsets are the numbers from 0 on.
 */
#include "base/cmq_bytes.h"
#include "cmq_bench.h"
#include "store/record/cmq_property.h"
#include "store/record/cmq_record.h"
#include "store/record/cmq_tags_code.h"

#define LOG_BYTES ((size_t)64 << 20)
#define POOL_BYTES ((size_t)8 << 20)
#define CLIENT_PROPERTIES "UNIQ_KEY\1C0A8010A2B5C18B4AAC2000000000001\2WAIT\1true\2TAGS\1TagA\2"

typedef struct bench_log {
    uint8_t *data;
    uint8_t *pool;
    size_t used;        /* by the last run */
    size_t records;
} bench_log;

static cmq_record_fields make_fields(void)
{
    return (cmq_record_fields){
        .topic = cmq_slice_of_text("TopicForTest"),
        .born_timestamp_ms = 1700000000123,
        .store_timestamp_ms = 1700000000456,
        .born_host = {.address = {192, 168, 1, 10}, .port = 54321},
        .store_host = {.address = {10, 0, 0, 5}, .port = 10911},
    };
}

static void write_all(bench_log *into, cmq_record_fields *fields, size_t body_bytes)
{
    size_t used = 0, records = 0, pool_at = 0;
    cmq_record_sizes sizes;
    for (;; records++) {
        fields->body = (cmq_slice){.data = into->pool + pool_at, .bytes = body_bytes};
        fields->queue_offset = (int64_t)records;
        fields->physical_offset = (int64_t)used;
        BENCH_CHECK(cmq_record_measure(fields, &sizes) == CMQ_OK);
        if (sizes.record_bytes > LOG_BYTES - used) break;
        cmq_record_encode(into->data + used, fields, &sizes);
        used += sizes.record_bytes;
        pool_at = (pool_at + body_bytes) % (POOL_BYTES - 2 * body_bytes);
    }
    into->used = used;
    into->records = records;
}

/* Parse everything, with tagsCode and the known properties as dispatch needs them; returns the records. */
static size_t read_all(const bench_log *from, unsigned checks, bool dispatch, int64_t *codes_out)
{
    size_t at = 0, records = 0;
    cmq_record_view view;
    for (; at < from->used; records++, at += view.record_bytes) {
        BENCH_CHECK(cmq_record_parse(from->data + at, from->used - at, (int64_t)at, checks, &view) == CMQ_OK);
        BENCH_CHECK(view.queue_offset == (int64_t)records);
        cmq_record_prefetch(from->data + at, view.record_bytes);
        if (!dispatch) continue;
        cmq_property_known known;
        cmq_property_find_known(view.properties, &known);
        *codes_out += cmq_tags_code(view.topic, known.value[CMQ_PROPERTY_TAGS], known.value[CMQ_PROPERTY_DELAY],
                                    view.store_timestamp_ms, NULL);
    }
    return records;
}

static size_t peek_all(const bench_log *from)
{
    size_t at = 0, records = 0;
    cmq_record_head head;
    for (; at < from->used; records++, at += head.record_bytes) {
        BENCH_CHECK(cmq_record_peek(from->data + at, from->used - at, &head) == CMQ_OK);
        cmq_record_prefetch(from->data + at, head.record_bytes);
    }
    return records;
}

static void measure_write(bench_log *into, cmq_record_fields *fields, size_t body_bytes, const char *kind, int rounds)
{
    double seconds[BENCH_REPEATS];
    char name[96];
    for (int repeat = 0; repeat < BENCH_REPEATS; repeat++) {
        const double begin = bench_cpu_s();
        for (int round = 0; round < rounds; round++) write_all(into, fields, body_bytes);
        seconds[repeat] = bench_cpu_s() - begin;
    }
    BENCH_CHECK(read_all(into, CMQ_RECORD_CHECK_BODY_CRC, false, NULL) == into->records);
    snprintf(name, sizeof name, "record/encode/%zu B body/%s", body_bytes, kind);
    bench_print(name, seconds, (double)into->records * rounds, (double)into->used / (double)into->records);
}

/* The cost of only copying the same bytes: the floor under the figures of encode. */
static void measure_copy(bench_log *into, size_t body_bytes, int rounds)
{
    const size_t record_bytes = body_bytes + 165;   /* as with the client's properties */
    double seconds[BENCH_REPEATS];
    char name[96];
    size_t copied = 0;
    for (int repeat = 0; repeat < BENCH_REPEATS; repeat++) {
        const double begin = bench_cpu_s();
        copied = 0;
        for (int round = 0; round < rounds; round++) {
            size_t pool_at = 0;
            for (size_t used = 0; record_bytes <= LOG_BYTES - used; used += record_bytes, copied++) {
                memcpy(into->data + used, into->pool + pool_at, record_bytes);
                pool_at = (pool_at + record_bytes) % (POOL_BYTES - 2 * record_bytes);
            }
        }
        seconds[repeat] = bench_cpu_s() - begin;
        BENCH_CHECK(memcmp(into->data, into->pool, record_bytes) == 0);
    }
    snprintf(name, sizeof name, "record/floor: memcpy of the same bytes/%zu B body", body_bytes);
    bench_print(name, seconds, (double)copied, (double)record_bytes);
}

typedef enum read_kind { READ_PEEK, READ_LENGTHS, READ_CRC, READ_DISPATCH } read_kind;

static void measure_read(const bench_log *from, size_t body_bytes, read_kind kind, const char *text, int rounds)
{
    double seconds[BENCH_REPEATS];
    char name[96];
    for (int repeat = 0; repeat < BENCH_REPEATS; repeat++) {
        int64_t codes = 0;
        size_t records = 0;
        const double begin = bench_cpu_s();
        for (int round = 0; round < rounds; round++)
            records += kind == READ_PEEK ? peek_all(from)
                                         : read_all(from, kind == READ_CRC ? CMQ_RECORD_CHECK_BODY_CRC : 0,
                                                    kind == READ_DISPATCH, &codes);
        seconds[repeat] = bench_cpu_s() - begin;
        BENCH_CHECK(records == from->records * (size_t)rounds);
        BENCH_CHECK(codes == (kind == READ_DISPATCH ? (int64_t)2598919 * (int64_t)records : 0));   /* hash of TagA */
    }
    snprintf(name, sizeof name, "record/%s/%zu B body", text, body_bytes);
    bench_print(name, seconds, (double)from->records * rounds, (double)from->used / (double)from->records);
}

static void measure_body(bench_log *log, size_t body_bytes, int rounds)
{
    cmq_record_fields fields = make_fields();
    measure_copy(log, body_bytes, rounds);
    measure_write(log, &fields, body_bytes, "no properties", rounds);
    fields.tags = cmq_slice_of_text("TagA");
    measure_write(log, &fields, body_bytes, "tag", rounds);
    fields.keys = cmq_slice_of_text("order-1001");
    measure_write(log, &fields, body_bytes, "tag and key", rounds);
    fields.tags = fields.keys = CMQ_SLICE_NONE;
    fields.properties = cmq_slice_of_text(CLIENT_PROPERTIES);
    measure_write(log, &fields, body_bytes, "client properties", rounds);
    measure_read(log, body_bytes, READ_PEEK, "peek", rounds);
    measure_read(log, body_bytes, READ_LENGTHS, "parse without CRC", rounds);
    measure_read(log, body_bytes, READ_CRC, "parse with CRC", rounds);
    measure_read(log, body_bytes, READ_DISPATCH, "parse, properties, tagsCode", rounds);
}

int main(int argc, char **argv)
{
    const int rounds = bench_is_quick(argc, argv) ? 1 : 4;
    bench_log log = {.data = bench_alloc(LOG_BYTES), .pool = bench_alloc(POOL_BYTES)};
    for (size_t i = 0; i < POOL_BYTES; i++) log.pool[i] = (uint8_t)(i * 2654435761u >> 11);
    measure_body(&log, 128, rounds);
    measure_body(&log, 1024, rounds);
    free(log.data);
    free(log.pool);
    return 0;
}
