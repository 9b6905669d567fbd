/* test_cmq_repair: stores damaged by hand are whole afterwards; removed bytes are kept; a repair may be cut off, fail
 * or be stopped anywhere.
 *
 * Checks: every sound message is read as before; queues and index agree with the log; no file's length changes; queues
 *         whose messages have all expired go on at their offset; an interrupted repair is completed by the next repair
 *         or opening, wherever it was cut off.
 */
#include "store/check/cmq_repair.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "store/index/cmq_index.h"
#include "support/cmq_file_twin.h"
#include "support/cmq_repair_kit.h"

#define TEXT_BYTES 65536

/* A killed writer's store: a copy of its directory while it is open. */
static const char *make_crashed_store(void)
{
    static char copy[CMQ_PATH_BYTES];
    const char *base = kit_directory();
    const char *root = kit_path(base, "living");
    strcpy(copy, kit_path(base, "store"));
    cmq_store *store = kit_open_at(root);
    kit_fill(store);
    CHECK_OK(cmq_store_maintain(store, true));
    kit_copy_tree(root, copy);
    kit_close(store);
    return copy;
}

static const char *read_all_of(const char *root)
{
    const cmq_store_options options = {.path = root, .read_only = true, .clock = kit_clock()};
    cmq_store *store = kit_open(&options);
    const char *text = kit_read_all(store);
    kit_close(store);
    return text;
}

static void check_key(cmq_store *store, const char *key, uint32_t expected)
{
    kit_found *found = kit_found_make(KIT_FOUND_MAX);
    CHECK_OK(cmq_store_find_key(store, kit_slice("a"), kit_slice(key), 0, INT64_MAX, &found->batch));
    CHECK_INT(found->batch.count, expected);
    kit_found_free(found);
}

static void check_keys(cmq_store *store)
{
    for (int i = 0; i < MESSAGES; i++) {
        char key[24];
        snprintf(key, sizeof key, "k%d", i);
        check_key(store, key, 1);
    }
    check_key(store, "common3", MESSAGES / 5);
}

/* The store opens without recovering anything, has every message and key, and goes on. */
static void check_opens_and_goes_on(const char *root)
{
    cmq_store *store = kit_open_at(root);
    cmq_store_opening opening;
    cmq_store_opening_of(store, &opening);
    CHECK(!opening.was_unclean && opening.trusted_point);
    CHECK_INT(opening.records, 0);
    CHECK_INT(opening.cut_bytes, 0);
    CHECK_INT(kit_max(store, "a", 0), MESSAGES);
    CHECK_INT(kit_max(store, "b", 0), (MESSAGES + 7) / 8);
    check_keys(store);
    CHECK_INT(kit_append(store, "a", 0, "goes on", "red", "knew").first_queue_offset, MESSAGES);
    check_key(store, "knew", 1);
    kit_close(store);
    kit_check_healthy(root);
}

/* ---- trees ---- */

/* Every file with its length and a sum of its bytes, as text. */
typedef struct tree_text {
    char text[TEXT_BYTES];
    size_t used;
    size_t root_bytes;
} tree_text;

static void add_file(void *context, const char *path, int64_t bytes)
{
    tree_text *tree = context;
    uint64_t sum = 1469598103934665603u;
    uint8_t *content = malloc((size_t)bytes + 1);
    CHECK(content != NULL);
    if (bytes > 0) kit_read_bytes(path, 0, content, (size_t)bytes);
    for (int64_t i = 0; i < bytes; i++) sum = (sum ^ content[i]) * 1099511628211u;
    free(content);
    const char *name = path + tree->root_bytes;
    if (strcmp(name, "/lock") == 0) return;
    const int length = snprintf(tree->text + tree->used, sizeof tree->text - tree->used, "%s %" PRId64 " %" PRIx64 "\n",
                                name, bytes, sum);
    CHECK(length > 0 && tree->used + (size_t)length < sizeof tree->text);
    tree->used += (size_t)length;
}

static tree_text *tree_of(const char *root)
{
    tree_text *tree = calloc(1, sizeof *tree);
    CHECK(tree != NULL);
    tree->root_bytes = strlen(root);
    kit_each_file(root, add_file, tree);
    return tree;
}

static void check_same_tree(tree_text *before, const char *root)
{
    tree_text *after = tree_of(root);
    CHECK_TEXT(after->text, before->text);
    free(after);
    free(before);
}

static const char *folder_text(const char *root, const char *folder)
{
    static char text[TEXT_BYTES];
    tree_text *tree = tree_of(kit_path(root, folder));
    memcpy(text, tree->text, sizeof text);
    free(tree);
    return text;
}

/* ---- healthy, and derived files damaged ---- */

static void test_a_healthy_store_stays_as_it_is(void)
{
    const char *root = kit_make_store();
    char *before = strdup(read_all_of(root));
    char *log = strdup(folder_text(root, "commitlog")), *queues = strdup(folder_text(root, "consumequeue"));
    kit_repair(root);
    CHECK_INT(kit_report.messages, MESSAGES + (MESSAGES + 3) / 4);
    CHECK_INT(kit_report.records, kit_report.messages);
    CHECK_INT(kit_report.keys, 2 * MESSAGES);
    CHECK_INT(kit_report.queues, 3);
    CHECK_INT(kit_report.queues_kept, 0);
    CHECK_INT(kit_report.damaged_places, 0);
    CHECK_INT(kit_report.tail_bytes, 0);
    CHECK_INT(kit_report.cut_at, -1);
    CHECK(!kit_report.finished_earlier && !kit_report.was_unclean);
    CHECK_TEXT(folder_text(root, "commitlog"), log);
    CHECK_TEXT(folder_text(root, "consumequeue"), queues);       /* rebuilt, byte for byte the same */
    CHECK_TEXT(folder_text(kit_report.kept, "consumequeue"), queues);
    CHECK(kit_exists(kit_path(kit_report.kept, "index")) && kit_exists(kit_path(kit_report.kept, "checkpoint")));
    CHECK(!kit_exists(kit_path(root, "cometmq/rebuild")) && !kit_exists(kit_path(root, "cometmq/repair")));
    CHECK_TEXT(read_all_of(root), before);
    kit_check_healthy(root);
    check_opens_and_goes_on(root);
    free(before);
    free(log);
    free(queues);
}

