/* Tests csrc/store/follow/cmq_follower.c: read-only stores, alone, beside a writer of ours, and after writers died.
 *
 * Threads: yes
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cmq_crc32.h"
#include "base/cmq_lock.h"
#include "store/follow/cmq_follow.h"
#include "support/cmq_ledger.h"
#include "support/cmq_store_kit.h"
#include "support/cmq_view_kit.h"

/* ---- nobody writes ---- */

static void add_to_sum(void *context, const char *path, int64_t bytes)
{
    uint32_t *sum = context;
    uint8_t *data = malloc((size_t)bytes + 1);
    CHECK(data != NULL);
    if (bytes > 0) kit_read_bytes(path, 0, data, (size_t)bytes);
    *sum = *sum * 31 + cmq_crc32(data, (size_t)bytes) + cmq_crc32(path, strlen(path));
    free(data);
}

/* After a clean end and after a crash, whole or with files missing: everything is seen, nothing is touched. */
static void alone(void)
{
    for (int way = 0; way < 6; way++) {
        char why[LEDGER_WHY_BYTES];
        uint32_t found, before = 0, after = 0;
        ledger book;
        cmq_appended appended;
        view_kit_start();
        cmq_store *writer = kit_open_at(view_root);
        ledger_init(&book, cmq_test_random());
        for (int i = 0; i < 20; i++) {
            CHECK_OK(ledger_append(&book, writer, 1 + (uint32_t)cmq_test_random_below(ledger_group_left(&book)),
                                   &(ledger_call){0}, &appended));
            if (i == 10) CHECK_OK(cmq_store_maintain(writer, true));
        }
        if (way % 2 == 0) kit_close(writer);
        else cmq_store_abandon(writer);
        if (way == 2 || way == 3) kit_remove_tree(kit_path(view_root, "cometmq"));
        if (way == 4 || way == 5) kit_remove_tree(kit_path(view_root, "consumequeue"));
        kit_each_file(view_root, add_to_sum, &before);
        cmq_store *follower = view_kit_open();
        const ledger_expected expected = {.acknowledged = book.count, .index_may_lack = true};
        if (!ledger_check(&book, follower, &expected, &found, why))
            cmq_test_fail(__FILE__, __LINE__, "way %d: %s", way, why);
        cmq_store_info info;
        CHECK_OK(cmq_store_info_of(follower, &info));
        CHECK(info.read_only && !info.writer_alive);
        CHECK_STATUS(kit_try_append(follower, "T", 0, "m", NULL, NULL, &appended), CMQ_ERR_READ_ONLY);
        CHECK_STATUS(cmq_store_flush(follower), CMQ_ERR_READ_ONLY);
        CHECK_STATUS(cmq_store_maintain(follower, true), CMQ_ERR_READ_ONLY);
        CHECK_STATUS(cmq_store_delete_topic(follower, kit_slice("T")), CMQ_ERR_READ_ONLY);
        CHECK_STATUS(cmq_store_expire(follower, true, &found), CMQ_ERR_READ_ONLY);
        kit_close(follower);
        kit_each_file(view_root, add_to_sum, &after);
        CHECK_INT(after, before);
        ledger_free(&book);
    }
}

/* The CRC does not cover the topic: one that cannot be ends what is seen, as it ends a recovery. */
static void a_topic_that_cannot_be(void)
{
    uint8_t record[512];
    view_kit_start();
    cmq_store *writer = kit_open_at(view_root);
    kit_append(writer, "T", 0, "m0", NULL, NULL);
    const cmq_appended last = kit_append(writer, "T", 0, "m1", NULL, NULL);
    cmq_store_abandon(writer);
    kit_remove_tree(kit_path(view_root, "cometmq"));
    kit_remove_tree(kit_path(view_root, "consumequeue"));
    const char *segment = kit_path(view_root, "commitlog/00000000000000000000");
    const int64_t bytes = last.end - last.first_physical_offset;
    CHECK(bytes <= (int64_t)sizeof record);
    kit_read_bytes(segment, last.first_physical_offset, record, (size_t)bytes);
    const uint8_t *topic = memmem(record, (size_t)bytes, "\x01T", 2);
    CHECK(topic != NULL);
    kit_write_bytes(segment, last.first_physical_offset + (topic - record) + 1, "/", 1);
    cmq_store *follower = view_kit_open();
    view_kit_check(follower, "m0");
    kit_close(follower);
}

