/* test_cmq_queue_tail: the ring that one thread fills and others read without locks; and whole queues under a writer, a
 * flusher and readers.
 *
 * Threads: yes
 */
#include "store/queue/cmq_queue_tail.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "store/queue/cmq_queue.h"
#include "support/cmq_file_twin.h"
#include "support/cmq_test.h"

#define WORDS 5u

/* ---- one thread ---- */

static void put(cmq_queue_tail *tail, int64_t count)
{
    for (; count > 0; count--) {
        uint32_t words[WORDS];
        for (uint32_t w = 0; w < WORDS; w++) words[w] = (uint32_t)cmq_queue_tail_next(tail) * 10 + w;
        cmq_queue_tail_put(tail, words, WORDS);
    }
}

static void check_there(const cmq_queue_tail *tail, int64_t from, int64_t end)
{
    uint32_t words[64 * WORDS];
    for (int64_t at = from; at < end; at++) {
        const uint32_t count = end - at < 64 ? (uint32_t)(end - at) : 64;
        CHECK(cmq_queue_tail_copy(tail, at, count, words));
        for (uint32_t i = 0; i < count * WORDS; i++) CHECK_INT(words[i], (uint32_t)(at + i / WORDS) * 10 + i % WORDS);
    }
}

static void ring_keeps_the_newest(void)
{
    uint32_t words[2 * WORDS];
    cmq_tail_pool *pool = cmq_tail_pool_create();
    CHECK(pool != NULL);
    cmq_queue_tail tail = {.unit_words = WORDS};
    CHECK_INT(cmq_queue_tail_lowest(&tail), 0);
    CHECK(!cmq_queue_tail_copy(&tail, 0, 1, words));
    cmq_tailring *ring = cmq_tail_pool_take(pool, WORDS, 3);
    CHECK_INT(ring->capacity, 4);
    CHECK(cmq_queue_tail_replace(&tail, ring) == NULL);
    put(&tail, 4);
    check_there(&tail, 0, 4);
    CHECK(!cmq_queue_tail_copy(&tail, 3, 2, words));   /* 4 is not there yet */
    atomic_store(&tail.flushed, 3);
    CHECK_INT(cmq_queue_tail_lowest(&tail), 0);
    CHECK(!cmq_queue_tail_copy(&tail, 0, 1, words));   /* its slot may be taken at any moment now */
    check_there(&tail, 1, 4);
    put(&tail, 2);
    CHECK_INT(cmq_queue_tail_lowest(&tail), 2);
    CHECK(!cmq_queue_tail_copy(&tail, 1, 1, words));
    check_there(&tail, 3, 6);

    cmq_tailring *larger = cmq_tail_pool_take(pool, WORDS, 5);
    CHECK_INT(larger->capacity, 16);
    CHECK(cmq_queue_tail_replace(&tail, larger) == ring);
    cmq_tail_pool_give(pool, ring);
    CHECK_INT(cmq_queue_tail_lowest(&tail), 2);
    put(&tail, 10);
    check_there(&tail, 2, 16);
    uint32_t run;
    const uint32_t *bytes = cmq_queue_tail_run(&tail, 3, 13, &run);
    CHECK_INT(run, 13);
    CHECK_INT(bytes[0], 30);
    atomic_store(&tail.flushed, 10);
    put(&tail, 4);
    bytes = cmq_queue_tail_run(&tail, 10, 10, &run);   /* up to the wrap */
    CHECK_INT(run, 6);
    CHECK_INT(bytes[5 * WORDS + 4], 154);

    cmq_queue_tail_cut(&tail, 12);
    CHECK_INT(cmq_queue_tail_next(&tail), 12);
    CHECK_INT(cmq_queue_tail_lowest(&tail), 4);   /* 2 and 3 lie under what was cut */
    CHECK(!cmq_queue_tail_copy(&tail, 2, 1, words));
    check_there(&tail, 4, 12);
    put(&tail, 2);
    check_there(&tail, 4, 14);

    CHECK(cmq_queue_tail_reset(&tail, 100) == larger);
    cmq_tail_pool_give(pool, larger);
    CHECK_INT(cmq_queue_tail_next(&tail), 100);
    CHECK_INT(cmq_queue_tail_lowest(&tail), 100);
    CHECK_INT(cmq_tail_pool_used_bytes(pool), 0);
    cmq_tail_pool_destroy(pool);
}

