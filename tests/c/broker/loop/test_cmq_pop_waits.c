/* Held pops: by topic, group and queue, in order of their deadlines, and what their limits are; against a plain
 * list. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "broker/loop/cmq_pop_waits.h"
#include "support/cmq_test.h"

#define NONE CMQ_POP_WAIT_NONE

static cmq_pop_wait wait_of(const char *topic, const char *group, int32_t queue_id, int32_t opaque)
{
    return (cmq_pop_wait){.topic = cmq_slice_of_text(topic),
                          .group = cmq_slice_of_text(group),
                          .queue_id = queue_id,
                          .code = 200050,
                          .opaque = opaque,
                          .max_messages = 32,
                          .invisible_ms = 60000,
                          .expires_ns = 15000,
                          .conn = 7,
                          .format = CMQ_HEADER_JSON};
}

static cmq_pop_waits *make(uint32_t count_max, uint32_t key_max)
{
    cmq_pop_waits *waits;
    CHECK_OK(cmq_pop_waits_create(&waits, count_max, key_max));
    return waits;
}

static uint32_t add(cmq_pop_waits *waits, const char *topic, const char *group, int32_t queue_id, int32_t opaque,
                    int64_t deadline, uint32_t conn_slot)
{
    const cmq_pop_wait wait = wait_of(topic, group, queue_id, opaque);
    uint32_t number;
    CHECK_OK(cmq_pop_waits_add(waits, &wait, deadline, conn_slot, &number));
    return number;
}

static int32_t opaque_of(const cmq_pop_waits *waits, uint32_t number)
{
    cmq_pop_wait wait;
    if (number == NONE) return -1;
    cmq_pop_waits_get(waits, number, &wait);
    return wait.opaque;
}

static int32_t first_at(const cmq_pop_waits *waits, const char *topic, const char *group, int32_t queue_id)
{
    return opaque_of(waits,
                     cmq_pop_waits_at(waits, cmq_slice_of_text(topic), cmq_slice_of_text(group), queue_id, false));
}

static void a_wait_keeps_its_request(void)
{
    cmq_pop_waits *waits = make(10, 10);
    cmq_filter *filter;
    CHECK_OK(cmq_filter_parse(cmq_slice_of_text("a || b"), &filter));
    char names[] = "TOPICgroupattempt";
    const cmq_pop_wait asked = {.topic = {.data = (uint8_t *)names, .bytes = 5},
                                .group = {.data = (uint8_t *)names + 5, .bytes = 5},
                                .attempt = {.data = (uint8_t *)names + 10, .bytes = 7},
                                .queue_id = 3,
                                .code = 200054,
                                .opaque = 9,
                                .max_messages = 17,
                                .init = 1,
                                .format = CMQ_HEADER_ROCKETMQ,
                                .invisible_ms = 1000,
                                .expires_ns = 2000,
                                .filter = filter,
                                .conn = 99,
                                .order = true};
    uint32_t number;
    CHECK_OK(cmq_pop_waits_add(waits, &asked, 5, 2, &number));
    memset(names, 'x', sizeof names - 1);   /* they were borrowed */
    cmq_pop_wait wait;
    cmq_pop_waits_get(waits, number, &wait);
    CHECK_BYTES(wait.topic.data, wait.topic.bytes, "TOPIC", 5);
    CHECK_BYTES(wait.group.data, wait.group.bytes, "group", 5);
    CHECK_BYTES(wait.attempt.data, wait.attempt.bytes, "attempt", 7);
    CHECK_INT(wait.queue_id, 3);
    CHECK_INT(wait.code, 200054);
    CHECK_INT(wait.opaque, 9);
    CHECK_INT(wait.max_messages, 17);
    CHECK_INT(wait.init, 1);
    CHECK_INT(wait.format, CMQ_HEADER_ROCKETMQ);
    CHECK_INT(wait.invisible_ms, 1000);
    CHECK_INT(wait.expires_ns, 2000);
    CHECK_INT(wait.conn, 99);
    CHECK(wait.order && wait.filter == filter);
    CHECK_INT(cmq_pop_waits_first_deadline(waits), 5);
    CHECK_INT(cmq_pop_waits_due(waits, 4), NONE);
    CHECK_INT(cmq_pop_waits_due(waits, 5), number);
    cmq_pop_waits_destroy(waits);   /* with the filter and the attempt */
}