static void nothing_to_follow(void)
{
    cmq_store *follower;
    view_kit_start();
    cmq_store_options options = kit_options(view_root);
    options.read_only = true;
    CHECK_STATUS(cmq_store_open(&follower, &options), CMQ_ERR_NOT_FOUND);
    CHECK(!kit_exists(view_root));
    CHECK_OK(cmq_fs_make_directory(cmq_fs_posix(), kit_path(view_root, "photos")));
    CHECK_STATUS(cmq_store_open(&follower, &options), CMQ_ERR_NOT_STORE);
}

/* ---- beside a writer of ours ---- */

static void a_live_view(void)
{
    for (int mode = 0; mode < 2; mode++) {
        view_kit_start();
        cmq_store_options options = kit_options(view_root);
        options.flush = mode == 0 ? CMQ_FLUSH_SYNC : CMQ_FLUSH_ASYNC;
        cmq_store *writer = kit_open(&options);
        kit_append(writer, "T", 0, "a", NULL, "k");
        cmq_store *follower = view_kit_open();
        cmq_store_info info;
        CHECK_OK(cmq_store_info_of(follower, &info));
        CHECK(info.writer_alive && info.writer_is_ours);
        view_kit_check(follower, "a");
        kit_append(writer, "T", 1, "b", NULL, "k");   /* another queue, in no file yet */
        view_kit_check(follower, "a b");
        CHECK_OK(cmq_store_maintain(writer, true));
        view_kit_check(follower, "a b");
        kit_append(writer, "U", 0, "c", NULL, NULL);
        CHECK_OK(cmq_store_refresh(follower));
        CHECK_TEXT(kit_read_topic(follower, "U"), "c");
        kit_found *found = kit_found_make(10);
        CHECK_OK(cmq_store_find_key(follower, kit_slice("T"), kit_slice("k"), 0, INT64_MAX, &found->batch));
        CHECK_INT(found->batch.count, 2);
        kit_found_free(found);
        /* Nobody sees unconfirmed messages. */
        const cmq_append unwaited = {.common = {.topic = kit_slice("T")}, .count = 1, .no_wait = true};
        cmq_appended appended;
        CHECK_OK(cmq_store_append(writer, &unwaited, &appended));
        CHECK_OK(cmq_store_refresh(follower));
        CHECK(cmq_store_confirmed(follower) == (mode == 0 ? appended.first_physical_offset : appended.end));
        CHECK_OK(cmq_store_flush(writer));
        CHECK_OK(cmq_store_refresh(follower));
        CHECK_INT(cmq_store_confirmed(follower), appended.end);
        kit_close(follower);
        kit_close(writer);
    }
}

/* Rolls, durable points and retention under a follower that looks now and then, against the writer's own view. */
static void a_long_life(void)
{
    view_kit_start();
    cmq_store_options options = kit_options(view_root);
    options.retention = (cmq_retention){.reserved_ms = 1, .files_per_round = 1};
    cmq_store *writer = kit_open(&options);
    kit_append(writer, "T", 0, "first", NULL, NULL);
    cmq_store *follower = view_kit_open();
    char expected[1 << 16];
    for (int i = 0; i < 900; i++) {
        char body[64];
        uint32_t deleted;
        snprintf(body, sizeof body, "message-%d", i);
        kit_append(writer, i % 5 == 0 ? "U" : "T", i % 3, body, i % 2 == 0 ? "tag" : NULL, "key");
        if (i % 100 == 50) CHECK_OK(cmq_store_maintain(writer, i % 200 == 50));
        if (i % 250 == 249) {
            CHECK_OK(cmq_store_refresh(follower));
            CHECK_OK(cmq_store_maintain(writer, true));
            CHECK_OK(cmq_store_expire(writer, true, &deleted));
        }
        if (i % 60 != 59) continue;
        snprintf(expected, sizeof expected, "%s", kit_read_all(writer));
        CHECK_OK(cmq_store_refresh(follower));
        CHECK_TEXT(kit_read_all(follower), expected);
        snprintf(expected, sizeof expected, "%s", kit_read_topic(writer, "T"));
        CHECK_TEXT(kit_read_topic(follower, "T"), expected);
        CHECK_INT(kit_min(follower, "T", 0), kit_min(writer, "T", 0));
        CHECK_INT(kit_max(follower, "U", 1), kit_max(writer, "U", 1));
    }
    kit_close(follower);
    kit_close(writer);
}

