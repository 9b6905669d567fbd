/* Tests csrc/store/recover/cmq_recover.c and cmq_log_tail_scan.c: what a writer makes of a directory when it opens
 * it. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/check/cmq_repair.h"
#include "store/follow/cmq_follow.h"
#include "store/marks/cmq_checkpoint.h"
#include "support/cmq_file_twin.h"
#include "support/cmq_ledger.h"
#include "support/cmq_store_kit.h"

static const char *root, *copy;
static ledger book;

static void start(void)
{
    const char *directory = kit_directory();
    static char paths[2][CMQ_PATH_BYTES];
    CHECK_OK(cmq_path_join(paths[0], directory, "store"));
    CHECK_OK(cmq_path_join(paths[1], directory, "copy"));
    root = paths[0];
    copy = paths[1];
    kit_set_clock();
    ledger_free(&book);
    ledger_init(&book, cmq_test_random());
}

/* Append up to `count` messages of the ledger, a few per call; the clock moves on by `step_ms` each time. */
static void append_to(cmq_store *store, uint32_t count, int64_t step_ms)
{
    while (book.count < count) {
        cmq_appended appended;
        const uint32_t left = ledger_group_left(&book), wanted = count - book.count;
        uint32_t now = wanted < left ? wanted : left;
        if (now > 5) now = 5;
        CHECK_OK(ledger_append(&book, store, now, &(ledger_call){0}, &appended));
        atomic_fetch_add(&kit_now_ms, step_ms);
    }
}

static void end_store(cmq_store *store, bool clean)
{
    if (clean) kit_close(store);
    else cmq_store_abandon(store);
}

static void check_book(cmq_store *store, uint32_t acknowledged, bool index_may_lack)
{
    char why[LEDGER_WHY_BYTES];
    uint32_t found;
    const ledger_expected expected = {.acknowledged = acknowledged, .index_may_lack = index_may_lack};
    if (!ledger_check(&book, store, &expected, &found, why)) cmq_test_fail(__FILE__, __LINE__, "%s", why);
    CHECK_INT(found, acknowledged);
}

static cmq_store_opening opening_of(cmq_store *store)
{
    cmq_store_opening opening;
    cmq_store_opening_of(store, &opening);
    return opening;
}

/* ---- ends ---- */

static void clean_stop_reads_nothing(void)
{
    start();
    cmq_store *store = kit_open_at(root);
    CHECK(opening_of(store).created);
    append_to(store, 150, 10);
    kit_close(store);
    CHECK(!kit_exists(kit_path(root, "abort")));
    store = kit_open_at(root);
    const cmq_store_opening opening = opening_of(store);
    CHECK(!opening.created && !opening.was_unclean && opening.trusted_point);
    CHECK_INT(opening.records, 0);
    CHECK_INT(opening.cut_bytes, 0);
    CHECK_INT(opening.scanned_from, opening.scanned_to);
    CHECK(kit_exists(kit_path(root, "abort")));
    check_book(store, 150, false);
    kit_close(store);
}

static void unclean_stop_reads_from_the_point(void)
{
    start();
    cmq_store *store = kit_open_at(root);
    append_to(store, 100, 10);
    CHECK_OK(cmq_store_maintain(store, true));
    append_to(store, 170, 10);
    cmq_store_abandon(store);
    store = kit_open_at(root);
    const cmq_store_opening opening = opening_of(store);
    CHECK(opening.was_unclean && opening.trusted_point);
    CHECK_INT(opening.records, 70);
    /* The point is the end of record 99, which lies before a filler where the next record did not fit the file. */
    CHECK(opening.scanned_from > book.entries[99].physical_offset &&
          opening.scanned_from <= book.entries[100].physical_offset);
    check_book(store, 170, false);
    append_to(store, 200, 10);
    kit_close(store);
    store = kit_open_at(root);
    check_book(store, 200, false);
    kit_close(store);
}

/* ---- derived files ---- */

static const char *const derived[] = {"consumequeue", "index", "checkpoint", "cometmq"};

