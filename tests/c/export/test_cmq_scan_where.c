/* Tests the filter by an SQL92 expression in csrc/export/: plain records, inner batches, compressed bodies, keys and
 * tags beside it, fed records, damage, and pauses.
 */
#include <stdio.h>
#include <string.h>

#include "export/cmq_scan_internal.h"
#include "store/record/cmq_wire_batch.h"
#include "support/cmq_store_kit.h"

static const cmq_scan_column columns[] = {{.kind = CMQ_SCAN_BODY, .form = CMQ_SCAN_FORM_PLAIN, .name = "body"}};

static cmq_store *store;
static char root[CMQ_PATH_BYTES];
static cmq_selector *where;
static int inflated;              /* bodies that the hook decompressed */

static void start(const char *expression)
{
    static const char *const batch_topics[] = {"B"};
    CHECK_OK(cmq_path_join(root, kit_directory(), "store"));
    kit_set_clock();
    cmq_store_options options = kit_options(root);
    options.batch_topics = batch_topics;
    options.batch_topic_count = 1;
    store = kit_open(&options);
    CHECK_OK(cmq_selector_compile(cmq_slice_of_text(expression), &where, NULL));
    inflated = 0;
}

static void stop(void)
{
    kit_close(store);
    cmq_selector_free(where);
}

static cmq_column one(cmq_slice value) { return (cmq_column){.kind = CMQ_COLUMN_ONE, .one = value}; }

/* `properties`: as stored. */
static void append(const char *topic, int32_t sys_flag, cmq_slice body, const char *properties)
{
    cmq_append call = {.count = 1};
    call.common.topic = cmq_slice_of_text(topic);
    call.common.sys_flag = sys_flag;
    call.common.store_host = call.common.born_host = (cmq_record_host){.address = {127, 0, 0, 1}, .port = 1};
    call.bodies = one(body);
    call.properties = one(cmq_slice_of_text(properties));
    cmq_appended appended;
    CHECK_OK(cmq_store_append(store, &call, &appended));
}

static void append_text(const char *topic, const char *body, const char *properties)
{
    append(topic, 0, cmq_slice_of_text(body), properties);
}

/* Messages whose bodies are their letters, each with n = its place. */
static void append_batch(const char *topic, int32_t sys_flag, const char *letters)
{
    uint8_t wire[1024], *at = wire;
    for (int i = 0; letters[i] != '\0'; i++) {
        char properties[32];
        snprintf(properties, sizeof properties, "n\001%d\002", i);
        const cmq_wire_batch_element element = {.body = {.data = (const uint8_t *)letters + i, .bytes = 1},
                                                .properties = cmq_slice_of_text(properties)};
        at = cmq_wire_batch_write(at, &element);
    }
    char count[32];
    snprintf(count, sizeof count, "INNER_NUM\001%zu\002", strlen(letters));
    append(topic, sys_flag | CMQ_SYS_INNER_BATCH, (cmq_slice){.data = wire, .bytes = (size_t)(at - wire)}, count);
}

/* "Compressed" is as it is. */
static cmq_status inflate(void *context, int32_t sys_flag, cmq_slice stored, cmq_scan_room *room)
{
    (void)context;
    CHECK((sys_flag & CMQ_SYS_COMPRESSED) != 0);
    uint8_t *into = cmq_scan_room_take(room, stored.bytes);
    CHECK(into != NULL);
    memcpy(into, stored.data, stored.bytes);
    inflated++;
    return CMQ_OK;
}

static cmq_scan_options options_of(const cmq_slice *topic)
{
    return (cmq_scan_options){.read = {.topics = topic, .topic_count = 1, .where = where},
                              .columns = columns,
                              .column_count = 1,
                              .decompress = inflate};
}

/* The bodies of a scan, one behind the other; closes it. */
static const char *bodies_of(cmq_scan *scan)
{
    static char text[512];
    size_t used = 0;
    for (;;) {
        struct ArrowArray batch;
        bool end;
        const cmq_status status = cmq_scan_next(scan, &batch, &end);
        if (status == CMQ_AGAIN) continue;
        CHECK_OK(status);
        if (batch.release == NULL) break;
        const int32_t *offsets = batch.children[0]->buffers[1];
        const size_t bytes = (size_t)offsets[batch.length];
        CHECK(used + bytes < sizeof text);
        memcpy(text + used, batch.children[0]->buffers[2], bytes);
        used += bytes;
        batch.release(&batch);
    }
    cmq_scan_close(scan);
    text[used] = '\0';
    return text;
}

static const char *found(const cmq_scan_options *options)
{
    cmq_scan *scan;
    CHECK_OK(cmq_scan_open(store, options, &scan));
    return bodies_of(scan);
}

