/* Tests csrc/store/append/cmq_commit.c, and what threads share in cmq_append.c and cmq_maintain.c.
 *
 * Threads: yes
 * Appenders on tiny segments with every flush; readers beside them; upkeep meanwhile; waiters. Each appender checks for
 * each of its messages that it is readable as soon as it was acknowledged, and that its offsets rise.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/cmq_file_twin.h"
#include "support/cmq_store_kit.h"

#define APPENDERS 8
#define EACH 120

static cmq_store *store;
static _Atomic bool stop;
static _Atomic int64_t seen_end;
static _Atomic bool syncs_fail;   /* a fault of the twin is set */

typedef struct appender {
    pthread_t thread;
    int number;
    bool no_wait;
    int64_t appended;
    cmq_status status;    /* the first failure */
} appender;

/* Is the message at `phy` ours, now? */
static void check_readable(const cmq_appended *appended, const char *body)
{
    cmq_found item;
    cmq_found_batch batch = {.items = &item, .capacity = 1};
    CHECK(cmq_store_confirmed(store) >= appended->end);
    CHECK_OK(cmq_store_read_physical(store, appended->first_physical_offset, &batch));
    CHECK(kit_body_is(&item, body));
    cmq_found_batch_release(&batch);
    CHECK_OK(cmq_store_read_offset(store, kit_slice("T"), 0, appended->first_queue_offset, &batch));
    cmq_found_batch_release(&batch);
}

static void *append_messages(void *argument)
{
    appender *self = argument;
    int64_t last_phy = -1, last_offset = -1;
    for (int i = 0; i < EACH && self->status == CMQ_OK; i++) {
        char body[120], key[16];
        snprintf(body, sizeof body, "appender-%d-message-%d-with-some-bytes-so-that-segments-are-used-up", self->number,
                 i);
        snprintf(key, sizeof key, "a%d", self->number);
        const cmq_append append = {
            .common = {.topic = kit_slice("T")},
            .count = 1,
            .bodies = {.kind = CMQ_COLUMN_ONE, .one = kit_slice(body)},
            .keys = {.kind = i % 3 == 0 ? CMQ_COLUMN_ONE : CMQ_COLUMN_NONE, .one = kit_slice(key)},
            .no_wait = self->no_wait,
        };
        cmq_appended appended;
        self->status = cmq_store_append(store, &append, &appended);
        if (self->status != CMQ_OK) break;
        CHECK(appended.first_physical_offset > last_phy && appended.first_queue_offset > last_offset);
        last_phy = appended.first_physical_offset;
        last_offset = appended.first_queue_offset;
        if (self->no_wait && i % 10 == 9) CHECK_OK(cmq_store_wait(store, appended.end));
        if (!self->no_wait || i % 10 == 9) check_readable(&appended, body);
        self->appended++;
    }
    return NULL;
}

/* Reads everything again and again: never a message that is not whole, never an order that changes. */
static void *read_messages(void *argument)
{
    (void)argument;
    const cmq_slice topic = kit_slice("T");
    kit_found *found = kit_found_make(100);
    while (!atomic_load(&stop)) {
        cmq_reader *reader;
        bool end = false;
        int64_t next = 0;
        if (cmq_queues_find(cmq_store_queues(store), topic, 0) == NULL) {
            sched_yield();
            continue;
        }
        CHECK_OK(cmq_reader_open(store, &(cmq_read_options){.topics = &topic, .topic_count = 1}, &reader));
        do {
            CHECK_OK(cmq_reader_next(reader, &found->batch, &end));
            for (uint32_t i = 0; i < found->batch.count; i++, next++) {
                CHECK_INT(found->items[i].queue_offset, next);
                CHECK(found->items[i].physical_offset + found->items[i].record_bytes <= cmq_store_confirmed(store));
                (void)kit_view(&found->items[i]);
            }
            end = found->batch.count == 0;
            cmq_found_batch_release(&found->batch);
        } while (!end);
        cmq_reader_close(reader);
        CHECK_OK(cmq_store_find_key(store, topic, kit_slice("a3"), 0, INT64_MAX, &found->batch));
        cmq_found_batch_release(&found->batch);
    }
    kit_found_free(found);
    return NULL;
}

