/* cmq_verify: see cmq_verify.h. */
#include "store/check/cmq_verify.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/cmq_counted.h"
#include "store/check/cmq_verify_internal.h"

#define PROGRESS_BYTES (INT64_C(8) << 20)

const char *cmq_problem_name(cmq_problem_kind kind)
{
    static const char *const names[] = {"record",        "tail",          "queue-missing", "unit-missing",
                                        "unit-wrong",    "unit-dangling", "gap",           "index-entry",
                                        "index-missing", "index-chain",   "index-unknown", "time"};
    return (size_t)kind < sizeof names / sizeof names[0] ? names[kind] : "unknown";
}

/* ---- reporting ---- */

cmq_problem cmq_verify_problem(cmq_problem_kind kind, cmq_severity severity, int64_t phy)
{
    return (cmq_problem){
        .kind = kind, .severity = severity, .physical_offset = phy, .queue_offset = -1, .queue_id = -1, .count = 1};
}

void cmq_verify_report(cmq_verification *v, cmq_problem *problem, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(problem->text, sizeof problem->text, format, args);
    va_end(args);
    v->out->problems[problem->severity]++;
    if (problem->severity > v->out->verdict) v->out->verdict = problem->severity;
    if (v->options->problem != NULL && !v->options->problem(v->options->context, problem)) v->stopped = true;
}

bool cmq_verify_progress(cmq_verification *v, int64_t phy, bool now)
{
    if (v->options->progress != NULL && (now || phy - v->progressed >= PROGRESS_BYTES)) {
        v->progressed = phy;
        if (!v->options->progress(v->options->context, phy - v->out->log_min, v->confirmed - v->out->log_min))
            v->stopped = true;
    }
    return !v->stopped;
}

bool cmq_verify_is_damaged(const cmq_verification *v, int64_t phy)
{
    uint32_t low = 0, high = v->damaged_count;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (v->damaged[middle].end > phy) high = middle;
        else low = middle + 1;
    }
    return low < v->damaged_count && phy >= v->damaged[low].from;
}

/* ---- the walk ---- */

/* A property CRC that is not the record's: the record has changed, or, in a log of before the store dropped such
 * properties, its producer sent it. */
static void check_proof(cmq_verification *v, const cmq_record_view *view)
{
    if (cmq_record_prove(view) != CMQ_RECORD_CONTRADICTED) return;
    const cmq_store_options *options = &v->store->options;
    const bool ours = options->property_crc || options->check_property_crc || cmq_record_has_zero(view);
    cmq_problem problem =
        cmq_verify_problem(CMQ_PROBLEM_RECORD, ours ? CMQ_SEVERITY_DAMAGED : CMQ_SEVERITY_NOTE, view->physical_offset);
    cmq_verify_report(v, &problem, "the record's property CRC (__CRC32#) is not that of its bytes: %s",
                      ours ? "its head, topic or properties have changed"
                           : "they have changed, or its producer sent that property");
}

static cmq_status check_record(cmq_verification *v, const cmq_record_view *view)
{
    cmq_dispatch_facts facts;
    check_proof(v, view);
    cmq_dispatch_learn(v->store, view, &facts);
    v->out->records++;
    v->out->body_bytes += (int64_t)view->body.bytes;
    if (view->store_timestamp_ms < v->last_ms) {
        cmq_problem problem = cmq_verify_problem(CMQ_PROBLEM_TIME, CMQ_SEVERITY_NOTE, view->physical_offset);
        /* Both may be anything: no CRC covers them. */
        cmq_verify_report(v, &problem, "the store time falls back, from %" PRId64 " to %" PRId64, v->last_ms,
                          view->store_timestamp_ms);
    }
    v->last_ms = view->store_timestamp_ms;
    v->last_phy = view->physical_offset;
    cmq_status status = cmq_verify_units_of(v, view, &facts);
    if (status == CMQ_OK) status = cmq_verify_keys_of(v, view, &facts);
    return status;
}

/* Where the log goes on behind the bytes at `phy`, which are no record. */
static int64_t pass_damage(cmq_verification *v, int64_t phy)
{
    char reason[CMQ_DAMAGE_REASON_BYTES];
    cmq_store_damage_reason(reason);
    const int64_t bytes = v->store->sizes.segment_bytes;
    int64_t next = v->confirmed;
    for (int64_t from = phy + 1; from < v->confirmed; from = from - from % bytes + bytes) {
        cmq_record_view sound;
        if (!cmq_store_find_sound(v->store, from, &sound)) continue;
        if (sound.physical_offset < next) next = sound.physical_offset;
        break;
    }
    if (v->damaged_count < CMQ_VERIFY_RANGES_MAX)
        v->damaged[v->damaged_count++] = (cmq_verify_range){.from = phy, .end = next};
    cmq_problem problem = cmq_verify_problem(CMQ_PROBLEM_RECORD, CMQ_SEVERITY_DAMAGED, phy);
    cmq_verify_report(v, &problem, "%s %s no whole record: %s", cmq_counted(next - phy, "byte").text,
                      cmq_verb(next - phy, "is", "are"), reason);
    return next;
}

