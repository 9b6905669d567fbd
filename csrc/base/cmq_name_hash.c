/* cmq_name_hash: the seed; see cmq_name_hash.h. */
#include "base/cmq_name_hash.h"

#include <sys/random.h>
#include <time.h>

uint64_t cmq_name_hash_seed[2] = {CMQ_NAMEHASH_MULTIPLIER, CMQ_NAMEHASH_MULTIPLIER};

__attribute__((constructor)) static void draw_seed(void)
{
    if (getrandom(cmq_name_hash_seed, sizeof cmq_name_hash_seed, GRND_NONBLOCK) != sizeof cmq_name_hash_seed) {
        /* A system that has only just started: better than none. */
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        cmq_name_hash_seed[0] ^= (uint64_t)now.tv_nsec * CMQ_NAMEHASH_MULTIPLIER ^ (uint64_t)(uintptr_t)&now;
        cmq_name_hash_seed[1] ^= (uint64_t)now.tv_sec * CMQ_NAMEHASH_MULTIPLIER;
    }
    cmq_name_hash_seed[1] |= 1u;
}
