/* Tests csrc/store/append/cmq_append.c: every way to give values, limits, what is refused, batches, light queues, inner
 * batches, failures part way. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/cmq_file_twin.h"
#include "support/cmq_store_kit.h"

static char last_root[CMQ_PATH_BYTES];

/* Where the store made last lies. */
static const char *store_root(void) { return last_root; }

static const char *new_root(void)
{
    CHECK_OK(cmq_path_join(last_root, kit_directory(), "store"));
    return last_root;
}

static cmq_store *open_store(void)
{
    kit_set_clock();
    return kit_open_at(new_root());
}

static cmq_store *open_with(cmq_store_options options)
{
    const cmq_store_options tiny = kit_options(new_root());
    options.path = tiny.path;
    options.clock = tiny.clock;
    options.create = true;
    if (options.segment_bytes == 0) options.segment_bytes = tiny.segment_bytes;
    options.queue_file_bytes = tiny.queue_file_bytes;
    options.batch_file_bytes = tiny.batch_file_bytes;
    options.ext_file_bytes = tiny.ext_file_bytes;
    options.index_slots = tiny.index_slots;
    options.index_entries = tiny.index_entries;
    return kit_open(&options);
}

static cmq_column one(const char *text) { return (cmq_column){.kind = CMQ_COLUMN_ONE, .one = cmq_slice_of_text(text)}; }

static cmq_append append_of(const char *topic, uint32_t count, cmq_column bodies)
{
    return (cmq_append){.common = {.topic = cmq_slice_of_text(topic)}, .count = count, .bodies = bodies};
}

static cmq_record_view read_one(cmq_store *store, kit_found *found, const char *topic, int32_t queue_id, int64_t offset)
{
    cmq_found_batch_release(&found->batch);
    CHECK_OK(cmq_store_read_offset(store, cmq_slice_of_text(topic), queue_id, offset, &found->batch));
    return kit_view(&found->items[0]);
}

static void check_property(const cmq_record_view *view, const char *name, const char *expected)
{
    cmq_slice value;
    const bool there = cmq_property_find(view->properties, cmq_slice_of_text(name), &value);
    if (expected == NULL) {
        CHECK(!there);
        return;
    }
    if (!there) cmq_test_fail(__FILE__, __LINE__, "there is no property %s", name);
    CHECK_BYTES(value.data, value.bytes, expected, strlen(expected));
}

/* ---- columns ---- */

static void every_kind_of_column(void)
{
    static const uint8_t fixed[] = "aa--bb--cc--", joined[] = "xabbccc";
    static const int32_t offsets32[] = {1, 2, 4, 7};
    static const int64_t offsets64[] = {1, 2, 4, 7};
    const cmq_slice slices[] = {kit_slice("s0"), CMQ_SLICE_NONE, kit_slice("s2")};
    const cmq_column columns[] = {
        one("same"),
        {.kind = CMQ_COLUMN_SLICES, .slices = slices},
        {.kind = CMQ_COLUMN_FIXED, .data = fixed, .stride = 4, .width = 2},
        {.kind = CMQ_COLUMN_OFFSETS32, .data = joined, .offsets32 = offsets32},
        {.kind = CMQ_COLUMN_OFFSETS64, .data = joined, .offsets64 = offsets64},
    };
    static const char *const expected[][3] = {
        {"same", "same", "same"}, {"s0", "", "s2"}, {"aa", "bb", "cc"}, {"a", "bb", "ccc"}, {"a", "bb", "ccc"}};
    cmq_store *store = open_store();
    kit_found *found = kit_found_make(1);
    int64_t queue_offsets[3], physical[3], offset = 0;
    for (size_t kind = 0; kind < 5; kind++) {
        cmq_append append = append_of("T", 3, columns[kind]);
        cmq_appended appended;
        append.tags = columns[kind];
        append.keys = columns[kind];
        append.queue_offsets_out = queue_offsets;
        append.physical_offsets_out = physical;
        CHECK_OK(cmq_store_append(store, &append, &appended));
        CHECK_INT(appended.count, 3);
        CHECK_INT(appended.first_queue_offset, offset);
        CHECK_INT(appended.first_physical_offset, physical[0]);
        for (int i = 0; i < 3; i++, offset++) {
            CHECK_INT(queue_offsets[i], offset);
            const cmq_record_view view = read_one(store, found, "T", 0, offset);
            CHECK_INT(view.physical_offset, physical[i]);
            CHECK_BYTES(view.body.data, view.body.bytes, expected[kind][i], strlen(expected[kind][i]));
            check_property(&view, "TAGS", expected[kind][i][0] != '\0' ? expected[kind][i] : NULL);
            check_property(&view, "KEYS", expected[kind][i][0] != '\0' ? expected[kind][i] : NULL);
        }
        CHECK_INT(appended.end, physical[2] + (int64_t)found->items[0].record_bytes);
    }
    /* No bodies at all, and no messages at all. */
    cmq_appended appended;
    cmq_append append = append_of("T", 2, (cmq_column){0});
    CHECK_OK(cmq_store_append(store, &append, &appended));
    CHECK_INT(read_one(store, found, "T", 0, offset).body.bytes, 0);
    append.count = 0;
    CHECK_OK(cmq_store_append(store, &append, &appended));
    CHECK_INT(appended.count, 0);
    CHECK_INT(appended.first_queue_offset, -1);
    kit_found_free(found);
    kit_close(store);
}

