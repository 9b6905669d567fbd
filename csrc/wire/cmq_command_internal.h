/* cmq_command_internal: declarations private to the files of cmq_command.
 *
 * Way: cmq_command.c (values, ROCKETMQ format) -> [this] -> cmq_command_json.c, cmq_command_write.c
 */
#ifndef CMQ_COMMAND_INTERNAL_H
#define CMQ_COMMAND_INTERNAL_H

#include <stdbool.h>

#include "wire/cmq_command.h"

/* A header in JSON; as cmq_command_parse. */
CMQ_MUST_CHECK cmq_status cmq_command_parse_json(cmq_slice header, uint8_t *scratch, size_t scratch_bytes,
                                                 cmq_command *command);

bool cmq_number_parse_any(cmq_slice text, int64_t *number_out);

/* A whole decimal number with an optional sign that fits; false, and nothing set, for anything else. Most numbers of a
 * header are one digit. */
static inline bool cmq_number_parse(cmq_slice text, int64_t *number_out)
{
    if (text.bytes != 1) return cmq_number_parse_any(text, number_out);
    const uint8_t digit = (uint8_t)(text.data[0] - '0');
    if (digit > 9) return false;
    *number_out = digit;
    return true;
}

#endif
