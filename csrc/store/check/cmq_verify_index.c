/* cmq_verify_index: entries of the key index against the keys of the records; see cmq_verify.h.
 *
 * The walk over the entries is cmq_index_walk's.
 *
 * Threads: as cmq_verify.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/cmq_counted.h"
#include "store/check/cmq_verify_internal.h"

static void report_entry(cmq_verification *v, const cmq_index_key *key)
{
    if (key->phy >= 0 && key->phy < v->out->log_min) return;   /* expired with its segment */
    /* Of a record that came since, or that a crash took: opening cuts such entries. */
    if (key->phy >= v->confirmed && (v->live || v->completed_from != INT64_MAX)) return;
    if (cmq_verify_is_damaged(v, key->phy)) return;
    cmq_problem problem = cmq_verify_problem(CMQ_PROBLEM_INDEX_ENTRY, CMQ_SEVERITY_REPAIRABLE, key->phy);
    cmq_verify_report(v, &problem,
                      "index entry %d of file number %u has a hash that no key of a record at %" PRId64 " has",
                      v->index.walk.entry, v->index.walk.file, key->phy);
}

/* The next entry that is in order. */
static void next_entry(cmq_verification *v)
{
    cmq_index_walk *walk = &v->index.walk;
    cmq_index_walk_next(walk);
    for (; walk->has && walk->is_stray && !v->stopped; cmq_index_walk_next(walk)) report_entry(v, &walk->key);
}

cmq_status cmq_verify_load_index(cmq_verification *v)
{
    v->index.missing_first_phy = v->index.end_phy = -1;
    if (v->store->index == NULL) return CMQ_OK;
    if (v->store->options.read_only) {
        const cmq_status status = cmq_index_refresh(v->store->index);
        if (status != CMQ_OK) return status;
    }
    cmq_index_file_info info;
    for (uint32_t i = cmq_index_files(v->store->index); i > 0 && v->index.end_phy < 0; i--)
        if (cmq_index_file_at(v->store->index, i - 1, &info) == CMQ_OK && info.count > 1)
            v->index.end_phy = info.end_phy;
    cmq_index_walk_begin(&v->index.walk, v->store->index);
    next_entry(v);
    return CMQ_OK;
}

/* Hold the entry that the walk has come to against the record's keys. */
static void check_entry(cmq_verification *v, cmq_index_match *match)
{
    cmq_verify_index *index = &v->index;
    v->out->index_entries++;
    switch (cmq_index_match_take(match, index->walk.key.hash)) {
    case CMQ_INDEX_ENTRY_KEY:
    case CMQ_INDEX_ENTRY_TAGS: break;
    case CMQ_INDEX_ENTRY_WRONG: report_entry(v, &index->walk.key); break;
    case CMQ_INDEX_ENTRY_UNKNOWN:
        if (index->unknown++ == 0) index->unknown_first_phy = index->walk.key.phy;
        break;
    }
}

cmq_status cmq_verify_keys_of(cmq_verification *v, const cmq_record_view *view, const cmq_dispatch_facts *facts)
{
    if (v->store->index == NULL) return CMQ_OK;
    cmq_verify_index *index = &v->index;
    const cmq_index_walk *walk = &index->walk;
    index->keys.count = 0;
    const cmq_status status = cmq_dispatch_keys(view, facts, cmq_index_topic_seed(view->topic), true, &index->keys);
    if (status != CMQ_OK) return status;
    while (walk->has && walk->key.phy < view->physical_offset && !v->stopped) {
        report_entry(v, &walk->key);
        next_entry(v);
    }
    cmq_index_match match =
        cmq_index_match_of(index->keys.keys, index->keys.count, cmq_dispatch_has_indexed_tags(facts));
    v->out->keys += match.left;
    while (walk->has && walk->key.phy == view->physical_offset && !v->stopped) {
        check_entry(v, &match);
        next_entry(v);
    }
    /* Beside a writer keys come a moment after their record. */
    if (match.left == 0 || (v->live && view->physical_offset > index->end_phy)) return CMQ_OK;
    if (index->missing_first_phy < 0) index->missing_first_phy = view->physical_offset;
    v->out->keys_missing += match.left;
    return CMQ_OK;
}

/* A slot that leads behind the last entry is damage, but in a file that a writer in another process puts keys into, or
 * that waits for its recovery. This process's writer is kept out for a second look. */
