/* Tests csrc/broker/timer/: parking, slots and their order, deletions, rolling, late messages, undeliverable messages,
 * full and failing disks, recovery from every state of the files, other precisions; the thread. Clocks that jump:
 * test_cmq_timer_clocks.c. A real broker's files: tests/golden/golden_timer.c. Threads: yes. */
#include "broker/timer/cmq_timer.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "broker/timer/cmq_timer_log.h"
#include "broker/timer/cmq_timer_wheel.h"
#include "store/follow/cmq_watch.h"
#include "support/cmq_file_twin.h"
#include "support/cmq_store_kit.h"
#include "support/cmq_timer_kit.h"

#define PATIENCE_S 60   /* a wait that lasts so long has missed its wake-up */

/* ---- parking ---- */

static const char *pairs(cmq_slice properties)
{
    static char text[2048];
    size_t used = 0;
    cmq_slice name, value;
    text[0] = '\0';
    while (cmq_property_next(&properties, &name, &value))
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%.*s=%.*s", used > 0 ? " " : "", (int)name.bytes,
                                 (const char *)name.data, (int)value.bytes, (const char *)value.data);
    return text;
}

static void parking_by_time(void)
{
    const cmq_timer_options options = {0}, fine = {.precision_ms = 1, .delay_ms_max = 5000};
    cmq_timer_parked parked;
    CHECK_OK(cmq_timer_park(&options, kit_slice("orders"), 7, 1700000005000, 1700000000000, &parked));
    CHECK_BYTES(parked.topic.data, parked.topic.bytes, "rmq_sys_wheel_timer", 19);
    CHECK_INT(parked.queue_id, 0);
    CHECK_TEXT(pairs(parked.extra), "TIMER_OUT_MS=1700000004000 REAL_TOPIC=orders REAL_QID=7");
    CHECK_OK(cmq_timer_park(&options, kit_slice("orders"), 7, 1700000005001, 1700000000000, &parked));
    CHECK_INT(parked.out_ms, 1700000005000);
    CHECK_OK(cmq_timer_park(&fine, kit_slice("orders"), 7, 1700000005000, 1700000000000, &parked));
    CHECK_INT(parked.out_ms, 1700000004999);
    CHECK_STATUS(cmq_timer_park(&fine, kit_slice("orders"), 7, 1700000005001, 1700000000000, &parked),
                 CMQ_ERR_ARGUMENT);
    CHECK_STATUS(cmq_timer_park(&options, kit_slice("orders"), 0, 1700000000000, 1700000000000, &parked), CMQ_END);
    CHECK_STATUS(cmq_timer_park(&options, kit_slice("orders"), 0, INT64_MIN, 1700000000000, &parked), CMQ_END);
    CHECK_OK(cmq_timer_park(&options, kit_slice("orders"), 0, 1700000000000 + 259200000, 1700000000000, &parked));
    CHECK_STATUS(cmq_timer_park(&options, kit_slice("orders"), 0, INT64_MAX, 1700000000000, &parked), CMQ_ERR_ARGUMENT);
    CHECK_TEXT(cmq_last_error()->text, "timer message illegal, the delay time should not be bigger than the max delay "
                                       "259200000ms; or if set del msg, the delay "
                                       "time should be bigger than the current time");
    char topic[257];
    memset(topic, 't', sizeof topic);
    const cmq_slice longest = {.data = (uint8_t *)topic, .bytes = 255},
                    longer = {.data = (uint8_t *)topic, .bytes = 256};
    CHECK_OK(cmq_timer_park(&options, longest, INT32_MAX, 1700000005000, 1700000000000, &parked));
    CHECK(parked.extra.bytes <= sizeof parked.bytes);
    CHECK_STATUS(cmq_timer_park(&options, longer, 0, 1700000005000, 1700000000000, &parked), CMQ_ERR_TOPIC);
    CHECK_STATUS(cmq_timer_park(&options, CMQ_SLICE_NONE, 0, 1700000005000, 1700000000000, &parked), CMQ_ERR_TOPIC);
}

