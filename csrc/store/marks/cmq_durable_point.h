/* cmq_durable_point: the durable point: up to where the derived files are known to agree with the log, so that recovery
 * reads only what lies behind it.
 *
 * Two slots, a page each, are written in turn with a rising sequence number and a checksum; a torn write leaves the
 * other slot valid. A point is stored first and the `checkpoint` it was stored for second, so that of old and new file
 * each has its point.
 *
 * Owns:       the file <root>/cometmq/point.
 * Invariant:  a point is stored only after everything it says is durable; a slot that fails its checksum does not
 *             exist.
 * Durability: cmq_durable_point_store returns after its slot is durable.
 * Threads:    one thread at a time.
 * Way:        flush -> [cmq_durable_point] -> recovery
 * Source:     ours; spec store 5.4 is what upstream does without it.
 */
#ifndef CMQ_DURABLE_POINT_H
#define CMQ_DURABLE_POINT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cmq_file.h"
#include "base/cmq_status.h"
#include "store/index/cmq_index.h"
#include "store/marks/cmq_layout.h"

typedef struct cmq_durable_point {
    int64_t log_end;           /* P: every record that ends at or before it is in the log, its queue units and keys in
                                * the files, all durable */
    int64_t store_ms;          /* store timestamp of the last record before P; 0 when there is none */
    cmq_index_position index;  /* where the index stood */
    uint64_t queues;           /* cmq_queues_fingerprint at P: differs when queues lost files since, or changed */
    bool queues_known;         /* else `queues` says nothing */
    uint64_t queues_also;      /* with has_also: the same without queues whose deletion followed this point, or was
                                * about to */
    bool has_also;
    uint32_t checkpoint_crc;   /* cmq_checkpoint_crc of what we wrote last: differs when another program has written it
                                * since */
    bool clean;                /* written by a close: nothing lies behind P */
    bool marks;                /* records behind P carry a property CRC wherever they could be mistaken for torn */
    bool has_queues;           /* there were files under consumequeue/ */
    bool has_batch_queues;     /* … and under batchconsumequeue/ */

    /* The last record before P, to notice a log that was replaced: all zero when P has none. */
    int64_t last_phy;          /* where it starts */
    int32_t last_bytes;        /* its size */
    uint32_t last_crc;         /* crc32 of its header, as much as the store chooses */

    /* Keys of records that begin in [from, end) may be missing from the index, and stay so until it is rebuilt: both 0:
     * none are known to be. */
    int64_t index_missing_from, index_missing_end;

    cmq_layout_sizes sizes;    /* with which the store is open: files of a kind that has none yet get them also after
                                * the next opening. 0: not known */
} cmq_durable_point;

typedef struct cmq_durable_point_file cmq_durable_point_file;   /* the file, opened by a writer */

/* Read the newest valid point. *found_out is false, and the point zero, when there is none, or none that this version
 * knows. */
cmq_status CMQ_MUST_CHECK cmq_durable_point_load(cmq_fs *fs, const char *root, cmq_durable_point *point_out,
                                                 bool *found_out);

/* The same among the points that were stored for a `checkpoint` with this crc: a crash between the two leaves the older
 * point for the older file. */
cmq_status CMQ_MUST_CHECK cmq_durable_point_load_for(cmq_fs *fs, const char *root, uint32_t checkpoint_crc,
                                                     cmq_durable_point *point_out, bool *found_out);

/* CMQ_ERR_NOT_STORE when a newer version of ours has marked the store as one that older programs must not use. A newer
 * point without that mark is fine: it is none for us. */
cmq_status CMQ_MUST_CHECK cmq_durable_point_refuse_newer(cmq_fs *fs, const char *root);

/* Open the file for storing; makes folder and file. *file_out owned: cmq_durable_point_close. */
cmq_status CMQ_MUST_CHECK cmq_durable_point_open(cmq_fs *fs, const char *root, cmq_durable_point_file **file_out);

/* Write the slot that is not kept (the older one by default) and sync; keep the new one. After a failure the kept point
 * is still there; the handle may be used again. */
cmq_status CMQ_MUST_CHECK cmq_durable_point_store(cmq_durable_point_file *file, const cmq_durable_point *point);

/* Let the next store spare the newest slot for a checkpoint with this crc: it is the only one that a crash before the
 * checkpoint's next change would find true. Nothing changes when there is none. */
cmq_status CMQ_MUST_CHECK cmq_durable_point_keep(cmq_durable_point_file *file, uint32_t checkpoint_crc);

/* NULL is fine. */
void cmq_durable_point_close(cmq_durable_point_file *file);

/* Forget every point durably (recovery then reads as upstream does); fine when there is none. */
cmq_status CMQ_MUST_CHECK cmq_durable_point_forget(cmq_fs *fs, const char *root);

#endif
