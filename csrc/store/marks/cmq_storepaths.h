/* cmq_storepaths: the paths of a store that its operator names, resolved once. They may be, or lie behind, symbolic links; what
 * lies below them may not (see base/cmq_file.h).
 *
 * Owns:    the resolved texts until freed.
 * Threads: one.
 */
#ifndef CMQ_STOREPATHS_H
#define CMQ_STOREPATHS_H

#include "store/cmq_store.h"
#include "store/log/cmq_log.h"

typedef struct cmq_storepaths {
    char root[CMQ_PATH_BYTES];
    uint32_t count;
    const char *log[CMQ_LOG_PATHS_MAX];   /* owned */
} cmq_storepaths;

/* Resolve path and commitlog_paths of `options`, and point them to the results. Always to be freed. */
cmq_status CMQ_MUST_CHECK cmq_storepaths_resolve(cmq_storepaths *paths, cmq_fs *fs, cmq_store_options *options);
void cmq_storepaths_free(cmq_storepaths *paths);

#endif
