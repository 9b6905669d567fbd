/* cmq_file_twin_state: see cmq_file_twin_state.h. */
#include "support/cmq_file_twin_state.h"

#include <stdlib.h>
#include <string.h>

#include "base/cmq_assert.h"
#include "support/cmq_test.h"

uint64_t twin_random(cmq_file_twin *twin)
{
    uint64_t z = twin->random_state += UINT64_C(0x9E3779B97F4A7C15);   /* splitmix64 */
    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
    return z ^ z >> 31;
}

uint64_t twin_random_below(cmq_file_twin *twin, uint64_t bound) { return twin_random(twin) % bound; }

void *twin_grow(void *items, size_t *room, size_t count, size_t item_bytes)
{
    if (count < *room) return items;
    *room = *room == 0 ? 16 : *room * 2;
    void *grown = realloc(items, *room * item_bytes);
    CMQ_ASSERT(grown != NULL);
    return grown;
}

static char *copy_text(const char *text)
{
    char *copy = strdup(text);
    CMQ_ASSERT(copy != NULL);
    return copy;
}

/* ---- bytes ---- */

static uint64_t whole_pages(uint64_t bytes)
{
    return (bytes + TWIN_PAGE_BYTES - 1) / TWIN_PAGE_BYTES * TWIN_PAGE_BYTES;
}

void twin_bytes_need(twin_bytes *image, uint64_t bytes)
{
    if (bytes > TWIN_FILE_BYTES_MAX)
        cmq_test_fail(__FILE__, __LINE__, "a file of %llu bytes is too large for the twin", (unsigned long long)bytes);
    const uint64_t room = whole_pages(bytes);
    if (room <= image->room) return;
    if (room > image->capacity && image->data == NULL) {
        image->data = calloc(1, (size_t)room);   /* pages that stay zero cost nothing */
        CMQ_ASSERT(image->data != NULL);
        image->capacity = room;
    } else {
        if (room > image->capacity) {
            image->data = realloc(image->data, (size_t)room);
            CMQ_ASSERT(image->data != NULL);
            image->capacity = room;
        }
        memset(image->data + image->room, 0, (size_t)(room - image->room));
    }
    image->room = room;
}

void twin_bytes_set_length(twin_bytes *image, uint64_t bytes)
{
    twin_bytes_need(image, bytes);
    if (bytes < image->room) memset(image->data + bytes, 0, (size_t)(image->room - bytes));
    image->bytes = bytes;
}

void twin_bytes_free(twin_bytes *image)
{
    free(image->data);
    *image = (twin_bytes){0};
}

static void copy_bytes(twin_bytes *into, const twin_bytes *from)
{
    twin_bytes_set_length(into, 0);
    twin_bytes_set_length(into, from->bytes);
    if (from->bytes > 0) memcpy(into->data, from->data, (size_t)from->bytes);
}

const uint8_t *twin_sector(const twin_bytes *image, uint64_t sector)
{
    static const uint8_t zeros[TWIN_SECTOR_BYTES];
    return sector < image->room / TWIN_SECTOR_BYTES ? image->data + sector * TWIN_SECTOR_BYTES : zeros;
}

/* ---- names ---- */

static twin_name *names_find(const twin_names *names, const twin_node *directory, const char *text)
{
    for (size_t i = 0; i < names->count; i++)
        if (names->items[i].directory == directory && strcmp(names->items[i].text, text) == 0) return &names->items[i];
    return NULL;
}

twin_node *twin_names_get(const twin_names *names, const twin_node *directory, const char *text)
{
    const twin_name *found = names_find(names, directory, text);
    return found != NULL ? found->node : NULL;
}

void twin_names_set(twin_names *names, twin_node *directory, const char *text, twin_node *node)
{
    twin_name *found = names_find(names, directory, text);
    if (found != NULL && node != NULL) {
        found->node = node;
    } else if (found != NULL) {
        free(found->text);
        *found = names->items[--names->count];
    } else if (node != NULL) {
        names->items = twin_grow(names->items, &names->room, names->count, sizeof *names->items);
        names->items[names->count++] = (twin_name){.directory = directory, .node = node, .text = copy_text(text)};
    }
}

