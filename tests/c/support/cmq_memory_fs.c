/* cmq_memory_fs: see cmq_memory_fs.h. */
#include "support/cmq_memory_fs.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cmq_name_hash.h"
#include "support/cmq_test.h"

#define PAGE_BYTES UINT64_C(4096)
#define FILE_BYTES_MAX (UINT64_C(256) << 20)
#define DEVICE UINT64_C(0x6d656d)
#define DISK_BYTES (UINT64_C(1) << 40)
#define CHAINS 16384u

typedef struct memory_file memory_file;

typedef struct memory_node memory_node;
struct memory_node {
    memory_node *parent;             /* NULL: the root, or no name is left */
    memory_node *children;           /* of a directory, unsorted */
    memory_node *next, *previous;    /* in its directory */
    memory_node *chained;            /* in its chain of names */
    char *name;
    size_t name_bytes;
    bool is_directory;
    uint8_t *data;                   /* `room` bytes; those behind `bytes` are zero */
    uint64_t bytes, room;
    uint64_t inode;
    int64_t modified_ms;
    uint32_t handles, mappings;
    const memory_file *locker;       /* NULL: not locked */
};

struct memory_file {
    cmq_file base;
    memory_node *node;
    bool writable;
};

typedef struct memory_mapping {
    const uint8_t *address;
    size_t bytes;
    memory_node *node;
} memory_mapping;

struct cmq_memory_fs {
    cmq_fs base;
    pthread_mutex_t mutex;           /* guards all below */
    memory_node *root;
    memory_node *names[CHAINS];      /* all nodes but the root, by directory and name: directories may be large */
    memory_mapping *mappings;
    size_t mapping_count, mapping_room;
    uint64_t inodes;
};

static cmq_memory_fs *memory_of(cmq_fs *fs) { return (cmq_memory_fs *)fs; }

static memory_file *opened(cmq_file *file) { return (memory_file *)file; }

static memory_node *enter_node(cmq_file *file)
{
    pthread_mutex_lock(&memory_of(file->fs)->mutex);
    return opened(file)->node;
}

static void leave(cmq_fs *fs) { pthread_mutex_unlock(&memory_of(fs)->mutex); }

/* ---- nodes; all with the mutex ---- */

static int64_t clock_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME_COARSE, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static memory_node **chain_of(cmq_memory_fs *memory, const memory_node *directory, const char *name, size_t bytes)
{
    const cmq_slice text = {.data = (const uint8_t *)name, .bytes = bytes};
    return &memory->names[(cmq_name_hash(text) ^ directory->inode * 0x9E3779B9u) % CHAINS];
}

/* The node is its directory's, under its name. */
static void link_node(cmq_memory_fs *memory, memory_node *node, memory_node *directory)
{
    memory_node **chain = chain_of(memory, directory, node->name, node->name_bytes);
    node->parent = directory;
    node->previous = NULL;
    node->next = directory->children;
    if (node->next != NULL) node->next->previous = node;
    directory->children = node;
    node->chained = *chain;
    *chain = node;
}

static memory_node *make_node(cmq_memory_fs *memory, memory_node *parent, const char *name, size_t name_bytes,
                              bool is_directory)
{
    memory_node *node = calloc(1, sizeof *node);
    CHECK(node != NULL);
    node->name = strndup(name, name_bytes);
    CHECK(node->name != NULL);
    node->name_bytes = name_bytes;
    node->is_directory = is_directory;
    node->inode = ++memory->inodes;
    node->modified_ms = clock_ms();
    if (parent != NULL) link_node(memory, node, parent);
    return node;
}

static void free_unless_used(memory_node *node)
{
    if (node->parent != NULL || node->handles > 0 || node->mappings > 0) return;
    free(node->data);
    free(node->name);
    free(node);
}

