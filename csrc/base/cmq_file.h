/* cmq_file: the only place that opens, maps, writes, syncs, renames or removes files.
 *
 * Everything above names a `cmq_fs`; cmq_fs_posix() is the system's, and the tests replace it by one that tracks synced
 * bytes, drops the others, and fails chosen calls. So no code above this file calls open, pwrite, fsync, mmap, rename
 * or unlink itself.
 *
 * No symbolic link in a path is followed, and nothing is opened but files and directories: CMQ_ERR_NOT_STORE for
 * others. A path that an operator gives (a store's root, a folder of the log) may hold links: cmq_fs_resolve first.
 *
 * Owns:       descriptors and mappings until closed or unmapped.
 * Durability: write puts bytes into the page cache; sync makes a file's bytes and length durable; sync_directory makes
 *             creations, renames and removals inside a directory durable.
 * Threads:    a cmq_fs and a cmq_file may be used from any thread; close and unmap race nothing (the caller's duty).
 * Errors:     every function sets the thread's last error with the path; EINTR and short reads and writes are finished
 *             inside, except that reading past the end of the file gives CMQ_ERR_CORRUPT ("file ends at …").
 */
#ifndef CMQ_FILE_H
#define CMQ_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cmq_status.h"

#define CMQ_PATH_BYTES 4096

typedef struct cmq_fs cmq_fs;
typedef struct cmq_file cmq_file;

typedef enum cmq_open_mode {
    CMQ_OPEN_READ = 0,       /* existing file, read-only */
    CMQ_OPEN_WRITE = 1,      /* existing file, read-write */
    CMQ_OPEN_CREATE = 2,     /* read-write, created when missing, kept when there */
    CMQ_OPEN_CREATE_NEW = 3  /* read-write, CMQ_ERR_IO with EEXIST when there */
} cmq_open_mode;

typedef struct cmq_file_info {
    uint64_t bytes;            /* length */
    uint64_t allocated_bytes;  /* on disk; less than bytes when sparse */
    int64_t modified_ms;       /* modification time, milliseconds since the epoch */
    bool is_directory;
    uint64_t device;           /* with inode: the same file, whatever its path */
    uint64_t inode;
} cmq_file_info;

/* Results of lock_holder that are not process ids. */
#define CMQ_LOCK_FREE INT64_C(0)
#define CMQ_LOCK_HOLDER_UNKNOWN INT64_C(-1)   /* locked, by a process of another host or process-id namespace */

typedef struct cmq_disk_space {
    uint64_t total_bytes;
    uint64_t free_bytes;       /* free for root */
    uint64_t usable_bytes;     /* free for this user */
} cmq_disk_space;

/* The used share as df prints it: blocks reserved for root count neither as used nor as available. */
static inline double cmq_disk_used_ratio(const cmq_disk_space *space)
{
    const uint64_t used = space->total_bytes - space->free_bytes;
    return used + space->usable_bytes > 0 ? (double)used / (double)(used + space->usable_bytes) : 0.0;
}

/* How the file system overwrites blocks that have bytes already. */
typedef enum cmq_overwrites {
    CMQ_OVERWRITES_IN_PLACE = 0,
    CMQ_OVERWRITES_COPIED = 1,      /* the file system writes them elsewhere: each write needs free blocks */
    CMQ_OVERWRITES_SHARED = 2       /* this file shares them with a copy (a reflink) until they are written */
} cmq_overwrites;

/* The operations of a file system. `self` is the cmq_fs; each behaves as the cmq_file_* or cmq_fs_* function of its
 * name below. */
