/* cmq_file_posix: the system's file system behind cmq_fs (see cmq_file.h).
 *
 * Owns:       one descriptor per cmq_file; mappings are the caller's until unmapped.
 * Invariant:  no descriptor is inherited by a program that this process starts; no call returns early because of a
 *             signal.
 * Durability: sync is fdatasync: bytes and length, not times. A failed sync is reported once and never retried, because
 *             the kernel marks the pages clean after it.
 *             No symbolic link is followed, and nothing is opened but files and directories (see cmq_nofollow.h).
 * Threads:    any; all access is positioned, so two threads do not move each other's file position.
 */
#include "base/cmq_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/cmq_assert.h"
#include "base/cmq_file_overwrites.h"
#include "base/cmq_host.h"
#include "base/cmq_map_guard.h"
#include "base/cmq_nofollow.h"

#define ZERO_CHUNK_BYTES 65536
#define PATH_TEXT_BYTES 300
#define LOCK_ATTEMPTS 8
#define JAVA_BYTE 0            /* upstream's tryLock(0, 1, false) */
#define GUARD_BYTE 0x434D51   /* "CMQ": nobody else locks it, and no file of that name is so long */

typedef struct posix_file {
    cmq_file base;
    int descriptor;
    char path[];   /* as it was opened; for messages */
} posix_file;

static const uint8_t zeros[ZERO_CHUNK_BYTES];

static posix_file *posix(cmq_file *file) { return (posix_file *)file; }

/* The end of a path, so that the reason behind it still fits into the error's text. */
static const char *tail(const char *path)
{
    const size_t bytes = strlen(path);
    if (bytes <= PATH_TEXT_BYTES) return path;
    path += bytes - PATH_TEXT_BYTES;
    while (((uint8_t)*path & 0xC0u) == 0x80u) path++;   /* not in the middle of a UTF-8 character */
    return path;
}

static const char *name_of(cmq_file *file) { return tail(posix(file)->path); }

static cmq_status fail_file(cmq_file *file, const char *what, uint64_t offset)
{
    return cmq_fail_errno(errno, "cannot %s %s at byte %" PRIu64, what, name_of(file), offset);
}

/* A store that holds links, devices or FIFOs: see docs/operating.md, "A store from elsewhere". */
static cmq_status fail_foreign(const char *what, const char *path)
{
    return cmq_fail(
        CMQ_ERR_NOT_STORE,
        "cannot %s %s: %s. Only files and directories belong into a store; links inside it are not followed", what,
        tail(path), errno == ELOOP ? "it is, or lies behind, a symbolic link" : "it is neither a file nor a directory");
}

static cmq_status fail_path(const char *what, const char *path)
{
    return errno == ELOOP ? fail_foreign(what, path) : cmq_fail_errno(errno, "cannot %s %s", what, tail(path));
}

/* Offsets reach the kernel as off_t; the end of a range must fit as well. */
static cmq_status CMQ_MUST_CHECK check_range(cmq_file *file, uint64_t offset, uint64_t bytes)
{
    if (offset > INT64_MAX || bytes > INT64_MAX - offset)
        return cmq_fail(CMQ_ERR_ARGUMENT, "%" PRIu64 " bytes at %" PRIu64 " of %s are beyond 2^63", bytes, offset,
                        name_of(file));
    return CMQ_OK;
}

/* ---- one file ---- */

/* Without O_NONBLOCK, opening a FIFO would wait for its other end; files do not know it. */
static cmq_status CMQ_MUST_CHECK open_plain(const char *path, int flags, int *descriptor_out)
{
    struct stat found;
    const int descriptor = cmq_nofollow_open(path, flags | O_NONBLOCK | O_NOCTTY, 0666);
    if (descriptor < 0) return errno == ENXIO ? fail_foreign("open", path) : fail_path("open", path);
    if (fstat(descriptor, &found) == 0 && (S_ISREG(found.st_mode) || S_ISDIR(found.st_mode))) {
        *descriptor_out = descriptor;
        return CMQ_OK;
    }
    errno = 0;
    const cmq_status status = fail_foreign("open", path);
    close(descriptor);
    return status;
}

