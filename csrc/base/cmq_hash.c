/* cmq_hash: Java's String.hashCode over UTF-8, and murmur3.
 *
 * Invariant: no byte outside [utf8, utf8 + bytes) is read, however the text ends.
 * Threads:   any; pure functions.
 * Source:    see cmq_hash.h. Lengths of malformed sequences as in the JDK's decoder: the longest part that could have
 *            begun a character, and three bytes for an encoded surrogate.
 */
#include "base/cmq_hash.h"

#include <stdbool.h>
#include <string.h>

/* 31^n modulo 2^32. */
#define POW_2 961u
#define POW_3 29791u
#define POW_4 923521u
#define POW_5 28629151u
#define POW_6 887503681u
#define POW_7 1742810335u
#define POW_8 2487512833u

#define REPLACEMENT 0xFFFDu

static inline bool continues(uint8_t byte) { return (byte & 0xC0) == 0x80; }

/* Whether `second` can follow the lead byte of a three- or four-byte character: no overlong form, nothing above
 * U+10FFFF. */
static inline bool may_follow(uint8_t lead, uint8_t second)
{
    if (lead == 0xE0) return second >= 0xA0 && second <= 0xBF;
    if (lead == 0xF0) return second >= 0x90 && second <= 0xBF;
    if (lead == 0xF4) return second >= 0x80 && second <= 0x8F;
    return continues(second);
}

/* The bytes that a lead byte asks for; 1 for a byte that can lead nothing. */
static inline size_t wanted_bytes(uint8_t lead)
{
    if (lead < 0xC2 || lead > 0xF4) return 1;
    return lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
}

/* Hash the character at at[0, left), of which the first byte is not ASCII; returns the bytes it took. */
static size_t hash_character(uint32_t *hash, const uint8_t *at, size_t left)
{
    const size_t wanted = wanted_bytes(at[0]);
    size_t whole = 1;   /* bytes that belong together so far */
    uint32_t point = at[0] & (0xFFu >> (wanted + 1));
    while (whole < wanted && whole < left && (whole == 1 ? may_follow(at[0], at[1]) : continues(at[whole]))) {
        point = point << 6 | (at[whole] & 0x3Fu);
        whole++;
    }
    if (whole < wanted || wanted == 1 || (point >= 0xD800 && point <= 0xDFFF)) {
        *hash = *hash * 31 + REPLACEMENT;
    } else if (point < 0x10000) {
        *hash = *hash * 31 + point;
    } else {
        *hash = *hash * 31 + (0xD7C0u + (point >> 10));
        *hash = *hash * 31 + (0xDC00u | (point & 0x3FFu));
    }
    return whole;
}

uint32_t cmq_jhash_extend(uint32_t hash, const uint8_t *utf8, size_t bytes)
{
    const uint8_t *at = utf8;
    while (bytes > 0) {
        uint64_t word;
        for (; bytes >= 8; bytes -= 8, at += 8) {
            memcpy(&word, at, sizeof word);
            if (word & UINT64_C(0x8080808080808080)) break;
            hash = hash * POW_8 + at[0] * POW_7 + at[1] * POW_6 + at[2] * POW_5 + at[3] * POW_4 + at[4] * POW_3 +
                   at[5] * POW_2 + at[6] * 31u + at[7];
        }
        uint32_t half;
        if (bytes >= 4 && (memcpy(&half, at, sizeof half), (half & 0x80808080u) == 0)) {
            hash = hash * POW_4 + at[0] * POW_3 + at[1] * POW_2 + at[2] * 31u + at[3];
            bytes -= 4;
            at += 4;
        }
        for (; bytes > 0 && at[0] < 0x80; bytes--, at++) hash = hash * 31 + at[0];
        if (bytes > 0) {
            const size_t used = hash_character(&hash, at, bytes);
            at += used;
            bytes -= used;
        }
    }
    return hash;
}

static inline uint64_t rotate_left(uint64_t value, unsigned bits) { return value << bits | value >> (64 - bits); }

static inline uint64_t load_little_64(const uint8_t *at)
{
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static inline uint64_t murmur_finish(uint64_t value)
{
    value ^= value >> 33;
    value *= UINT64_C(0xff51afd7ed558ccd);
    value ^= value >> 33;
    value *= UINT64_C(0xc4ceb9fe1a85ec53);
    return value ^ value >> 33;
}

static inline uint64_t murmur_mix_1(uint64_t k)
{
    return rotate_left(k * UINT64_C(0x87c37b91114253d5), 31) * UINT64_C(0x4cf5ad432745937f);
}

static inline uint64_t murmur_mix_2(uint64_t k)
{
    return rotate_left(k * UINT64_C(0x4cf5ad432745937f), 33) * UINT64_C(0x87c37b91114253d5);
}

uint64_t cmq_murmur3_low64(const void *data, size_t bytes)
{
    const uint8_t *at = data;
    uint64_t h1 = 0, h2 = 0;
    size_t left = bytes;
    for (; left >= 16; left -= 16, at += 16) {
        h1 ^= murmur_mix_1(load_little_64(at));
        h1 = (rotate_left(h1, 27) + h2) * 5 + 0x52dce729;
        h2 ^= murmur_mix_2(load_little_64(at + 8));
        h2 = (rotate_left(h2, 31) + h1) * 5 + 0x38495ab5;
    }
    if (left > 0) {
        uint8_t tail[16] = {0};
        memcpy(tail, at, left);
        h1 ^= murmur_mix_1(load_little_64(tail));
        h2 ^= murmur_mix_2(load_little_64(tail + 8));
    }
    h1 ^= bytes;
    h2 ^= bytes;
    h1 += h2;
    h2 += h1;
    return murmur_finish(h1) + murmur_finish(h2);
}
