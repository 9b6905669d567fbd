/* Histories of transactions: producers that decide once and answer about any copy, early, late, twice or never; checks;
 * clean stops and kills, with progress that was written down a while ago.
 *
 * At the end everything is asked about until nothing is open: each committed message must be in its topic once, and no
 * rolled-back one. CMQ_HISTORIES sets the number of histories.
 */
#include <stdlib.h>

#include "support/cmq_txn_kit.h"

enum { OPERATIONS = 70, TRANSACTIONS_MAX = 60, PLACES_MAX = 24 };
enum { COMMIT = 8, ROLLBACK = 12, OK = 0, FAILED = 1, LATE = 604 };

typedef struct transaction {
    char unique[16];
    int decision;
    int places;                       /* copies that somebody knows */
    kit_half place[PLACES_MAX];
} transaction;

static kit_broker kit;
static kit_asked asked;
static int client;
static transaction transactions[TRANSACTIONS_MAX];
static int begun;
static int64_t written[2];            /* progress, as it was written down last */
static char root[1024];
static int lives;
static const cmq_txn_rules rules = {.checks_max = 1000, .reserved_ms = INT64_MAX / 2, .op_bytes = 24};

static int below(int bound) { return (int)cmq_test_random_below((uint64_t)bound); }

static void note_progress(void)
{
    const cmq_offset_key half = {.group = kit_slice(CMQ_TXN_GROUP), .topic = kit_slice(CMQ_TXN_TOPIC_HALF)};
    const cmq_offset_key op = {.group = kit_slice(CMQ_TXN_GROUP), .topic = kit_slice(CMQ_TXN_TOPIC_OP)};
    written[0] = cmq_offsets_query(kit.offsets, &half);
    written[1] = cmq_offsets_query(kit.offsets, &op);
}

/* ---- producers ---- */

static void begin(void)
{
    if (begun == TRANSACTIONS_MAX) return;
    transaction *one = &transactions[begun];
    *one = (transaction){.decision = below(2) == 0 ? COMMIT : ROLLBACK, .places = 1};
    snprintf(one->unique, sizeof one->unique, "u%d", begun++);
    one->place[0] = kit_begin(&kit, client, one->unique,
                              below(4) == 0 ? "CHECK_IMMUNITY_TIME_IN_SECONDS\00140\002" : "");
}

/* Answer about any copy, as the sender or as asked. */
static void answer(const transaction *one, bool from_check)
{
    const kit_half place = one->place[below(one->places)];
    kit_send_end(client, 9, "P", place, one->decision, from_check);
    const int code = kit_answer_of(&kit, client)->command.code;
    if (code != OK && code != FAILED && (code != LATE || from_check))
        cmq_test_fail(__FILE__, __LINE__, "an end of %s was answered with %d", one->unique, code);
}

static void answer_any(void)
{
    if (begun > 0) answer(&transactions[below(begun)], below(2) == 0);
}

static void forge(void)
{
    if (begun == 0) return;
    kit_half place = transactions[below(begun)].place[0];
    const int what = below(3);
    if (what == 1) place.physical_offset += 1 + below(200);
    if (what == 2) place.queue_offset += 1 + below(5);
    kit_send_end(client, 9, what == 0 ? "Q" : "P", place, COMMIT, true);
    CHECK_INT(kit_answer_of(&kit, client)->command.code, FAILED);
}

static void check_round(int64_t ms, bool answers)
{
    kit_step(&kit, ms, &asked);
    close(client);   /* the time of several rounds closes an idle connection */
    client = kit_client(&kit);
    for (int i = 0; i < asked.count; i++) {
        transaction *one = &transactions[atoi(asked.items[i].unique + 1)];
        CHECK(one < transactions + begun);
        const kit_half place = {asked.items[i].queue_offset, asked.items[i].physical_offset};
        if (one->places < PLACES_MAX) one->place[one->places++] = place;
        else one->place[below(PLACES_MAX)] = place;
        if (!answers && below(3) > 0) continue;   /* unknown yet */
        kit_send_end(client, 9, "P", place, one->decision, true);
        CHECK_INT(kit_answer_of(&kit, client)->command.code, OK);
    }
}

