/* bench_scale: does anything grow with the backlog? One store of 1 million messages of 128 B, then of 100 million, and
 * the same work on each.
 *
 *   bench_scale [--quick] [--messages N] [--directory DIR] [--keep]
 *
 * Fills one queue up to N messages (async flush, batches of 4,000, no keys), then measures single appends, a restart
 * after a clean stop, look-ups at random offsets among all messages and among the newest million, and memory. With
 * --directory an interrupted fill resumes; --keep leaves the store. 100 million messages take
 * 26 GB of disk.
 *
 * Look-ups among all messages of a store larger than memory wait for the disk; those among the newest million do not,
 * so the two are measured separately.
 * Checked: the number of messages, and body and CRC of each message that was looked up.
 */
#include <dirent.h>
#include <errno.h>
#include <sys/stat.h>

#include "cmq_bench_store.h"

#define BATCH 4000u
#define BODY_BYTES 128u
#define NEWEST 1000000u
#define SAMPLES 200000u

typedef struct scale {
    char path[CMQ_PATH_BYTES];
    cmq_store *store;
    bench_pool pool;
    uint64_t messages;            /* to fill up to */
    uint32_t samples;
    char label[32];
} scale;

static const char *option_of(int argc, char **argv, const char *name)
{
    for (int i = 1; i + 1 < argc; i++)
        if (strcmp(argv[i], name) == 0) return argv[i + 1];
    return NULL;
}

static bool flag_of(int argc, char **argv, const char *name)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], name) == 0) return true;
    return false;
}

static void figure(const scale *of, const char *name, const char *unit, double value, const char *more)
{
    char full[192];
    snprintf(full, sizeof full, "scale/%s/%s", of->label, name);
    bench_figure(full, unit, &(bench_values){.at = {value}, .count = 1}, ", \"flush\": \"async\", \"keys\": 0%s", more);
}

static uint64_t stored(const scale *of)
{
    cmq_queue *queue = cmq_queues_find(cmq_store_queues(of->store), cmq_slice_of_text(BENCH_TOPIC), 0);
    return queue == NULL ? 0 : (uint64_t)cmq_queue_max(queue, cmq_store_confirmed(of->store));
}

static int compare_floats(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

static void print_latencies(const scale *of, const char *what, float *seconds, uint32_t count)
{
    static const struct {
        const char *name;
        double part;
    } parts[] = {{"p50", 0.5}, {"p99", 0.99}, {"p99.9", 0.999}};
    qsort(seconds, count, sizeof *seconds, compare_floats);
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        char name[96];
        snprintf(name, sizeof name, "%s %s", what, parts[i].name);
        figure(of, name, "us", (double)seconds[(size_t)((double)(count - 1) * parts[i].part)] * 1e6, "");
    }
}

/* ---- filling ---- */

static void fill(scale *of)
{
    uint64_t at = stored(of);
    BENCH_CHECK(at % BATCH == 0 || at >= of->messages);
    const uint64_t from = at;
    const double begin = bench_wall_s();
    double said = begin;
    for (; at < of->messages; at += BATCH) {
        const cmq_append append = bench_call(&of->pool, at, BATCH, false);
        bench_append(of->store, &append);
        if (bench_wall_s() - said > 5) {
            said = bench_wall_s();
            fprintf(stderr, "  %.1f million of %.0f, %.2f million/s\n", (double)at / 1e6, (double)of->messages / 1e6,
                    (double)(at - from) / 1e6 / (said - begin));
        }
    }
    if (at > from) figure(of, "fill, batches of 4000", "msg/s", (double)(at - from) / (bench_wall_s() - begin), "");
}

static void single_appends(scale *of, float *seconds)
{
    uint64_t at = stored(of);
    for (uint32_t i = 0; i < of->samples; i++, at++) {
        const cmq_append append = bench_call(&of->pool, at, 1, false);
        const double begin = bench_wall_s();
        bench_append(of->store, &append);
        seconds[i] = (float)(bench_wall_s() - begin);
    }
    print_latencies(of, "append of one", seconds, of->samples);
    /* Back to a whole number of batches, so that a kept store can be filled further. */
    for (; at % BATCH != 0; at++) {
        const cmq_append append = bench_call(&of->pool, at, 1, false);
        bench_append(of->store, &append);
    }
    BENCH_CHECK(stored(of) == at);
}

/* ---- reading ---- */

