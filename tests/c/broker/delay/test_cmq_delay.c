/* Tests csrc/broker/delay/cmq_delay.c and cmq_delay_record.c: parking, delivery at its time, progress, undeliverable
 * messages, full and failing disks, recovery by a mark; the thread. Messages that real brokers parked and delivered:
 * tests/golden/golden_delay.c. Threads: yes. */
#include "broker/delay/cmq_delay.h"

#include <errno.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "broker/delay/cmq_delay_record.h"
#include "store/follow/cmq_watch.h"
#include "support/cmq_file_twin.h"
#include "support/cmq_store_kit.h"

#define PATIENCE_S 60   /* a wait that lasts so long has missed its wake-up */

static char root[CMQ_PATH_BYTES];
static cmq_file_twin *twin;

static cmq_store_options options_of(void)
{
    cmq_store_options options = kit_options(root);
    options.delay_levels = "1s 5s 1m";
    if (twin != NULL) options.fs = cmq_file_twin_fs(twin);
    return options;
}

static cmq_store *open_store(void)
{
    kit_set_clock();
    twin = NULL;
    CHECK_OK(cmq_path_join(root, kit_directory(), "store"));
    const cmq_store_options options = options_of();
    return kit_open(&options);
}

/* Over files that can be made to fail. */
static cmq_store *open_twin_store(void)
{
    kit_set_clock();
    CHECK_OK(cmq_path_join(root, kit_directory(), "store"));
    CHECK_OK(cmq_fs_make_directory(cmq_fs_posix(), root));
    twin = cmq_file_twin_create(root, cmq_test_seed());
    const cmq_store_options options = options_of();
    return kit_open(&options);
}

static cmq_delay *make_delay(cmq_store *store)
{
    cmq_delay *delay;
    const cmq_delay_options options = {.store = store, .clock = kit_clock(), .manual = true};
    CHECK_OK(cmq_delay_create(&delay, &options));
    return delay;
}

static int64_t now(void) { return atomic_load(&kit_now_ms); }
static void pass(int64_t ms) { atomic_fetch_add(&kit_now_ms, ms); }

/* Send a message with a DELAY, as the broker does; further properties in `more`. */
static void send_delayed(cmq_store *store, const char *topic, int32_t queue_id, const char *level, const char *body,
                         const char *more)
{
    uint8_t properties[1024];
    size_t used = 0;
    cmq_delay_parked parked;
    cmq_appended appended;
    CHECK_OK(cmq_property_append(properties, sizeof properties, &used, kit_slice("DELAY"), kit_slice(level)));
    memcpy(properties + used, more, strlen(more));
    used += strlen(more);
    CHECK_OK(cmq_delay_park(cmq_store_delay_levels(store), kit_slice(topic), queue_id, 0, kit_slice(level), &parked));
    const cmq_append append = {.common = {.topic = parked.topic, .queue_id = parked.queue_id},
                               .count = 1,
                               .bodies = {.kind = CMQ_COLUMN_ONE, .one = kit_slice(body)},
                               .properties = {.kind = CMQ_COLUMN_ONE, .one = {.data = properties, .bytes = used}},
                               .properties_more = {.kind = CMQ_COLUMN_ONE, .one = parked.extra}};
    CHECK_OK(cmq_store_append(store, &append, &appended));
}

/* Append to a level's queue whatever it is. */
static void park_raw(cmq_store *store, int32_t level, const char *properties)
{
    cmq_appended appended;
    const cmq_append append = {.common = {.topic = kit_slice(CMQ_TOPIC_SCHEDULE), .queue_id = level - 1},
                               .count = 1,
                               .properties = {.kind = CMQ_COLUMN_ONE, .one = kit_slice(properties)}};
    CHECK_OK(cmq_store_append(store, &append, &appended));
}

static int64_t step(cmq_delay *delay)
{
    int64_t next_due_ms;
    CHECK_OK(cmq_delay_step(delay, &next_due_ms));
    return next_due_ms;
}

