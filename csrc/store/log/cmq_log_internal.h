/* cmq_log_internal: the struct behind cmq_log, shared by cmq_log.c (files) and cmq_log_write.c (bytes), and by nobody
 * else. */
#ifndef CMQ_LOG_INTERNAL_H
#define CMQ_LOG_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "store/log/cmq_log.h"

/* Segments by number; readers use it without a lock, so a grown table replaces it and it is freed at close. */
typedef struct cmq_log_table {
    int64_t origin;                    /* start of at[0] */
    uint32_t capacity;
    struct cmq_log_table *retired;     /* the table that this one replaced */
    _Atomic(cmq_segment *) at[];
} cmq_log_table;

/* A piece of a staging buffer that goes to one place of one segment. */
typedef struct cmq_staged_run {
    cmq_segment *segment;   /* pinned */
    int64_t phy;
    int64_t at;             /* in the buffer */
    int64_t bytes;
} cmq_staged_run;

/* Where the head of a sealed stretch lies: its first bytes, without which nothing behind them can be found. */
typedef struct cmq_sealed_head {
    int64_t phy;
    int64_t at;             /* in the buffer */
    bool whole;             /* its stretch is */
} cmq_sealed_head;

struct cmq_staged {
    uint8_t *data;
    int64_t capacity;
    int64_t used;
    int64_t end;            /* the log's end when the last run was written */
    uint32_t run_count;
    cmq_staged_run runs[CMQ_STAGED_RUNS_MAX];
    uint32_t head_count;
    cmq_sealed_head heads[CMQ_SEALED_MAX];
};

struct cmq_log {
    cmq_fs *fs;
    cmq_segment_family *family;
    char *paths[CMQ_LOG_PATHS_MAX];
    uint32_t path_count;
    int64_t segment_bytes;
    bool read_only;
    bool staged;

    pthread_mutex_t make_mutex;        /* guards making segments and the table */
    pthread_mutex_t ahead_mutex;       /* the helper holds it while it uses the file of the segment ahead and writes
                                        * zeros there; the writer takes it to enter a segment, the flush to close
                                        * files */
    int64_t entered_end;               /* ahead_mutex: the writer has entered the segments that begin below */
    _Atomic(cmq_log_table *) table;
    _Atomic int64_t min;
    _Atomic int64_t last_file_end;

    /* The writer's; nobody else touches these. On lines of their own, since readers poll what follows. */
    _Alignas(64) int64_t end;
    int64_t reserved_end;              /* blocks are there up to here, within the current segment */
    int64_t reserve_step;
    int64_t touched_end;               /* mapped: pages are there up to here, within the current segment */
    int64_t touch_step;
    int64_t together_end;              /* claims up to here find their room: it was claimed at once */
    uint8_t *sealed;                   /* mapped: the bytes of the stretch that is being sealed, … */
    int64_t sealed_from;               /* … which begins here; -1: none is */
    cmq_segment *current;              /* NULL: made by the next claim */
    int64_t staging_bytes_max;         /* of one staging buffer */
    struct cmq_staged *filling;        /* the staging buffer that claims go to */
    struct cmq_staged staged_buffers[2];

    _Alignas(64) _Atomic int64_t confirmed;
    _Atomic int64_t flushed;
    int64_t files_closed;              /* flush: segments that end at or before it have no open file */

    /* Mapped: the flush's sync beside a transaction's. */
    pthread_mutex_t sync_mutex;
    pthread_cond_t synced;             /* syncing_to is 0 again */
    int64_t syncing_to;                /* a sync of bytes up to here is at work; 0: none is. sync_mutex */
    bool sync_failed;                  /* one failed: later ones prove nothing. sync_mutex */
};

cmq_segment *cmq_log_segment_at(const cmq_log *log, int64_t phy);

/* The segment that starts at `start`, made when it is missing; any of writer and helper. */
cmq_status CMQ_MUST_CHECK cmq_log_make_segment(cmq_log *log, int64_t start, cmq_segment **segment_out);

/* Forget the staged bytes and unpin their segments. */
void cmq_staged_discard(struct cmq_staged *staged);

#endif
