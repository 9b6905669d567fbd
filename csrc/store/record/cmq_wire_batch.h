/* cmq_wire_batch: the body of a batch as clients send it, and as inner batches keep it on disk.
 *
 * Invariant: reading never leaves the body; every element's own size must be the sum of its lengths.
 * Way:       wire or inner batch record -> [cmq_wire_batch_next] -> one cmq_record_fields per element
 * Threads:   any; pure functions over borrowed bytes.
 * Source:    store specification 2.8, 2.10.
 */
#ifndef CMQ_WIRE_BATCH_H
#define CMQ_WIRE_BATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cmq_bytes.h"
#include "base/cmq_status.h"

#define CMQ_WIRE_BATCH_ELEMENT_BYTES_MIN 22   /* five i32, empty body, i16, no properties */

typedef struct cmq_wire_batch_element {
    int32_t flag;
    cmq_slice body;
    cmq_slice properties;
} cmq_wire_batch_element;

/* Take the next element off the front of *rest. CMQ_END when nothing is left; CMQ_ERR_CORRUPT when the rest is no
 * whole element (*rest stays). Slices are borrowed from *rest. */
CMQ_MUST_CHECK cmq_status cmq_wire_batch_next(cmq_slice *rest, cmq_wire_batch_element *element_out);

/* Whether `matches` has an element's properties; true, too, where the body is damaged, which unfolding it reports. */
bool cmq_wire_batch_any(cmq_slice body, bool (*matches)(void *context, cmq_slice properties), void *context);

/* The number of elements of a body; CMQ_ERR_CORRUPT as above, and for an empty body. */
CMQ_MUST_CHECK cmq_status cmq_wire_batch_count(cmq_slice body, uint32_t *count_out);

/* Bytes of one element, and its writing; returns the byte behind it. Limits: body INT32_MAX - 22 - 32767, properties
 * 32767. */
size_t cmq_wire_batch_element_bytes(const cmq_wire_batch_element *element);
uint8_t *cmq_wire_batch_write(uint8_t *into, const cmq_wire_batch_element *element);

#endif
