/* Tests csrc/store/append/cmq_append_together.c: a transaction that has begun is stored whole; tests/crash holds what
 * crashes leave.
 *
 * Threads: yes.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>

#include "store/cmq_store_internal.h"
#include "store/queue/cmq_queue_internal.h"
#include "store/queue/cmq_tail_pool.h"
#include "support/cmq_file_twin.h"
#include "support/cmq_store_kit.h"
#include "support/cmq_test.h"

#define PARTS 5

/* A clock that, asked for the nth time, reports a full disk in the place of retention. */
static struct {
    cmq_store *store;
    int calls_left;
} meddler;

static int64_t meddle_and_say(void *context)
{
    (void)context;
    if (meddler.store != NULL && meddler.calls_left-- == 0) atomic_store(&meddler.store->disk_above_warning, true);
    return atomic_load(&kit_now_ms);
}

static cmq_store *open_with_segments(cmq_flush_mode flush, int64_t segment_bytes)
{
    cmq_store_options options = kit_options(kit_path(kit_directory(), "store"));
    kit_set_clock();
    meddler.store = NULL;
    options.clock = (cmq_clock){.now_ms = meddle_and_say};
    options.flush = flush;
    options.segment_bytes = segment_bytes;
    return kit_open(&options);
}

static cmq_store *open_with(cmq_flush_mode flush) { return open_with_segments(flush, KIT_SEGMENT_BYTES); }

static void make_parts(cmq_append parts[PARTS])
{
    static const char *const bodies[PARTS] = {"a", "b", "c", "d", "e"};
    for (int i = 0; i < PARTS; i++)
        parts[i] = (cmq_append){.common = {.topic = kit_slice(i % 2 == 0 ? "T" : "U")},
                                .count = 1,
                                .bodies = {.kind = CMQ_COLUMN_ONE, .one = kit_slice(bodies[i])}};
}

static void check_disk_that_fills_meanwhile(cmq_flush_mode flush)
{
    for (int calls = 0; calls < PARTS; calls++) {
        cmq_store *store = open_with(flush);
        cmq_append parts[PARTS];
        cmq_appended appended[PARTS];
        make_parts(parts);
        meddler.calls_left = calls;
        meddler.store = store;
        CHECK_OK(cmq_store_append_together(store, parts, PARTS, appended));
        CHECK(atomic_load(&store->disk_above_warning));
        for (int i = 0; i < PARTS; i++) CHECK_INT(appended[i].count, 1);
        CHECK_TEXT(kit_read_topic(store, "T"), "a c e");
        CHECK_TEXT(kit_read_topic(store, "U"), "b d");
        CHECK_STATUS(cmq_store_append_together(store, parts, PARTS, appended), CMQ_ERR_DISK_FULL);
        CHECK_INT(appended[0].count, 0);
        atomic_store(&store->disk_above_warning, false);
        CHECK_OK(cmq_store_append_together(store, parts, 1, appended));
        CHECK_TEXT(kit_read_topic(store, "T"), "a c e a");
        kit_close(store);
    }
}

static void disk_that_fills_meanwhile_sync(void) { check_disk_that_fills_meanwhile(CMQ_FLUSH_SYNC); }
static void disk_that_fills_meanwhile_async(void) { check_disk_that_fills_meanwhile(CMQ_FLUSH_ASYNC); }

/* Behind the claim of the whole, a part claims nothing of its own. */
static void empty_parts_and_batches(void)
{
    for (int mode = 0; mode < 2; mode++) {
        cmq_store *store = open_with(mode == 0 ? CMQ_FLUSH_SYNC : CMQ_FLUSH_ASYNC);
        cmq_append parts[PARTS];
        cmq_appended appended[PARTS];
        make_parts(parts);
        parts[0].count = parts[3].count = 0;
        parts[2].count = 3;
        parts[2].one_segment = true;
        CHECK_OK(cmq_store_append_together(store, parts, PARTS, appended));
        CHECK_INT(appended[0].count, 0);
        CHECK_INT(appended[2].count, 3);
        CHECK_TEXT(kit_read_topic(store, "T"), "c c c e");
        CHECK_TEXT(kit_read_topic(store, "U"), "b");
        kit_close(store);
    }
}

