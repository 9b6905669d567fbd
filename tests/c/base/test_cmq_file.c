/* Tests csrc/base/cmq_file.c and cmq_file_posix.c: exact transfers, typed errors that name the path, holes, mappings,
 * names, paths as text.
 *
 * Threads: yes
 * Failures that the machine's own file system does not have are forced in a child process: a limit on file sizes cuts
 * writes short, a seccomp filter takes fallocate and MADV_POPULATE_WRITE away and fails fdatasync, a tiny tmpfs is
 * full. Where a child may not do that, the case prints so and is skipped.
 */
#include "base/cmq_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/cmq_test.h"

#define MIB (1u << 20)
#define LEFT_OUT 77
#define NOBODY 65534
#define POPULATE_WRITE 23   /* MADV_POPULATE_WRITE */

static cmq_fs *fs;
static const char *directory;

/* ---- helpers ---- */

static void start(void)
{
    fs = cmq_fs_posix();
    directory = cmq_test_directory();
}

static const char *in(const char *name)
{
    static char paths[4][CMQ_PATH_BYTES];
    static unsigned next;
    char *into = paths[next++ % 4];
    CHECK_OK(cmq_path_join(into, directory, name));
    return into;
}

static cmq_file *make(const char *name, uint64_t bytes)
{
    cmq_file *file;
    CHECK_OK(cmq_file_open(fs, in(name), CMQ_OPEN_CREATE, &file));
    CHECK_OK(cmq_file_resize(file, bytes));
    return file;
}

static cmq_file_info info_of(cmq_file *file)
{
    cmq_file_info info;
    CHECK_OK(cmq_file_info_of(file, &info));
    return info;
}

static void check_all(cmq_file *file, uint64_t offset, size_t bytes, int value)
{
    uint8_t *content = malloc(bytes);
    CHECK(content != NULL);
    CHECK_OK(cmq_file_read(file, offset, content, bytes));
    for (size_t i = 0; i < bytes; i++) CHECK_INT(content[i], value);
    free(content);
}

static void fill(cmq_file *file, uint64_t offset, size_t bytes, int value)
{
    uint8_t *content = malloc(bytes);
    CHECK(content != NULL);
    memset(content, value, bytes);
    CHECK_OK(cmq_file_write(file, offset, content, bytes));
    free(content);
}

static bool text_has(const char *part) { return strstr(cmq_last_error()->text, part) != NULL; }

/* Run `body` in a child, where it may spoil the process; it returns 0 or LEFT_OUT, or fails a CHECK. */
static void run_in_child(const char *what, int (*body)(void))
{
    fflush(stdout);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) _exit(body());
    int state;
    CHECK(waitpid(child, &state, 0) == child);
    CHECK(WIFEXITED(state));
    if (WEXITSTATUS(state) == LEFT_OUT) printf("left out, not permitted here: %s\n", what);
    else CHECK_INT(WEXITSTATUS(state), 0);
}

/* From now on system call `number`, with `argument` in its third place unless that is -1, fails with `sys_errno`.
 * False: not permitted. */
static bool make_call_fail(int number, int argument, int sys_errno)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)number, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)argument, 0, argument == -1 ? 0 : 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ((unsigned)sys_errno & SECCOMP_RET_DATA)),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog program = {.len = sizeof code / sizeof code[0], .filter = code};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

/* ---- opening ---- */

