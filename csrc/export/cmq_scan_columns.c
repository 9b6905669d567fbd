/* cmq_scan_columns: numbers and bodies: one column at a time over a block of rows whose heads are in the first-level
 * cache.
 *
 * Per row: one big-endian load and a store; a view 16 bytes; a gathered body its bytes. Room is made once per block.
 */
#include <string.h>

#include "export/cmq_scan_internal.h"

#define AT_RECONSUME (CMQ_RECORD_AT_STORE_HOST + 8)
#define AT_PREPARED (AT_RECONSUME + 4)

static size_t behind_hosts(const cmq_scan_row *row)
{
    return cmq_scan_born_more(row->sys_flag) + cmq_scan_store_more(row->sys_flag);
}

#define FOR_ROWS for (uint32_t i = 0; i < scan->block_count; i++)

static cmq_status append_int32(const cmq_scan *scan, cmq_scan_builder *builder)
{
    const cmq_scan_row *rows = scan->block;
    const cmq_status status = cmq_scan_buffer_reserve(&builder->values, scan->block_count * sizeof(int32_t));
    if (status != CMQ_OK) return status;
    int32_t *into = (int32_t *)(void *)cmq_scan_buffer_end(&builder->values);
    builder->values.used += scan->block_count * sizeof(int32_t);
    if (builder->kind == CMQ_SCAN_QUEUE_ID) FOR_ROWS into[i] = cmq_load_i32(rows[i].record + CMQ_RECORD_AT_QUEUE_ID);
    else if (builder->kind == CMQ_SCAN_FLAG) FOR_ROWS into[i] = rows[i].flag;
    else if (builder->kind == CMQ_SCAN_SYS_FLAG) FOR_ROWS into[i] = rows[i].sys_flag;
    else if (builder->kind == CMQ_SCAN_BODY_CRC)
        FOR_ROWS into[i] = cmq_load_i32(rows[i].record + CMQ_RECORD_AT_BODY_CRC);
    else FOR_ROWS into[i] = cmq_load_i32(rows[i].record + AT_RECONSUME + behind_hosts(&rows[i]));
    return CMQ_OK;
}

/* 0001-01-02 and the last millisecond of 9999-12-30: a day within the years that calendars of SQL, Python and RFC 3339
 * have, as readers show times in zones of their own. */
#define TIME_MS_MIN INT64_C(-62135510400000)
#define TIME_MS_MAX INT64_C(253402214399999)

/* A producer chooses its time freely. A time outside of the calendars is clamped to the nearest that they have, and
 * counted. */
static void clamp_times(cmq_scan *scan, int64_t *times, bool micros)
{
    const int64_t unit = micros ? 1000 : 1;
    uint64_t clamped = 0;
    FOR_ROWS {
        const int64_t low = times[i] < TIME_MS_MIN ? TIME_MS_MIN : times[i];
        const int64_t ms = low > TIME_MS_MAX ? TIME_MS_MAX : low;
        clamped += ms != times[i];
        times[i] = ms * unit;
    }
    scan->skipped.clamped_times += clamped;
}

static cmq_status append_int64(cmq_scan *scan, cmq_scan_builder *builder)
{
    const cmq_scan_row *rows = scan->block;
    const cmq_status status = cmq_scan_buffer_reserve(&builder->values, scan->block_count * sizeof(int64_t));
    if (status != CMQ_OK) return status;
    int64_t *into = (int64_t *)(void *)cmq_scan_buffer_end(&builder->values);
    builder->values.used += scan->block_count * sizeof(int64_t);
    if (builder->kind == CMQ_SCAN_QUEUE_OFFSET) FOR_ROWS into[i] = rows[i].queue_offset;
    else if (builder->kind == CMQ_SCAN_PHYSICAL_OFFSET) FOR_ROWS into[i] = rows[i].physical_offset;
    else if (builder->kind == CMQ_SCAN_BODY_BYTES) FOR_ROWS into[i] = rows[i].stored_bytes;
    else if (builder->kind == CMQ_SCAN_BORN_TIMESTAMP)
        FOR_ROWS into[i] = cmq_load_i64(rows[i].record + CMQ_RECORD_AT_BORN_TIMESTAMP);
    else if (builder->kind == CMQ_SCAN_STORE_TIMESTAMP)
        FOR_ROWS into[i] =
            cmq_load_i64(rows[i].record + CMQ_RECORD_AT_STORE_TIMESTAMP + cmq_scan_born_more(rows[i].sys_flag));
    else FOR_ROWS into[i] = cmq_load_i64(rows[i].record + AT_PREPARED + behind_hosts(&rows[i]));
    if (builder->kind == CMQ_SCAN_BORN_TIMESTAMP || builder->kind == CMQ_SCAN_STORE_TIMESTAMP)
        clamp_times(scan, into, builder->micros);
    return CMQ_OK;
}

