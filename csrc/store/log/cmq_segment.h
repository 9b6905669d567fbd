/* cmq_segment: one file of the commit log, mapped, and the pins that keep its mapping alive.
 *
 * Owns:       one mapping, from open or create until the last pin is gone; one descriptor, only while bytes come in: a
 *             log of thousands of segments has two or three.
 * Invariant:  a segment's memory (not its mapping) lives until its family is released and every pin of every segment is
 *             gone, so a reader that holds a stale pointer may always try to pin it, and fails when it is too late.
 * Threads:    pin and unpin from any thread; the rest by the log's writer or, where said, the prewarming helper.
 * Way:        cmq_log -> [cmq_segment] -> readers
 */
#ifndef CMQ_SEGMENT_H
#define CMQ_SEGMENT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cmq_file.h"
#include "base/cmq_status.h"

typedef struct cmq_segment cmq_segment;
typedef struct cmq_segment_family cmq_segment_family;   /* all segments of one log */

cmq_status CMQ_MUST_CHECK cmq_segment_family_create(cmq_segment_family **family_out);
void cmq_segment_family_release(cmq_segment_family *family);   /* freed when the last segment's last pin is gone too */

typedef enum cmq_segment_access {
    CMQ_SEGMENT_READ,        /* an existing file, mapped read-only and closed again */
    CMQ_SEGMENT_STAGED,      /* mapped read-only, created when missing: bytes come in by pwrite */
    CMQ_SEGMENT_MAPPED,      /* mapped writable, created when missing: bytes come in by stores */
    CMQ_SEGMENT_STAGED_AGAIN,   /* an existing file as STAGED has it */
    CMQ_SEGMENT_MAPPED_AGAIN    /* an existing file as MAPPED has it */
} cmq_segment_access;

/* Open or (STAGED, MAPPED) create the file `path` of `bytes` that starts at `start`. A file of another length is
 * CMQ_ERR_SETTING. Before a creation, a file left by a failed one is emptied first. Creation syncs the directory. The
 * result has one pin, the log's own. */
cmq_status CMQ_MUST_CHECK cmq_segment_open(cmq_segment_family *family, cmq_fs *fs, const char *path, int64_t start,
                                           int64_t bytes, cmq_segment_access access, cmq_segment **segment_out);

int64_t cmq_segment_start(const cmq_segment *segment);
const char *cmq_segment_path(const cmq_segment *segment);

/* The file of a segment opened with any access but READ, until close_file; NULL for the others. The mapping was made
 * from this descriptor: on overlayfs an older one that was opened for reading never shows later writes. */
cmq_file *cmq_segment_file(const cmq_segment *segment);
void cmq_segment_close_file(cmq_segment *segment);

/* Has another file taken this one's name? False when there is none of that name. */
cmq_status CMQ_MUST_CHECK cmq_segment_replaced(const cmq_segment *segment, bool *replaced_out);

uint8_t *cmq_segment_data(const cmq_segment *segment);   /* the mapping; valid while pinned; writable with MAPPED
                                                          * only */
bool cmq_segment_writable(const cmq_segment *segment);

/* How many bytes from its start on have warm pages: reserved, in memory, mapped for writing. The helper raises it, the
 * writer reads it. */
int64_t cmq_segment_warm(const cmq_segment *segment);
void cmq_segment_set_warm(cmq_segment *segment, int64_t bytes);

/* Open a loaded segment's file again, to append to it. */
cmq_status CMQ_MUST_CHECK cmq_segment_reopen(cmq_segment *segment, cmq_segment_access access,
                                             cmq_segment **segment_out);

/* Pin if the log or anyone still has it; false when it is gone. */
bool cmq_segment_try_pin(cmq_segment *segment);
void cmq_segment_pin(cmq_segment *segment);
void cmq_segment_unpin(cmq_segment *segment);

#endif
