/* cmq_index_file: see cmq_index_file.h. */
#include "store/index/cmq_index_file.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/cmq_assert.h"
#include "base/cmq_map_guard.h"

#define HEADER_SLOTS_USED 32
#define HEADER_COUNT 36
#define ENTRY_PHY 4
#define ENTRY_SECONDS 12
#define ENTRY_PREVIOUS 16
#define WINDOW_BYTES (256u << 10)        /* of entries written with zeros ahead: 13,000 keys */
#define WINDOW_BYTES_MANY (1u << 20)     /* of a file that has many: larger pages cost half */
#define MANY_KEYS 50000
#define WARM_SLOTS_AFTER 2000             /* keys */
#define WARM_STEP_BYTES (2u << 20)
#define PUT_CHUNK 64                     /* slots prefetched ahead: more than a core has misses in flight; 16 to 512
                                          * measure alike */
#define SCAN_ENTRIES 32768               /* entries read at once by a rewind: 640 KiB */

_Static_assert(CMQ_INDEX_HEADER_BYTES == HEADER_COUNT + 4, "the count ends the header");
_Static_assert(CMQ_INDEX_ENTRY_BYTES == ENTRY_PREVIOUS + 4, "the previous entry ends an entry");
_Static_assert(CMQ_INDEX_HEADER_BYTES % 8 == 0, "slots are aligned for atomic access");

/* ---- words of the map that several threads or processes use ---- */

static int32_t load_word(const uint8_t *at)
{
    return (int32_t)__builtin_bswap32(__atomic_load_n((const uint32_t *)(const void *)at, __ATOMIC_ACQUIRE));
}

static void store_word(uint8_t *at, int32_t value)
{
    __atomic_store_n((uint32_t *)(void *)at, __builtin_bswap32((uint32_t)value), __ATOMIC_RELEASE);
}

static int64_t load_long(const uint8_t *at)
{
    return (int64_t)__builtin_bswap64(__atomic_load_n((const uint64_t *)(const void *)at, __ATOMIC_ACQUIRE));
}

static void store_long(uint8_t *at, int64_t value)
{
    __atomic_store_n((uint64_t *)(void *)at, __builtin_bswap64((uint64_t)value), __ATOMIC_RELEASE);
}

static uint8_t *slot_at(const cmq_index_file *file, uint32_t slot)
{
    return file->map + CMQ_INDEX_HEADER_BYTES + (uint64_t)CMQ_INDEX_SLOT_BYTES * slot;
}

static uint64_t entry_offset(const cmq_index_file *file, int32_t number)
{
    return CMQ_INDEX_HEADER_BYTES + (uint64_t)CMQ_INDEX_SLOT_BYTES * (uint32_t)file->slots +
           (uint64_t)CMQ_INDEX_ENTRY_BYTES * (uint32_t)number;
}

static uint8_t *entry_at(const cmq_index_file *file, int32_t number) { return file->map + entry_offset(file, number); }

/* ---- life ---- */

uint64_t cmq_index_file_bytes(int32_t slots, int32_t entries)
{
    if (slots < 1 || entries < 2) return 0;
    return CMQ_INDEX_HEADER_BYTES + (uint64_t)CMQ_INDEX_SLOT_BYTES * (uint32_t)slots +
           (uint64_t)CMQ_INDEX_ENTRY_BYTES * (uint32_t)entries;
}

static cmq_index_file *make(cmq_fs *fs, const char *path, int64_t name, int32_t slots, int32_t entries)
{
    cmq_index_file *file = calloc(1, sizeof *file);
    if (file == NULL) return NULL;
    file->path = strdup(path);
    if (file->path == NULL) {
        free(file);
        return NULL;
    }
    file->fs = fs;
    file->bytes = cmq_index_file_bytes(slots, entries);
    CMQ_ASSERT(file->bytes > 0);
    file->name = name;
    file->slots = slots;
    file->entries = entries;
    file->synced = -1;
    atomic_init(&file->references, 1);
    atomic_init(&file->version, 0);
    return file;
}

