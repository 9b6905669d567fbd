/* Tests of cmq_reader over damage: sound messages are returned first, once, and reading goes on behind damaged ones. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "store/cmq_store.h"
#include "store/queue/cmq_queue.h"
#include "support/cmq_store_kit.h"
#include "support/cmq_test.h"

#define BODY_LENGTH_AT 84   /* in a record with IPv4 hosts */

static const char *queue_file(const char *root, int64_t first_unit)
{
    char name[96];
    snprintf(name, sizeof name, "consumequeue/T/0/%020lld", (long long)(first_unit * CMQ_UNIT_BYTES));
    return kit_path(root, name);
}

/* A closed store with `count` messages "m<i>" tagged A, and the start of each record. */
static const char *make_store(int count, int64_t *starts)
{
    const char *root = kit_directory();
    cmq_store *store = kit_open_at(root);
    for (int i = 0; i < count; i++) {
        char body[16];
        snprintf(body, sizeof body, "m%d", i);
        starts[i] = kit_append(store, "T", 0, body, "A", NULL).first_physical_offset;
    }
    kit_close(store);
    return root;
}

/* In an old file, which recovery does not look into. */
static void test_a_unit_that_points_nowhere(void)
{
    int64_t starts[60];
    const char *root = make_store(60, starts);
    uint8_t phy[8];
    cmq_store_i64(phy, INT64_C(1) << 40);
    kit_write_bytes(queue_file(root, 0), 3 * CMQ_UNIT_BYTES, phy, sizeof phy);
    cmq_store *store = kit_open_at(root);
    const char *text = kit_read_topic(store, "T");
    CHECK(strncmp(text, "m0 m1 m2 ! m4 m5 m6 ", 20) == 0);
    CHECK(strcmp(text + strlen(text) - 4, " m59") == 0);
    kit_close(store);
}

/* A view asks the log whether retention has taken a queue's file: nothing was deleted here. */
static void test_a_missing_queue_file_is_no_retention(void)
{
    for (int file = 0; file < 2; file++) {
        for (int read_only = 0; read_only < 2; read_only++) {
            int64_t starts[60];
            const char *root = make_store(60, starts);
            cmq_store_options options = kit_options(root);
            options.read_only = read_only != 0;
            options.create = false;
            cmq_store *store = kit_open(&options);
            cmq_queue *queue = cmq_queues_find(cmq_store_queues(store), kit_slice("T"), 0);
            cmq_unit units[60];
            uint32_t count;
            int64_t next;
            CHECK(unlink(queue_file(root, file * KIT_QUEUE_UNITS)) == 0);
            /* a descriptor of before, as of the first file, which opening looked at, reads on */
            CHECK_OK(cmq_queue_read(queue, 0, INT64_MAX, units, 60, &count, &next));
            CHECK_INT(count, file == 0 ? 60 : KIT_QUEUE_UNITS);
            if (file > 0)
                CHECK_STATUS(cmq_queue_read(queue, next, INT64_MAX, units, 60, &count, &next), CMQ_ERR_CORRUPT);
            if (file > 0)
                CHECK_STATUS(
                    cmq_queue_scan(queue, KIT_QUEUE_UNITS, INT64_MAX, NULL, 0, UINT64_MAX, units, 60, &count, &next),
                    CMQ_ERR_CORRUPT);
            CHECK_INT(cmq_queue_min(queue), 0);
            CHECK_OK(cmq_queue_read(queue, 2 * KIT_QUEUE_UNITS, INT64_MAX, units, 60, &count, &next));
            CHECK_INT(count, KIT_QUEUE_UNITS);
            kit_close(store);
            kit_remove_tree(root);
        }
    }
}

/* The failure of a later file comes after the messages that were found before it, not instead of them. */
static void test_found_messages_come_before_a_failure(void)
{
    enum { FILE_UNITS = 204 };   /* read at once */
    const char *root = kit_directory();
    cmq_store_options settings = kit_options(root);
    settings.queue_file_bytes = FILE_UNITS * CMQ_UNIT_BYTES;
    cmq_store *store = kit_open(&settings);
    kit_append_many(store, "T", "m", 3 * FILE_UNITS);
    kit_close(store);
    store = kit_open(&settings);
    CHECK(unlink(queue_file(root, FILE_UNITS)) == 0);
    const cmq_slice topic = kit_slice("T");
    const cmq_read_options options = {.topics = &topic, .topic_count = 1};
    cmq_reader *reader;
    bool end;
    CHECK_OK(cmq_reader_open(store, &options, &reader));
    kit_found *found = kit_found_make(KIT_FOUND_MAX);
    CHECK_OK(cmq_reader_next(reader, &found->batch, &end));
    CHECK_INT(found->batch.count, FILE_UNITS);
    cmq_found_batch_release(&found->batch);
    CHECK_STATUS(cmq_reader_next(reader, &found->batch, &end), CMQ_ERR_CORRUPT);
    CHECK_INT(found->batch.count, 0);
    kit_found_free(found);
    cmq_reader_close(reader);
    kit_close(store);
}

