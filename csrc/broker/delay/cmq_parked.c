/* cmq_parked: see cmq_parked.h. */
#include "broker/delay/cmq_parked.h"

cmq_status cmq_parked_read(cmq_store *store, int64_t phy, cmq_parked_record *record_out)
{
    record_out->batch = (cmq_found_batch){.items = &record_out->item, .capacity = 1};
    const cmq_status status = cmq_store_read_physical(store, phy, &record_out->batch);
    if (status != CMQ_OK) return status;
    const cmq_found *found = &record_out->item;
    return cmq_record_parse(found->record, found->record_bytes, found->physical_offset, 0, &record_out->view);
}

void cmq_parked_release(cmq_parked_record *record) { cmq_found_batch_release(&record->batch); }

bool cmq_parked_is_hopeless(cmq_status status)
{
    switch (status) {
    case CMQ_OK:
    case CMQ_AGAIN:
    case CMQ_ERR_IO:
    case CMQ_ERR_DISK_FULL:
    case CMQ_ERR_FENCED:
    case CMQ_ERR_MEMORY:
    case CMQ_ERR_LIMIT:
    case CMQ_ERR_PERMISSION:
    case CMQ_ERR_CLOSED: return false;
    default: return true;
    }
}
