/* cmq_store: open, close, and queries. See cmq_store.h for the promises and cmq_store_internal.h for the map of the
 * files.
 *
 * Opening for writing: lock, look (cmq_layout), load log, queues and index, recover, mark `abort`, publish, start the
 * threads. Opening read-only: the same without lock, marks and threads; recovery changes the view in memory instead of
 * files.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/cmq_assert.h"
#include "base/cmq_crc32.h"
#include "store/cmq_store_internal.h"
#include "store/marks/cmq_abort.h"
#include "store/cmq_store_paths.h"

#define FINGERPRINT_BYTES 88u
#define VIEW_ATTEMPTS 16   /* of opening read-only while writers come and go */

/* ---- settings ---- */

static cmq_status take_options(cmq_store *store, const cmq_store_options *options, cmq_store_paths *paths)
{
    store->options = *options;
    store->fs = options->fs != NULL ? options->fs : cmq_fs_posix();
    store->clock = options->clock.now_ms != NULL ? options->clock : cmq_clock_system();
    cmq_status status = cmq_store_paths_resolve(paths, store->fs, &store->options);
    if (status != CMQ_OK) return status;
    memcpy(store->root, paths->root, sizeof store->root);
    store->options.path = store->root;
    if (store->options.body_bytes_max == 0) store->options.body_bytes_max = CMQ_BODY_BYTES_DEFAULT;
    if (store->options.body_bytes_max > (1u << 30))
        return cmq_fail(CMQ_ERR_SETTING, "maxMessageSize is %u, at most 1 GiB is allowed", options->body_bytes_max);
    store->record_bytes_max = store->options.body_bytes_max + CMQ_RECORD_SLACK_BYTES;
    if (store->options.durable_point_bytes == 0) store->options.durable_point_bytes = INT64_C(256) << 20;
    if (store->options.durable_point_ms == 0) store->options.durable_point_ms = 10000;
    const char *levels = options->delay_levels != NULL ? options->delay_levels : CMQ_DELAY_LEVELS_DEFAULT;
    status = cmq_delay_levels_parse(cmq_slice_of_text(levels), &store->delays);
    for (uint32_t i = 0; status == CMQ_OK && i < options->batch_topic_count; i++)
        status = cmq_store_set_batch_topic(store, cmq_slice_of_text(options->batch_topics[i]));
    return status;
}

cmq_status cmq_store_set_batch_topic(cmq_store *store, cmq_slice topic)
{
    cmq_status status = CMQ_OK;
    pthread_mutex_lock(&store->writer_mutex);
    for (uint32_t i = 0; i < store->batch_topic_count; i++)
        if (cmq_slice_equal(topic, cmq_slice_of_text(store->batch_topics[i]))) goto done;
    if (store->batch_topic_count == CMQ_BATCH_TOPICS_MAX) {
        status = cmq_fail(CMQ_ERR_LIMIT, "more than %d topics with queue.type=BatchCQ", CMQ_BATCH_TOPICS_MAX);
        goto done;
    }
    char *copy = strndup((const char *)topic.data, topic.bytes);
    if (copy == NULL) status = cmq_fail(CMQ_ERR_MEMORY, "no memory for a topic name");
    else store->batch_topics[store->batch_topic_count++] = copy;
done:
    pthread_mutex_unlock(&store->writer_mutex);
    return status;
}

/* ---- the parts ---- */

static cmq_status check_directory(cmq_store *store, const cmq_layout *layout)
{
    if (layout->is_store) return CMQ_OK;
    if (layout->exists && !layout->is_empty)
        return cmq_fail(
            CMQ_ERR_NOT_STORE,
            "%s is not a RocketMQ store: it has neither commitlog nor consumequeue nor checkpoint, and is not empty",
            store->root);
    if (store->options.read_only)
        return cmq_fail(CMQ_ERR_NOT_FOUND, "there is no store in %s: check the path", store->root);
    if (!store->options.create)
        return cmq_fail(CMQ_ERR_NOT_FOUND,
                        "there is no store in %s: check the path, or open it for writing with create, which makes one",
                        store->root);
    store->opening.created = true;
    return cmq_fs_make_directory(store->fs, store->root);
}

