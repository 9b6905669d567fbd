/* test_cmq_follow: the page that followers read and wait on: generations, waking across threads and processes, pages of
 * another kind.
 *
 * Threads: yes
 */
#include "store/follow/cmq_follow.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cmq_crc32.h"
#include "support/cmq_test.h"

#define LONG_MS 60000   /* longer than any test may take: a wait that reaches it was not woken */

static void begin(cmq_follow *writer, int64_t now_ms, int64_t end)
{
    const cmq_follow_values values = {.now_ms = now_ms, .confirmed_end = end, .files_end = end, .log_min = end};
    cmq_follow_begin(writer, &values);
}

static cmq_follow *writer_of(const char *root, int64_t now_ms)
{
    const cmq_follow_values values = {.now_ms = now_ms, .confirmed_end = 100, .files_end = 90, .log_min = 10};
    cmq_follow *writer;
    CHECK_OK(cmq_follow_take(cmq_fs_posix(), root, &writer));
    cmq_follow_begin(writer, &values);
    CHECK(cmq_follow_mode_of(writer) == CMQ_FOLLOW_WRITER);
    return writer;
}

static cmq_follow *follower_of(const char *root)
{
    cmq_follow *follower;
    CHECK_OK(cmq_follow_open(cmq_fs_posix(), root, &follower));
    CHECK(cmq_follow_mode_of(follower) == CMQ_FOLLOW_WAKES);
    return follower;
}

static cmq_follow_state state_of(const cmq_follow *follow)
{
    cmq_follow_state state;
    cmq_follow_snapshot(follow, &state);
    return state;
}

static void life(void)
{
    const char *root = cmq_test_directory();
    cmq_follow *follower;
    CHECK_STATUS(cmq_follow_open(cmq_fs_posix(), root, &follower), CMQ_ERR_NOT_FOUND);
    CHECK(follower == NULL);
    cmq_follow *writer = writer_of(root, 5000);
    follower = follower_of(root);
    cmq_follow_state state = state_of(follower);
    CHECK_INT(state.generation, 5000);
    CHECK_INT(state.writer_pid, getpid());
    CHECK_INT(state.confirmed_end, 100);
    CHECK_INT(state.files_end, 90);
    CHECK_INT(state.log_min, 10);
    CHECK_INT(state.beat_ms, 5000);
    CHECK(!state.closed);
    CHECK_STATUS(cmq_follow_wait(follower, state.sequence, 0), CMQ_AGAIN);
    CHECK_STATUS(cmq_follow_wait(follower, state.sequence, -5), CMQ_AGAIN);
    CHECK_STATUS(cmq_follow_wait(follower, state.sequence, 1), CMQ_AGAIN);
    cmq_follow_publish(writer, 250, 777);
    cmq_follow_set_files_end(writer, 200);
    cmq_follow_set_log_min(writer, 20);
    cmq_follow_beat(writer, 6000);
    CHECK_OK(cmq_follow_wait(follower, state.sequence, LONG_MS));
    CHECK_OK(cmq_follow_wait(follower, state.sequence, 0));
    state = state_of(follower);
    CHECK_INT(state.confirmed_end, 250);
    CHECK_INT(state.store_ms, 777);
    CHECK_INT(state.files_end, 200);
    CHECK_INT(state.log_min, 20);
    CHECK_INT(state.beat_ms, 6000);
    cmq_follow_close(writer);
    CHECK_OK(cmq_follow_wait(follower, state.sequence, LONG_MS));
    CHECK(state_of(follower).closed);
    cmq_follow_destroy(writer);
    cmq_follow_destroy(follower);
    cmq_follow_destroy(NULL);
}

/* A later writer is another generation on the same page, also when the clock went back or the writer before died at
 * once. */
static void generations(void)
{
    const char *root = cmq_test_directory();
    cmq_follow *writer = writer_of(root, 5000), *follower = follower_of(root);
    cmq_follow_publish(writer, 9999, 1);
    const uint32_t seen = state_of(follower).sequence;
    cmq_follow_destroy(writer);   /* died: not closed */
    CHECK(!state_of(follower).closed);
    writer = writer_of(root, 4000);
    CHECK_OK(cmq_follow_wait(follower, seen, LONG_MS));
    CHECK_INT(state_of(follower).generation, 5001);
    CHECK_INT(state_of(follower).confirmed_end, 100);
    cmq_follow_close(writer);
    cmq_follow_destroy(writer);
    writer = writer_of(root, 7000);
    CHECK_INT(state_of(follower).generation, 7000);
    CHECK(!state_of(follower).closed);
    cmq_follow_destroy(writer);
    writer = writer_of(root, -3);
    CHECK_INT(state_of(follower).generation, 7001);
    cmq_follow_destroy(writer);
    cmq_follow_destroy(follower);
}

