/* Tests csrc/store/marks/cmq_fence.c: after a failed sync the next opening does not believe what is in memory alone. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "support/cmq_file_twin.h"
#include "support/cmq_store_kit.h"

static const char *root, *image;
static cmq_file_twin *twin;

static cmq_store *open_store(cmq_flush_mode flush)
{
    cmq_store_options options = kit_options(root);
    options.fs = cmq_file_twin_fs(twin);
    options.flush = flush;
    return kit_open(&options);
}

static void start(void)
{
    static char paths[2][CMQ_PATH_BYTES];
    const char *directory = kit_directory();
    CHECK_OK(cmq_path_join(paths[0], directory, "store"));
    CHECK_OK(cmq_path_join(paths[1], directory, "image"));
    root = paths[0];
    image = paths[1];
    kit_set_clock();
    CHECK_OK(cmq_fs_make_directory(cmq_fs_posix(), root));
    twin = cmq_file_twin_create(root, 1);
}

/* The store after a power loss now, in which no unsynced change survives. */
static void check_image(int64_t count)
{
    cmq_file_twin_crash_image_of(twin, image, CMQ_TWIN_NOTHING);
    cmq_store *store = kit_open_at(image);
    CHECK_INT(kit_max(store, "T", 0), count);
    kit_found *found = kit_found_make(100);
    for (int64_t i = 0; i < count; i++) {
        cmq_found_batch_release(&found->batch);
        CHECK_OK(cmq_store_read_offset(store, kit_slice("T"), 0, i, &found->batch));
    }
    kit_found_free(found);
    kit_close(store);
    kit_remove_tree(image);
}

static void fail_syncs(cmq_twin_kind kind)
{
    cmq_file_twin_fail(twin, &(cmq_twin_fault){.kind = kind, .nth = 1, .times = 1, .sys_errno = EIO});
}

/* The bytes of the refused group are in the page cache, and whole: they are read as messages, and what follows them is
 * acknowledged. */
static void bytes_of_a_failed_sync_are_written_again(void)
{
    for (int async = 0; async < 2; async++) {
        start();
        cmq_store *store = open_store(async ? CMQ_FLUSH_ASYNC : CMQ_FLUSH_SYNC);
        kit_append_many(store, "T", "m", 20);
        CHECK_OK(cmq_store_flush(store));
        fail_syncs(async ? CMQ_TWIN_SYNC_MAPPED : CMQ_TWIN_SYNC);
        cmq_appended appended;
        const cmq_status status = kit_try_append(store, "T", 0, "refused", NULL, NULL, &appended);
        CHECK_INT(status, async ? CMQ_OK : CMQ_ERR_FENCED);
        if (async) CHECK_STATUS(cmq_store_flush(store), CMQ_ERR_FENCED);
        cmq_store_abandon(store);
        CHECK(kit_exists(kit_path(root, "cometmq/fenced")));
        cmq_file_twin_clear_faults(twin);
        store = open_store(CMQ_FLUSH_SYNC);
        CHECK(!kit_exists(kit_path(root, "cometmq/fenced")));
        const int64_t found = kit_max(store, "T", 0);
        CHECK_INT(found, 21);
        check_image(found);
        kit_append_many(store, "T", "behind", 5);
        check_image(found + 5);
        kit_close(store);
        cmq_file_twin_close(twin);
    }
}

/* A recovery that met the failure itself says so to the next one. */
static void a_refused_recovery_is_remembered(void)
{
    start();
    cmq_store *store = open_store(CMQ_FLUSH_ASYNC);
    kit_append_many(store, "T", "m", 30);
    cmq_store_abandon(store);
    for (int kind = 0; kind < 3; kind++) {
        static const cmq_twin_kind kinds[] = {CMQ_TWIN_SYNC_ALL, CMQ_TWIN_SYNC, CMQ_TWIN_SYNC_DIRECTORY};
        cmq_store_options options = kit_options(root);
        options.fs = cmq_file_twin_fs(twin);
        fail_syncs(kinds[kind]);
        const cmq_status status = cmq_store_open(&store, &options);
        cmq_file_twin_clear_faults(twin);
        if (status == CMQ_OK) {   /* it has no call of this kind */
            cmq_store_abandon(store);
            continue;
        }
        CHECK(kit_exists(kit_path(root, "cometmq/fenced")));
    }
    store = open_store(CMQ_FLUSH_SYNC);
    CHECK_INT(kit_max(store, "T", 0), 30);
    check_image(30);
    kit_close(store);
    cmq_file_twin_close(twin);
}

/* Any sync of a durable point may be the one: queue units and keys that no disk has are put again, too. */
static void derived_files_are_rewritten(void)
{
    for (int later = 0; later < 2; later++) {
        for (uint64_t nth = 1; nth < 12; nth++) {
            start();
            cmq_store *store = open_store(CMQ_FLUSH_ASYNC);
            if (later) {
                kit_append_many(store, "T", "m", 5);
                CHECK_OK(cmq_store_maintain(store, true));
            }
            kit_append_many(store, "T", "m", 20);
            CHECK_OK(cmq_store_flush(store));
            cmq_file_twin_fail(
                twin, &(cmq_twin_fault){.kind = CMQ_TWIN_ANY_CHANGE, .nth = nth, .times = 1, .sys_errno = EIO});
            (void)!cmq_store_maintain(store, true);
            cmq_file_twin_clear_faults(twin);
            cmq_store_abandon(store);
            store = open_store(CMQ_FLUSH_SYNC);
            CHECK_INT(kit_max(store, "T", 0), later ? 25 : 20);
            CHECK_OK(cmq_store_maintain(store, true));
            check_image(later ? 25 : 20);
            kit_close(store);
            cmq_file_twin_close(twin);
        }
    }
}

CMQ_TEST_MAIN(CMQ_TEST(derived_files_are_rewritten), CMQ_TEST(bytes_of_a_failed_sync_are_written_again),
              CMQ_TEST(a_refused_recovery_is_remembered))