static void unlink_node(cmq_memory_fs *memory, memory_node *node)
{
    memory_node **link = chain_of(memory, node->parent, node->name, node->name_bytes);
    while (*link != node) link = &(*link)->chained;
    *link = node->chained;
    if (node->next != NULL) node->next->previous = node->previous;
    *(node->previous != NULL ? &node->previous->next : &node->parent->children) = node->next;
    node->parent = NULL;
}

static memory_node *child_of(cmq_memory_fs *memory, const memory_node *directory, const char *name, size_t bytes)
{
    for (memory_node *node = *chain_of(memory, directory, name, bytes); node != NULL; node = node->chained)
        if (node->parent == directory && node->name_bytes == bytes && memcmp(node->name, name, bytes) == 0) return node;
    return NULL;
}

/* The next name of a path; 0 at its end. */
static size_t next_name(const char **rest)
{
    *rest += strspn(*rest, "/");
    return strcspn(*rest, "/");
}

/* The node at `path`, or NULL with errno. Where only its last name is missing, *parent_out is its directory and
 * *name_out the name; else NULL. */
static memory_node *find(cmq_memory_fs *memory, const char *path, memory_node **parent_out, const char **name_out)
{
    memory_node *at = memory->root;
    const char *rest = path;
    *parent_out = NULL;
    for (size_t bytes = next_name(&rest); bytes > 0; bytes = next_name(&rest)) {
        errno = ENOTDIR;
        if (!at->is_directory) return NULL;
        memory_node *below = child_of(memory, at, rest, bytes);
        if (below == NULL) {
            errno = ENOENT;
            *name_out = rest;
            rest += bytes;
            if (next_name(&rest) == 0) *parent_out = at;
            return NULL;
        }
        at = below;
        rest += bytes;
    }
    return at;
}

static void need_room(memory_node *node, uint64_t bytes)
{
    if (bytes <= node->room) return;
    if (bytes > FILE_BYTES_MAX)
        cmq_test_fail(__FILE__, __LINE__, "%s: %" PRIu64 " bytes are too many for a file in memory", node->name, bytes);
    if (node->mappings > 0)
        cmq_test_fail(__FILE__, __LINE__, "%s: a mapped file in memory cannot grow to %" PRIu64 " bytes", node->name,
                      bytes);
    uint64_t room = PAGE_BYTES;
    while (room < bytes) room *= 2;
    void *data;
    CHECK(posix_memalign(&data, PAGE_BYTES, (size_t)room) == 0);
    if (node->bytes > 0) memcpy(data, node->data, (size_t)node->bytes);
    memset((uint8_t *)data + node->bytes, 0, (size_t)(room - node->bytes));
    free(node->data);
    node->data = data;
    node->room = room;
}

static void set_length(memory_node *node, uint64_t bytes)
{
    need_room(node, bytes);
    if (bytes < node->bytes) memset(node->data + bytes, 0, (size_t)(node->bytes - bytes));
    node->bytes = bytes;
    node->modified_ms = clock_ms();
}