/* Any set of what derives from the log may be missing. */
static void derived_files_come_back(void)
{
    for (int clean = 0; clean < 2; clean++) {
        start();
        book.prepared = true;
        cmq_store *store = kit_open_at(root);
        append_to(store, 120, 10);
        CHECK_OK(cmq_store_maintain(store, true));
        append_to(store, 180, 10);
        end_store(store, clean != 0);
        for (unsigned set = 1; set < 16; set++) {
            kit_copy_tree(root, copy);
            for (int i = 0; i < 4; i++)
                if ((set >> i & 1u) != 0) kit_remove_tree(kit_path(copy, derived[i]));
            store = kit_open_at(copy);
            /* All times lie within the three seconds that upstream's rule goes back, so even without a point nothing
             * may lack; but without index and point nobody knows that there were keys in segments that a clean stop
             * need not read. */
            const bool may_lack = clean != 0 && (set & 2u) != 0 && (set & 12u) != 0;
            check_book(store, 180, may_lack);
            kit_close(store);
            store = kit_open_at(copy);
            CHECK(opening_of(store).trusted_point);
            check_book(store, 180, may_lack);
            kit_close(store);
        }
    }
}

/* Upstream's rule after a crash: the newest index file goes, and keys before the place where reading begins are lost
 * with it; we say so. */
static void lost_keys_are_reported(void)
{
    start();
    cmq_store *store = kit_open_at(root);
    for (int i = 0; i < 700; i++) {
        char body[16], key[16];
        snprintf(body, sizeof body, "m%d", i);
        snprintf(key, sizeof key, "k%d", i);
        /* one index file is full, the next reaches far back */
        kit_append(store, "T", 0, body, NULL, i < 100 || i % 50 == 0 || i > 695 ? key : NULL);
        atomic_fetch_add(&kit_now_ms, 1000);
    }
    CHECK_OK(cmq_store_maintain(store, true));
    cmq_store_abandon(store);
    kit_remove_tree(kit_path(root, "cometmq"));
    store = kit_open_at(root);
    const cmq_store_opening opening = opening_of(store);
    CHECK(!opening.trusted_point && opening.scanned_from > 0);
    CHECK(opening.index_missing_from > 0 && opening.index_missing_from < opening.scanned_from);
    kit_found *found = kit_found_make(2);
    static const struct {
        const char *key;
        uint32_t found;
    } keys[] = {{"k10", 1}, {"k150", 0}, {"k699", 1}};
    for (size_t i = 0; i < 3; i++) {
        CHECK_OK(cmq_store_find_key(store, kit_slice("T"), kit_slice(keys[i].key), 0, INT64_MAX, &found->batch));
        CHECK_INT(found->batch.count, keys[i].found);
        cmq_found_batch_release(&found->batch);
    }
    kit_found_free(found);
    CHECK_INT(kit_max(store, "T", 0), 700);
    kit_close(store);
}

/* ---- the tail ---- */

static const char *segment_file(const char *of, int64_t phy)
{
    char name[CMQ_OFFSET_NAME_BYTES];
    cmq_path_offset_name(name, phy - phy % KIT_SEGMENT_BYTES);
    return kit_path(kit_path(of, "commitlog"), name);
}

static void zero_bytes(const char *of, int64_t from, int64_t end)
{
    static const uint8_t zeros[KIT_SEGMENT_BYTES];
    if (end > from) kit_write_bytes(segment_file(of, from), from % KIT_SEGMENT_BYTES, zeros, (size_t)(end - from));
}

/* The last record, torn at each of its bytes, goes; nothing else does, and the place is used again. */
static void torn_at_every_byte(void)
{
    start();
    book.body_bytes_max = 60;
    cmq_store *store = kit_open_at(root);
    append_to(store, 20, 10);
    const int64_t end = cmq_store_confirmed(store), last = book.entries[19].physical_offset;
    cmq_store_abandon(store);
    for (int64_t tear = last; tear < end; tear++) {
        ledger before = book;
        kit_copy_tree(root, copy);
        zero_bytes(copy, tear, end);
        ledger_copy(&book, &before);
        store = kit_open_at(copy);
        const cmq_store_opening opening = opening_of(store);
        CHECK_INT(opening.scanned_to, last);
        /* a size begins with zeros */
        CHECK(opening.cut_bytes <= tear - last && (tear < last + 4 || opening.cut_bytes > 0));
        check_book(store, 19, false);
        ledger_cut(&book, 19);
        book.generation++;
        append_to(store, 20, 0);
        CHECK_INT(book.entries[19].physical_offset, last);
        check_book(store, 20, false);
        end_store(store, tear % 2 == 0);
        ledger_free(&book);
        book = before;
    }
}

