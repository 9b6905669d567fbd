/* Tests csrc/store/read/cmq_key_search.c: all records of a key in steps, while the store goes on. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/index/cmq_index_file.h"
#include "support/cmq_file_twin.h"
#include "support/cmq_store_kit.h"

#define MESSAGES 5000
#define EVERY 5                /* so many messages of other keys come between two of the key */

static const char *root;
static kit_found *found;

static cmq_store_options many_files(void)
{
    cmq_store_options options = kit_options(root);
    options.segment_bytes = 65536;
    options.queue_file_bytes = 20000;
    options.index_slots = 64;
    options.index_entries = 1501;
    return options;
}

static void append(cmq_store *store, int from, int count)
{
    for (int i = from; i < from + count; i++) {
        char body[16];
        snprintf(body, sizeof body, "m%d", i);
        kit_append(store, "T", i % 3, body, NULL, i % 2 == 0 ? "k other" : "k k");   /* the same key twice, too */
        if (i % EVERY == 0) kit_append(store, "T", 0, "noise", NULL, "else");
        atomic_fetch_add(&kit_now_ms, 3);
    }
}

static void keep_first_path(void *context, const char *path, int64_t bytes)
{
    char **into = context;
    (void)bytes;
    if (*into == NULL) *into = strdup(path);
}

static cmq_store *start(void)
{
    root = kit_path(kit_directory(), "store");
    kit_set_clock();
    const cmq_store_options options = many_files();
    return kit_open(&options);
}

static cmq_key_search *search(cmq_store *store, uint64_t limit)
{
    cmq_key_search *opened;
    const cmq_key_search_options options = {
        .topic = kit_slice("T"), .key = kit_slice("k"), .end_ms = INT64_MAX, .limit = limit};
    CHECK_OK(cmq_key_search_open(store, &options, &opened));
    return opened;
}

/* The next step must be messages `newest`, `newest` - 1, ...; the number of the last one less one. */
static int step(cmq_key_search *of, int newest)
{
    CHECK_OK(cmq_key_search_next(of, &found->batch));
    for (uint32_t i = 0; i < found->batch.count; i++, newest--) {
        char body[16];
        snprintf(body, sizeof body, "m%d", newest);
        if (!kit_body_is(&found->items[i], body))
            cmq_test_fail(__FILE__, __LINE__, "%s is missing, or comes at another place", body);
    }
    return newest;
}

/* In steps of every size, each message comes once; those that are appended meanwhile do not. */
static void everything_in_steps(void)
{
    static const uint32_t steps[] = {1, 7, 64, 1000, KIT_FOUND_MAX};
    cmq_store *store = start();
    append(store, 0, MESSAGES);
    int count = MESSAGES;
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        found = kit_found_make(steps[i]);
        cmq_key_search *of = search(store, 0);
        int newest = count - 1, calls = 0;
        for (bool more = true; more; calls++) {
            newest = step(of, newest);
            more = found->batch.count > 0;
            cmq_found_batch_release(&found->batch);
            if (calls % 1000 == 3) append(store, count++, 1);
        }
        CHECK_INT(newest, -1);
        cmq_key_search_close(of);
        kit_found_free(found);
    }
    kit_close(store);
}

static void a_limit_ends_it(void)
{
    cmq_store *store = start();
    append(store, 0, 300);
    found = kit_found_make(64);
    cmq_key_search *of = search(store, 100);
    CHECK_INT(step(of, 299), 299 - 64);
    cmq_found_batch_release(&found->batch);
    CHECK_INT(step(of, 299 - 64), 199);
    CHECK_INT(found->batch.count, 36);
    cmq_found_batch_release(&found->batch);
    step(of, 199);
    CHECK_INT(found->batch.count, 0);
    cmq_key_search_close(of);
    kit_found_free(found);
    kit_close(store);
}

