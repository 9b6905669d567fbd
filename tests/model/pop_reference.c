/* pop_reference: see pop_reference.h. */
#include "pop_reference.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "support/cmq_test.h"

/* Messages delivered by the timer, or revived, within this time before a crash may be delivered again: the timer writes
 * its position once a second. */
#define TIMER_AGAIN_MS 6000
#define PUTS_MAX 20

const char *const reference_groups[REFERENCE_GROUPS] = {"G", "H", "O"};

void reference_begin(reference *r, bool retry_v2)
{
    memset(r, 0, sizeof *r);
    r->retry_v2 = retry_v2;
    memset(r->persisted.offsets, -1, sizeof r->persisted.offsets);
    memset(r->persisted.revive, -1, sizeof r->persisted.revive);
    for (int q = 0; q < REFERENCE_QUEUES; q++) r->ordered[q].committed = r->persisted.ordered[q].committed = -1;
}

void reference_topic(const reference *r, int group, bool retry, char name[64])
{
    if (retry)
        snprintf(name, 64, "%%RETRY%%%s%c" REFERENCE_TOPIC, reference_groups[group], r->retry_v2 ? '+' : '_');
    else
        snprintf(name, 64, REFERENCE_TOPIC);
}

int32_t reference_message(const reference *r, const handed *of, uint32_t index)
{
    const int64_t offset = of->offsets[index];
    return of->retry ? r->copies[of->group][offset].message : r->queues[of->queue_id][offset];
}

static int32_t reconsumed(const reference *r, const handed *of, uint32_t index)
{
    return of->retry ? r->copies[of->group][of->offsets[index]].reconsumed : 0;
}

static int64_t first_pop(const reference *r, const handed *of, uint32_t index)
{
    return of->retry ? r->copies[of->group][of->offsets[index]].first_pop_ms : of->pop_ms;
}

static int64_t due_ms(const handed *of) { return of->pop_ms + of->invisible_ms; }

/* ---- actions ---- */

void reference_sent(reference *r, int32_t queue)
{
    r->queues[queue][r->in_queue[queue]++] = r->message_count++;
    r->at++;
}

void reference_flushed(reference *r) { r->flushed_at = ++r->at; }

void reference_persisted(reference *r)
{
    r->persisted_at = r->flushed_at = ++r->at;
    memcpy(r->persisted.ordered, r->ordered, sizeof r->ordered);
}

static bool same_key(const handed *a, const handed *b)
{
    return a->group == b->group && a->retry == b->retry && a->queue_id == b->queue_id &&
           a->offsets[0] == b->offsets[0] && a->pop_ms == b->pop_ms;
}

static uint32_t of_the_name(const reference *r, const handed *of)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < r->checkpoint_count; i++) count += same_key(of, &r->checkpoints[i]);
    return count;
}

/* A handle names its checkpoint by where that begins and when it was popped: after a crash there may be two of the
 * name, and an ack is of either. */
void reference_acked(reference *r, handed *of, uint32_t index, int64_t now_ms, bool consumed)
{
    const bool sure = now_ms < due_ms(of) && !r->set_back && of_the_name(r, of) == 1;
    r->at++;
    if (consumed) r->done[of->group][reference_message(r, of, index)] = true;
    for (uint32_t i = 0; i < r->checkpoint_count; i++) {
        handed *one = &r->checkpoints[i];
        if (!same_key(of, one)) continue;
        for (uint32_t k = 0; k < one->count; k++) {
            if (one->offsets[k] != of->offsets[index] || one->fates[k] == ACKED) continue;
            one->fates[k] = sure && one->revivals[k] == NOT_YET ? ACKED : PERHAPS_ACKED;
            one->acked_at[k] = r->at;
        }
    }
}

static handed *add_checkpoint(reference *r)
{
    CHECK(r->checkpoint_count < REFERENCE_CHECKPOINTS_MAX);
    return &r->checkpoints[r->checkpoint_count++];
}

