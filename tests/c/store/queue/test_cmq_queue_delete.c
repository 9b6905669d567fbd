/* Tests csrc/store/queue/cmq_queue_delete.c: many queues go in a few steps, durably, and their files afterwards. */
#include <stdio.h>
#include <string.h>

#include "support/cmq_file_twin.h"
#include "support/cmq_store_kit.h"

#define QUEUES 2000

static const char *root;
static cmq_file_twin *twin;

static cmq_store_options twin_options(void)
{
    cmq_store_options options = kit_options(root);
    options.fs = cmq_file_twin_fs(twin);
    return options;
}

static cmq_store *start(int queues)
{
    static char path[CMQ_PATH_BYTES];
    strcpy(path, kit_path(kit_directory(), "store"));
    root = path;
    kit_set_clock();
    CHECK_OK(cmq_fs_make_directory(cmq_fs_posix(), root));
    twin = cmq_file_twin_create(root, 1);
    const cmq_store_options options = twin_options();
    cmq_store *store = kit_open(&options);
    for (int i = 0; i < queues; i++) kit_append(store, "T", i, "m", NULL, NULL);
    kit_append_many(store, "Other", "o", 5);
    CHECK_OK(cmq_store_maintain(store, true));
    return store;
}

static void end(cmq_store *store)
{
    kit_close(store);
    cmq_file_twin_close(twin);
}

static uint64_t syncs(void)
{
    return cmq_file_twin_calls(twin, CMQ_TWIN_SYNC) + cmq_file_twin_calls(twin, CMQ_TWIN_SYNC_DIRECTORY) +
           cmq_file_twin_calls(twin, CMQ_TWIN_SYNC_ALL);
}

static void count_file(void *context, const char *path, int64_t bytes)
{
    (void)path, (void)bytes;
    ++*(int *)context;
}

static int files_below(const char *name)
{
    int count = 0;
    if (kit_exists(kit_path(root, name))) kit_each_file(kit_path(root, name), count_file, &count);
    return count;
}

/* A handful of steps and syncs for two thousand queues; the files go by and by, also after a kill. */
static void many_queues(void)
{
    cmq_store *store = start(QUEUES);
    CHECK_INT(files_below("consumequeue/T"), QUEUES);
    const uint64_t steps = cmq_file_twin_calls(twin, CMQ_TWIN_ANY_CHANGE), synced = syncs();
    CHECK_OK(cmq_store_delete_topic(store, kit_slice("T")));
    CHECK(syncs() - synced < 20);
    CHECK(cmq_file_twin_calls(twin, CMQ_TWIN_ANY_CHANGE) - steps < 40);
    CHECK(!kit_exists(kit_path(root, "consumequeue/T")));
    CHECK(cmq_queues_find(cmq_store_queues(store), kit_slice("T"), 7) == NULL);
    CHECK_INT(files_below("cometmq/deleted"), QUEUES);
    /* Nothing of it comes back after a power loss. */
    const char *image = kit_path(kit_directory(), "image");
    for (int style = 0; style < CMQ_TWIN_STYLES; style++) {
        cmq_file_twin_crash_image_of(twin, image, (cmq_twin_style)style);
        cmq_store *after = kit_open_at(image);
        CHECK(cmq_queues_find(cmq_store_queues(after), kit_slice("T"), 7) == NULL);
        CHECK_INT(kit_max(after, "Other", 0), 5);
        CHECK_INT(kit_append(after, "T", 7, "again", NULL, NULL).first_queue_offset, 0);
        kit_close(after);
    }
    kit_append(store, "T", 7, "again", NULL, NULL);
    for (int i = 0; i < 3; i++) CHECK_OK(cmq_store_maintain(store, false));
    const int left = files_below("cometmq/deleted");
    CHECK(left > 0 && left < QUEUES);
    cmq_store_abandon(store);
    const cmq_store_options options = twin_options();
    store = kit_open(&options);
    for (int i = 0; i < 40; i++) CHECK_OK(cmq_store_maintain(store, false));
    CHECK(!kit_exists(kit_path(root, "cometmq/deleted")));
    CHECK_INT(kit_max(store, "T", 7), 1);
    CHECK_TEXT(kit_read_topic(store, "T"), "again");
    end(store);
}

