/* cmq_verify_queues: the units in the queue files against the records of the log; see cmq_verify.h.
 *
 * A record asks for the unit at its own offset. Without one there, it may be that
 *   - its topic was deleted and made again: a later record has the offset now, or the numbering has restarted (a note);
 *   - the unit is there at another offset, as upstream puts it when it finds a gap (a note);
 *   - the store crashed and the record has not been dispatched: opening does it (a note);
 *   - the unit is lost, or damaged.
 * Afterwards units are counted: where there are more than records asked for, the ones without a record are looked for.
 *
 * Threads: as cmq_verify.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/cmq_assert.h"
#include "base/cmq_counted.h"
#include "store/check/cmq_verify_internal.h"

/* ---- reporting ---- */

static cmq_problem problem_of(const cmq_rawqueue *raw, cmq_problem_kind kind, cmq_severity severity, int64_t offset,
                              int64_t phy)
{
    cmq_problem problem = cmq_verify_problem(kind, severity, phy);
    problem.topic = raw->topic;
    problem.queue_id = raw->id;
    problem.queue_offset = offset;
    return problem;
}

/* Tell of the records without units up to here. */
static void report_run(cmq_verification *v, const cmq_rawqueue *raw, cmq_verify_queue *state)
{
    const cmq_verify_run run = state->missing;
    if (run.count == 0) return;
    state->missing.count = 0;
    cmq_problem problem = problem_of(raw, CMQ_PROBLEM_UNIT_MISSING,
                                     run.completed_at_opening ? CMQ_SEVERITY_NOTE : CMQ_SEVERITY_REPAIRABLE,
                                     run.first_offset, run.first_phy);
    problem.count = run.count;
    if (run.completed_at_opening)
        cmq_verify_report(v, &problem,
                          "%s from queue offset %" PRId64 " on %s not in the queue yet; opening the store completes it",
                          cmq_counted(run.count, "record").text, run.first_offset, cmq_verb(run.count, "is", "are"));
    else
        cmq_verify_report(v, &problem, "%s from queue offset %" PRId64 " on %s no unit in the queue's files",
                          cmq_counted(run.count, "record").text, run.first_offset, cmq_verb(run.count, "has", "have"));
}

static void note_missing(cmq_verification *v, const cmq_rawqueue *raw, cmq_verify_queue *state, int64_t offset,
                         int64_t phy)
{
    const bool completed = phy >= v->completed_from;
    if (state->missing.count > 0 && state->missing.completed_at_opening != completed) report_run(v, raw, state);
    if (state->missing.count++ > 0) return;
    state->missing.first_offset = offset;
    state->missing.first_phy = phy;
    state->missing.completed_at_opening = completed;
}

static void note_superseded(cmq_verification *v, int64_t count, int64_t phy)
{
    if (v->superseded == 0) v->superseded_first_phy = phy;
    v->superseded += count;
}

