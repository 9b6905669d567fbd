/* Power loss, and kill -9, with transactions: a store under either flush mode takes messages of two topics, alone and
 * together, from one thread or two; at a random change of its files the power goes, or the process dies; in some rounds
 * a write or a sync fails before that, the one behind the heads, too. A possible image of the disk is opened: of each
 * transaction all messages are there, or none; under sync flush, all of those that were acknowledged.
 * Without the sync before the heads, or with heads written at once, 400 rounds find a torn transaction.
 *
 * CMQ_CRASH_ROUNDS: how many losses; without it 24, with CMQ_LONG 20,000. CMQ_SEED repeats a run, but not how its
 * threads take turns.
 */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/cmq_file_twin.h"
#include "support/cmq_store_kit.h"

enum { CALLS = 60, PARTS_MAX = 12, BODY_BYTES_MAX = 3000, THREADS_MAX = 2 };

/* A transaction, and what follows it. */
typedef struct work_call {
    uint32_t parts;
    size_t bytes[PARTS_MAX];
    bool one_more, maintain, wait;
} work_call;

static struct {
    cmq_file_twin *twin;
    cmq_store *store;
    const char *image;
    uint32_t threads;
    bool faulty;                       /* a write or a sync will fail */
    work_call calls[CALLS];
    _Atomic bool acknowledged[CALLS];
    _Atomic bool acknowledged_then[CALLS];   /* when the power went */
    _Atomic bool lost;
} run;

static void choose_calls(void)
{
    for (uint32_t n = 0; n < CALLS; n++) {
        work_call *call = &run.calls[n];
        call->parts = 1 + (uint32_t)cmq_test_random_below(PARTS_MAX);
        for (uint32_t i = 0; i < call->parts; i++)
            call->bytes[i] = 16 + (size_t)cmq_test_random_below(BODY_BYTES_MAX - 16);
        call->one_more = cmq_test_random_below(5) == 0;
        call->maintain = cmq_test_random_below(20) == 0;
        call->wait = cmq_test_random_below(2) == 0;
    }
}

/* Message i of call n: "n i", and a rest that makes records lie across pages. */
static cmq_status append_call(uint32_t n, uint8_t (*bodies)[BODY_BYTES_MAX])
{
    const work_call *call = &run.calls[n];
    cmq_append parts[PARTS_MAX];
    cmq_appended appended[PARTS_MAX];
    for (uint32_t i = 0; i < call->parts; i++) {
        memset(bodies[i], 'x', call->bytes[i]);
        snprintf((char *)bodies[i], 16, "%u %u", n, i);
        parts[i] =
            (cmq_append){.common = {.topic = kit_slice(i % 2 == 0 ? "T" : "U"), .queue_id = (int32_t)i % 3},
                         .count = 1,
                         .bodies = {.kind = CMQ_COLUMN_ONE, .one = {.data = bodies[i], .bytes = call->bytes[i]}}};
    }
    const cmq_status status = cmq_store_append_together(run.store, parts, call->parts, appended);
    if (status != CMQ_OK) return status;
    for (uint32_t i = 0; i < call->parts; i++) CHECK(appended[i].count == 1 && appended[i].first_queue_offset >= 0);
    atomic_store(&run.acknowledged[n], true);
    return CMQ_OK;
}

static void lose(void *context, const cmq_twin_call *call)
{
    (void)context;
    (void)call;
    const uint64_t choice = cmq_test_random_below(8);
    /* Before the image: what is acknowledged meanwhile may lack. */
    for (uint32_t n = 0; n < CALLS; n++)
        atomic_store(&run.acknowledged_then[n], atomic_load(&run.acknowledged[n]));
    cmq_file_twin_crash_image_of(run.twin, run.image,
                                 choice == 0   ? CMQ_TWIN_NOTHING
                                 : choice == 1 ? CMQ_TWIN_EVERYTHING
                                               : CMQ_TWIN_MIX);
    atomic_store(&run.lost, true);
}

static cmq_status append_one(void)
{
    cmq_appended appended;
    const cmq_append append = {.common = {.topic = kit_slice("T")},
                               .count = 1,
                               .bodies = {.kind = CMQ_COLUMN_ONE, .one = kit_slice("-")}};
    return cmq_store_append(run.store, &append, &appended);
}

/* Every so many calls from `from` on. Only a fault may end it before the power goes. */
static void *work_on(void *from)
{
    static uint8_t bodies[THREADS_MAX][PARTS_MAX][BODY_BYTES_MAX];
    cmq_status status = CMQ_OK;
    for (uint32_t n = *(uint32_t *)from; n < CALLS && status == CMQ_OK && !atomic_load(&run.lost); n += run.threads) {
        status = append_call(n, bodies[n % run.threads]);
        if (status == CMQ_OK && run.calls[n].one_more) status = append_one();
        if (status == CMQ_OK && run.calls[n].maintain) status = cmq_store_maintain(run.store, run.calls[n].wait);
    }
    CHECK(status == CMQ_OK || run.faulty);
    return NULL;
}

