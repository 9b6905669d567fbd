/* Tests csrc/store/queue/cmq_queue_sums.c and cmq_queue_end_sums.c: damage in queue files that no single unit shows is
 * never a skipped message.
 *
 * Threads: yes
 */
#include "store/queue/cmq_queue_sums.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cmq_crc32.h"
#include "store/check/cmq_repair.h"
#include "store/check/cmq_verify.h"
#include "store/cmq_store_internal.h"
#include "store/queue/cmq_queue_end_sums.h"
#include "support/cmq_store_kit.h"

#define FILE_UNITS 8192              /* 163,840 bytes: two blocks and a half, and the file's end ends the third */
#define MESSAGES 20000               /* two files, and 3,616 units: a block and some */
#define RARE 97                      /* each so many has the tag that is searched for */
#define SEALED 19660                 /* units below lie in complete blocks, with a unit to spare */
#define NEWEST (3 + 206 * RARE)      /* the last message with the rare tag */

static const char *root;

static cmq_store_options options_of(bool read_only)
{
    cmq_store_options options = kit_options(root);
    options.segment_bytes = 1 << 20;
    options.queue_file_bytes = FILE_UNITS * CMQ_UNIT_BYTES;
    options.flush = CMQ_FLUSH_ASYNC;
    options.read_only = read_only;
    options.create = !read_only;
    return options;
}

static cmq_store *open_store(bool read_only)
{
    const cmq_store_options options = options_of(read_only);
    return kit_open(&options);
}

static bool is_rare(int64_t offset) { return offset % RARE == 3; }

/* Messages [from, end) of queue 0: body "m", tag "rare" or "usual". */
static void append(cmq_store *store, const char *topic, int64_t from, int64_t end)
{
    static cmq_slice tags[MESSAGES];
    cmq_appended appended;
    CHECK(end - from <= MESSAGES);
    for (int64_t i = from; i < end; i++) tags[i - from] = kit_slice(is_rare(i) ? "rare" : "usual");
    const cmq_append batch = {.common = {.topic = kit_slice(topic)},
                              .count = (uint32_t)(end - from),
                              .bodies = {.kind = CMQ_COLUMN_ONE, .one = kit_slice("m")},
                              .tags = {.kind = CMQ_COLUMN_SLICES, .slices = tags}};
    CHECK_OK(cmq_store_append(store, &batch, &appended));
    CHECK_INT(appended.count, end - from);
}

static void start(void)
{
    root = kit_directory();
    kit_set_clock();
    cmq_store *store = open_store(false);
    append(store, "T", 0, MESSAGES);
    kit_close(store);
}

static const char *unit_file(int64_t unit)
{
    static char name[128];
    snprintf(name, sizeof name, "consumequeue/T/0/%020lld",
             (long long)(unit / FILE_UNITS * FILE_UNITS * CMQ_UNIT_BYTES));
    return kit_path(root, name);
}

static const char *sums_file(int64_t unit)
{
    static char name[128];
    snprintf(name, sizeof name, "cometmq/sums/T/0-%020lld",
             (long long)(unit / FILE_UNITS * FILE_UNITS * CMQ_UNIT_BYTES));
    return kit_path(root, name);
}

static int64_t byte_of(int64_t unit) { return unit % FILE_UNITS * CMQ_UNIT_BYTES; }

/* Which messages a read by tag gives: bit 0 of seen[offset]; bit 1: an error instead. */
typedef struct seen {
    uint8_t at[2 * MESSAGES];
    int64_t found, errors;
} seen;

static int64_t named_offset(const char *text)
{
    const char *at = strstr(text, "queue offset ");
    CHECK(at != NULL);
    return strtoll(at + strlen("queue offset "), NULL, 10);
}