/* The timer that `properties` request has the time `expected`; 0 for a refusal, -1 for no timer. */
static void asks(cmq_timer *timer, const char *properties, int64_t expected_out_ms)
{
    cmq_timer_asked asked = {0};
    cmq_timer_parked parked;
    cmq_slice rest = kit_slice(properties), name, value;
    while (cmq_property_next(&rest, &name, &value)) cmq_timer_ask(&asked, name, value);
    const cmq_status status = cmq_timer_admit(timer, &asked, kit_slice("T"), 1, &parked);
    CHECK_STATUS(status, expected_out_ms > 0 ? CMQ_OK : expected_out_ms == 0 ? CMQ_ERR_ARGUMENT : CMQ_END);
    if (status == CMQ_OK) CHECK_INT(parked.out_ms, expected_out_ms);
}

static void properties_that_ask(void)
{
    cmq_store *store = open_store();
    cmq_timer *timer = make_timer(store);
    cmq_timer_parked parked;
    char text[64];
    asks(timer, "TAGS\001t\002", -1);
    asks(timer, "TIMER_DELAY_SEC\0015\002TIMER_DELAY_MS\0019000\002TIMER_DELIVER_MS\001x\002", now() + 4000);
    asks(timer, "TIMER_DELAY_MS\0011500\002", now() + 1000);
    asks(timer, "TIMER_DELAY_MS\0010\002", -1);
    asks(timer, "TIMER_DELAY_SEC\001-99999999999999999\002", -1);
    asks(timer, "TIMER_DELAY_SEC\00199999999999999999\002", 0);
    asks(timer, "TIMER_DELAY_SEC\0019223372036854775807\002", 0);
    asks(timer, "TIMER_DELAY_SEC\001259201\002", 0);
    asks(timer, "TIMER_DELAY_MS\001soon\002", 0);
    asks(timer, "TIMER_DELIVER_MS\0015\002", -1);
    asks(timer, "TIMER_DELIVER_MS\0015\002TIMER_DEL_UNIQKEY\001T+x\002", 0);
    asks(timer, "TIMER_DELAY_MS\0011500\002TIMER_OUT_MS\00117\002", -1);
    snprintf(text, sizeof text, "TIMER_DELIVER_MS\001%lld\002", (long long)now() + 3500);
    asks(timer, text, now() + 3000);
    const cmq_timer_asked asked = {.delay_sec = kit_slice("5")};
    CHECK_STATUS(cmq_timer_admit(NULL, &asked, kit_slice("T"), 1, &parked), CMQ_ERR_SETTING);
    CHECK_TEXT(cmq_last_error()->text, "accurate timer message is not enabled, timerWheelEnable is false");
    finish(timer, store);
}

static void a_congested_slot_refuses(void)
{
    cmq_store *store = open_store();
    cmq_timer_options options = timer_options(store);
    options.slot_messages = 10;
    cmq_timer *timer = make_timer_with(&options);
    const cmq_timer_asked asked = {.delay_sec = kit_slice("5")}, other = {.delay_sec = kit_slice("6")};
    cmq_timer_parked parked;
    int refused = 0;
    for (int i = 0; i < 10; i++) send_at(store, now() + 5000, "x");
    step(timer);
    CHECK_OK(cmq_timer_admit(timer, &asked, kit_slice("T"), 1, &parked));
    for (int i = 0; i < 5; i++) send_at(store, now() + 5000, "x");
    step(timer);
    for (int i = 0; i < 1000; i++)
        refused += cmq_timer_admit(timer, &asked, kit_slice("T"), 1, &parked) == CMQ_ERR_LIMIT;
    CHECK(refused > 300 && refused < 700);
    for (int i = 0; i < 5; i++) send_at(store, now() + 5000, "x");
    step(timer);
    CHECK_STATUS(cmq_timer_admit(timer, &asked, kit_slice("T"), 1, &parked), CMQ_ERR_LIMIT);
    CHECK_OK(cmq_timer_admit(timer, &other, kit_slice("T"), 1, &parked));
    finish(timer, store);
}

/* ---- delivery ---- */

