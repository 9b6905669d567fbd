/* Tests csrc/store/follow/cmq_follower.c: read-only stores, alone, beside a writer of ours, beside a foreign one, and
 * after writers died.
 *
 * Threads: yes
 * A foreign writer is simulated: a child process holds the lock, and the test copies bytes of records and units, in any
 * order and by halves, from a store that was written before.
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
#include "store/read/cmq_key_places.h"
#include "support/cmq_store_kit.h"

static char root[CMQ_PATH_BYTES], other[CMQ_PATH_BYTES];

static void start(void)
{
    const char *directory = kit_directory();
    CHECK_OK(cmq_path_join(root, directory, "store"));
    CHECK_OK(cmq_path_join(other, directory, "other"));
    kit_set_clock();
}

static cmq_store *follow(void)
{
    cmq_store_options options = kit_options(root);
    options.read_only = true;
    options.create = false;
    return kit_open(&options);
}

/* All of it, by log and by topic; brought up to date first. */
static void check_sees(cmq_store *follower, const char *expected)
{
    CHECK_OK(cmq_store_refresh(follower));
    CHECK_TEXT(kit_read_all(follower), expected);
    if (expected[0] != '\0') CHECK_TEXT(kit_read_topic(follower, "T"), expected);
}

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
        start();
        cmq_store *writer = kit_open_at(root);
        ledger_init(&book, cmq_test_random());
        for (int i = 0; i < 20; i++) {
            CHECK_OK(ledger_append(&book, writer, 1 + (uint32_t)cmq_test_random_below(ledger_group_left(&book)),
                                   &(ledger_call){0}, &appended));
            if (i == 10) CHECK_OK(cmq_store_maintain(writer, true));
        }
        if (way % 2 == 0) kit_close(writer);
        else cmq_store_abandon(writer);
        if (way == 2 || way == 3) kit_remove_tree(kit_path(root, "cometmq"));
        if (way == 4 || way == 5) kit_remove_tree(kit_path(root, "consumequeue"));
        kit_each_file(root, add_to_sum, &before);
        cmq_store *follower = follow();
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
        kit_each_file(root, add_to_sum, &after);
        CHECK_INT(after, before);
        ledger_free(&book);
    }
}

/* The CRC does not cover the topic: one that cannot be ends what is seen, as it ends a recovery. */
static void a_topic_that_cannot_be(void)
{
    uint8_t record[512];
    start();
    cmq_store *writer = kit_open_at(root);
    kit_append(writer, "T", 0, "m0", NULL, NULL);
    const cmq_appended last = kit_append(writer, "T", 0, "m1", NULL, NULL);
    cmq_store_abandon(writer);
    kit_remove_tree(kit_path(root, "cometmq"));
    kit_remove_tree(kit_path(root, "consumequeue"));
    const char *segment = kit_path(root, "commitlog/00000000000000000000");
    const int64_t bytes = last.end - last.first_physical_offset;
    CHECK(bytes <= (int64_t)sizeof record);
    kit_read_bytes(segment, last.first_physical_offset, record, (size_t)bytes);
    const uint8_t *topic = memmem(record, (size_t)bytes, "\x01T", 2);
    CHECK(topic != NULL);
    kit_write_bytes(segment, last.first_physical_offset + (topic - record) + 1, "/", 1);
    cmq_store *follower = follow();
    check_sees(follower, "m0");
    kit_close(follower);
}

static void nothing_to_follow(void)
{
    cmq_store *follower;
    start();
    cmq_store_options options = kit_options(root);
    options.read_only = true;
    CHECK_STATUS(cmq_store_open(&follower, &options), CMQ_ERR_NOT_FOUND);
    CHECK(!kit_exists(root));
    CHECK_OK(cmq_fs_make_directory(cmq_fs_posix(), kit_path(root, "photos")));
    CHECK_STATUS(cmq_store_open(&follower, &options), CMQ_ERR_NOT_STORE);
}

/* ---- beside a writer of ours ---- */

