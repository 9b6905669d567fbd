/* Tests csrc/store/read/cmq_reader.c and cmq_reader_log.c: iteration in every direction, with every bound, over damage,
 * and while the store changes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/cmq_store_kit.h"

static cmq_store *store;
static char root[CMQ_PATH_BYTES];

static void start(void)
{
    CHECK_OK(cmq_path_join(root, kit_directory(), "store"));
    kit_set_clock();
    store = kit_open_at(root);
}

/* Messages m0, m1, … one per second: topic A or B in turn (every third to B), queue i % 2, tag red, green or none in
 * turn. */
static void fill(int from, int count)
{
    static const char *const tags[] = {"red", "green", NULL};
    for (int i = from; i < from + count; i++) {
        char body[80];
        snprintf(body, sizeof body, "m%d", i);
        kit_append(store, i % 3 == 2 ? "B" : "A", i % 2, body, tags[i % 3], NULL);
        atomic_fetch_add(&kit_now_ms, 1000);
    }
}

static const char *read_with(cmq_read_options options, const char *topics)
{
    cmq_slice names[4];
    char list[64];
    uint32_t count = 0;
    snprintf(list, sizeof list, "%s", topics);
    for (char *at = strtok(list, " "); at != NULL; at = strtok(NULL, " ")) names[count++] = cmq_slice_of_text(at);
    options.topics = count > 0 ? names : NULL;
    options.topic_count = count;
    return kit_read_with(store, &options);
}

static void forwards_and_backwards(void)
{
    start();
    fill(0, 12);
    CHECK_TEXT(read_with((cmq_read_options){0}, ""), "m0 m1 m2 m3 m4 m5 m6 m7 m8 m9 m10 m11");
    CHECK_TEXT(read_with((cmq_read_options){0}, "A"), "m0 m1 m3 m4 m6 m7 m9 m10");
    CHECK_TEXT(read_with((cmq_read_options){0}, "B"), "m2 m5 m8 m11");
    /* merged as they were stored */
    CHECK_TEXT(read_with((cmq_read_options){0}, "B A"), "m0 m1 m2 m3 m4 m5 m6 m7 m8 m9 m10 m11");
    CHECK_TEXT(read_with((cmq_read_options){.backwards = true}, ""), "m11 m10 m9 m8 m7 m6 m5 m4 m3 m2 m1 m0");
    CHECK_TEXT(read_with((cmq_read_options){.backwards = true}, "A"), "m10 m9 m7 m6 m4 m3 m1 m0");
    CHECK_TEXT(read_with((cmq_read_options){.backwards = true}, "A B"), "m11 m10 m9 m8 m7 m6 m5 m4 m3 m2 m1 m0");
    const int32_t one[] = {1};
    CHECK_TEXT(read_with((cmq_read_options){.queue_ids = one, .queue_id_count = 1}, "A"), "m1 m3 m7 m9");
    CHECK_TEXT(read_with((cmq_read_options){.queue_ids = one, .queue_id_count = 1, .backwards = true}, "A"),
               "m9 m7 m3 m1");
    kit_close(store);
}

static void tags(void)
{
    start();
    fill(0, 12);
    const cmq_slice red = kit_slice("red"), both[] = {kit_slice("green"), kit_slice("red")}, none = kit_slice("blue");
    CHECK_TEXT(read_with((cmq_read_options){.tags = &red, .tag_count = 1}, "A"), "m0 m3 m6 m9");
    CHECK_TEXT(read_with((cmq_read_options){.tags = both, .tag_count = 2}, "A"), "m0 m1 m3 m4 m6 m7 m9 m10");
    CHECK_TEXT(read_with((cmq_read_options){.tags = &red, .tag_count = 1, .backwards = true}, "A"), "m9 m6 m3 m0");
    CHECK_TEXT(read_with((cmq_read_options){.tags = &red, .tag_count = 1}, ""), "m0 m3 m6 m9");
    CHECK_TEXT(read_with((cmq_read_options){.tags = &red, .tag_count = 1, .backwards = true}, ""), "m9 m6 m3 m0");
    CHECK_TEXT(read_with((cmq_read_options){.tags = &none, .tag_count = 1}, "A"), "");
    /* AaAa and BBBB have one hash: the string decides. */
    kit_append(store, "C", 0, "a", "AaAa", NULL);
    kit_append(store, "C", 0, "b", "BBBB", NULL);
    const cmq_slice same_hash = kit_slice("BBBB");
    CHECK_TEXT(read_with((cmq_read_options){.tags = &same_hash, .tag_count = 1}, "C"), "b");
    CHECK_TEXT(read_with((cmq_read_options){.tags = &same_hash, .tag_count = 1, .backwards = true}, "C"), "b");
    kit_close(store);
}