static cmq_delay_counters counters_of(cmq_delay *delay)
{
    cmq_delay_counters counters;
    cmq_delay_count(delay, &counters);
    return counters;
}

static cmq_delay_progress progress_of(cmq_delay *delay)
{
    cmq_delay_progress progress;
    cmq_delay_progress_of(delay, &progress);
    return progress;
}

static void finish(cmq_delay *delay, cmq_store *store)
{
    cmq_delay_destroy(delay);
    kit_close(store);
    cmq_file_twin_close(twin);
}

/* ---- parking ---- */

static const char *pairs(cmq_slice properties)
{
    static char text[1024];
    size_t used = 0;
    cmq_slice name, value;
    text[0] = '\0';
    while (cmq_property_next(&properties, &name, &value))
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%.*s=%.*s", used > 0 ? " " : "", (int)name.bytes,
                                 (const char *)name.data, (int)value.bytes, (const char *)value.data);
    return text;
}

static void parking_by_level(void)
{
    cmq_delay_levels levels;
    cmq_delay_parked parked;
    CHECK_OK(cmq_delay_levels_parse(cmq_slice_of_text(CMQ_DELAY_LEVELS_DEFAULT), &levels));
    CHECK_OK(cmq_delay_park(&levels, kit_slice("orders"), 7, 0, kit_slice("3"), &parked));
    CHECK_BYTES(parked.topic.data, parked.topic.bytes, "SCHEDULE_TOPIC_XXXX", 19);
    CHECK_INT(parked.queue_id, 2);
    CHECK_INT(parked.level, 3);
    CHECK_TEXT(pairs(parked.extra), "REAL_TOPIC=orders REAL_QID=7");
    CHECK_OK(cmq_delay_park(&levels, kit_slice("orders"), 0, CMQ_SYS_TRANSACTION_COMMIT, kit_slice("99"), &parked));
    CHECK_INT(parked.level, 18);
    CHECK_TEXT(pairs(parked.extra), "REAL_TOPIC=orders REAL_QID=0 DELAY=18");
    static const char *const none[] = {"0", "-1", "", "x", "99999999999"};
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++)
        CHECK_STATUS(cmq_delay_park(&levels, kit_slice("orders"), 0, 0, kit_slice(none[i]), &parked), CMQ_END);
    CHECK_STATUS(cmq_delay_park(&levels, kit_slice("orders"), 0, CMQ_SYS_TRANSACTION_PREPARED, kit_slice("3"), &parked),
                 CMQ_END);
    CHECK_STATUS(cmq_delay_park(&levels, kit_slice("orders"), 0, CMQ_SYS_TRANSACTION_ROLLBACK, kit_slice("3"), &parked),
                 CMQ_END);
    char topic[257];
    memset(topic, 't', sizeof topic);
    const cmq_slice longest = {.data = (uint8_t *)topic, .bytes = 255},
                    longer = {.data = (uint8_t *)topic, .bytes = 256};
    CHECK_OK(cmq_delay_park(&levels, longest, INT32_MAX, 0, kit_slice("1000"), &parked));
    CHECK(parked.extra.bytes <= sizeof parked.bytes);
    CHECK_STATUS(cmq_delay_park(&levels, longer, 0, 0, kit_slice("1"), &parked), CMQ_ERR_TOPIC);
    CHECK_STATUS(cmq_delay_park(&levels, CMQ_SLICE_NONE, 0, 0, kit_slice("1"), &parked), CMQ_ERR_TOPIC);
}

/* ---- delivery ---- */

