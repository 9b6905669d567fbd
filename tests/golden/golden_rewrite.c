/* golden_rewrite SOURCE TARGET: append every message of a store that a real RocketMQ wrote to a new store of ours, and
 * compare.
 *
 * Checks: for the same fields our commit log has the same bytes, record by record and at the same places; our queues
 *         have the same units.
 * (test_golden_rewrite.py compares the files.) Messages with a property whose place in the string is the hash map's
 * (INNER_BASE, INNER_MULTI_QUEUE_OFFSET) must be equal field by field instead. The store makes the latter itself, for
 * light queues.
 *
 * Needs a store that begins at offset 0. Exit 0: equal; 1: not, with the first difference; 77: the source does not
 * begin at 0.
 */
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/cmq_store.h"
#include "store/record/cmq_property.h"

#define FOUND_MAX 256

static _Atomic int64_t now_ms;

static _Noreturn void fail(const char *what, int64_t at)
{
    fprintf(stderr, "golden_rewrite: %s at %" PRId64 ": %s\n", what, at, cmq_last_error()->text);
    exit(1);
}

static void must(cmq_status status, const char *what, int64_t at)
{
    if (status != CMQ_OK) fail(what, at);
}

/* Upstream closes a record with 20 bytes of property CRC where it is switched on; ours are made anew. */
static cmq_slice without_crc(cmq_slice properties, bool has_crc)
{
    if (has_crc && properties.bytes >= CMQ_RECORD_PROPERTY_CRC_BYTES) properties.bytes -= CMQ_RECORD_PROPERTY_CRC_BYTES;
    return properties;
}

static bool has_property(cmq_slice properties, const char *name)
{
    cmq_slice value;
    return cmq_property_find(properties, cmq_slice_of_text(name), &value);
}

static void append_again(cmq_store *target, const cmq_record_view *view, bool crc)
{
    atomic_store(&now_ms, view->store_timestamp_ms);
    cmq_appended appended;
    const cmq_append append = {
        .common = {.topic = view->topic,
                   .queue_id = view->queue_id,
                   .flag = view->flag,
                   .sys_flag = view->sys_flag,
                   .reconsume_times = view->reconsume_times,
                   .prepared_transaction_offset = view->prepared_transaction_offset,
                   .born_timestamp_ms = view->born_timestamp_ms,
                   .born_host = view->born_host,
                   .store_host = view->store_host},
        .count = 1,
        .bodies = {.kind = CMQ_COLUMN_ONE, .one = view->body},
        .properties = {.kind = CMQ_COLUMN_ONE, .one = without_crc(view->properties, crc)},
    };
    must(cmq_store_append(target, &append, &appended), "append", view->physical_offset);
    if (appended.first_physical_offset != view->physical_offset)
        fail("our record lies elsewhere", view->physical_offset);
}

/* ---- comparing ---- */

/* Every pair of `a` is in `b`; the property CRC follows from the order of the others. */
static bool pairs_in(cmq_slice a, cmq_slice b)
{
    cmq_slice name, value, other;
    while (cmq_property_next(&a, &name, &value)) {
        const bool follows = cmq_slice_equal(name, cmq_slice_of_text("__CRC32#"));
        if (!follows && (!cmq_property_find(b, name, &other) || !cmq_slice_equal(value, other))) return false;
    }
    return true;
}

static bool equal_fields(const cmq_record_view *a, const cmq_record_view *b)
{
    return a->record_bytes == b->record_bytes && a->queue_id == b->queue_id && a->queue_offset == b->queue_offset &&
           a->sys_flag == b->sys_flag && a->flag == b->flag && a->body_crc == b->body_crc &&
           cmq_slice_equal(a->body, b->body) && cmq_slice_equal(a->topic, b->topic) &&
           pairs_in(a->properties, b->properties) && pairs_in(b->properties, a->properties);
}

static void compare_record(cmq_store *target, const cmq_found *found, const cmq_record_view *view)
{
    cmq_found ours;
    cmq_found_batch batch = {.items = &ours, .capacity = 1};
    cmq_record_view our_view;
    must(cmq_store_read_physical(target, found->physical_offset, &batch), "our record", found->physical_offset);
    must(cmq_record_parse(ours.record, ours.record_bytes, found->physical_offset, CMQ_RECORD_CHECK_IF_PROPERTY_CRC,
                          &our_view),
         "our record", found->physical_offset);
    const bool same =
        ours.record_bytes == found->record_bytes && memcmp(ours.record, found->record, found->record_bytes) == 0;
    const bool free_order =
        has_property(view->properties, "INNER_BASE") || has_property(view->properties, "INNER_MULTI_QUEUE_OFFSET");
    if (!same && !(free_order && equal_fields(view, &our_view))) fail("the bytes differ", found->physical_offset);
    cmq_found_batch_release(&batch);
}

