/* cmq_repair: makes a store that nobody has open whole again: queues, extensions and index rebuilt from the log; the
 * log's tail cut when asked to.
 *
 * Derived files are built beside, in cometmq/rebuild/, and then swapped in; the old ones go to cometmq/removed/<UTC
 * time>/ and stay there. The log is not touched unless a cut was requested, and then the bytes that it loses are kept
 * there too. No file's length is changed.
 *
 *   - Damage in the log is passed over: the messages behind it stay, and the store opens. (A RocketMQ broker whose
 *     recovery reads that far back would cut the log there.) With `cut_damage` the log ends at the first damage. With
 *     `fill_damage` it is kept aside and records without a message are put in its place, which nobody stumbles over.
 *   - A torn tail stays, and opening cuts it, as always. With `cut_tail` it is kept aside and blanked here.
 *   - Queues all of whose messages have expired keep their last file, and with it the offset that their next message
 *     gets.
 *   - Bit maps of consumequeue_ext (filters of SQL consumers) are not made again: such messages are then filtered one
 *     by one.
 *
 * Crash:   everything before the swap can be thrown away; the swap is written down first (cometmq/repair) and completed
 *          by the next repair or by the next opening for writing.
 * Owns:    cometmq/rebuild, cometmq/removed, cometmq/repair.
 * Threads: one call at a time per store; it holds the writer's lock.
 * Way:     log -> [cmq_repair] -> queues, index, checkpoint, cometmq/point
 * Source:  ours; the facts that upstream's recovery takes from the files: spec store 5, 15.
 */
#ifndef CMQ_REPAIR_H
#define CMQ_REPAIR_H

#include "store/cmq_store.h"
#include "store/marks/cmq_layout.h"

typedef struct cmq_repair_options {
    const cmq_store_options *store;      /* path, features, and sizes where the directory does not tell them; read_only
                                          * and create are not used */
    bool dry_run;                        /* write nothing: read the log and say what would be done */
    bool cut_tail;
    bool cut_damage;                     /* end the log at the first damage … */
    bool fill_damage;                    /* … or put records without a message in the place of all damage; not both */
    /* Shall a queue be made of which there is no file? The records of a deleted topic stay in the log until they
     * expire. NULL: yes. */
    bool (*wanted)(void *context, cmq_slice topic);
    /* Called every few MiB with bytes of the log read so far and in all; false ends the repair and leaves the store as
     * it was. NULL: none. */
    bool (*progress)(void *context, int64_t done_bytes, int64_t all_bytes);
    /* Called for each damaged place in the log. NULL: none. */
    void (*damage)(void *context, int64_t physical_offset, int64_t bytes, const char *reason);
    void *context;
} cmq_repair_options;

typedef struct cmq_repair_report {
    bool complete;                   /* not ended by progress */
    bool finished_earlier;           /* an earlier repair had been interrupted while it swapped: that was completed
                                      * first (dry run: would be) */
    bool was_unclean;                /* `abort` was there */
    cmq_layout_sizes sizes;          /* used for the built files */
    int64_t log_min, log_end;        /* of the repaired log */
    int64_t records, messages;       /* whole ones in it */
    int64_t keys;                    /* in the index */
    int64_t queues;                  /* built */
    int64_t queues_kept;             /* without a message, for their offset */
    int64_t gaps;                    /* queue offsets without a message */
    int64_t unwanted;                /* records of topics that are not wanted */
    int64_t damaged_places, damaged_bytes;
    int64_t filled_bytes;            /* of the damaged ones, those in whose place there are fillers now */
    int64_t first_damage;            /* physical offset, -1: none */
    int64_t tail_at, tail_bytes;     /* the bytes behind the last whole record; 0: only zeros */
    int64_t cut_at;                  /* where the log was cut, -1: nowhere */
    int64_t cut_messages;            /* whole messages behind that place */
    int64_t cut_bytes;               /* bytes kept of cut ranges, and files moved away */
    int64_t cut_files;
    char kept[CMQ_PATH_BYTES];       /* the folder of removed and overwritten bytes; empty: there are none */
} cmq_repair_report;

/* CMQ_ERR_LOCKED names the process that has the store open; CMQ_ERR_NOT_FOUND, CMQ_ERR_NOT_STORE: there is no store.
 * After a failure the store is as it was, or an interrupted swap is completed by the next repair. */
cmq_status CMQ_MUST_CHECK cmq_store_repair(const cmq_repair_options *options, cmq_repair_report *report_out);

#endif
