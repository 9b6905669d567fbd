/* cmq_store_internal: the struct behind cmq_store, for the files that together are the store:
 *
 *   cmq_store.c      open, close, settings, contents
 *   cmq_append.c     messages in, under the writer lock
 *   cmq_append_run.c many that are alike, as one claim
 *   cmq_commit.c     group commit, confirming, fencing
 *   cmq_dispatch.c   a stored record to its queue units and keys (recovery and followers)
 *   cmq_recover.c    what a writer does when it opens
 *   cmq_follower.c   what a read-only store does when it opens, and when the log grows
 *   cmq_stale_record.c      records that are older than one before them
 *   cmq_maintain.c   flushes, durable points, the background thread
 *   cmq_retention.c  old segments, dead queues
 *   cmq_watch.c      waiters for units of a queue
 *   cmq_reader.c     iteration
 *   cmq_lookup.c     by offset and time
 *   cmq_key_search.c  by key
 *   cmq_log_tail_scan.c      bytes and records where there should be none
 *   cmq_verify*.c    everything held against everything
 *   cmq_repair*.c    what a store is made whole with
 *
 * Lock order: maintain_mutex, commit_mutex, writer_mutex, index_mutex; a watcher's own two inside the writer lock.
 * refresh_mutex is a follower's and taken alone. commit_mutex is not held while bytes are written; `leader` stands for
 * it.
 */
#ifndef CMQ_STORE_INTERNAL_H
#define CMQ_STORE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "base/cmq_lock.h"
#include "base/cmq_map_guard.h"
#include "store/cmq_store.h"
#include "store/follow/cmq_follow.h"
#include "store/index/cmq_index.h"
#include "store/log/cmq_log.h"
#include "store/marks/cmq_checkpoint.h"
#include "store/marks/cmq_durable_point.h"
#include "store/marks/cmq_layout.h"
#include "store/queue/cmq_watches.h"
#include "store/record/cmq_property.h"
#include "store/record/cmq_tags_code.h"

#define CMQ_BODY_BYTES_DEFAULT (4u << 20)
#define CMQ_RECORD_SLACK_BYTES 65536u /* a record may be so much larger than the largest body (spec store 2.5) */
#define CMQ_APPEND_CHUNK_MAX 4096u               /* messages per hold of the writer lock */
#define CMQ_BATCH_TOPICS_MAX 1024

/* Keys of records that are not confirmed yet. */
typedef struct cmq_pending_keys {
    cmq_index_key *keys;
    uint32_t count, capacity;
} cmq_pending_keys;

/* How a read-only store learns how far it may read. */
typedef enum cmq_follow_source {
    CMQ_FOLLOW_SOURCE_STATIC,    /* nobody writes: the end was found by walking */
    CMQ_FOLLOW_SOURCE_PAGE,      /* a writer of ours publishes it */
    CMQ_FOLLOW_SOURCE_FOREIGN,   /* a Java broker writes: queue units show the confirmed end */
    CMQ_FOLLOW_SOURCE_OPENING    /* a writer of ours is opening: nothing is confirmed until its page says so */
} cmq_follow_source;

typedef struct cmq_tail_watch cmq_tail_watch;

struct cmq_store {
    cmq_fs *fs;
    cmq_clock clock;
    char root[CMQ_PATH_BYTES];
    pid_t pid;                          /* the process that opened it */
    /* An opening's knowledge of the log that it finds; cmq_store_learn_bounds. */
    int64_t acknowledged_end;           /* of the follow page: every byte below was acknowledged, or is in the page
                                         * cache of this boot; 0: not known */
    /* the last writer met a failed write or sync: readable bytes may be in memory alone */
    bool opening_fenced;
    int64_t known_end;                  /* no record that begins below is torn: it was acknowledged, or is below the
                                         * durable point */
    /* recovery's findings are in memory for certain, but not on disk: the first durable point syncs them.
     * maintain_mutex */
    bool findings_wait;
    _Atomic int64_t found_from;         /* … of the log from here to opened_end; -1: that is on disk. Changed with
                                         * maintain_mutex */
    int64_t marked_from;                /* records from here on carry a property CRC wherever they could be mistaken for
                                         * torn; INT64_MAX: not known */

    cmq_store_options options;          /* pointers in it are not kept, but for the strings below */
    cmq_layout_sizes sizes;
    cmq_delay_levels delays;
    cmq_store_opening opening;
    uint32_t record_bytes_max;