static void rows_match_the_expression(void)
{
    start("n > 1");
    for (int i = 0; i < 6; i++) {
        char body[2] = {(char)('a' + i), '\0'}, properties[64];
        snprintf(properties, sizeof properties, "n\001%d\002KEYS\001k%d\002TAGS\001%s\002", i, i % 2,
                 i % 3 == 0 ? "t" : "u");
        append_text("A", body, properties);
    }
    append_text("A", "-", "n\001two\002");
    append_text("A", "-", "");
    const cmq_slice topic = kit_slice("A"), key = kit_slice("k1"), tag = kit_slice("t");
    cmq_scan_options options = options_of(&topic);
    CHECK_TEXT(found(&options), "cdef");
    options.check_crc = true;
    CHECK_TEXT(found(&options), "cdef");
    options.limit_rows = 3;
    CHECK_TEXT(found(&options), "cde");
    options = options_of(&topic);
    options.batch_rows = 1;
    CHECK_TEXT(found(&options), "cdef");
    options.read.has_start = true;
    options.read.start = 4;
    CHECK_TEXT(found(&options), "ef");
    options = options_of(&topic);
    options.keys = &key;
    options.key_count = 1;
    CHECK_TEXT(found(&options), "df");
    options.read.tags = &tag;
    options.read.tag_count = 1;
    CHECK_TEXT(found(&options), "d");
    options.key_count = 0;
    CHECK_TEXT(found(&options), "d");
    options = options_of(&topic);
    options.read.topic_count = 0;
    CHECK_TEXT(found(&options), "cdef");
    stop();
}

static void messages_of_inner_batches_match_one_by_one(void)
{
    start("n BETWEEN 1 AND 2");
    append_batch("B", 0, "abcd");
    append_batch("B", CMQ_SYS_COMPRESSED, "efg");
    append_batch("B", 0, "h");
    append_batch("B", CMQ_SYS_COMPRESSED, "i");
    const cmq_slice topic = kit_slice("B");
    cmq_scan_options options = options_of(&topic);
    CHECK_TEXT(found(&options), "bcfg");
    CHECK_INT(inflated, 2);
    /* As one row each: where a message matches; compressed ones are inflated to see. */
    static const cmq_scan_column offset = {.kind = CMQ_SCAN_QUEUE_OFFSET, .name = "o"};
    options.raw_bodies = true;
    options.columns = &offset;
    cmq_scan *scan;
    struct ArrowArray batch;
    bool end;
    CHECK_OK(cmq_scan_open(store, &options, &scan));
    CHECK_OK(cmq_scan_next(scan, &batch, &end));
    const int64_t *offsets = batch.children[0]->buffers[1];
    CHECK(batch.length == 2 && offsets[0] == 0 && offsets[1] == 4);
    batch.release(&batch);
    cmq_scan_close(scan);
    stop();
}

static void bodies_that_do_not_match_stay_compressed(void)
{
    start("n = 2");
    for (int i = 0; i < 4; i++) {
        char properties[32];
        snprintf(properties, sizeof properties, "n\001%d\002", i);
        append("A", CMQ_SYS_COMPRESSED, cmq_slice_of_text("x"), properties);
    }
    const cmq_slice topic = kit_slice("A");
    const cmq_scan_options options = options_of(&topic);
    CHECK_TEXT(found(&options), "x");
    CHECK_INT(inflated, 1);
    stop();
}

static void fed_records_match_the_expression(void)
{
    start("n > 0");
    append_text("A", "a", "n\0010\002");
    append_text("A", "b", "n\0011\002");
    append_batch("B", 0, "cd");
    uint8_t bytes[2048];
    size_t used = 0;
    cmq_found items[3];
    cmq_found_batch batch = {.items = items, .capacity = 3};
    cmq_reader *reader;
    bool end;
    CHECK_OK(cmq_reader_open(store, &(cmq_read_options){0}, &reader));
    CHECK_OK(cmq_reader_next(reader, &batch, &end));
    CHECK_INT(batch.count, 3);
    for (uint32_t i = 0; i < batch.count; i++) {
        memcpy(bytes + used, items[i].record, items[i].record_bytes);
        used += items[i].record_bytes;
    }
    cmq_found_batch_release(&batch);
    cmq_reader_close(reader);
    cmq_scan *scan;
    const cmq_scan_options options = options_of(NULL);
    const cmq_scan_piece piece = {.data = bytes, .bytes = used, .end = INT64_MAX};
    CHECK_OK(cmq_scan_open_fed(&options, &scan));
    CHECK_OK(cmq_scan_feed(scan, &piece, 1));
    CHECK_TEXT(bodies_of(scan), "bd");
    stop();
}

