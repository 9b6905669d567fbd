/* Tests csrc/store/follow/cmq_watch.c: which watchers are notified of which queues, when, and how often; appends,
 * confirmation, new and deleted queues; a race of adds against appends in which nothing may be missed. Threads: yes. */
#include "store/follow/cmq_watch.h"

#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "support/cmq_store_kit.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

#define PATIENCE_S 60   /* a wait that lasts so long has missed its wake-up */

static void count_signal(void *context) { atomic_fetch_add((_Atomic int *)context, 1); }

static cmq_store *open_sized(cmq_flush_mode flush, int64_t segment_bytes)
{
    char root[CMQ_PATH_BYTES];
    kit_set_clock();
    CHECK_OK(cmq_path_join(root, kit_directory(), "store"));
    cmq_store_options options = kit_options(root);
    options.flush = flush;
    options.segment_bytes = segment_bytes;
    return kit_open(&options);
}

static cmq_store *open_store(cmq_flush_mode flush) { return open_sized(flush, KIT_SEGMENT_BYTES); }

static cmq_queue *queue_of(cmq_store *store, const char *topic, int32_t queue_id)
{
    cmq_queue *queue = cmq_queues_find(cmq_store_queues(store), kit_slice(topic), queue_id);
    CHECK(queue != NULL);
    return queue;
}

static cmq_watcher *make_watcher(cmq_store *store, _Atomic int *signals)
{
    cmq_watcher *watcher;
    atomic_store(signals, 0);
    CHECK_OK(cmq_watcher_create(&watcher, store, count_signal, signals));
    return watcher;
}

/* "topic/id …" of what a take gives; static. */
static const char *taken(cmq_watcher *watcher, uint32_t capacity)
{
    static char text[1024];
    cmq_queue *queues[64];
    size_t used = 0;
    text[0] = '\0';
    const uint32_t count = cmq_watcher_take(watcher, queues, capacity);
    CHECK(count <= capacity);
    for (uint32_t i = 0; i < count; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s/%d", i > 0 ? " " : "",
                                 cmq_queue_topic(queues[i]), (int)cmq_queue_id(queues[i]));
    return text;
}

#define CHECK_TAKEN(watcher, expected) CHECK_TEXT(taken(watcher, 64), expected)

/* One message that nobody waits for the disk with. */
static void append_unwaited(cmq_store *store, const char *topic, int32_t queue_id)
{
    const cmq_append append = {
        .common = {.topic = kit_slice(topic), .queue_id = queue_id}, .count = 1, .no_wait = true};
    cmq_appended appended;
    CHECK_OK(cmq_store_append(store, &append, &appended));
}

static void add(cmq_watcher *watcher, cmq_queue *queue) { CHECK_OK(cmq_watcher_add(watcher, queue)); }

/* ---- notifications ---- */

static void a_watch_is_for_one_arrival(void)
{
    const cmq_flush_mode modes[] = {CMQ_FLUSH_SYNC, CMQ_FLUSH_ASYNC};
    for (size_t i = 0; i < 2; i++) {
        _Atomic int signals;
        cmq_store *store = open_store(modes[i]);
        kit_append(store, "T", 0, "0", NULL, NULL);
        kit_append(store, "T", 1, "0", NULL, NULL);
        cmq_watcher *watcher = make_watcher(store, &signals);
        add(watcher, queue_of(store, "T", 0));
        add(watcher, queue_of(store, "T", 0));
        kit_append(store, "T", 1, "1", NULL, NULL);   /* not watched */
        CHECK_INT(signals, 0);
        CHECK_TAKEN(watcher, "");
        kit_append(store, "T", 0, "1", NULL, NULL);
        CHECK_INT(signals, 1);
        kit_append(store, "T", 0, "2", NULL, NULL);   /* listed already */
        add(watcher, queue_of(store, "T", 0));        /* stays listed */
        CHECK_INT(signals, 1);
        CHECK_TAKEN(watcher, "T/0");
        CHECK_TAKEN(watcher, "");
        kit_append(store, "T", 0, "3", NULL, NULL);   /* taken: watched no more */
        CHECK_INT(signals, 1);
        CHECK_TAKEN(watcher, "");
        add(watcher, queue_of(store, "T", 0));
        kit_append(store, "T", 0, "4", NULL, NULL);
        CHECK_INT(signals, 2);
        CHECK_TAKEN(watcher, "T/0");
        cmq_watcher_destroy(watcher);
        kit_close(store);
    }
}

