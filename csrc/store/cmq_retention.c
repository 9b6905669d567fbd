/* cmq_retention: which old segments go, when, and what goes with them.
 *
 * A round deletes from the oldest segment on, never the last: those that are due by age, in the hours of the day given
 * or when the disk is fuller than max_used_ratio; and above force_ratio the oldest whatever their age. Then the queues'
 * and the index's files follow, and min offsets rise.
 *
 * Invariant: nothing is deleted unless retention was asked for, or cmq_store_expire was called.
 * Threads:   maintain_mutex; readers that pinned a segment keep it.
 * Source:    upstream's CleanCommitLogService, CleanConsumeQueueService; spec store 7. Age goes by the file's
 *            modification time, as upstream.
 */
#include <time.h>

#include "store/cmq_store_internal.h"

#define FILES_PER_ROUND_DEFAULT 10u

typedef struct pressure {
    bool disk;      /* above max_used_ratio: due segments go at any hour */
    bool forced;    /* above force_ratio: the oldest go, due or not */
    bool refuse;    /* above warning_ratio: appends are refused */
    double ratio;
} pressure;

/* Raise *ratio to the used share of the disk that holds `path`. */
static cmq_status CMQ_MUST_CHECK add_disk(cmq_store *store, const char *path, double *ratio)
{
    cmq_disk_space space;
    const cmq_status status = cmq_fs_disk_space(store->fs, path, &space);
    if (status != CMQ_OK) return status;
    const double share = cmq_disk_used_ratio(&space);
    if (share > *ratio) *ratio = share;
    return CMQ_OK;
}

/* The fullest disk counts: segments go to the log's directories in turn, so one that is full stops appends. The root
 * has queues and index. */
static cmq_status measure_pressure(cmq_store *store, pressure *pressure_out)
{
    const cmq_retention *retention = &store->options.retention;
    double ratio = 0.0;
    *pressure_out = (pressure){0};
    cmq_status status = add_disk(store, store->root, &ratio);
    for (uint32_t i = 0; i < cmq_log_path_count(store->log) && status == CMQ_OK; i++)
        status = add_disk(store, cmq_log_path(store->log, i), &ratio);
    if (status != CMQ_OK) return status;
    pressure_out->ratio = ratio;
    pressure_out->disk = retention->max_used_ratio > 0 && ratio > retention->max_used_ratio;
    pressure_out->forced = retention->force_ratio > 0 && ratio > retention->force_ratio;
    pressure_out->refuse = retention->warning_ratio > 0 && ratio > retention->warning_ratio;
    return CMQ_OK;
}

static void report_pressure(cmq_store *store, const pressure *now)
{
    pthread_mutex_lock(&store->wake_mutex);
    store->retention_report.used_ratio = now->ratio;
    store->retention_report.level = now->refuse ? 3 : now->forced ? 2 : now->disk ? 1 : 0;
    pthread_mutex_unlock(&store->wake_mutex);
}

static void report_deletion(cmq_store *store, const cmq_deletion *deletion)
{
    pthread_mutex_lock(&store->wake_mutex);
    cmq_retention_report *report = &store->retention_report;
    if (report->deletion_count < CMQ_DELETIONS_MAX) report->deletions[report->deletion_count++] = *deletion;
    else report->unlisted++;
    pthread_mutex_unlock(&store->wake_mutex);
}

void cmq_store_take_retention_report(cmq_store *store, cmq_retention_report *report_out)
{
    pthread_mutex_lock(&store->wake_mutex);
    *report_out = store->retention_report;
    store->retention_report.deletion_count = store->retention_report.unlisted = 0;
    pthread_mutex_unlock(&store->wake_mutex);
    report_out->is_full = atomic_load_explicit(&store->disk_full, memory_order_relaxed) ||
                          atomic_load_explicit(&store->upkeep_full, memory_order_relaxed);
}

static bool in_window(const cmq_store *store, int64_t now_ms)
{
    const time_t seconds = (time_t)(now_ms / 1000);
    struct tm local;
    if (localtime_r(&seconds, &local) == NULL) return false;
    return (store->options.retention.delete_hours >> local.tm_hour & 1u) != 0;
}

/* Delete the oldest segment if it is due; CMQ_END when it is not, or is the last. */
static cmq_status delete_if_due(cmq_store *store, int64_t now_ms, bool any_age)
{
    cmq_file_info info;
    cmq_status status = cmq_log_first_info(store->log, &info);
    if (status != CMQ_OK) return status;
    const cmq_deletion deletion = {.log_offset = cmq_log_min(store->log),
                                   .age_ms = now_ms - info.modified_ms,
                                   .is_due = now_ms - info.modified_ms >= store->options.retention.reserved_ms};
    if (!any_age && !deletion.is_due) return CMQ_END;
    /* Only flushed and dispatched records may go; and the last record below the durable point stays, by which recovery
     * knows that the point is true. */
    if (deletion.log_offset + store->sizes.segment_bytes >= store->durable_end) return CMQ_END;
    pthread_mutex_lock(&store->writer_mutex);   /* the writer makes segments in the same table */
    status = cmq_log_delete_first(store->log);
    pthread_mutex_unlock(&store->writer_mutex);
    if (status == CMQ_OK) report_deletion(store, &deletion);
    return status;
}