static void delivered_at_its_time(void)
{
    cmq_store *store = open_store();
    cmq_delay *delay = make_delay(store);
    const int64_t began = now();
    CHECK_INT(step(delay), INT64_MAX);
    send_delayed(store, "T", 2, "2", "five seconds", "");
    send_delayed(store, "T", 2, "1", "one second", "");
    CHECK_INT(step(delay), began + 1000);
    pass(999);
    CHECK_INT(step(delay), began + 1000);
    CHECK_TEXT(kit_read_all(store), "five seconds one second");
    pass(1);
    CHECK_INT(step(delay), began + 5000);
    CHECK_TEXT(kit_read_topic(store, "T"), "one second");
    CHECK_INT(kit_max(store, "T", 2), 1);
    send_delayed(store, "T", 2, "1", "one more", "");
    CHECK_INT(step(delay), began + 2000);
    pass(10000);
    CHECK_INT(step(delay), INT64_MAX);
    CHECK_TEXT(kit_read_topic(store, "T"), "one second one more five seconds");
    CHECK_INT(step(delay), INT64_MAX);
    CHECK_INT(counters_of(delay).delivered, 3);
    CHECK_INT(counters_of(delay).state, CMQ_DELAY_RUNNING);
    finish(delay, store);
}

static void everything_of_the_record_is_kept(void)
{
    cmq_store *store = open_store();
    cmq_delay *delay = make_delay(store);
    const char properties[] =
        "KEYS\001k\002DELAY\0011\002TAGS\001paid\002REAL_TOPIC\001T\002REAL_QID\0013\002own\001value\002";
    const cmq_record_host born = {.address = {0x20, 1, 0xd, 0xb8, [15] = 1}, .port = 1234, .ipv6 = true};
    const cmq_record_host stored = {.address = {10, 0, 0, 1}, .port = 10911};
    const cmq_append append = {
        .common = {.topic = kit_slice(CMQ_TOPIC_SCHEDULE),
                   .queue_id = 0,
                   .flag = 77,
                   .sys_flag = CMQ_SYS_COMPRESSED | CMQ_SYS_COMPRESSION_ZLIB | CMQ_SYS_TRANSACTION_COMMIT,
                   .born_timestamp_ms = 123456,
                   .born_host = born,
                   .store_host = stored,
                   .reconsume_times = 4},
        .count = 1,
        .bodies = {.kind = CMQ_COLUMN_ONE, .one = kit_slice("body")},
        .properties = {.kind = CMQ_COLUMN_ONE, .one = kit_slice(properties)}};
    cmq_appended appended;
    CHECK_OK(cmq_store_append(store, &append, &appended));
    pass(1000);
    step(delay);
    cmq_queue *queue = cmq_queues_find(cmq_store_queues(store), kit_slice("T"), 3);
    cmq_unit unit;
    uint32_t count;
    int64_t next;
    CHECK(queue != NULL);
    CHECK_OK(cmq_queue_read(queue, 0, cmq_store_confirmed(store), &unit, 1, &count, &next));
    CHECK_INT(count, 1);
    CHECK_INT(unit.tags_code, 3433164);   /* "paid".hashCode(): the tag is a tag again */
    kit_found *found = kit_found_make(1);
    cmq_record_view view;
    CHECK_OK(cmq_store_read_physical(store, unit.phy, &found->batch));
    CHECK_OK(cmq_record_parse(found->items[0].record, found->items[0].record_bytes, unit.phy, CMQ_RECORD_CHECK_BODY_CRC,
                              &view));
    CHECK_INT(view.flag, 77);
    CHECK_INT(view.sys_flag & ~CMQ_SYS_BORN_HOST_IPV6, append.common.sys_flag);
    CHECK_INT(view.born_timestamp_ms, 123456);
    CHECK_INT(view.store_timestamp_ms, now());
    CHECK_INT(view.reconsume_times, 4);
    CHECK(view.born_host.ipv6 && !view.store_host.ipv6);
    CHECK_BYTES(view.born_host.address, 16, born.address, 16);
    CHECK_BYTES(view.store_host.address, 16, stored.address, 16);
    CHECK_INT(view.born_host.port, 1234);
    CHECK_INT(view.store_host.port, 10911);
    CHECK_BYTES(view.body.data, view.body.bytes, "body", 4);
    CHECK_BYTES(view.properties.data, view.properties.bytes, properties, strlen(properties));
    kit_found_free(found);
    finish(delay, store);
}

