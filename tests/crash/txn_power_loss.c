/* Power loss, and kill -9, with transactions: half messages, commits, rollbacks and checks are under way when the power
 * goes, at a random change of the store's files; a broker continues on a possible image of the disk, and may lose its
 * power, too. At the end the producers are asked until nothing is open:
 *
 *   - a half message that was acknowledged and commits is in its topic exactly once
 *   - one that was not acknowledged is there once, or never
 *   - one that is rolled back is never there
 *   - an acknowledged one whose end nobody has sent is asked about
 *
 * Acknowledged: under sync flush by its answer, under async flush by a flush behind its answer. An end is answered
 * before the disk has it, so that any end may be lost. The progress that a broker begins with is the present one, the
 * one that was written down last, or of the half queue the present one and of the op queue the older one.
 *
 * Taken out of the service for a trial, the search for commits without an op record commits transactions twice, and the
 * flush in front of the progress loses them, both in the first four rounds.
 *
 * CMQ_CRASH_ROUNDS: how many rounds; without it 30, with CMQ_LONG 20,000. CMQ_SEED repeats a run, but for the times at
 * which the store's threads flush.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/cmq_file_twin.h"
#include "support/cmq_txn_kit.h"

enum { LIVES_MAX = 3, OPERATIONS = 40, TRANSACTIONS_MAX = 150, PLACES_MAX = 8, BURST_MAX = 6, CALLS_MAX = 500 };
enum { COMMIT = 8, ROLLBACK = 12, OK = 0, FAILED = 1, LATE = 604 };
enum { END_OPAQUE = 1000000 };

typedef struct transaction {
    char unique[16];
    int decision;
    int places;                       /* copies that somebody knows */
    kit_half place[PLACES_MAX];
    bool answered, kept;              /* kept: acknowledged before a power loss, so that it is there for good */
    bool ending;                      /* an end was sent */
    bool asked;                       /* in the last life */
} transaction;

typedef struct progress {
    int64_t half, op;
} progress;

static kit_broker kit;
static kit_asked asked;
static int client;
static transaction transactions[TRANSACTIONS_MAX];
static int begun;
static const cmq_txn_rules rules = {.checks_max = 1000, .reserved_ms = INT64_MAX / 2, .op_bytes = 24};

static struct {
    cmq_file_twin *twin;
    const char *image;
    cmq_twin_style style;
    bool sync;
    bool hasty;                       /* an answer acknowledges under async flush, too, to see what comes of it */
    _Atomic int acknowledged;         /* those before this one are, if they were begun in this life */
    _Atomic int64_t written_half, written_op;
    pthread_mutex_t serving_mutex;
    bool serving;                     /* the offsets are there */
    /* when the power went */
    int acknowledged_then;
    progress written_then, present_then;
    atomic_bool going, lost;
    bool violated;
    char why[200];
} run = {.serving_mutex = PTHREAD_MUTEX_INITIALIZER};

static uint64_t losses, recovered, questions;

static int below(int bound) { return (int)cmq_test_random_below((uint64_t)bound); }

/* ---- progress ---- */

/* A round commits the half queue's progress first: read in this order, that of the op queue is never the newer one. */
static progress present_progress(void)
{
    const cmq_offset_key half = {.group = kit_slice(CMQ_TXN_GROUP), .topic = kit_slice(CMQ_TXN_TOPIC_HALF)};
    const cmq_offset_key op = {.group = kit_slice(CMQ_TXN_GROUP), .topic = kit_slice(CMQ_TXN_TOPIC_OP)};
    progress now;
    now.op = cmq_offsets_query(kit.offsets, &op);
    now.half = cmq_offsets_query(kit.offsets, &half);
    return now;
}

static void write_progress(void)
{
    const progress now = present_progress();
    run.written_half = now.half;
    run.written_op = now.op;
}

static void set_serving(bool serving)
{
    pthread_mutex_lock(&run.serving_mutex);
    run.serving = serving;
    pthread_mutex_unlock(&run.serving_mutex);
}

/* The test's thread or one of the store's. What it notes first is in the image. */
static void lose(void *context, const cmq_twin_call *call)
{
    (void)context;
    (void)call;
    if (atomic_exchange(&run.going, true)) return;
    run.acknowledged_then = run.acknowledged;
    run.written_then.op = run.written_op;
    run.written_then.half = run.written_half;
    pthread_mutex_lock(&run.serving_mutex);
    run.present_then = run.serving ? present_progress() : run.written_then;
    pthread_mutex_unlock(&run.serving_mutex);
    cmq_file_twin_crash_image_of(run.twin, run.image, run.style);
    run.lost = true;
}

/* ---- producers ---- */

static void take_half(const kit_answer *answer)
{
    const int i = answer->command.opaque;
    cmq_record_host host;
    CHECK(i >= 0 && i < begun && answer->command.code == OK);
    transaction *one = &transactions[i];
    one->place[0].queue_offset = kit_number(answer, "queueOffset");
    CHECK_OK(cmq_message_id_parse(cmq_slice_of_text(kit_text(answer, "msgId")), &host, &one->place[0].physical_offset));
    one->places = 1;
    one->answered = true;
    if (!run.sync && !run.hasty) return;
    while (run.acknowledged < begun && transactions[run.acknowledged].answered) run.acknowledged++;
}

