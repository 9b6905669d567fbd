/* test_cmq_verify: every kind of problem made on purpose and named with its place; a healthy store has none, also
 * beside its writer.
 *
 * Threads: yes
 */
#include "store/check/cmq_verify.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/index/cmq_index.h"
#include "support/cmq_store_kit.h"

#define PROBLEMS_MAX 256
#define MESSAGES 310                     /* of topic a: no multiple of a queue file's units */
#define MESSAGES_B ((MESSAGES + 3) / 4)   /* of topic b */
#define MESSAGES_ALL (MESSAGES + MESSAGES_B)

/* ---- findings of a verification ---- */

typedef struct findings {
    cmq_problem problems[PROBLEMS_MAX];
    char topics[PROBLEMS_MAX][64];
    uint32_t count;
    uint32_t stop_after;      /* problems; 0: none */
    int64_t progressed;       /* calls */
    int64_t stop_progress;    /* calls; 0: never */
    cmq_verified verified;
} findings;

static bool on_problem(void *context, const cmq_problem *problem)
{
    findings *found = context;
    CHECK(found->count < PROBLEMS_MAX);
    found->problems[found->count] = *problem;
    if (problem->topic != NULL) {
        CHECK(strlen(problem->topic) < sizeof found->topics[0]);
        strcpy(found->topics[found->count], problem->topic);
        found->problems[found->count].topic = found->topics[found->count];
    }
    found->count++;
    return found->stop_after == 0 || found->count < found->stop_after;
}

static bool on_progress(void *context, int64_t done_bytes, int64_t all_bytes)
{
    findings *found = context;
    CHECK(done_bytes >= 0 && done_bytes <= all_bytes);
    found->progressed++;
    return found->stop_progress == 0 || found->progressed < found->stop_progress;
}

static void verify_store(cmq_store *store, findings *found)
{
    const cmq_verify_options options = {.problem = on_problem, .progress = on_progress, .context = found};
    CHECK_OK(cmq_store_verify(store, &options, &found->verified));
}

static cmq_store *open_reader(const char *root)
{
    cmq_store_options options = kit_options(root);
    options.read_only = true;
    options.create = false;
    return kit_open(&options);
}

/* Verify the directory as a reader does; static memory. */
static findings *verify(const char *root)
{
    static findings found;
    memset(&found, 0, sizeof found);
    cmq_store *store = open_reader(root);
    verify_store(store, &found);
    kit_close(store);
    for (uint32_t i = 0; i < found.count; i++) {
        const cmq_problem *problem = &found.problems[i];
        if (getenv("CMQ_SHOW") != NULL)
            printf("%s severity %d at %" PRId64 ", %s/%d@%" PRId64 " x %" PRId64 ": %s\n",
                   cmq_problem_name(problem->kind), (int)problem->severity, problem->physical_offset,
                   problem->topic == NULL ? "-" : problem->topic, problem->queue_id, problem->queue_offset,
                   problem->count, problem->text);
        CHECK(problem->count >= 1 && problem->text[0] != '\0');
    }
    return &found;
}

static const cmq_problem *only(const findings *found)
{
    CHECK_INT(found->count, 1);
    return &found->problems[0];
}

static uint32_t count_of(const findings *found, cmq_problem_kind kind)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < found->count; i++) count += found->problems[i].kind == kind;
    return count;
}

static const cmq_problem *first_of(const findings *found, cmq_problem_kind kind)
{
    for (uint32_t i = 0; i < found->count; i++)
        if (found->problems[i].kind == kind) return &found->problems[i];
    cmq_test_fail(__FILE__, __LINE__, "no problem of kind %s among %u", cmq_problem_name(kind), found->count);
}

/* ---- a store to damage ---- */

/* Several segments, queue files and index files; where each message of queue 0 of topic `a` lies is kept. */
static cmq_appended placed[MESSAGES];

static void fill(cmq_store *store)
{
    for (int i = 0; i < MESSAGES; i++) {
        char body[160], keys[40];
        snprintf(body, sizeof body, "body-%d-%0*d", i, 20 + i % 90, i);
        snprintf(keys, sizeof keys, "k%d common%d", i, i % 5);
        placed[i] = kit_append(store, "a", 0, body, i % 3 == 0 ? "red" : "blue", keys);
        if (i % 4 == 0) kit_append(store, "b", i % 2, body, NULL, NULL);
        atomic_fetch_add(&kit_now_ms, 7);
    }
}

