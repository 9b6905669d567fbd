/* cmq_hold_tags: the holds of a queue that a message of one tag ends. Part of cmq_hold.
 *
 * A list for each queue and tag that holds wait for, so that an arrival finds its holds without a look at the others:
 * 100,000 holds for other tags cost it nothing. A hold stands in the list of each of its tags, behind those that came
 * before.
 *
 * Size: 20 B a tag of a hold, and some 40 B a list.
 *
 * Owns:    the lists and their links. Holds and queues are numbers of cmq_hold's.
 * Threads: one.
 */
#ifndef CMQ_HOLD_TAGS_H
#define CMQ_HOLD_TAGS_H

#include <stdint.h>
#include <stdlib.h>

#include "base/cmq_status.h"

typedef struct cmq_hold_tag_link {
    uint32_t hold, list;
    uint32_t next, previous;   /* in the list */
    uint32_t next_of_hold;     /* or the next free one */
} cmq_hold_tag_link;

typedef struct cmq_hold_tag_list {
    uint64_t key;              /* queue and hash */
    uint32_t first, last;      /* first: or the next free one */
} cmq_hold_tag_list;

/* All zero, but the three names of nothing: cmq_hold_tags_begin. */
typedef struct cmq_hold_tags {
    cmq_hold_tag_link *links;
    cmq_hold_tag_list *lists;
    uint32_t *table;           /* list number + 1; 0: empty. Linear probing, a power of two, at most half full */
    uint32_t link_slots, link_count, links_used, free_link;   /* room for; ever used; in use */
    uint32_t list_slots, list_count, lists_used, free_list;
    uint32_t table_slots;
} cmq_hold_tags;

#define CMQ_HOLD_TAG_NONE UINT32_MAX

void cmq_hold_tags_begin(cmq_hold_tags *tags);
void cmq_hold_tags_end(cmq_hold_tags *tags);

/* Enter a hold of `queue` under each hash. *first_out names its links. CMQ_ERR_MEMORY: under none. */
cmq_status CMQ_MUST_CHECK cmq_hold_tags_add(cmq_hold_tags *tags, uint32_t queue, const uint32_t *hashes, uint32_t count,
                                            uint32_t hold, uint32_t *first_out);
void cmq_hold_tags_remove(cmq_hold_tags *tags, uint32_t first);

/* The link that came first to the queue under the hash, and the one behind it; CMQ_HOLD_TAG_NONE. */
uint32_t cmq_hold_tags_first(const cmq_hold_tags *tags, uint32_t queue, uint32_t hash);
static inline uint32_t cmq_hold_tags_next(const cmq_hold_tags *tags, uint32_t link) { return tags->links[link].next; }
static inline void cmq_hold_tags_set_hold(cmq_hold_tags *tags, uint32_t link, uint32_t hold)
{
    tags->links[link].hold = hold;
}
static inline uint32_t cmq_hold_tags_hold(const cmq_hold_tags *tags, uint32_t link) { return tags->links[link].hold; }

size_t cmq_hold_tags_bytes(const cmq_hold_tags *tags);   /* allocated */

#endif
