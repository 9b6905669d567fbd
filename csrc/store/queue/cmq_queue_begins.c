/* cmq_queue_begins: tells queues that lost their first files from those whose first files have expired.
 *
 * A queue's names show a file that is missing from its middle, and the durable point says how many units it had; a
 * queue that begins later than it did looks like any other after retention. So the table cometmq/ends
 * (cmq_queue_end_sums) has each queue's begin and where in the log that unit's record starts. Where an opening finds
 * the queue's files to begin behind that, and the log still has the record, files were lost, and the log makes them
 * again: a view empties the queue and holds it in memory; a writer puts the missing units into files of a folder aside,
 * makes them durable, and renames each to its place, the last one first.
 *
 * Invariant: at each step of a writer the queue lacks its first files, fewer of them after each rename, and the table
 *            says so. A crash leaves what the next opening treats in the same way, and nothing else has changed.
 *
 * An old table is of no harm: retention drops a unit only when the log has dropped its record, and a topic that was
 * deleted and made again begins at 0. Not noticed: files that go missing without a table or a point that is true, and
 * those whose first unit is a filler or damaged.
 *
 * Where the log is read from its first byte for another reason, and where the folder aside is on another file system,
 * the mark cometmq/incomplete covers the change instead: the next opening reads the whole log.
 *
 * Cost:   16 bytes of memory per queue; a read of one unit per queue whose begin neither its opening nor its first
 *         write saw.
 * Source: ours; docs/decisions/0019.
 */
#include <errno.h>
#include <inttypes.h>

#include "base/cmq_assert.h"
#include "base/cmq_file_tree.h"
#include "store/queue/cmq_queue_file.h"
#include "store/queue/cmq_queue_internal.h"

#define DESCRIPTORS_ASIDE 64u
#define VIEW_UNITS_MAX (CMQ_TAIL_UNITS_MAX / 2)   /* of a queue that a view holds in memory; as many may follow */

cmq_queue_begin *cmq_queue_begin_of(const cmq_queue *queue)
{
    uint32_t inside;
    const cmq_queueblock *block = cmq_queues_block(queue->set, queue->index, &inside);
    return &block->begins[inside];
}

void cmq_queue_note_begin(cmq_queue *queue, int64_t position, int64_t phy)
{
    cmq_queue_begin *begin = cmq_queue_begin_of(queue);
    if (queue->set->read_only || (begin->position == position && begin->behind_phy == phy + 1)) return;
    *begin = (cmq_queue_begin){.position = position, .behind_phy = phy + 1};
    atomic_store_explicit(&queue->set->ends_changed, true, memory_order_release);
}

void cmq_queue_forget_begin(cmq_queue *queue) { *cmq_queue_begin_of(queue) = (cmq_queue_begin){0}; }

/* Have the begin noted, which is at `min`; false where that unit says nothing. */
static bool remember(cmq_queue *queue, int64_t min)
{
    cmq_queue_begin *begin = cmq_queue_begin_of(queue);
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
    if (min < cmq_queue_tail_flushed(&queue->tail) && remember(queue, min)) *begin_out = *cmq_queue_begin_of(queue);
}

/* ---- opening ---- */

static bool lost_begin(const cmq_queue *queue) { return (queue->tail.heat & CMQ_HEAT_LOST_BEGIN) != 0; }

static bool lost_end(const cmq_queue *queue)
{
    return (atomic_load_explicit(&queue->tail.marks, memory_order_relaxed) & CMQ_MARK_LOST_END) != 0;
}

void cmq_queue_compare_begin(cmq_queue *queue, const cmq_queue_begin *begin)
{
    if (begin->behind_phy <= 0 || begin->position < 0 || queue->files.first < 0 ||
        queue->files.first / cmq_queue_unit_bytes(queue) <= begin->position)
        return;
    if (lost_begin(queue)) return;
    queue->tail.heat |= CMQ_HEAT_LOST_BEGIN;
    queue->set->lost_begins++;
    *cmq_queue_begin_of(queue) = *begin;
}

bool cmq_queues_lost_begins(const cmq_queues *queues) { return queues->lost_begins > 0; }

cmq_queue *cmq_queue_find_aside(const cmq_queue *queue)
{
    const cmq_slice topic = {.data = (const uint8_t *)cmq_queue_topic(queue), .bytes = cmq_queue_topic_bytes(queue)};
    return cmq_queues_find(queue->set->aside, topic, queue->id);
}

/* Where the unit of the record at `phy` is made; NULL: the queue's files have it, or the queue aside. */
static cmq_queue *choose_aside(const cmq_queue *queue, int64_t phy)
{
    cmq_queue *aside = cmq_queue_find_aside(queue);
    if (lost_begin(queue) && !lost_end(queue))
        return cmq_queue_tail_next(&aside->tail) < cmq_queue_first_position(queue) ? aside : NULL;
    return phy >= atomic_load_explicit(&aside->last_end, memory_order_relaxed) ? aside : NULL;
}