static void compare_units(cmq_store *source, cmq_store *target)
{
    const cmq_queues *queues = cmq_store_queues(source);
    for (uint32_t i = 0; i < cmq_queues_count(queues); i++) {
        cmq_queue *theirs = cmq_queues_at(queues, i);
        const cmq_slice topic = cmq_slice_of_text(cmq_queue_topic(theirs));
        const int64_t max = cmq_queue_max(theirs, cmq_store_confirmed(source));
        cmq_queue *ours = cmq_queues_find(cmq_store_queues(target), topic, cmq_queue_id(theirs));
        if (ours == NULL && max == 0) continue;
        if (ours == NULL || cmq_queue_max(ours, cmq_store_confirmed(target)) != max) fail(cmq_queue_topic(theirs), max);
        for (int64_t at = 0; at < max;) {
            cmq_unit a, b;
            uint32_t a_count, b_count;
            int64_t next;
            must(cmq_queue_read(theirs, at, cmq_store_confirmed(source), &a, 1, &a_count, &next), "their unit", at);
            must(cmq_queue_read(ours, at, cmq_store_confirmed(target), &b, 1, &b_count, &next), "our unit", at);
            if (a_count != 1 || b_count != 1 || a.phy != b.phy || a.bytes != b.bytes || a.tags_code != b.tags_code ||
                a.count != b.count)
                fail(cmq_queue_topic(theirs), at);
            at = next;
        }
    }
}

/* ---- the copy ---- */

static int64_t copy(cmq_store *source, cmq_store *target, bool crc)
{
    cmq_reader *reader;
    cmq_found items[FOUND_MAX];
    cmq_found_batch batch = {.items = items, .capacity = FOUND_MAX};
    const cmq_read_options everything = {0};
    bool end;
    int64_t records = 0;
    must(cmq_reader_open(source, &everything, &reader), "reader", 0);
    for (;;) {
        must(cmq_reader_next(reader, &batch, &end), "read", records);
        if (batch.count == 0) break;
        for (uint32_t i = 0; i < batch.count; i++, records++) {
            cmq_record_view view;
            must(cmq_record_parse(items[i].record, items[i].record_bytes, items[i].physical_offset,
                                  CMQ_RECORD_CHECK_BODY_CRC, &view),
                 "parse", items[i].physical_offset);
            append_again(target, &view, crc);
            compare_record(target, &items[i], &view);
        }
        cmq_found_batch_release(&batch);
    }
    cmq_reader_close(reader);
    return records;
}

/* Does the first record end with a property CRC? Then the broker had it switched on. */
static bool uses_property_crc(cmq_store *source)
{
    cmq_found found;
    cmq_found_batch batch = {.items = &found, .capacity = 1};
    cmq_record_view view;
    must(cmq_store_read_physical(source, 0, &batch), "first record", 0);
    must(cmq_record_parse(found.record, found.record_bytes, 0, 0, &view), "first record", 0);
    const bool uses = has_property(view.properties, "__CRC32#");
    cmq_found_batch_release(&batch);
    return uses;
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: golden_rewrite SOURCE TARGET\n");
        return 2;
    }
    cmq_store *source, *target;
    cmq_store_info info;
    cmq_store_options options = {.path = argv[1], .read_only = true};
    must(cmq_store_open(&source, &options), "open the source", 0);
    must(cmq_store_info_of(source, &info), "the source", 0);
    if (info.log_min != 0) return 77;
    const bool crc = uses_property_crc(source);
    const char *batch_topics[64];
    uint32_t batch_topic_count = 0;
    for (uint32_t i = 0; i < info.queue_count && batch_topic_count < 64; i++) {
        const cmq_queue *queue = cmq_queues_at(cmq_store_queues(source), i);
        if (cmq_queue_kind_of(queue) == CMQ_QUEUE_BATCH) batch_topics[batch_topic_count++] = cmq_queue_topic(queue);
    }
    options = (cmq_store_options){.path = argv[2],
                                  .create = true,
                                  .flush = CMQ_FLUSH_ASYNC,
                                  .clock = cmq_clock_manual(&now_ms),
                                  .segment_bytes = info.segment_bytes,
                                  .queue_file_bytes = info.queue_file_bytes,
                                  .batch_file_bytes = info.batch_file_bytes,
                                  .index_slots = info.index_slots,
                                  .index_entries = info.index_entries,
                                  .batch_topics = batch_topics,
                                  .batch_topic_count = batch_topic_count,
                                  .lmq_enabled = true,
                                  .property_crc = crc};
    must(cmq_store_open(&target, &options), "open the target", 0);
    const int64_t records = copy(source, target, crc);
    compare_units(source, target);
    must(cmq_store_close(target), "close the target", 0);
    must(cmq_store_close(source), "close the source", 0);
    printf("%" PRId64 " records and their units are equal\n", records);
    return 0;
}
