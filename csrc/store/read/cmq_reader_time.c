/* cmq_reader_time: the part of a queue, or of the log, that can hold messages of a span of store times.
 *
 * Store times rise along a log, but where the clock of a broker was set back they fall, and rise again from there:
 * nothing can be searched for then. So the part is found by samples: store times at some places, in order. Between two
 * of them times lie between theirs, unless they fall; where a fall shows, it is sampled more closely. One step of the
 * samples on each side is added for falls that lie within a step. Every record of the part is compared on its own.
 *
 * Cost:     of a queue some 130 looks at a unit and its record, and at most 1/256 of its units more than match; of the
 *           log a look per segment, and a walk over segments in which times fall.
 * Source:   decision 0007: a log of a broker whose clock was set back.
 */
#include "store/read/cmq_reader_internal.h"
#include "store/read/cmq_unit_check.h"

#define COARSE_STEPS 64u
#define FINE_STEPS 32u
#define FALL_STEPS 16

/* ---- queues ---- */

typedef struct sample {
    int64_t offset, ms;
} sample;

/* Queue offsets between which something is. */
typedef struct span {
    int64_t low, high;
} span;

/* The first message at or behind an offset, below `high`; false: none can be looked at. */
static bool sample_at(cmq_reader *reader, cmq_queue *queue, int64_t offset, int64_t high, int64_t confirmed,
                      sample *sample_out)
{
    cmq_unit unit;
    cmq_record_head head;
    cmq_segment *segment;
    const uint8_t *data;
    size_t available;
    uint32_t count = 0;
    int64_t next;
    if (cmq_queue_read(queue, offset, confirmed, &unit, 1, &count, &next) != CMQ_OK || count == 0 ||
        unit.offset >= high)
        return false;
    if (cmq_log_pin(reader->store->log, unit.phy, &segment, &data, &available) != CMQ_OK) return false;
    const cmq_unit_owner owner = cmq_unit_owner_of(queue, true);
    /* The time of another record, at which a damaged unit points, would leave messages out. */
    const bool own = cmq_unit_is_plain(&owner, &unit, data, available) ||
                     cmq_unit_check(reader->store, queue, &unit, data, available) == CMQ_OK;
    const bool sound = own && cmq_record_peek(data, available, &head) == CMQ_OK;
    cmq_segment_unpin(segment);
    if (!sound) return false;
    *sample_out = (sample){.offset = unit.offset > offset ? unit.offset : offset, .ms = head.store_timestamp_ms};
    return true;
}

/* Most and least store time between two samples. Where the later one is lower, what lies between is sampled again, down
 * to single messages: a fall within a sixteenth of a fall's step, that no sample shows, stays unknown. Where nothing
 * between can be sampled, any time may lie there. */
static void widen(cmq_reader *reader, cmq_queue *queue, const sample *before, const sample *behind, int64_t confirmed,
                  int64_t *most, int64_t *least)
{
    sample from = *before, to;
    const int64_t wide = behind->offset - before->offset;
    if (before->ms < *least) *least = before->ms;
    if (behind->ms < *least) *least = behind->ms;
    if (before->ms > *most) *most = before->ms;
    if (behind->ms > *most) *most = behind->ms;
    if (behind->ms >= before->ms || wide < 2) return;
    for (int64_t i = 1; i <= FALL_STEPS; i++) {
        const int64_t offset = before->offset + wide / FALL_STEPS * i + wide % FALL_STEPS * i / FALL_STEPS;
        if (offset <= from.offset) continue;
        if (i == FALL_STEPS) to = *behind;
        else if (!sample_at(reader, queue, offset, behind->offset, confirmed, &to)) continue;
        if (to.offset - from.offset == wide) {
            *most = INT64_MAX;
            *least = INT64_MIN;
            return;
        }
        widen(reader, queue, &from, &to, confirmed, most, least);
        from = to;
    }
}

/* Take samples of [from, to). *first_out: where the first message at or behind the start may lie; *last_out: where the
 * last before the end. */
