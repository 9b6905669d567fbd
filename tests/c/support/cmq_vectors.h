/* cmq_vectors: inputs that a C test and vectors/CodecVectors.java generate alike, and the sum over what comes of
 * them. */
#ifndef CMQ_VECTORS_H
#define CMQ_VECTORS_H

#include <stdint.h>

typedef struct cmq_vectors {
    uint64_t state;
    uint64_t sum;
} cmq_vectors;

static inline cmq_vectors cmq_vectors_begin(uint64_t seed) { return (cmq_vectors){.state = seed, .sum = 0}; }

/* The next number in [0, bound). */
static inline uint32_t cmq_vectors_next(cmq_vectors *vectors, uint32_t bound)
{
    vectors->state = vectors->state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(vectors->state >> 33) % bound;
}

static inline void cmq_vectors_add(cmq_vectors *vectors, uint64_t value)
{
    vectors->sum = vectors->sum * 1000003 + value;
}

#endif
