/* Tests csrc/store/cmq_store.c and all that it holds together: random operations against a simple model in memory; and
 * what opening and closing promise.
 *
 * CMQ_STORE_OPERATIONS: how many; CMQ_SEED repeats a run.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/cmq_store_kit.h"

#define TOPICS 3
#define QUEUES 2
#define MESSAGES_MAX 20000

/* ---- the model ---- */

typedef struct message {
    uint32_t body_seed, body_bytes;
    int topic, queue, tag, key;      /* tag and key -1: none */
    int64_t ordinal;                 /* -1: its topic was deleted */
    int64_t phy, ms;
} message;

static message messages[MESSAGES_MAX];
static uint32_t message_count;
static int64_t next_ordinal[TOPICS][QUEUES];
static int64_t log_min;
static const char *const topic_names[TOPICS] = {"alpha", "beta", "gamma"};

static cmq_store *store;
static cmq_store_options options;
static char root[CMQ_PATH_BYTES];
static kit_found *found;

static void body_of(const message *of, uint8_t into[2000])
{
    uint32_t state = of->body_seed;
    for (uint32_t i = 0; i < of->body_bytes; i++) {
        state = state * 1664525 + 1013904223;
        into[i] = (uint8_t)(state >> 24);
    }
}

static bool lives(const message *of) { return of->phy >= log_min; }
static bool in_queue(const message *of, int topic, int queue)
{
    return lives(of) && of->ordinal >= 0 && of->topic == topic && (queue < 0 || of->queue == queue);
}

static const char *tag_text(int tag)
{
    static const char *const names[] = {"red", "green", "AaAa", "BBBB"};
    return names[tag];
}

static const char *key_text(int key)
{
    static char text[4][16];
    static unsigned turn;
    char *into = text[turn++ % 4];
    snprintf(into, sizeof text[0], "key%d", key);
    return into;
}

/* Is the record this message, whole? */
static void check_message(const cmq_found *item, const message *of)
{
    uint8_t body[2000];
    const cmq_record_view view = kit_view(item);
    body_of(of, body);
    CHECK_INT(item->physical_offset, of->phy);
    CHECK_BYTES(view.body.data, view.body.bytes, body, of->body_bytes);
    CHECK(cmq_slice_equal(view.topic, kit_slice(topic_names[of->topic])));
    CHECK_INT(view.queue_id, of->queue);
    CHECK_INT(view.store_timestamp_ms, of->ms);
}

/* ---- operations ---- */

static void append(uint32_t count, bool one_segment, bool no_wait)
{
    static uint8_t bodies[64][2000];
    cmq_slice body[64], tags[64], keys[64];
    int32_t queue_ids[64];
    int64_t ordinals[64], physical[64];
    const int topic = (int)cmq_test_random_below(TOPICS);
    CHECK(count <= 64);
    if (message_count + count > MESSAGES_MAX) return;
    for (uint32_t i = 0; i < count; i++) {
        message *of = &messages[message_count + i];
        *of = (message){.body_seed = (uint32_t)cmq_test_random(),
                        .topic = topic,
                        .queue = (int)cmq_test_random_below(QUEUES),
                        .body_bytes = (uint32_t)cmq_test_random_below(cmq_test_random_below(10) == 0 ? 1500 : 100),
                        .tag = (int)cmq_test_random_below(5) - 1,
                        .key = cmq_test_random_below(3) == 0 ? (int)cmq_test_random_below(40) : -1};
        body_of(of, bodies[i]);
        body[i] = (cmq_slice){.data = bodies[i], .bytes = of->body_bytes};
        tags[i] = of->tag < 0 ? CMQ_SLICE_NONE : kit_slice(tag_text(of->tag));
        keys[i] = CMQ_SLICE_NONE;
        queue_ids[i] = of->queue;
    }
    char texts[64][16];
    for (uint32_t i = 0; i < count; i++) {
        if (messages[message_count + i].key < 0) continue;
        strcpy(texts[i], key_text(messages[message_count + i].key));
        keys[i] = kit_slice(texts[i]);
    }
    const cmq_append call = {
        .common = {.topic = kit_slice(topic_names[topic])},
        .count = count,
        .bodies = {.kind = CMQ_COLUMN_SLICES, .slices = body},
        .tags = {.kind = CMQ_COLUMN_SLICES, .slices = tags},
        .keys = {.kind = CMQ_COLUMN_SLICES, .slices = keys},
        .queue_ids = queue_ids,
        .one_segment = one_segment,
        .no_wait = no_wait,
        .queue_offsets_out = ordinals,
        .physical_offsets_out = physical,
    };
    cmq_appended appended;
    CHECK_OK(cmq_store_append(store, &call, &appended));
    CHECK_INT(appended.count, count);
    for (uint32_t i = 0; i < count; i++) {
        message *of = &messages[message_count + i];
        of->ordinal = next_ordinal[topic][of->queue]++;
        of->phy = physical[i];
        of->ms = appended.store_timestamp_ms;
        CHECK_INT(ordinals[i], of->ordinal);
        CHECK(message_count + i == 0 || of->phy > messages[message_count + i - 1].phy);
        CHECK(!one_segment || of->phy / KIT_SEGMENT_BYTES == physical[0] / KIT_SEGMENT_BYTES);
    }
    message_count += count;
    if (no_wait) CHECK_OK(cmq_store_wait(store, appended.end));
}

