/* cmq_utf8: is this UTF-8, and what does it become when it must be?
 *
 * Invariant: cmq_utf8_mend writes UTF-8, byte for byte as Python's bytes.decode("utf-8", "replace").encode() does: each
 *            maximal part of a broken sequence becomes one U+FFFD (Unicode, chapter 3, "U+FFFD Substitution of Maximal
 *            Subparts").
 * Way:       bytes of the log -> [cmq_utf8] -> columns of text
 * Threads:   any; pure functions.
 */
#ifndef CMQ_UTF8_H
#define CMQ_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cmq_bytes.h"

/* Are all bytes below 0x80? Most texts of a log are short and ASCII. */
static inline bool cmq_utf8_is_ascii(const uint8_t *at, size_t bytes)
{
    const uint64_t high = UINT64_C(0x8080808080808080);
    uint64_t word, seen = 0;
    if (bytes < 8) {
        for (size_t i = 0; i < bytes; i++) seen |= at[i];
        return (seen & 0x80) == 0;
    }
    for (size_t i = 0; i + 8 <= bytes; i += 8) {
        memcpy(&word, at + i, sizeof word);
        seen |= word;
    }
    memcpy(&word, at + bytes - 8, sizeof word);
    return ((seen | word) & high) == 0;
}

bool cmq_utf8_is_valid(cmq_slice text);

/* The most that mending makes of so many bytes: each may be a broken sequence of its own. */
static inline size_t cmq_utf8_mended_max(size_t bytes) { return 3 * bytes; }

/* Write the mended text; returns its length. `into` has room for cmq_utf8_mended_max. */
size_t cmq_utf8_mend(cmq_slice text, uint8_t *into);

#endif
