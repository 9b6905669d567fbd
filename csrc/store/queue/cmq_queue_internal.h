/* cmq_queue_internal: private to the files of the queue module: the structs, locks and the parts' functions. Nobody
 * else includes it but cmq_watch.c, for a queue's marks.
 *
 * Parts
 *   cmq_queues           life, table, options, deletion
 *   cmq_queue            put, make room, read
 *   cmq_queue_load       folders and files of a directory
 *   cmq_queue_recover    recover, cut, truncate
 *   cmq_queue_replay     units that the log says must be there
 *   cmq_queue_scan       scan, search
 *   cmq_queue_flush      flush, durability, retention
 *   cmq_queue_file       bytes of a queue's files by position
 *   cmq_queue_sums       checksums of the simple queues' files
 *   cmq_queue_end_sums   the table cometmq/ends: checksums of the queues' ends, and their begins
 *   cmq_queue_begins     queues whose first files are missing
 *   cmq_queue_lost_ends  queues whose last units are missing
 *   cmq_queue_delete     deletion
 *   cmq_queue_table      (topic, id) -> queue
 *   cmq_queue_extension  extension units
 *   cmq_batch_queue      offsets of batch units
 *   cmq_queue_tail, cmq_tail_pool, cmq_file_cache: of their own
 *
 * Positions: a unit's number in its queue's files, from 0: byte offset / unit size. For a simple queue it is the queue
 * offset; for a batch queue only the order is the same.
 */
#ifndef CMQ_QUEUE_INTERNAL_H
#define CMQ_QUEUE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "store/queue/cmq_file_cache.h"
#include "store/queue/cmq_queue.h"
#include "store/queue/cmq_queue_table.h"
#include "store/queue/cmq_queue_tail.h"
#include "store/queue/cmq_watches.h"

#define CMQ_QUEUE_LOCKS 64u
#define CMQ_TAIL_UNITS_HOT 65536u               /* a ring grows by heat up to here … */
#define CMQ_TAIL_UNITS_ALWAYS 16u               /* … and up to here in any case */
#define CMQ_TAIL_BYTES_SOFT (UINT64_C(32) << 20) /* … while all rings take less than this; beyond, the writer writes */
#define CMQ_QUEUE_WORDS 5u                      /* of a ring's unit: 20 bytes */
#define CMQ_QUEUE_EXT_WORDS 9u                  /* … with the plain tags code and the store time, in host order */
#define CMQ_BATCH_WORDS 12u                     /* 46 bytes and two of padding */
#define CMQ_WORDS_MAX CMQ_BATCH_WORDS
#define CMQ_NOTHING_UNSYNCED INT64_MAX

typedef enum cmq_queuefolder {
    CMQ_FOLDER_SIMPLE = 0,   /* consumequeue */
    CMQ_FOLDER_BATCH = 1,    /* batchconsumequeue */
    CMQ_FOLDER_EXT = 2,      /* consumequeue_ext */
    CMQ_FOLDER_COUNT = 3
} cmq_queuefolder;

/* The files of one queue in one folder. Changed under the queue's lock. */
typedef struct cmq_queuefiles {
    int64_t first;           /* byte offset at which the first file starts; -1: there is no file */
    int64_t end;             /* byte offset behind the last file */
    int64_t unsynced;        /* bytes from here on were written since the last durable flush; CMQ_NOTHING_UNSYNCED */
    bool names_unsynced;     /* a file was made since */
    bool folder_unsynced;    /* … and its folder */
    bool sum_known;          /* of `sum` */
    uint32_t sum;            /* CRC-32 of what the files hold behind the last border of a block (cmq_queue_sums) */
} cmq_queuefiles;

/* The extension of one simple queue. Real offsets, not addresses. */
typedef struct cmq_queue_extension {
    int64_t next;            /* writer: where the next unit goes */
    int64_t written;         /* under the queue's lock: behind the last unit in the files */
    cmq_queuefiles files;
} cmq_queue_extension;