static void take_answer(void)
{
    const kit_answer *answer = kit_answer_of(&kit, client);
    if (answer->command.opaque < END_OPAQUE) {
        take_half(answer);
        return;
    }
    const int code = answer->command.code;
    if (code != OK && code != FAILED && code != LATE)
        cmq_test_fail(__FILE__, __LINE__, "an end was answered with %d", code);
}

static bool send_half(void)
{
    if (begun == TRANSACTIONS_MAX) return false;
    transaction *one = &transactions[begun];
    *one = (transaction){.decision = below(2) == 0 ? COMMIT : ROLLBACK};
    snprintf(one->unique, sizeof one->unique, "u%d", begun);
    kit_send_half(&kit, client, begun++, one->unique,
                  below(4) == 0 ? "CHECK_IMMUNITY_TIME_IN_SECONDS\00140\002" : "");
    return true;
}

/* About any copy, as the sender or as asked; also again. */
static bool send_end(void)
{
    if (begun == 0) return false;
    transaction *one = &transactions[below(begun)];
    if (one->places == 0) return false;
    kit_send_end(client, END_OPAQUE, "P", one->place[below(one->places)], one->decision, below(2) == 0);
    one->ending = true;
    return true;
}

/* Several requests are on their way at once. */
static void burst(void)
{
    int sent = 0;
    for (int left = 1 + below(BURST_MAX); left > 0; left--) sent += below(2) == 0 ? send_half() : send_end();
    while (sent-- > 0) take_answer();
}

static void flush(void)
{
    const int answered = begun;
    CHECK_OK(cmq_store_flush(kit.store));
    run.acknowledged = answered;
}

static void check_round(int64_t ms, bool last)
{
    kit_step(&kit, ms, &asked);
    close(client);   /* the time of several rounds closes an idle connection */
    client = kit_client(&kit);
    questions += (uint64_t)asked.count;
    for (int i = 0; i < asked.count; i++) {
        transaction *one = &transactions[atoi(asked.items[i].unique + 1)];
        CHECK(one < transactions + begun);
        const kit_half place = {asked.items[i].queue_offset, asked.items[i].physical_offset};
        if (one->places < PLACES_MAX) one->place[one->places++] = place;
        else one->place[below(PLACES_MAX)] = place;
        one->asked = last;
        if (!last && below(3) > 0) continue;   /* unknown yet */
        kit_send_end(client, END_OPAQUE, "P", place, one->decision, true);
        one->ending |= !last;
        CHECK_INT(kit_answer_of(&kit, client)->command.code, OK);
    }
}

/* ---- lives of the broker ---- */

static void serve(const char *root, cmq_fs *fs, const progress *from, int64_t now_ms)
{
    cmq_store_options options = kit_options(root);
    options.fs = fs;
    options.flush = run.sync ? CMQ_FLUSH_SYNC : CMQ_FLUSH_ASYNC;
    options.background = run.sync;
    kit_broker_serve_txn(&kit, kit_open(&options), now_ms, &rules, from->half, from->op);
    client = kit_client(&kit);
    cmq_txn_counters counters;
    cmq_txn_count(kit.txn, &counters);
    recovered += counters.recovered;
}

static void operate(void)
{
    switch (below(12)) {
    case 0: case 1: case 2: case 3: case 4: case 5: burst(); break;
    case 6: case 7: check_round(below(3) == 0 ? 45000 : below(12000), false); break;
    case 8: asked.there = below(4) > 0; break;
    case 9: write_progress(); break;
    case 10: if (!run.sync) flush(); break;
    default: if (!run.sync) CHECK_OK(cmq_store_maintain(kit.store, below(2) == 0)); break;
    }
}

/* Until the power goes; *from becomes the progress of the next life. Returns the time. */
static int64_t live(const char *root, const char *image, progress *from, int64_t now_ms)
{
    run.image = image;
    run.going = run.lost = false;
    run.sync = below(2) == 0;
    const int style = below(8);
    run.style = style < 2 ? CMQ_TWIN_NOTHING : style < 4 ? CMQ_TWIN_EVERYTHING : CMQ_TWIN_MIX;
    run.acknowledged = begun;
    run.written_half = from->half;
    run.written_op = from->op;
    run.twin = cmq_file_twin_create(root, cmq_test_random());
    cmq_file_twin_on_call(run.twin, 1 + cmq_test_random_below(CALLS_MAX), lose, NULL);
    const int first = begun;
    serve(root, cmq_file_twin_fs(run.twin), from, now_ms);
    set_serving(true);
    for (int i = 0; i < OPERATIONS && !run.lost; i++) operate();
    now_ms = kit.now_ms;
    if (below(2) == 0) lose(NULL, NULL);
    close(client);
    write_progress();
    set_serving(false);
    kit_broker_stop(&kit);
    lose(NULL, NULL);
    cmq_file_twin_close(run.twin);
    losses++;
    for (int i = first; i < begun; i++) transactions[i].kept = i < run.acknowledged_then;
    /* A place that the loss took may be another message's now. */
    for (int i = 0; i < begun; i++)
        if (!transactions[i].kept) transactions[i].places = 0;
        else if (transactions[i].places > 1) transactions[i].places = 1;
    const int which = below(3);
    from->half = which == 0 ? run.written_then.half : run.present_then.half;
    from->op = which == 2 ? run.present_then.op : run.written_then.op;
    return now_ms;
}

