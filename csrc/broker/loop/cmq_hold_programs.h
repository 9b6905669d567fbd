/* cmq_hold_programs: the SQL92 filters that held requests of one loop keep: each expression once, however many requests
 * bring it. Part of cmq_hold; held pops keep theirs here, too.
 *
 * Limits: the bytes of all programs. When half of them are taken, a connection whose requests keep more than its share
 *         of them gets no more; one that is there already is kept for any. A program counts once for each connection
 *         that holds requests with it.
 *
 * Owns:    a reference on each filter.
 * Threads: one.
 */
#ifndef CMQ_HOLD_PROGRAMS_H
#define CMQ_HOLD_PROGRAMS_H

#include <stdint.h>

#include "base/cmq_status.h"
#include "broker/tables/cmq_filter.h"

#define CMQ_HOLDS_PROGRAM_BYTES_MAX (64u << 20)   /* of all holds of a loop */

typedef struct cmq_hold_program {
    cmq_filter *filter;        /* NULL: not in use */
    size_t bytes;
    uint32_t users;            /* holds; not in use: the next free one */
} cmq_hold_program;

/* A connection's holds with one program. */
typedef struct cmq_hold_program_use {
    uint32_t conn_slot, program, holds;   /* holds 0: a free place */
} cmq_hold_program_use;

/* All zero, but the name of nothing: cmq_hold_programs_begin. */
typedef struct cmq_hold_programs {
    cmq_hold_program *programs;
    uint32_t slots, count, used, free_program;   /* room for; ever used; in use */
    uint32_t *table;           /* program number + 1; 0: empty. Linear probing, a power of two, at most half full */
    uint32_t table_slots;
    size_t *conns;             /* bytes of the programs of its holds: by connection slot */
    uint32_t conn_slots;
    cmq_hold_program_use *uses;   /* linear probing, a power of two, at most half full */
    uint32_t use_slots, uses_used;
    size_t bytes;
} cmq_hold_programs;

#define CMQ_HOLD_PROGRAM_NONE UINT32_MAX

void cmq_hold_programs_begin(cmq_hold_programs *programs);
void cmq_hold_programs_end(cmq_hold_programs *programs);

/* Keep a filter by SQL92 for one more hold of the connection. *number_out: that of the filter with this expression,
 * which may be another filter. CMQ_ERR_LIMIT, CMQ_ERR_MEMORY: it is not kept. */
cmq_status CMQ_MUST_CHECK cmq_hold_programs_keep(cmq_hold_programs *programs, const cmq_filter *filter,
                                                 uint32_t conn_slot, uint32_t *number_out);
void cmq_hold_programs_drop(cmq_hold_programs *programs, uint32_t number, uint32_t conn_slot);

/* The number of a filter that is kept. */
uint32_t cmq_hold_programs_find(const cmq_hold_programs *programs, const cmq_filter *filter);
static inline cmq_filter *cmq_hold_programs_filter(const cmq_hold_programs *programs, uint32_t number)
{
    return programs->programs[number].filter;
}

size_t cmq_hold_programs_bytes(const cmq_hold_programs *programs);   /* allocated, with the programs */

#endif
