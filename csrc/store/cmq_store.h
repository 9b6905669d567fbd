/* cmq_store: a RocketMQ store directory as one handle. This header is the contract that everything above the engine is
 * written against.
 *
 * Read this first
 *   - One directory, one writer. The writer holds the POSIX lock on `lock`, as a Java broker does; any number of other
 *     processes may open the directory read-only at the same time and follow it live, whether the writer is ours or a
 *     Java broker.
 *   - Under CMQ_FLUSH_SYNC (the default) a message that cmq_store_append reported is on disk, and nobody sees it before
 *     it is. Under CMQ_FLUSH_ASYNC it is in the page cache: it survives the process, not a power loss.
 *   - A failed fsync or log write fences the store: reads go on, every later append answers CMQ_ERR_FENCED until the
 *   store is reopened.
 *   - A full disk refuses appends with CMQ_ERR_DISK_FULL before anything was assigned, and they work again when there
 *     is space.
 *   - After fork the child may only call cmq_store_abandon.
 *
 * Owns:    everything under the directory but config/ (which the layer above keeps).
 * Threads: every function may be called from any thread at any time, but cmq_store_close and cmq_store_abandon, which
 *          need that no other call runs and no reader is open. Readers never block the writer nor wait for it.
 * Source:  upstream's DefaultMessageStore; spec store 1-8.
 */
#ifndef CMQ_STORE_H
#define CMQ_STORE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cmq_bytes.h"
#include "base/cmq_clock.h"
#include "base/cmq_file.h"
#include "base/cmq_status.h"
#include "filter/cmq_selector.h"
#include "store/log/cmq_segment.h"
#include "store/queue/cmq_queue.h"
#include "store/record/cmq_record.h"
#include "store/record/cmq_tags_code.h"

typedef struct cmq_store cmq_store;

typedef enum cmq_flush_mode {
    CMQ_FLUSH_SYNC = 0,
    CMQ_FLUSH_ASYNC = 1
} cmq_flush_mode;

/* When old segments go. All zero: never. */
typedef struct cmq_retention {
    bool enabled;
    int64_t reserved_ms;            /* a segment older than this (by its file's modification time) is due; upstream: 72
                                     * h */
    uint32_t delete_hours;          /* bit h: local hours in which due segments are deleted; upstream: bit 4 */
    double max_used_ratio;          /* of the disk: above it due segments go at any hour; upstream 0.75 */
    double force_ratio;             /* above it the oldest go even when not due; upstream 0.85 */
    double warning_ratio;           /* above it appends are refused as well; upstream 0.90 */
    uint32_t files_per_round;       /* upstream: 10 */
} cmq_retention;

/* Does the index get the tags of messages, as RocketMQ's does since 5.4? */
typedef enum cmq_index_tags {
    CMQ_INDEX_TAGS_AS_FOUND = 0,    /* where the newest entries of the store's index have them */
    CMQ_INDEX_TAGS_ON,
    CMQ_INDEX_TAGS_OFF
} cmq_index_tags;

/* Zero means upstream's default or the sizes found in the directory. Strings are borrowed for the call. */
typedef struct cmq_store_options {
    const char *path;
    cmq_fs *fs;                              /* NULL: the system's */
    cmq_clock clock;                         /* .now_ms NULL: the system's */
    bool read_only;
    bool create;                             /* make the directory and an empty store when there is none */
    bool background;                         /* run the store's own threads; without, call cmq_store_maintain */
    cmq_flush_mode flush;

    int64_t segment_bytes;                   /* mappedFileSizeCommitLog */
    int64_t queue_file_bytes;                /* mappedFileSizeConsumeQueue */
    int64_t batch_file_bytes;                /* mapperFileSizeBatchConsumeQueue */
    int64_t ext_file_bytes;                  /* mappedFileSizeConsumeQueueExt */
    int32_t index_slots;                     /* maxHashSlotNum */
    int32_t index_entries;                   /* maxIndexNum */
    const char *const *commitlog_paths;      /* storePathCommitLog; NULL: <path>/commitlog */
    uint32_t commitlog_path_count;

    uint32_t body_bytes_max;                 /* maxMessageSize; 0: 4 MiB */
    const char *delay_levels;                /* messageDelayLevel; NULL: upstream's 18 */
    const char *const *batch_topics;         /* topics with queue.type=BatchCQ */
    uint32_t batch_topic_count;
    bool index_disabled;                     /* messageIndexEnable=false */
    cmq_index_tags index_tags;
    bool ext_enabled;                        /* enableConsumeQueueExt */
    bool lmq_enabled;                        /* enableLmq and enableMultiDispatch */
    uint32_t light_queues_max;               /* maxLmqConsumeQueueNum: appends make no further one; 0: 20,000 */
    bool property_crc;                       /* enabledAppendPropCRC */
    bool check_property_crc;                 /* forceVerifyPropCRC */
    int64_t durable_point_bytes;             /* a durable point at least after so many bytes; 0: 256 MiB */
    int64_t durable_point_ms;                /* … and after so long; 0: 10 s */
    cmq_retention retention;
} cmq_store_options;

