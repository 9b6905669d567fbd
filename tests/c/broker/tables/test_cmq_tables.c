/* Tests csrc/broker/tables/cmq_tables.c: entries put, found, replaced, removed; entries that a reader has found stay;
 * serials of filters; sizes. Threads: yes. */
#include "broker/tables/cmq_tables.h"

#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cmq_hash.h"
#include "support/cmq_filter_kit.h"
#include "support/cmq_test.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

static cmq_tables *make_tables(cmq_tables_reader **reader_out)
{
    cmq_tables *tables;
    CHECK_OK(cmq_tables_create(&tables));
    CHECK_OK(cmq_tables_reader_create(tables, reader_out));
    return tables;
}

static void free_tables(cmq_tables *tables, cmq_tables_reader *reader)
{
    cmq_tables_reader_destroy(reader);
    cmq_tables_destroy(tables);
}

static void put_topic(cmq_tables *tables, const char *name, int32_t queues)
{
    const cmq_topic_entry topic = {
        .name = cmq_slice_of_text(name), .read_queues = queues, .write_queues = queues + 1, .perm = 6};
    CHECK_OK(cmq_tables_put_topic(tables, &topic));
}

static cmq_tables_counts counts_of(cmq_tables *tables)
{
    cmq_tables_counts counts;
    cmq_tables_count(tables, &counts);
    return counts;
}

static void topics_and_groups(void)
{
    cmq_tables_reader *reader;
    cmq_tables *tables = make_tables(&reader);
    char name[] = "orders";
    const cmq_topic_entry topic = {.name = cmq_slice_of_text(name),
                                   .read_queues = 4,
                                   .write_queues = 8,
                                   .perm = 6,
                                   .sys_flag = 3,
                                   .order = true,
                                   .kind = CMQ_TOPIC_BATCH,
                                   .message_type = CMQ_MESSAGE_FIFO};
    const cmq_group_entry group = {.name = cmq_slice_of_text("g"),
                                   .consume_enable = true,
                                   .consume_from_min = true,
                                   .notify = true,
                                   .retry_queues = 2,
                                   .retry_max = 16,
                                   .sys_flag = 5,
                                   .broker_id = 0,
                                   .which_broker_when_slow = 1};
    CHECK_OK(cmq_tables_put_topic(tables, &topic));
    CHECK_OK(cmq_tables_put_group(tables, &group));
    name[0] = 'x';   /* it was copied */
    cmq_tables_enter(reader);
    const cmq_topic_entry *found = cmq_tables_topic(reader, cmq_slice_of_text("orders"));
    CHECK(found != NULL && found->order && found->kind == CMQ_TOPIC_BATCH && found->message_type == CMQ_MESSAGE_FIFO);
    CHECK_INT(found->read_queues, 4);
    CHECK_INT(found->write_queues, 8);
    CHECK_INT(found->sys_flag, 3);
    CHECK_BYTES(found->name.data, found->name.bytes, "orders", 6);
    const cmq_group_entry *of_group = cmq_tables_group(reader, cmq_slice_of_text("g"));
    CHECK(of_group != NULL && of_group->consume_enable && !of_group->consume_broadcast_enable && of_group->notify);
    CHECK_INT(of_group->retry_max, 16);
    CHECK_INT(of_group->which_broker_when_slow, 1);
    CHECK(cmq_tables_topic(reader, cmq_slice_of_text("g")) == NULL &&
          cmq_tables_group(reader, cmq_slice_of_text("orders")) == NULL);
    CHECK(cmq_tables_consumer(reader, cmq_slice_of_text("g")) == NULL &&
          cmq_tables_topic(reader, CMQ_SLICE_NONE) == NULL);
    cmq_tables_leave(reader);
    CHECK(cmq_tables_remove_topic(tables, cmq_slice_of_text("orders")) &&
          !cmq_tables_remove_topic(tables, cmq_slice_of_text("orders")));
    CHECK(cmq_tables_remove_group(tables, cmq_slice_of_text("g")) &&
          !cmq_tables_remove_group(tables, cmq_slice_of_text("g")));
    cmq_tables_enter(reader);
    CHECK(cmq_tables_topic(reader, cmq_slice_of_text("orders")) == NULL &&
          cmq_tables_group(reader, cmq_slice_of_text("g")) == NULL);
    cmq_tables_leave(reader);
    free_tables(tables, reader);
}

static void perm_of_the_broker(void)
{
    cmq_tables_reader *reader;
    cmq_tables *tables = make_tables(&reader);
    CHECK_INT(cmq_tables_perm(reader), 6);
    cmq_tables_set_perm(tables, CMQ_PERM_READ);
    CHECK_INT(cmq_tables_perm(reader), 4);
    free_tables(tables, reader);
}

