/* cmq_store_paths: the paths of a store that its operator names, resolved once. They may be, or lie behind, symbolic
 * links; paths below them may not (see base/cmq_file.h).
 *
 * Owns:    the resolved texts until freed.
 * Threads: one.
 */
#ifndef CMQ_STORE_PATHS_H
#define CMQ_STORE_PATHS_H

#include "store/cmq_store.h"
#include "store/log/cmq_log.h"

typedef struct cmq_store_paths {
    char root[CMQ_PATH_BYTES];
    uint32_t count;
    const char *log[CMQ_LOG_PATHS_MAX];   /* owned */
} cmq_store_paths;

/* Resolve path and commitlog_paths of `options`, and point them to the results. Always to be freed. */
cmq_status CMQ_MUST_CHECK cmq_store_paths_resolve(cmq_store_paths *paths, cmq_fs *fs, cmq_store_options *options);
void cmq_store_paths_free(cmq_store_paths *paths);

#endif
