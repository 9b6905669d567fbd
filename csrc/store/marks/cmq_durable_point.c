/* cmq_durable_point: see cmq_durable_point.h.
 *
 * A slot, big-endian:
 *     0 magic u64            8 version u32          12 flags u32 (1: clean, 2: queues, 4: batch queues, 8: queues_also,
 *                                                      16: newer only, 32: marks, 64: queues are known)
 *    16 sequence u64        24 log_end i64          32 store_ms i64
 *    40 index: file_name i64, count i32, slots_used i32, begin_ms, end_ms, begin_phy, end_phy i64
 *    88 last_phy i64        96 last_bytes i32      100 last_crc u32        104 checkpoint_crc u32     108 queues u64
 *   116 sizes: segment_bytes, queue_file_bytes, batch_file_bytes, ext_file_bytes i64, index_slots, index_entries i32
 *   156 queues_also u64    164 index_missing_from, index_missing_end i64
 *   180 crc32 of the first 24 bytes                184 crc32 of the bytes before
 *
 * Every later version keeps the first 24 bytes with their crc32 at 180. With the flag "newer only" set there, a program
 * that does not know the version leaves the store alone; without it, it ignores the point. Nothing sets the flag yet.
 *
 * Versions that are still read: 3 has no index_missing, and its crc32 at 164; 2 has no sizes either, and its crc32 at
 * 116.
 */
#include "store/marks/cmq_durable_point.h"

#include <stdlib.h>
#include <string.h>

#include "base/cmq_bytes.h"
#include "base/cmq_crc32.h"
#include "store/marks/cmq_own_files.h"

#define MAGIC 0x434D51504F494E54u   /* "CMQPOINT" */
#define VERSION 4u
#define VERSION_WITHOUT_MISSING 3u
#define VERSION_WITHOUT_SIZES 2u
#define FLAG_CLEAN 1u
#define FLAG_QUEUES 2u
#define FLAG_BATCH_QUEUES 4u
#define FLAG_ALSO 8u
#define FLAG_NEWER_ONLY 16u
#define FLAG_MARKS 32u
#define FLAG_QUEUES_KNOWN 64u   /* older writers did not set it: there any number but 0 was known */
#define SLOT_BYTES 188
#define SIZES_AT 116
#define MISSING_AT 164
#define HEAD_BYTES 24
#define HEAD_CRC_AT 180
#define SLOT_STEP 4096   /* a page each: no write of one slot can tear the other */
#define SLOTS 2

_Static_assert(SLOT_BYTES <= 512, "a slot fits one sector");

struct cmq_durable_point_file {
    cmq_file *file;
    uint64_t sequence;   /* of the newest slot */
    uint64_t kept;       /* the slot that the next store must not touch */
};

static void encode(const cmq_durable_point *point, uint64_t sequence, uint8_t at[SLOT_BYTES])
{
    cmq_store_u64(at, MAGIC);
    cmq_store_u32(at + 8, VERSION);
    cmq_store_u32(at + 12, (point->clean ? FLAG_CLEAN : 0) | (point->has_queues ? FLAG_QUEUES : 0) |
                               (point->has_batch_queues ? FLAG_BATCH_QUEUES : 0) | (point->has_also ? FLAG_ALSO : 0) |
                               (point->marks ? FLAG_MARKS : 0) | (point->queues_known ? FLAG_QUEUES_KNOWN : 0));
    cmq_store_u64(at + 16, sequence);
    cmq_store_i64(at + 24, point->log_end);
    cmq_store_i64(at + 32, point->store_ms);
    cmq_store_i64(at + 40, point->index.file_name);
    cmq_store_i32(at + 48, point->index.count);
    cmq_store_i32(at + 52, point->index.slots_used);
    cmq_store_i64(at + 56, point->index.begin_ms);
    cmq_store_i64(at + 64, point->index.end_ms);
    cmq_store_i64(at + 72, point->index.begin_phy);
    cmq_store_i64(at + 80, point->index.end_phy);
    cmq_store_i64(at + 88, point->last_phy);
    cmq_store_i32(at + 96, point->last_bytes);
    cmq_store_u32(at + 100, point->last_crc);
    cmq_store_u32(at + 104, point->checkpoint_crc);
    cmq_store_u64(at + 108, point->queues);
    cmq_store_i64(at + SIZES_AT, point->sizes.segment_bytes);
    cmq_store_i64(at + SIZES_AT + 8, point->sizes.queue_file_bytes);
    cmq_store_i64(at + SIZES_AT + 16, point->sizes.batch_file_bytes);
    cmq_store_i64(at + SIZES_AT + 24, point->sizes.ext_file_bytes);
    cmq_store_i32(at + SIZES_AT + 32, point->sizes.index_slots);
    cmq_store_i32(at + SIZES_AT + 36, point->sizes.index_entries);
    cmq_store_u64(at + SIZES_AT + 40, point->queues_also);
    cmq_store_i64(at + MISSING_AT, point->index_missing_from);
    cmq_store_i64(at + MISSING_AT + 8, point->index_missing_end);
    cmq_store_u32(at + HEAD_CRC_AT, cmq_crc32(at, HEAD_BYTES));
    cmq_store_u32(at + SLOT_BYTES - 4, cmq_crc32(at, SLOT_BYTES - 4));
}

