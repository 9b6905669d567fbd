/* cmq_load_body: bodies that say who sent them, which one they are and when they went out, and that show any change.
 *
 *      0  4  magic "CMQL"        8  8  run              24  8  sequence, of the producer, from 0
 *      4  4  CRC-32 of the rest  16 8  producer         32  8  when it went out, monotonic clock, ns
 *     40     filler: the bytes of a pool from a place that the sequence chooses
 *
 * Invariant: cmq_load_body_read accepts every body that cmq_load_body_write wrote, and rejects it with one bit changed.
 * Threads:   any; the pool is written once, by cmq_load_pool_fill.
 */
#ifndef CMQ_LOAD_BODY_H
#define CMQ_LOAD_BODY_H

#include <stdint.h>

#include "base/cmq_bytes.h"
#include "base/cmq_status.h"

#define CMQ_LOAD_BODY_BYTES_MIN 40u
#define CMQ_LOAD_BODY_BYTES_MAX (4u << 20)   /* upstream's maxMessageSize */
#define CMQ_LOAD_POOL_BYTES ((size_t)2 * CMQ_LOAD_BODY_BYTES_MAX)

typedef struct cmq_load_body {
    uint64_t run;
    uint64_t producer;
    uint64_t sequence;
    int64_t sent_ns;
} cmq_load_body;

/* Bytes that do not compress, the same in every process. */
void cmq_load_pool_fill(uint8_t pool[CMQ_LOAD_POOL_BYTES]);

/* Write a body of `bytes`, from CMQ_LOAD_BODY_BYTES_MIN to CMQ_LOAD_BODY_BYTES_MAX. */
void cmq_load_body_write(uint8_t *into, uint32_t bytes, const cmq_load_body *body, const uint8_t *pool);

/* CMQ_ERR_CORRUPT, with a text, for bytes that cmq_load_body_write did not write. */
CMQ_MUST_CHECK cmq_status cmq_load_body_read(cmq_slice bytes, cmq_load_body *body_out);

#endif
