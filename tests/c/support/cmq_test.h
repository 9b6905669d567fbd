/* cmq_test: the framework of the C test programs: checks that print both sides, seeds, temporary directories.
 *
 * A program registers its cases with CMQ_TEST_MAIN and runs all, or those whose name contains argv[1].
 * Random tests take their seed from CMQ_SEED and print it when a check fails.
 */
#ifndef CMQ_TEST_H
#define CMQ_TEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cmq_status.h"

typedef struct cmq_test_case {
    const char *name;
    void (*run)(void);
} cmq_test_case;

#define CMQ_TEST(function) {#function, function}

int cmq_test_run(int argc, char **argv, const cmq_test_case *cases, size_t count);

#define CMQ_TEST_MAIN(...)                                                          \
    int main(int argc, char **argv)                                                 \
    {                                                                               \
        static const cmq_test_case cases[] = {__VA_ARGS__};                         \
        return cmq_test_run(argc, argv, cases, sizeof cases / sizeof cases[0]);     \
    }

_Noreturn void cmq_test_fail(const char *file, int line, const char *format, ...) __attribute__((format(printf, 3, 4)));
void cmq_test_check_bytes(const char *file, int line, const void *actual, size_t actual_bytes, const void *expected,
                          size_t expected_bytes);

#define CHECK(condition)                                                            \
    do {                                                                            \
        if (!(condition)) cmq_test_fail(__FILE__, __LINE__, "not true: %s", #condition); \
    } while (0)

#define CHECK_INT(actual, expected)                                                 \
    do {                                                                            \
        const int64_t actual_ = (int64_t)(actual), expected_ = (int64_t)(expected); \
        if (actual_ != expected_)                                                   \
            cmq_test_fail(__FILE__, __LINE__, "%s is %lld, expected %lld", #actual, (long long)actual_, \
                          (long long)expected_);                                    \
    } while (0)

#define CHECK_STATUS(actual, expected)                                              \
    do {                                                                            \
        const cmq_status actual_ = (actual), expected_ = (expected);                \
        if (actual_ != expected_)                                                   \
            cmq_test_fail(__FILE__, __LINE__, "%s gave %s (%s), expected %s", #actual, cmq_status_name(actual_), \
                          actual_ == CMQ_OK ? "" : cmq_last_error()->text, cmq_status_name(expected_)); \
    } while (0)

#define CHECK_OK(actual) CHECK_STATUS(actual, CMQ_OK)
#define CHECK_BYTES(actual, actual_bytes, expected, expected_bytes) \
    cmq_test_check_bytes(__FILE__, __LINE__, actual, actual_bytes, expected, expected_bytes)

/* A fresh directory under $TMPDIR, removed with all in it when the case ends well. Static per call site of a case. */
const char *cmq_test_directory(void);

/* xorshift random numbers from the run's seed: always the same, unless CMQ_SEED gives another, or CMQ_LONG asks for the
 * long form. */
uint64_t cmq_test_random(void);
uint64_t cmq_test_random_below(uint64_t bound);   /* in [0, bound), bound > 0 */
uint64_t cmq_test_seed(void);

/* The seed: CMQ_SEED, else one from the clock with CMQ_LONG, else the usual one. */
uint64_t cmq_test_chosen_seed(void);

#endif
