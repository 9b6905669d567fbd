/* cmq_file_twin: the calls: each is counted, may run a hook or fail, is done on the real file, and is noted. See
 * cmq_file_twin.h.
 *
 * Way: store -> cmq_fs -> [cmq_file_twin] -> cmq_fs_posix or cmq_memory_fs, and notes into cmq_file_twin_state
 */
#include "support/cmq_file_twin.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/cmq_assert.h"
#include "support/cmq_file_twin_state.h"
#include "support/cmq_test.h"

#define WRITE_BACK_ONE_IN 8   /* changing calls, before which some file is written back early */

typedef struct twin_file {
    cmq_file base;
    cmq_file_twin *twin;
    twin_node *node;
    cmq_file *inner;    /* the real file's own handle: a lock and its loss by closing are the system's */
    char path[];
} twin_file;

static _Thread_local bool in_hook;

static twin_file *opened(cmq_file *file) { return (twin_file *)file; }

static cmq_file_twin *twin_of(cmq_fs *fs) { return (cmq_file_twin *)fs; }

static void lock(cmq_file_twin *twin) { pthread_mutex_lock(&twin->mutex); }

static void unlock(cmq_file_twin *twin) { pthread_mutex_unlock(&twin->mutex); }

const char *cmq_file_twin_kind_name(cmq_twin_kind kind)
{
    static const char *const names[] = {
        [CMQ_TWIN_CREATE] = "create",
        [CMQ_TWIN_WRITE] = "write",
        [CMQ_TWIN_SYNC] = "sync",
        [CMQ_TWIN_RESIZE] = "resize",
        [CMQ_TWIN_RESERVE] = "reserve",
        [CMQ_TWIN_PUNCH] = "punch",
        [CMQ_TWIN_SYNC_MAPPED] = "sync_mapped",
        [CMQ_TWIN_MAKE_DIRECTORY] = "make_directory",
        [CMQ_TWIN_REMOVE] = "remove",
        [CMQ_TWIN_REMOVE_DIRECTORY] = "remove_directory",
        [CMQ_TWIN_RENAME] = "rename",
        [CMQ_TWIN_SYNC_DIRECTORY] = "sync_directory",
        [CMQ_TWIN_SYNC_ALL] = "sync_all",
        [CMQ_TWIN_OPEN] = "open",
        [CMQ_TWIN_READ] = "read",
        [CMQ_TWIN_MAP] = "map",
        [CMQ_TWIN_LOCK] = "lock",
        [CMQ_TWIN_STAT] = "stat",
        [CMQ_TWIN_LIST] = "list",
        [CMQ_TWIN_DISK_SPACE] = "disk_space",
        [CMQ_TWIN_ANY_CHANGE] = "any change",
    };
    CMQ_ASSERT((size_t)kind < sizeof names / sizeof names[0]);
    return names[kind];
}

/* ---- counting, hooks, faults ---- */

/* The fault that this call meets, if any; used up faults are dropped. */
static bool take_fault(cmq_file_twin *twin, cmq_twin_kind kind, cmq_twin_fault *fault_out)
{
    for (size_t i = 0; i < twin->fault_count; i++) {
        cmq_twin_fault *fault = &twin->faults[i];
        if (fault->kind != kind && !(fault->kind == CMQ_TWIN_ANY_CHANGE && kind < CMQ_TWIN_CHANGES)) continue;
        if (twin->counts[fault->kind] < fault->nth) continue;
        *fault_out = *fault;
        if (fault->times > 0 && twin->counts[fault->kind] + 1 >= fault->nth + fault->times)
            *fault = twin->faults[--twin->fault_count];
        twin->failure_count++;
        return true;
    }
    return false;
}

