/* cmq_queue_begins: tells queues that lost their first files from those whose first files have expired.
 *
 * A queue's names show a file that is missing from its middle, and the durable point says how many units it had; a
 * queue that begins later than it did looks like any other after retention. So the table cometmq/ends
 * (cmq_queue_end_sums) has each queue's begin and where in the log that unit's record starts. Where an opening finds
 * the queue's files to begin behind that, and the log still has the record, files were lost: the queue is emptied, and
 * the log makes it again.
 *
 * An old table is of no harm: retention drops a unit only when the log has dropped its record, and a topic that was
 * deleted and made again begins at 0. Not noticed: files that go missing without a table or a point that is true, and
 * those whose first unit is a filler or damaged.
 *
 * Cost:   16 bytes of memory per queue; a read of one unit per queue whose begin neither its opening nor its first
 *         write saw.
 * Source: ours; docs/decisions/0019.
 */
#include <inttypes.h>

#include "base/cmq_assert.h"
#include "store/queue/cmq_queue_internal.h"

#define VIEW_UNITS_MAX (CMQ_TAIL_UNITS_MAX / 2)   /* of a queue that a view holds in memory; as many may follow */

static cmq_queue_begin *begin_of(const cmq_queue *queue)
{
    uint32_t inside;
    const cmq_queueblock *block = cmq_queues_block(queue->set, queue->index, &inside);
    return &block->begins[inside];
}

void cmq_queue_note_begin(cmq_queue *queue, int64_t position, int64_t phy)
{
    cmq_queue_begin *begin = begin_of(queue);
    if (queue->set->read_only || (begin->position == position && begin->behind_phy == phy + 1)) return;
    *begin = (cmq_queue_begin){.position = position, .behind_phy = phy + 1};
    atomic_store_explicit(&queue->set->ends_changed, true, memory_order_release);
}

/* Have the begin noted, which is at `min`; false where that unit says nothing. */
static bool remember(cmq_queue *queue, int64_t min)
{
    cmq_queue_begin *begin = begin_of(queue);
    cmq_unit unit;
    uint32_t count;
    if (begin->position == min && begin->behind_phy != 0) return true;
    if (cmq_queue_fetch(queue, min, min + 1, &unit, 1, &count) != CMQ_OK || count == 0 || cmq_unit_is_filler(&unit) ||
        cmq_unit_is_damaged(&unit))
        return false;
    *begin = (cmq_queue_begin){.position = min, .behind_phy = unit.phy + 1};
    return true;
}

void cmq_queue_note_first(cmq_queue *queue, int64_t from)
{
    if (from == atomic_load_explicit(&queue->min, memory_order_relaxed)) (void)remember(queue, from);
}

void cmq_queue_learn_begin(cmq_queue *queue, cmq_queue_begin *begin_out)
{
    const int64_t min = atomic_load_explicit(&queue->min, memory_order_relaxed);
    *begin_out = (cmq_queue_begin){0};
    if (min < cmq_queue_tail_flushed(&queue->tail) && remember(queue, min)) *begin_out = *begin_of(queue);
}

/* ---- opening ---- */

void cmq_queue_compare_begin(cmq_queue *queue, const cmq_queue_begin *begin)
{
    if (begin->behind_phy <= 0 || begin->position < 0 || queue->files.first < 0 ||
        queue->files.first / cmq_queue_unit_bytes(queue) <= begin->position)
        return;
    if ((queue->tail.heat & CMQ_HEAT_LOST_BEGIN) != 0) return;
    queue->tail.heat |= CMQ_HEAT_LOST_BEGIN;
    queue->set->lost_begins++;
    *begin_of(queue) = *begin;
}

bool cmq_queues_lost_begins(const cmq_queues *queues) { return queues->lost_begins > 0; }

cmq_status cmq_queues_require_for(cmq_queues *queues, cmq_slice topic, int32_t queue_id, cmq_queue_kind kind,
                                  int64_t phy, cmq_queue **queue_out)
{
    if (phy >= queues->whole_below) return cmq_queues_require(queues, topic, queue_id, kind, queue_out);
    cmq_queue *found = cmq_queues_find(queues, topic, queue_id);
    const bool lacks = found != NULL && (found->tail.heat & CMQ_HEAT_LOST_BEGIN) != 0 &&
                       phy >= begin_of(found)->behind_phy - 1;
    *queue_out = lacks ? found : NULL;
    return CMQ_OK;
}

static cmq_status CMQ_MUST_CHECK begin_again(cmq_queue *queue, const cmq_queue_begin *begin)
{
    if (queue->set->read_only && cmq_queue_tail_next(&queue->tail) - begin->position > VIEW_UNITS_MAX)
        return cmq_fail_at(CMQ_ERR_CORRUPT, begin->position,
                           "the first files of queue %s/%" PRId32 " are missing: it began with unit %" PRId64
                           ", and its files begin with unit %" PRId64
                           ". Put them back, or open the store as a writer, which makes them again from the log",
                           queue->topic->name, queue->id, begin->position,
                           queue->files.first / cmq_queue_unit_bytes(queue));
    return cmq_queue_begin_at(queue, begin->position);
}

cmq_status cmq_queues_begin_again(cmq_queues *queues, int64_t log_min, int64_t whole_below, int64_t *from_out)
{
    cmq_status status = CMQ_OK;
    *from_out = INT64_MAX;
    for (uint32_t i = 0; i < cmq_queues_count(queues) && queues->lost_begins > 0 && status == CMQ_OK; i++) {
        cmq_queue *queue = cmq_queues_at(queues, i);
        if ((queue->tail.heat & CMQ_HEAT_LOST_BEGIN) == 0) continue;
        const cmq_queue_begin begin = *begin_of(queue);
        queues->lost_begins--;
        if (begin.behind_phy <= log_min) {   /* expired */
            queue->tail.heat &= (uint8_t)~CMQ_HEAT_LOST_BEGIN;
            *begin_of(queue) = (cmq_queue_begin){0};
            continue;
        }
        if (*from_out == INT64_MAX) status = cmq_queues_mark_incomplete(queues);
        if (begin.behind_phy - 1 < *from_out) *from_out = begin.behind_phy - 1;
        if (status == CMQ_OK) status = begin_again(queue, &begin);
    }
    if (*from_out != INT64_MAX) queues->whole_below = whole_below;
    return status;
}
