/* cmq_property: the property string of a record, `name 0x01 value 0x02 name 0x01 value 0x02 ...`.
 *
 * Invariant: reading follows upstream's decoder: a piece counts only if its 0x01 is not first and a value follows;
 *            pieces without a value are dropped, the last 0x02 may be missing, a later duplicate wins.
 * Way:       Python / wire -> [cmq_property_encode] -> cmq_record_encode; cmq_record_parse -> [cmq_property_find]
 * Threads:   any; pure functions over borrowed bytes.
 * Source:    store specification 2.4.
 */
#ifndef CMQ_PROPERTY_H
#define CMQ_PROPERTY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cmq_bytes.h"
#include "base/cmq_status.h"

#define CMQ_PROPERTY_NAME_END 0x01     /* between name and value */
#define CMQ_PROPERTY_PAIR_END 0x02     /* after a value */
#define CMQ_PROPERTY_BYTES_MAX 32767   /* whole string, as propLen is an i16 */

/* Take the next pair that upstream's decoder would keep off the front of *rest; false (and empty slices) at the end.
 * Name and value are borrowed from *rest. Duplicates are all given: the caller lets the last win. */
bool cmq_property_next(cmq_slice *rest, cmq_slice *name_out, cmq_slice *value_out);

/* The value of `name` (not empty, without 0x01 and 0x02): the last pair's. False, and an empty slice, if it is
 * absent. */
bool cmq_property_find(cmq_slice properties, cmq_slice name, cmq_slice *value_out);

/* Names that the store looks at. CMQ_PROPERTY_OTHER stands for any other name. */
typedef enum cmq_property_name {
    CMQ_PROPERTY_OTHER = 0,
    CMQ_PROPERTY_TAGS,                       /* TAGS */
    CMQ_PROPERTY_KEYS,                       /* KEYS */
    CMQ_PROPERTY_UNIQ_KEY,                   /* UNIQ_KEY */
    CMQ_PROPERTY_DELAY,                      /* DELAY */
    CMQ_PROPERTY_INNER_NUM,                  /* INNER_NUM */
    CMQ_PROPERTY_INNER_BASE,                 /* INNER_BASE */
    CMQ_PROPERTY_INNER_MULTI_DISPATCH,       /* INNER_MULTI_DISPATCH */
    CMQ_PROPERTY_INNER_MULTI_QUEUE_OFFSET,   /* INNER_MULTI_QUEUE_OFFSET */
    CMQ_PROPERTY_DUP_INFO,                   /* DUP_INFO */
    CMQ_PROPERTY_CRC32,                      /* __CRC32# */
    CMQ_PROPERTY_POP_CK,                     /* POP_CK */
    CMQ_PROPERTY_KNOWN_COUNT
} cmq_property_name;

/* The values of the names above; empty where absent, as a stored value is never empty. Index with cmq_property_name. */
typedef struct cmq_property_known {
    cmq_slice value[CMQ_PROPERTY_KNOWN_COUNT];
    bool has_zero;                           /* a byte of the whole string is 0 */
} cmq_property_known;

/* Find every known name in one pass over the string. */
void cmq_property_find_known(cmq_slice properties, cmq_property_known *known_out);

/* Whether a value, or a name, may be stored. CMQ_ERR_ARGUMENT with a text that names the pair when it holds 0x01 or
 * 0x02, when the name is empty or begins with `__RMQ.TRANSIENT.`. An empty value is allowed here; upstream's decoder
 * drops such a pair, so callers should not store it. */
CMQ_MUST_CHECK cmq_status cmq_property_check_name(cmq_slice name);
CMQ_MUST_CHECK cmq_status cmq_property_check_value(cmq_slice name, cmq_slice value);

/* Whether the text holds 0x01 or 0x02. */
bool cmq_property_has_separator(cmq_slice text);

/* Whether the text holds 0x00, 0x01 or 0x02: separators, or what a sector that was never written reads as. */
bool cmq_property_has_control(cmq_slice text);

/* Copy `properties` without the pieces of this name, the others byte for byte; `into` has room for all of them. Returns
 * how many bytes. */
size_t cmq_property_copy_without(uint8_t *into, cmq_slice properties, cmq_slice name);

/* Bytes of one encoded pair, with its 0x02. */
static inline size_t cmq_property_pair_bytes(cmq_slice name, cmq_slice value) { return name.bytes + value.bytes + 2; }

/* Write one pair to `into`, which has room for cmq_property_pair_bytes; returns the byte after it. No checks. */
uint8_t *cmq_property_write(uint8_t *into, cmq_slice name, cmq_slice value);

/* Check and append one pair to buffer[0, *used) of `capacity` bytes; CMQ_ERR_TOO_LARGE when it does not fit, and
 * CMQ_ERR_ARGUMENT as the checks above. *used moves only on CMQ_OK. An empty value writes nothing. */
CMQ_MUST_CHECK cmq_status cmq_property_append(uint8_t *buffer, size_t capacity, size_t *used, cmq_slice name,
                                              cmq_slice value);

#endif
