/* cmq_file_cache: a bounded number of open files, or of files mapped whole, shared by tens of thousands of queues.
 *
 * Owns:       the descriptors and mappings of its entries; an entry lives until it was evicted or dropped and its last
 *             user let go.
 * Invariant:  an entry that somebody uses is never closed; so a file that retention deletes stays readable for its
 *             users.
 * Bound:      unused entries beyond the bound are closed, the longest unused first. Entries in use may exceed it.
 * Threads:    any; a short lock per part of the cache, never held during a system call.
 * Source:     spec native.md 7: open, pwrite and close 6.3 us against 1.9 us with an open descriptor; a whole map per
 *             queue is too dear.
 */
#ifndef CMQ_FILE_CACHE_H
#define CMQ_FILE_CACHE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/cmq_file.h"
#include "base/cmq_status.h"

typedef struct cmq_file_cache cmq_file_cache;

/* An open file, borrowed between find or open, and release. */
typedef struct cmq_cachedfile {
    _Atomic uint64_t note;   /* for the users to tell each other what they learnt about the file; 0 at first */
    cmq_file *file;
    uint8_t *map;      /* the whole file, read-only, in a cache that maps; else NULL */
    uint64_t bytes;    /* mapped */
    _Atomic(void *) sums;   /* cmq_queue_sums' note; NULL, or one allocation that is freed with the entry */
} cmq_cachedfile;

/* At most `entries_max` unused entries; with `maps` each is mapped. */
cmq_status CMQ_MUST_CHECK cmq_file_cache_create(cmq_file_cache **cache_out, cmq_fs *fs, uint32_t entries_max,
                                                bool maps);
void cmq_file_cache_destroy(cmq_file_cache *cache);   /* NULL is fine; nobody uses an entry any more */

/* The entry of (owner, start), for cmq_file_cache_release; NULL when it is not there. */
cmq_cachedfile *cmq_file_cache_find(cmq_file_cache *cache, uint64_t owner, int64_t start);

/* Open `path` and keep it as (owner, start), for cmq_file_cache_release. In a cache that maps, the first `bytes` bytes
 * are mapped; CMQ_ERR_CORRUPT when the file is shorter. When the process has no descriptor left, unused entries are
 * closed first, of every cache in the process (cmq_relief). */
cmq_status CMQ_MUST_CHECK cmq_file_cache_open(cmq_file_cache *cache, uint64_t owner, int64_t start, const char *path,
                                             cmq_open_mode mode, uint64_t bytes, cmq_cachedfile **cached_out);
void cmq_file_cache_release(cmq_file_cache *cache, cmq_cachedfile *cached);

/* Forget (owner, start): the next open opens the file again. Closed when its last user lets go. */
void cmq_file_cache_drop(cmq_file_cache *cache, uint64_t owner, int64_t start);
void cmq_file_cache_drop_all(cmq_file_cache *cache);

/* Entries open now. */
uint32_t cmq_file_cache_count(cmq_file_cache *cache);

#endif