static void test_lost_and_damaged_files_come_back(void)
{
    const char *root = kit_make_store();
    const uint8_t zeros[CMQ_UNIT_BYTES] = {0};
    kit_write_bytes(kit_path(root, "consumequeue/a/0/00000000000000000400"), 5 * CMQ_UNIT_BYTES, zeros, sizeof zeros);
    kit_flip(kit_path(root, "consumequeue/a/0/00000000000000000800"), 7, 1);
    kit_remove_tree(kit_path(root, "consumequeue/b/3"));
    kit_remove_tree(kit_path(root, "index"));
    kit_repair(root);
    kit_check_healthy(root);
    check_opens_and_goes_on(root);
}

static void test_all_derived_files_may_be_gone(void)
{
    const char *root = kit_make_store();
    kit_remove_tree(kit_path(root, "consumequeue"));
    kit_remove_tree(kit_path(root, "index"));
    kit_remove_tree(kit_path(root, "cometmq"));
    CHECK_INT(remove(kit_path(root, "checkpoint")), 0);
    kit_repair(root);
    kit_check_healthy(root);
    check_opens_and_goes_on(root);
}

static void cut_file_short(void *context, const char *path, int64_t bytes)
{
    int *left = context;
    if ((*left)-- == 0) kit_resize(path, bytes / 2);
}

static void test_files_of_odd_lengths_are_outvoted(void)
{
    const char *root = kit_make_store();
    kit_resize(kit_path(root, "consumequeue/a/0/00000000000000000400"), 333);
    int first = 0;
    kit_each_file(kit_path(root, "index"), cut_file_short, &first);
    const cmq_store_options plain = {.path = root, .read_only = true, .clock = kit_clock()};
    cmq_store *store;
    CHECK(cmq_store_open(&store, &plain) != CMQ_OK);
    const cmq_store_options only_path = {.path = root, .clock = kit_clock()};
    CHECK_OK(kit_try_repair(root, (cmq_repair_options){.store = &only_path}));
    CHECK_INT(kit_report.sizes.queue_file_bytes, KIT_QUEUE_UNITS * CMQ_UNIT_BYTES);
    CHECK_INT(kit_report.sizes.index_slots, KIT_INDEX_SLOTS);
    CHECK_INT(kit_report.sizes.index_entries, KIT_INDEX_ENTRIES);
    CHECK_INT(kit_file_bytes(kit_path(kit_report.kept, "consumequeue/a/0/00000000000000000400")), 333);
    kit_check_healthy(root);
    check_opens_and_goes_on(root);
}

static void test_a_crashed_store_is_clean_afterwards(void)
{
    const char *root = make_crashed_store();
    CHECK(kit_exists(kit_path(root, "abort")));
    kit_repair(root);
    CHECK(kit_report.was_unclean);
    CHECK(!kit_exists(kit_path(root, "abort")) && kit_exists(kit_path(kit_report.kept, "abort")));
    kit_check_healthy(root);
    check_opens_and_goes_on(root);
}

static void test_an_empty_store_can_be_repaired(void)
{
    const char *root = kit_new_root();
    kit_close(kit_open_at(root));
    kit_repair(root);
    CHECK_INT(kit_report.records, 0);
    cmq_store *store = kit_open_at(root);
    kit_append(store, "a", 0, "first", NULL, NULL);
    CHECK_TEXT(kit_read_all(store), "first");
    kit_close(store);
    kit_check_healthy(root);
}

/* A message that is put into a light queue besides, as a broker's multi-dispatch stores it. */
static void append_light(cmq_store *store, int offset)
{
    uint8_t properties[128];
    size_t used = 0;
    char number[16];
    cmq_appended appended;
    snprintf(number, sizeof number, "%d", offset);
    CHECK_OK(cmq_property_append(properties, sizeof properties, &used, kit_slice("INNER_MULTI_DISPATCH"),
                                 kit_slice("%LMQ%light")));
    CHECK_OK(cmq_property_append(properties, sizeof properties, &used, kit_slice("INNER_MULTI_QUEUE_OFFSET"),
                                 kit_slice(number)));
    const cmq_append append = {
        .common = {.topic = kit_slice("a"), .queue_id = 1},
        .count = 1,
        .bodies = {.kind = CMQ_COLUMN_ONE, .one = kit_slice("for a light queue, too")},
        .properties = {.kind = CMQ_COLUMN_ONE, .one = {.data = properties, .bytes = used}},
    };
    CHECK_OK(cmq_store_append(store, &append, &appended));
}

