/* cmq_pop_checkpoints: the checkpoints of one shard of cmq_pop_buffer: chunks of them, a heap by the time when they
 * leave memory, a table for acks.
 *
 * Owns:      the memory of checkpoints; cmq_pop_buffer gives them their meaning.
 * Invariant: a checkpoint is in the table exactly while it is merged; in the heap only then, and not while it is set
 *            aside.
 * Cost:      104 B a checkpoint, 4 B in the heap, 6 to 16 B in the table; all given back when none is left.
 * Threads:   the shard's mutex is held.
 */
#ifndef CMQ_POP_CHECKPOINTS_H
#define CMQ_POP_CHECKPOINTS_H

#include "base/cmq_bitmap.h"
#include "broker/pop/flight/cmq_pop_buffer.h"

#define CMQ_POP_NONE UINT32_MAX
#define CMQ_POP_GAPS 31u                  /* offsets behind the first, as distances below 256 */

/* One batch that was handed out, or (num 0) offsets that were passed over. */
typedef struct cmq_pop_held {
    int64_t start_offset, pop_ms, invisible_ms;
    int64_t next_offset;                  /* where the group goes on */
    int64_t log_end;                      /* its messages lie below this place; 0: not known */
    int64_t stored_end;                   /* its record lies below this place in the log; -1: not stored */
    union {
        uint8_t gaps[CMQ_POP_GAPS + 1];
        int64_t *list;                    /* offsets, when they lie further apart */
    } offsets;
    uint32_t bits;                        /* messages acknowledged here … */
    uint32_t stored_bits;                 /* … and in the log, too */
    uint32_t lane;
    uint32_t next;                        /* in the lane's list, or of the free ones */
    uint32_t heap_at;                     /* CMQ_POP_NONE: not in the heap */
    uint16_t revive_queue;
    uint8_t num;
    bool has_list : 1, merged : 1, detached : 1, used : 1, refused : 1;
} cmq_pop_held;
_Static_assert(sizeof(cmq_pop_held) <= 104, "a checkpoint is small");

typedef struct cmq_pop_checkpoints {
    int64_t stay_ms, stay_out_ms;
    cmq_pop_held **chunks;
    uint32_t chunk_count, chunk_slots;
    uint32_t free_held, used;
    uint32_t *heap;
    uint32_t heap_count, heap_slots;
    uint32_t *table;                      /* number + 1; 0: empty. Linear probing, a power of two, at most two thirds
                                           * full */
    uint32_t table_count, table_slots;
    uint32_t refused_count;               /* set aside */
    size_t list_bytes;
} cmq_pop_checkpoints;

void cmq_pop_checkpoints_init(cmq_pop_checkpoints *all, int64_t stay_ms, int64_t stay_out_ms);
void cmq_pop_checkpoints_free(cmq_pop_checkpoints *all);

cmq_pop_held *cmq_pop_checkpoints_at(const cmq_pop_checkpoints *all, uint32_t number);

/* One more, not merged, not stored. Its offsets are copied. */
cmq_status CMQ_MUST_CHECK cmq_pop_checkpoints_take(cmq_pop_checkpoints *all, uint32_t lane, const cmq_pop_batch *batch,
                                                   uint32_t *number_out);
void cmq_pop_checkpoints_release(cmq_pop_checkpoints *all, uint32_t number);   /* not merged */

/* Into table and heap, and out of them. */
cmq_status CMQ_MUST_CHECK cmq_pop_checkpoints_merge(cmq_pop_checkpoints *all, uint32_t number);
void cmq_pop_checkpoints_unmerge(cmq_pop_checkpoints *all, uint32_t number);
static inline bool cmq_pop_checkpoints_is_merged(const cmq_pop_checkpoints *all, uint32_t number)
{
    return cmq_pop_checkpoints_at(all, number)->merged;
}

/* A merged one; CMQ_POP_NONE. */
uint32_t cmq_pop_checkpoints_find(const cmq_pop_checkpoints *all, uint32_t lane, int64_t start_offset, int64_t pop_ms);
/* The first of a lane whose number is `from` or higher; CMQ_POP_NONE. */
uint32_t cmq_pop_checkpoints_of_lane(const cmq_pop_checkpoints *all, uint32_t lane, uint32_t from);

/* The merged one that leaves first, when that is at or before now_ms; CMQ_POP_NONE. */
uint32_t cmq_pop_checkpoints_due(const cmq_pop_checkpoints *all, int64_t now_ms);
int64_t cmq_pop_checkpoints_first_due_ms(const cmq_pop_checkpoints *all);   /* INT64_MAX: none */
void cmq_pop_checkpoints_undue(cmq_pop_checkpoints *all, uint32_t number);        /* out of the heap */
void cmq_pop_checkpoints_due_again(cmq_pop_checkpoints *all, uint32_t number);    /* and back, after undue */

/* After undue: one that the log does not take, so that those behind it have their turn; and all of them back into the
 * heap. */
void cmq_pop_checkpoints_set_aside(cmq_pop_checkpoints *all, uint32_t number);
void cmq_pop_checkpoints_take_back(cmq_pop_checkpoints *all);

size_t cmq_pop_checkpoints_bytes(const cmq_pop_checkpoints *all);

/* ---- one checkpoint ---- */

int64_t cmq_pop_held_offset(const cmq_pop_held *held, uint32_t index);
int cmq_pop_held_index(const cmq_pop_held *held, int64_t offset);   /* -1: it has no such message */

static inline bool cmq_pop_held_is_done(const cmq_pop_held *held) { return cmq_bits_all(held->bits, held->num); }

#endif
