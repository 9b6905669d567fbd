/* cmq_append: messages in: measured, placed, encoded, put into their queues, under the writer lock.
 *
 * Per message, 128 B body, one queue, no keys: the record's bytes once (into the map, or into staging), one 24-byte
 * unit in the queue's tail, no system call, no allocation, no lock, no clock. Per chunk of up to 4096: one lock, one
 * clock read, one publish. With keys: a hash per key, 24 bytes in the pending list, and the index's entry and slot
 * behind prefetches. Parts that many messages of a call share are made once: cmq_append_run.c.
 *
 * Invariant: a failure is found before its message has changed anything, so earlier messages of the call stand.
 * Threads:   the writer lock is taken per chunk; columns are read while it is held, so they must not wait for anything.
 * Way:       caller -> [cmq_append] -> cmq_log, cmq_queue -> cmq_commit
 * Source:    upstream's CommitLog.asyncPutMessage(s), HookUtils; spec store 2.5 to 2.12. One writer: spec native 2.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cmq_assert.h"
#include "base/cmq_hash.h"
#include "base/cmq_utf8.h"
#include "store/append/cmq_append_internal.h"

#define LIGHT_QUEUES_MAX 20000u

/* Arrow offsets come from outside: they must not fall. */
static cmq_status check_column(const cmq_column *column, uint32_t count, const char *name)
{
    if (column->kind < CMQ_COLUMN_OFFSETS32) return CMQ_OK;
    for (uint32_t i = 0; i < count; i++) {
        const bool wrong = (column->kind == CMQ_COLUMN_OFFSETS32 &&
                            (column->offsets32[i] < 0 || column->offsets32[i + 1] < column->offsets32[i])) ||
                           (column->kind == CMQ_COLUMN_OFFSETS64 &&
                            (column->offsets64[i] < 0 || column->offsets64[i + 1] < column->offsets64[i]));
        if (wrong) return cmq_fail(CMQ_ERR_ARGUMENT, "the offsets of %s are negative or fall at entry %u", name, i);
    }
    return CMQ_OK;
}

static cmq_status check_columns(const cmq_append *append)
{
    cmq_status status = check_column(&append->bodies, append->count, "bodies");
    if (status == CMQ_OK) status = check_column(&append->tags, append->count, "tags");
    if (status == CMQ_OK) status = check_column(&append->keys, append->count, "keys");
    if (status == CMQ_OK) status = check_column(&append->properties, append->count, "properties");
    if (status == CMQ_OK) status = check_column(&append->properties_more, append->count, "properties_more");
    return status;
}

/* Upstream's rule of names, and what would leave the directory. */
static cmq_status check_topic(cmq_slice topic)
{
    if (topic.bytes == 0) return cmq_fail(CMQ_ERR_TOPIC, "the topic is empty");
    const bool retry = cmq_slice_starts_with(topic, "%RETRY%");
    const size_t most = retry || cmq_slice_starts_with(topic, "%DLQ%") ? 255 : 127;
    if (topic.bytes > most)
        return cmq_fail(CMQ_ERR_TOPIC, "the topic has %zu bytes, RocketMQ allows %zu", topic.bytes, most);
    for (size_t i = 0; i < topic.bytes; i++) {
        const uint8_t c = topic.data[i];
        const bool legal = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
                           c == '-' || c == '%' || c == '|' || (retry && c == '+');
        if (!legal)
            return cmq_fail(
                CMQ_ERR_TOPIC,
                "byte %zu (0x%02x) of the topic is not allowed: RocketMQ's topics have letters, digits, _ - %% and |",
                i, c);
    }
    return CMQ_OK;
}

/* ---- one message ---- */

/* Which one of several was at fault; a message alone needs no number. */
static cmq_status fail_message(const append_context *c, uint32_t i, cmq_status status)
{
    CMQ_ASSERT(status != CMQ_OK && i < c->append->count);
    return c->append->count > 1 ? cmq_fail_context("this is message %u of the batch, counted from 0", i) : status;
}

static cmq_status load_columns(append_context *c, uint32_t i)
{
    const cmq_append *append = c->append;
    cmq_record_fields *fields = &c->fields;
    cmq_status status = CMQ_OK;
    CMQ_ASSERT(i < append->count);
    fields->body = column_at(&append->bodies, i);
    if (fields->body.bytes > c->store->options.body_bytes_max)
        return cmq_fail(CMQ_ERR_TOO_LARGE,
                        "the body has %zu bytes; at most %u are allowed (maxMessageSize, body_bytes_max)",
                        fields->body.bytes, c->store->options.body_bytes_max);
    if (c->tags_vary) {
        fields->tags = column_at(&append->tags, i);
        status = cmq_property_check_value(cmq_slice_of_text("TAGS"), fields->tags);
    }
    if (status == CMQ_OK && append->keys.kind > CMQ_COLUMN_ONE) {
        fields->keys = column_at(&append->keys, i);
        status = cmq_property_check_value(cmq_slice_of_text("KEYS"), fields->keys);
    }
    if (c->properties_vary) {
        fields->properties = column_at(&append->properties, i);
        fields->properties_more = column_at(&append->properties_more, i);
    }
    if (append->flags != NULL) fields->flag = append->flags[i];
    if (append->born_timestamps != NULL) fields->born_timestamp_ms = append->born_timestamps[i];
    return status;
}