static cmq_status posix_open(cmq_fs *self, const char *path, cmq_open_mode mode, cmq_file **file_out)
{
    static const int flags[] = {
        [CMQ_OPEN_READ] = O_RDONLY,
        [CMQ_OPEN_WRITE] = O_RDWR,
        [CMQ_OPEN_CREATE] = O_RDWR | O_CREAT,
        [CMQ_OPEN_CREATE_NEW] = O_RDWR | O_CREAT | O_EXCL,
    };
    CMQ_ASSERT((size_t)mode < sizeof flags / sizeof flags[0]);
    const size_t path_bytes = strlen(path) + 1;
    int descriptor = -1;
    const cmq_status status = open_plain(path, flags[mode], &descriptor);
    if (status != CMQ_OK) return status;
    posix_file *file = malloc(sizeof *file + path_bytes);
    if (file == NULL) {
        close(descriptor);
        return cmq_fail(CMQ_ERR_MEMORY, "no memory to open %s", tail(path));
    }
    file->descriptor = descriptor;
    file->base.fs = self;
    memcpy(file->path, path, path_bytes);
    *file_out = &file->base;
    return CMQ_OK;
}

static void posix_close(cmq_file *file)
{
    close(posix(file)->descriptor);   /* after EINTR it is closed too (Linux); data that matters was synced before */
    free(file);
}

