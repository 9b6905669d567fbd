/* bench_index: nanoseconds per key put into and found in index files of upstream's sizes, and what flush, rewind and
 * the layout's look cost.
 *
 * Hashes are random, so slots lie anywhere in 20 MB. Checked: every key is found again at its offset, through reopening
 * and after the rewind. Put and find are CPU time of the thread, page faults included; flush, rewind and look are wall
 * time.
 */
#include <inttypes.h>
#include <unistd.h>

#include "base/cmq_clock.h"
#include "base/cmq_hash.h"
#include "cmq_bench.h"
#include "store/index/cmq_index.h"

#define BEGIN_MS 1700000000000

typedef struct bench_setup {
    char root[CMQ_PATH_BYTES];
    cmq_index *index;
    cmq_index_key *keys;
    uint32_t count;
} bench_setup;

static double wall_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void print_once(const char *name, double value, const char *unit)
{
    printf("{\"name\": \"%s\", \"value\": %.3f, \"unit\": \"%s\", \"repeats\": 1}\n", name, value, unit);
    fflush(stdout);
}

static cmq_index *open_index(const char *root)
{
    const cmq_index_options options = {.fs = cmq_fs_posix(),
                                       .root = root,
                                       .slots = CMQ_INDEX_SLOTS_DEFAULT,
                                       .entries = CMQ_INDEX_ENTRIES_DEFAULT,
                                       .clock = cmq_clock_system()};
    cmq_index *index;
    BENCH_CHECK(cmq_index_create(&index, &options) == CMQ_OK);
    BENCH_CHECK(cmq_index_load(index) == CMQ_OK);
    return index;
}

static cmq_slice key_text(uint32_t number, char into[32])
{
    return (cmq_slice){.data = (const uint8_t *)into, .bytes = (size_t)snprintf(into, 32, "order-%" PRIu32, number)};
}

static void make_keys(bench_setup *setup)
{
    const uint32_t topic = cmq_jhash(cmq_slice_of_text("Topic#"));
    for (uint32_t i = 0; i < setup->count; i++) {
        char text[32];
        const cmq_slice key = key_text(i * 2654435761u, text);   /* neighbours would have neighbouring slots */
        setup->keys[i] =
            (cmq_index_key){.phy = (int64_t)i * 293,
                            .store_ms = BEGIN_MS + i / 1000,
                            .hash = (uint32_t)cmq_index_hash(cmq_jhash_extend(topic, key.data, key.bytes))};
    }
}

/* Put keys [from, to) in batches; CPU seconds. */
static double put(bench_setup *setup, uint32_t from, uint32_t to, uint32_t batch)
{
    const double begin = bench_cpu_s();
    for (uint32_t at = from; at < to; at += batch) {
        const uint32_t count = to - at < batch ? to - at : batch;
        BENCH_CHECK(cmq_index_make_room(setup->index, count) == CMQ_OK);
        cmq_index_put(setup->index, setup->keys + at, count);
    }
    return bench_cpu_s() - begin;
}

/* Equal parts of the keys, one per repeat: the first pays for the slots' pages, so the spread shows what that is. */
static void bench_put(bench_setup *setup, uint32_t from, uint32_t to, uint32_t batch)
{
    double seconds[BENCH_REPEATS];
    const uint32_t part = (to - from) / BENCH_REPEATS;
    for (uint32_t i = 0; i < BENCH_REPEATS; i++)
        seconds[i] = put(setup, from + i * part, i + 1 < BENCH_REPEATS ? from + (i + 1) * part : to, batch);
    char name[64];
    snprintf(name, sizeof name, "index/put/batch-%" PRIu32, batch);
    bench_print(name, seconds, part, CMQ_INDEX_ENTRY_BYTES);
}

static void bench_find(bench_setup *setup, uint32_t lookups)
{
    double seconds[BENCH_REPEATS];
    const uint32_t seed = cmq_index_topic_seed(cmq_slice_of_text("Topic"));
    for (uint32_t repeat = 0; repeat < BENCH_REPEATS; repeat++) {
        uint32_t found = 0;
        const double begin = bench_cpu_s();
        for (uint32_t i = 0; i < lookups; i++) {
            const uint32_t number = (uint32_t)((uint64_t)(repeat * lookups + i) * 48271 % setup->count);
            char text[32];
            const cmq_slice key = key_text(number * 2654435761u, text);
            cmq_index_cursor cursor = {0};
            int64_t phy[32];
            uint32_t count;
            BENCH_CHECK(cmq_index_query(setup->index, cmq_index_key_hash(seed, key), 0, INT64_MAX, 0, &cursor, phy, 32,
                                        &count) == CMQ_OK);
            for (uint32_t j = 0; j < count; j++) found += phy[j] == (int64_t)number * 293;
        }
        seconds[repeat] = bench_cpu_s() - begin;
        BENCH_CHECK(found == lookups);
    }
    bench_print("index/find", seconds, lookups, 0);
}

