/* bench_recover: seconds until a store is open: after a clean stop, after a crash without any durable point (all of it
 * is read again), after a crash with durable points (only records behind the last point), and with a cold page cache.
 *
 * A crash is a process that fills the store and ends by _exit: the page cache stays, as after kill -9. Without the
 * background thread nobody makes durable points; with it they come by upstream's and our rules. Times are of the clock
 * on the wall, for opening is what a user waits for; beside them the CPU of all threads, and of the one that took most,
 * which other programs do not lengthen. Floor of the same run: a walk over the mapped log that checks each record's CRC
 * and nothing else.
 *
 * cold: the log's and queues' pages are dropped with posix_fadvise after a sync. The host's cache may still have them.
 *
 * Checked: after each opening every message is read back with its CRC and body, keys are found, and cmq_store_opening
 *          counts exactly the records that had to be read again.
 */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "cmq_bench_store.h"

#define BATCH 4000u
#define GIB (INT64_C(1) << 30)

typedef struct recover_case {
    const char *name;
    uint32_t body_bytes;
    uint32_t queues;
    bool keyed;
    bool clean, points, cold;
} recover_case;

/* Runs in a child: the queue ids turn, so that each of `queues` gets its share. */
static void fill(const recover_case *of, const char *path, const bench_pool *pool, uint64_t count)
{
    cmq_store *store = bench_open(path, CMQ_FLUSH_ASYNC, of->points, 0);
    static int32_t queue_ids[BATCH];
    for (uint64_t at = 0; at < count; at += BATCH) {
        cmq_append append = bench_call(pool, at, BATCH, of->keyed);
        for (uint32_t i = 0; i < BATCH; i++) queue_ids[i] = (int32_t)((at + i) % of->queues);
        if (of->queues > 1) append.queue_ids = queue_ids;
        bench_append(store, &append);
    }
    if (of->clean) BENCH_OK(cmq_store_close(store));
    _exit(0);
}

static void fill_in_child(const recover_case *of, const char *path, const bench_pool *pool, uint64_t count)
{
    int state;
    fflush(stdout);
    const pid_t child = fork();
    BENCH_CHECK(child >= 0);
    if (child == 0) fill(of, path, pool, count);
    BENCH_CHECK(waitpid(child, &state, 0) == child && WIFEXITED(state) && WEXITSTATUS(state) == 0);
}

static int drop_one(const char *path, const struct stat *info, int kind, struct FTW *place)
{
    (void)info, (void)place;
    if (kind != FTW_F) return 0;
    const int file = open(path, O_RDWR);
    BENCH_CHECK(file >= 0 && fsync(file) == 0);
    BENCH_CHECK(posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED) == 0);
    return close(file);
}

/* Walk the segment files and check CRCs; seconds. The store is closed or was left by its process. */
static double floor_walk(const char *path, uint64_t *bytes_out, uint64_t expected)
{
    uint64_t records = 0, bytes = 0;
    const double begin = bench_wall_s();
    for (int64_t start = 0;; start += GIB) {
        char file_path[CMQ_PATH_BYTES + 64];
        snprintf(file_path, sizeof file_path, "%s/commitlog/%020" PRId64, path, start);
        const int file = open(file_path, O_RDONLY);
        if (file < 0) break;
        const uint8_t *map = mmap(NULL, (size_t)GIB, PROT_READ, MAP_SHARED, file, 0);
        BENCH_CHECK(map != MAP_FAILED);
        size_t at = 0;
        cmq_record_view view;
        while (at < (size_t)GIB && cmq_record_parse(map + at, (size_t)GIB - at, start + (int64_t)at,
                                                    CMQ_RECORD_CHECK_BODY_CRC, &view) == CMQ_OK) {
            at += view.record_bytes;
            records++;
        }
        bytes += at;
        BENCH_CHECK(munmap((void *)map, (size_t)GIB) == 0 && close(file) == 0);
    }
    const double seconds = bench_wall_s() - begin;
    BENCH_CHECK(records == expected);
    *bytes_out = bytes;
    return seconds;
}

static uint64_t count_messages(cmq_store *store, const bench_pool *pool)
{
    const cmq_slice topic = cmq_slice_of_text(BENCH_TOPIC);
    const cmq_read_options options = {.topics = &topic, .topic_count = 1};
    static cmq_found items[512];
    cmq_found_batch batch = {.items = items, .capacity = 512};
    cmq_reader *reader;
    uint64_t seen = 0;
    BENCH_OK(cmq_reader_open(store, &options, &reader));
    for (;;) {
        bool end;
        BENCH_OK(cmq_reader_next(reader, &batch, &end));
        if (batch.count == 0) break;
        for (uint32_t i = 0; i < batch.count; i++, seen++) {
            cmq_record_view view;
            BENCH_OK(cmq_record_parse(items[i].record, items[i].record_bytes, items[i].physical_offset,
                                      CMQ_RECORD_CHECK_BODY_CRC, &view));
            BENCH_CHECK(
                cmq_slice_equal(view.body, (cmq_slice){.data = bench_body(pool, seen), .bytes = pool->body_bytes}));
        }
        cmq_found_batch_release(&batch);
    }
    cmq_reader_close(reader);
    return seen;
}

/* An opening, in seconds. */
typedef struct opening_times {
    double wall;
    double cpu;                   /* of all threads */
    double longest_cpu;           /* of the thread that took most: the wall time on idle cores, where nothing waits for
                                   * the disk */
} opening_times;