static void read_log_over_damage(bool backwards, const char *expected)
{
    int64_t starts[5];
    const char *root = make_store(5, starts);
    const uint8_t huge[4] = {0x7F, 0xFF, 0xFF, 0xFF};
    kit_write_bytes(kit_path(root, "commitlog/00000000000000000000"), starts[2] + BODY_LENGTH_AT, huge, sizeof huge);
    cmq_store *store = kit_open_at(root);
    const cmq_slice tag = kit_slice("A");
    const cmq_read_options options = {.tags = &tag, .tag_count = 1, .backwards = backwards};
    CHECK_TEXT(kit_read_with(store, &options), expected);
    kit_close(store);
}

static void test_the_log_by_tag_over_damage(void) { read_log_over_damage(false, "m0 m1 ! m3 m4"); }
static void test_the_log_by_tag_backwards_over_damage(void) { read_log_over_damage(true, "m4 m3 ! m1 m0"); }

/* Units of inner batches whose count or base is damaged, in an old file: reported, and passed. */
static void test_units_of_batches_that_cannot_be(void)
{
    static const struct {
        int64_t at;
        uint8_t bytes[8];
        size_t count;
    } damages[] = {{36, {0xFF, 0xFF}, 2},
                   {36, {0}, 2},
                   {0, {0x80}, 1},
                   {0, {0x80, 0, 0, 0, 0, 0, 0, 1}, 8},
                   {28, {0x7F, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF}, 8}};
    static const char *const topics[] = {"T"};
    for (size_t d = 0; d < sizeof damages / sizeof damages[0]; d++) {
        const char *root = kit_directory();
        cmq_store_options settings = kit_options(root);
        settings.batch_file_bytes = 8 * CMQ_BATCH_UNIT_BYTES;
        settings.batch_topics = topics;
        settings.batch_topic_count = 1;
        cmq_store *store = kit_open(&settings);
        kit_append_many(store, "T", "m", 60);
        kit_close(store);
        kit_write_bytes(kit_path(root, "batchconsumequeue/T/0/00000000000000000000"),
                        3 * CMQ_BATCH_UNIT_BYTES + damages[d].at, damages[d].bytes, damages[d].count);
        store = kit_open(&settings);
        const char *text = kit_read_topic(store, "T");
        static const char expected[] = "m0 m1 m2 ! m4 m5 m6 ";
        if (strncmp(text, expected, sizeof expected - 1) != 0)
            cmq_test_fail(__FILE__, __LINE__, "damage %zu: %s", d, text);
        kit_close(store);
    }
}

/* A file of another queue under the queue's name, as a misdirected write or a mistaken copy leaves it: records of the
 * same queue id and offsets. */
static void test_units_of_another_topic(void)
{
    enum { FILE_UNITS = 5 };
    uint8_t units[FILE_UNITS * CMQ_UNIT_BYTES];
    const char *root = kit_directory();
    const cmq_slice topic = kit_slice("T");
    kit_found *found = kit_found_make(1);
    int64_t offset;
    cmq_store_options settings = kit_options(root);
    settings.queue_file_bytes = FILE_UNITS * CMQ_UNIT_BYTES;
    cmq_store *store = kit_open(&settings);
    for (int i = 0; i < 12; i++) {
        kit_append(store, "T", 0, "ours", NULL, NULL);
        kit_append(store, "U", 0, "them", NULL, NULL);
    }
    kit_close(store);
    kit_read_bytes(kit_path(root, "consumequeue/U/0/00000000000000000000"), 0, units, sizeof units);
    kit_write_bytes(queue_file(root, 0), 0, units, sizeof units);
    store = kit_open(&settings);
    const cmq_read_options options = {.topics = &topic, .topic_count = 1, .check_crc = true};
    CHECK_TEXT(kit_read_with(store, &options), "! ! ! ! ! ours ours ours ours ours ours ours");
    CHECK_STATUS(cmq_store_read_offset(store, topic, 0, 2, &found->batch), CMQ_ERR_CORRUPT);
    CHECK_INT(found->batch.count, 0);
    cmq_found_batch_release(&found->batch);
    CHECK_STATUS(cmq_store_offset_at(store, topic, 0, 1, CMQ_BOUNDARY_LOWER, &offset), CMQ_ERR_CORRUPT);
    kit_found_free(found);
    kit_close(store);
}

