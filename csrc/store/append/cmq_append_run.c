/* cmq_append_run: messages that differ in body, tags, keys and queue only, many at a time, as in most batches.
 *
 * Per message: its body read once and written once, some 40 bytes that all share, a unit, and no question that was
 * answered for the message before. Per run of up to 64: one look at each column, one claim of the log, one grant of
 * units and of keys.
 *
 * Invariant: a run changes nothing before all that may fail has been granted for all of it. Where anything is out of
 *            the ordinary (the end of a segment, a full disk, a wrong message), it changes nothing at all, and
 *            cmq_append.c goes on message by message.
 * Way:       cmq_append -> [cmq_append_run] -> cmq_log, cmq_queue
 */
#include <string.h>

#include "base/cmq_assert.h"
#include "base/cmq_hash.h"
#include "store/append/cmq_append_internal.h"

#define RUN_MESSAGES 64u
#define RUN_BYTES (256u << 10)

#define AHEAD 2
#define PREFETCH_BYTES_MAX 1024u

typedef struct append_run {
    cmq_record_cast casts[RUN_MESSAGES];
    cmq_queue *queues[RUN_MESSAGES];
    bool one_key[RUN_MESSAGES];     /* the keys are one key */
    uint32_t count, bytes, keys;
} append_run;

bool cmq_append_run_begin(append_context *c)
{
    const cmq_append *append = c->append;
    const cmq_property_known *known = &c->known;
    if (append->born_timestamps != NULL || append->flags != NULL || c->properties_vary || c->schedule) return false;
    if ((c->fields.sys_flag & CMQ_SYS_TRANSACTION_MASK) != 0) return false;
    if (known->value[CMQ_PROPERTY_TAGS].bytes > 0 || known->value[CMQ_PROPERTY_KEYS].bytes > 0 ||
        known->value[CMQ_PROPERTY_UNIQ_KEY].bytes > 0 || known->value[CMQ_PROPERTY_INNER_NUM].bytes > 0)
        return false;
    c->fields.queue_id = append->common.queue_id;
    memset(c->queue_of, 0, sizeof c->queue_of);
    return cmq_record_mould_make(&c->fields, c->tags_vary, &c->mould);
}

/* Is this one key of a usual length, without a space, a separator or another byte below them? A quick look that spares
 * most keys two scans. */
static inline bool is_one_key(cmq_slice keys)
{
    if (keys.bytes < 8 || keys.bytes > 16) return false;
    const uint64_t ones = UINT64_C(0x0101010101010101), highs = ones << 7, limits = ones * (' ' + 1);
    uint64_t first, last;
    memcpy(&first, keys.data, sizeof first);
    memcpy(&last, keys.data + keys.bytes - sizeof last, sizeof last);
    return ((((first - limits) & ~first) | ((last - limits) & ~last)) & highs) == 0;
}

/* The columns' next messages, up to the first that cannot be appended as it is. */
static void gather(const append_context *c, uint32_t from, uint32_t left, append_run *run)
{
    const cmq_append *append = c->append;
    const uint32_t most = left < RUN_MESSAGES ? left : RUN_MESSAGES;
    const uint32_t body_max = c->store->options.body_bytes_max, record_max = c->store->record_bytes_max;
    const bool keys_vary = append->keys.kind > CMQ_COLUMN_ONE;
    run->count = run->bytes = run->keys = 0;
    for (; run->count < most; run->count++) {
        cmq_record_cast *cast = &run->casts[run->count];
        cast->body = column_at(&append->bodies, from + run->count);
        cast->tags = c->tags_vary ? column_at(&append->tags, from + run->count) : CMQ_SLICE_NONE;
        cast->keys = keys_vary ? column_at(&append->keys, from + run->count) : c->fields.keys;
        run->one_key[run->count] = is_one_key(cast->keys);
        /* With a zero byte the record gets a proof of its own. */
        if (cast->body.bytes > body_max || (c->tags_vary && cmq_property_has_control(cast->tags)) ||
            (keys_vary && !run->one_key[run->count] && cmq_property_has_control(cast->keys)))
            break;
        if (!cmq_record_mould_measure(&c->mould, cast) || cast->record_bytes > record_max) break;
        if (run->count > 0 && cast->record_bytes > RUN_BYTES - run->bytes) break;
        run->bytes += cast->record_bytes;
        run->keys += (uint32_t)cast->keys.bytes / 2 + CMQ_KEYS_BESIDE;
        if (run->bytes >= RUN_BYTES) {
            run->count++;
            break;
        }
    }
    CMQ_ASSERT(run->count <= most);
}

/* The queue of message i, with room for a whole run; NULL: message by message. Queues that turns are dealt to are
 * looked for once. */
