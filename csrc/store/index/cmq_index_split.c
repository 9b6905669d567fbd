/* cmq_index_split: proves or finds an index file's split into slots and entries (cmq_index_prove_split,
 * cmq_index_find_split).
 *
 * The length L = 40 + 4 * slots + 20 * entries leaves every fifth number of slots possible. Five slots are as long as
 * one entry, so all those candidates see the same cells of 20 bytes and differ only in which cell is entry 0. Two facts
 * pick the right one: entry 1 starts at the header's begin offset and has no predecessor, and slot and chain of an
 * entry must belong to its hash modulo slots, which a wrong number meets by chance once in `slots`. Finding asks a
 * sample of entries and forgives a tenth, so that a file that a crash has torn still shows its split; proving replays
 * every entry and forgives nothing.
 *
 * Threads: any; nothing is kept.
 * Source:  ours; spec store 4.1.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "base/cmq_bytes.h"
#include "store/index/cmq_index.h"

#define HEADER_SLOTS_USED 32
#define HEADER_COUNT 36
#define SCAN_BYTES (20 * 32768)
#define SAMPLES 64
#define CANDIDATES_MAX 4096   /* cells that look like an entry 1 and survive the first look; more means that the file is
                               * none of ours */

typedef struct split_file {
    cmq_file *file;
    uint64_t bytes;
    int64_t begin_phy, end_phy;
    int32_t count, slots_used;
} split_file;

typedef struct split_entry {
    uint32_t hash;
    int64_t phy;
    int32_t seconds, previous;
} split_entry;

static cmq_status open_split(cmq_fs *fs, const char *path, split_file *split)
{
    *split = (split_file){0};
    cmq_status status = cmq_file_open(fs, path, CMQ_OPEN_READ, &split->file);
    if (status != CMQ_OK) return status;
    cmq_file_info info;
    status = cmq_file_info_of(split->file, &info);
    uint8_t header[CMQ_INDEX_HEADER_BYTES] = {0}, count[4] = {0};
    if (status == CMQ_OK && info.bytes >= sizeof header) {
        /* The count first: beside a writer the rest is then as new at least. */
        status = cmq_file_read(split->file, HEADER_COUNT, count, sizeof count);
        if (status == CMQ_OK) status = cmq_file_read(split->file, 0, header, sizeof header);
    }
    if (status != CMQ_OK) {
        cmq_file_close(split->file);
        split->file = NULL;
        return status;
    }
    split->bytes = info.bytes;
    split->begin_phy = cmq_load_i64(header + 16);
    split->end_phy = cmq_load_i64(header + 24);
    split->slots_used = cmq_load_i32(header + HEADER_SLOTS_USED);
    split->count = cmq_load_i32(count);
    return CMQ_OK;
}

/* The number of entries that makes the length with so many slots; 0 when none does. */
static int32_t entries_for(uint64_t bytes, int64_t slots)
{
    if (slots < 1 || slots > INT32_MAX || bytes < CMQ_INDEX_HEADER_BYTES) return 0;
    const uint64_t body = bytes - CMQ_INDEX_HEADER_BYTES, slot_bytes = (uint64_t)slots * CMQ_INDEX_SLOT_BYTES;
    if (slot_bytes > body || (body - slot_bytes) % CMQ_INDEX_ENTRY_BYTES != 0) return 0;
    const uint64_t entries = (body - slot_bytes) / CMQ_INDEX_ENTRY_BYTES;
    return entries >= 2 && entries <= INT32_MAX ? (int32_t)entries : 0;
}

static uint64_t entry_offset(int32_t slots, int32_t number)
{
    return CMQ_INDEX_HEADER_BYTES + (uint64_t)CMQ_INDEX_SLOT_BYTES * (uint32_t)slots +
           (uint64_t)CMQ_INDEX_ENTRY_BYTES * (uint32_t)number;
}

static split_entry decode_entry(const uint8_t *at)
{
    return (split_entry){.hash = cmq_load_u32(at),
                         .phy = cmq_load_i64(at + 4),
                         .seconds = cmq_load_i32(at + 12),
                         .previous = cmq_load_i32(at + 16)};
}

static cmq_status read_entry(const split_file *split, int32_t slots, int32_t number, split_entry *entry_out)
{
    uint8_t at[CMQ_INDEX_ENTRY_BYTES];
    const cmq_status status = cmq_file_read(split->file, entry_offset(slots, number), at, sizeof at);
    if (status == CMQ_OK) *entry_out = decode_entry(at);
    return status;
}

