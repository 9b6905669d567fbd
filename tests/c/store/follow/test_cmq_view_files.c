/* Tests csrc/store/follow/cmq_follower.c: a view that has a queue's files open when they are removed reads those that
 * the next writer makes.
 */
#include "support/cmq_store_kit.h"

enum { MORE = 200 };   /* in ten files */

static int64_t count(cmq_store *store)
{
    const cmq_slice topic = kit_slice("T");
    const cmq_read_options options = {.topics = &topic, .topic_count = 1};
    kit_found *found = kit_found_make(KIT_FOUND_MAX);
    cmq_reader *reader;
    int64_t records = 0;
    bool end, more = true;
    CHECK_OK(cmq_reader_open(store, &options, &reader));
    while (more) {
        CHECK_OK(cmq_reader_next(reader, &found->batch, &end));
        more = found->batch.count > 0;
        records += found->batch.count;
        cmq_found_batch_release(&found->batch);
    }
    cmq_reader_close(reader);
    kit_found_free(found);
    return records;
}

static void replaced_queue_files_are_reopened(void)
{
    for (int way = 0; way < 2; way++) {
        char root[CMQ_PATH_BYTES];
        const cmq_slice tag = kit_slice("t"), topic = kit_slice("T");
        const cmq_read_options tagged = {.topics = &topic, .topic_count = 1, .tags = &tag, .tag_count = 1};
        CHECK_OK(cmq_path_join(root, kit_directory(), "store"));
        kit_set_clock();
        cmq_store_options options = kit_options(root);
        options.flush = CMQ_FLUSH_ASYNC;
        cmq_store *writer = kit_open(&options);
        kit_append_many(writer, "T", "a", 5);
        kit_append(writer, "T", 0, "a5", "t", NULL);
        CHECK_OK(cmq_store_maintain(writer, true));
        cmq_store_options reading = options;
        reading.read_only = true;
        cmq_store *view = kit_open(&reading);
        CHECK_TEXT(kit_read_topic(view, "T"), "a0 a1 a2 a3 a4 a5");
        CHECK_TEXT(kit_read_with(view, &tagged), "a5");
        if (way == 0) kit_close(writer);
        else cmq_store_abandon(writer);
        kit_remove_tree(kit_path(root, "consumequeue"));
        writer = kit_open(&options);
        /* until the view's memory has let the first units behind the removal go */
        for (int i = 0; i < MORE; i++) {
            kit_append(writer, "T", 0, "b", i == 0 ? "t" : NULL, NULL);
            if (i % 50 == 0) CHECK_OK(cmq_store_maintain(writer, true));
            CHECK_OK(cmq_store_refresh(view));
        }
        CHECK_TEXT(kit_read_with(view, &tagged), "a5 b");
        CHECK_INT(count(view), 6 + MORE);
        kit_close(view);
        kit_close(writer);
    }
}

CMQ_TEST_MAIN(CMQ_TEST(replaced_queue_files_are_reopened))
