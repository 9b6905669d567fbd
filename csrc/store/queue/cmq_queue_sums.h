/* cmq_queue_sums: checksums of consume queue files, so that a scan notices a unit that still looks like one: a bit that
 * flipped in a tag's hash makes a message vanish from its tag, and nothing about the unit says so.
 *
 *   <root>/cometmq/sums/<topic>/<queue id>-<20 digits: the queue file's start>   CRC-32, big-endian, of each 64 KiB of
 *   the file; 0: not known
 *
 * A sum is written when its block is complete. It proves nothing and costs nothing when it is wrong: a block that
 * differs from its sum is scanned without the filter, and its records decide. So nothing here is ever synced, and no
 * failure counts: a missing, old or damaged sum makes a scan slower at worst. Not covered: the last, incomplete block
 * of a queue (cmq_queue_end_sums), and complete blocks of batch queues.
 *
 * Owns:    cometmq/sums, and the notes of mapped files (cmq_cachedfile.sums).
 * Cost:    writing 0.8 ns per unit; the first look at a block in a mapping 0.7 ns per unit, later ones a byte per
 *          block. 4 bytes per 3,277 units.
 * Threads: wrote, remove: with the queue's lock. sound_until: any.
 * Source:  ours; docs/decisions/0019.
 */
#ifndef CMQ_QUEUE_SUMS_H
#define CMQ_QUEUE_SUMS_H

#include "store/queue/cmq_queue_internal.h"

#define CMQ_SUMS_BLOCK_BYTES 65536

/* With the queue's lock: `bytes` bytes were written at byte `at` of the file that starts at `start`, behind everything
 * that was written before. Extends queue->files.sum; writes the sums of a simple queue's blocks that end among them. */
void cmq_queue_sums_wrote(cmq_queue *queue, cmq_file *file, int64_t start, int64_t at, const uint8_t *written,
                          size_t bytes);

/* Forget the sums of one file, which is gone. */
void cmq_queue_sums_remove(const cmq_queue *queue, int64_t start);

/* <root>/cometmq/sums/<topic>: for the deletion of a topic. */
cmq_status CMQ_MUST_CHECK cmq_queue_sums_topic_path(const cmq_queue *queue, char into[CMQ_PATH_BYTES]);

/* Where the block ends in which byte `at` of the file lies. */
static inline int64_t cmq_queue_sums_block_end(const cmq_queue *queue, int64_t at)
{
    const int64_t end = (at / CMQ_SUMS_BLOCK_BYTES + 1) * CMQ_SUMS_BLOCK_BYTES,
                  file_bytes = cmq_queue_file_bytes(queue);
    return end < file_bytes ? end : file_bytes;
}

/* Up to where bytes [from, end) of the mapped file may be scanned: at least one unit; `from` when the block of the
 * first unit differs from its sum. `whole_end`: bytes below are in the file; a block that ends behind it has no sum
 * yet. Blocks found right are not checked again in this mapping, and blocks that a scan may not reach are not checked
 * yet. */
int64_t cmq_queue_sums_sound_until(const cmq_queue *queue, cmq_cachedfile *mapped, int64_t start, int64_t from,
                                   int64_t end, int64_t whole_end);

#endif