/* A found entry stays as it was until the reader leaves, and is freed then. */
static void found_entries_stay(void)
{
    cmq_tables_reader *reader, *other;
    cmq_tables *tables = make_tables(&reader);
    CHECK_OK(cmq_tables_reader_create(tables, &other));
    put_topic(tables, "T", 1);
    cmq_tables_enter(reader);
    const cmq_topic_entry *before = cmq_tables_topic(reader, cmq_slice_of_text("T"));
    put_topic(tables, "T", 2);
    CHECK_INT(counts_of(tables).retired, 1);
    CHECK_INT(cmq_tables_topic(reader, cmq_slice_of_text("T"))->read_queues, 2);
    CHECK(cmq_tables_remove_topic(tables, cmq_slice_of_text("T")));
    CHECK_INT(before->read_queues, 1);
    CHECK_BYTES(before->name.data, before->name.bytes, "T", 1);
    CHECK_INT(counts_of(tables).retired, 2);
    cmq_tables_enter(other);   /* came later: holds nothing up */
    cmq_tables_leave(reader);
    CHECK_INT(counts_of(tables).retired, 0);
    cmq_tables_leave(other);
    cmq_tables_reader_destroy(other);
    free_tables(tables, reader);
}

static void readers_up_to_the_limit(void)
{
    cmq_tables_reader *readers[CMQ_TABLES_READERS_MAX], *more;
    cmq_tables *tables;
    CHECK_OK(cmq_tables_create(&tables));
    for (uint32_t i = 0; i < CMQ_TABLES_READERS_MAX; i++) CHECK_OK(cmq_tables_reader_create(tables, &readers[i]));
    CHECK_STATUS(cmq_tables_reader_create(tables, &more), CMQ_ERR_LIMIT);
    CHECK(more == NULL);
    cmq_tables_reader_destroy(readers[5]);
    CHECK_OK(cmq_tables_reader_create(tables, &more));
    CHECK(more == readers[5]);
    for (uint32_t i = 0; i < CMQ_TABLES_READERS_MAX; i++) cmq_tables_reader_destroy(readers[i]);
    cmq_tables_destroy(tables);
}

/* ---- consumers ---- */

static cmq_filter *filter_of(const char *expression)
{
    cmq_filter *filter;
    CHECK_OK(cmq_filter_parse(cmq_slice_of_text(expression), &filter));
    return filter;
}

/* Put group "g" with subscriptions of A and Longer. */
static void put_consumer(cmq_tables *tables, const char *a, const char *longer, int64_t version)
{
    cmq_filter *filters[2] = {filter_of(a), filter_of(longer)};
    const cmq_subscription subscriptions[] = {
        {.topic = cmq_slice_of_text("Longer"), .filter = filters[1], .sub_version = version},
        {.topic = cmq_slice_of_text("A"), .filter = filters[0], .sub_version = version, .read_forbidden = true},
    };
    const cmq_consumer_entry consumer = {.group = cmq_slice_of_text("g"),
                                         .model = CMQ_MODEL_BROADCASTING,
                                         .type = CMQ_CONSUME_PASSIVELY,
                                         .subscription_count = 2,
                                         .subscriptions = subscriptions};
    CHECK_OK(cmq_tables_put_consumer(tables, &consumer));
    cmq_filter_release(filters[0]);
    cmq_filter_release(filters[1]);
}

static const cmq_subscription *subscription(cmq_tables_reader *reader, const char *topic)
{
    const cmq_consumer_entry *consumer = cmq_tables_consumer(reader, cmq_slice_of_text("g"));
    return consumer == NULL ? NULL : cmq_consumer_subscription(consumer, cmq_slice_of_text(topic));
}

static void a_serial_follows_the_filter(void)
{
    cmq_tables_reader *reader;
    cmq_tables *tables = make_tables(&reader);
    put_consumer(tables, "x||y", "*", 1);
    cmq_tables_enter(reader);
    const cmq_subscription *first = subscription(reader, "A"), *other = subscription(reader, "Longer");
    CHECK(first != NULL && other != NULL && subscription(reader, "B") == NULL && subscription(reader, "") == NULL);
    CHECK(first->read_forbidden && !other->read_forbidden && first->serial != other->serial && first->serial != 0 &&
          other->serial != 0);
    CHECK(cmq_tables_consumer(reader, cmq_slice_of_text("g"))->model == CMQ_MODEL_BROADCASTING);
    CHECK(cmq_filter_is_all(other->filter) &&
          cmq_filter_kit_passes(first->filter, (int32_t)cmq_jhash(cmq_slice_of_text("y"))));
    put_consumer(tables, "y || x", "*", 2);   /* the same, written otherwise, and newer */
    const cmq_subscription *second = subscription(reader, "A");
    CHECK_INT(second->sub_version, 2);
    CHECK_INT(first->sub_version, 1);
    CHECK(second->serial == first->serial && second->filter == first->filter);
    put_consumer(tables, "y", "*", 3);
    CHECK(subscription(reader, "A")->serial > other->serial && subscription(reader, "Longer")->serial == other->serial);
    const uint64_t third = subscription(reader, "A")->serial;
    CHECK(cmq_tables_remove_consumer(tables, cmq_slice_of_text("g")) && subscription(reader, "A") == NULL);
    put_consumer(tables, "y", "*", 3);
    CHECK(subscription(reader, "A")->serial > third);
    cmq_filter *kept = cmq_filter_keep(first->filter);
    cmq_tables_leave(reader);
    CHECK_INT(counts_of(tables).retired, 0);
    CHECK(!cmq_filter_kit_passes(kept, 0));   /* outlives its entry */
    cmq_filter_release(kept);
    free_tables(tables, reader);
}

