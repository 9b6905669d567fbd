/* cmq_selector_internal: private to the files of cmq_selector: a program's parts, and its tokens. */
#ifndef CMQ_SELECTOR_INTERNAL_H
#define CMQ_SELECTOR_INTERNAL_H

#include "filter/cmq_selector.h"

/* ---- values ---- */

typedef enum cmq_selector_kind {
    CMQ_SELECTOR_NOTHING = 0,   /* Java's null */
    CMQ_SELECTOR_TEXT,
    CMQ_SELECTOR_INT32,
    CMQ_SELECTOR_INT64,
    CMQ_SELECTOR_DOUBLE,
    CMQ_SELECTOR_BOOLEAN
} cmq_selector_kind;

#define CMQ_SELECTOR_NO_NAME UINT16_MAX

typedef struct cmq_selector_value {
    cmq_selector_kind kind;
    uint16_t name;              /* of the property that a text is the value of; else CMQ_SELECTOR_NO_NAME */
    union {
        int64_t whole;          /* also a boolean: 0 or 1 */
        double real;
        cmq_slice text;
    } as;
} cmq_selector_value;

/* ---- programs ---- */

typedef enum cmq_selector_relation {
    CMQ_SELECTOR_EQUAL = 0,
    CMQ_SELECTOR_LESS,
    CMQ_SELECTOR_LESS_EQUAL,
    CMQ_SELECTOR_GREATER,
    CMQ_SELECTOR_GREATER_EQUAL
} cmq_selector_relation;

/* Steps of a program over a stack of values. `to` is the index of a step. */
typedef enum cmq_selector_op {
    CMQ_SELECTOR_PUSH_PROPERTY = 0,   /* argument: name */
    CMQ_SELECTOR_PUSH_CONSTANT,       /* argument: constant */
    CMQ_SELECTOR_COMPARE,             /* relation of the two on top */
    CMQ_SELECTOR_COMPARE_PROPERTY,    /* property `other` with the constant `argument`: nothing on the stack */
    CMQ_SELECTOR_CAST,                /* a bare property as a condition */
    CMQ_SELECTOR_NEGATE,
    CMQ_SELECTOR_NOT,
    CMQ_SELECTOR_IS_NULL,
    CMQ_SELECTOR_AND_THEN,            /* is it FALSE? go `to` */
    CMQ_SELECTOR_OR_ELSE,             /* is it TRUE? go `to` */
    CMQ_SELECTOR_AND,
    CMQ_SELECTOR_OR,
    CMQ_SELECTOR_UNLESS_NULL,         /* is it null? go `to` */
    CMQ_SELECTOR_RANGE_BEGIN,         /* value, low: keep the value, push its relation to low; decided: go `to` */
    CMQ_SELECTOR_RANGE_END,           /* value, first relation, high */
    CMQ_SELECTOR_IN,                  /* argument: list; `other`: 1 for NOT IN */
    CMQ_SELECTOR_CONTAINS,            /* argument: constant; `other`: 1 for the NOT form */
    CMQ_SELECTOR_STARTS_WITH,
    CMQ_SELECTOR_ENDS_WITH
} cmq_selector_op;

typedef struct cmq_selector_step {
    uint8_t op;
    uint8_t relation;                 /* of a range: CMQ_SELECTOR_EQUAL is BETWEEN, CMQ_SELECTOR_LESS is NOT BETWEEN */
    uint16_t other;
    uint32_t argument;                /* or `to` */
} cmq_selector_step;

typedef struct cmq_selector_list {
    uint32_t first, count;            /* of members, sorted by length and bytes */
} cmq_selector_list;

#define CMQ_SELECTOR_BUCKETS 64u

typedef struct cmq_selector_name {
    cmq_slice text;
    uint16_t next;                    /* in its bucket */
} cmq_selector_name;

struct cmq_selector {
    uint8_t *arena;                   /* the text, then the names and texts of the program */
    cmq_slice text;
    cmq_selector_step *steps;
    cmq_selector_value *constants;
    cmq_slice *members;
    cmq_selector_list *lists;
    uint32_t step_count, step_slots;
    uint32_t constant_count, constant_slots;
    uint32_t member_count, member_slots;
    uint32_t list_count, list_slots;
    uint32_t stack;                   /* values at once */
    uint32_t cost;
    uint64_t last_bytes;              /* of the names, modulo 64: bits */
    uint16_t name_count;
    uint16_t buckets[CMQ_SELECTOR_BUCKETS];
    cmq_selector_name names[CMQ_SELECTOR_NAMES_MAX];
};

/* Values on the stack: four of each level that an expression is deep, and those of the innermost. */
#define CMQ_SELECTOR_STACK_MAX (4u * CMQ_SELECTOR_DEPTH_MAX + 8u)

static inline uint32_t cmq_selector_bucket(const uint8_t *name, size_t bytes)
{
    return ((uint32_t)name[0] + 7u * name[bytes - 1] + 13u * (uint32_t)bytes) % CMQ_SELECTOR_BUCKETS;
}

static inline int cmq_selector_compare_texts(cmq_slice a, cmq_slice b)
{
    if (a.bytes != b.bytes) return a.bytes < b.bytes ? -1 : 1;
    return a.bytes == 0 ? 0 : memcmp(a.data, b.data, a.bytes);
}

/* Upstream's order of two numbers of any kinds, or of two booleans. */
int cmq_selector_compare_numbers(const cmq_selector_value *a, const cmq_selector_value *b);

/* ---- tokens ---- */

typedef enum cmq_selector_token_kind {
    CMQ_TOKEN_END = 0,
    CMQ_TOKEN_BAD,           /* nothing that the language has */
    CMQ_TOKEN_NAME,
    CMQ_TOKEN_TEXT,          /* with its quotes */
    CMQ_TOKEN_WHOLE,
    CMQ_TOKEN_REAL,
    CMQ_TOKEN_NOT,
    CMQ_TOKEN_AND,
    CMQ_TOKEN_OR,
    CMQ_TOKEN_BETWEEN,
    CMQ_TOKEN_IN,
    CMQ_TOKEN_TRUE,
    CMQ_TOKEN_FALSE,
    CMQ_TOKEN_NULL,
    CMQ_TOKEN_IS,
    CMQ_TOKEN_CONTAINS,
    CMQ_TOKEN_STARTSWITH,
    CMQ_TOKEN_ENDSWITH,
    CMQ_TOKEN_EQUAL,
    CMQ_TOKEN_NOT_EQUAL,
    CMQ_TOKEN_GREATER,
    CMQ_TOKEN_GREATER_EQUAL,
    CMQ_TOKEN_LESS,
    CMQ_TOKEN_LESS_EQUAL,
    CMQ_TOKEN_OPEN,
    CMQ_TOKEN_COMMA,
    CMQ_TOKEN_CLOSE,
    CMQ_TOKEN_PLUS,
    CMQ_TOKEN_MINUS
} cmq_selector_token_kind;

typedef struct cmq_selector_token {
    cmq_selector_token_kind kind;
    size_t at, bytes;
} cmq_selector_token;

typedef struct cmq_selector_source {
    cmq_slice text;
    size_t lines_end;        /* behind the last line end; 0: there is none */
} cmq_selector_source;

cmq_selector_source cmq_selector_source_of(cmq_slice text);
/* The token at or behind `from`: the longest one, as upstream's tokenizer takes it. */
cmq_selector_token cmq_selector_lex(const cmq_selector_source *source, size_t from);

#endif