/* Foreign entries in a topic's folder stay. */
static void a_foreign_folder_stays(void)
{
    cmq_store *store = start(5);
    CHECK_OK(cmq_fs_make_directory(cmq_fs_posix(), kit_path(root, "consumequeue/T/notes")));
    CHECK_OK(cmq_store_delete_topic(store, kit_slice("T")));
    CHECK(kit_exists(kit_path(root, "consumequeue/T/notes")));
    CHECK_INT(files_below("consumequeue/T"), 0);
    CHECK(!kit_exists(kit_path(root, "cometmq/deleted")));
    CHECK_INT(kit_append(store, "T", 3, "again", NULL, NULL).first_queue_offset, 0);
    end(store);
}

/* Some queues of a topic have expired, others have not. */
static void a_part_of_a_topic(void)
{
    cmq_store *store = start(3);
    uint32_t deleted;
    for (int i = 0; i < 300; i++)
        kit_append(store, i % 2 == 0 ? "T" : "Other", 2, "so that segments are used up, with some more bytes", NULL,
                   NULL);
    CHECK_OK(cmq_store_maintain(store, true));
    CHECK_OK(cmq_store_expire(store, true, &deleted));
    CHECK(deleted > 0);
    CHECK_OK(cmq_store_delete_expired_queues(store, &deleted));
    CHECK_INT(deleted, 3);   /* T/0, T/1, Other/0 */
    CHECK(kit_exists(kit_path(root, "consumequeue/T/2")) && !kit_exists(kit_path(root, "consumequeue/T/1")));
    CHECK(cmq_queues_find(cmq_store_queues(store), kit_slice("T"), 1) == NULL);
    CHECK_INT(kit_max(store, "T", 2), 151);
    CHECK_INT(kit_append(store, "T", 1, "again", NULL, NULL).first_queue_offset, 0);
    end(store);
}

/* Where renaming does not work the queues are removed at once. */
static void another_file_system(void)
{
    cmq_store *store = start(20);
    /* EXDEV */
    cmq_file_twin_fail(twin, &(cmq_twin_fault){.kind = CMQ_TWIN_RENAME, .nth = 1, .times = 1, .sys_errno = 18});
    CHECK_OK(cmq_store_delete_topic(store, kit_slice("T")));
    CHECK(!kit_exists(kit_path(root, "consumequeue/T")));
    CHECK_INT(files_below("cometmq/deleted"), 0);
    CHECK_INT(kit_append(store, "T", 3, "again", NULL, NULL).first_queue_offset, 0);
    end(store);
}

static int renames_until_kill;

static void kill_here(void *context, const cmq_twin_call *call)
{
    if (call->kind == CMQ_TWIN_RENAME && renames_until_kill-- == 0)
        cmq_file_twin_crash_image_of(twin, context, CMQ_TWIN_EVERYTHING);
}

/* Expired queues go topic by topic. Killed in between, the next opening must not read the whole log, which still has
 * what was deleted before. */
static void killed_among_expired_queues(void)
{
    for (int kill_at = 0; kill_at < 4; kill_at++) {
        cmq_store *store = start(1);
        uint32_t deleted;
        char image[CMQ_PATH_BYTES];
        strcpy(image, kit_path(kit_directory(), "image"));
        kit_append(store, "Old", 0, "x", NULL, NULL);
        for (int i = 0; i < 300; i++)
            kit_append(store, i % 2 == 0 ? "Deleted" : "Stays", 0, "so that segments are used up, with some more bytes",
                       NULL, NULL);
        CHECK_OK(cmq_store_delete_topic(store, kit_slice("Deleted")));
        CHECK_OK(cmq_store_expire(store, true, &deleted));
        CHECK(deleted > 0);
        renames_until_kill = kill_at;
        cmq_file_twin_on_call(twin, 0, kill_here, image);
        CHECK_OK(cmq_store_delete_expired_queues(store, &deleted));
        CHECK_INT(deleted, 3);   /* of T, Other and Old */
        cmq_file_twin_on_call(twin, 0, NULL, NULL);
        if (renames_until_kill < 0) {
            cmq_store *after = kit_open_at(image);
            CHECK(cmq_queues_find(cmq_store_queues(after), kit_slice("Deleted"), 0) == NULL);
            CHECK_INT(kit_max(after, "Stays", 0), 150);
            kit_close(after);
        }
        end(store);
    }
}

