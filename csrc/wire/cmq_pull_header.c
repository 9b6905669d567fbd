/* cmq_pull_header: see cmq_pull_header.h. */
#include "wire/cmq_pull_header.h"

#include "base/cmq_assert.h"
#include "wire/cmq_member.h"

enum {
    GROUP,
    TOPIC,
    QUEUE_ID,
    QUEUE_OFFSET,
    MAX_MESSAGES,
    SYS_FLAG,
    COMMIT_OFFSET,
    SUSPEND,
    SUB_VERSION,
    SUBSCRIPTION,
    EXPRESSION_TYPE,
    MAX_BYTES,
    MEMBER_COUNT
};

#define NAME(field, kind, name) CMQ_MEMBER(cmq_pull_header, field, kind, name, NULL)

static const cmq_member members[MEMBER_COUNT] = {
    [GROUP] = NAME(group, CMQ_MEMBER_TEXT, "consumerGroup"),
    [TOPIC] = NAME(topic, CMQ_MEMBER_TEXT, "topic"),
    [QUEUE_ID] = NAME(queue_id, CMQ_MEMBER_I32, "queueId"),
    [QUEUE_OFFSET] = NAME(queue_offset, CMQ_MEMBER_I64, "queueOffset"),
    [MAX_MESSAGES] = NAME(max_messages, CMQ_MEMBER_I32, "maxMsgNums"),
    [SYS_FLAG] = NAME(sys_flag, CMQ_MEMBER_I32, "sysFlag"),
    [COMMIT_OFFSET] = NAME(commit_offset, CMQ_MEMBER_I64, "commitOffset"),
    [SUSPEND] = NAME(suspend_ms, CMQ_MEMBER_I64, "suspendTimeoutMillis"),
    [SUB_VERSION] = NAME(sub_version, CMQ_MEMBER_I64, "subVersion"),
    [SUBSCRIPTION] = NAME(subscription, CMQ_MEMBER_TEXT, "subscription"),
    [EXPRESSION_TYPE] = NAME(expression_type, CMQ_MEMBER_TEXT, "expressionType"),
    [MAX_BYTES] = NAME(max_bytes, CMQ_MEMBER_I32, "maxMsgBytes"),
};

enum { REQUIRED = (1 << (SUB_VERSION + 1)) - 1 };   /* from the group to the subscription's version */
_Static_assert(MEMBER_COUNT <= 32 && REQUIRED < 1 << MEMBER_COUNT, "members are the bits of a word");

static inline int guess(cmq_slice name)
{
    switch (name.bytes) {
    case 5: return TOPIC;
    case 7: return name.data[0] == 'q' ? QUEUE_ID : SYS_FLAG;
    case 10: return name.data[0] == 'm' ? MAX_MESSAGES : SUB_VERSION;
    case 11: return name.data[0] == 'q' ? QUEUE_OFFSET : MAX_BYTES;
    case 12: return name.data[0] == 'c' ? COMMIT_OFFSET : SUBSCRIPTION;
    case 13: return GROUP;
    case 14: return EXPRESSION_TYPE;
    case 20: return SUSPEND;
    default: return -1;
    }
}

cmq_status cmq_pull_header_read(const cmq_command *command, cmq_pull_header *header_out)
{
    uint32_t seen = 0;
    *header_out = (cmq_pull_header){0};
    const cmq_status status = cmq_members_read(command, members, guess, REQUIRED, header_out, &seen);
    CMQ_ASSERT(seen >> MEMBER_COUNT == 0 && (status != CMQ_OK || (REQUIRED & ~seen) == 0));
    return status;
}

static inline cmq_slice name_of(int member)
{
    CMQ_ASSERT(member >= 0 && member < MEMBER_COUNT);
    return (cmq_slice){.data = (const uint8_t *)members[member].name, .bytes = members[member].name_bytes};
}

void cmq_pull_header_write(cmq_command_writer *writer, const cmq_pull_header *header)
{
    cmq_command_add_text(writer, name_of(GROUP), header->group);
    cmq_command_add_text(writer, name_of(TOPIC), header->topic);
    cmq_command_add_i64(writer, name_of(QUEUE_ID), header->queue_id);
    cmq_command_add_i64(writer, name_of(QUEUE_OFFSET), header->queue_offset);
    cmq_command_add_i64(writer, name_of(MAX_MESSAGES), header->max_messages);
    cmq_command_add_i64(writer, name_of(SYS_FLAG), header->sys_flag);
    cmq_command_add_i64(writer, name_of(COMMIT_OFFSET), header->commit_offset);
    cmq_command_add_i64(writer, name_of(SUSPEND), header->suspend_ms);
    if (header->subscription.bytes > 0) cmq_command_add_text(writer, name_of(SUBSCRIPTION), header->subscription);
    cmq_command_add_i64(writer, name_of(SUB_VERSION), header->sub_version);
    if (header->expression_type.bytes > 0)
        cmq_command_add_text(writer, name_of(EXPRESSION_TYPE), header->expression_type);
    if (header->max_bytes != 0) cmq_command_add_i64(writer, name_of(MAX_BYTES), header->max_bytes);
    if (header->broker_name.bytes > 0) cmq_command_add_text(writer, CMQ_NAME("bname"), header->broker_name);
}
