/* cmq_system_topics: the topics that only the broker writes, and whether a parked message may still be delivered.
 *
 * A client's send to one of them is refused. Messages parked in them may all the same be of an older log, or of a
 * foreign store, so topic, permission and queue are checked again at delivery. An undeliverable message goes to
 * CMQ_TOPIC_UNDELIVERED with all its properties, so that nothing is lost and nothing waits; it is counted.
 *
 * Threads: any; a reader of the tables belongs to one.
 * Source:  upstream's TopicValidator; ours are more: upstream takes sends into the timers' and the revive's topics.
 */
#ifndef CMQ_SYSTEM_TOPICS_H
#define CMQ_SYSTEM_TOPICS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cmq_bytes.h"
#include "broker/tables/cmq_tables.h"

/* No configuration names it, so no client reads it: `cometmq cat STORE rmq_sys_UNDELIVERED` does. */
#define CMQ_TOPIC_UNDELIVERED "rmq_sys_UNDELIVERED"

/* Names of the traces of clients in a cloud; they are clients' own, as RMQ_SYS_TRACE_TOPIC is. */
#define CMQ_TOPIC_TRACE_PREFIX "rmq_sys_TRACE_DATA_"

bool cmq_topic_is_reserved(cmq_slice topic);

/* Groups whose progress only the broker moves: clients' commits and pops of theirs would pass over popped messages that
 * were not revived. */
bool cmq_group_is_reserved(cmq_slice group);

/* May a parked message go to this queue? `reader` NULL: nothing is known of topics, and all may. */
bool cmq_topic_takes(cmq_tables_reader *reader, cmq_slice topic, int32_t queue_id);

#endif