static void open_modes(void)
{
    start();
    cmq_file *file;
    CHECK_STATUS(cmq_file_open(fs, in("a"), CMQ_OPEN_READ, &file), CMQ_ERR_NOT_FOUND);
    CHECK(text_has(in("a")) && text_has("No such file"));
    CHECK_INT(cmq_last_error()->sys_errno, ENOENT);
    CHECK_STATUS(cmq_file_open(fs, in("a"), CMQ_OPEN_WRITE, &file), CMQ_ERR_NOT_FOUND);
    CHECK_OK(cmq_file_open(fs, in("a"), CMQ_OPEN_CREATE_NEW, &file));
    CHECK_OK(cmq_file_write(file, 0, "abc", 3));
    cmq_file_close(file);
    CHECK_STATUS(cmq_file_open(fs, in("a"), CMQ_OPEN_CREATE_NEW, &file), CMQ_ERR_IO);
    CHECK_INT(cmq_last_error()->sys_errno, EEXIST);
    CHECK_OK(cmq_file_open(fs, in("a"), CMQ_OPEN_CREATE, &file));
    CHECK_INT(info_of(file).bytes, 3);   /* kept */
    cmq_file_close(file);
    CHECK_OK(cmq_file_open(fs, in("a"), CMQ_OPEN_READ, &file));
    CHECK_STATUS(cmq_file_write(file, 0, "x", 1), CMQ_ERR_IO);
    CHECK(text_has(in("a")));
    cmq_file_close(file);
    cmq_file_close(NULL);
    CHECK_STATUS(cmq_file_open(fs, in("a/b"), CMQ_OPEN_CREATE, &file), CMQ_ERR_IO);
    CHECK_INT(cmq_last_error()->sys_errno, ENOTDIR);
}

static void descriptors_are_not_inherited(void)
{
    start();
    cmq_file *file = make("a", 0);
    int found = 0;
    for (int descriptor = 3; descriptor < 256; descriptor++) {
        struct stat from;
        if (fstat(descriptor, &from) != 0 || (uint64_t)from.st_ino != info_of(file).inode) continue;
        found++;
        CHECK((fcntl(descriptor, F_GETFD) & FD_CLOEXEC) != 0);
    }
    CHECK_INT(found, 1);
    cmq_file_close(file);
}

static int refused_to_nobody(void)
{
    cmq_file *file;
    if (getuid() == 0 && setuid(NOBODY) != 0) return LEFT_OUT;
    CHECK_STATUS(cmq_file_open(fs, in("closed/a"), CMQ_OPEN_CREATE, &file), CMQ_ERR_PERMISSION);
    CHECK(text_has(in("closed/a")));
    CHECK_STATUS(cmq_fs_make_directory(fs, in("closed/d")), CMQ_ERR_PERMISSION);
    return 0;
}

static void directories_that_may_not_be_written(void)
{
    start();
    CHECK_OK(cmq_fs_make_directory(fs, in("closed")));
    CHECK(chmod(directory, 0755) == 0);
    CHECK(chmod(in("closed"), 0555) == 0);
    run_in_child("another user", refused_to_nobody);
}

static void long_paths_keep_their_reason(void)
{
    start();
    char path[CMQ_PATH_BYTES] = "/missing";
    while (strlen(path) < 1000) CHECK_OK(cmq_path_join(path, path, "a-name-of-some-length-\xC3\xA4"));
    cmq_file *file;
    CHECK_STATUS(cmq_file_open(fs, path, CMQ_OPEN_READ, &file), CMQ_ERR_NOT_FOUND);
    CHECK(text_has("No such file"));
    CHECK(text_has("-length-\xC3\xA4:"));
}

/* ---- transfers ---- */

static void reads_and_writes_are_exact(void)
{
    start();
    cmq_file *file = make("a", 0);
    uint8_t content[4];
    CHECK_OK(cmq_file_write(file, 1000, "tail", 4));
    CHECK_OK(cmq_file_write(file, 0, NULL, 0));
    CHECK_OK(cmq_file_read(file, 1000, content, 4));
    CHECK_BYTES(content, 4, "tail", 4);
    CHECK_INT(info_of(file).bytes, 1004);
    check_all(file, 0, 1000, 0);
    CHECK_STATUS(cmq_file_read(file, 1002, content, 4), CMQ_ERR_CORRUPT);
    CHECK(text_has("file ends") && text_has(in("a")) && text_has("1004"));
    CHECK_INT(cmq_last_error()->offset, 1004);
    CHECK_STATUS(cmq_file_read(file, 5000, content, 1), CMQ_ERR_CORRUPT);
    CHECK_OK(cmq_file_read(file, 5000, content, 0));
    CHECK_OK(cmq_file_sync(file));
    cmq_file_close(file);
}