static cmq_status read_slot(const split_file *split, uint32_t slot, int32_t *value_out)
{
    uint8_t at[CMQ_INDEX_SLOT_BYTES];
    const cmq_status status =
        cmq_file_read(split->file, CMQ_INDEX_HEADER_BYTES + (uint64_t)CMQ_INDEX_SLOT_BYTES * slot, at, sizeof at);
    if (status == CMQ_OK) *value_out = cmq_load_i32(at);
    return status;
}

/* ---- sampled: does a split fit? ---- */

/* Is `number` an entry of this slot? Numbers from the count on are being written, or were left by a crash: they say
 * nothing. */
static cmq_status belongs(const split_file *split, int32_t slots, uint32_t slot, int32_t number, bool *belongs_out)
{
    *belongs_out = true;
    if (number >= split->count) return CMQ_OK;
    split_entry entry;
    const cmq_status status = read_entry(split, slots, number, &entry);
    *belongs_out = status == CMQ_OK && entry.hash % (uint32_t)slots == slot;
    return status;
}

/* Can it be entry `number`, as far as its own bytes say? Zeros are what a wrong split finds behind the last entry. */
static bool is_plausible(const split_file *split, const split_entry *entry, int32_t number)
{
    if (entry->hash > INT32_MAX || entry->seconds < 0 || entry->previous < 0 || entry->previous >= number) return false;
    if (entry->phy < split->begin_phy || entry->phy > split->end_phy) return false;
    return entry->hash != 0 || entry->phy != 0;
}

/* Entry, its slot's head and its predecessor must agree. */
static cmq_status entry_fits(const split_file *split, int32_t slots, int32_t entries, int32_t number, bool *fits_out)
{
    *fits_out = false;
    split_entry entry;
    cmq_status status = read_entry(split, slots, number, &entry);
    if (status != CMQ_OK) return status;
    if (!is_plausible(split, &entry, number)) return CMQ_OK;
    const uint32_t slot = entry.hash % (uint32_t)slots;
    int32_t head;
    status = read_slot(split, slot, &head);
    if (status != CMQ_OK || head < number || head >= entries) return status;
    bool good;
    status = belongs(split, slots, slot, head, &good);
    if (status == CMQ_OK && good && entry.previous > 0) status = belongs(split, slots, slot, entry.previous, &good);
    *fits_out = status == CMQ_OK && good;
    return status;
}

/* Nine tenths of up to SAMPLES entries, spread over the file. */
static cmq_status split_fits(const split_file *split, int32_t slots, int32_t entries, bool *fits_out)
{
    *fits_out = false;
    if (split->count < 2 || split->count > entries || split->slots_used < 1 || split->slots_used > slots) return CMQ_OK;
    const int64_t present = split->count - 1;
    const int64_t samples = present < SAMPLES ? present : SAMPLES;
    int64_t misses = 0;
    for (int64_t i = 0; i < samples; i++) {
        /* From the newest back: a wrong split mostly fails at once. */
        const int32_t number = (int32_t)(present - (samples == 1 ? 0 : i * (present - 1) / (samples - 1)));
        bool fits;
        const cmq_status status = entry_fits(split, slots, entries, number, &fits);
        if (status != CMQ_OK) return status;
        if (!fits && ++misses * 10 > samples) return CMQ_OK;
    }
    *fits_out = true;
    return CMQ_OK;
}

/* ---- finding ---- */

typedef struct split_found {
    int32_t slots, entries;
    uint32_t count;   /* different splits that fit */
} split_found;

static cmq_status try_split(const split_file *split, int64_t slots, split_found *found)
{
    const int32_t entries = entries_for(split->bytes, slots);
    if (entries == 0 || (found->count > 0 && found->slots == slots)) return CMQ_OK;
    bool fits;
    const cmq_status status = split_fits(split, (int32_t)slots, entries, &fits);
    if (status != CMQ_OK || !fits) return status;
    if (found->count++ == 0) {
        found->slots = (int32_t)slots;
        found->entries = entries;
    }
    return CMQ_OK;
}

