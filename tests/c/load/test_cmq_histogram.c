/* Tests csrc/load/cmq_histogram.c: quantiles against sorted values, edges of buckets. */
#include "load/cmq_histogram.h"

#include <stdlib.h>
#include <string.h>

#include "support/cmq_test.h"

static cmq_histogram histogram;   /* 37 KiB */

static void test_empty(void)
{
    memset(&histogram, 0, sizeof histogram);
    CHECK_INT(cmq_histogram_quantile(&histogram, 0.5), 0);
    cmq_histogram_record(&histogram, 7, 0);
    CHECK_INT(histogram.count, 0);
}

static void test_small_values_are_exact(void)
{
    memset(&histogram, 0, sizeof histogram);
    for (int i = 1; i <= 100; i++) cmq_histogram_record(&histogram, i, 1);
    CHECK_INT(cmq_histogram_quantile(&histogram, 0.0), 1);
    CHECK_INT(cmq_histogram_quantile(&histogram, 0.5), 50);
    CHECK_INT(cmq_histogram_quantile(&histogram, 0.99), 99);
    CHECK_INT(cmq_histogram_quantile(&histogram, 1.0), 100);
    CHECK_INT(histogram.min_ns, 1);
    CHECK_INT(histogram.max_ns, 100);
    CHECK_INT(histogram.sum_ns, 5050);
}

static void test_values_outside(void)
{
    memset(&histogram, 0, sizeof histogram);
    cmq_histogram_record(&histogram, -5, 2);
    cmq_histogram_record(&histogram, INT64_MAX, 1);
    CHECK_INT(cmq_histogram_quantile(&histogram, 0.5), 0);
    CHECK(cmq_histogram_quantile(&histogram, 1.0) == (uint64_t)INT64_MAX);
    CHECK_INT(histogram.count, 3);
}

/* Each power of two and its neighbours come back within one part in 128, and never too low. */
static void test_edges_of_buckets(void)
{
    for (unsigned bit = 0; bit < CMQ_HISTOGRAM_VALUE_BITS; bit++) {
        for (int64_t more = -1; more <= 1; more++) {
            const int64_t value = (INT64_C(1) << bit) + more;
            memset(&histogram, 0, sizeof histogram);
            cmq_histogram_record(&histogram, value, 1);
            cmq_histogram_record(&histogram, INT64_C(1) << 41, 1);   /* so that the largest does not stand in */
            const int64_t found = (int64_t)cmq_histogram_quantile(&histogram, 0.5);
            CHECK(found >= value && found - value <= value / 128 + 1);
        }
    }
}

static int compare(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

static void test_random_values(void)
{
    enum { COUNT = 5000 };
    static const double shares[] = {0.01, 0.25, 0.5, 0.9, 0.99, 0.999, 1.0};
    int64_t *values = malloc(COUNT * sizeof *values);
    for (int round = 0; round < 20; round++) {
        memset(&histogram, 0, sizeof histogram);
        for (int i = 0; i < COUNT; i++) {
            values[i] = (int64_t)(cmq_test_random() >> (25 + cmq_test_random_below(30)));
            cmq_histogram_record(&histogram, values[i], 1);
        }
        qsort(values, COUNT, sizeof *values, compare);
        for (size_t i = 0; i < sizeof shares / sizeof *shares; i++) {
            int64_t rank = (int64_t)(shares[i] * COUNT);
            if ((double)rank < shares[i] * COUNT) rank++;
            const int64_t exact = values[rank > 0 ? rank - 1 : 0],
                          found = (int64_t)cmq_histogram_quantile(&histogram, shares[i]);
            CHECK(found >= exact && found - exact <= exact / 128 + 1);
        }
    }
    free(values);
}

CMQ_TEST_MAIN(CMQ_TEST(test_empty), CMQ_TEST(test_small_values_are_exact), CMQ_TEST(test_values_outside),
              CMQ_TEST(test_edges_of_buckets), CMQ_TEST(test_random_values))
