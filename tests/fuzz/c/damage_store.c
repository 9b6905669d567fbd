/* damage_store: opens stores whose files were damaged, under the address sanitizer: never a crash, a hang or a quiet
 * loss; right data or a typed status.
 *
 * CMQ_DAMAGE_ROUNDS: how many; without it some hundred, with CMQ_LONG many. CMQ_SEED repeats a run.
 *
 * Small stores are made once: closed and killed, with every kind of file. Each round copies one, damages some bytes,
 * lengths or names of some files, opens it read-only and for writing, reads all of it in every way, appends, and opens
 * it again.
 *
 * Right data: a record that a look-up hands out (those check its CRC) has a body that was appended, at the place where
 * it was appended; messages appended to a damaged store are there afterwards. No quiet loss: a store that was closed
 * opens with all of its messages, or opening or reading reports the damage.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cmq_utf8.h"
#include "export/cmq_scan.h"
#include "support/cmq_store_kit.h"

#define BASES 6
#define MESSAGES 90
#define FILES_MAX 200
#define DAMAGES_MAX 3
#define READS_MAX 20000      /* results of one iteration: more is a reader that does not come to an end */
#define SECONDS_MAX 20       /* of one round */

typedef struct base {
    char path[CMQ_PATH_BYTES];
    cmq_store_options options;
    bool closed;
    int64_t phy[MESSAGES];
    int64_t log_end;
} base;

static base bases[BASES];
static const char *directory;
static char trial[CMQ_PATH_BYTES], done[1000];
static uint64_t round_number;

/* ---- the stores ---- */

static void body_of(int number, char into[64])
{
    snprintf(into, 64, "message-%d-%d-%d", number, number * 7919, number * 104729);
}

static void append_messages(base *of, cmq_store *store)
{
    for (int i = 0; i < MESSAGES; i++) {
        char body[64], keys[64], properties[100] = "";
        body_of(i, body);
        snprintf(keys, sizeof keys, "k%d shared%d", i, i % 7);
        if (of->options.lmq_enabled && i % 9 == 0)
            snprintf(properties, sizeof properties, "INNER_MULTI_DISPATCH\001%%LMQ%%a\002");
        const bool batch = of->options.batch_topic_count > 0 && i % 4 == 0;
        if (batch) snprintf(properties, sizeof properties, "INNER_NUM\0013\002");
        const cmq_append append = {
            .common = {.topic = kit_slice(batch        ? "Batch"
                                          : i % 3 == 0 ? "A"
                                                       : "B"),
                       .queue_id = i % 2,
                       .sys_flag = batch ? CMQ_SYS_INNER_BATCH : 0},
            .count = 1,
            .bodies = {.kind = CMQ_COLUMN_ONE, .one = kit_slice(body)},
            .tags = {.kind = CMQ_COLUMN_ONE, .one = kit_slice(i % 2 == 0 ? "red" : "green")},
            .keys = {.kind = CMQ_COLUMN_ONE, .one = kit_slice(keys)},
            .properties = {.kind = CMQ_COLUMN_ONE, .one = kit_slice(properties)},
        };
        cmq_appended appended;
        CHECK_OK(cmq_store_append(store, &append, &appended));
        of->phy[i] = appended.first_physical_offset;
        of->log_end = appended.end;
        atomic_fetch_add(&kit_now_ms, 700);
        if (i == MESSAGES * 2 / 3) CHECK_OK(cmq_store_maintain(store, true));
    }
}