static void arrow_offsets_from_outside(void)
{
    static const uint8_t data[] = "abc";
    static const int32_t falling[] = {0, 2, 1}, negative[] = {-1, 1, 2};
    static const int64_t falling64[] = {0, 2, 1}, negative64[] = {-5, 1, 2};
    cmq_store *store = open_store();
    cmq_appended appended;
    const cmq_column bad[] = {
        {.kind = CMQ_COLUMN_OFFSETS32, .data = data, .offsets32 = falling},
        {.kind = CMQ_COLUMN_OFFSETS32, .data = data, .offsets32 = negative},
        {.kind = CMQ_COLUMN_OFFSETS64, .data = data, .offsets64 = falling64},
        {.kind = CMQ_COLUMN_OFFSETS64, .data = data, .offsets64 = negative64},
    };
    for (size_t i = 0; i < 4; i++) {
        cmq_append append = append_of("T", 2, bad[i]);
        CHECK_STATUS(cmq_store_append(store, &append, &appended), CMQ_ERR_ARGUMENT);
        append.bodies = one("b");
        append.properties = bad[i];
        CHECK_STATUS(cmq_store_append(store, &append, &appended), CMQ_ERR_ARGUMENT);
    }
    CHECK_INT(cmq_store_confirmed(store), 0);
    kit_close(store);
}

/* ---- contents of a record ---- */

static void fields_arrive(void)
{
    static const uint8_t body[] = "hello";
    cmq_store *store = open_store();
    kit_found *found = kit_found_make(1);
    cmq_append append = append_of("T", 1, one((const char *)body));
    uint8_t pairs[64];
    size_t used = 0;
    CHECK_OK(cmq_property_append(pairs, sizeof pairs, &used, kit_slice("color"), kit_slice("red")));
    CHECK_OK(cmq_property_append(pairs, sizeof pairs, &used, kit_slice("UNIQ_KEY"), kit_slice("U1")));
    append.properties = (cmq_column){.kind = CMQ_COLUMN_ONE, .one = {.data = pairs, .bytes = used}};
    append.properties_more = one("batch\001yes\002");
    append.tags = one("tag");
    append.keys = one("k1 k2");
    append.common.queue_id = 3;
    append.common.flag = 0x1234;
    append.common.sys_flag = CMQ_SYS_COMPRESSED | CMQ_SYS_COMPRESSION_ZSTD;
    append.common.reconsume_times = 2;
    append.common.prepared_transaction_offset = 77;
    append.common.born_timestamp_ms = 12345;
    append.common.born_host = (cmq_record_host){.address = {0x20, 1, 0xd, 0xb8, [15] = 1}, .port = 65535, .ipv6 = true};
    append.common.store_host = (cmq_record_host){.address = {10, 0, 0, 1}, .port = 10911};
    cmq_appended appended;
    CHECK_OK(cmq_store_append(store, &append, &appended));
    cmq_record_view view = read_one(store, found, "T", 3, 0);
    CHECK_INT(view.flag, 0x1234);
    CHECK_INT(view.sys_flag, CMQ_SYS_COMPRESSED | CMQ_SYS_COMPRESSION_ZSTD | CMQ_SYS_BORN_HOST_IPV6);
    CHECK_INT(view.reconsume_times, 2);
    CHECK_INT(view.prepared_transaction_offset, 77);
    CHECK_INT(view.born_timestamp_ms, 12345);
    CHECK_INT(view.store_timestamp_ms, atomic_load(&kit_now_ms));
    CHECK_INT(appended.store_timestamp_ms, view.store_timestamp_ms);
    CHECK(view.born_host.ipv6 && view.born_host.port == 65535 && view.born_host.address[15] == 1 &&
          !view.store_host.ipv6);
    check_property(&view, "TAGS", "tag");
    check_property(&view, "color", "red");
    check_property(&view, "batch", "yes");
    /* Both hosts, and the born time of each message. */
    const int64_t born[] = {5, 6};
    append.count = 2;
    append.born_timestamps = born;
    append.common.store_host = append.common.born_host;
    CHECK_OK(cmq_store_append(store, &append, &appended));
    view = read_one(store, found, "T", 3, 2);
    CHECK(view.store_host.ipv6 && (view.sys_flag & CMQ_SYS_STORE_HOST_IPV6) != 0);
    CHECK_INT(view.born_timestamp_ms, 6);
    /* All of its keys lead to it; after an unclean end, too. */
    static const char *const keys[] = {"k1", "k2", "U1"};
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 3; i++) {
            kit_found *by_key = kit_found_make(10);
            CHECK_OK(cmq_store_find_key(store, kit_slice("T"), kit_slice(keys[i]), 0, INT64_MAX, &by_key->batch));
            CHECK_INT(by_key->batch.count, 3);
            kit_found_free(by_key);
        }
        cmq_found_batch_release(&found->batch);
        char path[CMQ_PATH_BYTES];
        strcpy(path, store_root());
        cmq_store_abandon(store);
        store = kit_open_at(path);
    }
    kit_found_free(found);
    kit_close(store);
}

