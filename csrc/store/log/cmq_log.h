/* cmq_log: the commit log: an endless byte space cut into segment files of one size, and the three ends in it.
 *
 *        segment 0            segment 1                        segment 2 (made ahead)
 *   |--------------------|---------------------------------|- - - - - - - - - - - - - |
 *   min                        flushed    confirmed   end
 *
 *   end        the writer encoded up to here; the next record's physical offset
 *   confirmed  readers may see up to here: under async flush = end, under sync flush = flushed
 *   flushed    known to be on disk
 *
 * Owns:       the files under commitlog/ and their mappings; descriptors of the few that bytes come into.
 * Invariant:  flushed, confirmed <= end, and none ever moves back while the log is open; a record lies inside one
 *             segment, followed there by another record, a blank or zeros; bytes behind `end` are zero in a log that we
 *             wrote.
 * How bytes get in: sync: records are encoded into a staging buffer that group commit (cmq_commit) writes with pwrite
 * and fdatasync, which
 *             costs a quarter of msync on a mapped page. Async: straight into the mapped segment, whose pages were made
 *             before: a segment ahead by the helper under steady appends, else by the writer, a piece ahead. Blocks are
 *             always reserved before anything is encoded, so neither a store into the map nor the pwrite meets a full
 *             disk.
 * Threads:    "writer": the holder of the writer lock. "flush": one thread at a time, beside the writer. "reader": any
 *             thread.
 * Way:        cmq_append -> [cmq_log] -> cmq_commit -> readers
 * Source:     upstream's CommitLog, MappedFileQueue; spec store 1.2, 1.3, 2.6, 6. Measured choices:
 *             docs/decisions/0002.
 */
#ifndef CMQ_LOG_H
#define CMQ_LOG_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cmq_bytes.h"
#include "base/cmq_file.h"
#include "base/cmq_status.h"
#include "store/log/cmq_segment.h"

#define CMQ_SEGMENT_BYTES_MIN 4096
#define CMQ_SEGMENT_BYTES_MAX (INT64_C(2147483647) / 4096 * 4096)   /* upstream's file positions are i32 */
#define CMQ_LOG_PATHS_MAX 16
#define CMQ_STAGING_BYTES_MAX (INT64_C(8) << 20)   /* per staging buffer, unless cmq_log_set_staging says otherwise; a
                                                    * fuller one must be committed first */
#define CMQ_SEALED_MAX 32                          /* sealed stretches of a staging buffer */
#define CMQ_STAGED_RUNS_MAX 32                     /* pieces of a staging buffer, one per segment touched */

typedef struct cmq_log cmq_log;

typedef struct cmq_log_options {
    cmq_fs *fs;
    const char *const *paths;   /* commitlog directories; file k is made in paths[k % path_count]; copied */
    uint32_t path_count;
    int64_t segment_bytes;
    bool read_only;
    bool staged;                /* sync flush: always encode into staging buffers; group commit takes them */
    uint32_t record_bytes_max;  /* no record is larger; sizes the staging buffers */
} cmq_log_options;

cmq_status CMQ_MUST_CHECK cmq_log_create(cmq_log **log_out, const cmq_log_options *options);

/* List and open the segment files. Foreign names, other lengths and gaps are errors; an empty last file is removed
 * (read-only: ignored). */
cmq_status CMQ_MUST_CHECK cmq_log_load(cmq_log *log);

/* Frees all. With `clean`, segments made ahead that hold nothing are deleted, as upstream does at a clean stop.
 * Mappings that are still pinned stay until cmq_segment_unpin; the log's memory stays until the last of them. */
void cmq_log_close(cmq_log *log, bool clean);

/* Its directories. */
uint32_t cmq_log_path_count(const cmq_log *log);
const char *cmq_log_path(const cmq_log *log, uint32_t index);

/* The path of the segment that starts at `start`. */
cmq_status CMQ_MUST_CHECK cmq_log_path_of(const cmq_log *log, int64_t start, char path_out[CMQ_PATH_BYTES]);

/* ---- writer ---- */

/* After recovery: records end here. Later files are deleted, what lies behind in the same file is made zero, durably.
 * Not below min. */
cmq_status CMQ_MUST_CHECK cmq_log_set_end(cmq_log *log, int64_t end);

/* The same where nothing but zeros lies behind: no byte is written, and nothing synced. */
cmq_status CMQ_MUST_CHECK cmq_log_go_on(cmq_log *log, int64_t end);

/* Make a place for `bytes` (one record, or a batch that must not cross a segment). Rolls with a blank record when it
 * does not fit before the segment's end. *into_out has room for `bytes`, *phy_out is where they will lie. Nothing moves
 * until cmq_log_commit. CMQ_AGAIN: the staging buffer is full, commit first. CMQ_ERR_TOO_LARGE: never fits a segment.
 * CMQ_ERR_DISK_FULL: no blocks; try later. */
cmq_status CMQ_MUST_CHECK cmq_log_claim(cmq_log *log, uint32_t bytes, uint8_t **into_out, int64_t *phy_out);