/* ---- outcomes ---- */

static void violated(int i, const char *what)
{
    if (!run.violated) snprintf(run.why, sizeof run.why, "transaction u%d %s", i, what);
    run.violated = true;
}

static void check_outcomes(void)
{
    int found[TRANSACTIONS_MAX] = {0};
    const int64_t end = cmq_queues_find(cmq_store_queues(kit.store), kit_slice("T"), 1) != NULL
                            ? kit_max(kit.store, "T", 1) : 0;
    for (int64_t offset = 0; offset < end; offset++) {
        cmq_found item;
        cmq_found_batch batch = {.items = &item, .capacity = 1};
        CHECK_OK(cmq_store_read_offset(kit.store, kit_slice("T"), 1, offset, &batch));
        const cmq_record_view view = kit_view(&item);
        char body[16];
        CHECK(view.body.bytes < sizeof body && view.body.data[0] == 'u');
        snprintf(body, sizeof body, "%.*s", (int)view.body.bytes, (const char *)view.body.data);
        const int i = atoi(body + 1);
        CHECK(i < begun);
        found[i]++;
        cmq_found_batch_release(&batch);
    }
    for (int i = 0; i < begun; i++) {
        const transaction *one = &transactions[i];
        if (found[i] > 1) violated(i, "was committed twice");
        if (found[i] > 0 && one->decision == ROLLBACK) violated(i, "was rolled back, and is in its topic");
        if (found[i] == 0 && one->decision == COMMIT && one->kept) violated(i, "was acknowledged, and is lost");
        if (one->kept && !one->ending && !one->asked) violated(i, "is open, and nobody was asked");
    }
}

static void finish(const char *root, const progress *from, int64_t now_ms)
{
    cmq_txn_counters counters;
    int rounds = 0;
    run.sync = false;
    serve(root, NULL, from, now_ms);
    asked.there = true;
    do {
        CHECK(++rounds < 20);
        check_round(45000, true);
        cmq_txn_count(kit.txn, &counters);
    } while (asked.count > 0 || counters.behind > 0);
    check_outcomes();
    close(client);
    kit_broker_stop(&kit);
}

static void round_of_lives(const char *directory)
{
    static char roots[LIVES_MAX + 1][CMQ_PATH_BYTES];
    progress from = {-1, -1};
    int64_t now_ms = KIT_BROKER_MS;
    const int lives = 1 + below(LIVES_MAX);
    for (int i = 0; i <= lives; i++) snprintf(roots[i], sizeof roots[i], "%.3000s/life-%d", directory, i);
    CHECK_OK(cmq_fs_make_directory(cmq_fs_posix(), roots[0]));
    kit_set_clock();
    begun = 0;
    asked = (kit_asked){.there = true};
    run.violated = false;
    for (int i = 0; i < lives; i++) {
        now_ms = live(roots[i], roots[i + 1], &from, now_ms);
        kit_remove_tree(roots[i]);
    }
    finish(roots[lives], &from, now_ms);
    kit_remove_tree(roots[lives]);
}

static void transactions_outlive_power_losses(void)
{
    const char *directory = kit_directory();
    const uint64_t rounds = kit_amount("CMQ_CRASH_ROUNDS", 30, 20000);
    losses = recovered = questions = 0;
    for (uint64_t i = 0; i < rounds; i++) {
        round_of_lives(directory);
        if (run.violated) cmq_test_fail(__FILE__, __LINE__, "round %" PRIu64 ": %s", i, run.why);
    }
    printf("transactions: %" PRIu64 " rounds, %" PRIu64 " losses, %" PRIu64 " questions, %" PRIu64
           " commits found without op records, seed %" PRIu64 "\n",
           rounds, losses, questions, recovered, cmq_test_seed());
}

/* The checks' own proof. */
static void an_answer_under_async_flush_is_no_promise(void)
{
    const char *directory = kit_directory();
    run.hasty = true;
    for (int i = 0; i < 200 && !run.violated; i++) round_of_lives(directory);
    run.hasty = false;
    CHECK(run.violated);
    printf("without a flush: %s\n", run.why);
}

CMQ_TEST_MAIN(CMQ_TEST(transactions_outlive_power_losses), CMQ_TEST(an_answer_under_async_flush_is_no_promise))