/* The born time is the store time when none is given. */
static void born_when_stored(void)
{
    cmq_store *store = open_store();
    kit_found *found = kit_found_make(1);
    kit_append(store, "T", 0, "a", NULL, NULL);
    CHECK_INT(read_one(store, found, "T", 0, 0).born_timestamp_ms, atomic_load(&kit_now_ms));
    kit_found_free(found);
    kit_close(store);
}

static void property_crc_is_kept(void)
{
    cmq_store *store = open_with((cmq_store_options){.property_crc = true, .check_property_crc = true});
    kit_found *found = kit_found_make(1);
    kit_append(store, "T", 0, "body", "tag", "key");
    cmq_append append = append_of("T", 2, one("body"));
    cmq_appended appended;
    append.one_segment = true;
    append.properties = one("a\001b\002");
    CHECK_OK(cmq_store_append(store, &append, &appended));
    for (int i = 0; i < 3; i++) {
        cmq_record_view view;
        read_one(store, found, "T", 0, i);
        CHECK_OK(cmq_record_parse(found->items[0].record, found->items[0].record_bytes, found->items[0].physical_offset,
                                  CMQ_RECORD_CHECK_BODY_CRC | CMQ_RECORD_CHECK_PROPERTY_CRC, &view));
    }
    char path[CMQ_PATH_BYTES];
    strcpy(path, store_root());
    kit_found_free(found);
    cmq_store_abandon(store);
    cmq_store_options options = kit_options(path);
    options.check_property_crc = true;
    store = kit_open(&options);
    CHECK_INT(kit_max(store, "T", 0), 3);
    kit_close(store);
}

/* Upstream's batches put the property CRC behind a pair that is not closed, whose value it becomes a part of. It proves
 * the record all the same, where that is demanded. */
static void property_crc_behind_an_open_pair_is_a_proof(void)
{
    cmq_store *store = open_with((cmq_store_options){.property_crc = true, .check_property_crc = true});
    kit_found *found = kit_found_make(1);
    cmq_append append = append_of("T", 2, one("body"));
    cmq_appended appended;
    append.one_segment = true;
    append.properties = one("a\001b");
    CHECK_OK(cmq_store_append(store, &append, &appended));
    kit_append(store, "T", 0, "last", "tag", "key");
    char path[CMQ_PATH_BYTES];
    strcpy(path, store_root());
    for (int i = 0; i < 3; i++) read_one(store, found, "T", 0, i);
    cmq_store_abandon(store);
    cmq_store_options options = kit_options(path);
    options.check_property_crc = true;
    store = kit_open(&options);
    CHECK_INT(kit_max(store, "T", 0), 3);
    for (int i = 0; i < 3; i++) read_one(store, found, "T", 0, i);
    kit_found_free(found);
    kit_close(store);
}