static cmq_status CMQ_MUST_CHECK prove_chains(cmq_verification *v, uint32_t file, const char *path, bool *fits_out)
{
    cmq_store *store = v->store;
    const bool newest = file + 1 >= cmq_index_files(store->index), ours = !store->options.read_only;
    const bool lenient = !ours && ((v->live && newest) || v->completed_from != INT64_MAX);
    cmq_status status =
        cmq_index_prove_split(store->fs, path, store->sizes.index_slots, store->sizes.index_entries, lenient, fits_out);
    if (status != CMQ_OK || *fits_out || !ours) return status;
    pthread_mutex_lock(&store->index_mutex);
    status =
        cmq_index_prove_split(store->fs, path, store->sizes.index_slots, store->sizes.index_entries, false, fits_out);
    pthread_mutex_unlock(&store->index_mutex);
    return status;
}

/* The head, slots and chains of one file. */
static cmq_status CMQ_MUST_CHECK check_chains(cmq_verification *v, uint32_t file)
{
    cmq_index_file_info info;
    char name[40], path[CMQ_PATH_BYTES];
    bool fits = true;
    cmq_status status = cmq_index_file_at(v->store->index, file, &info);
    if (status != CMQ_OK) return CMQ_OK;   /* expired meanwhile */
    snprintf(name, sizeof name, "index/%017" PRId64, info.name);
    status = cmq_path_join(path, v->store->root, name);
    if (status == CMQ_OK && info.count > 1) status = prove_chains(v, file, path, &fits);
    if (status == CMQ_ERR_NOT_FOUND) return CMQ_OK;
    /* Look-ups pass over a file whose times do not meet theirs, and add an entry's time to the first. */
    const bool timely = info.count <= 1 || (info.begin_ms >= 0 && info.end_ms >= 0);
    if (status != CMQ_OK || (fits && timely)) return status;
    cmq_problem problem = cmq_verify_problem(CMQ_PROBLEM_INDEX_CHAIN, CMQ_SEVERITY_REPAIRABLE, info.begin_phy);
    if (!timely)
        cmq_verify_report(v, &problem, "the times in the head of %s are negative: look-ups by key may miss messages",
                          name);
    else
        cmq_verify_report(
            v, &problem,
            "the slots and chains of %s do not lead to all of its entries (%d): look-ups by key may miss messages",
            name, info.count - 1);
    return CMQ_OK;
}

static void report_unknown(cmq_verification *v)
{
    if (v->index.unknown == 0 || v->stopped) return;
    cmq_problem problem =
        cmq_verify_problem(CMQ_PROBLEM_INDEX_UNKNOWN, CMQ_SEVERITY_NOTE, v->index.unknown_first_phy);
    problem.count = v->index.unknown;
    cmq_verify_report(v, &problem,
                      "%" PRId64
                      " index %s of whole messages %s of an unknown kind, which a newer RocketMQ may write; a repair "
                      "keeps %s",
                      v->index.unknown, cmq_verb(v->index.unknown, "entry", "entries"),
                      cmq_verb(v->index.unknown, "is", "are"), cmq_verb(v->index.unknown, "it", "them"));
}

cmq_status cmq_verify_index_rest(cmq_verification *v)
{
    cmq_verify_index *index = &v->index;
    if (v->store->index == NULL) return CMQ_OK;
    while (index->walk.has && !v->stopped) {
        report_entry(v, &index->walk.key);
        next_entry(v);
    }
    for (uint32_t i = 0; i < cmq_index_files(v->store->index) && cmq_verify_progress(v, v->confirmed, true); i++) {
        const cmq_status status = check_chains(v, i);
        if (status != CMQ_OK) return status;
    }
    report_unknown(v);
    if (v->out->keys_missing == 0 || v->stopped) return CMQ_OK;
    cmq_problem problem = cmq_verify_problem(CMQ_PROBLEM_INDEX_MISSING, CMQ_SEVERITY_NOTE, index->missing_first_phy);
    problem.count = v->out->keys_missing;
    cmq_verify_report(
        v, &problem,
        "%" PRId64
        " of %s %s not in the index (RocketMQ drops the newest index file after a crash); a repair puts it in order",
        v->out->keys_missing, cmq_counted(v->out->keys, "key").text, cmq_verb(v->out->keys_missing, "is", "are"));
    return CMQ_OK;
}

void cmq_verify_free_index(cmq_verification *v) { free(v->index.keys.keys); }