static void read_tag(cmq_store *store, const char *topic_name, const char *tag, seen *out)
{
    const cmq_slice topic = kit_slice(topic_name), wanted = kit_slice(tag);
    cmq_reader *reader;
    kit_found *found = kit_found_make(KIT_FOUND_MAX);
    bool end = false;
    memset(out, 0, sizeof *out);
    CHECK_OK(cmq_reader_open(
        store, &(cmq_read_options){.topics = &topic, .topic_count = 1, .tags = &wanted, .tag_count = 1}, &reader));
    for (int idle = 0; !end && idle < 2;) {
        const cmq_status status = cmq_reader_next(reader, &found->batch, &end);
        idle = status == CMQ_OK && found->batch.count == 0 ? idle + 1 : 0;
        if (status == CMQ_ERR_CORRUPT) {
            out->at[named_offset(cmq_last_error()->text)] |= 2;
            out->errors++;
        } else CHECK_OK(status);
        for (uint32_t i = 0; i < found->batch.count; i++) out->at[found->items[i].queue_offset] |= 1;
        out->found += found->batch.count;
        cmq_found_batch_release(&found->batch);
    }
    cmq_reader_close(reader);
    kit_found_free(found);
}

/* Each message with the tag is found, or an error names its offset; nothing else is found. */
static void check_nothing_is_skipped(bool read_only, int64_t messages)
{
    static seen all;
    cmq_store *store = open_store(read_only);
    for (int again = 0; again < 2; again++) {   /* the second time with what the first noted */
        read_tag(store, "T", "rare", &all);
        for (int64_t i = 0; i < messages; i++)
            if (is_rare(i) ? all.at[i] == 0 : (all.at[i] & 1) != 0)
                cmq_test_fail(__FILE__, __LINE__, "message %lld is %s", (long long)i,
                              is_rare(i) ? "skipped" : "found by a tag that it has not");
    }
    kit_close(store);
}

static int64_t rare_below(int64_t end) { return (end - 4 + RARE) / RARE; }

static void complete_blocks_have_sums(void)
{
    start();
    CHECK_INT(kit_file_bytes(sums_file(0)), 3 * 4);
    CHECK_INT(kit_file_bytes(sums_file(FILE_UNITS)), 3 * 4);
    CHECK_INT(kit_file_bytes(sums_file(2 * FILE_UNITS)), 4);
    static seen all;
    cmq_store *store = open_store(false);
    read_tag(store, "T", "rare", &all);
    CHECK_INT(all.found, rare_below(MESSAGES));
    CHECK_INT(all.errors, 0);
    kit_close(store);
}

/* One bit in the lower half of a hash: nothing about the unit is impossible. */
static void a_flipped_tag_is_found_by_its_record(void)
{
    static const int64_t units[] = {3,          3 + 33 * RARE,  3276,      3277, FILE_UNITS - 1,
                                    FILE_UNITS, 3 + 120 * RARE, SEALED - 1, SEALED + 1, 3 + 203 * RARE, NEWEST};
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
        for (int read_only = 0; read_only < 2; read_only++) {
            start();
            kit_flip(unit_file(units[i]), byte_of(units[i]) + 19, 1);
            kit_flip(unit_file(units[i]), byte_of(units[i]) + 16, 4);
            static seen all;
            cmq_store *store = open_store(read_only);
            read_tag(store, "T", "rare", &all);
            CHECK_INT(all.found, rare_below(MESSAGES));
            CHECK_INT(all.errors, 0);
            kit_close(store);
        }
}

static void a_usual_message_does_not_turn_rare(void)
{
    start();
    uint8_t image[CMQ_UNIT_BYTES];
    kit_read_bytes(unit_file(3), byte_of(3) + 12, image, 8);
    kit_write_bytes(unit_file(500), byte_of(500) + 12, image, 8);
    check_nothing_is_skipped(false, MESSAGES);
}

static void a_zeroed_page_is_reported(void)
{
    static uint8_t zeros[4096];
    for (int64_t page = 1; page < 40; page += 19) {
        start();
        kit_write_bytes(unit_file(0), page * 4096, zeros, sizeof zeros);
        check_nothing_is_skipped(page == 1, MESSAGES);
    }
}

/* Blocks that have no sum: a page of zeros shows itself. In a read (few units), and in a map. An opening mends what it
 * meets at a queue's end: this comes later. */
