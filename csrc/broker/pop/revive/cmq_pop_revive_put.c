/* cmq_pop_revive_put: where the messages of one checkpoint go: into their retry topic, which may have to be made first,
 * or each into a checkpoint of its own, which comes later.
 *
 * Source: specification consumption 4.9; upstream's PopReviveService.
 */
#include "broker/pop/revive/cmq_pop_revive_internal.h"

#include <string.h>

#include "base/cmq_bitmap.h"
#include "base/cmq_name_hash.h"
#include "broker/delay/cmq_parked.h"
#include "store/record/cmq_property.h"
#include "wire/cmq_command.h"

#define TOPIC_WAIT_MS 30000
#define POP_LASTS_MS 1000   /* from the time that upstream writes down to the last message that it gives */

static const int32_t re_put_s[] = {10, 20, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200};
#define RE_PUTS ((int32_t)(sizeof re_put_s / sizeof re_put_s[0]))

/* Put one message of a checkpoint into a checkpoint of its own. */
static cmq_status CMQ_MUST_CHECK put_again(cmq_pop_revive *r, int32_t queue_id, const cmq_pop_checkpoint *old,
                                           int64_t offset, int64_t now_ms, int64_t *end)
{
    static const int32_t first[] = {0};
    const int64_t delay_ms_max = r->timer.delay_ms_max;
    cmq_pop_checkpoint checkpoint = *old;
    cmq_append append;
    cmq_appended appended;
    if (old->re_puts >= RE_PUTS && r->options.give_up) {
        r->seen.skipped++;
        return CMQ_OK;
    }
    checkpoint.bits = 0;
    checkpoint.num = 1;
    checkpoint.start_offset = offset;
    checkpoint.diffs = first;
    checkpoint.revive_offset = 0;
    checkpoint.re_puts = old->re_puts < INT8_MAX ? old->re_puts + 1 : INT8_MAX;
    /* From now on, where upstream counts from when it was due: after a night without the broker, one that cannot be put
     * would be put again and again at once. */
    if (cmq_pop_revive_ms(old) <= now_ms)
        checkpoint.invisible_ms =
            now_ms - old->pop_ms + INT64_C(1000) * re_put_s[old->re_puts < RE_PUTS ? old->re_puts : RE_PUTS - 1];
    if (cmq_pop_revive_ms(&checkpoint) > now_ms + delay_ms_max)
        checkpoint.invisible_ms = now_ms + delay_ms_max - checkpoint.pop_ms;
    cmq_status status =
        cmq_pop_checkpoint_append(&r->options.log, queue_id, &checkpoint, now_ms, &r->record_room, &append);
    if (status == CMQ_OK) status = cmq_store_append(r->store, &append, &appended);
    if (status == CMQ_OK) {
        *end = appended.end;
        r->seen.put_again++;
    }
    return status;
}

/* The properties with 1ST_POP_TIME, if it must be set and a record has room for it: without it a message is revived all
 * the same. */
static cmq_status CMQ_MUST_CHECK set_first_pop(cmq_pop_revive *r, const cmq_record_view *original, int64_t pop_ms,
                                               cmq_append *append)
{
    uint8_t digits[CMQ_TEXT_NUMBER_BYTES_MAX];
    cmq_slice rest = append->properties.one, name, value, old;
    size_t used = 0;
    cmq_status status = CMQ_OK;
    if (original->reconsume_times != 0 && cmq_property_find(rest, CMQ_NAME("1ST_POP_TIME"), &old)) return CMQ_OK;
    /* Written again without an older one, in place where the CRC went: a pair is never moved forward over itself. */
    while (status == CMQ_OK && cmq_property_next(&rest, &name, &value)) {
        if (cmq_slice_equal(name, CMQ_NAME("1ST_POP_TIME"))) continue;
        if (used + cmq_property_pair_bytes(name, value) > sizeof r->scratch)
            return cmq_fail(CMQ_ERR_TOO_LARGE, "the properties of a revived message are too long");
        memmove(r->scratch + used, name.data, name.bytes);
        used += name.bytes;
        r->scratch[used++] = CMQ_PROPERTY_NAME_END;
        memmove(r->scratch + used, value.data, value.bytes);
        used += value.bytes;
        r->scratch[used++] = CMQ_PROPERTY_PAIR_END;
    }
    const size_t bytes = cmq_text_format(pop_ms, digits);
    status = cmq_property_append(r->scratch, sizeof r->scratch, &used, CMQ_NAME("1ST_POP_TIME"),
                                 (cmq_slice){.data = digits + CMQ_TEXT_NUMBER_BYTES_MAX - bytes, .bytes = bytes});
    if (status == CMQ_ERR_TOO_LARGE || used > CMQ_PROPERTY_BYTES_MAX) return CMQ_OK;
    append->properties.one = (cmq_slice){.data = r->scratch, .bytes = used};
    return status;
}

