/* cmq_prefetch: ask for a cache line before its turn. No byte is read, so any address is allowed.
 *
 * Invariant: the line is asked for. GCC takes a function that does nothing but prefetch for one without effect, and
 *            leaves calls of it out where it did not inline it first (seen with 12.2); the empty asm, which makes no
 *            instruction, is an effect.
 */
#ifndef CMQ_PREFETCH_H
#define CMQ_PREFETCH_H

#include <stdint.h>

static inline void cmq_prefetch(uintptr_t at)
{
    __builtin_prefetch((const void *)at);
    __asm__ volatile("");
}

#endif
