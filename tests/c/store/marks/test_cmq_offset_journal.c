/* test_cmq_offset_journal: commits come back whole and in order, up to the first that is torn, and only over the JSON
 * that they continue. Threads: yes */
#include "store/marks/cmq_offset_journal.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "support/cmq_file_twin.h"
#include "support/cmq_store_kit.h"

#define COMMITS_MAX 40000

static const cmq_offset_journal_basis FIRST = {.crc = 7, .bytes = 100}, SECOND = {.crc = 8, .bytes = 100},
                                      NO_JSON = {0};

typedef struct seen {
    uint32_t count;
    int64_t offsets[COMMITS_MAX];
    char last[64];   /* group/topic/queue */
} seen;

static seen found;

static cmq_status note(void *context, cmq_slice group, const cmq_offset_journal_entry *entry)
{
    seen *into = context;
    CHECK(into->count < COMMITS_MAX);
    into->offsets[into->count++] = entry->offset;
    snprintf(into->last, sizeof into->last, "%.*s/%.*s/%d", (int)group.bytes, (const char *)group.data,
             (int)entry->topic.bytes, (const char *)entry->topic.data, entry->queue_id);
    return CMQ_OK;
}

static cmq_offset_journal_found read_from(const char *root, cmq_offset_journal_basis basis,
                                          cmq_offset_journal_cursor *cursor)
{
    cmq_offset_journal_found state;
    found.count = 0;
    CHECK_OK(cmq_offset_journal_read(cmq_fs_posix(), root, &basis, cursor, note, &found, &state));
    return state;
}

static cmq_offset_journal_found read_all(const char *root, cmq_offset_journal_basis basis)
{
    cmq_offset_journal_cursor cursor = {0};
    return read_from(root, basis, &cursor);
}

static cmq_offset_journal *make(const char *root, bool durable)
{
    cmq_offset_journal *log;
    CHECK_OK(cmq_offset_journal_create(cmq_fs_posix(), root, &FIRST, 1000, durable, &log));
    return log;
}

static cmq_status try_commit(cmq_offset_journal *log, int64_t offset, uint64_t *end_out)
{
    const cmq_offset_journal_entry entry = {.topic = kit_slice("orders"), .queue_id = 3, .offset = offset};
    return cmq_offset_journal_append(log, kit_slice("billing"), &entry, 1, end_out);
}

static uint64_t commit(cmq_offset_journal *log, int64_t offset)
{
    uint64_t end;
    CHECK_OK(try_commit(log, offset, &end));
    return end;
}

static void commits_come_back(void)
{
    const char *root = kit_directory();
    CHECK_INT(read_all(root, FIRST), CMQ_OFFSETLOG_NONE);
    for (int durable = 0; durable < 2; durable++) {
        cmq_offset_journal *log = make(root, durable);
        CHECK_INT(read_all(root, FIRST), CMQ_OFFSETLOG_READ);
        CHECK_INT(found.count, 0);
        CHECK_OK(cmq_offset_journal_wait(log, commit(log, 10)));
        const cmq_offset_journal_entry both[] = {{.topic = kit_slice("a"), .queue_id = 0, .offset = 11},
                                                 {.topic = kit_slice("b"), .queue_id = 5, .offset = 12}};
        uint64_t end;
        CHECK_OK(cmq_offset_journal_append(log, kit_slice("g"), both, 2, &end));
        CHECK_INT(read_all(root, FIRST), CMQ_OFFSETLOG_READ);
        CHECK_INT(found.count, 3);
        CHECK_INT(found.offsets[0], 10);
        CHECK_INT(found.offsets[2], 12);
        CHECK_TEXT(found.last, "g/b/5");
        cmq_offset_journal_close(log);
        CHECK_INT(read_all(root, FIRST), CMQ_OFFSETLOG_READ);
        CHECK_INT(found.count, 3);
    }
}

