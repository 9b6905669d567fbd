/* bench_append: messages per second and CPU per message of the engine's append, by body, batch, keys, flush mode and
 * number of appenders.
 *
 * Turn by turn with each figure its floor writes the same bytes in the same groups to a fresh file: async with pwrite,
 * or, where pages are warm, with memcpy into warm pages; sync with pwrite and fdatasync per group. The groups of
 * several appenders are recorded while the store runs and written again one for one.
 *
 *   fresh      a new store, from its first byte on: the case of a program that appends some hundred megabytes and ends
 *   warm       a segment that the prewarming helper had made ready, as it is a segment ahead under steady appends
 *   sustained  gigabytes through several segments, all the store's threads at work; process CPU counts them too
 *
 * Checked: after each run every message is read back: count, order, CRC, body; and some keys are looked up.
 */
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>

#include "cmq_bench_store.h"
#include "store/cmq_store_internal.h"

#define WARM_SEGMENT_BYTES (INT64_C(256) << 20)
#define APPENDERS_MAX 64u
#define GROUPS_MAX 65536u

typedef struct run_plan {
    uint64_t async_bytes;         /* per run */
    uint64_t sustained_bytes;
    uint32_t sync_groups;         /* calls per run of one appender */
    uint32_t sync_messages;       /* at least, of several appenders together */
    uint32_t repeats;
} run_plan;

/* The times of one run, per message. */
typedef struct run_times {
    double wall_s, cpu_s, process_cpu_s;
} run_times;

typedef struct run_stats {
    bench_values rate, cpu_ns, process_cpu_ns, floor_rate, ratio;
} run_stats;

static run_times start_times(void)
{
    return (run_times){.wall_s = bench_wall_s(), .cpu_s = bench_cpu_s(), .process_cpu_s = bench_process_cpu_s()};
}

static run_times since(run_times start)
{
    const run_times now = start_times();
    return (run_times){.wall_s = now.wall_s - start.wall_s,
                       .cpu_s = now.cpu_s - start.cpu_s,
                       .process_cpu_s = now.process_cpu_s - start.process_cpu_s};
}

static void add_run(run_stats *stats, run_times ours, run_times floor, double messages, bool by_cpu)
{
    bench_add(&stats->rate, messages / ours.wall_s);
    bench_add(&stats->cpu_ns, ours.cpu_s * 1e9 / messages);
    bench_add(&stats->process_cpu_ns, ours.process_cpu_s * 1e9 / messages);
    bench_add(&stats->floor_rate, messages / floor.wall_s);
    bench_add(&stats->ratio, by_cpu ? floor.cpu_s / ours.cpu_s : floor.wall_s / ours.wall_s);
}

static void print_run(const char *name, const run_stats *stats, const char *flush, bool keyed, const bench_pool *pool,
                      const char *floor, const char *ratio_of)
{
    const double bytes = bench_record_bytes(pool, keyed);
    bench_figure(
        name, "msg/s", &stats->rate,
        ", \"cpu_ns\": %.1f, \"process_cpu_ns\": %.1f, \"mb_per_second\": %.1f, \"flush\": \"%s\", \"keys\": %d, "
        "\"floor\": \"%s\", "
        "\"floor_value\": %.4g, \"ratio\": %.3f, \"ratio_min\": %.3f, \"ratio_max\": %.3f, \"ratio_of\": \"%s\"",
        bench_median(&stats->cpu_ns), bench_median(&stats->process_cpu_ns), bench_median(&stats->rate) * bytes * 1e-6,
        flush, keyed, floor, bench_median(&stats->floor_rate), bench_median(&stats->ratio),
        bench_extreme(&stats->ratio, false), bench_extreme(&stats->ratio, true), ratio_of);
}

/* ---- floors ---- */

static int floor_open(char path[CMQ_PATH_BYTES], int64_t bytes)
{
    const char *parent = getenv("CMQ_BENCH_DIR");
    if (parent == NULL) parent = getenv("TMPDIR");
    snprintf(path, CMQ_PATH_BYTES, "%s/cmq-bench-floor-XXXXXX", parent != NULL ? parent : "/tmp");
    const int file = mkstemp(path);
    BENCH_CHECK(file >= 0 && ftruncate(file, bytes) == 0);
    return file;
}

static void floor_close(int file, const char *path) { BENCH_CHECK(close(file) == 0 && unlink(path) == 0); }

