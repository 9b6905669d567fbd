/* cmq_crc32: the choice of the variant, and the portable one (slicing by 8).
 *
 * Owns:      the pointer to the chosen variant.
 * Invariant: the pointer only ever holds choose_first or one usable variant, and every value of it gives right results.
 * Threads:   any; see cmq_crc32.h.
 * Source:    Kounavis and Berry, "A systematic approach to building high performance software-based CRC generators".
 */
#include "base/cmq_crc32.h"

#include <stdatomic.h>
#include <string.h>

#include "base/cmq_crc32_variants.h"

/* A slice is linear over GF(2): entry [i] is the xor of the eight entries for the bits of i, so eight numbers make
 * 256. */
#define BIT(i, k, value) (((i) >> (k)) & 1 ? (value) : 0u)
#define ENTRY(i, b0, b1, b2, b3, b4, b5, b6, b7)                                                            \
    (BIT(i, 0, b0) ^ BIT(i, 1, b1) ^ BIT(i, 2, b2) ^ BIT(i, 3, b3) ^ BIT(i, 4, b4) ^ BIT(i, 5, b5) ^        \
     BIT(i, 6, b6) ^ BIT(i, 7, b7))
#define ENTRIES_4(i, ...)                                                                                   \
    ENTRY((i), __VA_ARGS__), ENTRY((i) + 1, __VA_ARGS__), ENTRY((i) + 2, __VA_ARGS__), ENTRY((i) + 3, __VA_ARGS__)
#define ENTRIES_16(i, ...)                                                                                  \
    ENTRIES_4((i), __VA_ARGS__), ENTRIES_4((i) + 4, __VA_ARGS__), ENTRIES_4((i) + 8, __VA_ARGS__),          \
        ENTRIES_4((i) + 12, __VA_ARGS__)
#define ENTRIES_64(i, ...)                                                                                  \
    ENTRIES_16((i), __VA_ARGS__), ENTRIES_16((i) + 16, __VA_ARGS__), ENTRIES_16((i) + 32, __VA_ARGS__),     \
        ENTRIES_16((i) + 48, __VA_ARGS__)
#define SLICE(...)                                                                                          \
    {                                                                                                       \
        ENTRIES_64(0, __VA_ARGS__), ENTRIES_64(64, __VA_ARGS__), ENTRIES_64(128, __VA_ARGS__),              \
            ENTRIES_64(192, __VA_ARGS__)                                                                    \
    }

const uint32_t cmq_crc32_slices[8][256] = {
    SLICE(0x77073096, 0xEE0E612C, 0x076DC419, 0x0EDB8832, 0x1DB71064, 0x3B6E20C8, 0x76DC4190, 0xEDB88320),
    SLICE(0x191B3141, 0x32366282, 0x646CC504, 0xC8D98A08, 0x4AC21251, 0x958424A2, 0xF0794F05, 0x3B83984B),
    SLICE(0x01C26A37, 0x0384D46E, 0x0709A8DC, 0x0E1351B8, 0x1C26A370, 0x384D46E0, 0x709A8DC0, 0xE1351B80),
    SLICE(0xB8BC6765, 0xAA09C88B, 0x8F629757, 0xC5B428EF, 0x5019579F, 0xA032AF3E, 0x9B14583D, 0xED59B63B),
    SLICE(0x3D6029B0, 0x7AC05360, 0xF580A6C0, 0x30704BC1, 0x60E09782, 0xC1C12F04, 0x58F35849, 0xB1E6B092),
    SLICE(0xCB5CD3A5, 0x4DC8A10B, 0x9B914216, 0xEC53826D, 0x03D6029B, 0x07AC0536, 0x0F580A6C, 0x1EB014D8),
    SLICE(0xA6770BB4, 0x979F1129, 0xF44F2413, 0x33EF4E67, 0x67DE9CCE, 0xCFBD399C, 0x440B7579, 0x8816EAF2),
    SLICE(0xCCAA009E, 0x4225077D, 0x844A0EFA, 0xD3E51BB5, 0x7CBB312B, 0xF9766256, 0x299DC2ED, 0x533B85DA),
};

static uint32_t portable_extend(uint32_t crc, const void *data, size_t bytes)
{
    const uint8_t *at = data;
    uint32_t state = ~crc;
    for (; bytes >= 8; bytes -= 8, at += 8) {
        uint32_t low, high;
        memcpy(&low, at, sizeof low);
        memcpy(&high, at + 4, sizeof high);
        low ^= state;
        state = cmq_crc32_slices[7][low & 0xFFu] ^ cmq_crc32_slices[6][(low >> 8) & 0xFFu] ^
                cmq_crc32_slices[5][(low >> 16) & 0xFFu] ^ cmq_crc32_slices[4][low >> 24] ^
                cmq_crc32_slices[3][high & 0xFFu] ^ cmq_crc32_slices[2][(high >> 8) & 0xFFu] ^
                cmq_crc32_slices[1][(high >> 16) & 0xFFu] ^ cmq_crc32_slices[0][high >> 24];
    }
    for (; bytes > 0; bytes--) state = cmq_crc32_step(state, *at++);
    return ~state;
}

static bool always_usable(void) { return true; }

static const cmq_crc32_variant variants[] = {
    {"portable", portable_extend, always_usable},
#if defined(__x86_64__)
    {"pclmul", cmq_crc32_pclmul, cmq_crc32_pclmul_usable},
    {"vpclmul512", cmq_crc32_vpclmul512, cmq_crc32_vpclmul512_usable},
#endif
#if defined(__aarch64__)
    {"arm64", cmq_crc32_arm64, cmq_crc32_arm64_usable},
#endif
};

enum { VARIANT_COUNT = sizeof variants / sizeof variants[0] };

typedef uint32_t extend_function(uint32_t crc, const void *data, size_t bytes);

static const cmq_crc32_variant *best_variant(void)
{
    const cmq_crc32_variant *best = &variants[0];
    for (size_t i = 1; i < VARIANT_COUNT; i++)
        if (variants[i].usable()) best = &variants[i];
    return best;
}

static extend_function choose_first;

/* Relaxed everywhere: a thread that reads an old value repeats the choice and gets the same result. */
static _Atomic(extend_function *) chosen = choose_first;

static uint32_t choose_first(uint32_t crc, const void *data, size_t bytes)
{
    extend_function *best = best_variant()->extend;
    atomic_store_explicit(&chosen, best, memory_order_relaxed);
    return best(crc, data, bytes);
}

uint32_t cmq_crc32_extend(uint32_t crc, const void *data, size_t bytes)
{
    return atomic_load_explicit(&chosen, memory_order_relaxed)(crc, data, bytes);
}

const cmq_crc32_variant *cmq_crc32_variants(size_t *count_out)
{
    *count_out = VARIANT_COUNT;
    return variants;
}

const char *cmq_crc32_variant_name(void) { return best_variant()->name; }
