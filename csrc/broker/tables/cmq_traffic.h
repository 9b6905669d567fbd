/* cmq_traffic: messages and bytes in by topic, and out by topic and group: the source of statistics.
 *
 * Each loop counts for itself, so that counting is a look-up and two additions in memory that nobody else writes; a
 * reader adds the loops up.
 *
 * Invariant: numbers never fall. An entry, once made, lives as long as the table. At most CMQ_TRAFFIC_ENTRIES_MAX;
 *            further names are not counted by name.
 * Threads:   count: the loop's. list: any, beside it.
 * Source:    upstream's BrokerStatsManager.
 */
#ifndef CMQ_TRAFFIC_H
#define CMQ_TRAFFIC_H

#include <stdint.h>

#include "base/cmq_bytes.h"
#include "base/cmq_status.h"

#define CMQ_TRAFFIC_ENTRIES_MAX 200000u

typedef struct cmq_traffic cmq_traffic;

cmq_status CMQ_MUST_CHECK cmq_traffic_create(cmq_traffic **traffic_out);
void cmq_traffic_destroy(cmq_traffic *traffic);   /* NULL is fine */

/* Messages and their records' bytes: received for a topic (no group), or given to a group. Names of at most 255
 * bytes. */
void cmq_traffic_count(cmq_traffic *traffic, cmq_slice topic, cmq_slice group, uint64_t messages, uint64_t bytes);

typedef struct cmq_traffic_item {
    cmq_slice topic, group;      /* live as long as the table */
    uint64_t messages, bytes;
} cmq_traffic_item;

/* Up to `capacity` entries; *cursor is 0 at first. 0: no more. */
uint32_t cmq_traffic_list(const cmq_traffic *traffic, uint32_t *cursor, cmq_traffic_item *items, uint32_t capacity);

#endif
