/* cmq_java_number: texts read as numbers by the rules of Java's Integer, Long, Double and Boolean.
 *
 * Invariant: a text that Java's parser refuses is refused here, and others give the same number, to the bit.
 * Threads:   any; pure functions over borrowed bytes.
 * Way:       a property's value -> [cmq_java_number] -> a comparison of cmq_selector
 * Source:    the documentation of Integer.parseInt, Double.valueOf and Boolean.parseBoolean.
 */
#ifndef CMQ_JAVA_NUMBER_H
#define CMQ_JAVA_NUMBER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cmq_bytes.h"

/* An optional sign and decimal digits of any script, from `min` to `max`. */
bool cmq_java_integer(cmq_slice text, int64_t min, int64_t max, int64_t *number_out);

/* Decimal or hexadecimal, NaN and Infinity; spaces around it and a suffix f, F, d or D are fine. */
bool cmq_java_double(cmq_slice text, double *number_out);

/* `true` in any case; all other texts are false. */
bool cmq_java_boolean(cmq_slice text);

/* Double.compare: NaN is equal to itself and above all others, -0.0 is below 0.0. */
int cmq_java_compare_doubles(double a, double b);

#endif
