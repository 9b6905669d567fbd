/* cmq_crc32_arm64: CRC-32 with the crc32 instructions of ARMv8, which have zlib's polynomial.
 *
 * Threads: any; pure functions.
 * Source:  Arm Architecture Reference Manual, CRC32X and CRC32B; Linux HWCAP_CRC32.
 */
#include "base/cmq_crc32_variants.h"

#if defined(__aarch64__)

#include <string.h>
#include <sys/auxv.h>

#define HWCAP_BIT_CRC32 (1ul << 7)   /* asm/hwcap.h of Linux arm64; the same on every kernel */

#if defined(__clang__)
#define CRC_TARGET __attribute__((target("crc")))
#else
#define CRC_TARGET __attribute__((target("+crc")))
#endif

bool cmq_crc32_arm64_usable(void) { return (getauxval(AT_HWCAP) & HWCAP_BIT_CRC32) != 0; }

CRC_TARGET static inline uint32_t step_8(uint32_t state, const uint8_t *at)
{
    uint64_t word;
    memcpy(&word, at, sizeof word);
    __asm__("crc32x %w0, %w0, %x1" : "+r"(state) : "r"(word));
    return state;
}

CRC_TARGET uint32_t cmq_crc32_arm64(uint32_t crc, const void *data, size_t bytes)
{
    const uint8_t *at = data;
    uint32_t state = ~crc;
    for (; bytes >= 32; bytes -= 32, at += 32) {
        state = step_8(state, at);
        state = step_8(state, at + 8);
        state = step_8(state, at + 16);
        state = step_8(state, at + 24);
    }
    for (; bytes >= 8; bytes -= 8, at += 8) state = step_8(state, at);
    for (; bytes > 0; bytes--) __asm__("crc32b %w0, %w0, %w1" : "+r"(state) : "r"((uint32_t)*at++));
    return ~state;
}

#endif
