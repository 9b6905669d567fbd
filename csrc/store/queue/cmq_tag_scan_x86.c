/* cmq_tag_scan_x86: the tag scan in 128-, 256- and 512-bit registers.
 *
 * Invariant: a block is as many units as a register has words; its five loads read its bytes and no more. Units behind
 *            the last whole block go to the portable loop.
 * Way:       a unit is five words, and five has no divisor in common with 4, 8 or 16: the tag words of a block stand
 *            in that many different lanes of its five loads, so blends bring them together where a gather would read
 *            them one by one. They come in a turned order, which matters only in a block that has a match. Hashes are
 *            compared as they lie in memory, big-endian.
 * Threads:   any; pure functions.
 * Source:    measurements in the shared native.md, section 3.
 */
#include "store/queue/cmq_tag_scan_variants.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define TARGET_AVX2 __attribute__((target("avx2")))
#define TARGET_AVX512 __attribute__((target("avx512f,avx512bw,popcnt")))

enum { WORD_SIZE = CMQ_TAGSCAN_AT_SIZE / 4, WORD_TAG = CMQ_TAGSCAN_AT_CODE_LOW / 4 };

/* Lanes of load `load` that hold word `word` of some unit, where registers have `lanes` words. */
#define LANE_OF_UNIT(lanes, load, word, unit)                                                               \
    ((5 * (unit) + (word)) / (lanes) == (load) && (unit) < (lanes) ? 1 << (5 * (unit) + (word)) % (lanes) : 0)
#define LANES_OF_4(lanes, load, word, unit)                                                                 \
    (LANE_OF_UNIT(lanes, load, word, unit) | LANE_OF_UNIT(lanes, load, word, (unit) + 1) |                  \
     LANE_OF_UNIT(lanes, load, word, (unit) + 2) | LANE_OF_UNIT(lanes, load, word, (unit) + 3))
#define LANES_OF(lanes, load, word)                                                                         \
    (LANES_OF_4(lanes, load, word, 0) | LANES_OF_4(lanes, load, word, 4) | LANES_OF_4(lanes, load, word, 8) | \
     LANES_OF_4(lanes, load, word, 12))

_Static_assert((LANES_OF(4, 0, WORD_TAG) | LANES_OF(4, 1, WORD_TAG) | LANES_OF(4, 2, WORD_TAG) |
                LANES_OF(4, 3, WORD_TAG) | LANES_OF(4, 4, WORD_TAG)) == 0xF, "four tags take four lanes");
_Static_assert((LANES_OF(8, 0, WORD_TAG) | LANES_OF(8, 1, WORD_TAG) | LANES_OF(8, 2, WORD_TAG) |
                LANES_OF(8, 3, WORD_TAG) | LANES_OF(8, 4, WORD_TAG)) == 0xFF, "eight tags take eight lanes");

/* Write the used units among `matching` (bit i: unit first + i); returns the new number of matches. */
static inline size_t put_matches(const uint8_t *units, size_t first, unsigned matching, uint32_t *matches_out,
                                 size_t found)
{
    for (; matching != 0; matching &= matching - 1) {
        const size_t unit = first + (unsigned)__builtin_ctz(matching);
        matches_out[found] = (uint32_t)unit;
        found += cmq_tag_scan_unit_is_used(units + unit * CMQ_TAGSCAN_UNIT_BYTES);
    }
    return found;
}

/* The units behind the last whole block. */
static size_t scan_rest(const uint8_t *units, size_t first, size_t count, const uint32_t *hashes, size_t hash_count,
                        uint32_t *matches_out, size_t found)
{
    if (first == count) return found;
    const size_t more = cmq_tag_scan_portable(units + first * CMQ_TAGSCAN_UNIT_BYTES, count - first, hashes, hash_count,
                                             0, matches_out + found);
    for (size_t i = 0; i < more; i++) matches_out[found + i] += (uint32_t)first;
    return found + more;
}

static inline bool is_for_vectors(size_t hash_count, unsigned flags)
{
    return hash_count >= 1 && hash_count <= CMQ_TAGSCAN_VECTOR_HASHES_MAX && flags == 0;
}

static inline int32_t as_stored(uint32_t hash) { return (int32_t)__builtin_bswap32(hash); }

/* The tag words of four units, in order: the lanes of WORD_TAG are 0 of load 1, 1 of load 2, 2 of load 3, 3 of load
 * 4. */