/* ---- life ---- */

cmq_status CMQ_MUST_CHECK cmq_store_open(cmq_store **store_out, const cmq_store_options *options);

/* Flush all, leave a clean store behind, free. The handle is gone whatever is returned; a failure names the part
 * that was not flushed (the store then recovers at its next opening). */
cmq_status cmq_store_close(cmq_store *store);

/* Free memory and descriptors without touching a file, as a forked child does. */
void cmq_store_abandon(cmq_store *store);

/* The findings of the opening; filled once. */
typedef struct cmq_store_opening {
    bool created;
    bool was_unclean;               /* `abort` was there */
    bool trusted_point;             /* recovery began at our own durable point */
    int64_t scanned_from;           /* recovery read the log from here … */
    int64_t scanned_to;             /* … to here */
    int64_t records;                /* whole records in between */
    int64_t cut_bytes;              /* torn bytes behind the last whole record that were cut off */
    int64_t removed_records;        /* whole records among them, which were kept … */
    char removed[CMQ_PATH_BYTES];   /* … in this folder under cometmq/removed; empty: there was nothing to keep */
    int64_t gaps;                   /* filler units put where a queue missed ordinals */
    int64_t index_missing_from;     /* keys from here on were lost with an index file (upstream does the same), at this
                                     * opening or an earlier one … */
    int64_t index_missing_end;      /* … to here; 0: none */
    cmq_overwrites overwrites;      /* of the log or the store's folder, for a writer … */
    char overwritten[CMQ_PATH_BYTES];   /* … and the path that is not overwritten in place; empty: none */
    int64_t elapsed_us;
} cmq_store_opening;
void cmq_store_opening_of(const cmq_store *store, cmq_store_opening *opening_out);

/* ---- append ---- */

/* A value per message, given in one of the ways in which callers have it. Borrowed for the call. */
typedef enum cmq_column_kind {
    CMQ_COLUMN_NONE = 0,     /* empty for every message */
    CMQ_COLUMN_ONE,          /* `one` for every message */
    CMQ_COLUMN_SLICES,       /* slices[i] */
    CMQ_COLUMN_FIXED,        /* data + i * stride, `width` bytes */
    CMQ_COLUMN_OFFSETS32,    /* data[offsets32[i], offsets32[i + 1]): Arrow binary */
    CMQ_COLUMN_OFFSETS64     /* the same with 64-bit offsets: Arrow large binary */
} cmq_column_kind;

typedef struct cmq_column {
    cmq_column_kind kind;
    cmq_slice one;
    const cmq_slice *slices;
    const uint8_t *data;
    const int32_t *offsets32;
    const int64_t *offsets64;
    int64_t stride;
    uint32_t width;
} cmq_column;

#define CMQ_ONE_SEGMENT_MAX 65536u

