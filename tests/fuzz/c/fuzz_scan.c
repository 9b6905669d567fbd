/* fuzz_scan: hostile records as Arrow columns, as a reader over the wire feeds them.
 *
 * Input: one byte of options, one that says where the records are cut into two pieces, then the records.
 *
 * Properties: every batch is valid Arrow whatever the records hold: offsets begin at 0 and rise, codes lie in their
 *             dictionary, texts are UTF-8.
 * Run:        by replay_main.c over corpus/scan and mutations of it; or with -fsanitize=fuzzer by clang.
 */
#include <stdlib.h>
#include <string.h>

#include "base/cmq_assert.h"
#include "base/cmq_utf8.h"
#include "export/cmq_scan.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define BATCHES_MAX 1000

enum { ALL_TAGS = 1, RAW = 2, SKIP = 4, FEW_ROWS = 8, DICTIONARIES = 16, FEW_BYTES = 32 };

/* Every second body is "decompressed" to itself, twice; the others are refused. */
static cmq_status decompress(void *context, int32_t sys_flag, cmq_slice stored, cmq_scan_room *room)
{
    (void)context;
    if (stored.bytes % 2 != 0) return cmq_fail(CMQ_ERR_CORRUPT, "no such data: %d", (int)sys_flag);
    uint8_t *into = cmq_scan_room_take(room, stored.bytes * 2);
    if (into == NULL) return cmq_fail(CMQ_ERR_TOO_LARGE, "too large");
    if (stored.bytes > 0) {
        memcpy(into, stored.data, stored.bytes);
        memcpy(into + stored.bytes, stored.data, stored.bytes);
    }
    return CMQ_OK;
}

static bool is_text(const char *format) { return format[0] == 'u'; }
static bool has_offsets(const char *format)
{
    return format[0] == 'u' || format[0] == 'z' || strcmp(format, "+m") == 0;
}

static void check_array(const struct ArrowSchema *schema, const struct ArrowArray *array)
{
    CMQ_ASSERT(array->length >= 0 && array->offset >= 0 && array->n_children == schema->n_children);
    if (has_offsets(schema->format) && array->dictionary == NULL) {
        const int32_t *offsets = array->buffers[1];
        for (int64_t i = 0; i < array->length; i++) CMQ_ASSERT(offsets[i] >= 0 && offsets[i] <= offsets[i + 1]);
        const uint8_t *text = array->n_buffers > 2 ? array->buffers[2] : NULL;
        for (int64_t i = 0; is_text(schema->format) && i < array->length; i++) {
            const size_t bytes = (size_t)(offsets[i + 1] - offsets[i]);
            if (bytes > 0) CMQ_ASSERT(cmq_utf8_is_valid((cmq_slice){.data = text + offsets[i], .bytes = bytes}));
        }
    }
    if (array->dictionary != NULL) {
        const uint8_t *valid = array->buffers[0];
        for (int64_t i = 0; i < array->length; i++) {
            const int32_t code = ((const int32_t *)array->buffers[1])[i];
            if (valid == NULL || (valid[i / 8] >> i % 8 & 1) != 0)
                CMQ_ASSERT(code >= 0 && code < array->dictionary->length);
        }
        check_array(schema->dictionary, array->dictionary);
    }
    for (int64_t i = 0; i < array->n_children; i++) check_array(schema->children[i], array->children[i]);
}

/* Every kind once. */
static uint32_t choose_columns(cmq_scan_column columns[CMQ_SCAN_KIND_COUNT], bool dictionaries)
{
    static char names[CMQ_SCAN_KIND_COUNT][4];
    for (int kind = 0; kind < CMQ_SCAN_KIND_COUNT; kind++) {
        names[kind][0] = 'c';
        names[kind][1] = (char)('A' + kind);
        const bool coded =
            dictionaries && (kind == CMQ_SCAN_TOPIC || kind == CMQ_SCAN_TAGS || kind == CMQ_SCAN_PROPERTY);
        const bool named = kind == CMQ_SCAN_PROPERTY || kind == CMQ_SCAN_CONSTANT;
        columns[kind] = (cmq_scan_column){
            .kind = (cmq_scan_kind)kind,
            .form = coded                   ? CMQ_SCAN_FORM_DICTIONARY
                    : kind == CMQ_SCAN_BODY ? CMQ_SCAN_FORM_PLAIN
                                            : CMQ_SCAN_FORM_DEFAULT,
            .name = names[kind],
            .property = named ? "UNIQ_KEY" : NULL,
        };
    }
    return CMQ_SCAN_KIND_COUNT;
}

static void read_batches(cmq_scan *scan, const struct ArrowSchema *schema)
{
    bool end;
    for (int i = 0; i < BATCHES_MAX; i++) {
        struct ArrowArray array = {0};
        const cmq_status status = cmq_scan_next(scan, &array, &end);
        if (status == CMQ_OK && array.release == NULL) return;
        if (status == CMQ_OK) {
            CMQ_ASSERT(array.length > 0);
            check_array(schema, &array);
            array.release(&array);
        } else {
            CMQ_ASSERT(array.release == NULL && cmq_last_error()->text[0] != 0);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    cmq_scan_column columns[CMQ_SCAN_KIND_COUNT];
    struct ArrowSchema schema = {0};
    cmq_scan *scan;
    if (size < 2) return 0;
    const uint8_t chosen = data[0];
    const size_t left = size - 2, first = left * data[1] / 255;
    const cmq_scan_options options = {
        .columns = columns,
        .column_count = choose_columns(columns, (chosen & DICTIONARIES) != 0),
        .batch_rows = (chosen & FEW_ROWS) != 0 ? 3 : 0,
        .batch_bytes = (chosen & FEW_BYTES) != 0 ? 64 : 0,
        .skip_corrupt = (chosen & SKIP) != 0,
        .raw_bodies = (chosen & RAW) != 0,
        .decompress = (chosen & ALL_TAGS) != 0 ? decompress : NULL,
    };
    const cmq_scan_piece pieces[2] = {
        {.data = data + 2, .bytes = first, .start = 0, .end = INT64_MAX},
        {.data = data + 2 + first, .bytes = left - first, .start = 1, .end = 1000, .offset_delta = 7},
    };
    CMQ_ASSERT(cmq_scan_open_fed(&options, &scan) == CMQ_OK);
    CMQ_ASSERT(cmq_scan_schema(scan, &schema) == CMQ_OK);
    for (int round = 0; round < 2; round++) {
        if (cmq_scan_feed(scan, pieces, 2) != CMQ_OK) break;
        read_batches(scan, &schema);
    }
    cmq_scan_close(scan);
    schema.release(&schema);
    return 0;
}
