/* fuzz_pop: hostile bytes as a handle, and as the body of a checkpoint, an ack and a batch of acks.
 *
 * Properties: a refusal says why and leaves nothing behind; accepted input has all numbers in their ranges, and is
 * written and read again the same.
 */
#include <string.h>

#include "base/cmq_assert.h"
#include "broker/pop/record/cmq_pop_record.h"

static void check_handle(cmq_slice text)
{
    cmq_pop_handle handle, again;
    uint8_t written[CMQ_POP_HANDLE_BYTES_MAX];
    if (cmq_pop_handle_parse(text, &handle) != CMQ_OK) {
        CMQ_ASSERT(cmq_last_error()->text[0] != 0);
        return;
    }
    const size_t bytes = cmq_pop_handle_write(&handle, written);
    CMQ_ASSERT(cmq_pop_handle_parse((cmq_slice){written, bytes}, &again) == CMQ_OK);
    CMQ_ASSERT(again.start_offset == handle.start_offset && again.pop_ms == handle.pop_ms &&
               again.invisible_ms == handle.invisible_ms);
    CMQ_ASSERT(again.revive_queue == handle.revive_queue && again.retry == handle.retry &&
               again.queue_id == handle.queue_id);
    CMQ_ASSERT(again.offset == handle.offset && cmq_slice_equal(again.broker, handle.broker));
}

/* A written record is read back the same; only text that is not UTF-8, or half a character, may change. */
static void check_checkpoint(cmq_slice body, cmq_pop_room *room, cmq_pop_room *room_again, cmq_text *out)
{
    cmq_pop_checkpoint found, again;
    if (cmq_pop_checkpoint_parse(body, room, &found) != CMQ_OK) {
        CMQ_ASSERT(cmq_last_error()->status == CMQ_ERR_CORRUPT && found.topic.data == NULL);
        return;
    }
    cmq_pop_checkpoint_write(out, &found);
    CMQ_ASSERT(cmq_text_fits(out));
    CMQ_ASSERT(cmq_pop_checkpoint_parse((cmq_slice){out->begin, out->used}, room_again, &again) == CMQ_OK);
    CMQ_ASSERT(again.start_offset == found.start_offset && cmq_pop_revive_ms(&again) == cmq_pop_revive_ms(&found));
    CMQ_ASSERT(again.num == found.num && again.bits == found.bits && again.queue_id == found.queue_id &&
               again.re_puts == found.re_puts);
    CMQ_ASSERT(cmq_slice_equal(again.topic, found.topic) && cmq_slice_equal(again.group, found.group) &&
               cmq_slice_equal(again.broker, found.broker));
    for (uint32_t i = 0; i < found.num; i++) {
        const int64_t offset = cmq_pop_offset_at(&found, i);
        CMQ_ASSERT(offset == cmq_pop_offset_at(&again, i) && offset >= 0);
    }
}

static void check_acks(cmq_slice body, cmq_pop_room *room)
{
    cmq_pop_ack ack;
    cmq_pop_batch_ack batch;
    if (cmq_pop_ack_parse(body, room, &ack) == CMQ_OK)
        CMQ_ASSERT(ack.offset >= 0 && ack.start_offset >= 0 && ack.topic.bytes > 0);
    if (cmq_pop_batch_ack_parse(body, room, &batch) != CMQ_OK) return;
    uint32_t count = 0;
    for (int64_t offset; cmq_pop_next_offset(&batch.list, &offset); count++)
        CMQ_ASSERT(offset >= 0 && offset <= CMQ_POP_OFFSET_MAX);
    CMQ_ASSERT(count == batch.count);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static cmq_pop_room rooms[2];
    const cmq_slice text = {.data = data, .bytes = size};
    uint8_t written[8192];
    cmq_text out = {.begin = written, .capacity = sizeof written};
    check_handle(text);
    check_checkpoint(text, &rooms[0], &rooms[1], &out);
    check_acks(text, &rooms[0]);
    return 0;
}
