/* cmq_timer_recover: from the files to a wheel that has everything that the log has, and where in the queue to go on.
 *
 *   check        says how far it was; written last, so at least so far it is
 *   timer log    cut where it is no log
 *   wheel        its slots from the read time on are made again from the log: the file's are compared with them
 *   queue        from the check's offset on; messages that the log has already are passed over. Where the log is
 *                shorter than the check says, from behind its last unit on, but for delivered messages
 *
 * Slots and units have no checksum, so a flipped bit is another slot or another time. But log, wheel and queue say the
 * same up to the check: each message has its unit, each unit names the one before it in its slot, each slot its first
 * and last. Where one differs, or was made with another precision, the log is emptied and everything is entered again
 * from the queue, but for delivered messages. Then messages that were rolled may be delivered twice, and a message that
 * is late by now although a deletion follows it. It costs a pass over the log and over the queue's units: 72 bytes per
 * timer that is kept.
 */
#include "broker/timer/cmq_timer_internal.h"
#include "store/record/cmq_property.h"
#include "wire/cmq_command.h"

typedef struct recovery {
    cmq_timer *timer;
    cmq_timer_wheel *stored;              /* the wheel as the file has it */
    int64_t put_next;                     /* the first unit that is not in the wheel yet; -1: none */
    int64_t covered;                      /* units before have their slots in the stored wheel */
    int64_t oldest_pending;
    bool differs;                         /* log, wheel and queue do not say the same */
} recovery;

/* ---- slots ---- */

/* Put the log's next units, up to `end`, into the wheel, unless they are delivered. */
static void put_units(recovery *r, int64_t end)
{
    cmq_timer *timer = r->timer;
    cmq_timer_unit unit;
    while (r->put_next >= 0 && r->put_next < end && cmq_timer_log_read(timer->log, r->put_next, &unit)) {
        cmq_timer_slot slot;
        const int64_t at = r->put_next;
        r->put_next = cmq_timer_log_next(timer->log, at + CMQ_TIMER_UNIT_BYTES);
        const int64_t number = cmq_timer_unit_number(timer, &unit);
        if (number < timer->read_number) continue;
        cmq_timer_wheel_get(timer->wheel, number, &slot);
        const int64_t before = slot.first < 0 ? cmq_timer_log_min(timer->log) - 1 : slot.last;
        if (slot.first < 0 ? unit.previous > before : unit.previous >= 0 && unit.previous != before) r->differs = true;
        /* the slot had been delivered, or parked again, and the clock was set back */
        if (unit.previous < 0) slot = (cmq_timer_slot){.number = number, .first = -1, .last = -1};
        if (slot.first < 0) slot.first = at;
        slot.last = at;
        slot.count += (unit.magic & CMQ_TIMER_UNIT_DELETE) != 0 ? -1 : 1;
        cmq_timer_wheel_put(timer->wheel, &slot);
    }
}

/* Has a slot of another time taken this one's place since? Then its messages were parked again before. */
static bool is_taken(const recovery *r, const cmq_timer_slot *made)
{
    cmq_timer_unit unit;
    const cmq_timer_slot stored = cmq_timer_wheel_occupant(r->stored, made->number);
    return stored.last > made->last && cmq_timer_log_read(r->timer->log, stored.last, &unit) &&
           cmq_timer_unit_number(r->timer, &unit) == stored.number;
}

static void compare_made(void *context, const cmq_timer_slot *made)
{
    recovery *r = context;
    const int64_t log_min = cmq_timer_log_min(r->timer->log);
    cmq_timer_slot stored;
    if (made->number < r->timer->read_number) return;
    if (cmq_timer_wheel_get(r->stored, made->number, &stored)) {
        if (stored.last == made->last ? stored.first >= log_min &&
                                            (stored.first != made->first || stored.count != made->count)
                                      : stored.last < r->covered)
            r->differs = true;
    } else if (is_taken(r, made)) {
        cmq_timer_slot parked_again = *made;
        parked_again.magic = CMQ_TIMER_SLOT_PARKED_AGAIN;
        cmq_timer_wheel_put(r->timer->wheel, &parked_again);
    } else {
        r->differs = true;
    }
}

static void compare_stored(void *context, const cmq_timer_slot *stored)
{
    recovery *r = context;
    cmq_timer_slot made;
    if (stored->number >= r->timer->read_number && stored->last >= cmq_timer_log_min(r->timer->log) &&
        stored->last < r->covered && !cmq_timer_wheel_get(r->timer->wheel, stored->number, &made))
        r->differs = true;
}

static void keep_parked_again(void *context, const cmq_timer_slot *made)
{
    recovery *r = context;
    cmq_timer_slot slot;
    if (made->number < r->timer->read_number || !cmq_timer_wheel_get(r->stored, made->number, &slot) ||
        slot.magic != CMQ_TIMER_SLOT_PARKED_AGAIN || slot.last != made->last || slot.first != made->first)
        return;
    cmq_timer_wheel_put(r->timer->wheel, &slot);
}

