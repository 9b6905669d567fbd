/* Tests csrc/load/cmq_load_body.c: bodies come back, and every changed bit shows. */
#include "load/cmq_load_body.h"

#include <stdlib.h>
#include <string.h>

#include "support/cmq_test.h"

static uint8_t *new_pool(void)
{
    uint8_t *pool = malloc(CMQ_LOAD_POOL_BYTES);
    CHECK(pool != NULL);
    cmq_load_pool_fill(pool);
    return pool;
}

static void test_bodies_come_back(void)
{
    static const uint32_t sizes[] = {CMQ_LOAD_BODY_BYTES_MIN, CMQ_LOAD_BODY_BYTES_MIN + 1, 128, 1024,
                                     CMQ_LOAD_BODY_BYTES_MAX};
    uint8_t *pool = new_pool();
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const cmq_load_body body = {
            .run = cmq_test_random(),
            .producer = cmq_test_random_below(100),
            .sequence = cmq_test_random(),
            .sent_ns = 1234567,
        };
        uint8_t *bytes = malloc(sizes[i]);
        cmq_load_body read;
        cmq_load_body_write(bytes, sizes[i], &body, pool);
        CHECK_OK(cmq_load_body_read((cmq_slice){.data = bytes, .bytes = sizes[i]}, &read));
        CHECK(read.run == body.run && read.producer == body.producer && read.sequence == body.sequence &&
              read.sent_ns == body.sent_ns);
        free(bytes);
    }
    free(pool);
}

static void test_changes_show(void)
{
    enum { BYTES = 100 };
    uint8_t *pool = new_pool(), bytes[BYTES];
    const cmq_load_body body = {.run = 1, .producer = 2, .sequence = 3, .sent_ns = 4};
    cmq_load_body read;
    cmq_load_body_write(bytes, BYTES, &body, pool);
    for (size_t bit = 0; bit < 8 * BYTES; bit++) {
        bytes[bit / 8] = (uint8_t)(bytes[bit / 8] ^ 1u << bit % 8);
        CHECK_STATUS(cmq_load_body_read((cmq_slice){.data = bytes, .bytes = BYTES}, &read), CMQ_ERR_CORRUPT);
        bytes[bit / 8] = (uint8_t)(bytes[bit / 8] ^ 1u << bit % 8);
    }
    for (size_t cut = 0; cut < BYTES; cut++)
        CHECK_STATUS(cmq_load_body_read((cmq_slice){.data = bytes, .bytes = cut}, &read), CMQ_ERR_CORRUPT);
    CHECK_OK(cmq_load_body_read((cmq_slice){.data = bytes, .bytes = BYTES}, &read));
    free(pool);
}

CMQ_TEST_MAIN(CMQ_TEST(test_bodies_come_back), CMQ_TEST(test_changes_show))