static cmq_status CMQ_MUST_CHECK note_missing_queue(cmq_verification *v, const cmq_record_view *view)
{
    const bool completed = view->physical_offset >= v->completed_from;
    for (uint32_t i = v->missing_count; i > 0; i--) {
        cmq_verify_missing_queue *known = &v->missing[i - 1];
        if (known->queue_id != view->queue_id || known->completed_at_opening != completed) continue;
        if (!cmq_slice_equal(view->topic, cmq_slice_of_text(known->topic))) continue;
        known->count++;
        return CMQ_OK;
    }
    if (v->missing_count == CMQ_VERIFY_MISSING_QUEUES_MAX) return CMQ_OK;   /* a thousand names say enough */
    char *topic = strndup((const char *)view->topic.data, view->topic.bytes);
    if (topic == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for a topic name");
    v->missing[v->missing_count++] = (cmq_verify_missing_queue){.topic = topic,
                                                                .queue_id = view->queue_id,
                                                                .count = 1,
                                                                .first_phy = view->physical_offset,
                                                                .completed_at_opening = completed};
    return CMQ_OK;
}

/* ---- units ---- */

static cmq_status CMQ_MUST_CHECK state_of(cmq_verification *v, const cmq_rawqueue *raw, cmq_verify_queue **state_out)
{
    cmq_verify_queue **slot = &v->queues[raw->index];
    if (*slot == NULL) *slot = calloc(1, sizeof **slot);
    *state_out = *slot;
    return *slot != NULL ? CMQ_OK : cmq_fail(CMQ_ERR_MEMORY, "no memory to verify a queue");
}

/* The bytes of the unit at `position`. A file that went meanwhile (retention, a deleted topic) silences the queue. */
static cmq_status CMQ_MUST_CHECK image_at(cmq_verification *v, const cmq_rawqueue *raw, cmq_verify_queue *state,
                                          int64_t position, const uint8_t **image_out)
{
    if (position < state->window_first || position - state->window_first >= state->window_count) {
        state->window_first = position;
        state->window_count = CMQ_VERIFY_WINDOW_BYTES / raw->unit_bytes;
        const cmq_status status = cmq_raw_queues_read(v->raw, raw, position, state->window_count, state->window);
        if (status != CMQ_OK) {
            state->window_count = 0;
            if (status != CMQ_ERR_NOT_FOUND) return status;
            state->gone = true;
            *image_out = NULL;
            return CMQ_OK;
        }
    }
    *image_out = state->window + (position - state->window_first) * raw->unit_bytes;
    return CMQ_OK;
}

/* The unit that the queue has for `offset`; false when there is none. */
static cmq_status CMQ_MUST_CHECK unit_at(cmq_verification *v, const cmq_rawqueue *raw, cmq_verify_queue *state,
                                         int64_t offset, int64_t phy, cmq_unit *unit_out, bool *there_out)
{
    const uint8_t *image;
    bool filler;
    *there_out = false;
    *unit_out = (cmq_unit){0};
    if (raw->kind == CMQ_QUEUE_SIMPLE) {
        if (offset < cmq_rawqueue_first(raw) || offset >= cmq_rawqueue_end(raw)) return CMQ_OK;
        const cmq_status status = image_at(v, raw, state, offset, &image);
        if (status == CMQ_OK && image != NULL) *there_out = cmq_rawqueue_decode(raw, offset, image, unit_out, &filler);
        return status;
    }
    /* Bases rise with the log: go on from the last one. */
    if (state->batch_at < cmq_rawqueue_first(raw)) state->batch_at = cmq_rawqueue_first(raw);
    for (; state->batch_at < cmq_rawqueue_end(raw); state->batch_at++) {
        cmq_unit unit;
        const cmq_status status = image_at(v, raw, state, state->batch_at, &image);
        if (status != CMQ_OK || image == NULL) return status;
        if (!cmq_rawqueue_decode(raw, state->batch_at, image, &unit, &filler)) {
            int64_t next;   /* behind the end lies a hole of millions of units */
            const cmq_status hop = cmq_raw_queues_next(v->raw, raw, state->batch_at, &next);
            if (hop != CMQ_OK && hop != CMQ_END && hop != CMQ_ERR_NOT_FOUND) return hop;
            if (hop != CMQ_OK) next = cmq_rawqueue_end(raw);
            if (next > state->batch_at) state->batch_at = next - 1;
            continue;
        }
        if (unit.phy < phy) continue;
        *unit_out = unit;
        *there_out = unit.phy == phy || unit.offset == offset;
        return CMQ_OK;
    }
    return CMQ_OK;
}

/* Is this record one that the queue should have at the unit's offset? */
static bool belongs(const cmq_verification *v, const cmq_rawqueue *raw, const cmq_unit *unit,
                    const cmq_record_view *view, bool *same_offset_out)
{
    cmq_dispatch_facts facts;
    cmq_slice name, text;
    *same_offset_out = true;
    if (view->queue_id == raw->id && cmq_slice_equal(view->topic, cmq_slice_of_text(raw->topic))) {
        cmq_dispatch_learn(v->store, view, &facts);
        *same_offset_out = (raw->kind == CMQ_QUEUE_BATCH ? facts.base_offset : view->queue_offset) == unit->offset;
        return true;
    }
    cmq_dispatch_learn(v->store, view, &facts);
    cmq_slice names = facts.known.value[CMQ_PROPERTY_INNER_MULTI_DISPATCH],
              offsets = facts.known.value[CMQ_PROPERTY_INNER_MULTI_QUEUE_OFFSET];
    if (names.bytes == 0) return false;
    while (cmq_dispatch_next_name(&names, &name) && cmq_dispatch_next_name(&offsets, &text))
        if (cmq_slice_equal(name, cmq_slice_of_text(raw->topic))) return true;
    return false;
}

/* Does the unit point to a whole record of its queue, and is that record's offset the unit's? */
static bool has_record(const cmq_verification *v, const cmq_rawqueue *raw, const cmq_unit *unit, bool *same_offset_out)
{
    cmq_segment *segment;
    cmq_record_view view;
    *same_offset_out = false;
    if (cmq_store_record_at(v->store, unit->phy, v->confirmed, 0, &segment, &view) != CMQ_OK) return false;
    const bool found = view.record_bytes == (uint32_t)unit->bytes && belongs(v, raw, unit, &view, same_offset_out);
    cmq_segment_unpin(segment);
    return found;
}

/* Has the queue the record at another offset? Units are in the order of the log, so it can be searched for; where they
 * are damaged the search may miss it, and the unit counts as missing. */
static cmq_status CMQ_MUST_CHECK is_displaced(cmq_verification *v, const cmq_rawqueue *raw, const cmq_record_view *view,
                                              bool *found_out)
{
    int64_t low = cmq_rawqueue_first(raw), high = cmq_rawqueue_end(raw);
    *found_out = false;
    while (low < high) {
        uint8_t image[CMQ_BATCH_UNIT_BYTES];
        cmq_unit unit;
        bool filler;
        const int64_t middle = low + (high - low) / 2;
        const cmq_status status = cmq_raw_queues_read(v->raw, raw, middle, 1, image);
        if (status != CMQ_OK) return status == CMQ_ERR_NOT_FOUND ? CMQ_OK : status;
        const bool there = cmq_rawqueue_decode(raw, middle, image, &unit, &filler);
        if (there && unit.phy == view->physical_offset) {
            *found_out = unit.bytes == (int32_t)view->record_bytes;
            return CMQ_OK;
        }
        if (filler || (there && unit.phy < view->physical_offset)) low = middle + 1;
        else high = middle;
    }
    return CMQ_OK;
}

/* ---- extensions ---- */

/* The tags code that a unit means; false when its extension is gone. */
static cmq_status CMQ_MUST_CHECK resolve_tags(cmq_verification *v, const cmq_rawqueue *raw, const cmq_unit *unit,
                                              int64_t *tags_code_out, bool *known_out)
{
    uint32_t map_bytes;
    int64_t store_ms;
    *known_out = true;
    *tags_code_out = unit->tags_code;
    if (raw->kind == CMQ_QUEUE_BATCH || !cmq_tags_code_is_ext(unit->tags_code)) return CMQ_OK;
    cmq_queue *queue = cmq_queues_find(v->store->queues, cmq_slice_of_text(raw->topic), raw->id);
    const cmq_status status =
        queue == NULL ? CMQ_ERR_NOT_FOUND
                      : cmq_queue_ext(queue, unit->offset, v->confirmed, NULL, 0, &map_bytes, tags_code_out, &store_ms);
    *known_out = status == CMQ_OK || status == CMQ_ERR_TOO_LARGE;   /* a map that we have no room for is there */
    return *known_out || status == CMQ_ERR_NOT_FOUND || status == CMQ_ERR_OFFSET || status == CMQ_ERR_CORRUPT ? CMQ_OK
                                                                                                              : status;
}

static cmq_status CMQ_MUST_CHECK check_found(cmq_verification *v, const cmq_rawqueue *raw, cmq_verify_queue *state,
                                             const cmq_record_view *view, const cmq_unit *unit, int64_t offset,
                                             int64_t tags_code, int32_t count)
{
    int64_t unit_tags;
    bool known;
    const cmq_status status = resolve_tags(v, raw, unit, &unit_tags, &known);
    if (status != CMQ_OK) return status;
    report_run(v, raw, state);
    state->matched++;
    v->out->units++;
    if (!known && state->ext_missing++ == 0) state->ext_first = offset;
    if (unit->bytes == (int32_t)view->record_bytes && unit->count == count && unit->offset == offset &&
        (!known || unit_tags == tags_code))
        return CMQ_OK;
    cmq_problem problem =
        problem_of(raw, CMQ_PROBLEM_UNIT_WRONG, CMQ_SEVERITY_REPAIRABLE, offset, view->physical_offset);
    cmq_verify_report(v, &problem,
                      "the unit at queue offset %" PRId64 " says size %d, count %d, tags code %" PRId64
                      "; the record has %u, %d, %" PRId64,
                      offset, unit->bytes, unit->count, unit_tags, view->record_bytes, count, tags_code);
    return CMQ_OK;
}

/* ---- a record's units ---- */

static cmq_status CMQ_MUST_CHECK check_absent(cmq_verification *v, const cmq_rawqueue *raw, cmq_verify_queue *state,
                                              const cmq_record_view *view, const cmq_unit *unit, bool there,
                                              int64_t offset)
{
    bool same_offset, displaced;
    if (there && unit->phy > view->physical_offset && has_record(v, raw, unit, &same_offset) && same_offset) {
        note_superseded(v, 1, view->physical_offset);
        return CMQ_OK;
    }
    const cmq_status status = is_displaced(v, raw, view, &displaced);
    if (status != CMQ_OK) return status;
    if (displaced) {
        if (v->displaced++ == 0) v->displaced_first_phy = view->physical_offset;
        state->matched++;
        v->out->units++;
        return CMQ_OK;
    }
    if (!there || raw->kind == CMQ_QUEUE_BATCH) {
        note_missing(v, raw, state, offset, view->physical_offset);
        return CMQ_OK;
    }
    report_run(v, raw, state);
    state->matched++;   /* so that it is not looked for as a unit without a record */
    cmq_problem problem =
        problem_of(raw, CMQ_PROBLEM_UNIT_WRONG, CMQ_SEVERITY_REPAIRABLE, offset, view->physical_offset);
    cmq_verify_report(v, &problem,
                      "the unit at queue offset %" PRId64 " says size %d at %" PRId64 "; the record has %u at %" PRId64,
                      offset, unit->bytes, unit->phy, view->record_bytes, view->physical_offset);
    return CMQ_OK;
}

static cmq_status CMQ_MUST_CHECK check_unit(cmq_verification *v, const cmq_record_view *view, const cmq_rawqueue *raw,
                                            int64_t offset, int64_t tags_code, int32_t count)
{
    cmq_verify_queue *state;
    cmq_unit unit;
    bool there;
    cmq_status status = state_of(v, raw, &state);
    if (status != CMQ_OK || state->gone) return status;
    if (offset < state->next) {   /* the numbering restarts: earlier units belong to a deleted topic */
        if (state->missing.count > 0) note_superseded(v, state->missing.count, state->missing.first_phy);
        state->missing.count = 0;
    }
    state->next = offset <= INT64_MAX - count ? offset + count : offset;
    status = unit_at(v, raw, state, offset, view->physical_offset, &unit, &there);
    if (status != CMQ_OK || state->gone) return status;
    if (there && unit.phy == view->physical_offset)
        return check_found(v, raw, state, view, &unit, offset, tags_code, count);
    return check_absent(v, raw, state, view, &unit, there, offset);
}

/* A decimal number as multi-dispatch writes it; false otherwise. */
static bool parse_offset(cmq_slice text, int64_t *offset_out)
{
    char digits[20] = {0};
    if (text.bytes == 0 || text.bytes > 18) return false;
    memcpy(digits, text.data, text.bytes);
    char *end;
    *offset_out = strtoll(digits, &end, 10);
    return *end == '\0' && *offset_out >= 0;
}

static cmq_status CMQ_MUST_CHECK check_multi(cmq_verification *v, const cmq_record_view *view,
                                             const cmq_dispatch_facts *facts)
{
    cmq_slice names = facts->known.value[CMQ_PROPERTY_INNER_MULTI_DISPATCH],
              offsets = facts->known.value[CMQ_PROPERTY_INNER_MULTI_QUEUE_OFFSET];
    cmq_slice name, text;
    if (names.bytes == 0 || offsets.bytes == 0 || !cmq_dispatch_may_multi(view->topic)) return CMQ_OK;
    while (cmq_dispatch_next_name(&names, &name) && cmq_dispatch_next_name(&offsets, &text)) {
        int64_t offset;
        /* Without such a queue the broker may have had multi-dispatch switched off. */
        const cmq_rawqueue *raw = cmq_is_lmq(name) ? cmq_raw_queues_find(v->raw, name, 0) : NULL;
        if (raw == NULL || !parse_offset(text, &offset)) continue;
        const cmq_status status = check_unit(v, view, raw, offset, facts->tags_code, 1);
        if (status != CMQ_OK) return status;
    }
    return CMQ_OK;
}

cmq_status cmq_verify_units_of(cmq_verification *v, const cmq_record_view *view, const cmq_dispatch_facts *facts)
{
    if (!facts->in_queue || view->physical_offset + view->record_bytes > v->units_end) return CMQ_OK;
    const cmq_rawqueue *raw = cmq_raw_queues_find(v->raw, view->topic, view->queue_id);
    cmq_status status;
    if (raw == NULL) {
        status = note_missing_queue(v, view);
    } else {
        const bool batch = raw->kind == CMQ_QUEUE_BATCH;
        status = check_unit(v, view, raw, batch ? facts->base_offset : view->queue_offset, facts->tags_code,
                            batch ? facts->count : 1);
    }
    return status == CMQ_OK ? check_multi(v, view, facts) : status;
}

/* ---- units that no record asked for ---- */

/* A walk over all units of a queue. */
typedef struct scan {
    int64_t units;       /* in the checked part of the log */
    int64_t fillers;     /* since the last unit */
    bool begun;          /* there was a unit: fillers before the first only say where the queue begins */
    bool name_dangling;  /* second pass: look at every record */
} scan;

static void look_at_unit(cmq_verification *v, const cmq_rawqueue *raw, const cmq_unit *unit, scan *of)
{
    if (!of->name_dangling && of->begun && of->fillers > 0) {
        cmq_problem problem = problem_of(raw, CMQ_PROBLEM_GAP, CMQ_SEVERITY_NOTE, unit->offset - of->fillers, -1);
        problem.count = of->fillers;
        cmq_verify_report(v, &problem, "%s from %" PRId64 " on %s no message",
                          cmq_counted(of->fillers, "queue offset").text, problem.queue_offset,
                          cmq_verb(of->fillers, "has", "have"));
    }
    of->begun = true;
    of->fillers = 0;
    /* expired; or left by a crash: opening cuts it */
    if (unit->phy < v->out->log_min || unit->phy > v->units_end - unit->bytes) return;
    of->units++;
    bool same_offset;
    if (!of->name_dangling || cmq_verify_is_damaged(v, unit->phy) || has_record(v, raw, unit, &same_offset)) return;
    cmq_problem problem = problem_of(raw, CMQ_PROBLEM_UNIT_DANGLING, CMQ_SEVERITY_REPAIRABLE, unit->offset, unit->phy);
    cmq_verify_report(v, &problem,
                      "the unit at queue offset %" PRId64 " points to a record of size %d at %" PRId64
                      ", which is not there",
                      unit->offset, unit->bytes, unit->phy);
}

static cmq_status CMQ_MUST_CHECK scan_units(cmq_verification *v, const cmq_rawqueue *raw, cmq_verify_queue *state,
                                            scan *of)
{
    int64_t at = cmq_rawqueue_first(raw);
    while (!v->stopped && !state->gone) {
        const cmq_status status = cmq_raw_queues_next(v->raw, raw, at, &at);
        if (status == CMQ_END) return CMQ_OK;
        if (status == CMQ_ERR_NOT_FOUND) state->gone = true;
        if (status != CMQ_OK) return state->gone ? CMQ_OK : status;
        const int64_t stop = at + CMQ_VERIFY_WINDOW_BYTES / raw->unit_bytes;
        for (; at < stop && !v->stopped && !state->gone; at++) {
            const uint8_t *image;
            cmq_unit unit;
            bool filler;
            const cmq_status read = image_at(v, raw, state, at, &image);
            if (read != CMQ_OK) return read;
            if (image == NULL) break;
            if (cmq_rawqueue_decode(raw, at, image, &unit, &filler)) look_at_unit(v, raw, &unit, of);
            else if (filler) of->fillers++;
        }
    }
    return CMQ_OK;
}

static cmq_status CMQ_MUST_CHECK check_queue(cmq_verification *v, const cmq_rawqueue *raw)
{
    cmq_verify_queue *state;
    scan counted = {0}, named = {.name_dangling = true};
    cmq_status status = state_of(v, raw, &state);
    if (status != CMQ_OK) return status;
    v->out->queues++;
    report_run(v, raw, state);
    if (state->ext_missing > 0) {
        cmq_problem problem = problem_of(raw, CMQ_PROBLEM_UNIT_WRONG, CMQ_SEVERITY_REPAIRABLE, state->ext_first, -1);
        problem.count = state->ext_missing;
        cmq_verify_report(v, &problem,
                          "%s %s an extension (consumequeue_ext) that is not there, and %s every tag filter",
                          cmq_counted(problem.count, "unit").text, cmq_verb(problem.count, "names", "name"),
                          cmq_verb(problem.count, "passes", "pass"));
    }
    status = scan_units(v, raw, state, &counted);
    if (status == CMQ_OK && !state->gone && counted.units != state->matched) status = scan_units(v, raw, state, &named);
    return status;
}

static void report_notes(cmq_verification *v)
{
    for (uint32_t i = 0; i < v->missing_count && !v->stopped; i++) {
        const cmq_verify_missing_queue *missing = &v->missing[i];
        const bool later = missing->completed_at_opening;
        cmq_problem problem =
            cmq_verify_problem(later ? CMQ_PROBLEM_UNIT_MISSING : CMQ_PROBLEM_QUEUE_MISSING,
                               later ? CMQ_SEVERITY_NOTE : CMQ_SEVERITY_REPAIRABLE, missing->first_phy);
        problem.topic = missing->topic;
        problem.queue_id = missing->queue_id;
        problem.count = missing->count;
        cmq_verify_report(v, &problem,
                          later ? "%s %s of a queue that has no file yet; opening the store makes it"
                                : "%s %s of a queue that is not there: its topic was deleted, or its files are lost",
                          cmq_counted(missing->count, "record").text, cmq_verb(missing->count, "is", "are"));
    }
    if (v->superseded > 0 && !v->stopped) {
        cmq_problem problem = cmq_verify_problem(CMQ_PROBLEM_UNIT_MISSING, CMQ_SEVERITY_NOTE, v->superseded_first_phy);
        problem.count = v->superseded;
        cmq_verify_report(v, &problem, "%s %s of topics that were deleted and made again",
                          cmq_counted(v->superseded, "record").text, cmq_verb(v->superseded, "is", "are"));
    }
    if (v->displaced > 0 && !v->stopped) {
        cmq_problem problem = cmq_verify_problem(CMQ_PROBLEM_UNIT_WRONG, CMQ_SEVERITY_NOTE, v->displaced_first_phy);
        problem.count = v->displaced;
        cmq_verify_report(v, &problem, "%s %s in a queue at another offset than the record says",
                          cmq_counted(v->displaced, "record").text, cmq_verb(v->displaced, "is", "are"));
    }
}

/* ---- life ---- */

cmq_status cmq_verify_load_queues(cmq_verification *v)
{
    const cmq_layout_sizes *sizes = &v->store->sizes;
    const cmq_status status =
        cmq_raw_queues_load(v->store->fs, v->store->root, sizes->queue_file_bytes, sizes->batch_file_bytes, &v->raw);
    if (status != CMQ_OK) return status;
    v->queues = calloc(cmq_raw_queues_count(v->raw) + 1, sizeof(cmq_verify_queue *));
    return v->queues != NULL ? CMQ_OK
                             : cmq_fail(CMQ_ERR_MEMORY, "no memory to verify %u queues", cmq_raw_queues_count(v->raw));
}

cmq_status cmq_verify_queues(cmq_verification *v)
{
    const uint32_t count = cmq_raw_queues_count(v->raw);
    for (uint32_t i = 0; i < count && cmq_verify_progress(v, v->confirmed, i % 64 == 0); i++) {
        const cmq_status status = check_queue(v, cmq_raw_queues_at(v->raw, i));
        if (status != CMQ_OK) return status;
        free(v->queues[i]);
        v->queues[i] = NULL;
    }
    if (!v->stopped) report_notes(v);
    return CMQ_OK;
}

void cmq_verify_free_queues(cmq_verification *v)
{
    if (v->queues != NULL)
        for (uint32_t i = 0; i < cmq_raw_queues_count(v->raw); i++) free(v->queues[i]);
    free(v->queues);
    for (uint32_t i = 0; i < v->missing_count; i++) free(v->missing[i].topic);
    cmq_raw_queues_free(v->raw);
}