static void test_batch_light_and_extended_queues(void)
{
    const char *root = kit_new_root();
    static const char *const batch_topics[] = {"batch"};
    cmq_store_options options = kit_options(root);
    options.batch_topics = batch_topics;
    options.batch_topic_count = 1;
    options.ext_enabled = true;
    options.lmq_enabled = true;
    cmq_store *store = kit_open(&options);
    kit_fill(store);
    for (int i = 0; i < 50; i++) kit_append(store, "batch", 0, "in a batch queue", "red", "kb");
    for (int i = 0; i < 30; i++) append_light(store, i);
    kit_close(store);
    kit_check_healthy(root);
    char *queues = strdup(folder_text(root, "batchconsumequeue")), *ext = strdup(folder_text(root, "consumequeue_ext"));
    kit_remove_tree(kit_path(root, "consumequeue/a"));
    /* kinds, extensions and light queues are seen in the files */
    const cmq_store_options only_path = {.path = root, .clock = kit_clock()};
    CHECK_OK(kit_try_repair(root, (cmq_repair_options){.store = &only_path}));
    CHECK_TEXT(folder_text(root, "batchconsumequeue"), queues);
    CHECK_TEXT(folder_text(root, "consumequeue_ext"), ext);
    kit_check_healthy(root);
    store = kit_open(&options);
    CHECK_INT(kit_max(store, "batch", 0), 50);
    CHECK_INT(kit_max(store, "%LMQ%light", 0), 30);
    CHECK_INT(kit_max(store, "a", 0), MESSAGES);
    kit_close(store);
    free(queues);
    free(ext);
}

/* ---- topics ---- */

static bool wants_no_b(void *context, cmq_slice topic)
{
    ++*(int *)context;
    return !cmq_slice_equal(topic, kit_slice("b"));
}

static void test_deleted_topics_stay_deleted(void)
{
    const char *root = kit_new_root();
    cmq_store *store = kit_open_at(root);
    kit_fill(store);
    CHECK_OK(cmq_store_delete_topic(store, kit_slice("b")));
    kit_close(store);
    int asked = 0;
    CHECK_OK(kit_try_repair(root, (cmq_repair_options){.wanted = wants_no_b, .context = &asked}));
    CHECK(asked > 0);
    CHECK_INT(kit_report.unwanted, (MESSAGES + 3) / 4);
    CHECK(!kit_exists(kit_path(root, "consumequeue/b")));
    kit_repair(root);   /* nobody asked: they come back */
    CHECK(kit_exists(kit_path(root, "consumequeue/b/3")));
    kit_check_healthy(root);
}

static void test_queues_without_messages_keep_their_offset(void)
{
    const char *root = kit_new_root();
    cmq_store_options options = kit_options(root);
    static const char *const batch_topics[] = {"quietbatch"};
    options.batch_topics = batch_topics;
    options.batch_topic_count = 1;
    options.retention = (cmq_retention){.enabled = true, .reserved_ms = 1, .files_per_round = 100};
    cmq_store *store = kit_open(&options);
    for (int i = 0; i < 47; i++) kit_append(store, "quiet", 0, "soon gone", "red", NULL);
    for (int i = 0; i < 9; i++) kit_append(store, "quietbatch", 2, "soon gone", NULL, NULL);
    kit_fill(store);
    CHECK_OK(cmq_store_maintain(store, true));
    uint32_t deleted;
    CHECK_OK(cmq_store_expire(store, true, &deleted));
    CHECK(deleted > 0);
    CHECK_INT(kit_min(store, "quiet", 0), 47);
    CHECK_INT(kit_max(store, "quiet", 0), 47);
    const int64_t min = kit_min(store, "a", 0), batch_max = kit_max(store, "quietbatch", 2);
    CHECK(min > 0 && batch_max == 9);
    kit_close(store);
    kit_repair(root);
    CHECK_INT(kit_report.queues_kept, 2);
    kit_repair(root);   /* and again, from what the first one kept */
    CHECK_INT(kit_report.queues_kept, 2);
    kit_check_healthy(root);
    options.retention.enabled = false;
    store = kit_open(&options);
    CHECK_INT(kit_min(store, "a", 0), min);
    CHECK_INT(kit_min(store, "quiet", 0), 47);
    CHECK_INT(kit_max(store, "quiet", 0), 47);
    CHECK_INT(kit_append(store, "quiet", 0, "back", NULL, NULL).first_queue_offset, 47);
    CHECK_INT(kit_append(store, "quietbatch", 2, "back", NULL, NULL).first_queue_offset, 9);
    kit_close(store);
    kit_check_healthy(root);
}

/* ---- the log ---- */

static void on_damage(void *context, int64_t phy, int64_t bytes, const char *reason)
{
    int64_t *place = context;
    place[0] = phy;
    place[1] = bytes;
    CHECK(reason[0] != '\0');
}

static void test_damage_is_passed_over(void)
{
    const int numbers[] = {5, MESSAGES - 4};   /* in the oldest and in the newest segment */
    for (size_t n = 0; n < 2; n++) {
        const char *root = make_crashed_store();
        const int i = numbers[n];
        int64_t place[2];
        char *log;
        kit_damage_record(root, kit_placed[i].first_physical_offset);
        log = strdup(folder_text(root, "commitlog"));
        cmq_store *store;
        if (n == 1) {
            kit_remove_tree(kit_path(root, "cometmq"));   /* without our point, opening reads the newest segment, and
                                                           * refuses */
            const cmq_store_options options = kit_options(root);
            CHECK_STATUS(cmq_store_open(&store, &options), CMQ_ERR_CORRUPT);
        }
        CHECK_OK(kit_try_repair(root, (cmq_repair_options){.damage = on_damage, .context = place}));
        CHECK_INT(kit_report.damaged_places, 1);
        CHECK_INT(kit_report.first_damage, kit_placed[i].first_physical_offset);
        CHECK_INT(place[0], kit_placed[i].first_physical_offset);
        CHECK_INT(place[1], kit_placed[i].end - kit_placed[i].first_physical_offset);
        CHECK_INT(kit_report.damaged_bytes, place[1]);
        CHECK_INT(kit_report.cut_at, -1);
        CHECK_INT(kit_report.gaps, 1);
        CHECK_TEXT(folder_text(root, "commitlog"), log);   /* not touched */
        cmq_verified verified;
        const int *counts = kit_verify(root, &verified);
        CHECK_INT(counts[CMQ_PROBLEM_RECORD], 1);
        CHECK_INT(counts[CMQ_PROBLEM_GAP], 1);
        CHECK_INT(verified.problems[CMQ_SEVERITY_REPAIRABLE], 0);
        CHECK_INT(verified.records, MESSAGES + (MESSAGES + 3) / 4 - 1);
        store = kit_open_at(root);
        CHECK_INT(kit_max(store, "a", 0), MESSAGES);
        CHECK_INT(kit_append(store, "a", 0, "goes on", NULL, NULL).first_queue_offset, MESSAGES);
        kit_close(store);
        free(log);
    }
}