/* A writer closes, another opens: the same view goes on. */
static void from_writer_to_writer(void)
{
    view_kit_start();
    cmq_store *writer = kit_open_at(view_root);
    kit_append(writer, "T", 0, "a", NULL, NULL);
    cmq_store *follower = view_kit_open();
    view_kit_check(follower, "a");
    kit_append(writer, "T", 0, "b", NULL, NULL);
    kit_close(writer);
    view_kit_check(follower, "a b");
    cmq_store_info info;
    CHECK_OK(cmq_store_info_of(follower, &info));
    CHECK(!info.writer_alive);
    CHECK_STATUS(cmq_store_wait_more(follower, cmq_store_confirmed(follower), 5), CMQ_AGAIN);
    writer = kit_open_at(view_root);
    kit_append(writer, "T", 0, "c", NULL, NULL);
    view_kit_check(follower, "a b c");
    cmq_store_abandon(writer);
    view_kit_check(follower, "a b c");
    writer = kit_open_at(view_root);
    kit_append(writer, "T", 0, "d", NULL, NULL);
    view_kit_check(follower, "a b c d");
    kit_close(writer);
    kit_close(follower);
}

/* A new writer cut what a follower had seen of its predecessor's end: the view cannot go on, and says so. */
static void cut_below_the_view(void)
{
    view_kit_start();
    cmq_store *writer = kit_open_at(view_root);
    kit_append(writer, "T", 0, "a", NULL, NULL);
    const cmq_appended b = kit_append(writer, "T", 0, "b", NULL, NULL);
    cmq_store *follower = view_kit_open();
    view_kit_check(follower, "a b");
    cmq_store_abandon(writer);
    static const uint8_t zeros[8];
    kit_write_bytes(kit_path(view_root, "commitlog/00000000000000000000"), b.first_physical_offset, zeros,
                    sizeof zeros);
    CHECK_OK(cmq_store_refresh(follower));
    CHECK_OK(cmq_follow_forget(cmq_fs_posix(),
                               view_root)); /* it proves that "b" was acknowledged; a repair that cuts does this */
    cmq_reader *reader;
    bool end;
    kit_found *found = kit_found_make(8);
    CHECK_OK(cmq_reader_open(follower, &(cmq_read_options){0}, &reader));
    writer = kit_open_at(view_root);
    CHECK_STATUS(cmq_store_refresh(follower), CMQ_ERR_CLOSED);
    /* For good: also once the log has grown past the view's end, and for readers that were there before. */
    kit_append(writer, "T", 0, "c, which is longer", NULL, NULL);
    CHECK_STATUS(cmq_store_refresh(follower), CMQ_ERR_CLOSED);
    CHECK_STATUS(cmq_store_read_offset(follower, kit_slice("T"), 0, 1, &found->batch), CMQ_ERR_CLOSED);
    CHECK_STATUS(cmq_reader_next(reader, &found->batch, &end), CMQ_ERR_CLOSED);
    CHECK_STATUS(cmq_store_wait_more(follower, 0, 5), CMQ_ERR_CLOSED);
    CHECK(strstr(cmq_last_error()->text, "cut its log") != NULL);
    cmq_reader_close(reader);
    kit_found_free(found);
    kit_close(follower);
    follower = view_kit_open();
    CHECK_TEXT(kit_read_topic(follower, "T"), "a c, which is longer");
    kit_close(follower);
    kit_close(writer);
}

/* The same, but the new writer has passed the view's end again before the view looks: the end proves nothing. */
static void cut_and_written_again_below_the_view(void)
{
    for (int round = 0; round < 3; round++) {
        const bool closed = round == 1;
        view_kit_start();
        cmq_store *writer = kit_open_at(view_root);
        kit_append(writer, "T", 0, "a", NULL, NULL);
        const cmq_appended b = kit_append(writer, "T", 0, "b", NULL, NULL);
        cmq_store *follower = view_kit_open();
        view_kit_check(follower, "a b");
        cmq_store_abandon(writer);
        static const uint8_t zeros[8];
        kit_write_bytes(kit_path(view_root, "commitlog/00000000000000000000"), b.first_physical_offset, zeros,
                        sizeof zeros);
        CHECK_OK(cmq_follow_forget(cmq_fs_posix(), view_root));
        writer = kit_open_at(view_root);
        kit_append(writer, "T", 0, "c", NULL, NULL);   /* as long as "b": it ends where the view stands */
        if (round < 2) kit_append(writer, "T", 0, "d", NULL, NULL);
        if (closed) kit_close(writer);
        CHECK_STATUS(cmq_store_refresh(follower), CMQ_ERR_CLOSED);
        CHECK_INT(cmq_last_error()->offset, b.first_physical_offset);
        kit_close(follower);
        follower = view_kit_open();
        CHECK_TEXT(kit_read_topic(follower, "T"), round < 2 ? "a c d" : "a c");
        kit_close(follower);
        if (!closed) kit_close(writer);
    }
}

