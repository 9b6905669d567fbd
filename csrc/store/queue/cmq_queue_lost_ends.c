/* cmq_queue_lost_ends: makes the last units of queues again where their files are missing or cut.
 *
 * A durable point says by one number which queues there are and how many units each has. Where an opening finds another
 * number, units are missing, of unknown queues. The table cometmq/ends has each queue's end; an old table may have
 * anything. But if the ends of the table in place of the shorter ones that were found give the number of the point, the
 * table is the point's, and these queues lost their ends and no others did. The log then brings the units of these
 * queues alone, from behind the last that each has. Otherwise, the whole log is read, with deleted topics in it.
 *
 * The units that a queue still has count only if the records of those at the borders are the queue's (the store asks,
 * cmq_lost_ends_proof): a page from elsewhere in the file looks like a lost end, too.
 *
 * A view continues the queue in memory. A writer makes the missing files in a folder aside (cmq_queue_begins), from the
 * first whose units are not all there, makes them durable, and renames each to its place, the first one first.
 *
 * Units whose records have expired are missed by nobody, but their offsets are: the last unit that is left takes their
 * places.
 *
 * Invariant: at each step of a writer the queue lacks its last units, fewer of them after each rename, and the point
 *            and the table say so. A crash leaves what the next opening treats in the same way.
 *
 * Cost:   nothing where nothing is missing; else two passes over the table, and at most a file's units read per queue.
 * Source: ours; docs/decisions/0019.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "store/queue/cmq_queue_file.h"
#include "store/queue/cmq_queue_internal.h"

#define VIEW_UNITS_MAX (CMQ_TAIL_UNITS_MAX / 2)   /* that a view holds in memory; as many may follow */
#define COPY_UNITS 64u
#define EXPIRED_UNITS_MAX (INT64_C(1) << 22)   /* put without records; a table that was forged says more */
#define TOPICS_TRIED_MAX 1000u
#define UNITS_MAX (INT64_MAX / CMQ_BATCH_UNIT_BYTES / 2)   /* of a queue: their places in its files are known */

/* ---- which queues ---- */

static int64_t units_below(cmq_queue *queue, int64_t log_end)
{
    return atomic_load_explicit(&queue->last_end, memory_order_relaxed) == 0 ? 0 : cmq_queue_visible(queue, log_end);
}

/* Which queues without any unit below the point are missing: none, or all but those of one topic. */
typedef struct choice {
    bool missing_too;
    cmq_slice without;
} choice;

/* Has the queue of the table more units there than it was found with below the point? *queue_out: NULL where it is not
 * there at all. */
static bool is_shorter(const cmq_queues *queues, const cmq_queue_was *was, int64_t log_end, const choice *of,
                       cmq_queue **queue_out, int64_t *units_out)
{
    const bool missing_too = of->missing_too && !cmq_slice_equal(was->topic, of->without);
    cmq_queue *queue = *queue_out = cmq_queues_find(queues, was->topic, was->id);
    *units_out = 0;
    if (was->end <= 0 || was->end > UNITS_MAX) return false;
    if (queue == NULL) return missing_too;
    if (cmq_queue_kind_of(queue) != was->kind) return false;
    *units_out = units_below(queue, log_end);
    return was->end > *units_out && (*units_out > 0 || missing_too);
}

/* Do the table's ends, in place of the shorter ones found, give the point's fingerprint? */
static bool ends_are_the_points(const cmq_queues *queues, const cmq_queue_was *was, uint32_t count,
                                const cmq_queues_point *point, uint64_t found, const choice *of)
{
    uint64_t sum = found;
    for (uint32_t i = 0; i < count; i++) {
        cmq_queue *queue;
        int64_t units;
        if (!is_shorter(queues, &was[i], point->log_end, of, &queue, &units)) continue;
        const uint32_t seed = cmq_queue_topic_seed(was[i].topic);
        sum += cmq_queues_fingerprint_part(seed, was[i].id, was[i].kind, was[i].end);
        if (units > 0) sum -= cmq_queues_fingerprint_part(seed, was[i].id, was[i].kind, units);
    }
    return sum == point->fingerprints[0] || (point->count > 1 && sum == point->fingerprints[1]);
}

