/* cmq_utf8: see cmq_utf8.h. */
#include "base/cmq_utf8.h"

/* The sequence that begins at at[0], of `left` bytes: its length when it is whole; else 0 and in *broken_out how many
 * bytes of it one U+FFFD stands for. The second byte's range depends on the first: no overlong forms, no surrogates,
 * nothing above U+10FFFF. */
static size_t sequence(const uint8_t *at, size_t left, size_t *broken_out)
{
    const uint8_t first = at[0];
    *broken_out = 1;
    if (first < 0x80) return 1;
    if (first < 0xC2 || first > 0xF4) return 0;
    const size_t bytes = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
    const uint8_t low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
    const uint8_t top = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
    if (left < 2 || at[1] < low || at[1] > top) return 0;
    for (size_t i = 2; i < bytes; i++) {
        *broken_out = i;
        if (i >= left || (at[i] & 0xC0) != 0x80) return 0;
    }
    return bytes;
}

bool cmq_utf8_is_valid(cmq_slice text)
{
    size_t at = 0, broken;
    while (at < text.bytes) {
        if (text.bytes - at >= 8 && cmq_utf8_is_ascii(text.data + at, 8)) {
            at += 8;
            continue;
        }
        const size_t bytes = sequence(text.data + at, text.bytes - at, &broken);
        if (bytes == 0) return false;
        at += bytes;
    }
    return true;
}

size_t cmq_utf8_mend(cmq_slice text, uint8_t *into)
{
    static const uint8_t replacement[3] = {0xEF, 0xBF, 0xBD};
    size_t used = 0;
    for (size_t at = 0; at < text.bytes;) {
        size_t broken;
        const size_t bytes = sequence(text.data + at, text.bytes - at, &broken);
        if (bytes > 0) {
            memcpy(into + used, text.data + at, bytes);
            used += bytes;
            at += bytes;
        } else {
            memcpy(into + used, replacement, sizeof replacement);
            used += sizeof replacement;
            at += broken;
        }
    }
    return used;
}
