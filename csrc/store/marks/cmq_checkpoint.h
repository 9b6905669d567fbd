/* cmq_checkpoint: the `checkpoint` file: up to which times the log and what derives from it are known to be on disk.
 *
 * Owns:       nothing; the file is opened per call.
 * Invariant:  bytes that this version does not know (40 to 4095) are written back as they were read, but for one offset
 *             of 5.5's: cmq_checkpoint_set_dispatched.
 * Durability: cmq_checkpoint_store returns after the file, and its name when new, are durable.
 * Threads:    load and store: one thread at a time per store. The rest are pure functions.
 * Way:        flush, recovery -> [cmq_checkpoint]
 * Source:     upstream's StoreCheckpoint; spec store 1.6.
 */
#ifndef CMQ_CHECKPOINT_H
#define CMQ_CHECKPOINT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cmq_file.h"
#include "base/cmq_status.h"

#define CMQ_CHECKPOINT_BYTES 4096
#define CMQ_CHECKPOINT_KNOWN_BYTES 40

typedef struct cmq_checkpoint {
    int64_t physic_ms;         /* store time of the newest record known to be flushed in the log */
    int64_t logics_ms;         /* store time of the newest record dispatched to a queue */
    int64_t index_ms;          /* end timestamp of the newest full and flushed index file */
    int64_t master_flushed;    /* slaves: flushed offset learnt from the master; else 0 */
    int64_t confirm_phy;       /* last confirm offset, as recovery wrote it: not the end of the log (spec store 1.6) */
    uint8_t unknown[CMQ_CHECKPOINT_BYTES - CMQ_CHECKPOINT_KNOWN_BYTES];
    uint64_t file_bytes;       /* the file's length when loaded; 0: none. Another length than 4096 is read as upstream
                                * does: missing bytes are zero */
    bool present;              /* there was a file */
} cmq_checkpoint;

/* Load <root>/checkpoint; all zero when there is none or it is empty. */
cmq_status CMQ_MUST_CHECK cmq_checkpoint_load(cmq_fs *fs, const char *root, cmq_checkpoint *checkpoint_out);

/* Write <root>/checkpoint and make it durable; makes the file when there is none. Sets present and file_bytes. */
cmq_status CMQ_MUST_CHECK cmq_checkpoint_store(cmq_fs *fs, const char *root, cmq_checkpoint *checkpoint);

/* RocketMQ 5.5 stores one more offset behind the fields of this struct: that of the newest record whose queue unit is
 * on disk. Its recovery dispatches no log file before that record. Set the offset to `phy` if the file has one; -1 if
 * the log has no record. A cut below the stored offset would make 5.5 skip units. */
void cmq_checkpoint_set_dispatched(cmq_checkpoint *checkpoint, int64_t phy);

/* The first 40 bytes as they stand in the file, so that a change by another program can be noticed. */
void cmq_checkpoint_encode(const cmq_checkpoint *checkpoint, uint8_t into[CMQ_CHECKPOINT_KNOWN_BYTES]);

/* The crc32 of those 40 bytes. */
uint32_t cmq_checkpoint_crc(const cmq_checkpoint *checkpoint);

/* Upstream's start of an abnormal recovery: max(0, min(physic, logics) - 3000). */
int64_t cmq_checkpoint_min_ms(const cmq_checkpoint *checkpoint);

#endif
