/* cmq_crc32_x86: CRC-32 by carry-less multiplication, in 128-bit and in 512-bit registers.
 *
 * Invariant: no load leaves [data, data + bytes): short pieces are put together from overlapping loads inside the
 *            input, or loaded under a mask (a masked-out byte is not accessed).
 * Way:       bytes in front that are no whole block come first, moved to the end of a block: zeros before a message
 *            do not change a CRC whose start value has been xored into its first four bytes. Then whole blocks are
 *            folded on, the lanes folded into one, and 128 bits reduced to 32 with three multiplications.
 * Threads:   any; pure functions.
 * Source:    Gopal et al., "Fast CRC computation for generic polynomials using PCLMULQDQ", Intel 2009. K(n) below is
 *            x^n mod P, 32 bits reflected, shifted left by one. A fold over D bits multiplies the low half of a lane by
 *            K(D + 32) and the high half by K(D - 32); x is invertible mod P, so D = 0 has constants too. The last
 *            steps use floor(x^96 / P) (65 bits reflected, the lowest dropped: it cannot reach the quotient) and P.
 */
#include "base/cmq_crc32_variants.h"

#if defined(__x86_64__)

#include <immintrin.h>
#include <string.h>

#define FOLD_0 0x0b66b1fa6, 0x1db710640      /* high, low: the order of _mm_set_epi64x */
#define FOLD_128 0x0ccaa009e, 0x1751997d0
#define FOLD_256 0x15a546366, 0x0f1da05aa
#define FOLD_384 0x174359406, 0x03db1ecdc
#define FOLD_512 0x1c6e41596, 0x154442bd4
#define FOLD_2048 0x1322d1430, 0x11542778a
#define BARRETT 0x1db710640, (long long)0xb4e5b025f7011641

#define TARGET_128 __attribute__((target("pclmul,sse4.1")))
#define TARGET_512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512vbmi,pclmul,vpclmulqdq")))
#define INLINE_128 TARGET_128 __attribute__((always_inline)) static inline
#define INLINE_512 TARGET_512 __attribute__((always_inline)) static inline