static void pool_uses_rings_again(void)
{
    cmq_tail_pool *pool = cmq_tail_pool_create();
    cmq_tailring *rings[100];
    for (int round = 0; round < 3; round++) {
        for (uint32_t i = 0; i < 100; i++) {
            const uint32_t words = i % 3 == 0 ? 5 : i % 3 == 1 ? 9 : 12, units = 1u << i % 14;
            rings[i] = cmq_tail_pool_take(pool, words, units);
            CHECK(rings[i] != NULL && rings[i]->capacity >= units && rings[i]->unit_words == words);
            CHECK_INT(rings[i]->capacity, cmq_tail_pool_capacity(units));
            for (uint32_t w = 0; w < rings[i]->capacity * words; w++)
                atomic_store_explicit(&rings[i]->words[w], i, memory_order_relaxed);
        }
        for (uint32_t i = 0; i < 100; i++)
            for (uint32_t w = 0; w < rings[i]->capacity * rings[i]->unit_words; w++)
                if (atomic_load_explicit(&rings[i]->words[w], memory_order_relaxed) != i) CHECK_INT(w, -1);
        for (uint32_t i = 0; i < 100; i++) cmq_tail_pool_give(pool, rings[i]);
        CHECK_INT(cmq_tail_pool_used_bytes(pool), 0);
    }
    CHECK(cmq_tail_pool_take(pool, 5, CMQ_TAIL_UNITS_MAX + 1) == NULL);
    CHECK_INT(cmq_tail_pool_capacity(CMQ_TAIL_UNITS_MAX + 1), 0);
    cmq_tail_pool_destroy(pool);
}

/* ---- rings that change hands under readers ---- */

#define TAILS 2
#define RING_PUTS_MAX 4000000   /* enough on any machine, … */
#define COPIES 30000            /* … but when the readers have seen so many, it is enough */

static struct {
    cmq_queue_tail tail[TAILS];
    _Atomic bool done;
    _Atomic int64_t copied;
} r;

static uint32_t word_of(int tail, int64_t position, uint32_t w)
{
    return ((uint32_t)position * 16 + w) * 2 + (uint32_t)tail;
}

/* Two tails with rings of a few units, which they also swap: slots and rings are used again as fast as can be. */
static void *put_and_swap(void *unused)
{
    (void)unused;
    cmq_tail_pool *pool = cmq_tail_pool_create();
    uint64_t random = 88172645463325252u;
    for (int i = 0; i < RING_PUTS_MAX && atomic_load_explicit(&r.copied, memory_order_relaxed) < COPIES; i++) {
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        const int t = (int)(random >> 10 & 1);
        cmq_queue_tail *tail = &r.tail[t];
        const int64_t next = cmq_queue_tail_next(tail);
        atomic_store_explicit(&tail->flushed, next, memory_order_release);
        if (atomic_load(&tail->ring) == NULL || random % 32 == 0)
            cmq_tail_pool_give(
                pool, cmq_queue_tail_replace(tail, random % 64 == 0 ? NULL : cmq_tail_pool_take(pool, WORDS, 4)));
        if (atomic_load(&tail->ring) == NULL) continue;
        uint32_t words[WORDS];
        for (uint32_t w = 0; w < WORDS; w++) words[w] = word_of(t, next, w);
        cmq_queue_tail_put(tail, words, WORDS);
    }
    atomic_store(&r.done, true);
    return pool;
}

static void *copy_oldest(void *tail_of)
{
    const int t = (int)(uintptr_t)tail_of;
    int64_t copied = 0;
    while (!atomic_load(&r.done)) {
        uint32_t words[3 * WORDS];
        const int64_t from = cmq_queue_tail_lowest(&r.tail[t]);
        const uint32_t count = 1 + (uint32_t)copied % 3;
        if (!cmq_queue_tail_copy(&r.tail[t], from, count, words)) continue;
        copied++;
        atomic_fetch_add_explicit(&r.copied, 1, memory_order_relaxed);
        for (uint32_t i = 0; i < count * WORDS; i++)
            if (words[i] != word_of(t, from + i / WORDS, i % WORDS))
                CHECK_INT(words[i], word_of(t, from + i / WORDS, i % WORDS));
    }
    return NULL;
}

static void rings_change_hands_under_readers(void)
{
    memset(&r, 0, sizeof r);
    for (int t = 0; t < TAILS; t++) r.tail[t].unit_words = WORDS;
    pthread_t writer, readers[TAILS];
    void *pool;
    for (uintptr_t t = 0; t < TAILS; t++) CHECK(pthread_create(&readers[t], NULL, copy_oldest, (void *)t) == 0);
    CHECK(pthread_create(&writer, NULL, put_and_swap, NULL) == 0);
    pthread_join(writer, &pool);
    for (int t = 0; t < TAILS; t++) pthread_join(readers[t], NULL);
    cmq_tail_pool_destroy(pool);
}

/* ---- a writer, a flusher, readers ---- */

#define QUEUES 6
#define READERS 3
#define PUTS 60000
#define RECORD_BYTES 64

