/* cmq_txn_ended: which half messages have ended: a bit for each queue offset, from where the checks are on.
 *
 * Owns:      chunks of 4 KiB, made where something has ended in them: one bit for a half message that the checks have
 *            not passed for good.
 * Invariant: nothing below `base` has a bit.
 * Threads:   one at a time; the owner's mutex.
 */
#ifndef CMQ_TXN_ENDED_H
#define CMQ_TXN_ENDED_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cmq_status.h"

#define CMQ_TXN_CHUNK_HALVES 32768

typedef struct cmq_txn_ended {
    int64_t base;              /* a multiple of CMQ_TXN_CHUNK_HALVES */
    uint64_t **chunks;         /* NULL where nothing has ended */
    uint32_t count;
} cmq_txn_ended;

void cmq_txn_ended_begin(cmq_txn_ended *ended, int64_t from);
void cmq_txn_ended_free(cmq_txn_ended *ended);

bool cmq_txn_ended_has(const cmq_txn_ended *ended, int64_t offset);
/* Room for an offset that the half queue has. CMQ_ERR_MEMORY: nothing changed. */
cmq_status CMQ_MUST_CHECK cmq_txn_ended_reserve(cmq_txn_ended *ended, int64_t offset);
/* There is room; nothing where the offset lies below the base. */
void cmq_txn_ended_add(cmq_txn_ended *ended, int64_t offset);

/* Nobody will ask for what lies below. */
void cmq_txn_ended_forget(cmq_txn_ended *ended, int64_t below);

#endif
