/* cmq_hold_internal: private to the files of cmq_hold: the table and its members. */
#ifndef CMQ_HOLD_INTERNAL_H
#define CMQ_HOLD_INTERNAL_H

#include "broker/loop/cmq_hold.h"
#include "broker/loop/cmq_hold_tags.h"

#define CMQ_HOLD_CHUNK_BITS 10u
#define CMQ_HOLD_CHUNK (1u << CMQ_HOLD_CHUNK_BITS)

typedef struct cmq_hold_link {
    uint32_t next, previous;
} cmq_hold_link;

/* CMQ_HOLD_ANY: of the queue, those that any message ends, the oldest first */
enum { CMQ_HOLD_BY_QUEUE = 0, CMQ_HOLD_BY_GROUP = 1, CMQ_HOLD_BY_CONN = 2, CMQ_HOLD_ANY = 3 };

/* The messages that end a hold. */
typedef enum cmq_hold_kind { CMQ_HOLD_FOR_TAGS = 0, CMQ_HOLD_FOR_ANY, CMQ_HOLD_FOR_SELECTOR } cmq_hold_kind;

/* A hold that waits for an expression: its link among those of its queue and expression. */
typedef struct cmq_hold_selects {
    uint32_t program;
    uint32_t link;
} cmq_hold_selects;

/* The first of those has a link among the first ones of the queue, and remembers the message, by low bits of its
 * offset, that the expression was compared with last. */
typedef struct cmq_hold_first_one {
    uint32_t link;            /* CMQ_HOLD_TAG_NONE: it is not the first */
    uint32_t compared;
} cmq_hold_first_one;

typedef struct cmq_hold_kept {
    int64_t deadline_ns;
    int64_t from;
    int64_t sub_version;
    cmq_filter *filter;
    cmq_conn_id conn;
    cmq_hold_link links[CMQ_HOLD_ANY];
    union {
        cmq_hold_link any;         /* FOR_ANY */
        cmq_hold_first_one first;  /* FOR_SELECTOR */
    } more;
    uint32_t anchors[2];      /* by queue, by group */
    union {
        struct {
            uint32_t first;   /* CMQ_HOLD_TAG_NONE: none */
            uint32_t count;
        } tags;
        cmq_hold_selects selects;  /* FOR_SELECTOR */
    } of;
    uint32_t conn_slot;
    uint32_t heap_at;         /* NONE: not in use, and links[0].next is the next free one */
    uint32_t epoch;           /* of its queue when it was added */
    int32_t opaque;
    int32_t max_messages;
    int32_t max_bytes;
    uint16_t code;
    uint8_t format;
    uint8_t kind;             /* cmq_hold_kind */
} cmq_hold_kept;
_Static_assert(sizeof(cmq_hold_kept) <= 120, "a hold is small");

typedef struct cmq_hold_anchor {
    char *name;
    uint32_t hash;
    uint32_t first;           /* not in use: the next free one */
    int32_t id;
    uint16_t name_bytes;
    uint32_t any_first, any_last;
    uint32_t tagged;          /* holds that wait for certain tags, or for an expression */
    uint32_t count;           /* a queue's holds … */
    uint32_t epoch;           /* … which rises with each hold that begins below an earlier one … */
    uint32_t earlier;         /* … and those of them that are of an earlier epoch */
    int64_t seen;
    int64_t last_from;
} cmq_hold_anchor;
_Static_assert(sizeof(cmq_hold_anchor) <= 64, "an anchor is small");

/* The holds of one connection. */
typedef struct cmq_hold_conn {
    uint32_t first;
    uint32_t count, tags;
} cmq_hold_conn;

struct cmq_holds {
    uint32_t count, count_max;
    cmq_hold_kept **chunks;
    uint32_t chunk_count, chunk_slots;
    uint32_t free_hold;
    uint32_t *heap;
    uint32_t heap_slots;
    cmq_hold_conn *conns;                  /* by connection slot */
    uint32_t conn_slots;
    cmq_hold_anchor *anchors;
    uint32_t anchor_count, anchor_slots;   /* ever used; room for */
    uint32_t anchors_live;
    uint32_t free_anchor;
    uint32_t *table;                       /* anchor number + 1; 0: empty. Linear probing, a power of two, at most half
                                            * full */
    uint32_t table_slots;
    size_t name_bytes;
    cmq_hold_tags tags;
    cmq_hold_tags selecting;               /* by the number of an expression in place of a tag's hash */
    cmq_hold_programs programs;
};

static inline cmq_hold_kept *cmq_hold_at(const cmq_holds *holds, uint32_t number)
{
    return &holds->chunks[number >> CMQ_HOLD_CHUNK_BITS][number & (CMQ_HOLD_CHUNK - 1)];
}

/* ---- cmq_hold_selects.c ---- */

/* Enter a hold under its expression; under none on failure. */
cmq_status CMQ_MUST_CHECK cmq_hold_selects_add(cmq_holds *holds, uint32_t queue, const cmq_filter *wakes,
                                               uint32_t number, uint32_t conn_slot, cmq_hold_selects *of,
                                               cmq_hold_first_one *first);
void cmq_hold_selects_remove(cmq_holds *holds, const cmq_hold_kept *held);

#endif