/* What is staged already does not make a transaction wait for another group. */
static void more_than_the_staging_takes(void)
{
    cmq_store *store = open_with(CMQ_FLUSH_SYNC);
    cmq_append parts[PARTS], alone;
    cmq_appended appended[PARTS], one;
    cmq_store_set_staging(store, 100);
    make_parts(parts);
    alone = parts[0];
    alone.no_wait = true;
    CHECK_OK(cmq_store_append(store, &alone, &one));
    CHECK_OK(cmq_store_append_together(store, parts, PARTS, appended));
    CHECK_TEXT(kit_read_topic(store, "T"), "a a c e");
    kit_close(store);
}

/* … though its messages are many: each queue gets room for its own. */
static void queues_get_room_for_their_own_messages(void)
{
    enum { QUEUES = 250, EACH = 4, MESSAGES = QUEUES * EACH };
    static cmq_append parts[MESSAGES];
    static cmq_appended appended[MESSAGES];
    for (int mode = 0; mode < 2; mode++) {
        cmq_store *store = open_with_segments(mode == 0 ? CMQ_FLUSH_SYNC : CMQ_FLUSH_ASYNC, 4 << 20);
        for (int i = 0; i < MESSAGES; i++)
            parts[i] = (cmq_append){.common = {.topic = kit_slice("T"), .queue_id = i % QUEUES},
                                    .count = 1,
                                    .bodies = {.kind = CMQ_COLUMN_ONE, .one = kit_slice("b")}};
        CHECK_OK(cmq_store_append_together(store, parts, MESSAGES, appended));
        for (int i = 0; i < QUEUES; i++) CHECK_INT(kit_max(store, "T", i), EACH);
        CHECK(cmq_tail_pool_used_bytes(cmq_store_queues(store)->pool) < UINT64_C(2) << 20);
        kit_close(store);
    }
}

static void long_keys_count_with_their_length(void)
{
    enum { MESSAGES = 100, KEY_BYTES = 10000 };
    static char key[KEY_BYTES];
    static cmq_append parts[MESSAGES];
    static cmq_appended appended[MESSAGES];
    cmq_store *store = open_with_segments(CMQ_FLUSH_SYNC, 4 << 20);
    memset(key, 'k', sizeof key);
    for (int i = 0; i < MESSAGES; i++)
        parts[i] = (cmq_append){.common = {.topic = kit_slice("T")},
                                .count = 1,
                                .bodies = {.kind = CMQ_COLUMN_ONE, .one = kit_slice("b")},
                                .keys = {.kind = CMQ_COLUMN_ONE, .one = {.data = (uint8_t *)key, .bytes = KEY_BYTES}}};
    key[KEY_BYTES / 2] = ' ';
    CHECK_OK(cmq_store_append_together(store, parts, MESSAGES, appended));
    for (int i = 0; i < 2; i++) CHECK(store->pending[i].capacity < 50 * MESSAGES);
    kit_found *found = kit_found_make(2 * MESSAGES);
    CHECK_OK(cmq_store_find_key(store, kit_slice("T"), (cmq_slice){.data = (uint8_t *)key, .bytes = KEY_BYTES / 2}, 0,
                                INT64_MAX, &found->batch));
    CHECK_INT(found->batch.count, MESSAGES);
    kit_found_free(found);
    kit_close(store);
}

/* A flush that runs while a transaction's sync fails. */
static struct {
    cmq_store *store;
    pthread_t thread;
    cmq_status status;
    _Atomic int syncs;
} flusher;

static void *flush(void *unused)
{
    (void)unused;
    flusher.status = cmq_store_flush(flusher.store);
    return NULL;
}

static void flush_during_sync(void *context, const cmq_twin_call *call)
{
    (void)context;
    if (call->kind != CMQ_TWIN_SYNC_MAPPED || atomic_fetch_add(&flusher.syncs, 1) > 0) return;
    CHECK(pthread_create(&flusher.thread, NULL, flush, NULL) == 0);
    while (atomic_load(&flusher.syncs) < 2) sched_yield();
}

static cmq_store *open_async_on_twin(const char *root, cmq_file_twin **twin_out)
{
    CHECK_OK(cmq_fs_make_directory(cmq_fs_posix(), root));
    *twin_out = cmq_file_twin_create(root, 1);
    cmq_store_options options = kit_options(root);
    kit_set_clock();
    options.fs = cmq_file_twin_fs(*twin_out);
    options.flush = CMQ_FLUSH_ASYNC;
    return kit_open(&options);
}

