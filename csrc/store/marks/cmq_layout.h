/* cmq_layout: probes a directory for the kind of its store and the sizes of its files.
 *
 * RocketMQ's files do not name their sizes; a broker knows them from its configuration. We learn them from lengths (and
 * the index's split from its own chains), so that a store opens without its broker.properties. Only a few files of each
 * kind are looked at: the loaders check the rest.
 *
 * Invariant:  a size in the result is either what the caller set and no file contradicts, or what the files say, or,
 *             where there are no files of that kind, what the last writer of ours was opened with (cometmq/point) or
 *             upstream's default; `found` says which. Nothing is written.
 * Threads:    any; nothing is kept.
 * Way:        open -> [cmq_layout] -> log, queues, index
 * Source:     upstream's MappedFileQueue.doLoad, MessageStoreConfig; spec store 1.1 to 1.3, 15.
 */
#ifndef CMQ_LAYOUT_H
#define CMQ_LAYOUT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cmq_file.h"
#include "base/cmq_status.h"

#define CMQ_SEGMENT_BYTES_DEFAULT 1073741824
#define CMQ_QUEUE_FILE_BYTES_DEFAULT 6000000
#define CMQ_BATCH_FILE_BYTES_DEFAULT 13800000
#define CMQ_EXT_FILE_BYTES_DEFAULT 50331648

/* Sizes of one store; in what the caller sets, 0 is "not set". */
typedef struct cmq_layout_sizes {
    int64_t segment_bytes;       /* mappedFileSizeCommitLog */
    int64_t queue_file_bytes;    /* mappedFileSizeConsumeQueue; rounded up to a multiple of 20, as upstream does */
    int64_t batch_file_bytes;    /* mapperFileSizeBatchConsumeQueue */
    int64_t ext_file_bytes;      /* mappedFileSizeConsumeQueueExt */
    int32_t index_slots;         /* maxHashSlotNum */
    int32_t index_entries;       /* maxIndexNum */
} cmq_layout_sizes;

/* Which sizes the files themselves show. */
typedef enum cmq_layout_found {
    CMQ_FOUND_SEGMENT = 1,
    CMQ_FOUND_QUEUE = 2,
    CMQ_FOUND_BATCH = 4,
    CMQ_FOUND_EXT = 8,
    CMQ_FOUND_INDEX = 16
} cmq_layout_found;

typedef struct cmq_layout {
    bool exists;                 /* there is such a directory */
    bool is_empty;               /* nothing in it but what an opening of ours leaves: `lock`, `cometmq`; also when it
                                  * does not exist */
    bool is_store;               /* it has a commit log, queues or a checkpoint */
    bool has_abort;              /* the last writer did not close, or one is open */
    uint32_t found;              /* cmq_layout_found bits; the other sizes are set by the caller or upstream's
                                  * defaults */
    cmq_layout_sizes sizes;
    int64_t segment_first;       /* start of the first log segment; 0 when there is none */
    uint32_t segment_count;      /* without a zero-length last one, which does not count (spec store 1.3) */
} cmq_layout;

/* Sizes for kinds of which there are no files: the last writer's, or upstream's defaults. */
cmq_layout_sizes cmq_layout_normal(cmq_fs *fs, const char *root);

/* Look at `root`. `settings` may be NULL. Fails with
 *   CMQ_ERR_NOT_STORE   a kind of store that we do not read (DLedger, RocksDB queues or configuration), one that only a
 *                       newer CometMQ may use, or a foreign file in a data folder: named
 *   CMQ_ERR_SETTING     a setting that no file agrees with: names the option and both values
 *   CMQ_ERR_AMBIGUOUS   files of several lengths (the odd one is named), or an index whose split is unknown: names the
 *                       options to set
 * A directory that is neither empty nor a store is CMQ_OK with both false; the caller decides about it. */
cmq_status CMQ_MUST_CHECK cmq_layout_probe(cmq_fs *fs, const char *root, const cmq_layout_sizes *settings,
                                           cmq_layout *layout_out);

#endif
