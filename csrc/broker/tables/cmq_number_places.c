/* cmq_number_places: see cmq_number_places.h. */
#include "broker/tables/cmq_number_places.h"

#include <stdlib.h>

#include "base/cmq_assert.h"

#define PLACES_FIRST 64u

void cmq_number_places_put(cmq_number_places *places, uint64_t hash, uint32_t number)
{
    CMQ_ASSERT(places->used <= places->mask / 2);
    uint64_t at = hash;
    while (places->at[at & places->mask] != 0) at++;
    places->at[at & places->mask] = number + 1;
    places->used++;
}

cmq_status cmq_number_places_reserve(cmq_number_places *places, cmq_number_hash hash, const void *owner)
{
    if (places->at != NULL && places->used < places->mask / 2) return CMQ_OK;
    const uint32_t count = places->at == NULL ? PLACES_FIRST : (places->mask + 1) * 2;
    cmq_number_places grown = {.at = calloc(count, sizeof *grown.at), .mask = count - 1};
    if (grown.at == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for a table of %u numbers", count);
    for (uint32_t i = 0; places->at != NULL && i <= places->mask; i++)
        if (places->at[i] != 0) cmq_number_places_put(&grown, hash(owner, places->at[i] - 1), places->at[i] - 1);
    free(places->at);
    *places = grown;
    return CMQ_OK;
}

/* Closes the gap: entries behind it up to the next free place move forward where their hashes allow. */
void cmq_number_places_drop(cmq_number_places *places, cmq_number_hash hash, const void *owner, uint32_t number)
{
    CMQ_ASSERT(places->used > 0);
    uint64_t gap = hash(owner, number);
    while (places->at[gap & places->mask] != number + 1) gap++;
    for (uint64_t at = gap + 1; places->at[at & places->mask] != 0; at++) {
        const uint64_t home = hash(owner, places->at[at & places->mask] - 1);
        if (((at - home) & places->mask) < ((at - gap) & places->mask)) continue;
        places->at[gap & places->mask] = places->at[at & places->mask];
        gap = at;
    }
    places->at[gap & places->mask] = 0;
    places->used--;
}