static void zeros_without_a_sum_are_reported(void)
{
    static uint8_t zeros[300];
    for (int few = 0; few < 2; few++) {
        start();
        const int64_t messages = few ? 2 * FILE_UNITS + 400 : MESSAGES, unit = messages - 100;
        if (few) {
            kit_remove_tree(root);
            CHECK_OK(cmq_fs_make_directory(cmq_fs_posix(), root));
            cmq_store *store = open_store(false);
            append(store, "T", 0, messages);
            kit_close(store);
        }
        static seen all;
        cmq_store *store = open_store(true);
        kit_write_bytes(unit_file(unit), byte_of(unit), zeros, sizeof zeros);
        read_tag(store, "T", "rare", &all);
        for (int64_t i = unit; i < unit + 15; i++) CHECK(all.at[i] != 0);
        CHECK_INT(all.errors, 15);
        kit_close(store);
    }
}

/* Any damage: of bits, bytes and pages. */
static void random_damage_skips_nothing(void)
{
    const uint64_t rounds = kit_amount("CMQ_ROUNDS", 12, 400);
    for (uint64_t round = 0; round < rounds; round++) {
        start();
        for (uint64_t i = cmq_test_random_below(6) + 1; i > 0; i--) {
            const int64_t unit = (int64_t)cmq_test_random_below(MESSAGES);
            kit_flip(unit_file(unit), byte_of(unit) + (int64_t)cmq_test_random_below(CMQ_UNIT_BYTES),
                     (uint8_t)(1u << cmq_test_random_below(8)));
        }
        check_nothing_is_skipped(cmq_test_random_below(2) == 0, MESSAGES);
        kit_remove_tree(root);
        CHECK_OK(cmq_fs_make_directory(cmq_fs_posix(), root));
    }
}

/* Sums are disposable: wrong, short, missing and foreign ones change nothing. */
static void wrong_sums_change_nothing(void)
{
    static const int64_t lengths[] = {0, 1, 5, 12, 4000};
    static seen all;
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        start();
        uint8_t noise[4000];
        for (size_t at = 0; at < sizeof noise; at++) noise[at] = (uint8_t)cmq_test_random();
        kit_write_bytes(sums_file(0), 0, noise, (size_t)lengths[i]);
        kit_resize(sums_file(0), lengths[i]);
        CHECK_OK(cmq_fs_remove(cmq_fs_posix(), sums_file(FILE_UNITS)));
        cmq_store *store = open_store(i % 2 == 0);
        read_tag(store, "T", "rare", &all);
        CHECK_INT(all.found, rare_below(MESSAGES));
        CHECK_INT(all.errors, 0);
        kit_close(store);
    }
}

/* A queue that is mapped while it grows, here and in a view of another handle. */
static void growing_queues_are_checked(void)
{
    static seen all;
    root = kit_directory();
    kit_set_clock();
    cmq_store *store = open_store(false), *view = NULL;
    for (int64_t end = 5000; end <= MESSAGES; end += 5000) {
        append(store, "T", end - 5000, end);
        CHECK_OK(cmq_store_maintain(store, true));
        read_tag(store, "T", "rare", &all);
        CHECK_INT(all.found, rare_below(end));
        if (view == NULL) view = open_store(true);
        read_tag(view, "T", "rare", &all);
        CHECK_INT(all.found, rare_below(end));
        CHECK_INT(all.errors, 0);
    }
    /* Rot in a file that both have mapped for long, in a block that was complete only later. */
    kit_flip(unit_file(3 + 150 * RARE), byte_of(3 + 150 * RARE) + 19, 2);
    cmq_store *fresh = open_store(true);
    read_tag(fresh, "T", "rare", &all);
    CHECK_INT(all.found, rare_below(MESSAGES));
    kit_close(fresh);
    kit_close(view);
    kit_close(store);
}

/* The sums of a deleted queue go with it; a queue re-created under the same name has its own. */
static void sums_go_with_their_queues(void)
{
    static seen all;
    start();
    cmq_store *store = open_store(false);
    CHECK_OK(cmq_store_delete_topic(store, kit_slice("T")));
    CHECK(!kit_exists(kit_path(root, "cometmq/sums/T")));
    append(store, "T", 0, 10000);
    CHECK_OK(cmq_store_maintain(store, true));
    read_tag(store, "T", "rare", &all);
    CHECK_INT(all.found, rare_below(10000));
    kit_close(store);
    CHECK_INT(kit_file_bytes(sums_file(0)), 3 * 4);
    check_nothing_is_skipped(false, 10000);
}

static const char *ends_file(void) { return kit_path(root, "cometmq/ends"); }