static const char *make_store(void)
{
    const char *root = kit_path(kit_directory(), "store");
    static char kept[CMQ_PATH_BYTES];
    strcpy(kept, root);
    cmq_store *store = kit_open_at(kept);
    fill(store);
    kit_close(store);
    return kept;
}

/* The file of a segment that holds `phy`. */
static const char *segment_of(const char *root, int64_t phy)
{
    char name[64];
    snprintf(name, sizeof name, "commitlog/%020" PRId64, phy / KIT_SEGMENT_BYTES * KIT_SEGMENT_BYTES);
    return kit_path(root, name);
}

static void flip_log(const char *root, int64_t phy) { kit_flip(segment_of(root, phy), phy % KIT_SEGMENT_BYTES, 0x40); }

/* The queue file that holds a unit, and where in it. */
static const char *queue_file_of(const char *root, const char *topic, int id, int64_t offset, int64_t *at_out)
{
    char name[128];
    const int64_t file_bytes = KIT_QUEUE_UNITS * CMQ_UNIT_BYTES;
    snprintf(name, sizeof name, "consumequeue/%s/%d/%020" PRId64, topic, id,
             offset * CMQ_UNIT_BYTES / file_bytes * file_bytes);
    *at_out = offset * CMQ_UNIT_BYTES % file_bytes;
    return kit_path(root, name);
}

static void write_unit(const char *root, const char *topic, int64_t offset, const uint8_t unit[CMQ_UNIT_BYTES])
{
    int64_t at;
    const char *path = queue_file_of(root, topic, 0, offset, &at);
    kit_write_bytes(path, at, unit, CMQ_UNIT_BYTES);
}

/* The path of the n-th index file. */
typedef struct nth_file {
    int left;
    char path[CMQ_PATH_BYTES];
} nth_file;

static void pick_file(void *context, const char *path, int64_t bytes)
{
    nth_file *nth = context;
    (void)bytes;
    if (nth->left-- == 0) strcpy(nth->path, path);
}

static const char *index_file_of(const char *root, int number)
{
    static nth_file nth;
    nth = (nth_file){.left = number};
    kit_each_file(kit_path(root, "index"), pick_file, &nth);
    CHECK(nth.path[0] != '\0');
    return nth.path;
}

static int64_t entry_at(int32_t entry)
{
    return CMQ_INDEX_HEADER_BYTES + CMQ_INDEX_SLOT_BYTES * KIT_INDEX_SLOTS + CMQ_INDEX_ENTRY_BYTES * (int64_t)entry;
}

/* ---- healthy ---- */

static void test_a_healthy_store_has_no_problem(void)
{
    const char *root = make_store();
    const findings *found = verify(root);
    CHECK_INT(found->count, 0);
    CHECK_INT(found->verified.verdict, CMQ_SEVERITY_NOTE);
    CHECK(found->verified.complete);
    CHECK_INT(found->verified.records, MESSAGES_ALL);
    CHECK_INT(found->verified.units, found->verified.records);
    CHECK_INT(found->verified.queues, 2);   /* a/0, b/0: every fourth number is even */
    CHECK_INT(found->verified.keys, 2 * MESSAGES);
    CHECK_INT(found->verified.index_entries, 2 * MESSAGES);
    CHECK_INT(found->verified.keys_missing, 0);
    CHECK(found->progressed > 0);
}

static void test_an_empty_store_is_healthy(void)
{
    const char *root = kit_path(kit_directory(), "store");
    kit_close(kit_open_at(root));
    const findings *found = verify(root);
    CHECK_INT(found->count, 0);
    CHECK_INT(found->verified.records, 0);
    CHECK(found->verified.complete);
}