static void ranges_beyond_2_63_are_refused(void)
{
    start();
    cmq_file *file = make("a", 10);
    uint8_t byte = 0, *data;
    uint64_t found;
    const uint64_t far = (uint64_t)INT64_MAX + 1;
    CHECK_STATUS(cmq_file_read(file, far, &byte, 1), CMQ_ERR_ARGUMENT);
    CHECK_STATUS(cmq_file_read(file, UINT64_MAX, &byte, 1), CMQ_ERR_ARGUMENT);
    CHECK_STATUS(cmq_file_write(file, (uint64_t)INT64_MAX, &byte, 1), CMQ_ERR_ARGUMENT);
    CHECK_STATUS(cmq_file_resize(file, far), CMQ_ERR_ARGUMENT);
    CHECK_STATUS(cmq_file_reserve(file, 1, UINT64_MAX), CMQ_ERR_ARGUMENT);
    CHECK_STATUS(cmq_file_punch(file, far, 1), CMQ_ERR_ARGUMENT);
    CHECK_STATUS(cmq_file_next_data(file, far, &found), CMQ_ERR_ARGUMENT);
    CHECK_STATUS(cmq_file_map(file, far, 1, true, &data), CMQ_ERR_ARGUMENT);
    CHECK_INT(info_of(file).bytes, 10);
    cmq_file_close(file);
}

/* The limit lets the first pwrite finish a part only; the rest is tried, and fails, at its own offset. */
static int writes_meet_a_limit(void)
{
    const struct rlimit limit = {.rlim_cur = 100000, .rlim_max = 100000};
    signal(SIGXFSZ, SIG_IGN);
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return LEFT_OUT;
    cmq_file *file = make("a", 0);
    uint8_t *content = malloc(MIB);
    CHECK(content != NULL);
    memset(content, 'a', MIB);
    CHECK_STATUS(cmq_file_write(file, 0, content, MIB), CMQ_ERR_IO);
    CHECK_INT(cmq_last_error()->sys_errno, EFBIG);
    CHECK(text_has("at byte 100000"));
    check_all(file, 0, 100000, 'a');
    CHECK_STATUS(cmq_file_resize(file, MIB), CMQ_ERR_IO);
    free(content);
    cmq_file_close(file);
    return 0;
}

static void short_writes_go_on_where_they_stopped(void)
{
    start();
    run_in_child("RLIMIT_FSIZE", writes_meet_a_limit);
}

static int sync_fails(void)
{
    cmq_file *file = make("a", 10);
    if (!make_call_fail(SYS_fdatasync, -1, EIO)) return LEFT_OUT;
    CHECK_STATUS(cmq_file_sync(file), CMQ_ERR_IO);
    CHECK_INT(cmq_last_error()->sys_errno, EIO);
    CHECK(text_has(in("a")));
    cmq_file_close(file);
    return 0;
}

static void a_failing_sync_is_reported(void)
{
    start();
    run_in_child("seccomp", sync_fails);
}

/* ---- holes ---- */

static void holes_cost_nothing_until_reserved(void)
{
    start();
    cmq_file *file = make("a", 4 * MIB);
    uint64_t found = 0;
    CHECK(info_of(file).allocated_bytes < MIB);
    CHECK_STATUS(cmq_file_next_data(file, 0, &found), CMQ_END);
    fill(file, 2 * MIB + 100, 10, 'x');
    CHECK_OK(cmq_file_next_data(file, 0, &found));
    CHECK(found <= 2 * MIB + 100 && found > MIB);   /* the block's start, on most file systems */
    CHECK_OK(cmq_file_next_hole(file, 0, &found));
    CHECK_INT(found, 0);
    CHECK_OK(cmq_file_next_hole(file, 2 * MIB + 105, &found));
    CHECK(found >= 2 * MIB + 110 && found < 3 * MIB);
    CHECK_STATUS(cmq_file_next_hole(file, 9 * MIB, &found), CMQ_ERR_IO);
    CHECK_STATUS(cmq_file_next_data(file, 3 * MIB, &found), CMQ_END);
    CHECK_STATUS(cmq_file_next_data(file, 9 * MIB, &found), CMQ_END);
    CHECK_OK(cmq_file_reserve(file, 0, 4 * MIB));
    CHECK_OK(cmq_file_reserve(file, 0, 0));
    CHECK_OK(cmq_file_sync(file));
    CHECK(info_of(file).allocated_bytes >= 4 * MIB);
    CHECK_INT(info_of(file).bytes, 4 * MIB);
    check_all(file, 2 * MIB + 100, 10, 'x');
    CHECK_OK(cmq_file_reserve(file, 4 * MIB, MIB));   /* beyond the end: the length stays */
    CHECK_INT(info_of(file).bytes, 4 * MIB);
    cmq_file_close(file);
}

