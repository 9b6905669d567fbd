/* Tests csrc/broker/pop/revive/cmq_pop_unfinished.c against a plain array: random adds, acks and drops, with doubled
 * keys and gaps; growing; names that come and go. */
#include "broker/pop/revive/cmq_pop_unfinished.h"

#include <stdlib.h>
#include <string.h>

#include "base/cmq_bitmap.h"
#include "support/cmq_test.h"

#define MODEL_MAX 20000

typedef struct model_entry {
    cmq_pop_checkpoint checkpoint;
    int32_t diffs[CMQ_POP_MESSAGES_MAX];
    uint32_t revived;
} model_entry;

static const char *const topics[] = {"T", "U", "%RETRY%g_T", "a-topic-with-a-longer-name"};

static cmq_slice topic_at(uint64_t index) { return cmq_slice_of_text(topics[index]); }

static void make_checkpoint(model_entry *into, int64_t revive_offset)
{
    memset(into, 0, sizeof *into);
    into->checkpoint = (cmq_pop_checkpoint){
        .start_offset = (int64_t)cmq_test_random_below(50),
        .pop_ms = 1000 + (int64_t)cmq_test_random_below(3),
        .invisible_ms = 10,
        .re_puts = (int32_t)cmq_test_random_below(2),
        .revive_offset = revive_offset,
        .num = (uint8_t)(1 + cmq_test_random_below(CMQ_POP_MESSAGES_MAX)),
        .queue_id = (int32_t)cmq_test_random_below(3),
        .topic = topic_at(cmq_test_random_below(4)),
        .group = cmq_slice_of_text("g"),
        .broker = cmq_slice_of_text(cmq_test_random_below(2) == 0 ? "b" : "c"),
    };
    const bool gaps = cmq_test_random_below(3) == 0;
    int32_t diff = 0;
    for (uint32_t i = 0; i < into->checkpoint.num; i++) {
        into->diffs[i] = diff;
        diff += 1 + (gaps ? (int32_t)cmq_test_random_below(3) : 0);
    }
}

static cmq_pop_ack ack_for(const cmq_pop_checkpoint *checkpoint)
{
    return (cmq_pop_ack){.topic = checkpoint->topic,
                         .group = checkpoint->group,
                         .broker = checkpoint->broker,
                         .queue_id = checkpoint->queue_id,
                         .start_offset = checkpoint->start_offset,
                         .pop_ms = checkpoint->pop_ms};
}

static bool is_named(const cmq_pop_checkpoint *checkpoint, const cmq_pop_ack *ack)
{
    return cmq_slice_equal(checkpoint->topic, ack->topic) && cmq_slice_equal(checkpoint->broker, ack->broker) &&
           checkpoint->queue_id == ack->queue_id && checkpoint->start_offset == ack->start_offset &&
           checkpoint->pop_ms == ack->pop_ms;
}

/* The model's result of an ack. */
static bool ack_model(model_entry *entries, uint32_t count, const cmq_pop_ack *ack, int64_t offset)
{
    bool found = false;
    for (uint32_t i = 0; i < count; i++) {
        if (!is_named(&entries[i].checkpoint, ack)) continue;
        for (uint32_t k = 0; k < entries[i].checkpoint.num; k++) {
            if (entries[i].checkpoint.start_offset + entries[i].diffs[k] != offset) continue;
            entries[i].checkpoint.bits |= UINT32_C(1) << k;
            found = true;
        }
    }
    return found;
}

/* Messages that other checkpoints of the key have are done in a new one: they were delivered again. */
static uint32_t known_bits(const model_entry *entries, uint32_t count, const model_entry *added)
{
    const cmq_pop_ack name = ack_for(&added->checkpoint);
    uint32_t bits = 0;
    for (uint32_t i = 0; i < count; i++) {
        const cmq_pop_checkpoint *other = &entries[i].checkpoint;
        if (!is_named(other, &name) || other->re_puts != added->checkpoint.re_puts) continue;
        for (uint32_t k = 0; k < added->checkpoint.num; k++)
            for (uint32_t n = 0; n < other->num; n++)
                if (added->diffs[k] == entries[i].diffs[n]) bits |= UINT32_C(1) << k;
    }
    return bits;
}

static void check_entry(const cmq_pop_unfinished *unfinished, uint32_t index, const model_entry *expected)
{
    int32_t diffs[CMQ_POP_MESSAGES_MAX];
    cmq_pop_checkpoint found;
    cmq_pop_unfinished_at(unfinished, index, diffs, &found);
    CHECK_INT(found.revive_offset, expected->checkpoint.revive_offset);
    CHECK_INT(found.bits, expected->checkpoint.bits);
    CHECK_INT(found.num, expected->checkpoint.num);
    CHECK(cmq_slice_equal(found.topic, expected->checkpoint.topic));
    CHECK(cmq_slice_equal(found.broker, expected->checkpoint.broker));
    for (uint32_t i = 0; i < found.num; i++)
        CHECK_INT(cmq_pop_offset_at(&found, i), expected->checkpoint.start_offset + expected->diffs[i]);
    CHECK_INT(cmq_pop_unfinished_revived(unfinished, index), expected->revived);
}

