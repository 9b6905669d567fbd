/* cmq_frame: see cmq_frame.h. */
#include "wire/cmq_frame.h"

#include "base/cmq_assert.h"


enum { HEADER_WORD_BYTES = 4, LENGTH_WORD_BYTES = 4 };
_Static_assert(HEADER_WORD_BYTES + LENGTH_WORD_BYTES == CMQ_FRAME_PREFIX_BYTES, "two words stand in front of a header");

cmq_status cmq_frame_next(cmq_slice buffer, uint32_t frame_bytes_max, cmq_frame *frame_out, size_t *needed_out)
{
    CMQ_ASSERT(buffer.data != NULL || buffer.bytes == 0);
    *frame_out = (cmq_frame){0};
    *needed_out = CMQ_FRAME_PREFIX_BYTES;
    if (buffer.bytes < LENGTH_WORD_BYTES) return CMQ_AGAIN;
    const uint32_t total_bytes = cmq_load_u32(buffer.data);   /* a negative length is a very large one */
    if (total_bytes < HEADER_WORD_BYTES)
        return cmq_fail_at(CMQ_ERR_CORRUPT, 0, "a frame of %u bytes has no room for its header's length", total_bytes);
    if (frame_bytes_max < LENGTH_WORD_BYTES || total_bytes > frame_bytes_max - LENGTH_WORD_BYTES)
        return cmq_fail_at(CMQ_ERR_CORRUPT, 0, "a frame says that %u bytes follow; at most %u are taken in all",
                           total_bytes, frame_bytes_max);
    *needed_out = (size_t)total_bytes + LENGTH_WORD_BYTES;
    if (buffer.bytes < CMQ_FRAME_PREFIX_BYTES) return CMQ_AGAIN;

    const uint32_t header_word = cmq_load_u32(buffer.data + LENGTH_WORD_BYTES);
    const uint32_t format = header_word >> 24, header_bytes = header_word & 0x00FFFFFFu;
    if (format > CMQ_HEADER_ROCKETMQ)
        return cmq_fail_at(CMQ_ERR_CORRUPT, 4, "a frame has header format %u; 0 (JSON) and 1 (ROCKETMQ) are known",
                           format);
    if (header_bytes > total_bytes - HEADER_WORD_BYTES)
        return cmq_fail_at(CMQ_ERR_CORRUPT, 4, "a frame has a header of %u bytes in %u", header_bytes,
                           total_bytes - HEADER_WORD_BYTES);
    if (buffer.bytes < *needed_out) return CMQ_AGAIN;

    const uint8_t *header = buffer.data + CMQ_FRAME_PREFIX_BYTES;
    frame_out->format = (cmq_header_format)format;
    frame_out->header = (cmq_slice){.data = header, .bytes = header_bytes};
    frame_out->body =
        (cmq_slice){.data = header + header_bytes, .bytes = total_bytes - HEADER_WORD_BYTES - header_bytes};
    frame_out->bytes = *needed_out;
    CMQ_ASSERT(frame_out->body.data + frame_out->body.bytes == buffer.data + frame_out->bytes);
    CMQ_ASSERT(frame_out->bytes <= frame_bytes_max);
    return CMQ_OK;
}

void cmq_frame_write_prefix(uint8_t *into, cmq_header_format format, uint32_t header_bytes, uint32_t body_bytes)
{
    CMQ_ASSERT(header_bytes <= 0x00FFFFFFu);   /* the format has the other byte of the word */
    CMQ_ASSERT(body_bytes <= UINT32_MAX - HEADER_WORD_BYTES - header_bytes);
    cmq_store_u32(into, HEADER_WORD_BYTES + header_bytes + body_bytes);
    cmq_store_u32(into + LENGTH_WORD_BYTES, (uint32_t)format << 24 | header_bytes);
}