static void find_pending(void *context, const cmq_timer_slot *slot)
{
    recovery *r = context;
    cmq_timer *timer = r->timer;
    if (slot->number >= INT64_MAX / timer->options.precision_ms) return;   /* damage: it has no time */
    if (slot->number < timer->read_number || slot->last < cmq_timer_log_min(timer->log) ||
        slot->magic == CMQ_TIMER_SLOT_PARKED_AGAIN)
        return;
    cmq_timer_wheel_set_pending(timer->wheel, slot->number);
    timer->counters.pending += slot->count;
    if (slot->number < r->oldest_pending) r->oldest_pending = slot->number;
}

/* The slots that are not delivered, from the log; and do the stored ones say the same? */
static void make_slots(recovery *r, bool comparable)
{
    cmq_timer *timer = r->timer;
    cmq_timer_wheel_clear_from(timer->wheel, timer->read_number);
    r->put_next = cmq_timer_log_next(timer->log, 0);
    put_units(r, r->covered);
    if (comparable) {
        cmq_timer_wheel_each(timer->wheel, compare_made, r);
        cmq_timer_wheel_each(r->stored, compare_stored, r);
    }
    put_units(r, cmq_timer_log_end(timer->log));
    cmq_timer_wheel_each(timer->wheel, keep_parked_again, r);
    r->differs &= comparable;
}

static void take_pending(recovery *r)
{
    cmq_timer *timer = r->timer;
    r->oldest_pending = timer->write_number;
    cmq_timer_wheel_each(timer->wheel, find_pending, r);
    timer->read_number = r->oldest_pending;   /* so that the wheel's one turn from there on reaches the future, however
                                               * long nobody was here */
    cmq_timer_note_next(timer);
}

/* ---- the queue ---- */

/* The queue offset behind the message of the log's last unit; -1: there is none, or its record has gone. */
static int64_t offset_behind_log(const cmq_timer *timer)
{
    cmq_timer_unit unit;
    cmq_parked_record parked;
    int64_t offset = -1;
    const int64_t last = cmq_timer_log_previous(timer->log, cmq_timer_log_end(timer->log));
    if (last < 0 || !cmq_timer_log_read(timer->log, last, &unit)) return -1;
    if (cmq_parked_read(timer->store, unit.phy, &parked) == CMQ_OK &&
        cmq_slice_equal(parked.view.topic, cmq_timer_topic()))
        offset = parked.view.queue_offset + 1;
    cmq_parked_release(&parked);
    return offset;
}

/* The first unit of the log whose record lies at or behind `phy`: the queue gives these again. */
static int64_t find_replay(const cmq_timer *timer, int64_t phy)
{
    cmq_timer_unit unit;
    int64_t found = -1, at = cmq_timer_log_previous(timer->log, cmq_timer_log_end(timer->log));
    for (; at >= 0 && cmq_timer_log_read(timer->log, at, &unit) && unit.phy >= phy;
         at = cmq_timer_log_previous(timer->log, at))
        found = at;
    return found;
}

/* Is it a message that was entered, and has not been delivered? A deletion that was late has no unit. */
static bool is_waiting(const cmq_timer *timer, const cmq_unit *queued)
{
    cmq_parked_record parked;
    cmq_slice key;
    int64_t number;
    const bool waits = cmq_parked_read(timer->store, queued->phy, &parked) == CMQ_OK &&
                       cmq_timer_record_number(timer, &parked.view, &number) && number >= timer->refill_number &&
                       !cmq_property_find(parked.view.properties, CMQ_NAME("TIMER_DEL_UNIQKEY"), &key);
    cmq_parked_release(&parked);
    return waits;
}

typedef struct unit_cursor {
    const cmq_timer_log *log;
    int64_t at;
    cmq_timer_unit unit;
    bool has;
} unit_cursor;

static void advance(unit_cursor *cursor)
{
    cursor->at = cmq_timer_log_next(cursor->log, cursor->at + CMQ_TIMER_UNIT_BYTES);
    cursor->has = cursor->at >= 0 && cmq_timer_log_read(cursor->log, cursor->at, &cursor->unit);
}

/* Has each message of the queue before `known` its unit, unless it was delivered, and each unit its message? */
static cmq_status CMQ_MUST_CHECK compare_queue(recovery *r, cmq_queue *queue, int64_t known)
{
    cmq_timer *timer = r->timer;
    const int64_t confirmed = cmq_store_confirmed(timer->store), min = cmq_queue_min(queue);
    unit_cursor units = {.log = timer->log, .at = -CMQ_TIMER_UNIT_BYTES};
    int64_t offset = min;
    uint32_t count = 1;
    advance(&units);
    while (offset < known && count > 0 && !r->differs) {
        int64_t next;
        const cmq_status status =
            cmq_queue_read(queue, offset, confirmed, timer->units, CMQ_TIMER_BATCH, &count, &next);
        /* A damaged queue proves nothing. */
        if (status != CMQ_OK) return cmq_parked_is_hopeless(status) ? CMQ_OK : status;
        for (uint32_t i = 0; i < count && timer->units[i].offset < known && !r->differs; i++) {
            const cmq_unit *queued = &timer->units[i];
            const bool begins = offset == min && i == 0;   /* messages before have expired */
            for (; units.has && units.unit.phy < queued->phy; advance(&units)) r->differs |= !begins;
            const bool has = units.has && units.unit.phy == queued->phy;
            if (has ? units.unit.bytes != queued->bytes : is_waiting(timer, queued)) r->differs = true;
            if (has) advance(&units);
        }
        offset = next;
    }
    return CMQ_OK;
}

