/* cmq_ledger: the messages appended to a store, and a check of a store found later against them.
 *
 * Everything about message number n but its offsets follows from a seed, so that two processes know the same messages
 * without communicating. Numbers rise in the order of the log. Offsets are foreseen, by counting.
 *
 * Generation: messages that were handed over but did not survive a crash give their numbers to others; the body says
 *             which generation wrote it, so a stale record behind a cut is never mistaken for the new one of its
 *             number.
 * Checks return false and say why, so that a test may also expect a failure.
 */
#ifndef CMQ_LEDGER_H
#define CMQ_LEDGER_H

#include <stdbool.h>
#include <stdint.h>

#include "store/cmq_store.h"

#define LEDGER_TOPICS 4
#define LEDGER_QUEUES 3
#define LEDGER_LIGHT 2                  /* light queues, %LMQ%0 and %LMQ%1 */
/* With inner batches, where the ledger has them: a topic with queue.type=BatchCQ. */
#define LEDGER_INNER_TOPIC "topic-3"
#define LEDGER_GROUP 64u                /* messages of one topic and kind: the maximum of one call */
#define LEDGER_BODY_MIN 16u
#define LEDGER_WHY_BYTES 400

typedef struct ledger_entry {
    int64_t queue_offset;
    int64_t light_offset[LEDGER_LIGHT]; /* -1: not in it */
    int64_t physical_offset;            /* -1: not known */
    uint32_t generation;
} ledger_entry;

typedef struct ledger {
    uint64_t seed;
    uint32_t keys_of;                   /* of 16 messages so many have keys */
    uint32_t body_bytes_max;
    bool light;                         /* some messages go to light queues */
    bool prepared;                      /* some are prepared transactions: in the log and the index, in no queue */
    bool hostile;                       /* some have content that looks torn, or like the log's own: see
                                         * ledger_content */
    bool inner;                         /* some records of LEDGER_INNER_TOPIC are inner batches, of several messages
                                         * each */
    uint32_t generation;                /* of messages added from now on */
    int64_t next_offset[LEDGER_TOPICS][LEDGER_QUEUES];
    int64_t next_light[LEDGER_LIGHT];
    uint32_t gone_below[LEDGER_TOPICS]; /* the topic was deleted: its messages below this number are in no queue */
    int32_t deleting;                   /* topic whose deletion is in progress, -1: none */
    ledger_entry *entries;
    uint32_t count, capacity;
} ledger;

/* Content that recovery could take for something else. */
typedef enum ledger_content {
    LEDGER_PLAIN = 0,
    LEDGER_ZEROS_INSIDE,    /* a property with a run of zero bytes, which may cover sectors, at any alignment */
    LEDGER_ZEROS_BEHIND,    /* … which ends the properties */
    LEDGER_HEADS,           /* a body of sizes and magic numbers, as records begin */
    LEDGER_RECORDS,         /* a body of whole records, of other places */
    LEDGER_BLANKS           /* a body of blanks, as segments end, and zeros */
} ledger_content;

/* The content of message `number`. */
typedef struct ledger_plan {
    char topic[16], tag[8], key[3][16];
    uint32_t topic_number;
    int32_t queue_id;
    uint32_t key_count;
    uint32_t body_bytes;
    bool prepared;
    bool inner;
    ledger_content content;
    uint32_t odd_lead, odd_zeros;       /* of the odd property: letters, then zero bytes */
    int32_t messages;                   /* in the record: 1, but in an inner batch */
    bool light[LEDGER_LIGHT];
} ledger_plan;

void ledger_init(ledger *of, uint64_t seed);
void ledger_free(ledger *of);
void ledger_copy(ledger *into, const ledger *from);   /* into: not initialised */

void ledger_plan_of(const ledger *of, uint32_t number, ledger_plan *plan_out);

/* The most messages that one call may append next: not beyond the group, which has one topic and kind. */
uint32_t ledger_group_left(const ledger *of);

/* Append the next `count` messages (within the group) in one call. All are entered before the call, so that a hook
 * inside it knows them; those that were not appended are taken back. */
typedef struct ledger_call {
    bool no_wait;
    bool one_segment;
} ledger_call;
cmq_status CMQ_MUST_CHECK ledger_append(ledger *of, cmq_store *store, uint32_t count, const ledger_call *call,
                                        cmq_appended *appended_out);

/* Enter the next `count` messages as handed over by another process that has the same ledger; their physical offsets
 * are not known. */
void ledger_foresee(ledger *of, uint32_t count);

/* Forget messages from `count` on: the next ones get their numbers. */
void ledger_cut(ledger *of, uint32_t count);

/* Delete a topic of the store. While it is in progress (a hook takes an image) either state may be found: ledger_settle
 * finds out which. */
cmq_status CMQ_MUST_CHECK ledger_delete(ledger *of, cmq_store *store, uint32_t topic);

/* Is a record that was read one of the ledger's messages, whole? Which, and of which generation, its body says; whether
 * it should be there is not asked. */
typedef struct ledger_stamp {
    uint32_t number, generation;
} ledger_stamp;
bool ledger_is_whole(const ledger *of, const cmq_found *found, ledger_stamp *stamp_out, char why[LEDGER_WHY_BYTES]);

/* The messages that may be found. */
typedef struct ledger_expected {
    uint32_t acknowledged;      /* messages below this number must be there, if they have not expired */
    int64_t expired_below;      /* records below this physical offset may have expired; 0: none */
    bool index_may_lack;        /* keys need not be found */
} ledger_expected;

/* Compare the whole store with the ledger: log, queues, keys. *found_out: so many messages survived, those below this
 * number. */
bool ledger_check(const ledger *of, cmq_store *store, const ledger_expected *expected, uint32_t *found_out,
                  char why[LEDGER_WHY_BYTES]);

/* The same where a deletion was in progress: with it or without it, wholly; the ledger is as the store afterwards. */
bool ledger_settle(ledger *of, cmq_store *store, const ledger_expected *expected, uint32_t *found_out,
                   char why[LEDGER_WHY_BYTES]);

#endif