static void test_the_writer_itself_may_verify(void)
{
    const char *root = kit_path(kit_directory(), "store");
    cmq_store *store = kit_open_at(root);
    fill(store);
    findings found = {0};
    verify_store(store, &found);   /* no unit is in a file yet */
    CHECK_INT(found.count, 0);
    CHECK_INT(found.verified.records, MESSAGES_ALL);
    CHECK_OK(cmq_store_maintain(store, true));
    memset(&found, 0, sizeof found);
    verify_store(store, &found);
    CHECK_INT(found.count, 0);
    CHECK_INT(found.verified.units, found.verified.records);
    kit_close(store);
}

static cmq_store *live_store;
static _Atomic bool live_stop;

static void *append_on(void *argument)
{
    (void)argument;
    for (int i = 0; !atomic_load(&live_stop) && i < 20000; i++) {
        char key[24];
        snprintf(key, sizeof key, "live%d", i);
        kit_append(live_store, i % 3 == 0 ? "b" : "a", 0, "live body", "blue", key);
        if (i % 50 == 0) CHECK_OK(cmq_store_maintain(live_store, i % 200 == 0));
    }
    return NULL;
}

static void test_beside_a_live_writer_nothing_is_wrong(void)
{
    const char *root = kit_path(kit_directory(), "store");
    char path[CMQ_PATH_BYTES];
    strcpy(path, root);
    cmq_store_options options = kit_options(path);
    options.flush = CMQ_FLUSH_ASYNC;
    live_store = kit_open(&options);
    fill(live_store);
    atomic_store(&live_stop, false);
    pthread_t writer;
    CHECK_INT(pthread_create(&writer, NULL, append_on, NULL), 0);
    int64_t records = 0;
    for (int round = 0; round < 12; round++) {
        const findings *found = verify(path);
        CHECK_INT(found->count, 0);
        CHECK(found->verified.complete && found->verified.records >= records);
        records = found->verified.records;
    }
    atomic_store(&live_stop, true);
    CHECK_INT(pthread_join(writer, NULL), 0);
    kit_close(live_store);
    CHECK_INT(verify(path)->count, 0);
}

/* ---- the log ---- */

static void test_a_damaged_record_is_named(void)
{
    const char *root = make_store();
    const int64_t phy = placed[3].first_physical_offset;
    flip_log(root, phy + CMQ_RECORD_BYTES_MIN);
    const findings *found = verify(root);
    const cmq_problem *problem = first_of(found, CMQ_PROBLEM_RECORD);
    CHECK_INT(problem->physical_offset, phy);
    CHECK_INT(problem->severity, CMQ_SEVERITY_DAMAGED);
    CHECK_INT(found->verified.verdict, CMQ_SEVERITY_DAMAGED);
    CHECK_INT(found->verified.records, MESSAGES_ALL - 1);
    CHECK_INT(found->count, 1);   /* its unit and keys are not named as well */
}

static void test_damage_in_the_newest_segment_is_no_tail(void)
{
    const char *root = make_store();
    const int64_t phy = placed[MESSAGES - 5].first_physical_offset;
    flip_log(root, phy + CMQ_RECORD_BYTES_MIN);
    const findings *found = verify(root);
    CHECK_INT(first_of(found, CMQ_PROBLEM_RECORD)->physical_offset, phy);
    CHECK_INT(found->verified.verdict, CMQ_SEVERITY_DAMAGED);
    CHECK_INT(count_of(found, CMQ_PROBLEM_TAIL), 0);
}

static void test_damage_over_a_segments_border_is_passed(void)
{
    const char *root = make_store();
    /* All of the second segment but its last bytes. */
    static uint8_t junk[KIT_SEGMENT_BYTES];
    memset(junk, 0x5A, sizeof junk);
    kit_write_bytes(segment_of(root, KIT_SEGMENT_BYTES), 0, junk, sizeof junk);
    const findings *found = verify(root);
    CHECK_INT(count_of(found, CMQ_PROBLEM_RECORD), 1);
    CHECK_INT(first_of(found, CMQ_PROBLEM_RECORD)->physical_offset, KIT_SEGMENT_BYTES);
    CHECK(strstr(first_of(found, CMQ_PROBLEM_RECORD)->text, "16384 bytes") != NULL);
}

