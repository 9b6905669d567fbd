/* Tests of a read-only store beside a writer that deletes topics and makes them again: cmq_follower.c, cmq_follow.c.
 *
 * Threads: yes
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/cmq_store_internal.h"
#include "support/cmq_store_kit.h"

static const char *root;
static cmq_store *writer, *view;

static cmq_store *follow(void)
{
    cmq_store_options options = kit_options(root);
    options.read_only = true;
    options.create = false;
    return kit_open(&options);
}

static void start(void)
{
    static char path[CMQ_PATH_BYTES];
    strcpy(path, kit_path(kit_directory(), "store"));
    root = path;
    kit_set_clock();
    writer = kit_open_at(root);
    kit_append_many(writer, "Other", "o", 30);
    kit_append_many(writer, "T", "old", 50);
    CHECK_OK(cmq_store_maintain(writer, true));
    kit_append_many(writer, "T", "late", 3);   /* not in the files yet */
    view = follow();
    CHECK_INT(kit_max(view, "T", 0), 53);
}

static void end(void)
{
    kit_close(view);
    kit_close(writer);
}

static bool sees(const char *topic)
{
    CHECK_OK(cmq_store_refresh(view));
    return cmq_queues_find(cmq_store_queues(view), kit_slice(topic), 0) != NULL;
}

/* Both say the same of both topics. */
static void check_same(void)
{
    CHECK_OK(cmq_store_refresh(view));
    const char *topics[] = {"T", "Other"};
    for (int i = 0; i < 2; i++) {
        const bool there = cmq_queues_find(cmq_store_queues(writer), kit_slice(topics[i]), 0) != NULL;
        CHECK_INT(sees(topics[i]), there);
        if (!there) continue;
        CHECK_INT(kit_max(view, topics[i], 0), kit_max(writer, topics[i], 0));
        CHECK_INT(kit_min(view, topics[i], 0), kit_min(writer, topics[i], 0));
        char text[4000];
        snprintf(text, sizeof text, "%s", kit_read_topic(writer, topics[i]));
        CHECK_TEXT(kit_read_topic(view, topics[i]), text);
    }
}

static void a_topic_goes_and_comes_back(void)
{
    start();
    CHECK_OK(cmq_store_delete_topic(writer, kit_slice("T")));
    CHECK(!sees("T"));
    check_same();
    kit_append(writer, "T", 0, "new0", NULL, NULL);
    check_same();
    CHECK_TEXT(kit_read_topic(view, "T"), "new0");
    CHECK_OK(cmq_store_maintain(writer, true));
    check_same();
    end();
}

/* The view looks only when all is over; with the new life in the files or not; in one step or several. */
static void noticed_late(void)
{
    for (int way = 0; way < 8; way++) {
        start();
        CHECK_OK(cmq_store_delete_topic(writer, kit_slice("T")));
        kit_append_many(writer, "T", "new", way % 2 == 0 ? 2 : 60);
        if (way & 2) CHECK_OK(cmq_store_maintain(writer, true));
        if (way & 4) {
            CHECK_OK(cmq_store_delete_topic(writer, kit_slice("T")));
            kit_append_many(writer, "Other", "between", 3);
            kit_append_many(writer, "T", "newest", 5);
        }
        check_same();
        kit_append_many(writer, "T", "more", 3);
        check_same();
        end();
    }
}

/* A reader that is open meanwhile goes on in the new life. */
static void a_reader_goes_on(void)
{
    start();
    const cmq_slice topic = kit_slice("T");
    cmq_reader *reader;
    kit_found *found = kit_found_make(10);
    bool ended;
    CHECK_OK(cmq_reader_open(view, &(cmq_read_options){.topics = &topic, .topic_count = 1}, &reader));
    CHECK_OK(cmq_reader_next(reader, &found->batch, &ended));
    CHECK_INT(found->batch.count, 10);
    cmq_found_batch_release(&found->batch);
    CHECK_OK(cmq_store_delete_topic(writer, topic));
    kit_append_many(writer, "T", "new", 2);
    uint32_t fresh = 0;
    for (int i = 0; i < 20; i++) {
        CHECK_OK(cmq_reader_next(reader, &found->batch, &ended));
        for (uint32_t j = 0; j < found->batch.count; j++) fresh += kit_view(&found->items[j]).body.data[0] == 'n';
        cmq_found_batch_release(&found->batch);
    }
    CHECK_INT(fresh, 2);
    cmq_reader_close(reader);
    kit_found_free(found);
    end();
}

