/* Tests csrc/export/cmq_scan_request.c: requests come through whole; cut and changed ones are refused, or are requests.
 */
#include <stdlib.h>
#include <string.h>

#include "export/cmq_scan_request.h"
#include "support/cmq_store_kit.h"

static uint8_t bytes[512];
static size_t used;

static void put(const void *data, size_t count)
{
    CHECK(count <= sizeof bytes - used);
    memcpy(bytes + used, data, count);
    used += count;
}

static void put_u8(uint8_t value) { put(&value, sizeof value); }
static void put_u32(uint32_t value) { put(&value, sizeof value); }
static void put_i64(int64_t value) { put(&value, sizeof value); }

static void put_text(const char *text)
{
    put_u32((uint32_t)strlen(text));
    put(text, strlen(text) + 1);
}

static void put_request(void)
{
    used = 0;
    put_u32(CMQ_SCAN_REQUEST_VERSION);
    put_u32(2);
    put_u8(CMQ_SCAN_QUEUE_OFFSET), put_u8(0), put_text("");
    put_u8(CMQ_SCAN_PROPERTY), put_u8(CMQ_SCAN_FORM_PLAIN), put_text("region");
    put_u32(1);
    put_text("orders"), put_u32(0), put_i64(1), put_i64(3);
    put_u32(2), put_text("paid"), put_text("new");
    put_u32(1), put_text("o-17");
    put_text("price > 10");
    put_u8(CMQ_SCAN_REQUEST_SKIP_CORRUPT | CMQ_SCAN_REQUEST_END_TIME | CMQ_SCAN_REQUEST_WHERE);
    put_i64(0), put_i64(99), put_u32(10), put_u32(20), put_i64(30);
}

/* In memory of its own of that size, so that a sanitizer sees a byte too far. */
static cmq_status read_copy(size_t count, cmq_store *store)
{
    uint8_t *copy = malloc(count + (count == 0));
    if (count > 0) memcpy(copy, bytes, count);
    cmq_scan_request request;
    cmq_status status = cmq_scan_request_read((cmq_slice){.data = copy, .bytes = count}, &request);
    if (status == CMQ_OK && store != NULL) {
        cmq_scan *scan;
        const cmq_status opened = cmq_scan_open(store, &request.options, &scan);
        if (opened == CMQ_OK) cmq_scan_close(scan);
    }
    cmq_scan_request_free(&request);
    free(copy);
    return status;
}

static void whole_requests_come_through(void)
{
    put_request();
    cmq_scan_request request;
    CHECK_OK(cmq_scan_request_read((cmq_slice){.data = bytes, .bytes = used}, &request));
    const cmq_scan_options *options = &request.options;
    CHECK_INT(options->column_count, 2);
    CHECK(options->columns[0].kind == CMQ_SCAN_QUEUE_OFFSET && strcmp(options->columns[0].name, "0") == 0);
    CHECK(options->columns[1].form == CMQ_SCAN_FORM_PLAIN && strcmp(options->columns[1].property, "region") == 0);
    CHECK(options->read.only_starts && options->read.start_count == 1);
    const cmq_read_start *range = &options->read.starts[0];
    CHECK(cmq_slice_equal(range->topic, kit_slice("orders")) && range->offset == 1);
    CHECK(range->has_end && range->end == 3);
    CHECK(options->read.tag_count == 2 && cmq_slice_equal(options->read.tags[1], kit_slice("new")));
    CHECK(options->key_count == 1 && cmq_slice_equal(options->keys[0], kit_slice("o-17")));
    CHECK(options->skip_corrupt && !options->read.has_start_time && options->read.has_end_time);
    CHECK(request.has_where && cmq_slice_equal(request.where, kit_slice("price > 10")));
    CHECK_INT(options->read.end_time_ms, 99);
    CHECK(options->batch_rows == 10 && options->batch_bytes == 20 && options->limit_rows == 30);
    cmq_scan_request_free(&request);
}

static void cut_and_changed_requests_are_harmless(void)
{
    char root[CMQ_PATH_BYTES];
    CHECK_OK(cmq_path_join(root, kit_directory(), "store"));
    kit_set_clock();
    cmq_store *store = kit_open_at(root);
    kit_append_many(store, "orders", "body", 5);
    put_request();
    const size_t whole = used;
    for (size_t count = 0; count < whole; count++) CHECK_STATUS(read_copy(count, NULL), CMQ_ERR_ARGUMENT);
    for (size_t at = 0; at < whole; at++) {
        for (int value = 0; value < 256; value++) {
            put_request();
            bytes[at] = (uint8_t)value;
            const cmq_status status = read_copy(whole, store);
            CHECK(status == CMQ_OK || status == CMQ_ERR_ARGUMENT || status == CMQ_ERR_LIMIT);
        }
    }
    put_request();
    put_u8(0);
    CHECK_STATUS(read_copy(used, NULL), CMQ_ERR_ARGUMENT);
    kit_close(store);
}

static void counts_beyond_the_bytes_are_refused(void)
{
    for (uint32_t count = 1; count != 0; count <<= 1) {
        used = 0;
        put_u32(CMQ_SCAN_REQUEST_VERSION);
        put_u32(count);
        CHECK_STATUS(read_copy(used, NULL), CMQ_ERR_ARGUMENT);
    }
}

CMQ_TEST_MAIN(CMQ_TEST(whole_requests_come_through), CMQ_TEST(cut_and_changed_requests_are_harmless),
              CMQ_TEST(counts_beyond_the_bytes_are_refused))
