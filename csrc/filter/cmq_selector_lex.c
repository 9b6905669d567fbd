/* cmq_selector_lex: the tokens of an expression. The longest match wins, so `0123` is `0` and then `123`, and `--`
 * without a line end behind it is two minus signs. */
#include "filter/cmq_selector_internal.h"

#include <strings.h>

static bool is_digit(uint8_t c) { return c >= '0' && c <= '9'; }

static bool begins_name(uint8_t c) { return ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') || c == '_' || c == '$'; }

static size_t end_of_digits(cmq_slice text, size_t at)
{
    while (at < text.bytes && is_digit(text.data[at])) at++;
    return at;
}

static bool is_line_end(uint8_t c) { return c == '\n' || c == '\r'; }

/* The end of the comment at `at`, or `at` where there is none. Looks for a line end only where there is one: a text of
 * minus signs takes no longer than others. */
static size_t skip_comment(const cmq_selector_source *source, size_t at)
{
    const cmq_slice text = source->text;
    if (text.bytes - at < 2) return at;
    if (text.data[at] == '-' && text.data[at + 1] == '-') {
        if (at + 2 >= source->lines_end) return at;
        size_t i = at + 2;
        while (!is_line_end(text.data[i])) i++;
        return i + 1;
    } else if (text.data[at] == '/' && text.data[at + 1] == '*') {
        for (size_t i = at + 2; i + 1 < text.bytes; i++)
            if (text.data[i] == '*' && text.data[i + 1] == '/') return i + 2;
    }
    return at;
}

static size_t skip_space(const cmq_selector_source *source, size_t at)
{
    const cmq_slice text = source->text;
    for (;;) {
        while (at < text.bytes && (text.data[at] == ' ' || (text.data[at] >= '\t' && text.data[at] <= '\r' &&
                                                            text.data[at] != '\v')))
            at++;
        const size_t behind = skip_comment(source, at);
        if (behind == at) return at;
        at = behind;
    }
}

static cmq_selector_token word(cmq_slice text, size_t at)
{
    static const struct {
        const char *text;
        cmq_selector_token_kind kind;
    } words[] = {{"NOT", CMQ_TOKEN_NOT},
                 {"AND", CMQ_TOKEN_AND},
                 {"OR", CMQ_TOKEN_OR},
                 {"BETWEEN", CMQ_TOKEN_BETWEEN},
                 {"IN", CMQ_TOKEN_IN},
                 {"TRUE", CMQ_TOKEN_TRUE},
                 {"FALSE", CMQ_TOKEN_FALSE},
                 {"NULL", CMQ_TOKEN_NULL},
                 {"IS", CMQ_TOKEN_IS},
                 {"CONTAINS", CMQ_TOKEN_CONTAINS},
                 {"STARTSWITH", CMQ_TOKEN_STARTSWITH},
                 {"ENDSWITH", CMQ_TOKEN_ENDSWITH}};
    size_t end = at + 1;
    while (end < text.bytes && (begins_name(text.data[end]) || is_digit(text.data[end]))) end++;
    cmq_selector_token token = {.kind = CMQ_TOKEN_NAME, .at = at, .bytes = end - at};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strlen(words[i].text) == token.bytes &&
            strncasecmp(words[i].text, (const char *)text.data + at, token.bytes) == 0)
            token.kind = words[i].kind;
    return token;
}

/* The end of an exponent at `at`, or `at` where there is none. */
static size_t skip_exponent(cmq_slice text, size_t at)
{
    if (at == text.bytes || (text.data[at] | 0x20) != 'e') return at;
    size_t digits = at + 1;
    if (digits < text.bytes && (text.data[digits] == '+' || text.data[digits] == '-')) digits++;
    const size_t end = end_of_digits(text, digits);
    return end == digits ? at : end;
}

static cmq_selector_token number(cmq_slice text, size_t at)
{
    const size_t whole = end_of_digits(text, at);
    cmq_selector_token token = {.kind = CMQ_TOKEN_REAL, .at = at};
    if (whole < text.bytes && text.data[whole] == '.') {
        token.bytes = skip_exponent(text, end_of_digits(text, whole + 1)) - at;
        return token;
    }
    token.bytes = skip_exponent(text, whole) - at;
    if (token.bytes > whole - at) return token;
    token.kind = CMQ_TOKEN_WHOLE;
    if (text.data[at] == '0')
        token.bytes = 1;
    else if (whole < text.bytes && (text.data[whole] | 0x20) == 'l')
        token.bytes++;
    return token;
}

/* From its quote to the last one that may end it: two quotes are one of the text. */
static cmq_selector_token quoted(cmq_slice text, size_t at)
{
    cmq_selector_token token = {.kind = CMQ_TOKEN_BAD, .at = at, .bytes = text.bytes - at};
    for (size_t i = at + 1; i < text.bytes; i++) {
        if (text.data[i] != '\'') continue;
        token.kind = CMQ_TOKEN_TEXT;
        token.bytes = i + 1 - at;
        if (i + 1 == text.bytes || text.data[i + 1] != '\'') break;
        i++;
    }
    return token;
}

static cmq_selector_token sign(cmq_slice text, size_t at)
{
    const uint8_t next = at + 1 < text.bytes ? text.data[at + 1] : 0;
    cmq_selector_token token = {.kind = CMQ_TOKEN_BAD, .at = at, .bytes = 1};
    switch (text.data[at]) {
    case '=': token.kind = CMQ_TOKEN_EQUAL; break;
    case '(': token.kind = CMQ_TOKEN_OPEN; break;
    case ',': token.kind = CMQ_TOKEN_COMMA; break;
    case ')': token.kind = CMQ_TOKEN_CLOSE; break;
    case '+': token.kind = CMQ_TOKEN_PLUS; break;
    case '-': token.kind = CMQ_TOKEN_MINUS; break;
    case '<':
        token.kind = next == '>' ? CMQ_TOKEN_NOT_EQUAL : next == '=' ? CMQ_TOKEN_LESS_EQUAL : CMQ_TOKEN_LESS;
        break;
    case '>': token.kind = next == '=' ? CMQ_TOKEN_GREATER_EQUAL : CMQ_TOKEN_GREATER; break;
    default: break;
    }
    const bool is_two = token.kind == CMQ_TOKEN_NOT_EQUAL || token.kind == CMQ_TOKEN_LESS_EQUAL ||
                        token.kind == CMQ_TOKEN_GREATER_EQUAL;
    token.bytes += is_two;
    return token;
}

cmq_selector_source cmq_selector_source_of(cmq_slice text)
{
    size_t end = text.bytes;
    while (end > 0 && !is_line_end(text.data[end - 1])) end--;
    return (cmq_selector_source){.text = text, .lines_end = end};
}

cmq_selector_token cmq_selector_lex(const cmq_selector_source *source, size_t from)
{
    const cmq_slice text = source->text;
    const size_t at = skip_space(source, from);
    if (at == text.bytes) return (cmq_selector_token){.kind = CMQ_TOKEN_END, .at = at};
    const uint8_t c = text.data[at];
    if (begins_name(c)) return word(text, at);
    if (is_digit(c) || (c == '.' && at + 1 < text.bytes && is_digit(text.data[at + 1]))) return number(text, at);
    return c == '\'' ? quoted(text, at) : sign(text, at);
}
