/* cmq_command_internal: what the files of cmq_command share with each other and with nobody else.
 *
 * Way: cmq_command.c (values, ROCKETMQ format) -> [this] -> cmq_command_json.c, cmq_command_write.c
 */
#ifndef CMQ_COMMAND_INTERNAL_H
#define CMQ_COMMAND_INTERNAL_H

#include <stdbool.h>

#include "wire/cmq_command.h"

/* A header in JSON; as cmq_command_parse. */
CMQ_MUST_CHECK cmq_status cmq_command_parse_json(cmq_slice header, uint8_t *scratch, size_t scratch_bytes, cmq_command *command);

/* A whole decimal number with an optional sign that fits; false, and nothing set, for anything else. */
bool cmq_number_parse(cmq_slice text, int64_t *number_out);

#endif