/* Messages of one topic to append in order. */
typedef struct cmq_append {
    cmq_record_fields common;         /* topic, flag, sys_flag, hosts, reconsume times, prepared offset, version;
                                       * queue_id unless queue_ids is given; born_timestamp_ms 0: the store time; its
                                       * slices but the topic are not used */
    uint32_t count;
    cmq_column bodies;
    cmq_column tags;                  /* TAGS */
    cmq_column keys;                  /* KEYS: pieces divided by single spaces, each indexed */
    cmq_column properties;            /* further pairs, encoded (cmq_property_append) */
    cmq_column properties_more;       /* a batch's own pairs behind an element's */
    const int32_t *queue_ids;         /* per message, or NULL */
    const int32_t *flags;             /* per message, or NULL: common's */
    const int64_t *born_timestamps;   /* per message, or NULL */
    bool one_segment;                 /* a client's batch: all in one segment, or nothing (at most CMQ_ONE_SEGMENT_MAX
                                       * messages) */
    bool no_wait;                     /* sync flush: do not wait for the disk (upstream's WAIT=false) */
    bool never_wait;                  /* … and where so much waits for the disk already that this call would have to:
                                       * CMQ_AGAIN; messages appended before it stand. For threads that serve others,
                                       * too */
    int64_t *queue_offsets_out;       /* count entries, or NULL */
    int64_t *physical_offsets_out;    /* count entries, or NULL */
} cmq_append;

typedef struct cmq_appended {
    uint32_t count;                   /* messages appended: less than asked only together with a failure */
    int64_t first_queue_offset;
    int64_t first_physical_offset;
    int64_t end;                      /* physical end of the last; cmq_store_wait takes it */
    int64_t store_timestamp_ms;
} cmq_appended;

/* Append. Durable on return under sync flush unless no_wait. A failure part way leaves the first `count` messages
 * appended (durably only if cmq_store_wait(end) says so). Failures of your input (topic, sizes, separators in tags or
 * keys) are found before the message they are about. */
cmq_status CMQ_MUST_CHECK cmq_store_append(cmq_store *store, const cmq_append *append, cmq_appended *appended_out);

#define CMQ_TOGETHER_MAX 8192u
#define CMQ_TOGETHER_BYTES_MAX (UINT32_C(64) << 20)

/* A transaction: append the messages of all parts, each of a topic of its own, at once or not at all. No reader sees
 * one without the others, and a process that dies or a power loss, at any point, leaves all of them or none. They lie
 * behind one another in one segment, as plain records: docs/decisions/0036. On disk on return under sync flush; under
 * async flush it waits for the disk once, with the writer lock, for their being whole, and not for their being there.
 * `one_segment`, `no_wait` and `never_wait` of parts do not count. *appended_out: one for each part. At most
 * CMQ_TOGETHER_MAX messages and CMQ_TOGETHER_BYTES_MAX bytes of records (CMQ_ERR_LIMIT, CMQ_ERR_TOO_LARGE). */
cmq_status CMQ_MUST_CHECK cmq_store_append_together(cmq_store *store, const cmq_append *parts, uint32_t count,
                                                    cmq_appended *appended_out);

/* Would cmq_store_append take every message, as far as it depends on the messages? CMQ_OK, or the failure that the
 * first message at fault would have. Nothing is appended, and no queue is made. Any thread; takes no lock. Does not
 * check the store itself (space, a sound disk). */
cmq_status CMQ_MUST_CHECK cmq_store_check_append(cmq_store *store, const cmq_append *append);

/* Under sync flush: how many bytes may wait for the disk before an append waits for it, too. At first 8 MiB. */
void cmq_store_set_staging(cmq_store *store, int64_t bytes_max);

/* Wait until everything below `end` is confirmed (sync: on disk). */
cmq_status CMQ_MUST_CHECK cmq_store_wait(cmq_store *store, int64_t end);

/* Make all that was appended durable, under either mode. */
cmq_status CMQ_MUST_CHECK cmq_store_flush(cmq_store *store);

/* ---- contents ---- */

typedef struct cmq_store_info {
    bool read_only;
    bool fenced;
    bool disk_full;
    bool writer_alive;              /* read-only: somebody holds the lock */
    bool writer_is_ours;            /* … and publishes its ends for us */
    int64_t log_min, log_end;       /* readable: [min, end) */
    int64_t flushed;
    int64_t segment_bytes;
    int64_t queue_file_bytes, batch_file_bytes, ext_file_bytes;
    int32_t index_slots, index_entries;
    int64_t store_timestamp_ms;     /* of the last readable record, 0 when unknown */
    uint32_t queue_count;           /* that ever had a message, and were not deleted */
    cmq_flush_mode flush;
} cmq_store_info;

