/* Held pulls: found by queue, group, connection and deadline, against a plain list; their size; limits. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "broker/loop/cmq_hold.h"
#include "support/cmq_test.h"

static cmq_slice text(const char *name) { return cmq_slice_of_text(name); }

static cmq_held_pull pull_of(const char *group, const char *topic, int32_t queue_id, cmq_conn_id conn)
{
    return (cmq_held_pull){.group = text(group),
                           .topic = text(topic),
                           .queue_id = queue_id,
                           .from = 7,
                           .sub_version = 11,
                           .conn = conn,
                           .opaque = 13,
                           .max_messages = 32,
                           .max_bytes = 1 << 18,
                           .code = 11,
                           .format = CMQ_HEADER_ROCKETMQ};
}

static void keeps_the_given_pull(void)
{
    cmq_holds *holds;
    CHECK_OK(cmq_holds_create(&holds, 10));
    cmq_hold hold;
    cmq_filter *filter;
    CHECK_OK(cmq_filter_parse(text("a || b"), &filter));
    cmq_held_pull pull = pull_of("g", "t", 3, 5), held;
    pull.filter = filter;
    CHECK_OK(cmq_holds_add(holds, &pull, filter, 100, 0, &hold));
    cmq_holds_get(holds, hold, &held);
    CHECK(cmq_slice_equal(held.group, text("g")) && cmq_slice_equal(held.topic, text("t")) && held.filter == filter);
    CHECK_INT(held.queue_id, 3);
    CHECK_INT(held.from, 7);
    CHECK_INT(held.sub_version, 11);
    CHECK_INT(held.conn, 5);
    CHECK_INT(held.opaque, 13);
    CHECK_INT(held.max_messages, 32);
    CHECK_INT(held.max_bytes, 1 << 18);
    CHECK_INT(held.code, 11);
    CHECK_INT(held.format, CMQ_HEADER_ROCKETMQ);
    CHECK(!held.moved);
    cmq_holds_set_seen(holds, cmq_holds_find_queue(holds, text("t"), 3), 9);
    cmq_holds_get(holds, hold, &held);
    CHECK(held.moved);
    CHECK_INT(held.from, 9);
    cmq_holds_destroy(holds);   /* gives the filter's reference back: the leak checker sees it if not */
}

static void ends_at_its_own_deadline(void)
{
    cmq_holds *holds;
    CHECK_OK(cmq_holds_create(&holds, 10));
    cmq_hold late, early;
    const cmq_held_pull pull = pull_of("g", "t", 0, 1);
    CHECK_INT(cmq_holds_due_ns(holds), INT64_MAX);
    CHECK_OK(cmq_holds_add(holds, &pull, cmq_filter_all(), 15000, 0, &late));
    CHECK_OK(cmq_holds_add(holds, &pull, cmq_filter_all(), 14000, 0, &early));
    CHECK_INT(cmq_holds_due_ns(holds), 14000);
    CHECK_INT(cmq_holds_due(holds, 13999), CMQ_HOLD_NONE);
    CHECK_INT(cmq_holds_due(holds, 14000), early);
    cmq_holds_remove(holds, early);
    CHECK_INT(cmq_holds_due(holds, 14999), CMQ_HOLD_NONE);
    CHECK_INT(cmq_holds_due(holds, 15000), late);
    cmq_holds_remove(holds, late);
    CHECK_INT(cmq_holds_due_ns(holds), INT64_MAX);
    CHECK_INT(cmq_holds_of_conn(holds, 0), CMQ_HOLD_NONE);
    cmq_holds_destroy(holds);
}

static void refuses_one_too_many(void)
{
    cmq_holds *holds;
    CHECK_OK(cmq_holds_create(&holds, 2));
    cmq_hold hold;
    const cmq_held_pull pull = pull_of("g", "t", 0, 1), other = pull_of("h", "u", 0, 1);
    CHECK_OK(cmq_holds_add(holds, &pull, cmq_filter_all(), 1, 0, &hold));
    CHECK_OK(cmq_holds_add(holds, &pull, cmq_filter_all(), 2, 0, &hold));
    CHECK_STATUS(cmq_holds_add(holds, &other, cmq_filter_all(), 3, 0, &hold), CMQ_ERR_LIMIT);
    CHECK_INT(hold, CMQ_HOLD_NONE);
    CHECK_INT(cmq_holds_of_queue(holds, text("u"), 0), CMQ_HOLD_NONE);
    CHECK_INT(cmq_holds_count(holds), 2);
    cmq_holds_destroy(holds);
}

