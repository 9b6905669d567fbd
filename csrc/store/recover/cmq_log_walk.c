/* cmq_log_walk: see cmq_log_walk.h. */
#include "store/recover/cmq_log_walk.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cmq_assert.h"

#define LOTS 4u
#define LOT_RECORDS 1024u
#define STEP_BYTES_MIN (INT64_C(64) << 10)   /* a short log does not wait for much */
#define STEP_BYTES_MAX (INT64_C(1) << 20)
#define PAGE_BYTES 4096
#define TOPICS 64u
#define TOPIC_BYTES_MAX 127u
#define AHEAD_BYTES_MIN (INT64_C(128) << 10)
#define AHEAD_BYTES_MAX (INT64_C(8) << 20)

typedef struct lot {
    const uint8_t *data;         /* of its first record's place: mapped, or `copy` */
    uint8_t *copy;
    int64_t capacity;            /* of copy */
    int64_t first;               /* where its first record lies */
    uint32_t count;
    cmq_pending_keys keys;
    cmq_status status;           /* behind the records: go on, the end, or a failure */
    cmq_error error;             /* with a failure */
    cmq_walked records[LOT_RECORDS];
} lot;

/* A topic that was met; numbers are never given again. */
typedef struct known_topic {
    uint32_t number, bytes;
    uint32_t seed;               /* of its index keys */
    bool has_zero;
    uint8_t name[TOPIC_BYTES_MAX];
} known_topic;

struct cmq_log_walk {
    cmq_store *store;
    cmq_log_walk_options options;

    /* The reading side's. */
    int64_t position;            /* where the next record is expected */
    int64_t step_bytes;          /* made ready at a time */
    int64_t ready_until;         /* mapped bytes of the segment of `position` are in memory up to here */
    int64_t ahead_until;         /* the kernel was asked for bytes up to here */
    int64_t ahead_bytes;
    bool copies;                 /* pages cannot be made ready: pread */
    cmq_file *file;              /* copies: of the segment that starts at file_start; NULL: none is open */
    int64_t file_start;
    char reason[CMQ_DAMAGE_REASON_BYTES];
    cmq_record_view view;        /* of the record that is looked at */
    cmq_dispatch_facts facts;
    uint32_t topic_numbers;
    known_topic other_topic;     /* one that is not remembered */
    known_topic topics[TOPICS];

    /* The ring: lots [taken, filled) are read and not yet given back. */
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    uint64_t filled, taken;      /* mutex */
    bool stop;                   /* mutex */
    bool has_thread;
    pthread_t thread;
    bool lent;                   /* the caller has lot `taken` */
    bool ended;
    lot *lots[LOTS];
};

/* ---- reading ---- */

static cmq_status end_at(cmq_log_walk *walk, const char *reason)
{
    snprintf(walk->reason, sizeof walk->reason, "%s", reason);
    return CMQ_END;
}

/* ---- bytes ---- */

/* Ever larger pieces, so that a short log does not fill memory with what lies behind its end. The map is advised as
 * random: a log on disk would be read page by page. */
static void ask_ahead(cmq_log_walk *walk, const uint8_t *data, int64_t from, int64_t segment_end)
{
    if (from < walk->ahead_until - walk->ahead_bytes / 2) return;
    walk->ahead_bytes = walk->ahead_bytes == 0                ? AHEAD_BYTES_MIN
                        : walk->ahead_bytes < AHEAD_BYTES_MAX ? walk->ahead_bytes * 2
                                                              : AHEAD_BYTES_MAX;
    const int64_t begin = walk->ahead_until > from ? walk->ahead_until : from;
    const int64_t end = segment_end - begin > walk->ahead_bytes ? begin + walk->ahead_bytes : segment_end;
    if (begin < end) cmq_file_read_ahead(data + (begin - from), (size_t)(end - begin));
    walk->ahead_until = begin < end ? end : begin;
}

/* The mapped bytes of [first, end) of the log, in memory. CMQ_END: pages of them cannot be made ready. */
static cmq_status CMQ_MUST_CHECK make_ready(cmq_log_walk *walk, lot *into, int64_t first, int64_t end)
{
    cmq_segment *segment;
    const uint8_t *data;
    size_t available;
    const cmq_status status = cmq_log_pin(walk->store->log, first, &segment, &data, &available);
    if (status != CMQ_OK) return status;
    ask_ahead(walk, data, first, first + (int64_t)available);
    const int64_t from = walk->ready_until > first ? walk->ready_until : first;
    const bool ready = from >= end || cmq_file_populate_read(data + (from - first), (size_t)(end - from));
    if (ready && end > walk->ready_until) walk->ready_until = end;
    cmq_segment_unpin(segment);   /* the log keeps it while it is walked */
    into->data = data;
    return ready ? CMQ_OK : CMQ_END;
}