typedef struct cmq_fs_ops {
    cmq_status (*open)(cmq_fs *self, const char *path, cmq_open_mode mode, cmq_file **file_out);
    void (*close)(cmq_file *file);
    cmq_status (*read)(cmq_file *file, uint64_t offset, void *into, size_t bytes);
    cmq_status (*write)(cmq_file *file, uint64_t offset, const void *from, size_t bytes);
    cmq_status (*sync)(cmq_file *file);
    cmq_status (*resize)(cmq_file *file, uint64_t bytes);
    cmq_status (*reserve)(cmq_file *file, uint64_t offset, uint64_t bytes);
    cmq_status (*punch)(cmq_file *file, uint64_t offset, uint64_t bytes);
    cmq_status (*next_data)(cmq_file *file, uint64_t offset, uint64_t *data_out);
    cmq_status (*next_hole)(cmq_file *file, uint64_t offset, uint64_t *hole_out);
    cmq_status (*info)(cmq_file *file, cmq_file_info *info_out);
    cmq_status (*map)(cmq_file *file, uint64_t offset, size_t bytes, bool writable, uint8_t **address_out);
    void (*unmap)(cmq_fs *self, uint8_t *address, size_t bytes);
    cmq_status (*sync_mapped)(cmq_file *file, uint8_t *address, size_t bytes);
    cmq_status (*lock)(cmq_file *file, int64_t *holder_pid_out);
    void (*unlock)(cmq_file *file);
    cmq_status (*lock_holder)(cmq_file *file, int64_t *holder_pid_out);
    cmq_status (*lock_is_guarded)(cmq_file *file, bool *guarded_out);

    cmq_status (*stat)(cmq_fs *self, const char *path, cmq_file_info *info_out);
    cmq_status (*list)(cmq_fs *self, const char *path, char ***names_out, size_t *count_out);
    cmq_status (*make_directory)(cmq_fs *self, const char *path);
    cmq_status (*make_directory_unsynced)(cmq_fs *self, const char *path);
    cmq_status (*remove)(cmq_fs *self, const char *path);
    cmq_status (*remove_directory)(cmq_fs *self, const char *path);
    cmq_status (*rename)(cmq_fs *self, const char *from, const char *to);
    cmq_status (*sync_directory)(cmq_fs *self, const char *path);
    cmq_status (*sync_all)(cmq_fs *self, const char *path);
    cmq_status (*disk_space)(cmq_fs *self, const char *path, cmq_disk_space *space_out);
    cmq_status (*resolve)(cmq_fs *self, const char *path, char into[CMQ_PATH_BYTES]);   /* NULL: there are no links */
    cmq_status (*overwrites)(cmq_fs *self, const char *path, cmq_overwrites *overwrites_out);   /* NULL: in place */
} cmq_fs_ops;

struct cmq_fs {
    const cmq_fs_ops *ops;
};

/* Each implementation embeds this as the first member of its own file struct. */
struct cmq_file {
    cmq_fs *fs;
};

/* The system's file system; static, never closed. */
cmq_fs *cmq_fs_posix(void);

/* ---- one file ---- */

static inline cmq_status CMQ_MUST_CHECK cmq_file_open(cmq_fs *fs, const char *path, cmq_open_mode mode,
                                                      cmq_file **file_out)
{
    return fs->ops->open(fs, path, mode, file_out);   /* *file_out owned: cmq_file_close */
}

/* Close; NULL is fine. Mappings made from the file stay valid until unmapped. */
static inline void cmq_file_close(cmq_file *file)
{
    if (file != NULL) file->fs->ops->close(file);
}

/* Read exactly `bytes`; CMQ_ERR_CORRUPT when the file ends before. */
static inline cmq_status CMQ_MUST_CHECK cmq_file_read(cmq_file *file, uint64_t offset, void *into, size_t bytes)
{
    return file->fs->ops->read(file, offset, into, bytes);
}

/* Write exactly `bytes`, or fail having written an unknown part. */
static inline cmq_status CMQ_MUST_CHECK cmq_file_write(cmq_file *file, uint64_t offset, const void *from, size_t bytes)
{
    return file->fs->ops->write(file, offset, from, bytes);
}

/* fdatasync: the file's bytes, and its length if that changed, are durable. After a failure nothing more may be
 * acknowledged from this file (the kernel may have dropped the dirty pages). Never retried. */
static inline cmq_status CMQ_MUST_CHECK cmq_file_sync(cmq_file *file) { return file->fs->ops->sync(file); }

/* Set the length; new bytes read as zero and take no space. */
static inline cmq_status CMQ_MUST_CHECK cmq_file_resize(cmq_file *file, uint64_t bytes)
{
    return file->fs->ops->resize(file, bytes);
}

/* Allocate blocks for a range without changing bytes or length, so that later stores into a map cannot meet a full disk
 * (which would be SIGBUS). CMQ_ERR_DISK_FULL when there is no space. Where the file system cannot, zeros are written
 * into the holes inside the file's length: no other thread may store into a hole of the range meanwhile. */
static inline cmq_status CMQ_MUST_CHECK cmq_file_reserve(cmq_file *file, uint64_t offset, uint64_t bytes)
{
    return file->fs->ops->reserve(file, offset, bytes);
}

/* Make a range read as zero, giving its blocks back where the file system can; the length stays. */
static inline cmq_status CMQ_MUST_CHECK cmq_file_punch(cmq_file *file, uint64_t offset, uint64_t bytes)
{
    return file->fs->ops->punch(file, offset, bytes);
}

/* The first byte at or after `offset` that may be non-zero (SEEK_DATA); CMQ_END when all is hole. */
static inline cmq_status CMQ_MUST_CHECK cmq_file_next_data(cmq_file *file, uint64_t offset, uint64_t *data_out)
{
    return file->fs->ops->next_data(file, offset, data_out);
}

/* The first byte at or after `offset`, which lies in the file, that begins a hole (SEEK_HOLE); the file's length when
 * none does. */
