/* Tests of cmq_queue_begins, cmq_queue_lost_ends and of cmq_recover over queues that lost their first or last files:
 * these are made again from the log, without the messages of deleted topics, and expired files are not taken for lost
 * ones.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cmq_crc32.h"
#include "store/cmq_store.h"
#include "store/queue/cmq_queue.h"
#include "support/cmq_file_twin.h"
#include "support/cmq_store_kit.h"
#include "support/cmq_test.h"

#define MESSAGES 70   /* four files */
#define BATCH_FILE_UNITS 8

static const char *queue_file(const char *root, int64_t first_unit)
{
    char name[96];
    snprintf(name, sizeof name, "consumequeue/T/0/%020lld", (long long)(first_unit * CMQ_UNIT_BYTES));
    return kit_path(root, name);
}

static void lose_files(const char *root, int64_t from, int64_t count)
{
    for (int64_t i = from; i < from + count; i++) CHECK(unlink(queue_file(root, i * KIT_QUEUE_UNITS)) == 0);
}

static cmq_store *open_at(const char *root, bool read_only)
{
    cmq_store_options options = kit_options(root);
    options.read_only = read_only;
    options.create = false;
    options.retention.reserved_ms = 1;
    return kit_open(&options);
}

static int64_t records_read(cmq_store *store)
{
    cmq_store_opening opening;
    cmq_store_opening_of(store, &opening);
    return opening.records;
}

/* Messages "m<from>" to "m<end - 1>" are in topic T, from queue offset `from` on. */
static void check_messages(cmq_store *store, int from, int end)
{
    static char expected[8192];
    expected[0] = '\0';
    for (int i = from; i < end; i++)
        snprintf(expected + strlen(expected), sizeof expected - strlen(expected), "%sm%d", i > from ? " " : "", i);
    CHECK_TEXT(kit_read_topic(store, "T"), expected);
    CHECK_INT(kit_min(store, "T", 0), from);
    CHECK_INT(kit_max(store, "T", 0), end);
}

/* … and the deleted topic is in no queue. */
static void check_has(cmq_store *store, int from, int end)
{
    check_messages(store, from, end);
    CHECK(cmq_queues_find(cmq_store_queues(store), kit_slice("Gone"), 0) == NULL);
}

/* A view and a writer see all; the next writer has nothing left to read again. */
static void check_is_made_again(const char *root, int from, int end)
{
    cmq_store *store = open_at(root, true);
    check_has(store, from, end);
    kit_close(store);
    store = open_at(root, false);
    check_has(store, from, end);
    CHECK(records_read(store) > 0);
    CHECK(!kit_exists(kit_path(root, "cometmq/incomplete")));
    kit_close(store);
    for (int read_only = 1; read_only >= 0; read_only--) {
        store = open_at(root, read_only);
        check_has(store, from, end);
        CHECK_INT(records_read(store), 0);
        kit_close(store);
    }
}

static void append(cmq_store *store, int from, int end)
{
    char body[16];
    for (int i = from; i < end; i++) {
        snprintf(body, sizeof body, "m%d", i);
        kit_append(store, "T", 0, body, NULL, NULL);
    }
}

/* Topic T over several segments, and one that was deleted and whose messages are in the log. The store is open, and its
 * point covers all. */
static cmq_store *make_store_on(cmq_fs *fs, const char *root)
{
    static char other[400];
    cmq_store_options options = kit_options(root);
    options.fs = fs;
    options.retention.reserved_ms = 1;
    options.retention.files_per_round = 1;
    kit_set_clock();
    memset(other, 'o', sizeof other - 1);
    cmq_store *store = kit_open(&options);
    kit_append_many(store, "Gone", "g", 5);
    CHECK_OK(cmq_store_delete_topic(store, kit_slice("Gone")));
    for (int i = 0; i < MESSAGES; i++) {
        append(store, i, i + 1);
        kit_append(store, "Other", 0, other, NULL, NULL);
    }
    CHECK_OK(cmq_store_maintain(store, true));
    return store;
}

static cmq_store *make_store(const char *root) { return make_store_on(cmq_fs_posix(), root); }

static void first_files_are_made_again(void)
{
    for (int lost = 1; lost <= 3; lost++) {
        const char *root = kit_path(kit_directory(), "store");
        kit_close(make_store(root));
        lose_files(root, 0, lost);
        check_is_made_again(root, 0, MESSAGES);
    }
}

static void an_empty_first_file_is_made_again(void)
{
    const char *root = kit_path(kit_directory(), "store");
    kit_close(make_store(root));
    kit_resize(queue_file(root, 0), 0);
    check_is_made_again(root, 0, MESSAGES);
}

/* After a kill, with messages behind the point. */
static void a_killed_writers_are_made_again(void)
{
    const char *root = kit_path(kit_directory(), "store");
    cmq_store *store = make_store(root);
    append(store, MESSAGES, MESSAGES + 25);
    cmq_store_abandon(store);
    lose_files(root, 0, 2);
    check_is_made_again(root, 0, MESSAGES + 25);
}

/* The records of a deleted topic T do not come back into the re-created one. */
static void re_created_topic_gets_its_own_records_alone(void)
{
    const char *root = kit_path(kit_directory(), "store");
    kit_set_clock();
    cmq_store *store = kit_open_at(root);
    kit_append_many(store, "T", "old", 3 * KIT_QUEUE_UNITS);
    CHECK_OK(cmq_store_delete_topic(store, kit_slice("T")));
    kit_append_many(store, "T", "m", MESSAGES);
    kit_close(store);
    lose_files(root, 0, 1);
    check_is_made_again(root, 0, MESSAGES);
}

/* ---- last files ---- */

static void last_files_are_made_again(void)
{
    for (int lost = 1; lost <= 4; lost++) {
        const char *root = kit_path(kit_directory(), "store");
        kit_close(make_store(root));
        lose_files(root, 4 - lost, lost);
        check_is_made_again(root, 0, MESSAGES);
    }
}

