/* cmq_timer_enter: gives parked messages their unit in the timer log and their slot in the wheel. Late ones are
 * delivered at once, behind those due before.
 *
 * A message further away than the roll window gets a unit that parks it again before that window ends, as the wheel has
 * no room for all of time.
 */
#include "base/cmq_hash.h"
#include "broker/timer/cmq_timer_internal.h"
#include "store/record/cmq_property.h"
#include "wire/cmq_command.h"

/* The results of one batch of entries. */
typedef struct entries {
    uint64_t entered, late, skipped;
    int64_t end;             /* of the last delivery */
    int64_t store_ms;
} entries;

bool cmq_timer_record_number(const cmq_timer *timer, const cmq_record_view *parked, int64_t *number_out)
{
    cmq_slice text;
    int64_t out_ms;
    if (!cmq_property_find(parked->properties, CMQ_NAME("TIMER_OUT_MS"), &text) ||
        cmq_field_i64(text, &out_ms) != CMQ_OK || out_ms < 0)
        return false;
    *number_out = out_ms / timer->options.precision_ms;
    return true;
}

/* Does the log have this record's unit already? The check is older than the log, so the queue is read again from behind
 * it. A unit of another slot is damage. */
static bool is_entered(cmq_timer *timer, int64_t phy, int64_t number)
{
    cmq_timer_unit unit;
    while (timer->replay >= 0 && cmq_timer_log_read(timer->log, timer->replay, &unit) && unit.phy < phy)
        timer->replay = cmq_timer_log_next(timer->log, timer->replay + CMQ_TIMER_UNIT_BYTES);
    if (timer->replay < 0) return false;
    if (unit.phy != phy) return false;
    timer->replay = cmq_timer_log_next(timer->log, timer->replay + CMQ_TIMER_UNIT_BYTES);
    return (unit.magic & CMQ_TIMER_UNIT_ROLL) != 0 || cmq_timer_unit_number(timer, &unit) == number;
}

/* The slot that a message for `number` gets now, and whether it has to be rolled there. */
static int64_t slot_for(const cmq_timer *timer, int64_t number, bool *roll_out)
{
    const int64_t ahead = number - timer->write_number, window = timer->roll_window;
    *roll_out = ahead >= window;
    if (!*roll_out) return number;
    /* Little more than a window away: half now, so that the rest is not a moment. */
    return timer->write_number + (ahead - window < window / 3 ? window / 2 : window);
}

/* CMQ_AGAIN: the slot's place still has something that was not delivered, or the slot is being delivered (the clock was
 * set back). */
static cmq_status CMQ_MUST_CHECK add_unit(cmq_timer *timer, const cmq_record_view *parked, int64_t phy, int64_t number)
{
    cmq_slice topic, key;
    cmq_timer_slot slot;
    bool roll;
    int64_t position;
    const bool deletes = cmq_property_find(parked->properties, CMQ_NAME("TIMER_DEL_UNIQKEY"), &key);
    const int64_t at = slot_for(timer, number, &roll), precision_ms = timer->options.precision_ms;
    if (!cmq_timer_wheel_has_room(timer->wheel, at) || (timer->walk.active && timer->walk.number == at))
        return CMQ_AGAIN;
    cmq_timer_wheel_get(timer->wheel, at, &slot);
    /* The clock was set back into a slot that was delivered: its messages are not delivered again. */
    if (!cmq_timer_wheel_is_pending(timer->wheel, at)) slot = (cmq_timer_slot){.number = at, .first = -1, .last = -1};
    const bool has_topic = cmq_property_find(parked->properties, CMQ_NAME("REAL_TOPIC"), &topic);
    const cmq_timer_unit unit = {
        .previous = slot.last,
        .magic = CMQ_TIMER_UNIT_DEFAULT | (roll ? CMQ_TIMER_UNIT_ROLL : 0) | (deletes ? CMQ_TIMER_UNIT_DELETE : 0),
        .write_ms = timer->write_number * precision_ms,
        .delay_ms = (int32_t)((at - timer->write_number) * precision_ms),
        .phy = phy,
        .bytes = (int32_t)parked->record_bytes,
        .topic_hash = has_topic ? (int32_t)cmq_jhash(topic) : 0,
    };
    const cmq_status status = cmq_timer_fence(cmq_timer_log_append(timer->log, &unit, &position));
    if (status != CMQ_OK) return status;
    pthread_mutex_lock(&timer->mutex);
    if (slot.first < 0) slot.first = position;
    slot.last = position;
    slot.count += deletes ? -1 : 1;
    cmq_timer_wheel_put(timer->wheel, &slot);
    cmq_timer_wheel_set_pending(timer->wheel, at);
    timer->counters.pending += deletes ? -1 : 1;
    if (at < timer->next_pending) timer->next_pending = at;
    pthread_mutex_unlock(&timer->mutex);
    return CMQ_OK;
}

