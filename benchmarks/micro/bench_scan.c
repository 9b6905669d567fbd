/* bench_scan: nanoseconds per row of columns made from the log: bodies as views and gathered, with and without the
 * other columns.
 *
 * One queue of a store whose pages are in memory, bodies of 128 bytes and of 1 KiB; one core's CPU time. The floor of
 * each figure is a bare C loop over the same records in the same run, which is given the records' places, fetches
 * ahead, and writes the same columns into arrays that it uses again for every batch: the cost of memory and stores
 * alone.
 *
 * The last two figures are of messages with three properties more: all of them, and the one in sixteen that an SQL92
 * expression of three comparisons selects, both per message in the log.
 *
 * Checked: every scan gives every row once, in order, with its own offset; an order-sensitive hash of every body byte
 *          equals that of the appended bodies, for views and for gathered bodies; as many texts as were appended are
 *          there; the expression selects one row in sixteen.
 */
#include "cmq_bench_store.h"
#include "export/cmq_scan.h"

#define CALL_MESSAGES 4000u
#define BATCH_ROWS CMQ_SCAN_BATCH_ROWS
#define FETCH 12u

typedef struct bench_setup {
    char path[CMQ_PATH_BYTES];
    cmq_store *store;
    bench_pool pool;
    int64_t *phys;
    uint32_t count;
    uint32_t repeats;
    uint64_t hash;                /* of all bodies, in order */
} bench_setup;

/* ---- the messages ---- */

static uint64_t hash_body(uint64_t hash, const uint8_t *body, uint32_t bytes)
{
    for (uint32_t i = 0; i + 8 <= bytes; i += 8)
        hash = (hash ^ cmq_load_u64(body + i)) * UINT64_C(0x9E3779B97F4A7C15) + 1;
    return hash;
}

static void fill(bench_setup *setup)
{
    for (uint32_t at = 0; at < setup->count; at += CALL_MESSAGES) {
        cmq_append append = bench_call(&setup->pool, at, CALL_MESSAGES, true);
        append.physical_offsets_out = setup->phys + at;
        bench_append(setup->store, &append);
    }
    BENCH_OK(cmq_store_maintain(setup->store, true));
    for (uint32_t i = 0; i < setup->count; i++)
        setup->hash = hash_body(setup->hash, bench_body(&setup->pool, i), setup->pool.body_bytes);
}

/* ---- scans ---- */

typedef struct scan_kind {
    const char *name;
    const cmq_scan_column *columns;
    uint32_t count;
    int body;                     /* index of the body's column, -1: none */
    bool plain;
    int offset;                   /* of the queue offset's column */
    const char *floor;
} scan_kind;

static const uint8_t *body_at(const struct ArrowArray *bodies, bool plain, int64_t row, uint32_t *bytes_out)
{
    if (plain) {
        const int32_t *offsets = bodies->buffers[1];
        *bytes_out = (uint32_t)(offsets[row + 1] - offsets[row]);
        return (const uint8_t *)bodies->buffers[2] + offsets[row];
    }
    int32_t view[4];
    memcpy(view, (const uint8_t *)bodies->buffers[1] + 16 * row, sizeof view);
    *bytes_out = (uint32_t)view[0];
    return (const uint8_t *)bodies->buffers[2 + view[2]] + view[3];
}

/* Read all; with `verify` hash every body. Nanoseconds per row. */
static double scan_all(const bench_setup *setup, const scan_kind *kind, bool verify)
{
    const cmq_slice topic = cmq_slice_of_text(BENCH_TOPIC);
    const cmq_scan_options options = {
        .read = {.topics = &topic, .topic_count = 1}, .columns = kind->columns, .column_count = kind->count};
    uint64_t rows = 0, hash = 0;
    cmq_scan *scan;
    const double begin = bench_cpu_s();
    BENCH_OK(cmq_scan_open(setup->store, &options, &scan));
    for (;;) {
        struct ArrowArray batch;
        bool end;
        BENCH_OK(cmq_scan_next(scan, &batch, &end));
        if (batch.release == NULL) break;
        const int64_t *offsets = batch.children[kind->offset]->buffers[1];
        BENCH_CHECK(offsets[0] == (int64_t)rows && offsets[batch.length - 1] == (int64_t)rows + batch.length - 1);
        for (int64_t i = 0; verify && i < batch.length; i++) {
            uint32_t bytes;
            BENCH_CHECK(offsets[i] == (int64_t)rows + i);
            if (kind->body < 0) continue;
            const uint8_t *body = body_at(batch.children[kind->body], kind->plain, i, &bytes);
            BENCH_CHECK(bytes == setup->pool.body_bytes);
            hash = hash_body(hash, body, bytes);
        }
        rows += (uint64_t)batch.length;
        batch.release(&batch);
    }
    cmq_scan_close(scan);
    const double seconds = bench_cpu_s() - begin;
    BENCH_CHECK(rows == setup->count && (!verify || kind->body < 0 || hash == setup->hash));
    return seconds * 1e9 / setup->count;
}

