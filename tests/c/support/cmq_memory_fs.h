/* cmq_memory_fs: a cmq_fs whose files lie in memory, for tests that open many thousands of small stores: no call of the
 * system, nothing on any disk.
 *
 * Owns:      the tree, and the bytes of a file until its last name, handle and mapping are gone.
 * Model:     paths begin with "/"; mappings are the file's own bytes. Pages that hold zeros alone count as holes. Syncs
 *            do nothing: for what they promise put a cmq_file_twin over it.
 * Limits:    one process; no links; a mapped file cannot grow beyond the power of two that holds it (that ends the
 *            test); loads behind the end of a file that was cut are zeros, not SIGBUS, so keep some runs on the
 *            system's files.
 * Threads:   all functions from any thread.
 */
#ifndef CMQ_MEMORY_FS_H
#define CMQ_MEMORY_FS_H

#include "base/cmq_file.h"

typedef struct cmq_memory_fs cmq_memory_fs;

cmq_memory_fs *cmq_memory_fs_create(void);

/* Ends the test when a handle or a mapping is still open. NULL is fine. */
void cmq_memory_fs_destroy(cmq_memory_fs *memory);

cmq_fs *cmq_memory_fs_fs(cmq_memory_fs *memory);

#endif
