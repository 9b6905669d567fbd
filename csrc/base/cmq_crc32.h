/* cmq_crc32: the CRC-32 of zlib and of java.util.zip, as fast as the machine allows.
 *
 * Owns:      nothing but the choice of the variant, made once per process at the first call.
 * Invariant: every variant gives the same value for every input; none reads a byte outside [data, data + bytes).
 * Threads:   any. The choice is an atomic pointer; two first calls at once both choose the same variant.
 * Source:    polynomial 0x04C11DB7 (reflected 0xEDB88320), start and final value inverted, as zlib's crc32().
 */
#ifndef CMQ_CRC32_H
#define CMQ_CRC32_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* zlib's crc32(crc, data, bytes): goes on from `crc`, the value over the bytes before; 0 starts. `data` may be NULL
 * when `bytes` is 0. */
uint32_t cmq_crc32_extend(uint32_t crc, const void *data, size_t bytes);

/* zlib's crc32 of one piece of memory. */
static inline uint32_t cmq_crc32(const void *data, size_t bytes) { return cmq_crc32_extend(0, data, bytes); }

/* The CRC as a record holds it: without its sign bit, so that Java never reads a negative number. 0 for no bytes. */
static inline uint32_t cmq_crc31(const void *data, size_t bytes)
{
    return cmq_crc32_extend(0, data, bytes) & 0x7FFFFFFFu;
}

/* One way of computing it; for tests, benchmarks and `cometmq` diagnostics. */
typedef struct cmq_crc32_variant {
    const char *name;                                              /* "portable", "pclmul", "vpclmul512", "arm64" */
    uint32_t (*extend)(uint32_t crc, const void *data, size_t bytes);
    bool (*usable)(void);                                          /* whether this machine can run it */
} cmq_crc32_variant;

/* Every variant compiled in, slowest first; the last usable one is what cmq_crc32 runs. Static. */
const cmq_crc32_variant *cmq_crc32_variants(size_t *count_out);

/* The name of the variant in use; static. */
const char *cmq_crc32_variant_name(void);

#endif
