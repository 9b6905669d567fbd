/* Transactions on several loops, which are ended twice, while checks copy them, ask, and are answered: each is
 * committed once, and no rolled-back one.
 *
 * Threads: yes.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "support/cmq_txn_kit.h"

enum { PRODUCERS = 3, TRANSACTIONS = 60, COMMIT = 8, ROLLBACK = 12 };

static kit_broker kit;
static _Atomic int producing;
static const cmq_txn_rules rules = {.timeout_ms = 1, .interval_ms = 1, .op_bytes = 30, .checks_max = 100000};

/* The id says the outcome: an even number commits. */
static int decision_of(const char *unique) { return atoi(unique + 3) % 2 == 0 ? COMMIT : ROLLBACK; }

static void *produce(void *argument)
{
    const int number = *(const int *)argument, client = kit_client(&kit);
    for (int i = 0; i < TRANSACTIONS; i++) {
        char unique[16];
        snprintf(unique, sizeof unique, "u%d-%d", number, i);
        const kit_half half = kit_begin(&kit, client, unique, "");
        for (int times = i % 3; times > 0; times--) CHECK_INT(kit_end(&kit, client, half, decision_of(unique)), 0);
    }
    close(client);
    kit_forget_answer();
    atomic_fetch_sub(&producing, 1);
    return NULL;
}

static void *count(void *unused)
{
    cmq_txn_counters counters;
    cmq_traffic_item items[4];
    while (atomic_load(&producing) > 0) {
        uint32_t cursor = 0;
        cmq_txn_count(kit.txn, &counters);
        (void)cmq_txn_list_halves(kit.txn, &cursor, items, 4);
        cmq_txn_set_rules(kit.txn, &rules);
    }
    return unused;
}

/* One step of checks, whose questions are answered. False: everything has ended. */
static bool check_all(int client, kit_asked *asked)
{
    const cmq_txn_asker asker = {.is_there = kit_is_there, .ask = kit_ask, .context = asked};
    cmq_txn_counters counters;
    bool more;
    const bool over = atomic_load(&producing) == 0;   /* first: what comes later is behind */
    atomic_fetch_add(&kit.now_ms, 5);
    asked->count = 0;
    CHECK_OK(cmq_txn_step(kit.txn, &asker, &more));
    for (int i = 0; i < asked->count; i++) {
        const kit_half copy = {asked->items[i].queue_offset, asked->items[i].physical_offset};
        kit_send_end(client, i, "P", copy, decision_of(asked->items[i].unique), true);
        CHECK_INT(kit_answer_of(&kit, client)->command.code, 0);
    }
    cmq_txn_count(kit.txn, &counters);
    return more || asked->count > 0 || counters.behind > 0 || !over;
}

static void check_outcome(void)
{
    int found[PRODUCERS][TRANSACTIONS] = {0};
    for (int64_t offset = 0; offset < kit_max(kit.store, "T", 1); offset++) {
        cmq_found item;
        cmq_found_batch batch = {.items = &item, .capacity = 1};
        CHECK_OK(cmq_store_read_offset(kit.store, kit_slice("T"), 1, offset, &batch));
        const cmq_record_view view = kit_view(&item);
        char body[16];
        snprintf(body, sizeof body, "%.*s", (int)view.body.bytes, (const char *)view.body.data);
        found[body[1] - '0'][atoi(body + 3)]++;
        cmq_found_batch_release(&batch);
    }
    for (int number = 0; number < PRODUCERS; number++)
        for (int i = 0; i < TRANSACTIONS; i++) CHECK_INT(found[number][i], i % 2 == 0 ? 1 : 0);
}

static void run(cmq_flush_mode flush)
{
    int numbers[PRODUCERS];
    pthread_t threads[PRODUCERS + 1];
    static kit_asked asked;
    asked = (kit_asked){.there = true};
    kit_broker_start_txn_threads(&kit, cmq_test_directory(), flush, &rules, 2);
    atomic_store(&producing, PRODUCERS);
    for (int i = 0; i < PRODUCERS; i++) {
        numbers[i] = i;
        CHECK_INT(pthread_create(&threads[i], NULL, produce, &numbers[i]), 0);
    }
    CHECK_INT(pthread_create(&threads[PRODUCERS], NULL, count, NULL), 0);
    const int client = kit_client(&kit);
    while (check_all(client, &asked)) continue;
    for (int i = 0; i <= PRODUCERS; i++) CHECK_INT(pthread_join(threads[i], NULL), 0);
    CHECK_OK(cmq_store_flush(kit.store));
    check_outcome();
    close(client);
    kit_broker_stop(&kit);
}

static void transactions_of_many_loops_end_once(void) { run(CMQ_FLUSH_ASYNC); }
static void transactions_end_once_under_sync_flush(void) { run(CMQ_FLUSH_SYNC); }

CMQ_TEST_MAIN(CMQ_TEST(transactions_of_many_loops_end_once), CMQ_TEST(transactions_end_once_under_sync_flush))
