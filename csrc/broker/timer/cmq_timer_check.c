/* cmq_timer_check: see cmq_timer_check.h. */
#include "broker/timer/cmq_timer_check.h"

#include <string.h>

#include "base/cmq_bytes.h"
#include "base/cmq_crc32.h"

#define SUM_AT 64
#define SUM_BYTES (8 + 16 + 4)               /* name, version, checksum */
#define SUM_NAME INT64_C(0x636d717469636b31)  /* "cmqtick1" */
#define VERSION_AT 40
#define USED_BYTES (SUM_AT + SUM_BYTES)

_Static_assert(CMQ_TIMER_CHECK_WIRE_BYTES == 7 * 8, "seven numbers of 8 bytes");

void cmq_timer_check_encode(const cmq_timer_check *check, uint8_t into[CMQ_TIMER_CHECK_WIRE_BYTES])
{
    cmq_store_i64(into, check->read_ms);
    cmq_store_i64(into + 8, check->log_end);
    cmq_store_i64(into + 16, check->queue_offset);
    cmq_store_i64(into + 24, check->master_queue_offset);
    cmq_store_i64(into + 32, check->state_version);
    cmq_store_i64(into + 40, check->timestamp_ms);
    cmq_store_i64(into + 48, check->counter);
}

static void decode(const uint8_t *at, cmq_timer_check *check)
{
    check->read_ms = cmq_load_i64(at);
    check->log_end = cmq_load_i64(at + 8);
    check->queue_offset = cmq_load_i64(at + 16);
    check->master_queue_offset = cmq_load_i64(at + 24);
    check->state_version = cmq_load_i64(at + 32);
    check->timestamp_ms = cmq_load_i64(at + 40);
    check->counter = cmq_load_i64(at + 48);
}

static cmq_status CMQ_MUST_CHECK paths(const char *root, char config[CMQ_PATH_BYTES], char file[CMQ_PATH_BYTES])
{
    const cmq_status status = cmq_path_join(config, root, "config");
    return status == CMQ_OK ? cmq_path_join(file, config, "timercheck") : status;
}

static uint32_t sum_of(const uint8_t *page) { return cmq_crc32(page, CMQ_TIMER_CHECK_WIRE_BYTES); }

static void add_sum(uint8_t *page)
{
    cmq_store_i64(page + SUM_AT, SUM_NAME);
    memcpy(page + SUM_AT + 8, page + VERSION_AT, 16);
    cmq_store_u32(page + SUM_AT + 24, sum_of(page));
}

/* Has the page our checksum of this version, and other numbers? */
static bool is_damaged(const uint8_t *page)
{
    return cmq_load_i64(page + SUM_AT) == SUM_NAME && memcmp(page + SUM_AT + 8, page + VERSION_AT, 16) == 0 &&
           cmq_load_u32(page + SUM_AT + 24) != sum_of(page);
}

cmq_status cmq_timer_check_load(cmq_fs *fs, const char *root, cmq_timer_check *check_out)
{
    char config[CMQ_PATH_BYTES], path[CMQ_PATH_BYTES];
    cmq_file *file;
    cmq_file_info info;
    uint8_t known[USED_BYTES] = {0};
    *check_out = (cmq_timer_check){0};
    cmq_status status = paths(root, config, path);
    if (status == CMQ_OK) status = cmq_file_open(fs, path, CMQ_OPEN_READ, &file);
    if (status == CMQ_ERR_NOT_FOUND) return CMQ_OK;
    if (status != CMQ_OK) return status;
    status = cmq_file_info_of(file, &info);
    if (status == CMQ_OK && info.bytes > 0)
        status = cmq_file_read(file, 0, known, info.bytes < sizeof known ? (size_t)info.bytes : sizeof known);
    cmq_file_close(file);
    if (status != CMQ_OK) return status;
    if (is_damaged(known)) check_out->damaged = true;
    else decode(known, check_out);
    check_out->present = true;
    return CMQ_OK;
}

cmq_status cmq_timer_check_store(cmq_fs *fs, const char *root, cmq_timer_check *check)
{
    char config[CMQ_PATH_BYTES], path[CMQ_PATH_BYTES];
    cmq_file *file;
    uint8_t page[CMQ_TIMER_CHECK_BYTES] = {0};
    cmq_status status = paths(root, config, path);
    if (status == CMQ_OK && !check->present) status = cmq_fs_make_directory_in(fs, root, config);
    if (status == CMQ_OK) status = cmq_file_open(fs, path, CMQ_OPEN_CREATE, &file);
    if (status != CMQ_OK) return status;
    cmq_timer_check_encode(check, page);
    add_sum(page);
    status = cmq_file_write(file, 0, page, check->present ? USED_BYTES : sizeof page);
    if (status == CMQ_OK) status = cmq_file_sync(file);
    cmq_file_close(file);
    if (status == CMQ_OK && !check->present) status = cmq_fs_sync_directory(fs, config);
    if (status == CMQ_OK) check->present = true;
    return status;
}