/* The newest segment file is gone, and all units that pointed into it with it: only the point knows. */
static void test_a_lost_newest_segment_is_damage(void)
{
    const char *root = make_store();
    const int64_t last = placed[MESSAGES - 1].first_physical_offset / KIT_SEGMENT_BYTES * KIT_SEGMENT_BYTES;
    kit_remove_tree(segment_of(root, last));
    kit_remove_tree(kit_path(root, "consumequeue"));
    kit_remove_tree(kit_path(root, "index"));
    const findings *found = verify(root);
    CHECK_INT(found->verified.verdict, CMQ_SEVERITY_DAMAGED);
    CHECK(strstr(first_of(found, CMQ_PROBLEM_RECORD)->text, "missing") != NULL);
    CHECK_INT(found->verified.problems[CMQ_SEVERITY_DAMAGED], 1);
}

/* The very last record of a store that was closed is no torn tail: it was acknowledged. */
static void test_a_damaged_last_record_is_no_tail(void)
{
    for (int in_head = 0; in_head < 2; in_head++) {
        const char *root = make_store();
        cmq_store *store = kit_open_at(root);
        const cmq_appended last = kit_append(store, "a", 0, "the last of all", NULL, NULL);
        kit_close(store);
        flip_log(root, last.first_physical_offset + (in_head ? CMQ_RECORD_AT_MAGIC : CMQ_RECORD_BYTES_MIN));
        const findings *found = verify(root);
        CHECK_INT(found->verified.verdict, CMQ_SEVERITY_DAMAGED);
        CHECK_INT(first_of(found, CMQ_PROBLEM_RECORD)->physical_offset, last.first_physical_offset);
        CHECK_INT(count_of(found, CMQ_PROBLEM_TAIL), 0);
        const cmq_store_options options = kit_options(root);
        /* records before the point are not read */
        CHECK_STATUS(cmq_store_open(&store, &options), in_head ? CMQ_ERR_CORRUPT : CMQ_OK);
        if (!in_head) kit_close(store);
        kit_remove_tree(root);
    }
}

/* A killed writer's store: a copy of its directory while it is open. */
static const char *crashed_store(int unflushed)
{
    static char copy[CMQ_PATH_BYTES];
    const char *base = kit_directory();
    const char *root = kit_path(base, "store");
    strcpy(copy, kit_path(base, "copy"));
    cmq_store *store = kit_open_at(root);
    fill(store);
    CHECK_OK(cmq_store_maintain(store, true));
    kit_append_many(store, "a", "late", unflushed);
    kit_append_many(store, "new", "late", unflushed);
    kit_copy_tree(root, copy);
    kit_close(store);
    return copy;
}

static void test_a_torn_tail_can_be_repaired(void)
{
    const char *root = crashed_store(0);
    const int64_t end = placed[MESSAGES - 1].end;
    const uint8_t torn[64] = {0, 0, 1, 0, 0xDA, 0xA3, 0x20, 0xA7, 1, 2, 3, 4};
    kit_write_bytes(segment_of(root, end), end % KIT_SEGMENT_BYTES, torn, sizeof torn);
    const findings *found = verify(root);
    const cmq_problem *problem = only(found);
    CHECK_INT(problem->kind, CMQ_PROBLEM_TAIL);
    CHECK_INT(problem->physical_offset, end);
    CHECK_INT(found->verified.verdict, CMQ_SEVERITY_REPAIRABLE);
}

static void test_places_that_opening_completes_are_notes(void)
{
    const char *root = crashed_store(7);
    const findings *found = verify(root);
    const cmq_problem *problem = first_of(found, CMQ_PROBLEM_UNIT_MISSING);
    CHECK_INT(problem->count, 7);
    CHECK_INT(problem->queue_offset, MESSAGES);
    CHECK_INT(found->count, 2);   /* and a queue without a file */
    CHECK_TEXT(found->problems[1].topic, "new");
    CHECK_INT(found->problems[1].count, 7);
    CHECK_INT(found->verified.verdict, CMQ_SEVERITY_NOTE);
    kit_close(kit_open_at(root));
    CHECK_INT(verify(root)->count, 0);
}

