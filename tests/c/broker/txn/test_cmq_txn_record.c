/* Records of transactions: half messages read and written, copies, op texts, questions. */
#include <stdio.h>
#include <string.h>

#include "broker/txn/cmq_txn_record.h"
#include "support/cmq_test.h"

static cmq_record_view record_with(const char *properties)
{
    return (cmq_record_view){.properties = cmq_slice_of_text(properties)};
}

static void check_text(cmq_slice actual, const char *expected)
{
    CHECK_BYTES(actual.data, actual.bytes, expected, strlen(expected));
}

static void a_half_message_is_read(void)
{
    cmq_txn_half half;
    cmq_record_view view = record_with("REAL_TOPIC\001T\002REAL_QID\0013\002PGROUP\001P\002UNIQ_KEY\001U\002"
                                       "TRANSACTION_CHECK_TIMES\0014\002TRAN_PREPARED_QUEUE_OFFSET\0019\002"
                                       "CHECK_IMMUNITY_TIME_IN_SECONDS\00130\002");
    view.queue_offset = 10;
    CHECK_OK(cmq_txn_half_read(&view, &half));
    check_text(half.topic, "T");
    check_text(half.group, "P");
    check_text(half.unique, "U");
    CHECK_INT(half.queue_id, 3);
    CHECK_INT(half.checks, 4);
    CHECK_INT(half.first, 9);
    CHECK(half.has_immunity);
    CHECK_INT(half.immunity_s, 30);
    view.queue_offset = 9;   /* no copy lies at its first one's place, nor before it */
    CHECK_OK(cmq_txn_half_read(&view, &half));
    CHECK_INT(half.first, -1);
    view = record_with("REAL_TOPIC\001T\002REAL_QID\0010\002");
    CHECK_OK(cmq_txn_half_read(&view, &half));
    CHECK_INT(half.first, -1);
    CHECK_INT(half.checks, 0);
    CHECK(!half.has_immunity);
}

static void ages_do_not_overflow(void)
{
    CHECK_INT(cmq_txn_age_ms(1000, 400), 600);
    CHECK_INT(cmq_txn_age_ms(1000, INT64_MIN), INT64_MAX);
    CHECK_INT(cmq_txn_age_ms(-1000, INT64_MAX), INT64_MIN);
}

static void malformed_numbers_are_none(void)
{
    static const char *const bad[] = {"", "REAL_TOPIC\001T\002", "REAL_QID\0010\002",
                                      "REAL_TOPIC\001T\002REAL_QID\001x\002",
                                      "REAL_TOPIC\001T\002REAL_QID\001-1\002",
                                      "REAL_TOPIC\001T\002REAL_QID\0014294967296\002"};
    cmq_txn_half half;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const cmq_record_view view = record_with(bad[i]);
        CHECK_STATUS(cmq_txn_half_read(&view, &half), CMQ_ERR_CORRUPT);
    }
    const cmq_record_view view =
        record_with("REAL_TOPIC\001T\002REAL_QID\0010\002TRANSACTION_CHECK_TIMES\001-7\002"
                    "TRAN_PREPARED_QUEUE_OFFSET\001x\002CHECK_IMMUNITY_TIME_IN_SECONDS\001soon\002");
    CHECK_OK(cmq_txn_half_read(&view, &half));
    CHECK_INT(half.checks, 0);
    CHECK_INT(half.first, -1);
    CHECK_INT(half.immunity_s, -1);
    const cmq_record_view many =
        record_with("REAL_TOPIC\001T\002REAL_QID\0010\002TRANSACTION_CHECK_TIMES\0019223372036854775807\002");
    CHECK_OK(cmq_txn_half_read(&many, &half));
    CHECK_INT(half.checks, INT32_MAX - 1);
}

static void sender_cannot_set_properties_of_brokers(void)
{
    const cmq_slice sent = cmq_slice_of_text("TAGS\001t\002REAL_TOPIC\001X\002__transactionId__\001no\002"
                                             "REAL_QID\0017\002"
                                             "TRAN_PREPARED_QUEUE_OFFSET\0011\002"
                                             "TRANSACTION_CHECK_TIMES\00199\002A\001b");
    const cmq_slice topic = cmq_slice_of_text("T"), unique = cmq_slice_of_text("U");
    uint8_t room[512];
    CHECK(cmq_txn_half_room(sent.bytes, topic, unique) <= sizeof room);
    const size_t bytes = cmq_txn_half_write(room, sent, topic, 2, unique);
    CHECK(bytes <= cmq_txn_half_room(sent.bytes, topic, unique));
    check_text((cmq_slice){.data = room, .bytes = bytes},
               "TAGS\001t\002A\001b\002REAL_TOPIC\001T\002REAL_QID\0012\002__transactionId__\001U\002");
}

static void a_copy_replaces_its_count_and_its_first(void)
{
    const cmq_slice before = cmq_slice_of_text("TAGS\001t\002TRANSACTION_CHECK_TIMES\0011\002__CRC32#\0010012345678\002"
                                               "TRAN_PREPARED_QUEUE_OFFSET\0015\002");
    uint8_t room[256];
    size_t bytes = cmq_txn_copy_write(room, before, 2, 5);
    check_text((cmq_slice){.data = room, .bytes = bytes},
               "TAGS\001t\002TRANSACTION_CHECK_TIMES\0012\002TRAN_PREPARED_QUEUE_OFFSET\0015\002");
    bytes = cmq_txn_copy_write(room, before, 0, -1);
    check_text((cmq_slice){.data = room, .bytes = bytes}, "TAGS\001t\002");
    bytes = cmq_txn_copy_write(room, CMQ_SLICE_NONE, INT32_MAX, INT64_MAX);
    CHECK(bytes <= CMQ_TXN_COPY_BYTES_MAX);
}

static void op_texts_of_both_forms_are_read(void)
{
    static const struct {
        const char *body;
        int64_t expected[4];
        int count;
    } cases[] = {
        {"12", {12}, 1}, {"0,1,3,", {0, 1, 3}, 3}, {",,7,x,-2,9223372036854775808,8", {7, 8}, 2}, {"", {0}, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cmq_slice rest = cmq_slice_of_text(cases[i].body);
        int64_t offset;
        int count = 0;
        while (cmq_txn_text_next(&rest, &offset)) {
            CHECK(count < cases[i].count);
            CHECK_INT(offset, cases[i].expected[count++]);
        }
        CHECK_INT(count, cases[i].count);
    }
    uint8_t text[CMQ_TXN_TEXT_BYTES_MAX];
    CHECK_INT(cmq_txn_text_write(text, INT64_MAX), 20);
    CHECK_BYTES(text, 20, "9223372036854775807,", 20);
}

CMQ_TEST_MAIN(CMQ_TEST(a_half_message_is_read), CMQ_TEST(ages_do_not_overflow),
              CMQ_TEST(malformed_numbers_are_none),
              CMQ_TEST(sender_cannot_set_properties_of_brokers), CMQ_TEST(a_copy_replaces_its_count_and_its_first),
              CMQ_TEST(op_texts_of_both_forms_are_read))
