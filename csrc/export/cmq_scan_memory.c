/* cmq_scan_memory: memory that a scan and its batches hold together, and buffers that grow.
 *
 * Invariant: bytes that were written stay where they are while anyone holds the memory: a buffer that grows moves to new memory, and the old one
 *            goes with its last holder. So a batch may share what the scan goes on appending to (dictionaries).
 * Threads:   keep and drop from any thread.
 */
#include <stdlib.h>
#include <string.h>

#include "base/cmq_assert.h"
#include "export/cmq_scan_internal.h"

#define BUFFER_BYTES_MIN 1024u

cmq_scan_memory *cmq_scan_memory_make(size_t bytes)
{
    if (bytes > SIZE_MAX / 2) return NULL;
    cmq_scan_memory *memory = NULL;
    if (posix_memalign((void **)&memory, 64, (sizeof *memory + bytes + 63) / 64 * 64) != 0) {
        const cmq_status failed = cmq_fail(CMQ_ERR_MEMORY, "no memory for %zu bytes of columns; take smaller batches", bytes);
        (void)failed;
        return NULL;
    }
    atomic_init(&memory->references, 1);
    memory->next = NULL;
    memory->capacity = bytes;
    memory->used = 0;
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
    free(memory);
}

cmq_status cmq_scan_buffer_grow(cmq_scan_buffer *buffer, size_t more)
{
    const size_t have = buffer->memory != NULL ? buffer->memory->capacity : 0;
    size_t capacity = buffer->used + more;
    if (capacity < 2 * have) capacity = 2 * have;
    if (capacity < BUFFER_BYTES_MIN) capacity = BUFFER_BYTES_MIN;
    cmq_scan_memory *memory = cmq_scan_memory_make(capacity);
    if (memory == NULL) return CMQ_ERR_MEMORY;
    if (buffer->used > 0) memcpy(memory->data, buffer->memory->data, buffer->used);
    cmq_scan_memory_drop(buffer->memory);
    buffer->memory = memory;
    return CMQ_OK;
}

void cmq_scan_buffer_clear(cmq_scan_buffer *buffer)
{
    cmq_scan_memory_drop(buffer->memory);
    *buffer = (cmq_scan_buffer){0};
}