static atomic_int stats_fail;   /* so many looks at files of the log fail */

static cmq_status failing_stat(cmq_fs *self, const char *path, cmq_file_info *info_out)
{
    (void)self;
    if (strstr(path, "/commitlog/") != NULL && atomic_load(&stats_fail) > 0) {
        atomic_fetch_sub(&stats_fail, 1);
        return cmq_fail(CMQ_ERR_IO, "out of descriptors");
    }
    return cmq_fs_stat(cmq_fs_posix(), path, info_out);
}

/* The checks that a new writer asks for fail at first: they are made at the next look. */
static void a_failed_check_is_made_again(void)
{
    static const uint8_t zeros[8];
    cmq_fs_ops ops = *cmq_fs_posix()->ops;
    ops.stat = failing_stat;
    cmq_fs fs = {.ops = &ops};
    view_kit_start();
    cmq_store *writer = kit_open_at(view_root);
    kit_append(writer, "T", 0, "a", NULL, NULL);
    const cmq_appended b = kit_append(writer, "T", 0, "b", NULL, NULL);
    cmq_store_options options = kit_options(view_root);
    options.read_only = true;
    options.create = false;
    options.fs = &fs;
    cmq_store *follower = kit_open(&options);
    view_kit_check(follower, "a b");
    cmq_store_abandon(writer);
    kit_write_bytes(kit_path(view_root, "commitlog/00000000000000000000"), b.first_physical_offset, zeros,
                    sizeof zeros);
    CHECK_OK(cmq_follow_forget(cmq_fs_posix(), view_root));
    writer = kit_open_at(view_root);
    kit_append(writer, "T", 0, "c", NULL, NULL);   /* as long as "b": it ends where the view stands */
    atomic_store(&stats_fail, 1);
    CHECK_STATUS(cmq_store_refresh(follower), CMQ_ERR_IO);
    CHECK_INT(atomic_load(&stats_fail), 0);
    CHECK_STATUS(cmq_store_refresh(follower), CMQ_ERR_CLOSED);
    CHECK_INT(cmq_last_error()->offset, b.first_physical_offset);
    kit_close(follower);
    kit_close(writer);
}

/* Between two looks of a view without a writer one came, cut the log at a segment's start, wrote that segment again,
 * and closed. */
static void a_writer_that_passed_by_replaced_a_segment(void)
{
    static char large[KIT_SEGMENT_BYTES / 2 + 1];
    memset(large, 'x', sizeof large - 1);
    view_kit_start();
    cmq_store *writer = kit_open_at(view_root);
    kit_append(writer, "T", 0, large, NULL, NULL);
    const cmq_appended b = kit_append(writer, "T", 0, large, NULL, NULL);
    CHECK_INT(b.first_physical_offset, KIT_SEGMENT_BYTES);
    cmq_store_abandon(writer);
    cmq_store *follower = view_kit_open();
    CHECK_OK(cmq_store_refresh(follower));
    CHECK_OK(cmq_fs_remove(cmq_fs_posix(), kit_path(view_root, "commitlog/00000000000000016384")));
    CHECK_OK(cmq_follow_forget(cmq_fs_posix(), view_root));
    writer = kit_open_at(view_root);
    kit_append(writer, "T", 0, "c", NULL, NULL);
    large[0] = 'y';
    CHECK_INT(kit_append(writer, "T", 0, large, NULL, NULL).first_physical_offset, KIT_SEGMENT_BYTES);
    kit_close(writer);
    CHECK_STATUS(cmq_store_refresh(follower), CMQ_ERR_CLOSED);
    CHECK_INT(cmq_last_error()->offset, b.first_physical_offset);
    kit_close(follower);
}

/* ---- waiting ---- */

typedef struct waiting {
    cmq_store *store;
    _Atomic int64_t seen;
    _Atomic bool stop;
} waiting;

