/* Tests csrc/store/log/cmq_log.c and cmq_queue_file.c on overlayfs, as containers have it. Such a file, opened for
 * reading while it lies in the lower layer, goes on showing the lower layer's bytes after somebody has opened it for
 * writing, which copies it up.
 *
 * Skipped where this process may not mount.
 */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>

#include "base/cmq_hash.h"
#include "store/queue/cmq_queue.h"
#include "support/cmq_store_kit.h"

#define UNITS 5000   /* so many are scanned in a map */

static const char *base;
static bool may_mount;

static cmq_store_options options_of(const char *root, cmq_flush_mode flush)
{
    cmq_store_options options = kit_options(root);
    options.segment_bytes = 4 << 20;
    options.queue_file_bytes = 2 * UNITS * CMQ_UNIT_BYTES;
    options.flush = flush;
    return options;
}

static void append(cmq_store *store, uint32_t count, const char *body, const char *tag)
{
    cmq_appended appended;
    const cmq_append batch = {.common = {.topic = kit_slice("T")},
                              .count = count,
                              .bodies = {.kind = CMQ_COLUMN_ONE, .one = kit_slice(body)},
                              .tags = {.kind = CMQ_COLUMN_ONE, .one = kit_slice(tag)},
                              .keys = {.kind = CMQ_COLUMN_ONE, .one = kit_slice(tag)}};
    CHECK_OK(cmq_store_append(store, &batch, &appended));
    CHECK_INT(appended.count, count);
}

/* A store in the lower layer; the path of the same in the overlay. */
static const char *start(cmq_flush_mode flush, bool clean)
{
    static char root[CMQ_PATH_BYTES], layers[3 * CMQ_PATH_BYTES];
    static const char *const names[] = {"lower", "upper", "work", "merged"};
    base = kit_directory();
    kit_set_clock();
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        CHECK_OK(cmq_fs_make_directory(cmq_fs_posix(), kit_path(base, names[i])));
    const cmq_store_options options = options_of(kit_path(base, "lower/store"), flush);
    cmq_store *store = kit_open(&options);
    append(store, UNITS, "old", "a");
    if (clean) kit_close(store);
    else cmq_store_abandon(store);
    snprintf(layers, sizeof layers, "lowerdir=%s,upperdir=%s,workdir=%s", kit_path(base, "lower"),
             kit_path(base, "upper"), kit_path(base, "work"));
    may_mount = mount("overlay", kit_path(base, "merged"), "overlay", 0, layers) == 0;
    if (!may_mount) printf("skipped: no overlay can be mounted here (%s)\n", strerror(errno));
    CHECK_OK(cmq_path_join(root, base, "merged/store"));
    return root;
}

static void end(void) { CHECK(umount2(kit_path(base, "merged"), MNT_DETACH) == 0); }

static int64_t count_of(cmq_store *store, const char *tag)
{
    const cmq_slice topic = kit_slice("T"), wanted = kit_slice(tag);
    const cmq_read_options options = {.topics = &topic, .topic_count = 1, .tags = &wanted, .tag_count = 1};
    cmq_reader *reader;
    kit_found *found = kit_found_make(KIT_FOUND_MAX);
    int64_t count = 0;
    bool at_end = false;
    CHECK_OK(cmq_reader_open(store, &options, &reader));
    for (int idle = 0; !at_end && idle < 2;) {
        CHECK_OK(cmq_reader_next(reader, &found->batch, &at_end));
        idle = found->batch.count == 0 ? idle + 1 : 0;
        count += found->batch.count;
        cmq_found_batch_release(&found->batch);
    }
    cmq_reader_close(reader);
    kit_found_free(found);
    return count;
}

/* Units that match, by one scan of the mapped file. */
static int64_t scanned(cmq_store *store, const char *tag)
{
    static cmq_unit units[2 * UNITS];
    const uint32_t hash = cmq_jhash(kit_slice(tag));
    cmq_queue *queue = cmq_queues_find(cmq_store_queues(store), kit_slice("T"), 0);
    uint32_t count;
    int64_t next;
    CHECK_OK(
        cmq_queue_scan(queue, 0, cmq_store_confirmed(store), &hash, 1, UINT64_MAX, units, 2 * UNITS, &count, &next));
    CHECK_INT(next, kit_max(store, "T", 0));
    return count;
}

static void check_writer(cmq_flush_mode flush, bool clean)
{
    const char *root = start(flush, clean);
    if (!may_mount) return;
    const cmq_store_options options = options_of(root, flush);
    cmq_store *store = kit_open(&options);
    CHECK_INT(scanned(store, "a"), UNITS);   /* from here on the queue's file is mapped */
    append(store, 100, "new", "b");
    CHECK_OK(cmq_store_flush(store));
    CHECK_INT(count_of(store, "b"), 100);
    CHECK_INT(scanned(store, "b"), 100);
    CHECK_INT(count_of(store, "a"), UNITS);
    kit_close(store);
    store = kit_open(&options);
    CHECK_INT(count_of(store, "b"), 100);
    kit_close(store);
    end();
}

static void sync_writer_reads_its_appends(void) { check_writer(CMQ_FLUSH_SYNC, true); }

static void async_writer_reads_its_appends(void) { check_writer(CMQ_FLUSH_ASYNC, true); }

static void recovered_writer_reads_its_appends(void)
{
    check_writer(CMQ_FLUSH_SYNC, false);
    check_writer(CMQ_FLUSH_ASYNC, false);
}

int main(int argc, char **argv)
{
    static const cmq_test_case cases[] = {CMQ_TEST(sync_writer_reads_its_appends),
                                          CMQ_TEST(async_writer_reads_its_appends),
                                          CMQ_TEST(recovered_writer_reads_its_appends)};
    /* A namespace of its own: no mount outlives the process. */
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0) {
        printf("skipped: this user may not mount (%s)\n", strerror(errno));
        return 77;
    }
    return cmq_test_run(argc, argv, cases, sizeof cases / sizeof cases[0]);
}
