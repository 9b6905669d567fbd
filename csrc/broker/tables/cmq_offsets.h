/* cmq_offsets: how far each group has consumed each queue.
 *
 * (group, topic, queue id) -> the offset committed last, the offset pulled last, and a pending reset for the group's
 * consumer. Names are kept once per (group, topic); a queue more is some 40 bytes.
 *
 * Resets: cmq_offsets_reset sets the committed offset and leaves the reset pending. While it is pending a query answers
 * it, commits are ignored, and pulls are answered with it. It is over when a pull shows that its connection knows of
 * it: it asks for the offset of the reset, or got it three times. For CMQ_OFFSETS_FENCE_NS from then on, commits of
 * other connections are still ignored: a member that loses the queue may commit late what it did before. Another
 * connection that asks for the committed offset has begun there, and commits from then on.
 *
 * Persistence is the control plane's: cmq_offsets_take_changes gives, in small steps, what was committed or removed
 * since it was given last, and the control plane keeps consumerOffset.json from that.
 *
 * Limit:   entries_max; a commit that needs one more is refused with CMQ_ERR_LIMIT.
 * Threads: any. One mutex, held for a look-up (a few hundred nanoseconds); longer only by remove (a pass over all
 *          names) and a growing table.
 * Way:     pull, 14, 15 on the loops -> [cmq_offsets] -> control thread -> config/consumerOffset.json
 * Source:  specification consumption 3.5, 3.6, 1.16; upstream's ConsumerOffsetManager.
 */
#ifndef CMQ_OFFSETS_H
#define CMQ_OFFSETS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cmq_bytes.h"
#include "base/cmq_status.h"

#define CMQ_OFFSETS_ENTRIES_MAX 4000000u     /* where no other limit is given */
#define CMQ_OFFSETS_NAME_BYTES_MAX 512u      /* of a group or a topic */
#define CMQ_OFFSETS_VERSION_STEP 500u        /* commits per version: upstream's consumerOffsetUpdateVersionStep */
#define CMQ_OFFSETS_NONE (-1)                /* no offset */
#define CMQ_OFFSETS_FENCE_NS (INT64_C(60) * 1000000000)
#define CMQ_OFFSETS_MADE_NS (INT64_C(3600) * 1000000000)
/* of as many resets; of the oldest beyond, the first pull that gets it ends it, and nothing is fenced */
#define CMQ_OFFSETS_FENCES_MAX 256u

typedef struct cmq_offsets cmq_offsets;

typedef struct cmq_offset_key {
    cmq_slice group, topic;
    int32_t queue_id;
} cmq_offset_key;

/* The asking connection, and the time, by a clock that is never set. A connection of 0 is the broker itself: nothing is
 * fenced from it. A network (cmq_net_network_of) of 0 has no share; another one has the time, above 0. */
typedef struct cmq_offset_asker {
    uint64_t conn;
    uint64_t network;
    int64_t now_ns;
} cmq_offset_asker;

/* 0: CMQ_OFFSETS_ENTRIES_MAX */
cmq_status CMQ_MUST_CHECK cmq_offsets_create(cmq_offsets **offsets_out, uint32_t entries_max);
void cmq_offsets_destroy(cmq_offsets *offsets);

/* From now on, when what was stored is loaded, no group gets a further entry that has 64, and as many as an eighth of
 * those that are free: CMQ_ERR_LIMIT. So a few groups cannot take the shared room; existing entries stay. Nor do the
 * clients of one address, under whatever groups, that made 4,096 entries and as many as a quarter of those that are
 * free; the count halves after each CMQ_OFFSETS_MADE_NS. */
void cmq_offsets_share_out(cmq_offsets *offsets);

/* ---- the loops ---- */

/* Overwrite, also by a smaller one. CMQ_AGAIN: a reset is pending, nothing changed. CMQ_ERR_ARGUMENT for a negative
 * offset or queue id, or a name that is empty or too long. */
cmq_status CMQ_MUST_CHECK cmq_offsets_commit(cmq_offsets *offsets, const cmq_offset_key *key, int64_t offset);