static void one_signal_per_batch(void)
{
    enum { COUNT = 5000, QUEUES = 4 };
    static int32_t ids[COUNT];
    _Atomic int signals;
    cmq_store *store = open_store(CMQ_FLUSH_ASYNC);
    for (int q = 0; q < QUEUES; q++) kit_append(store, "T", q, "first", NULL, NULL);
    cmq_watcher *watcher = make_watcher(store, &signals);
    for (int q = 0; q < QUEUES; q++) add(watcher, queue_of(store, "T", q));
    for (int i = 0; i < COUNT; i++) ids[i] = i % QUEUES;
    const cmq_append append = {.common = {.topic = kit_slice("T")}, .count = COUNT, .queue_ids = ids};
    cmq_appended appended;
    CHECK_OK(cmq_store_append(store, &append, &appended));
    CHECK_INT(signals, 1);   /* though it took two holds of the writer lock */
    CHECK_TAKEN(watcher, "T/0 T/1 T/2 T/3");
    /* A client's batch, one by one messages and tags that differ take other ways through the code. */
    const cmq_slice tags[] = {kit_slice("a"), kit_slice("b")},
                    properties[] = {kit_slice("k\001v\002"), kit_slice("k\001w\002")};
    const cmq_append ways[] = {
        {.common = {.topic = kit_slice("T"), .queue_id = 2}, .count = 2, .one_segment = true},
        {.common = {.topic = kit_slice("T"), .queue_id = 2},
         .count = 2,
         .tags = {.kind = CMQ_COLUMN_SLICES, .slices = tags}},
        {.common = {.topic = kit_slice("T"), .queue_id = 2},
         .count = 2,
         .properties = {.kind = CMQ_COLUMN_SLICES, .slices = properties}},
    };
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        add(watcher, queue_of(store, "T", 2));
        CHECK_OK(cmq_store_append(store, &ways[i], &appended));
        CHECK_INT(signals, (int)i + 2);
        CHECK_TAKEN(watcher, "T/2");
    }
    cmq_watcher_destroy(watcher);
    kit_close(store);
}

static void unsynced_messages_wait(void)
{
    _Atomic int signals;
    cmq_store *store = open_store(CMQ_FLUSH_SYNC);
    for (int q = 0; q < 3; q++) kit_append(store, "T", q, "first", NULL, NULL);
    cmq_watcher *watcher = make_watcher(store, &signals);
    add(watcher, queue_of(store, "T", 0));
    append_unwaited(store, "T", 0);
    append_unwaited(store, "T", 1);
    CHECK_INT(signals, 0);
    CHECK_TAKEN(watcher, "");
    add(watcher, queue_of(store, "T", 1));   /* its unit was put before, and no look at the queue's max shows it */
    CHECK_INT(kit_max(store, "T", 1), 1);
    CHECK_INT(signals, 0);
    CHECK_OK(cmq_store_flush(store));
    CHECK_INT(signals, 1);
    append_unwaited(store, "T", 2);
    CHECK_TAKEN(watcher, "T/0 T/1");
    add(watcher, queue_of(store, "T", 2));
    CHECK_OK(cmq_store_flush(store));
    CHECK_INT(signals, 2);
    CHECK_TAKEN(watcher, "T/2");
    cmq_watcher_destroy(watcher);
    kit_close(store);
}

