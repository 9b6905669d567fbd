/* Tests csrc/store/check/cmq_repair_fill.c: records without a message replace damage in the log; the old bytes are
 * kept; everything else stays. Crashes in the middle of it: test_cmq_repair.c.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "store/queue/cmq_queue.h"
#include "support/cmq_repair_kit.h"

/* Bytes of the log, over segments. */
static void read_log(const char *root, int64_t phy, uint8_t *into, int64_t bytes)
{
    for (int64_t at = 0; at < bytes;) {
        const int64_t inside = (phy + at) % KIT_SEGMENT_BYTES, left = KIT_SEGMENT_BYTES - inside;
        const int64_t part = bytes - at < left ? bytes - at : left;
        kit_read_bytes(kit_segment_of(root, phy + at), inside, into + at, (size_t)part);
        at += part;
    }
}

static void zero_log(const char *root, int64_t phy, int64_t end)
{
    static const uint8_t zeros[KIT_SEGMENT_BYTES];
    while (phy < end) {
        const int64_t inside = phy % KIT_SEGMENT_BYTES, left = KIT_SEGMENT_BYTES - inside;
        const int64_t part = end - phy < left ? end - phy : left;
        kit_write_bytes(kit_segment_of(root, phy), inside, zeros, (size_t)part);
        phy += part;
    }
}

/* The bytes of [from, end) that were put aside: one file for each segment that they lie in. */
static void check_kept(int64_t from, int64_t end, const uint8_t *before, int64_t store_ms)
{
    static uint8_t kept[KIT_SEGMENT_BYTES];
    for (int64_t at = from; at < end;) {
        char name[80];
        const int64_t segment_end = (at / KIT_SEGMENT_BYTES + 1) * KIT_SEGMENT_BYTES,
                      bytes = (end < segment_end ? end : segment_end) - at;
        snprintf(name, sizeof name, "commitlog/%020" PRId64 "-%" PRId64 ".damaged", at, store_ms);
        CHECK_INT(kit_file_bytes(kit_path(kit_report.kept, name)), bytes);
        kit_read_bytes(kit_path(kit_report.kept, name), 0, kept, (size_t)bytes);
        CHECK_BYTES(kept, (size_t)bytes, before + (at - from), (size_t)bytes);
        at += bytes;
    }
}

/* One record, several, up to the end of a segment, and whole segments: fillers take their place, and nothing else
 * changes. */
static void test_damage_is_filled(void)
{
    const int ranges[][2] = {{5, 6}, {MESSAGES - 4, MESSAGES - 3}, {10, 30}, {3, MESSAGES - 2}, {0, 1}};
    static uint8_t before[1 << 20];
    for (size_t n = 0; n < sizeof ranges / sizeof ranges[0]; n++) {
        const char *root = kit_make_store();
        const int64_t from = kit_placed[ranges[n][0]].first_physical_offset,
                      end = kit_placed[ranges[n][1]].first_physical_offset;
        if (n == 0) kit_damage_record(root, from);
        else zero_log(root, from, end);
        /* a message of b may lie between two of a */
        const int64_t bytes = n == 0 ? kit_placed[5].end - from : end - from;
        CHECK(bytes <= (int64_t)sizeof before);
        read_log(root, from, before, bytes);
        CHECK_OK(kit_try_repair(root, (cmq_repair_options){.fill_damage = true}));
        CHECK(kit_report.complete);
        CHECK_INT(kit_report.damaged_bytes, bytes);
        CHECK_INT(kit_report.filled_bytes, bytes);
        CHECK_INT(kit_report.log_end, kit_placed[MESSAGES - 1].end);
        check_kept(from, from + bytes, before,
                   from > 0 ? kit_placed[ranges[n][0]].store_timestamp_ms - 7 : kit_placed[1].store_timestamp_ms);
        cmq_verified verified;
        const int *counts = kit_verify(root, &verified);
        CHECK_INT(verified.verdict, CMQ_SEVERITY_NOTE);
        CHECK_INT(counts[CMQ_PROBLEM_RECORD] + counts[CMQ_PROBLEM_TAIL] + counts[CMQ_PROBLEM_TIME], 0);
        cmq_store *store = kit_open_at(root);
        CHECK_INT(kit_max(store, "a", 0), MESSAGES);
        CHECK_INT(kit_append(store, "a", 0, "goes on", NULL, NULL).first_queue_offset, MESSAGES);
        kit_close(store);
        const int64_t messages = kit_report.messages;
        CHECK_OK(kit_try_repair(root, (cmq_repair_options){0}));
        CHECK_INT(kit_report.damaged_places, 0);
        CHECK_INT(kit_report.messages, messages + 1);
        kit_remove_tree(root);
    }
    CHECK_STATUS(kit_try_repair("nowhere", (cmq_repair_options){.fill_damage = true, .cut_damage = true}),
                 CMQ_ERR_ARGUMENT);
}

/* A gap names the record behind it: a broker that meets a unit it cannot read passes over what follows in the log's
 * first file. */
static void test_a_gap_names_the_record_behind_it(void)
{
    const char *root = kit_make_store();
    kit_damage_record(root, kit_placed[5].first_physical_offset);
    kit_damage_record(root, kit_placed[6].first_physical_offset);
    CHECK_OK(kit_try_repair(root, (cmq_repair_options){.fill_damage = true}));
    uint8_t units[3][CMQ_UNIT_BYTES];
    kit_read_bytes(kit_path(root, "consumequeue/a/0/00000000000000000000"), 5 * CMQ_UNIT_BYTES, units, sizeof units);
    for (int i = 0; i < 3; i++) {
        CHECK_INT(cmq_load_i64(units[i]), kit_placed[7].first_physical_offset);
        CHECK_INT(cmq_load_i32(units[i] + 8), kit_placed[7].end - kit_placed[7].first_physical_offset);
        CHECK(i == 2 || cmq_load_i64(units[i] + 12) == CMQ_GAP_TAGS_CODE);
    }
    cmq_verified verified;
    CHECK_INT(kit_verify(root, &verified)[CMQ_PROBLEM_GAP], 1);
    cmq_store *store = kit_open_at(root);
    kit_found *found = kit_found_make(1);
    CHECK_STATUS(cmq_store_read_offset(store, kit_slice("a"), 0, 5, &found->batch), CMQ_ERR_NOT_FOUND);
    CHECK_OK(cmq_store_read_offset(store, kit_slice("a"), 0, 7, &found->batch));
    kit_found_free(found);
    kit_close(store);
}

CMQ_TEST_MAIN(CMQ_TEST(test_damage_is_filled), CMQ_TEST(test_a_gap_names_the_record_behind_it))
