/* cmq_live_follower: see cmq_live_follower.h. */
#include "support/cmq_live_follower.h"

#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "store/queue/cmq_queue.h"
#include "support/cmq_test.h"

#define ITEMS 64u
#define WAIT_MS 20
#define REOPEN_ONE_IN 12
#define WAYS 2                /* without a tag, and by WATCHED_TAG */
#define WATCHED_TAG "t1"

/* Shared with the test's process. */
typedef struct shared {
    _Atomic bool end;
    _Atomic uint32_t acknowledged;   /* with end */
    _Atomic uint64_t views, messages;
} shared;

struct live_follower {
    shared *shared;
    pid_t pid;
};

/* One topic, read in one way by the present view. */
typedef struct course {
    cmq_reader *reader;
    uint32_t next;            /* number from which to look for the next message */
    int64_t offset[LEDGER_QUEUES];
} course;

typedef struct following {
    const ledger *of;
    cmq_store_options options;
    shared *shared;
    cmq_store *store;
    course courses[LEDGER_TOPICS][WAYS];
    uint32_t shown_of[LEDGER_TOPICS];   /* messages of the topic below this number were shown by some view */
    int64_t committed[LEDGER_TOPICS][LEDGER_QUEUES];
    cmq_found items[ITEMS];
    cmq_found_batch batch;
    char why[LEDGER_WHY_BYTES];
} following;

static _Noreturn void fail(following *f, const char *doing)
{
    fprintf(stderr, "the live follower, %s: %s\n", doing, f->why);
    _exit(1);
}

static _Noreturn void fail_status(following *f, const char *doing, cmq_status status)
{
    snprintf(f->why, sizeof f->why, "%s: %.300s", cmq_status_name(status), cmq_last_error()->text);
    fail(f, doing);
}

static bool belongs(const ledger *of, uint32_t number, uint32_t topic, int way, ledger_plan *plan_out)
{
    ledger_plan_of(of, number, plan_out);
    return plan_out->topic_number == topic && !plan_out->prepared &&
           (way == 0 || strcmp(plan_out->tag, WATCHED_TAG) == 0);
}

/* ---- views ---- */

static void close_view(following *f)
{
    for (int topic = 0; topic < LEDGER_TOPICS; topic++) {
        for (int way = 0; way < WAYS; way++) {
            cmq_reader_close(f->courses[topic][way].reader);
            f->courses[topic][way] = (course){0};
        }
    }
    if (f->store != NULL && cmq_store_close(f->store) != CMQ_OK)
        fail_status(f, "closing a view", cmq_last_error()->status);
    f->store = NULL;
}

/* A view that was cut, or overtaken by retention, says so; all else is a failure. */
static bool wants_reopening(cmq_status status) { return status == CMQ_ERR_CLOSED; }

static bool open_view(following *f)
{
    cmq_status status = cmq_store_open(&f->store, &f->options);
    if (status == CMQ_ERR_NOT_FOUND || wants_reopening(status)) return false;
    if (status != CMQ_OK) fail_status(f, "opening a view", status);
    for (uint32_t topic = 0; topic < LEDGER_TOPICS; topic++) {
        for (int way = 0; way < WAYS; way++) {
            char text[16];
            snprintf(text, sizeof text, "topic-%" PRIu32, topic);
            const cmq_slice name = cmq_slice_of_text(text), tag = cmq_slice_of_text(WATCHED_TAG);
            const cmq_read_options options = {
                .topics = &name, .topic_count = 1, .may_be_missing = true, .tags = &tag, .tag_count = way == 0 ? 0 : 1};
            status = cmq_reader_open(f->store, &options, &f->courses[topic][way].reader);
            if (wants_reopening(status)) {
                close_view(f);
                return false;
            }
            if (status != CMQ_OK) fail_status(f, "opening a reader", status);
        }
    }
    atomic_fetch_add(&f->shared->views, 1);
    return true;
}

/* ---- reading ---- */

