/* Tests csrc/wire/cmq_pop_header.c: the required fields of each request of the POP family, and the request of a real
 * client. */
#include "wire/cmq_pop_header.h"

#include "support/cmq_header_kit.h"

static cmq_status read_header(const cmq_command *command)
{
    cmq_pop_header header;
    return cmq_pop_header_read(command, &header);
}

#define NAMES                                                                                                          \
    {"consumerGroup", "CG", "consumerGroup", false}, {"topic", "T", "topic", false},                                   \
    {                                                                                                                  \
        "queueId", "-1", "queueId", true                                                                               \
    }

static void members_are_checked(void)
{
    static const cmq_kit_field pop[] = {NAMES,
                                        {"maxMsgNums", "32", "maxMsgNums", true},
                                        {"invisibleTime", "60000", "invisibleTime", true},
                                        {"pollTime", "15000", "pollTime", true},
                                        {"bornTime", "1", NULL, true},
                                        {"initMode", "0", "initMode", true},
                                        {"expType", "TAG", NULL, false},
                                        {"exp", "a", NULL, false},
                                        {"order", "true", NULL, false},
                                        {"attemptId", "x", NULL, false}};
    static const cmq_kit_field change[] = {NAMES,
                                           {"extraInfo", "1 2", "extraInfo", false},
                                           {"offset", "7", "offset", true},
                                           {"invisibleTime", "60000", "invisibleTime", true}};
    static const cmq_kit_field notification[] = {
        NAMES, {"pollTime", "15000", "pollTime", true}, {"bornTime", "1", NULL, true}, {"order", "false", NULL, false}};
    static const cmq_kit_field peek[] = {NAMES, {"maxMsgNums", "32", "maxMsgNums", true}};
    cmq_kit_members_are_checked(200050, pop, 12, read_header);
    cmq_kit_members_are_checked(200051, change, 5, read_header);
    cmq_kit_members_are_checked(200053, change, 6, read_header);
    cmq_kit_members_are_checked(200054, notification, 6, read_header);
    cmq_kit_members_are_checked(200052, peek, 4, read_header);
    cmq_kit_members_are_checked(200055, peek, 3, read_header);
}

/* As a Java client 5.3.3 sends it; `bname` is for proxies. */
static void a_clients_pop_is_read(void)
{
    cmq_kit_command kit = cmq_kit_json(
        "{'code':200050,'extFields':{'pollTime':'15000','invisibleTime':'10000','queueId':'-1','bornTime':'"
        "1795260291338',"
        "'maxMsgNums':'32','bname':'broker-a','topic':'PopT','expType':'TAG','exp':'*','consumerGroup':'g_pop',"
        "'initMode':'1','order':'false'}}");
    cmq_pop_header header;
    CHECK_OK(cmq_pop_header_read(&kit.command, &header));
    CHECK_SLICE(header.group, "g_pop");
    CHECK_SLICE(header.topic, "PopT");
    CHECK_SLICE(header.expression_type, "TAG");
    CHECK_SLICE(header.expression, "*");
    CHECK_INT(header.queue_id, -1);
    CHECK_INT(header.max_messages, 32);
    CHECK_INT(header.init, CMQ_POP_INIT_MAX);
    CHECK_INT(header.invisible_ms, 10000);
    CHECK_INT(header.poll_ms, 15000);
    CHECK_INT(header.born_ms, INT64_C(1795260291338));
    CHECK(!header.order && header.attempt.bytes == 0);
    cmq_kit_command_free(&kit);
}

CMQ_TEST_MAIN(CMQ_TEST(members_are_checked), CMQ_TEST(a_clients_pop_is_read))