/* Bytes behind a cut are zero afterwards: a record that ends where an old one begins does not bring that one back. */
static void stale_records_stay_away(void)
{
    start();
    cmq_store *store = kit_open_at(root);
    for (int i = 0; i < 10; i++) {
        char body[16];
        snprintf(body, sizeof body, "old-%d", i);
        kit_append(store, "T", 0, body, NULL, "key");
    }
    cmq_store_abandon(store);
    /* Record 5 is torn: its magic is gone. */
    store = kit_open_at(root);
    kit_found *found = kit_found_make(1);
    CHECK_OK(cmq_store_read_offset(store, kit_slice("T"), 0, 5, &found->batch));
    const int64_t phy = found->items[0].physical_offset;
    const uint32_t bytes = found->items[0].record_bytes;
    kit_found_free(found);
    cmq_store_abandon(store);
    kit_remove_tree(kit_path(root, "cometmq"));      /* marks that recovery itself has written since */
    kit_remove_tree(kit_path(root, "checkpoint"));
    zero_bytes(root, phy + 4, phy + 8);
    store = kit_open_at(root);
    CHECK_INT(opening_of(store).scanned_to, phy);
    CHECK_TEXT(kit_read_all(store), "old-0 old-1 old-2 old-3 old-4");
    const cmq_appended appended = kit_append(store, "T", 0, "new-5", NULL, "key");
    CHECK_INT(appended.end, phy + bytes);            /* just where the old record 6 began */
    cmq_store_abandon(store);
    store = kit_open_at(root);
    CHECK_TEXT(kit_read_all(store), "old-0 old-1 old-2 old-3 old-4 new-5");
    CHECK_TEXT(kit_read_topic(store, "T"), "old-0 old-1 old-2 old-3 old-4 new-5");
    found = kit_found_make(20);
    CHECK_OK(cmq_store_find_key(store, kit_slice("T"), kit_slice("key"), 0, INT64_MAX, &found->batch));
    CHECK_INT(found->batch.count, 6);
    CHECK(kit_body_is(&found->items[0], "new-5"));
    kit_found_free(found);
    kit_close(store);
}

/* ---- damage ---- */

static void refused_at(const char *of, int64_t offset)
{
    cmq_store *store;
    const cmq_store_options options = kit_options(of);
    CHECK_STATUS(cmq_store_open(&store, &options), CMQ_ERR_CORRUPT);
    CHECK_INT(cmq_last_error()->offset, offset);
    CHECK(strstr(cmq_last_error()->text, "repair") != NULL);
}

/* Damage with flushed messages behind it is no torn tail. Refused each time, whatever was damaged; and a repair of the
 * byte heals it. */
static void damage_in_the_middle_is_refused(void)
{
    start();
    cmq_store *store = kit_open_at(root);
    append_to(store, 60, 10);
    kit_close(store);
    kit_remove_tree(kit_path(root, "cometmq"));
    const int64_t phy = book.entries[30].physical_offset;
    static const int64_t places[] = {0, 4, 8, 28, 84, 100};   /* size, magic, CRC, physical offset, body length, body */
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        kit_copy_tree(root, copy);
        kit_remove_tree(kit_path(copy, "consumequeue"));      /* so that all of the log is read */
        kit_flip(segment_file(copy, phy), (phy + places[i]) % KIT_SEGMENT_BYTES, 0x10);
        refused_at(copy, phy);
        refused_at(copy, phy);
        kit_flip(segment_file(copy, phy), (phy + places[i]) % KIT_SEGMENT_BYTES, 0x10);
        store = kit_open_at(copy);
        check_book(store, 60, true);
        kit_close(store);
    }
}

/* Right behind the record with which the last opening began, too. */
static void damage_behind_the_last_opening_is_refused(void)
{
    start();
    cmq_store *store = kit_open_at(root);
    append_to(store, 20, 10);
    kit_close(store);
    store = kit_open_at(root);
    append_to(store, 40, 10);
    kit_close(store);
    kit_remove_tree(kit_path(root, "cometmq"));
    kit_remove_tree(kit_path(root, "consumequeue"));
    const int64_t phy = book.entries[20].physical_offset;
    kit_flip(segment_file(root, phy), (phy + 100) % KIT_SEGMENT_BYTES, 1);
    refused_at(root, phy);
}