static void take(following *f, uint32_t topic, int way, const cmq_found *found)
{
    course *of = &f->courses[topic][way];
    ledger_stamp stamp;
    ledger_plan plan;
    if (!ledger_is_whole(f->of, found, &stamp, f->why))
        fail(f, way == 0 ? "reading a topic" : "reading a topic by tag");
    while (!belongs(f->of, of->next, topic, way, &plan)) of->next++;
    if (stamp.number != of->next) {
        snprintf(f->why, sizeof f->why,
                 "topic %" PRIu32 " gave message %" PRIu32 " (queue %" PRId32 ", offset %" PRId64 ", at %" PRId64
                 ") where %" PRIu32 " of queue %" PRId32 " was its next",
                 topic, stamp.number, cmq_queue_id(found->queue), found->queue_offset, found->physical_offset, of->next,
                 plan.queue_id);
        fail(f, way == 0 ? "reading a topic" : "reading a topic by tag");
    }
    if (way == 0) {
        if (found->queue_offset != of->offset[plan.queue_id]) {
            snprintf(f->why, sizeof f->why,
                     "message %" PRIu32 " has offset %" PRId64 " in queue %" PRId32 " of topic %" PRIu32
                     ", behind offset %" PRId64,
                     stamp.number, found->queue_offset, plan.queue_id, topic, of->offset[plan.queue_id] - 1);
            fail(f, "reading a topic");
        }
        of->offset[plan.queue_id]++;
        if (of->next >= f->shown_of[topic]) f->shown_of[topic] = of->next + 1;
    }
    of->next++;
    atomic_fetch_add_explicit(&f->shared->messages, 1, memory_order_relaxed);
}

/* Read on until nothing comes. False: the view wants to be opened again. */
static bool read_course(following *f, uint32_t topic, int way)
{
    for (bool end = false; !end;) {
        const cmq_status status = cmq_reader_next(f->courses[topic][way].reader, &f->batch, &end);
        if (wants_reopening(status)) return false;
        if (status != CMQ_OK) fail_status(f, way == 0 ? "reading a topic" : "reading a topic by tag", status);
        if (f->batch.count == 0) break;
        for (uint32_t i = 0; i < f->batch.count; i++) take(f, topic, way, &f->batch.items[i]);
        cmq_found_batch_release(&f->batch);
    }
    return true;
}

/* This view must have shown by now every message of an earlier view. */
static void check_shown(following *f, uint32_t topic)
{
    ledger_plan plan;
    for (uint32_t number = f->courses[topic][0].next; number < f->shown_of[topic]; number++) {
        if (!belongs(f->of, number, topic, 0, &plan)) continue;
        snprintf(f->why, sizeof f->why,
                 "message %" PRIu32 " of topic %" PRIu32 ", queue %" PRId32
                 ", which an earlier view has shown, is not there; the view ends at %" PRId64,
                 number, topic, plan.queue_id, cmq_store_confirmed(f->store));
        fail(f, "reading a topic again");
    }
}

/* The group's progress is what was read; it must never be outside a queue. */
static void commit(following *f, uint32_t topic)
{
    for (int32_t id = 0; id < LEDGER_QUEUES; id++) {
        char text[16];
        snprintf(text, sizeof text, "topic-%" PRIu32, topic);
        const cmq_queue *queue = cmq_queues_find(cmq_store_queues(f->store), cmq_slice_of_text(text), id);
        const int64_t min = queue == NULL ? 0 : cmq_queue_min(queue),
                      max = queue == NULL ? 0 : cmq_queue_max(queue, cmq_store_confirmed(f->store));
        if (min > 0 || f->committed[topic][id] > max) {
            snprintf(f->why, sizeof f->why,
                     "queue %s/%" PRId32 " is [%" PRId64 ", %" PRId64 "), and the group has read up to %" PRId64, text,
                     id, min, max, f->committed[topic][id]);
            fail(f, "committing");
        }
        f->committed[topic][id] = f->courses[topic][0].offset[id];
    }
}

static bool look_up_one(following *f, uint32_t topic)
{
    const uint32_t id = (uint32_t)cmq_test_random_below(LEDGER_QUEUES);
    const int64_t read = f->courses[topic][0].offset[id];
    ledger_stamp stamp;
    char text[16];
    snprintf(text, sizeof text, "topic-%" PRIu32, topic);
    if (read == 0) return true;
    const cmq_status status = cmq_store_read_offset(f->store, cmq_slice_of_text(text), (int32_t)id,
                                                    (int64_t)cmq_test_random_below((uint64_t)read), &f->batch);
    if (wants_reopening(status)) return false;
    if (status != CMQ_OK) fail_status(f, "looking up an offset", status);
    if (!ledger_is_whole(f->of, &f->batch.items[0], &stamp, f->why)) fail(f, "looking up an offset");
    cmq_found_batch_release(&f->batch);
    return true;
}