void twin_names_copy(twin_names *into, const twin_names *from)
{
    *into = (twin_names){.count = from->count, .room = from->count + 1};
    into->items = malloc(into->room * sizeof *into->items);
    CMQ_ASSERT(into->items != NULL);
    for (size_t i = 0; i < from->count; i++) {
        into->items[i] = from->items[i];
        into->items[i].text = copy_text(from->items[i].text);
    }
}

void twin_names_free(twin_names *names)
{
    for (size_t i = 0; i < names->count; i++) free(names->items[i].text);
    free(names->items);
    *names = (twin_names){0};
}

/* ---- nodes ---- */

twin_node *twin_node_make(cmq_file_twin *twin, const char *path, bool is_directory, bool is_durable)
{
    twin_node *node = calloc(1, sizeof *node);
    CMQ_ASSERT(node != NULL);
    node->is_directory = is_directory;
    if (!is_directory) MUST(cmq_file_open(twin->below, path, CMQ_OPEN_READ, &node->content));
    if (!is_directory && is_durable) {
        twin_read_now(twin, node);
        copy_bytes(&node->synced, &twin->now);
    }
    node->next = twin->nodes;
    twin->nodes = node;
    return node;
}

static void free_node(twin_node *node)
{
    cmq_file_close(node->content);
    twin_bytes_free(&node->synced);
    twin_bytes_free(&node->middle);
    twin_bytes_free(&node->failed);
    free(node->lost);
    free(node);
}

static bool names_mention(const twin_names *names, const twin_node *node)
{
    for (size_t i = 0; i < names->count; i++)
        if (names->items[i].node == node || names->items[i].directory == node) return true;
    return false;
}

static bool is_known(const cmq_file_twin *twin, const twin_node *node)
{
    if (node == twin->root_node || node->handles > 0 || node->mappings > 0) return true;
    for (size_t i = 0; i < twin->change_count; i++) {
        const twin_change *change = &twin->changes[i];
        if (change->node == node || change->from_directory == node || change->to_directory == node) return true;
    }
    return names_mention(&twin->live, node) || names_mention(&twin->durable, node);
}

void twin_collect(cmq_file_twin *twin)
{
    for (twin_node **link = &twin->nodes; *link != NULL;) {
        twin_node *node = *link;
        if (is_known(twin, node)) {
            link = &node->next;
            continue;
        }
        *link = node->next;
        free_node(node);
    }
}

static twin_node *adopt(cmq_file_twin *twin, twin_node *directory, const char *path, const char *name,
                        bool is_directory)
{
    twin_node *node = twin_node_make(twin, path, is_directory, true);
    twin_names_set(&twin->live, directory, name, node);
    twin_names_set(&twin->durable, directory, name, node);
    return node;
}

void twin_adopt_all(cmq_file_twin *twin, twin_node *directory, const char *path)
{
    char **names;
    size_t count;
    MUST(cmq_fs_list(twin->below, path, &names, &count));
    for (size_t i = 0; i < count; i++) {
        char below[CMQ_PATH_BYTES];
        cmq_file_info info;
        MUST(cmq_path_join(below, path, names[i]));
        MUST(cmq_fs_stat(twin->below, below, &info));
        twin_node *node = adopt(twin, directory, below, names[i], info.is_directory);
        if (info.is_directory) twin_adopt_all(twin, node, below);
    }
    cmq_fs_free_names(names, count);
}

static void free_change(twin_change *change)
{
    free(change->from);
    free(change->to);
}

void twin_free_all(cmq_file_twin *twin)
{
    for (size_t i = 0; i < twin->change_count; i++) free_change(&twin->changes[i]);
    free(twin->changes);
    twin_names_free(&twin->live);
    twin_names_free(&twin->durable);
    while (twin->nodes != NULL) {
        twin_node *node = twin->nodes;
        twin->nodes = node->next;
        free_node(node);
    }
}