static void make_bases(void)
{
    static const char *const batch_topics[] = {"Batch"};
    for (int i = 0; i < BASES; i++) {
        base *of = &bases[i];
        snprintf(of->path, sizeof of->path, "%.3000s/base-%d", directory, i);
        of->options = kit_options(of->path);
        of->options.segment_bytes = i % 3 == 2 ? 65536 : 4096;
        of->options.queue_file_bytes = 7 * CMQ_UNIT_BYTES;
        of->options.batch_file_bytes = 7 * CMQ_BATCH_UNIT_BYTES;
        of->options.index_entries = 40;
        of->options.ext_enabled = i % 3 == 1;
        of->options.lmq_enabled = i % 3 == 0;
        of->options.property_crc = i % 3 == 2;
        of->options.batch_topics = batch_topics;
        of->options.batch_topic_count = i % 3 == 0 ? 1 : 0;
        of->closed = i < BASES / 2;
        cmq_store *store = kit_open(&of->options);
        append_messages(of, store);
        if (of->closed) kit_close(store);
        else cmq_store_abandon(store);
    }
}

/* ---- damage ---- */

static struct {
    char paths[FILES_MAX][CMQ_PATH_BYTES];
    int64_t bytes[FILES_MAX];
    size_t count;
} files;

static void take_file(void *context, const char *path, int64_t bytes)
{
    (void)context;
    if (files.count == FILES_MAX || strcmp(strrchr(path, '/'), "/lock") == 0) return;
    snprintf(files.paths[files.count], sizeof files.paths[0], "%s", path);
    files.bytes[files.count++] = bytes;
}

static void note(const char *what, const char *path)
{
    const size_t used = strlen(done);
    snprintf(done + used, sizeof done - used, " %s %s;", what, path + strlen(trial));
}

static void damage_bytes(const char *path, int64_t bytes)
{
    static uint8_t block[4096], other[4096];
    const int64_t at = (int64_t)cmq_test_random_below((uint64_t)bytes);
    int64_t some = 1 + (int64_t)cmq_test_random_below(cmq_test_random_below(2) == 0 ? 16 : 1000);
    if (some > bytes - at) some = bytes - at;
    kit_read_bytes(path, at, block, (size_t)some);
    switch (cmq_test_random_below(5)) {
    case 0:
        note("flipped", path);
        block[cmq_test_random_below((uint64_t)some)] ^= (uint8_t)(1u << cmq_test_random_below(8));
        break;
    case 1:
        note("zeroed", path);
        memset(block, 0, (size_t)some);
        break;
    case 2:
        note("filled", path);
        memset(block, cmq_test_random_below(2) == 0 ? 0xFF : 0x7F, (size_t)some);
        break;
    case 3:
        note("randomized", path);
        for (int64_t i = 0; i < some; i++) block[i] = (uint8_t)cmq_test_random();
        break;
    default: {   /* shuffled, or from another file */
        const size_t from = cmq_test_random_below(2) == 0 ? cmq_test_random_below(files.count) : 0;
        const char *source = cmq_test_random_below(2) == 0 ? path : files.paths[from];
        const int64_t there = kit_file_bytes(source);
        if (there < some || there == 0) return;
        note("spliced", path);
        kit_read_bytes(source, (int64_t)cmq_test_random_below((uint64_t)(there - some + 1)), other, (size_t)some);
        memcpy(block, other, (size_t)some);
    }
    }
    kit_write_bytes(path, at, block, (size_t)some);
}

