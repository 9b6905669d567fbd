/* cmq_verify: see cmq_verify.h. */
#include "store/cmq_verify.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cmq_assert.h"
#include "store/cmq_store_internal.h"

#define AHEAD_UNITS 64u
#define PROGRESS_BYTES (INT64_C(8) << 20)
#define MISSING_QUEUES_MAX 1024u

const char *cmq_problem_name(cmq_problem_kind kind)
{
    static const char *const names[] = {"record", "tail", "queue-missing", "unit-missing", "unit-wrong", "unit-dangling",
                                        "gap", "index-entry", "index-missing", "time"};
    return (size_t)kind < sizeof names / sizeof names[0] ? names[kind] : "unknown";
}

/* What is known of one queue: how many of its units a record asked for, and units read ahead. */
typedef struct queue_state {
    const cmq_queue *key;
    cmq_queue *queue;
    int64_t matched;
    uint32_t at, count;
    cmq_unit ahead[AHEAD_UNITS];
} queue_state;

/* Records whose queue does not exist, by name. */
typedef struct missing_queue {
    char *topic;
    int32_t queue_id;
    int64_t count;
    int64_t first_phy;
} missing_queue;

typedef struct verification {
    cmq_store *store;
    const cmq_verify_options *options;
    cmq_verified *out;
    int64_t confirmed;
    queue_state **states;          /* open addressing by queue */
    uint32_t state_capacity, state_count;
    missing_queue missing[MISSING_QUEUES_MAX];
    uint32_t missing_count;

    /* The index, read beside the log. */
    uint32_t index_file;
    int32_t index_entry;
    bool index_has;                /* index_key is the next entry */
    cmq_index_key index_key;
    int64_t missing_keys_first_phy;

    cmq_pending_keys keys;
    int64_t last_ms;
    int64_t progressed;
    bool stopped;
} verification;

/* ---- reporting ---- */