/* Properties that no sender sets. The store writes the first two: recovery takes a record with a wrong CRC for torn,
 * and puts units where the offsets say. The broker makes the third when it answers a pop: a stored one would be
 * acknowledged instead. */
static const struct {
    cmq_property_name known;
    const char *text;
} reserved_names[] = {
    {CMQ_PROPERTY_CRC32, "__CRC32#"},
    {CMQ_PROPERTY_INNER_MULTI_QUEUE_OFFSET, "INNER_MULTI_QUEUE_OFFSET"},
    {CMQ_PROPERTY_POP_CK, "POP_CK"},
};
#define RESERVED_NAMES (sizeof reserved_names / sizeof *reserved_names)

/* Drop a reserved property, as upstream does. All of the properties are in one piece then. */
static void drop_property(append_context *c, cmq_slice name)
{
    const cmq_slice parts[2] = {c->fields.properties, c->fields.properties_more};
    /* too long for a record */
    if (parts[0].bytes >= sizeof c->scratch[0] || parts[1].bytes >= sizeof c->scratch[0] - parts[0].bytes) return;
    uint8_t *into = c->scratch[c->scratch_used ^= 1u];   /* the other one may be the source */
    size_t used = cmq_property_copy_without(into, parts[0], name);
    if (used > 0 && parts[1].bytes > 0 && into[used - 1] != CMQ_PROPERTY_PAIR_END) into[used++] = CMQ_PROPERTY_PAIR_END;
    used += cmq_property_copy_without(into + used, parts[1], name);
    CMQ_ASSERT(used <= sizeof c->scratch[0]);
    c->fields.properties = (cmq_slice){.data = into, .bytes = used};
    c->fields.properties_more = CMQ_SLICE_NONE;
}

static inline bool has_zero(cmq_slice text) { return text.bytes > 0 && memchr(text.data, 0, text.bytes) != NULL; }

/* A sector that was never written reads as zeros: a record whose properties hold some proves by its property CRC that
 * they are its own. */
static void choose_property_crc(append_context *c)
{
    cmq_record_fields *fields = &c->fields;
    fields->property_crc = c->property_crc;
    if (c->property_crc != CMQ_RECORD_PROPERTY_CRC_NONE) return;
    if (c->known.has_zero || has_zero(fields->tags) || has_zero(fields->keys))
        fields->property_crc = CMQ_RECORD_PROPERTY_CRC_SINGLE;
}

/* Known properties, with the TAGS and KEYS columns in front: an encoded pair behind them wins, as it will when read. */
static void find_properties(append_context *c)
{
    cmq_property_find_known(c->fields.properties, &c->known);
    if (c->fields.properties_more.bytes == 0) return;
    cmq_property_known more;
    cmq_property_find_known(c->fields.properties_more, &more);
    for (int name = 0; name < CMQ_PROPERTY_KNOWN_COUNT; name++)
        if (more.value[name].bytes > 0) c->known.value[name] = more.value[name];
    c->known.has_zero |= more.has_zero;
}

static void learn_properties(append_context *c)
{
    bool dropped = false;
    find_properties(c);
    for (size_t i = 0; i < RESERVED_NAMES; i++) {
        if (c->known.value[reserved_names[i].known].bytes == 0) continue;
        drop_property(c, cmq_slice_of_text(reserved_names[i].text));
        dropped = true;
    }
    if (dropped) find_properties(c);
}

static cmq_slice effective(const append_context *c, cmq_property_name name, cmq_slice column)
{
    CMQ_ASSERT(name < CMQ_PROPERTY_KNOWN_COUNT);
    return c->known.value[name].bytes > 0 ? c->known.value[name] : column;
}

static int64_t tags_code_of(const append_context *c, cmq_slice tags)
{
    if (c->schedule)
        return cmq_tags_code(c->fields.topic, tags, c->known.value[CMQ_PROPERTY_DELAY], c->fields.store_timestamp_ms,
                             &c->store->delays);
    if (!c->tags_vary && c->known.value[CMQ_PROPERTY_TAGS].bytes == 0) return (int32_t)c->tag_hash;
    return tags.bytes > 0 ? (int32_t)cmq_jhash(tags) : 0;
}