/* After a crash, what lies below our point is known to have been whole. */
static void damage_below_the_point_is_refused(void)
{
    start();
    cmq_store *store = kit_open_at(root);
    append_to(store, 40, 10);
    CHECK_OK(cmq_store_maintain(store, true));
    append_to(store, 60, 10);
    cmq_store_abandon(store);
    kit_remove_tree(kit_path(root, "consumequeue"));
    const int64_t phy = book.entries[10].physical_offset;
    kit_flip(segment_file(root, phy), (phy + 90) % KIT_SEGMENT_BYTES, 1);
    refused_at(root, phy);
}

/* ---- segments ---- */

/* The two newest segments have changed their names: the records of either do not belong there, and recovery must not
 * begin with them. */
static void swapped_segments_are_refused(void)
{
    start();
    cmq_store *store = kit_open_at(root);
    while (cmq_store_confirmed(store) < 2 * KIT_SEGMENT_BYTES + KIT_SEGMENT_BYTES / 2)
        append_to(store, book.count + 1, 1000);
    CHECK_OK(cmq_store_maintain(store, true));
    while (cmq_store_confirmed(store) < 3 * KIT_SEGMENT_BYTES + KIT_SEGMENT_BYTES / 2)
        append_to(store, book.count + 1, 1000);
    cmq_store_abandon(store);
    CHECK_OK(cmq_fs_rename(cmq_fs_posix(), segment_file(root, 2 * KIT_SEGMENT_BYTES), kit_path(root, "aside")));
    CHECK_OK(cmq_fs_rename(cmq_fs_posix(), segment_file(root, 3 * KIT_SEGMENT_BYTES),
                           segment_file(root, 2 * KIT_SEGMENT_BYTES)));
    CHECK_OK(cmq_fs_rename(cmq_fs_posix(), kit_path(root, "aside"), segment_file(root, 3 * KIT_SEGMENT_BYTES)));
    /* Where the first file's records end is not foreseen: the blank at its end may be read, or not. */
    const cmq_store_options options = kit_options(root);
    CHECK_STATUS(cmq_store_open(&store, &options), CMQ_ERR_CORRUPT);
    CHECK(cmq_last_error()->offset <= 2 * KIT_SEGMENT_BYTES);
}

/* A log whose last file ends with a blank: the next file never came to be. */
static void blank_without_a_next_file(void)
{
    start();
    book.body_bytes_max = 1000;
    cmq_store *store = kit_open_at(root);
    while (book.count == 0 || book.entries[book.count - 1].physical_offset < KIT_SEGMENT_BYTES)
        append_to(store, book.count + 1, 10);
    cmq_store_abandon(store);
    CHECK_OK(cmq_fs_remove(cmq_fs_posix(), segment_file(root, KIT_SEGMENT_BYTES)));
    cmq_store_options options = kit_options(root);
    cmq_store *refused;
    CHECK_STATUS(cmq_store_open(&refused, &options), CMQ_ERR_CORRUPT);   /* the page proves that it was acknowledged */
    CHECK_OK(cmq_follow_forget(cmq_fs_posix(), root));                    /* where a power loss took that, too */
    const uint32_t left = book.count - 1;
    ledger_cut(&book, left);
    book.generation++;
    store = kit_open_at(root);
    check_book(store, left, false);
    append_to(store, left + 30, 10);
    check_book(store, left + 30, false);
    kit_close(store);
    store = kit_open_at(root);
    check_book(store, left + 30, false);
    kit_close(store);
}

static void make_file(const char *path, int64_t bytes)
{
    kit_write_bytes(path, 0, "", 0);
    kit_resize(path, bytes);
}

static void segments_made_ahead(void)
{
    for (int clean = 0; clean < 2; clean++) {
        start();
        cmq_store *store = kit_open_at(root);
        append_to(store, 30, 10);
        end_store(store, clean != 0);
        const int64_t next =
            book.entries[29].physical_offset / KIT_SEGMENT_BYTES * KIT_SEGMENT_BYTES + KIT_SEGMENT_BYTES;
        make_file(segment_file(root, next), KIT_SEGMENT_BYTES);
        make_file(segment_file(root, next + KIT_SEGMENT_BYTES), KIT_SEGMENT_BYTES);
        make_file(segment_file(root, next + 2 * KIT_SEGMENT_BYTES), 0);
        store = kit_open_at(root);
        check_book(store, 30, false);
        append_to(store, 150, 10);
        kit_close(store);
        store = kit_open_at(root);
        check_book(store, 150, false);
        kit_close(store);
    }
}

