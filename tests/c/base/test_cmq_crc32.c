/* test_cmq_crc32: every variant gives zlib's CRC for every length and alignment, and reads nothing outside its input.
 *
 * Threads: yes (the first calls of a process at once).
 */
#include "base/cmq_crc32.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "support/cmq_test.h"

#define LENGTHS 5000
#define ALIGNMENTS 17

/* One bit at a time, straight from the definition. */
static uint32_t reference_step(uint32_t state, uint8_t byte)
{
    state ^= byte;
    for (int bit = 0; bit < 8; bit++) state = (state >> 1) ^ (0xEDB88320u & (0u - (state & 1)));
    return state;
}

static uint32_t reference_extend(uint32_t crc, const uint8_t *data, size_t bytes)
{
    uint32_t state = ~crc;
    for (size_t i = 0; i < bytes; i++) state = reference_step(state, data[i]);
    return ~state;
}

static uint8_t *random_bytes(size_t bytes)
{
    uint8_t *data = malloc(bytes);
    CHECK(data != NULL);
    for (size_t i = 0; i < bytes; i++) data[i] = (uint8_t)cmq_test_random();
    return data;
}

static void *first_call(void *result_out)
{
    *(uint32_t *)result_out = cmq_crc32("123456789", 9);
    return NULL;
}

static void test_first_calls_at_once(void)
{
    pthread_t threads[4];
    uint32_t results[4];
    for (int i = 0; i < 4; i++) CHECK_INT(pthread_create(&threads[i], NULL, first_call, &results[i]), 0);
    for (int i = 0; i < 4; i++) {
        CHECK_INT(pthread_join(threads[i], NULL), 0);
        CHECK_INT(results[i], 0xCBF43926u);
    }
}

static void test_known_values(void)
{
    CHECK_INT(cmq_crc32(NULL, 0), 0);
    CHECK_INT(cmq_crc32("a", 1), 0xE8B7BE43u);
    CHECK_INT(cmq_crc32("123456789", 9), 0xCBF43926u);
    CHECK_INT(cmq_crc32_extend(cmq_crc32("1234", 4), "56789", 5), 0xCBF43926u);
    CHECK_INT(cmq_crc31("123456789", 9), 0x4BF43926u);
    CHECK_INT(cmq_crc31("hello rocketmq", 14), 1932557065);
    CHECK_INT(cmq_crc31(NULL, 0), 0);
}

static void check_lengths(const cmq_crc32_variant *variant, const uint8_t *data)
{
    for (size_t alignment = 0; alignment < ALIGNMENTS; alignment++) {
        const uint8_t *at = data + alignment;
        const uint32_t start = (uint32_t)cmq_test_random();
        uint32_t state = ~start;
        for (size_t bytes = 0; bytes < LENGTHS; bytes++) {
            const uint32_t crc = variant->extend(start, at, bytes);
            if (crc != ~state)
                cmq_test_fail(__FILE__, __LINE__, "%s of %zu bytes at alignment %zu is %08x, expected %08x",
                              variant->name, bytes, alignment, crc, ~state);
            state = reference_step(state, at[bytes]);
        }
    }
}

static void test_every_length_and_alignment(void)
{
    size_t count;
    const cmq_crc32_variant *variants = cmq_crc32_variants(&count);
    uint8_t *data = random_bytes(LENGTHS + ALIGNMENTS);
    CHECK(count >= 1 && variants[0].usable());
    for (size_t i = 0; i < count; i++)
        if (variants[i].usable()) check_lengths(&variants[i], data);
    free(data);
}

static void test_long_inputs_in_pieces(void)
{
    const size_t bytes = 1 << 20;
    uint8_t *data = random_bytes(bytes);
    const uint32_t expected = reference_extend(0, data, bytes);
    size_t count;
    const cmq_crc32_variant *variants = cmq_crc32_variants(&count);
    for (size_t i = 0; i < count; i++) {
        if (!variants[i].usable()) continue;
        CHECK_INT(variants[i].extend(0, data, bytes), expected);
        uint32_t crc = 0;
        for (size_t done = 0; done < bytes;) {
            size_t piece = (size_t)cmq_test_random_below(3000);
            if (piece > bytes - done) piece = bytes - done;
            crc = variants[i].extend(crc, data + done, piece);
            done += piece;
        }
        CHECK_INT(crc, expected);
    }
    CHECK_INT(cmq_crc32(data, bytes), expected);
    free(data);
}

/* Inputs that end right before, or begin right after, a page that may not be touched: sanitizers do not see every
 * vector load. */
static void test_stays_between_guard_pages(void)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uint8_t *map = mmap(NULL, 3 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(map != MAP_FAILED);
    uint8_t *middle = map + page;
    CHECK_INT(mprotect(middle, page, PROT_READ | PROT_WRITE), 0);
    for (size_t i = 0; i < page; i++) middle[i] = (uint8_t)cmq_test_random();
    size_t count;
    const cmq_crc32_variant *variants = cmq_crc32_variants(&count);
    for (size_t i = 0; i < count; i++) {
        if (!variants[i].usable()) continue;
        for (size_t bytes = 0; bytes <= 700; bytes++) {
            const uint8_t *last = middle + page - bytes;
            CHECK_INT(variants[i].extend(0, last, bytes), reference_extend(0, last, bytes));
            CHECK_INT(variants[i].extend(0, middle, bytes), reference_extend(0, middle, bytes));
        }
    }
    munmap(map, 3 * page);
}

static void test_last_usable_variant_is_in_use(void)
{
    size_t count;
    const cmq_crc32_variant *variants = cmq_crc32_variants(&count);
    const char *best = NULL;
    for (size_t i = 0; i < count; i++)
        if (variants[i].usable()) best = variants[i].name;
    CHECK(best != NULL && strcmp(best, cmq_crc32_variant_name()) == 0);
}

CMQ_TEST_MAIN(CMQ_TEST(test_first_calls_at_once), CMQ_TEST(test_known_values),
              CMQ_TEST(test_every_length_and_alignment), CMQ_TEST(test_long_inputs_in_pieces),
              CMQ_TEST(test_stays_between_guard_pages), CMQ_TEST(test_last_usable_variant_is_in_use))