/* The first unit from `from` on whose record the log still has; next: none. *unit_out: it. False where one before it
 * is damaged: that one's record may be there, too. */
static bool find_left(cmq_queue *queue, int64_t from, int64_t log_min, int64_t *position_out, cmq_unit *unit_out)
{
    const int64_t next = cmq_queue_tail_next(&queue->tail);
    cmq_unit units[COPY_UNITS];
    uint32_t count = 0;
    for (*position_out = from; *position_out < next; *position_out += count) {
        if (cmq_queue_fetch(queue, *position_out, next, units, COPY_UNITS, &count) != CMQ_OK) return false;
        for (uint32_t i = 0; i < count; i++) {
            if (cmq_unit_is_filler(&units[i])) continue;
            if (cmq_unit_is_damaged(&units[i])) return false;
            if (units[i].phy < log_min) continue;
            *unit_out = units[i];
            *position_out += i;
            return true;
        }
    }
    return true;
}

static int64_t first_file_again(const cmq_queue *queue)
{
    const int64_t file_bytes = cmq_queue_file_bytes(queue);
    return cmq_queue_tail_next(&queue->tail) * cmq_queue_unit_bytes(queue) / file_bytes * file_bytes;
}

/* Does nothing follow the last unit? A unit that cannot follow it is damage, and may be of that one. */
static bool ends_in_nothing(const cmq_queue *queue)
{
    static const uint8_t nothing[CMQ_BATCH_UNIT_BYTES];
    uint8_t image[CMQ_BATCH_UNIT_BYTES] = {0};
    const uint32_t bytes = cmq_queue_unit_bytes(queue);
    const int64_t at = cmq_queue_tail_next(&queue->tail) * bytes;
    if (queue->files.first < 0 || at >= queue->files.end) return true;
    /* A file that is too short, or cannot be read, has nothing either. */
    if (cmq_queue_file_read(queue, cmq_queue_folder(queue), at, image, bytes) != CMQ_OK) return true;
    return memcmp(image, nothing, bytes) == 0;
}

/* Can its units be put at the positions that they had? A queue without units must say where it began; units of batches
 * do not say their positions. */
static bool can_continue(cmq_queue *queue, const cmq_queue_was *was, const cmq_queues_point *point)
{
    cmq_unit unit;
    int64_t left;
    if (!ends_in_nothing(queue)) return false;
    if (atomic_load_explicit(&queue->last_end, memory_order_relaxed) > 0)
        return find_left(queue, first_file_again(queue) / cmq_queue_unit_bytes(queue), point->log_min, &left, &unit);
    if (was->begin.behind_phy <= 0 || was->begin.behind_phy > point->log_end || was->begin.position < 0 ||
        was->begin.position >= was->end)
        return false;
    if (queue->files.first >= 0)
        return was->begin.behind_phy > point->log_min && was->begin.position == cmq_queue_first_position(queue);
    return was->begin.behind_phy > point->log_min || was->kind == CMQ_QUEUE_SIMPLE;
}

