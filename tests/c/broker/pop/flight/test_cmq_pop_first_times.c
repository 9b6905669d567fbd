/* Tests csrc/broker/pop/flight/cmq_pop_first_times.c: entries are found by their place and pop time, and random
 * histories against a plain list. */
#include "broker/pop/flight/cmq_pop_first_times.h"

#include "support/cmq_test.h"

static void a_message_is_noted_until_it_is_taken(void)
{
    cmq_pop_first_times *firsts = NULL;
    CHECK_INT(cmq_pop_first_times_oldest_ms(firsts), -1);
    CHECK_INT(cmq_pop_first_times_take(&firsts, 7, 2000), -1);
    cmq_pop_first_times_put(&firsts, 7, 2000, 1000);
    cmq_pop_first_times_put(&firsts, 8, 2000, 1500);
    CHECK_INT(cmq_pop_first_times_oldest_ms(firsts), 1000);
    CHECK_INT(cmq_pop_first_times_take(&firsts, 7, 1000), -1);
    CHECK_INT(cmq_pop_first_times_take(&firsts, 7, 2000), 1000);
    CHECK_INT(cmq_pop_first_times_oldest_ms(firsts), 1500);
    CHECK_INT(cmq_pop_first_times_take(&firsts, 8, 2000), 1500);
    CHECK(firsts == NULL);
}

static void times_that_cannot_be_are_kept_within_bounds(void)
{
    cmq_pop_first_times *firsts = NULL;
    cmq_pop_first_times_put(&firsts, 1, 5000, 6000);
    CHECK_INT(cmq_pop_first_times_take(&firsts, 1, 5000), 5000);
    cmq_pop_first_times_put(&firsts, 1, INT64_C(1) << 50, 0);
    CHECK_INT(cmq_pop_first_times_take(&firsts, 1, INT64_C(1) << 50), (INT64_C(1) << 50) - UINT32_MAX);
}

static void no_more_than_allowed_are_noted(void)
{
    cmq_pop_first_times *firsts = NULL;
    for (int64_t i = 0; i <= CMQ_POP_FIRSTS_MAX; i++) cmq_pop_first_times_put(&firsts, i, 2000, 1000);
    CHECK_INT(cmq_pop_first_times_take(&firsts, CMQ_POP_FIRSTS_MAX, 2000), -1);
    for (int64_t i = 0; i < CMQ_POP_FIRSTS_MAX; i++) CHECK_INT(cmq_pop_first_times_take(&firsts, i, 2000), 1000);
    CHECK(firsts == NULL);
    cmq_pop_first_times_put(&firsts, 1, 2000, 1000);
    cmq_pop_first_times_clear(&firsts);
    CHECK_INT(cmq_pop_first_times_oldest_ms(firsts), -1);
}

enum { PLACES = 64, TIMES = 4 };

static void any_order_of_changes_is_kept(void)
{
    cmq_pop_first_times *firsts = NULL;
    int64_t plain[PLACES][TIMES];
    for (int i = 0; i < PLACES * TIMES; i++) plain[i / TIMES][i % TIMES] = -1;
    for (int step = 0; step < 20000; step++) {
        const uint32_t place = (uint32_t)(cmq_test_random_below(PLACES)),
                       time = (uint32_t)(cmq_test_random_below(TIMES));
        int64_t *known = &plain[place][time];
        if (*known < 0) {
            *known = (int64_t)(cmq_test_random_below(1000));
            cmq_pop_first_times_put(&firsts, place, 1000 + time, *known);
        } else {
            CHECK_INT(cmq_pop_first_times_take(&firsts, place, 1000 + time), *known);
            *known = -1;
        }
        int64_t oldest_ms = -1;
        for (int i = 0; i < PLACES * TIMES; i++) {
            const int64_t first_ms = plain[i / TIMES][i % TIMES];
            if (first_ms >= 0 && (oldest_ms < 0 || first_ms < oldest_ms)) oldest_ms = first_ms;
        }
        CHECK_INT(cmq_pop_first_times_oldest_ms(firsts), oldest_ms);
    }
    cmq_pop_first_times_clear(&firsts);
}

CMQ_TEST_MAIN(CMQ_TEST(a_message_is_noted_until_it_is_taken), CMQ_TEST(times_that_cannot_be_are_kept_within_bounds),
              CMQ_TEST(no_more_than_allowed_are_noted), CMQ_TEST(any_order_of_changes_is_kept))
