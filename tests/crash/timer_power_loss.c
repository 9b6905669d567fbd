/* Power loss, and kill -9, with timers: a store under sync flush takes timers and delivers them; at a random change of
 * its files the power goes; a possible image of the disk is opened, time passes, and every timer that was acknowledged
 * is delivered, at least once and never before its time; nothing else is. Taken out of the service for a trial, the
 * wait for the disk and the flush of the store before the check lose timers in the first round.
 *
 * CMQ_CRASH_ROUNDS: how many losses; without it 30, with CMQ_LONG 20,000. CMQ_SEED repeats a run.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "broker/timer/cmq_timer.h"
#include "support/cmq_file_twin.h"
#include "support/cmq_store_kit.h"

enum { TIMERS = 120, STEP_TIMERS = 6, LOG_FILE_BYTES = 16 + 25 * 52 };

static struct {
    cmq_file_twin *twin;
    const char *image;
    cmq_twin_style style;
    uint32_t acknowledged, acknowledged_then;   /* now, and when the power went */
    int64_t now_then;
    bool lost;
} run;

static int64_t now(void) { return atomic_load(&kit_now_ms); }

static cmq_timer *make_timer(cmq_store *store)
{
    cmq_timer *timer;
    const cmq_timer_options options = {
        .store = store, .clock = kit_clock(), .manual = true, .precision_ms = 100, .log_file_bytes = LOG_FILE_BYTES};
    CHECK_OK(cmq_timer_create(&timer, &options));
    CHECK_OK(cmq_timer_start(timer));
    return timer;
}

/* Timer i says in its body when it is due. */
static void send(cmq_store *store, uint32_t i)
{
    const cmq_timer_options options = {.precision_ms = 100};
    cmq_timer_parked parked;
    cmq_appended appended;
    char body[48];
    const int64_t due_ms = now() + 100 + (int64_t)cmq_test_random_below(3000);
    snprintf(body, sizeof body, "%u %" PRId64, i, due_ms);
    CHECK_OK(cmq_timer_park(&options, kit_slice("T"), 0, due_ms, now(), &parked));
    const cmq_append append = {.common = {.topic = parked.topic, .queue_id = parked.queue_id},
                               .count = 1,
                               .bodies = {.kind = CMQ_COLUMN_ONE, .one = kit_slice(body)},
                               .properties_more = {.kind = CMQ_COLUMN_ONE, .one = parked.extra}};
    CHECK_OK(cmq_store_append(store, &append, &appended));
    run.acknowledged = i + 1;
}

static void lose(void *context, const cmq_twin_call *call)
{
    (void)context;
    (void)call;
    cmq_file_twin_crash_image_of(run.twin, run.image, run.style);
    run.acknowledged_then = run.acknowledged;
    run.now_then = now();
    run.lost = true;
}

static void step(cmq_timer *timer)
{
    int64_t next_due_ms;
    CHECK_OK(cmq_timer_step(timer, &next_due_ms));
}

/* Send and deliver until the power has gone; with a clean stop now and then. */
static void work(const char *root)
{
    cmq_store_options options = kit_options(root);
    options.fs = cmq_file_twin_fs(run.twin);
    cmq_store *store = kit_open(&options);
    cmq_timer *timer = make_timer(store);
    for (uint32_t i = 0; i < TIMERS && !run.lost; i++) {
        send(store, i);
        if (i % STEP_TIMERS == 0) {
            step(timer);
            atomic_fetch_add(&kit_now_ms, (int64_t)cmq_test_random_below(700));
        }
        if (cmq_test_random_below(20) == 0) CHECK_OK(cmq_store_maintain(store, cmq_test_random_below(2) == 0));
    }
    CHECK_OK(cmq_timer_stop(timer));
    cmq_timer_destroy(timer);
    kit_close(store);
    if (!run.lost) lose(NULL, NULL);
}

/* Every acknowledged timer was delivered; none before its time; none that nobody sent. */
static void check_delivered(cmq_store *store, uint64_t round)
{
    bool seen[TIMERS] = {false};
    cmq_reader *reader;
    const cmq_slice topic = kit_slice("T");
    const cmq_read_options options = {.topics = &topic, .topic_count = 1};
    bool end = false;
    if (run.acknowledged_then == 0 && cmq_queues_find(cmq_store_queues(store), topic, 0) == NULL) return;
    CHECK_OK(cmq_reader_open(store, &options, &reader));
    kit_found *found = kit_found_make(64);
    while (!end) {
        CHECK_OK(cmq_reader_next(reader, &found->batch, &end));
        end |= found->batch.count == 0;
        for (uint32_t i = 0; i < found->batch.count; i++) {
            const cmq_record_view view = kit_view(&found->items[i]);
            char body[48] = {0}, *rest;
            CHECK(view.body.bytes < sizeof body);
            memcpy(body, view.body.data, view.body.bytes);
            const unsigned long number = strtoul(body, &rest, 10);
            CHECK(number < TIMERS);
            CHECK(strtoll(rest, NULL, 10) <= view.store_timestamp_ms);
            seen[number] = true;
        }
        cmq_found_batch_release(&found->batch);
    }
    kit_found_free(found);
    cmq_reader_close(reader);
    for (uint32_t i = 0; i < run.acknowledged_then; i++)
        if (!seen[i])
            cmq_test_fail(__FILE__, __LINE__, "round %" PRIu64 ": timer %u of %u was acknowledged, and is lost", round,
                          i, run.acknowledged_then);
}

static void power_goes(void)
{
    const char *directory = kit_directory();
    const uint64_t rounds = kit_amount("CMQ_CRASH_ROUNDS", 30, 20000);
    for (uint64_t round = 0; round < rounds; round++) {
        char root[CMQ_PATH_BYTES], image[CMQ_PATH_BYTES];
        CHECK_OK(cmq_path_join(root, directory, "store"));
        CHECK_OK(cmq_path_join(image, directory, "image"));
        CHECK_OK(cmq_fs_make_directory(cmq_fs_posix(), root));
        kit_set_clock();
        memset(&run, 0, sizeof run);
        run.image = image;
        const uint64_t style = cmq_test_random_below(8);
        run.style = style < 2 ? CMQ_TWIN_NOTHING : style < 4 ? CMQ_TWIN_EVERYTHING : CMQ_TWIN_MIX;
        run.twin = cmq_file_twin_create(root, cmq_test_random());
        cmq_file_twin_on_call(run.twin, 1 + cmq_test_random_below(1500), lose, NULL);
        work(root);
        cmq_file_twin_close(run.twin);

        atomic_store(&kit_now_ms, run.now_then);
        cmq_store *store = kit_open_at(image);
        cmq_timer *timer = make_timer(store);
        cmq_timer_counters counters;
        cmq_timer_count(timer, &counters);
        CHECK(!counters.remade);   /* a power loss is no damage */
        step(timer);
        atomic_fetch_add(&kit_now_ms, 10000);
        step(timer);
        check_delivered(store, round);
        CHECK_OK(cmq_timer_stop(timer));
        cmq_timer_destroy(timer);
        kit_close(store);
        kit_remove_tree(root);
        kit_remove_tree(image);
    }
}

CMQ_TEST_MAIN(CMQ_TEST(power_goes))
