/* cmq_property: reading and writing property strings.
 *
 * Invariant: a 0x01 ends a name exactly when that name stands right before it and begins the string or follows a
 *            0x02; so one pass over the places of 0x01 finds names without cutting the string into pieces first.
 * Way:       64 bytes become two bit masks (places of 0x01, places of 0x02); only places of 0x01 are looked at.
 * Threads:   any; pure functions.
 * Source:    see cmq_property.h.
 */
#include "store/record/cmq_property.h"

#include <string.h>

#include "base/cmq_assert.h"
#include "store/record/cmq_property_places.h"

#define TRANSIENT_PREFIX "__RMQ.TRANSIENT."
/* Where the value that begins at `from` ends: the next 0x02, or the end of the string. */
static size_t find_pair_end(cmq_slice properties, size_t from)
{
    while (from < properties.bytes) {
        const size_t bytes = cmq_property_block_bytes(properties.bytes - from);
        const cmq_property_places found = cmq_property_find_places(properties.data + from, bytes);
        if (found.pair_ends != 0) return from + (size_t)__builtin_ctzll(found.pair_ends);
        from += bytes;
    }
    return properties.bytes;
}

/* The value behind the 0x01 at block + bit; `pair_ends` are the places in the block [block, block_end). */
static inline cmq_slice value_behind(cmq_slice properties, size_t block, size_t block_end, unsigned bit,
                                     uint64_t pair_ends)
{
    const size_t begin = block + bit + 1;
    const uint64_t behind = pair_ends & (UINT64_MAX << bit);   /* `bit` itself is a 0x01 */
    const size_t end = behind != 0 ? block + (size_t)__builtin_ctzll(behind) : find_pair_end(properties, block_end);
    return (cmq_slice){.data = properties.data + begin, .bytes = end - begin};
}

/* Whether the `bytes` before `name_end` are a whole name: they begin the string or follow a 0x02. */
static inline bool begins_pair(cmq_slice properties, size_t name_end, size_t bytes)
{
    if (name_end < bytes) return false;
    return name_end == bytes || properties.data[name_end - bytes - 1] == CMQ_PROPERTY_PAIR_END;
}

bool cmq_property_next(cmq_slice *rest, cmq_slice *name_out, cmq_slice *value_out)
{
    while (rest->bytes > 0) {
        const uint8_t *piece = rest->data;
        const uint8_t *pair_end = memchr(piece, CMQ_PROPERTY_PAIR_END, rest->bytes);
        const size_t piece_bytes = pair_end != NULL ? (size_t)(pair_end - piece) : rest->bytes;
        const size_t taken = pair_end != NULL ? piece_bytes + 1 : piece_bytes;
        *rest = (cmq_slice){.data = piece + taken, .bytes = rest->bytes - taken};

        const uint8_t *name_end = piece_bytes > 0 ? memchr(piece, CMQ_PROPERTY_NAME_END, piece_bytes) : NULL;
        if (name_end == NULL || name_end == piece) continue;
        const size_t name_bytes = (size_t)(name_end - piece);
        if (name_bytes + 1 == piece_bytes) continue;   /* no value */
        *name_out = (cmq_slice){.data = piece, .bytes = name_bytes};
        *value_out = (cmq_slice){.data = name_end + 1, .bytes = piece_bytes - name_bytes - 1};
        return true;
    }
    *name_out = CMQ_SLICE_NONE;
    *value_out = CMQ_SLICE_NONE;
    return false;
}

/* Whether the `bytes` at `a` and `b` are equal; in line, as names are short. */
static inline bool same_bytes(const uint8_t *a, const uint8_t *b, size_t bytes)
{
    if (bytes >= 8) {
        uint64_t x, y;
        for (size_t i = 0; i + 8 <= bytes; i += 8) {
            memcpy(&x, a + i, 8);
            memcpy(&y, b + i, 8);
            if (x != y) return false;
        }
        memcpy(&x, a + bytes - 8, 8);
        memcpy(&y, b + bytes - 8, 8);
        return x == y;
    }
    for (size_t i = 0; i < bytes; i++)
        if (a[i] != b[i]) return false;
    return true;
}