static void random_reads(const scale *of, const char *what, uint64_t from, uint64_t to, float *seconds, uint32_t count)
{
    uint64_t state = 99;
    for (uint32_t i = 0; i < count; i++) {
        cmq_found item;
        cmq_found_batch batch = {.items = &item, .capacity = 1};
        cmq_record_view view;
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        const uint64_t offset = from + (state >> 16) % (to - from);
        const double begin = bench_wall_s();
        BENCH_OK(cmq_store_read_offset(of->store, cmq_slice_of_text(BENCH_TOPIC), 0, (int64_t)offset, &batch));
        seconds[i] = (float)(bench_wall_s() - begin);
        BENCH_OK(
            cmq_record_parse(item.record, item.record_bytes, item.physical_offset, CMQ_RECORD_CHECK_BODY_CRC, &view));
        BENCH_CHECK(
            cmq_slice_equal(view.body, (cmq_slice){.data = bench_body(&of->pool, offset), .bytes = BODY_BYTES}));
        cmq_found_batch_release(&batch);
    }
    print_latencies(of, what, seconds, count);
}

/* ---- memory ---- */

static double status_mib(const char *field)
{
    char line[128];
    double kib = -1;
    FILE *status = fopen("/proc/self/status", "r");
    BENCH_CHECK(status != NULL);
    while (fgets(line, sizeof line, status) != NULL)
        if (strncmp(line, field, strlen(field)) == 0) kib = atof(line + strlen(field));
    fclose(status);
    BENCH_CHECK(kib >= 0);
    return kib / 1024;
}

static uint32_t descriptors(void)
{
    DIR *folder = opendir("/proc/self/fd");
    BENCH_CHECK(folder != NULL);
    uint32_t count = 0;
    while (readdir(folder) != NULL) count++;
    closedir(folder);
    return count - 3;   /* ".", ".." and the folder's own */
}

/* ---- the run ---- */

static void restart(scale *of)
{
    double begin = bench_wall_s();
    BENCH_OK(cmq_store_close(of->store));
    figure(of, "close", "ms", (bench_wall_s() - begin) * 1e3, "");
    const double before = status_mib("RssAnon:");
    begin = bench_wall_s();
    of->store = bench_open(of->path, CMQ_FLUSH_ASYNC, true, 0);
    figure(of, "open after a clean stop", "ms", (bench_wall_s() - begin) * 1e3, "");
    figure(of, "memory after opening", "MiB", status_mib("RssAnon:") - before, "");
}

static void run(scale *of)
{
    float *seconds = bench_alloc(SAMPLES * sizeof *seconds);
    of->store = bench_open(of->path, CMQ_FLUSH_ASYNC, true, 0);
    fill(of);
    single_appends(of, seconds);
    restart(of);
    const uint64_t count = stored(of);
    BENCH_CHECK(count >= of->messages + of->samples);
    const uint64_t newest = count > NEWEST ? count - NEWEST : 0;
    /* Once to bring pages in, once to measure. */
    random_reads(of, "first random reads, newest million,", newest, count, seconds, of->samples);
    random_reads(of, "random reads, newest million,", newest, count, seconds, of->samples);
    random_reads(of, "random reads, all,", 0, count, seconds, of->samples / 10);
    figure(of, "memory after all", "MiB", status_mib("RssAnon:"),
           ", \"note\": \"of which the benchmark's own bodies and samples 17 MiB\"");
    figure(of, "descriptors", "files", descriptors(), "");
    BENCH_OK(cmq_store_close(of->store));
    free(seconds);
}

int main(int argc, char **argv)
{
    static scale of;
    const bool quick = bench_is_quick(argc, argv);
    const char *messages = option_of(argc, argv, "--messages"), *directory = option_of(argc, argv, "--directory");
    of.messages = quick ? 20000 : messages == NULL ? 1000000 : strtoull(messages, NULL, 10) / BATCH * BATCH;
    of.samples = quick ? 2000 : SAMPLES;
    BENCH_CHECK(of.messages > 0);
    snprintf(of.label, sizeof of.label, "%.4g million", (double)of.messages / 1e6);
    if (directory == NULL) bench_make_directory(of.path);
    else {
        BENCH_CHECK(snprintf(of.path, sizeof of.path, "%s", directory) < (int)sizeof of.path);
        BENCH_CHECK(mkdir(of.path, 0777) == 0 || errno == EEXIST);
    }
    bench_pool_make(&of.pool, BODY_BYTES, 0);
    run(&of);
    if (!flag_of(argc, argv, "--keep")) bench_remove_directory(of.path);
    bench_pool_free(&of.pool);
    return 0;
}
