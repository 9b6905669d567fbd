/* Power loss, kill -9 and a Java broker in between, for a store, its `config/` and its journal of commits together in
 * one twin.
 *
 * A group consumes a queue and commits. The JSON of its progress is written as src/cometmq/store_config/config_file.py
 * does, behind a flush of the log, and the journal restarts with it. At random calls the power goes; between two
 * writers, a foreign writer may move progress. The offsets that opening finds, by the rules of
 * src/cometmq/store/progress_journal.py, are compared with a model:
 *
 *   - the JSON alone never is past the queue's end: a Java broker takes it as it is
 *   - under sync flush the journal is not past it either, and nothing that was acknowledged is missing
 *   - under async flush, set back to the queue's end, progress is at least the JSON that was written last
 *   - a kill without a power loss loses no commit; a Java broker's progress is not overruled by an older journal
 *
 * CMQ_CRASH_IMAGES: how many images; without it 600, with CMQ_LONG 100,000. CMQ_SEED repeats a run.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cmq_crc32.h"
#include "store/marks/cmq_offset_journal.h"
#include "support/cmq_file_twin.h"
#include "support/cmq_store_kit.h"

#define PENDING_MAX 3
#define JSON_BYTES 64

/* The offsets that may be found. */
typedef struct expected {
    int64_t acknowledged;   /* the last commit that was as durable as the flush mode promises; sync: at least the newest
                             * commit's, or this */
    int64_t written;        /* the last commit that is in a JSON, durably */
    int64_t appended;       /* messages that sync flush acknowledged, or that were flushed */
} expected;

typedef struct image {
    char path[CMQ_PATH_BYTES];
    expected expected;
} image;

static struct {
    const char *directory;
    uint64_t images_left, number;
    unsigned ignored_syncs;
    bool ordered;           /* false: the log is not flushed before the JSON is written, to see that it is found */
    char root[CMQ_PATH_BYTES];
    cmq_file_twin *twin;
    cmq_fs *fs;
    cmq_store *store;
    cmq_offset_journal *log;
    cmq_store_options options;
    cmq_offset_journal_basis basis;   /* the JSON as it is */
    int64_t committed;           /* in memory */
    uint64_t version;            /* no two JSON files are alike, as their dataVersion changes */
    expected expected;
    image pending[PENDING_MAX];
    uint32_t pending_count;
    bool violated;
    char why[400];
} run;

static bool is_sync(void) { return run.options.flush == CMQ_FLUSH_SYNC; }

static void violated(const char *what, int64_t is, int64_t bound)
{
    if (!run.violated)
        snprintf(run.why, sizeof run.why, "%s flush, after %" PRIu64 " images: %s: %" PRId64 " against %" PRId64,
                 is_sync() ? "sync" : "async", run.number, what, is, bound);
    run.violated = true;
}

/* ---- the JSON, as config_file.py writes and reads it ---- */

static const char *config(const char *root, const char *name)
{
    static char path[4][CMQ_PATH_BYTES];
    static int turn;
    char *into = path[turn++ % 4];
    snprintf(into, CMQ_PATH_BYTES, "%.3900s/config/%s", root, name);
    return into;
}

static bool read_json(cmq_fs *fs, const char *path, cmq_offset_journal_basis *basis_out, int64_t *offset_out)
{
    cmq_file *file;
    cmq_file_info info;
    char text[JSON_BYTES + 1] = "";
    if (cmq_file_open(fs, path, CMQ_OPEN_READ, &file) != CMQ_OK) return false;
    CHECK_OK(cmq_file_info_of(file, &info));
    if (info.bytes > 0 && info.bytes <= JSON_BYTES) CHECK_OK(cmq_file_read(file, 0, text, (size_t)info.bytes));
    cmq_file_close(file);
    if (info.bytes == 0 || sscanf(text, "{%" SCNd64 ",", offset_out) != 1) return false;
    *basis_out = (cmq_offset_journal_basis){.crc = cmq_crc32(text, (size_t)info.bytes), .bytes = info.bytes};
    return true;
}

static void load_json(cmq_fs *fs, const char *root, cmq_offset_journal_basis *basis_out, int64_t *offset_out)
{
    *basis_out = (cmq_offset_journal_basis){0};
    *offset_out = 0;
    if (read_json(fs, config(root, "consumerOffset.json"), basis_out, offset_out)) return;
    if (!read_json(fs, config(root, "consumerOffset.json.bak"), basis_out, offset_out)) *offset_out = 0;
}

