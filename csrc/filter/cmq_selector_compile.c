/* cmq_selector_compile: an expression's text -> the steps of a program, in one pass.
 *
 * One function for each production of upstream's grammar. An operand's steps come first, then those of its operator;
 * the steps that decide early (AND, OR, a range) get their target when the rest is known.
 *
 * Upstream demands no end of the text: behind a whole expression one token is looked at, and the rest is ignored unless
 * that token is none.
 */
#include "filter/cmq_selector_internal.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/cmq_assert.h"
#include "base/cmq_utf8.h"
#include "filter/cmq_java_number.h"

#define TEXT_COST 16u   /* steps that a search in a text counts as */

/* The forms of an operand that upstream tells apart when it compiles. */
typedef enum operand_kind {
    PROPERTY = 0,
    NUMBER,             /* a literal */
    TEXT,
    TRUTH,              /* TRUE, FALSE: a literal and a condition */
    NULL_LITERAL,
    CONDITION,
    NEGATED             /* a minus sign before anything */
} operand_kind;

typedef struct operand {
    operand_kind kind;
    uint32_t first_step;
    size_t at;          /* in the text */
} operand;

typedef struct compiler {
    cmq_selector *made;
    cmq_selector_source source;
    cmq_selector_token token;   /* the next one */
    uint32_t depth, stack;
    uint8_t *arena_end;
    cmq_status status;          /* not CMQ_OK: compiling failed; later steps do nothing */
} compiler;

/* ---- failing ---- */