    cmq_lock *lock;
    cmq_log *log;
    cmq_queues *queues;
    cmq_index *index;                   /* NULL: messageIndexEnable is off */
    bool tags_indexed;                  /* the index gets the tags of messages. Known from the recovery on */
    cmq_follow *follow;                 /* NULL: a follower without a page */
    cmq_watches *watches;               /* NULL: read-only */
    cmq_durable_point_file *points;
    cmq_checkpoint checkpoint;          /* maintain_mutex */

    /* The writer lock: its holder is the log's one writer. */
    pthread_mutex_t writer_mutex;
    int64_t store_ms;                   /* of the last record; never goes back. Under the writer lock */
    int64_t last_phy;                   /* start of the last record, -1: none. Under the writer lock */
    cmq_pending_keys pending[2];        /* filled under the writer lock; the other one belongs to the commit leader */
    uint32_t light_queues, light_seen;  /* light queues among the first `light_seen` of the queues. Under the writer
                                         * lock */
    uint32_t filling_keys;              /* index of the one being filled. Under the writer lock */
    uint32_t keys_granted;              /* keys the index has room for beyond all pending. Under the writer lock */
    char *batch_topics[CMQ_BATCH_TOPICS_MAX];   /* writer_mutex */
    uint32_t batch_topic_count;

    /* Group commit. */
    pthread_mutex_t commit_mutex;
    /* waiters for the group that is being written, and for the one behind it; by the group's number */
    pthread_cond_t group_done[2];
    pthread_cond_t leader_gone;
    bool leader;                        /* somebody is writing a group out. commit_mutex */
    _Atomic int64_t taken;              /* the group taken last: its end * 2, and its number's last bit. Stored under
                                         * the writer lock */
    pthread_mutex_t index_mutex;        /* one caller of the index's writer functions at a time */

    _Atomic bool fenced;
    _Atomic bool disk_full;             /* the last append found no space … */
    _Atomic bool upkeep_full;           /* … or the last round of upkeep */
    _Atomic bool disk_above_warning;    /* retention's warning_ratio is passed: appends are refused */
    _Atomic int64_t confirmed_ms;       /* store time of the last confirmed record */
    _Atomic int64_t confirmed_last_phy; /* its start, -1: none */
    char fence_reason[CMQ_ERROR_TEXT_BYTES];   /* written once, before fenced */

    /* Upkeep. */
    pthread_mutex_t maintain_mutex;     /* one flush at a time */
    _Atomic bool upkeep_failing;        /* the last round failed */
    char upkeep_error[CMQ_ERROR_TEXT_BYTES];   /* … for this reason. wake_mutex */
    cmq_retention_report retention_report;     /* wake_mutex */
    pthread_mutex_t wake_mutex;
    pthread_cond_t wake;
    pthread_t thread;
    pthread_t warm_thread;
    bool thread_started, warm_started;
    bool stopping;                      /* wake_mutex */
    _Atomic bool dirty;                 /* something was appended since the last durable point */
    int64_t durable_end;                /* log end of the last durable point. maintain_mutex */
    bool begins_moved;                  /* retention took queues' begins since. maintain_mutex */
    int64_t durable_at_ms;
    int64_t flushed_at_ms;
    int64_t expired_at_ms;              /* 0: a round is due. maintain_mutex */
    int64_t trimmed_at_ms;
    int64_t opened_end;                 /* log end when the store was opened; prewarming waits for growth */