/* RocketMQ puts a record behind a gap at another offset than it says: it was given to consumers so, and still is. But a
 * unit that repeats one of the queue is damaged. */
static void test_records_at_other_offsets(void)
{
    int64_t starts[60];
    uint8_t unit[CMQ_UNIT_BYTES];
    const char *root = make_store(60, starts);
    const cmq_slice topic = kit_slice("T");
    kit_read_bytes(queue_file(root, 0), 7 * CMQ_UNIT_BYTES, unit, sizeof unit);
    kit_write_bytes(queue_file(root, 0), 3 * CMQ_UNIT_BYTES, unit, sizeof unit);   /* m7 is there twice */
    cmq_store *store = kit_open_at(root);
    const char *text = kit_read_with(store, &(cmq_read_options){.topics = &topic, .topic_count = 1, .check_crc = true});
    CHECK(strncmp(text, "m0 m1 m2 ! m4 m5 m6 m7 m8 ", 26) == 0);
    kit_close(store);
    /* and now once, elsewhere */
    kit_write_bytes(queue_file(root, 0), 7 * CMQ_UNIT_BYTES, (const uint8_t[8]){0x40}, 8);
    store = kit_open_at(root);
    text = kit_read_with(store, &(cmq_read_options){.topics = &topic, .topic_count = 1, .check_crc = true});
    CHECK(strstr(text, "m2") != NULL && strstr(text, "! m8") != NULL && strstr(text, "m7 m4") != NULL);
    kit_close(store);
}

/* A record that does not match its CRC is damage in a stream as well; the others come. */
static void test_streams_compare_checksums(void)
{
    int64_t starts[5];
    const char *root = make_store(5, starts), *log = kit_path(root, "commitlog/00000000000000000000");
    const cmq_slice topic = kit_slice("T");
    kit_flip(log, starts[2] + BODY_LENGTH_AT + 4, 1);
    cmq_store *store = kit_open_at(root);
    for (int backwards = 0; backwards < 2; backwards++) {
        const char *expected = backwards ? "m4 m3 ! m1 m0" : "m0 m1 ! m3 m4";
        CHECK_TEXT(kit_read_with(store,
                                 &(cmq_read_options){
                                     .topics = &topic, .topic_count = 1, .check_crc = true, .backwards = backwards}),
                   expected);
        CHECK_TEXT(kit_read_with(store, &(cmq_read_options){.check_crc = true, .backwards = backwards}), expected);
    }
    kit_close(store);
}

/* Times fall, and the units between the first and the last are damaged: the search for a time ends, and what can be
 * read comes. */
static void test_times_that_fall_over_damage(void)
{
    enum { COUNT = 60, FILE_UNITS = 20 };
    uint8_t nowhere[(FILE_UNITS - 2) * CMQ_UNIT_BYTES];
    memset(nowhere, 0x3F, sizeof nowhere);
    const char *root = kit_directory();
    const cmq_slice topic = kit_slice("T");
    kit_set_clock();
    cmq_store *store = kit_open_at(root);
    const int64_t began_ms = atomic_load(&kit_now_ms);
    for (int i = 0; i < COUNT; i++)
        kit_append(store, "T", 0, i == 0 ? "first" : i == COUNT - 1 ? "last" : "m", NULL, NULL);
    kit_close(store);
    /* The first message was stored later than all others. */
    uint8_t later[8];
    cmq_store_i64(later, began_ms + 1000000);
    kit_write_bytes(kit_path(root, "commitlog/00000000000000000000"), CMQ_RECORD_AT_STORE_TIMESTAMP, later,
                    sizeof later);
    kit_write_bytes(queue_file(root, 0), CMQ_UNIT_BYTES, nowhere, sizeof nowhere);
    store = kit_open_at(root);
    const char *text = kit_read_with(
        store, &(cmq_read_options){
                   .topics = &topic, .topic_count = 1, .has_start_time = true, .start_time_ms = began_ms - 1000});
    CHECK(strncmp(text, "first ! ", 8) == 0);
    CHECK(strcmp(text + strlen(text) - 7, " m last") == 0);
    kit_close(store);
}

CMQ_TEST_MAIN(CMQ_TEST(test_times_that_fall_over_damage), CMQ_TEST(test_a_missing_queue_file_is_no_retention),
              CMQ_TEST(test_units_of_another_topic), CMQ_TEST(test_records_at_other_offsets),
              CMQ_TEST(test_streams_compare_checksums), CMQ_TEST(test_units_of_batches_that_cannot_be),
              CMQ_TEST(test_a_unit_that_points_nowhere), CMQ_TEST(test_found_messages_come_before_a_failure),
              CMQ_TEST(test_the_log_by_tag_over_damage), CMQ_TEST(test_the_log_by_tag_backwards_over_damage))