/* Every call comes through here first, without the mutex. True when it has to fail. */
static bool enter(cmq_file_twin *twin, cmq_twin_kind kind, const char *path, uint64_t offset, uint64_t bytes,
                  cmq_twin_fault *fault_out)
{
    cmq_twin_call call = {.kind = kind, .path = path, .offset = offset, .bytes = bytes};
    cmq_twin_hook hook = NULL;
    lock(twin);
    void *context = twin->hook_context;
    twin->counts[kind]++;
    if (kind < CMQ_TWIN_CHANGES) {
        call.number = ++twin->counts[CMQ_TWIN_ANY_CHANGE];
        if (twin->hook_nth == 0 || twin->hook_nth == call.number) hook = twin->hook;
        if (twin_random_below(twin, WRITE_BACK_ONE_IN) == 0) twin_write_back_some(twin);
    }
    const bool fails = take_fault(twin, kind, fault_out);
    if (fails && fault_out->dead) hook = NULL;
    unlock(twin);
    if (hook != NULL && !in_hook) {
        in_hook = true;
        hook(context, &call);
        in_hook = false;
    }
    return fails;
}

static cmq_status fail_by(const cmq_twin_fault *fault, cmq_twin_kind kind, const char *path)
{
    return cmq_fail_errno(fault->sys_errno, "cannot %s %.300s (fault of the twin)", cmq_file_twin_kind_name(kind),
                          path);
}

/* enter for calls that do nothing when they fail. */
static cmq_status CMQ_MUST_CHECK enter_plain(cmq_file_twin *twin, cmq_twin_kind kind, const char *path)
{
    cmq_twin_fault fault;
    return enter(twin, kind, path, 0, 0, &fault) ? fail_by(&fault, kind, path) : CMQ_OK;
}

static bool ignores(const cmq_file_twin *twin, cmq_twin_kind kind)
{
    return (twin->ignored_syncs & CMQ_TWIN_BIT(kind)) != 0;
}

/* ---- open and close ---- */

static cmq_status twin_open(cmq_fs *self, const char *path, cmq_open_mode mode, cmq_file **file_out)
{
    cmq_file_twin *twin = twin_of(self);
    if (!twin_is_inside(twin, path))
        return cmq_fail(CMQ_ERR_ARGUMENT, "%s is outside the twin's directory %s", path, twin->root);
    lock(twin);
    const twin_node *there = twin_find(twin, path);
    unlock(twin);
    if (there != NULL && there->is_directory) return cmq_fail_errno(EISDIR, "cannot open %s", path);
    const bool creates = there == NULL && (mode == CMQ_OPEN_CREATE || mode == CMQ_OPEN_CREATE_NEW);
    cmq_status status = enter_plain(twin, creates ? CMQ_TWIN_CREATE : CMQ_TWIN_OPEN, path);
    if (status != CMQ_OK) return status;
    twin_file *file = malloc(sizeof *file + strlen(path) + 1);
    CMQ_ASSERT(file != NULL);
    *file = (twin_file){.base = {.fs = self}, .twin = twin};
    memcpy(file->path, path, strlen(path) + 1);
    lock(twin);
    file->node = twin_find(twin, path);
    status = cmq_file_open(twin->below, path, mode, &file->inner);
    twin_node *directory;
    char name[TWIN_NAME_BYTES];
    if (status == CMQ_OK && file->node == NULL && twin_find_parent(twin, path, &directory, name)) {
        file->node = twin_node_make(twin, path, false, false);
        twin_change_add(twin, file->node, NULL, NULL, directory, name);
    }
    if (status == CMQ_OK) file->node->handles++;
    unlock(twin);
    if (status != CMQ_OK) {
        free(file);
        return status;
    }
    *file_out = &file->base;
    return CMQ_OK;
}

static void twin_close(cmq_file *file)
{
    cmq_file_twin *twin = opened(file)->twin;
    cmq_file_close(opened(file)->inner);
    lock(twin);
    opened(file)->node->handles--;
    unlock(twin);
    free(file);
}

/* ---- content ---- */

static cmq_status twin_read(cmq_file *file, uint64_t offset, void *into, size_t bytes)
{
    const cmq_status status = enter_plain(opened(file)->twin, CMQ_TWIN_READ, opened(file)->path);
    return status != CMQ_OK ? status : cmq_file_read(opened(file)->inner, offset, into, bytes);
}

