/* cmq_txn_recover: the start of transactions, and half messages that are put back.
 *
 * Read: the op records from the op progress on; the half messages from the half progress on that no op record names;
 * and the log behind the first of these, for commits whose op record was lost: after a crash of ours the last seconds
 * of texts, of upstream's also after a clean stop.
 */
#include "broker/txn/cmq_txn_internal.h"

#include <inttypes.h>
#include <stdlib.h>

#define UNITS 64u
#define RECORDS 64u

/* Where a progress begins: as stored, within the queue. */
static int64_t progress_of(const cmq_txn *txn, const char *topic, const cmq_queue *queue)
{
    const cmq_offset_key key = cmq_txn_key(topic);
    if (queue == NULL) return 0;
    const int64_t stored = cmq_offsets_query(txn->options.offsets, &key);
    const int64_t min = cmq_queue_min(queue), max = cmq_queue_max(queue, cmq_store_confirmed(txn->store));
    if (stored == CMQ_OFFSETS_NONE || stored < min) return min;
    return stored > max ? max : stored;
}

/* A stored progress beyond the queue's end, as a power loss leaves it, is corrected in the table: a second crash would
 * otherwise pass the half messages that come meanwhile. */
static cmq_status CMQ_MUST_CHECK correct(cmq_txn *txn, const char *topic, int64_t progress)
{
    const cmq_offset_key key = cmq_txn_key(topic);
    const int64_t stored = cmq_offsets_query(txn->options.offsets, &key);
    return stored > progress ? cmq_offsets_commit(txn->options.offsets, &key, progress) : CMQ_OK;
}

/* ---- op records ---- */

static cmq_status CMQ_MUST_CHECK note_ended(cmq_txn *txn, cmq_slice body, int64_t max)
{
    int64_t offset;
    while (cmq_txn_text_next(&body, &offset)) {
        if (offset < txn->progress || offset >= max) continue;
        const cmq_status status = cmq_txn_ended_reserve(&txn->ended, offset);
        if (status != CMQ_OK) return status;
        cmq_txn_ended_add(&txn->ended, offset);
    }
    return CMQ_OK;
}

static cmq_status CMQ_MUST_CHECK read_ops(cmq_txn *txn, cmq_queue *queue, int64_t max)
{
    cmq_unit units[UNITS];
    int64_t at = txn->op_progress;
    uint32_t count;
    do {
        cmq_status status = cmq_queue_read(queue, at, cmq_store_confirmed(txn->store), units, UNITS, &count, &at);
        for (uint32_t i = 0; i < count && status == CMQ_OK; i++) {
            cmq_parked_record parked;
            status = cmq_parked_read(txn->store, units[i].phy, &parked);
            if (status == CMQ_OK) status = note_ended(txn, parked.view.body, max);
            else if (cmq_parked_is_hopeless(status)) status = CMQ_OK;   /* its half messages are open again */
            cmq_parked_release(&parked);
        }
        if (status != CMQ_OK) return status;
    } while (count > 0);
    return CMQ_OK;
}

/* ---- open half messages ---- */

/* Of several copies only the newest is open. */
static cmq_status CMQ_MUST_CHECK note_open(cmq_txn *txn, const cmq_record_view *record)
{
    cmq_txn_half half;
    cmq_status status = cmq_txn_half_of_locked(txn, record, &half);
    if (status != CMQ_OK) return cmq_parked_is_hopeless(status) ? CMQ_OK : status;
    if (half.first < 0) return CMQ_OK;
    const int64_t latest = cmq_txn_copies_latest(&txn->copies, half.first);
    const int64_t older = latest >= 0 ? latest : half.first;
    status = cmq_txn_reserve_end(txn, older);
    if (status == CMQ_OK) status = cmq_txn_copies_reserve(&txn->copies);
    if (status == CMQ_ERR_LIMIT) return CMQ_OK;
    if (status != CMQ_OK) return status;
    if (older >= txn->progress && older < record->queue_offset && !cmq_txn_ended_has(&txn->ended, older)) {
        cmq_txn_ended_add(&txn->ended, older);
        cmq_txn_add_text(txn, older);
    }
    cmq_txn_copies_put(&txn->copies, half.first, record->queue_offset);
    return CMQ_OK;
}

