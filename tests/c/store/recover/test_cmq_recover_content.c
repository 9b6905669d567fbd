/* Tests csrc/store/recover/cmq_recover.c, cmq_log_tail_scan.c and cmq_append.c: no message is taken for torn because of
 * what it holds. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/record/cmq_record.h"
#include "support/cmq_store_kit.h"

#define SEGMENT_BYTES (1 << 20)

static const char *root;

static cmq_store *open_store(void)
{
    cmq_store_options options = kit_options(root);
    options.segment_bytes = SEGMENT_BYTES;
    return kit_open(&options);
}

static cmq_store *start(void)
{
    static char path[CMQ_PATH_BYTES];
    CHECK_OK(cmq_path_join(path, kit_directory(), "store"));
    root = path;
    kit_set_clock();
    return open_store();
}

/* The process dies and the next one opens. */
static cmq_store *reopen(cmq_store *store)
{
    cmq_store_abandon(store);
    return open_store();
}

typedef struct parts {
    cmq_slice tags, keys, properties, more;
} parts;

static cmq_column one(cmq_slice value)
{
    return (cmq_column){.kind = value.bytes > 0 ? CMQ_COLUMN_ONE : CMQ_COLUMN_NONE, .one = value};
}

static cmq_status try_append(cmq_store *store, const parts *of, const char *body)
{
    const cmq_append append = {.common = {.topic = kit_slice("T")},
                               .count = 1,
                               .bodies = one(kit_slice(body)),
                               .tags = one(of->tags),
                               .keys = one(of->keys),
                               .properties = one(of->properties),
                               .properties_more = one(of->more)};
    cmq_appended appended;
    return cmq_store_append(store, &append, &appended);
}

static void append(cmq_store *store, const parts *of, const char *body) { CHECK_OK(try_append(store, of, body)); }

/* `a` = `bytes` zeros, and what follows. */
static cmq_slice zeros(size_t bytes, const char *behind)
{
    static uint8_t text[40000];
    memset(text, 0, sizeof text);
    memcpy(text, "a\001", 2);
    memcpy(text + 2 + bytes, behind, strlen(behind));
    return (cmq_slice){.data = text, .bytes = 2 + bytes + strlen(behind)};
}

static void check_count(cmq_store *store, int64_t count)
{
    CHECK_INT(kit_max(store, "T", 0), count);
    cmq_store_opening opening;
    cmq_store_opening_of(store, &opening);
    CHECK_INT(opening.cut_bytes, 0);
}

/* Runs of zeros at every alignment within a sector, and at the end of properties, tags and keys: in the middle of the
 * log, and last. */
static void zeros_are_content(void)
{
    for (int shape = 0; shape < 6; shape++) {
        cmq_store *store = start();
        int64_t count = 0;
        for (; count < 300; count++) {
            parts of = {.properties = CMQ_SLICE_NONE};
            char body[600];
            memset(body, 'x', sizeof body);
            body[count * 7 % 512] = '\0';
            if (shape == 0) of.properties = zeros(1100, "b\002");
            if (shape == 1) of.properties = zeros(5, "");
            if (shape == 2) of.properties = zeros(1500, "");
            if (shape == 3) of.tags = (cmq_slice){.data = (const uint8_t *)"t\0", .bytes = 2};
            if (shape == 4) of.keys = (cmq_slice){.data = (const uint8_t *)"k\0\0", .bytes = 3};
            if (shape == 5) of.more = zeros(700, "\002");
            append(store, &of, body);
            if (count % 100 != 99) continue;
            store = reopen(store);   /* such a message is the last */
            check_count(store, count + 1);
        }
        for (; count < 613; count++) append(store, &(parts){.keys = kit_slice("k")}, "after");
        store = reopen(store);
        check_count(store, count);
        kit_close(store);
    }
}

