/* cmq_abort: the `abort` file: there while a writer is open, so that the next one knows whether the last one ended
 * well.
 *
 * Invariant:  only `abort` counts; `abort.bak` is left beside it as upstream 5.x does and never read.
 * Durability: create and remove return when the change of the directory is durable.
 * Threads:    one thread at a time per store (the holder of `lock`).
 * Source:     upstream's DefaultMessageStore; spec store 1.5.
 */
#ifndef CMQ_ABORT_H
#define CMQ_ABORT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cmq_file.h"
#include "base/cmq_status.h"

/* Is there an `abort` file: did the last writer end without closing, or is one open now? */
cmq_status CMQ_MUST_CHECK cmq_abort_present(cmq_fs *fs, const char *root, bool *present_out);

/* Write `abort` with the process id as decimal text; its content before (empty when there was none) goes to
 * `abort.bak`. */
cmq_status CMQ_MUST_CHECK cmq_abort_create(cmq_fs *fs, const char *root, int64_t pid);

/* Remove `abort`; no error when it is missing. Only when log, queues and index agree and are durable: upstream trusts
 * its absence. */
cmq_status CMQ_MUST_CHECK cmq_abort_remove(cmq_fs *fs, const char *root);

#endif