    /* A follower's. */
    pthread_mutex_t refresh_mutex;
    _Atomic int source;                 /* cmq_follow_source */
    bool page_proven;                   /* the page is surely that of the process which has the lock; refresh_mutex */
    int64_t unit_end;                   /* foreign: a record that ends at or before it had its unit made */
    int64_t walked;                     /* the log was dispatched up to here */
    int64_t walked_ms;                  /* store time of the last record walked */
    int64_t newest_ms;                  /* the latest store time walked: older records behind it may be stale … */
    int64_t seen_ms;                    /* the latest store time that this view has walked, under any writer */
    int64_t walked_phy;                 /* of the last record walked, -1: not known */
    int64_t stood_phy;                  /* where that was when the view last grew, … */
    int32_t stood_bytes;                /* … with its size, 0: not known, … */
    uint32_t stood_crc;                 /* … and the CRC of its head */
    int64_t no_record_at;               /* the walk stopped here last, at bytes that are no record; -1: at none */
    bool foreign_seen;                  /* a Java broker wrote since: a page of ours says nothing of this log */
    bool end_judged;                    /* cmq_store_check_end has judged the bytes at end_judged_at … */
    int64_t end_judged_at, end_judged_generation;
    bool end_damaged;                   /* … as damage, for the reason in end_error */
    cmq_error end_error;
    int64_t proven_end;                 /* … unless it begins below */
    int64_t nothing_at;                 /* no whole record began here at the last look, -1: not looked */
    int64_t chain_at, chain_end;        /* whole, older records lead from here to there; -1: not looked */
    cmq_tail_watch *watch;              /* NULL: none yet */
    bool watch_taken;
    int64_t generation;                 /* of the page */
    _Atomic bool view_ended;            /* it cannot go on and must be opened again, for the reason in view_end_error,
                                         * which was written before */
    cmq_error view_end_error;
    bool left_unclean;                  /* a writer was killed before the view was opened, and none had recovered the
                                         * log then */
    bool view_began, has_view_point;
    bool view_disturbed;                /* writers came or went while it was opened: it must be reopened */
    cmq_durable_point view_point;               /* with has_view_point: the durable point when opening began */
    int64_t view_generation;            /* of the page then */
    int64_t deletions;                  /* of the page: so many are known here */
};

/* ---- cmq_dispatch.c ---- */

/* The facts about a record, beyond its fields, that dispatch needs. */
typedef struct cmq_dispatch_facts {
    cmq_property_known known;
    int64_t tags_code;
    int64_t base_offset;      /* first queue offset: INNER_BASE, or the record's */
    int32_t count;            /* messages in it */
    bool in_queue;            /* transaction type none or commit */
    bool in_index;            /* any type but rollback */
} cmq_dispatch_facts;

/* A record's unit, for its queue. */
typedef struct cmq_dispatch_unit {
    int64_t phy;
    int64_t queue_offset;     /* in a queue of single messages */
    int64_t base_offset;      /* in one of batches */
    int64_t tags_code;
    int64_t store_ms;
    int32_t bytes;
    int32_t count;
} cmq_dispatch_unit;

static inline cmq_dispatch_unit cmq_dispatch_unit_of(const cmq_record_view *view, const cmq_dispatch_facts *facts)
{
    return (cmq_dispatch_unit){.phy = view->physical_offset,
                               .queue_offset = view->queue_offset,
                               .base_offset = facts->base_offset,
                               .tags_code = facts->tags_code,
                               .store_ms = view->store_timestamp_ms,
                               .bytes = (int32_t)view->record_bytes,
                               .count = facts->count};
}

void cmq_dispatch_learn(const cmq_store *store, const cmq_record_view *view, cmq_dispatch_facts *facts_out);

/* The kind of queue that a record of this topic goes to. Under the writer lock (or opening, or refresh). */
cmq_queue_kind cmq_dispatch_kind(const cmq_store *store, cmq_slice topic, int32_t queue_id, int32_t sys_flag);

/* Put the record's units where they belong, if they are not there yet. Under the writer lock (or opening, or
 * refresh). */
cmq_status CMQ_MUST_CHECK cmq_dispatch_units(cmq_store *store, const cmq_record_view *view,
                                             const cmq_dispatch_facts *facts);
/* Its parts, for a record that is in a queue: that queue's unit, and those of light queues. */
cmq_status CMQ_MUST_CHECK cmq_dispatch_unit_to(cmq_queue *queue, const cmq_dispatch_unit *unit);
cmq_status CMQ_MUST_CHECK cmq_dispatch_light_units(cmq_store *store, const cmq_record_view *view,
                                                   const cmq_dispatch_facts *facts);
/* Does the record name light queues? */
static inline bool cmq_dispatch_names_light(const cmq_store *store, const cmq_dispatch_facts *facts)
{
    const cmq_slice *known = facts->known.value;
    return store->options.lmq_enabled && known[CMQ_PROPERTY_INNER_MULTI_DISPATCH].bytes > 0 &&
           known[CMQ_PROPERTY_INNER_MULTI_QUEUE_OFFSET].bytes > 0;
}

/* Its statuses for an impossible topic, queue id or offset. The CRC covers the body alone: that was no whole record. */
static inline bool cmq_dispatch_is_no_record(cmq_status status)
{
    return status == CMQ_ERR_TOPIC || status == CMQ_ERR_ARGUMENT;
}

