/* bench_read: nanoseconds per message of reading: iteration over a queue and over the whole log, tag scan, look-up by
 * queue offset, by physical offset and by key.
 *
 * One store: `messages` of one queue, 16 tags in random order, one key each; read while its pages are in memory. Times
 * are CPU of the reading thread. Floors of the same run: one load per record in log order (iteration), one word of each
 * cache line of the units (scan), one load at random records (look-ups): the cost of the memory alone.
 *
 * Checked: every walk finds each message once, in order, with the sum of its body's numbers; each scan finds what a
 *          scan of our own list of tags says; each look-up finds the message that was asked for.
 */
#include "cmq_bench_store.h"
#include "store/queue/cmq_tag_scan.h"

#define TAGS 16u
#define BATCH 512u
#define BODY_BYTES 128u
#define KEYS_PER_CALL 4000u

typedef struct bench_setup {
    char path[CMQ_PATH_BYTES];
    cmq_store *store;
    bench_pool pool;
    uint8_t *tag_of;              /* per message */
    int64_t *phys;                /* physical offsets */
    uint32_t count;
    uint32_t repeats;
} bench_setup;

static const char *const tag_names[TAGS] = {"T0", "T1", "T2", "T3", "T4", "T5", "T6", "T7",
                                            "T8", "T9", "Ta", "Tb", "Tc", "Td", "Te", "Tf"};

static cmq_slice topic_name(void) { return cmq_slice_of_text(BENCH_TOPIC); }

static void fill(bench_setup *setup)
{
    uint64_t state = 7;
    static cmq_slice tags[KEYS_PER_CALL];
    for (uint32_t at = 0; at < setup->count; at += KEYS_PER_CALL) {
        for (uint32_t i = 0; i < KEYS_PER_CALL; i++) {
            state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
            setup->tag_of[at + i] = (uint8_t)(state >> 60);
            tags[i] = cmq_slice_of_text(tag_names[setup->tag_of[at + i]]);
        }
        cmq_append append = bench_call(&setup->pool, at, KEYS_PER_CALL, true);
        append.tags = (cmq_column){.kind = CMQ_COLUMN_SLICES, .slices = tags};
        append.physical_offsets_out = setup->phys + at;
        bench_append(setup->store, &append);
    }
    /* Units and keys to their files, as after a while of use. */
    BENCH_OK(cmq_store_maintain(setup->store, true));
}

static uint32_t tag_hash(uint32_t tag)
{
    uint32_t hash = 0;
    for (const char *at = tag_names[tag]; *at != '\0'; at++) hash = hash * 31 + (uint8_t)*at;
    return hash;
}

static uint32_t pick(uint32_t i, uint32_t count) { return (uint32_t)((uint64_t)i * 2654435761u % count); }

static void print(const char *name, bench_values *ns, const char *floor, bench_values *floor_ns, const char *more)
{
    bench_figure(name, "ns", ns, ", \"per_second\": %.0f, \"floor\": \"%s\", \"floor_value\": %.4g, \"ratio\": %.3f%s",
                 1e9 / bench_median(ns), floor, bench_median(floor_ns), bench_median(floor_ns) / bench_median(ns),
                 more);
}

/* ---- iteration ---- */

/* One load per record, in log order. */
static double floor_walk(const bench_setup *setup)
{
    cmq_found item;
    cmq_found_batch batch = {.items = &item, .capacity = 1};
    BENCH_OK(cmq_store_read_physical(setup->store, setup->phys[0], &batch));
    const uint8_t *base = item.record;   /* one segment: all records lie behind one another */
    uint64_t sum = 0;
    const double begin = bench_cpu_s();
    for (uint32_t i = 0; i < setup->count; i++) sum += cmq_load_u64(base + setup->phys[i] + CMQ_RECORD_AT_QUEUE_OFFSET);
    const double seconds = bench_cpu_s() - begin;
    BENCH_CHECK(sum == (uint64_t)setup->count * (setup->count - 1) / 2);
    cmq_found_batch_release(&batch);
    return seconds * 1e9 / setup->count;
}

static double walk(const bench_setup *setup, const cmq_read_options *options, uint64_t expected)
{
    static cmq_found items[BATCH];
    cmq_found_batch batch = {.items = items, .capacity = BATCH};
    cmq_reader *reader;
    uint64_t seen = 0, sum = 0;
    int64_t last = options->backwards ? INT64_MAX : -1;
    const double begin = bench_cpu_s();
    BENCH_OK(cmq_reader_open(setup->store, options, &reader));
    for (;;) {
        bool end;
        BENCH_OK(cmq_reader_next(reader, &batch, &end));
        if (batch.count == 0) break;
        seen += batch.count;
        for (uint32_t i = 0; i < batch.count; i++) {
            const int64_t offset = cmq_load_i64(items[i].record + CMQ_RECORD_AT_QUEUE_OFFSET);
            BENCH_CHECK(options->backwards ? offset < last : offset > last);
            last = offset;
            sum += (uint64_t)offset;
        }
        cmq_found_batch_release(&batch);
    }
    const double seconds = bench_cpu_s() - begin;
    cmq_reader_close(reader);
    BENCH_CHECK(seen == expected &&
                (expected < setup->count || sum == (uint64_t)setup->count * (setup->count - 1) / 2));
    return seconds * 1e9 / setup->count;
}