static cmq_status twin_write(cmq_file *file, uint64_t offset, const void *from, size_t bytes)
{
    twin_file *self = opened(file);
    cmq_twin_fault fault;
    const bool fails = enter(self->twin, CMQ_TWIN_WRITE, self->path, offset, bytes, &fault);
    const size_t done = !fails ? bytes : fault.halfway ? bytes / 2 : 0;
    cmq_status status = CMQ_OK;
    lock(self->twin);
    if (done > 0) {
        status = cmq_file_write(self->inner, offset, from, done);
        twin_node_written(self->node, offset, offset + done);
    }
    unlock(self->twin);
    return fails ? fail_by(&fault, CMQ_TWIN_WRITE, self->path) : status;
}

static cmq_status twin_resize(cmq_file *file, uint64_t bytes)
{
    twin_file *self = opened(file);
    cmq_twin_fault fault;
    if (enter(self->twin, CMQ_TWIN_RESIZE, self->path, bytes, 0, &fault))
        return fail_by(&fault, CMQ_TWIN_RESIZE, self->path);
    lock(self->twin);
    cmq_file_info before = {0};
    cmq_status status = cmq_file_info_of(self->inner, &before);
    if (status == CMQ_OK) status = cmq_file_resize(self->inner, bytes);
    self->node->touched = true;
    if (before.bytes != bytes) self->node->lost_length = false;   /* changed again: a later sync covers it */
    unlock(self->twin);
    return status;
}

/* Reserve changes no byte and no length, so nothing of it can be lost but blocks, which no test sees. */
static cmq_status twin_reserve(cmq_file *file, uint64_t offset, uint64_t bytes)
{
    twin_file *self = opened(file);
    cmq_twin_fault fault;
    const bool fails = enter(self->twin, CMQ_TWIN_RESERVE, self->path, offset, bytes, &fault);
    const uint64_t done = !fails ? bytes : fault.halfway ? bytes / 2 : 0;
    const cmq_status status = done > 0 ? cmq_file_reserve(self->inner, offset, done) : CMQ_OK;
    return fails ? fail_by(&fault, CMQ_TWIN_RESERVE, self->path) : status;
}

static cmq_status twin_punch(cmq_file *file, uint64_t offset, uint64_t bytes)
{
    twin_file *self = opened(file);
    cmq_twin_fault fault;
    const bool fails = enter(self->twin, CMQ_TWIN_PUNCH, self->path, offset, bytes, &fault);
    const uint64_t done = !fails ? bytes : fault.halfway ? bytes / 2 : 0;
    cmq_status status = CMQ_OK;
    lock(self->twin);
    if (done > 0) {
        status = cmq_file_punch(self->inner, offset, done);
        twin_node_written(self->node, offset, offset + done);
    }
    unlock(self->twin);
    return fails ? fail_by(&fault, CMQ_TWIN_PUNCH, self->path) : status;
}

static cmq_status twin_next_data(cmq_file *file, uint64_t offset, uint64_t *data_out)
{
    return cmq_file_next_data(opened(file)->inner, offset, data_out);
}

static cmq_status twin_next_hole(cmq_file *file, uint64_t offset, uint64_t *hole_out)
{
    return cmq_file_next_hole(opened(file)->inner, offset, hole_out);
}

static cmq_status twin_info(cmq_file *file, cmq_file_info *info_out)
{
    const cmq_status status = enter_plain(opened(file)->twin, CMQ_TWIN_STAT, opened(file)->path);
    return status != CMQ_OK ? status : cmq_file_info_of(opened(file)->inner, info_out);
}

static cmq_status twin_lock(cmq_file *file, int64_t *holder_pid_out)
{
    const cmq_status status = enter_plain(opened(file)->twin, CMQ_TWIN_LOCK, opened(file)->path);
    return status != CMQ_OK ? status : cmq_file_lock(opened(file)->inner, holder_pid_out);
}

static void twin_unlock(cmq_file *file) { cmq_file_unlock(opened(file)->inner); }

