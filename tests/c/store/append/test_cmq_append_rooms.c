/* Tests that room made in many queues for one append stays until the units are put, also where rings are short of
 * memory and cold ones are freed.
 */
#include "store/cmq_store_internal.h"
#include "store/queue/cmq_queue_internal.h"
#include "support/cmq_store_kit.h"

#define QUEUES 200u

static void appends_to_many_queues_beside_full_rings(void)
{
    char root[CMQ_PATH_BYTES];
    CHECK_OK(cmq_path_join(root, kit_directory(), "store"));
    kit_set_clock();
    cmq_store *store = kit_open_at(root);
    /* More than the soft limit: from here on each queue that needs a ring looks for cold ones. */
    cmq_tailring *ring = cmq_tail_pool_take(store->queues->pool, 5, CMQ_TAIL_UNITS_MAX);
    CHECK(ring != NULL && cmq_tail_pool_used_bytes(store->queues->pool) > CMQ_TAIL_BYTES_SOFT);
    int32_t ids[QUEUES];
    for (uint32_t i = 0; i < QUEUES; i++) ids[i] = (int32_t)i;
    for (int round = 0; round < 3; round++) {
        cmq_append append = {.count = QUEUES, .queue_ids = ids};
        append.common.topic = kit_slice("A");
        append.common.store_host = append.common.born_host =
            (cmq_record_host){.address = {127, 0, 0, 1}, .port = 1};
        append.bodies = (cmq_column){.kind = CMQ_COLUMN_ONE, .one = kit_slice("body")};
        cmq_appended appended;
        CHECK_OK(cmq_store_append(store, &append, &appended));
        CHECK_INT(appended.count, QUEUES);
    }
    for (uint32_t i = 0; i < QUEUES; i++)
        CHECK_INT(cmq_queue_next(cmq_queues_find(store->queues, kit_slice("A"), ids[i])), 3);
    cmq_tail_pool_give(store->queues->pool, ring);
    kit_close(store);
}

CMQ_TEST_MAIN(CMQ_TEST(appends_to_many_queues_beside_full_rings))
