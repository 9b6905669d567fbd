/* cmq_queue_sums: see cmq_queue_sums.h.
 *
 * A mapped file's note has a byte per block (was it found right, or is nothing known of it?) and the sums as they were
 * read last. A sum that is not known, or that differs, is read again before it is believed: the writer, here or in
 * another process, may have written it since.
 */
#include "store/queue/cmq_queue_sums.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/cmq_assert.h"
#include "base/cmq_bytes.h"
#include "base/cmq_crc32.h"
#include "store/marks/cmq_own_files.h"

#define SUM_BYTES 4
#define SUMS_AT_ONCE 16
#define COPY_BYTES 4096

typedef struct sums {
    uint32_t count;
    _Atomic uint32_t *known;      /* as the side file says; 0: nothing */
    _Atomic uint8_t settled[];    /* not to be looked at again */
} sums;

static int64_t block_count(const cmq_queue *queue)
{
    return (cmq_queue_file_bytes(queue) + CMQ_SUMS_BLOCK_BYTES - 1) / CMQ_SUMS_BLOCK_BYTES;
}

cmq_status cmq_queue_sums_topic_path(const cmq_queue *queue, char into[CMQ_PATH_BYTES])
{
    const cmq_status status = cmq_path_join(into, queue->set->root, CMQ_OWN_FOLDER "/sums");
    return status != CMQ_OK ? status : cmq_path_join(into, into, queue->topic->name);
}

static cmq_status CMQ_MUST_CHECK path_of(const cmq_queue *queue, int64_t start, char into[CMQ_PATH_BYTES])
{
    char name[16 + CMQ_OFFSET_NAME_BYTES];
    const int used = snprintf(name, sizeof name, "%" PRId32 "-", queue->id);
    cmq_path_offset_name(name + used, start);
    const cmq_status status = cmq_queue_sums_topic_path(queue, into);
    return status != CMQ_OK ? status : cmq_path_join(into, into, name);
}

/* 0 says that there is no sum. */
static uint32_t as_sum(uint32_t crc) { return crc != 0 ? crc : 1; }

/* ---- writing ---- */

static cmq_status CMQ_MUST_CHECK open_to_write(const cmq_queue *queue, int64_t start, cmq_file **file_out)
{
    char path[CMQ_PATH_BYTES];
    cmq_status status = path_of(queue, start, path);
    if (status == CMQ_OK) status = cmq_file_open(queue->set->fs, path, CMQ_OPEN_CREATE, file_out);
    if (status != CMQ_ERR_NOT_FOUND) return status;
    char folder[CMQ_PATH_BYTES];
    status = cmq_queue_sums_topic_path(queue, folder);
    if (status == CMQ_OK) status = cmq_fs_require_root(queue->set->fs, queue->set->root);
    if (status == CMQ_OK) status = cmq_fs_make_directory_unsynced(queue->set->fs, folder);
    return status == CMQ_OK ? cmq_file_open(queue->set->fs, path, CMQ_OPEN_CREATE, file_out) : status;
}

/* Missing sums are unknown: a failure is not an error. */
static void write_sums(const cmq_queue *queue, int64_t start, int64_t first, const uint8_t *images, size_t count)
{
    cmq_file *file;
    if (open_to_write(queue, start, &file) != CMQ_OK) return;
    (void)!cmq_file_write(file, (uint64_t)first * SUM_BYTES, images, count * SUM_BYTES);
    cmq_file_close(file);
}

/* The checksum over bytes [from, end) of a file; false when they cannot be read. */
static bool crc_of_file(cmq_file *file, int64_t from, int64_t end, uint32_t *crc_out)
{
    uint8_t copy[COPY_BYTES];
    *crc_out = 0;
    while (from < end) {
        const size_t bytes = end - from < COPY_BYTES ? (size_t)(end - from) : COPY_BYTES;
        if (cmq_file_read(file, (uint64_t)from, copy, bytes) != CMQ_OK) return false;
        *crc_out = cmq_crc32_extend(*crc_out, copy, bytes);
        from += (int64_t)bytes;
    }
    return true;
}

/* Written sums that wait to go into the side file together. */
typedef struct sealing {
    const cmq_queue *queue;
    int64_t start, first;    /* of the file; the number of the first block that waits */
    size_t count;
    uint8_t images[SUMS_AT_ONCE * SUM_BYTES];
} sealing;

static void put_sums(sealing *of)
{
    if (of->count > 0) write_sums(of->queue, of->start, of->first, of->images, of->count);
    of->first += (int64_t)of->count;
    of->count = 0;
}

static void seal(sealing *of, uint32_t crc)
{
    cmq_store_u32(of->images + of->count * SUM_BYTES, as_sum(crc));
    if (++of->count == SUMS_AT_ONCE) put_sums(of);
}

void cmq_queue_sums_wrote(cmq_queue *queue, cmq_file *file, int64_t start, int64_t at, const uint8_t *written,
                          size_t bytes)
{
    cmq_queuefiles *files = &queue->files;
    sealing of = {.queue = queue, .start = start, .first = at / CMQ_SUMS_BLOCK_BYTES};
    const int64_t end = at + (int64_t)bytes;
    const bool sealed = queue->tail.kind == CMQ_QUEUE_SIMPLE;
    if (!files->sum_known) files->sum_known = crc_of_file(file, of.first * CMQ_SUMS_BLOCK_BYTES, at, &files->sum);
    for (int64_t from = at; files->sum_known && from < end;) {
        const int64_t block_end = cmq_queue_sums_block_end(queue, from), to = block_end < end ? block_end : end;
        files->sum = cmq_crc32_extend(files->sum, written + (from - at), (size_t)(to - from));
        from = to;
        if (to < block_end) break;
        if (sealed) seal(&of, files->sum);
        files->sum = 0;
    }
    put_sums(&of);
    atomic_store_explicit(&queue->set->ends_changed, true, memory_order_release);
}