/* *noted_out: false where it is not certain from which unit on the queue lacks some. */
static cmq_status CMQ_MUST_CHECK note(cmq_queues *queues, const cmq_queue_was *was, const cmq_queues_point *point,
                                     bool *noted_out)
{
    cmq_queue *queue;
    const cmq_status status = cmq_queues_require(queues, was->topic, was->id, was->kind, &queue);
    *noted_out = false;
    /* A table that was forged; no file of that name can be. */
    if (status == CMQ_ERR_TOPIC || status == CMQ_ERR_ARGUMENT || status == CMQ_ERR_SETTING) return CMQ_OK;
    if (status != CMQ_OK) return status;
    *noted_out = can_continue(queue, was, point);
    if (!*noted_out) return CMQ_OK;
    if (atomic_load_explicit(&queue->last_end, memory_order_relaxed) == 0) *cmq_queue_begin_of(queue) = was->begin;
    atomic_fetch_or_explicit(&queue->tail.marks, CMQ_MARK_LOST_END, memory_order_relaxed);
    queues->lost_ends[queues->lost_end_count++] =
        (cmq_queue_lost_end){.queue = queue, .end = was->end, .from_file = first_file_again(queue),
                             .log_min = point->log_min, .log_end = point->log_end};
    return CMQ_OK;
}

/* Is one of the missing topics that of the deletion which the point allows? It stays away. */
static void leave_out_deleted(const cmq_queues *queues, const cmq_queue_was *was, uint32_t count,
                              const cmq_queues_point *point, uint64_t found, choice *of)
{
    uint32_t tried = 0;
    for (uint32_t i = 0; i < count && point->count > 1 && tried < TOPICS_TRIED_MAX; i++) {
        cmq_queue *queue;
        int64_t units;
        if (i > 0 && cmq_slice_equal(was[i].topic, was[i - 1].topic)) continue;
        if (!is_shorter(queues, &was[i], point->log_end, of, &queue, &units) || units > 0) continue;
        const choice without = {.missing_too = true, .without = was[i].topic};
        if (ends_are_the_points(queues, was, count, point, found, &without)) {
            *of = without;
            return;
        }
        tried++;
    }
}

cmq_status cmq_queues_learn_lost_ends(cmq_queues *queues, const cmq_queue_was *was, uint32_t count,
                                      const cmq_queues_point *point)
{
    const uint64_t found = cmq_queues_fingerprint(queues, point->log_end);
    if (point->count == 0 || found == point->fingerprints[0] ||
        (point->count > 1 && found == point->fingerprints[1]))
        return CMQ_OK;
    /* First without queues that are gone as a whole: those of a topic whose deletion was the last act, and which may
     * have new units behind the point. */
    choice of = {.missing_too = false};
    bool noted = true;
    if (!ends_are_the_points(queues, was, count, point, found, &of)) {
        of.missing_too = true;
        if (!ends_are_the_points(queues, was, count, point, found, &of)) return CMQ_OK;
        leave_out_deleted(queues, was, count, point, found, &of);
    }
    queues->lost_ends = calloc(count, sizeof *queues->lost_ends);
    cmq_status status =
        queues->lost_ends != NULL ? CMQ_OK : cmq_fail(CMQ_ERR_MEMORY, "no memory for %u queues", count);
    for (uint32_t i = 0; i < count && status == CMQ_OK && noted; i++) {
        cmq_queue *queue;
        int64_t units;
        if (is_shorter(queues, &was[i], point->log_end, &of, &queue, &units))
            status = note(queues, &was[i], point, &noted);
    }
    if (status != CMQ_OK || !noted) cmq_queues_forget_lost_ends(queues);
    return status;
}

bool cmq_queues_lost_ends(const cmq_queues *queues) { return queues->lost_end_count > 0; }

/* Also in a view the file from whose first unit a writer would continue: both come to the same result. */
uint32_t cmq_queues_lost_end_units(cmq_queues *queues, uint32_t at, cmq_queue **queue_out, cmq_unit units_out[2])
{
    const cmq_queue_lost_end *lost = &queues->lost_ends[at];
    cmq_queue *queue = *queue_out = lost->queue;
    const int64_t next = cmq_queue_tail_next(&queue->tail);
    uint32_t count = 0;
    int64_t left;
    cmq_unit last;
    if (atomic_load_explicit(&queue->last_end, memory_order_relaxed) == 0) return 0;
    if (find_left(queue, lost->from_file / cmq_queue_unit_bytes(queue), lost->log_min, &left, &units_out[0]) &&
        left < next)
        count = 1;
    if (cmq_queue_fetch(queue, next - 1, next, &last, 1, &(uint32_t){0}) == CMQ_OK && last.phy >= lost->log_min)
        units_out[count++] = last;
    return count;
}