static cmq_status create_log(cmq_store *store)
{
    char path[CMQ_PATH_BYTES];
    cmq_status status = cmq_path_join(path, store->root, "commitlog");
    if (status != CMQ_OK) return status;
    const char *const own[1] = {path};
    const bool given = store->options.commitlog_path_count > 0;
    cmq_log_options options = {
        .fs = store->fs,
        .paths = given ? store->options.commitlog_paths : own,
        .path_count = given ? store->options.commitlog_path_count : 1,
        .segment_bytes = store->sizes.segment_bytes,
        .read_only = store->options.read_only,
        .staged = store->options.flush == CMQ_FLUSH_SYNC && !store->options.read_only,
        .record_bytes_max = store->record_bytes_max,
    };
    if (!store->options.read_only)
        for (uint32_t i = 0; i < options.path_count && status == CMQ_OK; i++)
            status = cmq_fs_make_directory(store->fs, options.paths[i]);
    if (status == CMQ_OK) status = cmq_log_create(&store->log, &options);
    if (status == CMQ_OK) status = cmq_log_load(store->log);
    return status;
}

/* Blocks are reserved before they are written, which covers no overwrite where that needs new blocks: there a full disk
 * ends the process (docs/decisions/0029). */
static cmq_status learn_overwrites(cmq_store *store)
{
    cmq_store_opening *opening = &store->opening;
    const int64_t last = cmq_log_last_file_end(store->log) - cmq_log_segment_bytes(store->log);
    const uint32_t folders = cmq_log_path_count(store->log);
    cmq_status status = CMQ_OK;
    for (uint32_t i = 0; i < folders + 2 && status == CMQ_OK && opening->overwritten[0] == '\0'; i++) {
        char segment[CMQ_PATH_BYTES];
        const char *path = i < folders ? cmq_log_path(store->log, i) : store->root;
        if (i > folders) {   /* the last segment: it is written on */
            if (last < cmq_log_min(store->log) || cmq_log_path_of(store->log, last, segment) != CMQ_OK) break;
            path = segment;
        }
        status = cmq_fs_overwrites(store->fs, path, &opening->overwrites);
        if (status == CMQ_OK && opening->overwrites != CMQ_OVERWRITES_IN_PLACE)
            snprintf(opening->overwritten, sizeof opening->overwritten, "%s", path);
    }
    return status;
}

static int64_t log_min_now(void *context) { return cmq_log_min_now(((cmq_store *)context)->log); }

static cmq_status create_queues(cmq_store *store)
{
    const cmq_queues_options options = {
        .fs = store->fs,
        .root = store->root,
        .read_only = store->options.read_only,
        .queue_file_bytes = store->sizes.queue_file_bytes,
        .batch_file_bytes = store->sizes.batch_file_bytes,
        .ext_file_bytes = store->sizes.ext_file_bytes,
        .ext_enabled = store->options.ext_enabled,
        .log_min = {.of = log_min_now, .context = store},
    };
    cmq_status status = cmq_queues_create(&store->queues, &options);
    if (status == CMQ_OK) status = cmq_queues_load(store->queues);
    return status;
}

static cmq_status create_index(cmq_store *store)
{
    if (store->options.index_disabled) return CMQ_OK;
    const cmq_index_options options = {
        .fs = store->fs,
        .root = store->root,
        .read_only = store->options.read_only,
        .slots = store->sizes.index_slots,
        .entries = store->sizes.index_entries,
        .clock = store->clock,
    };
    cmq_status status = cmq_index_create(&store->index, &options);
    if (status == CMQ_OK) status = cmq_index_load(store->index);
    return status;
}