/* Without any segment, but with a point or a checkpoint that knows of messages, the store is not empty: its log is
 * lost, for a writer, a reader and a repair alike. */
static void a_lost_log_is_no_empty_store(void)
{
    for (int way = 0; way < 4; way++) {
        start();
        cmq_store *store = kit_open_at(root);
        append_to(store, 20, 10);
        CHECK_OK(cmq_store_maintain(store, true));
        end_store(store, way % 2 != 0);
        if (way < 2) kit_remove_tree(kit_path(root, "checkpoint"));   /* the point is then one for another checkpoint */
        if (way == 2) kit_remove_tree(kit_path(kit_path(root, "cometmq"), "point"));
        if (way == 3) kit_remove_tree(kit_path(root, "consumequeue"));
        const int64_t bytes = kit_file_bytes(segment_file(root, 0));
        const char *aside = kit_path(root, "aside");
        CHECK_OK(cmq_fs_rename(cmq_fs_posix(), segment_file(root, 0), aside));
        for (int i = 0; i < 2; i++) {
            cmq_store_options options = kit_options(root);
            options.read_only = i == 0;
            CHECK_STATUS(cmq_store_open(&store, &options), CMQ_ERR_CORRUPT);
            CHECK(strstr(cmq_last_error()->text, "cometmq/point") != NULL);
            const cmq_repair_options repair = {
                .store = &options, .dry_run = i == 0, .cut_damage = true, .cut_tail = true};
            cmq_repair_report report;
            CHECK_STATUS(cmq_store_repair(&repair, &report), CMQ_ERR_CORRUPT);
        }
        /* Put back it is what it was. */
        CHECK_OK(cmq_fs_rename(cmq_fs_posix(), aside, segment_file(root, 0)));
        CHECK_INT(kit_file_bytes(segment_file(root, 0)), bytes);
        store = kit_open_at(root);
        check_book(store, 20, true);
        kit_close(store);
        /* And without a trace it starts empty. */
        kit_remove_tree(kit_path(root, "commitlog"));
        kit_remove_tree(kit_path(root, "checkpoint"));
        kit_remove_tree(kit_path(kit_path(root, "cometmq"), "point"));
        store = kit_open_at(root);
        CHECK_INT(kit_append(store, "T", 0, "first", NULL, NULL).first_physical_offset, 0);
        kit_close(store);
    }
}

/* A log that begins later, with nothing in it, goes on where it was; queues keep their offsets. */
static void everything_expired(void)
{
    start();
    cmq_store_options options = kit_options(root);
    options.retention = (cmq_retention){.reserved_ms = 1, .files_per_round = 100};
    cmq_store *store = kit_open(&options);
    kit_append_many(store, "T", "m", 500);
    CHECK_OK(cmq_store_maintain(store, true));
    uint32_t deleted;
    CHECK_OK(cmq_store_expire(store, true, &deleted));
    CHECK(deleted > 0);
    const int64_t end = cmq_store_confirmed(store);
    for (int round = 0; round < 2; round++) {
        end_store(store, round == 0);
        store = kit_open(&options);
        CHECK(cmq_store_confirmed(store) >= end);
        CHECK_INT(kit_append(store, "T", 0, "more", NULL, NULL).first_queue_offset, 500 + round);
    }
    kit_close(store);
}

static cmq_file_twin *dying;

/* The writer dies at its next change of the files, once this one has its length. */
static void die_when_made(void *context, const cmq_twin_call *call)
{
    (void)call;
    if (kit_file_bytes(context) == KIT_SEGMENT_BYTES)
        cmq_file_twin_fail(dying,
                           &(cmq_twin_fault){.kind = CMQ_TWIN_ANY_CHANGE, .nth = 1, .sys_errno = EIO, .dead = true});
}

/* A writer dies when it has ended a segment with a blank and made the next, the second one's log ends there, and its
 * successors die at each change of their recovery in turn. */
