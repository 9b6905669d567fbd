/* Tests csrc/filter/cmq_selector*.c: the specification's truth table, what compiles, and limits. Upstream's own answers
 * are compared in tests/unit/selector. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "filter/cmq_selector.h"
#include "store/record/cmq_property.h"
#include "support/cmq_test.h"

static cmq_slice slice(const char *text) { return cmq_slice_of_text(text); }

/* `properties`: name=value, separated by semicolons. */
static cmq_selector_answer answer(const char *expression, const char *properties)
{
    char text[512];
    cmq_selector *selector;
    snprintf(text, sizeof text, "%s", properties);
    for (char *at = text; *at != 0; at++) *at = *at == '=' ? 1 : *at == ';' ? 2 : *at;
    CHECK_OK(cmq_selector_compile(slice(expression), &selector, NULL));
    const cmq_selector_answer answer = cmq_selector_evaluate(selector, slice(text));
    cmq_selector_free(selector);
    return answer;
}

static void truth_table(void)
{
    static const struct {
        const char *expression, *properties;
        cmq_selector_answer answer;
    } rows[] = {
        {"a > 5", "a=6;", CMQ_SELECTOR_TRUE},
        {"a > 5", "a=5;", CMQ_SELECTOR_FALSE},
        {"a > 5", "a=5.5;", CMQ_SELECTOR_ERROR},
        {"a > 5", "a=x;", CMQ_SELECTOR_ERROR},
        {"a > 5", "", CMQ_SELECTOR_NULL},
        {"a > 5.0", "a= 6 ;", CMQ_SELECTOR_TRUE},
        {"a > 5.0", "a=0x1p3;", CMQ_SELECTOR_TRUE},
        {"a > 5.0", "a=6d;", CMQ_SELECTOR_TRUE},
        {"a > 5", "a=99999999999;", CMQ_SELECTOR_ERROR},
        {"a > 2147483648", "a=99999999999;", CMQ_SELECTOR_TRUE},
        {"a <> 'x'", "", CMQ_SELECTOR_NULL},
        {"'x' <> a", "", CMQ_SELECTOR_TRUE},
        {"NOT (a = 'x')", "", CMQ_SELECTOR_NULL},
        {"a = b", "", CMQ_SELECTOR_TRUE},
        {"a IS NULL AND b IS NOT NULL", "b=1;", CMQ_SELECTOR_TRUE},
        {"a NOT CONTAINS 'x'", "", CMQ_SELECTOR_FALSE},
        {"a NOT IN ('x')", "", CMQ_SELECTOR_NULL},
        {"a = FALSE", "a=banana;", CMQ_SELECTOR_TRUE},
        {"a", "a=true;", CMQ_SELECTOR_FALSE},
        {"a = TRUE", "a=TRUE;", CMQ_SELECTOR_TRUE},
        {"a > 5 OR b = '1'", "a=x;b=1;", CMQ_SELECTOR_ERROR},
        {"b = '1' OR a > 5", "a=x;b=1;", CMQ_SELECTOR_TRUE},
        {"a BETWEEN 1 AND 3", "a=2;", CMQ_SELECTOR_TRUE},
        {"a = 'it''s'", "a=it's;", CMQ_SELECTOR_TRUE},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        CHECK_INT(answer(rows[i].expression, rows[i].properties), rows[i].answer);
}

/* A stored property without a value is absent. */
static void empty_values_are_absent(void)
{
    CHECK_INT(answer("a = ''", "a=;"), CMQ_SELECTOR_NULL);
    CHECK_INT(answer("a IS NULL", "a=;b=1;"), CMQ_SELECTOR_TRUE);
}

static void refusals_name_the_place(void)
{
    cmq_selector *selector;
    CHECK_STATUS(cmq_selector_compile(slice("price > 'x'"), &selector, NULL), CMQ_ERR_ARGUMENT);
    CHECK(selector == NULL);
    CHECK_INT(cmq_last_error()->offset, 8);
    CHECK_STATUS(cmq_selector_compile(slice("a = 5 ; b"), &selector, NULL), CMQ_ERR_ARGUMENT);
    CHECK_INT(cmq_last_error()->offset, 6);
    CHECK_STATUS(cmq_selector_compile(slice("\xFF = 5"), &selector, NULL), CMQ_ERR_ARGUMENT);
    CHECK_STATUS(cmq_selector_compile(CMQ_SLICE_NONE, &selector, NULL), CMQ_ERR_ARGUMENT);
}

/* Signs of other languages, each with what to write in its place. */
static void refusals_name_the_remedy(void)
{
    static const struct {
        const char *text, *reason;
    } cases[] = {
        {"a == 1", "byte 3: `==` is not part of the language; write = for equal"},
        {"a = = 1", "byte 4: expected a property, a value or (, found `=`"},
        {"a != 1", "byte 2: `!` is not part of the language; write <> for not equal"},
        {"!a", "byte 0: `!` is not part of the language; write NOT"},
        {"a = 1 && b = 2", "byte 6: `&` is not part of the language; write AND"},
        {"a = 1 || b = 2", "byte 6: `|` is not part of the language; write OR"},
        {"a = \"x\"", "byte 4: `\"` is not part of the language; write a text in single quotes, and a property"},
        {"`a` = 1", "byte 0: ``` is not part of the language; write a property without quotes"},
        {"a = \xe2\x80\x98x\xe2\x80\x99", "`\xe2\x80\x98` is not part of the language; write a text in straight"},
        {"a IN ['x']", "byte 5: `[` is not part of the language; write a list in parentheses"},
        {"a = \xc3\xa9", "byte 4: `\xc3\xa9` is not part of the language"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cmq_selector *selector;
        CHECK_STATUS(cmq_selector_compile(slice(cases[i].text), &selector, NULL), CMQ_ERR_ARGUMENT);
        if (strstr(cmq_last_error()->text, cases[i].reason) == NULL)
            cmq_test_fail(__FILE__, __LINE__, "%s: %s", cases[i].text, cmq_last_error()->text);
    }
}

static void tails_are_reported(void)
{
    cmq_selector *selector;
    size_t tail;
    CHECK_OK(cmq_selector_compile(slice("a > 5 banana"), &selector, &tail));
    CHECK_INT(tail, 6);
    CHECK_BYTES(cmq_selector_text(selector).data, cmq_selector_text(selector).bytes, "a > 5 banana", 12);
    cmq_selector_free(selector);
    CHECK_OK(cmq_selector_compile(slice("a > 5 "), &selector, &tail));
    CHECK_INT(tail, 6);
    cmq_selector_free(selector);
}

/* A prefix or a nesting that no limit stops would overflow the stack of the thread. */
static void hostile_texts_are_refused(void)
{
    static const char *const parts[] = {"(", "NOT ", "- ", "+ ", "a = (", "a > -("};
    cmq_selector *selector;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        const size_t bytes = strlen(parts[i]), count = CMQ_SELECTOR_TEXT_BYTES_MAX / bytes;
        char *text = malloc(count * bytes + 1);
        CHECK(text != NULL);
        for (size_t at = 0; at < count; at++) memcpy(text + at * bytes, parts[i], bytes + 1);
        CHECK_STATUS(cmq_selector_compile(slice(text), &selector, NULL), CMQ_ERR_LIMIT);
        free(text);
    }
    char *large = malloc(1u << 20);
    CHECK(large != NULL);
    memset(large, 'a', 1u << 20);
    CHECK_STATUS(cmq_selector_compile((cmq_slice){(uint8_t *)large, 1u << 20}, &selector, NULL), CMQ_ERR_LIMIT);
    free(large);
}

static void names_have_a_limit(void)
{
    for (uint32_t more = 0; more < 2; more++) {
        char text[16384], *at = text;
        cmq_selector *selector = NULL;
        for (uint32_t i = 0; i < CMQ_SELECTOR_NAMES_MAX + more; i++)
            at += sprintf(at, "%sn%u IS NULL AND n%u IS NULL", i == 0 ? "" : " AND ", i, i);
        CHECK_STATUS(cmq_selector_compile(slice(text), &selector, NULL), more == 0 ? CMQ_OK : CMQ_ERR_LIMIT);
        if (more == 0) cmq_selector_free(selector);
    }
}

/* As deep as the limit, with each level's operands on the stack. */
static void deep_expressions_run(void)
{
    char text[8192], *at = text;
    cmq_selector *selector;
    for (uint32_t i = 0; i < CMQ_SELECTOR_DEPTH_MAX; i++) at += sprintf(at, "x OR y AND TRUE = (");
    at += sprintf(at, "a = 'x'");
    for (uint32_t i = 0; i < CMQ_SELECTOR_DEPTH_MAX; i++) *at++ = ')';
    *at = 0;
    CHECK_OK(cmq_selector_compile(slice(text), &selector, NULL));
    CHECK_INT(cmq_selector_evaluate(selector, slice("a\001x\002")), CMQ_SELECTOR_NULL);
    cmq_selector_free(selector);
}

static void cost_grows_with_the_program(void)
{
    cmq_selector *few, *many;
    CHECK_OK(cmq_selector_compile(slice("a > 5"), &few, NULL));
    CHECK_OK(cmq_selector_compile(slice("a > 5 AND b CONTAINS 'x' OR c = 'y'"), &many, NULL));
    CHECK(cmq_selector_cost(few) >= 1 && cmq_selector_cost(many) > cmq_selector_cost(few));
    cmq_selector_free(few);
    cmq_selector_free(many);
}

/* Random property strings, of separators above all: a program finds the values that cmq_property_find finds. */
static void values_are_those_of_the_property_reader(void)
{
    static const char *const names[] = {"a", "b", "ab", "bab"};
    static const char letters[] = "ab\001\002\001\002bb";
    for (int i = 0; i < 20000; i++) {
        uint8_t text[200];
        const cmq_slice properties = {.data = text, .bytes = cmq_test_random_below(sizeof text)};
        const size_t long_piece = cmq_test_random_below(2) == 0 ? properties.bytes / 2 : 0;
        for (size_t at = 0; at < properties.bytes; at++)
            text[at] = at < long_piece ? 'b' : (uint8_t)letters[cmq_test_random_below(8)];
        for (size_t name = 0; name < sizeof names / sizeof names[0]; name++) {
            char expression[256];
            cmq_slice value;
            cmq_selector *selector;
            if (cmq_property_find(properties, slice(names[name]), &value))
                snprintf(expression, sizeof expression, "%s = '%.*s'", names[name], (int)value.bytes,
                         (const char *)value.data);
            else
                snprintf(expression, sizeof expression, "%s IS NULL", names[name]);
            CHECK_OK(cmq_selector_compile(slice(expression), &selector, NULL));
            CHECK_INT(cmq_selector_evaluate(selector, properties), CMQ_SELECTOR_TRUE);
            cmq_selector_free(selector);
        }
    }
}

/* A long text is read as a number once for all steps: each kind has the answer of a short one. */
static void long_numbers_are_those_of_short_ones(void)
{
    static const struct {
        const char *expression, *value;
    } rows[] = {
        {"a = 7 AND a > 6.5 AND a < 7.5 AND a = 7 AND a >= 7 AND a <= 2147483648", "7"},
        {"a > 6.5 AND a = 7 AND a BETWEEN 6 AND 8 AND NOT a <> 7", "7"},
        {"a = 2147483648 AND a > 2147483647.5", "2147483648"},
        {"a >= a AND a <= a AND a = a", "7"},
        {"a = FALSE AND a = 7", "7"},
        {"a > 6 AND (a = 7 OR a = 8)", "7"},
        {"a > 6.5 AND a < 2147483649 AND a > 5", "2147483648"},   /* an error: no int */
        {"a > 6.5 OR a = 7", "7.5"},
        {"a = 7 OR a > 6.5", "7.5"},                              /* an error: no int */
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char properties[128];
        snprintf(properties, sizeof properties, "a=%s;", rows[i].value);
        const cmq_selector_answer expected = answer(rows[i].expression, properties);
        snprintf(properties, sizeof properties, "a=%060d%s;", 0, rows[i].value);
        CHECK_INT(answer(rows[i].expression, properties), expected);
    }
}

/* A search in all of a long property, so often: the last may exceed the limit, and that is an error. */
static void looks_of_one_message_are_limited(void)
{
    static char text[8192], properties[32768];
    const uint32_t fits = CMQ_SELECTOR_LOOKS_MAX / (uint32_t)(sizeof properties - 2);
    cmq_selector *selector;
    memset(properties, 'x', sizeof properties);
    memcpy(properties, "a\001", 2);
    for (uint32_t more = 0; more < 2; more++) {
        size_t used = 0;
        for (uint32_t i = 0; i < fits + more; i++)
            used += (size_t)snprintf(text + used, sizeof text - used, "%sa CONTAINS 'y'", i == 0 ? "" : " OR ");
        CHECK_OK(cmq_selector_compile(slice(text), &selector, NULL));
        const cmq_slice all = {.data = (const uint8_t *)properties, .bytes = sizeof properties};
        CHECK_INT(cmq_selector_evaluate(selector, all), more == 0 ? CMQ_SELECTOR_FALSE : CMQ_SELECTOR_ERROR);
        cmq_selector_free(selector);
    }
}

/* The work of an evaluation, in steps of one size: of the program, and on texts. */
static void steps_count_looks(void)
{
    static char text[8192 + 3] = "a\001";
    memset(text + 2, 'x', sizeof text - 3);
    text[sizeof text - 1] = '\0';
    static const struct {
        const char *expression;
        uint64_t least, most;
    } cases[] = {
        {"b = 'x'", 8192 / 32, 8192 / 32 + 100},
        {"a CONTAINS 'xy'", 8192 / 32 + 4 * 8192 / 8, 8192 / 32 + 4 * 8192 / 8 + 100},
        {"a < 5", 8192 / 32 + 8192 / 8, 8192 / 32 + 8192 / 8 + 100},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cmq_selector *selector;
        uint64_t steps;
        CHECK_OK(cmq_selector_compile(slice(cases[i].expression), &selector, NULL));
        const cmq_selector_answer answer = cmq_selector_evaluate_counted(selector, slice(text), &steps);
        CHECK_INT(answer, cmq_selector_evaluate(selector, slice(text)));
        CHECK(steps >= cases[i].least && steps <= cases[i].most);
        cmq_selector_free(selector);
    }
}

CMQ_TEST_MAIN(CMQ_TEST(values_are_those_of_the_property_reader), CMQ_TEST(truth_table),
              CMQ_TEST(empty_values_are_absent), CMQ_TEST(refusals_name_the_place), CMQ_TEST(refusals_name_the_remedy),
              CMQ_TEST(tails_are_reported), CMQ_TEST(hostile_texts_are_refused), CMQ_TEST(names_have_a_limit),
              CMQ_TEST(deep_expressions_run),
              CMQ_TEST(cost_grows_with_the_program), CMQ_TEST(long_numbers_are_those_of_short_ones),
              CMQ_TEST(looks_of_one_message_are_limited), CMQ_TEST(steps_count_looks))
