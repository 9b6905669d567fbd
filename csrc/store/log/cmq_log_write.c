/* cmq_log_write: how bytes get into the commit log: claim and commit, staging, write-out, prewarming.
 *
 * Per record (128 B body): one encode into memory, no system call, no lock, no allocation. Per 16 MiB: one fallocate.
 * Sync: per group one pwrite, which is one more memory write per byte, and one fdatasync. Async, where pages are cold:
 * per 64 KiB to 1 MiB one pwrite of zeros ahead, whose large pages cost a fifth of what single pages cost that stores
 * fault in (0.25 s per GiB against 1.1). The helper does the same a segment ahead, then maps the pages: a populate
 * alone would read the reserved, unwritten blocks in and clear them one page at a time (bench_pages: 7 times the CPU).
 *
 * Invariant: nobody but the writer writes into a segment that the writer has entered.
 */
#include <stdlib.h>
#include <string.h>

#include "base/cmq_assert.h"
#include "store/log/cmq_log_internal.h"
#include "store/record/cmq_record.h"

/* A small store stays small; a busy one asks the file system rarely. */
#define RESERVE_STEP_MIN (INT64_C(256) << 10)
#define RESERVE_STEP_MAX (INT64_C(16) << 20)
#define STAGING_BYTES_MIN (INT64_C(64) << 10)
#define WARM_STEP_BYTES (INT64_C(4) << 20)
#define TOUCH_BYTES_MIN (INT64_C(64) << 10)
#define TOUCH_BYTES_MAX (INT64_C(1) << 20)
#define HEAD_BYTES 8   /* size and magic: without them no record begins there, for us or for RocketMQ */

static int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t max_of(int64_t a, int64_t b) { return a > b ? a : b; }

/* ---- staging ---- */

void cmq_staged_discard(struct cmq_staged *staged)
{
    CMQ_ASSERT(staged->run_count <= CMQ_STAGED_RUNS_MAX && staged->head_count <= CMQ_SEALED_MAX);
    for (uint32_t i = 0; i < staged->run_count; i++) cmq_segment_unpin(staged->runs[i].segment);
    staged->run_count = 0;
    staged->head_count = 0;
    staged->used = 0;
    if (staged->capacity <= 2 * CMQ_STAGING_BYTES_MAX) return;
    /* A burst is over: its memory goes. */
    free(staged->data);
    staged->data = NULL;
    staged->capacity = 0;
}

