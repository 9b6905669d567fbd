/* Tests csrc/store/log/cmq_segment.c: files of the log, and pins that outlive them.
 *
 * Threads: yes
 */
#include "store/log/cmq_segment.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "support/cmq_file_twin.h"
#include "support/cmq_store_kit.h"

#define BYTES 8192

static cmq_segment_family *family;
static const char *root;

static void start(void)
{
    root = kit_directory();
    CHECK_OK(cmq_segment_family_create(&family));
}

static cmq_segment *open_segment(const char *name, int64_t first, cmq_segment_access access)
{
    cmq_segment *segment;
    CHECK_OK(cmq_segment_open(family, cmq_fs_posix(), kit_path(root, name), first, BYTES, access, &segment));
    return segment;
}

static void made_with_full_length(void)
{
    start();
    cmq_segment *segment = open_segment("a", 4 * BYTES, CMQ_SEGMENT_MAPPED);
    CHECK_INT(kit_file_bytes(kit_path(root, "a")), BYTES);
    CHECK_INT(cmq_segment_start(segment), 4 * BYTES);
    CHECK(cmq_segment_writable(segment));
    cmq_segment_data(segment)[7] = 9;
    cmq_segment_unpin(segment);
    segment = open_segment("a", 4 * BYTES, CMQ_SEGMENT_READ);
    CHECK(!cmq_segment_writable(segment));
    CHECK(cmq_segment_file(segment) == NULL);
    CHECK_INT(cmq_segment_data(segment)[7], 9);
    cmq_segment *writable;
    CHECK_OK(cmq_segment_reopen(segment, CMQ_SEGMENT_MAPPED_AGAIN, &writable));
    cmq_segment_data(writable)[7] = 11;
    CHECK_INT(cmq_segment_data(segment)[7], 11);   /* one page cache */
    cmq_segment_unpin(segment);
    cmq_segment_unpin(writable);
    cmq_segment_family_release(family);
}

static void wrong_files_are_refused(void)
{
    cmq_segment *segment;
    start();
    CHECK_STATUS(cmq_segment_open(family, cmq_fs_posix(), kit_path(root, "none"), 0, BYTES, CMQ_SEGMENT_READ, &segment),
                 CMQ_ERR_NOT_FOUND);
    kit_write_bytes(kit_path(root, "short"), BYTES - 2, "x", 1);
    CHECK_STATUS(
        cmq_segment_open(family, cmq_fs_posix(), kit_path(root, "short"), 0, BYTES, CMQ_SEGMENT_READ, &segment),
        CMQ_ERR_SETTING);
    CHECK(strstr(cmq_last_error()->text, "mappedFileSizeCommitLog") != NULL);
    /* Creating a file over one with data is our own mistake: nothing is destroyed. */
    kit_write_bytes(kit_path(root, "full"), BYTES - 1, "x", 1);
    CHECK_STATUS(
        cmq_segment_open(family, cmq_fs_posix(), kit_path(root, "full"), 0, BYTES, CMQ_SEGMENT_STAGED, &segment),
        CMQ_ERR_NOT_STORE);
    uint8_t byte;
    kit_read_bytes(kit_path(root, "full"), BYTES - 1, &byte, 1);
    CHECK_INT(byte, 'x');
    cmq_segment_family_release(family);
}