static void damage_file(size_t number)
{
    const char *path = files.paths[number];
    const int64_t bytes = kit_file_bytes(path);
    char renamed[CMQ_PATH_BYTES + 32];
    const uint64_t dice = cmq_test_random_below(20);
    if (bytes < 0) return;
    if (dice < 13 && bytes > 0) {
        damage_bytes(path, bytes);
    } else if (dice < 15) {
        note("resized", path);
        kit_resize(path, (int64_t)cmq_test_random_below(3 * (uint64_t)bytes + 3));
    } else if (dice < 17) {
        note("removed", path);
        CHECK(remove(path) == 0);
    } else if (dice < 18) {
        static const char *const names[] = {"00000000000000000001", "junk", "99999999999999999999",
                                            "00000000000000065536", "-1",   "20260101000000000"};
        snprintf(renamed, sizeof renamed, "%.*s/%s", (int)(strrchr(path, '/') - path), path,
                 names[cmq_test_random_below(6)]);
        note("renamed", path);
        CHECK(rename(path, renamed) == 0);
    } else if (dice < 19) {
        const char *other = files.paths[cmq_test_random_below(files.count)];
        if (kit_file_bytes(other) < 0 || other == path) return;
        note("swapped", path);
        note("with", other);
        snprintf(renamed, sizeof renamed, "%s.swap", trial);
        CHECK(rename(path, renamed) == 0 && rename(other, path) == 0 && rename(renamed, other) == 0);
    } else {
        static const char *const names[] = {"junk", "00000000000000000000", "00000000000000004096",
                                            "00000000000000000140"};
        snprintf(renamed, sizeof renamed, "%.*s/%s", (int)(strrchr(path, '/') - path), path,
                 names[cmq_test_random_below(4)]);
        note("added beside", path);
        kit_write_bytes(renamed, 0, "junk", 4);
    }
}

static void damage_store(void)
{
    files.count = 0;
    done[0] = '\0';
    kit_each_file(trial, take_file, NULL);
    for (uint64_t i = 1 + cmq_test_random_below(DAMAGES_MAX); i > 0; i--)
        damage_file(cmq_test_random_below(files.count));
}

/* ---- checks ---- */

static void wrong(const char *what, cmq_status status)
{
    cmq_test_fail(__FILE__, __LINE__, "round %" PRIu64 ",%s: %s: %s (%s)", round_number, done, what,
                  cmq_status_name(status), cmq_last_error()->text);
}

static bool is_typed(cmq_status status)
{
    switch (status) {
    case CMQ_ERR_CORRUPT:
    case CMQ_ERR_NOT_STORE:
    case CMQ_ERR_AMBIGUOUS:
    case CMQ_ERR_SETTING:
    case CMQ_ERR_NOT_FOUND:
    case CMQ_ERR_OFFSET:
    case CMQ_ERR_IO: return true;   /* IO: a folder in the place of a file, and the like */
    default: return false;
    }
}

/* A look-up returned the message that was appended there, or one of this round. */
static void check_found(const base *of, const cmq_found_batch *batch)
{
    for (uint32_t i = 0; i < batch->count; i++) {
        const cmq_record_view view = kit_view(&batch->items[i]);
        char body[64];
        int number = -1;
        for (int j = 0; j < MESSAGES; j++)
            if (of->phy[j] == batch->items[i].physical_offset) number = j;
        if (view.body.bytes >= 5 && memcmp(view.body.data, "after", 5) == 0) continue;
        body_of(number, body);
        if (number < 0 || !cmq_slice_equal(view.body, kit_slice(body)))
            wrong("a look-up gave what was never appended", CMQ_OK);
    }
}

typedef struct tally {
    uint32_t sound;        /* records whose bodies are right */
    uint32_t complaints;   /* reported damage */
} tally;

static tally read_through(const base *of, cmq_store *store, const cmq_read_options *options)
{
    cmq_reader *reader;
    kit_found *found = kit_found_make(16);
    tally counted = {0};
    bool end = false;
    cmq_status status = cmq_reader_open(store, options, &reader);
    if (status != CMQ_OK && !is_typed(status)) wrong("opening a reader", status);
    if (status != CMQ_OK) counted.complaints++;
    uint32_t results = 0;
    for (int idle = 0; status == CMQ_OK && !end && idle < 3; results++) {
        const cmq_status next = cmq_reader_next(reader, &found->batch, &end);
        if (next != CMQ_OK && !is_typed(next)) wrong("reading", next);
        if (next != CMQ_OK) counted.complaints++;
        if (next != CMQ_OK && next != CMQ_ERR_CORRUPT) break;   /* only damage of a record is passed over */
        idle = next == CMQ_OK && found->batch.count == 0 ? idle + 1 : 0;
        for (uint32_t i = 0; i < found->batch.count; i++) {
            cmq_record_view view;
            const cmq_found *item = &found->batch.items[i];
            const bool whole = cmq_record_parse(item->record, item->record_bytes, item->physical_offset,
                                                CMQ_RECORD_CHECK_BODY_CRC, &view) == CMQ_OK;
            if (whole) counted.sound++;
            else counted.complaints++;
        }
        cmq_found_batch_release(&found->batch);
        if (results > READS_MAX) wrong("reading does not end", next);
    }
    (void)of;
    cmq_reader_close(status == CMQ_OK ? reader : NULL);
    kit_found_free(found);
    return counted;
}