/* At the same offset of a topic that was deleted and made again lies a message that nobody popped by this checkpoint.
 * Upstream's checkpoints do not say where the log ended: as there, the clock decides. A message may be stored between
 * the moment that upstream takes for the pop and its look. */
static bool was_stored_later(const cmq_pop_checkpoint *of, const cmq_record_view *view)
{
    if (of->log_end > 0) return view->physical_offset >= of->log_end;
    return view->store_timestamp_ms >= POP_LASTS_MS && view->store_timestamp_ms - POP_LASTS_MS > of->pop_ms;
}

/* Put the message at `offset` into the retry topic. CMQ_ERR_NOT_FOUND: there is no such message any more. */
static cmq_status CMQ_MUST_CHECK put_message(cmq_pop_revive *r, const cmq_pop_checkpoint *of, cmq_slice retry_topic,
                                             int64_t offset, int64_t *end)
{
    cmq_found item;
    cmq_found_batch batch = {.items = &item, .capacity = 1};
    cmq_record_view view;
    cmq_append append;
    cmq_appended appended;
    cmq_status status = cmq_pop_ahead_read(&r->ahead, offset, &batch);
    if (status == CMQ_OK) status = cmq_record_parse(item.record, item.record_bytes, item.physical_offset, 0, &view);
    if (status == CMQ_OK && was_stored_later(of, &view))
        status = cmq_fail(CMQ_ERR_NOT_FOUND, "the topic was made again");
    /* It was never popped: topics of inner batches are not. No retry topic would take it, however often it is put. */
    if (status == CMQ_OK && (view.sys_flag & CMQ_SYS_INNER_BATCH) != 0)
        status = cmq_fail(CMQ_ERR_NOT_FOUND, "the message is an inner batch");
    if (status != CMQ_OK) {
        cmq_found_batch_release(&batch);
        return cmq_parked_is_hopeless(status) ? CMQ_ERR_NOT_FOUND : status;
    }
    status = cmq_delay_make_append(&view, retry_topic, 0, r->scratch, &append);
    if (status == CMQ_OK) status = set_first_pop(r, &view, of->pop_ms, &append);
    append.common.born_host = append.common.store_host = r->options.log.host;
    if (append.common.reconsume_times < INT32_MAX) append.common.reconsume_times++;   /* a client may have sent any */
    if (status == CMQ_OK) status = cmq_store_append(r->store, &append, &appended);
    cmq_found_batch_release(&batch);
    if (status == CMQ_OK) *end = appended.end;
    else if (status == CMQ_ERR_NOT_FOUND) status = CMQ_ERR_ARGUMENT;   /* of the append: it may be put again */
    return status;
}

static void want(cmq_pop_revive *r, cmq_slice topic)
{
    pthread_mutex_lock(&r->mutex);
    uint32_t i = 0;
    while (i < r->wanted_count && !cmq_slice_equal((cmq_slice){r->wanted[i].name, r->wanted[i].bytes}, topic)) i++;
    const bool added = i == r->wanted_count && i < CMQ_POP_WANTED_MAX;
    if (added) {
        r->wanted[i].bytes = topic.bytes;
        memcpy(r->wanted[i].name, topic.data, topic.bytes);
        r->wanted_count++;
    }
    pthread_mutex_unlock(&r->mutex);
    if (added && r->options.calls.wanted != NULL) r->options.calls.wanted(r->options.calls.context);
}

/* The group begins a retry topic at its first message. */
static cmq_status CMQ_MUST_CHECK begin_progress(const cmq_pop_revive *r, cmq_slice group, cmq_slice topic)
{
    const cmq_offset_key key = {.group = group, .topic = topic, .queue_id = 0};
    if (cmq_offsets_query(r->options.offsets, &key) != CMQ_OFFSETS_NONE) return CMQ_OK;
    const cmq_status status = cmq_offsets_commit(r->options.offsets, &key, 0);
    return status == CMQ_AGAIN ? CMQ_OK : status;
}

/* NULL: it was there until now. */
static cmq_pop_waited_topic *find_waited(cmq_pop_revive_queue *s, uint64_t hash)
{
    for (uint32_t i = 0; i < CMQ_POP_WAITED_MAX; i++)
        if (s->waited[i].since_ms != 0 && s->waited[i].hash == hash) return &s->waited[i];
    return NULL;
}

/* In a free place, or in the one of the topic that was waited for first. Where that one was waited for in vain, as all
 * others then, this one is not waited for: each would be forgotten before its next turn, and they would wait one after
 * the other for ever. */
static cmq_pop_waited_topic *begin_waiting(cmq_pop_revive_queue *s, uint64_t hash, int64_t now_ms)
{
    cmq_pop_waited_topic *place = &s->waited[0];
    for (uint32_t i = 1; i < CMQ_POP_WAITED_MAX; i++)
        if (s->waited[i].since_ms < place->since_ms) place = &s->waited[i];
    const bool in_vain = place->since_ms != 0 && now_ms - place->since_ms > TOPIC_WAIT_MS;
    *place = (cmq_pop_waited_topic){.hash = hash, .since_ms = in_vain ? now_ms - TOPIC_WAIT_MS - 1 : now_ms};
    return place;
}