static cmq_status CMQ_MUST_CHECK enter_record(cmq_timer *timer, const cmq_unit *queued, const cmq_record_view *parked,
                                              entries *done)
{
    int64_t number;
    cmq_slice key;
    if (!cmq_timer_record_number(timer, parked, &number))
        return cmq_fail_at(CMQ_ERR_CORRUPT, queued->phy, "the parked record has no TIMER_OUT_MS");
    if (queued->offset < timer->refill_until && number < timer->refill_number) return CMQ_OK;
    if (is_entered(timer, queued->phy, number)) return CMQ_OK;
    if (number >= timer->write_number) {
        const cmq_status status = add_unit(timer, parked, queued->phy, number);
        if (status == CMQ_OK) done->entered++;
        return status;
    }
    /* A deletion that is late finds nothing to delete. */
    if (cmq_property_find(parked->properties, CMQ_NAME("TIMER_DEL_UNIQKEY"), &key)) return CMQ_OK;
    /* It overtakes nothing that is due before it: an ack that came before its checkpoint would be nobody's. */
    if (timer->next_pending <= number) return CMQ_AGAIN;
    const cmq_status status = cmq_timer_append(timer, parked, CMQ_TIMER_NEVER_ENTERED, false, &done->end);
    if (status == CMQ_OK) done->late++;
    return status;
}

static cmq_status CMQ_MUST_CHECK enter_unit(cmq_timer *timer, const cmq_unit *queued, entries *done)
{
    cmq_parked_record parked;
    cmq_status status = cmq_parked_read(timer->store, queued->phy, &parked);
    if (status == CMQ_OK) {
        done->store_ms = parked.view.store_timestamp_ms;
        status = enter_record(timer, queued, &parked.view, done);
    }
    cmq_parked_release(&parked);
    if (!cmq_parked_is_hopeless(status)) return status;
    done->skipped++;
    return CMQ_OK;
}

/* ---- the queue ---- */

static cmq_status CMQ_MUST_CHECK read_units(cmq_timer *timer, cmq_queue *queue, uint32_t *count_out, int64_t *next_out)
{
    const int64_t confirmed = cmq_store_confirmed(timer->store);
    const int64_t min = cmq_queue_min(queue), max = cmq_queue_max(queue, confirmed);
    int64_t from = timer->queue_next;
    if (from < min) from = min;
    if (from > max) from = max;
    *next_out = from;
    return cmq_queue_read(queue, from, confirmed, timer->units, CMQ_TIMER_BATCH, count_out, next_out);
}

static void note(cmq_timer *timer, int64_t next, const entries *done)
{
    pthread_mutex_lock(&timer->mutex);
    if (next != timer->queue_next) timer->dirty = true;
    timer->queue_next = next;
    if (done->store_ms > 0) timer->entered_store_ms = done->store_ms;
    timer->counters.entered += done->entered;
    timer->counters.late += done->late;
    timer->counters.delivered += done->late;
    timer->counters.skipped += done->skipped;
    pthread_mutex_unlock(&timer->mutex);
}

cmq_status cmq_timer_enter(cmq_timer *timer, bool *more_out)
{
    entries done = {0};
    uint32_t count;
    int64_t next;
    /* Slots that stand in the way are parked again first. */
    *more_out = cmq_timer_has_far_slots(timer);
    if (*more_out) return CMQ_OK;
    cmq_queue *queue = cmq_queues_find(cmq_store_queues(timer->store), cmq_timer_topic(), 0);
    if (queue == NULL) return CMQ_OK;   /* the watcher reports it when it is there */
    cmq_status status = read_units(timer, queue, &count, &next);
    if (status == CMQ_OK && count == 0) {
        status = cmq_watcher_add(timer->watcher, queue);
        if (status == CMQ_OK) status = read_units(timer, queue, &count, &next);
    }
    if (status != CMQ_OK) return status;
    for (uint32_t i = 0; i < count; i++) {
        status = enter_unit(timer, &timer->units[i], &done);
        if (status == CMQ_OK) continue;
        next = timer->units[i].offset;
        break;
    }
    const cmq_status durable = done.end > 0 ? cmq_store_wait(timer->store, done.end) : CMQ_OK;
    if (durable != CMQ_OK) return durable;
    note(timer, next, &done);
    *more_out = status == CMQ_OK && count > 0;
    /* the message in the way is due, and delivered before the next look */
    return status == CMQ_AGAIN ? CMQ_OK : status;
}