/* *phy_out: where the first open one lies; -1: there is none. */
static cmq_status CMQ_MUST_CHECK read_open(cmq_txn *txn, cmq_queue *queue, int64_t *phy_out)
{
    cmq_unit units[UNITS];
    int64_t at = txn->progress;
    uint32_t count;
    *phy_out = -1;
    do {
        cmq_status status = cmq_queue_read(queue, at, cmq_store_confirmed(txn->store), units, UNITS, &count, &at);
        for (uint32_t i = 0; i < count && status == CMQ_OK; i++) {
            if (cmq_txn_ended_has(&txn->ended, units[i].offset)) continue;
            cmq_parked_record parked;
            if (*phy_out < 0) *phy_out = units[i].phy;
            status = cmq_parked_read(txn->store, units[i].phy, &parked);
            if (status == CMQ_OK) status = note_open(txn, &parked.view);
            else if (cmq_parked_is_hopeless(status)) status = CMQ_OK;
            cmq_parked_release(&parked);
        }
        if (status != CMQ_OK) return status;
    } while (count > 0);
    return CMQ_OK;
}

/* ---- commits without an op record ---- */

/* The half message at `phy`, when the commit is its own. A consumer's retry of a committed message has commit bits,
 * too, and no place. */
static cmq_status CMQ_MUST_CHECK end_committed(cmq_txn *txn, const cmq_record_view *commit)
{
    cmq_parked_record parked;
    cmq_txn_half half;
    cmq_slice unique;
    int64_t target;
    cmq_status status = cmq_parked_read(txn->store, commit->prepared_transaction_offset, &parked);
    if (status == CMQ_OK) status = cmq_txn_verify_half(txn, &parked.view);
    if (status == CMQ_OK) status = cmq_txn_half_of_locked(txn, &parked.view, &half);
    if (status == CMQ_OK && cmq_property_find(commit->properties, CMQ_NAME("UNIQ_KEY"), &unique) &&
        cmq_slice_equal(unique, half.unique) &&
        cmq_txn_standing_of(txn, parked.view.queue_offset, &half, &target) == CMQ_TXN_OPEN) {
        status = cmq_txn_reserve_end(txn, target);
        if (status == CMQ_OK) {
            cmq_txn_note_end(txn, parked.view.queue_offset, &half, target);
            txn->counters.recovered++;
        }
    }
    cmq_parked_release(&parked);
    return cmq_parked_is_hopeless(status) ? CMQ_OK : status;
}

static cmq_status CMQ_MUST_CHECK look_at_record(cmq_txn *txn, const cmq_found *found)
{
    cmq_record_view view;
    if (found->record_bytes < CMQ_RECORD_BYTES_MIN ||
        (cmq_load_i32(found->record + CMQ_RECORD_AT_SYS_FLAG) & CMQ_SYS_TRANSACTION_MASK) != CMQ_SYS_TRANSACTION_COMMIT)
        return CMQ_OK;
    if (cmq_record_parse(found->record, found->record_bytes, found->physical_offset, 0, &view) != CMQ_OK) return CMQ_OK;
    return end_committed(txn, &view);
}

static cmq_status CMQ_MUST_CHECK read_commits(cmq_txn *txn, int64_t phy)
{
    const cmq_read_options options = {.has_start_physical = true, .start_physical = phy};
    cmq_found items[RECORDS];
    cmq_reader *reader;
    cmq_status status = cmq_reader_open(txn->store, &options, &reader);
    if (status != CMQ_OK) return status;
    bool end = false;
    while (status == CMQ_OK && !end) {
        cmq_found_batch batch = {.items = items, .capacity = RECORDS};
        status = cmq_reader_next(reader, &batch, &end);
        if (status == CMQ_ERR_CORRUPT) status = CMQ_OK;   /* the reader continues behind the damage */
        else if (batch.count == 0) end = true;
        for (uint32_t i = 0; i < batch.count && status == CMQ_OK; i++) status = look_at_record(txn, &items[i]);
        cmq_found_batch_release(&batch);
    }
    cmq_reader_close(reader);
    return status;
}