/* ---- a follower that may not write ---- */

static cmq_fs_ops read_only_ops;
static cmq_fs read_only_fs = {.ops = &read_only_ops};

static cmq_status refuse_writing(cmq_fs *self, const char *path, cmq_open_mode mode, cmq_file **file_out)
{
    *file_out = NULL;
    if (mode != CMQ_OPEN_READ) return cmq_fail_errno(EACCES, "cannot open %s", path);
    return cmq_fs_posix()->ops->open(self, path, mode, file_out);
}

static void *publish_once(void *context)
{
    cmq_follow_publish(context, 300, 1);
    return NULL;
}

static void polling(void)
{
    read_only_ops = *cmq_fs_posix()->ops;
    read_only_ops.open = refuse_writing;
    const char *root = cmq_test_directory();
    cmq_follow *follower;
    CHECK_STATUS(cmq_follow_open(&read_only_fs, root, &follower), CMQ_ERR_NOT_FOUND);
    cmq_follow *writer = writer_of(root, 5000);
    CHECK_OK(cmq_follow_open(&read_only_fs, root, &follower));
    CHECK(cmq_follow_mode_of(follower) == CMQ_FOLLOW_POLLS);
    const uint32_t seen = state_of(follower).sequence;
    CHECK_STATUS(cmq_follow_wait(follower, seen, 7), CMQ_AGAIN);
    cmq_follow_wake(follower);   /* cannot, and does not try */
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, publish_once, writer) == 0);
    CHECK_OK(cmq_follow_wait(follower, seen, LONG_MS));
    pthread_join(thread, NULL);
    CHECK_INT(state_of(follower).confirmed_end, 300);
    cmq_follow_destroy(follower);
    cmq_follow_destroy(writer);
}

/* ---- pages of another kind ---- */

static void write_page(const char *root, const void *bytes, size_t count, uint64_t length)
{
    char folder[CMQ_PATH_BYTES], path[CMQ_PATH_BYTES];
    CHECK_OK(cmq_path_join(folder, root, "cometmq"));
    CHECK_OK(cmq_fs_make_directory(cmq_fs_posix(), folder));
    CHECK_OK(cmq_path_join(path, folder, "follow"));
    cmq_file *file;
    CHECK_OK(cmq_file_open(cmq_fs_posix(), path, CMQ_OPEN_CREATE, &file));
    CHECK_OK(cmq_file_resize(file, length));
    if (count > 0) CHECK_OK(cmq_file_write(file, 0, bytes, count));
    cmq_file_close(file);
}

static void pages_of_another_kind(void)
{
    static const uint64_t lengths[] = {0, 1, 4095, 4096, 5000};
    for (size_t i = 0; i < 5; i++) {
        const char *root = cmq_test_directory();
        write_page(root, "noise", lengths[i] < 5 ? 0 : 5, lengths[i]);
        cmq_follow *follower;
        CHECK_STATUS(cmq_follow_open(cmq_fs_posix(), root, &follower), CMQ_ERR_NOT_FOUND);
        cmq_follow *writer = writer_of(root, 5000);   /* takes it over */
        follower = follower_of(root);
        CHECK_INT(state_of(follower).generation, 5000);
        cmq_follow_destroy(writer);
        cmq_follow_destroy(follower);
    }
    /* A version of tomorrow, and a head that its checksum does not cover. */
    const char *root = cmq_test_directory();
    cmq_follow_destroy(writer_of(root, 5000));
    cmq_follow *follower = follower_of(root);
    char path[CMQ_PATH_BYTES];
    CHECK_OK(cmq_path_join(path, root, "cometmq/follow"));
    cmq_file *file;
    CHECK_OK(cmq_file_open(cmq_fs_posix(), path, CMQ_OPEN_WRITE, &file));
    CHECK_OK(cmq_file_write(file, 24, "\x01", 1));   /* the process id */
    CHECK_INT(state_of(follower).generation, 0);
    cmq_follow_destroy(follower);
    CHECK_OK(cmq_file_write(file, 8, "\x02", 1));    /* the version */
    CHECK_STATUS(cmq_follow_open(cmq_fs_posix(), root, &follower), CMQ_ERR_NOT_FOUND);
    cmq_file_close(file);
}

/* ---- proofs by a page ---- */

static int64_t acknowledged(const char *root)
{
    int64_t end;
    CHECK_OK(cmq_follow_acknowledged(cmq_fs_posix(), root, &end));
    return end;
}