static void bounds(void)
{
    start();
    const int64_t t = atomic_load(&kit_now_ms);
    fill(0, 12);
    const int32_t zero[] = {0};
    cmq_read_options by_offset = {
        .queue_ids = zero, .queue_id_count = 1, .has_start = true, .start = 1, .has_end = true, .end = 3};
    CHECK_TEXT(read_with(by_offset, "A"), "m4 m6");   /* of m0 m4 m6 m10 */
    by_offset.backwards = true;
    CHECK_TEXT(read_with(by_offset, "A"), "m6 m4");
    by_offset.backwards = false;
    by_offset.end = 100;
    CHECK_TEXT(read_with(by_offset, "A"), "m4 m6 m10");
    by_offset.start = by_offset.end = 2;
    CHECK_TEXT(read_with(by_offset, "A"), "");
    cmq_read_options by_time = {
        .has_start_time = true, .start_time_ms = t + 3000, .has_end_time = true, .end_time_ms = t + 7000};
    static const char *const topics[] = {"A B", ""};
    for (int i = 0; i < 2; i++) {
        by_time.backwards = false;
        CHECK_TEXT(read_with(by_time, topics[i]), "m3 m4 m5 m6");
        by_time.backwards = true;
        CHECK_TEXT(read_with(by_time, topics[i]), "m6 m5 m4 m3");
    }
    by_time = (cmq_read_options){.has_start_time = true, .start_time_ms = t + 10500};
    CHECK_TEXT(read_with(by_time, "A B"), "m11");
    by_time = (cmq_read_options){.has_end_time = true, .end_time_ms = t};
    CHECK_TEXT(read_with(by_time, "A"), "");
    const cmq_read_start starts[] = {{.topic = kit_slice("A"), .queue_id = 1, .offset = 2},
                                     {.topic = kit_slice("A"), .queue_id = 0, .offset = 3}};
    CHECK_TEXT(read_with((cmq_read_options){.starts = starts, .start_count = 2}, "A"), "m7 m9 m10");
    kit_close(store);
}

static cmq_read_start range(const char *topic, int32_t queue_id, int64_t from, int64_t end)
{
    return (cmq_read_start){
        .topic = kit_slice(topic), .queue_id = queue_id, .has_end = true, .offset = from, .end = end};
}

static void ranges(void)
{
    start();
    fill(0, 24);   /* A0: m0 m4 m6 m10 m12 ..., A1: m1 m3 m7 m9 ..., B0: m2 m8 m14 m20, B1: m5 m11 m17 m23 */
    const cmq_read_start some[] = {range("A", 0, 1, 3), range("B", 1, 0, 2), range("A", 0, 5, 6), range("A", 1, 2, 2),
                                   range("B", 0, 3, 99)};
    cmq_read_options options = {.starts = some, .start_count = 5, .only_starts = true};
    CHECK_TEXT(read_with(options, ""), "m4 m5 m6 m11 m16 m20");   /* merged; two ranges of one queue; an empty one */
    options.has_end_time = true;
    options.end_time_ms = atomic_load(&kit_now_ms) - 13000;   /* m11's */
    CHECK_TEXT(read_with(options, ""), "m4 m5 m6");
    options = (cmq_read_options){.starts = some, .start_count = 1, .only_starts = true, .has_start_time = true};
    options.start_time_ms = atomic_load(&kit_now_ms) - 18000;   /* m6's */
    CHECK_TEXT(read_with(options, ""), "m6");
    const cmq_slice red = kit_slice("red");
    options = (cmq_read_options){.starts = some, .start_count = 5, .only_starts = true, .tags = &red, .tag_count = 1};
    CHECK_TEXT(read_with(options, ""), "m6");

    /* Ends for good when every range is read, although the store grows; a range that is not full yet goes on. */
    cmq_reader *reader;
    bool end = false;
    kit_found *found = kit_found_make(64);
    options = (cmq_read_options){.starts = some + 3, .start_count = 2, .only_starts = true};
    CHECK_OK(cmq_reader_open(store, &options, &reader));
    CHECK_OK(cmq_reader_next(reader, &found->batch, &end));
    CHECK(found->batch.count == 1 && !end);
    cmq_found_batch_release(&found->batch);
    CHECK_OK(cmq_reader_next(reader, &found->batch, &end));
    CHECK(found->batch.count == 0 && !end);
    fill(24, 6);
    CHECK_OK(cmq_reader_next(reader, &found->batch, &end));
    CHECK(found->batch.count == 1 && kit_body_is(&found->items[0], "m26") && found->items[0].skip == 0 &&
          found->items[0].behind == 0);
    cmq_found_batch_release(&found->batch);
    cmq_reader_close(reader);
    options = (cmq_read_options){.starts = some, .start_count = 4, .only_starts = true};
    CHECK_OK(cmq_reader_open(store, &options, &reader));
    CHECK_OK(cmq_reader_next(reader, &found->batch, &end));
    CHECK(found->batch.count == 5 && !end && cmq_reader_expired(reader) == 0);
    cmq_found_batch_release(&found->batch);
    CHECK_OK(cmq_reader_next(reader, &found->batch, &end));
    CHECK(found->batch.count == 0 && end);
    cmq_reader_close(reader);
    kit_found_free(found);
    kit_close(store);
}

