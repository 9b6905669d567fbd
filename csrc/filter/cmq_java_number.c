/* cmq_java_number: see cmq_java_number.h.
 *
 * A decimal number of up to 15 digits with a small exponent is exact by one multiplication or division. Others are
 * written without a decimal point and read by strtod, which rounds correctly and then knows no locale.
 */
#include "filter/cmq_java_number.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define DIGITS_MAX 800u            /* more decide nothing but whether anything but zeros follows */
#define EXACT_DIGITS 15u           /* their number is below 2^53 */
#define EXACT_POWER 22
#define EXPONENT_MAX 1000000000    /* beyond every double, and no text makes it overflow */

/* ---- integers ---- */

/* The first of the ten digits of each script but ASCII's, below U+10000: upstream reads UTF-16 units one by one. */
static const uint16_t other_zeros[] = {0x0660, 0x06F0, 0x07C0, 0x0966, 0x09E6, 0x0A66, 0x0AE6, 0x0B66, 0x0BE6,
                                       0x0C66, 0x0CE6, 0x0D66, 0x0DE6, 0x0E50, 0x0ED0, 0x0F20, 0x1040, 0x1090,
                                       0x17E0, 0x1810, 0x1946, 0x19D0, 0x1A80, 0x1A90, 0x1B50, 0x1BB0, 0x1C40,
                                       0x1C50, 0xA620, 0xA8D0, 0xA900, 0xA9D0, 0xA9F0, 0xAA50, 0xABF0, 0xFF10};

static bool is_digit(uint8_t c) { return c >= '0' && c <= '9'; }

/* The digit at `at`, in UTF-8, and its bytes; -1: none. */
static int digit_at(const uint8_t *at, size_t left, size_t *bytes_out)
{
    uint32_t point;
    *bytes_out = 1;
    if (is_digit(at[0])) return at[0] - '0';
    if (at[0] < 0xC2) return -1;
    if (at[0] < 0xE0) {
        if (left < 2 || (at[1] & 0xC0) != 0x80) return -1;
        point = (uint32_t)(at[0] & 0x1F) << 6 | (at[1] & 0x3Fu);
        *bytes_out = 2;
    } else {
        if (at[0] >= 0xF0 || left < 3 || (at[1] & 0xC0) != 0x80 || (at[2] & 0xC0) != 0x80) return -1;
        point = (uint32_t)(at[0] & 0x0F) << 12 | (at[1] & 0x3Fu) << 6 | (at[2] & 0x3Fu);
        *bytes_out = 3;
    }
    for (size_t i = 0; i < sizeof other_zeros / sizeof other_zeros[0]; i++)
        if (point - other_zeros[i] < 10u) return (int)(point - other_zeros[i]);
    return -1;
}

bool cmq_java_integer(cmq_slice text, int64_t min, int64_t max, int64_t *number_out)
{
    const uint8_t *at = text.data, *end = at + text.bytes;
    if (text.bytes == 0) return false;
    const bool negative = *at == '-';
    if (negative || *at == '+') at++;
    if (at == end) return false;
    const uint64_t most = negative ? (uint64_t)0 - (uint64_t)min : (uint64_t)max;
    uint64_t number = 0;
    while (at < end) {
        size_t bytes;
        const int digit = digit_at(at, (size_t)(end - at), &bytes);
        if (digit < 0 || number > most / 10) return false;
        number = number * 10 + (uint64_t)digit;
        if (number > most) return false;
        at += bytes;
    }
    *number_out = negative ? (int64_t)((uint64_t)0 - number) : (int64_t)number;
    return true;
}

/* ---- doubles ---- */

/* The significant digits of a number, without zeros in front: 0.digits * base^exponent, so to say, but with the point
 * behind them. */
typedef struct digits {
    uint32_t count;
    bool more;            /* digits that are not 0 were left out */
    bool any;             /* a digit was there, if only 0 */
    int64_t exponent;     /* of the base, for the digits read as an integer */
    char text[DIGITS_MAX + 1];
} digits;

static void take_digit(digits *of, uint8_t c, bool behind_point)
{
    of->any = true;
    if (of->count == 0 && c == '0') {
        of->exponent -= behind_point;
    } else if (of->count < DIGITS_MAX) {
        of->text[of->count++] = (char)c;
        of->exponent -= behind_point;
    } else {
        of->more |= c != '0';
        of->exponent += !behind_point;
    }
}

static bool is_hex(uint8_t c) { return is_digit(c) || ((c | 0x20) >= 'a' && (c | 0x20) <= 'f'); }

/* Digits with at most one point among them. */
static const uint8_t *read_digits(const uint8_t *at, const uint8_t *end, bool hex, digits *of)
{
    bool point = false;
    of->count = 0;
    of->more = of->any = false;
    of->exponent = 0;
    for (; at < end; at++) {
        if (*at == '.' && !point)
            point = true;
        else if (hex ? is_hex(*at) : is_digit(*at))
            take_digit(of, *at, point);
        else
            break;
    }
    return at;
}