/* A creation whose sync failed is repeated by the next try, and durable then. */
static void failed_creation_is_repeated(void)
{
    static const cmq_twin_kind kinds[] = {CMQ_TWIN_RESIZE, CMQ_TWIN_SYNC, CMQ_TWIN_SYNC_DIRECTORY};
    start();
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        char name[2] = {(char)('a' + i), 0};
        const char *directory = kit_path(root, name), *image = kit_path(root, "image");
        CHECK_OK(cmq_fs_make_directory(cmq_fs_posix(), directory));
        cmq_file_twin *twin = cmq_file_twin_create(directory, cmq_test_random());
        cmq_segment *segment;
        cmq_file_twin_fail(twin, &(cmq_twin_fault){.kind = kinds[i], .nth = 1, .times = 1, .sys_errno = EIO});
        CHECK_STATUS(cmq_segment_open(family, cmq_file_twin_fs(twin), kit_path(directory, "s"), 0, BYTES,
                                      CMQ_SEGMENT_STAGED, &segment),
                     CMQ_ERR_IO);
        CHECK_OK(cmq_segment_open(family, cmq_file_twin_fs(twin), kit_path(directory, "s"), 0, BYTES,
                                  CMQ_SEGMENT_STAGED, &segment));
        cmq_file_twin_crash_image_of(twin, image, CMQ_TWIN_NOTHING);
        CHECK_INT(kit_file_bytes(kit_path(image, "s")), BYTES);
        cmq_segment_unpin(segment);
        cmq_file_twin_close(twin);
    }
    cmq_segment_family_release(family);
}

static void pins_outlive_the_log(void)
{
    start();
    cmq_segment *segment = open_segment("a", 0, CMQ_SEGMENT_MAPPED);
    memcpy(cmq_segment_data(segment), "kept", 4);
    CHECK(cmq_segment_try_pin(segment));
    cmq_segment_pin(segment);
    cmq_segment_unpin(segment);
    cmq_segment_unpin(segment);            /* the log's own */
    cmq_segment_family_release(family);    /* and the log */
    CHECK_OK(cmq_fs_remove(cmq_fs_posix(), kit_path(root, "a")));
    CHECK(memcmp(cmq_segment_data(segment), "kept", 4) == 0);
    cmq_segment_unpin(segment);            /* frees all: the sanitizer looks */
}

static void a_dropped_segment_is_not_pinned(void)
{
    start();
    cmq_segment *segment = open_segment("a", 0, CMQ_SEGMENT_MAPPED);
    cmq_segment_unpin(segment);
    CHECK(!cmq_segment_try_pin(segment));  /* its memory is still there, its mapping is not */
    CHECK(cmq_segment_data(segment) == NULL);
    cmq_segment_family_release(family);
}

/* Readers pin what they saw while the log drops it. */
typedef struct racing {
    _Atomic(cmq_segment *) shown;
    _Atomic bool stop;
    _Atomic uint64_t pinned;
} racing;

static void *pin_and_look(void *argument)
{
    racing *race = argument;
    while (!atomic_load(&race->stop)) {
        cmq_segment *segment = atomic_load(&race->shown);
        if (segment == NULL || !cmq_segment_try_pin(segment)) continue;
        CHECK_INT(cmq_segment_data(segment)[5], 5);
        atomic_fetch_add(&race->pinned, 1);
        cmq_segment_unpin(segment);
    }
    return NULL;
}

static void pinned_while_dropped(void)
{
    racing race = {0};
    pthread_t readers[3];
    start();
    for (int i = 0; i < 3; i++) CHECK(pthread_create(&readers[i], NULL, pin_and_look, &race) == 0);
    for (int i = 0; i < 60 || atomic_load(&race.pinned) < 100; i++) {
        char name[16];
        snprintf(name, sizeof name, "s%d", i);
        cmq_segment *segment = open_segment(name, (int64_t)i * BYTES, CMQ_SEGMENT_MAPPED);
        cmq_segment_data(segment)[5] = 5;
        atomic_store(&race.shown, segment);
        for (uint64_t until = atomic_load(&race.pinned) + cmq_test_random_below(3); atomic_load(&race.pinned) < until;)
            sched_yield();
        cmq_segment_unpin(segment);   /* readers still see the pointer */
    }
    atomic_store(&race.stop, true);
    for (int i = 0; i < 3; i++) CHECK(pthread_join(readers[i], NULL) == 0);
    cmq_segment_family_release(family);
}

CMQ_TEST_MAIN(CMQ_TEST(made_with_full_length), CMQ_TEST(wrong_files_are_refused),
              CMQ_TEST(failed_creation_is_repeated), CMQ_TEST(pins_outlive_the_log),
              CMQ_TEST(a_dropped_segment_is_not_pinned), CMQ_TEST(pinned_while_dropped))
