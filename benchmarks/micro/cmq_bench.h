/* cmq_bench: shared parts of the micro benchmarks: a clock, repeats, and figures as one JSON object a line.
 *
 * A program measures each figure BENCH_REPEATS times and prints the median with the spread. It checks its own result
 * with
 * BENCH_CHECK: a wrong run prints no figure and exits 1. `--quick` is for the test run: tiny sizes, figures without
 *              meaning.
 */
#ifndef CMQ_BENCH_H
#define CMQ_BENCH_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BENCH_REPEATS 7

#define BENCH_CHECK(condition)                                                          \
    do {                                                                                \
        if (!(condition)) {                                                             \
            fprintf(stderr, "%s:%d: wrong result: %s\n", __FILE__, __LINE__, #condition); \
            exit(1);                                                                    \
        }                                                                               \
    } while (0)

static inline bool bench_is_quick(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--quick") == 0) return true;
    return false;
}

/* CPU seconds of this thread: other programs on the machine do not count. */
static inline double bench_cpu_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Memory of its own that the process has in use. */
static inline double bench_rss_anon_mib(void)
{
    char line[128];
    double kib = 0;
    FILE *status = fopen("/proc/self/status", "r");
    BENCH_CHECK(status != NULL);
    while (fgets(line, sizeof line, status) != NULL)
        if (strncmp(line, "RssAnon:", 8) == 0) kib = atof(line + 8);
    fclose(status);
    return kib / 1024;
}

static inline void *bench_alloc(size_t bytes)
{
    void *memory = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    BENCH_CHECK(memory != NULL);
    memset(memory, 0, bytes);   /* no page fault is measured later */
    return memory;
}

static inline int bench_compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Print the median of `seconds`, each for `operations`, as nanoseconds and as operations per second. */
static inline void bench_print(const char *name, double seconds[BENCH_REPEATS], double operations,
                               double bytes_per_operation)
{
    qsort(seconds, BENCH_REPEATS, sizeof seconds[0], bench_compare);
    const double ns = 1e9 / operations, median = seconds[BENCH_REPEATS / 2];
    printf("{\"name\": \"%s\", \"value\": %.3f, \"unit\": \"ns\", \"min\": %.3f, \"max\": %.3f, "
           "\"per_second\": %.0f, \"gb_per_second\": %.3f, \"repeats\": %d}\n",
           name, median * ns, seconds[0] * ns, seconds[BENCH_REPEATS - 1] * ns, operations / median,
           operations * bytes_per_operation / median * 1e-9, BENCH_REPEATS);
    fflush(stdout);
}

#endif
