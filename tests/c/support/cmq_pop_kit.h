/* cmq_pop_kit: pops through a socket of a broker of cmq_broker_kit's: a client's requests, and its use of the handles.
 *
 * Topic T, group G, unless said otherwise; a failed check ends the program.
 */
#ifndef CMQ_POP_KIT_H
#define CMQ_POP_KIT_H

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "store/record/cmq_property.h"
#include "store/record/cmq_record.h"
#include "support/cmq_broker_kit.h"
#include "support/cmq_test.h"

enum {
    POP = 200050,
    ACK = 200051,
    PEEK = 200052,
    CHANGE = 200053,
    NOTIFICATION = 200054,
    POLLING_INFO = 200055,
    BATCH_ACK = 200151
};
enum { OK = 0, NOT_FOUND = 19, NO_MESSAGE = 208, POLLING_FULL = 209, POLLING_TIMEOUT = 210 };

static kit_broker kit;

static inline void start(const cmq_pop_service_options *extra)
{
    kit_broker_start_pops(&kit, cmq_test_directory(), CMQ_FLUSH_ASYNC, extra);
}

/* Another record than its queue's unit says lies at `phy`. */
static inline void damage_record(const char *root, int64_t phy)
{
    char path[512];
    snprintf(path, sizeof path, "%s/commitlog/%020d", root, 0);
    const int fd = open(path, O_WRONLY | O_CLOEXEC);
    CHECK(fd >= 0);
    CHECK_INT(pwrite(fd, "\0\0\0\1", 4, phy), 4);
    close(fd);
}

static inline const kit_answer *expect(int client, int32_t opaque, int32_t code)
{
    const kit_answer *answer = kit_answer_of(&kit, client);
    CHECK_INT(answer->command.opaque, opaque);
    if (answer->command.code != code)
        cmq_test_fail(__FILE__, __LINE__, "code %d (%.*s), expected %d", answer->command.code,
                      (int)answer->command.remark.bytes, (const char *)answer->command.remark.data, code);
    return answer;
}

static inline void expect_text(const kit_answer *answer, const char *name, const char *expected)
{
    if (strcmp(kit_text(answer, name), expected) != 0)
        cmq_test_fail(__FILE__, __LINE__, "%s is \"%s\", expected \"%s\"", name, kit_text(answer, name), expected);
}

/* ---- requests ---- */

/* The parameters of a pop, beside topic T and group G. */
typedef struct asked {
    int32_t queue_id, most;
    int64_t invisible_ms, poll_ms;
    const char *expression, *group, *topic, *attempt;
    bool order, begin_late, sql;   /* begin_late: initMode 1 */
} asked;

static const asked all = {.queue_id = -1, .most = 32, .invisible_ms = 10000};

static inline asked waiting(int64_t poll_ms)
{
    asked what = all;
    what.poll_ms = poll_ms;
    return what;
}

static inline asked one_of(asked what)
{
    what.most = 1;
    return what;
}

static inline asked two_of(asked what)
{
    what.most = 2;
    return what;
}

static inline asked in_order(asked what)
{
    what.order = true;
    return what;
}

static inline void look(int client, int32_t code, int32_t opaque, asked what)
{
    char queue[12], most[12], invisible[24], poll[24], born[24];
    snprintf(queue, sizeof queue, "%d", what.queue_id);
    snprintf(most, sizeof most, "%d", what.most);
    snprintf(invisible, sizeof invisible, "%" PRId64, what.invisible_ms);
    snprintf(poll, sizeof poll, "%" PRId64, what.poll_ms);
    snprintf(born, sizeof born, "%" PRId64, kit.now_ms);
    const kit_field fields[] = {{"consumerGroup", what.group != NULL ? what.group : "G"},
                                {"topic", what.topic != NULL ? what.topic : "T"},
                                {"queueId", queue},
                                {"maxMsgNums", most},
                                {"invisibleTime", invisible},
                                {"pollTime", poll},
                                {"bornTime", born},
                                {"initMode", what.begin_late ? "1" : "0"},
                                {"expType", what.sql ? "SQL92" : "TAG"},
                                {"exp", what.expression != NULL ? what.expression : "*"},
                                {"order", what.order ? "true" : "false"},
                                {"attemptId", what.attempt != NULL ? what.attempt : ""},
                                {NULL, NULL}};
    kit_request(client, code, opaque, 0, CMQ_HEADER_JSON, fields, NULL, 0);
}

