/* pop_reference: the promises of POP, as simply as they can be stated. A test reports its actions and observations; a
 * forbidden one fails the test.
 *
 *   - A queue is handed out in order, each message once, from where the group stands: after a stop where it was, after
 *     a kill where the offset stood that was written down last.
 *   - A message that is handed out has a checkpoint. When its time is over and it was not acknowledged, it comes to the
 *     retry topic: once, not before its time, reconsumed once more, with 1ST_POP_TIME. When it was acknowledged in
 *     time, or made invisible for another time, this checkpoint brings it no more.
 *   - A kill may undo: acks that were merged in memory; offsets, also of the revive, that were not written down (so its
 *   work of since then is done again).
 *     A power loss, or a kill under sync flush, may also undo all of the log that nobody waited for. Neither undoes
 *     messages that a written offset has passed.
 *   - An ack behind its time may count, or come too late. Once the clock was set back, none need count, and messages
 *     may come early, or again.
 *   - An ordered queue gives nothing while a message of its batch is out and invisible; then it gives again what is not
 *     acknowledged, from the first on.
 *
 * So nothing is lost: at the end each message has been acknowledged by each group.
 */
#ifndef POP_REFERENCE_H
#define POP_REFERENCE_H

#include <stdbool.h>
#include <stdint.h>

#include "broker/pop/flight/cmq_pop_fifo_table.h"

#define REFERENCE_TOPIC "P"

enum {
    REFERENCE_QUEUES = 2,
    REFERENCE_UNORDERED = 2,             /* groups; behind them one that pops in order */
    REFERENCE_ORDERED = REFERENCE_UNORDERED,
    REFERENCE_GROUPS,
    REFERENCE_MESSAGES_MAX = 96,
    REFERENCE_BATCH_MAX = 12,            /* messages of a pop */
    REFERENCE_COPIES_MAX = 1500,         /* in a retry topic */
    REFERENCE_CHECKPOINTS_MAX = 3000,
    REFERENCE_REVIVE_QUEUES = 8
};

extern const char *const reference_groups[REFERENCE_GROUPS];

typedef enum fate {
    OUT = 0,
    ACKED,
    PERHAPS_ACKED                        /* late, or undone by a crash */
} fate;

typedef enum revival {
    NOT_YET = 0,
    REVIVED,
    PERHAPS_AGAIN                        /* it was, before a crash */
} revival;

/* The messages of one queue that one pop, or one change, handed out. */
typedef struct handed {
    int group;
    bool retry;                          /* from the group's retry topic */
    bool alone;                          /* of a change: in the log at once */
    bool sure;                           /* it must bring back what is OUT; else a crash may have lost it, and its
                                          * messages are given by the queue again */
    bool fresh;                          /* for the test */
    int32_t queue_id, revive_queue;
    int64_t pop_ms, invisible_ms;
    uint32_t at, count;
    int64_t offsets[REFERENCE_BATCH_MAX];
    fate fates[REFERENCE_BATCH_MAX];
    revival revivals[REFERENCE_BATCH_MAX];
    uint8_t spare[REFERENCE_BATCH_MAX];  /* a crash met it when it was due: so many revives more are no wonder */
    uint32_t acked_at[REFERENCE_BATCH_MAX], revived_at[REFERENCE_BATCH_MAX];
    int64_t revived_ms[REFERENCE_BATCH_MAX];
} handed;

/* A message in a retry topic. */
typedef struct copy {
    int32_t message, reconsumed;
    int64_t first_pop_ms;
    uint32_t checkpoint, index;          /* the pop it came from */
} copy;

typedef struct ordered_queue {
    bool has_batch;
    int64_t committed;                   /* -1: none */
    int64_t pop_ms;
    uint32_t count;
    int64_t offsets[REFERENCE_BATCH_MAX], visible_ms[REFERENCE_BATCH_MAX];
    bool acked[REFERENCE_BATCH_MAX];
} ordered_queue;

