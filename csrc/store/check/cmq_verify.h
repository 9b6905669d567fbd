/* cmq_verify: holds every record, queue unit and index entry of a store against each other.
 *
 * One walk over the log in physical order, with every CRC; beside it the index, whose entries are in the same order;
 * for each record the unit that its queue's file has for it; afterwards the units that no record asked for, and the
 * index's chains. Nothing is written.
 *
 * Files are checked as they are: places that opening would complete or cut in memory are named, too. Records that an
 * opening after a crash repairs (those behind the last flush that no queue has yet) are a note, not a problem.
 *
 * Memory:  1.3 KiB per queue with records, and a file's hash slots; nothing grows with the messages.
 * Threads: any, beside a writer too, ours or a Java broker: the records checked were confirmed, and had their units in
 *          files, when the call began.
 * Source:  spec store 1 to 4; upstream's remains: docs/decisions/0003.
 */
#ifndef CMQ_VERIFY_H
#define CMQ_VERIFY_H

#include "store/cmq_store.h"

typedef enum cmq_severity {
    CMQ_SEVERITY_NOTE = 0,         /* healthy: worth knowing */
    CMQ_SEVERITY_REPAIRABLE = 1,   /* a derived file is wrong: the log can rebuild it */
    CMQ_SEVERITY_DAMAGED = 2       /* the log itself: messages are lost */
} cmq_severity;

typedef enum cmq_problem_kind {
    CMQ_PROBLEM_RECORD = 0,        /* bytes in the log that are no whole record, with flushed records behind */
    CMQ_PROBLEM_TAIL,              /* bytes behind the last whole record that are not zero: torn, or left from before a
                                    * cut */
    CMQ_PROBLEM_QUEUE_MISSING,     /* records of a queue that does not exist: its topic was deleted, or its files are
                                    * lost */
    CMQ_PROBLEM_UNIT_MISSING,      /* a record without its unit */
    CMQ_PROBLEM_UNIT_WRONG,        /* a unit that says something else than its record */
    CMQ_PROBLEM_UNIT_DANGLING,     /* a unit without its record */
    CMQ_PROBLEM_GAP,               /* filler units inside a queue */
    CMQ_PROBLEM_INDEX_ENTRY,       /* an index entry without a record that has such a key */
    CMQ_PROBLEM_INDEX_MISSING,     /* keys that the index does not have */
    CMQ_PROBLEM_INDEX_CHAIN,       /* an index file whose head, slots and chains do not lead to its entries */
    CMQ_PROBLEM_INDEX_UNKNOWN,     /* index entries of whole messages whose hash is of no key, unique id or tags */
    CMQ_PROBLEM_TIME               /* a store time that falls back along the log */
} cmq_problem_kind;

typedef struct cmq_problem {
    cmq_problem_kind kind;
    cmq_severity severity;
    int64_t physical_offset;       /* -1 where it does not apply */
    int64_t queue_offset;          /* -1 likewise */
    int64_t count;                 /* how many in a row this stands for, at least 1 */
    const char *topic;             /* NULL where it does not apply; valid during the call */
    int32_t queue_id;
    char text[256];
} cmq_problem;

typedef struct cmq_verify_options {
    /* Called for each problem, in order of finding; false ends the verification. May be NULL. */
    bool (*problem)(void *context, const cmq_problem *problem);
    /* Called every few MiB with bytes of the log read so far and in all; false ends it. May be NULL. */
    bool (*progress)(void *context, int64_t done_bytes, int64_t all_bytes);
    void *context;
} cmq_verify_options;

typedef struct cmq_verified {
    cmq_severity verdict;          /* the worst that was found; NOTE: healthy */
    bool complete;                 /* not ended by a callback */
    int64_t log_min, log_end;
    int64_t records, body_bytes;
    int64_t units, queues;
    int64_t keys, index_entries;   /* keys of the records, and entries held against them */
    int64_t keys_missing;
    int64_t problems[3];           /* by severity */
} cmq_verified;

cmq_status CMQ_MUST_CHECK cmq_store_verify(cmq_store *store, const cmq_verify_options *options,
                                           cmq_verified *verified_out);

/* "record", "unit-missing" …: names for scripts; static. */
const char *cmq_problem_name(cmq_problem_kind kind);

#endif
