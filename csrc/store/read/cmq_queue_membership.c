/* cmq_queue_membership: does a record's queue still have it? A deleted topic's records stay in the log and in the index
 * until they expire, and a re-created one starts at 0: records before a queue's first are not of that queue.
 *
 * Threads: any.
 */
#include "store/cmq_store_internal.h"

int64_t cmq_store_first_of_queue(cmq_store *store, cmq_queue *queue)
{
    cmq_unit unit;
    uint32_t count = 0;
    int64_t next;
    const cmq_status status =
        cmq_queue_read(queue, cmq_queue_min(queue), cmq_log_confirmed(store->log), &unit, 1, &count, &next);
    if (status != CMQ_OK) return 0;
    return count > 0 ? unit.phy : INT64_MAX;
}

cmq_queue *cmq_store_queue_of(cmq_store *store, const cmq_record_view *view)
{
    const int32_t transaction = view->sys_flag & CMQ_SYS_TRANSACTION_MASK;
    if (transaction != 0 && transaction != CMQ_SYS_TRANSACTION_COMMIT) return NULL;
    return cmq_queues_find(cmq_store_queues(store), view->topic, view->queue_id);
}

bool cmq_store_is_queued(cmq_store *store, const cmq_record_view *view)
{
    cmq_queue *queue = cmq_store_queue_of(store, view);
    return queue != NULL && view->physical_offset >= cmq_store_first_of_queue(store, queue);
}