static cmq_layout_sizes decode_sizes(const uint8_t at[SLOT_BYTES])
{
    return (cmq_layout_sizes){
        .segment_bytes = cmq_load_i64(at + SIZES_AT),
        .queue_file_bytes = cmq_load_i64(at + SIZES_AT + 8),
        .batch_file_bytes = cmq_load_i64(at + SIZES_AT + 16),
        .ext_file_bytes = cmq_load_i64(at + SIZES_AT + 24),
        .index_slots = cmq_load_i32(at + SIZES_AT + 32),
        .index_entries = cmq_load_i32(at + SIZES_AT + 36),
    };
}

/* Where a version has its checksum, behind all that it says; 0: a version that is not known. */
static size_t crc_place(uint32_t version)
{
    switch (version) {
    case VERSION: return SLOT_BYTES - 4;
    case VERSION_WITHOUT_MISSING: return MISSING_AT;
    case VERSION_WITHOUT_SIZES: return SIZES_AT;
    default: return 0;
    }
}

static bool decode(const uint8_t at[SLOT_BYTES], cmq_durable_point *point_out, uint64_t *sequence_out)
{
    const uint32_t version = cmq_load_u32(at + 8);
    const size_t crc_at = crc_place(version);
    if (cmq_load_u64(at) != MAGIC || crc_at == 0) return false;
    if (cmq_load_u32(at + crc_at) != cmq_crc32(at, crc_at)) return false;
    *sequence_out = cmq_load_u64(at + 16);
    *point_out = (cmq_durable_point){
        .clean = (cmq_load_u32(at + 12) & FLAG_CLEAN) != 0,
        .marks = (cmq_load_u32(at + 12) & FLAG_MARKS) != 0,
        .has_queues = (cmq_load_u32(at + 12) & FLAG_QUEUES) != 0,
        .has_batch_queues = (cmq_load_u32(at + 12) & FLAG_BATCH_QUEUES) != 0,
        .log_end = cmq_load_i64(at + 24),
        .store_ms = cmq_load_i64(at + 32),
        .index = {.file_name = cmq_load_i64(at + 40),
                  .count = cmq_load_i32(at + 48),
                  .slots_used = cmq_load_i32(at + 52),
                  .begin_ms = cmq_load_i64(at + 56),
                  .end_ms = cmq_load_i64(at + 64),
                  .begin_phy = cmq_load_i64(at + 72),
                  .end_phy = cmq_load_i64(at + 80)},
        .last_phy = cmq_load_i64(at + 88),
        .last_bytes = cmq_load_i32(at + 96),
        .last_crc = cmq_load_u32(at + 100),
        .checkpoint_crc = cmq_load_u32(at + 104),
        .queues = cmq_load_u64(at + 108),
        .queues_known = (cmq_load_u32(at + 12) & FLAG_QUEUES_KNOWN) != 0 || cmq_load_u64(at + 108) != 0,
    };
    if (version >= VERSION_WITHOUT_MISSING) {
        point_out->sizes = decode_sizes(at);
        point_out->has_also = (cmq_load_u32(at + 12) & FLAG_ALSO) != 0;
        point_out->queues_also = cmq_load_u64(at + SIZES_AT + 40);
    }
    if (version >= VERSION) {
        point_out->index_missing_from = cmq_load_i64(at + MISSING_AT);
        point_out->index_missing_end = cmq_load_i64(at + MISSING_AT + 8);
    }
    return true;
}

