/* bench_timers: 10 million timers that wait at once, over one hour, in a store under async flush.
 *
 *   bench_timers [--quick] [--timers N]
 *
 * Parks N messages of 64 B, enters them into the wheel, measures the memory, starts once more, and lets the hour pass.
 * CPU time is the thread's, with what reading and appending records costs. 10 million take 5 GB of disk. Checked: that
 * each is delivered once, in its second, and none before.
 */
#include "broker/timer/cmq_timer.h"
#include "cmq_bench_store.h"
#include "store/queue/cmq_queue.h"

#define BATCH 4000u
#define BODY_BYTES 64u
#define SECONDS 3600
#define BEGIN_MS INT64_C(1800000000000)
#define TOPIC "T"

static _Atomic int64_t now_ms = BEGIN_MS;

static cmq_timer *make_timer(cmq_store *store)
{
    cmq_timer *timer;
    const cmq_timer_options options = {.store = store, .clock = cmq_clock_manual(&now_ms), .manual = true};
    BENCH_CHECK(cmq_timer_create(&timer, &options) == CMQ_OK);
    BENCH_CHECK(cmq_timer_start(timer) == CMQ_OK);
    return timer;
}

static cmq_timer_counters counters_of(cmq_timer *timer)
{
    cmq_timer_counters counters;
    cmq_timer_count(timer, &counters);
    return counters;
}

static void figure(const char *name, const char *unit, double value, uint64_t timers)
{
    char full[96];
    snprintf(full, sizeof full, "timers/%s", name);
    bench_figure(full, unit, &(bench_values){.at = {value}, .count = 1}, ", \"flush\": \"async\", \"timers\": %llu",
                 (unsigned long long)timers);
}

/* The second in which a batch is due: all over the hour, not in order. */
static int64_t due_of(uint64_t batch) { return BEGIN_MS + 2000 + (int64_t)(batch * 1543 % SECONDS) * 1000; }

static void park_all(cmq_store *store, uint64_t timers)
{
    uint8_t *bodies = bench_alloc((size_t)BATCH * BODY_BYTES);
    const cmq_timer_options options = {0};
    for (uint64_t first = 0; first < timers; first += BATCH) {
        cmq_timer_parked parked;
        cmq_appended appended;
        const uint32_t count = timers - first < BATCH ? (uint32_t)(timers - first) : BATCH;
        BENCH_CHECK(cmq_timer_park(&options, cmq_slice_of_text(TOPIC), 0, due_of(first / BATCH), BEGIN_MS, &parked) ==
                    CMQ_OK);
        const cmq_append append = {
            .common = {.topic = parked.topic, .queue_id = parked.queue_id},
            .count = count,
            .bodies = {.kind = CMQ_COLUMN_FIXED, .data = bodies, .stride = BODY_BYTES, .width = BODY_BYTES},
            .properties_more = {.kind = CMQ_COLUMN_ONE, .one = parked.extra}};
        BENCH_CHECK(cmq_store_append(store, &append, &appended) == CMQ_OK);
    }
    free(bodies);
}

static uint64_t delivered(cmq_store *store)
{
    cmq_queue *queue = cmq_queues_find(cmq_store_queues(store), cmq_slice_of_text(TOPIC), 0);
    return queue == NULL ? 0 : (uint64_t)cmq_queue_max(queue, cmq_store_confirmed(store));
}

/* How many are due by now. */
static uint64_t expected(uint64_t timers)
{
    uint64_t due = 0;
    for (uint64_t first = 0; first < timers; first += BATCH)
        if (due_of(first / BATCH) <= now_ms) due += timers - first < BATCH ? timers - first : BATCH;
    return due;
}

int main(int argc, char **argv)
{
    const bool quick = bench_is_quick(argc, argv);
    uint64_t timers = quick ? 50000 : 10000000;
    char directory[CMQ_PATH_BYTES];
    int64_t next_due;
    for (int i = 1; i + 1 < argc; i++)
        if (strcmp(argv[i], "--timers") == 0) timers = strtoull(argv[i + 1], NULL, 10);
    bench_make_directory(directory);
    cmq_store *store = bench_open(directory, CMQ_FLUSH_ASYNC, true, quick ? 1 << 24 : 1 << 30);
    bench_say("parking");
    park_all(store, timers);

    bench_say("entering");
    const double before_mib = bench_rss_anon_mib();
    cmq_timer *timer = make_timer(store);
    double began = bench_cpu_s();
    BENCH_CHECK(cmq_timer_step(timer, &next_due) == CMQ_OK);
    figure("entered, CPU each", "ns", (bench_cpu_s() - began) * 1e9 / (double)timers, timers);
    BENCH_CHECK(counters_of(timer).pending == (int64_t)timers);
    figure("memory of all that wait", "MiB", bench_rss_anon_mib() - before_mib, timers);
    BENCH_CHECK(cmq_timer_stop(timer) == CMQ_OK);
    cmq_timer_destroy(timer);

    bench_say("starting again");
    began = bench_wall_s();
    timer = make_timer(store);
    figure("start with all waiting", "ms", (bench_wall_s() - began) * 1e3, timers);
    BENCH_CHECK(counters_of(timer).pending == (int64_t)timers);

    bench_say("delivering");
    began = bench_cpu_s();
    for (int second = 0; second <= SECONDS + 2; second++) {
        BENCH_CHECK(cmq_timer_step(timer, &next_due) == CMQ_OK);
        if (second % 100 == 0) BENCH_CHECK(delivered(store) == expected(timers));
        now_ms += 1000;
    }
    figure("delivered, CPU each", "ns", (bench_cpu_s() - began) * 1e9 / (double)timers, timers);
    BENCH_CHECK(delivered(store) == timers);
    BENCH_CHECK(counters_of(timer).delivered == timers && counters_of(timer).skipped == 0 &&
                counters_of(timer).pending == 0);
    figure("memory when all are delivered", "MiB", bench_rss_anon_mib() - before_mib, timers);
    BENCH_CHECK(cmq_timer_stop(timer) == CMQ_OK);
    cmq_timer_destroy(timer);
    BENCH_CHECK(cmq_store_close(store) == CMQ_OK);
    bench_remove_directory(directory);
    return 0;
}