/* A queue, a group and a connection each: at most 256 bytes for each hold, names and all; shared ones less. */
static void is_small(void)
{
    enum { COUNT = 100000 };
    cmq_holds *holds;
    CHECK_OK(cmq_holds_create(&holds, COUNT));
    for (uint32_t i = 0; i < COUNT; i++) {
        char topic[32];
        cmq_hold hold;
        snprintf(topic, sizeof topic, "topic-%u", i / 8);
        const cmq_held_pull pull = pull_of("one group", topic, (int32_t)(i % 8), i + 1);
        CHECK_OK(cmq_holds_add(holds, &pull, cmq_filter_all(), i, i, &hold));
    }
    CHECK_INT(cmq_holds_count(holds), COUNT);
    CHECK(cmq_holds_bytes(holds) / COUNT <= 256);
    for (uint32_t i = 0; i < COUNT; i++) cmq_holds_remove(holds, cmq_holds_of_conn(holds, i));
    CHECK_INT(cmq_holds_count(holds), 0);
    cmq_holds_destroy(holds);
}

/* A look at each hold for each message would be ten thousand million: the test would not end. */
static void messages_of_other_tags_touch_no_hold(void)
{
    enum { COUNT = 100000 };
    cmq_holds *holds;
    cmq_hold hold;
    CHECK_OK(cmq_holds_create(&holds, COUNT));
    for (uint32_t i = 0; i < COUNT; i++) {
        cmq_filter *filter;
        const uint32_t hashes[] = {i, i + 1};
        const cmq_held_pull pull = pull_of("g", "t", 0, i + 1);
        CHECK_OK(cmq_filter_of_hashes(hashes, 2, &filter));
        CHECK_OK(cmq_holds_add(holds, &pull, filter, i, i, &hold));
        cmq_filter_release(filter);
    }
    const cmq_hold_queue queue = cmq_holds_find_queue(holds, text("t"), 0);
    for (uint32_t i = 0; i < COUNT; i++) {
        CHECK_INT(cmq_holds_of_tag(holds, queue, COUNT + 1 + i, 1000), CMQ_HOLD_NONE);
        CHECK_INT(cmq_holds_of_any(holds, queue, 1000), CMQ_HOLD_NONE);
    }
    CHECK(cmq_holds_of_tag(holds, queue, COUNT, 1000) == hold);
    cmq_holds_destroy(holds);
}

/* A queue was re-created, and the hold of before has ended: looks stop at the first hold again, though others are
 * there. */
static void looks_are_short_again_when_earlier_holds_have_ended(void)
{
    enum { COUNT = 100000 };
    cmq_holds *holds;
    cmq_hold before, hold;
    CHECK_OK(cmq_holds_create(&holds, COUNT + 1));
    cmq_held_pull pull = pull_of("g", "t", 0, 1);
    pull.from = 1000;
    CHECK_OK(cmq_holds_add(holds, &pull, cmq_filter_all(), 1, 0, &before));
    pull.from = 50;
    for (uint32_t i = 0; i < COUNT; i++) CHECK_OK(cmq_holds_add(holds, &pull, cmq_filter_all(), 1, i, &hold));
    const cmq_hold_queue queue = cmq_holds_find_queue(holds, text("t"), 0);
    CHECK(cmq_holds_of_any(holds, queue, 50) != CMQ_HOLD_NONE);
    CHECK_INT(cmq_holds_of_any(holds, queue, 49), CMQ_HOLD_NONE);
    cmq_holds_remove(holds, before);
    for (uint32_t i = 0; i < 50 * COUNT; i++) CHECK_INT(cmq_holds_of_any(holds, queue, 49), CMQ_HOLD_NONE);
    cmq_holds_destroy(holds);
}