static void delivered_when_its_slot_is_over(void)
{
    cmq_store *store = open_store();
    cmq_timer *timer = make_timer(store);
    const int64_t began = now();
    CHECK_INT(step(timer), INT64_MAX);
    send_at(store, began + 3000, "three");
    send_at(store, began + 1200, "one");
    CHECK_INT(step(timer), began + 2000);
    CHECK_INT(counters_of(timer).pending, 2);
    CHECK_INT(counters_of(timer).entered, 2);
    pass(1999);
    CHECK_INT(step(timer), began + 2000);
    CHECK_TEXT(delivered(store), "");
    pass(1);
    step(timer);
    CHECK_TEXT(delivered(store), "one");
    CHECK_INT(kit_max(store, "T", 2), 1);
    pass(1000);
    step(timer);
    CHECK_TEXT(delivered(store), "one three");
    CHECK_INT(counters_of(timer).delivered, 2);
    CHECK_INT(counters_of(timer).pending, 0);
    finish(timer, store);
}

static void everything_of_the_record_is_kept(void)
{
    cmq_store *store = open_store();
    cmq_timer *timer = make_timer(store);
    const int64_t began = now();
    cmq_timer_parked parked;
    cmq_appended appended;
    const cmq_timer_options plain = {0};
    const cmq_record_host born = {.address = {0x20, 1, 0xd, 0xb8, [15] = 1}, .port = 1234, .ipv6 = true};
    CHECK_OK(cmq_timer_park(&plain, kit_slice("T"), 3, began + 2500, began, &parked));
    const cmq_append append = {
        .common = {.topic = parked.topic,
                   .queue_id = 0,
                   .flag = 77,
                   .sys_flag = CMQ_SYS_COMPRESSED | CMQ_SYS_COMPRESSION_ZLIB,
                   .born_timestamp_ms = 123456,
                   .born_host = born,
                   .reconsume_times = 4},
        .count = 1,
        .bodies = {.kind = CMQ_COLUMN_ONE, .one = kit_slice("body")},
        .properties = {.kind = CMQ_COLUMN_ONE,
                       .one = kit_slice("KEYS\001k\002TAGS\001paid\002TIMER_DELAY_MS\0012500\002")},
        .properties_more = {.kind = CMQ_COLUMN_ONE, .one = parked.extra}};
    CHECK_OK(cmq_store_append(store, &append, &appended));
    step(timer);
    pass(3021);
    step(timer);
    cmq_reader *reader;
    const cmq_slice topic = kit_slice("T");
    const cmq_read_options options = {.topics = &topic, .topic_count = 1};
    bool end;
    CHECK_OK(cmq_reader_open(store, &options, &reader));
    kit_found *found = kit_found_make(10);
    CHECK_OK(cmq_reader_next(reader, &found->batch, &end));
    CHECK_INT(found->batch.count, 1);
    const cmq_record_view view = kit_view(&found->items[0]);
    char expected[512];
    snprintf(expected, sizeof expected,
             "KEYS=k TAGS=paid TIMER_DELAY_MS=2500 TIMER_OUT_MS=%lld REAL_TOPIC=T REAL_QID=3 TIMER_ENQUEUE_MS=%lld "
             "TIMER_DEQUEUE_MS=%lld",
             (long long)began + 2000, (long long)began, (long long)began + 3021);
    CHECK_TEXT(pairs(view.properties), expected);
    CHECK_INT(view.queue_id, 3);
    CHECK_INT(view.flag, 77);
    CHECK_INT(view.born_timestamp_ms, 123456);
    CHECK_INT(view.reconsume_times, 4);
    CHECK(view.born_host.ipv6 && view.born_host.port == 1234);
    CHECK_INT(view.sys_flag & CMQ_SYS_COMPRESSED, CMQ_SYS_COMPRESSED);
    kit_found_free(found);
    cmq_reader_close(reader);
    finish(timer, store);
}

static void a_slot_keeps_the_order_of_parking(void)
{
    enum { MANY = 5000 };   /* several blocks */
    cmq_store *store = open_store();
    cmq_timer *timer = make_timer(store);
    char body[16];
    for (int i = 0; i < MANY; i++) {
        snprintf(body, sizeof body, "%d", i);
        send_at(store, now() + 2000, body);
    }
    step(timer);
    CHECK_INT(counters_of(timer).pending, MANY);
    pass(2000);
    step(timer);
    CHECK_INT(kit_max(store, "T", 2), MANY);
    const char *bodies = delivered(store);
    for (int i = 0; i < MANY; i++) {
        char *end;
        CHECK_INT(strtol(bodies, &end, 10), i);
        bodies = *end == ' ' ? end + 1 : end;
    }
    CHECK_INT(*bodies, '\0');
    finish(timer, store);
}

