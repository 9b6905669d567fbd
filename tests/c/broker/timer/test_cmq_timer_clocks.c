/* Tests csrc/broker/timer/ with a clock that jumps: ahead, and back into slots that were delivered or lie far ahead.
 * Threads: no. */
#include <inttypes.h>
#include <stdio.h>

#include "broker/timer/cmq_timer_wheel.h"
#include "support/cmq_timer_kit.h"

static void a_clock_that_jumps(void)
{
    cmq_store *store = open_store();
    cmq_timer *timer = make_timer(store);
    const int64_t began = now();
    send_at(store, began + 100000, "later");
    step(timer);
    pass(50000);
    step(timer);
    pass(-40000);
    send_at(store, now() + 5000, "soon");
    step(timer);
    CHECK_TEXT(delivered(store), "");
    pass(6000);
    step(timer);
    CHECK_TEXT(delivered(store), "soon");
    stop(timer);
    pass(-10000);
    timer = make_timer(store);
    send_at(store, now() + 3000, "sooner");
    step(timer);
    pass(3000);
    step(timer);
    CHECK_INT(kit_max(store, "T", 2), 2);
    atomic_store(&kit_now_ms, began + 100000);
    step(timer);
    /* Started with a clock before what the check says, it trusts the clock: nothing is lost, and one comes twice. */
    CHECK_TEXT(delivered(store), "soon sooner soon later");
    finish(timer, store);
}

#define DAY_MS INT64_C(86400000)

/* A clock three weeks ahead put timers into slots that lie further ahead of the true time than the wheel turns. They
 * make way for those of the true time, are delivered when they are due, and once. */
static void a_clock_weeks_ahead_that_is_set_back(void)
{
    for (int restarted = 0; restarted < 2; restarted++) {
        cmq_store *store = open_store();
        cmq_timer *timer = make_timer(store);
        const int64_t began = now(), far = began + 22 * DAY_MS;
        pass(21 * DAY_MS);
        send_at(store, far, "far");
        send_at(store, far, "gone");
        send_deletion(store, far, "gone");
        send_at(store, far + 1000, "farther");
        step(timer);
        CHECK_INT(counters_of(timer).pending, 2);
        if (restarted) stop(timer);
        pass(-21 * DAY_MS);
        if (restarted) timer = make_timer(store);
        step(timer);
        pass(7 * DAY_MS);
        step(timer);
        send_at(store, began + 9 * DAY_MS - 1000, "later");
        send_at(store, far - CMQ_TIMER_SLOTS * INT64_C(1000), "same place");
        send_at(store, now() + 2000, "soon");
        step(timer);
        pass(4000);
        step(timer);
        CHECK_TEXT(delivered(store), "soon");
        atomic_store(&kit_now_ms, began + 8 * DAY_MS + 1000);
        step(timer);
        CHECK_TEXT(delivered(store), "soon same place");
        atomic_store(&kit_now_ms, began + 9 * DAY_MS);
        step(timer);
        CHECK_TEXT(delivered(store), "soon same place later");
        stop(timer);
        timer = make_timer(store);
        for (; now() < far - DAY_MS; pass(DAY_MS / 2)) step(timer);
        step(timer);
        stop(timer);
        timer = make_timer(store);
        atomic_store(&kit_now_ms, far + 3000);
        step(timer);
        CHECK_TEXT(delivered(store), "soon same place later far farther");
        CHECK_INT(counters_of(timer).pending, 0);
        CHECK_INT(counters_of(timer).recalled, 1);
        finish(timer, store);
        kit_remove_tree(root);
    }
}

/* A clock that was days ahead, and messages that were parked meanwhile, delay no message of the true time, under the
 * default roll window and under the widest one. */