static void check_punched(cmq_file *file)
{
    fill(file, 0, MIB, 'a');
    CHECK_OK(cmq_file_punch(file, 1000, 500000));
    CHECK_OK(cmq_file_punch(file, 0, 0));
    check_all(file, 0, 1000, 'a');
    check_all(file, 1000, 500000, 0);
    check_all(file, 501000, MIB - 501000, 'a');
    CHECK_OK(cmq_file_punch(file, MIB - 10, MIB));   /* over the end */
    check_all(file, MIB - 10, 10, 0);
    CHECK_INT(info_of(file).bytes, MIB);
}

static void punched_ranges_read_as_zero(void)
{
    start();
    cmq_file *file = make("a", 0);
    check_punched(file);
    cmq_file_close(file);
}

static int without_fallocate(void)
{
    if (!make_call_fail(SYS_fallocate, -1, EOPNOTSUPP)) return LEFT_OUT;
    cmq_file *file = make("a", MIB);
    fill(file, 300000, 5000, 'x');
    CHECK_OK(cmq_file_reserve(file, 100, 800000));
    CHECK_OK(cmq_file_sync(file));
    CHECK(info_of(file).allocated_bytes >= 800000);
    CHECK(info_of(file).allocated_bytes < MIB);
    check_all(file, 0, 300000, 0);
    check_all(file, 300000, 5000, 'x');
    CHECK_OK(cmq_file_reserve(file, 0, 2 * MIB));   /* the length stays here too */
    CHECK_INT(info_of(file).bytes, MIB);
    check_all(file, 300000, 5000, 'x');
    check_punched(file);
    cmq_file_close(file);
    return 0;
}

static void file_systems_without_fallocate_get_zeros(void)
{
    start();
    run_in_child("seccomp", without_fallocate);
}

/* ---- a full disk ---- */

static bool write_text(const char *path, const char *text)
{
    const int descriptor = open(path, O_WRONLY);
    const bool written = descriptor >= 0 && write(descriptor, text, strlen(text)) == (ssize_t)strlen(text);
    close(descriptor);
    return written;
}

/* A mount namespace of its own; a user who is not root becomes root of it. */
static bool enter_own_mounts(void)
{
    char map[64];
    const unsigned user = getuid(), group = getgid();
    if (user == 0) return unshare(CLONE_NEWNS) == 0;
    if (unshare(CLONE_NEWNS | CLONE_NEWUSER) != 0) return false;
    snprintf(map, sizeof map, "0 %u 1", user);
    if (!write_text("/proc/self/uid_map", map) || !write_text("/proc/self/setgroups", "deny")) return false;
    snprintf(map, sizeof map, "0 %u 1", group);
    return write_text("/proc/self/gid_map", map);
}

static int on_a_tiny_disk(void)
{
    cmq_disk_space space;
    if (!enter_own_mounts()) return LEFT_OUT;
    if (mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0) return LEFT_OUT;
    if (mount("none", directory, "tmpfs", 0, "size=256k") != 0) return LEFT_OUT;
    CHECK_OK(cmq_fs_disk_space(fs, directory, &space));
    CHECK_INT(space.total_bytes, 256 * 1024);
    cmq_file *file = make("a", MIB);
    uint8_t *data, *content = calloc(1, MIB);
    CHECK(content != NULL);
    CHECK_STATUS(cmq_file_reserve(file, 0, MIB), CMQ_ERR_DISK_FULL);
    CHECK(text_has(in("a")) && text_has("No space"));
    CHECK_OK(cmq_file_reserve(file, 0, 128 * 1024));
    CHECK_STATUS(cmq_file_write(file, 0, content, MIB), CMQ_ERR_DISK_FULL);
    CHECK_OK(cmq_file_map(file, 0, MIB, true, &data));
    const cmq_status populated = cmq_file_populate(data, MIB);
    if (populated != CMQ_ERR_DISK_FULL)
        fprintf(stderr, "this kernel populates by touching, which was not tried on a full disk\n");
    cmq_file_unmap(file, data, MIB);
    CHECK_OK(cmq_file_punch(file, 0, MIB));
    CHECK_OK(cmq_file_write(file, 0, content, 128 * 1024));   /* space again */
    free(content);
    cmq_file_close(file);
    return 0;
}