static void late_messages_go_at_once(void)
{
    cmq_store *store = open_store();
    cmq_timer *timer = make_timer(store);
    const int64_t began = now();
    send_at(store, began + 1000, "late");
    send_deletion(store, began + 1000, "nobody");
    pass(5000);
    step(timer);
    CHECK_TEXT(delivered(store), "late");
    CHECK_INT(counters_of(timer).late, 1);
    CHECK_INT(counters_of(timer).delivered, 1);
    CHECK_INT(counters_of(timer).entered, 0);
    finish(timer, store);
}

static void late_messages_overtake_nothing(void)
{
    cmq_store *store = open_store();
    cmq_timer *timer = make_timer(store);
    const int64_t began = now();
    send_at(store, began + 2000, "first");
    send_at(store, began + 9000, "last");
    step(timer);
    pass(500);
    send_at(store, began + 3000, "late");
    pass(5000);
    step(timer);
    CHECK_TEXT(delivered(store), "first late");
    CHECK_INT(counters_of(timer).late, 1);
    finish(timer, store);
}

static void a_deletion_of_the_slot_deletes(void)
{
    cmq_store *store = open_store();
    cmq_timer *timer = make_timer(store);
    const int64_t at = now() + 3500;
    send_at(store, at, "kept");
    send_at(store, at, "recalled");
    send_deletion(store, at, "recalled");
    send_deletion(store, at + 1000, "kept");   /* of another slot */
    send_at(store, at, "by its id");
    send_deletion_by(store, at, "", "by its id");   /* as a broker of 5.5 parks it */
    step(timer);
    CHECK_INT(counters_of(timer).pending, 0);
    pass(6000);
    step(timer);
    CHECK_TEXT(delivered(store), "kept");
    CHECK_INT(counters_of(timer).recalled, 2);
    CHECK_INT(counters_of(timer).delivered, 1);
    finish(timer, store);
}

static void far_timers_are_rolled(void)
{
    cmq_store *store = open_store();
    cmq_timer_options options = timer_options(store);
    options.roll_window_slots = 30;
    cmq_timer *timer = make_timer_with(&options);
    const int64_t began = now();
    send_at(store, began + 100000, "far");
    send_deletion(store, began + 100000, "gone");
    send_at(store, began + 100000, "gone");
    send_at(store, began + 33000, "near");
    for (int second = 0; second < 99; second++) {
        step(timer);
        pass(1000);
        const char *expected = now() > began + 33000 ? "near" : "";
        CHECK_TEXT(delivered(store), expected);
    }
    step(timer);
    pass(1000);
    step(timer);
    CHECK_TEXT(delivered(store), "near far");
    CHECK_INT(counters_of(timer).rolled, 3 * 3 + 1);
    finish(timer, store);
}

/* ---- disks ---- */

static void fail_writes(int error, uint64_t times)
{
    const cmq_twin_fault fault = {.kind = CMQ_TWIN_ANY_CHANGE, .nth = 1, .times = times, .sys_errno = error};
    cmq_file_twin_fail(twin, &fault);
}

static void a_full_disk_is_waited_for(void)
{
    cmq_store *store = open_twin_store();
    cmq_timer *timer = make_timer(store);
    int64_t next_due_ms;
    send_at(store, now() + 2000, "a");
    send_at(store, now() + 2000, "b");
    fail_writes(ENOSPC, 0);
    CHECK_STATUS(cmq_timer_step(timer, &next_due_ms), CMQ_ERR_DISK_FULL);
    CHECK_INT(next_due_ms, now() + 1000);
    CHECK_INT(counters_of(timer).state, CMQ_TIMER_RETRYING);
    CHECK(!cmq_timer_caught_up(timer));
    cmq_file_twin_clear_faults(twin);
    pass(1000);
    step(timer);
    CHECK(cmq_timer_caught_up(timer));
    CHECK_INT(counters_of(timer).pending, 2);
    pass(1000);
    step(timer);
    CHECK_TEXT(delivered(store), "a b");
    finish(timer, store);
}

