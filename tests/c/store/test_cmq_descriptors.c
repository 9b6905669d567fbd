/* test_cmq_descriptors: a store of far more segments, or index files, than the process may have descriptors: written,
 * read, followed, recovered, expired. */
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "support/cmq_store_kit.h"

#define SEGMENTS 1500
#define DESCRIPTORS 256
#define KEYED 400        /* messages, and about as many index files */
#define BODY_BYTES 3000   /* one message fills a segment of 4 KiB */

static char body[BODY_BYTES + 1];

static int open_descriptors(void)
{
    DIR *directory = opendir("/proc/self/fd");
    int count = -1;   /* its own */
    if (directory == NULL) return 0;
    for (const struct dirent *entry = readdir(directory); entry != NULL; entry = readdir(directory))
        count += entry->d_name[0] != '.';
    closedir(directory);
    return count;
}

static cmq_store_options small_segments(const char *root, cmq_flush_mode flush)
{
    cmq_store_options options = kit_options(root);
    options.segment_bytes = 4096;
    options.queue_file_bytes = 200000;
    options.flush = flush;
    return options;
}

static void append(cmq_store *store, int count)
{
    for (int i = 0; i < count; i++) {
        (void)kit_append(store, "T", 0, body, NULL, NULL);
        if (i % 50 == 0) CHECK_OK(cmq_store_maintain(store, false));   /* async: as the background thread does */
    }
}

static void check_all(cmq_store *store, int count)
{
    cmq_reader *reader;
    kit_found *found = kit_found_make(100);
    const cmq_slice topic = kit_slice("T");
    bool end = false;
    int read = 0;
    CHECK_OK(cmq_reader_open(store, &(cmq_read_options){.topics = &topic, .topic_count = 1}, &reader));
    for (bool more = true; more;) {
        CHECK_OK(cmq_reader_next(reader, &found->batch, &end));
        more = found->batch.count > 0;
        for (uint32_t i = 0; i < found->batch.count; i++, read++) CHECK(kit_body_is(&found->items[i], body));
        cmq_found_batch_release(&found->batch);
    }
    CHECK_INT(read, count);
    cmq_reader_close(reader);
    kit_found_free(found);
}

static void many_segments(cmq_flush_mode flush)
{
    const char *root = kit_path(kit_directory(), "store");
    struct rlimit before, few;
    CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
    few = before;
    few.rlim_cur = DESCRIPTORS;
    CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
    memset(body, 'x', BODY_BYTES);
    kit_set_clock();
    cmq_store_options options = small_segments(root, flush);
    cmq_store *store = kit_open(&options);
    append(store, SEGMENTS);
    CHECK_INT(cmq_store_confirmed(store) / 4096, SEGMENTS - 1);
    CHECK(open_descriptors() < DESCRIPTORS / 2);
    check_all(store, SEGMENTS);
    cmq_store_options reading = options;
    reading.read_only = true;
    cmq_store *view = kit_open(&reading);
    check_all(view, SEGMENTS);
    append(store, 20);
    check_all(view, SEGMENTS + 20);
    CHECK(open_descriptors() < DESCRIPTORS / 2);
    kit_close(view);
    cmq_store_abandon(store);
    options.retention = (cmq_retention){.enabled = true, .reserved_ms = 1, .files_per_round = 700};
    store = kit_open(&options);
    CHECK(open_descriptors() < DESCRIPTORS / 2);
    check_all(store, SEGMENTS + 20);
    uint32_t deleted;
    CHECK_OK(cmq_store_expire(store, true, &deleted));
    CHECK_INT(deleted, 700);
    append(store, 5);
    check_all(store, SEGMENTS + 25 - 700);
    kit_close(store);
    CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
}

static void many_segments_sync(void) { many_segments(CMQ_FLUSH_SYNC); }
static void many_segments_async(void) { many_segments(CMQ_FLUSH_ASYNC); }

/* Keys over far more index files than there may be descriptors, one by one and many files in a batch; then every way to
 * open. */
static void many_index_files(rlim_t descriptors)
{
    const char *root = kit_path(kit_directory(), "store");
    struct rlimit before, few;
    CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
    few = before;
    few.rlim_cur = descriptors;
    CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
    kit_set_clock();
    cmq_store_options options = kit_options(root);
    options.index_slots = 10;
    options.index_entries = 5;   /* four keys */
    cmq_store *store = kit_open(&options);
    for (int i = 0; i < KEYED; i++) {
        char keys[64];
        snprintf(keys, sizeof keys, "k%d m%d n%d o%d", i, i, i, i);
        (void)kit_append(store, "T", 0, "keyed", NULL, keys);
        if (i % 50 == 0) CHECK_OK(cmq_store_maintain(store, i % 100 == 0));
    }
    CHECK(open_descriptors() < (int)descriptors / 2);
    for (int reopened = 0; reopened < 3; reopened++) {
        if (reopened == 1) cmq_store_abandon(store);   /* recovery */
        else kit_close(store);
        options.read_only = reopened == 2;
        store = kit_open(&options);
        CHECK(open_descriptors() < (int)descriptors / 2);
        kit_found *found = kit_found_make(1);
        for (int i = 0; i < KEYED; i += 37) {
            char key[32];
            snprintf(key, sizeof key, "n%d", i);
            CHECK_OK(cmq_store_find_key(store, kit_slice("T"), kit_slice(key), 0, INT64_MAX, &found->batch));
            CHECK_INT(found->batch.count, 1);
            cmq_found_batch_release(&found->batch);
        }
        kit_found_free(found);
        if (!options.read_only) (void)kit_append(store, "T", 0, "keyed", NULL, "again once more");
    }
    kit_close(store);
    CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
}

static void many_index_files_of_64(void) { many_index_files(64); }
static void many_index_files_of_256(void) { many_index_files(256); }

/* The program takes every descriptor that is left, and the store needs some: it closes files of queues, also those that
 * another store keeps open. */
static void queue_files_make_way(void)
{
    struct rlimit before, few;
    CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
    few = before;
    few.rlim_cur = DESCRIPTORS;
    CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
    memset(body, 'x', BODY_BYTES);
    kit_set_clock();
    cmq_store_options keeping = small_segments(kit_path(kit_directory(), "keeping"), CMQ_FLUSH_SYNC);
    cmq_store_options needing = small_segments(kit_path(kit_directory(), "needing"), CMQ_FLUSH_SYNC);
    cmq_store *keeper = kit_open(&keeping), *store = kit_open(&needing);
    for (int i = 0; i < 60; i++) (void)kit_append(keeper, "T", i, "one", NULL, NULL);
    CHECK_OK(cmq_store_maintain(keeper, true));
    int taken[DESCRIPTORS], count = 0;
    for (int next = dup(0); next >= 0; next = dup(0)) taken[count++] = next;
    for (int i = 0; i < 10; i++) (void)kit_append(store, "T", 0, body, NULL, "key");   /* segments, an index file */
    CHECK_OK(cmq_store_maintain(store, true));
    CHECK_OK(cmq_store_maintain(keeper, true));
    while (count > 0) close(taken[--count]);
    check_all(store, 10);
    kit_close(store);
    kit_close(keeper);
    CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
}

CMQ_TEST_MAIN(CMQ_TEST(many_index_files_of_64), CMQ_TEST(many_index_files_of_256), CMQ_TEST(many_segments_sync),
              CMQ_TEST(many_segments_async), CMQ_TEST(queue_files_make_way))
