/* cmq_lock: the store's `lock` file: one writer at a time, ours or a Java broker.
 *
 * Owns:      the only descriptor of a lock file that this process holds, and a table of such files per process.
 * Invariant: while this process holds a lock, no descriptor of that file is closed in it. POSIX drops a record lock when
 *            any descriptor of the file is closed, so opening the store a second time would otherwise unlock the first.
 *            Code that lists, copies or reads a store therefore never opens its lock file; cmq_lock_probe asks instead.
 * Way:       store open -> [cmq_lock] -> cmq_file_lock (POSIX record lock, byte 0, length 1)
 * Threads:   any; one mutex guards the table, over the system calls as well. After fork the child holds nothing: it may
 *            only release (which frees) or acquire anew.
 * Source:    upstream's DefaultMessageStore.start: FileChannel.tryLock(0, 1, false), then the bytes `lock`.
 */
#ifndef CMQ_LOCK_H
#define CMQ_LOCK_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cmq_file.h"

typedef struct cmq_lock cmq_lock;

/* Take the lock, making the file where it is missing, and write the 4 bytes `lock` into it. CMQ_ERR_LOCKED when another process has
 * it, or this one, under any path; the text names the process, and cmq_lock_probe gives its id. *lock_out owned: cmq_lock_release.
 * `fs` must outlive the lock. */
cmq_status CMQ_MUST_CHECK cmq_lock_acquire(cmq_fs *fs, const char *path, cmq_lock **lock_out);

/* Let go and free; NULL is fine. The file stays, as upstream leaves it. In a child after fork the parent keeps its lock. */
void cmq_lock_release(cmq_lock *lock);

/* False in a child after fork: then the parent has it, and nothing may be written. */
bool cmq_lock_is_held(const cmq_lock *lock);

/* Who has it now: a process id (perhaps this one's), CMQ_LOCK_FREE, also when there is no such file, or CMQ_LOCK_HOLDER_UNKNOWN.
 * Takes and drops nothing. */
cmq_status CMQ_MUST_CHECK cmq_lock_probe(cmq_fs *fs, const char *path, int64_t *holder_pid_out);

#endif
