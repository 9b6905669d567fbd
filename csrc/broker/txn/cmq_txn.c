/* cmq_txn: the state of transactions, and op records. See cmq_txn.h.
 *
 * The end of one takes a look-up by its first copy, a bit and a number that waits to be written; an op record of 4 KiB
 * has some 450 of them.
 */
#include "broker/txn/cmq_txn_internal.h"

#include <stdlib.h>
#include <string.h>

#include "base/cmq_assert.h"

#define HOUR_MS INT64_C(3600000)
/* Ends that are known below the progress, for answers that come twice. */
#define KNOWN_BELOW (INT64_C(1) << 20)

/* ---- life ---- */

static void fill_defaults(cmq_txn_rules *rules)
{
    if (rules->timeout_ms <= 0) rules->timeout_ms = 6000;
    if (rules->interval_ms <= 0) rules->interval_ms = 30000;
    if (rules->checks_max <= 0) rules->checks_max = 15;
    if (rules->op_interval_ms <= 0) rules->op_interval_ms = 3000;
    if (rules->op_bytes <= 0) rules->op_bytes = 4096;
    if (rules->op_bytes > CMQ_TXN_OP_BYTES_MAX) rules->op_bytes = CMQ_TXN_OP_BYTES_MAX;
    if (rules->reserved_ms <= 0) rules->reserved_ms = 72 * HOUR_MS;
}