/* Index entries that a record may have beside those of its KEYS, of which there is at most one for two bytes and one
 * more: its unique id and its tags. */
#define CMQ_KEYS_BESIDE 3u

/* Append the record's index keys to `keys`: the unique id, the keys, and last its tags. */
cmq_status CMQ_MUST_CHECK cmq_dispatch_keys(const cmq_record_view *view, const cmq_dispatch_facts *facts,
                                            uint32_t topic_seed, bool with_tags, cmq_pending_keys *keys);

/* Has the record tags that the index may have? They are the last that cmq_dispatch_keys appends. */
static inline bool cmq_dispatch_has_indexed_tags(const cmq_dispatch_facts *facts)
{
    return facts->in_index && facts->known.value[CMQ_PROPERTY_TAGS].bytes > 0;
}

/* A decimal number that fills the slice, as multi-dispatch writes offsets; false otherwise. */
bool cmq_dispatch_number(cmq_slice text, int64_t *number_out);

/* The pieces of a KEYS value: takes the next non-empty one off *rest; false at the end. */
bool cmq_dispatch_next_key(cmq_slice *rest, cmq_slice *key_out);

/* Is this a name that multi-dispatch may serve from this topic? */
bool cmq_dispatch_may_multi(cmq_slice topic);
/* Does our writer give messages of this topic to light queues? A message whose transaction is open is not to be
 * consumed: its commit is given to them. Upstream gives both; where its records say so, they stay. */
bool cmq_dispatch_gives_multi(cmq_slice topic);

/* The next name of a comma list and, when `offsets` is not NULL, the number beside it; false at the end. */
bool cmq_dispatch_next_name(cmq_slice *names, cmq_slice *name_out);

cmq_status CMQ_MUST_CHECK cmq_pending_keys_reserve(cmq_pending_keys *keys, uint32_t more);
static inline bool cmq_is_lmq(cmq_slice name) { return cmq_slice_starts_with(name, "%LMQ%"); }

/* ---- cmq_index_tags.c ---- */

/* Set tags_indexed, from the options or the newest entries of `index` (NULL: none), which need not be the store's. */
void cmq_store_choose_tags(cmq_store *store, const cmq_index *index);

/* ---- cmq_commit.c ---- */

/* Readers may see everything up to `end`. The writer (async) or the commit leader (sync). */
void cmq_store_publish(cmq_store *store, int64_t end, int64_t store_ms, int64_t last_phy);

/* There is something for the background thread to do; wakes it if it slept. */
void cmq_store_mark_dirty(cmq_store *store);

/* Give pending keys to the index; empties the list. Room was granted. */
void cmq_store_put_keys(cmq_store *store, cmq_pending_keys *keys);

/* Sync flush: write out groups until `end` is confirmed. */
cmq_status CMQ_MUST_CHECK cmq_store_commit(cmq_store *store, int64_t end);

/* Nothing more will be acknowledged; keeps the thread's last error as the reason. Returns CMQ_ERR_FENCED. */
cmq_status cmq_store_fence(cmq_store *store);
cmq_status cmq_store_fail_fenced(const cmq_store *store);

/* ---- cmq_stale_record.c ---- */

/* Begin to walk; the log is known to have reached this segment. */
void cmq_stale_record_begin(cmq_store *store, int64_t newest_segment);

/* Is the whole record at `phy`, which is older than one before it, the log's own? */
bool cmq_stale_record_is_live(cmq_store *store, int64_t phy, int64_t limit);

/* Foreign: before walking on, learn from changes behind the view's end; after it, remember the files. */
void cmq_stale_record_look(cmq_store *store);
cmq_status CMQ_MUST_CHECK cmq_stale_record_watch(cmq_store *store);

/* ---- the rest ---- */

cmq_status CMQ_MUST_CHECK cmq_store_recover(cmq_store *store, const cmq_layout *layout);

/* Sync a killed process's bytes, names and folders: all of them, or only the log's records in [from, end). */
cmq_status CMQ_MUST_CHECK cmq_store_sync_findings(cmq_store *store);
cmq_status CMQ_MUST_CHECK cmq_store_sync_found_log(cmq_store *store, int64_t from, int64_t end);
cmq_status CMQ_MUST_CHECK cmq_store_follow(cmq_store *store, const cmq_layout *layout);