/* Every watcher is notified of a queue's first unit. */
static cmq_status expect_first(const append_context *c, cmq_queue *queue)
{
    return c->watched && !cmq_queue_begun(queue) ? cmq_watches_expect(c->store->watches, queue) : CMQ_OK;
}

cmq_status cmq_append_enter_queue(append_context *c, int32_t queue_id)
{
    CMQ_ASSERT(c->queue != NULL || c->queue_room == 0);   /* room is the present queue's */
    if (c->queue != NULL && cmq_queue_id(c->queue) == queue_id) return CMQ_OK;
    if (queue_id < 0) return cmq_fail(CMQ_ERR_ARGUMENT, "queue id %d is negative", queue_id);
    c->queue = NULL;
    c->queue_room = 0;
    cmq_queue *queue = cmq_queues_find(c->store->queues, c->fields.topic, queue_id);
    if (queue == NULL) {
        const cmq_queue_kind kind = cmq_dispatch_kind(c->store, c->fields.topic, queue_id, 0);
        const cmq_status status = cmq_queues_require(c->store->queues, c->fields.topic, queue_id, kind, &queue);
        if (status != CMQ_OK) return status;
    }
    CMQ_ASSERT(cmq_queue_id(queue) == queue_id);
    const cmq_status status = expect_first(c, queue);
    if (status == CMQ_OK) c->queue = queue;
    return status;
}

/* Room for one unit. In lots: the rest of the call probably goes to the same queue. */
static cmq_status grant_unit(append_context *c, uint32_t left)
{
    CMQ_ASSERT(c->queue != NULL);
    if (c->queue_room == 0) {
        const uint32_t lot = c->append->queue_ids == NULL && left > 1 ? (left < 256 ? left : 256) : 1;
        const cmq_status status = cmq_queue_make_room(c->queue, lot, cmq_log_confirmed(c->store->log));
        if (status != CMQ_OK) return status;
        c->queue_room = lot;
    }
    CMQ_ASSERT(c->queue_room > 0);
    return CMQ_OK;
}

/* The properties again without `name`, into scratch; returns how many bytes. */
static cmq_status copy_properties_without(append_context *c, uint8_t *into, cmq_slice name, size_t *used)
{
    const cmq_slice parts[2] = {c->fields.properties, c->fields.properties_more};
    for (int part = 0; part < 2; part++) {
        cmq_slice rest = parts[part], pair_name, value;
        while (cmq_property_next(&rest, &pair_name, &value)) {
            if (cmq_slice_equal(pair_name, name)) continue;
            const cmq_status status = cmq_property_append(into, sizeof c->scratch[0], used, pair_name, value);
            if (status != CMQ_OK) return status;
        }
    }
    CMQ_ASSERT(*used <= sizeof c->scratch[0]);
    return CMQ_OK;
}

static cmq_status replace_property(append_context *c, const char *name, cmq_slice value)
{
    size_t used = 0;
    uint8_t *into = c->scratch[c->scratch_used ^= 1u];   /* the other one may be the source */
    cmq_status status = copy_properties_without(c, into, cmq_slice_of_text(name), &used);
    if (status == CMQ_OK)
        status = cmq_property_append(into, sizeof c->scratch[0], &used, cmq_slice_of_text(name), value);
    if (status != CMQ_OK) return status;
    CMQ_ASSERT(used <= sizeof c->scratch[0]);
    c->fields.properties = (cmq_slice){.data = into, .bytes = used};
    c->fields.properties_more = CMQ_SLICE_NONE;
    find_properties(c);   /* reserved names are gone already, but for one that was just set */
    return CMQ_OK;
}

/* An inner batch carries its first queue offset in its properties (spec store 2.10). */
static cmq_status prepare_inner_batch(append_context *c, int32_t *count_out)
{
    const bool flagged = (c->fields.sys_flag & CMQ_SYS_INNER_BATCH) != 0;
    const cmq_slice number = c->known.value[CMQ_PROPERTY_INNER_NUM];
    CMQ_ASSERT(c->queue != NULL);
    if (!flagged && number.bytes == 0) return CMQ_OK;
    if (!flagged || number.bytes == 0 || cmq_queue_kind_of(c->queue) != CMQ_QUEUE_BATCH)
        return cmq_fail(CMQ_ERR_ARGUMENT,
                        "an inner batch needs its sysFlag bit, INNER_NUM and a topic with queue.type=BatchCQ");
    int64_t count = 0;
    for (size_t i = 0; i < number.bytes && count <= INT16_MAX; i++) {
        if (number.data[i] < '0' || number.data[i] > '9')
            return cmq_fail(CMQ_ERR_ARGUMENT, "INNER_NUM is not a number");
        count = count * 10 + (number.data[i] - '0');
    }
    if (count < 1 || count > INT16_MAX) return cmq_fail(CMQ_ERR_ARGUMENT, "INNER_NUM must be 1 to %d", INT16_MAX);
    char base[24];
    snprintf(base, sizeof base, "%lld", (long long)cmq_queue_next(c->queue));
    *count_out = (int32_t)count;
    return replace_property(c, "INNER_BASE", cmq_slice_of_text(base));
}