/* Listed, some confirmed and some not, when it is taken: the rest gets a signal of its own. */
static void a_take_between_two_confirmations(void)
{
    _Atomic int signals;
    cmq_store *store = open_store(CMQ_FLUSH_SYNC);
    for (int q = 0; q < 2; q++) kit_append(store, "T", q, "first", NULL, NULL);
    cmq_watcher *watcher = make_watcher(store, &signals);
    for (int q = 0; q < 2; q++) add(watcher, queue_of(store, "T", q));
    kit_append(store, "T", 1, "on disk", NULL, NULL);
    append_unwaited(store, "T", 0);
    CHECK_INT(signals, 1);
    CHECK_TAKEN(watcher, "T/1");
    CHECK_OK(cmq_store_flush(store));
    CHECK_INT(signals, 2);
    CHECK_TAKEN(watcher, "T/0");
    cmq_watcher_destroy(watcher);
    kit_close(store);
}

static void taken_in_steps(void)
{
    _Atomic int signals;
    cmq_store *store = open_store(CMQ_FLUSH_ASYNC);
    for (int q = 0; q < 5; q++) kit_append(store, "T", q, "first", NULL, NULL);
    cmq_watcher *watcher = make_watcher(store, &signals);
    for (int q = 0; q < 5; q++) add(watcher, queue_of(store, "T", q));
    for (int q = 0; q < 5; q++) kit_append(store, "T", q, "more", NULL, NULL);
    CHECK_INT(signals, 1);
    CHECK_TEXT(taken(watcher, 2), "T/0 T/1");
    add(watcher, queue_of(store, "T", 0));
    kit_append(store, "T", 0, "again", NULL, NULL);
    CHECK_TEXT(taken(watcher, 2), "T/2 T/3");
    CHECK_TEXT(taken(watcher, 2), "T/4 T/0");
    CHECK_TEXT(taken(watcher, 2), "");
    add(watcher, queue_of(store, "T", 3));
    kit_append(store, "T", 3, "again", NULL, NULL);
    CHECK_INT(signals, 2);
    CHECK_TEXT(taken(watcher, 2), "T/3");
    cmq_watcher_destroy(watcher);
    kit_close(store);
}

static void new_queues_notify_all_watchers(void)
{
    _Atomic int signals, other_signals;
    char root[CMQ_PATH_BYTES];
    kit_set_clock();
    CHECK_OK(cmq_path_join(root, kit_directory(), "store"));
    cmq_store_options options = kit_options(root);
    options.lmq_enabled = true;
    options.body_bytes_max = 100;
    cmq_store *store = kit_open(&options);
    kit_append(store, "Before", 0, "x", NULL, NULL);
    cmq_watcher *watcher = make_watcher(store, &signals), *other = make_watcher(store, &other_signals);
    kit_append(store, "New", 3, "x", NULL, NULL);
    CHECK_INT(signals, 1);
    CHECK_INT(other_signals, 1);
    kit_append(store, "New", 3, "y", NULL, NULL);
    CHECK_TAKEN(watcher, "New/3");
    CHECK_TAKEN(other, "New/3");
    const char light[] = "INNER_MULTI_DISPATCH\001%LMQ%a,%LMQ%b\002";
    const cmq_append append = {.common = {.topic = kit_slice("Before")},
                               .count = 1,
                               .properties = {.kind = CMQ_COLUMN_ONE, .one = kit_slice(light)}};
    cmq_appended appended;
    CHECK_OK(cmq_store_append(store, &append, &appended));
    CHECK_TAKEN(watcher, "%LMQ%a/0 %LMQ%b/0");
    /* A queue that was made for a refused message is reported with its first message. */
    char body[200];
    memset(body, 'x', sizeof body - 1);
    body[sizeof body - 1] = '\0';
    CHECK_TAKEN(other, "%LMQ%a/0 %LMQ%b/0");
    CHECK_STATUS(kit_try_append(store, "Refused", 0, body, "tag", "\001", &appended), CMQ_ERR_ARGUMENT);
    CHECK_STATUS(kit_try_append(store, "Refused", 0, body, NULL, NULL, &appended), CMQ_ERR_TOO_LARGE);
    CHECK_TAKEN(watcher, "");
    kit_append(store, "Refused", 0, "x", NULL, NULL);
    CHECK_TAKEN(watcher, "Refused/0");
    CHECK_TAKEN(other, "Refused/0");
    cmq_watcher_destroy(other);
    cmq_watcher_destroy(watcher);
    kit_close(store);
}