/* More segments than a batch has pins for: the rest comes with the next batch. */
static void over_many_segments(void)
{
    root = kit_path(kit_directory(), "store");
    kit_set_clock();
    cmq_store_options options = many_files();
    options.segment_bytes = 4096;
    cmq_store *store = kit_open(&options);
    for (int i = 0; i < 3 * CMQ_FOUND_PINS_MAX; i++) {
        char body[3000];
        snprintf(body, sizeof body, "m%d", i);
        const cmq_append one = {.common = {.topic = kit_slice("T")},
                                .count = 1,
                                .bodies = {.kind = CMQ_COLUMN_ONE, .one = kit_slice(body)},
                                .keys = {.kind = CMQ_COLUMN_ONE, .one = kit_slice("k")},
                                .properties = {.kind = CMQ_COLUMN_ONE, .one = kit_slice("")}};
        cmq_appended appended;
        CHECK_OK(cmq_store_append(store, &one, &appended));
        memset(body, 'x', sizeof body - 1);
        body[sizeof body - 1] = '\0';
        kit_append(store, "T", 1, body, NULL, NULL);   /* fills the segment */
    }
    found = kit_found_make(KIT_FOUND_MAX);
    cmq_key_search *of = search(store, 0);
    int newest = 3 * CMQ_FOUND_PINS_MAX - 1;
    for (int calls = 0; calls < 3; calls++) {
        newest = step(of, newest);
        CHECK(found->batch.count >= CMQ_FOUND_PINS_MAX);
        cmq_found_batch_release(&found->batch);
    }
    CHECK_INT(newest, -1);
    cmq_key_search_close(of);
    kit_found_free(found);
    kit_close(store);
}

/* Messages that expire during a search are passed over, and the files that the search stood in may go. */
static void beside_retention(void)
{
    cmq_store *store = start();
    append(store, 0, MESSAGES);
    found = kit_found_make(500);
    cmq_key_search *of = search(store, 0);
    int newest = step(of, MESSAGES - 1);
    cmq_found_batch_release(&found->batch);
    uint32_t deleted;
    CHECK_OK(cmq_store_maintain(store, true));
    while (cmq_store_expire(store, true, &deleted) == CMQ_OK && deleted > 0) continue;
    cmq_store_info info;
    CHECK_OK(cmq_store_info_of(store, &info));
    for (bool more = true; more;) {
        newest = step(of, newest);
        more = found->batch.count > 0;
        for (uint32_t i = 0; i < found->batch.count; i++) CHECK(found->items[i].physical_offset >= info.log_min);
        cmq_found_batch_release(&found->batch);
    }
    CHECK(newest > 0 && newest < MESSAGES);
    cmq_key_search_close(of);
    kit_found_free(found);
    kit_close(store);
}

/* A recovery puts the last records' keys again: each record comes once. A read-only store searches the same files. */
static void after_a_crash(void)
{
    cmq_store *store = start();
    append(store, 0, 400);
    cmq_store_abandon(store);
    kit_remove_tree(kit_path(root, "cometmq"));   /* upstream's rules: the newest index file is deleted and rebuilt */
    cmq_store_options options = many_files();
    store = kit_open(&options);
    append(store, 400, 10);
    options.read_only = true;
    cmq_store *view = kit_open(&options);
    for (int i = 0; i < 2; i++) {
        found = kit_found_make(50);
        cmq_key_search *of = search(i == 0 ? store : view, 0);
        int newest = 409;
        for (bool more = true; more;) {
            newest = step(of, newest);
            more = found->batch.count > 0;
            cmq_found_batch_release(&found->batch);
        }
        CHECK_INT(newest, -1);
        cmq_key_search_close(of);
        kit_found_free(found);
    }
    kit_close(view);
    kit_close(store);
}