/* ---- columns ---- */

static void check_strings(const struct ArrowArray *strings, bool text)
{
    const int32_t *offsets = strings->buffers[1];
    for (int64_t i = 0; i < strings->length; i++) {
        if (offsets[i] < 0 || offsets[i] > offsets[i + 1]) wrong("offsets fall", CMQ_OK);
        const cmq_slice string = {.data = (const uint8_t *)strings->buffers[2] + offsets[i],
                                  .bytes = (size_t)(offsets[i + 1] - offsets[i])};
        if (text && !cmq_utf8_is_valid(string)) wrong("a text is no UTF-8", CMQ_OK);
    }
}

static void check_views(const struct ArrowArray *views)
{
    const int64_t *sizes = views->buffers[views->n_buffers - 1];
    for (int64_t i = 0; i < views->length; i++) {
        int32_t view[4];
        memcpy(view, (const uint8_t *)views->buffers[1] + 16 * i, sizeof view);
        if (view[0] < 0) wrong("a view has a negative length", CMQ_OK);
        if (view[0] <= 12) continue;
        if (view[2] < 0 || view[2] >= views->n_buffers - 3 || view[3] < 0 ||
            (int64_t)view[3] + view[0] > sizes[view[2]])
            wrong("a view leaves its buffer", CMQ_OK);
    }
}

/* With any damage the scan returns valid Arrow, and ends. */
static void scan_through(cmq_store *store, const cmq_read_options *read, const char *key)
{
    static const cmq_scan_column columns[] = {
        {.kind = CMQ_SCAN_BODY, .name = "view"},
        {.kind = CMQ_SCAN_BODY, .form = CMQ_SCAN_FORM_PLAIN, .name = "plain"},
        {.kind = CMQ_SCAN_TAGS, .form = CMQ_SCAN_FORM_DICTIONARY, .name = "tags"},
        {.kind = CMQ_SCAN_KEYS, .name = "keys"},
        {.kind = CMQ_SCAN_PROPERTIES, .name = "map"},
        {.kind = CMQ_SCAN_BORN_HOST, .name = "host"},
        {.kind = CMQ_SCAN_BORN_TIMESTAMP, .form = CMQ_SCAN_FORM_US, .name = "born"}};
    const cmq_slice wanted = kit_slice(key != NULL ? key : "");
    const cmq_scan_options options = {.read = *read,
                                      .columns = columns,
                                      .column_count = sizeof columns / sizeof columns[0],
                                      .batch_rows = 50,
                                      .keys = &wanted,
                                      .key_count = key != NULL};
    cmq_scan *scan;
    cmq_status status = cmq_scan_open(store, &options, &scan);
    if (status != CMQ_OK && !is_typed(status)) wrong("opening a scan", status);
    if (status != CMQ_OK) return;
    uint32_t results = 0;
    for (bool end = false; !end; results++) {
        struct ArrowArray batch;
        status = cmq_scan_next(scan, &batch, &end);
        if (status != CMQ_OK && !is_typed(status)) wrong("scanning", status);
        if (results > READS_MAX) wrong("scanning does not end", status);
        if (status == CMQ_ERR_CORRUPT) continue;
        if (status != CMQ_OK || batch.release == NULL) break;
        check_views(batch.children[0]);
        check_strings(batch.children[1], false);
        check_strings(batch.children[2]->dictionary, true);
        check_strings(batch.children[3], true);
        check_strings(batch.children[4]->children[0]->children[0], true);
        check_strings(batch.children[4]->children[0]->children[1], true);
        batch.release(&batch);
    }
    cmq_scan_close(scan);
}

