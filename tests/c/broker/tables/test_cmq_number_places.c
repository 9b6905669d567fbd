/* Tests csrc/broker/tables/cmq_number_places.c: numbers are found by their hash whatever comes and goes around them.
 * Threads: no. */
#include "broker/tables/cmq_number_places.h"

#include <stdbool.h>
#include <stdlib.h>

#include "support/cmq_test.h"

#define NUMBERS 300u

/* The owner: how many hashes there are. Few of them make long runs, which wrap around the end of the table. */
static uint64_t hash_of(const void *owner, uint32_t number)
{
    const uint32_t hashes = *(const uint32_t *)owner;
    return UINT64_MAX - number % hashes;
}

static bool has(const cmq_number_places *places, const uint32_t *hashes, uint32_t number)
{
    if (places->at == NULL) return false;
    for (uint64_t at = hash_of(hashes, number); places->at[at & places->mask] != 0; at++)
        if (places->at[at & places->mask] == number + 1) return true;
    return false;
}

static void numbers_are_found_until_they_are_dropped(void)
{
    static const uint32_t hash_counts[] = {1, 3, 50, NUMBERS};
    for (size_t h = 0; h < sizeof hash_counts / sizeof hash_counts[0]; h++) {
        cmq_number_places places = {.at = NULL};
        const uint32_t *hashes = &hash_counts[h];
        for (uint32_t n = 0; n < NUMBERS; n++) {
            CHECK_OK(cmq_number_places_reserve(&places, hash_of, hashes));
            cmq_number_places_put(&places, hash_of(hashes, n), n);
        }
        for (uint32_t n = 0; n < NUMBERS; n += 2) {
            cmq_number_places_drop(&places, hash_of, hashes, n);
            for (uint32_t other = 0; other < NUMBERS; other++)
                CHECK(has(&places, hashes, other) == (other % 2 == 1 || other > n));
        }
        CHECK_INT(places.used, NUMBERS / 2);
        free(places.at);
    }
}

CMQ_TEST_MAIN(CMQ_TEST(numbers_are_found_until_they_are_dropped))