/* pwrite of `total` bytes in groups; the bytes come from the pool, round and round. */
static run_times floor_pwrite(const bench_pool *pool, uint64_t total, uint32_t group_bytes)
{
    char path[CMQ_PATH_BYTES];
    const int file = floor_open(path, (int64_t)total);
    const uint32_t span = pool->slots * pool->body_bytes;
    uint32_t from = 0;
    BENCH_CHECK(group_bytes <= span);
    const run_times start = start_times();
    for (uint64_t at = 0; at < total; at += group_bytes) {
        if (from > span - group_bytes) from = 0;
        BENCH_CHECK(pwrite(file, pool->bodies + from, group_bytes, (off_t)at) == (ssize_t)group_bytes);
        from += group_bytes;
    }
    const run_times times = since(start);
    floor_close(file, path);
    return times;
}

/* The same by memcpy into pages that are in memory and writable already. */
static run_times floor_memcpy(const bench_pool *pool, uint64_t total, uint32_t group_bytes)
{
    char path[CMQ_PATH_BYTES];
    const int file = floor_open(path, (int64_t)total);
    BENCH_CHECK(posix_fallocate(file, 0, (off_t)total) == 0);
    uint8_t *map = mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    BENCH_CHECK(map != MAP_FAILED);
    BENCH_OK(cmq_file_populate(map, total));
    const uint32_t span = pool->slots * pool->body_bytes;
    uint32_t from = 0;
    const run_times start = start_times();
    for (uint64_t at = 0; at + group_bytes <= total; at += group_bytes) {
        if (from > span - group_bytes) from = 0;
        memcpy(map + at, pool->bodies + from, group_bytes);
        from += group_bytes;
    }
    const run_times times = since(start);
    BENCH_CHECK(munmap(map, total) == 0);
    floor_close(file, path);
    return times;
}

/* pwrite and fdatasync of each group. */
static run_times floor_durable(const bench_pool *pool, const uint32_t *groups, uint32_t count)
{
    char path[CMQ_PATH_BYTES];
    uint64_t total = 0, at = 0;
    for (uint32_t i = 0; i < count; i++) total += groups[i];
    const int file = floor_open(path, INT64_C(1) << 30);
    BENCH_CHECK(total <= UINT64_C(1) << 30);
    const run_times start = start_times();
    for (uint32_t i = 0; i < count; at += groups[i++]) {
        BENCH_CHECK(groups[i] <= pool->slots * pool->body_bytes);
        BENCH_CHECK(pwrite(file, pool->bodies, groups[i], (off_t)at) == (ssize_t)groups[i]);
        BENCH_CHECK(fdatasync(file) == 0);
    }
    const run_times times = since(start);
    floor_close(file, path);
    return times;
}

/* ---- async ---- */

static void append_range(cmq_store *store, const bench_pool *pool, uint64_t from, uint64_t to, uint32_t batch,
                         bool keyed)
{
    for (uint64_t at = from; at < to; at += batch) {
        const cmq_append append = bench_call(pool, at, batch, keyed);
        bench_append(store, &append);
    }
}

static void check_run(cmq_store *store, const bench_pool *pool, uint64_t count, bool keyed, bool in_order)
{
    bench_verify(store, pool, count, keyed, in_order);
    if (keyed) bench_verify_keys(store, pool, (uint32_t)count, 100);
}

static run_times run_fresh(const bench_pool *pool, uint64_t count, uint32_t batch, bool keyed)
{
    char path[CMQ_PATH_BYTES];
    bench_make_directory(path);
    cmq_store *store = bench_open(path, CMQ_FLUSH_ASYNC, true, 0);
    const run_times start = start_times();
    append_range(store, pool, 0, count, batch, keyed);
    const run_times times = since(start);
    check_run(store, pool, count, keyed, true);
    BENCH_OK(cmq_store_close(store));
    bench_remove_directory(path);
    return times;
}

static void async_fresh(const run_plan *plan, const bench_pool *pool, uint32_t batch, bool keyed, uint64_t bytes,
                        const char *what)
{
    char name[96];
    snprintf(name, sizeof name, "append/async/%uB/batch-%u/%s/%s", pool->body_bytes, batch, keyed ? "1 key" : "no key",
             what);
    bench_say(name);
    const uint32_t record = bench_record_bytes(pool, keyed);
    uint64_t count = bytes / record / 4000 * 4000;
    if (count == 0) count = 4000;
    if (keyed && count > pool->key_count) count = pool->key_count;
    run_stats stats = {0};
    for (uint32_t i = 0; i < plan->repeats; i++) {
        const run_times ours = run_fresh(pool, count, batch, keyed);
        add_run(&stats, ours, floor_pwrite(pool, count * record, batch * record), (double)count, true);
    }
    print_run(name, &stats, "async", keyed, pool, "pwrite of the same groups, fresh file", "cpu");
}

