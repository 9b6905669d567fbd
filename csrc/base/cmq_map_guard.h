/* cmq_map_guard: a page of a mapped file that cannot be read becomes a page of zeros with a note, instead of SIGBUS.
 *
 * A touch of such a page (an unreadable sector, a file that somebody cut, memory that went bad) is a signal that ends
 * the process. The first guarded mapping installs a handler for it. Within a guarded mapping the handler puts a page of
 * zeros in the place of the lost one and notes it, and the read continues. Zeros are no record, no unit and no entry of
 * the store's files, and code that copied bytes asks cmq_map_guard_is_lost before using them. In a writable mapping the
 * process ends: the bytes stored there could not reach the disk. All other faults go to the handler before, or end the
 * process as they always did.
 *
 * Owns:    the process's SIGBUS handler, from the first guarded mapping on.
 * Cost:    nothing for a read; the question is one load of a word that never changes, until a page is lost.
 * Threads: any; lock-free, also in a forked child.
 */
#ifndef CMQ_MAP_GUARD_H
#define CMQ_MAP_GUARD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cmq_status.h"

/* Guard a mapping; whole pages around the range. cmq_file_map does. Without memory for it the mapping is not
 * guarded. */
void cmq_map_guard_add(const void *address, size_t bytes, bool writable);

/* Before it is unmapped: also forgets its lost pages. */
void cmq_map_guard_remove(const void *address, size_t bytes);

extern _Atomic uint32_t cmq_map_guard_runs;

/* Did this process ever lose a page? */
static inline bool cmq_map_guard_any(void)
{
    return atomic_load_explicit(&cmq_map_guard_runs, memory_order_acquire) != 0;
}

/* Does the range touch a lost page? Bytes that were read from it before the answer may be zeros that stand for
 * others. */
bool cmq_map_guard_search(const void *address, size_t bytes);
static inline bool cmq_map_guard_is_lost(const void *address, size_t bytes)
{
    return cmq_map_guard_any() && cmq_map_guard_search(address, bytes);
}

#define CMQ_MAP_GUARD_STEP 4096u   /* no machine has smaller pages */

/* Read a byte of every page of a range that is not empty, so that a lost one is known before the range is believed.
 * False: it has one. */
static inline bool cmq_map_guard_touch(const void *address, size_t bytes)
{
    const volatile uint8_t *at = address;
    for (size_t i = 0; i < bytes; i += CMQ_MAP_GUARD_STEP) (void)at[i];
    (void)at[bytes - 1];
    return !cmq_map_guard_is_lost(address, bytes);
}

/* The same for a range that may be empty: CMQ_ERR_CORRUPT, with the physical offset of the record that it is of. */
cmq_status cmq_map_guard_check(const void *address, size_t bytes, int64_t physical_offset);

#endif
