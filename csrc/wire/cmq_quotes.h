/* cmq_quotes: where the quotes and backslashes of a text are, 64 bytes at a time.
 *
 * A JSON header is mostly short strings, so what costs in reading it is to find their ends. One look at a block gives a
 * bit per byte; every string that ends in the block is then found by counting zeros.
 *
 * Invariant: cmq_quotes_next gives the first `"` or `\` at or behind `from`, else the end; not a byte outside the text
 *            is read. Both ways of looking at a block give the same bits.
 * Way:       header of a frame -> [cmq_quotes] -> strings of cmq_command_json
 * Threads:   any; state of the caller over borrowed bytes.
 * Source:    measurements in native.md, section 4.
 */
#ifndef CMQ_QUOTES_H
#define CMQ_QUOTES_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#define CMQ_QUOTES_BLOCK_BYTES 64

/* Bit i: block[i] is a quote or a backslash. Words of eight bytes, with exact detection of zero bytes. */
static inline uint64_t cmq_quotes_mask_portable(const uint8_t *block)
{
    const uint64_t ones = UINT64_C(0x0101010101010101), low = UINT64_C(0x7F7F7F7F7F7F7F7F);
    uint64_t mask = 0;
    for (unsigned i = 0; i < CMQ_QUOTES_BLOCK_BYTES / 8; i++) {
        uint64_t word;
        memcpy(&word, block + 8 * i, sizeof word);
        const uint64_t quote = word ^ ones * '"', backslash = word ^ ones * '\\';
        const uint64_t others = (((quote & low) + low) | quote) & (((backslash & low) + low) | backslash);
        /* 1 in each byte that is one of the two */
        const uint64_t found = ~(others | low) >> 7;
        mask |= (found * UINT64_C(0x0102040810204080) >> 56) << 8 * i;             /* byte i becomes bit i */
    }
    return mask;
}

#if defined(__SSE2__)
static inline uint64_t cmq_quotes_mask16_sse2(const uint8_t *at)
{
    const __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)at);
    const __m128i found =
        _mm_or_si128(_mm_cmpeq_epi8(bytes, _mm_set1_epi8('"')), _mm_cmpeq_epi8(bytes, _mm_set1_epi8('\\')));
    return (uint64_t)(uint32_t)_mm_movemask_epi8(found);
}

static inline uint64_t cmq_quotes_mask_sse2(const uint8_t *block)
{
    return cmq_quotes_mask16_sse2(block) | cmq_quotes_mask16_sse2(block + 16) << 16 |
           cmq_quotes_mask16_sse2(block + 32) << 32 | cmq_quotes_mask16_sse2(block + 48) << 48;
}
#endif

static inline uint64_t cmq_quotes_mask(const uint8_t *block)
{
#if defined(__SSE2__)
    return cmq_quotes_mask_sse2(block);
#else
    return cmq_quotes_mask_portable(block);
#endif
}

typedef struct cmq_quotes {
    const uint8_t *begin, *end;
    const uint8_t *block;   /* the block that was looked at last, anywhere in the text */
    uint64_t mask;          /* its bits; none for bytes behind the end */
} cmq_quotes;

/* Look at the block that begins at `from`. The last, short one is read as the tail of the 64 bytes that end the
 * text. */
static inline void cmq_quotes_look(cmq_quotes *quotes, const uint8_t *from)
{
    quotes->block = from;
    const size_t left = (size_t)(quotes->end - quotes->block);
    if (left >= CMQ_QUOTES_BLOCK_BYTES) {
        quotes->mask = cmq_quotes_mask(quotes->block);
    } else if (left > 0 && quotes->end - quotes->begin >= CMQ_QUOTES_BLOCK_BYTES) {
        quotes->mask = cmq_quotes_mask(quotes->end - CMQ_QUOTES_BLOCK_BYTES) >> (CMQ_QUOTES_BLOCK_BYTES - left);
    } else {
        uint8_t copy[CMQ_QUOTES_BLOCK_BYTES] = {0};
        if (left > 0) memcpy(copy, quotes->block, left);
        quotes->mask = cmq_quotes_mask(copy);
    }
}

static inline void cmq_quotes_begin(cmq_quotes *quotes, const uint8_t *text, size_t bytes)
{
    *quotes = (cmq_quotes){.begin = text, .end = text + bytes};
    cmq_quotes_look(quotes, text);
}

/* The bits of what is known from `from` on, bit 0 its own; none when nothing is. `from` is never before that of an
 * earlier call. */
static inline uint64_t cmq_quotes_known(const cmq_quotes *quotes, const uint8_t *from)
{
    const size_t at = (size_t)(from - quotes->block);
    return at < CMQ_QUOTES_BLOCK_BYTES ? quotes->mask >> at : 0;
}

/* The first quote or backslash at or behind `from`, as above; the end when there is none. */
static inline const uint8_t *cmq_quotes_next(cmq_quotes *quotes, const uint8_t *from)
{
    while (from < quotes->end) {
        const uint64_t known = cmq_quotes_known(quotes, from);
        if (known != 0) return from + __builtin_ctzll(known);
        const size_t at = (size_t)(from - quotes->block);
        if (at < CMQ_QUOTES_BLOCK_BYTES) {
            if (quotes->end - quotes->block <= CMQ_QUOTES_BLOCK_BYTES) return quotes->end;
            from = quotes->block + CMQ_QUOTES_BLOCK_BYTES;
        }
        cmq_quotes_look(quotes, from);
    }
    return quotes->end;
}

#endif
