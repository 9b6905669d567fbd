/* cmq_parked: a record that waits in a system topic for its time, read by its queue's unit; for the delay levels and
 * the timers.
 *
 * Threads: any.
 */
#ifndef CMQ_PARKED_H
#define CMQ_PARKED_H

#include <stdbool.h>

#include "base/cmq_status.h"
#include "store/cmq_store.h"
#include "store/record/cmq_record.h"

typedef struct cmq_parked_record {
    cmq_found item;
    cmq_found_batch batch;
    cmq_record_view view;
} cmq_parked_record;

/* The record at `phy`. CMQ_ERR_CORRUPT, CMQ_ERR_OFFSET, CMQ_ERR_NOT_FOUND, CMQ_END: there is no such record, and there
 * will be none. Release it in any case. */
cmq_status CMQ_MUST_CHECK cmq_parked_read(cmq_store *store, int64_t phy, cmq_parked_record *record_out);
void cmq_parked_release(cmq_parked_record *record);

/* Is the failure, of reading or of delivering, about this message alone, so that the next one may do better? */
bool cmq_parked_is_hopeless(cmq_status status);

#endif
