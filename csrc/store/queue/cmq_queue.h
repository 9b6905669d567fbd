/* cmq_queue: the consume queues of a store, ordinal -> (physical offset, size, tags code), and the table of all of
 * them.
 *
 * A queue is a heap tail in front of a sequence of fixed-size files. The writer puts units into the tail and never
 * waits for a file; the files are a write-behind image (cmq_queues_flush), and the commit log can always rebuild them.
 * Tens of thousands of queues need neither a descriptor nor a mapping each: files are reached through bounded caches.
 *
 * Owns:       files under consumequeue/, batchconsumequeue/ and consumequeue_ext/; the ordinals of every queue.
 * Invariant:  units of one queue are in ordinal order and in physical order; a unit is written to a file only when its
 *             record ends at or before the confirmed end given to cmq_queues_flush; behind the last unit a file of ours
 *             reads as zero.
 * Visible:    readers pass the store's confirmed end; a unit is visible iff phy + bytes <= confirmed_end.
 * Threads:    "writer" functions: one thread at a time (the holder of the store's writer lock). "flush" functions: one
 *             thread at a time, beside the writer. "reader" functions: any thread, never block the writer, never wait
 *             for it.
 * Way:        cmq_log -> [cmq_queue] -> reads, scans
 * Source:     upstream's ConsumeQueue, BatchConsumeQueue, ConsumeQueueExt; spec store 3. Differences in
 *             docs/architecture.md.
 */
#ifndef CMQ_QUEUE_H
#define CMQ_QUEUE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cmq_bytes.h"
#include "base/cmq_file.h"
#include "base/cmq_status.h"

typedef struct cmq_queues cmq_queues;   /* all queues of one store */
typedef struct cmq_queue cmq_queue;     /* one (topic, queue id); lives as long as its set, also after deletion */

typedef enum cmq_queue_kind {
    CMQ_QUEUE_SIMPLE = 0,   /* 20-byte units */
    CMQ_QUEUE_BATCH = 1     /* 46-byte units of inner batches (topics with queue.type=BatchCQ) */
} cmq_queue_kind;

#define CMQ_UNIT_BYTES 20
#define CMQ_BATCH_UNIT_BYTES 46
#define CMQ_FILLER_SIZE 0x7FFFFFFF   /* unit (0, this, 0): no message at this ordinal (spec store 3.3) */
/* Tags code of a filler between two units: such a one names the record of the unit behind it. A broker that meets (0,
 * CMQ_FILLER_SIZE, 0) in a pull passes over everything that follows in the log's first file; here it gives the next
 * message twice, with one offset, which its clients take for one. No hash (32 bits), no deliver time and no extension's
 * address (negative). */
#define CMQ_GAP_TAGS_CODE INT64_C(0x434D51475F474150)

/* One unit, decoded. */
typedef struct cmq_unit {
    int64_t offset;       /* queue offset of its (first) message */
    int64_t phy;          /* physical offset of the record */
    int64_t tags_code;    /* tag hash, deliver timestamp, or resolved from the extension */
    int64_t store_ms;     /* store timestamp where the unit has it (batch units, extension), else 0 */
    int32_t bytes;        /* size of the record */
    int32_t count;        /* messages in it: 1, or the inner batch's size */
} cmq_unit;

/* Where the log begins now, by its files; NULL: a file of a queue that is missing was deleted by retention. */
typedef struct cmq_queues_log_min {
    int64_t (*of)(void *context);
    void *context;
} cmq_queues_log_min;

typedef struct cmq_queues_options {
    cmq_fs *fs;
    const char *root;                 /* the store's directory; copied */
    bool read_only;                   /* a follower: nothing is created, written or cut */
    int64_t queue_file_bytes;         /* multiple of 20 */
    int64_t batch_file_bytes;         /* multiple of 46 */
    int64_t ext_file_bytes;
    bool ext_enabled;                 /* write an extension unit per simple unit */
    uint32_t descriptors_max;         /* of the descriptor cache; 0: 4096 */
    uint32_t maps_max;                /* of the map cache; 0: 256 */
    cmq_queues_log_min log_min;       /* read-only sets */
} cmq_queues_options;