static cmq_status follow_log_min(cmq_store *store)
{
    const int64_t min = cmq_log_min(store->log);
    cmq_status status = cmq_queues_expire(store->queues, min, store->durable_end);
    if (status == CMQ_OK && store->index != NULL) {
        pthread_mutex_lock(&store->index_mutex);
        status = cmq_index_expire(store->index, min);
        pthread_mutex_unlock(&store->index_mutex);
    }
    if (store->follow != NULL) cmq_follow_set_log_min(store->follow, min);
    store->begins_moved = true;
    cmq_store_mark_dirty(store);
    return status;
}

static cmq_status expire_round(cmq_store *store, int64_t now_ms, bool any_age, uint32_t *deleted_out)
{
    const uint32_t most = store->options.retention.files_per_round > 0 ? store->options.retention.files_per_round
                                                                       : FILES_PER_ROUND_DEFAULT;
    cmq_status status = CMQ_OK;
    *deleted_out = 0;
    while (status == CMQ_OK && *deleted_out < most) {
        status = delete_if_due(store, now_ms, any_age);
        if (status == CMQ_OK) (*deleted_out)++;
    }
    if (status == CMQ_END) status = CMQ_OK;
    /* Queues and index follow the deletions, also where the next one failed. */
    const cmq_status followed = *deleted_out > 0 ? follow_log_min(store) : CMQ_OK;
    return status != CMQ_OK ? status : followed;
}

cmq_status cmq_store_expire_due(cmq_store *store, int64_t now_ms)
{
    pressure now;
    uint32_t deleted = 0;
    cmq_status status = measure_pressure(store, &now);
    if (status != CMQ_OK) return status;
    atomic_store_explicit(&store->disk_above_warning, now.refuse, memory_order_relaxed);
    report_pressure(store, &now);
    if (now.forced || now.disk || in_window(store, now_ms)) status = expire_round(store, now_ms, now.forced, &deleted);
    return status;
}

cmq_status cmq_store_expire(cmq_store *store, bool manual, uint32_t *deleted_out)
{
    *deleted_out = 0;
    if (store->options.read_only) return cmq_fail(CMQ_ERR_READ_ONLY, "the store was opened read-only");
    const int64_t now_ms = cmq_clock_now_ms(&store->clock);
    pthread_mutex_lock(&store->maintain_mutex);
    const bool due = manual || in_window(store, now_ms);
    /* After a crash an opening leaves the durable point to the first upkeep, and nothing behind it may go. */
    const bool owed =
        due && store->durable_end < store->opened_end && !atomic_load_explicit(&store->fenced, memory_order_acquire);
    cmq_status status = owed ? cmq_store_durable_point(store, false) : CMQ_OK;
    if (due && status == CMQ_OK) status = expire_round(store, now_ms, false, deleted_out);
    pthread_mutex_unlock(&store->maintain_mutex);
    return status;
}

cmq_status cmq_store_set_retention(cmq_store *store, const cmq_retention *retention)
{
    if (store->options.read_only) return cmq_fail(CMQ_ERR_READ_ONLY, "the store was opened read-only");
    cmq_retention *limits = &store->options.retention;
    /* The background thread reads `enabled` without a lock, so it stays as it was at the opening. */
    if (!limits->enabled || !retention->enabled)
        return cmq_fail(CMQ_ERR_ARGUMENT, "retention cannot be switched on or off while the store is open");
    pthread_mutex_lock(&store->maintain_mutex);
    limits->reserved_ms = retention->reserved_ms;
    limits->delete_hours = retention->delete_hours;
    limits->max_used_ratio = retention->max_used_ratio;
    limits->force_ratio = retention->force_ratio;
    limits->warning_ratio = retention->warning_ratio;
    limits->files_per_round = retention->files_per_round;
    store->expired_at_ms = 0;
    pthread_mutex_unlock(&store->maintain_mutex);
    cmq_store_wake_thread(store);
    return CMQ_OK;
}

bool cmq_store_is_system_topic(void *context, cmq_slice topic)
{
    static const char *const names[] = {"SELF_TEST_TOPIC",       "TBW102",
                                        "BenchmarkTest",         "OFFSET_MOVED_EVENT",
                                        "SCHEDULE_TOPIC_XXXX",   "RMQ_SYS_TRACE_TOPIC",
                                        "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC",
                                        "TRANS_CHECK_MAX_TIME_TOPIC", "CHECKPOINT_TOPIC"};
    (void)context;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (cmq_slice_equal(topic, cmq_slice_of_text(names[i]))) return true;
    return cmq_slice_starts_with(topic, "rmq_sys_");
}

cmq_status cmq_store_delete_expired_queues(cmq_store *store, uint32_t *deleted_out)
{
    *deleted_out = 0;
    if (store->options.read_only) return cmq_fail(CMQ_ERR_READ_ONLY, "the store was opened read-only");
    pthread_mutex_lock(&store->maintain_mutex);
    /* An opening that believed that they are there, or all gone, would look for them in the whole log. */
    cmq_status status = cmq_store_point_before(store, NULL, NULL);
    if (status == CMQ_OK) {
        pthread_mutex_lock(&store->writer_mutex);
        cmq_store_announce(store, NULL);
        status = cmq_queues_delete_expired(store->queues, cmq_log_min(store->log), cmq_store_is_system_topic, NULL,
                                           deleted_out);
        cmq_store_announced(store);
        pthread_mutex_unlock(&store->writer_mutex);
        cmq_watches_notify(store->watches);
        if (status == CMQ_OK && !atomic_load_explicit(&store->fenced, memory_order_acquire))
            status = cmq_store_durable_point(store, false);
    }
    pthread_mutex_unlock(&store->maintain_mutex);
    cmq_store_wake_thread(store);   /* files to remove */
    return status;
}