static cmq_status open_writer(cmq_store *store, const cmq_layout *layout)
{
    cmq_status status = cmq_store_recover(store, layout);
    if (status == CMQ_OK) status = cmq_watches_create(&store->watches, store->log);
    if (status == CMQ_OK) cmq_queues_set_watches(store->queues, store->watches);
    if (status == CMQ_OK) status = cmq_abort_create(store->fs, store->root, getpid());
    if (status != CMQ_OK) return status;
    const cmq_follow_values values = {
        .now_ms = cmq_clock_now_ms(&store->clock),
        .confirmed_end = cmq_log_confirmed(store->log),
        .files_end = store->durable_end,
        .log_min = cmq_log_min(store->log),
        .synced = store->options.flush == CMQ_FLUSH_SYNC,
    };
    cmq_follow_begin(store->follow, &values);
    if (store->options.background) status = cmq_store_start_threads(store);
    return status;
}

static cmq_status open_parts(cmq_store *store)
{
    cmq_layout layout;
    const cmq_layout_sizes given = {
        .segment_bytes = store->options.segment_bytes,
        .queue_file_bytes = store->options.queue_file_bytes,
        .batch_file_bytes = store->options.batch_file_bytes,
        .ext_file_bytes = store->options.ext_file_bytes,
        .index_slots = store->options.index_slots,
        .index_entries = store->options.index_entries,
    };
    cmq_status status = cmq_layout_probe(store->fs, store->root, &given, &layout);
    if (status == CMQ_OK) status = check_directory(store, &layout);
    if (status != CMQ_OK) return status;
    store->sizes = layout.sizes;
    if (!store->options.read_only) {
        char path[CMQ_PATH_BYTES];
        status = cmq_path_join(path, store->root, "lock");
        if (status == CMQ_OK) status = cmq_lock_acquire(store->fs, path, &store->lock);
        /* Before anything else: followers of the writer before must not read what recovery is changing. */
        if (status == CMQ_OK) status = cmq_follow_take(store->fs, store->root, &store->follow);
        bool finished;
        if (status == CMQ_OK)
            status = cmq_repair_finish(store->fs, store->root, store->options.commitlog_paths,
                                       store->options.commitlog_path_count, &finished);
        /* The state before the lock may have been the last writer's: look again. */
        if (status == CMQ_OK) status = cmq_layout_probe(store->fs, store->root, &given, &layout);
        store->sizes = layout.sizes;
    }
    if (status == CMQ_OK)
        status = store->options.read_only ? cmq_store_begin_view(store)
                                          : cmq_checkpoint_load(store->fs, store->root, &store->checkpoint);
    if (status == CMQ_OK) status = create_log(store);
    if (status == CMQ_OK && !store->options.read_only) status = learn_overwrites(store);
    if (status == CMQ_OK) status = create_queues(store);
    if (status == CMQ_OK) status = create_index(store);
    if (status != CMQ_OK) return status;
    return store->options.read_only ? cmq_store_follow(store, &layout) : open_writer(store, &layout);
}

/* ---- life ---- */