static void a_live_view(void)
{
    for (int mode = 0; mode < 2; mode++) {
        start();
        cmq_store_options options = kit_options(root);
        options.flush = mode == 0 ? CMQ_FLUSH_SYNC : CMQ_FLUSH_ASYNC;
        cmq_store *writer = kit_open(&options);
        kit_append(writer, "T", 0, "a", NULL, "k");
        cmq_store *follower = follow();
        cmq_store_info info;
        CHECK_OK(cmq_store_info_of(follower, &info));
        CHECK(info.writer_alive && info.writer_is_ours);
        check_sees(follower, "a");
        kit_append(writer, "T", 1, "b", NULL, "k");   /* another queue, in no file yet */
        check_sees(follower, "a b");
        CHECK_OK(cmq_store_maintain(writer, true));
        check_sees(follower, "a b");
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
    start();
    cmq_store_options options = kit_options(root);
    options.retention = (cmq_retention){.reserved_ms = 1, .files_per_round = 1};
    cmq_store *writer = kit_open(&options);
    kit_append(writer, "T", 0, "first", NULL, NULL);
    cmq_store *follower = follow();
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
    start();
    cmq_store *writer = kit_open_at(root);
    kit_append(writer, "T", 0, "a", NULL, NULL);
    cmq_store *follower = follow();
    check_sees(follower, "a");
    kit_append(writer, "T", 0, "b", NULL, NULL);
    kit_close(writer);
    check_sees(follower, "a b");
    cmq_store_info info;
    CHECK_OK(cmq_store_info_of(follower, &info));
    CHECK(!info.writer_alive);
    CHECK_STATUS(cmq_store_wait_more(follower, cmq_store_confirmed(follower), 5), CMQ_AGAIN);
    writer = kit_open_at(root);
    kit_append(writer, "T", 0, "c", NULL, NULL);
    check_sees(follower, "a b c");
    cmq_store_abandon(writer);
    check_sees(follower, "a b c");
    writer = kit_open_at(root);
    kit_append(writer, "T", 0, "d", NULL, NULL);
    check_sees(follower, "a b c d");
    kit_close(writer);
    kit_close(follower);
}

/* A new writer cut what a follower had seen of its predecessor's end: the view cannot go on, and says so. */
static void cut_below_the_view(void)
{
    start();
    cmq_store *writer = kit_open_at(root);
    kit_append(writer, "T", 0, "a", NULL, NULL);
    const cmq_appended b = kit_append(writer, "T", 0, "b", NULL, NULL);
    cmq_store *follower = follow();
    check_sees(follower, "a b");
    cmq_store_abandon(writer);
    static const uint8_t zeros[8];
    kit_write_bytes(kit_path(root, "commitlog/00000000000000000000"), b.first_physical_offset, zeros, sizeof zeros);
    CHECK_OK(cmq_store_refresh(follower));
    CHECK_OK(cmq_follow_forget(cmq_fs_posix(),
                               root)); /* it proves that "b" was acknowledged; a repair that cuts does this */
    cmq_reader *reader;
    bool end;
    kit_found *found = kit_found_make(8);
    CHECK_OK(cmq_reader_open(follower, &(cmq_read_options){0}, &reader));
    writer = kit_open_at(root);
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
    follower = follow();
    CHECK_TEXT(kit_read_topic(follower, "T"), "a c, which is longer");
    kit_close(follower);
    kit_close(writer);
}

/* The same, but the new writer has passed the view's end again before the view looks: the end proves nothing. */
static void cut_and_written_again_below_the_view(void)
{
    for (int round = 0; round < 3; round++) {
        const bool closed = round == 1;
        start();
        cmq_store *writer = kit_open_at(root);
        kit_append(writer, "T", 0, "a", NULL, NULL);
        const cmq_appended b = kit_append(writer, "T", 0, "b", NULL, NULL);
        cmq_store *follower = follow();
        check_sees(follower, "a b");
        cmq_store_abandon(writer);
        static const uint8_t zeros[8];
        kit_write_bytes(kit_path(root, "commitlog/00000000000000000000"), b.first_physical_offset, zeros, sizeof zeros);
        CHECK_OK(cmq_follow_forget(cmq_fs_posix(), root));
        writer = kit_open_at(root);
        kit_append(writer, "T", 0, "c", NULL, NULL);   /* as long as "b": it ends where the view stands */
        if (round < 2) kit_append(writer, "T", 0, "d", NULL, NULL);
        if (closed) kit_close(writer);
        CHECK_STATUS(cmq_store_refresh(follower), CMQ_ERR_CLOSED);
        CHECK_INT(cmq_last_error()->offset, b.first_physical_offset);
        kit_close(follower);
        follower = follow();
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
    start();
    cmq_store *writer = kit_open_at(root);
    kit_append(writer, "T", 0, "a", NULL, NULL);
    const cmq_appended b = kit_append(writer, "T", 0, "b", NULL, NULL);
    cmq_store_options options = kit_options(root);
    options.read_only = true;
    options.create = false;
    options.fs = &fs;
    cmq_store *follower = kit_open(&options);
    check_sees(follower, "a b");
    cmq_store_abandon(writer);
    kit_write_bytes(kit_path(root, "commitlog/00000000000000000000"), b.first_physical_offset, zeros, sizeof zeros);
    CHECK_OK(cmq_follow_forget(cmq_fs_posix(), root));
    writer = kit_open_at(root);
    kit_append(writer, "T", 0, "c", NULL, NULL);   /* as long as "b": it ends where the view stands */
    atomic_store(&stats_fail, 1);
    CHECK_STATUS(cmq_store_refresh(follower), CMQ_ERR_IO);
    CHECK_INT(atomic_load(&stats_fail), 0);
    CHECK_STATUS(cmq_store_refresh(follower), CMQ_ERR_CLOSED);
    CHECK_INT(cmq_last_error()->offset, b.first_physical_offset);
    kit_close(follower);
    kit_close(writer);
}

/* Between two looks of a view without a writer one came, cut the log at a segment's start, wrote that segment anew, and
 * closed. */
static void a_writer_that_passed_by_replaced_a_segment(void)
{
    static char large[KIT_SEGMENT_BYTES / 2 + 1];
    memset(large, 'x', sizeof large - 1);
    start();
    cmq_store *writer = kit_open_at(root);
    kit_append(writer, "T", 0, large, NULL, NULL);
    const cmq_appended b = kit_append(writer, "T", 0, large, NULL, NULL);
    CHECK_INT(b.first_physical_offset, KIT_SEGMENT_BYTES);
    cmq_store_abandon(writer);
    cmq_store *follower = follow();
    CHECK_OK(cmq_store_refresh(follower));
    CHECK_OK(cmq_fs_remove(cmq_fs_posix(), kit_path(root, "commitlog/00000000000000016384")));
    CHECK_OK(cmq_follow_forget(cmq_fs_posix(), root));
    writer = kit_open_at(root);
    kit_append(writer, "T", 0, "c", NULL, NULL);
    large[0] = 'y';
    CHECK_INT(kit_append(writer, "T", 0, large, NULL, NULL).first_physical_offset, KIT_SEGMENT_BYTES);
    kit_close(writer);
    CHECK_STATUS(cmq_store_refresh(follower), CMQ_ERR_CLOSED);
    CHECK_INT(cmq_last_error()->offset, b.first_physical_offset);
    kit_close(follower);
}

/* ---- reading while a new writer recovers ---- */

/* More messages than a view keeps units of in memory: it reads the files. */
enum { OBSERVED = 160000, OBSERVED_LOT = 4000 };

static cmq_store *observer;
static uint32_t observations;
static cmq_fs_ops observed_ops;
static cmq_fs observed_fs = {.ops = &observed_ops};

static int64_t count_messages(cmq_store *store, const cmq_slice *tag)
{
    const cmq_slice topic = kit_slice("T");
    const cmq_read_options options = {.topics = &topic, .topic_count = 1, .tags = tag, .tag_count = tag != NULL};
    kit_found *found = kit_found_make(KIT_FOUND_MAX);
    cmq_reader *reader;
    int64_t seen = 0;
    bool end = false;
    CHECK_OK(cmq_reader_open(store, &options, &reader));
    for (int idle = 0; !end && idle < 2;) {
        CHECK_OK(cmq_reader_next(reader, &found->batch, &end));
        idle = found->batch.count == 0 ? idle + 1 : 0;
        seen += found->batch.count;
        cmq_found_batch_release(&found->batch);
    }
    cmq_reader_close(reader);
    kit_found_free(found);
    return seen;
}

/* All messages, and those of one tag: nothing may be missing, whatever the recovery has done so far. */
static void observe(void)
{
    const cmq_slice tag = kit_slice("t1");
    if (observer == NULL) return;
    observations++;
    CHECK_INT(count_messages(observer, &tag), OBSERVED / 2);
    CHECK_INT(count_messages(observer, NULL), OBSERVED);
}

static void (*look)(void) = observe;

static void append_lot(cmq_store *store, const char *tag)
{
    static const uint8_t body[8];
    const cmq_append append = {
        .common = {.topic = kit_slice("T")},
        .count = OBSERVED_LOT,
        .bodies = {.kind = CMQ_COLUMN_ONE, .one = {.data = body, .bytes = sizeof body}},
        .tags = {.kind = CMQ_COLUMN_ONE, .one = kit_slice(tag)},
    };
    cmq_appended appended;
    CHECK_OK(cmq_store_append(store, &append, &appended));
    CHECK_INT(appended.count, OBSERVED_LOT);
}

static cmq_status observed_write(cmq_file *file, uint64_t offset, const void *from, size_t bytes)
{
    const cmq_status status = cmq_fs_posix()->ops->write(file, offset, from, bytes);
    look();
    return status;
}

static cmq_status observed_punch(cmq_file *file, uint64_t offset, uint64_t bytes)
{
    const cmq_status status = cmq_fs_posix()->ops->punch(file, offset, bytes);
    look();
    return status;
}

static cmq_status observed_remove(cmq_fs *fs, const char *path)
{
    const cmq_status status = cmq_fs_posix()->ops->remove(fs, path);
    look();
    return status;
}

/* The queue's files have everything; the durable point is behind the first messages (way 0), or of before them (way
 * 1). */
static void a_view_stays_whole_while_a_writer_recovers(void)
{
    for (int way = 0; way < 2; way++) {
        start();
        cmq_store_options options = kit_options(root);
        options.segment_bytes = 8 << 20;
        options.queue_file_bytes = 100000 * CMQ_UNIT_BYTES;
        options.durable_point_bytes = options.durable_point_ms = INT64_C(1) << 40;
        cmq_store *writer = kit_open(&options);
        cmq_store_options reading = options;
        reading.read_only = true;
        cmq_store *view = kit_open(&reading);
        for (int i = 0; i < OBSERVED / OBSERVED_LOT; i++) {
            append_lot(writer, i % 2 == 1 ? "t1" : "t0");
            if (i == 0 && way == 0) CHECK_OK(cmq_store_maintain(writer, true));
            kit_now_ms += 2000;   /* the files are due */
            CHECK_OK(cmq_store_maintain(writer, false));
            CHECK_OK(cmq_store_refresh(view));
        }
        observer = view;
        observations = 0;
        observe();
        cmq_store_abandon(writer);
        observed_ops = *cmq_fs_posix()->ops;
        observed_ops.write = observed_write;
        observed_ops.punch = observed_punch;
        observed_ops.remove = observed_remove;
        options.fs = &observed_fs;
        writer = kit_open(&options);
        CHECK(observations > 1);   /* the recovery wrote, punched or removed something */
        CHECK_OK(cmq_store_refresh(observer));
        observe();
        kit_close(observer);
        observer = NULL;
        kit_close(writer);
    }
}

/* ---- keys while a new writer recovers ---- */

enum { KEYED = 300 };   /* five files of the index */

/* Does a scan by key look at this place? */
static bool may_be_scanned(const char *key, int64_t phy)
{
    cmq_gap *gaps;
    uint32_t count;
    cmq_places places = {0};
    CHECK_OK(cmq_store_index_gaps(observer, cmq_store_confirmed(observer), &gaps, &count));
    for (cmq_index_cursor cursor = {0}; !cursor.done;)
        CHECK_OK(cmq_store_key_places(observer, kit_slice("T"), kit_slice(key), 0, INT64_MAX, &cursor, &places));
    bool found = false;
    for (uint32_t i = 0; i < count; i++) found = found || (phy >= gaps[i].from && phy < gaps[i].end);
    for (uint32_t i = 0; i < places.count; i++) found = found || places.phys[i] == phy;
    free(gaps);
    cmq_places_free(&places);
    return found;
}

static void find_all_keys(void)
{
    if (observer == NULL) return;
    observations++;
    kit_found *found = kit_found_make(4);
    for (int i = 0; i < KEYED; i += 7) {
        char key[16];
        snprintf(key, sizeof key, "k%d", i);
        CHECK_OK(cmq_store_find_key(observer, kit_slice("T"), kit_slice(key), 0, INT64_MAX, &found->batch));
        CHECK_INT(found->batch.count, 1);
        const int64_t phy = found->items[0].physical_offset;
        cmq_found_batch_release(&found->batch);
        CHECK(may_be_scanned(key, phy));
    }
    kit_found_free(found);
}

/* The last durable point lies in the middle (way 0), or there is none (way 1). The view followed the writer that was
 * killed. */
static void a_view_finds_keys_while_a_writer_recovers(void)
{
    for (int way = 0; way < 2; way++) {
        start();
        cmq_store_options options = kit_options(root);
        options.durable_point_bytes = options.durable_point_ms = INT64_C(1) << 40;
        cmq_store *writer = kit_open(&options);
        cmq_store_options reading = options;
        reading.read_only = true;
        cmq_store *view = kit_open(&reading);
        for (int i = 0; i < KEYED; i++) {
            char key[16];
            snprintf(key, sizeof key, "k%d", i);
            kit_append(writer, "T", 0, "body", NULL, key);
            if (i == KEYED / 2 && way == 0) CHECK_OK(cmq_store_maintain(writer, true));
        }
        CHECK_OK(cmq_store_refresh(view));
        observer = view;
        observations = 0;
        find_all_keys();
        cmq_store_abandon(writer);
        find_all_keys();
        observed_ops = *cmq_fs_posix()->ops;
        observed_ops.write = observed_write;
        observed_ops.punch = observed_punch;
        observed_ops.remove = observed_remove;
        look = find_all_keys;
        options.fs = &observed_fs;
        writer = kit_open(&options);
        CHECK(observations > 2);
        find_all_keys();
        look = observe;
        kit_close(observer);
        observer = NULL;
        kit_close(writer);
    }
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
    start();
    cmq_store_options options = kit_options(root);
    options.flush = CMQ_FLUSH_ASYNC;
    cmq_store *writer = kit_open(&options);
    pthread_t threads[2];
    waiting waits[2] = {{.store = follow()}, {.store = writer}};
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
    start();
    int ends[2];
    kit_close(kit_open_at(root));
    cmq_store *follower = follow();
    CHECK(pipe(ends) == 0);
    fflush(NULL);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        cmq_store_abandon(follower);
        cmq_store *writer = kit_open_at(root);
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
    cmq_store *writer = kit_open_at(root);
    CHECK(kit_max(writer, "T", 0) > last);
    kit_append(writer, "T", 0, "after", NULL, NULL);
    CHECK_OK(cmq_store_refresh(follower));
    CHECK_INT(cmq_store_confirmed(follower), cmq_store_confirmed(writer));
    kit_close(writer);
    kit_close(follower);
}

/* ---- beside a foreign writer ---- */

typedef struct piece {
    int64_t phy;
    int64_t bytes;
    int64_t offset;      /* queue offset in T/0 */
} piece;

static piece pieces[64];
static pid_t holder;

/* Hold the lock as a broker does, in another process. */
static void hold_lock(void)
{
    int ends[2];
    char byte;
    CHECK(pipe(ends) == 0);
    fflush(NULL);
    holder = fork();
    CHECK(holder >= 0);
    if (holder == 0) {
        const int file = open(kit_path(root, "lock"), O_RDWR | O_CREAT, 0644);
        const struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1};
        if (file < 0 || fcntl(file, F_SETLK, &lock) != 0 || write(ends[1], "x", 1) != 1) _exit(1);
        for (;;) pause();
    }
    CHECK(read(ends[0], &byte, 1) == 1);
    close(ends[0]);
    close(ends[1]);
}

static void release_lock(void) { CHECK(kill(holder, SIGKILL) == 0 && waitpid(holder, NULL, 0) == holder); }

/* `other` gets `count` messages m0, m1, … in T/0, one second apart from `first_ms` on; `root` gets a store of the same
 * sizes with empty files. */
static void prepare(int count, int64_t first_ms)
{
    atomic_store(&kit_now_ms, first_ms);
    cmq_store *store = kit_open_at(other);
    for (int i = 0; i < count; i++) {
        char body[40];
        snprintf(body, sizeof body, "m%d", i);
        const cmq_appended appended = kit_append(store, "T", 0, body, NULL, NULL);
        pieces[i] = (piece){
            .phy = appended.first_physical_offset, .bytes = appended.end - appended.first_physical_offset, .offset = i};
        atomic_fetch_add(&kit_now_ms, 1000);
    }
    kit_close(store);
    CHECK_OK(cmq_fs_make_directory(cmq_fs_posix(), kit_path(root, "commitlog")));
    CHECK_OK(cmq_fs_make_directory(cmq_fs_posix(), kit_path(root, "consumequeue/T/0")));
    CHECK_OK(cmq_fs_make_directory(cmq_fs_posix(), kit_path(root, "index")));
    kit_write_bytes(kit_path(root, "commitlog/00000000000000000000"), KIT_SEGMENT_BYTES - 1, "", 1);
    kit_write_bytes(kit_path(root, "consumequeue/T/0/00000000000000000000"), KIT_QUEUE_UNITS * CMQ_UNIT_BYTES - 1, "",
                    1);
}

static void copy_bytes(const char *file, int64_t from, int64_t bytes)
{
    uint8_t block[4096];
    CHECK(bytes <= (int64_t)sizeof block);
    kit_read_bytes(kit_path(other, file), from, block, (size_t)bytes);
    kit_write_bytes(kit_path(root, file), from, block, (size_t)bytes);
}

static void write_record(int i) { copy_bytes("commitlog/00000000000000000000", pieces[i].phy, pieces[i].bytes); }
static void write_unit(int i)
{
    copy_bytes("consumequeue/T/0/00000000000000000000", pieces[i].offset * CMQ_UNIT_BYTES, CMQ_UNIT_BYTES);
}

/* Records that a broker has written but not dispatched are not confirmed; half a record does not count. */
static void a_foreign_writer_stops_half_way(void)
{
    start();
    prepare(10, atomic_load(&kit_now_ms));
    for (int i = 0; i < 3; i++) write_record(i), write_unit(i);
    hold_lock();
    cmq_store *follower = follow();
    cmq_store_info info;
    CHECK_OK(cmq_store_info_of(follower, &info));
    CHECK(info.writer_alive && !info.writer_is_ours);
    check_sees(follower, "m0 m1 m2");
    write_record(3);
    check_sees(follower, "m0 m1 m2");            /* no unit yet */
    write_unit(3);
    check_sees(follower, "m0 m1 m2 m3");
    const piece *half = &pieces[4];
    for (int64_t written = 0; written < half->bytes; written += 7) {
        const int64_t now = half->bytes - written < 7 ? half->bytes - written : 7;
        copy_bytes("commitlog/00000000000000000000", half->phy + written, now);
        if (written == 0) write_unit(4);         /* pages may come in any order */
        if (written + now < half->bytes) check_sees(follower, "m0 m1 m2 m3");
    }
    check_sees(follower, "m0 m1 m2 m3 m4");
    write_record(5);
    write_record(6);
    check_sees(follower, "m0 m1 m2 m3 m4");
    write_unit(6);                               /* units come in the order of the log: this one speaks for the record
                                                  * before it */
    CHECK_OK(cmq_store_refresh(follower));
    CHECK_TEXT(kit_read_all(follower), "m0 m1 m2 m3 m4 m5 m6");
    CHECK_STATUS(cmq_store_wait_more(follower, cmq_store_confirmed(follower), 3), CMQ_AGAIN);
    /* The broker dies: whole records count. */
    write_record(7);
    copy_bytes("commitlog/00000000000000000000", pieces[8].phy, 60);
    release_lock();
    CHECK_OK(cmq_store_refresh(follower));
    CHECK_TEXT(kit_read_all(follower), "m0 m1 m2 m3 m4 m5 m6 m7");
    kit_close(follower);
}

/* A broker that was recovered does not clear what lies behind its cut. Older records there are never taken, by
 * followers old and new. */
static void stale_bytes_behind_a_cut(void)
{
    start();
    const int64_t t = atomic_load(&kit_now_ms);
    prepare(10, t);
    for (int i = 0; i < 8; i++) write_record(i);
    for (int i = 0; i < 4; i++) write_unit(i);   /* cut behind m3; records 4 to 7 are what was there before */
    kit_remove_tree(other);
    atomic_store(&kit_now_ms, t);
    cmq_store *writer = kit_open_at(other);
    for (int i = 0; i < 10; i++) {               /* the same places, but new from 4 on, an hour later */
        char body[40];
        snprintf(body, sizeof body, "%c%d", i < 4 ? 'm' : 'n', i);
        kit_append(writer, "T", 0, body, NULL, NULL);
        atomic_fetch_add(&kit_now_ms, i == 3 ? 3600000 : 1000);
    }
    kit_close(writer);
    hold_lock();
    cmq_store *follower = follow();
    check_sees(follower, "m0 m1 m2 m3");
    write_record(4);
    check_sees(follower, "m0 m1 m2 m3");
    write_unit(4);
    check_sees(follower, "m0 m1 m2 m3 n4");      /* and not m5, which follows in place and is whole */
    cmq_store *late = follow();
    check_sees(late, "m0 m1 m2 m3 n4");
    kit_close(late);
    for (int i = 5; i < 7; i++) write_record(i), write_unit(i);
    check_sees(follower, "m0 m1 m2 m3 n4 n5 n6");
    release_lock();
    check_sees(follower, "m0 m1 m2 m3 n4 n5 n6");
    late = follow();
    check_sees(late, "m0 m1 m2 m3 n4 n5 n6");    /* m7 is still there, and older */
    kit_close(late);
    kit_close(follower);
}

/* The place of a follower in the lock's life: it never takes nor drops it. */
static void the_lock_stays_the_writers(void)
{
    start();
    cmq_store *writer = kit_open_at(root), *second;
    kit_append(writer, "T", 0, "a", NULL, NULL);
    for (int i = 0; i < 3; i++) kit_close(follow());
    const cmq_store_options options = kit_options(root);
    CHECK_STATUS(cmq_store_open(&second, &options), CMQ_ERR_LOCKED);
    fflush(NULL);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        cmq_store_abandon(writer);
        _exit(cmq_store_open(&second, &options) == CMQ_ERR_LOCKED ? 0 : 1);   /* also seen from another process */
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK_INT(status, 0);
    kit_append(writer, "T", 0, "b", NULL, NULL);
    kit_close(writer);
    kit_close(kit_open_at(root));
}

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
        kit_write_bytes(kit_path(root, "cometmq/follow"), (int64_t)ends_in_page[i], &confirmed, sizeof confirmed);
    kit_write_bytes(kit_path(root, "commitlog/00000000000000000000"), end - TORN_BYTES, zeros, sizeof zeros);
    return confirmed;
}

