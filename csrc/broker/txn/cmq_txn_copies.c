/* cmq_txn_copies: see cmq_txn_copies.h. */
#include "broker/txn/cmq_txn_copies.h"

#include <stdlib.h>

#include "base/cmq_assert.h"
#include "base/cmq_name_hash.h"

#define SLOTS_MIN 64u

void cmq_txn_copies_free(cmq_txn_copies *copies)
{
    free(copies->places);
    *copies = (cmq_txn_copies){0};
}

static uint32_t start_of(const cmq_txn_copies *copies, int64_t first)
{
    return (uint32_t)cmq_name_hash_step((uint64_t)first ^ cmq_name_hash_seed[0], cmq_name_hash_seed[1]) &
           (copies->slots - 1);
}

/* Its place, or the free one where it would be. */
static cmq_txn_copy *place_of(const cmq_txn_copies *copies, int64_t first)
{
    uint32_t at = start_of(copies, first);
    while (copies->places[at].first >= 0 && copies->places[at].first != first) at = (at + 1) & (copies->slots - 1);
    return &copies->places[at];
}

int64_t cmq_txn_copies_latest(const cmq_txn_copies *copies, int64_t first)
{
    if (copies->used == 0) return -1;
    const cmq_txn_copy *place = place_of(copies, first);
    return place->first == first ? place->latest : -1;
}

cmq_status cmq_txn_copies_reserve(cmq_txn_copies *copies)
{
    if ((copies->used + 1) * 2 <= copies->slots) return CMQ_OK;
    if (copies->used >= CMQ_TXN_COPIES_MAX)
        return cmq_fail(CMQ_ERR_LIMIT, "more than %u open half messages were copied", CMQ_TXN_COPIES_MAX);
    const cmq_txn_copies before = *copies;
    const uint32_t slots = before.slots == 0 ? SLOTS_MIN : before.slots * 2;
    cmq_txn_copy *places = malloc(slots * sizeof *places);
    if (places == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for the copies of half messages");
    for (uint32_t i = 0; i < slots; i++) places[i].first = -1;
    *copies = (cmq_txn_copies){.places = places, .slots = slots, .used = before.used};
    for (uint32_t i = 0; i < before.slots; i++)
        if (before.places[i].first >= 0) *place_of(copies, before.places[i].first) = before.places[i];
    free(before.places);
    return CMQ_OK;
}

void cmq_txn_copies_put(cmq_txn_copies *copies, int64_t first, int64_t latest)
{
    CMQ_ASSERT(copies->slots > 0 && first >= 0);
    cmq_txn_copy *place = place_of(copies, first);
    if (place->first != first) copies->used++;
    CMQ_ASSERT(copies->used * 2 <= copies->slots);
    *place = (cmq_txn_copy){.first = first, .latest = latest};
}

void cmq_txn_copies_drop(cmq_txn_copies *copies, int64_t first)
{
    if (copies->used == 0) return;
    const uint32_t mask = copies->slots - 1;
    cmq_txn_copy *place = place_of(copies, first);
    if (place->first != first) return;
    copies->used--;
    uint32_t hole = (uint32_t)(place - copies->places), at = hole;
    for (;;) {
        copies->places[hole].first = -1;
        uint32_t home;
        do {
            at = (at + 1) & mask;
            if (copies->places[at].first < 0) return;
            home = start_of(copies, copies->places[at].first);
        } while (((at - home) & mask) < ((at - hole) & mask));
        copies->places[hole] = copies->places[at];
        hole = at;
    }
}