static void test_a_time_that_falls_back_is_a_note(void)
{
    const char *root = make_store();
    uint8_t earlier[8];
    cmq_store_i64(earlier, 1000);
    const int64_t at = placed[10].first_physical_offset + CMQ_RECORD_AT_STORE_TIMESTAMP;
    kit_write_bytes(segment_of(root, at), at % KIT_SEGMENT_BYTES, earlier, sizeof earlier);
    const findings *found = verify(root);
    const cmq_problem *problem = only(found);
    CHECK_INT(problem->kind, CMQ_PROBLEM_TIME);
    CHECK_INT(problem->physical_offset, placed[10].first_physical_offset);
    CHECK_INT(problem->severity, CMQ_SEVERITY_NOTE);
}

/* ---- queues ---- */

static void test_a_unit_that_is_zeroed_is_missing(void)
{
    const char *root = make_store();
    const uint8_t zeros[CMQ_UNIT_BYTES] = {0};
    write_unit(root, "a", 45, zeros);
    const cmq_problem *problem = only(verify(root));
    CHECK_INT(problem->kind, CMQ_PROBLEM_UNIT_MISSING);
    CHECK_INT(problem->severity, CMQ_SEVERITY_REPAIRABLE);
    CHECK_INT(problem->queue_offset, 45);
    CHECK_INT(problem->physical_offset, placed[45].first_physical_offset);
    CHECK_TEXT(problem->topic, "a");
    CHECK_INT(problem->queue_id, 0);
    CHECK_INT(problem->count, 1);
}

static void test_a_lost_queue_file_is_one_problem(void)
{
    const char *root = make_store();
    int64_t at;
    CHECK_INT(remove(queue_file_of(root, "a", 0, 60, &at)), 0);
    const cmq_problem *problem = only(verify(root));
    CHECK_INT(problem->kind, CMQ_PROBLEM_UNIT_MISSING);
    CHECK_INT(problem->queue_offset, 60);
    CHECK_INT(problem->count, KIT_QUEUE_UNITS);
}

static void test_each_field_of_a_unit_is_checked(void)
{
    const int64_t fields[] = {7, 11, 19};   /* the lowest bytes of offset, size and tags code */
    for (size_t i = 0; i < 3; i++) {
        const char *root = make_store();
        int64_t at;
        const char *path = queue_file_of(root, "a", 0, 130, &at);
        kit_flip(path, at + fields[i], 1);
        const findings *found = verify(root);
        const cmq_problem *problem = first_of(found, CMQ_PROBLEM_UNIT_WRONG);
        CHECK_INT(problem->queue_offset, 130);
        CHECK_INT(problem->physical_offset, placed[130].first_physical_offset);
        CHECK_INT(found->verified.verdict, CMQ_SEVERITY_REPAIRABLE);
        CHECK_INT(found->count, 1);
    }
}

static void test_a_unit_of_another_record_of_the_queue_is_wrong(void)
{
    const char *root = make_store();
    uint8_t unit[CMQ_UNIT_BYTES];
    int64_t at;
    const char *path = queue_file_of(root, "a", 0, 200, &at);
    kit_read_bytes(path, at, unit, sizeof unit);
    write_unit(root, "a", 100, unit);
    const cmq_problem *problem = first_of(verify(root), CMQ_PROBLEM_UNIT_WRONG);
    CHECK_INT(problem->queue_offset, 100);
    CHECK_INT(problem->physical_offset, placed[100].first_physical_offset);
}

static void test_a_unit_without_a_record_is_dangling(void)
{
    const char *root = make_store();
    uint8_t unit[CMQ_UNIT_BYTES];
    cmq_store_i64(unit, placed[250].first_physical_offset + 8);
    cmq_store_i32(unit + 8, 100);
    cmq_store_i64(unit + 12, 0);
    write_unit(root, "a", MESSAGES, unit);
    const cmq_problem *problem = only(verify(root));
    CHECK_INT(problem->kind, CMQ_PROBLEM_UNIT_DANGLING);
    CHECK_INT(problem->queue_offset, MESSAGES);
    CHECK_INT(problem->physical_offset, placed[250].first_physical_offset + 8);
}

