/* cmq_own_files: our own files beside upstream's: the folder <root>/cometmq, which no RocketMQ looks into.
 *
 * Everything in it is versioned, checksummed and disposable: absent, damaged, stale or from a newer version means "not
 * known", and the store does without it.
 *   cometmq/point        how far log, queues and index are known to be complete and durable (cmq_durable_point)
 *   cometmq/follow       the page through which followers in other processes see the confirmed end (cmq_follow)
 *   cometmq/fenced       a write or sync failed (cmq_fence)
 *   cometmq/sums         checksums of queue files (cmq_queue_sums)
 *   cometmq/ends         checksums of the queues' ends, and their begins (cmq_queue_end_sums)
 *   cometmq/deleted      queues that were deleted and whose files are still to be removed; queue files that an opening
 *                        makes before it renames them to their places (cmq_queue_begins)
 *
 * Not disposable, but there only while it is of use: commits since consumerOffset.json was written (`cometmq/progress`,
 * see cmq_offset_journal), the mark of a recovery that makes missing queue files and has not ended
 * (`cometmq/incomplete`, see cmq_queue_recover), what a repair still has to do (`cometmq/repair`, with
 * `cometmq/rebuild`), and what repairs and recovery put aside (`cometmq/removed`), which is the user's to delete; see
 * cmq_repair and cmq_removed.
 */
#ifndef CMQ_OWN_FILES_H
#define CMQ_OWN_FILES_H

#define CMQ_OWN_FOLDER "cometmq"

#endif
