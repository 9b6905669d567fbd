/* cmq_raw_queues: the consume queues of a directory exactly as their files have them: nothing is recovered, cut or
 * completed.
 *
 * For verify and repair: verify holds these units against the log; repair learns from them which queues there
 * were.
 *
 * Owns:    names and places of files, in memory; one descriptor, of the file that was read last.
 * Threads: one at a time. Another process may write meanwhile.
 * Way:     queue files -> [cmq_raw_queues] -> cmq_verify, cmq_repair
 */
#ifndef CMQ_RAW_QUEUES_H
#define CMQ_RAW_QUEUES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cmq_file.h"
#include "store/queue/cmq_queue.h"

typedef struct cmq_raw_queues cmq_raw_queues;

typedef struct cmq_rawqueue {
    const char *topic;
    int32_t id;
    cmq_queue_kind kind;
    uint32_t index;          /* in the set */
    uint32_t unit_bytes;
    uint32_t file_count;
    int64_t file_bytes;
    int64_t *starts;         /* byte offsets of its files, rising; there may be gaps */
} cmq_rawqueue;

/* Look at every queue folder. Files whose names are no offsets, or whose length is another one, are passed over:
 * loading the store names them. */
cmq_status CMQ_MUST_CHECK cmq_raw_queues_load(cmq_fs *fs, const char *root, int64_t queue_file_bytes,
                                              int64_t batch_file_bytes, cmq_raw_queues **set_out);
void cmq_raw_queues_free(cmq_raw_queues *set);   /* NULL is fine */

uint32_t cmq_raw_queues_count(const cmq_raw_queues *set);
const cmq_rawqueue *cmq_raw_queues_at(const cmq_raw_queues *set, uint32_t index);
/* NULL: there is none */
const cmq_rawqueue *cmq_raw_queues_find(const cmq_raw_queues *set, cmq_slice topic, int32_t id);

/* The positions that its files span, [first, end); both 0 without a file. */
int64_t cmq_rawqueue_first(const cmq_rawqueue *queue);
int64_t cmq_rawqueue_end(const cmq_rawqueue *queue);

/* The bytes of units [position, position + count); zeros where no file is. CMQ_ERR_NOT_FOUND when a file has gone since
 * loading. */
cmq_status CMQ_MUST_CHECK cmq_raw_queues_read(cmq_raw_queues *set, const cmq_rawqueue *queue, int64_t position,
                                              int64_t count, uint8_t *into);

/* The first position at or behind `position` that may hold a unit: holes are passed over. CMQ_END when there is
 * none. */
cmq_status CMQ_MUST_CHECK cmq_raw_queues_next(cmq_raw_queues *set, const cmq_rawqueue *queue, int64_t position,
                                              int64_t *position_out);

/* Decode the unit at `position`; false when there is none: zeros, a filler (*filler_out), or bytes that no unit can
 * have. */
bool cmq_rawqueue_decode(const cmq_rawqueue *queue, int64_t position, const uint8_t *image, cmq_unit *unit_out,
                         bool *filler_out);

/* <root>/<folder>/<topic>/<id> or, with start >= 0, its file that starts there. */
cmq_status CMQ_MUST_CHECK cmq_rawqueue_path(const char *root, const cmq_rawqueue *queue, int64_t start,
                                            char into[CMQ_PATH_BYTES]);

#endif