static bool fail(compiler *c, cmq_status status, size_t at, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
static bool fail(compiler *c, cmq_status status, size_t at, const char *format, ...)
{
    char reason[256];
    va_list arguments;
    if (c->status != CMQ_OK) return false;
    va_start(arguments, format);
    vsnprintf(reason, sizeof reason, format, arguments);
    va_end(arguments);
    c->status = cmq_fail_at(status, (int64_t)at, "SQL92 expression, byte %zu: %s", at, reason);
    return false;
}

/* A token in a message: at most 40 bytes of it. */
static int shown(const cmq_selector_token *token) { return (int)(token->bytes < 40 ? token->bytes : 40); }

/* Bytes of the character that begins with this one; the text is UTF-8. */
static int character_bytes(char first)
{
    const uint8_t byte = (uint8_t)first;
    return byte < 0xC0 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

static const char *text_at(const compiler *c, size_t at) { return (const char *)c->source.text.data + at; }

/* The remedy for signs of other languages: a text behind the reason, or "". */
static const char *remedy(const compiler *c, size_t at)
{
    const cmq_slice rest = {.data = c->source.text.data + at, .bytes = c->source.text.bytes - at};
    static const struct {
        const char *sign, *remedy;
    } known[] = {{"!=", "; write <> for not equal"},
                 {"!", "; write NOT"},
                 {"&", "; write AND"},
                 {"|", "; write OR"},
                 {"\"", "; write a text in single quotes, and a property without quotes"},
                 {"`", "; write a property without quotes"},
                 {"\xe2\x80\x98", "; write a text in straight single quotes"},
                 {"\xe2\x80\x99", "; write a text in straight single quotes"},
                 {"\xe2\x80\x9c", "; write a text in straight single quotes"},
                 {"\xe2\x80\x9d", "; write a text in straight single quotes"},
                 {"[", "; write a list in parentheses"}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (cmq_slice_starts_with(rest, known[i].sign)) return known[i].remedy;
    return "";
}

static bool fail_expected(compiler *c, const char *expected)
{
    const cmq_selector_token *token = &c->token;
    if (token->kind == CMQ_TOKEN_EQUAL && token->at > 0 && text_at(c, token->at)[-1] == '=')
        return fail(c, CMQ_ERR_ARGUMENT, token->at, "`==` is not part of the language; write = for equal");
    if (token->kind == CMQ_TOKEN_END)
        return fail(c, CMQ_ERR_ARGUMENT, token->at, "expected %s, but the expression ends", expected);
    return fail(c, CMQ_ERR_ARGUMENT, token->at, "expected %s, found `%.*s`", expected, shown(token),
                text_at(c, token->at));
}

/* ---- tokens ---- */

/* Read the next token. Text that is not a token is an error, also in the ignored tail. */
static bool look(compiler *c, size_t from)
{
    c->token = cmq_selector_lex(&c->source, from);
    if (c->token.kind != CMQ_TOKEN_BAD) return true;
    if (text_at(c, c->token.at)[0] == '\'')
        return fail(c, CMQ_ERR_ARGUMENT, c->token.at, "the text has no closing quote");
    const char *at = text_at(c, c->token.at);
    return fail(c, CMQ_ERR_ARGUMENT, c->token.at, "`%.*s` is not part of the language%s", character_bytes(*at), at,
                remedy(c, c->token.at));
}

static bool advance(compiler *c) { return look(c, c->token.at + c->token.bytes); }

static bool expect(compiler *c, cmq_selector_token_kind kind, const char *expected)
{
    return c->token.kind == kind ? advance(c) : fail_expected(c, expected);
}

/* ---- parts of the program ---- */

static void *grown(compiler *c, void *array, uint32_t *slots, uint32_t count, size_t member_bytes)
{
    if (count < *slots) return array;
    const uint32_t more = *slots == 0 ? 16 : *slots * 2;
    void *larger = realloc(array, more * member_bytes);
    if (larger == NULL) {
        fail(c, CMQ_ERR_MEMORY, c->token.at, "no memory for the program");
        return NULL;
    }
    *slots = more;
    return larger;
}

static bool emit(compiler *c, cmq_selector_step step, int32_t pushed)
{
    cmq_selector *made = c->made;
    cmq_selector_step *steps = grown(c, made->steps, &made->step_slots, made->step_count, sizeof *steps);
    if (steps == NULL) return false;
    made->steps = steps;
    made->steps[made->step_count++] = step;
    c->stack = (uint32_t)((int32_t)c->stack + pushed);
    if (c->stack > made->stack) made->stack = c->stack;
    if (c->stack > CMQ_SELECTOR_STACK_MAX)
        return fail(c, CMQ_ERR_LIMIT, c->token.at, "it needs more than %u values at once", CMQ_SELECTOR_STACK_MAX);
    const bool is_search = step.op == CMQ_SELECTOR_CONTAINS || step.op == CMQ_SELECTOR_IN;
    made->cost += is_search ? TEXT_COST : 1;
    return true;
}

static bool push_constant(compiler *c, cmq_selector_value value, uint32_t *number_out)
{
    cmq_selector *made = c->made;
    cmq_selector_value *constants =
        grown(c, made->constants, &made->constant_slots, made->constant_count, sizeof *constants);
    if (constants == NULL) return false;
    made->constants = constants;
    *number_out = made->constant_count;
    made->constants[made->constant_count++] = value;
    return true;
}

static bool emit_constant(compiler *c, cmq_selector_value value)
{
    uint32_t number;
    return push_constant(c, value, &number) &&
           emit(c, (cmq_selector_step){.op = CMQ_SELECTOR_PUSH_CONSTANT, .argument = number}, 1);
}

static bool emit_property(compiler *c)
{
    cmq_selector *made = c->made;
    const cmq_slice name = {.data = (const uint8_t *)text_at(c, c->token.at), .bytes = c->token.bytes};
    uint16_t *bucket = &made->buckets[cmq_selector_bucket(name.data, name.bytes)];
    uint16_t number = *bucket;
    while (number != CMQ_SELECTOR_NO_NAME && !cmq_slice_equal(made->names[number].text, name))
        number = made->names[number].next;
    if (number == CMQ_SELECTOR_NO_NAME) {
        if (made->name_count == CMQ_SELECTOR_NAMES_MAX)
            return fail(c, CMQ_ERR_LIMIT, c->token.at, "it names more than %u properties", CMQ_SELECTOR_NAMES_MAX);
        number = made->name_count++;
        made->names[number] = (cmq_selector_name){.text = name, .next = *bucket};
        *bucket = number;
        made->last_bytes |= UINT64_C(1) << (name.data[name.bytes - 1] & 63u);
    }
    return emit(c, (cmq_selector_step){.op = CMQ_SELECTOR_PUSH_PROPERTY, .argument = number}, 1) && advance(c);
}

/* The text of a quoted token, with one quote for two. */
static cmq_slice unquote(compiler *c, const cmq_selector_token *token)
{
    uint8_t *into = c->arena_end;
    const uint8_t *from = c->source.text.data + token->at;
    for (size_t i = 1; i + 1 < token->bytes; i++) {
        *c->arena_end++ = from[i];
        i += from[i] == '\'';
    }
    return (cmq_slice){.data = into, .bytes = (size_t)(c->arena_end - into)};
}

static bool read_text(compiler *c, cmq_slice *text_out)
{
    if (c->token.kind != CMQ_TOKEN_TEXT) return fail_expected(c, "a text in single quotes");
    *text_out = unquote(c, &c->token);
    return advance(c);
}

/* ---- checks of operands, as upstream's constructors make them ---- */

static bool is_condition(operand_kind kind) { return kind == CONDITION || kind == TRUTH || kind == NULL_LITERAL; }

/* An operand as a condition: a bare property is one. */
static bool make_condition(compiler *c, operand *of)
{
    if (is_condition(of->kind)) return true;
    if (of->kind != PROPERTY)
        return fail(c, CMQ_ERR_ARGUMENT, of->at, "a condition is needed here, not a value");
    of->kind = CONDITION;
    return emit(c, (cmq_selector_step){.op = CMQ_SELECTOR_CAST}, 0);
}

static bool check_ordered(compiler *c, const operand *of)
{
    if (of->kind == NUMBER || of->kind == PROPERTY || of->kind == NEGATED) return true;
    return fail(c, CMQ_ERR_ARGUMENT, of->at, "only numbers and properties are compared by <, <=, >, >= and BETWEEN");
}

static bool check_equal(compiler *c, const operand *left, const operand *right)
{
    const bool is_null = left->kind == NULL_LITERAL || right->kind == NULL_LITERAL;
    if (is_null) return fail(c, CMQ_ERR_ARGUMENT, left->at, "nothing equals NULL; use IS NULL or IS NOT NULL");
    if (left->kind == TRUTH && (right->kind == NUMBER || right->kind == TEXT))
        return fail(c, CMQ_ERR_ARGUMENT, left->at, "TRUE and FALSE are not compared with other literals");
    return true;
}

/* ---- the grammar ---- */

static bool parse_or(compiler *c, operand *out);
static bool parse_unary(compiler *c, operand *out);

static bool enter(compiler *c)
{
    if (++c->depth <= CMQ_SELECTOR_DEPTH_MAX) return true;
    return fail(c, CMQ_ERR_LIMIT, c->token.at, "it is more than %u levels deep", CMQ_SELECTOR_DEPTH_MAX);
}

static bool parse_whole(compiler *c)
{
    cmq_slice digits = {.data = (const uint8_t *)text_at(c, c->token.at), .bytes = c->token.bytes};
    int64_t number;
    if ((digits.data[digits.bytes - 1] | 0x20) == 'l') digits.bytes--;
    if (!cmq_java_integer(digits, INT64_MIN, INT64_MAX, &number))
        return fail(c, CMQ_ERR_ARGUMENT, c->token.at, "%.*s is above %" PRId64, shown(&c->token),
                    text_at(c, c->token.at), INT64_MAX);
    const cmq_selector_kind kind = number <= INT32_MAX ? CMQ_SELECTOR_INT32 : CMQ_SELECTOR_INT64;
    return emit_constant(c, (cmq_selector_value){.kind = kind, .as.whole = number}) && advance(c);
}

static bool parse_real(compiler *c)
{
    const cmq_slice text = {.data = (const uint8_t *)text_at(c, c->token.at), .bytes = c->token.bytes};
    double number;
    if (!cmq_java_double(text, &number) || number == 0 || number > 1.7976931348623157e308)
        return fail(c, CMQ_ERR_ARGUMENT, c->token.at,
                    "%.*s is not between the smallest and the largest number with a point; write 0 without one",
                    shown(&c->token), text_at(c, c->token.at));
    return emit_constant(c, (cmq_selector_value){.kind = CMQ_SELECTOR_DOUBLE, .as.real = number}) && advance(c);
}

static bool parse_literal(compiler *c, operand *out)
{
    cmq_selector_value value = {.kind = CMQ_SELECTOR_BOOLEAN, .name = CMQ_SELECTOR_NO_NAME};
    out->kind = TRUTH;
    switch (c->token.kind) {
    case CMQ_TOKEN_WHOLE: out->kind = NUMBER; return parse_whole(c);
    case CMQ_TOKEN_REAL: out->kind = NUMBER; return parse_real(c);
    case CMQ_TOKEN_TEXT:
        out->kind = TEXT;
        value.kind = CMQ_SELECTOR_TEXT;
        return read_text(c, &value.as.text) && emit_constant(c, value);
    case CMQ_TOKEN_TRUE: value.as.whole = 1; break;
    case CMQ_TOKEN_FALSE: break;
    case CMQ_TOKEN_NULL:
        out->kind = NULL_LITERAL;
        value.kind = CMQ_SELECTOR_NOTHING;
        break;
    default: return fail_expected(c, "a property, a value or (");
    }
    return emit_constant(c, value) && advance(c);
}

static bool parse_primary(compiler *c, operand *out)
{
    if (c->token.kind == CMQ_TOKEN_NAME) {
        out->kind = PROPERTY;
        return emit_property(c);
    }
    if (c->token.kind != CMQ_TOKEN_OPEN) return parse_literal(c, out);
    const size_t at = out->at;
    if (!enter(c) || !advance(c) || !parse_or(c, out) || !expect(c, CMQ_TOKEN_CLOSE, ")")) return false;
    out->at = at;
    c->depth--;
    return true;
}

/* The number is negated now where it is a literal: it stays none for upstream's checks. */
static bool negate(compiler *c, operand *of)
{
    cmq_selector *made = c->made;
    const cmq_selector_step *last = &made->steps[made->step_count - 1];
    of->kind = NEGATED;
    if (of->first_step + 1 == made->step_count && last->op == CMQ_SELECTOR_PUSH_CONSTANT) {
        cmq_selector_value *value = &made->constants[last->argument];
        const bool is_number = value->kind == CMQ_SELECTOR_INT32 || value->kind == CMQ_SELECTOR_INT64;
        if (value->kind == CMQ_SELECTOR_DOUBLE) value->as.real = -value->as.real;
        if (is_number) value->as.whole = -value->as.whole;   /* never the least number: no literal is */
        if (is_number || value->kind == CMQ_SELECTOR_DOUBLE) return true;
    }
    return emit(c, (cmq_selector_step){.op = CMQ_SELECTOR_NEGATE}, 0);
}

static bool parse_unary(compiler *c, operand *out)
{
    const cmq_selector_token_kind kind = c->token.kind;
    *out = (operand){.first_step = c->made->step_count, .at = c->token.at};
    if (kind != CMQ_TOKEN_PLUS && kind != CMQ_TOKEN_MINUS && kind != CMQ_TOKEN_NOT) return parse_primary(c, out);
    const size_t at = out->at;
    if (!enter(c) || !advance(c) || !parse_unary(c, out)) return false;
    out->at = at;
    c->depth--;
    if (kind == CMQ_TOKEN_PLUS) return true;
    if (kind == CMQ_TOKEN_MINUS) return negate(c, out);
    if (!make_condition(c, out)) return false;
    out->kind = CONDITION;
    return emit(c, (cmq_selector_step){.op = CMQ_SELECTOR_NOT}, 0);
}

/* Steps that lead here. */
static void set_target(compiler *c, uint32_t step) { c->made->steps[step].argument = c->made->step_count; }

/* A property and a literal behind it become one step. */
static bool emit_comparison(compiler *c, const operand *left, cmq_selector_relation relation)
{
    cmq_selector *made = c->made;
    const uint32_t count = made->step_count;
    if (left->first_step + 2 == count && made->steps[count - 2].op == CMQ_SELECTOR_PUSH_PROPERTY &&
        made->steps[count - 1].op == CMQ_SELECTOR_PUSH_CONSTANT) {
        const uint32_t name = made->steps[count - 2].argument, constant = made->steps[count - 1].argument;
        made->step_count = count - 2;
        c->stack -= 2;
        return emit(c,
                    (cmq_selector_step){.op = CMQ_SELECTOR_COMPARE_PROPERTY,
                                        .relation = (uint8_t)relation,
                                        .other = (uint16_t)name,
                                        .argument = constant},
                    1);
    }
    return emit(c, (cmq_selector_step){.op = CMQ_SELECTOR_COMPARE, .relation = (uint8_t)relation}, -1);
}

/* The step `at`, a test, is of no use before the one step of the right side, which is no error. */
static bool drop_test(compiler *c, uint32_t at)
{
    cmq_selector *made = c->made;
    const bool is_simple =
        made->step_count == at + 2 && (made->steps[at + 1].op == CMQ_SELECTOR_PUSH_CONSTANT ||
                                       made->steps[at + 1].op == CMQ_SELECTOR_PUSH_PROPERTY);
    if (!is_simple) return false;
    made->steps[at] = made->steps[at + 1];
    made->step_count--;
    return true;
}

static bool parse_ordered(compiler *c, operand *left, cmq_selector_relation relation)
{
    operand right;
    const uint32_t test = c->made->step_count;
    /* A left side that is null decides, and the right one is not evaluated: that matters where it may be an error. */
    if (!advance(c) || !emit(c, (cmq_selector_step){.op = CMQ_SELECTOR_UNLESS_NULL}, 0)) return false;
    if (!parse_unary(c, &right) || !check_ordered(c, left) || !check_ordered(c, &right)) return false;
    const bool has_test = !drop_test(c, test);
    if (!emit_comparison(c, left, relation)) return false;
    if (has_test) set_target(c, test);
    left->kind = CONDITION;
    return true;
}

static int compare_bounds(const compiler *c, const operand *low, const operand *high)
{
    const cmq_selector *made = c->made;
    return cmq_selector_compare_numbers(&made->constants[made->steps[high->first_step].argument],
                                        &made->constants[made->steps[low->first_step].argument]);
}

static bool parse_between(compiler *c, operand *left, bool negated)
{
    operand low, high;
    const cmq_selector_step begin = {.op = CMQ_SELECTOR_RANGE_BEGIN,
                                     .relation = negated ? CMQ_SELECTOR_LESS : CMQ_SELECTOR_EQUAL};
    const cmq_selector_step end = {.op = CMQ_SELECTOR_RANGE_END, .relation = begin.relation};
    const uint32_t unless = c->made->step_count;
    if (!advance(c) || !check_ordered(c, left) || !emit(c, (cmq_selector_step){.op = CMQ_SELECTOR_UNLESS_NULL}, 0))
        return false;
    if (!parse_unary(c, &low) || !check_ordered(c, &low)) return false;
    const uint32_t test = c->made->step_count;
    if (!emit(c, begin, 0) || !expect(c, CMQ_TOKEN_AND, "AND and the upper bound of BETWEEN")) return false;
    if (!parse_unary(c, &high) || !check_ordered(c, &high)) return false;
    /* upstream checks the bounds of BETWEEN alone, and only literals */
    if (!negated && low.kind == NUMBER && high.kind == NUMBER && compare_bounds(c, &low, &high) < 0)
        return fail(c, CMQ_ERR_ARGUMENT, low.at, "BETWEEN has its lower bound above its upper one");
    if (!emit(c, end, -2)) return false;
    set_target(c, unless);
    set_target(c, test);
    left->kind = CONDITION;
    return true;
}

static int by_text(const void *a, const void *b)
{
    return cmq_selector_compare_texts(*(const cmq_slice *)a, *(const cmq_slice *)b);
}

static bool read_members(compiler *c, cmq_selector_list *list)
{
    cmq_selector *made = c->made;
    do {
        cmq_slice *members = grown(c, made->members, &made->member_slots, made->member_count, sizeof *members);
        if (members == NULL) return false;
        made->members = members;
        if (!advance(c) || !read_text(c, &made->members[made->member_count])) return false;
        made->member_count++;
    } while (c->token.kind == CMQ_TOKEN_COMMA);
    list->count = made->member_count - list->first;
    return true;
}

static bool parse_in(compiler *c, operand *left, bool negated)
{
    cmq_selector *made = c->made;
    cmq_selector_list list = {.first = made->member_count};
    if (!advance(c)) return false;
    if (c->token.kind != CMQ_TOKEN_OPEN) return fail_expected(c, "( and the texts of IN");
    if (!read_members(c, &list) || !expect(c, CMQ_TOKEN_CLOSE, ", or )")) return false;
    if (left->kind != PROPERTY) return fail(c, CMQ_ERR_ARGUMENT, left->at, "only a property may be IN a list");
    qsort(made->members + list.first, list.count, sizeof *made->members, by_text);
    cmq_selector_list *lists = grown(c, made->lists, &made->list_slots, made->list_count, sizeof *lists);
    if (lists == NULL) return false;
    made->lists = lists;
    made->lists[made->list_count] = list;
    left->kind = CONDITION;
    return emit(c, (cmq_selector_step){.op = CMQ_SELECTOR_IN, .other = negated, .argument = made->list_count++}, 0);
}

static bool parse_search(compiler *c, operand *left, cmq_selector_op op, bool negated)
{
    cmq_selector_value pattern = {.kind = CMQ_SELECTOR_TEXT, .name = CMQ_SELECTOR_NO_NAME};
    uint32_t number;
    if (!advance(c) || !read_text(c, &pattern.as.text) || !push_constant(c, pattern, &number)) return false;
    left->kind = CONDITION;
    return emit(c, (cmq_selector_step){.op = (uint8_t)op, .other = negated, .argument = number}, 0);
}

/* The operators that NOT may stand before. */
static bool parse_negatable(compiler *c, operand *left, bool negated)
{
    switch (c->token.kind) {
    case CMQ_TOKEN_BETWEEN: return parse_between(c, left, negated);
    case CMQ_TOKEN_IN: return parse_in(c, left, negated);
    case CMQ_TOKEN_CONTAINS: return parse_search(c, left, CMQ_SELECTOR_CONTAINS, negated);
    case CMQ_TOKEN_STARTSWITH: return parse_search(c, left, CMQ_SELECTOR_STARTS_WITH, negated);
    case CMQ_TOKEN_ENDSWITH: return parse_search(c, left, CMQ_SELECTOR_ENDS_WITH, negated);
    default: return fail_expected(c, "IN, BETWEEN, CONTAINS, STARTSWITH or ENDSWITH behind NOT");
    }
}

static bool parse_comparison(compiler *c, operand *out)
{
    if (!parse_unary(c, out)) return false;
    for (;;) {
        bool is_sound;
        switch (c->token.kind) {
        case CMQ_TOKEN_GREATER: is_sound = parse_ordered(c, out, CMQ_SELECTOR_GREATER); break;
        case CMQ_TOKEN_GREATER_EQUAL: is_sound = parse_ordered(c, out, CMQ_SELECTOR_GREATER_EQUAL); break;
        case CMQ_TOKEN_LESS: is_sound = parse_ordered(c, out, CMQ_SELECTOR_LESS); break;
        case CMQ_TOKEN_LESS_EQUAL: is_sound = parse_ordered(c, out, CMQ_SELECTOR_LESS_EQUAL); break;
        case CMQ_TOKEN_NOT: is_sound = advance(c) && parse_negatable(c, out, true); break;
        case CMQ_TOKEN_BETWEEN:
        case CMQ_TOKEN_IN:
        case CMQ_TOKEN_CONTAINS:
        case CMQ_TOKEN_STARTSWITH:
        case CMQ_TOKEN_ENDSWITH: is_sound = parse_negatable(c, out, false); break;
        default: return true;
        }
        if (!is_sound) return false;
    }
}

static bool parse_is(compiler *c, operand *left)
{
    if (!advance(c)) return false;
    const bool negated = c->token.kind == CMQ_TOKEN_NOT;
    if (negated && !advance(c)) return false;
    if (!expect(c, CMQ_TOKEN_NULL, "NULL or NOT NULL behind IS")) return false;
    left->kind = CONDITION;
    if (!emit(c, (cmq_selector_step){.op = CMQ_SELECTOR_IS_NULL}, 0)) return false;
    return !negated || emit(c, (cmq_selector_step){.op = CMQ_SELECTOR_NOT}, 0);
}

static bool parse_equality(compiler *c, operand *out)
{
    if (!parse_comparison(c, out)) return false;
    for (;;) {
        const cmq_selector_token_kind kind = c->token.kind;
        operand right;
        if (kind == CMQ_TOKEN_IS) {
            if (!parse_is(c, out)) return false;
            continue;
        }
        if (kind != CMQ_TOKEN_EQUAL && kind != CMQ_TOKEN_NOT_EQUAL) return true;
        if (!advance(c) || !parse_comparison(c, &right) || !check_equal(c, out, &right)) return false;
        if (!emit_comparison(c, out, CMQ_SELECTOR_EQUAL)) return false;
        out->kind = CONDITION;
        if (kind == CMQ_TOKEN_NOT_EQUAL && !emit(c, (cmq_selector_step){.op = CMQ_SELECTOR_NOT}, 0)) return false;
    }
}

static bool parse_and(compiler *c, operand *out)
{
    if (!parse_equality(c, out)) return false;
    while (c->token.kind == CMQ_TOKEN_AND) {
        operand right;
        const size_t at = out->at;
        if (!make_condition(c, out)) return false;
        const uint32_t test = c->made->step_count;
        if (!emit(c, (cmq_selector_step){.op = CMQ_SELECTOR_AND_THEN}, 0) || !advance(c)) return false;
        if (!parse_equality(c, &right) || !make_condition(c, &right)) return false;
        if (!emit(c, (cmq_selector_step){.op = CMQ_SELECTOR_AND}, -1)) return false;
        set_target(c, test);
        *out = (operand){.kind = CONDITION, .first_step = out->first_step, .at = at};
    }
    return true;
}

static bool parse_or(compiler *c, operand *out)
{
    if (!parse_and(c, out)) return false;
    while (c->token.kind == CMQ_TOKEN_OR) {
        operand right;
        const size_t at = out->at;
        if (!make_condition(c, out)) return false;
        const uint32_t test = c->made->step_count;
        if (!emit(c, (cmq_selector_step){.op = CMQ_SELECTOR_OR_ELSE}, 0) || !advance(c)) return false;
        if (!parse_and(c, &right) || !make_condition(c, &right)) return false;
        if (!emit(c, (cmq_selector_step){.op = CMQ_SELECTOR_OR}, -1)) return false;
        set_target(c, test);
        *out = (operand){.kind = CONDITION, .first_step = out->first_step, .at = at};
    }
    return true;
}

/* ---- life ---- */

static cmq_status begin(cmq_slice text, cmq_selector **made_out)
{
    if (text.bytes > CMQ_SELECTOR_TEXT_BYTES_MAX)
        return cmq_fail_at(CMQ_ERR_LIMIT, CMQ_SELECTOR_TEXT_BYTES_MAX,
                           "an SQL92 expression has at most %u bytes, not %zu", CMQ_SELECTOR_TEXT_BYTES_MAX,
                           text.bytes);
    if (!cmq_utf8_is_valid(text)) return cmq_fail_at(CMQ_ERR_ARGUMENT, 0, "the SQL92 expression is not UTF-8");
    cmq_selector *made = calloc(1, sizeof *made);
    uint8_t *arena = malloc(2 * text.bytes + 1);
    if (made == NULL || arena == NULL) {
        free(made);
        free(arena);
        return cmq_fail(CMQ_ERR_MEMORY, "no memory for an SQL92 expression of %zu bytes", text.bytes);
    }
    if (text.bytes > 0) memcpy(arena, text.data, text.bytes);
    made->arena = arena;
    made->text = (cmq_slice){.data = arena, .bytes = text.bytes};
    for (uint32_t i = 0; i < CMQ_SELECTOR_BUCKETS; i++) made->buckets[i] = CMQ_SELECTOR_NO_NAME;
    *made_out = made;
    return CMQ_OK;
}

cmq_status cmq_selector_compile(cmq_slice text, cmq_selector **selector_out, size_t *tail_out)
{
    *selector_out = NULL;
    if (tail_out != NULL) *tail_out = text.bytes;
    compiler c = {0};
    const cmq_status status = begin(text, &c.made);
    if (status != CMQ_OK) return status;
    c.source = cmq_selector_source_of(c.made->text);
    c.arena_end = c.made->arena + text.bytes;
    operand whole;
    if (!look(&c, 0) || !parse_or(&c, &whole) || !make_condition(&c, &whole)) {
        cmq_selector_free(c.made);
        return c.status;
    }
    CMQ_ASSERT(c.stack == 1);
    if (tail_out != NULL) *tail_out = c.token.at;
    *selector_out = c.made;
    return CMQ_OK;
}

void cmq_selector_free(cmq_selector *selector)
{
    if (selector == NULL) return;
    free(selector->arena);
    free(selector->steps);
    free(selector->constants);
    free(selector->members);
    free(selector->lists);
    free(selector);
}

cmq_slice cmq_selector_text(const cmq_selector *selector) { return selector->text; }

size_t cmq_selector_bytes(const cmq_selector *selector)
{
    return sizeof *selector + 2 * selector->text.bytes + selector->step_slots * sizeof *selector->steps +
           selector->constant_slots * sizeof *selector->constants + selector->member_slots * sizeof *selector->members +
           selector->list_slots * sizeof *selector->lists;
}

uint32_t cmq_selector_cost(const cmq_selector *selector) { return selector->cost; }
