/* Answers that wait for the disk: first in, first out, through growing and moving, with their offsets and ids. */
#include <stdio.h>
#include <string.h>

#include "broker/loop/cmq_pending_replies.h"
#include "support/cmq_test.h"

enum { OFFSETS_MAX = 40 };

static void add(cmq_pending_replies *sent, int64_t number)
{
    int64_t offsets[OFFSETS_MAX];
    char unique[64];
    const uint32_t count = (uint32_t)(number % OFFSETS_MAX) + 1;
    for (uint32_t i = 0; i < count; i++) offsets[i] = number * 1000 + i;
    snprintf(unique, sizeof unique, "%.*s%lld", (int)(number % 30), "-----------------------------", (long long)number);
    const cmq_pending_replies_answer answer = {.conn = (cmq_conn_id)number + 1,
                                               .end = number,
                                               .since_ns = number * 3,
                                               .queue_offset = number * 5,
                                               .physical_offsets = offsets,
                                               .unique = cmq_slice_of_text(unique),
                                               .count = count,
                                               .queue_id = (int32_t)(number % 7),
                                               .opaque = (int32_t)number,
                                               .format = CMQ_HEADER_ROCKETMQ,
                                               .inner_batch = number % 2 == 0};
    CHECK_OK(cmq_pending_replies_add(sent, &answer));
}

static void check(cmq_pending_replies *sent, int64_t number)
{
    cmq_pending_replies_answer answer;
    CHECK(cmq_pending_replies_front(sent, &answer));
    CHECK_INT(answer.conn, number + 1);
    CHECK_INT(answer.end, number);
    CHECK_INT(answer.since_ns, number * 3);
    CHECK_INT(answer.queue_offset, number * 5);
    CHECK_INT(answer.count, number % OFFSETS_MAX + 1);
    for (uint32_t i = 0; i < answer.count; i++) CHECK_INT(answer.physical_offsets[i], number * 1000 + i);
    char unique[64];
    const int bytes = snprintf(unique, sizeof unique, "%.*s%lld", (int)(number % 30), "-----------------------------",
                               (long long)number);
    CHECK_BYTES(answer.unique.data, answer.unique.bytes, unique, (size_t)bytes);
    CHECK_INT(answer.queue_id, number % 7);
    CHECK_INT(answer.opaque, number);
    CHECK_INT(answer.format, CMQ_HEADER_ROCKETMQ);
    CHECK_INT(answer.inner_batch, number % 2 == 0);
    cmq_pending_replies_drop(sent);
}

static void keeps_their_order(void)
{
    cmq_pending_replies sent = {0};
    cmq_pending_replies_answer none;
    CHECK(!cmq_pending_replies_front(&sent, &none));
    int64_t in = 0, out = 0;
    for (int round = 0; round < 3000; round++) {
        for (uint64_t more = cmq_test_random_below(8); more > 0; more--) add(&sent, in++);
        for (uint64_t less = cmq_test_random_below(8); less > 0 && out < in; less--) check(&sent, out++);
        CHECK_INT(sent.count, in - out);
    }
    while (out < in) check(&sent, out++);
    CHECK(!cmq_pending_replies_front(&sent, &none));
    cmq_pending_replies_free(&sent);
}

static void a_burst_gives_its_memory_back(void)
{
    cmq_pending_replies sent = {0};
    for (int64_t i = 0; i < 20000; i++) add(&sent, i);
    CHECK(sent.capacity > 1 << 20);
    for (int64_t i = 0; i < 20000; i++) check(&sent, i);
    CHECK_INT(sent.capacity, 0);
    add(&sent, 7);
    check(&sent, 7);
    cmq_pending_replies_free(&sent);
}

CMQ_TEST_MAIN(CMQ_TEST(keeps_their_order), CMQ_TEST(a_burst_gives_its_memory_back))