static inline void pop(int client, int32_t opaque, asked what) { look(client, POP, opaque, what); }

static inline void send_some(int client, int count)
{
    for (int i = 0; i < count; i++) {
        kit_send_message(client, 1000 + i, "T", i % 2 == 0 ? "even" : "odd", "hello");
        expect(client, 1000 + i, OK);
    }
}

/* Acknowledge or change the invisible time by the handle of a message, as a client does. */
static inline void settle_to(int client, int32_t opaque, int32_t code, const char *topic, int32_t queue_id,
                             int64_t offset, const char *handle, int64_t invisible_ms)
{
    char queue[12], place[24], invisible[24];
    snprintf(queue, sizeof queue, "%d", queue_id);
    snprintf(place, sizeof place, "%" PRId64, offset);
    snprintf(invisible, sizeof invisible, "%" PRId64, invisible_ms);
    const kit_field fields[] = {
        {"consumerGroup", "G"},       {"topic", topic}, {"queueId", queue}, {"extraInfo", handle}, {"offset", place},
        {"invisibleTime", invisible}, {NULL, NULL}};
    kit_request(client, code, opaque, 0, CMQ_HEADER_JSON, fields, NULL, 0);
}

/* The handle of a message of queue 0 of a pop that gave messages from `start_offset` on. */
typedef struct batch {
    int64_t pop_ms, invisible_ms, revive_queue, start_offset;
} batch;

static inline batch batch_of(const kit_answer *answer, int64_t start_offset)
{
    return (batch){kit_number(answer, "popTime"), kit_number(answer, "invisibleTime"), kit_number(answer, "reviveQid"),
                   start_offset};
}

static inline const char *handle_of(const batch *b, int64_t offset)
{
    static _Thread_local char text[256];
    snprintf(text, sizeof text, "%" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " 0 broker-a 0 %" PRId64,
             b->start_offset, b->pop_ms, b->invisible_ms, b->revive_queue, offset);
    return text;
}

static inline void ack(int client, int32_t opaque, const batch *b, int64_t offset)
{
    settle_to(client, opaque, ACK, "T", 0, offset, handle_of(b, offset), 0);
    expect(client, opaque, OK);
}

static inline int64_t committed(const char *topic)
{
    const cmq_offset_key key = {.group = cmq_slice_of_text("G"), .topic = cmq_slice_of_text(topic), .queue_id = 0};
    return cmq_offsets_query(kit.offsets, &key);
}

static inline uint32_t records_in(const kit_answer *answer)
{
    uint32_t count = 0;
    cmq_record_view view;
    for (size_t at = 0; at < answer->body.bytes; at += view.record_bytes, count++)
        CHECK_OK(
            cmq_record_parse(answer->body.data + at, answer->body.bytes - at, -1, CMQ_RECORD_CHECK_BODY_CRC, &view));
    return count;
}

/* The one message of an answer that came from a retry topic; its handle, which is static. */
static inline const char *retry_handle(const kit_answer *answer, cmq_record_view *view)
{
    static _Thread_local char text[512];
    cmq_slice value;
    CHECK_OK(cmq_record_parse(answer->body.data, answer->body.bytes, -1, CMQ_RECORD_CHECK_BODY_CRC, view));
    CHECK(cmq_property_find(view->properties, cmq_slice_of_text("POP_CK"), &value));
    snprintf(text, sizeof text, "%.*s", (int)value.bytes, (const char *)value.data);
    return text;
}

#endif