static void test_a_lost_queue_is_missing(void)
{
    const char *root = make_store();
    kit_remove_tree(kit_path(root, "consumequeue/b"));
    const cmq_problem *problem = only(verify(root));
    CHECK_INT(problem->kind, CMQ_PROBLEM_QUEUE_MISSING);
    CHECK_INT(problem->severity, CMQ_SEVERITY_REPAIRABLE);
    CHECK_TEXT(problem->topic, "b");
    CHECK_INT(problem->queue_id, 0);
    CHECK_INT(problem->count, MESSAGES_B);
}

static void test_fillers_are_a_gap(void)
{
    const char *root = make_store();
    uint8_t filler[CMQ_UNIT_BYTES] = {0};
    cmq_store_i32(filler + 8, CMQ_FILLER_SIZE);
    write_unit(root, "a", 20, filler);
    write_unit(root, "a", 21, filler);
    flip_log(root, placed[20].first_physical_offset + CMQ_RECORD_BYTES_MIN);
    flip_log(root, placed[21].first_physical_offset + CMQ_RECORD_BYTES_MIN);
    const cmq_problem *problem = first_of(verify(root), CMQ_PROBLEM_GAP);
    CHECK_INT(problem->severity, CMQ_SEVERITY_NOTE);
    CHECK_INT(problem->queue_offset, 20);
    CHECK_INT(problem->count, 2);
}

static void test_a_topic_that_was_made_again_is_a_note(void)
{
    const char *root = kit_path(kit_directory(), "store");
    cmq_store *store = kit_open_at(root);
    fill(store);
    CHECK_OK(cmq_store_delete_topic(store, kit_slice("a")));
    kit_append_many(store, "a", "new", 5);
    kit_close(store);
    const findings *found = verify(root);
    const cmq_problem *problem = only(found);
    CHECK_INT(problem->kind, CMQ_PROBLEM_UNIT_MISSING);
    CHECK_INT(problem->severity, CMQ_SEVERITY_NOTE);
    CHECK_INT(problem->count, MESSAGES);
    CHECK_INT(found->verified.verdict, CMQ_SEVERITY_NOTE);
}

/* ---- batch queues and extensions ---- */

static void test_batch_units_are_checked(void)
{
    const char *root = kit_path(kit_directory(), "store");
    char path[CMQ_PATH_BYTES];
    strcpy(path, root);
    static const char *const batch_topics[] = {"batch"};
    cmq_store_options options = kit_options(path);
    options.batch_topics = batch_topics;
    options.batch_topic_count = 1;
    cmq_store *store = kit_open(&options);
    cmq_appended appended[60];
    for (int i = 0; i < 60; i++) appended[i] = kit_append(store, "batch", 0, "one of a batch topic", NULL, NULL);
    kit_close(store);
    const findings *found = verify(path);
    CHECK_INT(found->count, 0);
    CHECK_INT(found->verified.units, 60);
    /* 20 units of 46 bytes: the second file */
    const char *file = kit_path(path, "batchconsumequeue/batch/0/00000000000000000920");
    kit_flip(file, 5 * CMQ_BATCH_UNIT_BYTES + 11, 1);                                    /* the size in unit 25 */
    const cmq_problem *problem = only(verify(path));
    CHECK_INT(problem->kind, CMQ_PROBLEM_UNIT_WRONG);
    CHECK_INT(problem->queue_offset, 25);
    CHECK_INT(problem->physical_offset, appended[25].first_physical_offset);
    uint8_t zeros[CMQ_BATCH_UNIT_BYTES] = {0};
    kit_write_bytes(file, 5 * CMQ_BATCH_UNIT_BYTES, zeros, sizeof zeros);
    problem = only(verify(path));
    CHECK_INT(problem->kind, CMQ_PROBLEM_UNIT_MISSING);
    CHECK_INT(problem->queue_offset, 25);
    CHECK_INT(problem->count, 1);
}

static void test_lost_extensions_are_one_problem(void)
{
    const char *root = kit_path(kit_directory(), "store");
    char path[CMQ_PATH_BYTES];
    strcpy(path, root);
    cmq_store_options options = kit_options(path);
    options.ext_enabled = true;
    cmq_store *store = kit_open(&options);
    for (int i = 0; i < 50; i++) kit_append(store, "a", 0, "body", "red", NULL);
    kit_close(store);
    CHECK_INT(verify(path)->count, 0);
    kit_remove_tree(kit_path(path, "consumequeue_ext"));
    const cmq_problem *problem = only(verify(path));
    CHECK_INT(problem->kind, CMQ_PROBLEM_UNIT_WRONG);
    CHECK_INT(problem->count, 50);
    CHECK_INT(problem->queue_offset, 0);
}

