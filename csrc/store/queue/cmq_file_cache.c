/* cmq_file_cache: see cmq_file_cache.h.
 *
 * Way: the cache is cut into parts by key, each a chained hash table and a list in order of use under one mutex. Files
 * are opened and closed outside the lock; when two threads open the same file at once, the second throws its own away.
 */
#include "store/queue/cmq_file_cache.h"

#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>

#include "base/cmq_assert.h"
#include "base/cmq_relief.h"

#define PARTS_MAX 16u
#define PART_ENTRIES_MIN 64u   /* fewer per part and one unlucky part would evict too early */

typedef struct entry {
    cmq_cachedfile public;     /* first: the handle that callers have */
    uint64_t owner;
    int64_t start;
    uint32_t users;
    bool linked;               /* in the table and the list; else it dies with its last user */
    struct entry *chain;       /* in its bucket */
    struct entry *newer, *older;
} entry;

typedef struct part {
    pthread_mutex_t lock;
    entry **buckets;
    uint32_t bucket_mask;
    uint32_t count;            /* linked entries */
    entry *newest, *oldest;
} part;

struct cmq_file_cache {
    cmq_relief relief;
    cmq_fs *fs;
    bool maps;
    uint32_t part_count;
    uint32_t part_entries_max;
    part parts[PARTS_MAX];
};

_Static_assert(offsetof(entry, public) == 0, "a handle is its entry");

static uint64_t hash_of(uint64_t owner, int64_t start)
{
    uint64_t hash = (owner + 1) * UINT64_C(0x9E3779B97F4A7C15) ^ (uint64_t)start * UINT64_C(0xC2B2AE3D27D4EB4F);
    hash ^= hash >> 32;
    return hash * UINT64_C(0x9E3779B97F4A7C15);
}

static part *part_of(cmq_file_cache *cache, uint64_t hash) { return &cache->parts[(hash >> 60) % cache->part_count]; }
static entry **bucket_of(part *in, uint64_t hash) { return &in->buckets[(hash >> 20) & in->bucket_mask]; }

/* ---- with the part's lock ---- */

static entry *lookup(part *in, uint64_t hash, uint64_t owner, int64_t start)
{
    entry *found = *bucket_of(in, hash);
    while (found != NULL && (found->owner != owner || found->start != start)) found = found->chain;
    return found;
}

static void unlink_use(part *in, entry *of)
{
    *(of->newer == NULL ? &in->newest : &of->newer->older) = of->older;
    *(of->older == NULL ? &in->oldest : &of->older->newer) = of->newer;
}

static void link_use(part *in, entry *of)
{
    of->newer = NULL;
    of->older = in->newest;
    *(in->newest == NULL ? &in->oldest : &in->newest->newer) = of;
    in->newest = of;
}

static void link_entry(part *in, uint64_t hash, entry *of)
{
    entry **bucket = bucket_of(in, hash);
    of->chain = *bucket;
    *bucket = of;
    link_use(in, of);
    of->linked = true;
    in->count++;
}

static void unlink_entry(part *in, uint64_t hash, entry *of)
{
    entry **at = bucket_of(in, hash);
    while (*at != of) at = &(*at)->chain;
    *at = of->chain;
    unlink_use(in, of);
    of->linked = false;
    in->count--;
}

/* Unlink unused entries, the oldest first, until `keep` are left; returns them chained for closing. */
static entry *evict(part *in, uint32_t keep)
{
    entry *evicted = NULL;
    for (entry *at = in->oldest; at != NULL && in->count > keep;) {
        entry *newer = at->newer;
        if (at->users == 0) {
            unlink_entry(in, hash_of(at->owner, at->start), at);
            at->chain = evicted;
            evicted = at;
        }
        at = newer;
    }
    return evicted;
}

/* ---- without ---- */

static void close_entry(entry *of)
{
    if (of->public.map != NULL) cmq_file_unmap(of->public.file, of->public.map, of->public.bytes);
    cmq_file_close(of->public.file);
    free(atomic_load_explicit(&of->public.sums, memory_order_acquire));
    free(of);
}

static void close_all(entry *chained)
{
    while (chained != NULL) {
        entry *next = chained->chain;
        close_entry(chained);
        chained = next;
    }
}

/* No descriptor left: close half of the unused ones. */
static bool close_half(void *context)
{
    cmq_file_cache *cache = context;
    bool closed = false;
    for (uint32_t i = 0; i < cache->part_count; i++) {
        part *of = &cache->parts[i];
        pthread_mutex_lock(&of->lock);
        entry *evicted = evict(of, of->count / 2);
        pthread_mutex_unlock(&of->lock);
        closed |= evicted != NULL;
        close_all(evicted);
    }
    return closed;
}

