/* cmq_txn_ended: see cmq_txn_ended.h. */
#include "broker/txn/cmq_txn_ended.h"

#include <stdlib.h>
#include <string.h>

#include "base/cmq_assert.h"

#define WORDS (CMQ_TXN_CHUNK_HALVES / 64)

static int64_t chunk_of(int64_t offset) { return offset / CMQ_TXN_CHUNK_HALVES * CMQ_TXN_CHUNK_HALVES; }

void cmq_txn_ended_begin(cmq_txn_ended *ended, int64_t from)
{
    cmq_txn_ended_free(ended);
    ended->base = chunk_of(from);
}

void cmq_txn_ended_free(cmq_txn_ended *ended)
{
    for (uint32_t i = 0; i < ended->count; i++) free(ended->chunks[i]);
    free(ended->chunks);
    *ended = (cmq_txn_ended){0};
}

/* The word of an offset; NULL: its chunk is not there. */
static uint64_t *word_of(const cmq_txn_ended *ended, int64_t offset)
{
    if (offset < ended->base) return NULL;
    const uint64_t at = (uint64_t)(offset - ended->base), chunk = at / CMQ_TXN_CHUNK_HALVES;
    if (chunk >= ended->count || ended->chunks[chunk] == NULL) return NULL;
    return &ended->chunks[chunk][at % CMQ_TXN_CHUNK_HALVES / 64];
}

bool cmq_txn_ended_has(const cmq_txn_ended *ended, int64_t offset)
{
    const uint64_t *word = word_of(ended, offset);
    return word != NULL && (*word >> (offset % 64) & 1) != 0;
}

cmq_status cmq_txn_ended_reserve(cmq_txn_ended *ended, int64_t offset)
{
    if (offset < ended->base || word_of(ended, offset) != NULL) return CMQ_OK;
    const uint64_t chunk = (uint64_t)(offset - ended->base) / CMQ_TXN_CHUNK_HALVES;
    if (chunk >= ended->count) {
        const uint64_t count = chunk + 1;
        uint64_t **chunks = count > UINT32_MAX ? NULL : realloc(ended->chunks, count * sizeof *chunks);
        if (chunks == NULL)
            return cmq_fail(CMQ_ERR_MEMORY, "no memory for the %llu half messages that are open or ended",
                            (unsigned long long)count * CMQ_TXN_CHUNK_HALVES);
        memset(chunks + ended->count, 0, (size_t)(count - ended->count) * sizeof *chunks);
        ended->chunks = chunks;
        ended->count = (uint32_t)count;
    }
    ended->chunks[chunk] = calloc(WORDS, sizeof(uint64_t));
    return ended->chunks[chunk] != NULL ? CMQ_OK : cmq_fail(CMQ_ERR_MEMORY, "no memory for ended half messages");
}

void cmq_txn_ended_add(cmq_txn_ended *ended, int64_t offset)
{
    uint64_t *word = word_of(ended, offset);
    CMQ_ASSERT(word != NULL || offset < ended->base);
    if (word != NULL) *word |= UINT64_C(1) << (offset % 64);
}

void cmq_txn_ended_forget(cmq_txn_ended *ended, int64_t below)
{
    const int64_t base = chunk_of(below);
    if (base <= ended->base) return;
    const uint64_t gone = (uint64_t)(base - ended->base) / CMQ_TXN_CHUNK_HALVES;
    const uint32_t dropped = gone < ended->count ? (uint32_t)gone : ended->count;
    for (uint32_t i = 0; i < dropped; i++) free(ended->chunks[i]);
    ended->count -= dropped;
    if (dropped > 0) memmove(ended->chunks, ended->chunks + dropped, ended->count * sizeof *ended->chunks);
    ended->base = base;
}