static inline __m128i tags_of_4(const uint8_t *at)
{
    const __m128i *loads = (const __m128i *)at;
    const __m128 low = _mm_move_ss(_mm_castsi128_ps(_mm_loadu_si128(loads + 2)),
                                   _mm_castsi128_ps(_mm_loadu_si128(loads + 1)));
    const __m128 high = _mm_castsi128_ps(_mm_unpackhi_epi32(_mm_loadu_si128(loads + 3), _mm_loadu_si128(loads + 4)));
    return _mm_castps_si128(_mm_shuffle_ps(low, high, _MM_SHUFFLE(3, 0, 1, 0)));
}

static inline int matches_of_4(__m128i tags, const __m128i *wanted, size_t wanted_count)
{
    __m128i equal = _mm_cmpeq_epi32(tags, wanted[0]);
    for (size_t i = 1; i < wanted_count; i++) equal = _mm_or_si128(equal, _mm_cmpeq_epi32(tags, wanted[i]));
    return _mm_movemask_ps(_mm_castsi128_ps(equal));
}

size_t cmq_tag_scan_sse2(const uint8_t *units, size_t count, const uint32_t *hashes, size_t hash_count, unsigned flags,
                        uint32_t *matches_out)
{
    if (!is_for_vectors(hash_count, flags))
        return cmq_tag_scan_portable(units, count, hashes, hash_count, flags, matches_out);
    __m128i wanted[CMQ_TAGSCAN_VECTOR_HASHES_MAX];
    for (size_t i = 0; i < hash_count; i++) wanted[i] = _mm_set1_epi32(as_stored(hashes[i]));
    size_t found = 0, first = 0;
    for (; count - first >= 8; first += 8) {
        const uint8_t *at = units + first * CMQ_TAGSCAN_UNIT_BYTES;
        const int low = matches_of_4(tags_of_4(at), wanted, hash_count);
        const int high = matches_of_4(tags_of_4(at + 4 * CMQ_TAGSCAN_UNIT_BYTES), wanted, hash_count);
        found = put_matches(units, first, (unsigned)(low | high << 4), matches_out, found);
    }
    return scan_rest(units, first, count, hashes, hash_count, matches_out, found);
}

bool cmq_tag_scan_avx2_usable(void) { return __builtin_cpu_supports("avx2") != 0; }

#define BLEND_8(x, loads, load) \
    _mm256_blend_epi32(x, _mm256_loadu_si256((loads) + (load)), LANES_OF(8, load, WORD_TAG))

TARGET_AVX2 size_t cmq_tag_scan_avx2(const uint8_t *units, size_t count, const uint32_t *hashes, size_t hash_count,
                                    unsigned flags, uint32_t *matches_out)
{
    if (!is_for_vectors(hash_count, flags))
        return cmq_tag_scan_portable(units, count, hashes, hash_count, flags, matches_out);
    __m256i wanted[CMQ_TAGSCAN_VECTOR_HASHES_MAX];
    for (size_t i = 0; i < hash_count; i++) wanted[i] = _mm256_set1_epi32(as_stored(hashes[i]));
    const __m256i in_order = _mm256_setr_epi32(4, 1, 6, 3, 0, 5, 2, 7);   /* (5 * unit + WORD_TAG) modulo 8 */
    size_t found = 0, first = 0;
    for (; count - first >= 8; first += 8) {
        const __m256i *loads = (const __m256i *)(units + first * CMQ_TAGSCAN_UNIT_BYTES);
        __m256i tags = _mm256_loadu_si256(loads);
        tags = BLEND_8(tags, loads, 1);
        tags = BLEND_8(tags, loads, 2);
        tags = BLEND_8(tags, loads, 3);
        tags = BLEND_8(tags, loads, 4);
        __m256i equal = _mm256_cmpeq_epi32(tags, wanted[0]);
        for (size_t i = 1; i < hash_count; i++) equal = _mm256_or_si256(equal, _mm256_cmpeq_epi32(tags, wanted[i]));
        if (_mm256_testz_si256(equal, equal)) continue;
        const __m256i ordered = _mm256_permutevar8x32_epi32(equal, in_order);
        const int matching = _mm256_movemask_ps(_mm256_castsi256_ps(ordered));
        found = put_matches(units, first, (unsigned)matching, matches_out, found);
    }
    return scan_rest(units, first, count, hashes, hash_count, matches_out, found);
}

bool cmq_tag_scan_avx512_usable(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("popcnt");
}