/* Which slots count. */
typedef struct wanted {
    bool any;
    uint32_t checkpoint_crc;
} wanted;

/* The newest valid slot of an open file that is wanted. A file that ends early has fewer slots. */
static cmq_status read_newest(cmq_file *file, wanted which, cmq_durable_point *point_out, uint64_t *sequence_out,
                              uint64_t *slot_out, bool *found_out)
{
    cmq_file_info info;
    cmq_status status = cmq_file_info_of(file, &info);
    for (uint64_t slot = 0; status == CMQ_OK && slot < SLOTS; slot++) {
        if (info.bytes < slot * SLOT_STEP + SLOT_BYTES) break;
        uint8_t at[SLOT_BYTES];
        status = cmq_file_read(file, slot * SLOT_STEP, at, sizeof at);
        cmq_durable_point point;
        uint64_t sequence;
        if (status != CMQ_OK || !decode(at, &point, &sequence)) continue;
        if (!which.any && point.checkpoint_crc != which.checkpoint_crc) continue;
        if (*found_out && sequence < *sequence_out) continue;
        *point_out = point;
        *sequence_out = sequence;
        *slot_out = slot;
        *found_out = true;
    }
    return status;
}

/* The file, to read; NULL when there is none. */
static cmq_status open_to_read(cmq_fs *fs, const char *root, char path[CMQ_PATH_BYTES], cmq_file **file_out)
{
    *file_out = NULL;
    cmq_status status = cmq_path_join(path, root, CMQ_OWN_FOLDER "/point");
    if (status == CMQ_OK) status = cmq_file_open(fs, path, CMQ_OPEN_READ, file_out);
    return status == CMQ_ERR_NOT_FOUND ? CMQ_OK : status;
}

static cmq_status load(cmq_fs *fs, const char *root, wanted which, cmq_durable_point *point_out, bool *found_out)
{
    memset(point_out, 0, sizeof *point_out);
    *found_out = false;
    char path[CMQ_PATH_BYTES];
    cmq_file *file;
    cmq_status status = open_to_read(fs, root, path, &file);
    if (status != CMQ_OK || file == NULL) return status;
    uint64_t sequence = 0, slot = 0;
    status = read_newest(file, which, point_out, &sequence, &slot, found_out);
    cmq_file_close(file);
    return status;
}

cmq_status cmq_durable_point_load(cmq_fs *fs, const char *root, cmq_durable_point *point_out, bool *found_out)
{
    return load(fs, root, (wanted){.any = true}, point_out, found_out);
}

cmq_status cmq_durable_point_load_for(cmq_fs *fs, const char *root, uint32_t checkpoint_crc,
                                      cmq_durable_point *point_out, bool *found_out)
{
    return load(fs, root, (wanted){.checkpoint_crc = checkpoint_crc}, point_out, found_out);
}

cmq_status cmq_durable_point_refuse_newer(cmq_fs *fs, const char *root)
{
    char path[CMQ_PATH_BYTES];
    cmq_file *file;
    cmq_file_info info;
    cmq_status status = open_to_read(fs, root, path, &file);
    if (status != CMQ_OK || file == NULL) return status;
    status = cmq_file_info_of(file, &info);
    for (uint64_t slot = 0; status == CMQ_OK && slot < SLOTS && info.bytes >= slot * SLOT_STEP + SLOT_BYTES; slot++) {
        uint8_t at[SLOT_BYTES];
        status = cmq_file_read(file, slot * SLOT_STEP, at, sizeof at);
        if (status != CMQ_OK || cmq_load_u64(at) != MAGIC ||
            cmq_load_u32(at + HEAD_CRC_AT) != cmq_crc32(at, HEAD_BYTES))
            continue;
        if (cmq_load_u32(at + 8) > VERSION && (cmq_load_u32(at + 12) & FLAG_NEWER_ONLY) != 0)
            status = cmq_fail(CMQ_ERR_NOT_STORE,
                              "%s says that a newer CometMQ wrote this store, and that an older one must not use it "
                              "(its format is %u, this "
                              "program knows up to %u): `pip install --upgrade cometmq`",
                              path, cmq_load_u32(at + 8), VERSION);
    }
    cmq_file_close(file);
    return status;
}