static void files_from_the_middle_are_made_again(void)
{
    for (int lost = 1; lost <= 2; lost++) {
        const char *root = kit_path(kit_directory(), "store");
        kit_close(make_store(root));
        lose_files(root, 1, lost);
        check_is_made_again(root, 0, MESSAGES);
    }
}

static void first_and_last_files_are_made_again(void)
{
    const char *root = kit_path(kit_directory(), "store");
    kit_close(make_store(root));
    lose_files(root, 0, 1);
    lose_files(root, 3, 1);
    check_is_made_again(root, 0, MESSAGES);
}

/* All of the topic's folder, and all queues with their folder. */
static void folders_are_made_again(void)
{
    static const char *const folders[] = {"consumequeue/T", "consumequeue"};
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        const char *root = kit_path(kit_directory(), "store");
        kit_close(make_store(root));
        kit_remove_tree(kit_path(root, folders[i]));
        check_is_made_again(root, 0, MESSAGES);
    }
}

/* A last file that is empty, one of zeros, and one whose last units are zeros. */
static void cut_last_files_are_made_again(void)
{
    static const uint8_t zeros[KIT_QUEUE_UNITS * CMQ_UNIT_BYTES];
    for (int kept = -1; kept < 6; kept += 3) {
        const char *root = kit_path(kit_directory(), "store"), *last = queue_file(root, 3 * KIT_QUEUE_UNITS);
        kit_close(make_store(root));
        if (kept < 0) kit_resize(last, 0);
        else kit_write_bytes(last, kept * CMQ_UNIT_BYTES, zeros, sizeof zeros - (size_t)kept * CMQ_UNIT_BYTES);
        check_is_made_again(root, 0, MESSAGES);
    }
}

static uint32_t read_units(cmq_store *store, cmq_unit units[KIT_QUEUE_UNITS])
{
    uint32_t count;
    int64_t next;
    cmq_queue *queue = cmq_queues_find(cmq_store_queues(store), kit_slice("T"), 0);
    CHECK_OK(cmq_queue_read(queue, 0, cmq_store_confirmed(store), units, KIT_QUEUE_UNITS, &count, &next));
    return count;
}

/* Few units are left, of another place of the queue: their page was written to the wrong one. Or a sector border goes
 * through the last one, behind which all is zeros: it has place and size, and no tags code. */
static void lost_units_are_not_placed_by_wrong_ones(void)
{
    static uint8_t image[KIT_QUEUE_UNITS * CMQ_UNIT_BYTES];
    for (int straddles = 0; straddles < 2; straddles++) {
        cmq_unit before[KIT_QUEUE_UNITS], units[KIT_QUEUE_UNITS];
        const char *root = kit_path(kit_directory(), "store");
        cmq_store_options options = kit_options(root);
        kit_set_clock();
        cmq_store *store = kit_open(&options);
        for (int i = 0; i < 10; i++) kit_append(store, "T", 0, "m", "a", NULL);
        CHECK_INT(read_units(store, before), 10);
        kit_close(store);
        kit_read_bytes(queue_file(root, 0), straddles ? 0 : 5 * CMQ_UNIT_BYTES, image, sizeof image / 2);
        memset(image + 4 * CMQ_UNIT_BYTES + 12, 0, sizeof image - 4 * CMQ_UNIT_BYTES - 12);
        kit_write_bytes(queue_file(root, 0), 0, image, sizeof image);
        for (int read_only = 1; read_only >= 0; read_only--) {
            store = open_at(root, read_only);
            CHECK_INT(read_units(store, units), 10);
            for (int i = 0; i < 10; i++)
                CHECK(units[i].phy == before[i].phy && units[i].tags_code == before[i].tags_code);
            kit_close(store);
        }
    }
}

static void last_files_of_a_killed_writer_are_made_again(void)
{
    const char *root = kit_path(kit_directory(), "store");
    cmq_store *store = make_store(root);
    append(store, MESSAGES, MESSAGES + 25);
    cmq_store_abandon(store);
    lose_files(root, 2, 2);
    check_is_made_again(root, 0, MESSAGES + 25);
}

/* The records of a deleted topic T stay away from the one that has its name, whichever of its files are lost. */
static void a_topic_created_again_gets_its_last_records_alone(void)
{
    for (int lost = 1; lost <= 4; lost++) {
        const char *root = kit_path(kit_directory(), "store");
        kit_set_clock();
        cmq_store *store = kit_open_at(root);
        kit_append_many(store, "T", "old", 3 * KIT_QUEUE_UNITS);
        CHECK_OK(cmq_store_delete_topic(store, kit_slice("T")));
        kit_append_many(store, "T", "m", MESSAGES);
        kit_close(store);
        lose_files(root, 4 - lost, lost);
        check_is_made_again(root, 0, MESSAGES);
    }
}

static void append_to_batch(cmq_store *store, int from, int end)
{
    static char other[400];
    memset(other, 'o', sizeof other - 1);
    for (int i = from; i < end; i++) {
        cmq_appended appended;
        kit_append(store, "Other", 0, other, NULL, NULL);
        const cmq_append batch = {.common = {.topic = kit_slice("Batch"), .sys_flag = CMQ_SYS_INNER_BATCH},
                                  .count = 1,
                                  .bodies = {.kind = CMQ_COLUMN_ONE, .one = kit_slice("b")},
                                  .properties = {.kind = CMQ_COLUMN_ONE, .one = kit_slice("INNER_NUM\0013\002")}};
        CHECK_OK(cmq_store_append(store, &batch, &appended));
        CHECK_INT(appended.first_queue_offset, 3 * i);
    }
}

