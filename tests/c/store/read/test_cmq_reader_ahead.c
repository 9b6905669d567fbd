/* Tests of cmq_reader's reading ahead from the disk: walks over several segments, forwards, backwards, with jumps, and
 * up to an end that moves. Reading ahead is advice only; these tests hold that it never names a byte outside the
 * segment, which ASan would not see but madvise refuses, and that every message still comes.
 */
#include <string.h>

#include "store/cmq_store.h"
#include "support/cmq_store_kit.h"
#include "support/cmq_test.h"

#define BODY_BYTES (20u << 10)
#define MESSAGES 400   /* 8 MiB in segments of 1 MiB: pieces grow to their largest */

static cmq_store *store;

static void append_some(int count)
{
    static const uint8_t body[BODY_BYTES] = {7};
    cmq_appended appended;
    const cmq_append append = {.common = {.topic = cmq_slice_of_text("T")}, .count = (uint32_t)count,
                               .bodies = {.kind = CMQ_COLUMN_ONE, .one = {.data = body, .bytes = sizeof body}}};
    CHECK_OK(cmq_store_append(store, &append, &appended));
    CHECK_INT(appended.count, count);
}

/* Read on; offsets must follow `*next` in steps of `step`. How many came. */
static int read_on(cmq_reader *reader, int64_t *next, int step)
{
    cmq_found items[16];
    cmq_found_batch batch = {.items = items, .capacity = 16};
    int count = 0;
    for (;;) {
        bool end;
        CHECK_OK(cmq_reader_next(reader, &batch, &end));
        if (batch.count == 0) return count;
        for (uint32_t i = 0; i < batch.count; i++, count++, *next += step) {
            cmq_record_view view;
            CHECK_INT(items[i].queue_offset, *next);
            CHECK_OK(cmq_record_parse(items[i].record, items[i].record_bytes, items[i].physical_offset,
                                      CMQ_RECORD_CHECK_BODY_CRC, &view));
        }
        cmq_found_batch_release(&batch);
    }
}

static int read_all(const cmq_read_options *options, int64_t first, int step)
{
    cmq_reader *reader;
    CHECK_OK(cmq_reader_open(store, options, &reader));
    const int count = read_on(reader, &first, step);
    cmq_reader_close(reader);
    return count;
}

static void start(void)
{
    cmq_store_options options = kit_options(kit_directory());
    options.segment_bytes = 1 << 20;
    options.flush = CMQ_FLUSH_ASYNC;
    store = kit_open(&options);
    append_some(MESSAGES);
}

static void test_whole_walks(void)
{
    const cmq_slice topic = cmq_slice_of_text("T");
    start();
    CHECK_INT(read_all(&(cmq_read_options){0}, 0, 1), MESSAGES);
    CHECK_INT(read_all(&(cmq_read_options){.topics = &topic, .topic_count = 1}, 0, 1), MESSAGES);
    CHECK_INT(read_all(&(cmq_read_options){.backwards = true}, MESSAGES - 1, -1), MESSAGES);
    CHECK_INT(read_all(&(cmq_read_options){.topics = &topic, .topic_count = 1, .backwards = true}, MESSAGES - 1, -1),
              MESSAGES);
    kit_close(store);
}

static void test_walks_from_anywhere(void)
{
    const cmq_slice topic = cmq_slice_of_text("T");
    start();
    for (int64_t from = 0; from < MESSAGES; from += 37)
        CHECK_INT(read_all(&(cmq_read_options){.topics = &topic, .topic_count = 1, .has_start = true, .start = from},
                           from, 1),
                  MESSAGES - from);
    kit_close(store);
}

static void test_an_end_that_moves(void)
{
    cmq_reader *reader;
    int64_t next = 0;
    start();
    CHECK_OK(cmq_reader_open(store, &(cmq_read_options){0}, &reader));
    CHECK_INT(read_on(reader, &next, 1), MESSAGES);
    for (int i = 0; i < 100; i++) {
        append_some(1 + i % 7);
        CHECK_INT(read_on(reader, &next, 1), 1 + i % 7);
    }
    cmq_reader_close(reader);
    kit_close(store);
}

CMQ_TEST_MAIN(CMQ_TEST(test_whole_walks), CMQ_TEST(test_walks_from_anywhere), CMQ_TEST(test_an_end_that_moves))