static cmq_status twin_lock_is_guarded(cmq_file *file, bool *guarded_out)
{
    return cmq_file_lock_is_guarded(opened(file)->inner, guarded_out);
}
static cmq_status twin_lock_holder(cmq_file *file, int64_t *holder_pid_out)
{
    return cmq_file_lock_holder(opened(file)->inner, holder_pid_out);
}

/* ---- syncs: notes only ---- */

/* A range of a file is durable now, or can no longer become so. */
static cmq_status CMQ_MUST_CHECK sync_range(twin_file *self, cmq_twin_kind kind, uint64_t offset, uint64_t end,
                                            bool whole)
{
    cmq_twin_fault fault;
    const bool fails = enter(self->twin, kind, self->path, offset, end - offset, &fault);
    lock(self->twin);
    if (fails && !fault.dead) twin_node_sync_failed(self->twin, self->node, offset, end);
    else if (!ignores(self->twin, kind)) twin_node_sync(self->twin, self->node, offset, end, whole);
    unlock(self->twin);
    return fails ? fail_by(&fault, kind, self->path) : CMQ_OK;
}

static cmq_status twin_sync(cmq_file *file) { return sync_range(opened(file), CMQ_TWIN_SYNC, 0, UINT64_MAX, true); }

/* ---- mappings ---- */

static cmq_status twin_map(cmq_file *file, uint64_t offset, size_t bytes, bool writable, uint8_t **address_out)
{
    twin_file *self = opened(file);
    cmq_file_twin *twin = self->twin;
    cmq_status status = enter_plain(twin, CMQ_TWIN_MAP, self->path);
    if (status != CMQ_OK) return status;
    lock(twin);
    status = cmq_file_map(self->inner, offset, bytes, writable, address_out);
    if (status == CMQ_OK) {
        twin->mappings = twin_grow(twin->mappings, &twin->mapping_room, twin->mapping_count, sizeof *twin->mappings);
        twin->mappings[twin->mapping_count++] = (twin_mapping){
            .address = *address_out, .bytes = bytes, .offset = offset, .node = self->node, .writable = writable};
        self->node->mappings++;
        if (writable) {
            self->node->writable_mappings++;
            self->node->touched = true;   /* stores come without a call */
        }
    }
    unlock(twin);
    return status;
}

static twin_mapping *find_mapping(cmq_file_twin *twin, const uint8_t *address, size_t bytes)
{
    for (size_t i = 0; i < twin->mapping_count; i++) {
        twin_mapping *mapping = &twin->mappings[i];
        if (address >= mapping->address && bytes <= mapping->bytes &&
            (size_t)(address - mapping->address) <= mapping->bytes - bytes)
            return mapping;
    }
    cmq_test_fail(__FILE__, __LINE__, "%zu bytes at %p were not mapped through the twin", bytes, (const void *)address);
}

static void twin_unmap(cmq_fs *self, uint8_t *address, size_t bytes)
{
    cmq_file_twin *twin = twin_of(self);
    lock(twin);
    twin_mapping *mapping = find_mapping(twin, address, bytes);
    if (mapping->address != address || mapping->bytes != bytes)
        cmq_test_fail(__FILE__, __LINE__, "only a part of a mapping is unmapped");
    mapping->node->mappings--;
    if (mapping->writable) mapping->node->writable_mappings--;
    *mapping = twin->mappings[--twin->mapping_count];
    cmq_fs_unmap(twin->below, address, bytes);
    unlock(twin);
}

static cmq_status twin_sync_mapped(cmq_file *file, uint8_t *address, size_t bytes)
{
    twin_file *self = opened(file);
    lock(self->twin);
    const twin_mapping *mapping = find_mapping(self->twin, address, bytes);
    const uint64_t offset = mapping->offset + (uint64_t)(address - mapping->address);
    if (mapping->node != self->node)
        cmq_test_fail(__FILE__, __LINE__, "a mapping of another file is synced through %s", self->path);
    unlock(self->twin);
    return sync_range(self, CMQ_TWIN_SYNC_MAPPED, offset, offset + bytes, false);
}

