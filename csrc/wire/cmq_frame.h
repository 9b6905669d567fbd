/* cmq_frame: where one remoting frame ends and the next begins.
 *
 *     0  4  totalLength   of what follows
 *     4  4  headerWord    bits 31..24 header format, bits 23..0 header length
 *     8  H  header
 *   8+H  B  body
 *
 * Invariant: no length is used before it was compared with its limit and with what is there.
 * Way:       socket -> [cmq_frame_next] -> cmq_command_parse -> processor
 * Threads:   any; pure functions over borrowed bytes.
 * Source:    remoting specification 1.1.
 */
#ifndef CMQ_FRAME_H
#define CMQ_FRAME_H

#include <stddef.h>
#include <stdint.h>

#include "base/cmq_bytes.h"
#include "base/cmq_status.h"

#define CMQ_FRAME_BYTES_MAX 16777216u   /* with the four length bytes: upstream's frameMaxLength */
#define CMQ_FRAME_PREFIX_BYTES 8u

typedef enum cmq_header_format {
    CMQ_HEADER_JSON = 0,
    CMQ_HEADER_ROCKETMQ = 1
} cmq_header_format;

typedef struct cmq_frame {
    cmq_header_format format;
    cmq_slice header;
    cmq_slice body;
    size_t bytes;      /* of the whole frame, length word included: step by it */
} cmq_frame;

/* The frame at the front of `buffer`; its slices are borrowed from there. CMQ_AGAIN when it is not whole yet, with the
 * bytes that it needs in all in *needed_out (CMQ_FRAME_PREFIX_BYTES while its length is not known). CMQ_ERR_CORRUPT for
 * what no frame can be (the text says why): close the connection, as the stream cannot be stepped over. */
CMQ_MUST_CHECK cmq_status cmq_frame_next(cmq_slice buffer, uint32_t frame_bytes_max, cmq_frame *frame_out,
                                         size_t *needed_out);

/* Write the eight bytes in front of a header. */
void cmq_frame_write_prefix(uint8_t *into, cmq_header_format format, uint32_t header_bytes, uint32_t body_bytes);

#endif