/* Leave a page as a writer that died: `synced` or not, with the log confirmed up to `end`. */
static void leave_page(const char *root, bool synced, int64_t end)
{
    const cmq_follow_values values = {.now_ms = 5000, .confirmed_end = 100, .synced = synced};
    cmq_follow *writer;
    CHECK_OK(cmq_follow_take(cmq_fs_posix(), root, &writer));
    cmq_follow_begin(writer, &values);
    cmq_follow_publish(writer, end, 0);
    cmq_follow_destroy(writer);
}

static void patch(const char *root, uint64_t at, const void *bytes, size_t count)
{
    char path[CMQ_PATH_BYTES];
    cmq_file *file;
    CHECK_OK(cmq_path_join(path, root, "cometmq/follow"));
    CHECK_OK(cmq_file_open(cmq_fs_posix(), path, CMQ_OPEN_WRITE, &file));
    CHECK_OK(cmq_file_write(file, at, bytes, count));
    cmq_file_close(file);
}

enum {
    AT_GENERATION = 16,
    AT_CONFIRMED = 64,
    AT_END_AGAIN = 88,
    AT_WRITER = 384,
    AT_BEAT = 424,
    AT_FLAGS = 432,
    AT_WRITER_CRC = 436,
    WRITER_BYTES = 56
};

/* Let the page be of another boot, with the checksum that it would have. */
static void reboot(const char *root)
{
    uint8_t writer[WRITER_BYTES], words[56] = {0};
    char path[CMQ_PATH_BYTES];
    cmq_file *file;
    CHECK_OK(cmq_path_join(path, root, "cometmq/follow"));
    CHECK_OK(cmq_file_open(cmq_fs_posix(), path, CMQ_OPEN_READ, &file));
    CHECK_OK(cmq_file_read(file, 0, words, 4));
    CHECK_OK(cmq_file_read(file, AT_WRITER, writer, sizeof writer));
    CHECK_OK(cmq_file_read(file, AT_GENERATION, words + 48, 8));
    cmq_file_close(file);
    writer[3] ^= 1;
    memcpy(words + 4, writer, 40);
    memcpy(words + 44, writer + 48, 4);
    const uint32_t crc = cmq_crc32(words, sizeof words);
    memcpy(writer + 52, &crc, sizeof crc);
    patch(root, AT_WRITER, writer, sizeof writer);
}

static void acknowledged_ends(void)
{
    const char *root = cmq_test_directory();
    CHECK_INT(acknowledged(root), 0);
    for (int synced = 0; synced < 2; synced++) {
        leave_page(root, synced != 0, 250);
        CHECK_INT(acknowledged(root), 250);   /* of this boot: at least in the page cache */
        reboot(root);
        CHECK_INT(acknowledged(root), synced ? 250 : 0);
        /* A recovery that is killed, twice, keeps what it found, and the next generation is later than all. */
        cmq_follow *writer;
        for (int kill = 0; kill < 2; kill++) {
            CHECK_OK(cmq_follow_take(cmq_fs_posix(), root, &writer));
            CHECK_INT(state_of(writer).generation, 0);
            CHECK_INT(acknowledged(root), synced ? 250 : 0);
            cmq_follow_destroy(writer);
        }
        CHECK_OK(cmq_follow_take(cmq_fs_posix(), root, &writer));
        begin(writer, 6000, 120);   /* recovered, and now shorter: somebody cut it on purpose */
        CHECK_INT(acknowledged(root), 120);
        cmq_follow_destroy(writer);
    }
    CHECK_OK(cmq_follow_forget(cmq_fs_posix(), root));
    CHECK_INT(acknowledged(root), 0);
    CHECK_OK(cmq_follow_forget(cmq_fs_posix(), cmq_test_directory()));   /* there is none */
}

/* No CRC covers the end, which changes with every append: a flipped bit of it must neither move it, which would keep a
 * healthy store from being opened, nor lose it. */
static void damaged_end_is_outvoted(void)
{
    static const uint64_t places[] = {AT_CONFIRMED, AT_END_AGAIN, AT_END_AGAIN + 8};
    const char *root = cmq_test_directory();
    leave_page(root, true, 250);
    const int64_t end = 250, wrong = 250 + (INT64_C(1) << 40);
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        patch(root, places[i], &wrong, sizeof wrong);
        CHECK_INT(acknowledged(root), 250);
        patch(root, places[i], &end, sizeof end);
    }
    const int64_t other = 7;
    patch(root, places[0], &wrong, sizeof wrong);
    patch(root, places[1], &other, sizeof other);
    CHECK_INT(acknowledged(root), 0);
}

