/* cmq_tag_scan_variants: declarations private to the files of cmq_tag_scan.
 *
 * Invariant: a *_usable function answers for the running machine; a variant is called only when it returned true.
 * Way:       cmq_tag_scan.c (choice, portable) -> [this] -> cmq_tag_scan_x86.c
 */
#ifndef CMQ_TAG_SCAN_VARIANTS_H
#define CMQ_TAG_SCAN_VARIANTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cmq_bytes.h"
#include "store/queue/cmq_tag_scan.h"

enum { CMQ_TAGSCAN_AT_SIZE = 8, CMQ_TAGSCAN_AT_CODE_HIGH = 12, CMQ_TAGSCAN_AT_CODE_LOW = 16 };
_Static_assert(CMQ_TAGSCAN_AT_CODE_LOW + 4 == CMQ_TAGSCAN_UNIT_BYTES, "the tag hash closes the unit");

/* The vector variants take 1 to this many hashes and no flags; other calls they hand to the portable one. */
#define CMQ_TAGSCAN_VECTOR_HASHES_MAX 64

/* Whether a unit holds a record: its size is above 0 and not the filler's 0x7FFFFFFF. */
static inline bool cmq_tag_scan_unit_is_used(const uint8_t *unit)
{
    return cmq_load_u32(unit + CMQ_TAGSCAN_AT_SIZE) - 1 < 0x7FFFFFFEu;
}

size_t cmq_tag_scan_portable(const uint8_t *units, size_t count, const uint32_t *hashes, size_t hash_count,
                            unsigned flags, uint32_t *matches_out);

#if defined(__x86_64__)
size_t cmq_tag_scan_sse2(const uint8_t *units, size_t count, const uint32_t *hashes, size_t hash_count, unsigned flags,
                        uint32_t *matches_out);
bool cmq_tag_scan_avx2_usable(void);
size_t cmq_tag_scan_avx2(const uint8_t *units, size_t count, const uint32_t *hashes, size_t hash_count, unsigned flags,
                        uint32_t *matches_out);
bool cmq_tag_scan_avx512_usable(void);
size_t cmq_tag_scan_avx512(const uint8_t *units, size_t count, const uint32_t *hashes, size_t hash_count,
                          unsigned flags, uint32_t *matches_out);
#endif

#endif
