/* bench_follow: microseconds from the beginning of an append to the moment when a follower in another process has the
 * message in hand.
 *
 * The writer appends one message of 128 B at a time, a pause between them, so that the follower sleeps each time: its
 * wake-up is part of the figure. The body carries the time of the monotonic clock, which both processes share. Floors
 * of the same run, by the same two processes with the same pauses: async, a word in shared memory and a futex wake-up;
 * sync, pwrite and fdatasync of the record's bytes before that.
 *
 * Checked: the follower gets every message, in order.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "cmq_bench_store.h"

#define MESSAGES_MAX 20000u
#define BODY_BYTES 128u
#define PAUSE_NS 1000000

typedef struct shared {
    _Atomic uint32_t ready;           /* messages that the follower has; also says that it is there (1 more) */
    _Atomic uint32_t word;            /* the floor's */
    _Atomic double sent_at;
    double seconds[MESSAGES_MAX];     /* the follower's */
} shared;

static shared *common;

static void pause_a_little(void)
{
    const struct timespec pause = {.tv_nsec = PAUSE_NS};
    BENCH_CHECK(nanosleep(&pause, NULL) == 0);
}

static void wait_for_ready(uint32_t count)
{
    const double since = bench_wall_s();
    while (atomic_load(&common->ready) < count) {
        BENCH_CHECK(bench_wall_s() - since < 60);
        usleep(50);
    }
}

static pid_t start_process(void (*run)(const char *path, uint32_t count), const char *path, uint32_t count)
{
    atomic_store(&common->ready, 0);
    atomic_store(&common->word, 0);
    fflush(stdout);
    const pid_t child = fork();
    BENCH_CHECK(child >= 0);
    if (child == 0) {
        run(path, count);
        _exit(0);
    }
    return child;
}

static void join_process(pid_t child)
{
    int state;
    BENCH_CHECK(waitpid(child, &state, 0) == child && WIFEXITED(state) && WEXITSTATUS(state) == 0);
}

/* ---- the store ---- */

static void follow(const char *path, uint32_t count)
{
    const cmq_store_options options = {.path = path, .read_only = true};
    cmq_store *store;
    cmq_reader *reader;
    const cmq_read_options read = {0};
    static cmq_found items[64];
    cmq_found_batch batch = {.items = items, .capacity = 64};
    BENCH_OK(cmq_store_open(&store, &options));
    BENCH_OK(cmq_reader_open(store, &read, &reader));
    uint32_t seen = 0;
    atomic_store(&common->ready, 1);
    while (seen < count) {
        bool end;
        const int64_t confirmed = cmq_store_confirmed(store);
        BENCH_OK(cmq_reader_next(reader, &batch, &end));
        const double now = bench_wall_s();
        for (uint32_t i = 0; i < batch.count; i++) {
            cmq_record_view view;
            double sent;
            BENCH_OK(cmq_record_parse(items[i].record, items[i].record_bytes, items[i].physical_offset,
                                      CMQ_RECORD_CHECK_BODY_CRC, &view));
            memcpy(&sent, view.body.data, sizeof sent);
            BENCH_CHECK(view.queue_offset == seen);
            common->seconds[seen++] = now - sent;
            atomic_store(&common->ready, seen + 1);
        }
        const bool nothing = batch.count == 0;
        cmq_found_batch_release(&batch);
        if (nothing) {
            const cmq_status status = cmq_store_wait_more(store, confirmed, 60000);
            BENCH_CHECK(status == CMQ_OK);
        }
    }
    cmq_reader_close(reader);
    BENCH_OK(cmq_store_close(store));
}

static void run_store(cmq_flush_mode flush, uint32_t count)
{
    char path[CMQ_PATH_BYTES];
    uint8_t body[BODY_BYTES] = {0};
    bench_make_directory(path);
    cmq_store *store = bench_open(path, flush, true, 0);
    const pid_t child = start_process(follow, path, count);
    wait_for_ready(1);
    cmq_append append = {.count = 1};
    append.common.topic = cmq_slice_of_text(BENCH_TOPIC);
    append.bodies = (cmq_column){.kind = CMQ_COLUMN_ONE, .one = {.data = body, .bytes = sizeof body}};
    for (uint32_t i = 0; i < count; i++) {
        pause_a_little();
        const double now = bench_wall_s();
        memcpy(body, &now, sizeof now);
        bench_append(store, &append);
        wait_for_ready(i + 2);
    }
    join_process(child);
    BENCH_OK(cmq_store_close(store));
    bench_remove_directory(path);
}

