/* A random test of cmq_recover: a store has a history of appends, deletions, retention, points and kills, loses queue
 * files between its openings, and every opening has all messages whose records have not expired, at their offsets.
 * CMQ_LOSS_HISTORIES histories.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "store/cmq_store.h"
#include "store/queue/cmq_queue.h"
#include "support/cmq_store_kit.h"
#include "support/cmq_test.h"

#define QUEUES 4   /* two of each of two topics */
#define ROUNDS 5
#define OPERATIONS 40

static struct {
    char root[512];
    cmq_store_options options;
    int appended[QUEUES];
    int64_t min[QUEUES];
    kit_found *found;
} run;

static int below(int limit) { return (int)cmq_test_random_below((uint64_t)limit); }

static const char *topic_of(int queue) { return queue < QUEUES / 2 ? "T" : "U"; }

static void append(cmq_store *store, int queue)
{
    char body[16];
    snprintf(body, sizeof body, "m%d", run.appended[queue]++);
    kit_append(store, topic_of(queue), queue % 2, body, NULL, NULL);
}

/* ---- one store's history ---- */

static void expire(cmq_store *store)
{
    uint32_t deleted;
    atomic_fetch_add(&kit_now_ms, 1500);
    CHECK_OK(cmq_store_expire(store, true, &deleted));
    CHECK_OK(cmq_store_maintain(store, true));   /* the point that follows */
}

static void operate(cmq_store *store)
{
    static char other[400];
    memset(other, 'o', sizeof other - 1);
    switch (below(16)) {
    case 0: CHECK_OK(cmq_store_maintain(store, true)); break;
    case 1:
        atomic_fetch_add(&kit_now_ms, 1100);
        CHECK_OK(cmq_store_maintain(store, false));
        break;
    case 2: expire(store); break;
    case 3: kit_append_many(store, "Gone", "g", 1 + below(4)); break;
    case 4:
        kit_append_many(store, "Gone", "g", 1);
        CHECK_OK(cmq_store_delete_topic(store, kit_slice("Gone")));
        break;
    case 5: for (int left = below(8); left >= 0; left--) kit_append(store, "Other", 0, other, NULL, NULL); break;
    default: for (int left = below(8); left >= 0; left--) append(store, below(QUEUES));
    }
}

static void close_or_kill(cmq_store *store)
{
    for (int queue = 0; queue < QUEUES; queue++) append(store, queue);   /* none has expired as a whole */
    CHECK_OK(cmq_store_flush(store));
    for (int queue = 0; queue < QUEUES; queue++) run.min[queue] = kit_min(store, topic_of(queue), queue % 2);
    if (below(2)) cmq_store_abandon(store);
    else kit_close(store);
}

/* ---- losses ---- */

static void lose_file(int queue, int file, bool is_last)
{
    static const uint8_t zeros[KIT_QUEUE_UNITS * CMQ_UNIT_BYTES];
    char name[96];
    snprintf(name, sizeof name, "consumequeue/%s/%d/%020d", topic_of(queue), queue % 2,
             file * KIT_QUEUE_UNITS * CMQ_UNIT_BYTES);
    const char *path = kit_path(run.root, name);
    const int how = below(3), kept = below(KIT_QUEUE_UNITS);
    if (!kit_exists(path)) return;
    if (how == 0) kit_resize(path, 0);
    else if (how == 1 && is_last)
        kit_write_bytes(path, kept * CMQ_UNIT_BYTES, zeros, (size_t)(KIT_QUEUE_UNITS - kept) * CMQ_UNIT_BYTES);
    else CHECK(unlink(path) == 0);
}

static void lose(int queue)
{
    char name[96];
    const int last = run.appended[queue] / KIT_QUEUE_UNITS;
    const bool whole = below(5) == 0;
    snprintf(name, sizeof name, "consumequeue/%s", topic_of(queue));
    if (whole) kit_remove_tree(kit_path(run.root, name));
    for (int left = below(3); left >= 0 && !whole; left--) {
        const int file = below(last + 1);
        lose_file(queue, file, file == last);
    }
}

/* ---- what is left ---- */

static void check(cmq_store *store, int queue)
{
    const cmq_slice topic = kit_slice(topic_of(queue));
    CHECK_INT(kit_max(store, topic_of(queue), queue % 2), run.appended[queue]);
    CHECK(kit_min(store, topic_of(queue), queue % 2) <= run.min[queue]);   /* a view's may be fillers */
    for (int i = (int)run.min[queue]; i < run.appended[queue]; i++) {
        char body[16];
        snprintf(body, sizeof body, "m%d", i);
        CHECK_OK(cmq_store_read_offset(store, topic, queue % 2, i, &run.found->batch));
        CHECK(kit_body_is(&run.found->items[0], body));
        cmq_found_batch_release(&run.found->batch);
    }
}

static void reopen_and_check(bool read_only)
{
    run.options.read_only = read_only;
    cmq_store *store = kit_open(&run.options);
    for (int queue = 0; queue < QUEUES; queue++) check(store, queue);
    kit_close(store);
}

static void run_history(void)
{
    run.options = kit_options(run.root);
    run.options.retention.reserved_ms = 1;
    run.options.retention.files_per_round = 1;
    run.options.flush = below(2) ? CMQ_FLUSH_ASYNC : CMQ_FLUSH_SYNC;
    run.options.durable_point_ms = below(2) ? 3000 : 60000;
    memset(run.appended, 0, sizeof run.appended);
    kit_set_clock();
    for (int round = 0; round < ROUNDS; round++) {
        run.options.read_only = false;
        cmq_store *store = kit_open(&run.options);
        for (int left = below(OPERATIONS); left > 0; left--) operate(store);
        close_or_kill(store);
        for (int queue = 0; queue < QUEUES; queue++)
            if (below(3) == 0) lose(queue);
        reopen_and_check(true);
        reopen_and_check(false);
        reopen_and_check(true);
    }
    kit_remove_tree(run.root);
}

static void lost_queue_files_lose_no_message(void)
{
    snprintf(run.root, sizeof run.root, "%s", kit_path(kit_directory(), "store"));
    run.found = kit_found_make(8);
    for (uint64_t left = kit_amount("CMQ_LOSS_HISTORIES", 60, 5000); left > 0; left--) run_history();
    kit_found_free(run.found);
}

CMQ_TEST_MAIN(CMQ_TEST(lost_queue_files_lose_no_message))
