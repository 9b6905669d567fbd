/* Messages read ahead by their offsets: the records and the errors of single look-ups. */
#include "broker/pop/revive/cmq_pop_ahead.h"

#include <stdio.h>
#include <string.h>

#include "support/cmq_store_kit.h"

enum { MESSAGES = 100 };

static cmq_pop_ahead ahead;

/* The message at `offset` is "m<number>", read ahead and read alone. */
static void check_message(cmq_store *store, int64_t offset, int number)
{
    char body[16];
    cmq_found item;
    cmq_found_batch batch = {.items = &item, .capacity = 1};
    cmq_record_view view;
    snprintf(body, sizeof body, "m%d", number);
    CHECK_OK(cmq_pop_ahead_read(&ahead, offset, &batch));
    CHECK_OK(cmq_record_parse(item.record, item.record_bytes, item.physical_offset, CMQ_RECORD_CHECK_BODY_CRC, &view));
    CHECK_BYTES(view.body.data, view.body.bytes, body, strlen(body));
    CHECK_INT(view.queue_offset, offset);
    const int64_t place = item.physical_offset;
    cmq_found_batch_release(&batch);
    CHECK_OK(cmq_store_read_offset(store, kit_slice("T"), 0, offset, &batch));
    CHECK_INT(item.physical_offset, place);
    cmq_found_batch_release(&batch);
}

static void check_error(cmq_store *store, const char *topic, int64_t offset)
{
    cmq_found item;
    cmq_found_batch batch = {.items = &item, .capacity = 1};
    const cmq_status expected = cmq_store_read_offset(store, kit_slice(topic), 0, offset, &batch);
    CHECK(expected != CMQ_OK);
    CHECK_STATUS(cmq_pop_ahead_read(&ahead, offset, &batch), expected);
    CHECK_INT(batch.count, 0);
}

static void any_order_gives_the_same(void)
{
    kit_set_clock();
    cmq_store *store = kit_open_at(kit_directory());
    kit_append_many(store, "T", "m", MESSAGES);
    kit_append_many(store, "other", "o", 5);
    cmq_pop_ahead_begin(&ahead, store, kit_slice("T"), 0);
    for (int i = 0; i < MESSAGES; i++) check_message(store, i, i);
    for (int i = MESSAGES - 1; i >= 0; i -= 7) check_message(store, i, i);
    for (int i = 3; i < MESSAGES; i += 40) check_message(store, i, i);
    check_message(store, 50, 50);
    check_message(store, 50, 50);
    check_error(store, "T", MESSAGES);
    check_error(store, "T", -1);
    check_message(store, 51, 51);
    kit_append_many(store, "T", "m1", 1);   /* m10 */
    check_message(store, MESSAGES, 10);
    cmq_pop_ahead_begin(&ahead, store, kit_slice("nothing"), 0);
    check_error(store, "nothing", 0);
    kit_close(store);
}

static void messages_that_expired_are_gone(void)
{
    kit_set_clock();
    cmq_store *store = kit_open_at(kit_directory());
    uint32_t deleted;
    kit_append_many(store, "T", "m", 500);
    cmq_pop_ahead_begin(&ahead, store, kit_slice("T"), 0);
    check_message(store, 0, 0);
    CHECK_OK(cmq_store_maintain(store, true));
    CHECK_OK(cmq_store_expire(store, true, &deleted));
    CHECK(deleted > 0);
    check_error(store, "T", 1);
    check_error(store, "T", 0);
    check_message(store, 499, 499);
    kit_close(store);
}

CMQ_TEST_MAIN(CMQ_TEST(any_order_gives_the_same), CMQ_TEST(messages_that_expired_are_gone))
