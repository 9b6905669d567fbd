/* cmq_checkpoint: see cmq_checkpoint.h. */
#include "store/marks/cmq_checkpoint.h"

#include <string.h>

#include "base/cmq_bytes.h"
#include "base/cmq_crc32.h"

#define STEP_BACK_MS 3000   /* upstream: three seconds before the older of the two times */

_Static_assert(CMQ_CHECKPOINT_KNOWN_BYTES == 5 * 8, "five times and offsets of 8 bytes");

static void decode(const uint8_t *at, cmq_checkpoint *checkpoint)
{
    checkpoint->physic_ms = cmq_load_i64(at);
    checkpoint->logics_ms = cmq_load_i64(at + 8);
    checkpoint->index_ms = cmq_load_i64(at + 16);
    checkpoint->master_flushed = cmq_load_i64(at + 24);
    checkpoint->confirm_phy = cmq_load_i64(at + 32);
}

void cmq_checkpoint_encode(const cmq_checkpoint *checkpoint, uint8_t into[CMQ_CHECKPOINT_KNOWN_BYTES])
{
    cmq_store_i64(into, checkpoint->physic_ms);
    cmq_store_i64(into + 8, checkpoint->logics_ms);
    cmq_store_i64(into + 16, checkpoint->index_ms);
    cmq_store_i64(into + 24, checkpoint->master_flushed);
    cmq_store_i64(into + 32, checkpoint->confirm_phy);
}

static cmq_status read_page(cmq_file *file, cmq_checkpoint *checkpoint)
{
    cmq_file_info info;
    cmq_status status = cmq_file_info_of(file, &info);
    if (status != CMQ_OK) return status;
    uint8_t page[CMQ_CHECKPOINT_BYTES] = {0};
    const size_t bytes = info.bytes < sizeof page ? (size_t)info.bytes : sizeof page;
    if (bytes > 0) status = cmq_file_read(file, 0, page, bytes);
    if (status != CMQ_OK) return status;
    decode(page, checkpoint);
    memcpy(checkpoint->unknown, page + CMQ_CHECKPOINT_KNOWN_BYTES, sizeof checkpoint->unknown);
    checkpoint->file_bytes = info.bytes;
    checkpoint->present = true;
    return CMQ_OK;
}

cmq_status cmq_checkpoint_load(cmq_fs *fs, const char *root, cmq_checkpoint *checkpoint_out)
{
    memset(checkpoint_out, 0, sizeof *checkpoint_out);
    char path[CMQ_PATH_BYTES];
    cmq_status status = cmq_path_join(path, root, "checkpoint");
    if (status != CMQ_OK) return status;
    cmq_file *file;
    status = cmq_file_open(fs, path, CMQ_OPEN_READ, &file);
    if (status == CMQ_ERR_NOT_FOUND) return CMQ_OK;
    if (status != CMQ_OK) return status;
    status = read_page(file, checkpoint_out);
    cmq_file_close(file);
    return status;
}

cmq_status cmq_checkpoint_store(cmq_fs *fs, const char *root, cmq_checkpoint *checkpoint)
{
    char path[CMQ_PATH_BYTES];
    cmq_status status = cmq_path_join(path, root, "checkpoint");
    if (status != CMQ_OK) return status;
    cmq_file *file;
    status = cmq_file_open(fs, path, CMQ_OPEN_CREATE, &file);
    if (status != CMQ_OK) return status;
    uint8_t page[CMQ_CHECKPOINT_BYTES];
    cmq_checkpoint_encode(checkpoint, page);
    memcpy(page + CMQ_CHECKPOINT_KNOWN_BYTES, checkpoint->unknown, sizeof checkpoint->unknown);
    status = cmq_file_write(file, 0, page, sizeof page);
    if (status == CMQ_OK) status = cmq_file_sync(file);
    cmq_file_close(file);
    if (status == CMQ_OK && !checkpoint->present) status = cmq_fs_sync_directory(fs, root);
    if (status != CMQ_OK) return status;
    checkpoint->present = true;
    if (checkpoint->file_bytes < sizeof page) checkpoint->file_bytes = sizeof page;
    return CMQ_OK;
}

void cmq_checkpoint_set_dispatched(cmq_checkpoint *checkpoint, int64_t phy)
{
    if (cmq_load_i64(checkpoint->unknown) != 0) cmq_store_i64(checkpoint->unknown, phy > 0 ? phy : 0);
}

uint32_t cmq_checkpoint_crc(const cmq_checkpoint *checkpoint)
{
    uint8_t known[CMQ_CHECKPOINT_KNOWN_BYTES];
    cmq_checkpoint_encode(checkpoint, known);
    return cmq_crc32(known, sizeof known);
}

int64_t cmq_checkpoint_min_ms(const cmq_checkpoint *checkpoint)
{
    const int64_t min = checkpoint->physic_ms < checkpoint->logics_ms ? checkpoint->physic_ms : checkpoint->logics_ms;
    return min > STEP_BACK_MS ? min - STEP_BACK_MS : 0;
}
