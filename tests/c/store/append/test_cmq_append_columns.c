/* Tests csrc/store/append/cmq_append.c: each column of a batch gives every message its own value, whatever the others
 * do. */
#include <string.h>

#include "support/cmq_store_kit.h"

#define TEXTS_MAX 3u

static cmq_slice first_texts[TEXTS_MAX], second_texts[TEXTS_MAX];

static cmq_column slices(cmq_slice into[TEXTS_MAX], const char *a, const char *b, const char *c)
{
    const char *texts[TEXTS_MAX] = {a, b, c};
    for (uint32_t i = 0; i < TEXTS_MAX; i++) into[i] = cmq_slice_of_text(texts[i]);
    return (cmq_column){.kind = CMQ_COLUMN_SLICES, .slices = into};
}

static cmq_append batch_of(uint32_t count)
{
    return (cmq_append){.common = {.topic = cmq_slice_of_text("T")}, .count = count,
                        .bodies = {.kind = CMQ_COLUMN_ONE, .one = cmq_slice_of_text("body")}};
}

static cmq_record_view read_at(cmq_store *store, kit_found *found, int64_t offset)
{
    cmq_found_batch_release(&found->batch);
    CHECK_OK(cmq_store_read_offset(store, cmq_slice_of_text("T"), 0, offset, &found->batch));
    return kit_view(&found->items[0]);
}

static void check_value(const cmq_record_view *view, const char *name, const char *expected)
{
    cmq_slice value;
    CHECK(cmq_property_find(view->properties, cmq_slice_of_text(name), &value));
    CHECK(cmq_slice_equal(value, cmq_slice_of_text(expected)));
}

static bool has_crc(const cmq_record_view *view)
{
    cmq_slice value;
    return cmq_property_find(view->properties, cmq_slice_of_text("__CRC32#"), &value);
}

static void both_columns_of_properties_vary(void)
{
    static const char *const x[] = {"1", "2", "3"}, *const y[] = {"a", "b", "c"};
    kit_set_clock();
    cmq_store *store = kit_open_at(kit_path(kit_directory(), "store"));
    kit_found *found = kit_found_make(1);
    cmq_append batch = batch_of(3);
    cmq_appended appended;
    batch.properties = slices(first_texts, "x\x01" "1\x02", "x\x01" "2\x02", "x\x01" "3\x02");
    batch.properties_more = slices(second_texts, "y\x01" "a\x02", "y\x01" "b\x02", "y\x01" "c\x02");
    CHECK_OK(cmq_store_append(store, &batch, &appended));
    for (int64_t offset = 0; offset < 3; offset++) {
        const cmq_record_view view = read_at(store, found, offset);
        check_value(&view, "x", x[offset]);
        check_value(&view, "y", y[offset]);
    }
    kit_found_free(found);
    kit_close(store);
}

/* A zero byte in the properties makes a record's end unproven without their CRC, so that record has one; its neighbours
 * do not. */
static void check_crc_of_zeros(cmq_store *store, kit_found *found, const cmq_append *batch)
{
    cmq_appended appended;
    CHECK_OK(cmq_store_append(store, batch, &appended));
    for (uint32_t i = 0; i < 3; i++) {
        const cmq_record_view view = read_at(store, found, appended.first_queue_offset + i);
        CHECK_INT(has_crc(&view), i == 1);
    }
}

static void zero_bytes_of_one_column_alone_get_a_crc(void)
{
    kit_set_clock();
    cmq_store *store = kit_open_at(kit_path(kit_directory(), "store"));
    kit_found *found = kit_found_make(1);
    cmq_append keys = batch_of(3), properties = batch_of(3), more = batch_of(3);
    keys.keys = slices(first_texts, "k", "k", "k");
    first_texts[1] = (cmq_slice){.data = (const uint8_t *)"\0", .bytes = 1};
    check_crc_of_zeros(store, found, &keys);
    properties.properties = slices(first_texts, "x\x01" "1\x02", "", "x\x01" "1\x02");
    first_texts[1] = (cmq_slice){.data = (const uint8_t *)"x\x01\0\x02", .bytes = 4};
    check_crc_of_zeros(store, found, &properties);
    more.properties = slices(first_texts, "x\x01" "1\x02", "x\x01" "1\x02", "x\x01" "1\x02");
    more.properties_more = slices(second_texts, "", "", "");
    second_texts[1] = (cmq_slice){.data = (const uint8_t *)"y\x01\0\x02", .bytes = 4};
    check_crc_of_zeros(store, found, &more);
    kit_found_free(found);
    kit_close(store);
}

CMQ_TEST_MAIN(CMQ_TEST(both_columns_of_properties_vary), CMQ_TEST(zero_bytes_of_one_column_alone_get_a_crc))