static void bad_ranges(void)
{
    start();
    fill(0, 6);
    cmq_reader *reader;
    const cmq_slice topic = kit_slice("A");
    const cmq_read_start backwards = range("A", 0, 3, 2), negative = range("A", 0, -1, 2),
                         missing = range("A", 7, 0, 2);
    cmq_read_options options = {.starts = &backwards, .start_count = 1, .only_starts = true};
    CHECK_STATUS(cmq_reader_open(store, &options, &reader), CMQ_ERR_ARGUMENT);
    options.starts = &negative;
    CHECK_STATUS(cmq_reader_open(store, &options, &reader), CMQ_ERR_ARGUMENT);
    options.starts = &missing;
    CHECK_STATUS(cmq_reader_open(store, &options, &reader), CMQ_ERR_NOT_FOUND);
    options.may_be_missing = true;
    CHECK_TEXT(read_with(options, ""), "");
    options.topics = &topic;
    options.topic_count = 1;
    CHECK_STATUS(cmq_reader_open(store, &options, &reader), CMQ_ERR_ARGUMENT);
    kit_close(store);
}

static void a_start_in_the_log(void)
{
    start();
    fill(0, 12);
    kit_found *found = kit_found_make(1);
    CHECK_OK(cmq_store_read_offset(store, kit_slice("B"), 0, 1, &found->batch));   /* m8 */
    const int64_t phy = found->items[0].physical_offset;
    kit_found_free(found);
    CHECK_TEXT(read_with((cmq_read_options){.has_start_physical = true, .start_physical = phy}, ""), "m8 m9 m10 m11");
    CHECK_TEXT(read_with((cmq_read_options){.has_start_physical = true, .start_physical = phy, .backwards = true}, ""),
               "m7 m6 m5 m4 m3 m2 m1 m0");
    cmq_reader *reader;
    const cmq_slice topic = kit_slice("A");
    CHECK_STATUS(
        cmq_reader_open(store, &(cmq_read_options){.has_start_physical = true, .start_physical = phy + 1}, &reader),
        CMQ_ERR_ARGUMENT);
    CHECK_STATUS(cmq_reader_open(store,
                                 &(cmq_read_options){.has_start_physical = true, .topics = &topic, .topic_count = 1},
                                 &reader),
                 CMQ_ERR_ARGUMENT);
    CHECK_STATUS(cmq_reader_open(store, &(cmq_read_options){.has_start = true}, &reader), CMQ_ERR_ARGUMENT);
    CHECK_STATUS(cmq_reader_open(
                     store,
                     &(cmq_read_options){
                         .has_start = true, .start = 5, .has_end = true, .end = 4, .topics = &topic, .topic_count = 1},
                     &reader),
                 CMQ_ERR_ARGUMENT);
    const cmq_slice missing = kit_slice("None");
    CHECK_STATUS(cmq_reader_open(store, &(cmq_read_options){.topics = &missing, .topic_count = 1}, &reader),
                 CMQ_ERR_NOT_FOUND);
    CHECK(reader == NULL);
    kit_close(store);
}