static void a_failing_disk_stops_it(void)
{
    cmq_store *store = open_twin_store();
    cmq_timer *timer = make_timer(store);
    int64_t next_due_ms;
    send_at(store, now() + 2000, "a");
    fail_writes(EIO, 0);
    CHECK_STATUS(cmq_timer_step(timer, &next_due_ms), CMQ_ERR_FENCED);
    CHECK_INT(next_due_ms, INT64_MAX);
    CHECK_INT(counters_of(timer).state, CMQ_TIMER_FENCED);
    cmq_file_twin_clear_faults(twin);
    CHECK_OK(cmq_timer_stop(timer));
    cmq_timer_destroy(timer);
    kit_close(store);
    store = open_again();
    timer = make_timer(store);
    pass(5000);
    step(timer);
    CHECK_TEXT(delivered(store), "a");
    finish(timer, store);
}

/* ---- recovery ---- */

/* Leave without a word, as kill -9 does, with the files as they are; the store is reopened. */
static cmq_store *crash(cmq_timer *timer, cmq_store *store)
{
    cmq_timer_destroy(timer);
    kit_close(store);
    return open_again();
}

static void timers_outlive_everything(void)
{
    cmq_store *store = open_store();
    cmq_timer *timer = make_timer(store);
    const int64_t began = now();
    char body[16];
    for (int i = 0; i < 35; i++) {   /* several files of the log */
        snprintf(body, sizeof body, "%d", i);
        send_at(store, began + 2000 + i % 5 * 1000, body);
        if (i % 10 == 4) step(timer);
        pass(10);
    }
    step(timer);
    store = crash(timer, store);   /* messages after the last flush are read from the queue again, and are there once */
    timer = make_timer(store);
    step(timer);
    CHECK_INT(counters_of(timer).pending, 35);
    pass(2650);
    step(timer);
    CHECK_INT(kit_max(store, "T", 2), 14);
    stop(timer);
    kit_close(store);
    store = open_again();
    timer = make_timer(store);
    CHECK_INT(counters_of(timer).pending, 21);
    pass(20000);
    step(timer);
    CHECK_TEXT(delivered(store),
               "0 5 10 15 20 25 30 1 6 11 16 21 26 31 2 7 12 17 22 27 32 3 8 13 18 23 28 33 4 9 14 19 24 29 34");
    CHECK_INT(counters_of(timer).late, 0);
    finish(timer, store);
}

static void down_for_a_month(void)
{
    cmq_store *store = open_store();
    cmq_timer *timer = make_timer(store);
    send_at(store, now() + 5000, "old");
    step(timer);
    stop(timer);
    pass(INT64_C(31) * 86400 * 1000);
    timer = make_timer(store);
    send_at(store, now() + 5000, "new");
    step(timer);
    CHECK_TEXT(delivered(store), "old");
    pass(6000);
    step(timer);
    CHECK_TEXT(delivered(store), "old new");
    finish(timer, store);
}

/* A slot whose place in the wheel still has a timer of 14 days ago. */
static void a_slot_is_not_written_over_before_it_was_delivered(void)
{
    cmq_store *store = open_twin_store();
    cmq_timer *timer = make_timer(store);
    const int64_t turn_ms = INT64_C(1000) * CMQ_TIMER_SLOTS;
    int64_t next_due_ms;
    send_at(store, now() + 5000, "old");
    step(timer);
    pass(turn_ms);
    send_at(store, now() + 5000, "new");
    const cmq_disk_space full = {.total_bytes = 1 << 30};
    cmq_file_twin_set_disk_space(twin, &full);
    CHECK_INT(counters_of(timer).pending, 1);
    cmq_file_twin_set_disk_space(twin, NULL);
    CHECK_OK(cmq_timer_step(timer, &next_due_ms));
    CHECK_TEXT(delivered(store), "old");
    CHECK_INT(counters_of(timer).pending, 1);
    pass(5000);
    step(timer);
    CHECK_TEXT(delivered(store), "old new");
    finish(timer, store);
}

