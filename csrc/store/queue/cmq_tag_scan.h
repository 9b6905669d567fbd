/* cmq_tag_scan: which of many consume queue units can match a tag subscription.
 *
 * Invariant: every variant reports the same ordinals, in rising order; none reads outside the units or writes outside
 *            matches_out[0, count).
 * Way:       cmq_queue's files or tail -> [cmq_tag_scan] -> exact tag comparison in the record
 * Threads:   any; the variant is chosen once, at the first call.
 * Source:    store specification 3.1, 3.2, 3.3, 8.2; shared measurements in native.md 3 (loads and blends, no gather).
 */
#ifndef CMQ_TAG_SCAN_H
#define CMQ_TAG_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CMQ_TAGSCAN_UNIT_BYTES 20
#define CMQ_TAGSCAN_COUNT_MAX (UINT32_C(1) << 30)   /* units per call */

/* Report units whose tagsCode is an ext address (cmq_tags_code_is_ext) as matches whatever the hashes are: the low
 * 32 bits of an address say nothing about the tag. The caller resolves what it can and passes the rest on, as
 * upstream does ("unknown tag -> pass"). Give it for a queue that has, or may have had, the ext files; without it
 * the low 32 bits of every unit are taken for a tag hash, which is right in a queue that never had them. */
#define CMQ_TAGSCAN_EXT_PASSES 1u

/* Scan `count` (at most CMQ_TAGSCAN_COUNT_MAX) 20-byte units. A unit matches when its size field is > 0, it is no
 * filler (size 0x7FFFFFFF, which no record can have), and the low 32 bits of its tagsCode are one of `hashes`;
 * hash_count 0 matches every valid unit. Writes the matching ordinals to matches_out, which has room for `count`
 * entries (any of which may be written), and returns their number. */
size_t cmq_tag_scan(const uint8_t *units, size_t count, const uint32_t *hashes, size_t hash_count, unsigned flags,
                   uint32_t *matches_out);

/* One way of doing it; for tests and benchmarks. */
typedef struct cmq_tag_scan_variant {
    const char *name;      /* "portable", "sse2", "avx2", "avx512" */
    size_t (*scan)(const uint8_t *units, size_t count, const uint32_t *hashes, size_t hash_count, unsigned flags,
                   uint32_t *matches_out);
    bool (*usable)(void);
} cmq_tag_scan_variant;

/* Every variant compiled in, slowest first; the last usable one is what cmq_tag_scan runs. Static. */
const cmq_tag_scan_variant *cmq_tag_scan_variants(size_t *count_out);

#endif
