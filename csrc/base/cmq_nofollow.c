/* cmq_nofollow: see cmq_nofollow.h.
 *
 * One openat2(RESOLVE_NO_SYMLINKS) where the kernel has it (Linux 5.6) and the container allows it: as fast as open().
 * Elsewhere a walk, folder by folder, each opened relative to the one before it.
 */
#include "base/cmq_nofollow.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cmq_file.h"
#include "base/cmq_relief.h"

/* Not in the headers of all systems that we build on. */
#ifndef SYS_openat2
#define SYS_openat2 437
#endif
#define NO_SYMLINKS UINT64_C(0x04)   /* RESOLVE_NO_SYMLINKS */

typedef struct open_how_0 {
    uint64_t flags, mode, resolve;
} open_how_0;

static atomic_bool walks;

void cmq_nofollow_walk_always(bool always) { atomic_store_explicit(&walks, always, memory_order_relaxed); }

static int open_again(int folder, const char *name, int flags, mode_t mode)
{
    int descriptor;
    do {
        descriptor = openat(folder, name, flags | O_NOFOLLOW | O_CLOEXEC, mode);
    } while (descriptor < 0 && errno == EINTR);
    return descriptor;
}

/* O_PATH opens a link itself, and O_DIRECTORY calls it no directory: both are links to our callers. */
static int open_name(int folder, const char *name, int flags, mode_t mode)
{
    struct stat found;
    int descriptor = open_again(folder, name, flags, mode);
    if (descriptor < 0 && errno != ENOTDIR) return -1;
    if (descriptor >= 0 && (flags & O_PATH) == 0) return descriptor;
    const bool known =
        descriptor >= 0 ? fstat(descriptor, &found) == 0 : fstatat(folder, name, &found, AT_SYMLINK_NOFOLLOW) == 0;
    const bool is_link = known && S_ISLNK(found.st_mode);
    if (descriptor >= 0 && is_link) {
        close(descriptor);
        descriptor = -1;
    }
    if (descriptor < 0) errno = is_link ? ELOOP : ENOTDIR;
    return descriptor;
}

/* The next name of `*path`, which moves behind it; false at the end, or with errno when the name is too long. */
static bool take_name(const char **path, char name[CMQ_PATH_BYTES])
{
    *path += strspn(*path, "/");
    const size_t bytes = strcspn(*path, "/");
    errno = bytes >= CMQ_PATH_BYTES ? ENAMETOOLONG : 0;
    if (bytes == 0 || bytes >= CMQ_PATH_BYTES) return false;
    memcpy(name, *path, bytes);
    name[bytes] = '\0';
    *path += bytes;
    *path += strspn(*path, "/");
    return true;
}

static int open_by_walk(const char *path, int flags, mode_t mode)
{
    char name[CMQ_PATH_BYTES], next[CMQ_PATH_BYTES];
    if (*path == '\0') {
        errno = ENOENT;
        return -1;
    }
    int folder = open_again(AT_FDCWD, *path == '/' ? "/" : ".", O_PATH | O_DIRECTORY, 0);
    bool more = folder >= 0 && take_name(&path, name);
    if (folder >= 0 && !more && errno == 0) strcpy(name, ".");
    else if (folder >= 0 && !more) goto fail;
    while (more && *path != '\0') {
        const int below = open_name(folder, name, O_PATH | O_DIRECTORY, 0);
        if (below < 0) goto fail;
        close(folder);
        folder = below;
        if (!take_name(&path, next)) goto fail;
        memcpy(name, next, sizeof name);
    }
    if (folder < 0) return -1;
    const int descriptor = open_name(folder, name, flags, mode);
    const int failed = errno;
    close(folder);
    errno = failed;
    return descriptor;
fail:;
    const int why = errno;
    close(folder);
    errno = why;
    return -1;
}

static int open_once(const char *path, int flags, mode_t mode)
{
    if (atomic_load_explicit(&walks, memory_order_relaxed)) return open_by_walk(path, flags, mode);
    const open_how_0 how = {.flags = (uint64_t)(unsigned)(flags | O_CLOEXEC),
                            .mode = (flags & O_CREAT) != 0 ? mode : 0,
                            .resolve = NO_SYMLINKS};
    long descriptor;
    do {
        descriptor = syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof how);
    } while (descriptor < 0 && (errno == EINTR || errno == EAGAIN));
    if (descriptor >= 0) return (int)descriptor;
    if (errno == ENOSYS) cmq_nofollow_walk_always(true);
    /* Containers refuse calls that they do not know with EPERM, which a file may answer as well. */
    return errno == ENOSYS || errno == EPERM ? open_by_walk(path, flags, mode) : -1;
}

int cmq_nofollow_open(const char *path, int flags, mode_t mode)
{
    const int descriptor = open_once(path, flags, mode);
    return descriptor < 0 && cmq_nofollow_is_exhausted() && cmq_relief_ask() ? open_once(path, flags, mode)
                                                                             : descriptor;
}

int cmq_nofollow_parent(const char *path, const char **name_out)
{
    char parent[CMQ_PATH_BYTES];
    const char *slash = strrchr(path, '/');
    *name_out = slash == NULL ? path : slash + 1;
    const size_t bytes = slash == NULL ? 0 : (size_t)(slash - path);
    if (bytes >= sizeof parent || **name_out == '\0') {
        errno = bytes >= sizeof parent ? ENAMETOOLONG : EINVAL;
        return -1;
    }
    memcpy(parent, path, bytes);
    parent[bytes] = '\0';
    return cmq_nofollow_open(slash == NULL ? "." : bytes == 0 ? "/" : parent, O_PATH | O_DIRECTORY, 0);
}

bool cmq_nofollow_is_exhausted(void) { return errno == EMFILE || errno == ENFILE; }

int cmq_nofollow_look(const char *path)
{
    char prefix[CMQ_PATH_BYTES];
    struct stat found;
    const size_t bytes = strlen(path);
    if (bytes >= sizeof prefix) {
        errno = ENAMETOOLONG;
        return -1;
    }
    for (size_t end = 1; end < bytes; end++) {
        if (path[end] != '/') continue;
        memcpy(prefix, path, end);
        prefix[end] = '\0';
        if (lstat(prefix, &found) != 0) return -1;
        if (S_ISLNK(found.st_mode)) {
            errno = ELOOP;
            return -1;
        }
    }
    return 0;
}