typedef struct cmq_batch_queue {
    int64_t next_offset;           /* writer: queue offset of the next message */
    _Atomic int64_t min_offset;    /* queue offset of the first readable message */
} cmq_batch_queue;

struct cmq_queue {
    /* The first cache line: the fields that a put and a read of the tail touch. */
    cmq_queue_tail tail;                /* 32 bytes: ring, next, flushed, kind, … */
    _Atomic int64_t last_end;          /* where the last unit's record ends; fillers do not count; 0: none yet */
    int64_t room_until;                /* writer: room was made for positions below */
    _Atomic uint8_t *dirty;            /* set when the tail has what no file has */
    void *more;                        /* cmq_batch_queue, cmq_queue_extension, or NULL */

    cmq_queues *set;
    const cmq_queuetopic *topic;
    int32_t id;
    uint32_t index;                    /* in the set */
    _Atomic int64_t min;               /* first readable position */
    cmq_queuefiles files;
};

_Static_assert(sizeof(struct cmq_queue) == 128, "two cache lines: tens of thousands of these exist");
_Static_assert(offsetof(struct cmq_queue, set) == 64, "hot fields on a line of their own");

/* Queues are kept in blocks that never move; block b holds CMQ_BLOCK_FIRST << b queues. */
#define CMQ_BLOCK_FIRST 64u
#define CMQ_BLOCK_COUNT 24u

/* Where a queue begins: its first unit that has not expired. */
typedef struct cmq_queue_begin {
    int64_t position;
    int64_t behind_phy;           /* one more than the physical offset of its record; 0: not known */
} cmq_queue_begin;

/* A queue as the table cometmq/ends has it. */
typedef struct cmq_queue_was {
    cmq_slice topic;
    int32_t id;
    cmq_queue_kind kind;
    int64_t end;                  /* position behind its last unit; 0: not known */
    cmq_queue_begin begin;
} cmq_queue_was;

/* A queue that lost units at its end. */
typedef struct cmq_queue_lost_end {
    cmq_queue *queue;
    int64_t end;                  /* position behind the last unit that it had */
    int64_t from_file;            /* where the first file starts that is made again */
    int64_t log_min;              /* records before have expired */
    int64_t log_end;              /* the point's */
} cmq_queue_lost_end;

typedef struct cmq_queueblock {
    uint8_t *memory;
    cmq_queue *queues;
    cmq_queue_begin *begins;      /* one per queue: with its lock, or while it is opened */
    _Atomic uint8_t *dirty;       /* one per queue: the tail holds units that no file has */
    _Atomic uint8_t *unsynced;    /* one per queue: a file has bytes that may not be durable */
} cmq_queueblock;

/* Files that a load found behind a gap in a queue's names; recovery decides which side stays. */
typedef struct cmq_queuegap {
    struct cmq_queuegap *next;
    cmq_queue *queue;
    uint32_t count;
    int64_t starts[];             /* of all files of the queue, in order */
} cmq_queuegap;

/* A queue whose files hold something behind its end, or a file that belongs to no queue any more: cut or removed when
 * recovery has found the log's end. */
typedef struct cmq_latecut {
    cmq_queue *queue;
    cmq_queuefolder folder;
    int64_t start;                /* of the file; -1: the bytes behind the queue's end */
} cmq_latecut;

typedef struct cmq_reputwindows cmq_reputwindows;
typedef struct cmq_queue_end cmq_queue_end;   /* cmq_queue_end_sums */

