/* test_cmq_message_id: offset message ids are written as upstream writes them, and read back. */
#include "store/record/cmq_message_id.h"

#include <string.h>

#include "support/cmq_test.h"

static void test_worked_example(void)
{
    const cmq_record_host host = {.address = {10, 0, 0, 5}, .port = 10911};
    char id[CMQ_MESSAGE_ID_BYTES_MAX];
    CHECK_INT(cmq_message_id_format(&host, 74565, id), 32);
    CHECK_BYTES(id, 32, "0A00000500002A9F0000000000012345", 32);

    cmq_record_host read;
    int64_t offset;
    CHECK_OK(cmq_message_id_parse(cmq_slice_of_text("0a00000500002a9f0000000000012345"), &read, &offset));
    CHECK_BYTES(read.address, 16, host.address, 16);
    CHECK_INT(read.port, 10911);
    CHECK(!read.ipv6);
    CHECK_INT(offset, 74565);
}

static void test_ipv6_host(void)
{
    const cmq_record_host host = {.address = {0xfe, 0x80, [15] = 0xAB}, .port = 65535, .ipv6 = true};
    char id[CMQ_MESSAGE_ID_BYTES_MAX + 1] = {0};
    CHECK_INT(cmq_message_id_format(&host, INT64_MAX, id), 56);
    CHECK(strcmp(id, "FE8000000000000000000000000000AB0000FFFF7FFFFFFFFFFFFFFF") == 0);
    cmq_record_host read;
    int64_t offset;
    CHECK_OK(cmq_message_id_parse(cmq_slice_of_text(id), &read, &offset));
    CHECK_BYTES(read.address, 16, host.address, 16);
    CHECK_INT(read.port, 65535);
    CHECK(read.ipv6);
    CHECK_INT(offset, INT64_MAX);
}

static void test_texts_that_are_no_id(void)
{
    static const char *const refused[] = {"", "0A00000500002A9F000000000001234", "0A00000500002A9F00000000000123456",
                                          "0A00000500002A9F000000000001234G", "0A00000500002A9F0000000000 12345"};
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        cmq_record_host read;
        int64_t offset = 1;
        CHECK_STATUS(cmq_message_id_parse(cmq_slice_of_text(refused[i]), &read, &offset), CMQ_ERR_ARGUMENT);
        CHECK_INT(offset, 0);
    }
}

CMQ_TEST_MAIN(CMQ_TEST(test_worked_example), CMQ_TEST(test_ipv6_host), CMQ_TEST(test_texts_that_are_no_id))