uint32_t cmq_queues_lost_end_count(const cmq_queues *queues) { return queues->lost_end_count; }

void cmq_queues_forget_lost_ends(cmq_queues *queues)
{
    for (uint32_t i = 0; i < queues->lost_end_count; i++)
        atomic_fetch_and_explicit(&queues->lost_ends[i].queue->tail.marks, (uint8_t)~CMQ_MARK_LOST_END,
                                  memory_order_relaxed);
    free(queues->lost_ends);
    queues->lost_ends = NULL;
    queues->lost_end_count = 0;
}

/* ---- before the log is read ---- */

/* The first record whose unit the queue lacks. */
static int64_t lacks_from(const cmq_queue *queue)
{
    const int64_t last_end = atomic_load_explicit(&queue->last_end, memory_order_relaxed);
    return last_end > 0 ? last_end : cmq_queue_begin_of(queue)->behind_phy - 1;
}

bool cmq_queue_end_lacks(const cmq_queue *queue, int64_t phy) { return phy >= lacks_from(queue); }

/* Units [from, end) whose records have expired, to the file that is made again. Fillers come back by the units behind
 * them. */
static cmq_status CMQ_MUST_CHECK copy_units(cmq_queue *queue, cmq_queue *aside, int64_t from, int64_t end)
{
    cmq_unit units[COPY_UNITS];
    uint32_t count = 0;
    cmq_status status = CMQ_OK;
    for (; from < end && status == CMQ_OK; from += count) {
        status = cmq_queue_fetch(queue, from, end, units, COPY_UNITS, &count);
        for (uint32_t i = 0; i < count && status == CMQ_OK; i++) {
            const cmq_unit *unit = &units[i];
            if (cmq_unit_is_filler(unit)) continue;
            if (atomic_load_explicit(&aside->last_end, memory_order_relaxed) == 0)
                cmq_queue_continue_at(aside, from + i, unit->phy);
            status = cmq_queue_reput(aside, unit->offset, unit->phy, unit->bytes, unit->tags_code, unit->store_ms,
                                     unit->count);
        }
    }
    return status;
}

/* Begin with the first unit of the first file that is made again; the log brings all that it has. */
static cmq_status CMQ_MUST_CHECK begin_file(const cmq_queue_lost_end *lost, cmq_queue *aside, int64_t log_min)
{
    cmq_queue *queue = lost->queue;
    const int64_t from = lost->from_file / cmq_queue_unit_bytes(queue), next = cmq_queue_tail_next(&queue->tail);
    cmq_unit unit = {.phy = lacks_from(queue),
                     .offset = queue->tail.kind == CMQ_QUEUE_BATCH ? cmq_queue_batch(queue)->next_offset : next};
    int64_t left;
    if (!find_left(queue, from, log_min, &left, &unit))
        return cmq_fail(CMQ_ERR_CORRUPT, "queue %s/%" PRId32 " changed during recovery", queue->topic->name, queue->id);
    const cmq_status status = copy_units(queue, aside, from, left);
    if (status != CMQ_OK || atomic_load_explicit(&aside->last_end, memory_order_relaxed) > 0) return status;
    cmq_queue_continue_at(aside, left, unit.phy);
    if (queue->tail.kind == CMQ_QUEUE_BATCH) cmq_queue_batch(aside)->next_offset = unit.offset;
    return CMQ_OK;
}