static cmq_status CMQ_MUST_CHECK open_segment(cmq_log_walk *walk, int64_t phy)
{
    const int64_t start = phy - phy % cmq_log_segment_bytes(walk->store->log);
    cmq_segment *segment;
    const uint8_t *data;
    size_t available;
    if (walk->file != NULL && walk->file_start == start) return CMQ_OK;
    cmq_file_close(walk->file);
    walk->file = NULL;
    cmq_status status = cmq_log_pin(walk->store->log, phy, &segment, &data, &available);
    if (status != CMQ_OK) return status;
    status = cmq_file_open(walk->store->fs, cmq_segment_path(segment), CMQ_OPEN_READ, &walk->file);
    cmq_segment_unpin(segment);
    walk->file_start = start;
    return status;
}

/* The same bytes, copied: `have` of them are there already. */
static cmq_status CMQ_MUST_CHECK copy_bytes(cmq_log_walk *walk, lot *into, int64_t first, int64_t have, int64_t bytes)
{
    cmq_status status = open_segment(walk, first);
    if (status == CMQ_OK && bytes > into->capacity) {
        uint8_t *grown = realloc(into->copy, (size_t)bytes);
        if (grown == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for %lld bytes of the log", (long long)bytes);
        into->copy = grown;
        into->capacity = bytes;
    }
    if (status == CMQ_OK)
        status = cmq_file_read(walk->file, (uint64_t)(first + have - walk->file_start), into->copy + have,
                               (size_t)(bytes - have));
    into->data = into->copy;
    return status;
}

/* into->data: the `bytes` of the log from `first` on, of which it has `have`. CMQ_AGAIN: the lot must end here, as its
 * slices point elsewhere. */
static cmq_status CMQ_MUST_CHECK fetch(cmq_log_walk *walk, lot *into, int64_t first, int64_t have, int64_t bytes)
{
    if (!walk->copies) {
        const cmq_status status = make_ready(walk, into, first, first + bytes);
        if (status != CMQ_END) return status;
        walk->copies = true;
        have = 0;
    }
    return into->count > 0 ? CMQ_AGAIN : copy_bytes(walk, into, first, have, bytes);
}

/* ---- records ---- */

static void learn_topic(cmq_log_walk *walk, cmq_slice topic, known_topic *into)
{
    into->seed = cmq_index_topic_seed(topic);
    into->has_zero = topic.bytes > 0 && memchr(topic.data, 0, topic.bytes) != NULL;
    into->number = 0;
    if (into == &walk->other_topic || walk->topic_numbers == UINT32_MAX) return;
    into->number = ++walk->topic_numbers;
    into->bytes = (uint32_t)topic.bytes;
    memcpy(into->name, topic.data, topic.bytes);
}

/* Topics are few, or one after the other: each is looked at once, and has a number that is compared in its name's
 * place. */
static const known_topic *topic_of(cmq_log_walk *walk, cmq_slice topic)
{
    known_topic *known = &walk->other_topic;
    if (topic.bytes >= 4 && topic.bytes <= TOPIC_BYTES_MAX) {
        const uint32_t hash =
            (cmq_load_u32(topic.data) + cmq_load_u32(topic.data + topic.bytes - 4) * 31 + (uint32_t)topic.bytes) *
            UINT32_C(2654435761);
        known = &walk->topics[(hash >> 16) % TOPICS];
        if (known->number != 0 && known->bytes == topic.bytes && memcmp(known->name, topic.data, topic.bytes) == 0)
            return known;
    }
    learn_topic(walk, topic, known);
    return known;
}

static cmq_status take_keys(cmq_log_walk *walk, const known_topic *topic, cmq_pending_keys *keys)
{
    const cmq_slice *known = walk->facts.known.value;
    if (walk->view.physical_offset <= walk->options.keys_behind) return CMQ_OK;
    const bool with_tags = walk->store->tags_indexed && known[CMQ_PROPERTY_TAGS].bytes > 0;
    if (known[CMQ_PROPERTY_KEYS].bytes == 0 && known[CMQ_PROPERTY_UNIQ_KEY].bytes == 0 && !with_tags) return CMQ_OK;
    return cmq_dispatch_keys(&walk->view, &walk->facts, topic->seed, with_tags, keys);
}

/* Check and describe the record at `at`. CMQ_AGAIN: the record is longer than the bytes read. */
static cmq_status take_record(cmq_log_walk *walk, const uint8_t *at, size_t available, lot *into)
{
    cmq_record_view *view = &walk->view;
    cmq_dispatch_facts *facts = &walk->facts;
    const cmq_status status = cmq_record_parse(at, available, walk->position, walk->options.checks, view);
    if (status == CMQ_ERR_CORRUPT) return end_at(walk, cmq_record_reason_text(view->reason));
    if (status == CMQ_END) return CMQ_ERR_NOT_FOUND;   /* a blank */
    if (status != CMQ_OK) return status;
    cmq_dispatch_learn(walk->store, view, facts);
    const known_topic *topic = topic_of(walk, view->topic);
    const bool doubtful = facts->known.has_zero || facts->known.value[CMQ_PROPERTY_CRC32].bytes > 0 || topic->has_zero;
    if (walk->options.unclean && doubtful && cmq_store_is_torn(walk->store, view))
        return end_at(walk, "a sector of its topic or properties is missing");
    into->records[into->count] =
        (cmq_walked){.unit = cmq_dispatch_unit_of(view, facts),
                     .queue_id = view->queue_id,
                     .sys_flag = view->sys_flag,
                     .topic = topic->number,
                     .in_queue = facts->in_queue,
                     .names_light_queues = facts->in_queue && cmq_dispatch_names_light(walk->store, facts)};
    return take_keys(walk, topic, &into->keys);
}

/* Behind a blank: the next segment, if there is one; else the end is before the blank, unless the writer had
 * acknowledged it: taking it back would leave a page that promises more than the log has, if this opening dies before
 * it has a page of its own. */
static cmq_status CMQ_MUST_CHECK pass_blank(cmq_log_walk *walk)
{
    const int64_t bytes = cmq_log_segment_bytes(walk->store->log),
                  next = walk->position - walk->position % bytes + bytes;
    const bool is_last = next >= cmq_log_last_file_end(walk->store->log);
    if (!is_last || walk->store->known_end == next) walk->position = next;
    if (is_last) return end_at(walk, "nothing follows");
    return CMQ_OK;
}

/* A record beyond the lot's bytes: how many bytes it takes, 0 when it is not a record. */
static int64_t bytes_wanted(const uint8_t *at, int64_t have, int64_t left)
{
    if (have < CMQ_RECORD_BLANK_BYTES_MIN) return left < CMQ_RECORD_BLANK_BYTES_MIN ? 0 : CMQ_RECORD_BLANK_BYTES_MIN;
    const int64_t bytes = cmq_load_u32(at + CMQ_RECORD_AT_SIZE);
    return bytes > left ? 0 : bytes;
}

/* Fill a lot from walk->position on; at least one record, unless the log ends or goes on in the next segment. */
static cmq_status CMQ_MUST_CHECK read_lot(cmq_log_walk *walk, lot *into)
{
    const int64_t segment_bytes = cmq_log_segment_bytes(walk->store->log), first = walk->position,
                  left = segment_bytes - first % segment_bytes;
    into->count = into->keys.count = 0;
    into->first = first;
    if (first >= cmq_log_last_file_end(walk->store->log)) return end_at(walk, "nothing follows");
    if (walk->step_bytes < STEP_BYTES_MAX)
        walk->step_bytes = walk->step_bytes == 0 ? STEP_BYTES_MIN : walk->step_bytes * 2;
    int64_t have = 0, at = 0, bytes = left < walk->step_bytes ? left : walk->step_bytes;
    while (into->count < LOT_RECORDS && at < left) {
        cmq_status status = have < bytes ? fetch(walk, into, first, have, bytes) : CMQ_OK;
        if (status == CMQ_AGAIN) return CMQ_OK;
        if (status != CMQ_OK && bytes - have > PAGE_BYTES) {   /* the page that cannot be read may lie behind the end */
            bytes = have + ((bytes - have) / 2 > PAGE_BYTES ? (bytes - have) / 2 : PAGE_BYTES);
            continue;
        }
        if (status != CMQ_OK)
            return cmq_fail_context("at physical offset %lld; `cometmq verify` and `cometmq repair` go round it",
                                    (long long)walk->position);
        have = bytes;
        if (into->count > 0) cmq_record_prefetch(into->data + at, walk->view.record_bytes);
        status = take_record(walk, into->data + at, (size_t)(have - at), into);
        if (status == CMQ_ERR_NOT_FOUND) return pass_blank(walk);
        if (status == CMQ_AGAIN) {
            const int64_t wanted = bytes_wanted(into->data + at, have - at, left - at);
            if (wanted == 0) return end_at(walk, "longer than the log");
            bytes = at + wanted;
            continue;
        }
        if (status != CMQ_OK) return status;
        at += walk->view.record_bytes;
        walk->position += walk->view.record_bytes;
        into->count++;
    }
    return CMQ_OK;
}

/* ---- the ring ---- */

static void *read_ahead(void *argument)
{
    cmq_log_walk *walk = argument;
    for (bool more = true; more;) {
        pthread_mutex_lock(&walk->mutex);
        while (walk->filled - walk->taken == LOTS && !walk->stop) pthread_cond_wait(&walk->changed, &walk->mutex);
        more = !walk->stop;
        pthread_mutex_unlock(&walk->mutex);
        if (!more) break;
        lot *into = walk->lots[walk->filled % LOTS];   /* `filled` is changed here alone */
        into->status = read_lot(walk, into);
        if (into->status != CMQ_OK) into->error = *cmq_last_error();
        more = into->status == CMQ_OK;
        pthread_mutex_lock(&walk->mutex);
        walk->filled++;
        pthread_cond_broadcast(&walk->changed);
        pthread_mutex_unlock(&walk->mutex);
    }
    return NULL;
}

cmq_status cmq_log_walk_open(cmq_store *store, const cmq_log_walk_options *options, cmq_log_walk **walk_out)
{
    *walk_out = NULL;
    cmq_log_walk *walk = calloc(1, sizeof *walk);
    if (walk == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory to read the log");
    walk->store = store;
    walk->options = *options;
    walk->position = options->from;
    pthread_mutex_init(&walk->mutex, NULL);
    pthread_cond_init(&walk->changed, NULL);
    for (uint32_t i = 0; i < LOTS; i++) {
        walk->lots[i] = malloc(sizeof *walk->lots[i]);
        if (walk->lots[i] == NULL) {
            cmq_log_walk_close(walk);
            return cmq_fail(CMQ_ERR_MEMORY, "no memory to read the log");
        }
        walk->lots[i]->copy = NULL;
        walk->lots[i]->capacity = 0;
        walk->lots[i]->keys = (cmq_pending_keys){.count = 0};
    }
    *walk_out = walk;
    return CMQ_OK;
}

/* A thread when there is more than one lot: most openings read none, or little. Without one, here. */
static void fill_here(cmq_log_walk *walk)
{
    lot *into = walk->lots[walk->filled % LOTS];
    into->status = read_lot(walk, into);
    if (into->status != CMQ_OK) into->error = *cmq_last_error();
    walk->filled++;
    if (into->status == CMQ_OK && walk->filled > 1)
        walk->has_thread = pthread_create(&walk->thread, NULL, read_ahead, walk) == 0;
}

static const lot *wait_for_lot(cmq_log_walk *walk)
{
    if (!walk->has_thread && walk->filled == walk->taken) fill_here(walk);
    pthread_mutex_lock(&walk->mutex);
    while (walk->filled == walk->taken) pthread_cond_wait(&walk->changed, &walk->mutex);
    pthread_mutex_unlock(&walk->mutex);
    return walk->lots[walk->taken % LOTS];
}

static void give_back(cmq_log_walk *walk)
{
    if (!walk->lent) return;
    walk->lent = false;
    pthread_mutex_lock(&walk->mutex);
    walk->taken++;
    pthread_cond_broadcast(&walk->changed);
    pthread_mutex_unlock(&walk->mutex);
}

cmq_status cmq_log_walk_next(cmq_log_walk *walk, cmq_walklot *lot_out)
{
    *lot_out = (cmq_walklot){.count = 0};
    for (;;) {
        if (walk->ended) return CMQ_END;
        give_back(walk);
        const lot *from = wait_for_lot(walk);
        walk->lent = true;
        *lot_out = (cmq_walklot){.records = from->records,
                                 .count = from->count,
                                 .data = from->data,
                                 .first = from->first,
                                 .keys = from->keys.keys,
                                 .key_count = from->keys.count};
        if (from->status != CMQ_OK && from->status != CMQ_END)
            return cmq_fail(from->error.status, "%s", from->error.text);
        walk->ended = from->status == CMQ_END;
        if (from->count > 0) return CMQ_OK;
    }
}

int64_t cmq_log_walk_end(const cmq_log_walk *walk, const char **reason_out)
{
    CMQ_ASSERT(walk->ended);
    *reason_out = walk->reason;
    return walk->position;
}

void cmq_log_walk_close(cmq_log_walk *walk)
{
    if (walk == NULL) return;
    if (walk->has_thread) {
        pthread_mutex_lock(&walk->mutex);
        walk->stop = true;
        pthread_cond_broadcast(&walk->changed);
        pthread_mutex_unlock(&walk->mutex);
        pthread_join(walk->thread, NULL);
    }
    cmq_file_close(walk->file);
    for (uint32_t i = 0; i < LOTS; i++) {
        if (walk->lots[i] == NULL) continue;
        free(walk->lots[i]->copy);
        free(walk->lots[i]->keys.keys);
        free(walk->lots[i]);
    }
    pthread_cond_destroy(&walk->changed);
    pthread_mutex_destroy(&walk->mutex);
    free(walk);
}