static void bench_flush(bench_setup *setup, const char *name, cmq_index_position *position_out)
{
    int64_t full_end_ms;
    const double begin = wall_s();
    cmq_index_at(setup->index, position_out);
    BENCH_CHECK(cmq_index_flush(setup->index, &full_end_ms) == CMQ_OK);
    print_once(name, (wall_s() - begin) * 1e3, "ms");
}

static void bench_rewind(bench_setup *setup, const cmq_index_position *position)
{
    cmq_index_destroy(setup->index);
    setup->index = open_index(setup->root);
    const double begin = wall_s();
    BENCH_CHECK(cmq_index_rewind(setup->index, position, false) == CMQ_OK);
    print_once("index/rewind", (wall_s() - begin) * 1e3, "ms");
    BENCH_CHECK(cmq_index_end_phy(setup->index) == position->end_phy);
}

static void bench_split(bench_setup *setup)
{
    cmq_index_file_info info;
    BENCH_CHECK(cmq_index_file_at(setup->index, 0, &info) == CMQ_OK);
    char path[CMQ_PATH_BYTES + 64];
    snprintf(path, sizeof path, "%s/index/%017" PRId64, setup->root, info.name);
    int32_t slots, entries;
    double begin = wall_s();
    BENCH_CHECK(cmq_index_find_split(cmq_fs_posix(), path, &slots, &entries) == CMQ_OK);
    print_once("index/find_split", (wall_s() - begin) * 1e3, "ms");
    BENCH_CHECK(slots == CMQ_INDEX_SLOTS_DEFAULT && entries == CMQ_INDEX_ENTRIES_DEFAULT);
    bool fits;
    begin = wall_s();
    BENCH_CHECK(cmq_index_prove_split(cmq_fs_posix(), path, slots, entries, false, &fits) == CMQ_OK && fits);
    print_once("index/prove_split", (wall_s() - begin) * 1e3, "ms");
}

static void remove_all(bench_setup *setup)
{
    cmq_index_file_info info;
    for (uint32_t i = 0; i < cmq_index_files(setup->index); i++) {
        BENCH_CHECK(cmq_index_file_at(setup->index, i, &info) == CMQ_OK);
        char path[CMQ_PATH_BYTES + 64];
        snprintf(path, sizeof path, "%s/index/%017" PRId64, setup->root, info.name);
        BENCH_CHECK(remove(path) == 0);
    }
    cmq_index_destroy(setup->index);
    char path[CMQ_PATH_BYTES + 64];
    snprintf(path, sizeof path, "%s/index", setup->root);
    BENCH_CHECK(rmdir(path) == 0 && rmdir(setup->root) == 0);
}

int main(int argc, char **argv)
{
    const bool quick = bench_is_quick(argc, argv);
    const char *parent = getenv("TMPDIR");
    bench_setup setup = {.count = quick ? 7000 : 4000000};
    snprintf(setup.root, sizeof setup.root, "%s/cmq-bench-XXXXXX", parent != NULL ? parent : "/tmp");
    BENCH_CHECK(mkdtemp(setup.root) != NULL);
    setup.keys = bench_alloc(setup.count * sizeof *setup.keys);
    make_keys(&setup);
    setup.index = open_index(setup.root);
    const uint32_t third = setup.count / 3;
    bench_put(&setup, 0, third, 1000);
    cmq_index_position position;
    bench_flush(&setup, "index/flush", &position);
    bench_put(&setup, third, 2 * third, 100);   /* every page of the slots faults once more: the flush made them clean
                                                 * */
    bench_put(&setup, 2 * third, setup.count, 1);
    bench_find(&setup, quick ? 100 : 200000);
    bench_split(&setup);
    bench_rewind(&setup, &position);
    BENCH_CHECK(position.count == (int32_t)third + 1);
    (void)put(&setup, third, setup.count, 1000);
    bench_find(&setup, quick ? 100 : 100000);
    remove_all(&setup);
    free(setup.keys);
    return 0;
}
