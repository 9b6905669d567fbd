/* bench_pages: CPU per GiB of making the pages of a segment ahead of its writer, on blocks that are reserved and
 * unwritten, in the two ways of doing it.
 *
 * Checked: every page reads as zero afterwards, and stores into the map reach the file.
 */
#include <unistd.h>

#include "base/cmq_file.h"
#include "cmq_bench.h"

#define STEP_BYTES (UINT64_C(4) << 20)
#define PIECE_BYTES (UINT64_C(1) << 20)
#define PAGE_BYTES 4096

typedef struct target {
    cmq_file *file;
    uint8_t *map;
    uint64_t bytes;
    char path[CMQ_PATH_BYTES];
} target;

static void make_target(target *into, uint64_t bytes)
{
    const char *directory = getenv("CMQ_BENCH_DIR");
    snprintf(into->path, sizeof into->path, "%s/bench_pages.%d", directory != NULL ? directory : "/tmp", (int)getpid());
    into->bytes = bytes;
    BENCH_CHECK(cmq_file_open(cmq_fs_posix(), into->path, CMQ_OPEN_CREATE_NEW, &into->file) == CMQ_OK);
    BENCH_CHECK(cmq_file_resize(into->file, bytes) == CMQ_OK);
    BENCH_CHECK(cmq_file_map(into->file, 0, bytes, true, &into->map) == CMQ_OK);
}

static void drop_target(target *of)
{
    cmq_file_unmap(of->file, of->map, of->bytes);
    cmq_file_close(of->file);
    BENCH_CHECK(cmq_fs_remove(cmq_fs_posix(), of->path) == CMQ_OK);
}

/* The kernel reads the unwritten blocks in, which clears a page at a time. */
static void populate_alone(target *of, uint64_t at)
{
    BENCH_CHECK(cmq_file_reserve(of->file, at, STEP_BYTES) == CMQ_OK);
    BENCH_CHECK(cmq_file_populate(of->map + at, STEP_BYTES) == CMQ_OK);
}

static void write_and_populate(target *of, uint64_t at)
{
    static uint8_t zeros[PIECE_BYTES];   /* never written */
    BENCH_CHECK(cmq_file_reserve(of->file, at, STEP_BYTES) == CMQ_OK);
    for (uint64_t piece = at; piece < at + STEP_BYTES; piece += PIECE_BYTES)
        BENCH_CHECK(cmq_file_write(of->file, piece, zeros, PIECE_BYTES) == CMQ_OK);
    BENCH_CHECK(cmq_file_populate(of->map + at, STEP_BYTES) == CMQ_OK);
}

static void check(const target *of)
{
    uint8_t found;
    for (uint64_t at = 0; at < of->bytes; at += PAGE_BYTES) {
        BENCH_CHECK(of->map[at] == 0 && of->map[at + PAGE_BYTES - 1] == 0);
        of->map[at] = 1;
    }
    for (uint64_t at = 0; at < of->bytes; at += STEP_BYTES)
        BENCH_CHECK(cmq_file_read(of->file, at, &found, 1) == CMQ_OK && found == 1);
}

static void measure(const char *name, uint64_t bytes, void (*make)(target *of, uint64_t at))
{
    double seconds[BENCH_REPEATS];
    for (int repeat = 0; repeat < BENCH_REPEATS; repeat++) {
        target of;
        make_target(&of, bytes);
        const double begin = bench_cpu_s();
        for (uint64_t at = 0; at < bytes; at += STEP_BYTES) make(&of, at);
        seconds[repeat] = bench_cpu_s() - begin;
        check(&of);
        drop_target(&of);
    }
    bench_print(name, seconds, (double)bytes / PAGE_BYTES, PAGE_BYTES);
}

int main(int argc, char **argv)
{
    const uint64_t bytes = bench_is_quick(argc, argv) ? STEP_BYTES * 2 : UINT64_C(256) << 20;
    measure("pages/reserved blocks, populate alone", bytes, populate_alone);
    measure("pages/reserved blocks, zeros written, then populate", bytes, write_and_populate);
    return 0;
}