/* ---- light queues (spec store 2.11) ---- */

/* Each is a folder, a file and some memory, and any sender names some hundred in a message. Deleted ones count until
 * the store is opened again. */
static cmq_status CMQ_MUST_CHECK check_light_queues(cmq_store *store)
{
    const uint32_t most = store->options.light_queues_max > 0 ? store->options.light_queues_max : LIGHT_QUEUES_MAX;
    for (; store->light_seen < cmq_queues_count(store->queues); store->light_seen++)
        if (cmq_is_lmq(cmq_slice_of_text(cmq_queue_topic(cmq_queues_at(store->queues, store->light_seen)))))
            store->light_queues++;
    CMQ_ASSERT(store->light_queues <= store->light_seen);
    if (store->light_queues < most) return CMQ_OK;
    return cmq_fail(CMQ_ERR_LIMIT,
                    "the store has %u light queues and makes no further one; raise maxLmqConsumeQueueNum", most);
}

/* May a message make this light queue? Its name becomes that of a folder, which tools list and look up as text. */
static cmq_status may_make_light_queue(cmq_store *store, cmq_slice name)
{
    return cmq_utf8_is_valid(name) ? check_light_queues(store)
                                   : cmq_fail(CMQ_ERR_TOPIC, "the name of a light queue is not UTF-8");
}

static cmq_status prepare_multi(append_context *c)
{
    char offsets[4096];
    size_t used = 0;
    cmq_slice names = c->known.value[CMQ_PROPERTY_INNER_MULTI_DISPATCH], name;
    bool first = true;
    while (cmq_dispatch_next_name(&names, &name)) {
        if (!first && used < sizeof offsets - 1) offsets[used++] = ',';
        first = false;
        if (!cmq_is_lmq(name)) continue;   /* an empty element */
        cmq_queue *queue;
        cmq_status status =
            cmq_queues_find(c->store->queues, name, 0) != NULL ? CMQ_OK : may_make_light_queue(c->store, name);
        if (status == CMQ_OK) status = cmq_queues_require(c->store->queues, name, 0, CMQ_QUEUE_SIMPLE, &queue);
        if (status == CMQ_OK) status = expect_first(c, queue);
        if (status == CMQ_OK) status = cmq_queue_make_room(queue, 1, cmq_log_confirmed(c->store->log));
        if (status != CMQ_OK) return status;
        if (sizeof offsets - used < 22)
            return cmq_fail(CMQ_ERR_LIMIT, "more names in INNER_MULTI_DISPATCH than their offsets have room for");
        /* named twice: the same */
        used += (size_t)snprintf(offsets + used, sizeof offsets - used, "%lld", (long long)cmq_queue_next(queue));
    }
    CMQ_ASSERT(used < sizeof offsets);
    if (used == 0) return CMQ_OK;
    return replace_property(c, "INNER_MULTI_QUEUE_OFFSET",
                            (cmq_slice){.data = (const uint8_t *)offsets, .bytes = used});
}

/* Does the name come in the list before this place? */
static bool is_named_before(cmq_slice list, cmq_slice name)
{
    cmq_slice other;
    while (cmq_dispatch_next_name(&list, &other) && other.data != name.data)
        if (cmq_slice_equal(other, name)) return true;
    return false;
}

/* A queue gets one unit of a message, however often it is named, also if it is the message's own. */
static void put_multi(append_context *c, int64_t phy, int64_t tags_code)
{
    const cmq_slice list = c->known.value[CMQ_PROPERTY_INNER_MULTI_DISPATCH];
    cmq_slice names = list, name;
    CMQ_ASSERT(phy == c->fields.physical_offset);
    while (cmq_dispatch_next_name(&names, &name)) {
        if (!cmq_is_lmq(name)) continue;
        cmq_queue *queue = cmq_queues_find(c->store->queues, name, 0);
        CMQ_ASSERT(queue != NULL);
        if (queue == c->queue || is_named_before(list, name)) continue;
        cmq_queue_put(queue, phy, (int32_t)c->sizes.record_bytes, tags_code, c->fields.store_timestamp_ms, 1);
        if (c->watched) cmq_watches_note(c->store->watches, queue);
    }
}

/* ---- placing ---- */