static cmq_queue *queue_for(append_context *c, uint32_t i, uint32_t units)
{
    const int32_t id = c->append->queue_ids != NULL ? c->append->queue_ids[i] : c->fields.queue_id;
    const bool small = id >= 0 && id < CMQ_APPEND_QUEUES;
    cmq_queue *queue = small ? c->queue_of[id] : NULL;
    if (queue == NULL) {
        if (cmq_append_enter_queue(c, id) != CMQ_OK) return NULL;
        queue = c->queue;
        if (small) c->queue_of[id] = queue;
    }
    CMQ_ASSERT(cmq_queue_id(queue) == id);
    return cmq_queue_make_room(queue, units, cmq_log_confirmed(c->store->log)) == CMQ_OK ? queue : NULL;
}

/* All that may fail. */
static bool grant(append_context *c, uint32_t from, append_run *run, bool indexed, uint8_t **into_out, int64_t *phy_out)
{
    cmq_store *store = c->store;
    CMQ_ASSERT(run->count > 0 && run->count <= RUN_MESSAGES);
    c->queue_room = 0;   /* room granted for single messages is used up here */
    for (uint32_t i = 0; i < run->count; i++) {
        run->queues[i] = i > 0 && c->append->queue_ids == NULL ? run->queues[0] : queue_for(c, from + i, run->count);
        if (run->queues[i] == NULL) return false;
    }
    if (indexed && cmq_append_grant_keys(store, run->keys) != CMQ_OK) return false;
    return cmq_log_claim_here(store->log, run->bytes, into_out, phy_out) == CMQ_OK;
}

/* A body's lines are asked for some messages before its turn: bodies of a list lie anywhere, and those of an array in
 * pages whose beginnings no hardware foresees. */
static inline void prefetch_body(cmq_slice body)
{
    const size_t bytes = body.bytes < PREFETCH_BYTES_MAX ? body.bytes : PREFETCH_BYTES_MAX;
    for (size_t at = 0; at < bytes; at += 64) __builtin_prefetch(body.data + at);
}

static int64_t tags_code_of(const append_context *c, cmq_slice tags)
{
    if (!c->tags_vary) return (int32_t)c->tag_hash;
    return tags.bytes > 0 ? (int32_t)cmq_jhash(tags) : 0;
}

static inline void add_keys(append_context *c, const cmq_record_cast *cast, bool one_key, int64_t phy)
{
    cmq_store *store = c->store;
    const cmq_slice keys = cast->keys;
    if (one_key && !store->tags_indexed) {
        CMQ_ASSERT(store->keys_granted > 0);
        cmq_append_add_key(&store->pending[store->filling_keys], cmq_queue_index_seed(c->queue), keys, phy,
                           c->fields.store_timestamp_ms);
        store->keys_granted--;
    } else {
        cmq_append_add_keys(c, keys, c->tags_vary ? cast->tags : c->fields.tags, phy);
    }
}

uint32_t cmq_append_run(append_context *c, uint32_t from, uint32_t left)
{
    append_run run;
    uint8_t *into;
    int64_t phy;
    cmq_store *store = c->store;
    gather(c, from, left, &run);
    const bool has_tags = store->tags_indexed && c->append->tags.kind != CMQ_COLUMN_NONE;
    const bool indexed = store->index != NULL && (has_tags || c->append->keys.kind != CMQ_COLUMN_NONE);
    if (run.count == 0 || !grant(c, from, &run, indexed, &into, &phy)) return 0;

    CMQ_ASSERT(phy > store->last_phy && run.bytes > 0);
    c->queue = run.queues[0];   /* any: they are of one topic */
    if (from == 0) {
        c->first_queue_offset = cmq_queue_next(run.queues[0]);
        c->first_phy = phy;
    }
    for (uint32_t i = 0; i < run.count; i++) {
        const cmq_record_cast *cast = &run.casts[i];
        if (i + AHEAD < run.count) prefetch_body(run.casts[i + AHEAD].body);
        cmq_queue *queue = run.queues[i];
        const int64_t queue_offset = cmq_queue_next(queue);
        cmq_record_mould_cast(&c->mould, into, cast, cmq_queue_id(queue), queue_offset, phy);
        cmq_queue_put(queue, phy, (int32_t)cast->record_bytes, tags_code_of(c, cast->tags),
                      c->fields.store_timestamp_ms, 1);
        if (indexed) add_keys(c, cast, run.one_key[i], phy);
        if (c->append->queue_offsets_out != NULL) c->append->queue_offsets_out[from + i] = queue_offset;
        if (c->append->physical_offsets_out != NULL) c->append->physical_offsets_out[from + i] = phy;
        store->last_phy = phy;
        into += cast->record_bytes;
        phy += cast->record_bytes;
    }
    CMQ_ASSERT(phy == cmq_log_end(store->log) + run.bytes);
    cmq_log_commit(store->log, run.bytes);
    for (uint32_t i = 0; c->watched && i < run.count; i++) cmq_watches_note(store->watches, run.queues[i]);
    return run.count;
}
