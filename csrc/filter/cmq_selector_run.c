/* cmq_selector_run: a program evaluated over a property string.
 *
 * An error is Java's exception: it ends the evaluation wherever it comes up.
 *
 * Cost: linear in the program and the properties. A long property is read as a number once, however many steps use it;
 * the bytes that searches and comparisons of properties look at are counted, and an evaluation that exceeds
 * CMQ_SELECTOR_LOOKS_MAX ends with an error. All else is bounded by the literals of the program.
 */
#include "filter/cmq_selector_internal.h"

#include "base/cmq_assert.h"
#include "filter/cmq_java_number.h"
#include "store/record/cmq_property_places.h"

#define STACK_SMALL 16u
#define NUMBER_SHORT 32u     /* parsing it again costs less than remembering it */
#define FOUND_BYTES 32u      /* of properties that are searched for names at the cost of a step, some 8 ns */
#define LOOKED_BYTES 8u      /* of texts that are compared or searched, and of numbers that are parsed, at that cost */
#define PATTERN_LOOKS 4u     /* of memmem at each byte of a text, for a pattern of several bytes */

/* ---- names ---- */

/* A property's value, and the numbers that it was read as: a bit of `tried` for each kind, and of `sound` where the
 * text is a number of that kind. */
typedef struct property {
    cmq_slice text;
    int64_t whole;
    double real;
    uint8_t tried, sound;
} property;

enum { WHOLE = 1, REAL = 2 };

/* One evaluation. */
typedef struct evaluation {
    const cmq_selector *selector;
    size_t looks_left;
    size_t parsed;           /* bytes of long numbers */
    property *properties;
} evaluation;

static inline uint16_t find_name(const cmq_selector *selector, const uint8_t *name, size_t bytes)
{
    uint16_t number = selector->buckets[cmq_selector_bucket(name, bytes)];
    while (number != CMQ_SELECTOR_NO_NAME &&
           (selector->names[number].text.bytes != bytes || memcmp(selector->names[number].text.data, name, bytes) != 0))
        number = selector->names[number].next;
    return number;
}

/* The piece of the string that a block begins in. */
typedef struct open_piece {
    size_t begin;
    bool has_name;        /* its 0x01 was in an earlier block */
    uint16_t name;        /* … and ends this name; CMQ_SELECTOR_NO_NAME: none of the program's */
    size_t value;
} open_piece;

static inline void set_value(property *values, uint16_t name, const uint8_t *data, size_t begin, size_t end)
{
    if (end > begin) values[name].text = (cmq_slice){.data = data + begin, .bytes = end - begin};
}

/* The name that ends at the 0x01 at block + bit, if it is one of the program's; the last byte rules most names out. */
static inline uint16_t name_before(const cmq_selector *selector, const uint8_t *data, const open_piece *open,
                                   size_t block, unsigned bit, const cmq_property_places *found)
{
    const size_t at = block + bit;
    if (at == 0 || (selector->last_bytes >> (data[at - 1] & 63u) & 1) == 0) return CMQ_SELECTOR_NO_NAME;
    const uint64_t before = (UINT64_C(1) << bit) - 1, pairs = found->pair_ends & before;
    size_t begin = open->begin;
    uint64_t in_piece = found->name_ends & before;
    bool is_first = !open->has_name;
    if (pairs != 0) {
        const unsigned last = 63u - (unsigned)__builtin_clzll(pairs);
        begin = block + last + 1;
        in_piece &= ~(((UINT64_C(1) << last) << 1) - 1);
        is_first = true;
    }
    if (!is_first || in_piece != 0 || at == begin) return CMQ_SELECTOR_NO_NAME;
    return find_name(selector, data + begin, at - begin);
}

/* The values of the program's names; an empty one is absent, as upstream's decoder has it. One pass: the last duplicate
 * that has a value wins. */