static cmq_status measure(append_context *c)
{
    if (c->properties_vary || c->tags_vary || c->append->keys.kind > CMQ_COLUMN_ONE) choose_property_crc(c);
    const cmq_status status = cmq_record_measure(&c->fields, &c->sizes);
    if (status != CMQ_OK) return status;
    if (c->sizes.record_bytes > c->store->record_bytes_max)
        return cmq_fail(CMQ_ERR_TOO_LARGE, "the record has %u bytes, with a maxMessageSize of %u it may have %u",
                        c->sizes.record_bytes, c->store->options.body_bytes_max, c->store->record_bytes_max);
    CMQ_ASSERT(c->sizes.record_bytes > c->fields.body.bytes);
    return CMQ_OK;
}

static cmq_status append_one(append_context *c, uint32_t i, uint32_t left)
{
    cmq_store *store = c->store;
    cmq_record_fields *fields = &c->fields;
    cmq_status status = load_columns(c, i);
    if (status != CMQ_OK) return status;
    if (c->properties_vary) learn_properties(c);
    const int32_t transaction = fields->sys_flag & CMQ_SYS_TRANSACTION_MASK;
    const bool in_queue = transaction == 0 || transaction == CMQ_SYS_TRANSACTION_COMMIT;
    fields->queue_id = c->append->queue_ids != NULL ? c->append->queue_ids[i] : c->append->common.queue_id;
    status = cmq_append_enter_queue(c, fields->queue_id);
    int32_t count = 1;
    if (status == CMQ_OK) status = prepare_inner_batch(c, &count);
    const bool multi = c->multi && in_queue && c->known.value[CMQ_PROPERTY_INNER_MULTI_DISPATCH].bytes > 0;
    if (status == CMQ_OK && multi) status = prepare_multi(c);
    if (status == CMQ_OK) status = measure(c);
    if (status == CMQ_OK && in_queue) status = grant_unit(c, left);
    const cmq_slice keys = effective(c, CMQ_PROPERTY_KEYS, fields->keys),
                    tags = effective(c, CMQ_PROPERTY_TAGS, fields->tags);
    const bool indexed = store->index != NULL && transaction != CMQ_SYS_TRANSACTION_ROLLBACK &&
                         (keys.bytes > 0 || c->known.value[CMQ_PROPERTY_UNIQ_KEY].bytes > 0 ||
                          (store->tags_indexed && tags.bytes > 0));
    if (status == CMQ_OK && indexed) status = cmq_append_grant_keys(store, cmq_append_key_demand(keys));
    uint8_t *into;
    if (status == CMQ_OK) status = cmq_log_claim(store->log, c->sizes.record_bytes, &into, &fields->physical_offset);
    if (status != CMQ_OK) return status;

    /* From here on nothing fails. */
    CMQ_ASSERT(fields->physical_offset > store->last_phy && (!in_queue || c->queue_room > 0));
    fields->queue_offset = in_queue ? cmq_queue_next(c->queue) : 0;
    cmq_record_encode(into, fields, &c->sizes);
    if (in_queue) {
        const int64_t tags_code = tags_code_of(c, tags);
        cmq_queue_put(c->queue, fields->physical_offset, (int32_t)c->sizes.record_bytes, tags_code,
                      fields->store_timestamp_ms, count);
        c->queue_room--;
        if (multi) put_multi(c, fields->physical_offset, tags_code);
    }
    if (indexed) cmq_append_add_keys(c, keys, tags, fields->physical_offset);
    cmq_log_commit(store->log, c->sizes.record_bytes);
    if (c->watched && in_queue) cmq_watches_note(store->watches, c->queue);
    store->last_phy = fields->physical_offset;
    if (i == 0) {
        c->first_queue_offset = fields->queue_offset;
        c->first_phy = fields->physical_offset;
    }
    if (c->append->queue_offsets_out != NULL) c->append->queue_offsets_out[i] = fields->queue_offset;
    if (c->append->physical_offsets_out != NULL) c->append->physical_offsets_out[i] = fields->physical_offset;
    return CMQ_OK;
}

