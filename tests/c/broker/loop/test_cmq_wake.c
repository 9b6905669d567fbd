/* Tests of arrivals at holds: each message ends the holds that wait for its tag, however many messages come at once and
 * however many holds there are. */
#include <string.h>
#include <unistd.h>

#include "support/cmq_broker_kit.h"
#include "support/cmq_store_kit.h"

enum { FOUND = 0, HELD_AND_FILTERED = 2 | 4, WAIT_MS = 15000 };

static kit_broker kit;

static void start(void) { kit_broker_start(&kit, cmq_test_directory(), CMQ_FLUSH_ASYNC, NULL); }

static void append(uint32_t count, const char *tag)
{
    const cmq_append batch = {.common = {.topic = cmq_slice_of_text("T")},
                              .count = count,
                              .bodies = {.kind = CMQ_COLUMN_ONE, .one = cmq_slice_of_text("x")},
                              .tags = {.kind = CMQ_COLUMN_ONE, .one = cmq_slice_of_text(tag)}};
    cmq_appended appended;
    CHECK_OK(cmq_store_append(kit.store, &batch, &appended));
}

/* The queue offset of the first record that the answer has. */
static int64_t first_found(int client, int32_t opaque)
{
    cmq_record_view view;
    const kit_answer *answer = kit_answer_of(&kit, client);
    CHECK_INT(answer->command.opaque, opaque);
    CHECK_INT(answer->command.code, FOUND);
    CHECK_OK(cmq_record_parse(answer->body.data, answer->body.bytes, -1, CMQ_RECORD_CHECK_BODY_CRC, &view));
    return view.queue_offset;
}

/* More messages than a turn looks at. */
static void holds_end_behind_many_messages_of_other_tags(void)
{
    enum { BEFORE = 40000, BEHIND = 10000 };
    start();
    const int client = kit_client(&kit), other = kit_client(&kit);
    kit_pull(client, 1, "T", 0, HELD_AND_FILTERED, WAIT_MS, "none || wanted");
    kit_pull(other, 2, "T", 0, HELD_AND_FILTERED, WAIT_MS, "late");
    CHECK(kit_is_silent(&kit, client));
    append(BEFORE, "other");
    append(1, "wanted");
    append(BEHIND, "other");
    CHECK_INT(first_found(client, 1), BEFORE);
    CHECK(kit_is_silent(&kit, other));
    append(1, "late");
    CHECK_INT(first_found(other, 2), BEFORE + 1 + BEHIND);
    close(client);
    close(other);
    kit_broker_stop(&kit);
}

/* More holds than a turn answers, between others that wait for other tags. */
static void all_holds_of_a_tag_end_and_no_others(void)
{
    enum { HOLDS = 1500 };
    cmq_broker_counters counters;
    start();
    const int client = kit_client(&kit), other = kit_client(&kit);
    for (int32_t i = 0; i < HOLDS; i++) {
        kit_pull(client, i, "T", 0, HELD_AND_FILTERED, WAIT_MS, i % 2 == 0 ? "wanted" : "also || wanted");
        if (i % 10 == 0) kit_pull(other, i, "T", 0, HELD_AND_FILTERED, WAIT_MS, "none");
        if (i % 100 == 0) CHECK(kit_is_silent(&kit, client));
    }
    CHECK(kit_is_silent(&kit, other));
    append(1, "wanted");
    bool answered[HOLDS] = {false};
    for (int32_t i = 0; i < HOLDS; i++) {
        const kit_answer *answer = kit_answer_of(&kit, client);
        CHECK_INT(answer->command.code, FOUND);
        CHECK(!answered[answer->command.opaque]);
        answered[answer->command.opaque] = true;
    }
    CHECK(kit_is_silent(&kit, other));
    cmq_broker_count(kit.broker, &counters);
    CHECK_INT(counters.holds_now, HOLDS / 10);
    close(client);
    close(other);
    kit_broker_stop(&kit);
}

/* A topic whose queue begins anew while requests wait for messages of the old one. */
static void holds_of_a_queue_that_began_anew_end(void)
{
    start();
    const int client = kit_client(&kit), later = kit_client(&kit);
    append(3, "other");
    kit_pull(client, 1, "T", 3, HELD_AND_FILTERED, WAIT_MS, "wanted");
    CHECK(kit_is_silent(&kit, client));
    CHECK_OK(cmq_store_delete_topic(kit.store, kit_slice("T")));
    kit_pull(later, 2, "T", 0, HELD_AND_FILTERED, WAIT_MS, "wanted");
    CHECK(kit_is_silent(&kit, later));
    append(1, "other");
    append(1, "wanted");
    CHECK_INT(first_found(later, 2), 1);
    close(client);
    close(later);
    kit_broker_stop(&kit);
}

CMQ_TEST_MAIN(CMQ_TEST(holds_end_behind_many_messages_of_other_tags), CMQ_TEST(all_holds_of_a_tag_end_and_no_others),
              CMQ_TEST(holds_of_a_queue_that_began_anew_end))