static void test_a_cut_keeps_the_removed_bytes(void)
{
    const int numbers[] = {60, MESSAGES - 4};
    for (size_t n = 0; n < 2; n++) {
        const char *root = kit_make_store();
        const int i = numbers[n];
        const int64_t at = kit_placed[i].first_physical_offset, inside = at % KIT_SEGMENT_BYTES;
        kit_damage_record(root, at);
        static uint8_t segment[KIT_SEGMENT_BYTES], kept[KIT_SEGMENT_BYTES], rest[KIT_SEGMENT_BYTES];
        kit_read_bytes(kit_segment_of(root, at), 0, segment, sizeof segment);
        CHECK_OK(kit_try_repair(root, (cmq_repair_options){.cut_damage = true}));
        CHECK_INT(kit_report.cut_at, at);
        CHECK_INT(kit_report.log_end, at);
        CHECK_INT(kit_report.messages + kit_report.cut_messages, MESSAGES + (MESSAGES + 3) / 4 - 1);
        CHECK_INT(kit_report.cut_files,
                  n == 0 ? kit_placed[MESSAGES - 1].end / KIT_SEGMENT_BYTES - at / KIT_SEGMENT_BYTES : 0);
        char name[64];
        snprintf(name, sizeof name, "commitlog/%020" PRId64 ".cut", at);
        const int64_t bytes = kit_file_bytes(kit_path(kit_report.kept, name));
        CHECK(bytes > 0 && bytes == kit_report.cut_bytes && bytes <= KIT_SEGMENT_BYTES - inside);
        kit_read_bytes(kit_path(kit_report.kept, name), 0, kept, (size_t)bytes);
        CHECK_BYTES(kept, (size_t)bytes, segment + inside, (size_t)bytes);
        CHECK_INT(kit_file_bytes(kit_segment_of(root, at)), KIT_SEGMENT_BYTES);
        kit_read_bytes(kit_segment_of(root, at), inside, rest, (size_t)(KIT_SEGMENT_BYTES - inside));
        for (int64_t k = 0; k < KIT_SEGMENT_BYTES - inside; k++) CHECK_INT(rest[k], 0);
        if (n == 0) {
            snprintf(name, sizeof name, "commitlog/%020" PRId64, (at / KIT_SEGMENT_BYTES + 1) * KIT_SEGMENT_BYTES);
            CHECK_INT(kit_file_bytes(kit_path(kit_report.kept, name)), KIT_SEGMENT_BYTES);
            CHECK(!kit_exists(kit_path(root, name)));
        }
        kit_check_healthy(root);
        cmq_store *store = kit_open_at(root);
        CHECK_INT(kit_max(store, "a", 0), i);
        CHECK_INT(kit_append(store, "a", 0, "goes on", NULL, NULL).first_queue_offset, i);
        kit_close(store);
        kit_check_healthy(root);
    }
}

static const uint8_t torn[64] = {0, 0, 1, 0, 0xDA, 0xA3, 0x20, 0xA7, 1, 2, 3, 4};

static void test_a_torn_tail_stays_unless_asked(void)
{
    const char *root = make_crashed_store();
    const int64_t end = kit_placed[MESSAGES - 1].end;
    uint8_t now[sizeof torn];
    kit_write_bytes(kit_segment_of(root, end), end % KIT_SEGMENT_BYTES, torn, sizeof torn);
    kit_repair(root);
    CHECK_INT(kit_report.tail_at, end);
    CHECK_INT(kit_report.tail_bytes, 12);
    CHECK_INT(kit_report.cut_at, -1);
    CHECK(kit_exists(kit_path(root, "abort")));   /* the next opening must know */
    kit_read_bytes(kit_segment_of(root, end), end % KIT_SEGMENT_BYTES, now, sizeof now);
    CHECK_BYTES(now, sizeof now, torn, sizeof torn);
    CHECK_OK(kit_try_repair(root, (cmq_repair_options){.cut_tail = true}));
    CHECK_INT(kit_report.cut_at, end);
    CHECK_INT(kit_report.cut_bytes, 12);
    CHECK_INT(kit_report.cut_messages, 0);
    char name[64];
    snprintf(name, sizeof name, "commitlog/%020" PRId64 ".cut", end);
    CHECK_INT(kit_file_bytes(kit_path(kit_report.kept, name)), 12);
    kit_read_bytes(kit_path(kit_report.kept, name), 0, now, 12);
    CHECK_BYTES(now, 12, torn, 12);
    CHECK(!kit_exists(kit_path(root, "abort")));
    kit_check_healthy(root);
    check_opens_and_goes_on(root);
}