static cmq_status posix_read(cmq_file *file, uint64_t offset, void *into, size_t bytes)
{
    cmq_status status = check_range(file, offset, bytes);
    if (status != CMQ_OK) return status;
    uint8_t *at = into;
    for (size_t done = 0; done < bytes;) {
        const ssize_t got = pread(posix(file)->descriptor, at + done, bytes - done, (off_t)(offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return fail_file(file, "read", offset + done);
        if (got == 0)
            return cmq_fail_at(CMQ_ERR_CORRUPT, (int64_t)(offset + done),
                               "%s: file ends at or before byte %" PRIu64 ", %zu bytes wanted at %" PRIu64,
                               name_of(file), offset + done, bytes, offset);
        done += (size_t)got;
    }
    return CMQ_OK;
}

static cmq_status posix_write(cmq_file *file, uint64_t offset, const void *from, size_t bytes)
{
    cmq_status status = check_range(file, offset, bytes);
    if (status != CMQ_OK) return status;
    const uint8_t *at = from;
    for (size_t done = 0; done < bytes;) {
        const ssize_t put = pwrite(posix(file)->descriptor, at + done, bytes - done, (off_t)(offset + done));
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return fail_file(file, "write", offset + done);
        done += (size_t)put;
    }
    return CMQ_OK;
}

static cmq_status posix_sync(cmq_file *file)
{
    while (fdatasync(posix(file)->descriptor) != 0)
        if (errno != EINTR) return cmq_fail_errno(errno, "cannot sync %s", name_of(file));
    return CMQ_OK;
}

static cmq_status posix_resize(cmq_file *file, uint64_t bytes)
{
    cmq_status status = check_range(file, 0, bytes);
    if (status != CMQ_OK) return status;
    while (ftruncate(posix(file)->descriptor, (off_t)bytes) != 0)
        if (errno != EINTR) return fail_file(file, "set the length of", bytes);
    return CMQ_OK;
}

static cmq_status posix_info(cmq_file *file, cmq_file_info *info_out);

static cmq_status CMQ_MUST_CHECK write_zeros(cmq_file *file, uint64_t offset, uint64_t end)
{
    for (uint64_t at = offset; at < end;) {
        const uint64_t left = end - at;
        const size_t chunk = left < ZERO_CHUNK_BYTES ? (size_t)left : ZERO_CHUNK_BYTES;
        const cmq_status status = posix_write(file, at, zeros, chunk);
        if (status != CMQ_OK) return status;
        at += chunk;
    }
    return CMQ_OK;
}

/* Clip [offset, offset + bytes) to the file, for the fallbacks, which must not change its length. */
static cmq_status CMQ_MUST_CHECK clipped_end(cmq_file *file, uint64_t offset, uint64_t bytes, uint64_t *end_out)
{
    cmq_file_info info;
    const cmq_status status = posix_info(file, &info);
    if (status == CMQ_OK) *end_out = offset + bytes < info.bytes ? offset + bytes : info.bytes;
    return status;
}

/* Where fallocate is not known: zeros into the holes of the range. Where the file system does not tell holes either, it
 * reports all as data, and nothing is written: file systems like that (vfat) have no sparse files. */
static cmq_status CMQ_MUST_CHECK fill_holes(cmq_file *file, uint64_t offset, uint64_t bytes)
{
    uint64_t end;
    cmq_status status = clipped_end(file, offset, bytes, &end);
    while (status == CMQ_OK && offset < end) {
        const off_t hole = lseek(posix(file)->descriptor, (off_t)offset, SEEK_HOLE);
        if (hole < 0) return fail_file(file, "find a hole in", offset);
        if ((uint64_t)hole >= end) break;
        const off_t data = lseek(posix(file)->descriptor, hole, SEEK_DATA);
        if (data < 0 && errno != ENXIO) return fail_file(file, "find data in", (uint64_t)hole);
        offset = data < 0 || (uint64_t)data > end ? end : (uint64_t)data;
        status = write_zeros(file, (uint64_t)hole, offset);
    }
    return status;
}

static int allocate(cmq_file *file, int mode, uint64_t offset, uint64_t bytes)
{
    int failed;
    do {
        failed = fallocate(posix(file)->descriptor, mode, (off_t)offset, (off_t)bytes) == 0 ? 0 : errno;
    } while (failed == EINTR);
    errno = failed;
    return failed;
}

static bool not_supported(int failed) { return failed == EOPNOTSUPP || failed == ENOSYS; }

static cmq_status posix_reserve(cmq_file *file, uint64_t offset, uint64_t bytes)
{
    cmq_status status = check_range(file, offset, bytes);
    if (status != CMQ_OK || bytes == 0) return status;
    const int failed = allocate(file, FALLOC_FL_KEEP_SIZE, offset, bytes);
    if (failed == 0) return CMQ_OK;
    if (not_supported(failed)) return fill_holes(file, offset, bytes);
    return fail_file(file, "reserve space in", offset);
}

static cmq_status posix_punch(cmq_file *file, uint64_t offset, uint64_t bytes)
{
    cmq_status status = check_range(file, offset, bytes);
    if (status != CMQ_OK || bytes == 0) return status;
    const int failed = allocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, bytes);
    if (failed == 0) return CMQ_OK;
    if (!not_supported(failed)) return fail_file(file, "punch", offset);
    uint64_t end;
    status = clipped_end(file, offset, bytes, &end);
    return status != CMQ_OK ? status : write_zeros(file, offset, end);
}

static cmq_status posix_next_data(cmq_file *file, uint64_t offset, uint64_t *data_out)
{
    cmq_status status = check_range(file, offset, 0);
    if (status != CMQ_OK) return status;
    const off_t data = lseek(posix(file)->descriptor, (off_t)offset, SEEK_DATA);
    if (data < 0 && errno == ENXIO) return CMQ_END;
    if (data < 0) return fail_file(file, "find data in", offset);
    *data_out = (uint64_t)data;
    return CMQ_OK;
}

static cmq_status posix_next_hole(cmq_file *file, uint64_t offset, uint64_t *hole_out)
{
    cmq_status status = check_range(file, offset, 0);
    if (status != CMQ_OK) return status;
    const off_t hole = lseek(posix(file)->descriptor, (off_t)offset, SEEK_HOLE);
    if (hole < 0) return fail_file(file, "find holes in", offset);
    *hole_out = (uint64_t)hole;
    return CMQ_OK;
}

static void info_of_stat(const struct stat *from, cmq_file_info *info_out)
{
    *info_out = (cmq_file_info){
        .bytes = (uint64_t)from->st_size,
        .allocated_bytes = (uint64_t)from->st_blocks * 512u,   /* st_blocks counts 512, whatever the block size is */
        .modified_ms = (int64_t)from->st_mtim.tv_sec * 1000 + from->st_mtim.tv_nsec / 1000000,
        .is_directory = S_ISDIR(from->st_mode),
        .device = (uint64_t)from->st_dev,
        .inode = (uint64_t)from->st_ino,
    };
}

static cmq_status posix_info(cmq_file *file, cmq_file_info *info_out)
{
    struct stat from;
    if (fstat(posix(file)->descriptor, &from) != 0) return cmq_fail_errno(errno, "cannot stat %s", name_of(file));
    info_of_stat(&from, info_out);
    return CMQ_OK;
}

/* ---- mappings ---- */

/* Bytes from the start of the page to `address`: the kernel takes whole pages, callers give any range. */
static size_t lead_bytes_of(uintptr_t address) { return (size_t)(address % (uintptr_t)sysconf(_SC_PAGESIZE)); }

static cmq_status posix_map(cmq_file *file, uint64_t offset, size_t bytes, bool writable, uint8_t **address_out)
{
    cmq_file_info info = {0};   /* gcc -O3 cannot see that a failing posix_info never gives CMQ_OK */
    cmq_status status = check_range(file, offset, bytes);
    if (status == CMQ_OK) status = posix_info(file, &info);
    if (status != CMQ_OK) return status;
    if (bytes == 0 || offset > info.bytes || bytes > info.bytes - offset)   /* a touch outside would be SIGBUS */
        return cmq_fail_at(CMQ_ERR_ARGUMENT, (int64_t)offset,
                           "cannot map %zu bytes at %" PRIu64 " of %s, which has %" PRIu64, bytes, offset,
                           name_of(file), info.bytes);
    const size_t lead = lead_bytes_of((uintptr_t)offset);
    const int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
    uint8_t *mapped = mmap(NULL, bytes + lead, protection, MAP_SHARED, posix(file)->descriptor, (off_t)(offset - lead));
    if (mapped == MAP_FAILED) return fail_file(file, "map (is vm.max_map_count reached?)", offset);
    madvise(mapped, bytes + lead, MADV_RANDOM);   /* advice: without it reads are right, only slower */
    cmq_map_guard_add(mapped, bytes + lead, writable);
    *address_out = mapped + lead;
    return CMQ_OK;
}

static void posix_unmap(cmq_fs *self, uint8_t *address, size_t bytes)
{
    (void)self;
    const size_t lead = lead_bytes_of((uintptr_t)address);
    cmq_map_guard_remove(address - lead, bytes + lead);
    const int failed = munmap(address - lead, bytes + lead);
    CMQ_ASSERT(failed == 0);   /* only a range that was never mapped can fail */
}

static cmq_status posix_sync_mapped(cmq_file *file, uint8_t *address, size_t bytes)
{
    const size_t lead = lead_bytes_of((uintptr_t)address);
    while (msync(address - lead, bytes + lead, MS_SYNC) != 0)
        if (errno != EINTR) return cmq_fail_errno(errno, "cannot sync %zu mapped bytes of %s", bytes, name_of(file));
    return CMQ_OK;
}

/* ---- the two locks ---- */

static int set_lock(cmq_file *file, int command, short type, off_t at)
{
    struct flock wanted = {.l_type = type, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};
    return fcntl(posix(file)->descriptor, command, &wanted) == 0 ? 0 : errno;
}

static cmq_status CMQ_MUST_CHECK byte_holder(cmq_file *file, off_t at, int64_t *holder_pid_out)
{
    struct flock probe = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};
    if (fcntl(posix(file)->descriptor, F_GETLK, &probe) != 0)
        return cmq_fail_errno(errno, "cannot query the lock on %s", name_of(file));
    if (probe.l_type == F_UNLCK)
        *holder_pid_out = CMQ_LOCK_FREE;
    else
        /* the guard names nobody; nor do other hosts and pid namespaces */
        *holder_pid_out = probe.l_pid > 0 ? probe.l_pid : CMQ_LOCK_HOLDER_UNKNOWN;
    return CMQ_OK;
}

