/* Tests csrc/broker/cmq_pop_ages.c: what is counted off by which pop time, and random histories against a plain list of all that is in flight. */
#include "broker/cmq_pop_ages.h"

#include <stdbool.h>
#include <string.h>

#include "support/cmq_test.h"

static void nothing_is_in_flight_at_first(void)
{
    cmq_pop_ages ages = {0};
    CHECK_INT(ages.in_flight, 0);
    CHECK_INT(cmq_pop_ages_oldest_ms(&ages), -1);
    CHECK_INT(cmq_pop_ages_due_ms(&ages), -1);
    cmq_pop_ages_take(&ages, 3, 1000);
    CHECK_INT(ages.in_flight, 0);
}

static void only_what_was_popped_then_is_counted_off(void)
{
    cmq_pop_ages ages = {0};
    cmq_pop_ages_add(&ages, 4, 1000, 61000);
    cmq_pop_ages_add(&ages, 2, 2000, 32000);
    cmq_pop_ages_take(&ages, 1, 999);
    cmq_pop_ages_take(&ages, 1, 1500);
    cmq_pop_ages_take(&ages, 1, 2001);
    CHECK_INT(ages.in_flight, 6);
    CHECK_INT(cmq_pop_ages_due_ms(&ages), 32000);
    cmq_pop_ages_take(&ages, 40, 2000);
    CHECK_INT(ages.in_flight, 4);
    CHECK_INT(cmq_pop_ages_due_ms(&ages), 61000);
    cmq_pop_ages_take(&ages, 1, 2000);   /* once more: nobody's */
    CHECK_INT(ages.in_flight, 4);
    cmq_pop_ages_take(&ages, 4, 1000);
    CHECK_INT(cmq_pop_ages_oldest_ms(&ages), -1);
}

static void a_clock_that_steps_back_is_fine(void)
{
    cmq_pop_ages ages = {0};
    for (int64_t at = 20; at > 0; at--) cmq_pop_ages_add(&ages, 1, at * 1000, at * 1000 + 500);
    CHECK_INT(ages.in_flight, 20);
    CHECK_INT(cmq_pop_ages_oldest_ms(&ages), 1000);
    CHECK_INT(cmq_pop_ages_due_ms(&ages), 1500);
    for (int64_t at = 1; at <= 20; at++) cmq_pop_ages_take(&ages, 1, at * 1000);
    CHECK_INT(ages.in_flight, 0);
}

/* ---- random histories ---- */

enum { TIMES = 400 };

typedef struct model {
    uint32_t counts[TIMES];
    int64_t due_ms[TIMES];
    uint32_t in_flight;
} model;

static void check_spans(const cmq_pop_ages *ages)
{
    uint32_t sum = 0;
    CHECK(ages->spans <= CMQ_POP_AGES);
    for (uint32_t i = 0; i < ages->spans; i++) {
        CHECK(ages->counts[i] > 0 && ages->first_ms[i] <= ages->last_ms[i]);
        CHECK(i == 0 || ages->last_ms[i - 1] < ages->first_ms[i]);
        sum += ages->counts[i];
    }
    CHECK_INT(ages->in_flight, sum);
}

static void check_against(const cmq_pop_ages *ages, const model *expected)
{
    int64_t oldest_ms = -1, due_ms = INT64_MAX;
    check_spans(ages);
    CHECK_INT(ages->in_flight, expected->in_flight);
    for (int64_t at = 0; at < TIMES; at++) {
        if (expected->counts[at] == 0) continue;
        if (oldest_ms < 0) oldest_ms = at;
        if (expected->due_ms[at] < due_ms) due_ms = expected->due_ms[at];
    }
    if (oldest_ms < 0) {
        CHECK_INT(cmq_pop_ages_oldest_ms(ages), -1);
        return;
    }
    CHECK(cmq_pop_ages_oldest_ms(ages) <= oldest_ms && oldest_ms <= ages->last_ms[0]);
    CHECK(cmq_pop_ages_due_ms(ages) <= due_ms);
}

static void no_history_counts_wrong(void)
{
    for (int round = 0; round < 200; round++) {
        cmq_pop_ages ages = {0};
        model expected = {.in_flight = 0};
        int64_t now = 0;
        while (now < TIMES) {
            if (cmq_test_random_below(2) == 0) {
                const uint32_t count = 1 + (uint32_t)cmq_test_random_below(32);
                const int64_t due_ms = now + (int64_t)cmq_test_random_below(100);
                expected.due_ms[now] = expected.counts[now] == 0 || due_ms < expected.due_ms[now] ? due_ms : expected.due_ms[now];
                expected.counts[now] += count;
                expected.in_flight += count;
                cmq_pop_ages_add(&ages, count, now, due_ms);
            } else {
                const int64_t at = (int64_t)cmq_test_random_below((uint64_t)now + 1);
                const uint32_t most = expected.counts[at], count = most == 0 ? 0 : 1 + (uint32_t)cmq_test_random_below(most);
                expected.counts[at] -= count;
                expected.in_flight -= count;
                cmq_pop_ages_take(&ages, count, at);
            }
            check_against(&ages, &expected);
            now += (int64_t)cmq_test_random_below(3);
        }
    }
}

/* Eight spans of one that are pushed together evenly: the first may be told too old by two sevenths of the whole. */
static void no_span_is_broad(void)
{
    cmq_pop_ages ages = {0};
    for (int64_t at = 0; at < 100000; at++) {
        cmq_pop_ages_add(&ages, 1, at, at + 30000);
        if (ages.spans < CMQ_POP_AGES) continue;
        for (uint32_t i = 0; i < ages.spans; i++) CHECK((ages.last_ms[i] - ages.first_ms[i]) * 7 <= 2 * at);
    }
    check_spans(&ages);
}

CMQ_TEST_MAIN(CMQ_TEST(nothing_is_in_flight_at_first), CMQ_TEST(only_what_was_popped_then_is_counted_off), CMQ_TEST(a_clock_that_steps_back_is_fine),
              CMQ_TEST(no_history_counts_wrong), CMQ_TEST(no_span_is_broad))
