/* cmq_timer_wheel: see cmq_timer_wheel.h. */
#include "broker/timer/cmq_timer_wheel.h"

#include <stdlib.h>
#include <string.h>

#include "base/cmq_assert.h"
#include "base/cmq_bytes.h"

#define PAGE_BYTES 4096
#define PAGE_SLOTS (PAGE_BYTES / CMQ_TIMER_SLOT_BYTES)
#define PAGES (CMQ_TIMER_SLOTS / PAGE_SLOTS)
#define PAGE_WORDS ((PAGES + 63) / 64)
#define SLOT_WORDS (CMQ_TIMER_SLOTS / 64)

_Static_assert(CMQ_TIMER_SLOTS % PAGE_SLOTS == 0, "whole pages");
_Static_assert(CMQ_TIMER_SLOTS % 64 == 0, "whole words");

struct cmq_timer_wheel {
    cmq_fs *fs;
    cmq_file *file;
    uint8_t *image;                    /* as the file; untouched pages take no memory */
    uint64_t used[PAGE_WORDS];         /* pages with anything in them */
    uint64_t differs[PAGE_WORDS];      /* pages to be written */
    uint64_t pending[SLOT_WORDS];
};

static bool bit_of(const uint64_t *bits, uint32_t at) { return (bits[at / 64] >> (at % 64) & 1) != 0; }
static void set_bit(uint64_t *bits, uint32_t at) { bits[at / 64] |= UINT64_C(1) << (at % 64); }
static void clear_bit(uint64_t *bits, uint32_t at) { bits[at / 64] &= ~(UINT64_C(1) << (at % 64)); }

static uint32_t place_of(int64_t number)
{
    CMQ_ASSERT(number >= 0);
    return (uint32_t)(number % CMQ_TIMER_SLOTS);
}

/* ---- slots ---- */

static cmq_timer_slot load_slot(const cmq_timer_wheel *wheel, uint32_t place)
{
    const uint8_t *at = wheel->image + (size_t)place * CMQ_TIMER_SLOT_BYTES;
    return (cmq_timer_slot){.number = cmq_load_i64(at),
                            .first = cmq_load_i64(at + 8),
                            .last = cmq_load_i64(at + 16),
                            .count = cmq_load_i32(at + 24),
                            .magic = cmq_load_i32(at + 28)};
}

bool cmq_timer_wheel_get(const cmq_timer_wheel *wheel, int64_t number, cmq_timer_slot *slot_out)
{
    const uint32_t place = place_of(number);
    if (bit_of(wheel->used, place / PAGE_SLOTS)) {
        *slot_out = load_slot(wheel, place);
        if (slot_out->number == number && number > 0) return true;
    }
    *slot_out = (cmq_timer_slot){.number = number, .first = -1, .last = -1};
    return false;
}

cmq_timer_slot cmq_timer_wheel_occupant(const cmq_timer_wheel *wheel, int64_t number)
{
    return load_slot(wheel, place_of(number));
}

void cmq_timer_wheel_put(cmq_timer_wheel *wheel, const cmq_timer_slot *slot)
{
    const uint32_t place = place_of(slot->number);
    uint8_t *at = wheel->image + (size_t)place * CMQ_TIMER_SLOT_BYTES;
    cmq_store_i64(at, slot->number);
    cmq_store_i64(at + 8, slot->first);
    cmq_store_i64(at + 16, slot->last);
    cmq_store_i32(at + 24, slot->count);
    cmq_store_i32(at + 28, slot->magic);
    set_bit(wheel->used, place / PAGE_SLOTS);
    set_bit(wheel->differs, place / PAGE_SLOTS);
}

static cmq_timer_wheel *make_wheel(void)
{
    cmq_timer_wheel *made = calloc(1, sizeof *made);
    /* so large, that it comes from the system, page by page */
    if (made != NULL) made->image = calloc(1, (size_t)CMQ_TIMER_WHEEL_BYTES);
    if (made != NULL && made->image != NULL) return made;
    cmq_timer_wheel_close(made);
    return NULL;
}

