/* cmq_filter_kit: whether a filter lets a tags code pass, by its list of hashes: the plain meaning of what scans and
 * holds do faster. */
#ifndef CMQ_FILTER_KIT_H
#define CMQ_FILTER_KIT_H

#include <stdbool.h>
#include <stdint.h>

#include "broker/tables/cmq_filter.h"

/* By the low 32 bits of a unit's tags code. */
static inline bool cmq_filter_kit_passes(const cmq_filter *filter, int64_t tags_code)
{
    uint32_t count;
    const uint32_t *hashes = cmq_filter_hashes(filter, &count);
    bool passes = cmq_filter_is_all(filter);
    for (uint32_t i = 0; i < count && !passes; i++) passes = hashes[i] == (uint32_t)tags_code;
    return passes;
}

#endif
