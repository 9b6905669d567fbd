/* cmq_timer_recover: from the files to a wheel that has everything that the log has, and where in the queue to go on.
 *
 *   check        says how far it was; written last, so at least so far it is timer log    cut where it is no log; its
 *                units from the file before the check's on are put into the wheel where it misses them
 *   wheel        a slot that points behind the log is made again from the log; without a wheel, or with one of another
 *                precision: all slots
 *   queue        from the check's offset on; messages that the log has already are passed over. Where the log is
 *                shorter than the check says, from behind its last unit on, but for delivered messages
 */
#include "broker/timer/cmq_timer_internal.h"

typedef struct recovery {
    cmq_timer *timer;
    int64_t log_end;
    int64_t newest_last, newest_number;   /* the slot with the newest unit that the log has */
    int64_t oldest_pending;
    int64_t rebuild_from;                 /* a slot was emptied whose first unit lies here; INT64_MAX: none */
} recovery;

/* ---- slots ---- */

static void look_at_slot(void *context, const cmq_timer_slot *slot)
{
    recovery *r = context;
    if (slot->last >= r->log_end || slot->last < -1 || slot->first > slot->last) {
        const cmq_timer_slot empty = {.number = slot->number, .first = -1, .last = -1};
        cmq_timer_wheel_put(r->timer->wheel, &empty);
        if (slot->first < r->rebuild_from) r->rebuild_from = slot->first;
    } else if (slot->last > r->newest_last) {
        r->newest_last = slot->last;
        r->newest_number = slot->number;
    }
}

/* Were the slots made with our precision? The newest unit that one points to says so. */
static bool fits_precision(const recovery *r)
{
    cmq_timer_unit unit;
    return r->newest_last < 0 || !cmq_timer_log_read(r->timer->log, r->newest_last, &unit) ||
           cmq_timer_unit_number(r->timer, &unit) == r->newest_number;
}

/* Put the log's units from `position` on into the wheel, where they are not delivered and not there. */
static void revise_from(cmq_timer *timer, int64_t position)
{
    cmq_timer_unit unit;
    for (int64_t at = cmq_timer_log_next(timer->log, position); at >= 0;
         at = cmq_timer_log_next(timer->log, at + CMQ_TIMER_UNIT_BYTES)) {
        cmq_timer_slot slot;
        if (!cmq_timer_log_read(timer->log, at, &unit)) break;
        const int64_t number = cmq_timer_unit_number(timer, &unit);
        if (number < timer->read_number) continue;
        cmq_timer_wheel_get(timer->wheel, number, &slot);
        if (at <= slot.last) continue;
        /* a unit since */
        if (slot.magic == CMQ_TIMER_SLOT_PARKED_AGAIN)
            slot = (cmq_timer_slot){.number = number, .first = -1, .last = -1};
        if (slot.first < 0) slot.first = at;
        slot.last = at;
        slot.count += (unit.magic & CMQ_TIMER_UNIT_DELETE) != 0 ? -1 : 1;
        cmq_timer_wheel_put(timer->wheel, &slot);
    }
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

static void recover_wheel(cmq_timer *timer, int64_t trusted, bool fresh)
{
    recovery r = {.timer = timer,
                  .log_end = cmq_timer_log_end(timer->log),
                  .newest_last = -1,
                  .oldest_pending = timer->write_number,
                  .rebuild_from = INT64_MAX};
    cmq_timer_wheel_each(timer->wheel, look_at_slot, &r);
    const bool rebuild = fresh || !fits_precision(&r);
    if (rebuild) cmq_timer_wheel_clear(timer->wheel);
    revise_from(timer, rebuild ? 0 : r.rebuild_from < trusted ? r.rebuild_from : trusted);
    cmq_timer_wheel_each(timer->wheel, find_pending, &r);
    timer->read_number = r.oldest_pending;   /* so that the wheel's one turn from there on reaches the future, however
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

static cmq_status CMQ_MUST_CHECK recover_queue(cmq_timer *timer)
{
    const cmq_timer_check *check = &timer->check;
    const int64_t known =
        check->queue_offset < check->master_queue_offset ? check->queue_offset : check->master_queue_offset;
    timer->queue_next = known > 0 ? known : 0;
    timer->replay = -1;
    if (cmq_timer_log_end(timer->log) < check->log_end) {
        const int64_t behind = offset_behind_log(timer);
        timer->refill_until = timer->queue_next;
        timer->queue_next = behind < 0 ? 0 : behind < timer->queue_next ? behind : timer->queue_next;
    }
    cmq_queue *queue = cmq_queues_find(cmq_store_queues(timer->store), cmq_timer_topic(), 0);
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

cmq_status cmq_timer_recover(cmq_timer *timer, const char *root, cmq_fs *fs)
{
    cmq_store_info info;
    bool fresh;
    const int64_t precision_ms = timer->options.precision_ms;
    cmq_status status = cmq_timer_check_load(fs, root, &timer->check);
    if (status == CMQ_OK) status = cmq_timer_wheel_open(&timer->wheel, fs, root, &fresh);
    if (status == CMQ_OK) status = cmq_timer_log_open(&timer->log, fs, root, timer->options.log_file_bytes);
    if (status == CMQ_OK) status = cmq_store_info_of(timer->store, &info);
    if (status != CMQ_OK) return status;
    const int64_t end = timer->check.log_end, file_bytes = cmq_timer_log_file_bytes(timer->log),
                  trusted = end > file_bytes ? end - file_bytes : 0;
    status = cmq_timer_log_recover(timer->log, trusted, info.log_end);
    if (status != CMQ_OK) return status;
    /* Without a check, as far back as upstream goes. */
    const int64_t now = cmq_clock_now_ms(&timer->clock) / precision_ms, read = timer->check.read_ms / precision_ms;
    timer->write_number = now;
    timer->read_number = read <= 0 ? now - CMQ_TIMER_WINDOW_SLOTS_MAX : read < now ? read : now;
    if (timer->read_number < 0) timer->read_number = 0;
    timer->refill_number = timer->read_number;
    recover_wheel(timer, trusted, fresh);
    return recover_queue(timer);
}