static void init_locks(cmq_store *store)
{
    pthread_mutex_init(&store->writer_mutex, NULL);
    pthread_mutex_init(&store->commit_mutex, NULL);
    for (int i = 0; i < 2; i++) pthread_cond_init(&store->group_done[i], NULL);
    pthread_cond_init(&store->leader_gone, NULL);
    pthread_mutex_init(&store->index_mutex, NULL);
    pthread_mutex_init(&store->maintain_mutex, NULL);
    pthread_mutex_init(&store->wake_mutex, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&store->wake, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_mutex_init(&store->refresh_mutex, NULL);
}

static void destroy_locks(cmq_store *store)
{
    pthread_mutex_destroy(&store->writer_mutex);
    pthread_mutex_destroy(&store->commit_mutex);
    for (int i = 0; i < 2; i++) pthread_cond_destroy(&store->group_done[i]);
    pthread_cond_destroy(&store->leader_gone);
    pthread_mutex_destroy(&store->index_mutex);
    pthread_mutex_destroy(&store->maintain_mutex);
    pthread_mutex_destroy(&store->wake_mutex);
    pthread_cond_destroy(&store->wake);
    pthread_mutex_destroy(&store->refresh_mutex);
}

static void free_store(cmq_store *store)
{
    cmq_follow_destroy(store->follow);
    free(store->watch);
    cmq_watches_destroy(store->watches);
    cmq_durable_point_close(store->points);
    cmq_index_destroy(store->index);
    cmq_queues_destroy(store->queues);
    cmq_log_close(store->log, false);
    cmq_lock_release(store->lock);
    for (uint32_t i = 0; i < store->batch_topic_count; i++) free(store->batch_topics[i]);
    for (int i = 0; i < 2; i++) free(store->pending[i].keys);
    /* In a forked child threads that do not exist there seem to wait on the conditions: destroying one would wait for
     * them for ever. */
    if (store->pid == getpid()) destroy_locks(store);
    free(store);
}

static int64_t monotonic_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

/* *again_out: a view whose parts may be of different moments. */
static cmq_status open_once(cmq_store **store_out, const cmq_store_options *options, bool *again_out)
{
    cmq_store *store = calloc(1, sizeof *store);
    if (store == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for a store");
    init_locks(store);
    store->pid = getpid();
    store->last_phy = -1;
    atomic_init(&store->found_from, -1);
    atomic_init(&store->confirmed_last_phy, -1);
    cmq_store_paths paths;
    cmq_status status = take_options(store, options, &paths);
    if (status == CMQ_OK) status = open_parts(store);
    cmq_store_paths_free(&paths);
    /* Borrowed for the call only. */
    store->options.commitlog_paths = NULL;
    store->options.batch_topics = NULL;
    store->options.delay_levels = NULL;
    *again_out = store->view_disturbed;
    if (status != CMQ_OK || store->view_disturbed) {
        cmq_store_stop_threads(store);
        free_store(store);
        return status;
    }
    *store_out = store;
    return CMQ_OK;
}

cmq_status cmq_store_open(cmq_store **store_out, const cmq_store_options *options)
{
    const int64_t began = monotonic_us();
    bool again = true;
    cmq_status status = CMQ_OK;
    *store_out = NULL;
    for (int attempt = 0; again && attempt < VIEW_ATTEMPTS; attempt++) status = open_once(store_out, options, &again);
    if (again)
        return cmq_fail(CMQ_ERR_CLOSED, "writers came and went each of the %d times that %s was opened; open it again",
                        VIEW_ATTEMPTS, options->path);
    if (status == CMQ_OK) (*store_out)->opening.elapsed_us = monotonic_us() - began;
    return status;
}

static cmq_status close_writer(cmq_store *store)
{
    cmq_store_stop_threads(store);
    cmq_status status = CMQ_OK;
    if (!atomic_load_explicit(&store->fenced, memory_order_acquire)) status = cmq_store_flush(store);
    else status = cmq_store_fail_fenced(store);
    if (status == CMQ_OK) {
        pthread_mutex_lock(&store->maintain_mutex);
        status = cmq_store_durable_point(store, true);
        pthread_mutex_unlock(&store->maintain_mutex);
    }
    if (store->follow != NULL) cmq_follow_close(store->follow);
    const bool clean = status == CMQ_OK;
    cmq_log_close(store->log, clean);
    store->log = NULL;
    if (clean) status = cmq_abort_remove(store->fs, store->root);
    return status;
}

cmq_status cmq_store_close(cmq_store *store)
{
    if (store == NULL) return CMQ_OK;
    CMQ_ASSERT(store->pid == getpid());
    CMQ_ASSERT(!cmq_watches_any(store->watches));
    const cmq_status status = store->options.read_only ? CMQ_OK : close_writer(store);
    free_store(store);
    return status;
}

void cmq_store_abandon(cmq_store *store)
{
    if (store == NULL) return;
    /* In a forked child the threads do not exist, and the mutexes may be held by ones that do not: nothing is locked or
     * destroyed here but memory, mappings and descriptors. */
    if (store->pid == getpid()) cmq_store_stop_threads(store);
    cmq_index_abandon(store->index);
    store->index = NULL;
    free_store(store);
}

void cmq_store_opening_of(const cmq_store *store, cmq_store_opening *opening_out) { *opening_out = store->opening; }

/* ---- contents ---- */

const cmq_queues *cmq_store_queues(const cmq_store *store) { return store->queues; }
int64_t cmq_store_confirmed(const cmq_store *store) { return cmq_log_confirmed(store->log); }
const char *cmq_store_root(const cmq_store *store) { return store->root; }
cmq_fs *cmq_store_fs(const cmq_store *store) { return store->fs; }
const cmq_delay_levels *cmq_store_delay_levels(const cmq_store *store) { return &store->delays; }

static cmq_status learn_writer(cmq_store *store, cmq_store_info *info_out)
{
    char path[CMQ_PATH_BYTES];
    int64_t holder;
    cmq_status status = cmq_path_join(path, store->root, "lock");
    if (status == CMQ_OK) status = cmq_lock_probe(store->fs, path, &holder);
    if (status != CMQ_OK) return status;
    info_out->writer_alive = holder != CMQ_LOCK_FREE;
    info_out->writer_is_ours = info_out->writer_alive &&
                               (store->source == CMQ_FOLLOW_SOURCE_PAGE || store->source == CMQ_FOLLOW_SOURCE_OPENING);
    return CMQ_OK;
}

static uint32_t count_queues(const cmq_queues *queues)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < cmq_queues_count(queues); i++) {
        const cmq_queue *queue = cmq_queues_at(queues, i);
        count += !cmq_queue_deleted(queue) && cmq_queue_begun(queue);
    }
    return count;
}

