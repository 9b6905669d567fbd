/* cmq_timer_wheel: the file `timerwheel`: for each slot of time its first and last unit in the timer log, and which
 * slots are still to be delivered.
 *
 * A slot lies at (time / precision) mod 1,209,600 and says itself for which time it is: one of another time counts as
 * empty. Memory is the file's image, of which the system gives only pages that were used (128 slots each), and a bit
 * per slot, so that the next slot with something in it is found without looking at those between. Delivery changes
 * nothing in a slot, only its bit; bits are not stored: they are made of the slots from the read time on.
 *
 * Owns:      the file, its image, the pages that differ.
 * Invariant: a slot whose bit is set is not put for another time: cmq_timer_wheel_has_room says so before.
 * Threads:   one at a time.
 * Source:    specification store 9.5; upstream's TimerWheel.
 */
#ifndef CMQ_TIMER_WHEEL_H
#define CMQ_TIMER_WHEEL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cmq_file.h"
#include "base/cmq_status.h"

#ifndef CMQ_TIMER_SLOTS
#define CMQ_TIMER_SLOTS 1209600   /* fewer where files are fuzzed, which map a wheel for each input */
#endif
#define CMQ_TIMER_SLOT_BYTES 32
/* All of the slot's messages have other units by now. More than one bit, as the slot is not delivered then. */
#define CMQ_TIMER_SLOT_PARKED_AGAIN INT32_C(0x50A6A15D)
#define CMQ_TIMER_WHEEL_BYTES ((int64_t)CMQ_TIMER_SLOTS * CMQ_TIMER_SLOT_BYTES)

typedef struct cmq_timer_wheel cmq_timer_wheel;

typedef struct cmq_timer_slot {
    int64_t number;          /* time / precision */
    int64_t first, last;     /* positions of units */
    int32_t count;
    int32_t magic;           /* 0, or CMQ_TIMER_SLOT_PARKED_AGAIN; upstream looks at it nowhere */
} cmq_timer_slot;

/* Open `timerwheel` in `root`, or make it. CMQ_ERR_SETTING when it has another length. *fresh_out: it was made, or had
 * nothing in it. */
cmq_status CMQ_MUST_CHECK cmq_timer_wheel_open(cmq_timer_wheel **wheel_out, cmq_fs *fs, const char *root,
                                               bool *fresh_out);
void cmq_timer_wheel_close(cmq_timer_wheel *wheel);   /* without a flush; NULL is fine */

/* The slot with this number (of time); false, and an empty one, when it is of another time. */
bool cmq_timer_wheel_get(const cmq_timer_wheel *wheel, int64_t number, cmq_timer_slot *slot_out);
/* The slot that has this number's place, of whatever time; all zero: none. */
cmq_timer_slot cmq_timer_wheel_occupant(const cmq_timer_wheel *wheel, int64_t number);
void cmq_timer_wheel_put(cmq_timer_wheel *wheel, const cmq_timer_slot *slot);

/* The slots as they are now, without a file; close it. */
cmq_status CMQ_MUST_CHECK cmq_timer_wheel_copy(const cmq_timer_wheel *wheel, cmq_timer_wheel **copy_out);
/* Empty the slots of the numbers from `number` on. */
void cmq_timer_wheel_clear_from(cmq_timer_wheel *wheel, int64_t number);
/* Pages that are the same as in `stored`, a copy of what the file has, need not be written. */
void cmq_timer_wheel_keep_same(cmq_timer_wheel *wheel, const cmq_timer_wheel *stored);

/* Call `each` for every slot that was ever used; it may put the same slot. */
void cmq_timer_wheel_each(cmq_timer_wheel *wheel, void (*each)(void *context, const cmq_timer_slot *slot),
                          void *context);

/* ---- pending slots ---- */

/* May a slot of this number be put: is its place free of a pending slot of another time? */
bool cmq_timer_wheel_has_room(const cmq_timer_wheel *wheel, int64_t number);
/* Is the slot of this number to be delivered? */
bool cmq_timer_wheel_is_pending(const cmq_timer_wheel *wheel, int64_t number);
void cmq_timer_wheel_set_pending(cmq_timer_wheel *wheel, int64_t number);
void cmq_timer_wheel_clear_pending(cmq_timer_wheel *wheel, int64_t number);
/* The number of the first pending slot from `from` on, around the wheel; INT64_MAX when there is none. */
int64_t cmq_timer_wheel_next_pending(const cmq_timer_wheel *wheel, int64_t from);
/* The number of a pending slot that is `limit` or later; the search begins at place *place, which moves; INT64_MAX, and
 * *place CMQ_TIMER_SLOTS: none. */
int64_t cmq_timer_wheel_next_beyond(const cmq_timer_wheel *wheel, uint32_t *place, int64_t limit);

/* ---- the file ---- */

/* Write the pages that differ, and sync. After a failure of the write they still differ. */
cmq_status CMQ_MUST_CHECK cmq_timer_wheel_flush(cmq_timer_wheel *wheel);

#endif