static void timers_of_a_clock_days_ahead(int64_t ahead_days, int32_t window_slots, bool restarted)
{
    cmq_store *store = open_store();
    cmq_timer_options options = timer_options(store);
    options.roll_window_slots = window_slots;
    options.flush_interval_ms = INT32_MAX;   /* rounds wait for no disk */
    cmq_timer *timer = make_timer_with(&options);
    const int64_t began = now();
    send_at(store, began + DAY_MS, "early");
    pass(ahead_days * DAY_MS);
    send_at(store, now() + 5000, "far");
    send_at(store, now() + 3 * DAY_MS, "farther");
    step(timer);
    CHECK_TEXT(delivered(store), "early");
    if (restarted) stop(timer);
    pass(-ahead_days * DAY_MS);
    if (restarted) timer = make_timer_with(&options);
    int64_t count = 1;
    for (int64_t day = 0; day < ahead_days + 4; day++) {
        send_at(store, now() + 2000, "near");
        send_at(store, now() + DAY_MS, "next day");
        step(timer);
        pass(3000);
        step(timer);
        CHECK_INT(kit_max(store, "T", 2), ++count);
        atomic_store(&kit_now_ms, began + (day + 1) * DAY_MS + 10000);
        step(timer);
        /* a start trusts the clock: what its last run delivered early comes twice */
        count += 1 + (restarted && day == 0) + (day + 1 == ahead_days) + (day + 1 == ahead_days + 3);
        CHECK_INT(kit_max(store, "T", 2), count);
    }
    CHECK_INT(counters_of(timer).pending, 0);
    CHECK_INT(counters_of(timer).queue_behind, 0);
    finish(timer, store);
    kit_remove_tree(root);
}

static void a_clock_days_ahead_that_is_set_back_holds_nothing_up(void)
{
    static const int64_t ahead_days[] = {7, 13};
    for (size_t i = 0; i < sizeof ahead_days / sizeof ahead_days[0]; i++)
        for (int restarted = 0; restarted < 2; restarted++) {
            timers_of_a_clock_days_ahead(ahead_days[i], 0, restarted != 0);
            timers_of_a_clock_days_ahead(ahead_days[i], CMQ_TIMER_SLOTS, restarted != 0);
        }
}

/* Its delivered messages are not delivered again with new ones. */
static void a_slot_that_the_clock_is_set_back_into(void)
{
    cmq_store *store = open_store();
    cmq_timer *timer = make_timer(store);
    atomic_store(&kit_now_ms, now() / 1000 * 1000);
    const int64_t due_ms = now() + 5000;
    send_at(store, due_ms, "before");
    step(timer);
    pass(6000);
    step(timer);
    CHECK_TEXT(delivered(store), "before");
    pass(-5000);
    send_at(store, due_ms, "after");
    step(timer);
    pass(6000);
    step(timer);
    CHECK_TEXT(delivered(store), "before after");
    finish(timer, store);
}

/* A slot that was delivered, or whose messages were parked again, is congested no more when the clock is set back. */
static void a_slot_that_the_clock_is_set_back_into_has_room(void)
{
    for (int parked_again = 0; parked_again < 2; parked_again++) {
        cmq_store *store = open_store();
        cmq_timer_options options = timer_options(store);
        options.slot_messages = 10;
        options.delay_ms_max = 30 * DAY_MS;
        cmq_timer *timer = make_timer_with(&options);
        atomic_store(&kit_now_ms, now() / 1000 * 1000);
        const int64_t ahead_ms = parked_again ? 21 * DAY_MS : 0, due_ms = now() + ahead_ms + 5000;
        char due[32];
        snprintf(due, sizeof due, "%" PRId64, due_ms);
        const cmq_timer_asked asked = {.deliver_ms = kit_slice(due)};
        cmq_timer_parked parked;
        pass(ahead_ms);
        for (int i = 0; i < 20; i++) send_at(store, due_ms, "x");
        step(timer);
        CHECK_STATUS(cmq_timer_admit(timer, &asked, kit_slice("T"), 1, &parked), CMQ_ERR_LIMIT);
        if (parked_again) {
            pass(-ahead_ms);
            step(timer);
        } else {
            pass(6000);
            step(timer);
            CHECK_INT(kit_max(store, "T", 2), 20);
            pass(-5000);
        }
        CHECK_OK(cmq_timer_admit(timer, &asked, kit_slice("T"), 1, &parked));
        finish(timer, store);
        kit_remove_tree(root);
    }
}

CMQ_TEST_MAIN(CMQ_TEST(a_clock_that_jumps), CMQ_TEST(a_clock_weeks_ahead_that_is_set_back),
              CMQ_TEST(a_clock_days_ahead_that_is_set_back_holds_nothing_up),
              CMQ_TEST(a_slot_that_the_clock_is_set_back_into),
              CMQ_TEST(a_slot_that_the_clock_is_set_back_into_has_room))
