/* test_cmq_index_crash: index, durable point, checkpoint and abort over a file system that forgets what was not synced.
 *
 * The promise: after a power loss at any call, the newest durable point that loads fits the index it names; a rewind to
 * it gives exactly the entries of that time, and putting the rest again gives what there was.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cmq_hash.h"
#include "store/index/cmq_index.h"
#include "store/marks/cmq_abort.h"
#include "store/marks/cmq_checkpoint.h"
#include "store/marks/cmq_durable_point.h"
#include "support/cmq_file_twin.h"
#include "support/cmq_test.h"

#define SLOTS 300
#define ENTRIES 500
#define KEYS_MAX 6000
#define BEGIN_MS 1700000000000

static _Atomic int64_t clock_ms = BEGIN_MS;
static uint32_t put_count, acknowledged;   /* keys put; keys below the newest stored point */

/* Key number `i`, the same in every life. */
static cmq_index_key key_of(uint32_t i)
{
    return (cmq_index_key){.phy = (int64_t)i * 10, .store_ms = BEGIN_MS + i, .hash = 1 + (i * 2654435761u >> 7) % 700};
}

static cmq_index *open_index(cmq_fs *fs, const char *root)
{
    const cmq_index_options options = {
        .fs = fs, .root = root, .slots = SLOTS, .entries = ENTRIES, .clock = cmq_clock_manual(&clock_ms)};
    cmq_index *index;
    CHECK_OK(cmq_index_create(&index, &options));
    CHECK_OK(cmq_index_load(index));
    return index;
}

static void put_to(cmq_index *index, uint32_t end)
{
    for (uint32_t at = put_count; at < end; at++) {
        const cmq_index_key key = key_of(at);
        CHECK_OK(cmq_index_make_room(index, 1));
        cmq_index_put(index, &key, 1);
    }
    put_count = end;
}

/* All keys below `end` are there, in order, and the chains are whole. */
static void check_index(cmq_index *index, const char *root, uint32_t end)
{
    uint32_t at = 0;
    for (uint32_t i = 0; i < cmq_index_files(index); i++) {
        cmq_index_file_info info;
        CHECK_OK(cmq_index_file_at(index, i, &info));
        char path[CMQ_PATH_BYTES];
        snprintf(path, sizeof path, "%s/index/%017lld", root, (long long)info.name);
        bool fits;
        CHECK_OK(cmq_index_prove_split(cmq_fs_posix(), path, SLOTS, ENTRIES, true, &fits));
        CHECK(fits);
        for (int32_t entry = 1; entry < info.count; entry++, at++) {
            cmq_index_key key;
            CHECK_OK(cmq_index_entry_at(index, i, entry, &key));
            CHECK_INT(key.phy, key_of(at).phy);
            CHECK_INT(key.hash, key_of(at).hash);
        }
    }
    CHECK_INT(at, end);
}

static void recover_image(const char *image)
{
    cmq_fs *fs = cmq_fs_posix();
    cmq_durable_point point;
    bool found, aborted;
    CHECK_OK(cmq_durable_point_load(fs, image, &point, &found));
    CHECK_OK(cmq_abort_present(fs, image, &aborted));
    CHECK(aborted || !found);   /* it is made durable before anything else */
    CHECK(found || acknowledged == 0);
    cmq_checkpoint checkpoint;
    CHECK_OK(cmq_checkpoint_load(fs, image, &checkpoint));
    cmq_index *index = open_index(fs, image);
    const uint32_t from = found ? (uint32_t)(point.log_end / 10) : 0, before = put_count;
    if (found) {
        CHECK(from >= acknowledged && from <= put_count);
        CHECK(checkpoint.index_ms >= point.store_ms - 10000 || checkpoint.index_ms == 0);
        CHECK_OK(cmq_index_rewind(index, &point.index, false));
    } else {
        int64_t rebuild_from;
        CHECK_OK(cmq_index_drop_newer(index, 0, &rebuild_from));
        CHECK_INT(rebuild_from, 0);
        while (cmq_index_files(index) > 0) CHECK_OK(cmq_index_rewind(index, &(cmq_index_position){0}, false));
    }
    check_index(index, image, from);
    put_count = from;
    put_to(index, from + 700);
    check_index(index, image, put_count);
    put_count = before;
    cmq_index_destroy(index);
}

