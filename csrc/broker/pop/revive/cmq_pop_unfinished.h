/* cmq_pop_unfinished: the checkpoints of one revive queue that were read and are not done: in the order of the queue,
 * and found by what acks name.
 *
 * An entry is 72 bytes and a place of 4 to 8 in a table; offsets that do not follow one another cost four bytes more
 * each. Names are kept once for each (topic, group, broker) that is there. Two checkpoints of one key (delivered twice
 * around a kill) are two entries, and an ack counts for both; messages of the first are finished in the second.
 *
 * Threads: one at a time.
 * Way:     revive queue -> cmq_pop_revive -> [cmq_pop_unfinished] -> retry topic
 * Source:  consumption specification 4.9; upstream's PopReviveService.
 */
#ifndef CMQ_POP_UNFINISHED_H
#define CMQ_POP_UNFINISHED_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cmq_status.h"
#include "broker/pop/record/cmq_pop_record.h"

typedef struct cmq_pop_unfinished cmq_pop_unfinished;

cmq_status CMQ_MUST_CHECK cmq_pop_unfinished_create(cmq_pop_unfinished **unfinished_out);
void cmq_pop_unfinished_destroy(cmq_pop_unfinished *unfinished);   /* NULL is fine */

uint32_t cmq_pop_unfinished_count(const cmq_pop_unfinished *unfinished);

/* Add behind the others. CMQ_ERR_MEMORY: nothing changed. */
cmq_status CMQ_MUST_CHECK cmq_pop_unfinished_add(cmq_pop_unfinished *unfinished, const cmq_pop_checkpoint *checkpoint);

/* Acknowledge the message at `offset` of every checkpoint that the ack names. False when there is none. `ack->offset`
 * is not looked at. */
bool cmq_pop_unfinished_ack(cmq_pop_unfinished *unfinished, const cmq_pop_ack *ack, int64_t offset);

/* The checkpoint at `index`, 0 the first, with its bits as they are. Names live until it is dropped; `diffs` takes its
 * differences. */
void cmq_pop_unfinished_at(const cmq_pop_unfinished *unfinished, uint32_t index, int32_t diffs[CMQ_POP_MESSAGES_MAX],
                           cmq_pop_checkpoint *checkpoint_out);

/* Message `bit` of the checkpoint at `index` is done with: revived, gone or given up, or put again by a checkpoint of
 * its own; how many of the first says the count. */
void cmq_pop_unfinished_finish(cmq_pop_unfinished *unfinished, uint32_t index, uint32_t bit, bool revived);
uint32_t cmq_pop_unfinished_revived(const cmq_pop_unfinished *unfinished, uint32_t index);

/* Forget the first. There is one. */
void cmq_pop_unfinished_drop(cmq_pop_unfinished *unfinished);

#endif