static void lost_files_are_made_again(void)
{
    static const char *const lost[] = {"timerwheel", "timerlog", "config/timercheck"};
    for (unsigned which = 1; which < 8; which++) {
        cmq_store *store = open_store();
        cmq_timer *timer = make_timer(store);
        send_at(store, now() + 2000, "first");
        step(timer);
        pass(3000);
        step(timer);
        send_at(store, now() + 5000, "second");
        send_at(store, now() + 6000, "third");
        step(timer);
        pass(1000);
        step(timer);
        stop(timer);
        kit_close(store);
        for (unsigned i = 0; i < 3; i++)
            if ((which & 1u << i) != 0) kit_remove_tree(kit_path(root, lost[i]));
        store = open_again();
        timer = make_timer(store);
        pass(10000);
        step(timer);
        /* Without the check nobody knows that the first was delivered. */
        CHECK_TEXT(delivered(store), (which & 4) != 0 ? "first first second third" : "first second third");
        finish(timer, store);
        kit_remove_tree(root);
    }
}

static void another_precision(void)
{
    cmq_store *store = open_store();
    cmq_timer *timer = make_timer(store);
    send_at(store, now() + 20000, "b");
    send_at(store, now() + 10000, "a");
    step(timer);
    stop(timer);
    static const int32_t precisions[] = {1, 100, 60000, 1000};
    for (size_t i = 0; i < 4; i++) {
        cmq_timer_options options = timer_options(store);
        options.precision_ms = precisions[i];
        timer = make_timer_with(&options);
        step(timer);
        CHECK_INT(counters_of(timer).pending, 2);
        stop(timer);
    }
    timer = make_timer(store);
    pass(15000);
    step(timer);
    CHECK_TEXT(delivered(store), "a");
    pass(5000);
    step(timer);
    CHECK_TEXT(delivered(store), "a b");
    finish(timer, store);
}

static void old_log_files_go(void)
{
    cmq_store *store = open_store();
    cmq_timer *timer = make_timer(store);
    for (int i = 0; i < 200; i++) send_at(store, now() + 2000, "x");
    step(timer);
    pass(2000);
    step(timer);
    CHECK(kit_exists(kit_path(root, "timerlog/00000000000000000000")));
    kit_append_many(store, "filler", "some more bytes for the segments, of which every one but the last goes", 600);
    uint32_t deleted;
    CHECK_OK(cmq_store_maintain(store, true));
    CHECK_OK(cmq_store_expire(store, true, &deleted));
    CHECK(deleted > 0);
    send_at(store, now() + 2000, "last");
    pass(40000);
    step(timer);
    CHECK(!kit_exists(kit_path(root, "timerlog/00000000000000000000")));
    stop(timer);
    kit_close(store);
    store = open_again();
    timer = make_timer(store);
    CHECK_INT(counters_of(timer).pending, 0);
    finish(timer, store);
}

/* Records that no timer can be: each is passed over, and what comes behind is delivered. */
static void undeliverable_timers(void)
{
    cmq_store *store = open_store();
    cmq_timer *timer = make_timer(store);
    char bad[512];
    const long long out = (long long)now() + 2000;
    append_to(store, kit_slice(CMQ_TOPIC_TIMER), 0, "", CMQ_SLICE_NONE, "no properties");
    append_to(store, kit_slice(CMQ_TOPIC_TIMER), 0, "TIMER_OUT_MS\001soon\002", CMQ_SLICE_NONE, "no number");
    static const char *const targets[] = {"", "REAL_TOPIC\001T\002", "REAL_TOPIC\001T\002REAL_QID\001-1\002",
                                          "REAL_TOPIC\001rmq_sys_wheel_timer\002REAL_QID\0010\002",
                                          "REAL_TOPIC\001RMQ_SYS_TRANS_HALF_TOPIC\002REAL_QID\0010\002"};
    for (size_t i = 0; i < sizeof targets / sizeof *targets; i++) {
        snprintf(bad, sizeof bad, "TIMER_OUT_MS\001%lld\002%s", out, targets[i]);
        append_to(store, kit_slice(CMQ_TOPIC_TIMER), 0, bad, CMQ_SLICE_NONE, "bad");
    }
    send_at(store, now() + 3000, "good");
    step(timer);
    pass(3000);
    step(timer);
    CHECK_TEXT(delivered(store), "good");
    CHECK_INT(counters_of(timer).skipped, 7);
    CHECK_INT(counters_of(timer).pending, 0);
    finish(timer, store);
}