static cmq_status posix_lock_holder(cmq_file *file, int64_t *holder_pid_out)
{
    const cmq_status status = byte_holder(file, JAVA_BYTE, holder_pid_out);
    return status != CMQ_OK || *holder_pid_out != CMQ_LOCK_FREE ? status
                                                                : byte_holder(file, GUARD_BYTE, holder_pid_out);
}

static cmq_status posix_lock_is_guarded(cmq_file *file, bool *guarded_out)
{
    int64_t holder = CMQ_LOCK_FREE;
    const cmq_status status = byte_holder(file, GUARD_BYTE, &holder);
    *guarded_out = holder != CMQ_LOCK_FREE;
    return status;
}

/* The guard first: a writer whose record lock was lost must still find it free when it takes it again. */
static int try_both(cmq_file *file)
{
    const int guarded = set_lock(file, F_OFD_SETLK, F_WRLCK, GUARD_BYTE);
    if (guarded != 0 && guarded != EINVAL) return guarded;   /* EINVAL: the kernel has none */
    const int failed = set_lock(file, F_SETLK, F_WRLCK, JAVA_BYTE);
    if (failed != 0 && guarded == 0) set_lock(file, F_OFD_SETLK, F_UNLCK, GUARD_BYTE);
    return failed;
}

static void posix_unlock(cmq_file *file)
{
    set_lock(file, F_OFD_SETLK, F_UNLCK, GUARD_BYTE);
    set_lock(file, F_SETLK, F_UNLCK, JAVA_BYTE);
}