/* The deletions of retention since the last report, for a program to log. */
#define CMQ_DELETIONS_MAX 64u

typedef struct cmq_deletion {
    int64_t log_offset;             /* of the segment's first byte */
    int64_t age_ms;                 /* since its last write */
    bool is_due;                    /* older than reserved_ms; else deleted for the disk alone */
} cmq_deletion;

typedef struct cmq_retention_report {
    double used_ratio;              /* of the fullest disk, at the last round */
    uint32_t level;                 /* of cmq_retention, exceeded: 0 none, 1 max_used, 2 force, 3 warning_ratio */
    bool is_full;                   /* the last append or round of upkeep found no space on the disk */
    uint32_t deletion_count;
    uint32_t unlisted;              /* deletions for which there was no room here */
    cmq_deletion deletions[CMQ_DELETIONS_MAX];
} cmq_retention_report;

/* Take the report; the deletions in it are in no later one. Any thread. */
void cmq_store_take_retention_report(cmq_store *store, cmq_retention_report *report_out);

/* Did a write or sync fail, so that nothing more is acknowledged? A load; info_of counts queues. */
bool cmq_store_is_fenced(const cmq_store *store);

/* Why the last round of upkeep failed, or why the store is fenced; false when neither is so. Upkeep goes on trying. */
bool cmq_store_upkeep_error(cmq_store *store, char into[CMQ_ERROR_TEXT_BYTES]);

cmq_status CMQ_MUST_CHECK cmq_store_info_of(cmq_store *store, cmq_store_info *info_out);

/* The queue sets and the log, for reading (cmq_queue.h names the functions marked "reader"). */
const cmq_queues *cmq_store_queues(const cmq_store *store);
int64_t cmq_store_confirmed(const cmq_store *store);

/* The store's folder and its file system: for callers that keep files of their own beside it. Live as
 * long as it. */
const char *cmq_store_root(const cmq_store *store);
cmq_fs *cmq_store_fs(const cmq_store *store);

/* messageDelayLevel, as it was given or by default; lives as long as the store. */
const cmq_delay_levels *cmq_store_delay_levels(const cmq_store *store);

/* Read-only: bring the view up to date; cheap when nothing happened. Readers do it themselves when they come to the
 * end. */
cmq_status CMQ_MUST_CHECK cmq_store_refresh(cmq_store *store);

/* Wait until more than `seen_end` is confirmed: CMQ_OK, or CMQ_AGAIN after timeout_ms. No CPU meanwhile; wakes up
 * within microseconds. Over a Java broker's store it polls. */
cmq_status CMQ_MUST_CHECK cmq_store_wait_more(cmq_store *store, int64_t seen_end, int64_t timeout_ms);

/* ---- reading ---- */

/* A record found by a reader. Bytes stay valid while the batch's pins live. */
typedef struct cmq_found {
    const uint8_t *record;
    cmq_queue *queue;               /* NULL where the record is in no queue (walk over everything) */
    int64_t physical_offset;
    int64_t queue_offset;           /* of the message; with an inner batch, of its first */
    uint32_t record_bytes;
    int32_t count;                  /* messages in the record */
    int32_t skip;                   /* of these, so many at the front were not asked for: a range begins inside an inner
                                     * batch … */
    int32_t behind;                 /* … and so many at the back */
} cmq_found;

#define CMQ_FOUND_PINS_MAX 64

typedef struct cmq_found_batch {
    cmq_found *items;               /* the caller's array */
    uint32_t capacity;              /* of items */
    uint32_t count;
    uint32_t pin_count;
    cmq_segment *pins[CMQ_FOUND_PINS_MAX];
} cmq_found_batch;

/* Give the segments back; the items are dead then. */
void cmq_found_batch_release(cmq_found_batch *batch);

typedef enum cmq_boundary {
    CMQ_BOUNDARY_LOWER = 0,         /* the first message stored at or after the time */
    CMQ_BOUNDARY_UPPER = 1          /* the last message stored at or before the time */
} cmq_boundary;