/* ---- the bare loop ---- */

typedef struct bare_batch {
    int32_t queue_ids[BATCH_ROWS];
    int64_t offsets[BATCH_ROWS], born[BATCH_ROWS], stored[BATCH_ROWS];
    int32_t views[BATCH_ROWS][4];
    int32_t ends[BATCH_ROWS + 1];
    uint8_t *bodies;
} bare_batch;

static void bare_row(bare_batch *batch, uint32_t row, const uint8_t *record, const uint8_t *base, bool views,
                     bool gather, int32_t *used)
{
    batch->queue_ids[row] = cmq_load_i32(record + CMQ_RECORD_AT_QUEUE_ID);
    batch->offsets[row] = cmq_load_i64(record + CMQ_RECORD_AT_QUEUE_OFFSET);
    batch->born[row] = cmq_load_i64(record + CMQ_RECORD_AT_BORN_TIMESTAMP);
    batch->stored[row] = cmq_load_i64(record + CMQ_RECORD_AT_STORE_TIMESTAMP);
    const uint8_t *body = record + 88;
    const int32_t bytes = cmq_load_i32(record + 84);
    if (views) {
        batch->views[row][0] = bytes;
        memcpy(&batch->views[row][1], body, 4);
        batch->views[row][2] = 0;
        batch->views[row][3] = (int32_t)(body - base);
    }
    if (!gather) return;
    memcpy(batch->bodies + *used, body, (size_t)bytes);
    *used += bytes;
    batch->ends[row + 1] = *used;
}

static double bare_loop(const bench_setup *setup, bool views, bool gather)
{
    static bare_batch batch;
    cmq_found item;
    cmq_found_batch first = {.items = &item, .capacity = 1};
    if (batch.bodies == NULL) batch.bodies = bench_alloc(CMQ_SCAN_BATCH_BYTES + 65536);
    BENCH_OK(cmq_store_read_physical(setup->store, setup->phys[0], &first));
    const uint8_t *base = item.record;   /* one segment: all records lie behind one another */
    const uint32_t batch_rows = gather && setup->pool.body_bytes * BATCH_ROWS > CMQ_SCAN_BATCH_BYTES
                                    ? CMQ_SCAN_BATCH_BYTES / setup->pool.body_bytes
                                    : BATCH_ROWS;
    int64_t sum = 0;
    const double begin = bench_cpu_s();
    for (uint32_t at = 0; at < setup->count; at += batch_rows) {
        const uint32_t rows = setup->count - at < batch_rows ? setup->count - at : batch_rows;
        int32_t used = 0;
        for (uint32_t i = 0; i < rows; i++) {
            if (at + i + FETCH < setup->count) {
                __builtin_prefetch(base + setup->phys[at + i + FETCH]);
                __builtin_prefetch(base + setup->phys[at + i + FETCH] + 64);
            }
            bare_row(&batch, i, base + setup->phys[at + i], base, views, gather, &used);
        }
        sum += batch.offsets[rows - 1];
    }
    const double seconds = bench_cpu_s() - begin;
    BENCH_CHECK(sum > 0);
    cmq_found_batch_release(&first);
    return seconds * 1e9 / setup->count;
}

/* ---- figures ---- */

static const cmq_scan_column offset_alone[] = {{.kind = CMQ_SCAN_QUEUE_OFFSET, .name = "o"}};
static const cmq_scan_column fixed[] = {{.kind = CMQ_SCAN_QUEUE_ID, .name = "q"},
                                        {.kind = CMQ_SCAN_QUEUE_OFFSET, .name = "o"},
                                        {.kind = CMQ_SCAN_BORN_TIMESTAMP, .name = "b"},
                                        {.kind = CMQ_SCAN_STORE_TIMESTAMP, .name = "s"},
                                        {.kind = CMQ_SCAN_BODY_BYTES, .name = "n"}};
