/* Held pulls that wait for SQL92 expressions: one look for each expression, each kept once, and the limit of their
 * bytes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "broker/loop/cmq_hold.h"
#include "support/cmq_test.h"

static cmq_slice text(const char *name) { return cmq_slice_of_text(name); }

static cmq_filter *filter_of(const char *expression)
{
    cmq_filter *filter;
    CHECK_OK(cmq_filter_select(text(expression), &filter));
    return filter;
}

/* Hold a pull with its own expression. */
static cmq_status add(cmq_holds *holds, const char *expression, int64_t from, uint32_t conn, cmq_hold *hold_out)
{
    cmq_filter *filter = filter_of(expression);
    const cmq_held_pull pull = {
        .group = text("g"), .topic = text("t"), .from = from, .filter = filter, .conn = conn + 1, .code = 11};
    const cmq_status status = cmq_holds_add(holds, &pull, filter, from, conn, hold_out);
    if (status != CMQ_OK) cmq_filter_release(filter);
    return status;
}

static void drop(cmq_holds *holds, cmq_hold hold)
{
    cmq_held_pull held;
    cmq_holds_get(holds, hold, &held);
    cmq_holds_remove(holds, hold);
    cmq_filter_release(held.filter);
}

/* About 0.5 MB of program. */
static const char *long_expression(uint32_t number)
{
    static char expression[60000];
    size_t used = (size_t)snprintf(expression, sizeof expression, "n = %u", number);
    while (used + 16 < sizeof expression)
        used += (size_t)snprintf(expression + used, sizeof expression - used, " OR a<1");
    return expression;
}

static void holds_of_one_expression_keep_it_once(void)
{
    enum { COUNT = 200 };
    cmq_holds *holds;
    cmq_hold hold[COUNT];
    CHECK_OK(cmq_holds_create(&holds, COUNT));
    for (uint32_t i = 0; i < COUNT; i++) CHECK_OK(add(holds, long_expression(0), 7, i, &hold[i]));
    CHECK(cmq_holds_bytes(holds) < 2u << 20);
    const cmq_hold first = cmq_holds_selecting(holds, cmq_holds_find_queue(holds, text("t"), 0));
    CHECK_INT(first, hold[0]);
    CHECK_INT(cmq_holds_next_selecting(holds, first), CMQ_HOLD_NONE);
    for (uint32_t i = 0; i < COUNT; i++) drop(holds, hold[i]);
    CHECK_INT(cmq_holds_programs(holds)->bytes, 0);
    cmq_holds_destroy(holds);
}

/* A look at each hold for each message would be ten thousand million: the test would not end. */
static void messages_touch_one_hold_of_each_expression(void)
{
    enum { COUNT = 100000 };
    cmq_holds *holds;
    cmq_hold hold;
    cmq_filter *filter = filter_of("n = 1");
    const cmq_held_pull pull = {.group = text("g"), .topic = text("t"), .from = 7, .conn = 1, .code = 11};
    CHECK_OK(cmq_holds_create(&holds, COUNT));
    for (uint32_t i = 0; i < COUNT; i++) CHECK_OK(cmq_holds_add(holds, &pull, filter, 1, i, &hold));
    const cmq_hold_queue queue = cmq_holds_find_queue(holds, text("t"), 0);
    for (uint32_t i = 0; i < COUNT; i++) {
        const cmq_hold first = cmq_holds_selecting(holds, queue);
        CHECK_INT(cmq_holds_next_selecting(holds, first), CMQ_HOLD_NONE);
        CHECK_INT(cmq_holds_of_program(holds, queue, cmq_holds_program(holds, first), 7), first);
    }
    cmq_filter_release(filter);
    cmq_holds_destroy(holds);
}

/* One connection takes half of the limit; what is left is for connections below their share. */
static void bytes_of_expressions_have_a_limit(void)
{
    cmq_holds *holds;
    cmq_hold hold, first;
    uint32_t count = 1;
    CHECK_OK(cmq_holds_create(&holds, 100000));
    CHECK_OK(add(holds, long_expression(0), 7, 0, &first));
    while (add(holds, long_expression(count), 7, 0, &hold) == CMQ_OK) count++;
    CHECK_INT(cmq_last_error()->status, CMQ_ERR_LIMIT);
    const size_t half = cmq_holds_programs(holds)->bytes, one = half / count;
    CHECK(half >= CMQ_HOLDS_PROGRAM_BYTES_MAX / 2 && half < CMQ_HOLDS_PROGRAM_BYTES_MAX / 2 + 2 * one);
    for (uint32_t conn = 1; add(holds, long_expression(count), 7, conn, &hold) == CMQ_OK; conn++) count++;
    CHECK(cmq_holds_programs(holds)->bytes > CMQ_HOLDS_PROGRAM_BYTES_MAX - 2 * one);
    CHECK_OK(add(holds, long_expression(0), 7, 5000, &hold));   /* it is there */
    drop(holds, hold);
    CHECK_OK(add(holds, long_expression(0), 7, 0, &hold));   /* also for one above its share */
    drop(holds, hold);
    CHECK_STATUS(add(holds, "n = 1 OR n = 2 AND a IS NOT NULL", 7, 0, &hold), CMQ_ERR_LIMIT);
    CHECK_INT(cmq_holds_count(holds), count);
    drop(holds, first);
    CHECK_OK(add(holds, long_expression(count), 7, 5000, &hold));
    cmq_holds_destroy(holds);
}

