/* cmq_timer_deliver: delivers due messages to their topics: slot by slot, a slot's deletions first, then its messages
 * in the order in which they were parked.
 *
 * A clock that was weeks ahead leaves slots that lie a turn of the wheel or more ahead of the true time. They would
 * hold the places of nearer ones for weeks, and the wheel finds slots in the order of places. So when the clock was set
 * back, all that lies in them is parked again, as a roll does.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/cmq_assert.h"
#include "broker/tables/cmq_system_topics.h"
#include "broker/timer/cmq_timer_internal.h"
#include "store/record/cmq_property.h"
#include "wire/cmq_command.h"

/* The result of the delivery of one block. */
typedef struct deliveries {
    uint64_t delivered, rolled, recalled, skipped;
    int64_t end;
} deliveries;

/* ---- one record ---- */

static bool is_replaced(cmq_slice name, bool roll)
{
    return cmq_slice_equal(name, CMQ_NAME("TIMER_ENQUEUE_MS")) || cmq_slice_equal(name, CMQ_NAME("TIMER_DEQUEUE_MS")) ||
           (roll && cmq_slice_equal(name, CMQ_NAME("TIMER_ROLL_TIMES")));
}

static cmq_status CMQ_MUST_CHECK add_number(cmq_timer *timer, size_t *used, cmq_slice name, int64_t number)
{
    char digits[24];
    const int bytes = snprintf(digits, sizeof digits, "%" PRId64, number);
    return cmq_property_append(timer->properties, sizeof timer->properties, used, name,
                               (cmq_slice){.data = (const uint8_t *)digits, .bytes = (size_t)bytes});
}

/* The properties of the delivery: the parked ones, and when it came in and out. */
static cmq_status CMQ_MUST_CHECK write_properties(cmq_timer *timer, cmq_slice *properties, int64_t enqueue_ms,
                                                  bool roll)
{
    cmq_slice rest = *properties, name, value;
    size_t used = 0;
    int32_t rolls = 0;
    cmq_status status = CMQ_OK;
    while (status == CMQ_OK && cmq_property_next(&rest, &name, &value)) {
        if (roll && cmq_slice_equal(name, CMQ_NAME("TIMER_ROLL_TIMES")) &&
            (cmq_field_i32(value, &rolls) != CMQ_OK || rolls < 0 || rolls == INT32_MAX))
            rolls = 0;
        if (!is_replaced(name, roll))
            status = cmq_property_append(timer->properties, sizeof timer->properties, &used, name, value);
    }
    if (status == CMQ_OK) status = add_number(timer, &used, CMQ_NAME("TIMER_ENQUEUE_MS"), enqueue_ms);
    if (status == CMQ_OK && roll) status = add_number(timer, &used, CMQ_NAME("TIMER_ROLL_TIMES"), rolls + 1);
    if (status == CMQ_OK)
        status = add_number(timer, &used, CMQ_NAME("TIMER_DEQUEUE_MS"), cmq_clock_now_ms(&timer->clock));
    *properties = (cmq_slice){.data = timer->properties, .bytes = used};
    return status;
}

static void note_undelivered(cmq_timer *timer)
{
    pthread_mutex_lock(&timer->mutex);
    timer->counters.undelivered++;
    pthread_mutex_unlock(&timer->mutex);
}

cmq_status cmq_timer_append(cmq_timer *timer, const cmq_record_view *parked, int64_t enqueue_ms, bool roll,
                            int64_t *end_out)
{
    cmq_slice topic;
    int32_t queue_id;
    cmq_append append;
    cmq_appended appended;
    cmq_status status = cmq_delay_target(parked, &topic, &queue_id);
    if (status == CMQ_OK && cmq_slice_equal(topic, cmq_timer_topic()))
        status =
            cmq_fail_at(CMQ_ERR_CORRUPT, parked->physical_offset, "nothing is delivered to topic %s", CMQ_TOPIC_TIMER);
    if (status == CMQ_OK && roll) {
        topic = cmq_timer_topic();
        queue_id = 0;
    } else if (status == CMQ_OK && !cmq_topic_takes(timer->tables, topic, queue_id)) {
        note_undelivered(timer);
        topic = cmq_slice_of_text(CMQ_TOPIC_UNDELIVERED);
        queue_id = 0;
    }
    if (status == CMQ_OK) status = cmq_delay_make_append(parked, topic, queue_id, timer->scratch, &append);
    if (status == CMQ_OK) status = write_properties(timer, &append.properties.one, enqueue_ms, roll);
    if (status == CMQ_OK) status = cmq_store_append(timer->store, &append, &appended);
    if (status == CMQ_OK) *end_out = appended.end;
    return status;
}

