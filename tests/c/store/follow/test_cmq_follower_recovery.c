/* Tests csrc/store/follow/cmq_follower.c: read-only stores while a new writer recovers, observed at each write, punch
 * and removal of its recovery.
 *
 * Threads: yes
 */
#include <stdio.h>
#include <stdlib.h>

#include "store/read/cmq_key_places.h"
#include "support/cmq_observed_fs.h"
#include "support/cmq_store_kit.h"
#include "support/cmq_view_kit.h"

/* ---- reading while a new writer recovers ---- */

/* More messages than a view keeps units of in memory: it reads the files. */
enum { OBSERVED = 160000, OBSERVED_LOT = 4000 };

static cmq_store *observer;
static uint32_t observations;

static int64_t count_messages(cmq_store *store, const cmq_slice *tag)
{
    const cmq_slice topic = kit_slice("T");
    const cmq_read_options options = {.topics = &topic, .topic_count = 1, .tags = tag, .tag_count = tag != NULL};
    kit_found *found = kit_found_make(KIT_FOUND_MAX);
    cmq_reader *reader;
    int64_t seen = 0;
    bool end = false;
    CHECK_OK(cmq_reader_open(store, &options, &reader));
    for (int idle = 0; !end && idle < 2;) {
        CHECK_OK(cmq_reader_next(reader, &found->batch, &end));
        idle = found->batch.count == 0 ? idle + 1 : 0;
        seen += found->batch.count;
        cmq_found_batch_release(&found->batch);
    }
    cmq_reader_close(reader);
    kit_found_free(found);
    return seen;
}

/* All messages, and those of one tag: nothing may be missing, whatever the recovery has done so far. */
static void observe(void)
{
    const cmq_slice tag = kit_slice("t1");
    if (observer == NULL) return;
    observations++;
    CHECK_INT(count_messages(observer, &tag), OBSERVED / 2);
    CHECK_INT(count_messages(observer, NULL), OBSERVED);
}

static void append_lot(cmq_store *store, const char *tag)
{
    static const uint8_t body[8];
    const cmq_append append = {
        .common = {.topic = kit_slice("T")},
        .count = OBSERVED_LOT,
        .bodies = {.kind = CMQ_COLUMN_ONE, .one = {.data = body, .bytes = sizeof body}},
        .tags = {.kind = CMQ_COLUMN_ONE, .one = kit_slice(tag)},
    };
    cmq_appended appended;
    CHECK_OK(cmq_store_append(store, &append, &appended));
    CHECK_INT(appended.count, OBSERVED_LOT);
}

/* The queue's files have everything; the durable point is behind the first messages (way 0), or of before them (way
 * 1). */
static void a_view_stays_whole_while_a_writer_recovers(void)
{
    for (int way = 0; way < 2; way++) {
        view_kit_start();
        cmq_store_options options = kit_options(view_root);
        options.segment_bytes = 8 << 20;
        options.queue_file_bytes = 100000 * CMQ_UNIT_BYTES;
        options.durable_point_bytes = options.durable_point_ms = INT64_C(1) << 40;
        cmq_store *writer = kit_open(&options);
        cmq_store_options reading = options;
        reading.read_only = true;
        cmq_store *view = kit_open(&reading);
        for (int i = 0; i < OBSERVED / OBSERVED_LOT; i++) {
            append_lot(writer, i % 2 == 1 ? "t1" : "t0");
            if (i == 0 && way == 0) CHECK_OK(cmq_store_maintain(writer, true));
            kit_now_ms += 2000;   /* the files are due */
            CHECK_OK(cmq_store_maintain(writer, false));
            CHECK_OK(cmq_store_refresh(view));
        }
        observer = view;
        observations = 0;
        observe();
        cmq_store_abandon(writer);
        options.fs = cmq_observed_fs(observe, false);
        writer = kit_open(&options);
        CHECK(observations > 1);   /* the recovery wrote, punched or removed something */
        CHECK_OK(cmq_store_refresh(observer));
        observe();
        kit_close(observer);
        observer = NULL;
        kit_close(writer);
    }
}

/* ---- keys while a new writer recovers ---- */

enum { KEYED = 300 };   /* five files of the index */

/* Does a scan by key look at this place? */
static bool may_be_scanned(const char *key, int64_t phy)
{
    cmq_gap *gaps;
    uint32_t count;
    cmq_places places = {0};
    CHECK_OK(cmq_store_index_gaps(observer, cmq_store_confirmed(observer), &gaps, &count));
    for (cmq_index_cursor cursor = {0}; !cursor.done;)
        CHECK_OK(cmq_store_key_places(observer, kit_slice("T"), kit_slice(key), 0, INT64_MAX, &cursor, &places));
    bool found = false;
    for (uint32_t i = 0; i < count; i++) found = found || (phy >= gaps[i].from && phy < gaps[i].end);
    for (uint32_t i = 0; i < places.count; i++) found = found || places.phys[i] == phy;
    free(gaps);
    cmq_places_free(&places);
    return found;
}

static void find_all_keys(void)
{
    if (observer == NULL) return;
    observations++;
    kit_found *found = kit_found_make(4);
    for (int i = 0; i < KEYED; i += 7) {
        char key[16];
        snprintf(key, sizeof key, "k%d", i);
        CHECK_OK(cmq_store_find_key(observer, kit_slice("T"), kit_slice(key), 0, INT64_MAX, &found->batch));
        CHECK_INT(found->batch.count, 1);
        const int64_t phy = found->items[0].physical_offset;
        cmq_found_batch_release(&found->batch);
        CHECK(may_be_scanned(key, phy));
    }
    kit_found_free(found);
}

/* The last durable point lies in the middle (way 0), or there is none (way 1). The view followed the writer that was
 * killed. */
static void a_view_finds_keys_while_a_writer_recovers(void)
{
    for (int way = 0; way < 2; way++) {
        view_kit_start();
        cmq_store_options options = kit_options(view_root);
        options.durable_point_bytes = options.durable_point_ms = INT64_C(1) << 40;
        cmq_store *writer = kit_open(&options);
        cmq_store_options reading = options;
        reading.read_only = true;
        cmq_store *view = kit_open(&reading);
        for (int i = 0; i < KEYED; i++) {
            char key[16];
            snprintf(key, sizeof key, "k%d", i);
            kit_append(writer, "T", 0, "body", NULL, key);
            if (i == KEYED / 2 && way == 0) CHECK_OK(cmq_store_maintain(writer, true));
        }
        CHECK_OK(cmq_store_refresh(view));
        observer = view;
        observations = 0;
        find_all_keys();
        cmq_store_abandon(writer);
        find_all_keys();
        options.fs = cmq_observed_fs(find_all_keys, false);
        writer = kit_open(&options);
        CHECK(observations > 2);
        find_all_keys();
        kit_close(observer);
        observer = NULL;
        kit_close(writer);
    }
}

CMQ_TEST_MAIN(CMQ_TEST(a_view_stays_whole_while_a_writer_recovers), CMQ_TEST(a_view_finds_keys_while_a_writer_recovers))
