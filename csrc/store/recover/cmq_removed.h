/* cmq_removed: keeps what recovery cuts off a log while it holds whole records, and brings such records back.
 *
 * A cut goes to cometmq/removed/<UTC time>/:
 *   commitlog/<offset>.cut   the bytes from the cut to the last one of its segment that is not zero
 *   commitlog/<offset>       the segments behind it that hold anything, moved
 *   cut                      a header: where, how much, when, why. Durable before a byte of the log is touched.
 * Repairs put what they cut into folders of the same shape, without the header (cmq_repair).
 *
 * Bounds:  CMQ_REMOVED_CUTS_MAX cuts of recovery, and CMQ_REMOVED_BYTES_MAX bytes in all but the newest. Beyond them
 *          the oldest goes, those that were restored first. Folders that repairs put aside are the user's, and never
 *          touched.
 * Crash:   a folder without a sound header does not count; the next recovery finds the log as it was, and keeps it
 *          again, in the same folder when it is whole.
 * Threads: the holder of the store's lock, or tools that only list.
 * Source:  ours; docs/decisions/0003.
 */
#ifndef CMQ_REMOVED_H
#define CMQ_REMOVED_H

#include "store/cmq_store.h"

#define CMQ_REMOVED_CUTS_MAX 16u
#define CMQ_REMOVED_BYTES_MAX (INT64_C(1) << 30)
#define CMQ_REMOVED_RESTORED "restored"   /* a file in a folder whose records were brought back */

/* Keep, durably, what lies behind `end`, if there is a whole record in it; *folder_out: where, empty when nothing had
 * to be kept. *records_out: so many. CMQ_ERR_DISK_FULL names the way out: nothing was cut. */
cmq_status CMQ_MUST_CHECK cmq_removed_keep(cmq_store *store, int64_t end, const char *reason,
                                           char folder_out[CMQ_PATH_BYTES], int64_t *records_out);

typedef struct cmq_restored {
    int64_t records;            /* appended again, as new messages at the ends of their queues */
    int64_t doubtful;           /* whole by their body's CRC, but their topic or properties may have lost a sector: not
                                 * appended */
    int64_t unfinished;         /* of a transaction that was never committed: not appended */
    int64_t refused;            /* the store does not take them (the last of them: the error's text) */
    char refusal[CMQ_ERROR_TEXT_BYTES];
    bool already;               /* the folder was restored before: nothing was done */
} cmq_restored;

typedef struct cmq_restore_options {
    const char *name;           /* of the folder under cometmq/removed */
    bool again;                 /* restored records, too */
    /* Called before the first message of a topic and queue that follow another one's; false leaves the message out.
     * NULL: all. */
    bool (*wanted)(void *context, cmq_slice topic, int32_t queue_id);
    void *context;
} cmq_restore_options;

/* Append the whole records of a folder under cometmq/removed again, durably, in the order of the log. A call that dies
 * half way may be repeated: its messages come twice then. CMQ_ERR_NOT_FOUND: no such folder, or no part of a log in
 * it. */
cmq_status CMQ_MUST_CHECK cmq_store_restore(cmq_store *store, const cmq_restore_options *options,
                                            cmq_restored *restored_out);

#endif