static inline uint64_t load_64(const uint8_t *at)
{
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static inline uint32_t load_32(const uint8_t *at)
{
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

bool cmq_crc32_pclmul_usable(void) { return __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1"); }

bool cmq_crc32_vpclmul512_usable(void)
{
    return cmq_crc32_pclmul_usable() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vbmi") &&
           __builtin_cpu_supports("vpclmulqdq");
}

/* The register after the 16 bytes of `x`, start value already in. */
INLINE_128 uint32_t reduce_128(__m128i x)
{
    const __m128i barrett = _mm_set_epi64x(BARRETT);
    x = _mm_xor_si128(_mm_clmulepi64_si128(x, _mm_set_epi64x(FOLD_128), 0x10), _mm_srli_si128(x, 8));
    const __m128i quotient = _mm_clmulepi64_si128(x, barrett, 0x00);
    const __m128i product = _mm_clmulepi64_si128(quotient, barrett, 0x10);
    return (uint32_t)_mm_extract_epi32(_mm_xor_si128(product, x), 2);
}

INLINE_128 __m128i fold_128(__m128i x, __m128i constants)
{
    return _mm_xor_si128(_mm_clmulepi64_si128(x, constants, 0x00), _mm_clmulepi64_si128(x, constants, 0x11));
}

/* The register after fewer than 16 bytes: they become the end of one block, from two loads that overlap. */
INLINE_128 uint32_t reduce_short(uint32_t state, const uint8_t *at, size_t bytes)
{
    if (bytes < 4) {
        for (; bytes > 0; bytes--) state = cmq_crc32_step(state, *at++);
        return state;
    }
    if (bytes < 8) {
        const unsigned missing = 8 * (8 - (unsigned)bytes);
        const uint32_t first = load_32(at) ^ state;
        const uint32_t last = load_32(at + bytes - 4) ^ (uint32_t)((uint64_t)state >> (32 - missing));
        const uint64_t block = (uint64_t)last << 32 | (uint32_t)((uint64_t)first << missing);
        return reduce_128(_mm_set_epi64x((long long)block, 0));
    }
    const unsigned missing = 8 * (15 - (unsigned)bytes);   /* one byte less than there are, so that no shift is by 64 */
    const uint64_t first = load_64(at) ^ state;
    const uint64_t last = load_64(at + bytes - 8) ^ ((uint64_t)state >> (56 - missing));
    return reduce_128(_mm_set_epi64x((long long)last, (long long)(first << missing << 8)));
}

/* Row r moves the first r bytes of a register to its end and clears the rest. */
static const uint8_t move_to_end[32] = {
    0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80,
    0,    1,    2,    3,    4,    5,    6,    7,    8,    9,    10,   11,   12,   13,   14,   15,
};

TARGET_128 uint32_t cmq_crc32_pclmul(uint32_t crc, const void *data, size_t bytes)
{
    const uint8_t *at = data;
    uint32_t state = ~crc;
    if (bytes < 16) return ~reduce_short(state, at, bytes);

    const __m128i by_128 = _mm_set_epi64x(FOLD_128);
    const size_t front = bytes & 15;
    __m128i x = _mm_xor_si128(_mm_loadu_si128((const __m128i *)at), _mm_cvtsi32_si128((int)state));
    if (front != 0) {
        x = _mm_shuffle_epi8(x, _mm_loadu_si128((const __m128i *)(move_to_end + front)));
        const uint32_t carried = front < 4 ? state >> (8 * front) : 0;
        const __m128i next = _mm_loadu_si128((const __m128i *)(at + front));
        x = _mm_xor_si128(fold_128(x, by_128), _mm_xor_si128(next, _mm_cvtsi32_si128((int)carried)));
        at += front;
        bytes -= front;
    }
    at += 16;
    bytes -= 16;

    if (bytes >= 48 + 64) {
        const __m128i by_512 = _mm_set_epi64x(FOLD_512);
        __m128i x1 = _mm_loadu_si128((const __m128i *)at);
        __m128i x2 = _mm_loadu_si128((const __m128i *)(at + 16));
        __m128i x3 = _mm_loadu_si128((const __m128i *)(at + 32));
        for (at += 48, bytes -= 48; bytes >= 64; at += 64, bytes -= 64) {
            x = _mm_xor_si128(fold_128(x, by_512), _mm_loadu_si128((const __m128i *)at));
            x1 = _mm_xor_si128(fold_128(x1, by_512), _mm_loadu_si128((const __m128i *)(at + 16)));
            x2 = _mm_xor_si128(fold_128(x2, by_512), _mm_loadu_si128((const __m128i *)(at + 32)));
            x3 = _mm_xor_si128(fold_128(x3, by_512), _mm_loadu_si128((const __m128i *)(at + 48)));
        }
        x = _mm_xor_si128(fold_128(x, _mm_set_epi64x(FOLD_384)), fold_128(x1, _mm_set_epi64x(FOLD_256)));
        x = _mm_xor_si128(_mm_xor_si128(x, x3), fold_128(x2, by_128));
    }
    for (; bytes >= 16; at += 16, bytes -= 16)
        x = _mm_xor_si128(fold_128(x, by_128), _mm_loadu_si128((const __m128i *)at));
    return ~reduce_128(x);
}

/* fold_128 over four lanes, and the xor with what they are folded onto. */
INLINE_512 __m512i fold_512(__m512i x, __m512i constants, __m512i onto)
{
    return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(x, constants, 0x00),
                                     _mm512_clmulepi64_epi128(x, constants, 0x11), onto, 0x96);
}

/* The register after the 64 bytes of `x`: every lane moves to the place of the last at once. */
INLINE_512 uint32_t reduce_512(__m512i x)
{
    const __m512i to_last = _mm512_set_epi64(FOLD_0, FOLD_128, FOLD_256, FOLD_384);
    x = _mm512_xor_si512(_mm512_clmulepi64_epi128(x, to_last, 0x00), _mm512_clmulepi64_epi128(x, to_last, 0x11));
    const __m256i half = _mm256_xor_si256(_mm512_castsi512_si256(x), _mm512_extracti64x4_epi64(x, 1));
    return reduce_128(_mm_xor_si128(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1)));
}

/* The first `front` (1 to 63) bytes, start value in, moved to the end of a register. */
INLINE_512 __m512i load_front(const uint8_t *at, size_t front, __m512i start)
{
    static const uint8_t count_up[64] = {
        0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21,
        22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43,
        44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63,
    };
    const __mmask64 there = (UINT64_C(1) << front) - 1;
    const __m512i x = _mm512_xor_si512(_mm512_maskz_loadu_epi8(there, at), start);
    const __m512i from = _mm512_add_epi8(_mm512_loadu_si512(count_up), _mm512_set1_epi8((char)front));
    return _mm512_maskz_permutexvar_epi8(there << (64 - front), from, x);   /* vpermb reads indices modulo 64 */
}

TARGET_512 uint32_t cmq_crc32_vpclmul512(uint32_t crc, const void *data, size_t bytes)
{
    const uint8_t *at = data;
    uint32_t state = ~crc;
    if (bytes < 16) return ~reduce_short(state, at, bytes);

    const __m512i by_512 = _mm512_broadcast_i32x4(_mm_set_epi64x(FOLD_512));
    const size_t front = bytes & 63;
    __m512i start = _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)state));
    __m512i x;
    if (front != 0) {
        x = load_front(at, front, start);
        at += front;
        bytes -= front;
        if (bytes == 0) return ~reduce_512(x);
        start = _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)(front < 4 ? state >> (8 * front) : 0)));
        x = fold_512(x, by_512, _mm512_xor_si512(_mm512_loadu_si512(at), start));
    } else {
        x = _mm512_xor_si512(_mm512_loadu_si512(at), start);
    }
    at += 64;
    bytes -= 64;

    if (bytes >= 192 + 256) {
        const __m512i by_2048 = _mm512_broadcast_i32x4(_mm_set_epi64x(FOLD_2048));
        __m512i x1 = _mm512_loadu_si512(at), x2 = _mm512_loadu_si512(at + 64), x3 = _mm512_loadu_si512(at + 128);
        for (at += 192, bytes -= 192; bytes >= 256; at += 256, bytes -= 256) {
            x = fold_512(x, by_2048, _mm512_loadu_si512(at));
            x1 = fold_512(x1, by_2048, _mm512_loadu_si512(at + 64));
            x2 = fold_512(x2, by_2048, _mm512_loadu_si512(at + 128));
            x3 = fold_512(x3, by_2048, _mm512_loadu_si512(at + 192));
        }
        x = fold_512(fold_512(fold_512(x, by_512, x1), by_512, x2), by_512, x3);
    }
    for (; bytes != 0; at += 64, bytes -= 64) x = fold_512(x, by_512, _mm512_loadu_si512(at));
    return ~reduce_512(x);
}

#endif
