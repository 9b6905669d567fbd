/* cmq_queue_file: the bytes of one queue in one folder, as one space cut into fixed-size files that are found by
 * arithmetic on their names.
 *
 *   <root>/consumequeue/<topic>/<queue id>/<20 digits: byte offset at which the file starts>
 *
 * Owns:       nothing of its own: descriptors and mappings are the set's caches'.
 * Invariant:  files are made at full length, sparse; they are contiguous; bytes that were never written read as zero.
 * Durability: writing notes unsynced ranges; cmq_queue_flush syncs them.
 * Threads:    read and map: any. The others: with the queue's lock, or before readers exist.
 */
#ifndef CMQ_QUEUE_FILE_H
#define CMQ_QUEUE_FILE_H

#include "store/queue/cmq_queue_internal.h"

/* The folder's name and the option that sets the length of its files. */
const char *cmq_queue_file_folder_name(cmq_queuefolder folder);
const char *cmq_queue_file_setting(cmq_queuefolder folder);

/* A queue id as upstream writes it; -1 for every other name. */
int32_t cmq_queue_file_parse_id(const char *name);

/* List a folder; one that is missing, or is not a folder, has no names. */
cmq_status CMQ_MUST_CHECK cmq_queue_file_list(cmq_fs *fs, const char *path, char ***names_out, size_t *count_out);

/* <root>/<folder>, <root>/<folder>/<topic>, the queue's own folder, one of its files. */
cmq_status CMQ_MUST_CHECK cmq_queue_file_root_path(const cmq_queues *queues, cmq_queuefolder folder,
                                                  char into[CMQ_PATH_BYTES]);
cmq_status CMQ_MUST_CHECK cmq_queue_file_topic_path(const cmq_queue *queue, cmq_queuefolder folder,
                                                   char into[CMQ_PATH_BYTES]);
cmq_status CMQ_MUST_CHECK cmq_queue_file_queue_path(const cmq_queue *queue, cmq_queuefolder folder,
                                                   char into[CMQ_PATH_BYTES]);
cmq_status CMQ_MUST_CHECK cmq_queue_file_path(const cmq_queue *queue, cmq_queuefolder folder, int64_t start,
                                             char into[CMQ_PATH_BYTES]);

/* reader: exactly `bytes` bytes at `offset`, across files. CMQ_ERR_CORRUPT when a file is short; CMQ_ERR_NOT_FOUND,
 * with that as the last error, when one is missing. */
cmq_status CMQ_MUST_CHECK cmq_queue_file_read(const cmq_queue *queue, cmq_queuefolder folder, int64_t offset,
                                              void *into, size_t bytes);

/* reader: the file that starts at `start`, mapped whole; give it back with cmq_file_cache_release(queue->set->maps, …).
 * `must` false: only when it is mapped already, else *mapped_out is NULL. */
cmq_status CMQ_MUST_CHECK cmq_queue_file_map(const cmq_queue *queue, int64_t start, bool must,
                                            cmq_cachedfile **mapped_out);

/* The open file that starts at `start`; give it back with cmq_file_cache_release(queue->set->files, …). */
cmq_status CMQ_MUST_CHECK cmq_queue_file_take(const cmq_queue *queue, cmq_queuefolder folder, int64_t start,
                                             cmq_cachedfile **taken_out);

/* Write across files, making those that are missing (during recovery one that is there is taken with its bytes, which
 * are cut later): the first at the floor of `offset`, later ones next to the last. In a simple queue's folder the bytes
 * before the first unit ever become filler units (spec store 3.3). */
cmq_status CMQ_MUST_CHECK cmq_queue_file_write(cmq_queue *queue, cmq_queuefolder folder, cmq_queuefiles *files,
                                              int64_t offset, const void *from, size_t bytes);

/* Make the units of the queue's first file that lie before byte `end` fillers, those of a file that recovery keeps. */
cmq_status CMQ_MUST_CHECK cmq_queue_file_fill(cmq_queue *queue, int64_t end);

/* Make everything from `offset` on read as zero: later files go, the rest of the file that holds `offset` is punched
 * where it has data. The first file stays. Bytes between `offset` and `zero_until` are known to be zero. */
cmq_status CMQ_MUST_CHECK cmq_queue_file_cut(cmq_queue *queue, cmq_queuefolder folder, cmq_queuefiles *files,
                                            int64_t offset, int64_t zero_until);

/* Is there nothing that a cut at `offset` would change? */
cmq_status CMQ_MUST_CHECK cmq_queue_file_is_cut(cmq_queue *queue, cmq_queuefolder folder, const cmq_queuefiles *files,
                                               int64_t offset, int64_t zero_until, bool *cut_out);

/* Forget one file in the caches. */
void cmq_queue_file_drop(const cmq_queue *queue, cmq_queuefolder folder, int64_t start);

/* Remove one file and forget it in the caches; being gone already is fine. Does not touch `files`. */
cmq_status CMQ_MUST_CHECK cmq_queue_file_remove(const cmq_queue *queue, cmq_queuefolder folder, int64_t start);

/* Remove all of a queue's files and its folder. The topic's folder stays: remove_topic, once its last queue is gone. */
cmq_status CMQ_MUST_CHECK cmq_queue_file_remove_all(const cmq_queue *queue, cmq_queuefolder folder,
                                                   cmq_queuefiles *files);

/* Remove the folder of the queue's topic, if it is empty. For each queue this would cost the square of their number:
 * the file system looks through the folder to see that it is not empty. */
void cmq_queue_file_remove_topic(const cmq_queue *queue, cmq_queuefolder folder);

#define CMQ_QUEUEFILES_NONE ((cmq_queuefiles){.first = -1, .end = -1, .unsynced = CMQ_NOTHING_UNSYNCED})

#endif
