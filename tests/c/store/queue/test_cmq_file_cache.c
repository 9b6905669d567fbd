/* test_cmq_file_cache: the bound, the order of eviction, users that keep what was dropped, running out of descriptors.
 *
 * Threads: yes
 */
#include "store/queue/cmq_file_cache.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "support/cmq_file_twin.h"
#include "support/cmq_test.h"

#define FILES 60
#define FILE_BYTES 5000

static const char *root;

static void path_of(int i, char into[CMQ_PATH_BYTES])
{
    char name[16];
    snprintf(name, sizeof name, "f%d", i);
    CHECK_OK(cmq_path_join(into, root, name));
}

/* FILES files; byte k of file i is i + k. */
static void make_files(void)
{
    root = cmq_test_directory();
    for (int i = 0; i < FILES; i++) {
        char path[CMQ_PATH_BYTES];
        uint8_t bytes[FILE_BYTES];
        cmq_file *file;
        path_of(i, path);
        for (int k = 0; k < FILE_BYTES; k++) bytes[k] = (uint8_t)(i + k);
        CHECK_OK(cmq_file_open(cmq_fs_posix(), path, CMQ_OPEN_CREATE_NEW, &file));
        CHECK_OK(cmq_file_write(file, 0, bytes, sizeof bytes));
        cmq_file_close(file);
    }
}

static cmq_cachedfile *take(cmq_file_cache *cache, int i)
{
    char path[CMQ_PATH_BYTES];
    cmq_cachedfile *taken = cmq_file_cache_find(cache, (uint64_t)i % 7, i);
    if (taken != NULL) return taken;
    path_of(i, path);
    CHECK_OK(cmq_file_cache_open(cache, (uint64_t)i % 7, i, path, CMQ_OPEN_READ, FILE_BYTES, &taken));
    return taken;
}

static void check_content(const cmq_cachedfile *taken, int i)
{
    uint8_t bytes[10];
    CHECK_OK(cmq_file_read(taken->file, 100, bytes, sizeof bytes));
    for (int k = 0; k < 10; k++) CHECK_INT(bytes[k], (uint8_t)(i + 100 + k));
    if (taken->map == NULL) return;
    CHECK_INT(taken->bytes, FILE_BYTES);
    CHECK_INT(taken->map[FILE_BYTES - 1], (uint8_t)(i + FILE_BYTES - 1));
}

static void keeps_the_latest_used(void)
{
    make_files();
    cmq_file_cache *cache;
    CHECK_OK(cmq_file_cache_create(&cache, cmq_fs_posix(), 4, false));
    for (int i = 0; i < 10; i++) {
        cmq_cachedfile *taken = take(cache, i);
        check_content(taken, i);
        cmq_file_cache_release(cache, taken);
        taken = take(cache, 0);   /* 0 stays in use, the others come and go */
        cmq_file_cache_release(cache, taken);
        CHECK_INT(cmq_file_cache_count(cache), i < 3 ? i + 1 : 4);
    }
    for (int i = 0; i < 10; i++) {
        cmq_cachedfile *found = cmq_file_cache_find(cache, (uint64_t)i % 7, i);
        CHECK((found != NULL) == (i == 0 || i > 6));
        if (found != NULL) cmq_file_cache_release(cache, found);
    }
    cmq_file_cache_destroy(cache);
}

static void users_exceed_the_bound(void)
{
    make_files();
    cmq_file_cache *cache;
    cmq_cachedfile *taken[20];
    CHECK_OK(cmq_file_cache_create(&cache, cmq_fs_posix(), 4, true));
    for (int i = 0; i < 20; i++) taken[i] = take(cache, i);
    for (int i = 0; i < 20; i++) check_content(taken[i], i);
    CHECK_INT(cmq_file_cache_count(cache), 20);
    for (int i = 0; i < 20; i++) cmq_file_cache_release(cache, taken[i]);
    cmq_file_cache_release(cache, take(cache, 30));
    CHECK_INT(cmq_file_cache_count(cache), 4);
    cmq_file_cache_destroy(cache);
}

static void dropped_files_live_while_used(void)
{
    make_files();
    char path[CMQ_PATH_BYTES];
    cmq_file_cache *cache;
    cmq_cachedfile *again;
    CHECK_OK(cmq_file_cache_create(&cache, cmq_fs_posix(), 64, true));
    cmq_cachedfile *taken = take(cache, 5);
    path_of(5, path);
    CHECK_OK(cmq_fs_remove(cmq_fs_posix(), path));
    cmq_file_cache_drop(cache, 5, 5);
    cmq_file_cache_drop(cache, 5, 5);   /* not there: nothing */
    CHECK(cmq_file_cache_find(cache, 5, 5) == NULL);
    check_content(taken, 5);
    CHECK_STATUS(cmq_file_cache_open(cache, 5, 5, path, CMQ_OPEN_READ, FILE_BYTES, &again), CMQ_ERR_NOT_FOUND);
    CHECK(again == NULL);
    cmq_file_cache_release(cache, taken);
    CHECK_INT(cmq_file_cache_count(cache), 0);
    path_of(6, path);
    /* too short to map */
    CHECK_STATUS(cmq_file_cache_open(cache, 5, 5, path, CMQ_OPEN_READ, FILE_BYTES + 1, &again), CMQ_ERR_CORRUPT);
    cmq_file_cache_destroy(cache);
}

static void gives_descriptors_back_when_there_are_none(void)
{
    make_files();
    cmq_file_twin *twin = cmq_file_twin_create(root, 1);
    cmq_file_cache *cache;
    CHECK_OK(cmq_file_cache_create(&cache, cmq_file_twin_fs(twin), 256, false));
    for (int i = 0; i < 40; i++) cmq_file_cache_release(cache, take(cache, i));
    CHECK_INT(cmq_file_cache_count(cache), 40);
    cmq_file_twin_fail(twin, &(cmq_twin_fault){.kind = CMQ_TWIN_OPEN, .nth = 1, .times = 1, .sys_errno = EMFILE});
    cmq_file_cache_release(cache, take(cache, 50));
    CHECK(cmq_file_cache_count(cache) < 30);
    cmq_file_cache_destroy(cache);
    cmq_file_twin_close(twin);
}

/* ---- threads ---- */

static cmq_file_cache *shared;

static void *use_files(void *seed)
{
    uint64_t random = 1442695040888963407u * (uint64_t)(uintptr_t)seed + 1;
    for (int n = 0; n < 3000; n++) {
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        const int i = (int)(random % FILES);
        if (random >> 40 & 1) {
            cmq_file_cache_drop(shared, (uint64_t)i % 7, i);
            continue;
        }
        cmq_cachedfile *taken = take(shared, i);
        check_content(taken, i);
        cmq_file_cache_release(shared, taken);
    }
    return NULL;
}

static void threads_share(void)
{
    make_files();
    pthread_t threads[4];
    CHECK_OK(cmq_file_cache_create(&shared, cmq_fs_posix(), 32, true));
    for (uintptr_t i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], NULL, use_files, (void *)(i + 1)) == 0);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    CHECK(cmq_file_cache_count(shared) <= 32);
    cmq_file_cache_destroy(shared);
}

CMQ_TEST_MAIN(CMQ_TEST(keeps_the_latest_used), CMQ_TEST(users_exceed_the_bound),
              CMQ_TEST(dropped_files_live_while_used), CMQ_TEST(gives_descriptors_back_when_there_are_none),
              CMQ_TEST(threads_share))