static void test_whole_records_in_an_unflushed_tail_are_a_tail(void)
{
    /* A killed writer's last messages, the first of them torn: those behind it were never acknowledged as flushed. */
    const char *base = kit_directory();
    char living[CMQ_PATH_BYTES], root[CMQ_PATH_BYTES];
    strcpy(living, kit_path(base, "living"));
    strcpy(root, kit_path(base, "store"));
    cmq_store_options options = kit_options(living);
    options.flush = CMQ_FLUSH_ASYNC;
    cmq_store *store = kit_open(&options);
    kit_fill(store);
    CHECK_OK(cmq_store_maintain(store, true));
    const cmq_appended first = kit_append(store, "a", 0, "torn", NULL, NULL);
    kit_append_many(store, "a", "behind", 5);
    kit_copy_tree(living, root);
    kit_close(store);
    kit_damage_record(root, first.first_physical_offset);
    CHECK_OK(kit_try_repair(root, (cmq_repair_options){.cut_tail = true}));
    CHECK_INT(kit_report.damaged_places, 0);
    CHECK_INT(kit_report.cut_at, first.first_physical_offset);
    kit_check_healthy(root);
    check_opens_and_goes_on(root);
}

/* ---- refusals, dry runs, stopping ---- */

static void test_a_store_in_use_is_refused(void)
{
    const char *root = kit_new_root();
    cmq_store *store = kit_open_at(root);
    kit_append(store, "a", 0, "body", NULL, NULL);
    char pid[24];
    snprintf(pid, sizeof pid, "%d", (int)getpid());
    CHECK_STATUS(kit_try_repair(root, (cmq_repair_options){0}), CMQ_ERR_LOCKED);
    CHECK(strstr(cmq_last_error()->text, "process") != NULL);
    CHECK_STATUS(kit_try_repair(root, (cmq_repair_options){.dry_run = true}), CMQ_ERR_LOCKED);
    CHECK(strstr(cmq_last_error()->text, pid) != NULL);
    kit_append(store, "a", 0, "still", NULL, NULL);   /* the refusal dropped no lock */
    kit_close(store);
    kit_repair(root);
}

static void test_other_directories_are_refused(void)
{
    const char *base = kit_directory();
    CHECK_STATUS(kit_try_repair(kit_path(base, "nothing"), (cmq_repair_options){0}), CMQ_ERR_NOT_FOUND);
    char folder[CMQ_PATH_BYTES];
    strcpy(folder, kit_path(base, "folder"));
    CHECK_OK(cmq_fs_make_directory(cmq_fs_posix(), folder));
    CHECK_STATUS(kit_try_repair(folder, (cmq_repair_options){0}), CMQ_ERR_NOT_STORE);
    CHECK(!kit_exists(kit_path(folder, "lock")));
    CHECK_STATUS(kit_try_repair("", (cmq_repair_options){0}), CMQ_ERR_ARGUMENT);
}

static void test_a_log_that_cannot_be_read_is_refused(void)
{
    const char *root = kit_make_store();
    kit_resize(kit_segment_of(root, KIT_SEGMENT_BYTES), 5000);
    tree_text *before = tree_of(root);
    CHECK(kit_try_repair(root, (cmq_repair_options){0}) != CMQ_OK);
    check_same_tree(before, root);
}

static void test_a_dry_run_writes_nothing(void)
{
    const char *root = kit_make_store();
    kit_damage_record(root, kit_placed[60].first_physical_offset);
    kit_remove_tree(kit_path(root, "index"));
    tree_text *before = tree_of(root);
    CHECK_OK(kit_try_repair(root, (cmq_repair_options){.dry_run = true, .cut_damage = true, .cut_tail = true}));
    CHECK(kit_report.complete);
    CHECK_INT(kit_report.cut_at, kit_placed[60].first_physical_offset);
    const int64_t cut_messages = kit_report.cut_messages, messages = kit_report.messages, bytes = kit_report.cut_bytes,
                  files = kit_report.cut_files, keys = kit_report.keys;
    CHECK(cut_messages > 0 && messages > 0 && bytes > 0 && files > 0);
    CHECK_TEXT(kit_report.kept, "");
    check_same_tree(before, root);
    CHECK_OK(kit_try_repair(root, (cmq_repair_options){.cut_damage = true, .cut_tail = true}));
    CHECK_INT(kit_report.cut_messages, cut_messages);
    CHECK_INT(kit_report.messages, messages);
    CHECK_INT(kit_report.cut_bytes, bytes);
    CHECK_INT(kit_report.cut_files, files);
    CHECK_INT(kit_report.keys, keys);
}

static bool stop_now(void *context, int64_t done_bytes, int64_t all_bytes)
{
    CHECK(done_bytes <= all_bytes);
    return ++*(int *)context < 1;
}

static void test_stopping_leaves_the_store_alone(void)
{
    const char *root = kit_make_store();
    tree_text *before = tree_of(root);
    int calls = 0;
    CHECK_OK(kit_try_repair(root, (cmq_repair_options){.progress = stop_now, .context = &calls}));
    CHECK(!kit_report.complete && calls == 1);
    check_same_tree(before, root);
    check_opens_and_goes_on(root);
}

/* ---- crashes and failures ---- */

/* A store with everything a repair has to do: expired queues, damage, a torn tail; kept in `into`. */
static void make_sick_store(const char *into)
{
    const char *living = kit_path(into, "../living");
    cmq_store_options options = kit_options(living);
    options.retention = (cmq_retention){.enabled = true, .reserved_ms = 1, .files_per_round = 100};
    cmq_store *store = kit_open(&options);
    for (int i = 0; i < 23; i++) kit_append(store, "quiet", 0, "soon gone", "red", NULL);
    kit_fill(store);
    CHECK_OK(cmq_store_maintain(store, true));
    uint32_t deleted;
    CHECK_OK(cmq_store_expire(store, true, &deleted));
    kit_fill(store);
    CHECK_OK(cmq_store_maintain(store, true));
    kit_copy_tree(living, into);
    kit_close(store);
    kit_remove_tree(living);
    kit_damage_record(into, kit_placed[40].first_physical_offset);
    kit_remove_tree(kit_path(into, "index"));
    const int64_t end = kit_placed[MESSAGES - 1].end;
    kit_write_bytes(kit_segment_of(into, end), end % KIT_SEGMENT_BYTES, torn, sizeof torn);
}