static void a_deleted_queue_is_notified(void)
{
    _Atomic int signals;
    cmq_queue *queues[4];
    cmq_store *store = open_store(CMQ_FLUSH_SYNC);
    kit_append(store, "T", 0, "x", NULL, NULL);
    kit_append(store, "T", 1, "x", NULL, NULL);
    cmq_watcher *watcher = make_watcher(store, &signals);
    cmq_queue *first = queue_of(store, "T", 0), *second = queue_of(store, "T", 1);
    add(watcher, first);
    CHECK_OK(cmq_store_delete_topic(store, kit_slice("T")));
    CHECK_INT(signals, 1);
    CHECK_INT(cmq_watcher_take(watcher, queues, 4), 1);
    CHECK(queues[0] == first && cmq_queue_deleted(first));
    add(watcher, second);   /* found before it went */
    CHECK_INT(signals, 2);
    CHECK_INT(cmq_watcher_take(watcher, queues, 4), 1);
    CHECK(queues[0] == second && cmq_queue_deleted(second));
    kit_append(store, "T", 0, "anew", NULL, NULL);
    CHECK_INT(signals, 3);
    CHECK_INT(cmq_watcher_take(watcher, queues, 4), 1);
    CHECK(queues[0] != first && !cmq_queue_deleted(queues[0]));
    cmq_watcher_destroy(watcher);
    kit_close(store);
}

static void an_expired_queue_is_notified(void)
{
    _Atomic int signals;
    cmq_store *store = open_store(CMQ_FLUSH_SYNC);
    uint32_t deleted;
    kit_append(store, "Old", 0, "x", NULL, NULL);
    cmq_watcher *watcher = make_watcher(store, &signals);
    add(watcher, queue_of(store, "Old", 0));
    kit_append_many(store, "Other", "fills more than one segment of 16 KiB ", 300);
    CHECK_TAKEN(watcher, "Other/0");
    CHECK_OK(cmq_store_maintain(store, true));   /* only what is durable may go */
    CHECK_OK(cmq_store_expire(store, true, &deleted));
    CHECK(deleted > 0);
    CHECK_OK(cmq_store_delete_expired_queues(store, &deleted));
    CHECK_INT(deleted, 1);
    CHECK_INT(signals, 2);
    CHECK_TAKEN(watcher, "Old/0");
    cmq_watcher_destroy(watcher);
    kit_close(store);
}

/* ---- life ---- */

static void watchers_up_to_the_limit(void)
{
    _Atomic int signals[CMQ_WATCHERS_MAX + 1];
    cmq_watcher *watchers[CMQ_WATCHERS_MAX], *more;
    cmq_store *store = open_store(CMQ_FLUSH_SYNC);
    kit_append(store, "T", 0, "x", NULL, NULL);
    for (uint32_t i = 0; i < CMQ_WATCHERS_MAX; i++) {
        watchers[i] = make_watcher(store, &signals[i]);
        if (i % 2 == 0) add(watchers[i], queue_of(store, "T", 0));
    }
    CHECK_STATUS(cmq_watcher_create(&more, store, count_signal, signals), CMQ_ERR_LIMIT);
    CHECK(more == NULL);
    kit_append(store, "T", 0, "y", NULL, NULL);
    for (uint32_t i = 0; i < CMQ_WATCHERS_MAX; i++) CHECK_INT(signals[i], i % 2 == 0);
    for (uint32_t i = 0; i < CMQ_WATCHERS_MAX; i++) CHECK_TAKEN(watchers[i], i % 2 == 0 ? "T/0" : "");
    /* A watcher goes; the next one in its place inherits nothing. */
    add(watchers[3], queue_of(store, "T", 0));
    cmq_watcher_destroy(watchers[3]);
    watchers[3] = make_watcher(store, &signals[3]);
    kit_append(store, "T", 0, "z", NULL, NULL);
    CHECK_INT(signals[3], 0);
    CHECK_TAKEN(watchers[3], "");
    for (uint32_t i = 0; i < CMQ_WATCHERS_MAX; i++) cmq_watcher_destroy(watchers[i]);
    cmq_watcher_destroy(NULL);
    kit_close(store);
}

