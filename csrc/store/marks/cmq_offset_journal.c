/* cmq_offset_journal: see cmq_offset_journal.h. */
#include "store/marks/cmq_offset_journal.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/cmq_assert.h"
#include "base/cmq_crc32.h"
#include "store/marks/cmq_own_files.h"

#define MAGIC UINT64_C(0x434D5150524F4731)   /* "CMQPROG1" */
#define VERSION 1u
#define HEAD_BYTES 512u       /* one sector: never torn inside */
#define HEAD_CRC_AT 40u
#define RECORD_HEAD_BYTES 16u
#define ENTRY_HEAD_BYTES 14u
#define KIND_COMMIT 1u

struct cmq_offset_journal {
    cmq_fs *fs;
    cmq_file *file;
    char root[CMQ_PATH_BYTES];
    bool durable;
    pthread_mutex_t mutex;
    pthread_cond_t done;          /* a sync ended */
    uint64_t generation;
    uint64_t at;                  /* where the next record goes in the file */
    uint32_t chain;               /* crc of the record before it */
    uint64_t appended, synced;    /* bytes since the journal was made, over all generations */
    bool syncing;                 /* somebody waits for the disk, for all */
    bool failed;
    uint8_t *buffer;              /* of one record */
    size_t buffer_bytes;
};

static cmq_status CMQ_MUST_CHECK path_of(char path[CMQ_PATH_BYTES], const char *root, const char *name)
{
    return cmq_path_join(path, root, name);
}

/* ---- head ---- */

static void encode_head(uint8_t head[HEAD_BYTES], uint64_t generation, const cmq_offset_journal_basis *basis)
{
    memset(head, 0, HEAD_BYTES);
    cmq_store_u64(head, MAGIC);
    cmq_store_u32(head + 8, VERSION);
    cmq_store_u64(head + 16, generation);
    cmq_store_u64(head + 24, basis->bytes);
    cmq_store_u32(head + 32, basis->crc);
    cmq_store_u32(head + HEAD_CRC_AT, cmq_crc32(head, HEAD_CRC_AT));
}

static bool decode_head(const uint8_t head[HEAD_BYTES], cmq_offset_journal_basis *basis_out, uint32_t *crc_out)
{
    if (cmq_load_u64(head) != MAGIC || cmq_load_u32(head + 8) != VERSION) return false;
    *crc_out = cmq_load_u32(head + HEAD_CRC_AT);
    *basis_out = (cmq_offset_journal_basis){.bytes = cmq_load_u64(head + 24), .crc = cmq_load_u32(head + 32)};
    return *crc_out == cmq_crc32(head, HEAD_CRC_AT);
}

/* mutex held, or nobody else has it yet */
static cmq_status CMQ_MUST_CHECK write_head(cmq_offset_journal *log, const cmq_offset_journal_basis *basis)
{
    uint8_t head[HEAD_BYTES];
    encode_head(head, log->generation, basis);
    log->at = HEAD_BYTES;
    log->chain = cmq_load_u32(head + HEAD_CRC_AT);
    return cmq_file_write(log->file, 0, head, sizeof head);
}

/* ---- life ---- */