static void only_over_the_json_that_they_continue(void)
{
    const char *root = kit_directory();
    cmq_offset_journal *log = make(root, true);
    commit(log, 10);
    CHECK_INT(read_all(root, SECOND), CMQ_OFFSETLOG_OTHER);
    CHECK_INT(read_all(root, NO_JSON), CMQ_OFFSETLOG_OTHER);
    CHECK_INT(found.count, 0);
    CHECK_OK(cmq_offset_journal_restart(log, &SECOND));
    CHECK_INT(read_all(root, FIRST), CMQ_OFFSETLOG_OTHER);
    CHECK_INT(read_all(root, SECOND), CMQ_OFFSETLOG_READ);
    CHECK_INT(found.count, 0);   /* entries that the JSON has do not count again */
    commit(log, 20);
    CHECK_INT(read_all(root, SECOND), CMQ_OFFSETLOG_READ);
    CHECK_INT(found.count, 1);
    CHECK_INT(found.offsets[0], 20);
    CHECK_OK(cmq_offset_journal_remove(log));
    CHECK_INT(read_all(root, SECOND), CMQ_OFFSETLOG_NONE);
    cmq_offset_journal_close(log);
    CHECK_OK(cmq_offset_journal_forget(cmq_fs_posix(), root));   /* there is none */
}

static void a_follower_reads_on(void)
{
    const char *root = kit_directory();
    cmq_offset_journal *log = make(root, false);
    cmq_offset_journal_cursor cursor = {0};
    for (int64_t i = 0; i < 5; i++) {
        commit(log, i);
        CHECK_INT(read_from(root, FIRST, &cursor), CMQ_OFFSETLOG_READ);
        CHECK_INT(found.count, 1);
        CHECK_INT(found.offsets[0], i);
    }
    const uint32_t head = cursor.head_crc;
    CHECK_OK(cmq_offset_journal_restart(log, &SECOND));
    commit(log, 9);
    CHECK_INT(read_from(root, SECOND, &cursor), CMQ_OFFSETLOG_READ);
    CHECK_INT(found.count, 1);
    CHECK(cursor.head_crc != head);
    cmq_offset_journal_close(log);
}

/* Every cut, every flipped byte and every zeroed stretch leaves a prefix of the commits, or no journal at all. */
static void damage_leaves_a_prefix(void)
{
    const char *root = kit_directory();
    cmq_offset_journal *log = make(root, false);
    for (int64_t i = 0; i < 6; i++) commit(log, 100 + i);
    cmq_offset_journal_close(log);
    const char *path = kit_path(root, "cometmq/progress");
    const int64_t bytes = kit_file_bytes(path);
    uint8_t whole[4096];
    CHECK(bytes < (int64_t)sizeof whole);
    kit_read_bytes(path, 0, whole, (size_t)bytes);
    for (int64_t at = 0; at < bytes; at++) {
        for (int kind = 0; kind < 2; kind++) {
            if (kind == 0) kit_flip(path, at, (uint8_t)(1u << (at % 8)));
            else kit_resize(path, at);
            const cmq_offset_journal_found state = read_all(root, FIRST);
            for (uint32_t i = 0; i < found.count; i++) CHECK_INT(found.offsets[i], 100 + (int64_t)i);
            CHECK(state == CMQ_OFFSETLOG_READ || found.count == 0);
            if (at >= 512)
                CHECK(state == CMQ_OFFSETLOG_READ && found.count == (uint32_t)((at - 512) / ((bytes - 512) / 6)));
            kit_resize(path, bytes);
            kit_write_bytes(path, 0, whole, (size_t)bytes);
        }
    }
}

static void a_full_journal_takes_nothing_more(void)
{
    const char *root = kit_directory();
    cmq_offset_journal *log = make(root, true);
    uint64_t end;
    uint32_t count = 0;
    cmq_status status = CMQ_OK;
    while ((status = try_commit(log, count, &end)) == CMQ_OK) count++;
    CHECK_STATUS(status, CMQ_AGAIN);
    CHECK(count > 15000);
    CHECK_INT(read_all(root, FIRST), CMQ_OFFSETLOG_READ);
    CHECK_INT(found.count, count);
    CHECK_OK(cmq_offset_journal_restart(log, &SECOND));
    CHECK_OK(cmq_offset_journal_wait(log, commit(log, 5)));
    CHECK_INT(read_all(root, SECOND), CMQ_OFFSETLOG_READ);
    CHECK_INT(found.count, 1);
    static uint8_t name[70000];
    memset(name, 'n', sizeof name);
    const cmq_offset_journal_entry entry = {.topic = {.data = name, .bytes = sizeof name}};
    CHECK_STATUS(cmq_offset_journal_append(log, kit_slice("g"), &entry, 1, &end), CMQ_ERR_ARGUMENT);
    cmq_offset_journal_close(log);
}