/* One connection that takes more than its share leaves the other half to the others: of holds, and of tags. */
static void connections_have_a_share(void)
{
    enum { COUNT = 2048 };
    cmq_holds *holds;
    cmq_hold hold;
    cmq_filter *filter;
    static uint32_t hashes[CMQ_FILTER_TAGS_MAX];
    const cmq_held_pull pull = pull_of("g", "t", 0, 1);
    CHECK_OK(cmq_holds_create(&holds, COUNT));
    for (uint32_t i = 0; i < COUNT / 2; i++) CHECK_OK(cmq_holds_add(holds, &pull, cmq_filter_all(), 1, 0, &hold));
    CHECK_STATUS(cmq_holds_add(holds, &pull, cmq_filter_all(), 1, 0, &hold), CMQ_ERR_LIMIT);
    for (uint32_t i = 0; i <= COUNT / CMQ_HOLDS_SHARE; i++)
        CHECK_OK(cmq_holds_add(holds, &pull, cmq_filter_all(), 1, 1, &hold));
    CHECK_STATUS(cmq_holds_add(holds, &pull, cmq_filter_all(), 1, 1, &hold), CMQ_ERR_LIMIT);
    cmq_holds_remove(holds, cmq_holds_of_conn(holds, 1));
    CHECK_OK(cmq_holds_add(holds, &pull, cmq_filter_all(), 1, 1, &hold));
    cmq_holds_destroy(holds);

    CHECK_OK(cmq_holds_create(&holds, 100000));
    for (uint32_t i = 0; i < CMQ_FILTER_TAGS_MAX; i++) hashes[i] = i;
    CHECK_OK(cmq_filter_of_hashes(hashes, CMQ_FILTER_TAGS_MAX, &filter));
    for (uint32_t i = 0; i < CMQ_HOLDS_TAGS_MAX / 2 / CMQ_FILTER_TAGS_MAX; i++)
        CHECK_OK(cmq_holds_add(holds, &pull, filter, 1, 0, &hold));
    CHECK_STATUS(cmq_holds_add(holds, &pull, filter, 1, 0, &hold), CMQ_ERR_LIMIT);
    CHECK_OK(cmq_holds_add(holds, &pull, cmq_filter_all(), 1, 0, &hold));
    CHECK_OK(cmq_holds_add(holds, &pull, filter, 1, 1, &hold));
    cmq_filter_release(filter);
    cmq_holds_destroy(holds);
}

/* ---- against a plain list ---- */

enum { NAMES = 6, QUEUES = 3, CONNS = 5, TAGS = 5, MODEL_MAX = 400 };

typedef struct model_hold {
    cmq_hold hold;
    int64_t deadline, from;
    int topic, queue, group, conn;
    unsigned tags;   /* a bit each; all of them: any message */
} model_hold;

static model_hold model[MODEL_MAX];
static uint32_t model_count;

static const char *const topics[NAMES] = {"t0", "t1", "t2", "a-longer-topic-name", "%RETRY%g", "x"};
/* one is a topic's name, too */
static const char *const groups[NAMES] = {"g0", "g1", "g2", "a-longer-group-name", "t0", "y"};

static uint32_t count_list(const cmq_holds *holds, int topic, int queue, int group)
{
    uint32_t count = 0;
    cmq_hold hold = group >= 0 ? cmq_holds_of_group(holds, text(groups[group]))
                               : cmq_holds_of_queue(holds, text(topics[topic]), queue);
    while (hold != CMQ_HOLD_NONE) {
        cmq_held_pull held;
        cmq_holds_get(holds, hold, &held);
        if (group >= 0)
            CHECK(cmq_slice_equal(held.group, text(groups[group])));
        else
            CHECK(cmq_slice_equal(held.topic, text(topics[topic])) && held.queue_id == queue);
        count++;
        hold = group >= 0 ? cmq_holds_next_of_group(holds, hold) : cmq_holds_next_of_queue(holds, hold);
    }
    return count;
}

static const char *const expressions[1u << TAGS] = {[1] = "a", [2] = "b",  [3] = "a||b",        [4] = "c", [6] = "b||c",
                                                    [8] = "d", [16] = "e", [30] = "b||c||d||e", [31] = "*"};

static uint32_t hash_of(int tag) { return (uint32_t)("abcde"[tag]); }   /* String.hashCode of one letter */

/* Of those that a message of the tag at the offset ends: the one that came first. */
static cmq_hold expected_of(int topic, int queue, int tag, int64_t offset)
{
    for (uint32_t i = 0; i < model_count; i++) {
        const model_hold *m = &model[i];
        const bool fits = tag < 0 ? m->tags == 31 : m->tags != 31 && (m->tags >> tag & 1) != 0;
        if (m->topic == topic && m->queue == queue && fits && m->from <= offset) return m->hold;
    }
    return CMQ_HOLD_NONE;
}

static void check_arrivals(const cmq_holds *holds)
{
    for (int topic = 0; topic < NAMES; topic++) {
        for (int queue = 0; queue < QUEUES; queue++) {
            const cmq_hold_queue of = cmq_holds_find_queue(holds, text(topics[topic]), queue);
            const int64_t offset = (int64_t)cmq_test_random_below(60);
            for (int tag = -1; tag < TAGS; tag++) {
                cmq_hold found = CMQ_HOLD_NONE;
                if (of != CMQ_HOLD_NONE)
                    found = tag < 0 ? cmq_holds_of_any(holds, of, offset)
                                    : cmq_holds_of_tag(holds, of, hash_of(tag), offset);
                CHECK_INT(found, expected_of(topic, queue, tag, offset));
            }
        }
    }
}