static void the_earliest_of_a_key_is_first(void)
{
    cmq_pop_waits *waits = make(10, 10);
    add(waits, "T", "G", -1, 1, 200, 0);
    add(waits, "T", "G", -1, 2, 100, 0);
    add(waits, "T", "G", -1, 3, 200, 0);
    add(waits, "T", "G", 0, 4, 50, 0);
    CHECK_INT(first_at(waits, "T", "G", -1), 2);
    CHECK_INT(opaque_of(waits, cmq_pop_waits_at(waits, cmq_slice_of_text("T"), cmq_slice_of_text("G"), -1, true)), 3);
    CHECK_INT(cmq_pop_waits_count_at(waits, cmq_slice_of_text("T"), cmq_slice_of_text("G"), -1), 3);
    cmq_pop_waits_remove(waits, cmq_pop_waits_at(waits, cmq_slice_of_text("T"), cmq_slice_of_text("G"), -1, false));
    CHECK_INT(first_at(waits, "T", "G", -1), 1);
    cmq_pop_waits_move(waits, cmq_pop_waits_due(waits, 50), 300);
    CHECK_INT(cmq_pop_waits_first_deadline(waits), 200);
    cmq_pop_waits_move(waits, cmq_pop_waits_due(waits, 200), 200);   /* behind those of the same deadline */
    CHECK_INT(first_at(waits, "T", "G", -1), 3);
    CHECK_INT(cmq_pop_waits_count(waits), 3);
    CHECK_INT(first_at(waits, "T", "G", 0), 4);
    CHECK_INT(first_at(waits, "T", "G", 1), -1);
    CHECK_INT(first_at(waits, "T", "H", -1), -1);
    cmq_pop_waits_destroy(waits);
}

/* One of each group at "all queues" and at the queue itself; none of another queue or topic. */
static void an_arrival_concerns_one_wait_of_each_key(void)
{
    cmq_pop_waits *waits = make(2000, 2000);
    bool expected[1000] = {false};
    int32_t opaque = 0;
    for (int g = 0; g < 100; g++) {
        char group[16];
        snprintf(group, sizeof group, "G%d", g);
        expected[opaque] = true;
        add(waits, "T", group, -1, opaque++, 10, 0);
        add(waits, "T", group, -1, opaque++, 11, 0);
        expected[opaque] = true;
        add(waits, "T", group, 2, opaque++, 12, 0);
        add(waits, "T", group, 3, opaque++, 9, 0);
        add(waits, "TT", group, -1, opaque++, 9, 0);
    }
    uint32_t numbers[7], total = 0;
    const cmq_slice topic = cmq_slice_of_text("T");
    cmq_pop_waits_open_round(waits, topic, 2);
    while (cmq_pop_waits_round(waits, topic, 2) == CMQ_POP_ROUND_OPEN) {
        const uint32_t count = cmq_pop_waits_next_of_round(waits, topic, numbers, 7);
        for (uint32_t i = 0; i < count; i++, total++) {
            const int32_t found = opaque_of(waits, numbers[i]);
            CHECK(expected[found]);
            expected[found] = false;
        }
    }
    CHECK_INT(total, 200);
    CHECK_INT(cmq_pop_waits_round(waits, topic, 2), CMQ_POP_ROUND_NONE);
    CHECK_INT(cmq_pop_waits_round(waits, cmq_slice_of_text("unknown"), 2), CMQ_POP_ROUND_NOBODY);
    cmq_pop_waits_destroy(waits);
}