static opening_times open_and_check(const recover_case *of, const char *path, const bench_pool *pool, uint64_t count,
                                    int64_t *scanned_out)
{
    const double wall = bench_wall_s(), cpu = bench_process_cpu_s(), own = bench_cpu_s();
    cmq_store *store = bench_open(path, CMQ_FLUSH_ASYNC, false, 0);
    opening_times times = {.wall = bench_wall_s() - wall, .cpu = bench_process_cpu_s() - cpu};
    const double opener = bench_cpu_s() - own, others = times.cpu - opener;   /* one other reads the log */
    times.longest_cpu = opener > others ? opener : others;
    cmq_store_opening opening;
    cmq_store_opening_of(store, &opening);
    BENCH_CHECK(opening.was_unclean == !of->clean && opening.cut_bytes == 0);
    *scanned_out = opening.scanned_to - opening.scanned_from;
    BENCH_CHECK(count_messages(store, pool) == count);
    if (of->keyed) bench_verify_keys(store, pool, (uint32_t)count, 100);
    BENCH_OK(cmq_store_close(store));
    return times;
}

static void bench_case(const recover_case *of, uint64_t bytes, uint32_t repeats)
{
    bench_pool pool;
    char name[128];
    snprintf(name, sizeof name, "recover/%s/%uB/%u queue%s/%s", of->name, of->body_bytes, of->queues,
             of->queues == 1 ? "" : "s", of->keyed ? "1 key" : "no key");
    bench_say(name);
    bench_pool_make(&pool, of->body_bytes, of->keyed ? (uint32_t)(bytes / of->body_bytes) : 0);
    const uint64_t count = bytes / bench_record_bytes(&pool, of->keyed) / BATCH * BATCH;
    bench_values opened = {0}, per_gib = {0}, cpu_per_gib = {0}, longest_per_gib = {0}, floor_per_gib = {0},
                 scanned_mib = {0};
    for (uint32_t i = 0; i < repeats; i++) {
        char path[CMQ_PATH_BYTES];
        uint64_t log_bytes;
        int64_t scanned;
        bench_make_directory(path);
        fill_in_child(of, path, &pool, count);
        if (of->cold) BENCH_CHECK(nftw(path, drop_one, 16, FTW_PHYS) == 0);
        const opening_times times = open_and_check(of, path, &pool, count, &scanned);
        if (of->cold) BENCH_CHECK(nftw(path, drop_one, 16, FTW_PHYS) == 0);
        const double floor = floor_walk(path, &log_bytes, count);
        BENCH_CHECK(of->clean || of->points || scanned == (int64_t)log_bytes);
        const double gib = (double)log_bytes / (double)GIB;
        bench_add(&opened, times.wall * 1e3);
        bench_add(&per_gib, times.wall / gib);
        bench_add(&cpu_per_gib, times.cpu / gib);
        bench_add(&longest_per_gib, times.longest_cpu / gib);
        bench_add(&floor_per_gib, floor / gib);
        bench_add(&scanned_mib, (double)scanned / (1 << 20));
        bench_remove_directory(path);
    }
    bench_pool_free(&pool);
    if (of->clean || of->points)
        bench_figure(name, "ms", &opened,
                     ", \"log_mib\": %.0f, \"read_again_mib\": %.1f, \"flush\": \"async\", \"keys\": %d",
                     (double)bytes / (1 << 20), bench_median(&scanned_mib), of->keyed);
    else
        bench_figure(name, "s/GiB", &per_gib,
                     ", \"log_mib\": %.0f, \"flush\": \"async\", \"keys\": %d, \"cpu\": %.4g, "
                     "\"cpu_of_the_longer_thread\": %.4g, "
                     "\"floor\": \"walk with CRC%s\", \"floor_value\": %.4g, \"ratio\": %.3f",
                     (double)bytes / (1 << 20), of->keyed, bench_median(&cpu_per_gib), bench_median(&longest_per_gib),
                     of->cold ? ", cold" : "", bench_median(&floor_per_gib),
                     bench_median(&floor_per_gib) / bench_median(&per_gib));
}

int main(int argc, char **argv)
{
    static const recover_case cases[] = {
        {.name = "clean stop", .body_bytes = 128, .queues = 1, .keyed = true, .clean = true},
        {.name = "crash with durable points", .body_bytes = 128, .queues = 1, .keyed = true, .points = true},
        {.name = "crash", .body_bytes = 128, .queues = 1},
        {.name = "crash", .body_bytes = 1024, .queues = 1},
        {.name = "crash", .body_bytes = 128, .queues = 1, .keyed = true},
        {.name = "crash", .body_bytes = 128, .queues = 1000},
        {.name = "crash, cold", .body_bytes = 128, .queues = 1, .cold = true},
        {.name = "crash, cold", .body_bytes = 1024, .queues = 1, .cold = true},
    };
    const bool quick = bench_is_quick(argc, argv);
    uint64_t bytes = quick ? 8u << 20 : (uint64_t)GIB;
    for (int i = 1; i + 1 < argc; i++)
        /* a look: what an opening costs by itself weighs more */
        if (strcmp(argv[i], "--mib") == 0) bytes = (uint64_t)atoi(argv[i + 1]) << 20;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        if (bench_wanted(argc, argv, cases[i].name)) bench_case(&cases[i], bytes, quick ? 2 : 5);
    return 0;
}