static void report(verification *v, cmq_problem *problem, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void report(verification *v, cmq_problem *problem, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(problem->text, sizeof problem->text, format, args);
    va_end(args);
    if (problem->count == 0) problem->count = 1;
    v->out->problems[problem->severity]++;
    if (problem->severity > v->out->verdict) v->out->verdict = problem->severity;
    if (v->options->problem != NULL && !v->options->problem(v->options->context, problem)) v->stopped = true;
}

static cmq_problem problem_at(cmq_problem_kind kind, cmq_severity severity, int64_t phy)
{
    return (cmq_problem){.kind = kind, .severity = severity, .physical_offset = phy, .queue_offset = -1, .queue_id = -1, .count = 1};
}

static cmq_problem problem_of_queue(cmq_problem_kind kind, cmq_severity severity, const cmq_queue *queue, int64_t offset, int64_t phy)
{
    cmq_problem problem = problem_at(kind, severity, phy);
    problem.topic = cmq_queue_topic(queue);
    problem.queue_id = cmq_queue_id(queue);
    problem.queue_offset = offset;
    return problem;
}

/* ---- queues ---- */

static uint32_t slot_of(const verification *v, const cmq_queue *queue)
{
    uint32_t slot = (uint32_t)(((uintptr_t)queue >> 4) * UINT64_C(0x9E3779B97F4A7C15) >> 32) & (v->state_capacity - 1);
    while (v->states[slot] != NULL && v->states[slot]->key != queue) slot = (slot + 1) & (v->state_capacity - 1);
    return slot;
}

static cmq_status grow_states(verification *v)
{
    const uint32_t before = v->state_capacity;
    queue_state **old = v->states;
    v->state_capacity = before == 0 ? 64 : before * 2;
    v->states = calloc(v->state_capacity, sizeof(queue_state *));
    if (v->states == NULL) {
        v->states = old;
        v->state_capacity = before;
        return cmq_fail(CMQ_ERR_MEMORY, "no memory to verify %u queues", before);
    }
    for (uint32_t i = 0; i < before; i++)
        if (old[i] != NULL) v->states[slot_of(v, old[i]->key)] = old[i];
    free(old);
    return CMQ_OK;
}

static cmq_status state_of(verification *v, cmq_queue *queue, queue_state **state_out)
{
    if (v->state_count * 2 >= v->state_capacity) {
        const cmq_status status = grow_states(v);
        if (status != CMQ_OK) return status;
    }
    queue_state **slot = &v->states[slot_of(v, queue)];
    if (*slot == NULL) {
        *slot = calloc(1, sizeof **slot);
        if (*slot == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory to verify a queue");
        (*slot)->key = (*slot)->queue = queue;
        v->state_count++;
    }
    *state_out = *slot;
    return CMQ_OK;
}

/* The unit at `offset`, or NULL when the queue has none there. */
static cmq_status unit_at(verification *v, queue_state *state, int64_t offset, const cmq_unit **unit_out)
{
    *unit_out = NULL;
    if (state->at < state->count && state->ahead[state->at].offset < offset) state->at++;
    if (state->at >= state->count || state->ahead[state->at].offset != offset) {
        int64_t next;
        state->at = state->count = 0;
        const cmq_status status = cmq_queue_read(state->queue, offset, v->confirmed, state->ahead, AHEAD_UNITS, &state->count, &next);
        if (status != CMQ_OK) return status;
    }
    if (state->count > 0 && state->ahead[state->at].offset == offset) *unit_out = &state->ahead[state->at];
    return CMQ_OK;
}

static cmq_status note_missing_queue(verification *v, const cmq_record_view *view)
{
    for (uint32_t i = 0; i < v->missing_count; i++)
        if (v->missing[i].queue_id == view->queue_id && cmq_slice_equal(view->topic, cmq_slice_of_text(v->missing[i].topic))) {
            v->missing[i].count++;
            return CMQ_OK;
        }
    if (v->missing_count == MISSING_QUEUES_MAX) return CMQ_OK;   /* the count of the first thousand says enough */
    char *topic = strndup((const char *)view->topic.data, view->topic.bytes);
    if (topic == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for a topic name");
    v->missing[v->missing_count++] = (missing_queue){.topic = topic, .queue_id = view->queue_id, .count = 1, .first_phy = view->physical_offset};
    return CMQ_OK;
}

/* Hold a record against the unit that it must have at `offset` of `queue`. */
static cmq_status check_unit(verification *v, const cmq_record_view *view, cmq_queue *queue, int64_t offset, int64_t tags_code, int32_t count)
{
    queue_state *state;
    const cmq_unit *unit;
    cmq_status status = state_of(v, queue, &state);
    if (status == CMQ_OK) status = unit_at(v, state, offset, &unit);
    if (status != CMQ_OK) return status;
    if (unit == NULL) {
        /* Below the first ordinal: the queue was deleted, and began anew; or its old units are corrected away. */
        const bool below = offset < cmq_queue_min(queue);
        cmq_problem problem = problem_of_queue(CMQ_PROBLEM_UNIT_MISSING, below ? CMQ_SEVERITY_NOTE : CMQ_SEVERITY_REPAIRABLE, queue, offset, view->physical_offset);
        report(v, &problem, "the record has no unit at queue offset %" PRId64 " of %s/%d", offset, cmq_queue_topic(queue), cmq_queue_id(queue));
        return CMQ_OK;
    }
    if (unit->phy > view->physical_offset) return CMQ_OK;   /* a topic that was deleted and made again: a later record has this ordinal now */
    const bool tags_known = !cmq_tags_code_is_ext(unit->tags_code);
    if (unit->phy != view->physical_offset || unit->bytes != (int32_t)view->record_bytes || unit->count != count ||
        (tags_known && unit->tags_code != tags_code)) {
        cmq_problem problem = problem_of_queue(CMQ_PROBLEM_UNIT_WRONG, CMQ_SEVERITY_REPAIRABLE, queue, offset, view->physical_offset);
        report(v, &problem, "the unit says (%" PRId64 ", %d, %" PRId64 "), the record (%" PRId64 ", %u, %" PRId64 ")", unit->phy, unit->bytes,
               unit->tags_code, view->physical_offset, view->record_bytes, tags_code);
        return CMQ_OK;
    }
    state->matched++;
    v->out->units++;
    return CMQ_OK;
}

static cmq_status check_multi(verification *v, const cmq_record_view *view, const cmq_dispatch_facts *facts)
{
    cmq_slice names = facts->known.value[CMQ_PROPERTY_INNER_MULTI_DISPATCH], offsets = facts->known.value[CMQ_PROPERTY_INNER_MULTI_QUEUE_OFFSET];
    cmq_slice name, text;
    if (names.bytes == 0 || offsets.bytes == 0 || !cmq_dispatch_may_multi(view->topic)) return CMQ_OK;
    while (cmq_dispatch_next_name(&names, &name) && cmq_dispatch_next_name(&offsets, &text)) {
        cmq_queue *queue = name.bytes > 0 ? cmq_queues_find(v->store->queues, name, cmq_is_lmq(name) ? 0 : view->queue_id) : NULL;
        if (queue == NULL || text.bytes == 0 || text.bytes > 18) continue;
        char digits[20] = {0};
        memcpy(digits, text.data, text.bytes);
        const cmq_status status = check_unit(v, view, queue, strtoll(digits, NULL, 10), facts->tags_code, 1);
        if (status != CMQ_OK) return status;
    }
    return CMQ_OK;
}

static cmq_status check_units(verification *v, const cmq_record_view *view, const cmq_dispatch_facts *facts)
{
    if (!facts->in_queue) return CMQ_OK;
    cmq_queue *queue = cmq_queues_find(v->store->queues, view->topic, view->queue_id);
    cmq_status status;
    if (queue == NULL) {
        status = note_missing_queue(v, view);
    } else {
        const bool batch = cmq_queue_kind_of(queue) == CMQ_QUEUE_BATCH;
        status = check_unit(v, view, queue, batch ? facts->base_offset : view->queue_offset, facts->tags_code, batch ? facts->count : 1);
    }
    return status == CMQ_OK ? check_multi(v, view, facts) : status;
}

/* ---- index ---- */

static void next_entry(verification *v)
{
    v->index_has = false;
    if (v->store->index == NULL) return;
    for (cmq_index_file_info info; v->index_file < cmq_index_files(v->store->index); v->index_file++, v->index_entry = 0) {
        if (cmq_index_file_at(v->store->index, v->index_file, &info) != CMQ_OK) continue;
        if (++v->index_entry >= info.count) continue;
        if (cmq_index_entry_at(v->store->index, v->index_file, v->index_entry, &v->index_key) != CMQ_OK) continue;
        v->index_has = true;
        return;
    }
}

static void report_entry(verification *v)
{
    if (v->index_key.phy >= v->out->log_min) {   /* below: expired with its segment */
        cmq_problem problem = problem_at(CMQ_PROBLEM_INDEX_ENTRY, CMQ_SEVERITY_REPAIRABLE, v->index_key.phy);
        report(v, &problem, "index entry %d of file number %u has a hash that no key of a record at %" PRId64 " has", v->index_entry, v->index_file,
               v->index_key.phy);
    }
    next_entry(v);
}

static bool take_key(cmq_pending_keys *keys, uint32_t *left, uint32_t hash, uint64_t *seen)
{
    for (uint32_t i = 0; i < keys->count; i++) {
        if (keys->keys[i].hash != hash) continue;
        /* The same entry twice is upstream's re-dispatch of the last message: no problem, and counted once. */
        if (i < 64 && (*seen >> i & 1u) != 0) return true;
        if (i < 64) *seen |= UINT64_C(1) << i;
        (*left)--;
        return true;
    }
    return false;
}

static cmq_status check_keys(verification *v, const cmq_record_view *view, const cmq_dispatch_facts *facts)
{
    if (v->store->index == NULL) return CMQ_OK;
    v->keys.count = 0;
    const cmq_status status = cmq_dispatch_keys(view, facts, cmq_topic_index_seed(view->topic), &v->keys);
    if (status != CMQ_OK) return status;
    while (v->index_has && v->index_key.phy < view->physical_offset) report_entry(v);
    uint32_t left = v->keys.count;
    uint64_t seen = 0;
    while (v->index_has && v->index_key.phy == view->physical_offset) {
        if (!take_key(&v->keys, &left, v->index_key.hash, &seen)) {
            report_entry(v);
            continue;
        }
        v->out->index_entries++;
        next_entry(v);
    }
    v->out->keys += v->keys.count;
    if (left > 0 && v->missing_keys_first_phy < 0) v->missing_keys_first_phy = view->physical_offset;
    v->out->keys_missing += left <= v->keys.count ? left : 0;
    return CMQ_OK;
}

/* ---- the walk ---- */

static cmq_status check_record(verification *v, const cmq_record_view *view)
{
    cmq_dispatch_facts facts;
    cmq_dispatch_learn(v->store, view, &facts);
    v->out->records++;
    v->out->body_bytes += (int64_t)view->body.bytes;
    if (view->store_timestamp_ms < v->last_ms) {
        cmq_problem problem = problem_at(CMQ_PROBLEM_TIME, CMQ_SEVERITY_NOTE, view->physical_offset);
        report(v, &problem, "the store time falls back by %" PRId64 " ms", v->last_ms - view->store_timestamp_ms);
    }
    v->last_ms = view->store_timestamp_ms;
    cmq_status status = check_units(v, view, &facts);
    if (status == CMQ_OK) status = check_keys(v, view, &facts);
    return status;
}

static int64_t pass_damage(verification *v, int64_t phy)
{
    cmq_record_view sound;
    const int64_t bytes = v->store->sizes.segment_bytes;
    int64_t next = phy - phy % bytes + bytes;
    char reason[160];
    snprintf(reason, sizeof reason, "%.*s", 159, cmq_last_error()->text);
    if (cmq_store_find_sound(v->store, phy + 1, &sound)) next = sound.physical_offset;
    cmq_problem problem = problem_at(CMQ_PROBLEM_RECORD, CMQ_SEVERITY_DAMAGED, phy);
    report(v, &problem, "%" PRId64 " bytes are no whole record: %s", next - phy, reason);
    return next;
}

static void progress(verification *v, int64_t phy)
{
    if (v->options->progress == NULL || phy - v->progressed < PROGRESS_BYTES) return;
    v->progressed = phy;
    if (!v->options->progress(v->options->context, phy - v->out->log_min, v->confirmed - v->out->log_min)) v->stopped = true;
}

static cmq_status walk_log(verification *v)
{
    const int64_t bytes = v->store->sizes.segment_bytes;
    for (int64_t phy = v->out->log_min; phy < v->confirmed && !v->stopped;) {
        cmq_segment *segment;
        cmq_record_view view;
        cmq_status status = cmq_store_record_at(v->store, phy, v->confirmed, CMQ_RECORD_CHECK_BODY_CRC | CMQ_RECORD_CHECK_IF_PROPERTY_CRC, &segment, &view);
        if (status == CMQ_OK) {
            status = check_record(v, &view);
            phy += view.record_bytes;
            cmq_segment_unpin(segment);
            if (status != CMQ_OK) return status;
        } else if (status == CMQ_END) {
            phy = phy - phy % bytes + bytes;
        } else if (status == CMQ_ERR_OFFSET && phy < cmq_log_min(v->store->log)) {
            phy = cmq_log_min(v->store->log);   /* expired meanwhile */
        } else if (status == CMQ_AGAIN || status == CMQ_ERR_CORRUPT) {
            if (status == CMQ_AGAIN) cmq_fail_at(CMQ_ERR_CORRUPT, phy, "it says that it is longer than what is there");
            phy = pass_damage(v, phy);
        } else {
            return status;
        }
        progress(v, phy);
    }
    return CMQ_OK;
}

/* ---- afterwards ---- */

/* Units of a queue that no record asked for: go through them all and name the ones whose record is not there. */
static cmq_status find_dangling(verification *v, cmq_queue *queue)
{
    cmq_unit units[AHEAD_UNITS];
    uint32_t count = AHEAD_UNITS;
    int64_t at = cmq_queue_min(queue), next;
    while (count > 0 && !v->stopped) {
        const cmq_status status = cmq_queue_read(queue, at, v->confirmed, units, AHEAD_UNITS, &count, &next);
        if (status != CMQ_OK) return status;
        for (uint32_t i = 0; i < count && !v->stopped; i++) {
            cmq_segment *segment;
            cmq_record_view view;
            const cmq_status found = cmq_store_record_at(v->store, units[i].phy, v->confirmed, 0, &segment, &view);
            if (found == CMQ_OK) cmq_segment_unpin(segment);
            if (found == CMQ_OK && view.record_bytes == (uint32_t)units[i].bytes) continue;
            if (units[i].phy < cmq_log_min(v->store->log)) continue;
            cmq_problem problem = problem_of_queue(CMQ_PROBLEM_UNIT_DANGLING, CMQ_SEVERITY_REPAIRABLE, queue, units[i].offset, units[i].phy);
            report(v, &problem, "the unit points to %d bytes at %" PRId64 ", where no such record is", units[i].bytes, units[i].phy);
        }
        at = next;
    }
    return CMQ_OK;
}

static cmq_status count_units(verification *v, cmq_queue *queue, int64_t *count_out)
{
    cmq_unit units[AHEAD_UNITS];
    uint32_t count = AHEAD_UNITS;
    int64_t at = cmq_queue_min(queue), next, expected = at;
    *count_out = 0;
    while (count > 0) {
        const cmq_status status = cmq_queue_read(queue, at, v->confirmed, units, AHEAD_UNITS, &count, &next);
        if (status != CMQ_OK) return status;
        for (uint32_t i = 0; i < count; i++) {
            if (units[i].offset > expected) {
                cmq_problem problem = problem_of_queue(CMQ_PROBLEM_GAP, CMQ_SEVERITY_NOTE, queue, expected, -1);
                problem.count = units[i].offset - expected;
                report(v, &problem, "%" PRId64 " ordinals have no message", problem.count);
            }
            expected = units[i].offset + units[i].count;
        }
        *count_out += count;
        at = next;
    }
    return CMQ_OK;
}

static cmq_status check_queues(verification *v)
{
    const uint32_t count = cmq_queues_count(v->store->queues);
    for (uint32_t i = 0; i < count && !v->stopped; i++) {
        cmq_queue *queue = cmq_queues_at(v->store->queues, i);
        if (cmq_queue_deleted(queue)) continue;
        queue_state *state;
        int64_t units;
        v->out->queues++;
        cmq_status status = state_of(v, queue, &state);
        if (status == CMQ_OK) status = count_units(v, queue, &units);
        if (status == CMQ_OK && units != state->matched) status = find_dangling(v, queue);
        if (status != CMQ_OK) return status;
    }
    return CMQ_OK;
}

static void report_missing(verification *v)
{
    for (uint32_t i = 0; i < v->missing_count && !v->stopped; i++) {
        const missing_queue *missing = &v->missing[i];
        cmq_problem problem = problem_at(CMQ_PROBLEM_QUEUE_MISSING, CMQ_SEVERITY_REPAIRABLE, missing->first_phy);
        problem.topic = missing->topic;
        problem.queue_id = missing->queue_id;
        problem.count = missing->count;
        report(v, &problem, "%" PRId64 " records are of %s/%d, which has no queue: its topic was deleted, or its files are lost", missing->count,
               missing->topic, missing->queue_id);
    }
    if (v->out->keys_missing > 0 && !v->stopped) {
        cmq_problem problem = problem_at(CMQ_PROBLEM_INDEX_MISSING, CMQ_SEVERITY_NOTE, v->missing_keys_first_phy);
        problem.count = v->out->keys_missing;
        report(v, &problem, "%" PRId64 " of %" PRId64 " keys are not in the index (upstream drops the newest index file after a crash); repair indexes them",
               v->out->keys_missing, v->out->keys);
    }
}

/* Anything but zeros behind the end: a torn tail, or records from before a cut. Only where nobody is writing there. */
static void check_tail(verification *v)
{
    if (!v->store->options.read_only || v->store->source != CMQ_FOLLOW_SOURCE_STATIC) return;
    cmq_segment *segment;
    cmq_record_view view;
    const int64_t last = cmq_store_bytes_behind(v->store, v->confirmed);
    if (last == 0) return;
    if (cmq_store_record_at(v->store, v->confirmed, cmq_log_last_file_end(v->store->log), 0, &segment, &view) == CMQ_END) return;   /* a blank */
    cmq_record_view sound;
    const bool whole = cmq_store_find_sound(v->store, v->confirmed, &sound) && sound.store_timestamp_ms >= v->last_ms;
    cmq_problem problem = problem_at(CMQ_PROBLEM_TAIL, whole ? CMQ_SEVERITY_DAMAGED : CMQ_SEVERITY_REPAIRABLE, v->confirmed);
    if (whole) report(v, &problem, "bytes that are no record end the log here, but whole records follow at %" PRId64, sound.physical_offset);
    else report(v, &problem, "%" PRId64 " bytes behind the last whole record are a torn tail, or left from before a cut", last);
}

static void free_verification(verification *v)
{
    for (uint32_t i = 0; i < v->state_capacity; i++) free(v->states[i]);
    free(v->states);
    for (uint32_t i = 0; i < v->missing_count; i++) free(v->missing[i].topic);
    free(v->keys.keys);
    free(v);
}

cmq_status cmq_store_verify(cmq_store *store, const cmq_verify_options *options, cmq_verified *verified_out)
{
    *verified_out = (cmq_verified){0};
    verification *v = calloc(1, sizeof *v);
    if (v == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory to verify");
    cmq_status status = cmq_store_refresh(store);
    v->store = store;
    v->options = options;
    v->out = verified_out;
    v->confirmed = cmq_log_confirmed(store->log);
    v->missing_keys_first_phy = -1;
    verified_out->log_min = v->progressed = cmq_log_min(store->log);
    verified_out->log_end = v->confirmed;
    next_entry(v);
    if (status == CMQ_OK) status = walk_log(v);
    while (status == CMQ_OK && !v->stopped && v->index_has && v->index_key.phy < v->confirmed) report_entry(v);
    if (status == CMQ_OK && !v->stopped) status = check_queues(v);
    if (status == CMQ_OK && !v->stopped) {
        report_missing(v);
        check_tail(v);
    }
    verified_out->complete = status == CMQ_OK && !v->stopped;
    free_verification(v);
    return status;
}