/* The last four bytes of a name as a little-endian load sees them; of a shorter one, the last. */
static inline uint32_t load_end(const uint8_t *end, size_t name_bytes)
{
    uint32_t value;
    if (name_bytes < 4) return end[-1];
    memcpy(&value, end - 4, sizeof value);
    return value;
}

/* From the back, as the last pair wins and ends the search. */
bool cmq_property_find(cmq_slice properties, cmq_slice name, cmq_slice *value_out)
{
    CMQ_ASSERT(name.bytes > 0);
    const uint32_t wanted_end = load_end(name.data + name.bytes, name.bytes);
    for (size_t end = properties.bytes, block; end > 0; end = block) {
        const size_t bytes = cmq_property_block_bytes(end);
        block = end - bytes;
        const cmq_property_places found = cmq_property_find_places(properties.data + block, bytes);
        for (uint64_t ends = found.name_ends; ends != 0;) {
            const unsigned bit = 63 - (unsigned)__builtin_clzll(ends);
            ends ^= UINT64_C(1) << bit;
            const size_t at = block + bit;
            if (at < name.bytes || load_end(properties.data + at, name.bytes) != wanted_end) continue;
            if (!begins_pair(properties, at, name.bytes)) continue;
            if (!same_bytes(properties.data + at - name.bytes, name.data, name.bytes)) continue;
            const cmq_slice value = value_behind(properties, block, end, bit, found.pair_ends);
            if (value.bytes == 0) continue;
            *value_out = value;
            return true;
        }
    }
    *value_out = CMQ_SLICE_NONE;
    return false;
}

/* The last four bytes of a name as a little-endian load sees them: no two known names share them. */
#define ENDS_WITH(a, b, c, d) ((uint32_t)(a) | (uint32_t)(b) << 8 | (uint32_t)(c) << 16 | (uint32_t)(d) << 24)

typedef struct known_name {
    char text[25];
    uint8_t bytes;
} known_name;

static const known_name known_names[CMQ_PROPERTY_KNOWN_COUNT] = {
    [CMQ_PROPERTY_TAGS] = {"TAGS", 4},
    [CMQ_PROPERTY_KEYS] = {"KEYS", 4},
    [CMQ_PROPERTY_UNIQ_KEY] = {"UNIQ_KEY", 8},
    [CMQ_PROPERTY_DELAY] = {"DELAY", 5},
    [CMQ_PROPERTY_INNER_NUM] = {"INNER_NUM", 9},
    [CMQ_PROPERTY_INNER_BASE] = {"INNER_BASE", 10},
    [CMQ_PROPERTY_INNER_MULTI_DISPATCH] = {"INNER_MULTI_DISPATCH", 20},
    [CMQ_PROPERTY_INNER_MULTI_QUEUE_OFFSET] = {"INNER_MULTI_QUEUE_OFFSET", 24},
    [CMQ_PROPERTY_DUP_INFO] = {"DUP_INFO", 8},
    [CMQ_PROPERTY_CRC32] = {"__CRC32#", 8},
    [CMQ_PROPERTY_POP_CK] = {"POP_CK", 6},
};

