/* cmq_tail_pool: see cmq_tail_pool.h.
 *
 * Way: small rings are cut from chunks of 64 KiB; a large ring is a chunk of its own. A free ring is linked through its
 * first words.
 */
#include "store/queue/cmq_tail_pool.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/cmq_assert.h"

#define UNIT_WORDS_MAX 16
#define CLASS_COUNT 11                  /* 4, 16, 64, … 4194304 units */
#define CHUNK_BYTES 65536u
#define CUT_BYTES_MAX 8192u             /* rings up to here are cut from shared chunks */
#define RETURN_BYTES_MIN 32768u         /* free rings from here on give their pages back to the system */

_Static_assert(CMQ_TAIL_UNITS_FIRST << (2 * (CLASS_COUNT - 1)) == CMQ_TAIL_UNITS_MAX,
               "the classes end at the largest ring");
_Static_assert(sizeof(cmq_tailring) == 16, "a first ring of 20-byte units is 96 bytes");

typedef struct chunk {
    struct chunk *next;
    uint64_t padding;   /* keeps rings aligned to 16 */
} chunk;

struct cmq_tail_pool {
    chunk *chunks;
    uint8_t *cut_at;                    /* the rest of the newest shared chunk */
    size_t cut_bytes;
    uint64_t used_bytes;
    cmq_tailring *free[UNIT_WORDS_MAX + 1][CLASS_COUNT];
};

static size_t ring_bytes(uint32_t unit_words, uint32_t capacity)
{
    const size_t bytes = sizeof(cmq_tailring) + (size_t)capacity * unit_words * sizeof(uint32_t);
    return (bytes + 15u) & ~(size_t)15u;
}

static uint32_t class_of(uint32_t units)
{
    uint32_t class = 0;
    while (class < CLASS_COUNT && (uint32_t)CMQ_TAIL_UNITS_FIRST << (2 * class) < units) class++;
    return class;
}

/* The link of a free ring lies in its first two words, stored atomically because a late reader may still look at
 * them. */
static void set_free_next(cmq_tailring *ring, cmq_tailring *next)
{
    const uint64_t value = (uint64_t)(uintptr_t)next;
    atomic_store_explicit(&ring->words[0], (uint32_t)value, memory_order_release);
    atomic_store_explicit(&ring->words[1], (uint32_t)(value >> 32), memory_order_release);
}

static cmq_tailring *free_next(const cmq_tailring *ring)
{
    const uint64_t low = atomic_load_explicit(&ring->words[0], memory_order_relaxed);
    const uint64_t high = atomic_load_explicit(&ring->words[1], memory_order_relaxed);
    return (cmq_tailring *)(uintptr_t)(high << 32 | low);
}

static uint8_t *new_chunk(cmq_tail_pool *pool, size_t bytes)
{
    chunk *made = malloc(sizeof *made + bytes);
    if (made == NULL) return NULL;
    made->next = pool->chunks;
    pool->chunks = made;
    return (uint8_t *)(made + 1);
}

static cmq_tailring *new_ring(cmq_tail_pool *pool, uint32_t unit_words, uint32_t capacity)
{
    const size_t bytes = ring_bytes(unit_words, capacity);
    uint8_t *at;
    if (bytes > CUT_BYTES_MAX) {
        at = new_chunk(pool, bytes);
    } else {
        if (pool->cut_bytes < bytes) {
            pool->cut_at = new_chunk(pool, CHUNK_BYTES);
            pool->cut_bytes = pool->cut_at == NULL ? 0 : CHUNK_BYTES;
        }
        at = pool->cut_at;
        if (at != NULL) {
            pool->cut_at += bytes;
            pool->cut_bytes -= bytes;
        }
    }
    if (at == NULL) return NULL;
    cmq_tailring *ring = (cmq_tailring *)(void *)at;
    atomic_init(&ring->base, 0);
    ring->capacity = capacity;
    ring->unit_words = unit_words;
    return ring;
}

/* Give the pages of a free ring back, without its first (capacity and link lie there). Late readers read zeros then. */
static void return_pages(cmq_tailring *ring, size_t bytes)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t from = ((uintptr_t)(ring->words + 2) + page - 1) / page * page;
    const uintptr_t end = ((uintptr_t)ring + bytes) / page * page;
    if (end > from) madvise((void *)from, end - from, MADV_DONTNEED);   /* refused: the pages stay, nothing is wrong */
}

cmq_tail_pool *cmq_tail_pool_create(void) { return calloc(1, sizeof(cmq_tail_pool)); }

void cmq_tail_pool_destroy(cmq_tail_pool *pool)
{
    if (pool == NULL) return;
    while (pool->chunks != NULL) {
        chunk *next = pool->chunks->next;
        free(pool->chunks);
        pool->chunks = next;
    }
    free(pool);
}

uint32_t cmq_tail_pool_capacity(uint32_t units)
{
    const uint32_t class = class_of(units);
    return class == CLASS_COUNT ? 0 : (uint32_t)CMQ_TAIL_UNITS_FIRST << (2 * class);
}

cmq_tailring *cmq_tail_pool_take(cmq_tail_pool *pool, uint32_t unit_words, uint32_t units)
{
    CMQ_ASSERT(unit_words > 0 && unit_words <= UNIT_WORDS_MAX);
    const uint32_t class = class_of(units);
    if (class == CLASS_COUNT) return NULL;
    cmq_tailring *ring = pool->free[unit_words][class];
    if (ring != NULL)
        pool->free[unit_words][class] = free_next(ring);
    else
        ring = new_ring(pool, unit_words, cmq_tail_pool_capacity(units));
    if (ring != NULL) pool->used_bytes += ring_bytes(unit_words, ring->capacity);
    return ring;
}

void cmq_tail_pool_give(cmq_tail_pool *pool, cmq_tailring *ring)
{
    if (ring == NULL) return;
    const size_t bytes = ring_bytes(ring->unit_words, ring->capacity);
    CMQ_ASSERT(pool->used_bytes >= bytes);
    pool->used_bytes -= bytes;
    if (bytes >= RETURN_BYTES_MIN) return_pages(ring, bytes);
    cmq_tailring **head = &pool->free[ring->unit_words][class_of(ring->capacity)];
    set_free_next(ring, *head);
    *head = ring;
}

uint64_t cmq_tail_pool_used_bytes(const cmq_tail_pool *pool) { return pool->used_bytes; }
