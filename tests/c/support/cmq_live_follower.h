/* cmq_live_follower: a process that follows a store beside writers that are killed and recover: views that come and go,
 * readers of every topic with and without a tag, look-ups, a group that commits.
 *
 * It knows the ledger's seed and nothing else. A message that a view shows is acknowledged or survives all the same, so
 * the follower demands: each message whole; of each topic every message in order, none skipped and none twice; by its
 * tag the same; each later view shows every message of an earlier one, and no queue ends before a group's progress. A
 * view that reports that it was cut is opened again.
 */
#ifndef CMQ_LIVE_FOLLOWER_H
#define CMQ_LIVE_FOLLOWER_H

#include "support/cmq_ledger.h"

typedef struct live_follower live_follower;

/* Begin to follow the store of `options`, whose messages are those of the ledger's seed; the store need not be there
 * yet. */
live_follower *live_follower_start(const cmq_store_options *options, const ledger *of);

/* Ends the test when the follower has failed. */
void live_follower_check(live_follower *follower);

/* The store's writer is gone: the follower must find the first `acknowledged` messages, and ends. */
void live_follower_end(live_follower *follower, uint32_t acknowledged);

#endif
