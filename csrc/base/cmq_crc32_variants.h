/* cmq_crc32_variants: declarations private to the files of cmq_crc32.
 *
 * Invariant: a *_usable function answers for the running machine; a variant is called only when it returned true.
 * Way:       cmq_crc32.c (choice, portable) -> [this] -> cmq_crc32_x86.c, cmq_crc32_arm64.c
 */
#ifndef CMQ_CRC32_VARIANTS_H
#define CMQ_CRC32_VARIANTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Entry [i] of slice [s] is the register after byte i and then s zero bytes. */
extern const uint32_t cmq_crc32_slices[8][256];

/* One byte more into the inverted register. */
static inline uint32_t cmq_crc32_step(uint32_t state, uint8_t byte)
{
    return (state >> 8) ^ cmq_crc32_slices[0][(state ^ byte) & 0xFFu];
}

#if defined(__x86_64__)
bool cmq_crc32_pclmul_usable(void);
uint32_t cmq_crc32_pclmul(uint32_t crc, const void *data, size_t bytes);
bool cmq_crc32_vpclmul512_usable(void);
uint32_t cmq_crc32_vpclmul512(uint32_t crc, const void *data, size_t bytes);
#endif

#if defined(__aarch64__)
bool cmq_crc32_arm64_usable(void);
uint32_t cmq_crc32_arm64(uint32_t crc, const void *data, size_t bytes);
#endif

#endif
