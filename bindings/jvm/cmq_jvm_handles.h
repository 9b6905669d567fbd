/* cmq_jvm_handles: numbers that stand for stores, scans, batches and rows to stage in the JVM.
 *
 * Java never holds an address. It holds a number that is looked up at each call, so that a number that was closed,
 * belongs to another kind or was made up gives CMQ_ERR_CLOSED instead of a crash.
 *
 * Owns:      the objects, from cmq_handles_add until the last user leaves after the close.
 * Invariant: a number is never used again. A scan keeps its store: a closed store is destroyed after its last scan.
 * Threads:   any. A scan, and rows to stage, serve one call at a time: a second one gets CMQ_AGAIN.
 */
#ifndef CMQ_JVM_HANDLES_H
#define CMQ_JVM_HANDLES_H

#include <stdint.h>

#include "base/cmq_status.h"

typedef enum cmq_handle_kind {
    CMQ_HANDLE_FREE = 0,
    CMQ_HANDLE_STORE,
    CMQ_HANDLE_SCAN,
    CMQ_HANDLE_BATCH,
    CMQ_HANDLE_ROWS
} cmq_handle_kind;

/* Take the object over. `parent`: entered by the caller, and left when the object is destroyed; 0: none. Returns the
 * number; 0: no memory, an error is set, and object and parent stay the caller's. */
int64_t cmq_handles_add(cmq_handle_kind kind, void *object, void (*destroy)(void *object), int64_t parent);

/* Use an object; leave it afterwards. CMQ_ERR_CLOSED, with a text; CMQ_AGAIN: another call is
 * inside, and one at a time is served. */
cmq_status CMQ_MUST_CHECK cmq_handles_enter(int64_t number, cmq_handle_kind kind, void **object_out);
void cmq_handles_leave(int64_t number);

/* Destroy the object, now or when its last user leaves. Closing twice does nothing. */
void cmq_handles_close(int64_t number, cmq_handle_kind kind);

/* Objects that are not destroyed yet, for tests. */
int64_t cmq_handles_count(void);

#endif
