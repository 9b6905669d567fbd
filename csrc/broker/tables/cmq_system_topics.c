/* cmq_system_topics: see cmq_system_topics.h. */
#include "broker/tables/cmq_system_topics.h"

#include "broker/pop/record/cmq_pop_record.h"

#define SYSTEM_PREFIX "rmq_sys_"
#define SYSTEM_GROUP_PREFIX "CID_RMQ_SYS_"
#define REVIVE_QUEUE_MAX 999   /* the largest that a handle may name */

bool cmq_topic_is_reserved(cmq_slice topic)
{
    static const char *const names[] = {
        "SCHEDULE_TOPIC_XXXX",        "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC", "SELF_TEST_TOPIC",          "OFFSET_MOVED_EVENT"};
    if (topic.bytes < sizeof SYSTEM_PREFIX) return false;
    const uint8_t first = topic.data[0];
    if (first == 'r')
        return cmq_slice_starts_with(topic, SYSTEM_PREFIX) && !cmq_slice_starts_with(topic, CMQ_TOPIC_TRACE_PREFIX);
    if (first != 'S' && first != 'R' && first != 'T' && first != 'O') return false;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (cmq_slice_equal(topic, cmq_slice_of_text(names[i]))) return true;
    return false;
}

bool cmq_group_is_reserved(cmq_slice group) { return cmq_slice_starts_with(group, SYSTEM_GROUP_PREFIX); }

static bool takes(const cmq_topic_entry *topic, int32_t queue_id)
{
    const int32_t queues = topic->read_queues > topic->write_queues ? topic->read_queues : topic->write_queues;
    return (topic->perm & CMQ_PERM_WRITE) != 0 && queue_id >= 0 && queue_id < queues;
}

bool cmq_topic_takes(cmq_tables_reader *reader, cmq_slice topic, int32_t queue_id)
{
    if (reader == NULL) return true;
    /* Checkpoints must arrive, also while nobody has made the topic again that somebody deleted. */
    if (cmq_slice_starts_with(topic, CMQ_POP_REVIVE_TOPIC_PREFIX)) return queue_id >= 0 && queue_id <= REVIVE_QUEUE_MAX;
    if (cmq_topic_is_reserved(topic)) return false;
    cmq_tables_enter(reader);
    const cmq_topic_entry *entry = cmq_tables_topic(reader, topic);
    const bool taken = entry != NULL && takes(entry, queue_id);
    cmq_tables_leave(reader);
    return taken;
}