static void *wait_on(void *argument)
{
    waiting *self = argument;
    int64_t seen = 0;
    while (!atomic_load(&self->stop)) {
        const cmq_status status = cmq_store_wait_more(self->store, seen, 100);
        if (status == CMQ_AGAIN) continue;
        CHECK_OK(status);
        seen = cmq_store_confirmed(self->store);
        atomic_store(&self->seen, seen);
    }
    return NULL;
}

/* Woken by each append: a thousand turns take far less than a poll each would. */
static void woken_at_once(void)
{
    view_kit_start();
    cmq_store_options options = kit_options(view_root);
    options.flush = CMQ_FLUSH_ASYNC;
    cmq_store *writer = kit_open(&options);
    pthread_t threads[2];
    waiting waits[2] = {{.store = view_kit_open()}, {.store = writer}};
    for (int i = 0; i < 2; i++) CHECK(pthread_create(&threads[i], NULL, wait_on, &waits[i]) == 0);
    for (int i = 0; i < 300; i++) {
        const int64_t end = kit_append(writer, "T", i % 3, "ping", NULL, NULL).end;
        for (int turn = 0; turn < 2; turn++)
            while (atomic_load(&waits[turn].seen) < end) sched_yield();
        if (i % 50 == 0) CHECK_OK(cmq_store_maintain(writer, true));
    }
    for (int i = 0; i < 2; i++) {
        atomic_store(&waits[i].stop, true);
        CHECK(pthread_join(threads[i], NULL) == 0);
    }
    CHECK_INT(kit_max(waits[0].store, "T", 0), 100);
    kit_close(waits[0].store);
    kit_close(writer);
}

/* A writer in another process, killed in the middle, and followers here the whole time. */
static void beside_another_process(void)
{
    view_kit_start();
    int ends[2];
    kit_close(kit_open_at(view_root));
    cmq_store *follower = view_kit_open();
    CHECK(pipe(ends) == 0);
    fflush(NULL);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        cmq_store_abandon(follower);
        cmq_store *writer = kit_open_at(view_root);
        for (int i = 0;; i++) {
            char body[32];
            snprintf(body, sizeof body, "m%d", i);
            kit_append(writer, "T", 0, body, NULL, NULL);
            if (write(ends[1], &i, sizeof i) != sizeof i) _exit(1);
            if (i % 100 == 99) CHECK_OK(cmq_store_maintain(writer, i % 200 == 199));
        }
    }
    int last = -1;
    int64_t seen = 0;
    while (last < 400) {
        CHECK(read(ends[0], &last, sizeof last) == sizeof last);
        if (last % 10 != 0) continue;
        CHECK_OK(cmq_store_refresh(follower));
        CHECK(kit_max(follower, "T", 0) > last);
        CHECK(cmq_store_confirmed(follower) >= seen);
        seen = cmq_store_confirmed(follower);
    }
    CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
    while (fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0 && read(ends[0], &last, sizeof last) == sizeof last) continue;
    close(ends[0]);
    close(ends[1]);
    CHECK_OK(cmq_store_refresh(follower));
    CHECK(kit_max(follower, "T", 0) > last);
    cmq_store_info info;
    CHECK_OK(cmq_store_info_of(follower, &info));
    CHECK(!info.writer_alive);
    cmq_store *writer = kit_open_at(view_root);
    CHECK(kit_max(writer, "T", 0) > last);
    kit_append(writer, "T", 0, "after", NULL, NULL);
    CHECK_OK(cmq_store_refresh(follower));
    CHECK_INT(cmq_store_confirmed(follower), cmq_store_confirmed(writer));
    kit_close(writer);
    kit_close(follower);
}

/* ---- writers that died ---- */

/* Append message "b" as a writer leaves it that is killed while it writes the properties; returns the confirmed end. */
static int64_t append_half_and_die(cmq_store *writer)
{
    enum { KEY_BYTES = 700, TORN_BYTES = 300 };
    static const uint64_t ends_in_page[] = {64, 88, 96};
    static const uint8_t zeros[TORN_BYTES];
    char key[KEY_BYTES + 1] = {0};
    memset(key, 'k', KEY_BYTES);
    const int64_t confirmed = cmq_store_confirmed(writer);
    CHECK_INT(kit_append(writer, "T", 0, "b", NULL, key).first_physical_offset, confirmed);
    const int64_t end = cmq_store_confirmed(writer);
    cmq_store_abandon(writer);
    for (int i = 0; i < 3; i++)
        kit_write_bytes(kit_path(view_root, "cometmq/follow"), (int64_t)ends_in_page[i], &confirmed, sizeof confirmed);
    kit_write_bytes(kit_path(view_root, "commitlog/00000000000000000000"), end - TORN_BYTES, zeros, sizeof zeros);
    return confirmed;
}