/* Over many segments and queue files, in batches of every size, against a count. */
static void many(void)
{
    start();
    fill(0, 1500);
    for (int round = 0; round < 2; round++) {
        for (uint32_t capacity = 1; capacity < 4000; capacity = capacity * 3 + 1) {
            for (int way = 0; way < 4; way++) {
                const cmq_slice topics[] = {kit_slice("A"), kit_slice("B")};
                cmq_reader *reader;
                kit_found *found = kit_found_make(capacity);
                bool end = false;
                int next = way % 2 == 0 ? 0 : 1499;
                CHECK_OK(cmq_reader_open(store,
                                         &(cmq_read_options){.topics = way < 2 ? topics : NULL,
                                                             .topic_count = way < 2 ? 2 : 0,
                                                             .backwards = way % 2 != 0},
                                         &reader));
                do {
                    CHECK_OK(cmq_reader_next(reader, &found->batch, &end));
                    for (uint32_t i = 0; i < found->batch.count; i++) {
                        char body[16];
                        snprintf(body, sizeof body, "m%d", next);
                        next += way % 2 == 0 ? 1 : -1;
                        CHECK(kit_body_is(&found->items[i], body));
                        CHECK((found->items[i].queue == NULL) == (way >= 2));
                    }
                    end = end || found->batch.count == 0;
                    cmq_found_batch_release(&found->batch);
                } while (!end);
                CHECK_INT(next, way % 2 == 0 ? 1500 : -1);
                cmq_reader_close(reader);
                kit_found_free(found);
            }
        }
        CHECK_OK(cmq_store_maintain(store, true));   /* again from files instead of tails */
    }
    kit_close(store);
}

/* ---- while the store changes ---- */

static const char *next_bodies(cmq_reader *reader, bool *end)
{
    static char text[4096];
    kit_found *found = kit_found_make(100);
    size_t used = 0;
    text[0] = '\0';
    CHECK_OK(cmq_reader_next(reader, &found->batch, end));
    for (uint32_t i = 0; i < found->batch.count; i++) {
        const cmq_record_view view = kit_view(&found->items[i]);
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%.*s", i > 0 ? " " : "", (int)view.body.bytes,
                                 (const char *)view.body.data);
    }
    kit_found_free(found);
    return text;
}

static void new_messages_and_queues_appear(void)
{
    start();
    fill(0, 3);
    const cmq_slice topics[] = {kit_slice("A"), kit_slice("New")};
    cmq_reader *reader, *log;
    bool end = false;
    CHECK_OK(cmq_reader_open(store, &(cmq_read_options){.topics = topics, .topic_count = 2}, &reader));
    CHECK_OK(cmq_reader_open(store, &(cmq_read_options){0}, &log));
    CHECK_TEXT(next_bodies(reader, &end), "m0 m1");
    CHECK_TEXT(next_bodies(log, &end), "m0 m1 m2");
    CHECK_TEXT(next_bodies(reader, &end), "");
    CHECK(!end);
    fill(3, 3);
    kit_append(store, "New", 7, "n0", NULL, NULL);
    kit_append(store, "A", 5, "another queue", NULL, NULL);
    CHECK_TEXT(next_bodies(reader, &end), "m3 m4 n0 another queue");
    CHECK_TEXT(next_bodies(log, &end), "m3 m4 m5 n0 another queue");
    int64_t offset;
    CHECK_OK(cmq_reader_position(reader, kit_slice("A"), 5, &offset));
    CHECK_INT(offset, 1);
    CHECK_STATUS(cmq_reader_position(reader, kit_slice("B"), 0, &offset), CMQ_ERR_NOT_FOUND);
    cmq_reader_close(reader);
    cmq_reader_close(log);
    kit_close(store);
}

