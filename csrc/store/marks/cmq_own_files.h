/* cmq_own_files: our own files beside upstream's: the folder <root>/cometmq, which no RocketMQ looks into.
 *
 * Everything in it is versioned, checksummed and disposable: absent, damaged, stale or from a newer version means "not
 * known", and the store does without it.
 *   cometmq/point        how far log, queues and index are known to be complete and durable (cmq_durable_point)
 *   cometmq/follow       the page through which followers in other processes see the confirmed end (cmq_follow)
 *   cometmq/fenced       a write or sync failed (cmq_fence)
 *   cometmq/sums         checksums of queue files (cmq_queue_sums)
 *   cometmq/ends         checksums of the queues' ends, with their begins and ends (cmq_queue_end_sums)
 *   cometmq/deleted      queues that were deleted and whose files are still to be removed; queue files that an opening
 *                        makes before it renames them to their places (cmq_queue_begins)
 *
 * Not disposable, but there only while it is of use: commits since consumerOffset.json was written (`cometmq/progress`,
 * see cmq_offset_journal), the mark of a recovery that makes missing queue files and has not ended
 * (`cometmq/incomplete`, see cmq_queue_recover), what a repair still has to do (`cometmq/repair`, with
 * `cometmq/rebuild`), and what repairs and recovery put aside (`cometmq/removed`), which is the user's to delete; see
 * cmq_repair and cmq_removed.
 *
 * Threads: any; nothing is kept.
 */
#ifndef CMQ_OWN_FILES_H
#define CMQ_OWN_FILES_H

#include <stdint.h>

#include "base/cmq_file.h"
#include "base/cmq_status.h"

#define CMQ_OWN_FOLDER "cometmq"
#define CMQ_REMOVED_FOLDER CMQ_OWN_FOLDER "/removed"
#define CMQ_REMOVED_STAMP_BYTES 40

/* Make cometmq/removed/<stamp> with a stamp that no other has. */
cmq_status CMQ_MUST_CHECK cmq_own_files_make_removed(cmq_fs *fs, const char *root, int64_t now_ms,
                                                     char stamp_out[CMQ_REMOVED_STAMP_BYTES],
                                                     char path_out[CMQ_PATH_BYTES]);

#endif