/* A view that is opened when the next writer has the lock and the page, and has not recovered the log yet. */
static void torn_record_is_not_shown_while_a_writer_opens(void)
{
    cmq_lock *lock;
    cmq_follow *page;
    view_kit_start();
    cmq_store *writer = kit_open_at(view_root);
    kit_append(writer, "T", 0, "a", NULL, NULL);
    append_half_and_die(writer);
    CHECK_OK(cmq_lock_acquire(cmq_fs_posix(), kit_path(view_root, "lock"), &lock));
    CHECK_OK(cmq_follow_take(cmq_fs_posix(), view_root, &page));
    cmq_store *view = view_kit_open();
    view_kit_check(view, "a");
    cmq_follow_destroy(page);
    cmq_lock_release(lock);
    writer = kit_open_at(view_root);
    kit_append(writer, "T", 0, "c", NULL, NULL);
    view_kit_check(view, "a c");
    kit_close(writer);
    kit_close(view);
}

/* A view that followed a writer to its end: a record that was half written at the kill is not a message, though its
 * body is whole. */
static void torn_record_of_a_killed_writer_is_not_shown(void)
{
    view_kit_start();
    cmq_store *writer = kit_open_at(view_root);
    kit_append(writer, "T", 0, "a", NULL, NULL);
    cmq_store *follower = view_kit_open();
    view_kit_check(follower, "a");
    const int64_t confirmed = append_half_and_die(writer);
    /* the first look finds that the writer is gone */
    for (int i = 0; i < 2; i++) CHECK_STATUS(cmq_store_wait_more(follower, confirmed, 5), CMQ_AGAIN);
    view_kit_check(follower, "a");
    writer = kit_open_at(view_root);
    kit_append(writer, "T", 0, "c", NULL, NULL);
    view_kit_check(follower, "a c");
    kit_close(writer);
    kit_close(follower);
}

/* ---- a writer of ours that is opening ---- */

/* It has the lock, and recovers: first without its page, then with it. The units of the killed one are in no file. */
static void opening_writer_is_no_foreign_one(void)
{
    cmq_lock *lock;
    cmq_follow *page;
    view_kit_start();
    cmq_store *writer = kit_open_at(view_root);
    kit_append_many(writer, "T", "m", 5);
    cmq_store_abandon(writer);
    cmq_store *before = view_kit_open();
    view_kit_check(before, "m0 m1 m2 m3 m4");
    CHECK_OK(cmq_lock_acquire(cmq_fs_posix(), kit_path(view_root, "lock"), &lock));
    cmq_store *views[3] = {before, view_kit_open(), NULL};
    for (int i = 0; i < 2; i++) view_kit_check(views[i], "m0 m1 m2 m3 m4");
    CHECK_OK(cmq_follow_take(cmq_fs_posix(), view_root, &page));
    views[2] = view_kit_open();
    for (int i = 0; i < 3; i++) view_kit_check(views[i], "m0 m1 m2 m3 m4");
    cmq_follow_destroy(page);
    cmq_lock_release(lock);
    writer = kit_open_at(view_root);
    kit_append_many(writer, "T", "n", 2);
    for (int i = 0; i < 3; i++) {
        view_kit_check(views[i], "m0 m1 m2 m3 m4 n0 n1");
        kit_close(views[i]);
    }
    kit_close(writer);
}

CMQ_TEST_MAIN(CMQ_TEST(alone), CMQ_TEST(opening_writer_is_no_foreign_one),
              CMQ_TEST(torn_record_of_a_killed_writer_is_not_shown),
              CMQ_TEST(torn_record_is_not_shown_while_a_writer_opens), CMQ_TEST(a_topic_that_cannot_be),
              CMQ_TEST(nothing_to_follow), CMQ_TEST(a_live_view), CMQ_TEST(a_long_life),
              CMQ_TEST(from_writer_to_writer), CMQ_TEST(cut_below_the_view),
              CMQ_TEST(cut_and_written_again_below_the_view), CMQ_TEST(a_failed_check_is_made_again),
              CMQ_TEST(a_writer_that_passed_by_replaced_a_segment), CMQ_TEST(woken_at_once),
              CMQ_TEST(beside_another_process))