typedef struct crash_plan {
    cmq_file_twin *twin;
    const char *image;
    uint32_t images;
} crash_plan;

static void crash_here(void *context, const cmq_twin_call *call)
{
    crash_plan *plan = context;
    (void)call;
    if (cmq_test_random_below(4) != 0) return;
    cmq_file_twin_crash_image(plan->twin, plan->image);
    recover_image(plan->image);
    plan->images++;
}

static void store_point(cmq_fs *fs, const char *root, cmq_index *index, cmq_durable_point_file *points,
                        cmq_checkpoint *checkpoint)
{
    cmq_durable_point point = {.log_end = (int64_t)put_count * 10, .store_ms = BEGIN_MS + put_count};
    int64_t full_end_ms;
    cmq_index_at(index, &point.index);
    CHECK_OK(cmq_index_flush(index, &full_end_ms));
    checkpoint->index_ms = full_end_ms;
    CHECK_OK(cmq_checkpoint_store(fs, root, checkpoint));
    point.checkpoint_crc = cmq_checkpoint_crc(checkpoint);
    CHECK_OK(cmq_durable_point_store(points, &point));
    acknowledged = put_count;
}

/* One life in a new directory below `base`. */
static uint32_t work_and_crash(const char *base, int life, unsigned ignored_syncs)
{
    put_count = acknowledged = 0;
    char root[CMQ_PATH_BYTES], image[CMQ_PATH_BYTES];
    snprintf(root, sizeof root, "%s/root-%d", base, life);
    snprintf(image, sizeof image, "%s/image", base);
    CHECK_OK(cmq_fs_make_directory(cmq_fs_posix(), root));
    crash_plan plan = {.twin = cmq_file_twin_create(root, cmq_test_random()), .image = image};
    cmq_file_twin_ignore_syncs(plan.twin, ignored_syncs);
    cmq_file_twin_on_call(plan.twin, 0, crash_here, &plan);
    cmq_fs *fs = cmq_file_twin_fs(plan.twin);
    CHECK_OK(cmq_abort_create(fs, root, 1));
    cmq_durable_point_file *points;
    CHECK_OK(cmq_durable_point_open(fs, root, &points));
    cmq_index *index = open_index(fs, root);
    cmq_checkpoint checkpoint = {0};
    for (int step = 0; step < 12; step++) {
        put_to(index, put_count + (uint32_t)cmq_test_random_below(400));
        atomic_fetch_add(&clock_ms, 5);
        if (cmq_test_random_below(2) == 0) store_point(fs, root, index, points, &checkpoint);
        crash_here(&plan, NULL);
    }
    cmq_file_twin_on_call(plan.twin, 0, NULL, NULL);
    cmq_index_destroy(index);
    cmq_durable_point_close(points);
    CHECK_OK(cmq_abort_remove(fs, root));
    cmq_file_twin_close(plan.twin);
    return plan.images;
}

static void power_loss_at_any_call(void)
{
    const char *base = cmq_test_directory();
    uint32_t images = 0;
    for (int life = 0; life < 6; life++) images += work_and_crash(base, life, 0);
    CHECK(images > 20);
}

/* The control: when syncs do nothing the check above must find it. In a child, because what it finds ends the process.
 * */
static void without_syncs_it_fails(void)
{
    static const unsigned left_out[] = {CMQ_TWIN_FILE_SYNCS, CMQ_TWIN_BIT(CMQ_TWIN_SYNC_DIRECTORY)};
    for (size_t i = 0; i < 2; i++) {
        const char *base = cmq_test_directory();   /* the parent's: it is removed whatever happens */
        fflush(NULL);
        const pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            if (freopen("/dev/null", "w", stderr) == NULL) _exit(0);
            for (int life = 0; life < 20; life++) (void)work_and_crash(base, life, left_out[i]);
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) != 0);
    }
}

CMQ_TEST_MAIN(CMQ_TEST(power_loss_at_any_call), CMQ_TEST(without_syncs_it_fails))
