/* cmq_pop_buffer: popped messages that are not finished yet, and how far each group may be moved on.
 *
 * A lane is one (topic, group, queue). A pop enters the lane, looks where it begins, scans, adds the checkpoint of what
 * it found, and leaves: so a queue is never popped by two at a time. A checkpoint goes to the log at once ("stored"),
 * or, when merging is on, stays in memory ("merged") until all its messages are acknowledged, or until its time comes:
 * 10 s after the pop or 3 s before it is due, whichever is first. Then it is stored, with the acks it has.
 *
 *     pop -> enter -> [begin, add | pass] -> leave            ack -> [ack] -- CMQ_AGAIN: the caller stores it
 *     thread, or the test: step(now) -> store what is due -> commit what is finished or confirmed, in pop order
 *
 * Size: a merged checkpoint is at most 128 bytes with its places in heap and table, for up to 32 messages whose offsets
 *       lie close (gaps below 256); others keep a list of their own. A lane is some 380 bytes and its names.
 *
 * Records that the log refuses for good (the clock was set back by days, say) stay in memory alone, and are retried
 * with each step; all else goes on.
 *
 * Invariant: the group's offset moves behind a batch only when each of its messages is acknowledged, or its checkpoint
 *            lies below the confirmed end of the log. Records that fail to be stored stay in memory and are retried; a
 *            pop whose checkpoint could not be kept hands nothing out.
 * Threads:   any; a mutex per shard of lanes, held from enter to leave, for an ack, and for a shard's part of a step
 *            (with the store's append in it). A sink is called under that mutex, and calls nothing here.
 * Way:       cmq_pop -> [lane] -> cmq_pop_ack -> step -> sink (timer messages in the log) -> cmq_offsets
 * Source:    consumption specification 4.5.1, 4.8; upstream's PopBufferMergeService.
 */
#ifndef CMQ_POP_BUFFER_H
#define CMQ_POP_BUFFER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cmq_bytes.h"
#include "base/cmq_status.h"
#include "broker/pop/record/cmq_pop_record.h"

#define CMQ_POP_STORES_MAX 64u           /* records that a sink is given at once */

typedef struct cmq_pop_buffer cmq_pop_buffer;
typedef struct cmq_pop_lane cmq_pop_lane;

/* Names are borrowed for the call. */
typedef struct cmq_pop_key {
    cmq_slice topic, group;              /* the real topic: for a retry message its retry topic */
    int32_t queue_id;
} cmq_pop_key;

/* A checkpoint, an ack, or acks of one checkpoint for the log; slices live for the call. */
typedef struct cmq_pop_store_item {
    bool is_ack;
    int32_t revive_queue;
    cmq_pop_checkpoint checkpoint;
    cmq_pop_ack ack;
    const int64_t *offsets;              /* not NULL: acks of `count` messages, 2 to CMQ_POP_MESSAGES_MAX, in one
                                          * record; ack.offset is -1 */
    uint32_t count;
} cmq_pop_store_item;

/* Where what leaves the buffer goes. */
typedef struct cmq_pop_sink {
    void *context;
    /* Append the records, in order, without waiting for the disk. *stored_out of them are in the log (all, unless it
     * fails), up to *end_out. */
    cmq_status (*store)(void *context, const cmq_pop_store_item *items, uint32_t count, uint32_t *stored_out,
                        int64_t *end_out);
    int64_t (*confirmed)(void *context);   /* the log's confirmed end */
    void (*commit)(void *context, const cmq_pop_key *key, int64_t offset);
} cmq_pop_sink;

/* Zero means the default in brackets. */
typedef struct cmq_pop_buffer_options {
    cmq_pop_sink sink;
    cmq_slice broker;                    /* brokerName, in every checkpoint; copied */
    bool merge;                          /* enablePopBufferMerge */
    int64_t stay_ms;                     /* popCkStayBufferTime [10,000] */
    int64_t stay_out_ms;                 /* popCkStayBufferTimeOut [3,000] */
    uint32_t merged_max;                 /* popCkMaxBufferSize [200,000]; beyond, checkpoints are stored */
    uint32_t lane_max;                   /* popCkOffsetMaxQueueSize [20,000]: of one lane; beyond, the same */
} cmq_pop_buffer_options;

cmq_status CMQ_MUST_CHECK cmq_pop_buffer_create(cmq_pop_buffer **buffer_out, const cmq_pop_buffer_options *options);
void cmq_pop_buffer_destroy(cmq_pop_buffer *buffer);   /* its content is lost, as when killed; NULL is fine */

/* ---- a pop ---- */

/* Enter a lane, which is made where it is not; nobody else is inside until it is left. CMQ_ERR_MEMORY. */
cmq_status CMQ_MUST_CHECK cmq_pop_lane_enter(cmq_pop_buffer *buffer, const cmq_pop_key *key, cmq_pop_lane **lane_out);
void cmq_pop_lane_leave(cmq_pop_buffer *buffer, cmq_pop_lane *lane);

/* Behind the last batch whose offset is not committed yet; -1: there is none, the committed offset counts. */
int64_t cmq_pop_lane_next(const cmq_pop_lane *lane);
/* the same from outside; no lane is made for it */
int64_t cmq_pop_buffer_next(cmq_pop_buffer *buffer, const cmq_pop_key *key);
uint32_t cmq_pop_lane_in_flight(const cmq_pop_lane *lane);

