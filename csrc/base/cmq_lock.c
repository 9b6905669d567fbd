/* cmq_lock: see cmq_lock.h. */
#include "base/cmq_lock.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cmq_assert.h"

#define MARK "lock"   /* as upstream writes it; nobody reads it */
#define MARK_BYTES (sizeof MARK - 1)

/* One open descriptor of a lock file: the one that carries the lock, or one parked beside it. */
struct cmq_lock {
    cmq_file *file;           /* NULL once we are its child */
    uint64_t device, inode;   /* the file, whatever its path */
    pid_t pid;                /* the process that took the lock; 0 once we are its child */
    cmq_lock *next;           /* in `held`, or in the list of the parked */
    cmq_lock *parked;         /* descriptors that may be closed only with this one */
};

static pthread_mutex_t table_mutex = PTHREAD_MUTEX_INITIALIZER;
static cmq_lock *held;   /* guarded by table_mutex */

/* ---- fork: the child gets the table and the descriptors, but not the locks ---- */

static void before_fork(void) { pthread_mutex_lock(&table_mutex); }

static void after_fork_in_parent(void) { pthread_mutex_unlock(&table_mutex); }

/* A copy of the descriptor would keep the guard after the parent's death. */
static void close_file(cmq_lock *node)
{
    cmq_file_close(node->file);
    node->file = NULL;
}

static void after_fork_in_child(void)
{
    for (cmq_lock *lock = held; lock != NULL; lock = lock->next) {
        /* Not only compared later: a grandchild could be given the id of the process that took the lock. */
        lock->pid = 0;
        close_file(lock);
        for (cmq_lock *node = lock->parked; node != NULL; node = node->next) close_file(node);
    }
    pthread_mutex_unlock(&table_mutex);
}

static void register_fork_handlers(void)
{
    const int failed = pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
    CMQ_ASSERT(failed == 0);   /* ENOMEM only, and once per process */
}

static void enter_table(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, register_fork_handlers);
    pthread_mutex_lock(&table_mutex);
}

static void leave_table(void) { pthread_mutex_unlock(&table_mutex); }

/* ---- the table; all with table_mutex held ---- */

/* The lock that this process has on that file, or NULL. The id is compared too: a clone without fork's handlers is no
 * holder. */
static cmq_lock *find(uint64_t device, uint64_t inode)
{
    const pid_t self = getpid();
    for (cmq_lock *lock = held; lock != NULL; lock = lock->next)
        if (lock->device == device && lock->inode == inode && lock->pid == self) return lock;
    return NULL;
}

static void take_out(const cmq_lock *lock)
{
    cmq_lock **link = &held;
    while (*link != lock) {
        CMQ_ASSERT(*link != NULL);
        link = &(*link)->next;
    }
    *link = lock->next;
}

static void close_node(cmq_lock *node)
{
    cmq_file_close(node->file);
    free(node);
}

/* Close a descriptor that carries no lock of this process, unless that would drop one: then it waits beside that
 * one. */
static void let_go(cmq_lock *node)
{
    cmq_lock *holder = find(node->device, node->inode);
    if (holder == NULL || node->file == NULL) {
        close_node(node);
        return;
    }
    node->next = holder->parked;
    holder->parked = node;
}

