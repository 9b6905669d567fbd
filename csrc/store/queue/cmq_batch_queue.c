/* cmq_batch_queue: the differences of a queue of 46-byte units: units are dense, and an offset is found by binary
 * search on their bases.
 *
 *   i64 phy | i32 bytes | i64 tags code | i64 store time | i64 base offset | i16 messages | i32 -1 | i32 0
 *
 * Threads: position: any; set_min: under the queue's lock, or while nobody else uses the queue.
 * Source:  upstream's BatchConsumeQueue; spec store 3.8.
 */
#include "store/queue/cmq_queue_internal.h"

_Static_assert(CMQ_BATCH_UNIT_BYTES == 8 + 4 + 8 + 8 + 8 + 2 + 4 + 4, "a batch unit is 46 bytes");
_Static_assert(CMQ_BATCH_UNIT_BYTES <= CMQ_BATCH_WORDS * 4, "a batch unit fits its words");

void cmq_batch_queue_encode(uint8_t image[CMQ_BATCH_UNIT_BYTES], const cmq_unit *unit)
{
    cmq_store_i64(image, unit->phy);
    cmq_store_i32(image + 8, unit->bytes);
    cmq_store_i64(image + 12, unit->tags_code);
    cmq_store_i64(image + 20, unit->store_ms);
    cmq_store_i64(image + 28, unit->offset);
    cmq_store_i16(image + 36, (int16_t)unit->count);
    cmq_store_i32(image + 38, -1);   /* compacted offset: none */
    cmq_store_i32(image + 42, 0);
}

/* Damaged files may say anything; offset + count must not overflow anywhere. */
static int64_t plausible_offset(int64_t offset)
{
    if (offset < 0) return 0;
    return offset > INT64_MAX - INT16_MAX ? INT64_MAX - INT16_MAX : offset;
}

void cmq_batch_queue_decode(const uint8_t image[CMQ_BATCH_UNIT_BYTES], cmq_unit *unit_out)
{
    const int16_t count = cmq_load_i16(image + 36);
    *unit_out = (cmq_unit){.offset = plausible_offset(cmq_load_i64(image + 28)),
                           .phy = cmq_load_i64(image),
                           .tags_code = cmq_load_i64(image + 12),
                           .store_ms = cmq_load_i64(image + 20),
                           .bytes = cmq_load_i32(image + 8),
                           .count = count > 0 ? count : 0};
}

bool cmq_batch_queue_valid(const uint8_t image[CMQ_BATCH_UNIT_BYTES])
{
    const int64_t base = cmq_load_i64(image + 28);
    const int16_t count = cmq_load_i16(image + 36);
    return cmq_load_i64(image) >= 0 && cmq_load_i32(image + 8) > 0 && count > 0 && base >= 0 &&
           base <= INT64_MAX - count;
}

static bool begins_after(void *context, const cmq_unit *unit, cmq_status *status)
{
    (void)status;
    return unit->offset > *(const int64_t *)context;
}

cmq_status cmq_batch_queue_position(cmq_queue *queue, int64_t offset, int64_t low, int64_t high, int64_t *position_out)
{
    const cmq_queue_probe probe = {.reached = begins_after, .context = &offset};
    int64_t after = low;
    const cmq_status status = cmq_queue_first(queue, low, high, &probe, &after);
    *position_out = after > low ? after - 1 : low;
    return status;
}

cmq_status cmq_batch_queue_position_for_read(cmq_queue *queue, int64_t offset, int64_t low, int64_t high,
                                            int64_t *position_out)
{
    *position_out = high;
    if (low >= high) return CMQ_OK;
    cmq_unit last;
    uint32_t count;
    const cmq_status status = cmq_queue_fetch(queue, high - 1, high, &last, 1, &count);
    if (status != CMQ_OK || count == 0 || offset >= last.offset + last.count) return status;
    return cmq_batch_queue_position(queue, offset, low, high, position_out);
}

cmq_status cmq_batch_queue_set_min(cmq_queue *queue, int64_t min_position)
{
    cmq_batch_queue *batch = cmq_queue_batch(queue);
    const int64_t next = cmq_queue_tail_next(&queue->tail);
    cmq_unit unit;
    uint32_t count = 0;
    cmq_status status = CMQ_OK;
    int64_t min_offset = -1;
    if (min_position < next) {
        /* A damaged unit says nothing of its messages: the queue begins with those of the next one. */
        int64_t at = min_position;
        do status = cmq_queue_fetch(queue, at, next, &unit, 1, &count);
        while (status == CMQ_OK && count == 1 && unit.phy < 0 && ++at < next);
        if (count == 1 && unit.phy >= 0) min_offset = unit.offset;
    } else if (next > 0) {
        status = cmq_queue_fetch(queue, next - 1, next, &unit, 1, &count);   /* all too old: behind the last */
        if (count == 1) min_offset = unit.offset + unit.count;
    }
    if (status != CMQ_OK) return status;
    if (min_offset >= 0) atomic_store_explicit(&batch->min_offset, min_offset, memory_order_release);
    atomic_store_explicit(&queue->min, min_position, memory_order_release);
    return CMQ_OK;
}