static inline cmq_status CMQ_MUST_CHECK cmq_file_next_hole(cmq_file *file, uint64_t offset, uint64_t *hole_out)
{
    return file->fs->ops->next_hole(file, offset, hole_out);
}

static inline cmq_status CMQ_MUST_CHECK cmq_file_info_of(cmq_file *file, cmq_file_info *info_out)
{
    return file->fs->ops->info(file, info_out);
}

/* Map [offset, offset + bytes) shared, with random access advised (read-around on sparse files costs milliseconds).
 * The range must lie inside the file, else CMQ_ERR_ARGUMENT; it need not be page-aligned. */
static inline cmq_status CMQ_MUST_CHECK cmq_file_map(cmq_file *file, uint64_t offset, size_t bytes, bool writable,
                                                     uint8_t **address_out)
{
    return file->fs->ops->map(file, offset, bytes, writable, address_out);
}

/* `file` is the one it was mapped from, or any of the same file system. */
static inline void cmq_file_unmap(cmq_file *file, uint8_t *address, size_t bytes)
{
    file->fs->ops->unmap(file->fs, address, bytes);
}

/* The same when no file is open any more. */
static inline void cmq_fs_unmap(cmq_fs *fs, uint8_t *address, size_t bytes) { fs->ops->unmap(fs, address, bytes); }

/* Make mapped bytes durable; `address` need not be page-aligned. Failure as in cmq_file_sync. */
static inline cmq_status CMQ_MUST_CHECK cmq_file_sync_mapped(cmq_file *file, uint8_t *address, size_t bytes)
{
    return file->fs->ops->sync_mapped(file, address, bytes);
}

/* Take two exclusive locks of one byte each. Byte 0 by a POSIX record lock, as a Java broker does; it vanishes when ANY
 * descriptor of the file is closed in this process. A byte far behind the end by an open file description lock, which
 * only unlock, or closing the last copy of this descriptor, drops; forked children have copies. CMQ_ERR_LOCKED with the
 * holder's process id (0 when unknown) when another process has either. Repeating the call on the same file takes a
 * lost record lock again, in one or two system calls. Where the kernel has no such second lock (Linux before 3.15), the
 * record lock is all. */
static inline cmq_status CMQ_MUST_CHECK cmq_file_lock(cmq_file *file, int64_t *holder_pid_out)
{
    return file->fs->ops->lock(file, holder_pid_out);
}

/* Drop both, also while a forked child still has a copy of the descriptor. */
static inline void cmq_file_unlock(cmq_file *file) { file->fs->ops->unlock(file); }

/* Which other process has one of them: its id, CMQ_LOCK_FREE or CMQ_LOCK_HOLDER_UNKNOWN. This process's own record lock
 * counts as free. Closing `file` afterwards drops a record lock that this process has: ask through cmq_lock_probe,
 * which knows. */
static inline cmq_status CMQ_MUST_CHECK cmq_file_lock_holder(cmq_file *file, int64_t *holder_pid_out)
{
    return file->fs->ops->lock_holder(file, holder_pid_out);
}

/* Does another open file have the second lock, which a Java broker does not take? */
static inline cmq_status CMQ_MUST_CHECK cmq_file_lock_is_guarded(cmq_file *file, bool *guarded_out)
{
    return file->fs->ops->lock_is_guarded(file, guarded_out);
}

/* Fault every page of a writable mapping in for writing, changing no byte, so that later stores meet no fault
 * (prewarming: see spec native.md 1; MADV_POPULATE_WRITE, else one write of the same value per page). Safe beside
 * threads that store into the range. It dirties the pages: reserve the range first, else a full disk may be SIGBUS
 * where the kernel is older than 5.14, and is CMQ_ERR_DISK_FULL where it is not; call it in steps of a few MiB, for a
 * concurrent sync writes all dirty pages. */
cmq_status CMQ_MUST_CHECK cmq_file_populate(uint8_t *address, size_t bytes);

/* Read every page of a range of a mapping in, so that loads from it meet no fault. False where one cannot be read,
 * which a load would be SIGBUS for, or where the kernel cannot say (MADV_POPULATE_READ: Linux 5.14). */
bool cmq_file_populate_read(const uint8_t *address, size_t bytes);

/* Begin to read a range of a mapping into memory, without waiting for it. Advice: a walk over pages that are on disk
 * only gets each alone otherwise, for cmq_file_map advises random access (28 s per GiB against 1). Costs nothing to
 * speak of where they are in memory. */
void cmq_file_read_ahead(const uint8_t *address, size_t bytes);

/* ---- paths ---- */

/* CMQ_ERR_NOT_FOUND when there is none. */
static inline cmq_status CMQ_MUST_CHECK cmq_fs_stat(cmq_fs *fs, const char *path, cmq_file_info *info_out)
{
    return fs->ops->stat(fs, path, info_out);
}