/* ---- life ---- */

cmq_status CMQ_MUST_CHECK cmq_queues_create(cmq_queues **queues_out, const cmq_queues_options *options);

/* List the folders and learn every queue and its files (names and lengths; nothing is mapped). Folder names that are no
 * topics or queue ids are skipped as upstream does; a file of another length is CMQ_ERR_SETTING naming the setting; a
 * RocksDB folder is CMQ_ERR_NOT_STORE. */
cmq_status CMQ_MUST_CHECK cmq_queues_load(cmq_queues *queues);

/* Notified of watched queues that are deleted (cmq_watches.h). */
typedef struct cmq_watches cmq_watches;
void cmq_queues_set_watches(cmq_queues *queues, cmq_watches *watches);

/* Frees everything; flush first. No reader may be inside. */
void cmq_queues_destroy(cmq_queues *queues);

/* ---- the table ---- */

/* reader: NULL when there is no such queue (or it was deleted). */
cmq_queue *cmq_queues_find(const cmq_queues *queues, cmq_slice topic, int32_t queue_id);

/* writer: find or make. Nothing is created on disk before the first flush of its first unit. Topic names with '/', NUL
 * or of length 0 or over 255 bytes and negative queue ids are refused. CMQ_ERR_SETTING when the queue exists with the
 * other kind. */
cmq_status CMQ_MUST_CHECK cmq_queues_require(cmq_queues *queues, cmq_slice topic, int32_t queue_id, cmq_queue_kind kind,
                                             cmq_queue **queue_out);

/* reader: all queues, in order of creation; deleted ones are still counted (cmq_queue_deleted). */
uint32_t cmq_queues_count(const cmq_queues *queues);
cmq_queue *cmq_queues_at(const cmq_queues *queues, uint32_t index);

/* reader: a queue's identity. The topic is NUL-terminated, static for the queue's life. */
const char *cmq_queue_topic(const cmq_queue *queue);
uint32_t cmq_queue_topic_bytes(const cmq_queue *queue);
int32_t cmq_queue_id(const cmq_queue *queue);
cmq_queue_kind cmq_queue_kind_of(const cmq_queue *queue);
bool cmq_queue_deleted(const cmq_queue *queue);
/* Has it ever had a message, confirmed or not? One that has not is no queue to show: an append made it, and failed
 * (disk full, too large, fenced), or there are empty files. */
bool cmq_queue_begun(const cmq_queue *queue);
/* jhash of "topic#", to be extended by a key: the start of every index hash of this topic. */
uint32_t cmq_queue_index_seed(const cmq_queue *queue);
uint32_t cmq_queue_index(const cmq_queue *queue);   /* from 0 on; a deleted queue keeps its own */
/* Had it messages, all of whose records end at or before min_phy? */
bool cmq_queue_expired(const cmq_queue *queue, int64_t min_phy);

/* ---- writer ---- */

/* The ordinal that the next message gets. */
int64_t cmq_queue_next(const cmq_queue *queue);

/* view: reopen the queues' files. Another writer may have put others in their places. */
void cmq_queues_reopen_files(cmq_queues *queues);

/* A turn begins: room made from here on stays until the next turn, also while room is made in other queues. */
void cmq_queues_begin_turn(cmq_queues *queues);

/* Make sure that `units` more units can be put without failing: grows the tail, or writes its confirmed part to the
 * file. CMQ_AGAIN when the tail's limit (4 million units) is reached with units that are not confirmed: confirm first;
 * in a read-only set: follow_files first. CMQ_ERR_DISK_FULL, CMQ_ERR_MEMORY or CMQ_ERR_IO otherwise, nothing
 * changed. */
cmq_status CMQ_MUST_CHECK cmq_queue_make_room(cmq_queue *queue, uint32_t units, int64_t confirmed_end);

/* Put the unit at ordinal cmq_queue_next(); room was made. Becomes readable once the confirmed end covers it. `count`
 * is 1 for simple queues. With the extension on, its unit is made here too. */
void cmq_queue_put(cmq_queue *queue, int64_t phy, int32_t bytes, int64_t tags_code, int64_t store_ms, int32_t count);

