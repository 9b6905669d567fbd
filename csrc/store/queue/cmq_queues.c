/* cmq_queues: all queues of one store: their making, finding and deletion, and the memory of their tails. See
 * cmq_queue.h for the contract.
 *
 * Queues lie in blocks that never move and never go, so that a reader may keep a pointer: 64 queues in the first block,
 * twice as many in each next. A deleted queue stays as an empty one; its name gets a new queue when it is needed again.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/cmq_assert.h"
#include "store/queue/cmq_queue_file.h"
#include "store/queue/cmq_queue_internal.h"

#define DESCRIPTORS_DEFAULT 4096u
#define DESCRIPTORS_SHARE 4u           /* of the process's limit, at most this part */
#define DESCRIPTORS_MIN 64u
#define MAPS_DEFAULT 256u
#define TOPIC_BYTES_MAX 255
#define CACHE_LINE 64u
#define EXT_BYTES_MIN (CMQ_UNIT_BYTES + 4)

/* ---- life ---- */

/* As many descriptors as asked for; by default no more than a part of what the process may have, which is 1024 on many
 * machines. */
static uint32_t descriptors_of(uint32_t asked)
{
    struct rlimit limit;
    if (asked != 0) return asked;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur / DESCRIPTORS_SHARE >= DESCRIPTORS_DEFAULT)
        return DESCRIPTORS_DEFAULT;
    const uint32_t share = (uint32_t)(limit.rlim_cur / DESCRIPTORS_SHARE);
    return share < DESCRIPTORS_MIN ? DESCRIPTORS_MIN : share;
}

static cmq_status CMQ_MUST_CHECK check_options(const cmq_queues_options *options)
{
    const int64_t limit = INT32_MAX;   /* upstream's positions in a file are i32 */
    if (options->queue_file_bytes <= 0 || options->queue_file_bytes > limit ||
        options->queue_file_bytes % CMQ_UNIT_BYTES != 0)
        return cmq_fail(CMQ_ERR_SETTING,
                        "mappedFileSizeConsumeQueue is %" PRId64 "; a positive multiple of 20 up to 2^31 - 1 is needed",
                        options->queue_file_bytes);
    if (options->batch_file_bytes <= 0 || options->batch_file_bytes > limit ||
        options->batch_file_bytes % CMQ_BATCH_UNIT_BYTES != 0)
        return cmq_fail(CMQ_ERR_SETTING,
                        "mapperFileSizeBatchConsumeQueue is %" PRId64
                        "; a positive multiple of 46 up to 2^31 - 1 is needed",
                        options->batch_file_bytes);
    if (options->ext_file_bytes < EXT_BYTES_MIN || options->ext_file_bytes > limit)
        return cmq_fail(CMQ_ERR_SETTING, "mappedFileSizeConsumeQueueExt is %" PRId64 "; %d to 2^31 - 1 is needed",
                        options->ext_file_bytes, EXT_BYTES_MIN);
    return CMQ_OK;
}

static cmq_status CMQ_MUST_CHECK init_parts(cmq_queues *set, const cmq_queues_options *options)
{
    cmq_status status = cmq_queue_table_init(&set->table);
    set->root = strdup(options->root);
    set->pool = cmq_tail_pool_create();
    if (status == CMQ_OK && (set->root == NULL || set->pool == NULL))
        status = cmq_fail(CMQ_ERR_MEMORY, "no memory for the consume queues");
    if (status == CMQ_OK)
        status = cmq_file_cache_create(&set->files, options->fs, descriptors_of(options->descriptors_max), false);
    if (status == CMQ_OK)
        status = cmq_file_cache_create(&set->maps, options->fs,
                                      options->maps_max == 0 ? MAPS_DEFAULT : options->maps_max, true);
    return status;
}