static void a_full_disk_is_named(void)
{
    start();
    run_in_child("mounting a tmpfs", on_a_tiny_disk);
}

/* ---- mappings ---- */

static void mappings_are_the_file(void)
{
    start();
    cmq_file *file = make("a", 100000);
    uint8_t *data, *whole;
    fill(file, 5001, 10, 'r');
    CHECK_OK(cmq_file_map(file, 5001, 90000, true, &data));   /* neither end on a page */
    CHECK_OK(cmq_file_map(file, 0, 100000, false, &whole));
    CHECK_BYTES(data, 10, "rrrrrrrrrr", 10);
    memset(data + 80000, 'w', 10);
    check_all(file, 85001, 10, 'w');
    CHECK_BYTES(whole + 85001, 10, "wwwwwwwwww", 10);
    CHECK_OK(cmq_file_sync_mapped(file, data + 80003, 3));
    CHECK_OK(cmq_file_sync_mapped(file, data, 90000));
    /* It outlives the handle, and another one of the same file system takes it down. */
    cmq_file_close(file);
    CHECK_INT(data[80005], 'w');
    cmq_file *other = make("b", 0);
    cmq_file_unmap(other, data, 90000);
    cmq_file_unmap(other, whole, 100000);
    cmq_file_close(other);
}

static void only_bytes_of_the_file_are_mapped(void)
{
    start();
    cmq_file *file = make("a", 10000);
    uint8_t *data;
    CHECK_STATUS(cmq_file_map(file, 0, 10001, false, &data), CMQ_ERR_ARGUMENT);
    CHECK(text_has(in("a")) && text_has("10000"));
    CHECK_STATUS(cmq_file_map(file, 10001, 1, false, &data), CMQ_ERR_ARGUMENT);
    CHECK_STATUS(cmq_file_map(file, 0, 0, false, &data), CMQ_ERR_ARGUMENT);
    CHECK_OK(cmq_file_map(file, 9999, 1, false, &data));
    cmq_file_unmap(file, data, 1);
    cmq_file_close(file);
    CHECK_OK(cmq_file_open(fs, in("a"), CMQ_OPEN_READ, &file));
    CHECK_STATUS(cmq_file_map(file, 0, 10000, true, &data), CMQ_ERR_PERMISSION);
    cmq_file_close(file);
}

/* ---- populating, beside a thread that stores ---- */

#define COUNTERS 64
static uint8_t *counted;
static size_t counted_bytes;

static void *count_in_every_page(void *unused)
{
    for (int round = 0; round < COUNTERS; round++)
        for (size_t at = 0; at < counted_bytes; at += 4096) __atomic_fetch_add(counted + at, 1, __ATOMIC_RELAXED);
    return unused;
}

static int populate_beside_a_writer(void)
{
    cmq_file *file = make("a", MIB);
    CHECK_OK(cmq_file_reserve(file, 0, MIB));
    CHECK_OK(cmq_file_map(file, 0, MIB, true, &counted));
    counted_bytes = MIB;
    counted[100] = 'k';
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, count_in_every_page, NULL) == 0);
    for (int i = 0; i < 20; i++) CHECK_OK(cmq_file_populate(counted + 3, MIB - 3));
    CHECK(pthread_join(thread, NULL) == 0);
    for (size_t at = 0; at < MIB; at += 4096) CHECK_INT(counted[at], COUNTERS);
    CHECK_INT(counted[100], 'k');
    CHECK_OK(cmq_file_populate(counted, 0));
    cmq_file_unmap(file, counted, MIB);
    cmq_file_close(file);
    CHECK_OK(cmq_fs_remove(fs, in("a")));
    return 0;
}

