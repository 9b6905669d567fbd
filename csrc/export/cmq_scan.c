/* cmq_scan: see cmq_scan.h. Opening and closing, and one batch after another.
 *
 * A batch is made block by block: rows are found and read (cmq_scan_rows.c), then every column takes them. A failure
 * waits until the rows before it are out.
 */
#include "export/cmq_scan.h"

#include <stdlib.h>
#include <string.h>

#include "export/cmq_scan_internal.h"
#include "store/cmq_store_internal.h"

#define PASSED_ROWS_MAX (UINT32_C(1) << 20)   /* tenths of a second */

/* ---- life ---- */

static bool is_light(cmq_slice topic) { return cmq_slice_starts_with(topic, "%LMQ%"); }

/* Light queues hold records of other topics: only the record has its topic, and its keys under that. */
static bool may_be_light(const cmq_store *store, const cmq_read_options *read)
{
    bool light = store->options.lmq_enabled;
    for (uint32_t i = 0; i < read->topic_count && !light; i++) light = is_light(read->topics[i]);
    for (uint32_t i = 0; i < read->start_count && !light; i++) light = is_light(read->starts[i].topic);
    return light;
}

/* Texts to look for, none of them empty, and their bytes. */
static cmq_status copy_wanted(const cmq_slice *texts, uint32_t count, const char *what, cmq_slice **copies_out,
                              uint8_t **bytes_out)
{
    size_t bytes = 0;
    if (count == 0) return CMQ_OK;
    for (uint32_t i = 0; i < count; i++) bytes += texts[i].bytes;
    cmq_slice *copies = *copies_out = calloc(count, sizeof *copies);
    uint8_t *into = *bytes_out = malloc(bytes + 1);
    if (copies == NULL || into == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for %u %ss", count, what);
    for (uint32_t i = 0; i < count; i++) {
        if (texts[i].bytes == 0) return cmq_fail(CMQ_ERR_ARGUMENT, "a %s to look for is empty", what);
        memcpy(into, texts[i].data, texts[i].bytes);
        copies[i] = (cmq_slice){.data = into, .bytes = texts[i].bytes};
        into += texts[i].bytes;
    }
    return CMQ_OK;
}

static void take_options(cmq_scan *scan, const cmq_scan_options *options)
{
    scan->batch_rows = options->batch_rows > 0 ? options->batch_rows : CMQ_SCAN_BATCH_ROWS;
    scan->batch_bytes = options->batch_bytes > 0 ? options->batch_bytes : CMQ_SCAN_BATCH_BYTES;
    if (scan->batch_bytes > INT32_MAX - CMQ_SCAN_BODY_BYTES_MAX)
        scan->batch_bytes = INT32_MAX - CMQ_SCAN_BODY_BYTES_MAX;
    if (scan->batch_rows > INT32_MAX) scan->batch_rows = INT32_MAX;
    scan->view_span_max = INT32_MAX;
    scan->passed_max = PASSED_ROWS_MAX;
    scan->where = options->read.where;
    scan->rows_left = options->limit_rows > 0 ? options->limit_rows : INT64_MAX;
    scan->raw_bodies = options->raw_bodies;
    scan->check_crc = options->check_crc;
    scan->skip_corrupt = options->skip_corrupt;
    scan->decompress = options->decompress;
    scan->decompress_context = options->decompress_context;
    scan->found = (cmq_found_batch){.items = scan->found_items, .capacity = CMQ_SCAN_BLOCK_ROWS};
    scan->block_rows = CMQ_SCAN_BLOCK_ROWS;
}

/* The index knows the keys of records, and not those of the messages of an inner batch. */
static bool may_be_batches(const cmq_store *store, const cmq_read_options *read)
{
    const cmq_queues *queues = cmq_store_queues(store);
    bool batches = false;
    for (uint32_t i = 0; i < cmq_queues_count(queues) && !batches; i++) {
        const cmq_queue *queue = cmq_queues_at(queues, i);
        const cmq_slice topic = {.data = (const uint8_t *)cmq_queue_topic(queue),
                                 .bytes = cmq_queue_topic_bytes(queue)};
        if (cmq_queue_kind_of(queue) != CMQ_QUEUE_BATCH) continue;
        for (uint32_t j = 0; j < read->topic_count && !batches; j++) batches = cmq_slice_equal(read->topics[j], topic);
        for (uint32_t j = 0; j < read->start_count && !batches; j++)
            batches = cmq_slice_equal(read->starts[j].topic, topic);
    }
    return batches;
}

static bool wants_topic(const cmq_scan *scan)
{
    for (uint32_t i = 0; i < scan->builder_count; i++)
        if (scan->builders[i].kind == CMQ_SCAN_TOPIC) return true;
    return false;
}

static cmq_status open_source(cmq_scan *scan, const cmq_scan_options *options)
{
    const bool whole_log = options->read.topic_count == 0 && !options->read.only_starts;
    const bool light = may_be_light(scan->store, &options->read);
    if (scan->key_count > 0 || scan->where != NULL || ((whole_log || light) && wants_topic(scan)))
        scan->reads_tails = true;
    if (scan->key_count > 0 && !whole_log && !light && !options->follow && !may_be_batches(scan->store, &options->read))
        return cmq_scan_places_open(scan, options);
    cmq_read_options read = options->read;
    read.where = NULL;   /* compared here, where the caller is let in between */
    scan->tag_count = read.tag_count;   /* of messages of inner batches; the reader compares those of records */
    const cmq_status status = copy_wanted(read.tags, read.tag_count, "tag", &scan->tags, &scan->tag_bytes);
    if (status != CMQ_OK) return status;
    read.check_crc = options->check_crc;
    read.fetch_tails = scan->reads_tails;
    read.only_queued = whole_log;   /* records of deleted topics no longer count as messages */
    return cmq_reader_open(scan->store, &read, &scan->reader);
}

static cmq_status open_fed(cmq_scan *scan, const cmq_scan_options *options)
{
    const cmq_read_options *read = &options->read;
    scan->tag_count = read->tag_count;
    scan->reads_tails = scan->reads_tails || scan->key_count > 0 || scan->tag_count > 0 || scan->where != NULL ||
                        wants_topic(scan);
    const cmq_status status = copy_wanted(read->tags, read->tag_count, "tag", &scan->tags, &scan->tag_bytes);
    return status == CMQ_OK ? cmq_scan_fed_make(scan) : status;
}

static cmq_status open_scan(cmq_store *store, const cmq_scan_options *options, cmq_scan **scan_out)
{
    *scan_out = NULL;
    if (options->read.backwards) return cmq_fail(CMQ_ERR_ARGUMENT, "columns are read forwards");
    if (options->limit_rows < 0)
        return cmq_fail(CMQ_ERR_ARGUMENT, "a scan cannot be limited to %lld rows", (long long)options->limit_rows);
    cmq_scan *scan = calloc(1, sizeof *scan);
    if (scan == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for a scan");
    scan->store = store;
    take_options(scan, options);
    scan->pool = cmq_scan_pool_make();
    scan->key_count = options->key_count;
    cmq_status status =
        scan->pool != NULL ? cmq_scan_builders_make(scan, options) : cmq_fail(CMQ_ERR_MEMORY, "no memory for a scan");
    if (status == CMQ_OK) status = copy_wanted(options->keys, options->key_count, "key", &scan->keys, &scan->key_bytes);
    if (status == CMQ_OK && scan->skip_corrupt) {
        scan->skipped_offsets = malloc(CMQ_SCAN_SKIPPED_MAX * sizeof *scan->skipped_offsets);
        if (scan->skipped_offsets == NULL) status = cmq_fail(CMQ_ERR_MEMORY, "no memory for a scan");
    }
    if (status == CMQ_OK) status = store != NULL ? open_source(scan, options) : open_fed(scan, options);
    if (status != CMQ_OK) {
        cmq_scan_close(scan);
        return status;
    }
    *scan_out = scan;
    return CMQ_OK;
}

cmq_status cmq_scan_open(cmq_store *store, const cmq_scan_options *options, cmq_scan **scan_out)
{
    return open_scan(store, options, scan_out);
}

cmq_status cmq_scan_open_fed(const cmq_scan_options *options, cmq_scan **scan_out)
{
    return open_scan(NULL, options, scan_out);
}

void cmq_scan_close(cmq_scan *scan)
{
    if (scan == NULL) return;
    cmq_found_batch_release(&scan->found);
    cmq_scan_release_homes(scan);
    cmq_scan_release_full(scan);
    cmq_scan_memory_drop(scan->unfolding.record.memory);
    cmq_scan_memory_drop(scan->decompressed);
    cmq_reader_close(scan->reader);
    cmq_scan_places_close(scan);
    cmq_scan_fed_free(scan);
    cmq_scan_builders_free(scan);
    cmq_scan_pool_close(scan->pool);
    cmq_scan_pairs_free(scan->pairs);
    free(scan->keys);
    free(scan->key_bytes);
    free(scan->tags);
    free(scan->tag_bytes);
    free(scan->skipped_offsets);
    free(scan->mended);
    free(scan);
}

/* ---- batches ---- */

/* Buffers as large as the last batch's and a little more, at once. */
static cmq_status begin_batch(cmq_scan *scan)
{
    cmq_status status = CMQ_OK;
    const bool at_a_stretch =
        scan->gathers && scan->rows > 0 && scan->body_bytes / scan->rows >= CMQ_SCAN_LONG_BODY_BYTES;
    scan->block_rows = scan->found.capacity = at_a_stretch ? CMQ_SCAN_BLOCK_ROWS_MAX : CMQ_SCAN_BLOCK_ROWS;
    scan->rows = scan->passed = 0;
    scan->paused = false;
    scan->body_bytes = scan->text_bytes = 0;
    for (uint32_t i = 0; i < scan->builder_count && status == CMQ_OK; i++) {
        cmq_scan_builder *builder = &scan->builders[i];
        const size_t values = builder->expected_values, data = builder->expected_data;
        if (values > 0) status = cmq_scan_buffer_reserve(&builder->values, values + values / 8);
        if (data > 0 && status == CMQ_OK) status = cmq_scan_buffer_reserve(&builder->strings.data, data + data / 8);
    }
    return status;
}

static cmq_status append_block(cmq_scan *scan)
{
    for (uint32_t i = 0; i < scan->builder_count; i++) {
        const cmq_status status = cmq_scan_append_block(scan, &scan->builders[i]);
        if (status != CMQ_OK) return status;
    }
    scan->rows += scan->block_count;
    return CMQ_OK;
}

/* Rows into the builders until the batch is full or nothing more comes; *after_out: why it stopped, but for being
 * full. */
static cmq_status fill_batch(cmq_scan *scan, cmq_status *after_out)
{
    bool full = false;
    *after_out = CMQ_OK;
    while (*after_out == CMQ_OK && !full && scan->rows < scan->batch_rows) {
        const uint32_t left = scan->batch_rows - scan->rows;
        *after_out = cmq_scan_fill_block(scan, left < scan->block_rows ? left : scan->block_rows, &full);
        if (scan->broken) return *after_out;
        if (*after_out != CMQ_OK && *after_out != CMQ_AGAIN && *after_out != CMQ_END) scan->waiting = *cmq_last_error();
        const cmq_status status = scan->block_count > 0 ? append_block(scan) : CMQ_OK;
        if (status != CMQ_OK) return status;
    }
    return CMQ_OK;
}

/* Of a batch that cannot be given out: its rows are gone, so the scan is over. */
static cmq_status break_off(cmq_scan *scan)
{
    scan->broken = true;
    scan->waiting = *cmq_last_error();
    cmq_scan_release_homes(scan);
    for (uint32_t i = 0; i < scan->builder_count; i++) cmq_scan_builder_clear(&scan->builders[i]);
    return scan->waiting.status;
}

static cmq_status report(cmq_scan *scan)
{
    const cmq_error error = scan->waiting;
    if (!scan->broken) scan->waiting.status = CMQ_OK;
    return cmq_fail_at(error.status, error.offset, "%s", error.text);
}

cmq_status cmq_scan_next(cmq_scan *scan, struct ArrowArray *array_out, bool *end_out)
{
    *array_out = (struct ArrowArray){0};
    *end_out = false;
    if (scan->waiting.status != CMQ_OK) return report(scan);
    cmq_status after = CMQ_OK, status = begin_batch(scan);
    if (status == CMQ_OK) status = fill_batch(scan, &after);
    if (status == CMQ_OK && scan->rows > 0) {
        for (uint32_t i = 0; i < scan->builder_count; i++) {
            scan->builders[i].expected_values = scan->builders[i].values.used;
            scan->builders[i].expected_data = scan->builders[i].strings.data.used;
        }
        status = cmq_scan_finish_batch(scan, array_out);
    }
    if (status != CMQ_OK) return break_off(scan);
    if (scan->rows > 0) return CMQ_OK;
    *end_out = after == CMQ_END;
    if (scan->paused) return CMQ_AGAIN;
    return scan->waiting.status != CMQ_OK ? report(scan) : CMQ_OK;
}

void cmq_scan_skipped_of(const cmq_scan *scan, cmq_scan_skipped *skipped_out, int64_t *offsets, uint32_t capacity,
                         uint32_t *count_out)
{
    *skipped_out = scan->skipped;
    if (scan->reader != NULL) skipped_out->expired = (uint64_t)cmq_reader_expired(scan->reader);
    *count_out = scan->skipped_offset_count < capacity ? scan->skipped_offset_count : capacity;
    if (*count_out > 0) memcpy(offsets, scan->skipped_offsets, *count_out * sizeof *offsets);
}