static void put_json(cmq_fs *fs, const char *root, int64_t offset, cmq_offset_journal_basis *basis_out)
{
    char text[JSON_BYTES];
    cmq_file *file;
    cmq_file_info info;
    const char *path = config(root, "consumerOffset.json"), *fresh = config(root, "consumerOffset.json.tmp");
    const int bytes = snprintf(text, sizeof text, "{%" PRId64 ",%" PRIu64 "}", offset, run.version++);
    char folder[CMQ_PATH_BYTES];
    CHECK_OK(cmq_path_join(folder, root, "config"));
    CHECK_OK(cmq_fs_make_directory(fs, folder));
    CHECK_OK(cmq_file_open(fs, fresh, CMQ_OPEN_CREATE, &file));
    CHECK_OK(cmq_file_resize(file, 0));
    CHECK_OK(cmq_file_write(file, 0, text, (size_t)bytes));
    CHECK_OK(cmq_file_sync(file));
    cmq_file_close(file);
    if (cmq_fs_stat(fs, path, &info) == CMQ_OK) {
        CHECK_OK(cmq_fs_rename(fs, path, config(root, "consumerOffset.json.bak")));
        CHECK_OK(cmq_fs_sync_directory(fs, folder));
    }
    CHECK_OK(cmq_fs_rename(fs, fresh, path));
    CHECK_OK(cmq_fs_sync_directory(fs, folder));
    *basis_out = (cmq_offset_journal_basis){.crc = cmq_crc32(text, (size_t)bytes), .bytes = (uint64_t)bytes};
}

/* ---- progress_journal.py ---- */

static cmq_status take(void *context, cmq_slice group, const cmq_offset_journal_entry *entry)
{
    (void)group;
    *(int64_t *)context = entry->offset;
    return CMQ_OK;
}

/* JSON, then the journal over it. */
static int64_t find_progress(cmq_fs *fs, const char *root, cmq_offset_journal_basis *basis_out, int64_t *json_out)
{
    cmq_offset_journal_cursor cursor = {0};
    cmq_offset_journal_found found;
    load_json(fs, root, basis_out, json_out);
    int64_t progress = *json_out;
    CHECK_OK(cmq_offset_journal_read(fs, root, basis_out, &cursor, take, &progress, &found));
    return progress;
}

static void persist(void)
{
    const int64_t offset = run.committed;
    if (run.ordered) CHECK_OK(cmq_store_flush(run.store));
    run.expected.appended = run.ordered ? kit_max(run.store, "T", 0) : run.expected.appended;
    put_json(run.fs, run.root, offset, &run.basis);
    run.expected.written = run.expected.acknowledged = offset;
    if (run.log != NULL) CHECK_OK(cmq_offset_journal_restart(run.log, &run.basis));
}

static void commit(void)
{
    const int64_t max = kit_max(run.store, "T", 0);
    if (run.committed >= max) return;
    if (run.log == NULL)
        CHECK_OK(
            cmq_offset_journal_create(run.fs, run.root, &run.basis, atomic_load(&kit_now_ms), is_sync(), &run.log));
    run.committed += 1 + (int64_t)cmq_test_random_below((uint64_t)(max - run.committed));
    const cmq_offset_journal_entry entry = {.topic = kit_slice("T"), .offset = run.committed};
    uint64_t end;
    const cmq_status status = cmq_offset_journal_append(run.log, kit_slice("g"), &entry, 1, &end);
    if (status == CMQ_AGAIN) {
        persist();
        return;
    }
    CHECK_OK(status);
    if (!is_sync()) return;
    CHECK_OK(cmq_offset_journal_wait(run.log, end));
    run.expected.acknowledged = run.committed;
}

/* ---- images ---- */

static void take_image(void *context, const cmq_twin_call *call)
{
    (void)context;
    (void)call;
    if (run.images_left == 0 || run.pending_count == PENDING_MAX || cmq_test_random_below(15) != 0) return;
    image *into = &run.pending[run.pending_count++];
    snprintf(into->path, sizeof into->path, "%.3000s/image-%" PRIu64, run.directory, run.number++);
    cmq_file_twin_crash_image(run.twin, into->path);
    into->expected = run.expected;
    run.images_left--;
}

/* After a power loss. */
static void check_image(const image *of)
{
    cmq_store_options options = run.options;
    cmq_store *store;
    cmq_offset_journal_basis basis;
    int64_t json;
    options.path = of->path;
    options.fs = NULL;
    CHECK_OK(cmq_store_open(&store, &options));
    const int64_t max = kit_max(store, "T", 0), raw = find_progress(cmq_fs_posix(), of->path, &basis, &json),
                  progress = raw < max ? raw : max;
    if (max < of->expected.appended) violated("messages were lost", max, of->expected.appended);
    if (json > max) violated("the JSON is past the queue's end", json, max);
    if (is_sync() && raw > max) violated("the journal is past the queue's end", raw, max);
    if (is_sync() && progress < of->expected.acknowledged)
        violated("an acknowledged commit is lost", progress, of->expected.acknowledged);
    if (progress < of->expected.written) violated("progress is before the JSON", progress, of->expected.written);
    kit_close(store);
}