/* The same for a client. CMQ_AGAIN also where a reset fences it off. */
cmq_status CMQ_MUST_CHECK cmq_offsets_commit_of(cmq_offsets *offsets, const cmq_offset_key *key, int64_t offset,
                                                cmq_offset_asker asker);

/* Commit, unless the group is there or further already: somebody may have moved it on. */
cmq_status CMQ_MUST_CHECK cmq_offsets_advance(cmq_offsets *offsets, const cmq_offset_key *key, int64_t offset);

/* Commit, unless there is an offset: where a group begins. CMQ_ERR_LIMIT as a commit. */
cmq_status CMQ_MUST_CHECK cmq_offsets_begin(cmq_offsets *offsets, const cmq_offset_key *key, int64_t offset,
                                            cmq_offset_asker asker);

/* The pending reset, else what was committed, else CMQ_OFFSETS_NONE. */
int64_t cmq_offsets_query(cmq_offsets *offsets, const cmq_offset_key *key);

/* A pop, by which the broker itself knows of the reset: the pending one, which is pending no more then, or
 * CMQ_OFFSETS_NONE. Costs a load while no reset is pending or fenced anywhere. */
int64_t cmq_offsets_take_reset(cmq_offsets *offsets, const cmq_offset_key *key);

/* A pull of a client that begins at `from`, or CMQ_OFFSETS_NONE where that is not sure: the reset to answer it with,
 * which is pending or was taken by another client a short while ago, or CMQ_OFFSETS_NONE. Costs as a pop. */
int64_t cmq_offsets_reset_for_pull(cmq_offsets *offsets, const cmq_offset_key *key, int64_t from,
                                   cmq_offset_asker asker);

/* After a pull: where the next one will begin and, unless `committed` is CMQ_OFFSETS_NONE, a commit, in one look-up.
 * Statuses as for a client's commit. */
cmq_status CMQ_MUST_CHECK cmq_offsets_pulled(cmq_offsets *offsets, const cmq_offset_key *key, int64_t next_pull,
                                             int64_t committed, cmq_offset_asker asker);

/* ---- the control plane ---- */

int64_t cmq_offsets_pull_offset(cmq_offsets *offsets, const cmq_offset_key *key);   /* CMQ_OFFSETS_NONE */

/* Set, and leave a reset pending. */
cmq_status CMQ_MUST_CHECK cmq_offsets_reset(cmq_offsets *offsets, const cmq_offset_key *key, int64_t offset,
                                            cmq_offset_asker asker);

/* Forget all of a group, of a topic, or of a group in a topic (the other slice empty: any). Returns how many committed
 * offsets went. */
uint32_t cmq_offsets_remove(cmq_offsets *offsets, cmq_slice group, cmq_slice topic);

/* Commits so far, divided by CMQ_OFFSETS_VERSION_STEP: the steps of dataVersion's counter. */
int64_t cmq_offsets_version(cmq_offsets *offsets);
uint32_t cmq_offsets_count(cmq_offsets *offsets);   /* entries */

/* ---- changes ---- */

typedef struct cmq_offset_item {
    cmq_slice group, topic;      /* in the caller's text area */
    int32_t queue_id;            /* -1: the group's offsets in this topic were all removed; later commits come later */
    int64_t offset;              /* committed */
    int64_t pull_offset;         /* CMQ_OFFSETS_NONE */
} cmq_offset_item;

/* The returned changes; both areas are the caller's. */
typedef struct cmq_offset_items {
    cmq_offset_item *items;
    uint32_t capacity, count;
    uint8_t *text;               /* the names; at least CMQ_OFFSETS_TEXT_MIN */
    uint32_t text_bytes;
} cmq_offset_items;

#define CMQ_OFFSETS_TEXT_MIN 1024u   /* room for the names of one item */

/* Changes not given yet, oldest first; call until count is 0. An entry that changes again meanwhile is returned
 * again. */
void cmq_offsets_take_changes(cmq_offsets *offsets, cmq_offset_items *items);

#endif
