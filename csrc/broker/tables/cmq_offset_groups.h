/* cmq_offset_groups: how many entries of the offset table each consumer group has, counted exactly, so that no group is
 * refused for another one's.
 *
 * A group is here while somebody refers to it; it is found by its name. Growing doubles the table; a reference never
 * moves.
 *
 * Threads: one at a time; the owner's mutex.
 * Way:     cmq_offsets (a group in a topic refers to its group) -> [cmq_offset_groups]
 */
#ifndef CMQ_OFFSET_GROUPS_H
#define CMQ_OFFSET_GROUPS_H

#include <stdint.h>

#include "base/cmq_bytes.h"
#include "base/cmq_status.h"

typedef struct cmq_offset_group {
    struct cmq_offset_group *next;    /* in its bucket */
    uint64_t hash;
    uint32_t references;
    uint32_t entries;                 /* the owner counts them */
    uint32_t name_bytes;
    uint8_t name[];
} cmq_offset_group;

/* All zero: empty. */
typedef struct cmq_offset_groups {
    cmq_offset_group **buckets;
    uint32_t bucket_count;            /* a power of two; 0: none yet */
    uint32_t count;
} cmq_offset_groups;

void cmq_offset_groups_free(cmq_offset_groups *groups);

/* NULL: nobody refers to it. */
cmq_offset_group *cmq_offset_groups_find(const cmq_offset_groups *groups, cmq_slice name);

/* CMQ_ERR_LIMIT: the group has its share where so many entries are unused, 64 or an eighth of them. So no few groups
 * can take all. */
cmq_status CMQ_MUST_CHECK cmq_offset_groups_check(const cmq_offset_groups *groups, cmq_slice name, uint32_t unused);

/* One reference more, to a group that is made if needed. CMQ_ERR_MEMORY: nothing changed. */
cmq_status CMQ_MUST_CHECK cmq_offset_groups_refer(cmq_offset_groups *groups, cmq_slice name,
                                                  cmq_offset_group **group_out);

/* One reference less; with the last one the group is gone. */
void cmq_offset_groups_release(cmq_offset_groups *groups, cmq_offset_group *group);

#endif