/* Recovery's put, at a given ordinal: already there and equal is nothing; different from there on is cut and replaced;
 * a gap is filled with filler units (counted in cmq_queues_gaps). Makes its own room. In a read-only set all of this
 * happens in memory. A queue whose first unit comes at ordinal > 0 starts there (spec store 3.3). A record that the
 * queue has at another ordinal stays where it is. CMQ_ERR_CORRUPT when the ordinal is millions ahead: no record means
 * that. */
cmq_status CMQ_MUST_CHECK cmq_queue_reput(cmq_queue *queue, int64_t offset, int64_t phy, int32_t bytes,
                                          int64_t tags_code, int64_t store_ms, int32_t count);
int64_t cmq_queues_gaps(const cmq_queues *queues);   /* filler units made by reput since load */

/* After load: for every queue find the last good unit whose record ends at or before `end` and whose ordinal order is
 * right, forget what lies behind (its bytes stay until end_recover), correct the min offsets to log_min, rebuild next
 * offsets. `dispatched_end_out`: the largest record end of all queues (upstream's D), 0 when there is none. Records
 * that recovery reads again come back by its reput. Behind `whole_end` (of a record, too) a power loss may have taken
 * units: the place of a simple queue's unit gives its ordinal, so those that are missing come back there; a queue of
 * batches ends before the first, and one with an extension at whole_end. */
cmq_status CMQ_MUST_CHECK cmq_queues_recover(cmq_queues *queues, int64_t log_min, int64_t end, int64_t whole_end,
                                             int64_t *dispatched_end_out);

/* A durable point's statement about the queues. */
typedef struct cmq_queues_point {
    int64_t log_min, log_end;
    uint64_t fingerprints[2];   /* one of them was that of the queues, cut at log_end */
    uint32_t count;             /* of them; 0: the point does not say */
} cmq_queues_point;

/* After recover, where the last durable point is true: read the table that was stored with the point. Scans compare
 * each queue's newest units with its sum; a queue whose files begin behind its begin there has lost files. Where the
 * queues are not those of the point, but would be with the ends of the table, the units up to these ends were lost. */
cmq_status CMQ_MUST_CHECK cmq_queues_load_ends(cmq_queues *queues, const cmq_queues_point *point);
bool cmq_queues_lost_begins(const cmq_queues *queues);
bool cmq_queues_lost_ends(const cmq_queues *queues);
uint32_t cmq_queues_lost_end_count(const cmq_queues *queues);
/* Of such a queue, by number: the units by which the missing ones are placed, if the log has their records: the first
 * of the file that is made again, and the last. How many. */
uint32_t cmq_queues_lost_end_units(cmq_queues *queues, uint32_t at, cmq_queue **queue_out, cmq_unit units_out[2]);
/* The whole log is read for them instead. */
void cmq_queues_forget_lost_ends(cmq_queues *queues);

/* Before the log is read: begin to make the units again that queues lost at their begins and ends, but for first files
 * whose records have expired by log_min. *from_out: the lowest record whose unit is missing; INT64_MAX: there is none,
 * and nothing was changed. Of records below whole_below the log then brings these queues' units alone
 * (cmq_queues_require_for). A writer gets the missing ones aside; a view holds them in memory, after it has emptied a
 * queue without its begin: CMQ_ERR_CORRUPT where they are too many. whole_below 0: the log brings all units of all
 * queues, and a writer, too, empties queues without their begins. */
cmq_status CMQ_MUST_CHECK cmq_queues_begin_again(cmq_queues *queues, int64_t log_min, int64_t whole_below,
                                                 int64_t *from_out);

/* When the log was read: put the files that were made aside into their places, durably. CMQ_ERR_CORRUPT where the log
 * has less than a queue lacks. */
cmq_status CMQ_MUST_CHECK cmq_queues_join_lost(cmq_queues *queues);

/* The queue in which the unit of the record at `phy` has to be put again, made when it is missing; NULL: none, as the
 * queue has it, or is that of a deleted topic. Until join_lost it may be one aside: for records below whole_below, and
 * for all of a queue that lost its end. */