/* Make folder and file, durably, with the blocks of both slots, so that a full disk does not stop a later store. */
static cmq_status prepare(cmq_fs *fs, const char *root, cmq_file *file)
{
    cmq_file_info info;
    cmq_status status = cmq_file_info_of(file, &info);
    if (status == CMQ_OK && info.bytes < SLOTS * SLOT_STEP) status = cmq_file_resize(file, SLOTS * SLOT_STEP);
    if (status == CMQ_OK) status = cmq_file_reserve(file, 0, SLOTS * SLOT_STEP);
    if (status == CMQ_OK) status = cmq_file_sync(file);
    char folder[CMQ_PATH_BYTES];
    if (status == CMQ_OK) status = cmq_path_join(folder, root, CMQ_OWN_FOLDER);
    return status != CMQ_OK ? status : cmq_fs_sync_directory(fs, folder);
}

cmq_status cmq_durable_point_open(cmq_fs *fs, const char *root, cmq_durable_point_file **file_out)
{
    *file_out = NULL;
    char path[CMQ_PATH_BYTES];
    cmq_status status = cmq_path_join(path, root, CMQ_OWN_FOLDER);
    if (status == CMQ_OK) status = cmq_fs_make_directory_in(fs, root, path);
    if (status == CMQ_OK) status = cmq_path_join(path, root, CMQ_OWN_FOLDER "/point");
    if (status != CMQ_OK) return status;
    cmq_durable_point_file *opened = calloc(1, sizeof *opened);
    if (opened == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory to open %s", path);
    status = cmq_file_open(fs, path, CMQ_OPEN_CREATE, &opened->file);
    if (status == CMQ_OK) status = prepare(fs, root, opened->file);
    cmq_durable_point point;
    bool found = false;
    if (status == CMQ_OK)
        status = read_newest(opened->file, (wanted){.any = true}, &point, &opened->sequence, &opened->kept, &found);
    if (status != CMQ_OK) {
        cmq_durable_point_close(opened);
        return status;
    }
    *file_out = opened;
    return CMQ_OK;
}

cmq_status cmq_durable_point_store(cmq_durable_point_file *file, const cmq_durable_point *point)
{
    const uint64_t sequence = file->sequence + 1;
    uint8_t at[SLOT_BYTES];
    encode(point, sequence, at);
    const uint64_t slot = (file->kept + 1) % SLOTS;
    cmq_status status = cmq_file_write(file->file, slot * SLOT_STEP, at, sizeof at);
    if (status == CMQ_OK) status = cmq_file_sync(file->file);
    if (status != CMQ_OK) return status;
    file->sequence = sequence;
    file->kept = slot;
    return CMQ_OK;
}

cmq_status cmq_durable_point_keep(cmq_durable_point_file *file, uint32_t checkpoint_crc)
{
    cmq_durable_point point;
    uint64_t sequence = 0;
    bool found = false;
    return read_newest(file->file, (wanted){.checkpoint_crc = checkpoint_crc}, &point, &sequence, &file->kept, &found);
}

void cmq_durable_point_close(cmq_durable_point_file *file)
{
    if (file == NULL) return;
    cmq_file_close(file->file);
    free(file);
}

cmq_status cmq_durable_point_forget(cmq_fs *fs, const char *root)
{
    char path[CMQ_PATH_BYTES];
    cmq_status status = cmq_path_join(path, root, CMQ_OWN_FOLDER "/point");
    if (status != CMQ_OK) return status;
    status = cmq_fs_remove(fs, path);
    if (status == CMQ_ERR_NOT_FOUND) return CMQ_OK;
    if (status == CMQ_OK) status = cmq_path_join(path, root, CMQ_OWN_FOLDER);
    return status != CMQ_OK ? status : cmq_fs_sync_directory(fs, path);
}
