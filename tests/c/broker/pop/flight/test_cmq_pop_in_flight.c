/* Tests csrc/broker/pop/flight/cmq_pop_in_flight.c: the messages that each pop counts off, and random histories against
 * a plain table of all that is in flight. */
#include "broker/pop/flight/cmq_pop_in_flight.h"

#include <stdbool.h>
#include <string.h>

#include "support/cmq_test.h"

_Static_assert(sizeof(cmq_pop_in_flight) == 328, "the size that its head states");

static void nothing_is_in_flight_at_first(void)
{
    cmq_pop_in_flight ages = {.in_flight = 0};
    CHECK_INT(cmq_pop_in_flight_oldest_ms(&ages), -1);
    CHECK_INT(cmq_pop_in_flight_due_ms(&ages), -1);
    cmq_pop_in_flight_take(&ages, 3, 1000, 10);
    CHECK_INT(ages.in_flight, 0);
}

static void only_messages_of_that_pop_are_counted_off(void)
{
    cmq_pop_in_flight ages = {.in_flight = 0};
    cmq_pop_in_flight_add(&ages, 4, 1000, 60000);
    cmq_pop_in_flight_add(&ages, 2, 2000, 30000);
    cmq_pop_in_flight_take(&ages, 1, 999, 60000);
    cmq_pop_in_flight_take(&ages, 1, 1500, 60000);
    cmq_pop_in_flight_take(&ages, 1, 2001, 30000);
    CHECK_INT(ages.in_flight, 6);
    CHECK_INT(cmq_pop_in_flight_due_ms(&ages), 32000);
    cmq_pop_in_flight_take(&ages, 40, 2000, 30000);
    CHECK_INT(ages.in_flight, 4);
    CHECK_INT(cmq_pop_in_flight_due_ms(&ages), 61000);
    cmq_pop_in_flight_take(&ages, 1, 2000, 30000);   /* once more: nobody's */
    CHECK_INT(ages.in_flight, 4);
    cmq_pop_in_flight_take(&ages, 4, 1000, 70000);   /* put again, for longer */
    CHECK_INT(cmq_pop_in_flight_oldest_ms(&ages), -1);
}

static void pops_of_one_moment_and_different_times_are_apart(void)
{
    cmq_pop_in_flight ages = {.in_flight = 0};
    cmq_pop_in_flight_add(&ages, 32, 1000, 30000);
    cmq_pop_in_flight_add(&ages, 8, 1000, 3000);
    CHECK_INT(cmq_pop_in_flight_due_ms(&ages), 4000);
    cmq_pop_in_flight_take(&ages, 8, 1000, 3000);
    CHECK_INT(cmq_pop_in_flight_due_ms(&ages), 31000);
    CHECK_INT(ages.in_flight, 32);
}

static void a_clock_that_steps_back_is_fine(void)
{
    cmq_pop_in_flight ages = {.in_flight = 0};
    for (int64_t at = 20; at > 0; at--) cmq_pop_in_flight_add(&ages, 1, at * 1000, 500);
    CHECK_INT(ages.in_flight, 20);
    CHECK_INT(cmq_pop_in_flight_oldest_ms(&ages), 1000);
    CHECK(cmq_pop_in_flight_due_ms(&ages) >= 1500);
    for (int64_t at = 1; at <= 20; at++) cmq_pop_in_flight_take(&ages, 1, at * 1000, 500);
    CHECK_INT(ages.in_flight, 0);
}

static void pops_of_one_moment_are_not_split(void)
{
    cmq_pop_in_flight ages = {.in_flight = 0};
    /* the first two are mixed now */
    for (int64_t kind = 0; kind < 9; kind++) cmq_pop_in_flight_add(&ages, 1, 1000, 500 + kind);
    cmq_pop_in_flight_add(&ages, 5, 1000, 500);
    cmq_pop_in_flight_take(&ages, 6, 1000, 500);
    CHECK_INT(ages.in_flight, 8);
    for (int64_t kind = 1; kind < 9; kind++) cmq_pop_in_flight_take(&ages, 1, 1000, 500 + kind);
    CHECK_INT(ages.in_flight, 0);
}

/* ---- random histories ---- */

enum { TIMES = 400, KINDS_MAX = 20 };

typedef struct model {
    uint32_t counts[TIMES][KINDS_MAX];
    uint32_t in_flight;
} model;

