/* cmq_nofollow: opening paths in which no symbolic link is followed, neither at the end nor on the way.
 *
 * A store may come from anybody: a link inside it would lead reads, writes and removals to files that are not its own.
 * So cmq_file_posix opens everything through here. Paths that the operator configures (the store's root, folders of the
 * log) may be links, and cmq_fs_resolve resolves them once.
 *
 * Owns:    nothing; descriptors are the caller's, and close on exec.
 * Threads: any.
 * Errors:  -1 and errno as open() has it; ELOOP for a link.
 */
#ifndef CMQ_NOFOLLOW_H
#define CMQ_NOFOLLOW_H

#include <stdbool.h>
#include <sys/types.h>

/* open(path, flags | O_CLOEXEC, mode). `mode` counts where `flags` has O_CREAT. Interrupted calls are made again. */
int cmq_nofollow_open(const char *path, int flags, mode_t mode);

/* Open the folder that holds the last name of `path`, for the calls that end in "at"; *name_out points to that name in
 * `path`. */
int cmq_nofollow_parent(const char *path, const char **name_out);

/* For when no descriptor is left: check each component of the path separately. 0; or -1 and errno, ELOOP for a link.
 * Misses a link that is created meanwhile, which is why the functions above come first. */
int cmq_nofollow_look(const char *path);

/* Did the last call fail for want of a descriptor? */
bool cmq_nofollow_is_exhausted(void);

/* For tests: walk folder by folder, as on systems without openat2. */
void cmq_nofollow_walk_always(bool always);

#endif