static cmq_status posix_lock(cmq_file *file, int64_t *holder_pid_out)
{
    int64_t holder = CMQ_LOCK_FREE;
    /* The holder may let go between the two calls; then take it after all. */
    for (int attempt = 0; attempt < LOCK_ATTEMPTS && holder == CMQ_LOCK_FREE; attempt++) {
        const int failed = try_both(file);
        if (failed == 0) return CMQ_OK;
        if (failed != EACCES && failed != EAGAIN) return cmq_fail_errno(failed, "cannot lock %s", name_of(file));
        const cmq_status status = posix_lock_holder(file, &holder);
        if (status != CMQ_OK) return status;
    }
    *holder_pid_out = holder > 0 ? holder : 0;
    return cmq_fail(CMQ_ERR_LOCKED, "%s is locked by process %" PRId64 "%s", name_of(file), *holder_pid_out,
                    holder > 0 ? "" : " (0: not known, perhaps in another container or host)");
}

/* ---- paths ---- */

/* Cut the last name off: "a/b/" becomes "a", "/a" becomes "/", "a" becomes ".". */
static void cut_to_parent(char path[CMQ_PATH_BYTES])
{
    size_t bytes = strlen(path);
    while (bytes > 1 && path[bytes - 1] == '/') bytes--;
    while (bytes > 0 && path[bytes - 1] != '/') bytes--;
    while (bytes > 1 && path[bytes - 1] == '/') bytes--;
    if (bytes == 0) path[bytes++] = '.';
    path[bytes] = '\0';
}