/* ---- the floor ---- */

static long futex(_Atomic uint32_t *word, int operation, uint32_t value)
{
    return syscall(SYS_futex, word, operation, value, NULL, NULL, 0);
}

static void wait_for_word(const char *path, uint32_t count)
{
    (void)path;
    atomic_store(&common->ready, 1);
    for (uint32_t seen = 0; seen < count; seen++) {
        while (atomic_load(&common->word) <= seen) {
            const long slept = futex(&common->word, FUTEX_WAIT, seen);
            BENCH_CHECK(slept == 0 || errno == EAGAIN || errno == EINTR);
        }
        common->seconds[seen] = bench_wall_s() - atomic_load(&common->sent_at);
        atomic_store(&common->ready, seen + 2);
    }
}

static void run_floor(cmq_flush_mode flush, uint32_t count)
{
    char path[CMQ_PATH_BYTES + 8];
    char folder[CMQ_PATH_BYTES];
    uint8_t record[BODY_BYTES + 103] = {1};
    bench_make_directory(folder);
    snprintf(path, sizeof path, "%s/floor", folder);
    const int file = open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
    BENCH_CHECK(file >= 0 && ftruncate(file, INT64_C(1) << 30) == 0);
    const pid_t child = start_process(wait_for_word, path, count);
    wait_for_ready(1);
    for (uint32_t i = 0; i < count; i++) {
        pause_a_little();
        atomic_store(&common->sent_at, bench_wall_s());
        if (flush == CMQ_FLUSH_SYNC) {
            BENCH_CHECK(pwrite(file, record, sizeof record, (off_t)i * (off_t)sizeof record) == (ssize_t)sizeof record);
            BENCH_CHECK(fdatasync(file) == 0);
        }
        atomic_store(&common->word, i + 1);
        BENCH_CHECK(futex(&common->word, FUTEX_WAKE, 1) >= 0);
        wait_for_ready(i + 2);
    }
    join_process(child);
    BENCH_CHECK(close(file) == 0);
    bench_remove_directory(folder);
}

/* ---- figures ---- */

static void note(bench_values values[3], uint32_t count)
{
    qsort(common->seconds, count, sizeof common->seconds[0], bench_compare);
    bench_add(&values[0], common->seconds[count / 2] * 1e6);
    bench_add(&values[1], common->seconds[(size_t)count * 99 / 100] * 1e6);
    bench_add(&values[2], common->seconds[(size_t)count * 999 / 1000] * 1e6);
}

static void bench_mode(cmq_flush_mode flush, uint32_t count, uint32_t repeats)
{
    static const char *const parts[3] = {"p50", "p99", "p99.9"};
    bench_values ours[3] = {0}, floor[3] = {0};
    const char *mode = flush == CMQ_FLUSH_SYNC ? "sync" : "async";
    bench_say(mode);
    for (uint32_t i = 0; i < repeats; i++) {
        run_store(flush, count);
        note(ours, count);
        run_floor(flush, count);
        note(floor, count);
    }
    for (int part = 0; part < 3; part++) {
        char name[64];
        snprintf(name, sizeof name, "follow/%s/%s", mode, parts[part]);
        bench_figure(name, "us", &ours[part],
                     ", \"flush\": \"%s\", \"keys\": 0, \"floor\": \"%sfutex wake-up of the other process\", "
                     "\"floor_value\": %.4g, \"ratio\": %.3f",
                     mode, flush == CMQ_FLUSH_SYNC ? "pwrite + fdatasync + " : "", bench_median(&floor[part]),
                     bench_median(&floor[part]) / bench_median(&ours[part]));
    }
}

int main(int argc, char **argv)
{
    const bool quick = bench_is_quick(argc, argv);
    const uint32_t count = quick ? 20 : 2000, repeats = quick ? 2 : 5;
    common = mmap(NULL, sizeof *common, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    BENCH_CHECK(common != MAP_FAILED);
    bench_mode(CMQ_FLUSH_ASYNC, count, repeats);
    bench_mode(CMQ_FLUSH_SYNC, count, repeats);
    BENCH_CHECK(munmap(common, sizeof *common) == 0);
    return 0;
}
