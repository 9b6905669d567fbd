/* Tests csrc/broker/timer/cmq_timer_deletes.c: a set of texts, of any number and length. */
#include "broker/timer/cmq_timer_deletes.h"

#include <stdio.h>
#include <string.h>

#include "support/cmq_test.h"

static cmq_slice key_of(char *into, int number)
{
    const int bytes = snprintf(into, 400, "topic+%d%*s", number, number % 300, "");
    return (cmq_slice){.data = (const uint8_t *)into, .bytes = (size_t)bytes};
}

static void keys_are_found_again(void)
{
    enum { MANY = 5000 };
    cmq_timer_deletes deletes = {0};
    char text[400];
    CHECK(!cmq_timer_deletes_has(&deletes, key_of(text, 0)));
    for (int twice = 0; twice < 2; twice++)
        for (int i = 0; i < MANY; i++) CHECK_OK(cmq_timer_deletes_add(&deletes, key_of(text, i)));
    CHECK_INT(deletes.count, MANY);
    for (int i = 0; i < MANY; i++) CHECK(cmq_timer_deletes_has(&deletes, key_of(text, i)));
    for (int i = MANY; i < 2 * MANY; i++) CHECK(!cmq_timer_deletes_has(&deletes, key_of(text, i)));
    cmq_timer_deletes_free(&deletes);
    CHECK(!cmq_timer_deletes_has(&deletes, key_of(text, 1)));
    CHECK_OK(cmq_timer_deletes_add(&deletes, CMQ_SLICE_NONE));
    CHECK(cmq_timer_deletes_has(&deletes, CMQ_SLICE_NONE));
    cmq_timer_deletes_free(&deletes);
}

CMQ_TEST_MAIN(CMQ_TEST(keys_are_found_again))