cmq_status cmq_file_cache_create(cmq_file_cache **cache_out, cmq_fs *fs, uint32_t entries_max, bool maps)
{
    cmq_file_cache *cache = calloc(1, sizeof *cache);
    *cache_out = NULL;
    if (cache == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for a cache of files");
    cache->relief = (cmq_relief){.close_some = close_half, .context = cache};
    cache->fs = fs;
    cache->maps = maps;
    cache->part_count = entries_max / PART_ENTRIES_MIN;
    if (cache->part_count > PARTS_MAX) cache->part_count = PARTS_MAX;
    if (cache->part_count == 0) cache->part_count = 1;
    cache->part_entries_max = entries_max / cache->part_count;
    uint32_t buckets = 16;
    while (buckets < cache->part_entries_max) buckets *= 2;
    for (uint32_t i = 0; i < cache->part_count; i++) {
        part *made = &cache->parts[i];
        pthread_mutex_init(&made->lock, NULL);
        made->bucket_mask = buckets - 1;
        made->buckets = calloc(buckets, sizeof *made->buckets);
        if (made->buckets == NULL) {
            cache->part_count = i + 1;
            cmq_file_cache_destroy(cache);
            return cmq_fail(CMQ_ERR_MEMORY, "no memory for a cache of files");
        }
    }
    cmq_relief_join(&cache->relief);
    *cache_out = cache;
    return CMQ_OK;
}

void cmq_file_cache_destroy(cmq_file_cache *cache)
{
    if (cache == NULL) return;
    cmq_relief_leave(&cache->relief);
    for (uint32_t i = 0; i < cache->part_count; i++) {
        part *of = &cache->parts[i];
        /* In a forked child entries may still count users: threads that exist in the parent only. */
        for (entry *at = of->newest; at != NULL; at = at->older) at->users = 0;
        close_all(evict(of, 0));
        free(of->buckets);
        pthread_mutex_destroy(&of->lock);
    }
    free(cache);
}

static entry *use(part *in, uint64_t hash, uint64_t owner, int64_t start)
{
    entry *found = lookup(in, hash, owner, start);
    if (found == NULL) return NULL;
    found->users++;
    if (in->newest != found) {
        unlink_use(in, found);
        link_use(in, found);
    }
    return found;
}

cmq_cachedfile *cmq_file_cache_find(cmq_file_cache *cache, uint64_t owner, int64_t start)
{
    const uint64_t hash = hash_of(owner, start);
    part *in = part_of(cache, hash);
    pthread_mutex_lock(&in->lock);
    entry *found = use(in, hash, owner, start);
    pthread_mutex_unlock(&in->lock);
    return found == NULL ? NULL : &found->public;
}

static cmq_status CMQ_MUST_CHECK open_file(cmq_file_cache *cache, const char *path, cmq_open_mode mode, uint64_t bytes,
                                           entry *into)
{
    cmq_status status = cmq_file_open(cache->fs, path, mode, &into->public.file);
    if (cmq_is_exhausted(status) && close_half(cache))
        status = cmq_file_open(cache->fs, path, mode, &into->public.file);
    if (status != CMQ_OK || !cache->maps) return status;
    cmq_file_info info;
    status = cmq_file_info_of(into->public.file, &info);
    if (status == CMQ_OK && info.bytes < bytes)   /* a touch behind its end would be a SIGBUS */
        status = cmq_fail(CMQ_ERR_CORRUPT, "%s has %llu bytes, %llu are expected", path, (unsigned long long)info.bytes,
                          (unsigned long long)bytes);
    if (status == CMQ_OK) status = cmq_file_map(into->public.file, 0, bytes, false, &into->public.map);
    if (status == CMQ_OK)
        into->public.bytes = bytes;
    else
        cmq_file_close(into->public.file);
    return status;
}

cmq_status cmq_file_cache_open(cmq_file_cache *cache, uint64_t owner, int64_t start, const char *path,
                               cmq_open_mode mode, uint64_t bytes, cmq_cachedfile **cached_out)
{
    *cached_out = NULL;
    entry *made = calloc(1, sizeof *made);
    if (made == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory to open %s", path);
    const cmq_status status = open_file(cache, path, mode, bytes, made);
    if (status != CMQ_OK) {
        free(made);
        return status;
    }
    made->owner = owner;
    made->start = start;
    made->users = 1;
    const uint64_t hash = hash_of(owner, start);
    part *in = part_of(cache, hash);
    pthread_mutex_lock(&in->lock);
    entry *there = use(in, hash, owner, start);
    entry *evicted = NULL;
    if (there == NULL) {
        link_entry(in, hash, made);
        evicted = evict(in, cache->part_entries_max);
    }
    pthread_mutex_unlock(&in->lock);
    close_all(evicted);
    if (there != NULL) close_entry(made);
    *cached_out = there != NULL ? &there->public : &made->public;
    return CMQ_OK;
}

void cmq_file_cache_release(cmq_file_cache *cache, cmq_cachedfile *cached)
{
    entry *of = (entry *)(void *)cached;
    part *in = part_of(cache, hash_of(of->owner, of->start));
    pthread_mutex_lock(&in->lock);
    CMQ_ASSERT(of->users > 0);
    of->users--;
    const bool last = of->users == 0 && !of->linked;
    pthread_mutex_unlock(&in->lock);
    if (last) close_entry(of);
}

void cmq_file_cache_drop(cmq_file_cache *cache, uint64_t owner, int64_t start)
{
    const uint64_t hash = hash_of(owner, start);
    part *in = part_of(cache, hash);
    pthread_mutex_lock(&in->lock);
    entry *found = lookup(in, hash, owner, start);
    bool unused = false;
    if (found != NULL) {
        unlink_entry(in, hash, found);
        unused = found->users == 0;
    }
    pthread_mutex_unlock(&in->lock);
    if (unused) close_entry(found);
}

void cmq_file_cache_drop_all(cmq_file_cache *cache)
{
    for (uint32_t i = 0; i < cache->part_count; i++) {
        part *of = &cache->parts[i];
        pthread_mutex_lock(&of->lock);
        entry *unused = evict(of, 0);
        while (of->newest != NULL) unlink_entry(of, hash_of(of->newest->owner, of->newest->start), of->newest);
        pthread_mutex_unlock(&of->lock);
        close_all(unused);
    }
}

uint32_t cmq_file_cache_count(cmq_file_cache *cache)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < cache->part_count; i++) {
        pthread_mutex_lock(&cache->parts[i].lock);
        count += cache->parts[i].count;
        pthread_mutex_unlock(&cache->parts[i].lock);
    }
    return count;
}