bool cmq_store_is_fenced(const cmq_store *store) { return atomic_load_explicit(&store->fenced, memory_order_acquire); }

/* Async: the records that recovery found are on disk with the first flush. */
static int64_t flushed_of(const cmq_store *store)
{
    const int64_t found_from = atomic_load_explicit(&store->found_from, memory_order_acquire);
    return found_from >= 0 ? found_from : cmq_log_flushed(store->log);
}

cmq_status cmq_store_info_of(cmq_store *store, cmq_store_info *info_out)
{
    *info_out = (cmq_store_info){
        .read_only = store->options.read_only,
        .fenced = atomic_load_explicit(&store->fenced, memory_order_acquire),
        .disk_full = cmq_store_is_full(store),
        .log_min = cmq_log_min(store->log),
        .log_end = cmq_log_confirmed(store->log),
        .flushed = flushed_of(store),
        .segment_bytes = store->sizes.segment_bytes,
        .queue_file_bytes = store->sizes.queue_file_bytes,
        .batch_file_bytes = store->sizes.batch_file_bytes,
        .ext_file_bytes = store->sizes.ext_file_bytes,
        .index_slots = store->sizes.index_slots,
        .index_entries = store->sizes.index_entries,
        .store_timestamp_ms = atomic_load_explicit(&store->confirmed_ms, memory_order_relaxed),
        .queue_count = count_queues(store->queues),
        .flush = store->options.flush,
    };
    return store->options.read_only ? learn_writer(store, info_out) : CMQ_OK;
}

/* ---- records by position ---- */

cmq_status cmq_store_fail_lost(const cmq_store *store, const uint8_t *data, size_t available, int64_t phy)
{
    cmq_record_head head;
    size_t bytes = available < CMQ_RECORD_BYTES_MIN ? available : CMQ_RECORD_BYTES_MIN;
    if (!cmq_map_guard_is_lost(data, bytes) && cmq_record_peek(data, available, &head) == CMQ_OK)
        bytes = head.record_bytes;
    if (!cmq_map_guard_is_lost(data, bytes)) return CMQ_OK;
    char path[CMQ_PATH_BYTES] = "";
    const int64_t segment_bytes = cmq_log_segment_bytes(store->log);
    if (cmq_log_path_of(store->log, phy - phy % segment_bytes, path) != CMQ_OK) path[0] = '\0';
    return cmq_fail_at(CMQ_ERR_CORRUPT, phy,
                       "the bytes at physical offset %lld cannot be read: a bad sector in %s, or the file was cut. Run "
                       "`cometmq verify`",
                       (long long)phy, path);
}

