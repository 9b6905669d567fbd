/* bench_queues: consume queues: puts, reads, scans through the public door; and 50,000 queues: memory, making, flush,
 * restart.
 *
 *   bench_queues [--quick] [directory]     the directory (default: the working directory) gets a folder that is removed
 *   afterwards
 *
 * Checked: every unit that a read or a scan gives, and after the restart the only unit of each of the 50,000 queues.
 * Page cache and kernel memory are not in the RSS figures; files are made sparse, at their full length.
 */
#include <malloc.h>

#include "cmq_bench.h"
#include "store/queue/cmq_queue.h"

#define RECORD_BYTES 293
#define ALL INT64_MAX

static struct {
    char root[CMQ_PATH_BYTES];
    bool quick;
} b;

/* ---- support ---- */

static double wall_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void print_one(const char *name, double value, const char *unit)
{
    printf("{\"name\": \"queues/%s\", \"value\": %.3f, \"unit\": \"%s\", \"repeats\": 1}\n", name, value, unit);
    fflush(stdout);
}

static cmq_queues *open_queues(void)
{
    cmq_queues *queues;
    const cmq_queues_options options = {.fs = cmq_fs_posix(),
                                        .root = b.root,
                                        .queue_file_bytes = 6000000,
                                        .batch_file_bytes = 13800000,
                                        .ext_file_bytes = 50331648};
    BENCH_CHECK(cmq_queues_create(&queues, &options) == CMQ_OK);
    BENCH_CHECK(cmq_queues_load(queues) == CMQ_OK);
    return queues;
}

static cmq_queue *require(cmq_queues *queues, const char *topic, int32_t id)
{
    cmq_queue *queue;
    BENCH_CHECK(cmq_queues_require(queues, cmq_slice_of_text(topic), id, CMQ_QUEUE_SIMPLE, &queue) == CMQ_OK);
    return queue;
}

static void flush(cmq_queues *queues)
{
    int64_t covered;
    BENCH_CHECK(cmq_queues_flush(queues, ALL, false, &covered) == CMQ_OK);
}

static int64_t tag_of(int64_t offset) { return (int32_t)((uint32_t)offset % 16 * 2654435761u); }

static void put(cmq_queue *queue, int64_t count)
{
    int64_t offset = cmq_queue_next(queue);
    for (; count > 0; count--, offset++) {
        BENCH_CHECK(cmq_queue_make_room(queue, 1, ALL) == CMQ_OK);
        cmq_queue_put(queue, offset * RECORD_BYTES, RECORD_BYTES, tag_of(offset), 0, 1);
    }
}

/* ---- one queue ---- */

static void bench_put(cmq_queue *queue, cmq_queues *queues)
{
    const int64_t count = b.quick ? 10000 : 1000000;
    double alone[BENCH_REPEATS], in_lots[BENCH_REPEATS], all[BENCH_REPEATS];
    for (int r = 0; r < BENCH_REPEATS; r++) {
        const int64_t lot = 8000;   /* fits the ring, so that no file is written while the clock runs */
        double alone_s = 0, lots_s = 0;
        const double begin = bench_cpu_s();
        for (int64_t done = 0; done < count; done += lot) {
            double from = bench_cpu_s();
            put(queue, lot / 2);
            alone_s += bench_cpu_s() - from;
            from = bench_cpu_s();
            for (int64_t i = 0; i < lot / 2; i++) {
                const int64_t offset = cmq_queue_next(queue);
                if (i % 250 == 0) BENCH_CHECK(cmq_queue_make_room(queue, 250, ALL) == CMQ_OK);
                cmq_queue_put(queue, offset * RECORD_BYTES, RECORD_BYTES, tag_of(offset), 0, 1);
            }
            lots_s += bench_cpu_s() - from;
            flush(queues);
        }
        all[r] = bench_cpu_s() - begin;
        alone[r] = alone_s, in_lots[r] = lots_s;
    }
    bench_print("queues/put: room for each, one hot queue", alone, (double)count / 2, CMQ_UNIT_BYTES);
    bench_print("queues/put: room for 250, one hot queue", in_lots, (double)count / 2, CMQ_UNIT_BYTES);
    bench_print("queues/put and flush into the file on the same core", all, (double)count, CMQ_UNIT_BYTES);
    BENCH_CHECK(cmq_queue_max(queue, ALL) == cmq_queue_next(queue));
}

static void check_units(const cmq_unit *units, uint32_t count, int64_t from)
{
    for (uint32_t i = 0; i < count; i++) {
        BENCH_CHECK(units[i].offset == from + i && units[i].phy == (from + i) * RECORD_BYTES &&
                    units[i].tags_code == tag_of(from + i));
    }
}