/* Where to begin in one queue, and where to end. */
typedef struct cmq_read_start {
    cmq_slice topic;
    int32_t queue_id;
    bool has_end;
    int64_t offset;
    int64_t end;                    /* with has_end: only what lies below */
} cmq_read_start;

/* The messages to read. Zeroed: everything from the oldest message on. */
typedef struct cmq_read_options {
    const cmq_slice *topics;        /* none: the whole log in physical order */
    uint32_t topic_count;
    const cmq_read_start *starts;   /* where to begin in single queues of the topics (a consumer's progress); the others
                                     * as said below. Not backwards */
    uint32_t start_count;
    bool only_starts;               /* read the starts and nothing else: without topics, queue_ids, start and end. A
                                     * queue may be in several. Opening costs by the list, however many queues the store
                                     * has */
    bool may_be_missing;            /* topics without a queue are no error: their queues may appear later */
    const int32_t *queue_ids;       /* none: every queue of the topics, also those that appear later */
    uint32_t queue_id_count;
    const cmq_slice *tags;          /* none: every tag; exact strings */
    uint32_t tag_count;
    const cmq_selector *where;      /* NULL: none; an expression over the properties, which outlives the reader */
    bool backwards;
    bool has_start, has_end;        /* queue offsets, [start, end); only with one topic */
    int64_t start, end;
    bool has_start_time, has_end_time;   /* store timestamps in ms, [start, end) */
    int64_t start_time_ms, end_time_ms;
    bool has_start_physical;        /* whole log: a record's physical offset to begin at */
    int64_t start_physical;
    bool only_queued;               /* whole log: only what its queue has too; nothing of deleted topics, and no half or
                                     * rolled back transactions */
    bool check_crc;                 /* compare each record's body with its CRC, the record with its property CRC where
                                     * it has one, and its topic with its queue's; without, a record's head is compared
                                     * with its unit */
    bool fetch_tails;               /* a hint: of each record not only the head will be read, but topic or properties
                                     * too */
} cmq_read_options;

typedef struct cmq_reader cmq_reader;

/* Open a reader: one thread at a time may use it. Messages of several queues come merged in the order in which they
 * were stored. CMQ_ERR_NOT_FOUND when none of the named topics has a queue, unless that is allowed (read-only and
 * writable alike). */
cmq_status CMQ_MUST_CHECK cmq_reader_open(cmq_store *store, const cmq_read_options *options, cmq_reader **reader_out);
void cmq_reader_close(cmq_reader *reader);

/* Fill the batch (release it before). CMQ_OK with count 0: nothing more for now (cmq_store_wait_more, then go on) or,
 * when *end_out, for good. CMQ_AGAIN: nothing matched in a tenth of a second of `where`; call again. CMQ_ERR_CORRUPT
 * names the offset of a record that is damaged; the next call continues behind it. A view whose log is damaged at its
 * end fails so once, unless all that was asked for lies before. */
cmq_status CMQ_MUST_CHECK cmq_reader_next(cmq_reader *reader, cmq_found_batch *batch, bool *end_out);

/* Where the reader stands in one queue: the next offset it would look at. CMQ_ERR_NOT_FOUND when it does not read that
 * queue. */
cmq_status CMQ_MUST_CHECK cmq_reader_position(const cmq_reader *reader, cmq_slice topic, int32_t queue_id,
                                              int64_t *offset_out);

/* How many messages of the reader's range had expired: offsets of given starts that are below their queues' first, and
 * messages deleted while the reader was on its way. A reader that begins at the oldest message misses none by that. */
int64_t cmq_reader_expired(const cmq_reader *reader);

/* ---- single look-ups; each result in a batch of capacity >= 1 ---- */

cmq_status CMQ_MUST_CHECK cmq_store_read_physical(cmq_store *store, int64_t physical_offset, cmq_found_batch *batch);
cmq_status CMQ_MUST_CHECK cmq_store_read_offset(cmq_store *store, cmq_slice topic, int32_t queue_id, int64_t offset,
                                                cmq_found_batch *batch);

/* Records whose KEYS hold `key` or whose UNIQ_KEY equals it, newest first, collisions removed, up to the batch's
 * capacity or as many as have room in its pins. For all of them: a search. CMQ_ERR_CORRUPT from a view whose log is
 * damaged at its end: the batch has those before. */