static void fail_next_sync(cmq_file_twin *twin, cmq_twin_hook hook)
{
    const cmq_twin_fault fault = {.kind = CMQ_TWIN_SYNC_MAPPED, .nth = 1, .times = 1, .sys_errno = EIO};
    cmq_file_twin_fail(twin, &fault);
    cmq_file_twin_on_call(twin, 0, hook, NULL);
}

/* The system reports a failed write-back of a page once: to the transaction, though the page has older bytes. */
static void a_flush_beside_a_failed_sync_says_nothing_is_durable(void)
{
    cmq_appended appended[PARTS];
    cmq_append parts[PARTS];
    const char *root = kit_path(kit_directory(), "store");
    cmq_file_twin *twin;
    flusher.store = open_async_on_twin(root, &twin);
    make_parts(parts);
    CHECK_OK(cmq_store_append(flusher.store, &parts[0], &appended[0]));
    fail_next_sync(twin, flush_during_sync);
    CHECK_INT(cmq_store_append_together(flusher.store, parts, PARTS, appended), CMQ_ERR_FENCED);
    CHECK(pthread_join(flusher.thread, NULL) == 0);
    CHECK_INT(flusher.status, CMQ_ERR_FENCED);
    cmq_file_twin_on_call(twin, 0, NULL, NULL);
    cmq_store_abandon(flusher.store);
    cmq_file_twin_close(twin);
}

/* A transaction that syncs its bytes while a flush's sync fails. */
static struct {
    cmq_store *store;
    pthread_t thread;
    cmq_status status;
    _Atomic int syncs;
} committer;

static void *commit(void *unused)
{
    (void)unused;
    cmq_appended appended[PARTS];
    cmq_append parts[PARTS];
    make_parts(parts);
    committer.status = cmq_store_append_together(committer.store, parts, PARTS, appended);
    return NULL;
}

static void commit_during_sync(void *context, const cmq_twin_call *call)
{
    (void)context;
    if (call->kind != CMQ_TWIN_SYNC_MAPPED) return;
    if (atomic_fetch_add(&committer.syncs, 1) == 0) {   /* the flush's, which fails */
        CHECK(pthread_create(&committer.thread, NULL, commit, NULL) == 0);
        while (atomic_load(&committer.syncs) < 2) sched_yield();
    } else while (!cmq_store_is_fenced(committer.store)) sched_yield();
}

/* It is reported to the flush: the transaction's sync finds the page clean that its bytes share with older ones. */
static void a_transaction_beside_a_failed_flush_has_no_head(void)
{
    cmq_appended first;
    cmq_append parts[PARTS];
    const char *root = kit_path(kit_directory(), "store");
    cmq_file_twin *twin;
    cmq_file *file;
    uint8_t head[8];
    committer.store = open_async_on_twin(root, &twin);
    make_parts(parts);
    CHECK_OK(cmq_store_append(committer.store, &parts[0], &first));
    fail_next_sync(twin, commit_during_sync);
    CHECK_INT(cmq_store_flush(committer.store), CMQ_ERR_FENCED);
    CHECK(pthread_join(committer.thread, NULL) == 0);
    CHECK_INT(committer.status, CMQ_ERR_FENCED);
    cmq_file_twin_on_call(twin, 0, NULL, NULL);
    cmq_store_abandon(committer.store);
    cmq_file_twin_close(twin);
    CHECK_OK(cmq_file_open(cmq_fs_posix(), kit_path(root, "commitlog/00000000000000000000"), CMQ_OPEN_READ, &file));
    CHECK_OK(cmq_file_read(file, (uint64_t)first.end, head, sizeof head));
    cmq_file_close(file);
    for (size_t i = 0; i < sizeof head; i++) CHECK_INT(head[i], 0);
}

CMQ_TEST_MAIN(CMQ_TEST(disk_that_fills_meanwhile_sync), CMQ_TEST(disk_that_fills_meanwhile_async),
              CMQ_TEST(empty_parts_and_batches), CMQ_TEST(more_than_the_staging_takes),
              CMQ_TEST(queues_get_room_for_their_own_messages), CMQ_TEST(long_keys_count_with_their_length),
              CMQ_TEST(a_flush_beside_a_failed_sync_says_nothing_is_durable),
              CMQ_TEST(a_transaction_beside_a_failed_flush_has_no_head))
