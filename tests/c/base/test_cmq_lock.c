/* Tests csrc/base/cmq_lock.c: one writer per store, seen from other processes.
 *
 * Threads: yes
 * A POSIX lock is invisible to the process that has it, so every claim is checked by a child process that tries.
 */
#include "base/cmq_lock.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/cmq_test.h"

#define THREADS 6
#define ROUNDS 60

static char path[CMQ_PATH_BYTES];
static const char *directory;

static void fresh_path(void)
{
    directory = cmq_test_directory();
    CHECK_OK(cmq_path_join(path, directory, "lock"));
}

/* ---- the child's work; it leaves by _exit, so that nothing of the parent's runs twice ---- */

enum { CHILD_GOT_IT, CHILD_REFUSED, CHILD_FAILED };

/* Flush first: the child must not print buffered output again. */
static pid_t fork_child(void)
{
    fflush(stdout);
    const pid_t child = fork();
    CHECK(child >= 0);
    return child;
}

/* The broker's own way, without cmq_lock: one byte at 0. */
static int lock_as_java(const char *file, off_t at)
{
    const int descriptor = open(file, O_RDWR | O_CREAT, 0666);
    struct flock wanted = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};
    if (descriptor < 0) return CHILD_FAILED;
    return fcntl(descriptor, F_SETLK, &wanted) == 0 ? CHILD_GOT_IT : CHILD_REFUSED;
}

static int exit_code_of(pid_t child)
{
    int state;
    CHECK(waitpid(child, &state, 0) == child);
    CHECK(WIFEXITED(state));
    return WEXITSTATUS(state);
}

static int child_tries(void)
{
    const pid_t child = fork_child();
    if (child == 0) _exit(lock_as_java(path, 0));
    return exit_code_of(child);
}

/* A child that takes the lock, tells so, and keeps it until its end of the pipe is closed. */
typedef struct keeper {
    pid_t pid;
    int release;   /* close to let it end */
} keeper;

static keeper start_keeper(bool through_cmq_lock)
{
    int told[2], wait_on[2];
    CHECK(pipe(told) == 0 && pipe(wait_on) == 0);
    keeper started = {.pid = fork_child(), .release = wait_on[1]};
    if (started.pid == 0) {
        close(wait_on[1]);
        char byte = 0;
        cmq_lock *lock = NULL;
        const bool got = through_cmq_lock ? cmq_lock_acquire(cmq_fs_posix(), path, &lock) == CMQ_OK
                                          : lock_as_java(path, 0) == CHILD_GOT_IT;
        if (!got || write(told[1], "k", 1) != 1) _exit(CHILD_FAILED);
        _exit(read(wait_on[0], &byte, 1) == 0 ? CHILD_GOT_IT : CHILD_FAILED);
    }
    char byte;
    close(told[1]);
    close(wait_on[0]);
    CHECK(read(told[0], &byte, 1) == 1);
    close(told[0]);
    return started;
}

static void end_keeper(keeper kept)
{
    close(kept.release);
    CHECK_INT(exit_code_of(kept.pid), CHILD_GOT_IT);
}

static int64_t holder(void)
{
    int64_t pid;
    CHECK_OK(cmq_lock_probe(cmq_fs_posix(), path, &pid));
    return pid;
}

static void check_refused_naming(int64_t pid)
{
    cmq_lock *lock;
    char number[32];
    CHECK_STATUS(cmq_lock_acquire(cmq_fs_posix(), path, &lock), CMQ_ERR_LOCKED);
    snprintf(number, sizeof number, "%lld", (long long)pid);
    CHECK(strstr(cmq_last_error()->text, number) != NULL);
    CHECK(strstr(cmq_last_error()->text, path) != NULL);
}

/* ---- cases ---- */

static void takes_it_and_writes_four_bytes(void)
{
    fresh_path();
    cmq_lock *lock;
    CHECK_INT(child_tries(), CHILD_GOT_IT);   /* and makes the file, empty */
    CHECK_OK(cmq_lock_acquire(cmq_fs_posix(), path, &lock));
    CHECK(cmq_lock_is_held(lock));
    CHECK_INT(child_tries(), CHILD_REFUSED);
    cmq_lock_release(lock);
    CHECK_INT(child_tries(), CHILD_GOT_IT);

    cmq_file *file;
    cmq_file_info info;
    char bytes[4];
    CHECK_OK(cmq_file_open(cmq_fs_posix(), path, CMQ_OPEN_READ, &file));
    CHECK_OK(cmq_file_info_of(file, &info));
    CHECK_INT(info.bytes, 4);
    CHECK_OK(cmq_file_read(file, 0, bytes, sizeof bytes));
    CHECK_BYTES(bytes, sizeof bytes, "lock", 4);
    cmq_file_close(file);
    cmq_lock_release(NULL);
}