cmq_status CMQ_MUST_CHECK cmq_store_find_key(cmq_store *store, cmq_slice topic, cmq_slice key, int64_t begin_ms,
                                             int64_t end_ms, cmq_found_batch *batch);

/* ---- all records of a key, in steps ---- */

typedef struct cmq_key_search_options {
    cmq_slice topic, key;           /* copied */
    int64_t begin_ms, end_ms;       /* store times, both inclusive */
    uint64_t limit;                 /* at most so many records; 0: all */
    uint64_t misses_max;            /* records of other keys with the same hash that may be read; 0: all. Anybody can
                                     * make such keys ("Aa", "BB") */
    bool only_queued;               /* nothing that its queue does not have any more: of a deleted topic, or of before
                                     * it was made again */
} cmq_key_search_options;

/* It finds the messages of the time of its opening, less those that expire meanwhile; messages appended later do not
 * come. It holds nothing but some memory, the same for one record as for millions, so it may stay open for long; close
 * it before the store or after. One thread at a time. */
typedef struct cmq_key_search cmq_key_search;
cmq_status CMQ_MUST_CHECK cmq_key_search_open(cmq_store *store, const cmq_key_search_options *options,
                                              cmq_key_search **search_out);
void cmq_key_search_close(cmq_key_search *search);   /* NULL is fine */

/* Fill the batch (release it before), newest first, going on where the last call stopped. Count 0: there are no more.
 * CMQ_ERR_CORRUPT, once, behind the last record of a view whose log is damaged at its end.
 * CMQ_ERR_LIMIT, with an empty batch: misses_max records were read in vain. */
cmq_status CMQ_MUST_CHECK cmq_key_search_next(cmq_key_search *search, cmq_found_batch *batch);

/* In a view: CMQ_ERR_CORRUPT, with the place, where the log is damaged at the view's end, so that messages that were
 * acknowledged or flushed are missing from it. Readers and look-ups that come to the end fail so by themselves; for
 * callers that plan by the ends of queues. CMQ_OK for a writer's store. Any thread. */
cmq_status CMQ_MUST_CHECK cmq_store_check_end(cmq_store *store);

/* The queue offset for a store time (spec store 8.3), clamped to [min, max]. */
cmq_status CMQ_MUST_CHECK cmq_store_offset_at(cmq_store *store, cmq_slice topic, int32_t queue_id, int64_t time_ms,
                                              cmq_boundary boundary, int64_t *offset_out);

/* Store time of the oldest record; CMQ_ERR_NOT_FOUND when the store is empty. */
cmq_status CMQ_MUST_CHECK cmq_store_earliest_ms(cmq_store *store, int64_t *time_ms_out);

/* ---- upkeep ---- */

/* Forget a topic's queues, durably. Its records stay in the log until they expire: where files of queues are lost
 * later, so that an opening has to read all of the log, they come back. */
cmq_status CMQ_MUST_CHECK cmq_store_delete_topic(cmq_store *store, cmq_slice topic);

/* Delete queues all of whose messages have expired; system topics stay. */
cmq_status CMQ_MUST_CHECK cmq_store_delete_expired_queues(cmq_store *store, uint32_t *deleted_out);

/* Declare that a topic keeps batch queues, before its first message. */
cmq_status CMQ_MUST_CHECK cmq_store_set_batch_topic(cmq_store *store, cmq_slice topic);

/* One turn of the background thread: flushes that are due, a durable point if due (or `force_durable_point`),
 * retention. For stores opened without `background`, and for tests. */
cmq_status CMQ_MUST_CHECK cmq_store_maintain(cmq_store *store, bool force_durable_point);

/* One round of retention now, whatever the hour when `manual`. In a store that was opened without retention every
 * segment is due: the caller asks for exactly that (the Python surface refuses). */
cmq_status CMQ_MUST_CHECK cmq_store_expire(cmq_store *store, bool manual, uint32_t *deleted_out);

/* Change the limits of a store that was opened with retention; a round by the new ones follows at the next upkeep,
 * which the background thread begins now. Any thread. */
cmq_status CMQ_MUST_CHECK cmq_store_set_retention(cmq_store *store, const cmq_retention *retention);

#endif
