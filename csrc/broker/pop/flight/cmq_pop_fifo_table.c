/* cmq_pop_fifo_table: see cmq_pop_fifo_table.h.
 *
 * An entry is one queue of a group with its names and its batch. It is found through buckets by its hash, and has a
 * slot that stays its own, so that going through the slots meets every entry that is there from beginning to end.
 */
#include "broker/pop/flight/cmq_pop_fifo_table.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/cmq_name_hash.h"

#define SLOTS_FIRST 64u

typedef struct message {
    int64_t offset;
    int64_t visible_ms;          /* 0: when the batch is */
    int32_t times;               /* given out before this batch */
} message;

typedef struct batch {
    int64_t pop_ms, invisible_ms, used_ms;
    uint64_t acked;
    uint32_t count;
    uint16_t attempt_bytes;
    bool counted;
    message messages[];
} batch;

typedef struct entry {
    struct entry *next;          /* in its bucket */
    uint64_t hash;
    batch *out;
    uint8_t *attempt;            /* of the batch; NULL: none */
    uint32_t slot;
    int32_t queue_id;
    uint16_t group_bytes, topic_bytes;
    uint8_t names[];             /* the group's, then the topic's */
} entry;

struct cmq_pop_fifo_table {
    pthread_mutex_t mutex;       /* all that follows */
    entry **slots;               /* NULL: free */
    entry **buckets;             /* as many as slots, a power of two */
    uint32_t capacity, count, count_max;
    uint32_t slots_free;         /* none below it is free */
    uint64_t version;
};