void cmq_index_file_hold(cmq_index_file *file)
{
    atomic_fetch_add_explicit(&file->references, 1, memory_order_relaxed);
}

void cmq_index_file_release(cmq_index_file *file)
{
    if (file == NULL || atomic_fetch_sub_explicit(&file->references, 1, memory_order_acq_rel) > 1) return;
    if (file->map != NULL) cmq_fs_unmap(file->fs, file->map, (size_t)file->bytes);
    cmq_file_close(file->file);
    free(file->path);
    free(file);
}

void cmq_index_file_close_file(cmq_index_file *file)
{
    cmq_file_close(file->file);
    file->file = NULL;
}

static cmq_status CMQ_MUST_CHECK need_file(cmq_index_file *file)
{
    return file->file != NULL ? CMQ_OK : cmq_file_open(file->fs, file->path, CMQ_OPEN_WRITE, &file->file);
}

/* By a descriptor of its own: the writer may close his meanwhile. The mapping keeps the inode in memory, so a failed
 * write-back that nobody saw is reported here. */
cmq_status cmq_index_file_sync(const cmq_index_file *file)
{
    cmq_file *opened;
    cmq_status status = cmq_file_open(file->fs, file->path, CMQ_OPEN_WRITE, &opened);
    if (cmq_is_exhausted(status))
        return cmq_fail(CMQ_ERR_LIMIT, "no descriptor left to sync %s; raise the limit (ulimit -n)", file->path);
    if (status == CMQ_ERR_NOT_FOUND) return CMQ_OK;   /* expired or removed meanwhile: nothing to keep */
    if (status != CMQ_OK) return status;
    status = cmq_file_sync(opened);
    cmq_file_close(opened);
    return status;
}

static cmq_status map_all(cmq_index_file *file, bool writable)
{
    const cmq_status status = cmq_file_map(file->file, 0, (size_t)file->bytes, writable, &file->map);
    if (status == CMQ_OK) cmq_index_file_position(file, &file->at);
    return status;
}

static cmq_status check_length(cmq_index_file *file, const char *path)
{
    cmq_file_info info;
    const cmq_status status = cmq_file_info_of(file->file, &info);
    if (status != CMQ_OK) return status;
    if (info.bytes == 0) return CMQ_END;
    if (info.bytes == file->bytes) return CMQ_OK;
    return cmq_fail(CMQ_ERR_SETTING,
                    "index file %s has %" PRIu64 " bytes, but maxHashSlotNum %d with maxIndexNum %d makes %" PRIu64,
                    path, info.bytes, file->slots, file->entries, file->bytes);
}