void reference_changed(reference *r, handed *of, uint32_t index, int64_t pop_ms, int64_t invisible_ms, int64_t now_ms)
{
    CHECK_INT(pop_ms, now_ms > of->pop_ms ? now_ms : of->pop_ms + 1);
    handed *made = add_checkpoint(r);
    *made = (handed){.group = of->group,
                     .retry = of->retry,
                     .alone = true,
                     .sure = true,
                     .fresh = true,
                     .queue_id = of->queue_id,
                     .revive_queue = of->revive_queue,
                     .pop_ms = pop_ms,
                     .invisible_ms = invisible_ms,
                     .at = ++r->at,
                     .count = 1,
                     .offsets = {of->offsets[index]}};
    /* By an old handle again, in the same millisecond: acks tell it from the other by nothing. */
    for (uint32_t i = 0; i + 1 < r->checkpoint_count; i++)
        if (same_key(made, &r->checkpoints[i])) made->sure = false, made->fates[0] = PERHAPS_ACKED;
    reference_acked(r, of, index, now_ms, false);
}

int32_t reference_ordered_acked(reference *r, const handed *of, uint32_t index)
{
    ordered_queue *queue = &r->ordered[of->queue_id];
    const int64_t offset = of->offsets[index];
    if (offset < queue->committed) return 0;
    if (!queue->has_batch) {
        if (offset == queue->committed) queue->committed++;
        return 0;
    }
    if (queue->pop_ms != of->pop_ms) return 0;
    int64_t first = queue->offsets[queue->count - 1] + 1;
    bool found = false;
    for (uint32_t i = queue->count; i-- > 0;) {
        if (queue->offsets[i] == offset) queue->acked[i] = found = true;
        if (!queue->acked[i]) first = queue->offsets[i];
    }
    if (found) queue->committed = first;
    return found ? 0 : 13;
}

void reference_ordered_changed(reference *r, const handed *of, uint32_t index, int64_t invisible_ms, int64_t now_ms)
{
    ordered_queue *queue = &r->ordered[of->queue_id];
    if (!queue->has_batch || queue->pop_ms != of->pop_ms || of->offsets[index] < queue->committed) return;
    for (uint32_t i = 0; i < queue->count; i++)
        if (queue->offsets[i] == of->offsets[index]) queue->visible_ms[i] = now_ms + invisible_ms;
}

void reference_stopped(reference *r)
{
    for (int g = 0; g < REFERENCE_UNORDERED; g++)
        for (int retry = 0; retry < 2; retry++)
            for (int q = 0; q < REFERENCE_QUEUES; q++) {
                const int64_t offset = r->persisted.offsets[g][retry][q];
                if (offset != r->next[g][retry][q] && !(offset < 0 && r->next[g][retry][q] == 0))
                    cmq_test_fail(__FILE__, __LINE__,
                                  "stopped: %s stands at %" PRId64 " of %squeue %d, and had popped up to %" PRId64,
                                  reference_groups[g], offset, retry ? "retry " : "", q, r->next[g][retry][q]);
            }
    for (int q = 0; q < REFERENCE_QUEUES; q++) {
        const int64_t offset = r->persisted.offsets[REFERENCE_ORDERED][0][q];
        /* Nothing is kept of a queue that had no message yet. */
        if (offset >= 0 || r->ordered[q].committed > 0) CHECK_INT(offset, r->ordered[q].committed);
    }
}

void reference_set_back(reference *r)
{
    r->set_back = true;
    for (uint32_t i = 0; i < r->checkpoint_count; i++)
        for (uint32_t k = 0; k < r->checkpoints[i].count; k++) {
            if (r->checkpoints[i].fates[k] == ACKED) r->checkpoints[i].fates[k] = PERHAPS_ACKED;
            r->checkpoints[i].spare[k] = PUTS_MAX;
        }
}

/* Has an offset that was written down passed it? */
static bool is_covered(const reference *r, const handed *of)
{
    return r->persisted.offsets[of->group][of->retry][of->queue_id] > of->offsets[of->count - 1];
}