/* Units with addresses of an extension come back with their tags, which is all that the log says of them. */
static void a_queue_with_an_extension_is_made_again(void)
{
    const char *root = kit_path(kit_directory(), "store");
    cmq_store_options options = kit_options(root);
    options.ext_enabled = true;
    kit_set_clock();
    cmq_store *store = kit_open(&options);
    append(store, 0, MESSAGES);
    kit_close(store);
    lose_files(root, 0, 2);
    options.create = false;
    for (int pass = 0; pass < 3; pass++) {
        options.read_only = pass == 0;
        store = kit_open(&options);
        check_messages(store, 0, pass < 2 ? MESSAGES : MESSAGES + 1);
        if (pass == 1) append(store, MESSAGES, MESSAGES + 1);
        if (pass == 2) CHECK_INT(records_read(store), 0);
        kit_close(store);
    }
}

/* ---- retention ---- */

/* The store's oldest segments go until the first file of the topic, with so many messages, has expired, and not its
 * last two. Returns where it begins then. */
static int expire(cmq_store *store, const char *topic, int64_t file_messages)
{
    uint32_t deleted;
    atomic_fetch_add(&kit_now_ms, 1500);
    do {
        CHECK_OK(cmq_store_expire(store, true, &deleted));
        CHECK_INT(deleted, 1);
    } while (kit_min(store, topic, 0) <= file_messages);
    CHECK(kit_min(store, topic, 0) < kit_max(store, topic, 0) - file_messages);
    return (int)kit_min(store, topic, 0);
}

/* A killed writer's, with batches behind the point; also where retention has let the queue begin in a later file. */
static void queues_of_batches_are_made_again(void)
{
    enum { POINT = 40, BATCHES = 47 };
    static const char *const topics[] = {"Batch"};
    for (int expired = 0; expired < 2; expired++) {
        const char *root = kit_path(kit_directory(), "store");
        cmq_store_options options = kit_options(root);
        options.batch_topics = topics;
        options.batch_topic_count = 1;
        options.batch_file_bytes = BATCH_FILE_UNITS * CMQ_BATCH_UNIT_BYTES;
        options.retention.reserved_ms = 1;
        options.retention.files_per_round = 1;
        kit_set_clock();
        cmq_store *store = kit_open(&options);
        append_to_batch(store, 0, POINT);
        CHECK_OK(cmq_store_maintain(store, true));
        if (expired) expire(store, "Batch", 3 * BATCH_FILE_UNITS);
        CHECK_OK(cmq_store_maintain(store, false));
        append_to_batch(store, POINT, BATCHES);
        const int begin = (int)kit_min(store, "Batch", 0) / 3;
        cmq_store_abandon(store);
        char first[96];
        snprintf(first, sizeof first, "batchconsumequeue/Batch/0/%020d",
                 begin / BATCH_FILE_UNITS * BATCH_FILE_UNITS * CMQ_BATCH_UNIT_BYTES);
        CHECK(unlink(kit_path(root, first)) == 0);
        kit_found *found = kit_found_make(8);
        options.create = false;
        for (int pass = 0; pass < 3; pass++) {
            options.read_only = pass == 0;
            store = kit_open(&options);
            CHECK_INT(kit_min(store, "Batch", 0), 3 * begin);
            CHECK_INT(kit_max(store, "Batch", 0), 3 * BATCHES);
            for (int i = begin; i < BATCHES; i++) {
                CHECK_OK(cmq_store_read_offset(store, kit_slice("Batch"), 0, 3 * i + 1, &found->batch));
                CHECK_INT(found->items[0].queue_offset, 3 * i);
                cmq_found_batch_release(&found->batch);
            }
            if (pass > 0) CHECK(kit_exists(kit_path(root, first)));
            if (pass == 2) CHECK_INT(records_read(store), 0);
            kit_close(store);
        }
        kit_found_free(found);
    }
}

/* The last file of a killed writer's batches. */
static void last_batches_are_made_again(void)
{
    enum { POINT = 3 * BATCH_FILE_UNITS, BATCHES = POINT + 5 };
    static const char *const topics[] = {"Batch"};
    for (int lost = 1; lost <= 3; lost++) {
        const char *root = kit_path(kit_directory(), "store");
        cmq_store_options options = kit_options(root);
        options.batch_topics = topics;
        options.batch_topic_count = 1;
        options.batch_file_bytes = BATCH_FILE_UNITS * CMQ_BATCH_UNIT_BYTES;
        kit_set_clock();
        cmq_store *store = kit_open(&options);
        append_to_batch(store, 0, POINT);
        CHECK_OK(cmq_store_maintain(store, true));
        append_to_batch(store, POINT, BATCHES);
        cmq_store_abandon(store);
        for (int file = 3 - lost; file < 3; file++) {
            char name[96];
            snprintf(name, sizeof name, "batchconsumequeue/Batch/0/%020d",
                     file * BATCH_FILE_UNITS * CMQ_BATCH_UNIT_BYTES);
            CHECK(unlink(kit_path(root, name)) == 0);
        }
        kit_found *found = kit_found_make(8);
        options.create = false;
        for (int pass = 0; pass < 3; pass++) {
            options.read_only = pass == 0;
            store = kit_open(&options);
            CHECK_INT(kit_min(store, "Batch", 0), 0);
            CHECK_INT(kit_max(store, "Batch", 0), 3 * BATCHES);
            for (int i = 0; i < BATCHES; i++) {
                CHECK_OK(cmq_store_read_offset(store, kit_slice("Batch"), 0, 3 * i + 1, &found->batch));
                CHECK_INT(found->items[0].queue_offset, 3 * i);
                cmq_found_batch_release(&found->batch);
            }
            if (pass == 2) CHECK_INT(records_read(store), 0);
            kit_close(store);
        }
        kit_found_free(found);
    }
}