static void find_values(const cmq_selector *selector, cmq_slice properties, property *values)
{
    const uint8_t *data = properties.data;
    open_piece open = {.name = CMQ_SELECTOR_NO_NAME};
    for (uint32_t i = 0; i < selector->name_count; i++) {
        values[i].text = CMQ_SLICE_NONE;
        values[i].tried = values[i].sound = 0;
    }
    for (size_t block = 0; block < properties.bytes; block += CMQ_PROPERTY_BLOCK_BYTES) {
        const cmq_property_places found =
            cmq_property_find_places(data + block, cmq_property_block_bytes(properties.bytes - block));
        if (open.name != CMQ_SELECTOR_NO_NAME && found.pair_ends != 0) {
            set_value(values, open.name, data, open.value, block + (size_t)__builtin_ctzll(found.pair_ends));
            open.name = CMQ_SELECTOR_NO_NAME;
        }
        for (uint64_t left = found.name_ends; left != 0; left &= left - 1) {
            const unsigned bit = (unsigned)__builtin_ctzll(left);
            const uint16_t name = name_before(selector, data, &open, block, bit, &found);
            if (name == CMQ_SELECTOR_NO_NAME) continue;
            const uint64_t behind = found.pair_ends & (UINT64_MAX << bit);
            open.value = block + bit + 1;
            if (behind != 0)
                set_value(values, name, data, open.value, block + (size_t)__builtin_ctzll(behind));
            else
                open.name = name;
        }
        if (found.pair_ends != 0) {
            const unsigned last = 63u - (unsigned)__builtin_clzll(found.pair_ends);
            open.begin = block + last + 1;
            open.has_name = (found.name_ends >> last) != 0;
        } else {
            open.has_name |= found.name_ends != 0;
        }
    }
    if (open.name != CMQ_SELECTOR_NO_NAME) set_value(values, open.name, data, open.value, properties.bytes);
}

/* ---- comparing ---- */

static inline int order_of(int64_t a, int64_t b) { return (a > b) - (a < b); }

/* A text as the kind of the other side. False: it is none. */
static bool parse_as(cmq_selector_kind kind, cmq_slice text, cmq_selector_value *value_out)
{
    value_out->kind = kind;
    switch (kind) {
    case CMQ_SELECTOR_INT32: return cmq_java_integer(text, INT32_MIN, INT32_MAX, &value_out->as.whole);
    case CMQ_SELECTOR_INT64: return cmq_java_integer(text, INT64_MIN, INT64_MAX, &value_out->as.whole);
    case CMQ_SELECTOR_DOUBLE: return cmq_java_double(text, &value_out->as.real);
    default: value_out->as.whole = cmq_java_boolean(text); return true;
    }
}

/* The same of a property, which is parsed once for each kind. */
static __attribute__((noinline)) bool read_property(evaluation *e, property *of, cmq_selector_kind kind,
                                                    cmq_selector_value *value_out)
{
    value_out->kind = kind;
    const uint8_t bit = kind == CMQ_SELECTOR_DOUBLE ? REAL : WHOLE;
    if ((of->tried & bit) == 0) {
        const bool sound = bit == REAL ? cmq_java_double(of->text, &of->real)
                                       : cmq_java_integer(of->text, INT64_MIN, INT64_MAX, &of->whole);
        of->tried |= bit;
        e->parsed += of->text.bytes;
        if (sound) of->sound |= bit;
    }
    if ((of->sound & bit) == 0) return false;
    if (bit == REAL) {
        value_out->as.real = of->real;
        return true;
    }
    value_out->as.whole = of->whole;
    return kind != CMQ_SELECTOR_INT32 || (of->whole >= INT32_MIN && of->whole <= INT32_MAX);
}

static inline bool read_as(evaluation *e, cmq_selector_kind kind, const cmq_selector_value *text,
                           cmq_selector_value *value_out)
{
    if (text->name == CMQ_SELECTOR_NO_NAME || kind == CMQ_SELECTOR_BOOLEAN || text->as.text.bytes <= NUMBER_SHORT)
        return parse_as(kind, text->as.text, value_out);
    return read_property(e, &e->properties[text->name], kind, value_out);
}

/* Count bytes that a step looks at. False: the evaluation has looked at too many. */
static inline bool look_at(evaluation *e, size_t bytes)
{
    if (bytes > e->looks_left) return false;
    e->looks_left -= bytes;
    return true;
}

static inline double real_of(const cmq_selector_value *value)
{
    return value->kind == CMQ_SELECTOR_DOUBLE ? value->as.real : (double)value->as.whole;
}

int cmq_selector_compare_numbers(const cmq_selector_value *a, const cmq_selector_value *b)
{
    if (a->kind == CMQ_SELECTOR_DOUBLE || b->kind == CMQ_SELECTOR_DOUBLE)
        return cmq_java_compare_doubles(real_of(a), real_of(b));
    return order_of(a->as.whole, b->as.whole);
}