cmq_status cmq_queues_create(cmq_queues **queues_out, const cmq_queues_options *options)
{
    *queues_out = NULL;
    cmq_status status = check_options(options);
    if (status != CMQ_OK) return status;
    cmq_queues *set = calloc(1, sizeof *set);
    if (set == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for the consume queues");
    set->fs = options->fs;
    set->read_only = options->read_only;
    set->ext_enabled = options->ext_enabled;
    set->log_min = options->log_min;
    atomic_init(&set->corrected_to, -1);
    set->file_bytes[CMQ_FOLDER_SIMPLE] = options->queue_file_bytes;
    set->file_bytes[CMQ_FOLDER_BATCH] = options->batch_file_bytes;
    set->file_bytes[CMQ_FOLDER_EXT] = options->ext_file_bytes;
    for (size_t i = 0; i < CMQ_QUEUE_LOCKS; i++) pthread_mutex_init(&set->locks[i], NULL);
    status = init_parts(set, options);
    if (status != CMQ_OK) {
        cmq_queues_destroy(set);
        return status;
    }
    *queues_out = set;
    return CMQ_OK;
}

void cmq_queues_destroy(cmq_queues *queues)
{
    if (queues == NULL) return;
    cmq_queues_forget_late(queues);   /* marks queues */
    cmq_queues_forget_lost_ends(queues);   /* likewise */
    for (uint32_t i = 0; i < cmq_queues_count(queues); i++) free(cmq_queues_at(queues, i)->more);
    for (size_t i = 0; i < CMQ_BLOCK_COUNT; i++) {
        cmq_queueblock *block = atomic_load(&queues->blocks[i]);
        if (block != NULL) free(block->memory);
    }
    while (queues->load_gaps != NULL) {
        cmq_queuegap *next = queues->load_gaps->next;
        free(queues->load_gaps);
        queues->load_gaps = next;
    }
    cmq_queues_end_reput(queues);
    cmq_file_cache_destroy(queues->maps);
    cmq_file_cache_destroy(queues->files);
    cmq_tail_pool_destroy(queues->pool);
    cmq_queue_table_free(&queues->table);
    for (size_t i = 0; i < CMQ_QUEUE_LOCKS; i++) pthread_mutex_destroy(&queues->locks[i]);
    free(queues->ends);
    cmq_queues_destroy(queues->aside);
    free(queues->root);
    free(queues);
}

/* ---- the table ---- */

cmq_queueblock *cmq_queues_block(const cmq_queues *queues, uint32_t index, uint32_t *inside_out)
{
    const uint32_t number = 31u - (uint32_t)__builtin_clz(index / CMQ_BLOCK_FIRST + 1);
    *inside_out = index - CMQ_BLOCK_FIRST * ((1u << number) - 1);
    return number >= CMQ_BLOCK_COUNT ? NULL : atomic_load_explicit(&queues->blocks[number], memory_order_acquire);
}

uint32_t cmq_queues_count(const cmq_queues *queues)
{
    return atomic_load_explicit(&queues->count, memory_order_acquire);
}

cmq_queue *cmq_queues_at(const cmq_queues *queues, uint32_t index)
{
    uint32_t inside;
    if (index >= cmq_queues_count(queues)) return NULL;
    return &cmq_queues_block(queues, index, &inside)->queues[inside];
}

cmq_queue *cmq_queues_find(const cmq_queues *queues, cmq_slice topic, int32_t queue_id)
{
    cmq_queue *found = cmq_queue_table_find(&queues->table, topic, queue_id);
    return found == NULL || cmq_queue_deleted(found) ? NULL : found;
}

void cmq_queue_mark_unsynced(cmq_queue *queue)
{
    uint32_t inside;
    const cmq_queueblock *block = cmq_queues_block(queue->set, queue->index, &inside);
    atomic_store_explicit(&block->unsynced[inside], 1, memory_order_release);
}

/* The memory of a block in one piece: the struct, the queues on cache lines, the marks. Zero pages that nobody touched
 * cost nothing. */
static cmq_status CMQ_MUST_CHECK make_block(cmq_queues *set, uint32_t number)
{
    const size_t count = (size_t)CMQ_BLOCK_FIRST << number;
    const size_t each = sizeof(cmq_queue) + sizeof(cmq_queue_begin) + 2;
    const size_t bytes = sizeof(cmq_queueblock) + CACHE_LINE + count * each;
    uint8_t *memory = calloc(1, bytes);
    if (memory == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for %zu more queues", count);
    cmq_queueblock *block = (cmq_queueblock *)(void *)memory;
    const uintptr_t after = (uintptr_t)(memory + sizeof *block);
    uint8_t *lines = memory + sizeof *block + (CACHE_LINE - after % CACHE_LINE) % CACHE_LINE;
    block->memory = memory;
    block->queues = (cmq_queue *)(void *)lines;
    block->begins = (cmq_queue_begin *)(void *)(lines + count * sizeof(cmq_queue));
    block->dirty = (_Atomic uint8_t *)(block->begins + count);
    block->unsynced = block->dirty + count;
    atomic_store_explicit(&set->blocks[number], block, memory_order_release);
    return CMQ_OK;
}

static uint32_t words_of(const cmq_queues *set, cmq_queue_kind kind, const cmq_queuetopic *topic)
{
    if (kind == CMQ_QUEUE_BATCH) return CMQ_BATCH_WORDS;
    return set->ext_enabled && !set->read_only && !topic->lmq ? CMQ_QUEUE_EXT_WORDS : CMQ_QUEUE_WORDS;
}

static cmq_status CMQ_MUST_CHECK make_more(const cmq_queues *set, cmq_queue_kind kind, const cmq_queuetopic *topic,
                                           void **more_out)
{
    *more_out = NULL;
    if (kind == CMQ_QUEUE_BATCH) {
        *more_out = calloc(1, sizeof(cmq_batch_queue));
    } else if ((set->ext_enabled || set->ext_seen) && !topic->lmq) {
        cmq_queue_extension *ext = calloc(1, sizeof *ext);
        if (ext != NULL) ext->files = CMQ_QUEUEFILES_NONE;
        *more_out = ext;
    } else {
        return CMQ_OK;
    }
    return *more_out == NULL ? cmq_fail(CMQ_ERR_MEMORY, "no memory for a queue") : CMQ_OK;
}

cmq_status cmq_queues_add(cmq_queues *queues, cmq_slice topic, int32_t queue_id, cmq_queue_kind kind,
                          cmq_queue **queue_out)
{
    const uint32_t index = cmq_queues_count(queues);
    const cmq_queuetopic *name;
    uint32_t inside;
    cmq_status status = cmq_queue_table_topic(&queues->table, topic, &name);
    if (status != CMQ_OK) return status;
    if (index >= CMQ_BLOCK_FIRST * ((1u << CMQ_BLOCK_COUNT) - 1))
        return cmq_fail(CMQ_ERR_LIMIT, "there are %u queues already", index);
    cmq_queueblock *block = cmq_queues_block(queues, index, &inside);
    if (block == NULL) {
        status = make_block(queues, 31u - (uint32_t)__builtin_clz(index / CMQ_BLOCK_FIRST + 1));
        if (status != CMQ_OK) return status;
        block = cmq_queues_block(queues, index, &inside);
    }
    cmq_queue *queue = &block->queues[inside];
    *queue = (cmq_queue){.tail = {.kind = (uint8_t)kind, .unit_words = (uint8_t)words_of(queues, kind, name)},
                         .dirty = &block->dirty[inside],
                         .set = queues,
                         .topic = name,
                         .id = queue_id,
                         .index = index,
                         .files = CMQ_QUEUEFILES_NONE};
    status = make_more(queues, kind, name, &queue->more);
    if (status != CMQ_OK) return status;
    /* Counted before it can be found, so that its index is valid for every finder. */
    atomic_store_explicit(&queues->count, index + 1, memory_order_release);
    status = cmq_queue_table_put(&queues->table, queue);
    if (status != CMQ_OK) {
        atomic_fetch_or_explicit(&queue->tail.marks, CMQ_MARK_DELETED, memory_order_release);
        return status;
    }
    *queue_out = queue;
    return CMQ_OK;
}

static cmq_status CMQ_MUST_CHECK check_name(cmq_slice topic, int32_t queue_id)
{
    if (topic.bytes == 0 || topic.bytes > TOPIC_BYTES_MAX)
        return cmq_fail(CMQ_ERR_TOPIC, "a topic name has 1 to %d bytes, not %zu", TOPIC_BYTES_MAX, topic.bytes);
    for (size_t i = 0; i < topic.bytes; i++)
        if (topic.data[i] == '/' || topic.data[i] == '\0')
            return cmq_fail(CMQ_ERR_TOPIC, "a topic name has no '/' and no byte 0");
    if ((topic.bytes == 1 && topic.data[0] == '.') ||
        (topic.bytes == 2 && topic.data[0] == '.' && topic.data[1] == '.'))
        return cmq_fail(CMQ_ERR_TOPIC, "\".\" and \"..\" are not topic names");
    if (queue_id < 0) return cmq_fail(CMQ_ERR_ARGUMENT, "queue id %" PRId32 " is negative", queue_id);
    return CMQ_OK;
}

cmq_status cmq_queues_require(cmq_queues *queues, cmq_slice topic, int32_t queue_id, cmq_queue_kind kind,
                              cmq_queue **queue_out)
{
    *queue_out = cmq_queues_find(queues, topic, queue_id);
    if (*queue_out != NULL) {
        if (cmq_queue_kind_of(*queue_out) == kind) return CMQ_OK;
        *queue_out = NULL;
        return cmq_fail(
            CMQ_ERR_SETTING, "queue %.*s/%" PRId32 " exists as a %s queue; its topic's queue.type says otherwise",
            (int)topic.bytes, (const char *)topic.data, queue_id, kind == CMQ_QUEUE_BATCH ? "simple" : "batch");
    }
    const cmq_status status = check_name(topic, queue_id);
    return status != CMQ_OK ? status : cmq_queues_add(queues, topic, queue_id, kind, queue_out);
}

int64_t cmq_queues_gaps(const cmq_queues *queues) { return queues->gaps; }

void cmq_queues_set_watches(cmq_queues *queues, cmq_watches *watches) { queues->watches = watches; }

/* Every bit of the result depends on every bit of `x` (the finalizer of splitmix64). */
static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    return x ^ (x >> 31);
}

uint64_t cmq_queues_fingerprint_part(uint32_t topic_seed, int32_t queue_id, cmq_queue_kind kind, int64_t units)
{
    const uint64_t name = (uint64_t)topic_seed << 32 | (uint32_t)queue_id;
    return mix(mix(name + (uint64_t)kind) ^ (uint64_t)units);
}

uint64_t cmq_queues_fingerprint(const cmq_queues *queues, int64_t confirmed_end)
{
    return cmq_queues_fingerprint_without(queues, confirmed_end, NULL, NULL);
}

uint64_t cmq_queues_fingerprint_without(const cmq_queues *queues, int64_t confirmed_end,
                                        bool (*without)(void *context, const cmq_queue *queue), void *context)
{
    uint64_t sum = 0;   /* in any order: files are listed in another one than queues are made in */
    for (uint32_t i = 0; i < cmq_queues_count(queues); i++) {
        cmq_queue *queue = cmq_queues_at(queues, i);
        if (cmq_queue_deleted(queue) || atomic_load_explicit(&queue->last_end, memory_order_acquire) == 0) continue;
        const int64_t units = cmq_queue_visible(queue, confirmed_end);
        if (units == 0 || (without != NULL && without(context, queue))) continue;
        sum += cmq_queues_fingerprint_part(cmq_queue_index_seed(queue), queue->id, cmq_queue_kind_of(queue), units);
    }
    return sum;
}

bool cmq_queues_flush_wanted(const cmq_queues *queues)
{
    return atomic_load_explicit(&queues->flush_wanted, memory_order_acquire);
}

void cmq_queues_reopen_files(cmq_queues *queues)
{
    cmq_file_cache_drop_all(queues->files);
    cmq_file_cache_drop_all(queues->maps);
}

/* ---- cold tails ---- */

/* Take the ring of a queue that is flushed and was not touched since the last look. */
static void cool(cmq_queue *queue)
{
    if (atomic_load_explicit(&queue->tail.ring, memory_order_relaxed) == NULL) return;
    const bool hot = (queue->tail.heat & CMQ_HEAT_TOUCHED) != 0;
    const int64_t next = cmq_queue_tail_next(&queue->tail);
    queue->tail.heat &= (uint8_t)~CMQ_HEAT_TOUCHED;
    if (hot || cmq_queue_tail_flushed(&queue->tail) != next) return;
    cmq_queue_lock(queue);
    cmq_tailring *old = cmq_queue_tail_replace(&queue->tail, NULL);
    cmq_queue_unlock(queue);
    cmq_tail_pool_give(queue->set->pool, old);
    queue->room_until = next;
}

void cmq_queues_begin_turn(cmq_queues *queues) { queues->turn = (uint8_t)(queues->turn + CMQ_HEAT_NEXT_TURN); }

void cmq_queues_cool(cmq_queues *queues, uint32_t look_at)
{
    const uint32_t count = cmq_queues_count(queues);
    for (uint32_t i = 0; i < look_at && i < count && cmq_tail_pool_used_bytes(queues->pool) > CMQ_TAIL_BYTES_SOFT / 2;
         i++) {
        if (queues->trim_hand >= count) queues->trim_hand = 0;
        cmq_queue *queue = cmq_queues_at(queues, queues->trim_hand++);
        if ((queue->tail.heat & CMQ_HEAT_TURN) != queues->turn) cool(queue);
    }
}

void cmq_queues_trim(cmq_queues *queues)
{
    const uint32_t count = cmq_queues_count(queues);
    if (cmq_tail_pool_used_bytes(queues->pool) == 0) return;
    for (uint32_t i = 0; i < count; i++) cool(cmq_queues_at(queues, i));
}
