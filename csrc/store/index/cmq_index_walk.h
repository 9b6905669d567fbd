/* cmq_index_walk: the entries of an index in the order of the log, and how a record's entries compare with its keys.
 *
 * Entries are in the order of the log, so one walk beside the log compares both. An entry out of order is damaged; the
 * walk names it and continues behind it, for else all entries behind it would seem to be missing.
 *
 * A record's entries are its unique id, its keys, then, since RocketMQ 5.4, its tags. An entry behind all of the
 * record's keys whose hash none of them has is of a kind that a newer RocketMQ may have added: unknown, not wrong.
 *
 * Threads: one at a time.
 * Way:     cmq_index -> [cmq_index_walk] -> cmq_verify, cmq_repair
 * Source:  upstream's IndexService of 5.3.3 and 5.5.0; spec store 4.3.
 */
#ifndef CMQ_INDEX_WALK_H
#define CMQ_INDEX_WALK_H

#include "store/index/cmq_index.h"

typedef struct cmq_index_walk {
    const cmq_index *index;   /* NULL: there are no entries */
    uint32_t file;
    int32_t entry;            /* the number of `key` in file number `file` */
    bool has;                 /* `key` is an entry … */
    bool is_stray;            /* … which is out of order */
    cmq_index_key key;
    int64_t last_phy;
} cmq_index_walk;

/* Stand before the first entry. */
void cmq_index_walk_begin(cmq_index_walk *walk, const cmq_index *index);

/* Go to the next entry; has is false behind the last. */
void cmq_index_walk_next(cmq_index_walk *walk);

/* The entries of one record, as the walk comes to them. */
typedef struct cmq_index_match {
    const cmq_index_key *keys;   /* the record's, its tags last */
    uint32_t count;
    bool has_tags;
    uint32_t left;               /* keys without an entry so far, but for the tags */
    uint64_t seen;               /* bit i: keys[i] has an entry; of the first 64 */
} cmq_index_match;

typedef enum cmq_index_standing {
    CMQ_INDEX_ENTRY_KEY,         /* of the unique id or a key. The same again is upstream's dispatching the last record
                                  * twice */
    CMQ_INDEX_ENTRY_TAGS,
    CMQ_INDEX_ENTRY_UNKNOWN,     /* behind all keys, and none of these */
    CMQ_INDEX_ENTRY_WRONG        /* none of these, while keys have no entry */
} cmq_index_standing;

cmq_index_match cmq_index_match_of(const cmq_index_key *keys, uint32_t count, bool has_tags);
cmq_index_standing cmq_index_match_take(cmq_index_match *match, uint32_t hash);

#endif