/* ---- damage ---- */

/* A unit that reads as zeros, one that names none before it, and one that names another slot's: the others of the slot
 * are delivered, once each. */
static void a_damaged_unit_hides_no_others(void)
{
    static const int64_t places[] = {0, 4, 4};   /* the whole unit; the position of the one before */
    static const int64_t values[] = {0, -1, CMQ_TIMER_UNIT_BYTES};
    static const char *const expected[] = {"a0 a1 a3", "a0 a1 a2 a3", "a0 a1 a2 a3"};
    for (int way = 0; way < 3; way++) {
        cmq_store *store = open_store();
        cmq_timer *timer = make_timer(store);
        char body[16];
        uint8_t bytes[8];
        for (int i = 0; i < 8; i++) {
            snprintf(body, sizeof body, "%c%d", i % 2 == 0 ? 'a' : 'b', i / 2);
            send_at(store, now() + (i % 2 == 0 ? 5000 : 9000), body);
        }
        step(timer);
        pass(2000);
        step(timer);   /* written */
        cmq_store_i64(bytes, values[way]);
        kit_write_bytes(kit_path(root, "timerlog/00000000000000000000"), 4 * CMQ_TIMER_UNIT_BYTES + places[way], bytes,
                        sizeof bytes);
        pass(3000);
        step(timer);
        CHECK_TEXT(delivered(store), expected[way]);
        pass(4000);
        step(timer);
        CHECK_INT(kit_max(store, "T", 2), way == 0 ? 7 : 8);
        finish(timer, store);
    }
}

/* A damaged slot of a time that is more milliseconds away than can be counted: its timer is entered again. */
static void a_slot_beyond_all_time(void)
{
    cmq_store *store = open_store();
    cmq_timer *timer = make_timer(store);
    send_at(store, now() + 5000, "a");
    for (int i = 0; i < 40; i++) send_at(store, now() + 6000, "b");   /* several files of the log */
    step(timer);
    const int64_t number = (now() + 4999) / 1000,
                  beyond = number + INT64_C(12000000000000000) / CMQ_TIMER_SLOTS * CMQ_TIMER_SLOTS;
    stop(timer);
    kit_close(store);
    uint8_t bytes[8];
    cmq_store_i64(bytes, beyond);
    kit_write_bytes(kit_path(root, "timerwheel"), number % CMQ_TIMER_SLOTS * CMQ_TIMER_SLOT_BYTES, bytes, sizeof bytes);
    store = open_again();
    timer = make_timer(store);
    CHECK_INT(counters_of(timer).read_behind_ms, 0);
    CHECK(counters_of(timer).remade);
    step(timer);
    CHECK_INT(counters_of(timer).pending, 41);
    pass(7000);
    step(timer);
    CHECK_INT(counters_of(timer).pending, 0);
    CHECK_INT(kit_max(store, "T", 2), 41);
    finish(timer, store);
}

/* Files of random damage: it opens and goes on, or says what is wrong; it never hangs, nor delivers what nobody
 * sent. */
