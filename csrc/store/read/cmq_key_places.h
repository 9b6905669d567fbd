/* cmq_key_places: where records with a key may lie: the places in the index, and the parts of the log that the index
 * does not cover.
 *
 * A key lookup by hand (cmq_store_find_key) may miss keys that the index lost, as upstream's does. A query may not: its
 * result must be that of reading everything and comparing. So a query reads the gaps too.
 *
 * Way:     cmq_index -> [cmq_key_places] -> cmq_scan
 * Threads: any.
 * Source:  spec store 4; cmq_index.h for what an index file's header says.
 */
#ifndef CMQ_KEY_PLACES_H
#define CMQ_KEY_PLACES_H

#include "store/cmq_store.h"
#include "store/index/cmq_index.h"

typedef struct cmq_places {
    int64_t *phys;
    uint32_t count, capacity;
} cmq_places;

cmq_status CMQ_MUST_CHECK cmq_places_add(cmq_places *places, int64_t phy);
void cmq_places_sort(cmq_places *places);   /* by place, each once */
void cmq_places_free(cmq_places *places);

/* Add places of records that may have `key` under `topic` and were stored in [begin_ms, end_ms], as far as the index
 * knows: some hundred of them. `cursor` starts zeroed; call again until it is done. Hash collisions are the caller's to
 * see. Nothing is added when the store keeps no index. */
cmq_status CMQ_MUST_CHECK cmq_store_key_places(cmq_store *store, cmq_slice topic, cmq_slice key, int64_t begin_ms,
                                               int64_t end_ms, cmq_index_cursor *cursor, cmq_places *places);

/* Where the index of a view may end before the view does: its writer was killed before it had entered the last keys, or
 * a recovering writer is inserting the keys behind the durable point again. `generation`: of the writer's page, before
 * the index was looked at. INT64_MAX: it has all keys. */
int64_t cmq_store_index_end(cmq_store *store, int64_t generation);

/* A part of the log, [from, end). */
typedef struct cmq_gap {
    int64_t from, end;
} cmq_gap;

/* The parts of the log below `confirmed` that the index may not cover, which may overlap: below its first file, between
 * files, behind its end over a store that another process wrote or that was not closed, and what recovery found lost
 * with a file. Call it before cmq_store_key_places, so that records indexed meanwhile are found twice, not never.
 * *gaps_out: free(). */
cmq_status CMQ_MUST_CHECK cmq_store_index_gaps(cmq_store *store, int64_t confirmed, cmq_gap **gaps_out,
                                               uint32_t *count_out);

#endif
