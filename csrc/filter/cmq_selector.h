/* cmq_selector: SQL92 expressions over the properties of messages, as upstream's consumers and brokers use them.
 *
 * An expression is compiled once into a small program. Evaluating it reads the property bytes where they lie: one pass
 * finds the values of all names that the program uses, then the program runs over a stack of its own size.
 *
 * Invariant: a program never changes. Evaluation allocates nothing, takes no lock and reads no clock; it never fails
 *            but by its answer.
 * Cost:      compiling is linear in the text; evaluating three comparisons takes some 50 ns, and the worst expression
 *            over the worst properties some 4 ms.
 * Limits:    below; a text beyond one is refused.
 * Threads:   compile and free: any. Evaluate: any number at once.
 * Way:       subscription, `where` -> [cmq_selector_compile] -> a record's properties -> [cmq_selector_evaluate]
 * Source:    specification transactions-filters, section 3; upstream's SelectorParser.jj and its expression classes.
 */
#ifndef CMQ_SELECTOR_H
#define CMQ_SELECTOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cmq_bytes.h"
#include "base/cmq_status.h"

#define CMQ_SELECTOR_TEXT_BYTES_MAX 65536u   /* of one expression */
#define CMQ_SELECTOR_NAMES_MAX 256u          /* different properties that it names */
#define CMQ_SELECTOR_DEPTH_MAX 200u          /* of parentheses and prefix operators within one another */
#define CMQ_SELECTOR_LOOKS_MAX 4194304u      /* bytes that CONTAINS and comparisons of texts look at in one message */

typedef struct cmq_selector cmq_selector;

/* Upstream's four outcomes. A message matches on CMQ_SELECTOR_TRUE alone. */
typedef enum cmq_selector_answer {
    CMQ_SELECTOR_FALSE = 0,
    CMQ_SELECTOR_TRUE,
    CMQ_SELECTOR_NULL,    /* unknown: a property is missing */
    CMQ_SELECTOR_ERROR    /* a value cannot be compared, as a text that is no number; or CMQ_SELECTOR_LOOKS_MAX */
} cmq_selector_answer;

/* Compile. *tail_out (may be NULL): the byte offset of the rest that upstream's grammar ignores, or the text's length
 * when there is none. CMQ_ERR_ARGUMENT: upstream refuses the text too. CMQ_ERR_LIMIT: it is beyond a limit above.
 * CMQ_ERR_MEMORY. The last error has the reason and, as its offset, the place. */
cmq_status CMQ_MUST_CHECK cmq_selector_compile(cmq_slice text, cmq_selector **selector_out, size_t *tail_out);
void cmq_selector_free(cmq_selector *selector);   /* NULL is fine */

/* `properties`: the property string of a record. */
cmq_selector_answer cmq_selector_evaluate(const cmq_selector *selector, cmq_slice properties);
/* *steps_out: the work done, in steps of some 8 ns; a program counts all its steps, also where it ended early. */
cmq_selector_answer cmq_selector_evaluate_counted(const cmq_selector *selector, cmq_slice properties,
                                                  uint64_t *steps_out);

/* The text that it was compiled from. */
cmq_slice cmq_selector_text(const cmq_selector *selector);
size_t cmq_selector_bytes(const cmq_selector *selector);   /* allocated */
/* The steps of the program, without the work on texts: compare with others. At least 1. */
uint32_t cmq_selector_cost(const cmq_selector *selector);

#endif