/* A file system on which a topic is deleted and re-created just before a reader opens a file of its queue. */
static struct {
    cmq_fs fs;
    cmq_fs_ops ops;
    cmq_store *store;
    char name[64];   /* of the file, which nobody has open yet */
    int anew;        /* messages of the new topic */
    bool armed;
} meddler;

static cmq_status meddle_and_open(cmq_fs *self, const char *path, cmq_open_mode mode, cmq_file **file_out)
{
    if (meddler.armed && strstr(path, meddler.name) != NULL) {
        meddler.armed = false;
        CHECK_OK(cmq_store_delete_topic(meddler.store, kit_slice("T")));
        for (int i = 0; i < meddler.anew; i++) kit_append(meddler.store, "T", 0, "anew", "red", NULL);
        CHECK_OK(cmq_store_maintain(meddler.store, true));
    }
    return cmq_fs_posix()->ops->open(self, path, mode, file_out);
}

enum { FORWARDS, BACKWARDS, BY_TAG, BY_OFFSET, BY_TIME, WAYS, PLACE = KIT_QUEUE_UNITS + 7 };

static void read_a_re_created_topic(cmq_store *store, int way, cmq_found_batch *batch)
{
    const cmq_slice topic = kit_slice("T"), tag = kit_slice("red");
    const cmq_read_options read = {.topics = &topic,
                                   .topic_count = 1,
                                   .has_start = true,
                                   .start = PLACE,
                                   .has_end = true,
                                   .end = PLACE + 5,
                                   .backwards = way == BACKWARDS,
                                   .tags = &tag,
                                   .tag_count = way == BY_TAG};
    cmq_reader *reader;
    bool end;
    int64_t offset;
    CHECK_OK(cmq_reader_open(store, &read, &reader));
    meddler.armed = true;
    if (way == BY_OFFSET)
        /* A follower looks again, and finds the new queue. */
        CHECK_STATUS(cmq_store_read_offset(store, topic, 0, PLACE, batch),
                     store == meddler.store ? CMQ_ERR_NOT_FOUND : CMQ_ERR_OFFSET);
    else if (way == BY_TIME)
        CHECK_OK(cmq_store_offset_at(store, topic, 0, kit_now_ms - 10, CMQ_BOUNDARY_LOWER, &offset));
    else
        CHECK_OK(cmq_reader_next(reader, batch, &end));
    CHECK(!meddler.armed);
    CHECK_INT(batch->count, 0);
    cmq_reader_close(reader);
}

/* The file that the reader gets holds zeros or other units where the deleted queue had units: no damage, no message. */
static void topics_re_created_under_a_reader(void)
{
    meddler.ops = *cmq_fs_posix()->ops;
    meddler.ops.open = meddle_and_open;
    meddler.fs.ops = &meddler.ops;
    snprintf(meddler.name, sizeof meddler.name, "/consumequeue/T/0/%020d", KIT_QUEUE_UNITS * CMQ_UNIT_BYTES);
    kit_found *found = kit_found_make(20);
    for (int round = 0; round < 3 * WAYS; round++) {
        const bool follows = round >= 2 * WAYS;
        meddler.anew = (round / WAYS == 1 ? 2 : 1) * KIT_QUEUE_UNITS + 1;
        kit_set_clock();
        cmq_store_options options = kit_options(kit_path(kit_directory(), "store"));
        options.fs = &meddler.fs;
        meddler.store = kit_open(&options);
        for (int i = 0; i < 3 * KIT_QUEUE_UNITS; i++) kit_append(meddler.store, "T", 0, "m", "red", NULL);
        kit_close(meddler.store);
        meddler.store = kit_open(&options);
        options.read_only = true;
        cmq_store *follower = follows ? kit_open(&options) : NULL;
        read_a_re_created_topic(follows ? follower : meddler.store, round % WAYS, &found->batch);
        CHECK_INT(kit_max(meddler.store, "T", 0), meddler.anew);
        if (follows) kit_close(follower);
        kit_close(meddler.store);
    }
    kit_found_free(found);
}

CMQ_TEST_MAIN(CMQ_TEST(many_queues), CMQ_TEST(a_foreign_folder_stays), CMQ_TEST(a_part_of_a_topic),
              CMQ_TEST(another_file_system), CMQ_TEST(killed_among_expired_queues),
              CMQ_TEST(topics_re_created_under_a_reader))