/* Many in one call: those with a zero byte leave the run, and prove themselves, too. */
static void zeros_in_a_batch(void)
{
    cmq_store *store = start();
    cmq_slice tags[100], keys[100], bodies[100];
    for (int i = 0; i < 100; i++) {
        bodies[i] = kit_slice("body");
        tags[i] = i % 10 == 9 ? (cmq_slice){.data = (const uint8_t *)"tag\0", .bytes = 4} : kit_slice("tag");
        keys[i] =
            i % 7 == 1 ? (cmq_slice){.data = (const uint8_t *)"a-long-key\0", .bytes = 11} : kit_slice("a-long-key");
    }
    for (int together = 0; together < 2; together++) {
        const cmq_append append = {.common = {.topic = kit_slice("T")},
                                   .count = 100,
                                   .bodies = {.kind = CMQ_COLUMN_SLICES, .slices = bodies},
                                   .tags = {.kind = CMQ_COLUMN_SLICES, .slices = tags},
                                   .keys = {.kind = CMQ_COLUMN_SLICES, .slices = keys},
                                   .one_segment = together != 0};
        cmq_appended appended;
        CHECK_OK(cmq_store_append(store, &append, &appended));
        store = reopen(store);
        check_count(store, (together + 1) * 100);
    }
    kit_found *found = kit_found_make(1);
    for (int i = 0; i < 200; i++) {
        cmq_found_batch_release(&found->batch);
        CHECK_OK(cmq_store_read_offset(store, kit_slice("T"), 0, i, &found->batch));
        const cmq_record_view view = kit_view(&found->items[0]);
        CHECK_INT(cmq_record_prove(&view), cmq_record_has_zero(&view) ? CMQ_RECORD_PROVEN : CMQ_RECORD_UNPROVEN);
    }
    kit_found_free(found);
    kit_close(store);
}

/* A producer's value under the name of the store's own property is dropped, wherever it stands. */
static void a_producers_property_crc_is_dropped(void)
{
    static const char *const given[] = {"__CRC32#\0011234567890\002", "a\001b\002__CRC32#\0011234567890\002",
                                        "__CRC32#\001x\002a\001b\002", "a\001b\002__CRC32#\0011234567890"};
    for (size_t i = 0; i < sizeof given / sizeof given[0]; i++) {
        cmq_store *store = start();
        for (int message = 0; message < 20; message++) append(store, &(parts){.tags = kit_slice("t")}, "before");
        append(store, &(parts){.properties = kit_slice(given[i])}, "forged");
        append(store, &(parts){.properties = kit_slice("c\001d"), .more = kit_slice(given[i])}, "forged");
        store = reopen(store);
        check_count(store, 22);
        for (int message = 0; message < 200; message++) append(store, &(parts){.tags = kit_slice("t")}, "acknowledged");
        store = reopen(store);
        check_count(store, 222);
        kit_found *found = kit_found_make(1);
        CHECK_OK(cmq_store_read_offset(store, kit_slice("T"), 0, 21, &found->batch));
        const cmq_record_view view = kit_view(&found->items[0]);
        cmq_slice value;
        CHECK(!cmq_property_find(view.properties, kit_slice("__CRC32#"), &value));
        CHECK(cmq_property_find(view.properties, kit_slice("c"), &value) && cmq_slice_equal(value, kit_slice("d")));
        CHECK(cmq_property_find(view.properties, kit_slice("a"), &value) == (i > 0));
        kit_found_free(found);
        kit_close(store);
    }
}

/* A proof takes 20 bytes of the 32,767; properties that do not fit with it are refused. */
static void properties_at_the_limit(void)
{
    cmq_store *store = start();
    CHECK_OK(try_append(store, &(parts){.properties = zeros(32767 - 20 - 4, "b\002")}, "fits"));
    CHECK_STATUS(try_append(store, &(parts){.properties = zeros(32767 - 20 - 3, "b\002")}, "does not"),
                 CMQ_ERR_TOO_LARGE);
    CHECK_OK(try_append(store, &(parts){.properties = zeros(32767 - 20 - 1 - 3, "b")}, "fits"));   /* closed first */
    CHECK_STATUS(try_append(store, &(parts){.properties = zeros(32767 - 20 - 1 - 2, "b")}, "does not"),
                 CMQ_ERR_TOO_LARGE);
    store = reopen(store);
    check_count(store, 2);
    kit_close(store);
}

