/* Tests csrc/store/cmq_commit.c, and what threads share in cmq_append.c and cmq_maintain.c.
 *
 * Threads: yes
 * Appenders on tiny segments with every flush; readers beside them; upkeep meanwhile; waiters. Each appender checks for each of its messages that it is
 * readable as soon as it was acknowledged, and that its offsets rise.
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
        snprintf(body, sizeof body, "appender-%d-message-%d-with-some-bytes-so-that-segments-are-used-up", self->number, i);
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
        if (status != CMQ_OK) CHECK_STATUS(status, CMQ_ERR_FENCED);
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
    for (int i = 0; i < APPENDERS; i++) CHECK(pthread_create(&appenders[i].thread, NULL, append_messages, &appenders[i]) == 0);
    for (int i = 0; i < APPENDERS; i++) {
        CHECK(pthread_join(appenders[i].thread, NULL) == 0);
        if (appenders[i].status != CMQ_OK) CHECK_STATUS(appenders[i].status, allowed);
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

/* A sync fails in the middle: everybody is told, nobody hangs, and what was acknowledged is there. */
static void a_failed_sync_is_told_to_all(void)
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
    cmq_file_twin_fail(twin, &(cmq_twin_fault){.kind = CMQ_TWIN_SYNC, .nth = 60, .times = 1, .sys_errno = EIO});
    const int64_t acknowledged = run_threads(appenders, CMQ_ERR_FENCED);
    CHECK(acknowledged < APPENDERS * EACH);
    cmq_file_twin_crash_image_of(twin, image, CMQ_TWIN_NOTHING);
    CHECK_STATUS(cmq_store_close(store), CMQ_ERR_FENCED);
    cmq_file_twin_close(twin);
    options.fs = NULL;
    options.path = image;
    store = kit_open(&options);
    CHECK(kit_max(store, "T", 0) >= acknowledged);
    kit_close(store);
}

static void waiting_for_what_is_not_there(void)
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

CMQ_TEST_MAIN(CMQ_TEST(sync_appenders), CMQ_TEST(async_appenders), CMQ_TEST(sync_appenders_beside_the_threads),
              CMQ_TEST(async_appenders_beside_the_threads), CMQ_TEST(a_failed_sync_is_told_to_all),
              CMQ_TEST(waiting_for_what_is_not_there))