/* With `acknowledged`: no transaction that was is missing. */
static void check_whole(cmq_store *store, uint64_t round, const _Atomic bool *acknowledged)
{
    uint32_t seen[CALLS] = {0};
    cmq_reader *reader;
    const cmq_read_options options = {0};
    bool end = false;
    CHECK_OK(cmq_reader_open(store, &options, &reader));
    kit_found *found = kit_found_make(64);
    while (!end) {
        CHECK_OK(cmq_reader_next(reader, &found->batch, &end));
        end |= found->batch.count == 0;
        for (uint32_t i = 0; i < found->batch.count; i++) {
            const cmq_record_view view = kit_view(&found->items[i]);
            unsigned call, part;
            if (view.body.bytes == 1) continue;
            CHECK(sscanf((const char *)view.body.data, "%u %u", &call, &part) == 2 && call < CALLS);
            CHECK_INT(part, seen[call]);   /* in their order, whatever lies between */
            seen[call]++;
        }
        cmq_found_batch_release(&found->batch);
    }
    kit_found_free(found);
    cmq_reader_close(reader);
    for (uint32_t i = 0; i < CALLS; i++) {
        if (seen[i] != 0 && seen[i] != run.calls[i].parts)
            cmq_test_fail(__FILE__, __LINE__, "round %" PRIu64 ": %u of %u messages of transaction %u", round, seen[i],
                          run.calls[i].parts, i);
        if (acknowledged != NULL && atomic_load(&acknowledged[i]) && seen[i] == 0)
            cmq_test_fail(__FILE__, __LINE__, "round %" PRIu64 ": transaction %u was acknowledged, and is lost", round,
                          i);
    }
}

/* The store is open: the first call may meet it. */
static void add_fault(cmq_flush_mode flush)
{
    const cmq_twin_kind kind = cmq_test_random_below(4) == 0 ? CMQ_TWIN_WRITE
                               : flush == CMQ_FLUSH_SYNC     ? CMQ_TWIN_SYNC
                                                             : CMQ_TWIN_SYNC_MAPPED;
    const cmq_twin_fault fault = {.kind = kind,
                                  .nth = 1 + cmq_test_random_below(80),
                                  .times = cmq_test_random_below(2),
                                  .sys_errno = EIO,
                                  .halfway = true};
    cmq_file_twin_fail(run.twin, &fault);
}

static void work(const char *root, cmq_flush_mode flush, uint64_t round)
{
    pthread_t threads[THREADS_MAX];
    uint32_t from[THREADS_MAX] = {0, 1};
    cmq_store_options options = kit_options(root);
    options.fs = cmq_file_twin_fs(run.twin);
    options.flush = flush;
    options.segment_bytes = 256 << 10;
    run.store = kit_open(&options);
    if (run.faulty) add_fault(flush);
    for (uint32_t i = 0; i < run.threads; i++) CHECK(pthread_create(&threads[i], NULL, work_on, &from[i]) == 0);
    for (uint32_t i = 0; i < run.threads; i++) pthread_join(threads[i], NULL);
    check_whole(run.store, round, run.acknowledged);
    if (run.faulty) cmq_store_abandon(run.store);
    else kit_close(run.store);
    if (!atomic_load(&run.lost)) lose(NULL, NULL);
}

static void power_goes(void)
{
    const char *directory = kit_directory();
    const uint64_t rounds = kit_amount("CMQ_CRASH_ROUNDS", 24, 20000);
    for (uint64_t round = 0; round < rounds; round++) {
        char root[CMQ_PATH_BYTES], image[CMQ_PATH_BYTES];
        const cmq_flush_mode flush = round % 2 == 0 ? CMQ_FLUSH_SYNC : CMQ_FLUSH_ASYNC;
        CHECK_OK(cmq_path_join(root, directory, "store"));
        CHECK_OK(cmq_path_join(image, directory, "image"));
        CHECK_OK(cmq_fs_make_directory(cmq_fs_posix(), root));
        kit_set_clock();
        memset(&run, 0, sizeof run);
        run.image = image;
        run.twin = cmq_file_twin_create(root, cmq_test_random());
        run.threads = 1 + (uint32_t)(round / 2 % THREADS_MAX);
        run.faulty = round / 4 % 3 == 0;
        choose_calls();
        cmq_file_twin_on_call(run.twin, 30 + cmq_test_random_below(400), lose, NULL);
        work(root, flush, round);
        cmq_file_twin_close(run.twin);

        cmq_store_options options = kit_options(image);
        options.segment_bytes = 256 << 10;
        cmq_store *store = kit_open(&options);
        check_whole(store, round, flush == CMQ_FLUSH_SYNC ? run.acknowledged_then : NULL);
        kit_close(store);
        kit_remove_tree(root);
        kit_remove_tree(image);
    }
}

CMQ_TEST_MAIN(CMQ_TEST(power_goes))