static void bench_walk(const bench_setup *setup, const char *name, const cmq_read_options *options, uint64_t expected)
{
    bench_say(name);
    bench_values ns = {0}, floor_ns = {0};
    for (uint32_t i = 0; i < setup->repeats; i++) {
        bench_add(&ns, walk(setup, options, expected));
        bench_add(&floor_ns, floor_walk(setup));
    }
    print(name, &ns, "one load per record", &floor_ns, "");
}

static uint32_t count_tag(const bench_setup *setup, uint32_t tag)
{
    uint32_t found = 0;
    for (uint32_t i = 0; i < setup->count; i++) found += setup->tag_of[i] == tag;
    return found;
}

static void bench_iteration(const bench_setup *setup)
{
    const cmq_slice topic = topic_name(), tag = cmq_slice_of_text(tag_names[3]);
    const cmq_read_options queue = {.topics = &topic, .topic_count = 1},
                           back = {.topics = &topic, .topic_count = 1, .backwards = true}, log = {0};
    const cmq_read_options queue_crc = {.topics = &topic, .topic_count = 1, .check_crc = true},
                           log_crc = {.check_crc = true};
    const cmq_read_options tagged = {.topics = &topic, .topic_count = 1, .tags = &tag, .tag_count = 1};
    bench_walk(setup, "read/iterate/queue", &queue, setup->count);
    bench_walk(setup, "read/iterate/queue, CRC of bodies", &queue_crc, setup->count);
    bench_walk(setup, "read/iterate/queue backwards", &back, setup->count);
    bench_walk(setup, "read/iterate/whole log", &log, setup->count);
    bench_walk(setup, "read/iterate/whole log, CRC of bodies", &log_crc, setup->count);
    bench_walk(setup, "read/iterate/1 tag of 16, per message passed", &tagged, count_tag(setup, 3));
}

/* ---- the scan of units ---- */

static double scan(const bench_setup *setup, const uint32_t *hashes, uint32_t hash_count, uint64_t expected)
{
    static cmq_unit units[BATCH];
    cmq_queue *queue = cmq_queues_find(cmq_store_queues(setup->store), topic_name(), 0);
    BENCH_CHECK(queue != NULL);
    const int64_t confirmed = cmq_store_confirmed(setup->store);
    uint64_t found = 0;
    int64_t from = 0;
    const double begin = bench_cpu_s();
    while (from < (int64_t)setup->count) {
        uint32_t count;
        int64_t next;
        BENCH_OK(
            cmq_queue_scan(queue, from, confirmed, hashes, hash_count, UINT64_C(1) << 20, units, BATCH, &count, &next));
        BENCH_CHECK(next > from);
        found += count;
        from = next;
    }
    const double seconds = bench_cpu_s() - begin;
    BENCH_CHECK(found == expected);
    return seconds * 1e9 / setup->count;
}

static double floor_scan(const uint8_t *units, size_t bytes, double count)
{
    uint64_t sum = 0;
    const double begin = bench_cpu_s();
    for (size_t at = 0; at + 64 <= bytes; at += 64) sum += cmq_load_u64(units + at);
    const double seconds = bench_cpu_s() - begin;
    BENCH_CHECK(sum == 0);
    return seconds * 1e9 / count;
}

static void bench_scan(const bench_setup *setup, const char *name, const uint32_t *hashes, uint32_t hash_count,
                       uint64_t expected, const uint8_t *units)
{
    bench_say(name);
    bench_values ns = {0}, floor_ns = {0};
    for (uint32_t i = 0; i < setup->repeats; i++) {
        bench_add(&ns, scan(setup, hashes, hash_count, expected));
        bench_add(&floor_ns, floor_scan(units, (size_t)setup->count * CMQ_UNIT_BYTES, setup->count));
    }
    print(name, &ns, "one word of each cache line of as many bytes", &floor_ns, "");
}

static void bench_scans(const bench_setup *setup)
{
    uint8_t *units = bench_alloc((size_t)setup->count * CMQ_UNIT_BYTES + 64);
    const uint32_t absent = 12345, hashes[4] = {tag_hash(3), tag_hash(7), tag_hash(11), tag_hash(15)};
    uint64_t four = 0;
    for (uint32_t i = 0; i < 4; i++) four += count_tag(setup, 4 * i + 3);
    bench_scan(setup, "read/tag scan/none matches", &absent, 1, 0, units);
    bench_scan(setup, "read/tag scan/1 tag of 16", hashes, 1, count_tag(setup, 3), units);
    bench_scan(setup, "read/tag scan/4 tags of 16", hashes, 4, four, units);
    free(units);
}

