/* cmq_scan_request: see cmq_scan_request.h. */
#include "export/cmq_scan_request.h"

#include <stdio.h>
#include <stdlib.h>

#define COLUMN_BYTES_MIN 7u   /* kind, form, an empty text */
#define RANGE_BYTES_MIN 25u
#define TEXT_BYTES_MIN 5u

/* A cursor over the bytes. `whole` turns false at the first field that the bytes do not have. */
typedef struct input {
    const uint8_t *at;
    size_t left;
    bool whole;
} input;

static bool take(input *from, void *into, size_t bytes)
{
    if (!from->whole || bytes > from->left) {
        from->whole = false;
        memset(into, 0, bytes);
        return false;
    }
    memcpy(into, from->at, bytes);
    from->at += bytes;
    from->left -= bytes;
    return true;
}

static uint8_t take_u8(input *from)
{
    uint8_t value;
    take(from, &value, sizeof value);
    return value;
}

static uint32_t take_u32(input *from)
{
    uint32_t value;
    take(from, &value, sizeof value);
    return value;
}

static int32_t take_i32(input *from) { return (int32_t)take_u32(from); }

static int64_t take_i64(input *from)
{
    int64_t value;
    take(from, &value, sizeof value);
    return value;
}

static cmq_slice take_text(input *from)
{
    const uint32_t bytes = take_u32(from);
    const uint8_t *at = from->at;
    if (!from->whole || bytes >= from->left || at[bytes] != 0 || memchr(at, 0, bytes) != NULL) {
        from->whole = false;
        return cmq_slice_of_text("");
    }
    from->at += bytes + 1;
    from->left -= bytes + 1;
    return (cmq_slice){.data = at, .bytes = bytes};
}

/* How many elements follow, each of at least `bytes_min`. */
static uint32_t take_count(input *from, size_t bytes_min)
{
    const uint32_t count = take_u32(from);
    if (count <= from->left / bytes_min) return count;
    from->whole = false;
    return 0;
}

static cmq_status no_memory(void) { return cmq_fail(CMQ_ERR_MEMORY, "no memory for the request of a scan"); }

static cmq_status read_columns(input *from, cmq_scan_request *request)
{
    const uint32_t count = take_count(from, COLUMN_BYTES_MIN);
    if (count > CMQ_SCAN_COLUMNS_MAX)
        return cmq_fail(CMQ_ERR_LIMIT, "%u columns are more than %u", count, CMQ_SCAN_COLUMNS_MAX);
    request->columns = calloc(count + 1u, sizeof *request->columns);
    request->names = calloc(count + 1u, sizeof *request->names);
    if (request->columns == NULL || request->names == NULL) return no_memory();
    for (uint32_t i = 0; i < count; i++) {
        cmq_scan_column *column = &request->columns[i];
        (void)snprintf(request->names[i], CMQ_SCAN_REQUEST_NAME_BYTES, "%u", i);
        column->name = request->names[i];
        column->kind = (cmq_scan_kind)take_u8(from);
        column->form = (cmq_scan_form)take_u8(from);
        column->property = (const char *)take_text(from).data;
    }
    request->options.columns = request->columns;
    request->options.column_count = count;
    return CMQ_OK;
}

static cmq_status read_ranges(input *from, cmq_scan_request *request)
{
    const uint32_t count = take_count(from, RANGE_BYTES_MIN);
    request->ranges = calloc(count + 1u, sizeof *request->ranges);
    if (request->ranges == NULL) return no_memory();
    for (uint32_t i = 0; i < count; i++) {
        cmq_read_start *range = &request->ranges[i];
        range->topic = take_text(from);
        range->queue_id = take_i32(from);
        range->offset = take_i64(from);
        range->has_end = true;
        range->end = take_i64(from);
    }
    request->options.read.starts = request->ranges;
    request->options.read.start_count = count;
    request->options.read.only_starts = true;
    return CMQ_OK;
}

static cmq_status read_texts(input *from, cmq_slice **texts_out, uint32_t *count_out)
{
    const uint32_t count = take_count(from, TEXT_BYTES_MIN);
    *count_out = count;
    *texts_out = calloc(count + 1u, sizeof **texts_out);
    if (*texts_out == NULL) return no_memory();
    for (uint32_t i = 0; i < count; i++) (*texts_out)[i] = take_text(from);
    return CMQ_OK;
}

static void read_rest(input *from, cmq_scan_request *request)
{
    cmq_scan_options *options = &request->options;
    request->where = take_text(from);
    const uint8_t flags = take_u8(from);
    options->skip_corrupt = (flags & CMQ_SCAN_REQUEST_SKIP_CORRUPT) != 0;
    options->read.has_start_time = (flags & CMQ_SCAN_REQUEST_START_TIME) != 0;
    options->read.has_end_time = (flags & CMQ_SCAN_REQUEST_END_TIME) != 0;
    request->has_where = (flags & CMQ_SCAN_REQUEST_WHERE) != 0;
    options->read.start_time_ms = take_i64(from);
    options->read.end_time_ms = take_i64(from);
    options->batch_rows = take_u32(from);
    options->batch_bytes = take_u32(from);
    options->limit_rows = take_i64(from);
    if ((flags & ~CMQ_SCAN_REQUEST_FLAGS) != 0 || options->limit_rows < 0) from->whole = false;
}

cmq_status cmq_scan_request_read(cmq_slice bytes, cmq_scan_request *request_out)
{
    *request_out = (cmq_scan_request){0};
    cmq_scan_options *options = &request_out->options;
    input from = {.at = bytes.data, .left = bytes.bytes, .whole = true};
    const uint32_t version = take_u32(&from);
    if (version != CMQ_SCAN_REQUEST_VERSION)
        return cmq_fail(CMQ_ERR_ARGUMENT,
                        "the request of a scan has version %u, expected %u: the jar and its native library are of "
                        "different releases",
                        version, CMQ_SCAN_REQUEST_VERSION);
    cmq_status status = read_columns(&from, request_out);
    if (status == CMQ_OK) status = read_ranges(&from, request_out);
    if (status == CMQ_OK) status = read_texts(&from, &request_out->tags, &options->read.tag_count);
    if (status == CMQ_OK) status = read_texts(&from, &request_out->keys, &options->key_count);
    if (status != CMQ_OK) return status;
    options->read.tags = request_out->tags;
    options->keys = request_out->keys;
    read_rest(&from, request_out);
    if (from.whole && from.left == 0) return CMQ_OK;
    return cmq_fail(CMQ_ERR_ARGUMENT, "the request of a scan is malformed %zu bytes before its end", from.left);
}

void cmq_scan_request_free(cmq_scan_request *request)
{
    free(request->columns);
    free(request->names);
    free(request->ranges);
    free(request->tags);
    free(request->keys);
    *request = (cmq_scan_request){0};
}
