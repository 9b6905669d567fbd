/* cmq_index_walk: see cmq_index_walk.h. */
#include "store/index/cmq_index_walk.h"

#include "base/cmq_assert.h"

static cmq_status CMQ_MUST_CHECK entry_at(const cmq_index *index, uint32_t file, int32_t entry, cmq_index_key *key_out)
{
    cmq_index_file_info info;
    const cmq_status status = cmq_index_file_at(index, file, &info);
    if (status != CMQ_OK) return status;
    if (entry >= info.count) return CMQ_END;
    return cmq_index_entry_at(index, file, entry, key_out);
}

/* Is the entry out of order? Its offset is below the previous entry's, or above the next one's while the next one is
 * not below the previous. */
static bool is_stray(const cmq_index_walk *walk)
{
    cmq_index_key behind;
    if (walk->key.phy < walk->last_phy) return true;
    cmq_status status = entry_at(walk->index, walk->file, walk->entry + 1, &behind);
    if (status == CMQ_END && walk->file + 1 < cmq_index_files(walk->index))
        status = entry_at(walk->index, walk->file + 1, 1, &behind);
    return status == CMQ_OK && behind.phy < walk->key.phy && behind.phy >= walk->last_phy;
}

void cmq_index_walk_begin(cmq_index_walk *walk, const cmq_index *index)
{
    *walk = (cmq_index_walk){.index = index};
}

void cmq_index_walk_next(cmq_index_walk *walk)
{
    if (walk->has && !walk->is_stray) walk->last_phy = walk->key.phy;
    walk->has = false;
    const uint32_t files = walk->index != NULL ? cmq_index_files(walk->index) : 0;
    for (; walk->file < files; walk->file++, walk->entry = 0) {
        walk->has = entry_at(walk->index, walk->file, walk->entry + 1, &walk->key) == CMQ_OK;
        if (!walk->has) continue;
        walk->entry++;
        break;
    }
    walk->is_stray = walk->has && is_stray(walk);
}

cmq_index_match cmq_index_match_of(const cmq_index_key *keys, uint32_t count, bool has_tags)
{
    CMQ_ASSERT(count > 0 || !has_tags);
    return (cmq_index_match){.keys = keys, .count = count, .has_tags = has_tags, .left = count - has_tags};
}

cmq_index_standing cmq_index_match_take(cmq_index_match *match, uint32_t hash)
{
    const uint32_t keys = match->count - match->has_tags;
    bool known = false;
    for (uint32_t i = 0; i < keys; i++) {
        if (match->keys[i].hash != hash) continue;
        known = true;
        if (i < 64 && (match->seen >> i & 1u) != 0) continue;
        if (i < 64) match->seen |= UINT64_C(1) << i;
        if (match->left > 0) match->left--;
        break;
    }
    if (known) return CMQ_INDEX_ENTRY_KEY;
    if (match->has_tags && match->keys[keys].hash == hash) return CMQ_INDEX_ENTRY_TAGS;
    return match->left == 0 ? CMQ_INDEX_ENTRY_UNKNOWN : CMQ_INDEX_ENTRY_WRONG;
}