/* Fill the first segment, have the second made ready, and measure in that. */
static run_times run_warm(const bench_pool *pool, uint64_t *count_out, uint32_t batch, bool keyed)
{
    char path[CMQ_PATH_BYTES];
    bench_make_directory(path);
    cmq_store *store = bench_open(path, CMQ_FLUSH_ASYNC, false, WARM_SEGMENT_BYTES);
    const int64_t record = bench_record_bytes(pool, keyed);
    uint64_t at = 0;
    for (; cmq_store_confirmed(store) <= WARM_SEGMENT_BYTES - 4000 * record; at += 4000)
        append_range(store, pool, at, at + 4000, 4000, keyed);
    cmq_status status;
    do status = cmq_log_prewarm_step(store->log);
    while (status == CMQ_OK);
    BENCH_CHECK(status == CMQ_END);
    append_range(store, pool, at, at + 4000, 4000, keyed);   /* over the seam */
    BENCH_CHECK(cmq_store_confirmed(store) > WARM_SEGMENT_BYTES);
    BENCH_OK(cmq_store_maintain(store, false));              /* queue units to files, which the background thread would
                                                              * do */
    at += 4000;
    const uint64_t count = (uint64_t)((2 * WARM_SEGMENT_BYTES - cmq_store_confirmed(store)) / record / 4000 * 4000);
    const run_times start = start_times();
    append_range(store, pool, at, at + count, batch, keyed);
    const run_times times = since(start);
    BENCH_CHECK(cmq_store_confirmed(store) <= 2 * WARM_SEGMENT_BYTES);
    check_run(store, pool, at + count, keyed, true);
    BENCH_OK(cmq_store_close(store));
    bench_remove_directory(path);
    *count_out = count;
    return times;
}

static void async_warm(const run_plan *plan, const bench_pool *pool, uint32_t batch, bool keyed)
{
    char name[96];
    snprintf(name, sizeof name, "append/async/%uB/batch-%u/%s/warm", pool->body_bytes, batch,
             keyed ? "1 key" : "no key");
    bench_say(name);
    const uint32_t record = bench_record_bytes(pool, keyed);
    run_stats stats = {0};
    for (uint32_t i = 0; i < plan->repeats; i++) {
        uint64_t count;
        const run_times ours = run_warm(pool, &count, batch, keyed);
        add_run(&stats, ours, floor_memcpy(pool, count * record, batch * record), (double)count, true);
    }
    print_run(name, &stats, "async", keyed, pool, "memcpy of the same groups into warm pages", "cpu");
}

/* ---- sync ---- */

/* The system's files, with the bytes of each group of the commit log noted at its sync. */
typedef struct group_recorder {
    cmq_fs fs;
    cmq_fs_ops ops;
    cmq_file *log;                /* the commit log's file: the first one that is larger than a queue's */
    uint32_t bytes;               /* written since the last sync; by the group's leader only */
    uint32_t groups[GROUPS_MAX];
    _Atomic uint32_t count;
} group_recorder;

static group_recorder recorder;

static cmq_status record_open(cmq_fs *self, const char *path, cmq_open_mode mode, cmq_file **file_out)
{
    (void)self;
    const cmq_status status = cmq_fs_posix()->ops->open(cmq_fs_posix(), path, mode, file_out);
    if (status != CMQ_OK) return status;
    (*file_out)->fs = &recorder.fs;
    if (strstr(path, "/commitlog/") != NULL) recorder.log = *file_out;
    return CMQ_OK;
}

static cmq_status record_write(cmq_file *file, uint64_t offset, const void *from, size_t bytes)
{
    if (file == recorder.log) recorder.bytes += (uint32_t)bytes;
    return cmq_fs_posix()->ops->write(file, offset, from, bytes);
}

static cmq_status record_sync(cmq_file *file)
{
    if (file == recorder.log && recorder.bytes > 0) {
        const uint32_t at = atomic_fetch_add(&recorder.count, 1);
        BENCH_CHECK(at < GROUPS_MAX);
        recorder.groups[at] = recorder.bytes;
        recorder.bytes = 0;
    }
    return cmq_fs_posix()->ops->sync(file);
}

