/* bench_bitmap: nanoseconds per acknowledgement in a checkpoint's word, and per number found in a large set.
 *
 * Checked: every checkpoint is complete after its 32 acks and not before; a walk over a set finds as many numbers as it
 *          has.
 */
#include "base/cmq_bitmap.h"
#include "cmq_bench.h"

#define CHECKPOINTS 4096
#define SET_BITS (1u << 20)

static void measure_acks(uint32_t rounds)
{
    static uint32_t bits[CHECKPOINTS];
    double seconds[BENCH_REPEATS];
    for (int repeat = 0; repeat < BENCH_REPEATS; repeat++) {
        const double begin = bench_cpu_s();
        for (uint32_t round = 0; round < rounds; round++) {
            uint64_t complete = 0;
            memset(bits, 0, sizeof bits);
            for (uint32_t message = 0; message < CMQ_BITS_MAX; message++)
                for (uint32_t i = 0; i < CHECKPOINTS; i++) {
                    bits[i] = cmq_bits_set(bits[i], (message * 7 + i) % CMQ_BITS_MAX);
                    complete += cmq_bits_all(bits[i], CMQ_BITS_MAX);
                }
            BENCH_CHECK(complete == CHECKPOINTS);
        }
        seconds[repeat] = bench_cpu_s() - begin;
    }
    bench_print("bitmap/ack of one of 32, and is it complete", seconds, (double)rounds * CHECKPOINTS * CMQ_BITS_MAX, 0);
}

static void measure_walk(uint32_t rounds, uint32_t stride, const char *name)
{
    uint64_t *words = bench_alloc(cmq_bitmap_words(SET_BITS) * sizeof *words);
    double seconds[BENCH_REPEATS];
    for (size_t i = 0; i < SET_BITS; i += stride) cmq_bitmap_set(words, i);
    const size_t expected = cmq_bitmap_count(words, SET_BITS);
    for (int repeat = 0; repeat < BENCH_REPEATS; repeat++) {
        const double begin = bench_cpu_s();
        for (uint32_t round = 0; round < rounds; round++) {
            size_t found = 0;
            for (size_t at = cmq_bitmap_next(words, SET_BITS, 0); at < SET_BITS;
                 at = cmq_bitmap_next(words, SET_BITS, at + 1))
                found++;
            BENCH_CHECK(found == expected);
        }
        seconds[repeat] = bench_cpu_s() - begin;
    }
    bench_print(name, seconds, (double)rounds * (double)expected, 0);
    free(words);
}

int main(int argc, char **argv)
{
    const uint32_t rounds = bench_is_quick(argc, argv) ? 1 : 50;
    measure_acks(rounds);
    measure_walk(rounds, 3, "bitmap/next number, every third is there");
    measure_walk(rounds, 500, "bitmap/next number, one of 500 is there");
    return 0;
}