cmq_status cmq_store_record_at(cmq_store *store, int64_t phy, int64_t limit, unsigned checks, cmq_segment **segment_out,
                               cmq_record_view *view_out)
{
    const uint8_t *data;
    size_t available;
    *segment_out = NULL;
    cmq_status status = cmq_log_pin(store->log, phy, segment_out, &data, &available);
    if (status != CMQ_OK) return status;
    if (limit - phy < (int64_t)available) available = limit > phy ? (size_t)(limit - phy) : 0;
    status = cmq_record_parse(data, available, phy, checks, view_out);
    const cmq_status lost = cmq_store_check_lost(store, data, available, phy);
    if (lost != CMQ_OK) status = lost;
    if (status != CMQ_OK) {
        cmq_segment_unpin(*segment_out);
        *segment_out = NULL;
    }
    return status;
}

bool cmq_store_fingerprint(cmq_store *store, int64_t phy, int32_t *bytes_out, uint32_t *crc_out)
{
    cmq_segment *segment;
    const uint8_t *data;
    size_t available;
    cmq_record_head head;
    *bytes_out = 0;
    *crc_out = 0;
    if (phy < 0 || cmq_log_pin(store->log, phy, &segment, &data, &available) != CMQ_OK) return false;
    const bool sound = cmq_record_peek(data, available, &head) == CMQ_OK && head.physical_offset == phy &&
                       head.record_bytes >= FINGERPRINT_BYTES;
    if (sound) {
        *bytes_out = (int32_t)head.record_bytes;
        *crc_out = cmq_crc32(data, FINGERPRINT_BYTES);
    }
    cmq_segment_unpin(segment);
    return sound;
}

/* ---- topics ---- */

static bool is_of_topic(void *context, const cmq_queue *queue)
{
    const cmq_slice topic = {.data = (const uint8_t *)cmq_queue_topic(queue), .bytes = cmq_queue_topic_bytes(queue)};
    return cmq_slice_equal(topic, *(const cmq_slice *)context);
}

/* maintain_mutex held: no flush may be writing the queues' files. */
static cmq_status delete_topic(cmq_store *store, cmq_slice topic)
{
    cmq_status status = cmq_store_point_before(store, is_of_topic, &topic);
    if (status != CMQ_OK) return status;
    pthread_mutex_lock(&store->writer_mutex);
    cmq_store_announce(store, &topic);
    status = cmq_queues_delete_topic(store->queues, topic);
    cmq_store_announced(store);
    const bool more = cmq_log_end(store->log) > store->durable_end;
    pthread_mutex_unlock(&store->writer_mutex);
    cmq_watches_notify(store->watches);
    /* Recovery must not replay records appended to the topic in between: that would bring it back. */
    if (status == CMQ_OK && more && !atomic_load_explicit(&store->fenced, memory_order_acquire))
        status = cmq_store_durable_point(store, false);
    return status;
}

cmq_status cmq_store_delete_topic(cmq_store *store, cmq_slice topic)
{
    if (store->options.read_only) return cmq_fail(CMQ_ERR_READ_ONLY, "the store was opened read-only");
    /* Messages appended without waiting lie before the deletion: committed after it, they would bring the topic back in
     * recovery. */
    cmq_status status = cmq_store_flush(store);
    if (status != CMQ_OK) return status;
    pthread_mutex_lock(&store->maintain_mutex);
    status = delete_topic(store, topic);
    pthread_mutex_unlock(&store->maintain_mutex);
    cmq_store_wake_thread(store);   /* files to remove */
    return status;
}
