/* cmq_counted: numbers with their nouns, for texts that people read: "1 record is", "2 records are".
 *
 * Threads: any; pure functions.
 * Source:  ours; src/cometmq/_plural.py is the same for Python.
 */
#ifndef CMQ_COUNTED_H
#define CMQ_COUNTED_H

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>

typedef struct cmq_counted_text {
    char text[64];
} cmq_counted_text;

/* The number, and the noun with an s where there is not one of it; cut where it is long. Use as cmq_counted(n,
 * "record").text in a call. */
static inline cmq_counted_text cmq_counted(int64_t count, const char *noun)
{
    cmq_counted_text counted;
    snprintf(counted.text, sizeof counted.text, "%" PRId64 " %s%s", count, noun, count == 1 ? "" : "s");
    return counted;
}

/* The verb that goes with the number. */
static inline const char *cmq_verb(int64_t count, const char *singular, const char *plural)
{
    return count == 1 ? singular : plural;
}

#endif