/* The splits that people choose: upstream's, and its ratio of one slot to four entries, and one to one to ten. */
static cmq_status try_usual(const split_file *split, split_found *found)
{
    if (entries_for(split->bytes, CMQ_INDEX_SLOTS_DEFAULT) == CMQ_INDEX_ENTRIES_DEFAULT) {
        const cmq_status status = try_split(split, CMQ_INDEX_SLOTS_DEFAULT, found);
        if (status != CMQ_OK || found->count > 0) return status;
    }
    static const uint64_t ratios[] = {4, 1, 2, 3, 5, 8, 10};
    const uint64_t body = split->bytes - CMQ_INDEX_HEADER_BYTES;
    for (size_t i = 0; i < sizeof ratios / sizeof ratios[0]; i++) {
        const uint64_t pair_bytes = CMQ_INDEX_SLOT_BYTES + CMQ_INDEX_ENTRY_BYTES * ratios[i];
        if (body % pair_bytes != 0 || body / pair_bytes > INT32_MAX) continue;
        const cmq_status status = try_split(split, (int64_t)(body / pair_bytes), found);
        if (status != CMQ_OK || found->count > 0) return status;
    }
    return CMQ_OK;
}

/* Can the cell be entry 1: at the header's begin offset, without a predecessor, and not a cell of zeros? */
static bool may_be_first(const split_file *split, const uint8_t *cell)
{
    const split_entry entry = decode_entry(cell);
    return entry.phy == split->begin_phy && is_plausible(split, &entry, 1);
}

static cmq_status try_cells(const split_file *split, uint64_t offset, const uint8_t *cells, size_t bytes,
                            uint32_t *tried, split_found *found)
{
    for (size_t at = 0; at + CMQ_INDEX_ENTRY_BYTES <= bytes; at += CMQ_INDEX_ENTRY_BYTES) {
        if (!may_be_first(split, cells + at)) continue;
        if (++*tried > CANDIDATES_MAX) return CMQ_OK;
        const uint64_t first = offset + at - CMQ_INDEX_ENTRY_BYTES;   /* where entry 0 would stand */
        const cmq_status status =
            try_split(split, (int64_t)((first - CMQ_INDEX_HEADER_BYTES) / CMQ_INDEX_SLOT_BYTES), found);
        if (status != CMQ_OK) return status;
    }
    return CMQ_OK;
}

