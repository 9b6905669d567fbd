/* Tests csrc/export/cmq_scan_fed.c: rows of records that are brought, their ranges, tags, keys, inner batches, and what
 * is no record. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "export/cmq_scan_internal.h"
#include "store/record/cmq_wire_batch.h"
#include "support/cmq_store_kit.h"

static const cmq_scan_column columns[] = {{.kind = CMQ_SCAN_QUEUE_OFFSET, .name = "offset"},
                                          {.kind = CMQ_SCAN_BODY, .form = CMQ_SCAN_FORM_PLAIN, .name = "body"},
                                          {.kind = CMQ_SCAN_TOPIC, .name = "topic"}};

/* ---- records ---- */

static uint8_t log_bytes[1 << 16];
static size_t log_used;

static void add_record(int64_t queue_offset, int32_t sys_flag, cmq_slice body, const char *properties)
{
    cmq_record_fields fields = {.topic = kit_slice("T"),
                                .body = body,
                                .properties = kit_slice(properties),
                                .queue_offset = queue_offset,
                                .physical_offset = (int64_t)log_used,
                                .sys_flag = sys_flag};
    cmq_record_sizes sizes;
    CHECK_OK(cmq_record_measure(&fields, &sizes));
    CHECK(log_used + sizes.record_bytes <= sizeof log_bytes);
    cmq_record_encode(log_bytes + log_used, &fields, &sizes);
    log_used += sizes.record_bytes;
}

static void add(int64_t queue_offset, const char *body, const char *properties)
{
    add_record(queue_offset, 0, kit_slice(body), properties);
}

static void add_batch(int64_t queue_offset, int count)
{
    uint8_t wire[4096], *at = wire;
    for (int i = 0; i < count; i++) {
        char body[32], properties[32];
        snprintf(body, sizeof body, "e%d", i);
        snprintf(properties, sizeof properties, "TAGS\001t%d\002", i % 2);
        const cmq_wire_batch_element element = {.body = kit_slice(body), .properties = kit_slice(properties)};
        at = cmq_wire_batch_write(at, &element);
    }
    add_record(queue_offset, CMQ_SYS_INNER_BATCH, (cmq_slice){.data = wire, .bytes = (size_t)(at - wire)}, "");
}

static cmq_scan_piece piece(int64_t start, int64_t end)
{
    /* Of its own size, so that a sanitizer sees a byte too far. */
    uint8_t *copy = malloc(log_used > 0 ? log_used : 1);
    CHECK(copy != NULL);
    memcpy(copy, log_bytes, log_used);
    const cmq_scan_piece made = {.data = copy, .bytes = log_used, .start = start, .end = end};
    log_used = 0;
    return made;
}

/* ---- rows ---- */

static cmq_scan *open_fed(cmq_scan_options options)
{
    cmq_scan *scan;
    options.columns = columns;
    options.column_count = 3;
    CHECK_OK(cmq_scan_open_fed(&options, &scan));
    return scan;
}

/* "offset:body …", a bar between batches, "!" for damage. Static memory. */
static const char *rows_of(cmq_scan *scan)
{
    static char text[65536];
    size_t used = 0;
    text[0] = '\0';
    for (;;) {
        struct ArrowArray batch;
        bool end;
        const cmq_status status = cmq_scan_next(scan, &batch, &end);
        CHECK(!end);
        if (status == CMQ_ERR_CORRUPT || status == CMQ_ERR_SETTING) {
            used +=
                (size_t)snprintf(text + used, sizeof text - used, status == CMQ_ERR_CORRUPT ? "! " : "compressed! ");
            continue;
        }
        CHECK_OK(status);
        if (batch.release == NULL) break;
        const int64_t *offsets = batch.children[0]->buffers[1];
        const int32_t *ends = batch.children[1]->buffers[1];
        const char *bytes = batch.children[1]->buffers[2];
        for (int64_t i = 0; i < batch.length; i++)
            used += (size_t)snprintf(text + used, sizeof text - used, "%lld:%.*s ", (long long)offsets[i],
                                     (int)(ends[i + 1] - ends[i]), bytes + ends[i]);
        used += (size_t)snprintf(text + used, sizeof text - used, "| ");
        const int32_t *topics = batch.children[2]->buffers[1];
        for (int64_t i = 0; i < batch.length; i++) CHECK(topics[i] >= 0 && topics[i] <= topics[i + 1]);
        batch.release(&batch);
    }
    if (used > 0) text[used - 1] = '\0';
    return text;
}

