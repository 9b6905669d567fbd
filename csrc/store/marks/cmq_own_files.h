/* cmq_own_files: our own files beside upstream's: the folder <root>/cometmq, which no RocketMQ looks into.
 *
 * Everything in it is versioned, checksummed and disposable: absent, damaged, stale or from a newer version means "not
 * known", and the store does without it.
 *   cmq_durable_point    `cometmq/point`:  up to where log, queues and index are known to be complete and durable
 *   cmq_follow   `cometmq/follow`: the page through which followers in other processes see what is confirmed
 *
 *   cmq_fence    `cometmq/fenced`: a write or sync failed
 *   cmq_queue_recover    `cometmq/incomplete`: a queue lacked files in its middle, and the recovery that makes them has
 *                        not come to its end
 *
 *   cometmq/sums                  checksums of queue files (cmq_queue_sums)
 *   cometmq/deleted               queues that were deleted and whose files are still to be removed
 *
 * Not disposable, but there only while it is of use: commits since consumerOffset.json was written (`cometmq/progress`,
 * see cmq_offset_journal), what a repair still has to do (`cometmq/repair`, with `cometmq/rebuild`), and what repairs
 * and recovery put aside (`cometmq/removed`), which is the user's to delete; see cmq_repair and cmq_removed.
 */
#ifndef CMQ_OWN_FILES_H
#define CMQ_OWN_FILES_H

#define CMQ_SIDE_FOLDER "cometmq"

#include "store/follow/cmq_follow.h"
#include "store/marks/cmq_durable_point.h"

#endif