/* Word `word` of sixteen units, turned: a masked load merges the lanes that hold one. */
#define MERGE_16(x, at, load, word) \
    _mm512_mask_loadu_epi32(x, (__mmask16)LANES_OF(16, load, word), (at) + 64 * (load))
#define WORDS_OF_16(at, word) \
    MERGE_16(MERGE_16(MERGE_16(MERGE_16(_mm512_loadu_si512(at), at, 1, word), at, 2, word), at, 3, word), at, 4, word)

TARGET_AVX512 static inline __mmask16 matches_of_16(__m512i tags, const uint32_t *stored, size_t count)
{
    __mmask16 matching = _mm512_cmpeq_epi32_mask(tags, _mm512_set1_epi32((int32_t)stored[0]));
    for (size_t i = 1; i < count; i++)
        matching = (__mmask16)(matching | _mm512_cmpeq_epi32_mask(tags, _mm512_set1_epi32((int32_t)stored[i])));
    return matching;
}

/* Reverse the bytes of each word: big-endian sizes become numbers. */
TARGET_AVX512 static inline __m512i reverse_words(__m512i words)
{
    const __m128i reversed = _mm_setr_epi8(3, 2, 1, 0, 7, 6, 5, 4, 11, 10, 9, 8, 15, 14, 13, 12);
    return _mm512_shuffle_epi8(words, _mm512_broadcast_i32x4(reversed));
}

/* Which of sixteen units, in order, are used: size - 1 below 0x7FFFFFFE. */
TARGET_AVX512 static inline __mmask16 used_of_16(const uint8_t *at)
{
    const __m512i in_order = _mm512_setr_epi32(2, 7, 12, 1, 6, 11, 0, 5, 10, 15, 4, 9, 14, 3, 8, 13);
    const __m512i sizes = _mm512_permutexvar_epi32(in_order, reverse_words(WORDS_OF_16(at, WORD_SIZE)));
    return _mm512_cmplt_epu32_mask(_mm512_sub_epi32(sizes, _mm512_set1_epi32(1)), _mm512_set1_epi32(0x7FFFFFFE));
}

TARGET_AVX512 __attribute__((always_inline)) static inline size_t scan_16(const uint8_t *units, size_t blocks,
                                                                          const uint32_t *stored, size_t count,
                                                                          uint32_t *matches_out)
{
    const __m512i in_order = _mm512_setr_epi32(4, 9, 14, 3, 8, 13, 2, 7, 12, 1, 6, 11, 0, 5, 10, 15);
    __m512i ordinals = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    size_t found = 0;
    for (size_t i = 0; i < blocks; i++, units += 16 * CMQ_TAGSCAN_UNIT_BYTES) {
        const __m512i tags = WORDS_OF_16(units, WORD_TAG);
        if (matches_of_16(tags, stored, count) != 0) {
            const __mmask16 matching = matches_of_16(_mm512_permutexvar_epi32(in_order, tags), stored, count);
            const __mmask16 put = (__mmask16)(matching & used_of_16(units));
            /* A whole register may be stored: found is at most 16 * i, and 16 * i + 16 entries there are. */
            _mm512_storeu_si512(matches_out + found, _mm512_maskz_compress_epi32(put, ordinals));
            found += (size_t)__builtin_popcount(put);
        }
        ordinals = _mm512_add_epi32(ordinals, _mm512_set1_epi32(16));
    }
    return found;
}

TARGET_AVX512 size_t cmq_tag_scan_avx512(const uint8_t *units, size_t count, const uint32_t *hashes, size_t hash_count,
                                        unsigned flags, uint32_t *matches_out)
{
    if (!is_for_vectors(hash_count, flags))
        return cmq_tag_scan_portable(units, count, hashes, hash_count, flags, matches_out);
    uint32_t stored[CMQ_TAGSCAN_VECTOR_HASHES_MAX];
    for (size_t i = 0; i < hash_count; i++) stored[i] = __builtin_bswap32(hashes[i]);
    /* Counts with a loop of their own keep their hashes in registers; three are four with one twice. */
    if (hash_count == 3) stored[3] = stored[2];
    const size_t blocks = count / 16;
    const size_t found = hash_count == 1   ? scan_16(units, blocks, stored, 1, matches_out)
                         : hash_count == 2 ? scan_16(units, blocks, stored, 2, matches_out)
                         : hash_count <= 4 ? scan_16(units, blocks, stored, 4, matches_out)
                                           : scan_16(units, blocks, stored, hash_count, matches_out);
    return scan_rest(units, blocks * 16, count, hashes, hash_count, matches_out, found);
}

#endif
