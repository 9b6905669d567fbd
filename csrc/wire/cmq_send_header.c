/* cmq_send_header: see cmq_send_header.h. */
#include "wire/cmq_send_header.h"

#include "base/cmq_assert.h"
#include "wire/cmq_codes.h"
#include "wire/cmq_member.h"

/* In the order of the letters a to m. */
enum {
    GROUP,
    TOPIC,
    DEFAULT_TOPIC,
    DEFAULT_TOPIC_QUEUES,
    QUEUE_ID,
    SYS_FLAG,
    BORN,
    FLAG,
    PROPERTIES,
    RECONSUME_TIMES,
    UNIT_MODE,
    MAX_RECONSUME_TIMES,
    BATCH,
    MEMBER_COUNT
};

#define MEMBERS(NAME)                                                                                  \
    {                                                                                                  \
        [GROUP] = NAME(producer_group, CMQ_MEMBER_TEXT, "a", "producerGroup"),                         \
        [TOPIC] = NAME(topic, CMQ_MEMBER_TEXT, "b", "topic"),                                          \
        [DEFAULT_TOPIC] = NAME(default_topic, CMQ_MEMBER_TEXT, "c", "defaultTopic"),                   \
        [DEFAULT_TOPIC_QUEUES] = NAME(default_topic_queues, CMQ_MEMBER_I32, "d", "defaultTopicQueueNums"), \
        [QUEUE_ID] = NAME(queue_id, CMQ_MEMBER_I32, "e", "queueId"),                                   \
        [SYS_FLAG] = NAME(sys_flag, CMQ_MEMBER_I32, "f", "sysFlag"),                                   \
        [BORN] = NAME(born_ms, CMQ_MEMBER_I64, "g", "bornTimestamp"),                                  \
        [FLAG] = NAME(flag, CMQ_MEMBER_I32, "h", "flag"),                                              \
        [PROPERTIES] = NAME(properties, CMQ_MEMBER_TEXT, "i", "properties"),                           \
        [RECONSUME_TIMES] = NAME(reconsume_times, CMQ_MEMBER_I32, "j", "reconsumeTimes"),              \
        [UNIT_MODE] = NAME(unit_mode, CMQ_MEMBER_BOOL, "k", "unitMode"),                               \
        [MAX_RECONSUME_TIMES] = NAME(max_reconsume_times, CMQ_MEMBER_I32, "l", "maxReconsumeTimes"),   \
        [BATCH] = NAME(batch, CMQ_MEMBER_BOOL, "m", "batch"),                                          \
    }
#define BY_LETTER(field, kind, letter, name) CMQ_MEMBER(cmq_send_header, field, kind, letter, name)
#define BY_NAME(field, kind, letter, name) CMQ_MEMBER(cmq_send_header, field, kind, name, NULL)

static const cmq_member lettered[MEMBER_COUNT] = MEMBERS(BY_LETTER);
static const cmq_member named[MEMBER_COUNT] = MEMBERS(BY_NAME);
_Static_assert(MEMBER_COUNT == 'm' - 'a' + 1, "each letter from a to m has its member");

enum { REQUIRED = (1 << (FLAG + 1)) - 1 };   /* from the group to the flag */

static inline int guess_letter(cmq_slice name)
{
    /* n is a broker's name */
    return name.bytes == 1 && name.data[0] >= 'a' && name.data[0] <= 'm' ? name.data[0] - 'a' : -1;
}

static inline int guess_name(cmq_slice name)
{
    switch (name.bytes) {
    case 4: return FLAG;
    case 5: return name.data[0] == 't' ? TOPIC : BATCH;
    case 7: return name.data[0] == 'q' ? QUEUE_ID : SYS_FLAG;
    case 8: return UNIT_MODE;
    case 10: return PROPERTIES;
    case 12: return DEFAULT_TOPIC;
    case 13: return name.data[0] == 'p' ? GROUP : BORN;
    case 14: return RECONSUME_TIMES;
    case 17: return MAX_RECONSUME_TIMES;
    case 21: return DEFAULT_TOPIC_QUEUES;
    default: return -1;
    }
}

static inline bool is_by_name(int32_t code)
{
    return code == CMQ_REQUEST_SEND_MESSAGE || code == CMQ_REQUEST_SEND_REPLY_MESSAGE;
}

cmq_status cmq_send_header_read(const cmq_command *command, cmq_send_header *header_out)
{
    uint32_t seen = 0;
    *header_out = (cmq_send_header){0};
    const cmq_status status = is_by_name(command->code)
                                  ? cmq_members_read(command, named, guess_name, REQUIRED, header_out, &seen)
                                  : cmq_members_read(command, lettered, guess_letter, REQUIRED, header_out, &seen);
    CMQ_ASSERT(seen >> MEMBER_COUNT == 0 && (status != CMQ_OK || (REQUIRED & ~seen) == 0));
    header_out->has_max_reconsume_times = (seen >> MAX_RECONSUME_TIMES & 1) != 0;
    return status;
}

static inline cmq_slice name_of(const cmq_member *member)
{
    CMQ_ASSERT(member->name_bytes > 0);
    return (cmq_slice){.data = (const uint8_t *)member->name, .bytes = member->name_bytes};
}

void cmq_send_header_write(cmq_command_writer *writer, int32_t code, const cmq_send_header *header)
{
    const bool by_name = is_by_name(code);
    const cmq_member *members = by_name ? named : lettered;
    cmq_command_add_text(writer, name_of(&members[GROUP]), header->producer_group);
    cmq_command_add_text(writer, name_of(&members[TOPIC]), header->topic);
    cmq_command_add_text(writer, name_of(&members[DEFAULT_TOPIC]), header->default_topic);
    cmq_command_add_i64(writer, name_of(&members[DEFAULT_TOPIC_QUEUES]), header->default_topic_queues);
    cmq_command_add_i64(writer, name_of(&members[QUEUE_ID]), header->queue_id);
    cmq_command_add_i64(writer, name_of(&members[SYS_FLAG]), header->sys_flag);
    cmq_command_add_i64(writer, name_of(&members[BORN]), header->born_ms);
    cmq_command_add_i64(writer, name_of(&members[FLAG]), header->flag);
    cmq_command_add_text(writer, name_of(&members[PROPERTIES]), header->properties);
    cmq_command_add_i64(writer, name_of(&members[RECONSUME_TIMES]), header->reconsume_times);
    cmq_command_add_bool(writer, name_of(&members[UNIT_MODE]), header->unit_mode);
    if (header->has_max_reconsume_times)
        cmq_command_add_i64(writer, name_of(&members[MAX_RECONSUME_TIMES]), header->max_reconsume_times);
    cmq_command_add_bool(writer, name_of(&members[BATCH]), header->batch);
    if (header->broker_name.bytes > 0)
        cmq_command_add_text(writer, by_name ? CMQ_NAME("bname") : CMQ_NAME("n"), header->broker_name);
}
