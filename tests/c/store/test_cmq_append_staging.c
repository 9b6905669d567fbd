/* Tests of cmq_append and cmq_commit where a hold of the writer seat ends early: full staging, full disks, fences.
 *
 * Threads: yes
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/cmq_file.h"
#include "store/cmq_store.h"
#include "support/cmq_file_twin.h"
#include "support/cmq_store_kit.h"
#include "support/cmq_test.h"

#define BIG_BYTES (300u << 10)   /* more than an async hold stages at once */
#define THREADS 8

static cmq_append append_of(cmq_slice body, uint32_t count)
{
    return (cmq_append){.common = {.topic = cmq_slice_of_text("T")}, .count = count, .bodies = {.kind = CMQ_COLUMN_ONE, .one = body}};
}

/* A blank at a segment's end is staged as well: a record larger than what a hold stages then finds the staging in use. */
static void test_large_bodies_roll(cmq_flush_mode flush, bool one_segment)
{
    cmq_store_options options = kit_options(kit_directory());
    options.segment_bytes = 1 << 20;
    options.flush = flush;
    cmq_store *store = kit_open(&options);
    uint8_t *body = calloc(1, BIG_BYTES);
    CHECK(body != NULL);
    for (int i = 0; i < 12; i++) {
        cmq_append append = append_of((cmq_slice){.data = body, .bytes = BIG_BYTES}, 1);
        cmq_appended appended;
        append.one_segment = one_segment;
        CHECK_OK(cmq_store_append(store, &append, &appended));
        CHECK_INT(appended.count, 1);
        CHECK_INT(appended.first_queue_offset, i);
    }
    CHECK_INT(kit_max(store, "T", 0), 12);
    free(body);
    kit_close(store);
}

static void test_large_bodies_roll_async(void) { test_large_bodies_roll(CMQ_FLUSH_ASYNC, false); }
static void test_large_batches_roll_async(void) { test_large_bodies_roll(CMQ_FLUSH_ASYNC, true); }
static void test_large_bodies_roll_sync(void) { test_large_bodies_roll(CMQ_FLUSH_SYNC, false); }

typedef struct fence_race {
    cmq_store *store;
    pthread_barrier_t start;
    _Atomic int32_t fenced;
} fence_race;

/* Bodies that do not fit a direct store into the map, so that each hold writes through. */
static void *append_until_fenced(void *argument)
{
    fence_race *race = argument;
    static const uint8_t body[12 << 10] = {1};
    pthread_barrier_wait(&race->start);
    for (int i = 0; i < 200; i++) {
        const cmq_append append = append_of((cmq_slice){.data = body, .bytes = sizeof body}, 1);
        cmq_appended appended;
        const cmq_status status = cmq_store_append(race->store, &append, &appended);
        if (status == CMQ_OK) continue;
        CHECK_STATUS(status, CMQ_ERR_FENCED);
        atomic_fetch_add(&race->fenced, 1);
        break;
    }
    return NULL;
}

/* Who waited for the seat while another's write failed must not publish what that write left out. */
static void fence_once(const char *root, uint64_t nth)
{
    cmq_file_twin *twin = cmq_file_twin_create(root, 1);
    cmq_store_options options = kit_options(root);
    options.fs = cmq_file_twin_fs(twin);
    options.segment_bytes = 4 << 20;
    options.flush = CMQ_FLUSH_ASYNC;
    fence_race race = {.store = kit_open(&options)};
    pthread_t threads[THREADS];
    CHECK(pthread_barrier_init(&race.start, NULL, THREADS) == 0);
    cmq_file_twin_fail(twin, &(cmq_twin_fault){.kind = CMQ_TWIN_WRITE, .nth = nth, .times = 1, .sys_errno = EIO});
    for (int i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, append_until_fenced, &race) == 0);
    for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK_INT(race.fenced, THREADS);
    const int64_t whole = kit_max(race.store, "T", 0);
    kit_found *found = kit_found_make(1);
    for (int64_t i = 0; i < whole; i++) {
        CHECK_OK(cmq_store_read_offset(race.store, kit_slice("T"), 0, i, &found->batch));
        cmq_found_batch_release(&found->batch);
    }
    kit_found_free(found);
    CHECK_INT(whole, nth - 1);
    CHECK_STATUS(cmq_store_close(race.store), CMQ_ERR_FENCED);
    CHECK(pthread_barrier_destroy(&race.start) == 0);
    cmq_file_twin_close(twin);
    kit_remove_tree(root);
}

static void test_a_fence_is_not_passed(void)
{
    const char *base = kit_directory();
    for (uint64_t i = 0; i < 20; i++) {
        const char *root = kit_path(base, "store");
        CHECK_OK(cmq_fs_make_directory(cmq_fs_posix(), root));
        fence_once(root, 20 + i);
    }
}

CMQ_TEST_MAIN(CMQ_TEST(test_large_bodies_roll_async), CMQ_TEST(test_large_batches_roll_async), CMQ_TEST(test_large_bodies_roll_sync),
              CMQ_TEST(test_a_fence_is_not_passed))