/* A sign and digits; NULL without a digit. */
static const uint8_t *read_exponent(const uint8_t *at, const uint8_t *end, int64_t *exponent_out)
{
    int64_t exponent = 0;
    const bool negative = at < end && *at == '-';
    if (at < end && (*at == '-' || *at == '+')) at++;
    if (at == end || !is_digit(*at)) return NULL;
    for (; at < end && is_digit(*at); at++)
        if (exponent < EXPONENT_MAX) exponent = exponent * 10 + (*at - '0');
    *exponent_out = negative ? -exponent : exponent;
    return at;
}

/* Nothing more, or one letter that Java allows behind a number. */
static bool ends(const uint8_t *at, const uint8_t *end)
{
    return at == end || (end - at == 1 && ((*at | 0x20) == 'f' || (*at | 0x20) == 'd'));
}

static double by_strtod(digits *of, const char *prefix, char mark)
{
    char text[DIGITS_MAX + 48];
    int64_t exponent = of->exponent;
    if (of->more) {
        of->text[of->count++] = '1';   /* more than the digits before it, by less than any digit there */
        exponent -= mark == 'p' ? 4 : 1;
    }
    if (exponent > EXPONENT_MAX) exponent = EXPONENT_MAX;
    if (exponent < -EXPONENT_MAX) exponent = -EXPONENT_MAX;
    snprintf(text, sizeof text, "%s%.*s%c%lld", prefix, (int)of->count, of->text, mark, (long long)exponent);
    return strtod(text, NULL);
}

static bool read_hex(const uint8_t *at, const uint8_t *end, double *number_out)
{
    digits of;
    int64_t exponent;
    at = read_digits(at, end, true, &of);
    if (!of.any || at == end || (*at | 0x20) != 'p') return false;
    at = read_exponent(at + 1, end, &exponent);
    if (at == NULL || !ends(at, end)) return false;
    of.exponent = of.exponent * 4 + exponent;
    *number_out = of.count == 0 ? 0.0 : by_strtod(&of, "0x", 'p');
    return true;
}

static bool read_decimal(const uint8_t *at, const uint8_t *end, double *number_out)
{
    static const double powers[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                    1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
    digits of;
    at = read_digits(at, end, false, &of);
    if (!of.any) return false;
    if (at < end && (*at | 0x20) == 'e') {
        int64_t exponent;
        at = read_exponent(at + 1, end, &exponent);
        if (at == NULL) return false;
        of.exponent += exponent;
    }
    if (!ends(at, end)) return false;
    if (of.count > EXACT_DIGITS || of.exponent > EXACT_POWER || of.exponent < -EXACT_POWER) {
        *number_out = of.count == 0 ? 0.0 : by_strtod(&of, "", 'e');
        return true;
    }
    uint64_t whole = 0;
    for (uint32_t i = 0; i < of.count; i++) whole = whole * 10 + (uint64_t)(of.text[i] - '0');
    *number_out = of.exponent < 0 ? (double)whole / powers[-of.exponent] : (double)whole * powers[of.exponent];
    return true;
}

static bool is_text(const uint8_t *at, const uint8_t *end, const char *text)
{
    const cmq_slice rest = {.data = at, .bytes = (size_t)(end - at)};
    return cmq_slice_equal(rest, cmq_slice_of_text(text));
}

bool cmq_java_double(cmq_slice text, double *number_out)
{
    const uint8_t *at = text.data, *end = at + text.bytes;
    while (at < end && *at <= ' ') at++;
    while (at < end && end[-1] <= ' ') end--;
    if (at == end) return false;
    const bool negative = *at == '-';
    if (negative || *at == '+') at++;
    double number;
    if (is_text(at, end, "NaN"))
        number = (double)NAN;
    else if (is_text(at, end, "Infinity"))
        number = HUGE_VAL;
    else if (end - at > 2 && at[0] == '0' && (at[1] | 0x20) == 'x') {
        if (!read_hex(at + 2, end, &number)) return false;
    } else if (!read_decimal(at, end, &number)) {
        return false;
    }
    *number_out = negative ? -number : number;
    return true;
}

int cmq_java_compare_doubles(double a, double b)
{
    if (a < b) return -1;
    if (a > b) return 1;
    if (isnan(a) || isnan(b)) return (isnan(a) != 0) - (isnan(b) != 0);
    return (signbit(b) != 0) - (signbit(a) != 0);
}

bool cmq_java_boolean(cmq_slice text)
{
    return text.bytes == 4 && (text.data[0] | 0x20) == 't' && (text.data[1] | 0x20) == 'r' &&
           (text.data[2] | 0x20) == 'u' && (text.data[3] | 0x20) == 'e';
}
