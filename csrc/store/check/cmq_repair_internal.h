/* cmq_repair_internal: declarations private to the files of the repair:
 *
 *   cmq_repair.c         lock, sizes, the order of it all
 *   cmq_repair_build.c   the walk over the log; queues and index beside the old ones
 *   cmq_repair_sizes.c   which sizes the derived files get
 *   cmq_repair_swap.c    the journal of the swap, and carrying it out
 *   cmq_repair_fill.c    records without a message in the place of damage
 */
#ifndef CMQ_REPAIR_INTERNAL_H
#define CMQ_REPAIR_INTERNAL_H

#include "base/cmq_file_tree.h"
#include "store/check/cmq_raw_queues.h"
#include "store/check/cmq_repair.h"
#include "store/cmq_store_internal.h"
#include "store/index/cmq_index_walk.h"
#include "store/marks/cmq_own_files.h"

#define CMQ_REPAIR_BUILT CMQ_OWN_FOLDER "/rebuild"
#define CMQ_REPAIR_FOLDERS 4

/* The folders that are rebuilt. */
extern const char *const cmq_repair_folders[CMQ_REPAIR_FOLDERS];

/* The journal of the swap: enough to carry it out. */
typedef struct cmq_repair_journal {
    char stamp[CMQ_REMOVED_STAMP_BYTES];   /* the folder under cometmq/removed */
    int64_t segment_bytes;
    int64_t cut_at;                       /* -1: the log is not cut */
    bool remove_abort;
    uint32_t checkpoint_before;           /* crc of `checkpoint` as it was: differs when another program has used the
                                           * store since */
    cmq_checkpoint checkpoint;            /* the fields that we know */
    cmq_durable_point point;
} cmq_repair_journal;

/* A damaged place, or what of it lies in one segment, that a filler goes to. */
typedef struct cmq_repair_fill {
    int64_t from, bytes;
    int64_t store_ms;             /* of the filler: that of the record before */
} cmq_repair_fill;

/* One repair. */
typedef struct cmq_repair {
    const cmq_repair_options *options;
    cmq_repair_report *report;
    cmq_fs *fs;
    const char *root;
    cmq_store *store;             /* never opened: the log read-only, settings, and the queues and the index that are
                                   * built */
    cmq_raw_queues *raw;           /* the queues that there were */
    cmq_index *old_index;         /* the index that there was; NULL: none, or it stays as it is */
    cmq_index_walk old_entries;   /* its entries, beside the log */
    char built[CMQ_PATH_BYTES];
    char side[CMQ_PATH_BYTES];    /* cometmq/removed/<stamp>; empty until it is made */
    bool has_ext;
    bool stopped;
    bool counting;                /* behind the cut: messages are only counted */
    int64_t last_phy, last_ms;    /* of the last whole record before the end */
    int64_t end;                  /* where the log ends, or is cut */
    int64_t known_end;            /* the log surely reached so far; 0: not known */
    int64_t torn_from;            /* records from here on may lack sectors */
    int64_t progressed;
    cmq_repair_fill *fills;       /* rising */
    uint32_t fill_count, fill_capacity;
    cmq_pending_keys pending;
    cmq_pending_keys record_keys; /* of one record */
    char asked_topic[256];        /* the last topic that `wanted` was asked for … */
    bool asked_answer;            /* … and its answer */
    cmq_repair_journal journal;
} cmq_repair;

/* ---- cmq_repair_build.c ---- */

/* Read the log and, unless it is a dry run, build queues and index from it. */
cmq_status CMQ_MUST_CHECK cmq_repair_walk(cmq_repair *repair);
/* Make everything built durable, with the files that expired queues keep. */
cmq_status CMQ_MUST_CHECK cmq_repair_complete(cmq_repair *repair);

/* ---- cmq_repair_swap.c ---- */

cmq_status CMQ_MUST_CHECK cmq_repair_write_journal(cmq_fs *fs, const char *root, const cmq_repair_journal *journal);
cmq_status CMQ_MUST_CHECK cmq_repair_pending(cmq_fs *fs, const char *root, bool *pending_out);

/* ---- cmq_repair_fill.c ---- */

/* Note [from, end) of the log for filling; counts it in the report. Places too small for a record are left as they
 * are. */
cmq_status CMQ_MUST_CHECK cmq_repair_note_fill(cmq_repair *repair, int64_t from, int64_t end, int64_t store_ms);
/* Keep what lies at the places noted, durably, in the repair's side folder: which is also the list for
 * cmq_repair_fill_log. */
cmq_status CMQ_MUST_CHECK cmq_repair_keep_fills(cmq_repair *repair);

typedef struct cmq_repair_filling {
    cmq_fs *fs;
    const char *const *log_paths;
    uint32_t log_path_count;
    int64_t segment_bytes;
} cmq_repair_filling;

/* Put fillers, durably, where the files kept in `side` come from. May be done again. */
cmq_status CMQ_MUST_CHECK cmq_repair_fill_log(const cmq_repair_filling *of, const char *side);

/* ---- cmq_repair_sizes.c ---- */

/* As cmq_layout_probe, but queue and index files that contradict each other are outvoted: they are rebuilt. */
cmq_status CMQ_MUST_CHECK cmq_repair_probe(cmq_fs *fs, const char *root, const cmq_layout_sizes *given,
                                           cmq_layout *layout_out);

#endif
