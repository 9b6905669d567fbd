/* cmq_queue_end_sums: checksums of the queues' last blocks, which are not complete and have no sum in cometmq/sums yet:
 * a tag's hash that changes at rest in one of the newest 3,276 units of a queue is noticed like one in an older unit.
 * In the same table, where each queue begins and ends (cmq_queue_begins, cmq_queue_lost_ends).
 *
 *   <root>/cometmq/ends   "CMQQENDS" u64 | version u32 | count u32 | entries | CRC-32 of all bytes before
 *   entry                 position behind the last unit i64 | CRC-32 u32 | queue id i32 | kind u8, + 128: no sum |
 *                         bytes of the topic u8 | position of the first unit i64 |
 *                         physical offset of its record + 1 i64, 0: not known | topic
 *   version 2             has 0 for the position of a queue without a sum
 *   version 1             has entries without the first unit, for queues with a sum alone
 *
 * An entry's sum covers the bytes of the queue's files from the last border of a block up to `position`. The table is
 * written with every durable point and read by each opening that begins at one. It proves nothing: where a block
 * differs, all of its units pass the filter and their records decide (cmq_queue_scan), a queue that began earlier is
 * made again from the log, and ends count only where the point confirms them (cmq_queue_lost_ends), so a wrong table
 * makes scans or an opening slower at worst. It is written in place and never synced; a torn one counts as none.
 *
 * Owns:    the file <root>/cometmq/ends, and cmq_queues.ends.
 * Cost:    34 bytes and the topic's name per queue and durable point; 16 bytes of memory per queue of an opening; a
 *          scan's first look at a queue's end reads at most 64 KiB, later ones nothing.
 * Threads: store: flush. cmq_queues_load_ends: before readers exist. differ: any.
 * Source:  ours; docs/decisions/0019.
 */
#ifndef CMQ_QUEUE_END_SUMS_H
#define CMQ_QUEUE_END_SUMS_H

#include "store/queue/cmq_queue_internal.h"

#define CMQ_QUEUE_ENDS_BYTES_MAX ((size_t)64 << 20)   /* more is no table: a million queues with names of 33 bytes */

/* Write the table, if a queue's file has changed since, with as many queues as fit into bytes_max. Failures are not
 * errors: the table is then missing or old. */
void cmq_queue_end_sums_store(cmq_queues *queues, size_t bytes_max);

/* Are the units from `at` on part of an end that differs from its sum? *end is lowered to the next border: units
 * [at, *end) share the answer. at < *end. */
bool cmq_queue_end_sums_differ(const cmq_queue *queue, int64_t at, int64_t *end);

#endif