static const cmq_scan_column viewed[] = {{.kind = CMQ_SCAN_QUEUE_ID, .name = "q"},
                                         {.kind = CMQ_SCAN_QUEUE_OFFSET, .name = "o"},
                                         {.kind = CMQ_SCAN_BORN_TIMESTAMP, .name = "b"},
                                         {.kind = CMQ_SCAN_STORE_TIMESTAMP, .name = "s"},
                                         {.kind = CMQ_SCAN_BODY, .name = "body"}};
static const cmq_scan_column gathered[] = {{.kind = CMQ_SCAN_QUEUE_ID, .name = "q"},
                                           {.kind = CMQ_SCAN_QUEUE_OFFSET, .name = "o"},
                                           {.kind = CMQ_SCAN_BORN_TIMESTAMP, .name = "b"},
                                           {.kind = CMQ_SCAN_STORE_TIMESTAMP, .name = "s"},
                                           {.kind = CMQ_SCAN_BODY, .form = CMQ_SCAN_FORM_PLAIN, .name = "body"}};
static const cmq_scan_column texts[] = {{.kind = CMQ_SCAN_QUEUE_OFFSET, .name = "o"},
                                        {.kind = CMQ_SCAN_TOPIC, .form = CMQ_SCAN_FORM_DICTIONARY, .name = "t"},
                                        {.kind = CMQ_SCAN_TAGS, .form = CMQ_SCAN_FORM_DICTIONARY, .name = "g"},
                                        {.kind = CMQ_SCAN_KEYS, .name = "k"}};
static const cmq_scan_column map[] = {{.kind = CMQ_SCAN_QUEUE_OFFSET, .name = "o"},
                                      {.kind = CMQ_SCAN_PROPERTIES, .name = "p"}};

#define KIND(text, columns_, body_, plain_, offset_)                                                                   \
    {.name = text,                                                                                                     \
     .columns = columns_,                                                                                              \
     .count = sizeof columns_ / sizeof columns_[0],                                                                    \
     .body = body_,                                                                                                    \
     .plain = plain_,                                                                                                  \
     .offset = offset_}

static const scan_kind kinds[] = {KIND("queue offset alone", offset_alone, -1, false, 0),
                                  KIND("5 fixed columns", fixed, -1, false, 1),
                                  KIND("body views and 4 fixed columns", viewed, 4, false, 1),
                                  KIND("gathered bodies and 4 fixed columns", gathered, 4, true, 1),
                                  KIND("topic and tags as dictionaries, keys", texts, -1, false, 0),
                                  KIND("properties as map", map, -1, false, 0)};

static void bench_kind(const bench_setup *setup, const scan_kind *kind, int argc, char **argv)
{
    char name[128];
    const bool views = kind->body >= 0 && !kind->plain, gather = kind->body >= 0 && kind->plain;
    snprintf(name, sizeof name, "scan/%u B/%s", setup->pool.body_bytes, kind->name);
    if (!bench_wanted(argc, argv, name)) return;
    bench_say(name);
    bench_values ns = {0}, floor_ns = {0};
    scan_all(setup, kind, true);
    for (uint32_t i = 0; i < setup->repeats; i++) {
        bench_add(&ns, scan_all(setup, kind, false));
        bench_add(&floor_ns, bare_loop(setup, views, gather));
    }
    bench_figure(
        name, "ns", &ns,
        ", \"per_second\": %.0f, \"body_gb_per_second\": %.2f, \"floor\": \"a bare C loop over the same records\", "
        "\"floor_value\": %.4g, \"ratio\": %.3f",
        1e9 / bench_median(&ns), setup->pool.body_bytes / bench_median(&ns), bench_median(&floor_ns),
        bench_median(&floor_ns) / bench_median(&ns));
}

#define MATCH_EACH 16u
#define PROPERTIES "price\00100\002region\001eu\002kind\001fast\002"
#define PROPERTY_BYTES (sizeof PROPERTIES - 1)

/* Every sixteenth message is of price 15, the others of price 05. */
static void fill_with_properties(bench_setup *setup)
{
    uint8_t *properties = bench_alloc(CALL_MESSAGES * PROPERTY_BYTES);
    for (uint32_t i = 0; i < CALL_MESSAGES; i++) {
        memcpy(properties + i * PROPERTY_BYTES, PROPERTIES, PROPERTY_BYTES);
        memcpy(properties + i * PROPERTY_BYTES + 6, i % MATCH_EACH == 0 ? "15" : "05", 2);
    }
    for (uint32_t at = 0; at < setup->count; at += CALL_MESSAGES) {
        cmq_append append = bench_call(&setup->pool, at, CALL_MESSAGES, true);
        append.properties = (cmq_column){
            .kind = CMQ_COLUMN_FIXED, .data = properties, .stride = PROPERTY_BYTES, .width = PROPERTY_BYTES};
        bench_append(setup->store, &append);
    }
    BENCH_OK(cmq_store_maintain(setup->store, true));
    free(properties);
}