static void *wait_for_messages(void *argument)
{
    (void)argument;
    int64_t seen = 0;
    while (!atomic_load(&stop)) {
        const cmq_status status = cmq_store_wait_more(store, seen, 20);
        if (status == CMQ_AGAIN) continue;
        if (status == CMQ_ERR_FENCED) break;
        CHECK_OK(status);
        const int64_t now = cmq_store_confirmed(store);
        CHECK(now > seen);
        seen = now;
        atomic_store(&seen_end, seen);
    }
    return NULL;
}

static void *keep_up(void *argument)
{
    (void)argument;
    for (uint32_t i = 0; !atomic_load(&stop); i++) {
        const cmq_status status = cmq_store_maintain(store, i % 4 == 0);
        /* Files of its own may be the first whose sync fails; that fences nothing. */
        if (status != CMQ_OK && !(atomic_load(&syncs_fail) && status == CMQ_ERR_IO))
            CHECK_STATUS(status, CMQ_ERR_FENCED);
        sched_yield();
    }
    return NULL;
}

static int64_t run_threads(appender *appenders, cmq_status allowed)
{
    pthread_t readers[2], waiter, keeper;
    int64_t total = 0;
    atomic_store(&stop, false);
    for (int i = 0; i < 2; i++) CHECK(pthread_create(&readers[i], NULL, read_messages, NULL) == 0);
    CHECK(pthread_create(&waiter, NULL, wait_for_messages, NULL) == 0);
    CHECK(pthread_create(&keeper, NULL, keep_up, NULL) == 0);
    for (int i = 0; i < APPENDERS; i++)
        CHECK(pthread_create(&appenders[i].thread, NULL, append_messages, &appenders[i]) == 0);
    for (int i = 0; i < APPENDERS; i++) {
        CHECK(pthread_join(appenders[i].thread, NULL) == 0);
        /* The name of a new segment may be the first whose sync fails; that fences nothing, and appends nothing. */
        const bool new_segment = allowed == CMQ_ERR_FENCED && appenders[i].status == CMQ_ERR_IO;
        if (appenders[i].status != CMQ_OK && !new_segment) CHECK_STATUS(appenders[i].status, allowed);
        total += appenders[i].appended;
    }
    atomic_store(&stop, true);
    for (int i = 0; i < 2; i++) CHECK(pthread_join(readers[i], NULL) == 0);
    CHECK(pthread_join(waiter, NULL) == 0);
    CHECK(pthread_join(keeper, NULL) == 0);
    return total;
}

static void appenders_with(cmq_flush_mode flush, bool background)
{
    const char *root = kit_path(kit_directory(), "store");
    cmq_store_options options = kit_options(root);
    appender appenders[APPENDERS] = {0};
    options.flush = flush;
    options.background = background;
    options.clock = cmq_clock_system();
    options.durable_point_ms = 1;
    store = kit_open(&options);
    for (int i = 0; i < APPENDERS; i++) appenders[i] = (appender){.number = i, .no_wait = i % 4 == 3};
    CHECK_INT(run_threads(appenders, CMQ_OK), APPENDERS * EACH);
    CHECK_OK(cmq_store_flush(store));
    CHECK_INT(kit_max(store, "T", 0), APPENDERS * EACH);
    CHECK(atomic_load(&seen_end) > 0);
    kit_close(store);
    store = kit_open(&options);
    CHECK_INT(kit_max(store, "T", 0), APPENDERS * EACH);
    kit_close(store);
}

static void sync_appenders(void) { appenders_with(CMQ_FLUSH_SYNC, false); }
static void async_appenders(void) { appenders_with(CMQ_FLUSH_ASYNC, false); }
static void sync_appenders_beside_the_threads(void) { appenders_with(CMQ_FLUSH_SYNC, true); }
static void async_appenders_beside_the_threads(void) { appenders_with(CMQ_FLUSH_ASYNC, true); }