/* The store's own CRC of properties is computed again, and is there once. */
static void property_crc_is_computed_again(void)
{
    kit_set_clock();
    twin = NULL;
    CHECK_OK(cmq_path_join(root, kit_directory(), "store"));
    cmq_store_options options = options_of();
    options.property_crc = true;
    options.check_property_crc = true;
    cmq_store *store = kit_open(&options);
    cmq_delay *delay = make_delay(store);
    send_delayed(store, "T", 0, "1", "b", "own\001value\002");
    pass(1000);
    step(delay);
    CHECK_INT(counters_of(delay).skipped, 0);
    kit_found *found = kit_found_make(1);
    CHECK_OK(cmq_store_read_offset(store, kit_slice("T"), 0, 0, &found->batch));
    cmq_record_view view;
    CHECK_OK(cmq_record_parse(found->items[0].record, found->items[0].record_bytes, -1, CMQ_RECORD_CHECK_PROPERTY_CRC,
                              &view));
    CHECK(strstr(pairs(view.properties), "DELAY=1 own=value REAL_TOPIC=T REAL_QID=0 __CRC32#=") ==
          pairs(view.properties));
    kit_found_free(found);
    finish(delay, store);
}

static void many_in_batches(void)
{
    enum { COUNT = 5000 };   /* more than two batches of a level */
    cmq_store *store = open_store();
    cmq_delay *delay = make_delay(store);
    char body[32];
    for (int i = 0; i < COUNT; i++) {
        snprintf(body, sizeof body, "m%d", i);
        send_delayed(store, "T", i % 4, i % 3 == 0 ? "1" : "2", body, "");
    }
    pass(5000);
    CHECK_INT(step(delay), INT64_MAX);
    CHECK_INT(counters_of(delay).delivered, COUNT);
    int64_t all = 0;
    for (int q = 0; q < 4; q++) all += kit_max(store, "T", q);
    CHECK_INT(all, COUNT);
    CHECK_INT(progress_of(delay).offsets[1], (COUNT + 2) / 3);
    CHECK_INT(progress_of(delay).offsets[2], COUNT - (COUNT + 2) / 3);
    CHECK_INT(progress_of(delay).version, COUNT / 200);
    finish(delay, store);
}

/* A deliver time further away than the level waits was made by another clock, or under other levels: it is due. */
static void a_clock_that_stepped_back_holds_nothing_up(void)
{
    cmq_store *store = open_store();
    cmq_delay *delay = make_delay(store);
    send_delayed(store, "T", 0, "1", "early", "");
    pass(-3600000);
    CHECK_INT(step(delay), INT64_MAX);
    CHECK_TEXT(kit_read_topic(store, "T"), "early");
    finish(delay, store);
}

static void undeliverable_messages_are_passed_over(void)
{
    cmq_store *store = open_store();
    cmq_delay *delay = make_delay(store);
    park_raw(store, 1, "DELAY\0011\002");
    park_raw(store, 1, "DELAY\0011\002REAL_TOPIC\001T\002REAL_QID\001x\002");
    park_raw(store, 1, "DELAY\0011\002REAL_TOPIC\001T\002REAL_QID\001-1\002");
    park_raw(store, 1, "DELAY\0011\002REAL_TOPIC\001no/topic\002REAL_QID\0010\002");
    park_raw(store, 1, "DELAY\0011\002REAL_TOPIC\001RMQ_SYS_TRANS_HALF_TOPIC\002REAL_QID\0010\002");
    park_raw(store, 1, "DELAY\0011\002REAL_TOPIC\001SCHEDULE_TOPIC_XXXX\002REAL_QID\0010\002");
    const cmq_append damaged = {
        .common = {.topic = kit_slice(CMQ_TOPIC_SCHEDULE), .has_body_crc = true, .body_crc = 1},
        .count = 1,
        .bodies = {.kind = CMQ_COLUMN_ONE, .one = kit_slice("not what it was")},
        .properties = {.kind = CMQ_COLUMN_ONE, .one = kit_slice("DELAY\0011\002REAL_TOPIC\001T\002REAL_QID\0010\002")}};
    cmq_appended appended;
    CHECK_OK(cmq_store_append(store, &damaged, &appended));
    send_delayed(store, "T", 0, "1", "good", "");
    pass(1000);
    CHECK_INT(step(delay), INT64_MAX);
    CHECK_TEXT(kit_read_topic(store, "T"), "good");
    CHECK_INT(counters_of(delay).skipped, 7);
    CHECK_INT(counters_of(delay).delivered, 1);
    CHECK_INT(progress_of(delay).offsets[1], 8);
    finish(delay, store);
}