/* Nanoseconds per message in the log; NULL: all rows. */
static double scan_selected(const bench_setup *setup, const cmq_selector *where)
{
    const cmq_slice topic = cmq_slice_of_text(BENCH_TOPIC);
    const cmq_scan_options options = {.read = {.topics = &topic, .topic_count = 1, .where = where},
                                      .columns = viewed,
                                      .column_count = sizeof viewed / sizeof viewed[0]};
    uint64_t rows = 0;
    cmq_scan *scan;
    const double begin = bench_cpu_s();
    BENCH_OK(cmq_scan_open(setup->store, &options, &scan));
    for (;;) {
        struct ArrowArray batch;
        bool end;
        const cmq_status status = cmq_scan_next(scan, &batch, &end);
        if (status == CMQ_AGAIN) continue;
        BENCH_OK(status);
        if (batch.release == NULL) break;
        rows += (uint64_t)batch.length;
        batch.release(&batch);
    }
    cmq_scan_close(scan);
    const double seconds = bench_cpu_s() - begin;
    BENCH_CHECK(rows == (where == NULL ? setup->count : setup->count / MATCH_EACH));
    return seconds * 1e9 / setup->count;
}

static void bench_where(uint32_t count, uint32_t repeats, int argc, char **argv)
{
    if (!bench_wanted(argc, argv, "scan/128 B/where")) return;
    bench_setup setup = {.count = count, .repeats = repeats};
    bench_values all_ns = {0}, selected_ns = {0};
    cmq_selector *where;
    bench_make_directory(setup.path);
    bench_pool_make(&setup.pool, 128, count);
    const int64_t log_bytes = (int64_t)count * (int64_t)(bench_record_bytes(&setup.pool, true) + PROPERTY_BYTES + 16);
    setup.store = bench_open(setup.path, CMQ_FLUSH_ASYNC, false, (log_bytes / 4096 + 1) * 4096);
    BENCH_OK(cmq_selector_compile(cmq_slice_of_text("price > 10 AND region = 'eu' AND kind <> 'slow'"), &where, NULL));
    fill_with_properties(&setup);
    scan_selected(&setup, NULL);
    for (uint32_t i = 0; i < repeats; i++) {
        bench_add(&all_ns, scan_selected(&setup, NULL));
        bench_add(&selected_ns, scan_selected(&setup, where));
    }
    bench_figure("scan/128 B/where: all messages", "ns", &all_ns, ", \"per_second\": %.0f",
                 1e9 / bench_median(&all_ns));
    bench_figure("scan/128 B/where: 1 in 16 matches", "ns", &selected_ns, ", \"to_all\": %.3f",
                 bench_median(&selected_ns) / bench_median(&all_ns));
    cmq_selector_free(where);
    BENCH_OK(cmq_store_close(setup.store));
    bench_remove_directory(setup.path);
    bench_pool_free(&setup.pool);
}

static void bench_size(uint32_t body_bytes, uint32_t count, uint32_t repeats, int argc, char **argv)
{
    bench_setup setup = {.count = count, .repeats = repeats};
    bench_make_directory(setup.path);
    bench_pool_make(&setup.pool, body_bytes, count);
    setup.phys = bench_alloc((size_t)count * sizeof *setup.phys);
    const int64_t log_bytes = (int64_t)count * (bench_record_bytes(&setup.pool, true) + 16);
    setup.store = bench_open(setup.path, CMQ_FLUSH_ASYNC, false, (log_bytes / 4096 + 1) * 4096);
    fill(&setup);
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        bench_kind(&setup, &kinds[i], argc, argv);
    BENCH_OK(cmq_store_close(setup.store));
    bench_remove_directory(setup.path);
    bench_pool_free(&setup.pool);
    free(setup.phys);
}

int main(int argc, char **argv)
{
    const bool quick = bench_is_quick(argc, argv);
    bench_size(128, quick ? 20000 : 4000000, quick ? 2 : 7, argc, argv);
    bench_size(1024, quick ? 8000 : 1000000, quick ? 2 : 7, argc, argv);
    bench_where(quick ? 16000 : 2000000, quick ? 2 : 7, argc, argv);
    return 0;
}