static void deaths_behind_a_blank_lose_nothing(void)
{
    start();
    CHECK_OK(cmq_fs_make_directory(cmq_fs_posix(), root));
    cmq_file_twin *twin = dying = cmq_file_twin_create(root, 1);
    cmq_store_options options = kit_options(root);
    options.fs = cmq_file_twin_fs(twin);
    options.flush = CMQ_FLUSH_ASYNC;
    cmq_store *store = kit_open(&options);
    const char *second = kit_path(root, "commitlog/00000000000000016384");
    while (cmq_store_confirmed(store) < KIT_SEGMENT_BYTES - 200) kit_append(store, "T", 0, "more", NULL, NULL);
    cmq_appended appended;
    cmq_file_twin_on_call(twin, 0, die_when_made, (void *)(uintptr_t)second);
    while (kit_try_append(store, "T", 0, "more", NULL, NULL, &appended) == CMQ_OK) {}
    cmq_file_twin_on_call(twin, 0, NULL, NULL);
    cmq_store_abandon(store);
    cmq_file_twin_clear_faults(twin);
    store = kit_open(&options);
    CHECK_INT(cmq_store_confirmed(store), KIT_SEGMENT_BYTES);
    const int64_t messages = kit_max(store, "T", 0);
    cmq_status status = CMQ_ERR_IO;
    for (uint64_t nth = 1; status != CMQ_OK; nth++) {
        cmq_store_abandon(store);
        cmq_file_twin_clear_faults(twin);
        cmq_file_twin_fail(twin,
                           &(cmq_twin_fault){.kind = CMQ_TWIN_ANY_CHANGE, .nth = nth, .sys_errno = EIO, .dead = true});
        status = cmq_store_open(&store, &options);
        if (status != CMQ_OK) CHECK_STATUS(status, CMQ_ERR_IO);
        if (status != CMQ_OK) store = NULL;
    }
    cmq_store_abandon(store);
    cmq_file_twin_clear_faults(twin);
    store = kit_open(&options);
    CHECK_INT(kit_max(store, "T", 0), messages);
    kit_close(store);
    cmq_file_twin_close(twin);
}

/* A process dies at each change of its first append in turn; the next one flushes a message, and the power goes: the
 * segment that it found has a durable name. */
static void a_found_first_segment_becomes_durable(void)
{
    start();
    bool dies = true;
    for (uint64_t nth = 1; dies; nth++) {
        const char *store_path = kit_path(root, "s"), *image = kit_path(root, "image");
        kit_remove_tree(root);
        CHECK_OK(cmq_fs_make_directory(cmq_fs_posix(), store_path));
        cmq_file_twin *twin = cmq_file_twin_create(store_path, 1);
        cmq_store_options options = kit_options(store_path);
        options.fs = cmq_file_twin_fs(twin);
        options.flush = CMQ_FLUSH_ASYNC;
        cmq_store *store = kit_open(&options);
        cmq_file_twin_fail(twin,
                           &(cmq_twin_fault){.kind = CMQ_TWIN_ANY_CHANGE, .nth = nth, .sys_errno = EIO, .dead = true});
        cmq_appended appended;
        dies = kit_try_append(store, "T", 0, "lost", NULL, NULL, &appended) != CMQ_OK;
        cmq_store_abandon(store);
        cmq_file_twin_clear_faults(twin);
        store = kit_open(&options);
        kit_append(store, "T", 0, "kept", NULL, NULL);
        CHECK_OK(cmq_store_flush(store));
        cmq_file_twin_crash_image_of(twin, image, CMQ_TWIN_NOTHING);
        cmq_store_abandon(store);
        cmq_file_twin_close(twin);
        options = kit_options(image);
        store = kit_open(&options);
        CHECK_TEXT(kit_read_topic(store, "T"), dies ? "kept" : "lost kept");
        kit_close(store);
    }
}

/* A record's keys lie in two index files, and upstream's rule drops the later one: the record that the index ends with
 * gets all of its keys again. */
static void all_keys_of_the_last_indexed_record_come_back(void)
{
    start();
    cmq_store_options options = kit_options(root);
    options.index_entries = 4;   /* three keys: those of the first record, and one of the second's */
    cmq_store *store = kit_open(&options);
    kit_append(store, "T", 0, "m", NULL, "a b");
    kit_append(store, "T", 0, "m", NULL, "c d");
    atomic_fetch_add(&kit_now_ms, 1000);
    kit_append(store, "T", 0, "m", NULL, "e");
    CHECK_OK(cmq_store_maintain(store, true));   /* the checkpoint names the first file's end */
    cmq_store_abandon(store);
    kit_remove_tree(kit_path(root, "cometmq/point"));
    store = kit_open(&options);
    kit_found *found = kit_found_make(8);
    for (const char *key = "abcde"; *key != '\0'; key++) {
        const cmq_slice one = {.data = (const uint8_t *)key, .bytes = 1};
        CHECK_OK(cmq_store_find_key(store, kit_slice("T"), one, 0, INT64_MAX, &found->batch));
        if (found->batch.count != 1) cmq_test_fail(__FILE__, __LINE__, "key %c: %u found", *key, found->batch.count);
        cmq_found_batch_release(&found->batch);
    }
    kit_found_free(found);
    kit_close(store);
}