/* ---- paths ---- */

bool twin_is_inside(const cmq_file_twin *twin, const char *path)
{
    return strncmp(path, twin->root, twin->root_bytes) == 0 &&
           (path[twin->root_bytes] == '/' || path[twin->root_bytes] == '\0');
}

/* The next name of a path, "." and empty ones left out; false at its end. */
static bool next_name(const char **rest, char name[TWIN_NAME_BYTES])
{
    for (;;) {
        *rest += strspn(*rest, "/");
        const size_t bytes = strcspn(*rest, "/");
        if (bytes == 0) return false;
        if (bytes >= TWIN_NAME_BYTES) cmq_test_fail(__FILE__, __LINE__, "the twin: a name of %zu bytes", bytes);
        memcpy(name, *rest, bytes);
        name[bytes] = '\0';
        *rest += bytes;
        if (strcmp(name, "..") == 0) cmq_test_fail(__FILE__, __LINE__, "the twin does not know ..");
        if (strcmp(name, ".") != 0) return true;
    }
}

/* The node of that name; one that is really there but was not made through the twin is taken in. `end` is where its
 * path ends in `path`. */
static twin_node *get_or_adopt(cmq_file_twin *twin, twin_node *directory, const char *path, const char *end,
                               const char *name)
{
    twin_node *node = twin_names_get(&twin->live, directory, name);
    if (node != NULL) return node;
    char prefix[CMQ_PATH_BYTES];
    CMQ_ASSERT((size_t)(end - path) < sizeof prefix);
    memcpy(prefix, path, (size_t)(end - path));
    prefix[end - path] = '\0';
    cmq_file_info info;
    if (cmq_fs_stat(twin->below, prefix, &info) != CMQ_OK) return NULL;
    node = adopt(twin, directory, prefix, name, info.is_directory);
    if (info.is_directory) twin_adopt_all(twin, node, prefix);
    return node;
}

bool twin_find_parent(cmq_file_twin *twin, const char *path, twin_node **directory_out, char name_out[TWIN_NAME_BYTES])
{
    if (!twin_is_inside(twin, path)) return false;
    const char *rest = path + twin->root_bytes;
    twin_node *directory = twin->root_node;
    if (!next_name(&rest, name_out)) return false;
    for (;;) {
        char following[TWIN_NAME_BYTES];
        const char *end = rest;
        if (!next_name(&rest, following)) break;
        directory = get_or_adopt(twin, directory, path, end, name_out);
        if (directory == NULL || !directory->is_directory) return false;
        memcpy(name_out, following, sizeof following);
    }
    *directory_out = directory;
    return true;
}

twin_node *twin_find(cmq_file_twin *twin, const char *path)
{
    twin_node *directory;
    char name[TWIN_NAME_BYTES];
    if (twin_find_parent(twin, path, &directory, name))
        return get_or_adopt(twin, directory, path, path + strlen(path), name);
    if (!twin_is_inside(twin, path)) return NULL;
    const char *rest = path + twin->root_bytes;
    return next_name(&rest, name) ? NULL : twin->root_node;
}

/* ---- changes of names ---- */

void twin_change_apply(twin_names *names, const twin_change *change)
{
    if (change->from_directory != NULL) twin_names_set(names, change->from_directory, change->from, NULL);
    if (change->to_directory != NULL) twin_names_set(names, change->to_directory, change->to, change->node);
}

void twin_change_add(cmq_file_twin *twin, twin_node *node, twin_node *from_directory, const char *from,
                     twin_node *to_directory, const char *to)
{
    twin->changes = twin_grow(twin->changes, &twin->change_room, twin->change_count, sizeof *twin->changes);
    twin_change *change = &twin->changes[twin->change_count++];
    *change = (twin_change){
        .node = node,
        .from_directory = from_directory,
        .to_directory = to_directory,
        .from = from_directory != NULL ? copy_text(from) : NULL,
        .to = to_directory != NULL ? copy_text(to) : NULL,
    };
    twin_change_apply(&twin->live, change);
}