/* A sync fails in the middle: every waiter gets the error, none hangs, and acknowledged messages are there. */
static void a_failed_sync_fails_all_waiters(void)
{
    const char *root = kit_path(kit_directory(), "store"), *image = kit_path(kit_directory(), "image");
    CHECK_OK(cmq_fs_make_directory(cmq_fs_posix(), root));
    cmq_file_twin *twin = cmq_file_twin_create(root, cmq_test_random());
    cmq_store_options options = kit_options(root);
    appender appenders[APPENDERS] = {0};
    options.fs = cmq_file_twin_fs(twin);
    options.clock = cmq_clock_system();
    store = kit_open(&options);
    for (int i = 0; i < APPENDERS; i++) appenders[i] = (appender){.number = i};
    cmq_file_twin_fail(twin, &(cmq_twin_fault){.kind = CMQ_TWIN_SYNC, .nth = 60, .sys_errno = EIO});
    atomic_store(&syncs_fail, true);
    const int64_t acknowledged = run_threads(appenders, CMQ_ERR_FENCED);
    atomic_store(&syncs_fail, false);
    CHECK(acknowledged < APPENDERS * EACH);
    cmq_file_twin_crash_image_of(twin, image, CMQ_TWIN_NOTHING);
    /* The sync of a new, empty segment fences nothing: then it is the close whose syncs fail. */
    const cmq_status closed = cmq_store_close(store);
    CHECK(closed == CMQ_ERR_FENCED || closed == CMQ_ERR_IO);
    cmq_file_twin_close(twin);
    options.fs = NULL;
    options.path = image;
    store = kit_open(&options);
    CHECK(kit_max(store, "T", 0) >= acknowledged);
    kit_close(store);
}

static void waiting_for_missing_messages(void)
{
    store = kit_open_at(kit_path(kit_directory(), "store"));
    CHECK_OK(cmq_store_wait(store, 0));
    CHECK_STATUS(cmq_store_wait(store, 1), CMQ_ERR_OFFSET);
    const cmq_append append = {.common = {.topic = kit_slice("T")}, .count = 1, .no_wait = true};
    cmq_appended appended;
    CHECK_OK(cmq_store_append(store, &append, &appended));
    CHECK_INT(cmq_store_confirmed(store), 0);   /* nobody sees it before it is on disk */
    CHECK_INT(kit_max(store, "T", 0), 0);
    CHECK_STATUS(cmq_store_wait(store, appended.end + 1), CMQ_ERR_OFFSET);
    CHECK_OK(cmq_store_wait(store, appended.end));
    CHECK_INT(kit_max(store, "T", 0), 1);
    CHECK_STATUS(cmq_store_wait_more(store, appended.end, 1), CMQ_AGAIN);
    kit_close(store);
}

/* ---- everything at once ---- */

static _Atomic uint64_t rounds_read;

static void *append_and_append(void *argument)
{
    const int number = *(const int *)argument;
    for (int i = 0; !atomic_load(&stop); i++) {
        static const char *const topics[] = {"T", "U", "Gone"};
        char body[200], key[16];
        snprintf(body, sizeof body, "%0150d", i);
        snprintf(key, sizeof key, "k%d", i % 10);
        cmq_appended appended;
        cmq_store_info info;
        CHECK_OK(cmq_store_info_of(store, &info));
        if (info.log_end - info.log_min > 40 * KIT_SEGMENT_BYTES) {   /* let retention come along: a segment is a
                                                                       * descriptor */
            sched_yield();
            continue;
        }
        const cmq_status status =
            kit_try_append(store, topics[(i + number) % 3], i % 2, body, i % 2 == 0 ? "red" : NULL, key, &appended);
        CHECK_OK(status);
    }
    return NULL;
}

static void *expire_and_delete(void *argument)
{
    (void)argument;
    for (int i = 0; !atomic_load(&stop); i++) {
        uint32_t deleted;
        CHECK_OK(cmq_store_maintain(store, true));
        CHECK_OK(cmq_store_expire(store, true, &deleted));
        const cmq_status status = i % 3 == 0 ? cmq_store_delete_topic(store, kit_slice("Gone")) : CMQ_OK;
        if (status != CMQ_OK) CHECK_STATUS(status, CMQ_ERR_NOT_FOUND);
        if (i % 5 == 0) CHECK_OK(cmq_store_delete_expired_queues(store, &deleted));
    }
    return NULL;
}