/* "topic+id", as a deletion names a message; 0: it has no id, or one that no deletion has. */
static size_t write_key(const cmq_record_view *parked, uint8_t *into, size_t room)
{
    cmq_slice topic, unique;
    if (!cmq_property_find(parked->properties, CMQ_NAME("REAL_TOPIC"), &topic) ||
        !cmq_property_find(parked->properties, CMQ_NAME("UNIQ_KEY"), &unique))
        return 0;
    if (topic.bytes + 1 + unique.bytes > room) return 0;
    memcpy(into, topic.data, topic.bytes);
    into[topic.bytes] = '+';
    memcpy(into + topic.bytes + 1, unique.data, unique.bytes);
    return topic.bytes + 1 + unique.bytes;
}

/* A deletion names a timer by "topic+id"; one that a broker of 5.4 or newer parked may name it by its id alone
 * (appendTopicForTimerDeleteKey=false). */
static bool is_deleted(const cmq_timer *timer, cmq_slice key)
{
    const uint8_t *plus = memchr(key.data, '+', key.bytes);   /* no topic has one */
    const cmq_slice id = {.data = plus + 1, .bytes = key.bytes - (size_t)(plus + 1 - key.data)};
    return cmq_timer_deletes_has(&timer->walk.deletes, key) || cmq_timer_deletes_has(&timer->walk.deletes, id);
}

static cmq_status CMQ_MUST_CHECK deliver_record(cmq_timer *timer, const cmq_timer_unit *unit,
                                                const cmq_record_view *parked, deliveries *done)
{
    uint8_t key[CMQ_TIMER_KEY_BYTES_MAX];
    cmq_slice deletes;
    int64_t number;
    const bool rolls = (unit->magic & CMQ_TIMER_UNIT_ROLL) != 0, roll = rolls || timer->walk.parks_again;
    /* After a power loss under async flush another record may have come to lie there: it has a unit of its own. */
    if (!cmq_slice_equal(parked->topic, cmq_timer_topic()) || parked->record_bytes != (uint32_t)unit->bytes ||
        !cmq_timer_record_number(timer, parked, &number) || (!rolls && number != timer->walk.number))
        return cmq_fail_at(CMQ_ERR_CORRUPT, unit->phy,
                           "the record is not the one that its unit in the timer log was made of");
    if (!roll && cmq_property_find(parked->properties, CMQ_NAME("TIMER_DEL_UNIQKEY"), &deletes)) return CMQ_OK;
    const size_t key_bytes = timer->walk.deletes.count > 0 ? write_key(parked, key, sizeof key) : 0;
    if (key_bytes > 0 && is_deleted(timer, (cmq_slice){.data = key, .bytes = key_bytes})) {
        done->recalled++;
        return CMQ_OK;
    }
    const cmq_status status = cmq_timer_append(timer, parked, unit->write_ms, roll, &done->end);
    if (status == CMQ_OK && roll) done->rolled++;
    else if (status == CMQ_OK) done->delivered++;
    return status;
}

static cmq_status CMQ_MUST_CHECK deliver_at(cmq_timer *timer, int64_t position, deliveries *done)
{
    cmq_timer_unit unit;
    cmq_parked_record parked;
    if (!cmq_timer_log_read(timer->log, position, &unit)) {
        done->skipped++;
        return CMQ_OK;
    }
    cmq_status status = cmq_parked_read(timer->store, unit.phy, &parked);
    if (status == CMQ_OK) status = deliver_record(timer, &unit, &parked.view, done);
    cmq_parked_release(&parked);
    if (!cmq_parked_is_hopeless(status)) return status;
    done->skipped++;
    return CMQ_OK;
}

/* ---- one slot ---- */

void cmq_timer_walk_free(cmq_timer_walk *walk)
{
    free(walk->marks);
    walk->marks = NULL;
    walk->mark_count = walk->mark_slots = walk->blocks_left = walk->count = walk->next = 0;
    cmq_timer_deletes_free(&walk->deletes);
    walk->active = walk->parks_again = false;
}

