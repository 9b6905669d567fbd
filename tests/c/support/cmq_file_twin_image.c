/* cmq_file_twin_image: writes a possible content of the disk after a power loss.
 *
 * Way: pending changes of names -> kept or lost -> the tree of an image; per file in it: each unit from now, from
 *      between, or as synced.
 * The losses that are possible, and why: tests/crash/FAULTS.md.
 */
#include <stdlib.h>
#include <string.h>

#include "base/cmq_assert.h"
#include "support/cmq_file_twin_state.h"
#include "support/cmq_store_kit.h"
#include "support/cmq_test.h"

#define ALWAYS 256u   /* chances are in 256ths */
#define NO_THING UINT64_MAX

/* One image's dice. */
typedef struct plan {
    cmq_twin_style style;
    enum { SCATTERED, JOURNAL, ALL_BUT_ONE, ONLY_ONE } shape;   /* of a MIX */
    uint64_t thing;        /* ALL_BUT_ONE, ONLY_ONE: changes of names first, then touched files in the order of the
                            * nodes */
    uint32_t change_chance;
    bool *kept;            /* per pending change */
    twin_names names;
} plan;

/* ---- the surviving image ---- */

static uint32_t some_chance(cmq_file_twin *twin)
{
    static const uint32_t chances[] = {0, 16, 128, 240, ALWAYS};
    return chances[twin_random_below(twin, sizeof chances / sizeof chances[0])];
}

static bool toss(cmq_file_twin *twin, uint32_t chance) { return twin_random_below(twin, ALWAYS) < chance; }

static uint64_t touched_index(const cmq_file_twin *twin, const twin_node *node)
{
    uint64_t index = 0;
    for (const twin_node *other = twin->nodes; other != node; other = other->next) index += other->touched ? 1 : 0;
    return index;
}

static uint64_t touched_count(const cmq_file_twin *twin) { return touched_index(twin, NULL); }

static void draw_plan(cmq_file_twin *twin, plan *drawn)
{
    const uint64_t things = twin->change_count + touched_count(twin);
    const uint64_t die = twin_random_below(twin, 8);
    drawn->shape = die < 3 ? SCATTERED : die < 5 ? JOURNAL : die < 7 ? ALL_BUT_ONE : ONLY_ONE;
    drawn->thing = things > 0 ? twin_random_below(twin, things) : NO_THING;
    drawn->change_chance = some_chance(twin);
}

/* Which pending changes survive. On one name they survive in their order, because a name has one value at a time. */
static void choose_changes(cmq_file_twin *twin, plan *drawn)
{
    const size_t count = twin->change_count;
    const uint64_t journaled = twin_random_below(twin, count + 1);
    drawn->kept = calloc(count + 1, sizeof *drawn->kept);
    CMQ_ASSERT(drawn->kept != NULL);
    for (size_t i = 0; i < count; i++) {
        if (drawn->style != CMQ_TWIN_MIX) drawn->kept[i] = drawn->style == CMQ_TWIN_EVERYTHING;
        else if (drawn->shape == SCATTERED) drawn->kept[i] = toss(twin, drawn->change_chance);
        else if (drawn->shape == JOURNAL) drawn->kept[i] = i < journaled;
        else drawn->kept[i] = (drawn->thing == i) == (drawn->shape == ONLY_ONE);
    }
    if (drawn->style == CMQ_TWIN_MIX && drawn->shape == ONLY_ONE)   /* with all that it stands on */
        for (size_t i = count; i-- > 0;)
            for (size_t j = 0; drawn->kept[i] && j < i; j++)
                drawn->kept[j] = drawn->kept[j] || twin_changes_share_a_name(&twin->changes[j], &twin->changes[i]);
    for (size_t i = 0; i < count; i++)
        for (size_t j = 0; drawn->kept[i] && j < i; j++)
            if (!drawn->kept[j] && twin_changes_share_a_name(&twin->changes[j], &twin->changes[i]))
                drawn->kept[i] = false;
    twin_names_copy(&drawn->names, &twin->durable);
    for (size_t i = 0; i < count; i++)
        if (drawn->kept[i]) twin_change_apply(&drawn->names, &twin->changes[i]);
}

/* The chance of a unit of this file to survive. */
static uint32_t file_chance(cmq_file_twin *twin, const plan *drawn, const twin_node *node)
{
    if (drawn->style == CMQ_TWIN_NOTHING) return 0;
    if (drawn->style == CMQ_TWIN_EVERYTHING) return ALWAYS;
    if (drawn->shape == SCATTERED || drawn->shape == JOURNAL) return some_chance(twin);
    const bool is_it = drawn->thing == twin->change_count + touched_index(twin, node);
    const bool alone = drawn->shape == ONLY_ONE;
    if (!is_it) return alone ? 0 : ALWAYS;
    return toss(twin, 128) ? 128 : alone ? ALWAYS : 0;
}

/* Mix one file into twin->image. Units are sectors, pages or the whole file, so that torn pages and reordered files
 * both come up. */
