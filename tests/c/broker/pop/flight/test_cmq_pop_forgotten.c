/* Tests csrc/broker/pop/flight/cmq_pop_forgotten.c: pops before a deletion are known, those of other topics are not,
 * and the newest deletions stay. */
#include "broker/pop/flight/cmq_pop_forgotten.h"

#include <stdio.h>

#include "support/cmq_test.h"

static cmq_pop_forgotten forgotten;

static bool has(const char *topic, int64_t pop_ms)
{
    return cmq_pop_forgotten_has(&forgotten, cmq_slice_of_text(topic), pop_ms);
}

static void pops_before_a_deletion_are_former(void)
{
    cmq_pop_forgotten_begin(&forgotten);
    CHECK(!has("orders", 0) && !has("", 0));
    cmq_pop_forgotten_add(&forgotten, cmq_slice_of_text("orders"), 1000);
    CHECK(has("orders", 999) && has("orders", 1000) && !has("orders", 1001));
    CHECK(!has("order", 999) && !has("orders2", 999) && !has("", 999));
    cmq_pop_forgotten_add(&forgotten, cmq_slice_of_text("orders"), 2000);
    CHECK(has("orders", 1500) && !has("orders", 2001));
    cmq_pop_forgotten_end(&forgotten);
}

static void newest_deletions_stay(void)
{
    enum { MORE = 10 };
    char name[32];
    cmq_pop_forgotten_begin(&forgotten);
    for (uint32_t i = 0; i < CMQ_POP_FORGOTTEN_MAX + MORE; i++) {
        snprintf(name, sizeof name, "topic-%u", i);
        cmq_pop_forgotten_add(&forgotten, cmq_slice_of_text(name), 1000);
    }
    for (uint32_t i = 0; i < CMQ_POP_FORGOTTEN_MAX + MORE; i++) {
        snprintf(name, sizeof name, "topic-%u", i);
        CHECK(has(name, 1000) == (i >= MORE));
    }
    cmq_pop_forgotten_end(&forgotten);
}

CMQ_TEST_MAIN(CMQ_TEST(pops_before_a_deletion_are_former), CMQ_TEST(newest_deletions_stay))