cmq_status cmq_pop_fifo_table_create(cmq_pop_fifo_table **order_out, uint32_t queues_max)
{
    *order_out = NULL;
    cmq_pop_fifo_table *order = calloc(1, sizeof *order);
    if (order == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for the table of ordered batches");
    const int failed = pthread_mutex_init(&order->mutex, NULL);
    if (failed != 0) {
        free(order);
        return cmq_fail_errno(failed, "making the mutex of ordered batches");
    }
    order->count_max = queues_max != 0 ? queues_max : CMQ_POP_ORDER_QUEUES_MAX;
    *order_out = order;
    return CMQ_OK;
}

static void free_entry(entry *gone)
{
    free(gone->out);
    free(gone->attempt);
    free(gone);
}

void cmq_pop_fifo_table_destroy(cmq_pop_fifo_table *order)
{
    if (order == NULL) return;
    for (uint32_t i = 0; i < order->capacity; i++)
        if (order->slots[i] != NULL) free_entry(order->slots[i]);
    free(order->slots);
    free(order->buckets);
    pthread_mutex_destroy(&order->mutex);
    free(order);
}

/* ---- the table ---- */

static uint64_t key_hash(const cmq_offset_key *key)
{
    const uint64_t names = cmq_name_hash(key->group) * 31 + cmq_name_hash(key->topic);
    return (names * 31 + (uint32_t)key->queue_id) * CMQ_NAMEHASH_MULTIPLIER >> 16;
}

static cmq_slice group_of(const entry *of) { return (cmq_slice){.data = of->names, .bytes = of->group_bytes}; }
static cmq_slice topic_of(const entry *of)
{
    return (cmq_slice){.data = of->names + of->group_bytes, .bytes = of->topic_bytes};
}
static cmq_slice attempt_of(const entry *of)
{
    return (cmq_slice){.data = of->attempt, .bytes = of->attempt == NULL ? 0 : of->out->attempt_bytes};
}

static bool is_name(cmq_slice name) { return name.bytes > 0 && name.bytes <= CMQ_OFFSETS_NAME_BYTES_MAX; }

static entry **bucket_of(const cmq_pop_fifo_table *order, uint64_t hash)
{
    return &order->buckets[hash & (order->capacity - 1)];
}

static entry *find(const cmq_pop_fifo_table *order, const cmq_offset_key *key, uint64_t hash)
{
    if (order->capacity == 0) return NULL;
    entry *at = *bucket_of(order, hash);
    while (at != NULL && !(at->hash == hash && at->queue_id == key->queue_id &&
                           cmq_slice_equal(group_of(at), key->group) && cmq_slice_equal(topic_of(at), key->topic)))
        at = at->next;
    return at;
}

static void put_into_bucket(cmq_pop_fifo_table *order, entry *made)
{
    entry **bucket = bucket_of(order, made->hash);
    made->next = *bucket;
    *bucket = made;
}

static cmq_status CMQ_MUST_CHECK more_slots(cmq_pop_fifo_table *order)
{
    if (order->count >= order->count_max)
        return cmq_fail(CMQ_ERR_LIMIT, "%u queues have an ordered batch, which is the limit", order->count_max);
    if (order->count < order->capacity) return CMQ_OK;
    const uint32_t capacity = order->capacity == 0 ? SLOTS_FIRST : order->capacity * 2;
    entry **slots = calloc(capacity, sizeof *slots), **buckets = calloc(capacity, sizeof *buckets);
    if (slots == NULL || buckets == NULL) {
        free(slots);
        free(buckets);
        return cmq_fail(CMQ_ERR_MEMORY, "no memory for ordered batches of %u queues", capacity);
    }
    if (order->capacity > 0) memcpy(slots, order->slots, order->capacity * sizeof *slots);
    free(order->slots);
    free(order->buckets);
    order->slots = slots;
    order->buckets = buckets;
    order->capacity = capacity;
    for (uint32_t i = 0; i < order->count; i++) put_into_bucket(order, slots[i]);   /* it was full: all of them */
    return CMQ_OK;
}

static cmq_status CMQ_MUST_CHECK make_entry(cmq_pop_fifo_table *order, const cmq_offset_key *key, uint64_t hash,
                                            entry **made_out)
{
    const cmq_status status = more_slots(order);
    if (status != CMQ_OK) return status;
    entry *made = malloc(sizeof *made + key->group.bytes + key->topic.bytes);
    if (made == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for the names of a group and its topic");
    *made = (entry){.hash = hash,
                    .queue_id = key->queue_id,
                    .group_bytes = (uint16_t)key->group.bytes,
                    .topic_bytes = (uint16_t)key->topic.bytes};
    memcpy(made->names, key->group.data, key->group.bytes);
    memcpy(made->names + key->group.bytes, key->topic.data, key->topic.bytes);
    while (order->slots[order->slots_free] != NULL) order->slots_free++;
    made->slot = order->slots_free;
    order->slots[made->slot] = made;
    order->count++;
    put_into_bucket(order, made);
    *made_out = made;
    return CMQ_OK;
}

static void remove_entry(cmq_pop_fifo_table *order, entry *gone)
{
    entry **link = bucket_of(order, gone->hash);
    while (*link != gone) link = &(*link)->next;
    *link = gone->next;
    order->slots[gone->slot] = NULL;
    if (gone->slot < order->slots_free) order->slots_free = gone->slot;
    order->count--;
    order->version++;
    free_entry(gone);
}

/* ---- a batch ---- */

static bool is_acked(const batch *of, uint32_t number) { return (of->acked >> number & 1) != 0; }

static int64_t visible_of(const batch *of, uint32_t number)
{
    const int64_t own = of->messages[number].visible_ms;
    if (own != 0) return own;
    return of->invisible_ms < INT64_MAX - of->pop_ms ? of->pop_ms + of->invisible_ms : INT64_MAX;
}

/* When nothing of it from `committed` on is invisible any more; INT64_MIN: all is acked. */
static int64_t free_ms_of(const batch *of, int64_t committed)
{
    int64_t latest = INT64_MIN;
    for (uint32_t i = 0; i < of->count; i++)
        if (!is_acked(of, i) && of->messages[i].offset >= committed && visible_of(of, i) > latest)
            latest = visible_of(of, i);
    return latest;
}

static uint32_t number_of(const batch *of, int64_t offset)
{
    uint32_t number = 0;
    while (number < of->count && of->messages[number].offset != offset) number++;
    return number;
}

static int64_t next_of(const batch *of)
{
    for (uint32_t i = 0; i < of->count; i++)
        if (!is_acked(of, i)) return of->messages[i].offset;
    return of->messages[of->count - 1].offset + 1;
}

/* Check a batch of a pop, or of a file. */
static cmq_status CMQ_MUST_CHECK check(const cmq_offset_key *key, cmq_slice attempt, int64_t pop_ms,
                                       const int64_t *offsets, uint32_t count)
{
    if (!is_name(key->group) || !is_name(key->topic) || key->queue_id < 0)
        return cmq_fail(CMQ_ERR_ARGUMENT, "an ordered batch needs a group and a topic of 1 to %u bytes, and a queue",
                        CMQ_OFFSETS_NAME_BYTES_MAX);
    if (attempt.bytes > CMQ_POP_ORDER_ATTEMPT_BYTES_MAX)
        return cmq_fail(CMQ_ERR_ARGUMENT, "an attempt's id has %zu bytes; %u is the most", attempt.bytes,
                        CMQ_POP_ORDER_ATTEMPT_BYTES_MAX);
    if (pop_ms < 0)
        return cmq_fail(CMQ_ERR_ARGUMENT, "an ordered batch was popped at %lld ms, before 1970", (long long)pop_ms);
    if (count == 0 || count > CMQ_POP_ORDER_BATCH_MAX)
        return cmq_fail(CMQ_ERR_ARGUMENT, "an ordered batch has 1 to %u messages, not %u", CMQ_POP_ORDER_BATCH_MAX,
                        count);
    for (uint32_t i = 0; i < count; i++)
        if (offsets[i] < 0 || offsets[i] == INT64_MAX || (i > 0 && offsets[i] <= offsets[i - 1]))
            return cmq_fail(CMQ_ERR_ARGUMENT, "the offsets of an ordered batch do not rise from 0");
    return CMQ_OK;
}

static batch *make_batch(const int64_t *offsets, uint32_t count)
{
    batch *made = calloc(1, sizeof *made + count * sizeof made->messages[0]);
    if (made == NULL) return NULL;
    made->count = count;
    for (uint32_t i = 0; i < count; i++) made->messages[i].offset = offsets[i];
    return made;
}

/* How often its messages were given out before, by the batch before it. The same attempt: that one was not another
 * time. */
static void count_times(batch *made, const batch *before, bool same_attempt)
{
    made->counted = true;
    for (uint32_t i = 0; i < made->count; i++) {
        const uint32_t number = number_of(before, made->messages[i].offset);
        const int32_t times = number < before->count ? before->messages[number].times : 0;
        made->messages[i].times = number < before->count && !same_attempt && times < INT32_MAX ? times + 1 : times;
    }
}

/* Put a batch in the place of the queue's own. The queue's entry is made where it is not there. */
static cmq_status CMQ_MUST_CHECK put_batch(cmq_pop_fifo_table *order, const cmq_offset_key *key, batch *made,
                                           cmq_slice attempt, bool is_pop)
{
    const uint64_t hash = key_hash(key);
    uint8_t *text = attempt.bytes == 0 ? NULL : malloc(attempt.bytes);
    entry *of = find(order, key, hash);
    cmq_status status = CMQ_OK;
    if (attempt.bytes > 0 && text == NULL) status = cmq_fail(CMQ_ERR_MEMORY, "no memory for an attempt's id");
    if (status == CMQ_OK && of == NULL) status = make_entry(order, key, hash, &of);
    if (status != CMQ_OK) {
        free(text);
        return status;
    }
    if (of->out != NULL && is_pop)
        count_times(made, of->out, attempt.bytes > 0 && cmq_slice_equal(attempt_of(of), attempt));
    if (text != NULL) memcpy(text, attempt.data, attempt.bytes);
    made->attempt_bytes = (uint16_t)attempt.bytes;
    free(of->out);
    free(of->attempt);
    of->out = made;
    of->attempt = text;
    order->version++;
    return CMQ_OK;
}

/* ---- the loops ---- */

bool cmq_pop_fifo_table_blocks(cmq_pop_fifo_table *order, const cmq_offset_key *key, cmq_slice attempt,
                               int64_t invisible_ms, int64_t committed, int64_t now_ms, int64_t *free_ms_out)
{
    const uint64_t hash = key_hash(key);
    bool blocked = false;
    pthread_mutex_lock(&order->mutex);
    const entry *of = find(order, key, hash);
    if (of != NULL && !(attempt.bytes > 0 && cmq_slice_equal(attempt_of(of), attempt))) {
        if (of->out->invisible_ms <= 0) of->out->invisible_ms = invisible_ms;
        const int64_t free_ms = free_ms_of(of->out, committed);
        blocked = free_ms > now_ms;
        if (blocked) *free_ms_out = free_ms;
    }
    pthread_mutex_unlock(&order->mutex);
    return blocked;
}

cmq_status cmq_pop_fifo_table_update(cmq_pop_fifo_table *order, const cmq_offset_key *key,
                                     const cmq_pop_fifo_table_batch *given, int64_t now_ms,
                                     cmq_pop_fifo_table_counts *counts_out)
{
    cmq_status status = check(key, given->attempt, given->pop_ms, given->offsets, given->count);
    if (status != CMQ_OK) return status;
    batch *made = make_batch(given->offsets, given->count);
    if (made == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for an ordered batch");
    made->pop_ms = given->pop_ms;
    made->invisible_ms = given->invisible_ms;
    made->used_ms = now_ms;
    /* Free from its pop on. Without a time of their own they would take the next pop's, as those of a file that says
     * none. */
    for (uint32_t i = 0; given->invisible_ms <= 0 && i < made->count; i++)
        made->messages[i].visible_ms = given->pop_ms > 0 ? given->pop_ms : 1;
    pthread_mutex_lock(&order->mutex);
    status = put_batch(order, key, made, given->attempt, true);
    if (status == CMQ_OK) {
        counts_out->least = INT32_MAX;
        for (uint32_t i = 0; i < made->count; i++) {
            counts_out->times[i] = made->messages[i].times;
            if (counts_out->times[i] < counts_out->least) counts_out->least = counts_out->times[i];
        }
    }
    pthread_mutex_unlock(&order->mutex);
    if (status != CMQ_OK) free(made);
    return status;
}

cmq_status cmq_pop_fifo_table_ack(cmq_pop_fifo_table *order, const cmq_offset_key *key, int64_t offset, int64_t pop_ms,
                                  int64_t *next_out)
{
    const uint64_t hash = key_hash(key);
    cmq_status status = CMQ_OK;
    pthread_mutex_lock(&order->mutex);
    const entry *of = find(order, key, hash);
    if (of == NULL) {
        *next_out = offset + 1;
        status = CMQ_END;
    } else if (of->out->pop_ms != pop_ms) {
        status = CMQ_AGAIN;
    } else {
        const uint32_t number = number_of(of->out, offset);
        if (number < of->out->count) {
            of->out->acked |= UINT64_C(1) << number;
            *next_out = next_of(of->out);
            order->version++;
        } else {
            status = cmq_fail(CMQ_ERR_NOT_FOUND, "the batch that is out does not have offset %lld", (long long)offset);
        }
    }
    pthread_mutex_unlock(&order->mutex);
    return status;
}

bool cmq_pop_fifo_table_change(cmq_pop_fifo_table *order, const cmq_offset_key *key, int64_t offset, int64_t pop_ms,
                               int64_t visible_ms)
{
    const uint64_t hash = key_hash(key);
    pthread_mutex_lock(&order->mutex);
    const entry *of = find(order, key, hash);
    const uint32_t number =
        of == NULL || of->out->pop_ms != pop_ms ? CMQ_POP_ORDER_BATCH_MAX : number_of(of->out, offset);
    const bool changed = of != NULL && number < of->out->count;
    if (changed) {
        of->out->messages[number].visible_ms = visible_ms;
        order->version++;
    }
    pthread_mutex_unlock(&order->mutex);
    return changed;
}

bool cmq_pop_fifo_table_clear(cmq_pop_fifo_table *order, const cmq_offset_key *key)
{
    const uint64_t hash = key_hash(key);
    pthread_mutex_lock(&order->mutex);
    entry *of = find(order, key, hash);
    if (of != NULL) remove_entry(order, of);
    pthread_mutex_unlock(&order->mutex);
    return of != NULL;
}

void cmq_pop_fifo_table_forget(cmq_pop_fifo_table *order, cmq_slice topic, cmq_slice group)
{
    pthread_mutex_lock(&order->mutex);
    for (uint32_t i = 0; i < order->capacity; i++) {
        entry *of = order->slots[i];
        if (of != NULL && (topic.bytes == 0 || cmq_slice_equal(topic_of(of), topic)) &&
            (group.bytes == 0 || cmq_slice_equal(group_of(of), group)))
            remove_entry(order, of);
    }
    pthread_mutex_unlock(&order->mutex);
}

/* ---- the control plane ---- */

static cmq_slice copied(uint8_t **text, cmq_slice name)
{
    uint8_t *into = *text;
    if (name.bytes > 0) memcpy(into, name.data, name.bytes);
    *text += name.bytes;
    return (cmq_slice){.data = into, .bytes = name.bytes};
}

static void give(const entry *of, cmq_pop_fifo_table_item *item)
{
    const batch *out = of->out;
    uint8_t *text = item->text;
    item->group = copied(&text, group_of(of));
    item->topic = copied(&text, topic_of(of));
    item->attempt = copied(&text, attempt_of(of));
    item->queue_id = of->queue_id;
    item->pop_ms = out->pop_ms;
    item->invisible_ms = out->invisible_ms;
    item->used_ms = out->used_ms;
    item->acked = out->acked;
    item->counted = out->counted;
    item->count = out->count;
    for (uint32_t i = 0; i < out->count; i++) {
        item->offsets[i] = out->messages[i].offset;
        item->visible_ms[i] = out->messages[i].visible_ms;
        item->times[i] = out->messages[i].times;
    }
}

bool cmq_pop_fifo_table_next(cmq_pop_fifo_table *order, uint32_t *cursor, cmq_pop_fifo_table_item *item_out)
{
    pthread_mutex_lock(&order->mutex);
    while (*cursor < order->capacity && order->slots[*cursor] == NULL) ++*cursor;
    const bool found = *cursor < order->capacity;
    if (found) give(order->slots[(*cursor)++], item_out);
    pthread_mutex_unlock(&order->mutex);
    return found;
}

cmq_status cmq_pop_fifo_table_restore(cmq_pop_fifo_table *order, const cmq_pop_fifo_table_item *item)
{
    const cmq_offset_key key = {.group = item->group, .topic = item->topic, .queue_id = item->queue_id};
    cmq_status status = check(&key, item->attempt, item->pop_ms, item->offsets, item->count);
    for (uint32_t i = 0; status == CMQ_OK && i < item->count; i++)
        if (item->times[i] < 0)
            status =
                cmq_fail(CMQ_ERR_ARGUMENT, "a message of an ordered batch was given out %d times", (int)item->times[i]);
    if (status != CMQ_OK) return status;
    batch *made = make_batch(item->offsets, item->count);
    if (made == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for an ordered batch");
    made->pop_ms = item->pop_ms;
    made->invisible_ms = item->invisible_ms;
    made->used_ms = item->used_ms;
    made->acked = item->acked;
    made->counted = item->counted;
    for (uint32_t i = 0; i < made->count; i++) {
        made->messages[i].visible_ms = item->visible_ms[i];
        made->messages[i].times = item->times[i];
    }
    pthread_mutex_lock(&order->mutex);
    status = put_batch(order, &key, made, item->attempt, false);
    pthread_mutex_unlock(&order->mutex);
    if (status != CMQ_OK) free(made);
    return status;
}

uint64_t cmq_pop_fifo_table_version(cmq_pop_fifo_table *order)
{
    pthread_mutex_lock(&order->mutex);
    const uint64_t version = order->version;
    pthread_mutex_unlock(&order->mutex);
    return version;
}

uint32_t cmq_pop_fifo_table_count(cmq_pop_fifo_table *order)
{
    pthread_mutex_lock(&order->mutex);
    const uint32_t count = order->count;
    pthread_mutex_unlock(&order->mutex);
    return count;
}