cmq_status cmq_queues_require_for(cmq_queues *queues, cmq_slice topic, int32_t queue_id, cmq_queue_kind kind,
                                  int64_t phy, cmq_queue **queue_out)
{
    const bool behind = phy >= queues->whole_below;
    if (behind && queues->lost_end_count == 0) return cmq_queues_require(queues, topic, queue_id, kind, queue_out);
    cmq_queue *found = cmq_queues_find(queues, topic, queue_id);
    *queue_out = NULL;
    if (behind && (found == NULL || !lost_end(found) || queues->aside == NULL))
        return cmq_queues_require(queues, topic, queue_id, kind, queue_out);
    if (found == NULL || (!lost_begin(found) && !lost_end(found))) return CMQ_OK;
    if (lost_begin(found) && phy < cmq_queue_begin_of(found)->behind_phy - 1) return CMQ_OK;
    if (queues->aside != NULL) *queue_out = choose_aside(found, phy);
    else if (lost_begin(found) || cmq_queue_end_lacks(found, phy)) *queue_out = found;
    return CMQ_OK;
}

static cmq_status CMQ_MUST_CHECK begin_again(cmq_queue *queue, const cmq_queue_begin *begin)
{
    if (queue->set->read_only && cmq_queue_tail_next(&queue->tail) - begin->position > VIEW_UNITS_MAX)
        return cmq_fail_at(CMQ_ERR_CORRUPT, begin->position,
                           "the first files of queue %s/%" PRId32 " are missing: it began with unit %" PRId64
                           ", and its files begin with unit %" PRId64
                           ". Put them back, or open the store as a writer, which makes them again from the log",
                           queue->topic->name, queue->id, begin->position, cmq_queue_first_position(queue));
    return cmq_queue_begin_at(queue, begin->position);
}

static cmq_status CMQ_MUST_CHECK make_set_aside(cmq_queues *queues)
{
    char root[CMQ_PATH_BYTES];
    /* A power loss could take the table of a writer that was killed, and nothing else tells of the missing files. */
    cmq_status status = cmq_queue_end_sums_sync(queues);
    /* Files of earlier attempts take the space that this one needs. */
    (void)!cmq_queues_empty_trash(queues, UINT32_MAX);
    if (status == CMQ_OK) status = cmq_queues_trash_folder(queues, root);
    if (status == CMQ_OK) status = cmq_fs_make_directory_unsynced(queues->fs, root);
    if (status != CMQ_OK) return status;
    const cmq_queues_options options = {.fs = queues->fs,
                                        .root = root,
                                        .queue_file_bytes = queues->file_bytes[CMQ_FOLDER_SIMPLE],
                                        .batch_file_bytes = queues->file_bytes[CMQ_FOLDER_BATCH],
                                        .ext_file_bytes = queues->file_bytes[CMQ_FOLDER_EXT],
                                        .descriptors_max = DESCRIPTORS_ASIDE,
                                        .maps_max = 1};
    return cmq_queues_create(&queues->aside, &options);
}

void cmq_queue_continue_at(cmq_queue *queue, int64_t position, int64_t phy)
{
    cmq_queue_reset_tail(queue, position);
    atomic_store_explicit(&queue->min, position, memory_order_release);
    atomic_store_explicit(&queue->last_end, phy, memory_order_release);
}

/* An empty queue aside, whose first unit will be that of `begin`. */
static cmq_status CMQ_MUST_CHECK begin_aside(const cmq_queue *queue, const cmq_queue_begin *begin)
{
    const cmq_slice topic = {.data = (const uint8_t *)cmq_queue_topic(queue), .bytes = cmq_queue_topic_bytes(queue)};
    cmq_queue *aside;
    const cmq_status status =
        cmq_queues_require(queue->set->aside, topic, queue->id, cmq_queue_kind_of(queue), &aside);
    if (status != CMQ_OK) return status;
    cmq_queue_continue_at(aside, begin->position, begin->behind_phy - 1);
    return CMQ_OK;
}