static struct {
    cmq_queues *queues;
    cmq_queue *queue[QUEUES];
    _Atomic int64_t confirmed;     /* every unit below is put */
    _Atomic int64_t min_phy;
    _Atomic bool done;
    _Atomic int64_t units_read;
} t;

/* A unit says which queue it is of, and which of it. */
static int64_t tags_of(int q, int64_t offset) { return (int32_t)((uint32_t)offset * 2654435761u + (uint32_t)q); }

/* A unit that expired while it was read may have lost its extension: then its tags code is an address, and nothing is
 * known. */
static bool is_unknown(int q, const cmq_unit *unit)
{
    return unit->tags_code < INT32_MIN && unit->offset < cmq_queue_min(t.queue[q]);
}

static void check_unit(int q, const cmq_unit *unit, int64_t confirmed)
{
    if (!is_unknown(q, unit)) CHECK_INT(unit->tags_code, tags_of(q, unit->offset));
    CHECK_INT(unit->bytes, RECORD_BYTES);
    CHECK_INT(unit->phy % RECORD_BYTES, 0);
    CHECK(unit->phy + unit->bytes <= confirmed);
}

static void *write_all(void *unused)
{
    (void)unused;
    int64_t end = 0;
    uint64_t random = 88172645463325252u;   /* the thread's own: the run's generator belongs to one thread */
    for (int i = 0; i < PUTS;) {
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        const int q = (int)(random % QUEUES);
        const uint32_t lot = 1 + (uint32_t)(random >> 20) % (random >> 40 & 1 ? 200 : 3);
        const cmq_status status = cmq_queue_make_room(t.queue[q], lot, end);
        CHECK_OK(status);
        for (uint32_t u = 0; u < lot; u++, end += RECORD_BYTES)
            cmq_queue_put(t.queue[q], end, RECORD_BYTES, tags_of(q, cmq_queue_next(t.queue[q])), 1, 1);
        i += (int)lot;
        atomic_store_explicit(&t.confirmed, end, memory_order_release);
        if (random >> 50 & 1) cmq_queues_trim(t.queues);
    }
    atomic_store(&t.done, true);
    return NULL;
}

static void *flush_all(void *unused)
{
    (void)unused;
    for (int round = 0;; round++) {
        const bool last = atomic_load(&t.done);
        const int64_t end = atomic_load_explicit(&t.confirmed, memory_order_acquire);
        int64_t covered;
        CHECK_OK(cmq_queues_flush(t.queues, end, round % 8 == 0, &covered));
        CHECK_INT(covered, end);
        if (round % 16 == 0) {
            const int64_t min = end / 2 / RECORD_BYTES * RECORD_BYTES;
            CHECK_OK(cmq_queues_expire(t.queues, min, INT64_MAX));
            atomic_store(&t.min_phy, min);
        }
        if (last) return NULL;
    }
}

static void *read_all(void *seed)
{
    uint64_t random = 1442695040888963407u * (uint64_t)(uintptr_t)seed + 1;
    cmq_unit units[500];
    bool last = false;
    while (!last) {
        last = atomic_load(&t.done);
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        const int q = (int)(random % QUEUES);
        const int64_t confirmed = atomic_load_explicit(&t.confirmed, memory_order_acquire);
        const int64_t min = cmq_queue_min(t.queue[q]), max = cmq_queue_max(t.queue[q], confirmed);
        CHECK(min <= max);
        int64_t from = min + (int64_t)((random >> 8) % (uint64_t)(max - min + 1)), next;
        if (random >> 60 & 1) from = max - (int64_t)(random >> 8) % 20;
        const uint32_t capacity = 1 + (uint32_t)(random >> 30) % 500;
        const uint32_t hash = (uint32_t)tags_of(q, from + 3);
        uint32_t count;
        switch (random >> 20 & 3) {
        case 0:
            CHECK_OK(cmq_queue_read_back(t.queue[q], from, confirmed, units, capacity, &count, &next));
            for (uint32_t i = 1; i < count; i++) CHECK_INT(units[i].offset, units[i - 1].offset - 1);
            break;
        case 1:
            CHECK_OK(cmq_queue_scan(t.queue[q], from, confirmed, &hash, 1, 5000, units, capacity, &count, &next));
            for (uint32_t i = 0; i < count; i++)
                if (!is_unknown(q, &units[i])) CHECK_INT((uint32_t)units[i].tags_code, hash);
            break;
        default:
            CHECK_OK(cmq_queue_read(t.queue[q], from, confirmed, units, capacity, &count, &next));
            for (uint32_t i = 1; i < count; i++) CHECK_INT(units[i].offset, units[i - 1].offset + 1);
        }
        for (uint32_t i = 0; i < count; i++) check_unit(q, &units[i], confirmed);
        atomic_fetch_add(&t.units_read, count);
    }
    return NULL;
}

