/* cmq_number_places: open addressing of numbers that are found by a hash, which the numbers' owner computes.
 *
 * Invariant: at most half of the places are taken, so that a search ends.
 * Threads:   one at a time; the owner's mutex.
 * Way:       cmq_offsets (entries, and groups in topics) -> [cmq_number_places]
 */
#ifndef CMQ_NUMBER_PLACES_H
#define CMQ_NUMBER_PLACES_H

#include <stdint.h>

#include "base/cmq_status.h"

/* All zero: empty. A place holds a number + 1; 0: free. The search for a number begins at its hash & mask. */
typedef struct cmq_number_places {
    uint32_t *at;
    uint32_t mask, used;
} cmq_number_places;

typedef uint64_t (*cmq_number_hash)(const void *owner, uint32_t number);

/* Room for one more. CMQ_ERR_MEMORY: nothing changed. */
cmq_status CMQ_MUST_CHECK cmq_number_places_reserve(cmq_number_places *places, cmq_number_hash hash, const void *owner);

/* There is room. */
void cmq_number_places_put(cmq_number_places *places, uint64_t hash, uint32_t number);

/* It is there. */
void cmq_number_places_drop(cmq_number_places *places, cmq_number_hash hash, const void *owner, uint32_t number);

#endif
