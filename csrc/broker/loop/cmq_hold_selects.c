/* cmq_hold_selects: the holds of a queue that wait for an SQL92 expression, and looks of arrivals. Part of cmq_hold.
 *
 * A list for each queue and expression, as for a tag; the first hold of each stands in one more list of the queue, by
 * which an arrival goes through the expressions. When a first hold ends, the next one of its list takes its place
 * there.
 */
#include "broker/loop/cmq_hold_internal.h"

#define FIRST_ONES CMQ_HOLD_PROGRAM_NONE   /* in place of an expression's number */
#define COMPARED_BITS 0x7FFFFFFFu
#define COMPARED_NONE UINT32_MAX

/* Enter a hold under its expression, and the first one of each among the queue's FIRST_ONES; under none on failure. */
cmq_status cmq_hold_selects_add(cmq_holds *holds, uint32_t queue, const cmq_filter *wakes, uint32_t number,
                                uint32_t conn_slot, cmq_hold_selects *of, cmq_hold_first_one *first)
{
    cmq_status status = cmq_hold_programs_keep(&holds->programs, wakes, conn_slot, &of->program);
    if (status != CMQ_OK) return status;
    *first = (cmq_hold_first_one){.link = CMQ_HOLD_TAG_NONE, .compared = COMPARED_NONE};
    status = cmq_hold_tags_add(&holds->selecting, queue, &of->program, 1, number, &of->link);
    const uint32_t there =
        status == CMQ_OK ? cmq_hold_tags_first(&holds->selecting, queue, of->program) : CMQ_HOLD_TAG_NONE;
    if (status == CMQ_OK && there == of->link) {
        const uint32_t hash = FIRST_ONES;
        status = cmq_hold_tags_add(&holds->selecting, queue, &hash, 1, number, &first->link);
        if (status != CMQ_OK) cmq_hold_tags_remove(&holds->selecting, of->link);
    } else if (status == CMQ_OK) {   /* this one may wait for a message that the others were compared with */
        cmq_hold_at(holds, cmq_hold_tags_hold(&holds->selecting, there))->more.first.compared = COMPARED_NONE;
    }
    if (status != CMQ_OK) cmq_hold_programs_drop(&holds->programs, of->program, conn_slot);
    return status;
}

void cmq_hold_selects_remove(cmq_holds *holds, const cmq_hold_kept *held)
{
    const cmq_hold_selects of = held->of.selects;
    const cmq_hold_first_one first = held->more.first;
    const uint32_t behind = cmq_hold_tags_next(&holds->selecting, of.link);
    if (first.link != CMQ_HOLD_TAG_NONE && behind != CMQ_HOLD_TAG_NONE) {
        const uint32_t by = cmq_hold_tags_hold(&holds->selecting, behind);
        cmq_hold_at(holds, by)->more.first = first;
        cmq_hold_tags_set_hold(&holds->selecting, first.link, by);
    } else if (first.link != CMQ_HOLD_TAG_NONE) {
        cmq_hold_tags_remove(&holds->selecting, first.link);
    }
    cmq_hold_tags_remove(&holds->selecting, of.link);
    cmq_hold_programs_drop(&holds->programs, of.program, held->conn_slot);
}

/* Of the list of a tag or an expression, the first hold that begins no later than at `offset`. */
static cmq_hold first_until(const cmq_holds *holds, const cmq_hold_tags *tags, cmq_hold_queue queue, uint32_t hash,
                            int64_t offset)
{
    const cmq_hold_anchor *a = &holds->anchors[queue];
    uint32_t number = cmq_hold_tags_first(tags, queue, hash);
    while (number != CMQ_HOLD_TAG_NONE && cmq_hold_at(holds, cmq_hold_tags_hold(tags, number))->from > offset)
        number = a->earlier > 0 ? cmq_hold_tags_next(tags, number) : CMQ_HOLD_TAG_NONE;
    return number == CMQ_HOLD_TAG_NONE ? CMQ_HOLD_NONE : cmq_hold_tags_hold(tags, number);
}

cmq_hold cmq_holds_of_tag(const cmq_holds *holds, cmq_hold_queue queue, uint32_t hash, int64_t offset)
{
    return first_until(holds, &holds->tags, queue, hash, offset);
}

cmq_hold cmq_holds_of_program(const cmq_holds *holds, cmq_hold_queue queue, uint32_t program, int64_t offset)
{
    return first_until(holds, &holds->selecting, queue, program, offset);
}

static cmq_hold hold_of_link(const cmq_holds *holds, uint32_t link_number)
{
    return link_number == CMQ_HOLD_TAG_NONE ? CMQ_HOLD_NONE : cmq_hold_tags_hold(&holds->selecting, link_number);
}

cmq_hold cmq_holds_selecting(const cmq_holds *holds, cmq_hold_queue queue)
{
    return hold_of_link(holds, cmq_hold_tags_first(&holds->selecting, queue, FIRST_ONES));
}

cmq_hold cmq_holds_next_selecting(const cmq_holds *holds, cmq_hold number)
{
    return hold_of_link(holds, cmq_hold_tags_next(&holds->selecting, cmq_hold_at(holds, number)->more.first.link));
}

void cmq_holds_set_compared(cmq_holds *holds, cmq_hold number, int64_t offset)
{
    cmq_hold_at(holds, number)->more.first.compared = (uint32_t)offset & COMPARED_BITS;
}

bool cmq_holds_is_compared(const cmq_holds *holds, cmq_hold number, int64_t offset)
{
    return cmq_hold_at(holds, number)->more.first.compared == ((uint32_t)offset & COMPARED_BITS);
}

uint32_t cmq_holds_program(const cmq_holds *holds, cmq_hold number)
{
    return cmq_hold_at(holds, number)->of.selects.program;
}

const cmq_selector *cmq_holds_selector(const cmq_holds *holds, uint32_t program)
{
    return cmq_filter_selector(cmq_hold_programs_filter(&holds->programs, program));
}

cmq_hold_programs *cmq_holds_programs(cmq_holds *holds) { return &holds->programs; }