/* By its own key a message that an earlier look has shown is found, also while the index is being recovered. */
static bool find_one(following *f, uint32_t topic)
{
    ledger_plan plan;
    char text[16];
    if (f->shown_of[topic] == 0) return true;
    const uint32_t behind = (uint32_t)cmq_test_random_below(cmq_test_random_below(2) == 0 ? 40 : f->shown_of[topic]);
    uint32_t number = f->shown_of[topic] - 1 - (behind < f->shown_of[topic] ? behind : 0);
    while (number > 0 && !(belongs(f->of, number, topic, 0, &plan) && plan.key_count > 0)) number--;
    if (!belongs(f->of, number, topic, 0, &plan) || plan.key_count == 0) return true;
    snprintf(text, sizeof text, "topic-%" PRIu32, topic);
    const cmq_status status =
        cmq_store_find_key(f->store, cmq_slice_of_text(text), cmq_slice_of_text(plan.key[0]), 0, INT64_MAX, &f->batch);
    if (wants_reopening(status)) return false;
    if (status != CMQ_OK) fail_status(f, "finding a key", status);
    bool found = f->batch.count == f->batch.capacity;   /* shared by more than there is room for */
    for (uint32_t i = 0; i < f->batch.count; i++) {
        ledger_stamp stamp;
        if (!ledger_is_whole(f->of, &f->batch.items[i], &stamp, f->why)) fail(f, "finding a key");
        found = found || stamp.number == number;
    }
    cmq_found_batch_release(&f->batch);
    if (found) return true;
    snprintf(f->why, sizeof f->why,
             "message %" PRIu32 " of topic %" PRIu32 ", which was shown, is not found by its key %s", number, topic,
             plan.key[0]);
    fail(f, "finding a key");
}

static bool read_view(following *f)
{
    for (uint32_t topic = 0; topic < LEDGER_TOPICS; topic++) {
        for (int way = WAYS - 1; way >= 0; way--)
            if (!read_course(f, topic, way)) return false;
        check_shown(f, topic);
        commit(f, topic);
        if (!look_up_one(f, topic) || !find_one(f, topic)) return false;
    }
    return true;
}

/* ---- the process ---- */

static void check_end(following *f)
{
    const uint32_t acknowledged = atomic_load(&f->shared->acknowledged);
    for (uint32_t topic = 0; topic < LEDGER_TOPICS; topic++) {
        if (f->shown_of[topic] < acknowledged) f->shown_of[topic] = acknowledged;
        check_shown(f, topic);
    }
}

static _Noreturn void follow(following *f)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    for (;;) {
        const bool last = atomic_load(&f->shared->end);
        bool stays = f->store != NULL || open_view(f);
        if (stays) stays = read_view(f);
        if (last && stays) break;
        if (stays) {
            const cmq_status status = cmq_store_wait_more(f->store, cmq_store_confirmed(f->store), WAIT_MS);
            stays = !wants_reopening(status) && cmq_test_random_below(REOPEN_ONE_IN) != 0;
            if (status != CMQ_OK && status != CMQ_AGAIN && !wants_reopening(status)) fail_status(f, "waiting", status);
        } else if (last && atomic_load(&f->shared->acknowledged) == 0) {
            break;   /* perhaps there never was a store */
        } else {
            nanosleep(&pause, NULL);
        }
        if (!stays) close_view(f);
    }
    if (f->store != NULL) check_end(f);
    close_view(f);
    _exit(0);
}

live_follower *live_follower_start(const cmq_store_options *options, const ledger *of)
{
    live_follower *made = calloc(1, sizeof *made);
    CHECK(made != NULL);
    made->shared = mmap(NULL, sizeof *made->shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(made->shared != MAP_FAILED);
    fflush(NULL);
    made->pid = fork();
    CHECK(made->pid >= 0);
    if (made->pid == 0) {
        static following f;
        f = (following){.of = of, .options = *options, .shared = made->shared};
        f.options.read_only = true;
        f.options.create = false;
        f.batch = (cmq_found_batch){.items = f.items, .capacity = ITEMS};
        follow(&f);
    }
    (void)cmq_test_random();
    return made;
}

void live_follower_check(live_follower *follower)
{
    int status;
    const pid_t ended = waitpid(follower->pid, &status, WNOHANG);
    if (ended != 0) cmq_test_fail(__FILE__, __LINE__, "the live follower has failed (%d)", status);
}

void live_follower_end(live_follower *follower, uint32_t acknowledged)
{
    int status;
    atomic_store(&follower->shared->acknowledged, acknowledged);
    atomic_store(&follower->shared->end, true);
    CHECK(waitpid(follower->pid, &status, 0) == follower->pid);
    if (status != 0) cmq_test_fail(__FILE__, __LINE__, "the live follower has failed (%d)", status);
    munmap(follower->shared, sizeof *follower->shared);
    free(follower);
}