static bool same_name(const twin_node *a, const char *a_text, const twin_node *b, const char *b_text)
{
    return a != NULL && a == b && strcmp(a_text, b_text) == 0;
}

bool twin_changes_share_a_name(const twin_change *a, const twin_change *b)
{
    return same_name(a->from_directory, a->from, b->from_directory, b->from) ||
           same_name(a->from_directory, a->from, b->to_directory, b->to) ||
           same_name(a->to_directory, a->to, b->from_directory, b->from) ||
           same_name(a->to_directory, a->to, b->to_directory, b->to);
}

void twin_changes_commit(cmq_file_twin *twin, const twin_node *directory)
{
    const size_t count = twin->change_count;
    if (count == 0) return;
    bool *commits = calloc(count, sizeof *commits);
    CMQ_ASSERT(commits != NULL);
    for (size_t i = count; i-- > 0;) {
        const twin_change *change = &twin->changes[i];
        commits[i] =
            commits[i] || directory == NULL || change->from_directory == directory || change->to_directory == directory;
        for (size_t j = 0; commits[i] && j < i; j++)
            commits[j] = commits[j] || twin_changes_share_a_name(&twin->changes[j], change);
    }
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
        if (!commits[i]) {
            twin->changes[kept++] = twin->changes[i];
            continue;
        }
        twin_change_apply(&twin->durable, &twin->changes[i]);
        free_change(&twin->changes[i]);
    }
    twin->change_count = kept;
    free(commits);
    if (kept < count) twin_collect(twin);
}

/* ---- content ---- */

void twin_read_now(cmq_file_twin *twin, const twin_node *node)
{
    cmq_file_info info;
    MUST(cmq_file_info_of(node->content, &info));
    twin_bytes *now = &twin->now;
    now->room = 0;   /* no more than this file's, lest a small file pays for a large one before it */
    twin_bytes_set_length(now, info.bytes);
    MUST(cmq_file_read(node->content, 0, now->data, (size_t)info.bytes));
}

static uint64_t sectors_of(const twin_bytes *image) { return image->room / TWIN_SECTOR_BYTES; }

static bool same_sector(const twin_bytes *a, const twin_bytes *b, uint64_t sector)
{
    return memcmp(twin_sector(a, sector), twin_sector(b, sector), TWIN_SECTOR_BYTES) == 0;
}

bool twin_same_bytes(const twin_bytes *a, const twin_bytes *b)
{
    return a->bytes == b->bytes && (a->bytes == 0 || memcmp(a->data, b->data, (size_t)a->bytes) == 0);
}

static void copy_sector(twin_bytes *into, const twin_bytes *from, uint64_t sector)
{
    memcpy(into->data + sector * TWIN_SECTOR_BYTES, twin_sector(from, sector), TWIN_SECTOR_BYTES);
}

/* Sectors of whole pages around [offset, end), no further than the room of an image goes. */
static void page_sectors(uint64_t offset, uint64_t end, const twin_bytes *image, uint64_t *first_out,
                         uint64_t *last_out)
{
    const uint64_t clipped = end < image->room ? end : image->room;
    *first_out = offset / TWIN_PAGE_BYTES * (TWIN_PAGE_BYTES / TWIN_SECTOR_BYTES);
    *last_out = (clipped + TWIN_PAGE_BYTES - 1) / TWIN_PAGE_BYTES * (TWIN_PAGE_BYTES / TWIN_SECTOR_BYTES);
}

/* A sector that was dirty when a sync failed, and was not changed since. */
static bool is_lost(twin_node *node, const twin_bytes *now, uint64_t sector)
{
    if (node->lost == NULL || sector >= sectors_of(&node->failed) || node->lost[sector] == 0) return false;
    if (same_sector(&node->failed, now, sector)) return true;
    node->lost[sector] = 0;
    return false;
}

static bool sync_length(twin_node *node, const twin_bytes *now)
{
    if (node->lost_length && node->failed.bytes == now->bytes) return false;
    node->lost_length = false;
    twin_bytes_set_length(&node->synced, now->bytes);
    node->middle.bytes = now->bytes;
    return true;
}