static void check_images(void)
{
    for (uint32_t i = 0; i < run.pending_count; i++) {
        if (!run.violated) check_image(&run.pending[i]);
        if (!run.violated) kit_remove_tree(run.pending[i].path);
    }
    run.pending_count = 0;
}

/* ---- work ---- */

static void append(void)
{
    const int count = 1 + (int)cmq_test_random_below(8);
    for (int i = 0; i < count; i++) kit_append(run.store, "T", 0, "body", NULL, NULL);
    if (is_sync()) run.expected.appended = kit_max(run.store, "T", 0);
}

/* A writer's end: in order, or killed; in between perhaps a broker that knows nothing of the journal. Then the next
 * opening. */
static void reopen(void)
{
    const bool clean = cmq_test_random_below(3) == 0, java = cmq_test_random_below(3) == 0;
    int64_t json, must_be = run.committed;
    if (clean) {
        persist();
        if (run.log != NULL) CHECK_OK(cmq_offset_journal_remove(run.log));
        CHECK_OK(cmq_store_close(run.store));
    } else {
        cmq_store_abandon(run.store);
    }
    cmq_offset_journal_close(run.log);
    run.log = NULL;
    if (java) {
        load_json(run.fs, run.root, &run.basis, &json);
        must_be = (int64_t)cmq_test_random_below((uint64_t)json + 1);   /* on, back, or as it was */
        run.expected.acknowledged = run.expected.written = 0;           /* while it writes, either */
        put_json(run.fs, run.root, must_be, &run.basis);
    }
    CHECK_OK(cmq_store_open(&run.store, &run.options));
    const int64_t found = find_progress(run.fs, run.root, &run.basis, &json);
    if (found != must_be)
        violated(java ? "a Java broker's progress was overruled" : "a kill lost a commit", found, must_be);
    run.committed = found;
    persist();
    CHECK_OK(cmq_offset_journal_forget(run.fs, run.root));
}

static void work(void)
{
    const uint64_t dice = cmq_test_random_below(100);
    if (dice < 35) append();
    else if (dice < 80) commit();
    else if (dice < 88) persist();
    else if (dice < 94) CHECK_OK(cmq_store_maintain(run.store, cmq_test_random_below(2) == 0));
    else reopen();
}

static bool run_session(void)
{
    snprintf(run.root, sizeof run.root, "%.3000s/store-%" PRIu64, run.directory, run.number++);
    CHECK_OK(cmq_fs_make_directory(cmq_fs_posix(), run.root));
    run.twin = cmq_file_twin_create(run.root, cmq_test_random());
    cmq_file_twin_ignore_syncs(run.twin, run.ignored_syncs);
    run.fs = cmq_file_twin_fs(run.twin);
    run.options = kit_options(run.root);
    run.options.fs = run.fs;
    run.options.flush = cmq_test_random_below(2) == 0 ? CMQ_FLUSH_SYNC : CMQ_FLUSH_ASYNC;
    run.basis = (cmq_offset_journal_basis){0};
    run.committed = 0;
    run.expected = (expected){0};
    CHECK_OK(cmq_store_open(&run.store, &run.options));
    kit_append(run.store, "T", 0, "first", NULL, NULL);
    cmq_file_twin_on_call(run.twin, 0, take_image, NULL);
    for (int i = 0; i < 60 && !run.violated && run.images_left > 0; i++) {
        work();
        check_images();
    }
    cmq_file_twin_on_call(run.twin, 0, NULL, NULL);
    cmq_offset_journal_close(run.log);
    run.log = NULL;
    cmq_store_abandon(run.store);
    cmq_file_twin_close(run.twin);
    if (!run.violated) kit_remove_tree(run.root);
    return !run.violated;
}

static void begin(uint64_t images)
{
    memset(&run, 0, sizeof run);
    run.directory = kit_directory();
    run.images_left = images;
    run.ordered = true;
    kit_set_clock();
}

static void progress_never_is_ahead_of_the_log(void)
{
    begin(kit_amount("CMQ_CRASH_IMAGES", 600, 100000));
    while (run.images_left > 0)
        if (!run_session()) cmq_test_fail(__FILE__, __LINE__, "%s", run.why);
    printf("progress: %" PRIu64 " images and stores, seed %" PRIu64 "\n", run.number, cmq_test_seed());
}

/* The checks' own proof. */
static void without_order_or_syncs_it_fails(void)
{
    begin(4000);
    run.ordered = false;
    while (run.images_left > 0 && run_session()) {}
    CHECK(run.violated);
    printf("without a flush before the JSON: %s\n", run.why);
    begin(4000);
    run.ignored_syncs = CMQ_TWIN_BIT(CMQ_TWIN_SYNC);
    while (run.images_left > 0 && run_session()) {}
    CHECK(run.violated);
    printf("without fdatasync: %s\n", run.why);
}

CMQ_TEST_MAIN(CMQ_TEST(progress_never_is_ahead_of_the_log), CMQ_TEST(without_order_or_syncs_it_fails))