/* Prepared and rolled-back messages are in no queue; prepared ones are found by their keys. */
static void transactions(void)
{
    static const int32_t types[] = {CMQ_SYS_TRANSACTION_PREPARED, CMQ_SYS_TRANSACTION_COMMIT,
                                    CMQ_SYS_TRANSACTION_ROLLBACK, 0};
    cmq_store *store = open_store();
    kit_found *found = kit_found_make(10);
    for (int i = 0; i < 4; i++) {
        cmq_append append = append_of("T", 1, one(i == 0 ? "p" : i == 1 ? "c" : i == 2 ? "r" : "n"));
        cmq_appended appended;
        append.common.sys_flag = types[i];
        append.keys = one("k");
        CHECK_OK(cmq_store_append(store, &append, &appended));
        CHECK_INT(appended.first_queue_offset, i == 3 ? 1 : 0);
    }
    for (int round = 0; round < 2; round++) {
        CHECK_TEXT(kit_read_all(store), "p c r n");
        CHECK_TEXT(kit_read_topic(store, "T"), "c n");
        CHECK_OK(cmq_store_find_key(store, kit_slice("T"), kit_slice("k"), 0, INT64_MAX, &found->batch));
        CHECK_INT(found->batch.count, 3);
        CHECK(kit_body_is(&found->items[2], "p"));
        cmq_found_batch_release(&found->batch);
        char path[CMQ_PATH_BYTES];
        strcpy(path, store_root());
        cmq_store_abandon(store);
        store = kit_open_at(path);
    }
    kit_found_free(found);
    kit_close(store);
}

/* ---- limits ---- */

static void refused(cmq_store *store, cmq_append append, cmq_status expected, const char *text)
{
    cmq_appended appended;
    const int64_t before = cmq_store_confirmed(store);
    CHECK_STATUS(cmq_store_append(store, &append, &appended), expected);
    if (strstr(cmq_last_error()->text, text) == NULL)
        cmq_test_fail(__FILE__, __LINE__, "\"%s\" does not say \"%s\"", cmq_last_error()->text, text);
    CHECK_INT(appended.count, 0);
    CHECK_INT(cmq_store_confirmed(store), before);
}

