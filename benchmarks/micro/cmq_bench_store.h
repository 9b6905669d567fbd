/* cmq_bench_store: shared parts of the benchmarks of a whole store: a directory of their own, batches whose every body
 * is known, reading all of it back, and figures that give beside their value the cost of the same work without us.
 *
 * A figure's floor is measured in the same run, turn by turn with the figure, so that a noisy machine disturbs both.
 * `ratio` is always the better the larger: floor time / our time, or our rate / the floor's. CMQ_BENCH_DIR: where
 * stores are made (else TMPDIR, else /tmp); it should be on the disk to measure.
 */
#ifndef CMQ_BENCH_STORE_H
#define CMQ_BENCH_STORE_H

#include <ftw.h>
#include <inttypes.h>
#include <stdarg.h>
#include <unistd.h>

#include "base/cmq_file.h"
#include "cmq_bench.h"
#include "store/cmq_store.h"

#define BENCH_TOPIC "BenchmarkOne"   /* 12 bytes, as in the specification's records */
#define BENCH_TAG "TagA"
#define BENCH_POOL_BYTES (16u << 20)
#define BENCH_KEY_BYTES 14u
#define BENCH_REPEATS_MAX 32

/* The status is CMQ_OK, or the reason is printed and the program ends. */
#define BENCH_OK(call)                                                                                                 \
    do {                                                                                                               \
        const cmq_status bench_status = (call);                                                                        \
        if (bench_status != CMQ_OK) {                                                                                  \
            fprintf(stderr, "%s:%d: %s: status %d: %s\n", __FILE__, __LINE__, #call, (int)bench_status,                \
                    cmq_last_error()->text);                                                                           \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

/* ---- clocks ---- */

static inline double bench_clock_s(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static inline double bench_wall_s(void) { return bench_clock_s(CLOCK_MONOTONIC); }

/* CPU seconds of all threads, the store's own included. */
static inline double bench_process_cpu_s(void) { return bench_clock_s(CLOCK_PROCESS_CPUTIME_ID); }

/* ---- figures ---- */

typedef struct bench_values {
    double at[BENCH_REPEATS_MAX];
    uint32_t count;
} bench_values;

static inline void bench_add(bench_values *values, double value)
{
    BENCH_CHECK(values->count < BENCH_REPEATS_MAX);
    values->at[values->count++] = value;
}

static inline double bench_median(const bench_values *values)
{
    double sorted[BENCH_REPEATS_MAX];
    BENCH_CHECK(values->count > 0);
    memcpy(sorted, values->at, values->count * sizeof sorted[0]);
    qsort(sorted, values->count, sizeof sorted[0], bench_compare);
    return sorted[values->count / 2];
}

static inline double bench_extreme(const bench_values *values, bool largest)
{
    double found = values->at[0];
    for (uint32_t i = 1; i < values->count; i++)
        if (largest ? values->at[i] > found : values->at[i] < found) found = values->at[i];
    return found;
}

/* One line: the median of `values` with the spread, then further pairs as `extra` formats them (", \"name\": value";
 * may be empty). */
__attribute__((format(printf, 4, 5)))
static inline void bench_figure(const char *name, const char *unit, const bench_values *values, const char *extra, ...)
{
    char more[1024];
    va_list arguments;
    va_start(arguments, extra);
    const int length = vsnprintf(more, sizeof more, extra, arguments);
    va_end(arguments);
    BENCH_CHECK(length >= 0 && (size_t)length < sizeof more);
    printf("{\"name\": \"%s\", \"value\": %.4g, \"unit\": \"%s\", \"min\": %.4g, \"max\": %.4g, \"repeats\": %u%s}\n",
           name, bench_median(values), unit, bench_extreme(values, false), bench_extreme(values, true), values->count,
           more);
    fflush(stdout);
}

/* Print the current measurement to standard error: a run takes minutes. */
static inline void bench_say(const char *what) { fprintf(stderr, "  %s\n", what); }

/* Only what the second argument of `--only TEXT` is part of. */
static inline bool bench_wanted(int argc, char **argv, const char *name)
{
    for (int i = 1; i + 1 < argc; i++)
        if (strcmp(argv[i], "--only") == 0) return strstr(name, argv[i + 1]) != NULL;
    return true;
}

/* ---- directories ---- */

static inline void bench_make_directory(char into[CMQ_PATH_BYTES])
{
    const char *parent = getenv("CMQ_BENCH_DIR");
    if (parent == NULL) parent = getenv("TMPDIR");
    snprintf(into, CMQ_PATH_BYTES, "%s/cmq-bench-XXXXXX", parent != NULL ? parent : "/tmp");
    BENCH_CHECK(mkdtemp(into) != NULL);
}

static int bench_remove_one(const char *path, const struct stat *info, int kind, struct FTW *place)
{
    (void)info, (void)kind, (void)place;
    return remove(path);
}

static inline void bench_remove_directory(const char *path)
{
    BENCH_CHECK(nftw(path, bench_remove_one, 16, FTW_DEPTH | FTW_PHYS) == 0);
}

/* ---- a store ---- */

static inline cmq_store *bench_open(const char *path, cmq_flush_mode flush, bool background, int64_t segment_bytes)
{
    const cmq_store_options options = {
        .path = path, .create = true, .background = background, .flush = flush, .segment_bytes = segment_bytes};
    cmq_store *store;
    BENCH_OK(cmq_store_open(&store, &options));
    return store;
}

/* ---- messages ---- Body and key of message i are those of slot i % slots of a pool that stays in the last-level
 * cache, so that reading our input from memory is not measured. A body holds its slot's number and a pattern that
 * differs by slot; keys are a number each. */

typedef struct bench_pool {
    uint8_t *bodies;
    uint8_t *keys;              /* BENCH_KEY_BYTES each, one for every message of a run: keys are unique */
    uint32_t body_bytes;
    uint32_t slots;             /* a multiple of every batch size */
    uint32_t key_count;
} bench_pool;

static inline void bench_pool_make(bench_pool *pool, uint32_t body_bytes, uint32_t key_count)
{
    *pool = (bench_pool){.body_bytes = body_bytes, .key_count = key_count};
    pool->slots = BENCH_POOL_BYTES / body_bytes / 4000 * 4000;
    pool->bodies = bench_alloc((size_t)pool->slots * body_bytes);
    for (uint32_t slot = 0; slot < pool->slots; slot++) {
        uint8_t *body = pool->bodies + (size_t)slot * body_bytes;
        uint64_t state = slot + 1;
        for (uint32_t i = 0; i + 8 <= body_bytes; i += 8) {
            state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
            cmq_store_u64(body + i, state);
        }
        cmq_store_u32(body, slot);
    }
    if (key_count == 0) return;
    pool->keys = bench_alloc((size_t)key_count * BENCH_KEY_BYTES + 1);
    for (uint32_t i = 0; i < key_count; i++)
        snprintf((char *)pool->keys + (size_t)i * BENCH_KEY_BYTES, BENCH_KEY_BYTES + 1, "order-%08u", i % 100000000u);
}

static inline void bench_pool_free(bench_pool *pool)
{
    free(pool->bodies);
    free(pool->keys);
}

static inline const uint8_t *bench_body(const bench_pool *pool, uint64_t message)
{
    return pool->bodies + (size_t)(message % pool->slots) * pool->body_bytes;
}

/* A call that appends messages [first, first + count), which do not wrap round the pool. */
static inline cmq_append bench_call(const bench_pool *pool, uint64_t first, uint32_t count, bool keyed)
{
    cmq_append append = {.count = count};
    append.common.topic = cmq_slice_of_text(BENCH_TOPIC);
    append.common.born_host = append.common.store_host = (cmq_record_host){.address = {127, 0, 0, 1}, .port = 10911};
    append.bodies = (cmq_column){.kind = CMQ_COLUMN_FIXED,
                                 .data = bench_body(pool, first),
                                 .stride = pool->body_bytes,
                                 .width = pool->body_bytes};
    append.tags = (cmq_column){.kind = CMQ_COLUMN_ONE,
                               .one = {.data = (const uint8_t *)BENCH_TAG, .bytes = sizeof BENCH_TAG - 1}};
    if (keyed)
        append.keys = (cmq_column){.kind = CMQ_COLUMN_FIXED,
                                   .data = pool->keys + (size_t)first * BENCH_KEY_BYTES,
                                   .stride = BENCH_KEY_BYTES,
                                   .width = BENCH_KEY_BYTES};
    return append;
}

static inline void bench_append(cmq_store *store, const cmq_append *append)
{
    cmq_appended appended;
    BENCH_OK(cmq_store_append(store, append, &appended));
    BENCH_CHECK(appended.count == append->count);
}

/* Bytes of one record of ours. */
static inline uint32_t bench_record_bytes(const bench_pool *pool, bool keyed)
{
    const uint32_t topic = sizeof BENCH_TOPIC - 1, tag = 4 + 1 + (sizeof BENCH_TAG - 1) + 1,
                   key = keyed ? 4 + 1 + BENCH_KEY_BYTES + 1 : 0;
    return CMQ_RECORD_BYTES_MIN + pool->body_bytes + topic + tag + key;
}

/* Read the queue and require messages [0, count) in order, each with its CRC and its own body and key. With several
 * appenders at once (`in_order` false) the order is free: the sum of the slots must be right. */
static inline void bench_verify(cmq_store *store, const bench_pool *pool, uint64_t count, bool keyed, bool in_order)
{
    const cmq_slice topic = cmq_slice_of_text(BENCH_TOPIC);
    const cmq_read_options options = {.topics = &topic, .topic_count = 1};
    static cmq_found items[512];
    cmq_found_batch batch = {.items = items, .capacity = 512};
    cmq_reader *reader;
    uint64_t seen = 0, slots_found = 0, slots_expected = 0;
    BENCH_OK(cmq_reader_open(store, &options, &reader));
    for (;;) {
        bool end;
        BENCH_OK(cmq_reader_next(reader, &batch, &end));
        if (batch.count == 0) break;
        for (uint32_t i = 0; i < batch.count; i++, seen++) {
            cmq_record_view view;
            BENCH_OK(cmq_record_parse(items[i].record, items[i].record_bytes, items[i].physical_offset,
                                      CMQ_RECORD_CHECK_BODY_CRC, &view));
            const uint64_t slot = cmq_load_u32(view.body.data);
            BENCH_CHECK(items[i].queue_offset == (int64_t)seen && slot < pool->slots &&
                        (!in_order || slot == seen % pool->slots));
            BENCH_CHECK(view.body.bytes == pool->body_bytes &&
                        memcmp(view.body.data, bench_body(pool, slot), pool->body_bytes) == 0);
            BENCH_CHECK(items[i].record_bytes == bench_record_bytes(pool, keyed));
            slots_found += slot;
            slots_expected += seen % pool->slots;
        }
        cmq_found_batch_release(&batch);
    }
    cmq_reader_close(reader);
    BENCH_CHECK(seen == count && slots_found == slots_expected);
}

/* Some of the keys are found where their messages are. */
static inline void bench_verify_keys(cmq_store *store, const bench_pool *pool, uint32_t count, uint32_t lookups)
{
    for (uint32_t i = 0; i < lookups; i++) {
        const uint32_t message = (uint32_t)((uint64_t)i * 2654435761u % count);
        cmq_found item;
        cmq_found_batch batch = {.items = &item, .capacity = 1};
        const cmq_slice key = {.data = pool->keys + (size_t)message * BENCH_KEY_BYTES, .bytes = BENCH_KEY_BYTES};
        BENCH_OK(cmq_store_find_key(store, cmq_slice_of_text(BENCH_TOPIC), key, 0, INT64_MAX, &batch));
        cmq_record_view view;
        BENCH_CHECK(batch.count == 1);
        BENCH_OK(
            cmq_record_parse(item.record, item.record_bytes, item.physical_offset, CMQ_RECORD_CHECK_BODY_CRC, &view));
        BENCH_CHECK(
            cmq_slice_equal(view.body, (cmq_slice){.data = bench_body(pool, message), .bytes = pool->body_bytes}));
        cmq_found_batch_release(&batch);
    }
}

#endif
