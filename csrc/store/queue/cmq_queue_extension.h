/* cmq_queue_extension: the extension of simple queues: tags code, store time and a Bloom bit map per unit, at an
 * address that the unit holds.
 *
 *   unit: i16 size = 20 + map | i64 tags code | i64 store time | i16 map bytes | map      never across files; i16 -1
 *   ends a file early address = real offset + INT64_MIN, in the place of the unit's tags code
 *
 * Owns:       files under consumequeue_ext/.
 * Invariant:  the unit of an address is written before the address is (crash: an orphan at most). Units that we write
 *             have no map; their bytes follow from the queue's unit, which the tail keeps in plain form, so there is no
 *             second tail.
 * Absent:     an address whose file is gone is "unknown": the unit keeps the address as its tags code and passes every
 *             tag filter.
 * Threads:    resolve: any. place, write: the writer, and under the queue's lock.
 * Source:     upstream's ConsumeQueueExt; spec store 3.5.
 */
#ifndef CMQ_QUEUE_EXTENSION_H
#define CMQ_QUEUE_EXTENSION_H

#include "store/queue/cmq_queue_internal.h"

#define CMQ_EXT_HEAD_BYTES 20
#define CMQ_EXT_UNIT_BYTES_MAX 32767
#define CMQ_EXT_END_BYTES 4          /* upstream keeps so many free at the end of a file */
#define CMQ_EXT_READ_BYTES 4096      /* read ahead when a run of units is resolved */

/* Real offset <-> address. */
static inline int64_t cmq_queue_extension_address(int64_t real_offset)
{
    return (int64_t)((uint64_t)real_offset + (UINT64_C(1) << 63));
}
static inline int64_t cmq_queue_extension_offset(int64_t address)
{
    return (int64_t)((uint64_t)address - (UINT64_C(1) << 63));
}

/* A window of one file, for runs of neighbouring units; zeroed at first. */
typedef struct cmq_queue_extension_window {
    int64_t offset;
    size_t bytes;
    uint8_t data[CMQ_EXT_READ_BYTES];
} cmq_queue_extension_window;

typedef struct cmq_queue_extension_unit {
    int64_t tags_code;
    int64_t store_ms;
    uint16_t map_bytes;
    uint16_t size;       /* of the whole unit */
} cmq_queue_extension_unit;

/* reader: the head of the unit at `address`. CMQ_ERR_NOT_FOUND when it is unknown, whatever the reason. */
cmq_status CMQ_MUST_CHECK cmq_queue_extension_resolve(const cmq_queue *queue, int64_t address,
                                                      cmq_queue_extension_window *window,
                                                      cmq_queue_extension_unit *unit_out);

/* writer: the real offset for the next unit of ours; -1 when the space of addresses is used up. */
int64_t cmq_queue_extension_place(cmq_queue *queue);

/* With the queue's lock: write the extension of the tail's units [from, end). Before the units themselves are
 * written. */
cmq_status CMQ_MUST_CHECK cmq_queue_extension_write(cmq_queue *queue, int64_t from, int64_t end);

/* After the queue's end is known: find where the extension goes on, and cut what lies behind (not when read-only).
 * `last_address`: the newest address in the queue, or 0 when it has none. */
cmq_status CMQ_MUST_CHECK cmq_queue_extension_recover(cmq_queue *queue, int64_t last_address);

/* With the queue's lock: remove files wholly below the address of the first readable unit. */
cmq_status CMQ_MUST_CHECK cmq_queue_extension_expire(cmq_queue *queue, int64_t first_address);

#endif