static void bench_read(cmq_queue *queue, const char *name, int64_t low, int64_t high)
{
    const int rounds = b.quick ? 100 : 20000;
    double seconds[BENCH_REPEATS];
    for (int r = 0; r < BENCH_REPEATS; r++) {
        uint64_t random = 88172645463325252u;
        const double begin = bench_cpu_s();
        for (int i = 0; i < rounds; i++) {
            cmq_unit units[32];
            uint32_t count;
            int64_t next;
            random ^= random << 13, random ^= random >> 7, random ^= random << 17;
            const int64_t from = low + (int64_t)(random % (uint64_t)(high - low - 32));
            BENCH_CHECK(cmq_queue_read(queue, from, ALL, units, 32, &count, &next) == CMQ_OK && count == 32);
            BENCH_CHECK(units[31].phy == (from + 31) * RECORD_BYTES);
        }
        seconds[r] = bench_cpu_s() - begin;
    }
    bench_print(name, seconds, (double)rounds * 32, CMQ_UNIT_BYTES);
}

static void bench_scan(cmq_queue *queue, const char *name, int64_t units_in_all, const uint32_t *hashes,
                       uint32_t hash_count)
{
    static cmq_unit units[1000];
    double seconds[BENCH_REPEATS];
    int64_t expected = 0;
    for (int64_t i = 0; i < units_in_all; i++)
        for (uint32_t h = 0; h < hash_count; h++) expected += (uint32_t)tag_of(i) == hashes[h];
    for (int r = 0; r < BENCH_REPEATS; r++) {
        int64_t found = 0;
        const double begin = bench_cpu_s();
        for (int64_t at = 0; at < units_in_all;) {
            uint32_t count;
            BENCH_CHECK(cmq_queue_scan(queue, at, ALL, hashes, hash_count, (uint64_t)(units_in_all - at), units, 1000,
                                       &count, &at) == CMQ_OK);
            found += count;
        }
        seconds[r] = bench_cpu_s() - begin;
        BENCH_CHECK(found == expected);
    }
    bench_print(name, seconds, (double)units_in_all, CMQ_UNIT_BYTES);
}

static void bench_one_queue(void)
{
    cmq_queues *queues = open_queues();
    cmq_queue *queue = require(queues, "hot", 0);
    bench_put(queue, queues);
    const int64_t in_files = b.quick ? 20000 : 1000000;
    if (cmq_queue_next(queue) < in_files) put(queue, in_files - cmq_queue_next(queue));
    flush(queues);
    cmq_queues_trim(queues);
    cmq_queues_trim(queues);   /* no tail any more: all comes from the files */
    bench_read(queue, "queues/read 32 at random from the files", 0, in_files);
    const uint32_t absent = 12345, one = (uint32_t)tag_of(3),
                   four[] = {(uint32_t)tag_of(1), (uint32_t)tag_of(2), (uint32_t)tag_of(3), (uint32_t)tag_of(4)};
    bench_scan(queue, "queues/scan 1M units, 1 tag, none matches", in_files, &absent, 1);
    bench_scan(queue, "queues/scan 1M units, 1 tag, 1 of 16 matches", in_files, &one, 1);
    bench_scan(queue, "queues/scan 1M units, 4 tags, 4 of 16 match", in_files, four, 4);
    const int64_t from = cmq_queue_next(queue);
    put(queue, 10000);
    bench_read(queue, "queues/read 32 at random from the tail", from, from + 10000);
    cmq_unit units[1000];
    for (int64_t at = 0; at < cmq_queue_next(queue);) {
        uint32_t count;
        int64_t next;
        BENCH_CHECK(cmq_queue_read(queue, at, ALL, units, 1000, &count, &next) == CMQ_OK && next == at + count);
        check_units(units, count, at);
        at = next;
    }
    cmq_queues_destroy(queues);

    queues = open_queues();
    int64_t end;
    BENCH_CHECK(cmq_queues_recover(queues, 0, ALL, 0, &end) == CMQ_OK);
    queue = require(queues, "hot", 0);
    double seconds[BENCH_REPEATS];
    for (int r = 0; r < BENCH_REPEATS; r++) {
        const double begin = bench_cpu_s();
        for (int64_t i = 0; i < in_files; i++)
            BENCH_CHECK(cmq_queue_reput(queue, i, i * RECORD_BYTES, RECORD_BYTES, tag_of(i), 0, 1) == CMQ_OK);
        seconds[r] = bench_cpu_s() - begin;
    }
    bench_print("queues/reput of units that are there", seconds, (double)in_files, CMQ_UNIT_BYTES);
    BENCH_CHECK(cmq_queues_gaps(queues) == 0 && cmq_queue_max(queue, ALL) >= in_files);
    BENCH_CHECK(cmq_queues_delete_topic(queues, cmq_slice_of_text("hot")) == CMQ_OK);
    cmq_queues_destroy(queues);
}

/* ---- 50,000 queues ---- */

static void name_of(int i, char into[32]) { snprintf(into, 32, "topic-%05d", i / 8); }

static void put_one_each(cmq_queues *queues, int count, int64_t round)
{
    char topic[32];
    for (int i = 0; i < count; i++) {
        name_of(i, topic);
        cmq_queue *queue = cmq_queues_find(queues, cmq_slice_of_text(topic), i % 8);
        if (queue == NULL) queue = require(queues, topic, i % 8);
        BENCH_CHECK(cmq_queue_make_room(queue, 1, ALL) == CMQ_OK);
        cmq_queue_put(queue, (round * count + i) * RECORD_BYTES, RECORD_BYTES, i, 0, 1);
    }
}