static cmq_status posix_stat(cmq_fs *self, const char *path, cmq_file_info *info_out)
{
    (void)self;
    struct stat from;
    const int descriptor = cmq_nofollow_open(path, O_PATH, 0);
    if (descriptor < 0 && (!cmq_nofollow_is_exhausted() || cmq_nofollow_look(path) != 0))
        return fail_path("stat", path);
    cmq_status status =
        (descriptor < 0 ? lstat(path, &from) : fstat(descriptor, &from)) == 0 ? CMQ_OK : fail_path("stat", path);
    if (descriptor >= 0) close(descriptor);
    if (status != CMQ_OK) return status;
    if (!S_ISREG(from.st_mode) && !S_ISDIR(from.st_mode)) {
        errno = 0;
        return fail_foreign("stat", path);
    }
    info_of_stat(&from, info_out);
    return CMQ_OK;
}

/* Resolves the longest prefix that exists and appends the rest as given. */
static cmq_status posix_resolve(cmq_fs *self, const char *path, char into[CMQ_PATH_BYTES])
{
    (void)self;
    char there[CMQ_PATH_BYTES], found[PATH_MAX];
    const size_t bytes = strlen(path);
    if (bytes == 0 || bytes >= CMQ_PATH_BYTES) return cmq_fail(CMQ_ERR_ARGUMENT, "a path has %zu bytes", bytes);
    memcpy(there, path, bytes + 1);
    size_t end = bytes;
    while (end > 1 && path[end - 1] == '/') end--;
    while (realpath(end == 0 ? "." : there, found) == NULL) {
        if (errno != ENOENT || end == 0) return cmq_fail_errno(errno, "cannot resolve %s", tail(path));
        while (end > 0 && path[end - 1] != '/') end--;
        while (end > 1 && path[end - 1] == '/') end--;
        there[end] = '\0';
    }
    const char *rest = path + end + strspn(path + end, "/");
    cmq_status status = cmq_path_join(into, found, rest);
    for (size_t last = strlen(into); status == CMQ_OK && last > 1 && into[last - 1] == '/'; last--)
        into[last - 1] = '\0';
    return status;
}

