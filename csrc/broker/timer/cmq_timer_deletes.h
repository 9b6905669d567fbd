/* cmq_timer_deletes: the keys of a slot's deletions: a set of texts.
 *
 * Owns:    copies of the keys.
 * Threads: one at a time.
 */
#ifndef CMQ_TIMER_DELETES_H
#define CMQ_TIMER_DELETES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cmq_bytes.h"
#include "base/cmq_status.h"

typedef struct cmq_timer_deletes {   /* zeroed: empty */
    uint64_t *table;                 /* 1 + where in the text a key lies; 0: free */
    size_t table_slots, count;
    uint8_t *text;                   /* per key its length in 4 bytes, then it */
    size_t text_used, text_bytes;
} cmq_timer_deletes;

cmq_status CMQ_MUST_CHECK cmq_timer_deletes_add(cmq_timer_deletes *deletes, cmq_slice key);
bool cmq_timer_deletes_has(const cmq_timer_deletes *deletes, cmq_slice key);
void cmq_timer_deletes_free(cmq_timer_deletes *deletes);   /* empty again */

#endif