static void check_against_model(const cmq_holds *holds)
{
    check_arrivals(holds);
    CHECK_INT(cmq_holds_count(holds), model_count);
    int64_t first = INT64_MAX;
    for (uint32_t i = 0; i < model_count; i++)
        if (model[i].deadline < first) first = model[i].deadline;
    CHECK_INT(cmq_holds_due_ns(holds), first);
    for (int name = 0; name < NAMES; name++) {
        uint32_t of_group = 0, of_queue[QUEUES] = {0};
        for (uint32_t i = 0; i < model_count; i++) {
            if (model[i].group == name) of_group++;
            if (model[i].topic == name) of_queue[model[i].queue]++;
        }
        CHECK_INT(count_list(holds, -1, -1, name), of_group);
        for (int queue = 0; queue < QUEUES; queue++) CHECK_INT(count_list(holds, name, queue, -1), of_queue[queue]);
    }
    for (int conn = 0; conn < CONNS; conn++) {
        bool any = false;
        for (uint32_t i = 0; i < model_count; i++) any = any || model[i].conn == conn;
        CHECK((cmq_holds_of_conn(holds, (uint32_t)conn) != CMQ_HOLD_NONE) == any);
    }
}

static void forget(cmq_hold hold)
{
    uint32_t i = 0;
    while (i < model_count && model[i].hold != hold) i++;
    CHECK(i < model_count);
    model_count--;
    memmove(&model[i], &model[i + 1], (model_count - i) * sizeof model[0]);   /* the order is that of their coming */
}

static void behaves_like_a_list(void)
{
    cmq_holds *holds;
    CHECK_OK(cmq_holds_create(&holds, MODEL_MAX));
    model_count = 0;
    for (int step = 0; step < 20000; step++) {
        const uint32_t what = (uint32_t)(cmq_test_random() % 10);
        if (what < 5 && model_count < MODEL_MAX) {
            model_hold m = {.deadline = (int64_t)(cmq_test_random() % 1000), .topic = (int)(cmq_test_random() % NAMES),
                            .queue = (int)(cmq_test_random() % QUEUES), .group = (int)(cmq_test_random() % NAMES),
                            .conn = (int)(cmq_test_random() % CONNS)};
            cmq_held_pull pull = pull_of(groups[m.group], topics[m.topic], m.queue, (cmq_conn_id)m.conn + 1);
            cmq_filter *filter;
            do {
                m.tags = (unsigned)cmq_test_random_below(1u << TAGS);
            } while (expressions[m.tags] == NULL);
            m.from = step % 50 == 0 ? (int64_t)cmq_test_random_below(50) : step / 500;   /* as a rule they rise */
            pull.from = m.from;
            CHECK_OK(cmq_filter_parse(text(expressions[m.tags]), &filter));
            CHECK_OK(cmq_holds_add(holds, &pull, filter, m.deadline, (uint32_t)m.conn, &m.hold));
            cmq_filter_release(filter);
            model[model_count++] = m;
        } else if (what < 7 && model_count > 0) {
            const cmq_hold hold = model[cmq_test_random() % model_count].hold;
            cmq_holds_remove(holds, hold);
            forget(hold);
        } else if (what == 7) {
            const int conn = (int)(cmq_test_random() % CONNS);
            for (cmq_hold hold; (hold = cmq_holds_of_conn(holds, (uint32_t)conn)) != CMQ_HOLD_NONE; forget(hold))
                cmq_holds_remove(holds, hold);
        } else if (what == 8) {
            const int64_t now = (int64_t)(cmq_test_random() % 300);
            for (cmq_hold hold; (hold = cmq_holds_due(holds, now)) != CMQ_HOLD_NONE; forget(hold))
                cmq_holds_remove(holds, hold);
        }
        if (step % 64 == 0) check_against_model(holds);
    }
    check_against_model(holds);
    cmq_holds_destroy(holds);
}

CMQ_TEST_MAIN(CMQ_TEST(keeps_the_given_pull), CMQ_TEST(ends_at_its_own_deadline), CMQ_TEST(refuses_one_too_many),
              CMQ_TEST(is_small), CMQ_TEST(messages_of_other_tags_touch_no_hold),
              CMQ_TEST(looks_are_short_again_when_earlier_holds_have_ended), CMQ_TEST(connections_have_a_share),
              CMQ_TEST(behaves_like_a_list))
