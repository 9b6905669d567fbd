/* Tests csrc/load/cmq_marks.c: each number once, in any order, and what is missing. */
#include "load/cmq_marks.h"

#include <stdlib.h>

#include "support/cmq_test.h"

static void test_each_number_once(void)
{
    cmq_marks marks = {0};
    bool first;
    CHECK_INT(cmq_marks_missing(&marks), 0);
    CHECK_OK(cmq_marks_set(&marks, 5, &first));
    CHECK(first);
    CHECK_INT(cmq_marks_missing(&marks), 5);
    CHECK_OK(cmq_marks_set(&marks, 5, &first));
    CHECK(!first);
    for (uint64_t i = 0; i < 5; i++) {
        CHECK_OK(cmq_marks_set(&marks, i, &first));
        CHECK(first);
    }
    CHECK_INT(cmq_marks_missing(&marks), 0);
    CHECK_INT(marks.count, 6);
    CHECK_INT(marks.end, 6);
    cmq_marks_free(&marks);
    CHECK_INT(marks.end, 0);
}

static void test_random_order(void)
{
    enum { COUNT = 20000 };
    bool *seen = calloc(COUNT, sizeof *seen);
    cmq_marks marks = {0};
    uint64_t count = 0, end = 0;
    for (int i = 0; i < 3 * COUNT; i++) {
        const uint64_t number = cmq_test_random_below(1 + cmq_test_random_below(COUNT));
        bool first;
        CHECK_OK(cmq_marks_set(&marks, number, &first));
        CHECK(first == !seen[number]);
        count += first;
        seen[number] = true;
        if (number >= end) end = number + 1;
        CHECK_INT(cmq_marks_missing(&marks), end - count);
    }
    cmq_marks_free(&marks);
    free(seen);
}

static void test_too_large(void)
{
    cmq_marks marks = {0};
    bool first = true;
    CHECK_STATUS(cmq_marks_set(&marks, CMQ_MARKS_MAX, &first), CMQ_ERR_LIMIT);
    CHECK(!first);
    CHECK_INT(marks.end, 0);
}

CMQ_TEST_MAIN(CMQ_TEST(test_each_number_once), CMQ_TEST(test_random_order), CMQ_TEST(test_too_large))