static void clock_in_the_past(void)
{
    start();
    cmq_store *store = kit_open_at(root);
    const int64_t first = kit_append(store, "T", 0, "a", NULL, NULL).store_timestamp_ms;
    kit_close(store);
    atomic_fetch_sub(&kit_now_ms, 100000);
    store = kit_open_at(root);
    CHECK_INT(kit_append(store, "T", 0, "b", NULL, NULL).store_timestamp_ms, first);
    cmq_store_abandon(store);
    store = kit_open_at(root);
    CHECK_INT(kit_append(store, "T", 0, "c", NULL, NULL).store_timestamp_ms, first);
    kit_close(store);
}

/* The place behind the fields that 4.9 and 5.3 know. */
static int64_t dispatched_of(const char *store_root)
{
    uint8_t bytes[8];
    kit_read_bytes(kit_path(store_root, "checkpoint"), CMQ_CHECKPOINT_KNOWN_BYTES, bytes, sizeof bytes);
    return cmq_load_i64(bytes);
}

/* A broker of 5.5 dispatches nothing in log files before that offset, and a cut log grows with other records. */
static void the_dispatched_offset_of_5_5_never_passes_the_log(void)
{
    char path[CMQ_PATH_BYTES];
    snprintf(path, sizeof path, "%s", kit_path(kit_directory(), "store"));
    cmq_store *store = kit_open_at(path);
    kit_append(store, "T", 0, "first", NULL, NULL);
    const int64_t second = kit_append(store, "T", 0, "second", NULL, NULL).first_physical_offset;
    kit_close(store);
    CHECK_INT(dispatched_of(path), 0);   /* an older broker's stays as it is */
    uint8_t far_away[8];
    cmq_store_i64(far_away, INT64_C(1) << 40);
    kit_write_bytes(kit_path(path, "checkpoint"), CMQ_CHECKPOINT_KNOWN_BYTES, far_away, sizeof far_away);
    store = kit_open_at(path);
    CHECK_INT(dispatched_of(path), second);   /* before the first append */
    const int64_t third = kit_append(store, "T", 0, "third", NULL, NULL).first_physical_offset;
    CHECK_OK(cmq_store_maintain(store, true));
    CHECK_INT(dispatched_of(path), third);
    kit_close(store);
    CHECK_INT(dispatched_of(path), third);
    kit_write_bytes(kit_path(path, "checkpoint"), CMQ_CHECKPOINT_KNOWN_BYTES, far_away, sizeof far_away);
    cmq_repair_report report;
    const cmq_store_options options = kit_options(path);
    CHECK_OK(cmq_store_repair(&(cmq_repair_options){.store = &options}, &report));
    CHECK_INT(dispatched_of(path), third);
}

CMQ_TEST_MAIN(CMQ_TEST(the_dispatched_offset_of_5_5_never_passes_the_log),
              CMQ_TEST(clean_stop_reads_nothing), CMQ_TEST(unclean_stop_reads_from_the_point),
              CMQ_TEST(derived_files_come_back), CMQ_TEST(lost_keys_are_reported), CMQ_TEST(torn_at_every_byte),
              CMQ_TEST(stale_records_stay_away), CMQ_TEST(damage_in_the_middle_is_refused),
              CMQ_TEST(damage_behind_the_last_opening_is_refused), CMQ_TEST(damage_below_the_point_is_refused),
              CMQ_TEST(blank_without_a_next_file), CMQ_TEST(segments_made_ahead),
              CMQ_TEST(swapped_segments_are_refused), CMQ_TEST(a_lost_log_is_no_empty_store),
              CMQ_TEST(everything_expired), CMQ_TEST(deaths_behind_a_blank_lose_nothing),
              CMQ_TEST(a_found_first_segment_becomes_durable), CMQ_TEST(clock_in_the_past),
              CMQ_TEST(all_keys_of_the_last_indexed_record_come_back))
