/* cmq_reader_internal: the struct behind cmq_reader, shared by cmq_reader.c (queues), cmq_reader_log.c (the whole log),
 * cmq_reader_select.c (tags and expressions) and cmq_reader_time.c (spans of store times). */
#ifndef CMQ_READER_INTERNAL_H
#define CMQ_READER_INTERNAL_H

#include "store/cmq_store_internal.h"

/* Position in one queue, with units read ahead. */
typedef struct cmq_cursor {
    cmq_queue *queue;
    int64_t next;          /* ordinal to read on from (forwards), or to read below (backwards) */
    int64_t first, end;    /* offsets that are wanted: [first, end) */
    int64_t from, until;   /* with bounds of time: nothing that is wanted lies outside [from, until) */
    bool timed;            /* … which have been found */
    uint32_t capacity;
    uint32_t at, count;    /* of units */
    bool done;             /* a bound was met: nothing more will come */
    bool ends;             /* the end offset has been reached */
    bool counts_expired;   /* it has a given start, or has begun: messages gone by then are a loss */
    cmq_unit units[];
} cmq_cursor;

/* A cursor that has a unit, and where in the order of reading that unit stands: its physical offset, or backwards all
 * bits of it turned. */
typedef struct cmq_heap_entry {
    int64_t key;
    uint32_t cursor;
} cmq_heap_entry;

/* Where the records that a queue has begin in the log. */
typedef struct cmq_queue_floor {
    const cmq_queue *queue;
    int64_t first_phy;
} cmq_queue_floor;

#define CMQ_READER_FLOORS 64u

struct cmq_reader {
    cmq_store *store;
    cmq_read_options options;    /* its pointers are not kept */
    char **topics;
    char **tags;
    uint32_t *tag_hashes;
    int32_t *queue_ids;

    cmq_cursor **cursors;
    cmq_heap_entry *heap;        /* lowest (highest) physical offset first */
    uint32_t cursor_count, cursor_capacity, heap_count;
    uint32_t queues_seen;        /* of the store's table */
    bool of_queues;              /* else the whole log */
    bool merged;                 /* the heap holds every cursor that has units below merged_end */
    int64_t merged_end;
    int64_t expired;             /* messages of the range that are gone */

    /* The segment that was read last, for fetching heads of records to come. Only addresses are made of it, but where a
     * batch pins it too. */
    uint32_t fetch_units;        /* how many units ahead, in one cursor */
    const cmq_segment *window;
    uintptr_t window_data;
    int64_t window_start;

    /* Whole log. */
    int64_t position;            /* forwards: the next record; backwards: records below it are still to come */
    int64_t *marks;              /* backwards: every BLOCK_RECORDS-th record of the segment being read */
    uint32_t mark_count, mark_capacity;
    int64_t *block;              /* backwards: records of the block being given out, in order */
    uint32_t block_count;
    cmq_queue_floor floors[CMQ_READER_FLOORS];   /* with only_queued: of queues met, in the place that their address
                                                  * gives */

    /* Reading ahead from the disk. */
    int64_t ahead_from;          /* at or behind it more is asked for … */
    int64_t ahead_until;         /* … from here on */
    int64_t ahead_bytes;         /* of the last piece that was asked for */

    int64_t log_from, log_until; /* whole log: records within the bounds of time begin in [log_from, log_until) */
    bool past;                   /* a record at or behind the end time was met: once all that is there has been read,
                                  * nothing more is waited for */
    uint64_t steps, steps_max;   /* that the expression took in this call; the same at most */
    bool ended;
    bool lacks_queues;           /* a queue that was asked for is not there */
    int64_t damaged_end;         /* of a view: damage was reported there; -1: none */
};

/* Pin the segment of `phy` in the batch; CMQ_AGAIN when its pins are used up. */
cmq_status CMQ_MUST_CHECK cmq_reader_pin(cmq_reader *reader, cmq_found_batch *batch, int64_t phy,
                                         const uint8_t **data_out, size_t *available_out);
/* Does the reader take messages by their tags or properties, and this one? */
static inline bool cmq_reader_selects(const cmq_reader *reader)
{
    return reader->options.tag_count > 0 || reader->options.where != NULL;
}
bool cmq_reader_matches(cmq_reader *reader, const cmq_record_view *view);

#define CMQ_READER_STEPS_MAX (UINT64_C(1) << 24)   /* of the expression, in one call: tenths of a second */
/* Has the expression taken so long that the caller is let in? */
static inline bool cmq_reader_pauses(const cmq_reader *reader) { return reader->steps >= reader->steps_max; }

/* The size of the record at `phy`, and its store time. CMQ_END: blank, or the limit; CMQ_ERR_CORRUPT with the error
 * set. */
cmq_status CMQ_MUST_CHECK cmq_reader_head_at(cmq_reader *reader, int64_t phy, int64_t limit, cmq_record_head *head_out);

/* Bounds of time (cmq_reader_time.c): find the part of a cursor's queue, of the log; and is a message stored at that
 * time wanted? */
void cmq_reader_bound_times(cmq_reader *reader, cmq_cursor *cursor, int64_t confirmed);
void cmq_reader_bound_log(cmq_reader *reader, int64_t confirmed);
bool cmq_reader_in_time(cmq_reader *reader, int64_t stored_ms);

/* Of queues: does no cursor expect any more, ever? */
bool cmq_reader_all_ended(const cmq_reader *reader);

/* Nothing was found. In a view: do messages follow that cannot be read? Reported once for each end of the view;
 * the next read continues, or ends, after the failure. */
cmq_status CMQ_MUST_CHECK cmq_reader_check_end(cmq_reader *reader);

cmq_status CMQ_MUST_CHECK cmq_reader_begin_log(cmq_reader *reader, int64_t confirmed);
cmq_status CMQ_MUST_CHECK cmq_reader_next_of_log(cmq_reader *reader, cmq_found_batch *batch, int64_t confirmed);

#endif