static cmq_status note_unit(cmq_foreseen_units *units, cmq_queue *queue)
{
    CMQ_ASSERT(queue != NULL && units->count <= units->capacity);
    if (units->count == units->capacity) {
        const uint32_t capacity = units->capacity * 2 + 64;
        cmq_queue **grown = realloc(units->queues, capacity * sizeof(cmq_queue *));
        if (grown == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for a transaction of %u messages", capacity);
        units->queues = grown;
        units->capacity = capacity;
    }
    CMQ_ASSERT(units->count < units->capacity);
    units->queues[units->count++] = queue;
    return CMQ_OK;
}

/* Everything that message i of a batch will ask for; its size, at most, is added to *total. */
static cmq_status foresee(append_context *c, uint32_t i, uint64_t *total, uint32_t *keys)
{
    const cmq_append *append = c->append;
    const int64_t confirmed = cmq_log_confirmed(c->store->log);
    int32_t count;
    cmq_status status = load_columns(c, i);
    if (status == CMQ_OK && c->properties_vary) learn_properties(c);
    const cmq_queue *before = c->queue;
    if (status == CMQ_OK)
        status = cmq_append_enter_queue(c, append->queue_ids != NULL ? append->queue_ids[i] : append->common.queue_id);
    if (status == CMQ_OK && c->foreseen != NULL) status = note_unit(c->foreseen, c->queue);
    else if (status == CMQ_OK && c->queue != before) status = cmq_queue_make_room(c->queue, c->units_ahead, confirmed);
    if (status == CMQ_OK) status = prepare_inner_batch(c, &count);
    cmq_slice names = c->known.value[CMQ_PROPERTY_INNER_MULTI_DISPATCH], name;
    if (status == CMQ_OK && c->multi && names.bytes > 0) status = prepare_multi(c);
    if (status == CMQ_OK) status = measure(c);
    if (status != CMQ_OK) return status;
    /* Offsets that are written into properties may grow by some digits until their turn. */
    *total += c->sizes.record_bytes + ((c->fields.sys_flag & CMQ_SYS_INNER_BATCH) != 0 ? 20u : 0u);
    *keys += cmq_append_key_demand(effective(c, CMQ_PROPERTY_KEYS, c->fields.keys));
    names = c->known.value[CMQ_PROPERTY_INNER_MULTI_DISPATCH];
    while (c->multi && status == CMQ_OK && cmq_dispatch_next_name(&names, &name)) {
        *total += 20;
        cmq_queue *queue = cmq_is_lmq(name) ? cmq_queues_find(c->store->queues, name, 0) : NULL;
        if (queue != NULL && c->foreseen != NULL) status = note_unit(c->foreseen, queue);
        else if (queue != NULL) status = cmq_queue_make_room(queue, c->units_ahead, confirmed);
    }
    return status;
}

cmq_status cmq_append_foresee(append_context *c, uint64_t *total, uint32_t *keys)
{
    c->queue = NULL;
    for (uint32_t i = 0; i < c->append->count; i++) {
        const cmq_status status = foresee(c, i, total, keys);
        if (status == CMQ_AGAIN) return status;
        if (status != CMQ_OK) return fail_message(c, i, status);
    }
    CMQ_ASSERT(*total >= c->append->count);   /* no record is empty */
    return CMQ_OK;
}

/* A client's batch lies in one segment, or nowhere: all that could be refused is asked for first, and all of its bytes
 * are claimed at once, which rolls if it must. */
static cmq_status claim_together(append_context *c)
{
    uint64_t total = 0;
    uint32_t keys = 0;
    CMQ_ASSERT(c->append->one_segment && !c->claimed);
    c->units_ahead = c->append->count;
    const cmq_status foreseen = cmq_append_foresee(c, &total, &keys);
    if (foreseen != CMQ_OK) return foreseen;
    if (total > UINT32_MAX) return cmq_fail(CMQ_ERR_TOO_LARGE, "the batch has %llu bytes", (unsigned long long)total);
    const cmq_status status = c->store->index != NULL ? cmq_append_grant_keys(c->store, keys) : CMQ_OK;
    return status != CMQ_OK ? status : cmq_log_claim_together(c->store->log, (uint32_t)total);
}

/* ---- the call ---- */

void cmq_append_begin(append_context *c, cmq_store *store, const cmq_append *append)
{
    c->store = store;
    c->append = append;
    c->fields = append->common;
    c->fields.body = CMQ_SLICE_NONE;
    c->fields.tags = append->tags.kind == CMQ_COLUMN_ONE ? append->tags.one : CMQ_SLICE_NONE;
    c->fields.keys = append->keys.kind == CMQ_COLUMN_ONE ? append->keys.one : CMQ_SLICE_NONE;
    c->fields.properties = append->properties.kind == CMQ_COLUMN_ONE ? append->properties.one : CMQ_SLICE_NONE;
    c->fields.properties_more =
        append->properties_more.kind == CMQ_COLUMN_ONE ? append->properties_more.one : CMQ_SLICE_NONE;
    c->property_crc = !store->options.property_crc ? CMQ_RECORD_PROPERTY_CRC_NONE
                      : append->one_segment        ? CMQ_RECORD_PROPERTY_CRC_BATCH
                                                   : CMQ_RECORD_PROPERTY_CRC_SINGLE;
    c->tags_vary = append->tags.kind > CMQ_COLUMN_ONE;
    c->multi = store->options.lmq_enabled && cmq_dispatch_gives_multi(c->fields.topic);
    c->properties_vary = append->properties.kind > CMQ_COLUMN_ONE || append->properties_more.kind > CMQ_COLUMN_ONE ||
                         c->multi || (c->fields.sys_flag & CMQ_SYS_INNER_BATCH) != 0;
    c->schedule = cmq_slice_equal(c->fields.topic, cmq_slice_of_text(CMQ_TOPIC_SCHEDULE));
    c->tag_hash = c->fields.tags.bytes > 0 ? cmq_jhash(c->fields.tags) : 0;
    c->queue = NULL;
    c->queue_room = 0;
    c->foreseen = NULL;
    c->claimed = false;
    c->first_queue_offset = c->first_phy = -1;
    c->scratch_used = 0;
    learn_properties(c);
    choose_property_crc(c);
    CMQ_ASSERT(c->queue_room == 0 && c->scratch_used <= 1);
}

cmq_status cmq_append_check_call(const append_context *c)
{
    cmq_status status = check_topic(c->fields.topic);
    if (status == CMQ_OK) status = check_columns(c->append);
    if (status == CMQ_OK) status = cmq_property_check_value(cmq_slice_of_text("TAGS"), c->fields.tags);
    if (status == CMQ_OK) status = cmq_property_check_value(cmq_slice_of_text("KEYS"), c->fields.keys);
    if (status == CMQ_OK && c->append->one_segment && c->append->count > CMQ_ONE_SEGMENT_MAX)
        status = cmq_fail(CMQ_ERR_LIMIT, "a batch of %u messages, at most %u are taken together", c->append->count,
                          CMQ_ONE_SEGMENT_MAX);
    return status;
}

cmq_status cmq_append_check_writable(cmq_store *store)
{
    if (store->options.read_only) return cmq_fail(CMQ_ERR_READ_ONLY, "the store was opened read-only");
    if (atomic_load_explicit(&store->fenced, memory_order_acquire)) return cmq_store_fail_fenced(store);
    if (atomic_load_explicit(&store->disk_above_warning, memory_order_relaxed))
        return cmq_fail(CMQ_ERR_DISK_FULL,
                        "the disk of %s is fuller than retention's warning ratio; appends go on when there is space",
                        store->root);
    return CMQ_OK;
}

/* One hold of the writer lock. *done counts on; CMQ_AGAIN: the staged records must be committed first. */
cmq_status cmq_append_chunk(append_context *c, uint32_t *done)
{
    cmq_store *store = c->store;
    const cmq_append *append = c->append;
    /* A transaction that has begun ends, however full the disk has become: its room is reserved. */
    const bool fenced = atomic_load_explicit(&store->fenced, memory_order_acquire);
    cmq_status status = c->claimed && !fenced ? CMQ_OK : cmq_append_check_writable(store);
    if (status != CMQ_OK) return status;   /* fenced: staged bytes may lie about that nobody writes any more */
    c->watched = cmq_watches_any(store->watches);
    const int64_t now = cmq_clock_now_ms(&store->clock);
    /* A clock that steps back must not make store times fall: time search and recovery rely on their order (spec store
     * 15.27). */
    if (now > store->store_ms) store->store_ms = now;
    c->fields.store_timestamp_ms = store->store_ms;
    if (append->common.born_timestamp_ms == 0) c->fields.born_timestamp_ms = store->store_ms;
    CMQ_ASSERT(*done < append->count);
    const bool whole = append->one_segment || c->claimed || append->count - *done < CMQ_APPEND_CHUNK_MAX;
    const uint32_t stop = whole ? append->count : *done + CMQ_APPEND_CHUNK_MAX;
    if (append->one_segment && !c->claimed) status = claim_together(c);
    c->alike = stop - *done > 1 && cmq_append_run_begin(c);
    while (status == CMQ_OK && *done < stop) {
        const uint32_t taken = c->alike ? cmq_append_run(c, *done, stop - *done) : 0;
        CMQ_ASSERT(taken <= stop - *done);
        *done += taken;
        if (taken > 0) continue;
        status = append_one(c, *done, stop - *done);
        if (status == CMQ_OK) (*done)++;
        else if (status != CMQ_AGAIN) status = fail_message(c, *done, status);
    }
    return status;
}

/* Async: records encoded during this hold of the writer lock are readable from here on. */
cmq_status cmq_append_settle(cmq_store *store)
{
    if (store->options.flush == CMQ_FLUSH_SYNC) return CMQ_OK;
    const int64_t end = cmq_log_end(store->log);
    CMQ_ASSERT(end >= cmq_log_confirmed(store->log));
    if (end == cmq_log_confirmed(store->log)) return CMQ_OK;
    /* Another's write failed while this one waited for the writer lock: the records that it left out must not be
     * published. */
    if (atomic_load_explicit(&store->fenced, memory_order_acquire)) return cmq_store_fail_fenced(store);
    cmq_pending_keys *keys = &store->pending[store->filling_keys];
    if (keys->count > 0) cmq_store_put_keys(store, keys);
    cmq_store_publish(store, end, store->store_ms, store->last_phy);
    return CMQ_OK;
}

void cmq_append_note_space(cmq_store *store, cmq_status status)
{
    if (status == CMQ_ERR_DISK_FULL) atomic_store_explicit(&store->disk_full, true, memory_order_relaxed);
    else if (status == CMQ_OK && atomic_load_explicit(&store->disk_full, memory_order_relaxed))
        atomic_store_explicit(&store->disk_full, false, memory_order_relaxed);
}

static cmq_status append_all(append_context *c, cmq_appended *appended)
{
    cmq_store *store = c->store;
    const bool sync = store->options.flush == CMQ_FLUSH_SYNC;
    cmq_status status = CMQ_OK;
    while (appended->count < c->append->count) {
        const uint32_t before = appended->count;
        pthread_mutex_lock(&store->writer_mutex);
        const int64_t began = cmq_log_end(store->log);
        /* Between two holds another thread may have used the room, or deleted the topic. */
        c->queue = NULL;
        c->queue_room = 0;
        c->watched = false;
        cmq_queues_begin_turn(store->queues);
        status = cmq_append_chunk(c, &appended->count);
        if (c->watched) cmq_watches_list(store->watches);
        const cmq_status settled = cmq_append_settle(store);
        const int64_t end = cmq_log_end(store->log);
        CMQ_ASSERT(end >= began && appended->count >= before && appended->count <= c->append->count);
        if (appended->count > before) appended->end = end;
        appended->first_queue_offset = c->first_queue_offset;
        appended->first_physical_offset = c->first_phy;
        appended->store_timestamp_ms = c->fields.store_timestamp_ms;
        pthread_mutex_unlock(&store->writer_mutex);
        if (!sync) cmq_watches_notify(store->watches);
        cmq_append_note_space(store, status);
        if (settled != CMQ_OK) {
            appended->count = before;   /* not published, and never will be */
            return settled;
        }
        if (status == CMQ_AGAIN && sync && c->append->never_wait) break;
        if (status == CMQ_AGAIN && sync) status = cmq_store_commit(store, end);
        /* Confirmed by the end of the hold, if only the blank of a segment that a large record does not fit any
         * more. */
        if (status == CMQ_AGAIN && end > began) status = CMQ_OK;
        if (status != CMQ_OK) break;
    }
    return status;
}

void cmq_store_set_staging(cmq_store *store, int64_t bytes_max)
{
    pthread_mutex_lock(&store->writer_mutex);
    cmq_log_set_staging(store->log, bytes_max);
    pthread_mutex_unlock(&store->writer_mutex);
}

static cmq_status check_message(append_context *c, uint32_t i)
{
    const cmq_append *append = c->append;
    CMQ_ASSERT(i < append->count);
    const int32_t queue_id = append->queue_ids != NULL ? append->queue_ids[i] : append->common.queue_id;
    if (queue_id < 0) return cmq_fail(CMQ_ERR_ARGUMENT, "queue id %d is negative", queue_id);
    const cmq_status status = load_columns(c, i);
    return status == CMQ_OK ? measure(c) : status;
}

cmq_status cmq_store_check_append(cmq_store *store, const cmq_append *append)
{
    append_context c;
    cmq_append_begin(&c, store, append);
    cmq_status status = cmq_append_check_call(&c);
    for (uint32_t i = 0; i < append->count && status == CMQ_OK; i++) {
        status = check_message(&c, i);
        if (status != CMQ_OK) return fail_message(&c, i, status);
    }
    return status;
}

cmq_status cmq_store_append(cmq_store *store, const cmq_append *append, cmq_appended *appended_out)
{
    *appended_out = (cmq_appended){.first_queue_offset = -1, .first_physical_offset = -1};
    cmq_status status = cmq_append_check_writable(store);
    if (status != CMQ_OK || append->count == 0) return status;
    append_context c;
    cmq_append_begin(&c, store, append);
    status = cmq_append_check_call(&c);
    if (status == CMQ_OK) status = append_all(&c, appended_out);
    CMQ_ASSERT(status != CMQ_OK || appended_out->count == append->count);
    if (appended_out->count > 0 && store->options.flush == CMQ_FLUSH_SYNC && !append->no_wait) {
        const cmq_status durable = cmq_store_commit(store, appended_out->end);
        if (status == CMQ_OK) status = durable;
    }
    /* Nobody waits for these: the background thread commits them. */
    if ((appended_out->count > 0 && append->no_wait) || status == CMQ_AGAIN) cmq_store_mark_dirty(store);
    return status;
}