static tally read_in_every_way(const base *of, cmq_store *store)
{
    static const char *const topics[] = {"A", "B", "Batch", "%LMQ%a"};
    const cmq_slice tag = kit_slice("red");
    tally all = read_through(of, store, &(cmq_read_options){0});
    all.complaints += read_through(of, store, &(cmq_read_options){.backwards = true}).complaints;
    scan_through(store, &(cmq_read_options){0}, NULL);
    for (int i = 0; i < 4; i++) {
        const cmq_slice name = kit_slice(topics[i]);
        const cmq_read_options all_of_it = {.topics = &name, .topic_count = 1, .may_be_missing = true};
        scan_through(store, &all_of_it, NULL);
        scan_through(store, &all_of_it, "shared3");
        for (int way = 0; way < 4; way++) {
            const cmq_read_options options = {.topics = &name,
                                              .topic_count = 1,
                                              .may_be_missing = true,
                                              .backwards = way % 2 != 0,
                                              .tags = &tag,
                                              .tag_count = way / 2 == 0 ? 0 : 1};
            all.complaints += read_through(of, store, &options).complaints;
        }
    }
    return all;
}

static void look_up(const base *of, cmq_store *store)
{
    kit_found *found = kit_found_make(20);
    for (int i = 0; i < MESSAGES; i += 7) {
        char key[16];
        snprintf(key, sizeof key, i % 2 == 0 ? "k%d" : "shared%d", i % 2 == 0 ? i : i % 7);
        cmq_status status =
            cmq_store_find_key(store, kit_slice(i % 3 == 0 ? "A" : "B"), kit_slice(key), 0, INT64_MAX, &found->batch);
        if (status != CMQ_OK && !is_typed(status)) wrong("finding a key", status);
        check_found(of, &found->batch);
        cmq_found_batch_release(&found->batch);
        status = cmq_store_read_physical(store, of->phy[i], &found->batch);
        if (status != CMQ_OK && !is_typed(status)) wrong("reading by physical offset", status);
        check_found(of, &found->batch);
        cmq_found_batch_release(&found->batch);
        status = cmq_store_read_offset(store, kit_slice("B"), i % 2, i / 4, &found->batch);
        if (status != CMQ_OK && !is_typed(status)) wrong("reading by queue offset", status);
        check_found(of, &found->batch);
        cmq_found_batch_release(&found->batch);
        int64_t offset;
        status = cmq_store_offset_at(store, kit_slice("B"), i % 2, atomic_load(&kit_now_ms) - i * 500,
                                     i % 4 == 0 ? CMQ_BOUNDARY_LOWER : CMQ_BOUNDARY_UPPER, &offset);
        if (status != CMQ_OK && !is_typed(status)) wrong("an offset by time", status);
    }
    int64_t ms;
    const cmq_status status = cmq_store_earliest_ms(store, &ms);
    if (status != CMQ_OK && !is_typed(status)) wrong("the earliest time", status);
    kit_found_free(found);
}

static void try_read_only(const base *of, const cmq_store_options *options)
{
    cmq_store *store;
    cmq_store_options read_only = *options;
    read_only.read_only = true;
    read_only.create = false;
    const cmq_status status = cmq_store_open(&store, &read_only);
    if (status != CMQ_OK) {
        if (!is_typed(status)) wrong("opening read-only", status);
        return;
    }
    read_in_every_way(of, store);
    look_up(of, store);
    const cmq_status closed = cmq_store_close(store);
    if (closed != CMQ_OK) wrong("closing a follower", closed);
}