/* Retention has taken records whose units are in the file that is made again; their positions stay. */
static void last_files_behind_expired_records_are_made_again(void)
{
    static const uint8_t zeros[KIT_QUEUE_UNITS * CMQ_UNIT_BYTES];
    for (int kept = 0; kept <= 2; kept++) {   /* of the file's units, behind the first that has not expired */
        const char *root = kit_path(kit_directory(), "store");
        cmq_store *store = make_store(root);
        const int begin = expire(store, "T", KIT_QUEUE_UNITS), file = begin / KIT_QUEUE_UNITS;
        kit_close(store);
        const int left = begin % KIT_QUEUE_UNITS + kept;
        kit_write_bytes(queue_file(root, file * KIT_QUEUE_UNITS), left * CMQ_UNIT_BYTES, zeros,
                        sizeof zeros - (size_t)left * CMQ_UNIT_BYTES);
        lose_files(root, file + 1, (MESSAGES + KIT_QUEUE_UNITS - 1) / KIT_QUEUE_UNITS - file - 1);
        check_is_made_again(root, begin, MESSAGES);
    }
}

/* With a table that is not the point's the whole log is read, as without any: nothing is lost. */
static void lost_ends_need_the_table_of_the_point(void)
{
    static uint8_t table[400];
    for (int missing = 0; missing < 2; missing++) {
        const char *root = kit_path(kit_directory(), "store"), *ends = kit_path(root, "cometmq/ends");
        cmq_store *store = make_store(root);
        const int64_t bytes = kit_file_bytes(ends);
        CHECK(bytes > 0 && bytes <= (int64_t)sizeof table);
        kit_read_bytes(ends, 0, table, (size_t)bytes);
        append(store, MESSAGES, MESSAGES + 5);
        kit_close(store);
        kit_write_bytes(ends, 0, table, (size_t)bytes);
        if (missing) CHECK(unlink(ends) == 0);
        lose_files(root, 3, 1);
        for (int read_only = 1; read_only >= 0; read_only--) {
            store = open_at(root, read_only);
            check_messages(store, 0, MESSAGES + 5);
            if (!read_only) CHECK(records_read(store) > 2 * MESSAGES);
            kit_close(store);
        }
    }
}

/* A table that is whole, with a begin where no unit can be, of a queue without files. */
static void a_forged_begin_is_not_believed(void)
{
    enum { HEAD = 16, ENTRY = 34, FIRST_POSITION = 18 };
    static const int64_t positions[] = {-1, MESSAGES, INT64_MAX / 2, INT64_MAX};
    static uint8_t table[400];
    for (size_t i = 0; i < sizeof positions / sizeof *positions; i++) {
        const char *root = kit_path(kit_directory(), "store"), *ends = kit_path(root, "cometmq/ends");
        kit_close(make_store(root));
        const size_t bytes = (size_t)kit_file_bytes(ends);
        CHECK(bytes <= sizeof table);
        kit_read_bytes(ends, 0, table, bytes);
        for (size_t at = HEAD; at < bytes - 4; at += ENTRY + table[at + 17])
            if (table[at + 17] == 1) cmq_store_i64(table + at + FIRST_POSITION, positions[i]);   /* T's */
        cmq_store_u32(table + bytes - 4, cmq_crc32(table, bytes - 4));
        kit_write_bytes(ends, 0, table, bytes);
        lose_files(root, 0, 4);
        for (int read_only = 1; read_only >= 0; read_only--) {
            cmq_store *store = open_at(root, read_only);
            check_messages(store, 0, MESSAGES);
            kit_close(store);
        }
    }
}

/* … and a deletion that was the last act before the files were lost stays one. */
static void a_topic_deleted_last_stays_away(void)
{
    const char *root = kit_path(kit_directory(), "store");
    kit_set_clock();
    cmq_store *store = kit_open_at(root);
    kit_append_many(store, "Gone", "g", 5);
    append(store, 0, MESSAGES);
    CHECK_OK(cmq_store_delete_topic(store, kit_slice("Gone")));
    cmq_store_abandon(store);
    lose_files(root, 3, 1);
    check_is_made_again(root, 0, MESSAGES);
}

/* … also where another topic's folder is lost, and where the deleted one has messages behind the point again. */
static void a_topic_deleted_last_stays_away_beside_a_lost_folder(void)
{
    for (int again = 1; again >= 0; again--) {
        const char *root = kit_path(kit_directory(), "store");
        kit_set_clock();
        cmq_store *store = kit_open_at(root);
        kit_append_many(store, "Last", "old", 5);
        kit_append_many(store, "Gone", "g", 5);
        CHECK_OK(cmq_store_delete_topic(store, kit_slice("Gone")));
        append(store, 0, MESSAGES);
        CHECK_OK(cmq_store_delete_topic(store, kit_slice("Last")));
        if (again) kit_append_many(store, "Last", "new", 2);
        cmq_store_abandon(store);
        kit_remove_tree(kit_path(root, "consumequeue/T"));
        for (int pass = 0; pass < 3; pass++) {
            store = open_at(root, pass == 0);
            check_has(store, 0, MESSAGES);
            if (again) CHECK_TEXT(kit_read_topic(store, "Last"), "new0 new1");
            else CHECK(cmq_queues_find(cmq_store_queues(store), kit_slice("Last"), 0) == NULL);
            kit_close(store);
        }
    }
}

/* … also where it was created again, and has messages behind the point. */
static void a_topic_deleted_last_keeps_its_new_messages_alone(void)
{
    const char *root = kit_path(kit_directory(), "store");
    cmq_store_options options = kit_options(root);
    options.durable_point_ms = 60000;
    kit_set_clock();
    cmq_store *store = kit_open(&options);
    kit_append_many(store, "Gone", "g", 5);
    CHECK_OK(cmq_store_delete_topic(store, kit_slice("Gone")));
    kit_append_many(store, "Again", "old", 5);
    append(store, 0, MESSAGES);
    CHECK_OK(cmq_store_delete_topic(store, kit_slice("Again")));
    kit_append_many(store, "Again", "new", 2);
    atomic_fetch_add(&kit_now_ms, 1100);
    CHECK_OK(cmq_store_maintain(store, false));   /* writes queue files, and no point */
    CHECK(kit_exists(kit_path(root, "consumequeue/Again/0")));
    cmq_store_abandon(store);
    lose_files(root, 3, 1);
    for (int pass = 0; pass < 3; pass++) {
        store = open_at(root, pass == 0);
        check_has(store, 0, MESSAGES);
        CHECK_TEXT(kit_read_topic(store, "Again"), "new0 new1");
        kit_close(store);
    }
}