cmq_status cmq_index_file_open(cmq_fs *fs, const char *path, int64_t name, int32_t slots, int32_t entries,
                               bool writable, cmq_index_file **file_out)
{
    *file_out = NULL;
    cmq_index_file *file = make(fs, path, name, slots, entries);
    if (file == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory to open %s", path);
    cmq_status status = cmq_file_open(fs, path, writable ? CMQ_OPEN_WRITE : CMQ_OPEN_READ, &file->file);
    if (status == CMQ_OK) status = check_length(file, path);
    if (status == CMQ_OK) status = map_all(file, writable);
    if (status != CMQ_OK) {
        cmq_index_file_release(file);
        return status;
    }
    cmq_index_file_close_file(file);
    *file_out = file;
    return CMQ_OK;
}

cmq_status cmq_index_file_create(cmq_fs *fs, const char *path, int64_t name, int32_t slots, int32_t entries,
                                cmq_index_file **file_out)
{
    *file_out = NULL;
    cmq_index_file *file = make(fs, path, name, slots, entries);
    if (file == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory to make %s", path);
    cmq_status status = cmq_file_open(fs, path, CMQ_OPEN_CREATE_NEW, &file->file);
    if (status != CMQ_OK) {
        cmq_index_file_release(file);
        return status;
    }
    status = cmq_file_resize(file->file, file->bytes);
    /* The header is read next: on a full tmpfs the touch of a hole is SIGBUS. */
    if (status == CMQ_OK) status = cmq_file_reserve(file->file, 0, CMQ_INDEX_HEADER_BYTES);
    if (status == CMQ_OK) status = map_all(file, true);
    if (status != CMQ_OK) {
        const cmq_error error = *cmq_last_error();
        cmq_index_file_release(file);
        /* When this fails too, a file without entries stays behind, which load accepts. */
        if (cmq_fs_remove(fs, path) != CMQ_OK)
            return cmq_fail(status, "%s (and %s could not be removed)", error.text, path);
        return cmq_fail(status, "%s", error.text);
    }
    *file_out = file;
    return CMQ_OK;
}

/* Blocks for header and slots: 20 MB with upstream's sizes. Entries are written with zeros instead, which gives them
 * blocks too. */
static cmq_status reserve_slots(cmq_index_file *file)
{
    if (file->slots_reserved) return CMQ_OK;
    const cmq_status status = cmq_file_reserve(file->file, 0, entry_offset(file, 1));
    file->slots_reserved = status == CMQ_OK;
    return status;
}

/* A file with many keys will have all pages of its slots soon: some at a time at once instead of by two faults each, a
 * read's and a write's (10 ns per key over the first million). Where it fails the faults do it. */
static void warm_slots(cmq_index_file *file)
{
    const uint64_t end = entry_offset(file, 0);
    if (!file->slots_reserved || file->slots_warm >= end || file->at.count < WARM_SLOTS_AFTER) return;
    const uint64_t bytes = end - file->slots_warm < WARM_STEP_BYTES ? end - file->slots_warm : WARM_STEP_BYTES;
    (void)!cmq_file_populate(file->map + file->slots_warm, (size_t)bytes);
    file->slots_warm += bytes;
}

/* Zeros by write, not by fallocate and faults: a fault makes one page at a time in a map with random access advised,
 * and costs 20 ns per key where writing ahead costs 5 (bench_index). */
cmq_status cmq_index_file_reserve(cmq_index_file *file, int32_t number)
{
    static uint8_t zeros[WINDOW_BYTES_MANY];   /* never written */
    warm_slots(file);
    if (number <= file->ready) return CMQ_OK;
    cmq_status status = need_file(file);
    if (status == CMQ_OK) status = reserve_slots(file);
    uint64_t at = entry_offset(file, file->ready > file->at.count ? file->ready : file->at.count);
    const uint64_t step_end = entry_offset(file, number) + (number < MANY_KEYS ? WINDOW_BYTES : WINDOW_BYTES_MANY);
    const uint64_t end = step_end < file->bytes ? step_end : file->bytes;
    while (status == CMQ_OK && at < end) {
        const size_t bytes = end - at < sizeof zeros ? (size_t)(end - at) : sizeof zeros;
        status = cmq_file_write(file->file, at, zeros, bytes);
        at += bytes;
    }
    if (status == CMQ_OK) file->ready = (int32_t)((end - entry_offset(file, 0)) / CMQ_INDEX_ENTRY_BYTES);
    return status;
}

/* ---- header ---- */

static void read_header(const cmq_index_file *file, cmq_index_position *position)
{
    position->file_name = file->name;
    position->count = load_word(file->map + HEADER_COUNT);   /* first: the other fields are then at least as new */
    position->slots_used = load_word(file->map + HEADER_SLOTS_USED);
    position->begin_ms = load_long(file->map);
    position->end_ms = load_long(file->map + 8);
    position->begin_phy = load_long(file->map + 16);
    position->end_phy = load_long(file->map + 24);
    if (position->count < 1) position->count = 1;   /* as upstream: a new file's header is zero */
    if (position->count > file->entries) position->count = file->entries;
    if (position->slots_used < 0) position->slots_used = 0;
    if (position->slots_used > file->slots) position->slots_used = file->slots;
}

void cmq_index_file_position(const cmq_index_file *file, cmq_index_position *position_out)
{
    for (;;) {
        const uint32_t before = atomic_load_explicit(&file->version, memory_order_acquire);
        read_header(file, position_out);   /* acquire loads: none of them moves behind the one below */
        if (before % 2 == 0 && atomic_load_explicit(&file->version, memory_order_relaxed) == before) return;
    }
}

/* Release stores throughout: none of them moves before the odd version, and the count is the last that another process
 * sees. */
static void write_header(cmq_index_file *file)
{
    const cmq_index_position *at = &file->at;
    const uint32_t version = atomic_load_explicit(&file->version, memory_order_relaxed);
    atomic_store_explicit(&file->version, version + 1, memory_order_relaxed);
    store_long(file->map, at->begin_ms);
    store_long(file->map + 8, at->end_ms);
    store_long(file->map + 16, at->begin_phy);
    store_long(file->map + 24, at->end_phy);
    store_word(file->map + HEADER_SLOTS_USED, at->slots_used);
    store_word(file->map + HEADER_COUNT, at->count);
    atomic_store_explicit(&file->version, version + 2, memory_order_release);
}

void cmq_index_file_set(cmq_index_file *file, const cmq_index_position *position)
{
    file->at = *position;
    file->at.file_name = file->name;
    write_header(file);
}

/* ---- put ---- */

/* Seconds since the file's begin as upstream counts them. */
static int32_t seconds_since(int64_t begin_ms, int64_t store_ms)
{
    if (begin_ms <= 0 || store_ms <= begin_ms) return 0;
    const int64_t seconds = (store_ms - begin_ms) / 1000;
    return seconds > INT32_MAX ? INT32_MAX : (int32_t)seconds;
}

/* Fields that change from key to key, in registers instead of memory that the map's stores might alias. */
typedef struct put_run {
    uint8_t *entry;      /* where entry `number` goes */
    int64_t begin_ms;
    int32_t number;
    int32_t slots_used;
} put_run;

static inline void put_one(put_run *run, const cmq_index_key *key, uint8_t *slot)
{
    const int32_t head = load_word(slot);
    const bool used = head > 0 && head < run->number;   /* else it is empty, or was left behind by a crash */
    run->slots_used += !used;
    cmq_store_u32(run->entry, key->hash);
    cmq_store_i64(run->entry + ENTRY_PHY, key->phy);
    cmq_store_i32(run->entry + ENTRY_SECONDS, seconds_since(run->begin_ms, key->store_ms));
    cmq_store_i32(run->entry + ENTRY_PREVIOUS, used ? head : 0);
    store_word(slot, run->number);
    run->entry += CMQ_INDEX_ENTRY_BYTES;
    if (run->number++ == 1) run->begin_ms = key->store_ms;
}

void cmq_index_file_put(cmq_index_file *file, const cmq_index_key *keys, uint32_t count)
{
    cmq_index_position *at = &file->at;
    CMQ_ASSERT((int64_t)at->count + count <= file->ready);
    if (count == 0) return;
    put_run run = {.entry = entry_at(file, at->count),
                   .begin_ms = at->begin_ms,
                   .number = at->count,
                   .slots_used = at->slots_used};
    uint8_t *const first_slot = slot_at(file, 0), *slots[PUT_CHUNK];
    const uint32_t slot_count = (uint32_t)file->slots;
    for (uint32_t done = 0; done < count;) {
        const uint32_t chunk = count - done < PUT_CHUNK ? count - done : PUT_CHUNK;
        for (uint32_t i = 0; i < chunk; i++) {
            slots[i] = first_slot + (uint64_t)CMQ_INDEX_SLOT_BYTES * (keys[done + i].hash % slot_count);
            __builtin_prefetch(slots[i], 1);
        }
        for (uint32_t i = 0; i < chunk; i++) put_one(&run, &keys[done + i], slots[i]);
        done += chunk;
    }
    if (at->count == 1) at->begin_phy = keys[0].phy;
    at->begin_ms = run.begin_ms;
    at->end_phy = keys[count - 1].phy;
    at->end_ms = keys[count - 1].store_ms;
    at->count = run.number;
    at->slots_used = run.slots_used < file->slots ? run.slots_used : file->slots;
    write_header(file);
}

/* ---- entries ---- */

static int64_t add_clamped(int64_t a, int64_t b)
{
    int64_t sum;
    if (!__builtin_add_overflow(a, b, &sum)) return sum;
    return b > 0 ? INT64_MAX : INT64_MIN;
}

/* The store time that an entry stands for, up to 999 ms early. A rolled file's first entry counts its seconds from the
 * file before, but the header's begin is that entry's own time. */
static int64_t entry_time(int32_t number, int64_t begin_ms, int32_t seconds)
{
    return number == 1 ? begin_ms : add_clamped(begin_ms, (int64_t)seconds * 1000);
}

void cmq_index_file_entry(const cmq_index_file *file, int32_t number, cmq_index_key *key_out)
{
    const uint8_t *at = entry_at(file, number);
    *key_out = (cmq_index_key){.hash = cmq_load_u32(at),
                               .phy = cmq_load_i64(at + ENTRY_PHY),
                               .store_ms = entry_time(number, load_long(file->map), cmq_load_i32(at + ENTRY_SECONDS))};
}

/* ---- rewind ---- */

/* The slots' references to entries below a count. Read by pieces, not through the map, which has random access advised:
 * cold, its five thousand pages would come one by one (1.5 s against 0.1). */
typedef struct slot_scan {
    uint64_t used;       /* lead to an entry below the count */
    uint64_t behind;     /* lead elsewhere: their bits are set */
    uint8_t *bits;
} slot_scan;

static cmq_status read_slots(const cmq_index_file *file, int32_t count, uint8_t *piece, slot_scan *scan)
{
    const uint32_t per_piece = SCAN_ENTRIES * CMQ_INDEX_ENTRY_BYTES / CMQ_INDEX_SLOT_BYTES,
                   slots = (uint32_t)file->slots;
    for (uint32_t first = 0; first < slots;) {
        const uint64_t at = CMQ_INDEX_HEADER_BYTES + (uint64_t)CMQ_INDEX_SLOT_BYTES * first;
        uint64_t data;
        cmq_status status = cmq_file_next_data(file->file, at, &data);
        /* holes: empty slots */
        if (status == CMQ_END || (status == CMQ_OK && data >= entry_offset(file, 0))) return CMQ_OK;
        if (status != CMQ_OK) return status;
        if (data > at) first += (uint32_t)((data - at) / CMQ_INDEX_SLOT_BYTES);
        const uint32_t some = slots - first < per_piece ? slots - first : per_piece;
        status = cmq_file_read(file->file, CMQ_INDEX_HEADER_BYTES + (uint64_t)CMQ_INDEX_SLOT_BYTES * first, piece,
                               (size_t)some * CMQ_INDEX_SLOT_BYTES);
        if (status != CMQ_OK) return status;
        for (uint32_t i = 0; i < some; i++) {
            const int32_t value = cmq_load_i32(piece + (size_t)i * CMQ_INDEX_SLOT_BYTES);
            scan->used += value > 0 && value < count;
            if (value >= 0 && value < count) continue;
            scan->behind++;
            scan->bits[(first + i) / 8] |= (uint8_t)(1u << (first + i) % 8);
        }
        first += some;
    }
    return CMQ_OK;
}

/* Give slots that point behind `count` the newest entry of theirs below it, looking from the newest entry back, until
 * as many slots are used as were at that count; the others were empty then. The chain itself cannot be followed:
 * entries from `count` on may never have reached the disk, or be another time's. */
static cmq_status repair_slots(cmq_index_file *file, int32_t count, uint64_t used_then, uint8_t *piece, slot_scan *scan)
{
    cmq_status status = CMQ_OK;
    /* A header that counts fewer than there are is useless: look through all. */
    uint64_t missing = used_then >= scan->used ? used_then - scan->used : scan->behind;
    for (int32_t end = count; end > 1 && missing > 0 && scan->behind > 0 && status == CMQ_OK;) {
        const int32_t begin = end - 1 > SCAN_ENTRIES ? end - SCAN_ENTRIES : 1;
        status =
            cmq_file_read(file->file, entry_offset(file, begin), piece, (size_t)(end - begin) * CMQ_INDEX_ENTRY_BYTES);
        for (int32_t number = end - 1; number >= begin && missing > 0 && status == CMQ_OK; number--) {
            const uint32_t slot =
                cmq_load_u32(piece + (size_t)(number - begin) * CMQ_INDEX_ENTRY_BYTES) % (uint32_t)file->slots;
            const uint8_t bit = (uint8_t)(1u << slot % 8);
            if ((scan->bits[slot / 8] & bit) == 0) continue;
            scan->bits[slot / 8] &= (uint8_t)~bit;
            store_word(slot_at(file, slot), number);
            scan->behind--;
            scan->used++;
            missing--;
        }
        end = begin;
    }
    for (uint32_t slot = 0; slot < (uint32_t)file->slots && scan->behind > 0 && status == CMQ_OK; slot++) {
        if (((unsigned)scan->bits[slot / 8] >> slot % 8 & 1u) == 0) continue;
        store_word(slot_at(file, slot), 0);
        scan->behind--;
    }
    return status;
}

static cmq_status check_position(const cmq_index_file *file, const cmq_index_position *position)
{
    cmq_index_position now;
    cmq_index_file_position(file, &now);
    if (position->count < 1 || position->count > file->entries || position->slots_used < 0 ||
        position->slots_used > file->slots)
        return cmq_fail(CMQ_ERR_CORRUPT, "index file %017" PRId64 " cannot have %d entries", file->name,
                        position->count - 1);
    if (position->count == 1) return CMQ_OK;
    const int64_t last_phy = cmq_load_i64(entry_at(file, position->count - 1) + ENTRY_PHY);
    if (now.count < position->count || now.begin_phy != position->begin_phy || now.begin_ms != position->begin_ms ||
        last_phy != position->end_phy)
        return cmq_fail(CMQ_ERR_CORRUPT,
                        "index file %017" PRId64 " is not the one that had %d entries up to offset %" PRId64,
                        file->name, position->count - 1, position->end_phy);
    return CMQ_OK;
}

/* Entries below position->count stay, every slot points to one of them, the header is `position`. `used_then`: how many
 * slots were used at that count, as far as it is known. */
static cmq_status go_back(cmq_index_file *file, const cmq_index_position *position, uint64_t used_then,
                          uint64_t *used_out)
{
    slot_scan scan = {.bits = calloc(((uint32_t)file->slots + 7u) / 8u, 1)};
    uint8_t *piece = malloc((size_t)SCAN_ENTRIES * CMQ_INDEX_ENTRY_BYTES);
    cmq_status status =
        scan.bits == NULL || piece == NULL ? cmq_fail(CMQ_ERR_MEMORY, "no memory to go back in an index file") : CMQ_OK;
    if (status == CMQ_OK) status = need_file(file);
    if (status == CMQ_OK) status = read_slots(file, position->count, piece, &scan);
    /* the slots' blocks, before any is written */
    if (status == CMQ_OK && scan.behind > 0) status = reserve_slots(file);
    const uint64_t behind = scan.behind;
    if (status == CMQ_OK && behind > 0) status = repair_slots(file, position->count, used_then, piece, &scan);
    free(scan.bits);
    free(piece);
    if (status != CMQ_OK) return status;
    *used_out = scan.used;
    cmq_index_file_set(file, position);
    file->synced = -1;
    return CMQ_OK;
}

cmq_status cmq_index_file_rewind(cmq_index_file *file, const cmq_index_position *position)
{
    uint64_t ignored;
    const cmq_status status = check_position(file, position);
    return status != CMQ_OK ? status : go_back(file, position, (uint64_t)position->slots_used, &ignored);
}

cmq_status cmq_index_file_is_at(cmq_index_file *file, const cmq_index_position *position, bool *is_at_out)
{
    cmq_index_position now;
    const cmq_status status = check_position(file, position);
    cmq_index_file_position(file, &now);
    *is_at_out = status == CMQ_OK && now.count == position->count && now.slots_used == position->slots_used &&
                 now.end_phy == position->end_phy && now.end_ms == position->end_ms;
    return status;
}

cmq_status cmq_index_file_cut(cmq_index_file *file, int64_t log_end, cmq_index_position *position_out)
{
    cmq_index_file_position(file, position_out);
    cmq_index_key last = {0};
    while (position_out->count > 1) {
        cmq_index_file_entry(file, position_out->count - 1, &last);
        if (last.phy < log_end) break;
        position_out->count--;
    }
    if (position_out->count == 1) return CMQ_OK;   /* the file goes as a whole */
    position_out->end_phy = last.phy;
    const int64_t latest_ms = position_out->count == 2 ? last.store_ms : add_clamped(last.store_ms, 999);
    if (position_out->end_ms > latest_ms) position_out->end_ms = latest_ms;
    uint64_t used;
    const cmq_status status = go_back(file, position_out, UINT64_MAX, &used);
    if (status != CMQ_OK) return status;
    position_out->slots_used = (int32_t)used;
    cmq_index_file_set(file, position_out);
    return CMQ_OK;
}

/* ---- find ---- */

uint32_t cmq_index_file_find(const cmq_index_file *file, const cmq_index_file_wanted *wanted, int32_t *entry,
                            int64_t *last_phy, int64_t *phy_out, uint32_t capacity)
{
    int32_t number = *entry != 0 ? *entry : load_word(slot_at(file, wanted->hash % (uint32_t)file->slots));
    const int32_t count = load_word(file->map + HEADER_COUNT);
    const int64_t begin_ms = load_long(file->map);
    uint32_t found = 0;
    while (number > 0 && number < file->entries && found < capacity) {
        const uint8_t *at = entry_at(file, number);
        const int32_t previous = cmq_load_i32(at + ENTRY_PREVIOUS);
        if (number < count) {   /* those behind are being put just now, or were left by a crash */
            const int64_t phy = cmq_load_i64(at + ENTRY_PHY);
            const int32_t seconds = cmq_load_i32(at + ENTRY_SECONDS);
            const int64_t time = entry_time(number, begin_ms, seconds);
            if (seconds < 0 || phy < 0 || phy < wanted->min_phy || add_clamped(time, 999) < wanted->begin_ms) {
                number = 0;   /* the rest is older */
                break;
            }
            if (cmq_load_u32(at) == wanted->hash && time <= wanted->end_ms && *last_phy != add_clamped(phy, 1)) {
                phy_out[found++] = phy;
                *last_phy = add_clamped(phy, 1);
            }
        }
        number = previous < number ? previous : 0;
    }
    *entry = number > 0 && number < file->entries ? number : 0;
    return found;
}

bool cmq_index_file_walk_is_lost(const cmq_index_file *file, const cmq_index_file_wanted *wanted)
{
    if (!cmq_map_guard_is_lost(file->map, (size_t)file->bytes)) return false;
    const uint8_t *slot = slot_at(file, wanted->hash % (uint32_t)file->slots);
    bool lost =
        cmq_map_guard_is_lost(file->map, CMQ_INDEX_HEADER_BYTES) || cmq_map_guard_is_lost(slot, CMQ_INDEX_SLOT_BYTES);
    for (int32_t number = load_word(slot); number > 0 && number < file->entries && !lost;) {
        const uint8_t *at = entry_at(file, number);
        const int32_t previous = cmq_load_i32(at + ENTRY_PREVIOUS);
        lost = cmq_map_guard_is_lost(at, CMQ_INDEX_ENTRY_BYTES);
        number = previous < number ? previous : 0;
    }
    return lost;
}