static void copies_and_damaged_pages_prove_nothing(void)
{
    const char *root = cmq_test_directory(), *other = cmq_test_directory();
    leave_page(root, true, 250);
    uint8_t page[4096];
    char path[CMQ_PATH_BYTES];
    cmq_file *file;
    CHECK_OK(cmq_path_join(path, root, "cometmq/follow"));
    CHECK_OK(cmq_file_open(cmq_fs_posix(), path, CMQ_OPEN_READ, &file));
    CHECK_OK(cmq_file_read(file, 0, page, sizeof page));
    cmq_file_close(file);
    write_page(other, page, sizeof page, sizeof page);
    CHECK_INT(acknowledged(other), 0);
    for (uint64_t at = AT_WRITER; at < AT_WRITER + WRITER_BYTES; at++) {
        if (at >= AT_BEAT && at < AT_FLAGS) continue;
        const uint8_t flipped = page[at] ^ 4;
        patch(root, at, &flipped, 1);
        CHECK_INT(acknowledged(root), 0);
        patch(root, at, &page[at], 1);
    }
    CHECK_INT(acknowledged(root), 250);
}

static void lives(void)
{
    const char *root = cmq_test_directory();
    leave_page(root, true, 250);
    cmq_follow *follower = follower_of(root);
    CHECK_INT(cmq_follow_life_of(follower, getpid()), CMQ_FOLLOW_PROVEN);
    CHECK_INT(cmq_follow_life_of(follower, CMQ_LOCK_FREE), CMQ_FOLLOW_STALE);
    CHECK_INT(cmq_follow_life_of(follower, getpid() + 1), CMQ_FOLLOW_STALE);
    /* From another namespace the process cannot be identified: a beat of this boot has to be fresh. */
    CHECK_INT(cmq_follow_life_of(follower, CMQ_LOCK_HOLDER_UNKNOWN), CMQ_FOLLOW_LIKELY);
    static const int64_t long_ago = -1000000000;
    patch(root, AT_BEAT, &long_ago, sizeof long_ago);
    CHECK_INT(cmq_follow_life_of(follower, CMQ_LOCK_HOLDER_UNKNOWN), CMQ_FOLLOW_STALE);
    CHECK_INT(cmq_follow_life_of(follower, getpid()), CMQ_FOLLOW_PROVEN);
    cmq_follow *writer;
    CHECK_OK(cmq_follow_take(cmq_fs_posix(), root, &writer));
    CHECK_INT(cmq_follow_life_of(follower, getpid()), CMQ_FOLLOW_PROVEN);   /* it recovers */
    begin(writer, 6000, 250);
    cmq_follow_beat(writer, 7000);
    CHECK_INT(cmq_follow_life_of(follower, CMQ_LOCK_HOLDER_UNKNOWN), CMQ_FOLLOW_LIKELY);
    reboot(root);
    CHECK_INT(cmq_follow_life_of(follower, getpid()), CMQ_FOLLOW_STALE);
    CHECK_INT(cmq_follow_life_of(follower, CMQ_LOCK_HOLDER_UNKNOWN), CMQ_FOLLOW_STALE);
    cmq_follow_close(writer);
    CHECK_INT(cmq_follow_life_of(follower, getpid()), CMQ_FOLLOW_STALE);
    /* A page of before says who its process is, and no more. */
    static const uint8_t nothing[WRITER_BYTES + 48];
    leave_page(root, true, 250);
    patch(root, AT_WRITER, nothing, sizeof nothing);
    CHECK_INT(cmq_follow_life_of(follower, getpid()), CMQ_FOLLOW_LIKELY);
    CHECK_INT(cmq_follow_life_of(follower, CMQ_LOCK_HOLDER_UNKNOWN), CMQ_FOLLOW_STALE);
    cmq_follow_destroy(writer);
    cmq_follow_destroy(follower);
}

/* ---- threads and processes ---- */

#define ROUNDS 2000

typedef struct partner {
    cmq_follow *follow;           /* waits on it */
    cmq_follow *back;             /* publishes its answer there */
} partner;

/* Wait for every end in turn and answer it: no wake-up may be lost in either direction. */
static void *answer(void *context)
{
    partner *ping = context;
    for (int64_t end = 100; end < 100 + ROUNDS;) {
        const cmq_follow_state state = state_of(ping->follow);
        CHECK(state.confirmed_end >= end);
        if (state.confirmed_end > end) {
            end = state.confirmed_end;
            cmq_follow_publish(ping->back, end, 0);
            continue;
        }
        CHECK_OK(cmq_follow_wait(ping->follow, state.sequence, LONG_MS));
    }
    return NULL;
}

