/* cmq_lock: the store's `lock` file: one writer at a time, ours or a Java broker.
 *
 * Owns:      the only descriptor of a lock file that this process holds, and a table of such files per process.
 * Locks:     two on one descriptor. POSIX drops Java's record lock when any descriptor of the file is closed in the
 *            process, also one that the host program opened (shutil.copytree). The guard, an open file description
 *            lock, stays; cmq_lock_keep takes the record lock again. Every CometMQ process respects both. See
 *            docs/decisions/0020.
 * Invariant: code of ours that lists, copies or reads a store never opens its lock file; cmq_lock_probe asks instead. A
 *            forked child has no copy of the descriptor once fork has returned there, so the guard ends with the
 *            process that took it.
 * Way:       store open -> [cmq_lock] -> cmq_file_lock
 * Threads:   any; one mutex guards the table, over the system calls as well. After fork the child holds nothing: it may
 * only release (which frees) or acquire again.
 * Source:    upstream's DefaultMessageStore.start: FileChannel.tryLock(0, 1, false), then the bytes `lock`.
 */
#ifndef CMQ_LOCK_H
#define CMQ_LOCK_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cmq_file.h"

typedef struct cmq_lock cmq_lock;

/* Take the lock, making the file where it is missing, and write the 4 bytes `lock` into it. CMQ_ERR_LOCKED when another
 * process has it, or this one, under any path; the text names the process, and cmq_lock_probe gives its id. *lock_out
 * owned: cmq_lock_release. `fs` must outlive the lock. */
cmq_status CMQ_MUST_CHECK cmq_lock_acquire(cmq_fs *fs, const char *path, cmq_lock **lock_out);

/* Let go and free; NULL is fine. The file stays, as upstream leaves it. In a child after fork the parent keeps its
 * lock. */
void cmq_lock_release(cmq_lock *lock);

/* Take Java's record lock again where a stray close dropped it; one or two system calls. CMQ_ERR_LOCKED when somebody
 * has it by now, who must be a Java broker: the store has two writers, and this one must not write any more. Not beside
 * cmq_lock_release. */
cmq_status CMQ_MUST_CHECK cmq_lock_keep(cmq_lock *lock);

/* False in a child after fork: then the parent has it, and nothing may be written. */
bool cmq_lock_is_held(const cmq_lock *lock);

/* The current holder: a process id (perhaps this one's), CMQ_LOCK_FREE, also when there is no such file, or
 * CMQ_LOCK_HOLDER_UNKNOWN. Takes and drops no lock. */
cmq_status CMQ_MUST_CHECK cmq_lock_probe(cmq_fs *fs, const char *path, int64_t *holder_pid_out);

/* The same, and whether the holder is a CometMQ process: those take the guard before the record lock. */
cmq_status CMQ_MUST_CHECK cmq_lock_probe_writer(cmq_fs *fs, const char *path, int64_t *holder_pid_out, bool *ours_out);

#endif