/* Room for `bytes` more in the filling buffer, in the current segment's run. CMQ_AGAIN when it is full. */
static cmq_status stage_room(cmq_log *log, int64_t bytes)
{
    CMQ_ASSERT(log->current != NULL && bytes > 0);
    if (log->filling == NULL) log->filling = &log->staged_buffers[0];
    struct cmq_staged *staged = log->filling;
    const bool new_run = staged->run_count == 0 || staged->runs[staged->run_count - 1].segment != log->current;
    if (new_run && staged->run_count == CMQ_STAGED_RUNS_MAX) return CMQ_AGAIN;
    if (staged->used > 0 && bytes > log->staging_bytes_max - staged->used && log->end + bytes > log->together_end)
        return CMQ_AGAIN;
    if (bytes > staged->capacity - staged->used) {
        const int64_t capacity = max_of(max_of(staged->capacity * 2, STAGING_BYTES_MIN), staged->used + bytes);
        uint8_t *data = realloc(staged->data, (size_t)capacity);
        if (data == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for %lld bytes of staging", (long long)capacity);
        staged->data = data;
        staged->capacity = capacity;
    }
    if (new_run) {
        cmq_segment_pin(log->current);
        staged->runs[staged->run_count++] =
            (cmq_staged_run){.segment = log->current, .phy = log->end, .at = staged->used, .bytes = 0};
    }
    CMQ_ASSERT(staged->run_count > 0 && bytes <= staged->capacity - staged->used);
    return CMQ_OK;
}

static void stage_commit(cmq_log *log, int64_t bytes)
{
    struct cmq_staged *staged = log->filling;
    CMQ_ASSERT(staged->run_count > 0);
    cmq_staged_run *run = &staged->runs[staged->run_count - 1];
    CMQ_ASSERT(run->phy + run->bytes == log->end);
    CMQ_ASSERT(run->at + run->bytes == staged->used && bytes <= staged->capacity - staged->used);
    run->bytes += bytes;
    staged->used += bytes;
    staged->end = log->end + bytes;
}

/* ---- claim and commit ---- */

/* Blocks for the next `bytes` of the current segment. */
static cmq_status reserve(cmq_log *log, int64_t bytes)
{
    const int64_t start = cmq_segment_start(log->current);
    log->reserve_step = min_of(max_of(log->reserve_step * 2, RESERVE_STEP_MIN), RESERVE_STEP_MAX);
    const int64_t from = log->reserved_end;
    const int64_t to = min_of(max_of(log->end + bytes, from + log->reserve_step), start + log->segment_bytes);
    CMQ_ASSERT(from >= start && to >= log->end + bytes);
    cmq_status status =
        cmq_file_reserve(cmq_segment_file(log->current), (uint64_t)(from - start), (uint64_t)(to - from));
    if (status != CMQ_OK) return status;
    log->reserved_end = to;
    return CMQ_OK;
}

static uint8_t zeros[TOUCH_BYTES_MAX];   /* never written */

/* Mapped: make pages ahead of the next bytes, where they are cold. The map is advised as random, so a store into a cold
 * page would fault in that page alone. A steady writer gets ever larger pages, up to 1 MiB; a store of a few messages
 * touches 64 KiB. */
static cmq_status touch(cmq_log *log, int64_t bytes)
{
    const int64_t start = cmq_segment_start(log->current), warm_end = start + cmq_segment_warm(log->current);
    if (warm_end > log->touched_end) log->touched_end = warm_end;
    while (log->touched_end < log->end + bytes) {
        log->touch_step = min_of(max_of(log->touch_step * 2, TOUCH_BYTES_MIN), TOUCH_BYTES_MAX);
        const int64_t from = max_of(log->end, log->touched_end), to = min_of(from + log->touch_step, log->reserved_end);
        CMQ_ASSERT(to > from && to - from <= TOUCH_BYTES_MAX);
        const cmq_status status =
            cmq_file_write(cmq_segment_file(log->current), (uint64_t)(from - start), zeros, (size_t)(to - from));
        if (status != CMQ_OK) return status;
        log->touched_end = to;
    }
    return CMQ_OK;
}

/* Room for `bytes` at the end of the current segment: blocks, and pages or staging. */
static cmq_status make_room(cmq_log *log, int64_t bytes)
{
    cmq_status status = CMQ_OK;
    CMQ_ASSERT(log->end + bytes <= cmq_segment_start(log->current) + log->segment_bytes);
    if (log->end + bytes > log->reserved_end) status = reserve(log, bytes);
    if (status == CMQ_OK && log->staged) status = stage_room(log, bytes);
    if (status == CMQ_OK && !log->staged && log->end + bytes > log->touched_end) status = touch(log, bytes);
    CMQ_ASSERT(status != CMQ_OK || log->end + bytes <= log->reserved_end);
    return status;
}

static cmq_status enter_segment(cmq_log *log)
{
    cmq_segment *segment;
    CMQ_ASSERT(log->current == NULL && !log->read_only);
    const cmq_status status = cmq_log_make_segment(log, log->end, &segment);
    if (status != CMQ_OK) return status;
    CMQ_ASSERT(cmq_segment_start(segment) == log->end);
    pthread_mutex_lock(&log->ahead_mutex);   /* once a segment, for at most a MiB of the helper's zeros */
    log->entered_end = cmq_segment_start(segment) + log->segment_bytes;
    pthread_mutex_unlock(&log->ahead_mutex);
    log->current = segment;
    log->reserved_end = log->touched_end = log->end;
    return CMQ_OK;
}

/* Close the current segment with a blank record and go to the next. */
static cmq_status roll(cmq_log *log)
{
    const int64_t start = cmq_segment_start(log->current);
    const int64_t left = start + log->segment_bytes - log->end;
    CMQ_ASSERT(left >= 0 && left <= log->segment_bytes);
    if (left >= CMQ_RECORD_BLANK_BYTES_MIN) {
        uint8_t blank[CMQ_RECORD_BLANK_BYTES_MIN];
        cmq_record_write_blank(blank, (uint32_t)left);
        const cmq_status status = make_room(log, sizeof blank);
        if (status != CMQ_OK) return status;
        if (log->staged) {
            memcpy(log->filling->data + log->filling->used, blank, sizeof blank);
            stage_commit(log, sizeof blank);
        } else {
            memcpy(cmq_segment_data(log->current) + (log->end - start), blank, sizeof blank);
        }
    }
    log->end = start + log->segment_bytes;
    if (log->staged && log->filling != NULL) log->filling->end = log->end;
    log->current = NULL;
    return enter_segment(log);
}

/* Where the bytes at the log's end are written to; there is room. */
static uint8_t *place(cmq_log *log)
{
    CMQ_ASSERT(log->end >= cmq_segment_start(log->current) && log->end < log->reserved_end);
    if (log->staged) return log->filling->data + log->filling->used;
    if (log->sealed_from >= 0) return log->sealed + (log->end - log->sealed_from);
    return cmq_segment_data(log->current) + (log->end - cmq_segment_start(log->current));
}

cmq_status cmq_log_claim(cmq_log *log, uint32_t bytes, uint8_t **into_out, int64_t *phy_out)
{
    *into_out = NULL;
    *phy_out = -1;
    if ((int64_t)bytes > log->segment_bytes - CMQ_RECORD_BLANK_BYTES_MIN)
        return cmq_fail(
            CMQ_ERR_TOO_LARGE,
            "%u bytes do not fit a segment of %lld; set a larger mappedFileSizeCommitLog or split the batch", bytes,
            (long long)log->segment_bytes);
    cmq_status status = CMQ_OK;
    if (log->current == NULL) status = enter_segment(log);
    if (status == CMQ_OK &&
        log->end + bytes + CMQ_RECORD_BLANK_BYTES_MIN > cmq_segment_start(log->current) + log->segment_bytes)
        status = roll(log);
    if (status == CMQ_OK) status = make_room(log, bytes);
    if (status != CMQ_OK) return status;
    CMQ_ASSERT(log->end + bytes <= cmq_segment_start(log->current) + log->segment_bytes - CMQ_RECORD_BLANK_BYTES_MIN);
    *into_out = place(log);
    *phy_out = log->end;
    return CMQ_OK;
}

cmq_status cmq_log_claim_here(cmq_log *log, uint32_t bytes, uint8_t **into_out, int64_t *phy_out)
{
    *into_out = NULL;
    *phy_out = -1;
    if (log->current == NULL ||
        log->end + bytes + CMQ_RECORD_BLANK_BYTES_MIN > cmq_segment_start(log->current) + log->segment_bytes)
        return CMQ_AGAIN;
    const cmq_status status = make_room(log, bytes);
    if (status != CMQ_OK) return status;
    CMQ_ASSERT(log->end + bytes <= cmq_segment_start(log->current) + log->segment_bytes - CMQ_RECORD_BLANK_BYTES_MIN);
    *into_out = place(log);
    *phy_out = log->end;
    return CMQ_OK;
}

cmq_status cmq_log_claim_together(cmq_log *log, uint32_t bytes)
{
    uint8_t *into;
    int64_t phy;
    CMQ_ASSERT(bytes > 0);
    const cmq_status status = cmq_log_claim(log, bytes, &into, &phy);
    if (status == CMQ_OK) log->together_end = phy + bytes;
    return status;
}

cmq_status cmq_log_begin_sealed(cmq_log *log, uint32_t bytes)
{
    CMQ_ASSERT(log->sealed_from < 0 && bytes > HEAD_BYTES);
    if (log->staged && log->filling != NULL && log->filling->head_count == CMQ_SEALED_MAX) return CMQ_AGAIN;
    uint8_t *aside = log->staged ? NULL : malloc(bytes);
    if (!log->staged && aside == NULL)
        return cmq_fail(CMQ_ERR_MEMORY, "no memory for a transaction of %u bytes", bytes);
    /* Not held up by the limit of the buffer, which others fill again and again: it is 64 MiB at most. */
    const int64_t together_end = log->together_end;
    log->together_end = log->end + bytes;
    const cmq_status status = cmq_log_claim_together(log, bytes);
    if (status != CMQ_OK) {
        log->together_end = together_end;
        free(aside);
        return status;
    }
    log->sealed = aside;
    log->sealed_from = log->end;
    if (log->staged)
        log->filling->heads[log->filling->head_count++] =
            (cmq_sealed_head){.phy = log->end, .at = log->filling->used};
    return CMQ_OK;
}

/* A sync that fails takes all of a dirty page along, also the bytes of a transaction behind its range, and the system
 * reports that once: the transaction's own sync then finds the page clean. Wait for the outcome of a sync that may have
 * had pages with the bytes from `from` on; the largest pages are those of touch. */
static cmq_status check_syncs_beside(cmq_log *log, int64_t from)
{
    CMQ_ASSERT(!log->staged && from >= 0);
    pthread_mutex_lock(&log->sync_mutex);
    while (log->syncing_to > 0 && log->syncing_to + TOUCH_BYTES_MAX > from)
        pthread_cond_wait(&log->synced, &log->sync_mutex);
    const bool failed = log->sync_failed;
    pthread_mutex_unlock(&log->sync_mutex);
    return failed ? cmq_fail(CMQ_ERR_IO, "a sync of the log beside this one failed") : CMQ_OK;
}

/* The rest, on disk; then the head. A process that is killed in between leaves it out, too: the head's magic is in
 * place before its size. Only the compiler could turn that round: stores that a killed thread has retired stay. */
static cmq_status seal_mapped(cmq_log *log)
{
    const int64_t bytes = log->end - log->sealed_from;
    CMQ_ASSERT(log->sealed != NULL && bytes > HEAD_BYTES && log->sealed_from >= cmq_segment_start(log->current));
    uint8_t *at = cmq_segment_data(log->current) + (log->sealed_from - cmq_segment_start(log->current));
    memcpy(at + HEAD_BYTES, log->sealed + HEAD_BYTES, (size_t)bytes - HEAD_BYTES);
    cmq_status status = cmq_file_sync_mapped(cmq_segment_file(log->current), at, (size_t)bytes);
    if (status == CMQ_OK) status = check_syncs_beside(log, log->sealed_from);
    if (status != CMQ_OK) return status;
    memcpy(at + HEAD_BYTES / 2, log->sealed + HEAD_BYTES / 2, HEAD_BYTES / 2);
    atomic_signal_fence(memory_order_seq_cst);
    memcpy(at, log->sealed, HEAD_BYTES / 2);
    return CMQ_OK;
}

cmq_status cmq_log_seal(cmq_log *log)
{
    CMQ_ASSERT(log->sealed_from >= 0 && log->end > log->sealed_from);
    cmq_status status = CMQ_OK;
    if (log->staged) log->filling->heads[log->filling->head_count - 1].whole = true;
    else status = seal_mapped(log);
    free(log->sealed);
    log->sealed = NULL;
    log->sealed_from = -1;
    return status;
}

void cmq_log_commit(cmq_log *log, uint32_t bytes)
{
    CMQ_ASSERT(log->current != NULL && bytes > 0);
    CMQ_ASSERT(log->end + bytes <= log->reserved_end);
    if (log->staged) stage_commit(log, bytes);
    log->end += bytes;
}

void cmq_log_set_staging(cmq_log *log, int64_t bytes_max) { log->staging_bytes_max = bytes_max; }

void cmq_log_confirm(cmq_log *log, int64_t confirmed_end)
{
    CMQ_ASSERT(confirmed_end >= atomic_load_explicit(&log->confirmed, memory_order_relaxed));
    /* Pairs with the acquire in cmq_log_confirmed: the record's bytes and its queue unit are written before. */
    atomic_store_explicit(&log->confirmed, confirmed_end, memory_order_release);
}

/* ---- write-out ---- */

cmq_staged *cmq_log_take_staged(cmq_log *log)
{
    struct cmq_staged *staged = log->filling;
    if (staged == NULL || staged->run_count == 0) return NULL;
    struct cmq_staged *other = staged == &log->staged_buffers[0] ? &log->staged_buffers[1] : &log->staged_buffers[0];
    CMQ_ASSERT(other->run_count == 0 && other->used == 0);
    log->filling = other;
    return staged;
}

int64_t cmq_staged_end(const cmq_staged *staged) { return staged->end; }

/* Behind the sync of all that they make visible. */
static cmq_status write_heads(const struct cmq_staged *staged, uint8_t (*heads)[HEAD_BYTES])
{
    cmq_status status = CMQ_OK;
    uint32_t next = 0;
    for (uint32_t i = 0; i < staged->run_count && status == CMQ_OK; i++) {
        const cmq_staged_run *run = &staged->runs[i];
        const uint32_t first = next;
        cmq_file *file = cmq_segment_file(run->segment);
        for (; next < staged->head_count && staged->heads[next].at < run->at + run->bytes && status == CMQ_OK; next++)
            if (staged->heads[next].whole)
                status =
                    cmq_file_write(file, (uint64_t)(staged->heads[next].phy - cmq_segment_start(run->segment)),
                                   heads[next], HEAD_BYTES);
        if (status == CMQ_OK && next > first) status = cmq_file_sync(file);
    }
    return status;
}

static cmq_status write_runs(const struct cmq_staged *staged)
{
    cmq_status status = CMQ_OK;
    uint8_t heads[CMQ_SEALED_MAX][HEAD_BYTES];
    for (uint32_t i = 0; i < staged->head_count; i++) {
        memcpy(heads[i], staged->data + staged->heads[i].at, HEAD_BYTES);
        memset(staged->data + staged->heads[i].at, 0, HEAD_BYTES);
    }
    for (uint32_t i = 0; i < staged->run_count && status == CMQ_OK; i++) {
        const cmq_staged_run *run = &staged->runs[i];
        cmq_file *file = cmq_segment_file(run->segment);
        CMQ_ASSERT(run->at + run->bytes <= staged->used);
        status = cmq_file_write(file, (uint64_t)(run->phy - cmq_segment_start(run->segment)), staged->data + run->at,
                                (size_t)run->bytes);
        if (status == CMQ_OK) status = cmq_file_sync(file);
    }
    return status == CMQ_OK ? write_heads(staged, heads) : status;
}

cmq_status cmq_log_write_staged(cmq_log *log, cmq_staged *staged)
{
    const int64_t end = staged->end;
    CMQ_ASSERT(end >= cmq_log_flushed(log));
    const cmq_status status = write_runs(staged);
    cmq_staged_discard(staged);
    if (status == CMQ_OK) atomic_store_explicit(&log->flushed, end, memory_order_release);
    return status;
}

/* Only this range: syncing the whole file would write out the pages that were warmed ahead, and take their write
 * permission away. */
static cmq_status sync_part(cmq_log *log, cmq_segment *segment, int64_t from, int64_t to)
{
    CMQ_ASSERT(from >= cmq_segment_start(segment) && to > from);
    pthread_mutex_lock(&log->sync_mutex);
    log->syncing_to = to;
    pthread_mutex_unlock(&log->sync_mutex);
    const cmq_status status =
        cmq_file_sync_mapped(cmq_segment_file(segment),
                             cmq_segment_data(segment) + (from - cmq_segment_start(segment)), (size_t)(to - from));
    pthread_mutex_lock(&log->sync_mutex);
    log->syncing_to = 0;
    if (status != CMQ_OK) log->sync_failed = true;
    pthread_cond_signal(&log->synced);
    pthread_mutex_unlock(&log->sync_mutex);
    return status;
}

cmq_status cmq_log_sync(cmq_log *log, int64_t end)
{
    CMQ_ASSERT(!log->staged);
    int64_t from = cmq_log_flushed(log);
    while (from < end) {
        cmq_segment *segment;
        const uint8_t *data;
        size_t available;
        cmq_status status = cmq_log_pin(log, from, &segment, &data, &available);
        if (status != CMQ_OK) return status;
        const int64_t to = min_of(end, from + (int64_t)available);
        CMQ_ASSERT(to > from);
        status = sync_part(log, segment, from, to);
        cmq_segment_unpin(segment);
        if (status != CMQ_OK) return status;
        from = to;
        atomic_store_explicit(&log->flushed, from, memory_order_release);
    }
    return CMQ_OK;
}

/* ---- prewarming ---- */

/* Blocks, and pages of zeros where the writer stores into the map. CMQ_END: the writer was faster, and is in the
 * segment, or through with it. */
static cmq_status make_ahead(cmq_log *log, cmq_segment *segment, int64_t from, int64_t to)
{
    CMQ_ASSERT(from < to && to <= log->segment_bytes && to - from <= TOUCH_BYTES_MAX);
    pthread_mutex_lock(&log->ahead_mutex);
    cmq_file *file = cmq_segment_file(segment);
    cmq_status status = file != NULL && cmq_segment_start(segment) >= log->entered_end ? CMQ_OK : CMQ_END;
    if (status == CMQ_OK) status = cmq_file_reserve(file, (uint64_t)from, (uint64_t)(to - from));
    if (status == CMQ_OK && cmq_segment_writable(segment))
        status = cmq_file_write(file, (uint64_t)from, zeros, (size_t)(to - from));
    pthread_mutex_unlock(&log->ahead_mutex);
    return status;
}

cmq_status cmq_log_prewarm_step(cmq_log *log)
{
    /* The segment behind the one that the confirmed end is in. */
    const int64_t end = cmq_log_confirmed(log);
    const int64_t next = end - end % log->segment_bytes + log->segment_bytes;
    /* Where a full disk kept the end's own segment from being made: one behind it would leave a gap, which no opening
     * takes. */
    if (cmq_log_segment_at(log, end) == NULL) return CMQ_END;
    /* Early enough to be done in time, late enough that a store of a few MiB does not take a second segment's space. */
    if (end % log->segment_bytes < log->segment_bytes / 2) return CMQ_END;
    cmq_segment *segment;
    cmq_status status = cmq_log_make_segment(log, next, &segment);
    if (status != CMQ_OK) return status;
    if (!cmq_segment_try_pin(segment)) return CMQ_END;
    const int64_t from = cmq_segment_warm(segment), to = min_of(from + WARM_STEP_BYTES, log->segment_bytes);
    if (from >= log->segment_bytes) status = CMQ_END;
    for (int64_t at = from; at < to && status == CMQ_OK; at += TOUCH_BYTES_MAX)
        status = make_ahead(log, segment, at, min_of(at + TOUCH_BYTES_MAX, to));
    if (status == CMQ_OK && cmq_segment_writable(segment))
        status = cmq_file_populate(cmq_segment_data(segment) + from, (size_t)(to - from));
    if (status == CMQ_OK) cmq_segment_set_warm(segment, to);
    cmq_segment_unpin(segment);
    return status;
}