static const twin_bytes *mix_file(cmq_file_twin *twin, const twin_node *node, uint32_t chance)
{
    static const uint64_t units[] = {1, TWIN_PAGE_BYTES / TWIN_SECTOR_BYTES, UINT64_MAX};
    const uint64_t unit = units[twin_random_below(twin, sizeof units / sizeof units[0])];
    const twin_bytes *earlier[] = {&node->synced, node->middle.data != NULL ? &node->middle : &node->synced};
    const twin_bytes *now = &twin->now;
    const bool with_middle = toss(twin, 128);
    const twin_bytes *length_from = toss(twin, chance) ? now : earlier[with_middle ? twin_random_below(twin, 2) : 0];
    twin->image.room = 0;
    twin_bytes_set_length(&twin->image, length_from->bytes);
    const twin_bytes *from = now;
    for (uint64_t sector = 0; sector < twin->image.room / TWIN_SECTOR_BYTES; sector++) {
        if (unit == UINT64_MAX ? sector == 0 : sector % unit == 0)
            from = toss(twin, chance) ? now : earlier[with_middle ? twin_random_below(twin, 2) : 0];
        memcpy(twin->image.data + sector * TWIN_SECTOR_BYTES, twin_sector(from, sector), TWIN_SECTOR_BYTES);
    }
    twin_bytes_set_length(&twin->image, length_from->bytes);   /* zero behind the end */
    return &twin->image;
}

static const twin_bytes *choose_content(cmq_file_twin *twin, const plan *drawn, const twin_node *node)
{
    if (!node->touched || drawn->style == CMQ_TWIN_NOTHING) return &node->synced;
    twin_read_now(twin, node);
    if (drawn->style == CMQ_TWIN_EVERYTHING) return &twin->now;
    return mix_file(twin, node, file_chance(twin, drawn, node));
}

/* ---- writing it ---- */

static bool is_zero_page(const uint8_t *page)
{
    static const uint8_t zeros[TWIN_PAGE_BYTES];
    return memcmp(page, zeros, sizeof zeros) == 0;
}

/* Only pages that hold something are written: stores are mostly holes. */
static void write_file(cmq_fs *fs, const char *path, const twin_bytes *content)
{
    cmq_file *file;
    MUST(cmq_file_open(fs, path, CMQ_OPEN_CREATE_NEW, &file));
    MUST(cmq_file_resize(file, content->bytes));
    uint64_t offset = 0;
    while (offset < content->bytes) {
        uint64_t end = offset;
        while (end < content->bytes && !is_zero_page(content->data + end)) end += TWIN_PAGE_BYTES;
        if (end == offset) {
            offset += TWIN_PAGE_BYTES;
            continue;
        }
        const uint64_t clipped = end < content->bytes ? end : content->bytes;
        MUST(cmq_file_write(file, offset, content->data + offset, (size_t)(clipped - offset)));
        offset = end;
    }
    cmq_file_close(file);
}

static void write_tree(cmq_file_twin *twin, const plan *drawn, const twin_node *directory, const char *path)
{
    for (size_t i = 0; i < drawn->names.count; i++) {
        const twin_name *name = &drawn->names.items[i];
        char below[CMQ_PATH_BYTES];
        if (name->directory != directory) continue;
        if (cmq_path_join(below, path, name->text) != CMQ_OK)
            cmq_test_fail(__FILE__, __LINE__, "%s", cmq_last_error()->text);
        if (name->node->is_directory) {
            MUST(cmq_fs_make_directory_unsynced(twin->below, below));
            write_tree(twin, drawn, name->node, below);
        } else {
            write_file(twin->below, below, choose_content(twin, drawn, name->node));
        }
    }
}

static void write_image(cmq_file_twin *twin, const char *into, cmq_twin_style style)
{
    plan drawn = {.style = style};
    draw_plan(twin, &drawn);
    choose_changes(twin, &drawn);
    kit_remove_tree_in(twin->below, into);
    MUST(cmq_fs_make_directory_unsynced(twin->below, into));
    write_tree(twin, &drawn, twin->root_node, into);
    twin_names_free(&drawn.names);
    free(drawn.kept);
    twin->image_count++;
}

void cmq_file_twin_crash_image_of(cmq_file_twin *twin, const char *into, cmq_twin_style style)
{
    pthread_mutex_lock(&twin->mutex);
    write_image(twin, into, style);
    pthread_mutex_unlock(&twin->mutex);
}

cmq_twin_style cmq_file_twin_crash_image(cmq_file_twin *twin, const char *into)
{
    pthread_mutex_lock(&twin->mutex);
    const uint64_t die = twin->image_count < 2 ? twin->image_count : twin_random_below(twin, 16);
    const cmq_twin_style style = die == 0 ? CMQ_TWIN_NOTHING : die == 1 ? CMQ_TWIN_EVERYTHING : CMQ_TWIN_MIX;
    write_image(twin, into, style);
    pthread_mutex_unlock(&twin->mutex);
    return style;
}

bool cmq_file_twin_all_durable(cmq_file_twin *twin)
{
    pthread_mutex_lock(&twin->mutex);
    bool durable = twin->change_count == 0;
    for (size_t i = 0; durable && i < twin->live.count; i++) {
        const twin_node *node = twin->live.items[i].node;
        if (!node->touched) continue;
        twin_read_now(twin, node);
        durable = twin_same_bytes(&twin->now, &node->synced);
    }
    pthread_mutex_unlock(&twin->mutex);
    return durable;
}