/* ---- look-ups ---- */

static double floor_random(const bench_setup *setup, uint32_t lookups)
{
    cmq_found item;
    cmq_found_batch batch = {.items = &item, .capacity = 1};
    BENCH_OK(cmq_store_read_physical(setup->store, setup->phys[0], &batch));
    uint64_t wrong = 0, chain = 0;
    const double begin = bench_cpu_s();
    for (uint32_t i = 0; i < lookups; i++) {
        /* Each waits for the one before, as a look-up does. */
        const uint32_t message = pick(i + (uint32_t)(chain & 0), setup->count);
        const uint64_t offset = cmq_load_u64(item.record + setup->phys[message] + CMQ_RECORD_AT_QUEUE_OFFSET);
        wrong += offset != message;
        chain = offset;
    }
    const double seconds = bench_cpu_s() - begin;
    BENCH_CHECK(wrong == 0);
    cmq_found_batch_release(&batch);
    return seconds * 1e9 / lookups;
}

typedef enum lookup_kind { LOOKUP_OFFSET, LOOKUP_PHYSICAL, LOOKUP_KEY } lookup_kind;

static double look_up(const bench_setup *setup, lookup_kind kind, uint32_t lookups)
{
    uint32_t wrong = 0;
    const double begin = bench_cpu_s();
    for (uint32_t i = 0; i < lookups; i++) {
        const uint32_t message = pick(i, setup->count);
        cmq_found item;
        cmq_found_batch batch = {.items = &item, .capacity = 1};
        if (kind == LOOKUP_OFFSET) BENCH_OK(cmq_store_read_offset(setup->store, topic_name(), 0, message, &batch));
        else if (kind == LOOKUP_PHYSICAL) BENCH_OK(cmq_store_read_physical(setup->store, setup->phys[message], &batch));
        else {
            const cmq_slice key = {.data = setup->pool.keys + (size_t)message * BENCH_KEY_BYTES,
                                   .bytes = BENCH_KEY_BYTES};
            BENCH_OK(cmq_store_find_key(setup->store, topic_name(), key, 0, INT64_MAX, &batch));
        }
        wrong += batch.count != 1 || item.physical_offset != setup->phys[message];
        cmq_found_batch_release(&batch);
    }
    const double seconds = bench_cpu_s() - begin;
    BENCH_CHECK(wrong == 0);
    return seconds * 1e9 / lookups;
}

static void bench_lookups(const bench_setup *setup, const char *name, lookup_kind kind, uint32_t lookups)
{
    bench_say(name);
    bench_values ns = {0}, floor_ns = {0};
    for (uint32_t i = 0; i < setup->repeats; i++) {
        bench_add(&ns, look_up(setup, kind, lookups));
        bench_add(&floor_ns, floor_random(setup, lookups));
    }
    print(name, &ns, "one load at a random record", &floor_ns, kind == LOOKUP_KEY ? ", \"keys\": 1" : "");
}

int main(int argc, char **argv)
{
    const bool quick = bench_is_quick(argc, argv);
    bench_setup setup = {.count = quick ? 8000 : 4000000, .repeats = quick ? 2 : 7};
    bench_make_directory(setup.path);
    bench_pool_make(&setup.pool, BODY_BYTES, setup.count);
    setup.tag_of = bench_alloc(setup.count);
    setup.phys = bench_alloc(setup.count * sizeof *setup.phys);
    const int64_t log_bytes = (int64_t)setup.count * 280;
    setup.store = bench_open(setup.path, CMQ_FLUSH_ASYNC, false, (log_bytes / 4096 + 1) * 4096);
    fill(&setup);
    if (bench_wanted(argc, argv, "iterate")) bench_iteration(&setup);
    if (bench_wanted(argc, argv, "tag scan")) bench_scans(&setup);
    const uint32_t lookups = quick ? 200 : 300000;
    if (bench_wanted(argc, argv, "by queue offset"))
        bench_lookups(&setup, "read/by queue offset", LOOKUP_OFFSET, lookups);
    if (bench_wanted(argc, argv, "by physical offset"))
        bench_lookups(&setup, "read/by physical offset", LOOKUP_PHYSICAL, lookups);
    if (bench_wanted(argc, argv, "by key")) bench_lookups(&setup, "read/by key", LOOKUP_KEY, lookups);
    BENCH_OK(cmq_store_close(setup.store));
    bench_remove_directory(setup.path);
    bench_pool_free(&setup.pool);
    free(setup.tag_of);
    free(setup.phys);
    return 0;
}
