/* cmq_offset_journal: the journal of committed offsets, `cometmq/progress`.
 *
 * A commit is one record of some 60 bytes instead of a rewritten consumerOffset.json. The JSON is written every few
 * seconds and at close, as a broker does; the journal holds the commits since then. Its head names the JSON that it
 * continues (crc32 and length of that file): over any other JSON the journal does not count. So neither a Java broker
 * that moved or reset progress in between nor a crash right after the JSON was replaced is overruled by it.
 *
 *   head     512 bytes: magic, version, generation, basis, crc. Rewritten in place when the JSON was written: one
 *            sector
 *   record   bytes, crc, kind, group, then (queue id, offset, topic) for each queue. One record is one commit: all of
 *            it counts or nothing
 *
 * Owns:       the file <root>/cometmq/progress while a writer has the store; there is none after a clean close.
 * Invariant:  a record's crc continues the crc of the record before it, from the head's on. So the journal ends at the
 *             first record that is not whole, and leftovers of an earlier generation never count.
 * Durability: append writes into the page cache. wait makes records durable: one fdatasync for all that wait. The
 *             caller makes the log durable up to what the offsets cover first.
 * Limit:      CMQ_OFFSETLOG_BYTES; then append answers CMQ_AGAIN, and the caller writes the JSON and restarts.
 * Threads:    append, wait, restart, remove: any. read: any process, also beside a writer.
 * Way:        Consumer.commit -> [cmq_offset_journal] -> opening, followers -> config/consumerOffset.json
 * Source:     ours; docs/decisions/0018.
 */
#ifndef CMQ_OFFSET_JOURNAL_H
#define CMQ_OFFSET_JOURNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cmq_bytes.h"
#include "base/cmq_file.h"
#include "base/cmq_status.h"

#define CMQ_OFFSETLOG_BYTES (1u << 20)   /* of the whole file */

typedef struct cmq_offset_journal cmq_offset_journal;

/* The JSON that a journal continues. Both 0: there is none. */
typedef struct cmq_offset_journal_basis {
    uint32_t crc;      /* crc32 of the file */
    uint64_t bytes;    /* its length */
} cmq_offset_journal_basis;

typedef struct cmq_offset_journal_entry {
    cmq_slice topic;
    int32_t queue_id;
    int64_t offset;    /* the next to consume */
} cmq_offset_journal_entry;

/* Make an empty journal in place of any other. durable: commits will wait for the disk, so its blocks are written
 * ahead, and its name is durable. *log_out owned: cmq_offset_journal_close. */
cmq_status CMQ_MUST_CHECK cmq_offset_journal_create(cmq_fs *fs, const char *root, const cmq_offset_journal_basis *basis,
                                                    int64_t now_ms, bool durable, cmq_offset_journal **log_out);

/* Append one commit. *end_out: the place to wait for. CMQ_AGAIN: no room, nothing was written. After any other failure
 * the journal takes nothing more. */
cmq_status CMQ_MUST_CHECK cmq_offset_journal_append(cmq_offset_journal *log, cmq_slice group,
                                                    const cmq_offset_journal_entry *entries, uint32_t count,
                                                    uint64_t *end_out);

/* Return when everything below `end` is durable. After a failed sync the journal takes nothing more, and every wait
 * fails. */
cmq_status CMQ_MUST_CHECK cmq_offset_journal_wait(cmq_offset_journal *log, uint64_t end);

/* The JSON file holds every appended commit, durably: empty the journal and base it on that file. Waiters return.
 * Durable with the next record. */
cmq_status CMQ_MUST_CHECK cmq_offset_journal_restart(cmq_offset_journal *log, const cmq_offset_journal_basis *basis);

/* The same at a close: the file goes. */
cmq_status CMQ_MUST_CHECK cmq_offset_journal_remove(cmq_offset_journal *log);

/* Free; the file stays as it is. NULL is fine. */
void cmq_offset_journal_close(cmq_offset_journal *log);

/* Remove a journal that a dead writer left; fine when there is none. */
cmq_status CMQ_MUST_CHECK cmq_offset_journal_forget(cmq_fs *fs, const char *root);

/* ---- reading ---- */

typedef enum cmq_offset_journal_found {
    CMQ_OFFSETLOG_NONE,        /* no journal, or none of this version, or its head is not whole */
    CMQ_OFFSETLOG_OTHER,       /* a journal, but over another JSON */
    CMQ_OFFSETLOG_READ
} cmq_offset_journal_found;

/* How far a journal was read; all zero: not yet. */
typedef struct cmq_offset_journal_cursor {
    uint32_t head_crc, chain;
    uint64_t at;
} cmq_offset_journal_cursor;

/* One queue of a commit; slices are valid during the call. Any return value but CMQ_OK ends the reading. */
typedef cmq_status (*cmq_offset_journal_visit)(void *context, cmq_slice group, const cmq_offset_journal_entry *entry);

/* Visit the commits behind the cursor, oldest first, and move it on. A journal that was restarted since (another head)
 * is read from its start. */
cmq_status CMQ_MUST_CHECK cmq_offset_journal_read(cmq_fs *fs, const char *root, const cmq_offset_journal_basis *basis,
                                                  cmq_offset_journal_cursor *cursor, cmq_offset_journal_visit visit,
                                                  void *context, cmq_offset_journal_found *found_out);

#endif