/* A topic that is deleted under its reader is over; re-created, it begins at 0 again. */
static void a_topic_goes(void)
{
    for (int backwards = 0; backwards < 2; backwards++) {
        start();
        fill(0, 600);
        const cmq_slice topic = kit_slice("A");
        cmq_reader *reader;
        kit_found *found = kit_found_make(1);
        bool end = false;
        CHECK_OK(cmq_reader_open(
            store, &(cmq_read_options){.topics = &topic, .topic_count = 1, .backwards = backwards != 0}, &reader));
        CHECK_OK(cmq_reader_next(reader, &found->batch, &end));
        cmq_found_batch_release(&found->batch);
        CHECK_OK(cmq_store_delete_topic(store, topic));
        for (int i = 0; i < 2000 && !end; i++) {   /* messages that were read ahead may still come */
            CHECK_OK(cmq_reader_next(reader, &found->batch, &end));
            const bool nothing = found->batch.count == 0;
            cmq_found_batch_release(&found->batch);
            if (nothing) break;
        }
        CHECK(end || backwards == 0);
        kit_append(store, "A", 0, "anew", NULL, NULL);
        if (backwards == 0) {
            CHECK_OK(cmq_reader_next(reader, &found->batch, &end));
            CHECK_INT(found->batch.count, 1);
            CHECK_INT(found->items[0].queue_offset, 0);
            CHECK(kit_body_is(&found->items[0], "anew"));
        }
        cmq_reader_close(reader);
        kit_found_free(found);
        kit_close(store);
    }
}

/* Records that a deleted topic leaves in the log are not in its queues, neither before nor after it is made again. */
static void only_messages_of_queues(void)
{
    start();
    fill(0, 12);
    CHECK_TEXT(read_with((cmq_read_options){.only_queued = true}, ""), "m0 m1 m2 m3 m4 m5 m6 m7 m8 m9 m10 m11");
    CHECK_OK(cmq_store_delete_topic(store, kit_slice("A")));
    CHECK_TEXT(read_with((cmq_read_options){.only_queued = true}, ""), "m2 m5 m8 m11");
    CHECK_TEXT(read_with((cmq_read_options){.only_queued = true, .backwards = true}, ""), "m11 m8 m5 m2");
    const cmq_slice red = kit_slice("red");
    CHECK_TEXT(read_with((cmq_read_options){.only_queued = true, .tags = &red, .tag_count = 1}, ""), "");
    CHECK_TEXT(read_with((cmq_read_options){.tags = &red, .tag_count = 1}, ""), "m0 m3 m6 m9");   /* the log has them */
    kit_append(store, "A", 0, "anew", NULL, NULL);
    CHECK_TEXT(read_with((cmq_read_options){.only_queued = true}, ""), "m2 m5 m8 m11 anew");
    kit_append(store, "A", 1, "other", NULL, NULL);
    CHECK_TEXT(read_with((cmq_read_options){.only_queued = true, .backwards = true}, ""), "other anew m11 m8 m5 m2");
    kit_close(store);
    store = kit_open_at(root);
    CHECK_TEXT(read_with((cmq_read_options){.only_queued = true}, ""), "m2 m5 m8 m11 anew other");
    kit_close(store);
}