cmq_status cmq_txn_start(cmq_txn *txn)
{
    cmq_queue *half = cmq_txn_half_queue(txn), *op = cmq_txn_op_queue(txn);
    int64_t phy = -1;
    cmq_txn_lock(txn);
    txn->progress = progress_of(txn, CMQ_TXN_TOPIC_HALF, half);
    txn->op_progress = progress_of(txn, CMQ_TXN_TOPIC_OP, op);
    txn->next_round_ms = cmq_txn_now_ms(txn) + txn->rules.interval_ms;
    cmq_txn_ended_begin(&txn->ended, txn->progress);
    cmq_txn_ended_begin(&txn->discarded, txn->progress);
    cmq_status status = half != NULL ? correct(txn, CMQ_TXN_TOPIC_HALF, txn->progress) : CMQ_OK;
    if (status == CMQ_OK && op != NULL) status = correct(txn, CMQ_TXN_TOPIC_OP, txn->op_progress);
    if (status == CMQ_OK && half != NULL && op != NULL)
        status = read_ops(txn, op, cmq_queue_max(half, cmq_store_confirmed(txn->store)));
    if (status == CMQ_OK && half != NULL) status = read_open(txn, half, &phy);
    if (status == CMQ_OK && phy >= 0) status = read_commits(txn, phy);
    cmq_txn_unlock(txn);
    return status;
}

/* ---- 323 ---- */

/* A discarded message at its place in its queue, or a half message. */
static cmq_status CMQ_MUST_CHECK verify_discarded(cmq_txn *txn, const cmq_record_view *record)
{
    cmq_found item;
    cmq_found_batch batch = {.items = &item, .capacity = 1};
    if (cmq_slice_equal(record->topic, cmq_slice_of_text(CMQ_TXN_TOPIC_HALF))) return cmq_txn_verify_half(txn, record);
    if (!cmq_slice_equal(record->topic, cmq_slice_of_text(CMQ_TXN_TOPIC_DISCARDED)))
        return cmq_fail_at(CMQ_ERR_NOT_FOUND, record->physical_offset,
                           "the message at this place was not discarded: its topic is not %s", CMQ_TXN_TOPIC_DISCARDED);
    cmq_status status =
        cmq_store_read_offset(txn->store, record->topic, record->queue_id, record->queue_offset, &batch);
    if (status == CMQ_OK && item.physical_offset != record->physical_offset)
        status = cmq_fail_at(CMQ_ERR_NOT_FOUND, record->physical_offset, "no message begins at this place");
    cmq_found_batch_release(&batch);
    return status;
}

cmq_status cmq_txn_resume(cmq_txn *txn, int64_t physical_offset)
{
    cmq_parked_record parked;
    cmq_txn_half half;
    cmq_append append;
    cmq_appended appended;
    uint8_t *room = malloc((size_t)2 * CMQ_DELAY_SCRATCH_BYTES);
    if (room == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for a half message");
    cmq_status status = cmq_parked_read(txn->store, physical_offset, &parked);
    if (status == CMQ_OK) status = verify_discarded(txn, &parked.view);
    if (status == CMQ_OK) status = cmq_txn_half_read(&parked.view, &half);
    if (status == CMQ_OK)
        status = cmq_delay_make_append(&parked.view, cmq_slice_of_text(CMQ_TXN_TOPIC_HALF), 0, room, &append);
    if (status == CMQ_OK) {
        uint8_t *properties = room + CMQ_DELAY_SCRATCH_BYTES;
        append.properties.one = (cmq_slice){
            .data = properties, .bytes = cmq_txn_copy_write(properties, parked.view.properties, 0, -1)};
        append.no_wait = false;
        status = cmq_store_append(txn->store, &append, &appended);
    }
    cmq_parked_release(&parked);
    free(room);
    return status;
}