/* Parked records that expired while nobody delivered: on to the first that is there. */
static void expired_records_are_gone(void)
{
    cmq_store *store = open_store();
    char body[4000];
    uint32_t deleted;
    memset(body, 'b', sizeof body - 1);
    body[sizeof body - 1] = '\0';
    for (int i = 0; i < 12; i++) send_delayed(store, "T", 0, "1", body, "");
    CHECK_OK(cmq_store_maintain(store, true));
    CHECK_OK(cmq_store_expire(store, true, &deleted));
    CHECK(deleted > 0);
    const int64_t left = 12 - kit_min(store, CMQ_TOPIC_SCHEDULE, 0);
    CHECK(left < 12);
    cmq_delay *delay = make_delay(store);
    pass(1000);
    step(delay);
    CHECK_INT(counters_of(delay).delivered, left);
    CHECK_INT(progress_of(delay).offsets[1], 12);
    finish(delay, store);
}

/* ---- progress ---- */

static void progress_is_kept_by_the_caller(void)
{
    cmq_store *store = open_store();
    cmq_delay *delay = make_delay(store);
    CHECK_INT(progress_of(delay).level_max, 3);
    for (int level = 1; level <= 3; level++) CHECK_INT(progress_of(delay).offsets[level], -1);
    send_delayed(store, "T", 0, "1", "a", "");
    send_delayed(store, "T", 0, "1", "b", "");
    send_delayed(store, "T", 0, "3", "c", "");
    step(delay);
    CHECK_INT(progress_of(delay).offsets[1], 0);
    CHECK_INT(progress_of(delay).offsets[2], -1);
    CHECK_INT(progress_of(delay).offsets[3], 0);
    cmq_delay_destroy(delay);

    delay = make_delay(store);
    CHECK_OK(cmq_delay_set_progress(delay, 1, 1));
    CHECK_OK(cmq_delay_set_progress(delay, 3, 500));   /* beyond its queue: moved into it */
    CHECK_OK(cmq_delay_set_progress(delay, 2, 3));     /* no such queue yet */
    CHECK_STATUS(cmq_delay_set_progress(delay, 0, 1), CMQ_ERR_ARGUMENT);
    CHECK_STATUS(cmq_delay_set_progress(delay, 4, 1), CMQ_ERR_ARGUMENT);
    CHECK_STATUS(cmq_delay_set_progress(delay, 1, -1), CMQ_ERR_ARGUMENT);
    pass(60000);
    step(delay);
    CHECK_TEXT(kit_read_topic(store, "T"), "b");
    CHECK_INT(progress_of(delay).offsets[1], 2);
    CHECK_INT(progress_of(delay).offsets[2], 3);
    CHECK_INT(progress_of(delay).offsets[3], 1);
    finish(delay, store);
}

/* ---- failures ---- */

static void a_full_disk_is_waited_for(void)
{
    cmq_store *store = open_twin_store();
    cmq_delay *delay = make_delay(store);
    char body[3000];
    int64_t next_due_ms;
    memset(body, 'b', sizeof body - 1);
    body[sizeof body - 1] = '\0';
    for (int i = 0; i < 20; i++) send_delayed(store, "T", 0, "1", body, "");
    pass(1000);
    const cmq_twin_fault full = {.kind = CMQ_TWIN_RESERVE, .nth = 1, .sys_errno = ENOSPC};
    cmq_file_twin_fail(twin, &full);
    CHECK_STATUS(cmq_delay_step(delay, &next_due_ms), CMQ_ERR_DISK_FULL);
    CHECK_INT(next_due_ms, now() + 1000);
    CHECK_INT(counters_of(delay).state, CMQ_DELAY_RETRYING);
    CHECK_INT(counters_of(delay).status, CMQ_ERR_DISK_FULL);
    const uint64_t delivered = counters_of(delay).delivered;
    CHECK(delivered < 20);
    CHECK_INT(progress_of(delay).offsets[1], (int64_t)delivered);
    cmq_file_twin_clear_faults(twin);
    pass(1000);
    CHECK_INT(step(delay), INT64_MAX);
    CHECK_INT(counters_of(delay).delivered, 20);
    CHECK_INT(counters_of(delay).skipped, 0);
    CHECK_INT(counters_of(delay).state, CMQ_DELAY_RUNNING);
    CHECK_INT(kit_max(store, "T", 0), 20);
    finish(delay, store);
}