static void topics_that_are_refused(void)
{
    cmq_store *store = open_store();
    char name[260];
    static const char *const bad[] = {"", "a/b", "..", "a b", "a\nb", "t\xc3\xa4", "a+b", "a\001"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        refused(store, append_of(bad[i], 1, one("b")), CMQ_ERR_TOPIC, "topic");
    cmq_append nul = append_of("T", 1, one("b"));
    nul.common.topic = (cmq_slice){.data = (const uint8_t *)"a\0b", .bytes = 3};
    refused(store, nul, CMQ_ERR_TOPIC, "byte 1");
    memset(name, 'x', sizeof name);
    name[128] = '\0';
    refused(store, append_of(name, 1, one("b")), CMQ_ERR_TOPIC, "127");
    name[127] = '\0';
    kit_append(store, name, 0, "b", NULL, NULL);
    memset(name, 'x', sizeof name);
    memcpy(name, "%RETRY%", 7);
    name[256] = '\0';
    refused(store, append_of(name, 1, one("b")), CMQ_ERR_TOPIC, "255");
    name[255] = '\0';
    kit_append(store, name, 0, "version 2", NULL, NULL);
    CHECK_INT(kit_max(store, name, 0), 1);
    cmq_append negative = append_of("T", 1, one("b"));
    negative.common.queue_id = -1;
    refused(store, negative, CMQ_ERR_ARGUMENT, "negative");
    kit_close(store);
}

static void values_that_are_refused(void)
{
    cmq_store *store = open_with((cmq_store_options){.body_bytes_max = 1000});
    static char large[40000];
    memset(large, 'x', sizeof large - 1);
    cmq_append append = append_of("T", 1, one("b"));
    append.tags = one("a\001b");
    refused(store, append, CMQ_ERR_ARGUMENT, "TAGS");
    append.tags = (cmq_column){0};
    append.keys = one("a\002b");
    refused(store, append, CMQ_ERR_ARGUMENT, "KEYS");
    append.keys = one(large);
    refused(store, append, CMQ_ERR_TOO_LARGE, "32767");
    append.keys = (cmq_column){0};
    append.bodies.one.bytes = 1001;
    append.bodies.one.data = (const uint8_t *)large;
    refused(store, append, CMQ_ERR_TOO_LARGE, "maxMessageSize");
    append.bodies.one.bytes = 1000;
    cmq_appended appended;
    CHECK_OK(cmq_store_append(store, &append, &appended));
    append.properties = (cmq_column){.kind = CMQ_COLUMN_ONE, .one = {.data = (const uint8_t *)large, .bytes = 17000}};
    refused(store, append, CMQ_ERR_TOO_LARGE, "segment");
    kit_close(store);
}

/* Messages before the failing one are appended; those behind it are not looked at. */
static void failure_part_way(void)
{
    cmq_store *store = open_store();
    const cmq_slice bodies[] = {kit_slice("m0"), kit_slice("m1"), kit_slice("m2"), kit_slice("m3")};
    const cmq_slice tags[] = {kit_slice("a"), kit_slice("b"), kit_slice("c\001"), kit_slice("d")};
    int64_t offsets[4] = {-1, -1, -1, -1};
    cmq_append append = append_of("T", 4, (cmq_column){.kind = CMQ_COLUMN_SLICES, .slices = bodies});
    append.tags = (cmq_column){.kind = CMQ_COLUMN_SLICES, .slices = tags};
    append.queue_offsets_out = offsets;
    cmq_appended appended;
    CHECK_STATUS(cmq_store_append(store, &append, &appended), CMQ_ERR_ARGUMENT);
    CHECK(strstr(cmq_last_error()->text, "message 2") != NULL);
    CHECK_INT(appended.count, 2);
    CHECK_INT(appended.first_queue_offset, 0);
    CHECK_INT(offsets[1], 1);
    CHECK_INT(cmq_store_confirmed(store), appended.end);   /* durable, too */
    CHECK_TEXT(kit_read_topic(store, "T"), "m0 m1");
    kit_append(store, "T", 0, "next", NULL, NULL);
    CHECK_TEXT(kit_read_topic(store, "T"), "m0 m1 next");
    kit_close(store);
}

/* ---- batches ---- */

static void batch_in_one_segment(void)
{
    for (int mode = 0; mode < 2; mode++) {
        cmq_store *store = open_with((cmq_store_options){.flush = mode == 0 ? CMQ_FLUSH_SYNC : CMQ_FLUSH_ASYNC});
        for (int round = 0; round < 30; round++) {
            int64_t physical[7];
            cmq_append append =
                append_of("T", 7, one("0123456789012345678901234567890123456789012345678901234567890123456789"));
            cmq_appended appended;
            append.common.queue_id = round % 2;
            append.one_segment = true;
            append.keys = one("k");
            append.physical_offsets_out = physical;
            CHECK_OK(cmq_store_append(store, &append, &appended));
            CHECK_INT(physical[0] / KIT_SEGMENT_BYTES, physical[6] / KIT_SEGMENT_BYTES);
        }
        /* All or nothing: a wrong element, or one that makes the whole too large, leaves nothing. */
        const cmq_slice tags[] = {kit_slice("a"), kit_slice("b\002")};
        cmq_append append = append_of("T", 2, one("b"));
        append.one_segment = true;
        append.tags = (cmq_column){.kind = CMQ_COLUMN_SLICES, .slices = tags};
        refused(store, append, CMQ_ERR_ARGUMENT, "message 1");
        append.tags = (cmq_column){0};
        append.count = 400;
        refused(store, append, CMQ_ERR_TOO_LARGE, "segment");
        append.count = CMQ_ONE_SEGMENT_MAX + 1;
        refused(store, append, CMQ_ERR_LIMIT, "65536");
        const int32_t queue_ids[] = {0, -3};
        append.count = 2;
        append.queue_ids = queue_ids;
        refused(store, append, CMQ_ERR_ARGUMENT, "negative");
        CHECK_INT(kit_max(store, "T", 0) + kit_max(store, "T", 1), 210);
        kit_close(store);
    }
}

/* Larger than any staging buffer, and than a grant of room in the queue. */
static void large_batch_in_one_segment(void)
{
    static char body[16000];
    memset(body, 'x', sizeof body - 1);
    for (int mode = 0; mode < 2; mode++) {
        cmq_store *store = open_with(
            (cmq_store_options){.flush = mode == 0 ? CMQ_FLUSH_SYNC : CMQ_FLUSH_ASYNC, .segment_bytes = 32 << 20});
        kit_append(store, "T", 0, "first", NULL, NULL);
        int64_t *physical = calloc(1000, sizeof *physical);
        cmq_append append = append_of("T", 1000, one(body));
        cmq_appended appended;
        append.one_segment = true;
        append.physical_offsets_out = physical;
        for (int round = 0; round < 3; round++) {
            CHECK_OK(cmq_store_append(store, &append, &appended));
            CHECK_INT(appended.count, 1000);
            CHECK_INT(physical[0] / (32 << 20), physical[999] / (32 << 20));
            for (int i = 1; i < 1000; i++) CHECK_INT(physical[i] - physical[i - 1], physical[1] - physical[0]);
        }
        CHECK_INT(kit_max(store, "T", 0), 3001);
        free(physical);
        kit_close(store);
    }
}

static void many_messages_in_one_call(void)
{
    for (int mode = 0; mode < 2; mode++) {
        cmq_store *store = open_with(
            (cmq_store_options){.flush = mode == 0 ? CMQ_FLUSH_SYNC : CMQ_FLUSH_ASYNC, .segment_bytes = 1 << 20});
        cmq_append append = append_of("T", 30000, one("some body of a message"));
        cmq_appended appended;
        append.keys = one("key");
        CHECK_OK(cmq_store_append(store, &append, &appended));
        CHECK_INT(appended.count, 30000);
        CHECK_INT(appended.first_queue_offset, 0);
        CHECK_INT(appended.first_physical_offset, 0);
        CHECK_INT(cmq_store_confirmed(store), appended.end);
        CHECK_INT(kit_max(store, "T", 0), 30000);
        kit_close(store);
    }
}

/* ---- light queues and inner batches ---- */

static void light_queues(void)
{
    static const char *const lists[] = {"%LMQ%a,%LMQ%b", "%LMQ%b,,%LMQ%b,other", "%LMQ%a", ""};
    cmq_store *store = open_with((cmq_store_options){.lmq_enabled = true});
    char path[CMQ_PATH_BYTES];
    strcpy(path, store_root());
    for (int i = 0; i < 4; i++) {
        char pairs[100], body[16];
        cmq_append append = append_of("T", 1, (cmq_column){0});
        cmq_appended appended;
        snprintf(pairs, sizeof pairs, "INNER_MULTI_DISPATCH\001%s\002", lists[i]);
        snprintf(body, sizeof body, "m%d", i);
        append.bodies = one(body);
        append.properties = one(pairs);
        CHECK_OK(cmq_store_append(store, &append, &appended));
    }
    /* A light queue named by a message of its own: one unit, not two. */
    cmq_append own = append_of("%LMQ%a", 1, one("own"));
    cmq_appended appended;
    own.properties = one("INNER_MULTI_DISPATCH\001%LMQ%a\002");
    CHECK_OK(cmq_store_append(store, &own, &appended));
    CHECK_INT(appended.first_queue_offset, 2);
    for (int round = 0; round < 3; round++) {
        CHECK_TEXT(kit_read_topic(store, "T"), "m0 m1 m2 m3");
        CHECK_TEXT(kit_read_topic(store, "%LMQ%a"), "m0 m2 own");
        CHECK_TEXT(kit_read_topic(store, "%LMQ%b"), "m0 m1");
        CHECK(cmq_queues_find(cmq_store_queues(store), kit_slice("other"), 0) == NULL);
        kit_found *found = kit_found_make(1);
        const cmq_record_view view = read_one(store, found, "T", 0, 1);
        check_property(&view, "INNER_MULTI_QUEUE_OFFSET", "1,,1,");
        kit_found_free(found);
        if (round == 0) cmq_store_abandon(store);
        else kit_close(store);
        if (round == 1) kit_remove_tree(kit_path(path, "consumequeue"));
        cmq_store_options options = kit_options(path);
        options.lmq_enabled = true;
        store = kit_open(&options);
    }
    own.properties = one("INNER_MULTI_DISPATCH\001%LMQ%a/b\002");
    refused(store, own, CMQ_ERR_TOPIC, "'/'");
    own.properties = one("INNER_MULTI_DISPATCH\001%LMQ%\xff\002");
    refused(store, own, CMQ_ERR_TOPIC, "UTF-8");
    kit_close(store);
}

static void inner_batches(void)
{
    static const char *const batch_topics[] = {"B"};
    cmq_store *store =
        open_with((cmq_store_options){.batch_topics = batch_topics, .batch_topic_count = 1, .lmq_enabled = true});
    char path[CMQ_PATH_BYTES];
    strcpy(path, store_root());
    cmq_append append = append_of("B", 1, one("three in one"));
    cmq_appended appended;
    append.common.sys_flag = CMQ_SYS_INNER_BATCH | CMQ_SYS_NEED_UNWRAP;
    append.properties = one("INNER_NUM\0013\002INNER_MULTI_DISPATCH\001%LMQ%x\002");
    CHECK_OK(cmq_store_append(store, &append, &appended));
    append.properties = one("INNER_NUM\00140\002");
    append.bodies = one("forty");
    CHECK_OK(cmq_store_append(store, &append, &appended));
    CHECK_INT(appended.first_queue_offset, 3);
    append.one_segment = true;
    append.count = 2;
    CHECK_OK(cmq_store_append(store, &append, &appended));
    CHECK_INT(appended.first_queue_offset, 43);
    append.one_segment = false;
    append.count = 1;
    for (int round = 0; round < 3; round++) {
        kit_found *found = kit_found_make(1);
        cmq_record_view view = read_one(store, found, "B", 0, 2);   /* inside the first */
        CHECK(kit_body_is(&found->items[0], "three in one"));
        CHECK_INT(found->items[0].queue_offset, 0);
        CHECK_INT(found->items[0].count, 3);
        view = read_one(store, found, "B", 0, 42);
        CHECK_INT(found->items[0].queue_offset, 3);
        check_property(&view, "INNER_BASE", "3");
        CHECK_INT(kit_max(store, "B", 0), 123);
        CHECK_TEXT(kit_read_topic(store, "%LMQ%x"), "three in one");
        kit_found_free(found);
        if (round == 0) cmq_store_abandon(store);
        else kit_close(store);
        if (round == 1) kit_remove_tree(kit_path(path, "batchconsumequeue"));
        cmq_store_options options = kit_options(path);
        options.batch_topics = batch_topics;
        options.batch_topic_count = 1;
        options.lmq_enabled = true;
        store = kit_open(&options);
    }
    append.properties = (cmq_column){0};
    refused(store, append, CMQ_ERR_ARGUMENT, "INNER_NUM");
    append.properties = one("INNER_NUM\0010\002");
    refused(store, append, CMQ_ERR_ARGUMENT, "INNER_NUM");
    append.properties = one("INNER_NUM\00199999999999999999999\002");
    refused(store, append, CMQ_ERR_ARGUMENT, "INNER_NUM");
    append.common.sys_flag = 0;
    append.properties = one("INNER_NUM\0013\002");
    refused(store, append, CMQ_ERR_ARGUMENT, "INNER_NUM");
    append.common.sys_flag = CMQ_SYS_INNER_BATCH;
    append.common.topic = kit_slice("Simple");
    refused(store, append, CMQ_ERR_ARGUMENT, "BatchCQ");
    kit_close(store);
}

/* ---- time, and the disk ---- */

static void clock_going_back(void)
{
    cmq_store *store = open_store();
    const int64_t now = kit_append(store, "T", 0, "a", NULL, "k").store_timestamp_ms;
    atomic_fetch_sub(&kit_now_ms, 5000);
    CHECK_INT(kit_append(store, "T", 0, "b", NULL, "k").store_timestamp_ms, now);
    atomic_fetch_add(&kit_now_ms, 5001);
    CHECK_INT(kit_append(store, "T", 0, "c", NULL, "k").store_timestamp_ms, now + 1);
    CHECK_TEXT(kit_read_topic(store, "T"), "a b c");
    kit_close(store);
}

/* Refused before anything was assigned, reads go on, and appends work again. */
static void full_disk(void)
{
    for (int mode = 0; mode < 2; mode++) {
        const char *root = kit_path(kit_directory(), "store");
        CHECK_OK(cmq_fs_make_directory(cmq_fs_posix(), root));
        cmq_file_twin *twin = cmq_file_twin_create(root, cmq_test_random());
        cmq_store_options options = kit_options(root);
        options.fs = cmq_file_twin_fs(twin);
        options.flush = mode == 0 ? CMQ_FLUSH_SYNC : CMQ_FLUSH_ASYNC;
        cmq_store *store = kit_open(&options);
        cmq_appended appended;
        cmq_store_info info;
        int failures = 0;
        for (int i = 0; i < 300; i++) {
            char body[100];
            snprintf(body, sizeof body, "m%d-with-some-more-bytes-so-that-segments-and-queue-files-fill", i);
            if (i % 10 == 5)
                cmq_file_twin_fail(
                    twin, &(cmq_twin_fault){.kind = CMQ_TWIN_RESERVE, .nth = 1, .times = 3, .sys_errno = ENOSPC});
            cmq_status status = kit_try_append(store, "T", 0, body, NULL, "k", &appended);
            while (status == CMQ_ERR_DISK_FULL) {
                CHECK_OK(cmq_store_info_of(store, &info));
                CHECK(!info.fenced);   /* whether it is still full, the look itself finds out */
                CHECK_INT(appended.count, 0);
                CHECK_INT(kit_max(store, "T", 0), i);
                failures++;
                status = kit_try_append(store, "T", 0, body, NULL, "k", &appended);
            }
            CHECK_OK(status);
            CHECK_INT(appended.first_queue_offset, i);
        }
        CHECK(failures > 0);
        CHECK_OK(cmq_store_info_of(store, &info));
        CHECK(!info.disk_full);
        kit_close(store);
        cmq_file_twin_close(twin);
    }
}

static void failed_sync_fences(void)
{
    const char *root = kit_path(kit_directory(), "store");
    CHECK_OK(cmq_fs_make_directory(cmq_fs_posix(), root));
    cmq_file_twin *twin = cmq_file_twin_create(root, cmq_test_random());
    cmq_store_options options = kit_options(root);
    options.fs = cmq_file_twin_fs(twin);
    cmq_store *store = kit_open(&options);
    cmq_appended appended;
    cmq_store_info info;
    kit_append(store, "T", 0, "kept", NULL, NULL);
    cmq_file_twin_fail(twin, &(cmq_twin_fault){.kind = CMQ_TWIN_SYNC, .nth = 1, .times = 1, .sys_errno = EIO});
    CHECK_STATUS(kit_try_append(store, "T", 0, "lost", NULL, NULL, &appended), CMQ_ERR_FENCED);
    CHECK(strstr(cmq_last_error()->text, "sync") != NULL);
    CHECK_STATUS(kit_try_append(store, "T", 0, "refused", NULL, NULL, &appended), CMQ_ERR_FENCED);
    CHECK_STATUS(cmq_store_flush(store), CMQ_ERR_FENCED);
    CHECK_STATUS(cmq_store_maintain(store, true), CMQ_ERR_FENCED);
    CHECK_OK(cmq_store_info_of(store, &info));
    CHECK(info.fenced);
    CHECK_TEXT(kit_read_topic(store, "T"), "kept");
    CHECK_STATUS(cmq_store_close(store), CMQ_ERR_FENCED);
    store = kit_open(&options);
    CHECK(kit_exists(kit_path(root, "abort")));
    kit_append(store, "T", 0, "again", NULL, NULL);
    kit_close(store);
    cmq_file_twin_close(twin);
}

/* A thread that also serves others gets an error when too much waits for the disk; earlier appends stand. */
static void never_wait_is_obeyed(void)
{
    enum { BODY = 1000, STAGING = 1 << 16 };
    static char body[BODY + 1];
    memset(body, 'x', BODY);
    cmq_store *store = open_store();
    cmq_store_set_staging(store, STAGING);
    cmq_append append = append_of("t", 1, one(body));
    append.no_wait = append.never_wait = true;
    cmq_appended appended;
    int64_t count = 0;
    cmq_status status;
    while ((status = cmq_store_append(store, &append, &appended)) == CMQ_OK) count++;
    CHECK_STATUS(status, CMQ_AGAIN);
    CHECK_INT(appended.count, 0);
    CHECK(count > STAGING / (BODY + 200) && count <= STAGING / BODY);
    CHECK_OK(cmq_store_flush(store));
    CHECK_OK(cmq_store_append(store, &append, &appended));
    CHECK_INT(appended.first_queue_offset, count);
    append.never_wait = false;
    for (int i = 0; i < 200; i++) CHECK_OK(cmq_store_append(store, &append, &appended));
    CHECK_OK(cmq_store_close(store));
}

CMQ_TEST_MAIN(CMQ_TEST(never_wait_is_obeyed), CMQ_TEST(every_kind_of_column), CMQ_TEST(arrow_offsets_from_outside),
              CMQ_TEST(fields_arrive), CMQ_TEST(born_when_stored), CMQ_TEST(property_crc_is_kept),
              CMQ_TEST(property_crc_behind_an_open_pair_is_a_proof),
              CMQ_TEST(transactions), CMQ_TEST(topics_that_are_refused), CMQ_TEST(values_that_are_refused),
              CMQ_TEST(failure_part_way), CMQ_TEST(batch_in_one_segment), CMQ_TEST(large_batch_in_one_segment),
              CMQ_TEST(many_messages_in_one_call), CMQ_TEST(light_queues), CMQ_TEST(inner_batches),
              CMQ_TEST(clock_going_back), CMQ_TEST(full_disk), CMQ_TEST(failed_sync_fences))
