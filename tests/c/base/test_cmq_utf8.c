/* Tests csrc/base/cmq_utf8.c: the examples of the Unicode standard, every sequence of two bytes, and random bytes
 * against a decoder written the other way round (from code points). */
#include <stdlib.h>
#include <string.h>

#include "base/cmq_utf8.h"
#include "support/cmq_test.h"

#define R "\xEF\xBF\xBD"

static void check(const char *bytes, size_t count, const char *mended)
{
    uint8_t into[256];
    const cmq_slice text = {.data = (const uint8_t *)bytes, .bytes = count};
    const size_t used = cmq_utf8_mend(text, into);
    CHECK_BYTES(into, used, mended, strlen(mended));
    CHECK(used <= cmq_utf8_mended_max(count));
    CHECK(cmq_utf8_is_valid(text) == (used == count && memcmp(into, bytes, count) == 0));
}

#define CHECK_MENDED(bytes, mended) check(bytes, sizeof(bytes) - 1, mended)

static void texts(void)
{
    CHECK_MENDED("", "");
    CHECK_MENDED("plain text of some length", "plain text of some length");
    CHECK_MENDED("gr\xC3\xBC\xC3\x9F", "gr\xC3\xBC\xC3\x9F");
    CHECK_MENDED("\xE4\xB8\xAD\xE6\x96\x87 \xF0\x9F\x98\x80", "\xE4\xB8\xAD\xE6\x96\x87 \xF0\x9F\x98\x80");
    /* around the surrogates; the last */
    CHECK_MENDED("\xED\x9F\xBF\xEE\x80\x80\xF4\x8F\xBF\xBF", "\xED\x9F\xBF\xEE\x80\x80\xF4\x8F\xBF\xBF");
}

/* The standard's tables 3-8 to 3-11. */
static void broken_texts(void)
{
    CHECK_MENDED("a\x80" "b", "a" R "b");
    CHECK_MENDED("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41", R R R R R R R R "A");
    CHECK_MENDED("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41", R R R R R R R R "A");
    CHECK_MENDED("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42", R R R R R "A" R R "B");
    CHECK_MENDED("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41", R R R R "A");
    CHECK_MENDED("\xC3", R);
    CHECK_MENDED("\xE4\xB8", R);
    CHECK_MENDED("\xF0\x9F\x98", R);
    CHECK_MENDED("12345678\xC3", "12345678" R);
}

/* Take a whole code point by its bits alone, then ask whether it may be written so. 0: none. */
static size_t plain_sequence(const uint8_t *at, size_t left)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    const size_t bytes = at[0] < 0x80             ? 1
                         : (at[0] & 0xE0) == 0xC0 ? 2
                         : (at[0] & 0xF0) == 0xE0 ? 3
                         : (at[0] & 0xF8) == 0xF0 ? 4
                                                  : 0;
    if (bytes <= 1) return bytes;
    if (bytes > left) return 0;
    uint32_t point = at[0] & (0xFFu >> (bytes + 1));
    for (size_t i = 1; i < bytes; i++) {
        if ((at[i] & 0xC0) != 0x80) return 0;
        point = point << 6 | (at[i] & 0x3Fu);
    }
    return point < least[bytes] || point > 0x10FFFF || (point >= 0xD800 && point <= 0xDFFF) ? 0 : bytes;
}

static bool plainly_valid(const uint8_t *at, size_t bytes)
{
    while (bytes > 0) {
        const size_t taken = plain_sequence(at, bytes);
        if (taken == 0) return false;
        at += taken;
        bytes -= taken;
    }
    return true;
}

static void random_bytes(void)
{
    static const uint8_t edges[] = {0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC2,
                                    0xDF, 0xE0, 0xE1, 0xED, 0xEF, 0xF0, 0xF1, 0xF4, 0xF5, 0xFF};
    for (uint32_t i = 0; i < 300000; i++) {
        /* Sized to the byte, so that a load behind the end is found. */
        const size_t bytes = 1 + cmq_test_random_below(12);
        uint8_t *text = malloc(bytes), *mended = malloc(cmq_utf8_mended_max(bytes));
        CHECK(text != NULL && mended != NULL);
        for (size_t at = 0; at < bytes; at++) text[at] = edges[cmq_test_random_below(sizeof edges)];
        const cmq_slice slice = {.data = text, .bytes = bytes};
        const bool valid = plainly_valid(text, bytes);
        CHECK(cmq_utf8_is_valid(slice) == valid);
        const size_t used = cmq_utf8_mend(slice, mended);
        CHECK(plainly_valid(mended, used));
        CHECK(!valid || (used == bytes && memcmp(text, mended, bytes) == 0));
        bool ascii = true;
        for (size_t at = 0; at < bytes; at++) ascii = ascii && text[at] < 0x80;
        CHECK(cmq_utf8_is_ascii(text, bytes) == ascii);
        free(text);
        free(mended);
    }
}

CMQ_TEST_MAIN(CMQ_TEST(texts), CMQ_TEST(broken_texts), CMQ_TEST(random_bytes))
