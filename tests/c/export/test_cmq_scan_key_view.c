/* Tests csrc/export/cmq_scan_keys.c: scans by key of a view, opened before a new writer recovered the store or
 * while it did so, find each key whatever the recovery has done when they are read.
 */
#include <stdio.h>

#include "export/cmq_scan.h"
#include "support/cmq_observed_fs.h"
#include "support/cmq_store_kit.h"

enum { KEYED = 300, SCANS = 400 };   /* five files of the index */

static cmq_store *view;
static cmq_scan *before[SCANS], *at_last_look;   /* opened beside the first writer, and at the last look */
static int before_left, looks;

static cmq_scan *scan_by_key(void)
{
    static const cmq_scan_column offsets[] = {{.kind = CMQ_SCAN_QUEUE_OFFSET, .name = "offset"}};
    const cmq_slice topic = kit_slice("T"), key = kit_slice("k151");   /* in the index file that a recovery rewinds */
    const cmq_scan_options options = {.columns = offsets,
                                      .column_count = 1,
                                      .keys = &key,
                                      .key_count = 1,
                                      .read = {.topics = &topic, .topic_count = 1}};
    cmq_scan *scan;
    CHECK_OK(cmq_scan_open(view, &options, &scan));
    return scan;
}

static void check_finds_one(cmq_scan *scan)
{
    struct ArrowArray batch;
    bool end;
    cmq_status status = CMQ_AGAIN;
    while (status == CMQ_AGAIN) status = cmq_scan_next(scan, &batch, &end);
    CHECK_OK(status);
    CHECK(!end);
    CHECK_INT(batch.length, 1);
    batch.release(&batch);
    cmq_scan_close(scan);
}

static void look(void)
{
    looks++;
    CHECK(before_left > 0);
    check_finds_one(before[--before_left]);
    if (at_last_look != NULL) check_finds_one(at_last_look);
    at_last_look = scan_by_key();
}

static void scans_find_keys_while_a_writer_recovers(void)
{
    char root[CMQ_PATH_BYTES];
    CHECK_OK(cmq_path_join(root, kit_directory(), "store"));
    kit_set_clock();
    cmq_store_options options = kit_options(root);
    options.durable_point_bytes = options.durable_point_ms = INT64_C(1) << 40;
    cmq_store *writer = kit_open(&options);
    for (int i = 0; i < KEYED; i++) {
        char key[16];
        snprintf(key, sizeof key, "k%d", i);
        kit_append(writer, "T", 0, "body", NULL, key);
        if (i == KEYED / 2) CHECK_OK(cmq_store_maintain(writer, true));
    }
    cmq_store_options reading = options;
    reading.read_only = true;
    view = kit_open(&reading);
    while (before_left < SCANS) before[before_left++] = scan_by_key();
    cmq_store_abandon(writer);
    options.fs = cmq_observed_fs(look, true);
    writer = kit_open(&options);
    CHECK(looks > 2);
    (void)cmq_observed_fs(NULL, false);
    while (before_left > 0) look();
    check_finds_one(at_last_look);
    kit_close(view);
    kit_close(writer);
}

CMQ_TEST_MAIN(CMQ_TEST(scans_find_keys_while_a_writer_recovers))