static void a_reader_has_none(void)
{
    cmq_watcher *watcher;
    char root[CMQ_PATH_BYTES];
    kit_set_clock();
    CHECK_OK(cmq_path_join(root, kit_directory(), "store"));
    cmq_store *store = kit_open_at(root), *reader;
    cmq_store_options options = kit_options(root);
    options.read_only = true;
    options.create = false;
    CHECK_OK(cmq_store_open(&reader, &options));
    CHECK_STATUS(cmq_watcher_create(&watcher, reader, count_signal, NULL), CMQ_ERR_READ_ONLY);
    CHECK(watcher == NULL);
    kit_close(reader);
    kit_close(store);
}

/* ---- many ---- */

static void a_hundred_thousand_queues(void)
{
    enum { QUEUES = 100000, LOT = 1000 };
    _Atomic int signals;
    cmq_store *store = open_sized(CMQ_FLUSH_ASYNC, 16 << 20);
    int32_t *ids = malloc(QUEUES * sizeof *ids);
    cmq_queue **queues = malloc(LOT * sizeof *queues);
    bool *seen = calloc(QUEUES, sizeof *seen);
    int64_t *born = calloc(QUEUES, sizeof *born);   /* given one by one, messages are appended so: no queue gets room
                                                     * for 64 */
    CHECK(ids != NULL && queues != NULL && seen != NULL && born != NULL);
    for (int i = 0; i < QUEUES; i++) ids[i] = i;
    const cmq_append append = {
        .common = {.topic = kit_slice("T")}, .count = QUEUES, .queue_ids = ids, .born_timestamps = born};
    cmq_appended appended;
    CHECK_OK(cmq_store_append(store, &append, &appended));
    cmq_watcher *watcher = make_watcher(store, &signals);
    const size_t before = mallinfo2().uordblks + mallinfo2().hblkhd;
    for (int i = 0; i < QUEUES; i++) add(watcher, queue_of(store, "T", i));
    const size_t each = (mallinfo2().uordblks + mallinfo2().hblkhd - before) / QUEUES;
    if (!SANITIZED && each > 24) cmq_test_fail(__FILE__, __LINE__, "a watched queue takes %zu bytes", each);
    CHECK_OK(cmq_store_append(store, &append, &appended));
    CHECK_INT(signals, 1);
    uint32_t all = 0, count;
    while ((count = cmq_watcher_take(watcher, queues, LOT)) > 0) {
        for (uint32_t i = 0; i < count; i++) {
            CHECK(!seen[cmq_queue_id(queues[i])]);
            seen[cmq_queue_id(queues[i])] = true;
        }
        all += count;
    }
    CHECK_INT(all, QUEUES);
    CHECK_INT(signals, 1);
    cmq_watcher_destroy(watcher);
    cmq_store_abandon(store);   /* nobody needs 100,000 files */
    free(ids);
    free(queues);
    free(seen);
    free(born);
}

/* ---- nothing is missed ---- */

enum { RACE_QUEUES = 6, RACE_APPENDERS = 2, RACE_LOOPS = 2 };

typedef struct race {
    cmq_store *store;
    int64_t per_queue;               /* messages that each queue gets */
    uint64_t seed;
} race;

typedef struct race_loop {
    race *of;
    cmq_watcher *watcher;
    sem_t wake;
} race_loop;

static void post(void *context) { CHECK(sem_post(&((race_loop *)context)->wake) == 0); }

static void *race_append(void *argument)
{
    const race *r = argument;
    unsigned seed = (unsigned)r->seed;
    for (int64_t i = 0; i < r->per_queue / RACE_APPENDERS; i++) {
        int32_t ids[RACE_QUEUES];
        for (int q = 0; q < RACE_QUEUES; q++) ids[q] = q;
        const uint32_t split = (uint32_t)rand_r(&seed) % RACE_QUEUES;
        const cmq_append parts[] = {
            {.common = {.topic = kit_slice("T")}, .count = split, .queue_ids = ids, .no_wait = rand_r(&seed) % 2 == 0},
            {.common = {.topic = kit_slice("T")}, .count = RACE_QUEUES - split, .queue_ids = ids + split},
        };
        cmq_appended appended;
        for (int part = 0; part < 2; part++) CHECK_OK(cmq_store_append(r->store, &parts[part], &appended));
    }
    return NULL;
}

