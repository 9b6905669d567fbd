/* cmq_frame_kit: frames for tests: from hexadecimal digits, from JSON text, and those that real brokers and clients
 * exchanged.
 *
 * Invariant: every frame and header lies in a heap block of its exact size, so that the address sanitizer sees one byte
 *            read too far.
 */
#ifndef CMQ_FRAME_KIT_H
#define CMQ_FRAME_KIT_H

#include <stddef.h>
#include <stdint.h>

#include "wire/cmq_command.h"

typedef struct cmq_kit_command {
    cmq_command command;
    uint8_t *header;
    uint8_t *scratch;
} cmq_kit_command;

/* Bytes from hexadecimal digits, blanks between them ignored; free() them. */
uint8_t *cmq_kit_hex(const char *digits, size_t *bytes_out);

/* Parse a header in blocks of its own. The status is cmq_command_parse's; end with cmq_kit_command_free in any case. */
cmq_status cmq_kit_parse(cmq_kit_command *kit, cmq_header_format format, cmq_slice header);
void cmq_kit_command_free(cmq_kit_command *kit);

/* Write a command again as it was read, for a body of `body_bytes`; free() the frame, of which only prefix and header
 * are there. */
uint8_t *cmq_kit_write(const cmq_command *command, size_t body_bytes, size_t *bytes_out);

/* A command from JSON text with single quotes in place of double ones; it must be one. */
cmq_kit_command cmq_kit_json(const char *json);

/* Call `visit` with each captured frame of tests/fuzz/c/corpus/frame, by name; returns how many there are. */
size_t cmq_kit_golden_frames(void (*visit)(const char *name, cmq_slice frame));

#endif
