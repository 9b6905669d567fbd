/* cmq_txn_kit: half messages, their ends and the questions about them, over a broker of cmq_broker_kit. */
#ifndef CMQ_TXN_KIT_H
#define CMQ_TXN_KIT_H

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "broker/txn/cmq_txn.h"
#include "store/record/cmq_message_id.h"
#include "support/cmq_broker_kit.h"
#include "support/cmq_store_kit.h"
#include "support/cmq_test.h"

#define KIT_ASKS_MAX 256

/* The questions that a step asked, and whether somebody of any group is there to be asked. */
typedef struct kit_asked {
    bool there;
    int count;
    struct {
        char unique[64];
        int64_t queue_offset, physical_offset;
        uint8_t body[4096];
        size_t body_bytes;
    } items[KIT_ASKS_MAX];
} kit_asked;

static inline bool kit_is_there(void *context, cmq_slice group)
{
    (void)group;
    return ((const kit_asked *)context)->there;
}

static inline void kit_ask(void *context, const cmq_txn_question_item *question)
{
    kit_asked *asked = context;
    CHECK(asked->count < KIT_ASKS_MAX && question->body.bytes <= sizeof asked->items[0].body);
    const int i = asked->count++;
    snprintf(asked->items[i].unique, sizeof asked->items[i].unique, "%.*s", (int)question->unique.bytes,
             (const char *)question->unique.data);
    asked->items[i].queue_offset = question->queue_offset;
    asked->items[i].physical_offset = question->physical_offset;
    asked->items[i].body_bytes = question->body.bytes;
    memcpy(asked->items[i].body, question->body.data, question->body.bytes);
}

/* Let `ms` pass, then step until nothing is left to do at once; asked->items are those of these steps. */
static inline void kit_step(kit_broker *kit, int64_t ms, kit_asked *asked)
{
    const cmq_txn_asker asker = {.is_there = kit_is_there, .ask = kit_ask, .context = asked};
    bool more = true;
    kit_broker_pass(kit, ms);
    asked->count = 0;
    while (more) CHECK_OK(cmq_txn_step(kit->txn, &asker, &more));
}

/* Send a half message of group P to queue 1 of T, with further properties ("NAME\1value\2", or ""). */
static inline void kit_send_half(kit_broker *kit, int client, int32_t opaque, const char *unique, const char *more)
{
    char properties[2048], born[24];
    snprintf(properties, sizeof properties, "TRAN_MSG\001true\002PGROUP\001P\002TAGS\001t\002UNIQ_KEY\001%s\002%s",
             unique, more);
    snprintf(born, sizeof born, "%lld", (long long)kit->now_ms);
    const kit_field fields[] = {{"a", "P"}, {"b", "T"}, {"c", "TBW102"}, {"d", "4"},        {"e", "1"},
                                {"f", "4"}, {"g", born}, {"h", "0"},     {"i", properties}, {NULL, NULL}};
    kit_request(client, 310, opaque, 0, CMQ_HEADER_JSON, fields, unique, strlen(unique));
}

/* Where a half message lies. */
typedef struct kit_half {
    int64_t queue_offset, physical_offset;
} kit_half;

/* Send one, and take the answer: it is stored. */
static inline kit_half kit_begin(kit_broker *kit, int client, const char *unique, const char *more)
{
    kit_send_half(kit, client, 1, unique, more);
    const kit_answer *answer = kit_answer_of(kit, client);
    if (answer->command.code != 0)
        cmq_test_fail(__FILE__, __LINE__, "half message refused with %d: %.*s", answer->command.code,
                      (int)answer->command.remark.bytes, (const char *)answer->command.remark.data);
    cmq_record_host host;
    kit_half half = {.queue_offset = kit_number(answer, "queueOffset")};
    CHECK_OK(cmq_message_id_parse(cmq_slice_of_text(kit_text(answer, "msgId")), &host, &half.physical_offset));
    return half;
}

/* Request 37: 8 commits, 12 rolls back, 0 says nothing. */
static inline void kit_send_end(int client, int32_t opaque, const char *group, kit_half half, int outcome, bool check)
{
    char queue[24], phy[24], which[16];
    snprintf(queue, sizeof queue, "%lld", (long long)half.queue_offset);
    snprintf(phy, sizeof phy, "%lld", (long long)half.physical_offset);
    snprintf(which, sizeof which, "%d", outcome);
    const kit_field fields[] = {{"producerGroup", group},
                                {"tranStateTableOffset", queue},
                                {"commitLogOffset", phy},
                                {"commitOrRollback", which},
                                {"fromTransactionCheck", check ? "true" : "false"},
                                {"msgId", "x"},
                                {NULL, NULL}};
    kit_request(client, 37, opaque, 0, CMQ_HEADER_JSON, fields, NULL, 0);
}

/* The answer's code. */
static inline int kit_end(kit_broker *kit, int client, kit_half half, int outcome)
{
    kit_send_end(client, 2, "P", half, outcome, false);
    return kit_answer_of(kit, client)->command.code;
}

#endif