static void look(cmq_reader *reader, cmq_queue *queue, span part, uint32_t steps, int64_t confirmed, span *first_out,
                 span *last_out)
{
    const cmq_read_options *options = &reader->options;
    sample samples[COARSE_STEPS + 1];
    uint32_t count = 0;
    const int64_t wide = part.high - part.low;
    *first_out = *last_out = part;
    for (uint32_t i = 0; i <= steps; i++) {
        const int64_t offset = i == steps ? part.high - 1 : part.low + wide / steps * i + wide % steps * i / steps;
        if (count > 0 && offset <= samples[count - 1].offset) continue;
        if (sample_at(reader, queue, offset, part.high, confirmed, &samples[count])) count++;
    }
    if (count < 2) return;
    uint32_t first = count - 2, last = 0;   /* steps: from a sample to the next */
    bool found = false;
    for (uint32_t i = 0; i + 1 < count; i++) {
        int64_t most = INT64_MIN, least = INT64_MAX;
        widen(reader, queue, &samples[i], &samples[i + 1], confirmed, &most, &least);
        if (options->has_start_time && !found && most >= options->start_time_ms) {
            first = i;
            found = true;
        }
        if (options->has_end_time && least < options->end_time_ms) last = i;
    }
    if (first > 0) first_out->low = samples[first - 1].offset;
    if (first + 3 < count) first_out->high = samples[first + 2].offset;
    if (last > 0) last_out->low = samples[last - 1].offset;
    if (last + 3 < count) last_out->high = samples[last + 2].offset;
}

void cmq_reader_bound_times(cmq_reader *reader, cmq_cursor *cursor, int64_t confirmed)
{
    const cmq_read_options *options = &reader->options;
    if (!options->has_start_time && !options->has_end_time) return;
    const int64_t min = cmq_queue_min(cursor->queue), max = cmq_queue_max(cursor->queue, confirmed);
    span part = {.low = cursor->first > min ? cursor->first : min, .high = cursor->end < max ? cursor->end : max},
         first, last, unused;
    if (!options->backwards && cursor->next > part.low) part.low = cursor->next;
    if (part.high - part.low < 2) return;
    look(reader, cursor->queue, part, COARSE_STEPS, confirmed, &first, &last);
    if (options->has_start_time) {
        look(reader, cursor->queue, first, FINE_STEPS, confirmed, &first, &unused);
        cursor->from = first.low;
        if (!options->backwards && cursor->next < cursor->from) cursor->next = cursor->from;
    }
    if (options->has_end_time && last.high < part.high) {
        look(reader, cursor->queue, last, FINE_STEPS, confirmed, &unused, &last);
        cursor->until = last.high;
        reader->past = true;
        if (options->backwards && cursor->next > cursor->until) cursor->next = cursor->until;
    }
}

bool cmq_reader_in_time(cmq_reader *reader, int64_t stored_ms)
{
    const cmq_read_options *options = &reader->options;
    const bool late = options->has_end_time && stored_ms >= options->end_time_ms;
    reader->past = reader->past || late;
    return !late && !(options->has_start_time && stored_ms < options->start_time_ms);
}

/* ---- the log ---- */

/* Least and most store time of a segment's records. A walk, for segments in which times fall. */
static void walk_times(cmq_reader *reader, int64_t start, int64_t confirmed, int64_t *least, int64_t *most)
{
    const int64_t end = start + cmq_log_segment_bytes(reader->store->log);
    cmq_record_head head;
    for (int64_t phy = start; cmq_reader_head_at(reader, phy, confirmed < end ? confirmed : end, &head) == CMQ_OK;
         phy += head.record_bytes) {
        if (head.store_timestamp_ms < *least) *least = head.store_timestamp_ms;
        if (head.store_timestamp_ms > *most) *most = head.store_timestamp_ms;
    }
}

void cmq_reader_bound_log(cmq_reader *reader, int64_t confirmed)
{
    const cmq_read_options *options = &reader->options;
    const int64_t bytes = cmq_log_segment_bytes(reader->store->log), min = cmq_log_min(reader->store->log);
    cmq_record_head head = {0}, next = {0};
    reader->log_from = min;
    reader->log_until = INT64_MAX;
    if (!options->has_start_time && !options->has_end_time) return;
    bool found = !options->has_start_time;
    int64_t last = min;
    bool known = cmq_reader_head_at(reader, min, confirmed, &head) == CMQ_OK;
    for (int64_t start = min; start < confirmed; start += bytes) {
        const bool next_known =
            start + bytes < confirmed && cmq_reader_head_at(reader, start + bytes, confirmed, &next) == CMQ_OK;
        int64_t least = known ? head.store_timestamp_ms : INT64_MIN,
                most = next_known ? next.store_timestamp_ms : INT64_MAX;
        if (known && next_known && most < least) {
            const int64_t before = least;
            most = before;
            least = next.store_timestamp_ms;
            walk_times(reader, start, confirmed, &least, &most);
        }
        if (!found && most >= options->start_time_ms) {
            reader->log_from = start > min ? start - bytes : min;   /* a segment more, for a fall within it */
            found = true;
        }
        if (options->has_end_time && least < options->end_time_ms) last = start;
        head = next;
        known = next_known;
    }
    if (options->has_end_time && last + 2 * bytes < confirmed) {
        reader->log_until = last + 2 * bytes;
        reader->past = true;
    }
}