/* The steps of a loop: add, look again, sleep until the signal. */
static void *race_consume(void *argument)
{
    race_loop *loop = argument;
    const race *r = loop->of;
    int64_t seen[RACE_QUEUES] = {0};
    cmq_queue *queues[RACE_QUEUES];
    uint32_t turn[RACE_QUEUES], turns = RACE_QUEUES;
    for (uint32_t q = 0; q < RACE_QUEUES; q++) turn[q] = q;
    for (int left = RACE_QUEUES; left > 0;) {
        for (uint32_t i = 0; i < turns; i++) {
            cmq_queue *queue = cmq_queues_find(cmq_store_queues(r->store), kit_slice("T"), (int32_t)turn[i]);
            if (queue == NULL) continue;   /* reported when it is there */
            if (seen[turn[i]] == r->per_queue) continue;
            CHECK_OK(cmq_watcher_add(loop->watcher, queue));
            seen[turn[i]] = cmq_queue_max(queue, cmq_store_confirmed(r->store));
            if (seen[turn[i]] == r->per_queue) left--;
        }
        if (left == 0) break;
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += PATIENCE_S;
        while (sem_timedwait(&loop->wake, &until) != 0) CHECK(errno == EINTR);
        turns = cmq_watcher_take(loop->watcher, queues, RACE_QUEUES);
        for (uint32_t i = 0; i < turns; i++) turn[i] = (uint32_t)cmq_queue_id(queues[i]);
    }
    return NULL;
}

static void adds_against_appends(void)
{
    const cmq_flush_mode modes[] = {CMQ_FLUSH_SYNC, CMQ_FLUSH_ASYNC};
    for (size_t m = 0; m < 2; m++) {
        pthread_t appenders[RACE_APPENDERS], consumers[RACE_LOOPS];
        race_loop loops[RACE_LOOPS];
        race r = {
            .store = open_sized(modes[m], 1 << 20), .per_queue = SANITIZED ? 2000 : 10000, .seed = cmq_test_seed()};
        for (int i = 0; i < RACE_LOOPS; i++) {
            loops[i].of = &r;
            CHECK(sem_init(&loops[i].wake, 0, 0) == 0);
            CHECK_OK(cmq_watcher_create(&loops[i].watcher, r.store, post, &loops[i]));
            CHECK(pthread_create(&consumers[i], NULL, race_consume, &loops[i]) == 0);
        }
        for (int i = 0; i < RACE_APPENDERS; i++) CHECK(pthread_create(&appenders[i], NULL, race_append, &r) == 0);
        for (int i = 0; i < RACE_APPENDERS; i++) pthread_join(appenders[i], NULL);
        CHECK_OK(cmq_store_flush(r.store));   /* the last of those that nobody waited for */
        for (int i = 0; i < RACE_LOOPS; i++) {
            pthread_join(consumers[i], NULL);
            cmq_watcher_destroy(loops[i].watcher);
            sem_destroy(&loops[i].wake);
        }
        cmq_store_abandon(r.store);
    }
}

CMQ_TEST_MAIN(CMQ_TEST(a_watch_is_for_one_arrival), CMQ_TEST(one_signal_per_batch), CMQ_TEST(unsynced_messages_wait),
              CMQ_TEST(a_take_between_two_confirmations), CMQ_TEST(taken_in_steps),
              CMQ_TEST(new_queues_notify_all_watchers), CMQ_TEST(a_deleted_queue_is_notified),
              CMQ_TEST(an_expired_queue_is_notified), CMQ_TEST(watchers_up_to_the_limit), CMQ_TEST(a_reader_has_none),
              CMQ_TEST(a_hundred_thousand_queues), CMQ_TEST(adds_against_appends))