/* ---- index ---- */

static void test_a_damaged_index_entry_is_named(void)
{
    const char *root = make_store();
    kit_flip(index_file_of(root, 1), entry_at(9) + 3, 1);   /* its hash */
    const findings *found = verify(root);
    const cmq_problem *problem = first_of(found, CMQ_PROBLEM_INDEX_ENTRY);
    CHECK_INT(problem->severity, CMQ_SEVERITY_REPAIRABLE);
    /* 60 entries in the first file, two keys a message: entry 9 of the second is message 34's first key. */
    CHECK_INT(problem->physical_offset, placed[34].first_physical_offset);
    CHECK_INT(count_of(found, CMQ_PROBLEM_INDEX_ENTRY), 1);
    CHECK_INT(first_of(found, CMQ_PROBLEM_INDEX_MISSING)->count, 1);
    CHECK_INT(count_of(found, CMQ_PROBLEM_INDEX_CHAIN), 1);   /* with another hash it hangs in a wrong chain */
}

static void test_an_entry_out_of_order_hides_nothing(void)
{
    const uint8_t bits[] = {0x80, 0x01};
    for (size_t i = 0; i < 2; i++) {
        const char *root = make_store();
        kit_flip(index_file_of(root, 2), entry_at(30) + 4 + 5, bits[i]);   /* in the middle of the offset: far away */
        const findings *found = verify(root);
        CHECK_INT(count_of(found, CMQ_PROBLEM_INDEX_ENTRY), 1);
        CHECK_INT(first_of(found, CMQ_PROBLEM_INDEX_MISSING)->count, 1);
        CHECK_INT(found->verified.index_entries, 2 * MESSAGES - 1);
    }
}

static void test_missing_keys_are_a_note(void)
{
    const char *root = make_store();
    CHECK_INT(remove(index_file_of(root, 0)), 0);
    const cmq_problem *problem = only(verify(root));
    CHECK_INT(problem->kind, CMQ_PROBLEM_INDEX_MISSING);
    CHECK_INT(problem->severity, CMQ_SEVERITY_NOTE);
    CHECK_INT(problem->count, KIT_INDEX_ENTRIES - 1);
    CHECK_INT(problem->physical_offset, 0);
}

/* A number between the last entry and the file's end, which a writer's slot has for a moment, and a closed file's has
 * not. */
static void test_a_slot_behind_the_last_entry_is_named(void)
{
    cmq_store_options options = kit_options(make_store());
    uint8_t number[4];
    cmq_store_i32(number, KIT_INDEX_ENTRIES - 1);
    const int newest = 2 * MESSAGES / (KIT_INDEX_ENTRIES - 1);   /* two keys a message */
    for (int slot = 0; slot < KIT_INDEX_SLOTS; slot++)
        kit_write_bytes(index_file_of(options.path, newest), CMQ_INDEX_HEADER_BYTES + 4 * slot, number, sizeof number);
    const cmq_problem *problem = only(verify(options.path));
    CHECK_INT(problem->kind, CMQ_PROBLEM_INDEX_CHAIN);
    CHECK_INT(problem->severity, CMQ_SEVERITY_REPAIRABLE);
}

/* The sign of the first or the last time: all entries of the file are then outside the time that a look-up asks for. */
static void test_negative_times_of_an_index_file_are_named(void)
{
    for (int at = 0; at <= 8; at += 8) {
        const char *root = make_store();
        kit_flip(index_file_of(root, 1), at, 128);
        const cmq_problem *problem = only(verify(root));
        CHECK_INT(problem->kind, CMQ_PROBLEM_INDEX_CHAIN);
        CHECK_INT(problem->severity, CMQ_SEVERITY_REPAIRABLE);
    }
}

