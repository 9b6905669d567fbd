/* cmq_recall: the handle by which a timer message can be recalled: "v1 topic broker time id" in URL-safe base64, with
 * padding.
 *
 * Threads: any; pure functions over memory of the caller.
 * Source: remoting specification 2.2, 4.6; upstream's RecallMessageHandle. Reading one is the control plane's
 *         (src/cometmq/broker/timers.py).
 */
#ifndef CMQ_RECALL_H
#define CMQ_RECALL_H

#include <stddef.h>
#include <stdint.h>

#include "base/cmq_bytes.h"

/* Room that a handle needs at most. */
size_t cmq_recall_handle_room(cmq_slice topic, cmq_slice broker, cmq_slice unique);
/* Write it to `into`, which has that room and is used from its end, too; returns its bytes. */
size_t cmq_recall_handle_write(cmq_slice topic, cmq_slice broker, int64_t out_ms, cmq_slice unique, uint8_t *into);

#endif