/* Enter everything again that the queue has from `from` on and that was entered before the check. */
static void refill_from(cmq_timer *timer, int64_t from)
{
    timer->counters.remade = true;
    timer->refill_until = timer->queue_next;
    timer->queue_next = from < 0 ? 0 : from < timer->queue_next ? from : timer->queue_next;
}

static cmq_status CMQ_MUST_CHECK remake(recovery *r)
{
    cmq_timer *timer = r->timer;
    const cmq_status status = cmq_timer_log_empty(timer->log);
    if (status != CMQ_OK) return status;
    cmq_timer_wheel_clear_from(timer->wheel, timer->read_number);
    refill_from(timer, 0);
    return CMQ_OK;
}

/* Where in the queue to go on. */
static cmq_status CMQ_MUST_CHECK recover_queue(cmq_timer *timer, cmq_queue *queue)
{
    timer->replay = -1;
    if (queue == NULL) {
        timer->queue_next = 0;
        return CMQ_OK;
    }
    const int64_t confirmed = cmq_store_confirmed(timer->store), min = cmq_queue_min(queue),
                  max = cmq_queue_max(queue, confirmed);
    if (timer->queue_next < min) timer->queue_next = min;
    if (timer->queue_next > max) timer->queue_next = max;
    uint32_t count;
    int64_t next;
    const cmq_status status = cmq_queue_read(queue, timer->queue_next, confirmed, timer->units, 1, &count, &next);
    if (status == CMQ_OK && count > 0) timer->replay = find_replay(timer, timer->units[0].phy);
    return status;
}

/* ---- all of it ---- */

/* Where time and the queue were. Without a check, as far back as upstream goes. */
static void take_check(cmq_timer *timer)
{
    const cmq_timer_check *check = &timer->check;
    const int64_t precision_ms = timer->options.precision_ms, now = cmq_clock_now_ms(&timer->clock) / precision_ms,
                  read = check->read_ms / precision_ms,
                  known = check->queue_offset < check->master_queue_offset ? check->queue_offset
                                                                           : check->master_queue_offset;
    timer->write_number = now;
    timer->read_number = read <= 0 ? now - CMQ_TIMER_WINDOW_SLOTS_MAX : read < now ? read : now;
    if (timer->read_number < 0) timer->read_number = 0;
    timer->refill_number = timer->read_number;
    timer->queue_next = known > 0 ? known : 0;
    timer->counters.remade = check->damaged;
}

static cmq_status CMQ_MUST_CHECK recover_with(recovery *r, bool fresh)
{
    cmq_timer *timer = r->timer;
    const int64_t log_end = cmq_timer_log_end(timer->log);
    cmq_queue *queue = cmq_queues_find(cmq_store_queues(timer->store), cmq_timer_topic(), 0);
    cmq_status status = CMQ_OK;
    r->covered = timer->check.log_end < log_end ? timer->check.log_end : log_end;
    const bool whole = log_end >= timer->check.log_end;
    make_slots(r, whole && !fresh);
    if (whole && queue != NULL && !r->differs) status = compare_queue(r, queue, timer->queue_next);
    if (status == CMQ_OK && r->differs) status = remake(r);
    else if (!whole) refill_from(timer, offset_behind_log(timer));
    if (status != CMQ_OK) return status;
    cmq_timer_wheel_keep_same(timer->wheel, r->stored);
    take_pending(r);
    return recover_queue(timer, queue);
}

cmq_status cmq_timer_recover(cmq_timer *timer, const char *root, cmq_fs *fs)
{
    recovery r = {.timer = timer};
    cmq_store_info info;
    bool fresh;
    cmq_status status = cmq_timer_check_load(fs, root, &timer->check);
    if (status == CMQ_OK) status = cmq_timer_wheel_open(&timer->wheel, fs, root, &fresh);
    if (status == CMQ_OK) status = cmq_timer_log_open(&timer->log, fs, root, timer->options.log_file_bytes);
    if (status == CMQ_OK) status = cmq_store_info_of(timer->store, &info);
    if (status == CMQ_OK) status = cmq_timer_log_recover(timer->log, info.log_end);
    if (status == CMQ_OK) status = cmq_timer_wheel_copy(timer->wheel, &r.stored);
    if (status != CMQ_OK) return status;
    take_check(timer);
    status = recover_with(&r, fresh);
    cmq_timer_wheel_close(r.stored);
    return status;
}