static cmq_status CMQ_MUST_CHECK begin_aside(const cmq_queue_lost_end *lost, int64_t log_min, int64_t *from_out)
{
    cmq_queue *queue = lost->queue, *aside;
    const cmq_slice topic = {.data = (const uint8_t *)cmq_queue_topic(queue), .bytes = cmq_queue_topic_bytes(queue)};
    const cmq_queue_begin *begin = cmq_queue_begin_of(queue);
    cmq_status status = cmq_queues_require(queue->set->aside, topic, queue->id, cmq_queue_kind_of(queue), &aside);
    if (status == CMQ_OK && (queue->tail.heat & CMQ_HEAT_LOST_BEGIN) == 0) {
        if (atomic_load_explicit(&queue->last_end, memory_order_relaxed) > 0) status = begin_file(lost, aside, log_min);
        /* else where the first record says that it is */
        else if (begin->behind_phy > log_min) cmq_queue_continue_at(aside, begin->position, begin->behind_phy - 1);
    }
    *from_out = atomic_load_explicit(&aside->last_end, memory_order_relaxed);
    return status;
}

static cmq_status CMQ_MUST_CHECK check_fits(const cmq_queue_lost_end *lost)
{
    const int64_t next = cmq_queue_tail_next(&lost->queue->tail);
    if (lost->end - next <= VIEW_UNITS_MAX) return CMQ_OK;
    return cmq_fail_at(CMQ_ERR_CORRUPT, next,
                       "the last files of queue %s/%" PRId32 " are missing: it had units up to %" PRId64
                       ", and its files end with unit %" PRId64
                       ". Put them back, or open the store as a writer, which makes them again from the log",
                       lost->queue->topic->name, lost->queue->id, lost->end, next);
}

cmq_status cmq_queues_begin_lost_ends(cmq_queues *queues, int64_t log_min, int64_t *from_out)
{
    cmq_status status = CMQ_OK;
    for (uint32_t i = 0; i < queues->lost_end_count && status == CMQ_OK; i++) {
        const cmq_queue_lost_end *lost = &queues->lost_ends[i];
        int64_t from = lacks_from(lost->queue);
        status = queues->aside != NULL ? begin_aside(lost, log_min, &from) : check_fits(lost);
        if (from < log_min) from = log_min;
        if (from < *from_out) *from_out = from;
    }
    return status;
}

/* ---- from aside to their places ---- */

/* Have the records of all units that the queue lacks expired? The log has brought none of them. */
static bool lacks_expired_ones(const cmq_queue_lost_end *lost, const cmq_queue *aside)
{
    const int64_t last_end = atomic_load_explicit(&aside->last_end, memory_order_relaxed);
    return last_end > 0 && last_end < lost->log_min;
}

/* Nobody reads these units any more, but their offsets were given: the last unit that is left is put in place of each.
 * A queue of batches takes no unit twice; it ends with the last. */
static cmq_status CMQ_MUST_CHECK keep_expired_end(const cmq_queue_lost_end *lost)
{
    cmq_queue *queue = lost->queue, *aside = cmq_queue_find_aside(queue);
    const int64_t next = cmq_queue_tail_next(&queue->tail);
    cmq_unit unit;
    uint32_t count;
    if (queue->tail.kind == CMQ_QUEUE_BATCH || !lacks_expired_ones(lost, aside) ||
        lost->end - next > EXPIRED_UNITS_MAX || cmq_queue_tail_next(&aside->tail) != next)
        return CMQ_OK;
    cmq_status status = cmq_queue_fetch(queue, next - 1, next, &unit, 1, &count);
    if (status == CMQ_OK && count == 0)
        return cmq_fail(CMQ_ERR_CORRUPT, "queue %s/%" PRId32 " changed during recovery", queue->topic->name, queue->id);
    for (int64_t at = next; at < lost->end && status == CMQ_OK; at++) {
        cmq_queues_begin_turn(aside->set);
        status = cmq_queue_make_room(aside, 1, INT64_MAX);
        if (status == CMQ_OK) cmq_queue_put(aside, unit.phy, unit.bytes, unit.tags_code, unit.store_ms, 1);
    }
    return status;
}