static int populate_without_the_call(void)
{
    if (!make_call_fail(SYS_madvise, POPULATE_WRITE, EINVAL)) return LEFT_OUT;
    return populate_beside_a_writer();
}

static void populating_changes_nothing(void)
{
    start();
    CHECK_INT(populate_beside_a_writer(), 0);
    run_in_child("seccomp", populate_without_the_call);
}

/* ---- names ---- */

static void lists_are_sorted(void)
{
    start();
    char **names;
    size_t count;
    CHECK_OK(cmq_fs_list(fs, directory, &names, &count));
    CHECK_INT(count, 0);
    cmq_fs_free_names(names, count);
    for (int i = 40; i-- > 0;) {
        char name[16];
        snprintf(name, sizeof name, "%02d", i * 7 % 40);
        cmq_file_close(make(name, 0));
    }
    CHECK_OK(cmq_fs_make_directory(fs, in("0")));
    CHECK_OK(cmq_fs_list(fs, directory, &names, &count));
    CHECK_INT(count, 41);
    CHECK(strcmp(names[0], "0") == 0 && strcmp(names[1], "00") == 0 && strcmp(names[40], "39") == 0);
    for (size_t i = 1; i < count; i++) CHECK(strcmp(names[i - 1], names[i]) < 0);
    cmq_fs_free_names(names, count);
    CHECK_STATUS(cmq_fs_list(fs, in("none"), &names, &count), CMQ_ERR_NOT_FOUND);
    CHECK_STATUS(cmq_fs_list(fs, in("01"), &names, &count), CMQ_ERR_IO);
}

static void stat_tells_files_apart(void)
{
    start();
    cmq_file *file = make("a", 12345);
    cmq_file_info by_path, other;
    CHECK_OK(cmq_fs_stat(fs, in("a"), &by_path));
    CHECK_INT(by_path.bytes, 12345);
    CHECK(!by_path.is_directory);
    CHECK(by_path.modified_ms > INT64_C(1600000000000));
    CHECK(by_path.device == info_of(file).device && by_path.inode == info_of(file).inode);
    CHECK_OK(cmq_fs_stat(fs, directory, &other));
    CHECK(other.is_directory && other.inode != by_path.inode);
    CHECK_STATUS(cmq_fs_stat(fs, in("none"), &other), CMQ_ERR_NOT_FOUND);
    CHECK(text_has(in("none")));
    cmq_file_close(file);
}

static void directories_with_their_parents(void)
{
    start();
    cmq_file_info info;
    char path[CMQ_PATH_BYTES];
    CHECK_OK(cmq_fs_make_directory(fs, in("x/y//z/")));
    CHECK_OK(cmq_fs_make_directory(fs, in("x/y/z")));
    CHECK_OK(cmq_fs_make_directory_unsynced(fs, in("u/v")));
    CHECK_OK(cmq_fs_remove_directory(fs, in("u/v")));
    CHECK_OK(cmq_fs_stat(fs, in("x/y/z"), &info));
    CHECK(info.is_directory);
    cmq_file_close(make("file", 1));
    CHECK_STATUS(cmq_fs_make_directory(fs, in("file")), CMQ_ERR_IO);
    CHECK_STATUS(cmq_fs_make_directory(fs, in("file/below")), CMQ_ERR_IO);
    CHECK_INT(cmq_last_error()->sys_errno, ENOTDIR);
    CHECK_STATUS(cmq_fs_make_directory(fs, ""), CMQ_ERR_ARGUMENT);
    memset(path, 'p', sizeof path - 1);
    path[sizeof path - 1] = '\0';
    CHECK_STATUS(cmq_fs_make_directory(fs, path), CMQ_ERR_IO);
    CHECK_INT(cmq_last_error()->sys_errno, ENAMETOOLONG);
    CHECK_STATUS(cmq_fs_remove_directory(fs, in("x")), CMQ_ERR_IO);
    CHECK_OK(cmq_fs_remove_directory(fs, in("x/y/z")));
    CHECK_STATUS(cmq_fs_remove_directory(fs, in("x/y/z")), CMQ_ERR_NOT_FOUND);
    CHECK_OK(cmq_fs_sync_directory(fs, in("x/y")));
    CHECK_STATUS(cmq_fs_sync_directory(fs, in("none")), CMQ_ERR_NOT_FOUND);
    CHECK_STATUS(cmq_fs_sync_directory(fs, in("file")), CMQ_ERR_IO);
    CHECK_STATUS(cmq_fs_sync_all(fs, in("none")), CMQ_ERR_NOT_FOUND);
    CHECK_OK(cmq_fs_require_root(fs, in("x")));
    CHECK_STATUS(cmq_fs_require_root(fs, in("none")), CMQ_ERR_IO);
    CHECK(text_has("was moved or deleted; put it back"));
    CHECK_OK(cmq_fs_make_directory_in(fs, in("x"), in("x/below/below")));
    CHECK_STATUS(cmq_fs_make_directory_in(fs, in("none"), in("none/below")), CMQ_ERR_IO);
    CHECK_STATUS(cmq_fs_require_root(fs, in("none")), CMQ_ERR_IO);
}