struct cmq_queues {
    cmq_fs *fs;
    char *root;
    bool read_only;
    bool ext_enabled;                 /* units get an extension */
    bool ext_seen;                    /* the directory has extensions: addresses may be found */
    int64_t file_bytes[CMQ_FOLDER_COUNT];
    cmq_file_cache *files;
    cmq_file_cache *maps;
    cmq_tail_pool *pool;               /* writer */
    cmq_queue_table table;
    _Atomic(cmq_queueblock *) blocks[CMQ_BLOCK_COUNT];
    _Atomic uint32_t count;
    _Atomic bool flush_wanted;
    cmq_queues_log_min log_min;
    _Atomic int64_t corrected_to;     /* the first byte of the log to which all mins were last corrected; -1: not yet */
    uint32_t trim_hand;               /* writer: where the search for cold rings goes on */
    uint8_t turn;                     /* writer: the bits CMQ_HEAT_TURN of queues whose rings this turn needs */
    int64_t gaps;                     /* writer */
    cmq_queuegap *load_gaps;          /* between load and recover */
    cmq_reputwindows *windows;        /* writer, during recovery */
    bool recovering;                  /* writer: between recover and end_recover */
    bool gapped;                      /* files of a queue are missing from its middle */
    bool incomplete;                  /* likewise: files of a queue are missing, or were when a recovery began that did
                                       * not finish */
    cmq_queue_end *ends;              /* by a queue's index; … */
    uint32_t end_count;               /* … those of the queues that were there when the store was opened */
    _Atomic bool ends_changed;        /* a file of a queue was written, or a begin moved, since the table of ends was */
    uint32_t lost_begins;             /* queues whose first files are missing, by the table; during an opening */
    cmq_queue_lost_end *lost_ends;    /* queues whose last units are missing, likewise */
    uint32_t lost_end_count;
    int64_t whole_below;              /* units of records below are in the files, but of queues that lost some */
    cmq_queues *aside;                /* writer, during recovery: the missing parts of those, in cometmq/deleted */
    cmq_latecut *late;                /* as gapped */
    uint32_t late_count, late_capacity;
    int64_t covered, covered_durable; /* flush */
    bool sync_failed;                 /* flush: an fsync failed; nothing is durable any more */
    bool sync_due[CMQ_FOLDER_COUNT];  /* flush: no descriptor was left to sync files of these folders: all of their file
                                       * system is synced next time */
    _Atomic bool has_trash;           /* cometmq/deleted holds something */
    bool trash_made;                  /* writer, while no flush runs */
    uint32_t trash_next;              /* likewise: the next name in it */
    cmq_watches *watches;             /* NULL in a read-only set, and where nobody may watch */
    pthread_mutex_t locks[CMQ_QUEUE_LOCKS];
};

/* ---- small helpers ---- */

static inline void cmq_queue_lock(cmq_queue *queue)
{
    pthread_mutex_lock(&queue->set->locks[queue->index % CMQ_QUEUE_LOCKS]);
}
static inline void cmq_queue_unlock(cmq_queue *queue)
{
    pthread_mutex_unlock(&queue->set->locks[queue->index % CMQ_QUEUE_LOCKS]);
}

static inline uint32_t cmq_queue_unit_bytes(const cmq_queue *queue)
{
    return queue->tail.kind == CMQ_QUEUE_BATCH ? CMQ_BATCH_UNIT_BYTES : CMQ_UNIT_BYTES;
}

static inline cmq_queuefolder cmq_queue_folder(const cmq_queue *queue)
{
    return queue->tail.kind == CMQ_QUEUE_BATCH ? CMQ_FOLDER_BATCH : CMQ_FOLDER_SIMPLE;
}

static inline int64_t cmq_queue_file_bytes(const cmq_queue *queue)
{
    return queue->set->file_bytes[cmq_queue_folder(queue)];
}

static inline cmq_batch_queue *cmq_queue_batch(const cmq_queue *queue) { return (cmq_batch_queue *)queue->more; }

static inline cmq_queue_extension *cmq_queue_ext_of(const cmq_queue *queue)
{
    return queue->tail.kind == CMQ_QUEUE_SIMPLE ? (cmq_queue_extension *)queue->more : NULL;
}