static void reopen(void)
{
    if (cmq_test_random_below(2) == 0) kit_close(store);
    else cmq_store_abandon(store);
    store = kit_open(&options);
}

static void expire(void)
{
    cmq_store_info info;
    uint32_t deleted;
    CHECK_OK(cmq_store_maintain(store, true));
    CHECK_OK(cmq_store_expire(store, true, &deleted));
    CHECK_OK(cmq_store_info_of(store, &info));
    CHECK(info.log_min >= log_min);
    log_min = info.log_min;
}

static void delete_topic(void)
{
    const int topic = (int)cmq_test_random_below(TOPICS);
    const bool there = cmq_queues_find(cmq_store_queues(store), kit_slice(topic_names[topic]), 0) != NULL ||
                       cmq_queues_find(cmq_store_queues(store), kit_slice(topic_names[topic]), 1) != NULL;
    CHECK_STATUS(cmq_store_delete_topic(store, kit_slice(topic_names[topic])), there ? CMQ_OK : CMQ_ERR_NOT_FOUND);
    for (uint32_t i = 0; i < message_count; i++)
        if (messages[i].topic == topic) messages[i].ordinal = -1;
    for (int queue = 0; queue < QUEUES; queue++) next_ordinal[topic][queue] = 0;
}

static void delete_expired(void)
{
    uint32_t deleted, expected = 0;
    for (int topic = 0; topic < TOPICS; topic++) {
        for (int queue = 0; queue < QUEUES; queue++) {
            bool some = false;
            for (uint32_t i = 0; i < message_count; i++) some = some || in_queue(&messages[i], topic, queue);
            if (some || next_ordinal[topic][queue] == 0) continue;
            next_ordinal[topic][queue] = 0;
            expected++;
        }
    }
    CHECK_OK(cmq_store_delete_expired_queues(store, &deleted));
    CHECK_INT(deleted, expected);
}

/* ---- reads ---- */

static void read_everything(void)
{
    cmq_reader *reader;
    bool end = false;
    uint32_t next = 0;
    CHECK_OK(cmq_reader_open(store, &(cmq_read_options){0}, &reader));
    while (next < message_count && !lives(&messages[next])) next++;
    for (;;) {
        CHECK_OK(cmq_reader_next(reader, &found->batch, &end));
        if (found->batch.count == 0) break;
        for (uint32_t i = 0; i < found->batch.count; i++, next++) {
            CHECK(next < message_count);
            check_message(&found->items[i], &messages[next]);
        }
        cmq_found_batch_release(&found->batch);
    }
    CHECK_INT(next, message_count);
    cmq_reader_close(reader);
}

static bool wanted(const message *of, int topic, int queue, const cmq_read_options *asked, int tag)
{
    return in_queue(of, topic, queue) && (tag < 0 || of->tag == tag) &&
           (!asked->has_start || of->ordinal >= asked->start) && (!asked->has_end || of->ordinal < asked->end) &&
           (!asked->has_start_time || of->ms >= asked->start_time_ms) &&
           (!asked->has_end_time || of->ms < asked->end_time_ms);
}