static void crash_checkpoint(const reference *r, handed *of, bool log_cut, bool merged, int64_t now_ms)
{
    const bool covered = is_covered(r, of), in_log = of->alone || !merged;
    bool acks_stay = covered || in_log;
    if (log_cut) of->sure = of->sure && ((in_log && of->at < r->flushed_at) || (covered && !of->alone));
    else of->sure = of->sure && (covered || in_log);
    for (uint32_t i = 0; i < of->count; i++) {
        const bool stays = acks_stay && (!log_cut || of->acked_at[i] < r->flushed_at);
        if (of->fates[i] == ACKED && !stays) of->fates[i] = PERHAPS_ACKED;
        if (of->fates[i] != ACKED && due_ms(of) <= now_ms) of->spare[i] = r->puts_again ? PUTS_MAX : 1;
        if (of->revivals[i] == REVIVED &&
            (of->revived_at[i] > r->persisted_at || of->revived_ms[i] > now_ms - TIMER_AGAIN_MS))
            of->revivals[i] = PERHAPS_AGAIN;
    }
}

void reference_crashed(reference *r, bool log_cut, bool merged, int64_t now_ms)
{
    r->at++;
    for (uint32_t i = 0; i < r->checkpoint_count; i++)
        if (r->checkpoints[i].group != REFERENCE_ORDERED)
            crash_checkpoint(r, &r->checkpoints[i], log_cut, merged, now_ms);
    for (int g = 0; g < REFERENCE_UNORDERED; g++)
        for (int retry = 0; retry < 2; retry++)
            for (int q = 0; q < REFERENCE_QUEUES; q++) {
                const int64_t offset = r->persisted.offsets[g][retry][q];
                CHECK(offset <= r->next[g][retry][q]);
                r->next[g][retry][q] = offset < 0 ? 0 : offset;
            }
    memcpy(r->ordered, r->persisted.ordered, sizeof r->ordered);
}

void reference_copies_left(reference *r, int group, int64_t max)
{
    CHECK(r->next[group][1][0] <= max);
    for (int64_t offset = max; offset < r->copy_count[group]; offset++) {
        const copy *gone = &r->copies[group][offset];
        r->checkpoints[gone->checkpoint].revivals[gone->index] = NOT_YET;
        /* Messages of it that were popped and changed no longer exist. */
        for (uint32_t i = 0; i < r->checkpoint_count; i++)
            if (r->checkpoints[i].group == group && r->checkpoints[i].retry && r->checkpoints[i].offsets[0] >= max)
                r->checkpoints[i].sure = false;
    }
    if (max < r->copy_count[group]) r->copy_count[group] = (int32_t)max;
}

/* ---- observations ---- */

static bool is_blocked(const ordered_queue *queue, int64_t now_ms)
{
    for (uint32_t i = 0; queue->has_batch && i < queue->count; i++)
        if (!queue->acked[i] && queue->visible_ms[i] > now_ms) return true;
    return false;
}

void reference_ordered_look(reference *r, int32_t queue)
{
    for (int q = 0; q < REFERENCE_QUEUES; q++)
        if ((queue < 0 || queue == q) && r->ordered[q].committed < 0 && r->in_queue[q] > 0) r->ordered[q].committed = 0;
}

static void give_ordered(reference *r, const given *batch, int64_t now_ms)
{
    ordered_queue *queue = &r->ordered[batch->queue_id];
    CHECK(!batch->retry);
    if (is_blocked(queue, now_ms))
        cmq_test_fail(__FILE__, __LINE__, "ordered queue %d gave message %d while its batch is out", batch->queue_id,
                      batch->messages[0]);
    CHECK_INT(batch->offsets[0], queue->committed);
    CHECK_INT(batch->revive_queue, 999);
    queue->has_batch = true;
    queue->pop_ms = batch->pop_ms;
    queue->count = batch->count;
    for (uint32_t i = 0; i < batch->count; i++) {
        CHECK_INT(batch->offsets[i], queue->committed + i);
        CHECK_INT(batch->messages[i], r->queues[batch->queue_id][batch->offsets[i]]);
        queue->offsets[i] = batch->offsets[i];
        queue->visible_ms[i] = batch->pop_ms + batch->invisible_ms;
        queue->acked[i] = false;
    }
}