static void test_a_broken_chain_is_named(void)
{
    const char *root = make_store();
    const uint8_t zeros[4] = {0};
    const char *path = index_file_of(root, 1);
    for (int slot = 0; slot < KIT_INDEX_SLOTS; slot++)
        kit_write_bytes(path, CMQ_INDEX_HEADER_BYTES + 4 * slot, zeros, sizeof zeros);
    const cmq_problem *problem = only(verify(root));
    CHECK_INT(problem->kind, CMQ_PROBLEM_INDEX_CHAIN);
    CHECK_INT(problem->severity, CMQ_SEVERITY_REPAIRABLE);
}

/* ---- stopping ---- */

static void test_a_callback_ends_it(void)
{
    const char *root = make_store();
    const uint8_t zeros[CMQ_UNIT_BYTES] = {0};
    for (int64_t offset = 10; offset < 100; offset += 10) write_unit(root, "a", offset, zeros);
    static findings found;
    memset(&found, 0, sizeof found);
    found.stop_after = 3;
    cmq_store *store = open_reader(root);
    verify_store(store, &found);
    CHECK_INT(found.count, 3);
    CHECK(!found.verified.complete);
    CHECK_INT(found.verified.verdict, CMQ_SEVERITY_REPAIRABLE);
    memset(&found, 0, sizeof found);
    found.stop_progress = 1;
    verify_store(store, &found);
    CHECK(!found.verified.complete);
    const cmq_verify_options silent = {0};
    CHECK_OK(cmq_store_verify(store, &silent, &found.verified));
    CHECK(found.verified.complete);
    CHECK_INT(found.verified.problems[CMQ_SEVERITY_REPAIRABLE], 9);
    kit_close(store);
}

static void test_every_kind_has_a_name(void)
{
    for (int kind = 0; kind <= CMQ_PROBLEM_TIME; kind++)
        CHECK(strcmp(cmq_problem_name((cmq_problem_kind)kind), "unknown") != 0);
    CHECK_TEXT(cmq_problem_name((cmq_problem_kind)(CMQ_PROBLEM_TIME + 1)), "unknown");
}

CMQ_TEST_MAIN(CMQ_TEST(test_a_healthy_store_has_no_problem), CMQ_TEST(test_an_empty_store_is_healthy),
              CMQ_TEST(test_the_writer_itself_may_verify), CMQ_TEST(test_beside_a_live_writer_nothing_is_wrong),
              CMQ_TEST(test_a_damaged_record_is_named), CMQ_TEST(test_damage_in_the_newest_segment_is_no_tail),
              CMQ_TEST(test_damage_over_a_segments_border_is_passed), CMQ_TEST(test_a_lost_newest_segment_is_damage),
              CMQ_TEST(test_a_damaged_last_record_is_no_tail), CMQ_TEST(test_a_torn_tail_can_be_repaired),
              CMQ_TEST(test_places_that_opening_completes_are_notes), CMQ_TEST(test_a_time_that_falls_back_is_a_note),
              CMQ_TEST(test_a_unit_that_is_zeroed_is_missing), CMQ_TEST(test_a_lost_queue_file_is_one_problem),
              CMQ_TEST(test_each_field_of_a_unit_is_checked),
              CMQ_TEST(test_a_unit_of_another_record_of_the_queue_is_wrong),
              CMQ_TEST(test_a_unit_without_a_record_is_dangling), CMQ_TEST(test_a_lost_queue_is_missing),
              CMQ_TEST(test_fillers_are_a_gap), CMQ_TEST(test_a_topic_that_was_made_again_is_a_note),
              CMQ_TEST(test_batch_units_are_checked), CMQ_TEST(test_lost_extensions_are_one_problem),
              CMQ_TEST(test_a_damaged_index_entry_is_named), CMQ_TEST(test_an_entry_out_of_order_hides_nothing),
              CMQ_TEST(test_missing_keys_are_a_note), CMQ_TEST(test_a_slot_behind_the_last_entry_is_named),
              CMQ_TEST(test_negative_times_of_an_index_file_are_named), CMQ_TEST(test_a_broken_chain_is_named),
              CMQ_TEST(test_a_callback_ends_it),
              CMQ_TEST(test_every_kind_has_a_name))