/* Walk the cells, skipping holes; every cell that may be entry 1 names a candidate. */
static cmq_status try_all(const split_file *split, split_found *found)
{
    uint8_t *cells = malloc(SCAN_BYTES);
    if (cells == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory to read an index file");
    /* The last cell ends with the file; entry 1 comes after the header, at least one slot, and entry 0. */
    const uint64_t grid = split->bytes % CMQ_INDEX_ENTRY_BYTES;
    uint64_t at = CMQ_INDEX_HEADER_BYTES + CMQ_INDEX_ENTRY_BYTES + CMQ_INDEX_SLOT_BYTES;
    at += (grid + CMQ_INDEX_ENTRY_BYTES - at % CMQ_INDEX_ENTRY_BYTES) % CMQ_INDEX_ENTRY_BYTES;
    cmq_status status = CMQ_OK;
    uint32_t tried = 0;
    while (status == CMQ_OK && at + CMQ_INDEX_ENTRY_BYTES <= split->bytes && tried <= CANDIDATES_MAX) {
        uint64_t data;
        status = cmq_file_next_data(split->file, at, &data);
        if (status != CMQ_OK) break;
        if (data > at) at += (data - at) / CMQ_INDEX_ENTRY_BYTES * CMQ_INDEX_ENTRY_BYTES;
        const uint64_t left = split->bytes - at;
        const size_t bytes = left < SCAN_BYTES ? (size_t)left : SCAN_BYTES;
        status = cmq_file_read(split->file, at, cells, bytes);
        if (status == CMQ_OK) status = try_cells(split, at, cells, bytes, &tried, found);
        at += bytes;
    }
    free(cells);
    if (status == CMQ_OK && tried > CANDIDATES_MAX) found->count = 2;   /* as good as several */
    return status == CMQ_END ? CMQ_OK : status;
}

cmq_status cmq_index_find_split(cmq_fs *fs, const char *path, int32_t *slots_out, int32_t *entries_out)
{
    *slots_out = *entries_out = 0;
    split_file split;
    cmq_status status = open_split(fs, path, &split);
    if (status != CMQ_OK) return status;
    split_found found = {0};
    if (split.count >= 2 && split.bytes > CMQ_INDEX_HEADER_BYTES) {
        status = try_usual(&split, &found);
        /* A handful of entries can fit by chance: then no other split may. */
        if (status == CMQ_OK && (found.count == 0 || split.count <= 4)) status = try_all(&split, &found);
    }
    cmq_file_close(split.file);
    if (status != CMQ_OK) return status;
    if (found.count != 1)
        return cmq_fail(CMQ_ERR_AMBIGUOUS,
                        "index file %s (%" PRIu64
                        " bytes, %d entries) does not tell its sizes: set maxHashSlotNum and maxIndexNum as the "
                        "broker had them",
                        path, split.bytes, split.count > 1 ? split.count - 1 : 0);
    *slots_out = found.slots;
    *entries_out = found.entries;
    return CMQ_OK;
}

/* ---- proving ---- */

/* Replay entries 1 .. count - 1: each must point to the newest one before it of its slot. heads: the slots as they are
 * then. */
static cmq_status replay(const split_file *split, int32_t slots, int32_t *heads, uint8_t *cells, int32_t *used_out,
                         bool *fits_out)
{
    *fits_out = false;
    *used_out = 0;
    for (int32_t number = 1; number < split->count;) {
        const int32_t left = split->count - number;
        const int32_t chunk = left < SCAN_BYTES / CMQ_INDEX_ENTRY_BYTES ? left : SCAN_BYTES / CMQ_INDEX_ENTRY_BYTES;
        const cmq_status status =
            cmq_file_read(split->file, entry_offset(slots, number), cells, (size_t)chunk * CMQ_INDEX_ENTRY_BYTES);
        if (status != CMQ_OK) return status;
        for (int32_t i = 0; i < chunk; i++, number++) {
            const split_entry entry = decode_entry(cells + (size_t)i * CMQ_INDEX_ENTRY_BYTES);
            if (!is_plausible(split, &entry, number) || (number == 1 && entry.phy != split->begin_phy)) return CMQ_OK;
            int32_t *head = &heads[entry.hash % (uint32_t)slots];
            if (entry.previous != *head) return CMQ_OK;
            *used_out += *head == 0;
            *head = number;
        }
    }
    *fits_out = true;
    return CMQ_OK;
}

/* The file's slots must be what the replay left; beside a writer a slot that points to entries behind the count may be
 * being written just now. */
static cmq_status compare_slots(const split_file *split, int32_t slots, int32_t entries, bool live,
                                const int32_t *heads, uint8_t *cells, bool *fits_out)
{
    *fits_out = false;
    for (int32_t slot = 0; slot < slots;) {
        const int32_t left = slots - slot;
        const int32_t chunk = left < SCAN_BYTES / CMQ_INDEX_SLOT_BYTES ? left : SCAN_BYTES / CMQ_INDEX_SLOT_BYTES;
        const cmq_status status =
            cmq_file_read(split->file, CMQ_INDEX_HEADER_BYTES + (uint64_t)CMQ_INDEX_SLOT_BYTES * (uint32_t)slot, cells,
                          (size_t)chunk * CMQ_INDEX_SLOT_BYTES);
        if (status != CMQ_OK) return status;
        for (int32_t i = 0; i < chunk; i++, slot++) {
            const int32_t value = cmq_load_i32(cells + (size_t)i * CMQ_INDEX_SLOT_BYTES);
            if (value != heads[slot] && (!live || value < split->count || value >= entries)) return CMQ_OK;
        }
    }
    *fits_out = true;
    return CMQ_OK;
}

static cmq_status prove(const split_file *split, int32_t slots, int32_t entries, bool live, bool *fits_out)
{
    *fits_out = false;
    if (entries_for(split->bytes, slots) != entries || split->count > entries || split->count < 0) return CMQ_OK;
    int32_t *heads = calloc((size_t)slots, sizeof *heads);
    uint8_t *cells = malloc(SCAN_BYTES);
    cmq_status status =
        heads == NULL || cells == NULL ? cmq_fail(CMQ_ERR_MEMORY, "no memory to check %d index slots", slots) : CMQ_OK;
    int32_t used = 0;
    if (status == CMQ_OK) status = replay(split, slots, heads, cells, &used, fits_out);
    if (*fits_out) *fits_out = used <= split->slots_used;   /* beside a writer the header may know of more */
    if (status == CMQ_OK && *fits_out) status = compare_slots(split, slots, entries, live, heads, cells, fits_out);
    free(cells);
    free(heads);
    return status;
}

cmq_status cmq_index_prove_split(cmq_fs *fs, const char *path, int32_t slots, int32_t entries, bool live,
                                 bool *fits_out)
{
    *fits_out = false;
    split_file split;
    cmq_status status = open_split(fs, path, &split);
    if (status != CMQ_OK) return status;
    if (slots >= 1 && entries >= 2) status = prove(&split, slots, entries, live, fits_out);
    cmq_file_close(split.file);
    return status;
}