void twin_node_sync(cmq_file_twin *twin, twin_node *node, uint64_t offset, uint64_t end, bool whole)
{
    if (!node->touched) return;
    twin_read_now(twin, node);
    twin_bytes *now = &twin->now;
    const uint64_t wanted = end < now->bytes ? end : now->bytes;
    bool all = true;
    if (whole || node->synced.bytes < wanted) all = sync_length(node, now);
    const uint64_t length = node->synced.bytes;
    twin_bytes_need(&node->synced, now->bytes);
    twin_bytes_need(now, node->synced.room);
    uint64_t first, last;
    page_sectors(offset, end, &node->synced, &first, &last);
    for (uint64_t sector = first; sector < last; sector++) {
        if (is_lost(node, now, sector)) {
            all = false;
            continue;
        }
        copy_sector(&node->synced, now, sector);
        if (sector < sectors_of(&node->middle)) copy_sector(&node->middle, now, sector);
    }
    twin_bytes_set_length(&node->synced, length);   /* nothing stays behind a length that was not taken over */
    if (!whole) return;
    twin_bytes_free(&node->middle);
    node->touched = node->writable_mappings > 0 || !all;
}

void twin_node_sync_failed(cmq_file_twin *twin, twin_node *node, uint64_t offset, uint64_t end)
{
    twin_read_now(twin, node);
    const twin_bytes *now = &twin->now;
    const uint64_t before = sectors_of(&node->failed);
    twin_bytes_need(&node->failed, now->bytes);
    const uint64_t sectors = sectors_of(&node->failed);
    if (sectors > before) {
        node->lost = realloc(node->lost, (size_t)sectors);
        CMQ_ASSERT(node->lost != NULL);
        memset(node->lost + before, 0, (size_t)(sectors - before));
    }
    uint64_t first, last;
    page_sectors(offset, end, &node->failed, &first, &last);
    for (uint64_t sector = first; sector < last; sector++) {
        if (same_sector(now, &node->synced, sector)) continue;
        node->lost[sector] = 1;
        copy_sector(&node->failed, now, sector);
    }
    node->failed.bytes = now->bytes;
    node->lost_length = now->bytes != node->synced.bytes;
}

void twin_node_written(twin_node *node, uint64_t offset, uint64_t end)
{
    node->touched = true;
    uint64_t first, last;
    if (node->lost == NULL) return;
    page_sectors(offset, end, &node->failed, &first, &last);
    for (uint64_t sector = first; sector < last; sector++) node->lost[sector] = 0;
}

/* ---- early write-back ---- */

static twin_node *some_touched_node(cmq_file_twin *twin)
{
    uint64_t count = 0;
    for (twin_node *node = twin->nodes; node != NULL; node = node->next) count += node->touched ? 1 : 0;
    if (count == 0) return NULL;
    uint64_t left = twin_random_below(twin, count);
    for (twin_node *node = twin->nodes;; node = node->next)
        if (node->touched && left-- == 0) return node;
}

void twin_write_back_some(cmq_file_twin *twin)
{
    twin_node *node = some_touched_node(twin);
    if (node == NULL) return;
    twin_read_now(twin, node);
    if (node->middle.data == NULL) {
        copy_bytes(&node->middle, &node->synced);
        twin_bytes_need(&node->middle, 1);   /* data is there from now on, even of an empty file */
    }
    const bool with_length = twin_random_below(twin, 2) == 0;
    const uint64_t length = with_length ? twin->now.bytes : node->middle.bytes;
    const uint64_t one_in = 1 + twin_random_below(twin, 3);
    twin_bytes_need(&node->middle, twin->now.bytes);
    for (uint64_t sector = 0; sector < sectors_of(&node->middle); sector++)
        if (twin_random_below(twin, one_in) == 0) copy_sector(&node->middle, &twin->now, sector);
    node->middle.bytes = length;   /* bytes behind it stay: with a later length a sector is still as it once was */
}
