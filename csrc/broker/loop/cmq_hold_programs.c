/* cmq_hold_programs: see cmq_hold_programs.h. */
#include "broker/loop/cmq_hold_programs.h"

#include <stdlib.h>
#include <string.h>

#include "base/cmq_assert.h"
#include "base/cmq_name_hash.h"
#include "broker/loop/cmq_hold.h"

#define NONE CMQ_HOLD_PROGRAM_NONE

void cmq_hold_programs_begin(cmq_hold_programs *programs) { *programs = (cmq_hold_programs){.free_program = NONE}; }

void cmq_hold_programs_end(cmq_hold_programs *programs)
{
    for (uint32_t i = 0; i < programs->count; i++) cmq_filter_release(programs->programs[i].filter);
    free(programs->programs);
    free(programs->table);
    free(programs->conns);
    free(programs->uses);
}

static uint32_t home_of(const cmq_filter *filter) { return (uint32_t)cmq_filter_text_hash(filter); }

/* The place of the filter's expression, or the empty one where it belongs. */
static uint32_t *find_place(const cmq_hold_programs *programs, const cmq_filter *filter)
{
    for (uint32_t i = home_of(filter);; i++) {
        uint32_t *place = &programs->table[i & (programs->table_slots - 1)];
        if (*place == 0) return place;
        const cmq_filter *there = programs->programs[*place - 1].filter;
        if (cmq_filter_text_hash(there) == cmq_filter_text_hash(filter) && cmq_filter_equal(there, filter))
            return place;
    }
}

static cmq_status no_memory(void)
{
    return cmq_fail(CMQ_ERR_MEMORY, "no memory for the expression of one more held request");
}

static bool grow_table(cmq_hold_programs *programs)
{
    if ((programs->used + 1) * 2 <= programs->table_slots) return true;
    const uint32_t slots = programs->table_slots == 0 ? 64 : programs->table_slots * 2;
    uint32_t *table = calloc(slots, sizeof *table);
    if (table == NULL) return false;
    for (uint32_t i = 0; i < programs->count; i++) {
        if (programs->programs[i].filter == NULL) continue;
        uint32_t to = home_of(programs->programs[i].filter);
        while (table[to & (slots - 1)] != 0) to++;
        table[to & (slots - 1)] = i + 1;
    }
    free(programs->table);
    programs->table = table;
    programs->table_slots = slots;
    return true;
}

static bool grow_programs(cmq_hold_programs *programs)
{
    if (programs->free_program != NONE || programs->count < programs->slots) return true;
    const uint32_t slots = programs->slots == 0 ? 16 : programs->slots * 2;
    cmq_hold_program *larger = realloc(programs->programs, slots * sizeof *larger);
    if (larger == NULL) return false;
    programs->programs = larger;
    programs->slots = slots;
    return true;
}

static bool grow_conns(cmq_hold_programs *programs, uint32_t conn_slot)
{
    uint32_t slots = programs->conn_slots == 0 ? 64 : programs->conn_slots;
    while (slots <= conn_slot) slots *= 2;
    if (slots == programs->conn_slots) return true;
    size_t *larger = realloc(programs->conns, slots * sizeof *larger);
    if (larger == NULL) return false;
    memset(larger + programs->conn_slots, 0, (slots - programs->conn_slots) * sizeof *larger);
    programs->conns = larger;
    programs->conn_slots = slots;
    return true;
}

/* ---- uses ---- */

static uint32_t home_of_use(const cmq_hold_programs *programs, uint32_t conn_slot, uint32_t program)
{
    const uint64_t both = (uint64_t)conn_slot << 32 | program;
    return (uint32_t)cmq_name_hash_step(both ^ cmq_name_hash_seed[0], cmq_name_hash_seed[1]) &
           (programs->use_slots - 1);
}

/* The connection's use of the program, or the free place where it would be. */
static cmq_hold_program_use *find_use(const cmq_hold_programs *programs, uint32_t conn_slot, uint32_t program)
{
    uint32_t at = home_of_use(programs, conn_slot, program);
    for (; programs->uses[at].holds > 0; at = (at + 1) & (programs->use_slots - 1))
        if (programs->uses[at].conn_slot == conn_slot && programs->uses[at].program == program) break;
    return &programs->uses[at];
}

static bool grow_uses(cmq_hold_programs *programs)
{
    if ((programs->uses_used + 1) * 2 <= programs->use_slots) return true;
    const uint32_t before = programs->use_slots, slots = before == 0 ? 64 : before * 2;
    cmq_hold_program_use *larger = calloc(slots, sizeof *larger), *old = programs->uses;
    if (larger == NULL) return false;
    programs->uses = larger;
    programs->use_slots = slots;
    for (uint32_t i = 0; i < before; i++)
        if (old[i].holds > 0) *find_use(programs, old[i].conn_slot, old[i].program) = old[i];
    free(old);
    return true;
}

/* One more hold of the connection with the program. There is room. */
static void add_use(cmq_hold_programs *programs, uint32_t conn_slot, uint32_t program)
{
    cmq_hold_program_use *use = find_use(programs, conn_slot, program);
    if (use->holds == 0) {
        *use = (cmq_hold_program_use){.conn_slot = conn_slot, .program = program};
        programs->uses_used++;
        programs->conns[conn_slot] += programs->programs[program].bytes;
    }
    use->holds++;
}