/* Read-only, before any file is listed: the writer, checkpoint and durable point, and the deletions that the files
 * already show. Files listed afterwards are not older. */
cmq_status CMQ_MUST_CHECK cmq_store_begin_view(cmq_store *store);

/* In a view: which opening of a writer the follow page is of; 0 while one recovers, and where there is no page. */
int64_t cmq_store_page_generation(const cmq_store *store);

/* CMQ_ERR_CLOSED for a view that has found out that it cannot go on. */
cmq_status CMQ_MUST_CHECK cmq_store_check_view(cmq_store *store);

/* The writer, and the end for readers: sets store->source. refresh_mutex held, or opening. */
cmq_status CMQ_MUST_CHECK cmq_store_find_source(cmq_store *store);

/* cmq_store_refresh of a view, with refresh_mutex held. */
cmq_status CMQ_MUST_CHECK cmq_store_refresh_held(cmq_store *store);

/* The writer's side: announce a deletion to followers before its files go (under the writer lock), and say that they
 * are gone. */
void cmq_store_announce(cmq_store *store, const cmq_slice *topic);   /* NULL: of what has expired */
void cmq_store_announced(cmq_store *store);

/* Is this one of RocketMQ's own topics, which stay when they are empty? */
bool cmq_store_is_system_topic(void *context, cmq_slice topic);

/* The durable point of this store's last writer, if that was one of ours. */
bool cmq_store_last_point(cmq_store *store, cmq_durable_point *point_out);

/* CMQ_ERR_CORRUPT when there is no segment at all, but the checkpoint or some durable point knows of messages: this is
 * no empty store. */
cmq_status CMQ_MUST_CHECK cmq_store_refuse_lost_log(cmq_store *store);

/* Is the durable point of this store's last writer still true of its log? Fills *point_out either way. */
bool cmq_store_trusted_point(cmq_store *store, cmq_durable_point *point_out);

/* Which folders of queues there are. */
cmq_status CMQ_MUST_CHECK cmq_store_queue_folders(const cmq_store *store, bool *simple_out, bool *batch_out);

/* Have the queues, cut at this point, other units than it remembers, and the table of ends does not say which? Then all
 * of the log must be read. */
bool cmq_store_queues_lost(const cmq_store *store, const cmq_durable_point *point);

/* cmq_lost_ends_proof.c: are the units by which the missing ones of lost ends are placed those of their records? */
bool cmq_store_lost_ends_are_proven(cmq_store *store);

/* Does the log from the point on make everything again that queues lack, if they have not lost units below it? Where
 * the point lies at the log's begin, there is nothing else to read. */
bool cmq_store_gaps_are_behind(const cmq_store *store, const cmq_durable_point *point);

/* Recover the queues of a log that ends at or before `end`; *start_out: where the log must be read from. point: shows
 * up to where they are whole; NULL: upstream's rules. unclean: their writer was killed, or runs; holes: it is gone, and
 * the power may have gone with it. */
cmq_status CMQ_MUST_CHECK cmq_store_recover_queues(cmq_store *store, int64_t end, const cmq_durable_point *point,
                                                   bool unclean, bool holes, int64_t *dispatched_end_out,
                                                   int64_t *start_out);

/* Then, with what else says that units are missing: units that queues lost at begins and ends are made from the log.
 * whole_below: other queues have their units of records below; 0: they may lack some. *start is lowered to where the
 * log must be read from. *from_out: the lowest record whose unit is missing; INT64_MAX: there is none. */
cmq_status CMQ_MUST_CHECK cmq_store_begin_queues_again(cmq_store *store, int64_t whole_below, int64_t *start,
                                                       int64_t *from_out);

/* Where recovery must begin to read, by upstream's rules. */
cmq_status CMQ_MUST_CHECK cmq_store_scan_start(cmq_store *store, bool unclean, int64_t dispatched_end,
                                               int64_t *start_out);

/* cmq_repair_swap.c: complete a repair that was interrupted while it swapped; fine when there was none. With the lock
 * held. */
cmq_status CMQ_MUST_CHECK cmq_repair_finish(cmq_fs *fs, const char *root, const char *const *commitlog_paths,
                                            uint32_t path_count, bool *finished_out);

cmq_status CMQ_MUST_CHECK cmq_store_start_threads(cmq_store *store);
void cmq_store_stop_threads(cmq_store *store);
void cmq_store_wake_thread(cmq_store *store);