/* The control plane's saved state. The test fills in all but the last. */
typedef struct persisted {
    int64_t offsets[REFERENCE_GROUPS][2][REFERENCE_QUEUES];
    int64_t revive[REFERENCE_REVIVE_QUEUES];
    cmq_pop_fifo_table_item orders[REFERENCE_QUEUES];
    uint32_t order_count;
    ordered_queue ordered[REFERENCE_QUEUES];
} persisted;

typedef struct reference {
    bool retry_v2;
    bool set_back;                       /* the clock was */
    bool puts_again;                     /* a retry topic was not made at once, so checkpoints may have been put again,
                                          * often */
    uint32_t at;                         /* rises with everything that happens */
    uint32_t persisted_at, flushed_at;
    bool retry_made[REFERENCE_GROUPS];
    int32_t message_count;
    int32_t in_queue[REFERENCE_QUEUES];
    int32_t queues[REFERENCE_QUEUES][REFERENCE_MESSAGES_MAX];   /* messages by offset */
    bool done[REFERENCE_GROUPS][REFERENCE_MESSAGES_MAX];
    int64_t next[REFERENCE_GROUPS][2][REFERENCE_QUEUES];
    int32_t copy_count[REFERENCE_GROUPS];
    copy copies[REFERENCE_UNORDERED][REFERENCE_COPIES_MAX];
    ordered_queue ordered[REFERENCE_QUEUES];
    persisted persisted;
    uint32_t checkpoint_count;
    handed checkpoints[REFERENCE_CHECKPOINTS_MAX];
} reference;

/* Messages of one queue that a pop handed out. */
typedef struct given {
    int group;
    bool retry;
    int32_t queue_id, revive_queue;
    int64_t pop_ms, invisible_ms;
    uint32_t count;
    int64_t offsets[REFERENCE_BATCH_MAX];
    int32_t messages[REFERENCE_BATCH_MAX];
} given;

void reference_begin(reference *r, bool retry_v2);
void reference_topic(const reference *r, int group, bool retry, char name[64]);
int32_t reference_message(const reference *r, const handed *of, uint32_t index);

/* ---- actions ---- */
void reference_sent(reference *r, int32_t queue);
void reference_flushed(reference *r);
void reference_persisted(reference *r);          /* with a flush before it */
void reference_acked(reference *r, handed *of, uint32_t index, int64_t now_ms, bool consumed);
void reference_changed(reference *r, handed *of, uint32_t index, int64_t pop_ms, int64_t invisible_ms, int64_t now_ms);
int32_t reference_ordered_acked(reference *r, const handed *of, uint32_t index);   /* the code to expect */
void reference_ordered_changed(reference *r, const handed *of, uint32_t index, int64_t invisible_ms, int64_t now_ms);
void reference_set_back(reference *r);           /* the clock */
void reference_stopped(reference *r);            /* cleanly, and everything written down */
void reference_crashed(reference *r, bool log_cut, bool merged, int64_t now_ms);
void reference_copies_left(reference *r, int group, int64_t max);   /* after a power loss: the retry topic has so
                                                                     * many */

/* ---- observations ---- */
void reference_given(reference *r, const given *batch, bool ordered, int64_t now_ms);
void reference_revived(reference *r, int group, int32_t message, int32_t reconsumed, int64_t first_pop_ms,
                       int64_t now_ms);
/* a pop that had room left found no more than that */
void reference_went_to(const reference *r, int group, bool retry, int32_t queue, int64_t max);
void reference_ordered_look(reference *r, int32_t queue);           /* before it: a pop looked at the queue, or -1 at
                                                                     * all, and so the group stands there */
/* it found nothing; -1: in all */
void reference_ordered_none(const reference *r, int32_t queue, int64_t now_ms, const int64_t max[REFERENCE_QUEUES]);

/* ---- the end ---- */
int64_t reference_horizon_ms(const reference *r, int64_t now_ms);   /* when all that is out has come back, or is being
                                                                     * brought */
void reference_all_came_back(const reference *r, int64_t now_ms);
void reference_all_done(const reference *r);

#endif