/* Waits go and come during a round: each that was there from its beginning to its end is met once. */
static void rounds_survive_changes(void)
{
    enum { GROUPS_HERE = 60 };
    cmq_pop_waits *waits = make(2000, 2000);
    const cmq_slice topic = cmq_slice_of_text("T");
    uint32_t numbers[GROUPS_HERE], some[4];
    bool met[2 * GROUPS_HERE] = {false};
    char group[16];
    for (int32_t g = 0; g < GROUPS_HERE; g++) {
        snprintf(group, sizeof group, "G%d", g);
        numbers[g] = add(waits, "T", group, -1, g, 10, 0);
    }
    cmq_pop_waits_open_round(waits, topic, 0);
    CHECK_INT(cmq_pop_waits_round(waits, topic, 1), CMQ_POP_ROUND_OTHER);
    int32_t added = GROUPS_HERE;
    while (cmq_pop_waits_round(waits, topic, 0) == CMQ_POP_ROUND_OPEN) {
        const uint32_t count = cmq_pop_waits_next_of_round(waits, topic, some, 4);
        int32_t next = -1;
        for (uint32_t i = 0; i < count; i++) {
            const int32_t found = opaque_of(waits, some[i]);
            CHECK(found >= 0 && found < GROUPS_HERE && !met[found]);
            met[found] = true;
            next = found - 1;   /* the last came first */
            if (found % 2 == 0) cmq_pop_waits_remove(waits, some[i]);
        }
        /* The next to be looked at goes, and another comes. */
        if (next < 0) continue;
        CHECK(!met[next]);
        met[next] = true;
        cmq_pop_waits_remove(waits, numbers[next]);
        snprintf(group, sizeof group, "G%d", added);
        add(waits, "T", group, -1, added++, 10, 0);
    }
    for (int32_t g = 0; g < GROUPS_HERE; g++) CHECK(met[g]);
    /* With its last wait the topic goes, and its round. */
    cmq_pop_waits_open_round(waits, topic, 0);
    for (uint32_t number; (number = cmq_pop_waits_of_conn(waits, 0)) != NONE;) cmq_pop_waits_remove(waits, number);
    CHECK_INT(cmq_pop_waits_next_of_round(waits, topic, some, 4), 0);
    CHECK_INT(cmq_pop_waits_round(waits, topic, 0), CMQ_POP_ROUND_NOBODY);
    cmq_pop_waits_destroy(waits);
}

static void limits_are_of_all_and_of_a_key(void)
{
    cmq_pop_waits *waits = make(4, 2);
    uint32_t number;
    add(waits, "T", "G", -1, 1, 10, 0);
    add(waits, "T", "G", -1, 2, 10, 0);
    const cmq_pop_wait third = wait_of("T", "G", -1, 3), fifth = wait_of("T", "J", -1, 5);
    CHECK_STATUS(cmq_pop_waits_add(waits, &third, 10, 0, &number), CMQ_ERR_LIMIT);
    add(waits, "T", "H", -1, 3, 10, 0);
    add(waits, "T", "I", -1, 4, 10, 0);
    CHECK_STATUS(cmq_pop_waits_add(waits, &fifth, 10, 0, &number), CMQ_ERR_LIMIT);
    cmq_pop_waits_remove(waits, cmq_pop_waits_due(waits, 10));
    CHECK_OK(cmq_pop_waits_add(waits, &fifth, 10, 0, &number));
    CHECK_INT(cmq_pop_waits_count(waits), 4);
    cmq_pop_waits_destroy(waits);
}

/* ---- random histories against a list ---- */

enum { MODEL_MAX = 200, TOPICS = 3, GROUPS = 4, QUEUES = 3, CONNS = 6 };

typedef struct model_wait {
    int topic, group;
    int32_t queue_id, opaque, arrival;
    int64_t deadline;
    uint32_t conn, number;
} model_wait;

static model_wait model[MODEL_MAX];
static uint32_t model_count;

static const char *const topic_names[TOPICS] = {"T", "TT", "%RETRY%G_T"};
static const char *const group_names[GROUPS] = {"G", "GG", "T", "TT"};

/* The first in order of deadline, then arrival, of those at a key, or (topic -1) of all. */
static const model_wait *model_first(int topic, int group, int32_t queue_id)
{
    const model_wait *first = NULL;
    for (uint32_t i = 0; i < model_count; i++) {
        const model_wait *w = &model[i];
        if (topic >= 0 && (w->topic != topic || w->group != group || w->queue_id != queue_id)) continue;
        if (first == NULL || w->deadline < first->deadline ||
            (w->deadline == first->deadline && w->arrival < first->arrival))
            first = w;
    }
    return first;
}