static void expired_files_are_not_lost_ones(void)
{
    for (int killed = 0; killed < 3; killed++) {
        const char *root = kit_path(kit_directory(), "store");
        cmq_store *store = make_store(root);
        const int begin = expire(store, "T", KIT_QUEUE_UNITS);
        if (killed == 1) CHECK_OK(cmq_store_maintain(store, false));
        if (killed > 0) cmq_store_abandon(store);
        else kit_close(store);
        for (int read_only = 1; read_only >= 0; read_only--) {
            store = open_at(root, read_only);
            check_has(store, begin, MESSAGES);
            CHECK_INT(records_read(store), 0);
            kit_close(store);
        }
    }
}

static void files_behind_expired_ones_are_made_again(void)
{
    for (int killed = 0; killed < 2; killed++) {
        const char *root = kit_path(kit_directory(), "store");
        cmq_store *store = make_store(root);
        const int begin = expire(store, "T", KIT_QUEUE_UNITS);
        CHECK_OK(cmq_store_maintain(store, false));   /* the point that follows a retention */
        if (killed) cmq_store_abandon(store);
        else kit_close(store);
        lose_files(root, begin / KIT_QUEUE_UNITS, 1);
        check_is_made_again(root, begin, MESSAGES);
    }
}

/* A table from before the retention, and none. */
static void an_old_table_is_of_no_harm(void)
{
    static uint8_t table[400];
    const char *root = kit_path(kit_directory(), "store"), *ends = kit_path(root, "cometmq/ends");
    cmq_store *store = make_store(root);
    const int64_t bytes = kit_file_bytes(ends);
    CHECK(bytes > 0 && bytes <= (int64_t)sizeof table);
    kit_read_bytes(ends, 0, table, (size_t)bytes);
    const int begin = expire(store, "T", KIT_QUEUE_UNITS);
    kit_close(store);
    for (int missing = 0; missing < 2; missing++) {
        kit_write_bytes(ends, 0, table, (size_t)bytes);
        kit_resize(ends, bytes);
        if (missing) CHECK(unlink(ends) == 0);
        for (int read_only = 1; read_only >= 0; read_only--) {
            store = open_at(root, read_only);
            check_has(store, begin, MESSAGES);
            CHECK_INT(records_read(store), 0);
            kit_close(store);
        }
    }
}

/* The topic began at an offset of its own, was deleted, and begins at 0 again: not before the old table's begin. */
static void a_table_of_a_deleted_topic_is_of_no_harm(void)
{
    static uint8_t table[400];
    const char *root = kit_path(kit_directory(), "store"), *ends = kit_path(root, "cometmq/ends");
    cmq_store *store = make_store(root);
    const int64_t bytes = kit_file_bytes(ends);
    kit_read_bytes(ends, 0, table, (size_t)bytes);
    CHECK_OK(cmq_store_delete_topic(store, kit_slice("T")));
    append(store, 0, MESSAGES);
    kit_close(store);
    kit_resize(ends, bytes);
    kit_write_bytes(ends, 0, table, (size_t)bytes);
    store = open_at(root, true);
    check_has(store, 0, MESSAGES);
    CHECK_INT(records_read(store), 0);
    kit_close(store);
}

/* A writer's retention, between a view's looks at the segments and at the queue files: it looks twice at both, first
 * for their lengths. */
static struct {
    cmq_fs fs;
    cmq_fs_ops ops;
    cmq_store *writer;
    int looks, begin;
} racing;

static cmq_status list_after_retention(cmq_fs *fs, const char *path, char ***names_out, size_t *count_out)
{
    const size_t bytes = strlen(path);
    if (bytes > 12 && strcmp(path + bytes - 12, "consumequeue") == 0 && ++racing.looks == 2)
        racing.begin = expire(racing.writer, "T", KIT_QUEUE_UNITS);
    return cmq_fs_posix()->ops->list(fs, path, names_out, count_out);
}

static void a_view_beside_retention_loses_nothing(void)
{
    const char *root = kit_path(kit_directory(), "store");
    cmq_store *writer = make_store(root);
    racing.ops = *cmq_fs_posix()->ops;
    racing.ops.list = list_after_retention;
    racing.fs.ops = &racing.ops;
    racing.writer = writer;
    cmq_store_options options = kit_options(root);
    options.read_only = true;
    options.create = false;
    options.fs = &racing.fs;
    cmq_store *view = kit_open(&options);
    cmq_store_opening opening;
    cmq_store_opening_of(view, &opening);
    CHECK(racing.looks >= 2 && opening.scanned_from > 0);
    check_has(view, racing.begin, MESSAGES);
    append(writer, MESSAGES, MESSAGES + 5);
    CHECK_OK(cmq_store_refresh(view));
    check_has(view, racing.begin, MESSAGES + 5);
    kit_close(view);
    kit_close(writer);
}

enum { QUIET = 5 };

/* A store in which all messages of the queue have expired, whose file then loses the last two of its units. */
static void lose_expired_units(const cmq_store_options *options, const char *topic, const char *path, int unit_bytes)
{
    static const uint8_t zeros[2 * CMQ_BATCH_UNIT_BYTES];
    static char other[400];
    uint32_t deleted;
    memset(other, 'o', sizeof other - 1);
    cmq_store *store = kit_open(options);
    append_to_batch(store, 0, QUIET);
    append(store, 0, QUIET);
    for (int i = 0; i < 200; i++) kit_append(store, "Other", 0, other, NULL, NULL);
    CHECK_OK(cmq_store_maintain(store, true));
    atomic_fetch_add(&kit_now_ms, 1500);
    while (kit_min(store, topic, 0) < kit_max(store, topic, 0)) CHECK_OK(cmq_store_expire(store, true, &deleted));
    kit_close(store);
    kit_write_bytes(path, (QUIET - 2) * unit_bytes, zeros, 2 * (size_t)unit_bytes);
}