static void a_fenced_store_ends_it(void)
{
    cmq_store *store = open_twin_store();
    cmq_delay *delay = make_delay(store);
    int64_t next_due_ms, deliveries;
    cmq_delay_mark mark;
    send_delayed(store, "T", 0, "1", "a", "");
    cmq_delay_mark_of(delay, &mark);
    pass(1000);
    const cmq_twin_fault failing = {.kind = CMQ_TWIN_SYNC, .nth = 1, .times = 1, .sys_errno = EIO};
    cmq_file_twin_fail(twin, &failing);
    CHECK_STATUS(cmq_delay_step(delay, &next_due_ms), CMQ_ERR_FENCED);
    CHECK_INT(next_due_ms, INT64_MAX);
    CHECK_INT(counters_of(delay).state, CMQ_DELAY_FENCED);
    CHECK_INT(counters_of(delay).delivered, 0);
    CHECK_INT(progress_of(delay).offsets[1], 0);   /* it was not delivered: the next life does it */
    cmq_delay_stop(delay);
    CHECK_INT(counters_of(delay).state, CMQ_DELAY_FENCED);
    cmq_delay_destroy(delay);
    CHECK_STATUS(cmq_store_close(store), CMQ_ERR_FENCED);
    cmq_file_twin_close(twin);

    twin = NULL;
    const cmq_store_options options = options_of();
    store = kit_open(&options);
    delay = make_delay(store);
    CHECK_OK(cmq_delay_recover(delay, mark.log_end, &deliveries));
    CHECK_INT(deliveries, 1);   /* it was written, and only its sync failed */
    step(delay);
    CHECK_TEXT(kit_read_topic(store, "T"), "a");
    finish(delay, store);
}

/* ---- recovery ---- */

/* Messages delivered after the progress was written are not delivered again if the mark was written with it. */
static void a_mark_spares_repetitions(void)
{
    cmq_store *store = open_store();
    cmq_delay *delay = make_delay(store);
    cmq_delay_mark mark;
    int64_t deliveries;
    for (int i = 0; i < 3; i++) send_delayed(store, "T", i, "1", "early", "");
    park_raw(store, 1, "DELAY\0011\002REAL_TOPIC\001T\002REAL_QID\001x\002");
    pass(1000);
    step(delay);
    cmq_delay_mark_of(delay, &mark);
    CHECK_INT(mark.progress.offsets[1], 4);
    send_delayed(store, "T", 0, "1", "same", "");
    park_raw(store, 1, "DELAY\0011\002REAL_TOPIC\001T\002REAL_QID\001x\002");
    send_delayed(store, "T", 0, "1", "same", "");   /* twice the same message: two deliveries */
    send_delayed(store, "U", 1, "2", "other", "");
    send_delayed(store, "T", 0, "1", "later", "");
    pass(1000);
    step(delay);
    /* Looks like a delivery, but nothing like it was parked. */
    const cmq_append forged = {
        .common = {.topic = kit_slice("T")},
        .count = 1,
        .properties = {.kind = CMQ_COLUMN_ONE, .one = kit_slice("DELAY\0011\002REAL_TOPIC\001T\002REAL_QID\0010\002")}};
    cmq_appended appended;
    CHECK_OK(cmq_store_append(store, &forged, &appended));
    send_delayed(store, "T", 0, "1", "last", "");
    const char *before = kit_read_topic(store, "T");
    CHECK_TEXT(before, "early early early same same later ");
    cmq_delay_destroy(delay);
    kit_close(store);

    const cmq_store_options options = options_of();
    store = kit_open(&options);
    delay = make_delay(store);
    for (int level = 1; level <= 3; level++)
        if (mark.progress.offsets[level] >= 0)
            CHECK_OK(cmq_delay_set_progress(delay, level, mark.progress.offsets[level]));
    CHECK_OK(cmq_delay_recover(delay, mark.log_end, &deliveries));
    CHECK_INT(deliveries, 3);
    CHECK_INT(progress_of(delay).offsets[1], 8);
    pass(60000);
    step(delay);
    CHECK_TEXT(kit_read_topic(store, "T"), "early early early same same later  last");
    CHECK_TEXT(kit_read_topic(store, "U"), "other");
    CHECK_STATUS(cmq_delay_recover(delay, cmq_store_confirmed(store) + 1, &deliveries), CMQ_ERR_OFFSET);
    CHECK_STATUS(cmq_delay_recover(delay, -1, &deliveries), CMQ_ERR_OFFSET);
    finish(delay, store);
}