/* A view that is opened when the next writer has the lock and the page, and has not recovered the log yet. */
static void torn_record_is_not_shown_while_a_writer_opens(void)
{
    cmq_lock *lock;
    cmq_follow *page;
    start();
    cmq_store *writer = kit_open_at(root);
    kit_append(writer, "T", 0, "a", NULL, NULL);
    append_half_and_die(writer);
    CHECK_OK(cmq_lock_acquire(cmq_fs_posix(), kit_path(root, "lock"), &lock));
    CHECK_OK(cmq_follow_take(cmq_fs_posix(), root, &page));
    cmq_store *view = follow();
    check_sees(view, "a");
    cmq_follow_destroy(page);
    cmq_lock_release(lock);
    writer = kit_open_at(root);
    kit_append(writer, "T", 0, "c", NULL, NULL);
    check_sees(view, "a c");
    kit_close(writer);
    kit_close(view);
}

/* A view that followed a writer to its end: a record that was half written at the kill is not a message, though its
 * body is whole. */
static void torn_record_of_a_killed_writer_is_not_shown(void)
{
    start();
    cmq_store *writer = kit_open_at(root);
    kit_append(writer, "T", 0, "a", NULL, NULL);
    cmq_store *follower = follow();
    check_sees(follower, "a");
    const int64_t confirmed = append_half_and_die(writer);
    /* the first look finds that the writer is gone */
    for (int i = 0; i < 2; i++) CHECK_STATUS(cmq_store_wait_more(follower, confirmed, 5), CMQ_AGAIN);
    check_sees(follower, "a");
    writer = kit_open_at(root);
    kit_append(writer, "T", 0, "c", NULL, NULL);
    check_sees(follower, "a c");
    kit_close(writer);
    kit_close(follower);
}

