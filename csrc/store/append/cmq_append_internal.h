/* cmq_append_internal: private to cmq_append.c (messages of every kind, one by one) and cmq_append_run.c (many similar
 * ones). */
#ifndef CMQ_APPEND_INTERNAL_H
#define CMQ_APPEND_INTERNAL_H

#include "base/cmq_hash.h"
#include "store/cmq_store_internal.h"

#define CMQ_APPEND_QUEUES 32

/* The queues of a transaction's messages, one entry for each unit that one will get. */
typedef struct cmq_foreseen_units {
    cmq_queue **queues;
    uint32_t count, capacity;
} cmq_foreseen_units;

/* State of one call, shared by its messages. */
typedef struct append_context {
    cmq_store *store;
    const cmq_append *append;
    cmq_record_fields fields;
    cmq_record_sizes sizes;
    cmq_property_known known;       /* of fields.properties */
    cmq_record_property_crc property_crc;   /* of every message, by the store's setting */
    bool properties_vary;
    bool tags_vary;
    bool multi;                     /* multi-dispatch may apply */
    bool schedule;                  /* the schedule topic: tags code is a time */
    bool watched;                   /* during this hold of the writer lock: somebody watches queues of this store */
    uint32_t tag_hash;              /* of a tag that stays the same */
    cmq_queue *queue;               /* of queue_id */
    uint32_t queue_room;            /* units granted in it */
    int64_t first_queue_offset, first_phy;         /* of the call's first message; -1 */
    uint32_t units_ahead;           /* of a batch: room that each of its queues gets */
    cmq_foreseen_units *foreseen;   /* of a transaction: where units are noted instead; else NULL */
    bool claimed;                   /* the log has room for all of it */
    bool alike;                     /* the chunk's messages differ in body, tags, keys and queue only: `mould` has the
                                     * rest */
    cmq_record_mould mould;
    cmq_queue *queue_of[CMQ_APPEND_QUEUES];        /* of small queue ids, found during this hold of the writer lock;
                                                    * NULL: not yet */
    unsigned scratch_used;                         /* the one whose bytes the properties are now */
    uint8_t scratch[2][CMQ_PROPERTY_BYTES_MAX + 1];   /* rewritten properties of inner batches and light queues */
} append_context;

/* Element i of a column. */
static inline cmq_slice column_at(const cmq_column *column, uint32_t i)
{
    switch (column->kind) {
    case CMQ_COLUMN_ONE: return column->one;
    case CMQ_COLUMN_SLICES: return column->slices[i];
    case CMQ_COLUMN_FIXED:
        return (cmq_slice){.data = column->data + (int64_t)i * column->stride, .bytes = column->width};
    case CMQ_COLUMN_OFFSETS32:
        return (cmq_slice){.data = column->data + column->offsets32[i],
                           .bytes = (size_t)(column->offsets32[i + 1] - column->offsets32[i])};
    case CMQ_COLUMN_OFFSETS64:
        return (cmq_slice){.data = column->data + column->offsets64[i],
                           .bytes = (size_t)(column->offsets64[i + 1] - column->offsets64[i])};
    case CMQ_COLUMN_NONE: break;
    }
    return CMQ_SLICE_NONE;
}

/* ---- cmq_append.c ---- */

/* May the store take appends? Any thread. */
cmq_status CMQ_MUST_CHECK cmq_append_check_writable(cmq_store *store);

/* Begin with a call's messages; the checks that do not depend on the store come next. */
void cmq_append_begin(append_context *c, cmq_store *store, const cmq_append *append);
cmq_status CMQ_MUST_CHECK cmq_append_check_call(const append_context *c);

/* Remember whether the disk was full. */
void cmq_append_note_space(cmq_store *store, cmq_status status);

/* ---- cmq_append.c; all with the writer lock ---- */

/* Everything that the call's messages will ask for but the log's bytes and the index's room, whose most are added, and
 * with c->foreseen the queues' room, which is noted there. */
cmq_status CMQ_MUST_CHECK cmq_append_foresee(append_context *c, uint64_t *total, uint32_t *keys);

/* One hold of the writer lock. *done counts on; CMQ_AGAIN: the staged records must be committed first. */
cmq_status CMQ_MUST_CHECK cmq_append_chunk(append_context *c, uint32_t *done);

/* Async: records encoded during this hold of the writer lock are readable from here on. */
cmq_status CMQ_MUST_CHECK cmq_append_settle(cmq_store *store);

/* Make `queue_id` of the call's topic c->queue. */
cmq_status CMQ_MUST_CHECK cmq_append_enter_queue(append_context *c, int32_t queue_id);

/* How many keys a KEYS value has at most, and what else of a message the index takes. Long values are counted. */
uint32_t cmq_append_key_demand(cmq_slice keys);

/* Room for so many keys, at most, in the index and in the list of keys that wait for their confirmation. */
cmq_status CMQ_MUST_CHECK cmq_append_grant_keys(cmq_store *store, uint32_t keys);

static inline void cmq_append_add_key(cmq_pending_keys *pending, uint32_t seed, cmq_slice key, int64_t phy,
                                      int64_t store_ms)
{
    pending->keys[pending->count++] =
        (cmq_index_key){.phy = phy, .store_ms = store_ms, .hash = cmq_index_key_hash(seed, key)};
}

/* The keys of the record at `phy`, as a KEYS value has them, and its tags where the index gets them; granted before. */
void cmq_append_add_keys(append_context *c, cmq_slice keys, cmq_slice tags, int64_t phy);

/* ---- cmq_append_run.c; all with the writer lock ---- */

/* Do the messages of this call differ in body, tags, keys and queue only? Then c->mould is made for this chunk's store
 * time. */
bool cmq_append_run_begin(append_context *c);

/* Append messages [from, from + left) or the first of them, as one claim of the log; returns how many. 0: nothing was
 * changed, and message `from` needs the way of one, which also names its fault. */
uint32_t cmq_append_run(append_context *c, uint32_t from, uint32_t left);

#endif
