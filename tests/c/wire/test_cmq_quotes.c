/* Tests csrc/wire/cmq_quotes.h: both ways of looking at a block against looking at each byte, and walks over random
 * texts. */
#include "wire/cmq_quotes.h"

#include <stdlib.h>

#include "support/cmq_test.h"

static uint8_t random_byte(void)
{
    static const uint8_t near[] = {'"', '\\', '"' ^ 0x80, '\\' ^ 0x80, '"' + 1, '"' - 1, '\\' + 1, '\\' - 1, 0, 0xFF};
    return cmq_test_random_below(3) > 0 ? near[cmq_test_random_below(sizeof near)] : (uint8_t)cmq_test_random();
}

static void test_masks_of_random_blocks(void)
{
    for (int round = 0; round < 20000; round++) {
        uint8_t block[CMQ_QUOTES_BLOCK_BYTES];
        uint64_t expected = 0;
        for (unsigned i = 0; i < sizeof block; i++) {
            block[i] = random_byte();
            if (block[i] == '"' || block[i] == '\\') expected |= UINT64_C(1) << i;
        }
        CHECK(cmq_quotes_mask_portable(block) == expected);
#if defined(__SSE2__)
        CHECK(cmq_quotes_mask_sse2(block) == expected);
#endif
    }
}

/* Walk with steps that skip marks, as readers do. */
static void test_walks_over_random_texts(void)
{
    for (int round = 0; round < 5000; round++) {
        const size_t bytes = cmq_test_random_below(300);
        const uint64_t rare = 1 + cmq_test_random_below(200);
        uint8_t *text = malloc(bytes > 0 ? bytes : 1);
        for (size_t i = 0; i < bytes; i++) text[i] = cmq_test_random_below(rare) == 0 ? random_byte() : 'x';
        cmq_quotes quotes;
        cmq_quotes_begin(&quotes, text, bytes);
        for (size_t from = 0; from <= bytes;) {
            size_t expected = from;
            while (expected < bytes && text[expected] != '"' && text[expected] != '\\') expected++;
            CHECK_INT(cmq_quotes_next(&quotes, text + from) - text, expected);
            from += 1 + cmq_test_random_below(cmq_test_random_below(2) ? 3 : 150);
        }
        free(text);
    }
}

CMQ_TEST_MAIN(CMQ_TEST(test_masks_of_random_blocks), CMQ_TEST(test_walks_over_random_texts))
