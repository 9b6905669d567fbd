/* Power loss, and kill -9, with transactions: a store under either flush mode takes messages of two topics, alone and
 * together; at a random change of its files the power goes, or the process dies; a possible image of the disk is
 * opened: of each transaction all messages are there, or none; under sync flush, all of those that were acknowledged.
 * Without the sync before the heads, or with heads written at once, 400 rounds find a torn transaction.
 *
 * CMQ_CRASH_ROUNDS: how many losses; without it 24, with CMQ_LONG 20,000. CMQ_SEED repeats a run.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/cmq_file_twin.h"
#include "support/cmq_store_kit.h"

enum { CALLS = 60, PARTS_MAX = 12, BODY_BYTES_MAX = 3000 };

static struct {
    cmq_file_twin *twin;
    const char *image;
    uint32_t acknowledged, acknowledged_then;   /* calls, now and when the power went */
    uint32_t parts[CALLS];                      /* messages of each call */
    bool lost;
} run;

/* Message i of call n: "n i", and a rest that makes records lie across pages. */
static void append_call(cmq_store *store, uint32_t n)
{
    static uint8_t bodies[PARTS_MAX][BODY_BYTES_MAX];
    cmq_append parts[PARTS_MAX];
    cmq_appended appended[PARTS_MAX];
    const uint32_t count = 1 + (uint32_t)cmq_test_random_below(PARTS_MAX);
    run.parts[n] = count;
    for (uint32_t i = 0; i < count; i++) {
        const size_t bytes = 16 + (size_t)cmq_test_random_below(BODY_BYTES_MAX - 16);
        memset(bodies[i], 'x', bytes);
        snprintf((char *)bodies[i], 16, "%u %u", n, i);
        parts[i] = (cmq_append){.common = {.topic = kit_slice(i % 2 == 0 ? "T" : "U"), .queue_id = (int32_t)i % 3},
                                .count = 1,
                                .bodies = {.kind = CMQ_COLUMN_ONE, .one = {.data = bodies[i], .bytes = bytes}}};
    }
    CHECK_OK(cmq_store_append_together(store, parts, count, appended));
    for (uint32_t i = 0; i < count; i++) CHECK(appended[i].count == 1 && appended[i].first_queue_offset >= 0);
    run.acknowledged = n + 1;
}

static void lose(void *context, const cmq_twin_call *call)
{
    (void)context;
    (void)call;
    const uint64_t choice = cmq_test_random_below(8);
    cmq_file_twin_crash_image_of(run.twin, run.image,
                                 choice == 0   ? CMQ_TWIN_NOTHING
                                 : choice == 1 ? CMQ_TWIN_EVERYTHING
                                               : CMQ_TWIN_MIX);
    run.acknowledged_then = run.acknowledged;
    run.lost = true;
}

static void work(const char *root, cmq_flush_mode flush)
{
    cmq_store_options options = kit_options(root);
    options.fs = cmq_file_twin_fs(run.twin);
    options.flush = flush;
    options.segment_bytes = 256 << 10;
    cmq_store *store = kit_open(&options);
    for (uint32_t i = 0; i < CALLS && !run.lost; i++) {
        append_call(store, i);
        if (cmq_test_random_below(5) == 0) kit_append(store, "T", 0, "-", NULL, NULL);
        if (cmq_test_random_below(20) == 0) CHECK_OK(cmq_store_maintain(store, cmq_test_random_below(2) == 0));
    }
    kit_close(store);
    if (!run.lost) lose(NULL, NULL);
}

static void check_whole(cmq_store *store, uint64_t round, bool all)
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
            CHECK_INT(part, seen[call]);
            seen[call]++;
        }
        cmq_found_batch_release(&found->batch);
    }
    kit_found_free(found);
    cmq_reader_close(reader);
    for (uint32_t i = 0; i < CALLS; i++) {
        if (seen[i] != 0 && seen[i] != run.parts[i])
            cmq_test_fail(__FILE__, __LINE__, "round %" PRIu64 ": %u of %u messages of transaction %u", round, seen[i],
                          run.parts[i], i);
        if (all && i < run.acknowledged_then && seen[i] == 0)
            cmq_test_fail(__FILE__, __LINE__, "round %" PRIu64 ": transaction %u was acknowledged, and is lost", round,
                          i);
    }
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
        cmq_file_twin_on_call(run.twin, 30 + cmq_test_random_below(400), lose, NULL);
        work(root, flush);
        cmq_file_twin_close(run.twin);

        cmq_store_options options = kit_options(image);
        options.segment_bytes = 256 << 10;
        cmq_store *store = kit_open(&options);
        check_whole(store, round, flush == CMQ_FLUSH_SYNC);
        kit_close(store);
        kit_remove_tree(root);
        kit_remove_tree(image);
    }
}

CMQ_TEST_MAIN(CMQ_TEST(power_goes))