/* ---- lives of the broker ---- */

static void serve(const char *path, int64_t now_ms)
{
    const cmq_store_options options = {
        .path = path, .create = true, .flush = CMQ_FLUSH_ASYNC, .segment_bytes = 1 << 20};
    cmq_store *store;
    CHECK_OK(cmq_store_open(&store, &options));
    kit_broker_serve_txn(&kit, store, now_ms, &rules, written[0], written[1]);
    client = kit_client(&kit);
}

static void restart(bool killed)
{
    char next[1060];
    const int64_t now_ms = kit.now_ms;
    close(client);
    if (!killed) {
        note_progress();
        kit_broker_stop(&kit);
        serve(root, now_ms);
        return;
    }
    snprintf(next, sizeof next, "%.1000s-%d", root, ++lives);
    kit_copy_tree(root, next);   /* what a killed process leaves */
    kit_broker_stop(&kit);
    kit_remove_tree(root);
    snprintf(root, sizeof root, "%.1000s", next);
    serve(root, now_ms);
}

/* ---- one history ---- */

static void check_outcome(void)
{
    int found[TRANSACTIONS_MAX] = {0};
    for (int64_t offset = 0; offset < kit_max(kit.store, "T", 1); offset++) {
        cmq_found item;
        cmq_found_batch batch = {.items = &item, .capacity = 1};
        CHECK_OK(cmq_store_read_offset(kit.store, kit_slice("T"), 1, offset, &batch));
        const cmq_record_view view = kit_view(&item);
        CHECK(view.body.bytes < 16 && view.body.data[0] == 'u');
        char body[16];
        snprintf(body, sizeof body, "%.*s", (int)view.body.bytes, (const char *)view.body.data);
        found[atoi(body + 1)]++;
        cmq_found_batch_release(&batch);
    }
    for (int i = 0; i < begun; i++) {
        const int expected = transactions[i].decision == COMMIT ? 1 : 0;
        if (found[i] != expected)
            cmq_test_fail(__FILE__, __LINE__, "transaction %s is %d times in its topic, expected %d",
                          transactions[i].unique, found[i], expected);
    }
}

static void operate(void)
{
    switch (below(16)) {
    case 0: case 1: case 2: case 3: case 4: begin(); break;
    case 5: case 6: case 7: answer_any(); break;
    case 8: forge(); break;
    case 9: case 10: check_round(below(4) == 0 ? 45000 : below(12000), false); break;
    case 11: asked.there = below(3) > 0; break;
    case 12: case 13: note_progress(); break;
    case 14: restart(false); break;
    default: restart(true); break;
    }
}

static void history(const char *at)
{
    snprintf(root, sizeof root, "%.1000s", at);
    lives = 0;
    begun = 0;
    asked = (kit_asked){.there = true};
    written[0] = written[1] = -1;
    serve(root, KIT_BROKER_MS);
    for (int i = 0; i < OPERATIONS; i++) operate();
    asked.there = true;
    cmq_txn_counters counters;
    int rounds = 0;
    do {
        CHECK(++rounds < 20);
        check_round(45000, true);
        cmq_txn_count(kit.txn, &counters);
    } while (asked.count > 0 || counters.behind > 0);
    check_outcome();
    close(client);
    kit_broker_stop(&kit);
    kit_remove_tree(root);
}

static void transactions_end_once_in_every_history(void)
{
    const uint64_t histories = kit_amount("CMQ_HISTORIES", 15, 3000);
    const char *folder = kit_directory();
    for (uint64_t i = 0; i < histories; i++) {
        char path[1000];
        snprintf(path, sizeof path, "%.900s/%llu", folder, (unsigned long long)i);
        history(path);
    }
}

CMQ_TEST_MAIN(CMQ_TEST(transactions_end_once_in_every_history))