static void info_of(const memory_node *node, cmq_file_info *info_out)
{
    *info_out = (cmq_file_info){.bytes = node->bytes,
                                .allocated_bytes = (node->bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES,
                                .modified_ms = node->modified_ms,
                                .is_directory = node->is_directory,
                                .device = DEVICE,
                                .inode = node->inode};
}

/* ---- files ---- */

static cmq_status memory_open(cmq_fs *self, const char *path, cmq_open_mode mode, cmq_file **file_out)
{
    cmq_memory_fs *memory = memory_of(self);
    memory_node *parent;
    const char *name;
    int failed = 0;
    pthread_mutex_lock(&memory->mutex);
    memory_node *node = find(memory, path, &parent, &name);
    if (node == NULL && (mode == CMQ_OPEN_READ || mode == CMQ_OPEN_WRITE || parent == NULL)) failed = errno;
    else if (node == NULL) node = make_node(memory, parent, name, strcspn(name, "/"), false);
    else if (mode == CMQ_OPEN_CREATE_NEW) failed = EEXIST;
    else if (node->is_directory) failed = EISDIR;
    if (failed == 0) {
        memory_file *file = malloc(sizeof *file);
        CHECK(file != NULL);
        *file = (memory_file){.base = {.fs = self}, .node = node, .writable = mode != CMQ_OPEN_READ};
        node->handles++;
        *file_out = &file->base;
    }
    leave(self);
    return failed == 0 ? CMQ_OK : cmq_fail_errno(failed, "cannot open %.400s", path);
}

static void memory_close(cmq_file *file)
{
    memory_node *node = enter_node(file);
    cmq_fs *fs = file->fs;
    if (node->locker == opened(file)) node->locker = NULL;
    node->handles--;
    free_unless_used(node);
    free(file);
    leave(fs);
}

static cmq_status memory_read(cmq_file *file, uint64_t offset, void *into, size_t bytes)
{
    const memory_node *node = enter_node(file);
    const uint64_t end = node->bytes;
    const bool fits = offset <= end && bytes <= end - offset;
    if (fits && bytes > 0) memcpy(into, node->data + offset, bytes);
    leave(file->fs);
    return fits ? CMQ_OK
                : cmq_fail_at(CMQ_ERR_CORRUPT, (int64_t)end,
                              "file ends at %" PRIu64 ", %zu bytes were wanted at %" PRIu64, end, bytes, offset);
}

static cmq_status CMQ_MUST_CHECK check_writable(const memory_file *file)
{
    return file->writable ? CMQ_OK : cmq_fail_errno(EBADF, "cannot change %s", file->node->name);
}

static cmq_status memory_write(cmq_file *file, uint64_t offset, const void *from, size_t bytes)
{
    const cmq_status status = check_writable(opened(file));
    if (status != CMQ_OK || bytes == 0) return status;
    memory_node *node = enter_node(file);
    if (offset + bytes > node->bytes) set_length(node, offset + bytes);
    memcpy(node->data + offset, from, bytes);
    node->modified_ms = clock_ms();
    leave(file->fs);
    return CMQ_OK;
}

static cmq_status memory_sync(cmq_file *file)
{
    (void)file;
    return CMQ_OK;
}

static cmq_status memory_resize(cmq_file *file, uint64_t bytes)
{
    const cmq_status status = check_writable(opened(file));
    if (status != CMQ_OK) return status;
    set_length(enter_node(file), bytes);
    leave(file->fs);
    return CMQ_OK;
}

static cmq_status memory_reserve(cmq_file *file, uint64_t offset, uint64_t bytes)
{
    (void)offset, (void)bytes;
    return check_writable(opened(file));
}

static cmq_status memory_punch(cmq_file *file, uint64_t offset, uint64_t bytes)
{
    const cmq_status status = check_writable(opened(file));
    if (status != CMQ_OK) return status;
    const memory_node *node = enter_node(file);
    const uint64_t end = offset + bytes < node->bytes ? offset + bytes : node->bytes;
    if (offset < end) memset(node->data + offset, 0, (size_t)(end - offset));
    leave(file->fs);
    return CMQ_OK;
}

static bool is_zero(const uint8_t *data, uint64_t bytes)
{
    return bytes == 0 || (data[0] == 0 && memcmp(data, data + 1, (size_t)bytes - 1) == 0);
}

/* The first byte from `offset` on whose rest of its page is zero, or is not; the file's length when there is none. */
static uint64_t find_page(const memory_node *node, uint64_t offset, bool zero)
{
    const uint64_t end = node->bytes;
    while (offset < end) {
        const uint64_t page_end = (offset / PAGE_BYTES + 1) * PAGE_BYTES, clipped = page_end < end ? page_end : end;
        if (is_zero(node->data + offset, clipped - offset) == zero) break;
        offset = clipped;
    }
    return offset;
}

static cmq_status memory_next_data(cmq_file *file, uint64_t offset, uint64_t *data_out)
{
    const memory_node *node = enter_node(file);
    *data_out = find_page(node, offset, false);
    const cmq_status status = *data_out < node->bytes ? CMQ_OK : CMQ_END;
    leave(file->fs);
    return status;
}

static cmq_status memory_next_hole(cmq_file *file, uint64_t offset, uint64_t *hole_out)
{
    *hole_out = find_page(enter_node(file), offset, true);
    leave(file->fs);
    return CMQ_OK;
}

static cmq_status memory_info(cmq_file *file, cmq_file_info *info_out)
{
    info_of(enter_node(file), info_out);
    leave(file->fs);
    return CMQ_OK;
}

/* ---- mappings ---- */

static cmq_status memory_map(cmq_file *file, uint64_t offset, size_t bytes, bool writable, uint8_t **address_out)
{
    cmq_memory_fs *memory = memory_of(file->fs);
    const cmq_status status = writable ? check_writable(opened(file)) : CMQ_OK;
    if (status != CMQ_OK) return status;
    memory_node *node = enter_node(file);
    const bool fits = bytes > 0 && offset <= node->bytes && bytes <= node->bytes - offset;
    if (fits) {
        if (memory->mapping_count == memory->mapping_room) {
            memory->mapping_room = memory->mapping_room * 2 + 64;
            memory->mappings = realloc(memory->mappings, memory->mapping_room * sizeof *memory->mappings);
            CHECK(memory->mappings != NULL);
        }
        *address_out = node->data + offset;
        memory->mappings[memory->mapping_count++] =
            (memory_mapping){.address = *address_out, .bytes = bytes, .node = node};
        node->mappings++;
    }
    leave(file->fs);
    return fits ? CMQ_OK
                : cmq_fail_at(CMQ_ERR_ARGUMENT, (int64_t)offset, "cannot map %zu bytes at %" PRIu64 " of %s", bytes,
                              offset, node->name);
}

static void memory_unmap(cmq_fs *self, uint8_t *address, size_t bytes)
{
    cmq_memory_fs *memory = memory_of(self);
    pthread_mutex_lock(&memory->mutex);
    size_t i = 0;
    while (i < memory->mapping_count && (memory->mappings[i].address != address || memory->mappings[i].bytes != bytes))
        i++;
    if (i == memory->mapping_count)
        cmq_test_fail(__FILE__, __LINE__, "%zu bytes at %p are not a mapping", bytes, (const void *)address);
    memory_node *node = memory->mappings[i].node;
    memory->mappings[i] = memory->mappings[--memory->mapping_count];
    node->mappings--;
    free_unless_used(node);
    leave(self);
}

static cmq_status memory_sync_mapped(cmq_file *file, uint8_t *address, size_t bytes)
{
    (void)file, (void)address, (void)bytes;
    return CMQ_OK;
}

/* ---- locks: of the handle, as all handles are this process's ---- */

static cmq_status memory_lock(cmq_file *file, int64_t *holder_pid_out)
{
    memory_node *node = enter_node(file);
    const bool is_free = node->locker == NULL || node->locker == opened(file);
    if (is_free) node->locker = opened(file);
    leave(file->fs);
    if (is_free) return CMQ_OK;
    *holder_pid_out = 0;
    return cmq_fail(CMQ_ERR_LOCKED, "%s is locked through another handle", node->name);
}

static void memory_unlock(cmq_file *file)
{
    memory_node *node = enter_node(file);
    if (node->locker == opened(file)) node->locker = NULL;
    leave(file->fs);
}

static cmq_status memory_lock_is_guarded(cmq_file *file, bool *guarded_out)
{
    const memory_node *node = enter_node(file);
    *guarded_out = node->locker != NULL && node->locker != opened(file);
    leave(file->fs);
    return CMQ_OK;
}

static cmq_status memory_lock_holder(cmq_file *file, int64_t *holder_pid_out)
{
    bool guarded;
    const cmq_status status = memory_lock_is_guarded(file, &guarded);
    *holder_pid_out = guarded ? CMQ_LOCK_HOLDER_UNKNOWN : CMQ_LOCK_FREE;
    return status;
}

/* ---- paths ---- */

static cmq_status memory_stat(cmq_fs *self, const char *path, cmq_file_info *info_out)
{
    cmq_memory_fs *memory = memory_of(self);
    memory_node *parent;
    const char *name;
    pthread_mutex_lock(&memory->mutex);
    const memory_node *node = find(memory, path, &parent, &name);
    const int failed = node != NULL ? 0 : errno;
    if (node != NULL) info_of(node, info_out);
    leave(self);
    return failed == 0 ? CMQ_OK : cmq_fail_errno(failed, "cannot stat %.400s", path);
}

static int compare_names(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static cmq_status memory_list(cmq_fs *self, const char *path, char ***names_out, size_t *count_out)
{
    cmq_memory_fs *memory = memory_of(self);
    memory_node *parent;
    const char *name;
    size_t count = 0;
    pthread_mutex_lock(&memory->mutex);
    const memory_node *directory = find(memory, path, &parent, &name);
    const int failed = directory == NULL ? errno : directory->is_directory ? 0 : ENOTDIR;
    if (failed == 0) {
        for (const memory_node *node = directory->children; node != NULL; node = node->next) count++;
        /* as on the system's files, there is nothing to free then */
        char **names = count > 0 ? malloc(count * sizeof *names) : NULL;
        CHECK(names != NULL || count == 0);
        count = 0;
        for (const memory_node *node = directory->children; node != NULL; node = node->next) {
            names[count] = strdup(node->name);
            CHECK(names[count++] != NULL);
        }
        if (count > 1) qsort(names, count, sizeof *names, compare_names);
        *names_out = names;
        *count_out = count;
    }
    leave(self);
    return failed == 0 ? CMQ_OK : cmq_fail_errno(failed, "cannot list %.400s", path);
}

static cmq_status memory_make_directory(cmq_fs *self, const char *path)
{
    cmq_memory_fs *memory = memory_of(self);
    const char *rest = path;
    int failed = 0;
    pthread_mutex_lock(&memory->mutex);
    memory_node *at = memory->root;
    for (size_t bytes = next_name(&rest); bytes > 0 && failed == 0; bytes = next_name(&rest)) {
        memory_node *below = child_of(memory, at, rest, bytes);
        if (below == NULL) below = make_node(memory, at, rest, bytes, true);
        if (!below->is_directory) failed = ENOTDIR;
        at = below;
        rest += bytes;
    }
    leave(self);
    return failed == 0 ? CMQ_OK : cmq_fail_errno(failed, "cannot make directory %.400s", path);
}

static cmq_status CMQ_MUST_CHECK remove_node(cmq_fs *self, const char *path, bool is_directory)
{
    cmq_memory_fs *memory = memory_of(self);
    memory_node *parent;
    const char *name;
    pthread_mutex_lock(&memory->mutex);
    memory_node *node = find(memory, path, &parent, &name);
    int failed = node == NULL ? errno : 0;
    if (failed == 0 && node->is_directory != is_directory) failed = is_directory ? ENOTDIR : EISDIR;
    if (failed == 0 && node->children != NULL) failed = ENOTEMPTY;
    if (failed == 0) {
        unlink_node(memory, node);
        free_unless_used(node);
    }
    leave(self);
    return failed == 0 ? CMQ_OK : cmq_fail_errno(failed, "cannot remove %.400s", path);
}

static cmq_status memory_remove(cmq_fs *self, const char *path) { return remove_node(self, path, false); }

static cmq_status memory_remove_directory(cmq_fs *self, const char *path) { return remove_node(self, path, true); }

static cmq_status memory_rename(cmq_fs *self, const char *from, const char *to)
{
    cmq_memory_fs *memory = memory_of(self);
    memory_node *parent, *to_parent;
    const char *name, *to_name = NULL;
    pthread_mutex_lock(&memory->mutex);
    memory_node *node = find(memory, from, &parent, &name);
    int failed = node == NULL ? errno : 0;
    memory_node *there = failed == 0 ? find(memory, to, &to_parent, &to_name) : NULL;
    if (failed == 0 && there == NULL && to_parent == NULL) failed = errno;
    if (failed == 0 && there != NULL && there->is_directory != node->is_directory)
        failed = there->is_directory ? EISDIR : ENOTDIR;
    if (failed == 0 && there != NULL && there->children != NULL) failed = ENOTEMPTY;
    if (failed == 0 && there != node) {
        char *text = there != NULL ? strdup(there->name) : strndup(to_name, strcspn(to_name, "/"));
        CHECK(text != NULL);
        if (there != NULL) {
            to_parent = there->parent;
            unlink_node(memory, there);
            free_unless_used(there);
        }
        unlink_node(memory, node);
        free(node->name);
        node->name = text;
        node->name_bytes = strlen(text);
        link_node(memory, node, to_parent);
    }
    leave(self);
    return failed == 0 ? CMQ_OK : cmq_fail_errno(failed, "cannot rename %.400s", from);
}

static cmq_status memory_sync_directory(cmq_fs *self, const char *path)
{
    cmq_file_info info;
    const cmq_status status = memory_stat(self, path, &info);
    return status != CMQ_OK || info.is_directory ? status
                                                 : cmq_fail_errno(ENOTDIR, "cannot sync directory %.400s", path);
}

static cmq_status memory_disk_space(cmq_fs *self, const char *path, cmq_disk_space *space_out)
{
    (void)self, (void)path;
    *space_out =
        (cmq_disk_space){.total_bytes = DISK_BYTES, .free_bytes = DISK_BYTES / 2, .usable_bytes = DISK_BYTES / 2};
    return CMQ_OK;
}

static const cmq_fs_ops memory_ops = {
    .open = memory_open,
    .close = memory_close,
    .read = memory_read,
    .write = memory_write,
    .sync = memory_sync,
    .resize = memory_resize,
    .reserve = memory_reserve,
    .punch = memory_punch,
    .next_data = memory_next_data,
    .next_hole = memory_next_hole,
    .info = memory_info,
    .map = memory_map,
    .unmap = memory_unmap,
    .sync_mapped = memory_sync_mapped,
    .lock = memory_lock,
    .unlock = memory_unlock,
    .lock_holder = memory_lock_holder,
    .lock_is_guarded = memory_lock_is_guarded,
    .stat = memory_stat,
    .list = memory_list,
    .make_directory = memory_make_directory,
    .make_directory_unsynced = memory_make_directory,
    .remove = memory_remove,
    .remove_directory = memory_remove_directory,
    .rename = memory_rename,
    .sync_directory = memory_sync_directory,
    .sync_all = memory_sync_directory,
    .disk_space = memory_disk_space,
};

/* ---- the whole ---- */

cmq_memory_fs *cmq_memory_fs_create(void)
{
    cmq_memory_fs *memory = calloc(1, sizeof *memory);
    CHECK(memory != NULL);
    memory->base.ops = &memory_ops;
    pthread_mutex_init(&memory->mutex, NULL);
    memory->root = make_node(memory, NULL, "", 0, true);
    return memory;
}

static void free_tree(memory_node *node)
{
    while (node->children != NULL) {
        memory_node *child = node->children;
        node->children = child->next;
        free_tree(child);
    }
    if (node->handles > 0 || node->mappings > 0)
        cmq_test_fail(__FILE__, __LINE__, "%s has %u handles and %u mappings when its file system is destroyed",
                      node->name, node->handles, node->mappings);
    node->parent = NULL;
    free_unless_used(node);
}

void cmq_memory_fs_destroy(cmq_memory_fs *memory)
{
    if (memory == NULL) return;
    free_tree(memory->root);
    free(memory->mappings);
    pthread_mutex_destroy(&memory->mutex);
    free(memory);
}

cmq_fs *cmq_memory_fs_fs(cmq_memory_fs *memory) { return &memory->base; }
