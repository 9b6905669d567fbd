/* cmq_txn_round: checks: one pass over the half messages from the progress on, in steps. See cmq_txn.h.
 *
 * Which have ended is known without the op records. So one that is open and old enough is asked about at once; upstream
 * reads op records until they are newer than the round.
 *
 * A question names the copy, which its producer can end only when the half queue shows it: the step waits for the disk
 * before it asks.
 */
#include "broker/txn/cmq_txn_internal.h"

#include <stdlib.h>
#include <string.h>

#include "base/cmq_assert.h"

#define UNITS 64u
#define STEP_UNITS 4096u
#define STEP_BYTES (4u << 20)      /* of questions */

typedef enum decision {
    STOP,                          /* young: those behind it are younger */
    COPY,                          /* nobody is asked */
    ASK,
    DISCARD
} decision;

/* ---- questions ---- */

static void free_ask(cmq_txn_ask *ask) { free(ask->memory); }

void cmq_txn_round_free(cmq_txn_round *round)
{
    for (uint32_t i = 0; i < round->ask_count; i++) free_ask(&round->asks[i]);
    round->ask_count = 0;
    round->ask_bytes = 0;
}

/* Made before the copy is appended, which cannot be undone; the places are filled in behind it. */
static cmq_status CMQ_MUST_CHECK make_ask(cmq_txn_round *round, const cmq_record_fields *fields,
                                          const cmq_txn_half *half, cmq_record_sizes *sizes_out)
{
    const cmq_status status = cmq_record_measure(fields, sizes_out);
    if (status != CMQ_OK) return status;
    cmq_txn_ask *ask = &round->asks[round->ask_count];
    *ask = (cmq_txn_ask){.group_bytes = (uint32_t)half->group.bytes,
                         .unique_bytes = (uint32_t)half->unique.bytes,
                         .body_bytes = sizes_out->record_bytes};
    ask->memory = malloc(half->group.bytes + half->unique.bytes + sizes_out->record_bytes);
    if (ask->memory == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for the question about a half message");
    memcpy(ask->memory, half->group.data, half->group.bytes);
    if (half->unique.bytes > 0) memcpy(ask->memory + half->group.bytes, half->unique.data, half->unique.bytes);
    return CMQ_OK;
}

static void add_ask(cmq_txn_round *round, const cmq_record_fields *fields, const cmq_record_sizes *sizes)
{
    cmq_txn_ask *ask = &round->asks[round->ask_count++];
    cmq_record_encode(ask->memory + ask->group_bytes + ask->unique_bytes, fields, sizes);
    ask->queue_offset = fields->queue_offset;
    ask->physical_offset = fields->physical_offset;
    round->ask_bytes += ask->body_bytes;
}

static cmq_status CMQ_MUST_CHECK ask_all(cmq_txn *txn, const cmq_txn_asker *asker)
{
    cmq_txn_round *round = &txn->round;
    const cmq_status status = round->ask_count > 0 ? cmq_store_wait(txn->store, round->copies_end) : CMQ_OK;
    for (uint32_t i = 0; i < round->ask_count && status == CMQ_OK; i++) {
        const cmq_txn_ask *ask = &round->asks[i];
        const uint8_t *unique = ask->memory + ask->group_bytes;
        const cmq_txn_question_item question = {
            .group = {.data = ask->memory, .bytes = ask->group_bytes},
            .unique = {.data = unique, .bytes = ask->unique_bytes},
            .queue_offset = ask->queue_offset,
            .physical_offset = ask->physical_offset,
            .body = {.data = unique + ask->unique_bytes, .bytes = ask->body_bytes},
        };
        asker->ask(asker->context, &question);
    }
    cmq_txn_lock(txn);
    if (status == CMQ_OK) txn->counters.asked += round->ask_count;
    cmq_txn_unlock(txn);
    cmq_txn_round_free(round);
    return status;
}

/* ---- one half message ---- */

static decision decide(cmq_txn *txn, const cmq_record_view *record, const cmq_txn_half *half,
                       const cmq_txn_asker *asker)
{
    const cmq_txn_rules *rules = &txn->round_rules;
    const int64_t age_ms = cmq_txn_age_ms(cmq_txn_now_ms(txn), record->born_timestamp_ms);
    int64_t immunity_ms;
    if (half->checks >= rules->checks_max || age_ms > rules->reserved_ms) return DISCARD;
    if (half->has_immunity) {
        if (half->immunity_s == -1) immunity_ms = rules->timeout_ms;
        else if (__builtin_mul_overflow(half->immunity_s, INT64_C(1000), &immunity_ms))
            immunity_ms = half->immunity_s > 0 ? INT64_MAX : INT64_MIN;
        if (age_ms < immunity_ms) return COPY;
    } else if (age_ms >= 0 && age_ms < rules->timeout_ms) {
        return STOP;
    }
    return half->group.bytes > 0 && asker->is_there(asker->context, half->group) ? ASK : COPY;
}

/* Counts as a check where a producer is asked, and where copies for nobody would be a burden without an end: so many
 * were made, or the message was born further ahead of our clock than messages are kept, so that none of its copies is
 * ever too old. */
static bool is_counted(const cmq_txn *txn, cmq_txn_round *round, decision what, const cmq_record_view *record)
{
    const uint32_t bytes = record->record_bytes;
    if (what == ASK || round->free_copies == 0 || round->free_bytes < (int64_t)bytes) return true;
    if (cmq_txn_age_ms(cmq_txn_now_ms(txn), record->born_timestamp_ms) < -txn->round_rules.reserved_ms) return true;
    round->free_copies--;
    round->free_bytes -= bytes;
    return false;
}

/* Under the mutex: did it end, or was it copied, since it was looked at? */
static bool is_settled(const cmq_txn *txn, int64_t offset, const cmq_txn_half *half)
{
    int64_t target;
    return cmq_txn_standing_of(txn, offset, half, &target) != CMQ_TXN_OPEN || target != offset;
}

/* Append it to `topic` with these properties. */
static cmq_status CMQ_MUST_CHECK append_copy(cmq_txn *txn, const cmq_record_view *record, const char *topic,
                                             cmq_slice properties, cmq_appended *appended_out)
{
    cmq_append append;
    const cmq_status status =
        cmq_delay_make_append(record, cmq_slice_of_text(topic), 0, txn->scratch, &append);
    if (status != CMQ_OK) return status;
    append.properties.one = properties;
    append.never_wait = true;
    return cmq_store_append(txn->store, &append, appended_out);
}

static cmq_status CMQ_MUST_CHECK copy_half(cmq_txn *txn, const cmq_record_view *record, const cmq_txn_half *half,
                                           decision what)
{
    cmq_txn_round *round = &txn->round;
    const int64_t offset = record->queue_offset, first = half->first >= 0 ? half->first : offset;
    const int32_t checks = half->checks + (is_counted(txn, round, what, record) ? 1 : 0);
    const cmq_slice properties = {.data = txn->properties,
                                  .bytes = cmq_txn_copy_write(txn->properties, record->properties, checks, first)};
    cmq_record_view copy = *record;
    copy.properties = properties;
    cmq_record_fields question = cmq_txn_question(&copy, half, 0, 0, 0);
    cmq_record_sizes sizes;
    cmq_appended appended;
    cmq_status status = what == ASK ? make_ask(round, &question, half, &sizes) : CMQ_OK;
    if (status != CMQ_OK) return status;
    cmq_txn_lock(txn);
    const bool settled = is_settled(txn, offset, half);
    if (!settled) {
        status = cmq_txn_reserve_end(txn, offset);
        const bool linked = status == CMQ_OK && cmq_txn_copies_reserve(&txn->copies) == CMQ_OK;
        if (status == CMQ_OK) status = append_copy(txn, record, CMQ_TXN_TOPIC_HALF, properties, &appended);
        if (status == CMQ_OK) {
            if (linked) cmq_txn_copies_put(&txn->copies, first, appended.first_queue_offset);
            cmq_txn_ended_add(&txn->ended, offset);
            cmq_txn_add_text(txn, offset);
            txn->counters.copied++;
            round->copied = true;
            round->copies_end = appended.end;
        }
    }
    cmq_txn_unlock(txn);
    if (status != CMQ_OK || settled) {
        if (what == ASK) free_ask(&round->asks[round->ask_count]);
        return status;
    }
    if (what != ASK) return CMQ_OK;
    question.queue_offset = appended.first_queue_offset;
    question.physical_offset = appended.first_physical_offset;
    question.store_timestamp_ms = appended.store_timestamp_ms;
    add_ask(round, &question, &sizes);
    return CMQ_OK;
}

/* Its text keeps a start after a crash from discarding it again. An end that comes later is refused, whichever copy it
 * names: the message lies in the topic of discarded ones. */
static cmq_status CMQ_MUST_CHECK discard(cmq_txn *txn, const cmq_record_view *record, const cmq_txn_half *half)
{
    cmq_slice properties = record->properties, crc;
    cmq_appended appended;
    if (cmq_property_find(properties, CMQ_NAME("__CRC32#"), &crc))
        properties = (cmq_slice){.data = txn->properties,
                                 .bytes = cmq_property_copy_without(txn->properties, properties, CMQ_NAME("__CRC32#"))};
    cmq_txn_lock(txn);
    const int64_t offset = record->queue_offset, first = half->first >= 0 ? half->first : offset;
    cmq_status status = CMQ_OK;
    if (!is_settled(txn, offset, half)) {
        status = cmq_txn_reserve_end(txn, offset);
        if (status == CMQ_OK) status = cmq_txn_ended_reserve(&txn->discarded, first);
        if (status == CMQ_OK) status = cmq_txn_ended_reserve(&txn->discarded, offset);
        if (status == CMQ_OK) status = append_copy(txn, record, CMQ_TXN_TOPIC_DISCARDED, properties, &appended);
        if (status == CMQ_OK) {
            cmq_txn_copies_drop(&txn->copies, first);
            cmq_txn_ended_add(&txn->discarded, first);
            cmq_txn_ended_add(&txn->discarded, offset);
            cmq_txn_ended_add(&txn->ended, offset);
            cmq_txn_add_text(txn, offset);
            cmq_traffic_count(txn->counts, half->topic, CMQ_SLICE_NONE, 0, 1);
            txn->counters.discarded++;
            txn->round.copied = true;
        }
    }
    cmq_txn_unlock(txn);
    return status;
}

/* CMQ_END: the round ends in front of it. */
static cmq_status CMQ_MUST_CHECK look_at(cmq_txn *txn, const cmq_unit *unit, const cmq_txn_asker *asker)
{
    cmq_parked_record parked;
    cmq_txn_half half;
    cmq_status status = cmq_parked_read(txn->store, unit->phy, &parked);
    if (status == CMQ_OK && parked.view.queue_offset != unit->offset)
        status = cmq_fail_at(CMQ_ERR_CORRUPT, unit->phy, "the record is not the one that its unit was made of");
    if (status == CMQ_OK) status = cmq_txn_half_of(txn, &parked.view, &half);
    if (status == CMQ_OK) {
        decision what = decide(txn, &parked.view, &half, asker);
        if (what != STOP && what != DISCARD &&
            parked.view.properties.bytes + CMQ_TXN_COPY_BYTES_MAX > CMQ_PROPERTY_BYTES_MAX)
            what = DISCARD;   /* of another broker, which left no room for a copy's properties */
        if (what == STOP) status = CMQ_END;
        else if (what == DISCARD) status = discard(txn, &parked.view, &half);
        else status = copy_half(txn, &parked.view, &half, what);
    } else if (cmq_parked_is_hopeless(status)) {
        cmq_txn_lock(txn);
        txn->counters.skipped++;
        cmq_txn_unlock(txn);
        status = CMQ_OK;
    }
    cmq_parked_release(&parked);
    return status;
}

/* ---- a part of the round ---- */

void cmq_txn_round_begin(cmq_txn *txn)
{
    cmq_queue *queue = cmq_txn_half_queue(txn);
    txn->round = (cmq_txn_round){
        .active = true,
        .at = txn->progress,
        .end = queue != NULL ? cmq_queue_max(queue, cmq_store_confirmed(txn->store)) : txn->progress,
        .free_copies = CMQ_TXN_FREE_COPIES_MAX,
        .free_bytes = CMQ_TXN_FREE_BYTES_MAX,
    };
}

/* Bit i: units[i] is open. */
static uint64_t open_among(cmq_txn *txn, const cmq_unit *units, uint32_t count)
{
    uint64_t open = 0;
    cmq_txn_lock(txn);
    for (uint32_t i = 0; i < count; i++)
        if (!cmq_txn_ended_has(&txn->ended, units[i].offset)) open |= UINT64_C(1) << i;
    cmq_txn_unlock(txn);
    return open;
}

static cmq_status CMQ_MUST_CHECK walk(cmq_txn *txn, cmq_queue *queue, const cmq_txn_asker *asker)
{
    cmq_txn_round *round = &txn->round;
    cmq_unit units[UNITS];
    for (uint32_t seen = 0; seen < STEP_UNITS && round->at < round->end;) {
        uint32_t count = 0;
        int64_t next;
        cmq_status status =
            cmq_queue_read(queue, round->at, cmq_store_confirmed(txn->store), units, UNITS, &count, &next);
        if (status != CMQ_OK) return status;
        if (count == 0) {
            if (next <= round->at) return CMQ_AGAIN;   /* not to be read for now: nothing is passed over */
            round->at = next;                          /* fillers */
            continue;
        }
        const uint64_t open = open_among(txn, units, count);
        for (uint32_t i = 0; i < count && units[i].offset < round->end; i++) {
            round->at = units[i].offset;
            if ((open >> i & 1) != 0) status = look_at(txn, &units[i], asker);
            if (status == CMQ_END) round->end = round->at;
            if (status != CMQ_OK) return status == CMQ_END ? CMQ_OK : status;
            round->at++;
            if (round->ask_count == CMQ_TXN_STEP_ASKS || round->ask_bytes >= STEP_BYTES) return CMQ_OK;
        }
        if (round->at >= round->end || next >= round->end) round->at = round->end;
        seen += count;
    }
    return CMQ_OK;
}

cmq_status cmq_txn_round_go_on(cmq_txn *txn, const cmq_txn_asker *asker)
{
    cmq_queue *queue = cmq_txn_half_queue(txn);
    cmq_status status = queue != NULL ? walk(txn, queue, asker) : CMQ_OK;
    const cmq_error error = *cmq_last_error();
    const cmq_status asked = ask_all(txn, asker);
    if (status == CMQ_OK) status = asked;
    else (void)cmq_fail_again(&error);
    if (status == CMQ_OK && (queue == NULL || txn->round.at >= txn->round.end)) txn->round.active = false;
    return status;
}

/* ---- op records that are over ---- */

/* Does the record speak of a half message from the progress on? */
static cmq_status CMQ_MUST_CHECK is_needed(cmq_txn *txn, const cmq_unit *unit, bool *needed_out)
{
    cmq_parked_record parked;
    int64_t offset;
    *needed_out = false;
    const cmq_status status = cmq_parked_read(txn->store, unit->phy, &parked);
    if (status == CMQ_OK) {
        cmq_slice rest = parked.view.body;
        while (!*needed_out && cmq_txn_text_next(&rest, &offset)) *needed_out = offset >= txn->progress;
    }
    cmq_parked_release(&parked);
    return cmq_parked_is_hopeless(status) ? CMQ_OK : status;
}

cmq_status cmq_txn_pass_ops(cmq_txn *txn)
{
    cmq_queue *queue = cmq_txn_op_queue(txn);
    if (queue == NULL) return CMQ_OK;
    cmq_unit units[UNITS];
    uint32_t count;
    do {
        int64_t next;
        bool needed = false;
        cmq_status status = cmq_queue_read(queue, txn->op_progress, cmq_store_confirmed(txn->store), units, UNITS,
                                           &count, &next);
        for (uint32_t i = 0; i < count && status == CMQ_OK; i++) {
            status = is_needed(txn, &units[i], &needed);
            if (status != CMQ_OK || needed) return status;
            txn->op_progress = units[i].offset + 1;
        }
        if (status != CMQ_OK) return status;
    } while (count > 0);
    return CMQ_OK;
}