/* Segments that expire under readers: pinned ones stay readable, deleted ones are passed over. */
static void segments_expire(void)
{
    kit_set_clock();
    CHECK_OK(cmq_path_join(root, kit_directory(), "store"));
    cmq_store_options options = kit_options(root);
    options.retention = (cmq_retention){.reserved_ms = 1, .files_per_round = 2};
    store = kit_open(&options);
    fill(0, 1000);
    const cmq_slice topics[] = {kit_slice("A"), kit_slice("B")};
    cmq_reader *readers[4];
    kit_found *pinned = kit_found_make(5);
    bool end = false;
    for (int i = 0; i < 4; i++)
        CHECK_OK(cmq_reader_open(
            store,
            &(cmq_read_options){.topics = i < 2 ? topics : NULL, .topic_count = i < 2 ? 2 : 0, .backwards = i % 2 != 0},
            &readers[i]));
    CHECK_OK(cmq_reader_next(readers[0], &pinned->batch, &end));
    CHECK_INT(pinned->batch.count, 5);
    CHECK_OK(cmq_store_maintain(store, true));
    uint32_t deleted;
    CHECK_OK(cmq_store_expire(store, true, &deleted));
    CHECK_INT(deleted, 2);
    CHECK(kit_body_is(&pinned->items[4], "m4"));
    cmq_store_info info;
    CHECK_OK(cmq_store_info_of(store, &info));
    CHECK_INT(info.log_min, 2 * KIT_SEGMENT_BYTES);
    kit_found *found = kit_found_make(50);
    for (int i = 0; i < 4; i++) {
        int count = 0, last = -1;
        for (end = false;;) {
            CHECK_OK(cmq_reader_next(readers[i], &found->batch, &end));
            if (end || found->batch.count == 0) break;
            for (uint32_t j = 0; j < found->batch.count; j++, count++) {
                const cmq_record_view view = kit_view(&found->items[j]);
                const int number = atoi((const char *)view.body.data + 1);
                CHECK(found->items[j].physical_offset >= info.log_min);
                CHECK(last < 0 || number == last + (i % 2 == 0 ? 1 : -1));
                last = number;
            }
            cmq_found_batch_release(&found->batch);
        }
        CHECK_INT(last, i % 2 == 0 ? 999 : 1000 - count);
        CHECK(count > 500 && count < 1000);
        if (i == 0) CHECK_INT(cmq_reader_expired(readers[i]), 1000 - 5 - count);
        cmq_reader_close(readers[i]);
    }
    const int64_t min = kit_min(store, "B", 1);
    const cmq_read_start from[] = {range("B", 1, 0, min + 2), range("B", 1, 1, min - 1)};
    CHECK(min > 2);
    CHECK_OK(cmq_reader_open(store, &(cmq_read_options){.starts = from, .start_count = 2, .only_starts = true},
                             &readers[0]));
    CHECK_OK(cmq_reader_next(readers[0], &found->batch, &end));
    CHECK(found->batch.count == 2 && cmq_reader_expired(readers[0]) == min + min - 2);
    cmq_found_batch_release(&found->batch);
    cmq_reader_close(readers[0]);
    kit_found_free(found);
    kit_found_free(pinned);
    kit_close(store);
}

/* ---- damage ---- */

/* Records with broken sizes or magics, units that point elsewhere: each reported once, with its offset, and passed
 * over. */
static void damage_is_passed_over(void)
{
    start();
    fill(0, 12);
    kit_found *found = kit_found_make(1);
    CHECK_OK(cmq_store_read_offset(store, kit_slice("B"), 1, 0, &found->batch));   /* m5 */
    const int64_t phy = found->items[0].physical_offset;
    kit_found_free(found);
    kit_close(store);
    char file[CMQ_PATH_BYTES];
    CHECK_OK(cmq_path_join(file, root, "commitlog/00000000000000000000"));
    kit_flip(file, phy + 5, 0x40);
    for (int read_only = 0; read_only < 2; read_only++) {
        cmq_store_options options = kit_options(root);
        options.read_only = read_only != 0;
        store = kit_open(&options);
        CHECK_TEXT(read_with((cmq_read_options){0}, ""), "m0 m1 m2 m3 m4 ! m6 m7 m8 m9 m10 m11");
        CHECK_TEXT(read_with((cmq_read_options){0}, "B"), "m2 ! m8 m11");
        CHECK_TEXT(read_with((cmq_read_options){.backwards = true}, "B"), "m11 m8 ! m2");
        CHECK_TEXT(read_with((cmq_read_options){0}, "A"), "m0 m1 m3 m4 m6 m7 m9 m10");
        const char *back = read_with((cmq_read_options){.backwards = true}, "");
        CHECK(strncmp(back, "m11 m10 m9 m8 m7 m6", 19) == 0 && strstr(back, "m4 m3 m2 m1 m0") != NULL &&
              strstr(back, "m5") == NULL);
        cmq_reader *reader;
        const cmq_slice topic = kit_slice("B");
        found = kit_found_make(10);
        bool end;
        CHECK_OK(cmq_reader_open(store, &(cmq_read_options){.topics = &topic, .topic_count = 1}, &reader));
        CHECK_OK(cmq_reader_next(reader, &found->batch, &end));   /* first what is sound */
        CHECK_INT(found->batch.count, 1);
        cmq_found_batch_release(&found->batch);
        CHECK_STATUS(cmq_reader_next(reader, &found->batch, &end), CMQ_ERR_CORRUPT);
        CHECK_INT(cmq_last_error()->offset, phy);
        CHECK_OK(cmq_reader_next(reader, &found->batch, &end));
        CHECK_INT(found->batch.count, 2);
        cmq_reader_close(reader);
        kit_found_free(found);
        kit_close(store);
    }
}

/* ---- store times that fall, as in logs of brokers whose clock was set back ---- */