/* Upstream's comparison of two values that are not null. False: they cannot be compared. */
static inline bool compare_equal(evaluation *e, const cmq_selector_value *a, const cmq_selector_value *b,
                                 int *order_out)
{
    cmq_selector_value read;
    *order_out = -1;
    if (a->kind == CMQ_SELECTOR_TEXT && b->kind == CMQ_SELECTOR_TEXT) {
        if (a->as.text.bytes == b->as.text.bytes && !look_at(e, a->as.text.bytes)) return false;
        *order_out = cmq_selector_compare_texts(a->as.text, b->as.text);
        return true;
    }
    if (a->kind == CMQ_SELECTOR_TEXT) {
        if (!read_as(e, b->kind, a, &read)) return false;
        *order_out = cmq_selector_compare_numbers(&read, b);
        return true;
    }
    if (b->kind == CMQ_SELECTOR_TEXT) {
        if (a->kind == CMQ_SELECTOR_BOOLEAN || !read_as(e, a->kind, b, &read)) return false;
        *order_out = cmq_selector_compare_numbers(a, &read);
        return true;
    }
    /* a condition and a number: "less", whatever they are */
    if ((a->kind == CMQ_SELECTOR_BOOLEAN) != (b->kind == CMQ_SELECTOR_BOOLEAN)) return true;
    *order_out = cmq_selector_compare_numbers(a, b);
    return true;
}

/* Two texts have an order as numbers only. */
static bool compare_ordered(evaluation *e, const cmq_selector_value *a, const cmq_selector_value *b, int *order_out)
{
    if (a->kind != CMQ_SELECTOR_TEXT || b->kind != CMQ_SELECTOR_TEXT) return compare_equal(e, a, b, order_out);
    cmq_selector_value left, right;
    if (!read_as(e, CMQ_SELECTOR_DOUBLE, a, &left) || !read_as(e, CMQ_SELECTOR_DOUBLE, b, &right)) return false;
    *order_out = cmq_java_compare_doubles(left.as.real, right.as.real);
    return true;
}

static inline bool holds(cmq_selector_relation relation, int order)
{
    switch (relation) {
    case CMQ_SELECTOR_EQUAL: return order == 0;
    case CMQ_SELECTOR_LESS: return order < 0;
    case CMQ_SELECTOR_LESS_EQUAL: return order <= 0;
    case CMQ_SELECTOR_GREATER: return order > 0;
    default: return order >= 0;
    }
}

static inline cmq_selector_answer truth(bool is_true) { return is_true ? CMQ_SELECTOR_TRUE : CMQ_SELECTOR_FALSE; }

static cmq_selector_answer relate(evaluation *e, cmq_selector_relation relation, const cmq_selector_value *a,
                                  const cmq_selector_value *b)
{
    int order;
    const bool is_equality = relation == CMQ_SELECTOR_EQUAL;
    if (a->kind == CMQ_SELECTOR_NOTHING)
        return is_equality && b->kind == CMQ_SELECTOR_NOTHING ? CMQ_SELECTOR_TRUE : CMQ_SELECTOR_NULL;
    if (b->kind == CMQ_SELECTOR_NOTHING) return is_equality ? CMQ_SELECTOR_FALSE : CMQ_SELECTOR_NULL;
    if (!(is_equality ? compare_equal : compare_ordered)(e, a, b, &order)) return CMQ_SELECTOR_ERROR;
    return truth(holds(relation, order));
}

/* ---- three-valued logic ---- */

static inline cmq_selector_answer answer_of(const cmq_selector_value *value)
{
    if (value->kind == CMQ_SELECTOR_NOTHING) return CMQ_SELECTOR_NULL;
    return truth(value->as.whole != 0);
}

static inline void set_answer(cmq_selector_value *value, cmq_selector_answer answer)
{
    value->kind = answer == CMQ_SELECTOR_NULL ? CMQ_SELECTOR_NOTHING : CMQ_SELECTOR_BOOLEAN;
    value->as.whole = answer == CMQ_SELECTOR_TRUE;
}

static cmq_selector_answer both(cmq_selector_answer a, cmq_selector_answer b)
{
    if (a == CMQ_SELECTOR_FALSE || b == CMQ_SELECTOR_FALSE) return CMQ_SELECTOR_FALSE;
    return a == CMQ_SELECTOR_NULL || b == CMQ_SELECTOR_NULL ? CMQ_SELECTOR_NULL : CMQ_SELECTOR_TRUE;
}

static cmq_selector_answer either(cmq_selector_answer a, cmq_selector_answer b)
{
    if (a == CMQ_SELECTOR_TRUE || b == CMQ_SELECTOR_TRUE) return CMQ_SELECTOR_TRUE;
    return a == CMQ_SELECTOR_NULL || b == CMQ_SELECTOR_NULL ? CMQ_SELECTOR_NULL : CMQ_SELECTOR_FALSE;
}

/* ---- steps ---- */