void reference_given(reference *r, const given *batch, bool ordered, int64_t now_ms)
{
    handed *made = add_checkpoint(r);
    int64_t *next = &r->next[batch->group][batch->retry][batch->queue_id];
    CHECK_INT(batch->pop_ms, now_ms);
    *made = (handed){.group = batch->group,
                     .retry = batch->retry,
                     .sure = true,
                     .fresh = true,
                     .queue_id = batch->queue_id,
                     .revive_queue = batch->revive_queue,
                     .pop_ms = batch->pop_ms,
                     .invisible_ms = batch->invisible_ms,
                     .at = ++r->at,
                     .count = batch->count};
    memcpy(made->offsets, batch->offsets, sizeof made->offsets);
    if (ordered) {
        give_ordered(r, batch, now_ms);
        return;
    }
    /* Given again in the same millisecond, around a crash: one of the two brings it back. */
    for (uint32_t i = 0; i + 1 < r->checkpoint_count; i++)
        if (same_key(made, &r->checkpoints[i])) r->checkpoints[i].sure = false;
    for (uint32_t i = 0; i < batch->count; i++) {
        if (batch->offsets[i] != *next)
            cmq_test_fail(__FILE__, __LINE__,
                          "%s was given message %d at offset %" PRId64 " of %squeue %d; %" PRId64 " is next",
                          reference_groups[batch->group], batch->messages[i], batch->offsets[i],
                          batch->retry ? "retry " : "", batch->queue_id, *next);
        CHECK_INT(batch->messages[i], reference_message(r, made, i));
        ++*next;
    }
}

void reference_revived(reference *r, int group, int32_t message, int32_t times, int64_t first_pop_ms, int64_t now_ms)
{
    CHECK(r->copy_count[group] < REFERENCE_COPIES_MAX);
    handed *best = NULL;
    uint32_t best_index = 0, best_number = 0;
    int best_rank = -1;
    for (uint32_t i = 0; i < r->checkpoint_count; i++) {
        handed *one = &r->checkpoints[i];
        if (one->group != group) continue;
        for (uint32_t k = 0; k < one->count; k++) {
            if (one->fates[k] == ACKED || (one->revivals[k] == REVIVED && one->spare[k] == 0)) continue;
            if (now_ms < due_ms(one) && !r->set_back) continue;
            if (one->retry && one->offsets[k] >= r->copy_count[group]) continue;
            if (reference_message(r, one, k) != message || reconsumed(r, one, k) + 1 != times ||
                first_pop(r, one, k) != first_pop_ms)
                continue;
            const int rank = (one->revivals[k] != REVIVED) * 8 + (one->fates[k] == OUT) * 4 + one->sure * 2 +
                             (one->revivals[k] == NOT_YET);
            if (rank <= best_rank) continue;
            best_rank = rank;
            best = one;
            best_index = k;
            best_number = i;
        }
    }
    if (best == NULL)
        cmq_test_fail(__FILE__, __LINE__,
                      "message %d came back to %s at %" PRId64 " (reconsumed %d times, first popped at %" PRId64
                      "): no checkpoint may bring it",
                      message, reference_groups[group], now_ms, times, first_pop_ms);
    if (best->revivals[best_index] == REVIVED) best->spare[best_index]--;
    best->revivals[best_index] = REVIVED;
    best->revived_at[best_index] = ++r->at;
    best->revived_ms[best_index] = now_ms;
    r->copies[group][r->copy_count[group]++] = (copy){.message = message,
                                                      .reconsumed = times,
                                                      .first_pop_ms = first_pop_ms,
                                                      .checkpoint = best_number,
                                                      .index = best_index};
}

void reference_went_to(const reference *r, int group, bool retry, int32_t queue, int64_t max)
{
    if (r->next[group][retry][queue] != max)
        cmq_test_fail(__FILE__, __LINE__, "a pop by %s left %squeue %d at %" PRId64 " of %" PRId64,
                      reference_groups[group], retry ? "retry " : "", queue, r->next[group][retry][queue], max);
}

