/* The bits of ended half messages, and the newest copies of open ones, against plain arrays. */
#include <stdlib.h>
#include <string.h>

#include "broker/txn/cmq_txn_copies.h"
#include "broker/txn/cmq_txn_ended.h"
#include "support/cmq_test.h"

enum { HALVES = CMQ_TXN_CHUNK_HALVES * 4, FIRSTS = 500 };

static void bits_are_those_that_were_set(void)
{
    static bool expected[HALVES];
    cmq_txn_ended ended = {0};
    const int64_t from = 3 * CMQ_TXN_CHUNK_HALVES + 17;
    int64_t below = 0;
    cmq_txn_ended_begin(&ended, from);
    CHECK_INT(ended.base, 3 * CMQ_TXN_CHUNK_HALVES);
    memset(expected, 0, sizeof expected);
    for (int i = 0; i < 20000; i++) {
        const int64_t at = (int64_t)cmq_test_random_below(HALVES);
        if (i == 10000) {
            below = 2 * CMQ_TXN_CHUNK_HALVES;
            cmq_txn_ended_forget(&ended, ended.base + below + 5);
        }
        const int64_t first = ended.base - below;
        CHECK_OK(cmq_txn_ended_reserve(&ended, first + at));
        cmq_txn_ended_add(&ended, first + at);
        expected[at] = true;
    }
    const int64_t first = ended.base - below;
    for (int64_t at = 0; at < HALVES; at++)
        CHECK_INT(cmq_txn_ended_has(&ended, first + at), at >= below && expected[at]);
    CHECK(!cmq_txn_ended_has(&ended, 0));
    CHECK(!cmq_txn_ended_has(&ended, INT64_MAX));
    cmq_txn_ended_forget(&ended, INT64_MAX / 2);
    CHECK_INT(ended.count, 0);
    cmq_txn_ended_free(&ended);
}

static void copies_are_those_that_were_put(void)
{
    int64_t expected[FIRSTS];
    cmq_txn_copies copies = {0};
    uint32_t used = 0;
    for (int i = 0; i < FIRSTS; i++) expected[i] = -1;
    CHECK_INT(cmq_txn_copies_latest(&copies, 3), -1);
    cmq_txn_copies_drop(&copies, 3);
    for (int i = 0; i < 50000; i++) {
        const int64_t first = (int64_t)cmq_test_random_below(FIRSTS);
        if (cmq_test_random_below(2) == 0) {
            CHECK_OK(cmq_txn_copies_reserve(&copies));
            cmq_txn_copies_put(&copies, first, i);
            used += expected[first] < 0;
            expected[first] = i;
        } else {
            cmq_txn_copies_drop(&copies, first);
            used -= expected[first] >= 0;
            expected[first] = -1;
        }
        const int64_t other = (int64_t)cmq_test_random_below(FIRSTS);
        CHECK_INT(cmq_txn_copies_latest(&copies, other), expected[other]);
        CHECK_INT(copies.used, used);
    }
    for (int i = 0; i < FIRSTS; i++) CHECK_INT(cmq_txn_copies_latest(&copies, i), expected[i]);
    cmq_txn_copies_free(&copies);
}

/* At least as many as the limit says; the table is full a little later. */
static void copies_have_a_limit(void)
{
    cmq_txn_copies copies = {0};
    int64_t first = 0;
    while (cmq_txn_copies_reserve(&copies) == CMQ_OK) cmq_txn_copies_put(&copies, first++, 1);
    CHECK(first >= CMQ_TXN_COPIES_MAX && first < CMQ_TXN_COPIES_MAX / 10 * 11);
    CHECK_INT(copies.used, first);
    cmq_txn_copies_drop(&copies, 7);
    CHECK_OK(cmq_txn_copies_reserve(&copies));
    cmq_txn_copies_free(&copies);
}

CMQ_TEST_MAIN(CMQ_TEST(bits_are_those_that_were_set), CMQ_TEST(copies_are_those_that_were_put),
              CMQ_TEST(copies_have_a_limit))