cmq_status CMQ_MUST_CHECK cmq_queues_require_for(cmq_queues *queues, cmq_slice topic, int32_t queue_id,
                                                 cmq_queue_kind kind, int64_t phy, cmq_queue **queue_out);

/* After recover: files of a queue are missing from its middle, or were when a recovery began that did not finish: the
 * log must be read from its first byte, as no queue's own files show what they lack. complete: it was, and what it made
 * is durable. */
bool cmq_queues_incomplete(const cmq_queues *queues);
cmq_status CMQ_MUST_CHECK cmq_queues_complete(cmq_queues *queues);

/* Before the log is read. are_behind: the log from the durable point on makes everything again that a crash took of the
 * files. Else this is remembered durably until complete. */
cmq_status CMQ_MUST_CHECK cmq_queues_settle_gaps(cmq_queues *queues, bool are_behind);

/* Which queues there are and how many units each has below confirmed_end, in one number: equal before and after an
 * opening, unless units were lost. As for flush, or when nobody writes. */
uint64_t cmq_queues_fingerprint(const cmq_queues *queues, int64_t confirmed_end);

/* The part of one queue with so many units. */
uint64_t cmq_queues_fingerprint_part(uint32_t topic_seed, int32_t queue_id, cmq_queue_kind kind, int64_t units);

/* The same as it will be without the queues that `without` says yes to. */
uint64_t cmq_queues_fingerprint_without(const cmq_queues *queues, int64_t confirmed_end,
                                        bool (*without)(void *context, const cmq_queue *queue), void *context);

/* Cut every queue at the first unit whose record does not end at or before log_end (upstream's truncateDirty). */
cmq_status CMQ_MUST_CHECK cmq_queues_truncate(cmq_queues *queues, int64_t log_end);

/* writer, when the log's end is known and everything before it was put again: make what lies behind the queues' ends
 * read as zero. Until then readers of other processes find in the files what they found before. */
cmq_status CMQ_MUST_CHECK cmq_queues_end_recover(cmq_queues *queues);

/* writer, while no flush runs: forget a topic: its queues are deleted with their folders, durably; a later require
 * starts again at 0. Their files go later (cmq_queues_empty_trash). CMQ_ERR_NOT_FOUND. */
cmq_status CMQ_MUST_CHECK cmq_queues_delete_topic(cmq_queues *queues, cmq_slice topic);

/* writer: delete queues whose every unit lies below min_phy (upstream's cleanExpired), not those `keep` says yes to. */
cmq_status CMQ_MUST_CHECK cmq_queues_delete_expired(cmq_queues *queues, int64_t min_phy,
                                                    bool (*keep)(void *context, cmq_slice topic), void *context,
                                                    uint32_t *deleted_out);

/* writer: give back the tails of queues that are flushed and were not touched since the call before. Now and then, when
 * there is nothing else to do: tens of thousands of queues then cost little more than their names. */
void cmq_queues_trim(cmq_queues *queues);

/* Any thread: a hot tail is more than half full of unwritten units; a flush now keeps the writer from writing
 * itself. */
bool cmq_queues_flush_wanted(const cmq_queues *queues);

/* ---- flush (one thread at a time, beside the writer) ---- */

/* Write every tail's units that end at or before confirmed_end to the files; with `durable` also sync every file
 * written since the last durable flush, and the directories of new files (sync_all when they are many). On failure
 * nothing is lost: the tails keep the unwritten units. `covered_out`: every record that ends at or before it has its
 * units in the files (and durably with `durable`); after a failure what an earlier flush reached. Units must have been
 * put before the caller learnt confirmed_end. After a failed fsync every durable flush is CMQ_ERR_FENCED. */
cmq_status CMQ_MUST_CHECK cmq_queues_flush(cmq_queues *queues, int64_t confirmed_end, bool durable,
                                           int64_t *covered_out);

/* flush: remove files of deleted queues, at most so many. */
bool cmq_queues_has_trash(const cmq_queues *queues);
cmq_status CMQ_MUST_CHECK cmq_queues_empty_trash(cmq_queues *queues, uint32_t removals);

/* flush: a sync failed; its bytes may be lost, and no later sync reports that. */
bool cmq_queues_sync_failed(const cmq_queues *queues);