static inline cmq_property_name name_by_end(uint32_t last_four)
{
    switch (last_four) {
    case ENDS_WITH('T', 'A', 'G', 'S'): return CMQ_PROPERTY_TAGS;
    case ENDS_WITH('K', 'E', 'Y', 'S'): return CMQ_PROPERTY_KEYS;
    case ENDS_WITH('_', 'K', 'E', 'Y'): return CMQ_PROPERTY_UNIQ_KEY;
    case ENDS_WITH('E', 'L', 'A', 'Y'): return CMQ_PROPERTY_DELAY;
    case ENDS_WITH('_', 'N', 'U', 'M'): return CMQ_PROPERTY_INNER_NUM;
    case ENDS_WITH('B', 'A', 'S', 'E'): return CMQ_PROPERTY_INNER_BASE;
    case ENDS_WITH('A', 'T', 'C', 'H'): return CMQ_PROPERTY_INNER_MULTI_DISPATCH;
    case ENDS_WITH('F', 'S', 'E', 'T'): return CMQ_PROPERTY_INNER_MULTI_QUEUE_OFFSET;
    case ENDS_WITH('I', 'N', 'F', 'O'): return CMQ_PROPERTY_DUP_INFO;
    case ENDS_WITH('C', '3', '2', '#'): return CMQ_PROPERTY_CRC32;
    case ENDS_WITH('P', '_', 'C', 'K'): return CMQ_PROPERTY_POP_CK;
    default: return CMQ_PROPERTY_OTHER;
    }
}

/* The known name that ends at `at`, or CMQ_PROPERTY_OTHER. */
static inline cmq_property_name known_name_at(cmq_slice properties, size_t at)
{
    if (at < 4) return CMQ_PROPERTY_OTHER;
    uint32_t last_four;
    memcpy(&last_four, properties.data + at - 4, sizeof last_four);
    const cmq_property_name name = name_by_end(last_four);
    if (name == CMQ_PROPERTY_OTHER) return name;
    const size_t bytes = known_names[name].bytes;
    if (!begins_pair(properties, at, bytes)) return CMQ_PROPERTY_OTHER;
    if (bytes > 4 && !same_bytes(properties.data + at - bytes, (const uint8_t *)known_names[name].text, bytes))
        return CMQ_PROPERTY_OTHER;
    return name;
}

/* All empty. The asm does nothing but keep gcc from making one `rep stos` of the loop: that takes 6 ns to begin. */
static inline void clear_known(cmq_property_known *known)
{
    for (int i = 0; i < CMQ_PROPERTY_KNOWN_COUNT; i++) {
        known->value[i] = CMQ_SLICE_NONE;
        __asm__("" : "+m"(known->value[i]));
    }
}

void cmq_property_find_known(cmq_slice properties, cmq_property_known *known_out)
{
    clear_known(known_out);
    bool zero = false;
    for (size_t block = 0; block < properties.bytes; block += CMQ_PROPERTY_BLOCK_BYTES) {
        const size_t bytes = cmq_property_block_bytes(properties.bytes - block);
        const cmq_property_places found = cmq_property_find_places(properties.data + block, bytes);
        zero |= found.zero;
        for (uint64_t ends = found.name_ends; ends != 0; ends &= ends - 1) {
            const unsigned bit = (unsigned)__builtin_ctzll(ends);
            const cmq_property_name name = known_name_at(properties, block + bit);
            if (name == CMQ_PROPERTY_OTHER) continue;
            const cmq_slice value = value_behind(properties, block, block + bytes, bit, found.pair_ends);
            if (value.bytes > 0) known_out->value[name] = value;
        }
    }
    known_out->has_zero = zero;
}

bool cmq_property_has_separator(cmq_slice text)
{
    for (size_t done = 0; done < text.bytes; done += CMQ_PROPERTY_BLOCK_BYTES) {
        const cmq_property_places found =
            cmq_property_find_places(text.data + done, cmq_property_block_bytes(text.bytes - done));
        if ((found.name_ends | found.pair_ends) != 0) return true;
    }
    return false;
}

/* Does one of the 16 bytes lie below 3? */
static inline bool has_control_in_16(const uint8_t *at)
{
#if defined(__SSE2__)
    const __m128i bytes = _mm_loadu_si128((const __m128i *)at);
    return _mm_movemask_epi8(_mm_cmpeq_epi8(_mm_min_epu8(bytes, _mm_set1_epi8(CMQ_PROPERTY_PAIR_END)), bytes)) != 0;
#else
    bool found = false;
    for (int i = 0; i < 16; i++) found |= at[i] <= CMQ_PROPERTY_PAIR_END;
    return found;
#endif
}