static void second_open_in_this_process_drops_nothing(void)
{
    fresh_path();
    cmq_lock *lock;
    CHECK_OK(cmq_lock_acquire(cmq_fs_posix(), path, &lock));
    for (int i = 0; i < 3; i++) {
        check_refused_naming(getpid());
        CHECK_INT(holder(), getpid());
        CHECK_INT(child_tries(), CHILD_REFUSED);
    }
    cmq_lock_release(lock);
    CHECK_INT(holder(), CMQ_LOCK_FREE);
    CHECK_OK(cmq_lock_acquire(cmq_fs_posix(), path, &lock));
    cmq_lock_release(lock);
}

static void another_path_to_the_same_file_is_the_same_lock(void)
{
    fresh_path();
    cmq_lock *lock, *second;
    char other[CMQ_PATH_BYTES];
    CHECK_OK(cmq_lock_acquire(cmq_fs_posix(), path, &lock));
    static const char *const ways[] = {"./lock", "hard"};
    CHECK_OK(cmq_path_join(other, directory, "hard"));
    CHECK(link(path, other) == 0);
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        int64_t pid;
        CHECK_OK(cmq_path_join(other, directory, ways[i]));
        CHECK_STATUS(cmq_lock_acquire(cmq_fs_posix(), other, &second), CMQ_ERR_LOCKED);
        CHECK_OK(cmq_lock_probe(cmq_fs_posix(), other, &pid));
        CHECK_INT(pid, getpid());
        CHECK_INT(child_tries(), CHILD_REFUSED);
    }
    cmq_lock_release(lock);
}

static void another_process_is_named(void)
{
    for (int through = 0; through < 2; through++) {
        fresh_path();
        const keeper kept = start_keeper(through == 1);
        check_refused_naming(kept.pid);
        CHECK_INT(holder(), kept.pid);
        check_refused_naming(kept.pid);   /* the probe dropped nothing of theirs */
        end_keeper(kept);
        CHECK_INT(holder(), CMQ_LOCK_FREE);
        cmq_lock *lock;
        CHECK_OK(cmq_lock_acquire(cmq_fs_posix(), path, &lock));
        cmq_lock_release(lock);
    }
}

static void probe_makes_nothing(void)
{
    fresh_path();
    cmq_file_info info;
    CHECK_INT(holder(), CMQ_LOCK_FREE);
    CHECK_STATUS(cmq_fs_stat(cmq_fs_posix(), path, &info), CMQ_ERR_NOT_FOUND);
}

static void only_the_first_byte_counts(void)
{
    fresh_path();
    cmq_lock *lock;
    CHECK_OK(cmq_lock_acquire(cmq_fs_posix(), path, &lock));
    const pid_t child = fork_child();
    if (child == 0) _exit(lock_as_java(path, 1));
    CHECK_INT(exit_code_of(child), CHILD_GOT_IT);
    cmq_lock_release(lock);
}

static void child_after_fork_holds_nothing(void)
{
    fresh_path();
    cmq_lock *lock;
    CHECK_OK(cmq_lock_acquire(cmq_fs_posix(), path, &lock));
    const pid_t child = fork_child();
    if (child == 0) {
        cmq_lock *mine;
        int64_t pid = 0;
        bool right = !cmq_lock_is_held(lock);
        right = right && cmq_lock_acquire(cmq_fs_posix(), path, &mine) == CMQ_ERR_LOCKED;
        right = right && cmq_lock_probe(cmq_fs_posix(), path, &pid) == CMQ_OK && pid == getppid();
        cmq_lock_release(lock);
        right = right && cmq_lock_acquire(cmq_fs_posix(), path, &mine) == CMQ_ERR_LOCKED;
        _exit(right ? CHILD_REFUSED : CHILD_FAILED);
    }
    CHECK_INT(exit_code_of(child), CHILD_REFUSED);
    CHECK(cmq_lock_is_held(lock));
    CHECK_INT(child_tries(), CHILD_REFUSED);
    cmq_lock_release(lock);
}

