/* cmq_scan_memory: memory that a scan and its batches hold together, buffers that grow, and the pool that batches give
 * their memory back to.
 *
 * Why a pool: a batch's buffers are of hundreds of kilobytes, which malloc takes from the system and gives back each
 * time, and the page faults of fresh
 *            memory cost more than all that is written into it.
 * Invariant: bytes that were written stay where they are while anyone holds the memory: a buffer that grows moves to
 *            new memory, and the old one goes with its last holder. So a batch may share what the scan goes on
 *            appending to (dictionaries).
 * Threads:   keep and drop from any thread, also after the scan was closed: the pool lives as long as any memory of it.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/cmq_assert.h"
#include "export/cmq_scan_internal.h"

#define BUFFER_BYTES_MIN 1024u
#define POOL_BYTES_MAX ((size_t)64 << 20)   /* that lie idle */
#define POOL_MEMORY_BYTES_MIN 4096u         /* less is malloc's business */
#define HUGE_BYTES ((size_t)2 << 20)

struct cmq_scan_pool {
    _Atomic int32_t references;   /* the scan's, and one per memory that is out */
    pthread_mutex_t mutex;        /* guards the members below */
    bool closed;
    size_t idle_bytes;
    cmq_scan_memory *idle;        /* last given back first: it may still be in cache */
};

/* ---- the pool ---- */

cmq_scan_pool *cmq_scan_pool_make(void)
{
    cmq_scan_pool *pool = calloc(1, sizeof *pool);
    if (pool == NULL) return NULL;
    atomic_init(&pool->references, 1);
    pthread_mutex_init(&pool->mutex, NULL);
    return pool;
}

static void drop_pool(cmq_scan_pool *pool)
{
    if (atomic_fetch_sub_explicit(&pool->references, 1, memory_order_acq_rel) != 1) return;
    pthread_mutex_destroy(&pool->mutex);
    free(pool);
}

void cmq_scan_pool_close(cmq_scan_pool *pool)
{
    if (pool == NULL) return;
    pthread_mutex_lock(&pool->mutex);
    cmq_scan_memory *idle = pool->idle;
    pool->idle = NULL;
    pool->closed = true;
    pthread_mutex_unlock(&pool->mutex);
    while (idle != NULL) {
        cmq_scan_memory *next = idle->next;
        free(idle);
        idle = next;
    }
    drop_pool(pool);
}

/* Idle memory of at least `bytes`, but not of many times that; NULL: none. */
static cmq_scan_memory *take_idle(cmq_scan_pool *pool, size_t bytes)
{
    cmq_scan_memory *found = NULL;
    pthread_mutex_lock(&pool->mutex);
    for (cmq_scan_memory **at = &pool->idle; *at != NULL && found == NULL; at = found == NULL ? &(*at)->next : at) {
        if ((*at)->capacity < bytes || (*at)->capacity / 4 > bytes) continue;
        found = *at;
        *at = found->next;
        pool->idle_bytes -= found->capacity;
    }
    pthread_mutex_unlock(&pool->mutex);
    return found;
}

/* False: it is the caller's to free. In a forked child the lock may be held by a thread that is not there, so nobody
 * waits for it. */
static bool give_back(cmq_scan_pool *pool, cmq_scan_memory *memory)
{
    if (memory->capacity < POOL_MEMORY_BYTES_MIN || pthread_mutex_trylock(&pool->mutex) != 0) return false;
    const bool taken = !pool->closed && pool->idle_bytes + memory->capacity <= POOL_BYTES_MAX;
    if (taken) {
        memory->next = pool->idle;
        pool->idle = memory;
        pool->idle_bytes += memory->capacity;
    }
    pthread_mutex_unlock(&pool->mutex);
    return taken;
}

/* ---- memory ---- */

/* Fresh memory. Large pieces are of large pages where the system has them: a fault each instead of 512. */
static cmq_scan_memory *allocate(size_t bytes)
{
    cmq_scan_memory *memory = NULL;
    if (bytes > SIZE_MAX / 2) return NULL;
    const bool huge = bytes >= HUGE_BYTES;
    const size_t whole = (sizeof *memory + bytes + 63) / 64 * 64;
    if (posix_memalign((void **)&memory, huge ? HUGE_BYTES : 64, whole) != 0) return NULL;
    if (huge) (void)madvise(memory, whole, MADV_HUGEPAGE);   /* where it is refused small pages do */
    memory->capacity = bytes;
    return memory;
}

cmq_scan_memory *cmq_scan_memory_make(cmq_scan_pool *pool, size_t bytes)
{
    cmq_scan_memory *memory = pool != NULL && bytes >= POOL_MEMORY_BYTES_MIN ? take_idle(pool, bytes) : NULL;
    if (memory == NULL) memory = allocate(bytes);
    if (memory == NULL) {
        const cmq_status failed =
            cmq_fail(CMQ_ERR_MEMORY, "no memory for %zu bytes of columns; take smaller batches", bytes);
        (void)failed;
        return NULL;
    }
    atomic_init(&memory->references, 1);
    memory->next = NULL;
    memory->used = 0;
    memory->pool = pool;
    if (pool != NULL) atomic_fetch_add_explicit(&pool->references, 1, memory_order_relaxed);
    return memory;
}

cmq_scan_memory *cmq_scan_memory_keep(cmq_scan_memory *memory)
{
    if (memory != NULL) atomic_fetch_add_explicit(&memory->references, 1, memory_order_relaxed);
    return memory;
}

void cmq_scan_memory_drop(cmq_scan_memory *memory)
{
    if (memory == NULL || atomic_fetch_sub_explicit(&memory->references, 1, memory_order_acq_rel) != 1) return;
    cmq_scan_pool *pool = memory->pool;
    if (pool == NULL || !give_back(pool, memory)) free(memory);
    if (pool != NULL) drop_pool(pool);
}

/* ---- buffers ---- */

cmq_status cmq_scan_buffer_grow(cmq_scan_buffer *buffer, size_t more)
{
    const size_t have = buffer->memory != NULL ? buffer->memory->capacity : 0;
    size_t capacity = buffer->used + more;
    if (capacity < 2 * have) capacity = 2 * have;
    if (capacity < BUFFER_BYTES_MIN) capacity = BUFFER_BYTES_MIN;
    cmq_scan_memory *memory = cmq_scan_memory_make(buffer->pool, capacity);
    if (memory == NULL) return CMQ_ERR_MEMORY;
    if (buffer->used > 0) memcpy(memory->data, buffer->memory->data, buffer->used);
    cmq_scan_memory_drop(buffer->memory);
    buffer->memory = memory;
    return CMQ_OK;
}

void cmq_scan_buffer_clear(cmq_scan_buffer *buffer)
{
    cmq_scan_memory_drop(buffer->memory);
    buffer->memory = NULL;
    buffer->used = 0;
}
