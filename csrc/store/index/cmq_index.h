/* cmq_index: the key index: files of hash slots and chained 20-byte entries, key -> physical offsets.
 *
 * Owns:       the files under index/.
 * Invariant:  an entry is complete before its slot points to it, and its slot before the header counts it, so a reader
 *             in this or another process that stops at the count never sees half an entry. Stores into the map cannot
 *             meet a full disk: room is reserved first.
 * Threads:    "writer" functions: one thread at a time. "reader" functions: any thread, beside the writer. "flush": one
 *             thread at a time, beside the writer.
 * Way:        cmq_store (keys of confirmed records) -> [cmq_index] -> lookup by key
 * Durability: nothing here is precious; recovery rebuilds from the log.
 * Source:     upstream's IndexFile, IndexService; spec store 4.
 */
#ifndef CMQ_INDEX_H
#define CMQ_INDEX_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cmq_bytes.h"
#include "base/cmq_clock.h"
#include "base/cmq_file.h"
#include "base/cmq_hash.h"
#include "base/cmq_status.h"

#define CMQ_INDEX_HEADER_BYTES 40
#define CMQ_INDEX_SLOT_BYTES 4
#define CMQ_INDEX_ENTRY_BYTES 20
#define CMQ_INDEX_SLOTS_DEFAULT 5000000
#define CMQ_INDEX_ENTRIES_DEFAULT 20000000

typedef struct cmq_index cmq_index;   /* all index files of one store */

typedef struct cmq_index_options {
    cmq_fs *fs;
    const char *root;        /* the store's directory; copied */
    bool read_only;
    bool only_fitting;       /* leave out files of another length instead of failing */
    int32_t slots;           /* hash slots per file */
    int32_t entries;         /* maxIndexNum: a file holds entries - 1 keys */
    cmq_clock clock;         /* names new files (local time) */
} cmq_index_options;

/* One key of one record, to be put. */
typedef struct cmq_index_key {
    int64_t phy;
    int64_t store_ms;
    uint32_t hash;           /* cmq_index_key_hash or cmq_index_tags_hash */
} cmq_index_key;

/* The index's position, as kept in a durable point. All zero: no files. */
typedef struct cmq_index_position {
    int64_t file_name;       /* the 17 digits of the newest file, as a number */
    int32_t count;           /* its header's index count (next entry to write) */
    int32_t slots_used;
    int64_t begin_ms, end_ms, begin_phy, end_phy;   /* its header */
} cmq_index_position;

cmq_status CMQ_MUST_CHECK cmq_index_create(cmq_index **index_out, const cmq_index_options *options);

/* Map the files that are there, in order of name; names that are no numbers are skipped, lengths are checked against
 * the options. */
cmq_status CMQ_MUST_CHECK cmq_index_load(cmq_index *index);
void cmq_index_destroy(cmq_index *index);   /* also removes files that were made for room and not used */
void cmq_index_abandon(cmq_index *index);   /* touches no file: in a forked child they are the parent's */

/* After an unclean end, one of: (a) upstream's rule: delete the first file whose end timestamp is newer than the
 * checkpoint's, and all after it; returns the physical offset from which keys must be put again (the end offset of what
 * is left; 0 when nothing is left); */
cmq_status CMQ_MUST_CHECK cmq_index_drop_newer(cmq_index *index, int64_t checkpoint_index_ms,
                                               int64_t *rebuild_from_out);
/* (b) go back to a durable position: later files are deleted, later entries dropped, chains of that file rebuilt.
 * CMQ_ERR_CORRUPT when the file does not fit the position (then use (a)). `untouched`: the last writer closed there, so
 * a file that says it stands at the position does, slots and all. */
cmq_status CMQ_MUST_CHECK cmq_index_rewind(cmq_index *index, const cmq_index_position *position, bool untouched);

/* After recovery found where the log ends: forget entries of records that start at or behind it. A power loss may take
 * records whose keys reached the disk already (the log was not synced, or a durable point's index was newer than its
 * log); their offsets will be given to other records. */
cmq_status CMQ_MUST_CHECK cmq_index_cut(cmq_index *index, int64_t log_end);

/* writer: make sure that `keys` more can be put without failing (creates and reserves files; the first file costs its
 * slots' space). On failure files made so far are kept for the next call. */
cmq_status CMQ_MUST_CHECK cmq_index_make_room(cmq_index *index, uint32_t keys);