/* Messages appended to a store that opened are there, now and after another opening. */
static void go_on(cmq_store *store, const cmq_store_options *options)
{
    int64_t phy[5];
    kit_found *found = kit_found_make(1);
    for (int i = 0; i < 5; i++) {
        char body[32];
        cmq_appended appended;
        snprintf(body, sizeof body, "after-%d", i);
        const cmq_status status = kit_try_append(store, i % 2 == 0 ? "B" : "New", 0, body, NULL, "after", &appended);
        if (status != CMQ_OK) wrong("appending", status);
        phy[i] = appended.first_physical_offset;
    }
    if (cmq_test_random_below(2) == 0) {
        const cmq_status status = cmq_store_close(store);
        if (status != CMQ_OK) wrong("closing", status);
    } else {
        cmq_store_abandon(store);
    }
    cmq_status status = cmq_store_open(&store, options);
    if (status != CMQ_OK) wrong("opening again", status);
    for (int i = 0; i < 5; i++) {
        char body[32];
        snprintf(body, sizeof body, "after-%d", i);
        status = cmq_store_read_physical(store, phy[i], &found->batch);
        if (status != CMQ_OK || !kit_body_is(&found->items[0], body)) wrong("an appended message is gone", status);
        cmq_found_batch_release(&found->batch);
    }
    status = cmq_store_read_offset(store, kit_slice("New"), 0, 1, &found->batch);
    if (status != CMQ_OK || !kit_body_is(&found->items[0], "after-3"))
        wrong("an appended message is not in its queue", status);
    kit_found_free(found);
    status = cmq_store_close(store);
    if (status != CMQ_OK) wrong("closing at the end", status);
}

static void try_writing(const base *of, const cmq_store_options *options, bool *opened_out)
{
    cmq_store *store;
    const cmq_status status = cmq_store_open(&store, options);
    *opened_out = status == CMQ_OK;
    if (status != CMQ_OK) {
        if (!is_typed(status)) wrong("opening", status);
        return;
    }
    cmq_store_opening opening;
    cmq_store_info info;
    cmq_store_opening_of(store, &opening);
    CHECK_OK(cmq_store_info_of(store, &info));
    const tally all = read_in_every_way(of, store);
    look_up(of, store);
    /* A store that was closed: all of it, or a word about what is not. First segments that are missing look like ones
     * that have expired. */
    if (of->closed && all.sound < MESSAGES && all.complaints == 0 && opening.cut_bytes == 0 && info.log_min == 0)
        wrong("messages are gone, and nobody says so", CMQ_OK);
    go_on(store, options);
}

static void one_round(uint64_t *opened)
{
    const base *of = &bases[cmq_test_random_below(BASES)];
    cmq_store_options options = of->options;
    bool writable;
    const time_t began = time(NULL);
    kit_copy_tree(of->path, trial);
    damage_store();
    options.path = trial;
    if (cmq_test_random_below(2) == 0)
        options.segment_bytes = options.queue_file_bytes = options.batch_file_bytes = options.ext_file_bytes = 0;
    if (cmq_test_random_below(2) == 0) options.index_slots = options.index_entries = 0;
    if (cmq_test_random_below(2) == 0) try_read_only(of, &options);
    try_writing(of, &options, &writable);
    if (writable) (*opened)++;
    if (time(NULL) - began > SECONDS_MAX) wrong("the round took too long", CMQ_OK);
}

static void damaged(void)
{
    const uint64_t rounds = kit_amount("CMQ_DAMAGE_ROUNDS", 400, 40000);
    uint64_t opened = 0;
    directory = kit_directory();
    kit_set_clock();
    make_bases();
    snprintf(trial, sizeof trial, "%.3000s/trial", directory);
    for (round_number = 0; round_number < rounds; round_number++) one_round(&opened);
    printf("damaged: %" PRIu64 " stores, of which %" PRIu64 " opened for writing\n", rounds, opened);
}

CMQ_TEST_MAIN(CMQ_TEST(damaged))