/* The same within the current segment: CMQ_AGAIN also where that has no room left. */
cmq_status CMQ_MUST_CHECK cmq_log_claim_here(cmq_log *log, uint32_t bytes, uint8_t **into_out, int64_t *phy_out);

/* Before a batch of several claims that must not cross a segment, nor get CMQ_AGAIN between: room for all of them.
 * Statuses as above. */
cmq_status CMQ_MUST_CHECK cmq_log_claim_together(cmq_log *log, uint32_t bytes);

/* A stretch of records that a crash leaves whole or leaves out, at any point: claim its bytes, claim and commit its
 * records, which make `bytes` or less, then seal it. Until then none of them can be found, since the first 8 bytes are
 * written last, behind a sync of the others: by cmq_log_seal where the log is mapped, which therefore waits for the
 * disk; with staging, by cmq_log_write_staged. Statuses as above; a failure of cmq_log_seal means: fence. */
cmq_status CMQ_MUST_CHECK cmq_log_begin_sealed(cmq_log *log, uint32_t bytes);
cmq_status CMQ_MUST_CHECK cmq_log_seal(cmq_log *log);

/* The claimed bytes are a record now (or several); moves `end`. */
void cmq_log_commit(cmq_log *log, uint32_t bytes);

/* Is there room to go on? Asks for what the next claim might ask for, and moves nothing. CMQ_ERR_DISK_FULL when not. */
cmq_status CMQ_MUST_CHECK cmq_log_try_room(cmq_log *log);

/* Let staging buffers take so many bytes. */
void cmq_log_set_staging(cmq_log *log, int64_t bytes_max);

/* Publish: readers may see up to confirmed_end. Never moves back. */
void cmq_log_confirm(cmq_log *log, int64_t confirmed_end);

/* Any thread: the three ends and the first byte. */
int64_t cmq_log_end(const cmq_log *log);         /* writer only */
int64_t cmq_log_confirmed(const cmq_log *log);
int64_t cmq_log_flushed(const cmq_log *log);
int64_t cmq_log_min(const cmq_log *log);
int64_t cmq_log_min_now(cmq_log *log);   /* the same by the files, which another process may have deleted since; a call
                                          * for each of those */
int64_t cmq_log_segment_bytes(const cmq_log *log);
int64_t cmq_log_last_file_end(const cmq_log *log);   /* end of the newest segment file; min when there is none */

/* ---- flush ---- */

/* Staged: hand over the bytes encoded since the last take. Called with the writer lock held and the buffer taken before
 * written. */
typedef struct cmq_staged cmq_staged;   /* lives in the log */
cmq_staged *cmq_log_take_staged(cmq_log *log);   /* NULL: nothing was encoded since the last take */
int64_t cmq_staged_end(const cmq_staged *staged);

/* Write taken bytes and make them durable; moves `flushed`. After it (also failed) the buffer is free again. A failure
 * means: fence. */
cmq_status CMQ_MUST_CHECK cmq_log_write_staged(cmq_log *log, cmq_staged *staged);

/* Async: make everything up to `end` durable; moves `flushed`. */
cmq_status CMQ_MUST_CHECK cmq_log_sync(cmq_log *log, int64_t end);

/* Nothing comes into segments below `flushed` any more: close their files, or leave it to the next call while the
 * helper is at work. Their mappings stay. */
void cmq_log_close_flushed(cmq_log *log);

/* Make the segment after the current one, reserve its blocks and (async) warm its pages, a step of 4 MiB at a time;
 * CMQ_END when there is nothing to do. Called by the prewarming helper without the writer lock. It never works in the
 * segment that the writer is in: warming must be a whole segment ahead to help (spec native 1). */
cmq_status CMQ_MUST_CHECK cmq_log_prewarm_step(cmq_log *log);

/* ---- retention ---- */

/* Delete the oldest segment (never the last). Pinned mappings stay readable. */
cmq_status CMQ_MUST_CHECK cmq_log_delete_first(cmq_log *log);

/* Modification time and path of the oldest segment's file; CMQ_END when only one is left. */
cmq_status CMQ_MUST_CHECK cmq_log_first_info(cmq_log *log, cmq_file_info *info_out);

/* ---- reader ---- */

/* Pin the segment that holds `phy`: *data_out points at phy, *available_out bytes follow to the end of the segment.
 * CMQ_ERR_OFFSET below min or at and behind the last file's end. Read no further than the confirmed end. */
cmq_status CMQ_MUST_CHECK cmq_log_pin(cmq_log *log, int64_t phy, cmq_segment **segment_out, const uint8_t **data_out,
                                      size_t *available_out);
/* Unpin with cmq_segment_unpin, from any thread, also after cmq_log_close. */

/* follower: look for segment files that appeared or went. */
cmq_status CMQ_MUST_CHECK cmq_log_refresh(cmq_log *log);

/* follower, at the start of a segment that nothing comes into: a new writer deletes the blank segments behind its end
 * and makes them again, and then ours is a file without a name that stays blank for ever. Opens the new one, and sets
 * *reopened_out. */
cmq_status CMQ_MUST_CHECK cmq_log_reopen_replaced(cmq_log *log, int64_t start, bool *reopened_out);

#endif