/* A crash at one of the first syncs of a delivery, or after it: with the mark, every message is delivered once. */
static void crashes_deliver_once(void)
{
    static char image[CMQ_PATH_BYTES];
    for (int lost = 0; lost < 12; lost++) {
        cmq_store *store = open_twin_store();
        cmq_delay *delay = make_delay(store);
        cmq_delay_mark mark;
        int64_t next_due_ms, deliveries;
        char body[600];
        memset(body, 'b', sizeof body - 1);
        body[sizeof body - 1] = '\0';
        for (int i = 0; i < 40; i++) send_delayed(store, "T", i % 2, i % 2 == 0 ? "1" : "2", body, "");
        pass(1000);
        CHECK_OK(cmq_delay_step(delay, &next_due_ms));
        cmq_delay_mark_of(delay, &mark);
        pass(4000);
        const cmq_twin_fault failing = {
            .kind = CMQ_TWIN_SYNC, .nth = (uint64_t)lost / CMQ_TWIN_STYLES + 1, .times = 0, .sys_errno = EIO};
        cmq_file_twin_fail(twin, &failing);
        const cmq_status stepped = cmq_delay_step(delay, &next_due_ms);
        CHECK(stepped == CMQ_OK || stepped == CMQ_ERR_FENCED);
        CHECK_OK(cmq_path_join(image, kit_directory(), "image"));
        cmq_file_twin_crash_image_of(twin, image, (cmq_twin_style)(lost % CMQ_TWIN_STYLES));
        cmq_delay_destroy(delay);
        cmq_store_abandon(store);
        cmq_file_twin_close(twin);

        twin = NULL;
        cmq_store_options options = options_of();
        options.path = image;
        store = kit_open(&options);
        delay = make_delay(store);
        for (int level = 1; level <= 3; level++)
            if (mark.progress.offsets[level] >= 0)
                CHECK_OK(cmq_delay_set_progress(delay, level, mark.progress.offsets[level]));
        CHECK_OK(cmq_delay_recover(delay, mark.log_end, &deliveries));
        step(delay);
        CHECK_INT(kit_max(store, "T", 0), 20);
        CHECK_INT(kit_max(store, "T", 1), 20);
        finish(delay, store);
        kit_remove_tree(image);
        kit_remove_tree(root);
    }
}

/* ---- the thread ---- */

static void post(void *context) { CHECK(sem_post(context) == 0); }

/* Wait until the topic's queue 0 holds `count` messages. */
static void wait_for(cmq_store *store, cmq_watcher *watcher, sem_t *wake, const char *topic, int64_t count)
{
    cmq_queue *queues[8];
    for (;;) {
        cmq_queue *queue = cmq_queues_find(cmq_store_queues(store), kit_slice(topic), 0);
        if (queue != NULL) CHECK_OK(cmq_watcher_add(watcher, queue));
        if (queue != NULL && cmq_queue_max(queue, cmq_store_confirmed(store)) >= count) return;
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += PATIENCE_S;
        while (sem_timedwait(wake, &until) != 0) CHECK(errno == EINTR);
        while (cmq_watcher_take(watcher, queues, 8) > 0) continue;
    }
}