cmq_status cmq_queues_begin_again(cmq_queues *queues, int64_t log_min, int64_t whole_below, int64_t *from_out)
{
    const bool aside = !queues->read_only && whole_below > 0;
    *from_out = INT64_MAX;
    if (whole_below == 0) cmq_queues_forget_lost_ends(queues);
    cmq_status status = aside && queues->lost_end_count > 0 ? make_set_aside(queues) : CMQ_OK;
    for (uint32_t i = 0; i < cmq_queues_count(queues) && queues->lost_begins > 0 && status == CMQ_OK; i++) {
        cmq_queue *queue = cmq_queues_at(queues, i);
        if (!lost_begin(queue)) continue;
        const cmq_queue_begin begin = *cmq_queue_begin_of(queue);
        queues->lost_begins--;
        if (begin.behind_phy <= log_min) {   /* expired */
            queue->tail.heat &= (uint8_t)~CMQ_HEAT_LOST_BEGIN;
            cmq_queue_forget_begin(queue);
            continue;
        }
        if (!aside) status = cmq_queues_mark_incomplete(queues);
        else if (queues->aside == NULL) status = make_set_aside(queues);
        if (begin.behind_phy - 1 < *from_out) *from_out = begin.behind_phy - 1;
        if (status == CMQ_OK) status = aside ? begin_aside(queue, &begin) : begin_again(queue, &begin);
    }
    if (status == CMQ_OK) status = cmq_queues_begin_lost_ends(queues, log_min, from_out);
    if (*from_out != INT64_MAX) queues->whole_below = whole_below;
    return status;
}

/* ---- from aside to their places ---- */

static cmq_status CMQ_MUST_CHECK move_file(cmq_queues *queues, const char *from, const char *to, int64_t bytes)
{
    int64_t copied;
    cmq_status status = cmq_fs_rename(queues->fs, from, to);
    if (status == CMQ_OK || cmq_last_error()->sys_errno != EXDEV) return status;
    status = cmq_queues_mark_incomplete(queues);   /* a crash leaves a part of the copy */
    return status == CMQ_OK ? cmq_file_tree_copy(queues->fs, from, 0, bytes, to, &copied) : status;
}

cmq_status cmq_queue_join_file(cmq_queue *queue, const cmq_queue *aside, int64_t start)
{
    const cmq_queuefolder folder = cmq_queue_folder(queue);
    char from[CMQ_PATH_BYTES], to[CMQ_PATH_BYTES];
    cmq_status status = cmq_queue_file_path(aside, folder, start, from);
    if (status == CMQ_OK) status = cmq_queue_file_path(queue, folder, start, to);
    if (status == CMQ_OK) status = move_file(queue->set, from, to, cmq_queue_file_bytes(queue));
    /* Each on its own, or a power loss could leave a gap between them. */
    if (status == CMQ_OK) status = cmq_queue_file_queue_path(queue, folder, to);
    if (status == CMQ_OK) status = cmq_fs_sync_directory(queue->set->fs, to);
    if (status == CMQ_OK) cmq_queue_file_drop(queue, folder, start);
    return status;
}

static cmq_status CMQ_MUST_CHECK join(cmq_queue *queue)
{
    const int64_t position = cmq_queue_begin_of(queue)->position;
    const cmq_queue *aside = cmq_queue_find_aside(queue);
    const int64_t made = cmq_queue_tail_next(&aside->tail);
    if (made < cmq_queue_first_position(queue))
        return cmq_fail_at(CMQ_ERR_CORRUPT, made,
                           "the first files of queue %s/%" PRId32
                           " are missing, and the log has fewer messages than they had: its files begin with unit "
                           "%" PRId64 ", and the log makes units up to %" PRId64
                           ". Put them back, or run `cometmq verify` and then `cometmq repair`",
                           queue->topic->name, queue->id, cmq_queue_first_position(queue), made);
    cmq_status status = CMQ_OK;
    while (queue->files.first > aside->files.first && status == CMQ_OK) {
        const int64_t start = queue->files.first - cmq_queue_file_bytes(queue);
        status = cmq_queue_join_file(queue, aside, start);
        if (status != CMQ_OK) return status;
        queue->files.first = start;
    }
    queue->tail.heat &= (uint8_t)~CMQ_HEAT_LOST_BEGIN;
    if (queue->tail.kind == CMQ_QUEUE_BATCH) return cmq_batch_queue_set_min(queue, position);
    atomic_store_explicit(&queue->min, position, memory_order_release);
    return CMQ_OK;
}

cmq_status cmq_queues_join_lost(cmq_queues *queues)
{
    int64_t covered;
    if (queues->aside == NULL) return CMQ_OK;
    cmq_status status = cmq_queues_keep_expired_ends(queues);
    if (status == CMQ_OK) status = cmq_queues_flush(queues->aside, INT64_MAX, true, &covered);
    for (uint32_t i = 0; i < cmq_queues_count(queues) && status == CMQ_OK; i++) {
        cmq_queue *queue = cmq_queues_at(queues, i);
        if (lost_begin(queue)) status = join(queue);
    }
    if (status == CMQ_OK) status = cmq_queues_join_lost_ends(queues);
    if (status != CMQ_OK) return status;
    cmq_queues_destroy(queues->aside);
    queues->aside = NULL;
    queues->whole_below = 0;
    return CMQ_OK;
}