/* A durable point: log, queues, index, checkpoint and our side file, in this order. maintain_mutex held. */
cmq_status CMQ_MUST_CHECK cmq_store_durable_point(cmq_store *store, bool clean);

/* The same right before some queues are deleted: true with and without them, so that a crash in between makes nobody
 * read the whole log, which would bring back deleted queues. `without` NULL: they go in many steps, and until
 * the next point nobody asks which queues there are. */
cmq_status CMQ_MUST_CHECK cmq_store_point_before(cmq_store *store,
                                                 bool (*without)(void *context, const cmq_queue *queue), void *context);

/* Does the disk refuse appends? Where the last one was refused, space is asked for again. */
bool cmq_store_is_full(cmq_store *store);

/* Retention when it is due. maintain_mutex held. */
cmq_status CMQ_MUST_CHECK cmq_store_expire_due(cmq_store *store, int64_t now_ms);

/* Pin the record at `phy` and parse it up to `checks`; unpin *segment_out. CMQ_END for a blank. */
cmq_status CMQ_MUST_CHECK cmq_store_record_at(cmq_store *store, int64_t phy, int64_t limit, unsigned checks,
                                              cmq_segment **segment_out, cmq_record_view *view_out);

/* CMQ_ERR_CORRUPT where the record at `data`, or the bytes that should be its head, lie in pages that were found to be
 * lost. Its segment is pinned. */
cmq_status CMQ_MUST_CHECK cmq_store_fail_lost(const cmq_store *store, const uint8_t *data, size_t available,
                                              int64_t phy);
static inline cmq_status CMQ_MUST_CHECK cmq_store_check_lost(const cmq_store *store, const uint8_t *data,
                                                             size_t available, int64_t phy)
{
    return cmq_map_guard_any() ? cmq_store_fail_lost(store, data, available, phy) : CMQ_OK;
}

/* Put the record at `phy` into the batch; its segment's pin goes along, once for all records of it. CMQ_AGAIN: no
 * room. */
cmq_status CMQ_MUST_CHECK cmq_store_take(cmq_store *store, int64_t phy, cmq_found_batch *batch,
                                         cmq_record_view *view_out);

/* Up to where the log surely reached, and from where its records carry proofs. Once log and checkpoint are loaded. */
void cmq_store_learn_bounds(cmq_store *store);

/* After an unclean end: has this record, sound by its body's CRC, lost a sector of its topic or properties, which that
 * CRC does not cover? */
bool cmq_store_is_torn(cmq_store *store, const cmq_record_view *view);

/* ---- cmq_queue_membership.c ---- */

/* Where the queue's first record lies; INT64_MAX: it has none yet. A queue that cannot be read hides nothing: 0. */
int64_t cmq_store_first_of_queue(cmq_store *store, cmq_queue *queue);
/* The queue that takes such a record; NULL when there is none (its topic was deleted), or none takes it (a half or
 * rolled back transaction). */
cmq_queue *cmq_store_queue_of(cmq_store *store, const cmq_record_view *view);
/* Does the record's queue still have it? */
bool cmq_store_is_queued(cmq_store *store, const cmq_record_view *view);

#define CMQ_DAMAGE_REASON_BYTES 160
/* Why the bytes that were just read are no record: the last error's text, without what every such text begins with. */
void cmq_store_damage_reason(char into[CMQ_DAMAGE_REASON_BYTES]);

/* The first whole record of this log that starts at or behind `from` within the segment of `from`; false when there is
 * none. Slices of *view_out are not valid: nothing is pinned. */
bool cmq_store_find_sound(cmq_store *store, int64_t from, cmq_record_view *view_out);

/* Is the log damaged at `end`, where reading stopped, rather than torn: do whole records follow that were once flushed?
 * The first of them. last_phy, last_ms: the last whole record before, -1: none. Slices of *view_out are not valid. */
bool cmq_store_flushed_behind(cmq_store *store, int64_t end, int64_t last_phy, int64_t last_ms, bool unclean,
                              cmq_record_view *view_out);

/* How many bytes from `end` on, to the last one of its segment that is not zero: 0 behind a log that ends cleanly. */
int64_t cmq_store_bytes_behind(cmq_store *store, int64_t end);

/* crc32 of the first bytes of the record at `phy`: the fingerprint in a durable point. False when there is no such
 * record. */
bool cmq_store_fingerprint(cmq_store *store, int64_t phy, int32_t *bytes_out, uint32_t *crc_out);

#endif