static cmq_status CMQ_MUST_CHECK add_mark(cmq_timer_walk *walk, int64_t position)
{
    if (walk->mark_count == walk->mark_slots) {
        const uint32_t slots = walk->mark_slots == 0 ? 16 : walk->mark_slots * 2;
        int64_t *marks = realloc(walk->marks, slots * sizeof *marks);
        if (marks == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for the %u blocks of a slot of timers", slots);
        walk->marks = marks;
        walk->mark_slots = slots;
    }
    walk->marks[walk->mark_count++] = position;
    return CMQ_OK;
}

static bool read_unit(const cmq_timer *timer, int64_t position, cmq_timer_unit *unit_out)
{
    return cmq_timer_log_read(timer->log, position, unit_out) &&
           cmq_timer_unit_number(timer, unit_out) == timer->walk.number;
}

/* The slot's newest unit before position `behind`: where the chain leads, or, where that is damaged, the nearest one in
 * the log. -1: none. */
static int64_t unit_before(const cmq_timer *timer, int64_t behind, int64_t at, cmq_timer_unit *unit_out)
{
    const int64_t min = cmq_timer_log_min(timer->log), first = timer->walk.first > min ? timer->walk.first : min;
    if (behind <= first) return -1;
    if (at >= first && at < behind && read_unit(timer, at, unit_out)) return at;
    do {
        behind = cmq_timer_log_previous(timer->log, behind);
    } while (behind >= first && !read_unit(timer, behind, unit_out));
    return behind >= first ? behind : -1;
}

/* The unit that the walk along the slot begins with. */
static int64_t newest_unit(const cmq_timer *timer, int64_t last, cmq_timer_unit *unit_out)
{
    return last < 0 ? -1 : unit_before(timer, last + CMQ_TIMER_UNIT_BYTES, last, unit_out);
}

static cmq_status CMQ_MUST_CHECK note_deletion(cmq_timer *timer, const cmq_timer_unit *unit)
{
    cmq_parked_record parked;
    cmq_slice key;
    int64_t number;
    cmq_status status = cmq_parked_read(timer->store, unit->phy, &parked);
    /* One that is rolled here deletes elsewhere. A longer key is no timer's; a slot keeps those of all its deletions in
     * memory. */
    if (status == CMQ_OK && cmq_timer_record_number(timer, &parked.view, &number) && number == timer->walk.number &&
        cmq_property_find(parked.view.properties, CMQ_NAME("TIMER_DEL_UNIQKEY"), &key) &&
        key.bytes <= CMQ_TIMER_KEY_BYTES_MAX)
        status = cmq_timer_deletes_add(&timer->walk.deletes, key);
    cmq_parked_release(&parked);
    return cmq_parked_is_hopeless(status) ? CMQ_OK : status;
}

/* Down the chain once: deletions, and where blocks begin. */
static cmq_status CMQ_MUST_CHECK begin_slot(cmq_timer *timer, int64_t number)
{
    cmq_timer_walk *walk = &timer->walk;
    cmq_timer_slot slot;
    cmq_timer_unit unit;
    cmq_status status = CMQ_OK;
    uint32_t in_block = 0;
    walk->number = number;
    cmq_timer_wheel_get(timer->wheel, number, &slot);
    walk->first = slot.first;
    for (int64_t at = newest_unit(timer, slot.last, &unit); status == CMQ_OK && at >= 0;
         at = unit_before(timer, at, unit.previous, &unit)) {
        if (in_block == 0) status = add_mark(walk, at);
        in_block = (in_block + 1) % CMQ_TIMER_BATCH;
        if (status == CMQ_OK && (unit.magic & CMQ_TIMER_UNIT_DELETE) != 0 && !walk->parks_again)
            status = note_deletion(timer, &unit);
    }
    if (status != CMQ_OK) {
        cmq_timer_walk_free(walk);
        return status;
    }
    walk->blocks_left = walk->mark_count;
    walk->active = true;
    return CMQ_OK;
}

static void load_block(cmq_timer *timer)
{
    cmq_timer_walk *walk = &timer->walk;
    cmq_timer_unit unit;
    walk->count = walk->next = 0;
    for (int64_t at = newest_unit(timer, walk->marks[--walk->blocks_left], &unit);
         walk->count < CMQ_TIMER_BATCH && at >= 0; at = unit_before(timer, at, unit.previous, &unit))
        walk->positions[walk->count++] = at;
    for (uint32_t i = 0, j = walk->count; i + 1 < j; i++) {
        const int64_t swapped = walk->positions[i];
        walk->positions[i] = walk->positions[--j];
        walk->positions[j] = swapped;
    }
}

static void note(cmq_timer *timer, const deliveries *done)
{
    pthread_mutex_lock(&timer->mutex);
    timer->counters.delivered += done->delivered;
    timer->counters.rolled += done->rolled;
    timer->counters.recalled += done->recalled;
    timer->counters.skipped += done->skipped;
    pthread_mutex_unlock(&timer->mutex);
}

static cmq_status CMQ_MUST_CHECK deliver_block(cmq_timer *timer)
{
    cmq_timer_walk *walk = &timer->walk;
    deliveries done = {0};
    cmq_status status = CMQ_OK;
    uint32_t next = walk->next;
    for (; next < walk->count; next++) {
        status = deliver_at(timer, walk->positions[next], &done);
        if (status != CMQ_OK) break;
    }
    const cmq_status durable = done.end > 0 ? cmq_store_wait(timer->store, done.end) : CMQ_OK;
    if (durable != CMQ_OK) return durable;   /* all of it again */
    walk->next = next;
    note(timer, &done);
    return status;
}

static void end_slot(cmq_timer *timer)
{
    cmq_timer_slot slot;
    pthread_mutex_lock(&timer->mutex);
    cmq_timer_wheel_get(timer->wheel, timer->walk.number, &slot);
    /* it lies ahead of the read time: the next start must not take it for one to deliver */
    if (timer->walk.parks_again) {
        slot.magic = CMQ_TIMER_SLOT_PARKED_AGAIN;
        cmq_timer_wheel_put(timer->wheel, &slot);
    }
    cmq_timer_wheel_clear_pending(timer->wheel, timer->walk.number);
    timer->counters.pending -= slot.count;
    timer->dirty = true;
    cmq_timer_note_next(timer);
    pthread_mutex_unlock(&timer->mutex);
    cmq_timer_walk_free(&timer->walk);
}

/* Slots before `number` have nothing: so far time has been read. */
static void read_up_to(cmq_timer *timer, int64_t number)
{
    pthread_mutex_lock(&timer->mutex);
    timer->read_number = number;
    pthread_mutex_unlock(&timer->mutex);
}

/* The slot to deliver, or to park again, next; INT64_MAX: none. */
static int64_t choose_slot(cmq_timer *timer)
{
    const bool far = cmq_timer_has_far_slots(timer);
    int64_t number =
        far ? cmq_timer_wheel_next_beyond(timer->wheel, &timer->far_place, timer->write_number + CMQ_TIMER_SLOTS)
            : INT64_MAX;
    timer->walk.parks_again = number != INT64_MAX;
    if (timer->walk.parks_again) return number;
    if (far) {   /* no more: now the order of places is that of time */
        pthread_mutex_lock(&timer->mutex);
        if (timer->read_number > timer->write_number) timer->read_number = timer->write_number;
        cmq_timer_note_next(timer);
        pthread_mutex_unlock(&timer->mutex);
    }
    number = timer->next_pending < timer->write_number ? timer->next_pending : INT64_MAX;
    read_up_to(timer, number < timer->write_number ? number : timer->write_number);
    return number;
}

cmq_status cmq_timer_deliver(cmq_timer *timer, bool *more_out)
{
    cmq_timer_walk *walk = &timer->walk;
    *more_out = false;
    if (!walk->active) {
        const int64_t number = choose_slot(timer);
        if (number == INT64_MAX) return CMQ_OK;
        const cmq_status status = begin_slot(timer, number);
        if (status != CMQ_OK) return status;
    }
    if (walk->next == walk->count && walk->blocks_left > 0) load_block(timer);
    const cmq_status status = deliver_block(timer);
    if (status != CMQ_OK) return status;
    if (walk->next == walk->count && walk->blocks_left == 0) end_slot(timer);
    *more_out = true;
    return CMQ_OK;
}