/* Arrow's view: the length, then the bytes themselves or their first four and their place. */
typedef struct view {
    int32_t bytes;
    uint8_t prefix[4];
    int32_t buffer;
    int32_t offset;
} view;
_Static_assert(sizeof(view) == 16 && CMQ_SCAN_INLINE_BYTES == sizeof(view) - 4, "a view is 16 bytes");

static cmq_status append_views(const cmq_scan *scan, cmq_scan_builder *builder)
{
    const cmq_status status = cmq_scan_buffer_reserve(&builder->values, scan->block_count * sizeof(view));
    if (status != CMQ_OK) return status;
    uint8_t *into = cmq_scan_buffer_end(&builder->values);
    builder->values.used += scan->block_count * sizeof(view);
    FOR_ROWS {
        const cmq_scan_row *row = &scan->block[i];
        view made = {.bytes = (int32_t)row->body_bytes};
        if (row->body_bytes > CMQ_SCAN_INLINE_BYTES) {
            memcpy(made.prefix, row->body, sizeof made.prefix);
            made.buffer = (int32_t)row->home;
            made.offset = (int32_t)(row->body - scan->homes[row->home].low);
            memcpy(into, &made, sizeof made);
        } else {
            memcpy(into, &made, sizeof made);
            if (row->body_bytes > 0) memcpy(into + 4, row->body, row->body_bytes);
        }
        into += sizeof made;
    }
    return CMQ_OK;
}

cmq_status cmq_scan_append_body(cmq_scan_builder *builder, const cmq_scan_row *row)
{
    cmq_scan_strings *strings = &builder->strings;
    cmq_status status = cmq_scan_buffer_reserve(&strings->offsets, 2 * sizeof(int32_t));
    if (status == CMQ_OK) status = cmq_scan_buffer_reserve(&strings->data, row->body_bytes);
    if (status != CMQ_OK) return status;
    int32_t *offsets = (int32_t *)(void *)cmq_scan_buffer_end(&strings->offsets);
    if (strings->offsets.used == 0) {
        *offsets++ = 0;
        strings->offsets.used = sizeof *offsets;
    }
    if (row->body_bytes > 0) memcpy(cmq_scan_buffer_end(&strings->data), row->body, row->body_bytes);
    strings->data.used += row->body_bytes;
    *offsets = (int32_t)strings->data.used;
    strings->offsets.used += sizeof *offsets;
    return CMQ_OK;
}

static cmq_status append_bodies(const cmq_scan *scan, cmq_scan_builder *builder)
{
    cmq_status status = CMQ_OK;
    if (builder == scan->gatherer) return CMQ_OK;   /* is done */
    for (uint32_t i = 0; i < scan->block_count && status == CMQ_OK; i++)
        status = cmq_scan_append_body(builder, &scan->block[i]);
    return status;
}

cmq_status cmq_scan_append_block(cmq_scan *scan, cmq_scan_builder *builder)
{
    switch (builder->shape) {
    case CMQ_SCAN_SHAPE_INT32: return append_int32(scan, builder);
    case CMQ_SCAN_SHAPE_INT64: return append_int64(scan, builder);
    case CMQ_SCAN_SHAPE_VIEW: return append_views(scan, builder);
    case CMQ_SCAN_SHAPE_BYTES: return append_bodies(scan, builder);
    case CMQ_SCAN_SHAPE_TEXT:
    case CMQ_SCAN_SHAPE_DICTIONARY: return cmq_scan_append_texts(scan, builder);
    case CMQ_SCAN_SHAPE_MAP: return cmq_scan_append_map(scan, builder);
    }
    return CMQ_OK;
}
