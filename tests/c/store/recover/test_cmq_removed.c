/* Tests csrc/store/recover/cmq_removed.c and cmq_restore.c: whole records that recovery cuts off are kept, and come
 * back. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/recover/cmq_removed.h"
#include "support/cmq_file_twin.h"
#include "support/cmq_store_kit.h"

static const char *root;

static void start(void)
{
    static char path[CMQ_PATH_BYTES];
    CHECK_OK(cmq_path_join(path, kit_directory(), "store"));
    root = path;
    kit_set_clock();
}

static cmq_store_opening opening_of(cmq_store *store)
{
    cmq_store_opening opening;
    cmq_store_opening_of(store, &opening);
    return opening;
}

static const char *segment_file(int64_t phy)
{
    char name[CMQ_OFFSET_NAME_BYTES];
    static char path[CMQ_PATH_BYTES];
    cmq_path_offset_name(name, phy - phy % KIT_SEGMENT_BYTES);
    CHECK_OK(cmq_path_join(path, kit_path(root, "commitlog"), name));
    return path;
}

/* The power goes, and a byte at `phy` rots: nobody knows any more that what lies there was acknowledged. */
static void lose_power(cmq_store *store, int64_t phy)
{
    cmq_store_abandon(store);
    kit_remove_tree(kit_path(root, "cometmq/follow"));
    kit_flip(segment_file(phy), phy % KIT_SEGMENT_BYTES, 0x40);
}

/* Where the body of message `number` of T lies. */
static int64_t body_of(cmq_store *store, int64_t number)
{
    kit_found *found = kit_found_make(1);
    CHECK_OK(cmq_store_read_offset(store, kit_slice("T"), 0, number, &found->batch));
    const cmq_record_view view = kit_view(&found->items[0]);
    const int64_t phy = found->items[0].physical_offset + (view.body.data - found->items[0].record);
    kit_found_free(found);
    return phy;
}

static const char *name_of(const char *folder) { return strrchr(folder, '/') + 1; }

static cmq_restored restore(cmq_store *store, const char *name, bool again)
{
    const cmq_restore_options options = {.name = name, .again = again};
    cmq_restored restored;
    CHECK_OK(cmq_store_restore(store, &options, &restored));
    return restored;
}

static void a_flipped_byte_loses_one_message(void)
{
    start();
    cmq_store *store = kit_open_at(root);
    for (int i = 0; i < 500; i++) {   /* several segments */
        char body[64];
        snprintf(body, sizeof body, "message-%d", i);
        kit_append(store, "T", 0, body, i % 2 == 0 ? "even" : NULL, "key");
    }
    lose_power(store, body_of(store, 100));
    store = kit_open_at(root);
    const cmq_store_opening opening = opening_of(store);
    CHECK_INT(kit_max(store, "T", 0), 100);
    CHECK_INT(opening.removed_records, 399);
    CHECK(kit_exists(opening.removed));
    /* A new life goes on in their place. */
    kit_append(store, "T", 0, "new", NULL, NULL);
    const cmq_restored restored = restore(store, name_of(opening.removed), false);
    CHECK_INT(restored.records, 399);
    CHECK_INT(restored.doubtful + restored.refused, 0);
    CHECK_INT(kit_max(store, "T", 0), 500);
    kit_found *found = kit_found_make(600);
    CHECK_OK(cmq_store_find_key(store, kit_slice("T"), kit_slice("key"), 0, INT64_MAX, &found->batch));
    CHECK(kit_body_is(&found->items[0], "message-499"));
    cmq_found_batch_release(&found->batch);
    CHECK_OK(cmq_store_read_offset(store, kit_slice("T"), 0, 101, &found->batch));
    CHECK(kit_body_is(&found->items[0], "message-101"));
    kit_found_free(found);
    CHECK(restore(store, name_of(opening.removed), false).already);
    CHECK_INT(kit_max(store, "T", 0), 500);
    CHECK_INT(restore(store, name_of(opening.removed), true).records, 399);
    kit_close(store);
    store = kit_open_at(root);
    CHECK_INT(kit_max(store, "T", 0), 899);
    CHECK_TEXT(opening_of(store).removed, "");
    kit_close(store);
}

/* A cut without a whole record is not kept, as for a torn write. */
static void a_torn_tail_is_not_kept(void)
{
    start();
    cmq_store *store = kit_open_at(root);
    kit_append_many(store, "T", "m", 10);
    lose_power(store, body_of(store, 9));
    store = kit_open_at(root);
    CHECK_INT(kit_max(store, "T", 0), 9);
    CHECK(opening_of(store).cut_bytes > 0);
    CHECK_TEXT(opening_of(store).removed, "");
    CHECK(!kit_exists(kit_path(root, "cometmq/removed")));
    kit_close(store);
}

