/* cmq_unit_check: is the record that a queue's unit points to the one that the unit was made for?
 *
 * A unit says place and size, which a damaged or misdirected page of a queue file can say of any record. The record
 * knows topic, queue and offset.
 *
 * Cost:    in bench_scan 2 ns of 38 for the head of a record, and as much again if it were a call; 4 ns for the topic
 *          of a record of 128 B, 13 of 1 KiB where nobody else reads its end.
 * Threads: any; the record is pinned.
 */
#ifndef CMQ_UNIT_CHECK_H
#define CMQ_UNIT_CHECK_H

#include <string.h>

#include "store/cmq_store_internal.h"

/* The owner of the checked units; looked up once for many. */
typedef struct cmq_unit_owner {
    const char *topic;
    uint32_t topic_bytes;
    int32_t queue_id;
    bool plain;              /* no queue of batches */
    bool compare_topic;      /* of each record; false: its place, size, queue id and offset alone, which need no more
                              * than its head */
} cmq_unit_owner;

static inline cmq_unit_owner cmq_unit_owner_of(const cmq_queue *queue, bool compare_topic)
{
    return (cmq_unit_owner){.topic = cmq_queue_topic(queue),
                            .topic_bytes = cmq_queue_topic_bytes(queue),
                            .queue_id = cmq_queue_id(queue),
                            .plain = cmq_queue_kind_of(queue) == CMQ_QUEUE_SIMPLE,
                            .compare_topic = compare_topic};
}

/* Surely the unit's record: made for its place, of its size, queue, offset and, if compared, topic. False: ask
 * cmq_unit_check. `available` bytes are at `data`. */
__attribute__((always_inline)) static inline bool
cmq_unit_is_plain(const cmq_unit_owner *owner, const cmq_unit *unit, const uint8_t *data, size_t available)
{
    if (unit->bytes < CMQ_RECORD_BYTES_MIN || (size_t)unit->bytes > available ||
        !cmq_record_is_of(data, (uint32_t)unit->bytes, unit->phy))
        return false;
    if (!owner->plain || cmq_load_i32(data + CMQ_RECORD_AT_QUEUE_ID) != owner->queue_id ||
        cmq_load_i64(data + CMQ_RECORD_AT_QUEUE_OFFSET) != unit->offset)
        return false;
    if (!owner->compare_topic) return true;
    const cmq_slice topic = cmq_record_topic(data, (uint32_t)unit->bytes);
    return topic.bytes == owner->topic_bytes && memcmp(topic.data, owner->topic, topic.bytes) == 0;
}

/* CMQ_ERR_CORRUPT, with the place, where the record is not the unit's. A record that lies at another offset of its
 * queue than it says, as RocketMQ leaves it behind a gap, and the record of a light queue, are. */
cmq_status CMQ_MUST_CHECK cmq_unit_check(cmq_store *store, cmq_queue *queue, const cmq_unit *unit, const uint8_t *data,
                                         size_t available);

#endif