/* A topic with random bounds, forwards or backwards. */
static void read_some(void)
{
    const int topic = (int)cmq_test_random_below(TOPICS), queue = (int)cmq_test_random_below(QUEUES + 1) - 1,
              tag = (int)cmq_test_random_below(8) - 4;
    const cmq_slice name = kit_slice(topic_names[topic]), tag_name = kit_slice(tag < 0 ? "" : tag_text(tag));
    const int32_t queue_id = queue;
    cmq_read_options asked = {.topics = &name,
                              .topic_count = 1,
                              .may_be_missing = true,
                              .queue_ids = &queue_id,
                              .queue_id_count = queue < 0 ? 0 : 1,
                              .tags = &tag_name,
                              .tag_count = tag < 0 ? 0 : 1,
                              .backwards = cmq_test_random_below(2) == 0};
    asked.has_start = cmq_test_random_below(3) == 0;
    asked.start = (int64_t)cmq_test_random_below(200);
    asked.has_end = cmq_test_random_below(3) == 0;
    asked.end = asked.start + (int64_t)cmq_test_random_below(300);
    if (message_count > 0) {
        asked.has_start_time = cmq_test_random_below(3) == 0;
        asked.start_time_ms = messages[cmq_test_random_below(message_count)].ms + (int64_t)cmq_test_random_below(3) - 1;
        asked.has_end_time = cmq_test_random_below(3) == 0;
        asked.end_time_ms = messages[cmq_test_random_below(message_count)].ms + (int64_t)cmq_test_random_below(3) - 1;
    }
    cmq_reader *reader;
    bool end = false;
    CHECK_OK(cmq_reader_open(store, &asked, &reader));
    found->batch.capacity = 1 + (uint32_t)cmq_test_random_below(300);
    int64_t at = asked.backwards ? (int64_t)message_count - 1 : 0;
    const int64_t step = asked.backwards ? -1 : 1;
    for (int idle = 0; !end && idle < 2;) {
        CHECK_OK(cmq_reader_next(reader, &found->batch, &end));
        idle = found->batch.count == 0 ? idle + 1 : 0;
        for (uint32_t i = 0; i < found->batch.count; i++, at += step) {
            while (at >= 0 && at < message_count && !wanted(&messages[at], topic, queue, &asked, tag)) at += step;
            CHECK(at >= 0 && at < message_count);
            check_message(&found->items[i], &messages[at]);
            CHECK_INT(found->items[i].queue_offset, messages[at].ordinal);
        }
        cmq_found_batch_release(&found->batch);
    }
    for (; at >= 0 && at < message_count; at += step) CHECK(!wanted(&messages[at], topic, queue, &asked, tag));
    found->batch.capacity = KIT_FOUND_MAX;
    cmq_reader_close(reader);
}

static void look_up_key(void)
{
    const int topic = (int)cmq_test_random_below(TOPICS), key = (int)cmq_test_random_below(42);
    found->batch.capacity = CMQ_FOUND_PINS_MAX;
    CHECK_OK(cmq_store_find_key(store, kit_slice(topic_names[topic]), kit_slice(key_text(key)), 0, INT64_MAX,
                                &found->batch));
    uint32_t next = 0;
    for (uint32_t i = message_count; i > 0; i--) {
        const message *of = &messages[i - 1];
        if (!lives(of) || of->topic != topic || of->key != key) continue;
        if (next == CMQ_FOUND_PINS_MAX) break;
        CHECK(next < found->batch.count);
        check_message(&found->items[next++], of);
    }
    CHECK_INT(found->batch.count, next);
    cmq_found_batch_release(&found->batch);
    found->batch.capacity = KIT_FOUND_MAX;
}