/* The treatment of damage in the log. */
typedef enum treatment { PASS, CUT, FILL } treatment;

static cmq_repair_options options_of(treatment damage)
{
    return (cmq_repair_options){.cut_damage = damage == CUT, .fill_damage = damage == FILL, .cut_tail = true};
}

typedef struct crash_plan {
    cmq_file_twin *twin;
    const char *image;
    treatment damage;
    int calls, chosen;    /* of every four calls one, whichever: their number does not hang on luck */
    int images;
    int64_t max;          /* of queue a/0 after the repair */
} crash_plan;

/* Any image: either opening completes the repair, or it had not begun; a repair mends it. */
static void check_image(const crash_plan *plan)
{
    const cmq_repair_options options = options_of(plan->damage);
    if (cmq_test_random_below(2) == 0) {
        const cmq_store_options store_options = kit_options(plan->image);
        cmq_store *store;
        const cmq_status status = cmq_store_open(&store, &store_options);
        if (status == CMQ_OK) {
            CHECK_INT(kit_max(store, "quiet", 0), 23);
            CHECK_INT(kit_min(store, "quiet", 0), 23);
            kit_close(store);
        } else {
            CHECK_INT(status, CMQ_ERR_CORRUPT);   /* the damage, as before */
        }
    }
    CHECK_OK(kit_try_repair(plan->image, options));
    CHECK(kit_report.complete);
    cmq_verified verified;
    const int *counts = kit_verify(plan->image, &verified);
    CHECK_INT(verified.problems[CMQ_SEVERITY_REPAIRABLE], 0);
    CHECK_INT(counts[CMQ_PROBLEM_RECORD], plan->damage == PASS ? 1 : 0);
    CHECK_INT(counts[CMQ_PROBLEM_INDEX_MISSING], 0);
    cmq_store *store = kit_open_at(plan->image);
    CHECK_INT(kit_max(store, "quiet", 0), 23);
    CHECK_INT(kit_max(store, "a", 0), plan->max);
    CHECK_INT(kit_append(store, "quiet", 0, "back", NULL, NULL).first_queue_offset, 23);
    kit_close(store);
}

static void crash_here(void *context, const cmq_twin_call *call)
{
    crash_plan *plan = context;
    /* While the lock is taken, no other may be: cmq_lock's own mutex is held. */
    if (strcmp(strrchr(call->path, '/'), "/lock") == 0) return;
    const int turn = plan->calls++ % 4;
    if (turn == 0) plan->chosen = (int)cmq_test_random_below(4);
    if (getenv("CMQ_LONG") == NULL && turn != plan->chosen) return;
    cmq_file_twin_crash_image(plan->twin, plan->image);
    check_image(plan);
    plan->images++;
}

static void crash_at_any_call(treatment damage)
{
    const char *base = kit_directory();
    char sick[CMQ_PATH_BYTES], image[CMQ_PATH_BYTES];
    snprintf(sick, sizeof sick, "%s/sick%d", base, damage);
    snprintf(image, sizeof image, "%s/image%d", base, damage);
    make_sick_store(sick);
    const int64_t max = damage == CUT ? MESSAGES + 40 : 2 * MESSAGES;
    crash_plan plan = {
        .twin = cmq_file_twin_create(sick, cmq_test_random()), .image = image, .damage = damage, .max = max};
    cmq_file_twin_on_call(plan.twin, 0, crash_here, &plan);
    cmq_store_options options = kit_options(sick);
    options.fs = cmq_file_twin_fs(plan.twin);
    cmq_repair_options asked = options_of(damage);
    asked.store = &options;
    CHECK_OK(kit_try_repair(sick, asked));
    cmq_file_twin_on_call(plan.twin, 0, NULL, NULL);
    for (int i = 0; i < 4; i++) {
        cmq_file_twin_crash_image(plan.twin, image);
        check_image(&plan);
    }
    cmq_file_twin_close(plan.twin);
    CHECK(plan.images > 20);
}

static void test_power_loss_at_any_call(void) { crash_at_any_call(PASS); }
static void test_power_loss_at_any_call_of_a_cut(void) { crash_at_any_call(CUT); }
static void test_power_loss_at_any_call_of_a_filling(void) { crash_at_any_call(FILL); }

static void fail_at_any_call(treatment damage, int sys_errno)
{
    const char *base = kit_directory();
    char sick[CMQ_PATH_BYTES], root[CMQ_PATH_BYTES];
    snprintf(sick, sizeof sick, "%s/sick%d-%d", base, damage, sys_errno);
    snprintf(root, sizeof root, "%s/store%d-%d", base, damage, sys_errno);
    make_sick_store(sick);
    const crash_plan plan = {.image = root, .damage = damage, .max = damage == CUT ? MESSAGES + 40 : 2 * MESSAGES};
    bool failed = true;
    for (uint64_t nth = 1; failed; nth += getenv("CMQ_LONG") == NULL ? 1 + cmq_test_random_below(12) : 1) {
        kit_copy_tree(sick, root);
        cmq_file_twin *twin = cmq_file_twin_create(root, cmq_test_random());
        cmq_file_twin_fail(
            twin, &(cmq_twin_fault){
                      .kind = CMQ_TWIN_ANY_CHANGE, .nth = nth, .times = 1, .sys_errno = sys_errno, .halfway = true});
        cmq_store_options options = kit_options(root);
        options.fs = cmq_file_twin_fs(twin);
        cmq_repair_options asked = options_of(damage);
        asked.store = &options;
        const cmq_status status = kit_try_repair(root, asked);
        failed = cmq_file_twin_failures(twin) > 0;
        if (failed && status == CMQ_OK) CHECK(kit_report.complete);   /* a failure that did not matter */
        cmq_file_twin_close(twin);
        check_image(&plan);
    }
}

