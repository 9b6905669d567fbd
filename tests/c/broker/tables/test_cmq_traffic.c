/* Traffic: sums by topic and group, listed beside a counting thread.
 *
 * Threads: yes.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "broker/tables/cmq_traffic.h"
#include "support/cmq_test.h"

enum { TOPICS = 300, GROUPS = 3 };

static void name_of(char *name, size_t bytes, const char *kind, int number)
{
    snprintf(name, bytes, "%s-%d", kind, number);
}

static void count_all(cmq_traffic *traffic)
{
    for (int topic = 0; topic < TOPICS; topic++) {
        char topic_name[32];
        name_of(topic_name, sizeof topic_name, "topic", topic);
        cmq_traffic_count(traffic, cmq_slice_of_text(topic_name), CMQ_SLICE_NONE, 1, 10);
        for (int group = 0; group < GROUPS; group++) {
            char group_name[32];
            name_of(group_name, sizeof group_name, "group", group);
            cmq_traffic_count(traffic, cmq_slice_of_text(topic_name), cmq_slice_of_text(group_name), 2, 20);
        }
    }
}

/* The number of entries; every one's messages are a tenth of its bytes, or were a moment ago. */
static uint32_t list_all(const cmq_traffic *traffic, uint64_t *messages_out)
{
    cmq_traffic_item items[64];
    uint32_t cursor = 0, total = 0, count;
    *messages_out = 0;
    while ((count = cmq_traffic_list(traffic, &cursor, items, 64)) > 0) {
        for (uint32_t i = 0; i < count; i++) {
            CHECK(items[i].topic.bytes > 6 && memcmp(items[i].topic.data, "topic-", 6) == 0);
            CHECK(items[i].group.bytes == 0 || memcmp(items[i].group.data, "group-", 6) == 0);
            *messages_out += items[i].messages;
        }
        total += count;
    }
    return total;
}

static void sums_up(void)
{
    cmq_traffic *traffic;
    CHECK_OK(cmq_traffic_create(&traffic));
    for (int round = 0; round < 5; round++) count_all(traffic);
    uint64_t messages;
    CHECK_INT(list_all(traffic, &messages), TOPICS * (GROUPS + 1));
    CHECK_INT(messages, 5 * TOPICS * (1 + 2 * GROUPS));
    cmq_traffic_destroy(traffic);
}

/* A topic "ab" with group "c" is not a topic "a" with group "bc". */
static void names_do_not_run_together(void)
{
    cmq_traffic *traffic;
    CHECK_OK(cmq_traffic_create(&traffic));
    cmq_traffic_count(traffic, cmq_slice_of_text("ab"), cmq_slice_of_text("c"), 1, 1);
    cmq_traffic_count(traffic, cmq_slice_of_text("a"), cmq_slice_of_text("bc"), 2, 2);
    cmq_traffic_item items[4];
    uint32_t cursor = 0;
    CHECK_INT(cmq_traffic_list(traffic, &cursor, items, 4), 2);
    CHECK_INT(items[0].messages, 1);
    CHECK_INT(items[1].messages, 2);
    cmq_traffic_destroy(traffic);
}

/* Names that a client makes up do not fill memory; those that were counted before still are. */
static void entries_have_a_limit(void)
{
    enum { ENTRIES = CMQ_TRAFFIC_ENTRIES_MAX, MORE = 10 };
    cmq_traffic *traffic;
    CHECK_OK(cmq_traffic_create(&traffic));
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < ENTRIES + MORE; i++) {
            char name[32];
            name_of(name, sizeof name, "topic", i);
            cmq_traffic_count(traffic, cmq_slice_of_text(name), CMQ_SLICE_NONE, 1, 10);
        }
    uint64_t messages;
    CHECK_INT(list_all(traffic, &messages), ENTRIES);
    CHECK_INT(messages, 2 * ENTRIES);
    cmq_traffic_destroy(traffic);
}

static void *count_rounds(void *traffic)
{
    for (int round = 0; round < 50; round++) count_all(traffic);
    return NULL;
}

static void is_listed_while_it_counts(void)
{
    cmq_traffic *traffic;
    pthread_t thread;
    CHECK_OK(cmq_traffic_create(&traffic));
    CHECK_INT(pthread_create(&thread, NULL, count_rounds, traffic), 0);
    uint64_t before = 0, messages = 0;
    while (messages < UINT64_C(50) * TOPICS * (1 + 2 * GROUPS)) {
        list_all(traffic, &messages);
        CHECK(messages >= before);
        before = messages;
    }
    pthread_join(thread, NULL);
    cmq_traffic_destroy(traffic);
}

CMQ_TEST_MAIN(CMQ_TEST(sums_up), CMQ_TEST(names_do_not_run_together), CMQ_TEST(entries_have_a_limit),
              CMQ_TEST(is_listed_while_it_counts))
