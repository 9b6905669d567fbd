/* cmq_append_together: transactions: messages of several calls that become visible at once or not at all.
 *
 * Per transaction: one hold of the writer lock, one claim of the log for all of its bytes, and what each message costs
 * alone. Under async flush a copy of its bytes and a sync of them, with the writer lock.
 *
 * Invariant: all that may be refused is asked for before the log is claimed. The first 8 bytes are written last, behind
 *            a sync of the others (cmq_log_seal), so that a crash leaves all records or none. Each record says where
 *            the first one lies: without those 8 bytes nobody takes the others for acknowledged messages.
 * Way:       caller -> [cmq_append_together] -> cmq_append, cmq_log -> cmq_commit
 * Source:    docs/decisions/0036.
 */
#include <stdlib.h>

#include "base/cmq_assert.h"
#include "store/append/cmq_append_internal.h"

static int by_address(const void *a, const void *b)
{
    const uintptr_t left = (uintptr_t) * (cmq_queue *const *)a, right = (uintptr_t) * (cmq_queue *const *)b;
    return (left > right) - (left < right);
}

/* Room for the units of each queue, not of the whole transaction: it may have as many queues as messages. */
static cmq_status make_room(cmq_store *store, cmq_foreseen_units *units)
{
    const int64_t confirmed = cmq_log_confirmed(store->log);
    cmq_status status = CMQ_OK;
    if (units->count > 1) qsort(units->queues, units->count, sizeof(cmq_queue *), by_address);
    for (uint32_t from = 0, end; from < units->count && status == CMQ_OK; from = end) {
        for (end = from + 1; end < units->count && units->queues[end] == units->queues[from];) end++;
        CMQ_ASSERT(end > from && end <= units->count);
        status = cmq_queue_make_room(units->queues[from], end - from, confirmed);
    }
    return status;
}

/* All that messages of several calls ask for; then the log's room. */
static cmq_status claim_parts(append_context *c, cmq_store *store, const cmq_append *parts, uint32_t count)
{
    cmq_foreseen_units units = {0};
    uint64_t total = 0;
    uint32_t keys = 0;
    cmq_status status = cmq_append_check_writable(store);
    for (uint32_t i = 0; i < count && status == CMQ_OK; i++) {
        if (parts[i].count == 0) continue;
        cmq_append_begin(c, store, &parts[i]);
        c->watched = cmq_watches_any(store->watches);
        c->foreseen = &units;
        status = cmq_append_foresee(c, &total, &keys);
        c->foreseen = NULL;
    }
    if (status == CMQ_OK) status = make_room(store, &units);
    free(units.queues);
    if (status != CMQ_OK) return status;
    if (total > CMQ_TOGETHER_BYTES_MAX)
        return cmq_fail(CMQ_ERR_TOO_LARGE, "the messages of the transaction have %llu bytes; at most %u are allowed",
                        (unsigned long long)total, CMQ_TOGETHER_BYTES_MAX);
    CMQ_ASSERT(total > 0);
    if (store->index != NULL) status = cmq_append_grant_keys(store, keys);
    return status == CMQ_OK ? cmq_log_begin_sealed(store->log, (uint32_t)total) : status;
}

/* One hold of the writer lock. A failure behind the claim leaves bytes that nobody may find: the store is fenced. */
static cmq_status append_parts(append_context *c, cmq_store *store, const cmq_append *parts, uint32_t count,
                               uint32_t messages, cmq_appended *appended)
{
    bool watched = false;
    CMQ_ASSERT(messages > 0);
    cmq_status status = claim_parts(c, store, parts, count);
    if (status != CMQ_OK) return status;
    const int64_t first = cmq_log_end(store->log);
    for (uint32_t i = 0; i < count && status == CMQ_OK; i++) {
        if (parts[i].count == 0) continue;
        cmq_append_begin(c, store, &parts[i]);
        c->claimed = true;
        if (messages > 1 && (c->fields.sys_flag & CMQ_SYS_TRANSACTION_MASK) == 0)
            c->fields.prepared_transaction_offset = cmq_record_together(first);
        status = cmq_append_chunk(c, &appended[i].count);
        CMQ_ASSERT(status != CMQ_OK || (appended[i].count == parts[i].count && c->first_phy >= first));
        watched |= c->watched;
        appended[i].first_queue_offset = c->first_queue_offset;
        appended[i].first_physical_offset = c->first_phy;
        appended[i].end = cmq_log_end(store->log);
        appended[i].store_timestamp_ms = c->fields.store_timestamp_ms;
    }
    if (status == CMQ_OK) status = cmq_log_seal(store->log);
    if (status != CMQ_OK) return cmq_store_fence(store);
    if (watched) cmq_watches_list(store->watches);
    return cmq_append_settle(store);
}

static cmq_status check_parts(append_context *c, cmq_store *store, const cmq_append *parts, uint32_t count,
                              uint32_t *messages_out)
{
    uint64_t messages = 0;
    for (uint32_t i = 0; i < count; i++) {
        cmq_append_begin(c, store, &parts[i]);
        const cmq_status status = cmq_append_check_call(c);
        if (status != CMQ_OK) return status;
        messages += parts[i].count;
    }
    if (messages > CMQ_TOGETHER_MAX)
        return cmq_fail(CMQ_ERR_LIMIT, "the transaction has %llu messages; at most %u are allowed",
                        (unsigned long long)messages, CMQ_TOGETHER_MAX);
    *messages_out = (uint32_t)messages;
    return CMQ_OK;
}

cmq_status cmq_store_append_together(cmq_store *store, const cmq_append *parts, uint32_t count,
                                     cmq_appended *appended_out)
{
    const bool sync = store->options.flush == CMQ_FLUSH_SYNC;
    append_context c;
    uint32_t messages = 0;
    for (uint32_t i = 0; i < count; i++)
        appended_out[i] = (cmq_appended){.first_queue_offset = -1, .first_physical_offset = -1};
    cmq_status status = cmq_append_check_writable(store);
    if (status == CMQ_OK) status = check_parts(&c, store, parts, count, &messages);
    if (status != CMQ_OK || messages == 0) return status;
    do {
        pthread_mutex_lock(&store->writer_mutex);
        cmq_queues_begin_turn(store->queues);
        status = append_parts(&c, store, parts, count, messages, appended_out);
        const int64_t end = cmq_log_end(store->log);
        pthread_mutex_unlock(&store->writer_mutex);
        cmq_append_note_space(store, status);
        if (status != CMQ_OK && status != CMQ_AGAIN) return status;
        if (!sync) cmq_watches_notify(store->watches);
        else {
            const cmq_status written = cmq_store_commit(store, end);   /* AGAIN: all that waits before it */
            if (written != CMQ_OK) return written;
        }
    } while (status == CMQ_AGAIN);
    return CMQ_OK;
}