static inline bool cmq_image_is_filler(const uint8_t *image)
{
    return (cmq_load_i64(image) == 0 && cmq_load_i32(image + 8) == CMQ_FILLER_SIZE) ||
           cmq_load_i64(image + 12) == CMQ_GAP_TAGS_CODE;
}

/* Where the record of a unit ends. Both kinds of units begin alike; saturating, for damaged files. */
static inline int64_t cmq_image_end(const uint8_t *image)
{
    const int64_t phy = cmq_load_i64(image);
    const int32_t bytes = cmq_load_i32(image + 8);
    if (phy < 0 || bytes <= 0 || phy > INT64_MAX - bytes) return INT64_MAX;
    return phy + bytes;
}

cmq_queueblock *cmq_queues_block(const cmq_queues *queues, uint32_t index, uint32_t *inside_out);
static inline void cmq_queue_mark_dirty(const cmq_queue *queue)
{
    atomic_store_explicit(queue->dirty, 1, memory_order_release);
}
void cmq_queue_mark_unsynced(cmq_queue *queue);

/* Mark it as watched; was it deleted before? */
static inline bool cmq_queue_set_watched(cmq_queue *queue)
{
    return (atomic_fetch_or_explicit(&queue->tail.marks, CMQ_MARK_WATCHED, memory_order_acq_rel) & CMQ_MARK_DELETED) !=
           0;
}

/* Was it marked? It is not any more. A look where it was not. */
static inline bool cmq_queue_take_watched(cmq_queue *queue)
{
    if ((atomic_load_explicit(&queue->tail.marks, memory_order_relaxed) & CMQ_MARK_WATCHED) == 0) return false;
    return (atomic_fetch_and_explicit(&queue->tail.marks, (uint8_t)~CMQ_MARK_WATCHED, memory_order_acq_rel) &
            CMQ_MARK_WATCHED) != 0;
}

/* ---- cmq_queue_recover ---- */

/* Durable before recovery makes the first of the missing files: a crash leaves that file half full between whole ones,
 * and nothing about the queue says so. */
cmq_status CMQ_MUST_CHECK cmq_queues_mark_incomplete(cmq_queues *queues);

/* writer, during recovery: cmq_queues_end_recover cuts the bytes behind the queue's end, … */
cmq_status CMQ_MUST_CHECK cmq_queue_cut_later(cmq_queue *queue, cmq_queuefolder folder);
/* … and removes a file that the queue does not use by then. */
cmq_status CMQ_MUST_CHECK cmq_queue_remove_later(cmq_queue *queue, cmq_queuefolder folder, int64_t start);
/* Remove all files of a queue's folder, during recovery later, and forget them. */
cmq_status CMQ_MUST_CHECK cmq_queue_drop_files(cmq_queue *queue, cmq_queuefolder folder, cmq_queuefiles *files);
void cmq_queues_forget_late(cmq_queues *queues);

/* ---- cmq_queue_begins ---- */

/* writer, with the queue's lock or while it is opened: the record of the unit at `position`, where the queue begins,
 * starts at `phy`. */
void cmq_queue_note_begin(cmq_queue *queue, int64_t position, int64_t phy);

/* The same before units from `from` on are written to the files: while the queue's first is in memory. */
void cmq_queue_note_first(cmq_queue *queue, int64_t from);

/* With the queue's lock: where the queue begins, if that unit is in its files; *begin_out is not known otherwise. */
void cmq_queue_learn_begin(cmq_queue *queue, cmq_queue_begin *begin_out);

/* With the queue's lock or while it is opened: the unit at the noted begin may become another one. */
void cmq_queue_forget_begin(cmq_queue *queue);

/* During an opening: the last durable point's table says that the queue begins there. */
void cmq_queue_compare_begin(cmq_queue *queue, const cmq_queue_begin *begin);

/* The position of the first unit that the queue's files have. */
static inline int64_t cmq_queue_first_position(const cmq_queue *queue)
{
    return queue->files.first / cmq_queue_unit_bytes(queue);
}