static void flip_rare(const char *topic, int64_t unit)
{
    char name[96];
    snprintf(name, sizeof name, "consumequeue/%s/0/%020d", topic, 0);
    kit_flip(kit_path(root, name), byte_of(unit) + 19, 1);
}

/* Queues that have no complete block at all. After a clean end, and after a crash behind a durable point. */
static void short_queues_have_sums(void)
{
    static const int64_t lengths[] = {4, 5, 100, 3275, 3276, 3277, 3278};
    static seen all;
    for (size_t i = 0; i < 2 * (sizeof lengths / sizeof lengths[0]); i++) {
        const int64_t messages = lengths[i / 2];
        root = kit_directory();
        kit_set_clock();
        cmq_store *store = open_store(false);
        append(store, "T", 0, messages);
        append(store, "U", 0, 4);
        if (i % 2 == 0) {
            kit_close(store);
        } else {
            CHECK_OK(cmq_store_maintain(store, true));
            append(store, "T", messages, messages + 50);
            cmq_store_abandon(store);
        }
        flip_rare("T", 3);
        flip_rare("U", 3);
        for (int read_only = 1; read_only >= 0; read_only--) {
            store = open_store(read_only);
            read_tag(store, "U", "rare", &all);
            CHECK_INT(all.found, 1);
            read_tag(store, "T", "rare", &all);
            CHECK_INT(all.found, rare_below(i % 2 == 0 ? messages : messages + 50));
            CHECK_INT(all.errors, 0);
            kit_close(store);
        }
    }
}

/* Units of 46 bytes that one step of a scan fetches on both sides of the border of the last block. */
static void the_end_of_a_batch_queue_is_checked(void)
{
    enum { UNITS = 1500, LAST_BLOCK = CMQ_SUMS_BLOCK_BYTES / CMQ_BATCH_UNIT_BYTES, DAMAGED = LAST_BLOCK + 8 };
    static const char *const topics[] = {"B"};
    static const char file[] = "batchconsumequeue/B/0/00000000000000000000";
    for (int read_only = 0; read_only < 2; read_only++) {
        root = kit_directory();
        kit_set_clock();
        cmq_store_options options = options_of(false);
        options.batch_file_bytes = 4000 * CMQ_BATCH_UNIT_BYTES;
        options.batch_topics = topics;
        options.batch_topic_count = 1;
        cmq_store *store = kit_open(&options);
        for (int64_t i = 0; i < UNITS; i++) kit_append(store, "B", 0, "m", i == DAMAGED ? "rare" : "usual", NULL);
        kit_close(store);
        kit_flip(kit_path(root, file), DAMAGED * CMQ_BATCH_UNIT_BYTES + 19, 1);
        options.read_only = read_only;
        options.create = !read_only;
        static seen all;
        store = kit_open(&options);
        read_tag(store, "B", "rare", &all);
        CHECK_INT(all.at[DAMAGED], 1);
        CHECK_INT(all.found, 1);
        kit_close(store);
    }
}

/* Damage in a queue's end does not get into the sum that its block has once it is complete. */
static void a_completed_block_keeps_its_damage_known(void)
{
    static seen all;
    root = kit_directory();
    kit_set_clock();
    cmq_store *store = open_store(false);
    append(store, "T", 0, 1000);
    kit_close(store);
    flip_rare("T", 3);
    store = open_store(false);
    append(store, "T", 1000, 1500);
    kit_close(store);
    store = open_store(false);
    append(store, "T", 1500, 8000);
    kit_close(store);
    CHECK_INT(kit_file_bytes(sums_file(0)), 2 * 4);
    store = open_store(true);
    read_tag(store, "T", "rare", &all);
    CHECK_INT(all.found, rare_below(8000));
    kit_close(store);
}