static void run_threads(bool ext, bool batch)
{
    memset(&t, 0, sizeof t);
    const char *root = cmq_test_directory();
    cmq_file_twin *twin = cmq_file_twin_create(root, 1);   /* syncs do not wait for a disk */
    const cmq_queues_options options = {.fs = cmq_file_twin_fs(twin),
                                        .root = root,
                                        .queue_file_bytes = 2000 * 20,
                                        .batch_file_bytes = 2000 * 46,
                                        .ext_file_bytes = 50000,
                                        .ext_enabled = ext,
                                        .descriptors_max = 4,
                                        .maps_max = 2};
    CHECK_OK(cmq_queues_create(&t.queues, &options));
    for (int q = 0; q < QUEUES; q++)
        CHECK_OK(cmq_queues_require(t.queues, cmq_slice_of_text("topic"), q, batch ? CMQ_QUEUE_BATCH : CMQ_QUEUE_SIMPLE,
                                    &t.queue[q]));
    pthread_t threads[READERS + 2];
    CHECK(pthread_create(&threads[0], NULL, write_all, NULL) == 0);
    CHECK(pthread_create(&threads[1], NULL, flush_all, NULL) == 0);
    for (uintptr_t i = 0; i < READERS; i++)
        CHECK(pthread_create(&threads[2 + i], NULL, read_all, (void *)(i + 1)) == 0);
    for (int i = 0; i < READERS + 2; i++) pthread_join(threads[i], NULL);
    CHECK(atomic_load(&t.units_read) > 0);
    int64_t all = 0;
    for (int q = 0; q < QUEUES; q++) all += cmq_queue_max(t.queue[q], INT64_MAX);
    CHECK(all >= PUTS);
    cmq_queues_destroy(t.queues);
    cmq_file_twin_close(twin);
}

static void threads_on_simple_queues(void) { run_threads(false, false); }
static void threads_on_extended_queues(void) { run_threads(true, false); }
static void threads_on_batch_queues(void) { run_threads(false, true); }

/* Readers look queues up while the writer adds thousands and deletes some. */
static void *find_all(void *unused)
{
    (void)unused;
    char topic[32];
    uint64_t random = 7;
    while (!atomic_load(&t.done)) {
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        const uint32_t count = cmq_queues_count(t.queues);
        if (count == 0) continue;
        const uint32_t index = (uint32_t)(random % count);
        cmq_queue *queue = cmq_queues_at(t.queues, index);
        snprintf(topic, sizeof topic, "%s", cmq_queue_topic(queue));
        cmq_queue *found = cmq_queues_find(t.queues, cmq_slice_of_text(topic), cmq_queue_id(queue));
        CHECK(found == NULL || strcmp(cmq_queue_topic(found), topic) == 0);
        CHECK(found != NULL || cmq_queue_deleted(queue) || index + 1 == count);   /* the newest may just be entering */
    }
    return NULL;
}

static void table_grows_under_readers(void)
{
    memset(&t, 0, sizeof t);
    const cmq_queues_options options = {.fs = cmq_fs_posix(),
                                        .root = cmq_test_directory(),
                                        .queue_file_bytes = 200,
                                        .batch_file_bytes = 460,
                                        .ext_file_bytes = 500};
    CHECK_OK(cmq_queues_create(&t.queues, &options));
    pthread_t readers[2];
    for (int i = 0; i < 2; i++) CHECK(pthread_create(&readers[i], NULL, find_all, NULL) == 0);
    for (int i = 0; i < 5000; i++) {
        char topic[32];
        cmq_queue *queue;
        snprintf(topic, sizeof topic, "topic-%d", i % 2500);
        CHECK_OK(cmq_queues_require(t.queues, cmq_slice_of_text(topic), i / 2500, CMQ_QUEUE_SIMPLE, &queue));
        if (i % 10 != 9) continue;
        CHECK_OK(cmq_queues_delete_topic(t.queues, cmq_slice_of_text(topic)));
        CHECK(cmq_queues_find(t.queues, cmq_slice_of_text(topic), i / 2500) == NULL);
    }
    atomic_store(&t.done, true);
    for (int i = 0; i < 2; i++) pthread_join(readers[i], NULL);
    cmq_queues_destroy(t.queues);
}

CMQ_TEST_MAIN(CMQ_TEST(ring_keeps_the_newest), CMQ_TEST(pool_uses_rings_again),
              CMQ_TEST(rings_change_hands_under_readers), CMQ_TEST(threads_on_simple_queues),
              CMQ_TEST(threads_on_extended_queues), CMQ_TEST(threads_on_batch_queues),
              CMQ_TEST(table_grows_under_readers))