/* Many requests with one expression are no larger share than one. */
static void a_share_counts_programs_and_not_holds(void)
{
    enum { EQUAL = 200, CONN = 9000 };   /* 100 MB, were each counted */
    cmq_holds *holds;
    cmq_hold hold[EQUAL], other;
    uint32_t count = 1;
    CHECK_OK(cmq_holds_create(&holds, 100000));
    while (cmq_holds_programs(holds)->bytes < CMQ_HOLDS_PROGRAM_BYTES_MAX / 2) {
        CHECK_OK(add(holds, long_expression(count), 7, count, &other));
        count++;
    }
    for (uint32_t i = 0; i < EQUAL; i++) CHECK_OK(add(holds, long_expression(0), 7, CONN, &hold[i]));
    uint32_t more = 0;
    while (add(holds, long_expression(count + more), 7, CONN, &other) == CMQ_OK) more++;
    CHECK(more >= 4 && more <= 16);   /* up to its share, 4 MiB */
    for (uint32_t i = 0; i < EQUAL; i++) drop(holds, hold[i]);
    CHECK_OK(add(holds, long_expression(count + more), 7, CONN, &other));
    cmq_holds_destroy(holds);
}

/* ---- against a plain list ---- */

enum { EXPRESSIONS = 12, MODEL_MAX = 60 };

typedef struct model_hold {
    cmq_hold hold;
    uint32_t expression;
    int64_t from;
} model_hold;

static model_hold model[MODEL_MAX];   /* in the order of their coming */
static uint32_t model_count;

static const char *expression_of(uint32_t number)
{
    static char expression[32];
    snprintf(expression, sizeof expression, "n = %u", number);
    return expression;
}

static cmq_hold expected_of(uint32_t expression, int64_t offset)
{
    for (uint32_t i = 0; i < model_count; i++)
        if (model[i].expression == expression && model[i].from <= offset) return model[i].hold;
    return CMQ_HOLD_NONE;
}

static uint32_t expression_number(const cmq_holds *holds, uint32_t program)
{
    const cmq_slice of = cmq_selector_text(cmq_holds_selector(holds, program));
    return (uint32_t)strtoul((const char *)of.data + strlen("n = "), NULL, 10);
}

static void check_against_model(const cmq_holds *holds)
{
    uint32_t seen = 0, expected = 0;
    const int64_t offset = (int64_t)cmq_test_random_below(40);
    for (uint32_t i = 0; i < EXPRESSIONS; i++) expected += expected_of(i, INT64_MAX) != CMQ_HOLD_NONE;
    if (model_count > 0) {
        const cmq_hold_queue queue = cmq_holds_find_queue(holds, text("t"), 0);
        for (cmq_hold hold = cmq_holds_selecting(holds, queue); hold != CMQ_HOLD_NONE; seen++) {
            const uint32_t program = cmq_holds_program(holds, hold), number = expression_number(holds, program);
            CHECK_INT(hold, expected_of(number, INT64_MAX));
            CHECK_INT(cmq_holds_of_program(holds, queue, program, offset), expected_of(number, offset));
            hold = cmq_holds_next_selecting(holds, hold);
        }
    }
    CHECK_INT(seen, expected);
}

static void behaves_like_a_list(void)
{
    cmq_holds *holds;
    CHECK_OK(cmq_holds_create(&holds, MODEL_MAX));
    model_count = 0;
    for (uint32_t step = 0; step < 20000; step++) {
        if (cmq_test_random_below(2) == 0 && model_count < MODEL_MAX) {
            model_hold m = {.expression = (uint32_t)cmq_test_random_below(EXPRESSIONS),
                            .from = (int64_t)(step % 50 == 0 ? cmq_test_random_below(40) : step / 500)};
            CHECK_OK(add(holds, expression_of(m.expression), m.from, step % 3, &m.hold));
            model[model_count++] = m;
        } else if (model_count > 0) {
            const uint32_t i = (uint32_t)cmq_test_random_below(model_count);
            drop(holds, model[i].hold);
            model_count--;
            memmove(&model[i], &model[i + 1], (model_count - i) * sizeof model[0]);
        }
        check_against_model(holds);
    }
    while (model_count > 0) drop(holds, model[--model_count].hold);
    const cmq_hold_programs *programs = cmq_holds_programs(holds);
    CHECK_INT(programs->uses_used, 0);
    for (uint32_t conn = 0; conn < programs->conn_slots; conn++) CHECK_INT(programs->conns[conn], 0);
    cmq_holds_destroy(holds);
}

/* A hold that comes meanwhile may wait for the message; the next one of the expression knows of the look before. */
static void first_ones_remember_the_message_of_the_last_look(void)
{
    cmq_holds *holds;
    cmq_hold first, second;
    CHECK_OK(cmq_holds_create(&holds, 10));
    CHECK_OK(add(holds, "n = 1", 7, 0, &first));
    CHECK(!cmq_holds_is_compared(holds, first, 7));
    cmq_holds_set_compared(holds, first, 7);
    CHECK(cmq_holds_is_compared(holds, first, 7) && !cmq_holds_is_compared(holds, first, 8));
    CHECK_OK(add(holds, "n = 1", 7, 0, &second));
    CHECK(!cmq_holds_is_compared(holds, first, 7));
    cmq_holds_set_compared(holds, first, 7);
    drop(holds, first);
    CHECK(cmq_holds_is_compared(holds, second, 7));
    cmq_holds_destroy(holds);
}

CMQ_TEST_MAIN(CMQ_TEST(holds_of_one_expression_keep_it_once), CMQ_TEST(bytes_of_expressions_have_a_limit),
              CMQ_TEST(a_share_counts_programs_and_not_holds),
              CMQ_TEST(messages_touch_one_hold_of_each_expression), CMQ_TEST(behaves_like_a_list),
              CMQ_TEST(first_ones_remember_the_message_of_the_last_look))