static inline cmq_selector_value property_value(const evaluation *e, uint32_t name)
{
    const cmq_slice text = e->properties[name].text;
    if (text.bytes == 0) return (cmq_selector_value){.kind = CMQ_SELECTOR_NOTHING};
    return (cmq_selector_value){.kind = CMQ_SELECTOR_TEXT, .name = (uint16_t)name, .as.text = text};
}

static bool is_member(const cmq_selector *selector, const cmq_selector_list *list, cmq_slice text)
{
    uint32_t low = list->first, high = list->first + list->count;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        const int order = cmq_selector_compare_texts(text, selector->members[middle]);
        if (order == 0) return true;
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return false;
}

static bool finds(uint8_t op, cmq_slice text, cmq_slice pattern)
{
    if (pattern.bytes > text.bytes) return false;
    if (op == CMQ_SELECTOR_CONTAINS) return memmem(text.data, text.bytes, pattern.data, pattern.bytes) != NULL;
    const size_t at = op == CMQ_SELECTOR_STARTS_WITH ? 0 : text.bytes - pattern.bytes;
    return memcmp(text.data + at, pattern.data, pattern.bytes) == 0;
}

/* Bytes that a search looks at. */
static size_t search_looks(uint8_t op, cmq_slice text, cmq_slice pattern)
{
    if (op != CMQ_SELECTOR_CONTAINS || pattern.bytes > text.bytes) return 0;
    return pattern.bytes == 1 ? text.bytes : text.bytes * PATTERN_LOOKS;
}

/* FALSE in the NOT forms too: without a text or a pattern nothing is searched. */
static cmq_selector_answer search(evaluation *e, const cmq_selector_step *step, const cmq_selector_value *value,
                                  cmq_slice pattern)
{
    if (value->kind != CMQ_SELECTOR_TEXT || pattern.bytes == 0) return CMQ_SELECTOR_FALSE;
    if (!look_at(e, search_looks(step->op, value->as.text, pattern))) return CMQ_SELECTOR_ERROR;
    return truth(finds(step->op, value->as.text, pattern) != (step->other != 0));
}

static void negate(cmq_selector_value *value)
{
    if (value->kind == CMQ_SELECTOR_DOUBLE)
        value->as.real = -value->as.real;
    else if (value->kind == CMQ_SELECTOR_INT32 || value->kind == CMQ_SELECTOR_INT64)
        value->as.whole = -value->as.whole;
    else
        value->kind = CMQ_SELECTOR_NOTHING;
}

/* The first half of BETWEEN, whose relation takes the place of the lower bound. */
static cmq_selector_answer begin_range(evaluation *e, const cmq_selector_step *step, cmq_selector_value *top)
{
    const bool negated = step->relation == CMQ_SELECTOR_LESS;
    const cmq_selector_answer answer =
        relate(e, negated ? CMQ_SELECTOR_LESS : CMQ_SELECTOR_GREATER_EQUAL, top - 1, top);
    set_answer(top, answer);
    return answer;
}

/* The second half: value, first relation and upper bound become one. */
static cmq_selector_answer end_range(evaluation *e, const cmq_selector_step *step, cmq_selector_value *value)
{
    const bool negated = step->relation == CMQ_SELECTOR_LESS;
    const cmq_selector_answer first = answer_of(value + 1);
    const cmq_selector_answer second =
        relate(e, negated ? CMQ_SELECTOR_GREATER : CMQ_SELECTOR_LESS_EQUAL, value, value + 2);
    set_answer(value, negated ? either(first, second) : both(first, second));
    return second;
}

static void look_up(const cmq_selector *selector, const cmq_selector_step *step, cmq_selector_value *top)
{
    const cmq_selector_list *list = &selector->lists[step->argument];
    if (top->kind == CMQ_SELECTOR_NOTHING) return;
    set_answer(top, truth(is_member(selector, list, top->as.text) != (step->other != 0)));
}