cmq_status cmq_queues_keep_expired_ends(cmq_queues *queues)
{
    cmq_status status = CMQ_OK;
    for (uint32_t i = 0; i < queues->lost_end_count && status == CMQ_OK; i++)
        status = keep_expired_end(&queues->lost_ends[i]);
    return status;
}

static cmq_status CMQ_MUST_CHECK make_folder(const cmq_queue *queue)
{
    char path[CMQ_PATH_BYTES];
    const cmq_status status = cmq_queue_file_queue_path(queue, cmq_queue_folder(queue), path);
    return status == CMQ_OK ? cmq_fs_make_directory_in(queue->set->fs, queue->set->root, path) : status;
}

/* The queue is what its files have now. */
static cmq_status CMQ_MUST_CHECK take_over(const cmq_queue_lost_end *lost, const cmq_queue *aside, bool had_files)
{
    cmq_queue *queue = lost->queue;
    const int64_t min = atomic_load_explicit(&aside->min, memory_order_relaxed);
    if (!had_files) queue->files.first = aside->files.first;
    if (queue->files.end < aside->files.end) queue->files.end = aside->files.end;
    const bool was_empty = atomic_load_explicit(&queue->last_end, memory_order_relaxed) == 0;
    cmq_queue_reset_tail(queue, cmq_queue_tail_next(&aside->tail));
    atomic_store_explicit(&queue->last_end, atomic_load_explicit(&aside->last_end, memory_order_relaxed),
                          memory_order_release);
    if (was_empty) atomic_store_explicit(&queue->min, min, memory_order_release);
    if (queue->tail.kind == CMQ_QUEUE_BATCH)
        cmq_queue_batch(queue)->next_offset = cmq_queue_batch(aside)->next_offset;
    if (was_empty) return queue->tail.kind == CMQ_QUEUE_BATCH ? cmq_batch_queue_set_min(queue, min) : CMQ_OK;
    return cmq_queue_correct_min(queue, lost->log_min);
}

static cmq_status CMQ_MUST_CHECK join(const cmq_queue_lost_end *lost)
{
    cmq_queue *queue = lost->queue;
    const cmq_queue *aside = cmq_queue_find_aside(queue);
    const int64_t made = cmq_queue_tail_next(&aside->tail);
    const bool had_files = queue->files.first >= 0;
    if (aside->files.first < 0 && !had_files) return CMQ_OK;   /* all of its records have expired */
    const bool ends_expired = queue->tail.kind == CMQ_QUEUE_BATCH && lacks_expired_ones(lost, aside);
    /* Its topic was deleted and created again behind the point. */
    const bool is_another = atomic_load_explicit(&aside->last_end, memory_order_relaxed) > lost->log_end;
    if (made < lost->end && !ends_expired && !is_another)
        return cmq_fail_at(CMQ_ERR_CORRUPT, made,
                           "the last units of queue %s/%" PRId32
                           " are missing, and the log has fewer messages than it had: it had units up to %" PRId64
                           ", and the log makes units up to %" PRId64
                           ". Put its files back, or run `cometmq verify` and then `cometmq repair`",
                           queue->topic->name, queue->id, lost->end, made);
    cmq_status status = had_files ? CMQ_OK : make_folder(queue);
    int64_t start = had_files ? lost->from_file : aside->files.first;
    for (; start < aside->files.end && status == CMQ_OK; start += cmq_queue_file_bytes(queue))
        status = cmq_queue_join_file(queue, aside, start);
    return status == CMQ_OK ? take_over(lost, aside, had_files) : status;
}

cmq_status cmq_queues_join_lost_ends(cmq_queues *queues)
{
    cmq_status status = CMQ_OK;
    for (uint32_t i = 0; i < queues->lost_end_count && status == CMQ_OK; i++) status = join(&queues->lost_ends[i]);
    if (status == CMQ_OK) cmq_queues_forget_lost_ends(queues);
    return status;
}
