/* cmq_bytes: big-endian loads and stores, and slices of borrowed bytes.
 *
 * Everything that RocketMQ puts on disk or on the wire is big-endian and may be unaligned; these are the only
 * functions that know it. Bounds are the caller's duty, except in cmq_slice functions, which check.
 */
#ifndef CMQ_BYTES_H
#define CMQ_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "CometMQ is built for little-endian machines (x86-64, arm64)"
#endif

static inline uint16_t cmq_load_u16(const uint8_t *at)
{
    uint16_t value;
    memcpy(&value, at, sizeof value);
    return __builtin_bswap16(value);
}

static inline uint32_t cmq_load_u32(const uint8_t *at)
{
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return __builtin_bswap32(value);
}

static inline uint64_t cmq_load_u64(const uint8_t *at)
{
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return __builtin_bswap64(value);
}

static inline int16_t cmq_load_i16(const uint8_t *at) { return (int16_t)cmq_load_u16(at); }
static inline int32_t cmq_load_i32(const uint8_t *at) { return (int32_t)cmq_load_u32(at); }
static inline int64_t cmq_load_i64(const uint8_t *at) { return (int64_t)cmq_load_u64(at); }

static inline void cmq_store_u16(uint8_t *at, uint16_t value)
{
    value = __builtin_bswap16(value);
    memcpy(at, &value, sizeof value);
}

static inline void cmq_store_u32(uint8_t *at, uint32_t value)
{
    value = __builtin_bswap32(value);
    memcpy(at, &value, sizeof value);
}

static inline void cmq_store_u64(uint8_t *at, uint64_t value)
{
    value = __builtin_bswap64(value);
    memcpy(at, &value, sizeof value);
}

static inline void cmq_store_i16(uint8_t *at, int16_t value) { cmq_store_u16(at, (uint16_t)value); }
static inline void cmq_store_i32(uint8_t *at, int32_t value) { cmq_store_u32(at, (uint32_t)value); }
static inline void cmq_store_i64(uint8_t *at, int64_t value) { cmq_store_u64(at, (uint64_t)value); }

/* Borrowed bytes; data may be NULL when bytes is 0. */
typedef struct cmq_slice {
    const uint8_t *data;
    size_t bytes;
} cmq_slice;

#define CMQ_SLICE_NONE ((cmq_slice){.data = NULL, .bytes = 0})

static inline cmq_slice cmq_slice_of_text(const char *text)
{
    return (cmq_slice){.data = (const uint8_t *)text, .bytes = strlen(text)};
}

static inline bool cmq_slice_equal(cmq_slice a, cmq_slice b)
{
    return a.bytes == b.bytes && (a.bytes == 0 || memcmp(a.data, b.data, a.bytes) == 0);
}

static inline bool cmq_slice_starts_with(cmq_slice slice, const char *prefix)
{
    const size_t bytes = strlen(prefix);
    return slice.bytes >= bytes && memcmp(slice.data, prefix, bytes) == 0;
}

#endif