static cmq_store *open_recorded(const char *path)
{
    recorder.ops = *cmq_fs_posix()->ops;
    recorder.ops.open = record_open;
    recorder.ops.write = record_write;
    recorder.ops.sync = record_sync;
    recorder.fs.ops = &recorder.ops;
    recorder.log = NULL;
    recorder.bytes = 0;
    atomic_store(&recorder.count, 0);
    const cmq_store_options options = {
        .path = path, .fs = &recorder.fs, .create = true, .background = true, .flush = CMQ_FLUSH_SYNC};
    cmq_store *store;
    BENCH_OK(cmq_store_open(&store, &options));
    return store;
}

static run_times run_sync_batches(const bench_pool *pool, uint64_t count, uint32_t batch, bool keyed)
{
    char path[CMQ_PATH_BYTES];
    bench_make_directory(path);
    cmq_store *store = open_recorded(path);
    const run_times start = start_times();
    append_range(store, pool, 0, count, batch, keyed);
    const run_times times = since(start);
    const uint32_t groups = atomic_load(&recorder.count);
    BENCH_CHECK(groups == count / batch || batch > 4096);
    check_run(store, pool, count, keyed, true);
    BENCH_OK(cmq_store_close(store));
    bench_remove_directory(path);
    return times;
}

static void sync_batches(const run_plan *plan, const bench_pool *pool, uint32_t batch, bool keyed)
{
    char name[96];
    snprintf(name, sizeof name, "append/sync/%uB/batch-%u/%s", pool->body_bytes, batch, keyed ? "1 key" : "no key");
    bench_say(name);
    uint64_t calls = plan->sync_groups;
    while (calls > 4 && calls * batch * bench_record_bytes(pool, keyed) > UINT64_C(400) << 20) calls /= 2;
    if (keyed)
        while (calls > 1 && calls * batch > pool->key_count) calls /= 2;
    run_stats stats = {0};
    for (uint32_t i = 0; i < plan->repeats; i++) {
        const run_times ours = run_sync_batches(pool, calls * batch, batch, keyed);
        add_run(&stats, ours, floor_durable(pool, recorder.groups, atomic_load(&recorder.count)),
                (double)(calls * batch), false);
    }
    print_run(name, &stats, "sync", keyed, pool, "pwrite + fdatasync of the same groups, fresh file", "wall");
}

typedef struct appender {
    pthread_t thread;
    cmq_store *store;
    const bench_pool *pool;
    uint32_t number, of, calls;
    bool keyed;
    pthread_barrier_t *barrier;
    float *seconds;               /* of each call */
} appender;

static void *append_singly(void *argument)
{
    const appender *self = argument;
    pthread_barrier_wait(self->barrier);
    for (uint32_t i = 0; i < self->calls; i++) {
        const cmq_append append = bench_call(self->pool, (uint64_t)i * self->of + self->number, 1, self->keyed);
        const double begin = bench_wall_s();
        bench_append(self->store, &append);
        self->seconds[i] = (float)(bench_wall_s() - begin);
    }
    return NULL;
}