static cmq_status walk_log(cmq_verification *v)
{
    const int64_t bytes = v->store->sizes.segment_bytes;
    for (int64_t phy = v->out->log_min; phy < v->confirmed && cmq_verify_progress(v, phy, false);) {
        cmq_segment *segment;
        cmq_record_view view;
        cmq_status status =
            cmq_store_record_at(v->store, phy, v->confirmed, CMQ_RECORD_CHECK_BODY_CRC, &segment, &view);
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
            if (status == CMQ_AGAIN) cmq_fail_at(CMQ_ERR_CORRUPT, phy, "the record is longer than the log");
            phy = pass_damage(v, phy);
        } else {
            return status;
        }
    }
    return CMQ_OK;
}

/* ---- the end ---- */

/* Does the log end before what the last writer knew to be on disk? A blank ends its segment in order. */
static bool falls_short(cmq_verification *v, bool at_blank)
{
    const int64_t bytes = v->store->sizes.segment_bytes,
                  end = at_blank ? v->confirmed - v->confirmed % bytes + bytes : v->confirmed;
    const int64_t known_end = v->store->known_end;
    if (known_end <= end) return false;
    const bool missing = known_end > cmq_log_last_file_end(v->store->log);
    cmq_problem problem = cmq_verify_problem(CMQ_PROBLEM_RECORD, CMQ_SEVERITY_DAMAGED, v->confirmed);
    cmq_verify_report(v, &problem, "the log ends here, but messages up to %" PRId64 " were acknowledged: %s", known_end,
                      missing ? "later segment files are missing" : "the bytes in between are not a whole record");
    return true;
}

/* Behind the end there should be zeros, or a blank. Only where nobody is writing. */
static void check_tail(cmq_verification *v)
{
    cmq_store *store = v->store;
    cmq_segment *segment;
    cmq_record_view view;
    const int64_t last = cmq_store_bytes_behind(store, v->confirmed);
    if (v->live) return;
    if (cmq_store_flushed_behind(store, v->confirmed, v->last_phy, v->last_ms, store->opening.was_unclean, &view)) {
        cmq_problem problem = cmq_verify_problem(CMQ_PROBLEM_RECORD, CMQ_SEVERITY_DAMAGED, v->confirmed);
        cmq_verify_report(v, &problem, "bytes that are not a record end the readable log here, but flushed messages "
                          "follow at %" PRId64, view.physical_offset);
        return;
    }
    const cmq_status status =
        cmq_store_record_at(store, v->confirmed, cmq_log_last_file_end(store->log), 0, &segment, &view);
    if (status == CMQ_OK) cmq_segment_unpin(segment);
    if (falls_short(v, status == CMQ_END) || last == 0 || status == CMQ_END) return;
    cmq_problem problem = cmq_verify_problem(CMQ_PROBLEM_TAIL, CMQ_SEVERITY_REPAIRABLE, v->confirmed);
    cmq_verify_report(v, &problem,
                      "%s behind the last whole record: a torn tail, or left from before a cut; opening the store for "
                      "writing blanks them",
                      cmq_counted(last, "byte").text);
}

/* ---- the whole ---- */

/* Set the limits of the checks: some are impossible beside a writer. */
static void set_limits(cmq_verification *v)
{
    cmq_store *store = v->store;
    v->confirmed = v->units_end = cmq_log_confirmed(store->log);
    v->live = !store->options.read_only || store->source != CMQ_FOLLOW_SOURCE_STATIC;
    v->completed_from = !v->live && store->opening.was_unclean ? store->opening.scanned_from : INT64_MAX;
    if (store->follow != NULL && v->live && (!store->options.read_only || store->source == CMQ_FOLLOW_SOURCE_PAGE)) {
        cmq_follow_state page;
        cmq_follow_snapshot(store->follow, &page);
        if (page.files_end < v->units_end) v->units_end = page.files_end;
    }
}

cmq_status cmq_store_verify(cmq_store *store, const cmq_verify_options *options, cmq_verified *verified_out)
{
    *verified_out = (cmq_verified){0};
    cmq_verification *v = calloc(1, sizeof *v);
    if (v == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory to verify");
    cmq_status status = cmq_store_refresh(store);
    v->store = store;
    v->options = options;
    v->out = verified_out;
    v->last_phy = -1;
    set_limits(v);
    verified_out->log_min = v->progressed = cmq_log_min(store->log);
    verified_out->log_end = v->confirmed;
    if (status == CMQ_OK) status = cmq_verify_load_queues(v);
    if (status == CMQ_OK) status = cmq_verify_load_index(v);
    if (status == CMQ_OK) status = walk_log(v);
    if (status == CMQ_OK && !v->stopped) status = cmq_verify_queues(v);
    if (status == CMQ_OK && !v->stopped) status = cmq_verify_index_rest(v);
    if (status == CMQ_OK && !v->stopped) check_tail(v);
    if (status == CMQ_OK && !v->stopped) (void)cmq_verify_progress(v, v->confirmed, true);
    verified_out->complete = status == CMQ_OK && !v->stopped;
    cmq_verify_free_queues(v);
    cmq_verify_free_index(v);
    free(v);
    return status;
}