/* A child that outlives its parent's lock takes its own, then releases the handle it was born with. */
static void released_heirloom_keeps_the_childs_own_lock(void)
{
    fresh_path();
    cmq_lock *lock;
    int go[2];
    CHECK(pipe(go) == 0);
    CHECK_OK(cmq_lock_acquire(cmq_fs_posix(), path, &lock));
    const pid_t child = fork_child();
    if (child == 0) {
        char byte;
        cmq_lock *mine;
        if (read(go[0], &byte, 1) != 1) _exit(CHILD_FAILED);
        if (cmq_lock_acquire(cmq_fs_posix(), path, &mine) != CMQ_OK) _exit(CHILD_FAILED);
        cmq_lock_release(lock);
        const bool kept = child_tries() == CHILD_REFUSED;
        cmq_lock_release(mine);
        _exit(kept && child_tries() == CHILD_GOT_IT ? CHILD_GOT_IT : CHILD_FAILED);
    }
    cmq_lock_release(lock);
    CHECK(write(go[1], "g", 1) == 1);
    CHECK_INT(exit_code_of(child), CHILD_GOT_IT);
    close(go[0]);
    close(go[1]);
}

/* A file system on which the path appears to be missing until it is opened: a rename came between. */
static cmq_status stat_sees_nothing(cmq_fs *self, const char *at, cmq_file_info *info_out)
{
    (void)self, (void)info_out;
    return cmq_fail(CMQ_ERR_NOT_FOUND, "%s is not there yet", at);
}

static void path_that_changes_under_us_drops_nothing(void)
{
    fresh_path();
    cmq_fs_ops ops = *cmq_fs_posix()->ops;
    ops.stat = stat_sees_nothing;
    cmq_fs late = {.ops = &ops};
    cmq_lock *lock, *second;
    int64_t pid;
    CHECK_OK(cmq_lock_acquire(cmq_fs_posix(), path, &lock));
    CHECK_STATUS(cmq_lock_acquire(&late, path, &second), CMQ_ERR_LOCKED);
    CHECK_INT(child_tries(), CHILD_REFUSED);
    CHECK_OK(cmq_lock_probe(&late, path, &pid));
    CHECK_INT(pid, getpid());
    CHECK_INT(child_tries(), CHILD_REFUSED);
    cmq_lock_release(lock);
    CHECK_INT(child_tries(), CHILD_GOT_IT);
}

static void errors_are_typed_and_leave_nothing(void)
{
    fresh_path();
    cmq_lock *lock;
    char inside[CMQ_PATH_BYTES];
    CHECK_OK(cmq_path_join(inside, directory, "missing/lock"));
    CHECK_STATUS(cmq_lock_acquire(cmq_fs_posix(), inside, &lock), CMQ_ERR_NOT_FOUND);
    CHECK_STATUS(cmq_lock_acquire(cmq_fs_posix(), directory, &lock), CMQ_ERR_IO);   /* a directory */
    CHECK_OK(cmq_lock_acquire(cmq_fs_posix(), path, &lock));
    cmq_lock_release(lock);
}

static int child_acquires(void)
{
    const pid_t child = fork_child();
    if (child == 0) {
        cmq_lock *lock;
        const cmq_status status = cmq_lock_acquire(cmq_fs_posix(), path, &lock);
        _exit(status == CMQ_OK ? CHILD_GOT_IT : status == CMQ_ERR_LOCKED ? CHILD_REFUSED : CHILD_FAILED);
    }
    return exit_code_of(child);
}

static int64_t holder_seen_by_a_child(void)
{
    int told[2];
    int64_t pid = 0;
    CHECK(pipe(told) == 0);
    const pid_t child = fork_child();
    if (child == 0) {
        const bool probed = cmq_lock_probe(cmq_fs_posix(), path, &pid) == CMQ_OK;
        _exit(probed && write(told[1], &pid, sizeof pid) == sizeof pid ? CHILD_GOT_IT : CHILD_FAILED);
    }
    CHECK_INT(exit_code_of(child), CHILD_GOT_IT);
    CHECK(read(told[0], &pid, sizeof pid) == sizeof pid);
    close(told[0]);
    close(told[1]);
    return pid;
}

/* As shutil.copytree of the store in the writer's process does. */
static void open_and_close(void)
{
    const int descriptor = open(path, O_RDONLY);
    CHECK(descriptor >= 0);
    close(descriptor);
}

static void stray_close_lets_no_second_writer_in(void)
{
    fresh_path();
    cmq_lock *lock;
    CHECK_OK(cmq_lock_acquire(cmq_fs_posix(), path, &lock));
    open_and_close();
    CHECK_INT(child_acquires(), CHILD_REFUSED);
    CHECK_INT(holder_seen_by_a_child(), CMQ_LOCK_HOLDER_UNKNOWN);
    CHECK_OK(cmq_lock_keep(lock));
    CHECK_INT(child_tries(), CHILD_REFUSED);
    CHECK_INT(holder_seen_by_a_child(), getpid());
    cmq_lock_release(lock);
    CHECK_INT(child_acquires(), CHILD_GOT_IT);
}