static const char *fed(cmq_scan_options options, cmq_scan_piece given)
{
    cmq_scan *scan = open_fed(options);
    CHECK_OK(cmq_scan_feed(scan, &given, 1));
    const char *text = rows_of(scan);
    cmq_scan_close(scan);
    free((void *)(uintptr_t)given.data);
    return text;
}

/* ---- tests ---- */

static void ranges(void)
{
    for (int i = 0; i < 5; i++) add(10 + i, i % 2 == 0 ? "even" : "odd", "");
    CHECK_TEXT(fed((cmq_scan_options){0}, piece(11, 14)), "11:odd 12:even 13:odd |");
    add(10, "a", "");
    cmq_scan_piece moved = piece(110, 111);
    moved.offset_delta = 100;
    CHECK_TEXT(fed((cmq_scan_options){0}, moved), "110:a |");
    add(INT64_MAX, "a", "");
    moved = piece(0, INT64_MAX);
    moved.offset_delta = INT64_MAX;   /* wraps to what is below 0 */
    CHECK_TEXT(fed((cmq_scan_options){0}, moved), "");
    CHECK_TEXT(fed((cmq_scan_options){0}, piece(0, 9)), "");
}

static void inner_batches(void)
{
    add_batch(5, 4);
    add(9, "single", "TAGS\001t1\002");
    CHECK_TEXT(fed((cmq_scan_options){0}, piece(0, 100)), "5:e0 6:e1 7:e2 8:e3 9:single |");
    add_batch(5, 4);
    add(9, "single", "");
    CHECK_TEXT(fed((cmq_scan_options){0}, piece(6, 8)), "6:e1 7:e2 |");
    add_batch(5, 4);
    CHECK_TEXT(fed((cmq_scan_options){0}, piece(50, 60)), "");
    const cmq_slice tag = kit_slice("t1");
    add_batch(5, 4);
    add(9, "single", "TAGS\001t1\002");
    add(10, "none", "");
    CHECK_TEXT(fed((cmq_scan_options){.read = {.tags = &tag, .tag_count = 1}}, piece(0, 100)), "6:e1 8:e3 9:single |");
}

static void keys_and_batches(void)
{
    const cmq_slice keys[] = {kit_slice("k1"), kit_slice("k3")};
    for (int i = 0; i < 5; i++) {
        char properties[32];
        snprintf(properties, sizeof properties, "KEYS\001x k%d\002", i);
        add(i, "b", properties);
    }
    CHECK_TEXT(fed((cmq_scan_options){.keys = keys, .key_count = 2}, piece(0, 5)), "1:b 3:b |");
    for (int i = 0; i < 5; i++) add(i, "body", "");
    CHECK_TEXT(fed((cmq_scan_options){.batch_rows = 2}, piece(0, 5)), "0:body 1:body | 2:body 3:body | 4:body |");
    for (int i = 0; i < 5; i++) add(i, "body", "");
    CHECK_TEXT(fed((cmq_scan_options){.batch_bytes = 12}, piece(0, 5)), "0:body 1:body 2:body | 3:body 4:body |");
}