static inline cmq_selector_answer run(evaluation *e, cmq_selector_value *stack)
{
    const cmq_selector *selector = e->selector;
    cmq_selector_value *top = stack - 1;
    cmq_selector_answer answer;
    const cmq_selector_step *steps = selector->steps, *end = steps + selector->step_count;
    for (const cmq_selector_step *step = steps; step < end; step++) {
        switch ((cmq_selector_op)step->op) {
        case CMQ_SELECTOR_PUSH_PROPERTY: *++top = property_value(e, step->argument); break;
        case CMQ_SELECTOR_PUSH_CONSTANT: *++top = selector->constants[step->argument]; break;
        case CMQ_SELECTOR_COMPARE_PROPERTY:
            *++top = property_value(e, step->other);
            answer = relate(e, (cmq_selector_relation)step->relation, top, &selector->constants[step->argument]);
            if (answer == CMQ_SELECTOR_ERROR) return answer;
            set_answer(top, answer);
            break;
        case CMQ_SELECTOR_COMPARE:
            top--;
            answer = relate(e, (cmq_selector_relation)step->relation, top, top + 1);
            if (answer == CMQ_SELECTOR_ERROR) return answer;
            set_answer(top, answer);
            break;
        case CMQ_SELECTOR_CAST:   /* a property is a text, which is no condition */
            if (top->kind != CMQ_SELECTOR_NOTHING) set_answer(top, CMQ_SELECTOR_FALSE);
            break;
        case CMQ_SELECTOR_NEGATE: negate(top); break;
        case CMQ_SELECTOR_NOT:
            if (top->kind != CMQ_SELECTOR_NOTHING) top->as.whole = !top->as.whole;
            break;
        case CMQ_SELECTOR_IS_NULL: set_answer(top, truth(top->kind == CMQ_SELECTOR_NOTHING)); break;
        case CMQ_SELECTOR_AND_THEN:
            if (answer_of(top) == CMQ_SELECTOR_FALSE) step = steps + step->argument - 1;
            break;
        case CMQ_SELECTOR_OR_ELSE:
            if (answer_of(top) == CMQ_SELECTOR_TRUE) step = steps + step->argument - 1;
            break;
        case CMQ_SELECTOR_AND:
            top--;
            set_answer(top, both(answer_of(top), answer_of(top + 1)));
            break;
        case CMQ_SELECTOR_OR:
            top--;
            set_answer(top, either(answer_of(top), answer_of(top + 1)));
            break;
        case CMQ_SELECTOR_UNLESS_NULL:
            if (top->kind == CMQ_SELECTOR_NOTHING) step = steps + step->argument - 1;
            break;
        case CMQ_SELECTOR_RANGE_BEGIN:
            answer = begin_range(e, step, top);
            if (answer == CMQ_SELECTOR_ERROR) return answer;
            if (answer != truth(step->relation == CMQ_SELECTOR_LESS)) break;
            top--;
            *top = top[1];
            step = steps + step->argument - 1;
            break;
        case CMQ_SELECTOR_RANGE_END:
            top -= 2;
            if (end_range(e, step, top) == CMQ_SELECTOR_ERROR) return CMQ_SELECTOR_ERROR;
            break;
        case CMQ_SELECTOR_IN: look_up(selector, step, top); break;
        case CMQ_SELECTOR_CONTAINS:
        case CMQ_SELECTOR_STARTS_WITH:
        case CMQ_SELECTOR_ENDS_WITH:
            answer = search(e, step, top, selector->constants[step->argument].as.text);
            if (answer == CMQ_SELECTOR_ERROR) return answer;
            set_answer(top, answer);
            break;
        }
    }
    CMQ_ASSERT(top == stack);
    return answer_of(top);
}

/* Its own stack frame: few programs need as much. */
static __attribute__((noinline)) cmq_selector_answer run_deep(evaluation *e)
{
    cmq_selector_value stack[CMQ_SELECTOR_STACK_MAX];
    return run(e, stack);
}

static inline __attribute__((always_inline)) cmq_selector_answer evaluate(evaluation *e, cmq_slice properties)
{
    cmq_selector_value stack[STACK_SMALL];
    find_values(e->selector, properties, e->properties);
    return e->selector->stack <= STACK_SMALL ? run(e, stack) : run_deep(e);
}

cmq_selector_answer cmq_selector_evaluate(const cmq_selector *selector, cmq_slice properties)
{
    property values[CMQ_SELECTOR_NAMES_MAX];
    evaluation e = {.selector = selector, .looks_left = CMQ_SELECTOR_LOOKS_MAX, .properties = values};
    return evaluate(&e, properties);
}

cmq_selector_answer cmq_selector_evaluate_counted(const cmq_selector *selector, cmq_slice properties,
                                                  uint64_t *steps_out)
{
    property values[CMQ_SELECTOR_NAMES_MAX];
    evaluation e = {.selector = selector, .looks_left = CMQ_SELECTOR_LOOKS_MAX, .properties = values};
    const cmq_selector_answer answer = evaluate(&e, properties);
    const size_t looks = CMQ_SELECTOR_LOOKS_MAX - e.looks_left;
    *steps_out = selector->cost + properties.bytes / FOUND_BYTES + (looks + e.parsed) / LOOKED_BYTES;
    return answer;
}