/* ---- paths ---- */

static cmq_status twin_stat(cmq_fs *self, const char *path, cmq_file_info *info_out)
{
    const cmq_status status = enter_plain(twin_of(self), CMQ_TWIN_STAT, path);
    return status != CMQ_OK ? status : cmq_fs_stat(twin_of(self)->below, path, info_out);
}

static cmq_status twin_list(cmq_fs *self, const char *path, char ***names_out, size_t *count_out)
{
    const cmq_status status = enter_plain(twin_of(self), CMQ_TWIN_LIST, path);
    return status != CMQ_OK ? status : cmq_fs_list(twin_of(self)->below, path, names_out, count_out);
}

static cmq_status twin_sync_directory(cmq_fs *self, const char *path)
{
    cmq_file_twin *twin = twin_of(self);
    cmq_status status = enter_plain(twin, CMQ_TWIN_SYNC_DIRECTORY, path);
    if (status != CMQ_OK) return status;
    lock(twin);
    const twin_node *directory = twin_find(twin, path);
    if (directory == NULL && twin_is_inside(twin, path))
        status = cmq_fail_errno(ENOENT, "cannot sync directory %s", path);
    else if (directory != NULL && !directory->is_directory)
        status = cmq_fail_errno(ENOTDIR, "cannot sync directory %s", path);
    else if (directory != NULL && !ignores(twin, CMQ_TWIN_SYNC_DIRECTORY)) twin_changes_commit(twin, directory);
    unlock(twin);
    return status;
}

static cmq_status twin_sync_all(cmq_fs *self, const char *path)
{
    cmq_file_twin *twin = twin_of(self);
    cmq_twin_fault fault;
    const bool fails = enter(twin, CMQ_TWIN_SYNC_ALL, path, 0, 0, &fault);
    lock(twin);
    for (twin_node *node = twin->nodes; node != NULL; node = node->next) {
        if (!node->touched) continue;
        if (fails && !fault.dead) twin_node_sync_failed(twin, node, 0, UINT64_MAX);
        else if (!ignores(twin, CMQ_TWIN_SYNC_ALL)) twin_node_sync(twin, node, 0, UINT64_MAX, true);
    }
    if (!fails && !ignores(twin, CMQ_TWIN_SYNC_ALL)) twin_changes_commit(twin, NULL);
    unlock(twin);
    return fails ? fail_by(&fault, CMQ_TWIN_SYNC_ALL, path) : CMQ_OK;
}

/* Make one directory whose parent is there, and with `synced` sync the parent, as two calls. */
static cmq_status CMQ_MUST_CHECK make_one(cmq_file_twin *twin, const char *path, const char *parent, bool synced)
{
    cmq_status status = enter_plain(twin, CMQ_TWIN_MAKE_DIRECTORY, path);
    if (status != CMQ_OK) return status;
    twin_node *directory;
    char name[TWIN_NAME_BYTES];
    lock(twin);
    status = cmq_fs_make_directory_unsynced(twin->below, path);
    if (status == CMQ_OK && twin_find_parent(twin, path, &directory, name) &&
        twin_names_get(&twin->live, directory, name) == NULL)
        twin_change_add(twin, twin_node_make(twin, path, true, false), NULL, NULL, directory, name);
    unlock(twin);
    return status != CMQ_OK || !synced ? status : twin_sync_directory(&twin->base, parent);
}

static cmq_status CMQ_MUST_CHECK make_all(cmq_file_twin *twin, const char *path, bool synced)
{
    if (!twin_is_inside(twin, path))
        return cmq_fail(CMQ_ERR_ARGUMENT, "%s is outside the twin's directory %s", path, twin->root);
    char prefix[CMQ_PATH_BYTES], parent[CMQ_PATH_BYTES];
    memcpy(parent, twin->root, twin->root_bytes + 1);
    for (size_t end = twin->root_bytes + 1; end <= strlen(path); end++) {
        if ((path[end] != '/' && path[end] != '\0') || path[end - 1] == '/') continue;
        if (end >= sizeof prefix) return cmq_fail(CMQ_ERR_ARGUMENT, "a directory's path has %zu bytes", strlen(path));
        memcpy(prefix, path, end);
        prefix[end] = '\0';
        lock(twin);
        const twin_node *there = twin_find(twin, prefix);
        unlock(twin);
        if (there != NULL && !there->is_directory) return cmq_fail_errno(ENOTDIR, "cannot make directory %s", path);
        const cmq_status status = there != NULL ? CMQ_OK : make_one(twin, prefix, parent, synced);
        if (status != CMQ_OK) return status;
        memcpy(parent, prefix, end + 1);
        if (path[end] == '\0') break;
    }
    return CMQ_OK;
}

