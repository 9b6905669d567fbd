/* golden_delay STORE EXPECTED: deliver what a real RocketMQ had parked in this store once more, and compare with what
 * it delivered itself.
 *
 * Checks: for each of our deliveries that the broker had made, too, a record with the same bytes but for the queue
 *         offset, the physical offset and the store time; that there are EXPECTED such records, which is all of the
 *         broker's; that cmq_delay_recover recognizes each of the broker's and of ours. The store is changed: give it a
 *         copy. Exit 0: equal; 1: not, with the first difference.
 */
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "broker/delay/cmq_delay.h"
#include "broker/delay/cmq_delay_record.h"
#include "store/record/cmq_property.h"

#define FOUND_MAX 256
#define DELIVERIES_MAX 4096
#define DAY_MS INT64_C(86400000)

static _Atomic int64_t now_ms;

static _Noreturn void fail(const char *what, int64_t at)
{
    fprintf(stderr, "golden_delay: %s at %" PRId64 ": %s\n", what, at, cmq_last_error()->text);
    exit(1);
}

static void must(cmq_status status, const char *what, int64_t at)
{
    if (status != CMQ_OK) fail(what, at);
}

/* Deliveries in the log, copied. */
typedef struct delivery {
    uint8_t *bytes;
    uint32_t size;
    cmq_record_view view;
} delivery;

static uint32_t find_deliveries(cmq_store *store, int64_t from, int64_t to, delivery *into)
{
    cmq_found items[FOUND_MAX];
    cmq_reader *reader;
    const cmq_read_options options = {.has_start_physical = true, .start_physical = from};
    uint32_t count = 0;
    bool end = false;
    must(cmq_reader_open(store, &options, &reader), "cannot read", from);
    while (!end) {
        cmq_found_batch batch = {.items = items, .capacity = FOUND_MAX};
        must(cmq_reader_next(reader, &batch, &end), "cannot read on", from);
        end |= batch.count == 0;
        for (uint32_t i = 0; i < batch.count; i++) {
            cmq_record_view view;
            if (items[i].physical_offset >= to) continue;
            must(cmq_record_parse(items[i].record, items[i].record_bytes, items[i].physical_offset,
                                  CMQ_RECORD_CHECK_BODY_CRC, &view),
                 "no record", items[i].physical_offset);
            if (cmq_delay_delivered_level(cmq_store_delay_levels(store), &view) == 0) continue;
            if (count == DELIVERIES_MAX) fail("more deliveries than foreseen", items[i].physical_offset);
            delivery *of = &into[count++];
            of->size = items[i].record_bytes;
            of->bytes = malloc(of->size);
            if (of->bytes == NULL) fail("no memory", of->size);
            memcpy(of->bytes, items[i].record, of->size);
            must(cmq_record_parse(of->bytes, of->size, -1, 0, &of->view), "no record", items[i].physical_offset);
        }
        cmq_found_batch_release(&batch);
    }
    cmq_reader_close(reader);
    return count;
}

/* The same but for what every record has of its own. */
static bool equal(const delivery *a, const delivery *b)
{
    const int64_t store_at = CMQ_RECORD_AT_STORE_TIMESTAMP + (a->view.born_host.ipv6 ? CMQ_RECORD_IPV6_MORE : 0);
    if (a->size != b->size) return false;
    for (uint32_t i = 0; i < a->size; i++) {
        const bool own =
            (i >= CMQ_RECORD_AT_QUEUE_OFFSET && i < CMQ_RECORD_AT_SYS_FLAG) || (i >= store_at && i < store_at + 8);
        if (!own && a->bytes[i] != b->bytes[i]) return false;
    }
    return true;
}

static void free_deliveries(delivery *of, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) free(of[i].bytes);
}

static cmq_delay *make_service(cmq_store *store)
{
    cmq_delay *delay;
    const cmq_delay_options options = {.store = store, .clock = cmq_clock_manual(&now_ms), .manual = true};
    must(cmq_delay_create(&delay, &options), "no service", 0);
    return delay;
}

int main(int argc, char **argv)
{
    static delivery theirs[DELIVERIES_MAX], ours[DELIVERIES_MAX];
    cmq_store *store;
    cmq_store_info info;
    int64_t next_due, recognized;
    if (argc != 3) {
        fprintf(stderr, "usage: golden_delay STORE EXPECTED\n");
        return 2;
    }
    const cmq_store_options options = {.path = argv[1], .clock = cmq_clock_manual(&now_ms), .flush = CMQ_FLUSH_ASYNC};
    must(cmq_store_open(&store, &options), "cannot open", 0);
    must(cmq_store_info_of(store, &info), "no info", 0);
    atomic_store(&now_ms, info.store_timestamp_ms + DAY_MS);   /* everything is due */

    cmq_delay *delay = make_service(store);
    must(cmq_delay_recover(delay, info.log_min, &recognized), "cannot recover", info.log_min);
    const uint32_t their_count = find_deliveries(store, info.log_min, info.log_end, theirs);
    if (their_count != (uint32_t)atoi(argv[2])) fail("not the deliveries that were expected", their_count);
    if (recognized != their_count) fail("deliveries were not recognized; these were", recognized);
    cmq_delay_destroy(delay);

    delay = make_service(store);   /* from offset 0 again */
    must(cmq_delay_step(delay, &next_due), "cannot deliver", 0);
    const uint32_t our_count = find_deliveries(store, info.log_end, INT64_MAX, ours);
    cmq_delay_counters counters;
    cmq_delay_count(delay, &counters);
    if (counters.delivered != our_count || counters.skipped != 0)
        fail("deliveries that cannot be found", (int64_t)counters.delivered);
    bool *used = calloc(our_count + 1, sizeof *used);
    for (uint32_t i = 0; i < their_count; i++) {
        uint32_t k = 0;
        while (k < our_count && (used[k] || !equal(&theirs[i], &ours[k]))) k++;
        if (k == our_count) fail("none of our deliveries is like the broker's", theirs[i].view.physical_offset);
        used[k] = true;
    }
    cmq_delay_destroy(delay);
    delay = make_service(store);
    must(cmq_delay_recover(delay, info.log_end, &recognized), "cannot recover", info.log_end);
    if (recognized != our_count) fail("our own deliveries were not recognized; these were", recognized);
    cmq_delay_destroy(delay);
    must(cmq_store_close(store), "cannot close", 0);
    free(used);
    free_deliveries(theirs, their_count);
    free_deliveries(ours, our_count);
    return 0;
}
