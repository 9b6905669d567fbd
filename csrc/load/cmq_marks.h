/* cmq_marks: which numbers from a base on were seen, one bit each, in a table that grows.
 *
 * Invariant: count is the number of bits that are set; end is behind the last of them.
 * Threads:   one at a time.
 */
#ifndef CMQ_MARKS_H
#define CMQ_MARKS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cmq_status.h"

typedef struct cmq_marks {
    uint64_t *words;
    uint64_t word_count;
    uint64_t count;
    uint64_t end;
} cmq_marks;

#define CMQ_MARKS_MAX (UINT64_C(1) << 40)   /* numbers; 128 GiB of bits */

/* Mark a number. *first_out: it had not been marked before. CMQ_ERR_MEMORY when the table cannot grow, CMQ_ERR_LIMIT
 * for CMQ_MARKS_MAX and above. */
CMQ_MUST_CHECK cmq_status cmq_marks_set(cmq_marks *marks, uint64_t number, bool *first_out);

/* How many numbers below `end` are not marked. */
static inline uint64_t cmq_marks_missing(const cmq_marks *marks) { return marks->end - marks->count; }

void cmq_marks_free(cmq_marks *marks);

#endif