static void damaged_files(void)
{
    static const char *const files[] = {"timerwheel", "timerlog/00000000000000000000", "timerlog/00000000000000000543",
                                        "config/timercheck"};
    const char *directory = kit_directory();
    const uint64_t rounds = kit_amount("CMQ_DAMAGE_ROUNDS", 60, 5000);
    for (uint64_t round = 0; round < rounds; round++) {
        cmq_store *store = open_store_in(directory);
        cmq_timer *timer = make_timer(store);
        for (int i = 0; i < 15; i++) send_at(store, now() + 3000 + i % 3 * 1000, "x");
        step(timer);
        pass(1000);
        stop(timer);
        kit_close(store);
        for (uint64_t damages = 1 + cmq_test_random_below(4); damages > 0; damages--) {
            const char *path = kit_path(root, files[cmq_test_random_below(4)]);
            const int64_t bytes = kit_file_bytes(path),
                          at = strstr(path, "wheel") != NULL ? (now() / 1000 + 2) % CMQ_TIMER_SLOTS * 32 : 0;
            const int64_t flipped = at + (int64_t)cmq_test_random_below(at > 0 ? 96 : 600);
            if (bytes > 0 && cmq_test_random_below(8) == 0)
                kit_resize(path, (int64_t)cmq_test_random_below((uint64_t)bytes + 1));
            else if (flipped < bytes) kit_flip(path, flipped, (uint8_t)(1u << cmq_test_random_below(8)));
        }
        store = open_again();
        const cmq_timer_options options = timer_options(store);
        const cmq_status status = cmq_timer_create(&timer, &options);
        if (status == CMQ_OK) {
            CHECK_OK(cmq_timer_start(timer));
            pass(60000);
            step(timer);
            const char *bodies = delivered(store);
            for (; *bodies != '\0'; bodies++) CHECK(*bodies == 'x' || *bodies == ' ');
            stop(timer);
        } else {
            CHECK(status == CMQ_ERR_SETTING || status == CMQ_ERR_NOT_STORE || status == CMQ_ERR_CORRUPT);
        }
        kit_close(store);
        kit_remove_tree(root);
    }
}

/* ---- the thread ---- */

static void the_thread_delivers(void)
{
    cmq_store *store = open_store();
    cmq_timer *timer;
    const cmq_timer_options options = {.store = store, .precision_ms = 1};
    const cmq_clock clock = cmq_clock_system();
    CHECK_OK(cmq_timer_create(&timer, &options));
    CHECK_OK(cmq_timer_start(timer));
    const int64_t due_ms = cmq_clock_now_ms(&clock) + 50;
    cmq_timer_parked parked;
    CHECK_OK(cmq_timer_park(&options, kit_slice("T"), 2, due_ms, cmq_clock_now_ms(&clock), &parked));
    append_to(store, parked.topic, 0, "", parked.extra, "x");
    int64_t seen_end = cmq_store_confirmed(store);
    while (cmq_queues_find(cmq_store_queues(store), kit_slice("T"), 2) == NULL || kit_max(store, "T", 2) == 0) {
        CHECK_OK(cmq_store_wait_more(store, seen_end, PATIENCE_S * 1000));
        seen_end = cmq_store_confirmed(store);
    }
    CHECK(cmq_clock_now_ms(&clock) >= due_ms);
    CHECK_OK(cmq_timer_stop(timer));
    CHECK_INT(counters_of(timer).delivered, 1);
    cmq_timer_destroy(timer);
    kit_close(store);
}

CMQ_TEST_MAIN(CMQ_TEST(parking_by_time), CMQ_TEST(properties_that_ask), CMQ_TEST(a_congested_slot_refuses),
              CMQ_TEST(delivered_when_its_slot_is_over), CMQ_TEST(everything_of_the_record_is_kept),
              CMQ_TEST(a_slot_keeps_the_order_of_parking), CMQ_TEST(late_messages_go_at_once),
              CMQ_TEST(late_messages_overtake_nothing), CMQ_TEST(a_deletion_of_the_slot_deletes),
              CMQ_TEST(far_timers_are_rolled),
              CMQ_TEST(a_full_disk_is_waited_for), CMQ_TEST(a_failing_disk_stops_it),
              CMQ_TEST(timers_outlive_everything), CMQ_TEST(down_for_a_month),
              CMQ_TEST(a_slot_is_not_written_over_before_it_was_delivered), CMQ_TEST(lost_files_are_made_again),
              CMQ_TEST(another_precision), CMQ_TEST(old_log_files_go), CMQ_TEST(undeliverable_timers),
              CMQ_TEST(a_damaged_unit_hides_no_others),
              CMQ_TEST(a_slot_beyond_all_time), CMQ_TEST(damaged_files), CMQ_TEST(the_thread_delivers))