static int compare_floats(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

static run_times run_sync_appenders(const bench_pool *pool, uint32_t appenders, uint32_t calls, bool keyed,
                                    float *seconds)
{
    char path[CMQ_PATH_BYTES];
    appender all[APPENDERS_MAX];
    pthread_barrier_t barrier;
    bench_make_directory(path);
    cmq_store *store = open_recorded(path);
    BENCH_CHECK(pthread_barrier_init(&barrier, NULL, appenders + 1) == 0);
    for (uint32_t i = 0; i < appenders; i++) {
        all[i] = (appender){.store = store,
                            .pool = pool,
                            .number = i,
                            .of = appenders,
                            .calls = calls,
                            .keyed = keyed,
                            .barrier = &barrier,
                            .seconds = seconds + (size_t)i * calls};
        BENCH_CHECK(pthread_create(&all[i].thread, NULL, append_singly, &all[i]) == 0);
    }
    const run_times start = start_times();
    pthread_barrier_wait(&barrier);
    for (uint32_t i = 0; i < appenders; i++) BENCH_CHECK(pthread_join(all[i].thread, NULL) == 0);
    run_times times = since(start);
    times.cpu_s = times.process_cpu_s;   /* of all appenders; the store's own threads have little to do meanwhile */
    BENCH_CHECK(pthread_barrier_destroy(&barrier) == 0);
    check_run(store, pool, (uint64_t)calls * appenders, keyed, false);
    BENCH_OK(cmq_store_close(store));
    bench_remove_directory(path);
    return times;
}

static void sync_appenders(const run_plan *plan, const bench_pool *pool, uint32_t appenders, bool keyed)
{
    char name[96];
    snprintf(name, sizeof name, "append/sync/%uB/appenders-%u/%s", pool->body_bytes, appenders,
             keyed ? "1 key" : "no key");
    bench_say(name);
    const uint32_t least = plan->sync_messages / appenders,
                   calls = least > plan->sync_groups ? plan->sync_groups : least + 1;
    float *seconds = bench_alloc((size_t)appenders * calls * sizeof *seconds);
    run_stats stats = {0};
    bench_values p50 = {0}, p99 = {0}, group = {0};
    for (uint32_t i = 0; i < plan->repeats; i++) {
        const uint32_t messages = appenders * calls;
        const run_times ours = run_sync_appenders(pool, appenders, calls, keyed, seconds);
        const uint32_t groups = atomic_load(&recorder.count);
        add_run(&stats, ours, floor_durable(pool, recorder.groups, groups), messages, false);
        qsort(seconds, messages, sizeof *seconds, compare_floats);
        bench_add(&p50, (double)seconds[messages / 2] * 1e6);
        bench_add(&p99, (double)seconds[(size_t)messages * 99 / 100] * 1e6);
        bench_add(&group, (double)messages / groups);
    }
    bench_figure(name, "msg/s", &stats.rate,
                 ", \"process_cpu_ns\": %.1f, \"p50_us\": %.1f, \"p99_us\": %.1f, \"messages_per_sync\": %.2f, "
                 "\"flush\": \"sync\", \"keys\": %d, "
                 "\"floor\": \"pwrite + fdatasync of the same groups, fresh file\", \"floor_value\": %.4g, \"ratio\": "
                 "%.3f, \"ratio_min\": %.3f, "
                 "\"ratio_max\": %.3f, \"ratio_of\": \"wall\"",
                 bench_median(&stats.process_cpu_ns), bench_median(&p50), bench_median(&p99), bench_median(&group),
                 keyed, bench_median(&stats.floor_rate), bench_median(&stats.ratio), bench_extreme(&stats.ratio, false),
                 bench_extreme(&stats.ratio, true));
    free(seconds);
}

/* ---- all ---- */

static void run_body(const run_plan *plan, uint32_t body_bytes, bool quick, int argc, char **argv)
{
    static const uint32_t batches[] = {1, 32, 1000, 4000}, appenders[] = {1, 8, 64};
    bench_pool pool;
    bench_pool_make(&pool, body_bytes, quick ? 8000 : 4000000);
    for (int keyed = 0; keyed < 2; keyed++) {
        for (size_t i = 0; i < sizeof batches / sizeof batches[0]; i++) {
            if (bench_wanted(argc, argv, "async fresh"))
                async_fresh(plan, &pool, batches[i], keyed, plan->async_bytes, "fresh");
            if (bench_wanted(argc, argv, "async warm") && !quick) async_warm(plan, &pool, batches[i], keyed);
            if (bench_wanted(argc, argv, "sync batches")) sync_batches(plan, &pool, batches[i], keyed);
        }
        if (bench_wanted(argc, argv, "async sustained"))
            async_fresh(plan, &pool, 1000, keyed, plan->sustained_bytes, "sustained");
        for (size_t i = 0; i < sizeof appenders / sizeof appenders[0]; i++)
            if (bench_wanted(argc, argv, "sync appenders")) sync_appenders(plan, &pool, appenders[i], keyed);
    }
    bench_pool_free(&pool);
}

int main(int argc, char **argv)
{
    const bool quick = bench_is_quick(argc, argv);
    const run_plan plan = quick ? (run_plan){.async_bytes = 1 << 20,
                                             .sustained_bytes = 1 << 21,
                                             .sync_groups = 4,
                                             .sync_messages = 128,
                                             .repeats = 2}
                                : (run_plan){.async_bytes = 512u << 20,
                                             .sustained_bytes = UINT64_C(3) << 30,
                                             .sync_groups = 1500,
                                             .sync_messages = 30000,
                                             .repeats = 5};
    run_body(&plan, 128, quick, argc, argv);
    run_body(&plan, 1024, quick, argc, argv);
    return 0;
}
