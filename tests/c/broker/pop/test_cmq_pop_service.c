/* Tests csrc/broker/pop/cmq_pop_service.c: everything of pops at once. Members on several loops pop one queue,
 * acknowledge, do so twice, change invisible times, and forget; meanwhile time passes, the buffer gives checkpoints up,
 * the timer turns, and the revive puts back what was forgotten. Every message is consumed in the end, and then nothing
 * is left anywhere. Threads: yes. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "support/cmq_pop_kit.h"
#include "support/cmq_store_kit.h"

#define RETRY "%RETRY%G_T"
enum { LOOPS = 3, MEMBERS = 4, MESSAGES = 1500, STEP_MS = 500 };

static _Atomic bool consumed[MESSAGES];
static _Atomic int left;

/* A message that a member has. */
typedef struct held {
    char handle[512];
    const char *topic;
    int64_t offset;
    int number;
} held;

typedef struct member {
    pthread_t thread;
    uint64_t random_state;
    int client;
    int32_t opaque;
} member;

static uint32_t random_below(member *m, uint32_t bound)
{
    m->random_state = m->random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(m->random_state >> 33) % bound;
}

/* Where the batch of queue 0 begins, from `0 0 5` somewhere among the entries. */
static int64_t start_of(const kit_answer *answer)
{
    for (const char *at = kit_text(answer, "startOffsetInfo"); at != NULL; at = strchr(at, ';')) {
        at += *at == ';';
        if (strncmp(at, "0 0 ", 4) == 0) return strtoll(at + 4, NULL, 10);
    }
    return -1;
}

static uint32_t take_messages(const kit_answer *answer, held *out)
{
    const batch b = batch_of(answer, start_of(answer));
    uint32_t count = 0;
    cmq_record_view view;
    for (size_t at = 0; at < answer->body.bytes; at += view.record_bytes, count++) {
        char number[16];
        cmq_slice handle;
        CHECK_OK(
            cmq_record_parse(answer->body.data + at, answer->body.bytes - at, -1, CMQ_RECORD_CHECK_BODY_CRC, &view));
        const bool is_retried = cmq_property_find(view.properties, cmq_slice_of_text("POP_CK"), &handle);
        held *one = &out[count];
        if (is_retried) snprintf(one->handle, sizeof one->handle, "%.*s", (int)handle.bytes, (const char *)handle.data);
        else snprintf(one->handle, sizeof one->handle, "%s", handle_of(&b, view.queue_offset));
        one->topic = is_retried ? RETRY : "T";
        one->offset = view.queue_offset;
        snprintf(number, sizeof number, "%.*s", (int)view.body.bytes, (const char *)view.body.data);
        one->number = atoi(number);
        CHECK(one->number >= 0 && one->number < MESSAGES);
    }
    return count;
}

static void acknowledge(member *m, const held *one)
{
    settle_to(m->client, ++m->opaque, ACK, one->topic, 0, one->offset, one->handle, 0);
    expect(m->client, m->opaque, OK);
    if (!atomic_exchange(&consumed[one->number], true)) atomic_fetch_sub(&left, 1);
}

static void extend(member *m, held *one)
{
    settle_to(m->client, ++m->opaque, CHANGE, one->topic, 0, one->offset, one->handle, 15000);
    const kit_answer *answer = expect(m->client, m->opaque, OK);
    snprintf(one->handle, sizeof one->handle, "%" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %d broker-a 0 %" PRId64,
             one->offset, kit_number(answer, "popTime"), kit_number(answer, "invisibleTime"),
             kit_number(answer, "reviveQid"), strcmp(one->topic, RETRY) == 0, one->offset);
}

static void settle(member *m, held *one, bool always)
{
    const uint32_t dice = always ? 0 : random_below(m, 100);
    if (dice >= 90) return;   /* it comes back */
    if (dice >= 75) extend(m, one);
    if (dice >= 85) return;
    acknowledge(m, one);
    if (dice < 5) acknowledge(m, one);
}

/* Returns how many messages there were. */
static uint32_t pop_and_settle(member *m, bool always)
{
    held messages[32];
    asked what = {.queue_id = 0, .most = 32, .invisible_ms = 20000};
    if (!always) {
        what.most = (int32_t)(1 + random_below(m, 9));
        what.poll_ms = 200;
    }
    pop(m->client, ++m->opaque, what);
    const kit_answer *answer = kit_answer_of(&kit, m->client);
    CHECK_INT(answer->command.opaque, m->opaque);
    CHECK(answer->command.code == OK || answer->command.code == POLLING_TIMEOUT);
    const uint32_t count = answer->command.code == OK ? take_messages(answer, messages) : 0;
    for (uint32_t i = 0; i < count; i++) settle(m, &messages[i], always);
    return count;
}

static void *work(void *given)
{
    member *m = given;
    while (atomic_load(&left) > 0) (void)pop_and_settle(m, false);
    kit_forget_answer();
    return NULL;
}

static int64_t end_of(const char *topic)
{
    cmq_queue *queue = cmq_queues_find(cmq_store_queues(kit.store), cmq_slice_of_text(topic), 0);
    return queue != NULL ? cmq_queue_max(queue, cmq_store_confirmed(kit.store)) : 0;
}

/* Everything that is still on its way comes, and is consumed; then there is nothing left. */
static void drain(member *m)
{
    for (int quiet = 0; quiet < 3; quiet++) {
        kit_broker_pass_pops(&kit, 30000);
        while (pop_and_settle(m, true) > 0) quiet = 0;
    }
    cmq_pop_service_counters counters;
    cmq_pop_service_count(kit.pops, &counters);
    CHECK_INT(counters.buffer.checkpoints_now, 0);
    CHECK_INT(counters.revive.unfinished_now, 0);
    CHECK_INT(counters.revive.behind_now, 0);
    CHECK_INT(counters.revive.damaged, 0);
    CHECK_INT(committed("T"), MESSAGES);
    CHECK(counters.revive.revived > 0);
    CHECK_INT(committed(RETRY), end_of(RETRY));
}

static void every_message_is_consumed(bool merge)
{
    member members[MEMBERS] = {0};
    kit_broker_start_pops_threads(&kit, kit_directory(), &(cmq_pop_service_options){.merge = merge}, LOOPS);
    atomic_store(&left, MESSAGES);
    for (int i = 0; i < MESSAGES; i++) atomic_store(&consumed[i], false);
    for (int i = 0; i < MEMBERS; i++)
        members[i] = (member){.client = kit_client(&kit), .random_state = cmq_test_random()};
    for (int i = 0; i < MESSAGES; i++) {
        char body[16];
        snprintf(body, sizeof body, "%d", i);
        kit_send_message(members[0].client, i, "T", "a", body);
        expect(members[0].client, i, OK);
    }
    for (int i = 0; i < MEMBERS; i++) CHECK_INT(pthread_create(&members[i].thread, NULL, work, &members[i]), 0);
    while (atomic_load(&left) > 0) kit_broker_pass_pops(&kit, STEP_MS);
    for (int i = 0; i < MEMBERS; i++) CHECK_INT(pthread_join(members[i].thread, NULL), 0);
    drain(&members[0]);
    for (int i = 0; i < MEMBERS; i++) close(members[i].client);
    kit_broker_stop(&kit);
}

static void when_all_is_stored(void) { every_message_is_consumed(false); }
static void when_pops_are_merged(void) { every_message_is_consumed(true); }

CMQ_TEST_MAIN(CMQ_TEST(when_all_is_stored), CMQ_TEST(when_pops_are_merged))