static void lock_that_a_broker_took_meanwhile_is_reported(void)
{
    fresh_path();
    cmq_lock *lock;
    CHECK_OK(cmq_lock_acquire(cmq_fs_posix(), path, &lock));
    open_and_close();
    const keeper broker = start_keeper(false);
    CHECK_STATUS(cmq_lock_keep(lock), CMQ_ERR_LOCKED);
    end_keeper(broker);
    CHECK_OK(cmq_lock_keep(lock));
    CHECK_INT(child_acquires(), CHILD_REFUSED);
    cmq_lock_release(lock);
}

/* A holder that forks, and whose child lives on after the holder was killed or let go. */
static void surviving_child_keeps_no_lock(bool killed)
{
    fresh_path();
    int told[2], wait_on[2];
    CHECK(pipe(told) == 0 && pipe(wait_on) == 0);
    const pid_t parent = fork_child();
    if (parent == 0) {
        cmq_lock *lock;
        char byte = 0;
        close(wait_on[1]);
        if (cmq_lock_acquire(cmq_fs_posix(), path, &lock) != CMQ_OK) _exit(CHILD_FAILED);
        const pid_t child = fork();
        if (child == 0) {
            if (write(told[1], "c", 1) != 1) _exit(CHILD_FAILED);
            _exit(read(wait_on[0], &byte, 1) == 0 ? CHILD_GOT_IT : CHILD_FAILED);
        }
        if (!killed) cmq_lock_release(lock);
        if (write(told[1], "p", 1) != 1) _exit(CHILD_FAILED);
        for (;;) pause();
    }
    char bytes[2];
    close(told[1]);
    CHECK(read(told[0], &bytes[0], 1) == 1 && read(told[0], &bytes[1], 1) == 1);
    if (killed) {
        CHECK_INT(child_acquires(), CHILD_REFUSED);
        CHECK(kill(parent, SIGKILL) == 0);
        CHECK(waitpid(parent, NULL, 0) == parent);
    }
    CHECK_INT(child_acquires(), CHILD_GOT_IT);
    if (!killed) {
        CHECK(kill(parent, SIGKILL) == 0);
        CHECK(waitpid(parent, NULL, 0) == parent);
    }
    close(wait_on[0]);
    close(wait_on[1]);
    close(told[0]);
}

static void child_of_a_killed_holder_keeps_nothing(void) { surviving_child_keeps_no_lock(true); }
static void child_of_a_holder_that_let_go_keeps_nothing(void) { surviving_child_keeps_no_lock(false); }

/* ---- threads ---- */

static atomic_int holders, taken;

static void *take_and_release(void *unused)
{
    for (int i = 0; i < ROUNDS; i++) {
        cmq_lock *lock;
        int64_t pid;
        const cmq_status status = cmq_lock_acquire(cmq_fs_posix(), path, &lock);
        if (status == CMQ_OK) {
            CHECK_INT(atomic_fetch_add(&holders, 1), 0);
            atomic_fetch_add(&taken, 1);
            CHECK_INT(atomic_fetch_sub(&holders, 1), 1);
            cmq_lock_release(lock);
        } else {
            CHECK_STATUS(status, CMQ_ERR_LOCKED);
        }
        CHECK_OK(cmq_lock_probe(cmq_fs_posix(), path, &pid));
        CHECK(pid == CMQ_LOCK_FREE || pid == getpid());
    }
    return unused;
}

static void threads_exclude_each_other(void)
{
    fresh_path();
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, take_and_release, NULL) == 0);
    for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(atomic_load(&taken) > 0);
    CHECK_INT(child_tries(), CHILD_GOT_IT);
}

CMQ_TEST_MAIN(CMQ_TEST(takes_it_and_writes_four_bytes), CMQ_TEST(second_open_in_this_process_drops_nothing),
              CMQ_TEST(another_path_to_the_same_file_is_the_same_lock), CMQ_TEST(another_process_is_named),
              CMQ_TEST(probe_makes_nothing), CMQ_TEST(only_the_first_byte_counts),
              CMQ_TEST(child_after_fork_holds_nothing), CMQ_TEST(released_heirloom_keeps_the_childs_own_lock),
              CMQ_TEST(path_that_changes_under_us_drops_nothing), CMQ_TEST(stray_close_lets_no_second_writer_in),
              CMQ_TEST(lock_that_a_broker_took_meanwhile_is_reported), CMQ_TEST(child_of_a_killed_holder_keeps_nothing),
              CMQ_TEST(child_of_a_holder_that_let_go_keeps_nothing), CMQ_TEST(errors_are_typed_and_leave_nothing),
              CMQ_TEST(threads_exclude_each_other))