/* A table that may not hold all queues holds the first ones. */
static void a_table_of_ends_has_the_queues_that_fit(void)
{
    enum { ONE_QUEUE = 16 + 34 + 1 + 4 };
    static seen all;
    root = kit_directory();
    kit_set_clock();
    cmq_store *store = open_store(false);
    append(store, "T", 0, 100);
    append(store, "U", 0, 100);
    CHECK_OK(cmq_store_maintain(store, true));
    CHECK(kit_file_bytes(ends_file()) > ONE_QUEUE);
    CHECK_OK(cmq_fs_remove(cmq_fs_posix(), ends_file()));
    append(store, "T", 100, 104);
    append(store, "U", 100, 104);
    CHECK_OK(cmq_store_maintain(store, false));
    cmq_queue_end_sums_store(store->queues, ONE_QUEUE);
    CHECK_INT(kit_file_bytes(ends_file()), ONE_QUEUE);
    cmq_store_abandon(store);
    store = open_store(true);
    read_tag(store, "T", "rare", &all);
    CHECK_INT(all.found, rare_below(104));
    kit_close(store);
}

/* A table as versions before 2026-11-28 wrote it, of one queue with a topic of one letter: its sum counts. */
static void a_table_without_begins_is_read(void)
{
    enum { BEGIN_AT = 16 + 18, BEGIN_BYTES = 16, BYTES = BEGIN_AT + 1 + 4 };
    static seen all;
    uint8_t table[BYTES + BEGIN_BYTES];
    root = kit_directory();
    kit_set_clock();
    cmq_store *store = open_store(false);
    append(store, "T", 0, 100);
    kit_close(store);
    CHECK_INT(kit_file_bytes(ends_file()), sizeof table);
    kit_read_bytes(ends_file(), 0, table, sizeof table);
    cmq_store_u32(table + 8, 1);
    memmove(table + BEGIN_AT, table + BEGIN_AT + BEGIN_BYTES, 1);
    cmq_store_u32(table + BYTES - 4, cmq_crc32(table, BYTES - 4));
    kit_write_bytes(ends_file(), 0, table, BYTES);
    kit_resize(ends_file(), BYTES);
    flip_rare("T", 3);
    for (int sums = 1; sums >= 0; sums--) {
        store = open_store(true);
        read_tag(store, "T", "rare", &all);
        CHECK_INT(all.found, rare_below(100) - (sums ? 0 : 1));
        kit_close(store);
        if (sums) kit_flip(ends_file(), 8, 1);
    }
}

/* The table of ends is disposable, too: changed, cut, missing and old ones. */
static void wrong_ends_change_nothing(void)
{
    static uint8_t old[200];
    static seen all;
    start();
    const int64_t bytes = kit_file_bytes(ends_file());
    CHECK(bytes > 0 && bytes <= (int64_t)sizeof old);
    kit_read_bytes(ends_file(), 0, old, (size_t)bytes);
    for (int64_t at = -1; at <= bytes; at++) {
        if (at < 0) {
            CHECK_OK(cmq_fs_remove(cmq_fs_posix(), ends_file()));
        } else {
            kit_write_bytes(ends_file(), 0, old, (size_t)bytes);
            kit_resize(ends_file(), bytes);
            if (at % 2 == 0 || at == bytes) kit_resize(ends_file(), at);
            else kit_flip(ends_file(), at, 16);
        }
        cmq_store *store = open_store(true);
        read_tag(store, "T", "rare", &all);
        CHECK_INT(all.found, rare_below(MESSAGES));
        CHECK_INT(all.errors, 0);
        kit_close(store);
    }
    /* One of the same queue, shorter, and one behind a topic that was deleted and re-created. */
    kit_write_bytes(ends_file(), 0, old, (size_t)bytes);
    cmq_store *store = open_store(false);
    append(store, "T", MESSAGES, MESSAGES + 300);
    kit_close(store);
    kit_write_bytes(ends_file(), 0, old, (size_t)bytes);
    check_nothing_is_skipped(false, MESSAGES + 300);
    store = open_store(false);
    CHECK_OK(cmq_store_delete_topic(store, kit_slice("T")));
    append(store, "T", 0, MESSAGES);
    append(store, "T", MESSAGES, MESSAGES + 1);
    kit_close(store);
    kit_write_bytes(ends_file(), 0, old, (size_t)bytes);
    check_nothing_is_skipped(true, MESSAGES + 1);
}

