/* cmq_select: the units of a queue that a filter lets pass: by the tag scan, or by an SQL92 expression over the
 * properties of their records.
 *
 * An expression is evaluated where the record lies; nothing is copied or allocated. A request looks at as many units as
 * one by tags, fewer where its expression or their properties are long; at one record it always looks.
 *
 * A record that cannot be read passes: the answer's own look at it says why.
 *
 * Threads: the loop's.
 */
#include "broker/loop/cmq_broker_internal.h"

#include <stdlib.h>

#include "base/cmq_name_hash.h"
#include "store/cmq_store_internal.h"
#include "store/record/cmq_record.h"

#define READ_UNITS 64u
#define LOOK_STEPS 8u      /* for reaching a record and its properties, beside the expression's own */

static void spend(uint32_t *steps_left, uint64_t steps)
{
    *steps_left -= steps < *steps_left ? (uint32_t)steps : *steps_left;
}

/* As cmq_select_passes; takes the steps from those of the request, too. */
static bool passes(cmq_broker_loop *l, cmq_transfer_place *place, cmq_queue *queue, const cmq_unit *unit,
                   const cmq_selector *selector, uint32_t *steps_left)
{
    const uint8_t *record;
    if (unit->phy < 0 || unit->bytes < CMQ_RECORD_BYTES_MIN) return true;
    if (cmq_transfer_reach(l, place, queue, unit, &record) != CMQ_OK) return true;
    const cmq_slice properties = cmq_record_properties(record, (uint32_t)unit->bytes);
    uint64_t steps;
    const cmq_selector_answer answer = cmq_selector_evaluate_counted(selector, properties, &steps);
    spend(steps_left, steps + LOOK_STEPS);
    spend(&l->steps_left, steps + LOOK_STEPS);
    return answer == CMQ_SELECTOR_TRUE;
}

bool cmq_select_passes(cmq_broker_loop *l, cmq_transfer_place *place, cmq_queue *queue, const cmq_unit *unit,
                       const cmq_selector *selector)
{
    uint32_t steps = CMQ_STEPS_PER_REQUEST;
    return passes(l, place, queue, unit, selector, &steps);
}

static cmq_status by_selector(cmq_broker_loop *l, cmq_queue *queue, const cmq_selector *selector, int64_t from,
                              int64_t confirmed, uint32_t wanted, uint32_t *steps, uint32_t *found, int64_t *next)
{
    cmq_transfer_place place = {0};
    cmq_status status = CMQ_OK;
    uint32_t count = 1;
    *next = from;
    for (uint64_t left = cmq_transfer_examine(wanted); left > 0 && count > 0 && *found < wanted && *steps > 0;
         left -= count) {
        cmq_unit units[READ_UNITS];
        int64_t behind = *next;
        status = cmq_queue_read(queue, *next, confirmed, units, left < READ_UNITS ? (uint32_t)left : READ_UNITS, &count,
                                &behind);
        if (status != CMQ_OK) break;
        for (uint32_t i = 0; i < count && *found < wanted && *steps > 0; i++) {
            *next = units[i].offset + units[i].count;
            if (passes(l, &place, queue, &units[i], selector, steps)) l->units[(*found)++] = units[i];
        }
        if (*found < wanted && *steps > 0) *next = behind;
    }
    cmq_transfer_leave(&place);
    return *found > 0 || *next > from ? CMQ_OK : status;
}

cmq_status cmq_select_units(cmq_broker_loop *l, cmq_queue *queue, const cmq_filter *filter, int64_t from,
                            int64_t confirmed, uint32_t wanted, uint32_t *steps, uint32_t *found, int64_t *next)
{
    uint32_t hash_count = 0;
    const uint32_t *hashes = filter != NULL ? cmq_filter_hashes(filter, &hash_count) : NULL;
    const cmq_selector *selector = filter != NULL ? cmq_filter_selector(filter) : NULL;
    cmq_status status = CMQ_OK;
    *found = 0;
    *next = cmq_queue_max(queue, confirmed);
    if (selector != NULL)
        status = by_selector(l, queue, selector, from, confirmed, wanted, steps, found, next);
    else if (filter == NULL || hash_count > 0 || cmq_filter_is_all(filter))
        status = cmq_queue_scan(queue, from, confirmed, hashes, hash_count, cmq_transfer_examine(wanted), l->units,
                                wanted, found, next);
    return status == CMQ_OK ? cmq_transfer_check(l->units, found, next) : status;
}

/* ---- expressions of requests ---- */

cmq_status cmq_select_filter(cmq_broker_loop *l, cmq_slice expression, cmq_filter **filter_out)
{
    cmq_filter **kept = &l->selected[cmq_name_hash(expression) % CMQ_SELECTED_FILTERS];
    if (*kept == NULL || !cmq_slice_equal(cmq_selector_text(cmq_filter_selector(*kept)), expression)) {
        cmq_filter *made;
        const cmq_status status = cmq_filter_select(expression, &made);
        if (status != CMQ_OK) return status;
        cmq_filter_release(*kept);
        *kept = made;
    }
    *filter_out = cmq_filter_keep(*kept);
    return CMQ_OK;
}

void cmq_select_forget(cmq_broker_loop *l)
{
    for (uint32_t i = 0; i < CMQ_SELECTED_FILTERS; i++) cmq_filter_release(l->selected[i]);
}
