/* cmq_txn_copies: the newest copy of each open half message that was copied, by the queue offset of its first one.
 *
 * So an answer about any copy ends the transaction, and a second answer about another one finds it ended.
 *
 * Limit:   CMQ_TXN_COPIES_MAX; a copy beyond is not known as one, and may be asked about and committed for itself, as
 *          upstream does with all.
 * Threads: one at a time; the owner's mutex.
 */
#ifndef CMQ_TXN_COPIES_H
#define CMQ_TXN_COPIES_H

#include <stdint.h>

#include "base/cmq_status.h"

#define CMQ_TXN_COPIES_MAX 4000000u

typedef struct cmq_txn_copy {
    int64_t first, latest;     /* first -1: a free place */
} cmq_txn_copy;

/* All zero: empty. Linear probing, at most half full. */
typedef struct cmq_txn_copies {
    cmq_txn_copy *places;
    uint32_t slots, used;
} cmq_txn_copies;

void cmq_txn_copies_free(cmq_txn_copies *copies);

/* The newest copy, or -1. */
int64_t cmq_txn_copies_latest(const cmq_txn_copies *copies, int64_t first);
/* Room for one more. CMQ_ERR_MEMORY, CMQ_ERR_LIMIT: nothing changed. */
cmq_status CMQ_MUST_CHECK cmq_txn_copies_reserve(cmq_txn_copies *copies);
void cmq_txn_copies_put(cmq_txn_copies *copies, int64_t first, int64_t latest);   /* there is room */
void cmq_txn_copies_drop(cmq_txn_copies *copies, int64_t first);                  /* nothing where it is not there */

#endif