static void look_up_offset_and_time(void)
{
    const int topic = (int)cmq_test_random_below(TOPICS), queue = (int)cmq_test_random_below(QUEUES);
    const cmq_slice name = kit_slice(topic_names[topic]);
    const int64_t ms = message_count == 0
                           ? 0
                           : messages[cmq_test_random_below(message_count)].ms + (int64_t)cmq_test_random_below(3) - 1;
    int64_t min = -1, max = 0, lower = -1, upper = -1, offset;
    const message *some = NULL;
    for (uint32_t i = 0; i < message_count; i++) {
        const message *of = &messages[i];
        if (!in_queue(of, topic, queue)) continue;
        if (min < 0) min = of->ordinal;
        max = of->ordinal + 1;
        if (lower < 0 && of->ms >= ms) lower = of->ordinal;
        if (of->ms <= ms) upper = of->ordinal;
        if (some == NULL || cmq_test_random_below(10) == 0) some = of;
    }
    if (cmq_queues_find(cmq_store_queues(store), name, queue) == NULL) {
        CHECK(some == NULL);
        return;
    }
    if (some == NULL) {
        CHECK_INT(kit_min(store, topic_names[topic], queue), kit_max(store, topic_names[topic], queue));
        return;
    }
    CHECK_INT(kit_min(store, topic_names[topic], queue), min);
    CHECK_INT(kit_max(store, topic_names[topic], queue), max);
    CHECK_OK(cmq_store_offset_at(store, name, queue, ms, CMQ_BOUNDARY_LOWER, &offset));
    CHECK_INT(offset, lower < 0 ? max : lower);
    CHECK_OK(cmq_store_offset_at(store, name, queue, ms, CMQ_BOUNDARY_UPPER, &offset));
    CHECK_INT(offset, upper < 0 ? min : upper);
    CHECK_OK(cmq_store_read_offset(store, name, queue, some->ordinal, &found->batch));
    check_message(&found->items[0], some);
    cmq_found_batch_release(&found->batch);
    CHECK_STATUS(cmq_store_read_offset(store, name, queue, max, &found->batch), CMQ_ERR_OFFSET);
}

/* ---- runs ---- */

static void operate(uint64_t operations)
{
    for (uint64_t i = 0; i < operations; i++) {
        const uint64_t dice = cmq_test_random_below(1000);
        if (dice < 450)
            append(1 + (uint32_t)cmq_test_random_below(6), cmq_test_random_below(5) == 0,
                   cmq_test_random_below(5) == 0);
        else if (dice < 470) append(40 + (uint32_t)cmq_test_random_below(24), false, false);
        else if (dice < 600) look_up_offset_and_time();
        else if (dice < 700) look_up_key();
        else if (dice < 820) read_some();
        else if (dice < 850) read_everything();
        else if (dice < 900) CHECK_OK(cmq_store_maintain(store, cmq_test_random_below(2) == 0));
        else if (dice < 920) CHECK_OK(cmq_store_flush(store));
        else if (dice < 970) atomic_fetch_add(&kit_now_ms, (int64_t)cmq_test_random_below(2000) - 100);
        else if (dice < 985) reopen();
        else if (dice < 991) expire();
        else if (dice < 995) delete_topic();
        else if (dice < 997) delete_expired();
    }
}

static void against_a_model(void)
{
    found = kit_found_make(KIT_FOUND_MAX);
    for (int run = 0; run < 6; run++) {
        CHECK_OK(cmq_path_join(root, kit_directory(), "store"));
        kit_set_clock();
        options = kit_options(root);
        options.flush = run % 2 == 0 ? CMQ_FLUSH_SYNC : CMQ_FLUSH_ASYNC;
        options.ext_enabled = run % 3 == 2;
        options.durable_point_ms = 500;
        options.retention = (cmq_retention){.reserved_ms = 1, .files_per_round = 2};
        message_count = 0;
        log_min = 0;
        memset(next_ordinal, 0, sizeof next_ordinal);
        store = kit_open(&options);
        operate(kit_amount("CMQ_STORE_OPERATIONS", 700, 20000));
        read_everything();
        kit_close(store);
    }
    kit_found_free(found);
}

/* ---- opening and closing ---- */

static void a_second_writer_gets_the_process(void)
{
    cmq_store *second;
    CHECK_OK(cmq_path_join(root, kit_directory(), "store"));
    options = kit_options(root);
    store = kit_open(&options);
    CHECK_STATUS(cmq_store_open(&second, &options), CMQ_ERR_LOCKED);
    CHECK(second == NULL && strstr(cmq_last_error()->text, "process") != NULL);
    kit_append(store, "T", 0, "m", NULL, NULL);   /* the failed opening dropped no lock and cut nothing */
    fflush(NULL);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        cmq_store_abandon(store);
        _exit(cmq_store_open(&second, &options) == CMQ_ERR_LOCKED ? 0 : 1);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK_INT(status, 0);
    kit_close(store);
    kit_close(kit_open(&options));
}