/* Keep the checkpoint of `count` (1 to CMQ_POP_MESSAGES_MAX) messages at `offsets`, ascending; the group goes on at
 * next_offset. CMQ_OK: hand them out. Any other status: do not; the sink's, or CMQ_ERR_MEMORY. */
typedef struct cmq_pop_batch {
    int64_t pop_ms, invisible_ms;
    int64_t next_offset;
    int64_t log_end;                     /* the confirmed end below which the messages lie; 0: when it is stored */
    const int64_t *offsets;
    uint32_t count;
    int32_t revive_queue;
} cmq_pop_batch;
cmq_status CMQ_MUST_CHECK cmq_pop_lane_add(cmq_pop_buffer *buffer, cmq_pop_lane *lane, const cmq_pop_batch *batch,
                                           int64_t now_ms);

/* The group goes on at next_offset: nothing before it matched. CMQ_ERR_MEMORY: it will be looked at again. */
cmq_status CMQ_MUST_CHECK cmq_pop_lane_pass(cmq_pop_buffer *buffer, cmq_pop_lane *lane, int64_t next_offset);

/* The group's offset was reset: batches before now move it no more, and count as in flight no more. Acks still reach
 * them. */
void cmq_pop_lane_reset(cmq_pop_buffer *buffer, cmq_pop_lane *lane);

/* ---- acks ---- */

/* Merge acks of one checkpoint, found by its start offset and pop time. CMQ_OK: all are merged (one that the checkpoint
 * does not have is counted, and forgotten; again is fine). CMQ_AGAIN: nothing was done, store them: there is no such
 * checkpoint in memory, or it leaves soon. */
cmq_status CMQ_MUST_CHECK cmq_pop_buffer_ack(cmq_pop_buffer *buffer, const cmq_pop_key *key, int64_t start_offset,
                                             int64_t pop_ms, const int64_t *offsets, uint32_t count, int64_t now_ms);

/* Acks of one checkpoint that were not merged are in the log: their messages are in flight no more, and the checkpoint
 * has them, too, where it is still in memory. */
void cmq_pop_buffer_acks_stored(cmq_pop_buffer *buffer, const cmq_pop_key *key, int64_t start_offset, int64_t pop_ms,
                                int64_t invisible_ms, const int64_t *offsets, uint32_t count);

/* `count` (1 and more) messages of a pop, named by its checkpoint's start, its time and its invisible time, are in
 * flight no more: acked in the log, revived, or gone. Any thread. */
void cmq_pop_buffer_in_flight_done(cmq_pop_buffer *buffer, const cmq_pop_key *key, int64_t start_offset, uint32_t count,
                                   int64_t pop_ms, int64_t invisible_ms);
/* A message that was in flight since `before_ms`, by its handle, is by a checkpoint that went to the log without a pop:
 * its invisible time was changed. It counts as popped when it was popped first. No lane is made for it. */
void cmq_pop_buffer_in_flight_again(cmq_pop_buffer *buffer, const cmq_pop_key *key, int64_t offset, int64_t before_ms,
                                   int64_t pop_ms, int64_t invisible_ms);

/* ---- time ---- */

/* Store what is due, commit what may be. *next_due_ms_out: when to call again (INT64_MAX: when something was added;
 * now_ms: the disk is awaited). A status other than CMQ_OK is the sink's: the next step retries the refused records. */
cmq_status CMQ_MUST_CHECK cmq_pop_buffer_step(cmq_pop_buffer *buffer, int64_t now_ms, int64_t *next_due_ms_out);

/* Take no more into memory, and store everything that is in it, whatever its time. Call again until CMQ_OK: then
 * nothing is left in memory but what waits for the confirmed end, as CMQ_AGAIN reports. */
cmq_status CMQ_MUST_CHECK cmq_pop_buffer_empty(cmq_pop_buffer *buffer);

/* A topic or a group (the other slice empty: any) is no more: so are its lanes, with all they hold. */
void cmq_pop_buffer_forget(cmq_pop_buffer *buffer, cmq_slice topic, cmq_slice group);

/* ---- counters ---- */

typedef struct cmq_pop_buffer_counters {
    uint64_t merged, stored;             /* checkpoints that came, by where they went at first */
    uint64_t given_up;                   /* merged ones that were stored later */
    uint64_t acks_merged, acks_unknown;  /* unknown: of messages that their checkpoint does not have */
    uint64_t checkpoints_now, lanes_now, in_flight_now;
    uint64_t refused_now;                /* checkpoints that should be in the log, which does not take them */
    uint64_t bytes_now;                  /* allocated */
} cmq_pop_buffer_counters;
void cmq_pop_buffer_count(cmq_pop_buffer *buffer, cmq_pop_buffer_counters *counters_out);

/* A lane that has messages in flight. */
typedef struct cmq_pop_lane_item {
    cmq_slice topic, group;              /* in the caller's text area */
    int32_t queue_id;
    uint32_t in_flight;
    int64_t oldest_pop_ms;               /* when the oldest of them was popped, or its invisible time changed: no later
                                          * than this */
    int64_t due_ms;                      /* when the first of them comes back: no earlier than this; see
                                          * cmq_pop_in_flight.h */
} cmq_pop_lane_item;

/* Lanes with messages in flight, from *cursor (0 at first) on; 0: no more. `text` has room for one item's names at
 * least (512 bytes). */
uint32_t cmq_pop_buffer_list(cmq_pop_buffer *buffer, uint32_t *cursor, cmq_pop_lane_item *items, uint32_t capacity,
                             uint8_t *text, size_t text_bytes);

#endif
