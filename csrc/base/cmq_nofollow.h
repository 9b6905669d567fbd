/* cmq_nofollow: opening paths in which no symbolic link is followed, neither at the end nor on the way.
 *
 * A store may come from anybody: a link inside it would lead reads, writes and removals to files that are not its own. So
 * cmq_file_posix opens everything through here. What the operator names (the store's root, folders of the log) may be a
 * link, and is resolved once, by cmq_fs_resolve.
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

/* Open the folder that holds the last name of `path`, for the calls that end in "at"; *name_out points to that name in `path`. */
int cmq_nofollow_parent(const char *path, const char **name_out);

/* Where no descriptor is left: look at each name on the way to the last one, by itself. 0; or -1 and errno, ELOOP for a link. A link that is made while
 * this looks is not seen, which is why the others come first. */
int cmq_nofollow_look(const char *path);

/* Did the last call fail for want of a descriptor? */
bool cmq_nofollow_is_exhausted(void);

/* For tests: walk folder by folder, as on systems without openat2. */
void cmq_nofollow_walk_always(bool always);

#endif