static cmq_store_options options_of_expired(const char *root)
{
    static const char *const topics[] = {"Batch"};
    cmq_store_options options = kit_options(root);
    options.batch_topics = topics;
    options.batch_topic_count = 1;
    options.batch_file_bytes = BATCH_FILE_UNITS * CMQ_BATCH_UNIT_BYTES;
    options.retention.reserved_ms = 1;
    options.retention.files_per_round = 1;
    return options;
}

/* Nobody misses units whose records have expired; their offsets are not given again. */
static void lost_units_of_expired_records_keep_their_offsets(void)
{
    const char *root = kit_path(kit_directory(), "store");
    cmq_store_options options = options_of_expired(root);
    kit_set_clock();
    lose_expired_units(&options, "T", queue_file(root, 0), CMQ_UNIT_BYTES);
    options.read_only = true;
    cmq_store *store = kit_open(&options);
    CHECK_TEXT(kit_read_topic(store, "T"), "");
    CHECK_INT(kit_min(store, "T", 0), kit_max(store, "T", 0));
    kit_close(store);
    options.read_only = false;
    for (int pass = 0; pass < 3; pass++) {
        store = kit_open(&options);
        CHECK_INT(kit_min(store, "T", 0), QUIET);
        CHECK_INT(kit_max(store, "T", 0), QUIET + (pass == 2));
        if (pass > 0) CHECK_INT(records_read(store), 0);
        if (pass == 1) append(store, QUIET, QUIET + 1);
        CHECK_TEXT(kit_read_topic(store, "T"), pass == 0 ? "" : "m5");
        kit_close(store);
    }
}

/* Units of batches cannot take the places of others. */
static void lost_batches_of_expired_records_close_no_store(void)
{
    const char *root = kit_path(kit_directory(), "store");
    cmq_store_options options = options_of_expired(root);
    kit_set_clock();
    lose_expired_units(&options, "Batch", kit_path(root, "batchconsumequeue/Batch/0/00000000000000000000"),
                       CMQ_BATCH_UNIT_BYTES);
    for (int pass = 0; pass < 3; pass++) {
        options.read_only = pass == 0;
        cmq_store *store = kit_open(&options);
        CHECK_INT(kit_min(store, "Batch", 0), kit_max(store, "Batch", 0));
        if (pass == 2) CHECK_INT(records_read(store), 0);
        kit_close(store);
    }
}

/* A queue is cut to nothing by an opening that finds its first record torn; it begins again, before that place. */
static void a_queue_that_was_cut_to_nothing_begins_where_it_begins_again(void)
{
    static char other[400];
    static uint8_t zeros[KIT_SEGMENT_BYTES];
    const char *root = kit_path(kit_directory(), "store");
    kit_set_clock();
    memset(other, 'o', sizeof other - 1);
    cmq_store *store = kit_open_at(root);
    kit_append(store, "Other", 0, other, NULL, NULL);
    const int64_t torn = kit_append(store, "Other", 0, other, NULL, NULL).first_physical_offset;
    for (int i = 0; i < 8; i++) kit_append(store, "Other", 0, other, NULL, NULL);
    append(store, 0, 1);
    CHECK_OK(cmq_store_maintain(store, true));
    cmq_store_abandon(store);
    kit_remove_tree(kit_path(root, "cometmq"));   /* as after a Java broker */
    CHECK(unlink(kit_path(root, "checkpoint")) == 0);
    kit_write_bytes(kit_path(root, "commitlog/00000000000000000000"), torn, zeros, sizeof zeros - (size_t)torn);
    store = open_at(root, false);
    CHECK_INT(kit_max(store, "T", 0), 0);
    append(store, 0, MESSAGES);
    kit_close(store);
    lose_files(root, 0, 1);
    check_is_made_again(root, 0, MESSAGES);
}

/* ---- crashes while a queue is made again ---- */

typedef struct imaging {
    cmq_file_twin *twin;
    char image[CMQ_PATH_BYTES];
    int end;            /* of the messages */
    bool alone;         /* the deleted topic stays away */
    bool begun;         /* the missing files are being made */
    bool renamed;       /* by the last call */
    uint64_t images;
} imaging;

static void check_image(void *context, const cmq_twin_call *call)
{
    imaging *of = context;
    of->begun |= strstr(call->path, "cometmq/deleted") != NULL;
    if (!of->begun) return;
    const bool renames = call->kind == CMQ_TWIN_RENAME || of->renamed;   /* which of several survived? */
    of->renamed = call->kind == CMQ_TWIN_RENAME;
    for (int i = 0; i < (renames ? 2 : 1) * CMQ_TWIN_STYLES; i++) {
        const cmq_twin_style style = i < CMQ_TWIN_STYLES ? (cmq_twin_style)i : CMQ_TWIN_MIX;
        cmq_file_twin_crash_image_of(of->twin, of->image, style);
        for (int read_only = style == CMQ_TWIN_EVERYTHING; read_only >= 0; read_only--) {
            cmq_store *store = open_at(of->image, read_only);
            check_messages(store, 0, of->end);
            if (of->alone) CHECK(cmq_queues_find(cmq_store_queues(store), kit_slice("Gone"), 0) == NULL);
            kit_close(store);
        }
        of->images++;
    }
}

/* Open the twin's store, which makes the missing files, with images at each call. */
static void open_with_images(imaging *of, const char *root)
{
    cmq_file_twin_on_call(of->twin, 0, check_image, of);
    cmq_store_options options = kit_options(root);
    options.fs = cmq_file_twin_fs(of->twin);
    options.create = false;
    cmq_store *store = kit_open(&options);
    cmq_file_twin_on_call(of->twin, 0, NULL, NULL);
    check_messages(store, 0, of->end);
    kit_close(store);
}