cmq_status cmq_timer_wheel_copy(const cmq_timer_wheel *wheel, cmq_timer_wheel **copy_out)
{
    cmq_timer_wheel *made = *copy_out = make_wheel();
    if (made == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for a copy of the timer wheel");
    memcpy(made->used, wheel->used, sizeof made->used);
    for (uint32_t page = 0; page < PAGES; page++) {
        const size_t at = (size_t)page * PAGE_BYTES;
        if (bit_of(wheel->used, page)) memcpy(made->image + at, wheel->image + at, PAGE_BYTES);
    }
    return CMQ_OK;
}

void cmq_timer_wheel_clear_from(cmq_timer_wheel *wheel, int64_t number)
{
    for (uint32_t page = 0; page < PAGES; page++) {
        if (!bit_of(wheel->used, page)) continue;
        for (uint32_t place = page * PAGE_SLOTS; place < (page + 1) * PAGE_SLOTS; place++) {
            if (load_slot(wheel, place).number < number) continue;
            memset(wheel->image + (size_t)place * CMQ_TIMER_SLOT_BYTES, 0, CMQ_TIMER_SLOT_BYTES);
            set_bit(wheel->differs, page);
        }
    }
}

void cmq_timer_wheel_keep_same(cmq_timer_wheel *wheel, const cmq_timer_wheel *stored)
{
    for (uint32_t page = 0; page < PAGES; page++) {
        const size_t at = (size_t)page * PAGE_BYTES;
        if (bit_of(wheel->differs, page) && memcmp(wheel->image + at, stored->image + at, PAGE_BYTES) == 0)
            clear_bit(wheel->differs, page);
    }
}

void cmq_timer_wheel_each(cmq_timer_wheel *wheel, void (*each)(void *context, const cmq_timer_slot *slot),
                          void *context)
{
    for (uint32_t page = 0; page < PAGES; page++) {
        if (!bit_of(wheel->used, page)) continue;
        for (uint32_t i = 0; i < PAGE_SLOTS; i++) {
            const uint32_t place = page * PAGE_SLOTS + i;
            const cmq_timer_slot slot = load_slot(wheel, place);
            /* A number that belongs elsewhere is damage. */
            if (slot.number > 0 && place_of(slot.number) == place) each(context, &slot);
        }
    }
}

/* ---- pending slots ---- */

bool cmq_timer_wheel_has_room(const cmq_timer_wheel *wheel, int64_t number)
{
    const uint32_t place = place_of(number);
    return !bit_of(wheel->pending, place) || load_slot(wheel, place).number == number;
}

bool cmq_timer_wheel_is_pending(const cmq_timer_wheel *wheel, int64_t number)
{
    const uint32_t place = place_of(number);
    return bit_of(wheel->pending, place) && load_slot(wheel, place).number == number;
}

void cmq_timer_wheel_set_pending(cmq_timer_wheel *wheel, int64_t number) { set_bit(wheel->pending, place_of(number)); }
void cmq_timer_wheel_clear_pending(cmq_timer_wheel *wheel, int64_t number)
{
    clear_bit(wheel->pending, place_of(number));
}

int64_t cmq_timer_wheel_next_pending(const cmq_timer_wheel *wheel, int64_t from)
{
    const uint32_t begin = place_of(from);
    /* The first word twice: its upper bits at first, its lower ones after a whole turn. */
    for (uint32_t i = 0; i <= SLOT_WORDS; i++) {
        const uint32_t word = (begin / 64 + i) % SLOT_WORDS;
        uint64_t bits = wheel->pending[word];
        if (i == 0) bits &= UINT64_MAX << (begin % 64);
        if (i == SLOT_WORDS) bits &= ~(UINT64_MAX << (begin % 64));
        if (bits == 0) continue;
        return load_slot(wheel, word * 64 + (uint32_t)__builtin_ctzll(bits)).number;
    }
    return INT64_MAX;
}

int64_t cmq_timer_wheel_next_beyond(const cmq_timer_wheel *wheel, uint32_t *place, int64_t limit)
{
    while (*place < CMQ_TIMER_SLOTS) {
        const uint64_t bits = wheel->pending[*place / 64] & UINT64_MAX << (*place % 64);
        if (bits == 0) {
            *place = (*place / 64 + 1) * 64;
            continue;
        }
        *place = *place / 64 * 64 + (uint32_t)__builtin_ctzll(bits);
        const int64_t number = load_slot(wheel, *place).number;
        if (number >= limit) return number;
        *place += 1;
    }
    return INT64_MAX;
}

/* ---- the file ---- */

/* Where the file has data, by page; holes are not read. */
static cmq_status CMQ_MUST_CHECK read_image(cmq_timer_wheel *wheel)
{
    uint64_t at = 0;
    while (at < (uint64_t)CMQ_TIMER_WHEEL_BYTES) {
        cmq_status status = cmq_file_next_data(wheel->file, at, &at);
        if (status == CMQ_END) return CMQ_OK;
        if (status != CMQ_OK) return status;
        at -= at % PAGE_BYTES;
        if (at >= (uint64_t)CMQ_TIMER_WHEEL_BYTES) return CMQ_OK;
        uint8_t page[PAGE_BYTES];
        status = cmq_file_read(wheel->file, at, page, sizeof page);
        if (status != CMQ_OK) return status;
        bool used = false;
        for (size_t i = 0; i < sizeof page && !used; i++) used = page[i] != 0;
        if (used) {
            memcpy(wheel->image + at, page, sizeof page);
            set_bit(wheel->used, (uint32_t)(at / PAGE_BYTES));
        }
        at += PAGE_BYTES;
    }
    return CMQ_OK;
}

static bool is_empty(const cmq_timer_wheel *wheel)
{
    for (uint32_t i = 0; i < PAGE_WORDS; i++)
        if (wheel->used[i] != 0) return false;
    return true;
}

static cmq_status CMQ_MUST_CHECK open_file(cmq_timer_wheel *wheel, const char *root)
{
    char path[CMQ_PATH_BYTES];
    cmq_file_info info;
    cmq_status status = cmq_path_join(path, root, "timerwheel");
    if (status == CMQ_OK) status = cmq_file_open(wheel->fs, path, CMQ_OPEN_CREATE, &wheel->file);
    if (status == CMQ_OK) status = cmq_file_info_of(wheel->file, &info);
    if (status != CMQ_OK) return status;
    if (info.bytes == (uint64_t)CMQ_TIMER_WHEEL_BYTES) return read_image(wheel);
    if (info.bytes != 0)
        return cmq_fail(CMQ_ERR_SETTING,
                        "%s has %llu bytes, and a timer wheel has %lld: it is damaged, or something else", path,
                        (unsigned long long)info.bytes, (long long)CMQ_TIMER_WHEEL_BYTES);
    status = cmq_file_resize(wheel->file, (uint64_t)CMQ_TIMER_WHEEL_BYTES);
    if (status == CMQ_OK) status = cmq_file_sync(wheel->file);
    return status == CMQ_OK ? cmq_fs_sync_directory(wheel->fs, root) : status;
}

cmq_status cmq_timer_wheel_open(cmq_timer_wheel **wheel_out, cmq_fs *fs, const char *root, bool *fresh_out)
{
    *wheel_out = NULL;
    cmq_timer_wheel *made = make_wheel();
    if (made == NULL) return cmq_fail(CMQ_ERR_MEMORY, "no memory for the timer wheel");
    made->fs = fs;
    const cmq_status status = open_file(made, root);
    if (status != CMQ_OK) {
        cmq_timer_wheel_close(made);
        return status;
    }
    *fresh_out = is_empty(made);
    *wheel_out = made;
    return CMQ_OK;
}

void cmq_timer_wheel_close(cmq_timer_wheel *wheel)
{
    if (wheel == NULL) return;
    cmq_file_close(wheel->file);
    free(wheel->image);
    free(wheel);
}

cmq_status cmq_timer_wheel_flush(cmq_timer_wheel *wheel)
{
    bool any = false;
    for (uint32_t page = 0; page < PAGES; page++) {
        if (!bit_of(wheel->differs, page)) continue;
        uint32_t end = page + 1;
        while (end < PAGES && bit_of(wheel->differs, end)) end++;
        const size_t at = (size_t)page * PAGE_BYTES;
        const cmq_status status = cmq_file_write(wheel->file, at, wheel->image + at, (size_t)(end - page) * PAGE_BYTES);
        if (status != CMQ_OK) return status;
        any = true;
        page = end;
    }
    if (!any) return CMQ_OK;
    const cmq_status status = cmq_file_sync(wheel->file);
    if (status == CMQ_OK) memset(wheel->differs, 0, sizeof wheel->differs);
    return status;
}
