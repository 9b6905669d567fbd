/* cmq_verify_index: entries of the key index against the keys of the records; see cmq_verify.h.
 *
 * Entries are in the order of the log, so one walk holds the two against each other. An entry out of order is damaged
 * and is put aside, for else all behind it would seem to be missing.
 *
 * Threads: as cmq_verify.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/cmq_counted.h"
#include "store/check/cmq_verify_internal.h"

static cmq_status CMQ_MUST_CHECK entry_at(const cmq_verification *v, uint32_t file, int32_t entry,
                                          cmq_index_key *key_out)
{
    cmq_index_file_info info;
    const cmq_status status = cmq_index_file_at(v->store->index, file, &info);
    if (status != CMQ_OK) return status;
    if (entry >= info.count) return CMQ_END;
    return cmq_index_entry_at(v->store->index, file, entry, key_out);
}

static void report_entry(cmq_verification *v, const cmq_index_key *key)
{
    if (key->phy >= 0 && key->phy < v->out->log_min) return;   /* expired with its segment */
    /* Of a record that came since, or that a crash took: opening cuts such entries. */
    if (key->phy >= v->confirmed && (v->live || v->completed_from != INT64_MAX)) return;
    if (cmq_verify_is_damaged(v, key->phy)) return;
    cmq_problem problem = cmq_verify_problem(CMQ_PROBLEM_INDEX_ENTRY, CMQ_SEVERITY_REPAIRABLE, key->phy);
    cmq_verify_report(v, &problem,
                      "index entry %d of file number %u has a hash that no key of a record at %" PRId64 " has",
                      v->index.entry, v->index.file, key->phy);
}

/* Is the entry out of order: below the one before, or above the one behind, which itself goes on from the one
 * before? */
static bool is_stray(const cmq_verification *v, const cmq_index_key *key, int64_t last_phy)
{
    cmq_index_key behind;
    if (key->phy < last_phy) return true;
    cmq_status status = entry_at(v, v->index.file, v->index.entry + 1, &behind);
    if (status == CMQ_END && v->index.file + 1 < cmq_index_files(v->store->index))
        status = entry_at(v, v->index.file + 1, 1, &behind);
    return status == CMQ_OK && behind.phy < key->phy && behind.phy >= last_phy;
}

static void next_entry(cmq_verification *v)
{
    cmq_verify_index *index = &v->index;
    const int64_t last_phy = index->has ? index->key.phy : 0;
    index->has = false;
    if (v->store->index == NULL) return;
    const uint32_t files = cmq_index_files(v->store->index);
    for (; index->file < files && !v->stopped; index->file++, index->entry = 0) {
        cmq_index_key key;
        while (!v->stopped && entry_at(v, index->file, index->entry + 1, &key) == CMQ_OK) {
            index->entry++;
            if (is_stray(v, &key, last_phy)) {
                report_entry(v, &key);
                continue;
            }
            index->key = key;
            index->has = true;
            return;
        }
    }
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
    next_entry(v);
    return CMQ_OK;
}

/* Take the hash off the record's keys; false when it is not one of them. The same entry twice is upstream's dispatching
 * the last message again. */
static bool take_key(const cmq_pending_keys *keys, uint32_t hash, uint32_t *left, uint64_t *seen)
{
    bool known = false;
    for (uint32_t i = 0; i < keys->count; i++) {
        if (keys->keys[i].hash != hash) continue;
        known = true;
        if (i >= 64 || (*seen >> i & 1u) == 0) {
            if (i < 64) *seen |= UINT64_C(1) << i;
            if (*left > 0) --*left;
            return true;
        }
    }
    return known;
}

cmq_status cmq_verify_keys_of(cmq_verification *v, const cmq_record_view *view, const cmq_dispatch_facts *facts)
{
    if (v->store->index == NULL) return CMQ_OK;
    cmq_verify_index *index = &v->index;
    index->keys.count = 0;
    const cmq_status status = cmq_dispatch_keys(view, facts, cmq_topic_index_seed(view->topic), &index->keys);
    if (status != CMQ_OK) return status;
    while (index->has && index->key.phy < view->physical_offset && !v->stopped) {
        report_entry(v, &index->key);
        next_entry(v);
    }
    uint32_t left = index->keys.count;
    uint64_t seen = 0;
    while (index->has && index->key.phy == view->physical_offset && !v->stopped) {
        v->out->index_entries++;
        if (!take_key(&index->keys, index->key.hash, &left, &seen)) report_entry(v, &index->key);
        next_entry(v);
    }
    v->out->keys += index->keys.count;
    /* Beside a writer keys come a moment after their record. */
    if (left == 0 || (v->live && view->physical_offset > index->end_phy)) return CMQ_OK;
    if (index->missing_first_phy < 0) index->missing_first_phy = view->physical_offset;
    v->out->keys_missing += left;
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
    if (status != CMQ_OK || fits) return status;
    cmq_problem problem = cmq_verify_problem(CMQ_PROBLEM_INDEX_CHAIN, CMQ_SEVERITY_REPAIRABLE, info.begin_phy);
    cmq_verify_report(
        v, &problem,
        "the slots and chains of %s do not lead to all of its entries (%d): look-ups by key may miss messages", name,
        info.count - 1);
    return CMQ_OK;
}

cmq_status cmq_verify_index_rest(cmq_verification *v)
{
    cmq_verify_index *index = &v->index;
    if (v->store->index == NULL) return CMQ_OK;
    while (index->has && !v->stopped) {
        report_entry(v, &index->key);
        next_entry(v);
    }
    for (uint32_t i = 0; i < cmq_index_files(v->store->index) && cmq_verify_progress(v, v->confirmed, true); i++) {
        const cmq_status status = check_chains(v, i);
        if (status != CMQ_OK) return status;
    }
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
