/* bench_crc32: nanoseconds per CRC of one buffer in cache, each variant that this machine can run.
 *
 * Calls depend on each other (the result starts the next), so a figure is a latency, not a throughput of overlapping
 * calls.
 * Checked: every variant's last value equals that of the portable one.
 */
#include "base/cmq_crc32.h"
#include "cmq_bench.h"

static uint32_t run(const cmq_crc32_variant *variant, const uint8_t *data, size_t bytes, size_t calls)
{
    uint32_t crc = 0;
    for (size_t i = 0; i < calls; i++) crc = variant->extend(crc, data, bytes);
    return crc;
}

static void measure(const cmq_crc32_variant *variant, const uint8_t *data, size_t bytes, bool quick)
{
    size_t count;
    const size_t calls = quick ? 100 : 20000000 / (bytes + 200);
    const uint32_t expected = run(&cmq_crc32_variants(&count)[0], data, bytes, calls);
    double seconds[BENCH_REPEATS];
    for (int repeat = 0; repeat < BENCH_REPEATS; repeat++) {
        const double begin = bench_cpu_s();
        const uint32_t crc = run(variant, data, bytes, calls);
        seconds[repeat] = bench_cpu_s() - begin;
        BENCH_CHECK(crc == expected);
    }
    char name[64];
    snprintf(name, sizeof name, "crc32/%s/%zu", variant->name, bytes);
    bench_print(name, seconds, (double)calls, (double)bytes);
}

int main(int argc, char **argv)
{
    static const size_t sizes[] = {8, 16, 33, 64, 128, 200, 1024, 4096, 65536};
    const bool quick = bench_is_quick(argc, argv);
    uint8_t *data = bench_alloc(65536);
    for (size_t i = 0; i < 65536; i++) data[i] = (uint8_t)(i * 2654435761u >> 13);
    size_t count;
    const cmq_crc32_variant *variants = cmq_crc32_variants(&count);
    for (size_t v = 0; v < count; v++)
        for (size_t i = 0; variants[v].usable() && i < sizeof sizes / sizeof sizes[0]; i++)
            measure(&variants[v], data, sizes[i], quick);
    free(data);
    return 0;
}