static void test_failures_at_any_call(void)
{
    fail_at_any_call(PASS, EIO);
    fail_at_any_call(CUT, ENOSPC);
    fail_at_any_call(FILL, EIO);
}

/* A broker that starts between a crash in the swap and the next repair: its messages are not subject to the old
 * decisions. */
static void test_an_interrupted_repair_is_dropped_after_another_program(void)
{
    const char *base = kit_directory();
    char sick[CMQ_PATH_BYTES], image[CMQ_PATH_BYTES];
    strcpy(sick, kit_path(base, "sick"));
    strcpy(image, kit_path(base, "image"));
    make_sick_store(sick);
    cmq_file_twin *twin = cmq_file_twin_create(sick, cmq_test_random());
    cmq_store_options options = kit_options(sick);
    options.fs = cmq_file_twin_fs(twin);
    /* The removals in the swap fail: the journal stays. */
    cmq_file_twin_fail(twin, &(cmq_twin_fault){.kind = CMQ_TWIN_PUNCH, .nth = 1, .times = 0, .sys_errno = EIO});
    CHECK_STATUS(kit_try_repair(sick, (cmq_repair_options){.store = &options, .cut_damage = true}), CMQ_ERR_IO);
    CHECK(strstr(cmq_last_error()->text, "run it again") != NULL);
    cmq_file_twin_close(twin);
    CHECK(kit_exists(kit_path(sick, "cometmq/repair")));
    CHECK_OK(kit_try_repair(sick, (cmq_repair_options){.dry_run = true}));
    CHECK(kit_report.finished_earlier);
    kit_copy_tree(sick, image);
    kit_flip(kit_path(image, "checkpoint"), 7, 1);
    uint8_t before[64], after[64];
    const int64_t at = kit_placed[40].first_physical_offset;
    kit_read_bytes(kit_segment_of(image, at), at % KIT_SEGMENT_BYTES, before, sizeof before);
    CHECK_OK(kit_try_repair(image, (cmq_repair_options){0}));
    kit_read_bytes(kit_segment_of(image, at), at % KIT_SEGMENT_BYTES, after, sizeof after);
    CHECK_BYTES(after, sizeof after, before, sizeof before);
    CHECK(!kit_exists(kit_path(image, "cometmq/repair")));
    /* Without another program in between, opening completes the cut. */
    cmq_store *store = kit_open_at(sick);
    CHECK_INT(kit_max(store, "a", 0), MESSAGES + 40);
    CHECK_INT(kit_max(store, "quiet", 0), 23);
    kit_close(store);
    CHECK(!kit_exists(kit_path(sick, "cometmq/repair")) && !kit_exists(kit_path(sick, "cometmq/rebuild")));
    kit_check_healthy(sick);
}

/* ---- random damage ---- */

/* Flip bits of random bytes below `folder`. */
typedef struct damage_plan {
    uint64_t files, picked;
    char path[CMQ_PATH_BYTES];
    int64_t bytes;
} damage_plan;

static void count_file(void *context, const char *path, int64_t bytes)
{
    damage_plan *plan = context;
    if (bytes > 0 && plan->files++ == plan->picked) {
        strcpy(plan->path, path);
        plan->bytes = bytes;
    }
}

static void damage_somewhere(const char *root, const char *folder)
{
    damage_plan plan = {.picked = UINT64_MAX};
    kit_each_file(kit_path(root, folder), count_file, &plan);
    if (plan.files == 0) return;
    plan.picked = cmq_test_random_below(plan.files);
    plan.files = 0;
    kit_each_file(kit_path(root, folder), count_file, &plan);
    const uint64_t choice = cmq_test_random_below(10);
    if (choice == 0) CHECK_INT(remove(plan.path), 0);
    else if (choice == 1) kit_resize(plan.path, (int64_t)cmq_test_random_below((uint64_t)plan.bytes));
    else for (uint64_t flips = 1 + cmq_test_random_below(20); flips > 0; flips--)
            kit_flip(plan.path, (int64_t)cmq_test_random_below((uint64_t)plan.bytes),
                     (uint8_t)(1u << cmq_test_random_below(8)));
}

static void test_any_damage_of_derived_files_is_mended(void)
{
    const char *base = kit_directory();
    char sound[CMQ_PATH_BYTES], root[CMQ_PATH_BYTES];
    strcpy(sound, kit_path(base, "sound"));
    strcpy(root, kit_path(base, "store"));
    cmq_store *store = kit_open_at(sound);
    kit_fill(store);
    kit_close(store);
    const int rounds = getenv("CMQ_LONG") == NULL ? 25 : 1000;
    for (int round = 0; round < rounds; round++) {
        kit_copy_tree(sound, root);
        for (uint64_t times = 1 + cmq_test_random_below(4); times > 0; times--) {
            damage_somewhere(root, "consumequeue");
            damage_somewhere(root, "index");
        }
        cmq_verified verified;
        const cmq_store_options reader = {.path = root, .read_only = true, .clock = kit_clock()};
        if (cmq_store_open(&store, &reader) == CMQ_OK) {   /* with any result: it must end */
            const cmq_verify_options nothing = {0};
            CHECK_OK(cmq_store_verify(store, &nothing, &verified));
            kit_close(store);
        }
        kit_repair(root);
        kit_check_healthy(root);
        check_opens_and_goes_on(root);
    }
}