/* Retention: delete files whose last unit's record starts below min_phy, then correct every min offset. A queue keeps
 * the file in which its units below durable_end, the last durable point's, end: a power loss may take the files behind
 * it, and the point counts those units. */
cmq_status CMQ_MUST_CHECK cmq_queues_expire(cmq_queues *queues, int64_t min_phy, int64_t durable_end);

/* follower: another process has deleted the queues that `dead` says yes to: forget them. Their next record begins a new
 * life of them. */
void cmq_queues_forget(cmq_queues *queues, bool (*dead)(void *context, cmq_queue *queue), void *context);

/* follower: another process has written everything up to files_end into the files; tails may drop it (new files are
 * looked up when read). */
void cmq_queues_follow_files(cmq_queues *queues, int64_t files_end);

/* ---- reader ---- */

/* First and next-to-last ordinals that can be read: [min, max). */
int64_t cmq_queue_min(const cmq_queue *queue);
int64_t cmq_queue_max(const cmq_queue *queue, int64_t confirmed_end);

/* Up to `capacity` units from ordinal `from` on, fillers left out; from < min starts at min. `next_out` is the ordinal
 * to go on from. CMQ_OK with count 0 when there is nothing visible at or after `from`. For a batch queue the first unit
 * may begin before `from`. */
cmq_status CMQ_MUST_CHECK cmq_queue_read(cmq_queue *queue, int64_t from, int64_t confirmed_end, cmq_unit *units_out,
                                         uint32_t capacity, uint32_t *count_out, int64_t *next_out);

/* The same backwards: up to `capacity` units with ordinals below `before`, newest first. */
cmq_status CMQ_MUST_CHECK cmq_queue_read_back(cmq_queue *queue, int64_t before, int64_t confirmed_end,
                                              cmq_unit *units_out, uint32_t capacity, uint32_t *count_out,
                                              int64_t *next_out);

/* The first ordinal in [lo, hi) whose unit compares >= 0, by binary search (fillers are passed over); hi when there is
 * none. `compare` must be monotone over the range; it may set *status_out to end the search with that status. For a
 * batch queue the ordinal is a unit's base. */
typedef int (*cmq_queue_compare)(void *context, const cmq_unit *unit, cmq_status *status_out);
cmq_status CMQ_MUST_CHECK cmq_queue_search(cmq_queue *queue, int64_t lo, int64_t hi, int64_t confirmed_end,
                                           cmq_queue_compare compare, void *context, int64_t *offset_out);

/* follower: the unit at `offset` as it stands in the queue's file now, whatever the queue's known end is: another
 * process may have written it since. Creates nothing. CMQ_AGAIN when there is no file, or no unit there yet. For a
 * batch queue: the unit whose base is `offset`. */
cmq_status CMQ_MUST_CHECK cmq_queue_file_unit(cmq_queue *queue, int64_t offset, cmq_unit *unit_out);

/* Like cmq_queue_read, but only units whose tags code may match one of the hashes (low 32 bits), examining at most
 * `examine_max` units with the vector scan over the mapped files; stops early when capacity is full. hash_count 0:
 * every unit. Exact tag comparison is the caller's. */
cmq_status CMQ_MUST_CHECK cmq_queue_scan(cmq_queue *queue, int64_t from, int64_t confirmed_end, const uint32_t *hashes,
                                         uint32_t hash_count, uint64_t examine_max, cmq_unit *units_out,
                                         uint32_t capacity, uint32_t *count_out, int64_t *next_out);

/* The entry of consumequeue_ext of the unit at `offset`: its Bloom bit map (0 bytes: none), tags code and store time.
 * CMQ_ERR_NOT_FOUND when the unit has no extension or it is gone; CMQ_ERR_TOO_LARGE when the map does not fit (32,767
 * bytes always do). */
cmq_status CMQ_MUST_CHECK cmq_queue_ext(cmq_queue *queue, int64_t offset, int64_t confirmed_end, uint8_t *map_out,
                                        uint32_t map_capacity, uint32_t *map_bytes_out, int64_t *tags_code_out,
                                        int64_t *store_ms_out);

#endif