static cmq_status twin_make_directory(cmq_fs *self, const char *path) { return make_all(twin_of(self), path, true); }
static cmq_status twin_make_directory_unsynced(cmq_fs *self, const char *path)
{
    return make_all(twin_of(self), path, false);
}

/* Removing files and directories, and renaming, differ in the real call only. */
static cmq_status CMQ_MUST_CHECK change_names(cmq_file_twin *twin, cmq_twin_kind kind, const char *from, const char *to)
{
    cmq_status status = enter_plain(twin, kind, from);
    if (status != CMQ_OK) return status;
    twin_node *from_directory = NULL, *to_directory = NULL;
    char from_name[TWIN_NAME_BYTES], to_name[TWIN_NAME_BYTES];
    lock(twin);
    twin_node *node = twin_find(twin, from);
    if (kind == CMQ_TWIN_REMOVE) status = cmq_fs_remove(twin->below, from);
    else if (kind == CMQ_TWIN_REMOVE_DIRECTORY) status = cmq_fs_remove_directory(twin->below, from);
    else status = cmq_fs_rename(twin->below, from, to);
    if (status == CMQ_OK) {
        const bool inside = node != NULL && twin_find_parent(twin, from, &from_directory, from_name) &&
                            (to == NULL || twin_find_parent(twin, to, &to_directory, to_name));
        if (!inside)
            cmq_test_fail(__FILE__, __LINE__, "%s of %s leaves the twin's directory", cmq_file_twin_kind_name(kind),
                          from);
        twin_change_add(twin, node, from_directory, from_name, to_directory, to_name);
    }
    unlock(twin);
    return status;
}

static cmq_status twin_remove(cmq_fs *self, const char *path)
{
    return change_names(twin_of(self), CMQ_TWIN_REMOVE, path, NULL);
}

static cmq_status twin_remove_directory(cmq_fs *self, const char *path)
{
    return change_names(twin_of(self), CMQ_TWIN_REMOVE_DIRECTORY, path, NULL);
}

static cmq_status twin_rename(cmq_fs *self, const char *from, const char *to)
{
    return change_names(twin_of(self), CMQ_TWIN_RENAME, from, to);
}

static cmq_status twin_disk_space(cmq_fs *self, const char *path, cmq_disk_space *space_out)
{
    cmq_file_twin *twin = twin_of(self);
    const cmq_status status = enter_plain(twin, CMQ_TWIN_DISK_SPACE, path);
    if (status != CMQ_OK) return status;
    lock(twin);
    const bool given = twin->has_disk_space;
    if (given) *space_out = twin->disk_space;
    unlock(twin);
    return given ? CMQ_OK : cmq_fs_disk_space(twin->below, path, space_out);
}

static const cmq_fs_ops twin_ops = {
    .open = twin_open,
    .close = twin_close,
    .read = twin_read,
    .write = twin_write,
    .sync = twin_sync,
    .resize = twin_resize,
    .reserve = twin_reserve,
    .punch = twin_punch,
    .next_data = twin_next_data,
    .next_hole = twin_next_hole,
    .info = twin_info,
    .map = twin_map,
    .unmap = twin_unmap,
    .sync_mapped = twin_sync_mapped,
    .lock = twin_lock,
    .unlock = twin_unlock,
    .lock_holder = twin_lock_holder,
    .lock_is_guarded = twin_lock_is_guarded,
    .stat = twin_stat,
    .list = twin_list,
    .make_directory = twin_make_directory,
    .make_directory_unsynced = twin_make_directory_unsynced,
    .remove = twin_remove,
    .remove_directory = twin_remove_directory,
    .rename = twin_rename,
    .sync_directory = twin_sync_directory,
    .sync_all = twin_sync_all,
    .disk_space = twin_disk_space,
};

