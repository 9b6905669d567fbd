/* Tests of cmq_append and cmq_commit where a hold of the writer lock ends early: full staging, full disks, fences.
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

#define BIG_BYTES (300u << 10)
#define THREADS 8
#define CALLS 200
#define BODY_BYTES_SYNC 512
#define BODY_BYTES_ASYNC (6u << 10)   /* all calls together need a twelfth write of pages, which comes at 8 MiB */

static cmq_append append_of(cmq_slice body, uint32_t count)
{
    return (cmq_append){
        .common = {.topic = cmq_slice_of_text("T")}, .count = count, .bodies = {.kind = CMQ_COLUMN_ONE, .one = body}};
}

/* A blank at a segment's end is staged as well: a record larger than what a hold stages then finds the staging in
 * use. */
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

typedef struct race {
    cmq_store *store;
    uint32_t body_bytes;
    pthread_barrier_t start;
    cmq_status expected;       /* of an append that fails */
    _Atomic int64_t appended;
    _Atomic int32_t failed;
} race;

/* Until an append fails as a fence; another failure is counted, and the next append has to work. */
static void *append_until_fenced(void *argument)
{
    race *of = argument;
    static const uint8_t body[BODY_BYTES_ASYNC] = {1};
    pthread_barrier_wait(&of->start);
    for (int i = 0; i < CALLS; i++) {
        const cmq_append append = append_of((cmq_slice){.data = body, .bytes = of->body_bytes}, 1);
        cmq_appended appended;
        const cmq_status status = cmq_store_append(of->store, &append, &appended);
        if (status == CMQ_OK) {
            atomic_fetch_add(&of->appended, 1);
            continue;
        }
        CHECK_STATUS(status, of->expected);
        atomic_fetch_add(&of->failed, 1);
        if (status == CMQ_ERR_FENCED) break;
    }
    return NULL;
}

/* Threads append while the nth write fails; then exactly what was acknowledged is there. */
static void race_with_failure(const char *root, cmq_flush_mode flush, cmq_status expected, uint64_t nth, race *of)
{
    cmq_file_twin *twin = cmq_file_twin_create(root, 1);
    cmq_store_options options = kit_options(root);
    options.fs = cmq_file_twin_fs(twin);
    /* No larger than it must be: the twin compares the whole file at every sync. */
    const uint32_t body_bytes = flush == CMQ_FLUSH_SYNC ? BODY_BYTES_SYNC : BODY_BYTES_ASYNC;
    options.segment_bytes = (int64_t)THREADS * CALLS * (body_bytes + 256);
    options.flush = flush;
    *of = (race){.store = kit_open(&options), .body_bytes = body_bytes, .expected = expected};
    pthread_t threads[THREADS];
    CHECK(pthread_barrier_init(&of->start, NULL, THREADS) == 0);
    cmq_file_twin_fail(twin, &(cmq_twin_fault){.kind = CMQ_TWIN_WRITE, .nth = nth, .times = 1, .sys_errno = EIO});
    for (int i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, append_until_fenced, of) == 0);
    for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    const int64_t whole = kit_max(of->store, "T", 0);
    CHECK_INT(whole, of->appended);
    kit_found *found = kit_found_make(1);
    for (int64_t i = 0; i < whole; i++) {
        CHECK_OK(cmq_store_read_offset(of->store, kit_slice("T"), 0, i, &found->batch));
        cmq_found_batch_release(&found->batch);
    }
    kit_found_free(found);
    CHECK_STATUS(cmq_store_close(of->store), expected == CMQ_ERR_FENCED ? CMQ_ERR_FENCED : CMQ_OK);
    CHECK(pthread_barrier_destroy(&of->start) == 0);
    cmq_file_twin_close(twin);
    kit_remove_tree(root);
}

/* A thread that waited for the writer lock, or for the group, while a write failed must not publish the records that
 * the write left out. */
static void test_a_fence_is_not_passed(void)
{
    const char *base = kit_directory();
    for (uint64_t i = 0; i < 20; i++) {
        const char *root = kit_path(base, "store");
        race of;
        CHECK_OK(cmq_fs_make_directory(cmq_fs_posix(), root));
        race_with_failure(root, CMQ_FLUSH_SYNC, CMQ_ERR_FENCED, 10 + i, &of);
        CHECK_INT(of.failed, THREADS);
    }
}

/* Async, a write only makes pages ahead: where it fails, nothing was appended, and the next append tries again. */
static void test_pages_that_cannot_be_made(void)
{
    const char *base = kit_directory();
    for (uint64_t nth = 1; nth <= 12; nth++) {
        const char *root = kit_path(base, "store");
        race of;
        CHECK_OK(cmq_fs_make_directory(cmq_fs_posix(), root));
        race_with_failure(root, CMQ_FLUSH_ASYNC, CMQ_ERR_IO, nth, &of);
        CHECK_INT(of.failed, 1);
        CHECK_INT(of.appended, THREADS * CALLS - 1);
    }
}

CMQ_TEST_MAIN(CMQ_TEST(test_large_bodies_roll_async), CMQ_TEST(test_large_batches_roll_async),
              CMQ_TEST(test_large_bodies_roll_sync), CMQ_TEST(test_a_fence_is_not_passed),
              CMQ_TEST(test_pages_that_cannot_be_made))
