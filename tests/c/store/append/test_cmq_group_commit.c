/* Tests csrc/store/append/cmq_commit.c: one fdatasync serves all appenders that came during the one before.
 *
 * Threads: yes
 * The first sync of the log is held until all other appenders have staged their messages: the clock, which an appender
 * reads once under the writer lock, shows when each is there. So the number of syncs is certain, whatever the machine
 * does.
 */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "store/cmq_store_internal.h"
#include "support/cmq_file_twin.h"
#include "support/cmq_store_kit.h"

#define OTHERS 12

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static cmq_store *store;
static bool held;            /* the first sync has begun; mutex */
static int begun;            /* appenders that read the clock since; mutex */
static int syncs;            /* of the log; mutex */

static int64_t tell_time(void *context)
{
    (void)context;
    pthread_mutex_lock(&mutex);
    if (held) begun++;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
    return atomic_load(&kit_now_ms);
}

/* At the start of each changing call. */
static void on_call(void *context, const cmq_twin_call *call)
{
    (void)context;
    if (call->kind != CMQ_TWIN_SYNC || strstr(call->path, "/commitlog/") == NULL) return;
    pthread_mutex_lock(&mutex);
    if (syncs++ == 0) {
        held = true;
        pthread_cond_broadcast(&changed);
        while (begun < OTHERS) pthread_cond_wait(&changed, &mutex);
    }
    pthread_mutex_unlock(&mutex);
    /* The last of them still holds the writer lock, or has just let it go: then its message is staged. */
    pthread_mutex_lock(&store->writer_mutex);
    pthread_mutex_unlock(&store->writer_mutex);
}

static void *append_one(void *argument)
{
    const int number = *(int *)argument;
    char body[16], key[8];
    snprintf(body, sizeof body, "m%d", number);
    snprintf(key, sizeof key, "k%d", number);
    const cmq_appended appended = kit_append(store, "T", number % 3, body, NULL, key);
    CHECK(cmq_store_confirmed(store) >= appended.end);
    return NULL;
}

static void one_sync_serves_many(void)
{
    const char *root = kit_path(kit_directory(), "store");
    CHECK_OK(cmq_fs_make_directory(cmq_fs_posix(), root));
    kit_set_clock();
    cmq_file_twin *twin = cmq_file_twin_create(root, 1);
    cmq_store_options options = kit_options(root);
    options.fs = cmq_file_twin_fs(twin);
    options.clock = (cmq_clock){.now_ms = tell_time};
    options.segment_bytes = 1 << 20;
    store = kit_open(&options);
    kit_append_many(store, "T", "first", 3);   /* files and their blocks are there now, so appending makes no call */
    held = false;
    begun = syncs = 0;
    cmq_file_twin_on_call(twin, 0, on_call, NULL);
    pthread_t leader, others[OTHERS];
    int numbers[OTHERS + 1];
    numbers[OTHERS] = OTHERS;
    CHECK(pthread_create(&leader, NULL, append_one, &numbers[OTHERS]) == 0);
    pthread_mutex_lock(&mutex);
    while (!held) pthread_cond_wait(&changed, &mutex);
    pthread_mutex_unlock(&mutex);
    for (int i = 0; i < OTHERS; i++) {
        numbers[i] = i;
        CHECK(pthread_create(&others[i], NULL, append_one, &numbers[i]) == 0);
    }
    for (int i = 0; i < OTHERS; i++) CHECK(pthread_join(others[i], NULL) == 0);
    CHECK(pthread_join(leader, NULL) == 0);
    cmq_file_twin_on_call(twin, 0, NULL, NULL);
    CHECK_INT(syncs, 2);   /* the first appender's own, and one for all the others */
    CHECK_INT(kit_max(store, "T", 0) + kit_max(store, "T", 1) + kit_max(store, "T", 2), OTHERS + 1 + 3);
    /* And it is durable: an image without anything unsynced has all of them. */
    const char *image = kit_path(kit_directory(), "image");
    cmq_file_twin_crash_image_of(twin, image, CMQ_TWIN_NOTHING);
    cmq_store_options again = kit_options(image);
    again.segment_bytes = options.segment_bytes;
    cmq_store *after = kit_open(&again);
    CHECK_INT(kit_max(after, "T", 0) + kit_max(after, "T", 1) + kit_max(after, "T", 2), OTHERS + 1 + 3);
    kit_close(after);
    kit_close(store);
    cmq_file_twin_close(twin);
}

CMQ_TEST_MAIN(CMQ_TEST(one_sync_serves_many))