static void another_type_is_another_filter(void)
{
    cmq_tables_reader *reader;
    cmq_tables *tables = make_tables(&reader);
    cmq_subscription subscriptions[] = {{.topic = cmq_slice_of_text("T")}};   /* filter NULL: all */
    const cmq_consumer_entry consumer = {
        .group = cmq_slice_of_text("g"), .subscription_count = 1, .subscriptions = subscriptions};
    CHECK_OK(cmq_tables_put_consumer(tables, &consumer));
    cmq_tables_enter(reader);
    const uint64_t before = subscription(reader, "T")->serial;
    CHECK(cmq_filter_is_all(subscription(reader, "T")->filter));
    subscriptions[0].type = CMQ_EXPRESSION_OTHER;
    CHECK_OK(cmq_tables_put_consumer(tables, &consumer));
    CHECK(subscription(reader, "T")->serial != before);
    cmq_tables_leave(reader);
    free_tables(tables, reader);
}

static void wrong_input_is_refused(void)
{
    cmq_tables_reader *reader;
    cmq_tables *tables = make_tables(&reader);
    char name[CMQ_TABLES_NAME_BYTES_MAX + 2];
    memset(name, 'n', sizeof name);
    const cmq_slice longest = {.data = (uint8_t *)name, .bytes = CMQ_TABLES_NAME_BYTES_MAX};
    const cmq_slice longer = {.data = longest.data, .bytes = longest.bytes + 1};
    CHECK_OK(cmq_tables_put_topic(tables, &(cmq_topic_entry){.name = longest}));
    CHECK_STATUS(cmq_tables_put_topic(tables, &(cmq_topic_entry){.name = longer}), CMQ_ERR_ARGUMENT);
    CHECK_STATUS(cmq_tables_put_group(tables, &(cmq_group_entry){.name = CMQ_SLICE_NONE}), CMQ_ERR_ARGUMENT);
    const cmq_subscription twice[] = {
        {.topic = cmq_slice_of_text("T")}, {.topic = cmq_slice_of_text("U")}, {.topic = cmq_slice_of_text("T")}};
    cmq_consumer_entry consumer = {.group = cmq_slice_of_text("g"), .subscription_count = 3, .subscriptions = twice};
    CHECK_STATUS(cmq_tables_put_consumer(tables, &consumer), CMQ_ERR_ARGUMENT);
    consumer.subscription_count = CMQ_TABLES_SUBSCRIPTIONS_MAX + 1;
    CHECK_STATUS(cmq_tables_put_consumer(tables, &consumer), CMQ_ERR_LIMIT);
    const cmq_subscription unnamed[] = {{.topic = CMQ_SLICE_NONE}};
    consumer = (cmq_consumer_entry){.group = cmq_slice_of_text("g"), .subscription_count = 1, .subscriptions = unnamed};
    CHECK_STATUS(cmq_tables_put_consumer(tables, &consumer), CMQ_ERR_ARGUMENT);
    CHECK_INT(counts_of(tables).consumers, 0);
    CHECK_INT(counts_of(tables).topics, 1);
    free_tables(tables, reader);
}

/* ---- many ---- */

static void fifty_thousand_topics(void)
{
    enum { COUNT = 50000 };
    char name[64];
    cmq_tables_reader *reader;
    cmq_tables *tables = make_tables(&reader);
    const size_t before = mallinfo2().uordblks;
    for (int i = 0; i < COUNT; i++) {
        snprintf(name, sizeof name, "topic-of-some-length-%05d", i);
        put_topic(tables, name, i);
    }
    const size_t each = (mallinfo2().uordblks - before) / COUNT;
    if (!SANITIZED && each > 200) cmq_test_fail(__FILE__, __LINE__, "a topic takes %zu bytes, 200 are allowed", each);
    for (int i = 0; i < COUNT; i += 2) {
        snprintf(name, sizeof name, "topic-of-some-length-%05d", i);
        CHECK(cmq_tables_remove_topic(tables, cmq_slice_of_text(name)));
    }
    cmq_tables_enter(reader);
    for (int i = 0; i < COUNT; i++) {
        snprintf(name, sizeof name, "topic-of-some-length-%05d", i);
        const cmq_topic_entry *found = cmq_tables_topic(reader, cmq_slice_of_text(name));
        CHECK((found == NULL) == (i % 2 == 0));
        if (found != NULL) CHECK_INT(found->read_queues, i);
    }
    cmq_tables_leave(reader);
    CHECK_INT(counts_of(tables).topics, COUNT / 2);
    free_tables(tables, reader);
}

