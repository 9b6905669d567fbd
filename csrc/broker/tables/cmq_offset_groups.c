/* cmq_offset_groups: see cmq_offset_groups.h. */
#include "broker/tables/cmq_offset_groups.h"

#include <stdlib.h>
#include <string.h>

#include "base/cmq_assert.h"
#include "base/cmq_name_hash.h"

#define BUCKETS_FIRST 64u
#define SHARE_LEAST 64u      /* entries that any group may have while there is room at all */
#define SHARE_OF_FREE 8u

static cmq_offset_group **bucket_of(cmq_offset_group **buckets, uint32_t bucket_count, uint64_t hash)
{
    return &buckets[hash & (bucket_count - 1)];
}

static void put(cmq_offset_group **bucket, cmq_offset_group *group)
{
    group->next = *bucket;
    *bucket = group;
}

/* Room for one more: on average, no bucket has more than one group. */
static cmq_status CMQ_MUST_CHECK grow(cmq_offset_groups *groups)
{
    if (groups->count < groups->bucket_count) return CMQ_OK;
    const uint32_t bucket_count = groups->bucket_count == 0 ? BUCKETS_FIRST : groups->bucket_count * 2;
    cmq_offset_group **buckets = calloc(bucket_count, sizeof *buckets);
    if (buckets == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for a table of %u groups", bucket_count);
    for (uint32_t i = 0; i < groups->bucket_count; i++)
        for (cmq_offset_group *at = groups->buckets[i], *next; at != NULL; at = next) {
            next = at->next;
            put(bucket_of(buckets, bucket_count, at->hash), at);
        }
    free(groups->buckets);
    groups->buckets = buckets;
    groups->bucket_count = bucket_count;
    return CMQ_OK;
}

void cmq_offset_groups_free(cmq_offset_groups *groups)
{
    for (uint32_t i = 0; i < groups->bucket_count; i++)
        for (cmq_offset_group *at = groups->buckets[i], *next; at != NULL; at = next) {
            next = at->next;
            free(at);
        }
    free(groups->buckets);
    *groups = (cmq_offset_groups){.buckets = NULL};
}

cmq_offset_group *cmq_offset_groups_find(const cmq_offset_groups *groups, cmq_slice name)
{
    if (groups->bucket_count == 0) return NULL;
    const uint64_t hash = cmq_name_hash(name);
    cmq_offset_group *at = *bucket_of(groups->buckets, groups->bucket_count, hash);
    while (at != NULL &&
           !(at->hash == hash && cmq_slice_equal((cmq_slice){.data = at->name, .bytes = at->name_bytes}, name)))
        at = at->next;
    return at;
}

cmq_status cmq_offset_groups_check(const cmq_offset_groups *groups, cmq_slice name, uint32_t unused)
{
    const cmq_offset_group *group = cmq_offset_groups_find(groups, name);
    const uint32_t has = group == NULL ? 0 : group->entries;
    if (has < SHARE_LEAST || has < unused / SHARE_OF_FREE) return CMQ_OK;
    return cmq_fail(CMQ_ERR_LIMIT,
                    "the group %.*s has offsets of %u queues, which is its share: an eighth of the %u that are left",
                    (int)name.bytes, (const char *)name.data, has, unused);
}

cmq_status cmq_offset_groups_refer(cmq_offset_groups *groups, cmq_slice name, cmq_offset_group **group_out)
{
    *group_out = cmq_offset_groups_find(groups, name);
    if (*group_out != NULL) {
        (*group_out)->references++;
        return CMQ_OK;
    }
    cmq_status status = grow(groups);
    if (status != CMQ_OK) return status;
    cmq_offset_group *made = malloc(sizeof *made + name.bytes);
    if (made == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for the name of a group");
    *made = (cmq_offset_group){.hash = cmq_name_hash(name), .references = 1, .name_bytes = (uint32_t)name.bytes};
    memcpy(made->name, name.data, name.bytes);
    put(bucket_of(groups->buckets, groups->bucket_count, made->hash), made);
    groups->count++;
    *group_out = made;
    return CMQ_OK;
}

void cmq_offset_groups_release(cmq_offset_groups *groups, cmq_offset_group *group)
{
    CMQ_ASSERT(group->references > 0);
    if (--group->references > 0) return;
    CMQ_ASSERT(group->entries == 0);
    cmq_offset_group **at = bucket_of(groups->buckets, groups->bucket_count, group->hash);
    while (*at != group) at = &(*at)->next;
    *at = group->next;
    groups->count--;
    free(group);
}