/* ---- logs of programs that left no proof ---- */

/* A record as such a program writes it, behind the log's end. */
static int64_t put_raw(int64_t at, int64_t queue_offset, cmq_slice properties, int64_t store_ms)
{
    static uint8_t record[70000];
    char name[CMQ_OFFSET_NAME_BYTES], path[CMQ_PATH_BYTES];
    cmq_record_sizes sizes;
    const cmq_record_fields fields = {.topic = kit_slice("T"),
                                      .body = kit_slice("raw"),
                                      .properties = properties,
                                      .queue_offset = queue_offset,
                                      .physical_offset = at,
                                      .born_timestamp_ms = store_ms,
                                      .store_timestamp_ms = store_ms};
    CHECK_OK(cmq_record_measure(&fields, &sizes));
    cmq_record_encode(record, &fields, &sizes);
    cmq_path_offset_name(name, 0);
    CHECK_OK(cmq_path_join(path, kit_path(root, "commitlog"), name));
    kit_write_bytes(path, at, record, sizes.record_bytes);
    return at + sizes.record_bytes;
}

/* Begin a store whose last writer was another program: no marks of ours. */
static int64_t start_foreign(void)
{
    cmq_store *store = start();
    append(store, &(parts){.tags = kit_slice("t")}, "first");
    const int64_t end = cmq_store_confirmed(store);
    cmq_store_abandon(store);
    kit_remove_tree(kit_path(root, "cometmq"));
    kit_remove_tree(kit_path(root, "checkpoint"));
    return end;
}

static void following_records_decide_in_older_logs(void)
{
    static const char wrong[] = "a\001b\002__CRC32#\0011234567890\002";
    for (int shape = 0; shape < 3; shape++) {
        const cmq_slice suspicious = shape == 0 ? zeros(1100, "b\002") : shape == 1 ? zeros(9, "") : kit_slice(wrong);
        const int64_t first = start_foreign(), now = atomic_load(&kit_now_ms);
        const int64_t second = put_raw(first, 1, suspicious, now);
        const int64_t end = put_raw(second, 2, kit_slice("a\001b\002"), now);
        cmq_store *store = open_store();
        check_count(store, 3);   /* a whole record continues it */
        CHECK_INT(cmq_store_confirmed(store), end);
        cmq_store_abandon(store);
    }
    /* The last one may be torn. */
    const int64_t first = start_foreign(), now = atomic_load(&kit_now_ms);
    (void)put_raw(first, 1, zeros(9, ""), now);
    cmq_store *store = open_store();
    CHECK_INT(cmq_store_confirmed(store), first);
    kit_close(store);
}

/* A zero sector without a proof, behind a point that promises proofs: torn, also with a whole record behind it. Both
 * were in one group. */
static void torn_in_the_middle_of_a_group(void)
{
    cmq_store *store = start();
    append(store, &(parts){.tags = kit_slice("t")}, "first");
    CHECK_OK(cmq_store_maintain(store, true));
    const int64_t first = cmq_store_confirmed(store), now = atomic_load(&kit_now_ms);
    cmq_store_abandon(store);
    kit_remove_tree(kit_path(root, "cometmq/follow"));   /* the power went: nobody knows what was acknowledged */
    const int64_t second = put_raw(first, 1, zeros(1100, "b\002"), now);
    (void)put_raw(second, 2, kit_slice("a\001b\002"), now);
    store = open_store();
    CHECK_INT(cmq_store_confirmed(store), first);
    CHECK_INT(kit_max(store, "T", 0), 1);
    kit_close(store);
}

CMQ_TEST_MAIN(CMQ_TEST(zeros_are_content), CMQ_TEST(zeros_in_a_batch), CMQ_TEST(a_producers_property_crc_is_dropped),
              CMQ_TEST(properties_at_the_limit), CMQ_TEST(following_records_decide_in_older_logs),
              CMQ_TEST(torn_in_the_middle_of_a_group))