#define FALLING 3000

static int64_t fallen[FALLING];

/* Give the record at `phy` another store time, as a broker with another clock would have. The store is closed. */
static void stamp(int64_t phy, int64_t ms)
{
    char name[CMQ_PATH_BYTES], path[CMQ_PATH_BYTES];
    const int64_t segment = phy - phy % kit_options(root).segment_bytes;
    snprintf(name, sizeof name, "commitlog/%020lld", (long long)segment);
    CHECK_OK(cmq_path_join(path, root, name));
    FILE *file = fopen(path, "r+b");
    uint8_t bytes[8];
    CHECK(file != NULL);
    cmq_store_i64(bytes, ms);
    CHECK(fseek(file, (long)(phy - segment) + CMQ_RECORD_AT_STORE_TIMESTAMP, SEEK_SET) == 0);
    CHECK(fwrite(bytes, 1, sizeof bytes, file) == sizeof bytes && fclose(file) == 0);
}

/* `count` messages in queue 0 of A, in order 0, 1, …, with the times of `fallen`. */
static void fill_falling(int count)
{
    static int64_t places[FALLING];
    start();
    for (int i = 0; i < count; i++) {
        char body[16];
        snprintf(body, sizeof body, "%d", i);
        places[i] = kit_append(store, "A", 0, body, NULL, NULL).first_physical_offset;
    }
    kit_close(store);
    for (int i = 0; i < count; i++) stamp(places[i], fallen[i]);
    store = kit_open_at(root);
}

static void check_falling(int count, const char *topic, int64_t from, int64_t until, bool backwards)
{
    cmq_read_options options = {.has_start_time = true,
                                .start_time_ms = from,
                                .has_end_time = true,
                                .end_time_ms = until,
                                .backwards = backwards};
    const char *text = read_with(options, topic);
    for (int n = 0; n < count; n++) {
        const int i = backwards ? count - 1 - n : n;
        if (fallen[i] < from || fallen[i] >= until) continue;
        char *end;
        CHECK_INT(strtol(text, &end, 10), i);
        CHECK(end != text);
        text = end;
    }
    CHECK_TEXT(text, "");
}

static void few_messages_whose_times_fall(void)
{
    static const int64_t times[] = {1000, 2000, 3000, 4000, 5000, 2500, 3500, 4500, 5500};
    memcpy(fallen, times, sizeof times);
    fill_falling(9);
    for (int64_t from = 0; from <= 6000; from += 500)
        for (int64_t until = from; until <= 6000; until += 500)
            for (int way = 0; way < 4; way++) check_falling(9, way % 2 == 0 ? "A" : "", from, until, way >= 2);
    kit_close(store);
}

/* The clock was set back twice, by more and by less than lies between two samples, and forward once. */
static void many_messages_whose_times_fall(void)
{
    int64_t now = 1000000;
    for (int i = 0; i < FALLING; i++) {
        now += i == 700 ? -400000 : i == 1500 ? 300000 : i == 2200 ? -15000 : i == 2203 ? -4000 : 1000;
        fallen[i] = now;
    }
    fill_falling(FALLING);
    for (int64_t from = 1000000; from < 3200000; from += 97000)
        for (int64_t until = from + 500; until < 3200000; until += 211000)
            for (int way = 0; way < 4; way++) check_falling(FALLING, way % 2 == 0 ? "A" : "", from, until, way >= 2);
    for (int i = 690; i < 710; i++) check_falling(FALLING, "A", fallen[i], fallen[i] + 1, false);
    for (int i = 2190; i < 2215; i++) check_falling(FALLING, "A", fallen[i], fallen[i] + 1, false);
    kit_close(store);
}

CMQ_TEST_MAIN(CMQ_TEST(few_messages_whose_times_fall), CMQ_TEST(many_messages_whose_times_fall),
              CMQ_TEST(forwards_and_backwards), CMQ_TEST(tags), CMQ_TEST(bounds), CMQ_TEST(ranges),
              CMQ_TEST(bad_ranges), CMQ_TEST(a_start_in_the_log), CMQ_TEST(many),
              CMQ_TEST(new_messages_and_queues_appear), CMQ_TEST(a_topic_goes), CMQ_TEST(only_messages_of_queues),
              CMQ_TEST(segments_expire), CMQ_TEST(damage_is_passed_over))