static void ask(cmq_follow *writer, cmq_follow *back)
{
    for (int64_t end = 101; end <= 100 + ROUNDS; end++) {
        cmq_follow_publish(writer, end, 0);
        for (;;) {
            const cmq_follow_state state = state_of(back);
            if (state.confirmed_end == end) break;
            CHECK_OK(cmq_follow_wait(back, state.sequence, LONG_MS));
        }
    }
}

static void ping_between_threads(void)
{
    const char *root = cmq_test_directory(), *back_root = cmq_test_directory();
    cmq_follow *writer = writer_of(root, 5000), *back = writer_of(back_root, 5000);
    partner ping = {.follow = follower_of(root), .back = back};
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, answer, &ping) == 0);
    ask(writer, back);   /* waiting on a writer's own page works too */
    pthread_join(thread, NULL);
    cmq_follow_destroy(ping.follow);
    cmq_follow_destroy(writer);
    cmq_follow_destroy(back);
}

static void ping_between_processes(void)
{
    const char *root = cmq_test_directory(), *back_root = cmq_test_directory();
    cmq_follow *writer = writer_of(root, 5000), *back = writer_of(back_root, 5000);
    cmq_follow *back_follower = follower_of(back_root);
    fflush(stdout);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        partner ping = {.follow = follower_of(root), .back = back};
        (void)answer(&ping);
        _exit(0);
    }
    ask(writer, back_follower);
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    cmq_follow_destroy(back_follower);
    cmq_follow_destroy(writer);
    cmq_follow_destroy(back);
}

/* Several wait at once; one publish, or one wake, wakes all. */
static void *wait_for_close(void *context)
{
    for (;;) {
        const cmq_follow_state state = state_of(context);
        if (state.closed) return NULL;
        CHECK_OK(cmq_follow_wait(context, state.sequence, LONG_MS));
    }
}

static void all_are_woken(void)
{
    const char *root = cmq_test_directory();
    cmq_follow *writer = writer_of(root, 5000), *followers[4];
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        followers[i] = i == 3 ? writer : follower_of(root);
        CHECK(pthread_create(&threads[i], NULL, wait_for_close, followers[i]) == 0);
    }
    for (int64_t end = 0; end < 500; end++) cmq_follow_publish(writer, 100 + end, 0);
    cmq_follow_wake(followers[0]);
    cmq_follow_close(writer);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < 3; i++) cmq_follow_destroy(followers[i]);
    cmq_follow_destroy(writer);
}

/* While writers come and go, a snapshot never mixes two of them. */
static _Atomic bool ended;

static void *look(void *context)
{
    int64_t last = 0;
    while (!atomic_load(&ended)) {
        const cmq_follow_state state = state_of(context);
        if (state.generation == 0) continue;
        CHECK(state.generation >= last);
        last = state.generation;
        CHECK_INT(state.files_end, state.generation);
        CHECK_INT(state.log_min, state.generation);
        CHECK(state.confirmed_end >= state.generation && state.confirmed_end < state.generation + 10);
    }
    return NULL;
}

static void snapshots_do_not_mix(void)
{
    const char *root = cmq_test_directory();
    cmq_follow *writer;
    CHECK_OK(cmq_follow_take(cmq_fs_posix(), root, &writer));
    begin(writer, 10, 10);
    cmq_follow *follower = follower_of(root);
    atomic_store(&ended, false);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, look, follower) == 0);
    for (int64_t generation = 20; generation < 4000; generation += 10) {
        cmq_follow_destroy(writer);
        CHECK_OK(cmq_follow_take(cmq_fs_posix(), root, &writer));
        begin(writer, generation, generation);
        for (int64_t end = generation; end < generation + 10; end++) cmq_follow_publish(writer, end, 0);
    }
    atomic_store(&ended, true);
    pthread_join(thread, NULL);
    cmq_follow_destroy(follower);
    cmq_follow_destroy(writer);
}

CMQ_TEST_MAIN(CMQ_TEST(ping_between_processes), CMQ_TEST(life), CMQ_TEST(acknowledged_ends),
              CMQ_TEST(damaged_end_is_outvoted), CMQ_TEST(copies_and_damaged_pages_prove_nothing), CMQ_TEST(lives),
              CMQ_TEST(generations), CMQ_TEST(polling), CMQ_TEST(pages_of_another_kind), CMQ_TEST(ping_between_threads),
              CMQ_TEST(all_are_woken), CMQ_TEST(snapshots_do_not_mix))