static void the_thread_wakes_for_parked_messages_and_pokes(void)
{
    cmq_store *store = open_store();
    cmq_delay *delay;
    cmq_watcher *watcher;
    sem_t wake;
    CHECK(sem_init(&wake, 0, 0) == 0);
    CHECK_OK(cmq_watcher_create(&watcher, store, post, &wake));
    const cmq_delay_options options = {.store = store, .clock = kit_clock()};
    CHECK_OK(cmq_delay_create(&delay, &options));
    CHECK_INT(counters_of(delay).state, CMQ_DELAY_IDLE);
    CHECK_OK(cmq_delay_start(delay));
    for (int i = 0; i < 200; i++) {
        send_delayed(store, "T", 0, "1", "m", "");
        pass(1000);
        cmq_delay_poke(delay);
        if (i % 10 == 9) wait_for(store, watcher, &wake, "T", i + 1);
    }
    cmq_delay_stop(delay);
    CHECK_INT(counters_of(delay).state, CMQ_DELAY_IDLE);
    CHECK_INT(counters_of(delay).delivered, 200);
    send_delayed(store, "T", 0, "1", "late", "");
    pass(1000);
    CHECK_OK(cmq_delay_start(delay));
    wait_for(store, watcher, &wake, "T", 201);
    cmq_delay_destroy(delay);   /* stops */
    cmq_watcher_destroy(watcher);
    sem_destroy(&wake);
    kit_close(store);
}

static int64_t wall_ms(void)
{
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    return (int64_t)at.tv_sec * 1000 + at.tv_nsec / 1000000;
}

/* With the system's clock: parked by a clock that is 970 ms behind, so that one second is over 30 ms from now. The
 * thread looks no oftener than there is reason to. */
static void the_thread_keeps_to_the_wall_clock(void)
{
    cmq_store *store = open_store();
    cmq_delay *delay;
    cmq_watcher *watcher;
    sem_t wake;
    CHECK(sem_init(&wake, 0, 0) == 0);
    CHECK_OK(cmq_watcher_create(&watcher, store, post, &wake));
    const cmq_delay_options options = {.store = store};
    CHECK_OK(cmq_delay_create(&delay, &options));
    CHECK_OK(cmq_delay_start(delay));
    atomic_store(&kit_now_ms, wall_ms() - 970);
    const int64_t due_ms = now() + 1000;
    send_delayed(store, "T", 0, "1", "m", "");
    wait_for(store, watcher, &wake, "T", 1);
    CHECK(wall_ms() >= due_ms);
    cmq_delay_stop(delay);
    CHECK(counters_of(delay).rounds <= 5);
    cmq_delay_destroy(delay);
    cmq_watcher_destroy(watcher);
    sem_destroy(&wake);
    kit_close(store);
}

CMQ_TEST_MAIN(CMQ_TEST(parking_by_level), CMQ_TEST(delivered_at_its_time), CMQ_TEST(everything_of_the_record_is_kept),
              CMQ_TEST(property_crc_is_computed_again), CMQ_TEST(many_in_batches),
              CMQ_TEST(a_clock_that_stepped_back_holds_nothing_up), CMQ_TEST(undeliverable_messages_are_passed_over),
              CMQ_TEST(expired_records_are_gone), CMQ_TEST(progress_is_kept_by_the_caller),
              CMQ_TEST(a_full_disk_is_waited_for), CMQ_TEST(a_fenced_store_ends_it),
              CMQ_TEST(a_mark_spares_repetitions), CMQ_TEST(crashes_deliver_once),
              CMQ_TEST(the_thread_wakes_for_parked_messages_and_pokes), CMQ_TEST(the_thread_keeps_to_the_wall_clock))
