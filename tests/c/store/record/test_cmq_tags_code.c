/* test_cmq_tags_code: tag hashes, delay levels and ext addresses keep apart. */
#include "store/record/cmq_tags_code.h"

#include <stdlib.h>
#include <string.h>

#include "support/cmq_test.h"

#define TEXT(literal) ((cmq_slice){.data = (const uint8_t *)(literal), .bytes = sizeof(literal) - 1})

static cmq_delay_levels default_levels(void)
{
    cmq_delay_levels levels;
    CHECK_OK(cmq_delay_levels_parse(cmq_slice_of_text(CMQ_DELAY_LEVELS_DEFAULT), &levels));
    return levels;
}

static void test_default_levels(void)
{
    const cmq_delay_levels levels = default_levels();
    CHECK_INT(levels.level_max, 18);
    CHECK_INT(levels.delay_ms[1], 1000);
    CHECK_INT(levels.delay_ms[5], 60000);
    CHECK_INT(levels.delay_ms[18], 7200000);
}

static void test_own_levels(void)
{
    cmq_delay_levels levels;
    CHECK_OK(cmq_delay_levels_parse(TEXT("0s 100d"), &levels));
    CHECK_INT(levels.level_max, 2);
    CHECK_INT(levels.delay_ms[2], INT64_C(8640000000));
    CHECK_OK(cmq_delay_levels_parse(CMQ_SLICE_NONE, &levels));
    CHECK_INT(levels.level_max, 0);
    static const char *const refused[] = {"1", "s", "1x", "1s  2s", "-1s", "1s,2s", " 1s", "99999999999s"};
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        CHECK_STATUS(cmq_delay_levels_parse(cmq_slice_of_text(refused[i]), &levels), CMQ_ERR_SETTING);
        CHECK_INT(levels.level_max, 0);
    }
    char many[3 * (CMQ_DELAY_LEVELS_MAX + 1) + 1] = {0};
    for (int i = 0; i <= CMQ_DELAY_LEVELS_MAX; i++) memcpy(many + 3 * i, "1s ", 3);
    CHECK_STATUS(cmq_delay_levels_parse(cmq_slice_of_text(many), &levels), CMQ_ERR_LIMIT);
    many[3 * CMQ_DELAY_LEVELS_MAX - 1] = 0;
    CHECK_OK(cmq_delay_levels_parse(cmq_slice_of_text(many), &levels));
    CHECK_INT(levels.level_max, CMQ_DELAY_LEVELS_MAX);
}

static void test_level_of_a_value(void)
{
    const cmq_delay_levels levels = default_levels();
    CHECK_INT(cmq_delay_level(&levels, TEXT("3")), 3);
    CHECK_INT(cmq_delay_level(&levels, TEXT("+18")), 18);
    CHECK_INT(cmq_delay_level(&levels, TEXT("19")), 18);
    CHECK_INT(cmq_delay_level(&levels, TEXT("2147483647")), 18);
    static const char *const none[] = {"", "0", "-1", "x", "3 ", "2147483648", "+", "-", "99999999999999999999999"};
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++)
        CHECK_INT(cmq_delay_level(&levels, cmq_slice_of_text(none[i])), 0);
}

static void test_tags_code(void)
{
    const cmq_delay_levels levels = default_levels();
    const cmq_slice schedule = TEXT("SCHEDULE_TOPIC_XXXX"), none = CMQ_SLICE_NONE;
    CHECK_INT(cmq_tags_code(TEXT("T"), none, none, 5, &levels), 0);
    CHECK_INT(cmq_tags_code(TEXT("T"), TEXT("TagA"), none, 5, &levels), 2598919);
    CHECK_INT(cmq_tags_code(TEXT("T"), TEXT("TagA || TagB"), none, 5, NULL), 1359775119);
    CHECK_INT(cmq_tags_code(TEXT("T"), TEXT("The quick brown fox jumps over the lazy dog"), none, 5, NULL), -609428141);
    CHECK_INT(cmq_tags_code(TEXT("T"), TEXT("TagA"), TEXT("3"), 5, &levels), 2598919);
    CHECK_INT(cmq_tags_code(schedule, TEXT("TagA"), TEXT("3"), 5, &levels), 10005);
    CHECK_INT(cmq_tags_code(schedule, none, TEXT("30"), 5, &levels), 7200005);
    CHECK_INT(cmq_tags_code(schedule, TEXT("TagA"), TEXT("0"), 5, &levels), 2598919);
    CHECK_INT(cmq_tags_code(schedule, TEXT("TagA"), none, 5, &levels), 2598919);
    CHECK_INT(cmq_tags_code(schedule, TEXT("TagA"), TEXT("3"), 5, NULL), 2598919);
    CHECK_INT(cmq_delay_deliver_ms(&levels, 19, 5), 1005);
    CHECK_INT(cmq_delay_deliver_ms(&levels, 0, 5), 1005);
}

static void test_ext_addresses(void)
{
    CHECK(cmq_tags_code_is_ext(INT64_MIN));
    CHECK(cmq_tags_code_is_ext(INT64_C(-2147483649)));
    CHECK(!cmq_tags_code_is_ext(INT64_C(-2147483648)));
    CHECK(!cmq_tags_code_is_ext(0));
    CHECK(!cmq_tags_code_is_ext(INT64_MAX));
}

CMQ_TEST_MAIN(CMQ_TEST(test_default_levels), CMQ_TEST(test_own_levels), CMQ_TEST(test_level_of_a_value),
              CMQ_TEST(test_tags_code), CMQ_TEST(test_ext_addresses))