static void bench_random_puts(cmq_queues *queues, int count)
{
    const int rounds = b.quick ? 1000 : 1000000;
    double seconds[BENCH_REPEATS];
    int64_t phy = (int64_t)count * 100 * RECORD_BYTES;
    uint64_t random = 88172645463325252u;
    for (int r = 0; r < BENCH_REPEATS; r++) {
        const double begin = bench_cpu_s();
        for (int i = 0; i < rounds; i++, phy += RECORD_BYTES) {
            random ^= random << 13, random ^= random >> 7, random ^= random << 17;
            cmq_queue *queue = cmq_queues_at(queues, (uint32_t)(random % (uint64_t)count));
            BENCH_CHECK(cmq_queue_make_room(queue, 1, phy) == CMQ_OK);
            cmq_queue_put(queue, phy, RECORD_BYTES, 0, 0, 1);
        }
        seconds[r] = bench_cpu_s() - begin;
        flush(queues);
    }
    bench_print("queues/put at random over 50,000", seconds, rounds, CMQ_UNIT_BYTES);
}

static void bench_many(void)
{
    const int count = b.quick ? 500 : 50000;
    const double before = bench_rss_anon_mib();
    cmq_queues *queues = open_queues();
    double begin = wall_s();
    put_one_each(queues, count, 0);
    print_one("50,000: make and put one unit each", wall_s() - begin, "s");
    print_one("50,000: memory with one unit each in the tails", bench_rss_anon_mib() - before, "MiB");
    begin = wall_s();
    flush(queues);
    print_one("50,000: first flush, which makes the files", wall_s() - begin, "s");
    put_one_each(queues, count, 1);
    begin = wall_s();
    flush(queues);
    print_one("50,000: flush of one unit each", wall_s() - begin, "s");
    print_one("50,000: memory after the flush", bench_rss_anon_mib() - before, "MiB");
    cmq_queues_trim(queues);
    cmq_queues_trim(queues);
    print_one("50,000: memory when idle (trimmed)", bench_rss_anon_mib() - before, "MiB");
    begin = wall_s();
    flush(queues);
    print_one("50,000: flush with nothing to do", (wall_s() - begin) * 1e6, "us");
    bench_random_puts(queues, count);
    cmq_queues_destroy(queues);

    malloc_trim(0);   /* memory that the first life freed must not hide the second one's use */
    int64_t end;
    begin = wall_s();
    queues = open_queues();
    print_one("50,000: restart, listing the folders", wall_s() - begin, "s");
    begin = wall_s();
    BENCH_CHECK(cmq_queues_recover(queues, 0, ALL, 0, &end) == CMQ_OK);
    print_one("50,000: restart, recovery", wall_s() - begin, "s");
    print_one("50,000: memory after the restart", bench_rss_anon_mib() - before, "MiB");
    BENCH_CHECK(end >= (int64_t)count * 2 * RECORD_BYTES);
    for (int i = 0; i < count; i++) {
        char topic[32];
        cmq_unit units[4];
        uint32_t got;
        int64_t next;
        name_of(i, topic);
        cmq_queue *queue = cmq_queues_find(queues, cmq_slice_of_text(topic), i % 8);
        BENCH_CHECK(queue != NULL && cmq_queue_read(queue, 0, ALL, units, 2, &got, &next) == CMQ_OK && got == 2);
        BENCH_CHECK(units[0].phy == (int64_t)i * RECORD_BYTES && units[1].phy == (int64_t)(count + i) * RECORD_BYTES &&
                    units[1].tags_code == i);
    }
    begin = wall_s();
    uint32_t deleted;
    BENCH_CHECK(cmq_queues_delete_expired(queues, ALL, NULL, NULL, &deleted) == CMQ_OK && deleted == (uint32_t)count);
    print_one("50,000: delete", wall_s() - begin, "s");
    cmq_queues_destroy(queues);
}

/* ---- */

static void make_root(const char *parent)
{
    char name[64];
    snprintf(name, sizeof name, "bench_queues.%ld", (long)time(NULL));
    BENCH_CHECK(cmq_path_join(b.root, parent, name) == CMQ_OK);
    BENCH_CHECK(cmq_fs_make_directory(cmq_fs_posix(), b.root) == CMQ_OK);
}

static void remove_root(void)
{
    char path[CMQ_PATH_BYTES];
    BENCH_CHECK(cmq_path_join(path, b.root, "consumequeue") == CMQ_OK);
    (void)!cmq_fs_remove_directory(cmq_fs_posix(), path);
    (void)!cmq_fs_remove_directory(cmq_fs_posix(), b.root);
}

int main(int argc, char **argv)
{
    b.quick = bench_is_quick(argc, argv);
    const char *parent = ".";
    for (int i = 1; i < argc; i++)
        if (strncmp(argv[i], "--", 2) != 0) parent = argv[i];
    make_root(parent);
    bench_one_queue();
    bench_many();
    remove_root();
    return 0;
}