static void damage(void)
{
    add(0, "a", "");
    add(1, "b", "");
    log_bytes[log_used++] = 7;   /* an answer that was cut */
    CHECK_TEXT(fed((cmq_scan_options){0}, piece(0, 9)), "0:a 1:b | !");
    add(0, "a", "");
    const size_t second = log_used;
    add(1, "b", "");
    add(2, "c", "");
    log_bytes[second + 4] ^= 0xFF;   /* its magic: nobody knows where the next one is */
    cmq_scan_piece pieces[2] = {piece(0, 9), {0}};
    add(3, "d", "");
    pieces[1] = piece(0, 9);
    cmq_scan *scan = open_fed((cmq_scan_options){0});
    CHECK_OK(cmq_scan_feed(scan, pieces, 2));
    CHECK_TEXT(rows_of(scan), "0:a | ! 3:d |");
    cmq_scan_close(scan);
    scan = open_fed((cmq_scan_options){.skip_corrupt = true});
    CHECK_OK(cmq_scan_feed(scan, pieces, 2));
    CHECK_TEXT(rows_of(scan), "0:a 3:d |");
    cmq_scan_skipped skipped;
    uint32_t count;
    cmq_scan_skipped_of(scan, &skipped, NULL, 0, &count);
    CHECK_INT(skipped.records, 1);
    cmq_scan_close(scan);
    free((void *)(uintptr_t)pieces[0].data);
    free((void *)(uintptr_t)pieces[1].data);
}

/* A record of known size whose properties end beside it: the next one is read. */
static void a_tail_that_does_not_fit_is_damage(void)
{
    add(0, "a", "");
    add(1, "b", "");
    log_bytes[log_used - 1] = 5;   /* the length of its properties, of which there are none */
    add(2, "c", "");
    CHECK_TEXT(fed((cmq_scan_options){0}, piece(0, 9)), "0:a | ! 2:c |");
}

/* Every byte of a record changed, and every length of an answer: rows or an error, and nothing is read outside. */
static void hostile_pieces(void)
{
    for (size_t cut = 0; cut < 400; cut++) {
        add(0, "body", "KEYS\001k\002");
        add_batch(1, 3);
        const size_t bytes = log_used;
        if (cut < bytes) {
            cmq_scan_piece given = piece(0, 9);
            given.bytes = cut;
            fed((cmq_scan_options){0}, given);
        }
        log_used = 0;
        for (int bits = 1; bits < 256 && cut < bytes; bits = bits * 2 + 1) {
            add(0, "body", "KEYS\001k\002");
            add_batch(1, 3);
            log_bytes[cut] ^= (uint8_t)bits;
            fed((cmq_scan_options){0}, piece(0, 9));
        }
    }
}

static void refused_feeds(void)
{
    cmq_scan *scan;
    const cmq_scan_column view = {.kind = CMQ_SCAN_BODY, .name = "body"};
    CHECK_STATUS(cmq_scan_open_fed(&(cmq_scan_options){.columns = &view, .column_count = 1}, &scan), CMQ_ERR_ARGUMENT);
    CHECK_STATUS(cmq_scan_open_fed(&(cmq_scan_options){0}, &scan), CMQ_ERR_ARGUMENT);
    const cmq_slice none = {0};
    CHECK_STATUS(
        cmq_scan_open_fed(
            &(cmq_scan_options){.columns = columns, .column_count = 1, .read = {.tags = &none, .tag_count = 1}}, &scan),
        CMQ_ERR_ARGUMENT);
    add(0, "a", "");
    cmq_scan_piece given = piece(0, 9);
    scan = open_fed((cmq_scan_options){0});
    CHECK_OK(cmq_scan_feed(scan, &given, 1));
    CHECK_STATUS(cmq_scan_feed(scan, &given, 1), CMQ_ERR_ARGUMENT);   /* the first is not read yet */
    CHECK_TEXT(rows_of(scan), "0:a |");
    CHECK_OK(cmq_scan_feed(scan, &given, 1));
    CHECK_TEXT(rows_of(scan), "0:a |");
    CHECK_OK(cmq_scan_feed(scan, NULL, 0));
    CHECK_TEXT(rows_of(scan), "");
    cmq_scan_close(scan);
    free((void *)(uintptr_t)given.data);
}

CMQ_TEST_MAIN(CMQ_TEST(ranges), CMQ_TEST(inner_batches), CMQ_TEST(keys_and_batches), CMQ_TEST(damage),
              CMQ_TEST(a_tail_that_does_not_fit_is_damage),
              CMQ_TEST(hostile_pieces), CMQ_TEST(refused_feeds))
