/* fuzz_store_files: a small store, one of whose files has bytes of the input in it: segments, queue files of both
 * kinds, extensions, index files, the durable point, the follow page, checkpoint, timers. Opened to read, read in every
 * way and verified; or opened for writing, some after a repair.
 *
 * Input: the file's number, then patches: place (two bytes, from the begin or, above 0x7FFF, from the end), length (one
 *        byte), bytes. So sums and lengths around what was changed stay as they were, and every check is reached. A
 *        number above 127: opened for writing; then its multiple of the number of files says which repair comes first:
 *        none, one that fills damage, one that cuts it, one that cuts the tail.
 *
 * Properties: no crash, no endless walk; a record that is handed out parses.
 * Run:        by replay_main.c over corpus/store_files and mutations of it; or with -fsanitize=fuzzer by clang.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cmq_assert.h"
#include "store/check/cmq_repair.h"
#include "store/check/cmq_verify.h"
#include "support/cmq_store_kit.h"

#define FILES_MAX 64
#define MESSAGES 60
#define READS_MAX 20000
#define FILE_BYTES_MAX (1 << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct {
    char path[CMQ_PATH_BYTES];
    uint8_t *content;
    size_t bytes;
} files[FILES_MAX];
static size_t file_count;
static char home[512], root[CMQ_PATH_BYTES], trial[CMQ_PATH_BYTES];

/* ---- the store ---- */

static cmq_store_options options_of(const char *path, bool read_only)
{
    static const char *const batch_topics[] = {"Batch"};
    cmq_store_options options = kit_options(path);
    options.segment_bytes = 4096;
    options.queue_file_bytes = 7 * CMQ_UNIT_BYTES;
    options.batch_file_bytes = 7 * CMQ_BATCH_UNIT_BYTES;
    options.index_entries = 40;
    options.ext_enabled = true;
    options.batch_topics = batch_topics;
    options.batch_topic_count = 1;
    options.read_only = read_only;
    return options;
}

static void fill(cmq_store *store)
{
    for (int i = 0; i < MESSAGES; i++) {
        char text[64];
        snprintf(text, sizeof text, "k%d", i);
        const bool batch = i % 4 == 0;
        const cmq_append append = {
            .common = {.topic = kit_slice(batch ? "Batch" : "A"),
                       .queue_id = i % 2,
                       .sys_flag = batch ? CMQ_SYS_INNER_BATCH : 0},
            .count = 1,
            .bodies = {.kind = CMQ_COLUMN_ONE, .one = kit_slice(text)},
            .tags = {.kind = CMQ_COLUMN_ONE, .one = kit_slice("t")},
            .keys = {.kind = CMQ_COLUMN_ONE, .one = kit_slice(text)},
            .properties = {.kind = CMQ_COLUMN_ONE, .one = batch ? kit_slice("INNER_NUM\0013\002") : CMQ_SLICE_NONE},
        };
        cmq_appended appended;
        CHECK_OK(cmq_store_append(store, &append, &appended));
        if (i == MESSAGES / 2) CHECK_OK(cmq_store_maintain(store, true));
    }
}

static void take_file(void *context, const char *path, int64_t bytes)
{
    (void)context;
    if (file_count == FILES_MAX || bytes <= 0 || bytes > FILE_BYTES_MAX) return;
    snprintf(files[file_count].path, sizeof files[0].path, "%s", path + strlen(root));
    files[file_count].content = malloc((size_t)bytes);
    files[file_count].bytes = (size_t)bytes;
    CMQ_ASSERT(files[file_count].content != NULL);
    kit_read_bytes(path, 0, files[file_count].content, (size_t)bytes);
    file_count++;
}

static void remove_home(void)
{
    char command[600];
    snprintf(command, sizeof command, "rm -rf '%s'", home);
    if (system(command) != 0) perror(home);
}