cmq_queue_begin *cmq_queue_begin_of(const cmq_queue *queue);

/* An empty queue: its first unit will be at `position`, of the record at `phy` or behind. */
void cmq_queue_continue_at(cmq_queue *queue, int64_t position, int64_t phy);

/* Recovery, writer: the queue in which the missing units are made; NULL: there is none. */
cmq_queue *cmq_queue_find_aside(const cmq_queue *queue);

/* Put the file made aside that starts at `start` into the queue's folder, durably, before any other. */
cmq_status CMQ_MUST_CHECK cmq_queue_join_file(cmq_queue *queue, const cmq_queue *aside, int64_t start);

/* ---- cmq_queue_lost_ends ---- */

/* During an opening: note the queues that lost units at their ends, by the table's queues, if the table and the queues
 * of this opening give the point's fingerprint together. Nothing is noted otherwise. */
cmq_status CMQ_MUST_CHECK cmq_queues_learn_lost_ends(cmq_queues *queues, const cmq_queue_was *was, uint32_t count,
                                                     const cmq_queues_point *point);

/* Before the log is read: writer: begin the missing parts aside; view: check that they fit into memory. *from_out is
 * lowered to the first record whose unit is missing. */
cmq_status CMQ_MUST_CHECK cmq_queues_begin_lost_ends(cmq_queues *queues, int64_t log_min, int64_t *from_out);

/* Does the queue lack the unit of the record at `phy`? It has lost its end. */
bool cmq_queue_end_lacks(const cmq_queue *queue, int64_t phy);

/* writer: when the log was read; join: when the files aside are durable. */
cmq_status CMQ_MUST_CHECK cmq_queues_keep_expired_ends(cmq_queues *queues);
cmq_status CMQ_MUST_CHECK cmq_queues_join_lost_ends(cmq_queues *queues);

/* Make the table durable that the opening has read. */
cmq_status CMQ_MUST_CHECK cmq_queue_end_sums_sync(const cmq_queues *queues);

/* ---- cmq_queue_replay ---- */

/* Empty the queue and let it begin at `offset`. */
cmq_status CMQ_MUST_CHECK cmq_queue_begin_at(cmq_queue *queue, int64_t offset);

/* ---- cmq_queue_delete ---- */

/* writer: the path of a new folder in cometmq/deleted. Files left in it are removed in the background, also by the next
 * writer. It is made with the first file in it. */
cmq_status CMQ_MUST_CHECK cmq_queues_trash_folder(cmq_queues *queues, char into[CMQ_PATH_BYTES]);

void cmq_queues_look_for_trash(cmq_queues *queues);

/* ---- cmq_queues ---- */

/* writer: a new queue in the table; nothing on disk. */
cmq_status CMQ_MUST_CHECK cmq_queues_add(cmq_queues *queues, cmq_slice topic, int32_t queue_id, cmq_queue_kind kind,
                                         cmq_queue **queue_out);

/* With the queue's lock, writer: cut the queue at `position` (at most next); the files too, but in a read-only set. */
cmq_status CMQ_MUST_CHECK cmq_queue_cut(cmq_queue *queue, int64_t position);

/* ---- cmq_queue: positions, for every kind ---- */

/* reader: decode up to `capacity` units from position `from` on (all below `next`); fillers come with bytes
 * CMQ_FILLER_SIZE. At least one when from < limit. */
cmq_status CMQ_MUST_CHECK cmq_queue_fetch(cmq_queue *queue, int64_t from, int64_t limit, cmq_unit *units_out,
                                          uint32_t capacity, uint32_t *count_out);

/* reader: the position behind the last visible unit; on a failing file the last that is certain. */
int64_t cmq_queue_visible(cmq_queue *queue, int64_t confirmed_end);

/* reader: the first position in [low, high) whose unit `reached` says yes to, fillers skipped; high when there is none.
 * Units are in order. */