/* At each call of the opening that makes it again: a kill, and a power loss that takes anything. */
static void a_crash_while_it_is_made_again_loses_nothing(void)
{
    const char *directory = kit_directory(), *root = kit_path(directory, "store");
    imaging of = {.end = MESSAGES, .alone = true, .begun = true};
    CHECK_OK(cmq_path_join(of.image, directory, "image"));
    kit_close(make_store(root));
    lose_files(root, 0, 1);
    of.twin = cmq_file_twin_create(root, cmq_test_random());
    open_with_images(&of, root);
    CHECK(of.images > 30);
    cmq_file_twin_close(of.twin);
}

static void a_crash_while_last_files_are_made_again_loses_nothing(void)
{
    static const int lost[][2] = {{3, 1}, {1, 3}, {1, 2}, {0, 4}};   /* from where, how many */
    for (size_t i = 0; i < sizeof lost / sizeof *lost; i++) {
        const char *directory = kit_directory(), *root = kit_path(directory, "store");
        imaging of = {.end = MESSAGES, .alone = true, .begun = true};
        CHECK_OK(cmq_path_join(of.image, directory, "image"));
        kit_close(make_store(root));
        lose_files(root, lost[i][0], lost[i][1]);
        of.twin = cmq_file_twin_create(root, cmq_test_random());
        open_with_images(&of, root);
        CHECK(of.images > 30);
        cmq_file_twin_close(of.twin);
        kit_remove_tree(directory);
    }
}

/* The writer was killed: the table of begins, as anything behind the point, may be in memory alone. A file system of
 * its own for the queues makes no difference to their messages, but the log is read as a whole then. */
static void a_power_loss_after_the_kill_loses_nothing(void)
{
    for (int i = 0; i < 4; i++) {
        const bool own_file_system = i % 2 == 1, ends = i >= 2;
        const char *directory = kit_directory(), *root = kit_path(directory, "store");
        imaging of = {.end = MESSAGES + 25, .alone = !own_file_system};
        CHECK_OK(cmq_path_join(of.image, directory, "image"));
        CHECK_OK(cmq_fs_make_directory(cmq_fs_posix(), root));
        of.twin = cmq_file_twin_create(root, cmq_test_random());
        cmq_fs *fs = cmq_file_twin_fs(of.twin);
        cmq_store *store = make_store_on(fs, root);
        append(store, MESSAGES, MESSAGES + 25);
        CHECK_OK(cmq_store_flush(store));
        cmq_store_abandon(store);
        for (int64_t file = ends; file < 3 + ends; file++)
            CHECK_OK(cmq_fs_remove(fs, queue_file(root, file * KIT_QUEUE_UNITS)));
        CHECK_OK(cmq_fs_sync_directory(fs, kit_path(root, "consumequeue/T/0")));
        if (own_file_system)
            cmq_file_twin_fail(of.twin, &(cmq_twin_fault){.kind = CMQ_TWIN_RENAME, .nth = 1, .sys_errno = EXDEV});
        open_with_images(&of, root);
        CHECK(of.images > 30);
        CHECK_INT(cmq_file_twin_failures(of.twin), !own_file_system ? 0 : ends ? 4 : 3);
        cmq_file_twin_close(of.twin);
    }
}

/* Openings that fail on a full disk do not fill it further, one after the other. */
static void a_full_disk_keeps_one_attempt(void)
{
    const char *directory = kit_directory(), *root = kit_path(directory, "store"),
               *aside = kit_path(root, "cometmq/deleted");
    int failed = 0;
    kit_close(make_store(root));
    lose_files(root, 0, 2);
    cmq_file_twin *twin = cmq_file_twin_create(root, cmq_test_random());
    cmq_store_options options = kit_options(root);
    options.fs = cmq_file_twin_fs(twin);
    options.create = false;
    for (uint64_t write = 1; write < 12; write++) {
        char **names;
        size_t count;
        cmq_store *store;
        cmq_file_twin_fail(
            twin, &(cmq_twin_fault){.kind = CMQ_TWIN_WRITE, .nth = write, .times = 0, .sys_errno = ENOSPC});
        const cmq_status status = cmq_store_open(&store, &options);
        if (status == CMQ_OK) cmq_store_abandon(store);
        cmq_file_twin_clear_faults(twin);
        if (cmq_fs_list(options.fs, aside, &names, &count) != CMQ_OK) continue;
        failed += status != CMQ_OK && count > 0;
        CHECK(count <= 1);
        cmq_fs_free_names(names, count);
    }
    CHECK(failed > 1);
    cmq_store *store = kit_open(&options);
    check_has(store, 0, MESSAGES);
    kit_close(store);
    cmq_file_twin_close(twin);
}

/* ---- views ---- */