static void after_a_failed_sync_nothing_is_taken(void)
{
    const char *root = kit_directory();
    cmq_file_twin *twin = cmq_file_twin_create(root, 1);
    cmq_offset_journal *log;
    uint64_t end;
    CHECK_OK(cmq_offset_journal_create(cmq_file_twin_fs(twin), root, &FIRST, 1, true, &log));
    cmq_file_twin_fail(twin, &(cmq_twin_fault){.kind = CMQ_TWIN_SYNC, .nth = 1, .times = 1, .sys_errno = EIO});
    end = commit(log, 1);
    CHECK_STATUS(cmq_offset_journal_wait(log, end), CMQ_ERR_IO);
    CHECK_STATUS(cmq_offset_journal_wait(log, end), CMQ_ERR_IO);
    CHECK_STATUS(try_commit(log, 2, &end), CMQ_ERR_IO);
    CHECK(cmq_offset_journal_restart(log, &SECOND) != CMQ_OK);
    cmq_offset_journal_close(log);
    cmq_file_twin_close(twin);
}

/* ---- threads ---- */

static void *commit_many(void *context)
{
    cmq_offset_journal *log = context;
    for (int i = 0; i < 200; i++) CHECK_OK(cmq_offset_journal_wait(log, commit(log, i)));
    return NULL;
}

static void threads_share_syncs(void)
{
    const char *root = kit_directory();
    cmq_offset_journal *log = make(root, true);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], NULL, commit_many, log) == 0);
    for (int i = 0; i < 4; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK_INT(read_all(root, FIRST), CMQ_OFFSETLOG_READ);
    CHECK_INT(found.count, 800);
    cmq_offset_journal_close(log);
}

/* Commits that were appended before a sync began need none of their own. */
static void one_sync_covers_all_before_it(void)
{
    const char *root = kit_directory();
    cmq_file_twin *twin = cmq_file_twin_create(root, 1);
    cmq_offset_journal *log;
    uint64_t ends[10];
    CHECK_OK(cmq_offset_journal_create(cmq_file_twin_fs(twin), root, &FIRST, 1, true, &log));
    for (int i = 0; i < 10; i++) ends[i] = commit(log, i);
    const uint64_t before = cmq_file_twin_calls(twin, CMQ_TWIN_SYNC);
    for (int i = 0; i < 10; i++) CHECK_OK(cmq_offset_journal_wait(log, ends[i]));
    CHECK_INT(cmq_file_twin_calls(twin, CMQ_TWIN_SYNC), before + 1);
    cmq_offset_journal_close(log);
    cmq_file_twin_close(twin);
}

static void a_store_that_was_moved_gets_no_journal_at_its_old_place(void)
{
    const char *root = kit_path(kit_directory(), "moved");
    cmq_file_info info;
    cmq_offset_journal *log;
    CHECK_INT(cmq_offset_journal_create(cmq_fs_posix(), root, &FIRST, 1000, false, &log), CMQ_ERR_IO);
    CHECK_INT(cmq_fs_stat(cmq_fs_posix(), root, &info), CMQ_ERR_NOT_FOUND);
}

CMQ_TEST_MAIN(CMQ_TEST(a_store_that_was_moved_gets_no_journal_at_its_old_place),
              CMQ_TEST(commits_come_back), CMQ_TEST(only_over_the_json_that_they_continue),
              CMQ_TEST(a_follower_reads_on), CMQ_TEST(damage_leaves_a_prefix),
              CMQ_TEST(a_full_journal_takes_nothing_more), CMQ_TEST(after_a_failed_sync_nothing_is_taken),
              CMQ_TEST(threads_share_syncs), CMQ_TEST(one_sync_covers_all_before_it))