static void relative_directories(void)
{
    start();
    char before[CMQ_PATH_BYTES];
    cmq_file_info info;
    CHECK(getcwd(before, sizeof before) != NULL);
    CHECK(chdir(directory) == 0);
    CHECK_OK(cmq_fs_make_directory(fs, "one"));
    CHECK_OK(cmq_fs_make_directory(fs, "./two/three"));
    CHECK_OK(cmq_fs_stat(fs, "two/three", &info));
    CHECK(chdir(before) == 0);
    CHECK_OK(cmq_fs_stat(fs, in("one"), &info));
}

static void files_move_and_go(void)
{
    start();
    cmq_file_info info;
    cmq_file_close(make("a", 1));
    cmq_file_close(make("b", 2));
    CHECK_OK(cmq_fs_rename(fs, in("a"), in("b")));
    CHECK_OK(cmq_fs_stat(fs, in("b"), &info));
    CHECK_INT(info.bytes, 1);
    CHECK_STATUS(cmq_fs_rename(fs, in("a"), in("c")), CMQ_ERR_NOT_FOUND);
    CHECK(text_has("/a") && text_has("/c"));
    CHECK_OK(cmq_fs_remove(fs, in("b")));
    CHECK_STATUS(cmq_fs_remove(fs, in("b")), CMQ_ERR_NOT_FOUND);
    CHECK_STATUS(cmq_fs_remove(fs, directory), CMQ_ERR_IO);
}

static void space_adds_up(void)
{
    start();
    cmq_disk_space space;
    CHECK_OK(cmq_fs_disk_space(fs, directory, &space));
    CHECK(space.total_bytes > 0 && space.free_bytes <= space.total_bytes && space.usable_bytes <= space.free_bytes);
    CHECK_STATUS(cmq_fs_disk_space(fs, in("none"), &space), CMQ_ERR_NOT_FOUND);
}

/* ---- paths as text ---- */

static void paths_join(void)
{
    static const char *const cases[][3] = {
        {"a", "b", "a/b"}, {"a/", "b", "a/b"}, {"/", "b", "/b"},          {"", "b", "b"},
        {"a", "", "a"},    {"", "", ""},       {"a/b", "c/d", "a/b/c/d"},
    };
    char path[CMQ_PATH_BYTES], a[CMQ_PATH_BYTES];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        CHECK_OK(cmq_path_join(path, cases[i][0], cases[i][1]));
        CHECK(strcmp(path, cases[i][2]) == 0);
        strcpy(a, cases[i][0]);
        CHECK_OK(cmq_path_join(a, a, cases[i][1]));   /* in place */
        CHECK(strcmp(a, cases[i][2]) == 0);
    }
    memset(a, 'a', sizeof a);
    for (size_t bytes = CMQ_PATH_BYTES - 5; bytes < CMQ_PATH_BYTES; bytes++) {
        a[bytes] = '\0';
        const bool fits = bytes + strlen("/b") < CMQ_PATH_BYTES;
        CHECK_STATUS(cmq_path_join(path, a, "b"), fits ? CMQ_OK : CMQ_ERR_ARGUMENT);
        if (fits) CHECK_INT(strlen(path), bytes + 2);
        CHECK_STATUS(cmq_path_join(path, a, ""), CMQ_OK);
        a[bytes] = 'a';
    }
}

