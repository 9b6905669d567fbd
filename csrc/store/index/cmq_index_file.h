/* cmq_index_file: one index file, mapped: header, hash slots, chained entries.
 *
 *   0  begin_ms i64, end_ms i64, begin_phy i64, end_phy i64, slots used i32, count i32 (the next entry's number; starts
 *   at 1) 40 slots x i32: number of the newest entry of the chain, 0: empty
 *   40 + 4 * slots + 20 * n: entry n: hash i32, phy i64, seconds since begin_ms i32, previous entry of the chain i32
 *
 * Owns:       the mapping, until the last reference is dropped; a descriptor only while the writer needs it: thousands
 *             of index files have one or two.
 * Invariant:  no access leaves the mapping, for any bytes: slot and entry numbers are checked before use, and a chain
 *             only goes down. The writer stores entry, slot (release), header fields, count (release) in this order.
 * Threads:    put, reserve, set: the writer. position, find: any thread, in any process. references: any thread.
 * Source:     upstream's IndexFile, IndexHeader; spec store 4.1, 4.2, 4.5.
 */
#ifndef CMQ_INDEX_FILE_H
#define CMQ_INDEX_FILE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/cmq_file.h"
#include "base/cmq_status.h"
#include "store/index/cmq_index.h"

typedef struct cmq_index_file {
    cmq_fs *fs;
    char *path;
    cmq_file *file;                   /* writer: NULL while closed */
    uint8_t *map;
    uint64_t bytes;
    int64_t name;                     /* its 17 digits */
    int32_t slots, entries;
    _Atomic uint32_t references;
    _Atomic uint32_t version;         /* odd while the writer stores the header; only this process's writer moves it */
    cmq_index_position at;            /* writer: the header as it stands */
    uint64_t slots_warm;              /* writer: bytes from the file's start on whose pages were made ahead of their
                                       * use */
    bool slots_reserved;              /* writer: header and slots have blocks on disk */
    int32_t ready;                    /* writer: entries below this number may be stored: they have blocks, and their
                                       * pages are in memory */
    int32_t synced;                   /* flush: the count at the last sync; -1: none since it was opened */
} cmq_index_file;

/* 40 + 4 * slots + 20 * entries; 0 when the numbers are out of range (slots >= 1, entries >= 2). */
uint64_t cmq_index_file_bytes(int32_t slots, int32_t entries);

/* Map an existing file. CMQ_ERR_SETTING when its length does not fit slots and entries; CMQ_END when it is empty (a
 * creation that did not finish). One reference: cmq_index_file_release. */
cmq_status CMQ_MUST_CHECK cmq_index_file_open(cmq_fs *fs, const char *path, int64_t name, int32_t slots,
                                              int32_t entries, bool writable, cmq_index_file **file_out);

/* Make a new file of full length, sparse; CMQ_ERR_IO with EEXIST when there is one. */
cmq_status CMQ_MUST_CHECK cmq_index_file_create(cmq_fs *fs, const char *path, int64_t name, int32_t slots,
                                               int32_t entries, cmq_index_file **file_out);

void cmq_index_file_hold(cmq_index_file *file);
void cmq_index_file_release(cmq_index_file *file);   /* NULL is fine */

/* writer: close the descriptor; functions that need it open it again. */
void cmq_index_file_close_file(cmq_index_file *file);

/* flush: make all stores durable. CMQ_ERR_LIMIT when the process has no descriptor left: then nothing was tried. */
cmq_status CMQ_MUST_CHECK cmq_index_file_sync(const cmq_index_file *file);

/* reader: the header, with the count made plausible ([1, entries]); one moment's values as far as this process writes
 * it. */
void cmq_index_file_position(const cmq_index_file *file, cmq_index_position *position_out);

/* writer: set the header (a rolled file's first values, a rewind). */
void cmq_index_file_set(cmq_index_file *file, const cmq_index_position *position);

/* writer: make sure that entries below `number` and all slots have blocks on disk. The content of entries from the
 * count on is lost. */
cmq_status CMQ_MUST_CHECK cmq_index_file_reserve(cmq_index_file *file, int32_t number);

/* writer: put keys; they fit and room is reserved. */
void cmq_index_file_put(cmq_index_file *file, const cmq_index_key *keys, uint32_t count);

/* writer: forget entries from position->count on: set the header and repair every slot that points behind it. Nothing
 * is trusted but entries below the count. CMQ_ERR_CORRUPT when the file cannot have been at that position. */
cmq_status CMQ_MUST_CHECK cmq_index_file_rewind(cmq_index_file *file, const cmq_index_position *position);

/* writer: does the header say exactly this position? CMQ_ERR_CORRUPT when the file cannot have been at it. */
cmq_status CMQ_MUST_CHECK cmq_index_file_is_at(cmq_index_file *file, const cmq_index_position *position,
                                               bool *is_at_out);

/* writer: forget entries from the first one on whose record starts at or behind `log_end`, looking from the newest
 * back; header and slots follow. The end timestamp becomes the last kept entry's, rounded up. *position_out: the header
 * then; a count of 1 says that nothing is left. */
cmq_status CMQ_MUST_CHECK cmq_index_file_cut(cmq_index_file *file, int64_t log_end, cmq_index_position *position_out);

/* reader: entry `number` in [1, count); store_ms has the one-second granularity. */
void cmq_index_file_entry(const cmq_index_file *file, int32_t number, cmq_index_key *key_out);

/* The target of a walk. */
typedef struct cmq_index_file_wanted {
    uint32_t hash;
    int64_t begin_ms, end_ms;   /* store time, both inclusive; an entry that is up to 999 ms early still counts */
    int64_t min_phy;
} cmq_index_file_wanted;

/* reader: walk the chain of `wanted->hash` from entry *entry (0: the slot's head), newest first; up to `capacity`
 * offsets. Equal neighbours are given once (*last_phy, one more than the offset given before; 0: none). *entry becomes
 * the entry to go on from, 0 at the chain's end. */
uint32_t cmq_index_file_find(const cmq_index_file *file, const cmq_index_file_wanted *wanted, int32_t *entry,
                            int64_t *last_phy, int64_t *phy_out, uint32_t capacity);

/* reader, behind such a walk: does the file have pages that cannot be read where the walk looked? Then it may have
 * missed entries. */
bool cmq_index_file_walk_is_lost(const cmq_index_file *file, const cmq_index_file_wanted *wanted);

#endif