static void other_directories_are_refused(void)
{
    const char *directory = kit_directory();
    options = kit_options(kit_path(directory, "photos"));
    CHECK_OK(cmq_fs_make_directory(cmq_fs_posix(), kit_path(directory, "photos/summer")));
    CHECK_STATUS(cmq_store_open(&store, &options), CMQ_ERR_NOT_STORE);
    CHECK(!kit_exists(kit_path(directory, "photos/commitlog")) && !kit_exists(kit_path(directory, "photos/lock")));
    kit_write_bytes(kit_path(directory, "file"), 0, "x", 1);
    options = kit_options(kit_path(directory, "file"));
    CHECK_STATUS(cmq_store_open(&store, &options), CMQ_ERR_NOT_STORE);
    options = kit_options(kit_path(directory, "none"));
    options.create = false;
    CHECK_STATUS(cmq_store_open(&store, &options), CMQ_ERR_NOT_FOUND);
    CHECK(!kit_exists(kit_path(directory, "none")));
    options.path = "";
    CHECK_STATUS(cmq_store_open(&store, &options), CMQ_ERR_ARGUMENT);
    options = kit_options(kit_path(directory, "none"));
    options.segment_bytes = 100;
    CHECK_STATUS(cmq_store_open(&store, &options), CMQ_ERR_SETTING);
    options.segment_bytes = KIT_SEGMENT_BYTES;
    options.delay_levels = "1s nonsense";
    CHECK(cmq_store_open(&store, &options) != CMQ_OK);
    CHECK(store == NULL);
}

/* Sizes are the files' own: settings are needed for what the directory does not show, and must not contradict it. */
static void sizes_come_from_the_files(void)
{
    CHECK_OK(cmq_path_join(root, kit_directory(), "store"));
    options = kit_options(root);
    store = kit_open(&options);
    for (int i = 0; i < 100; i++) kit_append(store, "T", 0, "m", NULL, "k");
    kit_close(store);
    const cmq_store_options plain = {.path = root, .clock = kit_clock()};
    store = kit_open(&plain);
    cmq_store_info info;
    CHECK_OK(cmq_store_info_of(store, &info));
    CHECK_INT(info.segment_bytes, KIT_SEGMENT_BYTES);
    CHECK_INT(info.queue_file_bytes, KIT_QUEUE_UNITS * CMQ_UNIT_BYTES);
    CHECK_INT(info.index_slots, KIT_INDEX_SLOTS);
    CHECK_INT(info.index_entries, KIT_INDEX_ENTRIES);
    kit_close(store);
    options.segment_bytes *= 2;
    CHECK_STATUS(cmq_store_open(&store, &options), CMQ_ERR_SETTING);
    CHECK(strstr(cmq_last_error()->text, "mappedFileSizeCommitLog") != NULL);
}

/* An idle new store is small. */
static void add_allocated(void *context, const char *path, int64_t bytes)
{
    cmq_file *file;
    cmq_file_info info;
    (void)bytes;
    if (strstr(path, "/lock") != NULL) return;
    CHECK_OK(cmq_file_open(cmq_fs_posix(), path, CMQ_OPEN_READ, &file));
    CHECK_OK(cmq_file_info_of(file, &info));
    cmq_file_close(file);
    *(uint64_t *)context += info.allocated_bytes;
}

static void idle_and_small(void)
{
    CHECK_OK(cmq_path_join(root, kit_directory(), "store"));
    const cmq_store_options plain = {.path = root, .create = true, .background = true};
    store = kit_open(&plain);
    uint64_t allocated = 0;
    kit_each_file(root, add_allocated, &allocated);
    CHECK(allocated < 100000);
    kit_append(store, "T", 0, "one message, without keys", NULL, NULL);
    CHECK_OK(cmq_store_maintain(store, true));
    allocated = 0;
    kit_each_file(root, add_allocated, &allocated);
    CHECK(allocated < 1 << 20);
    kit_close(store);
}

static cmq_store_info info_at(bool read_only, int64_t ext_file_bytes)
{
    cmq_store_options plain = kit_options(root);
    plain.segment_bytes = plain.queue_file_bytes = plain.batch_file_bytes = 0;
    plain.ext_file_bytes = ext_file_bytes;
    plain.index_slots = plain.index_entries = 0;
    plain.read_only = read_only;
    cmq_store *opened = kit_open(&plain);
    cmq_store_info info;
    CHECK_OK(cmq_store_info_of(opened, &info));
    kit_close(opened);
    return info;
}

