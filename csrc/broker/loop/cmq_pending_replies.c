/* cmq_pending_replies: a queue of answers in one block of memory. See cmq_pending_replies.h.
 *
 * Entry: its fixed part, then the physical offsets, then UNIQ_KEY and the handle, padded to 8 bytes. When the tail
 *        reaches the end of the block, the remaining entries move to the front if that frees half of the block;
 *        otherwise the block grows. So each byte moves at most once for each byte that was freed before it.
 */
#include "broker/loop/cmq_pending_replies.h"

#include <stdlib.h>
#include <string.h>

#include "base/cmq_assert.h"

typedef struct entry {
    cmq_conn_id conn;
    int64_t end;
    int64_t since_ns;
    int64_t queue_offset;
    uint32_t bytes;          /* of the whole entry */
    uint32_t count;
    int32_t queue_id;
    int32_t opaque;
    uint32_t unique_bytes, recall_bytes;
    uint8_t format;
    bool inner_batch;
} entry;

#define BYTES_MIN (64u * 1024)

void cmq_pending_replies_free(cmq_pending_replies *sent)
{
    free(sent->memory);
    *sent = (cmq_pending_replies){0};
}

static cmq_status make_room(cmq_pending_replies *sent, size_t bytes)
{
    if (sent->capacity - sent->tail >= bytes) return CMQ_OK;
    const size_t used = sent->tail - sent->head;
    if (sent->head >= sent->capacity / 2 && sent->capacity - used >= bytes) {
        memmove(sent->memory, sent->memory + sent->head, used);
    } else {
        size_t capacity = sent->capacity == 0 ? BYTES_MIN : sent->capacity;
        while (capacity - used < bytes) capacity *= 2;
        uint8_t *memory = malloc(capacity);
        if (memory == NULL)
            return cmq_fail(CMQ_ERR_MEMORY, "no memory for the answers of %u sends that wait for the disk",
                            sent->count + 1);
        if (used > 0) memcpy(memory, sent->memory + sent->head, used);
        free(sent->memory);
        sent->memory = memory;
        sent->capacity = capacity;
    }
    sent->head = 0;
    sent->tail = used;
    return CMQ_OK;
}

cmq_status cmq_pending_replies_add(cmq_pending_replies *sent, const cmq_pending_replies_answer *answer)
{
    const size_t offsets = answer->count * sizeof(int64_t);
    const size_t bytes = (sizeof(entry) + offsets + answer->unique.bytes + answer->recall.bytes + 7) & ~(size_t)7;
    CMQ_ASSERT(bytes <= UINT32_MAX);
    const cmq_status status = make_room(sent, bytes);
    if (status != CMQ_OK) return status;
    uint8_t *at = sent->memory + sent->tail;
    const entry fixed = {
        .conn = answer->conn,
        .end = answer->end,
        .since_ns = answer->since_ns,
        .queue_offset = answer->queue_offset,
        .bytes = (uint32_t)bytes,
        .count = answer->count,
        .queue_id = answer->queue_id,
        .opaque = answer->opaque,
        .unique_bytes = (uint32_t)answer->unique.bytes,
        .recall_bytes = (uint32_t)answer->recall.bytes,
        .format = (uint8_t)answer->format,
        .inner_batch = answer->inner_batch,
    };
    memcpy(at, &fixed, sizeof fixed);
    memcpy(at + sizeof fixed, answer->physical_offsets, offsets);
    if (answer->unique.bytes > 0) memcpy(at + sizeof fixed + offsets, answer->unique.data, answer->unique.bytes);
    if (answer->recall.bytes > 0)
        memcpy(at + sizeof fixed + offsets + answer->unique.bytes, answer->recall.data, answer->recall.bytes);
    sent->tail += bytes;
    sent->count++;
    return CMQ_OK;
}

bool cmq_pending_replies_front(const cmq_pending_replies *sent, cmq_pending_replies_answer *answer_out)
{
    if (sent->count == 0) return false;
    const uint8_t *at = sent->memory + sent->head;
    entry fixed;
    memcpy(&fixed, at, sizeof fixed);
    const uint8_t *texts = at + sizeof fixed + fixed.count * sizeof(int64_t);
    *answer_out = (cmq_pending_replies_answer){
        .conn = fixed.conn,
        .end = fixed.end,
        .since_ns = fixed.since_ns,
        .queue_offset = fixed.queue_offset,
        .physical_offsets = (const int64_t *)(const void *)(at + sizeof fixed),
        .unique = {.data = texts, .bytes = fixed.unique_bytes},
        .recall = {.data = texts + fixed.unique_bytes, .bytes = fixed.recall_bytes},
        .count = fixed.count,
        .queue_id = fixed.queue_id,
        .opaque = fixed.opaque,
        .format = (cmq_header_format)fixed.format,
        .inner_batch = fixed.inner_batch,
    };
    return true;
}

void cmq_pending_replies_drop(cmq_pending_replies *sent)
{
    CMQ_ASSERT(sent->count > 0);
    entry fixed;
    memcpy(&fixed, sent->memory + sent->head, sizeof fixed);
    sent->head += fixed.bytes;
    if (--sent->count > 0) return;
    sent->head = sent->tail = 0;
    /* A burst is over: its memory goes. */
    if (sent->capacity > 16 * BYTES_MIN) cmq_pending_replies_free(sent);
}