typedef struct cmq_queue_probe {
    bool (*reached)(void *context, const cmq_unit *unit, cmq_status *status);
    void *context;
    bool damaged_as_next;   /* a damaged unit goes with the next sound one; reached where there is none below high */
} cmq_queue_probe;
cmq_status CMQ_MUST_CHECK cmq_queue_first(cmq_queue *queue, int64_t low, int64_t high, const cmq_queue_probe *probe,
                                          int64_t *position_out);
bool cmq_unit_ends_after(void *context, const cmq_unit *unit, cmq_status *status);   /* context: int64_t end */

/* reader: the positions that may be seen, [low, high). */
void cmq_queue_readable(cmq_queue *queue, int64_t confirmed_end, int64_t *low_out, int64_t *high_out);

/* reader: the position to read `offset` from, and behind the last that may be seen; *offset_out is `offset` raised to
 * the min offset. */
cmq_status CMQ_MUST_CHECK cmq_queue_place(cmq_queue *queue, int64_t offset, int64_t confirmed_end,
                                          int64_t *position_out, int64_t *high_out, int64_t *offset_out);

/* A missing file is damage to callers of the module. */
cmq_status cmq_queue_missing_is_corrupt(cmq_status status);

/* reader: whether a read of `position` failed because retention, here or in the process that writes, took its file
 * after the reader had looked at `min`. Then go on at *min_out. */
bool cmq_queue_was_expired(const cmq_queue *queue, cmq_status status, int64_t position, int64_t *min_out);

static inline bool cmq_unit_is_filler(const cmq_unit *unit)
{
    return (unit->phy == 0 && unit->bytes == CMQ_FILLER_SIZE) || unit->tags_code == CMQ_GAP_TAGS_CODE;
}

/* No record starts below 0. */
static inline bool cmq_unit_is_damaged(const cmq_unit *unit) { return unit->phy < 0; }

/* writer, with the queue's lock: an empty tail at `position`, all below in the files. */
void cmq_queue_reset_tail(cmq_queue *queue, int64_t position);

/* With the queue's lock: write units [flushed, end) to the files. After a failure part way, written units stay
 * written. */
cmq_status CMQ_MUST_CHECK cmq_queue_write_tail(cmq_queue *queue, int64_t end);

/* writer: free cold rings until the pool's use is low enough or `look_at` queues were looked at. Those in which this
 * turn has made room stay. */
void cmq_queues_cool(cmq_queues *queues, uint32_t look_at);

/* ---- batch queues ---- */

/* reader: position of the unit that holds `offset`: the last in [low, high) that begins at or before it, or low. */
cmq_status CMQ_MUST_CHECK cmq_batch_queue_position(cmq_queue *queue, int64_t offset, int64_t low, int64_t high,
                                                  int64_t *position_out);

/* reader: the same, but high when `offset` lies behind the last unit. */
cmq_status CMQ_MUST_CHECK cmq_batch_queue_position_for_read(cmq_queue *queue, int64_t offset, int64_t low, int64_t high,
                                                           int64_t *position_out);

/* flush or writer: set the min offset that belongs to the min position. */
cmq_status CMQ_MUST_CHECK cmq_batch_queue_set_min(cmq_queue *queue, int64_t min_position);

void cmq_batch_queue_encode(uint8_t image[CMQ_BATCH_UNIT_BYTES], const cmq_unit *unit);
void cmq_batch_queue_decode(const uint8_t image[CMQ_BATCH_UNIT_BYTES], cmq_unit *unit_out);
bool cmq_batch_queue_valid(const uint8_t image[CMQ_BATCH_UNIT_BYTES]);

/* ---- retention ---- */

/* Under the queue's lock: raise the min position to the first unit whose record starts at or after min_phy. */
cmq_status CMQ_MUST_CHECK cmq_queue_correct_min(cmq_queue *queue, int64_t min_phy);

/* Free what recovery kept. */
void cmq_queues_end_reput(cmq_queues *queues);

#endif