static cmq_status CMQ_MUST_CHECK open_node(cmq_fs *fs, const char *path, cmq_open_mode mode, cmq_lock **node_out)
{
    cmq_lock *node = calloc(1, sizeof *node);
    if (node == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for a lock on %s", path);
    cmq_status status = cmq_file_open(fs, path, mode, &node->file);
    if (status != CMQ_OK) {
        free(node);
        return status;
    }
    cmq_file_info info;
    status = cmq_file_info_of(node->file, &info);
    if (status != CMQ_OK) {
        close_node(node);
        return status;
    }
    node->device = info.device;
    node->inode = info.inode;
    *node_out = node;
    return CMQ_OK;
}

/* Whether this process has the file at `path`, without opening it. */
static cmq_status CMQ_MUST_CHECK held_here(cmq_fs *fs, const char *path, bool *held_out)
{
    cmq_file_info info;
    const cmq_status status = cmq_fs_stat(fs, path, &info);
    *held_out = status == CMQ_OK && find(info.device, info.inode) != NULL;
    return status == CMQ_ERR_NOT_FOUND ? CMQ_OK : status;
}

static cmq_status fail_held_here(const char *path)
{
    return cmq_fail(CMQ_ERR_LOCKED,
                    "%s is locked by this process (%ld): close the store first, or use it where it is open", path,
                    (long)getpid());
}

/* The mark is written only where it is missing, so that opening a store again costs no sync. */
static cmq_status CMQ_MUST_CHECK write_mark(cmq_file *file)
{
    cmq_file_info info;
    char there[MARK_BYTES];
    cmq_status status = cmq_file_info_of(file, &info);
    if (status == CMQ_OK && info.bytes >= MARK_BYTES) {
        status = cmq_file_read(file, 0, there, sizeof there);
        if (status == CMQ_OK && memcmp(there, MARK, MARK_BYTES) == 0) return CMQ_OK;
    }
    if (status == CMQ_OK) status = cmq_file_write(file, 0, MARK, MARK_BYTES);
    return status != CMQ_OK ? status : cmq_file_sync(file);
}

static cmq_status CMQ_MUST_CHECK acquire(cmq_fs *fs, const char *path, cmq_lock **lock_out)
{
    bool here;
    cmq_lock *node;
    cmq_status status = held_here(fs, path, &here);
    if (status != CMQ_OK) return status;
    if (here) return fail_held_here(path);
    status = open_node(fs, path, CMQ_OPEN_CREATE, &node);
    if (status != CMQ_OK) return status;
    if (find(node->device, node->inode) != NULL) {   /* the path was made to name our file after the question above */
        let_go(node);
        return fail_held_here(path);
    }
    int64_t holder_pid;
    status = cmq_file_lock(node->file, &holder_pid);
    if (status == CMQ_ERR_LOCKED)
        cmq_fail_context("the store has one writer: stop that process, or open the store read-only");
    if (status == CMQ_OK) status = write_mark(node->file);
    if (status != CMQ_OK) {
        close_node(node);
        return status;
    }
    node->pid = getpid();
    node->next = held;
    held = node;
    *lock_out = node;
    return CMQ_OK;
}

static cmq_status CMQ_MUST_CHECK probe(cmq_fs *fs, const char *path, int64_t *holder_pid_out, bool *ours_out)
{
    bool here;
    cmq_lock *node;
    cmq_status status = held_here(fs, path, &here);
    if (status != CMQ_OK) return status;
    *holder_pid_out = here ? (int64_t)getpid() : CMQ_LOCK_FREE;
    *ours_out = here;
    if (here) return CMQ_OK;
    status = open_node(fs, path, CMQ_OPEN_READ, &node);
    if (status == CMQ_ERR_NOT_FOUND) return CMQ_OK;
    if (status != CMQ_OK) return status;
    *ours_out = find(node->device, node->inode) != NULL;
    if (*ours_out) {
        *holder_pid_out = (int64_t)getpid();
    } else {
        status = cmq_file_lock_holder(node->file, holder_pid_out);
        if (status == CMQ_OK && *holder_pid_out != CMQ_LOCK_FREE)
            status = cmq_file_lock_is_guarded(node->file, ours_out);
    }
    let_go(node);
    return status;
}

/* ---- the door ---- */

cmq_status cmq_lock_acquire(cmq_fs *fs, const char *path, cmq_lock **lock_out)
{
    enter_table();
    const cmq_status status = acquire(fs, path, lock_out);
    leave_table();
    return status;
}

void cmq_lock_release(cmq_lock *lock)
{
    if (lock == NULL) return;
    enter_table();
    take_out(lock);
    cmq_lock *parked = lock->parked;
    lock->parked = NULL;
    if (cmq_lock_is_held(lock)) cmq_file_unlock(lock->file);   /* a child that fork has not returned in yet has a
                                                                * copy */
    let_go(lock);   /* in a clone without fork's handlers, it and the parked may have to wait for its own lock */
    while (parked != NULL) {
        cmq_lock *node = parked;
        parked = node->next;
        let_go(node);
    }
    leave_table();
}

cmq_status cmq_lock_keep(cmq_lock *lock)
{
    int64_t holder_pid;
    CMQ_ASSERT(cmq_lock_is_held(lock));
    return cmq_file_lock(lock->file, &holder_pid);
}

bool cmq_lock_is_held(const cmq_lock *lock) { return lock->pid == getpid(); }

cmq_status cmq_lock_probe_writer(cmq_fs *fs, const char *path, int64_t *holder_pid_out, bool *ours_out)
{
    enter_table();
    const cmq_status status = probe(fs, path, holder_pid_out, ours_out);
    leave_table();
    return status;
}

cmq_status cmq_lock_probe(cmq_fs *fs, const char *path, int64_t *holder_pid_out)
{
    bool ours;
    return cmq_lock_probe_writer(fs, path, holder_pid_out, &ours);
}