static void random_histories(void)
{
    model_entry *entries = malloc(MODEL_MAX * sizeof *entries);
    CHECK(entries != NULL);
    for (int round = 0; round < 8; round++) {
        cmq_pop_unfinished *unfinished;
        uint32_t first = 0, end = 0;
        CHECK_OK(cmq_pop_unfinished_create(&unfinished));
        const uint64_t bias = 3 + cmq_test_random_below(3);   /* grows, stays, shrinks */
        for (int step = 0; step < 3000; step++) {
            const uint64_t what = cmq_test_random_below(10);
            if (what < bias) {
                make_checkpoint(&entries[end], step);
                entries[end].checkpoint.diffs = entries[end].diffs;
                CHECK_OK(cmq_pop_unfinished_add(unfinished, &entries[end].checkpoint));
                const uint32_t known = known_bits(entries + first, end - first, &entries[end]);
                entries[end].checkpoint.bits |= known;
                if (known == cmq_bits_first(entries[end].checkpoint.num))
                    entries[end - 1].checkpoint.revive_offset = entries[end].checkpoint.revive_offset;
                else end++;
            } else if (what < 8) {
                model_entry other;
                make_checkpoint(&other, 0);
                const cmq_pop_ack ack =
                    ack_for(first < end && what < 7 ? &entries[first + cmq_test_random_below(end - first)].checkpoint
                                                    : &other.checkpoint);
                const int64_t offset = ack.start_offset - 1 + (int64_t)cmq_test_random_below(40);
                CHECK_INT(cmq_pop_unfinished_ack(unfinished, &ack, offset),
                          ack_model(entries + first, end - first, &ack, offset));
            } else if (first < end && what == 8) {
                model_entry *one = &entries[first];
                const uint32_t bit = (uint32_t)cmq_test_random_below(one->checkpoint.num);
                cmq_pop_unfinished_finish(unfinished, 0, bit, !cmq_bits_test(one->checkpoint.bits, bit));
                one->revived += !cmq_bits_test(one->checkpoint.bits, bit);
                one->checkpoint.bits = cmq_bits_set(one->checkpoint.bits, bit);
            } else if (first < end) {
                check_entry(unfinished, 0, &entries[first++]);
                cmq_pop_unfinished_drop(unfinished);
            }
            CHECK_INT(cmq_pop_unfinished_count(unfinished), end - first);
        }
        for (uint32_t i = first; i < end; i++) check_entry(unfinished, i - first, &entries[i]);
        for (; first < end; first++) {
            check_entry(unfinished, 0, &entries[first]);
            cmq_pop_unfinished_drop(unfinished);
        }
        cmq_pop_unfinished_destroy(unfinished);
    }
    free(entries);
}

/* 40,000 requests for the same change cost as much as 40,000 for different ones: they took 16 s of a thread that all
 * share. */
static void equal_ones_are_kept_once(void)
{
    cmq_pop_unfinished *unfinished;
    cmq_pop_checkpoint of = {.start_offset = 7,
                             .pop_ms = 1000,
                             .num = 1,
                             .topic = topic_at(0),
                             .group = cmq_slice_of_text("g"),
                             .broker = cmq_slice_of_text("b")};
    CHECK_OK(cmq_pop_unfinished_create(&unfinished));
    for (int i = 0; i < 40000; i++) {
        of.invisible_ms = i;
        of.revive_offset = i;
        CHECK_OK(cmq_pop_unfinished_add(unfinished, &of));
    }
    CHECK_INT(cmq_pop_unfinished_count(unfinished), 1);
    int32_t diffs[CMQ_POP_MESSAGES_MAX];
    cmq_pop_unfinished_at(unfinished, 0, diffs, &of);
    CHECK_INT(of.revive_offset, 39999);   /* all are done when it is */
    CHECK_INT(of.bits, 0);
    const cmq_pop_ack ack = ack_for(&of);
    CHECK(cmq_pop_unfinished_ack(unfinished, &ack, 7));
    cmq_pop_unfinished_drop(unfinished);
    CHECK_INT(cmq_pop_unfinished_count(unfinished), 0);
    cmq_pop_unfinished_destroy(unfinished);
}

CMQ_TEST_MAIN(CMQ_TEST(random_histories), CMQ_TEST(equal_ones_are_kept_once))