static void drop_use(cmq_hold_programs *programs, uint32_t conn_slot, uint32_t program)
{
    cmq_hold_program_use *use = find_use(programs, conn_slot, program);
    CMQ_ASSERT(use->holds > 0 && programs->conns[conn_slot] >= programs->programs[program].bytes);
    if (--use->holds > 0) return;
    programs->uses_used--;
    programs->conns[conn_slot] -= programs->programs[program].bytes;
    /* Move back what would not be found over the hole. */
    const uint32_t mask = programs->use_slots - 1;
    uint32_t hole = (uint32_t)(use - programs->uses);
    for (uint32_t at = (hole + 1) & mask; programs->uses[at].holds > 0; at = (at + 1) & mask) {
        const uint32_t home = home_of_use(programs, programs->uses[at].conn_slot, programs->uses[at].program);
        if (((at - home) & mask) < ((at - hole) & mask)) continue;
        programs->uses[hole] = programs->uses[at];
        programs->uses[at].holds = 0;
        hole = at;
    }
}

/* ---- limits ---- */

/* Is there room for a program of so many bytes more, for a connection that keeps so many? */
static cmq_status check_limits(const cmq_hold_programs *programs, size_t bytes, size_t of_conn)
{
    if (bytes > CMQ_HOLDS_PROGRAM_BYTES_MAX - programs->bytes)
        return cmq_fail(CMQ_ERR_LIMIT, "the SQL92 expressions of held requests take %zu bytes already",
                        programs->bytes);
    if (programs->bytes >= CMQ_HOLDS_PROGRAM_BYTES_MAX / 2 && of_conn > CMQ_HOLDS_PROGRAM_BYTES_MAX / CMQ_HOLDS_SHARE)
        return cmq_fail(CMQ_ERR_LIMIT, "the SQL92 expressions of the connection's held requests take %zu bytes already",
                        of_conn);
    return CMQ_OK;
}

static uint32_t enter(cmq_hold_programs *programs, uint32_t *place, const cmq_filter *filter, size_t bytes)
{
    const uint32_t number = programs->free_program != NONE ? programs->free_program : programs->count++;
    if (number == programs->free_program) programs->free_program = programs->programs[number].users;
    programs->programs[number] = (cmq_hold_program){.filter = cmq_filter_keep(filter), .bytes = bytes};
    programs->used++;
    programs->bytes += bytes;
    *place = number + 1;
    return number;
}

cmq_status cmq_hold_programs_keep(cmq_hold_programs *programs, const cmq_filter *filter, uint32_t conn_slot,
                                  uint32_t *number_out)
{
    *number_out = NONE;
    if (!grow_table(programs) || !grow_programs(programs) || !grow_conns(programs, conn_slot) || !grow_uses(programs))
        return no_memory();
    uint32_t *place = find_place(programs, filter);
    const size_t bytes =
        *place != 0 ? programs->programs[*place - 1].bytes : cmq_selector_bytes(cmq_filter_selector(filter));
    const cmq_status status =
        *place != 0 ? CMQ_OK : check_limits(programs, bytes, programs->conns[conn_slot]);   /* it is there */
    if (status != CMQ_OK) return status;
    *number_out = *place != 0 ? *place - 1 : enter(programs, place, filter, bytes);
    programs->programs[*number_out].users++;
    add_use(programs, conn_slot, *number_out);
    return CMQ_OK;
}

/* Take the program out of the table, and move those behind it that could not be found any more. */
static void clear_place(cmq_hold_programs *programs, const cmq_filter *filter)
{
    const uint32_t mask = programs->table_slots - 1;
    uint32_t hole = (uint32_t)(find_place(programs, filter) - programs->table);
    for (uint32_t i = (hole + 1) & mask; programs->table[i] != 0; i = (i + 1) & mask) {
        const uint32_t home = home_of(programs->programs[programs->table[i] - 1].filter) & mask;
        if (((i - home) & mask) < ((i - hole) & mask)) continue;
        programs->table[hole] = programs->table[i];
        hole = i;
    }
    programs->table[hole] = 0;
}

void cmq_hold_programs_drop(cmq_hold_programs *programs, uint32_t number, uint32_t conn_slot)
{
    cmq_hold_program *program = &programs->programs[number];
    CMQ_ASSERT(program->filter != NULL && program->users > 0);
    drop_use(programs, conn_slot, number);
    if (--program->users > 0) return;
    clear_place(programs, program->filter);
    cmq_filter_release(program->filter);
    programs->used--;
    programs->bytes -= program->bytes;
    *program = (cmq_hold_program){.users = programs->free_program};
    programs->free_program = number;
}

uint32_t cmq_hold_programs_find(const cmq_hold_programs *programs, const cmq_filter *filter)
{
    const uint32_t found = *find_place(programs, filter);
    CMQ_ASSERT(found != 0);
    return found - 1;
}

size_t cmq_hold_programs_bytes(const cmq_hold_programs *programs)
{
    return programs->slots * sizeof *programs->programs + programs->table_slots * sizeof *programs->table +
           programs->conn_slots * sizeof *programs->conns + programs->use_slots * sizeof *programs->uses +
           programs->bytes;
}