/* Queues that are empty since their messages expired, and are cleaned up. */
static void expired_queues(void)
{
    start();
    uint32_t deleted;
    kit_append_many(writer, "Other", "so that segments are used up, with some more bytes in each of these", 300);
    CHECK_OK(cmq_store_maintain(writer, true));
    CHECK(sees("T"));   /* a view that comes later finds less, and says so */
    CHECK_OK(cmq_store_expire(writer, true, &deleted));
    CHECK(deleted > 0);
    CHECK(sees("T"));
    CHECK_INT(kit_min(view, "T", 0), 53);
    CHECK_OK(cmq_store_delete_expired_queues(writer, &deleted));
    CHECK_INT(deleted, 1);
    CHECK(!sees("T"));
    kit_append(writer, "T", 0, "again", NULL, NULL);
    CHECK(sees("T"));
    CHECK_INT(kit_min(view, "T", 0), 0);
    CHECK_INT(kit_max(view, "T", 0), 1);
    CHECK_TEXT(kit_read_topic(view, "T"), "again");
    end();
}

/* The view looks for no files of a topic that was deleted after segments had expired, although the log grows by a
 * segment before it has noticed the deletion. */
static void deleted_after_segments_have_expired(void)
{
    static const char filler[] = "so that segments are used up, with some more bytes in each of these";
    start();
    uint32_t deleted;
    kit_append_many(writer, "Other", filler, 300);
    CHECK_OK(cmq_store_maintain(writer, true));
    CHECK(sees("Other"));
    CHECK_OK(cmq_store_expire(writer, true, &deleted));
    CHECK(deleted > 0);
    kit_append_many(writer, "New", "left", 5);
    CHECK_OK(cmq_store_maintain(writer, true));
    CHECK(sees("New"));
    kit_append(writer, "Other", 0, "the view learns that the files have all of New", NULL, NULL);
    CHECK(sees("New"));
    for (int i = 0; i < 2; i++) cmq_queues_trim(view->queues);   /* no unit of it is in memory any more */
    CHECK_OK(cmq_store_delete_topic(writer, kit_slice("New")));
    kit_append_many(writer, "Other", filler, 300);
    CHECK(!sees("New"));
    CHECK_INT(kit_max(view, "Other", 0), kit_max(writer, "Other", 0));
    end();
}

/* Announced before the view was opened, or by a writer before this one: the view keeps the queues that it opened
 * with. */
static void deletions_of_before(void)
{
    start();
    CHECK_OK(cmq_store_delete_topic(writer, kit_slice("T")));
    kit_append_many(writer, "T", "new", 25);
    kit_close(view);
    view = follow();
    check_same();
    kit_close(writer);
    writer = kit_open_at(root);
    kit_append_many(writer, "T", "newer", 2);
    check_same();
    kit_close(view);
    view = follow();
    check_same();
    CHECK_INT(kit_max(view, "T", 0), 27);
    CHECK_OK(cmq_store_delete_topic(writer, kit_slice("T")));
    CHECK(!sees("T"));
    end();
}

/* More than the page remembers: the view says so, instead of showing what is gone. */
static void too_many_to_catch_up(void)
{
    start();
    for (int i = 0; i < 95; i++) {
        kit_append(writer, "Short", 0, "x", NULL, NULL);
        CHECK_OK(cmq_store_delete_topic(writer, kit_slice("Short")));
    }
    CHECK(!sees("Short"));
    for (int i = 0; i < 96; i++) {
        kit_append(writer, "Short", 0, "x", NULL, NULL);
        CHECK_OK(cmq_store_delete_topic(writer, kit_slice("Short")));
    }
    CHECK_STATUS(cmq_store_refresh(view), CMQ_ERR_CLOSED);
    CHECK(strstr(cmq_last_error()->text, "open it again") != NULL);
    kit_close(view);
    view = follow();
    check_same();
    end();
}

/* Deletions, appends and looks at once: a look sees either life, never the old one's messages at the new one's
 * offsets. */