/* ---- the twin itself ---- */

cmq_file_twin *cmq_file_twin_create(const char *root, uint64_t seed)
{
    return cmq_file_twin_create_over(cmq_fs_posix(), root, seed);
}

cmq_file_twin *cmq_file_twin_create_over(cmq_fs *below, const char *root, uint64_t seed)
{
    cmq_file_twin *twin = calloc(1, sizeof *twin);
    CMQ_ASSERT(twin != NULL);
    twin->base.ops = &twin_ops;
    twin->below = below;
    pthread_mutex_init(&twin->mutex, NULL);
    twin->root = strdup(root);
    CMQ_ASSERT(twin->root != NULL);
    twin->root_bytes = strlen(root);
    while (twin->root_bytes > 1 && root[twin->root_bytes - 1] == '/') twin->root[--twin->root_bytes] = '\0';
    twin->random_state = seed;
    twin->root_node = twin_node_make(twin, twin->root, true, true);
    twin_adopt_all(twin, twin->root_node, twin->root);
    return twin;
}

void cmq_file_twin_close(cmq_file_twin *twin)
{
    if (twin == NULL) return;
    for (const twin_node *node = twin->nodes; node != NULL; node = node->next)
        if (node->handles > 0 || node->mappings > 0)
            cmq_test_fail(__FILE__, __LINE__, "a file under %s has %u handles and %u mappings when its twin is closed",
                          twin->root, node->handles, node->mappings);
    twin_free_all(twin);
    twin_bytes_free(&twin->now);
    twin_bytes_free(&twin->image);
    free(twin->mappings);
    free(twin->root);
    pthread_mutex_destroy(&twin->mutex);
    free(twin);
}

cmq_fs *cmq_file_twin_fs(cmq_file_twin *twin) { return &twin->base; }

void cmq_file_twin_on_call(cmq_file_twin *twin, uint64_t nth, cmq_twin_hook hook, void *context)
{
    lock(twin);
    twin->hook_nth = nth;
    twin->hook = hook;
    twin->hook_context = context;
    unlock(twin);
}

uint64_t cmq_file_twin_calls(cmq_file_twin *twin, cmq_twin_kind kind)
{
    lock(twin);
    const uint64_t count = twin->counts[kind];
    unlock(twin);
    return count;
}

void cmq_file_twin_fail(cmq_file_twin *twin, const cmq_twin_fault *fault)
{
    lock(twin);
    if (twin->fault_count == TWIN_FAULTS_MAX || fault->nth == 0 || fault->sys_errno == 0)
        cmq_test_fail(__FILE__, __LINE__, "a fault needs nth from 1, an errno, and a place among %d", TWIN_FAULTS_MAX);
    twin->faults[twin->fault_count] = *fault;
    twin->faults[twin->fault_count++].nth += twin->counts[fault->kind];
    unlock(twin);
}

void cmq_file_twin_clear_faults(cmq_file_twin *twin)
{
    lock(twin);
    twin->fault_count = 0;
    unlock(twin);
}

uint64_t cmq_file_twin_failures(cmq_file_twin *twin)
{
    lock(twin);
    const uint64_t count = twin->failure_count;
    unlock(twin);
    return count;
}

void cmq_file_twin_ignore_syncs(cmq_file_twin *twin, unsigned kinds)
{
    lock(twin);
    twin->ignored_syncs = kinds;
    unlock(twin);
}

void cmq_file_twin_set_disk_space(cmq_file_twin *twin, const cmq_disk_space *space)
{
    lock(twin);
    twin->has_disk_space = space != NULL;
    if (space != NULL) twin->disk_space = *space;
    unlock(twin);
}