/* into = `path`, absolute and without symbolic links; components that do not exist yet are kept as given. `into` must
 * not be `path`. */
cmq_status CMQ_MUST_CHECK cmq_fs_resolve(cmq_fs *fs, const char *path, char into[CMQ_PATH_BYTES]);

/* Names in a directory, without "." and "..", sorted by bytes. Owned: cmq_fs_free_names. */
static inline cmq_status CMQ_MUST_CHECK cmq_fs_list(cmq_fs *fs, const char *path, char ***names_out, size_t *count_out)
{
    return fs->ops->list(fs, path, names_out, count_out);
}
void cmq_fs_free_names(char **names, size_t count);

/* Make a directory and its missing parents; being there already is fine. Each parent of a new one is synced. */
static inline cmq_status CMQ_MUST_CHECK cmq_fs_make_directory(cmq_fs *fs, const char *path)
{
    return fs->ops->make_directory(fs, path);
}

/* The same without a sync: durable once every parent of a new one is synced. For tens of thousands of directories,
 * synced together. */
static inline cmq_status CMQ_MUST_CHECK cmq_fs_make_directory_unsynced(cmq_fs *fs, const char *path)
{
    return fs->ops->make_directory_unsynced(fs, path);
}

/* CMQ_OK where a store's directory is there. Ask before folders in it are made while it is open: a store that was moved
 * is not created again at its old place. */
cmq_status CMQ_MUST_CHECK cmq_fs_require_root(cmq_fs *fs, const char *root);

/* cmq_fs_make_directory for a folder of the store in `root`, with that question before. */
cmq_status CMQ_MUST_CHECK cmq_fs_make_directory_in(cmq_fs *fs, const char *root, const char *path);

/* Remove a file; CMQ_ERR_NOT_FOUND when there is none. */
static inline cmq_status CMQ_MUST_CHECK cmq_fs_remove(cmq_fs *fs, const char *path)
{
    return fs->ops->remove(fs, path);
}

/* Remove an empty directory. */
static inline cmq_status CMQ_MUST_CHECK cmq_fs_remove_directory(cmq_fs *fs, const char *path)
{
    return fs->ops->remove_directory(fs, path);
}

static inline cmq_status CMQ_MUST_CHECK cmq_fs_rename(cmq_fs *fs, const char *from, const char *to)
{
    return fs->ops->rename(fs, from, to);
}

static inline cmq_status CMQ_MUST_CHECK cmq_fs_sync_directory(cmq_fs *fs, const char *path)
{
    return fs->ops->sync_directory(fs, path);
}

/* Sync each file, but `lock`, and each directory of the tree at `path`; entries that vanish meanwhile are skipped. */
cmq_status CMQ_MUST_CHECK cmq_fs_sync_tree(cmq_fs *fs, const char *path);

/* syncfs of the file system that holds `path`: cheaper than tens of thousands of single syncs. Where the kernel's does
 * not report failures (before Linux 5.8), cmq_fs_sync_tree in its place. */
static inline cmq_status CMQ_MUST_CHECK cmq_fs_sync_all(cmq_fs *fs, const char *path)
{
    return fs->ops->sync_all(fs, path);
}

static inline cmq_status CMQ_MUST_CHECK cmq_fs_disk_space(cmq_fs *fs, const char *path, cmq_disk_space *space_out)
{
    return fs->ops->disk_space(fs, path, space_out);
}

/* How a file, or the files that are made in a directory, are overwritten. Where it cannot be found out: in place. */
static inline cmq_status CMQ_MUST_CHECK cmq_fs_overwrites(cmq_fs *fs, const char *path, cmq_overwrites *overwrites_out)
{
    *overwrites_out = CMQ_OVERWRITES_IN_PLACE;
    return fs->ops->overwrites == NULL ? CMQ_OK : fs->ops->overwrites(fs, path, overwrites_out);
}

/* ---- paths as text ---- */

/* into = a/b, checked; CMQ_ERR_ARGUMENT when it does not fit CMQ_PATH_BYTES. `into` may be `a`; an empty side adds no
 * slash. */
cmq_status CMQ_MUST_CHECK cmq_path_join(char into[CMQ_PATH_BYTES], const char *a, const char *b);

/* The 20-digit, zero-padded name of the file that starts at `offset`. */
#define CMQ_OFFSET_NAME_BYTES 21
void cmq_path_offset_name(char into[CMQ_OFFSET_NAME_BYTES], int64_t offset);

/* The offset that such a name says; CMQ_ERR_NOT_STORE when it is not exactly 20 digits within i64. */
cmq_status CMQ_MUST_CHECK cmq_path_parse_offset_name(const char *name, int64_t *offset_out);

#endif