/* Zeros up to the limit: a sync of a record then changes no length and no extent, and waits for its bytes alone. */
static cmq_status CMQ_MUST_CHECK write_ahead(cmq_offset_journal *log)
{
    uint8_t *zeros = calloc(1, CMQ_OFFSETLOG_BYTES);
    if (zeros == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for the journal of offsets");
    const cmq_status status = cmq_file_write(log->file, 0, zeros, CMQ_OFFSETLOG_BYTES);
    free(zeros);
    return status;
}

static cmq_status CMQ_MUST_CHECK make_file(cmq_offset_journal *log, const cmq_offset_journal_basis *basis)
{
    char folder[CMQ_PATH_BYTES], fresh[CMQ_PATH_BYTES], path[CMQ_PATH_BYTES];
    cmq_status status = path_of(folder, log->root, CMQ_OWN_FOLDER);
    if (status == CMQ_OK) status = path_of(fresh, log->root, CMQ_OWN_FOLDER "/progress.new");
    if (status == CMQ_OK) status = path_of(path, log->root, CMQ_OWN_FOLDER "/progress");
    if (status == CMQ_OK) status = cmq_fs_make_directory_in(log->fs, log->root, folder);
    if (status == CMQ_OK) status = cmq_file_open(log->fs, fresh, CMQ_OPEN_CREATE, &log->file);
    if (status == CMQ_OK) status = cmq_file_resize(log->file, 0);
    if (status == CMQ_OK && log->durable) status = write_ahead(log);
    if (status == CMQ_OK) status = write_head(log, basis);
    if (status == CMQ_OK && log->durable) status = cmq_file_sync(log->file);
    if (status == CMQ_OK) status = cmq_fs_rename(log->fs, fresh, path);
    if (status == CMQ_OK && log->durable) status = cmq_fs_sync_directory(log->fs, folder);
    return status;
}

cmq_status cmq_offset_journal_create(cmq_fs *fs, const char *root, const cmq_offset_journal_basis *basis,
                                     int64_t now_ms, bool durable, cmq_offset_journal **log_out)
{
    *log_out = NULL;
    if (strlen(root) >= CMQ_PATH_BYTES)
        return cmq_fail(CMQ_ERR_ARGUMENT, "the path of the store has more than %d bytes", CMQ_PATH_BYTES - 1);
    cmq_offset_journal *log = calloc(1, sizeof *log);
    if (log == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for the journal of offsets");
    log->fs = fs;
    strcpy(log->root, root);
    log->durable = durable;
    log->generation = (uint64_t)now_ms << 20;
    pthread_mutex_init(&log->mutex, NULL);
    pthread_cond_init(&log->done, NULL);
    const cmq_status status = make_file(log, basis);
    if (status != CMQ_OK) {
        cmq_offset_journal_close(log);
        return status;
    }
    *log_out = log;
    return CMQ_OK;
}

void cmq_offset_journal_close(cmq_offset_journal *log)
{
    if (log == NULL) return;
    cmq_file_close(log->file);
    pthread_mutex_destroy(&log->mutex);
    pthread_cond_destroy(&log->done);
    free(log->buffer);
    free(log);
}

cmq_status cmq_offset_journal_forget(cmq_fs *fs, const char *root)
{
    char path[CMQ_PATH_BYTES];
    cmq_status status = path_of(path, root, CMQ_OWN_FOLDER "/progress");
    if (status != CMQ_OK) return status;
    status = cmq_fs_remove(fs, path);
    return status == CMQ_ERR_NOT_FOUND ? CMQ_OK : status;
}

/* ---- writing ---- */

static cmq_status fail_failed(void)
{
    return cmq_fail(CMQ_ERR_IO,
                    "the journal of offsets failed before; the next commit writes consumerOffset.json instead");
}

static size_t bytes_of(cmq_slice group, const cmq_offset_journal_entry *entries, uint32_t count)
{
    size_t bytes = RECORD_HEAD_BYTES + group.bytes;
    for (uint32_t i = 0; i < count; i++) bytes += ENTRY_HEAD_BYTES + entries[i].topic.bytes;
    return bytes;
}

static uint32_t crc_of(uint32_t chain, const uint8_t *record, size_t bytes)
{
    return cmq_crc32_extend(cmq_crc32_extend(chain, record, 4), record + 8, bytes - 8);
}

static void encode(uint8_t *at, size_t bytes, uint32_t chain, cmq_slice group, const cmq_offset_journal_entry *entries,
                   uint32_t count)
{
    uint8_t *to = at + RECORD_HEAD_BYTES;
    cmq_store_u32(at, (uint32_t)bytes);
    cmq_store_u16(at + 8, KIND_COMMIT);
    cmq_store_u16(at + 10, (uint16_t)group.bytes);
    cmq_store_u32(at + 12, count);
    memcpy(to, group.data, group.bytes);
    to += group.bytes;
    for (uint32_t i = 0; i < count; i++) {
        cmq_store_i32(to, entries[i].queue_id);
        cmq_store_i64(to + 4, entries[i].offset);
        cmq_store_u16(to + 12, (uint16_t)entries[i].topic.bytes);
        memcpy(to + ENTRY_HEAD_BYTES, entries[i].topic.data, entries[i].topic.bytes);
        to += ENTRY_HEAD_BYTES + entries[i].topic.bytes;
    }
    CMQ_ASSERT(to == at + bytes);
    cmq_store_u32(at + 4, crc_of(chain, at, bytes));
}

/* mutex held */
static cmq_status CMQ_MUST_CHECK room_for(cmq_offset_journal *log, size_t bytes)
{
    if (bytes <= log->buffer_bytes) return CMQ_OK;
    uint8_t *larger = realloc(log->buffer, bytes * 2);
    if (larger == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for a commit of %zu bytes", bytes);
    log->buffer = larger;
    log->buffer_bytes = bytes * 2;
    return CMQ_OK;
}

/* mutex held */
static cmq_status CMQ_MUST_CHECK write_record(cmq_offset_journal *log, size_t bytes, cmq_slice group,
                                              const cmq_offset_journal_entry *entries, uint32_t count)
{
    if (log->failed) return fail_failed();
    if (log->at + bytes > CMQ_OFFSETLOG_BYTES) return CMQ_AGAIN;
    cmq_status status = room_for(log, bytes);
    if (status != CMQ_OK) return status;
    encode(log->buffer, bytes, log->chain, group, entries, count);
    status = cmq_file_write(log->file, log->at, log->buffer, bytes);
    log->failed = status != CMQ_OK;
    if (status != CMQ_OK) return status;
    log->chain = cmq_load_u32(log->buffer + 4);
    log->at += bytes;
    log->appended += bytes;
    return CMQ_OK;
}

cmq_status cmq_offset_journal_append(cmq_offset_journal *log, cmq_slice group, const cmq_offset_journal_entry *entries,
                                     uint32_t count, uint64_t *end_out)
{
    *end_out = 0;
    bool fits = group.bytes <= UINT16_MAX;
    for (uint32_t i = 0; fits && i < count; i++) fits = entries[i].topic.bytes <= UINT16_MAX;
    if (!fits) return cmq_fail(CMQ_ERR_ARGUMENT, "a group or topic of a commit has more than %d bytes", UINT16_MAX);
    const size_t bytes = bytes_of(group, entries, count);
    pthread_mutex_lock(&log->mutex);
    const cmq_status status = write_record(log, bytes, group, entries, count);
    *end_out = log->appended;
    pthread_mutex_unlock(&log->mutex);
    return status;
}

/* As the leader, which waits for the disk on behalf of all appends so far. mutex held, but not during the sync. */
static cmq_status CMQ_MUST_CHECK sync_all(cmq_offset_journal *log)
{
    const uint64_t target = log->appended;
    log->syncing = true;
    pthread_mutex_unlock(&log->mutex);
    const cmq_status status = cmq_file_sync(log->file);
    pthread_mutex_lock(&log->mutex);
    log->syncing = false;
    if (status != CMQ_OK) log->failed = true;
    else if (log->synced < target) log->synced = target;
    pthread_cond_broadcast(&log->done);
    return status;
}

cmq_status cmq_offset_journal_wait(cmq_offset_journal *log, uint64_t end)
{
    cmq_status status = CMQ_OK;
    pthread_mutex_lock(&log->mutex);
    CMQ_ASSERT(end <= log->appended);
    while (status == CMQ_OK && log->synced < end) {
        if (log->failed) status = fail_failed();
        else if (log->syncing) pthread_cond_wait(&log->done, &log->mutex);
        else status = sync_all(log);
    }
    pthread_mutex_unlock(&log->mutex);
    return status;
}

/* All that was appended is durable elsewhere. mutex held. */
static void settle(cmq_offset_journal *log)
{
    log->synced = log->appended;
    pthread_cond_broadcast(&log->done);
}

cmq_status cmq_offset_journal_restart(cmq_offset_journal *log, const cmq_offset_journal_basis *basis)
{
    pthread_mutex_lock(&log->mutex);
    cmq_status status = log->failed ? fail_failed() : CMQ_OK;
    log->generation++;
    if (status == CMQ_OK) status = write_head(log, basis);
    log->failed = status != CMQ_OK;
    settle(log);
    pthread_mutex_unlock(&log->mutex);
    return status;
}

cmq_status cmq_offset_journal_remove(cmq_offset_journal *log)
{
    pthread_mutex_lock(&log->mutex);
    log->failed = true;
    settle(log);
    pthread_mutex_unlock(&log->mutex);
    return cmq_offset_journal_forget(log->fs, log->root);
}

/* ---- reading ---- */

/* Is this record whole, by its checksum and its lengths? */
static bool is_whole(const uint8_t *at, size_t available, uint32_t chain)
{
    if (available < RECORD_HEAD_BYTES) return false;
    const size_t bytes = cmq_load_u32(at);
    if (bytes < RECORD_HEAD_BYTES || bytes > available || cmq_load_u32(at + 4) != crc_of(chain, at, bytes))
        return false;
    const size_t group_bytes = cmq_load_u16(at + 10);
    const uint32_t count = cmq_load_u32(at + 12);
    size_t used = RECORD_HEAD_BYTES + group_bytes;
    for (uint32_t i = 0; i < count; i++) {
        if (used + ENTRY_HEAD_BYTES > bytes) return false;
        used += ENTRY_HEAD_BYTES + cmq_load_u16(at + used + 12);
    }
    return used == bytes;
}

static cmq_status CMQ_MUST_CHECK visit_record(const uint8_t *at, cmq_offset_journal_visit visit, void *context)
{
    const cmq_slice group = {.data = at + RECORD_HEAD_BYTES, .bytes = cmq_load_u16(at + 10)};
    const uint32_t count = cmq_load_u16(at + 8) == KIND_COMMIT ? cmq_load_u32(at + 12) : 0;
    const uint8_t *from = at + RECORD_HEAD_BYTES + group.bytes;
    cmq_status status = CMQ_OK;
    for (uint32_t i = 0; status == CMQ_OK && i < count; i++) {
        const cmq_offset_journal_entry entry = {
            .queue_id = cmq_load_i32(from),
            .offset = cmq_load_i64(from + 4),
            .topic = {.data = from + ENTRY_HEAD_BYTES, .bytes = cmq_load_u16(from + 12)}};
        status = visit(context, group, &entry);
        from += ENTRY_HEAD_BYTES + entry.topic.bytes;
    }
    return status;
}

static cmq_status CMQ_MUST_CHECK read_records(const uint8_t *data, size_t bytes, cmq_offset_journal_cursor *cursor,
                                              cmq_offset_journal_visit visit, void *context)
{
    cmq_status status = CMQ_OK;
    while (status == CMQ_OK && cursor->at <= bytes && is_whole(data + cursor->at, bytes - cursor->at, cursor->chain)) {
        const uint8_t *record = data + cursor->at;
        status = visit_record(record, visit, context);
        cursor->chain = cmq_load_u32(record + 4);
        cursor->at += cmq_load_u32(record);
    }
    return status;
}

/* The file's bytes, up to the limit; owned: free. NULL: there is none, or it is too short for a head. */
static cmq_status CMQ_MUST_CHECK load(cmq_fs *fs, const char *root, uint8_t **data_out, size_t *bytes_out)
{
    char path[CMQ_PATH_BYTES];
    cmq_file *file;
    cmq_file_info info;
    *data_out = NULL;
    *bytes_out = 0;
    cmq_status status = path_of(path, root, CMQ_OWN_FOLDER "/progress");
    if (status == CMQ_OK) status = cmq_file_open(fs, path, CMQ_OPEN_READ, &file);
    if (status == CMQ_ERR_NOT_FOUND) return CMQ_OK;
    if (status != CMQ_OK) return status;
    status = cmq_file_info_of(file, &info);
    const size_t bytes = status != CMQ_OK                   ? 0
                         : info.bytes < CMQ_OFFSETLOG_BYTES ? (size_t)info.bytes
                                                            : CMQ_OFFSETLOG_BYTES;
    uint8_t *data = bytes >= HEAD_BYTES ? malloc(bytes) : NULL;
    if (status == CMQ_OK && bytes >= HEAD_BYTES)
        status =
            data == NULL ? cmq_fail(CMQ_ERR_MEMORY, "no memory to read %s", path) : cmq_file_read(file, 0, data, bytes);
    cmq_file_close(file);
    if (status != CMQ_OK) {
        free(data);
        return status;
    }
    *data_out = data;
    *bytes_out = data != NULL ? bytes : 0;
    return CMQ_OK;
}

cmq_status cmq_offset_journal_read(cmq_fs *fs, const char *root, const cmq_offset_journal_basis *basis,
                                   cmq_offset_journal_cursor *cursor, cmq_offset_journal_visit visit, void *context,
                                   cmq_offset_journal_found *found_out)
{
    uint8_t *data;
    size_t bytes;
    cmq_offset_journal_basis own;
    uint32_t head_crc;
    *found_out = CMQ_OFFSETLOG_NONE;
    cmq_status status = load(fs, root, &data, &bytes);
    if (status != CMQ_OK || data == NULL) return status;
    if (decode_head(data, &own, &head_crc)) {
        *found_out = own.crc == basis->crc && own.bytes == basis->bytes ? CMQ_OFFSETLOG_READ : CMQ_OFFSETLOG_OTHER;
        if (cursor->head_crc != head_crc || cursor->at < HEAD_BYTES)
            *cursor = (cmq_offset_journal_cursor){.head_crc = head_crc, .chain = head_crc, .at = HEAD_BYTES};
        if (*found_out == CMQ_OFFSETLOG_READ) status = read_records(data, bytes, cursor, visit, context);
    }
    free(data);
    return status;
}