/* Recovery cuts and writes again: old sums of what was there before are of no harm. */
static void recovered_queues_are_read_whole(void)
{
    static seen all;
    start();
    cmq_store *store = open_store(false);
    append(store, "T", MESSAGES, MESSAGES + 4000);
    CHECK_OK(cmq_store_flush(store));
    cmq_store_abandon(store);
    const int64_t unit = MESSAGES + 100;
    static uint8_t zeros[FILE_UNITS * CMQ_UNIT_BYTES];
    kit_write_bytes(unit_file(unit), byte_of(unit), zeros, (size_t)(FILE_UNITS * CMQ_UNIT_BYTES - byte_of(unit)));
    store = open_store(false);
    append(store, "T", MESSAGES + 4000, MESSAGES + 8000);
    CHECK_OK(cmq_store_maintain(store, true));
    read_tag(store, "T", "rare", &all);
    CHECK_INT(all.found, rare_below(MESSAGES + 8000));
    CHECK_INT(all.errors, 0);
    kit_close(store);
    check_nothing_is_skipped(true, MESSAGES + 8000);
}

static bool count_wrong(void *context, const cmq_problem *problem)
{
    CHECK_INT(problem->kind, CMQ_PROBLEM_UNIT_WRONG);
    ++*(int *)context;
    return true;
}

/* Whether a unit's hash is wrong: verify looks at every record. */
static int wrong_units(void)
{
    int wrong = 0;
    cmq_verified verified;
    cmq_store *store = open_store(true);
    CHECK_OK(cmq_store_verify(store, &(cmq_verify_options){.problem = count_wrong, .context = &wrong}, &verified));
    kit_close(store);
    return wrong;
}

/* In complete blocks and in the last one. */
static void verify_names_them_and_repair_mends_them(void)
{
    static seen all;
    cmq_repair_report report;
    start();
    kit_flip(unit_file(3), byte_of(3) + 19, 1);
    kit_flip(unit_file(MESSAGES - 1), byte_of(MESSAGES - 1) + 19, 1);
    CHECK_INT(wrong_units(), 2);
    kit_flip(sums_file(0), 0, 255);   /* a sum of something else, as after a repair by an older version */
    const cmq_store_options options = options_of(false);
    CHECK_OK(cmq_store_repair(&(cmq_repair_options){.store = &options}, &report));
    CHECK_INT(wrong_units(), 0);
    CHECK_INT(kit_file_bytes(sums_file(0)), 3 * 4);
    kit_flip(unit_file(3), byte_of(3) + 19, 1);   /* the repaired files have sums of their own */
    cmq_store *store = open_store(true);
    read_tag(store, "T", "rare", &all);
    CHECK_INT(all.found, rare_below(MESSAGES));
    kit_close(store);
}

static void *read_again(void *argument)
{
    seen *all = malloc(sizeof *all);
    for (int i = 0; i < 10; i++) {
        read_tag(argument, "T", "rare", all);
        CHECK_INT(all->found, rare_below(MESSAGES));
    }
    free(all);
    return NULL;
}

static void threads_share_learnt_facts(void)
{
    pthread_t threads[4];
    start();
    kit_flip(unit_file(3 + 33 * RARE), byte_of(3 + 33 * RARE) + 19, 1);
    cmq_store *store = open_store(false);
    for (int i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], NULL, read_again, store) == 0);
    for (int i = 0; i < 4; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    kit_close(store);
}

CMQ_TEST_MAIN(CMQ_TEST(complete_blocks_have_sums), CMQ_TEST(a_flipped_tag_is_found_by_its_record),
              CMQ_TEST(a_usual_message_does_not_turn_rare), CMQ_TEST(a_zeroed_page_is_reported),
              CMQ_TEST(zeros_without_a_sum_are_reported), CMQ_TEST(random_damage_skips_nothing),
              CMQ_TEST(wrong_sums_change_nothing), CMQ_TEST(growing_queues_are_checked),
              CMQ_TEST(sums_go_with_their_queues), CMQ_TEST(short_queues_have_sums),
              CMQ_TEST(the_end_of_a_batch_queue_is_checked),
              CMQ_TEST(a_completed_block_keeps_its_damage_known), CMQ_TEST(a_table_of_ends_has_the_queues_that_fit),
              CMQ_TEST(a_table_without_begins_is_read), CMQ_TEST(wrong_ends_change_nothing),
              CMQ_TEST(recovered_queues_are_read_whole),
              CMQ_TEST(threads_share_learnt_facts), CMQ_TEST(verify_names_them_and_repair_mends_them))
