/* Tests csrc/export/cmq_scan_keys.c: a search for keys lets its caller in while it reads the index, the log where the
 * index is gone, and the places found.
 */
#include "export/cmq_scan_internal.h"
#include "support/cmq_store_kit.h"

#define MESSAGES 1200
#define WANTED 901   /* in queue 1, at offset 450 */
#define PASSED_MAX 30
#define PAUSES_MIN (MESSAGES / 256 + WANTED / 2 / PASSED_MAX)

static const cmq_scan_column offsets[] = {{.kind = CMQ_SCAN_QUEUE_OFFSET, .name = "offset"}};

/* Every message has the key; the range has one of them. */
static void search(cmq_store *store)
{
    const cmq_slice key = kit_slice("k");
    const cmq_read_start range = {
        .topic = kit_slice("A"), .queue_id = 1, .offset = WANTED / 2, .has_end = true, .end = WANTED / 2 + 1};
    const cmq_scan_options options = {.columns = offsets,
                                      .column_count = 1,
                                      .keys = &key,
                                      .key_count = 1,
                                      .read = {.starts = &range, .start_count = 1, .only_starts = true}};
    cmq_scan *scan;
    struct ArrowArray batch;
    bool end;
    int pauses = 0;
    CHECK_OK(cmq_scan_open(store, &options, &scan));
    scan->passed_max = PASSED_MAX;
    cmq_status status = cmq_scan_next(scan, &batch, &end);
    for (; status == CMQ_AGAIN; status = cmq_scan_next(scan, &batch, &end)) pauses++;
    CHECK_OK(status);
    CHECK_INT(batch.length, 1);
    CHECK_INT(((const int64_t *)batch.children[0]->buffers[1])[0], WANTED / 2);
    CHECK(pauses >= PAUSES_MIN);
    batch.release(&batch);
    cmq_scan_close(scan);
}

static void searches_pause(void)
{
    char root[CMQ_PATH_BYTES];
    CHECK_OK(cmq_path_join(root, kit_directory(), "store"));
    kit_set_clock();
    cmq_store *store = kit_open_at(root);
    for (int i = 0; i < MESSAGES; i++) kit_append(store, "A", i % 2, "m", NULL, "k");
    search(store);
    kit_close(store);
    kit_remove_tree(kit_path(root, "index"));
    cmq_store_options options = kit_options(root);
    options.read_only = true;
    store = kit_open(&options);
    search(store);
    kit_close(store);
}

CMQ_TEST_MAIN(CMQ_TEST(searches_pause))