/* Sizes that no file shows yet are those of the last opening; a setting changes them. */
static void sizes_are_remembered(void)
{
    const char *directory = kit_directory();
    CHECK_OK(cmq_path_join(root, directory, "store"));
    kit_set_clock();
    options = kit_options(root);
    options.batch_file_bytes = 9 * CMQ_BATCH_UNIT_BYTES;
    options.ext_file_bytes = 777;
    for (int round = 0; round < 3; round++) {   /* empty; with messages, but without keys; after a crash */
        store = kit_open(&options);
        if (round > 0) kit_append_many(store, "T", "m", 3);
        if (round < 2) kit_close(store);
        else cmq_store_abandon(store);
        for (int way = 0; way < 2; way++) {
            const cmq_store_info info = info_at(way == 0, 0);
            CHECK_INT(info.segment_bytes, options.segment_bytes);
            CHECK_INT(info.queue_file_bytes, options.queue_file_bytes);
            CHECK_INT(info.batch_file_bytes, options.batch_file_bytes);
            CHECK_INT(info.ext_file_bytes, 777);
            CHECK_INT(info.index_slots, KIT_INDEX_SLOTS);
            CHECK_INT(info.index_entries, KIT_INDEX_ENTRIES);
        }
    }
    CHECK_INT(info_at(false, 888).ext_file_bytes, 888);
    CHECK_INT(info_at(false, 0).ext_file_bytes, 888);
    /* An index file without a key, which a crash leaves, fits every split. */
    CHECK_OK(cmq_fs_make_directory(cmq_fs_posix(), kit_path(root, "index")));
    const char *empty = kit_path(root, "index/20260101000000000");
    kit_write_bytes(empty, 0, "", 0);
    kit_resize(empty, 40 + 4 * KIT_INDEX_SLOTS + 20 * KIT_INDEX_ENTRIES);
    CHECK_INT(info_at(false, 0).index_slots, KIT_INDEX_SLOTS);
    CHECK_INT(info_at(true, 0).index_entries, KIT_INDEX_ENTRIES);
}

/* ---- file systems that copy on write ---- */

static const char *copied_part;   /* of the path that is not overwritten in place */

static cmq_status overwrites_of(cmq_fs *self, const char *path, cmq_overwrites *overwrites_out)
{
    (void)self;
    if (strstr(path, copied_part) != NULL) *overwrites_out = CMQ_OVERWRITES_COPIED;
    return CMQ_OK;
}

static void opening_names_a_path_that_is_overwritten_by_copying(void)
{
    static const char *const parts[] = {"/log-b", "/commitlog/0000", "/nowhere"};
    cmq_fs_ops ops = *cmq_fs_posix()->ops;
    ops.overwrites = overwrites_of;
    cmq_fs fs = {.ops = &ops};
    const char *directory = kit_directory();
    char log_b[CMQ_PATH_BYTES], log_a[CMQ_PATH_BYTES], path[CMQ_PATH_BYTES];
    CHECK_OK(cmq_path_join(log_b, directory, "log-b"));
    CHECK_OK(cmq_path_join(log_a, directory, "two/commitlog"));
    CHECK_OK(cmq_path_join(path, directory, "two"));
    const char *const paths[] = {log_a, log_b};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        cmq_store_opening opening;
        cmq_store_options asked = kit_options(path);
        copied_part = parts[i];
        asked.fs = &fs;
        asked.commitlog_paths = paths;
        asked.commitlog_path_count = i == 0 ? 2 : 1;
        for (int openings = 0; openings < 2; openings++) {   /* a new store, and one with a segment */
            cmq_store *of = kit_open(&asked);
            cmq_store_opening_of(of, &opening);
            kit_append(of, "T", 0, "m", NULL, NULL);
            kit_close(of);
        }
        CHECK_INT(opening.overwrites, i < 2 ? CMQ_OVERWRITES_COPIED : CMQ_OVERWRITES_IN_PLACE);
        CHECK((strstr(opening.overwritten, parts[i]) != NULL) == (i < 2));
        kit_remove_tree(path);
        kit_remove_tree(log_b);
    }
}

CMQ_TEST_MAIN(CMQ_TEST(opening_names_a_path_that_is_overwritten_by_copying), CMQ_TEST(against_a_model),
              CMQ_TEST(a_second_writer_gets_the_process), CMQ_TEST(other_directories_are_refused),
              CMQ_TEST(sizes_come_from_the_files), CMQ_TEST(idle_and_small), CMQ_TEST(sizes_are_remembered))
