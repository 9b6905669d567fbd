/* cmq_load_body: see cmq_load_body.h. */
#include "load/cmq_load_body.h"

#include <string.h>

#include "base/cmq_assert.h"
#include "base/cmq_crc32.h"

enum {
    AT_MAGIC = 0,
    AT_CRC = 4,
    AT_RUN = 8,
    AT_PRODUCER = 16,
    AT_SEQUENCE = 24,
    AT_SENT = 32,
    AT_FILLER = 40,
    MAGIC = 0x434D514C
};
_Static_assert(AT_FILLER == CMQ_LOAD_BODY_BYTES_MIN, "the shortest body has no filler");

void cmq_load_pool_fill(uint8_t pool[CMQ_LOAD_POOL_BYTES])
{
    uint64_t state = UINT64_C(0x9E3779B97F4A7C15);
    for (size_t at = 0; at < CMQ_LOAD_POOL_BYTES; at += sizeof state) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        memcpy(pool + at, &state, sizeof state);
    }
}

void cmq_load_body_write(uint8_t *into, uint32_t bytes, const cmq_load_body *body, const uint8_t *pool)
{
    CMQ_ASSERT(bytes >= CMQ_LOAD_BODY_BYTES_MIN && bytes <= CMQ_LOAD_BODY_BYTES_MAX);
    cmq_store_u32(into + AT_MAGIC, MAGIC);
    cmq_store_u64(into + AT_RUN, body->run);
    cmq_store_u64(into + AT_PRODUCER, body->producer);
    cmq_store_u64(into + AT_SEQUENCE, body->sequence);
    cmq_store_i64(into + AT_SENT, body->sent_ns);
    const size_t from = (body->sequence * 61 + body->producer * 4093) % (CMQ_LOAD_POOL_BYTES - CMQ_LOAD_BODY_BYTES_MAX);
    memcpy(into + AT_FILLER, pool + from, bytes - AT_FILLER);
    cmq_store_u32(into + AT_CRC, cmq_crc32(into + AT_RUN, bytes - AT_RUN));
}

cmq_status cmq_load_body_read(cmq_slice bytes, cmq_load_body *body_out)
{
    *body_out = (cmq_load_body){0};
    if (bytes.bytes < CMQ_LOAD_BODY_BYTES_MIN)
        return cmq_fail(CMQ_ERR_CORRUPT, "a body of %zu bytes is not this program's", bytes.bytes);
    if (cmq_load_u32(bytes.data + AT_MAGIC) != MAGIC)
        return cmq_fail(CMQ_ERR_CORRUPT, "a body does not start with this program's magic");
    if (cmq_load_u32(bytes.data + AT_CRC) != cmq_crc32(bytes.data + AT_RUN, bytes.bytes - AT_RUN))
        return cmq_fail(CMQ_ERR_CORRUPT, "a body of %zu bytes does not have its CRC", bytes.bytes);
    body_out->run = cmq_load_u64(bytes.data + AT_RUN);
    body_out->producer = cmq_load_u64(bytes.data + AT_PRODUCER);
    body_out->sequence = cmq_load_u64(bytes.data + AT_SEQUENCE);
    body_out->sent_ns = cmq_load_i64(bytes.data + AT_SENT);
    return CMQ_OK;
}