/* writer: put keys in order of their records. Hashes ahead are prefetched, so give whole batches. Room was made. */
void cmq_index_put(cmq_index *index, const cmq_index_key *keys, uint32_t count);

/* writer: the last record's physical offset put so far (upstream skips records below it when it dispatches again), -1
 * when empty. */
int64_t cmq_index_end_phy(const cmq_index *index);

/* writer: where the index stands between two puts: the next flush makes it durable. Not the flush's to find out, as a
 * put whose keys go on in a new file shows itself file by file: a record's keys may lie on both sides of the border. */
void cmq_index_at(const cmq_index *index, cmq_index_position *position_out);

/* flush: make everything put so far durable; says the end timestamp of the newest full and flushed file (for the
 * checkpoint; 0 when none is full). */
cmq_status CMQ_MUST_CHECK cmq_index_flush(cmq_index *index, int64_t *full_end_ms_out);

/* flush: delete files (never the last) whose records all lie below min_phy. */
cmq_status CMQ_MUST_CHECK cmq_index_expire(cmq_index *index, int64_t min_phy);

/* reader: physical offsets of records that may carry the key or tags of `hash`, newest file and newest entry first,
 * with store time in [begin_ms, end_ms] at the entries' one-second granularity (an entry's time may be up to 999 ms
 * early), at or above min_phy. Hash collisions are the caller's to filter by reading the record. `cursor` starts zeroed
 * and continues a query when `capacity` was not enough. */
typedef struct cmq_index_cursor {
    int64_t file_name;       /* 0: start at the newest */
    int32_t entry;           /* next entry to look at; 0: the slot's head */
    int64_t last_phy;        /* one more than the offset given last, so that a record whose keys share a hash is given
                              * once; 0: none */
    bool done;               /* nothing is left; a call that gives fewer than `capacity` sets it */
} cmq_index_cursor;
cmq_status CMQ_MUST_CHECK cmq_index_query(cmq_index *index, uint32_t hash, int64_t begin_ms, int64_t end_ms,
                                          int64_t min_phy, cmq_index_cursor *cursor, int64_t *phy_out,
                                          uint32_t capacity, uint32_t *count_out);

/* jhash of "topic#": the start of every index hash of this topic. */
uint32_t cmq_index_topic_seed(cmq_slice topic);

/* The hash of a key or unique id, or of a message's tags, which RocketMQ enters since 5.4 as "topic#T#tags". */
static inline uint32_t cmq_index_key_hash(uint32_t topic_seed, cmq_slice key)
{
    return (uint32_t)cmq_index_hash(cmq_jhash_extend(topic_seed, key.data, key.bytes));
}
static inline uint32_t cmq_index_tags_hash(uint32_t topic_seed, cmq_slice tags)
{
    return cmq_index_key_hash(cmq_jhash_extend(topic_seed, (const uint8_t *)"T#", 2), tags);
}

/* reader (follower): look for files that another process made or deleted, and re-read the counts. */
cmq_status CMQ_MUST_CHECK cmq_index_refresh(cmq_index *index);

/* reader: for inspect and verify. */
typedef struct cmq_index_file_info {
    int64_t name;
    int32_t count, slots_used;
    int64_t begin_ms, end_ms, begin_phy, end_phy;
} cmq_index_file_info;
uint32_t cmq_index_files(const cmq_index *index);
cmq_status CMQ_MUST_CHECK cmq_index_file_at(const cmq_index *index, uint32_t at, cmq_index_file_info *info_out);

/* Entry `entry` (1 .. count - 1) of file number `at`, as it stands there; store_ms has the one-second granularity. For
 * verify. */
cmq_status CMQ_MUST_CHECK cmq_index_entry_at(const cmq_index *index, uint32_t at, int32_t entry,
                                             cmq_index_key *key_out);

/* Prove a file's split into slots and entries against its own chains: does every chain of every used slot, read with
 * this split, lead through entries of that slot? Used to find slots/entries of a foreign directory from the file length
 * alone. `live`: a writer may be at it, so slots that lead behind the last entry say nothing. */
cmq_status CMQ_MUST_CHECK cmq_index_prove_split(cmq_fs *fs, const char *path, int32_t slots, int32_t entries, bool live,
                                                bool *fits_out);

/* Find the split of a file from its length and chains. CMQ_ERR_AMBIGUOUS (naming maxHashSlotNum and maxIndexNum) when
 * several or none fit. */
cmq_status CMQ_MUST_CHECK cmq_index_find_split(cmq_fs *fs, const char *path, int32_t *slots_out, int32_t *entries_out);

#endif