/* A view holds such a queue in memory, up to two million units; a longer one it refuses, and names the queue. */
static void a_long_queue_is_refused_by_a_view(void)
{
    enum { FILE_UNITS = 1 << 19, UNITS = 4 * FILE_UNITS + 1 };
    const cmq_queues_options writing = {.fs = cmq_fs_posix(),
                                        .root = kit_directory(),
                                        .queue_file_bytes = FILE_UNITS * CMQ_UNIT_BYTES,
                                        .batch_file_bytes = CMQ_BATCH_UNIT_BYTES,
                                        .ext_file_bytes = 1000};
    cmq_queues_options reading = writing;
    cmq_queues *queues;
    cmq_queue *queue;
    int64_t covered, from;
    reading.read_only = true;
    CHECK_OK(cmq_queues_create(&queues, &writing));
    CHECK_OK(cmq_queues_require(queues, kit_slice("T"), 0, CMQ_QUEUE_SIMPLE, &queue));
    for (int64_t i = 0; i < UNITS; i++) {
        CHECK_OK(cmq_queue_make_room(queue, 1, INT64_MAX));
        cmq_queue_put(queue, i * 100, 100, 0, 1, 1);
    }
    CHECK_OK(cmq_fs_make_directory(cmq_fs_posix(), kit_path(writing.root, "cometmq")));
    CHECK_OK(cmq_queues_flush(queues, INT64_MAX, true, &covered));
    cmq_queues_destroy(queues);
    CHECK(unlink(kit_path(writing.root, "consumequeue/T/0/00000000000000000000")) == 0);
    CHECK_OK(cmq_queues_create(&queues, &reading));
    CHECK_OK(cmq_queues_load(queues));
    CHECK_OK(cmq_queues_recover(queues, 0, INT64_C(100) * UNITS, INT64_C(100) * UNITS, &covered));
    CHECK_OK(cmq_queues_load_ends(queues, &(cmq_queues_point){0}));
    CHECK(cmq_queues_lost_begins(queues));
    CHECK_INT(cmq_queues_begin_again(queues, 0, INT64_C(100) * UNITS, &from), CMQ_ERR_CORRUPT);
    CHECK(strstr(cmq_last_error()->text, "queue T/0") != NULL);
    cmq_queues_destroy(queues);
    kit_remove_tree(writing.root);
}

/* ---- a log that has too little ---- */

static void fewer_units_than_a_queue_lacks_are_refused(void)
{
    enum { UNITS = 3 * KIT_QUEUE_UNITS };
    const char *root = kit_directory();
    const cmq_queues_options options = {.fs = cmq_fs_posix(),
                                        .root = root,
                                        .queue_file_bytes = KIT_QUEUE_UNITS * CMQ_UNIT_BYTES,
                                        .batch_file_bytes = CMQ_BATCH_UNIT_BYTES,
                                        .ext_file_bytes = 1000};
    cmq_queues *queues;
    cmq_queue *queue;
    int64_t covered, from;
    CHECK_OK(cmq_queues_create(&queues, &options));
    CHECK_OK(cmq_queues_require(queues, kit_slice("T"), 0, CMQ_QUEUE_SIMPLE, &queue));
    for (int64_t i = 0; i < UNITS; i++) CHECK_OK(cmq_queue_reput(queue, i, i * 100, 100, 0, 1, 1));
    CHECK_OK(cmq_fs_make_directory(cmq_fs_posix(), kit_path(root, "cometmq")));
    CHECK_OK(cmq_queues_flush(queues, INT64_MAX, true, &covered));
    cmq_queues_destroy(queues);
    CHECK(unlink(queue_file(root, 0)) == 0);
    CHECK_OK(cmq_queues_create(&queues, &options));
    CHECK_OK(cmq_queues_load(queues));
    CHECK_OK(cmq_queues_recover(queues, 0, INT64_C(100) * UNITS, INT64_C(100) * UNITS, &covered));
    CHECK_OK(cmq_queues_load_ends(queues, &(cmq_queues_point){0}));
    CHECK_OK(cmq_queues_begin_again(queues, 0, INT64_C(100) * UNITS, &from));
    CHECK_INT(from, 0);
    CHECK_INT(cmq_queues_join_lost(queues), CMQ_ERR_CORRUPT);
    CHECK(strstr(cmq_last_error()->text, "queue T/0") != NULL);
    CHECK(!kit_exists(queue_file(root, 0)));
    cmq_queues_destroy(queues);
    kit_remove_tree(root);
}

CMQ_TEST_MAIN(CMQ_TEST(last_files_are_made_again), CMQ_TEST(files_from_the_middle_are_made_again),
              CMQ_TEST(first_and_last_files_are_made_again), CMQ_TEST(folders_are_made_again),
              CMQ_TEST(cut_last_files_are_made_again), CMQ_TEST(last_files_of_a_killed_writer_are_made_again),
              CMQ_TEST(lost_units_are_not_placed_by_wrong_ones),
              CMQ_TEST(a_topic_created_again_gets_its_last_records_alone), CMQ_TEST(last_batches_are_made_again),
              CMQ_TEST(last_files_behind_expired_records_are_made_again),
              CMQ_TEST(lost_units_of_expired_records_keep_their_offsets),
              CMQ_TEST(lost_batches_of_expired_records_close_no_store),
              CMQ_TEST(a_queue_that_was_cut_to_nothing_begins_where_it_begins_again),
              CMQ_TEST(lost_ends_need_the_table_of_the_point), CMQ_TEST(a_forged_begin_is_not_believed),
              CMQ_TEST(a_topic_deleted_last_stays_away),
              CMQ_TEST(a_topic_deleted_last_stays_away_beside_a_lost_folder),
              CMQ_TEST(a_topic_deleted_last_keeps_its_new_messages_alone),
              CMQ_TEST(a_crash_while_last_files_are_made_again_loses_nothing),
              CMQ_TEST(first_files_are_made_again), CMQ_TEST(an_empty_first_file_is_made_again),
              CMQ_TEST(a_killed_writers_are_made_again), CMQ_TEST(re_created_topic_gets_its_own_records_alone),
              CMQ_TEST(queues_of_batches_are_made_again), CMQ_TEST(a_queue_with_an_extension_is_made_again),
              CMQ_TEST(expired_files_are_not_lost_ones), CMQ_TEST(files_behind_expired_ones_are_made_again),
              CMQ_TEST(an_old_table_is_of_no_harm), CMQ_TEST(a_table_of_a_deleted_topic_is_of_no_harm),
              CMQ_TEST(a_view_beside_retention_loses_nothing), CMQ_TEST(a_crash_while_it_is_made_again_loses_nothing),
              CMQ_TEST(a_power_loss_after_the_kill_loses_nothing), CMQ_TEST(a_full_disk_keeps_one_attempt),
              CMQ_TEST(a_long_queue_is_refused_by_a_view), CMQ_TEST(fewer_units_than_a_queue_lacks_are_refused))