/* The durable point names the last record, too, by which an opening trusts it; where the log once reached it says also
 * when that record is another now. A time that was made later (no CRC covers it) must not make what follows look like
 * bytes of before a cut. */
static void test_where_the_log_ended_is_known_without_its_last_record(void)
{
    const char *root = kit_make_store();
    const int64_t later = kit_placed[MESSAGES - 12].first_physical_offset + CMQ_RECORD_AT_STORE_TIMESTAMP;
    const int64_t last = kit_placed[MESSAGES - 1].first_physical_offset + CMQ_RECORD_AT_STORE_TIMESTAMP + 7;
    kit_flip(kit_segment_of(root, later), later % KIT_SEGMENT_BYTES, 0x40);
    kit_damage_record(root, kit_placed[MESSAGES - 11].first_physical_offset);
    kit_flip(kit_segment_of(root, last), last % KIT_SEGMENT_BYTES, 1);
    CHECK_OK(kit_try_repair(root, options_of(PASS)));
    CHECK_INT(kit_report.damaged_places, 1);
    CHECK_INT(kit_report.records, MESSAGES + (MESSAGES + 3) / 4 - 1);
}

/* Flipped headers of records (no CRC covers them) may say anything: nothing breaks, and every other message is kept. */
static void test_any_damage_of_the_log_can_be_lived_with(void)
{
    const char *base = kit_directory();
    char sound[CMQ_PATH_BYTES], root[CMQ_PATH_BYTES];
    strcpy(sound, kit_path(base, "sound"));
    strcpy(root, kit_path(base, "store"));
    cmq_store *store = kit_open_at(sound);
    kit_fill(store);
    kit_close(store);
    const int rounds = getenv("CMQ_LONG") == NULL ? 25 : 1000;
    for (int round = 0; round < rounds; round++) {
        kit_copy_tree(sound, root);
        const uint64_t flips = 1 + cmq_test_random_below(5);
        for (uint64_t i = 0; i < flips; i++) {
            const int64_t phy = (int64_t)cmq_test_random_below((uint64_t)kit_placed[MESSAGES - 1].end);
            kit_flip(kit_segment_of(root, phy), phy % KIT_SEGMENT_BYTES, (uint8_t)(1u << cmq_test_random_below(8)));
        }
        const treatment damage = (treatment)cmq_test_random_below(3);
        CHECK_OK(kit_try_repair(root, options_of(damage)));
        CHECK(kit_report.records + (int64_t)flips + kit_report.cut_messages >= MESSAGES + (MESSAGES + 3) / 4);
        cmq_verified verified;
        (void)kit_verify(root, &verified);
        if (damage != PASS) CHECK_INT(verified.problems[CMQ_SEVERITY_DAMAGED], 0);
        store = kit_open_at(root);
        kit_append(store, "a", 0, "goes on", NULL, NULL);
        kit_close(store);
    }
}

static void test_a_damaged_journal_is_named(void)
{
    const char *root = kit_make_store();
    kit_write_bytes(kit_path(root, "cometmq/repair"), 0, "nonsense", 8);
    CHECK_STATUS(kit_try_repair(root, (cmq_repair_options){0}), CMQ_ERR_CORRUPT);
    CHECK(strstr(cmq_last_error()->text, "cometmq/repair") != NULL);
    const cmq_store_options options = kit_options(root);
    cmq_store *store;
    CHECK_STATUS(cmq_store_open(&store, &options), CMQ_ERR_CORRUPT);
    CHECK_INT(remove(kit_path(root, "cometmq/repair")), 0);
    check_opens_and_goes_on(root);
}

CMQ_TEST_MAIN(CMQ_TEST(test_a_healthy_store_stays_as_it_is), CMQ_TEST(test_lost_and_damaged_files_come_back),
              CMQ_TEST(test_all_derived_files_may_be_gone), CMQ_TEST(test_files_of_odd_lengths_are_outvoted),
              CMQ_TEST(test_a_crashed_store_is_clean_afterwards), CMQ_TEST(test_an_empty_store_can_be_repaired),
              CMQ_TEST(test_batch_light_and_extended_queues), CMQ_TEST(test_deleted_topics_stay_deleted),
              CMQ_TEST(test_queues_without_messages_keep_their_offset), CMQ_TEST(test_damage_is_passed_over),
              CMQ_TEST(test_a_cut_keeps_the_removed_bytes), CMQ_TEST(test_a_torn_tail_stays_unless_asked),
              CMQ_TEST(test_whole_records_in_an_unflushed_tail_are_a_tail), CMQ_TEST(test_a_store_in_use_is_refused),
              CMQ_TEST(test_other_directories_are_refused), CMQ_TEST(test_a_log_that_cannot_be_read_is_refused),
              CMQ_TEST(test_a_dry_run_writes_nothing), CMQ_TEST(test_stopping_leaves_the_store_alone),
              CMQ_TEST(test_power_loss_at_any_call), CMQ_TEST(test_power_loss_at_any_call_of_a_cut),
              CMQ_TEST(test_power_loss_at_any_call_of_a_filling), CMQ_TEST(test_failures_at_any_call),
              CMQ_TEST(test_any_damage_of_derived_files_is_mended),
              CMQ_TEST(test_where_the_log_ended_is_known_without_its_last_record),
              CMQ_TEST(test_any_damage_of_the_log_can_be_lived_with),
              CMQ_TEST(test_an_interrupted_repair_is_dropped_after_another_program),
              CMQ_TEST(test_a_damaged_journal_is_named))
