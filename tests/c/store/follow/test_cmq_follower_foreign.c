/* Tests csrc/store/follow/cmq_follower.c: read-only stores beside a foreign writer.
 *
 * Threads: yes
 * A foreign writer is simulated: a child process holds the lock, and the test copies bytes of records and units, in any
 * order and by halves, from a store that was written before.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cmq_lock.h"
#include "support/cmq_store_kit.h"
#include "support/cmq_view_kit.h"

typedef struct piece {
    int64_t phy;
    int64_t bytes;
    int64_t offset;      /* queue offset in T/0 */
} piece;

static piece pieces[64];

/* `view_other` gets `count` messages m0, m1, … in T/0, one second apart from `first_ms` on; `view_root` gets a store of
 * the same sizes with empty files. */
static void prepare(int count, int64_t first_ms)
{
    atomic_store(&kit_now_ms, first_ms);
    cmq_store *store = kit_open_at(view_other);
    for (int i = 0; i < count; i++) {
        char body[40];
        snprintf(body, sizeof body, "m%d", i);
        const cmq_appended appended = kit_append(store, "T", 0, body, NULL, NULL);
        pieces[i] = (piece){
            .phy = appended.first_physical_offset, .bytes = appended.end - appended.first_physical_offset, .offset = i};
        atomic_fetch_add(&kit_now_ms, 1000);
    }
    kit_close(store);
    CHECK_OK(cmq_fs_make_directory(cmq_fs_posix(), kit_path(view_root, "commitlog")));
    CHECK_OK(cmq_fs_make_directory(cmq_fs_posix(), kit_path(view_root, "consumequeue/T/0")));
    CHECK_OK(cmq_fs_make_directory(cmq_fs_posix(), kit_path(view_root, "index")));
    kit_write_bytes(kit_path(view_root, "commitlog/00000000000000000000"), KIT_SEGMENT_BYTES - 1, "", 1);
    kit_write_bytes(kit_path(view_root, "consumequeue/T/0/00000000000000000000"), KIT_QUEUE_UNITS * CMQ_UNIT_BYTES - 1,
                    "", 1);
}

static void copy_bytes(const char *file, int64_t from, int64_t bytes)
{
    uint8_t block[4096];
    CHECK(bytes <= (int64_t)sizeof block);
    kit_read_bytes(kit_path(view_other, file), from, block, (size_t)bytes);
    kit_write_bytes(kit_path(view_root, file), from, block, (size_t)bytes);
}

static void write_record(int i) { copy_bytes("commitlog/00000000000000000000", pieces[i].phy, pieces[i].bytes); }
static void write_unit(int i)
{
    copy_bytes("consumequeue/T/0/00000000000000000000", pieces[i].offset * CMQ_UNIT_BYTES, CMQ_UNIT_BYTES);
}

/* Records that a broker has written but not dispatched are not confirmed; half a record does not count. */
static void a_foreign_writer_stops_half_way(void)
{
    view_kit_start();
    prepare(10, atomic_load(&kit_now_ms));
    for (int i = 0; i < 3; i++) write_record(i), write_unit(i);
    view_kit_hold_lock();
    cmq_store *follower = view_kit_open();
    cmq_store_info info;
    CHECK_OK(cmq_store_info_of(follower, &info));
    CHECK(info.writer_alive && !info.writer_is_ours);
    view_kit_check(follower, "m0 m1 m2");
    write_record(3);
    view_kit_check(follower, "m0 m1 m2");            /* no unit yet */
    write_unit(3);
    view_kit_check(follower, "m0 m1 m2 m3");
    const piece *half = &pieces[4];
    for (int64_t written = 0; written < half->bytes; written += 7) {
        const int64_t now = half->bytes - written < 7 ? half->bytes - written : 7;
        copy_bytes("commitlog/00000000000000000000", half->phy + written, now);
        if (written == 0) write_unit(4);         /* pages may come in any order */
        if (written + now < half->bytes) view_kit_check(follower, "m0 m1 m2 m3");
    }
    view_kit_check(follower, "m0 m1 m2 m3 m4");
    write_record(5);
    write_record(6);
    view_kit_check(follower, "m0 m1 m2 m3 m4");
    write_unit(6);                               /* units come in the order of the log: this one speaks for the record
                                                  * before it */
    CHECK_OK(cmq_store_refresh(follower));
    CHECK_TEXT(kit_read_all(follower), "m0 m1 m2 m3 m4 m5 m6");
    CHECK_STATUS(cmq_store_wait_more(follower, cmq_store_confirmed(follower), 3), CMQ_AGAIN);
    /* The broker dies: whole records count. */
    write_record(7);
    copy_bytes("commitlog/00000000000000000000", pieces[8].phy, 60);
    view_kit_release_lock();
    CHECK_OK(cmq_store_refresh(follower));
    CHECK_TEXT(kit_read_all(follower), "m0 m1 m2 m3 m4 m5 m6 m7");
    kit_close(follower);
}

/* A broker that was recovered does not clear what lies behind its cut. Older records there are never taken, by
 * followers old and new. */
static void stale_bytes_behind_a_cut(void)
{
    view_kit_start();
    const int64_t t = atomic_load(&kit_now_ms);
    prepare(10, t);
    for (int i = 0; i < 8; i++) write_record(i);
    for (int i = 0; i < 4; i++) write_unit(i);   /* cut behind m3; the old records 4 to 7 */
    kit_remove_tree(view_other);
    atomic_store(&kit_now_ms, t);
    cmq_store *writer = kit_open_at(view_other);
    for (int i = 0; i < 10; i++) {               /* the same places, but new from 4 on, an hour later */
        char body[40];
        snprintf(body, sizeof body, "%c%d", i < 4 ? 'm' : 'n', i);
        kit_append(writer, "T", 0, body, NULL, NULL);
        atomic_fetch_add(&kit_now_ms, i == 3 ? 3600000 : 1000);
    }
    kit_close(writer);
    view_kit_hold_lock();
    cmq_store *follower = view_kit_open();
    view_kit_check(follower, "m0 m1 m2 m3");
    write_record(4);
    view_kit_check(follower, "m0 m1 m2 m3");
    write_unit(4);
    view_kit_check(follower, "m0 m1 m2 m3 n4");      /* and not m5, which follows in place and is whole */
    cmq_store *late = view_kit_open();
    view_kit_check(late, "m0 m1 m2 m3 n4");
    kit_close(late);
    for (int i = 5; i < 7; i++) write_record(i), write_unit(i);
    view_kit_check(follower, "m0 m1 m2 m3 n4 n5 n6");
    view_kit_release_lock();
    view_kit_check(follower, "m0 m1 m2 m3 n4 n5 n6");
    late = view_kit_open();
    view_kit_check(late, "m0 m1 m2 m3 n4 n5 n6");    /* m7 is still there, and older */
    kit_close(late);
    kit_close(follower);
}

/* The place of a follower in the lock's life: it never takes nor drops it. */
static void the_lock_stays_the_writers(void)
{
    view_kit_start();
    cmq_store *writer = kit_open_at(view_root), *second;
    kit_append(writer, "T", 0, "a", NULL, NULL);
    for (int i = 0; i < 3; i++) kit_close(view_kit_open());
    const cmq_store_options options = kit_options(view_root);
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
    kit_close(kit_open_at(view_root));
}

CMQ_TEST_MAIN(CMQ_TEST(a_foreign_writer_stops_half_way), CMQ_TEST(stale_bytes_behind_a_cut),
              CMQ_TEST(the_lock_stays_the_writers))