static int compare_names(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static bool append_name(char ***names, size_t *count, size_t *room, const char *name)
{
    if (*count == *room) {
        const size_t grown = *room == 0 ? 16 : *room * 2;
        char **moved = realloc(*names, grown * sizeof **names);
        if (moved == NULL) return false;
        *names = moved;
        *room = grown;
    }
    char *copy = strdup(name);
    if (copy == NULL) return false;
    (*names)[(*count)++] = copy;
    return true;
}

static cmq_status posix_list(cmq_fs *self, const char *path, char ***names_out, size_t *count_out)
{
    (void)self;
    const int descriptor = cmq_nofollow_open(path, O_RDONLY | O_DIRECTORY, 0);
    DIR *directory = descriptor < 0 ? NULL : fdopendir(descriptor);
    if (directory == NULL) {
        const cmq_status failed = fail_path("list", path);
        if (descriptor >= 0) close(descriptor);
        return failed;
    }
    char **names = NULL;
    size_t count = 0, room = 0;
    cmq_status status = CMQ_OK;
    while (status == CMQ_OK) {
        errno = 0;
        const struct dirent *entry = readdir(directory);
        if (entry == NULL) {
            if (errno != 0) status = fail_path("list", path);
            break;
        }
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        if (!append_name(&names, &count, &room, entry->d_name))
            status = cmq_fail(CMQ_ERR_MEMORY, "no memory to list %s", tail(path));
    }
    closedir(directory);
    if (status != CMQ_OK) {
        cmq_fs_free_names(names, count);
        return status;
    }
    if (count > 1) qsort(names, count, sizeof *names, compare_names);
    *names_out = names;
    *count_out = count;
    return CMQ_OK;
}

static cmq_status CMQ_MUST_CHECK open_to_sync(const char *path, int *descriptor_out)
{
    *descriptor_out = cmq_nofollow_open(path, O_RDONLY | O_DIRECTORY, 0);
    return *descriptor_out < 0 ? fail_path("open for a sync", path) : CMQ_OK;
}

static cmq_status posix_sync_directory(cmq_fs *self, const char *path)
{
    (void)self;
    int descriptor;
    cmq_status status = open_to_sync(path, &descriptor);
    if (status != CMQ_OK) return status;
    if (fsync(descriptor) != 0) status = fail_path("sync directory", path);
    close(descriptor);
    return status;
}

static cmq_status posix_sync_all(cmq_fs *self, const char *path)
{
    int descriptor;
    if (!cmq_host_syncfs_reports()) return cmq_fs_sync_tree(self, path);
    cmq_status status = open_to_sync(path, &descriptor);
    if (status != CMQ_OK) return status;
    if (syncfs(descriptor) != 0) status = fail_path("sync the file system of", path);
    close(descriptor);
    return status;
}

/* Make `path`, whose parent exists, and with `synced` make its name durable. */
static cmq_status CMQ_MUST_CHECK make_one(cmq_fs *self, const char *path, bool synced)
{
    const char *name;
    cmq_file_info info = {0};
    const int folder = cmq_nofollow_parent(path, &name);
    if (folder < 0) return fail_path("make directory", path);
    const int failed = mkdirat(folder, name, 0777) == 0 ? 0 : errno;
    close(folder);
    errno = failed;
    if (failed != 0 && failed != EEXIST) return fail_path("make directory", path);
    if (failed == EEXIST) {
        const cmq_status status = posix_stat(self, path, &info);
        return status == CMQ_OK && !info.is_directory ? cmq_fail_errno(ENOTDIR, "cannot make directory %s", tail(path))
                                                      : status;
    }
    if (!synced) return CMQ_OK;
    char parent[CMQ_PATH_BYTES];
    memcpy(parent, path, strlen(path) + 1);
    cut_to_parent(parent);
    return posix_sync_directory(self, parent);
}

static cmq_status CMQ_MUST_CHECK make_all(cmq_fs *self, const char *path, bool synced)
{
    char prefix[CMQ_PATH_BYTES];
    const size_t bytes = strlen(path);
    if (bytes == 0 || bytes >= CMQ_PATH_BYTES)
        return cmq_fail(CMQ_ERR_ARGUMENT, "a directory's path has %zu bytes", bytes);
    cmq_file_info info = {0};
    if (posix_stat(self, path, &info) == CMQ_OK && info.is_directory) return CMQ_OK;
    /* From the first name down; each prefix ends in front of a slash, or is the whole. */
    for (size_t end = 1; end <= bytes; end++) {
        if (end < bytes && path[end] != '/') continue;
        memcpy(prefix, path, end);
        prefix[end] = '\0';
        if (prefix[end - 1] == '/') continue;   /* "/", or a doubled slash */
        const cmq_status status = make_one(self, prefix, synced);
        if (status != CMQ_OK) return status;
    }
    return CMQ_OK;
}

static cmq_status posix_make_directory(cmq_fs *self, const char *path) { return make_all(self, path, true); }
static cmq_status posix_make_directory_unsynced(cmq_fs *self, const char *path) { return make_all(self, path, false); }

/* A link is removed itself. */
static cmq_status CMQ_MUST_CHECK remove_name(const char *what, const char *path, int flags)
{
    const char *name;
    int folder = cmq_nofollow_parent(path, &name);
    if (folder < 0 && (!cmq_nofollow_is_exhausted() || cmq_nofollow_look(path) != 0)) return fail_path(what, path);
    const bool exhausted = folder < 0;
    if (exhausted) folder = AT_FDCWD;
    const cmq_status status = unlinkat(folder, exhausted ? path : name, flags) == 0 ? CMQ_OK : fail_path(what, path);
    if (!exhausted) close(folder);
    return status;
}

static cmq_status posix_remove(cmq_fs *self, const char *path)
{
    (void)self;
    return remove_name("remove", path, 0);
}

static cmq_status posix_remove_directory(cmq_fs *self, const char *path)
{
    (void)self;
    return remove_name("remove directory", path, AT_REMOVEDIR);
}

static cmq_status posix_rename(cmq_fs *self, const char *from, const char *to)
{
    (void)self;
    const char *from_name = "", *to_name = "";
    const int from_folder = cmq_nofollow_parent(from, &from_name);
    const int to_folder = from_folder < 0 ? -1 : cmq_nofollow_parent(to, &to_name);
    cmq_status status = CMQ_OK;
    if (to_folder < 0) status = fail_path("rename", from_folder < 0 ? from : to);
    else if (renameat(from_folder, from_name, to_folder, to_name) != 0)
        status = cmq_fail_errno(errno, "cannot rename %.200s to %.200s", tail(from), tail(to));
    if (from_folder >= 0) close(from_folder);
    if (to_folder >= 0) close(to_folder);
    return status;
}

static cmq_status posix_disk_space(cmq_fs *self, const char *path, cmq_disk_space *space_out)
{
    (void)self;
    struct statvfs from;
    const int descriptor = cmq_nofollow_open(path, O_PATH, 0);
    int failed = descriptor < 0 ? errno : 0;
    if (failed != 0 && cmq_nofollow_is_exhausted() && cmq_nofollow_look(path) == 0) failed = 0;
    while (failed == 0 && (descriptor < 0 ? statvfs(path, &from) : fstatvfs(descriptor, &from)) != 0)
        if (errno != EINTR) failed = errno;
    if (descriptor >= 0) close(descriptor);
    errno = failed;
    if (failed != 0) return fail_path("ask the free space of", path);
    space_out->total_bytes = (uint64_t)from.f_blocks * from.f_frsize;
    space_out->free_bytes = (uint64_t)from.f_bfree * from.f_frsize;
    space_out->usable_bytes = (uint64_t)from.f_bavail * from.f_frsize;
    return CMQ_OK;
}

static cmq_status posix_overwrites(cmq_fs *self, const char *path, cmq_overwrites *overwrites_out)
{
    (void)self;
    const int descriptor = cmq_nofollow_open(path, O_RDONLY | O_NONBLOCK, 0);
    if (descriptor < 0 && errno == ENOENT) return fail_path("open", path);
    if (descriptor < 0) return CMQ_OK;   /* not to be found out: in place */
    *overwrites_out = cmq_file_overwrites_of(descriptor);
    close(descriptor);
    return CMQ_OK;
}

static const cmq_fs_ops posix_ops = {
    .open = posix_open,
    .close = posix_close,
    .read = posix_read,
    .write = posix_write,
    .sync = posix_sync,
    .resize = posix_resize,
    .reserve = posix_reserve,
    .punch = posix_punch,
    .next_data = posix_next_data,
    .next_hole = posix_next_hole,
    .info = posix_info,
    .map = posix_map,
    .unmap = posix_unmap,
    .sync_mapped = posix_sync_mapped,
    .lock = posix_lock,
    .unlock = posix_unlock,
    .lock_holder = posix_lock_holder,
    .lock_is_guarded = posix_lock_is_guarded,
    .stat = posix_stat,
    .list = posix_list,
    .make_directory = posix_make_directory,
    .make_directory_unsynced = posix_make_directory_unsynced,
    .remove = posix_remove,
    .remove_directory = posix_remove_directory,
    .rename = posix_rename,
    .sync_directory = posix_sync_directory,
    .sync_all = posix_sync_all,
    .disk_space = posix_disk_space,
    .resolve = posix_resolve,
    .overwrites = posix_overwrites,
};

cmq_fs *cmq_fs_posix(void)
{
    static cmq_fs system = {.ops = &posix_ops};
    return &system;
}