cmq_status cmq_txn_create(cmq_txn **txn_out, const cmq_txn_options *options)
{
    *txn_out = NULL;
    cmq_txn *txn = calloc(1, sizeof *txn);
    if (txn == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for transactions");
    pthread_mutex_init(&txn->mutex, NULL);
    txn->options = *options;
    txn->store = options->store;
    if (txn->options.clock.now_ms == NULL) txn->options.clock = cmq_clock_system();
    txn->texts = malloc(CMQ_TXN_TEXTS_MAX * sizeof *txn->texts);
    txn->op_body = malloc(CMQ_TXN_OP_BYTES_MAX + CMQ_TXN_TEXT_BYTES_MAX);
    cmq_txn_set_rules(txn, &options->rules);
    cmq_status status = cmq_traffic_create(&txn->counts);
    if (txn->texts == NULL || txn->op_body == NULL) status = cmq_fail(CMQ_ERR_MEMORY, "no memory for transactions");
    if (status != CMQ_OK) {
        cmq_txn_destroy(txn);
        return status;
    }
    *txn_out = txn;
    return CMQ_OK;
}

void cmq_txn_destroy(cmq_txn *txn)
{
    if (txn == NULL) return;
    cmq_txn_round_free(&txn->round);
    cmq_txn_ended_free(&txn->ended);
    cmq_txn_ended_free(&txn->discarded);
    cmq_txn_copies_free(&txn->copies);
    cmq_traffic_destroy(txn->counts);
    free(txn->texts);
    free(txn->op_body);
    pthread_mutex_destroy(&txn->mutex);
    free(txn);
}

void cmq_txn_lock(cmq_txn *txn) { pthread_mutex_lock(&txn->mutex); }
void cmq_txn_unlock(cmq_txn *txn) { pthread_mutex_unlock(&txn->mutex); }
int64_t cmq_txn_now_ms(const cmq_txn *txn) { return cmq_clock_now_ms(&txn->options.clock); }

void cmq_txn_set_rules(cmq_txn *txn, const cmq_txn_rules *rules)
{
    cmq_txn_lock(txn);
    txn->rules = *rules;
    fill_defaults(&txn->rules);
    cmq_txn_unlock(txn);
    atomic_store_explicit(&txn->rejects, rules->reject, memory_order_relaxed);
}

bool cmq_txn_rejects(const cmq_txn *txn) { return atomic_load_explicit(&txn->rejects, memory_order_relaxed); }

cmq_queue *cmq_txn_half_queue(const cmq_txn *txn)
{
    return cmq_queues_find(cmq_store_queues(txn->store), cmq_slice_of_text(CMQ_TXN_TOPIC_HALF), 0);
}

cmq_queue *cmq_txn_op_queue(const cmq_txn *txn)
{
    return cmq_queues_find(cmq_store_queues(txn->store), cmq_slice_of_text(CMQ_TXN_TOPIC_OP), 0);
}

/* ---- half messages ---- */

cmq_status cmq_txn_verify_half(cmq_txn *txn, const cmq_record_view *record)
{
    /* A body can contain bytes that look like a half message: the half queue decides where half messages are. */
    cmq_queue *queue = cmq_txn_half_queue(txn);
    cmq_unit unit;
    uint32_t count = 0;
    int64_t next;
    if (queue == NULL || record->queue_id != 0 ||
        !cmq_slice_equal(record->topic, cmq_slice_of_text(CMQ_TXN_TOPIC_HALF)))
        return cmq_fail_at(CMQ_ERR_NOT_FOUND, record->physical_offset, "the record is no half message");
    const cmq_status status =
        cmq_queue_read(queue, record->queue_offset, cmq_store_confirmed(txn->store), &unit, 1, &count, &next);
    if (status != CMQ_OK) return status;
    if (count == 1 && unit.offset == record->queue_offset && unit.phy == record->physical_offset &&
        unit.bytes == (int32_t)record->record_bytes)
        return CMQ_OK;
    return cmq_fail_at(CMQ_ERR_NOT_FOUND, record->physical_offset, "the half queue does not have the record");
}

/* Copies agree in all that makes a transaction. The born host is the connection of the sender, as the broker saw it. */
static bool is_copy_of(const cmq_record_view *record, const cmq_txn_half *half, const cmq_record_view *other)
{
    cmq_txn_half first;
    return cmq_txn_half_read(other, &first) == CMQ_OK && record->born_timestamp_ms == other->born_timestamp_ms &&
           memcmp(record->born_host.address, other->born_host.address, sizeof other->born_host.address) == 0 &&
           record->born_host.port == other->born_host.port && record->body_crc == other->body_crc &&
           record->body.bytes == other->body.bytes && half->queue_id == first.queue_id &&
           cmq_slice_equal(half->topic, first.topic) && cmq_slice_equal(half->group, first.group) &&
           cmq_slice_equal(half->unique, first.unique);
}

/* Set half->first to -1 unless the record at `offset` of the half queue is of the same transaction. */
static cmq_status CMQ_MUST_CHECK compare_with(cmq_txn *txn, int64_t offset, const cmq_record_view *record,
                                              cmq_txn_half *half)
{
    cmq_found item;
    cmq_found_batch batch = {.items = &item, .capacity = 1};
    cmq_record_view other;
    cmq_status status =
        cmq_store_read_offset(txn->store, cmq_slice_of_text(CMQ_TXN_TOPIC_HALF), 0, offset, &batch);
    if (status == CMQ_OK) status = cmq_record_parse(item.record, item.record_bytes, item.physical_offset, 0, &other);
    if (status == CMQ_OK && !is_copy_of(record, half, &other)) half->first = -1;
    cmq_found_batch_release(&batch);
    return status;
}

/* `latest`: the newest known copy of what the record says is its first one, or -1. The newest was compared before it
 * became known. Where retention has deleted the first one, the newest stands for it. */
static cmq_status CMQ_MUST_CHECK check_first(cmq_txn *txn, const cmq_record_view *record, int64_t latest,
                                             cmq_txn_half *half)
{
    if (latest == record->queue_offset) return CMQ_OK;
    cmq_status status = compare_with(txn, half->first, record, half);
    if (latest >= 0 && cmq_parked_is_hopeless(status)) status = compare_with(txn, latest, record, half);
    return cmq_parked_is_hopeless(status) ? CMQ_OK : status;
}

cmq_status cmq_txn_half_of_locked(cmq_txn *txn, const cmq_record_view *record, cmq_txn_half *half_out)
{
    const cmq_status status = cmq_txn_half_read(record, half_out);
    if (status != CMQ_OK || half_out->first < 0) return status;
    return check_first(txn, record, cmq_txn_copies_latest(&txn->copies, half_out->first), half_out);
}

cmq_status cmq_txn_half_of(cmq_txn *txn, const cmq_record_view *record, cmq_txn_half *half_out)
{
    const cmq_status status = cmq_txn_half_read(record, half_out);
    if (status != CMQ_OK || half_out->first < 0) return status;
    cmq_txn_lock(txn);
    const int64_t latest = cmq_txn_copies_latest(&txn->copies, half_out->first);
    cmq_txn_unlock(txn);
    return check_first(txn, record, latest, half_out);
}

cmq_txn_standing cmq_txn_standing_of(const cmq_txn *txn, int64_t offset, const cmq_txn_half *half, int64_t *target_out)
{
    const int64_t latest = cmq_txn_copies_latest(&txn->copies, half->first >= 0 ? half->first : offset);
    *target_out = latest >= 0 ? latest : offset;
    if (latest >= 0) return CMQ_TXN_OPEN;
    if (cmq_txn_ended_has(&txn->discarded, half->first >= 0 ? half->first : offset) ||
        cmq_txn_ended_has(&txn->discarded, offset))
        return CMQ_TXN_GONE;
    if (cmq_txn_ended_has(&txn->ended, offset)) return CMQ_TXN_ENDED;
    return offset >= txn->progress ? CMQ_TXN_OPEN : CMQ_TXN_GONE;
}

cmq_status cmq_txn_reserve_end(cmq_txn *txn, int64_t target)
{
    const cmq_status status = cmq_txn_ended_reserve(&txn->ended, target);
    /* Two: a copy ends the one before it, and may be discarded. */
    if (status != CMQ_OK || txn->text_count + 2 <= CMQ_TXN_TEXTS_MAX) return status;
    return cmq_txn_write_texts(txn, true);
}

void cmq_txn_note_end(cmq_txn *txn, int64_t offset, const cmq_txn_half *half, int64_t target)
{
    cmq_txn_ended_add(&txn->ended, target);
    cmq_txn_copies_drop(&txn->copies, half->first >= 0 ? half->first : offset);
    cmq_txn_add_text(txn, target);
    cmq_traffic_count(txn->counts, half->topic, CMQ_SLICE_NONE, 0, 1);
}

/* ---- op records ---- */

void cmq_txn_add_text(cmq_txn *txn, int64_t offset)
{
    uint8_t text[CMQ_TXN_TEXT_BYTES_MAX + 1];
    CMQ_ASSERT(txn->text_count < CMQ_TXN_TEXTS_MAX);
    if (txn->text_count == 0) txn->written_ms = cmq_txn_now_ms(txn);
    txn->texts[txn->text_count++] = offset;
    txn->text_bytes += cmq_txn_text_write(text, offset);
}

/* One record of the first texts; returns how many in *count_out. */
static cmq_status CMQ_MUST_CHECK write_record(cmq_txn *txn, uint32_t *count_out, size_t *bytes_out)
{
    size_t used = 0;
    uint32_t count = 0;
    while (count < txn->text_count && used < (size_t)txn->rules.op_bytes)
        used += cmq_txn_text_write(txn->op_body + used, txn->texts[count++]);
    const cmq_append append = {
        .common = {.topic = cmq_slice_of_text(CMQ_TXN_TOPIC_OP),
                   .born_host = txn->options.host,
                   .store_host = txn->options.host},
        .count = 1,
        .bodies = {.kind = CMQ_COLUMN_ONE, .one = {.data = txn->op_body, .bytes = used}},
        .properties = {.kind = CMQ_COLUMN_ONE, .one = CMQ_NAME("WAIT\001true\002TAGS\001d\002")},
        .no_wait = true,
        .never_wait = true,
    };
    cmq_appended appended;
    *count_out = count;
    *bytes_out = used;
    return cmq_store_append(txn->store, &append, &appended);
}

cmq_status cmq_txn_write_texts(cmq_txn *txn, bool all)
{
    const int64_t waited_ms = cmq_txn_now_ms(txn) - txn->written_ms;
    const bool old = waited_ms < 0 || waited_ms >= txn->rules.op_interval_ms;   /* below 0: the clock was set back */
    while (txn->text_count > 0 && (all || old || txn->text_bytes >= (uint64_t)txn->rules.op_bytes)) {
        uint32_t count;
        size_t bytes;
        const cmq_status status = write_record(txn, &count, &bytes);
        if (status != CMQ_OK) return status;
        txn->text_count -= count;
        txn->text_bytes -= bytes;
        memmove(txn->texts, txn->texts + count, txn->text_count * sizeof *txn->texts);
        txn->counters.op_records++;
        txn->written_ms = cmq_txn_now_ms(txn);
    }
    return CMQ_OK;
}

cmq_status cmq_txn_stop(cmq_txn *txn)
{
    cmq_txn_lock(txn);
    const cmq_status status = cmq_txn_write_texts(txn, true);
    cmq_txn_unlock(txn);
    return status;
}

/* ---- steps ---- */

static cmq_status CMQ_MUST_CHECK finish_round(cmq_txn *txn)
{
    cmq_status status = CMQ_OK;
    /* A progress that passes a half message whose copy or commit a power loss takes would lose the transaction. */
    if (txn->round.copied || txn->round.at > txn->progress) status = cmq_store_flush(txn->store);
    if (status != CMQ_OK) return status;
    cmq_txn_lock(txn);
    txn->progress = txn->round.at > txn->progress ? txn->round.at : txn->progress;
    cmq_txn_ended_forget(&txn->ended, txn->progress - KNOWN_BELOW);
    cmq_txn_ended_forget(&txn->discarded, txn->progress - KNOWN_BELOW);
    txn->counters.rounds++;
    cmq_txn_unlock(txn);
    status = cmq_txn_pass_ops(txn);
    const cmq_offset_key half = cmq_txn_key(CMQ_TXN_TOPIC_HALF), op = cmq_txn_key(CMQ_TXN_TOPIC_OP);
    if (status == CMQ_OK) status = cmq_offsets_commit(txn->options.offsets, &half, txn->progress);
    if (status == CMQ_OK) status = cmq_offsets_commit(txn->options.offsets, &op, txn->op_progress);
    return status;
}

cmq_status cmq_txn_step(cmq_txn *txn, const cmq_txn_asker *asker, bool *more_out)
{
    *more_out = false;
    const int64_t now_ms = cmq_txn_now_ms(txn);
    cmq_txn_lock(txn);
    cmq_status status = cmq_txn_write_texts(txn, false);
    txn->round_rules = txn->rules;
    cmq_txn_unlock(txn);
    if (status != CMQ_OK) return status;
    if (!txn->round.active) {
        const int64_t wait_ms = txn->next_round_ms - now_ms;
        if (wait_ms > txn->round_rules.interval_ms) txn->next_round_ms = now_ms + txn->round_rules.interval_ms;
        if (txn->next_round_ms > now_ms) return CMQ_OK;
        cmq_txn_round_begin(txn);
    }
    status = cmq_txn_round_go_on(txn, asker);
    if (status == CMQ_AGAIN) return CMQ_OK;   /* much waits for the disk */
    if (status == CMQ_OK && !txn->round.active) {
        status = finish_round(txn);
        txn->next_round_ms = cmq_txn_now_ms(txn) + txn->round_rules.interval_ms;
    }
    *more_out = status == CMQ_OK && txn->round.active;
    return status;
}

void cmq_txn_count(cmq_txn *txn, cmq_txn_counters *counters_out)
{
    cmq_queue *queue = cmq_txn_half_queue(txn);
    const int64_t max = queue != NULL ? cmq_queue_max(queue, cmq_store_confirmed(txn->store)) : 0;
    cmq_txn_lock(txn);
    *counters_out = txn->counters;
    counters_out->texts_now = txn->text_count;
    counters_out->behind = max > txn->progress ? max - txn->progress : 0;
    cmq_txn_unlock(txn);
}

void cmq_txn_note_halves(cmq_txn *txn, cmq_slice topic, uint32_t count)
{
    cmq_txn_lock(txn);
    cmq_traffic_count(txn->counts, topic, CMQ_SLICE_NONE, count, 0);
    cmq_txn_unlock(txn);
}

uint32_t cmq_txn_list_halves(cmq_txn *txn, uint32_t *cursor, cmq_traffic_item *items, uint32_t capacity)
{
    return cmq_traffic_list(txn->counts, cursor, items, capacity);
}
