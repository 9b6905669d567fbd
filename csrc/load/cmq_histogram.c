/* cmq_histogram: see cmq_histogram.h. */
#include "load/cmq_histogram.h"

/* Values below 128 have a bucket each; above, the seven bits behind the first one choose among the 128 of its power. */
static uint32_t bucket_of(uint64_t value)
{
    if (value < CMQ_HISTOGRAM_STEPS) return (uint32_t)value;
    if (value >> CMQ_HISTOGRAM_VALUE_BITS != 0) return CMQ_HISTOGRAM_BUCKETS - 1;
    const uint32_t shift = 63u - (uint32_t)__builtin_clzll(value) - CMQ_HISTOGRAM_STEP_BITS;
    return (shift + 1) * CMQ_HISTOGRAM_STEPS + (uint32_t)(value >> shift) - CMQ_HISTOGRAM_STEPS;
}

/* The largest value that falls into the bucket. */
static uint64_t top_of(uint32_t bucket)
{
    if (bucket < CMQ_HISTOGRAM_STEPS) return bucket;
    const uint32_t shift = bucket / CMQ_HISTOGRAM_STEPS - 1;
    return ((uint64_t)(bucket % CMQ_HISTOGRAM_STEPS + CMQ_HISTOGRAM_STEPS + 1) << shift) - 1;
}

void cmq_histogram_record(cmq_histogram *histogram, int64_t ns, uint64_t times)
{
    if (times == 0) return;
    const uint64_t value = ns > 0 ? (uint64_t)ns : 0;
    if (histogram->count == 0 || value < histogram->min_ns) histogram->min_ns = value;
    if (value > histogram->max_ns) histogram->max_ns = value;
    histogram->count += times;
    histogram->sum_ns += value * times;
    histogram->buckets[bucket_of(value)] += times;
}

uint64_t cmq_histogram_quantile(const cmq_histogram *histogram, double share)
{
    if (histogram->count == 0) return 0;
    const double exact = share * (double)histogram->count;
    uint64_t wanted = exact > 0 ? (uint64_t)exact : 0;
    if ((double)wanted < exact || wanted == 0) wanted++;   /* so many are not above it */
    if (wanted > histogram->count) wanted = histogram->count;
    uint64_t seen = 0;
    for (uint32_t i = 0; i < CMQ_HISTOGRAM_BUCKETS; i++) {
        seen += histogram->buckets[i];
        if (seen < wanted) continue;
        const uint64_t top = top_of(i);
        return i + 1 == CMQ_HISTOGRAM_BUCKETS || top > histogram->max_ns ? histogram->max_ns : top;
    }
    return histogram->max_ns;
}