static void check_against_model(cmq_pop_waits *waits)
{
    CHECK_INT(cmq_pop_waits_count(waits), model_count);
    const model_wait *due = model_first(-1, 0, 0);
    CHECK_INT(cmq_pop_waits_first_deadline(waits), due != NULL ? due->deadline : INT64_MAX);
    CHECK_INT(opaque_of(waits, cmq_pop_waits_due(waits, INT64_MAX)), due != NULL ? due->opaque : -1);
    for (int t = 0; t < TOPICS; t++) {
        for (int32_t q = -1; q < QUEUES; q++) {
            uint32_t expected = 0, numbers[2], found = 0;
            const cmq_slice topic = cmq_slice_of_text(topic_names[t]);
            for (int g = 0; g < GROUPS; g++) {
                const model_wait *first = model_first(t, g, q), *of_all = model_first(t, g, -1);
                CHECK_INT(first_at(waits, topic_names[t], group_names[g], q), first != NULL ? first->opaque : -1);
                expected += (of_all != NULL ? 1u : 0u) + (q >= 0 && first != NULL ? 1u : 0u);
            }
            cmq_pop_waits_open_round(waits, topic, q);
            while (cmq_pop_waits_round(waits, topic, q) == CMQ_POP_ROUND_OPEN)
                found += cmq_pop_waits_next_of_round(waits, topic, numbers, 2);
            CHECK_INT(found, expected);
        }
    }
    for (int g = 0; g < GROUPS; g++) {
        bool any = false;
        for (uint32_t i = 0; i < model_count; i++) any = any || model[i].group == g;
        CHECK((cmq_pop_waits_of_group(waits, cmq_slice_of_text(group_names[g])) != NONE) == any);
    }
}

static void remove_from_model(cmq_pop_waits *waits, uint32_t number)
{
    uint32_t i = 0;
    while (i < model_count && model[i].number != number) i++;
    CHECK(i < model_count);
    cmq_pop_waits_remove(waits, number);
    model[i] = model[--model_count];
}

static void random_histories_agree_with_a_list(void)
{
    cmq_pop_waits *waits = make(MODEL_MAX, MODEL_MAX);
    model_count = 0;
    for (int32_t step = 0; step < 3000; step++) {
        const uint64_t what = cmq_test_random_below(20);
        if (what < 11 && model_count < MODEL_MAX) {
            model_wait *w = &model[model_count++];
            *w = (model_wait){.topic = (int)cmq_test_random_below(TOPICS),
                              .group = (int)cmq_test_random_below(GROUPS),
                              .queue_id = (int32_t)cmq_test_random_below(QUEUES + 1) - 1,
                              .opaque = step,
                              .arrival = step,
                              .deadline = (int64_t)cmq_test_random_below(50),
                              .conn = (uint32_t)cmq_test_random_below(CONNS)};
            w->number =
                add(waits, topic_names[w->topic], group_names[w->group], w->queue_id, w->opaque, w->deadline, w->conn);
        } else if (what < 18 && model_count > 0) {
            remove_from_model(waits, what < 14 ? cmq_pop_waits_due(waits, INT64_MAX)
                                               : model[cmq_test_random_below(model_count)].number);
        } else if (what < 19 && model_count > 0) {
            model_wait *w = &model[cmq_test_random_below(model_count)];
            w->deadline = (int64_t)cmq_test_random_below(50);
            w->arrival = step;
            cmq_pop_waits_move(waits, w->number, w->deadline);
        } else if (cmq_test_random_below(8) == 0) {
            const uint32_t conn = (uint32_t)cmq_test_random_below(CONNS);
            for (uint32_t number; (number = cmq_pop_waits_of_conn(waits, conn)) != NONE;)
                remove_from_model(waits, number);
            for (uint32_t i = 0; i < model_count; i++) CHECK(model[i].conn != conn);
        }
        if (step % 10 == 0) check_against_model(waits);
    }
    while (model_count > 0) remove_from_model(waits, model[0].number);
    check_against_model(waits);
    cmq_pop_waits_destroy(waits);
}

static void a_wait_is_small(void)
{
    enum { WAITS = 65536 };
    cmq_pop_waits *waits = make(WAITS, WAITS);
    for (int32_t i = 0; i < WAITS; i++) add(waits, "T", "G", -1, i, 100, (uint32_t)i % 16);
    const size_t bytes = cmq_pop_waits_bytes(waits) / WAITS;
    if (bytes > 136) cmq_test_fail(__FILE__, __LINE__, "a wait takes %zu bytes", bytes);
    cmq_pop_waits_destroy(waits);
}

CMQ_TEST_MAIN(CMQ_TEST(a_wait_keeps_its_request), CMQ_TEST(the_earliest_of_a_key_is_first),
              CMQ_TEST(an_arrival_concerns_one_wait_of_each_key), CMQ_TEST(rounds_survive_changes),
              CMQ_TEST(limits_are_of_all_and_of_a_key),
              CMQ_TEST(random_histories_agree_with_a_list), CMQ_TEST(a_wait_is_small))