void reference_ordered_none(const reference *r, int32_t queue, int64_t now_ms, const int64_t max[REFERENCE_QUEUES])
{
    for (int q = 0; q < REFERENCE_QUEUES; q++) {
        const ordered_queue *of = &r->ordered[q];
        if (queue >= 0 && queue != q) continue;
        if (!is_blocked(of, now_ms)) CHECK_INT(of->committed < 0 ? 0 : of->committed, max[q]);
    }
}

/* ---- the end ---- */

int64_t reference_horizon_ms(const reference *r, int64_t now_ms)
{
    int64_t horizon_ms = now_ms;
    for (uint32_t i = 0; i < r->checkpoint_count; i++) {
        const handed *of = &r->checkpoints[i];
        for (uint32_t k = 0; of->group != REFERENCE_ORDERED && k < of->count; k++)
            if ((r->set_back || (of->fates[k] != ACKED && of->revivals[k] != REVIVED)) && due_ms(of) > horizon_ms)
                horizon_ms = due_ms(of);
    }
    for (int q = 0; q < REFERENCE_QUEUES; q++)
        for (uint32_t i = 0; r->ordered[q].has_batch && i < r->ordered[q].count; i++)
            if (r->ordered[q].visible_ms[i] > horizon_ms) horizon_ms = r->ordered[q].visible_ms[i];
    return horizon_ms;
}

/* Put again in the same millisecond, two that hold one message are one. */
static bool came_with_another(const reference *r, const handed *of, int64_t offset)
{
    for (uint32_t i = 0; r->puts_again && i < r->checkpoint_count; i++) {
        const handed *one = &r->checkpoints[i];
        if (one->group != of->group || one->retry != of->retry || one->queue_id != of->queue_id ||
            one->pop_ms != of->pop_ms)
            continue;
        for (uint32_t k = 0; k < one->count; k++)
            if (one->offsets[k] == offset && one->revivals[k] == REVIVED) return true;
    }
    return false;
}

/* Checkpoints that hold one message, popped first at one time and as often, bring it back alike: which of them was seen
 * is not known. One that came and was acknowledged all the same may be the one that never comes, and what came in its
 * place was another's. */
static bool came_as_another(const reference *r, const handed *of, uint32_t index)
{
    uint32_t missing = 0, come = 0;
    for (uint32_t i = 0; i < r->checkpoint_count; i++) {
        const handed *one = &r->checkpoints[i];
        for (uint32_t k = 0; one->group == of->group && k < one->count; k++) {
            if (reference_message(r, one, k) != reference_message(r, of, index)) continue;
            if (reconsumed(r, one, k) != reconsumed(r, of, index) || first_pop(r, one, k) != first_pop(r, of, index))
                continue;
            missing += one->sure && one->fates[k] == OUT && one->revivals[k] == NOT_YET;
            come += one->fates[k] == PERHAPS_ACKED && one->revivals[k] != NOT_YET;
        }
    }
    return missing <= come;
}

void reference_all_came_back(const reference *r, int64_t now_ms)
{
    for (uint32_t i = 0; i < r->checkpoint_count; i++) {
        const handed *of = &r->checkpoints[i];
        for (uint32_t k = 0; of->group != REFERENCE_ORDERED && of->sure && k < of->count; k++)
            if (of->fates[k] == OUT && of->revivals[k] == NOT_YET && !came_with_another(r, of, of->offsets[k]) &&
                !came_as_another(r, of, k))
                cmq_test_fail(
                    __FILE__, __LINE__,
                    "message %d, popped by %s at %" PRId64 " for %" PRId64 " ms, has not come back at %" PRId64,
                    reference_message(r, of, k), reference_groups[of->group], of->pop_ms, of->invisible_ms, now_ms);
    }
}

void reference_all_done(const reference *r)
{
    for (int g = 0; g < REFERENCE_UNORDERED; g++)
        for (int32_t m = 0; m < r->message_count; m++)
            if (!r->done[g][m])
                cmq_test_fail(__FILE__, __LINE__,
                              "message %d was never acknowledged by %s, and comes no more: it is lost", m,
                              reference_groups[g]);
    for (int q = 0; q < REFERENCE_QUEUES; q++)
        CHECK_INT(r->ordered[q].committed < 0 ? 0 : r->ordered[q].committed, r->in_queue[q]);
}