void cmq_queue_sums_remove(const cmq_queue *queue, int64_t start)
{
    char path[CMQ_PATH_BYTES];
    if (path_of(queue, start, path) == CMQ_OK)
        (void)!cmq_fs_remove(queue->set->fs, path);
}

/* ---- looking ---- */

/* The note of a mapped file; NULL without memory. Of two threads that make it the first wins. */
static sums *sums_of(const cmq_queue *queue, cmq_cachedfile *mapped)
{
    void *there = atomic_load_explicit(&mapped->sums, memory_order_acquire);
    if (there != NULL) return there;
    const size_t count = (size_t)block_count(queue);
    const size_t settled_bytes = (count + 3) / 4 * 4;
    sums *made = calloc(1, sizeof *made + settled_bytes + count * sizeof made->known[0]);
    if (made == NULL) return NULL;
    made->count = (uint32_t)count;
    made->known = (_Atomic uint32_t *)(void *)((uint8_t *)made + sizeof *made + settled_bytes);
    if (atomic_compare_exchange_strong_explicit(&mapped->sums, &there, made, memory_order_acq_rel,
                                                memory_order_acquire))
        return made;
    free(made);
    return there;
}

/* Read the sums again; missing ones stay as they are. */
static void read_sums(const cmq_queue *queue, int64_t start, sums *of)
{
    char path[CMQ_PATH_BYTES];
    uint8_t images[SUMS_AT_ONCE * SUM_BYTES];
    cmq_file *file;
    cmq_file_info info;
    if (path_of(queue, start, path) != CMQ_OK || cmq_file_open(queue->set->fs, path, CMQ_OPEN_READ, &file) != CMQ_OK)
        return;
    const uint32_t there = cmq_file_info_of(file, &info) == CMQ_OK
                               ? (uint32_t)(info.bytes / SUM_BYTES < of->count ? info.bytes / SUM_BYTES : of->count)
                               : 0;
    for (uint32_t at = 0; at < there; at += SUMS_AT_ONCE) {
        const uint32_t count = there - at < SUMS_AT_ONCE ? there - at : SUMS_AT_ONCE;
        if (cmq_file_read(file, (uint64_t)at * SUM_BYTES, images, count * SUM_BYTES) != CMQ_OK) break;
        for (uint32_t i = 0; i < count; i++)
            atomic_store_explicit(&of->known[at + i], cmq_load_u32(images + i * SUM_BYTES), memory_order_relaxed);
    }
    cmq_file_close(file);
}

/* A block that is not settled. A block of which nothing is known is settled too: it was written by another program, or
 * before there were sums. */
static bool block_is_doubtful(const cmq_queue *queue, const cmq_cachedfile *mapped, int64_t start, sums *of,
                              int64_t block)
{
    const int64_t from = block * CMQ_SUMS_BLOCK_BYTES, end = cmq_queue_sums_block_end(queue, from);
    uint32_t known = atomic_load_explicit(&of->known[block], memory_order_relaxed);
    bool fresh = false;
    if (known == 0) {
        read_sums(queue, start, of);
        fresh = true;
        known = atomic_load_explicit(&of->known[block], memory_order_relaxed);
    }
    if (known != 0 && known != as_sum(cmq_crc32(mapped->map + from, (size_t)(end - from)))) {
        if (fresh) return true;
        read_sums(queue, start, of);
        known = atomic_load_explicit(&of->known[block], memory_order_relaxed);
        if (known != 0 && known != as_sum(cmq_crc32(mapped->map + from, (size_t)(end - from)))) return true;
    }
    atomic_store_explicit(&of->settled[block], 1, memory_order_relaxed);
    return false;
}

int64_t cmq_queue_sums_sound_until(const cmq_queue *queue, cmq_cachedfile *mapped, int64_t start, int64_t from,
                                   int64_t end, int64_t whole_end)
{
    CMQ_ASSERT(from + CMQ_UNIT_BYTES <= end && end <= (int64_t)mapped->bytes);
    sums *of = sums_of(queue, mapped);
    if (of == NULL) return end;
    const int64_t needed = (from + CMQ_UNIT_BYTES - 1) / CMQ_SUMS_BLOCK_BYTES;   /* a unit may lie across a border */
    for (int64_t block = from / CMQ_SUMS_BLOCK_BYTES; block * CMQ_SUMS_BLOCK_BYTES < end; block++) {
        if (atomic_load_explicit(&of->settled[block], memory_order_relaxed) != 0) continue;
        if (cmq_queue_sums_block_end(queue, block * CMQ_SUMS_BLOCK_BYTES) > whole_end) return end;
        if (block > needed) return block * CMQ_SUMS_BLOCK_BYTES;
        if (block_is_doubtful(queue, mapped, start, of, block)) return from;
    }
    return end;
}