static void offsets_have_names(void)
{
    char name[CMQ_OFFSET_NAME_BYTES];
    int64_t offset;
    cmq_path_offset_name(name, 0);
    CHECK(strcmp(name, "00000000000000000000") == 0);
    cmq_path_offset_name(name, INT64_C(1073741824));
    CHECK(strcmp(name, "00000000001073741824") == 0);
    cmq_path_offset_name(name, INT64_MAX);
    CHECK(strcmp(name, "09223372036854775807") == 0);
    for (int i = 0; i < 1000; i++) {
        const int64_t given = (int64_t)(cmq_test_random() >> (1 + cmq_test_random_below(60)));
        cmq_path_offset_name(name, given);
        CHECK_INT(strlen(name), 20);
        CHECK_OK(cmq_path_parse_offset_name(name, &offset));
        CHECK_INT(offset, given);
    }
    static const char *const wrong[] = {"",
                                        "0",
                                        "0000000000000000000",
                                        "000000000000000000000",
                                        "0000000000000000000a",
                                        "-0000000000000000001",
                                        " 0000000000000000001",
                                        "09223372036854775808",
                                        "99999999999999999999",
                                        "00000000000000000000.bak"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        CHECK_STATUS(cmq_path_parse_offset_name(wrong[i], &offset), CMQ_ERR_NOT_STORE);
}

/* The kinds of this machine's file systems cannot be known; the question has an answer for files, directories and none.
 * */
static void overwrites_can_be_asked(void)
{
    char name[CMQ_PATH_BYTES];
    cmq_file *file;
    cmq_overwrites of_folder, of_file;
    const char *folder = cmq_test_directory();
    CHECK_OK(cmq_path_join(name, folder, "file"));
    CHECK_OK(cmq_file_open(cmq_fs_posix(), name, CMQ_OPEN_CREATE, &file));
    CHECK_OK(cmq_file_write(file, 0, "bytes", 5));
    cmq_file_close(file);
    CHECK_OK(cmq_fs_overwrites(cmq_fs_posix(), folder, &of_folder));
    CHECK_OK(cmq_fs_overwrites(cmq_fs_posix(), name, &of_file));
    CHECK_INT(of_file, of_folder);   /* nobody has copied it */
    CHECK_OK(cmq_fs_remove(cmq_fs_posix(), name));
    CHECK_STATUS(cmq_fs_overwrites(cmq_fs_posix(), name, &of_file), CMQ_ERR_NOT_FOUND);
}

CMQ_TEST_MAIN(CMQ_TEST(overwrites_can_be_asked), CMQ_TEST(open_modes), CMQ_TEST(descriptors_are_not_inherited),
              CMQ_TEST(directories_that_may_not_be_written), CMQ_TEST(long_paths_keep_their_reason),
              CMQ_TEST(reads_and_writes_are_exact), CMQ_TEST(ranges_beyond_2_63_are_refused),
              CMQ_TEST(short_writes_go_on_where_they_stopped), CMQ_TEST(a_failing_sync_is_reported),
              CMQ_TEST(holes_cost_nothing_until_reserved), CMQ_TEST(punched_ranges_read_as_zero),
              CMQ_TEST(file_systems_without_fallocate_get_zeros), CMQ_TEST(a_full_disk_is_named),
              CMQ_TEST(mappings_are_the_file), CMQ_TEST(only_bytes_of_the_file_are_mapped),
              CMQ_TEST(populating_changes_nothing), CMQ_TEST(lists_are_sorted), CMQ_TEST(stat_tells_files_apart),
              CMQ_TEST(directories_with_their_parents), CMQ_TEST(relative_directories), CMQ_TEST(files_move_and_go),
              CMQ_TEST(space_adds_up), CMQ_TEST(paths_join), CMQ_TEST(offsets_have_names))
