/* cmq_pop_first_times: a table with linear probing, at most half full, of which an entry goes without a trace: those
 * behind it close up. See cmq_pop_first_times.h. */
#include "broker/pop/flight/cmq_pop_first_times.h"

#include <stdlib.h>

#define SLOTS_MIN 8u

typedef struct entry {
    int64_t offset;
    int64_t pop_ms;
    uint32_t held_ms;      /* from the first pop to this one; UINT32_MAX: so long, or longer */
    uint32_t used;
} entry;

struct cmq_pop_first_times {
    uint32_t count, slots;   /* a power of two */
    entry entries[];
};

static uint32_t home_of(const cmq_pop_first_times *f, int64_t offset, int64_t pop_ms)
{
    const uint64_t mixed =
        ((uint64_t)offset * UINT64_C(0x9E3779B97F4A7C15)) ^ ((uint64_t)pop_ms * UINT64_C(0xD6E8FEB86659FD93));
    return (uint32_t)(mixed >> 32) & (f->slots - 1);
}

/* Where it is, or would be. */
static uint32_t place_of(const cmq_pop_first_times *f, int64_t offset, int64_t pop_ms)
{
    uint32_t at = home_of(f, offset, pop_ms);
    while (f->entries[at].used != 0 && (f->entries[at].offset != offset || f->entries[at].pop_ms != pop_ms))
        at = (at + 1) & (f->slots - 1);
    return at;
}

static size_t bytes_of(uint32_t slots) { return sizeof(cmq_pop_first_times) + slots * sizeof(entry); }

/* A table of so many slots, with all that are in the old one. */
static cmq_pop_first_times *make(uint32_t slots, const cmq_pop_first_times *old)
{
    cmq_pop_first_times *made = calloc(1, bytes_of(slots));
    if (made == NULL) return NULL;
    made->slots = slots;
    for (uint32_t i = 0; old != NULL && i < old->slots; i++) {
        const entry *e = &old->entries[i];
        if (e->used == 0) continue;
        made->entries[place_of(made, e->offset, e->pop_ms)] = *e;
        made->count++;
    }
    return made;
}

static cmq_pop_first_times *with_room(cmq_pop_first_times **firsts)
{
    cmq_pop_first_times *f = *firsts;
    if (f != NULL && f->count >= CMQ_POP_FIRSTS_MAX) return NULL;
    if (f != NULL && (f->count + 1) * 2 <= f->slots) return f;
    cmq_pop_first_times *larger = make(f == NULL ? SLOTS_MIN : f->slots * 2, f);
    if (larger == NULL) return NULL;
    free(f);
    *firsts = larger;
    return larger;
}

void cmq_pop_first_times_put(cmq_pop_first_times **firsts, int64_t offset, int64_t pop_ms, int64_t first_ms)
{
    cmq_pop_first_times *f = with_room(firsts);
    if (f == NULL) return;
    const int64_t held_ms = pop_ms > first_ms ? pop_ms - first_ms : 0;
    entry *e = &f->entries[place_of(f, offset, pop_ms)];
    if (e->used == 0) f->count++;
    *e = (entry){.offset = offset,
                 .pop_ms = pop_ms,
                 .held_ms = held_ms < UINT32_MAX ? (uint32_t)held_ms : UINT32_MAX,
                 .used = 1};
}

int64_t cmq_pop_first_times_take(cmq_pop_first_times **firsts, int64_t offset, int64_t pop_ms)
{
    cmq_pop_first_times *f = *firsts;
    if (f == NULL) return -1;
    uint32_t hole = place_of(f, offset, pop_ms);
    if (f->entries[hole].used == 0) return -1;
    const int64_t first_ms = pop_ms - f->entries[hole].held_ms;
    for (uint32_t at = (hole + 1) & (f->slots - 1); f->entries[at].used != 0; at = (at + 1) & (f->slots - 1)) {
        const uint32_t home = home_of(f, f->entries[at].offset, f->entries[at].pop_ms);
        /* It may move into the hole when that is no nearer to its home than it is. */
        if (((at - home) & (f->slots - 1)) < ((at - hole) & (f->slots - 1))) continue;
        f->entries[hole] = f->entries[at];
        hole = at;
    }
    f->entries[hole].used = 0;
    if (--f->count == 0) cmq_pop_first_times_clear(firsts);
    return first_ms;
}

int64_t cmq_pop_first_times_oldest_ms(const cmq_pop_first_times *firsts)
{
    int64_t oldest_ms = -1;
    for (uint32_t i = 0; firsts != NULL && i < firsts->slots; i++) {
        const entry *e = &firsts->entries[i];
        if (e->used == 0) continue;
        const int64_t first_ms = e->pop_ms - e->held_ms;
        if (oldest_ms < 0 || first_ms < oldest_ms) oldest_ms = first_ms;
    }
    return oldest_ms;
}

size_t cmq_pop_first_times_bytes(const cmq_pop_first_times *firsts)
{
    return firsts == NULL ? 0 : bytes_of(firsts->slots);
}

void cmq_pop_first_times_clear(cmq_pop_first_times **firsts)
{
    free(*firsts);
    *firsts = NULL;
}