bool cmq_property_has_control(cmq_slice text)
{
    if (text.bytes < 16) {
        bool found = false;
        for (size_t i = 0; i < text.bytes; i++) found |= text.data[i] <= CMQ_PROPERTY_PAIR_END;
        return found;
    }
    for (size_t done = 0; done + 16 <= text.bytes; done += 16)
        if (has_control_in_16(text.data + done)) return true;
    return has_control_in_16(text.data + text.bytes - 16);
}

size_t cmq_property_copy_without(uint8_t *into, cmq_slice properties, cmq_slice name)
{
    size_t used = 0;
    while (properties.bytes > 0) {
        const uint8_t *pair_end = memchr(properties.data, CMQ_PROPERTY_PAIR_END, properties.bytes);
        const size_t bytes = pair_end != NULL ? (size_t)(pair_end - properties.data) + 1 : properties.bytes;
        const cmq_slice piece = {.data = properties.data, .bytes = bytes};
        const bool named = bytes > name.bytes && memcmp(piece.data, name.data, name.bytes) == 0 &&
                           piece.data[name.bytes] == CMQ_PROPERTY_NAME_END;
        if (!named) memcpy(into + used, piece.data, bytes);
        used += named ? 0 : bytes;
        properties = (cmq_slice){.data = properties.data + bytes, .bytes = properties.bytes - bytes};
    }
    return used;
}

/* For error texts: names are shown up to 64 bytes. */
#define SHOWN(slice) (int)((slice).bytes < 64 ? (slice).bytes : 64), (const char *)(slice).data

cmq_status cmq_property_check_name(cmq_slice name)
{
    if (name.bytes == 0) return cmq_fail(CMQ_ERR_ARGUMENT, "a property name is empty");
    if (cmq_property_has_separator(name))
        return cmq_fail(CMQ_ERR_ARGUMENT, "property name \"%.*s\" holds byte 1 or 2, which separate properties",
                        SHOWN(name));
    if (cmq_slice_starts_with(name, TRANSIENT_PREFIX))
        return cmq_fail(CMQ_ERR_ARGUMENT, "property \"%.*s\": " TRANSIENT_PREFIX "* is never stored", SHOWN(name));
    return CMQ_OK;
}

cmq_status cmq_property_check_value(cmq_slice name, cmq_slice value)
{
    if (!cmq_property_has_separator(value)) return CMQ_OK;
    return cmq_fail(CMQ_ERR_ARGUMENT, "the value of property \"%.*s\" holds byte 1 or 2, which separate properties",
                    SHOWN(name));
}

uint8_t *cmq_property_write(uint8_t *into, cmq_slice name, cmq_slice value)
{
    memcpy(into, name.data, name.bytes);
    into += name.bytes;
    *into++ = CMQ_PROPERTY_NAME_END;
    if (value.bytes > 0) memcpy(into, value.data, value.bytes);
    into += value.bytes;
    *into++ = CMQ_PROPERTY_PAIR_END;
    return into;
}

cmq_status cmq_property_append(uint8_t *buffer, size_t capacity, size_t *used, cmq_slice name, cmq_slice value)
{
    CMQ_ASSERT(*used <= capacity);
    cmq_status status = cmq_property_check_name(name);
    if (status == CMQ_OK) status = cmq_property_check_value(name, value);
    if (status != CMQ_OK) return status;
    if (value.bytes == 0) return CMQ_OK;

    const size_t left = capacity - *used;
    if (left < 2 || name.bytes > left - 2 || value.bytes > left - 2 - name.bytes)
        return cmq_fail(CMQ_ERR_TOO_LARGE, "properties are over %zu bytes with \"%.*s\"", capacity, SHOWN(name));
    *used = (size_t)(cmq_property_write(buffer + *used, name, value) - buffer);
    return CMQ_OK;
}
