/* Tests csrc/filter/cmq_java_number.c: texts that Java's parsers take and refuse, and doubles against strtod. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "filter/cmq_java_number.h"
#include "support/cmq_test.h"

static bool whole(const char *text, int64_t *number_out)
{
    return cmq_java_integer(cmq_slice_of_text(text), INT32_MIN, INT32_MAX, number_out);
}

static void integers(void)
{
    static const char *const refused[] = {"",    "+",          "-",           " 5", "5 ", "5.0",
                                          "+-5", "2147483648", "-2147483649", "5l", "0x5"};
    int64_t number;
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) CHECK(!whole(refused[i], &number));
    CHECK(whole("2147483647", &number) && number == INT32_MAX);
    CHECK(whole("-2147483648", &number) && number == INT32_MIN);
    CHECK(whole("+0005", &number) && number == 5);
    CHECK(whole("\xD9\xA3\xEF\xBC\x97", &number) && number == 37);   /* Arabic 3, fullwidth 7 */
    CHECK(!whole("5\xC3\xA9", &number) && !whole("5\xD9", &number) && !whole("5\xF0\x9D\x9F\x8E", &number));
    const cmq_slice least = cmq_slice_of_text("-9223372036854775808");
    CHECK(cmq_java_integer(least, INT64_MIN, INT64_MAX, &number) && number == INT64_MIN);
    const cmq_slice beyond = cmq_slice_of_text("9223372036854775808");
    CHECK(!cmq_java_integer(beyond, INT64_MIN, INT64_MAX, &number));
}

static void doubles(void)
{
    static const char *const refused[] = {"",    ".",   "e5",   "5e",    "5e+", "0x1",  "0x.p1", "0xp1", "nan",
                                          "inf", "5dd", "5 .0", "1,000", "1_0", "--5", "Infinityd"};
    static const struct {
        const char *text;
        double number;
    } taken[] = {{" 5 ", 5},          {"5.", 5},      {".5", 0.5},        {"5e2d", 500},    {"+5F", 5},
                 {"0x1p3", 8},        {"0X.8P1f", 1}, {"0x1.p-1", 0.5},   {"1e400", HUGE_VAL}, {"1e-400", 0},
                 {"-Infinity", -HUGE_VAL}, {"0e99999999999", 0}, {"0x1p99999999999", HUGE_VAL}, {"00.50", 0.5}};
    double number;
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++)
        CHECK(!cmq_java_double(cmq_slice_of_text(refused[i]), &number));
    for (size_t i = 0; i < sizeof taken / sizeof taken[0]; i++) {
        CHECK(cmq_java_double(cmq_slice_of_text(taken[i].text), &number));
        CHECK(number == taken[i].number);
    }
    CHECK(cmq_java_double(cmq_slice_of_text("-NaN"), &number) && isnan(number));
    CHECK(cmq_java_double(cmq_slice_of_text("-0.0"), &number) && number == 0 && signbit(number));
}

/* Digits behind the 800th decide only whether a number is above a half. */
static void long_numbers_round_correctly(void)
{
    char text[3000];
    double number;
    memset(text, '0', sizeof text);
    memcpy(text, "9007199254740993.", 17);   /* 2^53 + 1: half way between two doubles */
    text[sizeof text - 1] = 0;
    CHECK(cmq_java_double(cmq_slice_of_text(text), &number) && number == 9007199254740992.0);
    text[sizeof text - 2] = '1';
    CHECK(cmq_java_double(cmq_slice_of_text(text), &number) && number == 9007199254740994.0);
    memset(text, '0', sizeof text);
    text[sizeof text - 1] = 0;
    text[sizeof text - 2] = '7';
    CHECK(cmq_java_double(cmq_slice_of_text(text), &number) && number == 7);
    memset(text, '1', 320);
    text[320] = 0;
    CHECK(cmq_java_double(cmq_slice_of_text(text), &number) && isinf(number));
}

static void random_numbers_are_those_of_strtod(void)
{
    static const char *const forms[] = {"%.17g", "%.6f", "%.20e", "%a", "%.3g"};
    for (int i = 0; i < 20000; i++) {
        const uint64_t bits = cmq_test_random();
        double real, number;
        char text[512];
        memcpy(&real, &bits, sizeof real);
        if (!isfinite(real)) continue;
        snprintf(text, sizeof text, forms[i % 5], real);
        CHECK(cmq_java_double(cmq_slice_of_text(text), &number));
        const double expected = strtod(text, NULL);
        CHECK_BYTES(&number, sizeof number, &expected, sizeof expected);
    }
}

static void order_of_doubles(void)
{
    const double rising[] = {-HUGE_VAL, -1, -0.0, 0.0, 1, HUGE_VAL, (double)NAN};
    for (int i = 0; i < 7; i++)
        for (int j = 0; j < 7; j++) CHECK_INT(cmq_java_compare_doubles(rising[i], rising[j]), (i > j) - (i < j));
}

static void booleans(void)
{
    CHECK(cmq_java_boolean(cmq_slice_of_text("true")) && cmq_java_boolean(cmq_slice_of_text("TrUe")));
    CHECK(!cmq_java_boolean(cmq_slice_of_text("true ")) && !cmq_java_boolean(cmq_slice_of_text("yes")));
}

CMQ_TEST_MAIN(CMQ_TEST(integers), CMQ_TEST(doubles), CMQ_TEST(long_numbers_round_correctly),
              CMQ_TEST(random_numbers_are_those_of_strtod), CMQ_TEST(order_of_doubles), CMQ_TEST(booleans))