static _Atomic bool over;

static void *delete_again_and_again(void *argument)
{
    (void)argument;
    for (int life = 0; life < 60; life++) {
        char prefix[24];
        snprintf(prefix, sizeof prefix, "life%d-", life);
        if (life > 0) CHECK_OK(cmq_store_delete_topic(writer, kit_slice("Lives")));
        kit_append_many(writer, "Lives", prefix, 7);
        if (life % 3 == 0) CHECK_OK(cmq_store_maintain(writer, true));
    }
    atomic_store(&over, true);
    return NULL;
}

static void beside_each_other(void)
{
    start();
    pthread_t thread;
    const cmq_slice topic = kit_slice("Lives");
    kit_found *found = kit_found_make(20);
    atomic_store(&over, false);
    CHECK(pthread_create(&thread, NULL, delete_again_and_again, NULL) == 0);
    for (bool last = false; !last;) {
        last = atomic_load(&over);
        cmq_reader *reader;
        bool ended;
        CHECK_OK(cmq_reader_open(view, &(cmq_read_options){.topics = &topic, .topic_count = 1, .may_be_missing = true},
                                 &reader));
        CHECK_OK(cmq_reader_next(reader, &found->batch, &ended));
        for (uint32_t i = 0; i < found->batch.count; i++) {
            const cmq_slice body = kit_view(&found->items[i]).body;
            const char *dash = memchr(body.data, '-', body.bytes);
            CHECK(dash != NULL && atoi(dash + 1) == found->items[i].queue_offset);
        }
        cmq_found_batch_release(&found->batch);
        cmq_reader_close(reader);
    }
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(sees("Lives"));
    CHECK_INT(kit_max(view, "Lives", 0), 7);
    CHECK(strncmp(kit_read_topic(view, "Lives"), "life59-0 ", 9) == 0);
    kit_found_free(found);
    end();
}

/* ---- between two calls of a look-up ---- */

static cmq_fs_ops overtaken_ops;
static cmq_fs overtaken = {.ops = &overtaken_ops};

/* The writer deletes the topic when the view opens a file of it. */
static cmq_status open_overtaken(cmq_fs *self, const char *path, cmq_open_mode mode, cmq_file **file_out)
{
    (void)self;
    if (writer != NULL && strstr(path, "consumequeue/T/0/") != NULL) {
        cmq_store *deleting = writer;
        writer = NULL;
        CHECK_OK(cmq_store_delete_topic(deleting, kit_slice("T")));
        CHECK_OK(cmq_store_maintain(deleting, true));
        kit_close(deleting);
    }
    return cmq_fs_posix()->ops->open(cmq_fs_posix(), path, mode, file_out);
}

static void topic_deleted_during_a_look_up_is_not_found(void)
{
    for (int way = 0; way < 2; way++) {
        start();
        kit_close(view);
        overtaken_ops = *cmq_fs_posix()->ops;
        cmq_store_options options = kit_options(root);
        options.read_only = true;
        options.create = false;
        options.fs = &overtaken;
        cmq_store *waiting = writer;
        writer = NULL;
        overtaken_ops.open = open_overtaken;
        view = kit_open(&options);
        writer = waiting;
        kit_found *found = kit_found_make(1);
        int64_t offset;
        const cmq_status status =
            way == 0 ? cmq_store_read_offset(view, kit_slice("T"), 0, 25, &found->batch)
                     : cmq_store_offset_at(view, kit_slice("T"), 0, 1, CMQ_BOUNDARY_LOWER, &offset);
        CHECK_STATUS(status, CMQ_ERR_NOT_FOUND);
        CHECK(writer == NULL);
        CHECK_INT(found->batch.count, 0);
        kit_found_free(found);
        kit_close(view);
    }
}

CMQ_TEST_MAIN(CMQ_TEST(a_topic_goes_and_comes_back), CMQ_TEST(noticed_late), CMQ_TEST(a_reader_goes_on),
              CMQ_TEST(expired_queues), CMQ_TEST(deleted_after_segments_have_expired),
              CMQ_TEST(deletions_of_before), CMQ_TEST(too_many_to_catch_up),
              CMQ_TEST(beside_each_other), CMQ_TEST(topic_deleted_during_a_look_up_is_not_found))