static int64_t invisible_of(uint32_t kind) { return 10 + 7 * (int64_t)kind; }

static void check_spans(const cmq_pop_in_flight *ages)
{
    uint32_t sum = 0, mixed = 0;
    CHECK(ages->span_count <= CMQ_POP_AGES);
    for (uint32_t i = 0; i < ages->span_count; i++) {
        const cmq_pop_age *span = &ages->spans[i];
        CHECK(span->count > 0 && span->first_ms <= span->last_ms && span->due_ms >= span->last_ms);
        CHECK(i == 0 || ages->spans[i - 1].first_ms <= span->first_ms);
        sum += span->count;
        mixed += span->invisible_ms == CMQ_POP_AGES_MIXED;
    }
    CHECK(mixed <= 1);
    CHECK_INT(ages->in_flight, sum);
}

static void check_against(const cmq_pop_in_flight *ages, const model *expected)
{
    int64_t oldest_ms = -1, due_ms = INT64_MAX;
    check_spans(ages);
    CHECK_INT(ages->in_flight, expected->in_flight);
    for (int64_t at = 0; at < TIMES; at++)
        for (uint32_t kind = 0; kind < KINDS_MAX; kind++) {
            if (expected->counts[at][kind] == 0) continue;
            if (oldest_ms < 0) oldest_ms = at;
            if (at + invisible_of(kind) < due_ms) due_ms = at + invisible_of(kind);
        }
    if (oldest_ms < 0)
        CHECK_INT(cmq_pop_in_flight_oldest_ms(ages), -1);
    else
        CHECK(cmq_pop_in_flight_oldest_ms(ages) <= oldest_ms && cmq_pop_in_flight_due_ms(ages) >= due_ms);
}

static void run_history(uint32_t kinds)
{
    cmq_pop_in_flight ages = {.in_flight = 0};
    static model expected;
    memset(&expected, 0, sizeof expected);
    for (int64_t now = 0; now < TIMES; now += (int64_t)cmq_test_random_below(3)) {
        const uint32_t kind = (uint32_t)cmq_test_random_below(kinds);
        if (cmq_test_random_below(2) == 0) {
            const uint32_t count = 1 + (uint32_t)cmq_test_random_below(32);
            expected.counts[now][kind] += count;
            expected.in_flight += count;
            cmq_pop_in_flight_add(&ages, count, now, invisible_of(kind));
        } else {
            uint32_t *there = &expected.counts[cmq_test_random_below((uint64_t)now + 1)][kind];
            if (*there == 0) continue;
            const uint32_t count = 1 + (uint32_t)cmq_test_random_below(*there);
            *there -= count;
            expected.in_flight -= count;
            cmq_pop_in_flight_take(&ages, count, (there - expected.counts[0]) / KINDS_MAX, invisible_of(kind));
        }
        check_against(&ages, &expected);
    }
    for (int64_t at = 0; at < TIMES; at++)
        for (uint32_t kind = 0; kind < kinds; kind++)
            if (expected.counts[at][kind] > 0)
                cmq_pop_in_flight_take(&ages, expected.counts[at][kind], at, invisible_of(kind));
    CHECK_INT(ages.in_flight, 0);
}

static void no_history_counts_wrong(void)
{
    for (int round = 0; round < 300; round++) run_history(1 + (uint32_t)cmq_test_random_below(KINDS_MAX));
}

static void no_span_is_broad(void)
{
    cmq_pop_in_flight ages = {.in_flight = 0};
    for (int64_t at = 0; at < 100000; at++) {
        cmq_pop_in_flight_add(&ages, 1, at, 30000);
        if (ages.span_count < CMQ_POP_AGES) continue;
        for (uint32_t i = 0; i < ages.span_count; i++)
            CHECK((ages.spans[i].last_ms - ages.spans[i].first_ms) * 7 <= 2 * at);
    }
    check_spans(&ages);
}

CMQ_TEST_MAIN(CMQ_TEST(nothing_is_in_flight_at_first), CMQ_TEST(only_messages_of_that_pop_are_counted_off),
              CMQ_TEST(pops_of_one_moment_and_different_times_are_apart), CMQ_TEST(a_clock_that_steps_back_is_fine),
              CMQ_TEST(pops_of_one_moment_are_not_split), CMQ_TEST(no_history_counts_wrong), CMQ_TEST(no_span_is_broad))