/* A scan that filters for long pauses in between; a long expression pauses it earlier. */
static void scans_pause_while_nothing_matches(void)
{
    start("n > 98");
    for (int i = 0; i < 100; i++) {
        char properties[32];
        snprintf(properties, sizeof properties, "n\001%d\002", i);
        append_text("A", "x", properties);
    }
    const cmq_slice topic = kit_slice("A");
    cmq_scan_options options = options_of(&topic);
    cmq_scan *scan;
    struct ArrowArray batch;
    bool end;
    int pauses = 0;
    CHECK_OK(cmq_scan_open(store, &options, &scan));
    scan->passed_max = 30;
    while (cmq_scan_next(scan, &batch, &end) == CMQ_AGAIN) pauses++;
    CHECK(pauses == 3 && batch.length == 1);
    batch.release(&batch);
    cmq_scan_close(scan);

    char chain[4096] = "n = 0";
    for (size_t used = strlen(chain); used + 9 < sizeof chain; used += 9) memcpy(chain + used, " OR n = 0", 10);
    cmq_selector_free(where);
    CHECK_OK(cmq_selector_compile(cmq_slice_of_text(chain), &where, NULL));
    options.read.where = where;
    CHECK_OK(cmq_scan_open(store, &options, &scan));
    CHECK_OK(cmq_scan_next(scan, &batch, &end));
    CHECK_INT(batch.length, 1);
    CHECK(scan->passed > 500);
    batch.release(&batch);
    cmq_scan_close(scan);
    stop();
}

/* Work on long properties counts, also where the message matches. */
static void scans_pause_between_long_evaluations(void)
{
    char text[10000];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    char properties[sizeof text + 8];
    snprintf(properties, sizeof properties, "t\001%s\002", text);
    for (int raw = 0; raw < 2; raw++) {
        start("t CONTAINS 'xy' OR t CONTAINS 'yx' OR t IS NOT NULL");
        for (int i = 0; i < 20; i++) append_text("A", "m", properties);
        const cmq_slice topic = kit_slice("A");
        cmq_scan_options options = options_of(&topic);
        options.raw_bodies = raw == 1;
        cmq_scan *scan;
        bool end = false;
        int rows = 0, batches = 0;
        CHECK_OK(cmq_scan_open(store, &options, &scan));
        scan->passed_max = 50;
        for (;;) {
            struct ArrowArray batch;
            const cmq_status status = cmq_scan_next(scan, &batch, &end);
            if (status == CMQ_AGAIN) continue;
            CHECK_OK(status);
            if (batch.release == NULL) break;
            rows += (int)batch.length;
            batches++;
            batch.release(&batch);
        }
        CHECK_INT(rows, 20);
        CHECK(batches >= 5);
        cmq_scan_close(scan);
        stop();
    }
}

/* Damage fails the scan also where the filter would pass the record over. */
static void damage_is_reported_whether_it_matches_or_not(void)
{
    start("n > 0");
    append_text("A", "a", "n\0011\002");
    append_text("A", "b", "n\0010\002");
    append_text("A", "c", "n\0011\002");
    cmq_found item;
    cmq_found_batch second = {.items = &item, .capacity = 1};
    CHECK_OK(cmq_store_read_offset(store, kit_slice("A"), 0, 1, &second));
    const int64_t phy = item.physical_offset;
    cmq_found_batch_release(&second);
    kit_close(store);
    kit_flip(kit_path(root, "commitlog/00000000000000000000"), phy + 84, 0x40);   /* the body's length */
    cmq_store_options view = kit_options(root);
    view.read_only = true;
    store = kit_open(&view);

    const cmq_slice topic = kit_slice("A");
    cmq_scan_options options = options_of(&topic);
    bool end;
    cmq_scan *scan;
    struct ArrowArray batch;
    CHECK_OK(cmq_scan_open(store, &options, &scan));
    CHECK_OK(cmq_scan_next(scan, &batch, &end));
    CHECK_INT(batch.length, 1);
    batch.release(&batch);
    CHECK_STATUS(cmq_scan_next(scan, &batch, &end), CMQ_ERR_CORRUPT);
    CHECK_TEXT(bodies_of(scan), "c");
    options.skip_corrupt = true;
    CHECK_TEXT(found(&options), "ac");
    stop();
}

CMQ_TEST_MAIN(CMQ_TEST(rows_match_the_expression), CMQ_TEST(messages_of_inner_batches_match_one_by_one),
              CMQ_TEST(bodies_that_do_not_match_stay_compressed), CMQ_TEST(fed_records_match_the_expression),
              CMQ_TEST(scans_pause_while_nothing_matches),
              CMQ_TEST(scans_pause_between_long_evaluations), CMQ_TEST(damage_is_reported_whether_it_matches_or_not))