static void prepare(void)
{
    snprintf(home, sizeof home, "%s/cmq-fuzz-XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    CMQ_ASSERT(mkdtemp(home) != NULL);
    atexit(remove_home);
    snprintf(root, sizeof root, "%s/store", home);
    snprintf(trial, sizeof trial, "%s/trial", home);
    kit_set_clock();
    const cmq_store_options options = options_of(root, false);
    cmq_store *store = kit_open(&options);
    fill(store);
    kit_close(store);
    kit_each_file(root, take_file, NULL);
    kit_copy_tree(root, trial);
}

/* ---- one input ---- */

static void patch(uint8_t *content, size_t bytes, const uint8_t *data, size_t size)
{
    while (size >= 4) {
        const uint32_t place = (uint32_t)data[0] << 8 | data[1];
        size_t count = data[2];
        data += 3;
        size -= 3;
        if (count > size) count = size;
        const size_t at = place < 0x8000 ? place : place - 0x8000 < bytes ? bytes - (place - 0x8000) : 0;
        for (size_t i = 0; i < count; i++)
            if (at + i < bytes) content[at + i] = data[i];
        data += count;
        size -= count;
    }
}

static void read_units(cmq_store *store, const char *topic, int32_t queue_id)
{
    cmq_found items[16];
    cmq_queue *queue = cmq_queues_find(cmq_store_queues(store), kit_slice(topic), queue_id);
    if (queue == NULL) return;
    int64_t next = cmq_queue_min(queue);
    cmq_unit units[16];
    uint32_t count;
    for (int reads = 0; reads < READS_MAX; reads++) {
        const int64_t from = next;
        if (cmq_queue_read(queue, from, cmq_store_confirmed(store), units, 16, &count, &next) != CMQ_OK || next <= from)
            break;
        for (uint32_t i = 0; i < count; i++) {
            cmq_found_batch batch = {.items = items, .capacity = 16};
            cmq_record_view view;
            if (cmq_store_read_physical(store, units[i].phy, &batch) == CMQ_OK)
                CMQ_ASSERT(cmq_record_parse(items[0].record, items[0].record_bytes, items[0].physical_offset, 0,
                                            &view) == CMQ_OK);
            cmq_found_batch_release(&batch);
        }
    }
}

static void read_all(cmq_store *store)
{
    cmq_found items[16];
    cmq_reader *reader;
    const cmq_read_options options = {0};
    bool end = false;
    if (cmq_reader_open(store, &options, &reader) != CMQ_OK) return;
    for (int reads = 0; reads < READS_MAX && !end; reads++) {
        cmq_found_batch batch = {.items = items, .capacity = 16};
        const cmq_status status = cmq_reader_next(reader, &batch, &end);
        const bool none = batch.count == 0;
        cmq_found_batch_release(&batch);
        if (status != CMQ_ERR_CORRUPT && (status != CMQ_OK || none)) break;
        CMQ_ASSERT(reads + 1 < READS_MAX);
    }
    cmq_reader_close(reader);
}

/* A repair leaves a store that opens, or says what is wrong. */
static void repair(size_t which)
{
    const cmq_store_options store = options_of(trial, false);
    const cmq_repair_options options = {
        .store = &store, .fill_damage = which == 1, .cut_damage = which == 2, .cut_tail = which != 1};
    cmq_repair_report report;
    if (which == 0 || cmq_store_repair(&options, &report) != CMQ_OK) return;
    cmq_store *repaired;
    CHECK_OK(cmq_store_open(&repaired, &store));
    CHECK_OK(cmq_store_close(repaired));
}

static void verify(cmq_store *store)
{
    cmq_verified verified;
    const cmq_verify_options options = {0};
    if (cmq_store_verify(store, &options, &verified) == CMQ_OK) CMQ_ASSERT(verified.complete);
}

static void use(bool read_only)
{
    const cmq_store_options options = options_of(trial, read_only);
    cmq_store *store;
    if (cmq_store_open(&store, &options) != CMQ_OK) return;
    static const char *const topics[] = {"A", "Batch"};
    for (int i = 0; i < 4; i++) read_units(store, topics[i / 2], i % 2);
    read_all(store);
    if (read_only) verify(store);
    if (!read_only) (void)!kit_try_append(store, "A", 0, "more", "t", "k1", &(cmq_appended){0});
    (void)!cmq_store_close(store);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint8_t content[FILE_BYTES_MAX];
    if (size < 2) return 0;
    if (file_count == 0) prepare();
    const bool read_only = data[0] < 128;
    const size_t number = (data[0] & 127u) % file_count;
    const size_t bytes = files[number].bytes;
    char path[CMQ_PATH_BYTES];
    CMQ_ASSERT(cmq_path_join(path, trial, files[number].path) == CMQ_OK);
    memcpy(content, files[number].content, bytes);
    patch(content, bytes, data + 1, size - 1);
    kit_write_bytes(path, 0, content, bytes);
    if (!read_only) repair((data[0] & 127u) / file_count);
    use(read_only);
    if (read_only) kit_write_bytes(path, 0, files[number].content, bytes);
    else kit_copy_tree(root, trial);
    return 0;
}