static bool wants_u(void *context, cmq_slice topic, int32_t queue_id)
{
    (*(int *)context)++;
    return cmq_slice_equal(topic, kit_slice("U")) && queue_id == 1;
}

static void only_wanted_parts(void)
{
    start();
    cmq_store *store = kit_open_at(root);
    kit_append_many(store, "T", "m", 10);
    for (int i = 0; i < 10; i++) {
        kit_append(store, "U", i % 2, "u", NULL, NULL);
        kit_append(store, "U", i % 2, "u", NULL, NULL);
    }
    lose_power(store, body_of(store, 5));
    store = kit_open_at(root);
    CHECK_INT(kit_max(store, "T", 0), 5);
    int asked = 0;
    const cmq_restore_options options = {
        .name = name_of(opening_of(store).removed), .wanted = wants_u, .context = &asked};
    cmq_restored restored;
    CHECK_OK(cmq_store_restore(store, &options, &restored));
    CHECK_INT(restored.records, 10);
    CHECK_INT(asked, 11);
    CHECK_INT(kit_max(store, "U", 1), 10);
    const cmq_restore_options wrong[] = {{.name = "../x"}, {.name = "."}, {.name = ""}, {.name = "a/b"}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        CHECK_STATUS(cmq_store_restore(store, &wrong[i], &restored), CMQ_ERR_ARGUMENT);
    CHECK_STATUS(cmq_store_restore(store, &(cmq_restore_options){.name = "none"}, &restored), CMQ_ERR_NOT_FOUND);
    kit_close(store);
}

static int count_names(const char *path)
{
    char **names;
    size_t count;
    CHECK_OK(cmq_fs_list(cmq_fs_posix(), path, &names, &count));
    cmq_fs_free_names(names, count);
    return (int)count;
}

/* Cuts do not pile up; bytes that a repair put aside stay. */
static void the_oldest_cut_goes(void)
{
    start();
    cmq_store *store = kit_open_at(root);
    kit_close(store);
    CHECK_OK(cmq_fs_make_directory(cmq_fs_posix(), kit_path(root, "cometmq/removed/20200101T000000Z")));
    char first[CMQ_PATH_BYTES] = "", last[CMQ_PATH_BYTES] = "";
    for (int round = 0; round < 20; round++) {
        store = kit_open_at(root);
        const int64_t before = kit_max(store, "T", 0);
        kit_append_many(store, "T", "m", 3);
        lose_power(store, body_of(store, (before < 0 ? 0 : before) + 1));
        atomic_fetch_add(&kit_now_ms, 1000);
        store = kit_open_at(root);
        CHECK_INT(opening_of(store).removed_records, 1);
        strcpy(round == 0 ? first : last, opening_of(store).removed);
        kit_close(store);
    }
    CHECK(!kit_exists(first));
    CHECK(kit_exists(last));
    CHECK_INT(count_names(kit_path(root, "cometmq/removed")), (int)CMQ_REMOVED_CUTS_MAX + 1);
}

/* No space to keep them: nothing is cut, and the error says what to do. Afterwards the same bytes are kept once. */
static void no_space_no_cut(void)
{
    start();
    cmq_store *store = kit_open_at(root);
    kit_append_many(store, "T", "m", 50);
    lose_power(store, body_of(store, 20));
    for (uint64_t nth = 1; nth <= 3; nth++) {   /* the header, the bytes, the header again */
        cmq_file_twin *twin = cmq_file_twin_create(root, 1);
        cmq_store_options options = kit_options(root);
        options.fs = cmq_file_twin_fs(twin);
        cmq_file_twin_fail(twin,
                           &(cmq_twin_fault){.kind = CMQ_TWIN_WRITE, .nth = nth, .times = 1, .sys_errno = ENOSPC});
        CHECK_STATUS(cmq_store_open(&store, &options), CMQ_ERR_DISK_FULL);
        CHECK(strstr(cmq_last_error()->text, "29 whole messages") != NULL &&
              strstr(cmq_last_error()->text, "repair --cut") != NULL);
        cmq_file_twin_close(twin);
    }
    store = kit_open_at(root);
    CHECK_INT(kit_max(store, "T", 0), 20);
    CHECK_INT(opening_of(store).removed_records, 29);
    kit_close(store);
}

/* ---- transactions ---- */

enum { PARTS = 5 };

/* Messages "<first> 0" to "<first> 4" of T, together. */
static void append_together(cmq_store *store, const char *first)
{
    static char bodies[PARTS][32];
    cmq_append parts[PARTS];
    cmq_appended appended[PARTS];
    for (int i = 0; i < PARTS; i++) {
        snprintf(bodies[i], sizeof bodies[i], "%s%d", first, i);
        parts[i] = (cmq_append){.common = {.topic = kit_slice("T")},
                                .count = 1,
                                .bodies = {.kind = CMQ_COLUMN_ONE, .one = kit_slice(bodies[i])}};
    }
    CHECK_OK(cmq_store_append_together(store, parts, PARTS, appended));
}

static struct {
    cmq_file_twin *twin;
    char image[CMQ_PATH_BYTES];
    bool taken;
} killed;

/* At a sync of the log. */
static void kill_here(void *context, const cmq_twin_call *call)
{
    (void)context;
    if (killed.taken || (call->kind != CMQ_TWIN_SYNC && call->kind != CMQ_TWIN_SYNC_MAPPED) ||
        strstr(call->path, "/commitlog/") == NULL)
        return;
    cmq_file_twin_crash_image_of(killed.twin, killed.image, CMQ_TWIN_EVERYTHING);
    killed.taken = true;
}

/* Killed before the head is written, a transaction leaves all of its records but the first; none was acknowledged. */
static void an_unfinished_transaction_is_not_restored(void)
{
    for (int mode = 0; mode < 2; mode++) {
        start();
        memset(&killed, 0, sizeof killed);
        CHECK_OK(cmq_path_join(killed.image, kit_directory(), "image"));
        CHECK_OK(cmq_fs_make_directory(cmq_fs_posix(), root));
        killed.twin = cmq_file_twin_create(root, cmq_test_random());
        cmq_store_options options = kit_options(root);
        options.fs = cmq_file_twin_fs(killed.twin);
        options.flush = mode == 0 ? CMQ_FLUSH_SYNC : CMQ_FLUSH_ASYNC;
        cmq_store *store = kit_open(&options);
        append_together(store, "whole-");
        cmq_file_twin_on_call(killed.twin, 0, kill_here, NULL);
        append_together(store, "part-");
        cmq_file_twin_on_call(killed.twin, 0, NULL, NULL);
        kit_close(store);
        cmq_file_twin_close(killed.twin);
        CHECK(killed.taken);

        store = kit_open_at(killed.image);
        const cmq_store_opening opening = opening_of(store);
        CHECK_INT(opening.removed_records, PARTS - 1);
        const cmq_restored restored = restore(store, name_of(opening.removed), false);
        CHECK_INT(restored.records, 0);
        CHECK_INT(restored.unfinished, PARTS - 1);
        CHECK_TEXT(kit_read_topic(store, "T"), "whole-0 whole-1 whole-2 whole-3 whole-4");
        kit_close(store);
    }
}

/* A byte rots before one that was committed, or in it: what is left of it was acknowledged. */
static void a_committed_transaction_is_restored(void)
{
    for (int rotten = 0; rotten < 4; rotten++) {
        start();
        cmq_store *store = kit_open_at(root);
        kit_append_many(store, "T", "alone-", 2);
        append_together(store, "whole-");
        append_together(store, "more-");
        lose_power(store, body_of(store, rotten));
        store = kit_open_at(root);
        const cmq_store_opening opening = opening_of(store);
        const cmq_restored restored = restore(store, name_of(opening.removed), false);
        CHECK_INT(restored.records, 2 + 2 * PARTS - rotten - 1);
        CHECK_INT(restored.unfinished, 0);
        CHECK_INT(kit_max(store, "T", 0), 2 + 2 * PARTS - 1);
        kit_found *found = kit_found_make(1);
        CHECK_OK(cmq_store_read_offset(store, kit_slice("T"), 0, 2 * PARTS, &found->batch));
        CHECK_INT(kit_view(&found->items[0]).prepared_transaction_offset, 0);   /* no transaction's any more */
        kit_found_free(found);
        kit_close(store);
    }
}

CMQ_TEST_MAIN(CMQ_TEST(a_flipped_byte_loses_one_message), CMQ_TEST(a_torn_tail_is_not_kept),
              CMQ_TEST(only_wanted_parts), CMQ_TEST(the_oldest_cut_goes), CMQ_TEST(no_space_no_cut),
              CMQ_TEST(an_unfinished_transaction_is_not_restored), CMQ_TEST(a_committed_transaction_is_restored))