/* A result of a look-up while messages expire: there, or gone. */
static void check_there_or_gone(cmq_status status, kit_found *found)
{
    if (status != CMQ_OK && status != CMQ_ERR_OFFSET && status != CMQ_ERR_NOT_FOUND) CHECK_OK(status);
    for (uint32_t i = 0; i < found->batch.count; i++) (void)kit_view(&found->batch.items[i]);
    cmq_found_batch_release(&found->batch);
}

static void *read_in_every_way(void *argument)
{
    const int number = *(const int *)argument;
    const cmq_slice topics[] = {kit_slice("T"), kit_slice("U"), kit_slice("Gone")}, tag = kit_slice("red");
    kit_found *found = kit_found_make(20);
    while (!atomic_load(&stop)) {
        cmq_reader *reader;
        bool end = false;
        const cmq_read_options options = {.topics = topics,
                                          .topic_count = number % 2 == 0 ? 3 : 0,
                                          .backwards = number / 2 % 2 != 0,
                                          .tags = &tag,
                                          .tag_count = number % 3 == 0 ? 1 : 0,
                                          .may_be_missing = true};
        CHECK_OK(cmq_reader_open(store, &options, &reader));
        for (int i = 0; i < 30 && !end; i++) {
            CHECK_OK(cmq_reader_next(reader, &found->batch, &end));
            for (uint32_t j = 0; j < found->batch.count; j++) (void)kit_view(&found->batch.items[j]);
            if (found->batch.count == 0) i = 30;
            cmq_found_batch_release(&found->batch);
        }
        cmq_reader_close(reader);
        check_there_or_gone(cmq_store_find_key(store, topics[0], kit_slice("k3"), 0, INT64_MAX, &found->batch), found);
        check_there_or_gone(cmq_store_read_offset(store, topics[1], 0, kit_max(store, "U", 0) / 2, &found->batch),
                            found);
        int64_t offset;
        check_there_or_gone(cmq_store_offset_at(store, topics[number % 3], 0, atomic_load(&kit_now_ms) - 50,
                                                CMQ_BOUNDARY_UPPER, &offset),
                            found);
        atomic_fetch_add(&rounds_read, 1);
        atomic_fetch_add(&kit_now_ms, 1);
    }
    kit_found_free(found);
    return NULL;
}

static void readers_beside_retention(void)
{
    static const int numbers[] = {0, 1, 2, 3, 4};
    pthread_t threads[8];
    for (int mode = 0; mode < 2; mode++) {
        cmq_store_options options = kit_options(kit_path(kit_directory(), "store"));
        options.flush = mode == 0 ? CMQ_FLUSH_SYNC : CMQ_FLUSH_ASYNC;
        options.retention = (cmq_retention){.reserved_ms = 1, .files_per_round = 2};
        store = kit_open(&options);
        atomic_store(&stop, false);
        atomic_store(&rounds_read, 0);
        for (int i = 0; i < 2; i++)
            CHECK(pthread_create(&threads[i], NULL, append_and_append, (void *)(uintptr_t)&numbers[i]) == 0);
        CHECK(pthread_create(&threads[2], NULL, expire_and_delete, NULL) == 0);
        for (int i = 0; i < 5; i++)
            CHECK(pthread_create(&threads[3 + i], NULL, read_in_every_way, (void *)(uintptr_t)&numbers[i]) == 0);
        for (cmq_store_info info = {0}; info.log_min < 20 * KIT_SEGMENT_BYTES || atomic_load(&rounds_read) < 60;) {
            CHECK_OK(cmq_store_info_of(store, &info));
            sched_yield();
        }
        atomic_store(&stop, true);
        for (int i = 0; i < 8; i++) CHECK(pthread_join(threads[i], NULL) == 0);
        const int64_t confirmed = cmq_store_confirmed(store);
        kit_close(store);
        store = kit_open(&options);
        CHECK_INT(cmq_store_confirmed(store), confirmed);
        kit_close(store);
    }
}

CMQ_TEST_MAIN(CMQ_TEST(sync_appenders), CMQ_TEST(async_appenders), CMQ_TEST(sync_appenders_beside_the_threads),
              CMQ_TEST(async_appenders_beside_the_threads), CMQ_TEST(a_failed_sync_fails_all_waiters),
              CMQ_TEST(waiting_for_missing_messages), CMQ_TEST(readers_beside_retention))
