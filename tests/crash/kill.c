/* kill -9: a child process appends and reports acknowledged messages through a pipe; it is killed at some moment, also
 * while it recovers; its store is read by a follower, then recovered and checked by the next child, which goes on
 * appending. Under either flush mode: messages survive the process once append has returned.
 *
 * CMQ_CRASH_ROUNDS: how many kills; without it a few dozen, with CMQ_LONG many. CMQ_SEED repeats the choices, though
 * not the moments.
 */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "support/cmq_ledger.h"
#include "support/cmq_live_follower.h"
#include "support/cmq_store_kit.h"
#include "support/cmq_test.h"

#define ROUNDS_PER_STORE 12
#define FAILED UINT32_MAX    /* a child's report: its check failed */

typedef struct report {
    uint32_t count;          /* messages acknowledged so far; the first report: found by recovery */
} report;

static cmq_store_options options;
static ledger book;
static uint32_t acknowledged;
static live_follower *follower;

static void tell(int pipe_end, uint32_t count)
{
    const report now = {.count = count};
    if (write(pipe_end, &now, sizeof now) != (ssize_t)sizeof now) _exit(2);
}

/* ---- the child ---- */

static void append_until_killed(cmq_store *store, int pipe_end)
{
    for (;;) {
        cmq_appended appended;
        const uint32_t left = ledger_group_left(&book);
        const uint32_t count = 1 + (uint32_t)cmq_test_random_below(left < 12 ? left : 12);
        CHECK_OK(ledger_append(&book, store, count, &(ledger_call){0}, &appended));
        tell(pipe_end, book.count);
        if (cmq_test_random_below(40) == 0) CHECK_OK(cmq_store_maintain(store, cmq_test_random_below(2) == 0));
    }
}

static _Noreturn void run_child(int pipe_end)
{
    char why[LEDGER_WHY_BYTES];
    uint32_t found;
    cmq_store *store;
    const ledger_expected expected = {.acknowledged = acknowledged};
    CHECK_OK(cmq_store_open(&store, &options));
    if (!ledger_check(&book, store, &expected, &found, why)) {
        fprintf(stderr, "recovered: %s\n", why);
        tell(pipe_end, FAILED);
        _exit(1);
    }
    ledger_cut(&book, found);
    book.generation++;
    tell(pipe_end, found);
    append_until_killed(store, pipe_end);
    _exit(3);
}

/* ---- the parent ---- */

static void pause_us(uint64_t us)
{
    const struct timespec pause = {.tv_nsec = (long)us * 1000};
    nanosleep(&pause, NULL);
}

/* Read reports until `enough` came or nothing more will; true while the other end is open. */
static bool read_reports(int pipe_end, uint32_t enough, uint32_t *reports, uint32_t *first, uint32_t *last)
{
    report now;
    while (*reports < enough) {
        const ssize_t got = read(pipe_end, &now, sizeof now);
        if (got < 0 && errno == EINTR) continue;
        if (got != (ssize_t)sizeof now) return false;
        if (now.count == FAILED) cmq_test_fail(__FILE__, __LINE__, "the child's check failed");
        if ((*reports)++ == 0) *first = now.count;
        *last = now.count;
    }
    return true;
}

/* As a follower sees it, before anybody recovers it. */
static void check_as_follower(void)
{
    char why[LEDGER_WHY_BYTES];
    uint32_t found;
    cmq_store *store;
    cmq_store_options read_only = options;
    read_only.read_only = true;
    read_only.create = false;
    const ledger_expected expected = {.acknowledged = acknowledged, .index_may_lack = true};
    const cmq_status status = cmq_store_open(&store, &read_only);
    if (status == CMQ_ERR_NOT_FOUND && acknowledged == 0) return;
    CHECK_OK(status);
    if (!ledger_check(&book, store, &expected, &found, why)) cmq_test_fail(__FILE__, __LINE__, "a follower: %s", why);
    CHECK_OK(cmq_store_close(store));
}

static void one_kill(void)
{
    int ends[2], status;
    uint32_t reports = 0, first = 0, last = 0;
    CHECK(pipe(ends) == 0);
    fflush(NULL);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        close(ends[0]);
        run_child(ends[1]);
    }
    close(ends[1]);
    /* One in four while it opens; else after some reports. */
    if (cmq_test_random_below(4) == 0) {
        pause_us(cmq_test_random_below(3000));
    } else {
        read_reports(ends[0], 2 + (uint32_t)cmq_test_random_below(40), &reports, &first, &last);
        pause_us(cmq_test_random_below(300));
    }
    CHECK(kill(child, SIGKILL) == 0);
    read_reports(ends[0], UINT32_MAX, &reports, &first, &last);
    CHECK(waitpid(child, &status, 0) == child);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
        cmq_test_fail(__FILE__, __LINE__, "the child ended before the kill: %d", status);
    close(ends[0]);
    if (reports > 0) {
        /* The child cut its ledger to what it found and went on; one call may have been in progress. */
        ledger_cut(&book, first);
        book.generation++;
        acknowledged = last;
        ledger_foresee(&book, last - first + LEDGER_GROUP);
    }
    (void)cmq_test_random();
    check_as_follower();
}

static void begin_store(const char *directory, uint32_t number)
{
    static char root[CMQ_PATH_BYTES];
    snprintf(root, sizeof root, "%.3000s/store-%" PRIu32, directory, number);
    options = kit_options(root);
    options.clock = cmq_clock_system();
    options.background = true;
    options.flush = cmq_test_random_below(2) == 0 ? CMQ_FLUSH_SYNC : CMQ_FLUSH_ASYNC;
    options.lmq_enabled = cmq_test_random_below(2) == 0;
    options.ext_enabled = cmq_test_random_below(4) == 0;
    options.durable_point_bytes = 1 + (int64_t)cmq_test_random_below(200000);
    ledger_free(&book);
    ledger_init(&book, cmq_test_random());
    book.light = options.lmq_enabled;
    book.prepared = true;
    book.hostile = cmq_test_random_below(4) != 0;
    acknowledged = 0;
    follower = live_follower_start(&options, &book);
}

static void end_store(void)
{
    live_follower_end(follower, acknowledged);
    kit_remove_tree(options.path);
}

static void killed(void)
{
    const char *directory = kit_directory();
    const uint32_t rounds = (uint32_t)kit_amount("CMQ_CRASH_ROUNDS", 30, 10000);
    uint64_t messages = 0;
    for (uint32_t round = 0; round < rounds; round++) {
        if (round % ROUNDS_PER_STORE == 0) {
            messages += acknowledged;
            if (round > 0) end_store();
            begin_store(directory, round);
        }
        one_kill();
        live_follower_check(follower);
    }
    end_store();
    printf("killed: %" PRIu32 " times over %" PRIu64 " messages, seed %" PRIu64 "\n", rounds, messages + acknowledged,
           cmq_test_seed());
    ledger_free(&book);
}

CMQ_TEST_MAIN(CMQ_TEST(killed))