/* ---- a writer of ours that is opening ---- */

/* It has the lock, and recovers: first without its page, then with it. The units of the killed one are in no file. */
static void opening_writer_is_no_foreign_one(void)
{
    cmq_lock *lock;
    cmq_follow *page;
    start();
    cmq_store *writer = kit_open_at(root);
    kit_append_many(writer, "T", "m", 5);
    cmq_store_abandon(writer);
    cmq_store *before = follow();
    check_sees(before, "m0 m1 m2 m3 m4");
    CHECK_OK(cmq_lock_acquire(cmq_fs_posix(), kit_path(root, "lock"), &lock));
    cmq_store *views[3] = {before, follow(), NULL};
    for (int i = 0; i < 2; i++) check_sees(views[i], "m0 m1 m2 m3 m4");
    CHECK_OK(cmq_follow_take(cmq_fs_posix(), root, &page));
    views[2] = follow();
    for (int i = 0; i < 3; i++) check_sees(views[i], "m0 m1 m2 m3 m4");
    cmq_follow_destroy(page);
    cmq_lock_release(lock);
    writer = kit_open_at(root);
    kit_append_many(writer, "T", "n", 2);
    for (int i = 0; i < 3; i++) {
        check_sees(views[i], "m0 m1 m2 m3 m4 n0 n1");
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
              CMQ_TEST(a_writer_that_passed_by_replaced_a_segment),
              CMQ_TEST(a_view_stays_whole_while_a_writer_recovers), CMQ_TEST(a_view_finds_keys_while_a_writer_recovers),
              CMQ_TEST(woken_at_once), CMQ_TEST(beside_another_process), CMQ_TEST(a_foreign_writer_stops_half_way),
              CMQ_TEST(stale_bytes_behind_a_cut), CMQ_TEST(the_lock_stays_the_writers))