/* Where the checkpoint's messages go. CMQ_OK: there, or nowhere (*known_out false). CMQ_AGAIN: it is being made.
 * CMQ_ERR_TOPIC: it cannot be. */
static cmq_status CMQ_MUST_CHECK find_retry_topic(cmq_pop_revive *r, cmq_pop_revive_queue *s,
                                                  const cmq_pop_checkpoint *of, int64_t now_ms,
                                                  uint8_t into[CMQ_POP_TOPIC_BYTES_MAX], cmq_slice *topic_out,
                                                  bool *known_out)
{
    cmq_slice normal;
    *known_out = cmq_pop_normal_topic(of->topic, of->group, &normal) == CMQ_OK &&
                 cmq_tables_topic(r->tables, normal) != NULL && cmq_tables_group(r->tables, of->group) != NULL;
    if (!*known_out) return CMQ_OK;
    *topic_out = of->topic;
    if (cmq_pop_retry_of(of->topic) == CMQ_POP_NORMAL) {
        const cmq_status status = cmq_pop_retry_topic(
            of->group, of->topic, r->options.retry_v2 ? CMQ_POP_RETRY_V2 : CMQ_POP_RETRY_V1, into, topic_out);
        if (status != CMQ_OK) return status;
    }
    cmq_pop_waited_topic *waited = find_waited(s, cmq_name_hash(*topic_out));
    if (cmq_tables_topic(r->tables, *topic_out) == NULL) {
        want(r, *topic_out);
        if (waited == NULL) waited = begin_waiting(s, cmq_name_hash(*topic_out), now_ms);
        if (waited->since_ms > now_ms) waited->since_ms = now_ms;
        if (now_ms - waited->since_ms > TOPIC_WAIT_MS) return cmq_fail(CMQ_ERR_TOPIC, "a retry topic was not made");
        return CMQ_AGAIN;
    }
    if (waited != NULL) *waited = (cmq_pop_waited_topic){0};
    return begin_progress(r, of->group, *topic_out);
}

/* Revive, put again or finish one message. */
static cmq_status CMQ_MUST_CHECK revive_message(cmq_pop_revive *r, cmq_pop_revive_queue *s, uint32_t index,
                                                const cmq_pop_checkpoint *of, uint32_t bit, bool has_topic,
                                                cmq_slice topic, int64_t now_ms, int64_t *end)
{
    const int64_t offset = cmq_pop_offset_at(of, bit);
    const uint64_t put_again_before = r->seen.put_again;
    cmq_status status = has_topic ? put_message(r, of, topic, offset, end) : CMQ_ERR_TOPIC;
    const bool revived = status == CMQ_OK, gone = status == CMQ_ERR_NOT_FOUND;
    if (!revived && !gone && cmq_parked_is_hopeless(status))
        status = put_again(r, (int32_t)(s - r->states), of, offset, now_ms, end);
    else if (gone) status = CMQ_OK;
    if (status != CMQ_OK) return status;
    r->seen.gone += gone;
    r->seen.revived += revived;
    /* Messages that were put again are still in flight; no others are. */
    cmq_pop_unfinished_finish(s->unfinished, index, bit, r->seen.put_again == put_again_before);
    return CMQ_OK;
}

cmq_status cmq_pop_revive_put(cmq_pop_revive *r, cmq_pop_revive_queue *s, uint32_t index, int64_t now_ms, int64_t *end)
{
    uint8_t name[CMQ_POP_TOPIC_BYTES_MAX];
    int32_t diffs[CMQ_POP_MESSAGES_MAX];
    cmq_pop_checkpoint of;
    cmq_slice topic = CMQ_SLICE_NONE;
    bool known;
    cmq_pop_unfinished_at(s->unfinished, index, diffs, &of);
    uint32_t left = ~of.bits & cmq_bits_first(of.num);
    if (left == 0) return CMQ_OK;
    cmq_status status = find_retry_topic(r, s, &of, now_ms, name, &topic, &known);
    if (!known) {
        r->seen.skipped++;
        while (left != 0) cmq_pop_unfinished_finish(s->unfinished, index, cmq_bits_take(&left), true);
        return CMQ_OK;
    }
    if (status != CMQ_OK && status != CMQ_ERR_TOPIC) return status;
    const bool has_topic = status == CMQ_OK;
    status = CMQ_OK;
    cmq_pop_ahead_begin(&r->ahead, r->store, of.topic, of.queue_id);
    while (left != 0 && status == CMQ_OK)
        status = revive_message(r, s, index, &of, cmq_bits_take(&left), has_topic, topic, now_ms, end);
    return status;
}