/* A power loss took the page of an entry behind the durable point: entries of before it hang on that one. */
static void torn_index_hides_no_key_of_before_the_point(void)
{
    static const uint8_t lost[CMQ_INDEX_ENTRY_BYTES] = {0};
    cmq_store *store = start();
    for (int i = 0; i < 2; i++) {
        char body[16];
        snprintf(body, sizeof body, "m%d", i);
        kit_append(store, "T", 0, body, NULL, "k");
        if (i == 0) CHECK_OK(cmq_store_maintain(store, true));
    }
    cmq_store_abandon(store);
    const char *copy = kit_path(kit_directory(), "copy");   /* whose follow page proves nothing */
    kit_copy_tree(root, copy);
    char *file = NULL;
    kit_each_file(kit_path(copy, "index"), keep_first_path, &file);
    CHECK(file != NULL);
    cmq_store_options options = many_files();
    kit_write_bytes(file,
                    CMQ_INDEX_HEADER_BYTES + (int64_t)CMQ_INDEX_SLOT_BYTES * options.index_slots +
                        INT64_C(2) * CMQ_INDEX_ENTRY_BYTES,
                    lost, sizeof lost);
    free(file);
    options.path = copy;
    options.read_only = true;
    cmq_store *view = kit_open(&options);
    found = kit_found_make(4);
    cmq_key_search *of = search(view, 0);
    CHECK_INT(step(of, 1), -1);
    CHECK_INT(found->batch.count, 2);
    cmq_found_batch_release(&found->batch);
    cmq_key_search_close(of);
    kit_found_free(found);
    kit_close(view);
}

/* ---- a view of a writer that was killed, while the next one recovers ---- */

#define SHOWN 40

static struct {
    cmq_store *view;
    uint32_t looks;
} recovering;

/* Each message that the view has shown is found by its key, whatever the recovery has done to the index by now. */
static void look_all_up(void *context, const cmq_twin_call *call)
{
    (void)context, (void)call;
    for (int i = 0; i < SHOWN; i++) {
        char key[16];
        snprintf(key, sizeof key, "k%d", i);
        CHECK_OK(cmq_store_find_key(recovering.view, kit_slice("T"), kit_slice(key), 0, INT64_MAX, &found->batch));
        if (found->batch.count != 1) cmq_test_fail(__FILE__, __LINE__, "%s is found %u times", key, found->batch.count);
        CHECK(kit_body_is(&found->items[0], key));
        cmq_found_batch_release(&found->batch);
    }
    recovering.looks++;
}

static void keys_are_found_while_a_writer_recovers(void)
{
    root = kit_path(kit_directory(), "store");
    kit_set_clock();
    CHECK_OK(cmq_fs_make_directory(cmq_fs_posix(), root));
    cmq_file_twin *twin = cmq_file_twin_create(root, 1);
    cmq_store_options options = many_files();
    options.fs = cmq_file_twin_fs(twin);
    options.flush = CMQ_FLUSH_ASYNC;
    cmq_store *store = kit_open(&options);
    for (int i = 0; i < SHOWN; i++) {
        char key[16];
        snprintf(key, sizeof key, "k%d", i);
        kit_append(store, "T", 0, key, NULL, key);
        if (i == SHOWN / 2) CHECK_OK(cmq_store_maintain(store, true));
    }
    cmq_store_options view_options = options;
    view_options.read_only = true;
    found = kit_found_make(64);
    recovering.view = kit_open(&view_options);
    look_all_up(NULL, NULL);
    cmq_store_abandon(store);
    cmq_file_twin_on_call(twin, 0, look_all_up, NULL);
    store = kit_open(&options);
    cmq_file_twin_on_call(twin, 0, NULL, NULL);
    CHECK(recovering.looks > 5);
    look_all_up(NULL, NULL);
    kit_close(recovering.view);
    kit_close(store);
    kit_found_free(found);
    cmq_file_twin_close(twin);
}

CMQ_TEST_MAIN(CMQ_TEST(everything_in_steps), CMQ_TEST(a_limit_ends_it), CMQ_TEST(over_many_segments),
              CMQ_TEST(beside_retention), CMQ_TEST(after_a_crash),
              CMQ_TEST(torn_index_hides_no_key_of_before_the_point), CMQ_TEST(keys_are_found_while_a_writer_recovers))