/* Names that come and go for ever do not make the table grow. */
static void names_come_and_go(void)
{
    char name[32];
    cmq_tables_reader *reader;
    cmq_tables *tables = make_tables(&reader);
    const size_t before = mallinfo2().uordblks;
    for (int i = 0; i < 20000; i++) {
        snprintf(name, sizeof name, "g%d", i);
        CHECK_OK(cmq_tables_put_group(tables, &(cmq_group_entry){.name = cmq_slice_of_text(name)}));
        if (i >= 10) {
            snprintf(name, sizeof name, "g%d", i - 10);
            CHECK(cmq_tables_remove_group(tables, cmq_slice_of_text(name)));
        }
    }
    CHECK_INT(counts_of(tables).groups, 10);
    if (!SANITIZED) CHECK(mallinfo2().uordblks < before + 10000);
    free_tables(tables, reader);
}

/* ---- threads ---- */

typedef struct racing {
    cmq_tables *tables;
    _Atomic bool stop;
    _Atomic uint64_t turns;
} racing;

/* An entry's fields are always consistent: write_queues is read_queues + 1, and the name is the one asked for. */
static void *read_all_the_time(void *argument)
{
    racing *r = argument;
    cmq_tables_reader *reader;
    CHECK_OK(cmq_tables_reader_create(r->tables, &reader));
    char name[16];
    for (int i = 0; !atomic_load(&r->stop); i++) {
        cmq_tables_enter(reader);
        const cmq_topic_entry *seen[8] = {0};
        for (int k = 0; k < 8; k++) {
            snprintf(name, sizeof name, "T%d", (i + k) % 16);
            seen[k] = cmq_tables_topic(reader, cmq_slice_of_text(name));
            if (seen[k] != NULL) CHECK_BYTES(seen[k]->name.data, seen[k]->name.bytes, name, strlen(name));
        }
        const cmq_consumer_entry *consumer = cmq_tables_consumer(reader, cmq_slice_of_text("g"));
        const cmq_subscription *a =
            consumer != NULL ? cmq_consumer_subscription(consumer, cmq_slice_of_text("A")) : NULL;
        if (a != NULL) CHECK(cmq_filter_kit_passes(a->filter, (int32_t)cmq_jhash(cmq_slice_of_text("x"))));
        for (int k = 0; k < 8; k++)
            if (seen[k] != NULL) CHECK_INT(seen[k]->write_queues, seen[k]->read_queues + 1);
        cmq_tables_leave(reader);
        atomic_fetch_add(&r->turns, 1);
    }
    cmq_tables_reader_destroy(reader);
    return NULL;
}

static void readers_beside_a_writer(void)
{
    racing r = {0};
    pthread_t threads[3];
    char name[16];
    CHECK_OK(cmq_tables_create(&r.tables));
    for (int i = 0; i < 3; i++) CHECK(pthread_create(&threads[i], NULL, read_all_the_time, &r) == 0);
    const int rounds = SANITIZED ? 3000 : 30000;
    for (int i = 0; i < rounds || atomic_load(&r.turns) < 1000; i++) {
        snprintf(name, sizeof name, "T%d", i % 16);
        if (i % 5 == 4) cmq_tables_remove_topic(r.tables, cmq_slice_of_text(name));
        else put_topic(r.tables, name, i);
        if (i % 7 == 0) put_consumer(r.tables, i % 2 == 0 ? "x" : "x||y", "*", i);
        if (i % 70 == 69) cmq_tables_remove_consumer(r.tables, cmq_slice_of_text("g"));
    }
    atomic_store(&r.stop, true);
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    CHECK_INT(counts_of(r.tables).retired, 0);
    cmq_tables_destroy(r.tables);
}

CMQ_TEST_MAIN(CMQ_TEST(topics_and_groups), CMQ_TEST(perm_of_the_broker), CMQ_TEST(found_entries_stay),
              CMQ_TEST(readers_up_to_the_limit), CMQ_TEST(a_serial_follows_the_filter),
              CMQ_TEST(another_type_is_another_filter), CMQ_TEST(wrong_input_is_refused),
              CMQ_TEST(fifty_thousand_topics), CMQ_TEST(names_come_and_go), CMQ_TEST(readers_beside_a_writer))
